//! Lock-free readers against writers, explored by shuttle: another thread may run between any two
//! accesses to a cell.

use super::fixture::{EVERYTHING, IndexFixture, word_of};
use super::*;
use crate::log::Participant;
use shuttle::{check_pct, check_random, thread};
use std::ops::ControlFlow;
use types::HashRange;

/// Runs a model under random and priority-driven schedules.
fn explore(schedules: usize, model: fn()) {
    check_random(model, schedules);
    check_pct(model, schedules, 3);
}

/// Returns a hash in one slot. Its tag differs from the others' from bit `shift` on.
fn hash(number: u64, shift: u32) -> KeyHash {
    KeyHash(Slot(77).first_hash().0 | number << (26 + shift))
}

fn insert(fixture: &IndexFixture, reactor: &mut Participant, hash: KeyHash, number: u64) {
    loop {
        reactor.begin_turn();
        fixture.log.reclamation().collect(usize::MAX);
        let turn = reactor.turn();
        if let Ok(mut guard) = fixture.index.lock(hash, &turn) {
            guard.insert(hash, word_of(hash, number), 8).expect("there is room");
            return;
        }
    }
}

/// Checks that records present throughout are found and walked, and that an absent one is not
/// found.
fn look(fixture: &IndexFixture, reactor: &mut Participant, hashes: &[KeyHash], absent: KeyHash) {
    reactor.begin_turn();
    let turn = reactor.turn();
    let mut met = vec![false; hashes.len()];
    let end = fixture.index.walk(HashRange::ALL, EVERYTHING, &turn, |_, word| {
        let number = word.address().units() as usize;
        if let Some(met) = met.get_mut(number) {
            *met = true;
        }
        ControlFlow::Continue(())
    });
    assert_eq!(end, None);
    assert!(met.iter().all(|met| *met), "a walk misses a record that was there throughout");
    for (number, &hash) in hashes.iter().enumerate() {
        let word = word_of(hash, number as u64);
        let found = fixture.index.find(hash, &turn, |found| found == word);
        assert_eq!(found, Find::Hit(word), "a record is missed that was there throughout");
    }
    let found = fixture.index.find(absent, &turn, |_| true);
    assert!(matches!(found, Find::Miss | Find::Contended), "a missing record is found");
}

/// Runs a reader while a writer inserts `added` records beside `kept` ones; tags differ from
/// `shift` on.
fn grow_under_a_reader(kept: u64, added: u64, shift: u32) {
    let fixture = Arc::new(IndexFixture::new(48 << 20, 2));
    let mut writer = fixture.participant(0);
    let mut reader = fixture.participant(1);
    let hashes: Vec<KeyHash> = (0..kept).map(|number| hash(number * 2, shift)).collect();
    for (number, &hash) in hashes.iter().enumerate() {
        insert(&fixture, &mut writer, hash, number as u64);
    }
    let shared = Arc::clone(&fixture);
    let reading = thread::spawn(move || {
        look(&shared, &mut reader, &hashes, hash(1, shift));
        look(&shared, &mut reader, &hashes, hash(1, shift));
        reader.sleep();
    });
    for number in 0..added {
        insert(&fixture, &mut writer, hash(number * 2 + 3, shift), 1000 + number);
    }
    reading.join().expect("the reader finds the records");
    let turn = writer.turn();
    assert_eq!(fixture.index.records(Slot(77), &turn), kept + added);
}

#[test]
fn a_reader_misses_nothing_while_a_leaf_grows() {
    // Tags spread over the whole leaf, which grows from one bucket to three.
    explore(400, || grow_under_a_reader(5, 9, 19));
}

#[test]
fn a_reader_misses_nothing_while_a_leaf_is_divided() {
    // Tags that share all but their last bits: no leaf is large enough, so it becomes
    // directories.
    explore(30, || grow_under_a_reader(13, 3, 2));
}

#[test]
fn a_reader_misses_nothing_while_words_move_within_a_leaf() {
    // These words have their home in the second of four buckets, which is full. Inserts into the
    // first bucket, which is full as well, move them onward.
    explore(1000, || {
        let fixture = Arc::new(IndexFixture::new(48 << 20, 2));
        let mut writer = fixture.participant(0);
        let mut reader = fixture.participant(1);
        fixture.index.reserve(Slot(77), 20, &writer.turn()).expect("there is room");
        let hashes: Vec<KeyHash> = (0..8).map(|number| hash(0x6_0000 + number, 4)).collect();
        for (number, &hash) in hashes.iter().enumerate() {
            insert(&fixture, &mut writer, hash, number as u64);
        }
        (0..8).for_each(|number| insert(&fixture, &mut writer, hash(number, 4), 1000 + number));
        let shared = Arc::clone(&fixture);
        let reading = thread::spawn(move || {
            look(&shared, &mut reader, &hashes, hash(100, 4));
            reader.sleep();
        });
        (8..14).for_each(|number| insert(&fixture, &mut writer, hash(number, 4), 1000 + number));
        reading.join().expect("the reader finds the records");
    });
}

#[test]
fn a_reader_finds_what_is_removed_and_inserted_elsewhere_while_the_leaf_is_locked() {
    explore(400, || {
        let fixture = Arc::new(IndexFixture::new(48 << 20, 2));
        let mut writer = fixture.participant(0);
        let mut reader = fixture.participant(1);
        fixture.index.reserve(Slot(77), 20, &writer.turn()).expect("there is room");
        // The ninth word is in the bucket after its home.
        let hashes: Vec<KeyHash> = (0..9).map(|number| hash(number, 4)).collect();
        for (number, &hash) in hashes.iter().enumerate() {
            insert(&fixture, &mut writer, hash, number as u64);
        }
        let (first, last) =
            ((hashes[0], word_of(hashes[0], 0)), (hashes[8], word_of(hashes[8], 8)));
        let shared = Arc::clone(&fixture);
        let reading = thread::spawn(move || {
            let found = shared.index.find(last.0, &reader.turn(), |word| word == last.1);
            assert_eq!(found, Find::Hit(last.1), "a miss is believed while the leaf is locked");
            reader.sleep();
        });
        let turn = writer.turn();
        let mut guard = fixture.index.lock(first.0, &turn).expect("no other thread locks");
        guard.remove(first.0, first.1, 8);
        guard.remove(last.0, last.1, 8);
        guard.insert(last.0, last.1, 8).expect("there is room");
        std::mem::drop(guard);
        reading.join().expect("the reader finds the records");
    });
}

#[test]
fn two_writers_of_a_leaf_lose_nothing() {
    explore(300, || {
        let fixture = Arc::new(IndexFixture::new(48 << 20, 2));
        let writers: Vec<_> = (0..2u16)
            .map(|writer| {
                let fixture = Arc::clone(&fixture);
                thread::spawn(move || {
                    let mut reactor = fixture.participant(writer);
                    for step in 0..5 {
                        let number = step * 2 + u64::from(writer);
                        insert(&fixture, &mut reactor, hash(number, 20), number);
                    }
                    reactor
                })
            })
            .collect();
        let mut reactors: Vec<Participant> =
            writers.into_iter().map(|writer| writer.join().expect("it inserts")).collect();
        let hashes: Vec<KeyHash> = (0..10).map(|number| hash(number, 20)).collect();
        look(&fixture, &mut reactors[0], &hashes, hash(11, 20));
        assert_eq!(fixture.index.records(Slot(77), &reactors[0].turn()), 10);
    });
}

#[test]
fn two_records_that_change_together_are_seen_together() {
    explore(400, || {
        let fixture = Arc::new(IndexFixture::new(48 << 20, 2));
        let mut writer = fixture.participant(0);
        let mut reader = fixture.participant(1);
        let hashes = [hash(0, 0), KeyHash(Slot(78).first_hash().0)];
        hashes.iter().for_each(|&hash| insert(&fixture, &mut writer, hash, 0));
        let shared = Arc::clone(&fixture);
        let reading = thread::spawn(move || {
            for _ in 0..3 {
                reader.begin_turn();
                let turn = reader.turn();
                let states = hashes.map(|hash| shared.index.sequence(hash, &turn));
                let found = hashes.map(|hash| shared.index.find(hash, &turn, |_| true));
                let [Some(first), Some(second)] = states else { continue };
                if [first, second].iter().all(|state| shared.index.is_unchanged(state)) {
                    let numbers = found.map(|found| match found {
                        Find::Hit(word) => word.address().units(),
                        Find::Miss | Find::Contended => panic!("it is there throughout"),
                    });
                    assert_eq!(numbers[0], numbers[1], "half of a change is seen");
                }
            }
        });
        for number in 1..3 {
            let turn = writer.turn();
            let locked =
                hashes.map(|hash| fixture.index.lock(hash, &turn).expect("no other thread locks"));
            for (mut guard, hash) in locked.into_iter().zip(hashes) {
                let (old, new) = (word_of(hash, number - 1), word_of(hash, number));
                guard.replace(hash, (old, 8), (new, 8));
                std::mem::drop(guard);
            }
        }
        reading.join().expect("the reader sees whole changes");
    });
}
