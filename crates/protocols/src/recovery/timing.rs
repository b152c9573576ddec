//! The numbers of recovery: how much is under way at once, and how long an answer is waited for.

use std::time::Duration;

/// Segments that one master reads at the same time, over all backups.
pub const FETCHES_MAX: usize = 8;

/// Segments that one master reads from one backup at the same time: masters of different parts stay
/// close to each other then, and a segment is read from a disk once for all of them.
pub const FETCHES_FROM_ONE_MAX: usize = 2;

/// Replies of one segment that wait for their replay before the next one is asked for.
pub const AHEAD_MAX: usize = 2;

/// Replies that wait for their replay, before nothing more is asked for. What is under way comes on
/// top: a reply for each fetch.
pub const REPLAYS_MAX: usize = FETCHES_MAX * AHEAD_MAX;

/// A backup that has not answered by then is silent: what it was asked for is read elsewhere, if
/// there is another place. It reads a segment in 5 ms from a good disk, and in 80 from a slow one; but
/// all masters ask at once, and asking again makes nobody faster. Who has died is known earlier.
pub const READ_AGAIN: Duration = Duration::from_secs(1);

/// What was on its way when a connection broke is asked for after this time.
pub const BROKEN_AGAIN: Duration = Duration::from_millis(5);

/// A place where nobody has answered so often is used up.
pub const SILENCES_MAX: u32 = 8;

/// What is told to the coordinator is told again until the map shows it.
pub const TELL_AGAIN: Duration = Duration::from_millis(100);

const _: () = assert!(BROKEN_AGAIN.as_nanos() < READ_AGAIN.as_nanos());
