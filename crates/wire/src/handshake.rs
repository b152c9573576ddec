//! Messages of the handshake that begins every connection between processes of a cluster, and the
//! bytes over which both sides prove the cluster key. `docs/design/trust.md` describes the
//! protocol.
//!
//! These layouts never change, because two versions of Ballast must be able to detect that their
//! versions differ.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use types::{ClusterId, Generation, ServerId};

/// Maximum bytes of a handshake message, which also bounds the input from an unauthenticated
/// peer. The longest real message has 96 bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 256;

/// Time limit for a whole handshake. A slower peer is disconnected.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;

/// Bytes of a proof: one HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;

/// Domain separator between these proofs and all other uses of the same key.
const CONTEXT: &str = "ballast handshake 1";

/// A random value that is drawn for one connection and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nonce([u8; NONCE_BYTES]);

impl Nonce {
    /// Wraps random bytes.
    pub const fn new(bytes: [u8; NONCE_BYTES]) -> Nonce {
        Nonce(bytes)
    }
}

/// A proof that its sender holds a cluster key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof([u8; PROOF_BYTES]);

impl Proof {
    /// Wraps the bytes of a keyed hash.
    pub const fn new(bytes: [u8; PROOF_BYTES]) -> Proof {
        Proof(bytes)
    }

    /// Returns the bytes of the keyed hash.
    pub const fn bytes(&self) -> &[u8; PROOF_BYTES] {
        &self.0
    }
}

/// The traffic for which a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionPurpose {
    /// Messages between two servers.
    Bus,
    /// Messages between two servers that precede all others.
    Priority,
    /// A server's link to its coordinator.
    Control,
    /// An operator's requests to a coordinator.
    Operator,
}

/// The identity that one side of a connection claims. The proof binds it to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Its cluster, if it knows one.
    pub cluster: Option<ClusterId>,
    /// Its server id, if it has one.
    pub server: Option<ServerId>,
    /// The generation (the run) of its process.
    pub generation: Generation,
}

/// The beginning of a handshake, from the side that opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeOpen {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub protocol: u16,
    /// Set if the sender has a cluster key and accepts only a peer that proves the same key.
    pub is_keyed: bool,
    /// The traffic for which the connection is opened.
    pub purpose: ConnectionPurpose,
    /// Identity of the sender.
    pub from: Party,
    /// Nonce of the sender.
    pub nonce: Nonce,
}

/// The answer to a [`HandshakeOpen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeAnswer {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub protocol: u16,
    /// Identity of the sender.
    pub from: Party,
    /// Nonce of the sender.
    pub nonce: Nonce,
}

/// A message of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandshakeMessage {
    /// The first message, from the side that opened the connection.
    Open(HandshakeOpen),
    /// The second message, from the other side.
    Answer {
        /// Identity and nonce of the sender.
        answer: HandshakeAnswer,
        /// The sender's proof; `None` if it has no key.
        proof: Option<Proof>,
    },
    /// The third message, from the opening side. Other messages may follow at once.
    Prove {
        /// The sender's proof; `None` if it has no key.
        proof: Option<Proof>,
    },
    /// A refusal in place of any of these: the sender closes the connection. A refusal is not
    /// authenticated, so its receiver may show it to an operator but must draw no other conclusion.
    Refuse(HandshakeRefusal),
}

/// The reason of one side for ending a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandshakeRefusal {
    /// The receiver speaks another protocol version.
    Version {
        /// [`crate::PROTOCOL_VERSION`] of the sender.
        speaks: u16,
    },
    /// The sender has a cluster key and the receiver has shown none.
    KeyNeeded,
    /// The receiver has a cluster key and the sender has none.
    NoKey,
    /// The receiver's proof was not made with the sender's key.
    WrongKey,
    /// The receiver belongs to another cluster.
    WrongCluster,
    /// The receiver is not the server that the sender wants to reach.
    WrongServer,
    /// The sender does not serve connections of this purpose here.
    WrongPurpose,
    /// The message was out of order.
    OutOfOrder,
}

/// The side of a connection that makes a proof. A proof of one side is invalid for the other, so
/// that no side accepts its own proof reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The side that opened the connection.
    Opener,
    /// The side that accepted it.
    Accepter,
}

/// Returns the bytes over which `side` proves the key: all claims of both sides.
pub fn transcript(side: Side, open: &HandshakeOpen, answer: &HandshakeAnswer) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * HANDSHAKE_BYTES_MAX);
    #[expect(clippy::expect_used, reason = "serializing plain data into a Vec cannot fail")]
    postcard::to_io(&(CONTEXT, side, open, answer), &mut bytes)
        .expect("plain data can be serialized");
    bytes
}
