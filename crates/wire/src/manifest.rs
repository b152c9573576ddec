//! The segment manifest of a log as stored on disk (the segment manifest).
//!
//! A manifest is a log of its own, made of small segments. The body of each of its pieces is the
//! postcard encoding of a list of [`ManifestEntry`], padded with zeros to a multiple of 8. The
//! first entry of each manifest segment is a [`ManifestEntry::Snapshot`], so that all older
//! segments can be freed. A piece may contain several such lists in succession.

use crate::Corrupt;
use serde::{Deserialize, Serialize};
use types::{SegmentId, Version};

/// The length of each encoded list is a multiple of this.
const ALIGNMENT: usize = 8;

/// A change to the set of segments that make up a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManifestEntry {
    /// The complete set of segments, ascending: the result of all entries before this one.
    Snapshot {
        /// The segments of the log.
        segments: Vec<SegmentRecord>,
    },
    /// The segment is registered; from here on its entries count.
    Open {
        /// The segment.
        segment: SegmentId,
    },
    /// The segment is closed, and every replica has all of it.
    Close {
        /// The segment.
        segment: SegmentId,
        /// The content of the segment.
        content: SegmentContent,
    },
    /// The segment no longer belongs to the log.
    Drop {
        /// The segment.
        segment: SegmentId,
    },
    /// The log is complete up to this mark, whatever a loss of power takes. Replaces the mark
    /// before it.
    Mark(VersionMark),
    /// Entries that a restart after a loss of power has ignored, and that remain ignored.
    Cut(VersionCut),
}

/// A mark up to which a log is complete: see `docs/design/durability.md`, hard part 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionMark {
    /// Segments up to this one are complete. They were written by an earlier process.
    pub whole: SegmentId,
    /// In later segments, all entries up to this version are synced.
    pub version: Version,
}

impl VersionMark {
    /// Returns the entries above the mark in the segments up to `last`; `None` if no such segment
    /// may have any.
    pub fn cut(&self, last: SegmentId) -> Option<VersionCut> {
        let VersionMark { whole, version } = *self;
        (whole < last).then_some(VersionCut { after: whole, through: last, above: version })
    }
}

/// Entries that do not count, although they are in segments of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionCut {
    /// The segments have higher numbers than this one.
    pub after: SegmentId,
    /// Last of the segments.
    pub through: SegmentId,
    /// Entries of these segments with higher versions do not count.
    pub above: Version,
}

impl VersionCut {
    /// Returns whether the segment may have entries that do not count.
    pub fn concerns(&self, segment: SegmentId) -> bool {
        self.after < segment && segment <= self.through
    }

    /// Returns whether an entry does not count.
    pub fn ignores(&self, segment: SegmentId, version: Version) -> bool {
        self.concerns(segment) && version > self.above
    }
}

/// A segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentRecord {
    /// The segment.
    pub segment: SegmentId,
    /// The content of a closed segment; `None`: open, and ends at its last whole piece.
    pub content: Option<SegmentContent>,
}

/// The content of a closed segment. A replica with fewer bytes or another checksum is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentContent {
    /// Bytes of all entries.
    pub length: u32,
    /// Running checksum at the end, as in the header of the last piece.
    pub crc: u32,
}

/// Encodes the body of a piece with these entries.
pub fn encode(entries: &[ManifestEntry]) -> Vec<u8> {
    #[expect(clippy::expect_used, reason = "serializing plain data into a Vec cannot fail")]
    let mut body = postcard::to_stdvec(entries).expect("plain data can be serialized");
    body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
    body
}

/// Decodes the entries of a piece's body. The body may contain several encoded lists, because a
/// replica that lags behind receives them in one piece.
pub fn decode(body: &[u8]) -> Result<Vec<ManifestEntry>, Corrupt> {
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

const WRONG: Corrupt = Corrupt::Invalid { what: "entries of the segment manifest" };

/// Decodes one list and its padding. Returns the entries and the remaining bytes.
fn take_list(bytes: &[u8]) -> Result<(Vec<ManifestEntry>, &[u8]), Corrupt> {
    let (entries, rest) = postcard::take_from_bytes(bytes).map_err(|_| WRONG)?;
    let padding = (bytes.len() - rest.len()).wrapping_neg() % ALIGNMENT;
    let (padding, rest) = rest.split_at_checked(padding).ok_or(WRONG)?;
    if padding.iter().all(|byte| *byte == 0) { Ok((entries, rest)) } else { Err(WRONG) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<ManifestEntry> {
        let content = SegmentContent { length: 4096, crc: 0x1234_5678 };
        let open = SegmentRecord { segment: SegmentId(1), content: None };
        let closed = SegmentRecord { segment: SegmentId(300), content: Some(content) };
        vec![
            ManifestEntry::Snapshot { segments: vec![open, closed] },
            ManifestEntry::Open { segment: SegmentId(301) },
            ManifestEntry::Close { segment: SegmentId(1), content },
            ManifestEntry::Drop { segment: SegmentId(300) },
            ManifestEntry::Mark(VersionMark { whole: SegmentId(299), version: Version(1 << 40) }),
            ManifestEntry::Cut(VersionCut {
                after: SegmentId(7),
                through: SegmentId(299),
                above: Version(1 << 33),
            }),
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
    fn entries_are_encoded_as_the_documented_format_says() {
        let hex = |entries: &[ManifestEntry]| -> String {
            encode(entries).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let open = ManifestEntry::Open { segment: SegmentId(301) };
        assert_eq!(hex(&[open]), "0101ad0200000000");
        assert_eq!(hex(&samples()[..1]), "0100020100ac02018020f8acd1910100");
        assert_eq!(hex(&samples()[4..5]), "0104ab02808080808020000000000000");
        assert_eq!(hex(&samples()[5..]), "010507ab028080808020000000000000");
    }

    #[test]
    fn a_cut_concerns_later_versions_in_its_segments() {
        let mark = VersionMark { whole: SegmentId(3), version: Version(10) };
        assert_eq!(mark.cut(SegmentId(3)), None);
        let cut = mark.cut(SegmentId(5)).unwrap();
        assert!(cut.ignores(SegmentId(4), Version(11)) && cut.ignores(SegmentId(5), Version(11)));
        assert!(!cut.ignores(SegmentId(4), Version(10)), "complete");
        assert!(!cut.ignores(SegmentId(3), Version(11)), "of an earlier process");
        assert!(!cut.ignores(SegmentId(6), Version(11)), "of a later process");
    }

    /// `docs/design/durability.md` and `replication.md` compute with this number.
    #[test]
    fn a_segment_takes_thirty_two_bytes_of_the_manifest() {
        let segment = SegmentId((1 << 35) - 1);
        let content = SegmentContent { length: 8 << 20, crc: u32::MAX };
        let life = [
            ManifestEntry::Open { segment },
            ManifestEntry::Close { segment, content },
            ManifestEntry::Drop { segment },
        ];
        assert_eq!(life.map(|entry| encode(&[entry]).len()), [8, 16, 8]);
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
