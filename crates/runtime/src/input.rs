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

/// Length up to which a message is expected. A client that sends small requests instead may fill
/// the buffer with them once, which the service then processes in one turn. A longer message moves
/// to a longer buffer in any case.
const EXPECTED_BYTES_MAX: usize = BELIEVED_FACTOR * BUFFER_BYTES;

/// Largest ratio of the buffer of an expected message to its received bytes. Above
/// [`BELIEVED_FACTOR`] times two, by which a buffer may be too large: a buffer that was exchanged
/// for a smaller one and has grown again must not be exchanged again.
const EXPECTED_FACTOR: usize = 3 * BELIEVED_FACTOR;

/// Length from which a client's message is worth a buffer of its own that is expected in advance
/// (see [`Input::expect_message`]): the length from which io_uring leaves its socket to epoll.
pub const LARGE_MESSAGE_BYTES: usize = 3 * BUFFER_BYTES;

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
    /// Probable length of the next message, if it is large; 0 if it is not.
    expected: usize,
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
        self.has_consumed(count);
    }

    #[inline]
    fn has_consumed(&mut self, count: usize) {
        self.wanted = 0;
        if (1..LARGE_MESSAGE_BYTES).contains(&count) {
            self.expected = 0;
        }
    }

    /// Postpones the next call of the service until `count` bytes are present, counted from the
    /// start of `bytes`. The caller must have checked that it accepts this size.
    pub fn want(&mut self, count: usize) {
        self.wanted = count;
    }

    /// Announces the probable length of the next message, after a large one was consumed. Then one
    /// read receives the whole message into a buffer of its size. Consuming less than
    /// [`LARGE_MESSAGE_BYTES`] ends this: an ordinary client gets one bite per turn.
    pub fn expect_message(&mut self, bytes: usize) {
        // Slowly decreasing, so that messages of different lengths fit.
        let lasting = self.expected - self.expected / 8;
        self.expected = match bytes {
            LARGE_MESSAGE_BYTES..=EXPECTED_BYTES_MAX => bytes.max(lasting),
            _ => 0,
        };
        assert!(self.expected <= EXPECTED_BYTES_MAX, "too long a message is expected");
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
        self.has_consumed(count);
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
        if self.is_empty() && self.expected > 0 {
            // A read that does not fill its buffer has emptied the socket.
            return self.expected + 1;
        }
        if self.wanted.max(self.len() + 1) <= BUFFER_BYTES {
            return BUFFER_BYTES;
        }
        let wanted = if self.wanted > self.len() { self.wanted } else { 2 * self.len() };
        let (capacity, believed) = (self.buffer.capacity(), BELIEVED_FACTOR * self.len());
        let is_full = self.len() >= capacity.max(BUFFER_BYTES);
        // An expected message that is longer than its buffer moves before more bytes must.
        let is_too_small = self.len() >= BUFFER_BYTES && (capacity..believed).contains(&wanted);
        match (trusted, is_full || is_too_small) {
            (true, _) => wanted,
            (false, true) => wanted.min(believed),
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
        } else if self.is_mostly_unneeded() {
            let rest = self.bytes().to_vec();
            buffers.give(std::mem::replace(&mut self.buffer, rest));
            self.start = 0;
        }
    }

    /// Returns whether the buffer is too large for its bytes. The buffer of an expected message
    /// must not stay with a client that sends something else, or only the beginning.
    fn is_mostly_unneeded(&self) -> bool {
        let capacity = self.buffer.capacity();
        if self.wanted <= BUFFER_BYTES {
            let is_large = capacity > 2 * BUFFER_BYTES;
            return self.len() <= BUFFER_BYTES / 4 || (is_large && self.len() <= BUFFER_BYTES);
        }
        self.expected > 0 && capacity > EXPECTED_FACTOR * self.len()
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
    fn an_expected_message_is_received_by_one_read_that_does_not_fill_its_buffer() {
        let (mut input, mut buffers) = (Input::default(), Buffers::default());
        let message = vec![5; 64 * LARGE_ROUNDING_BYTES];
        for round in 0..3 {
            let mut stream = &message[..];
            while !stream.is_empty() {
                arrive(&mut input, &mut buffers, false, &mut stream);
                assert!(round == 0 || stream.is_empty(), "an expected message was cut");
                input.want(message.len());
            }
            assert!(round == 0 || input.buffer.capacity() > message.len());
            assert_eq!(input.bytes(), message);
            input.consume(message.len());
            input.expect_message(message.len());
            input.release_unneeded(&mut buffers);
            assert_eq!(input.buffer.capacity(), 0, "an idle input holds a buffer");
        }
    }

    /// Returns an input that expects a message of this length.
    fn expecting(bytes: usize, buffers: &mut Buffers) -> Input {
        let mut input = Input::default();
        arrive(&mut input, buffers, true, &mut &vec![1; BUFFER_BYTES][..]);
        input.consume(input.len());
        input.expect_message(bytes);
        input.release_unneeded(buffers);
        input
    }

    #[test]
    fn a_client_whose_small_message_was_expected_to_be_large_reads_in_bites_again() {
        let mut buffers = Buffers::default();
        let mut input = expecting(1 << 20, &mut buffers);
        arrive(&mut input, &mut buffers, false, &mut &b"small"[..]);
        assert!(input.buffer.capacity() > 1 << 20);
        input.consume(input.len());
        input.release_unneeded(&mut buffers);
        arrive(&mut input, &mut buffers, false, &mut &vec![1; 1 << 20][..]);
        assert_eq!(input.len(), BUFFER_BYTES);
    }

    #[test]
    fn a_client_that_sends_the_beginning_of_an_expected_message_holds_a_small_buffer() {
        // Nothing is announced, or a small message, or another large one.
        for (sent, wanted) in [(100, 0), (10_000, 15_000), (100, 500_000), (3_000, 1 << 20)] {
            let mut buffers = Buffers::default();
            let mut input = expecting(1 << 20, &mut buffers);
            arrive(&mut input, &mut buffers, false, &mut &vec![7; sent][..]);
            input.want(wanted);
            input.release_unneeded(&mut buffers);
            assert!(input.buffer.capacity() <= 2 * sent, "{sent} of {wanted}");
            for _ in 0..3 * BUFFER_BYTES {
                arrive(&mut input, &mut buffers, false, &mut &[7][..]);
                input.release_unneeded(&mut buffers);
                let limit = (EXPECTED_FACTOR * input.len()).max(2 * BUFFER_BYTES);
                assert!(input.buffer.capacity() <= limit, "{} of {wanted}", input.len());
            }
        }
    }

    #[test]
    fn only_large_messages_of_a_bounded_length_are_expected() {
        let mut buffers = Buffers::default();
        let longest = [LARGE_MESSAGE_BYTES - 1, EXPECTED_BYTES_MAX + 1, 64 << 20];
        for (bytes, is_expected) in [(LARGE_MESSAGE_BYTES, true), (EXPECTED_BYTES_MAX, true)]
            .into_iter()
            .chain(longest.map(|bytes| (bytes, false)))
        {
            let mut input = expecting(bytes, &mut buffers);
            arrive(&mut input, &mut buffers, false, &mut &vec![1; 64 << 20][..]);
            assert_eq!(input.len() > bytes, is_expected, "{bytes} bytes: {}", input.len());
        }
    }

    #[test]
    fn a_message_longer_than_expected_moves_once_and_early() {
        let mut buffers = Buffers::default();
        let mut input = expecting(LARGE_MESSAGE_BYTES, &mut buffers);
        let message = vec![9; 2 << 20];
        let mut stream = &message[..];
        let mut part = &stream[..2 * BUFFER_BYTES];
        arrive(&mut input, &mut buffers, false, &mut part);
        stream = &stream[input.len()..];
        input.want(message.len());
        arrive(&mut input, &mut buffers, false, &mut stream);
        assert!(stream.is_empty() && input.bytes() == message, "the rest came with one read");
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
