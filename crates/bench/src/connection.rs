//! Non-blocking connection to a server: bytes out, replies in, in the order of the requests.

use anyhow::{Context, Result};
use resp::{ReceivedReply, Reply, ReplyLimits, ReplyParser};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use types::Instant;

/// Initial size of the input buffer in bytes; it grows for larger replies.
const INPUT_BYTES: usize = 64 << 10;

/// Connection that stores each unanswered request as a `P`.
pub(crate) struct LoadConnection<P> {
    address: SocketAddr,
    socket: TcpStream,
    output: Vec<u8>,
    /// Number of bytes of `output` that the socket has taken.
    sent: usize,
    /// Number of bytes of earlier outputs that the socket has taken.
    sent_before: u64,
    input: Box<[u8]>,
    /// Part of `input` with replies that were not taken yet.
    filled: std::ops::Range<usize>,
    parser: ReplyParser,
    pending: VecDeque<UnansweredRequest<P>>,
    /// Time of the last received bytes, or of the last moment without owed replies.
    last_received: Instant,
}

struct UnansweredRequest<P> {
    request: P,
    /// Position of its first byte in all bytes sent on the connection.
    begin: u64,
}

impl<P> LoadConnection<P> {
    /// Begins to connect; requests wait in the buffer meanwhile.
    pub(crate) fn open(address: SocketAddr) -> Result<LoadConnection<P>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        // The default of some systems paces its sends, which loopback or a rack does not need. On
        // systems without cubic the default remains.
        let _ = sockopt::set_tcp_congestion(&socket, "cubic");
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error).with_context(|| format!("connecting to {address}")),
        }
        Ok(LoadConnection {
            address,
            socket: TcpStream::from(socket),
            output: Vec::new(),
            sent: 0,
            sent_before: 0,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            filled: 0..0,
            parser: ReplyParser::new(ReplyLimits::default()),
            pending: VecDeque::new(),
            last_received: Instant(0),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers a request; its bytes go to the returned buffer.
    #[inline]
    pub(crate) fn request(&mut self, request: P) -> &mut Vec<u8> {
        let begin = self.sent_before + self.output.len() as u64;
        self.pending.push_back(UnansweredRequest { request, begin });
        &mut self.output
    }

    /// Records the time if no reply is owed: the server's silence counts from the next request.
    #[inline]
    pub(crate) fn record_idle(&mut self, now: Instant) {
        if self.pending.is_empty() {
            self.last_received = now;
        }
    }

    /// Returns whether the server has owed replies and sent nothing for longer than `longest`.
    pub(crate) fn is_silent(&self, now: Instant, longest: Duration) -> bool {
        !self.pending.is_empty() && now.since(self.last_received) > longest
    }

    /// Sends as much as the socket takes. Returns whether that was everything.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // The socket is still connecting.
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

    /// Reads once, as much as there is room for.
    pub(crate) fn receive(&mut self, now: Instant) -> io::Result<()> {
        self.make_room();
        match self.socket.read(&mut self.input[self.filled.end..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.filled.end += length;
                self.last_received = now;
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Moves an incomplete reply to the front, and grows the buffer if the reply fills it.
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

    /// Returns the next complete reply, and its request.
    #[inline]
    pub(crate) fn next_reply(&mut self) -> Result<Option<(P, Reply<'_>)>> {
        let mut bytes = &self.input[self.filled.clone()];
        while let Some(ReceivedReply { reply, attributes: _ }) = self.parser.next(&mut bytes)? {
            self.filled.start = self.filled.end - bytes.len();
            if let Reply::Push(_) = reply {
                continue;
            }
            let pending = self.pending.pop_front().context("a reply without a request")?;
            return Ok(Some((pending.request, reply)));
        }
        Ok(None)
    }

    /// Returns the unanswered requests when the connection is closed, each with whether a byte of
    /// it was sent.
    pub(crate) fn into_pending(self) -> impl Iterator<Item = (P, bool)> {
        let sent = self.sent_before + self.sent as u64;
        self.pending.into_iter().map(move |pending| (pending.request, pending.begin < sent))
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl<P> AsFd for LoadConnection<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
