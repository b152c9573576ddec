//! An operator's connection to a coordinator: one question at a time.

use crate::connecting;
use anyhow::{Context, bail};
use handshake::{Credentials, Handshake, HandshakeError, Opening};
use std::io::{Read, Write};
use std::net::TcpStream;
use wire::control::{Answer, Ask, FromCoordinator, ToCoordinator};
use wire::frame::{self, HEADER_BYTES, Header};
use wire::handshake::{HandshakeMessage, Purpose};

/// A connection whose other side has proven the cluster key.
pub(crate) struct CoordinatorConnection {
    stream: TcpStream,
    asked: u64,
}

impl CoordinatorConnection {
    /// Connects to `host:port` and proves the key of `credentials`.
    pub(crate) fn open(
        address: &str,
        credentials: &Credentials,
    ) -> anyhow::Result<CoordinatorConnection> {
        let mut stream = connecting::connect(address)
            .with_context(|| format!("no coordinator answers at {address}: is it running?"))?;
        let purpose = Purpose::Operator;
        let opening = Opening { purpose, cluster: None, server: None, expected: None };
        let nonce = handshake::new_nonce().context("the system has no random bytes")?;
        let (handshake, first) = Handshake::open(credentials, opening, nonce);
        handshake::complete(handshake, first, &mut stream)
            .with_context(|| format!("the coordinator at {address} cannot be asked"))?;
        Ok(CoordinatorConnection { stream, asked: 0 })
    }

    /// Asks; a refusal is an error.
    pub(crate) fn ask(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        self.asked += 1;
        self.say(&ToCoordinator::Ask { request: self.asked, ask })?;
        loop {
            match self.hear()? {
                Some(FromCoordinator::Answer { request, answer }) if request == self.asked => {
                    return match answer {
                        Answer::Refused(reason) => bail!("the coordinator refuses: {reason}"),
                        answer => Ok(answer),
                    };
                }
                Some(FromCoordinator::Rejected { reason, .. }) => {
                    bail!("the coordinator refuses: {reason}")
                }
                Some(_) | None => {}
            }
        }
    }

    fn say(&mut self, message: &ToCoordinator) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        frame::encode(message, 0, &mut bytes).context("name fewer ranges at a time")?;
        self.stream.write_all(&bytes).context("the coordinator has closed the connection")
    }

    /// One frame; `None` is a sign of life.
    fn hear(&mut self) -> anyhow::Result<Option<FromCoordinator>> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).context("the coordinator does not answer")?;
        let header = Header::parse(&header).context("this is no coordinator of ballast")?;
        let mut message = vec![0; header.message_bytes];
        self.stream.read_exact(&mut message).context("the coordinator does not answer")?;
        if message.is_empty() {
            return Ok(None);
        }
        // The coordinator judges our proof after it has proven its own, and may refuse then.
        if let Ok(HandshakeMessage::Refuse(refusal)) = header.message(&message) {
            bail!("the coordinator cannot be asked: {}", HandshakeError::Theirs(refusal));
        }
        Ok(Some(header.message(&message).context("this is no coordinator of this version")?))
    }
}
