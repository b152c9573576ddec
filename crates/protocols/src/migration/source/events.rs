//! Events and effects of a [`MigrationSource`](super::MigrationSource).

use crate::migration::text;
use std::fmt;
use types::{HashRange, OwnershipEpoch, ServerId, UnixMillis, Version};
use wire::control::{Intent, MigrationUpdate};
use wire::peer::{PeerMessage, RecordCounts};
use wire::text::{list, verdict};

/// An event at a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEvent {
    /// The coordinator asks for the flip: the target is prepared.
    Start(Box<Intent>),
    /// Every write before [`SourceEffect::CatchUp`] is acknowledged.
    CaughtUp {
        /// The attempt number from the effect.
        attempt: u32,
    },
    /// The range is frozen: every reactor has begun a turn since [`SourceEffect::Freeze`].
    Frozen {
        /// The attempt number from the effect.
        attempt: u32,
        /// The state of the range, read after the last reactor began its turn.
        at: Box<FrozenState>,
    },
    /// The range cannot be frozen, because it is not served here under the intent's epoch.
    FreezeRefused {
        /// The attempt number from the effect.
        attempt: u32,
    },
    /// A server answered the flip.
    FlipAnswered {
        /// The sender; the answer counts only if this is the target.
        from: ServerId,
        /// Set if the target serves the range.
        accepted: bool,
    },
    /// The coordinator reports the outcome of the flip, or that there will be no flip.
    Outcome {
        /// Set if the target serves the range.
        accepted: bool,
    },
    /// The coordinator reports that only these ranges are still needed.
    Forget {
        /// The ranges, ascending.
        remaining: Vec<HashRange>,
    },
    /// The target has died, and this part of the range, which the target did not have, belongs to
    /// this server again. It leaves the migration.
    Returned {
        /// The part of the range.
        range: HashRange,
    },
    /// The driver has completed a [`SourceEffect::Forget`].
    Forgotten {
        /// The range from the effect.
        range: HashRange,
    },
    /// A deadline has passed: [`next_deadline`](crate::Machine::next_deadline).
    Tick,
}

/// The state of a frozen range, sent to the target with the flip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenState {
    /// Upper bound of all versions in the range: the server's version counter.
    pub version_floor: Version,
    /// The latest clock by which expiry was judged in the range.
    pub expiry_clock: UnixMillis,
    /// Number of records per table and slot.
    pub records: RecordCounts,
}

/// An action that a source asks its driver to take; the driver applies actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEffect {
    /// Waits until every write of the server so far is acknowledged, then reports
    /// [`SourceEvent::CaughtUp`]. Replaces an earlier wait.
    CatchUp {
        /// Number of this attempt, from 1.
        attempt: u32,
    },
    /// Holds every operation on the range and reports [`SourceEvent::Frozen`] once every reactor
    /// has begun a turn since then.
    Freeze {
        /// The range.
        range: HashRange,
        /// Epoch under which this server must own the range.
        epoch: OwnershipEpoch,
        /// Number of this attempt, from 1.
        attempt: u32,
    },
    /// Serves the range again and ends an attempt to freeze.
    Thaw {
        /// The range.
        range: HashRange,
    },
    /// Sends a message to a server.
    Send {
        /// The receiver.
        to: ServerId,
        /// The message.
        message: PeerMessage,
    },
    /// Redirects held and future operations on the range to the target.
    Leave {
        /// The range.
        range: HashRange,
        /// The server that serves it.
        to: ServerId,
        /// The epoch under which it serves.
        epoch: OwnershipEpoch,
    },
    /// Deletes the records of a range in the background, then reports [`SourceEvent::Forgotten`].
    /// Independent work.
    Forget {
        /// The range.
        range: HashRange,
    },
    /// Drops the range's tablet, since the index holds none of its records any more.
    Release,
    /// Sends a message to the coordinator.
    Tell(MigrationUpdate),
}

impl fmt::Display for SourceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceEvent::Start(intent) => write!(f, "start {intent}"),
            SourceEvent::CaughtUp { attempt } => write!(f, "caught up, attempt {attempt}"),
            SourceEvent::Frozen { attempt, at } => write!(
                f,
                "frozen, attempt {attempt}, floor {}, {} records",
                at.version_floor,
                at.records.total()
            ),
            SourceEvent::FreezeRefused { attempt } => {
                write!(f, "freeze refused, attempt {attempt}")
            }
            SourceEvent::FlipAnswered { from, accepted } => {
                write!(f, "{from} answers the flip: {}", verdict(*accepted))
            }
            SourceEvent::Outcome { accepted } => write!(f, "outcome {}", verdict(*accepted)),
            SourceEvent::Forget { remaining } => write!(f, "keep only {}", list(remaining)),
            SourceEvent::Returned { range } => write!(f, "{range} returns"),
            SourceEvent::Forgotten { range } => write!(f, "forgotten {range}"),
            SourceEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for SourceEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceEffect::CatchUp { attempt } => write!(f, "catch up, attempt {attempt}"),
            SourceEffect::Freeze { range, epoch, attempt } => {
                write!(f, "freeze {range} of {epoch}, attempt {attempt}")
            }
            SourceEffect::Thaw { range } => write!(f, "thaw {range}"),
            SourceEffect::Send { to, message } => write!(f, "send {to} {}", text::peer(message)),
            SourceEffect::Leave { range, to, epoch } => write!(f, "leave {range} to {to} {epoch}"),
            SourceEffect::Forget { range } => write!(f, "forget {range}"),
            SourceEffect::Release => f.write_str("release"),
            SourceEffect::Tell(message) => write!(f, "tell {message}"),
        }
    }
}
