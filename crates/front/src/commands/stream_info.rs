//! `XINFO`: the properties of streams, consumer groups and consumers.

use super::command::flag::READONLY;
use super::command::{Command, Family, SECOND, command, container};
use super::help::help;
use super::stream_groups::{no_group_of_key, wrong_subcommand};
use super::streams::{NO_SUCH_KEY, write_entries, write_entry};
use super::{Call, Done, Refusal, parse_integer, uppercase_is};
use crate::core::streams::StreamStop;
use resp::ReplyWriter;
use values::{ConsumerGroup, PagedStream, StreamId, StreamRange};

pub(super) static FAMILY: Family =
    Family { group: "stream", category: Some("@stream"), commands: &[container("xinfo", XINFO)] };

static XINFO: &[Command] = &[
    command("xinfo|consumers", 4, READONLY, SECOND, info_consumers),
    command("xinfo|groups", 3, READONLY, SECOND, info_groups),
    help("xinfo|help"),
    command("xinfo|stream", -3, READONLY, SECOND, info_stream),
];

/// Entries that `XINFO STREAM key FULL` shows without a number.
const SHOWN_BY_DEFAULT: u64 = 10;

/// `XINFO STREAM key [FULL [COUNT count]]`.
fn info_stream(call: &mut Call<'_>) -> Done {
    let words = &call.args[3..];
    call.read_stream(2, |stream, reply| {
        if !stream.exists() {
            return Err(NO_SUCH_KEY.into());
        }
        match words {
            [] => write_summary(stream, reply),
            [word, count @ ..] if uppercase_is(word, b"FULL") => {
                let count = match count {
                    [] => SHOWN_BY_DEFAULT,
                    [word, count] if uppercase_is(word, b"COUNT") => {
                        let count = parse_integer(count).ok_or(Refusal::NotAnInteger)?;
                        u64::try_from(count).unwrap_or(SHOWN_BY_DEFAULT)
                    }
                    _ => return Err(wrong_subcommand("STREAM", "XINFO").into()),
                };
                let count = if count == 0 { u64::MAX } else { count };
                write_all(stream, count, reply)
            }
            _ => Err(wrong_subcommand("STREAM", "XINFO").into()),
        }
    })
}

/// The properties that both forms of `XINFO STREAM` begin with.
fn write_properties(stream: &PagedStream<'_>, reply: &mut ReplyWriter<'_>) {
    let root = stream.root();
    // Nodes of Redis's tree of blocks: one for each block, and the tree's own.
    let blocks = i64::from(root.interval.pages) + i64::from(root.tail.count() > 0);
    reply.integers([
        ("length", root.count as i64),
        ("radix-tree-keys", blocks),
        ("radix-tree-nodes", blocks + 1),
    ]);
    reply.texts([
        ("last-generated-id", root.last_id.text()),
        ("max-deleted-entry-id", root.max_deleted.text()),
    ]);
    reply.integers([("entries-added", root.added as i64)]);
    reply.texts([("recorded-first-entry-id", root.first_id.text())]);
}

fn write_summary(stream: &PagedStream<'_>, reply: &mut ReplyWriter<'_>) -> Result<(), StreamStop> {
    let all = StreamRange { start: StreamId::MIN, end: StreamId::MAX, count: 1, hint: None };
    let ends = [stream.range(all)?.0.pop(), stream.range_reversed(all)?.pop()];
    reply.map(10);
    write_properties(stream, reply);
    reply.integers([("groups", stream.root().groups.len() as i64)]);
    for (name, entry) in ["first-entry", "last-entry"].into_iter().zip(&ends) {
        reply.bulk(name.as_bytes());
        match entry {
            Some(entry) => write_entry(entry, reply),
            None => reply.null(),
        }
    }
    Ok(())
}

fn write_all(
    stream: &PagedStream<'_>,
    count: u64,
    reply: &mut ReplyWriter<'_>,
) -> Result<(), StreamStop> {
    let range = StreamRange { start: StreamId::MIN, end: StreamId::MAX, count, hint: None };
    let (entries, _) = stream.range(range)?;
    let mut groups = Vec::new();
    for place in &stream.root().groups {
        groups.extend(stream.group(&place.name)?.map(|group| (&place.name[..], group)));
    }
    reply.map(9);
    write_properties(stream, reply);
    reply.bulk(b"entries");
    write_entries(&entries, reply);
    reply.bulk(b"groups");
    reply.array(groups.len());
    for (name, group) in groups {
        write_group(stream, name, group, count, reply);
    }
    Ok(())
}

/// Writes the properties of a group for `XINFO STREAM key FULL`.
fn write_group(
    stream: &PagedStream<'_>,
    name: &[u8],
    group: &ConsumerGroup<'_>,
    count: u64,
    reply: &mut ReplyWriter<'_>,
) {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    reply.map(7);
    reply.texts([("name", name)]);
    reply.texts([("last-delivered-id", group.last_id.text())]);
    write_progress(stream, group, reply);
    let pending = group.pending();
    reply.integers([("pel-count", pending.len() as i64)]);
    reply.bulk(b"pending");
    reply.array(pending.len().min(count));
    for entry in pending.iter().take(count) {
        reply.array(4);
        reply.bulk(entry.id.text().as_ref());
        reply.bulk(&group.consumers()[entry.consumer].name);
        reply.integer(entry.delivered as i64);
        reply.integer(entry.deliveries as i64);
    }
    let (consumers, of_consumers) = (group.consumers_by_name(), group.pending_by_consumer());
    reply.bulk(b"consumers");
    reply.array(consumers.len());
    for at in consumers {
        let (consumer, own) = (&group.consumers()[at], &of_consumers[at]);
        reply.map(5);
        reply.texts([("name", &consumer.name)]);
        reply.integers([
            ("seen-time", consumer.seen as i64),
            ("active-time", consumer.active.map_or(-1, |active| active as i64)),
            ("pel-count", own.len() as i64),
        ]);
        reply.bulk(b"pending");
        reply.array(own.len().min(count));
        for entry in own.iter().take(count) {
            reply.array(3);
            reply.bulk(entry.id.text().as_ref());
            reply.integer(entry.delivered as i64);
            reply.integer(entry.deliveries as i64);
        }
    }
}

/// Writes how far a group has read.
fn write_progress(
    stream: &PagedStream<'_>,
    group: &ConsumerGroup<'_>,
    reply: &mut ReplyWriter<'_>,
) {
    let numbers =
        [("entries-read", group.read.map(|read| read as i64)), ("lag", group.lag(stream.root()))];
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        match number {
            Some(number) => reply.integer(number),
            None => reply.null(),
        }
    }
}

/// `XINFO GROUPS key`.
fn info_groups(call: &mut Call<'_>) -> Done {
    call.read_stream(2, |stream, reply| {
        if !stream.exists() {
            return Err(NO_SUCH_KEY.into());
        }
        let mut groups = Vec::new();
        for place in &stream.root().groups {
            groups.extend(stream.group(&place.name)?.map(|group| (&place.name, group)));
        }
        reply.array(groups.len());
        for (name, group) in groups {
            reply.map(6);
            reply.texts([("name", name)]);
            reply.integers([
                ("consumers", group.consumers().len() as i64),
                ("pending", group.pending().len() as i64),
            ]);
            reply.texts([("last-delivered-id", group.last_id.text())]);
            write_progress(stream, group, reply);
        }
        Ok(())
    })
}

/// `XINFO CONSUMERS key group`.
fn info_consumers(call: &mut Call<'_>) -> Done {
    let (key, name, now) = (call.args[2], call.args[3], call.wall.0);
    call.read_stream(2, |stream, reply| {
        if !stream.exists() {
            return Err(NO_SUCH_KEY.into());
        }
        let group = stream.group(name)?;
        let group = group.ok_or_else(|| no_group_of_key(name, key))?;
        let since = |time: u64| now.saturating_sub(time) as i64;
        reply.array(group.consumers().len());
        let of_consumers = group.pending_by_consumer();
        for at in group.consumers_by_name() {
            let consumer = &group.consumers()[at];
            reply.map(4);
            reply.texts([("name", &consumer.name)]);
            reply.integers([
                ("pending", of_consumers[at].len() as i64),
                ("idle", since(consumer.seen)),
                ("inactive", consumer.active.map_or(-1, since)),
            ]);
        }
        Ok(())
    })
}
