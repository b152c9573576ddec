//! Connections between servers and coordinators: the real links at both ends, on simulated TCP.
//!
//! A connection has two ways, one in each direction. A way keeps order and loses nothing until the
//! connection breaks; then everything in transit is lost, and one end may not be told. While a
//! server is cut off from the coordinator, bytes are sent again until they get through; the server's
//! system gives up earlier. A way accepts only so many bytes that the receiver has not read; the
//! next frame waits at its sender.

use crate::network::{self, UNACKNOWLEDGED_MAX};
use crate::servers;
use crate::settings::{Knob, RunSettings};
use crate::timeline::{PlannedEvent, RunTimeline};
use coordinator::LinkId;
use fastrand::Rng;
use handshake::{Accepting, Opening, SERVED_BY_COORDINATORS};
use links::{Link, LinkEffect, LinkEffects, LinkEvent};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::{ClusterId, Generation, Instant};
use wire::control::{FromCoordinator, ToCoordinator};
use wire::handshake::{NONCE_BYTES, Nonce};

/// Mixed into the seed for the separate random numbers of these connections.
const CONTROL: u64 = 0x636f_6e74_726f_6c21;

/// One connection in this many that break leaves one of its ends untold.
const HALF_OPEN_ONE_IN: u32 = 4;

/// Generation of all coordinators: their servers do not compare it.
const COORDINATOR: Generation = Generation(0);

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlEnd {
    Server,
    Coordinator,
}

impl ControlEnd {
    fn other(self) -> ControlEnd {
        match self {
            ControlEnd::Server => ControlEnd::Coordinator,
            ControlEnd::Coordinator => ControlEnd::Server,
        }
    }
}

/// Event at one end of a connection.
#[derive(Debug)]
pub(crate) enum ControlInput {
    /// The coordinator has accepted the connection.
    Accepted,
    /// The connection that the server has opened is established.
    Connected,
    /// No process listens at the coordinator's address.
    Refused,
    Bytes(Vec<u8>),
    /// The receiver has room for the frame that waits.
    Room,
    /// The connection has ended.
    Closed,
    /// The deadline of the link.
    Tick,
}

/// Result of an event at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlArrival {
    /// The link has handled it, and may have effects.
    Handled,
    /// The end was told that the connection has ended.
    Ended,
    /// The end does not exist any more.
    Nowhere,
}

/// One direction of a connection.
#[derive(Debug)]
struct ControlWay {
    /// Time at which the last byte arrives.
    last: Instant,
    /// Bytes that were sent and not read.
    unread_bytes: usize,
    /// Frame that waits for room.
    waiting: Option<Vec<u8>>,
}

/// Link at one end, in the memory of its process.
struct Endpoint<M> {
    link: Link<M>,
    effects: LinkEffects<M>,
    /// Time of the planned tick.
    ticks_at: Option<Instant>,
}

impl<M: DeserializeOwned> Endpoint<M> {
    fn new(link: Link<M>) -> Endpoint<M> {
        Endpoint { link, effects: LinkEffects::new(), ticks_at: None }
    }

    fn handle(&mut self, now: Instant, event: LinkEvent<'_>) {
        self.link.handle(now, event, &mut self.effects);
    }

    fn is_closing(&self) -> bool {
        matches!(self.effects.back(), Some(LinkEffect::Close(_)))
    }

    /// Takes the next frame to be written off the effects.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let is_frame = |effect: &LinkEffect<M>| matches!(effect, LinkEffect::Write(_));
        let at = self.effects.iter().position(is_frame)?;
        match self.effects.remove(at) {
            Some(LinkEffect::Write(frame)) => Some(frame),
            _ => None,
        }
    }

    /// Returns the time of the next tick, unless it is planned.
    fn tick_to_plan(&mut self) -> Option<Instant> {
        let deadline = self.link.next_deadline()?;
        if self.ticks_at.is_some_and(|at| at <= deadline) {
            return None;
        }
        self.ticks_at = Some(deadline);
        Some(deadline)
    }
}

struct ControlStream {
    /// Place of the server.
    place: usize,
    /// The ends that exist and were not told that the connection has ended.
    server: Option<Endpoint<FromCoordinator>>,
    coordinator: Option<Endpoint<ToCoordinator>>,
    to_server: ControlWay,
    to_coordinator: ControlWay,
    /// Set if bytes were lost, so that no later ones arrive.
    is_broken: bool,
    /// Frames that the server sends when its link is idle.
    outgoing: VecDeque<Vec<u8>>,
}

impl ControlStream {
    fn has(&self, end: ControlEnd) -> bool {
        match end {
            ControlEnd::Server => self.server.is_some(),
            ControlEnd::Coordinator => self.coordinator.is_some(),
        }
    }

    /// Returns the way from this end to the other one.
    fn way_from(&mut self, end: ControlEnd) -> &mut ControlWay {
        match end {
            ControlEnd::Server => &mut self.to_coordinator,
            ControlEnd::Coordinator => &mut self.to_server,
        }
    }

    fn handle(&mut self, now: Instant, end: ControlEnd, event: LinkEvent<'_>) {
        match (end, &mut self.server, &mut self.coordinator) {
            (ControlEnd::Server, Some(server), _) => server.handle(now, event),
            (ControlEnd::Coordinator, _, Some(coordinator)) => coordinator.handle(now, event),
            (ControlEnd::Server, None, _) | (ControlEnd::Coordinator, _, None) => {}
        }
    }

    /// Takes the next frame that an end is to write.
    fn next_frame(&mut self, now: Instant, end: ControlEnd) -> Option<Vec<u8>> {
        match end {
            ControlEnd::Coordinator => self.coordinator.as_mut()?.next_frame(),
            ControlEnd::Server => {
                let server = self.server.as_mut()?;
                if server.link.is_idle()
                    && let Some(frame) = self.outgoing.pop_front()
                {
                    server.handle(now, LinkEvent::Send(frame));
                }
                server.next_frame()
            }
        }
    }

    /// Returns whether the link at an end has decided to close.
    fn is_closing(&self, end: ControlEnd) -> bool {
        match end {
            ControlEnd::Server => self.server.as_ref().is_some_and(Endpoint::is_closing),
            ControlEnd::Coordinator => self.coordinator.as_ref().is_some_and(Endpoint::is_closing),
        }
    }

    fn remove(&mut self, end: ControlEnd) {
        match end {
            ControlEnd::Server => self.server = None,
            ControlEnd::Coordinator => self.coordinator = None,
        }
    }
}

/// The connections between all servers and coordinators of a run.
pub(crate) struct ControlStreams {
    rng: Rng,
    /// Set if the processes have a cluster key.
    has_keys: bool,
    /// Longest usual delay.
    usual: Duration,
    /// One transmission in this many takes up to [`network::LATE`]; 0: none.
    late_one_in: u32,
    /// Most unread bytes of a way.
    window_bytes: usize,
    connections: BTreeMap<LinkId, ControlStream>,
    /// Connections of proven servers that their coordinators have not closed.
    known: BTreeSet<LinkId>,
    /// For each place, the time until which it is cut off from the coordinator.
    cut_until: BTreeMap<usize, Instant>,
    /// Places whose machines have lost power.
    without_power: BTreeSet<usize>,
    /// The connection whose events happen at once, and these events.
    at_once: Option<(LinkId, VecDeque<(ControlEnd, ControlInput)>)>,
}

impl ControlStreams {
    pub(crate) fn draw(settings: &RunSettings) -> ControlStreams {
        let mut rng = Rng::with_seed(settings.seed ^ CONTROL);
        let late_one_in = [0, 2_000, 200][rng.usize(..3)];
        ControlStreams {
            late_one_in: if settings.has(Knob::MessageFaults) { late_one_in } else { 0 },
            usual: Duration::from_micros([50, 300, 2_000][rng.usize(..3)]),
            window_bytes: [4 << 10, 256 << 10, 4 << 20][rng.usize(..3)],
            has_keys: rng.bool(),
            rng,
            connections: BTreeMap::new(),
            known: BTreeSet::new(),
            cut_until: BTreeMap::new(),
            without_power: BTreeSet::new(),
            at_once: None,
        }
    }

    /// Ends all faults.
    pub(crate) fn repair(&mut self) {
        self.late_one_in = 0;
        self.usual = Duration::from_micros(50);
        self.cut_until.clear();
    }

    /// Cuts a server off from the coordinator until this time.
    pub(crate) fn cut(&mut self, place: usize, until: Instant) {
        self.cut_until.insert(place, until);
    }

    fn cut_end(&self, place: usize, now: Instant) -> Option<Instant> {
        self.cut_until.get(&place).copied().filter(|until| now < *until)
    }

    /// Opens a connection of the process at a place.
    pub(crate) fn open(
        &mut self,
        connection: LinkId,
        place: usize,
        generation: Generation,
        opening: Opening,
        timeline: &mut RunTimeline,
    ) {
        let now = timeline.now;
        let credentials = servers::credentials(generation, self.has_keys);
        let way = || ControlWay { last: now, unread_bytes: 0, waiting: None };
        let opened = ControlStream {
            place,
            server: Some(Endpoint::new(Link::open(now, credentials, opening))),
            coordinator: None,
            to_server: way(),
            to_coordinator: way(),
            is_broken: false,
            outgoing: VecDeque::new(),
        };
        self.connections.insert(connection, opened);
        self.without_power.remove(&place);
        // The link gives up before the first repetition of a lost request to connect.
        if self.cut_end(place, now).is_none() {
            let arrives = now + self.delay();
            self.plan(
                connection,
                ControlEnd::Coordinator,
                ControlInput::Accepted,
                arrives,
                timeline,
            );
        }
        self.plan_tick(connection, ControlEnd::Server, timeline);
    }

    /// Accepts a connection at the coordinator of a cluster, or refuses it if there is none.
    pub(crate) fn accept(
        &mut self,
        connection: LinkId,
        coordinator: Option<ClusterId>,
        timeline: &mut RunTimeline,
    ) {
        let (now, nonce) = (timeline.now, self.draw_nonce());
        let (back, credentials) =
            (now + self.delay(), servers::credentials(COORDINATOR, self.has_keys));
        let Some(it) = self.connections.get_mut(&connection) else { return };
        let input = match coordinator {
            None => ControlInput::Refused,
            Some(cluster) => {
                let purposes = SERVED_BY_COORDINATORS;
                let here = Accepting { purposes, cluster: Some(cluster), server: None };
                let link = Link::accept(now, &credentials, here, nonce);
                it.coordinator = Some(Endpoint::new(link));
                it.to_server.last = back;
                ControlInput::Connected
            }
        };
        self.plan(connection, ControlEnd::Server, input, back, timeline);
        self.plan_tick(connection, ControlEnd::Coordinator, timeline);
    }

    /// Handles an event at one end of a connection.
    pub(crate) fn arrive(
        &mut self,
        connection: LinkId,
        end: ControlEnd,
        input: ControlInput,
        timeline: &mut RunTimeline,
    ) -> ControlArrival {
        let (now, nonce) = (timeline.now, self.draw_nonce());
        let Some(it) = self.connections.get_mut(&connection).filter(|it| it.has(end)) else {
            return ControlArrival::Nowhere;
        };
        match input {
            ControlInput::Accepted => unreachable!("the end does not exist yet"),
            ControlInput::Connected => it.handle(now, end, LinkEvent::Connected(nonce)),
            ControlInput::Refused | ControlInput::Closed => {
                self.remove(connection, end);
                return ControlArrival::Ended;
            }
            ControlInput::Bytes(_) if it.is_broken => {}
            ControlInput::Bytes(bytes) => {
                let way = it.way_from(end.other());
                way.unread_bytes -= bytes.len();
                let has_room = way.waiting.is_some() && way.unread_bytes < self.window_bytes;
                it.handle(now, end, LinkEvent::Received(&bytes));
                if has_room {
                    let known = now + self.delay();
                    self.plan(connection, end.other(), ControlInput::Room, known, timeline);
                }
            }
            ControlInput::Room => {
                if let Some(frame) = it.way_from(end).waiting.take()
                    && self.transmit(connection, end, frame, timeline)
                {
                    self.handle(connection, end, LinkEvent::Written, timeline);
                }
            }
            ControlInput::Tick => self.tick(connection, end, now),
        }
        self.write(connection, end, timeline);
        ControlArrival::Handled
    }

    fn tick(&mut self, connection: LinkId, end: ControlEnd, now: Instant) {
        let Some(it) = self.connections.get_mut(&connection) else { return };
        let ticks_at = match end {
            ControlEnd::Server => it.server.as_mut().map(|it| &mut it.ticks_at),
            ControlEnd::Coordinator => it.coordinator.as_mut().map(|it| &mut it.ticks_at),
        };
        if ticks_at.and_then(|at| at.take_if(|at| *at <= now)).is_some() {
            it.handle(now, end, LinkEvent::Tick);
        }
    }

    /// Passes an event to the link at an end, and sends what it writes.
    pub(crate) fn handle(
        &mut self,
        connection: LinkId,
        end: ControlEnd,
        event: LinkEvent<'_>,
        timeline: &mut RunTimeline,
    ) {
        let now = timeline.now;
        let Some(it) = self.connections.get_mut(&connection) else { return };
        it.handle(now, end, event);
        self.write(connection, end, timeline);
        if self.connections.get(&connection).is_some_and(|it| it.is_closing(end)) {
            self.plan(connection, end, ControlInput::Room, now, timeline);
        }
    }

    /// Sends a frame of an accepted server when its link is idle.
    pub(crate) fn send_when_idle(
        &mut self,
        connection: LinkId,
        frame: Vec<u8>,
        timeline: &mut RunTimeline,
    ) {
        if let Some(it) = self.connections.get_mut(&connection) {
            it.outgoing.push_back(frame);
            self.write(connection, ControlEnd::Server, timeline);
        }
    }

    /// Returns the next effect of a server's link that is not about bytes.
    pub(crate) fn next_at_server(
        &mut self,
        connection: LinkId,
    ) -> Option<LinkEffect<FromCoordinator>> {
        self.connections.get_mut(&connection)?.server.as_mut()?.effects.pop_front()
    }

    /// Returns the next effect of a coordinator's link that is not about bytes.
    pub(crate) fn next_at_coordinator(
        &mut self,
        connection: LinkId,
    ) -> Option<LinkEffect<ToCoordinator>> {
        self.connections.get_mut(&connection)?.coordinator.as_mut()?.effects.pop_front()
    }

    /// Records that the coordinator knows the server at the other end of a connection.
    pub(crate) fn record_known(&mut self, connection: LinkId) {
        self.known.insert(connection);
    }

    /// Returns whether the coordinator knows the server at the other end of a connection.
    pub(crate) fn is_known(&self, connection: LinkId) -> bool {
        self.known.contains(&connection)
    }

    /// Records that the coordinator does not want to hear of a connection any more. Returns whether
    /// it knew the server.
    pub(crate) fn forget_known(&mut self, connection: LinkId) -> bool {
        self.known.remove(&connection)
    }

    /// Closes a connection at one end. What is in transit arrives at the other end first.
    pub(crate) fn close(
        &mut self,
        connection: LinkId,
        end: ControlEnd,
        timeline: &mut RunTimeline,
    ) {
        let (now, delay) = (timeline.now, self.delay());
        let Some(it) = self.connections.get_mut(&connection).filter(|it| it.has(end)) else {
            return;
        };
        let last = it.way_from(end).last;
        let (place, is_told) = (it.place, it.has(end.other()) && !it.is_broken);
        self.remove(connection, end);
        if is_told && let Some(sent) = self.passes(place, end, now) {
            let told = last.max(sent + delay);
            self.plan(connection, end.other(), ControlInput::Closed, told, timeline);
        }
    }

    /// Breaks a connection: everything in transit is lost.
    pub(crate) fn break_connection(&mut self, connection: LinkId, timeline: &mut RunTimeline) {
        let Some(it) = self.connections.get_mut(&connection) else { return };
        it.is_broken = true;
        let untold = (self.rng.u32(..HALF_OPEN_ONE_IN) == 0).then(|| match self.rng.bool() {
            true => ControlEnd::Server,
            false => ControlEnd::Coordinator,
        });
        for end in [ControlEnd::Server, ControlEnd::Coordinator] {
            let told = timeline.now + self.delay();
            if untold != Some(end) {
                self.plan(connection, end, ControlInput::Closed, told, timeline);
            }
        }
    }

    /// Ends the connections of a process that has died. If its machine has lost power, nobody is
    /// told.
    pub(crate) fn server_died(
        &mut self,
        place: usize,
        loses_power: bool,
        timeline: &mut RunTimeline,
    ) {
        if loses_power {
            self.without_power.insert(place);
        }
        for connection in self.of(|_, it| it.place == place && it.server.is_some()) {
            match loses_power {
                true => self.remove(connection, ControlEnd::Server),
                false => self.close(connection, ControlEnd::Server, timeline),
            }
        }
    }

    /// Ends the given connections of a coordinator that has ended.
    pub(crate) fn coordinator_ended(
        &mut self,
        is_its: impl Fn(LinkId) -> bool,
        timeline: &mut RunTimeline,
    ) {
        for connection in self.of(|number, it| it.coordinator.is_some() && is_its(number)) {
            self.close(connection, ControlEnd::Coordinator, timeline);
        }
    }

    /// Lets all events of a connection that is opened next happen at once, until
    /// [`ControlStreams::end_at_once`].
    pub(crate) fn begin_at_once(&mut self, connection: LinkId) {
        self.at_once = Some((connection, VecDeque::new()));
    }

    /// Returns the next event that happens at once.
    pub(crate) fn next_at_once(&mut self) -> Option<(ControlEnd, ControlInput)> {
        self.at_once.as_mut()?.1.pop_front()
    }

    pub(crate) fn end_at_once(&mut self) {
        self.at_once = None;
    }

    fn of(&self, is_chosen: impl Fn(LinkId, &ControlStream) -> bool) -> Vec<LinkId> {
        let chosen = self.connections.iter().filter(|(number, it)| is_chosen(**number, it));
        chosen.map(|(number, _)| *number).collect()
    }

    fn remove(&mut self, connection: LinkId, end: ControlEnd) {
        let Some(it) = self.connections.get_mut(&connection) else { return };
        it.remove(end);
        if it.server.is_none() && it.coordinator.is_none() {
            self.connections.remove(&connection);
        }
    }

    /// Sends the frames that the link at an end writes, and plans its next tick.
    fn write(&mut self, connection: LinkId, end: ControlEnd, timeline: &mut RunTimeline) {
        let now = timeline.now;
        loop {
            let it = self.connections.get_mut(&connection);
            let Some(frame) = it.and_then(|it| it.next_frame(now, end)) else { break };
            if !self.transmit(connection, end, frame, timeline) {
                break;
            }
            if let Some(it) = self.connections.get_mut(&connection) {
                it.handle(now, end, LinkEvent::Written);
            }
        }
        self.plan_tick(connection, end, timeline);
    }

    fn plan_tick(&mut self, connection: LinkId, end: ControlEnd, timeline: &mut RunTimeline) {
        let Some(it) = self.connections.get_mut(&connection) else { return };
        let at = match end {
            ControlEnd::Server => it.server.as_mut().and_then(Endpoint::tick_to_plan),
            ControlEnd::Coordinator => it.coordinator.as_mut().and_then(Endpoint::tick_to_plan),
        };
        if let Some(at) = at {
            let at = at.max(timeline.now);
            timeline.plan_at(at, PlannedEvent::Control(connection, end, ControlInput::Tick));
        }
    }

    /// Sends a frame from one end to the other. Returns `false` if it waits for room.
    fn transmit(
        &mut self,
        connection: LinkId,
        from: ControlEnd,
        frame: Vec<u8>,
        timeline: &mut RunTimeline,
    ) -> bool {
        let (now, to) = (timeline.now, from.other());
        let delay = self.delay();
        let is_late = self.late_one_in > 0 && self.rng.u32(..self.late_one_in) == 0;
        let late = if is_late { network::LATE.mul_f64(self.rng.f64()) } else { Duration::ZERO };
        let Some(it) = self.connections.get_mut(&connection) else { return true };
        let (place, is_lost) = (it.place, it.is_broken || !it.has(to));
        if !is_lost && it.way_from(from).unread_bytes >= self.window_bytes {
            it.way_from(from).waiting = Some(frame);
            return false;
        }
        let Some(sent) = self.passes(place, from, now) else {
            let given_up = now + UNACKNOWLEDGED_MAX;
            self.connections.entry(connection).and_modify(|it| it.is_broken = true);
            self.plan(connection, from, ControlInput::Closed, given_up, timeline);
            return true;
        };
        if is_lost {
            // The system at the other end does not know the connection, and answers that if it runs.
            if from == ControlEnd::Server || !self.without_power.contains(&place) {
                self.plan(connection, from, ControlInput::Closed, sent + delay, timeline);
            }
            return true;
        }
        let pieces = network::in_pieces(frame, &mut self.rng);
        let Some(it) = self.connections.get_mut(&connection) else { return true };
        let way = it.way_from(from);
        way.last = way.last.max(sent + delay + late);
        way.unread_bytes += pieces.iter().map(Vec::len).sum::<usize>();
        let arrives = way.last;
        for piece in pieces {
            self.plan(connection, to, ControlInput::Bytes(piece), arrives, timeline);
        }
        true
    }

    /// Returns when a transmission that begins now gets through a cut. `None`: the sender's system
    /// gives up before.
    fn passes(&self, place: usize, from: ControlEnd, now: Instant) -> Option<Instant> {
        let sent = network::gets_through(now, self.cut_end(place, now));
        // A coordinator's system waits for longer than any cut lasts.
        let gives_up = from == ControlEnd::Server && sent > now + UNACKNOWLEDGED_MAX;
        (!gives_up).then_some(sent)
    }

    fn plan(
        &mut self,
        connection: LinkId,
        end: ControlEnd,
        input: ControlInput,
        at: Instant,
        timeline: &mut RunTimeline,
    ) {
        match &mut self.at_once {
            Some((chosen, events)) if *chosen == connection => events.push_back((end, input)),
            _ => timeline.plan_at(at, PlannedEvent::Control(connection, end, input)),
        }
    }

    fn delay(&mut self) -> Duration {
        network::draw_delay(self.usual, &mut self.rng)
    }

    fn draw_nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_BYTES];
        self.rng.fill(&mut nonce);
        Nonce::new(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;
    use types::ServerId;
    use wire::handshake::ConnectionPurpose;

    const CLUSTER: ClusterId = ClusterId(1);
    const CONNECTION: LinkId = LinkId(1);
    const PLACE: usize = 0;

    /// A server and a coordinator with a connection between them, in a network without faults.
    struct LinkedPair {
        streams: ControlStreams,
        timeline: RunTimeline,
        /// Ends that were told that the connection has ended, with the times.
        ended: Vec<(ControlEnd, Instant)>,
        /// Messages that arrived at the coordinator.
        arrived: usize,
        /// Set while the coordinator's process is paused.
        is_paused: bool,
    }

    impl LinkedPair {
        fn connected() -> LinkedPair {
            LinkedPair::connected_with(1)
        }

        fn connected_with(seed: u64) -> LinkedPair {
            let mut streams = ControlStreams::draw(&RunSettings::new(seed));
            streams.repair();
            streams.window_bytes = 4 << 10;
            let timeline = RunTimeline::new(Rng::with_seed(1), Trace::new(false));
            let (ended, arrived, is_paused) = (Vec::new(), 0, false);
            let mut pair = LinkedPair { streams, timeline, ended, arrived, is_paused };
            let opening = Opening {
                purpose: ConnectionPurpose::Control,
                cluster: Some(CLUSTER),
                server: Some(ServerId(1)),
                expected: None,
            };
            let LinkedPair { streams, timeline, .. } = &mut pair;
            streams.open(CONNECTION, PLACE, Generation(1), opening, timeline);
            pair.run(Duration::from_millis(10));
            pair
        }

        /// Lets both links work for a while.
        fn run(&mut self, time: Duration) {
            let until = self.timeline.now + time;
            self.timeline.plan_at(until, PlannedEvent::Rest);
            while let Some(event) = self.timeline.next_event() {
                match event {
                    PlannedEvent::Rest => return,
                    PlannedEvent::Control(_, ControlEnd::Coordinator, ControlInput::Accepted) => {
                        self.streams.accept(CONNECTION, Some(CLUSTER), &mut self.timeline);
                    }
                    PlannedEvent::Control(_, ControlEnd::Coordinator, input) if self.is_paused => {
                        let later =
                            PlannedEvent::Control(CONNECTION, ControlEnd::Coordinator, input);
                        self.timeline.plan_in(Duration::from_secs(20), later);
                    }
                    PlannedEvent::Control(_, end, input) => self.arrive(end, input),
                    _ => unreachable!("nothing else is planned"),
                }
            }
        }

        fn arrive(&mut self, end: ControlEnd, input: ControlInput) {
            match self.streams.arrive(CONNECTION, end, input, &mut self.timeline) {
                ControlArrival::Ended => self.ended.push((end, self.timeline.now)),
                ControlArrival::Nowhere => {}
                ControlArrival::Handled => self.execute(end),
            }
        }

        fn execute(&mut self, end: ControlEnd) {
            loop {
                let (is_proven, is_closed) = match end {
                    ControlEnd::Server => match self.streams.next_at_server(CONNECTION) {
                        None => return,
                        Some(effect) => (
                            matches!(effect, LinkEffect::Proven(_)),
                            matches!(effect, LinkEffect::Close(_)),
                        ),
                    },
                    ControlEnd::Coordinator => match self.streams.next_at_coordinator(CONNECTION) {
                        None => return,
                        Some(effect) => {
                            let is_message = matches!(effect, LinkEffect::Deliver(_));
                            self.arrived += usize::from(is_message);
                            (
                                matches!(effect, LinkEffect::Proven(_)),
                                matches!(effect, LinkEffect::Close(_)),
                            )
                        }
                    },
                };
                if is_closed {
                    self.ended.push((end, self.timeline.now));
                    return self.streams.close(CONNECTION, end, &mut self.timeline);
                }
                let LinkedPair { streams, timeline, .. } = self;
                if is_proven {
                    streams.handle(CONNECTION, end, LinkEvent::Accepted, timeline);
                }
                streams.handle(CONNECTION, end, LinkEvent::Delivered, timeline);
            }
        }

        /// Sends a message of the server.
        fn send(&mut self) {
            let pong =
                ToCoordinator::Liveness(wire::control::LivenessUpdate::Pong { is_stalled: false });
            let frame = links::encoded(&pong).unwrap();
            self.streams.send_when_idle(CONNECTION, frame, &mut self.timeline);
        }

        fn millis(&self) -> u128 {
            self.timeline.now.since(Instant(0)).as_millis()
        }
    }

    #[test]
    fn messages_arrive_and_an_idle_connection_stays() {
        let mut pair = LinkedPair::connected();
        (0..100).for_each(|_| pair.send());
        pair.run(Duration::from_secs(30));
        assert_eq!((pair.arrived, &pair.ended[..]), (100, &[][..]));
    }

    #[test]
    fn bytes_that_a_cut_has_delayed_arrive_after_it() {
        let mut pair = LinkedPair::connected();
        pair.streams.cut(PLACE, pair.timeline.now + Duration::from_millis(900));
        pair.send();
        pair.run(Duration::from_millis(890));
        assert_eq!(pair.arrived, 0);
        pair.run(Duration::from_secs(1));
        assert_eq!((pair.arrived, &pair.ended[..]), (1, &[][..]));
    }

    #[test]
    fn a_long_cut_ends_the_servers_end_after_two_seconds_and_the_coordinators_by_silence() {
        let mut pair = LinkedPair::connected();
        let begun = pair.millis();
        pair.streams.cut(PLACE, pair.timeline.now + Duration::from_secs(60));
        pair.send();
        pair.run(Duration::from_secs(30));
        let ended = pair
            .ended
            .iter()
            .map(|(end, at)| (*end, (at.since(Instant(0)).as_millis() - begun) / 1_000));
        let ended: Vec<_> = ended.collect();
        assert_eq!(ended, [(ControlEnd::Server, 2), (ControlEnd::Coordinator, 4)]);
        assert_eq!(pair.arrived, 0);
    }

    #[test]
    fn a_broken_connection_delivers_nothing_and_ends_at_both_ends_at_last() {
        for seed in 0..20 {
            let mut pair = LinkedPair::connected_with(seed);
            pair.send();
            pair.streams.break_connection(CONNECTION, &mut pair.timeline);
            pair.run(Duration::from_secs(30));
            assert_eq!((pair.arrived, pair.ended.len()), (0, 2));
        }
    }

    #[test]
    fn a_server_whose_coordinator_reads_nothing_gives_up() {
        let mut pair = LinkedPair::connected();
        pair.is_paused = true;
        (0..1_000).for_each(|_| pair.send());
        pair.run(Duration::from_secs(10));
        assert_eq!(pair.ended.len(), 1, "{:?}", pair.ended);
        assert_eq!(pair.ended[0].0, ControlEnd::Server);
    }

    #[test]
    fn nobody_is_told_of_a_machine_without_power() {
        let mut pair = LinkedPair::connected();
        let begun = pair.millis();
        pair.streams.server_died(PLACE, true, &mut pair.timeline);
        pair.run(Duration::from_secs(4));
        assert_eq!(pair.ended, []);
        pair.run(Duration::from_secs(4));
        assert_eq!(pair.ended.len(), 1, "after {begun}");
    }
}
