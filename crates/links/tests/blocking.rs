//! A link over an in-memory stream: `BlockingLink`.

use handshake::{
    Accepting, ClusterKeys, Credentials, Handshake, HandshakeStep, Opening, ProvenPeer,
    SERVED_BY_COORDINATORS,
};
use links::{BlockingLink, encoded};
use std::io::{self, ErrorKind, Read, Write};
use types::{ClusterId, Generation};
use wire::frame::{HEADER_BYTES, Header};
use wire::handshake::{
    ConnectionPurpose, HANDSHAKE_BYTES_MAX, HandshakeMessage, HandshakeRefusal, Nonce,
};

const CLUSTER: Option<ClusterId> = Some(ClusterId(7));

/// One end of a connection: reads prepared bytes, and records written ones.
struct Stream {
    readable: io::Cursor<Vec<u8>>,
    written: Vec<u8>,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.readable.read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn credentials() -> Credentials {
    let keys = ClusterKeys::parse(&"07".repeat(32)).expect("it is a key");
    Credentials::new(Generation(1), Some(keys))
}

/// Opens a link whose peer sends these bytes. Returns the peer, the first message, if there is one,
/// and the written bytes.
fn open(readable: Vec<u8>) -> (io::Result<ProvenPeer>, io::Result<String>, Vec<u8>) {
    let mut stream = Stream { readable: io::Cursor::new(readable), written: Vec::new() };
    let purpose = ConnectionPurpose::Operator;
    let opening = Opening { purpose, cluster: None, server: None, expected: None };
    let opened = BlockingLink::open(&mut stream, &credentials(), opening, Nonce::new([1; 32]));
    let (peer, message) = match opened {
        Ok((mut link, peer)) => (Ok(peer), link.receive()),
        Err(error) => (Err(error), Err(ErrorKind::NotConnected.into())),
    };
    (peer, message, stream.written)
}

/// Returns the message in the frame at the front of the bytes, and its length.
fn message(bytes: &[u8]) -> (HandshakeMessage, usize) {
    let header = Header::parse(bytes.first_chunk().expect("a header")).expect("a valid header");
    let message = header.message(&bytes[HEADER_BYTES..header.frame_bytes()]);
    (message.expect("a message of the handshake"), header.frame_bytes())
}

/// Returns the accepting end after it has received the first message, and its answer.
fn answered(written: &[u8]) -> (Handshake, Vec<u8>) {
    let here = Accepting { purposes: SERVED_BY_COORDINATORS, cluster: CLUSTER, server: None };
    let mut accepting = Handshake::accept(&credentials(), here, Nonce::new([2; 32]));
    let HandshakeStep::Reply(answer) = accepting.handle(message(written).0) else {
        panic!("the first message is refused")
    };
    (accepting, encoded(&answer).expect("it fits into a frame"))
}

#[test]
fn opening_ends_proven_or_with_an_error() {
    let (nothing, _, written) = open(Vec::new());
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let (mut accepting, answer) = answered(&written);
    let (peer, first, written) = open(answer.clone());
    assert_eq!(peer.expect("both have the key").party.cluster, CLUSTER);
    assert_eq!(first.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let prove = message(&written[message(&written).1..]).0;
    let is_proven = matches!(accepting.handle(prove), HandshakeStep::Proven { .. });
    assert!(is_proven, "the last message proves the opening end");
    for length in 0..answer.len() {
        assert!(open(answer[..length].to_vec()).0.is_err());
    }
    let long = encoded(&vec![0u8; HANDSHAKE_BYTES_MAX]).expect("it fits into a frame");
    assert_eq!(open(long).0.unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn a_refusal_is_an_error_before_and_after_this_end_has_proven_itself() {
    let refusal = HandshakeMessage::Refuse(HandshakeRefusal::WrongKey);
    let refusal = encoded(&refusal).expect("it fits into a frame");
    let (_, answer) = answered(&open(Vec::new()).2);
    let [early, late] =
        [open(refusal.clone()).0.unwrap_err(), open([answer, refusal].concat()).1.unwrap_err()];
    for error in [early, late] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("does not accept this cluster key"), "{error}");
    }
}

#[test]
fn messages_that_arrive_together_are_returned_one_by_one() {
    let (_, mut readable) = answered(&open(Vec::new()).2);
    for message in ["one", "", "two"] {
        readable.extend(encoded(&message).expect("it fits into a frame"));
        readable.extend(encoded(&()).expect("an empty frame"));
    }
    let mut stream = Stream { readable: io::Cursor::new(readable), written: Vec::new() };
    let purpose = ConnectionPurpose::Operator;
    let opening = Opening { purpose, cluster: None, server: None, expected: None };
    let nonce = Nonce::new([1; 32]);
    let (mut link, _) =
        BlockingLink::<_, String>::open(&mut stream, &credentials(), opening, nonce).unwrap();
    link.send(encoded(&"ask").expect("it fits into a frame")).unwrap();
    for message in ["one", "", "two"] {
        assert_eq!(link.receive().unwrap(), message);
    }
    assert_eq!(link.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let sent = encoded(&"ask").expect("it fits into a frame");
    assert!(stream.written.ends_with(&sent));
}
