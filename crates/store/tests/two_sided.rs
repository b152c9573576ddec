//! Two-sided reads: the target's answer, and the source's copy where the target has nothing.

mod common;

use common::{Answer, Move, NOW, Server, TABLE, value};
use fastrand::Rng;
use std::collections::BTreeMap;
use store::{NotHereYet, RangeClock, Stall, TabletState};
use types::{HashRange, MigrationId, OwnershipEpoch, UnixMillis};

/// The answer of one side to a read.
type Side = Result<Result<Option<Vec<u8>>, NotHereYet>, Stall>;

fn ask_target(target: &mut Server, name: &str) -> Side {
    let key = target.key(name);
    target.turn();
    target
        .worker
        .read_if_here(TABLE, key, |record| record.map(|record| record.value.bytes.to_vec()))
}

/// Returns value and expiry of the source's copy; `None` if the source has no copy of the range.
fn ask_source(source: &mut Server, name: &str) -> Option<Option<(Vec<u8>, Option<UnixMillis>)>> {
    let key = source.key(name);
    source.turn();
    let copied = source.worker.read_copy(TABLE, key, |record| {
        record.map(|record| (record.value.bytes.to_vec(), record.expiry))
    });
    copied.unwrap()
}

/// Combines both answers as a client does.
fn read(moving: &mut Move, name: &str) -> Answer {
    match ask_target(&mut moving.target, name)? {
        Ok(value) => Ok(value),
        Err(not_here) => {
            let copied = ask_source(&mut moving.source, name).expect("the source has the copy");
            Ok(copied.filter(|(_, at)| at.is_none_or(|at| at > not_here.clock)).map(|it| it.0))
        }
    }
}

fn with(pairs: &[(&str, &str)]) -> Move {
    Move::flip(|source| {
        for (name, value) in pairs {
            source.set(name, value).unwrap();
        }
    })
}

#[test]
fn a_record_that_has_not_arrived_is_read_at_the_source() {
    let mut moving = with(&[("a", "1")]);
    let (migration, epoch) = (MigrationId(1), OwnershipEpoch(1));
    let not_here = NotHereYet { migration, epoch, clock: NOW };
    assert_eq!(ask_target(&mut moving.target, "a"), Ok(Err(not_here)));
    assert_eq!(ask_source(&mut moving.source, "a"), Some(Some((b"1".to_vec(), None))));
    assert_eq!(ask_target(&mut moving.target, "b"), Ok(Err(not_here)));
    assert_eq!(ask_source(&mut moving.source, "b"), Some(None));
}

#[test]
fn whatever_the_target_has_counts() {
    let mut moving = with(&[("written", "1"), ("deleted", "1"), ("pulled", "1")]);
    moving.target.set("written", "2").unwrap();
    moving.target.delete_blindly("deleted").unwrap();
    moving.priority_pull("pulled");
    moving.priority_pull("absent");
    for (name, expected) in [
        ("written", value("2")),
        ("deleted", Ok(None)),
        ("pulled", value("1")),
        ("absent", Ok(None)),
    ] {
        let expected = expected.map(Ok);
        assert_eq!(ask_target(&mut moving.target, name), expected, "{name}");
    }
}

#[test]
fn below_the_progress_the_target_alone_knows() {
    let mut moving = with(&[("a", "1"), ("b", "1")]);
    moving.replay_all();
    moving.advance_all();
    moving.target.delete("a").unwrap();
    while moving.target.worker.sweep(&moving.arrival, 2) {}
    for (name, expected) in [("a", Ok(None)), ("b", value("1")), ("c", Ok(None))] {
        let expected = expected.map(Ok);
        assert_eq!(ask_target(&mut moving.target, name), expected, "{name}");
    }
}

#[test]
fn a_flushed_table_has_no_record_at_the_source() {
    let mut moving = with(&[("a", "1")]);
    moving.arrival.flush_table(TABLE);
    assert_eq!(ask_target(&mut moving.target, "a"), Ok(Ok(None)));
}

#[test]
fn a_suspended_range_is_not_read_at_the_source() {
    let mut moving = with(&[("a", "1")]);
    moving.arrival.suspend(true);
    assert_eq!(ask_target(&mut moving.target, "a"), Err(Stall::Held));
}

#[test]
fn the_targets_clock_decides_whether_the_sources_record_has_expired() {
    let lives = UnixMillis(NOW.0 + 1_000);
    let mut moving = Move::flip(|source| {
        source.set_with_expiry("a", "1", Some(lives)).unwrap();
    });
    // The source's clock has passed the expiry, the target's has not.
    moving.source.now = UnixMillis(lives.0 + 1);
    assert_eq!(read(&mut moving, "a"), value("1"));
    moving.source.now = NOW;
    moving.target.now = lives;
    assert_eq!(read(&mut moving, "a"), Ok(None));
}

#[test]
fn a_record_that_expires_at_the_target_is_not_looked_for_at_the_source() {
    let mut moving = with(&[("a", "old")]);
    let until = UnixMillis(NOW.0 + 10);
    moving.target.set_with_expiry("a", "new", Some(until)).unwrap();
    moving.target.now = until;
    for _ in 0..3 {
        assert_eq!(ask_target(&mut moving.target, "a"), Ok(Ok(None)));
    }
}

#[test]
fn only_a_leaving_range_is_a_copy() {
    let mut server = Server::serving();
    server.set("a", "1").unwrap();
    for state in [TabletState::Serving, TabletState::Frozen] {
        server.publish(state);
        assert_eq!(ask_source(&mut server, "a"), None);
    }
    server.publish(TabletState::Leaving);
    assert!(ask_source(&mut server, "a").is_some());
    server.clock = RangeClock::OWN;
    server.publish(TabletState::Serving);
    assert_eq!(ask_source(&mut server, "a"), None);
}

/// The records that exist, with their expiry times.
type Model = BTreeMap<String, (String, Option<UnixMillis>)>;

/// Number of keys of a random move: few, so that most of them are changed several times.
const KEYS: u64 = 12;

/// A move with random writes, deletes, pulls and times, and the records that must exist.
struct RandomMove {
    moving: Move,
    model: Model,
    random: Rng,
    /// Pulled partitions that are not replayed.
    pulled: Vec<(Vec<u8>, u16)>,
}

impl RandomMove {
    fn begin(seed: u64) -> RandomMove {
        let (mut random, mut model) = (Rng::with_seed(seed), Model::new());
        let moving = Move::flip(|source| {
            for _ in 0..KEYS {
                let name = name(&mut random);
                let expiry = expiry(&mut random, NOW);
                source.set_with_expiry(&name, "source", expiry).unwrap();
                model.insert(name, ("source".to_owned(), expiry));
            }
        });
        RandomMove { moving, model, random, pulled: Vec::new() }
    }

    fn now(&self) -> UnixMillis {
        self.moving.target.now
    }

    /// Takes one random step.
    fn step(&mut self, number: u64) {
        let name = name(&mut self.random);
        match self.random.u8(..8) {
            0 | 1 => {
                let now = self.now();
                let (text, expiry) = (number.to_string(), expiry(&mut self.random, now));
                self.moving.target.set_with_expiry(&name, &text, expiry).unwrap();
                self.model.insert(name, (text, expiry));
            }
            2 => {
                self.moving.target.delete_blindly(&name).unwrap();
                self.model.remove(&name);
            }
            3 => self.moving.priority_pull(&name),
            4 => self.moving.target.now.0 += self.random.u64(..40),
            5 => {
                let partition = self.random.u16(..4);
                self.pull(partition);
            }
            6 => self.replay(),
            _ => while self.moving.target.worker.sweep(&self.moving.arrival, 2) {},
        }
    }

    /// Pulls a whole partition at the source.
    fn pull(&mut self, partition: u16) {
        let range = HashRange::ALL.divide(4)[usize::from(partition)];
        let (mut batch, mut cursor) = (Vec::new(), Some(range.first()));
        while let Some(from) = cursor {
            self.moving.source.turn();
            cursor = self.moving.source.worker.collect(range, from, 500, &mut batch);
        }
        self.pulled.push((batch, partition));
    }

    /// Replays what was pulled last, and then advances the progress.
    fn replay(&mut self) {
        let Some((batch, partition)) = self.pulled.pop() else { return };
        self.moving.target.replay(&self.moving.arrival, &batch);
        self.moving.arrival.advance(partition, None);
    }

    fn expected(&self, name: &str) -> Answer {
        let now = self.now();
        let record = self.model.get(name).filter(|(_, at)| at.is_none_or(|at| at > now));
        Ok(record.map(|(text, _)| text.clone().into_bytes()))
    }
}

fn name(random: &mut Rng) -> String {
    format!("key {}", random.u64(..KEYS))
}

fn expiry(random: &mut Rng, now: UnixMillis) -> Option<UnixMillis> {
    (random.u8(..3) == 0).then(|| UnixMillis(now.0 + 1 + random.u64(..100)))
}

/// Both answers together are the value at every moment of a move.
#[test]
fn a_two_sided_read_returns_the_value_at_every_moment() {
    let (mut here, mut copied) = (0, 0);
    for seed in 0..300 {
        let mut run = RandomMove::begin(seed);
        for number in 0..60 {
            run.step(number);
            for key in 0..KEYS {
                let name = format!("key {key}");
                match ask_target(&mut run.moving.target, &name) {
                    Ok(Ok(_)) => here += 1,
                    Ok(Err(_)) => copied += 1,
                    Err(stall) => panic!("a single thread waits for nothing: {stall:?}"),
                }
                let expected = run.expected(&name);
                assert_eq!(read(&mut run.moving, &name), expected, "seed {seed}: {name}");
            }
        }
    }
    assert!(here > 10_000 && copied > 10_000, "{here} at the target, {copied} at the source");
}
