//! The state that a request keeps from one execution to the next.

use super::not_executed::Cause;
use crate::operators::blocked::BlockedTicket;
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
    /// Set when the request has begun to wait for keys.
    pub(crate) blocked: Option<BlockedSince>,
}

/// The wait of a request for keys. It lasts until the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockedSince {
    pub(crate) ticket: BlockedTicket,
    /// End of the wait; `None` means no limit.
    pub(crate) until: Option<Instant>,
}

impl Past {
    /// Returns whether the wait for keys is over, without elements.
    pub(crate) fn is_blocked_no_longer(&self, now: Instant) -> bool {
        let is_late = |blocked: BlockedSince| blocked.until.is_some_and(|until| until <= now);
        self.blocked.is_some_and(|blocked| self.unblocked.is_some() || is_late(blocked))
    }

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
