//! Replay of the log of a dead server into a range that is being recovered.
//!
//! Entries come as they stood in that log, without regard to hashes: each may lie in another leaf, and
//! a good part of them is newer or older than one of the same key that has been replayed already. So
//! also what stands under the same hash is asked for before the first of a window is entered.

use super::expected::Seen;
use super::recovery::Recovery;
use super::replay::{Bringer, Destination, Parsed, Source};
use super::view::View;
use super::{ReplayError, Replayed, Worker};
use std::sync::Arc;
use types::key_hash;
use wire::Corrupt;
use wire::entries::{EntryReader, ReadEntry};

impl Worker {
    /// Replays entries of a dead server's log, as they stand in its segments one behind the other,
    /// from an offset on, at most so many. In any order, by any worker, and again. What does not
    /// count is dropped: of another range, another stay, a note, of a tablet that is not in this
    /// recovery any more. Stops early at a leaf that somebody else keeps locked; `from` is 0 or
    /// what an earlier call returned as `next`.
    pub fn replay_log(
        &mut self,
        recovery: &Arc<Recovery>,
        entries: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        self.replay_entries((recovery, true), (entries, from), entries_max)
    }

    /// As [`Worker::replay_log`] for what the dead server's log may not have for whoever reads it next:
    /// it counts as written here, so that nobody is shown it before the replicas have it.
    pub fn replay_unsettled(
        &mut self,
        recovery: &Arc<Recovery>,
        entries: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        self.replay_entries((recovery, false), (entries, from), entries_max)
    }

    fn replay_entries(
        &mut self,
        (recovery, is_settled): (&Arc<Recovery>, bool),
        (entries, from): (&[u8], usize),
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let bringer = Bringer::Recovery { recovery, is_settled };
        let reader = EntryReader::from(entries, from);
        let mut source = Log { reader, recovery, seen: Seen::default() };
        let replayed = self.replay_from(bringer, &mut source, entries_max);
        recovery.note_seen(&source.seen);
        replayed
    }
}

/// A stretch of the dead server's log.
struct Log<'b> {
    reader: EntryReader<'b>,
    recovery: &'b Recovery,
    seen: Seen,
}

impl<'b> Source<'b> for Log<'b> {
    fn fill(
        &mut self,
        place: &Destination<'_>,
        count: usize,
        window: &mut Vec<Parsed<'b>>,
    ) -> Result<(), Corrupt> {
        for _ in 0..count {
            let Some(read) = self.reader.next_checked().transpose()? else { break };
            let ReadEntry { offset, entry, encoded } = read;
            let hash = key_hash(place.store.seed(), entry.key);
            let in_range = self.recovery.range().contains(hash);
            let table = self.recovery.table_of(entry.tenure).filter(|_| in_range);
            if let Some(table) = table {
                self.seen.note(table, encoded.len());
                let view = View::new(place.store, table, place.turn);
                self.recovery.make_leaf(&view, hash.slot());
                view.index.prefetch_for_change(hash, place.turn);
            }
            window.push(Parsed { table, hash, entry, encoded, offset });
        }
        for parsed in &*window {
            if let Some(table) = parsed.table {
                View::new(place.store, table, place.turn).prefetch_rivals(parsed.hash);
            }
        }
        Ok(())
    }

    fn next_offset(&self) -> Option<usize> {
        (!self.reader.is_at_end()).then(|| self.reader.offset())
    }
}
