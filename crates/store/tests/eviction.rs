//! Eviction against a naive model: a sorted map from which evicted records are removed.

mod common;

use common::{NOW, Server, TABLE};
use std::collections::BTreeMap;
use store::{Accessed, Arrival, ArrivalPlan, Evicted, EvictionRule, TabletState};
use types::{EvictionPolicy, HashRange, MigrationId, ServerId, TableId, UnixMillis};
use wire::peer::RecordCounts;

type Expiry = Option<UnixMillis>;

/// A server and the records that it should have, with their expiry.
struct Twins {
    server: Server,
    records: BTreeMap<(TableId, String), Expiry>,
    random: fastrand::Rng,
}

impl Twins {
    fn new(policy: EvictionPolicy) -> Twins {
        let mut server = Server::serving();
        server.store.set_eviction_order(policy.order());
        server.turn();
        Twins { server, records: BTreeMap::new(), random: fastrand::Rng::with_seed(7) }
    }

    fn put(&mut self, table: TableId, name: &str, expiry: Expiry) {
        let key = common::key(&self.server.store, name.as_bytes());
        self.server.turn();
        self.server.worker.put(table, key, b"value", expiry).expect("there is memory");
        self.server.worker.note_written(table, key.hash);
        self.records.insert((table, name.to_owned()), expiry);
    }

    fn read(&mut self, table: TableId, name: &str) -> Option<Expiry> {
        let key = common::key(&self.server.store, name.as_bytes());
        self.server.turn();
        let read = self.server.worker.read_one(table, key, |record| record.map(|it| it.expiry));
        read.expect("the record is here or not")
    }

    /// Fills three tables. A third of the records expires, and many share a slot.
    fn fill(&mut self, count: u64) {
        for number in 0..count {
            let table = TableId(number as u8 % 3);
            let expiry = (number % 3 == 1 || self.random.u32(..4) == 0)
                .then(|| UnixMillis(NOW.0 + 1_000 + self.random.u64(..100_000)));
            let name = match number % 2 {
                0 => format!("{{together}}{number}"),
                _ => number.to_string(),
            };
            self.put(table, &name, expiry);
        }
    }

    /// Evicts about this many records. Returns those that the server has lost, and checks that it
    /// counts as many.
    fn evict(&mut self, policy: EvictionPolicy, count: u64) -> Vec<((TableId, String), Expiry)> {
        let rule = EvictionRule { policy, samples: 5 };
        let (before, mut evicted) = (self.server.store.evicted(), 0);
        while evicted < count {
            self.server.turn();
            let done = self.server.worker.evict(rule, 1, |_, _, _| 0);
            assert!(!done.is_blocked && done.records <= 1, "{done:?}");
            evicted += done.records;
            if done.found_none {
                break;
            }
        }
        let all: Vec<_> = self.records.keys().cloned().collect();
        let mut lost = Vec::new();
        for (table, name) in all {
            match self.read(table, &name) {
                Some(expiry) => assert_eq!(expiry, self.records[&(table, name)]),
                None => lost.push(self.records.remove_entry(&(table, name)).expect("a record")),
            }
        }
        assert_eq!(lost.len() as u64, evicted);
        assert_eq!(self.server.store.evicted() - before, evicted);
        lost
    }
}

const ALL: [EvictionPolicy; 7] = [
    EvictionPolicy::AllKeysLru,
    EvictionPolicy::AllKeysLfu,
    EvictionPolicy::AllKeysRandom,
    EvictionPolicy::VolatileLru,
    EvictionPolicy::VolatileLfu,
    EvictionPolicy::VolatileRandom,
    EvictionPolicy::VolatileTtl,
];

#[test]
fn every_policy_evicts_all_records_that_it_may_and_no_other() {
    for policy in ALL {
        let mut twins = Twins::new(policy);
        twins.fill(900);
        let may_go = |expiry: &Expiry| expiry.is_some() || !policy.is_volatile();
        let expected = twins.records.values().filter(|expiry| may_go(expiry)).count();
        let lost = twins.evict(policy, 100);
        assert!(lost.iter().all(|(_, expiry)| may_go(expiry)), "{policy:?}");
        let rest = twins.evict(policy, u64::MAX);
        assert!(rest.iter().all(|(_, expiry)| may_go(expiry)), "{policy:?}");
        assert_eq!(lost.len() + rest.len(), expected, "{policy:?}");
        assert!(twins.records.values().all(|expiry| !may_go(expiry)), "{policy:?}");
    }
}

#[test]
fn without_a_policy_nothing_is_evicted() {
    let mut twins = Twins::new(EvictionPolicy::NoEviction);
    twins.fill(100);
    let rule = EvictionRule { policy: EvictionPolicy::NoEviction, samples: 5 };
    assert_eq!(twins.server.worker.evict(rule, 1_000_000, |_, _, _| 0), Evicted::default());
    assert!(!twins.server.worker.tracks_access());
}

#[test]
fn records_of_slots_with_many_and_with_few_records_are_evicted_alike() {
    let policy = EvictionPolicy::AllKeysRandom;
    let mut twins = Twins::new(policy);
    twins.fill(6_000);
    let lost = twins.evict(policy, 2_000);
    let together = lost.iter().filter(|((_, name), _)| name.starts_with('{')).count();
    assert!((800..1_200).contains(&together), "{together} of one slot, of 2,000");
    for table in (0..3).map(TableId) {
        let of_table = lost.iter().filter(|((its, _), _)| *its == table).count();
        assert!((550..790).contains(&of_table), "{of_table} of {table:?}, of 2,000");
    }
}

#[test]
fn lru_keeps_the_records_that_were_read_last() {
    let policy = EvictionPolicy::AllKeysLru;
    let mut twins = Twins::new(policy);
    twins.fill(3_000);
    twins.server.now = UnixMillis(NOW.0 + 900);
    let hot = |name: &str| name.ends_with('7');
    for ((table, name), _) in twins.records.clone() {
        if hot(&name) {
            assert!(twins.read(table, &name).is_some());
            let hash = common::key(&twins.server.store, name.as_bytes()).hash;
            twins.server.worker.note_read(table, hash);
        }
    }
    let lost = twins.evict(policy, 2_000);
    let lost = lost.iter().filter(|((_, name), _)| hot(name)).count();
    assert!(lost <= 10, "{lost} of 300, where an eviction at random would take 200");
}

#[test]
fn lfu_keeps_the_records_that_were_read_most_often() {
    let policy = EvictionPolicy::VolatileLfu;
    let mut twins = Twins::new(policy);
    twins.fill(3_000);
    let hot = |name: &str| name.ends_with('3');
    for ((table, name), _) in twins.records.clone() {
        let hash = common::key(&twins.server.store, name.as_bytes()).hash;
        for _ in 0..if hot(&name) { 200 } else { 1 } {
            twins.server.worker.note_read(table, hash);
        }
    }
    let expiring = twins.records.values().flatten().count() as u64;
    let all = twins.records.iter().filter(|((_, name), expiry)| hot(name) && expiry.is_some());
    let all = all.count();
    let lost = twins.evict(policy, expiring / 2);
    let lost = lost.iter().filter(|((_, name), _)| hot(name)).count();
    assert!(100 * lost <= 5 * all, "{lost} of {all}, where an eviction at random would take half");
}

#[test]
fn ttl_evicts_those_that_expire_first() {
    let policy = EvictionPolicy::VolatileTtl;
    let mut twins = Twins::new(policy);
    twins.fill(3_000);
    let expiring = twins.records.values().flatten().count();
    let lost = twins.evict(policy, expiring as u64 / 4);
    let mean = |expiries: Vec<UnixMillis>| {
        expiries.iter().map(|at| at.0 - NOW.0).sum::<u64>() / expiries.len() as u64
    };
    let gone = mean(lost.iter().filter_map(|(_, expiry)| *expiry).collect());
    let kept = mean(twins.records.values().flatten().copied().collect());
    assert!(gone < 30_000 && kept > 50_000, "{gone} ms of those evicted, {kept} of those kept");
}

#[test]
fn a_record_that_has_expired_is_reclaimed_and_not_evicted() {
    let policy = EvictionPolicy::VolatileTtl;
    let mut twins = Twins::new(policy);
    twins.put(TABLE, "soon", Some(UnixMillis(NOW.0 + 10)));
    twins.server.now = UnixMillis(NOW.0 + 20);
    twins.server.turn();
    let rule = EvictionRule { policy, samples: 5 };
    while twins.server.store.expired() == 0 {
        let done = twins.server.worker.evict(rule, 1, |_, _, _| 0);
        assert!(!done.found_none && !done.is_blocked, "{done:?}");
    }
    assert_eq!(twins.server.store.evicted(), 0);
}

#[test]
fn records_that_move_are_not_evicted() {
    let plan = ArrivalPlan {
        migration: MigrationId(1),
        source: ServerId(9),
        range: HashRange::ALL,
        partitions: vec![HashRange::ALL],
        expected: RecordCounts::default(),
        reservation: None,
    };
    let policy = EvictionPolicy::AllKeysRandom;
    let arriving = TabletState::Arriving(Arrival::new(plan).into());
    for state in [TabletState::Frozen, TabletState::Leaving, arriving] {
        let mut twins = Twins::new(policy);
        twins.fill(100);
        twins.server.publish(state.clone());
        let rule = EvictionRule { policy, samples: 5 };
        let evict = || twins.server.worker.evict(rule, 1_000_000, |_, _, _| 0);
        let found_none = std::iter::repeat_with(evict).find(|done| *done != Evicted::default());
        let expected = Evicted { found_none: true, ..Evicted::default() };
        assert_eq!(found_none, Some(expected), "{state:?}");
        twins.server.publish(TabletState::Serving);
        assert_eq!(twins.evict(policy, u64::MAX).len(), 100);
    }
}

#[test]
fn an_access_after_the_sampling_saves_a_record() {
    let policy = EvictionPolicy::AllKeysLru;
    let mut twins = Twins::new(policy);
    let names: Vec<String> = (0..12).map(|number| format!("{{one}}{number}")).collect();
    names.iter().for_each(|name| twins.put(TABLE, name, None));
    twins.server.now = UnixMillis(NOW.0 + 10_000);
    assert_eq!(twins.evict(policy, 1).len(), 1, "the others are candidates");
    twins.server.now = UnixMillis(NOW.0 + 20_000);
    twins.server.turn();
    let saved = twins.records.keys().next().expect("a record").clone();
    let hash = common::key(&twins.server.store, saved.1.as_bytes()).hash;
    twins.server.worker.note_read(TABLE, hash);
    assert_eq!(twins.server.worker.accessed(TABLE, hash), Some(Accessed::Before { millis: 0 }));
    assert_eq!(twins.evict(policy, 10).len(), 10);
    assert!(twins.records.contains_key(&saved));
}
