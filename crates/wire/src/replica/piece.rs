//! A piece of a replica: the bytes that its segment received in one turn.
//!
//! | offset | bytes | field of a piece's header |
//! | --- | --- | --- |
//! | 0 | 4 | offset of the bytes in the segment |
//! | 4 | 4 | number of bytes, at least one |
//! | 8 | 4 | synced length of the segment when the piece was made, at most the offset |
//! | 12 | 4 | low half of the segment's number |
//! | 16 | 8 | the server's version counter, an upper bound of all versions in the piece |
//! | 24 | 8 | the server's expiry clock: no read so far was judged by a later time |
//! | 32 | 4 | CRC-32C of the segment's bytes from its beginning to the end of this piece |
//! | 36 | 4 | CRC-32C of these 40 bytes, with the [`ReplicaIdentity`]'s seed in this place |
//!
//! Format 1 has no expiry clock: both checksums follow the version, and the header has 32 bytes.
//! It is read and no longer written.
//!
//! The segment's number protects the search for headers against random bytes that form a valid
//! checksum: with a million positions to try, one file in four thousand would contain such bytes.

use super::{ReplicaFormat, ReplicaIdentity, number, wide_number};
use crate::{
    Corrupt,
    checksum::{crc32c, crc32c_append},
};
use types::{UnixMillis, Version};

/// Bytes of a piece's header in the format that is written.
pub const PIECE_HEADER_BYTES: usize = 40;
/// The offset of every piece in its file is a multiple of this.
pub const PIECE_ALIGNMENT: usize = 8;

/// Bytes of a checksum, the last field of the header.
const SEAL_BYTES: usize = 4;

/// Returns the bytes of a piece in its file, header and padding included, in the current format.
pub const fn piece_bytes(body: usize) -> usize {
    ReplicaFormat::CURRENT.piece_bytes(body)
}

impl ReplicaFormat {
    /// Returns the bytes of a piece's header.
    pub const fn piece_header_bytes(self) -> usize {
        match self {
            ReplicaFormat::One => 32,
            ReplicaFormat::Two => PIECE_HEADER_BYTES,
        }
    }

    /// Returns the bytes of a piece in its file, header and padding included.
    pub const fn piece_bytes(self, body: usize) -> usize {
        self.piece_header_bytes() + body.next_multiple_of(PIECE_ALIGNMENT)
    }
}

/// The state of a server when it made a piece: upper bounds for the segment so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The server's version counter: no version in the segment up to here is higher.
    pub version: Version,
    /// The server's expiry clock: no earlier reply was judged by a later time. 0 in format 1.
    pub clock: UnixMillis,
}

/// The header of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceHeader {
    /// Offset of the bytes in the segment.
    pub offset: u32,
    /// Number of bytes.
    pub length: u32,
    /// Length of the segment that was known to be synced. If bytes below it are missing, the disk
    /// has lost them; a power loss cannot be the cause.
    pub synced: u32,
    /// The server's version counter and expiry clock.
    pub stamp: Stamp,
    /// Checksum of the segment from its beginning to the end of this piece.
    pub crc: u32,
}

impl PieceHeader {
    /// Encodes the header in the format that is written, for a piece of this replica.
    #[inline]
    pub fn encode(&self, identity: ReplicaIdentity) -> [u8; PIECE_HEADER_BYTES] {
        let mut out = [0; PIECE_HEADER_BYTES];
        out[..4].copy_from_slice(&self.offset.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..12].copy_from_slice(&self.synced.to_le_bytes());
        out[12..16].copy_from_slice(&identity.segment.to_le_bytes());
        out[16..24].copy_from_slice(&self.stamp.version.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.stamp.clock.0.to_le_bytes());
        out[32..36].copy_from_slice(&self.crc.to_le_bytes());
        let (sealed, seal) = out.split_at_mut(PIECE_HEADER_BYTES - SEAL_BYTES);
        seal.copy_from_slice(&seal_of(sealed, identity));
        out
    }

    /// Decodes the header of a piece of this replica. Headers of other replicas are rejected.
    #[inline]
    pub fn parse(bytes: &[u8], identity: ReplicaIdentity) -> Result<PieceHeader, Corrupt> {
        const SHORT: Corrupt = Corrupt::Short { what: "header of piece" };
        let bytes = bytes.get(..identity.format.piece_header_bytes()).ok_or(SHORT)?;
        // Checked before the checksum, because a search rejects almost all positions here.
        if number(bytes, 12) != identity.segment {
            return Err(Corrupt::Invalid { what: "segment of piece" });
        }
        let (sealed, seal) = bytes.split_at(bytes.len() - SEAL_BYTES);
        if seal_of(sealed, identity) != seal {
            return Err(Corrupt::Checksum { what: "header of piece" });
        }
        let clock = match identity.format {
            ReplicaFormat::One => UnixMillis(0),
            ReplicaFormat::Two => UnixMillis(wide_number(bytes, 24)),
        };
        let header = PieceHeader {
            offset: number(bytes, 0),
            length: number(bytes, 4),
            synced: number(bytes, 8),
            stamp: Stamp { version: Version(wide_number(bytes, 16)), clock },
            crc: number(bytes, bytes.len() - 2 * SEAL_BYTES),
        };
        if header.length == 0 || header.offset.checked_add(header.length).is_none() {
            return Err(Corrupt::Invalid { what: "length of piece" });
        }
        if header.synced > header.offset {
            return Err(Corrupt::Invalid { what: "synced length of piece" });
        }
        if header.stamp.version > Version::MAX {
            return Err(Corrupt::Invalid { what: "version of piece" });
        }
        Ok(header)
    }

    /// Returns the end of the piece in the segment. The sum cannot overflow: neither a writer nor
    /// [`PieceHeader::parse`] makes such a header.
    #[inline]
    pub fn end(&self) -> u32 {
        self.offset + self.length
    }

    /// Returns whether `body` is the piece's content, given the checksum of the segment before it.
    #[inline]
    pub fn is_of(&self, before: u32, body: &[u8]) -> bool {
        body.len() == self.length as usize && crc32c_append(before, body) == self.crc
    }
}

/// Returns the checksum of a header: over its other bytes, then the identity's seed.
#[inline]
fn seal_of(sealed: &[u8], identity: ReplicaIdentity) -> [u8; SEAL_BYTES] {
    crc32c_append(crc32c(sealed), &identity.seed.to_le_bytes()).to_le_bytes()
}

/// A generator of the headers of a replica's pieces, in order. To retry a piece that could not be
/// stored, use a copy of the writer made before [`PieceWriter::next`].
#[derive(Clone, Copy, Debug)]
pub struct PieceWriter {
    identity: ReplicaIdentity,
    offset: u32,
    crc: u32,
}

impl PieceWriter {
    /// Creates a writer at the beginning of the segment.
    ///
    /// # Panics
    /// If the replica has an older format, which is a bug: older formats are not written.
    pub fn new(identity: ReplicaIdentity) -> PieceWriter {
        assert_eq!(identity.format, ReplicaFormat::CURRENT, "an older format is only read");
        PieceWriter { identity, offset: 0, crc: crc32c(&[]) }
    }

    /// Returns the header of the piece with these bytes, which follow the previous piece in the
    /// segment.
    ///
    /// # Panics
    /// If `body` is empty, the segment would exceed the maximum length, or `synced` exceeds the
    /// length written before. Each is a bug.
    #[inline]
    pub fn next(&mut self, body: &[u8], synced: u32, stamp: Stamp) -> [u8; PIECE_HEADER_BYTES] {
        assert!(!body.is_empty(), "a piece of no bytes");
        assert!(body.len() <= (u32::MAX - self.offset) as usize, "piece of {}", body.len());
        assert!(synced <= self.offset, "synced up to {synced} of {}", self.offset);
        let length = body.len() as u32;
        self.crc = crc32c_append(self.crc, body);
        let header = PieceHeader { offset: self.offset, length, synced, stamp, crc: self.crc };
        self.offset += length;
        header.encode(self.identity)
    }

    /// Returns the length of the segment so far, in bytes.
    pub fn length(&self) -> u32 {
        self.offset
    }

    /// Returns the checksum of the segment so far.
    pub fn crc(&self) -> u32 {
        self.crc
    }
}
