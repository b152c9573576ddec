//! Reads the pieces of a replica, and finds out why there are no more.
//!
//! A replica is written from front to back by one writer, so without a loss of power nothing can
//! follow a place where no piece stands. With one, what was not yet synced may be lost in any
//! combination of blocks. Therefore, once no whole piece follows, the rest of the file is searched
//! for headers of later pieces, and the highest `stable` among them says what had been synced.

use super::{
    Identity, PIECE_ALIGNMENT, PIECES_FROM, PieceHeader, ReplicaFormat, ReplicaHeader, Stamp,
};
use crate::checksum::crc32c;

/// Up to where a replica is whole, and why it ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// Bytes of the segment that were read.
    pub length: u32,
    /// Their checksum.
    pub crc: u32,
    /// The highest version counter and expiry clock of the pieces; 0 if there was none.
    pub stamp: Stamp,
    /// Where in the file the next piece would begin.
    pub place: u64,
    /// Why it ends.
    pub end: End,
}

/// Why a replica ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing was begun behind the last piece.
    Clean,
    /// A piece was begun and is not whole, and nothing follows: its writer was interrupted.
    Torn,
    /// There are pieces behind the place where none stands.
    Hole {
        /// Up to here the segment had been synced, say those pieces.
        stable: u32,
    },
}

impl ReadEnd {
    /// Whether a disk has lost or changed what it was given, which no crash explains. Else bytes
    /// behind the end, if there were any, had not been synced.
    ///
    /// `power_was_lost`: the machine has started again since the replica was made, so that what had
    /// not been synced may be missing.
    pub fn is_damaged(&self, power_was_lost: bool) -> bool {
        match self.end {
            End::Clean | End::Torn => false,
            End::Hole { stable } => !power_was_lost || stable > self.length,
        }
    }
}

/// Reads the bytes of a replica as they come. Nothing that it hands out is unchecked.
#[derive(Clone, Debug)]
pub struct PieceReader {
    identity: Identity,
    segment_bytes: u32,
    read: ReadEnd,
    /// What stands behind the last whole piece; `None` while that is not known.
    behind: Option<End>,
}

impl PieceReader {
    /// Begins with the bytes at [`PIECES_FROM`].
    pub fn new(header: &ReplicaHeader) -> PieceReader {
        let (crc, stamp) = (crc32c(&[]), Stamp::default());
        PieceReader {
            identity: header.identity(),
            segment_bytes: header.segment_bytes,
            read: ReadEnd { length: 0, crc, stamp, place: PIECES_FROM, end: End::Clean },
            behind: None,
        }
    }

    /// Takes whole pieces off the front of `bytes`, hands out what is in them, and returns how many
    /// bytes it took. The rest is to be given again, with more behind it.
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
                Look::Nothing => self.behind = Some(End::Clean),
                Look::Changed => self.behind = Some(End::Torn),
            }
        }
        at + self.search(&bytes[at..])
    }

    /// Takes the last bytes: nothing comes behind them.
    pub fn finish(mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) -> ReadEnd {
        let rest = &bytes[self.read(bytes, each)..];
        if self.behind.is_none() {
            let is_begun = PieceHeader::parse(rest, self.identity).is_ok();
            self.behind = Some(if is_begun { End::Torn } else { End::Clean });
            self.search(rest);
        }
        ReadEnd { end: self.behind.unwrap_or(End::Clean), ..self.read }
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

    /// Searches for headers of later pieces. Leaves what may be the beginning of one.
    fn search(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(place) = bytes.get(at..at + self.format().piece_header_bytes()) {
            if let Ok(found) = PieceHeader::parse(place, self.identity)
                && found.offset > self.read.length
                && found.end() <= self.segment_bytes
            {
                let before = match self.behind {
                    Some(End::Hole { stable }) => stable,
                    Some(End::Clean | End::Torn) | None => 0,
                };
                self.behind = Some(End::Hole { stable: before.max(found.stable) });
            }
            at += PIECE_ALIGNMENT;
        }
        at
    }
}

/// What stands at a place where the next piece may begin.
enum Look {
    /// A whole piece.
    Piece(PieceHeader),
    /// What may be one, when more bytes have come.
    Unfinished,
    /// No piece was begun here.
    Nothing,
    /// The header of the next piece, and other bytes than it says.
    Changed,
}
