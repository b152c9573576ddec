//! The queue of effects that a machine hands to its driver.

/// The effects of a machine, in the order in which the driver applies them.
///
/// The driver empties the outbox after each `handle` and keeps the order across calls: it applies
/// the effects of one call before those of the next. Effects documented as independent work
/// (pulls, replays, deletions) may run on any reactor in any order.
#[derive(Debug)]
pub struct Outbox<E> {
    effects: Vec<E>,
}

impl<E> Outbox<E> {
    /// Creates an empty outbox.
    pub fn new() -> Outbox<E> {
        Outbox { effects: Vec::new() }
    }

    /// Appends an effect.
    pub fn push(&mut self, effect: E) {
        self.effects.push(effect);
    }

    /// Removes and returns all effects, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = E> {
        self.effects.drain(..)
    }

    /// Removes and returns the first effect. Applying it may append further effects.
    pub fn take_first(&mut self) -> Option<E> {
        if self.effects.is_empty() { None } else { Some(self.effects.remove(0)) }
    }

    /// Returns whether no effect is queued.
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }
}

impl<E> Default for Outbox<E> {
    fn default() -> Outbox<E> {
        Outbox::new()
    }
}
