//! Warnings about records of migrations that cannot be replayed. The records are requested again,
//! four times a second for each partition and reactor, until the cause is gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::ReplayError;
use types::{Instant, MigrationId};

/// Least time between two warnings.
const WARNING_PAUSE: Duration = Duration::from_secs(1);

/// Rate limit for the warnings of all reactors.
#[derive(Debug, Default)]
pub(crate) struct ReplayWarnings {
    /// Time from which the next warning is allowed, in nanoseconds.
    next: AtomicU64,
}

impl ReplayWarnings {
    /// Logs a warning about a failed replay, unless the last one is recent.
    pub(crate) fn warn(&self, now: Instant, migration: MigrationId, error: &ReplayError) {
        if !self.is_due(now) {
            return;
        }
        let advice = match error {
            ReplayError::Corrupt(_) => "check the network between the servers",
            ReplayError::OutOfMemory => {
                "raise --memory (or maxmemory, if it was lowered), or delete records"
            }
        };
        tracing::warn!(
            %migration, %error, advice,
            "cannot replay records that arrive, requesting them again; operations on them wait"
        );
    }

    fn is_due(&self, now: Instant) -> bool {
        let next = (now + WARNING_PAUSE).0;
        let pass = |before| (before <= now.0).then_some(next);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_are_reported_once_a_second() {
        let warnings = ReplayWarnings::default();
        let at = |retry| Instant(1) + Duration::from_millis(250) * retry;
        let reported: Vec<u32> = (0..10).filter(|retry| warnings.is_due(at(*retry))).collect();
        assert_eq!(reported, [0, 4, 8]);
    }
}
