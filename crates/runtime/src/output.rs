//! Bytes on their way to a peer: replies appended to one buffer, and large buffers handed over
//! whole, in the order in which they were given.

use crate::buffers::Buffers;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Buffers handed to the kernel in one call. More wait for the next call.
pub(crate) const SLICES_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Output {
    /// Goes first. Bytes of the front buffer before `sent` have left.
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    sent: usize,
    /// Goes last: replies are appended here.
    tail: Vec<u8>,
}

impl Output {
    /// Where to append what is to be sent.
    pub(crate) fn tail(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        if self.tail.capacity() == 0 {
            self.tail = buffers.take();
        }
        &mut self.tail
    }

    /// Appends a whole buffer without copying it.
    pub(crate) fn push(&mut self, buffer: Vec<u8>) {
        self.seal();
        self.queue_bytes += buffer.len();
        self.queue.push_back(buffer);
    }

    /// Bytes that have not left yet.
    pub(crate) fn backlog(&self) -> usize {
        self.queue_bytes - self.sent + self.tail.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// Moves the tail to the queue, so that everything to be sent stands there.
    pub(crate) fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.queue_bytes += self.tail.len();
            self.queue.push_back(std::mem::take(&mut self.tail));
        }
    }

    /// All that is to be sent, if it is one buffer of at most `bytes_max` bytes.
    pub(crate) fn take_whole(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let fits = self.queue.is_empty() && (1..=bytes_max).contains(&self.tail.len());
        fits.then(|| std::mem::take(&mut self.tail))
    }

    /// What goes next, as far as one call of the kernel takes it. `seal` comes before.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        let mut skip = self.sent;
        for (slice, buffer) in slices.iter_mut().zip(&self.queue) {
            *slice = IoSlice::new(&buffer[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// `count` more bytes have left.
    pub(crate) fn advance(&mut self, count: usize, buffers: &mut Buffers) {
        self.sent += count;
        while let Some(front) = self.queue.front() {
            if self.sent < front.len() {
                return;
            }
            self.sent -= front.len();
            self.queue_bytes -= front.len();
            buffers.give(self.queue.pop_front().unwrap_or_default());
        }
        assert_eq!(self.sent, 0, "more was sent than was there");
    }

    /// Gives the buffers back; an output without bytes holds none.
    pub(crate) fn release(&mut self, buffers: &mut Buffers) {
        buffers.give(std::mem::take(&mut self.tail));
        for buffer in self.queue.drain(..) {
            buffers.give(buffer);
        }
        (self.queue_bytes, self.sent) = (0, 0);
    }
}
