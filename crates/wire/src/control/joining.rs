//! Messages for joining a cluster.

use super::HistoryMark;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::{ClusterId, ServerId};

/// The request of a process to join the cluster as a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Host at which clients and servers reach it.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// The cluster and server id from an earlier connection of the same process.
    pub rejoin: Option<(ClusterId, ServerId)>,
    /// Replicas that other servers keep of each segment of its log. With 0 the server's data dies
    /// with it, and the coordinator waits for it indefinitely. Otherwise a silent server is soon
    /// declared dead and recovered.
    pub replicas: u16,
    /// Name of its failure domain. Empty: it fails alone.
    pub rack: String,
    /// The cluster of the replicas found on its disk at its start; `None`: there were none.
    pub disk: Option<ClusterId>,
    /// The cluster and server id of the last process on this disk, as far as the disk records them.
    pub former: Option<(ClusterId, ServerId)>,
    /// The highest mark known to this process or to its predecessor on the disk.
    pub mark: Option<HistoryMark>,
}

impl fmt::Display for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "join {}:{}", self.host, self.client_port)
    }
}

/// The reply of the coordinator to a [`Join`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinReply {
    /// Grants a join.
    Welcome {
        /// The id of the server from now on.
        server: ServerId,
        /// The cluster.
        cluster: ClusterId,
        /// Seed of the key hash.
        seed: u64,
    },
    /// Refuses a join; the text explains why and what to do.
    Rejected {
        /// The reason, for the operator.
        reason: String,
        /// Set if another server serves this server's ranges: it must stop at once.
        is_fenced: bool,
    },
    /// Sent after a join by a coordinator that has lost its store: asks for the server's state.
    Describe,
    /// The join is neither granted nor refused yet; the text explains why.
    Waiting {
        /// The reason, for the operator.
        reason: String,
    },
}

impl fmt::Display for JoinReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinReply::Welcome { server, cluster, .. } => write!(f, "welcome {server} {cluster}"),
            JoinReply::Rejected { reason, is_fenced: true } => write!(f, "fenced: {reason}"),
            JoinReply::Rejected { reason, is_fenced: false } => write!(f, "rejected: {reason}"),
            JoinReply::Describe => f.write_str("describe what you hold"),
            JoinReply::Waiting { reason } => write!(f, "waiting: {reason}"),
        }
    }
}
