//! The state that a server saves next to its replicas: its identity, the highest mark and the
//! newest map that it knows, and the seed of the key hash.
//!
//! A coordinator that has lost its store rebuilds it from these files and the processes of the
//! cluster. The mark tells a coordinator if its store is older than the cluster.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `BALLASTC` |
//! | 8 | 2 | format, now 1 |
//! | 10 | 2 | 0 |
//! | 12 | 4 | length of the body |
//! | 16 | 8 | sequence: rises with every write |
//! | 24 | 4 | checksum of the bytes from offset 8 to 24 and of the body |
//! | 28 | | body: the postcard encoding of [`SavedClusterState`] |
//!
//! Two files are written alternately, so that one of them is always complete.

use crate::Corrupt;
use crate::checksum::crc32c;
use crate::control::{ClusterMap, HistoryMark};
use serde::{Deserialize, Serialize};
use types::{ClusterId, ServerId};

/// Maximum bytes of a body: far more than the largest map, which fits into a message.
pub const SAVED_BYTES_MAX: usize = 4 << 20;

const MAGIC: [u8; 8] = *b"BALLASTC";
const FORMAT: u16 = 1;
const CHECKED: usize = 24;
const HEADER_BYTES: usize = 28;

/// The saved state of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedClusterState {
    /// The cluster.
    pub cluster: ClusterId,
    /// Server id of the process that wrote the file.
    pub server: ServerId,
    /// Seed of the cluster's key hash.
    pub seed: u64,
    /// The highest mark known to the server.
    pub mark: Option<HistoryMark>,
    /// The newest map known to the server; version 0: none yet.
    pub map: ClusterMap,
}

impl SavedClusterState {
    /// Encodes the content of a file.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        #[expect(clippy::expect_used, reason = "serializing plain data into a Vec cannot fail")]
        let body = postcard::to_stdvec(self).expect("plain data can be serialized");
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&sequence.to_le_bytes());
        let crc = checksum(&bytes[8..CHECKED], &body);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Decodes a file into its sequence number and content. Bytes after the body are ignored.
    pub fn parse(bytes: &[u8]) -> Result<(u64, SavedClusterState), Corrupt> {
        const WHAT: &str = "the server's saved cluster state";
        let short = Corrupt::Short { what: WHAT };
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(short)?;
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if header[..8] != MAGIC {
            return Err(Corrupt::Invalid { what: WHAT });
        }
        let body = bytes[HEADER_BYTES..].get(..number(12) as usize).ok_or(short)?;
        if checksum(&header[8..CHECKED], body) != number(CHECKED) {
            return Err(Corrupt::Checksum { what: WHAT });
        }
        let found = u16::from_le_bytes([header[8], header[9]]);
        if found != FORMAT {
            return Err(Corrupt::Format { what: WHAT, found });
        }
        let saved = postcard::from_bytes(body).map_err(|_| Corrupt::Invalid { what: WHAT })?;
        Ok((u64::from(number(16)) | u64::from(number(20)) << 32, saved))
    }
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    crc32c(&[header, body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::TabletInfo;
    use types::{HashRange, Incarnation, OwnershipEpoch};

    fn saved() -> SavedClusterState {
        let tablet = TabletInfo {
            range: HashRange::ALL,
            owner: ServerId(3),
            epoch: OwnershipEpoch(4),
            incarnations: vec![Incarnation(5); 18],
            is_born: false,
        };
        SavedClusterState {
            cluster: ClusterId(7),
            server: ServerId(3),
            seed: 42,
            mark: Some(HistoryMark { term: 2, term_id: 1 << 60, transaction: 99 }),
            map: ClusterMap {
                version: 2 << 32,
                cluster: ClusterId(7),
                servers: Vec::new(),
                tablets: vec![tablet],
                moving: Vec::new(),
            },
        }
    }

    #[test]
    fn what_was_saved_comes_back_and_every_change_is_noticed() {
        let bytes = saved().encode(1 << 40);
        assert_eq!(SavedClusterState::parse(&bytes), Ok((1 << 40, saved())));
        let longer = [&bytes[..], b"an earlier one was longer"].concat();
        assert_eq!(SavedClusterState::parse(&longer), Ok((1 << 40, saved())));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(SavedClusterState::parse(&changed).is_err(), "bit {bit} changed unnoticed");
        }
        for length in 0..bytes.len() {
            assert!(SavedClusterState::parse(&bytes[..length]).is_err());
        }
    }

    /// A version without tables of the server has saved an incarnation for each database only.
    #[test]
    fn a_map_of_an_earlier_version_gets_the_incarnations_of_the_other_tables() {
        let mut before = saved();
        before.map.tablets[0].incarnations.truncate(16);
        let (_, read) = SavedClusterState::parse(&before.encode(1)).unwrap();
        let incarnations = &read.map.tablets[0].incarnations;
        assert_eq!(incarnations[..16], before.map.tablets[0].incarnations);
        assert_eq!(incarnations[16..], [Incarnation(5 | 1 << 47); 2]);
    }

    #[test]
    fn another_format_is_told_from_damage() {
        let mut bytes = saved().encode(1);
        bytes[8] = 9;
        let crc = checksum(&bytes[8..CHECKED], &bytes[HEADER_BYTES..]);
        bytes[CHECKED..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert!(SavedClusterState::parse(&bytes).unwrap_err().is_of_another_version());
    }
}
