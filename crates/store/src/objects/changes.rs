//! The changes of an update, collected while its closure reads the records.
//!
//! Values are copied into one buffer that the worker reuses. So an update of one key does not
//! allocate, and the sources of the values may be dropped before the write.

use std::ops::Range;
use types::{TypedValue, UnixMillis, ValueType, Version};

/// Collector of changes, filled by the closure of [`super::Worker::update`]. The last change of a
/// key wins.
pub struct Changes<'c> {
    scratch: &'c mut Scratch,
    keys: usize,
}

/// A new value with its expiry; `None` removes the key.
pub type NewValue<'v> = Option<(TypedValue<'v>, Option<UnixMillis>)>;

/// Most bytes of a buffer that [`Scratch::shrink`] retains.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Buffer of changes, reused from update to update.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) values: Vec<u8>,
    pub(super) list: Vec<Change>,
    /// New value of the last key of an update that writes a completion record.
    pub(super) last_value: Vec<u8>,
    /// Versions of the records that the last update has written, with the positions of their keys.
    pub(super) versions: Vec<(usize, Version)>,
}

impl Scratch {
    /// Begins to collect the changes of an update of `keys` keys that is executed outside the
    /// store.
    pub fn changes(&mut self, keys: usize) -> Changes<'_> {
        Changes::new(self, keys)
    }

    /// Empties the buffers, and releases them if they are long.
    pub fn shrink(&mut self) {
        if self.values.capacity() > KEPT_BYTES_MAX || self.last_value.capacity() > KEPT_BYTES_MAX {
            *self = Scratch::default();
        }
        self.values.clear();
        self.list.clear();
        self.versions.clear();
    }

    /// Records that the update has given this version to the key at this position.
    #[inline]
    pub(super) fn record_version(&mut self, key: usize, version: Option<Version>) {
        self.versions.extend(version.map(|version| (key, version)));
    }

    /// Returns a value of the buffer.
    #[inline]
    pub(super) fn value(&self, new: &ScratchValue) -> TypedValue<'_> {
        TypedValue { value_type: new.value_type, bytes: &self.values[new.bytes.clone()] }
    }

    /// Returns the collected changes in order: the key's position and its new value.
    pub fn collected(&self) -> impl Iterator<Item = (usize, NewValue<'_>)> {
        self.list.iter().map(|change| match &change.what {
            ChangeAction::Put(new) => (change.key, Some((self.value(new), new.expiry))),
            ChangeAction::Delete => (change.key, None),
        })
    }
}

/// The keys that an update has changed, by their positions in it.
#[derive(Clone, Copy, Debug)]
pub struct UpdatedKeys<'s> {
    pub(super) versions: &'s [(usize, Version)],
    pub(super) changes: &'s [Change],
}

impl<'s> UpdatedKeys<'s> {
    /// Returns the version that the update has given to a key; `None` if it has not written the key,
    /// or has removed it.
    pub fn version_of(self, key: usize) -> Option<Version> {
        self.versions.iter().find(|(written, _)| *written == key).map(|(_, version)| *version)
    }

    /// Returns the keys that were written or removed, some of them several times.
    pub fn all(self) -> impl Iterator<Item = usize> + use<'s> {
        self.changes.iter().map(|change| change.key)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Position of the key in the update.
    pub(super) key: usize,
    pub(super) what: ChangeAction,
}

/// New state of a key.
#[derive(Clone, Debug)]
pub(super) enum ChangeAction {
    /// This value.
    Put(ScratchValue),
    /// Removed.
    Delete,
}

/// A value in the scratch buffer.
#[derive(Clone, Debug)]
pub(super) struct ScratchValue {
    value_type: ValueType,
    /// Position of its bytes.
    bytes: Range<usize>,
    pub(super) expiry: Option<UnixMillis>,
}

impl<'c> Changes<'c> {
    /// Begins an update of `keys` keys without changes.
    pub(super) fn new(scratch: &'c mut Scratch, keys: usize) -> Changes<'c> {
        scratch.values.clear();
        scratch.list.clear();
        scratch.versions.clear();
        Changes { scratch, keys }
    }

    /// Sets the value of the key at this position to a string.
    #[inline]
    pub fn put(&mut self, key: usize, value: &[u8], expiry: Option<UnixMillis>) {
        self.put_joined(key, &[value], expiry);
    }

    /// Sets the value of the key at this position to the string that consists of these parts.
    #[inline]
    pub fn put_joined(&mut self, key: usize, parts: &[&[u8]], expiry: Option<UnixMillis>) {
        self.put_built(key, ValueType::String, expiry, |bytes| {
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        });
    }

    /// Sets the value of the key at this position.
    #[inline]
    pub fn put_value(&mut self, key: usize, value: TypedValue<'_>, expiry: Option<UnixMillis>) {
        self.put_built(key, value.value_type, expiry, |bytes| bytes.extend_from_slice(value.bytes));
    }

    /// Sets the value of the key at this position to the bytes that `build` appends to the buffer.
    #[inline]
    pub fn put_built(
        &mut self,
        key: usize,
        value_type: ValueType,
        expiry: Option<UnixMillis>,
        build: impl FnOnce(&mut Vec<u8>),
    ) {
        assert!(key < self.keys, "change of key {key} of {}", self.keys);
        let start = self.scratch.values.len();
        build(&mut self.scratch.values);
        let bytes = start..self.scratch.values.len();
        let new = ScratchValue { value_type, bytes, expiry };
        self.scratch.list.push(Change { key, what: ChangeAction::Put(new) });
    }

    /// Drops the changes that were collected so far.
    pub(super) fn clear(&mut self) {
        self.scratch.values.clear();
        self.scratch.list.clear();
    }

    /// Removes the key at this position.
    #[inline]
    pub fn delete(&mut self, key: usize) {
        assert!(key < self.keys, "change of key {key} of {}", self.keys);
        self.scratch.list.push(Change { key, what: ChangeAction::Delete });
    }
}
