//! Whether what clients saw can have happened: linearizability, register by register.
//!
//! A register is one key, or a pair of keys that is only written as a whole. Its operations are
//! followed in real time. A *configuration* is a value that the register may have, together with
//! the open operations that have taken effect already; the checker keeps every possible one. When
//! an operation returns, it must have taken effect: configurations in which it cannot have, with
//! the outcome that it reported, die. If none is left, no order explains the history.
//!
//! With n clients an instant has at most n open operations, so the configurations are few; if they
//! are many after all, the verdict is [`Verdict::GaveUp`], never a silent pass.

use std::collections::BTreeSet;
use std::fmt;

/// What a client wants of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Its value.
    Read,
    /// It has this value.
    Write(u64),
    /// It has this value, and loses it some time afterwards.
    WriteExpiring(u64),
    /// It has this value if it had none.
    WriteIfAbsent(u64),
    /// It has the second value if it had the first.
    Swap(u64, u64),
    /// One more than before; none counts as 0.
    Increment,
    /// It has no value; tell whether it had one.
    Delete,
    /// It has no value.
    DeleteBlindly,
}

/// What the client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value.
    Value(Option<u64>),
    /// It was done.
    Done,
    /// Whether it was done.
    Applied(bool),
    /// The new value.
    Number(u64),
}

/// One finished operation. Moments are positions in the order of all beginnings and ends.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Who; below [`CLIENTS_MAX`]. One operation at a time.
    pub client: usize,
    /// When it was begun.
    pub begun: u64,
    /// When its outcome was known.
    pub ended: u64,
    /// What was wanted.
    pub action: Action,
    /// What came of it.
    pub outcome: Outcome,
}

/// Whether a history can have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// In some order, yes.
    Linearizable,
    /// In no order. The text shows the operation that cannot be explained and those around it.
    Violated(String),
    /// There were too many possibilities to follow.
    GaveUp,
}

/// Clients that a history may have: open operations are bits of a word.
pub const CLIENTS_MAX: usize = 64;

/// Configurations looked at for one return before the checker gives up.
const CONFIGURATIONS_MAX: usize = 100_000;

type Value = Option<u64>;

/// A value that the register may have, and which open operations it contains already.
type Configuration = (Value, u64);

/// Values that are written to expire carry this bit.
pub const EXPIRING: u64 = 1 << 50;

/// Whether the register may lose this value by itself: it may at any moment, since clocks differ, but
/// it never gets it back.
fn may_expire(value: Value) -> bool {
    value.is_some_and(|value| value & EXPIRING != 0)
}

/// Judges the history of one register that had no value at first.
pub fn check(operations: &[Operation]) -> Verdict {
    let mut moments: Vec<(u64, usize)> = Vec::with_capacity(2 * operations.len());
    for (place, operation) in operations.iter().enumerate() {
        assert!(operation.begun < operation.ended && operation.client < CLIENTS_MAX);
        moments.push((operation.begun, place));
        moments.push((operation.ended, place));
    }
    moments.sort_unstable();
    let mut open: Vec<Option<usize>> = vec![None; CLIENTS_MAX];
    let mut possible: BTreeSet<Configuration> = BTreeSet::from([(None, 0)]);
    for (moment, place) in moments {
        let operation = &operations[place];
        if moment == operation.begun {
            assert!(open[operation.client].is_none(), "a client has one operation at a time");
            open[operation.client] = Some(place);
            continue;
        }
        let pending: Vec<&Operation> = open.iter().flatten().map(|&at| &operations[at]).collect();
        match end(&possible, &pending, operation.client) {
            None => return Verdict::GaveUp,
            Some(left) if left.is_empty() => {
                return Verdict::Violated(describe(operations, place, &possible));
            }
            Some(left) => possible = left,
        }
        open[operation.client] = None;
    }
    Verdict::Linearizable
}

/// What is still possible once this client's operation has taken effect.
fn end(
    possible: &BTreeSet<Configuration>,
    pending: &[&Operation],
    client: usize,
) -> Option<BTreeSet<Configuration>> {
    let bit = 1u64 << client;
    let mut left = BTreeSet::new();
    let mut seen = possible.clone();
    let mut next: Vec<Configuration> = possible.iter().copied().collect();
    while let Some((value, taken)) = next.pop() {
        if taken & bit != 0 {
            left.insert((value, taken & !bit));
            continue;
        }
        if may_expire(value) && seen.insert((None, taken)) {
            next.push((None, taken));
        }
        for operation in pending.iter().filter(|operation| taken & (1 << operation.client) == 0) {
            let Some(after) = apply(value, operation.action, operation.outcome) else { continue };
            let configuration = (after, taken | 1 << operation.client);
            if seen.insert(configuration) {
                next.push(configuration);
            }
        }
        if seen.len() > CONFIGURATIONS_MAX {
            return None;
        }
    }
    Some(left)
}

/// The value after an action with this outcome; `None` if it cannot have had it.
fn apply(value: Value, action: Action, outcome: Outcome) -> Option<Value> {
    match (action, outcome) {
        (Action::Read, Outcome::Value(seen)) => (seen == value).then_some(value),
        (Action::Write(new) | Action::WriteExpiring(new), Outcome::Done) => Some(Some(new)),
        (Action::WriteIfAbsent(new), Outcome::Applied(done)) => {
            (done == value.is_none()).then_some(if done { Some(new) } else { value })
        }
        (Action::Swap(old, new), Outcome::Applied(done)) => {
            (done == (value == Some(old))).then_some(if done { Some(new) } else { value })
        }
        (Action::Increment, Outcome::Number(number)) => {
            (number == value.unwrap_or(0) + 1).then_some(Some(number))
        }
        (Action::Delete, Outcome::Applied(done)) => (done == value.is_some()).then_some(None),
        (Action::DeleteBlindly, Outcome::Done) => Some(None),
        (action, outcome) => unreachable!("{action:?} reported {outcome:?}"),
    }
}

/// Operations shown before the one that cannot be explained.
const SHOWN_BEFORE: usize = 12;

fn describe(
    operations: &[Operation],
    culprit: usize,
    possible: &BTreeSet<Configuration>,
) -> String {
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_unstable_by_key(|&place| operations[place].begun);
    let at = order.iter().position(|&place| place == culprit).unwrap_or(0);
    let ended = operations[culprit].ended;
    let around = order[at.saturating_sub(SHOWN_BEFORE)..]
        .iter()
        .filter(|&&place| operations[place].begun < ended);
    let values: BTreeSet<Value> = possible.iter().map(|&(value, _)| value).collect();
    let mut text = format!("the register may hold {values:?}; no order explains the marked line\n");
    for &place in around {
        let mark = if place == culprit { "→" } else { " " };
        text.push_str(&format!("{mark} {}\n", operations[place]));
    }
    text
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { client, begun, ended, action, outcome } = self;
        write!(f, "[{begun}-{ended}] client {client}: {action:?} = {outcome:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(list: &[(usize, u64, u64, Action, Outcome)]) -> Verdict {
        let operation = |&(client, begun, ended, action, outcome): &_| Operation {
            client,
            begun,
            ended,
            action,
            outcome,
        };
        check(&list.iter().map(operation).collect::<Vec<_>>())
    }

    fn is_violated(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Violated(_))
    }

    #[test]
    fn operations_one_after_the_other_are_taken_at_their_word() {
        let good = [
            (0, 1, 2, Action::Read, Outcome::Value(None)),
            (1, 3, 4, Action::Write(10), Outcome::Done),
            (0, 5, 6, Action::Increment, Outcome::Number(11)),
            (1, 7, 8, Action::WriteIfAbsent(20), Outcome::Applied(false)),
            (0, 9, 10, Action::Swap(11, 30), Outcome::Applied(true)),
            (1, 11, 12, Action::Delete, Outcome::Applied(true)),
            (0, 13, 14, Action::Delete, Outcome::Applied(false)),
            (0, 15, 16, Action::WriteIfAbsent(40), Outcome::Applied(true)),
            (0, 17, 18, Action::DeleteBlindly, Outcome::Done),
            (1, 19, 20, Action::Increment, Outcome::Number(1)),
        ];
        assert_eq!(history(&good), Verdict::Linearizable);
        for broken in 0..good.len() {
            let mut bad = good;
            bad[broken].4 = match bad[broken].4 {
                Outcome::Value(_) => Outcome::Value(Some(99)),
                Outcome::Applied(done) => Outcome::Applied(!done),
                Outcome::Number(number) => Outcome::Number(number + 1),
                Outcome::Done => continue,
            };
            assert!(is_violated(&history(&bad)), "line {broken} cannot be");
        }
    }

    #[test]
    fn operations_at_the_same_time_may_take_effect_in_either_order() {
        for seen in [None, Some(5)] {
            let history = history(&[
                (0, 1, 4, Action::Write(5), Outcome::Done),
                (1, 2, 3, Action::Read, Outcome::Value(seen)),
            ]);
            assert_eq!(history, Verdict::Linearizable, "{seen:?}");
        }
    }

    #[test]
    fn what_was_seen_once_is_not_unseen_while_the_write_goes_on() {
        let history = history(&[
            (0, 1, 10, Action::Write(5), Outcome::Done),
            (1, 2, 3, Action::Read, Outcome::Value(Some(5))),
            (2, 4, 5, Action::Read, Outcome::Value(None)),
        ]);
        assert!(is_violated(&history));
    }

    #[test]
    fn two_increments_never_report_the_same_number() {
        let history = history(&[
            (0, 1, 4, Action::Increment, Outcome::Number(1)),
            (1, 2, 3, Action::Increment, Outcome::Number(1)),
        ]);
        assert!(is_violated(&history));
    }

    #[test]
    fn a_value_that_expires_may_go_but_does_not_come_back() {
        let value = EXPIRING | 5;
        let write = (0, 1, 2, Action::WriteExpiring(value), Outcome::Done);
        let read = |at, seen| (1, at, at + 1, Action::Read, Outcome::Value(seen));
        let good = [write, read(3, Some(value)), read(5, None)];
        assert_eq!(history(&good), Verdict::Linearizable);
        assert!(is_violated(&history(&[write, read(3, None), read(5, Some(value))])));
        let other = (0, 1, 2, Action::Write(5), Outcome::Done);
        assert!(is_violated(&history(&[other, read(3, None)])));
    }

    #[test]
    fn a_stale_read_is_found() {
        let history = history(&[
            (0, 1, 2, Action::Write(1), Outcome::Done),
            (0, 3, 4, Action::Write(2), Outcome::Done),
            (1, 5, 6, Action::Read, Outcome::Value(Some(1))),
        ]);
        assert!(is_violated(&history));
    }
}
