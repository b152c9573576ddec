//! Size of a run's cluster: its servers, the replicas of their logs, and their racks.
//!
//! Most runs have three servers, so that ranges and faults meet often. The others have up to
//! [`SERVERS_MAX`], of which some join while clients work.

use crate::settings::{Knob, RunSettings};
use fastrand::Rng;
use std::ops::RangeInclusive;

/// Number of servers in most runs.
const SERVERS: usize = 3;

/// Largest number of servers.
const SERVERS_MAX: usize = 7;

/// Numbers of servers that a run may have.
pub const SERVERS_POSSIBLE: RangeInclusive<usize> = SERVERS..=SERVERS_MAX;

/// One run in this many has more than three servers.
const LARGE_ONE_IN: u32 = 4;

/// Mixed into the seed for the separate random numbers of the cluster's size.
const SIZE: u64 = 0x776f_726c_6473_7a65;

/// Size of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSize {
    /// Number of places, each with one server.
    pub(crate) servers: usize,
    /// Number of servers that the cluster begins with. The others join later.
    pub(crate) first: usize,
    /// Replicas of each log that other servers have, if logs are replicated. `None`: as the seed
    /// of the run draws it, at most two.
    pub(crate) replicas: Option<u16>,
    /// Number of racks; 1: servers name none.
    racks: usize,
}

impl ClusterSize {
    /// Draws from a separate generator, so that runs with three servers stay the same.
    pub(crate) fn draw(settings: &RunSettings) -> ClusterSize {
        let mut rng = Rng::with_seed(settings.seed ^ SIZE);
        let is_large = rng.u32(..LARGE_ONE_IN) == 0 && settings.has(Knob::Large);
        let drawn = rng.usize(SERVERS + 1..=SERVERS_MAX);
        let servers = settings.servers.unwrap_or(if is_large { drawn } else { SERVERS });
        assert!(SERVERS_POSSIBLE.contains(&servers), "{servers} servers are not simulated");
        if servers == SERVERS {
            return ClusterSize { servers, first: servers, replicas: None, racks: 1 };
        }
        let late = if settings.has(Knob::Joins) { rng.usize(..=servers - SERVERS) } else { 0 };
        let (replicas, racks) = (rng.u16(1..=3), rng.usize(1..=3));
        ClusterSize { servers, first: servers - late, replicas: Some(replicas), racks }
    }

    /// Returns the rack of the server at a place; empty if servers name none.
    pub(crate) fn rack(&self, place: usize) -> String {
        match self.racks {
            1 => String::new(),
            racks => format!("rack{}", place % racks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_differ_in_their_servers_replicas_and_racks() {
        let sizes: Vec<ClusterSize> =
            (1..500).map(|seed| ClusterSize::draw(&RunSettings::new(seed))).collect();
        for servers in SERVERS_POSSIBLE {
            assert!(sizes.iter().any(|size| size.servers == servers), "{servers} servers");
        }
        assert!(sizes.iter().any(|size| size.first < size.servers));
        assert!(sizes.iter().any(|size| size.replicas == Some(3)));
        assert!(sizes.iter().any(|size| size.rack(4) == "rack1"));
        assert!(sizes.iter().all(|size| size.first >= SERVERS));
    }

    #[test]
    fn the_features_can_be_left_out() {
        for seed in 1..200 {
            let without = [Knob::Large].into();
            let settings = RunSettings { without, ..RunSettings::new(seed) };
            assert_eq!(ClusterSize::draw(&settings).servers, SERVERS);
        }
    }
}
