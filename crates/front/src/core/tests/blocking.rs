//! Requests that wait for items of lists or members of sorted sets, on two reactors.

use super::*;
use crate::operators::blocked::{AwaitedElements, AwaitedKey};

/// Lets both reactors run turns until no request has news. A turn serves one request of a key.
pub(super) fn settle(world: &mut World) {
    for _ in 0..5 {
        world.pass(Duration::from_micros(200));
    }
}

fn world() -> World {
    World::new(ServerConfiguration::default())
}

/// Returns the reply to `BLPOP`.
fn popped(key: &str, item: &str) -> String {
    format!("*2\r\n${}\r\n{key}\r\n${}\r\n{item}\r\n", key.len(), item.len())
}

const UNBLOCKED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

#[test]
fn a_push_on_any_reactor_ends_the_wait() {
    let mut world = world();
    for pusher in 0..2 {
        for waiter in 0..2 {
            let number = 10 * (pusher as u64 + 1) + waiter as u64;
            let mut blocked = world.connect(number, waiter, HERE);
            let mut other = world.connect(number + 2, pusher, HERE);
            for settles in [false, true] {
                assert_eq!(world.ask(&mut blocked, "BLPOP none list 0"), "");
                if settles {
                    settle(&mut world);
                }
                assert_eq!(world.answer(&blocked), "");
                assert_eq!(world.ask(&mut other, "RPUSH list a"), ":1\r\n");
                settle(&mut world);
                assert_eq!(world.answer(&blocked), popped("list", "a"));
                assert_eq!(world.ask(&mut other, "EXISTS list"), ":0\r\n");
            }
        }
    }
    assert!(!world.operators.blocked.is_any());
}

#[test]
fn a_push_in_a_turn_that_began_before_the_wait_is_not_missed() {
    let mut world = world();
    let mut blocked = world.connect(1, 0, HERE);
    let other = world.connect(2, 1, HERE);
    let wall = world.wall();
    world.cores[1].begin_turn(world.now, wall);
    assert_eq!(world.ask(&mut blocked, "BLPOP list 0"), "");
    assert!(world.operators.blocked.is_any());
    // The second reactor is still in its turn, in which it has seen no waiting request.
    let push = b"RPUSH list a\r\n";
    let taken = world.cores[1].receive(other.connection, push, &mut world.sockets);
    assert_eq!((taken, world.answer(&other).as_str()), (Some(push.len()), ":1\r\n"));
    assert!(!world.operators.blocked.has_notified(ReactorId(0)), "this test tests nothing");
    settle(&mut world);
    assert_eq!(world.answer(&blocked), popped("list", "a"));
}

#[test]
fn requests_are_served_in_the_order_of_their_arrival() {
    let mut world = world();
    let mut pusher = world.connect(9, 1, HERE);
    let mut blocked: Vec<Asking> =
        (0..4).map(|number| world.connect(number, number as usize % 2, HERE)).collect();
    for client in &mut blocked {
        assert_eq!(world.ask(client, "BRPOP list 0"), "");
        settle(&mut world);
    }
    assert_eq!(world.ask(&mut pusher, "RPUSH list d c"), ":2\r\n");
    settle(&mut world);
    let replies = world.ask(&mut pusher, "MULTI\r\nLPUSH list b\r\nLPUSH list a\r\nEXEC");
    assert_eq!(replies, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:2\r\n");
    settle(&mut world);
    let replies: Vec<String> = blocked.iter().map(|client| world.answer(client)).collect();
    assert_eq!(replies, ["c", "d", "b", "a"].map(|item| popped("list", item)));
}

#[test]
fn a_later_request_does_not_take_what_a_waiting_one_is_about_to_get() {
    let mut world = world();
    let mut first = world.connect(1, 0, HERE);
    let mut second = world.connect(2, 1, HERE);
    let mut third = world.connect(3, 1, HERE);
    assert_eq!(world.ask(&mut first, "BLPOP list 0"), "");
    settle(&mut world);
    // The first reactor has not run since the push.
    assert_eq!(world.ask(&mut second, "RPUSH list a b\r\nBLPOP list 0"), ":2\r\n");
    assert_eq!(world.ask(&mut third, "BLMPOP 0 2 nokey list LEFT COUNT 9"), "");
    settle(&mut world);
    assert_eq!(world.answer(&first), popped("list", "a"));
    assert_eq!(world.answer(&second), popped("list", "b"));
    assert_eq!(world.answer(&third), "");
    assert_eq!(world.ask(&mut first, "RPUSH list c d"), ":2\r\n");
    settle(&mut world);
    assert_eq!(world.answer(&third), "*2\r\n$4\r\nlist\r\n*2\r\n$1\r\nc\r\n$1\r\nd\r\n");
}

#[test]
fn every_way_to_create_a_list_ends_the_wait() {
    let mut world = world();
    let mut blocked = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    for (create, count) in [
        ("RPUSH o 7\r\nRENAME o list", 2),
        ("RPUSH o 7\r\nRENAMENX o list", 2),
        ("RPUSH o 7\r\nCOPY o list", 2),
        ("RPUSH o 7\r\nLMOVE o list LEFT LEFT", 2),
        ("RPUSH o 7\r\nRPOPLPUSH o list", 2),
        ("SELECT 1\r\nRPUSH o 7\r\nCOPY o list DB 0\r\nDEL o\r\nSELECT 0", 5),
        ("MULTI\r\nRPUSH list 7\r\nLPOP list\r\nRPUSH list 7\r\nEXEC", 5),
        ("SET list x\r\nDEL list\r\nLPUSH list 7", 3),
        ("BALLAST.ONCE 7 1 1 LPUSH list 7", 1),
    ] {
        assert_eq!(world.ask(&mut blocked, "BLPOP list 0"), "", "{create}");
        settle(&mut world);
        assert_eq!(world.answer(&blocked), "", "{create}");
        let replies = world.ask(&mut other, create);
        assert!(replies.matches("\r\n").count() >= count && !replies.contains('-'), "{replies}");
        settle(&mut world);
        assert_eq!(world.answer(&blocked), popped("list", "7"), "{create}");
        world.ask(&mut other, "DEL o list");
    }
}

#[test]
fn moves_of_items_wake_the_next_request() {
    let mut world = world();
    let mut first = world.connect(1, 0, HERE);
    let mut second = world.connect(2, 1, HERE);
    let mut other = world.connect(3, 1, HERE);
    assert_eq!(world.ask(&mut first, "BLMOVE a b LEFT RIGHT 0"), "");
    assert_eq!(world.ask(&mut second, "BRPOPLPUSH b c 0"), "");
    settle(&mut world);
    assert_eq!(world.ask(&mut other, "RPUSH a 1"), ":1\r\n");
    settle(&mut world);
    assert_eq!(
        (world.answer(&first), world.answer(&second)),
        ("$1\r\n1\r\n".into(), "$1\r\n1\r\n".into())
    );
    assert_eq!(world.ask(&mut other, "LRANGE c 0 -1"), "*1\r\n$1\r\n1\r\n");
}

#[test]
fn values_of_other_types_do_not_end_the_wait_but_are_an_error_then() {
    let mut world = world();
    let mut blocked = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    assert_eq!(world.ask(&mut blocked, "BLPOP a b 0"), "");
    settle(&mut world);
    assert_eq!(world.ask(&mut other, "SET a x"), "+OK\r\n");
    settle(&mut world);
    assert_eq!(world.answer(&blocked), "");
    assert_eq!(world.ask(&mut other, "RPUSH b 1"), ":1\r\n");
    settle(&mut world);
    assert!(world.answer(&blocked).starts_with("-WRONGTYPE"), "as in Redis");
    assert_eq!(world.ask(&mut blocked, "BLMOVE c a LEFT LEFT 0"), "");
    settle(&mut world);
    assert_eq!(world.ask(&mut other, "RPUSH c 1"), ":1\r\n");
    settle(&mut world);
    assert!(world.answer(&blocked).starts_with("-WRONGTYPE"), "as in Redis");
    assert_eq!(world.ask(&mut other, "LLEN c"), ":1\r\n", "the item stays");
}

#[test]
fn members_of_sorted_sets_end_the_wait_for_them() {
    let mut world = world();
    let mut lowest = world.connect(1, 0, HERE);
    let mut highest = world.connect(2, 1, HERE);
    let mut several = world.connect(3, 0, HERE);
    let mut other = world.connect(4, 1, HERE);
    assert_eq!(world.ask(&mut lowest, "BZPOPMIN none z 0"), "");
    assert_eq!(world.ask(&mut highest, "BZPOPMAX z 0"), "");
    assert_eq!(world.ask(&mut several, "BZMPOP 0 2 none z MAX COUNT 2"), "");
    settle(&mut world);
    assert_eq!(world.ask(&mut other, "ZADD z 1 a 2.5 b 3 c 4 d"), ":4\r\n");
    settle(&mut world);
    assert_eq!(world.answer(&lowest), "*3\r\n$1\r\nz\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert_eq!(world.answer(&highest), "*3\r\n$1\r\nz\r\n$1\r\nd\r\n$1\r\n4\r\n");
    let pairs = "*2\r\n*2\r\n$1\r\nc\r\n$1\r\n3\r\n*2\r\n$1\r\nb\r\n$3\r\n2.5\r\n";
    assert_eq!(world.answer(&several), format!("*2\r\n$1\r\nz\r\n{pairs}"));
    assert!(!world.operators.blocked.is_any());
    assert_eq!(world.ask(&mut other, "MULTI\r\nBZPOPMIN z 0\r\nEXEC").lines().last(), Some("*-1"));
}

/// Requests for another type of value may be in the way neither before nor after.
#[test]
fn waits_for_lists_and_for_sorted_sets_do_not_hold_each_other_up() {
    let mut world = world();
    let mut lists = world.connect(1, 0, HERE);
    let mut sets = world.connect(2, 1, HERE);
    let mut other = world.connect(3, 1, HERE);
    assert_eq!(world.ask(&mut lists, "BLPOP k 0"), "");
    assert_eq!(world.ask(&mut sets, "BZPOPMIN k 0"), "");
    settle(&mut world);
    assert_eq!(world.ask(&mut other, "ZADD k 1 a"), ":1\r\n");
    settle(&mut world);
    assert_eq!(world.answer(&sets), "*3\r\n$1\r\nk\r\n$1\r\na\r\n$1\r\n1\r\n");
    assert_eq!(world.answer(&lists), "");
    assert_eq!(world.ask(&mut other, "RPUSH k b"), ":1\r\n");
    settle(&mut world);
    assert_eq!(world.answer(&lists), popped("k", "b"));
}

#[test]
fn a_wait_ends_in_time_or_when_an_operator_ends_it() {
    let mut world = world();
    let mut blocked = world.connect(1, 0, HERE);
    let mut operator = world.connect(2, 1, HERE);
    assert_eq!(world.ask(&mut blocked, "BLPOP list 7.5\r\nPING"), "");
    assert!(world.ask(&mut operator, "CLIENT LIST ID 1").contains(" flags=b "));
    let info = world.ask(&mut operator, "INFO clients");
    assert!(info.contains("blocked_clients:1\r\n") && info.contains("total_blocking_keys:1\r\n"));
    world.pass(Duration::from_millis(7_400));
    assert_eq!(world.answer(&blocked), "");
    world.pass(Duration::from_millis(200));
    assert_eq!(world.answer(&blocked) + &world.go_on(&mut blocked), "*-1\r\n+PONG\r\n");
    for (command, unblock, reply) in [
        ("BLPOP list 0", "CLIENT UNBLOCK 1", "*-1\r\n"),
        ("BLMPOP 9 1 list LEFT", "CLIENT UNBLOCK 1 TIMEOUT", "*-1\r\n"),
        ("BLMOVE list list LEFT LEFT 0", "CLIENT UNBLOCK 1 TIMEOUT", "*-1\r\n"),
        ("BRPOPLPUSH list list 9", "CLIENT UNBLOCK 1 ERROR", UNBLOCKED),
    ] {
        assert_eq!(world.ask(&mut operator, unblock), ":0\r\n", "no client waits");
        assert_eq!(world.ask(&mut blocked, command), "", "{command}");
        assert_eq!(world.ask(&mut operator, unblock), ":1\r\n");
        settle(&mut world);
        assert_eq!(world.answer(&blocked), reply, "{command}");
    }
    assert!(!world.operators.blocked.is_any());
}

#[test]
fn a_map_that_leaves_the_tablets_leaves_the_requests_that_wait_for_keys() {
    let mut world = World::of_cluster();
    let mut blocked = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut blocked, "BLPOP list 0"), "");
    settle(&mut world);
    let map = ClusterMap { version: 2, ..(*world.node.map()).clone() };
    let (now, wall) = (world.now, world.wall());
    let World { cores, sockets, node, .. } = &mut world;
    cores[0].on_control(FromCoordinator::Map(map));
    cores[0].begin_turn(now, wall);
    cores[0].wake(sockets);
    assert_eq!(node.map().version, 2);
    assert!(!cores[0].waits.has_turn(), "nothing has changed for its key");
    cores[0].wake_for(Wake::Tablets, sockets);
    assert!(cores[0].waits.has_turn(), "the key may be elsewhere");
}

#[test]
fn a_client_that_goes_takes_no_item_and_lets_the_next_one_take_it() {
    let mut world = world();
    let mut gone = world.connect(1, 0, HERE);
    let mut ending = world.connect(2, 0, HERE);
    let mut last = world.connect(3, 1, HERE);
    for client in [&mut gone, &mut ending, &mut last] {
        assert_eq!(world.ask(client, "BLPOP list 0"), "");
        settle(&mut world);
    }
    // Its connection breaks when it has been notified and has not looked at the list.
    let mut other = world.connect(4, 1, HERE);
    assert_eq!(world.ask(&mut other, "RPUSH list a"), ":1\r\n");
    world.cores[0].closed(gone.connection);
    world.cores[0].input_ended(ending.connection, &mut world.sockets);
    settle(&mut world);
    assert_eq!(world.answer(&gone), "");
    assert_eq!(world.answer(&ending), "*-1\r\n");
    assert!(world.is_closed(&ending));
    assert_eq!(world.answer(&last), popped("list", "a"));
    assert!(!world.operators.blocked.is_any());
}

#[test]
fn a_connection_is_read_while_it_waits_and_its_input_is_kept() {
    let mut world = world();
    let mut blocked = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    assert_eq!(world.ask(&mut blocked, "BLPOP list 0\r\nGET x\r\nBLPOP list 0\r\nPING"), "");
    assert!(world.sockets.paused.is_empty(), "its end would not be noticed");
    assert_eq!(world.go_on(&mut blocked), "");
    world.ask(&mut other, "SET x y\r\nRPUSH list a b");
    settle(&mut world);
    assert!(world.sockets.resumed.contains(&blocked.connection), "its input is passed again");
    let replies = world.answer(&blocked) + &world.go_on(&mut blocked);
    let expected = popped("list", "a") + "$1\r\ny\r\n" + &popped("list", "b") + "+PONG\r\n";
    assert_eq!(replies, expected);
    let long = "x".repeat(100_000);
    world.sockets.paused.clear();
    assert_eq!(world.ask(&mut blocked, &format!("BLPOP list 0\r\nECHO {long}")), "");
    assert_eq!(world.sockets.paused, [blocked.connection], "its input has a limit");
}

#[test]
fn transactions_do_not_wait() {
    let mut world = world();
    let mut client = world.connect(1, 0, HERE);
    let lines = "MULTI\r\nBLPOP a b 0\r\nBLMOVE a b LEFT LEFT 0\r\nBLMPOP 0 1 a LEFT\r\n\
                 BRPOPLPUSH a b 0\r\nRPUSH a 1 2\r\nBRPOP a 0\r\nBLMOVE a a LEFT RIGHT 0\r\nEXEC";
    let expected =
        "*7\r\n*-1\r\n$-1\r\n*-1\r\n$-1\r\n:2\r\n*2\r\n$1\r\na\r\n$1\r\n2\r\n$1\r\n1\r\n";
    let replies = world.ask(&mut client, lines);
    assert!(replies.ends_with(expected), "{replies}");
}

#[test]
fn a_pause_and_a_time_limit_do_not_lose_an_item() {
    let mut world = world();
    let mut blocked = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    assert_eq!(world.ask(&mut blocked, "BLPOP list 0"), "");
    settle(&mut world);
    assert_eq!(world.ask(&mut other, "RPUSH list a\r\nCLIENT PAUSE 9000 WRITE"), ":1\r\n+OK\r\n");
    world.pass(Duration::from_secs(8));
    assert_eq!(world.answer(&blocked), "", "writes are paused");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.answer(&blocked), popped("list", "a"));
}

/// A client of the random test, and what it waits for.
struct RandomClient {
    client: Asking,
    waits: bool,
}

/// Random pushes, pops and waits on two reactors, whose turns overlap in random ways.
#[test]
fn no_request_waits_for_a_list_with_items_and_no_item_is_lost() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = world();
        let mut clients: Vec<RandomClient> = (0..8)
            .map(|number| {
                let client = world.connect(number + 1, number as usize % 2, HERE);
                RandomClient { client, waits: false }
            })
            .collect();
        let (mut pushed, mut taken) = (0u64, 0u64);
        for _ in 0..300 {
            let wall = world.wall();
            match random.u8(..10) {
                0 => world.cores[random.usize(..2)].begin_turn(world.now, wall),
                1 | 2 => {
                    let core = &mut world.cores[random.usize(..2)];
                    core.begin_turn(world.now, wall);
                    core.end_of_input(&mut world.sockets);
                }
                _ => {
                    let one = random.usize(..clients.len());
                    let RandomClient { client, waits } = &mut clients[one];
                    if *waits {
                        continue;
                    }
                    let (key, other) = (random.u8(..3), random.u8(..3));
                    let line = match random.u8(..8) {
                        0..=2 => format!("BLPOP l{key} l{other} 0\r\n"),
                        3 => format!("BLMOVE l{key} l{other} LEFT RIGHT 0\r\n"),
                        4 => format!("LPOP l{key}\r\n"),
                        5 => format!("RENAMENX l{key} l{other}\r\n"),
                        _ => {
                            pushed += 1;
                            format!("RPUSH l{key} item{pushed}\r\n")
                        }
                    };
                    *waits = line.starts_with('B');
                    let core = &mut world.cores[client.reactor];
                    core.receive(client.connection, line.as_bytes(), &mut world.sockets);
                    let reply = world.answer(client);
                    taken += u64::from(line.starts_with("LPOP") && reply.contains("item"));
                    // The reply of a wait is counted below.
                    world.sockets.outputs.insert(client.connection, reply.into_bytes());
                }
            }
            taken += count_replies(&mut world, &mut clients);
        }
        settle(&mut world);
        taken += count_replies(&mut world, &mut clients);
        let mut observer = world.connect(99, 0, HERE);
        let mut left = 0;
        for key in 0..3 {
            let reply = world.ask(&mut observer, &format!("LLEN l{key}"));
            left += reply[1..].trim().parse::<u64>().expect("a length");
            let is_awaited = world.operators.blocked.keys() > 0;
            let hash = world.cores[0].engine().hash(format!("l{key}").as_bytes());
            let table = types::TableId(0);
            let elements = AwaitedElements::Taken(types::ValueType::List);
            let key = AwaitedKey { table, hash, elements };
            let has_waiter = is_awaited && !world.operators.blocked.is_first(key, None);
            assert!(reply == ":0\r\n" || !has_waiter, "seed {seed}: a wake-up was lost");
        }
        assert_eq!(pushed, taken + left, "seed {seed}");
    }
}

/// Takes the replies of waiting clients. Returns how many items left the lists with them.
fn count_replies(world: &mut World, clients: &mut [RandomClient]) -> u64 {
    let mut taken = 0;
    for RandomClient { client, waits } in clients {
        let reply = world.answer(client);
        if reply.is_empty() || !*waits {
            continue;
        }
        *waits = false;
        // `BLMOVE` replies with the item alone, and keeps it in a list.
        taken += u64::from(reply.starts_with("*2"));
    }
    taken
}
