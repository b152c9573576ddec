//! Connections of an operator's commands: none of them waits for long.

use anyhow::{Context, bail};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time for a connection to be made to one address. The system alone would try for two minutes
/// where packets are dropped.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// A packet may be lost, and is only repeated after a second.
const ATTEMPTS: usize = 2;

/// Far more than a question takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to `host:port`, with limits on all that is done with the connection.
pub(crate) fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let addresses: Vec<_> = address
        .to_socket_addrs()
        .with_context(|| format!("{address} is no host and port that can be found"))?
        .collect();
    let mut failed = None;
    for at in addresses.iter().cycle().take(ATTEMPTS * addresses.len()) {
        match TcpStream::connect_timeout(at, CONNECT_MAX) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                runtime::limit_unacknowledged(&stream)?;
                return Ok(stream);
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) => Err(error).with_context(|| format!("{address} cannot be connected to")),
        None => bail!("{address} has no address"),
    }
}
