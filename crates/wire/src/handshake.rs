//! Messages of the handshake with which every connection between processes of a cluster begins, and
//! the bytes that both sides prove the cluster key over. The protocol is told in
//! `docs/design/trust.md`.
//!
//! These layouts never change: two versions of Ballast must be able to tell each other that they
//! are two versions.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use types::{ClusterId, Generation, ServerId};

/// Longest message of a handshake, which also bounds what an unauthenticated peer may send: the
/// longest real one has 96 bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 256;

/// Time for a whole handshake. A peer that takes longer is sent away.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Bytes of a nonce: a value that is drawn for one connection and never used again.
pub const NONCE_BYTES: usize = 32;

/// Bytes of a proof: one HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;

/// Separates these proofs from every other use that somebody makes of the same key.
const CONTEXT: &str = "ballast handshake 1";

/// A value that is drawn for one connection and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nonce([u8; NONCE_BYTES]);

impl Nonce {
    /// Wraps bytes that were drawn at random.
    pub const fn new(bytes: [u8; NONCE_BYTES]) -> Nonce {
        Nonce(bytes)
    }
}

/// Proof that its sender holds a cluster key.
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

/// Traffic that a connection is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Messages between two servers.
    Bus,
    /// Messages between two servers that go ahead of all others.
    Priority,
    /// A server's link to its coordinator.
    Control,
    /// An operator's questions to a coordinator.
    Operator,
}

/// Identity that one side of a connection claims. The proof binds it to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Its cluster, if it knows one.
    pub cluster: Option<ClusterId>,
    /// Its number, if it is a server that has one.
    pub server: Option<ServerId>,
    /// The run of its process.
    pub generation: Generation,
}

/// Beginning of a handshake, from the side that opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeOpen {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub protocol: u16,
    /// The sender has a cluster key, and goes on only with a peer that proves it.
    pub is_keyed: bool,
    /// Traffic that the connection is for.
    pub purpose: Purpose,
    /// Identity of the sender.
    pub from: Party,
    /// Drawn by the sender.
    pub nonce: Nonce,
}

/// Answer to a [`HandshakeOpen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeAnswer {
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub protocol: u16,
    /// Identity of the sender.
    pub from: Party,
    /// Drawn by the sender.
    pub nonce: Nonce,
}

/// One message of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandshakeMessage {
    /// First, from the side that opened the connection.
    Open(HandshakeOpen),
    /// Second, from the other side.
    Answer {
        /// Its identity and nonce.
        answer: HandshakeAnswer,
        /// Its proof; `None` if it has no key.
        proof: Option<Proof>,
    },
    /// Third, from the side that opened the connection. Other messages may follow at once.
    Prove {
        /// Its proof; `None` if it has no key.
        proof: Option<Proof>,
    },
    /// Instead of any of these: the sender closes the connection. Nobody proves a refusal, so its
    /// receiver may show it to an operator and must conclude nothing else from it.
    Refuse(HandshakeRefusal),
}

/// Reason of one side for ending a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandshakeRefusal {
    /// The receiver's protocol version is another one.
    Version {
        /// [`crate::PROTOCOL_VERSION`] of the sender.
        speaks: u16,
    },
    /// The sender has a cluster key and the receiver shows none.
    KeyNeeded,
    /// The receiver has a cluster key and the sender has none.
    NoKey,
    /// The receiver's proof is not made with a key of the sender.
    WrongKey,
    /// The receiver belongs to another cluster.
    WrongCluster,
    /// The receiver is another server than the one the sender wants to reach.
    WrongServer,
    /// The sender serves no connections of this purpose here.
    WrongPurpose,
    /// The message was not the one to come next.
    OutOfOrder,
}

/// Side of a connection that a proof is made by. A proof of one side is none of the other, so that
/// nobody can be shown their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The side that opened the connection.
    Opener,
    /// The side that accepted it.
    Accepter,
}

/// Returns the bytes that `side` proves the key over: everything that both have said.
pub fn transcript(side: Side, open: &HandshakeOpen, answer: &HandshakeAnswer) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * HANDSHAKE_BYTES_MAX);
    #[expect(clippy::expect_used, reason = "serializing plain data into a Vec cannot fail")]
    postcard::to_io(&(CONTEXT, side, open, answer), &mut bytes)
        .expect("plain data can be serialized");
    bytes
}
