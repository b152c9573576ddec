//! Where a machine puts what is to be done.

/// Effects, in the order in which they are to be carried out.
///
/// The driver empties it after each `handle`, and keeps the order also between two calls: an
/// effect of the first is carried out before one of the second. Effects that say so (pulls,
/// replays, forgetting) are independent pieces of work, which may be handed to any reactor.
#[derive(Debug)]
pub struct Outbox<E> {
    effects: Vec<E>,
}

impl<E> Outbox<E> {
    /// An empty one.
    pub fn new() -> Outbox<E> {
        Outbox { effects: Vec::new() }
    }

    /// Adds an effect behind all others.
    pub fn push(&mut self, effect: E) {
        self.effects.push(effect);
    }

    /// Takes all effects out.
    pub fn drain(&mut self) -> impl Iterator<Item = E> {
        self.effects.drain(..)
    }

    /// Takes the first effect out. Carrying it out may add others behind the rest.
    pub fn take_first(&mut self) -> Option<E> {
        if self.effects.is_empty() { None } else { Some(self.effects.remove(0)) }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }
}

impl<E> Default for Outbox<E> {
    fn default() -> Outbox<E> {
        Outbox::new()
    }
}
