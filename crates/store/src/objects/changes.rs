//! What an update wants changed, collected while it looks at the records.
//!
//! Values are copied into one buffer that the worker keeps, so that an update of one key does not
//! allocate, and whatever they were made from may go before they are written.

use std::ops::Range;
use types::UnixMillis;

/// Filled by the closure of [`super::Worker::update`]. The last change of a key counts.
#[derive(Debug)]
pub struct Changes<'c> {
    scratch: &'c mut Scratch,
    keys: usize,
}

/// A new value and its expiry; `None`: the key stops existing.
pub type NewValue<'v> = Option<(&'v [u8], Option<UnixMillis>)>;

/// The memory of changes, reused from update to update.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) values: Vec<u8>,
    pub(super) list: Vec<Change>,
}

impl Scratch {
    /// Collects the changes of an update of so many keys that is made elsewhere than in the store.
    pub fn changes(&mut self, keys: usize) -> Changes<'_> {
        Changes::new(self, keys)
    }

    /// What was collected, in order: the key's position, and what is to become of it.
    pub fn collected(&self) -> impl Iterator<Item = (usize, NewValue<'_>)> {
        self.list.iter().map(|change| match &change.what {
            What::Put { value, expiry } => {
                (change.key, Some((&self.values[value.clone()], *expiry)))
            }
            What::Delete => (change.key, None),
        })
    }
}

/// One change.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Position of the key among the update's.
    pub(super) key: usize,
    pub(super) what: What,
}

/// What is to become of a key.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// It has this value, which lies in the scratch values.
    Put { value: Range<usize>, expiry: Option<UnixMillis> },
    /// It does not exist.
    Delete,
}

impl<'c> Changes<'c> {
    /// No change yet, of an update of so many keys.
    pub(super) fn new(scratch: &'c mut Scratch, keys: usize) -> Changes<'c> {
        scratch.values.clear();
        scratch.list.clear();
        Changes { scratch, keys }
    }

    /// The key at this position gets a value.
    #[inline]
    pub fn put(&mut self, key: usize, value: &[u8], expiry: Option<UnixMillis>) {
        self.put_joined(key, &[value], expiry);
    }

    /// The key at this position gets a value that is these parts, one behind the other.
    #[inline]
    pub fn put_joined(&mut self, key: usize, parts: &[&[u8]], expiry: Option<UnixMillis>) {
        assert!(key < self.keys, "change of key {key} of {}", self.keys);
        let start = self.scratch.values.len();
        for part in parts {
            self.scratch.values.extend_from_slice(part);
        }
        let value = start..self.scratch.values.len();
        self.scratch.list.push(Change { key, what: What::Put { value, expiry } });
    }

    /// The key at this position stops existing.
    #[inline]
    pub fn delete(&mut self, key: usize) {
        assert!(key < self.keys, "change of key {key} of {}", self.keys);
        self.scratch.list.push(Change { key, what: What::Delete });
    }
}
