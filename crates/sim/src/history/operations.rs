//! Operations on a register, and their effect on its value.

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
    /// Sets this value, which expires some time later.
    WriteExpiring(u64),
    /// Sets this value if there is none.
    WriteIfAbsent(u64),
    /// Sets the second value if the first one is current.
    Swap(u64, u64),
    /// Sets this value and returns the previous one.
    Exchange(u64),
    /// Adds one and returns the result; no value counts as 0.
    Increment,
    /// Removes the value and returns whether there was one.
    Delete,
    /// Removes the value and returns it.
    Take,
    /// Removes all values of the table of the register. Certain only if the server owned the
    /// register from beginning to end.
    Flush,
}

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

pub(super) type RegisterValue = Option<u64>;

/// Marker bit of values that are written to expire.
pub const EXPIRING: u64 = 1 << 50;

/// Returns whether the register may lose this value by itself. It never gets the value back.
pub(super) fn may_expire(value: RegisterValue) -> bool {
    value.is_some_and(|value| value & EXPIRING != 0)
}

/// Returns the equivalent of an action without a known outcome.
pub(super) fn as_given_up(action: RegisterAction) -> RegisterAction {
    match action {
        RegisterAction::Exchange(new) => RegisterAction::Write(new),
        RegisterAction::Take | RegisterAction::Flush => RegisterAction::Delete,
        RegisterAction::Read
        | RegisterAction::Probe
        | RegisterAction::Write(_)
        | RegisterAction::WriteExpiring(_)
        | RegisterAction::WriteIfAbsent(_)
        | RegisterAction::Swap(..)
        | RegisterAction::Increment
        | RegisterAction::Delete => action,
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
    matches!(
        (operation.action, outcome),
        (RegisterAction::Read | RegisterAction::Probe, _)
            | (
                RegisterAction::Delete
                    | RegisterAction::WriteIfAbsent(_)
                    | RegisterAction::Swap(..),
                OperationOutcome::Applied(false)
            )
            | (RegisterAction::Take, OperationOutcome::Value(None))
    )
}

/// Returns the values that are possible once an operation has taken effect with its outcome; none
/// if it cannot have taken effect.
pub(super) fn after(
    value: RegisterValue,
    operation: &RegisterOperation,
) -> [Option<RegisterValue>; 2] {
    let effect = effect(value, operation.action);
    let only = |is_so: bool| [is_so.then_some(effect), None];
    let Some(outcome) = operation.outcome else { return [None; 2] };
    match (operation.action, outcome) {
        (RegisterAction::Write(_) | RegisterAction::WriteExpiring(_), OperationOutcome::Done)
        | (RegisterAction::Flush, OperationOutcome::Applied(true)) => only(true),
        (RegisterAction::Flush, OperationOutcome::Applied(false)) => [Some(value), Some(None)],
        (
            RegisterAction::Read | RegisterAction::Take | RegisterAction::Exchange(_),
            OperationOutcome::Value(seen),
        ) => only(seen == value),
        (RegisterAction::Probe | RegisterAction::Delete, OperationOutcome::Applied(found)) => {
            only(found == value.is_some())
        }
        (RegisterAction::WriteIfAbsent(_), OperationOutcome::Applied(done)) => {
            only(done == value.is_none())
        }
        (RegisterAction::Swap(old, _), OperationOutcome::Applied(done)) => {
            only(done == (value == Some(old)))
        }
        (RegisterAction::Increment, OperationOutcome::Number(number)) => {
            only(effect == Some(number))
        }
        (action, outcome) => unreachable!("{action:?} reported {outcome:?}"),
    }
}

/// Returns the value after an action.
pub(super) fn effect(value: RegisterValue, action: RegisterAction) -> RegisterValue {
    match action {
        RegisterAction::Read | RegisterAction::Probe => value,
        RegisterAction::Write(new)
        | RegisterAction::WriteExpiring(new)
        | RegisterAction::Exchange(new) => Some(new),
        RegisterAction::WriteIfAbsent(new) => value.or(Some(new)),
        RegisterAction::Swap(old, new) if value == Some(old) => Some(new),
        RegisterAction::Swap(..) => value,
        RegisterAction::Increment => Some(value.unwrap_or(0) + 1),
        RegisterAction::Delete | RegisterAction::Take | RegisterAction::Flush => None,
    }
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
