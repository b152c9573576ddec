//! Merging of values that no observation distinguishes.
//!
//! A client can learn three things about a value: its identity, if an outcome shows the value or
//! a swap asks for it; that there is a value; and if the value may expire. Take two values that
//! no outcome shows and no swap asks for, and that either both may expire or both may not. An
//! order that explains a history also explains it with one of them in place of the other.
//! Increments compute new values that an outcome may show, so a history with increments merges
//! nothing.

use super::{Action, EXPIRING, Lives, Operation, Outcome, Value};
use std::collections::BTreeSet;

/// Replacement for all unobserved values, without [`EXPIRING`].
const UNSEEN: u64 = !EXPIRING;

/// Values of a history that can be distinguished.
pub(super) enum Values {
    /// All values, since there are increments.
    Counted,
    /// These values; all others are equal to the checker.
    Seen(BTreeSet<u64>),
}

impl Values {
    /// Collects the observed values. A value with a known expiry time is distinguishable, too.
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

    /// Returns the operations with all other values merged into one.
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

/// Returns a value as text.
pub(super) fn shown(value: Value) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) if value & !EXPIRING == UNSEEN => "an unseen value".to_owned(),
        Some(value) => value.to_string(),
    }
}
