//! The metrics of a coordinator, for Prometheus. This module asks the coordinator over an operator
//! connection. Whatever the page costs, the coordinator's own thread only answers a few requests.

use crate::coordinator_connection::CoordinatorConnection;
use front::operators::metric_page::MetricPage;
use handshake::Credentials;
use std::collections::BTreeMap;
use wire::control::{ClusterMap, Health, MigrationReport, MigrationState, RecoveryReport};

/// Returns the text of one scrape. If the coordinator does not answer, the page reports it as down.
pub(crate) fn page(coordinator: &str, credentials: &Credentials) -> String {
    match snapshot(coordinator, credentials) {
        Ok(snapshot) => text(&snapshot),
        Err(error) => {
            tracing::warn!("cannot get the metrics of the coordinator: {error:#}");
            let mut page = MetricPage::default();
            page.gauge(UP, UP_HELP, 0);
            page.into_text()
        }
    }
}

const UP: &str = "ballast_coordinator_up";
const UP_HELP: &str = "1 if the coordinator answers, else 0.";

/// Answers of the coordinator.
struct ClusterSnapshot {
    map: ClusterMap,
    recoveries: Vec<RecoveryReport>,
    migrations: Vec<MigrationReport>,
    health: Health,
}

fn snapshot(coordinator: &str, credentials: &Credentials) -> anyhow::Result<ClusterSnapshot> {
    let mut connection = CoordinatorConnection::open(coordinator, credentials)?;
    Ok(ClusterSnapshot {
        map: connection.map()?,
        recoveries: connection.recoveries()?,
        migrations: connection.migrations()?,
        health: connection.health()?,
    })
}

fn text(snapshot: &ClusterSnapshot) -> String {
    let ClusterSnapshot { map, recoveries, migrations, health } = snapshot;
    let mut page = MetricPage::default();
    page.gauge(UP, UP_HELP, 1);
    let mut servers = BTreeMap::from([("connected", 0), ("away", 0), ("dead", 0)]);
    for server in &map.servers {
        let state = match (server.is_dead, server.connected) {
            (true, _) => "dead",
            (false, true) => "connected",
            (false, false) => "away",
        };
        *servers.entry(state).or_insert(0) += 1;
    }
    page.begin("ballast_servers", "gauge", "Servers of the cluster, by state.");
    servers.iter().for_each(|(state, count)| page.sample(&[("state", state)], count));
    page.gauge("ballast_tablets", "Ranges with an owner.", map.tablets.len() as u64);
    page.gauge("ballast_map_version", "Version of the cluster map.", map.version);
    page.gauge("ballast_recoveries", "Dead servers in recovery.", recoveries.len() as u64);
    page.begin("ballast_migrations_known", "gauge", "Migrations, by stage.");
    for (state, name) in STAGES {
        let count = migrations.iter().filter(|migration| migration.state == state).count();
        page.sample(&[("stage", name)], count);
    }
    let help = "Term: number of coordinator starts so far.";
    page.gauge("ballast_coordinator_term", help, health.term);
    let help = "Transactions committed by this coordinator.";
    page.begin("ballast_coordinator_commits_total", "counter", help);
    page.sample(&[], health.commits);
    let help = "Servers whose log is on their own disk only, since no other server is alive.";
    page.gauge("ballast_servers_on_own_disk_only", help, health.on_own_disk.len() as u64);
    let help = "Time since the last message of a server with a replicated log.";
    page.begin("ballast_link_silence_seconds", "gauge", help);
    for (server, milliseconds) in &health.silence {
        page.sample(&[("server", &server.to_string())], f64::from(*milliseconds) / 1000.0);
    }
    page.into_text()
}

/// Prometheus label values of migration states, sorted.
const STAGES: [(MigrationState, &str); 7] = [
    (MigrationState::Cancelled, "cancelled"),
    (MigrationState::Failed, "failed"),
    (MigrationState::Moving, "moving"),
    (MigrationState::Preparing, "preparing"),
    (MigrationState::Queued, "queued"),
    (MigrationState::Releasing, "releasing"),
    (MigrationState::Success, "success"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClusterId, ServerId};

    #[test]
    fn a_page_has_a_value_for_each_state_also_where_nothing_is_in_it() {
        let map = ClusterMap {
            version: 7,
            cluster: ClusterId(1),
            servers: vec![],
            tablets: vec![],
            moving: vec![],
        };
        let silence = vec![(ServerId(3), 1500)];
        let health = Health { term: 2, commits: 9, silence, on_own_disk: vec![ServerId(3)] };
        let snapshot = ClusterSnapshot { map, recoveries: vec![], migrations: vec![], health };
        let page = text(&snapshot);
        for line in [
            "ballast_servers{state=\"dead\"} 0",
            "ballast_migrations_known{stage=\"moving\"} 0",
            "ballast_map_version 7",
            "ballast_coordinator_commits_total 9",
            "ballast_servers_on_own_disk_only 1",
            "ballast_link_silence_seconds{server=\"s3\"} 1.5",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in {page}");
        }
    }

    #[test]
    fn a_coordinator_that_is_away_is_down() {
        let credentials = Credentials::new(types::Generation(1), None);
        assert!(page("127.0.0.1:1", &credentials).ends_with("ballast_coordinator_up 0\n"));
    }
}
