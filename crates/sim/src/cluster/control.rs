//! Events, ends and successions of coordinators.

use super::SimulatedCluster;
use crate::coordinators::CoordinatorOutput;
use crate::failure::Rule;
use crate::timeline::PlannedEvent;
use coordinator::{CoordinatorEvent, Effect, LinkId};
use types::Instant;
use wire::control::{FromCoordinator, JoinReply, LogUpdate, ToCoordinator};

/// Time until the simulator tries again to start a coordinator, in microseconds.
const AGAIN: std::ops::Range<u64> = 10_000..200_000;

/// Returns whether an effect treats a process as a member of the coordinator's cluster.
fn admits_server(effect: &Effect) -> bool {
    let refuses = |message: &FromCoordinator| match message {
        FromCoordinator::Join(JoinReply::Rejected { is_fenced, .. }) => !is_fenced,
        FromCoordinator::Answer { .. } => true,
        _ => false,
    };
    matches!(effect, Effect::Send { message, .. } if !refuses(message))
}

impl SimulatedCluster {
    /// Passes an event to the coordinator at the other end of a connection, if it still runs.
    /// Returns whether it has answered a request of the simulator.
    pub(super) fn coordinate(&mut self, connection: LinkId, event: CoordinatorEvent) -> bool {
        if let CoordinatorEvent::Received {
            message: ToCoordinator::Log(LogUpdate::Fenced { log, .. }),
            ..
        } = event
        {
            let sender = self.servers.iter().find(|it| it.link.connection == Some(connection));
            sender.into_iter().for_each(|it| self.monitor.clocks.record_report(log, it.id));
        }
        match self.coordinators.at_end_of(connection) {
            Some(number) => self.handle_at(number, event),
            None => false,
        }
    }

    fn handle_at(&mut self, number: u32, event: CoordinatorEvent) -> bool {
        let output = self.coordinators.handle(number, event, &mut self.timeline);
        self.take_effects(number, output)
    }

    /// Carries out the effects of a coordinator, and ends it if it has stopped.
    fn take_effects(&mut self, number: u32, output: CoordinatorOutput) -> bool {
        if self.coordinators.is_foreign(number)
            && let Some(admitted) = output.effects.iter().find(|effect| admits_server(effect))
        {
            let text = format!("a coordinator of another cluster sends {admitted}");
            self.timeline.fail(Rule::ForeignRefused.broken(text));
        }
        let is_answered = self.apply_effects(output.effects);
        if output.has_stopped {
            self.end_coordinator(number);
        }
        is_answered
    }

    /// Handles the end of a commit.
    pub(crate) fn finish_commit(&mut self, number: u32, commit: u64) {
        let output = self.coordinators.finish_commit(number, commit, &mut self.timeline);
        self.take_effects(number, output);
    }

    /// Lets the coordinator at the other end of a connection commit everything now. Returns whether
    /// there was something to commit.
    pub(super) fn commit_now(&mut self, connection: LinkId) -> bool {
        let Some(number) = self.coordinators.at_end_of(connection) else { return false };
        let now = self.timeline.now;
        let mut has_committed = false;
        while let Some(commit) = self.coordinators.commit_in_flight(number, now) {
            has_committed = true;
            self.finish_commit(number, commit);
        }
        has_committed
    }

    /// Handles the deadline of a coordinator.
    pub(crate) fn tick_coordinator(&mut self, number: u32) {
        if self.coordinators.is_due(number, &mut self.timeline) {
            self.handle_at(number, CoordinatorEvent::Tick);
        }
    }

    /// Ends a coordinator. Servers notice this after they have received all its messages.
    pub(super) fn end_coordinator(&mut self, number: u32) {
        self.coordinators.remove(number);
        let SimulatedCluster { coordinators, control, timeline, .. } = self;
        let is_its = |connection| coordinators.at_end_of(connection) == Some(number);
        control.coordinator_ended(is_its, timeline);
        if self.coordinators.current().is_none() {
            let away = self.timeline.micros(100..50_000);
            self.timeline.plan_in(away, PlannedEvent::Lead);
        }
    }

    /// Lets another coordinator open the store, unless one leads.
    pub(crate) fn lead(&mut self) {
        if self.coordinators.current().is_some() {
            return;
        }
        if self.timeline.now < self.faults.no_coordinator_until {
            return self.timeline.plan_at(self.faults.no_coordinator_until, PlannedEvent::Lead);
        }
        let is_open = self.coordinators.open(self.timeline.now);
        let number = self.coordinators.newest();
        let word = if is_open { "leads" } else { "cannot open" };
        self.timeline.note(format_args!("coordinator {number} {word}"));
        if is_open {
            self.monitor.clocks.forget_reports();
            self.handle_at(number, CoordinatorEvent::Tick);
            return;
        }
        let again = self.timeline.micros(AGAIN);
        self.timeline.plan_in(again, PlannedEvent::Lead);
    }

    /// Ends the coordinator; another one continues with its store after a while, but not before
    /// `until`.
    pub(crate) fn restart_coordinator(&mut self, until: Instant) {
        self.faults.no_coordinator_until = self.faults.no_coordinator_until.max(until);
        let Some(number) = self.coordinators.current() else { return };
        self.timeline.note(format_args!("coordinator {number} is stopped"));
        self.end_coordinator(number);
    }

    /// Pauses a coordinator without its knowledge, and lets another one take over.
    pub(crate) fn take_over(&mut self) {
        let Some(number) = self.coordinators.current() else { return };
        let until = self.timeline.now + self.timeline.micros(1_000..400_000);
        self.timeline.note(format_args!(
            "coordinator {number} pauses until {until}, and another takes over"
        ));
        if !self.coordinators.open(self.timeline.now) {
            return;
        }
        self.coordinators.pause(number, until);
        self.handle_at(self.coordinators.newest(), CoordinatorEvent::Tick);
        for server in self.servers.iter() {
            // Some servers notice soon, others when the old coordinator has been silent for too
            // long.
            let later = self.timeline.micros(100..1_000_000);
            if let Some(connection) = server.link.connection {
                self.timeline.plan_in(later, PlannedEvent::Sever(connection));
            }
        }
    }

    /// Ends all coordinators that no longer lead, since the run comes to its end.
    pub(crate) fn end_former_coordinators(&mut self) {
        self.coordinators.former().into_iter().for_each(|number| self.end_coordinator(number));
    }
}
