//! The mapping of keys to slots and key hashes.
//!
//! A [`KeyHash`] is `slot << 50 | (keyed 64-bit hash of the whole key >> 14)`. So a slot is a
//! contiguous range of key hashes, and keys with one hash tag are neighbors. A client that
//! chooses keys cannot choose the hash within the slot. Test vectors: `docs/formats.md`.

use crate::ids::OutOfBounds;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::LazyLock;

/// Number of slots of a Redis cluster.
pub const SLOT_COUNT: u16 = 16_384;

/// Bits of a key hash below its slot.
const SLOT_SHIFT: u32 = 50;

/// A slot of a Redis cluster, below [`SLOT_COUNT`]. Decoding refuses others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16")]
pub struct Slot(pub u16);

impl TryFrom<u16> for Slot {
    type Error = OutOfBounds;

    fn try_from(number: u16) -> Result<Slot, OutOfBounds> {
        let end = usize::from(SLOT_COUNT);
        (number < SLOT_COUNT).then_some(Slot(number)).ok_or(OutOfBounds { what: "slot", end })
    }
}

impl Slot {
    /// Returns the lowest key hash of the slot.
    pub fn first_hash(self) -> KeyHash {
        debug_assert!(self.0 < SLOT_COUNT, "{self:?} does not exist");
        KeyHash(u64::from(self.0) << SLOT_SHIFT)
    }

    /// Returns the highest key hash of the slot.
    pub fn last_hash(self) -> KeyHash {
        KeyHash(self.first_hash().0 | ((1 << SLOT_SHIFT) - 1))
    }
}

/// Two bytes per slot. As a hash tag, they give a key this slot: see [`Slot::tag`].
static TAGS: LazyLock<Box<[[u8; 2]]>> = LazyLock::new(|| {
    let mut tags = vec![[0; 2]; usize::from(SLOT_COUNT)];
    // The checksum maps two bytes to 16 bits one to one, so each slot has four pairs. A closing
    // brace would end the tag early.
    let pairs = (0..=u16::MAX).rev().map(u16::to_be_bytes);
    for pair in pairs.filter(|pair| !pair.contains(&b'}')) {
        tags[usize::from(crc16_xmodem(&pair) & (SLOT_COUNT - 1))] = pair;
    }
    tags.into()
});

impl Slot {
    /// Returns two bytes that place a key in this slot if they are its hash tag: the key begins
    /// with them in braces.
    pub fn tag(self) -> [u8; 2] {
        TAGS[usize::from(self.0)]
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// Position of a key in the key space: the slot in the top 14 bits, below it a keyed hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Returns the slot of the hash.
    pub fn slot(self) -> Slot {
        Slot((self.0 >> SLOT_SHIFT) as u16)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The cluster's secret seed of the key hash. The coordinator draws it once and sends it to every
/// server.
#[derive(Clone)]
pub struct HashSeed {
    seed: u64,
    secrets: RapidSecrets,
}

impl HashSeed {
    /// Creates the seed with this number.
    pub fn new(seed: u64) -> HashSeed {
        HashSeed { seed, secrets: RapidSecrets::seed(seed) }
    }

    /// Returns the number of the seed.
    pub fn number(&self) -> u64 {
        self.seed
    }
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSeed(secret)")
    }
}

/// Returns the key's hash under this seed.
#[inline]
pub fn key_hash(seed: &HashSeed, key: &[u8]) -> KeyHash {
    key_hash_in_slot(seed, slot_of(key), key)
}

/// Returns the same as [`key_hash`] for a key with a known slot.
#[inline]
pub fn key_hash_in_slot(seed: &HashSeed, slot: Slot, key: &[u8]) -> KeyHash {
    let low = rapidhash_v3_seeded(key, &seed.secrets) >> 14;
    KeyHash(slot.first_hash().0 | low)
}

/// Returns the hash of an element of a collection under this seed.
#[inline]
pub fn element_hash(seed: &HashSeed, element: &[u8]) -> u64 {
    rapidhash_v3_seeded(element, &seed.secrets)
}

/// Returns the slot of a key: CRC16-XMODEM of its hash tag, as specified for Redis Cluster.
#[inline]
pub fn slot_of(key: &[u8]) -> Slot {
    Slot(crc16_xmodem(hash_tag(key)) & (SLOT_COUNT - 1))
}

/// Returns the part of a key that determines its slot: the bytes between the first `{` and the
/// next `}` if there are any, else the whole key.
#[inline]
pub fn hash_tag(key: &[u8]) -> &[u8] {
    if !contains(key, b'{') {
        return key;
    }
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let after = &key[open + 1..];
    match after.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &after[..close],
    }
}

/// Returns whether a byte occurs, eight bytes per step: most keys have no hash tag.
#[inline]
fn contains(bytes: &[u8], byte: u8) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let pattern = ONES * u64::from(byte);
    // A byte is zero where it is equal; the borrow of the subtraction reaches only higher bytes.
    let has = |chunk: &[u8; 8]| {
        let zero_where_equal = u64::from_le_bytes(*chunk) ^ pattern;
        zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & (ONES << 7) != 0
    };
    let Some(last) = bytes.last_chunk::<8>() else { return bytes.contains(&byte) };
    // The last eight bytes may overlap the previous ones.
    bytes.as_chunks::<8>().0.iter().any(has) || has(last)
}

/// `TABLES[k][b]`: the CRC of byte `b` followed by `k` zero bytes.
static TABLES: [[u16; 256]; 8] = crc16_tables();

const fn crc16_tables() -> [[u16; 256]; 8] {
    const POLYNOMIAL: u16 = 0x1021;
    let mut tables = [[0u16; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ POLYNOMIAL } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let previous = tables[zeros - 1][byte];
            tables[zeros][byte] = (previous << 8) ^ tables[0][(previous >> 8) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// Returns the CRC16-XMODEM, computed eight bytes per step ("slice-by-8", Kounavis and Berry
/// 2005). The CRC begins at zero, so zero bytes in front do not change it: they fill the first
/// step.
#[inline]
fn crc16_xmodem(bytes: &[u8]) -> u16 {
    let Some(first) = bytes.first_chunk::<8>() else {
        return bytes
            .iter()
            .fold(0, |crc, &byte| (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)]);
    };
    let (head, chunks) = bytes.as_rchunks::<8>();
    let mut crc = 0;
    if !head.is_empty() {
        let padded = u64::from_be_bytes(*first) >> (64 - 8 * head.len());
        crc = crc16_step(0, &padded.to_be_bytes());
    }
    chunks.iter().fold(crc, crc16_step)
}

/// Returns the CRC after eight more bytes.
#[inline]
fn crc16_step(crc: u16, bytes: &[u8; 8]) -> u16 {
    TABLES[7][usize::from(bytes[0] ^ (crc >> 8) as u8)]
        ^ TABLES[6][usize::from(bytes[1] ^ crc as u8)]
        ^ TABLES[5][usize::from(bytes[2])]
        ^ TABLES[4][usize::from(bytes[3])]
        ^ TABLES[3][usize::from(bytes[4])]
        ^ TABLES[2][usize::from(bytes[5])]
        ^ TABLES[1][usize::from(bytes[6])]
        ^ TABLES[0][usize::from(bytes[7])]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the CRC bit by bit, as specified.
    fn naive_crc16(bytes: &[u8]) -> u16 {
        let mut crc = 0u16;
        for &byte in bytes {
            crc ^= u16::from(byte) << 8;
            for _ in 0..8 {
                crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            }
        }
        crc
    }

    #[test]
    fn crc16_agrees_with_its_naive_twin_at_every_length() {
        let bytes: Vec<u8> =
            (0..200u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in 0..bytes.len() {
            assert_eq!(crc16_xmodem(&bytes[..length]), naive_crc16(&bytes[..length]), "{length}");
        }
        assert_eq!(crc16_xmodem(b"123456789"), 0x31c3);
    }

    #[test]
    fn a_byte_is_found_wherever_it_is_and_only_there() {
        for length in 0..40 {
            // The byte below and the byte above could be mistaken because of a borrow.
            for other in [b'z', b'|', 0, 0x80, 0xff] {
                let mut bytes = vec![other; length];
                assert!(!contains(&bytes, b'{'), "{length} times {other}");
                for at in 0..length {
                    bytes[at] = b'{';
                    assert!(contains(&bytes, b'{'), "{length} times {other}, at {at}");
                    bytes[at] = other;
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "slot 16384 does not exist")]
    #[cfg(debug_assertions)]
    fn only_slots_of_the_cluster_have_hashes() {
        Slot(SLOT_COUNT).first_hash();
    }

    #[test]
    fn slots_are_those_of_redis() {
        for (key, slot) in [
            (&b"foo"[..], 12_182),
            (b"bar", 5_061),
            (b"hello", 866),
            (b"", 0),
            (b"{user1000}.following", 3_443),
            (b"{user1000}.followers", 3_443),
        ] {
            assert_eq!(slot_of(key), Slot(slot), "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn only_the_first_nonempty_pair_of_braces_is_a_hash_tag() {
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
    }

    /// The vectors of docs/formats.md: a changed hash function would invalidate every stored
    /// hash.
    #[test]
    fn every_slot_has_a_tag() {
        for slot in (0..SLOT_COUNT).map(Slot) {
            let [first, second] = slot.tag();
            assert_eq!(slot_of(&[b'{', first, second, b'}', b'x']), slot);
        }
    }

    #[test]
    fn key_hashes_are_the_documented_ones() {
        let seed = HashSeed::new(42);
        let hashes: Vec<String> =
            [&b"foo"[..], b"bar", b"", b"{user1000}.following", b"user000000000000000000000001"]
                .iter()
                .map(|key| key_hash(&seed, key).to_string())
                .collect();
        assert_eq!(hashes, VECTORS);
    }

    const VECTORS: [&str; 5] = [
        "be587b18b91bbb76",
        "4f148ac92c76608a",
        "00007486642b03d5",
        "35ce563c389faf39",
        "8360e9d34b1d1e9d",
    ];
}
