//! `XREAD` and `XREADGROUP`: new entries of several streams.

use super::blocking::{LONGEST, check_millis, open, wait};
use super::command::flag::{ALONE, BLOCKING, READONLY, WRITE};
use super::command::{Family, Keys, command};
use super::stream_groups::{ReceivedEntry, no_group_in_read, write_received};
use super::streams::write_entries;
use super::{Call, Done, NotExecuted, Refusal};
use crate::core::data::{Key, TableKey};
use crate::core::streams::{GROUP_TOO_LARGE, OpenedStreams, StreamAccess, StreamStop};
use crate::operators::blocked::AwaitedElements;
use planted::Bug;
use resp::{Protocol, ReplyWriter};
use std::time::Duration;
use values::{
    ConsumerGroup, PagedStream, PendingEntry, ReadOptions, StreamEntry, StreamId, StreamRange,
};

pub(super) static FAMILY: Family = Family {
    group: "stream",
    category: Some("@stream"),
    commands: &[
        command("xread", -4, READONLY | BLOCKING | ALONE, Keys::Streams, xread),
        command("xreadgroup", -7, WRITE | BLOCKING | ALONE, Keys::Streams, xreadgroup),
    ],
};

/// Begins the reply of several streams.
fn begin_reply(streams: usize, reply: &mut ReplyWriter<'_>) {
    match reply.protocol() {
        Protocol::Resp2 => reply.array(streams),
        Protocol::Resp3 => reply.map(streams),
    }
}

/// Begins the reply of one stream.
fn begin_stream(key: &[u8], reply: &mut ReplyWriter<'_>) {
    if reply.protocol() == Protocol::Resp2 {
        reply.array(2);
    }
    reply.bulk(key);
}

/// The keys of a request, and the arguments beside them.
struct ReadRequest<'a> {
    options: ReadOptions<'a>,
    keys: Vec<Key<'a>>,
    /// The keys whose new entries the request may take.
    open: Vec<bool>,
    ids: &'a [&'a [u8]],
}

impl<'a> ReadRequest<'a> {
    fn parse(call: &Call<'a>, of_group: bool) -> Result<ReadRequest<'a>, NotExecuted> {
        let options = ReadOptions::parse(&call.args[1..], of_group)?;
        options.block.map_or(Ok(()), |millis| check_millis(call, millis))?;
        let first = 1 + options.first_key;
        let keys = call.keys(first..first + options.keys);
        let open = vec![true; options.keys];
        Ok(ReadRequest { ids: &call.args[first + options.keys..], options, keys, open })
    }

    /// Makes the request wait for entries if it may; else replies that there are none.
    fn wait(&self, call: &mut Call<'_>, elements: AwaitedElements) -> Done {
        let Some(millis) = self.options.block else {
            call.reply.null_array();
            return Ok(());
        };
        let timeout = (millis > 0).then(|| Duration::from_millis(millis).min(LONGEST));
        let first = 1 + self.options.first_key;
        let keys = first..first + self.keys.len();
        wait(call, keys, elements, timeout, |reply| reply.null_array())
    }

    /// Most entries of each stream.
    fn count(&self) -> u64 {
        if self.options.count == 0 { u64::MAX } else { self.options.count }
    }
}

/// `XREAD [COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]`.
fn xread(call: &mut Call<'_>) -> Done {
    let request = ReadRequest::parse(call, false)?;
    let (table, reply) = (call.session.status.table, &mut call.reply);
    // A request that waits reads behind the ids at which it began to wait.
    let known: &[StreamId] = call.stream_ids;
    let mut after = Vec::new();
    let is_read = call.backend.streams().read(table, &request.keys, |streams| {
        after.clear();
        for (at, id) in request.ids.iter().enumerate() {
            let stream = streams.get(at)?;
            after.push(match known.get(at) {
                Some(known) => *known,
                None => position(id, stream)?,
            });
        }
        let mut found: Vec<(usize, Vec<StreamEntry<'_>>)> = Vec::new();
        for (at, after) in after.iter().enumerate() {
            let Some(start) = after.next() else { continue };
            let range =
                StreamRange { start, end: StreamId::MAX, count: request.count(), hint: None };
            let entries = streams.get(at)?.range(range);
            let (entries, _) = entries.map_err(|gap| StreamStop::Gap(at, gap))?;
            if !entries.is_empty() {
                found.push((at, entries));
            }
        }
        if found.is_empty() {
            return Ok(false);
        }
        begin_reply(found.len(), reply);
        for (at, entries) in found {
            begin_stream(request.keys[at].bytes, reply);
            write_entries(&entries, reply);
        }
        Ok(true)
    })?;
    if is_read {
        return Ok(());
    }
    *call.stream_ids = after;
    request.wait(call, AwaitedElements::Entries)
}

/// Returns the id behind which `XREAD` reads a stream.
fn position(id: &[u8], stream: &PagedStream<'_>) -> Result<StreamId, Refusal> {
    const NEW_ONLY: Refusal = Refusal::because(
        "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
    );
    match id {
        b"$" => Ok(stream.root().last_id),
        b"+" => Ok(stream.root().last_id.previous().unwrap_or(StreamId::MIN)),
        b">" => Err(NEW_ONLY),
        id => Ok(StreamId::parse_argument(id)?),
    }
}

/// The entries that a consumer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupPosition {
    /// Those that no consumer has received.
    New,
    /// Its own pending ones behind this id.
    PendingBehind(StreamId),
}

impl GroupPosition {
    fn parse(id: &[u8]) -> Result<GroupPosition, Refusal> {
        const NO_LAST: Refusal = Refusal::because(
            "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.",
        );
        const NO_NEWEST: Refusal = Refusal::because(
            "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The + ID would just return an empty result set.",
        );
        match id {
            b"$" => Err(NO_LAST),
            b"+" => Err(NO_NEWEST),
            b">" => Ok(GroupPosition::New),
            id => match StreamId::parse_argument(id)? {
                // As in Redis, the highest id stands for new entries.
                StreamId::MAX => Ok(GroupPosition::New),
                id => Ok(GroupPosition::PendingBehind(id)),
            },
        }
    }
}

/// Time after which an attempt to read without entries is recorded again, in milliseconds.
const SEEN_MILLIS: u64 = 1_000;

/// A consumer that reads.
struct Reader<'q> {
    group: &'q [u8],
    name: &'q [u8],
    now: u64,
    count: u64,
    without_pending: bool,
}

/// A group that is read.
#[derive(Clone)]
struct GroupInUse<'x> {
    group: ConsumerGroup<'x>,
    /// Set if the group must be written.
    is_changed: bool,
}

/// The pending entries of a consumer.
struct OwnPending {
    consumer: usize,
    /// Those with higher ids.
    behind: StreamId,
}

impl Reader<'_> {
    /// Reads entries for the consumer. `None`: the stream is not in the reply.
    fn read<'x, 's>(
        &self,
        stream: &'s PagedStream<'x>,
        in_use: &mut GroupInUse<'x>,
        position: GroupPosition,
    ) -> Result<Option<Vec<ReceivedEntry<'s>>>, StreamStop> {
        let GroupInUse { group, is_changed } = in_use;
        let (consumer, is_new) = group.consumer(self.name, self.now);
        let is_old = group.consumers()[consumer].seen.abs_diff(self.now) >= SEEN_MILLIS;
        group.see(consumer, self.now);
        *is_changed |= is_new || is_old;
        let received = match position {
            GroupPosition::New => self.read_new(stream, group, consumer)?,
            GroupPosition::PendingBehind(behind) => {
                Some(self.read_pending(stream, group, OwnPending { consumer, behind })?)
            }
        };
        *is_changed |= received.as_ref().is_some_and(|received| !received.is_empty());
        Ok(received)
    }

    /// Reads entries that no consumer has received.
    fn read_new<'s>(
        &self,
        stream: &'s PagedStream<'_>,
        group: &mut ConsumerGroup<'_>,
        consumer: usize,
    ) -> Result<Option<Vec<ReceivedEntry<'s>>>, StreamStop> {
        let Some(start) = group.last_id.next() else { return Ok(None) };
        let (end, count, hint) = (StreamId::MAX, self.count, Some(group.hint));
        let (entries, page) = stream.range(StreamRange { start, end, count, hint })?;
        if entries.is_empty() {
            return Ok(None);
        }
        group.hint = page.unwrap_or(stream.root().interval.end());
        for entry in &entries {
            if !planted::is(Bug::DeliveredAgain) {
                group.advance(entry.id, stream.root());
            }
            if !self.without_pending {
                let (id, delivered, deliveries) = (entry.id, self.now, 1);
                group.set_pending(PendingEntry { id, consumer, delivered, deliveries });
                group.activate(consumer, self.now);
            }
        }
        Ok(Some(entries.into_iter().map(ReceivedEntry::Entry).collect()))
    }

    /// Reads entries that the consumer has received before.
    fn read_pending<'s>(
        &self,
        stream: &'s PagedStream<'_>,
        group: &mut ConsumerGroup<'_>,
        own: OwnPending,
    ) -> Result<Vec<ReceivedEntry<'s>>, StreamStop> {
        let OwnPending { consumer, behind } = own;
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let later = group.pending_from(behind.next().unwrap_or(StreamId::MAX));
        let own = later.iter().filter(|entry| entry.consumer == consumer).take(count);
        let own: Vec<PendingEntry> = own.copied().collect();
        stream.require_entries(own.iter().map(|pending| pending.id))?;
        let mut received = Vec::with_capacity(own.len());
        for pending in own {
            received.push(match stream.entry(pending.id)? {
                Some(entry) => {
                    let deliveries = pending.deliveries.saturating_add(1);
                    group.set_pending(PendingEntry { delivered: self.now, deliveries, ..pending });
                    ReceivedEntry::Entry(entry)
                }
                None => ReceivedEntry::Deleted(pending.id),
            });
        }
        Ok(received)
    }
}

/// The streams of a request of `XREADGROUP`. A key that is named twice is one stream, which is read
/// twice.
struct GroupStreams<'a> {
    streams: Vec<StreamAccess<'a>>,
    /// For each key, the position of its stream.
    of_keys: Vec<usize>,
}

impl<'a> GroupStreams<'a> {
    fn new(call: &Call<'a>, keys: &[Key<'a>]) -> GroupStreams<'a> {
        let table = call.session.status.table;
        let mut all = GroupStreams { streams: Vec::new(), of_keys: Vec::with_capacity(keys.len()) };
        for &key in keys {
            let mut known = all.streams.iter();
            let known = known.position(|stream| stream.key.key.bytes == key.bytes);
            all.of_keys.push(known.unwrap_or(all.streams.len()));
            if known.is_none() {
                all.streams.push(StreamAccess::of(TableKey { table, key }));
            }
        }
        all
    }

    /// Reads entries of all streams, and replies if there are any. Returns whether it did.
    fn read(
        &self,
        streams: &mut OpenedStreams<'_>,
        request: &ReadRequest<'_>,
        reader: &Reader<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<bool, StreamStop> {
        let mut positions = Vec::with_capacity(self.of_keys.len());
        let mut groups = vec![None; self.streams.len()];
        for ((id, key), &at) in request.ids.iter().zip(&request.keys).zip(&self.of_keys) {
            let found = streams.get(at)?.group(reader.group);
            let found = found.map_err(|gap| StreamStop::Gap(at, gap))?;
            let found = found.ok_or_else(|| no_group_in_read(key.bytes, reader.group))?;
            positions.push(GroupPosition::parse(id)?);
            groups[at] = Some(GroupInUse { group: found.clone(), is_changed: false });
        }
        let mut replies = Vec::with_capacity(positions.len());
        for ((position, &at), open) in positions.into_iter().zip(&self.of_keys).zip(&request.open) {
            if position == GroupPosition::New && !open {
                replies.push(None);
                continue;
            }
            let Some(group) = &mut groups[at] else { unreachable!("each stream has a group") };
            let read = reader.read(streams.get(at)?, group, position);
            replies.push(read.map_err(|stop| at_position(stop, at))?);
        }
        if !groups.iter().flatten().all(|in_use| in_use.group.fits()) {
            return Err(GROUP_TOO_LARGE.into());
        }
        let served = replies.iter().flatten().count();
        if served > 0 {
            begin_reply(served, reply);
        }
        for (received, key) in replies.iter().zip(&request.keys) {
            if let Some(received) = received {
                begin_stream(key.bytes, reply);
                write_received(received, reply);
            }
        }
        drop(replies);
        for (at, in_use) in groups.into_iter().enumerate() {
            if let Some(GroupInUse { group, is_changed: true }) = in_use {
                let set = streams.get_mut(at)?.set_group(reader.group, group);
                set.map_err(|gap| StreamStop::Gap(at, gap))?;
            }
        }
        Ok(served > 0)
    }
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key ... id ...`.
fn xreadgroup(call: &mut Call<'_>) -> Done {
    let mut request = ReadRequest::parse(call, true)?;
    let Some([group, name]) = request.options.group else { return Err(Refusal::Syntax.into()) };
    let without_pending = request.options.without_pending;
    let (now, count) = (call.wall.0, request.count());
    let reader = Reader { group, name, now, count, without_pending };
    let all = GroupStreams::new(call, &request.keys);
    let elements = AwaitedElements::GroupEntries(call.backend.key(group).hash.0);
    if request.options.block.is_some() {
        request.open = open(call, &request.keys, elements);
    }
    let is_read = call.update_streams(&all.streams, |streams, reply| {
        all.read(streams, &request, &reader, reply)
    })?;
    match is_read {
        true => Ok(()),
        false => request.wait(call, elements),
    }
}

/// Returns the reason why a command ends, for the stream at this position.
fn at_position(stop: StreamStop, at: usize) -> StreamStop {
    match stop {
        StreamStop::Gap(_, gap) => StreamStop::Gap(at, gap),
        refused @ StreamStop::Refused(_) => refused,
    }
}
