//! Streams: their operations, requests and replies, and the stored entries.
//!
//! The value of an entry shows how the client has named its id, so that no entry can take the place of
//! another one.

use super::requests::{Words, words};
use super::{GrowthRoom, RegisterShape};
use crate::commands::ReplyMeaning;
use crate::history::{
    AdditionLimit, EntryId, EntryIds, LIMITED_ENTRIES, NewEntry, OperationOutcome, PartAction,
    PendingSummary, RegisterAction, StreamAction,
};
use crate::settings::RunSettings;
use crate::workload::{Register, decode};
use fastrand::Rng;
use resp::Reply;
use values::{Damaged, StreamEntry};

/// One run with values that have parts in this many has streams.
const ONE_IN: u32 = 2;

/// Mixed into the seed for the separate random numbers of streams.
const STREAMS: u64 = 0x7374_7265_616d_735f;

/// One stream in this many gets ids from the clocks of servers.
const CLOCKS_ONE_IN: usize = 3;

/// Name of the field of an entry, of the group, and of its consumer.
const FIELD: &[u8] = b"entry";
const GROUP: &[u8] = b"group";
const CONSUMER: &[u8] = b"consumer";

/// Value of an entry whose id is from a clock.
const CLOCK_VALUE: u64 = 7;

/// Most entries that one delivery returns. The checker follows a bounded number of pending ones.
const DELIVERED_MAX: u8 = 2;

/// Draws of the operations on the streams of a run.
pub(super) struct StreamDraws {
    rng: Rng,
    /// Both parts of the newest id that was drawn for each register.
    newest: Vec<[u16; 2]>,
}

impl StreamDraws {
    /// Draws from a separate generator, so that runs without streams stay the same.
    pub(super) fn draw(settings: &RunSettings) -> Option<StreamDraws> {
        let mut rng = Rng::with_seed(settings.seed ^ STREAMS);
        (rng.u32(..ONE_IN) == 0).then_some(StreamDraws { rng, newest: Vec::new() })
    }

    pub(super) fn make(&mut self, registers: usize) {
        self.newest = vec![[0; 2]; registers];
    }

    pub(super) fn draw_read(&mut self, number: usize) -> RegisterAction {
        let most = self.rng.u8(1..4);
        let has_clock = has_clock(number);
        RegisterAction::Part(PartAction::Stream(match self.rng.u32(..20) {
            0 => return RegisterAction::Probe,
            1..4 => StreamAction::Count,
            4..7 => StreamAction::Oldest(most),
            7..10 => StreamAction::Newest(most),
            10..13 => StreamAction::Pending,
            13..16 if !has_clock => StreamAction::Redeliver,
            _ => return RegisterAction::Read,
        }))
    }

    pub(super) fn draw_change(&mut self, number: usize, room: GrowthRoom) -> RegisterAction {
        let has_clock = has_clock(number);
        RegisterAction::Part(PartAction::Stream(match self.rng.u32(..40) {
            0..16 => self.draw_addition(number, room),
            16..18 => StreamAction::Trim(self.rng.u8(..=LIMITED_ENTRIES as u8)),
            18 => return RegisterAction::Delete,
            19..21 if !has_clock => StreamAction::Replace(self.draw_id(number)),
            21..24 => StreamAction::CreateGroup { at_end: self.rng.u8(..4) == 0 },
            24 => StreamAction::ResetGroup,
            25..29 if room.pending => StreamAction::Deliver(self.rng.u8(1..=DELIVERED_MAX)),
            25..29 => StreamAction::ResetGroup,
            29..34 if !has_clock => StreamAction::Acknowledge(self.draw_known(number)),
            34..38 if !has_clock => StreamAction::Remove(self.draw_known(number)),
            _ => StreamAction::Rename,
        }))
    }

    fn draw_addition(&mut self, number: usize, room: GrowthRoom) -> StreamAction {
        let new = match self.rng.u32(..3) {
            _ if has_clock(number) => NewEntry::Now,
            0 => NewEntry::Of(self.draw_id(number)),
            _ => {
                let [first, second] = &mut self.newest[number];
                if self.rng.u32(..8) == 0 {
                    (*first, *second) = (*first + 1, 0);
                } else {
                    *second += 1;
                }
                NewEntry::At(*first)
            }
        };
        let limit = match self.rng.u32(..3) {
            0 if room.entries => AdditionLimit::None,
            0 | 1 => AdditionLimit::Within,
            _ => AdditionLimit::Behind,
        };
        StreamAction::Add(new, limit)
    }

    /// Draws an id that is higher than most before, but seldom than all that are drawn beside it.
    fn draw_id(&mut self, number: usize) -> EntryId {
        let is_next = self.rng.u32(..8) > 0;
        let [first, second] = &mut self.newest[number];
        (*first, *second) = if is_next { (*first, *second + 1) } else { (*first + 1, 0) };
        id_of(self.newest[number])
    }

    /// Draws an id that has probably been used.
    fn draw_known(&mut self, number: usize) -> EntryId {
        let [first, second] = self.newest[number];
        id_of([first, second.saturating_sub(self.rng.u16(..6))])
    }
}

/// Returns the id of these parts, or the lowest one.
fn id_of(parts: [u16; 2]) -> EntryId {
    let [first, second] = parts.map(u64::from);
    let id = EntryId::new(first, second).or(EntryId::new(0, 1));
    id.expect("clients draw few ids")
}

/// Returns whether a stream gets its ids from the clocks of servers.
fn has_clock(number: usize) -> bool {
    number.is_multiple_of(CLOCKS_ONE_IN)
}

/// Returns whether an operation on a stream needs several commands.
pub(super) fn is_transaction(action: RegisterAction) -> bool {
    match action {
        RegisterAction::Read => true,
        RegisterAction::Part(PartAction::Stream(action)) => matches!(
            action,
            StreamAction::Add(_, AdditionLimit::Behind)
                | StreamAction::Replace(_)
                | StreamAction::ResetGroup
                | StreamAction::Rename
        ),
        _ => false,
    }
}

/// Returns whether an operation is a command that may wait in other cases.
pub(super) fn may_wait(action: RegisterAction) -> bool {
    matches!(action, RegisterAction::Part(PartAction::Stream(StreamAction::Deliver(_))))
}

/// Returns the commands of the operations on a whole stream.
pub(super) fn read_commands(key: &[u8]) -> Vec<Words> {
    vec![words(&[b"EXISTS", key]), words(&[b"XRANGE", key, b"-", b"+"])]
}

/// Returns the commands of an operation on a stream.
pub(super) fn commands(register: &Register, action: StreamAction) -> Vec<Words> {
    let key = &register.keys[0].1[..];
    let read = |count: &[u8], from: &[u8]| {
        let group = [b"XREADGROUP", &b"GROUP"[..], GROUP, CONSUMER, b"COUNT", count];
        words(&[&group[..], &[b"STREAMS", key, from]].concat())
    };
    vec![match action {
        StreamAction::Add(new, limit) => return additions(register, new, limit),
        StreamAction::Remove(id) => words(&[b"XDEL", key, &text(id)]),
        StreamAction::Trim(left) => words(&[b"XTRIM", key, b"MAXLEN", &decimal(left.into())]),
        StreamAction::Count => words(&[b"XLEN", key]),
        StreamAction::Oldest(most) => {
            words(&[b"XRANGE", key, b"-", b"+", b"COUNT", &decimal(most.into())])
        }
        StreamAction::Newest(most) => {
            words(&[b"XREVRANGE", key, b"+", b"-", b"COUNT", &decimal(most.into())])
        }
        StreamAction::Replace(first) => {
            let add = |id| addition(register, NewEntry::Of(id), AdditionLimit::None);
            return vec![words(&[b"DEL", key]), add(first), add(first.next())];
        }
        StreamAction::CreateGroup { at_end } => {
            let position: &[u8] = if at_end { b"$" } else { b"0" };
            words(&[b"XGROUP", b"CREATE", key, GROUP, position, b"MKSTREAM"])
        }
        StreamAction::ResetGroup => {
            let create = words(&[b"XGROUP", b"CREATE", key, GROUP, b"$", b"MKSTREAM"]);
            return vec![words(&[b"XGROUP", b"DESTROY", key, GROUP]), create];
        }
        StreamAction::Deliver(most) => read(&decimal(most.into()), b">"),
        StreamAction::Redeliver => read(b"100", b"0"),
        StreamAction::Acknowledge(id) => words(&[b"XACK", key, GROUP, &text(id)]),
        StreamAction::Pending => words(&[b"XPENDING", key, GROUP]),
        StreamAction::Rename => {
            let other = [key, b":new"].concat();
            return vec![words(&[b"RENAME", key, &other]), words(&[b"RENAME", &other, key])];
        }
    }]
}

fn additions(register: &Register, new: NewEntry, limit: AdditionLimit) -> Vec<Words> {
    let add = addition(register, new, limit);
    let key = &register.keys[0].1[..];
    let trim = words(&[b"XTRIM", key, b"MAXLEN", &decimal(LIMITED_ENTRIES as u64)]);
    [add].into_iter().chain((limit == AdditionLimit::Behind).then_some(trim)).collect()
}

fn addition(register: &Register, new: NewEntry, limit: AdditionLimit) -> Words {
    let mut request = words(&[b"XADD", &register.keys[0].1]);
    if limit == AdditionLimit::Within {
        request.extend(words(&[b"MAXLEN", &decimal(LIMITED_ENTRIES as u64)]));
    }
    let (id, value) = match new {
        NewEntry::Of(id) => (text(id), id.number()),
        NewEntry::At(first) => (format!("{first}-*").into_bytes(), value_at(u64::from(first))),
        NewEntry::Now => (b"*".to_vec(), CLOCK_VALUE),
    };
    request.extend([id, FIELD.to_vec(), register.encode_part(value)]);
    request
}

/// Returns the value of an entry of which only the first part of the id was named.
fn value_at(first: u64) -> u64 {
    EntryId::new(first, 1).expect("clients name short ids").number() - 1
}

fn decimal(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn text(id: EntryId) -> Vec<u8> {
    let (first, second) = id.parts();
    format!("{first}-{second}").into_bytes()
}

/// Returns whether an error says that the state of a stream refuses an operation.
pub(crate) fn is_rejection(shape: RegisterShape, error: &[u8]) -> bool {
    const HIGHER: &[u8] = b"ERR The ID specified in XADD is equal or smaller";
    let rejections = [HIGHER, b"NOGROUP ", b"BUSYGROUP "];
    shape == RegisterShape::Stream && rejections.iter().any(|text| error.starts_with(text))
}

/// Interprets the replies to `EXISTS` and `XRANGE` in one transaction.
pub(super) fn read_whole(exists: &Reply<'_>, entries: &Reply<'_>) -> ReplyMeaning {
    match (exists, read_entries(entries)) {
        (Reply::Integer(1), Some(ids)) => {
            ReplyMeaning::Outcome(OperationOutcome::Stream(Some(ids)))
        }
        (Reply::Integer(0), Some(ids)) if ids == EntryIds::default() => {
            ReplyMeaning::Outcome(OperationOutcome::Stream(None))
        }
        (Reply::Integer(0), Some(_)) => ReplyMeaning::Torn,
        _ => ReplyMeaning::Nonsense,
    }
}

/// Interprets the replies to an operation on a stream.
pub(super) fn read(action: StreamAction, replies: &[Reply<'_>]) -> Option<OperationOutcome> {
    let rejected = |reply: &Reply<'_>| match reply {
        Reply::Error(text) => is_rejection(RegisterShape::Stream, text),
        _ => false,
    };
    match (action, replies) {
        (StreamAction::Add(_, limit), [added, rest @ ..]) => {
            let is_whole = match rest {
                [] => limit != AdditionLimit::Behind,
                [Reply::Integer(_)] => limit == AdditionLimit::Behind,
                _ => false,
            };
            let id = match added {
                added if rejected(added) => Some(OperationOutcome::Rejected),
                added => read_id(added).map(OperationOutcome::Id),
            };
            id.filter(|_| is_whole)
        }
        (
            StreamAction::Remove(_)
            | StreamAction::Trim(_)
            | StreamAction::Count
            | StreamAction::Acknowledge(_),
            [Reply::Integer(count)],
        ) => u64::try_from(*count).ok().map(OperationOutcome::Number),
        (StreamAction::Oldest(_) | StreamAction::Newest(_), [entries]) => {
            read_entries(entries).map(OperationOutcome::Entries)
        }
        (StreamAction::Replace(first), [Reply::Integer(0 | 1), one, other]) => {
            let are_right = [one, other].map(read_id) == [Some(first), Some(first.next())];
            are_right.then_some(OperationOutcome::Done)
        }
        (StreamAction::CreateGroup { .. }, [Reply::Simple(b"OK")])
        | (
            StreamAction::ResetGroup,
            [Reply::Integer(0 | 1) | Reply::Error(_), Reply::Simple(b"OK")],
        ) => Some(OperationOutcome::Done),
        (StreamAction::Deliver(_), [Reply::Null]) => {
            Some(OperationOutcome::Entries(EntryIds::default()))
        }
        (StreamAction::Deliver(_) | StreamAction::Redeliver, [Reply::Array(streams)]) => {
            let mut streams = *streams;
            let (Some(Reply::Array(mut stream)), None) = (streams.next(), streams.next()) else {
                return None;
            };
            let (_, entries) = (stream.next()?, stream.next()?);
            read_entries(&entries).map(OperationOutcome::Entries)
        }
        (StreamAction::Pending, [Reply::Array(items)]) => {
            read_pending(*items).map(OperationOutcome::Pending)
        }
        (StreamAction::Rename, [Reply::Simple(b"OK"), Reply::Simple(b"OK")]) => {
            Some(OperationOutcome::Applied(true))
        }
        (StreamAction::Rename, [Reply::Error(one), Reply::Error(other)])
            if [one, other].iter().all(|text| text.starts_with(b"ERR no such key")) =>
        {
            Some(OperationOutcome::Applied(false))
        }
        _ => None,
    }
}

fn read_id(reply: &Reply<'_>) -> Option<EntryId> {
    let Reply::Bulk(text) = reply else { return None };
    let (first, second) = std::str::from_utf8(text).ok()?.split_once('-')?;
    EntryId::new(first.parse().ok()?, second.parse().ok()?)
}

/// Returns the ids of entries. Those that were deleted from the stream are left out.
fn read_entries(reply: &Reply<'_>) -> Option<EntryIds> {
    let Reply::Array(entries) = *reply else { return None };
    let mut ids = Vec::new();
    for entry in entries {
        let Reply::Array(mut entry) = entry else { return None };
        let (id, fields) = (read_id(&entry.next()?)?, entry.next()?);
        match fields {
            Reply::Null => continue,
            Reply::Array(mut fields) => {
                let (name, value) = (fields.next()?, fields.next()?);
                let (Reply::Bulk(name), Reply::Bulk(value)) = (name, value) else { return None };
                let is_right = fields.next().is_none() && is_value_of(id, name, value);
                ids.push(is_right.then_some(id)?);
            }
            _ => return None,
        }
    }
    EntryIds::of(ids)
}

/// Returns whether a client may have added an entry of this id with this field.
fn is_value_of(id: EntryId, name: &[u8], value: &[u8]) -> bool {
    let is_named = |number: u64| {
        let (first, _) = id.parts();
        !id.is_of_clock() && (number == id.number() || number == value_at(first))
    };
    let is_right = |number| is_named(number) || id.is_of_clock() && number == CLOCK_VALUE;
    name == FIELD && decode(value).is_some_and(is_right)
}

/// Interprets the summary of pending entries.
fn read_pending(mut items: resp::Items<'_>) -> Option<PendingSummary> {
    let (count, first) = (items.next()?, items.next()?);
    let (last, consumers) = (items.next()?, items.next()?);
    let Reply::Integer(count) = count else { return None };
    let count = u64::try_from(count).ok()?;
    let ends = match (first, last, consumers) {
        (Reply::Null, Reply::Null, Reply::Null) if count == 0 => None,
        (first, last, Reply::Array(mut consumers)) => {
            let Reply::Array(mut consumer) = consumers.next()? else { return None };
            let (name, pending) = (consumer.next()?, consumer.next()?);
            let text = decimal(count);
            let is_right = name == Reply::Bulk(CONSUMER) && pending == Reply::Bulk(&text);
            let is_only_one = is_right && consumers.next().is_none();
            Some([read_id(&first)?, read_id(&last)?]).filter(|_| is_only_one)
        }
        _ => return None,
    };
    (ends.is_some() == (count > 0)).then_some(PendingSummary { count, ends })
}

/// Returns the id of a stored entry, or `None` if no client added it.
pub(crate) fn stored_id(entry: Result<StreamEntry<'_>, Damaged>) -> Option<EntryId> {
    let entry = entry.ok()?;
    let id = EntryId::new(entry.id.ms, entry.id.seq)?;
    let mut fields = entry.fields();
    let (name, value) = fields.next()?;
    (fields.next().is_none() && is_value_of(id, name, value)).then_some(id)
}
