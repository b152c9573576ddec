//! Commands that were not executed: each gets an error reply, or its request is parked.

use super::{ConnectionTurn, Conversation, ExecutionOutcome};
use crate::commands::{Command, Refusal, Undone};
use crate::connections::Cause;
use planted::Bug;
use resp::ReplyWriter;
use store::Stall;

impl Conversation {
    /// Turns the reason why a command was not executed into a reply or a wait.
    pub(super) fn undone(
        &mut self,
        undone: Undone,
        command: &Command,
        args: &[&[u8]],
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ExecutionOutcome {
        let mut reply = ReplyWriter::new(self.session.status.protocol, out);
        match undone {
            Undone::Refused(refusal) => {
                reply.error(refusal.text(command.name).as_bytes());
                ExecutionOutcome::Replied
            }
            Undone::Ask(ask) => match turn.backend.engine.ask(ask) {
                Some(request) => ExecutionOutcome::Wait(Cause::Answer(request)),
                None => {
                    reply.error("ERR the coordinator cannot be reached, please try again later");
                    ExecutionOutcome::Replied
                }
            },
            Undone::Stall(Stall::OutOfMemory) if turn.backend.engine.may_win_memory() => {
                ExecutionOutcome::Wait(Cause::Memory)
            }
            Undone::Stall(Stall::OutOfMemory) => {
                reply.error(Refusal::OutOfMemory.text(command.name).as_bytes());
                ExecutionOutcome::Replied
            }
            Undone::Stall(Stall::TooLarge) => {
                reply.error(Refusal::TooLarge.text(command.name).as_bytes());
                ExecutionOutcome::Replied
            }
            Undone::Begin(job) => match turn.backend.begin(job) {
                Some(request) => ExecutionOutcome::Wait(Cause::Answer(request)),
                None => {
                    reply.error("ERR not supported: there is no process to run this job");
                    ExecutionOutcome::Replied
                }
            },
            Undone::Unsafe { until } => ExecutionOutcome::Wait(Cause::Replicas(until)),
            Undone::Paused => ExecutionOutcome::Wait(Cause::Paused),
            Undone::Unfinished | Undone::Stall(Stall::Contended) => {
                ExecutionOutcome::Wait(Cause::Turn)
            }
            Undone::Stall(Stall::Held) if !planted::is(Bug::RedirectedWhileHeld) => {
                ExecutionOutcome::Wait(Cause::Held)
            }
            Undone::Stall(Stall::NotArrived { migration, from }) => {
                turn.backend.engine.want_progress(migration, from);
                ExecutionOutcome::Wait(Cause::Progress)
            }
            Undone::Stall(Stall::Missing(missing)) => {
                let table = missing.table;
                match turn.backend.engine.pull_early(turn.now, table, &missing) {
                    true => ExecutionOutcome::Wait(Cause::Missing(table, missing.hashes)),
                    false => ExecutionOutcome::Wait(Cause::Progress),
                }
            }
            Undone::Stall(Stall::NotOwned | Stall::Held) => {
                let first = command.key_positions(args.len(), args.get(1).copied()).next();
                match first.and_then(|at| turn.backend.engine.node().redirection(args[at])) {
                    Some(moved) => {
                        reply.error(moved);
                        ExecutionOutcome::Replied
                    }
                    None => ExecutionOutcome::Wait(Cause::Held),
                }
            }
        }
    }
}
