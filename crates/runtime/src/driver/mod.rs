//! How a reactor meets the network: a queue of things that happened, and bytes moved in and out.
//!
//! The shape is that of completions, so that a driver may let the kernel do the reading and
//! writing ahead (io_uring) as well as do it when asked (epoll): `poll` tells *who* has something,
//! `receive` moves received bytes into the connection's buffer, `send` takes what is to be sent
//! and says whether there will be a `Writable` for the rest. A driver owns the sockets; a
//! connection is known to it by its id alone.

pub(crate) mod epoll;
#[expect(unsafe_code, reason = "memory is lent to the kernel here, and nowhere else")]
mod ring;
pub(crate) mod uring;

use crate::buffers::Buffers;
use crate::connection::{Class, ConnectionId, Port};
use crate::output::Output;
use crate::socket::Listener;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The ways to meet the network that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring: fewer calls of the kernel. Needs Linux 6.1, and often a container's permission.
    Uring,
    /// epoll: works everywhere.
    Epoll,
}

impl DriverKind {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Uring => "io_uring",
            DriverKind::Epoll => "epoll",
        }
    }
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// Somebody connected; the socket belongs to nobody yet.
    Accepted(Accepted),
    /// `connect` has succeeded.
    Connected(ConnectionId),
    /// `connect` has failed; the driver has forgotten the connection.
    ConnectFailed(ConnectionId, io::Error),
    /// There is something to `receive`: bytes, the end, or an error.
    Readable(ConnectionId),
    /// What `send` left can go on.
    Writable(ConnectionId),
    /// The connection is broken in both directions.
    Broken(ConnectionId),
}

/// An accepted socket, on its way to the reactor that will serve it.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) port: Port,
    pub(crate) class: Class,
    pub(crate) peer: SocketAddr,
}

/// What `receive` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes, and perhaps more at once.
    Bytes { count: usize, may_have_more: bool },
    /// Nothing for now.
    Nothing,
    /// The peer has sent its last byte.
    End,
    /// The connection is broken.
    Failed,
}

/// What became of a `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All of it has left.
    All { bytes: usize },
    /// All of it was taken and leaves by itself. Who wants to know when it has left asks again: a
    /// `send` while some of it is still here answers `Blocked`.
    Taken { bytes: usize },
    /// The rest must wait for `Writable`.
    Blocked { bytes: usize },
    /// The connection is broken.
    Failed,
}

pub(crate) trait Driver {
    /// The calling thread is the one that will use the driver.
    fn begin(&mut self) -> io::Result<()>;

    /// Waits until something happens, at most for `timeout` (`None`: as long as it takes), and
    /// appends it. Returns early when it is woken.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;

    /// As `poll`, for a reactor of which many clients ask: after the first thing it waits a few
    /// microseconds for several, to be woken once for all of them.
    fn gather(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.poll(timeout, events)
    }

    /// Whether `gather` is anything but `poll`.
    fn can_gather(&self) -> bool {
        false
    }

    /// What was taken by `send` leaves now, although the next `poll` is not near.
    fn flush(&mut self) -> io::Result<()>;

    /// Accepts from `listener` from now on.
    fn listen(&mut self, listener: Listener) -> io::Result<()>;

    /// Accepts no more, from no listener.
    fn stop_listening(&mut self);

    /// `socket` is `connection` from now on.
    fn adopt(&mut self, connection: ConnectionId, socket: OwnedFd, class: Class) -> io::Result<()>;

    /// Begins to connect. `Connected` or `ConnectFailed` follows unless it fails at once.
    fn connect(
        &mut self,
        connection: ConnectionId,
        address: SocketAddr,
        class: Class,
    ) -> io::Result<()>;

    /// Appends received bytes to `room`, which has spare capacity, at most as many as fit.
    fn receive(&mut self, connection: ConnectionId, room: &mut Vec<u8>) -> Received;

    /// Bytes that `receive` would give, as far as they are known already.
    fn peek(&self, _connection: ConnectionId) -> &[u8] {
        &[]
    }

    /// Sends what `output` holds.
    fn send(
        &mut self,
        connection: ConnectionId,
        output: &mut Output,
        buffers: &mut Buffers,
    ) -> Sent;

    /// Whether some of what was taken has not left yet.
    fn is_sending(&self, connection: ConnectionId) -> bool;

    /// Tells the peer that no more comes. What it still sends is thrown away as far as it is here:
    /// closing with unread bytes would make the system reset the connection, and the peer lose
    /// what was sent last.
    fn finish(&mut self, connection: ConnectionId);

    /// Closes and forgets the connection; one that the driver does not know is ignored.
    fn close(&mut self, connection: ConnectionId);
}
