//! String commands.

use super::table::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::table::{ALL, Family, ONE, PAIRS, command};
use super::{Call, Done, Refusal, Undone, parse_integer};
use store::{Key, Need, Record, Stall};
use types::UnixMillis;
use types::limits::VALUE_BYTES_MAX;

pub(super) static FAMILY: Family = Family {
    group: "string",
    category: Some("@string"),
    commands: &[
        command("append", 3, WRITE | DENYOOM | FAST, ONE, append).text(
            "2.0.0",
            "O(N) of the length of the new value",
            "Adds to the end of a value.",
        ),
        command("get", 2, READONLY | FAST, ONE, get).text("1.0.0", "O(1)", "Reads a value."),
        command("getdel", 2, WRITE | FAST, ONE, getdel).text(
            "6.2.0",
            "O(1)",
            "Reads a value and deletes the key.",
        ),
        command("getset", 3, WRITE | DENYOOM | FAST, ONE, getset).text(
            "1.0.0",
            "O(1)",
            "Writes a value and returns the one before.",
        ),
        command("mget", -2, READONLY | FAST, ALL, mget).text(
            "1.0.0",
            "O(N) of the number of keys",
            "Reads several values at one moment.",
        ),
        command("mset", -3, WRITE | DENYOOM, PAIRS, mset).text(
            "1.0.1",
            "O(N) of the number of keys",
            "Writes several values at one moment.",
        ),
        command("msetnx", -3, WRITE | DENYOOM, PAIRS, msetnx).text(
            "1.0.1",
            "O(N) of the number of keys",
            "Writes several values if none of the keys exists.",
        ),
        command("psetex", 4, WRITE | DENYOOM, ONE, psetex).text(
            "2.6.0",
            "O(1)",
            "Writes a value that lasts so many milliseconds.",
        ),
        command("set", -3, WRITE | DENYOOM, ONE, set).text("1.0.0", "O(1)", "Writes a value."),
        command("setex", 4, WRITE | DENYOOM, ONE, setex).text(
            "2.0.0",
            "O(1)",
            "Writes a value that lasts so many seconds.",
        ),
        command("setnx", 3, WRITE | DENYOOM | FAST, ONE, setnx).text(
            "1.0.0",
            "O(1)",
            "Writes a value if the key does not exist.",
        ),
        command("strlen", 2, READONLY | FAST, ONE, strlen).text(
            "2.2.0",
            "O(1)",
            "Returns the length of a value.",
        ),
    ],
};

/// `GET key`.
fn get(call: &mut Call<'_>) -> Done {
    let key = call.key(1);
    let reply = &mut call.reply;
    call.engine.worker.read_one(call.session.table, key, |record| match record {
        Some(record) => reply.bulk(record.value),
        None => reply.null(),
    })?;
    Ok(())
}

/// `STRLEN key`.
fn strlen(call: &mut Call<'_>) -> Done {
    let key = call.key(1);
    let length = call
        .engine
        .worker
        .read_one(call.session.table, key, |record| record.map_or(0, |r| r.value.len()))?;
    call.reply.integer(length as i64);
    Ok(())
}

/// `MGET key [key ...]`.
fn mget(call: &mut Call<'_>) -> Done {
    let keys: Vec<Key<'_>> = (1..call.args.len()).map(|at| call.key(at)).collect();
    let reply = &mut call.reply;
    call.engine.worker.read(call.session.table, &keys, |records| {
        reply.array(records.len());
        for record in records {
            match record {
                Some(record) => reply.bulk(record.value),
                None => reply.null(),
            }
        }
    })?;
    Ok(())
}

/// `MSET key value [key value ...]`.
fn mset(call: &mut Call<'_>) -> Done {
    if call.args.len().is_multiple_of(2) {
        return Err(Refusal::Arity.into());
    }
    let args = call.args;
    let keys: Vec<Key<'_>> = (1..args.len()).step_by(2).map(|at| call.key(at)).collect();
    call.engine.worker.update(call.session.table, &keys, Need::Nothing, |_, changes| {
        for at in 0..args.len() / 2 {
            changes.put(at, args[2 + 2 * at], None);
        }
    })?;
    call.reply.simple("OK");
    Ok(())
}

/// `MSETNX key value [key value ...]`.
fn msetnx(call: &mut Call<'_>) -> Done {
    if call.args.len().is_multiple_of(2) {
        return Err(Refusal::Arity.into());
    }
    let args = call.args;
    let keys: Vec<Key<'_>> = (1..args.len()).step_by(2).map(|at| call.key(at)).collect();
    let table = call.session.table;
    let set = call.engine.worker.update(table, &keys, Need::Records, |records, changes| {
        let none_exists = records.iter().all(Option::is_none);
        if none_exists {
            for at in 0..args.len() / 2 {
                changes.put(at, args[2 + 2 * at], None);
            }
        }
        none_exists
    })?;
    call.reply.integer(i64::from(set));
    Ok(())
}

/// What `SET` was told to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SetOptions<'a> {
    condition: Condition<'a>,
    get: bool,
    expiry: SetExpiry,
}

/// When `SET` sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Condition<'a> {
    #[default]
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(&'a [u8]),
}

/// What `SET` does to the key's expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SetExpiry {
    #[default]
    Never,
    Keep,
    At(UnixMillis),
}

impl<'a> SetOptions<'a> {
    fn parse(arguments: &[&'a [u8]], now: UnixMillis) -> Result<SetOptions<'a>, Refusal> {
        let mut options = SetOptions::default();
        let mut rest = arguments;
        // Redis takes an option twice, and the last one counts, but no two that contradict.
        let (mut condition, mut expiry) = (Vec::new(), Vec::new());
        while let [word, after @ ..] = rest {
            rest = after;
            let upper = word.to_ascii_uppercase();
            let chosen = match &upper[..] {
                b"NX" | b"XX" | b"IFEQ" => &mut condition,
                b"EX" | b"PX" | b"EXAT" | b"PXAT" | b"KEEPTTL" => &mut expiry,
                b"GET" => {
                    options.get = true;
                    continue;
                }
                _ => return Err(Refusal::Syntax),
            };
            let again = *chosen == upper && upper != b"IFEQ";
            if !chosen.is_empty() && !again {
                return Err(Refusal::Syntax);
            }
            match &upper[..] {
                b"NX" => options.condition = Condition::IfAbsent,
                b"XX" => options.condition = Condition::IfPresent,
                b"KEEPTTL" => options.expiry = SetExpiry::Keep,
                _ => {
                    let [value, after @ ..] = rest else { return Err(Refusal::Syntax) };
                    rest = after;
                    match &upper[..] {
                        b"IFEQ" => options.condition = Condition::IfEqual(value),
                        unit => options.expiry = parse_expiry(unit, value, now)?,
                    }
                }
            }
            *chosen = upper;
        }
        Ok(options)
    }

    fn allows(&self, record: Option<Record<'_>>) -> bool {
        match self.condition {
            Condition::Always => true,
            Condition::IfAbsent => record.is_none(),
            Condition::IfPresent => record.is_some(),
            Condition::IfEqual(value) => record.is_some_and(|record| record.value == value),
        }
    }
}

/// The expiry behind `EX`, `PX`, `EXAT` or `PXAT`.
fn parse_expiry(unit: &[u8], number: &[u8], now: UnixMillis) -> Result<SetExpiry, Refusal> {
    let number = parse_integer(number).ok_or(Refusal::NotAnInteger)?;
    let (seconds, absolute) = (unit.starts_with(b"E"), unit.ends_with(b"AT"));
    let at = expire_at(number, seconds, absolute, now);
    at.map(SetExpiry::At).ok_or(Refusal::ExpireTime)
}

/// When something expires that is told to in these words; `None` if the number makes no sense
/// (Redis takes positive ones only here).
fn expire_at(number: i64, seconds: bool, absolute: bool, now: UnixMillis) -> Option<UnixMillis> {
    let number = u64::try_from(number).ok().filter(|&number| number > 0)?;
    let millis = if seconds { number.checked_mul(1000)? } else { number };
    let at = if absolute { millis } else { millis.checked_add(now.0)? };
    (at <= i64::MAX as u64).then_some(UnixMillis(at))
}

/// `SET key value [NX | XX | IFEQ value] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.
fn set(call: &mut Call<'_>) -> Done {
    if call.args.len() == 3 {
        return put(call, call.args[2], None);
    }
    match SetOptions::parse(&call.args[3..], call.wall)? {
        SetOptions { condition: Condition::Always, get: false, expiry: SetExpiry::At(at) } => {
            put(call, call.args[2], Some(at))
        }
        options => set_reading_first(call, options),
    }
}

/// A blind write: it needs nothing of what the key held.
fn put(call: &mut Call<'_>, value: &[u8], expiry: Option<UnixMillis>) -> Done {
    let key = call.key(1);
    call.engine.worker.put(call.session.table, key, value, expiry)?;
    call.reply.simple("OK");
    Ok(())
}

fn set_reading_first(call: &mut Call<'_>, options: SetOptions<'_>) -> Done {
    let (key, value, table) = (call.key(1), call.args[2], call.session.table);
    let (set, old) =
        call.engine.worker.update(table, &[key], Need::Records, |records, changes| {
            let record = records[0];
            let set = options.allows(record);
            if set {
                let expiry = match options.expiry {
                    SetExpiry::Never => None,
                    SetExpiry::Keep => record.and_then(|record| record.expiry),
                    SetExpiry::At(at) => Some(at),
                };
                changes.put(0, value, expiry);
            }
            (set, options.get.then(|| record.map(|record| record.value.to_vec())))
        })?;
    match (old, set) {
        (Some(Some(old)), _) => call.reply.bulk(&old),
        (Some(None), _) | (None, false) => call.reply.null(),
        (None, true) => call.reply.simple("OK"),
    }
    Ok(())
}

/// `SETNX key value`.
fn setnx(call: &mut Call<'_>) -> Done {
    let (key, value, table) = (call.key(1), call.args[2], call.session.table);
    let set = call.engine.worker.update(table, &[key], Need::Records, |records, changes| {
        let absent = records[0].is_none();
        if absent {
            changes.put(0, value, None);
        }
        absent
    })?;
    call.reply.integer(i64::from(set));
    Ok(())
}

/// `SETEX key seconds value`.
fn setex(call: &mut Call<'_>) -> Done {
    put_for(call, true)
}

/// `PSETEX key milliseconds value`.
fn psetex(call: &mut Call<'_>) -> Done {
    put_for(call, false)
}

fn put_for(call: &mut Call<'_>, seconds: bool) -> Done {
    let number = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let at = expire_at(number, seconds, false, call.wall).ok_or(Refusal::ExpireTime)?;
    put(call, call.args[3], Some(at))
}

/// `GETSET key value`.
fn getset(call: &mut Call<'_>) -> Done {
    let options = SetOptions { get: true, ..SetOptions::default() };
    set_reading_first(call, options)
}

/// `GETDEL key`.
fn getdel(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(1), call.session.table);
    let reply = &mut call.reply;
    call.engine.worker.update(table, &[key], Need::Records, |records, changes| {
        match records[0] {
            Some(record) => {
                reply.bulk(record.value);
                changes.delete(0);
            }
            None => reply.null(),
        }
    })?;
    Ok(())
}

/// `APPEND key value`.
fn append(call: &mut Call<'_>) -> Done {
    let (key, tail, table) = (call.key(1), call.args[2], call.session.table);
    let length = call.engine.worker.update(table, &[key], Need::Records, |records, changes| {
        let (old, expiry) = match records[0] {
            Some(record) => (record.value, record.expiry),
            None => (&[][..], None),
        };
        let length = old.len() + tail.len();
        if length <= VALUE_BYTES_MAX {
            changes.put(0, &[old, tail].concat(), expiry);
        }
        length
    })?;
    if length > VALUE_BYTES_MAX {
        return Err(Undone::Stall(Stall::TooLarge));
    }
    call.reply.integer(length as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000);

    fn parse<'a>(words: &[&'a str]) -> Result<SetOptions<'a>, Refusal> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        SetOptions::parse(&words, NOW)
    }

    #[test]
    fn options_of_set_are_read_as_redis_reads_them() {
        let at = |millis| SetExpiry::At(UnixMillis(millis));
        for (words, expiry) in [
            (&["ex", "10"][..], at(1_010_000)),
            (&["PX", "10"], at(1_000_010)),
            (&["EXAT", "2000"], at(2_000_000)),
            (&["PXAT", "5"], at(5)),
            (&["KEEPTTL"], SetExpiry::Keep),
            (&[], SetExpiry::Never),
        ] {
            assert_eq!(parse(words).map(|options| options.expiry), Ok(expiry), "{words:?}");
        }
        let options = parse(&["XX", "GET", "PX", "1"]).unwrap();
        assert_eq!((options.condition, options.get), (Condition::IfPresent, true));
        assert_eq!(parse(&["IFEQ", "x"]).unwrap().condition, Condition::IfEqual(b"x"));
    }

    #[test]
    fn contradictory_or_senseless_options_of_set_are_refused() {
        for (words, bad) in [
            (&["NX", "XX"][..], Refusal::Syntax),
            (&["EX"], Refusal::Syntax),
            (&["EX", "1", "PX", "1"], Refusal::Syntax),
            (&["EX", "1", "KEEPTTL"], Refusal::Syntax),
            (&["NX", "IFEQ", "a"], Refusal::Syntax),
            (&["what"], Refusal::Syntax),
            (&["EX", "ten"], Refusal::NotAnInteger),
            (&["EX", "0"], Refusal::ExpireTime),
            (&["PX", "-1"], Refusal::ExpireTime),
            (&["EX", "9223372036854775807"], Refusal::ExpireTime),
        ] {
            assert_eq!(parse(words), Err(bad), "{words:?}");
        }
    }
}
