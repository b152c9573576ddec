//! `DUMP` and `RESTORE`: a record as bytes, to copy it from one server to another.

use super::command::flag::{DANGEROUS, DENYOOM, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::packed::{SizeChange, again_if_replaced};
use super::{Call, Done, Refusal, parse_integer};
use crate::core::data::{Accessed, Need, Record, TableKey};
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::core::lists::ListChange;
use crate::core::streams::StreamAccess;
use types::{TypedValue, UnixMillis, ValueType};
use values::{
    Damaged, ListEnd, Packed, PackedList, Restored, RestoredStream, StreamId, StreamRange,
    TimedElement, Unreadable, ValuePages, earliest_field_expiry,
};

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@keyspace"),
    commands: &[
        command("dump", 2, READONLY, ONE, dump),
        command("restore", -4, WRITE | DENYOOM | DANGEROUS, ONE, restore),
        command("restore-asking", -4, WRITE | DENYOOM | DANGEROUS, ONE, restore),
    ],
};

/// `DUMP key`.
fn dump(call: &mut Call<'_>) -> Done {
    let (key, table) = (call.key(1), call.session.status.table);
    let reply = &mut call.reply;
    let split = call.backend.read_one(table, key, |record| {
        if let Some(record) = record.filter(|record| !is_dumped_as_it_is(*record)) {
            return Ok(Some(record.value.value_type));
        }
        let dump = record.map(|record| values::dump(record.value)).transpose()?;
        reply.bulk_or_null(dump.as_deref());
        Ok::<_, Refusal>(None)
    })??;
    let Some(value_type) = split else { return Ok(()) };
    if value_type == ValueType::Stream {
        return again_if_replaced(dump_stream(call));
    }
    if value_type == ValueType::List {
        let dumped = call.backend.read_list(table, key, |list| {
            let dump = values::dump_list(list.slice(0..list.count())?.items())?;
            reply.bulk_or_null(Some(&dump[..]).filter(|_| list.count() > 0));
            Ok(())
        });
        return again_if_replaced(dumped);
    }
    let dumped = call.backend.read_elements(table, key, value_type, Touched::All, |elements| {
        let dump = match value_type {
            ValueType::SortedSet => values::dump_members(&elements.sorted_members()?),
            ValueType::String
            | ValueType::Hash
            | ValueType::Set
            | ValueType::List
            | ValueType::Stream => {
                let listed = elements.iter_timed().collect::<Result<Vec<_>, Damaged>>()?;
                values::dump_elements(value_type, &listed)
            }
        };
        reply.bulk_or_null(Some(&dump[..]).filter(|_| elements.count() > 0));
        Ok(())
    });
    again_if_replaced(dumped)
}

/// Returns whether the record alone decides about its dump: it has no pages or groups, and nothing in
/// it expires.
fn is_dumped_as_it_is(record: Record<'_>) -> bool {
    let value_type = record.value.value_type;
    let is_hash = value_type == ValueType::Hash;
    let has_expiries = is_hash && earliest_field_expiry(record.value.bytes).is_some();
    value_type != ValueType::Stream && ValuePages::of(record.value).is_none() && !has_expiries
}

/// Replies with the dump of the stream under argument 1.
fn dump_stream(call: &mut Call<'_>) -> Done {
    const ALL: StreamRange =
        StreamRange { start: StreamId::MIN, end: StreamId::MAX, count: u64::MAX, hint: None };
    call.read_stream(1, |stream, reply| {
        stream.require_all()?;
        let (entries, _) = stream.range(ALL)?;
        let mut groups = Vec::new();
        for place in &stream.root().groups {
            groups.extend(stream.group(&place.name)?.map(|group| (&place.name[..], group)));
        }
        let dump = values::dump_stream(stream.root(), &entries, &groups)?;
        reply.bulk_or_null(Some(&dump[..]).filter(|_| stream.exists()));
        Ok(())
    })
}

#[derive(Debug, Default)]
struct RestoreOptions {
    replaces: bool,
    is_absolute: bool,
    accessed: Option<Accessed>,
}

impl RestoreOptions {
    /// Parses the options.
    fn parse(words: &[&[u8]]) -> Result<RestoreOptions, Refusal> {
        let mut options = RestoreOptions::default();
        let (mut idle, mut frequency) = (None, None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &word.to_ascii_uppercase()[..] {
                b"REPLACE" => options.replaces = true,
                b"ABSTTL" => options.is_absolute = true,
                b"IDLETIME" if frequency.is_none() => {
                    let number = words.next().ok_or(Refusal::Syntax)?;
                    let seconds = parse_between(number, i64::MAX, BAD_IDLE_TIME)?;
                    idle = Some(Accessed::Before { millis: seconds.saturating_mul(1000) });
                }
                b"FREQ" if idle.is_none() => {
                    let number = words.next().ok_or(Refusal::Syntax)?;
                    let count = parse_between(number, 255, BAD_FREQUENCY)? as u8;
                    frequency = Some(Accessed::Times { count });
                }
                _ => return Err(Refusal::Syntax),
            }
        }
        options.accessed = idle.or(frequency);
        Ok(options)
    }
}

const BAD_IDLE_TIME: &str = "ERR Invalid IDLETIME value, must be >= 0";
const BAD_FREQUENCY: &str = "ERR Invalid FREQ value, must be >= 0 and <= 255";
const BAD_TTL: &str = "ERR Invalid TTL value, must be >= 0";

/// Parses a number from 0 to `last`.
fn parse_between(text: &[u8], last: i64, refusal: &'static str) -> Result<u64, Refusal> {
    let number = parse_integer(text).ok_or(Refusal::NotAnInteger)?;
    let number = (0..=last).contains(&number).then_some(number as u64);
    number.ok_or(Refusal::Because(refusal.into()))
}

/// `RESTORE key ttl dump [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`.
fn restore(call: &mut Call<'_>) -> Done {
    let options = RestoreOptions::parse(&call.args[4..])?;
    let key = call.key(1);
    let now = call.clock_of(&[key]);
    let restored = parse(call.args[2], call.args[3], options.is_absolute, now);
    let is_living = |expiry: &Option<UnixMillis>| expiry.is_none_or(|expiry| expiry > now);
    match restored {
        Ok((restored, expiry)) if is_living(&expiry) => {
            let key = TableKey { table: call.session.status.table, key };
            let target = RestoreTarget { key, expiry, replaces: options.replaces };
            match &restored {
                Restored::Stream(stream) => target.restore_stream(call, stream)?,
                Restored::Value(value) => match (value.elements(), value.list()) {
                    (Some(elements), _) => target.restore_elements(call, elements)?,
                    (None, Some(list)) => target.restore_list(call, list)?,
                    (None, None) => target.restore_string(call, value.value())?,
                },
            }
        }
        restored => {
            let need = if options.replaces { Need::Nothing } else { Need::Records };
            call.update_keys(&[key], need, |records, changes| {
                check_replaced(records[0], options.replaces)?;
                restored.map(|_| changes.delete(0))
            })??;
        }
    }
    if let Some(accessed) = options.accessed {
        call.backend.set_accessed(call.session.status.table, key, accessed);
    }
    call.ok()
}

/// The key under which a value is restored.
#[derive(Clone, Copy)]
struct RestoreTarget<'k> {
    key: TableKey<'k>,
    expiry: Option<UnixMillis>,
    /// Set if another value of the key may be replaced.
    replaces: bool,
}

impl RestoreTarget<'_> {
    fn check(&self, record: Option<Record<'_>>) -> Result<(), Refusal> {
        check_replaced(record, self.replaces)
    }

    fn restore_string(&self, call: &mut Call<'_>, value: TypedValue<'_>) -> Done {
        let need = if self.replaces { Need::Nothing } else { Need::Records };
        call.update_keys(&[self.key.key], need, |records, changes| {
            self.check(records[0])?;
            changes.put_value(0, value, self.expiry);
            Ok::<(), Refusal>(())
        })??;
        Ok(())
    }

    fn restore_elements(&self, call: &mut Call<'_>, restored: Packed<'_>) -> Done {
        let now = call.clock_of(&[self.key.key]);
        if restored.has_expiries() {
            call.backend.note_expiring_field();
        }
        let change = ValueChange {
            expiry: NewExpiry::Is(self.expiry),
            ..SizeChange::Adds(0).of(self.key, Touched::Replaced)
        };
        call.backend.update_values(restored.value_type(), &[change], |values, records| {
            self.check(records[0])?;
            for timed in restored.timed(now) {
                let TimedElement { element, expiry } = timed?;
                values[0].set_until(element.name, element.value, expiry)?;
            }
            if values[0].count() == 0 {
                // All fields have expired. What was there is replaced nevertheless.
                values[0].clear();
            }
            Ok(())
        })
    }

    fn restore_list(&self, call: &mut Call<'_>, restored: PackedList<'_>) -> Done {
        let change = ListChange::of(self.key);
        let change = ListChange { expiry: NewExpiry::Is(self.expiry), is_replaced: true, ..change };
        call.backend.update_lists(&[change], restored, |lists, records| {
            self.check(records[0])?;
            let restored = lists.new;
            lists.get(0)?.push(ListEnd::Right, restored);
            Ok(())
        })
    }

    fn restore_stream(&self, call: &mut Call<'_>, restored: &RestoredStream) -> Done {
        let layout = call.backend.layout();
        let access = StreamAccess::of(self.key);
        let access =
            StreamAccess { expiry: NewExpiry::Is(self.expiry), is_replaced: true, ..access };
        call.backend.streams().update(&[access], |streams, records| {
            self.check(records[0])?;
            Ok(streams.get_mut(0)?.restore(restored, &layout)?)
        })
    }
}

/// Refuses to replace a value, unless that is allowed.
fn check_replaced(record: Option<Record<'_>>, replaces: bool) -> Result<(), Refusal> {
    if record.is_some() && !replaces { Err(BUSY) } else { Ok(()) }
}

const BUSY: Refusal = Refusal::because("BUSYKEY Target key name already exists.");

/// Parses `RESTORE`'s arguments into value and expiry.
fn parse(
    ttl: &[u8],
    dump: &[u8],
    is_absolute: bool,
    now: UnixMillis,
) -> Result<(Restored, Option<UnixMillis>), Refusal> {
    let ttl = parse_between(ttl, i64::MAX, BAD_TTL)?;
    let at = if is_absolute { ttl } else { ttl.saturating_add(now.0).min(i64::MAX as u64) };
    let value = values::restore(dump).map_err(|error| {
        Refusal::Because(match error {
            Unreadable::Footer => "ERR DUMP payload version or checksum are wrong".into(),
            Unreadable::OtherType => "ERR values of this type cannot be restored".into(),
            Unreadable::Body => "ERR Bad data format".into(),
        })
    })?;
    Ok((value, (ttl > 0).then_some(UnixMillis(at))))
}
