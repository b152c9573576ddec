//! Notification of the reactors whose replies wait for acknowledgments.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Notifies reactors with pending replies that more bytes are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgments {
    /// Version that rises when more bytes are acknowledged.
    count: AtomicU64,
    /// Number of reactors with pending replies.
    holders: AtomicUsize,
}

impl Acknowledgments {
    /// Records that more bytes are acknowledged. Returns whether reactors other than the caller
    /// have pending replies and must be woken.
    pub(crate) fn tell(&self, caller_holds: bool) -> bool {
        // Sequentially consistent with `Engine::note_held`. Its caller reads the count once more
        // afterwards, so it cannot miss a rise.
        self.count.fetch_add(1, Ordering::SeqCst);
        let holders = self.holders.load(Ordering::SeqCst);
        assert!(holders >= usize::from(caller_holds), "a reactor with pending replies is counted");
        holders > usize::from(caller_holds)
    }

    /// Returns the version.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Records that one more reactor has pending replies, or one less. `reactors` is the number
    /// of all reactors.
    pub(crate) fn note_holder(&self, holds: bool, reactors: usize) {
        if holds {
            let before = self.holders.fetch_add(1, Ordering::SeqCst);
            assert!(before < reactors, "each reactor with pending replies is counted once");
        } else {
            let before = self.holders.fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "a reactor with pending replies was counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a reactor with pending replies is counted")]
    fn a_reactor_that_holds_replies_is_counted_before_it_waits() {
        let acknowledgments = Acknowledgments::default();
        assert!(!acknowledgments.tell(false), "no other reactor waits");
        acknowledgments.tell(true);
    }
}
