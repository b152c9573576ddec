//! Registers that are hashes: the same operations as commands on fields.
//!
//! The value of a plain register is in two fields that are always written together, and that expire
//! together. If they ever differ, a client has seen a half executed command. A counter has one field.

use crate::collections;
use crate::commands::{ReplyMeaning, expiry_option, remaining, value};
use crate::history::{EntryId, EntryIds, OperationOutcome, RegisterAction};
use crate::native;
use crate::settings::{Knob, RunSettings};
use crate::workload::{Register, RegisterKind, decode};
use resp::{Items, Reply, RequestWriter};
use std::collections::BTreeMap;
use types::{TableId, TypedValue, UnixMillis, ValueType, Version};
use values::{
    Damaged, EntryBlock, Form, ListForm, ListPart, ListRoot, Packed, PackedList, PageInterval,
    Root, StreamEntry, StreamId, StreamRoot, earliest_field_expiry, encode_list,
};

/// One seed in this many has typed registers.
const SEEDS_PER_RUN: u64 = 4;

/// One register in this many is a hash, if it can be one.
const REGISTERS_PER_HASH: usize = 3;

const FIELDS: [&[u8]; 2] = [b"value", b"copy"];

/// Returns whether a run has registers that are hashes. Native clients use commands with versions,
/// which are for strings.
pub(crate) fn are_used(settings: &RunSettings) -> bool {
    let is_drawn = settings.seed % SEEDS_PER_RUN == 1;
    settings.has(Knob::Types) && is_drawn && !native::are_used(settings)
}

/// Longest packed value of half of the runs with hashes, and of most of those with single fields, in
/// bytes: two fields do not fit.
const PACKED_BYTES: usize = 16;

/// Returns the longest packed value of the servers of a run, in bytes. If the run has single fields,
/// it is decided if they are divided.
pub(crate) fn packed_bytes(settings: &RunSettings, are_fields_divided: Option<bool>) -> usize {
    let is_drawn = are_used(settings) && (settings.seed / SEEDS_PER_RUN).is_multiple_of(2);
    if are_fields_divided.unwrap_or(is_drawn) { PACKED_BYTES } else { 4096 }
}

/// Returns whether registers whose values may expire can be hashes in a run: in half of those with
/// hashes.
pub(crate) fn do_fields_expire(settings: &RunSettings) -> bool {
    !(settings.seed / (2 * SEEDS_PER_RUN)).is_multiple_of(2)
}

/// Returns whether the register of this number is a hash, if it can be one.
pub(crate) fn is_hash(number: usize, register: &Register) -> bool {
    number.is_multiple_of(REGISTERS_PER_HASH) && register.keys.len() == 1
}

fn fields(register: &Register) -> &'static [&'static [u8]] {
    match register.kind {
        RegisterKind::Counter => &FIELDS[..1],
        RegisterKind::Plain
        | RegisterKind::Permanent
        | RegisterKind::Pair
        | RegisterKind::Flushed => &FIELDS,
    }
}

/// Returns the operation that a hash has instead of this one.
pub(crate) fn possible(register: &Register, action: RegisterAction) -> RegisterAction {
    match action {
        RegisterAction::Swap(_, new) | RegisterAction::Exchange(new) => RegisterAction::Write(new),
        RegisterAction::WriteIfAbsent(new) if fields(register).len() > 1 => {
            RegisterAction::Write(new)
        }
        other => other,
    }
}

/// Appends the request of an operation on a hash.
pub(crate) fn write(register: &Register, action: RegisterAction, out: &mut Vec<u8>) {
    let key = &register.keys[0].1[..];
    let fields = fields(register);
    let on_fields = |words: &[&[u8]], out: &mut Vec<u8>| {
        RequestWriter::write(&[words, fields].concat(), out);
    };
    match action {
        RegisterAction::Read => on_fields(&[b"HMGET", key], out),
        // The key may outlive its fields.
        RegisterAction::Probe => RequestWriter::write(&[b"HEXISTS", key, fields[0]], out),
        RegisterAction::Delete => on_fields(&[b"HDEL", key], out),
        RegisterAction::Take => write_counted(&[b"HGETDEL", key], register, None, out),
        RegisterAction::WriteExpiring(..)
        | RegisterAction::WriteKeeping(_)
        | RegisterAction::Expire(_)
        | RegisterAction::Persist
        | RegisterAction::ReadExpiring(_)
        | RegisterAction::ReadPersisting
        | RegisterAction::ReadRemaining => write_on_lifetime(register, action, out),
        RegisterAction::Increment => {
            RequestWriter::write(&[b"HINCRBY", key, fields[0], b"1"], out);
        }
        RegisterAction::WriteIfAbsent(new) => {
            RequestWriter::write(&[b"HSETNX", key, fields[0], &register.encode(new)], out);
        }
        RegisterAction::Write(new) => {
            let value = register.encode(new);
            let mut words = vec![b"HSET", key];
            words.extend(fields.iter().flat_map(|field| [*field, &value[..]]));
            RequestWriter::write(&words, out);
        }
        other => unreachable!("a hash has no operation {other:?}"),
    }
}

/// Appends a request that names the fields of a hash behind their number, each with this value, if
/// there is one.
fn write_counted(words: &[&[u8]], register: &Register, value: Option<&[u8]>, out: &mut Vec<u8>) {
    let fields = fields(register);
    let count = fields.len().to_string();
    let mut all = words.to_vec();
    all.extend([b"FIELDS", count.as_bytes()]);
    for field in fields {
        all.push(field);
        all.extend(value);
    }
    RequestWriter::write(&all, out);
}

/// Appends the request of an operation on the time to live of the fields of a hash.
fn write_on_lifetime(register: &Register, action: RegisterAction, out: &mut Vec<u8>) {
    let key = &register.keys[0].1[..];
    let with = |lifetime| {
        let (option, number) = expiry_option(register, lifetime);
        (option, number.to_string().into_bytes())
    };
    match action {
        RegisterAction::WriteExpiring(new, lifetime) => {
            let (option, number) = with(lifetime);
            let value = register.encode(new);
            write_counted(&[b"HSETEX", key, option, &number], register, Some(&value), out);
        }
        RegisterAction::WriteKeeping(new) => {
            let value = register.encode(new);
            write_counted(&[b"HSETEX", key, b"KEEPTTL"], register, Some(&value), out);
        }
        RegisterAction::Expire(lifetime) => {
            let (option, number) = with(lifetime);
            let name: &[u8] = if option == b"PX" { b"HPEXPIRE" } else { b"HPEXPIREAT" };
            write_counted(&[name, key, &number], register, None, out);
        }
        RegisterAction::Persist => write_counted(&[b"HPERSIST", key], register, None, out),
        RegisterAction::ReadExpiring(lifetime) => {
            let (option, number) = with(lifetime);
            write_counted(&[b"HGETEX", key, option, &number], register, None, out);
        }
        RegisterAction::ReadPersisting => {
            write_counted(&[b"HGETEX", key, b"PERSIST"], register, None, out);
        }
        RegisterAction::ReadRemaining => write_counted(&[b"HPTTL", key], register, None, out),
        other => unreachable!("{other:?} is not on a time to live"),
    }
}

/// Interprets the reply to an operation on a hash, other than an error.
pub(crate) fn read(register: &Register, action: RegisterAction, reply: &Reply<'_>) -> ReplyMeaning {
    let all = fields(register).len() as i64;
    let outcome = match (action, reply) {
        (
            RegisterAction::Read
            | RegisterAction::Take
            | RegisterAction::ReadExpiring(_)
            | RegisterAction::ReadPersisting,
            Reply::Array(items),
        ) => return read_values(*items, all as usize),
        (
            RegisterAction::Expire(_) | RegisterAction::Persist | RegisterAction::ReadRemaining,
            Reply::Array(items),
        ) => return read_codes(action, *items, all as usize),
        (
            RegisterAction::WriteExpiring(..) | RegisterAction::WriteKeeping(_),
            Reply::Integer(1),
        ) => OperationOutcome::Done,
        (RegisterAction::Probe, Reply::Integer(count @ (0 | 1))) => {
            OperationOutcome::Applied(*count == 1)
        }
        (RegisterAction::WriteIfAbsent(_), Reply::Integer(set @ (0 | 1))) => {
            OperationOutcome::Applied(*set == 1)
        }
        (RegisterAction::Increment, Reply::Integer(number)) => match u64::try_from(*number) {
            Ok(number) => OperationOutcome::Number(number),
            Err(_) => return ReplyMeaning::Nonsense,
        },
        (RegisterAction::Delete, Reply::Integer(count)) if [0, all].contains(count) => {
            OperationOutcome::Applied(*count > 0)
        }
        (RegisterAction::Write(_), Reply::Integer(count)) if [0, all].contains(count) => {
            OperationOutcome::Done
        }
        (RegisterAction::Delete | RegisterAction::Write(_), Reply::Integer(1)) => {
            return ReplyMeaning::Torn;
        }
        _ => return ReplyMeaning::Nonsense,
    };
    ReplyMeaning::Outcome(outcome)
}

/// Interprets the replies about `count` fields to an operation on their time to live.
fn read_codes(action: RegisterAction, mut items: Items<'_>, count: usize) -> ReplyMeaning {
    let Some(first) = items.next() else { return ReplyMeaning::Nonsense };
    let rest: Vec<Reply<'_>> = items.collect();
    if rest.len() + 1 != count {
        return ReplyMeaning::Nonsense;
    }
    if rest.iter().any(|other| *other != first) {
        return ReplyMeaning::Torn;
    }
    ReplyMeaning::Outcome(match (action, &first) {
        (RegisterAction::Expire(_), Reply::Integer(1 | 2))
        | (RegisterAction::Persist, Reply::Integer(1)) => OperationOutcome::Applied(true),
        (RegisterAction::Expire(_), Reply::Integer(-2))
        | (RegisterAction::Persist, Reply::Integer(-1 | -2)) => OperationOutcome::Applied(false),
        (RegisterAction::ReadRemaining, reply) => match remaining(reply) {
            Some(left) => OperationOutcome::Remaining(left),
            None => return ReplyMeaning::Nonsense,
        },
        _ => return ReplyMeaning::Nonsense,
    })
}

/// Interprets the values of `count` fields.
fn read_values(items: Items<'_>, count: usize) -> ReplyMeaning {
    let values: Option<Vec<_>> = items.map(|item| value(&item)).collect();
    match values.as_deref() {
        Some([first, rest @ ..]) if rest.len() + 1 == count => {
            match rest.iter().all(|other| other == first) {
                true => ReplyMeaning::Outcome(OperationOutcome::Value(*first)),
                false => ReplyMeaning::Torn,
            }
        }
        Some(_) | None => ReplyMeaning::Nonsense,
    }
}

/// The contents of a stored value.
pub(crate) enum StoredNumber {
    Here(u64),
    /// All fields have expired.
    Expired,
    /// The number is in the pages of this value.
    InPages(SplitValue),
}

/// A stored value that is divided into pages.
pub(crate) enum SplitValue {
    Hash(Root),
    SortedSet(Root),
    List {
        id: Version,
        interval: PageInterval,
        /// Number of items.
        count: u64,
        /// The items at both ends, as packed values.
        ends: [Vec<u8>; 2],
    },
    Stream(StoredStream),
}

/// The root of a stored stream.
pub(crate) struct StoredStream {
    id: Version,
    interval: PageInterval,
    /// Number of entries.
    count: u64,
    /// Id of the first entry: stored ones below it do not count.
    first: StreamId,
    /// The entries in the root.
    tail: Vec<EntryId>,
}

/// The stored pages of a value, by their numbers.
pub(crate) type StoredPages = BTreeMap<u32, Vec<u8>>;

impl SplitValue {
    fn of_list(root: &ListRoot<'_>) -> SplitValue {
        let packed = |list| {
            let mut bytes = Vec::new();
            encode_list([ListPart::Items(list)].into_iter(), &mut bytes);
            bytes
        };
        let ListRoot { id, interval, count, .. } = *root;
        SplitValue::List { id, interval, count, ends: [root.left, root.right].map(packed) }
    }

    pub(crate) fn id(&self) -> Version {
        match self {
            SplitValue::Hash(Root { id, .. })
            | SplitValue::SortedSet(Root { id, .. })
            | SplitValue::List { id, .. }
            | SplitValue::Stream(StoredStream { id, .. }) => *id,
        }
    }

    /// Returns the number in the pages at this time, `None` if pages are missing that may still
    /// arrive, or if all fields have expired.
    pub(crate) fn number(
        &self,
        pages: &StoredPages,
        clock: UnixMillis,
        is_arriving: bool,
    ) -> Option<u64> {
        match self {
            SplitValue::Hash(root) => number_in_fields(*root, pages, clock, is_arriving),
            SplitValue::SortedSet(root) => number_in_scores(*root, pages, is_arriving),
            SplitValue::List { interval, count, ends: [left, right], .. } => {
                let pages = interval.numbers().map(|page| pages.get(&page));
                if pages.clone().any(|page| page.is_none()) {
                    assert!(is_arriving, "a list of {count} items lacks pages of {interval:?}");
                    return None;
                }
                let parts = [left].into_iter().chain(pages.flatten()).chain([right]);
                let parts = parts.map(|bytes| {
                    let value = TypedValue { value_type: ValueType::List, bytes };
                    PackedList::parse(value).expect("a part of a list")
                });
                let items: usize = parts.clone().map(PackedList::count).sum();
                assert!(is_arriving || items as u64 == *count, "{items} items of {count}");
                let number = collections::number_in_items(parts);
                assert!(is_arriving || number.is_some(), "a list that no client wrote");
                number
            }
            SplitValue::Stream(stream) => stream.number(pages, is_arriving),
        }
    }
}

impl StoredStream {
    fn of(root: &StreamRoot<'_>) -> Option<StoredStream> {
        let StreamRoot { id, interval, count, first_id: first, .. } = *root;
        let tail = stored_ids(root.tail.entries(), first)?;
        Some(StoredStream { id, interval, count, first, tail })
    }

    /// Returns the number of the stream, `None` if pages are missing that may still arrive.
    fn number(&self, pages: &StoredPages, is_arriving: bool) -> Option<u64> {
        let mut ids = Vec::new();
        for page in self.interval.numbers() {
            let Some(bytes) = pages.get(&page) else {
                assert!(is_arriving, "a stream lacks page {page} of {:?}", self.interval);
                return None;
            };
            let block = EntryBlock::parse(bytes).expect("a page of a stream");
            ids.extend(stored_ids(block.entries(), self.first).expect("clients added these"));
        }
        ids.extend(&self.tail);
        let found = ids.len() as u64;
        assert!(is_arriving || found == self.count, "{found} entries of {}", self.count);
        let ids = EntryIds::of(ids);
        assert!(is_arriving || ids.is_some(), "a stream that no client wrote");
        ids.map(|ids| ids.number())
    }
}

/// Returns the ids of stored entries from this one on; `None` if no client added them.
fn stored_ids<'e>(
    entries: impl Iterator<Item = Result<StreamEntry<'e>, Damaged>>,
    first: StreamId,
) -> Option<Vec<EntryId>> {
    let living = entries.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.id >= first));
    living.map(collections::stored_id).collect()
}

/// Returns the number in the pages of a hash at this time.
fn number_in_fields(
    root: Root,
    pages: &StoredPages,
    clock: UnixMillis,
    is_arriving: bool,
) -> Option<u64> {
    let contents =
        pages.values().map(|page| page_contents(page, clock).expect("a page has numbers"));
    let contents: Vec<PageContents> = contents.collect();
    let fields: usize = contents.iter().map(|page| page.fields).sum();
    assert!(is_arriving || fields as u64 == root.count, "{fields} fields of {root:?}");
    let is_over = !contents.is_empty() && contents.iter().all(|page| page.is_over);
    let living = contents.iter().filter(|page| !page.is_over);
    let number = living.filter_map(|page| page.number).reduce(|one, other| one | other);
    assert!(is_arriving || is_over || number.is_some(), "a value without its pages");
    number
}

/// Returns the number in the pages of a sorted set.
fn number_in_scores(root: Root, pages: &StoredPages, is_arriving: bool) -> Option<u64> {
    let value_type = ValueType::SortedSet;
    let pages = pages.values().map(|bytes| {
        Packed::parse(TypedValue { value_type, bytes }).expect("a page of a sorted set")
    });
    let pages: Vec<Packed<'_>> = pages.collect();
    let members: usize = pages.iter().map(|page| page.count()).sum();
    assert!(is_arriving || members as u64 == root.count, "{members} members of {root:?}");
    let number = collections::number_in_pages(pages.iter().flat_map(|page| page.elements()));
    assert!(is_arriving || number.is_some(), "a sorted set that no client wrote");
    number
}

/// Returns whether fields in the record of a hash, or in a page, expire.
pub(crate) fn has_expiring_fields(table: TableId, value: TypedValue<'_>) -> bool {
    let is_candidate = value.value_type == ValueType::Hash || table == TableId::PAGES;
    is_candidate && earliest_field_expiry(value.bytes).is_some()
}

/// Returns whether all fields have expired at this time.
fn is_over(packed: Packed<'_>, clock: UnixMillis) -> bool {
    packed.has_expiries() && packed.timed(clock).next().is_none()
}

/// Returns the number in a stored value at this time, or `None` if no client wrote these bytes.
pub(crate) fn number_in(value: TypedValue<'_>, clock: UnixMillis) -> Option<StoredNumber> {
    let number = match value.value_type {
        ValueType::String => decode(value.bytes)?,
        ValueType::Hash => match Form::of(value).ok()? {
            Form::Packed(packed) if is_over(packed, clock) => return Some(StoredNumber::Expired),
            Form::Packed(packed) => number_in_hash(packed, clock)??,
            Form::Split(root) => return Some(StoredNumber::InPages(SplitValue::Hash(root))),
        },
        ValueType::List => match ListForm::of(value).ok()? {
            ListForm::Packed(list) => collections::number_in_items(std::iter::once(list))?,
            ListForm::Split(root) => {
                return Some(StoredNumber::InPages(SplitValue::of_list(&root)));
            }
        },
        ValueType::SortedSet => match Form::of(value).ok()? {
            Form::Packed(packed) => collections::number_in_scores(packed)?,
            Form::Split(root) => return Some(StoredNumber::InPages(SplitValue::SortedSet(root))),
        },
        ValueType::Stream => {
            let root = StreamRoot::of(value).ok()?;
            let stream = StoredStream::of(&root)?;
            match root.interval.pages {
                0 => stream.number(&StoredPages::new(), false)?,
                _ => return Some(StoredNumber::InPages(SplitValue::Stream(stream))),
            }
        }
        ValueType::Set => return None,
    };
    Some(StoredNumber::Here(number))
}

/// The contents of a page.
struct PageContents {
    /// Number of fields, expired ones included.
    fields: usize,
    /// Set if all of them have expired.
    is_over: bool,
    /// The number in the fields that are here, if it is in any of them. That of fields in several
    /// pages consists of all their numbers.
    number: Option<u64>,
}

/// Returns the contents of a page, or `None` if no client wrote these bytes.
fn page_contents(page: &[u8], clock: UnixMillis) -> Option<PageContents> {
    let page = Packed::parse(TypedValue { value_type: ValueType::Hash, bytes: page }).ok()?;
    let (fields, is_over) = (page.count(), is_over(page, clock));
    Some(PageContents { fields, is_over, number: number_in_hash(page, clock)? })
}

/// Returns the number in the fields of a hash at this time, some or all, or `None` if no client wrote
/// them.
fn number_in_hash(packed: Packed<'_>, clock: UnixMillis) -> Option<Option<u64>> {
    match packed.get(FIELDS[0]).ok()? {
        Some(value) => Some(Some(decode(value)?)),
        None => collections::number_in_fields(packed, clock),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Lifetime, RemainingTime};
    use crate::workload::Workload;
    use fastrand::Rng;
    use resp::{ReplyLimits, ReplyParser};
    use types::HashSeed;

    fn settings() -> RunSettings {
        let expire = |seed: &u64| {
            let settings = RunSettings::new(*seed);
            are_used(&settings) && do_fields_expire(&settings)
        };
        RunSettings::new((1..).find(expire).unwrap())
    }

    fn hash() -> Register {
        let workload = Workload::draw(&mut Rng::with_seed(1), &HashSeed::new(7), &settings());
        let is_plain = |it: &&Register| {
            it.shape == collections::RegisterShape::Hash && it.kind == RegisterKind::Plain
        };
        workload.registers.iter().find(is_plain).unwrap().clone()
    }

    fn meaning(action: RegisterAction, reply: &str) -> ReplyMeaning {
        let reply = reply.replace(' ', "\r\n");
        let mut parser = ReplyParser::new(ReplyLimits::default());
        let received = parser.next(&mut reply.as_bytes()).unwrap().unwrap();
        read(&hash(), action, &received.reply)
    }

    #[test]
    fn operations_on_times_to_live_name_all_fields() {
        let lifetime = Lifetime::Until(3, 1_700_000_000_000);
        let request = |action| {
            let mut bytes = Vec::new();
            write(&hash(), action, &mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        let actions = [
            (RegisterAction::Expire(lifetime), "HPEXPIREAT"),
            (RegisterAction::Expire(Lifetime::After(9)), "HPEXPIRE"),
            (RegisterAction::Persist, "HPERSIST"),
            (RegisterAction::ReadRemaining, "HPTTL"),
            (RegisterAction::ReadExpiring(lifetime), "HGETEX"),
            (RegisterAction::ReadPersisting, "HGETEX"),
            (RegisterAction::WriteExpiring(7_000_000, lifetime), "HSETEX"),
            (RegisterAction::WriteKeeping(7_000_000), "HSETEX"),
        ];
        for (action, name) in actions {
            let text = request(action);
            assert!(text.contains(&format!("\r\n{name}\r\n")), "{text}");
            assert!(text.contains("\r\nFIELDS\r\n$1\r\n2\r\n$5\r\nvalue\r\n"), "{text}");
        }
    }

    #[test]
    fn fields_that_differ_in_their_times_to_live_are_torn() {
        let applied = |done| ReplyMeaning::Outcome(OperationOutcome::Applied(done));
        let expire = RegisterAction::Expire(Lifetime::After(1));
        assert_eq!(meaning(expire, "*2 :1 :1 "), applied(true));
        assert_eq!(meaning(expire, "*2 :2 :2 "), applied(true));
        assert_eq!(meaning(expire, "*2 :-2 :-2 "), applied(false));
        assert_eq!(meaning(expire, "*2 :1 :-2 "), ReplyMeaning::Torn);
        assert_eq!(meaning(RegisterAction::Persist, "*2 :-1 :-1 "), applied(false));
        let left = OperationOutcome::Remaining(RemainingTime::Millis(12));
        assert_eq!(
            meaning(RegisterAction::ReadRemaining, "*2 :12 :12 "),
            ReplyMeaning::Outcome(left)
        );
        assert_eq!(meaning(RegisterAction::ReadRemaining, "*2 :12 :-1 "), ReplyMeaning::Torn);
        assert_eq!(meaning(RegisterAction::ReadRemaining, "*1 :12 "), ReplyMeaning::Nonsense);
    }
}
