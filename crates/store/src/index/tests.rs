//! The index against a sorted map, single-threaded.

use super::fixture::{EVERYTHING, IndexFixture, word_of};
use super::*;
use crate::{address::Address, log::Participant};
use std::{collections::BTreeMap, ops::ControlFlow};
use types::HashRange;

/// A hash and a number that its word stores as the address. Two words may share the hash. The
/// number also determines the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Numbered {
    hash: KeyHash,
    number: u64,
}

fn bytes_of(number: u64) -> u32 {
    24 + (number % 1000) as u32
}

/// The model: the word of each record.
#[derive(Default)]
struct Twin {
    words: BTreeMap<Numbered, Word>,
}

/// Index and model, which receive the same changes.
struct Pair {
    fixture: IndexFixture,
    participant: Participant,
    twin: Twin,
}

impl Pair {
    fn new(memory_bytes: usize) -> Pair {
        let fixture = IndexFixture::new(memory_bytes, 1);
        let participant = fixture.participant(0);
        Pair { fixture, participant, twin: Twin::default() }
    }

    /// Address bit that marks replacements.
    const REPLACED: u64 = 1 << 30;

    fn insert(&mut self, key: Numbered) -> Result<(), NoRoom> {
        let Numbered { hash, number } = key;
        let turn = self.participant.turn();
        let mut guard = self.fixture.index.lock(hash, &turn).expect("no other thread locks");
        assert!(guard.covers(hash));
        let word = word_of(hash, number);
        guard.insert(hash, word, bytes_of(number))?;
        self.twin.words.insert(key, word);
        Ok(())
    }

    fn replace(&mut self, key: Numbered) {
        let Numbered { hash, number } = key;
        let Some(word) = self.twin.words.get_mut(&key) else { return };
        let kind = if number % 3 == 0 { WordKind::Tombstone } else { WordKind::Object };
        let new =
            Word::new(hash, kind, Address::from_units(word.address().units() ^ Self::REPLACED));
        let turn = self.participant.turn();
        let mut guard = self.fixture.index.lock(hash, &turn).expect("no other thread locks");
        assert_eq!(guard.find(hash, |found| found == *word), Some(*word));
        guard.replace(hash, (*word, bytes_of(number)), (new, bytes_of(number)));
        *word = new;
    }

    /// Does what the cleaner does with an entry at the record's address, and with a dead one.
    fn redirect(&mut self, key: Numbered) {
        let Numbered { hash, .. } = key;
        let turn = self.participant.turn();
        let locked = self.fixture.index.lock_existing(hash, &turn).expect("no other thread locks");
        let Some(word) = self.twin.words.get_mut(&key) else { return };
        let mut guard = locked.expect("a record has a leaf");
        let copy = Address::from_units(word.address().units() ^ Self::REPLACED);
        let dead = Address::from_units(word.address().units() ^ Self::REPLACED << 1);
        let refused: Result<bool, ()> = guard.redirect(hash, dead, || panic!("a dead entry"));
        assert_eq!(refused, Ok(false));
        assert_eq!(guard.redirect(hash, word.address(), || Err("no room")), Err("no room"));
        assert_eq!(guard.redirect(hash, word.address(), || Ok::<_, ()>(copy)), Ok(true));
        *word = Word::new(hash, word.kind(), copy);
    }

    fn remove(&mut self, key: Numbered) {
        let Numbered { hash, number } = key;
        let Some(word) = self.twin.words.remove(&key) else { return };
        let turn = self.participant.turn();
        let mut guard = self.fixture.index.lock(hash, &turn).expect("no other thread locks");
        guard.remove(hash, word, bytes_of(number));
    }

    fn end_turn(&mut self) {
        self.participant.begin_turn();
        self.fixture.log.reclamation().collect(usize::MAX);
    }

    /// Returns the words of the range in the order of the model, by walking in steps of this
    /// budget.
    fn walk(&self, range: HashRange, budget: WalkBudget) -> Vec<(KeyHash, Word)> {
        let turn = self.participant.turn();
        let mut words = Vec::new();
        let mut rest = Some(range);
        let mut border = range.first();
        while let Some(range) = rest {
            let mut step = Vec::new();
            let next = self.fixture.index.walk(range, budget, &turn, |hash, word| {
                step.push((hash, word));
                ControlFlow::Continue(())
            });
            if let Some(next) = next {
                assert!(next > border, "a walk makes progress");
                assert!(step.iter().all(|(hash, _)| *hash < next), "a step ends before the next");
                border = next;
            }
            words.append(&mut step);
            rest = next.map(|next| HashRange::new(next, range.last()));
        }
        words
    }

    fn check_walk(&self, range: HashRange, budget: WalkBudget) {
        let mut walked = self.walk(range, budget);
        walked.sort_by_key(|(hash, word)| (*hash, word.address()));
        // Words that share their first 38 bits with an end of the range are met as well.
        let unseen = (1u64 << 26) - 1;
        let first = KeyHash(range.first().0 & !unseen);
        let last = KeyHash(range.last().0 | unseen);
        let mut expected: Vec<(KeyHash, Word)> = self
            .twin
            .words
            .range(Numbered { hash: first, number: 0 }..=Numbered { hash: last, number: u64::MAX })
            .map(|(Numbered { hash, .. }, word)| (KeyHash(hash.0 & !unseen), *word))
            .collect();
        expected.sort_by_key(|(hash, word)| (*hash, word.address()));
        assert_eq!(walked, expected, "{range} {budget:?}");
    }

    fn check_totals(&self) {
        let turn = self.participant.turn();
        let mut totals: BTreeMap<Slot, (u64, u64)> = BTreeMap::new();
        for (Numbered { hash, number }, word) in &self.twin.words {
            let (records, bytes) = totals.entry(hash.slot()).or_default();
            *records += u64::from(word.kind() == WordKind::Object);
            *bytes += u64::from(bytes_of(*number));
        }
        for (slot, (records, bytes)) in totals {
            assert_eq!(self.fixture.index.records(slot, &turn), records, "{slot:?}");
            assert_eq!(self.fixture.index.bytes(slot, &turn), bytes, "{slot:?}");
        }
    }

    /// Checks that every record is found, and that an absent one is not.
    fn check_finds(&self) {
        let turn = self.participant.turn();
        for (Numbered { hash, .. }, word) in &self.twin.words {
            let find = self.fixture.index.find(*hash, &turn, |found| found == *word);
            assert_eq!(find, Find::Hit(*word));
            assert_eq!(self.fixture.index.find(*hash, &turn, |_| false), Find::Miss);
        }
    }

    fn check(&self) {
        self.check_finds();
        self.check_totals();
        self.check_walk(HashRange::ALL, EVERYTHING);
    }
}

fn random_budget(random: &mut fastrand::Rng) -> WalkBudget {
    WalkBudget { entries: random.usize(1..50), buckets: random.usize(1..50) }
}

/// Returns a hash in a few slots: `width` bits below the slot are random, the others zero.
fn random_record(random: &mut fastrand::Rng, slots: u16, width: u32) -> Numbered {
    let slot = Slot(random.u16(0..slots) * 5 + 7);
    let below = (random.u64(..) >> (64 - width)) << (50 - width);
    let hash = KeyHash(slot.first_hash().0 | below);
    Numbered { hash, number: random.u64(0..1 << 20) }
}

/// Random hashes, dense enough for directories of directories.
#[test]
fn random_changes_leave_the_index_like_its_sorted_twin() {
    for (seed, slots, width, steps) in
        [(1, 3, 50, 4_000), (2, 1, 30, 12_000), (3, 2, 14, 5_000), (4, 9000, 50, 3_000)]
    {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new(64 << 20);
        let mut known: Vec<Numbered> = Vec::new();
        for step in 0..steps {
            // Grows, then shrinks.
            let inserts = if step < steps * 2 / 3 { 7 } else { 2 };
            match random.u32(0..12) {
                choice if choice < inserts => {
                    let record = random_record(&mut random, slots.min(3000), width);
                    if !pair.twin.words.contains_key(&record) {
                        pair.insert(record).expect("there is room");
                        known.push(record);
                    }
                }
                choice if choice < 9 && !known.is_empty() => {
                    let record = known[random.usize(0..known.len())];
                    pair.remove(record);
                }
                _ if !known.is_empty() => {
                    let record = known[random.usize(0..known.len())];
                    if random.bool() { pair.replace(record) } else { pair.redirect(record) }
                }
                _ => {}
            }
            if step % 500 == 0 {
                pair.end_turn();
                pair.check();
                let mut ends = [random.u64(..), random.u64(..)].map(|end| end >> 6);
                ends.sort_unstable();
                let range = HashRange::new(KeyHash(ends[0]), KeyHash(ends[1]));
                pair.check_walk(range, random_budget(&mut random));
                pair.check_walk(HashRange::ALL, random_budget(&mut random));
            }
        }
        pair.check();
    }
}

#[test]
fn only_a_leaf_that_exists_is_locked_for_a_cleaner() {
    let fixture = IndexFixture::new(64 << 20, 1);
    let participant = fixture.participant(0);
    let turn = participant.turn();
    let hash = Slot(3).first_hash();
    assert!(fixture.index.lock_existing(hash, &turn).expect("no other thread locks").is_none());
    assert!(!fixture.index.is_used(Slot(3)), "nothing is created");
    let held = fixture.index.lock(hash, &turn).expect("no other thread locks");
    assert!(matches!(fixture.index.lock_existing(hash, &turn), Err(LockError::Contended)));
    drop(held);
    assert!(fixture.index.lock_existing(hash, &turn).expect("it is unlocked").is_some());
}

#[test]
#[should_panic = "is not in"]
fn searching_a_leaf_for_a_hash_of_another_is_our_bug() {
    let fixture = IndexFixture::new(64 << 20, 1);
    let participant = fixture.participant(0);
    let turn = participant.turn();
    let guard = fixture.index.lock(KeyHash(0), &turn).expect("no other thread locks");
    guard.find(KeyHash(u64::MAX), |_| true);
}
