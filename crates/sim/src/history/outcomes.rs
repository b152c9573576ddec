//! Outcomes of operations, as clients see them.

use super::entry_ids::{EntryId, EntryIds, PendingSummary};

/// Result that the client received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// The value, or none.
    Value(Option<u64>),
    /// The action was executed.
    Done,
    /// True if a value was found, the condition held, or the flush certainly emptied the
    /// register.
    Applied(bool),
    /// The new value.
    Number(u64),
    /// The remaining time to live.
    Remaining(RemainingTime),
    /// The value has another type.
    WrongType,
    /// The id of the new entry of a stream.
    Id(EntryId),
    /// Entries of a stream.
    Entries(EntryIds),
    /// All entries of a stream, or there is none.
    Stream(Option<EntryIds>),
    /// The pending entries of a group.
    Pending(PendingSummary),
    /// The operation was refused for the state of the stream: its highest id, or its group.
    Rejected,
}

/// Remaining time to live of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingTime {
    /// There is no value.
    NoValue,
    /// The value does not expire.
    Endless,
    /// Number of milliseconds.
    Millis(u64),
}
