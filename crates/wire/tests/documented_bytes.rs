//! Tests that the code writes the bytes shown in `docs/formats.md`, and that its lists of
//! messages are complete.

use serde::de::DeserializeOwned;
use std::fmt::Debug;
use types::{
    ClusterId, Generation, HashSeed, Incarnation, MigrationId, SegmentId, ServerId, Slot, TableId,
    TypedValue, UnixMillis, ValueType, Version, key_hash, slot_of,
};
use wire::batch::BatchWriter;
use wire::control::{
    Description, FromCoordinator, JoinReply, LivenessRequest, LivenessUpdate, LogRequest,
    LogUpdate, MigrationRequest, MigrationUpdate, RecoveryRequest, RecoveryUpdate, ToCoordinator,
};
use wire::entry::{Body, Dead, Entry, Location, NOTE_BYTES};
use wire::handshake::{
    ConnectionPurpose, HandshakeAnswer, HandshakeMessage, HandshakeOpen, Nonce, Party, Side,
    transcript,
};
use wire::peer::PeerMessage;
use wire::replica::{
    BootId, PieceWriter, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind,
    ReplicaOrder, Stamp,
};

const DOCUMENT: &str = include_str!("../../../docs/formats.md");

fn assert_shown(bytes: &[u8]) {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(DOCUMENT.contains(&format!("`{hex}`")), "docs/formats.md does not show {hex}");
}

fn encoded(version: u64, body: Body<'_>) -> Vec<u8> {
    let entry = Entry { incarnation: Incarnation(3), version: Version(version), key: b"foo", body };
    let mut bytes = vec![0xaa; entry.encoded_bytes()];
    entry.encode(&mut bytes);
    bytes
}

#[test]
fn entries_and_batches_are_as_documented() {
    let object = encoded(
        258,
        Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"bar!") },
    );
    assert_shown(&object);
    let expiry = Some(UnixMillis(1_700_000_000_000));
    assert_shown(&encoded(
        260,
        Body::Object { expiry, replaces: None, value: TypedValue::string(b"bar!") },
    ));
    let location = Location { segment: SegmentId(9), offset: 4096 };
    let replaces = Some(location);
    assert_shown(&encoded(
        261,
        Body::Object { expiry: None, replaces, value: TypedValue::string(b"bar!") },
    ));
    let hash = TypedValue { value_type: ValueType::Hash, bytes: b"\x01\x01f\x04bar!" };
    assert_shown(&encoded(263, Body::Object { expiry: None, replaces: None, value: hash }));
    assert_shown(&encoded(259, Body::Tombstone { dead: Dead::At(location) }));
    assert_shown(&encoded(262, Body::Tombstone { dead: Dead::UpTo(SegmentId(9)) }));
    let mut note = [0xaa; NOTE_BYTES];
    Entry::note(SegmentId(9)).encode(&mut note);
    assert_shown(&note);
    let mut batch = Vec::new();
    BatchWriter::new(&mut batch).push(TableId(0), slot_of(b"foo"), &object);
    assert_shown(&batch);
}

#[test]
fn frames_are_as_documented() {
    let answer = PeerMessage::FlipAnswer { migration: MigrationId(300), accepted: true };
    let mut frame = Vec::new();
    wire::frame::encode(&answer, 0, &mut frame).expect("a handshake fits into a frame");
    assert_shown(&frame);
}

#[test]
fn handshakes_are_as_documented() {
    let from = Party {
        cluster: Some(ClusterId(7)),
        server: Some(ServerId(300)),
        generation: Generation(9),
    };
    let open = HandshakeOpen {
        protocol: 8,
        is_keyed: true,
        purpose: ConnectionPurpose::Priority,
        from,
        nonce: Nonce::new([0xaa; 32]),
    };
    let answer = HandshakeAnswer { protocol: 8, from, nonce: Nonce::new([0xbb; 32]) };
    let mut frame = Vec::new();
    wire::frame::encode(&HandshakeMessage::Open(open), 0, &mut frame).unwrap();
    assert_shown(&frame);
    assert_shown(&transcript(Side::Accepter, &open, &answer));
}

#[test]
fn replicas_are_as_documented() {
    let (log, segment, epoch) = (ServerId(300), SegmentId(9), ReplicaEpoch(1));
    let header = ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster: ClusterId(7),
        id: ReplicaId { log, segment, epoch },
        kind: ReplicaKind::Data,
        segment_bytes: 8 << 20,
        boot: BootId(std::array::from_fn(|at| at as u8)),
    };
    assert_shown(&header.encode(ReplicaOrder(258)));
    let clock = UnixMillis(1_700_000_000_000);
    let stamp = |version| Stamp { version: Version(version), clock };
    let mut writer = PieceWriter::new(header.identity());
    assert_shown(&writer.next(b"first", 0, stamp(258)));
    assert_shown(&writer.next(b"second!!", 5, stamp(259)));
}

#[test]
fn key_hashes_and_names_are_as_documented() {
    for key in ["foo", "bar", "", "{user1000}.following", "user000000000000000000000001"] {
        let name = if key.is_empty() { "(empty)".to_owned() } else { format!("`{key}`") };
        let (Slot(slot), hash) =
            (slot_of(key.as_bytes()), key_hash(&HashSeed::new(42), key.as_bytes()));
        let line = format!("| {name} | {slot} | `{hash}` |");
        assert!(DOCUMENT.contains(&line), "docs/formats.md lacks {line}");
    }
    assert!(DOCUMENT.contains(&ServerId(1).node_name(ClusterId(7))));
}

/// Checks that every variant decodes by its number, with fields of all zeros or all ones.
fn assert_listed<M: DeserializeOwned + Debug>(count: u8) {
    for number in 0..=count {
        let decode = |fill| {
            let mut bytes = vec![fill; 256];
            bytes[0] = number;
            postcard::take_from_bytes::<M>(&bytes).map(|(message, _)| message)
        };
        let message = decode(0).or_else(|_| decode(1));
        assert_eq!(message.is_ok(), number < count, "message {number} of {count}: {message:?}");
        if let Ok(message) = message {
            let text = format!("{message:?}");
            let name = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let line = format!("| {number} | `{name}` |");
            assert!(DOCUMENT.contains(&line), "docs/formats.md lacks {line}");
        }
    }
}

#[test]
fn every_message_is_listed_under_its_number() {
    assert_listed::<HandshakeMessage>(4);
    assert_listed::<PeerMessage>(15);
    assert_listed::<ToCoordinator>(9);
    assert_listed::<Description>(2);
    assert_listed::<LivenessUpdate>(3);
    assert_listed::<MigrationUpdate>(8);
    assert_listed::<LogUpdate>(7);
    assert_listed::<RecoveryUpdate>(3);
    assert_listed::<FromCoordinator>(9);
    assert_listed::<JoinReply>(4);
    assert_listed::<LivenessRequest>(2);
    assert_listed::<MigrationRequest>(7);
    assert_listed::<LogRequest>(4);
    assert_listed::<RecoveryRequest>(2);
}
