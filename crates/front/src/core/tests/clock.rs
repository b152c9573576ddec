//! Times to live while wall clocks are wrong.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: i64 = 86_400_000;
const OK: &str = "+OK\r\n";
const VALUE: &str = "$1\r\nv\r\n";
const NIL: &str = "$-1\r\n";

#[test]
fn a_time_to_live_counts_from_the_clock_that_judges_it() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    world.node.store().raise_clock(UnixMillis(world.wall().0 + 1_000));
    for (key, set) in [
        ("a", "SET a v PX 500"),
        ("b", "PSETEX b 500 v"),
        ("c", "SET c v NX PX 500"),
        ("d", "MSETEX 1 d v PX 500"),
        ("e", "SET e v\r\nPEXPIRE e 500"),
        ("f", "SET f v\r\nGETEX f PX 500"),
        ("g", "MULTI\r\nSET g v PX 500\r\nEXEC"),
    ] {
        let replies = world.ask(&mut client, set);
        assert!(!replies.contains('-'), "{set}: {replies}");
        assert_eq!(world.ask(&mut client, &format!("GET {key}")), VALUE, "{set}");
        assert_eq!(world.ask(&mut client, &format!("PTTL {key}")), ":500\r\n", "{set}");
    }
    for (key, set) in [
        ("h", "HSETEX h PX 500 FIELDS 1 f v"),
        ("i", "HSET i f v\r\nHPEXPIRE i 500 FIELDS 1 f"),
        ("j", "HSET j f v\r\nHGETEX j PX 500 FIELDS 1 f"),
        ("k", "MULTI\r\nHSETEX k PX 500 FIELDS 1 f v\r\nEXEC"),
    ] {
        world.ask(&mut client, set);
        assert_eq!(world.ask(&mut client, &format!("HGET {key} f")), VALUE, "{set}");
        let left = world.ask(&mut client, &format!("HPTTL {key} FIELDS 1 f"));
        assert_eq!(left, "*1\r\n:500\r\n", "{set}");
    }
}

#[test]
fn a_time_to_live_does_not_begin_before_its_request_was_sent() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    // The process is stopped for a second within the turn that reads the request.
    let stopped_until = world.now + SECOND;
    world.cores[0].backend.engine.set_time_within_turn(Box::new(move || stopped_until));
    for (key, set) in [
        ("a", "SET a v PX 500"),
        ("b", "SET b v\r\nPEXPIRE b 500"),
        ("c", "MULTI\r\nSET c v PX 500\r\nEXEC"),
    ] {
        world.ask(&mut client, set);
        assert_eq!(world.ask(&mut client, &format!("PTTL {key}")), ":500\r\n", "{set}");
    }
    world.pass(SECOND + Duration::from_millis(400));
    for key in ["a", "b", "c"] {
        assert_eq!(world.ask(&mut client, &format!("GET {key}")), VALUE, "{key}");
    }
    world.pass(Duration::from_millis(100));
    for key in ["a", "b", "c"] {
        assert_eq!(world.ask(&mut client, &format!("GET {key}")), NIL, "{key}");
    }
}

#[test]
fn a_wall_clock_that_jumps_a_day_ahead_and_back_kills_no_key() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    assert_eq!(world.ask(&mut client, "SET before v EX 60"), OK);
    world.wall_ahead = DAY;
    world.pass(SECOND);
    assert_eq!(world.ask(&mut client, "SET meanwhile v EX 60"), OK);
    assert_eq!(world.ask(&mut client, "GET before"), VALUE);
    world.wall_ahead = 0;
    world.pass(SECOND);
    assert_eq!(world.ask(&mut client, "SET after v EX 60"), OK);
    for (key, left) in [("before", 58_000), ("meanwhile", 59_000), ("after", 60_000)] {
        assert_eq!(world.ask(&mut client, &format!("GET {key}")), VALUE, "{key}");
        assert_eq!(world.ask(&mut client, &format!("PTTL {key}")), format!(":{left}\r\n"), "{key}");
    }
    world.pass(59 * SECOND);
    assert_eq!(world.ask(&mut client, "GET before"), NIL);
    assert_eq!(world.ask(&mut client, "GET after"), VALUE);
    world.pass(2 * SECOND);
    assert_eq!(
        world.ask(&mut client, "GET meanwhile") + &world.ask(&mut client, "GET after"),
        [NIL; 2].concat()
    );
}

#[test]
fn an_absolute_expiry_is_of_the_wall_clock_and_a_relative_one_is_not() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let at = world.wall().0 + 5_000;
    assert_eq!(world.ask(&mut client, &format!("SET a v PXAT {at}")), OK);
    assert_eq!(world.ask(&mut client, "PEXPIRETIME a"), format!(":{at}\r\n"));
    // If the wall clock stays ahead, the expiry clock follows in one step after ten seconds.
    world.wall_ahead = DAY;
    assert_eq!(world.ask(&mut client, "SET b v EX 3600"), OK);
    world.pass(9 * SECOND);
    assert_eq!(
        world.ask(&mut client, "GET a") + &world.ask(&mut client, "GET b"),
        [NIL, VALUE].concat()
    );
    world.pass(2 * SECOND);
    assert_eq!(world.ask(&mut client, "GET b"), NIL);
    let info = world.ask(&mut client, "INFO server");
    assert!(info.contains("expiry_clock_doubt_ms:0\r\n"), "{info}");
}

#[test]
fn a_lock_never_has_two_holders_whatever_the_wall_clock_does() {
    let step = Duration::from_millis(10);
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(ServerConfiguration::default());
        let mut clients = [0, 1].map(|reactor| world.connect(reactor as u64, reactor, HERE));
        let (mut taken, mut stands) = (None::<Instant>, false);
        for _ in 0..500 {
            match random.u32(..20) {
                // The expiry clock would follow a jump that lasts ten seconds.
                0 => world.wall_ahead = random.i64(-DAY..DAY),
                1 => world.wall_ahead = random.i64(-900..900),
                2 => stands = !stands,
                _ => {}
            }
            world.wall_ahead -= if stands { 10 } else { 0 };
            world.pass(step);
            for client in &mut clients {
                if world.ask(client, "SET lock v NX PX 200") != OK {
                    continue;
                }
                // The expiry clock may run up to a twentieth fast or slow.
                let held = taken.map(|since| world.now.since(since).as_millis());
                assert!(
                    held.is_none_or(|ms| (190..=222).contains(&ms)),
                    "{held:?} ms, seed {seed}"
                );
                taken = Some(world.now);
            }
        }
        assert!(taken.is_some_and(|at| at + Duration::from_millis(230) > world.now));
    }
}

#[test]
fn what_has_expired_is_not_counted_a_second_later() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    for thousand in 0..300 {
        let sets = (0..1000).map(|number| format!("SET key:{thousand}:{number} v"));
        let replies = world.ask(&mut client, &sets.collect::<Vec<_>>().join("\r\n"));
        assert_eq!(replies.len(), 1000 * OK.len());
    }
    for number in 0..1000 {
        assert_eq!(world.ask(&mut client, &format!("SET short:{number} v PX 100")), OK);
    }
    for number in 0..500 {
        assert_eq!(world.ask(&mut client, &format!("SET long:{number} v EX 1000")), OK);
    }
    assert_eq!(world.ask(&mut client, "DBSIZE"), ":301500\r\n");
    world.pass(Duration::from_millis(101));
    world.pass(SECOND);
    assert_eq!(world.ask(&mut client, "DBSIZE"), ":300500\r\n");
    world.pass(10 * SECOND);
    let info = world.ask(&mut client, "INFO keyspace");
    let (_, told) = info.split_once("keys=300500,expires=500,avg_ttl=").expect(&info);
    let told = told.split("\r\n").next().and_then(|told| told.parse::<u64>().ok());
    assert!(told.is_some_and(|left| (985_000..=1_000_000).contains(&left)), "{info}");
}
