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
//! checker merges all of them into one value, and so all times to live without a known end
//! (`values.rs`). The writes of an outage, with their unknown outcomes, are therefore one group.
//!
//! A server that dies takes its data with it. After such a *loss* the register may have any value
//! that it has ever had: its readers may find an old copy, but never a newer value.
//!
//! Few operations are open at any instant, so there are few configurations. If there are too
//! many, the verdict is [`HistoryVerdict::GaveUp`], never a silent pass.

mod configurations;
mod entry_ids;
mod lifetimes;
mod operations;
mod outcomes;
mod parts;
mod streams;
mod values;

pub use entry_ids::{EntryId, EntryIds, PendingSummary};
pub use lifetimes::{Life, Lifetime, Lives};
pub use operations::{RegisterAction, RegisterOperation, RequestPlace};
pub use outcomes::{OperationOutcome, RemainingTime};
pub use parts::{
    EXPIRING_FIELD, ITEMS_MAX, ItemsEnd, LIMITED_ITEMS, NumberedItems, NumberedParts, PARTS,
    PartAction, is_string, member_with_score, part_of_score, string,
};
pub use streams::{AdditionLimit, LIMITED_ENTRIES, NewEntry, StreamAction};

use configurations::{GroupCounts, Places, Possible, RegisterConfiguration, count, one_more};
use operations::{
    RegisterValue, after, as_given_up, changes_nothing, effect, expired, is_earlier, is_uncertain,
    lifetime,
};
use std::collections::{BTreeSet, VecDeque};
use values::Values;

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryVerdict {
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

/// Checks the history of one register that has no value at first and was lost at `losses`. After
/// any loss, expiry times are unknown, since an old copy may be found.
pub fn check(operations: &[RegisterOperation], losses: &[u64], lives: &Lives) -> HistoryVerdict {
    let no_lives = Lives::default();
    let lives = if losses.is_empty() { lives } else { &no_lives };
    let mut moments: Vec<(u64, HistoryEvent)> =
        Vec::with_capacity(2 * operations.len() + losses.len());
    for (place, operation) in operations.iter().enumerate() {
        assert!(operation.begun < operation.ended, "operations take time");
        if operation.outcome.is_some() {
            moments.push((operation.begun, HistoryEvent::Begins(place)));
            moments.push((operation.ended, HistoryEvent::Ends(place)));
        } else if !operation.action.is_read() {
            moments.push((operation.begun, HistoryEvent::Begins(place)));
        }
    }
    moments.extend(losses.iter().map(|&moment| (moment, HistoryEvent::Loss)));
    moments.sort_unstable();
    let mut check = HistoryCheck {
        told: operations,
        operations: Values::of(operations).merged(operations, lives),
        succeeded: succeeded(operations),
        lives,
        now: 0,
        open: Vec::new(),
        given_up: Vec::new(),
        possible: Possible(BTreeSet::from([RegisterConfiguration::initial()])),
        ever: (!losses.is_empty()).then(|| BTreeSet::from([None])),
    };
    for (moment, what) in moments {
        check.now = moment;
        let verdict = match what {
            HistoryEvent::Begins(place) => check.begin(place),
            HistoryEvent::Ends(place) => check.end(place),
            HistoryEvent::Loss => check.lose(),
        };
        if verdict != HistoryVerdict::Linearizable {
            return verdict;
        }
    }
    HistoryVerdict::Linearizable
}

/// Event at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HistoryEvent {
    Begins(usize),
    Ends(usize),
    Loss,
}

/// Check in progress.
struct HistoryCheck<'h> {
    /// Operations as the clients reported them.
    told: &'h [RegisterOperation],
    /// The same operations, with indistinguishable values merged.
    operations: Vec<RegisterOperation>,
    /// Uncertain flushes that end after a later request on their connection has begun.
    succeeded: BTreeSet<usize>,
    /// Open operations that will be answered; the index is the place (the bit).
    open: Vec<Option<usize>>,
    given_up: Vec<AbandonedGroup>,
    possible: Possible,
    /// Values that the register may have had so far; only collected if there are losses.
    ever: Option<BTreeSet<RegisterValue>>,
    lives: &'h Lives,
    /// Moment that is being checked.
    now: u64,
}

/// Operations that were given up and have the same action.
#[derive(Clone, Copy, Debug)]
struct AbandonedGroup {
    action: RegisterAction,
    /// Operations that were begun and have not taken effect in all configurations.
    begun: u32,
}

impl HistoryCheck<'_> {
    fn begin(&mut self, operation: usize) -> HistoryVerdict {
        if !self.expire_overdue() {
            return HistoryVerdict::GaveUp;
        }
        if self.operations[operation].outcome.is_none() {
            self.give_up(as_given_up(self.operations[operation].action));
            return HistoryVerdict::Linearizable;
        }
        match self.open.iter().position(Option::is_none) {
            Some(free) => self.open[free] = Some(operation),
            None if self.open.len() == OPEN_MAX => return HistoryVerdict::GaveUp,
            None => self.open.push(Some(operation)),
        }
        HistoryVerdict::Linearizable
    }

    /// Returns whether an expiring value may have disappeared by now.
    fn may_be_gone(&self, value: RegisterValue) -> bool {
        let is_over = |lifetime| {
            self.lives.moments(lifetime).is_none_or(|moments| *moments.start() <= self.now)
        };
        lifetime(value).is_some_and(is_over)
    }

    /// Returns whether a value has disappeared for operations that begin now.
    fn is_overdue(&self, value: RegisterValue) -> bool {
        let moments = lifetime(value).and_then(|lifetime| self.lives.moments(lifetime));
        moments.is_some_and(|moments| *moments.end() < self.now)
    }

    /// Removes certainly expired values, for operations that begin now. Returns `false` if there
    /// are too many configurations.
    fn expire_overdue(&mut self) -> bool {
        if !self.possible.0.iter().any(|one| self.is_overdue(one.value)) {
            return true;
        }
        // Operations that are already open may have seen the values.
        let Some(all) = self.closure(0) else { return false };
        let mut left = Possible::default();
        for one in all.0 {
            let value = if self.is_overdue(one.value) { expired(one.value) } else { one.value };
            left.add(RegisterConfiguration { value, ..one });
        }
        self.possible = left;
        true
    }

    /// Adds an operation that may take effect at any time from now on and is never answered.
    fn give_up(&mut self, action: RegisterAction) {
        let is_alike = |group: &&mut AbandonedGroup| group.action == action;
        if let Some(group) = self.given_up.iter_mut().find(is_alike) {
            group.begun += 1;
        } else if let Some(unused) = self.given_up.iter_mut().find(|group| group.begun == 0) {
            *unused = AbandonedGroup { action, begun: 1 };
        } else {
            self.given_up.push(AbandonedGroup { action, begun: 1 });
        }
    }

    /// Handles the answer to an operation, which therefore has taken effect.
    fn end(&mut self, operation: usize) -> HistoryVerdict {
        let place = self.open.iter().position(|open| *open == Some(operation));
        let place = place.expect("an operation begins before it ends");
        let Some(all) = self.closure(1 << place) else { return HistoryVerdict::GaveUp };
        if let Some(ever) = &mut self.ever {
            ever.extend(all.0.iter().map(|one| one.value));
        }
        let mut left = Possible::default();
        for one in all.0.into_iter().filter(|one| one.taken & (1 << place) != 0) {
            left.add(RegisterConfiguration { taken: one.taken & !(1 << place), ..one });
        }
        if left.0.is_empty() {
            return HistoryVerdict::Violated(describe(self.told, operation, &self.possible));
        }
        self.possible = left;
        self.open[place] = None;
        self.forget_certain();
        HistoryVerdict::Linearizable
    }

    /// Removes operations that were given up and have taken effect in all configurations.
    fn forget_certain(&mut self) {
        for group in 0..self.given_up.len() {
            let counts = self.possible.0.iter().map(|one| count(&one.given_up, group));
            let certain = counts.min().unwrap_or(0);
            if certain > 0 {
                self.given_up[group].begun -= certain;
                let all = std::mem::take(&mut self.possible.0).into_iter();
                let reduced = all.map(|mut one| {
                    one.reduce(group, certain);
                    one
                });
                self.possible.0 = reduced.collect();
            }
        }
    }

    /// Returns everything that can follow from the possible configurations, up to the point where
    /// the operation at `last` has taken effect. Returns `None` if there are too many
    /// configurations.
    fn closure(&self, last: Places) -> Option<Possible> {
        let open: Vec<(Places, &RegisterOperation)> = self.open().collect();
        let uncertain = open.iter().filter(|(_, operation)| is_uncertain(operation));
        let uncertain = uncertain.fold(0, |places, (bit, _)| places | bit);
        let mut all = Possible::default();
        let mut next: VecDeque<RegisterConfiguration> = self.possible.0.iter().cloned().collect();
        while let Some(mut now) = next.pop_front() {
            now.taken = self.settle(now.value, now.taken, &open);
            if !all.add(now.clone()) || now.taken & last != 0 {
                continue;
            }
            if self.may_be_gone(now.value) {
                next.push_back(now.step(expired(now.value), now.taken));
            }
            for &(bit, operation) in &open {
                let may_be_next = now.taken & bit == 0
                    && is_next_on_connection(operation, now.taken | uncertain, &open);
                if !may_be_next || is_uncertain(operation) && bit != last {
                    continue;
                }
                let taken = now.taken | bit | uncertain & earlier_on_connection(operation, &open);
                let values = after(now.value, operation, self.lives).into_iter().flatten();
                next.extend(values.map(|after| now.step(after, taken)));
            }
            for bit in now.value.iter().flat_map(|_| self.flushes_to_try(now.taken, &open)) {
                next.push_back(now.step(None, now.taken | bit));
            }
            next.extend(self.late(&now));
            if all.0.len() > CONFIGURATIONS_MAX {
                return None;
            }
        }
        Some(all)
    }

    /// Lets all operations take effect that can do so and change nothing, whatever the value. This
    /// excludes no possibility, and leaves only one of all possible orders of reads.
    fn settle(
        &self,
        value: RegisterValue,
        mut taken: Places,
        open: &[(Places, &RegisterOperation)],
    ) -> Places {
        let may_be_taken = |taken: Places, bit: Places, operation: &RegisterOperation| {
            taken & bit == 0
                && changes_nothing(operation)
                && is_next_on_connection(operation, taken, open)
                && after(value, operation, self.lives)[0].is_some()
        };
        while let Some((bit, _)) = open.iter().find(|(bit, one)| may_be_taken(taken, *bit, one)) {
            taken |= bit;
        }
        taken
    }

    /// Returns the uncertain flushes that must be tried now: the others lead to no result that
    /// these do not reach as well.
    fn flushes_to_try(&self, taken: Places, open: &[(Places, &RegisterOperation)]) -> Vec<Places> {
        let may_be_next = |(bit, operation): &&(Places, &RegisterOperation)| {
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
    fn late(&self, now: &RegisterConfiguration) -> impl Iterator<Item = RegisterConfiguration> {
        self.given_up.iter().enumerate().filter_map(move |(place, group)| {
            let value = effect(now.value, group.action);
            let may_be = count(&now.given_up, place) < group.begun && value != now.value;
            let given_up = || one_more(&now.given_up, place);
            may_be.then(|| RegisterConfiguration { value, taken: now.taken, given_up: given_up() })
        })
    }

    fn open(&self) -> impl Iterator<Item = (Places, &RegisterOperation)> {
        let open = self.open.iter().enumerate();
        open.filter_map(|(place, open)| Some((1 << place, &self.operations[(*open)?])))
    }

    /// Handles the loss of the server that held the register.
    fn lose(&mut self) -> HistoryVerdict {
        let Some(all) = self.closure(0) else { return HistoryVerdict::GaveUp };
        let ever = self.ever.as_mut().expect("losses are known from the beginning on");
        ever.extend(all.0.iter().map(|one| one.value));
        // The effects are lost; the operations need not take effect again.
        let taken: BTreeSet<(Places, GroupCounts)> =
            all.0.into_iter().map(|one| (one.taken, one.given_up)).collect();
        for (taken, given_up) in taken {
            ever.iter().for_each(|&value| {
                let given_up = given_up.clone();
                self.possible.add(RegisterConfiguration { value, taken, given_up });
            });
        }
        HistoryVerdict::Linearizable
    }
}

/// Returns whether all earlier executed operations on its connection have taken effect.
fn is_next_on_connection(
    operation: &RegisterOperation,
    taken: Places,
    open: &[(Places, &RegisterOperation)],
) -> bool {
    earlier_on_connection(operation, open) & !taken == 0
}

fn earlier_on_connection(
    operation: &RegisterOperation,
    open: &[(Places, &RegisterOperation)],
) -> Places {
    let earlier = open.iter().filter(|(_, other)| is_earlier(other.place, operation.place));
    earlier.fold(0, |places, (bit, _)| places | bit)
}

/// Returns the uncertain flushes that end after a later request on their connection has begun.
fn succeeded(operations: &[RegisterOperation]) -> BTreeSet<usize> {
    let flushes = operations.iter().enumerate().filter(|(_, operation)| is_uncertain(operation));
    let is_succeeded = |flush: &RegisterOperation| {
        let mut others = operations.iter().filter(|other| is_earlier(flush.place, other.place));
        others.any(|other| other.begun < flush.ended)
    };
    flushes.filter(|(_, flush)| is_succeeded(flush)).map(|(place, _)| place).collect()
}

/// Number of operations that are shown before the unexplained one.
const SHOWN_BEFORE: usize = 12;

fn describe(operations: &[RegisterOperation], culprit: usize, possible: &Possible) -> String {
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_unstable_by_key(|&place| operations[place].begun);
    let at = order.iter().position(|&place| place == culprit).unwrap_or(0);
    let ended = operations[culprit].ended;
    let around = order[at.saturating_sub(SHOWN_BEFORE)..]
        .iter()
        .filter(|&&place| operations[place].begun < ended);
    let values: BTreeSet<String> = possible.0.iter().map(|one| values::shown(one.value)).collect();
    let mut text = format!("the register may hold {values:?}; no order explains the marked line\n");
    for &place in around {
        let mark = if place == culprit { "→" } else { " " };
        text.push_str(&format!("{mark} {}\n", operations[place]));
    }
    text
}

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
