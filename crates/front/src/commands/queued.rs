//! The commands of a transaction, before it is executed.

use resp::{BorrowedRequest, OwnedRequest};
use std::collections::BTreeMap;
use types::{Slot, TableId, Version};

/// The commands between `MULTI` and `EXEC`.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueuedTransaction {
    requests: Vec<OwnedRequest>,
    bytes: usize,
    /// In a cluster, the slot of the first key.
    slot: Option<Slot>,
    /// True if a command was refused when it was queued, so that `EXEC` will fail.
    is_broken: bool,
    /// True if one of the commands changes data.
    writes: bool,
}

/// Watched keys, with their versions (`None`: absent). A change makes a transaction fail.
pub(crate) type Watched = BTreeMap<(TableId, Box<[u8]>), Option<Version>>;

/// Most commands of a transaction, and most bytes of their requests.
const REQUESTS_MAX: usize = 1 << 17;
const BYTES_MAX: usize = 64 << 20;

impl QueuedTransaction {
    /// Adds a command. `writes`: it changes data.
    pub(crate) fn push(&mut self, request: BorrowedRequest<'_>, writes: bool) {
        let request = request.to_owned();
        self.bytes += request.held_bytes();
        self.requests.push(request);
        self.writes |= writes;
    }

    /// Returns whether the limit of commands or bytes is reached.
    pub(super) fn is_full(&self) -> bool {
        self.requests.len() == REQUESTS_MAX || self.bytes >= BYTES_MAX
    }

    /// Returns whether this slot is that of the first key. The first call defines it.
    pub(super) fn is_in_slot(&mut self, slot: Slot) -> bool {
        *self.slot.get_or_insert(slot) == slot
    }

    /// Marks the transaction as failed, because a command could not be added.
    pub(crate) fn fail(&mut self) {
        self.is_broken = true;
    }

    /// Returns whether a command could not be added.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns the collected commands.
    pub(super) fn requests(&self) -> &[OwnedRequest] {
        &self.requests
    }

    /// Returns the bytes of the collected commands.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of collected commands.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether one of the commands changes data.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }
}
