//! Replay: what a pull brought is put into the index, unless something newer is here.
//!
//! Half of the cost of a migration is here, so: a window of records is parsed and their buckets
//! asked for before the first one is inserted, the run of a batch tells the slot so that only the
//! hash within it is computed, and a leaf stays locked while the next record belongs to it.

use super::arrival::{Arrival, ArrivalCounters, Progress};
use super::leaves::HeldLeaf;
use super::store::Store;
use super::tablets::{TabletMap, TabletState};
use super::view::{Found, Placed, View, kind_of};
use super::{Key, Stall, Worker};
use crate::address::Address;
use crate::index::{Kind, Word};
use crate::log::{Log, OutOfMemory, SideLog, Turn};
use std::sync::Arc;
use types::{HashRange, KeyHash, MigrationId, TableId, Tenure, Version, key_hash_in_slot};
use wire::Corrupt;
use wire::batch::{BatchEntry, BatchReader};
use wire::entry::{Body, Dead, Entry};

/// Records parsed ahead of the one that is inserted. Measured by `store_bench`; 8 to 32 are alike.
const WINDOW: usize = 16;

/// How far a quantum of replay came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Where in the batch to go on; `None`: it has been replayed to its end.
    pub next: Option<usize>,
    /// Records put into the index.
    pub records: u64,
    /// Their bytes in the log.
    pub bytes: u64,
    /// Records that were not needed.
    pub dropped: u64,
}

/// Why a batch cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Its bytes are damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// There is no memory for it. What has been replayed of it does no harm if it is tried again.
    #[error("no memory for the records that arrive")]
    OutOfMemory,
}

impl Worker {
    /// Replays a batch from an offset on, at most so many records. Stops early at a leaf that
    /// somebody else keeps locked; `from` is 0 or what an earlier call returned as `next`.
    pub fn replay(
        &mut self,
        arrival: &Arc<Arrival>,
        batch: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let turn = self.participant.turn();
        let side_log = side_log_of(&mut self.side_logs, &self.store.log, arrival);
        let place =
            Destination { store: &self.store, tablets: &self.tablets, arrival, turn: &turn };
        let mut replay = Replay { place, side_log, stay: None, done: Replayed::default() };
        let result = replay.run(BatchReader::resume(batch, from)?, entries_max);
        let done = replay.done;
        arrival.count(ArrivalCounters {
            records: done.records,
            bytes: done.bytes,
            dropped: done.dropped,
        });
        result.map(|next| Replayed { next: next.filter(|&next| next < batch.len()), ..done })
    }

    /// What this worker has replayed of a migration joins the log.
    pub fn splice(&mut self, migration: MigrationId) {
        if let Some(at) = self.side_logs.iter().position(|(id, _)| *id == migration) {
            self.side_logs.swap_remove(at).1.splice(&mut self.spliced);
        }
    }

    /// Bytes that this worker has replayed of a migration and not spliced.
    pub fn side_bytes(&self, migration: MigrationId) -> u64 {
        let side_log = self.side_logs.iter().find(|(id, _)| *id == migration);
        side_log.map_or(0, |(_, side_log)| side_log.bytes())
    }
}

fn side_log_of<'s>(
    side_logs: &'s mut Vec<(MigrationId, SideLog)>,
    log: &Arc<Log>,
    arrival: &Arrival,
) -> &'s mut SideLog {
    let migration = arrival.migration();
    let at = side_logs.iter().position(|(id, _)| *id == migration).unwrap_or_else(|| {
        let side_log = match arrival.reservation() {
            Some(reservation) => reservation.side_log(),
            None => log.side_log(),
        };
        side_logs.push((migration, side_log));
        side_logs.len() - 1
    });
    &mut side_logs[at].1
}

/// Where records go.
#[derive(Clone, Copy)]
struct Destination<'t> {
    store: &'t Store,
    tablets: &'t TabletMap,
    arrival: &'t Arc<Arrival>,
    turn: &'t Turn<'t>,
}

/// One quantum of replay.
struct Replay<'t, 's> {
    place: Destination<'t>,
    side_log: &'s mut SideLog,
    /// Where the record before this one belonged.
    stay: Option<Stay<'t>>,
    done: Replayed,
}

/// A range of one table in which records are wanted, or not.
#[derive(Clone, Copy)]
struct Stay<'t> {
    table: TableId,
    range: HashRange,
    wanted: Option<Wanted<'t>>,
}

/// What is done with the records that are wanted.
#[derive(Clone, Copy)]
struct Wanted<'t> {
    view: View<'t>,
    progress: Progress<'t>,
    /// Under which they are stored.
    tenure: Tenure,
}

/// A record that has been parsed.
#[derive(Clone, Copy)]
struct Parsed<'b> {
    table: TableId,
    hash: KeyHash,
    key: &'b [u8],
    version: Version,
    kind: Kind,
    entry: Entry<'b>,
    encoded: &'b [u8],
    /// Where it begins in the batch.
    offset: usize,
}

/// Why a quantum of replay ends before its budget.
enum Halt {
    /// The leaf of the record at this offset is locked.
    At(usize),
    Failed(ReplayError),
}

impl<'t> Replay<'t, '_> {
    /// Returns where to go on.
    fn run(
        &mut self,
        mut reader: BatchReader<'_>,
        mut entries_max: usize,
    ) -> Result<Option<usize>, ReplayError> {
        let mut window = Vec::with_capacity(WINDOW);
        while entries_max > 0 {
            window.clear();
            self.fill(&mut reader, entries_max.min(WINDOW), &mut window)?;
            if window.is_empty() {
                return Ok(None);
            }
            entries_max -= window.len();
            let highest = window.iter().map(|parsed| parsed.version).max();
            self.place.store.raise_version(highest.unwrap_or(Version(0)));
            // For one window only: a client that wants the leaf waits for less than a microsecond.
            let mut held = HeldLeaf::none();
            for parsed in &window {
                match self.insert(parsed, &mut held) {
                    Ok(()) => {}
                    Err(Halt::At(offset)) => return Ok(Some(offset)),
                    Err(Halt::Failed(error)) => return Err(error),
                }
            }
        }
        Ok(Some(reader.offset()))
    }

    /// Parses the next records and asks for their buckets.
    fn fill<'b>(
        &mut self,
        reader: &mut BatchReader<'b>,
        count: usize,
        window: &mut Vec<Parsed<'b>>,
    ) -> Result<(), Corrupt> {
        let seed = self.place.store.seed();
        for _ in 0..count {
            let offset = reader.offset();
            let Some(record) = reader.next().transpose()? else { break };
            let BatchEntry { table, slot, entry, encoded } = record;
            let hash = key_hash_in_slot(seed, slot, entry.key);
            let is_same_slot = |last: &Parsed<'_>| last.table == table && last.hash.slot() == slot;
            if !window.last().is_some_and(is_same_slot) {
                let view = View::new(self.place.store, table, self.place.turn);
                self.place.arrival.make_leaf(&view, slot);
            }
            self.place.store.index_or_new(table).prefetch(hash, self.place.turn);
            let Entry { key, version, .. } = entry;
            let kind = kind_of(&entry);
            window.push(Parsed { table, hash, key, version, kind, entry, encoded, offset });
        }
        Ok(())
    }

    #[inline]
    fn insert(&mut self, parsed: &Parsed<'_>, held: &mut HeldLeaf<'t>) -> Result<(), Halt> {
        let Some(wanted) = self.wanted(parsed.table, parsed.hash) else {
            self.done.dropped += 1;
            return Ok(());
        };
        let Wanted { view, progress, tenure } = wanted;
        let leaf = match held.lock(&view, parsed.hash) {
            Ok(leaf) => leaf,
            Err(Stall::OutOfMemory) => return Err(Halt::Failed(ReplayError::OutOfMemory)),
            Err(_) => return Err(Halt::At(parsed.offset)),
        };
        let found = view.find_locked(leaf, Key { hash: parsed.hash, bytes: parsed.key });
        let is_old = matches!(&found, Found::Here(_, here) if here.version >= parsed.version);
        // Judged under the lock: what has been swept below the progress must not come back.
        if is_old || progress.has_passed(parsed.hash) {
            self.done.dropped += 1;
            return Ok(());
        }
        let (address, bytes) = self.append(parsed, tenure, found.old())?;
        let word = Word::new(parsed.hash, parsed.kind, address);
        let new = Placed { word, bytes };
        match found.old() {
            Some(old) => {
                leaf.replace(parsed.hash, old.tuple(), new.tuple());
                view.retire(old);
            }
            None => {
                if let Err(no_room) = leaf.insert(parsed.hash, word, new.bytes) {
                    view.log.kill(address, new.bytes);
                    return Err(no_room.into());
                }
            }
        }
        match parsed.kind {
            Kind::Tombstone => self.place.arrival.note_buried(parsed.table, parsed.hash),
            Kind::Object | Kind::Expiring => {}
        }
        self.done.records += 1;
        self.done.bytes += u64::from(new.bytes);
        Ok(())
    }

    /// Appends the record as it came, unless it names what it replaced, which means nothing in
    /// this log, or replaces what must be kept dead here. Returns where, and how many bytes it takes.
    #[inline]
    fn append(
        &mut self,
        parsed: &Parsed<'_>,
        tenure: Tenure,
        old: Option<Placed>,
    ) -> Result<(Address, u32), OutOfMemory> {
        let log = &self.place.store.log;
        let old = old.filter(|_| log.is_durable());
        let here = old.map(|old| log.location_of(old.word.address()));
        let body = match parsed.entry.body {
            Body::Object { replaces: None, .. } if here.is_none() => None,
            Body::Object { expiry, value, .. } => {
                Some(Body::Object { expiry, replaces: here, value })
            }
            Body::Tombstone { .. } => {
                Some(Body::Tombstone { dead: here.map_or(Dead::Nothing, Dead::At) })
            }
            Body::CopiesOf(_) => unreachable!("no batch has notes"),
        };
        match body {
            None => {
                let address = self.side_log.append_encoded(parsed.encoded, tenure)?;
                Ok((address, parsed.encoded.len() as u32))
            }
            Some(body) => {
                let mut entry = Entry { tenure, body, ..parsed.entry };
                let address = self.side_log.append_replacing(&mut entry)?;
                Ok((address, entry.encoded_bytes() as u32))
            }
        }
    }

    /// What is done with a record of this hash; `None`: it is not wanted any more.
    #[inline]
    fn wanted(&mut self, table: TableId, hash: KeyHash) -> Option<Wanted<'t>> {
        match self.stay {
            Some(stay) if stay.table == table && stay.range.contains(hash) => stay.wanted,
            Some(_) | None => self.enter(table, hash),
        }
    }

    fn enter(&mut self, table: TableId, hash: KeyHash) -> Option<Wanted<'t>> {
        let Destination { store, tablets, arrival, turn } = self.place;
        let tablet = tablets.at(hash)?;
        let is_current = match &tablet.state {
            TabletState::Arriving(current) => Arc::ptr_eq(current, arrival),
            TabletState::Serving | TabletState::Frozen | TabletState::Leaving => false,
        };
        let mut stay = Stay { table, range: tablet.range, wanted: None };
        if is_current && !tablet.flushing.contains(table) && !arrival.is_flushed(table) {
            let progress = arrival.progress_at(hash);
            stay.range = progress.range().intersection(tablet.range)?;
            let tenure = tablet.tenures[usize::from(table.0)];
            stay.wanted = Some(Wanted { view: View::new(store, table, turn), progress, tenure });
        }
        self.stay = Some(stay);
        stay.wanted
    }
}

impl<E: Into<Stall>> From<E> for Halt {
    fn from(_: E) -> Halt {
        Halt::Failed(ReplayError::OutOfMemory)
    }
}
