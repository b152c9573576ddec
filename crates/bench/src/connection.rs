//! One non-blocking connection to a server: bytes out, replies in, in the order of the requests.

use anyhow::{Context, Result};
use resp::{Received, Reply, ReplyLimits, ReplyParser};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use types::Instant;

/// Room for replies at the start; it grows for larger ones.
const INPUT_BYTES: usize = 64 << 10;

/// A connection whose requests are remembered as `P` until they are answered.
#[derive(Debug)]
pub(crate) struct Connection<P> {
    address: SocketAddr,
    socket: TcpStream,
    output: Vec<u8>,
    /// How much of `output` the socket has taken.
    sent: usize,
    /// Bytes that the socket has taken of earlier outputs.
    sent_before: u64,
    input: Box<[u8]>,
    /// The part of `input` that holds replies not taken yet.
    filled: std::ops::Range<usize>,
    parser: ReplyParser,
    pending: VecDeque<Pending<P>>,
    /// When something arrived last, or nothing was owed.
    heard: Instant,
}

/// A request without an answer.
#[derive(Debug)]
struct Pending<P> {
    request: P,
    /// Where it begins in all that is sent on the connection.
    begin: u64,
}

impl<P> Connection<P> {
    /// Begins to connect; what is requested meanwhile waits in the buffer.
    pub(crate) fn open(address: SocketAddr) -> Result<Connection<P>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        // The default of some systems paces its sends, which a loopback or rack does not need.
        // Where cubic is missing the default has to do.
        let _ = sockopt::set_tcp_congestion(&socket, "cubic");
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error).with_context(|| format!("connecting to {address}")),
        }
        Ok(Connection {
            address,
            socket: TcpStream::from(socket),
            output: Vec::new(),
            sent: 0,
            sent_before: 0,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            filled: 0..0,
            parser: ReplyParser::new(ReplyLimits::default()),
            pending: VecDeque::new(),
            heard: Instant(0),
        })
    }

    /// The server it leads to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Remembers a request; its bytes go to the returned buffer.
    #[inline]
    pub(crate) fn request(&mut self, request: P) -> &mut Vec<u8> {
        let begin = self.sent_before + self.output.len() as u64;
        self.pending.push_back(Pending { request, begin });
        &mut self.output
    }

    /// Notes the time if nothing is owed: the server's silence counts from the next request.
    #[inline]
    pub(crate) fn note_idle(&mut self, now: Instant) {
        if self.pending.is_empty() {
            self.heard = now;
        }
    }

    /// Whether it has owed answers for so long without a sign of life.
    pub(crate) fn is_silent(&self, now: Instant, longest: Duration) -> bool {
        !self.pending.is_empty() && now.since(self.heard) > longest
    }

    /// Sends what the socket takes. `true`: that was everything.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // Still connecting.
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent_before += self.output.len() as u64;
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Reads once what has arrived, as much as there is room for.
    pub(crate) fn receive(&mut self, now: Instant) -> io::Result<()> {
        self.make_room();
        match self.socket.read(&mut self.input[self.filled.end..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.filled.end += length;
                self.heard = now;
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves an incomplete reply to the front, and grows the buffer for one that fills it.
    fn make_room(&mut self) {
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.end == self.input.len() {
            self.input.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
            if self.filled.end > self.input.len() / 2 {
                let mut larger = vec![0; 2 * self.input.len()].into_boxed_slice();
                larger[..self.filled.end].copy_from_slice(&self.input[..self.filled.end]);
                self.input = larger;
            }
        }
    }

    /// The next reply that has arrived in full, and the request it answers.
    #[inline]
    pub(crate) fn next_reply(&mut self) -> Result<Option<(P, Reply<'_>)>> {
        let mut bytes = &self.input[self.filled.clone()];
        while let Some(Received { reply, attributes: _ }) = self.parser.next(&mut bytes)? {
            self.filled.start = self.filled.end - bytes.len();
            if let Reply::Push(_) = reply {
                continue;
            }
            let pending = self.pending.pop_front().context("a reply that nobody asked for")?;
            return Ok(Some((pending.request, reply)));
        }
        Ok(None)
    }

    /// What was requested and not answered, when the connection is given up, and whether a byte of
    /// it was sent.
    pub(crate) fn into_pending(self) -> impl Iterator<Item = (P, bool)> {
        let sent = self.sent_before + self.sent as u64;
        self.pending.into_iter().map(move |pending| (pending.request, pending.begin < sent))
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl<P> AsFd for Connection<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
