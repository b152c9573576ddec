//! Whether what clients saw can have happened: linearizability, register by register.
//!
//! A register is one key, or a pair of keys that is only written as a whole. Its operations are
//! followed in real time. A *configuration* is a value that the register may have, together with
//! the open operations that have taken effect already; the checker keeps every possible one. When
//! an operation returns, it must have taken effect: configurations in which it cannot have, with
//! the outcome that it reported, die. If none is left, no order explains the history.
//!
//! Requests of one connection take effect in the order in which they were sent: a configuration in
//! which a later one has and an earlier one has not does not exist. This is both a rule that is checked
//! and what keeps the configurations of clients that pipeline few.
//!
//! An operation whose client gave up stays open for ever: it may take effect at any later time, or
//! never. Of two configurations that differ only in how many of those have taken effect, the one
//! with fewer can do all that the other can, and stands for both.
//!
//! A server that dies takes what it held with it. From such a *loss* on the register may have any
//! value that it may ever have had: who lost it may find an old copy, nobody can find a new one.
//!
//! An instant has few open operations, so the configurations are few; if they are many after all,
//! the verdict is [`Verdict::GaveUp`], never a silent pass.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

/// What a client wants of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Its value.
    Read,
    /// Whether it has one.
    Probe,
    /// It has this value.
    Write(u64),
    /// It has this value, and loses it some time afterwards.
    WriteExpiring(u64),
    /// It has this value if it had none.
    WriteIfAbsent(u64),
    /// It has the second value if it had the first.
    Swap(u64, u64),
    /// It has this value; tell which one it had.
    Exchange(u64),
    /// One more than before; none counts as 0.
    Increment,
    /// It has no value; tell whether it had one.
    Delete,
    /// It has no value; tell which one it had.
    Take,
    /// It has no value, like all of its table, if this server owned it all the time; perhaps, if
    /// not.
    Flush,
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

/// Where an operation was executed: on which connection, and as which request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The connection.
    pub connection: u64,
    /// Rises with every request.
    pub request: u64,
}

/// One finished operation. Moments are positions in the order of all beginnings and ends.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Who.
    pub client: usize,
    /// When it was begun.
    pub begun: u64,
    /// When its outcome was known, or the client gave up.
    pub ended: u64,
    /// Where it was executed in the end.
    pub place: Place,
    /// What was wanted.
    pub action: Action,
    /// What came of it. `None`: the client gave up, and nobody knows.
    pub outcome: Option<Outcome>,
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

/// Operations that may be open at a time: they are bits of a word.
pub const OPEN_MAX: usize = 64;

/// Configurations looked at for one return before the checker gives up.
const CONFIGURATIONS_MAX: usize = 100_000;

type Value = Option<u64>;

/// Places of open operations.
type Places = u64;

/// What the register may hold, which open operations that will be answered have taken effect, and
/// which of those that were given up.
type Configuration = (Value, Places, Places);

/// All that is possible.
#[derive(Clone, Debug)]
struct Possible(BTreeSet<Configuration>);

impl Possible {
    /// Adds a configuration, unless another one stands for it.
    fn add(&mut self, new: Configuration) -> bool {
        let (value, taken, given) = new;
        let alike = (value, taken, 0)..=(value, taken, Places::MAX);
        let is_known = |known: &Configuration| known.2 & !given == 0;
        !self.0.range(alike).any(is_known) && self.0.insert(new)
    }
}

/// Values that are written to expire carry this bit.
pub const EXPIRING: u64 = 1 << 50;

/// Whether the register may lose this value by itself: it may at any moment, since clocks differ, but
/// it never gets it back.
fn may_expire(value: Value) -> bool {
    value.is_some_and(|value| value & EXPIRING != 0)
}

/// Judges the history of one register that had no value at first, and that was lost at these
/// moments.
pub fn check(operations: &[Operation], losses: &[u64]) -> Verdict {
    let mut moments: Vec<(u64, What)> = Vec::with_capacity(2 * operations.len() + losses.len());
    for (place, operation) in operations.iter().enumerate() {
        assert!(operation.begun < operation.ended, "operations take time");
        if operation.outcome.is_some() {
            moments.push((operation.begun, What::Begins(place)));
            moments.push((operation.ended, What::Ends(place)));
        } else if !matches!(operation.action, Action::Read | Action::Probe) {
            moments.push((operation.begun, What::Begins(place)));
        }
    }
    moments.extend(losses.iter().map(|&moment| (moment, What::Loss)));
    moments.sort_unstable();
    let mut check = Check {
        operations,
        open: Vec::new(),
        possible: Possible(BTreeSet::from([(None, 0, 0)])),
        ever: (!losses.is_empty()).then(|| BTreeSet::from([None])),
    };
    for (_, what) in moments {
        let verdict = match what {
            What::Begins(place) => check.begin(place),
            What::Ends(place) => check.end(place),
            What::Loss => check.lose(),
        };
        if verdict != Verdict::Linearizable {
            return verdict;
        }
    }
    Verdict::Linearizable
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begins(usize),
    Ends(usize),
    Loss,
}

/// A history on its way.
struct Check<'h> {
    operations: &'h [Operation],
    /// Open operations, each at a place of its own.
    open: Vec<Option<usize>>,
    possible: Possible,
    /// Values that the register may have had so far, if it is going to be lost.
    ever: Option<BTreeSet<Value>>,
}

impl<'h> Check<'h> {
    fn begin(&mut self, operation: usize) -> Verdict {
        match self.open.iter().position(Option::is_none) {
            Some(free) => self.open[free] = Some(operation),
            None if self.open.len() == OPEN_MAX => return Verdict::GaveUp,
            None => self.open.push(Some(operation)),
        }
        Verdict::Linearizable
    }

    /// An operation is answered, so it has taken effect.
    fn end(&mut self, operation: usize) -> Verdict {
        let place = self.open.iter().position(|open| *open == Some(operation));
        let place = place.expect("an operation begins before it ends");
        let Some(all) = self.closure(1 << place) else { return Verdict::GaveUp };
        if let Some(ever) = &mut self.ever {
            ever.extend(all.0.iter().map(|&(value, _, _)| value));
        }
        let mut left = Possible(BTreeSet::new());
        for (value, taken, given) in all.0.into_iter().filter(|all| all.1 & (1 << place) != 0) {
            left.add((value, taken & !(1 << place), given));
        }
        if left.0.is_empty() {
            return Verdict::Violated(describe(self.operations, operation, &self.possible));
        }
        self.possible = left;
        self.open[place] = None;
        Verdict::Linearizable
    }

    /// Everything that can come of what is possible now, up to where the operation at `last` has
    /// taken effect. `None`: too much.
    fn closure(&self, last: Places) -> Option<Possible> {
        let open: Vec<(Places, &Operation)> = self.open().collect();
        let mut all = Possible(BTreeSet::new());
        let mut next: VecDeque<Configuration> = self.possible.0.iter().copied().collect();
        while let Some(configuration) = next.pop_front() {
            let (value, taken, given) = settle(configuration, &open);
            if !all.add((value, taken, given)) || taken & last != 0 {
                continue;
            }
            if may_expire(value) {
                next.push_back((None, taken, given));
            }
            for (place, &(bit, operation)) in open.iter().enumerate() {
                let is_twin = |&(other, twin): &(Places, &Operation)| {
                    is_given_up_alike(twin, operation) && given & other == 0
                };
                if (taken | given) & bit != 0
                    || !is_next_on_connection(operation, taken, &open)
                    || open[..place].iter().any(is_twin)
                {
                    continue;
                }
                let (taken, given) = match operation.outcome {
                    Some(_) => (taken | bit, given),
                    None => (taken, given | bit),
                };
                let values = after(value, operation).into_iter().flatten();
                next.extend(values.map(|after| (after, taken, given)));
            }
            if all.0.len() > CONFIGURATIONS_MAX {
                return None;
            }
        }
        Some(all)
    }

    fn open(&self) -> impl Iterator<Item = (Places, &'h Operation)> {
        let open = self.open.iter().enumerate();
        open.filter_map(|(place, open)| Some((1 << place, &self.operations[(*open)?])))
    }

    /// Who held the register is gone.
    fn lose(&mut self) -> Verdict {
        let Some(all) = self.closure(0) else { return Verdict::GaveUp };
        let values: BTreeSet<Value> = all.0.iter().map(|&(value, _, _)| value).collect();
        let ever = self.ever.as_mut().expect("losses are known from the beginning on");
        ever.extend(values);
        let taken: BTreeSet<(Places, Places)> =
            self.possible.0.iter().map(|&(_, taken, given)| (taken, given)).collect();
        for (taken, given) in taken {
            ever.iter().for_each(|&value| {
                self.possible.add((value, taken, given));
            });
        }
        Verdict::Linearizable
    }
}

/// Whether both were given up and do the same: it does not matter which of them takes effect.
fn is_given_up_alike(one: &Operation, other: &Operation) -> bool {
    one.outcome.is_none() && other.outcome.is_none() && one.action == other.action
}

/// Whether all that came before it on its connection, and were executed, have taken effect.
fn is_next_on_connection(
    operation: &Operation,
    taken: Places,
    open: &[(Places, &Operation)],
) -> bool {
    let is_before = |other: &Operation| {
        other.place.connection == operation.place.connection
            && other.place.request < operation.place.request
            && other.outcome.is_some()
            && operation.outcome.is_some()
    };
    open.iter().all(|&(bit, other)| taken & bit != 0 || !is_before(other))
}

/// What can have taken effect and changes nothing, whatever it meets, has: nothing becomes
/// impossible by that, and of all the orders in which reads can be thought one is left.
fn settle(configuration: Configuration, open: &[(Places, &Operation)]) -> Configuration {
    let (value, mut taken, given) = configuration;
    let may_be_taken = |taken: Places, bit: Places, operation: &Operation| {
        taken & bit == 0
            && changes_nothing(operation)
            && is_next_on_connection(operation, taken, open)
            && after(value, operation)[0].is_some()
    };
    while let Some((bit, _)) = open.iter().find(|(bit, one)| may_be_taken(taken, *bit, one)) {
        taken |= bit;
    }
    (value, taken, given)
}

/// Whether the operation, with this outcome, has changed nothing.
fn changes_nothing(operation: &Operation) -> bool {
    let Some(outcome) = operation.outcome else { return false };
    matches!(
        (operation.action, outcome),
        (Action::Read | Action::Probe, _)
            | (
                Action::Delete | Action::WriteIfAbsent(_) | Action::Swap(..),
                Outcome::Applied(false)
            )
            | (Action::Take, Outcome::Value(None))
    )
}

/// The values that there may be once an operation has taken effect; none if it cannot have, or
/// changes nothing and was given up.
fn after(value: Value, operation: &Operation) -> [Option<Value>; 2] {
    let effect = effect(value, operation.action);
    let only = |is_so: bool| [is_so.then_some(effect), None];
    let Some(outcome) = operation.outcome else { return only(effect != value) };
    match (operation.action, outcome) {
        (Action::Write(_) | Action::WriteExpiring(_), Outcome::Done)
        | (Action::Flush, Outcome::Applied(true)) => only(true),
        (Action::Flush, Outcome::Applied(false)) => [Some(value), Some(None)],
        (Action::Read | Action::Take | Action::Exchange(_), Outcome::Value(seen)) => {
            only(seen == value)
        }
        (Action::Probe | Action::Delete, Outcome::Applied(found)) => only(found == value.is_some()),
        (Action::WriteIfAbsent(_), Outcome::Applied(done)) => only(done == value.is_none()),
        (Action::Swap(old, _), Outcome::Applied(done)) => only(done == (value == Some(old))),
        (Action::Increment, Outcome::Number(number)) => only(effect == Some(number)),
        (action, outcome) => unreachable!("{action:?} reported {outcome:?}"),
    }
}

/// What an action makes of a value.
fn effect(value: Value, action: Action) -> Value {
    match action {
        Action::Read | Action::Probe => value,
        Action::Write(new) | Action::WriteExpiring(new) | Action::Exchange(new) => Some(new),
        Action::WriteIfAbsent(new) => value.or(Some(new)),
        Action::Swap(old, new) if value == Some(old) => Some(new),
        Action::Swap(..) => value,
        Action::Increment => Some(value.unwrap_or(0) + 1),
        Action::Delete | Action::Take | Action::Flush => None,
    }
}

/// Operations shown before the one that cannot be explained.
const SHOWN_BEFORE: usize = 12;

fn describe(operations: &[Operation], culprit: usize, possible: &Possible) -> String {
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_unstable_by_key(|&place| operations[place].begun);
    let at = order.iter().position(|&place| place == culprit).unwrap_or(0);
    let ended = operations[culprit].ended;
    let around = order[at.saturating_sub(SHOWN_BEFORE)..]
        .iter()
        .filter(|&&place| operations[place].begun < ended);
    let values: BTreeSet<Value> = possible.0.iter().map(|&(value, _, _)| value).collect();
    let mut text = format!("the register may hold {values:?}; no order explains the marked line\n");
    for &place in around {
        let mark = if place == culprit { "→" } else { " " };
        text.push_str(&format!("{mark} {}\n", operations[place]));
    }
    text
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { client, begun, ended, place, action, outcome } = self;
        let Place { connection, request } = place;
        let who = format!("client {client}, request {request} of connection {connection}");
        match outcome {
            Some(outcome) => write!(f, "[{begun}-{ended}] {who}: {action:?} = {outcome:?}"),
            None => write!(f, "[{begun}-] {who}: {action:?}, given up at {ended}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Line = (usize, u64, u64, Action, Option<Outcome>);

    fn history(list: &[(usize, u64, u64, Action, Outcome)]) -> Verdict {
        let answered = |&(client, begun, ended, action, outcome): &_| {
            (client, begun, ended, action, Some(outcome))
        };
        with_losses(&list.iter().map(answered).collect::<Vec<_>>(), &[])
    }

    fn with_losses(list: &[Line], losses: &[u64]) -> Verdict {
        check(&list.iter().map(on_own_connection).collect::<Vec<_>>(), losses)
    }

    fn on_own_connection(&(client, begun, ended, action, outcome): &Line) -> Operation {
        let place = Place { connection: client as u64, request: begun };
        Operation { client, begun, ended, place, action, outcome }
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
            (0, 17, 18, Action::Take, Outcome::Value(Some(40))),
            (1, 19, 20, Action::Increment, Outcome::Number(1)),
            (0, 21, 22, Action::Exchange(50), Outcome::Value(Some(1))),
            (1, 23, 24, Action::Probe, Outcome::Applied(true)),
            (0, 25, 26, Action::Flush, Outcome::Applied(true)),
            (1, 27, 28, Action::Probe, Outcome::Applied(false)),
        ];
        assert_eq!(history(&good), Verdict::Linearizable);
        for broken in 0..good.len() {
            let mut bad = good;
            bad[broken].4 = match (bad[broken].3, bad[broken].4) {
                (Action::Flush, _) | (_, Outcome::Done) => continue,
                (_, Outcome::Value(_)) => Outcome::Value(Some(99)),
                (_, Outcome::Applied(done)) => Outcome::Applied(!done),
                (_, Outcome::Number(number)) => Outcome::Number(number + 1),
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
    fn requests_of_one_connection_take_effect_in_their_order() {
        let lines = [
            (0, 1, 10, Action::Write(1), Some(Outcome::Done)),
            (1, 2, 11, Action::Write(2), Some(Outcome::Done)),
            (2, 3, 12, Action::Read, Some(Outcome::Value(Some(1)))),
        ];
        assert_eq!(with_losses(&lines, &[]), Verdict::Linearizable, "on three connections");
        let on_one = |line: &Line| {
            let place = Place { connection: 7, request: line.1 };
            Operation { place, ..on_own_connection(line) }
        };
        assert!(is_violated(&check(&lines.each_ref().map(on_one), &[])), "on one");
        let mut newer = lines;
        newer[2].4 = Some(Outcome::Value(Some(2)));
        assert_eq!(check(&newer.each_ref().map(on_one), &[]), Verdict::Linearizable);
    }

    #[test]
    fn a_flush_that_may_have_missed_a_register_has_done_so_or_not_for_good() {
        let read = |at, seen| (1, at, at + 1, Action::Read, Outcome::Value(seen));
        let write = (0, 1, 2, Action::Write(1), Outcome::Done);
        let flush = |hit| (0, 3, 4, Action::Flush, Outcome::Applied(hit));
        assert_eq!(history(&[write, flush(false), read(5, Some(1))]), Verdict::Linearizable);
        assert_eq!(history(&[write, flush(false), read(5, None)]), Verdict::Linearizable);
        let back = [write, flush(false), read(5, None), read(7, Some(1))];
        assert!(is_violated(&history(&back)));
        assert!(is_violated(&history(&[write, flush(true), read(5, Some(1))])));
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

    #[test]
    fn what_was_given_up_may_take_effect_at_any_later_time_once() {
        let given_up = (0, 1, 2, Action::Write(5), None);
        let read = |at, seen| (1, at, at + 1, Action::Read, Some(Outcome::Value(seen)));
        let write = |at, new| (1, at, at + 1, Action::Write(new), Some(Outcome::Done));
        assert_eq!(with_losses(&[given_up, read(3, None)], &[]), Verdict::Linearizable);
        let late = [given_up, read(3, None), write(5, 7), read(7, Some(5)), read(9, Some(5))];
        assert_eq!(with_losses(&late, &[]), Verdict::Linearizable);
        let twice = [given_up, read(3, Some(5)), write(5, 7), read(7, Some(5))];
        assert!(is_violated(&with_losses(&twice, &[])));
        let early = [read(1, Some(5)), (0, 3, 4, Action::Write(5), None)];
        assert!(is_violated(&with_losses(&early, &[])));
    }

    #[test]
    fn many_that_were_given_up_are_followed() {
        let mut list: Vec<_> = (0..30)
            .map(|n| (0, 2 * n + 1, 2 * n + 2, Action::Increment, None))
            .chain((30..50).map(|n| (0, 2 * n + 1, 2 * n + 2, Action::Write(1000 * n), None)))
            .collect();
        let read = |at, seen| (1, at, at + 1, Action::Read, Some(Outcome::Value(Some(seen))));
        list.extend([read(201, 17), read(203, 33_004), read(205, 33_013)]);
        assert_eq!(with_losses(&list, &[]), Verdict::Linearizable);
        list.push(read(207, 33_014));
        assert!(is_violated(&with_losses(&list, &[])), "that would be one increment too many");
    }

    #[test]
    fn what_was_lost_may_be_found_in_an_old_copy_and_not_in_a_new_one() {
        let read = |at, seen| (1, at, at + 1, Action::Read, Some(Outcome::Value(seen)));
        let write = |at, new| (1, at, at + 1, Action::Write(new), Some(Outcome::Done));
        let before = [write(1, 5), write(3, 7)];
        for seen in [None, Some(5), Some(7)] {
            let history = [&before[..], &[read(10, seen), read(12, seen)]].concat();
            assert_eq!(with_losses(&history, &[6]), Verdict::Linearizable, "{seen:?}");
        }
        let early = [&before[..], &[read(5, Some(5))]].concat();
        assert!(is_violated(&with_losses(&early, &[9])));
        let twice = [&before[..], &[read(10, Some(5)), read(12, Some(7))]].concat();
        assert!(is_violated(&with_losses(&twice, &[9])));
        let unheard = [&before[..], &[read(10, Some(9))]].concat();
        assert!(is_violated(&with_losses(&unheard, &[9])));
    }
}
