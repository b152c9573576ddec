//! Operations on a register, and their effect on its value.

use super::entry_ids::EntryId;
use super::lifetimes::{Lifetime, Lives};
use super::outcomes::{OperationOutcome, RemainingTime};
use super::parts::{self, EXPIRING_FIELD, NumberedParts, PartAction};
use super::streams::{self, StreamAction, StreamContent};
use std::fmt;

/// Operation of a client on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// Returns the value.
    Read,
    /// Returns whether there is a value.
    Probe,
    /// Sets this value.
    Write(u64),
    /// Sets this value with a time to live.
    WriteExpiring(u64, Lifetime),
    /// Sets this value, and keeps the time to live of the previous one.
    WriteKeeping(u64),
    /// Sets this value if there is none.
    WriteIfAbsent(u64),
    /// Sets the second value if the first one is current.
    Swap(u64, u64),
    /// Sets this value and returns the previous one.
    Exchange(u64),
    /// Adds one and returns the result; no value counts as 0.
    Increment,
    /// Gives a time to live to the value, and returns whether there is one.
    Expire(Lifetime),
    /// Removes the time to live, and returns whether there was one.
    Persist,
    /// Gives a time to live to the value, and returns the value.
    ReadExpiring(Lifetime),
    /// Removes the time to live, and returns the value.
    ReadPersisting,
    /// Returns the remaining time to live.
    ReadRemaining,
    /// Removes the value and returns whether there was one.
    Delete,
    /// Removes the value and returns it.
    Take,
    /// Operation on parts of a hash, list or sorted set.
    Part(PartAction),
    /// Removes all values of the table of the register. Certain only if the server owned the
    /// register from beginning to end.
    Flush,
}

/// Connection on which an operation was executed, and its position there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestPlace {
    /// Number of the connection.
    pub connection: u64,
    /// Number of the request, which rises with every request of a connection.
    pub request: u64,
}

/// Finished operation. Moments are positions in the order of all beginnings and ends.
#[derive(Clone, Copy, Debug)]
pub struct RegisterOperation {
    /// Number of the client.
    pub client: usize,
    /// Moment at which the client began the operation.
    pub begun: u64,
    /// Moment at which the client received the outcome or gave up.
    pub ended: u64,
    /// Place of the last attempt.
    pub place: RequestPlace,
    /// Requested action.
    pub action: RegisterAction,
    /// Reported outcome. `None`: the client gave up, and the outcome is unknown.
    pub outcome: Option<OperationOutcome>,
}

/// Value of a register, with its time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoredValue {
    /// The value; of a stream, 0.
    pub(super) number: u64,
    /// The content of a stream.
    pub(super) stream: Option<StreamContent>,
    pub(super) lifetime: Option<Lifetime>,
    /// Set if the time to live is that of one field of a hash.
    pub(super) is_of_field: bool,
}

impl StoredValue {
    fn lasting(number: u64) -> StoredValue {
        StoredValue { number, stream: None, lifetime: None, is_of_field: false }
    }
}

pub(super) type RegisterValue = Option<StoredValue>;

/// Returns the value when its time to live has ended: none, or one without the field that had it.
pub(super) fn expired(value: RegisterValue) -> RegisterValue {
    let value = value?;
    assert!(value.lifetime.is_some(), "a value that lasts has expired: {value:?}");
    let fields = value.is_of_field.then(|| NumberedParts::of(value.number))?;
    assert!(fields.get(EXPIRING_FIELD).is_some(), "a field that is not there has expired");
    fields.with(EXPIRING_FIELD, None).number().map(StoredValue::lasting)
}

/// Returns the time to live of a value. The register may lose such a value by itself, and never
/// gets it back.
pub(super) fn lifetime(value: RegisterValue) -> Option<Lifetime> {
    value.and_then(|value| value.lifetime)
}

impl RegisterAction {
    /// Returns whether the action changes nothing, whatever the value is.
    pub fn is_read(self) -> bool {
        match self {
            RegisterAction::Read | RegisterAction::Probe | RegisterAction::ReadRemaining => true,
            RegisterAction::Part(part) => part.is_read(),
            _ => false,
        }
    }

    /// Returns the value that the action may set.
    pub(crate) fn written(self) -> Option<u64> {
        match self {
            RegisterAction::Write(value)
            | RegisterAction::WriteExpiring(value, _)
            | RegisterAction::WriteKeeping(value)
            | RegisterAction::WriteIfAbsent(value)
            | RegisterAction::Swap(_, value)
            | RegisterAction::Exchange(value) => Some(value),
            RegisterAction::Read
            | RegisterAction::Probe
            | RegisterAction::Increment
            | RegisterAction::Expire(_)
            | RegisterAction::Persist
            | RegisterAction::ReadExpiring(_)
            | RegisterAction::ReadPersisting
            | RegisterAction::ReadRemaining
            | RegisterAction::Delete
            | RegisterAction::Take
            | RegisterAction::Part(_)
            | RegisterAction::Flush => None,
        }
    }

    /// Returns the time to live that the action gives.
    pub(crate) fn lifetime(self) -> Option<Lifetime> {
        match self {
            RegisterAction::WriteExpiring(_, lifetime)
            | RegisterAction::Expire(lifetime)
            | RegisterAction::ReadExpiring(lifetime) => Some(lifetime),
            RegisterAction::Part(part) => part.lifetime(),
            _ => None,
        }
    }
}

/// Returns the equivalent of an action without a known outcome.
pub(super) fn as_given_up(action: RegisterAction) -> RegisterAction {
    match action {
        RegisterAction::Exchange(new) => RegisterAction::Write(new),
        RegisterAction::Take | RegisterAction::Flush => RegisterAction::Delete,
        RegisterAction::ReadExpiring(lifetime) => RegisterAction::Expire(lifetime),
        RegisterAction::ReadPersisting => RegisterAction::Persist,
        RegisterAction::Read
        | RegisterAction::Probe
        | RegisterAction::ReadRemaining
        | RegisterAction::Write(_)
        | RegisterAction::WriteExpiring(..)
        | RegisterAction::WriteKeeping(_)
        | RegisterAction::WriteIfAbsent(_)
        | RegisterAction::Swap(..)
        | RegisterAction::Increment
        | RegisterAction::Expire(_)
        | RegisterAction::Persist
        | RegisterAction::Delete
        | RegisterAction::Part(_) => action,
    }
}

/// Returns whether one request was sent before another one on the same connection.
pub(super) fn is_earlier(one: RequestPlace, other: RequestPlace) -> bool {
    one.connection == other.connection && one.request < other.request
}

/// Returns whether the operation is a flush that may or may not have emptied the register.
pub(super) fn is_uncertain(operation: &RegisterOperation) -> bool {
    (operation.action, operation.outcome)
        == (RegisterAction::Flush, Some(OperationOutcome::Applied(false)))
}

/// Returns whether the operation, with this outcome, has changed nothing.
pub(super) fn changes_nothing(operation: &RegisterOperation) -> bool {
    let Some(outcome) = operation.outcome else { return false };
    if let RegisterAction::Part(part) = operation.action {
        return part.has_changed_nothing(outcome);
    }
    operation.action.is_read()
        || matches!(
            (operation.action, outcome),
            (
                RegisterAction::Delete
                    | RegisterAction::WriteIfAbsent(_)
                    | RegisterAction::Swap(..)
                    | RegisterAction::Expire(_)
                    | RegisterAction::Persist,
                OperationOutcome::Applied(false)
            ) | (
                RegisterAction::Take
                    | RegisterAction::ReadExpiring(_)
                    | RegisterAction::ReadPersisting,
                OperationOutcome::Value(None)
            )
        )
}

/// Returns the values that are possible once an operation has taken effect with its outcome; none
/// if it cannot have taken effect.
pub(super) fn after(
    value: RegisterValue,
    operation: &RegisterOperation,
    lives: &Lives,
) -> [Option<RegisterValue>; 2] {
    let effect = effect(value, operation.action);
    let number = value.map(|value| value.number);
    let only = |is_so: bool| [is_so.then_some(effect), None];
    let Some(outcome) = operation.outcome else { return [None; 2] };
    match (operation.action, outcome) {
        (
            RegisterAction::Write(_)
            | RegisterAction::WriteExpiring(..)
            | RegisterAction::WriteKeeping(_),
            OperationOutcome::Done,
        )
        | (RegisterAction::Flush, OperationOutcome::Applied(true)) => only(true),
        (RegisterAction::Flush, OperationOutcome::Applied(false)) => [Some(value), Some(None)],
        (
            RegisterAction::Read
            | RegisterAction::Take
            | RegisterAction::Exchange(_)
            | RegisterAction::ReadExpiring(_)
            | RegisterAction::ReadPersisting,
            OperationOutcome::Value(seen),
        ) => only(seen == number),
        (
            RegisterAction::Probe | RegisterAction::Delete | RegisterAction::Expire(_),
            OperationOutcome::Applied(found),
        ) => only(found == value.is_some()),
        (RegisterAction::Persist, OperationOutcome::Applied(done)) => {
            only(done == lifetime(value).is_some())
        }
        (RegisterAction::WriteIfAbsent(_), OperationOutcome::Applied(done)) => {
            only(done == value.is_none())
        }
        (RegisterAction::Swap(old, _), OperationOutcome::Applied(done)) => {
            only(done == (number == Some(old)))
        }
        (RegisterAction::Increment, OperationOutcome::Number(shown)) => {
            only(effect.map(|value| value.number) == Some(shown))
        }
        (RegisterAction::Part(PartAction::Stream(action)), outcome) => {
            [after_on_stream(value, action, outcome), None]
        }
        (RegisterAction::Read, OperationOutcome::Stream(seen)) => {
            let stream = value.and_then(|value| value.stream);
            only(match (stream, seen) {
                (Some(stream), Some(seen)) => stream.may_be(&seen),
                (stream, seen) => stream.is_none() && seen.is_none(),
            })
        }
        (RegisterAction::Part(part), outcome) => match (part, outcome) {
            (PartAction::ReadFieldRemaining, OperationOutcome::Remaining(shown)) => {
                only(may_show_field(value, shown, operation, lives))
            }
            _ => only(outcome_on_parts(value, part) == outcome),
        },
        (RegisterAction::ReadRemaining, OperationOutcome::Remaining(shown)) => only(match shown {
            RemainingTime::NoValue => value.is_none(),
            RemainingTime::Endless => value.is_some() && lifetime(value).is_none(),
            RemainingTime::Millis(_) => {
                lifetime(value).is_some_and(|lifetime| lives.may_show(lifetime, operation.begun))
            }
        }),
        (action, outcome) => unreachable!("{action:?} reported {outcome:?}"),
    }
}

/// Returns the value after an action.
pub(super) fn effect(value: RegisterValue, action: RegisterAction) -> RegisterValue {
    match action {
        RegisterAction::Read | RegisterAction::Probe | RegisterAction::ReadRemaining => value,
        RegisterAction::Write(new) | RegisterAction::Exchange(new) => {
            Some(StoredValue::lasting(new))
        }
        RegisterAction::WriteExpiring(number, lifetime) => {
            Some(StoredValue { lifetime: Some(lifetime), ..StoredValue::lasting(number) })
        }
        RegisterAction::WriteKeeping(number) => {
            Some(StoredValue { lifetime: lifetime(value), ..StoredValue::lasting(number) })
        }
        RegisterAction::WriteIfAbsent(new) => value.or(Some(StoredValue::lasting(new))),
        RegisterAction::Swap(old, new) if value.is_some_and(|value| value.number == old) => {
            Some(StoredValue::lasting(new))
        }
        RegisterAction::Swap(..) => value,
        RegisterAction::Increment => {
            let value = value.unwrap_or(StoredValue::lasting(0));
            Some(StoredValue { number: value.number + 1, ..value })
        }
        RegisterAction::Expire(lifetime) | RegisterAction::ReadExpiring(lifetime) => {
            value.map(|value| StoredValue { lifetime: Some(lifetime), ..value })
        }
        RegisterAction::Persist | RegisterAction::ReadPersisting => {
            value.map(|value| StoredValue { lifetime: None, ..value })
        }
        RegisterAction::Part(PartAction::Stream(action)) => {
            with_stream(value, action, execute_on_stream(value, action, None).0)
        }
        RegisterAction::Part(part) => after_on_parts(value, part),
        RegisterAction::Delete | RegisterAction::Take | RegisterAction::Flush => None,
    }
}

/// Returns the outcome of an action on parts of a value.
pub(super) fn outcome_on_parts(value: RegisterValue, part: PartAction) -> OperationOutcome {
    let number = value.map(|value| value.number);
    match part {
        PartAction::Stream(action) => execute_on_stream(value, action, None).1,
        PartAction::PersistField | PartAction::ReadFieldRemaining
            if number.is_some_and(parts::is_string) =>
        {
            OperationOutcome::WrongType
        }
        PartAction::PersistField => OperationOutcome::Applied(lifetime(value).is_some()),
        PartAction::ReadFieldRemaining => OperationOutcome::Remaining(match lifetime(value) {
            Some(_) => RemainingTime::Millis(1),
            None if has_expiring_field(number) => RemainingTime::Endless,
            None => RemainingTime::NoValue,
        }),
        part => parts::execute(number, part).1,
    }
}

/// Returns whether a hash has the field that may expire.
fn has_expiring_field(number: Option<u64>) -> bool {
    let fields = number.filter(|number| !parts::is_string(*number)).map(NumberedParts::of);
    fields.is_some_and(|fields| fields.get(EXPIRING_FIELD).is_some())
}

/// Returns whether an operation may have shown this remaining time to live of a field.
fn may_show_field(
    value: RegisterValue,
    shown: RemainingTime,
    operation: &RegisterOperation,
    lives: &Lives,
) -> bool {
    match outcome_on_parts(value, PartAction::ReadFieldRemaining) {
        OperationOutcome::Remaining(RemainingTime::Millis(_)) => {
            let known = lifetime(value).is_some_and(|it| lives.may_show(it, operation.begun));
            known && matches!(shown, RemainingTime::Millis(_))
        }
        computed => computed == OperationOutcome::Remaining(shown),
    }
}

/// Returns the value after an action on parts of it, other than those of a stream.
fn after_on_parts(value: RegisterValue, part: PartAction) -> RegisterValue {
    let before = value.map(|value| value.number);
    let (of_whole, of_field) = match value {
        Some(StoredValue { lifetime, is_of_field: true, .. }) => (None, lifetime),
        _ => (lifetime(value), None),
    };
    let of_field = part.lifetime_after(before, of_field);
    let number = match part {
        PartAction::PersistField | PartAction::ReadFieldRemaining => before,
        part => parts::execute(before, part).0,
    };
    assert!(of_whole.is_none() || of_field.is_none(), "a hash and its field may both expire");
    let (lifetime, is_of_field) = (of_whole.or(of_field), of_field.is_some());
    number.map(|number| StoredValue { number, stream: None, lifetime, is_of_field })
}

fn execute_on_stream(
    value: RegisterValue,
    action: StreamAction,
    shown: Option<EntryId>,
) -> (Option<StreamContent>, OperationOutcome) {
    streams::execute(value.and_then(|value| value.stream), action, shown)
}

/// Returns the value that a stream with this content is after an action on the value before.
fn with_stream(
    before: RegisterValue,
    action: StreamAction,
    content: Option<StreamContent>,
) -> RegisterValue {
    let lifetime = lifetime(before).filter(|_| !action.ends_lifetime());
    content.map(|_| StoredValue { number: 0, stream: content, lifetime, is_of_field: false })
}

/// Returns the value once an operation on a stream has taken effect with its outcome; `None` if it
/// cannot have taken effect.
fn after_on_stream(
    value: RegisterValue,
    action: StreamAction,
    outcome: OperationOutcome,
) -> Option<RegisterValue> {
    let shown = match outcome {
        OperationOutcome::Id(id) => Some(id),
        _ => None,
    };
    let (content, computed) = execute_on_stream(value, action, shown);
    streams::may_be(computed, outcome).then(|| with_stream(value, action, content))
}

impl fmt::Display for RegisterOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegisterOperation { client, begun, ended, place, action, outcome } = self;
        let RequestPlace { connection, request } = place;
        let who = format!("client {client}, request {request} of connection {connection}");
        match outcome {
            Some(outcome) => write!(f, "[{begun}-{ended}] {who}: {action:?} = {outcome:?}"),
            None => write!(f, "[{begun}-] {who}: {action:?}, abandoned at {ended}"),
        }
    }
}
