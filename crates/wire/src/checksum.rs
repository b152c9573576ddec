//! CRC-32C (Castagnoli, also listed as CRC-32/ISCSI), the only checksum of all formats.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// Returns the CRC-32C of the bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC-32C of the concatenation of two slices.
pub(crate) fn crc32c_of_two(first: &[u8], second: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    digest.finalize() as u32
}

/// Extends the CRC-32C `before` by `bytes` and returns the CRC-32C of the concatenation.
#[inline]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Bytes that are copied and checksummed together: with their copy, they fit into a first-level
/// cache, and a copy of this size is not slower per byte than a longer one.
const PIECE_BYTES: usize = 16 << 10;

/// Copies `from` to `to`, and extends the CRC-32C `before` by the copied bytes. Works piece by
/// piece, so that long values pass through the caches once instead of twice: 1 MiB to memory that
/// is not in the caches takes 61 us instead of 84 us (256 KiB: 13.6 us instead of 15.7 us).
#[inline(never)]
pub(crate) fn copy_with_crc32c(before: u32, from: &[u8], to: &mut [u8]) -> u32 {
    assert!(from.len() == to.len(), "{} bytes are copied to {}", from.len(), to.len());
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    for (from, to) in from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES)) {
        digest.update(from);
        to.copy_from_slice(from);
    }
    digest.finalize() as u32
}

/// Compares the accelerated checksum with a bitwise one over many lengths and alignments. A
/// server runs this at its start, because a wrong checksum would otherwise be noticed only when
/// data is needed.
pub fn crc32c_self_check() -> bool {
    let bytes: Vec<u8> = (0..600u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
    let lengths = (0..=80).chain([127, 128, 129, 255, 256, 257, 511, 512]);
    lengths.flat_map(|length| [0, 1, 3, 8].map(|start| (start, length))).all(|(start, length)| {
        let piece = &bytes[start..start + length];
        crc32c(piece) == naive_crc32c(piece)
    })
}

fn naive_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accelerated_checksum_agrees_with_the_naive_one() {
        assert!(crc32c_self_check());
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_of_two(b"1234", b"56789"), 0xe306_9283);
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(crc32c_append(crc32c(b""), b"123456789"), 0xe306_9283);
    }

    #[test]
    fn copying_with_a_checksum_is_copying_and_a_checksum() {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES as u32 + 1).map(|i| (i >> 4) as u8).collect();
        let edges = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, bytes.len()];
        for length in edges {
            let mut copy = vec![0xaa; length];
            let crc = copy_with_crc32c(crc32c(b"before"), &bytes[..length], &mut copy);
            assert_eq!(copy, bytes[..length]);
            assert_eq!(crc, crc32c(&[b"before", &bytes[..length]].concat()), "{length} bytes");
        }
    }
}
