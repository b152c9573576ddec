//! Repetitions of exactly-once requests, after a broken connection and after their reply.

use super::ClientLoad;
use crate::clients::JobState;
use crate::cluster::SimulatedCluster;
use crate::collections;
use crate::commands::{self, ReplyMeaning};
use crate::timeline::PlannedEvent;
use crate::workload::ClientJob;
use resp::Reply;
use std::time::Duration;

/// Time after which a request whose outcome is unknown is given up.
const REPETITION_BUDGET: Duration = Duration::from_secs(3);

impl ClientLoad {
    /// Makes a change an exactly-once request, if the run has them. Neither a transaction nor a command
    /// that may wait can be one.
    pub(super) fn begin_once(&mut self, slot: usize, job: ClientJob) {
        let (Some(once), ClientJob::Operation(register, action)) = (&mut self.once, job) else {
            return;
        };
        let may_be = collections::may_be_once(&self.workload.registers[register], action);
        if !action.is_read() && may_be {
            once.begin(slot, self.workload.registers[register].value_bytes_max());
        }
    }

    /// Returns the repetition of an answered request that begins in a free slot, if one was drawn.
    pub(super) fn next_repetition(
        &mut self,
        cluster: &SimulatedCluster,
        slot: usize,
    ) -> Option<(ClientJob, JobState)> {
        if !cluster.timeline.is_working() {
            return None;
        }
        let request = self.once.as_mut()?.draw_repetition(slot)?;
        let is_lost = cluster.losses.is_excused(request.register);
        let begun = (ClientJob::Repetition(request.register), JobState::Repetition(request));
        (!is_lost).then_some(begun)
    }

    /// Records that the register may have the state of an earlier moment.
    pub(crate) fn lose(&mut self, register: usize) {
        self.clients.lose(register);
        if let Some(once) = &mut self.once {
            once.forget(register);
        }
    }

    /// Returns whether the outcome of the slot's request is unknown although it can be repeated.
    pub(super) fn is_ambiguous(&self, slot: usize) -> bool {
        self.once.as_ref().is_some_and(|once| once.is_ambiguous(slot))
    }

    /// Repeats a request whose connection has broken, after a pause. Returns `false` if it is given
    /// up: it is not an exactly-once request, or its data may be lost.
    pub(super) fn repeat_later(
        &mut self,
        cluster: &mut SimulatedCluster,
        slot: usize,
        register: usize,
    ) -> bool {
        // A lost request is executed again by its repetition, and the history would have it once.
        let is_lost = cluster.losses.is_excused(register) || self.clients.was_lost(register);
        let is_repeated = self.once.as_mut().is_some_and(|once| once.break_off(slot));
        let ends = self.clients.job(slot).since + REPETITION_BUDGET * cluster.profile.slowness;
        if !is_repeated || is_lost || cluster.timeline.now >= ends {
            return false;
        }
        let pause = cluster.timeline.micros(100..20_000);
        cluster.timeline.plan_in(pause, PlannedEvent::Retry(slot));
        true
    }

    /// Ends the slot's exactly-once request, if it has one.
    pub(super) fn end_once(&mut self, slot: usize, register: usize, reply: Option<&Reply<'_>>) {
        if !self.once.as_ref().is_some_and(|once| once.is_open(slot)) {
            return;
        }
        if self.is_ambiguous(slot) {
            self.clients.forget_place(slot);
        }
        let mut command = Vec::new();
        if let ClientJob::Operation(_, action) = self.clients.job(slot).job {
            commands::write(&self.workload.registers[register], action, &mut command);
        }
        let executed = reply.map(|reply| (&command[..], commands::PrintedReply(reply).to_string()));
        if let Some(once) = &mut self.once {
            once.end(slot, register, executed);
        }
    }

    /// Handles the reply to a repetition.
    pub(super) fn end_repetition(
        &mut self,
        cluster: &mut SimulatedCluster,
        slot: usize,
        register: usize,
        reply: &Reply<'_>,
    ) {
        let said = match reply {
            Reply::Error(text) => commands::read_error(text),
            _ => ReplyMeaning::Nonsense,
        };
        match said {
            ReplyMeaning::Moved(to) => {
                self.record_redirection(cluster, slot, register, to);
                match self.clients.hop(slot) {
                    true => self.send_request(cluster, slot),
                    false => self.refuse(cluster, slot),
                }
            }
            ReplyMeaning::Later | ReplyMeaning::Refused => self.refuse(cluster, slot),
            _ => {
                let open = self.clients.finish(cluster.timeline.now, slot);
                let JobState::Repetition(request) = open.state else {
                    unreachable!("a repetition has its request")
                };
                let reply = commands::PrintedReply(reply).to_string();
                let checked = self.once.as_ref().map(|once| once.check(slot, &request, &reply));
                if let Some(Err(failure)) = checked
                    && !cluster.losses.is_excused(register)
                {
                    cluster.timeline.fail(failure);
                }
            }
        }
    }
}
