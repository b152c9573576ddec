//! The walk that reclaims expired fields of hashes that no command touches.
//!
//! Commands leave out expired fields, and drop those of the records that they write. This walk finds
//! the others, by the earliest expiry that stands at the beginning of each hash, and of each page,
//! with expiring fields. It writes the record anew, and removes the key with its last field.
//!
//! The walk is slow until a command sets an expiry, or the walk itself finds one. Ranges that arrive
//! or are recovered are left out. Design: `docs/design/values.md`.

use crate::expiry::next_database;
use planted::Bug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Changes, Key, Need, Record, TableKey, Worker};
use types::{
    HashSeed, Instant, KeyHash, TableId, TypedValue, UnixMillis, ValueType, element_hash, key_hash,
};
use values::{Elements, Form, Packed, PageName, Resize, earliest_field_expiry};

/// Buckets that a step reads: up to about 500 records, 100 us.
const STEP_BUCKETS: usize = 64;

/// Most records that a step writes anew, and most bytes of them, if it is more than one: 100 us.
const STEP_RECORDS: usize = 32;
const STEP_BYTES: usize = 256 << 10;

/// Pause between two steps behind expired fields.
const EAGER_PAUSE: Duration = Duration::from_millis(2);

/// Pause between two steps while there are expiring fields: 1 % of a processor.
const PAUSE: Duration = Duration::from_millis(10);

/// Pause between two steps otherwise: 0.1 % of a processor.
const SLOW_PAUSE: Duration = Duration::from_millis(100);

/// Number of steps behind an expired field that are eager.
const EAGER_STEPS: u32 = 64;

/// The walk over the hashes of a server. All reactors share it and run it in steps.
#[derive(Debug, Default)]
pub(crate) struct FieldSweep {
    walk: Mutex<FieldWalk>,
    /// Set if a command has set the expiry of a field since the last walk began.
    is_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct FieldWalk {
    /// Table of the next step: a database, or the one of the pages.
    table: TableId,
    /// Position in the table; `None`: its beginning.
    cursor: Option<KeyHash>,
    /// Time of the last step.
    last: Instant,
    /// Set if this walk over all tables, or the one before, has met an expiring field.
    meets: bool,
    met_before: bool,
    /// Number of steps that are eager.
    eager_left: u32,
}

impl FieldSweep {
    /// Tells that a field has got an expiry.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Returns the time of the next step.
    pub(crate) fn next_step(&self) -> Option<Instant> {
        let walk = self.walk.try_lock().ok()?;
        Some(walk.last + self.pause(&walk))
    }

    fn pause(&self, walk: &FieldWalk) -> Duration {
        match walk.meets || walk.met_before || self.is_wanted.load(Ordering::Relaxed) {
            _ if walk.eager_left > 0 => EAGER_PAUSE,
            true => PAUSE,
            false => SLOW_PAUSE,
        }
    }

    /// Runs a step if it is due.
    pub(crate) fn step(&self, now: Instant, worker: &mut Worker) {
        let Ok(mut walk) = self.walk.try_lock() else { return };
        if now < walk.last + self.pause(&walk) {
            return;
        }
        walk.last = now;
        if walk.table == TableId(0) && walk.cursor.is_none() {
            let is_wanted = self.is_wanted.swap(false, Ordering::Relaxed);
            walk.met_before = walk.meets || is_wanted;
            walk.meets = false;
        }
        walk.look(worker);
    }
}

impl FieldWalk {
    /// Looks at the next records, and reclaims expired fields in them.
    fn look(&mut self, worker: &mut Worker) {
        let (table, cursor) = (self.table, self.cursor.unwrap_or(KeyHash(0)));
        let mut expired: Vec<Box<[u8]>> = Vec::new();
        let mut expired_bytes = 0;
        // The lowest hash of a record that is left to the next step.
        let mut left: Option<KeyHash> = None;
        let seed = worker.store().seed().clone();
        let is_candidate = |record: Record<'_>| match table {
            TableId::PAGES => true,
            _ => record.value.value_type == ValueType::Hash,
        };
        let next = worker.walk_served(table, cursor, STEP_BUCKETS, |key, record| {
            let bytes = is_candidate(record).then_some(record.value.bytes);
            let Some(expiry) = bytes.and_then(earliest_field_expiry) else { return };
            self.meets = true;
            if expiry > clock_of(record) {
                return;
            }
            let is_full = expired.len() >= STEP_RECORDS || expired_bytes >= STEP_BYTES;
            match hash_in(table, key, &seed) {
                Some(hash) if is_full => left = Some(left.map_or(hash, |left| left.min(hash))),
                Some(_) => {
                    expired_bytes += record.value.bytes.len();
                    expired.push(key.into());
                }
                None => {}
            }
        });
        self.eager_left = match expired.is_empty() {
            true => self.eager_left.saturating_sub(1),
            false => EAGER_STEPS,
        };
        let mut has_written = false;
        for key in &expired {
            has_written |= match table {
                TableId::PAGES => reclaim_in_page(key, worker),
                _ => reclaim_in_record(table, key, worker),
            };
        }
        // No reply depends on these writes.
        let _ = worker.take_dependency();
        assert!(next.is_none_or(|next| next > cursor), "a walk goes back");
        if let Some(left) = left.filter(|_| has_written) {
            self.cursor = Some(left.max(cursor));
            return;
        }
        self.cursor = next;
        if next.is_none() {
            self.table = table_after(table, worker);
        }
    }
}

/// Returns the hash of a record in this table; `None`: the record is no page.
fn hash_in(table: TableId, key: &[u8], seed: &HashSeed) -> Option<KeyHash> {
    match table {
        TableId::PAGES => Some(PageName::parse(key)?.key(seed).0),
        _ => Some(key_hash(seed, key)),
    }
}

/// Returns the next table that is used, in a circle of the databases and the pages.
fn table_after(table: TableId, worker: &Worker) -> TableId {
    if table == TableId::PAGES {
        return TableId(0);
    }
    let pages = || Some(TableId::PAGES).filter(|&pages| worker.uses(pages));
    next_database(table, worker).or_else(pages).unwrap_or(TableId(0))
}

/// Returns the time by which the fields of a record expire.
fn clock_of(record: Record<'_>) -> UnixMillis {
    let ahead = if planted::is(Bug::FieldsSweptEarly) { 1_000 } else { 0 };
    UnixMillis(record.clock.0 + ahead)
}

/// Removes the expired fields of a hash that is in one record. Does nothing if that is not possible
/// now: the next walk meets the record again. Returns whether it has changed
/// the hash.
fn reclaim_in_record(table: TableId, key: &[u8], worker: &mut Worker) -> bool {
    let key = Key { hash: key_hash(worker.store().seed(), key), bytes: key };
    let mut is_changed = false;
    let reclaim = |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| {
        let record = records[0].filter(|record| record.value.value_type == ValueType::Hash);
        let Some(record) = record else { return };
        let Ok(Form::Packed(packed)) = Form::of(record.value) else { return };
        let Ok(hash) = Elements::of(packed, clock_of(record), 0) else { return };
        is_changed = hash.is_changed();
        match hash.count() {
            _ if !hash.is_changed() => {}
            0 => changes.delete(0),
            _ => {
                changes.put_built(0, ValueType::Hash, record.expiry, |out| hash.encode(out));
            }
        }
    };
    worker.update(table, &[key], Need::Records, reclaim).is_ok() && is_changed
}

/// Removes the expired fields in a page of a hash, and counts them out of its root. Returns whether it
/// has changed the hash.
fn reclaim_in_page(page: &[u8], worker: &mut Worker) -> bool {
    let Some(name) = PageName::parse(page) else { return false };
    let is_root = |record: Record<'_>| name.pages_of_root(record.value).is_some();
    let root = worker.own_table(TableId::PAGES).other_key(name.table, name.root, is_root);
    let Ok(Some(root)) = root else { return false };
    let seed = worker.store().seed().clone();
    let page = Key { hash: name.key(&seed).0, bytes: page };
    let keys = [
        TableKey { table: name.table, key: Key { hash: name.root, bytes: &root } },
        TableKey { table: TableId::PAGES, key: page },
    ];
    let mut is_changed = false;
    let reclaim = |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| {
        let [Some(record), Some(page)] = records else { return };
        if record.value.value_type != ValueType::Hash {
            return;
        }
        let Ok(Form::Split(root)) = Form::of(record.value) else { return };
        let of_page = TypedValue { value_type: ValueType::Hash, bytes: page.value.bytes };
        let Ok(packed) = Packed::parse(of_page) else { return };
        if root.id != name.id || name.page >= root.pages {
            return;
        }
        let pages = std::iter::once((name.page, packed));
        let hash = Elements::of_pages(ValueType::Hash, &root, pages, clock_of(*record), 0);
        let Some(hash) = hash.ok().filter(Elements::is_changed) else { return };
        is_changed = true;
        let same = Resize { before: root.pages, after: root.pages };
        let written = hash.changed_pages(
            same,
            |field| element_hash(&seed, field),
            |number, bytes| {
                assert!(number == name.page, "only this page was read");
                match bytes {
                    Some(bytes) => changes.put(1, bytes, None),
                    None => changes.delete(1),
                }
            },
        );
        match hash.count() {
            _ if written.is_err() => {}
            0 => changes.delete(0),
            _ => changes.put_built(0, ValueType::Hash, record.expiry, |out| {
                hash.root(root.id, root.pages).encode(out);
            }),
        }
    };
    worker.update_tables(&keys, |_| true, reclaim).is_ok() && is_changed
}
