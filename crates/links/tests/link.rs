//! Both ends of a control connection, on a simulated clock: `Link`.

use handshake::{
    Accepting, ClusterKeys, Credentials, HandshakeError, Opening, SERVED_BY_COORDINATORS,
};
use links::{Link, LinkEffect, LinkEffects, LinkEnd, LinkEvent, encoded};
use std::time::Duration;
use types::{ClusterId, Generation, Instant, ServerId};
use wire::control::{ALIVE_AGAIN, SILENCE_MAX};
use wire::frame::MESSAGE_BYTES_MAX;
use wire::handshake::{
    ConnectionPurpose, HANDSHAKE_MAX, HandshakeMessage, HandshakeRefusal, Nonce,
};

const START: Instant = Instant(1_000);
const MILLISECOND: Duration = Duration::from_millis(1);

/// One end, whose messages are texts.
struct End {
    link: Link<String>,
    effects: LinkEffects<String>,
    /// Effects but frames, as text.
    seen: Vec<String>,
    /// Bytes for the other end.
    written: Vec<u8>,
    /// Writes end at once.
    writes: bool,
    /// Messages are handled at once.
    handles: bool,
    /// The peer is accepted as soon as it is proven.
    accepts: bool,
}

impl End {
    fn new(link: Link<String>) -> End {
        let (effects, seen, written) = (LinkEffects::new(), Vec::new(), Vec::new());
        End { link, effects, seen, written, writes: true, handles: true, accepts: true }
    }

    fn handle(&mut self, now: Instant, event: LinkEvent<'_>) {
        self.link.handle(now, event, &mut self.effects);
        while let Some(effect) = self.effects.pop_front() {
            let mut events = Vec::new();
            match effect {
                LinkEffect::Write(frame) => {
                    self.written.extend(frame);
                    events.extend(self.writes.then_some(LinkEvent::Written));
                }
                LinkEffect::Proven(peer) => {
                    self.seen.push(format!("proven: {:?}", peer.purpose));
                    events.extend(self.accepts.then_some(LinkEvent::Accepted));
                    events.push(LinkEvent::Delivered);
                }
                LinkEffect::Deliver(message) => {
                    self.seen.push(message);
                    events.extend(self.handles.then_some(LinkEvent::Delivered));
                }
                LinkEffect::Close(end) => self.seen.push(format!("closed: {end}")),
            }
            events.into_iter().for_each(|event| self.link.handle(now, event, &mut self.effects));
        }
    }

    fn say(&mut self, now: Instant, message: &str) {
        let frame = encoded(&message).expect("it fits into a frame");
        self.handle(now, LinkEvent::Send(frame));
    }

    /// Ticks at the next deadline, and returns the deadline.
    fn tick(&mut self) -> Instant {
        let deadline = self.link.next_deadline().expect("a living link has a deadline");
        self.handle(deadline, LinkEvent::Tick);
        deadline
    }

    fn seen(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seen)
    }
}

fn credentials(key: Option<u8>) -> Credentials {
    let text = |byte: u8| format!("{byte:02x}").repeat(32);
    let keys = key.map(|byte| ClusterKeys::parse(&text(byte)).expect("it is a key"));
    Credentials::new(Generation(1), keys)
}

/// Returns an opening end that is not connected yet, and an accepting end.
fn ends(keys: [Option<u8>; 2]) -> [End; 2] {
    let [opener, accepter] = keys.map(credentials);
    let (cluster, server) = (Some(ClusterId(7)), Some(ServerId(3)));
    let opening = Opening { purpose: ConnectionPurpose::Control, cluster, server, expected: None };
    let here = Accepting { purposes: SERVED_BY_COORDINATORS, cluster, server: None };
    let accepting = Link::accept(START, &accepter, here, Nonce::new([2; 32]));
    [Link::open(START, opener, opening), accepting].map(End::new)
}

/// Moves bytes between both ends until there are none, `step` at a time.
fn exchange(now: Instant, ends: &mut [End; 2], step: usize) {
    while ends.iter().any(|end| !end.written.is_empty()) {
        for (from, to) in [(0, 1), (1, 0)] {
            let bytes = std::mem::take(&mut ends[from].written);
            for part in bytes.chunks(step) {
                if ends[to].link.wants_input() {
                    ends[to].handle(now, LinkEvent::Received(part));
                }
            }
        }
    }
}

/// Returns two ends that have proven each other.
fn proven() -> [End; 2] {
    let mut ends = ends([Some(7), Some(7)]);
    ends[0].handle(START, LinkEvent::Connected(Nonce::new([1; 32])));
    exchange(START, &mut ends, usize::MAX);
    assert!(ends.iter_mut().all(|end| end.seen() == ["proven: Control"]));
    ends
}

#[test]
fn messages_pass_both_ways_however_their_bytes_are_split() {
    for step in [1, 7, 1_000] {
        let mut ends = ends([Some(7), Some(7)]);
        ends[0].handle(START, LinkEvent::Connected(Nonce::new([1; 32])));
        exchange(START, &mut ends, step);
        for end in &mut ends {
            ["one", "two", "three"].iter().for_each(|message| end.say(START, message));
        }
        exchange(START, &mut ends, step);
        for end in &mut ends {
            assert_eq!(end.seen(), ["proven: Control", "one", "two", "three"]);
        }
    }
}

#[test]
fn a_peer_with_another_key_or_none_is_refused_and_both_ends_say_so() {
    let theirs = |refusal| format!("closed: {}", HandshakeError::Theirs(refusal));
    let ours = |refusal| format!("closed: {}", HandshakeError::Ours(refusal));
    for (keys, first, second) in [
        ([Some(7), None], theirs(HandshakeRefusal::NoKey), ours(HandshakeRefusal::NoKey)),
        ([None, Some(7)], theirs(HandshakeRefusal::KeyNeeded), ours(HandshakeRefusal::KeyNeeded)),
        ([Some(7), Some(8)], ours(HandshakeRefusal::WrongKey), theirs(HandshakeRefusal::WrongKey)),
    ] {
        let mut ends = ends(keys);
        ends[0].handle(START, LinkEvent::Connected(Nonce::new([1; 32])));
        exchange(START, &mut ends, usize::MAX);
        assert_eq!([ends[0].seen(), ends[1].seen()], [[first], [second]]);
        assert!(ends.iter().all(|end| end.link.next_deadline().is_none()));
    }
}

#[test]
fn a_refusal_of_the_last_proof_is_understood_and_only_as_the_first_frame() {
    let refusal = encoded(&HandshakeMessage::Refuse(HandshakeRefusal::WrongKey)).expect("short");
    let mut ends = proven();
    ends[0].handle(START, LinkEvent::Received(&refusal));
    let error = HandshakeError::Theirs(HandshakeRefusal::WrongKey);
    assert_eq!(ends[0].seen(), [format!("closed: {error}")]);
    let mut ends = proven();
    ends[1].say(START, "welcome");
    exchange(START, &mut ends, usize::MAX);
    ends[0].handle(START, LinkEvent::Received(&refusal));
    assert!(!ends[0].seen().contains(&format!("closed: {error}")));
    // The accepting end checks the proof itself.
    let mut ends = proven();
    ends[1].handle(START, LinkEvent::Received(&refusal));
    assert!(!ends[1].seen().contains(&format!("closed: {error}")));
}

#[test]
fn a_refusal_is_written_before_the_connection_is_closed() {
    let mut ends = ends([Some(7), None]);
    ends[0].handle(START, LinkEvent::Connected(Nonce::new([1; 32])));
    let open = std::mem::take(&mut ends[0].written);
    ends[1].writes = false;
    ends[1].handle(START, LinkEvent::Received(&open));
    assert!(!ends[1].written.is_empty() && ends[1].seen().is_empty());
    assert!(!ends[1].link.wants_input());
    ends[1].handle(START, LinkEvent::Written);
    assert_eq!(ends[1].seen().len(), 1);
}

#[test]
fn a_frame_that_is_too_long_ends_the_link_by_its_header() {
    let long = encoded(&"x".repeat(300)).expect("it fits into a frame");
    let [_, mut accepting] = ends([Some(7), Some(7)]);
    accepting.handle(START, LinkEvent::Received(&long[..16]));
    assert_eq!(accepting.seen(), ["closed: length of frame is not valid"]);
    let mut ends = proven();
    let mut payload = encoded(&"x").expect("it fits into a frame");
    payload[8] = 1;
    ends[1].handle(START, LinkEvent::Received(&payload));
    assert_eq!(ends[1].seen(), ["closed: length of frame is not valid"]);
    // A proven peer may send as much as fits.
    let mut ends = proven();
    ends[0].say(START, &"x".repeat(MESSAGE_BYTES_MAX - 3));
    exchange(START, &mut ends, 8 << 10);
    assert_eq!(ends[1].seen()[0].len(), MESSAGE_BYTES_MAX - 3);
}

#[test]
fn each_step_of_opening_has_a_time_limit() {
    let [mut opening, mut accepting] = ends([Some(7), Some(7)]);
    assert_eq!(opening.tick(), START + Duration::from_secs(1));
    assert_eq!(opening.seen(), [format!("closed: {}", LinkEnd::NotConnected)]);
    assert_eq!(accepting.tick(), START + HANDSHAKE_MAX);
    assert_eq!(accepting.seen(), [format!("closed: {}", LinkEnd::NotProven)]);
    // Connecting takes a part of the time for opening.
    let [mut opening, _] = ends([Some(7), Some(7)]);
    let connected = START + Duration::from_millis(900);
    opening.handle(connected, LinkEvent::Connected(Nonce::new([1; 32])));
    assert_eq!(opening.tick(), START + HANDSHAKE_MAX);
    assert_eq!(opening.seen(), [format!("closed: {}", LinkEnd::NotProven)]);
    let mut ends = ends([Some(7), Some(7)]);
    ends[0].accepts = false;
    ends[0].handle(START, LinkEvent::Connected(Nonce::new([1; 32])));
    exchange(START, &mut ends, usize::MAX);
    assert_eq!(ends[0].tick(), START + HANDSHAKE_MAX);
    assert_eq!(ends[0].seen()[1], format!("closed: {}", LinkEnd::NotAccepted));
}

#[test]
fn an_idle_end_shows_that_it_is_alive_and_a_silent_peer_is_closed() {
    let mut ends = proven();
    for second in 1..=10 {
        let now = START + ALIVE_AGAIN * second;
        assert!(ends.iter_mut().all(|end| end.tick() == now && end.seen().is_empty()));
        exchange(now, &mut ends, usize::MAX);
    }
    let heard = START + ALIVE_AGAIN * 10;
    for second in 1..5 {
        assert_eq!(ends[0].tick(), heard + ALIVE_AGAIN * second);
    }
    // Bytes that are no complete frame are no sign of life.
    let half = &encoded(&"half").expect("it fits into a frame")[..10];
    ends[0].handle(heard + SILENCE_MAX - MILLISECOND, LinkEvent::Received(half));
    assert_eq!(ends[0].tick(), heard + SILENCE_MAX);
    assert_eq!(ends[0].seen(), [format!("closed: {}", LinkEnd::Silent)]);
}

#[test]
fn a_busy_receiver_gets_one_message_at_a_time_and_judges_no_silence_meanwhile() {
    let mut ends = proven();
    ends[0].say(START, "one");
    ends[0].say(START, "two");
    ends[1].handles = false;
    exchange(START, &mut ends, usize::MAX);
    assert_eq!(ends[1].seen(), ["one"]);
    assert!(!ends[1].link.wants_input());
    let later = START + SILENCE_MAX * 3;
    ends[1].handle(later, LinkEvent::Tick);
    assert_eq!(ends[1].seen(), [""; 0]);
    ends[1].handle(later, LinkEvent::Delivered);
    assert_eq!(ends[1].seen(), ["two"]);
    ends[1].handle(later, LinkEvent::Delivered);
    ends[1].handle(later + SILENCE_MAX - MILLISECOND, LinkEvent::Tick);
    assert!(ends[1].seen().is_empty() && ends[1].link.wants_input());
}

#[test]
fn a_peer_that_reads_too_slowly_is_closed() {
    let [mut end, _] = proven();
    end.writes = false;
    end.say(START, "one");
    end.say(START, "two");
    assert_eq!(end.written, encoded(&"one").expect("short"), "one frame is written at a time");
    assert_eq!(end.tick(), START + Duration::from_secs(5));
    assert_eq!(end.seen(), [format!("closed: {}", LinkEnd::Silent)]);

    let [mut end, _] = proven();
    end.writes = false;
    let long = "x".repeat(MESSAGE_BYTES_MAX - 3);
    (0..15).for_each(|_| end.say(START, &long));
    assert_eq!(end.seen(), [""; 0]);
    end.say(START, &long);
    assert_eq!(end.seen(), [format!("closed: {}", LinkEnd::TooSlow)], "it skips no frame");
}

#[test]
fn a_link_that_is_finished_writes_what_is_queued() {
    let mut ends = proven();
    ends[0].writes = false;
    ends[0].say(START, "one");
    ends[0].say(START, "two");
    ends[0].handle(START, LinkEvent::Finish);
    ends[0].say(START, "three");
    // The shell may have begun to read before another task has finished the link.
    let late = encoded(&"late").expect("it fits into a frame");
    ends[0].handle(START, LinkEvent::Received(&late));
    ends[0].handle(START, LinkEvent::Written);
    assert_eq!(ends[0].seen(), [""; 0]);
    ends[0].handle(START, LinkEvent::Written);
    assert_eq!(ends[0].seen(), [format!("closed: {}", LinkEnd::Finished)]);
    exchange(START, &mut ends, usize::MAX);
    assert_eq!(ends[1].seen(), ["one", "two"]);
}

/// Returns frames of a handshake and of messages, with some bytes changed, removed or added.
fn damaged(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut ends = ends([Some(7), Some(7)]);
    ends[0].handle(START, LinkEvent::Connected(Nonce::new([1; 32])));
    let mut bytes = ends[0].written.clone();
    bytes.extend(encoded(&HandshakeMessage::Prove { proof: None }).expect("short"));
    (0..3).for_each(|_| bytes.extend(encoded(&"message").expect("short")));
    for _ in 0..random.usize(..4) {
        let at = random.usize(..bytes.len());
        match random.u8(..3) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes.truncate(at + 1),
            _ => bytes.insert(at, random.u8(..)),
        }
    }
    bytes
}

#[test]
fn arbitrary_bytes_prove_nothing_and_end_in_time() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..5_000 {
        let bytes = match random.bool() {
            true => damaged(&mut random),
            false => (0..random.usize(..300)).map(|_| random.u8(..)).collect(),
        };
        let [_, mut end] = ends([Some(7), Some(7)]);
        for part in bytes.chunks(random.usize(1..400)) {
            end.handle(START, LinkEvent::Received(part));
        }
        while let Some(deadline) = end.link.next_deadline() {
            assert!(deadline <= START + HANDSHAKE_MAX, "{bytes:?}");
            end.tick();
        }
        let seen = end.seen();
        assert!(seen.len() == 1 && seen[0].starts_with("closed: "), "{seen:?} {bytes:?}");
    }
}
