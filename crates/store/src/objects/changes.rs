//! The changes of an update, collected while its closure reads the records.
//!
//! Values are copied into one buffer that the worker reuses. So an update of one key does not
//! allocate, and the sources of the values may be dropped before the write.

use std::ops::Range;
use types::{UnixMillis, Version};

/// Collector of changes, filled by the closure of [`super::Worker::update`]. The last change of a
/// key wins.
pub struct Changes<'c> {
    scratch: &'c mut Scratch,
    keys: usize,
}

/// A new value with its expiry; `None` removes the key.
pub type NewValue<'v> = Option<(&'v [u8], Option<UnixMillis>)>;

/// Buffer of changes, reused from update to update.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) values: Vec<u8>,
    pub(super) list: Vec<Change>,
    /// Versions of the records that the last update has written, with the positions of their keys.
    pub(super) versions: Vec<(usize, Version)>,
}

impl Scratch {
    /// Begins to collect the changes of an update of `keys` keys that is executed outside the
    /// store.
    pub fn changes(&mut self, keys: usize) -> Changes<'_> {
        Changes::new(self, keys)
    }

    /// Records that the update has given this version to the key at this position.
    #[inline]
    pub(super) fn record_version(&mut self, key: usize, version: Option<Version>) {
        self.versions.extend(version.map(|version| (key, version)));
    }

    /// Returns the collected changes in order: the key's position and its new value.
    pub fn collected(&self) -> impl Iterator<Item = (usize, NewValue<'_>)> {
        self.list.iter().map(|change| match &change.what {
            ChangeAction::Put { value, expiry } => {
                (change.key, Some((&self.values[value.clone()], *expiry)))
            }
            ChangeAction::Delete => (change.key, None),
        })
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
    /// A value, as a range of the scratch values.
    Put { value: Range<usize>, expiry: Option<UnixMillis> },
    /// Removed.
    Delete,
}

impl<'c> Changes<'c> {
    /// Begins an update of `keys` keys without changes.
    pub(super) fn new(scratch: &'c mut Scratch, keys: usize) -> Changes<'c> {
        scratch.values.clear();
        scratch.list.clear();
        scratch.versions.clear();
        Changes { scratch, keys }
    }

    /// Sets the value of the key at this position.
    #[inline]
    pub fn put(&mut self, key: usize, value: &[u8], expiry: Option<UnixMillis>) {
        self.put_joined(key, &[value], expiry);
    }

    /// Sets the value of the key at this position to the concatenation of these parts.
    #[inline]
    pub fn put_joined(&mut self, key: usize, parts: &[&[u8]], expiry: Option<UnixMillis>) {
        assert!(key < self.keys, "change of key {key} of {}", self.keys);
        let start = self.scratch.values.len();
        for part in parts {
            self.scratch.values.extend_from_slice(part);
        }
        let value = start..self.scratch.values.len();
        self.scratch.list.push(Change { key, what: ChangeAction::Put { value, expiry } });
    }

    /// Removes the key at this position.
    #[inline]
    pub fn delete(&mut self, key: usize) {
        assert!(key < self.keys, "change of key {key} of {}", self.keys);
        self.scratch.list.push(Change { key, what: ChangeAction::Delete });
    }
}
