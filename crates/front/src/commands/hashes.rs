//! Commands on hashes.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::element_scan::scan_elements;
use super::packed::{
    count_elements, has_element, packed, read_elements, remove_elements, write_elements,
};
use super::sampling::Sample;
use super::{Call, Done, NotExecuted, Refusal, parse_integer, refused, uppercase_is};
use crate::operators::counts::Found;
use resp::Protocol;
use types::ValueType;
use values::{Damaged, Element, Extended, Packed};

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

/// Reads the hash under argument 1.
fn read<T>(
    call: &mut Call<'_>,
    f: impl FnOnce(Packed<'_>) -> Result<T, Refusal>,
) -> Result<T, NotExecuted> {
    Ok(call.read(|record| f(packed(record, ValueType::Hash)?))??)
}

/// Replies about the hash under argument 1. If `f` returns an error, it has written nothing.
fn reply_with(
    call: &mut Call<'_>,
    f: impl FnOnce(&mut resp::ReplyWriter<'_>, Packed<'_>) -> Result<(), Refusal>,
) -> Done {
    call.reply_with(1, |reply, record| f(reply, packed(record, ValueType::Hash)?))
}

/// `HGET key field`.
fn hget(call: &mut Call<'_>) -> Done {
    let field = call.args[2];
    reply_with(call, |reply, hash| {
        reply.bulk_or_null(hash.get(field)?);
        Ok(())
    })
}

/// `HMGET key field [field ...]`.
fn hmget(call: &mut Call<'_>) -> Done {
    let fields = &call.args[2..];
    reply_with(call, |reply, hash| {
        let values = hash.get_all(fields)?;
        reply.array(values.len());
        values.into_iter().for_each(|value| reply.bulk_or_null(value));
        Ok(())
    })
}

/// `HGETALL key`.
fn hgetall(call: &mut Call<'_>) -> Done {
    reply_with(call, |reply, hash| {
        let elements = hash.elements().collect::<Result<Vec<_>, Damaged>>()?;
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
    reply_with(call, |reply, hash| {
        let elements = hash.elements().collect::<Result<Vec<_>, Damaged>>()?;
        reply.array(elements.len());
        elements.into_iter().for_each(|element| reply.bulk(part(element)));
        Ok(())
    })
}

/// `HSTRLEN key field`.
fn hstrlen(call: &mut Call<'_>) -> Done {
    let field = call.args[2];
    let length = read(call, |hash| Ok(hash.get(field)?.map_or(0, <[u8]>::len)))?;
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
    Ok(call.update(|record, changes| {
        let mut hash = read_elements(record, ValueType::Hash, pairs.len())?;
        let mut added = 0;
        for [field, value] in pairs {
            added += i64::from(hash.set(field, value));
        }
        write_elements(&hash, record, changes, 0);
        Ok::<i64, Refusal>(added)
    })??)
}

/// `HSETNX key field value`.
fn hsetnx(call: &mut Call<'_>) -> Done {
    let (field, value) = (call.args[2], call.args[3]);
    let set = call.update(|record, changes| {
        let mut hash = read_elements(record, ValueType::Hash, 1)?;
        let is_new = hash.get(field).is_none();
        if is_new {
            hash.set(field, value);
            write_elements(&hash, record, changes, 0);
        }
        Ok::<bool, Refusal>(is_new)
    })??;
    call.integer(set)
}

/// `HGETDEL key FIELDS numfields field [field ...]`.
fn hgetdel(call: &mut Call<'_>) -> Done {
    if !uppercase_is(call.args[2], b"FIELDS") {
        return Err(Refusal::Syntax.into());
    }
    let count = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    let fields = &call.args[4..];
    if usize::try_from(count) != Ok(fields.len()) {
        return Err(refused(
            "ERR numfields should be greater than 0 and match the provided number of fields",
        ));
    }
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    let need = crate::core::data::Need::Records;
    let exists = call.backend.update(table, &[key], need, |records, changes| {
        let mut hash = read_elements(records[0], ValueType::Hash, fields.len())?;
        reply.array(fields.len());
        for field in fields {
            reply.bulk_or_null(hash.get(field));
            hash.remove(field);
        }
        write_elements(&hash, records[0], changes, 0);
        Ok::<bool, Refusal>(records[0].is_some())
    })??;
    call.backend.count(Found::key(exists));
    Ok(())
}

/// `HINCRBY key field number`.
fn hincrby(call: &mut Call<'_>) -> Done {
    let field = call.args[2];
    let number = parse_integer(call.args[3]).ok_or(Refusal::NotAnInteger)?;
    let sum = call.update(|record, changes| {
        let mut text = itoa::Buffer::new();
        let mut hash = read_elements(record, ValueType::Hash, 1)?;
        let old = hash.get(field).map_or(Some(0), parse_integer).ok_or(NOT_AN_INTEGER)?;
        let sum = old.checked_add(number).ok_or(OVERFLOW)?;
        hash.set(field, text.format(sum).as_bytes());
        write_elements(&hash, record, changes, 0);
        Ok::<i64, Refusal>(sum)
    })??;
    call.integer(sum)
}

const NOT_AN_INTEGER: Refusal = Refusal::because("ERR hash value is not an integer");
const OVERFLOW: Refusal = Refusal::because("ERR increment or decrement would overflow");

/// `HINCRBYFLOAT key field number`.
fn hincrbyfloat(call: &mut Call<'_>) -> Done {
    let field = call.args[2];
    let number = Extended::parse(call.args[3]);
    let number = number.ok_or_else(|| refused("ERR value is not a valid float"))?;
    if !number.is_finite() {
        return Err(refused("ERR value is NaN or Infinity"));
    }
    let sum = call.update(|record, changes| {
        let mut hash = read_elements(record, ValueType::Hash, 1)?;
        let old = Extended::parse(hash.get(field).unwrap_or(b"0"));
        let old = old.filter(|old| old.is_finite()).ok_or(NOT_A_FLOAT)?;
        let sum = old.checked_add(number).ok_or(INFINITE)?.format();
        hash.set(field, sum.as_bytes());
        write_elements(&hash, record, changes, 0);
        drop(hash);
        Ok::<String, Refusal>(sum)
    })??;
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
    let mut random = call.random();
    // RESP3 has an array of pairs, RESP2 a flat array.
    let pairs = call.reply.protocol() == Protocol::Resp3;
    reply_with(call, |reply, hash| {
        let elements = hash.elements().collect::<Result<Vec<_>, Damaged>>()?;
        let drawn = sample.draw(elements.len(), &mut random)?;
        reply.array(drawn.len() * if with_values && !pairs { 2 } else { 1 });
        for place in drawn {
            let Element { name, value } = elements[place];
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
    let mut random = call.random();
    reply_with(call, |reply, hash| {
        let elements = hash.elements().collect::<Result<Vec<_>, Damaged>>()?;
        let drawn = Sample::Distinct(1).draw(elements.len(), &mut random)?;
        reply.bulk_or_null(drawn.first().map(|place| elements[*place].name));
        Ok(())
    })
}
