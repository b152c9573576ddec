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

use crate::commands::{Cause, NOT_INSIDE, NotExecuted, Refusal};
use crate::operators::counts::Found;
use node::{MemberChange, OrderName};
use resp::{Protocol, ReplyWriter};
use std::collections::{BTreeMap, HashMap};
use store::{Changes, Key, NewValue, Record, Scratch, TableKey};
use types::limits::VALUE_BYTES_MAX;
use types::{KeyHash, TableId, TypedValue, UnixMillis, ValueType, Version};
use values::{Damaged, Form};

/// Most bytes of records that the commands of a transaction read without naming them.
const UNNAMED_BYTES_MAX: usize = 64 << 20;

const TOO_MANY_UNNAMED: Refusal =
    Refusal::because("ERR a command cannot read this many bytes of other keys at once");

/// The records of a transaction: as read from the store, and as changed by its commands so far.
pub(crate) struct TransactionRecords {
    table: TableId,
    /// Time by which expiry is judged.
    clock: UnixMillis,
    records: Vec<StagedRecord>,
    /// Position of each key's record in `records`, and of each page's. The maps are only looked up,
    /// never iterated.
    places: HashMap<Box<[u8]>, usize>,
    pages: HashMap<Box<[u8]>, usize>,
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

/// One record, or its absence.
struct StagedRecord {
    table: TableId,
    hash: KeyHash,
    key: Box<[u8]>,
    /// Version of the record that was read; `None` if there was no record.
    version: Option<Version>,
    now: Option<StagedValue>,
    is_changed: bool,
    /// Set for a page that a command creates: no command reads a former record of it.
    is_new: bool,
}

/// The copy of a value, with its expiry.
struct StagedValue {
    value_type: ValueType,
    bytes: Vec<u8>,
    expiry: Option<UnixMillis>,
}

impl StagedRecord {
    fn new(TableKey { table, key }: TableKey<'_>, record: Option<Record<'_>>) -> StagedRecord {
        let now = record.map(|record| StagedValue::new(record.value, record.expiry));
        let version = record.map(|record| record.version);
        let (hash, key) = (key.hash, key.bytes.into());
        StagedRecord { table, hash, key, version, now, is_changed: false, is_new: false }
    }

    fn table_key(&self) -> TableKey<'_> {
        let StagedRecord { table, hash, key: bytes, .. } = self;
        TableKey { table: *table, key: Key { hash: *hash, bytes } }
    }
}

impl StagedValue {
    fn new(value: TypedValue<'_>, expiry: Option<UnixMillis>) -> StagedValue {
        StagedValue { value_type: value.value_type, bytes: value.bytes.to_vec(), expiry }
    }

    fn value(&self) -> TypedValue<'_> {
        TypedValue { value_type: self.value_type, bytes: &self.bytes }
    }
}

impl TransactionRecords {
    /// Copies the records that were read under these distinct keys of a table.
    pub(crate) fn new(
        table: TableId,
        clock: UnixMillis,
        keys: &[Key<'_>],
        records: &[Option<Record<'_>>],
    ) -> TransactionRecords {
        let copy = |(key, record): (&Key<'_>, &Option<Record<'_>>)| {
            StagedRecord::new(TableKey { table, key: *key }, *record)
        };
        let place = |(place, key): (usize, &Key<'_>)| (Box::from(key.bytes), place);
        TransactionRecords {
            table,
            clock,
            records: keys.iter().zip(records).map(copy).collect(),
            places: keys.iter().enumerate().map(place).collect(),
            pages: HashMap::new(),
            named: keys.len(),
            unnamed_bytes: 0,
            is_interrupted: false,
            waits_for_orders: false,
            lacking_order: None,
            scratch: Scratch::default(),
            found: Found::default(),
            missing_versions: Vec::new(),
            orders: BTreeMap::new(),
        }
    }

    /// Returns the keys of all records, by their positions.
    pub(crate) fn keys(&self) -> Vec<TableKey<'_>> {
        self.records.iter().map(StagedRecord::table_key).collect()
    }

    /// Returns whether records were copied after those of the named keys.
    pub(crate) fn has_later_copies(&self) -> bool {
        assert!(self.records.len() >= self.named, "copies stay until the transaction ends");
        self.records.len() > self.named
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
        self.lacking_order.map(|place| self.records[place].table_key())
    }

    /// Returns whether this is a page that has not been copied.
    pub(super) fn lacks(&self, key: TableKey<'_>) -> bool {
        key.table == TableId::PAGES && !self.pages.contains_key(key.key.bytes)
    }

    /// Copies pages that were read now.
    pub(super) fn add_pages(&mut self, keys: &[TableKey<'_>], records: &[Option<Record<'_>>]) {
        for (key, record) in keys.iter().zip(records) {
            let before = self.pages.insert(key.key.bytes.into(), self.records.len());
            assert!(before.is_none(), "a page is copied twice");
            self.records.push(StagedRecord::new(*key, *record));
        }
    }

    /// Returns whether this is a key of the transaction's table that has not been copied.
    pub(super) fn lacks_key(&self, key: Key<'_>) -> bool {
        !self.places.contains_key(key.bytes)
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
            let before = self.places.insert(key.key.bytes.into(), self.records.len());
            assert!(before.is_none(), "a record is copied twice");
            self.records.push(StagedRecord::new(*key, *record));
        }
        Ok(())
    }

    /// Adds a page that a command creates.
    pub(super) fn add_new_page(&mut self, key: TableKey<'_>) {
        self.add_pages(&[key], &[None]);
        let place = self.records.len() - 1;
        self.records[place].is_new = true;
    }

    /// Returns whether the transaction depends on the record at this position.
    pub(crate) fn needs(&self, place: usize) -> bool {
        !self.records[place].is_new
    }

    /// Returns whether a command has written or removed this record.
    pub(super) fn is_written(&self, place: usize) -> bool {
        self.records[place].is_changed
    }

    /// Notes changes of the sorted set with pages whose root is at this position.
    pub(super) fn note_order(
        &mut self,
        name: OrderName,
        place: usize,
        changes: impl IntoIterator<Item = MemberChange>,
    ) {
        let before = self.records[place].version;
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
        let now = self.records[place].now.as_ref();
        now.is_some_and(|now| match Form::of(now.value()) {
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
        assert_eq!(records.len(), self.records.len(), "each copy is compared with a record");
        let mut pairs = self.records.iter().zip(records);
        pairs.all(|(copy, now)| copy.is_new || copy.version == now.map(|record| record.version))
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
                Some(now) => changes.put_value(place, now.value(), now.expiry),
                // The record does not exist in the store, so there is nothing to delete.
                None if record.version.is_none() => {}
                None => changes.delete(place),
            }
        }
    }

    pub(super) fn place(&self, table: TableId, key: Key<'_>) -> Result<usize, NotExecuted> {
        let place = match table {
            TableId::PAGES => self.pages.get(key.bytes),
            _ if table == self.table => self.places.get(key.bytes),
            _ => None,
        };
        place.copied().ok_or(NOT_INSIDE.into())
    }

    pub(super) fn places_of(&self, keys: &[TableKey<'_>]) -> Result<Vec<usize>, NotExecuted> {
        keys.iter().map(|key| self.place(key.table, key.key)).collect()
    }

    pub(super) fn places(
        &self,
        table: TableId,
        keys: &[Key<'_>],
    ) -> Result<Vec<usize>, NotExecuted> {
        keys.iter().map(|key| self.place(table, *key)).collect()
    }

    pub(super) fn record(&self, place: usize) -> Option<Record<'_>> {
        let StagedRecord { version, now, .. } = &self.records[place];
        let now = now.as_ref()?;
        let lasts = now.expiry.is_none_or(|expiry| expiry > self.clock);
        let version = version.unwrap_or(Version(0));
        let (value, expiry, clock) = (now.value(), now.expiry, self.clock);
        lasts.then_some(Record { value, version, expiry, clock })
    }

    pub(super) fn records(&self, places: &[usize]) -> Vec<Option<Record<'_>>> {
        places.iter().map(|&place| self.record(place)).collect()
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
        let record = &mut self.records[place];
        record.now = new.map(|(value, expiry)| StagedValue::new(value, expiry));
        record.is_changed = true;
    }
}

/// Returns whether a new value does not fit into a record.
fn is_too_large(new: NewValue<'_>) -> bool {
    new.is_some_and(|(value, _)| value.stored_bytes() > VALUE_BYTES_MAX)
}
