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
//! never. Those that do the same are one *group*, of which it only counts how many have taken effect.
//! Of two configurations that differ only in these counts, the one that has nowhere more can do all
//! that the other can, and stands for both. What has taken effect in all configurations is forgotten.
//!
//! A value that no outcome ever shows, and no swap asks for, is like any other such value: nothing
//! that was observed tells them apart. All of them are one value to the checker (`values.rs`). So the
//! writes of an outage, of which nobody knows what became, are one group.
//!
//! A server that dies takes what it held with it. From such a *loss* on the register may have any
//! value that it may ever have had: who lost it may find an old copy, nobody can find a new one.
//!
//! An instant has few open operations, so the configurations are few; if they are many after all,
//! the verdict is [`Verdict::GaveUp`], never a silent pass.

mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use values::Values;

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

/// Operations that will be answered and may be open at a time: they are bits of a word.
pub const OPEN_MAX: usize = 64;

/// Configurations looked at for one return before the checker gives up.
const CONFIGURATIONS_MAX: usize = 100_000;

type Value = Option<u64>;

/// Places of open operations.
type Places = u64;

/// How many of each group of operations that were given up have taken effect. Groups of which none
/// has need not be there.
type Counts = Vec<u32>;

/// What the register may hold, which open operations that will be answered have taken effect, and
/// how many of those that were given up.
type Configuration = (Value, Places, Counts);

/// All that is possible.
#[derive(Clone, Debug)]
struct Possible(BTreeSet<Configuration>);

impl Possible {
    /// Adds a configuration, unless another one stands for it.
    fn add(&mut self, new: Configuration) -> bool {
        let (value, taken, given) = &new;
        let from = (*value, *taken, Counts::new());
        let mut alike = self.0.range(from..).take_while(|it| (it.0, it.1) == (*value, *taken));
        !alike.any(|known| is_nowhere_more(&known.2, given)) && self.0.insert(new)
    }
}

fn count(counts: &[u32], group: usize) -> u32 {
    counts.get(group).copied().unwrap_or(0)
}

fn is_nowhere_more(counts: &[u32], than: &[u32]) -> bool {
    counts.iter().enumerate().all(|(group, &one)| one <= count(than, group))
}

/// The counts with one more of a group.
fn one_more(counts: &[u32], group: usize) -> Counts {
    let mut counts = counts.to_vec();
    counts.resize(counts.len().max(group + 1), 0);
    counts[group] += 1;
    counts
}

/// Values that are written to expire carry this bit.
pub const EXPIRING: u64 = 1 << 50;

/// Between which moments values that were written to expire go: not before the first, and whatever
/// begins behind the last finds them gone. Of others nothing is known but that they do not come
/// back.
pub type Lives = BTreeMap<u64, RangeInclusive<u64>>;

/// Returns whether the register may lose this value by itself. It never gets it back.
fn may_expire(value: Value) -> bool {
    value.is_some_and(|value| value & EXPIRING != 0)
}

/// Judges the history of one register that had no value at first, and that was lost at these
/// moments. Where it was lost nothing is known of when values expire: an old copy may be found.
pub fn check(operations: &[Operation], losses: &[u64], lives: &Lives) -> Verdict {
    let no_lives = Lives::new();
    let lives = if losses.is_empty() { lives } else { &no_lives };
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
        told: operations,
        operations: Values::of(operations, lives).merged(operations),
        lives,
        now: 0,
        open: Vec::new(),
        given_up: Vec::new(),
        possible: Possible(BTreeSet::from([(None, 0, Counts::new())])),
        ever: (!losses.is_empty()).then(|| BTreeSet::from([None])),
    };
    for (moment, what) in moments {
        check.now = moment;
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
    /// As clients told it.
    told: &'h [Operation],
    /// The same, with values merged that nothing tells apart.
    operations: Vec<Operation>,
    /// Open operations that will be answered, each at a place of its own.
    open: Vec<Option<usize>>,
    given_up: Vec<Group>,
    possible: Possible,
    /// Values that the register may have had so far, if it is going to be lost.
    ever: Option<BTreeSet<Value>>,
    lives: &'h Lives,
    /// The moment that is being judged.
    now: u64,
}

/// Operations that were given up and do the same.
#[derive(Clone, Copy, Debug)]
struct Group {
    action: Action,
    /// How many were begun and have not taken effect in all configurations.
    begun: u32,
}

impl Check<'_> {
    fn begin(&mut self, operation: usize) -> Verdict {
        if !self.expire_overdue() {
            return Verdict::GaveUp;
        }
        if self.operations[operation].outcome.is_none() {
            self.give_up(as_given_up(self.operations[operation].action));
            return Verdict::Linearizable;
        }
        match self.open.iter().position(Option::is_none) {
            Some(free) => self.open[free] = Some(operation),
            None if self.open.len() == OPEN_MAX => return Verdict::GaveUp,
            None => self.open.push(Some(operation)),
        }
        Verdict::Linearizable
    }

    fn life(&self, value: Value) -> Option<&RangeInclusive<u64>> {
        self.lives.get(&value?)
    }

    /// Returns whether a value that expires may have gone by now.
    fn may_be_gone(&self, value: Value) -> bool {
        self.life(value).is_none_or(|life| *life.start() <= self.now)
    }

    /// Values whose time is over for certain are gone for whatever begins now. `false`: too many
    /// possibilities.
    fn expire_overdue(&mut self) -> bool {
        let is_overdue = |value: Value| self.life(value).is_some_and(|life| *life.end() < self.now);
        if !self.possible.0.iter().any(|(value, ..)| is_overdue(*value)) {
            return true;
        }
        // An operation that has begun before may have met them.
        let Some(all) = self.closure(0) else { return false };
        let mut left = Possible(BTreeSet::new());
        for (value, taken, given) in all.0 {
            left.add((value.filter(|&value| !is_overdue(Some(value))), taken, given));
        }
        self.possible = left;
        true
    }

    /// From now on an operation may take effect of which nobody will hear.
    fn give_up(&mut self, action: Action) {
        let is_alike = |group: &&mut Group| group.action == action;
        if let Some(group) = self.given_up.iter_mut().find(is_alike) {
            group.begun += 1;
        } else if let Some(unused) = self.given_up.iter_mut().find(|group| group.begun == 0) {
            *unused = Group { action, begun: 1 };
        } else {
            self.given_up.push(Group { action, begun: 1 });
        }
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
            return Verdict::Violated(describe(self.told, operation, &self.possible));
        }
        self.possible = left;
        self.open[place] = None;
        self.forget_certain();
        Verdict::Linearizable
    }

    /// Forgets what was given up and has taken effect in all configurations.
    fn forget_certain(&mut self) {
        for group in 0..self.given_up.len() {
            let counts = self.possible.0.iter().map(|(_, _, given)| count(given, group));
            let certain = counts.min().unwrap_or(0);
            if certain > 0 {
                self.given_up[group].begun -= certain;
                let all = std::mem::take(&mut self.possible.0).into_iter();
                self.possible.0 = all.map(|all| less(all, group, certain)).collect();
            }
        }
    }

    /// Everything that can come of what is possible now, up to where the operation at `last` has
    /// taken effect. `None`: too much.
    fn closure(&self, last: Places) -> Option<Possible> {
        let open: Vec<(Places, &Operation)> = self.open().collect();
        let mut all = Possible(BTreeSet::new());
        let mut next: VecDeque<Configuration> = self.possible.0.iter().cloned().collect();
        while let Some((value, taken, given)) = next.pop_front() {
            let taken = settle(value, taken, &open);
            if !all.add((value, taken, given.clone())) || taken & last != 0 {
                continue;
            }
            if may_expire(value) && self.may_be_gone(value) {
                next.push_back((None, taken, given.clone()));
            }
            for &(bit, operation) in &open {
                if taken & bit == 0 && is_next_on_connection(operation, taken, &open) {
                    let values = after(value, operation).into_iter().flatten();
                    next.extend(values.map(|after| (after, taken | bit, given.clone())));
                }
            }
            next.extend(self.late(value, &given).map(|(after, given)| (after, taken, given)));
            if all.0.len() > CONFIGURATIONS_MAX {
                return None;
            }
        }
        Some(all)
    }

    /// What comes of those that were given up, and change something now.
    fn late(&self, value: Value, given: &[u32]) -> impl Iterator<Item = (Value, Counts)> {
        self.given_up.iter().enumerate().filter_map(move |(place, group)| {
            let after = effect(value, group.action);
            let may_be = count(given, place) < group.begun && after != value;
            may_be.then(|| (after, one_more(given, place)))
        })
    }

    fn open(&self) -> impl Iterator<Item = (Places, &Operation)> {
        let open = self.open.iter().enumerate();
        open.filter_map(|(place, open)| Some((1 << place, &self.operations[(*open)?])))
    }

    /// Who held the register is gone.
    fn lose(&mut self) -> Verdict {
        let Some(all) = self.closure(0) else { return Verdict::GaveUp };
        let ever = self.ever.as_mut().expect("losses are known from the beginning on");
        ever.extend(all.0.iter().map(|&(value, _, _)| value));
        // What has taken effect is lost, and need not do so again.
        let taken: BTreeSet<(Places, Counts)> =
            all.0.into_iter().map(|(_, taken, given)| (taken, given)).collect();
        for (taken, given) in taken {
            ever.iter().for_each(|&value| {
                self.possible.add((value, taken, given.clone()));
            });
        }
        Verdict::Linearizable
    }
}

/// The configuration, where so many of a group are forgotten.
fn less((value, taken, mut given): Configuration, group: usize, certain: u32) -> Configuration {
    given[group] -= certain;
    given.truncate(given.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
    (value, taken, given)
}

/// What is left of an action when nobody hears of its outcome.
fn as_given_up(action: Action) -> Action {
    match action {
        Action::Exchange(new) => Action::Write(new),
        Action::Take | Action::Flush => Action::Delete,
        Action::Read
        | Action::Probe
        | Action::Write(_)
        | Action::WriteExpiring(_)
        | Action::WriteIfAbsent(_)
        | Action::Swap(..)
        | Action::Increment
        | Action::Delete => action,
    }
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
    };
    open.iter().all(|&(bit, other)| taken & bit != 0 || !is_before(other))
}

/// What can have taken effect and changes nothing, whatever it meets, has: nothing becomes
/// impossible by that, and of all the orders in which reads can be thought one is left.
fn settle(value: Value, mut taken: Places, open: &[(Places, &Operation)]) -> Places {
    let may_be_taken = |taken: Places, bit: Places, operation: &Operation| {
        taken & bit == 0
            && changes_nothing(operation)
            && is_next_on_connection(operation, taken, open)
            && after(value, operation)[0].is_some()
    };
    while let Some((bit, _)) = open.iter().find(|(bit, one)| may_be_taken(taken, *bit, one)) {
        taken |= bit;
    }
    taken
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

/// The values that there may be once an operation has taken effect, and was answered; none if it
/// cannot have.
fn after(value: Value, operation: &Operation) -> [Option<Value>; 2] {
    let effect = effect(value, operation.action);
    let only = |is_so: bool| [is_so.then_some(effect), None];
    let Some(outcome) = operation.outcome else { return [None; 2] };
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
    let values: BTreeSet<String> =
        possible.0.iter().map(|&(value, _, _)| values::shown(value)).collect();
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
mod naive;
#[cfg(test)]
mod tests;
