//! One end of a connection between a server or operator and a coordinator. See
//! `docs/design/links.md`.

use crate::frames::{FrameLimits, NextFrame, encoded_handshake, next_frame, sign_of_life};
use handshake::{
    Accepting, Credentials, Handshake, HandshakeError, HandshakeStep, Opening, ProvenPeer,
};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::time::Duration;
use types::Instant;
use wire::Corrupt;
use wire::control::{ALIVE_AGAIN, SILENCE_MAX};
use wire::frame::{HEADER_BYTES, MESSAGE_BYTES_MAX};
use wire::handshake::{HANDSHAKE_MAX, HandshakeMessage, Nonce};

/// Time limit for establishing a connection.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Longest time for writing one frame before the connection is closed.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Most bytes queued for writing: several of the largest maps.
pub const QUEUE_BYTES_MAX: usize = 16 * MESSAGE_BYTES_MAX;

/// An input of a link.
pub enum LinkEvent<'b> {
    /// The connection of an opening end is established. The nonce must be new.
    Connected(Nonce),
    /// These bytes have been received. Not permitted while an effect is to be reported as
    /// [`LinkEvent::Delivered`]. Dropped if the link is not open.
    Received(&'b [u8]),
    /// The last [`LinkEffect::Proven`] or [`LinkEffect::Deliver`] has been handled.
    Delivered,
    /// The protocol above has accepted the peer: the time limit of opening is over.
    Accepted,
    /// A frame is to be written after all earlier ones. Dropped if the link is not open.
    Send(Vec<u8>),
    /// The frame of the last [`LinkEffect::Write`] has been written.
    Written,
    /// The link is to be closed after all queued frames have been written.
    Finish,
    /// Time has passed; see [`Link::next_deadline`].
    Tick,
}

/// An output of a link. The shell executes effects in order.
#[derive(Debug, PartialEq)]
pub enum LinkEffect<M> {
    /// Write this frame, then report [`LinkEvent::Written`].
    Write(Vec<u8>),
    /// The handshake is complete. Handle this, then report [`LinkEvent::Delivered`].
    Proven(ProvenPeer),
    /// Handle this message, then report [`LinkEvent::Delivered`].
    Deliver(M),
    /// Close the connection. No further effect follows.
    Close(LinkEnd),
}

/// The reason why a link has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkEnd {
    /// This side has finished.
    #[error("the connection was closed by this side")]
    Finished,
    /// The connection was not established in time.
    #[error("the peer cannot be reached")]
    NotConnected,
    /// The handshake was not complete in time.
    #[error("the handshake timed out")]
    NotProven,
    /// The protocol above has not accepted the peer in time.
    #[error("the peer did not admit this process in time")]
    NotAccepted,
    /// One side has refused the handshake.
    #[error(transparent)]
    Refused(#[from] HandshakeError),
    /// The peer has sent no frame, or has accepted none, for too long.
    #[error("the connection timed out")]
    Silent,
    /// More is queued than the limit.
    #[error("the peer reads too slowly")]
    TooSlow,
    /// The received bytes are invalid.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl From<LinkEnd> for io::Error {
    fn from(end: LinkEnd) -> io::Error {
        let kind = match end {
            LinkEnd::Finished => io::ErrorKind::ConnectionAborted,
            LinkEnd::NotConnected
            | LinkEnd::NotProven
            | LinkEnd::NotAccepted
            | LinkEnd::Silent
            | LinkEnd::TooSlow => io::ErrorKind::TimedOut,
            LinkEnd::Refused(_) => io::ErrorKind::PermissionDenied,
            LinkEnd::Corrupt(_) => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, end)
    }
}

/// Effects of a link in execution order. Executing one may append further ones.
pub type LinkEffects<M> = VecDeque<LinkEffect<M>>;

enum LinkState {
    /// The connection is not established yet.
    Connecting { credentials: Credentials, opening: Opening },
    /// The handshake is incomplete.
    Proving(Handshake),
    /// The peer is proven. `may_refuse`: its first frame may refuse this side's proof.
    Open { may_refuse: bool },
    /// Everything queued is being written.
    Closing(LinkEnd),
    /// The shell was told to close the connection.
    Closed,
}

/// One end of a control connection, which receives messages of type `M`.
pub struct Link<M> {
    state: LinkState,
    /// Time limit of the current state; `None` after the protocol above has accepted the peer.
    limit: Option<Instant>,
    /// Time limit until the peer is accepted.
    open_limit: Instant,
    /// Received bytes that are not handled.
    input: Vec<u8>,
    /// True while the receiver handles the proven peer or a message.
    is_delivering: bool,
    /// End of the last complete frame, or of its handling.
    heard: Instant,
    /// Frames to be written, without the one that is being written.
    queue: VecDeque<Vec<u8>>,
    /// Bytes of all frames that are not written.
    queued_bytes: usize,
    /// Beginning and bytes of the frame that is being written.
    writing: Option<(Instant, usize)>,
    /// End of the last frame that was written.
    written: Instant,
    received: PhantomData<M>,
}

impl<M: DeserializeOwned> Link<M> {
    /// Begins the opening end of a connection that the shell establishes now.
    pub fn open(now: Instant, credentials: Credentials, opening: Opening) -> Link<M> {
        let mut link = Link::new(now, LinkState::Connecting { credentials, opening });
        link.limit = Some(now + CONNECT_MAX);
        link
    }

    /// Begins the accepting end of an established connection.
    pub fn accept(now: Instant, credentials: &Credentials, here: Accepting, nonce: Nonce) -> Self {
        Link::new(now, LinkState::Proving(Handshake::accept(credentials, here, nonce)))
    }

    fn new(now: Instant, state: LinkState) -> Link<M> {
        let open_limit = now + HANDSHAKE_MAX;
        Link {
            state,
            limit: Some(open_limit),
            open_limit,
            input: Vec::new(),
            is_delivering: false,
            heard: now,
            queue: VecDeque::new(),
            queued_bytes: 0,
            writing: None,
            written: now,
            received: PhantomData,
        }
    }

    /// Applies one event; the only way to change a link.
    pub fn handle(&mut self, now: Instant, event: LinkEvent<'_>, out: &mut LinkEffects<M>) {
        match event {
            LinkEvent::Connected(nonce) => self.connected(nonce),
            LinkEvent::Received(bytes) => {
                assert!(!self.is_delivering, "bytes arrived while a message was being handled");
                if self.wants_input() {
                    self.input.extend_from_slice(bytes);
                    self.read(now, out);
                }
            }
            LinkEvent::Delivered => {
                assert!(self.is_delivering, "something was handled that was not delivered");
                self.is_delivering = false;
                self.heard = now;
                self.read(now, out);
            }
            LinkEvent::Accepted => {
                (self.limit, self.heard, self.written) = (None, now, now);
            }
            LinkEvent::Send(frame) => self.send(frame, out),
            LinkEvent::Written => self.written(now),
            LinkEvent::Finish => self.finish(out),
            LinkEvent::Tick => self.tick(now, out),
        }
        self.settle(now, out);
    }

    /// Returns when [`LinkEvent::Tick`] is due, if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        if matches!(self.state, LinkState::Closed) {
            return None;
        }
        let write = self.writing.map(|(since, _)| since + WRITE_MAX);
        let deadlines = [self.limit, write, self.silence(), self.sign_of_life()];
        deadlines.into_iter().flatten().min()
    }

    /// Returns whether the shell shall read the connection.
    pub fn wants_input(&self) -> bool {
        let is_alive = matches!(self.state, LinkState::Proving(_) | LinkState::Open { .. });
        is_alive && !self.is_delivering
    }

    /// Returns whether the peer is accepted and nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.is_accepted() && self.queued_bytes == 0
    }

    fn is_accepted(&self) -> bool {
        matches!(self.state, LinkState::Open { .. }) && self.limit.is_none()
    }

    /// Returns when the peer has been silent for too long.
    fn silence(&self) -> Option<Instant> {
        let waits = self.is_accepted() && !self.is_delivering;
        waits.then(|| self.heard + SILENCE_MAX)
    }

    /// Returns when a sign of life is due.
    fn sign_of_life(&self) -> Option<Instant> {
        self.is_idle().then(|| self.written + ALIVE_AGAIN)
    }

    fn connected(&mut self, nonce: Nonce) {
        let LinkState::Connecting { credentials, opening } = &self.state else { return };
        let (handshake, first) = Handshake::open(credentials, *opening, nonce);
        self.state = LinkState::Proving(handshake);
        self.limit = Some(self.open_limit);
        self.enqueue(encoded_handshake(&first));
    }

    /// Handles complete frames until one is being delivered.
    fn read(&mut self, now: Instant, out: &mut LinkEffects<M>) {
        let mut start = 0;
        while self.wants_input() {
            match self.next(start, out) {
                Ok(Some(bytes)) => {
                    start += bytes;
                    self.heard = now;
                }
                Ok(None) => break,
                Err(end) => self.end(end, out),
            }
        }
        self.input.drain(..start);
    }

    /// Handles the frame that begins at `start` of the input. Returns its bytes, if it is complete.
    fn next(&mut self, start: usize, out: &mut LinkEffects<M>) -> Result<Option<usize>, LinkEnd> {
        let limits = match self.state {
            LinkState::Open { .. } => FrameLimits::CONTROL,
            LinkState::Proving(_)
            | LinkState::Connecting { .. }
            | LinkState::Closing(_)
            | LinkState::Closed => FrameLimits::HANDSHAKE,
        };
        let bytes = &self.input[start..];
        let header = match next_frame(bytes, limits)? {
            NextFrame::Incomplete { .. } => return Ok(None),
            NextFrame::Complete(header) => header,
        };
        let message = &bytes[HEADER_BYTES..HEADER_BYTES + header.message_bytes];
        if let LinkState::Proving(handshake) = &mut self.state {
            let step = handshake.handle(header.message(message)?);
            self.prove(step, out);
        } else if message.is_empty() {
            header.message::<()>(message)?;
        } else {
            if let LinkState::Open { may_refuse: true } = self.state
                && let Ok(HandshakeMessage::Refuse(refusal)) = header.message(message)
            {
                return Err(HandshakeError::Theirs(refusal).into());
            }
            out.push_back(LinkEffect::Deliver(header.message(message)?));
            self.state = LinkState::Open { may_refuse: false };
            self.is_delivering = true;
        }
        Ok(Some(header.frame_bytes()))
    }

    fn prove(&mut self, step: HandshakeStep, out: &mut LinkEffects<M>) {
        match step {
            HandshakeStep::Reply(reply) => self.enqueue(encoded_handshake(&reply)),
            HandshakeStep::Proven { peer, last } => {
                // The accepting end checks this side's proof after it has sent its own.
                self.state = LinkState::Open { may_refuse: last.is_some() };
                if let Some(last) = last {
                    self.enqueue(encoded_handshake(&last));
                }
                out.push_back(LinkEffect::Proven(peer));
                self.is_delivering = true;
            }
            HandshakeStep::Refused { error, refusal } => {
                if let Some(refusal) = refusal {
                    self.enqueue(encoded_handshake(&refusal));
                }
                self.state = LinkState::Closing(error.into());
            }
        }
    }

    fn send(&mut self, frame: Vec<u8>, out: &mut LinkEffects<M>) {
        if !matches!(self.state, LinkState::Open { .. }) {
            return;
        }
        // A link must not skip a frame and continue.
        match self.queued_bytes + frame.len() > QUEUE_BYTES_MAX {
            true => self.end(LinkEnd::TooSlow, out),
            false => self.enqueue(frame),
        }
    }

    fn enqueue(&mut self, frame: Vec<u8>) {
        self.queued_bytes += frame.len();
        self.queue.push_back(frame);
    }

    fn written(&mut self, now: Instant) {
        let Some((_, bytes)) = self.writing.take() else { return };
        assert!(bytes <= self.queued_bytes, "more bytes were written than were queued");
        self.queued_bytes -= bytes;
        self.written = now;
    }

    fn finish(&mut self, out: &mut LinkEffects<M>) {
        match self.state {
            LinkState::Connecting { .. } | LinkState::Proving(_) => {
                self.end(LinkEnd::Finished, out);
            }
            LinkState::Open { .. } => self.state = LinkState::Closing(LinkEnd::Finished),
            LinkState::Closing(_) | LinkState::Closed => {}
        }
    }

    fn tick(&mut self, now: Instant, out: &mut LinkEffects<M>) {
        let is_over = |limit: Option<Instant>| limit.is_some_and(|limit| limit <= now);
        if is_over(self.limit) {
            self.end(self.missed_limit(), out);
        } else if is_over(self.silence()) || is_over(self.writing.map(|(at, _)| at + WRITE_MAX)) {
            self.end(LinkEnd::Silent, out);
        } else if is_over(self.sign_of_life()) {
            self.enqueue(sign_of_life());
        }
    }

    /// Returns the reason for closing a link that has missed the time limit of its state.
    fn missed_limit(&self) -> LinkEnd {
        match self.state {
            LinkState::Connecting { .. } => LinkEnd::NotConnected,
            LinkState::Proving(_) => LinkEnd::NotProven,
            LinkState::Open { .. } => LinkEnd::NotAccepted,
            LinkState::Closing(end) => end,
            LinkState::Closed => LinkEnd::Finished,
        }
    }

    /// Ends the link at once.
    fn end(&mut self, end: LinkEnd, out: &mut LinkEffects<M>) {
        if !matches!(self.state, LinkState::Closed) {
            self.state = LinkState::Closed;
            out.push_back(LinkEffect::Close(end));
        }
    }

    /// Begins to write the next frame. Closes a link that has nothing left to write.
    fn settle(&mut self, now: Instant, out: &mut LinkEffects<M>) {
        if matches!(self.state, LinkState::Closed) {
            return;
        }
        if self.writing.is_none()
            && let Some(frame) = self.queue.pop_front()
        {
            self.writing = Some((now, frame.len()));
            out.push_back(LinkEffect::Write(frame));
        }
        if let (LinkState::Closing(end), None) = (&self.state, self.writing) {
            self.end(*end, out);
        }
    }
}
