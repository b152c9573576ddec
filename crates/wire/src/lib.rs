//! The byte layouts of everything that servers send to each other or store on disk. Pure functions.
//!
//! - [`entry`]: one log entry, as stored in segments and sent by migrations;
//! - [`entries`]: the consecutive entries of a segment;
//! - [`batch`]: many entries in one payload, grouped into runs of one table and slot;
//! - [`frame`]: the unit of a bus connection: a header with CRC, a message, and a raw payload;
//! - [`peer`]: messages between servers; [`control`]: messages between servers and coordinator;
//! - [`handshake`]: the first messages of every connection;
//! - [`replica`]: a segment's bytes on a disk, in pieces with checksums;
//! - [`saved`]: the state of its cluster that a server saves on disk;
//! - [`manifest`]: the segment manifest of a log, as stored on disks;
//! - [`text`]: parts of the text form of messages.
//!
//! `docs/formats.md` documents the layouts for readers without the code.
//!
//! **Invariant:** decoding is total. Any bytes decode to a value or a [`Corrupt`], never cause a
//! panic, and never cause an allocation larger than a constant times the number of bytes present.

#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

pub mod batch;
pub mod control;
pub mod entries;
pub mod entry;
pub mod frame;
pub mod handshake;
pub mod manifest;
pub mod peer;
pub mod replica;
pub mod saved;
pub mod text;

mod bounded;
mod checksum;

pub use bounded::incarnations;
pub use checksum::{crc32c, crc32c_append, crc32c_self_check};

/// Version of the bus protocol, compared in the handshake. Every change of a message raises it, and
/// every new type or form of values.
pub const PROTOCOL_VERSION: u16 = 15;

/// An error: bytes that do not decode, with the kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// The bytes end too early.
    #[error("{what} is cut short")]
    Short {
        /// The kind of data.
        what: &'static str,
    },
    /// The checksum does not match the bytes.
    #[error("checksum of {what} is wrong")]
    Checksum {
        /// The kind of data.
        what: &'static str,
    },
    /// A field has a value that no writer produces.
    #[error("{what} is not valid")]
    Invalid {
        /// The field.
        what: &'static str,
    },
    /// The checksum is right, but the format is of another version of Ballast.
    #[error("{what} is of format {found}, which this version of ballast cannot read")]
    Format {
        /// The kind of data.
        what: &'static str,
        /// The format number in the data.
        found: u16,
    },
}

impl Corrupt {
    /// Returns whether another version of Ballast could read the bytes.
    pub fn is_of_another_version(self) -> bool {
        matches!(self, Corrupt::Format { .. })
    }
}
