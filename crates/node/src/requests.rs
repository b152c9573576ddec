//! Requests of this reactor to the coordinator, and the reactor for each message from it.

use std::collections::BTreeSet;
use types::ReactorId;
use wire::control::FromCoordinator;

/// Outstanding requests of one reactor to the coordinator.
pub(crate) struct CoordinatorRequests {
    /// Number of the last request.
    last: u64,
    /// Numbers of those that ask for a flush.
    flushing: BTreeSet<u64>,
}

impl CoordinatorRequests {
    pub(crate) fn new(reactor: ReactorId) -> CoordinatorRequests {
        let last = u64::from(reactor.0) << REQUEST_REACTOR_SHIFT;
        CoordinatorRequests { last, flushing: BTreeSet::new() }
    }

    /// Returns the number of a new request.
    pub(crate) fn begin(&mut self) -> u64 {
        let asker = asked_by(self.last);
        self.last += 1;
        assert_eq!(asked_by(self.last), asker, "a request's number names the reactor that asks");
        self.last
    }

    /// Records that a request asks for a flush.
    pub(crate) fn note_flush(&mut self, request: u64) {
        let is_new = self.flushing.insert(request);
        assert!(is_new, "request {request} is sent once");
    }

    /// Returns whether an answered request has asked for a flush, once.
    pub(crate) fn take_flush(&mut self, request: u64) -> bool {
        self.flushing.remove(&request)
    }
}

/// Returns the reactor that sent a request to the coordinator.
pub(crate) fn asked_by(request: u64) -> ReactorId {
    ReactorId((request >> REQUEST_REACTOR_SHIFT) as u16)
}

/// Position of the reactor's id in a request number: the answer is routed by it.
const REQUEST_REACTOR_SHIFT: u32 = 48;

/// Returns the reactor that processes a message of the coordinator. The first reactor gets answers
/// to unknown requests, and ignores them.
pub fn reactor_for(message: &FromCoordinator, reactors: u16) -> ReactorId {
    let FromCoordinator::Answer { request, .. } = message else { return ReactorId(0) };
    match asked_by(*request) {
        asker if asker.0 < reactors => asker,
        _ => ReactorId(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_to_the_reactor_that_asked() {
        let mut requests = CoordinatorRequests::new(ReactorId(3));
        let (first, second) = (requests.begin(), requests.begin());
        assert!(first < second);
        assert_eq!(asked_by(second), ReactorId(3));
        requests.note_flush(first);
        assert!(requests.take_flush(first) && !requests.take_flush(first), "it is answered once");
    }

    #[test]
    #[should_panic(expected = "is sent once")]
    fn a_request_is_sent_once() {
        let mut requests = CoordinatorRequests::new(ReactorId(0));
        let request = requests.begin();
        requests.note_flush(request);
        requests.note_flush(request);
    }
}
