//! Keys and values of a data set. A value proves its origin.
//!
//! A value is `key`, `:`, ten digits of sequence number, `:`, filler. A reader thus knows the
//! record of the value and the write that made it. The filler depends on both, so a single torn
//! or misplaced byte shows.

use anyhow::{Result, ensure};
use std::ops::Range;

/// Position of a record in its data set, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordNumber(pub u32);

/// Number of a write of one record, from 1 (the loader's). 0 means "never written".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sequence(pub u32);

/// Number and size of the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordSet {
    count: u32,
    key_bytes: usize,
    value_bytes: usize,
}

/// Prefix of every key, as in YCSB.
const KEY_PREFIX: &[u8] = b"user";
/// Digits of the largest record number.
const RECORD_DIGITS: usize = 10;
/// Digits of the largest sequence number, and the colons around them.
const SEQUENCE_BYTES: usize = 10 + 2;

impl RecordSet {
    /// Creates a data set of `count` records with keys and values of these sizes in bytes.
    pub fn new(count: u32, key_bytes: usize, value_bytes: usize) -> Result<RecordSet> {
        let key_min = KEY_PREFIX.len() + RECORD_DIGITS;
        ensure!(count > 0, "a data set needs at least one record");
        ensure!(key_bytes >= key_min, "keys need at least {key_min} bytes, not {key_bytes}");
        ensure!(
            key_bytes <= types::limits::KEY_BYTES_MAX,
            "a key of {key_bytes} bytes is too long"
        );
        let value_min = key_bytes + SEQUENCE_BYTES;
        ensure!(
            value_bytes >= value_min,
            "a value carries its key and a sequence number, so it needs at least {value_min} \
             bytes, not {value_bytes}"
        );
        let value_max = types::limits::VALUE_BYTES_MAX;
        ensure!(value_bytes <= value_max, "a value may have at most {value_max} bytes");
        Ok(RecordSet { count, key_bytes, value_bytes })
    }

    /// Returns the number of records.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the length of every key in bytes.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Returns the length of every value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns the bytes of user data in one record: its key and its value.
    pub fn user_bytes(&self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }

    /// Appends the key of `record`.
    #[inline]
    pub fn write_key(&self, record: RecordNumber, out: &mut Vec<u8>) {
        out.extend_from_slice(KEY_PREFIX);
        let start = out.len();
        out.resize(start + self.key_bytes - KEY_PREFIX.len(), b'0');
        write_digits(record.0, &mut out[start..]);
    }

    /// Appends the value that write number `sequence` gives to `record`.
    #[inline]
    pub fn write_value(&self, record: RecordNumber, sequence: Sequence, out: &mut Vec<u8>) {
        let start = out.len();
        self.write_key(record, out);
        out.extend_from_slice(b":0000000000:");
        let digits = self.sequence_digits();
        write_digits(sequence.0, &mut out[start + digits.start..start + digits.end]);
        let end = start + self.value_bytes;
        let mut from = filler_offset(record, sequence);
        while out.len() < end {
            let length = (end - out.len()).min(FILLER.len() - from);
            out.extend_from_slice(&FILLER[from..from + length]);
            from = 0;
        }
    }

    /// Returns the write of `record` that made this value; `None` if no write can have.
    pub fn sequence_of(&self, record: RecordNumber, value: &[u8]) -> Option<Sequence> {
        let right_key = value.len() == self.value_bytes
            && value.starts_with(KEY_PREFIX)
            && read_digits(&value[KEY_PREFIX.len()..self.key_bytes]) == Some(record.0);
        let digits = self.sequence_digits();
        if !right_key || value[digits.start - 1] != b':' || value[digits.end] != b':' {
            return None;
        }
        let sequence = Sequence(read_digits(&value[digits.clone()])?);
        let mut rest = &value[digits.end + 1..];
        let mut from = filler_offset(record, sequence);
        while !rest.is_empty() {
            let length = rest.len().min(FILLER.len() - from);
            if rest[..length] != FILLER[from..from + length] {
                return None;
            }
            rest = &rest[length..];
            from = 0;
        }
        Some(sequence)
    }

    /// Returns the position of the sequence number in a value.
    fn sequence_digits(&self) -> Range<usize> {
        self.key_bytes + 1..self.key_bytes + SEQUENCE_BYTES - 1
    }
}

/// Writes `number` right-aligned over a field of zeros.
#[inline]
fn write_digits(mut number: u32, field: &mut [u8]) {
    for digit in field.iter_mut().rev() {
        if number == 0 {
            return;
        }
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    assert!(number == 0, "the field is too short for the number");
}

/// Parses decimal digits; `None` if a byte is not a digit or the number is too large.
#[inline]
fn read_digits(field: &[u8]) -> Option<u32> {
    let zeros = field.len().saturating_sub(RECORD_DIGITS);
    let (padding, digits) = field.split_at(zeros);
    let mut number = 0u64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    if padding.iter().any(|&digit| digit != b'0') { None } else { u32::try_from(number).ok() }
}

/// Returns the position in [`FILLER`] at which the filler of this value begins.
#[inline]
fn filler_offset(record: RecordNumber, sequence: Sequence) -> usize {
    let mixed = record.0.wrapping_mul(0x9e37_79b1) ^ sequence.0.wrapping_mul(0x85eb_ca6b);
    mixed as usize % FILLER.len()
}

/// Letters and digits without a pattern, so that a shifted or misplaced piece does not fit.
static FILLER: [u8; 4093] = filler();

const fn filler() -> [u8; 4093] {
    const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";
    let mut block = [0u8; 4093];
    let mut state = 0x2545_f491u32;
    let mut position = 0;
    while position < block.len() {
        // Xorshift32 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        block[position] = ALPHABET[(state >> 26) as usize];
        position += 1;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(records: &RecordSet, record: u32, sequence: u32) -> Vec<u8> {
        let mut out = Vec::new();
        records.write_value(RecordNumber(record), Sequence(sequence), &mut out);
        out
    }

    #[test]
    fn keys_are_as_long_as_asked_and_end_with_the_record() {
        let records = RecordSet::new(10, 30, 100).unwrap();
        let mut key = Vec::new();
        records.write_key(RecordNumber(4_000_000_123), &mut key);
        assert_eq!(key, b"user00000000000000004000000123");
    }

    #[test]
    fn a_value_tells_its_sequence_number() {
        for (key_bytes, value_bytes) in [(14, 26), (30, 100), (30, 1024), (300, 20_000)] {
            let records = RecordSet::new(100, key_bytes, value_bytes).unwrap();
            for sequence in [0, 1, 77, u32::MAX] {
                let value = value(&records, 42, sequence);
                assert_eq!(value.len(), value_bytes);
                assert_eq!(records.sequence_of(RecordNumber(42), &value), Some(Sequence(sequence)));
                assert_eq!(records.sequence_of(RecordNumber(43), &value), None);
            }
        }
    }

    #[test]
    fn every_changed_or_missing_byte_makes_a_value_wrong() {
        let records = RecordSet::new(100, 30, 100).unwrap();
        let good = value(&records, 7, 3);
        for position in 0..good.len() {
            let mut bad = good.clone();
            bad[position] ^= 1;
            let read = records.sequence_of(RecordNumber(7), &bad);
            assert!(read != Some(Sequence(3)), "byte {position}");
            assert_eq!(records.sequence_of(RecordNumber(7), &good[..position]), None);
        }
    }

    #[test]
    fn sizes_without_room_for_key_and_sequence_are_refused() {
        assert!(RecordSet::new(0, 30, 100).is_err());
        assert!(RecordSet::new(1, 13, 100).is_err());
        assert!(RecordSet::new(1, 30, 41).is_err());
        assert!(RecordSet::new(1, 30, 42).is_ok());
    }
}
