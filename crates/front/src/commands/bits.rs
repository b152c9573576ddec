//! Commands on bits. Bit 0 is the highest bit of the first byte.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{FROM_SECOND, Family, ONE, command};
use super::pieces::{clamped, piece, string, string_or_empty};
use super::{Call, Done, Refusal, parse_integer, refused, uppercase_is};
use crate::core::data::Need;
use crate::operators::counts::Found;
use std::ops::Range;
use types::limits::VALUE_BYTES_MAX;

pub(super) static FAMILY: Family = Family {
    group: "bitmap",
    category: Some("@bitmap"),
    commands: &[
        command("bitcount", -2, READONLY, ONE, bitcount),
        command("bitop", -4, WRITE | DENYOOM, FROM_SECOND, bitop),
        command("bitpos", -3, READONLY, ONE, bitpos),
        command("getbit", 3, READONLY | FAST, ONE, getbit),
        command("setbit", 4, WRITE | DENYOOM, ONE, setbit),
    ],
};

/// Parses a bit offset within the largest possible value.
pub(super) fn parse_bit_offset(text: &[u8]) -> Result<usize, Refusal> {
    check_bit_offset(parse_integer(text))
}

/// Checks that a bit offset is within the largest possible value.
pub(super) fn check_bit_offset(offset: Option<i64>) -> Result<usize, Refusal> {
    let offset = offset.and_then(|offset| usize::try_from(offset).ok());
    offset
        .filter(|offset| offset / 8 < VALUE_BYTES_MAX)
        .ok_or(Refusal::because("ERR bit offset is not an integer or out of range"))
}

fn bit_at(value: &[u8], at: usize) -> bool {
    value.get(at / 8).is_some_and(|byte| byte & 0x80 >> (at % 8) != 0)
}

/// `GETBIT key offset`.
fn getbit(call: &mut Call<'_>) -> Done {
    let offset = parse_bit_offset(call.args[2])?;
    let bit =
        call.read(|record| Ok::<_, Refusal>(bit_at(string_or_empty(record)?.0, offset)))??;
    call.integer(bit)
}

/// `SETBIT key offset 0|1`.
fn setbit(call: &mut Call<'_>) -> Done {
    let offset = parse_bit_offset(call.args[2])?;
    let bit = match parse_integer(call.args[3]) {
        Some(0) => 0,
        Some(1) => 0x80 >> (offset % 8),
        Some(_) | None => return Err(refused("ERR bit is not an integer or out of range")),
    };
    let at = offset / 8;
    let before = call.update(|record, changes| {
        let (old, expiry) = string_or_empty(record)?;
        let gap = vec![0; at.saturating_sub(old.len())];
        let byte = old.get(at).copied().unwrap_or(0) & !(0x80 >> (offset % 8)) | bit;
        let (front, back) = (&old[..at.min(old.len())], old.get(at + 1..).unwrap_or_default());
        changes.put_joined(0, &[front, &gap, &[byte], back], expiry);
        Ok::<_, Refusal>(bit_at(old, offset))
    })??;
    call.integer(before)
}

/// Conversion of a pair of positions into a range: [`piece`] or [`clamped`].
type PositionsToRange = fn(i64, i64, usize) -> Option<Range<usize>>;

/// The range to search: `first [last [BYTE | BIT]]`.
struct Bounds {
    first: i64,
    /// `None` if not given.
    last: Option<i64>,
    in_bits: bool,
}

impl Bounds {
    fn parse(words: &[&[u8]]) -> Result<Bounds, Refusal> {
        let mut bounds = Bounds { first: 0, last: None, in_bits: false };
        if words.len() > 3 {
            return Err(Refusal::Syntax);
        }
        if let Some(first) = words.first() {
            bounds.first = parse_integer(first).ok_or(Refusal::NotAnInteger)?;
        }
        match words.get(2..).unwrap_or_default() {
            [] => {}
            [unit] if uppercase_is(unit, b"BYTE") => {}
            [unit] if uppercase_is(unit, b"BIT") => bounds.in_bits = true,
            _ => return Err(Refusal::Syntax),
        }
        if let Some(last) = words.get(1) {
            bounds.last = Some(parse_integer(last).ok_or(Refusal::NotAnInteger)?);
        }
        Ok(bounds)
    }

    /// Returns the range in bits, for a value of `length` bytes.
    fn bits(&self, length: usize, piece: PositionsToRange) -> Option<Range<usize>> {
        let last = self.last.unwrap_or(-1);
        match self.in_bits {
            true => piece(self.first, last, 8 * length),
            false => piece(self.first, last, length).map(|bytes| 8 * bytes.start..8 * bytes.end),
        }
    }
}

/// `BITCOUNT key [first [last [BYTE | BIT]]]`.
fn bitcount(call: &mut Call<'_>) -> Done {
    let bounds = Bounds::parse(&call.args[2..])?;
    let count = call.read(|record| {
        let (value, _) = string_or_empty(record)?;
        let bits = bounds.bits(value.len(), piece);
        Ok::<_, Refusal>(bits.map_or(0, |bits| count_bits(value, bits)))
    })??;
    call.integer(count as i64)
}

/// `BITPOS key 0|1 [first [last [BYTE | BIT]]]`.
fn bitpos(call: &mut Call<'_>) -> Done {
    let bit = match parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)? {
        0 => false,
        1 => true,
        _ => return Err(refused("ERR The bit argument must be 1 or 0.")),
    };
    let bounds = Bounds::parse(&call.args[3..])?;
    let found = call.read(|record| {
        let Some(record) = record else { return Ok(if bit { None } else { Some(0) }) };
        let value = string(record)?;
        let Some(bits) = bounds.bits(value.len(), clamped) else { return Ok(None) };
        // Without an end position, zeros follow the value.
        let beyond = (!bit && bounds.last.is_none()).then_some(8 * value.len());
        Ok::<_, Refusal>(find_bit(value, bit, bits).or(beyond))
    })??;
    call.integer(found.map_or(-1, |at| at as i64))
}

/// Returns the byte at this position, with all bits outside the range set to `outside`.
fn masked(value: &[u8], at: usize, bits: &Range<usize>, outside: bool) -> u8 {
    let mut inside = 0xff;
    if at == bits.start / 8 {
        inside &= 0xff >> (bits.start % 8);
    }
    if at == (bits.end - 1) / 8 {
        inside &= 0xff << (7 - (bits.end - 1) % 8);
    }
    if outside { value[at] | !inside } else { value[at] & inside }
}

/// Returns the bytes between the first and the last byte of a non-empty range.
fn inner(bits: &Range<usize>) -> Range<usize> {
    let first = bits.start / 8 + 1;
    first..((bits.end - 1) / 8).max(first)
}

/// Counts the set bits of a non-empty range.
fn count_bits(value: &[u8], bits: Range<usize>) -> u64 {
    let (first, last) = (bits.start / 8, (bits.end - 1) / 8);
    let mut count = u64::from(masked(value, first, &bits, false).count_ones());
    if last > first {
        count += u64::from(masked(value, last, &bits, false).count_ones());
    }
    let (words, rest) = value[inner(&bits)].as_chunks::<8>();
    count += words.iter().map(|word| u64::from_ne_bytes(*word).count_ones() as u64).sum::<u64>();
    count + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Returns the first bit of a non-empty range that equals `bit`.
fn find_bit(value: &[u8], bit: bool, bits: Range<usize>) -> Option<usize> {
    let skipped = if bit { 0x00 } else { 0xff };
    let place = |at: usize| {
        let byte = masked(value, at, &bits, !bit) ^ skipped;
        (byte != 0).then(|| 8 * at + byte.leading_zeros() as usize)
    };
    let (first, last, inner) = (bits.start / 8, (bits.end - 1) / 8, inner(&bits));
    place(first)
        .or_else(|| {
            let other = value[inner.clone()].iter().position(|byte| *byte != skipped);
            other.and_then(|at| place(inner.start + at))
        })
        .or_else(|| place(last))
}

/// The operator of `BITOP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    And,
    Or,
    Xor,
    Not,
}

impl Operator {
    fn parse(word: &[u8]) -> Option<Operator> {
        match &word.to_ascii_uppercase()[..] {
            b"AND" => Some(Operator::And),
            b"OR" => Some(Operator::Or),
            b"XOR" => Some(Operator::Xor),
            b"NOT" => Some(Operator::Not),
            _ => None,
        }
    }

    /// Combines the values. Shorter values are padded with zeros to the longest.
    fn combine(self, values: &[&[u8]]) -> Vec<u8> {
        let length = values.iter().map(|value| value.len()).max().unwrap_or(0);
        let Some((first, others)) = values.split_first() else { return Vec::new() };
        let mut result = first.to_vec();
        result.resize(length, 0);
        for other in others {
            let pairs = result.iter_mut().zip(*other);
            match self {
                Operator::And => pairs.for_each(|(byte, other)| *byte &= other),
                Operator::Or => pairs.for_each(|(byte, other)| *byte |= other),
                Operator::Xor | Operator::Not => pairs.for_each(|(byte, other)| *byte ^= other),
            }
            if self == Operator::And {
                result[other.len()..].fill(0);
            }
        }
        if self == Operator::Not {
            result.iter_mut().for_each(|byte| *byte = !*byte);
        }
        result
    }
}

/// `BITOP AND|OR|XOR|NOT destination key [key ...]`.
fn bitop(call: &mut Call<'_>) -> Done {
    let operator = Operator::parse(call.args[1]).ok_or(Refusal::Syntax)?;
    if operator == Operator::Not && call.args.len() != 4 {
        return Err(refused("ERR BITOP NOT must be called with a single source key."));
    }
    let keys = call.keys(2..call.args.len());
    let mut found = Found::default();
    let length = call.update_keys(&keys, Need::Records, |records, changes| {
        found = Found::keys(&records[1..]);
        let values = records[1..].iter().map(|record| Ok(string_or_empty(*record)?.0));
        let values: Vec<&[u8]> = values.collect::<Result<_, Refusal>>()?;
        let result = operator.combine(&values);
        match result.is_empty() {
            true => changes.delete(0),
            false => changes.put(0, &result, None),
        }
        Ok::<_, Refusal>(result.len())
    })??;
    call.backend.count(found);
    call.integer(length as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(random: &mut fastrand::Rng) -> Vec<u8> {
        let length = random.usize(0..40);
        (0..length).map(|_| [0x00, 0xff, 0x10, 0xfe, 0x7f][random.usize(0..5)]).collect()
    }

    #[test]
    fn bits_are_counted_and_found_as_one_by_one() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let value = text(&mut random);
            if value.is_empty() {
                continue;
            }
            let start = random.usize(0..8 * value.len());
            let range = start..random.usize(start..8 * value.len()) + 1;
            let set = range.clone().filter(|at| bit_at(&value, *at)).count() as u64;
            assert_eq!(count_bits(&value, range.clone()), set, "{value:?} {range:?}");
            for bit in [false, true] {
                let first = range.clone().find(|at| bit_at(&value, *at) == bit);
                assert_eq!(find_bit(&value, bit, range.clone()), first, "{value:?} {range:?}");
            }
        }
    }

    #[test]
    fn values_are_combined_bit_by_bit() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..2_000 {
            let values: Vec<Vec<u8>> = (0..random.usize(1..5)).map(|_| text(&mut random)).collect();
            let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
            let bits = 8 * values.iter().map(|value| value.len()).max().unwrap_or(0);
            for (operator, of) in [
                (Operator::And, (|a, b| a & b) as fn(bool, bool) -> bool),
                (Operator::Or, |a, b| a | b),
                (Operator::Xor, |a, b| a ^ b),
            ] {
                let combined = operator.combine(&values);
                for at in 0..bits {
                    let naive = values.iter().map(|value| bit_at(value, at)).reduce(of);
                    assert_eq!(Some(bit_at(&combined, at)), naive, "{operator:?} {values:?}");
                }
            }
            let inverted = Operator::Not.combine(&values[..1]);
            assert!(
                (0..8 * values[0].len()).all(|at| bit_at(&inverted, at) != bit_at(values[0], at))
            );
        }
    }
}
