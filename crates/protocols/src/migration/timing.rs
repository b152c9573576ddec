//! The numbers of the protocol: how long each side waits before it repeats itself, asks, or gives
//! way. Each repetition is harmless, so that they only trade traffic against delay.

use std::time::Duration;

/// A source whose reactors have not all begun a turn by then serves again: clients have waited
/// long enough. A turn with a full background quantum is 100 times shorter. Where writes take long
/// to be acknowledged, twice that comes on top.
pub const FREEZE_MAX: Duration = Duration::from_millis(5);

/// Longest time for which a range is frozen in one attempt, however slow the backups are: a sync of a
/// slow disk takes less, and clients take it for a pause of theirs.
pub const FREEZE_LONGEST: Duration = Duration::from_millis(100);

/// Pause before the next attempt to freeze, at least; at most a fifth of the time is frozen.
pub const FREEZE_AGAIN: Duration = Duration::from_millis(20);

/// Attempts to freeze before the source asks the coordinator to withdraw the intent.
pub const FREEZES_MAX: u32 = 10;

/// All attempts to freeze, and what was waited for between them, end by then.
pub const FREEZING_MAX: Duration = Duration::from_secs(1);

/// An unanswered flip is sent again: some round trips of a busy network.
pub const FLIP_AGAIN: Duration = Duration::from_millis(5);

/// An unanswered flip is brought before the coordinator: four flips have found no answer.
pub const FLIP_UNANSWERED: Duration = Duration::from_millis(20);

/// A target that has promised to accept a flip takes the promise back after this time, by itself.
/// The coordinator gives up a target that has been away for 5 s, without its word; a target that
/// it cannot reach must not accept afterwards. Freezing takes half of it at most.
pub const PREPARED_MAX: Duration = Duration::from_secs(2);

/// A target that has accepted a flip serves the range for so long from its promise on, unless the
/// source or the coordinator has shown that it knows. The coordinator gives a target up that has
/// been away for 5 s, and saw it last no earlier than when the promise left: until then nobody else
/// serves the range, even if the target's clock is slower by a twentieth.
pub const UNACKNOWLEDGED_MAX: Duration = Duration::from_millis(4_500);

/// What is told to the coordinator is told again until it shows an effect.
pub const TELL_AGAIN: Duration = Duration::from_millis(100);

/// An unanswered pull of either kind is sent again.
pub const PULL_AGAIN: Duration = Duration::from_millis(250);

const _: () = assert!(FLIP_AGAIN.as_nanos() < FLIP_UNANSWERED.as_nanos());
const _: () = assert!(
    (FREEZE_MAX.as_nanos() + FREEZE_AGAIN.as_nanos()) * FREEZES_MAX as u128
        <= PREPARED_MAX.as_nanos() / 4
);
const _: () = assert!(UNACKNOWLEDGED_MAX.as_nanos() > 2 * PREPARED_MAX.as_nanos());
const _: () = assert!(FREEZE_MAX.as_nanos() * 4 <= FREEZE_AGAIN.as_nanos());
// The last attempt may begin when there is no more time for another.
const _: () = assert!(
    (FREEZING_MAX.as_nanos() + FREEZE_LONGEST.as_nanos()) * 3 <= PREPARED_MAX.as_nanos() * 2
);
