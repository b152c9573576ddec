//! Requests and replies of operations on values with parts, and the stored values.

use super::{RegisterShape, streams};
use crate::commands::{ReplyMeaning, expiry_option, remaining};
use crate::history::{
    EXPIRING_FIELD, ITEMS_MAX, ItemsEnd, LIMITED_ITEMS, NumberedItems, NumberedParts,
    OperationOutcome, PARTS, PartAction, RegisterAction, is_string, member_with_score,
    part_of_score,
};
use crate::workload::{Register, decode};
use resp::Reply;
use types::{UnixMillis, ValueType};
use values::{Damaged, Element, Packed, PackedList, ScoredMember, SortedSet};

/// Names of the fields of a hash and of the members of a sorted set, in their order.
const NAMES: [&[u8]; PARTS] = [b"north", b"one", b"south", b"two"];

/// One request.
pub(super) type Words = Vec<Vec<u8>>;

pub(super) fn words(words: &[&[u8]]) -> Words {
    words.iter().map(|word| word.to_vec()).collect()
}

/// Returns whether an operation needs several commands, so it is a transaction.
pub(crate) fn is_transaction(register: &Register, action: RegisterAction) -> bool {
    match register.shape {
        RegisterShape::Stream => return streams::is_transaction(action),
        shape if !shape.has_parts() => return false,
        _ => {}
    }
    match action {
        RegisterAction::Read => register.shape == RegisterShape::Fields,
        RegisterAction::Write(new) => !(register.shape == RegisterShape::Fields && is_string(new)),
        RegisterAction::Part(PartAction::PushLimited(_)) => true,
        _ => false,
    }
}

/// Returns whether an operation can be an exactly-once request: no transaction, and no command that may
/// wait.
pub(crate) fn may_be_once(register: &Register, action: RegisterAction) -> bool {
    !is_transaction(register, action) && !streams::may_wait(action)
}

/// Returns the commands of an operation, except those on its time to live.
pub(crate) fn commands(register: &Register, action: RegisterAction) -> Vec<Words> {
    let key = &register.keys[0].1[..];
    let commands = match action {
        RegisterAction::Probe => vec![words(&[b"EXISTS", key])],
        RegisterAction::Delete => vec![words(&[b"DEL", key])],
        RegisterAction::Read => match register.shape {
            RegisterShape::Fields => vec![words(&[b"GET", key]), all_fields(key)],
            RegisterShape::List => vec![words(&[b"LRANGE", key, b"0", b"-1"])],
            RegisterShape::Stream => streams::read_commands(key),
            _ => vec![words(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])],
        },
        RegisterAction::Write(new) => replacement(register, new),
        RegisterAction::Part(PartAction::PushLimited(item)) => {
            let first = format!("-{LIMITED_ITEMS}");
            let push = words(&[b"RPUSH", key, &register.encode_part(u64::from(item))]);
            vec![push, words(&[b"LTRIM", key, first.as_bytes(), b"-1"])]
        }
        RegisterAction::Part(PartAction::Stream(action)) => streams::commands(register, action),
        RegisterAction::Part(part) => vec![of_part(register, part)],
        other => unreachable!("a value with parts has no operation {other:?}"),
    };
    assert_eq!(commands.len() > 1, is_transaction(register, action), "{action:?}");
    commands
}

/// Returns the command of an operation on parts.
fn of_part(register: &Register, part: PartAction) -> Words {
    let key = &register.keys[0].1[..];
    let name = |part: u8| NAMES[usize::from(part)];
    match part {
        PartAction::SetFields(fields) => set_fields(register, key, fields),
        PartAction::SetFieldIfAbsent(field, value) => {
            words(&[b"HSETNX", key, name(field), &register.encode_part(u64::from(value))])
        }
        PartAction::RemoveFields(fields) => {
            let names = fields.iter().map(|(field, _)| NAMES[field].to_vec());
            words(&[b"HDEL", key]).into_iter().chain(names).collect()
        }
        PartAction::ReadField(field) => words(&[b"HGET", key, name(field)]),
        PartAction::ReadFields => all_fields(key),
        PartAction::CountFields => words(&[b"HLEN", key]),
        PartAction::SetFieldExpiring(..)
        | PartAction::ExpireField(_)
        | PartAction::PersistField
        | PartAction::ReadFieldExpiring(_)
        | PartAction::ReadFieldRemaining => on_timed_field(register, part),
        PartAction::Push(item) => words(&[b"RPUSH", key, &register.encode_part(u64::from(item))]),
        PartAction::PushLimited(_) => unreachable!("this is a transaction"),
        PartAction::Pop(ItemsEnd::First) => words(&[b"LPOP", key]),
        PartAction::Pop(ItemsEnd::Last) => words(&[b"RPOP", key]),
        PartAction::Rotate => words(&[b"LMOVE", key, key, b"LEFT", b"RIGHT"]),
        PartAction::CountItems => words(&[b"LLEN", key]),
        PartAction::SetScore(member, score) => {
            words(&[b"ZADD", key, score.to_string().as_bytes(), name(member)])
        }
        PartAction::AddScore(member) => words(&[b"ZINCRBY", key, b"1", name(member)]),
        PartAction::RemoveMember(member) => words(&[b"ZREM", key, name(member)]),
        PartAction::ReadScore(member) => words(&[b"ZSCORE", key, name(member)]),
        PartAction::PopLowest => words(&[b"ZPOPMIN", key]),
        PartAction::CountMembers => words(&[b"ZCARD", key]),
        PartAction::Stream(_) => unreachable!("this is on a stream"),
    }
}

/// Returns the command of an operation on the field that may expire.
fn on_timed_field(register: &Register, part: PartAction) -> Words {
    let key = &register.keys[0].1[..];
    let with = |lifetime| {
        let (option, number) = expiry_option(register, lifetime);
        (option, number.to_string().into_bytes())
    };
    let mut request = match part {
        PartAction::SetFieldExpiring(_, lifetime) => {
            let (option, number) = with(lifetime);
            words(&[b"HSETEX", key, option, &number])
        }
        PartAction::ExpireField(lifetime) => {
            let (option, number) = with(lifetime);
            let name: &[u8] = if option == b"PX" { b"HPEXPIRE" } else { b"HPEXPIREAT" };
            words(&[name, key, &number])
        }
        PartAction::ReadFieldExpiring(lifetime) => {
            let (option, number) = with(lifetime);
            words(&[b"HGETEX", key, option, &number])
        }
        PartAction::PersistField => words(&[b"HPERSIST", key]),
        _ => words(&[b"HPTTL", key]),
    };
    request.extend(words(&[b"FIELDS", b"1", NAMES[EXPIRING_FIELD]]));
    if let PartAction::SetFieldExpiring(value, _) = part {
        request.push(register.encode_part(value.into()));
    }
    request
}

fn all_fields(key: &[u8]) -> Words {
    words(&[&[b"HMGET", key], &NAMES[..]].concat())
}

fn set_fields(register: &Register, key: &[u8], fields: NumberedParts) -> Words {
    let mut request = words(&[b"HSET", key]);
    for (field, value) in fields.iter() {
        request.extend([NAMES[field].to_vec(), register.encode_part(value)]);
    }
    request
}

/// Returns the commands that replace the whole value. A hash of every second number is renamed to
/// the key, so that its pages are copied; other values are removed first.
fn replacement(register: &Register, new: u64) -> Vec<Words> {
    let key = &register.keys[0].1[..];
    let delete = words(&[b"DEL", key]);
    match register.shape {
        RegisterShape::Fields if is_string(new) => {
            vec![words(&[b"SET", key, &register.encode_part(new)])]
        }
        RegisterShape::Fields if is_renamed(new) => {
            let other = [key, b":new"].concat();
            let set = set_fields(register, &other, NumberedParts::of(new));
            vec![set, words(&[b"RENAME", &other, key])]
        }
        RegisterShape::Fields => vec![delete, set_fields(register, key, NumberedParts::of(new))],
        RegisterShape::List => {
            let mut push = words(&[b"RPUSH", key]);
            let items = NumberedItems::of(new);
            push.extend(items.as_slice().iter().map(|&it| register.encode_part(u64::from(it))));
            vec![delete, push]
        }
        _ => {
            let mut add = words(&[b"ZADD", key]);
            for (member, part) in NumberedParts::of(new).iter() {
                add.extend([(part - 1).to_string().into_bytes(), NAMES[member].to_vec()]);
            }
            vec![delete, add]
        }
    }
}

fn is_renamed(new: u64) -> bool {
    NumberedParts::of(new).iter().map(|(_, value)| value).sum::<u64>().is_multiple_of(2)
}

/// Interprets the reply to an operation, other than an error or one on a time to live.
pub(crate) fn read(register: &Register, action: RegisterAction, reply: &Reply<'_>) -> ReplyMeaning {
    let replies: Vec<Reply<'_>> = match (is_transaction(register, action), reply) {
        (true, Reply::Array(items)) => items.collect(),
        (true, _) => return ReplyMeaning::Nonsense,
        (false, _) => vec![*reply],
    };
    let shape = register.shape;
    let outcome = match (action, &replies[..]) {
        (RegisterAction::Read, [exists, entries]) if shape == RegisterShape::Stream => {
            return streams::read_whole(exists, entries);
        }
        (RegisterAction::Read, [string, fields]) => {
            return read_whole_hash(register, string, fields);
        }
        (RegisterAction::Read, [Reply::Array(items)]) if shape == RegisterShape::List => {
            read_items(items.map(|item| part(&item)))
        }
        (RegisterAction::Read, [Reply::Array(items)]) => return read_scores(*items),
        (RegisterAction::Probe | RegisterAction::Delete, [Reply::Integer(count @ (0 | 1))]) => {
            Some(OperationOutcome::Applied(*count == 1))
        }
        (RegisterAction::Write(new), replies) => read_replacement(shape, new, replies),
        (RegisterAction::Part(PartAction::PushLimited(_)), [length, Reply::Simple(b"OK")]) => {
            number(length)
        }
        (RegisterAction::Part(PartAction::Stream(action)), replies) => {
            streams::read(action, replies)
        }
        (RegisterAction::Part(action), [reply]) => read_part(action, reply),
        _ => None,
    };
    outcome.map_or(ReplyMeaning::Nonsense, ReplyMeaning::Outcome)
}

fn read_replacement(
    shape: RegisterShape,
    new: u64,
    replies: &[Reply<'_>],
) -> Option<OperationOutcome> {
    let count = match shape {
        RegisterShape::List => NumberedItems::of(new).as_slice().len(),
        RegisterShape::Fields if is_string(new) => 0,
        _ => NumberedParts::of(new).iter().count(),
    };
    let is_right = match replies {
        [Reply::Simple(b"OK")] => count == 0,
        [Reply::Integer(set), Reply::Simple(b"OK")] => *set == count as i64,
        [Reply::Integer(0 | 1), Reply::Integer(set)] => *set == count as i64,
        _ => false,
    };
    is_right.then_some(OperationOutcome::Done)
}

fn read_part(action: PartAction, reply: &Reply<'_>) -> Option<OperationOutcome> {
    match action {
        PartAction::SetFields(_)
        | PartAction::RemoveFields(_)
        | PartAction::CountFields
        | PartAction::Push(_)
        | PartAction::PushLimited(_)
        | PartAction::CountItems
        | PartAction::SetScore(..)
        | PartAction::RemoveMember(_)
        | PartAction::CountMembers => number(reply),
        PartAction::SetFieldExpiring(..) => {
            (*reply == Reply::Integer(1)).then_some(OperationOutcome::Done)
        }
        PartAction::ExpireField(_)
        | PartAction::PersistField
        | PartAction::ReadFieldExpiring(_)
        | PartAction::ReadFieldRemaining => read_timed_field(action, reply),
        PartAction::SetFieldIfAbsent(..) => match reply {
            Reply::Integer(set @ (0 | 1)) => Some(OperationOutcome::Applied(*set == 1)),
            _ => None,
        },
        PartAction::AddScore(_) => part(reply)?.map(OperationOutcome::Number),
        PartAction::ReadField(_)
        | PartAction::Pop(_)
        | PartAction::Rotate
        | PartAction::ReadScore(_) => part(reply).map(OperationOutcome::Value),
        PartAction::ReadFields => read_fields(reply).map(OperationOutcome::Value),
        PartAction::PopLowest => {
            let Reply::Array(mut items) = *reply else { return None };
            let Some(member) = items.next() else { return Some(OperationOutcome::Value(None)) };
            let (member, score) = (member_of(&member)?, part(&items.next()?)??);
            let taken = member_with_score(member, score);
            items.next().is_none().then_some(OperationOutcome::Value(Some(taken)))
        }
        PartAction::Stream(_) => None,
    }
}

/// Interprets the reply to an operation on the field that may expire: one item.
fn read_timed_field(action: PartAction, reply: &Reply<'_>) -> Option<OperationOutcome> {
    let Reply::Array(mut items) = *reply else { return None };
    let item = items.next().filter(|_| items.next().is_none())?;
    match (action, &item) {
        (PartAction::ExpireField(_), Reply::Integer(1 | 2))
        | (PartAction::PersistField, Reply::Integer(1)) => Some(OperationOutcome::Applied(true)),
        (PartAction::ExpireField(_), Reply::Integer(-2))
        | (PartAction::PersistField, Reply::Integer(-1 | -2)) => {
            Some(OperationOutcome::Applied(false))
        }
        (PartAction::ReadFieldExpiring(_), item) => part(item).map(OperationOutcome::Value),
        (PartAction::ReadFieldRemaining, item) => remaining(item).map(OperationOutcome::Remaining),
        _ => None,
    }
}

fn number(reply: &Reply<'_>) -> Option<OperationOutcome> {
    let Reply::Integer(number) = *reply else { return None };
    u64::try_from(number).ok().map(OperationOutcome::Number)
}

/// Returns the number in a bulk string, or that there is none.
fn part(reply: &Reply<'_>) -> Option<Option<u64>> {
    match reply {
        Reply::Null => Some(None),
        Reply::Bulk(bytes) => decode(bytes).map(Some),
        _ => None,
    }
}

fn member_of(reply: &Reply<'_>) -> Option<usize> {
    let Reply::Bulk(name) = reply else { return None };
    NAMES.iter().position(|known| known == name)
}

/// Returns the number of the hash with these values of all fields.
fn read_fields(reply: &Reply<'_>) -> Option<Option<u64>> {
    let Reply::Array(items) = *reply else { return None };
    let values = items.map(|item| part(&item)).collect::<Option<Vec<_>>>()?;
    let mut fields = NumberedParts::default();
    for (field, value) in values.iter().enumerate() {
        fields = checked(fields, field, *value)?;
    }
    (values.len() == PARTS).then_some(fields.number())
}

/// Returns the parts with one more; `None` if no client writes such a one.
fn checked(parts: NumberedParts, part: usize, value: Option<u64>) -> Option<NumberedParts> {
    let is_possible = value.is_none_or(|value| (1..1 << 15).contains(&value));
    is_possible.then(|| parts.with(part, value))
}

/// Interprets the replies to `GET` and `HMGET` in one transaction: one of the two sees another type,
/// or there is no value. A hash whose fields have all expired may still be there.
fn read_whole_hash(register: &Register, string: &Reply<'_>, fields: &Reply<'_>) -> ReplyMeaning {
    let value = |value| ReplyMeaning::Outcome(OperationOutcome::Value(value));
    match (string, fields) {
        (Reply::Bulk(bytes), Reply::Error(_)) => {
            let number = decode(bytes).filter(|number| is_string(*number));
            number.map_or(ReplyMeaning::Nonsense, |number| value(Some(number)))
        }
        (Reply::Error(_), Reply::Array(_))
            if register.has_timed_field && read_fields(fields) == Some(None) =>
        {
            value(None)
        }
        (Reply::Null | Reply::Error(_), Reply::Array(_)) => match read_fields(fields) {
            Some(number) if number.is_some() == matches!(string, Reply::Error(_)) => value(number),
            Some(_) => ReplyMeaning::Torn,
            None => ReplyMeaning::Nonsense,
        },
        _ => ReplyMeaning::Torn,
    }
}

fn read_items(items: impl Iterator<Item = Option<Option<u64>>>) -> Option<OperationOutcome> {
    number_of_items(items.map(Option::flatten)).map(OperationOutcome::Value)
}

/// Returns the number of the list of these items.
fn number_of_items(numbers: impl Iterator<Item = Option<u64>>) -> Option<Option<u64>> {
    let mut items = NumberedItems::default();
    for number in numbers {
        let item = u8::try_from(number?).ok().filter(|item| *item > 0)?;
        if items.as_slice().len() == ITEMS_MAX {
            return None;
        }
        items.push(item);
    }
    Some(items.number())
}

/// Interprets members with their scores, which must be in order.
fn read_scores(items: resp::Items<'_>) -> ReplyMeaning {
    let items: Vec<Reply<'_>> = items.collect();
    let (pairs, rest) = items.as_chunks::<2>();
    let pair = |[member, score]: &[Reply<'_>; 2]| Some((member_of(member)?, part(score)??));
    let pairs: Option<Vec<(usize, u64)>> = pairs.iter().map(pair).collect();
    let Some(pairs) = pairs.filter(|_| rest.is_empty()) else { return ReplyMeaning::Nonsense };
    if !are_in_order(&pairs) {
        return ReplyMeaning::Disordered;
    }
    let number = number_of_scores(&pairs);
    number.map_or(ReplyMeaning::Nonsense, |number| {
        ReplyMeaning::Outcome(OperationOutcome::Value(number))
    })
}

/// Returns whether members are in the order of their scores, and those of one score in that of their
/// names. So each is there once.
fn are_in_order(pairs: &[(usize, u64)]) -> bool {
    pairs.is_sorted_by(|(one, first), (other, second)| (first, one) < (second, other))
}

fn number_of_scores(pairs: &[(usize, u64)]) -> Option<Option<u64>> {
    let mut scores = NumberedParts::default();
    for &(member, score) in pairs {
        if scores.get(member).is_some() {
            return None;
        }
        scores = checked(scores, member, Some(part_of_score(score)))?;
    }
    Some(scores.number())
}

/// Returns the number in fields of a hash at this time, some or all; `None` if no client wrote them.
pub(crate) fn number_in_fields(packed: Packed<'_>, clock: UnixMillis) -> Option<Option<u64>> {
    let mut fields = NumberedParts::default();
    for timed in packed.timed(clock) {
        let Element { name, value } = timed.ok()?.element;
        let field = NAMES.iter().position(|known| *known == name);
        if let Some(field) = field {
            fields = checked(fields, field, Some(decode(value)?))?;
        }
    }
    Some(fields.number())
}

/// Returns the number of a list of stored items, in several parts, or `None` if no client wrote it.
pub(crate) fn number_in_items<'p>(parts: impl Iterator<Item = PackedList<'p>>) -> Option<u64> {
    let items = parts.flat_map(PackedList::items);
    number_of_items(items.map(|item| decode(item.ok()?)))?
}

/// Returns the number of a packed sorted set, or `None` if no client wrote it.
pub(crate) fn number_in_scores(packed: Packed<'_>) -> Option<u64> {
    let members = SortedSet::from(packed).list().ok()?;
    let pairs: Vec<(usize, u64)> = members.into_iter().map(stored_pair).collect::<Option<_>>()?;
    number_of_scores(&pairs).filter(|_| are_in_order(&pairs))?
}

/// Returns the number of a sorted set with these elements in pages, or `None` if no client wrote it.
pub(crate) fn number_in_pages<'p>(
    elements: impl Iterator<Item = Result<Element<'p>, Damaged>>,
) -> Option<u64> {
    let pair = |element: Result<Element<'p>, Damaged>| {
        stored_pair(ScoredMember::of(element.ok()?, ValueType::SortedSet).ok()?)
    };
    let pairs: Vec<(usize, u64)> = elements.map(pair).collect::<Option<_>>()?;
    number_of_scores(&pairs)?
}

/// Returns a stored member with its score.
fn stored_pair(one: ScoredMember<'_>) -> Option<(usize, u64)> {
    let member = NAMES.iter().position(|name| *name == one.member)?;
    let is_whole = one.score >= 0.0 && one.score.fract() == 0.0;
    Some((member, one.score as u64)).filter(|_| is_whole)
}
