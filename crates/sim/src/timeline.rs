//! Virtual time of a run: its planned events, random numbers, trace, phase and failure.
//!
//! Time jumps from event to event. Events of the same moment happen in the order in which they
//! were planned, and all random numbers come from one generator, so the seed decides everything.

use crate::control_streams::{ControlEnd, ControlInput};
use crate::failure::Failure;
use crate::native::NativeEvent;
use crate::reactor::Inbound;
use crate::reactor_bus::StreamInput;
use crate::servers::SharedTime;
use crate::trace::Trace;
use coordinator::LinkId;
use fastrand::Rng;
use node::DiskJob;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;
use types::{ConnectionId, Instant, ServerId, UnixMillis};

/// Wall clock at the start of a run, in milliseconds.
const WALL_START: u64 = 1_700_000_000_000;

/// Reactor of a server, by the server's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReactorPlace {
    pub(crate) server: usize,
    pub(crate) reactor: usize,
}

/// Planned accident or repair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accident {
    ServerDies(usize),
    CoordinatorStops,
    /// A disk works again.
    DiskRecovers(usize),
}

/// Planned event. Small, since the timeline stores events by value.
pub(crate) enum PlannedEvent {
    Turn(ReactorPlace),
    Arrive(ReactorPlace, Inbound),
    /// Something happens at one end of a stream.
    Stream(ReactorPlace, ConnectionId, StreamInput),
    /// A reactor can send more in one of its streams.
    Room(ReactorPlace),
    /// Something happens at one end of a connection to a coordinator.
    Control(LinkId, ControlEnd, ControlInput),
    /// A process is told that another server serves its ranges.
    Fenced(usize),
    /// Reply bytes of a server arrive at a client.
    Answer(front::core::ConnectionId, Vec<u8>),
    Think(usize),
    /// A client notices that its connection is broken.
    Broken(front::core::ConnectionId),
    /// The job of this slot is refused, since no process listens at its server's address.
    Refused(usize),
    /// A client sends the refused operation of this slot again.
    Retry(usize),
    Native(NativeEvent),
    Move,
    Fault,
    Rejoin(usize),
    /// A disk has finished a job of a reactor.
    Disk(ReactorPlace, Box<DiskJob>),
    /// A process starts in place of a dead one.
    Start(usize),
    /// The deadline of a coordinator.
    Coordinator(u32),
    /// The commit with this number of a coordinator ends.
    Committed(u32, u64),
    /// A connection to a coordinator breaks.
    Sever(LinkId),
    /// Another coordinator opens the store, unless one leads.
    Lead,
    /// An operator restores the newest store.
    RestoreStore,
    Accident(Accident),
    /// The simulator looks which servers are well.
    Inspection,
    Rest,
}

impl PlannedEvent {
    /// Returns whether the event reaches a process at this place, and is lost if the process dies.
    fn is_lost_with(&self, place: usize) -> bool {
        match self {
            PlannedEvent::Turn(at)
            | PlannedEvent::Arrive(at, _)
            | PlannedEvent::Stream(at, _, _)
            | PlannedEvent::Room(at)
            | PlannedEvent::Disk(at, _) => at.server == place,
            PlannedEvent::Rejoin(at) | PlannedEvent::Fenced(at) => *at == place,
            PlannedEvent::Control(..)
            | PlannedEvent::Sever(_)
            | PlannedEvent::Answer(..)
            | PlannedEvent::Broken(_)
            | PlannedEvent::Think(_)
            | PlannedEvent::Refused(_)
            | PlannedEvent::Retry(_)
            | PlannedEvent::Native(_)
            | PlannedEvent::Inspection
            | PlannedEvent::Move
            | PlannedEvent::Fault
            | PlannedEvent::Start(_)
            | PlannedEvent::Coordinator(_)
            | PlannedEvent::Committed(..)
            | PlannedEvent::Lead
            | PlannedEvent::RestoreStore
            | PlannedEvent::Accident(_)
            | PlannedEvent::Rest => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    Working,
    /// The faults have ended, and one that lasts will begin when the cluster is whole.
    Healing,
    /// Clients work while one fault lasts.
    Enduring,
    Resting,
    /// Final reads; contains the number of closing jobs that have begun.
    Reading(usize),
}

/// Virtual time of a run. Every component plans its events here and draws its random numbers here.
pub(crate) struct RunTimeline {
    pub(crate) now: Instant,
    /// The same time, for reactors that read the clock within a turn.
    pub(crate) shared: SharedTime,
    pub(crate) rng: Rng,
    pub(crate) phase: RunPhase,
    events: BTreeMap<(Instant, u64), PlannedEvent>,
    planned: u64,
    trace: Trace,
    failure: Option<Failure>,
}

impl RunTimeline {
    pub(crate) fn new(rng: Rng, trace: Trace) -> RunTimeline {
        RunTimeline {
            now: Instant(0),
            shared: SharedTime::new(Instant(0).into()),
            rng,
            phase: RunPhase::Working,
            events: BTreeMap::new(),
            planned: 0,
            trace,
            failure: None,
        }
    }

    /// Advances time to the next event and returns it. Returns `None` at the end of the run.
    pub(crate) fn next_event(&mut self) -> Option<PlannedEvent> {
        if self.failure.is_some() {
            return None;
        }
        let ((at, _), event) = self.events.pop_first()?;
        assert!(at >= self.now, "virtual time never goes back");
        self.now = at;
        self.shared.set(at);
        Some(event)
    }

    pub(crate) fn plan_at(&mut self, at: Instant, event: PlannedEvent) {
        self.planned += 1;
        self.events.insert((at, self.planned), event);
    }

    pub(crate) fn plan_in(&mut self, delay: Duration, event: PlannedEvent) {
        self.plan_at(self.now + delay, event);
    }

    /// Cancels all events that reach a process at this place, since the process has died.
    pub(crate) fn cancel_events_at(&mut self, place: usize) {
        self.events.retain(|_, event| !event.is_lost_with(place));
    }

    /// Cancels the messages in transit from a server to others at these places.
    pub(crate) fn cancel_messages_from(&mut self, from: ServerId, places: &[usize]) {
        self.events.retain(|_, event| match event {
            PlannedEvent::Arrive(at, inbound) => {
                !(inbound.is_from(from) && places.contains(&at.server))
            }
            _ => true,
        });
    }

    /// Cancels the replies in transit on a client's connection.
    pub(crate) fn cancel_replies_on(&mut self, connection: front::core::ConnectionId) {
        self.events.retain(|_, event| match event {
            PlannedEvent::Answer(of, _) => *of != connection,
            _ => true,
        });
    }

    /// Cancels all events, so that the run ends.
    pub(crate) fn cancel_all(&mut self) {
        self.events.clear();
    }

    /// Draws a duration in microseconds.
    pub(crate) fn micros(&mut self, range: Range<u64>) -> Duration {
        Duration::from_micros(self.rng.u64(range))
    }

    /// Returns the true wall clock, which the clocks of servers lead.
    pub(crate) fn wall(&self) -> UnixMillis {
        UnixMillis(WALL_START + self.now.0 / 1_000_000)
    }

    pub(crate) fn is_working(&self) -> bool {
        self.phase == RunPhase::Working
    }

    /// Adds an event to the trace that is completely described by its line.
    pub(crate) fn note(&mut self, line: fmt::Arguments<'_>) {
        self.trace.note(self.now, line);
    }

    /// Adds an event to the trace that these numbers and bytes describe completely.
    pub(crate) fn note_bytes(&mut self, numbers: &[u64], bytes: &[u8], line: fmt::Arguments<'_>) {
        self.trace.note_bytes(self.now, numbers, bytes, line);
    }

    /// Prints a line about events that are already part of the trace.
    pub(crate) fn show(&self, line: fmt::Arguments<'_>) {
        self.trace.show(self.now, line);
    }

    /// Returns the fingerprint of all events so far.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.trace.hash()
    }

    /// Records a broken rule. The run ends after the current event; the last failure counts.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Removes and returns the failure of the run, if any.
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> RunTimeline {
        RunTimeline::new(Rng::with_seed(1), Trace::new(false))
    }

    fn clients(timeline: &mut RunTimeline) -> Vec<usize> {
        let events = std::iter::from_fn(|| timeline.next_event());
        let client = |event| match event {
            PlannedEvent::Think(client) => Some(client),
            _ => None,
        };
        events.filter_map(client).collect()
    }

    #[test]
    fn events_of_the_same_moment_happen_in_the_order_in_which_they_were_planned() {
        let mut timeline = timeline();
        timeline.plan_at(Instant(20), PlannedEvent::Think(1));
        timeline.plan_at(Instant(10), PlannedEvent::Think(2));
        timeline.plan_at(Instant(20), PlannedEvent::Think(3));
        assert_eq!(clients(&mut timeline), [2, 1, 3]);
        assert_eq!((timeline.now, timeline.shared.get()), (Instant(20), Instant(20)));
    }

    #[test]
    fn a_process_that_dies_loses_what_was_on_its_way_to_it() {
        let mut timeline = timeline();
        let at = ReactorPlace { server: 1, reactor: 0 };
        timeline.plan_at(Instant(10), PlannedEvent::Turn(at));
        timeline.plan_at(Instant(20), PlannedEvent::Rejoin(0));
        timeline.cancel_events_at(1);
        assert!(matches!(timeline.next_event(), Some(PlannedEvent::Rejoin(0))));
        assert!(timeline.next_event().is_none());
    }

    #[test]
    fn a_broken_rule_ends_the_run() {
        let mut timeline = timeline();
        timeline.plan_at(Instant(10), PlannedEvent::Move);
        timeline.fail(crate::failure::Rule::OneOwner.broken("two servers serve one range"));
        assert!(timeline.next_event().is_none());
    }

    #[test]
    #[should_panic(expected = "virtual time never goes back")]
    fn an_event_in_the_past_is_a_bug_of_the_simulator() {
        let mut timeline = timeline();
        timeline.plan_at(Instant(10), PlannedEvent::Move);
        timeline.next_event();
        timeline.plan_at(Instant(5), PlannedEvent::Move);
        timeline.next_event();
    }
}
