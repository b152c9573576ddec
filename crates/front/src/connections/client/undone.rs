//! Commands that were not executed: each gets an error reply, or its request is parked.

use super::{Conversation, Outcome, Turn};
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
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let mut reply = ReplyWriter::new(self.session.protocol, out);
        match undone {
            Undone::Refused(refusal) => {
                reply.error(refusal.text(command).as_bytes());
                Outcome::Replied
            }
            Undone::Ask(ask) => match turn.backend.engine.ask(ask) {
                Some(request) => Outcome::Wait(Cause::Answer(request)),
                None => {
                    reply.error("ERR the coordinator cannot be reached, please try again later");
                    Outcome::Replied
                }
            },
            Undone::Stall(Stall::OutOfMemory) if turn.backend.engine.may_win_memory() => {
                Outcome::Wait(Cause::Memory)
            }
            Undone::Stall(Stall::OutOfMemory) => {
                reply.error(Refusal::OutOfMemory.text(command).as_bytes());
                Outcome::Replied
            }
            Undone::Stall(Stall::TooLarge) => {
                reply.error(Refusal::TooLarge.text(command).as_bytes());
                Outcome::Replied
            }
            Undone::Begin(job) => match turn.backend.begin(job) {
                Some(request) => Outcome::Wait(Cause::Answer(request)),
                None => {
                    reply.error("ERR not supported: there is no process to run this job");
                    Outcome::Replied
                }
            },
            Undone::Unsafe { until } => Outcome::Wait(Cause::Replicas(until)),
            Undone::Paused => Outcome::Wait(Cause::Paused),
            Undone::Unfinished | Undone::Stall(Stall::Contended) => Outcome::Wait(Cause::Turn),
            Undone::Stall(Stall::Held) if !planted::is(Bug::RedirectedWhileHeld) => {
                Outcome::Wait(Cause::Held)
            }
            Undone::Stall(Stall::NotArrived { migration, from }) => {
                turn.backend.engine.want_progress(migration, from);
                Outcome::Wait(Cause::Progress)
            }
            Undone::Stall(Stall::Missing(missing)) => {
                let table = missing.table;
                match turn.backend.engine.pull_early(turn.now, table, &missing) {
                    true => Outcome::Wait(Cause::Missing(table, missing.hashes)),
                    false => Outcome::Wait(Cause::Progress),
                }
            }
            Undone::Stall(Stall::NotOwned | Stall::Held) => {
                let first = command.key_positions(args.len(), args.get(1).copied()).next();
                match first.and_then(|at| turn.backend.engine.node().redirection(args[at])) {
                    Some(moved) => {
                        reply.error(moved);
                        Outcome::Replied
                    }
                    None => Outcome::Wait(Cause::Held),
                }
            }
        }
    }
}
