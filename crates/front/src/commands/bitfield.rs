//! `BITFIELD`: integers of any width at any bit offset of a value.

use super::bits::check_bit_offset;
use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::pieces::string_or_empty;
use super::{Call, Done, Refusal, parse_integer, refused};
use types::limits::VALUE_BYTES_MAX;

pub(super) static FAMILY: Family = Family {
    group: "bitmap",
    category: Some("@bitmap"),
    commands: &[
        command("bitfield", -2, WRITE | DENYOOM, ONE, bitfield),
        command("bitfield_ro", -2, READONLY | FAST, ONE, bitfield_ro),
    ],
};

/// The position and type of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    is_signed: bool,
    /// Width in bits: 1 to 64, at most 63 if unsigned.
    bits: u32,
    offset: usize,
}

/// Handling of a number that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldAction {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldOperation {
    field: Field,
    action: FieldAction,
    overflow: Overflow,
}

const BAD_TYPE: &str = "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";

impl Field {
    fn parse(kind: &[u8], offset: &[u8]) -> Result<Field, Refusal> {
        let (is_signed, width) = match kind {
            [b'i', width @ ..] => (true, width),
            [b'u', width @ ..] => (false, width),
            _ => return Err(Refusal::because(BAD_TYPE)),
        };
        let widest = if is_signed { 64 } else { 63 };
        let bits = parse_integer(width).filter(|bits| (1..=widest).contains(bits));
        let bits = bits.ok_or(Refusal::because(BAD_TYPE))?;
        let offset = match offset {
            [b'#', number @ ..] => {
                parse_integer(number).and_then(|number| number.checked_mul(bits))
            }
            number => parse_integer(number),
        };
        Ok(Field { is_signed, bits: bits as u32, offset: check_bit_offset(offset)? })
    }

    /// Returns the length in bytes of the shortest value that contains the whole field.
    fn end(self) -> usize {
        (self.offset + self.bits as usize - 1) / 8 + 1
    }

    /// Reads the field. Bits beyond the end of the value are zero.
    fn get(self, value: &[u8]) -> i64 {
        let raw = (0..self.bits as usize).fold(0u64, |raw, at| {
            let at = self.offset + at;
            let byte = value.get(at / 8).copied().unwrap_or(0);
            raw << 1 | u64::from(byte >> (7 - at % 8) & 1)
        });
        self.extend(raw)
    }

    /// Writes the low bits of `number` into the field. The value must contain the whole field.
    fn put(self, value: &mut [u8], number: i64) {
        for bit in 0..self.bits as usize {
            let at = self.offset + self.bits as usize - 1 - bit;
            let mask = 0x80 >> (at % 8);
            match number >> bit & 1 {
                0 => value[at / 8] &= !mask,
                _ => value[at / 8] |= mask,
            }
        }
    }

    /// Returns the number that the field's raw bits represent.
    fn extend(self, raw: u64) -> i64 {
        let unused = 64 - self.bits;
        match self.is_signed {
            true => (raw << unused) as i64 >> unused,
            false => (raw << unused >> unused) as i64,
        }
    }

    /// Fits a number into the field; `None` if it overflows and the mode is `FAIL`.
    fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        let (lowest, highest) = match self.is_signed {
            true => (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1),
            false => (0, (1i128 << self.bits) - 1),
        };
        match overflow {
            _ if (lowest..=highest).contains(&number) => Some(number as i64),
            Overflow::Wrap => Some(self.extend(number as u64)),
            Overflow::Saturate => Some(number.clamp(lowest, highest) as i64),
            Overflow::Fail => None,
        }
    }
}

impl FieldOperation {
    fn parse_all(words: &[&[u8]]) -> Result<Vec<FieldOperation>, Refusal> {
        let mut operations = Vec::new();
        let mut overflow = Overflow::Wrap;
        let mut rest = words;
        while let [word, values @ ..] = rest {
            let (field, action);
            (field, action, rest) = match (&word.to_ascii_uppercase()[..], values) {
                (b"OVERFLOW", [how, after @ ..]) => {
                    overflow = Overflow::parse(how)?;
                    rest = after;
                    continue;
                }
                (b"GET", [kind, offset, after @ ..]) => {
                    (Field::parse(kind, offset)?, FieldAction::Get, after)
                }
                (b"SET", [kind, offset, number, after @ ..]) => {
                    (Field::parse(kind, offset)?, FieldAction::Set(parse_number(number)?), after)
                }
                (b"INCRBY", [kind, offset, number, after @ ..]) => {
                    (Field::parse(kind, offset)?, FieldAction::Add(parse_number(number)?), after)
                }
                _ => return Err(Refusal::Syntax),
            };
            operations.push(FieldOperation { field, action, overflow });
        }
        Ok(operations)
    }

    fn writes(&self) -> bool {
        self.action != FieldAction::Get
    }

    /// Executes the operation and returns its part of the reply.
    fn run(&self, value: &mut [u8]) -> Option<i64> {
        let old = self.field.get(value);
        let (new, reply) = match self.action {
            FieldAction::Get => return Some(old),
            FieldAction::Set(number) => {
                // As in Redis, an unsigned field takes a negative number as a large one.
                let unsigned = i128::from(number as u64);
                let number = if self.field.is_signed { i128::from(number) } else { unsigned };
                let new = self.field.fit(number, self.overflow)?;
                (new, old)
            }
            FieldAction::Add(number) => {
                let new = self.field.fit(i128::from(old) + i128::from(number), self.overflow)?;
                (new, new)
            }
        };
        self.field.put(value, new);
        Some(reply)
    }
}

impl Overflow {
    fn parse(word: &[u8]) -> Result<Overflow, Refusal> {
        match &word.to_ascii_uppercase()[..] {
            b"WRAP" => Ok(Overflow::Wrap),
            b"SAT" => Ok(Overflow::Saturate),
            b"FAIL" => Ok(Overflow::Fail),
            _ => Err(Refusal::because("ERR Invalid OVERFLOW type specified")),
        }
    }
}

fn parse_number(text: &[u8]) -> Result<i64, Refusal> {
    parse_integer(text).ok_or(Refusal::NotAnInteger)
}

/// `BITFIELD key [GET type offset | SET type offset value | INCRBY type offset number |
/// OVERFLOW WRAP|SAT|FAIL] ...`.
fn bitfield(call: &mut Call<'_>) -> Done {
    let operations = FieldOperation::parse_all(&call.args[2..])?;
    if !operations.iter().any(FieldOperation::writes) {
        return read(call, &operations);
    }
    let fields = operations.iter().filter(|operation| operation.writes());
    let end = fields.map(|operation| operation.field.end()).max().unwrap_or(0);
    if end > VALUE_BYTES_MAX {
        return Err(Refusal::TooLarge.into());
    }
    let results = call.update(|record, changes| {
        let (old, expiry) = string_or_empty(record)?;
        let mut value = old.to_vec();
        value.resize(old.len().max(end), 0);
        let results: Vec<_> = operations.iter().map(|one| one.run(&mut value)).collect();
        changes.put(0, &value, expiry);
        Ok::<_, Refusal>(results)
    })??;
    reply(call, &results);
    Ok(())
}

/// `BITFIELD_RO key [GET type offset] ...`.
fn bitfield_ro(call: &mut Call<'_>) -> Done {
    let operations = FieldOperation::parse_all(&call.args[2..])?;
    if operations.iter().any(FieldOperation::writes) {
        return Err(refused("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read(call, &operations)
}

fn read(call: &mut Call<'_>, operations: &[FieldOperation]) -> Done {
    let results = call.read(|record| {
        let (value, _) = string_or_empty(record)?;
        let results = operations.iter().map(|one| Some(one.field.get(value)));
        Ok::<_, Refusal>(results.collect::<Vec<_>>())
    })??;
    reply(call, &results);
    Ok(())
}

fn reply(call: &mut Call<'_>, results: &[Option<i64>]) {
    call.reply.array(results.len());
    for result in results {
        match result {
            Some(number) => call.reply.integer(*number),
            None => call.reply.null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Vec<FieldOperation>, Refusal> {
        FieldOperation::parse_all(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    fn field(kind: &str, offset: usize) -> Field {
        Field::parse(kind.as_bytes(), offset.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn operations_are_read_with_the_overflow_that_stands_before_them() {
        let operations = parse("INCRBY u2 #3 1 overflow sat SET i64 7 -1 GET u63 0").unwrap();
        let [add, set, get] = operations[..] else { panic!("three operations") };
        assert_eq!((add.field, add.action), (field("u2", 6), FieldAction::Add(1)));
        assert_eq!(add.overflow, Overflow::Wrap);
        assert_eq!((set.field, set.action), (field("i64", 7), FieldAction::Set(-1)));
        assert_eq!(set.overflow, Overflow::Saturate);
        assert_eq!((get.field, get.action), (field("u63", 0), FieldAction::Get));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in ["GET u8", "SET u8 0", "what u8 0", "OVERFLOW"] {
            assert_eq!(parse(line), Err(Refusal::Syntax), "{line}");
        }
        for line in ["GET u64 0", "GET i65 0", "GET u0 0", "GET 8 0", "GET u 0", "GET U8 0"] {
            assert_eq!(parse(line), Err(Refusal::because(BAD_TYPE)), "{line}");
        }
        for line in ["GET u8 -1", "GET u8 #9223372036854775807", "GET u8 99999999999", "GET u8 #"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn fields_are_read_and_written_as_in_a_row_of_digits() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut value = vec![0; 20];
        let mut digits = vec![b'0'; 160];
        for _ in 0..20_000 {
            let is_signed = random.bool();
            let bits = random.u32(1..=if is_signed { 64 } else { 63 });
            let place = Field { is_signed, bits, offset: random.usize(0..=160 - bits as usize) };
            let range = place.offset..place.offset + bits as usize;
            let number = random.i64(..);
            let raw = u128::from(number as u64) & ((1 << bits) - 1);
            place.put(&mut value, number);
            let width = bits as usize;
            digits[range].copy_from_slice(format!("{raw:0width$b}").as_bytes());
            let row: String = value.iter().map(|byte| format!("{byte:08b}")).collect();
            assert_eq!(row.as_bytes(), digits);
            let is_negative = is_signed && raw >> (bits - 1) == 1;
            let expected = raw as i128 - if is_negative { 1 << bits } else { 0 };
            assert_eq!(i128::from(place.get(&value)), expected);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_wrap_saturate_or_fail() {
        for (kind, number, overflow, expected) in [
            ("u8", 256, Overflow::Wrap, Some(0)),
            ("u8", -1, Overflow::Wrap, Some(255)),
            ("u8", 300, Overflow::Saturate, Some(255)),
            ("u8", -1, Overflow::Saturate, Some(0)),
            ("u8", 256, Overflow::Fail, None),
            ("i8", 128, Overflow::Wrap, Some(-128)),
            ("i8", 128, Overflow::Saturate, Some(127)),
            ("i8", -129, Overflow::Saturate, Some(-128)),
            ("i64", 1 << 63, Overflow::Wrap, Some(i64::MIN)),
            ("i64", 1 << 63, Overflow::Saturate, Some(i64::MAX)),
            ("u63", 1 << 63, Overflow::Fail, None),
        ] {
            assert_eq!(field(kind, 0).fit(number, overflow), expected, "{kind} {number}");
        }
    }
}
