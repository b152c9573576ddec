//! The state that a request keeps from one execution to the next.

use super::not_executed::Cause;
use crate::operators::clients::Unblocked;
use types::{Instant, KeyHash};

/// The history of a request that waits for an event that may never occur.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    /// Time at which the request began to wait for replicas.
    pub(crate) began: Option<Instant>,
    /// Set when `CLIENT UNBLOCK` has ended the wait.
    pub(crate) unblocked: Option<Unblocked>,
    /// Number of answers received from the coordinator or the process.
    pub(crate) answers: usize,
}

impl Past {
    /// Records that the request begins to wait.
    pub(crate) fn record(&mut self, cause: Option<&Cause>, now: Instant) {
        if let Some(Cause::Replicas(_)) = cause {
            self.began.get_or_insert(now);
        }
    }
}

/// The state of a scan over all keys that takes several turns.
pub(crate) struct KeyspaceScan {
    /// Key hash at which the scan continues.
    pub(super) next: KeyHash,
    /// True if the scan has reached the end once and has started again.
    pub(super) is_second: bool,
    /// The results so far, encoded as they will be sent.
    pub(super) replies: Vec<u8>,
    pub(super) count: usize,
}

impl KeyspaceScan {
    /// Returns the state at the start of a scan from this hash on.
    pub(super) fn from(next: KeyHash) -> KeyspaceScan {
        KeyspaceScan { next, is_second: false, replies: Vec::new(), count: 0 }
    }
}
