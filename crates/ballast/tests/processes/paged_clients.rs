//! Clients that change values with pages while something happens to the servers, for the tests of
//! hashes, lists and sorted sets.

use crate::client::Client;
use crate::crashes::alone;
use crate::moves::move_for;
use crate::seats::{Plan, Seats};
use crate::servers::{Cluster, MODEST};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A client with one value and a model of it.
pub(crate) trait PagedClient: Send {
    /// Gives the value as many elements as the test begins with.
    fn fill(&mut self);

    /// Executes a random command and compares its reply with the model.
    fn step(&mut self);

    /// Compares the whole value with the model.
    fn check(&mut self);
}

/// Lets clients change their values while slots move between three servers, and checks all elements.
pub(crate) fn change_while_moving<C: PagedClient>(clients: fn(&[SocketAddr]) -> Vec<C>) {
    let cluster = Cluster::start(3, &MODEST);
    change_while(clients(&cluster.addresses()), || {
        move_for(&cluster, 1, Duration::from_secs(5));
    });
}

/// Lets clients change their values while one server after the other is killed, and checks all
/// elements.
pub(crate) fn change_while_owners_die<C: PagedClient>(clients: fn(&[SocketAddr]) -> Vec<C>) {
    let _alone = alone();
    let plan = Plan { servers: 3, replicas: 2, durability: "memory", network: None };
    let mut seats = Seats::start(plan, |_| ());
    seats.spread();
    change_while(clients(&seats.addresses()), || {
        seats.kill_in_turn();
    });
}

fn change_while(mut clients: Vec<impl PagedClient>, meanwhile: impl FnOnce()) {
    clients.iter_mut().for_each(PagedClient::fill);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        client.step();
                    }
                    client.check();
                })
            })
            .collect();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        changing.into_iter().for_each(|client| client.join().expect("no reply was wrong"));
        ended.expect("nothing else fails");
    });
}

/// Returns the bytes of all records of a server, pages without a root included.
pub(crate) fn dataset_bytes(client: &mut Client) -> u64 {
    let info = client.ask(&["INFO", "memory"]).text();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
    line.expect("INFO has it").trim().parse().expect("a number")
}
