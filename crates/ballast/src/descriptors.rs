//! The file descriptors of a server: how many the system allows it, and who may use them.
//!
//! Every connection is one, and so is every replica that is being written. Replicas come first: a
//! backup that can open no file stops the writes of others, while a client that is refused tries
//! elsewhere.

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::Configuration;

/// For everything that is neither a client nor a replica that is written: sockets that listen,
/// rings, the log, files that are read or made, connections to other servers. A server of two
/// reactors that has just joined two others uses 34.
const OTHERS: u64 = 32;
/// The same, of each reactor: its sockets that listen, its rings and events, a connection or two to
/// every few other servers.
const OTHERS_PER_REACTOR: u64 = 8;
/// The part of all descriptors that replicas may use ...
const REPLICAS_PART: u64 = 4;
/// ... at least, and at most: a server with 16 reactors writes some hundred replicas at a time.
const REPLICAS_MIN: u64 = 16;
const REPLICAS_MAX: u64 = 1024;

/// How the descriptors of a process are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// Files that may be open because replicas are written to them.
    pub(crate) replicas: usize,
    /// Connections of clients.
    clients: u32,
}

/// Descriptors that are neither clients' nor replicas'.
fn others(reactors: u16) -> u64 {
    OTHERS + OTHERS_PER_REACTOR * u64::from(reactors)
}

impl Descriptors {
    /// Shares out so many. `None`: there are too few for a server.
    fn of(limit: u64, reactors: u16) -> Option<Descriptors> {
        let replicas = (limit / REPLICAS_PART).clamp(REPLICAS_MIN, REPLICAS_MAX);
        let others = others(reactors);
        let clients = limit.checked_sub(others + replicas).filter(|clients| *clients > 0)?;
        Some(Descriptors {
            replicas: usize::try_from(replicas).unwrap_or(usize::MAX),
            clients: u32::try_from(clients).unwrap_or(u32::MAX),
        })
    }
}

/// Asks the system for all descriptors that this process may have, and leaves clients what replicas
/// do not need.
pub(crate) fn reserve(
    configuration: &mut Configuration,
    reactors: u16,
) -> anyhow::Result<Descriptors> {
    let limit = raise();
    let Some(descriptors) = Descriptors::of(limit, reactors) else {
        bail!(
            "this process may open {limit} files, which is too few for a server: raise the limit \
             (ulimit -n, or LimitNOFILE of its unit) to {} or more",
            others(reactors) + REPLICAS_MIN + 1
        );
    };
    let wanted = configuration.maxclients;
    if wanted > descriptors.clients {
        configuration.maxclients = descriptors.clients;
        tracing::warn!(
            limit,
            "maxclients was {wanted} and is {} now: the other descriptors are kept for the logs of \
             other servers. If you need more clients, raise the limit of open files (ulimit -n, or \
             LimitNOFILE of the server's unit)",
            descriptors.clients
        );
    }
    Ok(descriptors)
}

/// Raises the soft limit to the hard one. Returns what holds now.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
            .with_context(|| "the limit of open files cannot be raised to the hard one")
    {
        tracing::warn!("{error:#}");
        return current.unwrap_or(u64::MAX);
    }
    // None: as many as memory allows.
    maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_get_a_quarter_and_clients_what_is_left() {
        let of = |limit| Descriptors::of(limit, 2).map(|it| (it.replicas, it.clients));
        assert_eq!(of(64), None);
        assert_eq!(of(65), Some((16, 1)));
        assert_eq!(of(160), Some((40, 72)));
        assert_eq!(of(1024), Some((256, 720)));
        assert_eq!(of(1 << 20), Some((1024, (1 << 20) - 1024 - 48)));
        assert_eq!(Descriptors::of(160, 16), None, "more reactors need more");
        assert_eq!(of(u64::MAX), Some((1024, u32::MAX)));
    }
}
