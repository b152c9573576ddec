//! Blocking connection for everything except load: slot maps, migrations, checks.

use crate::clock;
use crate::slot_map::SlotMap;
use anyhow::{Context, Result, bail};
use resp::{Reply, ReplyLimits, ReplyParser, RequestWriter, Value};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for a reply: longer than any stall in a figure, but a hung server ends the run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connection to one server that sends one command at a time.
pub struct Control {
    address: SocketAddr,
    socket: TcpStream,
    input: Vec<u8>,
    parser: ReplyParser,
}

impl Control {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> Result<Control> {
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Control::over(socket)
    }

    /// Uses an existing connection, with its time limits.
    pub fn over(socket: TcpStream) -> Result<Control> {
        let parser = ReplyParser::new(ReplyLimits::default());
        Ok(Control { address: socket.peer_addr()?, socket, input: Vec::new(), parser })
    }

    /// Connects to a server that is just starting: tries until the server answers `PING`.
    pub fn wait_for(address: SocketAddr, patience: Duration) -> Result<Control> {
        let until = clock::now() + patience;
        loop {
            let tried = Control::connect(address)
                .and_then(|mut control| control.call(&["PING"]).map(|_| control));
            match tried {
                Ok(control) => return Ok(control),
                Err(error) if clock::now() > until => {
                    return Err(error.context(format!("{address} does not answer")));
                }
                Err(_) => clock::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a command and waits for its reply. An error reply is an `Err`.
    pub fn call(&mut self, arguments: &[&str]) -> Result<Value> {
        match self.ask(arguments)? {
            Value::Error(error) => {
                bail!(
                    "{} answered {:?}: {}",
                    self.address,
                    arguments.join(" "),
                    String::from_utf8_lossy(&error)
                )
            }
            value => Ok(value),
        }
    }

    /// Returns whether the server answers a command with an error.
    pub fn is_refused(&mut self, arguments: &[&str]) -> Result<bool> {
        Ok(matches!(self.ask(arguments)?, Value::Error(_)))
    }

    /// Does the same for several commands, and sends all before it waits for the first reply.
    /// They must fit into the buffers of a socket.
    pub fn are_refused(&mut self, commands: &[[&str; 2]]) -> Result<Vec<bool>> {
        let mut requests = Vec::new();
        for command in commands {
            RequestWriter::write(&command.map(str::as_bytes), &mut requests);
        }
        self.socket.write_all(&requests)?;
        let refused = |reply: Reply<'_>| Ok(matches!(reply, Reply::Error(_)));
        commands.iter().map(|command| self.receive(command, refused)).collect()
    }

    /// Sends a command and waits for its reply, which may be an error.
    pub fn ask(&mut self, arguments: &[&str]) -> Result<Value> {
        self.exchange(arguments, |reply| Ok(Value::from(reply)))
    }

    /// Returns the server's slot map. A server without cluster support owns all slots.
    pub fn routes(&mut self) -> Result<SlotMap> {
        let address = self.address;
        self.exchange(&["CLUSTER", "SLOTS"], |reply| {
            let mut routes = SlotMap::new(&[address]);
            match reply {
                Reply::Error(_) => {}
                reply => routes.replace(reply, address)?,
            }
            Ok(routes)
        })
    }

    fn exchange<T>(
        &mut self,
        arguments: &[&str],
        read: impl FnOnce(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        let bytes: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let mut request = Vec::new();
        RequestWriter::write(&bytes, &mut request);
        self.socket.write_all(&request)?;
        self.receive(arguments, read)
    }

    /// Waits for the next reply, which is to `arguments`.
    fn receive<T>(
        &mut self,
        arguments: &[&str],
        read: impl FnOnce(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let mut rest = &self.input[..];
            if let Some(received) = self.parser.next(&mut rest)? {
                let result = read(received.reply);
                let taken = self.input.len() - rest.len();
                self.input.drain(..taken);
                return result;
            }
            let mut piece = [0; 16 << 10];
            let length = self.socket.read(&mut piece).with_context(|| {
                format!("{} does not answer {:?}", self.address, arguments.join(" "))
            })?;
            if length == 0 {
                bail!("{} closed the connection", self.address);
            }
            self.input.extend_from_slice(&piece[..length]);
        }
    }
}

/// Returns the text of a reply.
pub fn text(value: Value) -> Result<String> {
    match value {
        Value::Bulk(bytes) | Value::Simple(bytes) | Value::Verbatim { text: bytes, .. } => {
            Ok(String::from_utf8(bytes)?)
        }
        other => bail!("expected a text, got {other:?}"),
    }
}
