//! The handshake at the beginning of every connection between processes of a cluster: both sides
//! prove that they hold the cluster key. See `docs/design/trust.md`.
//!
//! [`Handshake`] is a state machine without input or output; a shell transports its messages.
//! Keys stay in this crate: a [`ClusterKeys`] can be parsed from a file's text and can make
//! proofs, but does not reveal its keys.
//!
//! Invariants:
//! - A side with a key never continues with a side without one, nor the other way round.
//! - No message of an unauthenticated peer reaches anything but this machine.
//! - A proof covers every message of both sides, and one side's proof is invalid for the other
//!   side.

#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod key;
mod machine;
mod random;

pub use key::{ClusterKeys, Credentials, KeyError, new_key};
pub use machine::{
    Accepting, Handshake, HandshakeError, HandshakeStep, Opening, ProvenPeer,
    SERVED_BY_COORDINATORS, SERVED_BY_SERVERS,
};
pub use random::{new_generation, new_nonce};
