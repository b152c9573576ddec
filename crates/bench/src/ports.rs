//! Ports for servers that are started on this machine.

use anyhow::{Result, bail};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Ports of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ports {
    /// Free ports that the operating system chooses.
    Free,
    /// This port and those that follow it.
    From(u16),
}

impl Ports {
    /// Returns this many free ports. Another process may take one before it is used; the server
    /// that cannot listen then reports that.
    pub fn take(self, count: u16) -> Result<Vec<u16>> {
        let wanted: Vec<u16> = match self {
            Ports::Free => vec![0; usize::from(count)],
            Ports::From(first) => match first.checked_add(count.saturating_sub(1)) {
                Some(last) => (first..=last).collect(),
                None => bail!("there are not {count} ports from {first} on: choose a lower one"),
            },
        };
        // All ports stay bound until all are known, so that none is returned twice.
        let held = wanted.into_iter().map(listen).collect::<Result<Vec<TcpListener>>>()?;
        held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    match TcpListener::bind(loopback(port)) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("port {port} is in use: choose others, or leave the choice to the system")
        }
        Err(error) => bail!("port {port} cannot be used: {error}"),
    }
}

/// Returns the address of a port on the loopback interface.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_different_and_can_be_listened_on() {
        let mut ports = Ports::Free.take(5).unwrap();
        let listeners: Vec<TcpListener> = ports.iter().map(|&port| listen(port).unwrap()).collect();
        assert_eq!(listeners.len(), 5);
        ports.dedup();
        assert_eq!(ports.len(), 5);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind(loopback(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Ports::From(port).take(1).unwrap_err().to_string();
        assert!(error.starts_with(&format!("port {port} is in use")), "{error}");
    }

    #[test]
    fn ports_end_at_the_last_one() {
        assert!(Ports::From(65_535).take(2).is_err());
    }
}
