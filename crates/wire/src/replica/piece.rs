//! One piece of a replica: what its segment got in one turn.
//!
//! | offset | bytes | field of a piece's header |
//! | --- | --- | --- |
//! | 0 | 4 | where the bytes stand in the segment |
//! | 4 | 4 | how many they are, at least one |
//! | 8 | 4 | up to where the segment was stable when the piece was made, at most the offset |
//! | 12 | 4 | low half of the segment's number |
//! | 16 | 8 | the server's version counter, not below any version in the piece |
//! | 24 | 4 | CRC-32C of the segment's bytes from its beginning to the end of this piece |
//! | 28 | 4 | CRC-32C of these 32 bytes, with the [`Identity`]'s seed in this place |
//!
//! The segment's number is there so that a search for headers among arbitrary bytes does not hit
//! upon four bytes that happen to be a checksum: with a million places to look at, one file in four
//! thousand would have such.

use super::{Identity, number, wide_number};
use crate::{
    Corrupt,
    checksum::{crc32c, crc32c_append},
};
use types::Version;

/// Bytes of a piece's header.
pub const PIECE_HEADER_BYTES: usize = 32;
/// Pieces begin at multiples of this in their file.
pub const PIECE_ALIGNMENT: usize = 8;

/// Where the checksum stands.
const CHECKED: usize = PIECE_HEADER_BYTES - 4;

/// Bytes that a piece takes in its file, header and padding included.
pub const fn piece_bytes(body: usize) -> usize {
    PIECE_HEADER_BYTES + body.next_multiple_of(PIECE_ALIGNMENT)
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
    /// The server's version counter: no version in the segment up to here is higher.
    pub version: Version,
    /// Checksum of the segment from its beginning to the end of this piece.
    pub crc: u32,
}

impl PieceHeader {
    /// Its bytes, for a piece of this replica.
    #[inline]
    pub fn encode(&self, identity: Identity) -> [u8; PIECE_HEADER_BYTES] {
        let mut out = [0; PIECE_HEADER_BYTES];
        out[..4].copy_from_slice(&self.offset.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..12].copy_from_slice(&self.stable.to_le_bytes());
        out[12..16].copy_from_slice(&identity.segment.to_le_bytes());
        out[16..24].copy_from_slice(&self.version.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.crc.to_le_bytes());
        seal(&mut out, identity);
        out
    }

    /// Reads a header of a piece of this replica; the bytes of any other one are refused.
    #[inline]
    pub fn parse(bytes: &[u8], identity: Identity) -> Result<PieceHeader, Corrupt> {
        const SHORT: Corrupt = Corrupt::Short { what: "header of piece" };
        let bytes: &[u8; PIECE_HEADER_BYTES] = bytes.first_chunk().ok_or(SHORT)?;
        // Before the checksum: almost all places that a search looks at end here.
        if number(bytes, 12) != identity.segment {
            return Err(Corrupt::Invalid { what: "segment of piece" });
        }
        let mut sealed = *bytes;
        seal(&mut sealed, identity);
        if sealed != *bytes {
            return Err(Corrupt::Checksum { what: "header of piece" });
        }
        let header = PieceHeader {
            offset: number(bytes, 0),
            length: number(bytes, 4),
            stable: number(bytes, 8),
            version: Version(wide_number(bytes, 16)),
            crc: number(bytes, 24),
        };
        if header.length == 0 || header.offset.checked_add(header.length).is_none() {
            return Err(Corrupt::Invalid { what: "length of piece" });
        }
        if header.stable > header.offset {
            return Err(Corrupt::Invalid { what: "stable length of piece" });
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

/// Puts the checksum in.
#[inline]
fn seal(header: &mut [u8; PIECE_HEADER_BYTES], identity: Identity) {
    header[CHECKED..].copy_from_slice(&identity.seed.to_le_bytes());
    let crc = crc32c(header);
    header[CHECKED..].copy_from_slice(&crc.to_le_bytes());
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
    pub fn new(identity: Identity) -> PieceWriter {
        PieceWriter { identity, offset: 0, crc: crc32c(&[]) }
    }

    /// The header of the piece of these bytes, which stand in the segment right behind those of the
    /// piece before.
    ///
    /// # Panics
    /// If there are no bytes, the segment would be longer than any, or `stable` is above what was
    /// written before: our bug.
    #[inline]
    pub fn next(&mut self, body: &[u8], stable: u32, version: Version) -> [u8; PIECE_HEADER_BYTES] {
        assert!(!body.is_empty(), "a piece of no bytes");
        assert!(body.len() <= (u32::MAX - self.offset) as usize, "piece of {}", body.len());
        assert!(stable <= self.offset, "stable up to {stable} of {}", self.offset);
        let length = body.len() as u32;
        self.crc = crc32c_append(self.crc, body);
        let header = PieceHeader { offset: self.offset, length, stable, version, crc: self.crc };
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
