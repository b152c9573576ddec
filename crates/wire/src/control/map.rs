//! The cluster map: servers, owners of ranges, and running migrations.

use crate::bounded::incarnations;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use types::{ClusterId, HashRange, Incarnation, KeyHash, OwnershipEpoch, ServerId};

/// The cluster map: the servers, the owner of each range, and the running migrations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The version; rises with every change.
    pub version: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// The servers, by ascending id.
    pub servers: Vec<ServerInfo>,
    /// The tablets, ascending and disjoint. A hash outside all tablets has no owner.
    #[serde(deserialize_with = "disjoint")]
    pub tablets: Vec<TabletInfo>,
    /// The migrations that have not ended, as (range, source, target).
    pub moving: Vec<(HashRange, ServerId, ServerId)>,
}

impl ClusterMap {
    /// Returns the tablet that contains a hash.
    pub fn tablet_at(&self, hash: KeyHash) -> Option<&TabletInfo> {
        let at = self.tablets.partition_point(|tablet| tablet.range.last() < hash);
        self.tablets.get(at).filter(|tablet| tablet.range.contains(hash))
    }
}

/// Decodes tablets, and rejects lists that do not ascend or that overlap.
fn disjoint<'de, D: Deserializer<'de>>(decoder: D) -> Result<Vec<TabletInfo>, D::Error> {
    let tablets = Vec::<TabletInfo>::deserialize(decoder)?;
    let are_disjoint = tablets.is_sorted_by(|low, high| low.range.last() < high.range.first());
    are_disjoint.then_some(tablets).ok_or_else(|| D::Error::custom("the tablets of a map overlap"))
}

/// A server in the cluster map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Its id.
    pub id: ServerId,
    /// Host at which clients and servers reach it.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// Set if its connection to the coordinator is up.
    pub connected: bool,
    /// Name of its failure domain. Empty: it fails alone.
    pub rack: String,
    /// Set if it was declared dead, for good. A server missing from the list is dead, too.
    pub is_dead: bool,
    /// Set while its ranges are being recovered from its log.
    pub in_recovery: bool,
}

/// A range, its owner, and the epoch and incarnations under which the owner holds it. All tables
/// have the same owner and epoch; each has its own incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletInfo {
    /// The range.
    pub range: HashRange,
    /// The server that serves it.
    pub owner: ServerId,
    /// The ownership epoch; rises with every change of owner.
    pub epoch: OwnershipEpoch,
    /// The incarnations (`Incarnation`) of the range by table, `TABLES_MAX` of them.
    #[serde(deserialize_with = "incarnations")]
    pub incarnations: Vec<Incarnation>,
    /// Set while the range is new: no server has ever served it. Its owner begins it empty and
    /// reports `ToCoordinator::Holding`. Without this mark the range is held by its owner, or
    /// lost.
    pub is_born: bool,
}
