//! Bugs on purpose, inside of the real code. Who tests the simulator: each breaks one rule at one
//! place, and a run must find it.
//!
//! The place asks [`is`]. Without the feature `on`, which only the simulator's tests turn on, the
//! answer is a constant, and the compiler leaves nothing of the question.
//!
//! What can be broken from outside (a message changed on its way, the store told something untrue)
//! has no place in here.

#![forbid(unsafe_code)]

#[cfg(feature = "on")]
use std::cell::Cell;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A conditional write, increment or delete takes a record that has not arrived for absent.
    DecidedOnMissing,
    /// A read takes a record that has not arrived for absent.
    MissingReadAsAbsent,
    /// A command on several keys takes those that have not arrived for absent.
    PartnerReadAsAbsent,
    /// A source that has left a range still serves it from its copy.
    CopyServedAfterLeaving,
    /// Clients are redirected while it is open who will own the range.
    RedirectedWhileHeld,
    /// The reply to a request that has overtaken a parked one leaves before the other's.
    ReplyOvertakes,
    /// A request overtakes a parked one of the same key.
    KeyOvertaken,
    /// A request that waited for its turn behind another is not started when the other is done.
    TurnForgotten,
    /// What the source still has of a table that was flushed arrives nevertheless.
    FlushedArrives,
    /// A walk does not wait for what has not arrived.
    WalkNotWaiting,
    /// A source that has left keeps its copy, and serves it when the range has come back.
    OldCopyKept,
    /// The cleaner drops tombstones whose dead versions would still be read after a crash.
    TombstoneDroppedEarly,
    /// The cleaner drops dead objects without regard to what they keep dead.
    OverwriteForgotten,
    /// A segment leaves the log before what killed its entries is stable.
    LeftBeforeStable,
    /// A segment leaves the log before those from which its entries were copied.
    LeftBeforeOrigin,
    /// Of a tombstone and an object of the same version, the object stays.
    TieToObject,
    /// What names an entry that was lost in a crash is taken as if it were there.
    LostLinkIgnored,
    /// A tombstone's word goes before the tombstone is stable.
    GraveClosedEarly,
    /// A relative time to live counts from the wall clock.
    LifeFromWallClock,
    /// An expired record is reclaimed before it is stable.
    ReclaimedUnstable,
    /// What a segment got is acknowledged before its backups have it.
    AcknowledgedBeforeReplicas,
    /// What a segment got is acknowledged before the directory names it.
    DataBeforeOpen,
    /// A replica is read whatever its length, and whether it was an original or not.
    StaleReplicaUsed,
    /// When the target of a migration dies, what it had not pulled is looked for in its log alone.
    DependencyDroppedEarly,
    /// A source takes back what did not arrive without what the target has written.
    TakenBackWithoutTarget,
    /// A range that is being recovered is served.
    ServedBeforeReplayed,
    /// A cut counts before what was replayed is safe.
    CutBeforeHeadsAreSafe,
    /// A master serves without a lease.
    ZombieServes,
    /// A recovery does not raise the counter of versions.
    VersionsGoBack,
    /// A log is freed while a migration may need it.
    FreedWhileDependedOn,
    /// A part counts as recovered before what was replayed is safe.
    FreedBeforeCommit,
    /// A part that is served before it is safe does not hang on the dead server's log.
    InheritanceForgotten,
    /// What not every replica of an open segment has is served before it is safe elsewhere.
    UnsettledShown,
}

#[cfg(feature = "on")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Whether bugs can be planted in this build.
pub const IS_ON: bool = cfg!(feature = "on");

/// From here on this thread's code has this bug, or none.
///
/// # Panics
/// If bugs cannot be planted in this build.
pub fn plant(bug: Option<Bug>) {
    #[cfg(feature = "on")]
    PLANTED.set(bug);
    #[cfg(not(feature = "on"))]
    assert_eq!(bug, None, "this build has no places for planted bugs");
}

/// Whether this bug is to be made.
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
