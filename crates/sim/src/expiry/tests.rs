//! Bounds of times to live by the readings of a clock.

use super::*;
use crate::history::{RegisterAction, RequestPlace};
use types::UnixMillis;

/// Returns the readings at moments 1, 2, and so on.
fn clocks(readings: &[(u64, Option<u64>)]) -> ClockReadings {
    let mut clocks = ClockReadings::default();
    for (moment, &(low, high)) in (1..).zip(readings) {
        let high = high.map(UnixMillis);
        clocks.add(moment, RangeClockBounds { low: UnixMillis(low), high });
    }
    clocks
}

/// Returns an operation from a moment to the next one.
fn answered(begun: u64, action: RegisterAction, outcome: OperationOutcome) -> RegisterOperation {
    let (place, ended) = (RequestPlace::default(), begun + 1);
    RegisterOperation { client: 0, begun, ended, place, action, outcome: Some(outcome) }
}

/// Returns the life of a value that is written from moment 1 to moment 2 with a time to live,
/// of 100 ms if it is relative.
fn life(lifetime: Lifetime, readings: &[(u64, Option<u64>)]) -> Option<(u64, u64)> {
    let action = RegisterAction::WriteExpiring(7, lifetime);
    let write = answered(1, action, OperationOutcome::Done);
    let lives = clocks(readings).lives(&[write], |_| 100);
    lives.given.get(&lifetime).map(|life| (*life.moments.start(), *life.moments.end()))
}

#[test]
fn a_value_lives_as_long_as_the_clock_of_its_range_says() {
    let written = [(1_000, Some(1_001)), (1_002, Some(1_003))];
    let with =
        |later: &[(u64, Option<u64>)]| life(Lifetime::After(7), &[&written[..], later].concat());
    // It may be gone when the clock can show 1100, and is gone when it certainly shows 1103.
    let later = [(1_098, Some(1_099)), (1_099, Some(1_100)), (1_102, Some(1_102))];
    assert_eq!(with(&later), Some((4, u64::MAX - 1)));
    assert_eq!(with(&[&later[..], &[(1_103, Some(1_103))]].concat()), Some((4, 5)));
    // While nobody serves the range, the next reading bounds the clock.
    assert_eq!(with(&[(1_050, None), (1_200, Some(1_201))]), Some((3, 3)));
    assert_eq!(with(&[(1_050, None)]), Some((3, u64::MAX - 1)));
}

#[test]
fn a_deadline_that_a_client_names_is_that_of_the_clock() {
    let readings = [(1_000, Some(1_001)), (1_002, Some(1_003)), (1_004, Some(1_005))];
    let until = |at| life(Lifetime::Until(7, at), &readings);
    assert_eq!(until(1_006), Some((u64::MAX, u64::MAX - 1)));
    assert_eq!(until(1_004), Some((3, 2)));
    assert_eq!(until(1_003), Some((2, 2)));
    assert_eq!(until(900), Some((1, 2)), "the write itself does not end too late");
}

#[test]
fn a_remaining_time_shows_the_deadline_by_the_clock() {
    let readings = [(1_000, Some(1_001)), (1_002, Some(1_003)), (1_010, Some(1_020))];
    let millis = OperationOutcome::Remaining(RemainingTime::Millis(95));
    let write = RegisterAction::WriteExpiring(7, Lifetime::After(7));
    let history = [
        answered(1, write, OperationOutcome::Done),
        answered(2, RegisterAction::ReadRemaining, millis),
    ];
    let lives = clocks(&readings).lives(&history, |_| 100);
    assert_eq!(lives.given[&Lifetime::After(7)].deadline, 1_100..=1_103);
    assert_eq!(lives.shown[&2], 1_097..=1_115);
}

#[test]
fn nothing_is_known_of_values_whose_clock_is_unknown() {
    let unknown = RangeClockBounds::UNKNOWN;
    let unknown = (unknown.low.0, unknown.high.map(|high| high.0));
    let readings = [(1_000, Some(1_001)), (1_002, Some(1_003)), unknown];
    assert_eq!(life(Lifetime::After(7), &readings), None);
    assert_eq!(life(Lifetime::Until(7, 2_000), &readings), None);
}
