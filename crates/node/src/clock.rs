//! The server's expiry clock, shared by its reactors. `protocols::clock` defines how it runs.
//!
//! The first reactor steers the clock ten times a second, or whenever the coordinator sends a
//! reference. In between the clock follows a [`ClockLine`], of which every reactor has a copy. So a
//! turn costs one load and no lock; a reactor copies the line again when its number has changed.

use protocols::clock::{ClockLine, ExpiryClock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{Instant, ReactorId, UnixMillis};

/// Interval at which the clock is compared with the server's own wall clock.
const LEAD_EVERY: Duration = Duration::from_millis(100);

/// The reactor that steers the clock.
const LEADER: ReactorId = ReactorId(0);

/// The expiry clock of a server, from its first turn on.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// Set if the coordinator's references steer the clock, not the own wall clock.
    is_cluster: bool,
    /// State of the clock; `None` before the first turn.
    machine: Mutex<Option<ExpiryClock>>,
    /// Number of changes of the line; 0 before the first turn.
    number: AtomicU64,
}

/// One reactor's copy of the line that the clock follows.
#[derive(Debug)]
pub(crate) struct ClockReader {
    line: ClockLine,
    /// Number of the change that produced the line.
    number: u64,
    next_lead: Instant,
}

impl Default for ClockReader {
    fn default() -> ClockReader {
        let line = ClockLine::new(Instant(0), UnixMillis(0));
        ClockReader { line, number: 0, next_lead: Instant(0) }
    }
}

impl ServerClock {
    pub(crate) fn new(is_cluster: bool) -> ServerClock {
        ServerClock { is_cluster, machine: Mutex::default(), number: AtomicU64::new(0) }
    }

    fn machine(&self) -> MutexGuard<'_, Option<ExpiryClock>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the clock. It starts at the wall clock if there was no turn before.
    fn change(&self, now: Instant, wall: UnixMillis, change: impl FnOnce(&mut ExpiryClock)) {
        let mut machine = self.machine();
        let clock = machine.get_or_insert_with(|| ExpiryClock::new(now, wall));
        let before = clock.line();
        change(clock);
        if clock.line() != before || self.number.load(Ordering::Relaxed) == 0 {
            self.number.fetch_add(1, Ordering::Release);
        }
    }

    /// Steers the clock by the reference that the members' wall clocks agree on.
    pub(crate) fn lead_from_afar(&self, now: Instant, reference: UnixMillis) {
        if self.is_cluster {
            self.change(now, reference, |clock| clock.lead_from_afar(now, reference));
        }
    }

    /// Advances the clock to the time that an earlier process of this log had reached.
    pub(crate) fn resume(&self, now: Instant, at: UnixMillis) {
        self.change(now, at, |clock| clock.raise(now, at));
    }

    /// Returns the clock; `None` before the first turn.
    pub(crate) fn read(&self, now: Instant) -> Option<UnixMillis> {
        Some(self.machine().as_ref()?.line().read(now))
    }

    /// Returns reference minus clock, in milliseconds, while that is too large to follow.
    pub(crate) fn doubt_millis(&self, now: Instant) -> Option<i64> {
        self.machine().as_ref()?.doubt_millis(now)
    }
}

impl ClockReader {
    /// Returns the expiry clock of this turn. A server alone steers it by its own wall clock
    /// here, a member of a cluster by the coordinator's reference.
    #[inline]
    pub(crate) fn turn_clock(
        &mut self,
        now: Instant,
        wall: UnixMillis,
        reactor: ReactorId,
        clock: &ServerClock,
    ) -> UnixMillis {
        let is_due = reactor == LEADER && self.next_lead <= now;
        if is_due || clock.number.load(Ordering::Acquire) != self.number {
            self.lead(now, wall, is_due, clock);
        }
        self.line.read(now)
    }

    #[cold]
    fn lead(&mut self, now: Instant, wall: UnixMillis, is_due: bool, clock: &ServerClock) {
        let leads_itself = is_due && !clock.is_cluster;
        if is_due {
            self.next_lead = now + LEAD_EVERY;
        }
        if leads_itself || clock.number.load(Ordering::Acquire) == 0 {
            clock.change(now, wall, |clock| {
                if leads_itself {
                    clock.lead(now, wall);
                }
            });
        }
        self.take_line(clock);
        assert!(self.number > 0, "the clock runs from the first turn on");
    }

    fn take_line(&mut self, clock: &ServerClock) {
        let machine = clock.machine();
        let before = self.number;
        self.number = clock.number.load(Ordering::Acquire);
        assert!(before <= self.number, "a line is never replaced by an older one");
        assert_eq!(self.number == 0, machine.is_none(), "a clock that runs has a line");
        if let Some(clock) = machine.as_ref() {
            self.line = clock.line();
        }
    }

    /// Returns the clock at a time, by the line that this reactor knows.
    pub(crate) fn read(&self, now: Instant) -> UnixMillis {
        self.line.read(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a clock that runs has a line")]
    fn the_line_changes_with_the_clock() {
        let clock = ServerClock { number: AtomicU64::new(1), ..ServerClock::new(false) };
        ClockReader::default().take_line(&clock);
    }
}
