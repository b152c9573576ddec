//! The log against a naive model, single-threaded and multi-threaded.

use super::*;
use crate::log::reclamation::Participant;
use crate::log::state::SegmentSnapshot;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::iter;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use types::{Incarnation, ReactorId, TypedValue, Version};
use wire::entry::{Body, Dead, Location};

fn config_of(segments: usize, reactors: u16) -> LogConfig {
    LogConfig {
        memory_bytes: segments * SEGMENT_BYTES_MIN,
        reactors,
        huge_pages: false,
        durable: false,
        segment_bytes: None,
    }
}

fn log_of(segments: usize, reactors: u16) -> Arc<Log> {
    Log::new(&config_of(segments, reactors)).unwrap()
}

fn durable_log_of(segments: usize, reactors: u16) -> Arc<Log> {
    Log::new(&LogConfig { durable: true, ..config_of(segments, reactors) }).unwrap()
}

fn object<'a>(key: &'a [u8], version: u64, value: &'a [u8]) -> Entry<'a> {
    let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(value) };
    Entry { incarnation: Incarnation(1), version: Version(version), key, body }
}

fn tombstone(key: &[u8], version: u64, dead: SegmentId) -> Entry<'_> {
    let body = Body::Tombstone { dead: Dead::At(Location { segment: dead, offset: 0 }) };
    Entry { incarnation: Incarnation(1), version: Version(version), key, body }
}

fn bytes_of(entry: &Entry<'_>) -> u32 {
    entry.encoded_bytes() as u32
}

/// Lets every participant begin two turns, so that all retired items are freed.
fn settle(log: &Log, participants: &mut [Participant]) {
    for _ in 0..3 {
        participants.iter_mut().for_each(Participant::begin_turn);
        log.reclamation().collect(usize::MAX);
    }
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let log = log_of(10, 1);
    let mut reactor = log.reclamation().participant(ReactorId(0));
    reactor.begin_turn();
    let mut head = log.head();
    let turn = reactor.turn();
    let entry = object(b"key", 7, b"value");
    let address = head.append_one(&entry).unwrap();
    log.prefetch(address, 100);
    assert_eq!(log.entry(address, &turn), entry);
    assert_eq!(Entry::parse_checked(log.encoded(address, &turn)), Ok((entry, 32)));
    assert_eq!(Address::from_units(address.units()), address);
}

#[test]
fn a_batch_stands_in_one_segment_even_if_the_open_one_is_nearly_full() {
    let log = log_of(10, 1);
    let mut reactor = log.reclamation().participant(ReactorId(0));
    reactor.begin_turn();
    let turn = reactor.turn();
    let mut head = log.head();
    let long = vec![1; 2 << 20];
    let first = head.append_one(&object(b"long", 1, &long)).unwrap();
    let mut entries = [object(b"a", 2, &long[..1 << 20]), object(b"b", 3, &long[..1 << 20])];
    let mut addresses = Vec::new();
    let bytes = entries.iter().map(Entry::encoded_bytes).sum();
    head.append_all(bytes, entries.iter_mut(), |address| addresses.push(address)).unwrap();
    assert_ne!(log.segment_of(first), log.segment_of(addresses[0]));
    assert_eq!(log.segment_of(addresses[0]), log.segment_of(addresses[1]));
    assert!(entries.iter().zip(&addresses).all(|(entry, &at)| log.entry(at, &turn) == *entry));
}

#[test]
fn an_entry_of_a_batch_does_not_name_one_of_its_own_segment() {
    let log = durable_log_of(10, 1);
    let mut head = log.head();
    let first = head.append_one(&object(b"key", 1, b"value")).unwrap();
    let mut again = object(b"key", 2, b"value");
    if let Body::Object { replaces, .. } = &mut again.body {
        *replaces = Some(log.location_of(first));
    }
    let planned = again.encoded_bytes();
    head.append_all(planned, iter::once(&mut again), |_| {}).unwrap();
    assert!(again.encoded_bytes() < planned, "the name takes room");
    assert!(matches!(again.body, Body::Object { replaces: None, .. }));
}

#[test]
fn an_entry_of_the_largest_size_fits() {
    let log = log_of(10, 1);
    let mut head = log.head();
    let key = vec![1; types::limits::KEY_BYTES_MAX];
    let value = vec![2; types::limits::VALUE_BYTES_MAX];
    head.append_one(&object(&key, 1, &value)).unwrap();
}

#[test]
fn a_closed_segment_without_a_live_byte_is_free_after_a_grace_period() {
    let log = log_of(10, 1);
    let mut reactors = [log.reclamation().participant(ReactorId(0))];
    reactors[0].begin_turn();
    let mut head = log.head();
    let before = log.usage();
    let value = vec![1; 1 << 20];
    let entry = object(b"key", 1, &value);
    let mut addresses: Vec<Address> = (0..3).map(|_| head.append_one(&entry).unwrap()).collect();
    addresses.drain(..).for_each(|address| log.mark_dead(address, bytes_of(&entry)));
    assert_eq!(log.usage().segments.open, 1, "an open segment is not retired");
    head.append_one(&entry).unwrap();
    assert_eq!(log.usage().segments.retired, 1);
    log.reclamation().collect(usize::MAX);
    assert_eq!(log.usage().segments.retired, 1, "freed within the turn that could see it");
    settle(&log, &mut reactors);
    assert_eq!(log.usage().segments.free, before.segments.free - 1);
    assert_eq!(log.usage().live_bytes, u64::from(bytes_of(&entry)));
}

#[test]
fn too_little_memory_is_refused_and_the_text_says_how_much_is_needed() {
    let config = LogConfig {
        memory_bytes: 1 << 20,
        reactors: 3,
        huge_pages: false,
        durable: false,
        segment_bytes: None,
    };
    let error = |config| Log::new(config).err().expect("the log does not fit");
    let refused = error(&config).to_string();
    let needed = SEGMENTS_PER_REACTOR_MIN * 3 * SEGMENT_BYTES_MIN;
    assert!(refused.contains(&needed.to_string()), "{refused}");
    assert!(Log::new(&LogConfig { memory_bytes: needed, ..config }).is_ok());
    let too_much = LogConfig { memory_bytes: ARENA_BYTES_MAX + 1, ..config };
    assert_eq!(error(&too_much), LogError::TooMuch { given: too_much.memory_bytes });
}

#[test]
fn a_full_server_refuses_writes_but_not_deletes_and_recovers_by_them() {
    let log = log_of(10, 1);
    let mut reactors = [log.reclamation().participant(ReactorId(0))];
    reactors[0].begin_turn();
    let mut head = log.head();
    let value = vec![1; 100_000];
    let entry = object(b"key", 1, &value);
    let mut live: Vec<Address> = std::iter::from_fn(|| head.append_one(&entry).ok()).collect();
    assert!(live.len() > 200, "only {} entries fit", live.len());
    assert!(log.is_low());
    for address in live.drain(..) {
        let tombstone = tombstone(b"key", 2, log.segment_of(address));
        let at = head.append_one_reserved(&tombstone).unwrap();
        log.mark_dead(address, bytes_of(&entry));
        log.mark_dead(at, bytes_of(&tombstone));
    }
    assert_eq!(head.append_one(&entry), Err(OutOfMemory), "freed without a grace period");
    settle(&log, &mut reactors);
    assert!(head.append_one(&entry).is_ok());
    assert!(!log.is_low());
    assert_eq!(log.usage().live_bytes, u64::from(bytes_of(&entry)));
}

#[test]
fn a_refused_reservation_makes_the_cleaner_work_until_it_can_be_granted() {
    let log = log_of(20, 1);
    let mut reactors = [log.reclamation().participant(ReactorId(0))];
    reactors[0].begin_turn();
    let mut head = log.head();
    let value = vec![1; 1 << 20];
    let entry = object(b"key", 1, &value);
    let mut live = Vec::new();
    while log.usage().segments.free > 6 {
        live.push(head.append_one(&entry).unwrap());
        log.mark_dead(head.append_one(&entry).unwrap(), bytes_of(&entry));
    }
    assert!(!log.is_low(), "nearly a third is free");
    // Cleaning of a segment, without the copies.
    let mut clean = || {
        let Some(victim) = log.claim_victim() else { return false };
        let (there, elsewhere) = live.iter().partition(|&&at| log.segment_of(at) == victim.id());
        live = elsewhere;
        Vec::into_iter(there).for_each(|at| log.mark_dead(at, bytes_of(&entry)));
        drop(victim);
        settle(&log, &mut reactors);
        true
    };
    let wanted = 7 * log.segment_bytes() as u64;
    assert!(log.reserve(wanted).is_none());
    assert!(log.is_low(), "an operation needs more than is free");
    let victims = (0..20).take_while(|_| log.is_low() && clean()).count();
    assert!((1..8).contains(&victims), "no more is cleaned than is needed: {victims}");
    let granted = log.reserve(wanted).unwrap();
    assert!(log.reserve(wanted).is_none());
    while clean() {}
    assert!(!log.is_low(), "the search for space ends");
    drop(granted);
    assert!(log.reserve(1 << 40).is_none());
    assert!(!log.is_low(), "no search for space that cannot exist");
}

#[test]
fn writers_never_use_what_is_kept_for_deletes() {
    let log = log_of(10, 1);
    let mut head = log.head();
    let value = vec![1; 100_000];
    while head.append_one(&object(b"key", 1, &value)).is_ok() {}
    let small = object(b"key", 1, b"");
    while head.append_one(&small).is_ok() {}
    let mut delete = tombstone(b"a", 2, SegmentId(1));
    head.append_reserved(delete.encoded_bytes(), iter::once(&mut delete), |_| {}).unwrap();
    assert_eq!(head.append_one(&small), Err(OutOfMemory));
    let one_segment = SEGMENT_BYTES_MIN / tombstone(b"a", 2, SegmentId(1)).encoded_bytes();
    for _ in 1..one_segment {
        head.append_one_reserved(&tombstone(b"a", 2, SegmentId(1))).unwrap();
    }
    assert_eq!(head.append_one_reserved(&tombstone(b"a", 2, SegmentId(1))), Err(OutOfMemory));
}

#[test]
fn a_side_log_keeps_its_segments_until_it_is_spliced() {
    let log = log_of(12, 1);
    let mut reactors = [log.reclamation().participant(ReactorId(0))];
    reactors[0].begin_turn();
    let reservation = Arc::new(log.reserve(3 * SEGMENT_BYTES_MIN as u64 - 5).unwrap());
    assert_eq!(reservation.bytes(), 3 * SEGMENT_BYTES_MIN as u64);
    let free = log.usage().free_bytes;
    let mut side = log.side_log(SideLogKind::Arriving(Some(Arc::clone(&reservation))));
    let value = vec![1; 1 << 20];
    let entry = object(b"key", 9, &value);
    let mut encoded = vec![0; entry.encoded_bytes()];
    entry.encode(&mut encoded);
    let addresses: Vec<Address> =
        (0..4).map(|_| side.append_encoded(&encoded, Incarnation(5)).unwrap()).collect();
    assert_eq!(side.bytes(), 4 * encoded.len() as u64);
    assert_eq!(log.usage().free_bytes, free, "reserved space was not free");
    let turn = reactors[0].turn();
    let read = Entry::parse_checked(log.encoded(addresses[0], &turn)).unwrap().0;
    assert_eq!(read, Entry { incarnation: Incarnation(5), ..entry });
    addresses[..3].iter().for_each(|&at| log.mark_dead(at, encoded.len() as u32));
    assert_eq!((log.usage().segments.side, log.usage().segments.retired), (2, 0));
    side.splice(&mut Backlog::default());
    let segments = log.usage().segments;
    assert_eq!((segments.side, segments.retired, segments.closed), (0, 1, 1));
    drop(reservation);
    assert_eq!(log.usage().free_bytes, free + SEGMENT_BYTES_MIN as u64);
    settle(&log, &mut reactors);
    assert_eq!(log.usage().free_bytes, free + 2 * SEGMENT_BYTES_MIN as u64);
}

#[test]
fn a_reservation_that_cannot_be_kept_is_refused() {
    let log = log_of(10, 1);
    let free = log.usage().free_bytes;
    assert!(log.reserve(free).is_none(), "nothing would be left to the writers");
    assert!(log.reserve(u64::MAX).is_none());
    let most = log.reserve(free - SEGMENT_BYTES_MIN as u64).unwrap();
    assert_eq!(log.usage().free_bytes, SEGMENT_BYTES_MIN as u64);
    drop(most);
    assert_eq!(log.usage().free_bytes, free);
}

#[test]
fn chunks_are_zeroed_apart_and_their_segments_come_back() {
    let log = log_of(10, 1);
    let free = log.usage().free_bytes;
    for _ in 0..2 {
        let chunks: Vec<Chunk> = (0..100).map(|_| log.take_chunk().unwrap()).collect();
        let mut bases: Vec<usize> = chunks.iter().map(|c| c.base().as_ptr() as usize).collect();
        bases.sort_unstable();
        bases.dedup();
        assert_eq!(bases.len(), 100);
        assert!(bases.iter().all(|base| base % Chunk::BYTES == 0));
        for chunk in &chunks {
            // SAFETY: the chunk is exclusive to this test, mapped, and initialized.
            #[expect(unsafe_code, reason = "the content of a chunk is only visible so")]
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(chunk.base().as_ptr(), Chunk::BYTES) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(0xff);
        }
        assert_eq!(log.usage().chunk_bytes, 100 * Chunk::BYTES as u64);
        assert_eq!(log.usage().segments.chunks, 2);
        chunks.into_iter().for_each(|chunk| log.give_chunk(chunk));
        assert_eq!(log.usage().free_bytes, free);
    }
}

#[test]
fn resident_bytes_follow_use() {
    let log = log_of(16, 1);
    assert_eq!(log.usage().resident_bytes, 0);
    let mut head = log.head();
    let entry = object(b"key", 1, &[1; 100]);
    for _ in 0..1000 {
        head.append_one(&entry).unwrap();
    }
    assert_eq!(log.usage().resident_bytes, 1000 * u64::from(bytes_of(&entry)));
    assert_eq!(log.prepare_segments(2), 2);
    let grown = log.usage().resident_bytes - 1000 * u64::from(bytes_of(&entry));
    assert_eq!(grown, if IS_TOUCHED { 2 * SEGMENT_BYTES_MIN as u64 } else { 0 });
    assert_eq!(log.usage().ready_bytes, 2 * SEGMENT_BYTES_MIN as u64);
    assert_eq!(log.prepare_segments(100), 13, "one segment is open");
}

/// Set if segments can be touched without changing them.
const IS_TOUCHED: bool = cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)));

/// Records the calls that wake helper threads.
fn wakes_of(log: &Log, stock: usize) -> Arc<Mutex<Vec<Preparation>>> {
    let wakes = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&wakes);
    log.ready_segments()
        .set_helpers(stock, Box::new(move |why| recorded.lock().unwrap().push(why)));
    wakes
}

#[test]
fn with_helpers_a_write_waits_for_a_ready_segment() {
    let log = log_of(16, 1);
    let mut head = log.head();
    let wakes = wakes_of(&log, 6);
    let entry = object(b"key", 1, &[1; 1 << 20]);
    assert_eq!(head.append_one(&entry), Err(OutOfMemory));
    assert!(
        !log.ready_segments().has_one() && log.has_free() && !log.is_exhausted(),
        "it is worth waiting"
    );
    assert!(wakes.lock().unwrap().contains(&Preparation::Needed));
    assert!(
        log.ready_segments().take_awaited() && !log.ready_segments().take_awaited(),
        "each wait is reported once"
    );
    while log.ready_segments().prepare(Preparation::Needed) {}
    assert_eq!(log.usage().ready_bytes, 2 * SEGMENT_BYTES_MIN as u64, "one per reactor, one more");
    wakes.lock().unwrap().clear();
    assert!(head.append_one(&entry).is_ok() && !log.ready_segments().take_awaited());
    assert_eq!(*wakes.lock().unwrap(), [Preparation::Needed]);
    while log.ready_segments().prepare(Preparation::Stock) {}
    assert_eq!(log.usage().ready_bytes, 6 * SEGMENT_BYTES_MIN as u64);
    wakes.lock().unwrap().clear();
    (0..3).for_each(|_| {
        head.append_one(&entry).unwrap();
    });
    assert!(wakes.lock().unwrap().is_empty(), "enough is ready");
}

#[test]
fn a_reservation_is_made_ready_and_deletes_do_not_wait() {
    let log = log_of(16, 1);
    let mut head = log.head();
    let wakes = wakes_of(&log, 2);
    assert!(!log.ready_segments().suffice_for_replay() && log.ready_segments().take_awaited());
    let reservation = log.reserve(9 * SEGMENT_BYTES_MIN as u64).unwrap();
    assert!(wakes.lock().unwrap().contains(&Preparation::Needed));
    let mut delete = tombstone(b"key", 1, SegmentId(1));
    head.append_reserved(delete.encoded_bytes(), iter::once(&mut delete), |_| {}).unwrap();
    log.ready_segments().take_awaited();
    while log.ready_segments().prepare(Preparation::Needed) {}
    assert!(log.ready_segments().suffice_for_replay() && !log.ready_segments().take_awaited());
    let usage = log.usage();
    assert_eq!(usage.ready_bytes, 10 * SEGMENT_BYTES_MIN as u64, "two, and eight of the reserved");
    assert_eq!(usage.reserved_bytes, 9 * SEGMENT_BYTES_MIN as u64);
    drop(reservation);
    assert_eq!(log.usage().reserved_bytes, 0);
}

#[test]
fn memory_that_stays_ready_without_use_is_given_back() {
    let log = log_of(16, 1);
    let _wakes = wakes_of(&log, 4);
    log.prepare_segments(10);
    log.ready_segments().trim();
    let mut side_log = log.side_log(SideLogKind::Arriving(None));
    let value = vec![1; 1 << 20];
    let entry = object(b"key", 1, &value);
    let mut long = vec![0; entry.encoded_bytes()];
    entry.encode(&mut long);
    side_log.append_encoded(&long, Incarnation(1)).unwrap();
    assert_eq!(log.ready_segments().trim(), 5, "ten were ready, one was taken, and four stay");
    assert_eq!(log.usage().ready_bytes, 4 * SEGMENT_BYTES_MIN as u64);
    assert_eq!(log.ready_segments().trim(), 0);
}

#[test]
#[should_panic = "a turn of another store"]
fn a_turn_of_another_store_is_our_bug() {
    let (log, other) = (log_of(10, 1), log_of(10, 1));
    let address = log.head().append_one(&object(b"key", 1, b"")).unwrap();
    let mut reactor = other.reclamation().participant(ReactorId(0));
    reactor.begin_turn();
    log.entry(address, &reactor.turn());
}

#[test]
#[should_panic = "bytes dead of"]
fn killing_twice_is_our_bug() {
    let log = log_of(10, 1);
    let mut head = log.head();
    let (a, b) = (object(b"key", 1, &[0; 64]), object(b"key", 1, b""));
    let address = head.append_one(&a).unwrap();
    head.append_one(&b).unwrap();
    drop(head);
    log.mark_dead(address, bytes_of(&a));
    log.mark_dead(address, bytes_of(&a));
}

#[test]
#[should_panic = "was not reported dead"]
fn releasing_a_segment_that_is_in_use_is_our_bug() {
    let log = durable_log_of(20, 1);
    let address = log.head().append_one(&object(b"key", 1, b"")).unwrap();
    log.release(log.segment_of(address));
}

#[test]
#[should_panic = "leaves before all of it was sent"]
fn ending_the_removal_of_an_unsent_segment_is_our_bug() {
    log_of(10, 1).segments.end_leaving(Place(0));
}

#[test]
fn a_segment_has_a_way_back_to_free_from_every_state() {
    use SegmentState::{Chunks, Cleaning, Closed, Free, Leaving, Open, Retired, Side, Visited};
    for way in [
        &[Free, Open, Retired, Free][..],
        &[Free, Open, Closed, Retired, Free],
        &[Free, Side, Closed, Cleaning, Closed, Retired, Free],
        &[Free, Open, Closed, Cleaning, Visited, Leaving, Retired, Free],
        &[Free, Chunks, Free],
    ] {
        assert!(way.windows(2).all(|pair| pair[0].may_become(pair[1])), "{way:?}");
    }
    assert!(!Closed.may_become(Free) && !Leaving.may_become(Free), "freed without a grace period");
}

/// Returns the victim among segments of 1,000 bytes, given by age and live bytes.
fn victim_of(segments: &[(u64, u32)]) -> VictimChoice {
    let criteria = VictimCriteria { segment_bytes: 1000 };
    let glance = |Place(at): Place| {
        let dead = 1000 - segments[at as usize].1;
        SegmentSnapshot { state: SegmentState::Closed, written: 1000, dead, touched: 1000 }
    };
    let age = |Place(at): Place| Some(segments[at as usize].0).filter(|&age| age > 0);
    criteria.choose((0..segments.len() as u32).map(Place), age, glance)
}

#[test]
fn the_victim_wins_most_for_its_age_per_copied_byte() {
    let victim = |place| VictimChoice::Victim(Place(place));
    assert_eq!(victim_of(&[(1, 700), (1, 600), (1, 800)]), victim(1), "of one age: the emptiest");
    assert_eq!(victim_of(&[(9, 900), (1, 600), (1, 800)]), victim(0), "it will not get emptier");
    assert_eq!(victim_of(&[(9, 980), (1, 900)]), victim(1), "too little to win");
    assert_eq!(victim_of(&[(9, 100), (0, 0)]), victim(0), "what may not be cleaned yet is left");
    assert_eq!(victim_of(&[(0, 100)]), VictimChoice::UnderWay);
    assert_eq!(victim_of(&[(9, 1000)]), VictimChoice::Nothing);
    assert_eq!(victim_of(&[(u64::MAX, 100), (1, 0)]), victim(1), "copies nothing");
}

#[test]
fn of_segments_that_lose_at_the_same_rate_the_emptiest_is_the_victim() {
    let live_after = |age: u64| (1000.0 * 0.99f64.powi(age as i32)) as u32;
    let segments: Vec<(u64, u32)> = (1..=200).map(|age| (age, live_after(age))).collect();
    assert_eq!(victim_of(&segments), VictimChoice::Victim(Place(199)));
}

#[test]
fn a_full_log_of_entries_that_leave_long_tails_is_not_cleaned_for_ever() {
    let mut twin = Twin::new(16, 1);
    twin.fill(SEGMENT_BYTES_MIN * 3 / 10, u64::MAX);
    assert!(!twin.log.is_exhausted(), "no search has run");
    assert!(!twin.clean(0), "three entries fit into a segment, before and after");
    assert!(twin.log.is_exhausted());
    let (_, (address, bytes, _)) = twin.records.pop_first().expect("it is full");
    twin.by_address.remove(&address);
    twin.log.mark_dead(address, bytes);
    assert!(twin.clean(0), "something is dead");
    assert!(!twin.log.is_exhausted());
}

#[test]
fn what_was_cleaned_and_is_not_free_yet_can_be_waited_for() {
    let mut twin = Twin::new(16, 2);
    twin.fill(100_000, 200);
    assert_eq!(twin.log.shortage_percent(), 100);
    while twin.clean(0) {}
    assert!(!twin.log.has_free() && !twin.log.is_exhausted(), "reactors are in their turns");
    (0..3).for_each(|_| (0..2).for_each(|reactor| twin.turn(reactor)));
    assert!(twin.log.has_free());
}

#[test]
fn dead_entries_that_are_not_acknowledged_yet_can_be_waited_for() {
    let log = durable_log_of(16, 1);
    let (mut head, value) = (log.head(), vec![1; 100_000]);
    let mut written = BTreeMap::new();
    for version in 1.. {
        let entry = object(b"key", version, &value);
        let Ok(address) = head.append_one(&entry) else { break };
        log.mark_dead(address, bytes_of(&entry));
        *written.entry(log.segment_of(address)).or_default() += bytes_of(&entry);
    }
    assert!(log.claim_victim().is_none(), "replies to the clients may refer to the entries");
    assert!(!log.is_exhausted(), "the entries are removed as soon as backups have acknowledged");

    written.iter().for_each(|(segment, length)| log.raise_acknowledged(*segment, *length));
    assert!(log.claim_victim().is_some());
}

/// Expected content of the log: key → address and value of its entry.
struct Twin {
    log: Arc<Log>,
    heads: Vec<Head>,
    survivors: Vec<Survivors>,
    reactors: Vec<Participant>,
    side: Option<SideLog>,
    records: BTreeMap<u64, (Address, u32, Vec<u8>)>,
    /// Keys by address, as the index would report them to the cleaner.
    by_address: BTreeMap<Address, u64>,
    chunks: Vec<Chunk>,
    version: u64,
}

impl Twin {
    fn new(segments: usize, reactors: u16) -> Twin {
        let log = log_of(segments, reactors);
        let mut participants: Vec<Participant> =
            (0..reactors).map(|r| log.reclamation().participant(ReactorId(r))).collect();
        participants.iter_mut().for_each(Participant::begin_turn);
        Twin {
            heads: (0..reactors).map(|_| log.head()).collect(),
            survivors: (0..reactors).map(|_| log.survivors()).collect(),
            reactors: participants,
            side: None,
            records: BTreeMap::new(),
            by_address: BTreeMap::new(),
            chunks: Vec::new(),
            version: 0,
            log,
        }
    }

    fn publish(&mut self, key: u64, address: Address, value: Vec<u8>) {
        let bytes = bytes_of(&object(&key.to_le_bytes(), 0, &value));
        if let Some((old, old_bytes, _)) = self.records.insert(key, (address, bytes, value)) {
            self.by_address.remove(&old);
            self.log.mark_dead(old, old_bytes);
        }
        self.by_address.insert(address, key);
    }

    /// Writes the keys one after the other, beginning again at the first, until memory is
    /// exhausted.
    fn fill(&mut self, length: usize, keys: u64) {
        let value = vec![1; length];
        for number in 0.. {
            self.version += 1;
            let key = number % keys;
            let key_bytes = key.to_le_bytes();
            let entry = object(&key_bytes, self.version, &value);
            let Ok(address) = self.heads[0].append_one(&entry) else { return };
            self.publish(key, address, value.clone());
        }
    }

    fn write(&mut self, rng: &mut Rng, keys: u64, length_max: usize) -> Result<(), OutOfMemory> {
        let count = if rng.u8(..) < 16 { rng.usize(2..6) } else { 1 };
        let first = rng.u64(..keys);
        self.version += 1;
        let key = |i: usize| (first + i as u64).to_le_bytes();
        let keys: Vec<[u8; 8]> = (0..count).map(key).collect();
        let values: Vec<Vec<u8>> =
            (0..count).map(|_| vec![rng.u8(..); rng.usize(..length_max)]).collect();
        let mut entries: Vec<Entry<'_>> =
            keys.iter().zip(&values).map(|(key, value)| object(key, self.version, value)).collect();
        let mut addresses = Vec::new();
        let head = rng.usize(..self.heads.len());
        match &mut entries[..] {
            [one] => addresses.push(self.heads[head].append_one(one)?),
            all => {
                let bytes = all.iter().map(Entry::encoded_bytes).sum();
                self.heads[head].append_all(bytes, all.iter_mut(), |at| addresses.push(at))?;
            }
        }
        for ((key, address), value) in keys.iter().zip(addresses).zip(values) {
            self.publish(u64::from_le_bytes(*key), address, value);
        }
        Ok(())
    }

    fn write_aside(&mut self, rng: &mut Rng, keys: u64, length_max: usize) {
        let key = rng.u64(..keys);
        self.version += 1;
        let value = vec![rng.u8(..); rng.usize(..length_max)];
        let key_bytes = key.to_le_bytes();
        let entry = object(&key_bytes, self.version, &value);
        let mut encoded = vec![0; entry.encoded_bytes()];
        entry.encode(&mut encoded);
        let side = self.side.get_or_insert_with(|| self.log.side_log(SideLogKind::Arriving(None)));
        if let Ok(address) = side.append_encoded(&encoded, Incarnation(1)) {
            self.publish(key, address, value);
        }
    }

    /// Deletes a key, which must never fail.
    fn delete(&mut self, rng: &mut Rng, keys: u64) {
        let key = rng.u64(..keys);
        let Some((address, bytes, _)) = self.records.remove(&key) else { return };
        self.version += 1;
        let key_bytes = key.to_le_bytes();
        let tombstone = tombstone(&key_bytes, self.version, self.log.segment_of(address));
        let head = rng.usize(..self.heads.len());
        let at = self.heads[head].append_one_reserved(&tombstone).expect("a delete finds room");
        self.by_address.remove(&address);
        self.log.mark_dead(address, bytes);
        self.log.mark_dead(at, bytes_of(&tombstone));
    }

    /// Cleans one victim. Returns `false` if there was none or no room.
    fn clean(&mut self, reactor: usize) -> bool {
        let Some(mut victim) = self.log.claim_victim() else { return false };
        let turn = self.reactors[reactor].turn();
        while let Some(candidate) = victim.peek(&turn) {
            if let Some(&key) = self.by_address.get(&candidate.address) {
                let copied = self.survivors[reactor].append_encoded(candidate.encoded);
                let Ok(to) = copied else { return false };
                let record = self.records.get_mut(&key).expect("both maps agree");
                record.0 = to;
                self.by_address.remove(&candidate.address);
                self.by_address.insert(to, key);
                self.log.mark_dead(candidate.address, record.1);
            }
            victim.advance(&candidate);
        }
        assert_eq!(victim.live_bytes(), 0, "everything that lived was copied");
        drop(victim);
        true
    }

    fn turn(&mut self, reactor: usize) {
        self.reactors[reactor].begin_turn();
        self.log.reclamation().collect(8);
    }

    fn check(&self) {
        let turn = self.reactors[0].turn();
        let mut live = 0;
        for (key, (address, bytes, value)) in &self.records {
            let (entry, taken) = Entry::parse_checked(self.log.encoded(*address, &turn)).unwrap();
            assert_eq!(entry.key, key.to_le_bytes());
            assert_eq!(
                entry.body,
                Body::Object { expiry: None, replaces: None, value: TypedValue::string(value) }
            );
            assert_eq!(taken as u32, *bytes);
            live += u64::from(*bytes);
        }
        let usage = self.log.usage();
        assert_eq!(usage.live_bytes, live);
        assert_eq!(usage.chunk_bytes, (self.chunks.len() * Chunk::BYTES) as u64);
        let SegmentCounts { free, open, side, closed, cleaning, retired, chunks, .. } =
            usage.segments;
        let all = free + open + side + closed + cleaning + retired + chunks;
        assert_eq!(u64::from(all) * usage.segment_bytes, usage.total_bytes);
        assert_eq!(cleaning, 0);
        assert_eq!(retired as usize, self.log.reclamation().waiting());
    }
}

#[test]
fn the_log_holds_what_its_twin_holds() {
    for seed in 0..4 {
        let mut rng = Rng::with_seed(seed);
        let mut twin = Twin::new(16, 2);
        let keys = 400;
        for step in 0..6000 {
            let reactor = rng.usize(..2);
            match rng.u8(..100) {
                // May find no memory: that must change nothing.
                0..50 => drop(twin.write(&mut rng, keys, 60_000)),
                50..60 => twin.write_aside(&mut rng, keys, 20_000),
                60..80 => twin.delete(&mut rng, keys),
                80..82 => drop(twin.side.take()),
                82..84 => twin.chunks.extend(twin.log.take_chunk()),
                84..86 => {
                    if !twin.chunks.is_empty() {
                        let chunk = twin.chunks.swap_remove(rng.usize(..twin.chunks.len()));
                        twin.log.give_chunk(chunk);
                    }
                }
                86..90 if twin.log.is_low() => {
                    twin.clean(reactor);
                }
                _ => twin.turn(reactor),
            }
            if step % 500 == 0 {
                twin.check();
            }
        }
        twin.check();
    }
}

/// Overwrites uniformly at random while `live_percent` of the arena is live: the worst case for a
/// cleaner. Returns bytes copied per byte written.
fn overwrite_under_pressure(live_percent: usize) -> f64 {
    let (segments, overwrites) = (50, 30_000);
    let mut rng = Rng::with_seed(live_percent as u64);
    let mut twin = Twin::new(segments, 1);
    let value = vec![7; 8000];
    let bytes = object(&[0; 8], 1, &value).encoded_bytes();
    let keys = (segments * SEGMENT_BYTES_MIN / bytes * live_percent / 100) as u64;
    let (mut cleaned, mut refused) = (0, 0);
    for i in 0..keys + overwrites {
        let key = if i < keys { i } else { rng.u64(..keys) };
        while twin.log.is_low() && twin.clean(0) {
            cleaned += 1;
            (0..3).for_each(|_| twin.turn(0));
        }
        twin.version += 1;
        let key_bytes = key.to_le_bytes();
        match twin.heads[0].append_one(&object(&key_bytes, twin.version, &value)) {
            Ok(address) => twin.publish(key, address, value.clone()),
            Err(OutOfMemory) => refused += 1,
        }
    }
    twin.check();
    assert_eq!(refused, 0, "at {live_percent} % live, {cleaned} victims");
    let written = (keys + overwrites) as usize * bytes;
    cleaned as f64 * SEGMENT_BYTES_MIN as f64 / written as f64
}

#[test]
fn overwriting_goes_on_at_high_utilization() {
    for live_percent in [50, 75, 88] {
        let cleaned = overwrite_under_pressure(live_percent);
        assert!(cleaned < 40.0, "{cleaned} bytes cleaned per byte written at {live_percent} %");
    }
}

/// The index of the stress test: a word per key, and a lock per key for writers.
struct Words {
    places: Vec<(AtomicU64, Mutex<()>)>,
}

/// State of one thread of the stress test.
struct Stress<'a> {
    log: &'a Arc<Log>,
    words: &'a Words,
    reactor: Participant,
    head: Head,
    survivors: Survivors,
    rng: Rng,
}

const NO_ENTRY: u64 = u64::MAX;

impl Stress<'_> {
    fn read(&self, key: usize) {
        let word = self.words.places[key].0.load(Ordering::Acquire);
        if word != NO_ENTRY {
            let turn = self.reactor.turn();
            let encoded = self.log.encoded(Address::from_units(word), &turn);
            let (entry, _) = Entry::parse_checked(encoded).expect("memory was used again");
            assert_eq!(entry.key, (key as u64).to_le_bytes());
        }
    }

    /// Replaces a key's address by `to` and marks the old entry as dead.
    fn replace(&self, key: usize, to: u64) {
        let old = self.words.places[key].0.swap(to, Ordering::AcqRel);
        if old != NO_ENTRY {
            let turn = self.reactor.turn();
            let old = Address::from_units(old);
            self.log.mark_dead(old, self.log.encoded(old, &turn).len() as u32);
        }
    }

    fn write(&mut self, key: usize) {
        let _alone = self.words.places[key].1.lock().unwrap();
        let value = vec![key as u8; self.rng.usize(..8000)];
        let key_bytes = (key as u64).to_le_bytes();
        if let Ok(address) = self.head.append_one(&object(&key_bytes, 1, &value)) {
            self.replace(key, address.units());
        }
    }

    fn clean(&mut self) {
        let Some(mut victim) = self.log.claim_victim() else { return };
        let turn = self.reactor.turn();
        while let Some(candidate) = victim.peek(&turn) {
            let key = u64::from_le_bytes(candidate.entry.key.try_into().unwrap()) as usize;
            let _alone = self.words.places[key].1.lock().unwrap();
            if self.words.places[key].0.load(Ordering::Acquire) == candidate.address.units() {
                let Ok(to) = self.survivors.append_encoded(candidate.encoded) else { return };
                self.replace(key, to.units());
            }
            victim.advance(&candidate);
        }
    }

    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            if step % 16 == 0 {
                self.reactor.begin_turn();
                self.log.reclamation().collect(4);
            }
            if step % 1000 == 0 {
                self.reactor.sleep();
                std::thread::yield_now();
                self.reactor.begin_turn();
            }
            let key = self.rng.usize(..self.words.places.len());
            match self.rng.u8(..10) {
                0..6 => self.read(key),
                6..9 => self.write(key),
                _ if self.log.is_low() => self.clean(),
                _ => self.replace(key, NO_ENTRY),
            }
        }
    }
}

#[test]
fn many_threads_never_see_memory_that_is_used_again() {
    const THREADS: u16 = 4;
    let log = log_of(24, THREADS);
    let word = |_| (AtomicU64::new(NO_ENTRY), Mutex::new(()));
    let words = Words { places: (0..10_000).map(word).collect() };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, words) = (&log, &words);
            let mut stress = Stress {
                reactor: log.reclamation().participant(ReactorId(thread)),
                head: log.head(),
                survivors: log.survivors(),
                rng: Rng::with_seed(u64::from(thread)),
                log,
                words,
            };
            stress.reactor.begin_turn();
            scope.spawn(move || stress.run(50_000));
        }
    });
    let last = log.head().append_one(&object(b"last", 1, b"")).unwrap();
    assert!(log.segment_of(last).0 > 100, "memory was hardly used again");
    log.mark_dead(last, 32);
    let live = log.usage().live_bytes;
    let mut reactors = [log.reclamation().participant(ReactorId(0))];
    reactors[0].begin_turn();
    let turn = reactors[0].turn();
    let expected: usize = words
        .places
        .iter()
        .map(|(word, _)| word.load(Ordering::Acquire))
        .filter(|&word| word != NO_ENTRY)
        .map(|word| log.encoded(Address::from_units(word), &turn).len())
        .sum();
    assert_eq!(live, expected as u64);
}
