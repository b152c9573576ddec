//! The numbers of replication: how long each side waits before it asks again, and how much it does
//! at once. Each repetition is harmless, so that they only trade traffic against delay.

use std::time::Duration;

/// A master serves while each backup of its chain's current segment has acknowledged something
/// that was sent within this time. Whoever takes its ranges over waits for longer than that.
pub const LEASE: Duration = Duration::from_millis(100);

/// Most that an expiry clock gains within a lease: it runs up to a twentieth fast. So no answer
/// was judged by a later time than this behind the last clock that all backups of the chain got.
pub const CLOCK_LEASE: Duration = Duration::from_millis(105);

const _: () = assert!(
    CLOCK_LEASE.as_millis() * crate::clock::SLEW_PARTS as u128
        >= LEASE.as_millis() * (crate::clock::SLEW_PARTS as u128 + 1)
);

/// Backups of the chain hear from their master that often, so that the lease outlives three lost
/// messages, or a backup that is busy for 75 ms.
pub const BEAT: Duration = Duration::from_millis(25);

/// What is not answered is asked for again. Connections lose nothing while they stand, so this is
/// seldom more than a question to somebody who is slow.
pub const AGAIN: Duration = Duration::from_millis(100);

/// A backup that has not answered for so long is reported to the coordinator: after three beats, while
/// the lease still runs. Some are only busy, and a false report costs two small messages ...
pub const SUSPECT_AFTER: Duration = Duration::from_millis(75);

/// ... at most so often by each machine.
pub const SUSPECT_AGAIN: Duration = Duration::from_millis(100);

/// A backup that has come no closer to what it was sent for so long is replaced: three beats, and below
/// the lease. The limit doubles with every replacement ...
pub const SILENT_AFTER: Duration = Duration::from_millis(75);

/// ... up to this, so that a lasting fault still costs less than two seconds of writes, ...
pub const SILENT_AFTER_MAX: Duration = Duration::from_millis(1_200);

/// ... and halves when nothing was replaced for so long.
pub const SILENT_CALM: Duration = Duration::from_secs(60);

/// If several backups are late at a time, it is more likely the master that is cut off, or was not
/// running: none is replaced before that has lasted so long.
pub const SILENT_SEVERAL: Duration = Duration::from_millis(250);

/// A master that looks so much later than it wanted to has not listened either: whoever is late then
/// gets another beat.
pub const SILENT_LATE_LOOK: Duration = BEAT;

/// A backup that was replaced is not used again for so long, twice as long each time ...
pub const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// ... up to this, nor before it has answered a question ...
pub const SILENT_PAUSE_MAX: Duration = Duration::from_secs(8);

/// ... that is asked so often.
pub const SILENT_PROBE: Duration = Duration::from_millis(250);

/// What was on its way when a connection broke is asked for after this time: long enough for
/// another connection within a rack.
pub const BROKEN_AGAIN: Duration = Duration::from_millis(5);

/// A backup that has refused or spoiled a replica gets no other one for so long, and for twice as
/// long if it does so again, up to [`SHORT_MAX`].
pub const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A segment that is open with too few replicas for so long is ended if there is somebody who might
/// take a copy of it; when a backup that has refused may be asked again, if that is before; at once, if
/// somebody has come who was not there before. If they all refuse, a master that writes little wastes a
/// segment each time.
pub const SHORT_MAX: Duration = Duration::from_secs(10);

/// Replicas that are made anew at the same time by one machine ...
pub const COPIES_MAX: usize = 2;

/// ... in pieces of this size: a backup writes one within a turn, in 1 ms where its memory is new
/// (0.3 GB/s), and clients wait for that.
pub const COPY_BYTES: u32 = 256 << 10;

/// After a death nothing is copied for so long that nobody waits for: the dead server's ranges are
/// recovered meanwhile, by the same disks and processors, and clients wait for that.
pub const COPIES_REST: Duration = Duration::from_secs(2);

/// It goes on while something is replayed here, but not for longer than this: what has lost a replica
/// may lose the others.
pub const COPIES_REST_MAX: Duration = Duration::from_secs(10);

/// Candidates that are drawn for each replica; the least loaded one gets it. Two of them do almost
/// as well as looking at all (Mitzenmacher 2001); RAMCloud draws five.
pub const DRAWS: usize = 3;

/// A backup asks about a replica of which it has heard nothing for so long.
pub const UNHEARD_MAX: Duration = Duration::from_secs(10);

/// Replicas of an earlier process that a backup reads at the same time while nobody waits for what
/// they have: one, so that what is written meanwhile does not wait for the disk.
pub const READ_AT_LEISURE: usize = 1;

/// The same while a recovery waits for it.
pub const READ_IN_HASTE: usize = 4;

/// Limit of a backup that reads its replicas again: 60 GB in an hour,
/// 4 TB in three days.
pub const SCRUB_BYTES_PER_SECOND: u64 = 16 << 20;

/// A replica whose file could not be opened is tried again after this time.
pub const SCRUB_AGAIN: Duration = Duration::from_secs(60);

const _: () = assert!(BEAT.as_nanos() * 4 <= LEASE.as_nanos());
const _: () = assert!(BEAT.as_nanos() * 3 <= SUSPECT_AFTER.as_nanos());
const _: () = assert!(SUSPECT_AFTER.as_nanos() < LEASE.as_nanos());
const _: () = assert!(SILENT_AFTER.as_nanos() < LEASE.as_nanos());
const _: () = assert!(BROKEN_AGAIN.as_nanos() < BEAT.as_nanos());
const _: () = assert!(AGAIN.as_nanos() < UNHEARD_MAX.as_nanos());
