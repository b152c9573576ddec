//! Sockets: creation, options, reading and writing. All sockets are non-blocking.
//!
//! Options are set on the listener and inherited by accepted sockets, so that accepting costs one
//! system call.

use crate::buffers::{BUFFER_BYTES, Buffers};
use crate::connection::{Class, Port};
use crate::output::{Output, SLICES_MAX};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags,
    SocketType,
};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Most connections that may wait to be accepted; the system limits it further.
const BACKLOG: i32 = 4096;

/// Size of the socket buffers of bus connections; the system doubles it for its own use. With 1
/// MiB, receiving costs 290 ns per KiB instead of 250 (64 KiB frames over loopback, `echo_bench`;
/// 128 KiB: 245), presumably because sent data has left the second-level cache by then. The size
/// is enough for 2.5 GB/s per connection over a network with a round trip of 100 us.
const BUS_BUFFER_BYTES: usize = 256 << 10;

/// Time without a byte after which the system checks that a client is alive; as in Redis.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// Longest time for which sent bytes may stay unacknowledged by the peer's system before the
/// connection ends. The system's default retries for a quarter of an hour with doubling pauses.
/// After a short cut, as much time again could pass before any data arrives.
pub const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);

/// Ends the connection when sent bytes stay unacknowledged for [`UNACKNOWLEDGED_MAX`]. On a
/// listener, applies to each accepted connection.
pub fn limit_unacknowledged(socket: impl AsFd) -> io::Result<()> {
    Ok(set_unacknowledged_max(socket)?)
}

fn set_unacknowledged_max(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MAX.as_millis() as u32)
}

/// A listening socket that no reactor serves yet.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: OwnedFd,
    pub(crate) port: Port,
    pub(crate) class: Class,
    address: SocketAddr,
}

/// The failure to create a listener.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    error: io::Error,
}

impl Listener {
    /// Listens on `address`. Its connections get `class` and are announced with `port`.
    pub fn bind(address: SocketAddr, port: Port, class: Class) -> Result<Listener, ListenError> {
        let listen = || -> Result<Listener, Errno> {
            let socket = new_socket(address)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            set_up(&socket, class)?;
            net::bind(&socket, &address)?;
            net::listen(&socket, BACKLOG)?;
            let bound = net::getsockname(&socket)?;
            let address = SocketAddr::try_from(bound).unwrap_or(address);
            Ok(Listener { socket, port, class, address })
        };
        listen().map_err(|error| ListenError { address, error: error.into() })
    }

    /// Returns the identifier with which its connections are announced.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Sets the time without a byte after which the system checks that a client is alive. 0
    /// disables the check.
    pub fn set_keepalive(&self, silence: Duration) -> Result<(), ListenError> {
        let set = || {
            sockopt::set_socket_keepalive(&self.socket, !silence.is_zero())?;
            match silence.is_zero() {
                true => Ok(()),
                false => sockopt::set_tcp_keepidle(&self.socket, silence),
            }
        };
        set().map_err(|error: Errno| ListenError { address: self.address, error: error.into() })
    }

    /// Returns the listening address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The result of receiving from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveResult {
    /// Bytes were received. `may_have_more`: more may be available at once.
    Bytes { count: usize, may_have_more: bool },
    /// Nothing is available at present.
    Nothing,
    /// The peer has sent its last byte.
    End,
    /// The connection is broken.
    Failed,
}

/// The result of sending to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// All output was sent.
    All { bytes: usize },
    /// The driver took all output and will send it. A further `send` returns `Blocked` until it
    /// has left, which lets the caller wait for that.
    Taken { bytes: usize },
    /// The rest must wait for `Writable`.
    Blocked { bytes: usize },
    /// The connection is broken.
    Failed,
}

/// Returns a socket that is connecting to `address`. It becomes writable when the connection is
/// established or has failed.
pub(crate) fn connect(address: SocketAddr, class: Class) -> Result<OwnedFd, Errno> {
    let socket = new_socket(address)?;
    set_up(&socket, class)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Appends received bytes to the spare capacity of `room`, which must not be empty.
pub(crate) fn receive(socket: &OwnedFd, room: &mut Vec<u8>) -> ReceiveResult {
    let spare = room.capacity() - room.len();
    assert!(spare > 0, "receiving needs room");
    loop {
        return match net::recv(socket, spare_capacity(room), RecvFlags::empty()) {
            Ok((_, 0)) => ReceiveResult::End,
            Ok((_, count)) => ReceiveResult::Bytes { count, may_have_more: count == spare },
            Err(Errno::AGAIN) => ReceiveResult::Nothing,
            Err(Errno::INTR) => continue,
            Err(_) => ReceiveResult::Failed,
        };
    }
}

/// Sends as much of `output` as the socket accepts.
pub(crate) fn send(socket: &OwnedFd, output: &mut Output, buffers: &mut Buffers) -> SendResult {
    output.seal();
    let mut bytes = 0;
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = output.slices(&mut slices);
        let sent = match &slices[..count] {
            [one] => net::send(socket, one, SendFlags::NOSIGNAL),
            many => {
                let mut nothing = SendAncillaryBuffer::default();
                net::sendmsg(socket, many, &mut nothing, SendFlags::NOSIGNAL)
            }
        };
        match sent {
            Ok(count) => {
                bytes += count;
                output.advance(count, buffers);
            }
            Err(Errno::AGAIN) => return SendResult::Blocked { bytes },
            Err(Errno::INTR) => {}
            Err(_) => return SendResult::Failed,
        }
    }
    SendResult::All { bytes }
}

/// Ends the output, and discards received bytes: see `Driver::finish`.
pub(crate) fn finish(socket: &OwnedFd) {
    let _ = net::shutdown(socket, Shutdown::Write);
    let mut thrown_away = Vec::with_capacity(BUFFER_BYTES);
    for _ in 0..64 {
        thrown_away.clear();
        match net::recv(socket, spare_capacity(&mut thrown_away), RecvFlags::empty()) {
            Ok((_, count)) if count > 0 => {}
            _ => return,
        }
    }
}

fn new_socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(family, SocketType::STREAM, flags, None)
}

fn set_up(socket: &OwnedFd, class: Class) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    // BBR, the default of some systems, paces: it sends a pull reply in pieces with pauses
    // between them. If a container forbids the choice, the default remains.
    let _ = ["cubic", "reno"]
        .into_iter()
        .find(|name| sockopt::set_tcp_congestion(socket, name).is_ok());
    if class.is_bus() {
        sockopt::set_socket_send_buffer_size(socket, BUS_BUFFER_BYTES)?;
        sockopt::set_socket_recv_buffer_size(socket, BUS_BUFFER_BYTES)?;
        set_unacknowledged_max(socket)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn accepted_sockets_inherit_what_the_listener_was_given() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(any, Port(0), Class::Bus).expect("a free port");
        let _client = TcpStream::connect(listener.address()).expect("it listens");
        let mut poll = [rustix::event::PollFd::new(&listener.socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).expect("poll works");
        let accepted = net::accept(&listener.socket).expect("a client has connected");
        assert!(sockopt::tcp_nodelay(accepted.as_fd()).expect("a TCP socket"));
        assert!(sockopt::socket_keepalive(accepted.as_fd()).expect("a socket"));
        let bytes = sockopt::socket_send_buffer_size(accepted.as_fd()).expect("a socket");
        assert!(bytes >= BUS_BUFFER_BYTES, "{bytes}");
        let patience = sockopt::tcp_user_timeout(accepted.as_fd()).expect("a TCP socket");
        assert_eq!(u128::from(patience), UNACKNOWLEDGED_MAX.as_millis());
    }

    #[test]
    fn a_port_in_use_is_reported_with_its_address() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = Listener::bind(any, Port(0), Class::Client).expect("a free port");
        let second = Listener::bind(first.address(), Port(0), Class::Client);
        let text = second.expect_err("two cannot listen on one port").to_string();
        assert!(text.contains(&first.address().to_string()), "{text}");
    }
}
