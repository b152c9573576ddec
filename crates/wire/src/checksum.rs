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
}
