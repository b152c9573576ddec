//! Links between servers and coordinators: the machines above the connections of
//! [`crate::control_streams`].

use super::SimulatedCluster;
use crate::control_streams::{ControlArrival, ControlEnd, ControlInput};
use crate::servers::{self, SavedIdentity};
use crate::timeline::PlannedEvent;
use coordinator::{Caller, CoordinatorEvent, Effect, LinkId};
use handshake::{Opening, ProvenPeer};
use links::{AttemptOutcome, LinkEffect, LinkEvent};
use node::{
    ClusterMembership, MembershipContext, MembershipEffect, MembershipEffects, MembershipEnd,
    MembershipEvent,
};
use serde::Serialize;
use std::time::Duration;
use types::{ClusterId, Generation, Instant, ServerId};
use wire::control::{Ask, FromCoordinator, Join, ToCoordinator};
use wire::handshake::ConnectionPurpose;

/// Request number of the simulator's own requests to the coordinator.
const OWN_REQUEST: u64 = u64::MAX;

/// Process that joins and has no number yet.
pub(super) struct StartingProcess {
    pub(super) connection: LinkId,
    place: usize,
    pub(super) membership: ClusterMembership,
    /// Messages of the coordinator that the process handles when it has its number.
    pub(super) delivered: Vec<FromCoordinator>,
}

/// Returns a message as a frame.
fn encoded(message: &impl Serialize) -> Vec<u8> {
    links::encoded(message).expect("every message fits into a frame")
}

impl SimulatedCluster {
    /// Carries out the effects of a coordinator. Returns whether it has answered a request of the
    /// simulator.
    pub(super) fn apply_effects(&mut self, effects: Vec<Effect>) -> bool {
        let mut is_answered = false;
        for effect in effects {
            match effect {
                Effect::Send { message: FromCoordinator::Answer { request, answer }, .. }
                    if request == OWN_REQUEST =>
                {
                    is_answered = true;
                    self.moves.record_answer(answer, &mut self.timeline);
                }
                Effect::Send { connection, message } => {
                    self.timeline.note(format_args!("c → {connection} {message}"));
                    let event = LinkEvent::Send(encoded(&message));
                    self.on_link(connection, ControlEnd::Coordinator, event);
                }
                Effect::Commit(_) => unreachable!("the store has it"),
                Effect::Close { connection } => {
                    self.control.forget_known(connection);
                    self.on_link(connection, ControlEnd::Coordinator, LinkEvent::Finish);
                }
            }
        }
        is_answered
    }

    /// Handles an event at one end of a connection to a coordinator. A paused process handles it
    /// later.
    pub(crate) fn on_control(&mut self, connection: LinkId, end: ControlEnd, input: ControlInput) {
        let until = match end {
            ControlEnd::Coordinator => self.coordinators.paused_until(connection),
            ControlEnd::Server => self
                .servers
                .place_linked_by(connection)
                .map_or(Instant(0), |place| self.servers[place].paused_until),
        };
        if until > self.timeline.now {
            // A timer counts only if nothing has arrived.
            let is_tick = matches!(input, ControlInput::Tick);
            let at = until + Duration::from_nanos(u64::from(is_tick));
            return self.timeline.plan_at(at, PlannedEvent::Control(connection, end, input));
        }
        if let ControlInput::Accepted = input {
            let number = self.coordinators.at_end_of(connection);
            let cluster = number.and_then(|number| self.coordinators.cluster_of(number));
            return self.control.accept(connection, cluster, &mut self.timeline);
        }
        match (self.control.arrive(connection, end, input, &mut self.timeline), end) {
            (ControlArrival::Nowhere, _) => {}
            (ControlArrival::Ended, ControlEnd::Server) => self.server_link_ended(connection, None),
            (ControlArrival::Ended, ControlEnd::Coordinator) => {
                self.coordinator_link_ended(connection);
            }
            (ControlArrival::Handled, ControlEnd::Server) => self.run_server_link(connection),
            (ControlArrival::Handled, ControlEnd::Coordinator) => {
                self.run_coordinator_link(connection);
            }
        }
    }

    /// Executes the effects of a server's link.
    fn run_server_link(&mut self, connection: LinkId) {
        while let Some(effect) = self.control.next_at_server(connection) {
            let event = match effect {
                LinkEffect::Write(_) => unreachable!("the connection writes frames"),
                LinkEffect::Proven(_) => MembershipEvent::Connected,
                LinkEffect::Deliver(message) => MembershipEvent::Received(message),
                LinkEffect::Close(end) => {
                    self.timeline.note(format_args!("{connection} ends at its server: {end}"));
                    self.control.close(connection, ControlEnd::Server, &mut self.timeline);
                    return self.server_link_ended(connection, None);
                }
            };
            if let Err(end) = self.advance_membership(connection, event) {
                self.timeline.note(format_args!("{connection} ends at its server: {end}"));
                self.control.close(connection, ControlEnd::Server, &mut self.timeline);
                return self.server_link_ended(connection, Some(end));
            }
            self.on_link(connection, ControlEnd::Server, LinkEvent::Delivered);
        }
    }

    /// Passes an event to the membership of the process with this connection, and executes its
    /// effects.
    ///
    /// # Errors
    /// The reason for closing the connection.
    fn advance_membership(
        &mut self,
        connection: LinkId,
        event: MembershipEvent,
    ) -> Result<(), MembershipEnd> {
        let (now, true_wall) = (self.timeline.now, self.timeline.wall());
        let mut effects = MembershipEffects::new();
        let starting = self.starting.as_mut().filter(|it| it.connection == connection);
        let place = match starting {
            Some(starting) => {
                let place = starting.place;
                let before = self.servers.get(place);
                let wall = before.map_or(true_wall, |before| before.wall(true_wall));
                let mut context = MembershipContext { now, wall, liveness: None };
                starting.membership.handle(&mut context, event, &mut effects);
                place
            }
            None => {
                let Some(place) = self.servers.place_linked_by(connection) else { return Ok(()) };
                let server = &mut self.servers[place];
                let wall = server.wall(true_wall);
                let liveness = Some(&mut server.liveness);
                let mut context = MembershipContext { now, wall, liveness };
                server.link.membership.handle(&mut context, event, &mut effects);
                place
            }
        };
        for effect in effects {
            match effect {
                MembershipEffect::Send(message) => {
                    let message = self.tamper_sent_up(message);
                    self.timeline.note(format_args!("{connection} → c {message}"));
                    self.on_link(
                        connection,
                        ControlEnd::Server,
                        LinkEvent::Send(encoded(&message)),
                    );
                }
                MembershipEffect::Accepted => {
                    if self.servers.place_linked_by(connection).is_some() {
                        self.servers[place].set_linked(true);
                    }
                    self.on_link(connection, ControlEnd::Server, LinkEvent::Accepted);
                }
                MembershipEffect::Deliver(message) => {
                    match self.starting.as_mut().filter(|it| it.connection == connection) {
                        Some(starting) => starting.delivered.push(message),
                        None => self.arrive_down(place, message),
                    }
                }
                MembershipEffect::Close(end) => return Err(end),
            }
        }
        Ok(())
    }

    /// Executes the effects of a coordinator's link.
    fn run_coordinator_link(&mut self, connection: LinkId) {
        while let Some(effect) = self.control.next_at_coordinator(connection) {
            match effect {
                LinkEffect::Write(_) => unreachable!("the connection writes frames"),
                LinkEffect::Proven(peer) => {
                    self.on_link(connection, ControlEnd::Coordinator, LinkEvent::Accepted);
                    self.control.record_known(connection);
                    let caller = caller(&peer);
                    self.coordinate(connection, CoordinatorEvent::Opened { connection, caller });
                }
                LinkEffect::Deliver(message) => {
                    if self.control.is_known(connection) {
                        let event = CoordinatorEvent::Received { connection, message };
                        self.coordinate(connection, event);
                    }
                }
                LinkEffect::Close(end) => {
                    self.timeline.note(format_args!("{connection} ends at its coordinator: {end}"));
                    self.control.close(connection, ControlEnd::Coordinator, &mut self.timeline);
                    return self.coordinator_link_ended(connection);
                }
            }
            self.on_link(connection, ControlEnd::Coordinator, LinkEvent::Delivered);
        }
    }

    fn on_link(&mut self, connection: LinkId, end: ControlEnd, event: LinkEvent<'_>) {
        self.control.handle(connection, end, event, &mut self.timeline);
    }

    /// Handles the end of a server's connection: its process connects again after a pause.
    fn server_link_ended(&mut self, connection: LinkId, end: Option<MembershipEnd>) {
        if self.starting.take_if(|it| it.connection == connection).is_some() {
            return;
        }
        let Some(place) = self.servers.place_linked_by(connection) else { return };
        let server = &mut self.servers[place];
        let outcome = match end {
            Some(MembershipEnd::Refused) => AttemptOutcome::Refused,
            _ if server.link.is_connected => AttemptOutcome::Joined,
            _ => AttemptOutcome::Failed,
        };
        self.timeline.note(format_args!("the link of {} has ended", server.id));
        server.link.connection = None;
        server.set_linked(false);
        let pause = server.link.backoff.handle(outcome).expect("a server has joined before");
        self.timeline.plan_in(pause, PlannedEvent::Rejoin(place));
    }

    fn coordinator_link_ended(&mut self, connection: LinkId) {
        if self.control.forget_known(connection) {
            self.coordinate(connection, CoordinatorEvent::Closed { connection });
        }
    }

    /// Connects a server to the newest coordinator again.
    pub(crate) fn rejoin(&mut self, place: usize) {
        let server = &mut self.servers[place];
        if server.link.connection.is_some() {
            return;
        }
        let connection = self.coordinators.connect();
        server.link.connection = Some(connection);
        let (number, generation) = (server.link.membership.number(), server.generation);
        self.open_link(place, connection, number, generation);
    }

    fn open_link(
        &mut self,
        place: usize,
        connection: LinkId,
        number: Option<(ClusterId, ServerId)>,
        generation: Generation,
    ) {
        let (cluster, server) = number.unzip();
        let purpose = ConnectionPurpose::Control;
        let opening = Opening { purpose, cluster, server, expected: None };
        self.control.open(connection, place, generation, opening, &mut self.timeline);
    }

    /// Lets a process connect and join at once. Returns it with its first connection, if the
    /// coordinator welcomes it.
    pub(super) fn join_at_once(&mut self, place: usize, join: Join) -> Option<StartingProcess> {
        let connection = self.coordinators.connect();
        let number = join.rejoin;
        let membership = ClusterMembership::new(join, None);
        self.starting =
            Some(StartingProcess { connection, place, membership, delivered: Vec::new() });
        self.control.begin_at_once(connection);
        // The number of a process's first connection is unique.
        self.open_link(place, connection, number, Generation(connection.0));
        loop {
            while let Some((end, input)) = self.control.next_at_once() {
                self.on_control(connection, end, input);
            }
            // The welcome waits for a commit.
            let is_welcomed = self.starting.as_ref().is_none_or(|it| it.membership.is_welcomed());
            if is_welcomed || !self.commit_now(connection) {
                break;
            }
        }
        self.control.end_at_once();
        let welcomed = self.starting.take().filter(|it| it.membership.is_welcomed());
        if welcomed.is_none() {
            // The coordinator may wait for other servers first; this process does not.
            self.control.close(connection, ControlEnd::Server, &mut self.timeline);
        }
        welcomed
    }

    /// Returns the first message of a process.
    pub(super) fn join_message(
        &self,
        place: usize,
        rejoin: Option<(ClusterId, ServerId)>,
        saved: Option<SavedIdentity>,
    ) -> Join {
        let (replicas, rack) = (self.profile.replicas(), self.profile.size.rack(place));
        servers::join(place, rejoin, replicas, rack, saved.as_ref())
    }

    /// Sends a question of the simulator itself to the leading coordinator, as an operator without
    /// network delay. Returns `false` if there is no coordinator, or if the answer waits.
    pub(crate) fn ask(&mut self, ask: Ask) -> bool {
        let Some(connection) = self.coordinators.operator_connection() else { return false };
        let event = CoordinatorEvent::Opened { connection, caller: Caller::Operator };
        if self.coordinators.record_operator(connection) {
            self.coordinate(connection, event);
        }
        let message = ToCoordinator::Ask { request: OWN_REQUEST, ask };
        self.coordinate(connection, CoordinatorEvent::Received { connection, message })
    }

    /// Breaks a server's link to a coordinator, usually with a cut for a while.
    pub(crate) fn break_link(&mut self, place: usize) {
        let Some(connection) = self.servers[place].link.connection else { return };
        self.timeline.note(format_args!("the link of {} breaks", self.servers[place].id));
        self.control.break_connection(connection, &mut self.timeline);
        let is_long = self.timeline.rng.u32(..4) == 0;
        let away = self.draw_outage(if is_long { 2_500_000 } else { 50_000 });
        if is_long || self.timeline.rng.bool() {
            self.control.cut(place, self.timeline.now + away);
        }
    }
}

fn caller(peer: &ProvenPeer) -> Caller {
    let party = &peer.party;
    Caller::Server { number: party.cluster.zip(party.server), generation: party.generation }
}
