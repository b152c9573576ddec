//! The interface by which one driver runs every machine.

use crate::Outbox;
use types::Instant;

/// A state machine without input and output.
pub trait Machine {
    /// Input of the machine.
    type Event;
    /// Output of the machine, in the order in which the driver applies it.
    type Effect;

    /// The event that a passed deadline is.
    const TICK: Self::Event;

    /// Processes one event and appends the resulting effects to `out`.
    fn handle(&mut self, now: Instant, event: Self::Event, out: &mut Outbox<Self::Effect>);

    /// Returns when [`Machine::TICK`] is due, if no other event comes first.
    fn next_deadline(&self) -> Option<Instant>;
}
