//! Checks on the state of the servers, made from outside.

use crate::planted;
use crate::typed::{self, StoredNumber, StoredPages};
use crate::workload::Register;
use std::collections::{BTreeMap, BTreeSet};
use store::{TabletMap, TabletState, Worker};
use types::{HashRange, KeyHash, MigrationId, ServerId, TableId, UnixMillis, key_hash};
use values::PageName;
use wire::batch::BatchReader;
use wire::entry::{Body, Entry};

/// Access to one server's store beside its reactors', and the state of the progress check.
pub(crate) struct Inspector {
    pub(crate) worker: Worker,
    /// Progress of all arriving partitions at the last check.
    progress: Vec<(MigrationId, Option<KeyHash>)>,
    /// Hashes of moving ranges that the progress has passed.
    passed: BTreeSet<(MigrationId, KeyHash)>,
}

/// Key of a moving range that the progress of its migration has passed.
pub(crate) struct PassedKey {
    pub(crate) migration: MigrationId,
    pub(crate) source: ServerId,
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
}

/// Result of a scan over a server.
pub(crate) struct ServerContents {
    /// Served records, by key.
    pub(crate) held: BTreeMap<Vec<u8>, u64>,
    /// Number of expired records, and of copies of records that another server serves.
    pub(crate) others: u64,
    /// Set if there may be tombstones, which scans do not return: a range arrives, or the log is
    /// durable.
    pub(crate) may_have_tombstones: bool,
    /// Bytes of all of them in the log.
    pub(crate) bytes: u64,
}

impl Inspector {
    pub(crate) fn new(mut worker: Worker) -> Inspector {
        worker.sleep();
        Inspector { worker, progress: Vec::new(), passed: BTreeSet::new() }
    }

    /// Runs `look` on the store as a turn of its own; no grace period waits for it afterwards.
    pub(crate) fn look<T>(&mut self, look: impl FnOnce(&mut Worker) -> T) -> T {
        // The inspector does not advance the clock: only the server's turns do.
        let clock = self.worker.store().clock();
        self.worker.begin_turn(clock);
        let seen = look(&mut self.worker);
        self.worker.sleep();
        seen
    }

    /// Returns the keys that the progress of a migration has passed since the last call, with the
    /// source of the migration. Keys of flushed tables are left out.
    pub(crate) fn newly_passed(&mut self, registers: &[Register]) -> Vec<PassedKey> {
        let mut newly = Vec::new();
        let tablets = self.worker.store().tablets();
        if !self.has_progressed(&tablets) {
            return newly;
        }
        for tablet in tablets.iter() {
            let TabletState::Arriving(arrival) = &tablet.state else { continue };
            let (migration, source) = (arrival.migration(), arrival.source());
            for register in registers {
                let table = register.table;
                let is_flushed = arrival.is_flushed(table) || tablet.flushing.contains(table);
                for &(hash, _) in &register.keys {
                    let is_passed = tablet.range.contains(hash) && arrival.is_below_progress(hash);
                    if is_passed && self.passed.insert((migration, hash)) && !is_flushed {
                        newly.push(PassedKey { migration, source, table, hash });
                    }
                }
            }
        }
        newly
    }

    fn has_progressed(&mut self, tablets: &TabletMap) -> bool {
        let (mut has_progressed, mut count) = (false, 0);
        for tablet in tablets.iter() {
            let TabletState::Arriving(arrival) = &tablet.state else { continue };
            for partition in 0..arrival.partitions() {
                let now = (arrival.migration(), arrival.progress(partition));
                if self.progress.get(count) != Some(&now) {
                    has_progressed = true;
                    self.progress.truncate(count);
                    self.progress.push(now);
                }
                count += 1;
            }
        }
        self.progress.truncate(count);
        has_progressed
    }

    /// Returns whether the server has a record with this hash, or its tombstone.
    pub(crate) fn knows(&mut self, table: TableId, hash: KeyHash) -> bool {
        self.look(|worker| worker.knows(table, hash)) == Ok(true)
    }

    /// Returns whether the server has a record with this hash that has not expired by `clock` (if
    /// any).
    pub(crate) fn has(&mut self, table: TableId, hash: KeyHash, clock: Option<UnixMillis>) -> bool {
        let mut batch = Vec::new();
        let is_here = self.look(|worker| worker.collect_hash(table, hash, &mut batch));
        let is_expired = |entry: &Entry<'_>| clock.is_some_and(|clock| entry.is_expired(clock));
        let mut records = BatchReader::new(&batch).flatten();
        is_here == Ok(true) && records.any(|record| !is_expired(&record.entry))
    }

    /// Returns the ranges in which this server executes operations.
    pub(crate) fn served(&self) -> Vec<HashRange> {
        let tablets = self.worker.store().tablets();
        let served = tablets.iter().filter(|tablet| match tablet.state {
            TabletState::Serving | TabletState::Securing(_) => true,
            TabletState::Arriving(ref arrival) => !arrival.is_suspended(),
            TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
        });
        served.map(|tablet| tablet.range).collect()
    }

    /// Planted bug: removes expired records above the progress without leaving tombstones.
    pub(crate) fn reclaim_without_tombstone(&mut self, registers: &[Register]) {
        let clock = self.worker.store().latest_clock();
        for (table, hash) in self.above_progress(registers) {
            if self.has(table, hash, None) && !self.has(table, hash, Some(clock)) {
                self.look(|w| planted::drop_range(w, HashRange::new(hash, hash)));
            }
        }
    }

    /// Planted bug: removes tombstones above the progress.
    pub(crate) fn drop_tombstones(&mut self, registers: &[Register]) {
        for (table, hash) in self.above_progress(registers) {
            if self.knows(table, hash) && !self.has(table, hash, None) {
                self.look(|w| planted::drop_range(w, HashRange::new(hash, hash)));
            }
        }
    }

    /// Planted bug: gives the orphans of a key to its present value.
    pub(crate) fn adopt_orphans(&mut self) {
        if self.worker.uses(TableId::PAGES) {
            self.look(planted::adopt_orphans);
        }
    }

    fn above_progress(&self, registers: &[Register]) -> Vec<(TableId, KeyHash)> {
        let tablets = self.worker.store().tablets();
        if !tablets.iter().any(|tablet| matches!(tablet.state, TabletState::Arriving(_))) {
            return Vec::new();
        }
        let is_above = |&(_, hash): &(TableId, KeyHash)| {
            let state = tablets.at(hash).map(|tablet| &tablet.state);
            matches!(
                state,
                Some(TabletState::Arriving(arrival)) if !arrival.is_below_progress(hash)
            )
        };
        let keys = registers
            .iter()
            .flat_map(|register| register.keys.iter().map(|(hash, _)| (register.table, *hash)));
        keys.filter(is_above).collect()
    }

    /// Returns the ranges that this server does not own, but in which it has records.
    pub(crate) fn left_behind(&mut self) -> Vec<HashRange> {
        let tablets = self.worker.store().tablets();
        let mut foreign = vec![HashRange::ALL];
        for tablet in tablets.iter() {
            foreign =
                foreign.iter().flat_map(|range| range.without(tablet.range)).flatten().collect();
        }
        foreign.retain(|&range| !self.look(|worker| worker.is_empty(range)));
        foreign
    }

    /// Scans all entries of this server.
    pub(crate) fn scan(&mut self) -> ServerContents {
        let clock = self.worker.store().latest_clock();
        let (mut held, mut others, mut bytes) = (BTreeMap::new(), 0, 0);
        let mut may_have_tombstones = self.worker.store().log().is_durable();
        // Root and pages of a value are in one slot, but a tablet may be a part of it.
        let mut split = Vec::new();
        let mut pages: BTreeMap<_, StoredPages> = BTreeMap::new();
        let tablets = self.worker.store().tablets();
        for tablet in tablets.iter() {
            may_have_tombstones |=
                matches!(tablet.state, TabletState::Arriving(_) | TabletState::Recovering(_));
            let is_served = match tablet.state {
                TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => true,
                TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
            };
            let mut batch = Vec::new();
            let mut cursor = Some(tablet.range.first());
            while let Some(at) = cursor {
                batch.clear();
                cursor = self.look(|w| w.collect(tablet.range, at, SCAN_BYTES, &mut batch));
                let records = BatchReader::new(&batch);
                for record in records.map(|entry| entry.expect("the batch is ours")) {
                    let entry = record.entry;
                    // A step may return a few records from beyond its end; they come again in the
                    // next step.
                    let hash = key_hash(self.worker.store().seed(), entry.key);
                    if hash < at || cursor.is_some_and(|next| hash >= next) {
                        continue;
                    }
                    bytes += record.encoded.len() as u64;
                    let is_shown = is_served && record.table.is_database();
                    match entry.body {
                        Body::Object { value, .. } if is_shown && !entry.is_expired(clock) => {
                            let key = entry.key.to_vec();
                            match typed::number_in(value, clock).expect("values are numbers") {
                                StoredNumber::Expired => others += 1,
                                StoredNumber::InPages(root) => {
                                    split.push((key, (record.table, hash), root));
                                }
                                StoredNumber::Here(number) => {
                                    let before = held.insert(key, number);
                                    assert!(before.is_none(), "a scan returns a record twice");
                                }
                            }
                        }
                        Body::Object { value, .. } if record.table == TableId::PAGES => {
                            others += 1;
                            let name = PageName::parse(entry.key).expect("a page has a name");
                            let of = pages.entry((name.table, name.root, name.id)).or_default();
                            of.insert(name.page, value.bytes.to_vec());
                        }
                        Body::Object { .. } => others += 1,
                        Body::Tombstone { .. } | Body::CopiesOf(_) => {}
                    }
                }
            }
        }
        for (key, place, root) in split {
            let mut of_slot = tablets.of_slot(place.1.slot());
            let is_arriving = of_slot.any(|it| matches!(it.state, TabletState::Arriving(_)));
            let pages = pages.remove(&(place.0, place.1, root.id())).unwrap_or_default();
            let Some(number) = root.number(&pages, clock, is_arriving) else {
                others += 1;
                continue;
            };
            let before = held.insert(key, number);
            assert!(before.is_none(), "a scan returns a record twice");
        }
        ServerContents { held, others, may_have_tombstones, bytes }
    }

    /// Returns the number of index words: records, and tombstones that have not been reclaimed.
    pub(crate) fn words(&mut self) -> u64 {
        self.look(|worker| {
            worker.counts(HashRange::ALL).iter().map(|&(_, _, records)| u64::from(records)).sum()
        })
    }
}

/// Size of one step of the final scan, in bytes.
const SCAN_BYTES: usize = 64 << 10;
