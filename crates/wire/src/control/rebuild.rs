//! What a server tells a coordinator whose file is lost.

use super::Intent;
use crate::bounded::at_most;
use serde::{Deserialize, Serialize};
use types::limits::TABLES_MAX;
use types::{HashRange, OwnershipEpoch, SegmentId, ServerId, Tenure};

/// What a server holds, beside the map that it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Seed of the cluster's key hash.
    pub seed: u64,
    /// The segment of its log's chain that was noted last, as far as it has heard. It has
    /// acknowledged nothing that is in a later one only.
    pub chain: Option<SegmentId>,
    /// Its tablets.
    pub tablets: Vec<HeldTablet>,
    /// Migrations that it has part in.
    pub migrations: Vec<HeldMigration>,
    /// Logs of which its disk has something, and the last segment of each one's chain among that.
    pub logs: Vec<(ServerId, Option<SegmentId>)>,
}

/// A tablet as its server has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTablet {
    /// The range.
    pub range: HashRange,
    /// Under which it is held.
    pub epoch: OwnershipEpoch,
    /// By table.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub tenures: Vec<Tenure>,
    /// How.
    pub state: HeldState,
}

/// What a server does with a tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldState {
    /// It is the owner, also if not everything has arrived.
    Owned,
    /// It was or is the owner, and somebody else may be.
    Leaving,
    /// It is being recovered: owned when that was noted.
    Recovering,
}

/// A migration as one of its sides knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMigration {
    /// As it was written down.
    pub intent: Intent,
    /// The side is the target, and has accepted the flip.
    pub is_accepted: bool,
}

/// What a rebuild comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildReport {
    /// Servers that have told what they hold.
    pub found: Vec<ServerId>,
    /// Servers that lived as far as these know, and have said nothing.
    pub absent: Vec<ServerId>,
    /// Whether it is done.
    pub is_done: bool,
}

impl RebuildReport {
    /// Servers as people are told of them, and name them.
    pub fn names(servers: &[ServerId]) -> String {
        match servers {
            [] => "nobody".to_owned(),
            _ => servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }
}
