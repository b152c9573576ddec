//! The clocks of a coordinator. Only the shell reads them.

use coordinator::Moment;
use std::time::{SystemTime, UNIX_EPOCH};
use types::{Instant, UnixMillis};

/// The clocks since the coordinator's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShellClock {
    start: std::time::Instant,
}

impl ShellClock {
    #[expect(clippy::disallowed_methods, reason = "the shell brings time in")]
    pub(crate) fn start() -> ShellClock {
        ShellClock { start: std::time::Instant::now() }
    }

    /// Returns the monotonic time.
    pub(crate) fn now(self) -> Instant {
        Instant(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the time by both clocks.
    #[expect(clippy::disallowed_methods, reason = "the shell brings time in")]
    pub(crate) fn moment(self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Moment { now: self.now(), wall: UnixMillis(wall) }
    }
}
