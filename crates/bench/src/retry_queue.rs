//! Operations that cannot be executed for now: their server is gone, or has asked for a retry.
//!
//! They are retried in the order in which they failed, each after a pause, until their patience
//! is over. A client that hides errors behaves like this: it waits, and its latency counts all
//! the while.
//!
//! Cost estimate: a server that had a quarter of 30,000 operations/s and is missing for a second
//! leaves 7,500 operations here. A check of an operation with an unreachable server costs 10 ns,
//! 50 times a second: 0.4 % of a processor. A retry also costs the servers, and a server that has
//! just come back is busy, so only a few operations are sent at once.

use crate::operation::LoadOperation;
use crate::slot_map::NodeIndex;
use std::collections::VecDeque;
use std::time::Duration;
use types::Instant;

/// Time that an operation waits before its next attempt.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximal number of retries at once: with a check every 100 us, 320,000 per second.
const SENT_AT_ONCE: usize = 32;

/// Reason for waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetryCause {
    /// The known owner of the slot cannot be reached.
    Unreachable(NodeIndex),
    /// A server has answered with a temporary error.
    Refused(TemporaryError),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TemporaryError {
    /// `CLUSTERDOWN`: the owner of the slot is dead.
    ClusterDown,
    /// `TRYAGAIN`: the operation took too long.
    TryAgain,
    /// `LOADING`: the server has just started.
    Loading,
    /// The operation was redirected too often.
    Redirected,
}

impl TemporaryError {
    /// Parses an error reply; `None` for an error that a retry does not fix.
    pub(crate) fn parse(error: &[u8]) -> Option<TemporaryError> {
        match error.split(|byte| *byte == b' ').next()? {
            b"CLUSTERDOWN" => Some(TemporaryError::ClusterDown),
            b"TRYAGAIN" => Some(TemporaryError::TryAgain),
            b"LOADING" => Some(TemporaryError::Loading),
            _ => None,
        }
    }
}

impl RetryCause {
    /// Returns the error under which an operation is counted if it has waited in vain.
    pub(crate) fn text(self) -> &'static str {
        match self {
            RetryCause::Unreachable(_) => "(not sent)",
            RetryCause::Refused(TemporaryError::ClusterDown) => "CLUSTERDOWN",
            RetryCause::Refused(TemporaryError::TryAgain) => "TRYAGAIN",
            RetryCause::Refused(TemporaryError::Loading) => "LOADING",
            RetryCause::Refused(TemporaryError::Redirected) => "too many redirects",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingOperation {
    pub operation: LoadOperation,
    pub cause: RetryCause,
    due: Instant,
}

/// All waiting operations.
#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    /// Operations in the order in which they become due, which is the order of their arrival.
    queue: VecDeque<WaitingOperation>,
}

impl RetryQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn hold(&mut self, operation: LoadOperation, cause: RetryCause, now: Instant) {
        self.queue.push_back(WaitingOperation { operation, cause, due: now + PAUSE });
    }

    /// Takes the due operations for which `may_go` holds. The others wait again.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        may_go: impl Fn(&WaitingOperation) -> bool,
    ) -> Vec<WaitingOperation> {
        let mut taken = Vec::new();
        // At most the initial length: operations that wait again are behind the unchecked ones.
        for _ in 0..self.queue.len() {
            if taken.len() == SENT_AT_ONCE {
                break;
            }
            let Some(held) = self.queue.pop_front_if(|held| held.due <= now) else { break };
            match may_go(&held) {
                true => taken.push(held),
                false => self.hold(held.operation, held.cause, now),
            }
        }
        taken
    }

    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = WaitingOperation> + use<> {
        std::mem::take(&mut self.queue).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::OperationCommand;
    use crate::records::{RecordNumber, Sequence};
    use crate::workload::RecordAction;
    use types::Slot;

    fn operation(record: u32) -> LoadOperation {
        let step = OperationCommand::Get { floor: Sequence(0) };
        LoadOperation {
            action: RecordAction::Read,
            record: RecordNumber(record),
            slot: Slot(0),
            step,
            intended: Instant(0),
            client: 0,
            redirects: 0,
        }
    }

    fn ms(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    fn records(held: &[WaitingOperation]) -> Vec<u32> {
        held.iter().map(|held| held.operation.record.0).collect()
    }

    #[test]
    fn operations_are_tried_again_after_a_pause_in_their_order_and_a_few_at_once() {
        let mut waiting = RetryQueue::default();
        for record in 0..40 {
            waiting.hold(
                operation(record),
                RetryCause::Refused(TemporaryError::TryAgain),
                ms(u64::from(record)),
            );
        }
        assert!(waiting.due(ms(19), |_| true).is_empty());
        assert_eq!(records(&waiting.due(ms(21), |_| true)), [0, 1]);
        let some = waiting.due(ms(99), |_| true);
        assert_eq!(records(&some), (2..34).collect::<Vec<u32>>());
        assert_eq!(records(&waiting.due(ms(99), |_| true)), [34, 35, 36, 37, 38, 39]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn who_may_not_go_waits_on_and_keeps_nobody_else() {
        let mut waiting = RetryQueue::default();
        for record in 0..80 {
            waiting.hold(
                operation(record),
                RetryCause::Unreachable(NodeIndex(record as u16 % 2)),
                ms(0),
            );
        }
        let is_back = |held: &WaitingOperation| held.cause == RetryCause::Unreachable(NodeIndex(1));
        assert_eq!(waiting.due(ms(20), is_back).len(), 32);
        assert_eq!(waiting.due(ms(20), is_back).len(), 8);
        assert_eq!(waiting.due(ms(39), |_| true).len(), 0, "all others wait another pause");
        assert_eq!(waiting.take_all().count(), 40);
    }

    #[test]
    fn only_errors_that_go_away_are_waited_for() {
        for (error, refusal) in [
            ("CLUSTERDOWN Hash slot not served", Some(TemporaryError::ClusterDown)),
            ("TRYAGAIN", Some(TemporaryError::TryAgain)),
            ("LOADING Redis is loading", Some(TemporaryError::Loading)),
            ("OOM command not allowed", None),
            ("", None),
        ] {
            assert_eq!(TemporaryError::parse(error.as_bytes()), refusal, "{error}");
        }
    }
}
