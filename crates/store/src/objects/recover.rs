//! Restart: enters the log of the time before a crash into the indexes.
//!
//! Segments come in any order, and any worker enters any of them. The newest version of a key
//! wins. At equal versions the tombstone wins, because the cleaner may have derived it from an
//! object to supersede that object's predecessor. Of an original and its copy, the copy wins.
//! Tombstones stay in the index until all segments have been entered.
//!
//! A crash can lose the middle of a key's history (`docs/design/log.md`, "A gap in the middle").
//! [`Worker::finish_recovery`] finds such *lost links* and mends them.

use super::estimate::EntryCounts;
use super::record::Key;
use super::stall::Stall;
use super::store::Store;
use super::tablets::TabletMap;
use super::view::{Lookup, Placed, View, kind_of, rank};
use super::worker::Worker;
use crate::address::Address;
use crate::index::{Word, WordKind};
use crate::log::{OutOfMemory, Turn};
use planted::Bug;
use std::collections::BTreeMap;
use types::{HashRange, Incarnation, KeyHash, SegmentId, TableId, Version, key_hash};
use wire::Corrupt;
use wire::entries::{EntryReader, ReadEntry};
use wire::entry::{Body, Dead, Entry, Location};

/// Entries parsed ahead of the one that is entered.
const WINDOW: usize = 32;

/// The reason why a segment cannot be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// The bytes are not a valid log.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// No memory for the index.
    #[error("not enough memory for the recovered records")]
    OutOfMemory,
}

/// An entry of an adopted segment.
struct AdoptedEntry<'t> {
    /// Table of the entry; `None` if the entry is void.
    table: Option<TableId>,
    /// Set if the entry does not count: see [`Store::ignore`].
    is_ignored: bool,
    hash: KeyHash,
    entry: Entry<'t>,
    address: Address,
    bytes: u32,
}

/// Per segment, the farthest offset that an entry names.
type Named = BTreeMap<SegmentId, u32>;

/// One step of entering a segment.
struct Entering<'t> {
    store: &'t Store,
    tablets: &'t TabletMap,
    turn: &'t Turn<'t>,
    segment: SegmentId,
    named: Named,
    seen: EntryCounts,
}

impl Worker {
    /// Enters at most `entries_max` entries of an adopted segment into the indexes, starting at
    /// `offset`. Returns where to resume; `None` at the segment's end. No operation may run
    /// meanwhile; several workers may enter segments.
    pub fn recover(
        &mut self,
        segment: SegmentId,
        offset: u32,
        entries_max: usize,
    ) -> Result<Option<u32>, RecoverError> {
        let turn = self.participant.turn();
        // Not the turn's tablets: the turn may have begun before the recovered ranges were
        // published, and an entry outside every tablet is void.
        let tablets = self.store.tablets();
        let (store, tablets) = (&*self.store, &*tablets);
        let (named, seen) = (Named::new(), EntryCounts::default());
        let mut entering = Entering { store, tablets, turn: &turn, segment, named, seen };
        let next = entering.run(offset, entries_max);
        store.log.durable_log().note_named(&entering.named);
        store.estimate.note_seen(&entering.seen);
        next
    }

    /// Mends lost links and removes the tombstones' index words, after all segments have been
    /// entered. One call is a bounded step from `cursor` on (0 at first). Returns where to
    /// resume; `None` when the store is ready.
    pub fn finish_recovery(
        &mut self,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Result<Option<KeyHash>, OutOfMemory> {
        if cursor == KeyHash(0) {
            self.mend_lost_links()?;
            self.store.log.durable_log().end_adoption();
        }
        let mut rest = HashRange::new(cursor, HashRange::ALL.last());
        let mut next = None;
        let tables: Vec<TableId> = self.store.indexes().map(|(table, _)| table).collect();
        for table in tables {
            if let Some(stopped) = self.remove_recovered_tombstones(table, rest, buckets_max) {
                next = Some(stopped);
                if stopped <= rest.first() {
                    break;
                }
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        Ok(next)
    }

    /// Removes the tombstones' words from a range of one table. Returns where to resume.
    fn remove_recovered_tombstones(
        &mut self,
        table: TableId,
        range: HashRange,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        self.words.clear();
        let next = view.gather(range, buckets_max, &mut self.words);
        for &(_, word) in self.words.iter().filter(|(_, word)| word.kind() == WordKind::Tombstone) {
            let entry = view.entry(word);
            let hash = key_hash(self.store.seed(), entry.key);
            if !range.contains(hash) {
                continue;
            }
            let Ok(mut leaf) = view.lock(hash) else { return Some(range.first()) };
            if let Some(word) = leaf.find(hash, |found| found == word) {
                let tombstone = Placed::new(word, &entry);
                leaf.remove(hash, word, tombstone.bytes);
                view.retire(tombstone);
            }
        }
        next
    }

    /// Mends lost links. An entry that names a missing entry gets a tombstone, which supersedes
    /// the same versions as the missing one did. The tombstone stays as long as any segment from
    /// before the crash is in the log.
    fn mend_lost_links(&mut self) -> Result<(), OutOfMemory> {
        let lost = self.store.log.durable_log().lost_links();
        if lost.is_empty() || planted::is(Bug::LostLinkIgnored) {
            return Ok(());
        }
        let turn = self.participant.turn();
        let tablets = self.store.tablets();
        let dead = Dead::UpTo(self.store.log.durable_log().registry.last());
        for segment in self.store.log.segments_in_log() {
            let (_, mut entries) = entries_of(&self.store, segment, 0, &turn);
            while let Some(Ok(ReadEntry { entry, .. })) = entries.next_unchecked() {
                let is_lost = named_by(&entry).is_some_and(|named| {
                    lost.get(&named.segment).is_some_and(|length| named.offset >= *length)
                });
                let hash = key_hash(self.store.seed(), entry.key);
                let counts = !self.store.log.durable_log().ignores(segment, entry.version);
                if is_lost && counts && table_of(&tablets, hash, entry.incarnation).is_some() {
                    let version = Version(entry.version.0 - 1);
                    let tombstone = Entry { version, body: Body::Tombstone { dead }, ..entry };
                    let address = self.head.append_one_reserved(&tombstone)?;
                    self.store.log.durable_log().retire_tombstone(
                        address,
                        tombstone.encoded_bytes() as u32,
                        dead,
                    );
                }
            }
        }
        Ok(())
    }
}

impl<'t> Entering<'t> {
    fn run(&mut self, offset: u32, mut entries_max: usize) -> Result<Option<u32>, RecoverError> {
        let (first, mut entries) = entries_of(self.store, self.segment, offset, self.turn);
        let mut window: Vec<AdoptedEntry<'t>> = Vec::with_capacity(WINDOW);
        while entries_max > 0 && !entries.is_at_end() {
            window.clear();
            let count = entries_max.min(WINDOW);
            let failed = self.fill(first, &mut entries, count, &mut window);
            self.prefetch_rivals(&window);
            entries_max = entries_max.saturating_sub(WINDOW);
            let highest = window.iter().map(|read| read.entry.version).max();
            self.store.raise_version(highest.unwrap_or(Version(0)));
            assert!(window.len() <= WINDOW, "a window of {} entries", window.len());
            for read in &window {
                match self.enter(read) {
                    Ok(()) => {}
                    Err(Stall::OutOfMemory) => return Err(RecoverError::OutOfMemory),
                    Err(_) => {
                        // Another worker holds the leaf. Resume at this entry: entering earlier
                        // ones again would count them twice.
                        let at = read.address;
                        return Ok(Some(self.store.log.location_of(at).offset));
                    }
                }
            }
            failed.map_err(RecoverError::Corrupt)?;
        }
        Ok((!entries.is_at_end()).then_some(entries.offset() as u32))
    }

    /// Parses the next entries and prefetches their buckets.
    fn fill(
        &mut self,
        first: Address,
        entries: &mut EntryReader<'t>,
        count: usize,
        window: &mut Vec<AdoptedEntry<'t>>,
    ) -> Result<(), Corrupt> {
        let log = &self.store.log;
        for _ in 0..count {
            let Some(read) = entries.next_unchecked().transpose()? else { break };
            let ReadEntry { offset, entry, encoded } = read;
            let (address, bytes) = (first.plus(offset as u32), encoded.len() as u32);
            if let Body::CopiesOf(origin) = entry.body {
                log.durable_log().registry.adopt_origin(self.segment, origin);
            }
            let hash = key_hash(self.store.seed(), entry.key);
            let is_ignored = log.durable_log().ignores(self.segment, entry.version);
            if is_ignored {
                let table = None;
                window.push(AdoptedEntry { table, is_ignored, hash, entry, address, bytes });
                continue;
            }
            let table = table_of(self.tablets, hash, entry.incarnation);
            if let Some(table) = table {
                self.seen.note(table, encoded.len());
                let view = View::new(self.store, table, self.turn);
                view.make_leaf(hash.slot(), || {
                    let (estimate, log_bytes) = (&self.store.estimate, view.log.total_bytes());
                    estimate.records_per_slot(table, HashRange::ALL, log_bytes)
                });
                view.index.prefetch_for_change(hash, self.turn);
            }
            if let Some(Location { segment, offset }) = named_by(&entry) {
                let farthest = self.named.entry(segment).or_default();
                *farthest = offset.max(*farthest);
            }
            window.push(AdoptedEntry { table, is_ignored, hash, entry, address, bytes });
        }
        Ok(())
    }

    /// Prefetches the entries that may have the same keys. Their buckets are expected to be in
    /// the cache.
    fn prefetch_rivals(&self, window: &[AdoptedEntry<'t>]) {
        for read in window {
            if let Some(table) = read.table {
                View::new(self.store, table, self.turn).prefetch_rivals(read.hash);
            }
        }
    }

    /// Points the index at the entry unless a newer one is present.
    fn enter(&self, read: &AdoptedEntry<'t>) -> Result<(), Stall> {
        let &AdoptedEntry { table, is_ignored, hash, ref entry, address, bytes } = read;
        if is_ignored {
            self.store.log.durable_log().count_ignored();
            self.store.log.mark_dead(address, bytes);
            return Ok(());
        }
        let Some(table) = table else {
            match entry.body {
                // Pinned, as every tombstone without a word. So the cleaner can rely on the pin.
                Body::Tombstone { dead } => {
                    self.store.log.durable_log().retire_tombstone(address, bytes, dead)
                }
                Body::Object { .. } | Body::CopiesOf(_) => self.store.log.mark_dead(address, bytes),
            }
            return Ok(());
        };
        let view = View::new(self.store, table, self.turn);
        let mut leaf = view.lock(hash)?;
        let new = Placed { word: Word::new(hash, kind_of(entry), address), bytes };
        match view.find_locked(&leaf, Key { hash, bytes: entry.key }) {
            Lookup::Nothing => leaf.insert(hash, new.word, bytes)?,
            Lookup::Here(word, here) if self.is_newer((entry, new.word), (&here, word)) => {
                let old = Placed::new(word, &here);
                leaf.replace(hash, old.tuple(), new.tuple());
                view.retire(old);
            }
            Lookup::Here(..) => view.retire(new),
        }
        Ok(())
    }

    fn is_newer(&self, new: (&Entry<'_>, Word), old: (&Entry<'_>, Word)) -> bool {
        let rank_of = |(entry, word): (&Entry<'_>, Word)| rank(entry.version, word.kind());
        match rank_of(new).cmp(&rank_of(old)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => {
                let of_old = self.store.log.segment_of(old.1.address());
                self.store.log.durable_log().registry.is_origin(self.segment, of_old)
            }
        }
    }
}

/// Returns the table of an entry, if its incarnation is current.
fn table_of(tablets: &TabletMap, hash: KeyHash, incarnation: Incarnation) -> Option<TableId> {
    let incarnations = &tablets.at(hash)?.incarnations;
    incarnations
        .iter()
        .position(|&of_table| of_table == incarnation)
        .map(|table| TableId(table as u8))
}

/// Returns the location of the entry that this one replaced or removed.
fn named_by(entry: &Entry<'_>) -> Option<Location> {
    match entry.body {
        Body::Object { replaces, .. } => replaces,
        Body::Tombstone { dead: Dead::At(location) } => Some(location),
        Body::Tombstone { dead: Dead::Nothing | Dead::UpTo(_) } | Body::CopiesOf(_) => None,
    }
}

/// Returns the address of an adopted segment, and its entries from an offset on.
fn entries_of<'t>(
    store: &'t Store,
    segment: SegmentId,
    from: u32,
    turn: &'t Turn<'t>,
) -> (Address, EntryReader<'t>) {
    let whole = store.log.durable_log().handed_out(segment, turn);
    let (first, bytes) = whole.expect("the segment is the log's");
    assert!(from as usize <= bytes.len(), "{segment} is entered from {from} of {}", bytes.len());
    (first, EntryReader::from(bytes, from as usize))
}
