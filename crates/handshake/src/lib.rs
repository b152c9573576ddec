//! The handshake with which every connection between processes of a cluster begins: both sides
//! prove that they hold the cluster key. See `docs/design/trust.md`.
//!
//! [`Handshake`] is a machine without input or output; a shell moves its messages. Keys stay in
//! this crate: a [`ClusterKeys`] can be read from a file's text and can prove, but shows nothing.
//!
//! Invariants:
//! - a side that has a key never goes on with one that has none, nor the other way round;
//! - no message of an unproven peer reaches anything but this machine;
//! - a proof is made over everything that both sides have said, and by one side cannot be used by
//!   the other.

#![forbid(unsafe_code)]

mod key;
mod machine;
mod random;
mod stream;

pub use key::{ClusterKeys, Credentials, KeyError, new_key};
pub use machine::{
    Accepting, Handshake, HandshakeError, Opening, ProvenPeer, SERVED_BY_COORDINATORS,
    SERVED_BY_SERVERS, Step,
};
pub use random::{new_generation, new_nonce};
pub use stream::complete;
