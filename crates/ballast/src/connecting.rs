//! Connections of operator commands, with short time limits.

use anyhow::{Context, bail};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time limit for connecting to one address. The operating system alone would try for two minutes
/// if packets are dropped.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Attempts per address. A lost packet is only repeated after a second, so one may fail.
const ATTEMPTS: usize = 2;

/// Time limit of a read or write: far more than a request takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to `host:port`, with time limits on all operations of the connection.
pub(crate) fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let addresses: Vec<_> = address
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {address} (expected HOST:PORT)"))?
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
        Some(error) => Err(error).with_context(|| format!("cannot connect to {address}")),
        None => bail!("{address} resolves to no address"),
    }
}
