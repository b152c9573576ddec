//! A plain connection to a server, for operator commands.

use crate::connecting;
use anyhow::{Context, bail};
use resp::{ReceivedReply, Reply, ReplyLimits, ReplyParser, RequestWriter, Value};
use std::io::{Read, Write};
use std::net::TcpStream;

/// A connection that sends one request at a time, in RESP2.
pub(crate) struct NodeConnection {
    stream: TcpStream,
    parser: ReplyParser,
    received: Vec<u8>,
}

impl NodeConnection {
    pub(crate) fn open(address: &str) -> anyhow::Result<NodeConnection> {
        let stream = connecting::connect(address)
            .with_context(|| format!("no server answers at {address}: is it running?"))?;
        let parser = ReplyParser::new(ReplyLimits::default());
        Ok(NodeConnection { stream, parser, received: Vec::new() })
    }

    /// Sends a request and returns its reply. An error reply is an error.
    pub(crate) fn ask(&mut self, arguments: &[&[u8]]) -> anyhow::Result<Value> {
        let mut request = Vec::new();
        RequestWriter::write(arguments, &mut request);
        self.stream.write_all(&request)?;
        loop {
            if let Some(value) = self.take_reply()? {
                if let Value::Error(text) = &value {
                    bail!("the server replied: {}", String::from_utf8_lossy(text));
                }
                return Ok(value);
            }
            let mut bite = [0; 16 << 10];
            let count = self.stream.read(&mut bite).context("the server does not answer")?;
            if count == 0 {
                bail!("the server closed the connection");
            }
            self.received.extend_from_slice(&bite[..count]);
        }
    }

    fn take_reply(&mut self) -> anyhow::Result<Option<Value>> {
        let mut rest = &self.received[..];
        let found =
            match self.parser.next(&mut rest).context("the reply is not in the Redis protocol")? {
                Some(ReceivedReply { reply: Reply::Push(_), .. }) | None => None,
                Some(ReceivedReply { reply, .. }) => Some(Value::from(reply)),
            };
        let taken = self.received.len() - rest.len();
        self.received.drain(..taken);
        Ok(found)
    }
}
