//! A reader of the pieces of a replica that determines why the replica ends.
//!
//! One writer writes a replica from front to back, so without a power loss no piece can follow a
//! gap. A power loss may remove unsynced blocks in any combination. After the last consecutive
//! piece, the reader therefore searches the rest of the file for headers of later pieces. The
//! highest `synced` among them is the length that had been synced.

use super::{
    PIECE_ALIGNMENT, PIECES_FROM, PieceHeader, ReplicaFormat, ReplicaHeader, ReplicaIdentity, Stamp,
};
use crate::checksum::crc32c;

/// The end of the valid part of a replica, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// Bytes of the segment that were read.
    pub length: u32,
    /// Their checksum.
    pub crc: u32,
    /// The highest version counter and expiry clock of the pieces; 0 without pieces.
    pub stamp: Stamp,
    /// Offset in the file at which the next piece would begin.
    pub place: u64,
    /// The reason for the end.
    pub end: ReplicaEnd,
}

/// The reason why a replica ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaEnd {
    /// No further piece was begun.
    Clean,
    /// A piece was begun and is incomplete, and none follows: its writer was interrupted.
    Torn,
    /// Later pieces exist behind a gap.
    Hole {
        /// The length of the segment that had been synced, according to the later pieces.
        synced: u32,
    },
}

impl ReadEnd {
    /// Returns whether the disk has lost or changed bytes in a way that no crash explains.
    /// Otherwise any missing bytes had not been synced.
    ///
    /// `power_was_lost`: the machine has restarted since the replica was created, so unsynced
    /// bytes may be missing.
    pub fn is_damaged(&self, power_was_lost: bool) -> bool {
        match self.end {
            ReplicaEnd::Clean | ReplicaEnd::Torn => false,
            ReplicaEnd::Hole { synced } => !power_was_lost || synced > self.length,
        }
    }
}

/// An incremental reader of a replica's bytes. It passes on verified bytes only.
#[derive(Clone, Debug)]
pub struct PieceReader {
    identity: ReplicaIdentity,
    segment_bytes: u32,
    read: ReadEnd,
    /// The reason for the end after the last whole piece; `None` while it is unknown.
    behind: Option<ReplicaEnd>,
}

impl PieceReader {
    /// Creates a reader that begins at [`PIECES_FROM`].
    pub fn new(header: &ReplicaHeader) -> PieceReader {
        let (crc, stamp) = (crc32c(&[]), Stamp::default());
        PieceReader {
            identity: header.identity(),
            segment_bytes: header.segment_bytes,
            read: ReadEnd { length: 0, crc, stamp, place: PIECES_FROM, end: ReplicaEnd::Clean },
            behind: None,
        }
    }

    /// Consumes whole pieces from the front of `bytes`, passes their content to `each`, and returns
    /// the number of bytes consumed. The caller passes the rest again, with more bytes after it.
    pub fn read(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) -> usize {
        let mut at = 0;
        while self.behind.is_none() {
            match self.look(&bytes[at..]) {
                Look::Piece(header) => {
                    let body = &bytes[at + self.format().piece_header_bytes()..];
                    each(&body[..header.length as usize]);
                    let taken = self.format().piece_bytes(header.length as usize);
                    self.read.length = header.end();
                    self.read.crc = header.crc;
                    let stamp = &mut self.read.stamp;
                    stamp.version = stamp.version.max(header.stamp.version);
                    stamp.clock = stamp.clock.max(header.stamp.clock);
                    self.read.place += taken as u64;
                    at += taken;
                }
                Look::Unfinished => return at,
                Look::Nothing => self.behind = Some(ReplicaEnd::Clean),
                Look::Changed => self.behind = Some(ReplicaEnd::Torn),
            }
        }
        at + self.search(&bytes[at..])
    }

    /// Consumes the last bytes of the file and returns the end of the replica.
    pub fn finish(mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) -> ReadEnd {
        let rest = &bytes[self.read(bytes, each)..];
        if self.behind.is_none() {
            let is_begun = PieceHeader::parse(rest, self.identity).is_ok();
            self.behind = Some(if is_begun { ReplicaEnd::Torn } else { ReplicaEnd::Clean });
            self.search(rest);
        }
        ReadEnd { end: self.behind.unwrap_or(ReplicaEnd::Clean), ..self.read }
    }

    fn format(&self) -> ReplicaFormat {
        self.identity.format
    }

    /// Looks for the next piece at the beginning of `bytes`.
    fn look(&self, bytes: &[u8]) -> Look {
        if bytes.len() < self.format().piece_header_bytes() {
            return Look::Unfinished;
        }
        let Ok(header) = PieceHeader::parse(bytes, self.identity) else { return Look::Nothing };
        if header.offset != self.read.length || header.end() > self.segment_bytes {
            return Look::Nothing;
        }
        let length = header.length as usize;
        if bytes.len() < self.format().piece_bytes(length) {
            return Look::Unfinished;
        }
        let body = &bytes[self.format().piece_header_bytes()..][..length];
        if header.is_of(self.read.crc, body) { Look::Piece(header) } else { Look::Changed }
    }

    /// Searches for headers of later pieces. Returns the bytes consumed; the rest may be a
    /// partial header.
    fn search(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(place) = bytes.get(at..at + self.format().piece_header_bytes()) {
            if let Ok(found) = PieceHeader::parse(place, self.identity)
                && found.offset > self.read.length
                && found.end() <= self.segment_bytes
            {
                let before = match self.behind {
                    Some(ReplicaEnd::Hole { synced }) => synced,
                    Some(ReplicaEnd::Clean | ReplicaEnd::Torn) | None => 0,
                };
                self.behind = Some(ReplicaEnd::Hole { synced: before.max(found.synced) });
            }
            at += PIECE_ALIGNMENT;
        }
        at
    }
}

/// The content of a position at which the next piece may begin.
enum Look {
    /// A whole piece.
    Piece(PieceHeader),
    /// A possible piece that needs more bytes.
    Unfinished,
    /// No piece was begun here.
    Nothing,
    /// The header of the next piece with bytes that do not match its checksum.
    Changed,
}
