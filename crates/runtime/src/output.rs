//! Unsent bytes for a peer, in order: replies appended to one buffer, and large buffers added
//! without copying.

use crate::buffers::Buffers;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Most buffers passed to the kernel in one call. More wait for the next call.
pub(crate) const SLICES_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Output {
    /// Sent first. Bytes of the front buffer before `sent` have already been sent.
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    sent: usize,
    /// Sent last: replies are appended here.
    tail: Vec<u8>,
}

impl Output {
    /// Returns the buffer to which replies are appended.
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

    /// Returns the number of unsent bytes.
    pub(crate) fn backlog(&self) -> usize {
        debug_assert!(self.sent <= self.queue_bytes, "more was sent than was queued");
        self.queue_bytes - self.sent + self.tail.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.backlog() == 0
    }

    /// Moves the tail to the queue, which then contains all unsent bytes.
    pub(crate) fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.queue_bytes += self.tail.len();
            self.queue.push_back(std::mem::take(&mut self.tail));
        }
    }

    /// Removes and returns all unsent bytes, if they are one buffer of at most `bytes_max` bytes.
    pub(crate) fn take_whole(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let fits = self.queue.is_empty() && (1..=bytes_max).contains(&self.tail.len());
        fits.then(|| std::mem::take(&mut self.tail))
    }

    /// Fills `slices` with the next bytes for one kernel call, and returns how many were filled.
    /// `seal` must be called before.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        assert!(self.tail.is_empty(), "the tail of an output is not sealed");
        let mut count = 0;
        let mut skip = self.sent;
        for (slice, buffer) in slices.iter_mut().zip(&self.queue) {
            *slice = IoSlice::new(&buffer[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Removes `count` sent bytes.
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

    /// Returns all buffers to the pool; an output without bytes holds none.
    pub(crate) fn release(&mut self, buffers: &mut Buffers) {
        buffers.give(std::mem::take(&mut self.tail));
        for buffer in self.queue.drain(..) {
            buffers.give(buffer);
        }
        (self.queue_bytes, self.sent) = (0, 0);
    }
}
