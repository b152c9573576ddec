//! Commands on fields of hashes that have a time to live.
//!
//! A field whose time is over does not exist any more: [`values::Elements`] leaves it out. It expires
//! by the clock that judges the key. Design: `docs/design/values.md`.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::expiry::{ExpireConditions, parse_any_time};
use super::field_arguments::FieldArguments;
use super::hashes::{change_and_reply_with_values, reply_with_values};
use super::packed::{SizeChange, element_bytes};
use super::set_options::{
    Dialect, EX, EXAT, Expiry, ExpiryFormat, FieldCondition, PX, PXAT, SetOptions,
};
use super::{Call, Done, Refusal, parse_integer};
use crate::core::data::TableKey;
use crate::core::elements::Touched;
use resp::ReplyWriter;
use types::{UnixMillis, ValueType};
use values::{Damaged, Elements, TimedElement};

pub(super) static FAMILY: Family = Family {
    group: "hash",
    category: Some("@hash"),
    commands: &[
        command("hexpire", -6, WRITE | FAST, ONE, |call| expire_fields(call, EX)),
        command("hexpireat", -6, WRITE | FAST, ONE, |call| expire_fields(call, EXAT)),
        command("hexpiretime", -5, READONLY | FAST, ONE, |call| show_expiries(call, EXAT)),
        command("hgetex", -5, WRITE | FAST, ONE, hgetex),
        command("hpersist", -5, WRITE | FAST, ONE, hpersist),
        command("hpexpire", -6, WRITE | FAST, ONE, |call| expire_fields(call, PX)),
        command("hpexpireat", -6, WRITE | FAST, ONE, |call| expire_fields(call, PXAT)),
        command("hpexpiretime", -5, READONLY | FAST, ONE, |call| show_expiries(call, PXAT)),
        command("hpttl", -5, READONLY | FAST, ONE, |call| show_expiries(call, PX)),
        command("hsetex", -6, WRITE | DENYOOM | FAST, ONE, hsetex),
        command("httl", -5, READONLY | FAST, ONE, |call| show_expiries(call, EX)),
    ],
};

/// Replies about one field.
const NO_FIELD: i64 = -2;
const NO_EXPIRY: i64 = -1;
const REFUSED: i64 = 0;
const CHANGED: i64 = 1;
const EXPIRED: i64 = 2;

/// `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]`, `HPEXPIRE` with
/// milliseconds, and `HEXPIREAT` and `HPEXPIREAT` with times since 1970.
fn expire_fields(call: &mut Call<'_>, format: ExpiryFormat) -> Done {
    let arguments = FieldArguments::of(&call.args[3..])?;
    let conditions = ExpireConditions::parse(arguments.options)?;
    arguments.check(1)?;
    let now = call.clock_of(&[call.key(1)]);
    if parse_integer(call.args[2]).is_some_and(|number| number < 0) {
        return Err(Refusal::ExpireTime.into());
    }
    let at = parse_any_time(call.args[2], format, now)?;
    call.backend.note_expiring_field();
    reply_to_each(call, arguments.fields, |hash, name| {
        let Some(field) = hash.get_timed(name)? else { return Ok(NO_FIELD) };
        if !conditions.allow(field.expiry, at) {
            return Ok(REFUSED);
        }
        if at <= now.0 {
            hash.remove(name)?;
            return Ok(EXPIRED);
        }
        let value = field.element.value.to_vec();
        hash.set_until(name, &value, Some(UnixMillis(at)))?;
        Ok(CHANGED)
    })
}

/// `HPERSIST key FIELDS numfields field [field ...]`.
fn hpersist(call: &mut Call<'_>) -> Done {
    let arguments = FieldArguments::without_options(call.args)?;
    arguments.check(1)?;
    reply_to_each(call, arguments.fields, |hash, name| {
        let Some(field) = hash.get_timed(name)? else { return Ok(NO_FIELD) };
        if field.expiry.is_none() {
            return Ok(NO_EXPIRY);
        }
        let value = field.element.value.to_vec();
        hash.set(name, &value)?;
        Ok(CHANGED)
    })
}

/// Changes fields of the hash under argument 1, and replies with a number for each.
fn reply_to_each(
    call: &mut Call<'_>,
    fields: &[&[u8]],
    mut change_one: impl FnMut(&mut Elements<'_>, &[u8]) -> Result<i64, Damaged>,
) -> Done {
    let key = TableKey { table: call.session.status.table, key: call.key(1) };
    let change = SizeChange::Removes.of(key, Touched::Names(fields));
    call.update_and_reply(ValueType::Hash, change, |hash, _, reply| {
        let numbers = fields.iter().map(|field| change_one(hash, field));
        let numbers = numbers.collect::<Result<Vec<i64>, Damaged>>()?;
        write_numbers(&numbers, reply);
        Ok(())
    })
}

/// Writes a number for each field.
fn write_numbers(numbers: &[i64], reply: &mut ReplyWriter<'_>) {
    reply.array(numbers.len());
    numbers.iter().for_each(|number| reply.integer(*number));
}

/// `HTTL key FIELDS numfields field [field ...]`, `HPTTL`, `HEXPIRETIME` and `HPEXPIRETIME`. Seconds
/// are rounded to the nearest.
fn show_expiries(call: &mut Call<'_>, format: ExpiryFormat) -> Done {
    let arguments = FieldArguments::without_options(call.args)?;
    let is_number = |wrong: &Refusal| matches!(wrong, Refusal::NotAnInteger);
    arguments.check(1).map_err(|wrong| if is_number(&wrong) { wrong } else { Refusal::Syntax })?;
    let fields = arguments.fields;
    let from = match format.absolute {
        true => UnixMillis(0),
        false => call.clock_of(&[call.key(1)]),
    };
    let shown = |field: Option<TimedElement<'_>>| match field {
        None => NO_FIELD,
        Some(TimedElement { expiry: None, .. }) => NO_EXPIRY,
        Some(TimedElement { expiry: Some(at), .. }) => {
            let millis = at.0.saturating_sub(from.0);
            (if format.seconds { millis.saturating_add(500) / 1000 } else { millis }) as i64
        }
    };
    call.reply_with_elements(ValueType::Hash, Touched::Names(fields), |reply, hash| {
        let numbers = fields.iter().map(|field| hash.get_timed(field).map(shown));
        let numbers = numbers.collect::<Result<Vec<i64>, Damaged>>()?;
        write_numbers(&numbers, reply);
        Ok(())
    })
}

/// `HGETEX key [EX seconds | PX milliseconds | EXAT second | PXAT millisecond | PERSIST] FIELDS
/// numfields field [field ...]`.
fn hgetex(call: &mut Call<'_>) -> Done {
    let arguments = FieldArguments::of(&call.args[2..])?;
    let now = call.clock_of(&[call.key(1)]);
    let options = arguments.options(Dialect::HGetEx, 1, now)?;
    let fields = arguments.fields;
    if options.expiry.is_none() {
        return reply_with_values(call, fields);
    }
    note_expiry(call, &options);
    change_and_reply_with_values(call, fields, |hash, name| {
        let Some(TimedElement { element, expiry }) = hash.get_timed(name)? else { return Ok(None) };
        let value = element.value.to_vec();
        match options.expiry {
            None | Some(Expiry::Keep) => {}
            Some(Expiry::Never) if expiry.is_none() => {}
            Some(Expiry::Never) => set_until(hash, name, &value, None, now)?,
            Some(Expiry::At(at)) => set_until(hash, name, &value, Some(at), now)?,
        }
        Ok(Some(value))
    })
}

/// Tells that fields get an expiry, if they do.
fn note_expiry(call: &Call<'_>, options: &SetOptions<'_>) {
    if matches!(options.expiry, Some(Expiry::At(_))) {
        call.backend.note_expiring_field();
    }
}

/// Sets a field, or removes it if its expiry is in the past.
fn set_until(
    hash: &mut Elements<'_>,
    name: &[u8],
    value: &[u8],
    expiry: Option<UnixMillis>,
    now: UnixMillis,
) -> Result<(), Damaged> {
    match expiry.is_none_or(|at| at > now) {
        true => hash.set_until(name, value, expiry)?,
        false => hash.remove(name)?,
    };
    Ok(())
}

/// `HSETEX key [NX | XX] [FNX | FXX] [EX seconds | PX milliseconds | EXAT second | PXAT millisecond |
/// KEEPTTL] FIELDS numfields field value [field value ...]`.
fn hsetex(call: &mut Call<'_>) -> Done {
    let arguments = FieldArguments::of(&call.args[2..])?;
    let now = call.clock_of(&[call.key(1)]);
    let options = arguments.options(Dialect::HSetEx, 2, now)?;
    note_expiry(call, &options);
    let (pairs, _) = arguments.fields.as_chunks::<2>();
    let key = TableKey { table: call.session.status.table, key: call.key(1) };
    let bytes = pairs.iter().map(|pair| element_bytes(pair)).sum();
    let change = SizeChange::Adds(bytes).of(key, Touched::Pairs(pairs));
    let set = call.backend.update_elements(ValueType::Hash, change, |hash, record| {
        // A hash of which all fields have expired does not exist.
        let record = record.filter(|_| hash.count() > 0);
        if !options.allows(record)? || !allows_fields(hash, pairs, options.fields)? {
            return Ok(false);
        }
        for [name, value] in pairs {
            let expiry = match options.expiry {
                None | Some(Expiry::Never) => None,
                Some(Expiry::Keep) => hash.get_timed(name)?.and_then(|field| field.expiry),
                Some(Expiry::At(at)) => Some(at),
            };
            set_until(hash, name, value, expiry, now)?;
        }
        Ok(true)
    })?;
    call.integer(set)
}

/// Returns whether all fields of these pairs meet the condition.
fn allows_fields(
    hash: &Elements<'_>,
    pairs: &[[&[u8]; 2]],
    condition: FieldCondition,
) -> Result<bool, Damaged> {
    for [name, _] in pairs {
        let exists = hash.get(name)?.is_some();
        let is_met = match condition {
            FieldCondition::Always => true,
            FieldCondition::IfNone => !exists,
            FieldCondition::IfAll => exists,
        };
        if !is_met {
            return Ok(false);
        }
    }
    Ok(true)
}
