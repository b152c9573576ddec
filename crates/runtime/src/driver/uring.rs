//! The driver that lets the kernel read and write ahead: io_uring for clients, epoll for the rest.
//! `docs/design/io-uring.md` explains the division, the ownership of buffers and the costs.
//!
//! Invariants:
//! - A socket stays open until the last completion of its operations has arrived; `operations`
//!   counts them.
//! - A socket has at most one receive, one send and one watch in progress.
//! - Received data is passed on in order: `pending`, then `end`.
//! - `pending` contains at most [`PENDING_BYTES_MAX`] and one poll's worth. Above that, receiving
//!   stops until the reactor has taken the bytes; the peer's sends then block, as with epoll.
//! - The buffers of `pending` are at least half full on average, except three: a peer that sends
//!   single bytes occupies no more memory than one that sends many.

mod leaving;

use super::epoll::{Epoll, EventWaker};
use super::ring::{Completion, CompletionResult, Ring, RingOperation};
use super::{Driver, NetworkEvent};
use crate::buffers::{BUFFER_BYTES, Buffers};
use crate::connection::Class;
use crate::output::Output;
use crate::socket::{self, Listener, ReceiveResult, SendResult};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use types::ConnectionId;

/// Untaken bytes of one connection above which receiving stops.
const PENDING_BYTES_MAX: usize = 4 * BUFFER_BYTES;

/// Output size above which a system call sends it: the call is then negligible beside the copy,
/// and the buffer need not be kept until a completion.
const SEND_BYTES_MAX: usize = 4 * BUFFER_BYTES;

/// Number of events to wait for together, and how long the first one waits for the others: about
/// the time in which three requests of frequent clients arrive.
const GATHERED: usize = 4;
const GATHER_TIME: Duration = Duration::from_micros(40);

/// Number of provided buffers before the first connection.
const PROVIDED_MIN: usize = 16;

pub(crate) struct Uring {
    ring: Ring,
    others: Epoll,
    /// The poll of the `others` descriptor is active in the ring.
    others_polled: bool,
    /// `others` may have events.
    others_ready: bool,
    /// Index of each connection's socket, by connection slot.
    slots: Vec<Option<u32>>,
    sockets: Vec<Option<UringSocket>>,
    free: Vec<u32>,
    in_use: usize,
    completions: Vec<Completion>,
    /// Sent buffers, to be returned to the reactor's pool.
    spent: Vec<Vec<u8>>,
    /// Connections that could not be moved to `others`.
    lost: Vec<ConnectionId>,
}

/// State of a socket's sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outflow {
    /// No send is in progress: the next one starts at once.
    Idle,
    /// A buffer is being sent. `is_awaited`: the reactor wants to know when that is done.
    Sending { is_awaited: bool },
    /// The socket is full, and the reactor keeps the rest.
    Full,
}

/// State of a socket's receiving direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    /// The kernel receives.
    Running,
    /// The receive operation was cancelled, but has not ended.
    Stopping,
    /// No receive operation: too much is pending, or nothing more comes.
    Stopped,
}

/// The reason why nothing more comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum IntakeEnd {
    Finished,
    Broken,
}

struct UringSocket {
    connection: ConnectionId,
    descriptor: OwnedFd,
    intake: Intake,
    /// Received and untaken buffers. The bytes of the first one before `taken` are already taken.
    pending: VecDeque<Vec<u8>>,
    taken: usize,
    pending_bytes: usize,
    end: Option<IntakeEnd>,
    outflow: Outflow,
    is_watched: bool,
    /// The reactor has closed the connection; the socket waits for its last completions.
    is_closing: bool,
    /// The socket moves to the epoll part after its last completions.
    is_leaving: bool,
    operations: u32,
}

impl Uring {
    /// Returns a driver that can be used from [`Driver::begin`] on.
    pub(crate) fn new() -> io::Result<Uring> {
        Ok(Uring {
            ring: Ring::new()?,
            others: Epoll::new()?,
            others_polled: false,
            others_ready: false,
            slots: Vec::new(),
            sockets: Vec::new(),
            free: Vec::new(),
            in_use: 0,
            completions: Vec::new(),
            spent: Vec::new(),
            lost: Vec::new(),
        })
    }

    pub(crate) fn waker(&self) -> EventWaker {
        self.others.waker()
    }

    fn index(&self, connection: ConnectionId) -> Option<u32> {
        let index = (*self.slots.get(connection.slot())?)?;
        let socket = self.sockets.get(index as usize)?.as_ref()?;
        (socket.connection == connection && !socket.is_closing).then_some(index)
    }

    fn receive_from(&mut self, index: u32) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        socket.intake = Intake::Running;
        socket.operations += 1;
        self.ring.receive(socket.descriptor.as_fd(), index);
    }

    /// Watches for a broken connection while no receive is in progress.
    fn watch(&mut self, index: u32) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        if !socket.is_watched {
            socket.is_watched = true;
            socket.operations += 1;
            self.ring.watch(socket.descriptor.as_fd(), index);
        }
    }

    fn completed(&mut self, completion: Completion, events: &mut Vec<NetworkEvent>) {
        let Completion { slot: index, operation, outcome, is_last } = completion;
        if operation == RingOperation::Poll {
            self.others_ready = true;
            self.others_polled &= !is_last;
            return;
        }
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        assert!(!is_last || socket.operations > 0, "{operation:?} completes twice");
        socket.operations -= u32::from(is_last);
        if socket.is_closing {
            return self.free_if_done(index);
        }
        match operation {
            RingOperation::Receive => self.received(index, outcome, is_last, events),
            RingOperation::Send => self.sent(index, outcome, events),
            RingOperation::Room => {
                socket.outflow = Outflow::Idle;
                events.push(NetworkEvent::Writable(socket.connection));
            }
            RingOperation::Watch => {
                socket.is_watched &= !is_last;
                if matches!(outcome, CompletionResult::Ready(flags) if is_broken(flags)) {
                    socket.mark_broken(events);
                }
            }
            RingOperation::Poll | RingOperation::Cancel => {}
        }
        self.leave_if_done(index);
    }

    fn received(
        &mut self,
        index: u32,
        outcome: CompletionResult,
        is_last: bool,
        events: &mut Vec<NetworkEvent>,
    ) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        if is_last {
            socket.intake = Intake::Stopped;
        }
        match outcome {
            CompletionResult::Received(bytes) if bytes.is_empty() => {
                socket.end(IntakeEnd::Finished, events);
                return self.watch(index);
            }
            CompletionResult::Received(bytes) => {
                if let Some(empty) = socket.arrived(bytes, events) {
                    self.ring.give(empty);
                }
            }
            // Other connections have used up the provided buffers, the receive was cancelled, or
            // the kernel asks for a retry: it is started again.
            CompletionResult::Failed(
                Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN,
                _,
            ) => {}
            CompletionResult::Failed(..) => return socket.mark_broken(events),
            CompletionResult::Sent(..) | CompletionResult::Ready(_) => {}
        }
        self.throttle(index);
    }

    /// Stops receiving when too much is pending, and resumes when that has been taken.
    fn throttle(&mut self, index: u32) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        if socket.is_leaving {
            return;
        }
        let is_full = socket.pending_bytes >= PENDING_BYTES_MAX;
        match socket.intake {
            Intake::Running if is_full => {
                socket.intake = Intake::Stopping;
                self.ring.cancel(RingOperation::Receive, index);
            }
            Intake::Stopped if is_full => self.watch(index),
            Intake::Stopped if socket.end.is_none() => self.receive_from(index),
            Intake::Running | Intake::Stopping | Intake::Stopped => {}
        }
    }

    fn sent(&mut self, index: u32, outcome: CompletionResult, events: &mut Vec<NetworkEvent>) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        match outcome {
            CompletionResult::Sent(count, mut buffer) if count < buffer.len() => {
                // A signal, or an error that the next attempt will report.
                buffer.drain(..count);
                self.resume_sending(index, buffer);
            }
            CompletionResult::Failed(Errno::INTR | Errno::AGAIN, buffer) => {
                self.resume_sending(index, buffer);
            }
            CompletionResult::Sent(_, buffer) => {
                self.spent.push(buffer);
                if socket.outflow == (Outflow::Sending { is_awaited: true }) {
                    events.push(NetworkEvent::Writable(socket.connection));
                }
                socket.outflow = Outflow::Idle;
            }
            CompletionResult::Failed(..) => {
                socket.outflow = Outflow::Idle;
                socket.mark_broken(events);
            }
            CompletionResult::Received(_) | CompletionResult::Ready(_) => {}
        }
    }

    fn resume_sending(&mut self, index: u32, buffer: Vec<u8>) {
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        socket.operations += 1;
        self.ring.send(socket.descriptor.as_fd(), index, buffer);
    }

    fn free_if_done(&mut self, index: u32) {
        let is_done = |socket: &UringSocket| socket.is_closing && socket.operations == 0;
        let place = &mut self.sockets[index as usize];
        if place.as_ref().is_some_and(is_done) {
            *place = None;
            self.free.push(index);
            self.in_use -= 1;
        }
    }

    /// Submits pending operations and handles completions, without waiting. Makes no system call
    /// if there is nothing to do.
    fn poll_events(&mut self, events: &mut Vec<NetworkEvent>) -> io::Result<()> {
        if self.ring.has_submissions() || self.ring.has_hidden_completions() {
            self.ring.submit()?;
        }
        self.handle_completions(events)
    }

    fn handle_completions(&mut self, events: &mut Vec<NetworkEvent>) -> io::Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.take(&mut completions);
        for completion in completions.drain(..) {
            self.completed(completion, events);
        }
        self.completions = completions;
        events.extend(self.lost.drain(..).map(NetworkEvent::Broken));
        if !self.others_polled {
            self.others_polled = true;
            self.ring.poll_repeatedly(self.others.descriptor());
        }
        // The ring reports only what becomes ready: poll until everything else was reported.
        if self.others_ready {
            self.others_ready = self.others.poll_events(Some(Duration::ZERO), events)?;
        }
        Ok(())
    }
}

/// Checks that this process can use io_uring with the features that the driver needs. It tries
/// them out: neither the kernel version nor a list of operations shows what a container forbids.
pub(crate) fn probe() -> io::Result<()> {
    const MESSAGE: &[u8] = b"does it work?";
    let mut ring = Ring::new()?;
    ring.enable()?;
    ring.provide(1);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    ring.receive(ours.as_fd(), 0);
    ring.send(theirs.as_fd(), 1, MESSAGE.to_vec());
    let mut completions = Vec::new();
    for _ in 0..3 {
        ring.wait(Some(Duration::from_secs(1)))?;
        ring.take(&mut completions);
        let received = completions.iter().find(|completion| completion.slot == 0);
        if let Some(Completion { outcome, is_last, .. }) = received {
            let works = *outcome == CompletionResult::Received(MESSAGE.to_vec()) && !is_last;
            return works.then_some(()).ok_or(io::Error::other("repeated receives do not work"));
        }
    }
    Err(io::Error::other("receives do not work"))
}

/// Returns whether the flags mean an event that epoll would report even without a read.
fn is_broken(flags: PollFlags) -> bool {
    flags.intersects(PollFlags::ERR | PollFlags::HUP)
}

fn socket_at(sockets: &mut [Option<UringSocket>], index: u32) -> Option<&mut UringSocket> {
    sockets.get_mut(index as usize)?.as_mut()
}

impl UringSocket {
    fn new(connection: ConnectionId, descriptor: OwnedFd) -> UringSocket {
        UringSocket {
            connection,
            descriptor,
            intake: Intake::Stopped,
            pending: VecDeque::new(),
            taken: 0,
            pending_bytes: 0,
            end: None,
            outflow: Outflow::Idle,
            is_watched: false,
            is_closing: false,
            is_leaving: false,
            operations: 0,
        }
    }

    /// Adds received bytes: they are copied behind those of the last buffer if they fit there.
    /// Returns the buffer if it is not needed.
    fn arrived(&mut self, bytes: Vec<u8>, events: &mut Vec<NetworkEvent>) -> Option<Vec<u8>> {
        if self.pending.is_empty() {
            events.push(NetworkEvent::Readable(self.connection));
        }
        self.pending_bytes += bytes.len();
        let unneeded = match self.pending.back_mut() {
            Some(last) if last.capacity() - last.len() >= bytes.len() => {
                last.extend_from_slice(&bytes);
                Some(bytes)
            }
            Some(_) | None => {
                self.pending.push_back(bytes);
                None
            }
        };
        debug_assert!(
            self.pending.len() <= 3 + 2 * self.pending_bytes / BUFFER_BYTES,
            "{} buffers contain {} bytes",
            self.pending.len(),
            self.pending_bytes
        );
        unneeded
    }

    fn end(&mut self, end: IntakeEnd, events: &mut Vec<NetworkEvent>) {
        self.end = self.end.max(Some(end));
        events.push(NetworkEvent::Readable(self.connection));
    }

    fn mark_broken(&mut self, events: &mut Vec<NetworkEvent>) {
        self.end = Some(IntakeEnd::Broken);
        events.push(NetworkEvent::Broken(self.connection));
    }

    /// Moves the oldest bytes to `room`: exchanges the whole buffer for an empty one, or copies
    /// as much as fits. The buffer of a large message is not exchanged: it would be provided.
    fn take(&mut self, room: &mut Vec<u8>) -> usize {
        let Some(first) = self.pending.front_mut() else { return 0 };
        let spare = room.capacity() - room.len();
        let count = (first.len() - self.taken).min(spare);
        let is_ordinary = room.capacity() <= 2 * BUFFER_BYTES;
        if room.is_empty() && is_ordinary && self.taken == 0 && count == first.len() {
            std::mem::swap(room, first);
            self.pending_bytes -= count;
            return count;
        }
        room.extend_from_slice(&first[self.taken..self.taken + count]);
        self.taken += count;
        self.pending_bytes -= count;
        if self.taken == first.len() {
            first.clear();
            self.taken = 0;
        }
        debug_assert_eq!(
            self.pending_bytes + self.taken,
            self.pending.iter().map(Vec::len).sum::<usize>(),
            "the pending bytes of a socket are counted wrongly"
        );
        count
    }
}

impl Driver for Uring {
    fn begin(&mut self) -> io::Result<()> {
        self.ring.enable()?;
        self.ring.provide(PROVIDED_MIN);
        self.others_polled = true;
        self.ring.poll_repeatedly(self.others.descriptor());
        self.ring.submit()
    }

    fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<NetworkEvent>,
    ) -> io::Result<()> {
        self.poll_events(events)?;
        if timeout == Some(Duration::ZERO) || !events.is_empty() || self.others_ready {
            return Ok(());
        }
        self.ring.wait(timeout)?;
        self.handle_completions(events)
    }

    fn gather(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<NetworkEvent>,
    ) -> io::Result<()> {
        if timeout.is_some_and(|timeout| timeout < GATHER_TIME) {
            return self.poll(timeout, events);
        }
        self.poll_events(events)?;
        let missing = GATHERED.saturating_sub(events.len());
        if missing == 0 || self.others_ready {
            return Ok(());
        }
        // If there are events already, the wait ends after the gathering time.
        let timeout = if events.is_empty() { timeout } else { Some(GATHER_TIME) };
        self.ring.wait_for_several(missing, GATHER_TIME, timeout)?;
        self.handle_completions(events)
    }

    fn can_gather(&self) -> bool {
        self.ring.can_wait_for_several()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.ring.has_submissions() { self.ring.submit() } else { Ok(()) }
    }

    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.others.listen(listener)
    }

    fn stop_listening(&mut self) {
        self.others.stop_listening();
    }

    fn adopt(&mut self, connection: ConnectionId, socket: OwnedFd, class: Class) -> io::Result<()> {
        if class.is_bus() {
            return self.others.adopt(connection, socket, class);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(None);
            self.sockets.len() as u32 - 1
        });
        self.sockets[index as usize] = Some(UringSocket::new(connection, socket));
        if self.slots.len() <= connection.slot() {
            self.slots.resize(connection.slot() + 1, None);
        }
        self.slots[connection.slot()] = Some(index);
        self.in_use += 1;
        self.ring.provide(PROVIDED_MIN + self.in_use);
        self.receive_from(index);
        Ok(())
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        address: SocketAddr,
        class: Class,
    ) -> io::Result<()> {
        self.others.connect(connection, address, class)
    }

    fn receive(&mut self, connection: ConnectionId, room: &mut Vec<u8>) -> ReceiveResult {
        let Some(index) = self.index(connection) else {
            return self.others.receive(connection, room);
        };
        let Some(socket) = socket_at(&mut self.sockets, index) else {
            return ReceiveResult::Failed;
        };
        let count = socket.take(room);
        if count == 0 {
            let end = socket.end;
            self.leave_for_large(index, room);
            return match end {
                None => ReceiveResult::Nothing,
                Some(IntakeEnd::Finished) => ReceiveResult::End,
                Some(IntakeEnd::Broken) => ReceiveResult::Failed,
            };
        }
        if socket.taken == 0
            && let Some(empty) = socket.pending.pop_front()
        {
            self.ring.give(empty);
        }
        let may_have_more = !socket.pending.is_empty() || socket.end.is_some();
        if socket.intake == Intake::Stopped {
            self.throttle(index);
        }
        self.leave_for_large(index, room);
        ReceiveResult::Bytes { count, may_have_more }
    }

    fn send(
        &mut self,
        connection: ConnectionId,
        output: &mut Output,
        buffers: &mut Buffers,
    ) -> SendResult {
        let Some(index) = self.index(connection) else {
            return self.others.send(connection, output, buffers);
        };
        let Some(socket) = socket_at(&mut self.sockets, index) else { return SendResult::Failed };
        if socket.end == Some(IntakeEnd::Broken) {
            return SendResult::Failed;
        }
        for buffer in self.spent.drain(..) {
            buffers.give(buffer);
        }
        match &mut socket.outflow {
            Outflow::Sending { is_awaited } => {
                *is_awaited = true;
                return SendResult::Blocked { bytes: 0 };
            }
            Outflow::Full => return SendResult::Blocked { bytes: 0 },
            Outflow::Idle => {}
        }
        if !socket.is_leaving
            && let Some(whole) = output.take_whole(SEND_BYTES_MAX)
        {
            let bytes = whole.len();
            socket.outflow = Outflow::Sending { is_awaited: false };
            socket.operations += 1;
            self.ring.send(socket.descriptor.as_fd(), index, whole);
            return SendResult::Taken { bytes };
        }
        let sent = socket::send(&socket.descriptor, output, buffers);
        if let SendResult::Blocked { .. } = sent {
            socket.outflow = Outflow::Full;
            socket.operations += 1;
            self.ring.wait_for_room(socket.descriptor.as_fd(), index);
        }
        sent
    }

    fn peek(&self, connection: ConnectionId) -> &[u8] {
        let socket = self.index(connection).and_then(|index| self.sockets.get(index as usize));
        let pending = socket
            .and_then(Option::as_ref)
            .and_then(|socket| socket.pending.front().map(|first| &first[socket.taken..]));
        pending.unwrap_or_default()
    }

    fn is_sending(&self, connection: ConnectionId) -> bool {
        let socket = self.index(connection).and_then(|index| self.sockets.get(index as usize));
        let outflow = socket.and_then(Option::as_ref).map(|socket| socket.outflow);
        matches!(outflow, Some(Outflow::Sending { .. }))
    }

    fn finish(&mut self, connection: ConnectionId) {
        match self.index(connection) {
            Some(index) => {
                if let Some(socket) = socket_at(&mut self.sockets, index) {
                    socket::finish(&socket.descriptor);
                }
            }
            None => self.others.finish(connection),
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        let Some(index) = self.index(connection) else { return self.others.close(connection) };
        self.slots[connection.slot()] = None;
        let Some(socket) = socket_at(&mut self.sockets, index) else { return };
        socket.is_closing = true;
        let operations = [
            (socket.intake == Intake::Running, RingOperation::Receive),
            (matches!(socket.outflow, Outflow::Sending { .. }), RingOperation::Send),
            (socket.outflow == Outflow::Full, RingOperation::Room),
            (socket.is_watched, RingOperation::Watch),
        ];
        for (_, operation) in operations.into_iter().filter(|(is_under_way, _)| *is_under_way) {
            self.ring.cancel(operation, index);
        }
        self.free_if_done(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ReactorId;

    fn socket() -> UringSocket {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        UringSocket::new(ConnectionId::new(ReactorId(0), 0, 0), ours.into())
    }

    /// Returns a filled receive buffer, as the ring does.
    fn received(bytes: &[u8]) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        buffer.extend_from_slice(bytes);
        buffer
    }

    #[test]
    fn a_client_that_sends_single_bytes_and_is_not_read_occupies_one_buffer() {
        let (mut socket, mut events) = (socket(), Vec::new());
        let mut given_back = 0;
        for byte in 0..BUFFER_BYTES {
            given_back +=
                usize::from(socket.arrived(received(&[byte as u8]), &mut events).is_some());
        }
        assert_eq!((socket.pending.len(), given_back), (1, BUFFER_BYTES - 1));
        assert!(matches!(events[..], [NetworkEvent::Readable(_)]), "it is reported once");
        assert!(socket.arrived(received(&[1]), &mut events).is_none(), "the buffer is full");
    }

    #[test]
    fn unread_bytes_stay_in_order_and_their_buffers_are_half_full() {
        let (mut socket, mut events) = (socket(), Vec::new());
        let mut random = fastrand::Rng::with_seed(5);
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        for round in 0..5_000 {
            let count = 1 + random.usize(..if round % 3 == 0 { BUFFER_BYTES } else { 600 });
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(count).collect();
            sent.extend_from_slice(&bytes);
            socket.arrived(received(&bytes), &mut events);
            while socket.pending_bytes >= PENDING_BYTES_MAX || random.u8(..) < 40 {
                let mut room = Vec::with_capacity(1 + random.usize(..BUFFER_BYTES));
                if socket.take(&mut room) == 0 {
                    break;
                }
                taken.extend_from_slice(&room);
                if socket.taken == 0 {
                    socket.pending.pop_front();
                }
            }
            let occupied: usize = socket.pending.iter().map(Vec::capacity).sum();
            assert!(occupied <= 2 * socket.pending_bytes + 3 * BUFFER_BYTES, "{occupied} bytes");
        }
        let rest = socket.pending.make_contiguous().concat();
        taken.extend_from_slice(&rest[socket.taken..]);
        assert!(taken == sent, "bytes were lost or mixed up");
    }
}
