//! Records as commands see them: those of the store, or a transaction's copies.
//!
//! The commands of a transaction work on copies that were read at one moment. Each command sees the
//! changes of those before it. When all have run, the store makes all changes at once if every
//! record still has the version that was copied (optimistic concurrency control after Kung and
//! Robinson, 1981). No lock is held while commands run, and a transaction that loses starts again.

use super::backend::Backend;
use crate::commands::{Cause, NOT_INSIDE, NotExecuted, Refusal};
use crate::operators::counts::Found;
use planted::Bug;
use std::collections::HashMap;
use store::{NewValue, Scratch, Stall};
use types::limits::VALUE_BYTES_MAX;
use types::{Instant, KeyHash, TableId, UnixMillis, Version};

pub(crate) use store::{Changes, Key, Missing, Need, Record, TableKey};

/// The data that commands read and write: the records of the store, or a transaction's copies.
impl Backend {
    /// Returns the key of these bytes, with its hash.
    #[inline]
    pub(crate) fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { hash: self.engine.hash(bytes), bytes }
    }

    /// Returns the expiry clock of these keys' ranges, read now; with several, the latest.
    pub(crate) fn clock_of(&self, keys: &[Key<'_>], now: Instant) -> UnixMillis {
        self.engine.refresh_clock(now);
        let worker = &self.engine.worker;
        let clocks = keys.iter().map(|key| worker.clock_at(key.hash));
        clocks.max().unwrap_or_else(|| worker.store().clock())
    }

    /// Counts a command's results: at once, or when its transaction takes effect.
    #[inline]
    pub(crate) fn count(&mut self, found: Found) {
        match &mut self.staged {
            None => self.counts.found(found),
            Some(staged) => {
                staged.found.hits += found.hits;
                staged.found.misses += found.misses;
                staged.found.expired += found.expired;
            }
        }
    }

    /// Reads one record like [`Backend::peek_one`], and counts a hit or miss.
    #[inline]
    pub(crate) fn read_one<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<T, NotExecuted> {
        let mut exists = false;
        let result = self.peek_one(table, key, |record| {
            exists = record.is_some();
            f(record)
        })?;
        self.count(Found::key(exists));
        Ok(result)
    }

    /// Reads records like [`Backend::peek`], and counts a hit or miss for each key.
    pub(crate) fn read<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        f: impl FnOnce(&[Option<Record<'_>>]) -> T,
    ) -> Result<T, NotExecuted> {
        let mut found = Found::default();
        let result = self.peek(table, keys, |records| {
            found = Found::keys(records);
            f(records)
        })?;
        self.count(found);
        Ok(result)
    }

    /// Reads one record like `store::Worker::read_one`, without counting it.
    #[inline]
    pub(crate) fn peek_one<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<T, NotExecuted> {
        match &self.staged {
            None => Ok(self.engine.worker.read_one(table, key, f)?),
            Some(staged) => Ok(f(staged.record(staged.place(table, key)?))),
        }
    }

    /// Reads records like `store::Worker::read`, without counting them.
    pub(crate) fn peek<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        f: impl FnOnce(&[Option<Record<'_>>]) -> T,
    ) -> Result<T, NotExecuted> {
        match &self.staged {
            None => Ok(self.engine.worker.read(table, keys, f)?),
            Some(staged) => Ok(f(&staged.records(&staged.places(table, keys)?))),
        }
    }

    /// Writes one record like `store::Worker::put`.
    #[inline]
    pub(crate) fn put(
        &mut self,
        table: TableId,
        key: Key<'_>,
        value: &[u8],
        expiry: Option<UnixMillis>,
    ) -> Result<(), NotExecuted> {
        match &mut self.staged {
            None => Ok(self.engine.worker.put(table, key, value, expiry)?),
            Some(staged) => {
                let place = staged.place(table, key)?;
                staged.change(place, Some((value, expiry)))
            }
        }
    }

    /// Reads and changes records like `store::Worker::update`.
    #[inline]
    pub(crate) fn update<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        need: Need,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        match &mut self.staged {
            None => Ok(self.engine.worker.update(table, keys, need, f)?),
            Some(staged) => {
                let places = staged.places(table, keys)?;
                let mut scratch = std::mem::take(&mut staged.scratch);
                let result = f(&staged.records(&places), &mut scratch.changes(keys.len()));
                let mut changes = scratch.collected();
                let done = changes.try_for_each(|(at, new)| staged.change(places[at], new));
                drop(changes);
                staged.scratch = scratch;
                done.map(|()| result)
            }
        }
    }

    /// Changes a record beside another one like `store::Worker::update_beside`.
    pub(crate) fn update_beside<T>(
        &mut self,
        beside: TableKey<'_>,
        key: TableKey<'_>,
        f: impl FnOnce([Option<Record<'_>>; 2], &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        match self.staged {
            None => Ok(self.engine.worker.update_beside(beside, key, f)?),
            // A transaction has copies of one table only.
            Some(_) => Err(NOT_INSIDE.into()),
        }
    }

    /// Scans buckets of the store like `store::Worker::scan`, also inside a transaction.
    pub(crate) fn scan(
        &mut self,
        table: TableId,
        from: KeyHash,
        buckets: usize,
        f: impl FnMut(&[u8], Record<'_>),
    ) -> Result<Option<KeyHash>, NotExecuted> {
        Ok(self.engine.worker.scan(table, from, buckets, f)?)
    }
}

/// Decides what follows when the store has not executed an operation.
impl From<Stall> for NotExecuted {
    fn from(stall: Stall) -> NotExecuted {
        NotExecuted::Retry(match stall {
            Stall::NotOwned => return NotExecuted::Redirect,
            Stall::TooLarge => return Refusal::TooLarge.into(),
            Stall::Held if planted::is(Bug::RedirectedWhileHeld) => return NotExecuted::Redirect,
            Stall::Held => Cause::Held,
            Stall::Missing(missing) => Cause::Missing(missing),
            Stall::NotArrived { migration, from } => Cause::Progress { migration, from },
            Stall::Contended => Cause::Turn,
            Stall::OutOfMemory => Cause::Memory,
        })
    }
}

/// The records of a transaction: as read from the store, and as changed by its commands so far.
#[derive(Debug)]
pub(crate) struct TransactionRecords {
    table: TableId,
    /// Time by which expiry is judged.
    clock: UnixMillis,
    records: Vec<StagedRecord>,
    /// Position of each key's record in `records`. The map is only looked up, never iterated.
    places: HashMap<Box<[u8]>, usize>,
    scratch: Scratch,
    /// Results of the commands so far.
    found: Found,
}

/// One record, or its absence.
#[derive(Debug)]
struct StagedRecord {
    /// Version of the record that was read; `None` if there was no record.
    version: Option<Version>,
    now: Option<(Vec<u8>, Option<UnixMillis>)>,
    is_changed: bool,
}

impl TransactionRecords {
    /// Copies the records that were read under these distinct keys of a table.
    pub(crate) fn new(
        table: TableId,
        clock: UnixMillis,
        keys: &[Key<'_>],
        records: &[Option<Record<'_>>],
    ) -> TransactionRecords {
        let copy = |record: &Option<Record<'_>>| StagedRecord {
            version: record.map(|record| record.version),
            now: record.map(|record| (record.value.to_vec(), record.expiry)),
            is_changed: false,
        };
        let place = |(place, key): (usize, &Key<'_>)| (Box::from(key.bytes), place);
        TransactionRecords {
            table,
            clock,
            records: records.iter().map(copy).collect(),
            places: keys.iter().enumerate().map(place).collect(),
            scratch: Scratch::default(),
            found: Found::default(),
        }
    }

    /// Returns whether the given records are still the versions that were read.
    pub(crate) fn is_current(&self, records: &[Option<Record<'_>>]) -> bool {
        let versions = records.iter().map(|record| record.map(|record| record.version));
        self.records.iter().map(|record| record.version).eq(versions)
    }

    /// Returns the results of the commands so far.
    pub(crate) fn found(&self) -> Found {
        self.found
    }

    /// Returns whether the commands have changed any record.
    pub(crate) fn is_changed(&self) -> bool {
        self.records.iter().any(|record| record.is_changed)
    }

    /// Adds the commands' changes to `changes`. Positions are those of the keys.
    pub(crate) fn apply(&self, changes: &mut Changes<'_>) {
        for (place, record) in self.records.iter().enumerate().filter(|(_, r)| r.is_changed) {
            match &record.now {
                Some((value, expiry)) => changes.put(place, value, *expiry),
                // The record does not exist in the store, so there is nothing to delete.
                None if record.version.is_none() => {}
                None => changes.delete(place),
            }
        }
    }

    fn place(&self, table: TableId, key: Key<'_>) -> Result<usize, NotExecuted> {
        let place = (table == self.table).then(|| self.places.get(key.bytes)).flatten();
        place.copied().ok_or(NOT_INSIDE.into())
    }

    fn places(&self, table: TableId, keys: &[Key<'_>]) -> Result<Vec<usize>, NotExecuted> {
        keys.iter().map(|key| self.place(table, *key)).collect()
    }

    fn record(&self, place: usize) -> Option<Record<'_>> {
        let StagedRecord { version, now, .. } = &self.records[place];
        let (value, expiry) = now.as_ref()?;
        let lasts = expiry.is_none_or(|expiry| expiry > self.clock);
        let version = version.unwrap_or(Version(0));
        lasts.then_some(Record { value, version, expiry: *expiry })
    }

    fn records(&self, places: &[usize]) -> Vec<Option<Record<'_>>> {
        places.iter().map(|&place| self.record(place)).collect()
    }

    fn change(&mut self, place: usize, new: NewValue<'_>) -> Result<(), NotExecuted> {
        if new.is_some_and(|(value, _)| value.len() > VALUE_BYTES_MAX) {
            return Err(Refusal::TooLarge.into());
        }
        let record = &mut self.records[place];
        record.now = new.map(|(value, expiry)| (value.to_vec(), expiry));
        record.is_changed = true;
        Ok(())
    }
}
