//! A buffer pool shared by a reactor's connections, so that an idle connection holds no buffer.

/// Size of an ordinary buffer and of one read: larger than almost every batch of requests, and
/// enough for a value of 16 KiB with its request.
pub(crate) const BUFFER_BYTES: usize = 20 << 10;

/// Most ordinary buffers kept for reuse (5 MiB): more than the connections served in a few turns.
const BUFFERS_MAX: usize = 256;

/// Most larger buffers kept for reuse, and their total bytes: enough for one reactor's pull replies
/// in flight, and for 50 clients of two reactors that send values of 1 MiB at the same time. Fresh
/// memory costs a page fault per 4 KiB, which is more than the copy it saves. Unused ones are freed
/// after a while ([`Buffers::trim`]).
const LARGE_BUFFERS_MAX: usize = 64;
const LARGE_BYTES_MAX: usize = 32 << 20;

#[derive(Default)]
pub(crate) struct Buffers {
    ordinary: Vec<Vec<u8>>,
    /// Larger buffers. The last was used last, so the first ones are those that nobody needs.
    large: Vec<Vec<u8>>,
    large_bytes: usize,
    /// Smallest number of larger buffers since the last [`Buffers::trim`].
    unused: usize,
}

impl Buffers {
    /// Returns an empty buffer of about [`BUFFER_BYTES`].
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.ordinary.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
    }

    /// Returns an empty buffer for at least `bytes`, and at most twice as many.
    pub(crate) fn take_large(&mut self, bytes: usize) -> Vec<u8> {
        let fits = |buffer: &Vec<u8>| (bytes..=2 * bytes).contains(&buffer.capacity());
        match self.large.iter().rposition(fits) {
            Some(position) => {
                let buffer = self.large.remove(position);
                self.large_bytes -= buffer.capacity();
                self.unused = self.unused.min(self.large.len());
                buffer
            }
            None => Vec::with_capacity(bytes),
        }
    }

    /// Takes back a buffer of any origin; drops it if the pool is full.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        let capacity = buffer.capacity();
        if capacity < BUFFER_BYTES {
            return;
        }
        if capacity <= 2 * BUFFER_BYTES {
            if self.ordinary.len() < BUFFERS_MAX {
                self.ordinary.push(buffer);
            }
        } else if self.large.len() < LARGE_BUFFERS_MAX
            && self.large_bytes + capacity <= LARGE_BYTES_MAX
        {
            self.large_bytes += capacity;
            self.large.push(buffer);
        }
        debug_assert_eq!(
            self.large_bytes,
            self.large.iter().map(Vec::capacity).sum::<usize>(),
            "the bytes of the pool are counted wrongly"
        );
    }

    /// Returns whether the pool has larger buffers, some of which may be unneeded.
    pub(crate) fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// Frees the larger buffers that were not used since the last call.
    pub(crate) fn trim(&mut self) {
        assert!(self.unused <= self.large.len(), "more buffers are unused than there are");
        let freed: usize = self.large.drain(..self.unused).map(|buffer| buffer.capacity()).sum();
        self.large_bytes -= freed;
        self.unused = self.large.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty_and_large_ones_only_where_they_fit() {
        let mut buffers = Buffers::default();
        let mut small = buffers.take();
        small.extend_from_slice(b"left over");
        buffers.give(small);
        assert!(buffers.take().is_empty());

        buffers.give(Vec::with_capacity(1 << 20));
        assert_eq!(buffers.take_large(100 << 10).capacity(), 100 << 10, "far too large a buffer");
        assert_eq!(buffers.take_large(600 << 10).capacity(), 1 << 20, "the kept one fits");
        assert_eq!(buffers.large_bytes, 0);
    }

    #[test]
    fn a_trim_frees_the_large_buffers_that_were_not_needed_since_the_last_one() {
        let mut buffers = Buffers::default();
        (0..4).for_each(|_| buffers.give(Vec::with_capacity(1 << 20)));
        buffers.trim();
        assert_eq!(buffers.large.len(), 4, "they came back just now");
        let used = [buffers.take_large(1 << 20), buffers.take_large(1 << 20)];
        used.into_iter().for_each(|buffer| buffers.give(buffer));
        buffers.trim();
        assert_eq!((buffers.large.len(), buffers.large_bytes), (2, 2 << 20));
        buffers.trim();
        assert!(!buffers.has_large() && buffers.large_bytes == 0);
    }

    #[test]
    fn the_pool_is_bounded() {
        let mut buffers = Buffers::default();
        for _ in 0..2 * BUFFERS_MAX {
            buffers.give(Vec::with_capacity(BUFFER_BYTES));
        }
        for _ in 0..100 {
            buffers.give(Vec::with_capacity(1 << 20));
        }
        assert_eq!(buffers.ordinary.len(), BUFFERS_MAX);
        assert!(buffers.large_bytes <= LARGE_BYTES_MAX);
    }
}
