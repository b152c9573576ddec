//! Clients that change values with pages while something happens to the servers, for the tests of
//! hashes, lists, sorted sets and streams.

use crate::client::{Client, until};
use crate::crashes::alone;
use crate::moves::move_for;
use crate::once::Repeater;
use crate::seats::{Plan, Seats};
use crate::servers::{Cluster, MODEST, Process};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A client with one value and a model of it.
pub(crate) trait PagedClient: Send {
    /// Gives the value as many elements as the test begins with.
    fn fill(&mut self);

    /// Executes a random command and compares its reply with the model.
    fn step(&mut self);

    /// Compares the whole value with the model.
    fn check(&mut self);

    /// The connections of the client.
    fn repeater(&mut self) -> &mut Repeater;
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

/// A server that was killed and started again, with two values.
pub(crate) struct RestartedServer<C> {
    pub(crate) client: Client,
    pub(crate) one: C,
    pub(crate) other: C,
    _server: Process,
    /// Dropped after the server.
    _folder: TempDir,
}

impl<C: PagedClient> RestartedServer<C> {
    /// Fills two values, changes the first one, and lets `remove` take elements from the other one.
    /// Kills the server, starts it again, and checks both values.
    pub(crate) fn after(
        new: impl Fn(&[SocketAddr], u64) -> C,
        remove: impl FnOnce(&mut C),
    ) -> RestartedServer<C> {
        let folder =
            tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for a test");
        let start = || Process::kept(folder.path(), &MODEST);
        let server = start();
        let [mut one, mut other] = [1, 2].map(|seed| new(&[server.address], seed));
        one.fill();
        other.fill();
        (0..2_000).for_each(|_| one.step());
        remove(&mut other);
        server.kill();
        let server = start();
        let mut client = server.client();
        until("the log is loaded", || !client.ask(&["DBSIZE"]).is_error("LOADING"));
        for value in [&mut one, &mut other] {
            *value.repeater() = Repeater::new(&[server.address], 3);
            value.check();
        }
        RestartedServer { client, one, other, _server: server, _folder: folder }
    }

    /// Waits until a third of all bytes is removed: the pages that no value needs any more.
    pub(crate) fn wait_for_sweep(&mut self) {
        let before = dataset_bytes(&mut self.client);
        until("the pages without a value are removed", || {
            dataset_bytes(&mut self.client) < before * 2 / 3
        });
    }
}

/// Returns the bytes of all records of a server, pages without a root included.
pub(crate) fn dataset_bytes(client: &mut Client) -> u64 {
    let info = client.ask(&["INFO", "memory"]).text();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
    line.expect("INFO has it").trim().parse().expect("a number")
}
