//! Operations against a naive model: a sorted map that executes the same operations one by one.

mod common;

use common::{NOW, Server, TABLE, tablet, value};
use std::collections::BTreeMap;
use store::{Key, Need, Stall, TableKey, TabletMap, TabletState};
use types::{HashRange, KeyHash, Slot, TableId, UnixMillis, Version};

/// The naive model of a store.
#[derive(Default)]
struct Twin {
    records: BTreeMap<(TableId, Vec<u8>), Twinned>,
}

#[derive(Clone)]
struct Twinned {
    value: Vec<u8>,
    version: Version,
    expiry: Option<UnixMillis>,
}

impl Twin {
    fn read(&self, table: TableId, key: &[u8], now: UnixMillis) -> Option<&Twinned> {
        let record = self.records.get(&(table, key.to_vec()))?;
        record.expiry.is_none_or(|at| at > now).then_some(record)
    }
}

/// Executes random operations on store and model, and checks that the results agree.
struct Judge {
    server: Server,
    twin: Twin,
    random: fastrand::Rng,
    /// Number of keys to choose from.
    keys: u32,
}

impl Judge {
    fn new(seed: u64, keys: u32) -> Judge {
        let random = fastrand::Rng::with_seed(seed);
        Judge { server: Server::serving(), twin: Twin::default(), random, keys }
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.u32(..self.keys);
        // Some share a slot, many do not; some are long.
        match number % 5 {
            0 => format!("{{together}}{number}").into_bytes(),
            1 => format!("{number}{}", "x".repeat(300)).into_bytes(),
            _ => number.to_string().into_bytes(),
        }
    }

    fn names(&mut self) -> Vec<Vec<u8>> {
        (0..self.random.usize(2..9)).map(|_| self.name()).collect()
    }

    fn table(&mut self) -> TableId {
        TableId(self.random.u8(..3))
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.random.u32(..20) {
            0 => 5000,
            1 => 0,
            _ => self.random.usize(1..200),
        };
        vec![self.random.u8(..); length]
    }

    fn expiry(&mut self) -> Option<UnixMillis> {
        let soon = UnixMillis(self.server.now.0 + self.random.u64(..50));
        self.random.bool().then_some(soon)
    }

    fn step(&mut self) {
        self.server.now = UnixMillis(self.server.now.0 + self.random.u64(..2));
        self.server.turn();
        self.foresee();
        match self.random.u32(..100) {
            0..30 => self.put(),
            30..50 => self.read_one(),
            50..60 => self.read_several(),
            60..75 => self.update_one(),
            75..90 => self.update_several(),
            90..93 => self.delete_blindly(),
            93..96 => self.expire(),
            _ => self.scan(),
        }
    }

    /// Prefetches random keys: no result may depend on it.
    fn foresee(&mut self) {
        let (table, names) = (self.table(), self.names());
        let key = |name: &Vec<u8>| common::key(&self.server.store, name).hash;
        let hashes: Vec<KeyHash> = names.iter().map(key).collect();
        self.server.worker.foresee(table, &hashes);
    }

    fn put(&mut self) {
        let (table, name) = (self.table(), self.name());
        let (value, expiry) = (self.value(), self.expiry());
        let key = common::key(&self.server.store, &name);
        let written = self.server.worker.put(table, key, &value, expiry);
        let version = self.server.store.version();
        assert_eq!(written, Ok(version), "a write returns the version it has drawn");
        self.twin.records.insert((table, name), Twinned { value, version, expiry });
    }

    fn read_one(&mut self) {
        let (table, name) = (self.table(), self.name());
        let key = common::key(&self.server.store, &name);
        let expected = self.twin.read(table, &name, self.server.now);
        let read = self.server.worker.read_one(table, key, |record| {
            let record = record.map(|r| (r.value.bytes, r.version, r.expiry));
            assert_eq!(record, expected.map(|r| (r.value.as_slice(), r.version, r.expiry)));
        });
        assert_eq!(read, Ok(()));
    }

    fn read_several(&mut self) {
        let (table, names) = (self.table(), self.names());
        let store = self.server.store.clone();
        let keys: Vec<Key<'_>> = names.iter().map(|name| common::key(&store, name)).collect();
        let (twin, now) = (&self.twin, self.server.now);
        let read = self.server.worker.read(table, &keys, |records| {
            for (record, name) in records.iter().zip(&names) {
                let expected = twin.read(table, name, now).map(|r| (r.value.as_slice(), r.version));
                assert_eq!(record.map(|r| (r.value.bytes, r.version)), expected);
            }
        });
        assert_eq!(read, Ok(()));
    }

    /// Appends, replaces, deletes or keeps a record, depending on its content.
    fn update_one(&mut self) {
        let (table, name) = (self.table(), self.name());
        let (choice, expiry) = (self.random.u32(..4), self.expiry());
        let store = self.server.store.clone();
        let key = common::key(&store, &name);
        let after = self.server.worker.update(table, &[key], Need::Records, |records, changes| {
            let before = records[0].map(|record| record.value.bytes.to_vec());
            match (choice, before) {
                (0, _) => None,
                (1, Some(_)) => {
                    changes.delete(0);
                    Some(None)
                }
                (2, Some(before)) if before.len() < 1000 => {
                    changes.put_joined(0, &[&before, b"+"], expiry);
                    Some(Some([&before[..], b"+"].concat()))
                }
                (_, _) => {
                    changes.put(0, b"overwritten later in the same command", None);
                    changes.put(0, b"new", expiry);
                    Some(Some(b"new".to_vec()))
                }
            }
        });
        self.note(table, name, after.unwrap(), expiry);
    }

    fn note(
        &mut self,
        table: TableId,
        name: Vec<u8>,
        after: Option<Option<Vec<u8>>>,
        expiry: Option<UnixMillis>,
    ) {
        let version = self.server.store.version();
        match after {
            None => {}
            Some(None) => drop(self.twin.records.remove(&(table, name))),
            Some(Some(value)) => {
                self.twin.records.insert((table, name), Twinned { value, version, expiry });
            }
        }
    }

    /// Puts and deletes, some of the same key; the last change of a key wins.
    fn update_several(&mut self) {
        let (table, names) = (self.table(), self.names());
        let store = self.server.store.clone();
        let keys: Vec<Key<'_>> = names.iter().map(|name| common::key(&store, name)).collect();
        let choices: Vec<u32> = names.iter().map(|_| self.random.u32(..3)).collect();
        let value = self.value();
        let updated = self.server.worker.update(table, &keys, Need::Records, |records, changes| {
            assert_eq!(records.len(), choices.len());
            for (at, choice) in choices.iter().enumerate() {
                match choice {
                    0 => changes.put(at, &value, None),
                    1 => changes.delete(at),
                    _ => {}
                }
            }
        });
        assert_eq!(updated, Ok(()));
        for (name, choice) in names.into_iter().zip(choices) {
            let after = match choice {
                0 => Some(Some(value.clone())),
                1 => Some(None),
                _ => None,
            };
            self.note(table, name.clone(), after, None);
            // The version that a key got in the batch is read back. The model checks that
            // versions rise.
            if let Some(twinned) = self.twin.records.get_mut(&(table, name.clone())) {
                let key = common::key(&store, &name);
                let read = self.server.worker.read_one(table, key, |r| r.map(|r| r.version));
                twinned.version = read.unwrap().unwrap_or(twinned.version);
            }
        }
    }

    fn delete_blindly(&mut self) {
        let (table, name) = (self.table(), self.name());
        let store = self.server.store.clone();
        let key = common::key(&store, &name);
        let deleted =
            self.server.worker.update(table, &[key], Need::Nothing, |_, changes| changes.delete(0));
        assert_eq!(deleted, Ok(()));
        self.twin.records.remove(&(table, name));
    }

    fn expire(&mut self) {
        let table = self.table();
        self.expire_table(table);
    }

    fn expire_table(&mut self, table: TableId) {
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            self.server.turn();
            cursor = self.server.worker.expire(table, from, 50);
        }
        let now = self.server.now;
        self.twin
            .records
            .retain(|(of, _), record| *of != table || record.expiry.is_none_or(|at| at > now));
    }

    fn scan(&mut self) {
        let table = self.table();
        let mut seen = BTreeMap::new();
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            self.server.turn();
            let step = self.server.worker.scan(table, from, 100, |key, record| {
                let twice = seen.insert(key.to_vec(), record.value.bytes.to_vec());
                assert_eq!(twice, None, "a record is shown once");
            });
            cursor = step.unwrap();
        }
        let now = self.server.now;
        let ours = self.twin.records.iter().filter(|((of, _), _)| *of == table);
        let live = ours.filter(|(_, record)| record.expiry.is_none_or(|at| at > now));
        let expected: BTreeMap<_, _> =
            live.map(|((_, key), record)| (key.clone(), record.value.clone())).collect();
        assert_eq!(seen, expected);
    }

    /// Compares the store's counts with the model.
    fn recount(&mut self) {
        // Some of the expired records were touched and have been reclaimed.
        (0..3).for_each(|table| self.expire_table(TableId(table)));
        self.server.turn();
        for table in 0..3 {
            let ours = self.twin.records.keys().filter(|(of, _)| of.0 == table).count() as u64;
            assert_eq!(self.server.worker.table_records(TableId(table)), ours);
        }
        let bytes: usize = self
            .twin
            .records
            .iter()
            .map(|((_, key), record)| {
                let has_expiry = record.expiry.is_some();
                wire::entry::encoded_bytes(key.len(), record.value.len(), usize::from(has_expiry))
            })
            .sum();
        assert_eq!(self.server.store.usage().log.live_bytes, bytes as u64, "live bytes recounted");
        self.server.check_live_bytes();
        self.count_by_slot(bytes as u64);
    }

    /// Compares the counts slot by slot, in steps of any length.
    fn count_by_slot(&mut self, bytes: u64) {
        let worker = &self.server.worker;
        let (mut counted, mut counted_bytes) = (Vec::new(), 0);
        let mut from = Some(Slot(0));
        while let Some(slot) = from {
            let step = self.random.usize(1..2000);
            from = worker.count_slots(slot, step, |slot, table, count| {
                counted_bytes += count.bytes;
                if count.records > 0 {
                    counted.push((table, slot, count.records as u32));
                }
            });
            assert!(from.is_none_or(|next| next > slot), "the scan proceeds");
        }
        counted.sort();
        assert_eq!(counted, worker.counts(HashRange::ALL));
        assert_eq!(counted_bytes, bytes);
    }
}

#[test]
fn random_operations_do_what_a_sorted_map_does() {
    for (seed, keys) in [(1, 20), (2, 300), (3, 5000)] {
        let mut judge = Judge::new(seed, keys);
        for _ in 0..20 {
            for _ in 0..500 {
                judge.step();
            }
            judge.recount();
        }
    }
}

#[test]
fn versions_of_a_key_rise_with_its_writes() {
    let mut server = Server::serving();
    let mut before = Version(0);
    for round in 0..100 {
        match round % 3 {
            0 => server.set("a", "1").unwrap(),
            1 => server.set_all(&[("b", "1"), ("a", "2"), ("c", "3")]).unwrap(),
            _ => drop(server.delete("a").unwrap()),
        }
        if let Some(version) = server.version("a") {
            assert!(version > before);
            assert!(version <= server.store.version(), "the counter bounds every version");
            before = version;
        }
    }
}

#[test]
fn an_expired_record_is_invisible_at_once_and_to_everybody() {
    let store = common::store(64 << 20, 2);
    let mut workers = [0, 1].map(|reactor| store.worker(types::ReactorId(reactor)));
    let all = common::tablet(HashRange::ALL, TabletState::Serving);
    store.publish(store::TabletMap::new(vec![all]));
    workers[0].begin_turn(NOW);
    workers[1].begin_turn(NOW);
    let key = common::key(&store, b"a");
    workers[0].put(TABLE, key, b"1", Some(UnixMillis(NOW.0 + 1))).unwrap();
    assert_eq!(workers[1].read_one(TABLE, key, |record| record.is_some()), Ok(true));
    workers[0].begin_turn(UnixMillis(NOW.0 + 1));
    assert_eq!(workers[0].read_one(TABLE, key, |record| record.is_some()), Ok(false));
    // The other worker is still in an earlier turn, and must not see the record alive again.
    assert_eq!(workers[1].read_one(TABLE, key, |record| record.is_some()), Ok(false));
    workers[1].begin_turn(NOW);
    assert_eq!(workers[1].read_one(TABLE, key, |record| record.is_some()), Ok(false));
}

#[test]
fn an_expiry_to_come_stays_with_its_record_wherever_that_goes() {
    let mut moving = common::Move::flip(|source| {
        let at = Some(UnixMillis(NOW.0 + 100_000));
        source.set_with_expiry("{tag}", "1", at).unwrap();
        // A thousand neighbors: the leaf grows and is divided.
        (0..1000).for_each(|number| source.set(&format!("{{tag}}{number}"), "2").unwrap());
        assert_eq!(source.get("{tag}"), value("1"), "visible after its slot has grown");
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            source.turn();
            cursor = source.worker.expire(TABLE, from, 1000);
        }
        assert_eq!(source.get("{tag}"), value("1"), "not reclaimed before its time");
    });
    moving.priority_pull("{tag}");
    assert_eq!(moving.target.get("{tag}"), value("1"), "visible where it arrived");
    let (_, mut target) = moving.finish();
    let key = target.key("{tag}");
    target.turn();
    let expiry = target.worker.read_one(TABLE, key, |record| record.and_then(|r| r.expiry));
    assert_eq!(expiry, Ok(Some(UnixMillis(NOW.0 + 100_000))));
    target.now = UnixMillis(NOW.0 + 100_000);
    assert_eq!(target.get("{tag}"), Ok(None));
    assert_eq!(target.get("{tag}1"), value("2"));
}

#[test]
fn what_no_entry_can_hold_is_refused_and_changes_nothing() {
    let mut server = Server::serving();
    server.set("a", "1").unwrap();
    let long = vec![0; types::limits::VALUE_BYTES_MAX + 1];
    let key = server.key("a");
    assert_eq!(server.worker.put(TABLE, key, &long, None), Err(Stall::TooLarge));
    let update = server.worker.update(TABLE, &[key], Need::Records, |_, changes| {
        changes.put(0, &long, None);
    });
    assert_eq!(update, Err(Stall::TooLarge));
    let half = vec![0; types::limits::VALUE_BYTES_MAX / 2];
    let keys = ["a", "b", "c", "d"].map(|name| server.key(name));
    let update = server.worker.update(TABLE, &keys, Need::Nothing, |_, changes| {
        for at in 0..keys.len() {
            changes.put(at, &half, None);
        }
    });
    assert_eq!(update, Err(Stall::TooLarge), "a command's values stand in one segment");
    let name = vec![b'k'; types::limits::KEY_BYTES_MAX + 1];
    let key = common::key(&server.store, &name);
    assert_eq!(server.worker.put(TABLE, key, b"1", None), Err(Stall::TooLarge));
    assert_eq!(server.get("a"), value("1"));
    assert_eq!(server.records(), 1);
}

#[test]
fn a_hash_outside_of_all_tablets_is_not_ours() {
    let mut server = Server::new(64 << 20);
    let half = HashRange::new(KeyHash(0), KeyHash(u64::MAX / 2));
    server.store.publish(store::TabletMap::new(vec![common::tablet(half, TabletState::Serving)]));
    server.turn();
    let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    for name in &names {
        let is_ours = half.contains(server.key(name).hash);
        let expected = if is_ours { Ok(()) } else { Err(Stall::NotOwned) };
        assert_eq!(server.set(name, "1"), expected);
        assert_eq!(server.get(name).is_ok(), is_ours);
    }
}

#[test]
fn tablets_may_cut_a_slot() {
    let mut server = Server::new(64 << 20);
    let cut = server.key("{tag}5").hash;
    let low = HashRange::new(KeyHash(0), cut);
    let high = HashRange::new(KeyHash(cut.0 + 1), KeyHash(u64::MAX));
    server.store.publish(store::TabletMap::new(vec![
        common::tablet(high, TabletState::Leaving),
        common::tablet(low, TabletState::Serving),
    ]));
    server.turn();
    for number in 0..50 {
        let name = format!("{{tag}}{number}");
        let is_ours = server.key(&name).hash <= cut;
        assert_eq!(server.set(&name, "1").is_ok(), is_ours, "{name}");
    }
}

#[test]
fn an_expired_record_is_reclaimed_when_it_is_touched() {
    type Touch = fn(&mut Server);
    let touches: [(&str, Touch); 3] = [
        ("read", |server| assert_eq!(server.get("a"), Ok(None))),
        ("update", |server| {
            let key = common::key(&server.store, b"a");
            let update = server.worker.update_one(TABLE, key, Need::Records, |record, changes| {
                // As DEL does.
                record.map(|_| changes.delete(0)).is_some()
            });
            assert_eq!(update, Ok(false));
        }),
        ("walk", |server| {
            let mut cursor = Some(KeyHash(0));
            while let Some(from) = cursor {
                let shown = |_: &[u8], _: store::Record<'_>| panic!("it has expired");
                cursor = server.worker.scan(TABLE, from, 1000, shown).expect("all of it is here");
            }
        }),
    ];
    for (name, touch) in touches {
        let mut server = Server::serving();
        server.set_with_expiry("a", "1", Some(UnixMillis(NOW.0 + 10))).unwrap();
        server.now = UnixMillis(NOW.0 + 10);
        server.turn();
        assert!(!server.worker.is_empty(HashRange::ALL));
        touch(&mut server);
        assert!(server.worker.is_empty(HashRange::ALL), "{name}");
        assert_eq!(server.store.expired(), 1, "{name}");
    }
}

#[test]
fn a_recorded_update_that_is_not_made_writes_nothing() {
    let mut server = Server::serving();
    let (key, completion) = (server.key("a"), server.key("completion"));
    for is_made in [false, true] {
        let done = server.worker.update_recorded(
            &[TableKey { table: TABLE, key }],
            |_| true,
            completion,
            |_, changes| {
                changes.put(0, b"value", None);
                is_made
            },
            |_, _, value| value.extend_from_slice(b"reply"),
        );
        assert_eq!(done, Ok(is_made));
        for (table, key) in [(TABLE, key), (TableId::COMPLETIONS, completion)] {
            let exists = server.worker.read_one(table, key, |record| record.is_some());
            assert_eq!(exists, Ok(is_made), "{table:?}");
        }
    }
}

#[test]
#[should_panic = "tablets overlap"]
fn publishing_tablets_that_overlap_is_our_bug() {
    let whole = || tablet(HashRange::ALL, TabletState::Serving);
    TabletMap::new(vec![whole(), whole()]);
}

#[test]
fn a_slot_that_two_tablets_share_is_counted_once() {
    let mut server = common::Server::new(64 << 20);
    let hash = types::key_hash(server.store.seed(), b"key");
    let halves = [(KeyHash(0), KeyHash(hash.0 - 1)), (hash, HashRange::ALL.last())];
    let halves = halves.map(|(first, last)| HashRange::new(first, last));
    let tablets = halves.map(|range| common::tablet(range, TabletState::Serving));
    server.store.publish(TabletMap::new(tablets.to_vec()));
    server.turn();
    server.worker.put(TABLE, Key { hash, bytes: b"key" }, b"value", None).expect("there is room");
    assert_eq!(server.worker.table_records(TABLE), 1);
}

#[test]
fn a_record_that_was_replaced_after_a_look_is_not_unlinked() {
    let mut server = Server::serving();
    let key = server.key("page");
    let put = |server: &mut Server, bytes: &[u8]| {
        let change = server.worker.update_tables(
            &[TableKey { table: TableId::PAGES, key }],
            |_| false,
            |_, changes| changes.put(0, bytes, None),
        );
        change.unwrap();
        server.worker.updated_keys().version_of(0).unwrap()
    };
    let first = put(&mut server, b"first");
    let second = put(&mut server, b"second");
    let mut pages = server.worker.own_table(TableId::PAGES);
    assert_eq!(pages.unlink(key, first), Ok(false));
    assert_eq!(pages.unlink(key, second), Ok(true));
    assert_eq!(pages.unlink(key, second), Ok(false));
}
