//! Fields of hashes that expire, compared with a model while time passes: in packed hashes, in
//! divided ones, and in transactions.

use super::paged_values::PagedValues;
use super::*;
use fastrand::Rng;

/// Settings of `max-packed-bytes`: hashes are divided at once, or never.
const DIVIDED: &str = "40";
const PACKED: &str = "1000000";

/// Value and expiry of each field, expired ones included.
type Fields = BTreeMap<String, (String, Option<u64>)>;

/// A server with one hash, and the fields that it must have.
struct Expiring {
    pages: PagedValues,
    fields: Fields,
    random: Rng,
}

impl Expiring {
    fn new(packed_bytes: &str, seed: u64) -> Expiring {
        let pages = PagedValues::new(packed_bytes);
        Expiring { pages, fields: Fields::new(), random: Rng::with_seed(seed) }
    }

    fn now(&self) -> u64 {
        self.pages.world.wall().0
    }

    /// Lets time pass, without background work in most cases.
    fn pass(&mut self) {
        let millis = self.random.u64(..40);
        match self.random.u32(..4) {
            0 => self.pages.world.pass(Duration::from_millis(millis)),
            _ => self.pages.world.now = self.pages.world.now + Duration::from_millis(millis),
        }
        let now = self.now();
        self.fields.retain(|_, (_, expiry)| expiry.is_none_or(|expiry| expiry > now));
    }

    fn name(&mut self) -> String {
        format!("field:{}", self.random.usize(..30))
    }

    /// Executes one random command on both.
    fn step(&mut self) {
        let (name, now) = (self.name(), self.now());
        let life = self.random.u64(1..200);
        let value = "v".repeat(self.random.usize(1..12));
        let before = self.fields.get(&name).cloned();
        match self.random.u32(..14) {
            0 | 1 => {
                let is_new = self.pages.number(&format!("HSET key {name} {value}"));
                assert_eq!(is_new, i64::from(before.is_none()));
                self.fields.insert(name, (value, None));
            }
            2 => {
                let is_set = self.pages.number(&format!("HSETNX key {name} {value}"));
                assert_eq!(is_set, i64::from(before.is_none()));
                self.fields.entry(name).or_insert((value, None));
            }
            3 => {
                let line = format!("HINCRBY key {name}:count 2");
                let name = format!("{name}:count");
                let (old, expiry) = self.fields.get(&name).cloned().unwrap_or(("0".into(), None));
                let sum = old.parse::<i64>().expect("a count") + 2;
                assert_eq!(self.pages.number(&line), sum);
                self.fields.insert(name, (sum.to_string(), expiry));
            }
            4..=6 => {
                let name = if self.random.bool() { name } else { format!("{name}:count") };
                let before = self.fields.get(&name).cloned();
                let done = self.pages.ask(&format!("HPEXPIRE key {life} FIELDS 1 {name}"));
                let code = if before.is_some() { 1 } else { -2 };
                assert_eq!(done, format!("*1\r\n:{code}\r\n"));
                if let Some((value, _)) = before {
                    self.fields.insert(name, (value, Some(now + life)));
                }
            }
            7 => {
                let other = format!("{name}:other");
                let line = format!("HSETEX key PX {life} FIELDS 2 {name} {value} {other} x");
                assert_eq!(self.pages.number(&line), 1);
                self.fields.insert(name, (value, Some(now + life)));
                self.fields.insert(other, ("x".into(), Some(now + life)));
            }
            8 => {
                let done = self.pages.ask(&format!("HPERSIST key FIELDS 1 {name}"));
                let code = before.as_ref().map_or(-2, |(_, at)| if at.is_some() { 1 } else { -1 });
                assert_eq!(done, format!("*1\r\n:{code}\r\n"));
                if let Some((value, _)) = before {
                    self.fields.insert(name, (value, None));
                }
            }
            9 => {
                let found = self.pages.strings(&format!("HGETEX key PX {life} FIELDS 1 {name}"));
                assert_eq!(
                    found,
                    before.iter().map(|(value, _)| value.clone()).collect::<Vec<_>>()
                );
                if let Some((value, _)) = before {
                    self.fields.insert(name, (value, Some(now + life)));
                }
            }
            10 => {
                let removed = self.pages.number(&format!("HDEL key {name}"));
                assert_eq!(removed, i64::from(before.is_some()));
                self.fields.remove(&name);
            }
            11 if !self.fields.is_empty() => {
                let renamed = self.pages.ask("RENAME key other");
                assert_eq!(renamed, "+OK\r\n");
                assert_eq!(self.pages.number("COPY other key"), 1);
                self.pages.ask("DEL other");
            }
            _ => {
                let drawn = self.pages.strings("HRANDFIELD key 2");
                assert_eq!(drawn.len(), self.fields.len().min(2));
                assert!(drawn.iter().all(|name| self.fields.contains_key(name)), "{drawn:?}");
            }
        }
    }

    /// Compares all that can be read with the model.
    fn check(&mut self) {
        let all = self.pages.strings("HGETALL key");
        let (pairs, _) = all.as_chunks::<2>();
        let found: BTreeMap<&str, &str> =
            pairs.iter().map(|[name, value]| (&name[..], &value[..])).collect();
        let expected = self.fields.iter().map(|(name, (value, _))| (&name[..], &value[..]));
        assert_eq!(found, expected.collect());
        let names: Vec<String> = self.fields.keys().cloned().collect();
        let now = self.now();
        for name in names.iter().chain(["nope".to_owned()].iter()) {
            let left = match self.fields.get(name) {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(at))) => (at - now) as i64,
            };
            let shown = self.pages.ask(&format!("HPTTL key FIELDS 1 {name}"));
            assert_eq!(shown, format!("*1\r\n:{left}\r\n"), "{name}");
            let exists = self.pages.number(&format!("HEXISTS key {name}"));
            assert_eq!(exists, i64::from(left != -2), "{name}");
        }
        let scanned = self.pages.strings("HSCAN key 0 COUNT 1000 NOVALUES");
        assert_eq!(scanned.len() - 1, names.len());
    }
}

#[test]
fn fields_expire_in_every_form_of_a_hash() {
    for seed in 0..16 {
        let mut hash = Expiring::new(if seed % 2 == 0 { PACKED } else { DIVIDED }, seed);
        hash.pages.in_transactions = seed % 4 > 1;
        let mut had_pages = false;
        for _ in 0..40 {
            for _ in 0..hash.random.usize(1..20) {
                hash.step();
            }
            had_pages |= hash.pages.pages() > 3;
            hash.pass();
            hash.check();
        }
        assert_eq!(had_pages, seed % 2 == 1);
        // The root of a divided hash counts expired fields until their pages are written.
        hash.pages.run(4_000);
        let now = hash.now();
        hash.fields.retain(|_, (_, expiry)| expiry.is_none_or(|expiry| expiry > now));
        assert_eq!(hash.pages.number("HLEN key"), hash.fields.len() as i64);
        hash.check();
    }
}

#[test]
fn expired_fields_that_no_command_touches_are_reclaimed() {
    for packed_bytes in [PACKED, DIVIDED] {
        let mut pages = PagedValues::new(packed_bytes);
        for key in 0..20 {
            for field in 0..30 {
                pages.ask(&format!("HSET key:{key} field:{field} {}", "v".repeat(field)));
                let life = if key < 10 || field % 2 == 0 { 50 } else { 1_000_000 };
                pages.ask(&format!("HPEXPIRE key:{key} {life} FIELDS 1 field:{field}"));
            }
        }
        assert_eq!(pages.number("DBSIZE"), 20);
        let before = pages.pages();
        pages.run(4_000);
        assert_eq!(pages.number("DBSIZE"), 10, "keys outlive their last field");
        for key in 10..20 {
            assert_eq!(pages.number(&format!("HLEN key:{key}")), 15);
        }
        assert!(packed_bytes == PACKED || pages.pages() < before * 3 / 4, "pages without fields");
    }
}

#[test]
fn the_walk_behind_expired_fields_can_be_stopped() {
    let mut pages = PagedValues::new(PACKED);
    pages.world.node.set_active_expiry(false);
    pages.ask("HSETEX key PX 10 FIELDS 1 field v");
    pages.run(4_000);
    assert_eq!(pages.number("EXISTS key"), 1, "it is reclaimed");
    assert_eq!(pages.strings("HGET key field"), [""; 0]);
    assert_eq!(pages.number("HSETEX key NX PX 10 FIELDS 1 field v"), 1);
    pages.world.node.set_active_expiry(true);
    pages.run(4_000);
    assert_eq!(pages.number("EXISTS key"), 0, "it is not reclaimed");
}

#[test]
fn a_write_that_changes_nothing_else_drops_expired_fields() {
    for packed_bytes in [PACKED, DIVIDED] {
        let mut pages = PagedValues::new(packed_bytes);
        pages.world.node.set_active_expiry(false);
        let names: Vec<String> = (0..40).map(|number| format!("field:{number}")).collect();
        let pairs: Vec<String> = names.iter().map(|name| format!("{name} value")).collect();
        pages.ask(&format!("HSETEX key PX 10 FIELDS 40 {}", pairs.join(" ")));
        pages.world.now = pages.world.now + Duration::from_millis(11);
        assert_eq!(pages.number(&format!("HDEL key {}", names.join(" "))), 0);
        assert_eq!(pages.number("EXISTS key"), 0);
        assert_eq!(pages.pages(), 0);
    }
}

/// Writes a hash of so many fields that expire after a second, none of which background work removes.
fn expired_hash(packed_bytes: &str, key: &str, fields: usize) -> PagedValues {
    let mut pages = PagedValues::new(packed_bytes);
    pages.world.node.set_active_expiry(false);
    let named = (0..fields).map(|field| format!(" field:{field} {}", "v".repeat(20)));
    let line = format!("HSETEX {key} EX 1 FIELDS {fields}{}", named.collect::<String>());
    assert_eq!(pages.number(&line), 1);
    pages.world.now = pages.world.now + Duration::from_secs(2);
    pages
}

#[test]
fn a_hash_whose_fields_have_all_expired_replaces_another_value() {
    for command in ["RENAME", "COPY"] {
        let mut pages = expired_hash(DIVIDED, "source", 40);
        assert!(pages.pages() > 5, "the hash is divided");
        pages.ask("HSET target old 1");
        let line =
            if command == "COPY" { "COPY source target REPLACE" } else { "RENAME source target" };
        pages.ask(line);
        assert_eq!(pages.ask("HGETALL target"), "*0\r\n", "{command}");
    }
}

#[test]
fn a_copy_leaves_its_source_as_it_is() {
    let mut pages = expired_hash(DIVIDED, "source", 40);
    pages.ask("HSET source left 1");
    let mut other = pages.world.connect(2, 1, HERE);
    assert_eq!(
        pages.world.ask(&mut other, "WATCH source\r\nMULTI\r\nHGET source left"),
        "+OK\r\n+OK\r\n+QUEUED\r\n"
    );
    assert_eq!(pages.number("COPY source copied"), 1);
    assert_eq!(pages.world.ask(&mut other, "EXEC"), "*1\r\n$1\r\n1\r\n", "nobody has changed it");
    assert_eq!(pages.strings("HGETALL copied"), ["left", "1"]);
}

#[test]
fn nothing_is_due_at_once_while_expiry_rests() {
    let mut pages = expired_hash(DIVIDED, "key", 4);
    pages.run(2_000);
    let core = &pages.world.cores[0];
    let next = core.next_deadline();
    assert!(next.is_none_or(|next| next > core.now), "{next:?} at {:?}", core.now);
}

#[test]
fn a_turn_reclaims_a_bounded_number_of_hashes() {
    let mut pages = PagedValues::new(PACKED);
    for key in 0..400 {
        pages.ask(&format!("HSETEX key:{key} PX 50 FIELDS 1 a b"));
    }
    let (mut left, begun) = (pages.number("DBSIZE"), pages.world.now);
    while left > 0 {
        pages.world.now = pages.world.now + Duration::from_millis(1);
        pages.world.turn();
        let now = pages.number("DBSIZE");
        assert!(left - now <= 64, "{} of {left} hashes are reclaimed in a turn", left - now);
        left = now;
        assert!(pages.world.now.since(begun) < Duration::from_secs(600), "{left} hashes are left");
    }
}
