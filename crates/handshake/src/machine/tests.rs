use super::*;
use types::Generation;
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::HANDSHAKE_BYTES_MAX;

const NONCES: [Nonce; 2] = [Nonce::new([1; 32]), Nonce::new([2; 32])];
const SOURCE: ServerId = ServerId(1);
const TARGET: ServerId = ServerId(2);
const CLUSTER: Option<ClusterId> = Some(ClusterId(7));

fn credentials(generation: u64, keys: &[u8]) -> Credentials {
    let text: Vec<String> = keys.iter().map(|key| format!("{key:02x}").repeat(32)).collect();
    Credentials::new(Generation(generation), ClusterKeys::parse(&text.join("\n")).ok())
}

fn opening() -> Opening {
    let (server, expected) = (Some(SOURCE), Some(TARGET));
    Opening { purpose: ConnectionPurpose::Bus, cluster: CLUSTER, server, expected }
}

/// Returns both sides of a connection, and the first message.
fn begin(opener: &[u8], accepter: &[u8]) -> (Handshake, Handshake, HandshakeMessage) {
    let (opened, first) = Handshake::open(&credentials(1, opener), opening(), NONCES[0]);
    let here = Accepting { purposes: SERVED_BY_SERVERS, cluster: CLUSTER, server: Some(TARGET) };
    (opened, Handshake::accept(&credentials(2, accepter), here, NONCES[1]), first)
}

/// Returns the message produced by a step, and whether the step proves the peer.
fn reply(step: HandshakeStep) -> (Option<HandshakeMessage>, bool) {
    match step {
        HandshakeStep::Reply(message) => (Some(message), false),
        HandshakeStep::Proven { last, .. } => (last, true),
        HandshakeStep::Refused { refusal, .. } => (refusal, false),
    }
}

fn encoded(message: &HandshakeMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).unwrap();
    bytes[HEADER_BYTES..].to_vec()
}

/// Decodes a message as a shell does, with a frame checksum that is always right.
fn decoded(bytes: &[u8]) -> Option<HandshakeMessage> {
    let mut frame = [0; HEADER_BYTES];
    frame[..4].copy_from_slice(b"BLST");
    frame[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    let crc = wire::crc32c_append(wire::crc32c(&frame[..12]), bytes);
    frame[12..16].copy_from_slice(&crc.to_le_bytes());
    let header = Header::parse(&frame).ok()?;
    header.message(bytes).ok()
}

#[test]
fn two_sides_with_one_key_prove_each_other() {
    let (mut source, mut target, open) = begin(&[1], &[1]);
    let (answer, is_proven) = reply(target.handle(open));
    assert!(!is_proven, "nothing is proven by a first message");
    let HandshakeStep::Proven { peer, last: Some(prove) } = source.handle(answer.unwrap()) else {
        panic!("the answer proves the target")
    };
    let party = |server, generation| {
        let (server, generation) = (Some(server), Generation(generation));
        Party { cluster: CLUSTER, server, generation }
    };
    assert_eq!(peer, ProvenPeer { purpose: ConnectionPurpose::Bus, party: party(TARGET, 2) });
    let HandshakeStep::Proven { peer, last: None } = target.handle(prove) else {
        panic!("the proof proves the source")
    };
    assert_eq!(peer, ProvenPeer { purpose: ConnectionPurpose::Bus, party: party(SOURCE, 1) });
}

/// A change in transit always stops the side that it would deceive.
#[test]
fn no_bit_of_a_handshake_can_be_changed() {
    for changed in 0..3 {
        for bit in 0.. {
            let (mut source, mut target, open) = begin(&[1], &[1]);
            let mut is_beyond = false;
            let mut change = |number, message: HandshakeMessage| {
                let mut bytes = encoded(&message);
                if number == changed {
                    is_beyond = bit / 8 >= bytes.len();
                    if !is_beyond {
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                }
                decoded(&bytes)
            };
            let answer = change(0, open).and_then(|open| reply(target.handle(open)).0);
            let proven = answer
                .and_then(|answer| change(1, answer))
                .map(|answer| reply(source.handle(answer)));
            let is_source_sure = proven.is_some_and(|(_, is_proven)| is_proven);
            let prove = proven.and_then(|(prove, _)| prove);
            let end =
                prove.and_then(|prove| change(2, prove)).map(|prove| reply(target.handle(prove)));
            let is_target_sure = end.is_some_and(|(_, is_proven)| is_proven);
            if is_beyond {
                assert!(is_source_sure && is_target_sure, "nothing was changed");
                break;
            }
            assert!(!is_target_sure, "message {changed}, bit {bit}");
            assert!(!is_source_sure || changed == 2, "message {changed}, bit {bit}");
        }
    }
}

#[test]
fn messages_are_no_longer_than_a_handshake_may_be() {
    let party = Party {
        cluster: Some(ClusterId(u64::MAX)),
        server: Some(ServerId(u32::MAX)),
        generation: Generation(u64::MAX),
    };
    let open = HandshakeOpen {
        protocol: u16::MAX,
        is_keyed: true,
        purpose: ConnectionPurpose::Operator,
        from: party,
        nonce: NONCES[0],
    };
    let answer = HandshakeAnswer { protocol: u16::MAX, from: party, nonce: NONCES[1] };
    let proof = Some(Proof::new([0xff; 32]));
    let longest = HandshakeMessage::Answer { answer, proof };
    for message in [HandshakeMessage::Open(open), longest] {
        assert!(encoded(&message).len() <= HANDSHAKE_BYTES_MAX, "{message:?}");
    }
    assert_eq!(encoded(&longest).len(), 96, "as the constant's comment says");
}

/// Reflection: an attacker opens a connection to a server that is opening one to the attacker. It
/// can neither present the server's own proof nor make the server answer for the attacker.
#[test]
fn a_proof_cannot_be_reflected() {
    let (mut source, _, open) = begin(&[1], &[1]);
    let itself = Accepting { purposes: SERVED_BY_SERVERS, cluster: CLUSTER, server: Some(SOURCE) };
    let mut accepting = Handshake::accept(&credentials(1, &[1]), itself, NONCES[1]);
    // The server's own opening comes back, and the server answers it.
    let (answer, _) = reply(accepting.handle(open));
    // The answer proves the server itself, not the expected one.
    let (_, is_proven) = reply(source.handle(answer.unwrap()));
    assert!(!is_proven);
    // The answer's proof is not valid for the opening side.
    let Some(HandshakeMessage::Answer { proof, .. }) = answer else { panic!("it has answered") };
    let (_, is_proven) = reply(accepting.handle(HandshakeMessage::Prove { proof }));
    assert!(!is_proven);
}

/// A proof is valid on its own connection only.
#[test]
fn a_proof_cannot_be_used_again() {
    let (mut source, mut target, open) = begin(&[1], &[1]);
    let (answer, _) = reply(target.handle(open));
    let (prove, _) = reply(source.handle(answer.unwrap()));
    let here = Accepting { purposes: SERVED_BY_SERVERS, cluster: CLUSTER, server: Some(TARGET) };
    let mut next = Handshake::accept(&credentials(2, &[1]), here, Nonce::new([3; 32]));
    next.handle(open);
    let (_, is_proven) = reply(next.handle(prove.unwrap()));
    assert!(!is_proven);
}

#[test]
fn another_version_is_refused_with_ours() {
    let (mut source, mut target, open) = begin(&[1], &[1]);
    let HandshakeMessage::Open(mut other) = open else { panic!("a handshake begins so") };
    other.protocol += 1;
    let HandshakeStep::Refused { error, refusal: Some(refusal) } =
        target.handle(HandshakeMessage::Open(other))
    else {
        panic!("another version is refused")
    };
    assert!(error.to_string().contains("another version"), "{error}");
    let HandshakeStep::Refused { error, refusal: None } = source.handle(refusal) else {
        panic!("a refusal ends the handshake")
    };
    assert!(error.to_string().contains(&format!("version {PROTOCOL_VERSION}")), "{error}");
}

/// Sends messages of both sides and of an unauthenticated peer in every order: no side continues
/// without a proof.
#[test]
fn only_the_right_messages_in_the_right_order_prove_anything() {
    let (mut source, mut target, open) = begin(&[1], &[1]);
    let (answer, _) = reply(target.handle(open));
    let (prove, _) = reply(source.handle(answer.unwrap()));
    let stranger = credentials(1, &[2]);
    let (_, strange_open) = Handshake::open(&stranger, opening(), Nonce::new([9; 32]));
    let refuse = HandshakeMessage::Refuse(HandshakeRefusal::OutOfOrder);
    let no_proof = HandshakeMessage::Prove { proof: None };
    let messages = [open, answer.unwrap(), prove.unwrap(), strange_open, refuse, no_proof];
    let mut proven = 0;
    for order in 0..messages.len().pow(3) {
        let picks = [0, 1, 2].map(|place| order / messages.len().pow(place) % messages.len());
        let (mut source, mut target, _) = begin(&[1], &[1]);
        for side in [&mut source, &mut target] {
            let taken: Vec<_> =
                picks.iter().take_while(|pick| !reply(side.handle(messages[**pick])).1).collect();
            if let Some(last) = picks.get(taken.len()) {
                proven += 1;
                let before: Vec<usize> = taken.into_iter().copied().collect();
                let is_right = (before.is_empty() && *last == 1) || (before == [0] && *last == 2);
                assert!(is_right, "{picks:?}");
            }
        }
    }
    assert!(proven > 0, "the right order is among them");
}

/// Random bytes end a handshake in any state.
#[test]
fn random_bytes_prove_nothing() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let (mut source, mut target, open) = begin(&[1], &[1]);
        let (answer, _) = reply(target.handle(open));
        let mut bytes = match random.bool() {
            true => encoded(&answer.unwrap()),
            false => (0..random.usize(1..120)).map(|_| random.u8(..)).collect(),
        };
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] ^= random.u8(1..);
        }
        let Some(message) = decoded(&bytes) else { continue };
        if Some(message) != answer {
            assert!(!reply(source.handle(message)).1, "{message:?}");
        }
        assert!(!reply(target.handle(message)).1, "{message:?}");
    }
}

#[test]
#[should_panic(expected = "contradicts its last step")]
fn a_handshake_that_awaits_a_message_cannot_have_been_refused() {
    let (_, target, _) = begin(&[1], &[1]);
    let error = HandshakeError::Ours(HandshakeRefusal::OutOfOrder);
    target.check_step(&HandshakeStep::Refused { error, refusal: None });
}
