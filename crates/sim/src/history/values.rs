//! Values that nothing tells apart are one value.
//!
//! What a client can learn of a value is which one it is, where an outcome shows it or a swap asks for
//! it, that there is one, and whether it may expire. So let two values differ that no outcome shows
//! and no swap asks for, and that may both expire or both not: whatever order explains a history
//! explains it also when one of them stands in the place of the other. Increments make values of
//! values, which an outcome may show: where there are some, nothing is merged.

use super::{Action, EXPIRING, Lives, Operation, Outcome, Value};
use std::collections::BTreeSet;

/// Stands for the values that nothing shows, without [`EXPIRING`].
const UNSEEN: u64 = !EXPIRING;

/// Which values of a history can be told apart.
pub(super) enum Values {
    /// All of them.
    Counted,
    /// These; all others are alike.
    Seen(BTreeSet<u64>),
}

impl Values {
    /// A value of which is known when it goes is like no other.
    pub(super) fn of(operations: &[Operation], lives: &Lives) -> Values {
        let mut seen: BTreeSet<u64> = lives.keys().copied().collect();
        for operation in operations {
            match operation.action {
                Action::Increment => return Values::Counted,
                Action::Swap(old, _) => drop(seen.insert(old)),
                Action::Read
                | Action::Probe
                | Action::Write(_)
                | Action::WriteExpiring(_)
                | Action::WriteIfAbsent(_)
                | Action::Exchange(_)
                | Action::Delete
                | Action::Take
                | Action::Flush => {}
            }
            if let Some(Outcome::Value(Some(value))) = operation.outcome {
                seen.insert(value);
            }
        }
        assert!(seen.iter().all(|value| value & !EXPIRING != UNSEEN), "no client writes that");
        Values::Seen(seen)
    }

    /// The operations, with values that are alike made one.
    pub(super) fn merged(&self, operations: &[Operation]) -> Vec<Operation> {
        let merged = |operation: &Operation| Operation {
            action: self.action(operation.action),
            ..*operation
        };
        operations.iter().map(merged).collect()
    }

    fn action(&self, action: Action) -> Action {
        match action {
            Action::Write(new) => Action::Write(self.value(new)),
            Action::WriteExpiring(new) => Action::WriteExpiring(self.value(new)),
            Action::WriteIfAbsent(new) => Action::WriteIfAbsent(self.value(new)),
            Action::Swap(old, new) => Action::Swap(old, self.value(new)),
            Action::Exchange(new) => Action::Exchange(self.value(new)),
            Action::Read
            | Action::Probe
            | Action::Increment
            | Action::Delete
            | Action::Take
            | Action::Flush => action,
        }
    }

    fn value(&self, value: u64) -> u64 {
        match self {
            Values::Seen(seen) if !seen.contains(&value) => UNSEEN | value & EXPIRING,
            Values::Seen(_) | Values::Counted => value,
        }
    }
}

/// A value for people.
pub(super) fn shown(value: Value) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) if value & !EXPIRING == UNSEEN => "a value that nobody saw".to_owned(),
        Some(value) => value.to_string(),
    }
}
