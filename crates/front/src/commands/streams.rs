//! Commands on the entries of streams.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::{Call, Done, NotExecuted, Refusal};
use crate::core::data::TableKey;
use crate::core::streams::{OpenedStreams, StreamAccess, StreamStop, stream_root};
use planted::Bug;
use resp::ReplyWriter;
use std::collections::BTreeSet;
use values::{
    ArgumentError, ConsumerGroup, PagedStream, SetIdOptions, StreamAddition, StreamEntry, StreamId,
    StreamInterval, StreamRange, StreamTrimming, parse_interval,
};

pub(super) static FAMILY: Family = Family {
    group: "stream",
    category: Some("@stream"),
    commands: &[
        command("xadd", -5, WRITE | DENYOOM | FAST, ONE, xadd),
        command("xdel", -3, WRITE | FAST, ONE, xdel),
        command("xlen", 2, READONLY | FAST, ONE, xlen),
        command("xrange", -4, READONLY, ONE, xrange),
        command("xrevrange", -4, READONLY, ONE, xrevrange),
        command("xsetid", -3, WRITE | DENYOOM | FAST, ONE, xsetid),
        command("xtrim", -4, WRITE, ONE, xtrim),
    ],
};

impl Call<'_> {
    /// Passes the stream under the key of argument `position`, with those of its records that are
    /// needed, to `f`. It may be called several times: the reply is that of the last one.
    pub(super) fn read_stream<T>(
        &mut self,
        position: usize,
        mut f: impl FnMut(&PagedStream<'_>, &mut ReplyWriter<'_>) -> Result<T, StreamStop>,
    ) -> Result<T, NotExecuted> {
        let (key, table) = (self.key(position), self.session.status.table);
        let reply = &mut self.reply;
        let begin = reply.length();
        self.backend.streams().read(table, &[key], |streams| {
            reply.rewind(begin);
            f(streams.get(0)?, reply)
        })
    }

    /// Changes the stream under the key of argument `position` and writes the reply. `f` may be called
    /// several times: the reply is that of the last one.
    pub(super) fn update_stream<T>(
        &mut self,
        position: usize,
        mut f: impl for<'x> FnMut(&mut PagedStream<'x>, &mut ReplyWriter<'_>) -> Result<T, StreamStop>,
    ) -> Result<T, NotExecuted> {
        let key = TableKey { table: self.session.status.table, key: self.key(position) };
        let reply = &mut self.reply;
        let begin = reply.length();
        self.backend.streams().update_one(key, |stream| {
            reply.rewind(begin);
            f(stream, reply)
        })
    }

    /// Changes several streams and writes the reply. `f` may be called several times: the reply is that
    /// of the last one.
    pub(super) fn update_streams<T>(
        &mut self,
        streams: &[StreamAccess<'_>],
        mut f: impl for<'x> FnMut(&mut OpenedStreams<'x>, &mut ReplyWriter<'_>) -> Result<T, StreamStop>,
    ) -> Result<T, NotExecuted> {
        let reply = &mut self.reply;
        let begin = reply.length();
        self.backend.streams().update(streams, |streams, _| {
            reply.rewind(begin);
            f(streams, reply)
        })
    }
}

/// Writes an entry: its id, and the names and values of its fields.
pub(super) fn write_entry(entry: &StreamEntry<'_>, reply: &mut ReplyWriter<'_>) {
    reply.array(2);
    reply.bulk(entry.id.text().as_ref());
    reply.array(2 * entry.field_count());
    for (name, value) in entry.fields() {
        reply.bulk(name);
        reply.bulk(value);
    }
}

pub(super) fn write_entries(entries: &[StreamEntry<'_>], reply: &mut ReplyWriter<'_>) {
    reply.array(entries.len());
    entries.iter().for_each(|entry| write_entry(entry, reply));
}

/// Parses ids, all of which must be valid.
pub(super) fn parse_ids(words: &[&[u8]]) -> Result<BTreeSet<StreamId>, ArgumentError> {
    words.iter().map(|word| StreamId::parse_argument(word)).collect()
}

/// `XADD key [NOMKSTREAM] [MAXLEN | MINID [= | ~] threshold [LIMIT count]] id field value ...`.
fn xadd(call: &mut Call<'_>) -> Done {
    const EXHAUSTED: Refusal = Refusal::because(
        "ERR The stream has exhausted the last possible ID, unable to add more items",
    );
    const NOT_HIGHER: Refusal = Refusal::because(
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
    );
    let addition = StreamAddition::parse(&call.args[2..])?;
    let now = call.wall.0;
    let added = call.update_stream(1, |stream, _| {
        if addition.must_exist && !stream.exists() {
            return Ok(None);
        }
        let last = stream.root().last_id;
        if last == StreamId::MAX {
            return Err(EXHAUSTED.into());
        }
        let id = addition.id.after(last, now).ok_or(NOT_HIGHER)?;
        stream.push(id, addition.pairs());
        if let Some(StreamTrimming { trim, precision }) = addition.trimming {
            stream.trim(trim, precision)?;
        }
        Ok(Some(id))
    })?;
    match added {
        Some(id) => call.reply.bulk(id.text().as_ref()),
        None => call.reply.null(),
    }
    Ok(())
}

/// `XLEN key`.
fn xlen(call: &mut Call<'_>) -> Done {
    let count =
        call.read(|record| Ok::<_, Refusal>(stream_root(record)?.map_or(0, |root| root.count)))??;
    call.integer(count as i64)
}

/// `XDEL key id [id ...]`.
fn xdel(call: &mut Call<'_>) -> Done {
    let words = &call.args[2..];
    // As in Redis, a key with another value is found before an invalid id.
    let removed = call.update_stream(1, |stream, _| {
        if !stream.exists() {
            return Ok(0);
        }
        let ids = parse_ids(words).map_err(Refusal::from)?;
        let removed = stream.remove(&ids)?;
        if removed > 0 && planted::is(Bug::LastIdForgotten) {
            let last = stream.last_entry_id()?.unwrap_or(StreamId::MIN);
            stream.set_last_id(last, None, None);
        }
        Ok(removed)
    })?;
    call.integer(removed as i64)
}

/// `XTRIM key MAXLEN | MINID [= | ~] threshold [LIMIT count]`.
fn xtrim(call: &mut Call<'_>) -> Done {
    let StreamTrimming { trim, precision } = StreamTrimming::parse(&call.args[2..])?;
    let removed = call.update_stream(1, |stream, _| Ok(stream.trim(trim, precision)?))?;
    call.integer(removed as i64)
}

/// `XRANGE key start end [COUNT count]`.
fn xrange(call: &mut Call<'_>) -> Done {
    let interval = parse_interval(call.args[2], call.args[3], &call.args[4..])?;
    range(call, interval, false)
}

/// `XREVRANGE key end start [COUNT count]`.
fn xrevrange(call: &mut Call<'_>) -> Done {
    let interval = parse_interval(call.args[3], call.args[2], &call.args[4..])?;
    range(call, interval, true)
}

fn range(call: &mut Call<'_>, interval: StreamInterval, is_reversed: bool) -> Done {
    let StreamInterval { start, end, count } = interval;
    let range = StreamRange { start, end, count: count.unwrap_or(u64::MAX), hint: None };
    call.read_stream(1, |stream, reply| {
        let entries = match is_reversed {
            _ if !stream.exists() => Vec::new(),
            _ if count == Some(0) => {
                reply.null_array();
                return Ok(());
            }
            true => stream.range_reversed(range)?,
            false => stream.range(range)?.0,
        };
        write_entries(&entries, reply);
        Ok(())
    })
}

pub(super) const NO_SUCH_KEY: Refusal = Refusal::because("ERR no such key");

/// `XSETID key id [ENTRIESADDED count] [MAXDELETEDID id]`.
fn xsetid(call: &mut Call<'_>) -> Done {
    const BELOW_DELETED: Refusal = Refusal::because(
        "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
    );
    const BELOW_LAST: Refusal = Refusal::because(
        "ERR The ID specified in XSETID is smaller than the target stream top item",
    );
    const BELOW_COUNT: Refusal = Refusal::because(
        "ERR The entries_added specified in XSETID is smaller than the target stream length",
    );
    let SetIdOptions { id, added, max_deleted } = SetIdOptions::parse(&call.args[2..])?;
    call.update_stream(1, |stream, _| {
        if !stream.exists() {
            return Err(NO_SUCH_KEY.into());
        }
        if id < stream.root().max_deleted {
            return Err(BELOW_DELETED.into());
        }
        if stream.last_entry_id()?.is_some_and(|last| id < last) {
            return Err(BELOW_LAST.into());
        }
        let count = stream.root().count;
        if count > 0 && added.is_some_and(|added| added < count) {
            return Err(BELOW_COUNT.into());
        }
        stream.set_last_id(id, added, max_deleted);
        Ok(())
    })?;
    call.ok()
}

/// Copies a stream to another key, if `allows` says so of the record there, and removes the old one if
/// `moves` is set. Returns whether it did so; `None`: there is no value.
pub(super) fn copy_stream(
    call: &mut Call<'_>,
    [from, to]: [StreamAccess<'_>; 2],
    moves: bool,
    allows: impl Fn(Option<crate::core::data::Record<'_>>) -> bool,
) -> Result<Option<bool>, NotExecuted> {
    call.backend.streams().update(&[from, to], |streams: &mut OpenedStreams<'_>, records| {
        if records[0].is_none() {
            return Ok(None);
        }
        if !allows(records[1]) {
            return Ok(Some(false));
        }
        let from = streams.get(0)?;
        from.require_all().map_err(|gap| StreamStop::Gap(0, gap))?;
        let from = from.clone();
        streams.get_mut(1)?.copy_from(&from).map_err(|gap| StreamStop::Gap(1, gap))?;
        if planted::is(Bug::PendingNotCopied) {
            for place in &from.root().groups {
                let known = from.group(&place.name).ok().flatten();
                let last_id = known.map_or(StreamId::MIN, |group| group.last_id);
                let group = ConsumerGroup::new(last_id, None, 0);
                let set = streams.get_mut(1)?.set_group(&place.name, group);
                set.map_err(|gap| StreamStop::Gap(1, gap))?;
            }
        }
        if moves {
            streams.get_mut(0)?.clear();
        }
        Ok(Some(true))
    })
}
