//! Time and size limits of replication: how long each side waits before it asks again, and how
//! much work it does at once. Repetitions are harmless, so these limits only trade traffic
//! against delay.

use std::time::Duration;

/// Duration of the read lease. A master serves only while a quorum of the backups of its current
/// manifest segment has acknowledged a message sent within this time. A server that takes over
/// its ranges waits for longer.
pub const LEASE: Duration = Duration::from_millis(100);

/// Maximum advance of an expiry clock during one [`LEASE`], since it runs up to a twentieth fast.
/// A dead master therefore judged no reply by a later time than this after the last clock that
/// all backups of the manifest received.
pub const CLOCK_LEASE: Duration = Duration::from_millis(105);

const _: () = assert!(
    CLOCK_LEASE.as_millis() * crate::clock::SLEW_PARTS as u128
        >= LEASE.as_millis() * (crate::clock::SLEW_PARTS as u128 + 1)
);

/// Interval at which a master sends to the backups of its manifest. The lease survives three lost
/// messages, or a backup that is busy for 75 ms.
pub const BEAT: Duration = Duration::from_millis(25);

/// Time after which an unanswered message is followed by a question. Connections lose nothing
/// while they are up, so the question usually goes to a slow backup.
pub const AGAIN: Duration = Duration::from_millis(100);

/// Time without an answer after which a master reports a backup to the coordinator: three beats,
/// while the lease still holds. Some backups are only busy; a false report costs two small
/// messages.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(75);

/// Minimum interval between a master's reports about the same backup.
pub const SUSPECT_AGAIN: Duration = Duration::from_millis(100);

/// Time without progress after which a backup is replaced: three beats, and less than the lease.
/// The limit doubles when a replaced backup answers soon.
pub const SILENT_AFTER: Duration = Duration::from_millis(75);

/// Maximum of that limit, so that a permanent fault costs less than two seconds of writes. An
/// answer is soon if it comes within this time after the replacement.
pub const SILENT_AFTER_MAX: Duration = Duration::from_millis(1_200);

/// Time after which a raised limit is halved, unless it is raised again.
pub const SILENT_CALM: Duration = Duration::from_secs(60);

/// Time for which several backups must be late before one is replaced. If several are late at
/// once, the master was more likely cut off or suspended itself.
pub const SILENT_SEVERAL: Duration = Duration::from_millis(250);

/// Delay of a master's own check from which it assumes that it has not read its input either.
/// Backups that seem late then get another beat.
pub const SILENT_LATE_LOOK: Duration = BEAT;

/// Time for which a replaced backup is not used again; it doubles with every replacement.
pub const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum of that pause. After the pause the backup must also have answered a question.
pub const SILENT_PAUSE_MAX: Duration = Duration::from_secs(8);

/// Maximum of that pause for a backup that is not needed, because the others are enough.
pub const SPARE_PAUSE_MAX: Duration = Duration::from_secs(64);

/// Interval at which a silent backup is asked.
pub const SILENT_PROBE: Duration = Duration::from_millis(250);

/// Delay before messages that were in flight on a broken connection are asked for. Long enough to
/// reconnect within a rack.
pub const BROKEN_AGAIN: Duration = Duration::from_millis(5);

/// Time for which a backup that has refused or spoiled a replica gets no other one. It doubles
/// with each further refusal, up to [`SHORT_MAX`].
pub const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Maximum of that time while fewer backups answer than a write needs, so that clients' writes are
/// refused. The own disk of a server without a cluster has no other backup beside it.
pub const REFUSED_PAUSE_URGENT: Duration = Duration::from_millis(100);

/// Time after which an open segment with too few replicas is ended, provided another backup might
/// take a copy. The segment ends earlier when a backup that refused may be asked again, and at
/// once when a new backup appears. If all backups refuse, a master that writes little wastes a
/// segment each time.
pub const SHORT_MAX: Duration = Duration::from_secs(10);

/// Number of copies that one replicator makes at the same time.
pub const COPIES_MAX: usize = 2;

/// Size in bytes of the pieces of a copy. A backup writes one within a turn while clients wait:
/// in 1 ms where its memory is new (0.3 GB/s).
pub const COPY_BYTES: u32 = 256 << 10;

/// Pause after a death during which only copies are made that a reply waits for. The dead server's
/// ranges are recovered meanwhile with the same disks and processors, and clients wait for that.
pub const COPIES_REST: Duration = Duration::from_secs(2);

/// Maximum of that pause while a recovery replay runs on this server. Copies must not wait
/// longer, because a segment that has lost one replica may lose the others.
pub const COPIES_REST_MAX: Duration = Duration::from_secs(10);

/// Number of candidates drawn for each replica; the least loaded one is chosen. Two do almost as
/// well as looking at all candidates (Mitzenmacher 2001); RAMCloud draws five.
pub const DRAWS: usize = 3;

/// Time without news of a replica after which a backup asks its master about it.
pub const UNHEARD_MAX: Duration = Duration::from_secs(10);

/// Number of replicas of an earlier process that a backup reads concurrently while no recovery
/// waits for them. Only one, so that writes do not wait for the disk.
pub const READ_AT_LEISURE: usize = 1;

/// Number of replicas that a backup reads concurrently while a recovery waits for them.
pub const READ_IN_HASTE: usize = 4;

/// Pause after a measurement in which the disk has failed, until one such replica is tried again. A
/// recovery may wait for it. A disk that never works again costs one attempt per pause.
pub const MEASURE_AGAIN: Duration = Duration::from_secs(1);

/// Rate at which a backup scrubs its replicas, in bytes per second: 60 GB in an hour, 4 TB in
/// three days.
pub const SCRUB_BYTES_PER_SECOND: u64 = 16 << 20;

/// Time after which a scrub is repeated if the replica's file could not be opened.
pub const SCRUB_AGAIN: Duration = Duration::from_secs(60);

const _: () = assert!(BEAT.as_nanos() * 4 <= LEASE.as_nanos());
const _: () = assert!(BEAT.as_nanos() * 3 <= SUSPECT_AFTER.as_nanos());
const _: () = assert!(SUSPECT_AFTER.as_nanos() < LEASE.as_nanos());
const _: () = assert!(SILENT_AFTER.as_nanos() < LEASE.as_nanos());
const _: () = assert!(BROKEN_AGAIN.as_nanos() < BEAT.as_nanos());
const _: () = assert!(AGAIN.as_nanos() < UNHEARD_MAX.as_nanos());
const _: () = assert!(SUSPECT_AFTER.as_nanos() <= SUSPECT_AGAIN.as_nanos());
const _: () = assert!(SILENT_AFTER.as_nanos() < SILENT_AFTER_MAX.as_nanos());
const _: () = assert!(SILENT_AFTER.as_nanos() < SILENT_SEVERAL.as_nanos());
const _: () = assert!(SILENT_PROBE.as_nanos() < SILENT_PAUSE.as_nanos());
const _: () = assert!(SILENT_PAUSE.as_nanos() <= SILENT_PAUSE_MAX.as_nanos());
const _: () = assert!(SILENT_PAUSE_MAX.as_nanos() < SILENT_CALM.as_nanos());
const _: () = assert!(REFUSED_PAUSE_URGENT.as_nanos() <= REFUSED_PAUSE.as_nanos());
const _: () = assert!(REFUSED_PAUSE.as_nanos() <= SHORT_MAX.as_nanos());
const _: () = assert!(COPIES_REST.as_nanos() <= COPIES_REST_MAX.as_nanos());
const _: () = assert!(COPIES_MAX > 0 && DRAWS > 0 && COPY_BYTES > 0);
const _: () = assert!(0 < READ_AT_LEISURE && READ_AT_LEISURE <= READ_IN_HASTE);
