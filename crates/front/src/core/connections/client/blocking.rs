//! Requests that wait for keys, on one connection.

use super::{ConnectionTurn, Conversation, ExecutionOutcome, WaiterId};
use crate::commands::{BlockedSince, Cause, Command, KeyWait, NotExecuted, Past};
use crate::core::connections::admission::AnsweredCommand;
use crate::operators::blocked::{AwaitedElements, AwaitedKey};
use crate::operators::clients::Unblocked;
use resp::{BorrowedRequest, ReplyWriter};

impl Conversation {
    /// Parks a request under a cause.
    pub(super) fn wait(&mut self, waiter: WaiterId, cause: &Cause, turn: &mut ConnectionTurn<'_>) {
        turn.waits.add(waiter, cause);
        let Cause::Blocked(wait) = cause else { return };
        let Some(waiting) = self.queue.waiting(waiter.number) else { return };
        let (request, table) = (waiting.request.request(), waiting.table);
        let engine = &turn.backend.engine;
        let keys = wait.keys.clone().filter_map(|at| request.get(at));
        let elements = wait.elements;
        let awaited = |key| AwaitedKey { table, hash: engine.hash(key), elements };
        let keys: Vec<AwaitedKey> = keys.map(awaited).collect();
        let (shared, store) = (&turn.backend.operators.blocked, engine.node().store());
        let ticket = turn.waits.blocked.add(waiter, keys, wait.until, shared, store);
        waiting.state.past.blocked = Some(BlockedSince { ticket, until: wait.until });
        if self.session.closing {
            // `CLIENT UNBLOCK` may never come, and an element must not be lost.
            waiting.state.past.unblocked = Some(Unblocked::TimeOut);
            turn.waits.schedule(waiter);
        }
    }

    /// Ends the wait of an answered request.
    pub(super) fn wait_no_longer(
        &mut self,
        number: u64,
        past: Past,
        turn: &mut ConnectionTurn<'_>,
    ) {
        if past.blocked.is_none() {
            return;
        }
        let waiter = WaiterId { connection: self.id, number };
        let backend = &*turn.backend;
        let wake = |reactor| backend.wake(reactor);
        turn.waits.blocked.remove(waiter, &backend.operators.blocked, wake);
    }

    /// Returns whether a request that waits for keys must continue to wait.
    pub(super) fn stays_blocked(&mut self, number: u64, turn: &mut ConnectionTurn<'_>) -> bool {
        let Some(waiting) = self.queue.waiting(number) else { return false };
        let past = waiting.state.past;
        let (Some(Cause::Blocked(wait)), Some(BlockedSince { ticket, .. })) =
            (&waiting.cause, past.blocked)
        else {
            return false;
        };
        if past.is_blocked_no_longer(turn.now) {
            return false;
        }
        let &KeyWait { ref keys, elements, .. } = wait;
        let (request, table) = (waiting.request.request(), waiting.table);
        let may_run = |key: &[u8]| {
            let key = turn.backend.key(key);
            // The order matters: a write after this look at the queue notifies the request again.
            let awaited = AwaitedKey { table, hash: key.hash, elements };
            if !turn.backend.may_take(awaited, Some(ticket)) {
                return false;
            }
            let found = turn.backend.peek_one(table, key, |record| {
                // A group that is gone ends the wait.
                let is_group = matches!(elements, AwaitedElements::GroupEntries(_));
                let value_type = elements.value_type();
                is_group || record.is_some_and(|record| record.value.value_type == value_type)
            });
            match found {
                Ok(has_elements) => has_elements,
                // A change of tablets retries the request.
                Err(NotExecuted::Retry(Cause::Held)) => false,
                Err(_) => true,
            }
        };
        // The look at each key, also behind one with elements, lets the next write notify the request.
        let looks = keys.clone().filter_map(|at| request.get(at)).map(may_run);
        !looks.fold(false, |any, may| any | may)
    }

    /// Answers a request whose wait for keys has ended without elements.
    pub(super) fn end_wait(
        &mut self,
        request: BorrowedRequest<'_>,
        past: Past,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ExecutionOutcome {
        let args: Vec<&[u8]> = request.iter().collect();
        let before = out.len();
        let mut reply = ReplyWriter::new(self.session.status.protocol, out);
        match past.unblocked {
            Some(Unblocked::Error) => {
                reply.error("UNBLOCKED client unblocked via CLIENT UNBLOCK");
            }
            Some(Unblocked::TimeOut) | None => reply.null_array(),
        }
        if let Ok(command) = Command::of(request.name(), request.get(1)) {
            turn.begin(command);
            let attempt = AnsweredCommand { command, args: &args, is_admitted: true };
            attempt.count(&out[before..], &self.session, turn);
        }
        ExecutionOutcome::Replied
    }
}
