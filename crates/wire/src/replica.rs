//! A replica: the bytes of one log segment, as stored in a file of a backup.
//!
//! A file begins with a block of 4,096 bytes, of which the first 64 are the [`ReplicaHeader`].
//! *Pieces* follow, each with the bytes that the segment received in one turn: a [`PieceHeader`]
//! of 40 bytes, the bytes, and zeros up to a multiple of 8. Bytes after the last piece are
//! meaningless, because files are reused without being cleared.
//!
//! | offset | bytes | field of a replica's header |
//! | --- | --- | --- |
//! | 0 | 8 | magic `BALLASTR` |
//! | 8 | 2 | format: 2 is written, 1 is read as well |
//! | 10 | 1 | kind: 1 data, 2 manifest (segment manifest) |
//! | 11 | 1 | 0 |
//! | 12 | 4 | bytes of a full segment of this log |
//! | 16 | 8 | cluster |
//! | 24 | 4 | log |
//! | 28 | 4 | epoch of the replica |
//! | 32 | 8 | segment |
//! | 40 | 16 | boot id of the machine when the replica was created |
//! | 56 | 4 | order: rises with every replica created on the disk |
//! | 60 | 4 | CRC-32C of the first 60 bytes |
//!
//! Every piece carries the checksum of its segment *from the first byte on*, so the last whole
//! piece certifies everything before it. The checksum of a piece's header depends on the replica's
//! [`ReplicaIdentity`], so bytes of an earlier replica in the same file never count as part of
//! this one.
//!
//! **Invariant:** reading is total and reports why it ended ([`ReplicaEnd`]). It distinguishes an
//! unfinished write at the end of a replica from lost bytes in its middle.

mod piece;
mod reader;

pub use piece::{
    PIECE_ALIGNMENT, PIECE_HEADER_BYTES, PieceHeader, PieceWriter, Stamp, piece_bytes,
};
pub use reader::{PieceReader, ReadEnd, ReplicaEnd};

use crate::{Corrupt, checksum::crc32c};
use serde::{Deserialize, Serialize};
use std::fmt;
use types::{ClusterId, SegmentId, ServerId};

/// Bytes of a replica's header.
pub const HEADER_BYTES: usize = 64;
/// Offset of the first piece. The header has its own block, which no write of a piece touches.
pub const PIECES_FROM: u64 = 4096;

const MAGIC: [u8; 8] = *b"BALLASTR";
const KIND_DATA: u8 = 1;
const KIND_MANIFEST: u8 = 2;
/// Bytes of the header that form the identity.
const IDENTITY: std::ops::Range<usize> = 16..40;
/// Offset of the header's checksum.
const CHECKED: usize = HEADER_BYTES - 4;

/// The epoch of a replica, which distinguishes it from earlier replicas of the same segment. 0 is
/// an original; each replacement gets a higher epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ReplicaEpoch(pub u32);

/// The id of a replica, unique among all replicas of a cluster and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId {
    /// The master of the log.
    pub log: ServerId,
    /// The segment of the log.
    pub segment: SegmentId,
    /// The replica of that segment.
    pub epoch: ReplicaEpoch,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of log {}, epoch {}", self.segment, self.log, self.epoch.0)
    }
}

/// The boot id that the operating system draws at its start. While it is unchanged, all written
/// bytes still exist, whether synced or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

/// The creation order of replicas on a disk. A replica is created again only after it was freed
/// or its creation failed. Of two files with the same replica, only the later one can therefore
/// have acknowledged bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaOrder(pub u32);

/// The kind of a replica's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaKind {
    /// Log entries.
    Data,
    /// Entries of the log's segment manifest.
    Manifest,
}

/// The layout of a replica's file. Every change of the layout is a new format; older formats are
/// read but not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaFormat {
    /// The format without expiry clocks in the piece headers.
    One,
    /// The current format.
    Two,
}

impl ReplicaFormat {
    /// The format that is written.
    pub const CURRENT: ReplicaFormat = ReplicaFormat::Two;

    /// Returns the number of the format in the header.
    const fn number(self) -> u16 {
        match self {
            ReplicaFormat::One => 1,
            ReplicaFormat::Two => 2,
        }
    }

    /// Returns the format with this number, if there is one.
    fn of_number(number: u16) -> Option<ReplicaFormat> {
        [ReplicaFormat::One, ReplicaFormat::Two].into_iter().find(|it| it.number() == number)
    }
}

/// The header of a replica's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaHeader {
    /// Layout of the file.
    pub format: ReplicaFormat,
    /// Cluster of the log.
    pub cluster: ClusterId,
    /// Id of the replica.
    pub id: ReplicaId,
    /// Kind of the content.
    pub kind: ReplicaKind,
    /// Bytes of a full segment; the replica has no more.
    pub segment_bytes: u32,
    /// Boot id of the backup's machine when the replica was created.
    pub boot: BootId,
}

impl ReplicaHeader {
    /// Encodes the header of a file with this creation order.
    pub fn encode(&self, order: ReplicaOrder) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.format.number().to_le_bytes());
        out[10] = match self.kind {
            ReplicaKind::Data => KIND_DATA,
            ReplicaKind::Manifest => KIND_MANIFEST,
        };
        out[12..16].copy_from_slice(&self.segment_bytes.to_le_bytes());
        out[IDENTITY].copy_from_slice(&identity_bytes(self.cluster, self.id));
        out[40..56].copy_from_slice(&self.boot.0);
        out[56..CHECKED].copy_from_slice(&order.0.to_le_bytes());
        let crc = crc32c(&out[..CHECKED]);
        out[CHECKED..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the header and the creation order from the beginning of a file.
    pub fn parse(bytes: &[u8]) -> Result<(ReplicaHeader, ReplicaOrder), Corrupt> {
        const SHORT: Corrupt = Corrupt::Short { what: "header of replica" };
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(SHORT)?;
        if bytes[..8] != MAGIC {
            return Err(Corrupt::Invalid { what: "magic of replica" });
        }
        if crc32c(&bytes[..CHECKED]) != number(bytes, CHECKED) {
            return Err(Corrupt::Checksum { what: "header of replica" });
        }
        let found = u16::from_le_bytes([bytes[8], bytes[9]]);
        let format = ReplicaFormat::of_number(found).filter(|_| bytes[11] == 0);
        let Some(format) = format else {
            return Err(Corrupt::Format { what: "replica", found });
        };
        let kind = match bytes[10] {
            KIND_DATA => ReplicaKind::Data,
            KIND_MANIFEST => ReplicaKind::Manifest,
            _ => return Err(Corrupt::Invalid { what: "kind of replica" }),
        };
        let mut boot = [0; 16];
        boot.copy_from_slice(&bytes[40..56]);
        let id = ReplicaId {
            log: ServerId(number(bytes, 24)),
            epoch: ReplicaEpoch(number(bytes, 28)),
            segment: SegmentId(wide_number(bytes, 32)),
        };
        let header = ReplicaHeader {
            format,
            cluster: ClusterId(wide_number(bytes, 16)),
            id,
            kind,
            segment_bytes: number(bytes, 12),
            boot: BootId(boot),
        };
        Ok((header, ReplicaOrder(number(bytes, 56))))
    }

    /// Returns the identity to which the pieces are bound.
    pub fn identity(&self) -> ReplicaIdentity {
        ReplicaIdentity { format: self.format, ..ReplicaIdentity::of(self.cluster, self.id) }
    }
}

/// The identity that binds a piece to its replica through the checksum of the piece header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaIdentity {
    /// Layout of the pieces.
    format: ReplicaFormat,
    /// Checksum of cluster, log, epoch and segment.
    seed: u32,
    /// Low half of the segment's number, which is in every piece header.
    segment: u32,
}

impl ReplicaIdentity {
    /// Returns the identity of a replica in the format that is written.
    pub fn of(cluster: ClusterId, id: ReplicaId) -> ReplicaIdentity {
        ReplicaIdentity {
            format: ReplicaFormat::CURRENT,
            seed: crc32c(&identity_bytes(cluster, id)),
            segment: id.segment.0 as u32,
        }
    }
}

fn identity_bytes(cluster: ClusterId, id: ReplicaId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&cluster.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&id.log.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&id.epoch.0.to_le_bytes());
    bytes[16..].copy_from_slice(&id.segment.0.to_le_bytes());
    bytes
}

/// Decodes four bytes at `at`, an offset in a header of known length.
fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn wide_number(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: ReplicaKind) -> ReplicaHeader {
        ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: ClusterId(0x0102_0304_0506_0708),
            id: ReplicaId {
                log: ServerId(9),
                segment: SegmentId(u64::MAX - 5),
                epoch: ReplicaEpoch(3),
            },
            kind,
            segment_bytes: 8 << 20,
            boot: BootId(*b"0123456789abcdef"),
        }
    }

    #[test]
    fn headers_come_back_and_every_flipped_bit_is_noticed() {
        for kind in [ReplicaKind::Data, ReplicaKind::Manifest] {
            let bytes = header(kind).encode(ReplicaOrder(0x0102_0304));
            let expected = (header(kind), ReplicaOrder(0x0102_0304));
            assert_eq!(ReplicaHeader::parse(&bytes), Ok(expected));
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(ReplicaHeader::parse(&changed).is_err(), "bit {bit} changed unnoticed");
            }
            for length in 0..bytes.len() {
                assert!(ReplicaHeader::parse(&bytes[..length]).is_err());
            }
        }
    }

    #[test]
    fn a_header_of_another_format_is_refused_though_its_checksum_is_right() {
        let format = Corrupt::Format { what: "replica", found: 7 };
        let kind = Corrupt::Invalid { what: "kind of replica" };
        for (at, why) in [(8, format), (10, kind)] {
            let mut bytes = header(ReplicaKind::Data).encode(ReplicaOrder(1));
            bytes[at] = 7;
            let crc = crc32c(&bytes[..CHECKED]);
            bytes[CHECKED..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(ReplicaHeader::parse(&bytes), Err(why));
        }
    }

    #[test]
    fn replicas_that_differ_in_anything_have_different_identities() {
        let base = header(ReplicaKind::Data);
        let mut others = [base; 4];
        others[0].cluster.0 += 1;
        others[1].id.log.0 += 1;
        others[2].id.segment.0 -= 1;
        others[3].id.epoch.0 += 1;
        for other in others {
            assert_ne!(other.identity(), base.identity(), "{other:?}");
        }
    }
}
