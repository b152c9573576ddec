//! An operator's connection to a coordinator: one request at a time.

use crate::connecting;
use anyhow::{Context, bail};
use handshake::{Credentials, Handshake, HandshakeError, Opening};
use std::io::{Read, Write};
use std::net::TcpStream;
use wire::control::{Answer, Ask, FromCoordinator, ToCoordinator};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::{ConnectionPurpose, HandshakeMessage};

/// A connection whose peer has proven the cluster key.
pub(crate) struct CoordinatorConnection {
    stream: TcpStream,
    asked: u64,
}

impl CoordinatorConnection {
    /// Connects to `host:port` and runs the handshake with `credentials`.
    pub(crate) fn open(
        address: &str,
        credentials: &Credentials,
    ) -> anyhow::Result<CoordinatorConnection> {
        let mut stream = connecting::connect(address)
            .with_context(|| format!("no coordinator answers at {address}: is it running?"))?;
        let purpose = ConnectionPurpose::Operator;
        let opening = Opening { purpose, cluster: None, server: None, expected: None };
        let nonce = handshake::new_nonce().context("cannot read random bytes from the system")?;
        let (handshake, first) = Handshake::open(credentials, opening, nonce);
        handshake::complete(handshake, first, &mut stream)
            .with_context(|| format!("handshake with the coordinator at {address} failed"))?;
        Ok(CoordinatorConnection { stream, asked: 0 })
    }

    /// Sends a request and returns its answer. A refusal is an error.
    pub(crate) fn ask(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        self.asked += 1;
        self.send(&ToCoordinator::Ask { request: self.asked, ask })?;
        loop {
            match self.receive()? {
                Some(FromCoordinator::Answer { request, answer }) if request == self.asked => {
                    return match answer {
                        Answer::Refused(reason) => bail!("the coordinator refused: {reason}"),
                        answer => Ok(answer),
                    };
                }
                Some(FromCoordinator::Rejected { reason, .. }) => {
                    bail!("the coordinator refused: {reason}")
                }
                Some(_) | None => {}
            }
        }
    }

    fn send(&mut self, message: &ToCoordinator) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        frame::encode(message, 0, &mut bytes)
            .context("the request is too large: pass fewer ranges at a time")?;
        self.stream.write_all(&bytes).context("the coordinator closed the connection")
    }

    /// Reads one frame. `None` is an empty frame (keep-alive).
    fn receive(&mut self) -> anyhow::Result<Option<FromCoordinator>> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).context("the coordinator does not answer")?;
        let header = Header::parse(&header).context("not a ballast coordinator")?;
        let mut message = vec![0; header.message_bytes];
        self.stream.read_exact(&mut message).context("the coordinator does not answer")?;
        if message.is_empty() {
            return Ok(None);
        }
        // The coordinator checks our proof after it has sent its own, so it may refuse here.
        if let Ok(HandshakeMessage::Refuse(refusal)) = header.message(&message) {
            bail!("handshake with the coordinator failed: {}", HandshakeError::Theirs(refusal));
        }
        Ok(Some(
            header.message(&message).context("the coordinator runs another version of ballast")?,
        ))
    }
}
