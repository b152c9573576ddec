//! Rejections of servers, with their explanations for operators.

use super::membership::Membership;
use crate::admission::check_address;
use crate::configuration::ClusterConfiguration;
use crate::records::Server;
use types::{ClusterId, ServerId};
use wire::control::Join;

/// The reason for not admitting a server, or for closing its connection.
#[derive(Debug)]
pub(super) struct Rejection {
    /// Explanation for the operator.
    pub(super) reason: String,
    /// The server was given up and may hold ranges that another server owns.
    pub(super) is_fenced: bool,
}

impl Rejection {
    pub(super) fn fenced() -> Rejection {
        Rejection { reason: FENCED.to_owned(), is_fenced: true }
    }
}

impl From<String> for Rejection {
    fn from(reason: String) -> Rejection {
        Rejection { reason, is_fenced: false }
    }
}

/// Returns the number under which the process is known, `None` for a new one.
///
/// # Errors
/// The reason for rejecting the process.
pub(super) fn known_server(
    join: &Join,
    configuration: &ClusterConfiguration,
) -> Result<Option<ServerId>, Rejection> {
    check_address(join)?;
    let ours = configuration.identity().cluster;
    if let Some(other) = foreign_cluster(join, ours) {
        return Err(foreign(join, other, ours).into());
    }
    let Some((_, server)) = join.rejoin else {
        return match configuration.doubt() {
            None => Ok(None),
            Some(doubt) => Err(doubt.to_owned().into()),
        };
    };
    match configuration.servers().get(&server) {
        None => Err(format!("{server} is no longer a member here; restart the server").into()),
        Some(record) if record.declared_dead => Err(Rejection::fenced()),
        Some(_) => Ok(Some(server)),
    }
}

/// Returns the cluster to which the server's memory or disk belongs, if it is another one.
pub(super) fn foreign_cluster(join: &Join, ours: ClusterId) -> Option<ClusterId> {
    let of_memory = join.rejoin.map(|(cluster, _)| cluster);
    let clusters = of_memory.into_iter().chain(join.disk);
    clusters.into_iter().find(|cluster| *cluster != ours)
}

/// Returns the reason against a new server whose log would be replicated although those of the
/// members are not, or the reverse. Masters choose their backups among all members, and a range
/// that moves to a server without a replicated log dies with that server. An absent member without
/// ranges does not count.
pub(super) fn other_durability(
    join: &Join,
    configuration: &ClusterConfiguration,
    membership: &Membership,
) -> Option<&'static str> {
    let used = configuration.used_servers();
    let counts = |it: &&Server| membership.is_connected(it.id) || used.contains(&it.id);
    let members: Vec<&Server> = configuration.living().filter(counts).collect();
    let has_replicated = members.iter().any(|member| member.keeps_log());
    match (join.replicas > 0, has_replicated) {
        (false, true) => Some(LACKS_DURABILITY),
        (true, false) if !members.is_empty() => Some(ALONE_WITH_DURABILITY),
        (true, _) | (false, false) => None,
    }
}

pub(super) const TAKEN: &str = "another process is connected under this server's number; stop it \
                                first, or start this one as a new server";

/// Returns the explanation for rejecting a server with data of another cluster.
fn foreign(join: &Join, other: ClusterId, ours: ClusterId) -> String {
    let what = if join.rejoin.is_some() { "the server" } else { "the disk of this server" };
    format!(
        "{what} belongs to cluster {other}, but this is the coordinator of cluster {ours}: join \
         the coordinator of {other}, or start the server with an empty --data-dir. Nothing was \
         changed. {REBUILD}"
    )
}

/// Returns the explanation for admitting no new servers.
pub(super) fn explain_doubt(ours: ClusterId, other: ClusterId) -> String {
    format!(
        "cluster {ours} was created because the coordinator's data directory (--data-dir) was \
         empty, and then a server with data of cluster {other} came: no new servers are admitted. \
         {REBUILD} If {ours} is meant to be a new cluster, start its coordinator with another \
         empty data directory, and give that server an empty --data-dir"
    )
}

const LACKS_DURABILITY: &str = "the servers of this cluster replicate their logs, but this one was \
                                started without: start it with the --durability of the others";

const ALONE_WITH_DURABILITY: &str = "the servers of this cluster have their data in memory only, \
                                     so none would store the log of this one: start it with \
                                     --durability none, or all servers of a new cluster with the \
                                     same --durability";

const REBUILD: &str = "If the coordinator's data directory is missing, restore it; if it is lost, \
                       rebuild it with 'ballast coordinator --rebuild --data-dir NEW' and 'ballast \
                       cluster rebuild'.";

const FENCED: &str = "the server was declared dead while it was away, and another server serves a \
                      range that it holds; restart it";
