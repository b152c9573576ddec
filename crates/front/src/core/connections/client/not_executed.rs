//! Commands that were not executed: each gets an error reply, or its request is parked.

use super::{ConnectionTurn, Conversation, ExecutionOutcome};
use crate::commands::{Cause, Command, Done, LONG_REPLY, NotExecuted, Refusal, flag, refused};
use resp::{OUTPUT_BYTES_MAX, ReplyWriter};
use types::limits::KEY_BYTES_MAX;

/// Returns the refusal of an `EXEC`. Clients match on the first word of the error: that of a refused
/// transaction is `EXECABORT`, unless it sends the client elsewhere.
fn discarded(refusal: Refusal, command: &Command) -> Refusal {
    const KEPT: [&str; 5] =
        ["EXECABORT ", "MOVED ", "CLUSTERDOWN ", "TRYAGAIN ", "ERR EXEC without MULTI"];
    let text = refusal.text(command.name);
    if KEPT.iter().any(|word| text.starts_with(word)) {
        return refusal;
    }
    let why = text.strip_prefix("ERR ").unwrap_or(&text);
    Refusal::Because(format!("EXECABORT Transaction discarded because of: {why}").into())
}

/// Returns an error in place of a reply that the writer has not completed.
#[inline]
pub(super) fn check_length(out: &[u8]) -> Done {
    if out.len() < OUTPUT_BYTES_MAX { Ok(()) } else { Err(refused(LONG_REPLY)) }
}

/// Returns the refusal of a command whose keys and values do not fit into an entry of the log, or into
/// one batch of entries.
fn too_large(command: &Command, args: &[&[u8]]) -> Refusal {
    let keys: Vec<usize> = command.key_positions(args.len(), |at| args.get(at).copied()).collect();
    if keys.iter().any(|&at| args[at].len() > KEY_BYTES_MAX) {
        let text = format!("ERR a key of this command is longer than {KEY_BYTES_MAX} bytes");
        return Refusal::Because(text.into());
    }
    match keys.len() {
        0 | 1 => Refusal::TooLarge,
        _ => Refusal::because(
            "ERR the keys and values of one command must fit into one segment of the log",
        ),
    }
}

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
            NotExecuted::Reject(Refusal::TooLarge) => too_large(command, args),
            NotExecuted::Reject(refusal) => refusal,
        };
        let refusal = match command.has(flag::RUNS_TRANSACTION) {
            true => discarded(refusal, command),
            false => refusal,
        };
        let text = refusal.text(command.name);
        ReplyWriter::new(self.session.status.protocol, out).error(text.as_bytes());
        ExecutionOutcome::Replied
    }
}
