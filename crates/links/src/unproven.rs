//! The limit on connections whose peer has not proven the cluster key.

use std::collections::VecDeque;

/// Most accepted connections with an incomplete handshake. An honest process needs only
/// milliseconds for it, so a further connection displaces the oldest.
pub const UNPROVEN_MAX: usize = 256;

/// The accepted connections with an incomplete handshake, oldest first.
pub struct UnprovenConnections<I> {
    connections: VecDeque<I>,
}

impl<I: Copy + PartialEq> UnprovenConnections<I> {
    /// Begins without connections.
    pub fn new() -> UnprovenConnections<I> {
        UnprovenConnections { connections: VecDeque::new() }
    }

    /// Adds a new connection. Returns the one that must be closed for it.
    pub fn add(&mut self, connection: I) -> Option<I> {
        let is_full = self.connections.len() >= UNPROVEN_MAX;
        let displaced = if is_full { self.connections.pop_front() } else { None };
        self.connections.push_back(connection);
        assert!(self.connections.len() <= UNPROVEN_MAX, "more unproven connections than the limit");
        displaced
    }

    /// Removes a connection that is proven or closed. Returns false if it was not unproven.
    pub fn remove(&mut self, connection: I) -> bool {
        let at = self.connections.iter().position(|one| *one == connection);
        at.and_then(|at| self.connections.remove(at)).is_some()
    }

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        self.connections.len()
    }
}

impl<I: Copy + PartialEq> Default for UnprovenConnections<I> {
    fn default() -> UnprovenConnections<I> {
        UnprovenConnections::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_above_the_limit_displaces_the_oldest() {
        let mut unproven = UnprovenConnections::new();
        assert!((0..UNPROVEN_MAX).all(|one| unproven.add(one).is_none()));
        assert!(unproven.remove(0) && !unproven.remove(0));
        assert_eq!(unproven.add(1_000), None);
        assert_eq!(unproven.add(1_001), Some(1));
        assert_eq!(unproven.count(), UNPROVEN_MAX);
    }
}
