//! The server's expiry clock, which its reactors share: `protocols::clock` says how it runs.
//!
//! The first reactor leads it, ten times a second, or whenever the coordinator tells the reference.
//! How it runs from there on is a [`Line`] that every reactor has a copy of, so that a turn costs
//! one load and no lock; the line is taken anew when its number has changed.

use super::{Engine, Node};
use protocols::clock::{ExpiryClock, Line};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::{Instant, ReactorId, UnixMillis};

/// Pause between two looks at the server's own wall clock.
const LEAD_EVERY: Duration = Duration::from_millis(100);

/// The reactor that leads the clock.
const LEADER: ReactorId = ReactorId(0);

/// The clock of a server, from its first turn on.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// `None` before the first turn.
    machine: Mutex<Option<ExpiryClock>>,
    /// Rises with every change of the machine. 0 before the first turn.
    number: AtomicU64,
}

/// One reactor's copy of the line by which the clock runs.
#[derive(Debug)]
pub(super) struct ClockReader {
    line: Line,
    /// Number of the change that the line is of.
    number: u64,
    next_lead: Instant,
}

impl Default for ClockReader {
    fn default() -> ClockReader {
        let line = Line::new(Instant(0), UnixMillis(0));
        ClockReader { line, number: 0, next_lead: Instant(0) }
    }
}

impl ServerClock {
    fn machine(&self) -> MutexGuard<'_, Option<ExpiryClock>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the clock, which begins with the wall clock if there was no turn before.
    fn change(&self, now: Instant, wall: UnixMillis, change: impl FnOnce(&mut ExpiryClock)) {
        let mut machine = self.machine();
        let clock = machine.get_or_insert_with(|| ExpiryClock::new(now, wall));
        let before = clock.line();
        change(clock);
        if clock.line() != before || self.number.load(Ordering::Relaxed) == 0 {
            self.number.fetch_add(1, Ordering::Release);
        }
    }

    /// The clock; `None` before the first turn.
    pub(super) fn read(&self, now: Instant) -> Option<UnixMillis> {
        Some(self.machine().as_ref()?.line().read(now))
    }

    /// The wall clocks' reference less the clock, if they differ by so much that the clock does not
    /// follow.
    pub(super) fn doubt_millis(&self, now: Instant) -> Option<i64> {
        self.machine().as_ref()?.doubt_millis(now)
    }
}

impl Engine {
    /// The expiry clock of this turn. A server alone is led by its own wall clock here; a member of
    /// a cluster by the reference of all, which the coordinator tells.
    #[inline]
    pub(super) fn turn_clock(&mut self, now: Instant, wall: UnixMillis) -> UnixMillis {
        let reader = &mut self.clock;
        let is_due = self.reactor == LEADER && reader.next_lead <= now;
        if is_due || self.node.clock.number.load(Ordering::Acquire) != reader.number {
            self.lead_clock(now, wall, is_due);
        }
        self.clock.line.read(now)
    }

    #[cold]
    fn lead_clock(&mut self, now: Instant, wall: UnixMillis, is_due: bool) {
        let node = self.node.clone();
        let leads_itself = is_due && !node.is_cluster();
        if is_due {
            self.clock.next_lead = now + LEAD_EVERY;
        }
        if leads_itself || node.clock.number.load(Ordering::Acquire) == 0 {
            node.clock.change(now, wall, |clock| {
                if leads_itself {
                    clock.lead(now, wall);
                }
            });
        }
        self.take_line();
    }

    fn take_line(&mut self) {
        let node = self.node.clone();
        let machine = node.clock.machine();
        self.clock.number = node.clock.number.load(Ordering::Acquire);
        if let Some(clock) = machine.as_ref() {
            self.clock.line = clock.line();
        }
    }

    /// The coordinator tells what the members' wall clocks agree on.
    pub(super) fn lead_clock_from_afar(&mut self, now: Instant, reference: UnixMillis) {
        if self.node.is_cluster() {
            self.node.clock.change(now, reference, |clock| clock.lead_from_afar(now, reference));
        }
    }
}

impl Node {
    /// Difference of what the wall clocks agree on and the expiry clock, in ms, while the clock
    /// does not follow since it is too much; else 0.
    pub(super) fn clock_doubt(&self, now: Instant) -> i64 {
        self.clock.doubt_millis(now).unwrap_or(0)
    }

    /// An earlier process under this server's log has judged expiry by this time: the clock goes on
    /// from there.
    pub(super) fn resume_clock(&self, now: Instant, at: UnixMillis) {
        self.clock.change(now, at, |clock| clock.raise(now, at));
        self.store().raise_clock(at);
    }
}
