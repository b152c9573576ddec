//! The driver that works everywhere: epoll, edge-triggered, one registration per connection.
//!
//! An edge is reported once, so after `Readable` the reactor must read until nothing is left. A
//! read that does not fill its buffer has emptied the socket: later bytes cause a new edge. This
//! rule would miss only an end of input that arrived together with the last bytes. The system
//! reports it (`RDHUP`), and such a connection is read until the end is reached.

use super::{Accepted, Driver, NetworkEvent};
use crate::buffers::Buffers;
use crate::connection::Class;
use crate::mailbox::Waker;
use crate::output::Output;
use crate::socket::{self, Listener, ReceiveResult, SendResult};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use types::ConnectionId;

/// Most events returned by one system call; more wait for the next.
const EVENTS_MAX: usize = 256;

/// Most connections accepted in one turn, so that a connection storm does not block the others.
const ACCEPTS_MAX: usize = 32;

/// Registrations that are not connections. Connection numbers begin with a reactor's number,
/// which is far below this.
const WAKER: u64 = u64::MAX;
const LISTENERS: u64 = u64::MAX - 256;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    /// Sockets by connection slot.
    sockets: Vec<Option<EpollSocket>>,
    listeners: Vec<Listener>,
    /// Spare descriptor, closed to accept and close a connection when the process has no
    /// descriptor left. Otherwise the listener would stay ready forever.
    reserve: Option<OwnedFd>,
    waker: Arc<OwnedFd>,
}

struct EpollSocket {
    descriptor: OwnedFd,
    connection: ConnectionId,
    is_connecting: bool,
    /// The peer has sent its last byte, though some bytes may still be unread.
    has_end: bool,
}

/// Wakes a driver through an event descriptor.
pub(crate) struct EventWaker(Arc<OwnedFd>);

impl Waker for EventWaker {
    fn wake(&self) {
        // Fails only after 2^64 unconsumed wake-ups; then one is pending anyway.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // Edge-triggered: every write is an edge, so the count need not be read.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &*waker, EventData::new_u64(WAKER), flags)?;
        let reserve = rustix::io::dup(&epoll).ok();
        let (sockets, listeners) = (Vec::new(), Vec::new());
        Ok(Epoll { epoll, sockets, listeners, reserve, waker })
    }

    pub(crate) fn waker(&self) -> EventWaker {
        EventWaker(Arc::clone(&self.waker))
    }

    /// Returns a descriptor that becomes readable when there are events.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Polls like [`Driver::poll`]. Returns whether another poll may report something that is
    /// ready already: a connection is reported once, a listener until nobody waits.
    pub(super) fn poll_events(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<NetworkEvent>,
    ) -> io::Result<bool> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((reported, _)) => {
                let mut may_have_more = reported.len() == EVENTS_MAX;
                for &event in &*reported {
                    may_have_more |= (LISTENERS..WAKER).contains(&event.data.u64());
                    self.translate(event, events);
                }
                Ok(may_have_more)
            }
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn socket(&self, connection: ConnectionId) -> Option<&EpollSocket> {
        let socket = self.sockets.get(connection.slot())?.as_ref()?;
        (socket.connection == connection).then_some(socket)
    }

    fn socket_mut(&mut self, connection: ConnectionId) -> Option<&mut EpollSocket> {
        let socket = self.sockets.get_mut(connection.slot())?.as_mut()?;
        (socket.connection == connection).then_some(socket)
    }

    fn add(&mut self, socket: EpollSocket) -> io::Result<()> {
        let connection = socket.connection;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(connection.number());
        epoll::add(&self.epoll, &socket.descriptor, data, flags)?;
        if self.sockets.len() <= connection.slot() {
            self.sockets.resize_with(connection.slot() + 1, || None);
        }
        self.sockets[connection.slot()] = Some(socket);
        Ok(())
    }

    fn translate(&mut self, reported: epoll::Event, events: &mut Vec<NetworkEvent>) {
        let (number, flags) = (reported.data.u64(), reported.flags);
        if number == WAKER {
            return;
        }
        if number >= LISTENERS {
            return self.accept((number - LISTENERS) as usize, events);
        }
        let connection = ConnectionId::from_number(number);
        let Some(socket) = self.socket_mut(connection) else { return };
        if socket.is_connecting {
            return self.connected(connection, events);
        }
        socket.has_end |= flags.contains(EventFlags::RDHUP);
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            return events.push(NetworkEvent::Broken(connection));
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            events.push(NetworkEvent::Readable(connection));
        }
        if flags.contains(EventFlags::OUT) {
            events.push(NetworkEvent::Writable(connection));
        }
    }

    fn connected(&mut self, connection: ConnectionId, events: &mut Vec<NetworkEvent>) {
        let Some(socket) = self.socket_mut(connection) else { return };
        match sockopt::socket_error(&socket.descriptor).unwrap_or_else(Err) {
            Ok(()) => {
                socket.is_connecting = false;
                events.push(NetworkEvent::Connected(connection));
                // The edge that reported the connection may have reported bytes as well.
                events.push(NetworkEvent::Readable(connection));
            }
            Err(error) => {
                self.close(connection);
                events.push(NetworkEvent::ConnectFailed(connection, error.into()));
            }
        }
    }

    fn accept(&mut self, listener: usize, events: &mut Vec<NetworkEvent>) {
        let Some(listener) = self.listeners.get(listener) else { return };
        let (port, class) = (listener.port, listener.class);
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match net::acceptfrom_with(&listener.socket, flags) {
                Ok((socket, peer)) => {
                    // Without an address the peer has already gone.
                    if let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                        events.push(NetworkEvent::Accepted(Accepted { socket, port, class, peer }));
                    }
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::MFILE | Errno::NFILE) => {
                    self.reserve = None;
                    drop(net::accept(&listener.socket));
                    self.reserve = rustix::io::dup(&self.epoll).ok();
                    return;
                }
                // No connection is waiting, or the system lacks memory: the listener then stays
                // ready.
                Err(_) => return,
            }
        }
    }
}

impl Driver for Epoll {
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<NetworkEvent>,
    ) -> io::Result<()> {
        self.poll_events(timeout, events).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        let data = EventData::new_u64(LISTENERS + self.listeners.len() as u64);
        epoll::add(&self.epoll, &listener.socket, data, EventFlags::IN)?;
        self.listeners.push(listener);
        Ok(())
    }

    fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    fn adopt(
        &mut self,
        connection: ConnectionId,
        socket: OwnedFd,
        _class: Class,
    ) -> io::Result<()> {
        let descriptor = socket;
        self.add(EpollSocket { descriptor, connection, is_connecting: false, has_end: false })
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        address: SocketAddr,
        class: Class,
    ) -> io::Result<()> {
        let descriptor = socket::connect(address, class)?;
        self.add(EpollSocket { descriptor, connection, is_connecting: true, has_end: false })
    }

    fn receive(&mut self, connection: ConnectionId, room: &mut Vec<u8>) -> ReceiveResult {
        let Some(socket) = self.socket(connection) else { return ReceiveResult::Failed };
        match socket::receive(&socket.descriptor, room) {
            ReceiveResult::Bytes { count, may_have_more } => {
                ReceiveResult::Bytes { count, may_have_more: may_have_more || socket.has_end }
            }
            other @ (ReceiveResult::Nothing | ReceiveResult::End | ReceiveResult::Failed) => other,
        }
    }

    fn send(
        &mut self,
        connection: ConnectionId,
        output: &mut Output,
        buffers: &mut Buffers,
    ) -> SendResult {
        match self.socket(connection) {
            Some(socket) => socket::send(&socket.descriptor, output, buffers),
            None => SendResult::Failed,
        }
    }

    fn is_sending(&self, _connection: ConnectionId) -> bool {
        false
    }

    fn finish(&mut self, connection: ConnectionId) {
        if let Some(socket) = self.socket(connection) {
            socket::finish(&socket.descriptor);
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        if self.socket(connection).is_some() {
            // Closing the descriptor removes its registration, because it was never duplicated.
            self.sockets[connection.slot()] = None;
        }
    }
}
