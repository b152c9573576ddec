//! Messages for rebuilding a coordinator's lost store from its servers.

use super::{ClusterMap, Intent, RecoveryLog};
use crate::bounded::incarnations;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::{HashRange, Incarnation, OwnershipEpoch, SegmentId, ServerId};

/// The reply of a server to `JoinReply::Describe`: a map, then the holdings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Description {
    /// First answer to a `JoinReply::Describe`: the newest map that the server knows.
    KnownMap(Box<ClusterMap>),
    /// Second answer to a `JoinReply::Describe`: the state that the server holds.
    Holds(Box<Holdings>),
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Description::KnownMap(map) => write!(f, "knows map {}", map.version),
            Description::Holds(held) => write!(f, "holds {} tablets", held.tablets.len()),
        }
    }
}

/// The state that a server holds, beside the map that it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Seed of the cluster's key hash.
    pub seed: u64,
    /// The last manifest segment that the coordinator has recorded, as far as the server knows.
    /// The server has acknowledged nothing that is only in a later one.
    pub manifest_log: Option<SegmentId>,
    /// Its tablets.
    pub tablets: Vec<HeldTablet>,
    /// Migrations in which it takes part.
    pub migrations: Vec<HeldMigration>,
    /// Logs of which its disk has replicas, each with the last manifest segment among them.
    pub logs: Vec<(ServerId, Option<SegmentId>)>,
}

/// A tablet as its server holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTablet {
    /// The range.
    pub range: HashRange,
    /// The epoch under which it is held.
    pub epoch: OwnershipEpoch,
    /// The incarnations (`Incarnation`) by table.
    #[serde(deserialize_with = "incarnations")]
    pub incarnations: Vec<Incarnation>,
    /// The role of the server.
    pub state: HeldState,
    /// The dead server's log that is needed until the server's own log has all of the tablet.
    pub depends_on: Option<RecoveryLog>,
}

/// The role of a server for a tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldState {
    /// The server is the owner, even if some records have not arrived yet.
    Owned,
    /// The server was or is the owner; another server may own the range.
    Leaving,
    /// The server is recovering the tablet and owns it if the coordinator has recorded that.
    Recovering,
}

/// A migration as known to one of its sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMigration {
    /// The intent from the coordinator.
    pub intent: Intent,
    /// Set if this side is the target and has accepted the flip.
    pub is_accepted: bool,
}

/// The result of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildReport {
    /// Servers that have reported their state.
    pub found: Vec<ServerId>,
    /// Servers that those regard as living and that have not reported.
    pub absent: Vec<ServerId>,
    /// Set if the rebuild is complete.
    pub is_done: bool,
}

impl RebuildReport {
    /// Formats servers for operators; commands accept the same form.
    pub fn names(servers: &[ServerId]) -> String {
        match servers {
            [] => "nobody".to_owned(),
            _ => servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }
}
