//! Which of a row of 1,024 units are in use: a bit each.

/// Units of a row.
pub(super) const UNITS: usize = 1024;

const BITS: usize = u64::BITS as usize;

/// The row. Free units side by side are a run.
pub(super) struct Runs {
    /// Set: in use.
    used: [u64; UNITS / BITS],
    longest: usize,
}

impl Runs {
    pub(super) fn new() -> Runs {
        Runs { used: [0; UNITS / BITS], longest: UNITS }
    }

    /// Units of the longest run.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Takes this many units from the shortest run that has them; returns the first.
    ///
    /// # Panics
    /// If the longest run is shorter.
    pub(super) fn take(&mut self, units: usize) -> usize {
        let fits = self.iter().filter(|run| run.units >= units);
        let Run { first, .. } = fits.min_by_key(|run| run.units).expect("a run is long enough");
        self.mark(first, units, true);
        first
    }

    /// Gives back what [`Runs::take`] gave.
    ///
    /// # Panics
    /// If a part of it is free already.
    pub(super) fn give(&mut self, first: usize, units: usize) {
        self.mark(first, units, false);
    }

    fn mark(&mut self, first: usize, units: usize, used: bool) {
        let mut at = first;
        while at < first + units {
            let bit = at % BITS;
            let count = (BITS - bit).min(first + units - at);
            let mask = (u64::MAX >> (BITS - count)) << bit;
            let word = &mut self.used[at / BITS];
            assert!(
                *word & mask == if used { 0 } else { mask },
                "units {first}+{units} of a chunk"
            );
            *word ^= mask;
            at += count;
        }
        self.longest = self.iter().map(|run| run.units).max().unwrap_or(0);
    }

    /// The runs, ascending.
    fn iter(&self) -> impl Iterator<Item = Run> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = self.next(at, false)?;
            at = self.next(first, true).unwrap_or(UNITS);
            Some(Run { first, units: at - first })
        })
    }

    /// The first unit from here on that is in use, or free.
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
}
