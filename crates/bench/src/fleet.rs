//! All connections of one thread, and the waiting for them and for the clock.

use crate::connection::LoadConnection;
use crate::slot_map::{NodeIndex, SlotMap};
use anyhow::Result;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;
use types::Instant;

/// Time after the loss of a connection in which it is not opened again.
const RECONNECT_AFTER: Duration = Duration::from_millis(100);
/// Maximal number of events taken from the kernel at once; more come with the next call.
const EVENTS_MAX: usize = 64;
/// Data of the timer's event, in place of an index in `lines`.
const TIMER: u64 = u64::MAX;

/// Index of a connection of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LineIndex(usize);

/// Connections of one thread, with the same number of lines to each server.
pub(crate) struct Fleet<P> {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Time at which the timer fires; 0 if it has fired.
    armed: Instant,
    lines_per_node: u32,
    lines: Vec<LineState<P>>,
    unsent: Vec<LineIndex>,
}

enum LineState<P> {
    /// Opened by the next request, but not before this moment.
    Closed {
        retry: Instant,
    },
    Open {
        connection: Box<LoadConnection<P>>,
        sending: OutputState,
    },
}

/// State of a line's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OutputState {
    Nothing,
    /// The line is in `unsent`.
    Queued,
    /// The socket is full; the kernel reports when it can take more.
    Blocked,
}

impl<P> Fleet<P> {
    /// Creates a fleet without open connections, with this many lines to each server.
    pub(crate) fn new(lines_per_node: u32) -> Result<Fleet<P>> {
        assert!(lines_per_node > 0, "a server needs a line");
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Edge-triggered: each expiry is one event, so that the timer need not be read.
        let interest = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), interest)?;
        Ok(Fleet {
            epoll,
            timer,
            armed: Instant(0),
            lines_per_node,
            lines: Vec::new(),
            unsent: Vec::new(),
        })
    }

    /// Returns the line to `node` that requests with this number share.
    #[inline]
    pub(crate) fn line(&self, node: NodeIndex, number: u32) -> LineIndex {
        LineIndex((u32::from(node.0) * self.lines_per_node + number % self.lines_per_node) as usize)
    }

    /// Returns the connection of a line, for a new request; opens it if necessary. Returns `None`
    /// if it was lost a moment ago.
    #[inline]
    pub(crate) fn connection(
        &mut self,
        line: LineIndex,
        routes: &SlotMap,
        now: Instant,
    ) -> Option<&mut LoadConnection<P>> {
        if !self.is_open(line) && (!self.may_open(line, now) || self.open(line, routes).is_err()) {
            return None;
        }
        let LineState::Open { connection, sending } = &mut self.lines[line.0] else {
            unreachable!("opened above")
        };
        if *sending == OutputState::Nothing {
            *sending = OutputState::Queued;
            self.unsent.push(line);
        }
        connection.record_idle(now);
        Some(connection)
    }

    pub(crate) fn node(&self, line: LineIndex) -> NodeIndex {
        NodeIndex((line.0 as u32 / self.lines_per_node) as u16)
    }

    /// Returns whether a line is open: as far as is known, its server runs.
    #[inline]
    pub(crate) fn is_open(&self, line: LineIndex) -> bool {
        matches!(self.lines.get(line.0), Some(LineState::Open { .. }))
    }

    /// Returns whether a line is open, or may be opened.
    #[inline]
    pub(crate) fn may_open(&self, line: LineIndex, now: Instant) -> bool {
        match self.lines.get(line.0) {
            Some(LineState::Closed { retry }) => now >= *retry,
            Some(LineState::Open { .. }) | None => true,
        }
    }

    /// Returns the lines on which a server has owed answers and sent nothing for longer than
    /// `longest`.
    pub(crate) fn silent_lines(&self, now: Instant, longest: Duration) -> Vec<LineIndex> {
        let is_silent = |line: &LineIndex| match &self.lines[line.0] {
            LineState::Open { connection, .. } => connection.is_silent(now, longest),
            LineState::Closed { .. } => false,
        };
        (0..self.lines.len()).map(LineIndex).filter(is_silent).collect()
    }

    /// Opens all lines to the known servers.
    pub(crate) fn open_all(&mut self, routes: &SlotMap) -> Result<()> {
        for node in routes.nodes() {
            for number in 0..self.lines_per_node {
                self.open(self.line(node, number), routes)?;
            }
        }
        Ok(())
    }

    fn open(&mut self, line: LineIndex, routes: &SlotMap) -> Result<()> {
        if line.0 >= self.lines.len() {
            self.lines.resize_with(line.0 + 1, || LineState::Closed { retry: Instant(0) });
        }
        let connection = Box::new(LoadConnection::open(routes.address(self.node(line)))?);
        let data = EventData::new_u64(line.0 as u64);
        epoll::add(&self.epoll, &*connection, data, EventFlags::IN)?;
        self.lines[line.0] = LineState::Open { connection, sending: OutputState::Nothing };
        Ok(())
    }

    /// Returns the connection of a line with an event; `None` if it was closed since.
    pub(crate) fn open_connection(&mut self, line: LineIndex) -> Option<&mut LoadConnection<P>> {
        match &mut self.lines[line.0] {
            LineState::Open { connection, .. } => Some(connection),
            LineState::Closed { .. } => None,
        }
    }

    /// Closes a line, and returns the unanswered requests, each with whether a byte of it was
    /// sent.
    pub(crate) fn close(
        &mut self,
        line: LineIndex,
        now: Instant,
    ) -> impl Iterator<Item = (P, bool)> + use<P> {
        let closed = LineState::Closed { retry: now + RECONNECT_AFTER };
        let pending = match std::mem::replace(&mut self.lines[line.0], closed) {
            // Dropping the socket removes it from epoll.
            LineState::Open { connection, .. } => Some(connection.into_pending()),
            LineState::Closed { .. } => None,
        };
        pending.into_iter().flatten()
    }

    /// Returns all open lines, to close them at the end.
    pub(crate) fn open_lines(&self) -> Vec<LineIndex> {
        (0..self.lines.len()).map(LineIndex).filter(|line| self.is_open(*line)).collect()
    }

    /// Sends all requests that were added since the last call. Adds failed lines to `broken`.
    pub(crate) fn flush(&mut self, broken: &mut Vec<LineIndex>) {
        for line in std::mem::take(&mut self.unsent) {
            self.flush_line(line, broken);
        }
    }

    fn flush_line(&mut self, line: LineIndex, broken: &mut Vec<LineIndex>) {
        let LineState::Open { connection, sending } = &mut self.lines[line.0] else { return };
        let was_blocked = *sending == OutputState::Blocked;
        let interest = match connection.flush() {
            Ok(true) => {
                *sending = OutputState::Nothing;
                EventFlags::IN
            }
            Ok(false) => {
                *sending = OutputState::Blocked;
                EventFlags::IN | EventFlags::OUT
            }
            Err(_) => return broken.push(line),
        };
        if was_blocked != (*sending == OutputState::Blocked) {
            let data = EventData::new_u64(line.0 as u64);
            if epoll::modify(&self.epoll, &**connection, data, interest).is_err() {
                broken.push(line);
            }
        }
    }

    /// Waits until something arrives or the timer fires. Fills `readable` with the lines to
    /// receive from, and continues to send blocked output.
    pub(crate) fn wait(
        &mut self,
        until: Instant,
        readable: &mut Vec<LineIndex>,
        broken: &mut Vec<LineIndex>,
    ) -> Result<()> {
        self.arm(until)?;
        self.take_events(None, readable, broken)
    }

    /// Does the same as [`Fleet::wait`], but only for events that have already happened.
    pub(crate) fn poll(
        &mut self,
        readable: &mut Vec<LineIndex>,
        broken: &mut Vec<LineIndex>,
    ) -> Result<()> {
        self.take_events(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }), readable, broken)
    }

    fn take_events(
        &mut self,
        timeout: Option<&Timespec>,
        readable: &mut Vec<LineIndex>,
        broken: &mut Vec<LineIndex>,
    ) -> Result<()> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        let (events, _) = match epoll::wait(&self.epoll, &mut events, timeout) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            events => events?,
        };
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == TIMER {
                self.armed = Instant(0);
                continue;
            }
            let line = LineIndex(data as usize);
            if flags.contains(EventFlags::OUT) {
                self.flush_line(line, broken);
            }
            if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
                readable.push(line);
            }
        }
        Ok(())
    }

    /// Sets the timer. A moment in the past fires at once.
    fn arm(&mut self, until: Instant) -> Result<()> {
        if self.armed == until {
            return Ok(());
        }
        self.armed = until;
        let left = until.since(crate::clock::now()).max(Duration::from_nanos(1));
        let time = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }
}
