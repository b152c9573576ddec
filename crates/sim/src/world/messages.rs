//! Messages between servers, and between servers and the coordinator: sending, changes by planted
//! bugs, and delivery.

use super::deaths::{is_telling, is_telling_down, is_telling_up};
use super::{Next, World};
use crate::planted::{self, Planted};
use crate::reactor::{Inbound, Outbound};
use coordinator::{ConnectionId, Event};
use node::reactor_for;
use node::{Route, Sending, To};
use protocols::migration::{peer, to_coordinator};
use protocols::replication::timing::SILENT_AFTER;
use std::time::Duration;
use types::{ServerId, UnixMillis};
use wire::control::{
    ClockQuestion, ClockReading, ClusterMap, FromCoordinator, HistoryMark, ToCoordinator,
};
use wire::peer::PeerMessage;

impl World {
    pub(super) fn leave(&mut self, place: usize, reactor: usize, outbound: Outbound) {
        match outbound {
            Outbound::Peer(sending) => self.send(place, reactor, sending),
            Outbound::Control(message) => self.send_up(place, message),
            Outbound::Bytes(connection, bytes) => self.send_reply(connection, bytes),
            Outbound::Disk(job) => {
                // Now and then a disk is slow.
                let is_busy = self.rng.u32(..20) == 0;
                let delay = self.micros(20..if is_busy { 100_000 } else { 2_000 });
                self.plan_in(delay, Next::Disk(place, reactor, Box::new(job)));
            }
        }
    }

    fn send(&mut self, place: usize, reactor: usize, sending: Sending) {
        let Sending { to, mut message, mut payload, .. } = sending;
        let (to, to_reactor) = match to {
            // A connection ends with the process at its other end.
            To::Back(route) => match self.place(ServerId((route.0 >> 16) as u32)) {
                Some(to) => (to, (route.0 & 0xffff) as usize),
                None => return,
            },
            To::Server(id) => match self.place_called(id) {
                Some(to) => (to, self.rng.usize(..self.servers[to].reactors.len())),
                None => return,
            },
        };
        if let PeerMessage::Flip(flip) = &message {
            self.note_clock_step(place, flip.migration, flip.range);
        }
        self.tamper_sent(&mut message, &mut payload);
        self.check_asked((place, reactor), &message);
        if let PeerMessage::FlipAnswer { migration, accepted: true } = &message {
            self.accepted.insert(*migration);
        }
        let from = self.servers[place].id;
        let is_cut = self.now < self.cuts[place][to];
        let copies = self.weather.copies(&mut self.rng, &message);
        let copies = if is_cut { Vec::new() } else { copies };
        self.note_message((place, to), &message, &payload, &copies);
        if is_of_log(&message) && copies.iter().all(|delay| *delay > SILENT_AFTER / 2) {
            self.losses.silent.extend([place, to]);
        }
        if is_telling(&message) {
            self.tempt([place, to]);
        }
        let route = Route(u64::from(from.0) << 16 | reactor as u64);
        if self.settings.planted == Some(Planted::LostReplyTakenForEmpty)
            && copies.is_empty()
            && let Some(message) = planted::emptied(&message)
        {
            let inbound = Inbound::peer(from, route, message, Vec::new());
            return self.plan_in(PULL_TIMEOUT, Next::Arrive(to, to_reactor, inbound));
        }
        for delay in copies {
            let (message, payload) = (message.clone(), payload.clone());
            let inbound = Inbound::peer(from, route, message, payload);
            self.plan_in(delay, Next::Arrive(to, to_reactor, inbound));
        }
    }

    fn note_message(
        &mut self,
        (from, to): (usize, usize),
        message: &PeerMessage,
        payload: &[u8],
        copies: &[Duration],
    ) {
        let (one, other) = (self.servers[from].id, self.servers[to].id);
        let mut bytes = Vec::new();
        // The product drops and logs such a message; the simulator treats it as a failure.
        if let Err(error) = wire::frame::encode(message, payload.len(), &mut bytes) {
            panic!("{error}: {}", peer(message));
        }
        bytes.extend(copies.iter().flat_map(|copy| copy.as_nanos().to_le_bytes()));
        let line = format_args!("{one} → {other} {} {copies:?}", peer(message));
        self.trace.note_bytes(self.now, &[from as u64, to as u64], &bytes, line);
    }

    /// Returns the place at which a message to a server arrives. A sender that connects sends
    /// before it knows the peer's identity, so a process at a dead server's address may get the
    /// message.
    fn place_called(&mut self, id: ServerId) -> Option<usize> {
        let lives = self.place(id);
        if lives.is_some() || self.rng.bool() {
            return lives;
        }
        let (_, place) = self.losses.dead.iter().find(|(dead, _)| **dead == id)?;
        (!self.servers[*place].is_dead).then_some(*place)
    }

    /// Applies the planted bugs that change a message between servers.
    fn tamper_sent(&mut self, message: &mut PeerMessage, payload: &mut Vec<u8>) {
        match self.settings.planted {
            Some(Planted::FloorNotRaised) => planted::without_floor(message),
            Some(Planted::ClockGoesBack) => planted::without_clock(message),
            Some(Planted::BusyReadAsAbsent) if self.rng.u32(..4) == 0 => {
                planted::without_records(message, payload);
            }
            Some(Planted::AbsentNotRemembered) => planted::without_absence(message),
            _ => {}
        }
    }

    fn send_up(&mut self, place: usize, message: ToCoordinator) {
        let from = self.servers[place].id;
        self.trace.note(self.now, format_args!("{from} → c {}", to_coordinator(&message)));
        if let ToCoordinator::Flipped { migration } = message {
            self.accepted.insert(migration);
        }
        if let (Some(Planted::ThawedWithoutAsking), ToCoordinator::FlipUnanswered { migration }) =
            (self.settings.planted, &message)
        {
            let message = FromCoordinator::Outcome { migration: *migration, accepted: false };
            return self.plan_in(
                Duration::ZERO,
                Next::Arrive(place, 0, Inbound::Control(Box::new(message))),
            );
        }
        if is_telling_up(&message) {
            self.tempt_any(place);
        }
        let delay = self.weather.delay(&mut self.rng);
        let link = &mut self.servers[place].link;
        let Some(connection) = link.connection else { return };
        link.up = link.up.max(self.now + delay);
        let at = link.up;
        self.plan_at(at, Next::Up(connection, Box::new(message)));
    }

    pub(super) fn arrive_up(&mut self, connection: ConnectionId, message: ToCoordinator) {
        let until = self.leaders.paused_until(connection);
        if until > self.now {
            return self.plan_at(until, Next::Up(connection, Box::new(message)));
        }
        let is_up = self.servers.iter().any(|server| server.link.connection == Some(connection));
        if is_up || self.losses.still_carries(connection) {
            let effects = self.coordinate(connection, Event::Received { connection, message });
            self.carry_out(effects);
        }
    }

    pub(super) fn arrive_down(
        &mut self,
        place: usize,
        connection: ConnectionId,
        message: FromCoordinator,
    ) {
        if self.servers[place].link.connection != Some(connection) {
            return;
        }
        if let FromCoordinator::Mark(mark) = message {
            return self.note_mark(place, mark);
        }
        if message == FromCoordinator::Ping {
            return self.answer_ping(place, connection);
        }
        if let FromCoordinator::Clock(question) = message {
            self.show_clock(place, question);
        }
        if let FromCoordinator::Rejected { is_fenced: true, .. } = message {
            // Another server serves the ranges of this one, so the process ends.
            return self.die(place, false);
        }
        let Some(message) = self.tamper_down(place, message) else { return };
        if is_telling_down(&message) {
            self.tempt_any(place);
        }
        let reactors = self.servers[place].reactors.len() as u16;
        let reactor = usize::from(reactor_for(&message, reactors).0);
        let inbound = Inbound::Control(Box::new(message));
        self.servers[place].reactors[reactor].inbox.push_back(inbound);
        self.wake(place, reactor);
    }

    /// Saves the mark of a transaction that the coordinator reports to a server.
    fn note_mark(&mut self, place: usize, mark: HistoryMark) {
        if let Some(saved) = &mut self.saved[place]
            && saved.mark.is_none_or(|known| mark.is_after(&known))
        {
            saved.mark = Some(mark);
        }
    }

    /// Answers a ping as the link's own thread does, unless the process is paused.
    fn answer_ping(&mut self, place: usize, connection: ConnectionId) {
        let server = &mut self.servers[place];
        let until = server.paused_until;
        if until > self.now {
            let ping = Box::new(FromCoordinator::Ping);
            return self.plan_at(until, Next::Down(place, connection, ping));
        }
        let is_stalled = server.pulse.is_stalled();
        self.send_up(place, ToCoordinator::Pong { is_stalled });
    }

    /// Answers a clock question as the link's own thread does, unless the process is paused.
    fn show_clock(&mut self, place: usize, question: ClockQuestion) {
        if self.servers[place].paused_until > self.now {
            // The coordinator asks again.
            return;
        }
        let (now, wall) = (self.now, self.wall_at(place));
        let expiry = self.servers[place].pulse.clock(now);
        let reading = ClockReading { asked: question.asked, wall, expiry };
        self.send_up(place, ToCoordinator::Clock(reading));
    }

    /// Applies the planted bugs that change a message from the coordinator.
    fn tamper_down(&mut self, place: usize, message: FromCoordinator) -> Option<FromCoordinator> {
        match (self.settings.planted, message) {
            (Some(Planted::NeverNotKept), FromCoordinator::Decide { migration })
                if !self.accepted.contains(&migration) =>
            {
                self.send_up(place, ToCoordinator::Decided { migration, accepted: false });
                None
            }
            (Some(Planted::RecoveredWithoutClock), FromCoordinator::Recover(mut part)) => {
                part.clock_floor = UnixMillis(0);
                Some(FromCoordinator::Recover(part))
            }
            (Some(Planted::ForgottenBeforeCut), FromCoordinator::Forget { migration, .. }) => {
                Some(FromCoordinator::Forget { migration, remaining: Vec::new() })
            }
            (Some(Planted::StaleMapAccepted), FromCoordinator::Map(map)) => {
                self.maps.push(map);
                let newest = &self.maps[self.maps.len() - 1];
                let taken = if self.rng.u32(..10) == 0 {
                    &self.maps[self.rng.usize(..self.maps.len())]
                } else {
                    newest
                };
                Some(FromCoordinator::Map(ClusterMap { version: newest.version, ..taken.clone() }))
            }
            (_, message) => Some(message),
        }
    }
}

/// Time after which a planted bug treats a pull as answered; the real code waits as long.
const PULL_TIMEOUT: Duration = Duration::from_millis(250);

/// Returns whether a master hears by this message from a backup, or the backup from the master. One
/// that is lost or late may make the backup look silent.
fn is_of_log(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Append(_) | PeerMessage::Appended(_))
}
