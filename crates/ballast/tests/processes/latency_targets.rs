//! Moves whose speed is limited by the latency of clients.

use crate::client::{Client, until};
use crate::servers::{Cluster, MODEST};
use crate::tools::ballast;

/// Records of 300 bytes: 2 % of a reactor needs most of a second for half of them.
const RECORDS: usize = 40_000;

fn fields(server: &mut Client, names: [&str; 3]) -> [u64; 3] {
    let info = server.ask(&["INFO", "everything"]).text();
    names.map(|name| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).expect("a number")
    })
}

#[test]
fn a_move_with_a_latency_target_shows_it_and_ends() {
    let cluster = Cluster::start(2, &MODEST);
    let [from, to] = [0, 1].map(|at: usize| cluster.servers[at].address.to_string());
    let mut clients: Vec<Client> = cluster.servers.iter().map(|server| server.client()).collect();
    let value = "x".repeat(300);
    let set = |number| ["SET".to_string(), format!("key{number}"), value.clone()].to_vec();
    for first in (0..RECORDS).step_by(1_000) {
        let requests: Vec<Vec<String>> = (first..first + 1_000).map(set).collect();
        assert!(clients[0].ask_all(&requests).iter().all(|answer| answer.text() == "OK"));
    }
    let names = ["latency_target_usec", "background_share_percent", "latency_p99_usec"];
    assert_eq!(fields(&mut clients[0], names), [0, 10, 0]);
    let said = std::thread::scope(|scope| {
        let arguments = ["migrate", "--from", &from, "--to", &to, "--slots", "0-8191"];
        let limits = ["--latency-p99", "500us", "--share", "2"];
        let moved = scope.spawn(move || ballast(&[&arguments[..], &limits].concat()));
        for client in &mut clients {
            until("a server shows the target, and what its clients see", || {
                let [target, share, p99] = fields(client, names);
                target == 500 && share == 2 && p99 > 0
            });
        }
        moved.join().expect("the command ends")
    });
    assert!(said.starts_with("moved "), "{said}");
    for client in &mut clients {
        until("the target is gone", || fields(client, names) == [0, 10, 0]);
    }
    let counts = clients.iter_mut().map(|server| server.ask(&["DBSIZE"]).number());
    assert_eq!(counts.sum::<i64>(), RECORDS as i64);
}
