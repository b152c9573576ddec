//! Linearizability checker: decides, register by register, whether the observations of the
//! clients are possible.
//!
//! A register is one key, or a pair of keys that is only written as a whole. The checker follows
//! its operations in real time. A *configuration* is a possible value of the register, together
//! with the open operations that have already taken effect; the checker keeps every possible
//! configuration. An operation that returns must have taken effect. Configurations in which it
//! cannot have taken effect with the reported outcome are removed. If none is left, no order
//! explains the history.
//!
//! Requests of one connection take effect in the order in which they were sent. No configuration
//! contains a later request without the earlier ones. This is a rule that is checked, and it also
//! keeps the number of configurations of pipelining clients small.
//!
//! An operation that its client gave up stays open for ever: it may take effect at any later
//! time, or never. Operations of this kind with the same action form one *group*, of which the
//! checker only counts how many have taken effect. If two configurations differ only in these
//! counts, and the first has no greater count, then the first can do all that the second can, and
//! replaces it. Operations that have taken effect in all configurations are no longer counted.
//!
//! An *uncertain* flush may or may not have emptied the register. At any time until it ends, the
//! checker may assume that it did nothing, so it makes this assumption as late as possible. If
//! several uncertain flushes are open, the checker lets the one that ends first empty the
//! register: the others can still do so later. Uncertain flushes with later requests on their
//! connection are followed individually.
//!
//! No observation distinguishes between values that no outcome shows and no swap asks for. The
//! checker merges all of them into one value (`values.rs`). The writes of an outage, with their
//! unknown outcomes, are therefore one group.
//!
//! A server that dies takes its data with it. After such a *loss* the register may have any value
//! that it has ever had: its readers may find an old copy, but never a newer value.
//!
//! Few operations are open at any instant, so there are few configurations. If there are too
//! many, the verdict is [`Verdict::GaveUp`], never a silent pass.

mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use values::Values;

/// Operation of a client on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
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
pub enum Outcome {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the connection.
    pub connection: u64,
    /// Number of the request, which rises with every request of a connection.
    pub request: u64,
}

/// Finished operation. Moments are positions in the order of all beginnings and ends.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Number of the client.
    pub client: usize,
    /// Moment at which the client began the operation.
    pub begun: u64,
    /// Moment at which the client received the outcome or gave up.
    pub ended: u64,
    /// Place of the last attempt.
    pub place: Place,
    /// Requested action.
    pub action: Action,
    /// Reported outcome. `None`: the client gave up, and the outcome is unknown.
    pub outcome: Option<Outcome>,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains the history.
    Linearizable,
    /// No order explains the history. The text shows the unexplained operation and those around
    /// it.
    Violated(String),
    /// There were too many configurations.
    GaveUp,
}

/// Maximal number of open operations that will be answered: each is one bit of a word.
pub const OPEN_MAX: usize = 64;

/// Number of configurations of one return after which the checker gives up.
const CONFIGURATIONS_MAX: usize = 100_000;

type Value = Option<u64>;

/// Set of open operations, one bit for each place.
type Places = u64;

/// Number of operations of each group that have taken effect. Trailing zeros may be missing.
type Counts = Vec<u32>;

/// Value of the register, open operations (to be answered) that have taken effect, and counts of
/// operations that were given up and have taken effect.
type Configuration = (Value, Places, Counts);

/// All possible configurations.
#[derive(Clone, Debug)]
struct Possible(BTreeSet<Configuration>);

impl Possible {
    /// Adds a configuration, unless a known one can do all that the new one can.
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

/// Returns the counts with one more for this group.
fn one_more(counts: &[u32], group: usize) -> Counts {
    let mut counts = counts.to_vec();
    counts.resize(counts.len().max(group + 1), 0);
    counts[group] += 1;
    counts
}

/// Marker bit of values that are written to expire.
pub const EXPIRING: u64 = 1 << 50;

/// Time range in which each expiring value disappears: not before the first moment, and
/// operations that begin after the last moment do not find it. A value without an entry may
/// disappear at any time, but does not come back.
pub type Lives = BTreeMap<u64, RangeInclusive<u64>>;

/// Returns whether the register may lose this value by itself. It never gets the value back.
fn may_expire(value: Value) -> bool {
    value.is_some_and(|value| value & EXPIRING != 0)
}

/// Checks the history of one register that has no value at first and was lost at `losses`. After
/// any loss, expiry times are unknown, since an old copy may be found.
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
        succeeded: succeeded(operations),
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

/// Event at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begins(usize),
    Ends(usize),
    Loss,
}

/// Check in progress.
struct Check<'h> {
    /// Operations as the clients reported them.
    told: &'h [Operation],
    /// The same operations, with indistinguishable values merged.
    operations: Vec<Operation>,
    /// Uncertain flushes that end after a later request on their connection has begun.
    succeeded: BTreeSet<usize>,
    /// Open operations that will be answered; the index is the place (the bit).
    open: Vec<Option<usize>>,
    given_up: Vec<Group>,
    possible: Possible,
    /// Values that the register may have had so far; only collected if there are losses.
    ever: Option<BTreeSet<Value>>,
    lives: &'h Lives,
    /// Moment that is being checked.
    now: u64,
}

/// Operations that were given up and have the same action.
#[derive(Clone, Copy, Debug)]
struct Group {
    action: Action,
    /// Operations that were begun and have not taken effect in all configurations.
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

    /// Returns whether an expiring value may have disappeared by now.
    fn may_be_gone(&self, value: Value) -> bool {
        self.life(value).is_none_or(|life| *life.start() <= self.now)
    }

    /// Removes certainly expired values, for operations that begin now. Returns `false` if there
    /// are too many configurations.
    fn expire_overdue(&mut self) -> bool {
        let is_overdue = |value: Value| self.life(value).is_some_and(|life| *life.end() < self.now);
        if !self.possible.0.iter().any(|(value, ..)| is_overdue(*value)) {
            return true;
        }
        // Operations that are already open may have seen the values.
        let Some(all) = self.closure(0) else { return false };
        let mut left = Possible(BTreeSet::new());
        for (value, taken, given) in all.0 {
            left.add((value.filter(|&value| !is_overdue(Some(value))), taken, given));
        }
        self.possible = left;
        true
    }

    /// Adds an operation that may take effect at any time from now on and is never answered.
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

    /// Handles the answer to an operation, which therefore has taken effect.
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

    /// Removes operations that were given up and have taken effect in all configurations.
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

    /// Returns everything that can follow from the possible configurations, up to the point where
    /// the operation at `last` has taken effect. Returns `None` if there are too many
    /// configurations.
    fn closure(&self, last: Places) -> Option<Possible> {
        let open: Vec<(Places, &Operation)> = self.open().collect();
        let uncertain = open.iter().filter(|(_, operation)| is_uncertain(operation));
        let uncertain = uncertain.fold(0, |places, (bit, _)| places | bit);
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
                let may_be_next =
                    taken & bit == 0 && is_next_on_connection(operation, taken | uncertain, &open);
                if !may_be_next || is_uncertain(operation) && bit != last {
                    continue;
                }
                let taken = taken | bit | uncertain & earlier_on_connection(operation, &open);
                let values = after(value, operation).into_iter().flatten();
                next.extend(values.map(|after| (after, taken, given.clone())));
            }
            for bit in value.iter().flat_map(|_| self.flushes_to_try(taken, &open)) {
                next.push_back((None, taken | bit, given.clone()));
            }
            next.extend(self.late(value, &given).map(|(after, given)| (after, taken, given)));
            if all.0.len() > CONFIGURATIONS_MAX {
                return None;
            }
        }
        Some(all)
    }

    /// Returns the uncertain flushes that must be tried now: the others lead to no result that
    /// these do not reach as well.
    fn flushes_to_try(&self, taken: Places, open: &[(Places, &Operation)]) -> Vec<Places> {
        let may_be_next = |(bit, operation): &&(Places, &Operation)| {
            taken & bit == 0
                && is_uncertain(operation)
                && is_next_on_connection(operation, taken, open)
        };
        let is_succeeded = |bit: Places| {
            self.open[bit.trailing_zeros() as usize].is_some_and(|it| self.succeeded.contains(&it))
        };
        let next = open.iter().filter(may_be_next);
        let (mut to_try, others): (Vec<_>, Vec<_>) = next.partition(|(bit, _)| is_succeeded(*bit));
        to_try.extend(others.into_iter().min_by_key(|(_, operation)| operation.ended));
        to_try.into_iter().map(|(bit, _)| bit).collect()
    }

    /// Returns the results of operations that were given up, and that would change the value now.
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

    /// Handles the loss of the server that held the register.
    fn lose(&mut self) -> Verdict {
        let Some(all) = self.closure(0) else { return Verdict::GaveUp };
        let ever = self.ever.as_mut().expect("losses are known from the beginning on");
        ever.extend(all.0.iter().map(|&(value, _, _)| value));
        // The effects are lost; the operations need not take effect again.
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

/// Returns the configuration with the count of this group reduced by `certain`.
fn less((value, taken, mut given): Configuration, group: usize, certain: u32) -> Configuration {
    given[group] -= certain;
    given.truncate(given.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
    (value, taken, given)
}

/// Returns the equivalent of an action without a known outcome.
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

/// Returns whether all earlier executed operations on its connection have taken effect.
fn is_next_on_connection(
    operation: &Operation,
    taken: Places,
    open: &[(Places, &Operation)],
) -> bool {
    earlier_on_connection(operation, open) & !taken == 0
}

fn earlier_on_connection(operation: &Operation, open: &[(Places, &Operation)]) -> Places {
    let earlier = open.iter().filter(|(_, other)| is_earlier(other.place, operation.place));
    earlier.fold(0, |places, (bit, _)| places | bit)
}

fn is_earlier(one: Place, other: Place) -> bool {
    one.connection == other.connection && one.request < other.request
}

/// Returns whether the operation is a flush that may or may not have emptied the register.
fn is_uncertain(operation: &Operation) -> bool {
    (operation.action, operation.outcome) == (Action::Flush, Some(Outcome::Applied(false)))
}

/// Returns the uncertain flushes that end after a later request on their connection has begun.
fn succeeded(operations: &[Operation]) -> BTreeSet<usize> {
    let flushes = operations.iter().enumerate().filter(|(_, operation)| is_uncertain(operation));
    let is_succeeded = |flush: &Operation| {
        let mut others = operations.iter().filter(|other| is_earlier(flush.place, other.place));
        others.any(|other| other.begun < flush.ended)
    };
    flushes.filter(|(_, flush)| is_succeeded(flush)).map(|(place, _)| place).collect()
}

/// Lets all operations take effect that can do so and change nothing, whatever the value. This
/// excludes no possibility, and leaves only one of all possible orders of reads.
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

/// Returns whether the operation, with this outcome, has changed nothing.
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

/// Returns the values that are possible once an operation has taken effect with its outcome; none
/// if it cannot have taken effect.
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

/// Returns the value after an action.
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

/// Number of operations that are shown before the unexplained one.
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
            None => write!(f, "[{begun}-] {who}: {action:?}, abandoned at {ended}"),
        }
    }
}

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
