//! Replay of a dead server's log into a range that is being recovered.
//!
//! Entries come in log order, not in hash order: each may belong to another leaf. Many are newer
//! or older than an entry of the same key that is already replayed. So the entries of the same
//! hash are prefetched as well, before the first of a window is inserted.

use super::estimate::EntryCounts;
use super::recovery::Recovery;
use super::replay::{
    EntrySource, ParsedRecord, ReplayDestination, ReplayError, ReplayOrigin, Replayed,
};
use super::view::View;
use super::worker::Worker;
use std::sync::Arc;
use types::key_hash;
use wire::Corrupt;
use wire::entries::{EntryReader, ReadEntry};

impl Worker {
    /// Replays at most `entries_max` entries of a dead server's log, starting at offset `from`.
    /// `entries` are consecutive entries of its segments.
    ///
    /// Entries may come in any order, by any worker, and repeatedly. Irrelevant entries are
    /// dropped: those of another range or incarnation, copy-origin notes, and those of a tablet
    /// that is no longer in this recovery. Stops early at a leaf that another thread keeps
    /// locked. `from` is 0 or the `next` of an earlier call.
    pub fn replay_log(
        &mut self,
        recovery: &Arc<Recovery>,
        entries: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let origin = ReplayOrigin::Recovery { recovery, is_common: true };
        self.replay_entries(recovery, origin, EntryReader::from(entries, from), entries_max)
    }

    /// Does the same as [`Worker::replay_log`] for entries that a later reader may not find in
    /// the dead server's log. They count as written here: no client sees them before the replicas
    /// have them.
    pub fn replay_divergent(
        &mut self,
        recovery: &Arc<Recovery>,
        entries: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let origin = ReplayOrigin::Recovery { recovery, is_common: false };
        self.replay_entries(recovery, origin, EntryReader::from(entries, from), entries_max)
    }

    fn replay_entries(
        &mut self,
        recovery: &Recovery,
        origin: ReplayOrigin<'_>,
        reader: EntryReader<'_>,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let mut source = LogSource { reader, recovery, seen: EntryCounts::default() };
        let replayed = self.replay_from(origin, &mut source, entries_max);
        recovery.note_seen(&source.seen);
        replayed
    }
}

/// Entries of the dead server's log.
struct LogSource<'b> {
    reader: EntryReader<'b>,
    recovery: &'b Recovery,
    seen: EntryCounts,
}

impl<'b> EntrySource<'b> for LogSource<'b> {
    fn fill(
        &mut self,
        destination: &ReplayDestination<'_>,
        count: usize,
        window: &mut Vec<ParsedRecord<'b>>,
    ) -> Result<(), Corrupt> {
        for _ in 0..count {
            let Some(read) = self.reader.next_checked().transpose()? else { break };
            let ReadEntry { offset, entry, encoded } = read;
            let hash = key_hash(destination.store.seed(), entry.key);
            let in_range = self.recovery.range().contains(hash);
            let table = self.recovery.table_of(entry.incarnation).filter(|_| in_range);
            if let Some(table) = table {
                self.seen.note(table, encoded.len());
                let view = View::new(destination.store, table, destination.turn);
                view.make_leaf(hash.slot(), || {
                    self.recovery.records_per_slot(table, view.log.total_bytes())
                });
                view.index.prefetch_for_change(hash, destination.turn);
            }
            window.push(ParsedRecord { table, hash, entry, encoded, offset });
        }
        for parsed in &*window {
            if let Some(table) = parsed.table {
                View::new(destination.store, table, destination.turn).prefetch_rivals(parsed.hash);
            }
        }
        Ok(())
    }

    fn next_offset(&self) -> Option<usize> {
        (!self.reader.is_at_end()).then(|| self.reader.offset())
    }
}
