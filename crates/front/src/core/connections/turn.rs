//! The state of one call into a connection, and the time of the commands that it executes.

use super::waits::Waits;
use crate::commands::{Command, flag};
use crate::core::backend::Backend;
use std::time::Duration;
use types::{Instant, UnixMillis};

/// State shared by all executions of one call.
pub(crate) struct ConnectionTurn<'t> {
    pub(crate) backend: &'t mut Backend,
    pub(crate) waits: &'t mut Waits,
    pub(crate) now: Instant,
    pub(crate) wall: UnixMillis,
    pub(crate) meter: Meter,
    /// True if no more input follows the current request.
    pub(crate) is_last: bool,
}

impl<'t> ConnectionTurn<'t> {
    /// Returns the state for requests of one connection, before the first is executed.
    #[inline]
    pub(crate) fn new(
        backend: &'t mut Backend,
        waits: &'t mut Waits,
        now: Instant,
        wall: UnixMillis,
    ) -> ConnectionTurn<'t> {
        ConnectionTurn { backend, waits, now, wall, meter: Meter::default(), is_last: true }
    }

    /// Begins to measure a command.
    #[inline]
    pub(super) fn begin(&mut self, command: &Command) {
        self.meter.begin(command, self.backend, self.now);
    }
}

/// Measures the execution times of consecutive commands of one connection.
///
/// Reading the clock costs a tenth of a short command. In a deep pipeline, short commands are
/// therefore measured in groups, and each counts with the group's average.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Start of the time that no command is charged with yet.
    since: Option<Instant>,
    /// Numbers of the commands since then.
    group: [u16; GROUP_MAX],
    len: usize,
}

const GROUP_MAX: usize = 8;

impl Meter {
    /// Begins to measure a command. A command that may be slow gets a group of its own.
    #[inline]
    pub(super) fn begin(&mut self, command: &Command, backend: &Backend, now: Instant) {
        if self.since.is_none() {
            self.since = Some(backend.engine.time_within_turn(now));
        } else if self.len > 0 && !is_short(command) {
            self.end_group(backend, now);
        }
    }

    /// Adds an executed command to the group.
    #[inline]
    pub(super) fn add(&mut self, number: usize) {
        self.group[self.len] = number as u16;
        self.len += 1;
    }

    /// Returns whether the group consists of one command.
    #[inline]
    pub(super) fn is_one(&self) -> bool {
        self.len == 1
    }

    /// Returns whether the group has no room for another command.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == GROUP_MAX
    }

    /// Charges the commands of the group with their average time. Returns the total.
    pub(super) fn end_group(&mut self, backend: &Backend, now: Instant) -> Duration {
        let end = backend.engine.time_within_turn(now);
        let spent = self.since.replace(end).map_or(Duration::ZERO, |since| end.since(since));
        let each = spent / self.len.max(1) as u32;
        for number in &self.group[..self.len] {
            backend.counts.of_command(usize::from(*number)).called(each);
        }
        self.len = 0;
        spent
    }

    /// Ends the group. The time after this call is charged to no command.
    #[inline]
    pub(crate) fn finish(&mut self, backend: &Backend, now: Instant) {
        if self.len > 0 {
            self.end_group(backend, now);
        }
        self.since = None;
    }
}

/// Returns whether a command is fast whatever its arguments are.
#[inline]
pub(super) fn is_short(command: &Command) -> bool {
    command.has(flag::FAST) || (command.has(flag::DENYOOM) && command.names_one_key())
}
