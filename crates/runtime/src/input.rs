//! Received bytes that the service has not consumed yet. `docs/design/reactor.md`, "Input and
//! output", explains the buffers of large messages.
//!
//! Invariant: an input without bytes holds no buffer between turns, and one with few bytes holds a
//! small one (see [`Input::release_unneeded`]): thousands of half-received requests cost only
//! their own size.

use crate::buffers::{BUFFER_BYTES, Buffers};

/// Granularity of large buffer capacities, which allows their reuse. Also the most that is read
/// beyond the end of a large message.
const LARGE_ROUNDING_BYTES: usize = 4 << 10;

/// Largest ratio of a client's buffer to its received bytes. Unfilled capacity takes address
/// space but no memory, and a message of 1 MiB is not copied as it grows.
const BELIEVED_FACTOR: usize = 64;

/// Size from which taking a message moves its buffer instead of copying it.
const MOVE_BYTES_MIN: usize = 8 << 10;

/// The received and unconsumed bytes of a connection.
#[derive(Default)]
pub struct Input {
    /// Received bytes; those before `start` are consumed.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes required before the service is called again; 0 means any.
    wanted: usize,
}

impl Input {
    /// Returns the unconsumed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Returns the number of unconsumed bytes.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Returns whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "consumed {count} of {} bytes", self.len());
        self.start += count;
        self.wanted = 0;
    }

    /// Postpones the next call of the service until `count` bytes are present, counted from the
    /// start of `bytes`. The caller must have checked that it accepts this size.
    pub fn want(&mut self, count: usize) {
        self.wanted = count;
    }

    /// Removes and returns the first `count` bytes. Large messages announced by `want` are moved.
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

    /// Returns whether the service must be called.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_empty() && self.len() >= self.wanted
    }

    /// Returns whether a message longer than a bite is being received.
    pub(crate) fn is_within_message(&self) -> bool {
        self.wanted > self.len().max(BUFFER_BYTES)
    }

    /// Prepares the buffer for the next read. If `trusted`, the announced size is allocated at
    /// once; otherwise the capacity grows with the received bytes.
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

    /// Releases memory that is not needed until more bytes arrive.
    pub(crate) fn release_unneeded(&mut self, buffers: &mut Buffers) {
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

    /// Reads like a socket: fills the free capacity, or less.
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
                    input.release_unneeded(&mut buffers);
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
        input.release_unneeded(&mut buffers);
        assert!(input.buffer.capacity() < 100);
        assert_eq!(input.bytes(), b"GET half a requ");
        input.consume(input.len());
        input.release_unneeded(&mut buffers);
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
