//! Commands on hashes.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::element_scan::scan_elements;
use super::field_arguments::FieldArguments;
use super::packed::{
    SizeChange, count_elements, element_bytes, has_element, listed, remove_elements,
};
use super::sampling::{Sample, reply_with_sample};
use super::{Call, Done, NotExecuted, Refusal, parse_integer, refused, uppercase_is};
use crate::core::data::TableKey;
use crate::core::elements::Touched;
use crate::operators::counts::Found;
use planted::Bug;
use resp::Protocol;
use types::{UnixMillis, ValueType};
use values::{Damaged, Element, Elements, Extended, TimedElement};

pub(super) static FAMILY: Family = Family {
    group: "hash",
    category: Some("@hash"),
    commands: &[
        command("hdel", -3, WRITE | FAST, ONE, |call| remove_elements(call, ValueType::Hash)),
        command("hexists", 3, READONLY | FAST, ONE, |call| has_element(call, ValueType::Hash)),
        command("hget", 3, READONLY | FAST, ONE, hget),
        command("hgetall", 2, READONLY, ONE, hgetall),
        command("hgetdel", -5, WRITE | FAST, ONE, hgetdel),
        command("hincrby", 4, WRITE | DENYOOM | FAST, ONE, hincrby),
        command("hincrbyfloat", 4, WRITE | DENYOOM | FAST, ONE, hincrbyfloat),
        command("hkeys", 2, READONLY, ONE, |call| list(call, |element| element.name)),
        command("hlen", 2, READONLY | FAST, ONE, |call| count_elements(call, ValueType::Hash)),
        command("hmget", -3, READONLY | FAST, ONE, hmget),
        command("hmset", -4, WRITE | DENYOOM | FAST, ONE, hmset),
        command("hrandfield", -2, READONLY, ONE, hrandfield),
        command("hscan", -3, READONLY, ONE, |call| scan_elements(call, ValueType::Hash)),
        command("hset", -4, WRITE | DENYOOM | FAST, ONE, hset),
        command("hsetnx", 4, WRITE | DENYOOM | FAST, ONE, hsetnx),
        command("hstrlen", 3, READONLY | FAST, ONE, hstrlen),
        command("hvals", 2, READONLY, ONE, |call| list(call, |element| element.value)),
    ],
};

/// `HGET key field`.
fn hget(call: &mut Call<'_>) -> Done {
    let field = &call.args[2..3];
    call.reply_with_elements(ValueType::Hash, Touched::Names(field), |reply, hash| {
        reply.bulk_or_null(hash.get(field[0])?);
        Ok(())
    })
}

/// `HMGET key field [field ...]`.
fn hmget(call: &mut Call<'_>) -> Done {
    let fields = &call.args[2..];
    reply_with_values(call, fields)
}

/// Replies with the values of these fields of the hash under argument 1.
pub(super) fn reply_with_values(call: &mut Call<'_>, fields: &[&[u8]]) -> Done {
    call.reply_with_elements(ValueType::Hash, Touched::Names(fields), |reply, hash| {
        let values = fields.iter().map(|field| hash.get(field));
        let values = values.collect::<Result<Vec<Option<&[u8]>>, Damaged>>()?;
        reply.array(values.len());
        values.into_iter().for_each(|value| reply.bulk_or_null(value));
        Ok(())
    })
}

/// `HGETALL key`.
fn hgetall(call: &mut Call<'_>) -> Done {
    call.reply_with_elements(ValueType::Hash, Touched::All, |reply, hash| {
        let elements = listed(hash)?;
        reply.map(elements.len());
        for Element { name, value } in elements {
            reply.bulk(name);
            reply.bulk(value);
        }
        Ok(())
    })
}

/// `HKEYS key` and `HVALS key`: one part of each element.
fn list(call: &mut Call<'_>, part: impl Fn(Element<'_>) -> &[u8]) -> Done {
    call.reply_with_elements(ValueType::Hash, Touched::All, |reply, hash| {
        let elements = listed(hash)?;
        reply.array(elements.len());
        elements.into_iter().for_each(|element| reply.bulk(part(element)));
        Ok(())
    })
}

/// `HSTRLEN key field`.
fn hstrlen(call: &mut Call<'_>) -> Done {
    let field = &call.args[2..3];
    let length = call.read_elements(ValueType::Hash, Touched::Names(field), |hash| {
        Ok(hash.get(field[0])?.map_or(0, <[u8]>::len))
    })?;
    call.integer(length as i64)
}

/// `HSET key field value [field value ...]`.
fn hset(call: &mut Call<'_>) -> Done {
    let added = set_all(call)?;
    call.integer(added)
}

/// `HMSET key field value [field value ...]`.
fn hmset(call: &mut Call<'_>) -> Done {
    set_all(call)?;
    call.ok()
}

/// Sets all fields that the arguments name. Returns the number of new fields.
fn set_all(call: &mut Call<'_>) -> Result<i64, NotExecuted> {
    let (pairs, rest) = call.args[2..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Refusal::Arity.into());
    }
    let bytes = pairs.iter().map(|pair| element_bytes(pair)).sum();
    call.update_elements(ValueType::Hash, Touched::Pairs(pairs), SizeChange::Adds(bytes), |hash| {
        let mut added = 0;
        for [field, value] in pairs {
            let kept = match planted::is(Bug::FieldLifetimeKept) {
                true => hash.get_timed(field)?.and_then(|old| old.expiry),
                false => None,
            };
            added += i64::from(hash.set_until(field, value, kept)?);
        }
        Ok(added)
    })
}

/// `HSETNX key field value`.
fn hsetnx(call: &mut Call<'_>) -> Done {
    let (field, value) = (&call.args[2..3], call.args[3]);
    let size = SizeChange::Adds(element_bytes(&call.args[2..]));
    let set = call.update_elements(ValueType::Hash, Touched::Names(field), size, |hash| {
        let is_new = hash.get(field[0])?.is_none();
        if is_new {
            hash.set(field[0], value)?;
        }
        Ok(is_new)
    })?;
    call.integer(set)
}

/// `HGETDEL key FIELDS numfields field [field ...]`.
fn hgetdel(call: &mut Call<'_>) -> Done {
    let arguments = FieldArguments::without_options(call.args)?;
    arguments.check(1)?;
    change_and_reply_with_values(call, arguments.fields, |hash, field| {
        let value = hash.get(field)?.map(<[u8]>::to_vec);
        hash.remove(field)?;
        Ok(value)
    })
}

/// Changes fields of the hash under argument 1 without adding any, and replies with the values that
/// `change_one` returns.
pub(super) fn change_and_reply_with_values(
    call: &mut Call<'_>,
    fields: &[&[u8]],
    mut change_one: impl FnMut(&mut Elements<'_>, &[u8]) -> Result<Option<Vec<u8>>, Damaged>,
) -> Done {
    let key = TableKey { table: call.session.status.table, key: call.key(1) };
    let change = SizeChange::Removes.of(key, Touched::Names(fields));
    let exists = call.update_and_reply(ValueType::Hash, change, |hash, record, reply| {
        let values = fields.iter().map(|field| change_one(hash, field));
        let values = values.collect::<Result<Vec<Option<Vec<u8>>>, Damaged>>()?;
        reply.array(values.len());
        values.iter().for_each(|value| reply.bulk_or_null(value.as_deref()));
        Ok(record.is_some())
    })?;
    call.backend.count(Found::key(exists));
    Ok(())
}

/// `HINCRBY key field number`.
fn hincrby(call: &mut Call<'_>) -> Done {
    let field = &call.args[2..3];
    let number = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    let size = SizeChange::Adds(element_bytes(field) + NUMBER_BYTES_MAX);
    let sum = call.update_elements(ValueType::Hash, Touched::Names(field), size, |hash| {
        let (old, expiry) = counted(hash.get_timed(field[0])?);
        let old = parse_integer(old).ok_or(NOT_AN_INTEGER)?;
        let sum = old.checked_add(number).ok_or(OVERFLOW)?;
        let expiry = expiry.filter(|_| !planted::is(Bug::FieldLifetimeLost));
        hash.set_until(field[0], itoa::Buffer::new().format(sum).as_bytes(), expiry)?;
        Ok(sum)
    })?;
    call.integer(sum)
}

/// Returns the value and the expiry of a field that is counted. An absent field counts as 0.
fn counted(field: Option<TimedElement<'_>>) -> (&[u8], Option<UnixMillis>) {
    field.map_or((b"0", None), |field| (field.element.value, field.expiry))
}

/// Longest text of an integer, in bytes.
const NUMBER_BYTES_MAX: u64 = 20;

/// Longest text of a number with a fraction, in bytes.
const FLOAT_BYTES_MAX: u64 = 5 << 10;

const NOT_AN_INTEGER: Refusal = Refusal::because("ERR hash value is not an integer");
const OVERFLOW: Refusal = Refusal::because("ERR increment or decrement would overflow");

/// `HINCRBYFLOAT key field number`.
fn hincrbyfloat(call: &mut Call<'_>) -> Done {
    let field = &call.args[2..3];
    let number = Extended::parse(call.args[3]);
    let number = number.ok_or_else(|| refused("ERR value is not a valid float"))?;
    if !number.is_finite() {
        return Err(refused("ERR value is NaN or Infinity"));
    }
    let size = SizeChange::Adds(element_bytes(field) + FLOAT_BYTES_MAX);
    let sum = call.update_elements(ValueType::Hash, Touched::Names(field), size, |hash| {
        let (old, expiry) = counted(hash.get_timed(field[0])?);
        let old = Extended::parse(old).ok_or(NOT_A_FLOAT)?;
        let sum = old.checked_add(number).ok_or(INFINITE)?.format();
        hash.set_until(field[0], sum.as_bytes(), expiry)?;
        Ok(sum)
    })?;
    call.bulk(sum.as_bytes())
}

const NOT_A_FLOAT: Refusal = Refusal::because("ERR hash value is not a float");
const INFINITE: Refusal = Refusal::because("ERR increment would produce NaN or Infinity");

/// `HRANDFIELD key [count [WITHVALUES]]`.
fn hrandfield(call: &mut Call<'_>) -> Done {
    let with_values = match &call.args[2..] {
        [] => return one_random_field(call),
        [_] => false,
        [_, word] if uppercase_is(word, b"WITHVALUES") => true,
        _ => return Err(Refusal::Syntax.into()),
    };
    let number = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    if with_values && number.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(refused("ERR value is out of range"));
    }
    let sample = Sample::parse(call.args[2])?;
    // RESP3 has an array of pairs, RESP2 a flat array.
    let pairs = call.reply.protocol() == Protocol::Resp3;
    reply_with_sample(call, ValueType::Hash, sample, |reply, drawn| {
        reply.array(drawn.len() * if with_values && !pairs { 2 } else { 1 });
        for Element { name, value } in drawn {
            if with_values && pairs {
                reply.array(2);
            }
            reply.bulk(name);
            if with_values {
                reply.bulk(value);
            }
        }
        Ok(())
    })
}

fn one_random_field(call: &mut Call<'_>) -> Done {
    reply_with_sample(call, ValueType::Hash, Sample::Distinct(1), |reply, drawn| {
        reply.bulk_or_null(drawn.first().map(|element| element.name));
        Ok(())
    })
}
