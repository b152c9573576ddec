//! A handshake over any blocking stream.

use crate::{Handshake, HandshakeError, HandshakeStep, ProvenPeer};
use std::io::{self, Read, Write};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::{HANDSHAKE_BYTES_MAX, HandshakeMessage};

/// Performs the opening side of a handshake: sends `first`, and continues until the peer is proven.
///
/// # Errors
/// The stream failed, or a side refused the handshake.
pub fn complete(
    mut handshake: Handshake,
    first: HandshakeMessage,
    stream: &mut (impl Read + Write),
) -> io::Result<ProvenPeer> {
    send(&first, stream)?;
    loop {
        match handshake.handle(receive(stream)?) {
            HandshakeStep::Reply(reply) => send(&reply, stream)?,
            HandshakeStep::Proven { peer, last } => {
                last.map_or(Ok(()), |last| send(&last, stream))?;
                return Ok(peer);
            }
            HandshakeStep::Refused { error, refusal } => {
                // The other side may have closed the connection already.
                let _ = refusal.map_or(Ok(()), |refusal| send(&refusal, stream));
                return Err(error.into());
            }
        }
    }
}

fn send(message: &HandshakeMessage, stream: &mut impl Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(message, 0, &mut bytes).map_err(io::Error::other)?;
    stream.write_all(&bytes)
}

fn receive(stream: &mut impl Read) -> io::Result<HandshakeMessage> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = Header::parse(&header).map_err(invalid_answer)?;
    if header.payload_bytes != 0 || header.message_bytes > HANDSHAKE_BYTES_MAX {
        return Err(invalid_answer("length of handshake"));
    }
    let mut message = vec![0; header.message_bytes];
    stream.read_exact(&mut message)?;
    header.message(&message).map_err(invalid_answer)
}

fn invalid_answer(why: impl std::fmt::Display) -> io::Error {
    let text = format!("the peer does not answer with ballast's handshake ({why})");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    }
}
