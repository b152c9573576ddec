//! Checks every answer against the ledger, records it, and returns the operation's next step.

use crate::clock;
use crate::ledger::{Fault, WriteLedger};
use crate::operation::{LoadOperation, OperationCommand};
use crate::recorder::{NO_ANSWER, PhaseBoundaries, Recorder, Recording};
use crate::records::{RecordSet, Sequence};
use crate::retry_queue::RetryCause;
use crate::slot_map::SlotSet;
use crate::workload::RecordAction;
use resp::Reply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use types::Instant;

/// Maximal number of redirects of one operation before it fails: redis-py's limit.
const REDIRECTS_MAX: u8 = 16;
/// Length up to which the text of an error is recorded, in bytes.
const ERROR_BYTES_MAX: usize = 80;

/// State that the generator's threads share with the starting thread.
pub struct SharedRunState {
    /// Marks that divide the run into phases.
    pub boundaries: PhaseBoundaries,
    /// Number of operations that have ended, for progress bars.
    pub ended: AtomicU64,
    /// Set to end the run early.
    pub stop: AtomicBool,
}

/// Failure of an operation without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OperationFailure {
    /// Never sent, or refused by every server: the operation has changed nothing.
    NotExecuted(RetryCause),
    /// Sent, but the connection broke or the run ended: the operation may have been executed, or
    /// may still be.
    Unanswered,
}

/// Ledger and recorder of one thread.
pub(crate) struct Judge {
    records: RecordSet,
    ledger: WriteLedger,
    recorder: Recorder,
    shared: Arc<SharedRunState>,
    /// Slots that are also measured separately.
    watched: SlotSet,
    /// Number of ended operations that are not in `shared` yet.
    ended: u64,
}

impl Judge {
    pub(crate) fn new(
        records: RecordSet,
        ledger: WriteLedger,
        start: Instant,
        watched: SlotSet,
        shared: Arc<SharedRunState>,
    ) -> Judge {
        Judge { records, ledger, recorder: Recorder::new(start), shared, watched, ended: 0 }
    }

    /// Returns the first step of an operation that starts.
    #[inline]
    pub(crate) fn first_step(
        &mut self,
        action: RecordAction,
        record: crate::records::RecordNumber,
    ) -> OperationCommand {
        match action {
            RecordAction::Read | RecordAction::ReadModifyWrite | RecordAction::Adopt => {
                OperationCommand::Get { floor: self.ledger.floor(record) }
            }
            RecordAction::Write => OperationCommand::Set(self.ledger.issue(record)),
        }
    }

    /// Judges an answer. Returns the operation with its next step if it continues.
    #[inline]
    pub(crate) fn answered(
        &mut self,
        operation: LoadOperation,
        reply: Reply<'_>,
        now: Instant,
    ) -> Option<LoadOperation> {
        match (operation.step, reply) {
            (OperationCommand::Get { floor }, Reply::Bulk(value)) => {
                match self.records.sequence_of(operation.record, value) {
                    Some(seen) => self.read(operation, floor, seen, now),
                    None => {
                        self.recorder.faulty(Fault::Invented);
                        self.completed(operation, now);
                        None
                    }
                }
            }
            (OperationCommand::Get { floor }, Reply::Null) => {
                self.read(operation, floor, Sequence(0), now)
            }
            (OperationCommand::Set(write), Reply::Simple(b"OK")) => {
                self.ledger.acknowledged(operation.record, write);
                self.completed(operation, now);
                None
            }
            (_, Reply::Error(error)) => {
                self.refused(operation, error, now);
                None
            }
            (_, _) => {
                self.refused(operation, b"a reply of the wrong type", now);
                None
            }
        }
    }

    fn read(
        &mut self,
        mut operation: LoadOperation,
        floor: Sequence,
        seen: Sequence,
        now: Instant,
    ) -> Option<LoadOperation> {
        if operation.action == RecordAction::Adopt {
            self.ledger.adopt(operation.record, seen);
        } else if let Err(fault) = self.ledger.judge(operation.record, floor, seen) {
            self.recorder.faulty(fault);
        }
        match operation.action {
            RecordAction::ReadModifyWrite => {
                operation.step = OperationCommand::Set(self.ledger.issue(operation.record));
                operation.redirects = 0;
                Some(operation)
            }
            RecordAction::Read | RecordAction::Adopt | RecordAction::Write => {
                self.completed(operation, now);
                None
            }
        }
    }

    #[inline]
    fn completed(&mut self, operation: LoadOperation, now: Instant) {
        let phase = self.shared.boundaries.phase(operation.intended);
        self.recorder.completed_one(operation.action, phase, operation.intended, now);
        if self.watched.contains(operation.slot) {
            self.recorder.watched_one(now);
        }
        self.ended += 1;
    }

    /// Handles an error reply: the server has not executed the operation.
    fn refused(&mut self, operation: LoadOperation, error: &[u8], now: Instant) {
        if let OperationCommand::Set(write) = operation.step {
            self.ledger.refused(operation.record, write);
        }
        let text = String::from_utf8_lossy(&error[..error.len().min(ERROR_BYTES_MAX)]);
        self.recorder.failed(&text, now);
        self.ended += 1;
    }

    /// Counts a redirect. Returns `false` if there were too many.
    pub(crate) fn redirected(
        &mut self,
        operation: &mut LoadOperation,
        for_good: bool,
        now: Instant,
    ) -> bool {
        self.recorder.redirected(for_good, now);
        operation.redirects += 1;
        operation.redirects <= REDIRECTS_MAX
    }

    /// Records that an operation waits for a retry.
    pub(crate) fn retried(&mut self) {
        self.recorder.retried();
    }

    /// Ends an operation without an answer.
    pub(crate) fn failed(
        &mut self,
        operation: LoadOperation,
        failure: OperationFailure,
        now: Instant,
    ) {
        match failure {
            OperationFailure::NotExecuted(cause) => {
                self.refused(operation, cause.text().as_bytes(), now)
            }
            OperationFailure::Unanswered => {
                self.recorder.failed(NO_ANSWER, now);
                self.ended += 1;
            }
        }
    }

    /// Records an operation that could not be started because too many are in flight.
    pub(crate) fn dropped(&mut self, now: Instant) {
        self.recorder.failed("(too many operations in flight)", now);
    }

    /// Adds the operations that have ended since the last call to the shared count.
    pub(crate) fn report(&mut self) {
        if self.ended > 0 {
            self.shared.ended.fetch_add(std::mem::take(&mut self.ended), Relaxed);
        }
    }

    /// Returns the ledger and the recording at the end.
    pub(crate) fn finish(mut self, now: Instant) -> (WriteLedger, Recording) {
        self.report();
        (self.ledger, self.recorder.finish(now, clock::thread_cpu_time()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Share;
    use crate::recorder::Findings;
    use crate::records::RecordNumber;
    use crate::retry_queue::TemporaryError;
    use types::Slot;

    const RECORD: RecordNumber = RecordNumber(2);

    fn judge() -> Judge {
        let records = RecordSet::new(4, 30, 100).unwrap();
        let shared = SharedRunState {
            boundaries: PhaseBoundaries::new(Instant(0)),
            ended: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        };
        let ledger = WriteLedger::new(Share::new(0, 1), 4);
        Judge::new(records, ledger, Instant(0), SlotSet::default(), Arc::new(shared))
    }

    fn start(judge: &mut Judge, action: RecordAction) -> LoadOperation {
        let step = judge.first_step(action, RECORD);
        LoadOperation {
            action,
            record: RECORD,
            slot: Slot(0),
            step,
            intended: Instant(0),
            client: 0,
            redirects: 0,
        }
    }

    fn answer(
        judge: &mut Judge,
        operation: LoadOperation,
        reply: Reply<'_>,
    ) -> Option<LoadOperation> {
        judge.answered(operation, reply, Instant(1_000))
    }

    fn value(record: u32, sequence: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let records = RecordSet::new(4, 30, 100).unwrap();
        records.write_value(RecordNumber(record), Sequence(sequence), &mut out);
        out
    }

    /// Returns the findings of reading `reply` after two acknowledged writes.
    fn read(reply: Reply<'_>) -> Findings {
        let mut judge = judge();
        for _ in 0..2 {
            let write = start(&mut judge, RecordAction::Write);
            assert!(answer(&mut judge, write, Reply::Simple(b"OK")).is_none());
        }
        let read = start(&mut judge, RecordAction::Read);
        assert!(answer(&mut judge, read, reply).is_none());
        judge.finish(Instant(2_000)).1.findings
    }

    #[test]
    fn every_kind_of_wrong_answer_is_counted_as_what_it_is() {
        assert!(read(Reply::Bulk(&value(2, 2))).is_clean());
        assert_eq!(read(Reply::Bulk(&value(2, 1))).stale, 1);
        assert_eq!(read(Reply::Null).missing, 1);
        assert_eq!(read(Reply::Bulk(&value(2, 3))).wrong, 1, "a write that was not issued");
        assert_eq!(read(Reply::Bulk(&value(3, 2))).wrong, 1, "another record's value");
        assert_eq!(read(Reply::Bulk(b"torn")).wrong, 1);
        assert_eq!(read(Reply::Error(b"ERR no")).errors_total(), 1);
        assert_eq!(read(Reply::Integer(1)).errors_total(), 1);
    }

    #[test]
    fn a_read_modify_write_reads_and_then_writes() {
        let mut judge = judge();
        let operation = start(&mut judge, RecordAction::ReadModifyWrite);
        let Some(write) = answer(&mut judge, operation, Reply::Null) else {
            panic!("the operation continues")
        };
        assert!(
            matches!(write.step, OperationCommand::Set(write) if write.sequence == Sequence(1))
        );
        assert!(answer(&mut judge, write, Reply::Simple(b"OK")).is_none());
        let read = start(&mut judge, RecordAction::Read);
        answer(&mut judge, read, Reply::Null);
        let findings = judge.finish(Instant(2_000)).1.findings;
        assert_eq!((findings.completed, findings.missing), (2, 1));
    }

    #[test]
    fn an_operation_is_sent_elsewhere_so_often_and_then_fails() {
        let mut judge = judge();
        let mut operation = start(&mut judge, RecordAction::Write);
        for _ in 0..REDIRECTS_MAX {
            assert!(judge.redirected(&mut operation, true, Instant(0)));
        }
        assert!(!judge.redirected(&mut operation, true, Instant(0)));
        let failure =
            OperationFailure::NotExecuted(RetryCause::Refused(TemporaryError::Redirected));
        judge.failed(operation, failure, Instant(0));
        // The write was never executed, so the record may be missing.
        let read = start(&mut judge, RecordAction::Read);
        answer(&mut judge, read, Reply::Null);
        let findings = judge.finish(Instant(2_000)).1.findings;
        assert_eq!((findings.errors_total(), findings.missing), (1, 0));
    }
}
