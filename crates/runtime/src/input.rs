//! Bytes that a peer has sent and the service has not consumed yet.
//!
//! A connection is read in bites of one ordinary buffer. As soon as the service says how long the
//! message is that has begun ([`Input::want`]) and that is more than a bite, the message gets a
//! buffer of its own, which is filled by the socket directly and can be taken away without copying
//! ([`Input::take`]): only its first bite, and at most a page of what follows it, are ever copied.
//! The buffer of a client's message is not larger than [`BELIEVED_FACTOR`] times what has arrived.
//!
//! Invariant: an input without bytes holds no buffer between turns, and one with few bytes holds a
//! small one (see [`Input::settle`]): thousands of connections in mid-request cost what they sent.

use crate::buffers::{BUFFER_BYTES, Buffers};

/// Capacity of large buffers is rounded up to this, so that they can be used again; also the most
/// that is read beyond the end of a large message.
const LARGE_ROUNDING_BYTES: usize = 4 << 10;

/// A client's announcement is believed up to so many times what it has really sent: what is not
/// sent takes address space and no memory, and a message of 1 MiB is not copied as it grows.
const BELIEVED_FACTOR: usize = 64;

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

    /// Whether a message has begun that is longer than a bite.
    pub(crate) fn is_within_message(&self) -> bool {
        self.wanted > self.len().max(BUFFER_BYTES)
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
            (false, true) => wanted.min(BELIEVED_FACTOR * self.len()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a socket would do: fills the room that there is, or less.
    fn arrive(input: &mut Input, buffers: &mut Buffers, trusted: bool, stream: &mut &[u8]) {
        let room = input.make_room(buffers, trusted);
        let count = (room.capacity() - room.len()).min(stream.len());
        assert!(count > 0 || stream.is_empty(), "there must be room to read");
        room.extend_from_slice(&stream[..count]);
        *stream = &stream[count..];
    }

    #[test]
    fn random_reads_and_consumption_keep_every_byte_in_order() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let sent: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(400_000).collect();
            let (mut stream, mut taken) = (&sent[..], Vec::new());
            let (mut input, mut buffers) = (Input::default(), Buffers::default());
            let trusted = random.bool();
            while taken.len() < sent.len() {
                let part = random.usize(1..60_000).min(stream.len());
                let mut arriving = &stream[..part];
                arrive(&mut input, &mut buffers, trusted, &mut arriving);
                stream = &stream[part - arriving.len()..];
                let count = random.usize(0..=input.len());
                match random.u8(..4) {
                    0 => {
                        taken.extend_from_slice(&input.bytes()[..count]);
                        input.consume(count);
                    }
                    1 => taken.extend(input.take(count)),
                    2 => input.want(input.len() + random.usize(0..100_000)),
                    _ => {}
                }
                if random.bool() {
                    input.settle(&mut buffers);
                }
                if stream.is_empty() {
                    taken.extend(input.take(input.len()));
                }
            }
            assert!(taken == sent, "seed {seed}");
        }
    }

    #[test]
    fn a_large_message_of_a_server_is_read_into_one_buffer_and_taken_without_copying() {
        let message = vec![7; (1 << 20) - 100];
        let sent = [message.clone(), b"next".to_vec()].concat();
        let (mut input, mut buffers) = (Input::default(), Buffers::default());
        let mut stream = &sent[..];
        arrive(&mut input, &mut buffers, true, &mut stream);
        assert_eq!(input.len(), BUFFER_BYTES, "the first bite");
        input.want(message.len());
        arrive(&mut input, &mut buffers, true, &mut stream);
        assert!(input.is_due() && stream.is_empty());
        let before = input.bytes().as_ptr();
        let taken = input.take(message.len());
        assert_eq!(taken.as_ptr(), before, "the buffer was moved");
        assert_eq!(taken, message);
        assert_eq!(input.bytes(), b"next");
    }

    #[test]
    fn memory_for_a_client_grows_with_what_it_sends_and_not_with_what_it_announces() {
        let (mut input, mut buffers) = (Input::default(), Buffers::default());
        let sent = vec![1; 3 * BUFFER_BYTES];
        let mut stream = &sent[..BUFFER_BYTES];
        arrive(&mut input, &mut buffers, false, &mut stream);
        input.want(1 << 30);
        while input.len() < sent.len() {
            let mut stream = &sent[input.len()..];
            arrive(&mut input, &mut buffers, false, &mut stream);
            assert!(input.buffer.capacity() <= BELIEVED_FACTOR * sent.len());
        }
    }

    #[test]
    fn an_input_without_bytes_holds_no_buffer_and_one_with_few_a_small_one() {
        let (mut input, mut buffers) = (Input::default(), Buffers::default());
        arrive(&mut input, &mut buffers, false, &mut &b"GET half a requ"[..]);
        input.settle(&mut buffers);
        assert!(input.buffer.capacity() < 100);
        assert_eq!(input.bytes(), b"GET half a requ");
        input.consume(input.len());
        input.settle(&mut buffers);
        assert_eq!(input.buffer.capacity(), 0);
    }

    #[test]
    fn the_service_is_not_asked_before_what_it_wants_is_there() {
        let (mut input, mut buffers) = (Input::default(), Buffers::default());
        assert!(!input.is_due());
        arrive(&mut input, &mut buffers, false, &mut &b"12345"[..]);
        assert!(input.is_due());
        input.want(7);
        assert!(!input.is_due());
        arrive(&mut input, &mut buffers, false, &mut &b"67"[..]);
        assert!(input.is_due());
        input.consume(3);
        assert!(input.is_due(), "a want is over when something was consumed");
    }
}
