//! The interface between a reactor and the network: a queue of events, and bytes in both
//! directions.
//!
//! It has the shape of completions, so that a driver may let the kernel read and write ahead
//! (io_uring) or do so on request (epoll). `poll` reports which connections have events.
//! `receive` moves received bytes into the connection's buffer. `send` takes output, and reports
//! whether a `Writable` event follows for the rest. A driver owns the sockets and knows a
//! connection only by its id.

pub(crate) mod epoll;
mod ring;
pub(crate) mod uring;

use crate::buffers::Buffers;
use crate::connection::{Class, Port};
use crate::output::Output;
use crate::socket::{Listener, ReceiveResult, SendResult};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use types::ConnectionId;

/// The available network drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring: fewer system calls. Needs Linux 6.1, and often a container's permission.
    Uring,
    /// epoll: works everywhere.
    Epoll,
}

impl DriverKind {
    /// Returns the driver's name for people.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Uring => "io_uring",
            DriverKind::Epoll => "epoll",
        }
    }
}

pub(crate) enum NetworkEvent {
    /// A peer connected; no connection owns the socket yet.
    Accepted(Accepted),
    /// `connect` succeeded.
    Connected(ConnectionId),
    /// `connect` failed; the driver has dropped the connection.
    ConnectFailed(ConnectionId, io::Error),
    /// `receive` has something to return: bytes, the end, or an error.
    Readable(ConnectionId),
    /// Sending the remaining output can continue.
    Writable(ConnectionId),
    /// The connection is broken in both directions.
    Broken(ConnectionId),
}

/// An accepted socket, on its way to the reactor that will serve it.
pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) port: Port,
    pub(crate) class: Class,
    pub(crate) peer: SocketAddr,
}

pub(crate) trait Driver {
    /// Announces that the calling thread is the one that will use the driver.
    fn begin(&mut self) -> io::Result<()>;

    /// Waits for events, at most for `timeout` (`None`: without limit), and appends them. Returns
    /// early when the driver is woken.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<NetworkEvent>)
    -> io::Result<()>;

    /// Polls on behalf of a reactor with many active clients. After the first event it waits a
    /// few microseconds for several, so that one wake-up serves all of them.
    fn gather(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<NetworkEvent>,
    ) -> io::Result<()> {
        self.poll(timeout, events)
    }

    /// Returns whether `gather` differs from `poll`.
    fn can_gather(&self) -> bool {
        false
    }

    /// Starts sending the output taken by `send`, without waiting for the next `poll`.
    fn flush(&mut self) -> io::Result<()>;

    /// Starts accepting from `listener`.
    fn listen(&mut self, listener: Listener) -> io::Result<()>;

    /// Stops accepting from all listeners.
    fn stop_listening(&mut self);

    /// Takes over `socket` as `connection`.
    fn adopt(&mut self, connection: ConnectionId, socket: OwnedFd, class: Class) -> io::Result<()>;

    /// Starts connecting. `Connected` or `ConnectFailed` follows, unless the call fails.
    fn connect(
        &mut self,
        connection: ConnectionId,
        address: SocketAddr,
        class: Class,
    ) -> io::Result<()>;

    /// Appends received bytes to the spare capacity of `room`, which must not be empty.
    fn receive(&mut self, connection: ConnectionId, room: &mut Vec<u8>) -> ReceiveResult;

    /// Returns bytes that `receive` would return, as far as they are already known.
    fn peek(&self, _connection: ConnectionId) -> &[u8] {
        &[]
    }

    /// Sends the content of `output`.
    fn send(
        &mut self,
        connection: ConnectionId,
        output: &mut Output,
        buffers: &mut Buffers,
    ) -> SendResult;

    /// Returns whether taken output has not left yet.
    fn is_sending(&self, connection: ConnectionId) -> bool;

    /// Shuts down the sending direction, and discards received bytes. Closing with unread bytes
    /// would make the system reset the connection, and the peer would lose the last output.
    fn finish(&mut self, connection: ConnectionId);

    /// Closes and drops the connection; an unknown one is ignored.
    fn close(&mut self, connection: ConnectionId);
}
