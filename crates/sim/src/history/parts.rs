//! Values of several parts: hashes, lists and sorted sets, of which the checker knows every part.
//!
//! The whole content of such a value is the number of its register, so the checker follows it like
//! any other value, and a client that sees two parts of two moments breaks a rule. A hash has four
//! fields, or it was replaced by a string; a list has up to eight items; a sorted set has four
//! members. A value without parts does not exist.

use super::lifetimes::Lifetime;
use super::outcomes::OperationOutcome;
use super::streams::StreamAction;

/// Number of fields of a hash, and of members of a sorted set.
pub const PARTS: usize = 4;

/// The field of a hash that may have a time to live of its own.
pub const EXPIRING_FIELD: usize = 0;

/// Bits of a field or score. 0: there is none.
const PART_BITS: usize = 15;
const PART_MAX: u64 = (1 << PART_BITS) - 1;

/// Marks a string that has replaced a hash.
const STRING: u64 = 1 << 63;

/// Most items of a list.
pub const ITEMS_MAX: usize = u64::BITS as usize / ITEM_BITS;

const ITEM_BITS: usize = 8;

/// Replacement for all items that no outcome shows.
const UNSEEN_ITEM: u8 = u8::MAX;

/// Most items that a limited push leaves.
pub const LIMITED_ITEMS: usize = 3;

/// End of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemsEnd {
    /// That with the oldest items.
    First,
    /// That at which items are added.
    Last,
}

/// Operation on parts of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartAction {
    /// Sets these fields of a hash, and returns how many are new.
    SetFields(NumberedParts),
    /// Sets this field to this value if the hash does not have it.
    SetFieldIfAbsent(u8, u16),
    /// Removes the fields that these parts have, and returns how many there were.
    RemoveFields(NumberedParts),
    /// Returns the value of this field.
    ReadField(u8),
    /// Returns all fields.
    ReadFields,
    /// Returns the number of fields.
    CountFields,
    /// Sets the field that may expire to this value, with a time to live.
    SetFieldExpiring(u16, Lifetime),
    /// Gives a time to live to that field, and returns whether there is one.
    ExpireField(Lifetime),
    /// Removes the time to live of that field, and returns whether there was one.
    PersistField,
    /// Gives a time to live to that field, and returns its value.
    ReadFieldExpiring(Lifetime),
    /// Returns the remaining time to live of that field.
    ReadFieldRemaining,
    /// Adds this item behind the last one, and returns the number of items.
    Push(u8),
    /// The same, and removes the oldest items if there are more than [`LIMITED_ITEMS`] then.
    PushLimited(u8),
    /// Removes the item at this end, and returns it.
    Pop(ItemsEnd),
    /// Moves the first item behind the last one, and returns it.
    Rotate,
    /// Returns the number of items.
    CountItems,
    /// Sets the score of this member of a sorted set, and returns how many are new.
    SetScore(u8, u16),
    /// Adds one to the score of this member, and returns the new score.
    AddScore(u8),
    /// Removes this member, and returns how many there were.
    RemoveMember(u8),
    /// Returns the score of this member.
    ReadScore(u8),
    /// Removes the member with the lowest score, and returns both.
    PopLowest,
    /// Returns the number of members.
    CountMembers,
    /// Operation on a stream.
    Stream(StreamAction),
}

impl PartAction {
    /// Returns whether the action changes nothing, whatever the value is.
    pub(super) fn is_read(self) -> bool {
        match self {
            PartAction::ReadField(_)
            | PartAction::ReadFields
            | PartAction::ReadFieldRemaining
            | PartAction::CountFields
            | PartAction::CountItems
            | PartAction::ReadScore(_)
            | PartAction::CountMembers => true,
            PartAction::Stream(action) => action.is_read(),
            PartAction::SetFields(_)
            | PartAction::SetFieldIfAbsent(..)
            | PartAction::RemoveFields(_)
            | PartAction::SetFieldExpiring(..)
            | PartAction::ExpireField(_)
            | PartAction::PersistField
            | PartAction::ReadFieldExpiring(_)
            | PartAction::Push(_)
            | PartAction::PushLimited(_)
            | PartAction::Pop(_)
            | PartAction::Rotate
            | PartAction::SetScore(..)
            | PartAction::AddScore(_)
            | PartAction::RemoveMember(_)
            | PartAction::PopLowest => false,
        }
    }

    /// Returns whether the action is on a list.
    pub(super) fn is_on_list(self) -> bool {
        matches!(
            self,
            PartAction::Push(_)
                | PartAction::PushLimited(_)
                | PartAction::Pop(_)
                | PartAction::Rotate
                | PartAction::CountItems
        )
    }

    /// Returns whether the action, with this outcome, has changed nothing.
    pub(super) fn has_changed_nothing(self, outcome: OperationOutcome) -> bool {
        let is_nothing = match self {
            PartAction::Stream(action) => return action.has_changed_nothing(outcome),
            PartAction::SetFieldIfAbsent(..)
            | PartAction::ExpireField(_)
            | PartAction::PersistField => outcome == OperationOutcome::Applied(false),
            PartAction::RemoveFields(_) | PartAction::RemoveMember(_) => {
                outcome == OperationOutcome::Number(0)
            }
            PartAction::Pop(_)
            | PartAction::Rotate
            | PartAction::PopLowest
            | PartAction::ReadFieldExpiring(_) => outcome == OperationOutcome::Value(None),
            _ => false,
        };
        is_nothing || outcome == OperationOutcome::WrongType || self.is_read()
    }

    /// Returns the time to live that the action gives.
    pub(super) fn lifetime(self) -> Option<Lifetime> {
        match self {
            PartAction::SetFieldExpiring(_, lifetime)
            | PartAction::ExpireField(lifetime)
            | PartAction::ReadFieldExpiring(lifetime) => Some(lifetime),
            _ => None,
        }
    }

    /// Returns the action with another time to live, if it gives one.
    pub(super) fn with_lifetime(self, known: impl Fn(Lifetime) -> Lifetime) -> PartAction {
        match self {
            PartAction::SetFieldExpiring(value, lifetime) => {
                PartAction::SetFieldExpiring(value, known(lifetime))
            }
            PartAction::ExpireField(lifetime) => PartAction::ExpireField(known(lifetime)),
            PartAction::ReadFieldExpiring(lifetime) => {
                PartAction::ReadFieldExpiring(known(lifetime))
            }
            other => other,
        }
    }

    /// Returns the time to live of the field that may expire after the action on a hash that had this
    /// content. `lifetime` is the one before.
    pub(super) fn lifetime_after(
        self,
        before: Option<u64>,
        lifetime: Option<Lifetime>,
    ) -> Option<Lifetime> {
        let fields = before.filter(|number| !is_string(*number)).map(NumberedParts::of);
        let has_field = fields.is_some_and(|fields| fields.get(EXPIRING_FIELD).is_some());
        let concerns = |parts: NumberedParts| parts.get(EXPIRING_FIELD).is_some();
        match self {
            _ if before.is_some_and(is_string) => lifetime,
            PartAction::SetFieldExpiring(_, new) => Some(new),
            PartAction::ExpireField(new) | PartAction::ReadFieldExpiring(new) => {
                has_field.then_some(new)
            }
            PartAction::PersistField => None,
            PartAction::SetFields(parts) | PartAction::RemoveFields(parts) if concerns(parts) => {
                None
            }
            _ => lifetime,
        }
    }

    /// Returns the action with this function applied to its item, if it has one.
    pub(super) fn with_item(self, seen: impl Fn(u8) -> u8) -> PartAction {
        match self {
            PartAction::Push(item) => PartAction::Push(seen(item)),
            PartAction::PushLimited(item) => PartAction::PushLimited(seen(item)),
            other => other,
        }
    }
}

/// The fields of a hash, or the scores of a sorted set, in one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberedParts(u64);

impl NumberedParts {
    /// Returns the parts of a stored number.
    pub fn of(number: u64) -> NumberedParts {
        assert_eq!(number & STRING, 0, "a string has no parts");
        NumberedParts(number)
    }

    /// Returns the number of the value; `None`: it has no parts, so it does not exist.
    pub fn number(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }

    /// Returns the value of a part.
    pub fn get(self, part: usize) -> Option<u64> {
        assert!(part < PARTS, "there is no part {part}");
        let value = self.0 >> (PART_BITS * part) & PART_MAX;
        (value > 0).then_some(value)
    }

    /// Returns the same parts with this value of one.
    pub fn with(self, part: usize, value: Option<u64>) -> NumberedParts {
        assert!(part < PARTS, "there is no part {part}");
        let value = value.map_or(0, |value| {
            assert!((1..=PART_MAX).contains(&value), "{value} is no value of a part");
            value
        });
        let shift = PART_BITS * part;
        NumberedParts(self.0 & !(PART_MAX << shift) | value << shift)
    }

    /// Returns the parts that exist, with their values.
    pub fn iter(self) -> impl Iterator<Item = (usize, u64)> {
        (0..PARTS).filter_map(move |part| Some((part, self.get(part)?)))
    }

    fn count(self) -> u64 {
        self.iter().count() as u64
    }
}

/// Returns the number of a sorted set's part with this score.
pub fn part_of_score(score: u64) -> u64 {
    score + 1
}

/// Returns the score in the number of a part.
fn score_of_part(part: u64) -> u64 {
    assert!(part > 0, "a member without a score");
    part - 1
}

/// Returns the outcome of taking a member with its score out of a sorted set.
pub fn member_with_score(member: usize, score: u64) -> u64 {
    score * PARTS as u64 + member as u64
}

/// Returns the number of a string that has replaced a hash.
pub fn string(number: u16) -> u64 {
    STRING | u64::from(number)
}

/// Returns whether a number is that of a string.
pub fn is_string(number: u64) -> bool {
    number & STRING != 0
}

/// The items of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberedItems {
    items: [u8; ITEMS_MAX],
    count: usize,
}

impl NumberedItems {
    /// Returns the items of a stored number.
    pub fn of(number: u64) -> NumberedItems {
        let items = number.to_le_bytes();
        let count = items.iter().position(|&item| item == 0).unwrap_or(ITEMS_MAX);
        NumberedItems { items, count }
    }

    /// Returns the number of the value; `None`: it has no items, so it does not exist.
    pub fn number(self) -> Option<u64> {
        (self.count > 0).then_some(u64::from_le_bytes(self.items))
    }

    /// Returns the items, oldest first.
    pub fn as_slice(&self) -> &[u8] {
        &self.items[..self.count]
    }

    /// Adds an item behind the last one. Returns `false` if there are too many.
    pub fn push(&mut self, item: u8) -> bool {
        assert!(item > 0, "an item has a number");
        let is_possible = self.count < ITEMS_MAX;
        if is_possible {
            self.items[self.count] = item;
            self.count += 1;
        }
        is_possible
    }

    fn pop(&mut self, end: ItemsEnd) -> Option<u8> {
        let last = self.count.checked_sub(1)?;
        let item = match end {
            ItemsEnd::First => {
                self.items.rotate_left(1);
                std::mem::take(&mut self.items[ITEMS_MAX - 1])
            }
            ItemsEnd::Last => std::mem::take(&mut self.items[last]),
        };
        self.count = last;
        Some(item)
    }
}

/// Returns the number of a list in which each item that `is_seen` rejects is the same one.
pub(super) fn with_seen_items(number: u64, is_seen: impl Fn(u8) -> bool) -> u64 {
    let mut items = number.to_le_bytes();
    items.iter_mut().for_each(|item| *item = if *item == 0 { 0 } else { seen(*item, &is_seen) });
    u64::from_le_bytes(items)
}

/// Returns the item, or the one that stands for all that `is_seen` rejects.
pub(super) fn seen(item: u8, is_seen: impl Fn(u8) -> bool) -> u8 {
    assert!(item != UNSEEN_ITEM, "no client adds that");
    if is_seen(item) { item } else { UNSEEN_ITEM }
}

/// Returns the content of a value after an action, and the outcome of the action.
pub(super) fn execute(before: Option<u64>, action: PartAction) -> (Option<u64>, OperationOutcome) {
    match action {
        _ if action.is_on_list() => execute_on_items(before, action),
        PartAction::SetScore(..)
        | PartAction::AddScore(_)
        | PartAction::RemoveMember(_)
        | PartAction::ReadScore(_)
        | PartAction::PopLowest
        | PartAction::CountMembers => execute_on_scores(before, action),
        _ if before.is_some_and(is_string) => (before, OperationOutcome::WrongType),
        _ => execute_on_fields(before, action),
    }
}

fn execute_on_fields(before: Option<u64>, action: PartAction) -> (Option<u64>, OperationOutcome) {
    let mut fields = before.map_or(NumberedParts::default(), NumberedParts::of);
    let count = fields.count();
    let outcome = match action {
        PartAction::SetFields(set) => {
            set.iter().for_each(|(field, value)| fields = fields.with(field, Some(value)));
            OperationOutcome::Number(fields.count() - count)
        }
        PartAction::SetFieldIfAbsent(field, value) => {
            let is_absent = fields.get(usize::from(field)).is_none();
            if is_absent {
                fields = fields.with(usize::from(field), Some(u64::from(value)));
            }
            OperationOutcome::Applied(is_absent)
        }
        PartAction::RemoveFields(removed) => {
            removed.iter().for_each(|(field, _)| fields = fields.with(field, None));
            OperationOutcome::Number(count - fields.count())
        }
        PartAction::ReadField(field) => OperationOutcome::Value(fields.get(usize::from(field))),
        PartAction::ReadFields => OperationOutcome::Value(fields.number()),
        PartAction::CountFields => OperationOutcome::Number(count),
        PartAction::SetFieldExpiring(value, _) => {
            fields = fields.with(EXPIRING_FIELD, Some(value.into()));
            OperationOutcome::Done
        }
        PartAction::ExpireField(_) => {
            OperationOutcome::Applied(fields.get(EXPIRING_FIELD).is_some())
        }
        PartAction::ReadFieldExpiring(_) => OperationOutcome::Value(fields.get(EXPIRING_FIELD)),
        PartAction::PersistField | PartAction::ReadFieldRemaining => {
            unreachable!("{action:?} depends on the time to live")
        }
        other => unreachable!("{other:?} is not on a hash"),
    };
    (fields.number(), outcome)
}

fn execute_on_items(before: Option<u64>, action: PartAction) -> (Option<u64>, OperationOutcome) {
    let mut items = before.map_or(NumberedItems::default(), NumberedItems::of);
    let push = |items: &mut NumberedItems, item: u8| {
        let is_pushed = items.push(item);
        assert!(is_pushed, "a list is longer than the checker can follow");
    };
    let outcome = match action {
        PartAction::Push(item) => {
            push(&mut items, item);
            OperationOutcome::Number(items.count as u64)
        }
        PartAction::PushLimited(item) => {
            push(&mut items, item);
            let count = items.count as u64;
            while items.count > LIMITED_ITEMS {
                items.pop(ItemsEnd::First);
            }
            OperationOutcome::Number(count)
        }
        PartAction::Pop(end) => OperationOutcome::Value(items.pop(end).map(u64::from)),
        PartAction::Rotate => {
            let moved = items.pop(ItemsEnd::First);
            moved.into_iter().for_each(|item| push(&mut items, item));
            OperationOutcome::Value(moved.map(u64::from))
        }
        PartAction::CountItems => OperationOutcome::Number(items.count as u64),
        other => unreachable!("{other:?} is not on a list"),
    };
    (items.number(), outcome)
}

fn execute_on_scores(before: Option<u64>, action: PartAction) -> (Option<u64>, OperationOutcome) {
    let mut members = before.map_or(NumberedParts::default(), NumberedParts::of);
    let count = members.count();
    let score =
        |members: NumberedParts, member: u8| members.get(usize::from(member)).map(score_of_part);
    let set = |members: &mut NumberedParts, member: u8, score: u64| {
        *members = members.with(usize::from(member), Some(part_of_score(score)));
    };
    let outcome = match action {
        PartAction::SetScore(member, score) => {
            set(&mut members, member, u64::from(score));
            OperationOutcome::Number(members.count() - count)
        }
        PartAction::AddScore(member) => {
            let sum = score(members, member).unwrap_or(0) + 1;
            set(&mut members, member, sum);
            OperationOutcome::Number(sum)
        }
        PartAction::RemoveMember(member) => {
            members = members.with(usize::from(member), None);
            OperationOutcome::Number(count - members.count())
        }
        PartAction::ReadScore(member) => OperationOutcome::Value(score(members, member)),
        PartAction::PopLowest => {
            let lowest = members.iter().min_by_key(|&(member, part)| (part, member));
            members = lowest.map_or(members, |(member, _)| members.with(member, None));
            let taken = lowest.map(|(member, part)| member_with_score(member, score_of_part(part)));
            OperationOutcome::Value(taken)
        }
        PartAction::CountMembers => OperationOutcome::Number(count),
        other => unreachable!("{other:?} is not on a sorted set"),
    };
    (members.number(), outcome)
}
