//! The options of `SET`, `GETEX`, `MSETEX`, `HGETEX` and `HSETEX`.

use super::pieces::string;
use super::{Refusal, parse_integer, uppercase_is};
use crate::core::data::Record;
use planted::Bug;
use types::UnixMillis;

/// The command whose options are parsed. The commands accept different options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Set,
    GetEx,
    MSetEx,
    HGetEx,
    HSetEx,
}

/// The options of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SetOptions<'a> {
    pub(super) condition: SetCondition<'a>,
    /// Condition on the fields of a hash.
    pub(super) fields: FieldCondition,
    /// True if the old value is returned.
    pub(super) get: bool,
    /// The new expiry; `None` if not given.
    pub(super) expiry: Option<Expiry>,
}

/// Condition under which the value is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SetCondition<'a> {
    #[default]
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(&'a [u8]),
}

/// Condition under which fields of a hash are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FieldCondition {
    #[default]
    Always,
    /// None of them exists.
    IfNone,
    /// All of them exist.
    IfAll,
}

/// The new expiry of the key, or of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    Never,
    Keep,
    At(UnixMillis),
}

/// The meaning of a number that is an expiry time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpiryFormat {
    /// The number counts seconds, else milliseconds.
    pub(super) seconds: bool,
    /// The number counts from 1970, else from now.
    pub(super) absolute: bool,
}

/// The formats, under the names of `SET`'s options.
pub(super) const EX: ExpiryFormat = ExpiryFormat { seconds: true, absolute: false };
pub(super) const PX: ExpiryFormat = ExpiryFormat { seconds: false, absolute: false };
pub(super) const EXAT: ExpiryFormat = ExpiryFormat { seconds: true, absolute: true };
pub(super) const PXAT: ExpiryFormat = ExpiryFormat { seconds: false, absolute: true };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionKeyword {
    Nx,
    Xx,
    IfEq,
    Fnx,
    Fxx,
    Get,
    Expire(ExpiryFormat),
    KeepTtl,
    Persist,
}

const SETTING: &[Dialect] = &[Dialect::Set, Dialect::MSetEx, Dialect::HSetEx];
const FIELDS: &[Dialect] = &[Dialect::HSetEx];
const EACH: &[Dialect] =
    &[Dialect::Set, Dialect::GetEx, Dialect::MSetEx, Dialect::HGetEx, Dialect::HSetEx];

/// All options, with the commands that accept them.
const OPTIONS: [(&[u8], OptionKeyword, &[Dialect]); 12] = [
    (b"NX", OptionKeyword::Nx, SETTING),
    (b"XX", OptionKeyword::Xx, SETTING),
    (b"IFEQ", OptionKeyword::IfEq, &[Dialect::Set]),
    (b"FNX", OptionKeyword::Fnx, FIELDS),
    (b"FXX", OptionKeyword::Fxx, FIELDS),
    (b"GET", OptionKeyword::Get, &[Dialect::Set]),
    (b"EX", OptionKeyword::Expire(EX), EACH),
    (b"PX", OptionKeyword::Expire(PX), EACH),
    (b"EXAT", OptionKeyword::Expire(EXAT), EACH),
    (b"PXAT", OptionKeyword::Expire(PXAT), EACH),
    (b"KEEPTTL", OptionKeyword::KeepTtl, SETTING),
    (b"PERSIST", OptionKeyword::Persist, &[Dialect::GetEx, Dialect::HGetEx]),
];

impl OptionKeyword {
    /// Parses an option of a command; `None` if the command has no such option.
    fn parse(text: &[u8], dialect: Dialect) -> Option<OptionKeyword> {
        let mut options = OPTIONS.iter();
        let found = options.find(|(name, _, of)| uppercase_is(text, name) && of.contains(&dialect));
        found.map(|(_, word, _)| *word)
    }

    fn takes_value(self) -> bool {
        matches!(self, OptionKeyword::IfEq | OptionKeyword::Expire(_))
    }
}

impl<'a> SetOptions<'a> {
    /// Parses options by Redis's rules: an option may be repeated, and the last one counts, but
    /// contradicting options are refused. Numbers are checked after all words. A relative expiry
    /// counts from `now`, the clock by which it will be judged.
    pub(super) fn parse(
        words: &[&'a [u8]],
        dialect: Dialect,
        now: UnixMillis,
    ) -> Result<SetOptions<'a>, Refusal> {
        let mut get = false;
        let mut condition: Option<(OptionKeyword, &[u8])> = None;
        let mut fields: Option<(OptionKeyword, &[u8])> = None;
        let mut expiry: Option<(OptionKeyword, &[u8])> = None;
        let mut rest = words;
        while let [text, after @ ..] = rest {
            let word = OptionKeyword::parse(text, dialect).ok_or(Refusal::Syntax)?;
            let value: &[u8];
            (value, rest) = match (word.takes_value(), after) {
                (false, after) => (&[][..], after),
                (true, [value, after @ ..]) => (*value, after),
                (true, []) => return Err(Refusal::Syntax),
            };
            let chosen = match word {
                OptionKeyword::Get => {
                    get = true;
                    continue;
                }
                OptionKeyword::Nx | OptionKeyword::Xx | OptionKeyword::IfEq => &mut condition,
                OptionKeyword::Fnx | OptionKeyword::Fxx => &mut fields,
                OptionKeyword::Expire(_) | OptionKeyword::KeepTtl | OptionKeyword::Persist => {
                    &mut expiry
                }
            };
            if chosen.is_some_and(|(earlier, _)| earlier != word || word == OptionKeyword::IfEq) {
                return Err(Refusal::Syntax);
            }
            *chosen = Some((word, value));
        }
        let condition = match condition {
            Some((OptionKeyword::Nx, _)) => SetCondition::IfAbsent,
            Some((OptionKeyword::Xx, _)) => SetCondition::IfPresent,
            Some((_, value)) => SetCondition::IfEqual(value),
            None => SetCondition::Always,
        };
        let fields = match fields {
            Some((OptionKeyword::Fnx, _)) => FieldCondition::IfNone,
            Some(_) => FieldCondition::IfAll,
            None => FieldCondition::Always,
        };
        let expiry =
            expiry.map(|(word, number)| parse_expiry(word, number, dialect, now)).transpose()?;
        Ok(SetOptions { condition, fields, get, expiry })
    }

    /// Returns whether the condition allows to write over this record. Only a string can be compared.
    pub(super) fn allows(&self, record: Option<Record<'_>>) -> Result<bool, Refusal> {
        Ok(match self.condition {
            SetCondition::Always => true,
            SetCondition::IfAbsent => record.is_none(),
            SetCondition::IfPresent => record.is_some(),
            SetCondition::IfEqual(value) => {
                record.map(string).transpose()?.is_some_and(|old| old == value)
            }
        })
    }

    /// Returns the expiry of a value written now over this record.
    pub(super) fn new_expiry(&self, record: Option<Record<'_>>) -> Option<UnixMillis> {
        match self.expiry {
            None | Some(Expiry::Never) => None,
            Some(Expiry::Keep) if planted::is(Bug::LifetimeNotKept) => None,
            Some(Expiry::Keep) => record.and_then(|record| record.expiry),
            Some(Expiry::At(at)) => Some(at),
        }
    }
}

fn parse_expiry(
    word: OptionKeyword,
    number: &[u8],
    dialect: Dialect,
    now: UnixMillis,
) -> Result<Expiry, Refusal> {
    let format = match word {
        OptionKeyword::Expire(format) => format,
        OptionKeyword::Persist => return Ok(Expiry::Never),
        OptionKeyword::KeepTtl
        | OptionKeyword::Nx
        | OptionKeyword::Xx
        | OptionKeyword::IfEq
        | OptionKeyword::Fnx
        | OptionKeyword::Fxx
        | OptionKeyword::Get => return Ok(Expiry::Keep),
    };
    let number = parse_integer(number).ok_or(Refusal::NotAnInteger)?;
    // For fields, 0 is an expiry in the past.
    if number == 0 && matches!(dialect, Dialect::HGetEx | Dialect::HSetEx) {
        return Ok(Expiry::At(UnixMillis(0)));
    }
    let at = expire_at(number, format, now);
    at.map(Expiry::At).ok_or(Refusal::ExpireTime)
}

/// Returns the expiry time for a number of this format, or `None` if the number is invalid. Redis
/// accepts only positive numbers here.
pub(super) fn expire_at(number: i64, format: ExpiryFormat, now: UnixMillis) -> Option<UnixMillis> {
    let number = u64::try_from(number).ok().filter(|&number| number > 0)?;
    let millis = if format.seconds { number.checked_mul(1000)? } else { number };
    let at = if format.absolute { millis } else { millis.checked_add(now.0)? };
    (at <= i64::MAX as u64).then_some(UnixMillis(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000);

    fn parse<'a>(words: &[&'a str], dialect: Dialect) -> Result<SetOptions<'a>, Refusal> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        SetOptions::parse(&words, dialect, NOW)
    }

    #[test]
    fn options_are_read_as_redis_reads_them() {
        let at = |millis| Some(Expiry::At(UnixMillis(millis)));
        for (words, dialect, expiry) in [
            (&["ex", "10"][..], Dialect::Set, at(1_010_000)),
            (&["PX", "10"], Dialect::GetEx, at(1_000_010)),
            (&["EXAT", "2000"], Dialect::MSetEx, at(2_000_000)),
            (&["PXAT", "5"], Dialect::Set, at(5)),
            (&["EX", "10", "ex", "20"], Dialect::Set, at(1_020_000)),
            (&["EX", "0"], Dialect::HGetEx, at(0)),
            (&["KEEPTTL"], Dialect::Set, Some(Expiry::Keep)),
            (&["persist"], Dialect::GetEx, Some(Expiry::Never)),
            (&[], Dialect::Set, None),
        ] {
            let parsed = parse(words, dialect).map(|options| options.expiry);
            assert_eq!(parsed, Ok(expiry), "{words:?}");
        }
        let options = parse(&["XX", "GET", "PX", "1"], Dialect::Set).unwrap();
        assert_eq!((options.condition, options.get), (SetCondition::IfPresent, true));
        let options = parse(&["IFEQ", "x"], Dialect::Set).unwrap();
        assert_eq!(options.condition, SetCondition::IfEqual(b"x"));
    }

    #[test]
    fn contradictory_or_senseless_options_are_refused() {
        for (words, dialect, bad) in [
            (&["NX", "XX"][..], Dialect::Set, Refusal::Syntax),
            (&["EX"], Dialect::Set, Refusal::Syntax),
            (&["EX", "1", "PX", "1"], Dialect::Set, Refusal::Syntax),
            (&["EX", "1", "KEEPTTL"], Dialect::Set, Refusal::Syntax),
            (&["NX", "IFEQ", "a"], Dialect::Set, Refusal::Syntax),
            (&["IFEQ", "a", "IFEQ", "a"], Dialect::Set, Refusal::Syntax),
            (&["what"], Dialect::Set, Refusal::Syntax),
            (&["PERSIST"], Dialect::Set, Refusal::Syntax),
            (&["NX"], Dialect::GetEx, Refusal::Syntax),
            (&["KEEPTTL"], Dialect::GetEx, Refusal::Syntax),
            (&["GET"], Dialect::MSetEx, Refusal::Syntax),
            (&["EX", "0", "what"], Dialect::Set, Refusal::Syntax),
            (&["EX", "ten"], Dialect::Set, Refusal::NotAnInteger),
            (&["EX", "0"], Dialect::Set, Refusal::ExpireTime),
            (&["PX", "-1"], Dialect::GetEx, Refusal::ExpireTime),
            (&["PX", "-1"], Dialect::HSetEx, Refusal::ExpireTime),
            (&["FNX", "FXX"], Dialect::HSetEx, Refusal::Syntax),
            (&["FNX"], Dialect::Set, Refusal::Syntax),
            (&["EX", "9223372036854775807"], Dialect::Set, Refusal::ExpireTime),
        ] {
            assert_eq!(parse(words, dialect), Err(bad), "{words:?}");
        }
    }
}
