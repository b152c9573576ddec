//! An io_uring with the memory that it has lent to the kernel: the only file of this crate with
//! `unsafe`, and a safe face for what the driver does with it.
//!
//! The one idea: **memory that the kernel may touch belongs to the ring**. A buffer to be sent is
//! moved in and stays until its completion is here; buffers to be received into are owned by the
//! ring from the beginning, and a filled one is moved out and replaced when its completion is
//! taken. So no caller can free, read or write a buffer while the kernel has it, whatever it does
//! with sockets meanwhile. Dropping the ring cancels everything and waits; memory that the kernel
//! still has after a second is leaked.
//!
//! Invariants:
//! - `sending[slot]` is not empty exactly while a send of this slot is under way;
//! - a buffer of `Provided` is as long as the kernel was told, and nobody else holds it;
//! - `under_way` counts the operations whose last completion is still to come.
//!
//! It leaves to `uring.rs`: which operation when, and what completions mean for a connection.
//! Descriptors are borrowed for one call only: the caller keeps one open until the operation's last
//! completion.

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

/// Entries that may wait to be submitted: the sends of a turn, and some more.
const SUBMISSIONS: u32 = 512;
/// Completions that fit into the queue; the kernel keeps what does not and says so.
const COMPLETIONS: u32 = 4096;
/// Buffers that can be provided for receiving. One of them is used up per connection and poll.
pub(super) const PROVIDED_MAX: u16 = 1024;
/// The only group of provided buffers.
const GROUP: u16 = 0;
/// How long dropping waits for the kernel to give memory back.
const DROP_TIME_MAX: Duration = Duration::from_secs(1);
/// Operations whose completion means nothing: nobody's slot.
const NOBODY: u32 = u32::MAX;

/// What an operation is. In the lower bits of its user data; the slot is above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Receives whatever comes, again and again.
    Receive,
    /// Sends one buffer.
    Send,
    /// Waits until the connection is broken or half-closed, and tells every change.
    Watch,
    /// Waits until the socket takes more.
    Room,
    /// Waits until a descriptor is readable, again and again.
    Bell,
    /// Ends another operation.
    Cancel,
}

impl Operation {
    const ALL: [Operation; 6] = [
        Operation::Receive,
        Operation::Send,
        Operation::Watch,
        Operation::Room,
        Operation::Bell,
        Operation::Cancel,
    ];

    fn user_data(self, slot: u32) -> u64 {
        u64::from(slot) << 8 | self as u64
    }

    fn of(user_data: u64) -> Option<(Operation, u32)> {
        let operation = Operation::ALL.get((user_data & 0xff) as usize)?;
        Some((*operation, (user_data >> 8) as u32))
    }
}

/// What an operation has brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Bytes; none: the peer has sent its last one.
    Received(Vec<u8>),
    /// So many bytes of the buffer have left. It comes back.
    Sent(usize, Vec<u8>),
    /// What was waited for has happened, or is no longer waited for.
    Ready(PollFlags),
    /// It did not work. The buffer of a send comes back.
    Failed(Errno, Vec<u8>),
}

/// Something that the kernel has done.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) slot: u32,
    pub(super) operation: Operation,
    pub(super) outcome: Outcome,
    /// Nothing more comes from this operation.
    pub(super) is_last: bool,
}

/// An io_uring and the memory that is lent to the kernel.
pub(super) struct Ring {
    ring: IoUring,
    /// Entries that found the queue full.
    backlog: VecDeque<squeue::Entry>,
    /// What the kernel may touch: dropped by hand, or not at all.
    lent: ManuallyDrop<Lent>,
    under_way: usize,
}

struct Lent {
    provided: Provided,
    /// By slot; empty if nothing is being sent.
    sending: Vec<Vec<u8>>,
}

impl Ring {
    /// A ring that waits for [`Ring::enable`].
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
        // ring's `Lent`, which is freed after the kernel's side is gone.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(address, PROVIDED_MAX, GROUP, 0)?;
        }
        let lent = ManuallyDrop::new(Lent { provided, sending: Vec::new() });
        Ok(Ring { ring, backlog: VecDeque::new(), lent, under_way: 0 })
    }

    /// Makes the calling thread the only one that uses the ring.
    pub(super) fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Provides buffers until there are `count`.
    pub(super) fn provide(&mut self, count: usize) {
        self.lent.provided.grow(count);
    }

    /// An empty buffer to be received into in the place of one that was taken out.
    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        self.lent.provided.give(buffer);
    }

    /// Receives from `socket` until told otherwise.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, slot: u32) {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
        self.push(entry, Operation::Receive, slot);
    }

    /// Sends `bytes`. Nothing else of this slot is being sent.
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
        // With `WAITALL` the kernel goes on by itself when the socket has room again.
        let flags = SendFlags::NOSIGNAL.bits() | RecvFlags::WAITALL.bits();
        let entry = opcode::Send::new(Fd(socket.as_raw_fd()), place.as_ptr(), length)
            .flags(flags as i32)
            .build();
        self.push(entry, Operation::Send, slot);
    }

    /// Tells when the connection is half-closed, and when it is broken.
    pub(super) fn watch(&mut self, socket: BorrowedFd<'_>, slot: u32) {
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), 0).multi(true).build();
        self.push(entry, Operation::Watch, slot);
    }

    /// Tells once when the socket takes more.
    pub(super) fn wait_for_room(&mut self, socket: BorrowedFd<'_>, slot: u32) {
        let flags = u32::from(PollFlags::OUT.bits());
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), flags).build();
        self.push(entry, Operation::Room, slot);
    }

    /// Tells whenever `descriptor` has become readable.
    pub(super) fn bell(&mut self, descriptor: BorrowedFd<'_>) {
        let flags = u32::from(PollFlags::IN.bits());
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), flags).multi(true).build();
        self.push(entry, Operation::Bell, NOBODY);
    }

    /// Ends an operation. Its last completion comes soon.
    pub(super) fn cancel(&mut self, operation: Operation, slot: u32) {
        let entry = opcode::AsyncCancel::new(operation.user_data(slot)).build();
        self.push(entry, Operation::Cancel, NOBODY);
    }

    fn push(&mut self, entry: squeue::Entry, operation: Operation, slot: u32) {
        self.under_way += 1;
        self.backlog.push_back(entry.user_data(operation.user_data(slot)));
        self.move_backlog();
    }

    /// Moves waiting entries to the submission queue, as far as they fit.
    fn move_backlog(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: an entry refers to a buffer in `sending`, or to no memory at all. That buffer
            // is not changed, moved in memory or freed before its completion was taken.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Whether operations wait to be submitted.
    pub(super) fn has_submissions(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// Whether the kernel has completions that it shows only when entered.
    pub(super) fn has_hidden_completions(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Submits, and lets the kernel complete what it can without waiting.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        loop {
            self.enter(0, None)?;
            let stood = self.backlog.len();
            self.move_backlog();
            // The kernel may refuse to take more before completions are taken.
            if stood == 0 || self.backlog.len() == stood {
                return Ok(());
            }
        }
    }

    /// Waits for a completion, at most for `timeout` (`None`: as long as it takes).
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enter_to_wait(1, None, timeout)
    }

    /// As [`Ring::wait`], but for `count` completions during the first moments.
    pub(super) fn wait_for_several(
        &mut self,
        count: usize,
        moments: Duration,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.enter_to_wait(count as u32, Some(moments), timeout)
    }

    /// Whether the kernel knows how to wait for several.
    pub(super) fn can_wait_for_several(&self) -> bool {
        self.ring.params().is_feature_min_timeout()
    }

    fn enter_to_wait(
        &mut self,
        count: u32,
        moments: Option<Duration>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        // What did not fit into the queue would wait as well.
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
        // SAFETY: the arguments, if there are any, are of the type that EXT_ARG announces, and live
        // longer than the call.
        let entered = unsafe { submitter.enter(submissions, completions, flags.bits(), arguments) };
        match entered.map_err(|error| (Errno::from_io_error(&error), error)) {
            Ok(_) => Ok(()),
            // Time is over, a signal came, or the kernel wants its completions taken first (or has
            // no memory): what was not submitted stands in the queue.
            Err((Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Takes what the kernel has done.
    pub(super) fn take(&mut self, into: &mut Vec<Completion>) {
        let (lent, under_way) = (&mut *self.lent, &mut self.under_way);
        for entry in self.ring.completion() {
            let Some((operation, slot)) = Operation::of(entry.user_data()) else { continue };
            let is_last = !cqueue::more(entry.flags());
            *under_way -= usize::from(is_last);
            let outcome = lent.outcome(operation, slot, &entry);
            if operation != Operation::Cancel {
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
            self.push(entry, Operation::Cancel, NOBODY);
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
            // SAFETY: the kernel has none of it any more, and nobody uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.lent) };
        }
    }
}

impl Lent {
    fn outcome(&mut self, operation: Operation, slot: u32, entry: &cqueue::Entry) -> Outcome {
        let count = entry.result();
        let buffer = match operation {
            Operation::Receive => match cqueue::buffer_select(entry.flags()) {
                Some(id) => self.provided.filled(id, count.max(0) as usize),
                None => Vec::new(),
            },
            Operation::Send => {
                self.sending.get_mut(slot as usize).map(std::mem::take).unwrap_or_default()
            }
            Operation::Watch | Operation::Room | Operation::Bell | Operation::Cancel => Vec::new(),
        };
        match (usize::try_from(count), operation) {
            (Err(_), _) => Outcome::Failed(Errno::from_raw_os_error(-count), buffer),
            (Ok(_), Operation::Receive) => Outcome::Received(buffer),
            (Ok(count), Operation::Send) => Outcome::Sent(count, buffer),
            (
                Ok(mask),
                Operation::Watch | Operation::Room | Operation::Bell | Operation::Cancel,
            ) => Outcome::Ready(PollFlags::from_bits_truncate(mask as u16)),
        }
    }
}

/// A page, so that the kernel gets aligned memory.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Buffers for the kernel to receive into, by number, and the ring in which it finds them.
struct Provided {
    pages: Box<[Page]>,
    /// In the kernel's hands, all of them.
    buffers: Vec<Vec<u8>>,
    tail: u16,
    /// Empty ones that replace what is taken out.
    spare: Vec<Vec<u8>>,
}

impl Provided {
    fn new() -> Provided {
        let pages = (usize::from(PROVIDED_MAX) * size_of::<BufRingEntry>()).div_ceil(4096);
        Provided {
            pages: vec![Page([0; 4096]); pages].into(),
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

    /// Puts an empty buffer in the place of this number, and tells the kernel.
    fn publish(&mut self, id: u16) {
        let fresh = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES));
        let buffer = &mut self.buffers[usize::from(id)];
        *buffer = fresh;
        let entries = self.pages.as_mut_ptr().cast::<BufRingEntry>();
        let position = usize::from(self.tail & (PROVIDED_MAX - 1));
        // SAFETY: the position is inside of the pages, which are zeroed (a valid entry) and written
        // by this thread alone. The kernel reads an entry only below the tail stored afterwards.
        let entry = unsafe { &mut *entries.add(position) };
        entry.set_addr(buffer.as_mut_ptr() as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the unused part of the first entry and is aligned for a u16. All
        // accesses to it on our side are this one.
        unsafe {
            let tail = BufRingEntry::tail(entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    /// Takes out the buffer of this number, which the kernel has filled with `count` bytes.
    fn filled(&mut self, id: u16, count: usize) -> Vec<u8> {
        let Some(buffer) = self.buffers.get_mut(usize::from(id)) else { return Vec::new() };
        let mut filled = std::mem::take(buffer);
        let count = count.min(filled.capacity());
        // SAFETY: the kernel has written so many bytes from the beginning on, within the capacity
        // that it was told, and gave the buffer back by this completion.
        unsafe { filled.set_len(count) };
        self.publish(id);
        filled
    }
}

#[cfg(test)]
mod tests;
