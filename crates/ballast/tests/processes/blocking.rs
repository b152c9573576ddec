//! Commands that wait for items of lists, on real sockets and several reactors.

use crate::client::{Client, until};
use crate::servers::{Cluster, MODEST, Process};

/// Two reactors, over which connections are spread.
const TWO_REACTORS: [&str; 5] = ["--shared-cores", "--reactors", "2", "--ready-memory", "16mb"];

/// Waits until this many clients are blocked.
fn await_blocked(client: &mut Client, count: usize) {
    let expected = format!("\r\nblocked_clients:{count}\r\n");
    until("clients wait", || client.ask(&["INFO", "clients"]).text().contains(&expected));
}

#[test]
fn items_go_to_the_clients_that_wait_in_their_order() {
    let server = Process::alone(&TWO_REACTORS);
    let mut pusher = server.client();
    // The first use of a slot may wait for memory, and such a request has no place in the order.
    for key in ["other", "list"] {
        assert_eq!(pusher.ask(&["RPUSH", key, "item"]).number(), 1);
        assert_eq!(pusher.ask(&["LPOP", key]).text(), "item");
    }
    let mut blocked: Vec<Client> = (0..6).map(|_| server.client()).collect();
    for round in 0..20 {
        for (count, client) in blocked.iter_mut().enumerate() {
            client.request(&["BLPOP", "other", "list", "0"]);
            await_blocked(&mut pusher, count + 1);
        }
        let items: Vec<String> = (0..6).map(|item| format!("{round}-{item}")).collect();
        for item in &items {
            assert_eq!(pusher.ask(&["RPUSH", "list", item]).number(), 1, "{item}");
            // Without this, a later push may find the item of the push before.
            until("the item is taken", || pusher.ask(&["LLEN", "list"]).number() == 0);
        }
        for (client, item) in blocked.iter_mut().zip(&items) {
            let answer: Vec<String> = client.answer().items().iter().map(|it| it.text()).collect();
            assert_eq!(answer, ["list", item]);
        }
    }
}

#[test]
fn producers_and_consumers_lose_no_item() {
    const ITEMS: usize = 2_000;
    let server = Process::alone(&TWO_REACTORS);
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let mut client = server.client();
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    loop {
                        let answer = client.ask(&["BRPOP", "queue", "0"]).items();
                        match answer[1].text().as_str() {
                            "end" => return taken,
                            item => taken.push(item.to_owned()),
                        }
                    }
                })
            })
            .collect();
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let mut client = server.client();
                scope.spawn(move || {
                    for item in 0..ITEMS {
                        client.ask(&["LPUSH", "queue", &format!("{producer}-{item}")]);
                    }
                })
            })
            .collect();
        producers.into_iter().for_each(|producer| producer.join().expect("a producer ends"));
        let mut client = server.client();
        (0..3).for_each(|_| drop(client.ask(&["LPUSH", "queue", "end"])));
        let taken = consumers.into_iter().map(|consumer| consumer.join().expect("it ends"));
        let mut taken: Vec<String> = taken.flatten().collect();
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), 2 * ITEMS);
        assert_eq!(client.ask(&["EXISTS", "queue"]).number(), 0);
    });
}

#[test]
fn requests_behind_a_wait_are_answered_after_it() {
    let server = Process::alone(&TWO_REACTORS);
    let (mut blocked, mut other) = (server.client(), server.client());
    for _ in 0..10 {
        blocked.request(&["BLPOP", "list", "0"]);
        blocked.request(&["LLEN", "list"]);
        blocked.request(&["BLPOP", "list", "0"]);
        blocked.request(&["PING"]);
        await_blocked(&mut other, 1);
        assert_eq!(other.ask(&["RPUSH", "list", "a", "b"]).number(), 2);
        assert_eq!(blocked.answer().items()[1].text(), "a");
        assert_eq!(blocked.answer().number(), 1);
        assert_eq!(blocked.answer().items()[1].text(), "b");
        assert_eq!(blocked.answer().text(), "PONG");
    }
}

#[test]
fn a_client_that_has_gone_takes_no_item() {
    let server = Process::alone(&TWO_REACTORS);
    let mut other = server.client();
    for ends_input_only in [false, true] {
        let mut blocked = server.client();
        blocked.request(&["BLPOP", "list", "0"]);
        blocked.request(&["PING"]);
        await_blocked(&mut other, 1);
        if ends_input_only {
            blocked.finish();
            assert!(blocked.is_closed());
        } else {
            drop(blocked);
        }
        await_blocked(&mut other, 0);
        assert_eq!(other.ask(&["RPUSH", "list", "a"]).number(), 1);
        assert_eq!(other.ask(&["LPOP", "list"]).text(), "a");
    }
}

#[test]
fn a_client_that_waits_follows_its_slot() {
    let cluster = Cluster::start(2, &MODEST);
    let (mut source, mut target) = (cluster.servers[0].client(), cluster.servers[1].client());
    let mut blocked = cluster.servers[0].client();
    blocked.request(&["BLPOP", "list", "0"]);
    await_blocked(&mut source, 1);
    let name = target.ask(&["CLUSTER", "MYID"]).text();
    let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", "16383", "NODE", &name];
    assert_eq!(source.ask(&words).text(), "OK");
    let answer = blocked.answer();
    assert!(answer.is_error("MOVED "), "{answer:?}");
    let mut again = cluster.servers[1].client();
    again.request(&["BLPOP", "list", "0"]);
    await_blocked(&mut target, 1);
    assert_eq!(target.ask(&["RPUSH", "list", "a"]).number(), 1);
    assert_eq!(again.answer().items()[1].text(), "a");
}
