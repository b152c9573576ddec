//! Planted bugs inside the real code, to test the simulator. Each bug breaks one rule at one
//! place, and a simulation must find it.
//!
//! The code asks [`is`] at that place. Without the feature `on`, which only the simulator's tests
//! enable, the answer is a constant, and the compiler removes the check.
//!
//! Bugs that can be injected from outside are not in this crate: for example a modified message,
//! or wrong arguments to the store.

#![warn(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

#[cfg(feature = "on")]
use std::cell::Cell;

/// A planted bug: the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A conditional write, increment or delete treats a record that has not arrived as absent.
    DecidedOnMissing,
    /// A read treats a record that has not arrived as absent.
    MissingReadAsAbsent,
    /// A multi-key command treats records that have not arrived as absent.
    PartnerReadAsAbsent,
    /// A source serves a range from its copy after the range has left.
    CopyServedAfterLeaving,
    /// Clients are redirected while the new owner of the range is undecided.
    RedirectedWhileHeld,
    /// The reply to a request that has overtaken a parked one is sent before the parked one's
    /// reply.
    ReplyOvertakes,
    /// A request overtakes a parked one of the same key.
    KeyOvertaken,
    /// A request that waits behind another is not started when the other has finished.
    TurnForgotten,
    /// The source's records of a flushed table still arrive.
    FlushedArrives,
    /// A scan does not wait for records that have not arrived.
    ScanNotWaiting,
    /// A source keeps its copy of a range that has left, and serves it when the range has come
    /// back.
    OldCopyKept,
    /// The cleaner drops tombstones while the versions that they supersede would still be read
    /// after a crash.
    TombstoneDroppedEarly,
    /// The cleaner drops dead objects without preserving what they supersede.
    OverwriteForgotten,
    /// A segment leaves the log before the entries that superseded its entries are synced.
    LeftBeforeSynced,
    /// A segment leaves the log before the segments from which its entries were copied.
    LeftBeforeOrigin,
    /// A restart does not note from which segments entries were copied, if these segments are read
    /// later.
    OriginForgotten,
    /// At equal versions an object wins against a tombstone.
    TieToObject,
    /// Recovery does not mend links to entries that were lost in a crash.
    LostLinkIgnored,
    /// A tombstone's index word is removed before the tombstone is synced.
    TombstoneRemovedEarly,
    /// A relative time to live counts from the wall clock.
    LifeFromWallClock,
    /// An expired record is reclaimed before it is synced.
    ReclaimedUnsynced,
    /// Bytes of a segment are acknowledged before the backups have them.
    AcknowledgedBeforeReplicas,
    /// Bytes of a segment are acknowledged before the segment manifest contains the segment.
    DataBeforeOpen,
    /// A replica is used even if its length is wrong or it is not an original.
    StaleReplicaUsed,
    /// When the target of a migration dies, records that it had not pulled are searched only in
    /// its log.
    DependencyDroppedEarly,
    /// A source takes back unpulled records without the target's writes to them.
    TakenBackWithoutTarget,
    /// A range is served while it is being recovered.
    ServedBeforeReplayed,
    /// A migration cut is committed before the replayed records are durable.
    CutBeforeHeadsAreSafe,
    /// A master serves without a lease.
    ZombieServes,
    /// A recovery does not raise the version counter.
    VersionsGoBack,
    /// A log is freed while a migration may need it.
    FreedWhileDependedOn,
    /// A recovery partition counts as recovered before the replayed records are durable.
    FreedBeforeCommit,
    /// A range that is served before it is durable does not keep the dead server's log from being
    /// freed.
    RecoveryDependencyForgotten,
    /// Bytes that some replicas of an open segment lack are served before they are durable
    /// elsewhere.
    DivergentShown,
    /// A coordinator's message leaves before the commit of the change that it tells of.
    SentBeforeCommit,
    /// A master goes on waiting for a backup that does not answer.
    SilentBackupKept,
    /// A log at rest is cleaned whether or not its backups are slow.
    SlowBackupCleaned,
    /// A master asks a backup again at once that has refused a replica.
    RefusalForgotten,
    /// Operations wait for a lapsed lease, however long it has lapsed.
    LapsedLeaseWaits,
    /// A range is frozen before every reactor has begun a turn.
    FrozenWithoutGrace,
    /// A replay replaces a record by an older version of it.
    OlderVersionReplayed,
    /// A pull that is not answered is not repeated.
    PullNotRepeated,
    /// A source asks the coordinator only once for the outcome of its flip.
    OutcomeAskedOnce,
    /// A target reports only once that it depends on nothing of the source.
    EndToldOnce,
    /// The coordinator takes a flip without an answer for a refused one.
    SilenceTakenForNever,
    /// Tombstones of an arriving range are never reclaimed.
    TombstonesLeft,
    /// Expiry is judged by the server's clock, not by that of the range.
    RangeClockIgnored,
    /// A source keeps the tablet of a range that it has released.
    LeavingTabletKept,
    /// A move waits without limit for an absent server.
    AbsentSideAwaited,
    /// The clock of a range jumps to the clock of its new owner if that one is ahead.
    ClockJumpsAhead,
    /// A request overtakes a parked one that concerns all keys.
    BarrierOvertaken,
    /// A request that concerns all keys overtakes parked ones.
    BarrierTooEarly,
    /// A write is answered before it is acknowledged.
    WriteNotGated,
    /// A reply shows a write that is not acknowledged.
    ReadNotGated,
    /// A write on condition of a version does not check it.
    VersionNotChecked,
    /// A record that is encoded anew at its arrival or recovery becomes a string.
    TypeLost,
    /// Each value with pages gets the same id.
    IdReused,
    /// The removal of orphans includes the pages of ranges that arrive.
    ArrivingPageSwept,
    /// A command that takes an item from a list leaves it there.
    PoppedItemKept,
    /// A command that adds an item behind two others adds it before them.
    PushedAtOtherEnd,
    /// Members of a sorted set with the same score are in the order in which they got it.
    EqualScoresUnordered,
    /// The order of a sorted set with pages takes over the version of a change, but not the change.
    OrderNotFollowed,
    /// The order of a sorted set with pages is used for any version of its root.
    OrderVersionIgnored,
    /// The highest id of a stream is forgotten with its entry.
    LastIdForgotten,
    /// A group delivers an entry again.
    DeliveredAgain,
    /// A stream is copied without the pending entries of its groups.
    PendingNotCopied,
    /// Pages of a stream are removed without its root.
    PagesRemovedAlone,
    /// Pages do not arrive with a range.
    PageNotMoved,
    /// Recoveries do not replay pages.
    PageNotRecovered,
    /// A recovery does not replay tombstones.
    TombstoneNotReplayed,
    /// Replayed records keep the incarnation of the log from which they come.
    IncarnationOfSource,
    /// A flushed table keeps its incarnation.
    IncarnationNotRenewed,
    /// A cut does not wait for records that are still in side logs.
    CutBeforeSplice,
    /// A segment is sealed before its replicas are complete.
    SealedBeforeReplicated,
    /// Segments that have lost a replica are not copied.
    LostReplicaNotCopied,
    /// A master goes on waiting for a dead backup.
    DeadBackupKept,
    /// An idle master sends no heartbeats.
    HeartbeatForgotten,
    /// A piece of a segment that was lost is not sent again.
    LostPieceForgotten,
    /// A backup reports its replicas before they are measured.
    ReportedBeforeMeasured,
    /// A backup reports its replicas before they are synced.
    ReportedBeforeSynced,
    /// A backup does not report that it has found damage in a replica.
    DamageNotReported,
    /// A partition whose recovery master dies is not assigned again.
    OrphanNotReassigned,
    /// A read of a dead server's log that is not answered is not repeated.
    RecoveryReadNotRepeated,
    /// A target promises to accept a flip before the source has answered.
    PromisedUnreached,
    /// The arrival of a range whose source has died does not end.
    ArrivalWithoutEnd,
    /// A pending reply that may leave takes later ones of its connection with it.
    GateReleasesAll,
    /// A recovery reads the shortest replica of the manifest.
    ShortestManifestUsed,
    /// A record that a replay replaces counts as live for ever.
    ReplacedStaysLive,
    /// `SET` with `KEEPTTL` removes the time to live.
    LifetimeNotKept,
    /// `GETEX` changes no time to live.
    LifetimeNotChanged,
    /// The remaining time to live counts from the wall clock.
    RemainingFromWallClock,
    /// Expired fields of a hash are found.
    FieldsNotJudged,
    /// An increment removes the time to live of a field.
    FieldLifetimeLost,
    /// A field that is set without a time to live keeps the one that it had.
    FieldLifetimeKept,
    /// The walk behind expired fields judges them by a clock that is a second ahead.
    FieldsSweptEarly,
    /// A write that has read an entry of another segment is sent before that entry is
    /// acknowledged.
    SentBeforeItsSource,
    /// A version mark is recorded before everything up to it is synced.
    MarkedBeforeSynced,
    /// A restart after a loss of power keeps entries above the version mark.
    KeptAboveMark,
    /// A standalone server in mode `memory` syncs its log only when it needs the memory.
    MemoryNotSynced,
    /// A segment leaves the log before the entries that superseded its entries are below a mark.
    LeftBeforeMark,
    /// A completion record is dropped before its replies are acknowledged.
    CompletionDroppedEarly,
    /// A migration does not move completion records.
    CompletionNotMoved,
    /// A recovery does not replay completion records.
    CompletionNotRecovered,
    /// A flush removes the completion records as well.
    CompletionsFlushed,
    /// A client repeats every write after it has lost the connection.
    LostWriteRepeated,
    /// A client repeats a write on condition that the key does not exist.
    AbsenceRepeated,
    /// A client does not remember that a write on condition of a version may have been executed.
    AmbiguityForgotten,
    /// A client reports a repeated write that is refused, or overdue, as not executed.
    AmbiguousTakenForRefused,
    /// A client reports a write that it has sent, and that is overdue, as not executed.
    SentTakenForUnsent,
    /// A client adopts a map that is older than its own.
    OlderMapAdopted,
    /// A client accepts events of an earlier connection.
    EarlierConnectionHeard,
    /// A client expects no reply to a request whose deadline has passed.
    OverdueReplyNotExpected,
    /// A client sends a redirected request to the same server again.
    RedirectionIgnored,
    /// A client's request has no deadline.
    DeadlineForgotten,
}

#[cfg(feature = "on")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Support for planted bugs in this build.
pub const IS_ON: bool = cfg!(feature = "on");

/// Plants a bug for this thread, or none.
///
/// # Panics
/// If this build does not support planted bugs.
pub fn plant(bug: Option<Bug>) {
    #[cfg(feature = "on")]
    PLANTED.set(bug);
    #[cfg(not(feature = "on"))]
    assert_eq!(bug, None, "this build has no places for planted bugs");
}

/// Returns whether this bug is planted.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    #[cfg(feature = "on")]
    return PLANTED.get() == Some(bug);
    #[cfg(not(feature = "on"))]
    {
        let _ = bug;
        false
    }
}
