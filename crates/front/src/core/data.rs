//! Records as commands see them: those of the store, or a transaction's copies.

use super::backend::Backend;
use crate::commands::{Cause, NotExecuted, Refusal};
use crate::operators::counts::Found;
use node::EarlyPull;
use planted::Bug;
use std::collections::HashSet;
use store::Stall;
use types::{Instant, KeyHash, TableId, UnixMillis, Version};

pub(crate) use store::{Accessed, Changes, Key, Missing, Need, NotHereYet, Record, TableKey};

/// The version of a record, as far as it is known when the reply is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordVersion {
    /// This version; 0 if there is no record.
    Known(Version),
    /// The current transaction has written the record. Its version is drawn when the transaction
    /// takes effect.
    Pending {
        /// Position of the record among those of the transaction.
        place: usize,
    },
}

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
        self.count_read(table, key, exists);
        Ok(result)
    }

    /// Counts a hit or miss of a read.
    #[inline]
    pub(super) fn count_read(&mut self, table: TableId, key: Key<'_>, exists: bool) {
        self.count(Found::key(exists));
        if self.notes_access && exists {
            self.engine.worker.note_read(table, key.hash);
        }
    }

    /// Reads one record like [`Backend::read_one`], or reports that it may still be at the source of
    /// a migration. Without a lease, and in a transaction, the read waits for the record instead.
    pub(crate) fn read_if_here<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<Result<T, NotHereYet>, NotExecuted> {
        if self.staged.is_some() || !self.node().has_leased_reads() {
            return Ok(Ok(self.read_one(table, key, f)?));
        }
        let mut exists = false;
        let result = self.engine.worker.read_if_here(table, key, |record| {
            exists = record.is_some();
            f(record)
        })?;
        if result.is_ok() {
            self.count_read(table, key, exists);
        }
        Ok(result)
    }

    /// Reads one record of the copy that this server keeps as the source of a migration, like
    /// `store::Worker::read_copy`.
    pub(crate) fn read_copy<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<Option<T>, NotExecuted> {
        Ok(self.engine.worker.read_copy(table, key, f)?)
    }

    /// Requests a record that clients read often at both sides of its migration.
    pub(crate) fn hint_pull(&mut self, now: Instant, key: TableKey<'_>, read: NotHereYet) {
        let hashes = vec![key.key.hash];
        let missing = Missing { table: key.table, migration: read.migration, hashes };
        self.engine.pull_early(now, &missing, EarlyPull::Hinted);
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
        if self.notes_access {
            keys.iter().for_each(|key| self.engine.worker.note_read(table, key.hash));
        }
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
            None => {
                self.engine.worker.put(table, key, value, expiry)?;
                if self.has_blocked {
                    self.notify_blocked(table, key.hash);
                }
            }
            Some(staged) => {
                let place = staged.place(table, key)?;
                staged.change(place, Some((value.into(), expiry)))?;
            }
        }
        self.note_written(table, &[key]);
        Ok(())
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
        let result = match &mut self.staged {
            None => {
                let result = self.engine.worker.update(table, keys, need, f)?;
                if self.has_blocked {
                    self.notify_written(keys.iter().map(|key| (table, key.hash)));
                }
                result
            }
            Some(staged) => staged.update(&staged.places(table, keys)?, f)?,
        };
        self.note_written(table, keys);
        Ok(result)
    }

    /// Reads records of several tables like `store::Worker::read_tables`, without counting them.
    pub(crate) fn read_tables<T>(
        &mut self,
        keys: &[TableKey<'_>],
        f: impl FnOnce(&[Option<Record<'_>>]) -> T,
    ) -> Result<T, NotExecuted> {
        self.copy_pages(keys, |_| true)?;
        match &self.staged {
            None => Ok(self.engine.worker.read_tables(keys, f)?),
            Some(staged) => Ok(f(&staged.records(&staged.places_of(keys)?))),
        }
    }

    /// Reads and changes records of several tables like `store::Worker::update_tables`.
    pub(crate) fn update_tables<T>(
        &mut self,
        keys: &[TableKey<'_>],
        is_needed: impl Fn(usize) -> bool,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        self.copy_pages(keys, &is_needed)?;
        let result = match &mut self.staged {
            None => {
                let result = self.engine.worker.update_tables(keys, is_needed, f)?;
                if self.has_blocked {
                    self.notify_written(keys.iter().map(|key| (key.table, key.key.hash)));
                }
                result
            }
            Some(staged) => staged.update(&staged.places_of(keys)?, f)?,
        };
        let of_clients = keys.iter().filter(|key| key.table.is_database());
        of_clients.for_each(|key| self.note_written(key.table, &[key.key]));
        Ok(result)
    }

    /// Copies pages that the current transaction does not have yet. If that is not possible now, the
    /// transaction is interrupted. Pages that are not needed are created by the command.
    fn copy_pages(
        &mut self,
        keys: &[TableKey<'_>],
        is_needed: impl Fn(usize) -> bool,
    ) -> Result<(), NotExecuted> {
        let Some(staged) = &mut self.staged else { return Ok(()) };
        // A command may name a value twice.
        let (mut seen, mut lacking) = (HashSet::new(), Vec::new());
        for (at, key) in
            keys.iter().copied().enumerate().filter(|(_, key)| key.table == TableId::PAGES)
        {
            match staged.lacks(key) {
                true if !is_needed(at) => staged.add_new_page(key),
                true if seen.insert(key.key.bytes) => lacking.push(key),
                true | false => {}
            }
        }
        if lacking.is_empty() {
            return Ok(());
        }
        let worker = &mut self.engine.worker;
        let copied = worker.read_tables(&lacking, |records| staged.add_pages(&lacking, records));
        copied.map_err(|stall| {
            staged.interrupt();
            stall.into()
        })
    }

    /// Copies records that a command of the current transaction reads without naming them. If that is
    /// not possible now, the transaction is interrupted.
    pub(crate) fn copy_unnamed(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
    ) -> Result<(), NotExecuted> {
        let Some(staged) = &mut self.staged else {
            unreachable!("keys that are not named are read from copies")
        };
        let (mut seen, mut lacking) = (HashSet::new(), Vec::new());
        for &key in keys {
            if staged.lacks_key(key) && seen.insert(key.bytes) {
                lacking.push(TableKey { table, key });
            }
        }
        let worker = &mut self.engine.worker;
        match worker.read_tables(&lacking, |records| staged.add_unnamed(&lacking, records)) {
            Ok(copied) => Ok(copied?),
            Err(stall) => {
                staged.interrupt();
                Err(stall.into())
            }
        }
    }

    /// Makes the changes of an exactly-once request like `store::Worker::update_recorded`.
    pub(crate) fn update_recorded(
        &mut self,
        keys: &[TableKey<'_>],
        is_needed: impl Fn(usize) -> bool,
        completion: Key<'_>,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> bool,
        completed: impl FnOnce(Option<&[u8]>, &[(usize, Version)], &mut Vec<u8>),
    ) -> Result<bool, NotExecuted> {
        assert!(self.staged.is_none(), "the commands of a transaction are not recorded");
        let done = self.engine.worker.update_recorded(keys, is_needed, completion, f, completed)?;
        if self.has_blocked {
            self.notify_written(keys.iter().map(|key| (key.table, key.key.hash)));
        }
        let of_clients = keys.iter().filter(|key| key.table.is_database());
        of_clients.for_each(|key| self.note_written(key.table, &[key.key]));
        Ok(done)
    }

    /// Returns the version of the record that was read under this key; of an absent one, 0.
    pub(crate) fn version_read(
        &self,
        table: TableId,
        key: Key<'_>,
        record: Option<Version>,
    ) -> Result<RecordVersion, NotExecuted> {
        let Some(version) = record else { return Ok(RecordVersion::Known(Version(0))) };
        let staged = self.staged_version(table, key)?;
        Ok(staged.unwrap_or(RecordVersion::Known(version)))
    }

    /// Returns the pending version of a record that the current transaction has written.
    pub(crate) fn staged_version(
        &self,
        table: TableId,
        key: Key<'_>,
    ) -> Result<Option<RecordVersion>, NotExecuted> {
        let Some(staged) = &self.staged else { return Ok(None) };
        let place = staged.place(table, key)?;
        Ok(staged.is_written(place).then_some(RecordVersion::Pending { place }))
    }

    /// Returns the version that the last update, of this key alone, has given to its record.
    pub(crate) fn version_written(
        &self,
        table: TableId,
        key: Key<'_>,
    ) -> Result<RecordVersion, NotExecuted> {
        match &self.staged {
            None => Ok(RecordVersion::Known(self.written_version(0).unwrap_or(Version(0)))),
            Some(staged) => Ok(RecordVersion::Pending { place: staged.place(table, key)? }),
        }
    }

    /// Notifies requests that wait for the keys that the last update has written or removed.
    #[cold]
    fn notify_written(&self, keys: impl Iterator<Item = (TableId, KeyHash)>) {
        let mut changed: Vec<usize> = self.engine.worker.updated_keys().all().collect();
        changed.sort_unstable();
        changed.dedup();
        let mut changed = changed.into_iter().peekable();
        for (at, (table, hash)) in keys.enumerate() {
            if changed.next_if_eq(&at).is_some() {
                self.notify_blocked(table, hash);
            }
        }
    }

    /// Notes writes of the current command, for eviction.
    #[inline]
    fn note_written(&mut self, table: TableId, keys: &[Key<'_>]) {
        if self.notes_access {
            keys.iter().for_each(|key| self.engine.worker.note_written(table, key.hash));
        }
    }

    /// Returns the accesses to a key, as far as they are tracked.
    pub(crate) fn accessed(&self, table: TableId, key: Key<'_>) -> Option<Accessed> {
        self.engine.worker.accessed(table, key.hash)
    }

    /// Replaces the accesses to a key, if they are tracked.
    pub(crate) fn set_accessed(&mut self, table: TableId, key: Key<'_>, accessed: Accessed) {
        self.engine.worker.set_accessed(table, key.hash, accessed);
    }

    /// Tells that a value with pages was removed: its pages can be removed as well.
    pub(crate) fn note_orphans(&self) {
        self.engine.note_orphans();
    }

    /// Tells that a field of a hash has got an expiry: it can be reclaimed later.
    pub(crate) fn note_expiring_field(&self) {
        self.engine.note_expiring_field();
    }

    /// Returns why a scan cannot continue at this hash, if the tablets decide that alone.
    pub(crate) fn check_owned(&self, table: TableId, hash: KeyHash) -> Result<(), NotExecuted> {
        Ok(self.engine.worker.check_access(table, hash)?)
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
