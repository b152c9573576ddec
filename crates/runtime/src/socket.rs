//! Sockets: how they are made and set up. All of them are non-blocking.
//!
//! Options are set on the listener: the system hands them on to accepted sockets, so that
//! accepting costs one system call.

use crate::connection::{Class, Port};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections that may wait to be accepted; the system cuts it to its own limit.
const BACKLOG: i32 = 4096;

/// Socket buffers of bus connections; the system doubles it for its own use. With 1 MiB, receiving
/// costs 290 ns per KiB instead of 250 (64 KiB frames over loopback, `echo_bench`; 128 KiB: 245),
/// presumably because what was sent has left the second-level cache by then. Large enough for
/// 2.5 GB/s per connection over a network with 100 us of round trip.
const BUS_BUFFER_BYTES: usize = 256 << 10;

/// After this time without a byte the system asks whether a client still lives; as in Redis.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// A socket that listens, not yet served by a reactor.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: OwnedFd,
    pub(crate) port: Port,
    pub(crate) class: Class,
    address: SocketAddr,
}

/// Why a listener could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    error: io::Error,
}

impl Listener {
    /// Listens on `address`; connections get `class` and are announced with `port`.
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

    /// Where it listens: the real port if it was asked for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A socket on its way to `address`. Becomes writable when it is there, or has failed.
pub(crate) fn connect(address: SocketAddr, class: Class) -> Result<OwnedFd, Errno> {
    let socket = new_socket(address)?;
    set_up(&socket, class)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
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
    // BBR, the default of some systems, paces: it sends a pull reply in pieces with pauses between
    // them. A container may forbid the choice; then the default has to do.
    let _ = sockopt::set_tcp_congestion(socket, "cubic");
    if class.is_bus() {
        sockopt::set_socket_send_buffer_size(socket, BUS_BUFFER_BYTES)?;
        sockopt::set_socket_recv_buffer_size(socket, BUS_BUFFER_BYTES)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::AsFd;

    #[test]
    fn accepted_sockets_inherit_what_the_listener_was_given() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(any, Port(0), Class::Bus).expect("a free port");
        let _client = TcpStream::connect(listener.address()).expect("it listens");
        let mut poll = [rustix::event::PollFd::new(&listener.socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut poll, None).expect("poll works");
        let accepted = net::accept(&listener.socket).expect("somebody is there");
        assert!(sockopt::tcp_nodelay(accepted.as_fd()).expect("a TCP socket"));
        assert!(sockopt::socket_keepalive(accepted.as_fd()).expect("a socket"));
        let bytes = sockopt::socket_send_buffer_size(accepted.as_fd()).expect("a socket");
        assert!(bytes >= BUS_BUFFER_BYTES, "{bytes}");
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
