//! An operator's connection to a coordinator: one request at a time.

use crate::connecting;
use anyhow::{Context, bail};
use handshake::{Credentials, Handshake, HandshakeError, Opening};
use std::io::{Read, Write};
use std::net::TcpStream;
use wire::control::{
    Answer, Ask, ClockReport, ClusterMap, FromCoordinator, Health, MigrationReport, RecoveryReport,
    ToCoordinator,
};
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

    /// Returns the map of the cluster.
    pub(crate) fn map(&mut self) -> anyhow::Result<ClusterMap> {
        match self.ask(Ask::Map)? {
            Answer::Map(map) => Ok(*map),
            other => unexpected(&other),
        }
    }

    /// Returns the reason for which the coordinator doubts its file, if there is one.
    pub(crate) fn doubt(&mut self) -> anyhow::Result<Option<String>> {
        match self.ask(Ask::Standing)? {
            Answer::Standing(doubt) => Ok(doubt),
            other => unexpected(&other),
        }
    }

    /// Returns the recoveries of dead servers.
    pub(crate) fn recoveries(&mut self) -> anyhow::Result<Vec<RecoveryReport>> {
        match self.ask(Ask::Recoveries)? {
            Answer::Recoveries(recoveries) => Ok(recoveries),
            other => unexpected(&other),
        }
    }

    /// Returns the migrations that the coordinator knows.
    pub(crate) fn migrations(&mut self) -> anyhow::Result<Vec<MigrationReport>> {
        match self.ask(Ask::List { task: None })? {
            Answer::Migrations(migrations) => Ok(migrations),
            other => unexpected(&other),
        }
    }

    /// Returns the servers with wrong clocks.
    pub(crate) fn clocks(&mut self) -> anyhow::Result<Vec<ClockReport>> {
        match self.ask(Ask::Clocks)? {
            Answer::Clocks(clocks) => Ok(clocks),
            other => unexpected(&other),
        }
    }

    /// Returns the state of the coordinator itself and of its connections.
    pub(crate) fn health(&mut self) -> anyhow::Result<Health> {
        match self.ask(Ask::Health)? {
            Answer::Health(health) => Ok(health),
            other => unexpected(&other),
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

fn unexpected<T>(answer: &Answer) -> anyhow::Result<T> {
    bail!("unexpected answer of the coordinator: {answer:?}")
}
