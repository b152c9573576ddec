//! Configurations: the states of a register that a history allows.

use super::operations::RegisterValue;
use std::collections::BTreeSet;

/// Set of open operations, one bit for each place.
pub(super) type Places = u64;

/// Number of operations of each group that have taken effect. Trailing zeros may be missing.
pub(super) type GroupCounts = Vec<u32>;

/// Possible state of the register and of its open operations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegisterConfiguration {
    pub(super) value: RegisterValue,
    /// Operations that will be answered and have taken effect.
    pub(super) taken: Places,
    /// Numbers of operations that were given up and have taken effect.
    pub(super) given_up: GroupCounts,
}

impl RegisterConfiguration {
    pub(super) fn initial() -> RegisterConfiguration {
        RegisterConfiguration { value: None, taken: 0, given_up: GroupCounts::new() }
    }

    /// Returns the configuration with this value, and these operations having taken effect.
    pub(super) fn step(&self, value: RegisterValue, taken: Places) -> RegisterConfiguration {
        RegisterConfiguration { value, taken, given_up: self.given_up.clone() }
    }

    /// Reduces the count of a group.
    pub(super) fn reduce(&mut self, group: usize, certain: u32) {
        let counts = &mut self.given_up;
        counts[group] -= certain;
        counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
    }
}

/// All possible configurations.
#[derive(Clone, Debug, Default)]
pub(super) struct Possible(pub(super) BTreeSet<RegisterConfiguration>);

impl Possible {
    /// Adds a configuration, unless a known one can do all that the new one can.
    pub(super) fn add(&mut self, new: RegisterConfiguration) -> bool {
        let is_like =
            |known: &&RegisterConfiguration| (known.value, known.taken) == (new.value, new.taken);
        let from = RegisterConfiguration { given_up: GroupCounts::new(), ..new };
        let mut alike = self.0.range(from..).take_while(is_like);
        !alike.any(|known| is_nowhere_more(&known.given_up, &new.given_up)) && self.0.insert(new)
    }
}

pub(super) fn count(counts: &[u32], group: usize) -> u32 {
    counts.get(group).copied().unwrap_or(0)
}

fn is_nowhere_more(counts: &[u32], than: &[u32]) -> bool {
    counts.iter().enumerate().all(|(group, &one)| one <= count(than, group))
}

pub(super) fn one_more(counts: &[u32], group: usize) -> GroupCounts {
    let mut counts = counts.to_vec();
    counts.resize(counts.len().max(group + 1), 0);
    counts[group] += 1;
    counts
}
