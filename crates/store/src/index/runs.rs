//! Allocation bitmap of a row of 1,024 units.

/// Units of a row.
pub(super) const UNITS: usize = 1024;

const BITS: usize = u64::BITS as usize;

/// The row. Adjacent free units form a run.
pub(super) struct Runs {
    /// Bits of the units in use.
    used: [u64; UNITS / BITS],
    longest: usize,
}

impl Runs {
    pub(super) fn new() -> Runs {
        Runs { used: [0; UNITS / BITS], longest: UNITS }
    }

    /// Returns the number of units of the longest run.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Takes `units` units from the shortest run that is long enough; returns the first unit.
    ///
    /// # Panics
    /// If the longest run is shorter.
    pub(super) fn take(&mut self, units: usize) -> usize {
        let mut best: Option<Run> = None;
        let mut longest_other = 0;
        for run in self.iter() {
            let is_best = run.units >= units && best.is_none_or(|best| run.units < best.units);
            let other = if is_best { best.replace(run) } else { Some(run) };
            longest_other = longest_other.max(other.map_or(0, |run| run.units));
            if is_best && run.units == units && units < self.longest {
                longest_other = self.longest;
                break;
            }
        }
        let best = best.expect("a run is long enough");
        debug_assert!(best.units >= units && best.units <= self.longest, "{units} units of a run");
        self.flip(best.first, units, 0);
        self.longest = longest_other.max(best.units - units);
        best.first
    }

    /// Frees units that [`Runs::take`] returned.
    ///
    /// # Panics
    /// If some of them are already free.
    pub(super) fn give(&mut self, first: usize, units: usize) {
        self.flip(first, units, u64::MAX);
        let begin = self.last_used(first).map_or(0, |used| used + 1);
        let end = self.next(first + units, true).unwrap_or(UNITS);
        assert!(end - begin >= units, "a run of {} units contains {units}", end - begin);
        self.longest = self.longest.max(end - begin);
    }

    /// Inverts the bits of these units, which must all be as in `expected`.
    fn flip(&mut self, first: usize, units: usize, expected: u64) {
        let mut at = first;
        while at < first + units {
            let bit = at % BITS;
            let count = (BITS - bit).min(first + units - at);
            let mask = (u64::MAX >> (BITS - count)) << bit;
            let word = &mut self.used[at / BITS];
            assert!((*word ^ expected) & mask == 0, "units {first}+{units} are not as they were");
            *word ^= mask;
            at += count;
        }
    }

    /// Returns the last unit before this one that is in use.
    fn last_used(&self, before: usize) -> Option<usize> {
        let mut group = before / BITS;
        let below = (1u64 << (before % BITS)) - 1;
        let mut bits = self.used.get(group).map_or(0, |bits| bits & below);
        while bits == 0 {
            group = group.checked_sub(1)?;
            bits = self.used[group];
        }
        Some(group * BITS + bits.ilog2() as usize)
    }

    /// Returns the runs, ascending.
    fn iter(&self) -> impl Iterator<Item = Run> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = self.next(at, false)?;
            at = self.next(first, true).unwrap_or(UNITS);
            Some(Run { first, units: at - first })
        })
    }

    /// Returns the first unit at or after `from` that is in use, or free.
    fn next(&self, from: usize, used: bool) -> Option<usize> {
        let flip = if used { 0 } else { u64::MAX };
        let mut group = from / BITS;
        let mut bits = *self.used.get(group)? ^ flip;
        bits &= u64::MAX << (from % BITS);
        while bits == 0 {
            group += 1;
            bits = *self.used.get(group)? ^ flip;
        }
        Some(group * BITS + bits.trailing_zeros() as usize)
    }
}

#[derive(Clone, Copy)]
struct Run {
    first: usize,
    units: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts unit by unit.
    fn longest_of(used: &[bool]) -> usize {
        used.split(|&used| used).map(<[bool]>::len).max().unwrap_or(0)
    }

    #[test]
    fn runs_agree_with_a_row_of_booleans() {
        let mut random = fastrand::Rng::with_seed(7);
        for largest in [1, 3, 64, 256, 1024] {
            let mut runs = Runs::new();
            let mut row = [false; UNITS];
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for _ in 0..3000 {
                let units = random.usize(1..=largest);
                if random.u32(0..5) < 3 && runs.longest() >= units {
                    let first = runs.take(units);
                    assert!(row[first..first + units].iter().all(|used| !used), "taken twice");
                    row[first..first + units].fill(true);
                    taken.push((first, units));
                } else if !taken.is_empty() {
                    let (first, units) = taken.swap_remove(random.usize(0..taken.len()));
                    runs.give(first, units);
                    row[first..first + units].fill(false);
                }
                assert_eq!(runs.longest(), longest_of(&row));
            }
        }
    }

    #[test]
    #[should_panic = "are not as they were"]
    fn freeing_units_twice_is_our_bug() {
        let mut runs = Runs::new();
        let first = runs.take(3);
        runs.give(first, 3);
        runs.give(first, 3);
    }
}
