//! The log directory on disk: which segments make up a server's log.
//!
//! A directory is a chain of small segments of its own. The body of each of its pieces is the
//! postcard encoding of a list of [`DirectoryEntry`], then zeros up to a multiple of 8. The first
//! entry of each directory segment is a [`DirectoryEntry::Snapshot`], so that all older ones can go.
//! A piece may have several such lists, one behind the other.

use crate::Corrupt;
use serde::{Deserialize, Serialize};
use types::SegmentId;

/// Bodies of pieces are as long as a multiple of this.
const ALIGNMENT: usize = 8;

/// What happened to the set of segments that make up a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryEntry {
    /// These and no others, in ascending order: what all entries before this one come down to.
    Snapshot {
        /// The segments of the log.
        segments: Vec<SegmentRecord>,
    },
    /// From here on the segment may hold entries that count.
    Open {
        /// The segment.
        segment: SegmentId,
    },
    /// The segment has got its last entry, and is whole where it is kept.
    Close {
        /// The segment.
        segment: SegmentId,
        /// What it holds.
        content: Content,
    },
    /// The segment is no part of the log any more.
    Drop {
        /// The segment.
        segment: SegmentId,
    },
}

/// One segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentRecord {
    /// The segment.
    pub segment: SegmentId,
    /// `None`: it may still grow, and ends where its last whole piece ends.
    pub content: Option<Content>,
}

/// What a segment holds that has got its last entry: a replica with less or with something else is
/// no replica of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Content {
    /// Bytes of all entries.
    pub length: u32,
    /// Running checksum at its end, as in the last piece's header.
    pub crc: u32,
}

/// The body of a piece with these entries.
pub fn encode(entries: &[DirectoryEntry]) -> Vec<u8> {
    #[expect(clippy::expect_used, reason = "serializing plain data into a Vec cannot fail")]
    let mut body = postcard::to_stdvec(entries).expect("plain data can be serialized");
    body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
    body
}

/// The entries of a piece's body. It may be several that were encoded one by one: a replica that
/// lags behind gets them in one piece.
pub fn decode(body: &[u8]) -> Result<Vec<DirectoryEntry>, Corrupt> {
    let (mut entries, mut rest) = take_list(body)?;
    while !rest.is_empty() {
        let (more, behind) = take_list(rest)?;
        if more.is_empty() {
            return Err(WRONG);
        }
        entries.extend(more);
        rest = behind;
    }
    Ok(entries)
}

const WRONG: Corrupt = Corrupt::Invalid { what: "entries of the log directory" };

/// One list with the zeros behind it, and what follows.
fn take_list(bytes: &[u8]) -> Result<(Vec<DirectoryEntry>, &[u8]), Corrupt> {
    let (entries, rest) = postcard::take_from_bytes(bytes).map_err(|_| WRONG)?;
    let padding = (bytes.len() - rest.len()).wrapping_neg() % ALIGNMENT;
    let (padding, rest) = rest.split_at_checked(padding).ok_or(WRONG)?;
    if padding.iter().all(|byte| *byte == 0) { Ok((entries, rest)) } else { Err(WRONG) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<DirectoryEntry> {
        let content = Content { length: 4096, crc: 0x1234_5678 };
        let open = SegmentRecord { segment: SegmentId(1), content: None };
        let closed = SegmentRecord { segment: SegmentId(300), content: Some(content) };
        vec![
            DirectoryEntry::Snapshot { segments: vec![open, closed] },
            DirectoryEntry::Open { segment: SegmentId(301) },
            DirectoryEntry::Close { segment: SegmentId(1), content },
            DirectoryEntry::Drop { segment: SegmentId(300) },
        ]
    }

    #[test]
    fn entries_come_back_as_they_went() {
        for count in 0..=samples().len() {
            let body = encode(&samples()[..count]);
            assert_eq!(body.len() % ALIGNMENT, 0);
            assert_eq!(decode(&body).unwrap(), samples()[..count]);
        }
    }

    #[test]
    fn several_bodies_in_one_piece_are_read_as_one() {
        let all = samples();
        for cut in 1..all.len() {
            let together = [encode(&all[..cut]), encode(&all[cut..])].concat();
            assert_eq!(decode(&together).unwrap(), all);
        }
    }

    #[test]
    fn what_is_no_list_of_entries_is_refused() {
        let body = encode(&samples());
        let decoded = decode(&body).unwrap().len();
        for length in 0..body.len() {
            let cut = decode(&body[..length]);
            assert!(cut.is_err() || cut.unwrap().len() == decoded, "cut at {length}");
        }
        let mut more = body.clone();
        more.extend_from_slice(&[0; 8]);
        assert!(decode(&more).is_err(), "padding is shorter than that");
        assert!(decode(&[9, 9, 9, 9]).is_err());
    }
}
