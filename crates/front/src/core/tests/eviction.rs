//! Eviction as clients see it: a full server makes room, or refuses writes, as its settings say.

use super::*;
use settings::Setting;

fn world(policy: &str) -> World {
    let mut configuration = ServerConfiguration::default();
    for (name, value) in [("maxmemory", "64mb"), ("maxmemory-policy", policy)] {
        let setting = Setting::find(name).expect("a setting");
        setting.set(&mut configuration, value).expect("a valid value");
    }
    World::new(configuration)
}

impl World {
    /// Sends a line, and runs turns with background work until it is answered.
    pub(super) fn ask_patiently(&mut self, client: &mut Asking, line: &str) -> String {
        let mut answer = self.ask(client, line);
        let begun = self.now;
        while answer.is_empty() {
            self.turn();
            self.now = self.now + Duration::from_micros(20);
            assert!(self.now.since(begun) < Duration::from_secs(5), "no answer to {line:.60}");
            answer = self.answer(client);
        }
        answer
    }

    /// Sets keys of 1,000 bytes from number `first` on. Stops at the first refusal, and returns the
    /// number of the key.
    fn set_many(&mut self, client: &mut Asking, first: u32, last: u32, more: &str) -> Option<u32> {
        let value = "v".repeat(1_000);
        (first..last).find(|number| {
            let answer = self.ask_patiently(client, &format!("SET key:{number} {value}{more}"));
            if number % 4 == 0 {
                self.turn();
                self.now = self.now + Duration::from_micros(100);
            }
            assert!(answer == "+OK\r\n" || answer.starts_with("-OOM "), "{answer}");
            answer != "+OK\r\n"
        })
    }

    fn info(&mut self, client: &mut Asking, field: &str) -> String {
        let info = self.ask(client, "INFO all");
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| *name == field).expect("a field of INFO").1.to_owned()
    }

    fn count(&mut self, client: &mut Asking) -> u64 {
        let size = self.ask(client, "DBSIZE");
        size[1..].trim().parse().expect("a number")
    }
}

#[test]
fn a_full_server_evicts_records_and_refuses_no_write() {
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
        let mut world = world(policy);
        let mut client = world.connect(1, 0, HERE);
        world.ask(&mut client, "SET hot 1");
        for round in 0..100 {
            let first = round * 1_000;
            assert_eq!(world.set_many(&mut client, first, first + 1_000, ""), None, "{policy}");
            for _ in 0..if policy == "allkeys-lfu" { 200 } else { 1 } {
                let hot = world.ask_patiently(&mut client, "GET hot");
                assert!(hot == "$1\r\n1\r\n" || policy == "allkeys-random", "{policy}, {round}");
            }
        }
        let evicted: u64 = world.info(&mut client, "evicted_keys").parse().expect("a number");
        let (left, lost) = (world.count(&mut client), u64::from(policy == "allkeys-random"));
        assert!(left + evicted >= 100_001 - lost && left + evicted <= 100_001 + lost);
        assert!((20_000..60_000).contains(&left), "{policy}: {left} of 64 MB");
        assert_eq!(world.info(&mut client, "maxmemory_policy"), policy);
        world.ask(&mut client, "CONFIG RESETSTAT");
        assert_eq!(world.info(&mut client, "evicted_keys"), "0");
    }
}

#[test]
fn without_records_that_may_go_a_full_server_refuses_writes() {
    for policy in ["noeviction", "volatile-lru", "volatile-ttl"] {
        let mut world = world(policy);
        let mut client = world.connect(1, 0, HERE);
        let refused = world.set_many(&mut client, 0, 100_000, "").expect("it becomes full");
        assert_eq!(world.info(&mut client, "evicted_keys"), "0");
        assert_eq!(world.count(&mut client), u64::from(refused));
        assert_eq!(world.ask_patiently(&mut client, "DEL key:7"), ":1\r\n");
        if policy != "noeviction" {
            let expire = format!("EXPIRE key:{} 1000", refused - 1);
            assert_eq!(world.ask_patiently(&mut client, &expire)[..1], *"-", "there is no memory");
        }
        world.ask(&mut client, "CONFIG SET maxmemory-policy allkeys-random");
        assert_eq!(world.set_many(&mut client, refused, refused + 2_000, ""), None);
        assert_ne!(world.info(&mut client, "evicted_keys"), "0");
    }
}

#[test]
fn a_volatile_policy_spares_records_without_expiry() {
    let mut world = world("volatile-lfu");
    let mut client = world.connect(1, 0, HERE);
    assert_eq!(world.set_many(&mut client, 0, 10_000, ""), None);
    assert_eq!(world.set_many(&mut client, 10_000, 80_000, " EX 10000"), None);
    for number in 0..10_000 {
        let strlen = world.ask_patiently(&mut client, &format!("STRLEN key:{number}"));
        assert_eq!(strlen, ":1000\r\n", "key:{number} has no expiry");
    }
    assert_ne!(world.info(&mut client, "evicted_keys"), "0");
}

#[test]
fn the_memory_limit_can_be_lowered_and_raised_to_the_first_one() {
    let mut world = world("allkeys-lru");
    let mut client = world.connect(1, 0, HERE);
    assert_eq!(world.set_many(&mut client, 0, 30_000, ""), None);
    let before = world.count(&mut client);
    let refused = world.ask(&mut client, "CONFIG SET maxmemory 65mb");
    assert!(refused.contains(" cannot exceed 67108864, the value at "), "{refused}");
    let refused = world.ask(&mut client, "CONFIG SET maxmemory 1mb");
    assert!(refused.contains(" must be at least 50331648, for "), "{refused}");
    assert_eq!(world.ask(&mut client, "CONFIG SET maxmemory 52mb"), "+OK\r\n");
    assert_eq!(world.info(&mut client, "maxmemory"), (52 << 20).to_string());
    assert_eq!(world.set_many(&mut client, 30_000, 60_000, ""), None);
    let lowered = world.count(&mut client);
    assert!(lowered < before, "{before} records became {lowered}");
    assert_eq!(world.ask(&mut client, "CONFIG SET maxmemory 64mb"), "+OK\r\n");
    assert_eq!(world.set_many(&mut client, 60_000, 100_000, ""), None);
    assert!(world.count(&mut client) > lowered + 5_000);
}

#[test]
fn object_shows_the_accesses_that_the_policy_needs() {
    let mut world = world("allkeys-lru");
    let mut client = world.connect(1, 0, HERE);
    world.ask(&mut client, "SET a 1");
    world.pass(Duration::from_millis(100_200));
    assert_eq!(world.ask(&mut client, "OBJECT IDLETIME a"), ":100\r\n");
    for quiet in ["TTL a", "EXISTS a", "TYPE a", "MEMORY USAGE a", "SCAN 0", "OBJECT FREQ b"] {
        world.ask(&mut client, quiet);
        assert_eq!(world.ask(&mut client, "OBJECT IDLETIME a"), ":100\r\n", "{quiet}");
    }
    world.ask(&mut client, "CLIENT NO-TOUCH ON");
    world.ask(&mut client, "GET a");
    assert_eq!(world.ask(&mut client, "OBJECT IDLETIME a"), ":100\r\n");
    world.ask(&mut client, "TOUCH a");
    assert_eq!(world.ask(&mut client, "OBJECT IDLETIME a"), ":0\r\n");
    world.ask(&mut client, "CLIENT NO-TOUCH OFF");
    for access in ["GET a", "MGET b a", "APPEND a 2", "EXPIRE a 1000", "GETRANGE a 0 1"] {
        world.pass(Duration::from_millis(100_200));
        world.ask(&mut client, access);
        assert_eq!(world.ask(&mut client, "OBJECT IDLETIME a"), ":0\r\n", "{access}");
    }
    world.pass(Duration::from_millis(100_200));
    world.ask(&mut client, "MULTI");
    world.ask(&mut client, "GET a");
    world.ask(&mut client, "EXEC");
    assert_eq!(world.ask(&mut client, "OBJECT IDLETIME a"), ":0\r\n");
    let error = world.ask(&mut client, "OBJECT FREQ a");
    assert!(error.starts_with("-ERR An LFU maxmemory policy is not selected"), "{error}");

    world.ask(&mut client, "CONFIG SET maxmemory-policy allkeys-lfu");
    world.ask(&mut client, "SET b 1");
    assert_eq!(world.ask(&mut client, "OBJECT FREQ b"), ":5\r\n");
    world.ask(&mut client, "GET b");
    assert_eq!(world.ask(&mut client, "OBJECT FREQ b"), ":6\r\n");
    let error = world.ask(&mut client, "OBJECT IDLETIME b");
    assert!(error.starts_with("-ERR An LFU maxmemory policy is selected"), "{error}");
    assert_eq!(world.ask(&mut client, "OBJECT FREQ nothing"), "$-1\r\n");
}

#[test]
fn combining_sets_is_an_access_to_each() {
    let mut world = world("allkeys-lru");
    let mut client = world.connect(1, 0, HERE);
    for key in ["a", "b", "c"] {
        assert_eq!(world.ask(&mut client, &format!("SADD {key} member")), ":1\r\n");
    }
    world.now = world.now + Duration::from_secs(100);
    world.turn();
    assert_eq!(world.ask(&mut client, "SINTERCARD 2 a b"), ":1\r\n");
    let mut idle = |key: &str| -> u64 {
        let reply = world.ask(&mut client, &format!("OBJECT IDLETIME {key}"));
        reply[1..].trim().parse().expect("a number")
    };
    assert!(idle("a") < 50 && idle("b") < 50 && idle("c") > 50);
}

#[test]
fn the_pages_of_evicted_values_make_room_before_other_values_are_evicted() {
    let mut world = world("allkeys-random");
    let mut client = world.connect(1, 0, HERE);
    // Hashes of 100 KB in pages: their roots are a thousandth of them.
    let value = "v".repeat(1_000);
    const WRITTEN: u64 = 1_500;
    for key in 0..WRITTEN {
        let key = format!("hash:{key}");
        let mut words = vec!["HSET".to_owned(), key];
        (0..100).for_each(|field| words.extend([format!("field:{field}"), value.clone()]));
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        resp::RequestWriter::write(&words, &mut client.input);
        assert_eq!(world.ask_patiently(&mut client, "PING"), ":100\r\n+PONG\r\n");
        for _ in 0..20 {
            world.turn();
            world.now = world.now + Duration::from_micros(100);
        }
    }
    let (left, evicted) = (world.count(&mut client), world.info(&mut client, "evicted_keys"));
    let evicted: u64 = evicted.parse().expect("a number");
    assert_eq!(left + evicted, WRITTEN);
    assert!((250..600).contains(&left), "{left} hashes of 100 KB are in 64 MB");
}
