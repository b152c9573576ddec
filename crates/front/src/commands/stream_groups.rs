//! Commands on the consumer groups of streams.

use super::command::flag::{DENYOOM, FAST, READONLY, WRITE};
use super::command::{Command, Family, ONE, SECOND, command, container};
use super::help::help;
use super::streams::{parse_ids, write_entry};
use super::{Call, Done, NotExecuted, Refusal, parse_integer, uppercase_is};
use crate::core::streams::GROUP_TOO_LARGE;
use resp::ReplyWriter;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use values::{
    ArgumentError, AutoClaimOptions, ClaimOptions, ConsumerGroup, PagedStream, PendingEntry,
    PendingOptions, StreamEntry, StreamGap, StreamId,
};

pub(super) static FAMILY: Family = Family {
    group: "stream",
    category: Some("@stream"),
    commands: &[
        command("xack", -4, WRITE | FAST, ONE, xack),
        command("xautoclaim", -6, WRITE | FAST, ONE, xautoclaim),
        command("xclaim", -6, WRITE | FAST, ONE, xclaim),
        container("xgroup", XGROUP),
        command("xpending", -3, READONLY, ONE, xpending),
    ],
};

static XGROUP: &[Command] = &[
    command("xgroup|create", -5, WRITE | DENYOOM, SECOND, create),
    command("xgroup|createconsumer", 5, WRITE | DENYOOM, SECOND, create_consumer),
    command("xgroup|delconsumer", 5, WRITE, SECOND, delete_consumer),
    command("xgroup|destroy", 4, WRITE, SECOND, destroy),
    help("xgroup|help"),
    command("xgroup|setid", -5, WRITE, SECOND, set_id),
];

/// Returns a name as an error shows it: up to a zero byte, as in Redis.
fn shown(name: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// The error for a group that does not exist, as most commands report it.
fn no_group(key: &[u8], group: &[u8]) -> Refusal {
    let [key, group] = [key, group].map(shown);
    Refusal::Because(format!("NOGROUP No such key '{key}' or consumer group '{group}'").into())
}

/// The error of `XREADGROUP` for a group that does not exist.
pub(super) fn no_group_in_read(key: &[u8], group: &[u8]) -> Refusal {
    let [key, group] = [key, group].map(shown);
    let text = format!(
        "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
    );
    Refusal::Because(text.into())
}

/// The error of subcommands of `XGROUP` and `XINFO` for a group that does not exist.
pub(super) fn no_group_of_key(group: &[u8], key: &[u8]) -> Refusal {
    let [group, key] = [group, key].map(shown);
    Refusal::Because(
        format!("NOGROUP No such consumer group '{group}' for key name '{key}'").into(),
    )
}

/// An entry that a consumer receives.
pub(super) enum ReceivedEntry<'s> {
    Entry(StreamEntry<'s>),
    /// It was deleted from the stream.
    Deleted(StreamId),
}

pub(super) fn write_received(received: &[ReceivedEntry<'_>], reply: &mut ReplyWriter<'_>) {
    reply.array(received.len());
    for entry in received {
        match entry {
            ReceivedEntry::Entry(entry) => write_entry(entry, reply),
            ReceivedEntry::Deleted(id) => {
                reply.array(2);
                reply.bulk(id.text().as_ref());
                reply.null_array();
            }
        }
    }
}

/// Returns a copy of a group; `None`: there is no such group.
fn copied<'x>(
    stream: &PagedStream<'x>,
    name: &[u8],
) -> Result<Option<ConsumerGroup<'x>>, StreamGap> {
    Ok(stream.group(name)?.cloned())
}

/// Returns Redis's error for a subcommand with other arguments than it takes.
pub(super) fn wrong_subcommand(subcommand: &str, command: &str) -> Refusal {
    let text = format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try {command} HELP."
    );
    Refusal::Because(text.into())
}

fn wrong_arguments(call: &Call<'_>) -> Refusal {
    wrong_subcommand(&String::from_utf8_lossy(call.args[1]), "XGROUP")
}

/// Options of `XGROUP CREATE` and `XGROUP SETID`.
#[derive(Clone, Copy, Debug, Default)]
struct GroupOptions {
    creates_stream: bool,
    read: Option<u64>,
}

impl GroupOptions {
    fn parse(call: &Call<'_>, may_create: bool) -> Result<GroupOptions, Refusal> {
        // Each option once: the number of its value counts as an argument.
        let arguments_max = if may_create { 8 } else { 7 };
        if call.args.len() > arguments_max {
            return Err(wrong_arguments(call));
        }
        const NEGATIVE: Refusal =
            Refusal::because("ERR value for ENTRIESREAD must be positive or -1");
        let mut options = GroupOptions::default();
        let mut words = call.args[5..].iter();
        while let Some(word) = words.next() {
            if may_create && uppercase_is(word, b"MKSTREAM") {
                options.creates_stream = true;
            } else if uppercase_is(word, b"ENTRIESREAD")
                && let Some(number) = words.next()
            {
                let read = parse_integer(number).ok_or(Refusal::NotAnInteger)?;
                if read < -1 {
                    return Err(NEGATIVE);
                }
                options.read = u64::try_from(read).ok();
            } else {
                return Err(wrong_arguments(call));
            }
        }
        Ok(options)
    }
}

const NO_KEY: Refusal = Refusal::because(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.",
);

/// Returns the position of a group: `$` is that of the last entry, and `parse` parses ids.
fn parse_position(
    argument: &[u8],
    stream: &PagedStream<'_>,
    parse: impl FnOnce(&[u8]) -> Result<StreamId, ArgumentError>,
) -> Result<StreamId, Refusal> {
    match argument {
        b"$" => Ok(stream.root().last_id),
        id => Ok(parse(id)?),
    }
}

/// `XGROUP CREATE key group id | $ [MKSTREAM] [ENTRIESREAD count]`.
fn create(call: &mut Call<'_>) -> Done {
    const EXISTS: Refusal = Refusal::because("BUSYGROUP Consumer Group name already exists");
    let GroupOptions { creates_stream, read } = GroupOptions::parse(call, true)?;
    let (name, position) = (call.args[3], call.args[4]);
    call.update_stream(2, |stream, _| {
        if !stream.exists() && !creates_stream {
            return Err(NO_KEY.into());
        }
        let last_id = parse_position(position, stream, StreamId::parse_argument)?;
        if stream.root().find_group(name).is_ok() {
            return Err(EXISTS.into());
        }
        let hint = stream.root().interval.first;
        let group = ConsumerGroup::new(last_id, read, hint);
        Ok(stream.set_group(name, group)?)
    })?;
    call.ok()
}

/// Changes a group that must exist, for a subcommand of `XGROUP`.
fn change_group<T>(
    call: &mut Call<'_>,
    mut f: impl FnMut(&mut ConsumerGroup<'_>, &PagedStream<'_>) -> Result<T, Refusal>,
) -> Result<T, NotExecuted> {
    let (key, name) = (call.args[2], call.args[3]);
    call.update_stream(2, |stream, _| {
        if !stream.exists() {
            return Err(NO_KEY.into());
        }
        let group = copied(stream, name)?;
        let mut group = group.ok_or_else(|| no_group_of_key(name, key))?;
        let before = group.clone();
        let result = f(&mut group, stream)?;
        if group != before {
            stream.set_group(name, group)?;
        }
        Ok(result)
    })
}

/// `XGROUP SETID key group id | $ [ENTRIESREAD count]`.
fn set_id(call: &mut Call<'_>) -> Done {
    let options = GroupOptions::parse(call, false)?;
    let position = call.args[4];
    change_group(call, |group, stream| {
        group.last_id = parse_position(position, stream, StreamId::parse_or_end)?;
        group.read = options.read;
        Ok(())
    })?;
    call.ok()
}

/// `XGROUP DESTROY key group`.
fn destroy(call: &mut Call<'_>) -> Done {
    let name = call.args[3];
    let removed = call.update_stream(2, |stream, _| {
        if !stream.exists() {
            return Err(NO_KEY.into());
        }
        Ok(stream.remove_group(name)?)
    })?;
    call.integer(removed)
}

/// `XGROUP CREATECONSUMER key group consumer`.
fn create_consumer(call: &mut Call<'_>) -> Done {
    let (name, now) = (call.args[4], call.wall.0);
    let created = change_group(call, |group, _| Ok(group.consumer(name, now).1))?;
    call.integer(created)
}

/// `XGROUP DELCONSUMER key group consumer`.
fn delete_consumer(call: &mut Call<'_>) -> Done {
    let name = call.args[4];
    let pending = change_group(call, |group, _| {
        let consumer = group.find_consumer(name);
        Ok(consumer.map_or(0, |consumer| group.remove_consumer(consumer)))
    })?;
    call.integer(pending as i64)
}

/// `XACK key group id [id ...]`.
fn xack(call: &mut Call<'_>) -> Done {
    let (name, words) = (call.args[2], &call.args[3..]);
    let acknowledged = call.update_stream(1, |stream, _| {
        let Some(mut group) = copied(stream, name)? else { return Ok(0) };
        let ids = parse_ids(words).map_err(Refusal::from)?;
        let acknowledged = group.acknowledge(&ids);
        if acknowledged > 0 {
            stream.set_group(name, group)?;
        }
        Ok(acknowledged)
    })?;
    call.integer(acknowledged as i64)
}

/// `XPENDING key group [[IDLE milliseconds] start end count [consumer]]`.
fn xpending(call: &mut Call<'_>) -> Done {
    let options = PendingOptions::parse(&call.args[3..])?;
    let (key, name, now) = (call.args[1], call.args[2], call.wall.0);
    call.read_stream(1, |stream, reply| {
        let group = stream.group(name)?.ok_or_else(|| no_group(key, name))?;
        match options {
            None => write_pending_summary(group, reply),
            Some(options) => write_pending(group, options, now, reply),
        }
        Ok(())
    })
}

fn write_pending_summary(group: &ConsumerGroup<'_>, reply: &mut ReplyWriter<'_>) {
    let pending = group.pending();
    reply.array(4);
    reply.integer(pending.len() as i64);
    let (Some(first), Some(last)) = (pending.first(), pending.last()) else {
        reply.null();
        reply.null();
        return reply.null_array();
    };
    reply.bulk(first.id.text().as_ref());
    reply.bulk(last.id.text().as_ref());
    let of_consumers = group.pending_by_consumer();
    let mut consumers = group.consumers_by_name();
    consumers.retain(|at| !of_consumers[*at].is_empty());
    reply.array(consumers.len());
    for at in consumers {
        reply.array(2);
        reply.bulk(&group.consumers()[at].name);
        reply.bulk(itoa::Buffer::new().format(of_consumers[at].len()).as_bytes());
    }
}

fn write_pending(
    group: &ConsumerGroup<'_>,
    options: PendingOptions<'_>,
    now: u64,
    reply: &mut ReplyWriter<'_>,
) {
    let consumer = options.consumer.map(|name| group.find_consumer(name));
    let is_of_consumer = |entry: &&PendingEntry| match consumer {
        Some(consumer) => Some(entry.consumer) == consumer,
        None => true,
    };
    let idle = |entry: &PendingEntry| (now as i64).saturating_sub(entry.delivered as i64);
    let is_idle = |entry: &&PendingEntry| options.idle == 0 || idle(entry) >= options.idle;
    let found = group.pending_from(options.interval.start).iter();
    let found = found.take_while(|entry| entry.id <= options.interval.end);
    let found = found.filter(is_of_consumer).filter(is_idle);
    let count = usize::try_from(options.count).unwrap_or(usize::MAX);
    let found: Vec<&PendingEntry> = found.take(count).collect();
    reply.array(found.len());
    for entry in found {
        reply.array(4);
        reply.bulk(entry.id.text().as_ref());
        reply.bulk(&group.consumers()[entry.consumer].name);
        reply.integer(idle(entry).max(0));
        reply.integer(entry.deliveries as i64);
    }
}

/// Returns whether an entry was delivered so long ago.
fn is_idle(entry: &PendingEntry, idle: u64, now: u64) -> bool {
    idle == 0 || now.saturating_sub(entry.delivered) >= idle
}

/// `XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME time] [RETRYCOUNT count]
/// [FORCE] [JUSTID] [LASTID id]`.
fn xclaim(call: &mut Call<'_>) -> Done {
    const BAD_IDLE: Refusal = Refusal::because("ERR Invalid min-idle-time argument for XCLAIM");
    let (key, name, consumer, now) = (call.args[1], call.args[2], call.args[3], call.wall.0);
    let (idle, words) = (call.args[4], &call.args[5..]);
    call.update_stream(1, |stream, reply| {
        let group = copied(stream, name)?;
        let mut group = group.ok_or_else(|| no_group(key, name))?;
        let idle = parse_integer(idle).ok_or(BAD_IDLE)?.max(0) as u64;
        let options = ClaimOptions::parse(words).map_err(Refusal::from)?;
        group.last_id = group.last_id.max(options.last_id);
        let (consumer, _) = group.consumer(consumer, now);
        group.see(consumer, now);
        stream.require_entries(options.ids.iter().copied())?;
        let mut claimed: Vec<StreamEntry<'_>> = Vec::new();
        // The group's entries are a sorted list: it is changed once, however many ids there are.
        let (mut gone, mut new) = (BTreeSet::new(), BTreeMap::new());
        for id in &options.ids {
            let pending = new.get(id).copied().or_else(|| group.find_pending(*id));
            let Some(entry) = stream.entry(*id)? else {
                gone.insert(*id);
                continue;
            };
            let pending = match pending {
                Some(pending) if !is_idle(&pending, idle, now) => continue,
                Some(pending) => pending,
                None if options.forces => {
                    PendingEntry { id: *id, consumer, delivered: now, deliveries: 1 }
                }
                None => continue,
            };
            let counted = u64::from(!options.ids_only);
            let more = pending.deliveries.saturating_add(counted);
            let deliveries = options.deliveries.unwrap_or(more);
            let delivered = options.time.map_or(now, |time| time.at(now));
            new.insert(*id, PendingEntry { id: *id, consumer, delivered, deliveries });
            group.activate(consumer, now);
            claimed.push(entry);
        }
        group.acknowledge(&gone);
        group.set_all_pending(new.into_values());
        require_room(&group)?;
        write_claimed(&claimed, options.ids_only, reply);
        Ok(stream.set_group(name, group)?)
    })
}

fn require_room(group: &ConsumerGroup<'_>) -> Result<(), Refusal> {
    match group.fits() {
        true => Ok(()),
        false => Err(GROUP_TOO_LARGE),
    }
}

fn write_claimed(claimed: &[StreamEntry<'_>], ids_only: bool, reply: &mut ReplyWriter<'_>) {
    reply.array(claimed.len());
    for entry in claimed {
        match ids_only {
            true => reply.bulk(entry.id.text().as_ref()),
            false => write_entry(entry, reply),
        }
    }
}

/// Pending entries that `XAUTOCLAIM` looks at, per entry of its reply, as in Redis.
const LOOKS_PER_CLAIM: u64 = 10;

/// `XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]`.
fn xautoclaim(call: &mut Call<'_>) -> Done {
    let options = AutoClaimOptions::parse(&call.args[4..])?;
    let (key, name, consumer, now) = (call.args[1], call.args[2], call.args[3], call.wall.0);
    call.update_stream(1, |stream, reply| {
        let group = copied(stream, name)?;
        let mut group = group.ok_or_else(|| no_group(key, name))?;
        let (consumer, _) = group.consumer(consumer, now);
        group.see(consumer, now);
        let (mut claimed, mut deleted) = (Vec::new(), Vec::new());
        let mut looks = options.count.saturating_mul(LOOKS_PER_CLAIM);
        let found: Vec<PendingEntry> = group.pending_from(options.start).to_vec();
        let looked_at = usize::try_from(looks).unwrap_or(usize::MAX);
        stream.require_entries(found.iter().take(looked_at).map(|pending| pending.id))?;
        let mut found = found.into_iter().peekable();
        while looks > 0
            && ((claimed.len() + deleted.len()) as u64) < options.count
            && let Some(pending) = found.next()
        {
            looks -= 1;
            let Some(entry) = stream.entry(pending.id)? else {
                deleted.push(pending.id);
                continue;
            };
            if !is_idle(&pending, options.idle, now) {
                continue;
            }
            let deliveries = pending.deliveries.saturating_add(u64::from(!options.ids_only));
            let id = pending.id;
            group.set_pending(PendingEntry { id, consumer, delivered: now, deliveries });
            group.activate(consumer, now);
            claimed.push(entry);
        }
        let next = found.peek().map_or(StreamId::MIN, |pending| pending.id);
        group.acknowledge(&deleted.iter().copied().collect());
        require_room(&group)?;
        reply.array(3);
        reply.bulk(next.text().as_ref());
        write_claimed(&claimed, options.ids_only, reply);
        reply.array(deleted.len());
        deleted.iter().for_each(|id| reply.bulk(id.text().as_ref()));
        Ok(stream.set_group(name, group)?)
    })
}
