//! Bytes that a peer has sent and the service has not consumed yet.
//!
//! A connection is read in bites of one ordinary buffer. As soon as the service says how long the
//! message is that has begun ([`Input::want`]) and that is more than a bite, the message gets a
//! buffer of its own, which is filled by the socket directly and can be taken away without copying
//! ([`Input::take`]): only its first bite, and at most a page of what follows it, are ever copied.
//!
//! Invariant: an input without bytes holds no buffer between turns, and one with few bytes holds a
//! small one (see [`Input::settle`]): thousands of connections in mid-request cost what they sent.

use crate::buffers::{BUFFER_BYTES, Buffers};

/// Capacity of large buffers is rounded up to this, so that they can be used again; also the most
/// that is read beyond the end of a large message.
const LARGE_ROUNDING_BYTES: usize = 4 << 10;

/// From this size on, taking a message moves its buffer instead of copying.
const MOVE_BYTES_MIN: usize = 8 << 10;

/// What has been received and not yet consumed.
#[derive(Default)]
pub struct Input {
    /// Received bytes; those before `start` are consumed.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes that must be here before the service is asked again; 0: any.
    wanted: usize,
}

impl Input {
    /// What is there.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// How many bytes are there.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` bytes are dealt with.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "consumed {count} of {} bytes", self.len());
        self.start += count;
        self.wanted = 0;
    }

    /// Asks for the service not to be called before `count` bytes are there (counted from the
    /// start of `bytes`). The caller has checked that `count` is a size it accepts.
    pub fn want(&mut self, count: usize) {
        self.wanted = count;
    }

    /// Takes the first `count` bytes away. Large messages, announced by `want`, are moved.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        assert!(count <= self.len(), "took {count} of {} bytes", self.len());
        let rest = self.len() - count;
        if self.start > 0 || count < MOVE_BYTES_MIN || rest > LARGE_ROUNDING_BYTES {
            let taken = self.bytes()[..count].to_vec();
            self.consume(count);
            return taken;
        }
        let rest = self.buffer[count..].to_vec();
        let mut taken = std::mem::replace(&mut self.buffer, rest);
        taken.truncate(count);
        self.wanted = 0;
        taken
    }

    /// Whether the service is to be called.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_empty() && self.len() >= self.wanted
    }

    /// Makes the buffer ready for the next read. `trusted`: the announced size is believed at once;
    /// otherwise memory grows with what has really arrived.
    pub(crate) fn make_room(&mut self, buffers: &mut Buffers, trusted: bool) -> &mut Vec<u8> {
        let needed = self.capacity_needed(trusted);
        if self.buffer.capacity() < needed {
            self.move_to(needed, buffers);
        } else if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        debug_assert!(self.buffer.len() < self.buffer.capacity(), "a read needs room");
        &mut self.buffer
    }

    fn capacity_needed(&self, trusted: bool) -> usize {
        if self.wanted.max(self.len() + 1) <= BUFFER_BYTES {
            return BUFFER_BYTES;
        }
        let wanted = if self.wanted > self.len() { self.wanted } else { 2 * self.len() };
        let is_full = self.len() >= self.buffer.capacity().max(BUFFER_BYTES);
        match (trusted, is_full) {
            (true, _) => wanted,
            (false, true) => wanted.min(4 * self.len()),
            (false, false) => BUFFER_BYTES,
        }
    }

    fn move_to(&mut self, capacity: usize, buffers: &mut Buffers) {
        let mut roomy = if capacity > BUFFER_BYTES {
            buffers.take_large(capacity.next_multiple_of(LARGE_ROUNDING_BYTES))
        } else {
            buffers.take()
        };
        roomy.extend_from_slice(self.bytes());
        buffers.give(std::mem::replace(&mut self.buffer, roomy));
        self.start = 0;
    }

    /// Gives back what is not needed until more arrives.
    pub(crate) fn settle(&mut self, buffers: &mut Buffers) {
        if self.is_empty() {
            buffers.give(std::mem::take(&mut self.buffer));
            self.start = 0;
        } else if self.wanted <= BUFFER_BYTES && self.len() <= BUFFER_BYTES / 4 {
            let rest = self.bytes().to_vec();
            buffers.give(std::mem::replace(&mut self.buffer, rest));
            self.start = 0;
        }
    }
}
