//! The requests that have no outcome yet.

use super::both_answers::ReadSides;
use super::ids::{ChannelId, RequestId};
use crate::request::PreparedRequest;
use types::Instant;

/// The position of a request between its submission and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenRequestPlace {
    /// In a queue of a channel. No byte of this attempt has been handed to a transport.
    Waiting,
    /// Handed to the transport of this channel.
    Sent(ChannelId),
    /// To be routed again at this time.
    Delayed(Instant),
    /// A read whose record the target does not have. It waits for the source alone until this time.
    AwaitingCopy(Instant),
}

impl OpenRequestPlace {
    /// Returns the end of a wait.
    pub(crate) fn until(self) -> Option<Instant> {
        match self {
            OpenRequestPlace::Delayed(until) | OpenRequestPlace::AwaitingCopy(until) => Some(until),
            OpenRequestPlace::Waiting | OpenRequestPlace::Sent(_) => None,
        }
    }
}

/// A part of a request that is sent on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestPart {
    /// The request, to the server of its route.
    Main(RequestId),
    /// The read of the copy that the source of a migration keeps.
    Copy(RequestId),
}

impl RequestPart {
    /// Returns the request.
    pub(crate) fn request(self) -> RequestId {
        match self {
            RequestPart::Main(id) | RequestPart::Copy(id) => id,
        }
    }
}

/// A request without an outcome.
#[derive(Debug)]
pub(crate) struct OpenRequest<T> {
    /// The caller's value, returned with the outcome.
    pub(crate) token: T,
    pub(crate) request: PreparedRequest,
    pub(crate) deadline: Instant,
    pub(crate) place: OpenRequestPlace,
    /// Number of attempts that have failed or were redirected.
    pub(crate) attempts: u32,
    /// True if an earlier attempt was handed to a connection that was lost before it replied.
    pub(crate) is_ambiguous: bool,
    pub(crate) sides: ReadSides,
}

/// All open requests, by number.
#[derive(Debug)]
pub(crate) struct RequestTable<T> {
    slots: Vec<RequestSlot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct RequestSlot<T> {
    generation: u32,
    request: Option<OpenRequest<T>>,
}

impl<T> RequestTable<T> {
    pub(crate) fn new() -> RequestTable<T> {
        RequestTable { slots: Vec::new(), free: Vec::new() }
    }

    /// Returns the number of open requests.
    pub(crate) fn len(&self) -> usize {
        assert!(self.free.len() <= self.slots.len(), "more free places than places");
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, request: OpenRequest<T>) -> RequestId {
        if let Some(place) = self.free.pop() {
            let slot = &mut self.slots[place as usize];
            assert!(slot.request.is_none(), "a free place has a request");
            slot.request = Some(request);
            return RequestId { place, generation: slot.generation };
        }
        assert!(self.slots.len() < u32::MAX as usize, "memory ends before the numbers do");
        let place = self.slots.len() as u32;
        self.slots.push(RequestSlot { generation: 0, request: Some(request) });
        RequestId { place, generation: 0 }
    }

    /// Returns a request, unless it has ended.
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut OpenRequest<T>> {
        let slot = self.slots.get_mut(id.place as usize)?;
        slot.request.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// Returns whether a request has not ended.
    pub(crate) fn is_open(&self, id: RequestId) -> bool {
        let slot = self.slots.get(id.place as usize);
        slot.is_some_and(|slot| slot.generation == id.generation && slot.request.is_some())
    }

    /// Removes a request, unless it has ended.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<OpenRequest<T>> {
        let slot = self.slots.get_mut(id.place as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let request = slot.request.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.place);
        Some(request)
    }

    /// Returns all open requests.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &OpenRequest<T>)> {
        self.slots.iter().enumerate().filter_map(|(place, slot)| {
            let request = slot.request.as_ref()?;
            Some((RequestId { place: place as u32, generation: slot.generation }, request))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{RepeatRule, RequestRoute};

    #[test]
    fn a_place_is_used_again_under_another_number() {
        let request = |token| OpenRequest {
            token,
            request: PreparedRequest::new(&[b"PING"], RequestRoute::Any, RepeatRule::Harmless),
            deadline: Instant(1),
            place: OpenRequestPlace::Waiting,
            attempts: 0,
            is_ambiguous: false,
            sides: ReadSides::One,
        };
        let mut table = RequestTable::new();
        let (one, two) = (table.insert(request(1)), table.insert(request(2)));
        assert_eq!(table.remove(one).map(|it| it.token), Some(1));
        assert!(table.remove(one).is_none());
        let three = table.insert(request(3));
        assert_ne!(one, three);
        assert!(table.get_mut(one).is_none() && !table.is_open(one));
        assert!(table.is_open(two) && table.is_open(three));
        assert_eq!(table.len(), 2);
        assert_eq!(table.iter().map(|(_, it)| it.token).collect::<Vec<_>>(), [3, 2]);
    }
}
