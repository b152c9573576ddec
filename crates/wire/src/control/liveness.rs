//! Messages for detecting servers that have failed.

use serde::{Deserialize, Serialize};
use std::fmt;
use types::ServerId;

/// A message of a server about the liveness of servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LivenessUpdate {
    /// Answer to a [`LivenessRequest::Ping`], sent by the link's own thread.
    Pong {
        /// Set if some reactor has neither begun a turn nor slept since an earlier ping. The
        /// link's thread may run while a reactor hangs, and only reactors serve requests.
        is_stalled: bool,
    },
    /// The master's backup does not answer. The coordinator makes its own judgment.
    Suspect {
        /// The backup.
        server: ServerId,
    },
    /// Answer to a [`LivenessRequest::Witness`]: the server has answered.
    Witnessed {
        /// The server that was asked.
        server: ServerId,
    },
}

impl fmt::Display for LivenessUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LivenessUpdate::Pong { is_stalled: false } => f.write_str("pong"),
            LivenessUpdate::Pong { is_stalled: true } => {
                f.write_str("pong, but a reactor stands still")
            }
            LivenessUpdate::Suspect { server } => write!(f, "suspect {server}"),
            LivenessUpdate::Witnessed { server } => write!(f, "{server} has answered"),
        }
    }
}

/// A request of the coordinator about the liveness of servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LivenessRequest {
    /// A heartbeat request, sent continuously to servers with log replicas on other servers.
    Ping,
    /// Asks the receiver to ping, over the bus, a server that the coordinator does not hear, and
    /// to report an answer.
    Witness {
        /// The server to ping.
        server: ServerId,
    },
}

impl fmt::Display for LivenessRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LivenessRequest::Ping => f.write_str("ping"),
            LivenessRequest::Witness { server } => write!(f, "is {server} there?"),
        }
    }
}
