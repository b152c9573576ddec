//! Commands that were not executed: each gets an error reply, or its request is parked.

use super::{ConnectionTurn, Conversation, ExecutionOutcome};
use crate::commands::{Cause, Command, NotExecuted, Refusal};
use resp::ReplyWriter;

impl Conversation {
    /// Does the next step for a command that was not executed: writes an error, or returns the
    /// cause of a wait.
    pub(super) fn not_executed(
        &mut self,
        next: NotExecuted,
        command: &Command,
        args: &[&[u8]],
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ExecutionOutcome {
        let refusal = match next {
            NotExecuted::Retry(cause) => match turn.backend.prepare_wait(cause, turn.now) {
                Ok(cause) => return ExecutionOutcome::Wait(cause),
                Err(refusal) => refusal,
            },
            NotExecuted::Redirect => {
                let first = command.key_positions(args.len(), |at| args.get(at).copied()).next();
                match first.and_then(|at| turn.backend.node().redirection(args[at])) {
                    Some(moved) => Refusal::Because(moved.into()),
                    // The newest map names this server, whose tablets are older.
                    None => return ExecutionOutcome::Wait(Cause::Held),
                }
            }
            NotExecuted::Reject(refusal) => refusal,
        };
        let text = refusal.text(command.name);
        ReplyWriter::new(self.session.status.protocol, out).error(text.as_bytes());
        ExecutionOutcome::Replied
    }
}
