//! Limits of recovery: how much work is in flight at once, and how long an answer may take.

use std::time::Duration;

/// Segments that one master reads at the same time, over all backups.
pub const FETCHES_MAX: usize = 8;

/// Segments that one master reads at the same time from one backup. The small number keeps the
/// masters of different parts close together, so that a segment is read from disk once for all of
/// them.
pub const FETCHES_FROM_ONE_MAX: usize = 2;

/// Replies of one segment that may wait for their replay before the next one is requested.
pub const AHEAD_MAX: usize = 2;

/// Replies that may wait for their replay before nothing more is requested. One reply per running
/// fetch may come in addition.
pub const REPLAYS_MAX: usize = FETCHES_MAX * AHEAD_MAX;

/// Time after which a backup that has not answered counts as silent, and its segments are read
/// elsewhere if possible. A backup reads a segment in 5 ms from a good disk and in 80 ms from a
/// slow one, but all masters ask at once and repetitions do not help. Deaths are reported earlier.
pub const READ_AGAIN: Duration = Duration::from_secs(1);

/// Delay before reads in flight on a broken connection are repeated.
pub const BROKEN_AGAIN: Duration = Duration::from_millis(5);

/// Unanswered reads in a row after which a place is unusable.
pub const SILENCES_MAX: u32 = 8;

/// Interval at which a report to the coordinator is repeated until the map shows its effect.
pub const TELL_AGAIN: Duration = Duration::from_millis(100);

const _: () = assert!(BROKEN_AGAIN.as_nanos() < READ_AGAIN.as_nanos());
const _: () = assert!(TELL_AGAIN.as_nanos() < READ_AGAIN.as_nanos());
const _: () = assert!(0 < FETCHES_FROM_ONE_MAX && FETCHES_FROM_ONE_MAX <= FETCHES_MAX);
const _: () = assert!(AHEAD_MAX > 0 && SILENCES_MAX > 0);
