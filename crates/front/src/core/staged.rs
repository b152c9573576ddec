//! The records of a transaction: copies that its commands read and change.
//!
//! The commands of a transaction work on copies that were read at one moment. Each command sees the
//! changes of those before it. When all have run, the store makes all changes at once if every
//! record still has the version that was copied (optimistic concurrency control after Kung and
//! Robinson, 1981). No lock is held while commands run, and a transaction that loses starts again.
//!
//! Pages of split values, and records that `SORT` finds by the elements of its value, are copied when a
//! command first needs them, possibly later than the records of the named keys. The versions of all
//! records are compared in the end, so a transaction that has seen two moments has no effect.

mod copies;

use crate::commands::{Cause, NOT_INSIDE, NotExecuted, Refusal};
use crate::operators::counts::Found;
use copies::Copies;
use node::{MemberChange, OrderName};
use resp::{Protocol, ReplyWriter};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use store::{Changes, Key, NewValue, Record, Scratch, TableKey};
use types::limits::VALUE_BYTES_MAX;
use types::{TableId, UnixMillis, Version};
use values::{Damaged, Form};

/// Something for each of a few records.
type PerRecord<T> = SmallVec<[T; 4]>;

/// Most bytes of records that the commands of a transaction read without naming them.
const UNNAMED_BYTES_MAX: usize = 64 << 20;

const TOO_MANY_UNNAMED: Refusal =
    Refusal::because("ERR a command cannot read this many bytes of other keys at once");

/// The records of a transaction: as read from the store, and as changed by its commands so far.
#[derive(Default)]
pub(crate) struct TransactionRecords {
    table: TableId,
    /// Time by which expiry is judged.
    clock: UnixMillis,
    copies: Copies,
    /// Number of records that were copied at first.
    named: usize,
    /// Bytes of the records that no command names.
    unnamed_bytes: usize,
    /// Set if a record could not be copied, or an order is lacking: the transaction must start again.
    is_interrupted: bool,
    /// Set if the transaction may start again when the order of a sorted set is lacking.
    waits_for_orders: bool,
    /// Position of a sorted set whose order is lacking.
    lacking_order: Option<usize>,
    scratch: Scratch,
    /// Results of the commands so far.
    pub(super) found: Found,
    /// Places in the replies at which versions are missing, in order.
    missing_versions: Vec<MissingVersion>,
    /// Changes of sorted sets with pages.
    orders: BTreeMap<OrderName, StagedOrder>,
}

/// Changes of a sorted set with pages.
pub(super) struct StagedOrder {
    /// Position of its root.
    pub(super) place: usize,
    /// Version of the root that was read.
    pub(super) before: Option<Version>,
    pub(super) changes: Vec<MemberChange>,
}

/// A place in the replies of a transaction at which the version of a record is missing.
struct MissingVersion {
    /// Offset in the replies.
    offset: usize,
    /// Position of the record.
    place: usize,
}

impl TransactionRecords {
    /// Begins a transaction on copies of the records that were read under these distinct keys of a
    /// table. Uses the buffers of `spare`.
    pub(super) fn begin(
        spare: Option<Box<TransactionRecords>>,
        table: TableId,
        clock: UnixMillis,
        keys: &[Key<'_>],
        records: &[Option<Record<'_>>],
    ) -> Box<TransactionRecords> {
        let mut staged = spare.unwrap_or_default();
        (staged.table, staged.clock, staged.named) = (table, clock, keys.len());
        for (key, record) in keys.iter().zip(records) {
            staged.copies.add(TableKey { table, key: *key }, *record);
        }
        staged
    }

    /// Forgets everything but the buffers.
    pub(super) fn reset(&mut self) {
        let mut copies = std::mem::take(&mut self.copies);
        let mut scratch = std::mem::take(&mut self.scratch);
        copies.clear();
        scratch.shrink();
        *self = TransactionRecords { copies, scratch, ..TransactionRecords::default() };
    }

    /// Returns the keys of all records, by their positions.
    pub(crate) fn keys(&self) -> PerRecord<TableKey<'_>> {
        let mut keys = PerRecord::with_capacity(self.copies.all().len());
        self.copies.all().iter().for_each(|copy| keys.push(copy.table_key()));
        keys
    }

    /// Returns whether records were copied after those of the named keys.
    pub(crate) fn has_later_copies(&self) -> bool {
        assert!(self.copies.all().len() >= self.named, "copies stay until the transaction ends");
        self.copies.all().len() > self.named
    }

    /// Returns whether the transaction must start again.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Records that a page could not be copied.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// Lets the transaction be interrupted where it lacks the order of a sorted set.
    pub(super) fn wait_for_orders(&mut self) {
        self.waits_for_orders = true;
    }

    /// Interrupts the transaction, which lacks the order of the sorted set at this position, if it may
    /// start again.
    pub(super) fn lack_order(&mut self, place: usize) -> Result<(), NotExecuted> {
        assert!(!self.is_written(place), "no order has what a transaction has written");
        if !self.waits_for_orders {
            return Ok(());
        }
        self.lacking_order = Some(place);
        self.interrupt();
        Err(NotExecuted::Retry(Cause::Turn))
    }

    /// Returns the key of the sorted set whose order the transaction lacks.
    pub(super) fn lacking_order(&self) -> Option<TableKey<'_>> {
        self.lacking_order.map(|place| self.copies.all()[place].table_key())
    }

    /// Returns whether this is a page that has not been copied.
    pub(super) fn lacks(&self, key: TableKey<'_>) -> bool {
        key.table == TableId::PAGES && self.copies.find(key).is_none()
    }

    /// Copies pages that were read now.
    pub(super) fn add_pages(&mut self, keys: &[TableKey<'_>], records: &[Option<Record<'_>>]) {
        for (key, record) in keys.iter().zip(records) {
            assert!(key.table == TableId::PAGES, "a page of {:?}", key.table);
            self.copies.add(*key, *record);
        }
    }

    /// Returns whether this is a key of the transaction's table that has not been copied.
    pub(super) fn lacks_key(&self, key: Key<'_>) -> bool {
        self.copies.find(TableKey { table: self.table, key }).is_none()
    }

    /// Copies records that a command reads without naming them.
    pub(super) fn add_unnamed(
        &mut self,
        keys: &[TableKey<'_>],
        records: &[Option<Record<'_>>],
    ) -> Result<(), Refusal> {
        let sizes = keys.iter().zip(records).map(|(key, record)| {
            key.key.bytes.len() + record.map_or(0, |record| record.value.bytes.len())
        });
        self.unnamed_bytes = self.unnamed_bytes.saturating_add(sizes.sum());
        if self.unnamed_bytes > UNNAMED_BYTES_MAX {
            return Err(TOO_MANY_UNNAMED);
        }
        for (key, record) in keys.iter().zip(records) {
            assert_eq!(key.table, self.table, "a transaction has one table");
            self.copies.add(*key, *record);
        }
        Ok(())
    }

    /// Adds a page that a command creates.
    pub(super) fn add_new_page(&mut self, key: TableKey<'_>) {
        assert!(key.table == TableId::PAGES, "a new page of {:?}", key.table);
        self.copies.add(key, None).is_new = true;
    }

    /// Returns whether the transaction depends on the record at this position.
    pub(crate) fn needs(&self, place: usize) -> bool {
        !self.copies.all()[place].is_new
    }

    /// Returns whether a command has written or removed this record.
    pub(super) fn is_written(&self, place: usize) -> bool {
        self.copies.all()[place].is_changed
    }

    /// Notes changes of the sorted set with pages whose root is at this position.
    pub(super) fn note_order(
        &mut self,
        name: OrderName,
        place: usize,
        changes: impl IntoIterator<Item = MemberChange>,
    ) {
        let before = self.copies.all()[place].version;
        let new = || StagedOrder { place, before, changes: Vec::new() };
        self.orders.entry(name).or_insert_with(new).changes.extend(changes);
    }

    /// Returns the noted changes of the sorted sets whose roots were written, by names. A command that
    /// leaves all members as they are writes no root.
    pub(super) fn changed_orders(&self) -> impl Iterator<Item = (&OrderName, &StagedOrder)> {
        self.orders.iter().filter(|(_, noted)| self.is_written(noted.place))
    }

    /// Returns whether the record at this position is the root of the value with this id.
    pub(super) fn has_root(&self, place: usize, id: Version) -> bool {
        self.copies.all()[place].now().is_some_and(|(value, _)| match Form::of(value) {
            Ok(Form::Split(root)) => root.id == id,
            Ok(Form::Packed(_)) | Err(Damaged) => false,
        })
    }

    /// Records that the version of a record belongs at this offset of the replies.
    pub(crate) fn note_missing_version(&mut self, offset: usize, place: usize) {
        let last = self.missing_versions.last();
        assert!(last.is_none_or(|last| last.offset <= offset), "replies are written in order");
        self.missing_versions.push(MissingVersion { offset, place });
    }

    /// Returns the replies with the versions that the transaction has given to its records: of a
    /// record that it has removed in the end, 0.
    pub(crate) fn with_versions(
        &self,
        replies: Vec<u8>,
        version_of: impl Fn(usize) -> Option<Version>,
    ) -> Vec<u8> {
        if self.missing_versions.is_empty() {
            return replies;
        }
        let mut whole = Vec::with_capacity(replies.len() + 24 * self.missing_versions.len());
        let mut from = 0;
        for missing in &self.missing_versions {
            whole.extend_from_slice(&replies[from..missing.offset]);
            let version = version_of(missing.place).unwrap_or(Version(0));
            ReplyWriter::new(Protocol::Resp2, &mut whole).integer(version.0 as i64);
            from = missing.offset;
        }
        whole.extend_from_slice(&replies[from..]);
        whole
    }

    /// Returns whether the given records are still the versions that were read. A page that a
    /// command creates may have the name of an orphan.
    pub(crate) fn is_current(&self, records: &[Option<Record<'_>>]) -> bool {
        assert_eq!(records.len(), self.copies.all().len(), "each copy is compared with a record");
        let mut pairs = self.copies.all().iter().zip(records);
        pairs.all(|(copy, now)| copy.is_new || copy.version == now.map(|record| record.version))
    }

    /// Returns the results of the commands so far.
    pub(crate) fn found(&self) -> Found {
        self.found
    }

    /// Returns whether the commands have changed any record.
    pub(crate) fn is_changed(&self) -> bool {
        self.copies.all().iter().any(|copy| copy.is_changed)
    }

    /// Adds the commands' changes to `changes`. Positions are those of the keys.
    pub(crate) fn apply(&self, changes: &mut Changes<'_>) {
        for (place, copy) in self.copies.all().iter().enumerate().filter(|(_, it)| it.is_changed) {
            match copy.now() {
                Some((value, expiry)) => changes.put_value(place, value, expiry),
                // The record does not exist in the store, so there is nothing to delete.
                None if copy.version.is_none() => {}
                None => changes.delete(place),
            }
        }
    }

    pub(super) fn place(&self, table: TableId, key: Key<'_>) -> Result<usize, NotExecuted> {
        self.copies.find(TableKey { table, key }).ok_or(NOT_INSIDE.into())
    }

    pub(super) fn places_of(&self, keys: &[TableKey<'_>]) -> Result<PerRecord<usize>, NotExecuted> {
        let mut places = PerRecord::with_capacity(keys.len());
        for key in keys {
            places.push(self.place(key.table, key.key)?);
        }
        Ok(places)
    }

    pub(super) fn places(
        &self,
        table: TableId,
        keys: &[Key<'_>],
    ) -> Result<PerRecord<usize>, NotExecuted> {
        let mut places = PerRecord::with_capacity(keys.len());
        for key in keys {
            places.push(self.place(table, *key)?);
        }
        Ok(places)
    }

    pub(super) fn record(&self, place: usize) -> Option<Record<'_>> {
        let copy = &self.copies.all()[place];
        let (value, expiry) = copy.now()?;
        let lasts = expiry.is_none_or(|expiry| expiry > self.clock);
        let version = copy.version.unwrap_or(Version(0));
        lasts.then_some(Record { value, version, expiry, clock: self.clock })
    }

    pub(super) fn records(&self, places: &[usize]) -> PerRecord<Option<Record<'_>>> {
        let mut records = PerRecord::with_capacity(places.len());
        places.iter().for_each(|&place| records.push(self.record(place)));
        records
    }

    /// Passes the records at these places to `f`, and makes the changes that it collects.
    pub(super) fn update<T>(
        &mut self,
        places: &[usize],
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = f(&self.records(places), &mut scratch.changes(places.len()));
        // All changes or none: the command may be tried again on these copies.
        let is_too_large = scratch.collected().any(|(_, new)| is_too_large(new));
        if !is_too_large {
            scratch.collected().for_each(|(at, new)| self.set(places[at], new));
        }
        self.scratch = scratch;
        if is_too_large { Err(Refusal::TooLarge.into()) } else { Ok(result) }
    }

    pub(super) fn change(&mut self, place: usize, new: NewValue<'_>) -> Result<(), NotExecuted> {
        if is_too_large(new) {
            return Err(Refusal::TooLarge.into());
        }
        self.set(place, new);
        Ok(())
    }

    fn set(&mut self, place: usize, new: NewValue<'_>) {
        let copy = self.copies.at_mut(place);
        copy.set(new);
        copy.is_changed = true;
    }
}

/// Returns whether a new value does not fit into a record.
fn is_too_large(new: NewValue<'_>) -> bool {
    new.is_some_and(|(value, _)| value.stored_bytes() > VALUE_BYTES_MAX)
}
