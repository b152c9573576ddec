//! Rules that a run may break, and the report of a run.

use crate::coverage::FaultCoverage;
use crate::named::named;
use std::fmt;
use std::time::Duration;

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Fingerprint of all events.
    pub trace: u64,
    /// Number of operations that clients have finished.
    pub operations: usize,
    /// Number of migrations that ended with a change of owner.
    pub moved: usize,
    /// Number of migrations that were refused, cancelled or abandoned.
    pub not_moved: usize,
    /// Time that clients worked (virtual time).
    pub worked: Duration,
    /// Number of operations that servers refused.
    pub refused: usize,
    /// Number of reads of native clients whose value came from the source of a migration.
    pub source_values: u64,
    /// Longest time that a client waited for an operation.
    pub longest: Duration,
    /// Steps of protocols that the faults of the run have met.
    pub coverage: FaultCoverage,
    /// The rule that the run broke, if any.
    pub failure: Option<Failure>,
}

/// Broken rule, and how the run broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The broken rule.
    pub rule: Rule,
    /// Description of the violation.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

named! {
    /// Rule that every run must keep.
    Rule:
    Linearizable, "linearizable",
        "The results of the operations on each register are linearizable.";
    Decided, "decided",
        "The linearizability checker reaches a verdict for every register.";
    InOrder, "in-order",
        "Replies arrive in the order of their requests, and each reply is valid for its request.";
    WalksComplete, "walks-complete",
        "A scan returns every key that exists during the whole scan and does not move.";
    VersionsUnique, "versions-unique",
        "A version of a register belongs to one value, unless data was lost.";
    NotExecuted, "not-executed",
        "An operation that a native client reports as refused or not executed has no effect.";
    OneOutcome, "one-outcome",
        "Each request of a native client ends with one outcome, by its deadline.";
    ClientMapsRise, "client-maps-rise",
        "No native client adopts an older map than its own.";
    ExactlyOnce, "exactly-once",
        "A repeated exactly-once request gets the first reply again, or is refused if it was acknowledged.";
    MembersOrdered, "members-ordered",
        "The members of a sorted set are returned in the order of their scores and names.";
    WholePairs, "whole-pairs",
        "Two keys that are only written together are never read half-written.";
    OneOwner, "one-owner",
        "No hash is served by two servers.";
    EpochsRise, "epochs-rise",
        "A hash is never served under an older epoch than before.";
    MapsRise, "maps-rise",
        "No server adopts an older cluster map than its own.";
    LostStaysLost, "lost-stays-lost",
        "No server serves an old copy of a dead server's data.";
    ProgressFollowsReplay, "progress-follows-replay",
        "Every record behind the pull progress is at the target, unless deleted or expired there.";
    AskedOnce, "asked-once",
        "Records that the source does not have are not requested again and again.";
    NoCircles, "no-circles",
        "Servers do not redirect a client in circles.";
    RangeClocks, "range-clocks",
        "The clock of a range never goes back, and is never ahead or behind more than it may be.";
    Answered, "answered",
        "Every operation is answered, and every server whose range is not lost answers with data.";
    Available, "available",
        "While a fault lasts that the cluster can survive, each operation is answered in time.";
    MigrationsEnd, "migrations-end",
        "Every requested migration ends, unless one of its servers has died.";
    AsksAnswered, "asks-answered",
        "Every request for a move is refused, or each of its moves gets its own id.";
    ServersSettle, "servers-settle",
        "At the end, every server is connected to the coordinator and serves all its ranges.";
    WorkEnds, "work-ends",
        "At the end, no server has background work left.";
    NothingForgotten, "nothing-forgotten",
        "A recovered range has every record that its dead owner's backups had acknowledged.";
    ReplicasExist, "replicas-exist",
        "At rest, the disks have each replica that a master counts, with the same bytes.";
    ReportedIsDurable, "reported-is-durable",
        "A loss of power takes nothing of the replicas that a backup reports, except in `memory` mode.";
    OneMoment, "one-moment",
        "After a loss of power a server has what it had at its last version mark.";
    SyncedIsThere, "synced-is-there",
        "After a loss of power in mode memory each key is as it was at its last sync or later.";
    SyncedInTime, "synced-in-time",
        "A server in mode memory syncs its log after five intervals.";
    ForeignRefused, "foreign-refused",
        "A coordinator of another cluster refuses every server that has data of this one.";
    NothingLost, "nothing-lost",
        "The value of the last read of a register is found at exactly one server.";
    NothingStray, "nothing-stray",
        "No server holds records outside its ranges, or records that reads do not find.";
    CountsMatch, "counts-match",
        "The counters of records and live bytes match a full scan.";
    NoPanic, "no-panic",
        "No assertion of the product code fails.";
}

impl Rule {
    /// Returns a failure of this rule with this description.
    pub(crate) fn broken(self, text: impl Into<String>) -> Failure {
        Failure { rule: self, text: text.into() }
    }
}
