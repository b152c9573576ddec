//! Events, ends and successions of coordinators.

use super::SimulatedCluster;
use crate::coordinators::CoordinatorOutput;
use crate::failure::Rule;
use crate::timeline::PlannedEvent;
use coordinator::{CoordinatorEvent, Effect, LinkId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use types::Instant;
use wire::control::{FromCoordinator, JoinReply};
use wire::frame::{self, Header};

/// Time until the simulator tries again to start a coordinator, in microseconds.
const AGAIN: std::ops::Range<u64> = 10_000..200_000;

/// Returns a message to or from a coordinator as its receiver decodes it.
fn carried<M: Serialize + DeserializeOwned>(message: &M) -> M {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).expect("every message fits into a frame");
    let (header, body) = bytes.split_first_chunk().expect("a frame has a header");
    let header = Header::parse(header).expect("the header was just made");
    header.message(body).expect("the receiver accepts every message")
}

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
    pub(super) fn coordinate(
        &mut self,
        connection: LinkId,
        event: CoordinatorEvent,
    ) -> Vec<Effect> {
        let event = match event {
            CoordinatorEvent::Received { connection, message } => {
                CoordinatorEvent::Received { connection, message: carried(&message) }
            }
            event => event,
        };
        match self.coordinators.at_end_of(connection) {
            Some(number) => self.handle_at(number, event),
            None => Vec::new(),
        }
    }

    fn handle_at(&mut self, number: u32, event: CoordinatorEvent) -> Vec<Effect> {
        let output = self.coordinators.handle(number, event, &mut self.timeline);
        self.take_effects(number, output)
    }

    /// Returns the effects of a coordinator, and ends it if it has stopped.
    fn take_effects(&mut self, number: u32, output: CoordinatorOutput) -> Vec<Effect> {
        if output.has_stopped {
            self.end_coordinator(number);
        }
        if self.coordinators.is_foreign(number)
            && let Some(admitted) = output.effects.iter().find(|effect| admits_server(effect))
        {
            let text = format!("a coordinator of another cluster sends {admitted}");
            self.timeline.fail(Rule::ForeignRefused.broken(text));
        }
        let arrives = |effect| match effect {
            Effect::Send { connection, message } => {
                Effect::Send { connection, message: carried(&message) }
            }
            effect => effect,
        };
        output.effects.into_iter().map(arrives).collect()
    }

    /// Handles the end of a commit.
    pub(crate) fn finish_commit(&mut self, number: u32, commit: u64) {
        let output = self.coordinators.finish_commit(number, commit, &mut self.timeline);
        let effects = self.take_effects(number, output);
        self.apply_effects(effects);
    }

    /// Lets the coordinator at the other end of a connection commit everything now. Returns the
    /// effects that waited for it.
    pub(super) fn commit_now(&mut self, connection: LinkId) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(number) = self.coordinators.at_end_of(connection) else { return effects };
        let now = self.timeline.now;
        while let Some(commit) = self.coordinators.commit_in_flight(number, now) {
            let output = self.coordinators.finish_commit(number, commit, &mut self.timeline);
            effects.extend(self.take_effects(number, output));
        }
        effects
    }

    /// Handles the deadline of a coordinator.
    pub(crate) fn tick_coordinator(&mut self, number: u32) {
        if self.coordinators.is_due(number, &mut self.timeline) {
            let effects = self.handle_at(number, CoordinatorEvent::Tick);
            self.apply_effects(effects);
        }
    }

    /// Ends a coordinator. Servers notice this after they have received all its messages.
    pub(super) fn end_coordinator(&mut self, number: u32) {
        self.coordinators.remove(number);
        for (place, server) in self.servers.iter().enumerate() {
            let Some(connection) = server.link.connection else { continue };
            if self.coordinators.at_end_of(connection) == Some(number) {
                let delay = self.network.delay(&mut self.timeline.rng);
                let at = server.link.down.max(self.timeline.now) + delay;
                self.timeline.plan_at(at, PlannedEvent::Sever(place, connection));
            }
        }
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
            let effects = self.handle_at(number, CoordinatorEvent::Tick);
            return self.apply_effects(effects);
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
        let effects = self.handle_at(self.coordinators.newest(), CoordinatorEvent::Tick);
        self.apply_effects(effects);
        for (place, server) in self.servers.iter().enumerate() {
            // Some servers notice soon, others when the old coordinator has been silent for too
            // long.
            let later = self.timeline.micros(100..1_000_000);
            if let Some(connection) = server.link.connection {
                self.timeline.plan_in(later, PlannedEvent::Sever(place, connection));
            }
        }
    }

    /// Ends all coordinators that no longer lead, since the run comes to its end.
    pub(crate) fn end_former_coordinators(&mut self) {
        self.coordinators.former().into_iter().for_each(|number| self.end_coordinator(number));
    }
}
