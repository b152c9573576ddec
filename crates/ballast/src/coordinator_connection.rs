//! An operator's connection to a coordinator: one request at a time.

use crate::connecting;
use anyhow::{Context, bail};
use handshake::{Credentials, Opening};
use links::BlockingLink;
use std::io::ErrorKind;
use std::net::TcpStream;
use wire::control::{
    Answer, Ask, ClockReport, ClusterMap, FromCoordinator, Health, JoinReply, MigrationReport,
    RecoveryReport, ToCoordinator,
};
use wire::handshake::ConnectionPurpose;

/// A connection whose peer has proven the cluster key.
pub(crate) struct CoordinatorConnection {
    link: BlockingLink<TcpStream, FromCoordinator>,
    asked: u64,
}

impl CoordinatorConnection {
    /// Connects to `host:port` and runs the handshake with `credentials`.
    pub(crate) fn open(
        address: &str,
        credentials: &Credentials,
    ) -> anyhow::Result<CoordinatorConnection> {
        let stream = connecting::connect(address)
            .with_context(|| format!("no coordinator answers at {address}: is it running?"))?;
        let purpose = ConnectionPurpose::Operator;
        let opening = Opening { purpose, cluster: None, server: None, expected: None };
        let nonce = handshake::new_nonce().context("cannot read random bytes from the system")?;
        let (link, _) = BlockingLink::open(stream, credentials, opening, nonce)
            .with_context(|| format!("handshake with the coordinator at {address} failed"))?;
        Ok(CoordinatorConnection { link, asked: 0 })
    }

    /// Sends a request and returns its answer. A refusal is an error.
    pub(crate) fn ask(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        self.asked += 1;
        let frame = links::encoded(&ToCoordinator::Ask { request: self.asked, ask })
            .context("the request is too large: pass fewer ranges at a time")?;
        self.link.send(frame).context("the coordinator closed the connection")?;
        loop {
            match self.receive()? {
                FromCoordinator::Answer { request, answer } if request == self.asked => {
                    return match answer {
                        Answer::Refused(reason) => bail!("the coordinator refused: {reason}"),
                        answer => Ok(answer),
                    };
                }
                FromCoordinator::Join(JoinReply::Rejected { reason, .. }) => {
                    bail!("the coordinator refused: {reason}")
                }
                _ => {}
            }
        }
    }

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

    fn receive(&mut self) -> anyhow::Result<FromCoordinator> {
        self.link.receive().map_err(|error| {
            let context = match error.kind() {
                // The coordinator checks our proof after it has sent its own.
                ErrorKind::PermissionDenied => "handshake with the coordinator failed",
                ErrorKind::InvalidData => "the coordinator runs another version of ballast",
                _ => "the coordinator does not answer",
            };
            anyhow::Error::new(error).context(context)
        })
    }
}

fn unexpected<T>(answer: &Answer) -> anyhow::Result<T> {
    bail!("unexpected answer of the coordinator: {answer:?}")
}
