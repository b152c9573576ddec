//! Messages between a server and the coordinator. Each message may arrive twice or late. It names
//! its migration, epoch or map version, and a receiver that is past that state ignores it.
//!
//! An idle side of a connection sends an empty frame every [`ALIVE_AGAIN`]. The other side can
//! therefore detect a peer that hangs or is cut off.

mod clock;
mod joining;
mod liveness;
mod load_profile;
mod log;
mod map;
mod mark;
mod migration;
mod operator;
mod rebuild;
mod recovery;

pub use clock::{ClockQuestion, ClockReading, ClockReport};
pub use joining::{Join, JoinReply};
pub use liveness::{LivenessRequest, LivenessUpdate};
pub use load_profile::{BadLoadProfile, LOAD_SHARES_MAX, LoadProfile, LoadShare};
pub use log::{LogRequest, LogUpdate};
pub use map::{ClusterMap, ServerInfo, TabletInfo};
pub use mark::HistoryMark;
pub use migration::{
    Intent, MigrationPolicy, MigrationProgress, MigrationRequest, MigrationUpdate, PriorityPullMode,
};
pub use operator::{Answer, Ask, Health, LeaseGrant, MigrationReport, MigrationState};
pub use rebuild::{Description, HeldMigration, HeldState, HeldTablet, Holdings, RebuildReport};
pub use recovery::{
    LOGS_MAX, LogLoss, MANIFEST_BYTES_PER_MESSAGE, MISSING_SHOWN_MAX, ManifestPosition, PLACES_MAX,
    REPLICAS_PER_MESSAGE, RecoveryLog, RecoveryPartition, RecoveryReport, RecoveryRequest,
    RecoverySegment, RecoveryState, RecoveryUpdate, ReplicaInfo, ReplicaPlace,
    SEGMENTS_PER_MESSAGE,
};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use types::{HashRange, OwnershipEpoch};

/// Interval between two keep-alive frames on a control connection. A keep-alive is a frame
/// without message and payload, the encoding of `()`.
pub const ALIVE_AGAIN: Duration = Duration::from_secs(1);

/// Time without any frame after which a control connection is closed.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A message from a server to the coordinator. A component of the coordinator handles each family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// Joins the cluster; the first message on every connection of a server, under the id that
    /// its handshake claimed.
    Join(Join),
    /// Answer to a [`FromCoordinator::Clock`], sent by the link's own thread.
    Clock(ClockReading),
    /// A request of an operator, sent directly or forwarded by the server that received it.
    Ask {
        /// Request number, echoed in the answer.
        request: u64,
        /// The request.
        ask: Ask,
    },
    /// Describes the server's state, as requested by [`JoinReply::Describe`].
    Described(Description),
    /// Reports the liveness of this or another server.
    Liveness(LivenessUpdate),
    /// The owner of a new range confirms it. The owner begins to serve the range with the first
    /// map that no longer marks it as new, and is responsible for every write from then on.
    Holding {
        /// The range, as in the map.
        range: HashRange,
        /// Its epoch.
        epoch: OwnershipEpoch,
    },
    /// Reports the state of a migration.
    Migration(MigrationUpdate),
    /// Reports the state of a log.
    Log(LogUpdate),
    /// Reports the state of a part that the server recovers.
    Recovery(RecoveryUpdate),
}

impl fmt::Display for ToCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToCoordinator::Join(join) => join.fmt(f),
            ToCoordinator::Clock(reading) => reading.fmt(f),
            ToCoordinator::Ask { request, ask } => write!(f, "ask {request}: {ask:?}"),
            ToCoordinator::Described(description) => description.fmt(f),
            ToCoordinator::Liveness(update) => update.fmt(f),
            ToCoordinator::Holding { range, epoch } => write!(f, "holding {range} {epoch}"),
            ToCoordinator::Migration(update) => update.fmt(f),
            ToCoordinator::Log(update) => update.fmt(f),
            ToCoordinator::Recovery(update) => update.fmt(f),
        }
    }
}

/// A message from the coordinator to a server. A component of the server handles each family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// Answers a join.
    Join(JoinReply),
    /// Sent to every server once a second, and to a new one before its join is answered.
    Clock(ClockQuestion),
    /// Answer to an `Ask`.
    Answer {
        /// Request number, from the request.
        request: u64,
        /// The result.
        answer: Answer,
    },
    /// Position in the coordinator's history: until the next mark, no message on this connection
    /// depends on a later transaction.
    Mark(HistoryMark),
    /// Checks the liveness of the receiver or of another server.
    Liveness(LivenessRequest),
    /// The complete map. A map older than the known one has no effect.
    Map(ClusterMap),
    /// Controls a migration.
    Migration(MigrationRequest),
    /// Controls a log or its replicas.
    Log(LogRequest),
    /// Controls a recovery.
    Recovery(RecoveryRequest),
}

impl fmt::Display for FromCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FromCoordinator::Join(reply) => reply.fmt(f),
            FromCoordinator::Clock(question) => question.fmt(f),
            FromCoordinator::Answer { request, answer } => {
                write!(f, "answer {request}: {answer:?}")
            }
            FromCoordinator::Mark(mark) => mark.fmt(f),
            FromCoordinator::Liveness(request) => request.fmt(f),
            FromCoordinator::Map(map) => write!(f, "map {}", map.version),
            FromCoordinator::Migration(request) => request.fmt(f),
            FromCoordinator::Log(request) => request.fmt(f),
            FromCoordinator::Recovery(request) => request.fmt(f),
        }
    }
}

/// Implements the conversion from each family to the messages of its direction.
macro_rules! families {
    ($message:ident { $($family:ident($content:ty)),* }) => {
        $(impl From<$content> for $message {
            fn from(content: $content) -> $message {
                $message::$family(content)
            }
        })*
    };
}

families!(ToCoordinator {
    Join(Join),
    Clock(ClockReading),
    Described(Description),
    Liveness(LivenessUpdate),
    Migration(MigrationUpdate),
    Log(LogUpdate),
    Recovery(RecoveryUpdate)
});
families!(FromCoordinator {
    Join(JoinReply),
    Clock(ClockQuestion),
    Mark(HistoryMark),
    Liveness(LivenessRequest),
    Map(ClusterMap),
    Migration(MigrationRequest),
    Log(LogRequest),
    Recovery(RecoveryRequest)
});
