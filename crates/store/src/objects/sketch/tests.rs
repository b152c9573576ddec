//! Tests of the access sketch.

use super::*;

const TABLE: TableId = TableId(0);
const HASH: KeyHash = KeyHash(0x0123_4567_89ab_cdef);
const START: UnixMillis = UnixMillis(1_800_000_000_000);

fn sketch(kind: SketchKind) -> AccessSketch {
    AccessSketch::new(kind, 1 << 20, START)
}

fn moment(millis: u64, random: u64) -> AccessMoment {
    AccessMoment { now: UnixMillis(START.0 + millis), random }
}

fn idle(sketch: &AccessSketch, at: AccessMoment) -> u64 {
    match sketch.accessed(TABLE, HASH, at.now) {
        Accessed::Before { millis } => millis,
        Accessed::Times { .. } => unreachable!("the sketch records times"),
    }
}

fn count(sketch: &AccessSketch, at: AccessMoment) -> u8 {
    match sketch.accessed(TABLE, HASH, at.now) {
        Accessed::Times { count } => count,
        Accessed::Before { .. } => unreachable!("the sketch counts"),
    }
}

#[test]
fn the_age_of_a_stamp_is_right_to_a_unit_for_three_days_if_all_pages_are_aged() {
    let sketch = sketch(SketchKind::Recency);
    sketch.note_read(TABLE, HASH, moment(0, 0));
    let three_days = 3 * 86_400_000;
    for millis in (0..three_days).step_by(600_000) {
        let shown = idle(&sketch, moment(millis, 0));
        let unit = if millis < 1 << 20 { 1 << FINE_SHIFT } else { 3 << COARSE_SHIFT };
        assert!(shown.abs_diff(millis) <= unit, "{shown} ms after {millis} ms");
        sketch.age(usize::MAX, moment(millis, 0).now);
    }
    let oldest = UNITS_MAX << COARSE_SHIFT;
    for days in 3..40 {
        let at = moment(days * 86_400_000, 0);
        let bound = oldest + 86_400_000 + (1 << COARSE_SHIFT);
        assert!(idle(&sketch, at) <= bound, "after {days} days");
        sketch.age(usize::MAX, at.now);
    }
    assert!(idle(&sketch, moment(39 * 86_400_000, 0)) >= three_days);
}

#[test]
fn a_cell_without_accesses_is_as_old_as_the_sketch() {
    let hour = moment(3_600_000, 0);
    assert!(idle(&sketch(SketchKind::Recency), hour).abs_diff(3_600_000) <= 1 << COARSE_SHIFT);
    let counts = sketch(SketchKind::Frequency);
    assert_eq!(count(&counts, moment(0, 0)), COUNT_AT_START);
    assert_eq!(count(&counts, moment(2 * DECAY_MILLIS, 0)), COUNT_AT_START - 2);
    assert_eq!(count(&counts, hour), 0);
}

#[test]
fn counts_grow_with_the_logarithm_and_fall_by_one_each_minute() {
    let sketch = sketch(SketchKind::Frequency);
    let mut random = fastrand::Rng::with_seed(1);
    let mut shown = Vec::new();
    for accesses in 1..=100_000 {
        sketch.note_read(TABLE, HASH, moment(0, random.u64(..)));
        if [100, 1_000, 100_000].contains(&accesses) {
            shown.push(count(&sketch, moment(0, 0)));
        }
    }
    // Valkey documents 10, 18 and 142 for these numbers of accesses, from 0.
    let expected = [8..=14, 15..=25, 130..=160];
    assert!(expected.iter().zip(&shown).all(|(range, count)| range.contains(count)), "{shown:?}");
    let after = |minutes| count(&sketch, moment(minutes * DECAY_MILLIS, 0));
    assert_eq!((after(1), after(99)), (shown[2] - 1, shown[2] - 99));
    assert_eq!(after(200), 0);
}

#[test]
fn aging_does_not_change_a_count_and_keeps_it_from_wrapping_around() {
    let sketch = sketch(SketchKind::Frequency);
    sketch.set(TABLE, HASH, START, Accessed::Times { count: 200 });
    for minutes in 0..1_000 {
        let at = moment(minutes * DECAY_MILLIS, 0);
        assert_eq!(count(&sketch, at), 200_u8.saturating_sub(minutes.min(255) as u8));
        sketch.age(usize::MAX, at.now);
    }
}

#[test]
fn a_written_record_has_at_least_the_count_of_a_new_one() {
    let sketch = sketch(SketchKind::Frequency);
    sketch.set(TABLE, HASH, START, Accessed::Times { count: 2 });
    sketch.note_written(TABLE, HASH, moment(0, 1));
    assert_eq!(count(&sketch, moment(0, 0)), COUNT_AT_START);
    sketch.note_written(TABLE, HASH, moment(0, 0));
    assert_eq!(count(&sketch, moment(0, 0)), COUNT_AT_START, "it may have been created");
    sketch.set(TABLE, HASH, START, Accessed::Times { count: 9 });
    sketch.note_written(TABLE, HASH, moment(0, 0));
    assert_eq!(count(&sketch, moment(0, 0)), 10);
}

#[test]
fn hashes_spread_over_the_cells_of_a_table_of_any_size() {
    let sketch = AccessSketch::new(SketchKind::Recency, 3 << 20, START);
    let mut random = fastrand::Rng::with_seed(2);
    let mut hits = vec![0; sketch.pages()];
    for _ in 0..sketch.pages() * 1_000 {
        hits[sketch.place(TABLE, KeyHash(random.u64(..))).page] += 1;
    }
    assert!(hits.iter().all(|hits| (850..1_150).contains(hits)), "{hits:?}");
}

#[test]
fn a_full_set_forgets_the_record_that_is_closest_to_its_eviction() {
    let sketch = sketch(SketchKind::Recency);
    let home = |hash: KeyHash| {
        let CellPlace { page, first, .. } = sketch.place(TABLE, hash);
        (page, first)
    };
    let mut random = fastrand::Rng::with_seed(3);
    let hashes = std::iter::repeat_with(|| KeyHash(random.u64(..)));
    let hashes: Vec<KeyHash> =
        hashes.filter(|hash| home(*hash) == home(HASH)).take(WAYS + 1).collect();
    for (number, hash) in hashes.iter().enumerate() {
        sketch.note_read(TABLE, *hash, moment(1_000_000 + 1_000 * number as u64, 0));
    }
    let age = |hash: KeyHash| sketch.accessed(TABLE, hash, moment(2_000_000, 0).now);
    let ages: Vec<u64> = hashes
        .iter()
        .map(|hash| match age(*hash) {
            Accessed::Before { millis } => millis / 1_000,
            Accessed::Times { .. } => unreachable!("the sketch records times"),
        })
        .collect();
    assert!(ages[0].abs_diff(2_000) <= 17, "the first one is as old as the sketch: {ages:?}");
    assert!(ages[1..].iter().zip(996..).all(|(age, to)| age.abs_diff(to) < 9), "{ages:?}");
    sketch.forget(TABLE, hashes[1]);
    sketch.note_read(TABLE, hashes[0], moment(2_000_000, 0));
    assert!(find_all(&sketch, &hashes) == [true, false, true, true, true], "the place was free");
}

fn find_all(sketch: &AccessSketch, hashes: &[KeyHash]) -> Vec<bool> {
    hashes.iter().map(|hash| sketch.find(sketch.place(TABLE, *hash)).is_some()).collect()
}
