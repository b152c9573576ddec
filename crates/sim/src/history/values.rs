//! Merging of values and of times to live that no observation distinguishes.
//!
//! A client can learn three things about a value: its number, if an outcome shows the value or
//! a swap asks for it; that there is a value; and its time to live. Take two numbers that no
//! outcome shows and no swap asks for. An order that explains a history also explains it with one
//! of them in place of the other. Increments compute new numbers that an outcome may show, so a
//! history with increments merges none, and neither does one of hashes or sorted sets, whose numbers
//! consist of parts. The items of lists are merged like values. All times to live without bounds are
//! one.

use super::lifetimes::Lives;
use super::parts::{NumberedItems, seen, with_seen_items};
use super::{OperationOutcome, RegisterAction, RegisterOperation, RegisterValue};
use std::collections::BTreeSet;

/// Replacement for all unobserved numbers.
const UNSEEN: u64 = u64::MAX;

/// Values of a history that can be distinguished.
pub(super) enum Values {
    /// All values, since there are increments or parts.
    Counted,
    /// Lists of these items; all other items are equal to the checker.
    Items(BTreeSet<u8>),
    /// These values; all others are equal to the checker.
    Seen(BTreeSet<u64>),
}

impl Values {
    /// Collects the observed numbers.
    pub(super) fn of(operations: &[RegisterOperation]) -> Values {
        let parts = |operation: &RegisterOperation| match operation.action {
            RegisterAction::Part(part) => Some(part),
            _ => None,
        };
        if let Some(part) = operations.iter().find_map(parts) {
            return match part.is_on_list() {
                true => Values::Items(seen_items(operations)),
                false => Values::Counted,
            };
        }
        let mut seen = BTreeSet::new();
        for operation in operations {
            match operation.action {
                RegisterAction::Increment | RegisterAction::Part(_) => return Values::Counted,
                RegisterAction::Swap(old, _) => drop(seen.insert(old)),
                RegisterAction::Read
                | RegisterAction::Probe
                | RegisterAction::ReadExpiring(_)
                | RegisterAction::ReadPersisting
                | RegisterAction::ReadRemaining
                | RegisterAction::Write(_)
                | RegisterAction::WriteExpiring(..)
                | RegisterAction::WriteKeeping(_)
                | RegisterAction::WriteIfAbsent(_)
                | RegisterAction::Exchange(_)
                | RegisterAction::Expire(_)
                | RegisterAction::Persist
                | RegisterAction::Delete
                | RegisterAction::Take
                | RegisterAction::Flush => {}
            }
            if let Some(OperationOutcome::Value(Some(value))) = operation.outcome {
                seen.insert(value);
            }
        }
        assert!(!seen.contains(&UNSEEN), "no client writes that");
        Values::Seen(seen)
    }

    /// Returns the operations with all other numbers merged into one, and so for the times to live.
    pub(super) fn merged(
        &self,
        operations: &[RegisterOperation],
        lives: &Lives,
    ) -> Vec<RegisterOperation> {
        let merged = |operation: &RegisterOperation| RegisterOperation {
            action: self.action(operation.action, lives),
            ..*operation
        };
        operations.iter().map(merged).collect()
    }

    fn action(&self, action: RegisterAction, lives: &Lives) -> RegisterAction {
        match action {
            RegisterAction::Write(new) => RegisterAction::Write(self.number(new)),
            RegisterAction::WriteExpiring(new, lifetime) => {
                RegisterAction::WriteExpiring(self.number(new), lives.known(lifetime))
            }
            RegisterAction::WriteKeeping(new) => RegisterAction::WriteKeeping(self.number(new)),
            RegisterAction::WriteIfAbsent(new) => RegisterAction::WriteIfAbsent(self.number(new)),
            RegisterAction::Swap(old, new) => RegisterAction::Swap(old, self.number(new)),
            RegisterAction::Exchange(new) => RegisterAction::Exchange(self.number(new)),
            RegisterAction::Expire(lifetime) => RegisterAction::Expire(lives.known(lifetime)),
            RegisterAction::ReadExpiring(lifetime) => {
                RegisterAction::ReadExpiring(lives.known(lifetime))
            }
            RegisterAction::Read
            | RegisterAction::Probe
            | RegisterAction::ReadRemaining
            | RegisterAction::ReadPersisting
            | RegisterAction::Persist
            | RegisterAction::Increment
            | RegisterAction::Delete
            | RegisterAction::Take
            | RegisterAction::Flush => action,
            RegisterAction::Part(part) => RegisterAction::Part(match self {
                Values::Items(seen_items) => {
                    part.with_item(|item| seen(item, |item| seen_items.contains(&item)))
                }
                Values::Counted | Values::Seen(_) => {
                    part.with_lifetime(|lifetime| lives.known(lifetime))
                }
            }),
        }
    }

    fn number(&self, number: u64) -> u64 {
        match self {
            Values::Seen(seen) if !seen.contains(&number) => UNSEEN,
            Values::Items(seen) => with_seen_items(number, |item| seen.contains(&item)),
            Values::Seen(_) | Values::Counted => number,
        }
    }
}

/// Collects the items of a list that some outcome shows.
fn seen_items(operations: &[RegisterOperation]) -> BTreeSet<u8> {
    let mut seen = BTreeSet::new();
    for operation in operations {
        let Some(OperationOutcome::Value(Some(shown))) = operation.outcome else { continue };
        match operation.action {
            RegisterAction::Part(_) => drop(u8::try_from(shown).map(|item| seen.insert(item))),
            _ => seen.extend(NumberedItems::of(shown).as_slice()),
        }
    }
    seen
}

pub(super) fn shown(value: RegisterValue) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    let number = match (value.stream, value.number) {
        (Some(stream), _) => format!("{stream:?}"),
        (None, UNSEEN) => "an unseen value".to_owned(),
        (None, number) => number.to_string(),
    };
    match value.lifetime {
        Some(lifetime) => format!("{number} for {lifetime:?}"),
        None => number,
    }
}
