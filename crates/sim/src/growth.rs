//! Operations by which values with parts grow without a limit of their own. The checker follows a
//! bounded number of parts, so clients send a bounded number of them beside those that have a limit.

use crate::collections::GrowthRoom;
use crate::history::{
    AdditionLimit, OperationOutcome, PartAction, RegisterAction, RegisterOperation, StreamAction,
};

/// Most items that operations without a limit may add to a list or stream beyond those that one with
/// a limit leaves.
const UNLIMITED_ITEMS_MAX: usize = 3;

/// Most deliveries of entries to a group since it was new.
const DELIVERIES_MAX: usize = 2;

/// Effect of an operation on a number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// It adds some.
    Unlimited,
    /// It leaves few, whatever was there.
    Limited,
    Other,
}

/// Returns the effect on the items of a list or stream.
fn of_entries(action: RegisterAction) -> Growth {
    let RegisterAction::Part(part) = action else { return Growth::Other };
    match part {
        PartAction::Push(_) | PartAction::Stream(StreamAction::Add(_, AdditionLimit::None)) => {
            Growth::Unlimited
        }
        PartAction::PushLimited(_)
        | PartAction::Stream(
            StreamAction::Add(_, AdditionLimit::Within | AdditionLimit::Behind)
            | StreamAction::Replace(_)
            | StreamAction::Trim(_),
        ) => Growth::Limited,
        _ => Growth::Other,
    }
}

/// Returns the effect on the pending entries of a group.
fn of_pending(action: RegisterAction) -> Growth {
    match action {
        RegisterAction::Part(PartAction::Stream(StreamAction::Deliver(_))) => Growth::Unlimited,
        RegisterAction::Delete
        | RegisterAction::Part(PartAction::Stream(
            StreamAction::ResetGroup | StreamAction::Replace(_),
        )) => Growth::Limited,
        _ => Growth::Other,
    }
}

/// Operations by which the value of a register may have grown.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrowthLimit {
    entries: UnlimitedOperations,
    pending: UnlimitedOperations,
    /// Set if the value may have returned to an earlier state.
    may_be_old: bool,
}

/// Operations without a limit whose parts may be there beside those of the last one with a limit.
#[derive(Clone, Debug, Default)]
struct UnlimitedOperations {
    open: usize,
    /// Those whose outcome is unknown: they may take effect at any time.
    abandoned: usize,
    /// Moments at which the others ended.
    ended: Vec<u64>,
}

impl UnlimitedOperations {
    fn count(&self) -> usize {
        self.open + self.abandoned + self.ended.len()
    }

    fn end(&mut self, growth: Growth, operation: &RegisterOperation) {
        match (growth, operation.outcome) {
            // A refused addition has removed nothing.
            (Growth::Other, _) | (_, Some(OperationOutcome::Rejected)) => {}
            (Growth::Unlimited, None) => self.abandoned += 1,
            (Growth::Unlimited, Some(_)) => self.ended.push(operation.ended),
            (Growth::Limited, None) => {}
            (Growth::Limited, Some(_)) => self.ended.retain(|ended| *ended > operation.begun),
        }
    }
}

impl GrowthLimit {
    /// Returns how the value may grow.
    pub(crate) fn room(&self) -> GrowthRoom {
        GrowthRoom {
            entries: self.entries.count() < UNLIMITED_ITEMS_MAX && !self.may_be_old,
            pending: self.pending.count() < DELIVERIES_MAX && !self.may_be_old,
        }
    }

    fn both(&mut self, action: RegisterAction) -> [(&mut UnlimitedOperations, Growth); 2] {
        [(&mut self.entries, of_entries(action)), (&mut self.pending, of_pending(action))]
    }

    /// Records that an operation has begun.
    pub(crate) fn begin(&mut self, action: RegisterAction) {
        for (operations, growth) in self.both(action) {
            operations.open += usize::from(growth == Growth::Unlimited);
        }
    }

    /// Records that an operation is not open any more.
    pub(crate) fn finish(&mut self, action: RegisterAction) {
        for (operations, growth) in self.both(action) {
            operations.open -= usize::from(growth == Growth::Unlimited);
        }
    }

    /// Records an operation that was executed, or may be.
    pub(crate) fn end(&mut self, operation: &RegisterOperation) {
        for (operations, growth) in self.both(operation.action) {
            operations.end(growth, operation);
        }
    }

    /// Records that the value may have returned to an earlier state.
    pub(crate) fn lose(&mut self) {
        self.may_be_old = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{EntryId, NewEntry, RequestPlace};

    fn add(limit: AdditionLimit) -> RegisterAction {
        let new = NewEntry::Of(EntryId::new(1, 1).unwrap());
        RegisterAction::Part(PartAction::Stream(StreamAction::Add(new, limit)))
    }

    /// Runs an operation from one moment to another.
    fn run(
        limit: &mut GrowthLimit,
        action: RegisterAction,
        [begun, ended]: [u64; 2],
        outcome: Option<OperationOutcome>,
    ) {
        limit.begin(action);
        limit.finish(action);
        let place = RequestPlace::default();
        limit.end(&RegisterOperation { client: 0, begun, ended, place, action, outcome });
    }

    #[test]
    fn additions_with_a_limit_make_room_unless_they_are_refused_or_unknown() {
        let mut limit = GrowthLimit::default();
        let id = Some(OperationOutcome::Id(EntryId::new(1, 1).unwrap()));
        for at in 0..3 {
            assert!(limit.room().entries, "{at}");
            run(&mut limit, add(AdditionLimit::None), [10 * at, 10 * at + 5], id);
        }
        assert!(!limit.room().entries && limit.room().pending);
        run(&mut limit, add(AdditionLimit::Within), [40, 45], None);
        run(&mut limit, add(AdditionLimit::Within), [50, 55], Some(OperationOutcome::Rejected));
        run(&mut limit, add(AdditionLimit::Within), [3, 60], id);
        assert!(!limit.room().entries, "none of them has certainly made room");
        run(&mut limit, add(AdditionLimit::Behind), [70, 75], id);
        assert!(limit.room().entries);
        run(&mut limit, add(AdditionLimit::None), [80, 85], None);
        run(&mut limit, add(AdditionLimit::Behind), [90, 95], id);
        limit.begin(add(AdditionLimit::None));
        limit.begin(add(AdditionLimit::None));
        assert!(!limit.room().entries, "one may still take effect, and two are open");
    }

    #[test]
    fn deliveries_end_with_the_group() {
        let mut limit = GrowthLimit::default();
        let deliver = RegisterAction::Part(PartAction::Stream(StreamAction::Deliver(2)));
        let none = Some(OperationOutcome::Entries(crate::history::EntryIds::default()));
        run(&mut limit, deliver, [1, 2], none);
        run(&mut limit, deliver, [3, 4], none);
        assert!(!limit.room().pending && limit.room().entries);
        let reset = RegisterAction::Part(PartAction::Stream(StreamAction::ResetGroup));
        run(&mut limit, reset, [5, 6], Some(OperationOutcome::Done));
        assert!(limit.room().pending);
        limit.lose();
        assert!(!limit.room().pending && !limit.room().entries);
    }
}
