//! The bus connections of two servers, on a simulated clock: `BusLinks`.

use handshake::{ClusterKeys, Credentials};
use links::{BusDestination, BusEffect, BusEnd, BusEvent, BusLinks, UNPROVEN_MAX, encoded};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use types::{ClusterId, ConnectionId, Generation, Instant, ReactorId, ServerId};
use wire::handshake::{HANDSHAKE_MAX, Nonce};

const START: Instant = Instant(1_000);
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TO_TWO: BusDestination = BusDestination { server: ServerId(2), is_priority: false };

type Links = BusLinks<&'static str>;
type Effects = Vec<BusEffect<&'static str>>;

fn links(server: u32, key: &str) -> Links {
    let keys = ClusterKeys::parse(&key.repeat(32)).expect("it is a key");
    let credentials = Credentials::new(Generation(1), Some(keys));
    BusLinks::new(credentials, ClusterId(7), ServerId(server))
}

fn connection(slot: usize) -> ConnectionId {
    ConnectionId::new(ReactorId(0), slot, 1)
}

fn nonce(byte: usize) -> Nonce {
    Nonce::new([byte as u8; 32])
}

fn step(links: &mut Links, now: Instant, event: BusEvent<'_, &'static str>) -> Effects {
    let mut effects = Vec::new();
    links.handle(now, event, &mut effects);
    effects
}

fn send(links: &mut Links, message: &'static str, payload_bytes: usize, backlog: usize) -> Effects {
    let connection = connection(1);
    step(links, START, BusEvent::Send { connection, message, payload_bytes, backlog })
}

/// Begins to connect server 1 to server 2.
fn connecting(one: &mut Links, to: BusDestination) {
    assert_eq!(one.connection_to(to), None);
    let event = BusEvent::Connecting(connection(1), to, ADDRESS);
    assert_eq!(step(one, START, event), []);
    assert_eq!(one.connection_to(to), Some(connection(1)));
}

/// Passes all frames to the other side until there are none; returns the other effects of both.
fn converse(sides: [&mut Links; 2], first: Effects) -> [Effects; 2] {
    let mut seen = [Vec::new(), Vec::new()];
    let (mut effects, mut from) = (first, 0);
    while !effects.is_empty() {
        let mut frames = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                BusEffect::Write(_, frame) => frames.push(frame),
                BusEffect::Consume(_) => {}
                other => seen[from].push(other),
            }
        }
        from = 1 - from;
        for frame in frames {
            let event = BusEvent::Input(connection(1), &frame);
            effects.extend(step(sides[from], START, event));
        }
    }
    seen
}

/// Connects server 1 to server 2, and returns the effects of both but frames.
fn connect(one: &mut Links, two: &mut Links, to: BusDestination) -> [Effects; 2] {
    connecting(one, to);
    assert_eq!(step(two, START, BusEvent::Accepted(connection(1), nonce(2))), []);
    let first = step(one, START, BusEvent::Connected(connection(1), nonce(1)));
    converse([one, two], first)
}

#[test]
fn messages_wait_for_the_handshake_and_leave_in_order() {
    let [mut one, mut two] = [links(1, "07"), links(2, "07")];
    connecting(&mut one, TO_TWO);
    assert_eq!(send(&mut one, "first", 0, 0), []);
    step(&mut two, START, BusEvent::Accepted(connection(1), nonce(2)));
    let open = step(&mut one, START, BusEvent::Connected(connection(1), nonce(1)));
    assert_eq!(send(&mut one, "second", 0, 0), []);
    let [first, second] = converse([&mut one, &mut two], open);
    let sent = |message| BusEffect::Send(connection(1), message);
    assert_eq!((first, second), (vec![sent("first"), sent("second")], vec![]));
    assert_eq!(send(&mut one, "third", 0, 0), [sent("third")]);
    assert_eq!(send(&mut two, "reply", 0, 0), [sent("reply")]);
    assert_eq!((one.next_deadline(), two.next_deadline()), (None, None));
    let frame = encoded(&5u32).expect("it fits into a frame");
    let received = step(&mut two, START, BusEvent::Input(connection(1), &frame));
    assert!(matches!(received[..], [BusEffect::Deliver(ServerId(1), _)]), "{received:?}");
    let part = step(&mut two, START, BusEvent::Input(connection(1), &frame[..16]));
    assert_eq!(part, [BusEffect::Want(frame.len())]);
}

#[test]
fn priority_connections_are_served_before_others_at_both_ends() {
    let to = BusDestination { is_priority: true, ..TO_TWO };
    let seen = connect(&mut links(1, "07"), &mut links(2, "07"), to);
    // The opening end has chosen the class when it connected.
    assert_eq!(seen, [vec![], vec![BusEffect::Prioritize(connection(1))]]);
}

#[test]
fn a_server_with_another_key_or_number_is_refused() {
    let [first, second] = connect(&mut links(1, "07"), &mut links(2, "08"), TO_TWO);
    let is_refused = |effects: &Effects| {
        matches!(effects[..], [BusEffect::CloseAfterFlush(_, BusEnd::Refused(_))])
    };
    assert!(is_refused(&first) && is_refused(&second), "{first:?} {second:?}");
    let [first, second] = connect(&mut links(1, "07"), &mut links(3, "07"), TO_TWO);
    assert!(is_refused(&first) && is_refused(&second), "{first:?} {second:?}");
}

#[test]
fn a_frame_that_is_too_long_for_the_handshake_ends_the_connection() {
    let mut two = links(2, "07");
    step(&mut two, START, BusEvent::Accepted(connection(1), nonce(2)));
    let long = encoded(&"x".repeat(300)).expect("it fits into a frame");
    let effects = step(&mut two, START, BusEvent::Input(connection(1), &long[..16]));
    assert!(matches!(effects[..], [BusEffect::Close(_, BusEnd::Corrupt(_))]), "{effects:?}");
    let unknown = step(&mut two, START, BusEvent::Input(connection(2), &long));
    assert!(matches!(unknown[..], [BusEffect::Close(_, BusEnd::Corrupt(_))]), "{unknown:?}");
}

#[test]
fn connecting_and_proving_have_time_limits() {
    let [mut one, mut two] = [links(1, "07"), links(2, "07")];
    connecting(&mut one, TO_TWO);
    let limit = START + Duration::from_secs(1);
    assert_eq!(one.next_deadline(), Some(limit));
    let ended = step(&mut one, limit, BusEvent::Tick);
    assert_eq!(ended, [BusEffect::Close(connection(1), BusEnd::NotConnected)]);
    let lost = BusEffect::Lost { server: ServerId(2), unreachable: Some(ADDRESS) };
    assert_eq!(step(&mut one, limit, BusEvent::Closed(connection(1))), [lost]);
    assert_eq!((one.next_deadline(), one.connection_to(TO_TWO)), (None, None));

    connecting(&mut one, TO_TWO);
    step(&mut one, START, BusEvent::Connected(connection(1), nonce(1)));
    step(&mut two, START, BusEvent::Accepted(connection(1), nonce(2)));
    for links in [&mut one, &mut two] {
        assert_eq!(links.next_deadline(), Some(START + HANDSHAKE_MAX));
        let ended = step(links, START + HANDSHAKE_MAX, BusEvent::Tick);
        assert_eq!(ended, [BusEffect::Close(connection(1), BusEnd::NotProven)]);
    }
    let lost = BusEffect::Lost { server: ServerId(2), unreachable: None };
    assert_eq!(step(&mut one, START, BusEvent::Closed(connection(1))), [lost]);
    assert_eq!(step(&mut two, START, BusEvent::Closed(connection(1))), []);
}

#[test]
fn messages_for_a_peer_that_is_stuck_are_dropped() {
    const LIMIT: usize = 64 << 20;
    let [mut one, mut two] = [links(1, "07"), links(2, "07")];
    connecting(&mut one, TO_TWO);
    (0..100).for_each(|_| assert_eq!(send(&mut one, "large", LIMIT / 4, 0), []));
    step(&mut two, START, BusEvent::Accepted(connection(1), nonce(2)));
    let open = step(&mut one, START, BusEvent::Connected(connection(1), nonce(1)));
    let [sent, _] = converse([&mut one, &mut two], open);
    assert_eq!(sent.len(), 4);
    assert_eq!(send(&mut one, "message", 0, LIMIT - 1).len(), 1);
    assert_eq!(send(&mut one, "message", 0, LIMIT), []);

    let [mut one, mut two] = [links(1, "07"), links(2, "07")];
    connecting(&mut one, TO_TWO);
    (0..65_541).for_each(|_| assert_eq!(send(&mut one, "small", 0, 0), []));
    step(&mut two, START, BusEvent::Accepted(connection(1), nonce(2)));
    let open = step(&mut one, START, BusEvent::Connected(connection(1), nonce(1)));
    let [sent, _] = converse([&mut one, &mut two], open);
    assert_eq!(sent.len(), 65_536);
}

#[test]
fn a_further_unproven_connection_displaces_the_oldest() {
    let mut two = links(2, "07");
    for slot in 0..UNPROVEN_MAX {
        assert_eq!(step(&mut two, START, BusEvent::Accepted(connection(slot), nonce(slot))), []);
    }
    let event = BusEvent::Accepted(connection(UNPROVEN_MAX), nonce(1));
    let displaced = BusEffect::Close(connection(0), BusEnd::Displaced);
    assert_eq!(step(&mut two, START, event), [displaced]);
}
