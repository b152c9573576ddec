//! Streams between servers: simulated TCP.
//!
//! A stream has two *ways*, one in each direction. A way keeps order and loses nothing until the
//! stream breaks; then everything in transit may be lost. A cut delays bytes until a
//! retransmission after its end gets through, or ends the stream if that takes too long. A way
//! accepts only so many bytes that the receiver has not read; the rest waits at the sender.

mod traffic;

pub(crate) use traffic::TrafficContext;

use crate::losses::Losses;
use crate::network::{self, Network, UNACKNOWLEDGED_MAX};
use crate::reactor_bus::{StreamInput, other_end};
use crate::settings::{Knob, RunSettings};
use crate::timeline::{PlannedEvent, ReactorPlace, RunTimeline};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{ConnectionId, Instant};

/// One run in this many has streams between its servers.
const STREAMS_ONE_IN: u32 = 4;

/// Mixed into the seed for the separate random numbers of streams.
const STREAMS: u64 = 0x7374_7265_616d_7321;

/// Denominator of all rates.
const WHOLE: u32 = 100_000;

/// Fault rates of streams.
#[derive(Clone, Copy, Debug, Default)]
struct StreamFaultRates {
    /// Transmissions at which the stream breaks.
    broken: u32,
    /// Transmissions that take up to [`network::LATE`].
    late: u32,
    /// Connections that are refused.
    refused: u32,
}

/// One direction of a stream.
#[derive(Debug)]
struct Way {
    /// Reactor at the receiving end.
    to: ReactorPlace,
    /// Time at which the last byte arrives.
    last: Instant,
    /// Bytes that were sent and not read.
    unread_bytes: usize,
    /// Set if the sender has more bytes.
    is_blocked: bool,
    /// Set if bytes were lost, so that no later ones arrive.
    has_gap: bool,
}

/// Ways in which the process at one end of a stream dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// Its system ends the streams after what was sent.
    Closed,
    /// Its system resets the streams: what was in transit is lost.
    Reset,
    /// Its machine has lost power: nobody is told.
    Silent,
}

/// Properties of a run's connections between servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusProfile {
    /// Set if the servers have a cluster key.
    pub(crate) has_keys: bool,
    /// Unsent bytes of a connection above which a server drops messages.
    pub(crate) backlog_max: usize,
}

/// The streams between all servers of a run.
#[derive(Debug)]
pub(crate) struct Streams {
    rates: StreamFaultRates,
    /// Longest usual delay.
    usual: Duration,
    /// Most unread bytes of a way.
    window_bytes: usize,
    /// Connections of the servers in this run.
    pub(crate) bus: BusProfile,
    rng: Rng,
    /// The ways by their receiving ends.
    ways: BTreeMap<ConnectionId, Way>,
}

impl Streams {
    /// Draws whether servers exchange bytes, and the faults of their connections. `None`: whole
    /// messages travel.
    pub(crate) fn draw(settings: &RunSettings) -> Option<Streams> {
        let mut rng = Rng::with_seed(settings.seed ^ STREAMS);
        let is_drawn = rng.u32(..STREAMS_ONE_IN) == 0 && settings.has(Knob::Streams);
        if !is_drawn && !settings.has_streams {
            return None;
        }
        let worst = [0, 20, 200, 2_000][rng.usize(..4)];
        let mut rate = |worst: u32| if worst == 0 { 0 } else { rng.u32(..worst) };
        let drawn = StreamFaultRates {
            broken: rate(worst),
            late: rate(worst * 5),
            refused: rate(worst * 20),
        };
        let rates = if settings.has(Knob::MessageFaults) { drawn } else { Default::default() };
        Some(Streams {
            rates,
            usual: Duration::from_micros([50, 300, 2_000][rng.usize(..3)]),
            window_bytes: [16 << 10, 256 << 10, 4 << 20][rng.usize(..3)],
            bus: BusProfile {
                has_keys: rng.bool(),
                backlog_max: [16 << 10, 256 << 10, 64 << 20][rng.usize(..3)],
            },
            rng,
            ways: BTreeMap::new(),
        })
    }

    /// Ends all faults.
    pub(crate) fn repair(&mut self) {
        self.rates = StreamFaultRates::default();
        self.usual = Duration::from_micros(50);
    }

    /// Draws the delay of a transmission.
    fn delay(&mut self) -> Duration {
        network::draw_delay(self.usual, &mut self.rng)
    }

    fn happens(&mut self, rate: u32) -> bool {
        rate > 0 && self.rng.u32(..WHOLE) < rate
    }

    /// Connects a reactor to the process at a place; `reactors` is the number of its reactors, or
    /// `None` if there is no process.
    fn connect(
        &mut self,
        from: ReactorPlace,
        connection: ConnectionId,
        place: usize,
        reactors: Option<usize>,
        network: &Network,
        timeline: &mut RunTimeline,
    ) {
        let now = timeline.now;
        let way = |to, last| Way { to, last, unread_bytes: 0, is_blocked: false, has_gap: false };
        self.ways.insert(connection, way(from, now));
        // The bus gives up before the first repetition of a lost request to connect.
        let is_cut = network.is_partitioned(from.server, place, now)
            || network.is_partitioned(place, from.server, now);
        if is_cut {
            return;
        }
        let (there, back) = (now + self.delay(), self.delay());
        let is_refused = self.happens(self.rates.refused);
        let Some(reactors) = reactors.filter(|_| !is_refused) else {
            let refused = PlannedEvent::Stream(from, connection, StreamInput::Refused);
            return timeline.plan_at(there + back, refused);
        };
        let to = ReactorPlace { server: place, reactor: self.rng.usize(..reactors) };
        let other = other_end(connection);
        self.ways.insert(other, way(to, there));
        self.ways.insert(connection, way(from, there + back));
        timeline.plan_at(there, PlannedEvent::Stream(to, other, StreamInput::Accepted));
        let connected = PlannedEvent::Stream(from, connection, StreamInput::Connected);
        timeline.plan_at(there + back, connected);
    }

    /// Returns the place of the process at the other end of a stream.
    fn place_at_other_end(&self, end: ConnectionId) -> Option<usize> {
        self.ways.get(&other_end(end)).map(|way| way.to.server)
    }

    /// Returns how many bytes an end can send now. If the way is full, the sender is told when
    /// there is room again.
    fn room(&mut self, from: ConnectionId, wanted: usize) -> usize {
        let Some(way) = self.ways.get_mut(&other_end(from)) else { return wanted };
        let room = self.window_bytes.saturating_sub(way.unread_bytes);
        way.is_blocked |= room < wanted;
        room.min(wanted)
    }

    /// Sends bytes from one end to the other.
    fn send(
        &mut self,
        from: ConnectionId,
        bytes: Vec<u8>,
        network: &Network,
        losses: &mut Losses,
        timeline: &mut RunTimeline,
    ) {
        let now = timeline.now;
        let to = other_end(from);
        let Some(sender) = self.ways.get(&from).map(|back| back.to) else { return };
        let Some((receiver, has_gap)) = self.ways.get(&to).map(|way| (way.to, way.has_gap)) else {
            // The other end is gone without this one's knowledge. The system there says so, or
            // none does.
            let known = self.delay().max(UNACKNOWLEDGED_MAX.mul_f64(self.rng.f64()));
            return self.end_at(from, now + known, timeline);
        };
        if has_gap {
            return;
        }
        if self.happens(self.rates.broken) {
            losses.silent.extend([sender.server, receiver.server]);
            timeline.note(format_args!("the stream of {from} breaks"));
            return self.break_stream(from, timeline);
        }
        let Some(sent) = self.passes(sender, receiver, network, now) else {
            // The other end notices when it sends something, or never.
            losses.silent.extend([sender.server, receiver.server]);
            self.ways.entry(to).and_modify(|way| way.has_gap = true);
            return self.end_at(from, now + UNACKNOWLEDGED_MAX, timeline);
        };
        let is_late = self.happens(self.rates.late);
        let late = if is_late { network::LATE.mul_f64(self.rng.f64()) } else { Duration::ZERO };
        if is_late || sent > now {
            losses.silent.extend([sender.server, receiver.server]);
        }
        let arrives = sent + self.delay() + late;
        let pieces = network::in_pieces(bytes, &mut self.rng);
        let Some(way) = self.ways.get_mut(&to) else { return };
        way.last = way.last.max(arrives);
        for piece in pieces {
            way.unread_bytes += piece.len();
            let event = PlannedEvent::Stream(receiver, to, StreamInput::Bytes(piece));
            timeline.plan_at(way.last, event);
        }
    }

    /// Returns when a transmission that begins now gets through a cut between two servers. `None`:
    /// too late.
    fn passes(
        &self,
        from: ReactorPlace,
        to: ReactorPlace,
        network: &Network,
        now: Instant,
    ) -> Option<Instant> {
        let there = network.partition_end(from.server, to.server, now);
        // Without acknowledgments the stream ends as well, but what arrives is not late.
        let back = network.partition_end(to.server, from.server, now);
        let is_over = |end: Option<Instant>| end.is_some_and(|it| it > now + UNACKNOWLEDGED_MAX);
        if is_over(there) || is_over(back) {
            return None;
        }
        let sent = network::gets_through(now, there);
        (sent <= now + UNACKNOWLEDGED_MAX).then_some(sent)
    }

    /// Records that a process has read bytes. Tells a sender that waits for room.
    fn record_read(&mut self, at: ConnectionId, bytes: usize, timeline: &mut RunTimeline) {
        let delay = self.delay();
        let sender = self.ways.get(&other_end(at)).map(|back| back.to);
        let Some(way) = self.ways.get_mut(&at) else { return };
        assert!(bytes <= way.unread_bytes, "{bytes} bytes were read of {way:?}");
        way.unread_bytes -= bytes;
        if std::mem::take(&mut way.is_blocked)
            && let Some(sender) = sender
        {
            timeline.plan_in(delay, PlannedEvent::Room(sender));
        }
    }

    /// Ends a stream because the process at one end has closed it. What is in transit arrives at
    /// the other end.
    fn close(&mut self, end: ConnectionId, network: &Network, timeline: &mut RunTimeline) {
        let now = timeline.now;
        let Some(Way { to: here, .. }) = self.ways.remove(&end) else { return };
        timeline.plan_at(now, PlannedEvent::Stream(here, end, StreamInput::Closed));
        let other = other_end(end);
        let Some((there, last)) = self.ways.get(&other).map(|way| (way.to, way.last)) else {
            return;
        };
        // A process that is never told finds out when it sends something.
        if let Some(sent) = self.passes(here, there, network, now) {
            let told = last.max(sent + self.delay());
            self.end_at(other, told, timeline);
        }
    }

    /// Ends all streams of a process that has died. `how` says it for each other place.
    pub(crate) fn process_died(
        &mut self,
        place: usize,
        how: impl Fn(usize) -> ProcessEnd,
        timeline: &mut RunTimeline,
    ) {
        let now = timeline.now;
        let ends = self.ways.iter().filter(|(_, way)| way.to.server == place);
        let ends: Vec<ConnectionId> = ends.map(|(end, _)| *end).collect();
        // A process may be connected to itself: the address of a dead server is that of the next one.
        self.ways.retain(|_, way| way.to.server != place);
        for end in ends {
            let other = other_end(end);
            let Some(way) = self.ways.get(&other) else { continue };
            let (last, how) = (way.last, how(way.to.server));
            let soon = now + self.delay();
            match how {
                ProcessEnd::Closed => self.end_at(other, last.max(soon), timeline),
                ProcessEnd::Reset => self.end_at(other, soon, timeline),
                ProcessEnd::Silent => {}
            }
        }
    }

    /// Breaks a stream: both ends are told, and what is in transit is lost.
    fn break_stream(&mut self, end: ConnectionId, timeline: &mut RunTimeline) {
        for end in [end, other_end(end)] {
            let told = timeline.now + self.delay();
            if let Some(way) = self.ways.remove(&end) {
                timeline.plan_at(told, PlannedEvent::Stream(way.to, end, StreamInput::Closed));
            }
        }
    }

    /// Plans that the process at an end is told that the stream has ended.
    fn end_at(&mut self, end: ConnectionId, at: Instant, timeline: &mut RunTimeline) {
        if let Some(way) = self.ways.get(&end) {
            timeline.plan_at(at, PlannedEvent::Stream(way.to, end, StreamInput::Closed));
        }
    }

    /// Returns whether an event reaches the process at an end. The end of a stream always does.
    fn arrives(&mut self, end: ConnectionId, input: &StreamInput) -> bool {
        match input {
            StreamInput::Closed | StreamInput::Refused => {
                self.ways.remove(&end);
                true
            }
            StreamInput::Accepted | StreamInput::Connected | StreamInput::Bytes(_) => {
                self.ways.contains_key(&end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    const OPENER: ReactorPlace = ReactorPlace { server: 0, reactor: 0 };
    const END: ConnectionId = ConnectionId::from_number(2);

    /// Two processes with a stream between them, and the events at both ends.
    struct Pair {
        streams: Streams,
        network: Network,
        losses: Losses,
        timeline: RunTimeline,
    }

    impl Pair {
        /// Connects the processes in a network without faults.
        fn new() -> Pair {
            let settings = RunSettings { has_streams: true, ..RunSettings::new(1) };
            let mut streams = Streams::draw(&settings).expect("the settings say so");
            streams.repair();
            let mut network = Network::draw(&mut Rng::with_seed(1), &settings);
            network.repair();
            let timeline = RunTimeline::new(Rng::with_seed(1), Trace::new(false));
            let mut pair = Pair { streams, network, losses: Losses::default(), timeline };
            let Pair { streams, network, timeline, .. } = &mut pair;
            streams.connect(OPENER, END, 1, Some(2), network, timeline);
            assert_eq!(pair.events(), ["Accepted at 1", "Connected at 0"]);
            pair
        }

        fn send(&mut self, from: ConnectionId, bytes: &[u8]) {
            let Pair { streams, network, losses, timeline } = self;
            streams.send(from, bytes.to_vec(), network, losses, timeline);
        }

        fn cut(&mut self, from: usize, to: usize, time: Duration) -> Instant {
            let until = self.timeline.now + time;
            self.network.partition(from, to, until);
            until
        }

        /// Lets all events happen, and returns them. Bytes of one end are joined.
        fn events(&mut self) -> Vec<String> {
            let mut events: Vec<String> = Vec::new();
            while let Some(event) = self.timeline.next_event() {
                let PlannedEvent::Stream(at, end, input) = event else { panic!("another event") };
                if !self.streams.arrives(end, &input) {
                    continue;
                }
                let place = at.server;
                match input {
                    StreamInput::Bytes(bytes) => {
                        let head = format!("at {place}: ");
                        let text = String::from_utf8(bytes).expect("text was sent");
                        match events.last_mut().filter(|last| last.starts_with(&head)) {
                            Some(last) => last.push_str(&text),
                            None => events.push(head + &text),
                        }
                    }
                    other => events.push(format!("{other:?} at {place}")),
                }
            }
            events
        }
    }

    #[test]
    fn bytes_arrive_whole_and_in_order() {
        let mut pair = Pair::new();
        for _ in 0..100 {
            pair.send(END, b"0123456789");
        }
        assert_eq!(pair.events(), ["at 1: ".to_owned() + &"0123456789".repeat(100)]);
        pair.send(other_end(END), b"back");
        assert_eq!(pair.events(), ["at 0: back"]);
    }

    #[test]
    fn what_was_sent_before_an_end_arrives_before_it() {
        let mut pair = Pair::new();
        pair.send(END, b"last");
        let Pair { streams, network, timeline, .. } = &mut pair;
        streams.close(END, network, timeline);
        assert_eq!(pair.events(), ["Closed at 0", "at 1: last", "Closed at 1"]);
        pair.send(END, b"lost");
        assert_eq!(pair.events(), [""; 0]);
    }

    #[test]
    fn a_short_cut_delays_bytes_and_a_long_one_ends_the_stream() {
        let mut pair = Pair::new();
        let until = pair.cut(0, 1, Duration::from_millis(700));
        pair.send(END, b"late");
        assert_eq!(pair.events(), ["at 1: late"]);
        let late = pair.timeline.now.since(until);
        assert!(
            late > Duration::from_millis(600),
            "after the retransmission at 1.4 s, not {late:?}"
        );
        pair.cut(0, 1, Duration::from_secs(3));
        pair.send(END, b"lost");
        pair.network.repair();
        pair.send(END, b"after a gap");
        assert_eq!(pair.events(), ["Closed at 0"]);
        // The other end does not know until it sends something.
        pair.send(other_end(END), b"half open");
        assert_eq!(pair.events(), ["Closed at 1"]);
    }

    #[test]
    fn a_process_that_dies_ends_its_streams_or_its_machine_does_not() {
        for (how, events) in [
            (ProcessEnd::Closed, &["at 0: sent", "Closed at 0"] as &[&str]),
            (ProcessEnd::Silent, &["at 0: sent"]),
        ] {
            let mut pair = Pair::new();
            pair.send(other_end(END), b"sent");
            pair.streams.process_died(1, |_| how, &mut pair.timeline);
            assert_eq!(pair.events(), events, "{how:?}");
        }
    }

    #[test]
    fn a_process_that_is_connected_to_itself_takes_both_ends_with_it() {
        let mut pair = Pair::new();
        let end = ConnectionId::from_number(4);
        let Pair { streams, network, timeline, .. } = &mut pair;
        streams.connect(OPENER, end, OPENER.server, Some(1), network, timeline);
        assert_eq!(pair.events(), ["Accepted at 0", "Connected at 0"]);
        pair.streams.process_died(0, |_| ProcessEnd::Closed, &mut pair.timeline);
        assert_eq!(pair.events(), ["Closed at 1"]);
    }

    #[test]
    fn a_full_way_tells_its_sender_when_there_is_room() {
        let mut pair = Pair::new();
        let most = pair.streams.window_bytes;
        assert_eq!(pair.streams.room(END, most - 1), most - 1);
        pair.send(END, &vec![b'x'; most - 1]);
        assert_eq!(pair.streams.room(END, 2), 1);
        assert_eq!(pair.events().len(), 1);
        pair.streams.record_read(other_end(END), 10, &mut pair.timeline);
        assert!(matches!(pair.timeline.next_event(), Some(PlannedEvent::Room(OPENER))));
        assert_eq!(pair.streams.room(END, 100), 11);
    }

    #[test]
    fn nobody_connects_to_a_dead_process_or_through_a_cut() {
        let mut pair = Pair::new();
        let end = ConnectionId::from_number(4);
        let Pair { streams, network, timeline, .. } = &mut pair;
        streams.connect(OPENER, end, 2, None, network, timeline);
        assert_eq!(pair.events(), ["Refused at 0"]);
        pair.cut(1, 0, Duration::from_secs(1));
        let Pair { streams, network, timeline, .. } = &mut pair;
        streams.connect(OPENER, end, 1, Some(2), network, timeline);
        assert_eq!(pair.events(), [""; 0]);
    }
}
