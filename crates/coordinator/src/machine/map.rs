//! The cluster map, which every connected server gets after each change of it.

use super::failure_detector::FailureDetector;
use super::view::ClusterView;
use crate::outbox::{Effect, Effects};
use types::ServerId;
use wire::control::{ClusterMap, FromCoordinator, ServerInfo, TabletInfo};

/// Versions of the cluster map in this coordinator's term.
///
/// The version rises across restarts without being stored: the upper half is the term.
#[derive(Debug)]
pub(super) struct MapPublisher {
    term: u64,
    /// Maps published in this term.
    published: u64,
    is_stale: bool,
}

impl MapPublisher {
    pub(super) fn new(term: u64) -> MapPublisher {
        MapPublisher { term, published: 0, is_stale: true }
    }

    /// Records that the map may have changed.
    pub(super) fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Returns the version of the next map to be published.
    pub(super) fn next_version(&self) -> u64 {
        (self.term << 32) + self.published + 1
    }

    /// Sends a changed map to every connected server.
    pub(super) fn publish(
        &mut self,
        view: ClusterView<'_>,
        detector: &FailureDetector,
        out: &mut Effects,
    ) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        let version = self.next_version();
        self.published += 1;
        assert!(self.published < 1 << 32, "the versions of a term are used up");
        let map = self.map(view, detector);
        assert_eq!(map.version, version, "a map has another version than announced");
        for (connection, _) in view.membership.joined() {
            out.push(Effect::Send { connection, message: FromCoordinator::Map(map.clone()) });
        }
    }

    /// Returns the map that was last published, with the current content.
    pub(super) fn map(&self, view: ClusterView<'_>, detector: &FailureDetector) -> ClusterMap {
        let configuration = view.configuration;
        let migrations = configuration.migrations().values();
        let live = migrations.filter(|it| it.is_live());
        let tablets = configuration.tablets().values().map(|tablet| TabletInfo {
            range: tablet.range,
            owner: tablet.owner,
            epoch: tablet.epoch,
            incarnations: tablet.incarnations.clone(),
            is_born: tablet.is_born,
        });
        ClusterMap {
            version: self.next_version() - 1,
            cluster: configuration.identity().cluster,
            servers: server_infos(view, detector),
            tablets: tablets.collect(),
            moving: live.map(|m| (m.range, m.source, m.target)).collect(),
        }
    }
}

/// Returns the servers in the map. Disconnected servers without dependants are left out. Masters
/// and backups consider a server dead if it is not in the map. One with a replicated log is
/// therefore included until it is declared dead.
fn server_infos(view: ClusterView<'_>, detector: &FailureDetector) -> Vec<ServerInfo> {
    let ClusterView { configuration, membership, .. } = view;
    let used = configuration.used_servers();
    let is_shown = |server: ServerId| membership.is_connected(server) || used.contains(&server);
    configuration
        .servers()
        .values()
        .filter(|server| is_shown(server.id) || server.keeps_log() && !server.declared_dead)
        .map(|server| ServerInfo {
            id: server.id,
            host: server.host.clone(),
            client_port: server.client_port,
            bus_port: server.bus_port,
            connected: membership.is_connected(server.id)
                || !server.declared_dead && detector.is_reached_by_others(server.id),
            rack: server.rack.clone(),
            is_dead: server.declared_dead,
            in_recovery: configuration.is_in_recovery(server.id),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::empty;
    use crate::machine::CoordinatorSettings;
    use crate::machine::membership::Membership;
    use crate::outbox::Moment;
    use types::{Instant, UnixMillis};

    #[test]
    #[should_panic(expected = "the versions of a term are used up")]
    fn a_term_does_not_run_into_the_versions_of_the_next_one() {
        let settings = CoordinatorSettings::default();
        let configuration = empty();
        let membership = Membership::new(&settings, &configuration, Instant(0));
        let at = Moment { now: Instant(0), wall: UnixMillis(0) };
        let view = ClusterView { at, configuration: &configuration, membership: &membership };
        let mut maps = MapPublisher { term: 1, published: u32::MAX.into(), is_stale: true };
        maps.publish(view, &FailureDetector::new(&settings), &mut Effects::new());
    }
}
