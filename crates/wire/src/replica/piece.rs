//! One piece of a replica: what its segment got in one turn.
//!
//! | offset | bytes | field of a piece's header |
//! | --- | --- | --- |
//! | 0 | 4 | where the bytes stand in the segment |
//! | 4 | 4 | how many they are, at least one |
//! | 8 | 4 | up to where the segment was stable when the piece was made, at most the offset |
//! | 12 | 4 | low half of the segment's number |
//! | 16 | 8 | the server's version counter, not below any version in the piece |
//! | 24 | 8 | the server's expiry clock: no read up to here was judged by a later time |
//! | 32 | 4 | CRC-32C of the segment's bytes from its beginning to the end of this piece |
//! | 36 | 4 | CRC-32C of these 40 bytes, with the [`Identity`]'s seed in this place |
//!
//! In format 1 there is no expiry clock: both checksums follow the version, and the header has 32
//! bytes. It is read and no longer written.
//!
//! The segment's number is there so that a search for headers among arbitrary bytes does not hit
//! upon four bytes that happen to be a checksum: with a million places to look at, one file in four
//! thousand would have such.

use super::{Identity, ReplicaFormat, number, wide_number};
use crate::{
    Corrupt,
    checksum::{crc32c, crc32c_append},
};
use types::{UnixMillis, Version};

/// Bytes of a piece's header, in the format that is written.
pub const PIECE_HEADER_BYTES: usize = 40;
/// Pieces begin at multiples of this in their file.
pub const PIECE_ALIGNMENT: usize = 8;

/// Bytes of a checksum, the last field of the header.
const SEAL_BYTES: usize = 4;

/// Bytes that a piece takes in its file, header and padding included, in the format that is written.
pub const fn piece_bytes(body: usize) -> usize {
    ReplicaFormat::CURRENT.piece_bytes(body)
}

impl ReplicaFormat {
    /// Bytes of a piece's header.
    pub const fn piece_header_bytes(self) -> usize {
        match self {
            ReplicaFormat::One => 32,
            ReplicaFormat::Two => PIECE_HEADER_BYTES,
        }
    }

    /// Bytes that a piece takes in its file, header and padding included.
    pub const fn piece_bytes(self, body: usize) -> usize {
        self.piece_header_bytes() + body.next_multiple_of(PIECE_ALIGNMENT)
    }
}

/// The state of a server at the moment when it made a piece: upper bounds for all that stands in
/// the segment up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The server's version counter: no version in the segment up to here is higher.
    pub version: Version,
    /// The server's expiry clock: nobody was answered by a later time before the piece was made. 0
    /// in format 1.
    pub clock: UnixMillis,
}

/// What a piece says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceHeader {
    /// Where its bytes stand in the segment.
    pub offset: u32,
    /// How many they are.
    pub length: u32,
    /// Up to where the segment was known to be stable: if bytes below this are missing, the disk
    /// has lost them, and not a loss of power.
    pub stable: u32,
    /// Its server's version counter and expiry clock.
    pub stamp: Stamp,
    /// Checksum of the segment from its beginning to the end of this piece.
    pub crc: u32,
}

impl PieceHeader {
    /// Its bytes in the format that is written, for a piece of this replica.
    #[inline]
    pub fn encode(&self, identity: Identity) -> [u8; PIECE_HEADER_BYTES] {
        let mut out = [0; PIECE_HEADER_BYTES];
        out[..4].copy_from_slice(&self.offset.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..12].copy_from_slice(&self.stable.to_le_bytes());
        out[12..16].copy_from_slice(&identity.segment.to_le_bytes());
        out[16..24].copy_from_slice(&self.stamp.version.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.stamp.clock.0.to_le_bytes());
        out[32..36].copy_from_slice(&self.crc.to_le_bytes());
        let (sealed, seal) = out.split_at_mut(PIECE_HEADER_BYTES - SEAL_BYTES);
        seal.copy_from_slice(&seal_of(sealed, identity));
        out
    }

    /// Reads a header of a piece of this replica; the bytes of any other one are refused.
    #[inline]
    pub fn parse(bytes: &[u8], identity: Identity) -> Result<PieceHeader, Corrupt> {
        const SHORT: Corrupt = Corrupt::Short { what: "header of piece" };
        let bytes = bytes.get(..identity.format.piece_header_bytes()).ok_or(SHORT)?;
        // Before the checksum: almost all places that a search looks at end here.
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
            stable: number(bytes, 8),
            stamp: Stamp { version: Version(wide_number(bytes, 16)), clock },
            crc: number(bytes, bytes.len() - 2 * SEAL_BYTES),
        };
        if header.length == 0 || header.offset.checked_add(header.length).is_none() {
            return Err(Corrupt::Invalid { what: "length of piece" });
        }
        if header.stable > header.offset {
            return Err(Corrupt::Invalid { what: "stable length of piece" });
        }
        if header.stamp.version > Version::MAX {
            return Err(Corrupt::Invalid { what: "version of piece" });
        }
        Ok(header)
    }

    /// Where the piece ends in the segment. No overflow: neither a writer nor [`PieceHeader::parse`]
    /// makes such a header.
    #[inline]
    pub fn end(&self) -> u32 {
        self.offset + self.length
    }

    /// Whether these are its bytes, if the segment's bytes before it have the checksum `before`.
    #[inline]
    pub fn is_of(&self, before: u32, body: &[u8]) -> bool {
        body.len() == self.length as usize && crc32c_append(before, body) == self.crc
    }
}

/// Returns the checksum of a header: of its bytes before the checksum, and of the seed in its place.
#[inline]
fn seal_of(sealed: &[u8], identity: Identity) -> [u8; SEAL_BYTES] {
    crc32c_append(crc32c(sealed), &identity.seed.to_le_bytes()).to_le_bytes()
}

/// Makes the headers of a replica's pieces, in order. A copy made before [`PieceWriter::next`] goes
/// on from there, when a piece could not be stored.
#[derive(Clone, Copy, Debug)]
pub struct PieceWriter {
    identity: Identity,
    offset: u32,
    crc: u32,
}

impl PieceWriter {
    /// Begins at the beginning of the segment.
    ///
    /// # Panics
    /// If the replica has an older format, which is not written: our bug.
    pub fn new(identity: Identity) -> PieceWriter {
        assert_eq!(identity.format, ReplicaFormat::CURRENT, "an older format is only read");
        PieceWriter { identity, offset: 0, crc: crc32c(&[]) }
    }

    /// The header of the piece of these bytes, which stand in the segment right behind those of the
    /// piece before.
    ///
    /// # Panics
    /// If there are no bytes, the segment would be longer than any, or `stable` is above what was
    /// written before: our bug.
    #[inline]
    pub fn next(&mut self, body: &[u8], stable: u32, stamp: Stamp) -> [u8; PIECE_HEADER_BYTES] {
        assert!(!body.is_empty(), "a piece of no bytes");
        assert!(body.len() <= (u32::MAX - self.offset) as usize, "piece of {}", body.len());
        assert!(stable <= self.offset, "stable up to {stable} of {}", self.offset);
        let length = body.len() as u32;
        self.crc = crc32c_append(self.crc, body);
        let header = PieceHeader { offset: self.offset, length, stable, stamp, crc: self.crc };
        self.offset += length;
        header.encode(self.identity)
    }

    /// Bytes of the segment up to here.
    pub fn length(&self) -> u32 {
        self.offset
    }

    /// Checksum of the segment up to here.
    pub fn crc(&self) -> u32 {
        self.crc
    }
}
