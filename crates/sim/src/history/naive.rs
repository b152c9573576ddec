//! Slow and simple twin of the checker, and a test that both give the same verdicts.
//!
//! The twin follows each operation individually, and every possible set of operations that have
//! taken effect. It merges, counts, discards and takes nothing early. An operation that begins when
//! a value has expired cannot have seen it, which is all that the twin knows of expired values.

use super::operations::{expired, outcome_on_parts};
use super::parts::{ItemsEnd, NumberedItems, NumberedParts, PARTS, PartAction, string};
use super::streams::{AdditionLimit, NewEntry, StreamAction};
use super::{
    EntryId, EntryIds, HistoryEvent, HistoryVerdict, Life, Lifetime, Lives, OperationOutcome,
    PendingSummary, RegisterAction, RegisterOperation, RegisterValue, RemainingTime, RequestPlace,
    after, check, effect, lifetime,
};
use std::collections::BTreeSet;

/// Value of the register, and the open operations that have taken effect.
type Plain = (RegisterValue, BTreeSet<usize>);

struct Naive<'h> {
    operations: &'h [RegisterOperation],
    lives: &'h Lives,
    /// Moment that is being checked.
    now: u64,
    open: BTreeSet<usize>,
    possible: BTreeSet<Plain>,
    ever: BTreeSet<RegisterValue>,
}

impl Naive<'_> {
    fn explains(operations: &[RegisterOperation], losses: &[u64], lives: &Lives) -> bool {
        let no_lives = Lives::default();
        let lives = if losses.is_empty() { lives } else { &no_lives };
        let mut moments: Vec<(u64, HistoryEvent)> =
            losses.iter().map(|&moment| (moment, HistoryEvent::Loss)).collect();
        for (place, operation) in operations.iter().enumerate() {
            moments.push((operation.begun, HistoryEvent::Begins(place)));
            if operation.outcome.is_some() {
                moments.push((operation.ended, HistoryEvent::Ends(place)));
            }
        }
        moments.sort_unstable();
        let mut naive = Naive {
            operations,
            lives,
            now: 0,
            open: BTreeSet::new(),
            possible: BTreeSet::from([(None, BTreeSet::new())]),
            ever: BTreeSet::from([None]),
        };
        moments.into_iter().all(|(moment, what)| {
            naive.now = moment;
            naive.goes_on(what)
        })
    }

    fn goes_on(&mut self, what: HistoryEvent) -> bool {
        match what {
            HistoryEvent::Begins(operation) => drop(self.open.insert(operation)),
            HistoryEvent::Ends(operation) => {
                self.close();
                self.possible.retain(|(_, taken)| taken.contains(&operation));
                let done = std::mem::take(&mut self.possible).into_iter();
                self.possible =
                    done.map(|(value, taken)| (value, without(taken, operation))).collect();
                self.open.remove(&operation);
            }
            HistoryEvent::Loss => {
                self.close();
                let with_each = |(_, taken): &Plain| -> Vec<Plain> {
                    self.ever.iter().map(|&value| (value, taken.clone())).collect()
                };
                self.possible = self.possible.iter().flat_map(with_each).collect();
            }
        }
        !self.possible.is_empty()
    }

    /// Adds everything that can follow from the possible states.
    fn close(&mut self) {
        let mut next: Vec<Plain> = self.possible.iter().cloned().collect();
        while let Some((value, taken)) = next.pop() {
            self.ever.insert(value);
            let mut found = Vec::new();
            let moments = lifetime(value).map(|lifetime| self.lives.moments(lifetime));
            if moments.is_some_and(|it| it.is_none_or(|moments| *moments.start() <= self.now)) {
                found.push((expired(value), taken.clone()));
            }
            let gone = moments.flatten().map_or(u64::MAX, |moments| *moments.end());
            for &place in self.open.iter().filter(|place| self.may_be_next(**place, &taken)) {
                let operation = &self.operations[place];
                if operation.begun > gone {
                    continue;
                }
                let values = match operation.outcome {
                    Some(_) => after(value, operation, self.lives),
                    None => [Some(effect(value, operation.action)), None],
                };
                let taken: BTreeSet<usize> = taken.iter().copied().chain([place]).collect();
                found.extend(values.into_iter().flatten().map(|value| (value, taken.clone())));
            }
            next.extend(found.into_iter().filter(|new| self.possible.insert(new.clone())));
        }
    }

    fn may_be_next(&self, place: usize, taken: &BTreeSet<usize>) -> bool {
        let operation = &self.operations[place];
        let is_before = |other: &RegisterOperation| {
            operation.outcome.is_some()
                && other.outcome.is_some()
                && other.place.connection == operation.place.connection
                && other.place.request < operation.place.request
        };
        let mut waiting = self.open.iter().filter(|other| !taken.contains(other));
        !taken.contains(&place) && !waiting.any(|other| is_before(&self.operations[*other]))
    }
}

fn without(mut taken: BTreeSet<usize>, operation: usize) -> BTreeSet<usize> {
    taken.remove(&operation);
    taken
}

/// Makes requests on one connection begin in their order.
fn begin_in_order(operations: &mut [RegisterOperation]) {
    operations.sort_unstable_by_key(|operation| operation.place);
    for later in 1..operations.len() {
        let earlier = operations[later - 1];
        if earlier.place.connection == operations[later].place.connection {
            operations[later].begun = operations[later].begun.max(earlier.begun + 1);
        }
    }
    operations.sort_unstable_by_key(|operation| operation.client);
}

/// Operations of a history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HistoryKind {
    Whole,
    /// The same, with increments.
    Counted,
    Fields,
    /// The same, with a field that expires.
    TimedFields,
    Items,
    Scores,
    Stream,
}

/// Most pushes without a limit in a history.
const PUSHES_MAX: u32 = 4;

/// Register on which operations take effect for real, one at a time. Its clock shows the moment.
struct Real {
    random: fastrand::Rng,
    value: RegisterValue,
    /// Moment at which the value expires. Without one, an expiring value disappears at random.
    deadline: Option<u64>,
    ever: Vec<RegisterValue>,
    next: u64,
    /// Number of pushes without a limit so far.
    pushes: u32,
    /// Set if the checkers learn by which clock values expire.
    has_clock: bool,
}

/// Returns the length of a time to live.
fn millis(number: u64) -> u64 {
    100 + number * 7_919 % 2_000
}

impl Real {
    /// Returns a possible history, and the moments of losses.
    fn history(&mut self, count: usize) -> (Vec<RegisterOperation>, Vec<u64>) {
        let mut operations: Vec<RegisterOperation> = Vec::new();
        // Moments at which the operations take effect; no moment is used twice.
        let mut effects: Vec<(u64, Option<usize>)> = Vec::new();
        let kinds = [HistoryKind::Whole; 4].into_iter().chain([
            HistoryKind::Counted,
            HistoryKind::Fields,
            HistoryKind::TimedFields,
            HistoryKind::TimedFields,
            HistoryKind::Items,
            HistoryKind::Scores,
            HistoryKind::Stream,
        ]);
        let kinds: Vec<HistoryKind> = kinds.collect();
        let kind = kinds[self.random.usize(..kinds.len())];
        // Short operations show exactly when values expire.
        let longest = if self.has_clock { 3 } else { 12 };
        for client in 0..count {
            let action = self.action(kind);
            let begun =
                self.random.u64(..if self.has_clock { 30 } else { 60 }) * 100 + client as u64;
            let at = begun + 20 + 100 * self.random.u64(..longest);
            let ended = at + 20 + 100 * self.random.u64(..longest);
            let place = RequestPlace { connection: self.random.u64(..4), request: at };
            operations.push(RegisterOperation {
                client,
                begun,
                ended,
                place,
                action,
                outcome: None,
            });
            if self.random.u8(..12) > 0 {
                effects.push((at, Some(client)));
            }
        }
        let losses =
            if self.random.u8(..4) == 0 { vec![self.random.u64(..70) * 100 + 99] } else { vec![] };
        effects.extend(losses.iter().map(|&moment| (moment, None)));
        effects.sort_unstable();
        begin_in_order(&mut operations);
        for (moment, what) in effects {
            match what {
                Some(place) => {
                    let action = operations[place].action;
                    operations[place].outcome = self.execute(action, moment);
                }
                None => {
                    self.value = self.ever[self.random.usize(..self.ever.len())];
                    self.deadline = None;
                }
            }
        }
        (operations, losses)
    }

    fn action(&mut self, kind: HistoryKind) -> RegisterAction {
        self.next += 1;
        let new = self.next;
        if let Some(action) = self.action_on_parts(kind) {
            return action;
        }
        let old = 1 + self.random.u64(..new);
        let lifetime = match self.random.bool() {
            true => Lifetime::After(new),
            false => Lifetime::Until(new, self.random.u64(..40) * 100),
        };
        let first = if self.has_clock && self.random.bool() { 13 } else { 0 };
        match self.random.u8(first..24) {
            0..2 | 20 | 21 => RegisterAction::Read,
            2 => RegisterAction::Probe,
            3..5 => RegisterAction::Write(new),
            5 | 19 => RegisterAction::WriteExpiring(new, lifetime),
            6 => RegisterAction::WriteIfAbsent(new),
            7 => RegisterAction::Swap(old, new),
            8 => RegisterAction::Exchange(new),
            9 if kind == HistoryKind::Counted => RegisterAction::Increment,
            9 | 10 => RegisterAction::Delete,
            11 => RegisterAction::Take,
            12 => RegisterAction::Flush,
            13 | 14 => RegisterAction::Expire(lifetime),
            15 => RegisterAction::ReadExpiring(lifetime),
            16 => RegisterAction::Persist,
            17 => RegisterAction::ReadPersisting,
            18 => RegisterAction::WriteKeeping(new),
            _ => RegisterAction::ReadRemaining,
        }
    }

    /// Draws an action on parts for three of four operations of such a history. The others are on the
    /// whole value or its time to live.
    fn action_on_parts(&mut self, kind: HistoryKind) -> Option<RegisterAction> {
        let (new, part) = (self.next as u16, self.random.u8(..PARTS as u8));
        let parts = NumberedParts::default().with(usize::from(part), Some(self.next));
        let other = self.random.usize(..PARTS);
        let parts =
            if self.random.bool() { parts } else { parts.with(other, Some(self.next + 20)) };
        let mut items = NumberedItems::default();
        let are_added = (0..self.random.u8(1..4)).all(|more| items.push(new as u8 + 30 + more));
        assert!(are_added, "a new list is short");
        let whole = match kind {
            HistoryKind::Whole | HistoryKind::Counted => return None,
            HistoryKind::Stream => None,
            HistoryKind::Items => items.number(),
            HistoryKind::Fields if self.random.u8(..4) == 0 => Some(string(new)),
            HistoryKind::TimedFields if self.random.u8(..4) == 0 => Some(string(new)),
            HistoryKind::Fields | HistoryKind::TimedFields | HistoryKind::Scores => parts.number(),
        };
        let lifetime = Lifetime::After(self.next);
        match self.random.u8(..16) {
            0 | 1 if kind != HistoryKind::Stream => return Some(RegisterAction::Read),
            2 => return Some(RegisterAction::Delete),
            3 => return Some(RegisterAction::Probe),
            4 if whole.is_some() => return whole.map(RegisterAction::Write),
            5 if kind != HistoryKind::TimedFields => {
                return Some(RegisterAction::Expire(lifetime));
            }
            _ => {}
        }
        Some(RegisterAction::Part(match (kind, self.random.u8(..8)) {
            (HistoryKind::Fields, 0..3) => PartAction::SetFields(parts),
            (HistoryKind::Fields, 3) => PartAction::SetFieldIfAbsent(part, new),
            (HistoryKind::Fields, 4) => PartAction::RemoveFields(parts),
            (HistoryKind::Fields, 5) => PartAction::ReadField(part),
            (HistoryKind::Fields, 6) => PartAction::ReadFields,
            (HistoryKind::Fields, _) => PartAction::CountFields,
            (HistoryKind::TimedFields, choice) => match (choice, self.random.u8(..4)) {
                (0, _) => PartAction::SetFieldExpiring(new, lifetime),
                (1, _) => PartAction::ExpireField(lifetime),
                (2, _) => PartAction::ReadFieldRemaining,
                (3, 0 | 1) => PartAction::PersistField,
                (3, _) => PartAction::ReadFieldExpiring(lifetime),
                (4, 0 | 1) => PartAction::SetFields(parts),
                (4, _) => PartAction::SetFieldIfAbsent(0, new),
                (5, _) => PartAction::RemoveFields(parts),
                (6, _) => PartAction::ReadField(0),
                (_, _) => PartAction::ReadFields,
            },
            (HistoryKind::Items, 0..2) if self.pushes < PUSHES_MAX => {
                self.pushes += 1;
                PartAction::Push(new as u8)
            }
            (HistoryKind::Items, 0..4) => PartAction::PushLimited(new as u8),
            (HistoryKind::Items, 4) => PartAction::Pop(ItemsEnd::First),
            (HistoryKind::Items, 5) => PartAction::Pop(ItemsEnd::Last),
            (HistoryKind::Items, 6) => PartAction::Rotate,
            (HistoryKind::Items, _) => PartAction::CountItems,
            (HistoryKind::Stream, choice) => PartAction::Stream(self.action_on_stream(choice)),
            (_, 0..2) => PartAction::SetScore(part, new % 3),
            (_, 2 | 3) => PartAction::AddScore(part),
            (_, 4) => PartAction::RemoveMember(part),
            (_, 5) => PartAction::ReadScore(part),
            (_, 6) => PartAction::PopLowest,
            (_, _) => PartAction::CountMembers,
        }))
    }

    fn action_on_stream(&mut self, choice: u8) -> StreamAction {
        let id = EntryId::new(1, 1 + self.random.u64(..self.next)).expect("a short id");
        let new = match self.random.u8(..3) {
            0 => NewEntry::Of(id),
            _ => NewEntry::At(self.random.u16(1..3)),
        };
        let limit = match self.random.u8(..3) {
            0 if self.pushes < PUSHES_MAX => AdditionLimit::None,
            0 | 1 => AdditionLimit::Within,
            _ => AdditionLimit::Behind,
        };
        self.pushes += u32::from(limit == AdditionLimit::None);
        match (choice, self.random.u8(..6)) {
            (0..3, _) => StreamAction::Add(new, limit),
            (3, 0..3) => StreamAction::CreateGroup { at_end: self.random.bool() },
            (3, 3) => StreamAction::ResetGroup,
            (3, _) => StreamAction::Rename,
            (4, _) => StreamAction::Deliver(self.random.u8(1..3)),
            (5, 0 | 1) => StreamAction::Acknowledge(id),
            (5, 2) => StreamAction::Replace(id),
            (5, 3) => StreamAction::Trim(self.random.u8(..3)),
            (5, _) => StreamAction::Remove(id),
            (_, 0) => StreamAction::Count,
            (_, 1) => StreamAction::Oldest(2),
            (_, 2) => StreamAction::Newest(1),
            (_, 3) => StreamAction::Redeliver,
            (_, _) => StreamAction::Pending,
        }
    }

    /// Executes an action and returns its outcome, or `None` if the client has given up.
    fn execute(&mut self, action: RegisterAction, now: u64) -> Option<OperationOutcome> {
        let is_gone = match self.deadline {
            Some(deadline) => deadline <= now,
            None => lifetime(self.value).is_some() && self.random.bool(),
        };
        if is_gone {
            self.value = expired(self.value);
            self.deadline = None;
        }
        let before = self.value;
        self.value = effect(before, action);
        self.ever.push(self.value);
        let remaining = self.deadline.map_or(1, |deadline| deadline.saturating_sub(now));
        if let Some(lifetime) = action.lifetime().filter(|_| self.value.is_some()) {
            self.deadline = match lifetime {
                Lifetime::After(number) => Some(now + millis(number)),
                Lifetime::Until(_, at) => Some(at),
                Lifetime::Unknown => None,
            };
        }
        self.deadline = self.deadline.filter(|_| self.has_clock && lifetime(self.value).is_some());
        Some(match action {
            RegisterAction::Read
            | RegisterAction::Exchange(_)
            | RegisterAction::Take
            | RegisterAction::ReadExpiring(_)
            | RegisterAction::ReadPersisting => {
                OperationOutcome::Value(before.map(|value| value.number))
            }
            RegisterAction::Probe | RegisterAction::Delete | RegisterAction::Expire(_) => {
                OperationOutcome::Applied(before.is_some())
            }
            RegisterAction::Persist => OperationOutcome::Applied(lifetime(before).is_some()),
            RegisterAction::ReadRemaining => OperationOutcome::Remaining(match before {
                None => RemainingTime::NoValue,
                Some(value) if value.lifetime.is_none() => RemainingTime::Endless,
                Some(_) => RemainingTime::Millis(remaining),
            }),
            RegisterAction::Write(_)
            | RegisterAction::WriteExpiring(..)
            | RegisterAction::WriteKeeping(_) => OperationOutcome::Done,
            RegisterAction::WriteIfAbsent(_) => OperationOutcome::Applied(before.is_none()),
            RegisterAction::Swap(old, _) => {
                OperationOutcome::Applied(before.is_some_and(|value| value.number == old))
            }
            RegisterAction::Increment => {
                OperationOutcome::Number(self.value.map_or(0, |value| value.number))
            }
            RegisterAction::Part(part) => match outcome_on_parts(before, part) {
                OperationOutcome::Remaining(RemainingTime::Millis(_)) => {
                    OperationOutcome::Remaining(RemainingTime::Millis(remaining))
                }
                outcome => outcome,
            },
            RegisterAction::Flush => OperationOutcome::Applied(self.random.bool()),
        })
        .filter(|_| self.random.u8(..if self.has_clock { 12 } else { 3 }) > 0)
    }

    /// Returns the bounds of the times to live, by a clock that shows the moment.
    fn lives(&self, operations: &[RegisterOperation]) -> Lives {
        let mut lives = Lives::default();
        let answered = operations.iter().filter(|it| self.has_clock && it.outcome.is_some());
        for operation in answered {
            let RegisterOperation { begun, ended, action, outcome, .. } = *operation;
            let after = |millis| begun + millis..=ended + millis;
            if let Some(lifetime) = action.lifetime() {
                let deadline = match lifetime {
                    Lifetime::After(number) => after(millis(number)),
                    Lifetime::Until(_, at) => at..=at,
                    Lifetime::Unknown => continue,
                };
                let last = (deadline.end().saturating_sub(1)).max(ended);
                let life = Life { moments: *deadline.start()..=last, deadline };
                lives.given.insert(lifetime, life);
            }
            if let Some(OperationOutcome::Remaining(RemainingTime::Millis(millis))) = outcome {
                lives.shown.insert(begun, after(millis));
            }
        }
        lives
    }

    /// Falsifies one outcome.
    fn lie(&mut self, operations: &mut [RegisterOperation]) {
        let at = self.random.usize(..operations.len());
        let shown = 1 + self.random.u64(..self.next);
        operations[at].outcome = match operations[at].outcome {
            Some(OperationOutcome::Value(Some(_))) if self.random.bool() => {
                Some(OperationOutcome::Value(None))
            }
            Some(OperationOutcome::Value(_)) => Some(OperationOutcome::Value(Some(shown))),
            Some(OperationOutcome::Applied(done)) => Some(OperationOutcome::Applied(!done)),
            Some(OperationOutcome::Number(number)) => Some(OperationOutcome::Number(number + 1)),
            Some(OperationOutcome::Remaining(_)) => {
                let endless = RemainingTime::Endless;
                let some = RemainingTime::Millis(self.random.u64(..2_000));
                let lies = [RemainingTime::NoValue, endless, some, some];
                Some(OperationOutcome::Remaining(lies[self.random.usize(..lies.len())]))
            }
            Some(OperationOutcome::WrongType) => Some(OperationOutcome::Number(0)),
            Some(OperationOutcome::Id(id)) => Some(match self.random.bool() {
                true => OperationOutcome::Id(id.next()),
                false => OperationOutcome::Rejected,
            }),
            Some(OperationOutcome::Entries(ids)) => {
                let fewer = EntryIds::of(ids.as_slice().iter().copied().skip(1));
                fewer.map(OperationOutcome::Entries)
            }
            Some(OperationOutcome::Pending(PendingSummary { count, ends })) => {
                let summary = PendingSummary { count: count + 1, ends };
                Some(OperationOutcome::Pending(summary))
            }
            Some(OperationOutcome::Rejected) => match operations[at].action {
                RegisterAction::Part(PartAction::Stream(StreamAction::Deliver(_))) => {
                    Some(OperationOutcome::Entries(EntryIds::default()))
                }
                _ => None,
            },
            Some(OperationOutcome::Stream(_) | OperationOutcome::Done) | None => None,
        };
    }
}

#[test]
fn the_checker_says_what_the_plain_one_says() {
    let (mut explained, mut violated) = (0, 0);
    for seed in 0..8_000 {
        let random = fastrand::Rng::with_seed(seed);
        let has_clock = seed % 2 == 0;
        let (value, deadline, ever) = (None, None, vec![None]);
        let mut real = Real { random, value, deadline, ever, next: 0, pushes: 0, has_clock };
        let count = real.random.usize(2..10);
        let (mut operations, losses) = real.history(count);
        let lies = real.random.usize(..3);
        (0..lies).for_each(|_| real.lie(&mut operations));
        let lives = real.lives(&operations);
        let verdict = check(&operations, &losses, &lives);
        let is_explained = Naive::explains(&operations, &losses, &lives);
        let expected = if is_explained { &mut explained } else { &mut violated };
        *expected += 1;
        assert!(lies > 0 || is_explained, "seed {seed}: this has happened, but {verdict:?}");
        let agrees = match &verdict {
            HistoryVerdict::Linearizable => is_explained,
            HistoryVerdict::Violated(_) => !is_explained,
            HistoryVerdict::GaveUp => false,
        };
        let text: String = operations.iter().map(|one| format!("{one}\n")).collect();
        assert!(agrees, "seed {seed}: {verdict:?} of\n{text}with losses {losses:?}, {lives:?}");
    }
    assert!(explained > 1_000 && violated > 500, "{explained} explained, {violated} violated");
}
