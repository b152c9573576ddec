//! The metrics of a coordinator, for Prometheus. This module asks the coordinator over an operator
//! connection. Whatever the page costs, the coordinator's own thread only answers a few requests.

use crate::coordinator_connection::CoordinatorConnection;
use handshake::Credentials;
use std::collections::BTreeMap;
use std::fmt::Write;
use wire::control::{ClusterMap, Health, MigrationReport, MigrationState, RecoveryReport};

/// Returns the text of one scrape. If the coordinator does not answer, the page reports it as down.
pub(crate) fn page(coordinator: &str, credentials: &Credentials) -> String {
    match snapshot(coordinator, credentials) {
        Ok(snapshot) => text(&snapshot),
        Err(error) => {
            tracing::warn!("cannot get the metrics of the coordinator: {error:#}");
            gauge("ballast_coordinator_up", "1 if the coordinator answers, else 0.", 0)
        }
    }
}

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
    let mut page = gauge("ballast_coordinator_up", "1 if the coordinator answers, else 0.", 1);
    let mut servers = BTreeMap::from([("connected", 0), ("away", 0), ("dead", 0)]);
    for server in &map.servers {
        let state = match (server.is_dead, server.connected) {
            (true, _) => "dead",
            (false, true) => "connected",
            (false, false) => "away",
        };
        *servers.entry(state).or_insert(0) += 1;
    }
    page += &by("ballast_servers", "Servers of the cluster, by state.", "state", servers);
    page += &gauge("ballast_tablets", "Ranges with an owner.", map.tablets.len() as u64);
    page += &gauge("ballast_map_version", "Version of the cluster map.", map.version);
    let recoveries = recoveries.len() as u64;
    page += &gauge("ballast_recoveries", "Dead servers in recovery.", recoveries);
    let mut stages: BTreeMap<&str, u64> = STAGES.iter().map(|(_, name)| (*name, 0)).collect();
    for migration in migrations {
        let name = STAGES.iter().find(|(state, _)| *state == migration.state).map(|(_, name)| name);
        if let Some(name) = name {
            *stages.entry(name).or_insert(0) += 1;
        }
    }
    page += &by("ballast_migrations_known", "Migrations, by stage.", "stage", stages);
    page += &gauge(
        "ballast_coordinator_term",
        "Term: number of coordinator starts so far.",
        health.term,
    );
    let name = "ballast_coordinator_commits_total";
    page += &metric(name, "counter", "Transactions committed by this coordinator.");
    let _ = writeln!(page, "{name} {}", health.commits);
    let help = "Servers whose log is on their own disk only, since no other server is alive.";
    page += &gauge("ballast_servers_on_own_disk_only", help, health.on_own_disk.len() as u64);
    let name = "ballast_link_silence_seconds";
    page +=
        &metric(name, "gauge", "Time since the last message of a server with a replicated log.");
    for (server, milliseconds) in &health.silence {
        let seconds = f64::from(*milliseconds) / 1000.0;
        let _ = writeln!(page, "{name}{{server=\"{server}\"}} {seconds}");
    }
    page
}

/// Prometheus label values of migration states.
const STAGES: [(MigrationState, &str); 7] = [
    (MigrationState::Queued, "queued"),
    (MigrationState::Preparing, "preparing"),
    (MigrationState::Moving, "moving"),
    (MigrationState::Releasing, "releasing"),
    (MigrationState::Success, "success"),
    (MigrationState::Cancelled, "cancelled"),
    (MigrationState::Failed, "failed"),
];

fn metric(name: &str, kind: &str, help: &str) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")
}

fn gauge(name: &str, help: &str, value: u64) -> String {
    format!("{}{name} {value}\n", metric(name, "gauge", help))
}

fn by(name: &str, help: &str, label: &str, values: BTreeMap<&str, u64>) -> String {
    let mut text = metric(name, "gauge", help);
    for (value, count) in values {
        let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {count}");
    }
    text
}

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
