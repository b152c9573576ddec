//! Merging of values that no observation distinguishes.
//!
//! A client can learn three things about a value: its identity, if an outcome shows the value or
//! a swap asks for it; that there is a value; and if the value may expire. Take two values that
//! no outcome shows and no swap asks for, and that either both may expire or both may not. An
//! order that explains a history also explains it with one of them in place of the other.
//! Increments compute new values that an outcome may show, so a history with increments merges
//! nothing.

use super::{EXPIRING, Lives, OperationOutcome, RegisterAction, RegisterOperation, RegisterValue};
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
    pub(super) fn of(operations: &[RegisterOperation], lives: &Lives) -> Values {
        let mut seen: BTreeSet<u64> = lives.keys().copied().collect();
        for operation in operations {
            match operation.action {
                RegisterAction::Increment => return Values::Counted,
                RegisterAction::Swap(old, _) => drop(seen.insert(old)),
                RegisterAction::Read
                | RegisterAction::Probe
                | RegisterAction::Write(_)
                | RegisterAction::WriteExpiring(_)
                | RegisterAction::WriteIfAbsent(_)
                | RegisterAction::Exchange(_)
                | RegisterAction::Delete
                | RegisterAction::Take
                | RegisterAction::Flush => {}
            }
            if let Some(OperationOutcome::Value(Some(value))) = operation.outcome {
                seen.insert(value);
            }
        }
        assert!(seen.iter().all(|value| value & !EXPIRING != UNSEEN), "no client writes that");
        Values::Seen(seen)
    }

    /// Returns the operations with all other values merged into one.
    pub(super) fn merged(&self, operations: &[RegisterOperation]) -> Vec<RegisterOperation> {
        let merged = |operation: &RegisterOperation| RegisterOperation {
            action: self.action(operation.action),
            ..*operation
        };
        operations.iter().map(merged).collect()
    }

    fn action(&self, action: RegisterAction) -> RegisterAction {
        match action {
            RegisterAction::Write(new) => RegisterAction::Write(self.value(new)),
            RegisterAction::WriteExpiring(new) => RegisterAction::WriteExpiring(self.value(new)),
            RegisterAction::WriteIfAbsent(new) => RegisterAction::WriteIfAbsent(self.value(new)),
            RegisterAction::Swap(old, new) => RegisterAction::Swap(old, self.value(new)),
            RegisterAction::Exchange(new) => RegisterAction::Exchange(self.value(new)),
            RegisterAction::Read
            | RegisterAction::Probe
            | RegisterAction::Increment
            | RegisterAction::Delete
            | RegisterAction::Take
            | RegisterAction::Flush => action,
        }
    }

    fn value(&self, value: u64) -> u64 {
        match self {
            Values::Seen(seen) if !seen.contains(&value) => UNSEEN | value & EXPIRING,
            Values::Seen(_) | Values::Counted => value,
        }
    }
}

pub(super) fn shown(value: RegisterValue) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) if value & !EXPIRING == UNSEEN => "an unseen value".to_owned(),
        Some(value) => value.to_string(),
    }
}
