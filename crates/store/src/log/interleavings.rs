//! Interleavings of reclamation and of segment states, explored by shuttle.

use super::*;
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use shuttle::{check_pct, check_random, thread};
use types::{Incarnation, ReactorId, TypedValue, Version};
use wire::entry::{Body, Dead};

const SCHEDULES: usize = 3_000;

/// Runs a model under random and priority-driven schedules.
fn explore(model: fn()) {
    check_random(model, SCHEDULES);
    check_pct(model, SCHEDULES, 3);
}

/// An owner without items.
struct NoMemory;

impl Reclaim for NoMemory {
    fn reclaim(&self, _number: u64) {}
}

/// Items that are published one after the other; an item is marked when it is freed.
struct Published {
    current: AtomicUsize,
    is_freed: Vec<AtomicBool>,
}

impl Reclaim for Published {
    fn reclaim(&self, number: u64) {
        self.is_freed[number as usize].store(true, Ordering::SeqCst);
    }
}

fn read_in_turns(reactor: &mut Participant, published: &Published, sleeps: bool) {
    for _ in 0..3 {
        reactor.begin_turn();
        let seen = published.current.load(Ordering::SeqCst);
        thread::yield_now();
        let is_freed = published.is_freed[seen].load(Ordering::SeqCst);
        assert!(!is_freed, "freed within a turn that found it");
        if sleeps {
            reactor.sleep();
        }
    }
}

fn replace_and_collect(reactor: &mut Participant, of: &Reclamation, published: &Arc<Published>) {
    for next in 1..published.is_freed.len() {
        reactor.begin_turn();
        let old = published.current.swap(next, Ordering::SeqCst);
        let owner = Arc::clone(published) as Arc<dyn Reclaim>;
        of.retire(owner, old as u64);
        of.collect(1);
    }
    (0..2).for_each(|_| {
        reactor.begin_turn();
        of.collect(usize::MAX);
    });
}

#[test]
fn nothing_is_freed_while_a_turn_that_found_it_goes_on() {
    explore(|| {
        let reclamation = Reclamation::new(3, Arc::new(NoMemory));
        let published = Arc::new(Published {
            current: AtomicUsize::new(0),
            is_freed: (0..4).map(|_| AtomicBool::new(false)).collect(),
        });
        let readers = [(0, false), (1, true)].map(|(reactor, sleeps)| {
            let mut reactor = reclamation.participant(ReactorId(reactor));
            let published = Arc::clone(&published);
            thread::spawn(move || read_in_turns(&mut reactor, &published, sleeps))
        });
        let mut writer = reclamation.participant(ReactorId(2));
        replace_and_collect(&mut writer, &reclamation, &published);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        for _ in 0..3 {
            writer.begin_turn();
            reclamation.collect(usize::MAX);
        }
        assert_eq!(reclamation.waiting(), 0, "something is never freed");
    });
}

#[test]
fn a_grace_period_covers_every_turn_that_saw_the_world_before() {
    explore(|| {
        let reclamation = Reclamation::new(2, Arc::new(NoMemory));
        let is_frozen = Arc::new(AtomicBool::new(false));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut reactor = reclamation.participant(ReactorId(0));
        let reader = {
            let (is_frozen, is_over) = (Arc::clone(&is_frozen), Arc::clone(&is_over));
            thread::spawn(move || {
                for _ in 0..3 {
                    reactor.begin_turn();
                    if !is_frozen.load(Ordering::SeqCst) {
                        thread::yield_now();
                        assert!(!is_over.load(Ordering::SeqCst), "over within an older turn");
                    }
                    reactor.sleep();
                }
            })
        };
        is_frozen.store(true, Ordering::SeqCst);
        let period = reclamation.grace_period();
        while !reclamation.is_over(&period) {
            thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
}

/// Closing, the last death and claiming race: the last of them retires the segment, once.
#[test]
fn a_dead_segment_is_retired_exactly_once() {
    explore(|| {
        let memory_bytes = SEGMENTS_PER_REACTOR_MIN * SEGMENT_BYTES_MIN;
        let config = LogConfig {
            memory_bytes,
            reactors: 1,
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let log = Log::new(&config).unwrap();
        let mut head = log.head();
        let body =
            Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"value") };
        let entry = Entry { incarnation: Incarnation(1), version: Version(1), key: b"key", body };
        let addresses = [(); 2].map(|()| head.append_one(&entry).unwrap());
        let killers = addresses.map(|address| {
            let log = Arc::clone(&log);
            thread::spawn(move || log.mark_dead(address, 32))
        });
        let cleaner = {
            let log = Arc::clone(&log);
            thread::spawn(move || drop(log.claim_victim()))
        };
        drop(head);
        killers.into_iter().for_each(|killer| killer.join().unwrap());
        cleaner.join().unwrap();
        // The segment that the head reserved for deletes was a count, and is back already.
        assert_eq!(log.reclamation().waiting(), 1);
        log.reclamation().collect(usize::MAX);
        assert_eq!(log.usage().segments.free as usize, SEGMENTS_PER_REACTOR_MIN);
    });
}

/// A durable log with a closed segment of two entries, and an open one behind it.
struct Kept {
    log: Arc<Log>,
    head: Head,
    entries: [(Address, u32); 2],
    /// Entry in the open segment, as long as the second entry.
    behind: Address,
}

impl Kept {
    const SEGMENT_BYTES: usize = Chunk::BYTES;

    fn new() -> Kept {
        let memory_bytes = SEGMENTS_PER_REACTOR_MIN * Kept::SEGMENT_BYTES;
        let segment_bytes = Some(Kept::SEGMENT_BYTES);
        let (reactors, huge_pages, durable) = (1, false, true);
        let config = LogConfig { memory_bytes, reactors, huge_pages, durable, segment_bytes };
        let log = Log::new(&config).unwrap();
        let mut head = log.head();
        let long = vec![7; Kept::SEGMENT_BYTES / 8 * 5];
        let [small, first, behind] = [&b"value"[..], &long, &long].map(|value| {
            let body =
                Body::Object { expiry: None, replaces: None, value: TypedValue::string(value) };
            let entry =
                Entry { incarnation: Incarnation(1), version: Version(1), key: b"key", body };
            (head.append_one(&entry).unwrap(), entry.encoded_bytes() as u32)
        });
        Kept { log, head, entries: [small, first], behind: behind.0 }
    }

    /// Marks everything written as synced.
    fn save(&mut self) {
        let log = Arc::clone(&self.log);
        self.head.hand_out(&mut |unsaved| {
            log.raise_synced(unsaved.segment, unsaved.from + unsaved.bytes.len() as u32);
            true
        });
    }

    fn dead(&self) -> Vec<SegmentId> {
        let changes = self.log.take_changes().into_iter();
        let dead = changes.filter_map(|change| match change {
            LogChange::Dead(segment) => Some(segment),
            LogChange::Opened(_) | LogChange::Closed { .. } => None,
        });
        dead.collect()
    }
}

/// Cleans a victim to its end, if there is one.
fn visit(log: &Arc<Log>, reactor: &mut Participant) {
    reactor.begin_turn();
    if let Some(mut victim) = log.claim_victim() {
        let turn = reactor.turn();
        while let Some(candidate) = victim.peek(&turn) {
            victim.advance(&candidate);
        }
        drop(victim);
    }
    reactor.sleep();
}

/// The end of cleaning, the last death and the barrier race: the last of them releases the
/// segment, once.
#[test]
fn a_segment_leaves_a_kept_log_exactly_once() {
    explore(|| {
        let mut kept = Kept::new();
        kept.save();
        let closed = kept.log.segment_of(kept.entries[0].0);
        let killers = kept.entries.map(|(address, bytes)| {
            let log = Arc::clone(&kept.log);
            thread::spawn(move || log.mark_dead(address, bytes))
        });
        let visitor = {
            let log = Arc::clone(&kept.log);
            let mut reactor = log.reclamation().participant(ReactorId(0));
            thread::spawn(move || visit(&log, &mut reactor))
        };
        let mut dead = kept.dead();
        killers.into_iter().for_each(|killer| killer.join().unwrap());
        visitor.join().unwrap();
        // In case the segment was not worth cleaning before its entries had died.
        visit(&kept.log, &mut kept.log.reclamation().participant(ReactorId(0)));
        dead.extend(kept.dead());
        assert_eq!(dead, [closed]);
        kept.log.release(closed);
        assert_eq!(kept.log.reclamation().waiting(), 1);
    });
}

/// A tombstone loses its word while the segment that it names leaves the log: it dies once.
#[test]
fn a_tombstone_dies_once_when_what_it_names_goes() {
    explore(|| {
        let mut kept = Kept::new();
        kept.save();
        kept.entries.iter().for_each(|&(address, bytes)| kept.log.mark_dead(address, bytes));
        visit(&kept.log, &mut kept.log.reclamation().participant(ReactorId(0)));
        let dead = Dead::At(kept.log.location_of(kept.entries[0].0));
        let gone = kept.dead()[0];
        let burier = {
            let (log, (_, bytes)) = (Arc::clone(&kept.log), kept.entries[1]);
            thread::spawn(move || log.durable_log().retire_tombstone(kept.behind, bytes, dead))
        };
        kept.log.release(gone);
        burier.join().unwrap();
        assert_eq!((kept.log.usage().live_bytes, kept.log.usage().pinned_bytes), (0, 0));
    });
}
