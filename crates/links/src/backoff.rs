//! Pauses between a server's attempts to reach its coordinator.

use std::time::Duration;

/// Pause before the first reconnection attempt. Each further attempt doubles the pause.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause: well below the time after which the coordinator declares a server dead.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Pause after the coordinator has refused a known server. An operator has to act, and then all
/// servers must be back well before the new coordinator declares the absent ones dead.
const PAUSE_REFUSED: Duration = Duration::from_secs(1);

/// The outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The coordinator had accepted this server; the connection has ended since.
    Joined,
    /// The coordinator was unreachable or did not follow the protocol.
    Failed,
    /// One side has refused the other.
    Refused,
}

/// The pauses of one link.
#[derive(Clone, Debug)]
pub struct Backoff {
    pause: Duration,
    has_joined: bool,
}

impl Backoff {
    /// Begins before the first attempt.
    pub fn new() -> Backoff {
        Backoff { pause: PAUSE_MIN, has_joined: false }
    }

    /// Returns the pause before the next attempt; `None` if there shall be none, because a server
    /// that has never joined was refused.
    pub fn handle(&mut self, outcome: AttemptOutcome) -> Option<Duration> {
        self.pause = match outcome {
            AttemptOutcome::Joined => {
                self.has_joined = true;
                PAUSE_MIN
            }
            AttemptOutcome::Failed => (self.pause * 2).min(PAUSE_MAX),
            AttemptOutcome::Refused if !self.has_joined => return None,
            AttemptOutcome::Refused => PAUSE_REFUSED,
        };
        Some(self.pause)
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AttemptOutcome::{Failed, Joined, Refused};

    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew_after_a_join() {
        let mut backoff = Backoff::new();
        let mut pauses = |outcomes: &[AttemptOutcome]| -> Vec<u128> {
            let pauses = outcomes.iter().map(|outcome| backoff.handle(*outcome));
            pauses.map(|pause| pause.expect("attempts continue").as_millis()).collect()
        };
        assert_eq!(pauses(&[Failed; 7]), [20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pauses(&[Joined, Failed, Failed]), [10, 20, 40]);
        assert_eq!(pauses(&[Refused, Refused, Failed, Joined]), [1_000, 1_000, 500, 10]);
    }

    #[test]
    fn only_a_server_that_has_joined_continues_after_a_refusal() {
        let mut backoff = Backoff::new();
        assert!(backoff.handle(Failed).is_some());
        assert_eq!(backoff.handle(Refused), None);
    }
}
