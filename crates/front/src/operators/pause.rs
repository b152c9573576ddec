//! `CLIENT PAUSE`: delays all requests, or those that change data, until a given time.

use std::sync::atomic::{AtomicU64, Ordering};
use types::Instant;

/// The requests that a pause delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Paused {
    Writes,
    All,
}

/// The ends of the current pauses. Each kind has its own end, in one word that every request reads
/// and operators rarely write.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    writes_until: AtomicU64,
    all_until: AtomicU64,
}

impl Pause {
    /// Begins a pause, or extends it.
    pub(crate) fn begin(&self, paused: Paused, until: Instant) {
        self.writes_until.fetch_max(until.0, Ordering::Relaxed);
        if paused == Paused::All {
            self.all_until.fetch_max(until.0, Ordering::Relaxed);
        }
    }

    /// Ends all pauses.
    pub(crate) fn end(&self) {
        self.writes_until.store(0, Ordering::Relaxed);
        self.all_until.store(0, Ordering::Relaxed);
    }

    /// Returns the pause in force.
    #[inline]
    pub(crate) fn at(&self, now: Instant) -> Option<Paused> {
        let until = self.writes_until.load(Ordering::Relaxed);
        if until <= now.0 {
            return None;
        }
        let all = self.all_until.load(Ordering::Relaxed) > now.0;
        Some(if all { Paused::All } else { Paused::Writes })
    }

    /// Returns when the next pause ends, if none is changed before.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        let ends = [&self.all_until, &self.writes_until].map(|end| end.load(Ordering::Relaxed));
        ends.into_iter().filter(|end| *end > now.0).min().map(Instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_holds_what_it_says_until_it_ends() {
        let pause = Pause::default();
        assert_eq!(pause.at(Instant(0)), None);
        pause.begin(Paused::Writes, Instant(10));
        pause.begin(Paused::All, Instant(5));
        assert_eq!(pause.at(Instant(4)), Some(Paused::All));
        assert_eq!(pause.next_end(Instant(4)), Some(Instant(5)));
        assert_eq!(pause.at(Instant(5)), Some(Paused::Writes));
        assert_eq!(pause.next_end(Instant(5)), Some(Instant(10)));
        assert_eq!(pause.at(Instant(10)), None);
        pause.begin(Paused::All, Instant(20));
        pause.end();
        assert_eq!(pause.at(Instant(11)), None);
    }
}
