//! A link over a blocking stream: for a process that does nothing but wait for answers. It has no
//! time limits but the stream's.

use crate::link::{Link, LinkEffect, LinkEffects, LinkEvent};
use handshake::{Credentials, Opening, ProvenPeer};
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use types::Instant;
use wire::handshake::Nonce;

/// Bytes read from the stream at a time.
const INPUT_BYTES: usize = 4 << 10;
/// The time of all events: no deadline is ever due.
const NOW: Instant = Instant(0);

/// The opening end of a connection, which receives messages of type `M`.
pub struct BlockingLink<S, M> {
    stream: S,
    link: Link<M>,
    effects: LinkEffects<M>,
}

impl<S: Read + Write, M: DeserializeOwned> BlockingLink<S, M> {
    /// Performs the handshake on a connected stream. The nonce must be new. Also returns the peer,
    /// which may still refuse this side's proof instead of sending its first message.
    ///
    /// # Errors
    /// The stream failed, or a side refused the handshake ([`io::ErrorKind::PermissionDenied`]).
    pub fn open(
        stream: S,
        credentials: &Credentials,
        opening: Opening,
        nonce: Nonce,
    ) -> io::Result<(BlockingLink<S, M>, ProvenPeer)> {
        let link = Link::open(NOW, credentials.clone(), opening);
        let mut opened = BlockingLink { stream, link, effects: LinkEffects::new() };
        opened.handle(LinkEvent::Connected(nonce));
        loop {
            if let LinkEffect::Proven(peer) = opened.wait()? {
                opened.write()?;
                return Ok((opened, peer));
            }
        }
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// The stream failed.
    pub fn send(&mut self, frame: Vec<u8>) -> io::Result<()> {
        self.handle(LinkEvent::Send(frame));
        self.write()
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// The stream failed or ended, or the peer has refused this side's proof
    /// ([`io::ErrorKind::PermissionDenied`]) or violated the protocol
    /// ([`io::ErrorKind::InvalidData`]).
    pub fn receive(&mut self) -> io::Result<M> {
        loop {
            if let LinkEffect::Deliver(message) = self.wait()? {
                return Ok(message);
            }
        }
    }

    /// Moves bytes until the link has an effect that is not about bytes.
    fn wait(&mut self) -> io::Result<LinkEffect<M>> {
        loop {
            self.write()?;
            match self.effects.pop_front() {
                Some(LinkEffect::Close(end)) => return Err(end.into()),
                Some(effect) => {
                    self.handle(LinkEvent::Delivered);
                    return Ok(effect);
                }
                None => self.read()?,
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; INPUT_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.handle(LinkEvent::Received(&bytes[..count]));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes all frames among the effects.
    fn write(&mut self) -> io::Result<()> {
        let is_frame = |effect: &LinkEffect<M>| matches!(effect, LinkEffect::Write(_));
        while let Some(at) = self.effects.iter().position(is_frame) {
            if let Some(LinkEffect::Write(frame)) = self.effects.remove(at) {
                self.stream.write_all(&frame)?;
                self.handle(LinkEvent::Written);
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: LinkEvent<'_>) {
        self.link.handle(NOW, event, &mut self.effects);
    }
}
