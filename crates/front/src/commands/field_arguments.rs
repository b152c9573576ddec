//! The arguments of commands on fields whose number is given: `FIELDS numfields field [field ...]`.

use super::set_options::{Dialect, SetOptions};
use super::{Refusal, parse_integer, uppercase_is};
use types::UnixMillis;

const WRONG_NUMBER: Refusal = Refusal::because(
    "ERR numfields should be greater than 0 and match the provided number of fields",
);

/// The arguments of a command behind those in fixed places: options, then `FIELDS numfields`, then
/// the fields.
pub(super) struct FieldArguments<'a> {
    pub(super) options: &'a [&'a [u8]],
    number: &'a [u8],
    pub(super) fields: &'a [&'a [u8]],
}

impl<'a> FieldArguments<'a> {
    /// Finds the parts of these arguments.
    pub(super) fn of(args: &'a [&'a [u8]]) -> Result<FieldArguments<'a>, Refusal> {
        let place = args.iter().position(|word| uppercase_is(word, b"FIELDS"));
        let (options, rest) = args.split_at(place.ok_or(WRONG_NUMBER)?);
        let [_, number, fields @ ..] = rest else { return Err(WRONG_NUMBER) };
        Ok(FieldArguments { options, number, fields })
    }

    /// Returns the arguments of a command with a key and no options.
    pub(super) fn without_options(args: &'a [&'a [u8]]) -> Result<FieldArguments<'a>, Refusal> {
        match args {
            [_, _, word, number, fields @ ..] if uppercase_is(word, b"FIELDS") => {
                Ok(FieldArguments { options: &[], number, fields })
            }
            _ => Err(Refusal::Syntax),
        }
    }

    /// Checks that there are as many fields as announced, of so many arguments each.
    pub(super) fn check(&self, per_field: usize) -> Result<(), Refusal> {
        let number = parse_integer(self.number).ok_or(Refusal::NotAnInteger)?;
        let is_right = !self.fields.is_empty()
            && usize::try_from(number).ok().and_then(|number| number.checked_mul(per_field))
                == Some(self.fields.len());
        if is_right { Ok(()) } else { Err(WRONG_NUMBER) }
    }

    /// Parses the options of `HGETEX` or `HSETEX`, and checks the number of fields, of so many
    /// arguments each. An option that is unknown is refused first, a number in one last.
    pub(super) fn options(
        &self,
        dialect: Dialect,
        per_field: usize,
        now: UnixMillis,
    ) -> Result<SetOptions<'a>, Refusal> {
        let options = SetOptions::parse(self.options, dialect, now);
        match options {
            Err(Refusal::Syntax) => Err(Refusal::Syntax),
            options => self.check(per_field).and(options),
        }
    }
}
