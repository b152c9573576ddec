//! Messages between servers, and between servers and the coordinator: sending, changes by planted
//! bugs, and delivery.

use super::SimulatedCluster;
use crate::agreement;
use crate::planted::{self, Planted};
use crate::reactor::Inbound;
use crate::redundancy;
use crate::streams::TrafficContext;
use crate::timeline::{PlannedEvent, ReactorPlace};
use node::reactor_for;
use node::{Mode, Route, Sending, To};
use protocols::migration::peer;
use protocols::replication::timing::SILENT_AFTER;
use std::time::Duration;
use types::{ServerId, UnixMillis};
use wire::control::{
    ClusterMap, FromCoordinator, JoinReply, LogUpdate, MigrationRequest, MigrationUpdate,
    RecoveryRequest, ToCoordinator,
};
use wire::peer::PeerMessage;

/// Time after which a planted bug treats a pull as answered; the real code waits as long.
const PULL_TIMEOUT: Duration = Duration::from_millis(250);

/// Message on its way from one server to another.
struct Transfer {
    from: usize,
    to: usize,
    message: PeerMessage,
    payload: Vec<u8>,
    /// Delays of all copies that arrive.
    copies: Vec<Duration>,
}

/// Messages between servers.
impl SimulatedCluster {
    /// Sends a message of a reactor to another server.
    pub(crate) fn send(&mut self, from: ReactorPlace, sending: Sending) {
        let Sending { to, is_priority, mut message, mut payload } = sending;
        if let PeerMessage::Flip(flip) = &message {
            let source = &self.servers[from.server];
            self.monitor.clocks.record_flip(source, flip, self.timeline.now);
        }
        self.tamper_sent(&mut message, &mut payload);
        self.monitor.check_requests(from, &message, &mut self.timeline);
        if let PeerMessage::FlipAnswer { migration, accepted: true } = &message {
            self.moves.accepted.insert(*migration);
        }
        if let Some(replica) = redundancy::reported_loss(&message) {
            self.faults.record_report(replica, self.timeline.now);
        }
        let SimulatedCluster {
            timeline, network, streams, servers, faults, losses, profile, ..
        } = self;
        if let Some(streams) = streams {
            if let Some(place) = streams.receiver(to, servers) {
                faults.may_strike_sides([from.server, place], &message, profile, timeline);
            }
            let sending = Sending { to, is_priority, message, payload };
            let mut context = TrafficContext { servers, network, losses, timeline };
            return streams.pass_to_bus(from, sending, &mut context);
        }
        let Some(to) = self.receiver(to) else { return };
        let now = self.timeline.now;
        let is_partitioned = self.network.is_partitioned(from.server, to.server, now);
        let copies = self.network.copies(&mut self.timeline.rng, &message);
        let copies = if is_partitioned { Vec::new() } else { copies };
        let transfer = Transfer { from: from.server, to: to.server, message, payload, copies };
        self.trace_transfer(&transfer);
        self.record_silence(&transfer);
        let places = [transfer.from, transfer.to];
        let SimulatedCluster { faults, profile, timeline, .. } = self;
        faults.may_strike_sides(places, &transfer.message, profile, timeline);
        let sender = self.servers[from.server].id;
        let route = Route(u64::from(sender.0) << 16 | from.reactor as u64);
        if self.profile.settings.planted == Some(Planted::LostReplyTakenForEmpty)
            && transfer.copies.is_empty()
            && let Some(message) = planted::emptied(&transfer.message)
        {
            let inbound = Inbound::peer(sender, route, message, Vec::new());
            return self.timeline.plan_in(PULL_TIMEOUT, PlannedEvent::Arrive(to, inbound));
        }
        for delay in transfer.copies {
            let (message, payload) = (transfer.message.clone(), transfer.payload.clone());
            let inbound = Inbound::peer(sender, route, message, payload);
            self.timeline.plan_in(delay, PlannedEvent::Arrive(to, inbound));
        }
    }

    /// Returns the reactor at which a message arrives, if there is one.
    fn receiver(&mut self, to: To) -> Option<ReactorPlace> {
        match to {
            // A connection ends with the process at its other end.
            To::Back(route) => {
                let server = self.servers.place(ServerId((route.0 >> 16) as u32))?;
                Some(ReactorPlace { server, reactor: (route.0 & 0xffff) as usize })
            }
            To::Server(id) => {
                let server = self.place_at_address(id)?;
                let reactors = self.servers[server].reactors.len();
                Some(ReactorPlace { server, reactor: self.timeline.rng.usize(..reactors) })
            }
        }
    }

    /// Returns the place at which a message to a server arrives. A sender that connects sends
    /// before it knows the peer's identity, so a process at a dead server's address may get the
    /// message.
    fn place_at_address(&mut self, id: ServerId) -> Option<usize> {
        let lives = self.servers.place(id);
        if lives.is_some() || self.timeline.rng.bool() {
            return lives;
        }
        let place = *self.losses.dead.get(&id)?;
        (!self.servers[place].is_dead).then_some(place)
    }

    fn trace_transfer(&mut self, transfer: &Transfer) {
        let Transfer { from, to, message, payload, copies } = transfer;
        let (one, other) = (self.servers[*from].id, self.servers[*to].id);
        let mut bytes = Vec::new();
        // The product drops and logs such a message; the simulator treats it as a failure.
        if let Err(error) = wire::frame::encode(message, payload.len(), &mut bytes) {
            panic!("{error}: {}", peer(message));
        }
        bytes.extend(copies.iter().flat_map(|copy| copy.as_nanos().to_le_bytes()));
        let line = format_args!("{one} → {other} {} {copies:?}", peer(message));
        self.timeline.note_bytes(&[*from as u64, *to as u64], &bytes, line);
    }

    /// Records that a lost or late message may make a backup look silent.
    fn record_silence(&mut self, transfer: &Transfer) {
        let is_of_log =
            matches!(transfer.message, PeerMessage::Append(_) | PeerMessage::Appended(_));
        if is_of_log && transfer.copies.iter().all(|delay| *delay > SILENT_AFTER / 2) {
            self.losses.silent.extend([transfer.from, transfer.to]);
        }
    }

    /// Applies the planted bugs that change a message between servers.
    fn tamper_sent(&mut self, message: &mut PeerMessage, payload: &mut Vec<u8>) {
        match self.profile.settings.planted {
            Some(Planted::FloorNotRaised) => planted::without_floor(message),
            Some(Planted::ClockGoesBack) => planted::without_clock(message),
            Some(Planted::PulledExpireLate) => planted::expire_late(message, payload),
            Some(Planted::FieldLifetimeNotMoved) => {
                planted::without_field_lifetimes(message, payload);
            }
            Some(Planted::BusyReadAsAbsent) if self.timeline.rng.u32(..4) == 0 => {
                planted::without_records(message, payload);
            }
            Some(Planted::AbsentNotRemembered) => planted::without_absent(message),
            _ => {}
        }
    }
}

/// Messages between servers and the coordinator.
impl SimulatedCluster {
    /// Sends a message of a server to its coordinator.
    pub(crate) fn send_up(&mut self, place: usize, message: impl Into<ToCoordinator>) {
        let message = message.into();
        let from = self.servers[place].id;
        self.timeline.note(format_args!("{from} → c {message}"));
        if let ToCoordinator::Migration(MigrationUpdate::Flipped { migration }) = message {
            self.moves.accepted.insert(migration);
        }
        if let (
            Some(Planted::ThawedWithoutAsking),
            ToCoordinator::Migration(MigrationUpdate::FlipUnanswered { migration }),
        ) = (self.profile.settings.planted, &message)
        {
            let outcome =
                MigrationRequest::Outcome { migration: *migration, accepted: false }.into();
            let at = ReactorPlace { server: place, reactor: 0 };
            let arrival = PlannedEvent::Arrive(at, Inbound::Control(Box::new(outcome)));
            return self.timeline.plan_in(Duration::ZERO, arrival);
        }
        if let ToCoordinator::Log(LogUpdate::Fenced { log, replicas, .. }) = &message
            && self.profile.mode() != Some(Mode::Memory)
            && let Err(failure) = self.disks.disk(place).check_reported(*log, replicas)
        {
            self.timeline.fail(failure);
        }
        if agreement::is_changed_by_server(&message) {
            self.faults.may_strike_near(place, &self.profile, &mut self.timeline);
        }
        let link = &self.servers[place].link;
        if let Some(connection) = link.connection.filter(|_| link.is_connected) {
            let frame = links::encoded(&message).expect("every message fits into a frame");
            self.control.send_when_idle(connection, frame, &mut self.timeline);
        }
    }

    /// Delivers a message of a coordinator to a server.
    pub(super) fn arrive_down(&mut self, place: usize, message: FromCoordinator) {
        if let FromCoordinator::Join(JoinReply::Rejected { is_fenced: true, .. }) = message {
            // Another server serves its ranges, so the process ends.
            return self.timeline.plan_in(Duration::ZERO, PlannedEvent::Fenced(place));
        }
        if let FromCoordinator::Mark(mark) = message {
            return self.disks.save_mark(place, mark);
        }
        let Some(message) = self.tamper_down(place, message) else { return };
        if let FromCoordinator::Recovery(RecoveryRequest::Recover(part)) = &message {
            self.monitor.clocks.record_recovery(part);
        }
        if agreement::is_changed_by_coordinator(&message) {
            self.faults.may_strike_near(place, &self.profile, &mut self.timeline);
        }
        let reactors = self.servers[place].reactors.len() as u16;
        let reactor = usize::from(reactor_for(&message, reactors).0);
        let inbound = Inbound::Control(Box::new(message));
        let at = ReactorPlace { server: place, reactor };
        self.servers.deliver(at, inbound, &mut self.timeline);
    }

    /// Applies the planted bugs that change a join.
    pub(super) fn tamper_sent_up(&self, mut message: ToCoordinator) -> ToCoordinator {
        if let ToCoordinator::Join(join) = &mut message {
            match self.profile.settings.planted {
                Some(Planted::OldStoreTrusted) => join.mark = None,
                Some(Planted::ForeignDiskAdmitted) => join.disk = None,
                _ => {}
            }
        }
        message
    }

    /// Applies the planted bugs that change a message from the coordinator.
    fn tamper_down(&mut self, place: usize, message: FromCoordinator) -> Option<FromCoordinator> {
        match (self.profile.settings.planted, message) {
            (
                Some(Planted::NeverNotKept),
                FromCoordinator::Migration(MigrationRequest::Decide { migration }),
            ) if !self.moves.accepted.contains(&migration) => {
                self.send_up(place, MigrationUpdate::Decided { migration, accepted: false });
                None
            }
            (
                Some(Planted::RecoveredWithoutClock),
                FromCoordinator::Recovery(RecoveryRequest::Recover(mut part)),
            ) => {
                part.clock_floor = UnixMillis(0);
                Some(RecoveryRequest::Recover(part).into())
            }
            (
                Some(Planted::RecoveredClockAhead),
                FromCoordinator::Recovery(RecoveryRequest::Recover(mut part)),
            ) => {
                part.clock_floor.0 += 1_000;
                Some(RecoveryRequest::Recover(part).into())
            }
            (
                Some(Planted::ForgottenBeforeCut),
                FromCoordinator::Migration(MigrationRequest::Forget { migration, .. }),
            ) => Some(MigrationRequest::Forget { migration, remaining: Vec::new() }.into()),
            (Some(Planted::StaleMapAccepted), FromCoordinator::Map(map)) => {
                self.maps.push(map);
                let newest = &self.maps[self.maps.len() - 1];
                let taken = if self.timeline.rng.u32(..10) == 0 {
                    &self.maps[self.timeline.rng.usize(..self.maps.len())]
                } else {
                    newest
                };
                Some(FromCoordinator::Map(ClusterMap { version: newest.version, ..taken.clone() }))
            }
            (_, message) => Some(message),
        }
    }
}
