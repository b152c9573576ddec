//! Every byte layout that crosses a socket between servers, or stands on a disk. Pure functions.
//!
//! - [`entry`]: one record of a log, as it stands in a segment, and as migration sends it;
//! - [`entries`]: the records of a segment, one behind the other;
//! - [`batch`]: many entries in one payload, grouped into runs of one table and slot;
//! - [`frame`]: what a bus connection carries: a header with CRC, a message, a raw payload;
//! - [`peer`]: messages between servers; [`control`]: messages between servers and coordinator;
//! - [`replica`]: a segment's bytes on a disk, in pieces that say up to where they are whole;
//! - [`saved`]: what a server writes down about its cluster;
//! - [`directory`]: the list of the segments that make up a log, as it stands on disks.
//!
//! The layouts are written down once more, for people, in `docs/formats.md`.
//!
//! **Invariant:** decoding is total. Any bytes give a value or a [`Corrupt`], never a panic, and
//! never an allocation larger than a constant times the bytes that are there.

#![forbid(unsafe_code)]

pub mod batch;
pub mod control;
pub mod directory;
pub mod entries;
pub mod entry;
pub mod frame;
pub mod handshake;
pub mod peer;
pub mod replica;
pub mod saved;

mod bounded;
mod checksum;

pub use checksum::{crc32c, crc32c_append, crc32c_self_check};

/// Version of the bus protocol, compared in the handshake. Raised by every change of a message.
pub const PROTOCOL_VERSION: u16 = 8;

/// Bytes that were not what they should be, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// The bytes end before the thing does.
    #[error("{what} is cut short")]
    Short {
        /// The kind of data that was read.
        what: &'static str,
    },
    /// The checksum does not match the bytes.
    #[error("checksum of {what} is wrong")]
    Checksum {
        /// The kind of data that was read.
        what: &'static str,
    },
    /// A field has a value that no writer writes.
    #[error("{what} is not valid")]
    Invalid {
        /// Which field.
        what: &'static str,
    },
    /// Another version of Ballast wrote it: the checksum is right, and the format is not ours.
    #[error("{what} is of format {found}, which this version of ballast cannot read")]
    Format {
        /// The kind of data that was read.
        what: &'static str,
        /// The format that it has.
        found: u16,
    },
}

impl Corrupt {
    /// Returns whether another version of Ballast could read the bytes.
    pub fn is_of_another_version(self) -> bool {
        matches!(self, Corrupt::Format { .. })
    }
}
