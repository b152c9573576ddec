//! Time limits of the migration protocol: how long each side waits before it repeats a message,
//! asks, or gives up. Repetitions are harmless, so these limits only trade traffic against delay.

use std::time::Duration;

/// Time for which the source holds the range while it waits for every reactor to begin a turn.
/// After that the source serves the range again, since clients have waited long enough. A turn
/// with a full background quantum is 100 times shorter. Twice the measured acknowledgment time of
/// writes is added where writes are slow.
pub const FREEZE_MAX: Duration = Duration::from_millis(5);

/// Maximum time for which one attempt holds the range, however slow the backups are. A sync of a
/// slow disk takes less, and clients see an ordinary pause.
pub const FREEZE_LONGEST: Duration = Duration::from_millis(100);

/// Minimum pause before the next attempt to freeze. The range is frozen for at most a fifth of
/// the time.
pub const FREEZE_AGAIN: Duration = Duration::from_millis(20);

/// Number of attempts to freeze before the source asks the coordinator to withdraw the intent.
pub const FREEZES_MAX: u32 = 10;

/// Total time for all attempts to freeze and the waits between them.
pub const FREEZING_MAX: Duration = Duration::from_secs(1);

/// Interval at which an unanswered flip is repeated: a few round trips of a busy network.
pub const FLIP_AGAIN: Duration = Duration::from_millis(5);

/// Time after which the source asks the coordinator about an unanswered flip: four flips are lost.
pub const FLIP_UNANSWERED: Duration = Duration::from_millis(20);

/// Interval at which a target repeats its question to the source before it promises to accept a
/// flip.
pub const REACH_AGAIN: Duration = Duration::from_millis(100);

/// Time for which it asks. A connection that must be made first takes a few round trips.
pub const REACHING_MAX: Duration = Duration::from_secs(1);

/// Time after which a target withdraws its promise to accept a flip. The coordinator gives up a
/// target that has been unreachable for 5 s, so such a target must not accept afterwards.
/// Freezing takes at most two thirds of this time.
pub const PREPARED_MAX: Duration = Duration::from_secs(2);

/// Time from its promise for which a target that has accepted a flip serves the range without
/// evidence that the source or the coordinator knows of the acceptance. The coordinator gives up
/// a target after 5 s without contact, counted from no earlier than the promise. Until then no
/// other server serves the range, even if the target's clock is slower by a twentieth.
pub const UNACKNOWLEDGED_MAX: Duration = Duration::from_millis(4_500);

/// Interval at which a report to the coordinator is repeated until it has an effect.
pub const TELL_AGAIN: Duration = Duration::from_millis(100);

/// Interval at which an unanswered pull or priority pull is repeated, and pause before records are
/// requested again that could not be replayed.
pub const PULL_AGAIN: Duration = Duration::from_millis(250);

const _: () = assert!(FLIP_AGAIN.as_nanos() < FLIP_UNANSWERED.as_nanos());
const _: () = assert!(FLIP_UNANSWERED.as_nanos() < TELL_AGAIN.as_nanos());
const _: () = assert!(FREEZE_MAX.as_nanos() <= FREEZE_LONGEST.as_nanos());
const _: () = assert!(FREEZES_MAX > 0);
const _: () = assert!(REACH_AGAIN.as_nanos() * 4 <= REACHING_MAX.as_nanos());
const _: () = assert!(
    (FREEZE_MAX.as_nanos() + FREEZE_AGAIN.as_nanos()) * FREEZES_MAX as u128
        <= PREPARED_MAX.as_nanos() / 4
);
const _: () = assert!(UNACKNOWLEDGED_MAX.as_nanos() > 2 * PREPARED_MAX.as_nanos());
const _: () = assert!(FREEZE_MAX.as_nanos() * 4 <= FREEZE_AGAIN.as_nanos());
// The last attempt may begin when no time is left for another one.
const _: () = assert!(
    (FREEZING_MAX.as_nanos() + FREEZE_LONGEST.as_nanos()) * 3 <= PREPARED_MAX.as_nanos() * 2
);
