//! The file descriptors of a server: the process's limit, and its division.
//!
//! Every connection and every replica being written needs a descriptor. Replicas take precedence: a
//! backup that cannot open files blocks the writes of other servers, but a refused client can try
//! another server.

use anyhow::{Context, bail};
use coordinator::SERVERS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use settings::ServerConfiguration;

/// Descriptors for all purposes but clients, replicas and other servers: listening sockets, rings,
/// the log, other files. A server with two reactors that has just joined two others uses 34, of
/// which some are connections to them.
const OTHERS: u64 = 32;
/// Further descriptors for each reactor: listening sockets, rings and events.
const OTHERS_PER_REACTOR: u64 = 8;
/// Divisor that gives the part of all descriptors for connections of other servers, in a cluster
/// ...
const PEERS_PART: u64 = 8;
/// ... but at most as many for each reactor and server of the largest cluster: two connections that
/// the reactor opens (bulk and priority), and two that it accepts.
const CONNECTIONS_PER_PEER: u64 = 4;
/// Divisor that gives the part of all descriptors for replicas ...
const REPLICAS_PART: u64 = 4;
/// ... within these bounds. A server with 16 reactors writes about a hundred replicas at a time.
const REPLICAS_MIN: u64 = 16;
const REPLICAS_MAX: u64 = 1024;

/// The division of a process's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// Most files open for replicas being written.
    pub(crate) replicas: usize,
    /// Most client connections.
    pub(crate) clients: u32,
}

impl Descriptors {
    /// Divides the descriptors. Returns `None` if there are too few for a server.
    fn of(limit: u64, reactors: u16, is_cluster: bool) -> Option<Descriptors> {
        let reactors = u64::from(reactors);
        let replicas = (limit / REPLICAS_PART).clamp(REPLICAS_MIN, REPLICAS_MAX);
        let peers = match is_cluster {
            true => (limit / PEERS_PART).min(CONNECTIONS_PER_PEER * SERVERS_MAX as u64 * reactors),
            false => 0,
        };
        let others = OTHERS + OTHERS_PER_REACTOR * reactors;
        let clients =
            limit.checked_sub(others + peers + replicas).filter(|clients| *clients > 0)?;
        Some(Descriptors {
            replicas: usize::try_from(replicas).unwrap_or(usize::MAX),
            clients: u32::try_from(clients).unwrap_or(u32::MAX),
        })
    }
}

/// Raises the descriptor limit as far as possible, and limits clients to those that replicas do not
/// need.
pub(crate) fn reserve(
    configuration: &mut ServerConfiguration,
    reactors: u16,
) -> anyhow::Result<Descriptors> {
    let limit = raise();
    let is_cluster = !configuration.network.is_standalone();
    let Some(descriptors) = Descriptors::of(limit, reactors, is_cluster) else {
        let suffices = |limit: &u64| Descriptors::of(*limit, reactors, is_cluster).is_some();
        let least = (limit..).find(suffices).unwrap_or(u64::MAX);
        bail!(
            "the limit of open files is {limit}, which is too low for a server: raise it (ulimit \
             -n, or LimitNOFILE of its unit) to {least} or more"
        );
    };
    let wanted = configuration.clients.count_max;
    if wanted > descriptors.clients {
        configuration.clients.count_max = descriptors.clients;
        tracing::warn!(
            limit,
            "maxclients reduced from {wanted} to {}: the other file descriptors are reserved for \
             files and for other servers. For more clients, raise the limit of open files (ulimit \
             -n, or LimitNOFILE of the server's unit)",
            descriptors.clients
        );
    }
    Ok(descriptors)
}

/// Raises the soft limit to the hard limit. Returns the limit in force.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
            .with_context(|| "cannot raise the limit of open files to the hard limit")
    {
        tracing::warn!("{error:#}");
        return current.unwrap_or(u64::MAX);
    }
    // No limit: descriptors are only limited by memory.
    maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_get_a_quarter_and_clients_what_is_left() {
        let of = |limit| Descriptors::of(limit, 2, false).map(|it| (it.replicas, it.clients));
        assert_eq!(of(64), None);
        assert_eq!(of(65), Some((16, 1)));
        assert_eq!(of(160), Some((40, 72)));
        assert_eq!(of(1024), Some((256, 720)));
        assert_eq!(of(1 << 20), Some((1024, (1 << 20) - 1024 - 48)));
        assert_eq!(Descriptors::of(160, 16, false), None, "more reactors need more");
        assert_eq!(of(u64::MAX), Some((1024, u32::MAX)));
    }

    #[test]
    fn in_a_cluster_other_servers_get_an_eighth_or_what_the_largest_cluster_needs() {
        let clients = |limit| Descriptors::of(limit, 2, true).map(|it| it.clients);
        assert_eq!(clients(1024), Some(720 - 128));
        let largest = 2 * 4 * SERVERS_MAX as u32;
        assert_eq!(clients(1 << 20), Some((1 << 20) - 1024 - 48 - largest));
        assert_eq!(clients(72), None, "65 are enough for a stand-alone server");
    }
}
