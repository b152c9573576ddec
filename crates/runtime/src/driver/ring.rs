//! An io_uring with the memory lent to the kernel: the io_uring driver's only file with `unsafe`,
//! and a safe interface for the driver.
//!
//! The principle: **memory that the kernel may access belongs to the ring**. A buffer to send is
//! moved into the ring and stays there until its completion has arrived. The ring owns the
//! receive buffers from the beginning; taking a completion moves a filled one out and replaces
//! it. No caller can free, read or write a buffer while the kernel has it, whatever happens to
//! sockets meanwhile. Dropping the ring cancels everything and waits. Memory that the kernel
//! still has after a second is leaked.
//!
//! Invariants:
//! - `sending[slot]` is non-empty exactly while a send of this slot is in progress.
//! - A buffer of `Provided` has the length announced to the kernel, and no other owner.
//! - `under_way` counts the operations whose last completion is outstanding.
//!
//! `uring.rs` decides which operations to start, and interprets completions. Descriptors are
//! borrowed for one call only: the caller keeps them open until the operation's last completion.
#![expect(unsafe_code, reason = "memory is lent to the kernel here, and nowhere else")]

use crate::buffers::BUFFER_BYTES;
use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Capacity of the submission queue: the sends of a turn, and some more.
const SUBMISSIONS: u32 = 512;
/// Capacity of the completion queue. The kernel keeps excess completions and sets a flag.
const COMPLETIONS: u32 = 4096;
/// Most buffers provided for receiving. Each connection uses up one per poll.
pub(super) const PROVIDED_MAX: u16 = 1024;
/// The only group of provided buffers.
const GROUP: u16 = 0;
/// Longest time for which dropping waits for the kernel to return memory.
const DROP_TIME_MAX: Duration = Duration::from_secs(1);
/// Slot of operations that belong to no connection.
const NO_SLOT: u32 = u32::MAX;

/// The kind of an operation. It is stored in the lower bits of the user data, below the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingOperation {
    /// Receives repeatedly.
    Receive,
    /// Sends one buffer.
    Send,
    /// Waits until the connection is broken or half-closed, and reports every change.
    Watch,
    /// Waits until the socket accepts more bytes.
    Room,
    /// Waits repeatedly until a descriptor is readable.
    Poll,
    /// Cancels another operation.
    Cancel,
}

impl RingOperation {
    const ALL: [RingOperation; 6] = [
        RingOperation::Receive,
        RingOperation::Send,
        RingOperation::Watch,
        RingOperation::Room,
        RingOperation::Poll,
        RingOperation::Cancel,
    ];

    fn user_data(self, slot: u32) -> u64 {
        u64::from(slot) << 8 | self as u64
    }

    fn of(user_data: u64) -> Option<(RingOperation, u32)> {
        let operation = RingOperation::ALL.get((user_data & 0xff) as usize)?;
        Some((*operation, (user_data >> 8) as u32))
    }
}

/// The result of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CompletionResult {
    /// Received bytes; empty if the peer has sent its last byte.
    Received(Vec<u8>),
    /// Number of bytes sent, and the returned buffer.
    Sent(usize, Vec<u8>),
    /// The awaited condition has occurred, or is no longer awaited.
    Ready(PollFlags),
    /// The operation failed. Returns the buffer of a send.
    Failed(Errno, Vec<u8>),
}

/// A completion reported by the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) slot: u32,
    pub(super) operation: RingOperation,
    pub(super) outcome: CompletionResult,
    /// The operation has no further completions.
    pub(super) is_last: bool,
}

/// An io_uring and the memory lent to the kernel.
pub(super) struct Ring {
    ring: IoUring,
    /// Entries that found the submission queue full.
    backlog: VecDeque<squeue::Entry>,
    /// Memory that the kernel may access: dropped explicitly, or leaked.
    lent: ManuallyDrop<Lent>,
    under_way: usize,
}

struct Lent {
    provided: Provided,
    /// Buffer of each slot's send; empty if none is in progress.
    sending: Vec<Vec<u8>>,
}

impl Ring {
    /// Returns a ring that is inactive until [`Ring::enable`].
    pub(super) fn new() -> io::Result<Ring> {
        let ring: IoUring = IoUring::builder()
            .dontfork()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .build(SUBMISSIONS)?;
        let parameters = ring.params();
        if !parameters.is_feature_nodrop() || !parameters.is_feature_ext_arg() {
            return Err(io::Error::other("the kernel's io_uring is too old"));
        }
        let mut provided = Provided::new();
        let address = provided.pages.as_mut_ptr() as u64;
        // SAFETY: the pages are aligned, large enough for PROVIDED_MAX entries, and owned by the
        // ring's `Lent`, which is freed only after the kernel's side is gone.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(address, PROVIDED_MAX, GROUP, 0)?;
        }
        let lent = ManuallyDrop::new(Lent { provided, sending: Vec::new() });
        Ok(Ring { ring, backlog: VecDeque::new(), lent, under_way: 0 })
    }

    /// Makes the calling thread the only user of the ring.
    pub(super) fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Provides buffers up to a total of `count`.
    pub(super) fn provide(&mut self, count: usize) {
        self.lent.provided.grow(count);
    }

    /// Adds an empty buffer, to replace a filled one that was moved out.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        self.lent.provided.give(buffer);
    }

    /// Receives from `socket` until cancelled.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, slot: u32) {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
        self.push(entry, RingOperation::Receive, slot);
    }

    /// Sends `bytes`. No other send of this slot may be in progress.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, slot: u32, bytes: Vec<u8>) {
        assert!(!bytes.is_empty(), "there is nothing to send");
        let sending = &mut self.lent.sending;
        if sending.len() <= slot as usize {
            sending.resize_with(slot as usize + 1, Vec::new);
        }
        let place = &mut sending[slot as usize];
        assert!(place.is_empty(), "slot {slot} is sending already");
        *place = bytes;
        let length = u32::try_from(place.len()).unwrap_or(u32::MAX);
        // With `WAITALL` the kernel itself continues when the socket has room again.
        let flags = SendFlags::NOSIGNAL.bits() | RecvFlags::WAITALL.bits();
        let entry = opcode::Send::new(Fd(socket.as_raw_fd()), place.as_ptr(), length)
            .flags(flags as i32)
            .build();
        self.push(entry, RingOperation::Send, slot);
    }

    /// Reports when the connection is half-closed and when it is broken.
    pub(super) fn watch(&mut self, socket: BorrowedFd<'_>, slot: u32) {
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), 0).multi(true).build();
        self.push(entry, RingOperation::Watch, slot);
    }

    /// Reports once when the socket accepts more bytes.
    pub(super) fn wait_for_room(&mut self, socket: BorrowedFd<'_>, slot: u32) {
        let flags = u32::from(PollFlags::OUT.bits());
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), flags).build();
        self.push(entry, RingOperation::Room, slot);
    }

    /// Reports whenever `descriptor` has become readable.
    pub(super) fn poll_repeatedly(&mut self, descriptor: BorrowedFd<'_>) {
        let flags = u32::from(PollFlags::IN.bits());
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), flags).multi(true).build();
        self.push(entry, RingOperation::Poll, NO_SLOT);
    }

    /// Cancels an operation. Its last completion follows soon.
    pub(super) fn cancel(&mut self, operation: RingOperation, slot: u32) {
        let entry = opcode::AsyncCancel::new(operation.user_data(slot)).build();
        self.push(entry, RingOperation::Cancel, NO_SLOT);
    }

    fn push(&mut self, entry: squeue::Entry, operation: RingOperation, slot: u32) {
        self.under_way += 1;
        self.backlog.push_back(entry.user_data(operation.user_data(slot)));
        self.move_backlog();
    }

    /// Moves backlog entries to the submission queue, as far as they fit.
    fn move_backlog(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: an entry refers to a buffer in `sending`, or to no memory at all. That
            // buffer is not changed, moved in memory or freed before its completion is taken.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Returns whether operations wait to be submitted.
    pub(super) fn has_submissions(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// Returns whether the kernel has completions that it delivers only when entered.
    pub(super) fn has_hidden_completions(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Submits operations, and lets the kernel complete some without waiting.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        loop {
            self.enter(0, None)?;
            let stood = self.backlog.len();
            self.move_backlog();
            // The kernel may refuse further entries until completions are taken.
            if stood == 0 || self.backlog.len() == stood {
                return Ok(());
            }
        }
    }

    /// Waits for a completion, at most for `timeout` (`None`: without limit).
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enter_to_wait(1, None, timeout)
    }

    /// Waits like [`Ring::wait`], but for `count` completions during the first `moments`.
    pub(super) fn wait_for_several(
        &mut self,
        count: usize,
        moments: Duration,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.enter_to_wait(count as u32, Some(moments), timeout)
    }

    /// Returns whether the kernel can wait for several completions.
    pub(super) fn can_wait_for_several(&self) -> bool {
        self.ring.params().is_feature_min_timeout()
    }

    fn enter_to_wait(
        &mut self,
        count: u32,
        moments: Option<Duration>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        // Entries outside the submission queue must not wait as well.
        if !self.backlog.is_empty() {
            return self.submit();
        }
        let time = timeout
            .map(|time| Timespec::new().sec(time.as_secs()).nsec(time.subsec_nanos()))
            .unwrap_or_default();
        let mut arguments = SubmitArgs::new();
        if timeout.is_some() {
            arguments = arguments.timespec(&time);
        }
        if let Some(moments) = moments {
            arguments = arguments.min_wait_usec(moments.as_micros() as u32);
        }
        self.enter(count, Some(&arguments))
    }

    fn enter(
        &mut self,
        completions: u32,
        arguments: Option<&SubmitArgs<'_, '_>>,
    ) -> io::Result<()> {
        let submissions = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let flags = match arguments {
            Some(_) => EnterFlags::GETEVENTS | EnterFlags::EXT_ARG,
            None => EnterFlags::GETEVENTS,
        };
        // SAFETY: the arguments, if present, have the type that EXT_ARG announces, and outlive
        // the call.
        let entered = unsafe { submitter.enter(submissions, completions, flags.bits(), arguments) };
        match entered.map_err(|error| (Errno::from_io_error(&error), error)) {
            Ok(_) => Ok(()),
            // The time is over, a signal came, or the kernel wants completions to be taken first
            // (or has no memory). Unsubmitted entries remain in the queue.
            Err((Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Takes the available completions.
    pub(super) fn take(&mut self, into: &mut Vec<Completion>) {
        let (lent, under_way) = (&mut *self.lent, &mut self.under_way);
        for entry in self.ring.completion() {
            let Some((operation, slot)) = RingOperation::of(entry.user_data()) else { continue };
            let is_last = !cqueue::more(entry.flags());
            assert!(!is_last || *under_way > 0, "{operation:?} of slot {slot} completes twice");
            *under_way -= usize::from(is_last);
            let outcome = lent.outcome(operation, slot, &entry);
            if operation != RingOperation::Cancel {
                into.push(Completion { slot, operation, outcome, is_last });
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let everything = io_uring::types::CancelBuilder::any();
        let entry = opcode::AsyncCancel2::new(everything).build();
        if self.under_way > 0 {
            self.push(entry, RingOperation::Cancel, NO_SLOT);
        }
        let mut completions = Vec::new();
        let mut waited = Duration::ZERO;
        while self.under_way > 0 && waited < DROP_TIME_MAX {
            let a_while = Duration::from_millis(10);
            if self.wait(Some(a_while)).is_err() {
                break;
            }
            self.move_backlog();
            let before = self.under_way;
            self.take(&mut completions);
            completions.clear();
            if self.under_way == before {
                waited += a_while;
            }
        }
        if self.under_way == 0 {
            // SAFETY: the kernel has released all of it, and nothing uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.lent) };
        }
    }
}

impl Lent {
    fn outcome(
        &mut self,
        operation: RingOperation,
        slot: u32,
        entry: &cqueue::Entry,
    ) -> CompletionResult {
        let count = entry.result();
        let buffer = match operation {
            RingOperation::Receive => match cqueue::buffer_select(entry.flags()) {
                Some(id) => self.provided.filled(id, count.max(0) as usize),
                None => Vec::new(),
            },
            RingOperation::Send => {
                self.sending.get_mut(slot as usize).map(std::mem::take).unwrap_or_default()
            }
            RingOperation::Watch
            | RingOperation::Room
            | RingOperation::Poll
            | RingOperation::Cancel => Vec::new(),
        };
        match (usize::try_from(count), operation) {
            (Err(_), _) => CompletionResult::Failed(Errno::from_raw_os_error(-count), buffer),
            (Ok(_), RingOperation::Receive) => CompletionResult::Received(buffer),
            (Ok(count), RingOperation::Send) => CompletionResult::Sent(count, buffer),
            (
                Ok(mask),
                RingOperation::Watch
                | RingOperation::Room
                | RingOperation::Poll
                | RingOperation::Cancel,
            ) => CompletionResult::Ready(PollFlags::from_bits_truncate(mask as u16)),
        }
    }
}

/// One page, which gives the kernel aligned memory.
#[derive(Clone)]
#[repr(C, align(4096))]
struct MemoryPage([u8; 4096]);

/// Receive buffers for the kernel, by number, and the ring in which the kernel finds them.
struct Provided {
    pages: Box<[MemoryPage]>,
    /// The kernel's receive buffers.
    buffers: Vec<Vec<u8>>,
    tail: u16,
    /// Empty buffers that replace filled ones.
    spare: Vec<Vec<u8>>,
}

impl Provided {
    fn new() -> Provided {
        let pages = (usize::from(PROVIDED_MAX) * size_of::<BufRingEntry>()).div_ceil(4096);
        Provided {
            pages: vec![MemoryPage([0; 4096]); pages].into(),
            buffers: Vec::new(),
            tail: 0,
            spare: Vec::new(),
        }
    }

    fn grow(&mut self, count: usize) {
        for id in self.buffers.len()..count.min(usize::from(PROVIDED_MAX)) {
            self.buffers.push(Vec::new());
            self.publish(id as u16);
        }
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() >= BUFFER_BYTES && self.spare.len() < self.buffers.len() {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Installs an empty buffer under this number, and publishes it to the kernel.
    fn publish(&mut self, id: u16) {
        let fresh = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES));
        let buffer = &mut self.buffers[usize::from(id)];
        *buffer = fresh;
        let entries = self.pages.as_mut_ptr().cast::<BufRingEntry>();
        let position = usize::from(self.tail & (PROVIDED_MAX - 1));
        // SAFETY: the position is inside the pages, which are zeroed (a valid entry) and written
        // by this thread alone. The kernel reads an entry only below the tail that is stored
        // afterwards.
        let entry = unsafe { &mut *entries.add(position) };
        entry.set_addr(buffer.as_mut_ptr() as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the unused part of the first entry and is aligned for a u16.
        // This is the only access to it on this side.
        unsafe {
            let tail = BufRingEntry::tail(entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    /// Removes the buffer of this number, which the kernel has filled with `count` bytes.
    fn filled(&mut self, id: u16, count: usize) -> Vec<u8> {
        let Some(buffer) = self.buffers.get_mut(usize::from(id)) else { return Vec::new() };
        let mut filled = std::mem::take(buffer);
        let count = count.min(filled.capacity());
        // SAFETY: the kernel has written that many bytes from the beginning, within the announced
        // capacity, and returned the buffer by this completion.
        unsafe { filled.set_len(count) };
        self.publish(id);
        filled
    }
}

#[cfg(test)]
mod tests;
