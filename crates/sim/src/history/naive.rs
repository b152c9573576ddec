//! Slow and simple twin of the checker, and a test that both give the same verdicts.
//!
//! The twin follows each operation individually, and every possible set of operations that have
//! taken effect. It merges, counts, discards and takes nothing early.

use super::{
    EXPIRING, HistoryEvent, HistoryVerdict, Lives, OperationOutcome, RegisterAction,
    RegisterOperation, RegisterValue, RequestPlace, after, check, effect, may_expire,
};
use std::collections::BTreeSet;

/// Value of the register, and the open operations that have taken effect.
type Plain = (RegisterValue, BTreeSet<usize>);

struct Naive<'h> {
    operations: &'h [RegisterOperation],
    open: BTreeSet<usize>,
    possible: BTreeSet<Plain>,
    ever: BTreeSet<RegisterValue>,
}

impl Naive<'_> {
    fn explains(operations: &[RegisterOperation], losses: &[u64]) -> bool {
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
            open: BTreeSet::new(),
            possible: BTreeSet::from([(None, BTreeSet::new())]),
            ever: BTreeSet::from([None]),
        };
        moments.into_iter().all(|(_, what)| naive.goes_on(what))
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
            if may_expire(value) {
                found.push((None, taken.clone()));
            }
            for &place in self.open.iter().filter(|place| self.may_be_next(**place, &taken)) {
                let operation = &self.operations[place];
                let values = match operation.outcome {
                    Some(_) => after(value, operation),
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

/// Register on which operations take effect for real, one at a time.
struct Real {
    random: fastrand::Rng,
    value: RegisterValue,
    ever: Vec<RegisterValue>,
    next: u64,
}

impl Real {
    /// Returns a possible history, and the moments of losses.
    fn history(&mut self, count: usize) -> (Vec<RegisterOperation>, Vec<u64>) {
        let mut operations: Vec<RegisterOperation> = Vec::new();
        // Moments at which the operations take effect; no moment is used twice.
        let mut effects: Vec<(u64, Option<usize>)> = Vec::new();
        let counts = self.random.u8(..4) == 0;
        for client in 0..count {
            let action = self.action(counts);
            let begun = self.random.u64(..60) * 100 + client as u64;
            let at = begun + 20 + 100 * self.random.u64(..12);
            let ended = at + 20 + 100 * self.random.u64(..12);
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
        for (_, what) in effects {
            match what {
                Some(place) => operations[place].outcome = self.execute(operations[place].action),
                None => self.value = self.ever[self.random.usize(..self.ever.len())],
            }
        }
        (operations, losses)
    }

    fn action(&mut self, counts: bool) -> RegisterAction {
        self.next += 1;
        let new = self.next;
        let old = 1 + self.random.u64(..new);
        match self.random.u8(..14) {
            0..2 => RegisterAction::Read,
            2 => RegisterAction::Probe,
            3..5 => RegisterAction::Write(new),
            5 => RegisterAction::WriteExpiring(EXPIRING | new),
            6 => RegisterAction::WriteIfAbsent(new),
            7 => RegisterAction::Swap(old, new),
            8 => RegisterAction::Exchange(new),
            9 if counts => RegisterAction::Increment,
            9 | 10 => RegisterAction::Delete,
            11 => RegisterAction::Take,
            _ => RegisterAction::Flush,
        }
    }

    /// Executes an action and returns its outcome, or `None` if the client has given up.
    fn execute(&mut self, action: RegisterAction) -> Option<OperationOutcome> {
        if may_expire(self.value) && self.random.bool() {
            self.value = None;
        }
        let before = self.value;
        self.value = effect(before, action);
        self.ever.push(self.value);
        let outcome = match action {
            RegisterAction::Read | RegisterAction::Exchange(_) | RegisterAction::Take => {
                OperationOutcome::Value(before)
            }
            RegisterAction::Probe | RegisterAction::Delete => {
                OperationOutcome::Applied(before.is_some())
            }
            RegisterAction::Write(_) | RegisterAction::WriteExpiring(_) => OperationOutcome::Done,
            RegisterAction::WriteIfAbsent(_) => OperationOutcome::Applied(before.is_none()),
            RegisterAction::Swap(old, _) => OperationOutcome::Applied(before == Some(old)),
            RegisterAction::Increment => OperationOutcome::Number(self.value.unwrap_or(0)),
            RegisterAction::Flush => OperationOutcome::Applied(self.random.bool()),
        };
        (self.random.u8(..3) > 0).then_some(outcome)
    }

    /// Falsifies one outcome.
    fn lie(&mut self, operations: &mut [RegisterOperation]) {
        let at = self.random.usize(..operations.len());
        let shown = 1 + self.random.u64(..self.next);
        let shown = if self.random.u8(..4) == 0 { EXPIRING | shown } else { shown };
        operations[at].outcome = match operations[at].outcome {
            Some(OperationOutcome::Value(Some(_))) if self.random.bool() => {
                Some(OperationOutcome::Value(None))
            }
            Some(OperationOutcome::Value(_)) => Some(OperationOutcome::Value(Some(shown))),
            Some(OperationOutcome::Applied(done)) => Some(OperationOutcome::Applied(!done)),
            Some(OperationOutcome::Number(number)) => Some(OperationOutcome::Number(number + 1)),
            Some(OperationOutcome::Done) | None => None,
        };
    }
}

#[test]
fn the_checker_says_what_the_plain_one_says() {
    let (mut explained, mut violated) = (0, 0);
    for seed in 0..4_000 {
        let random = fastrand::Rng::with_seed(seed);
        let mut real = Real { random, value: None, ever: vec![None], next: 0 };
        let count = real.random.usize(2..10);
        let (mut operations, losses) = real.history(count);
        let lies = real.random.usize(..3);
        (0..lies).for_each(|_| real.lie(&mut operations));
        let verdict = check(&operations, &losses, &Lives::new());
        let is_explained = Naive::explains(&operations, &losses);
        let expected = if is_explained { &mut explained } else { &mut violated };
        *expected += 1;
        assert!(lies > 0 || is_explained, "seed {seed}: this has happened, but {verdict:?}");
        let agrees = match &verdict {
            HistoryVerdict::Linearizable => is_explained,
            HistoryVerdict::Violated(_) => !is_explained,
            HistoryVerdict::GaveUp => false,
        };
        let text: String = operations.iter().map(|one| format!("{one}\n")).collect();
        assert!(agrees, "seed {seed}: {verdict:?} of\n{text}with losses {losses:?}");
    }
    assert!(explained > 1_000 && violated > 500, "{explained} explained, {violated} violated");
}
