//! Events and effects of a [`MigrationTarget`](super::MigrationTarget).

use crate::Ticket;
use crate::migration::text;
use std::fmt;
use types::{HashRange, Instant, KeyHash, ServerId};
use wire::control::{Intent, MigrationUpdate};
use wire::peer::{Flip, PeerMessage, Pull, PullReply};

/// An event at a target.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetEvent {
    /// The coordinator announces an intent.
    Prepare(Box<Intent>),
    /// The result of [`TargetEffect::Reserve`]: the reason if memory could not be reserved.
    Reserved(Result<(), String>),
    /// A server has answered a [`PeerMessage::Ping`].
    Heard {
        /// The sender.
        from: ServerId,
    },
    /// The coordinator asks whether the target has accepted; if it has not, it must never accept.
    Decide,
    /// The coordinator's map assigns the range to this server.
    Acknowledged,
    /// The coordinator ends the migration.
    Finished,
    /// The source has died after the flip: it sends nothing more.
    SourceDied,
    /// The source no longer serves the range.
    Flip {
        /// The sender.
        from: ServerId,
        /// The flip.
        flip: Box<Flip>,
    },
    /// [`TargetEffect::Accept`] is complete, and every reactor has begun a turn since then.
    Serving,
    /// The source sent the records of a piece.
    PullReply {
        /// The sender.
        from: ServerId,
        /// The header of the reply.
        reply: PullReply,
        /// The records; `None` if the piece has none.
        payload: Option<Ticket>,
    },
    /// A [`TargetEffect::Replay`] is complete.
    Replayed {
        /// The partition from the effect.
        partition: u16,
        /// The ticket from the effect.
        ticket: Ticket,
        /// The records that were replayed.
        added: Added,
    },
    /// A [`TargetEffect::Replay`] failed: the payload is damaged, or memory is full.
    ReplayFailed {
        /// The partition from the effect.
        partition: u16,
        /// The ticket from the effect.
        ticket: Ticket,
    },
    /// A reactor has replayed the answer to a priority pull.
    PriorityReplayed {
        /// The records that were replayed.
        added: Added,
    },
    /// A [`TargetEffect::Cut`] is committed.
    CutCommitted,
    /// A deadline has passed: [`next_deadline`](crate::Machine::next_deadline).
    Tick,
}

/// The amount of data that a replay processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Records of the payload.
    pub records: u64,
    /// Their bytes in the log.
    pub bytes: u64,
}

/// An action that a target asks its driver to take; the driver applies actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetEffect {
    /// Reserves memory for the records of the range, then reports [`TargetEvent::Reserved`].
    Reserve {
        /// Bytes of the range's live records at the source.
        bytes: u64,
    },
    /// Releases the unused part of the reservation.
    Unreserve,
    /// Raises the version counter, sets the range's expiry clock, and begins to serve the range
    /// as an arriving one. Once every reactor has begun a turn since then, report
    /// [`TargetEvent::Serving`].
    Accept(Box<Acceptance>),
    /// Holds every operation on the range, because the source may serve it again.
    Suspend,
    /// Serves the range again.
    Resume,
    /// Sends a message to a server.
    Send {
        /// The receiver.
        to: ServerId,
        /// The message.
        message: PeerMessage,
    },
    /// Sends a pull to the source. Independent work: pulls may leave from different reactors.
    Pull {
        /// The receiver.
        to: ServerId,
        /// The pull.
        pull: Pull,
    },
    /// Replays a payload, then reports [`TargetEvent::Replayed`] or
    /// [`TargetEvent::ReplayFailed`]. Independent work for any reactor, in any order.
    Replay {
        /// The partition of the payload.
        partition: u16,
        /// The payload.
        ticket: Ticket,
    },
    /// Drops a payload that is not needed.
    Discard {
        /// The payload.
        ticket: Ticket,
    },
    /// Publishes the new progress to operations: all records of the partition below `to` are here.
    Advance {
        /// The partition.
        partition: u16,
        /// The new progress; `None`: the whole partition.
        to: Option<KeyHash>,
    },
    /// Commits the replayed records by splicing every reactor's side log, then reports
    /// [`TargetEvent::CutCommitted`].
    Cut,
    /// Sends a message to the coordinator.
    Tell(MigrationUpdate),
    /// Serves the range as an ordinary one, and drops the migration's own state.
    Finish,
}

/// The parameters with which the target begins to serve a range.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    /// The intent from the coordinator.
    pub intent: Intent,
    /// The flip from the source.
    pub flip: Flip,
    /// The partitions of the range, ascending.
    pub partitions: Vec<HashRange>,
    /// End of service without evidence: see
    /// [`unacknowledged_until`](super::MigrationTarget::unacknowledged_until).
    pub until: Instant,
}

impl fmt::Display for TargetEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetEvent::Prepare(intent) => write!(f, "prepare {intent}"),
            TargetEvent::Reserved(Ok(())) => f.write_str("reserved"),
            TargetEvent::Reserved(Err(reason)) => write!(f, "no room: {reason}"),
            TargetEvent::Heard { from } => write!(f, "{from} answers"),
            TargetEvent::Decide => f.write_str("decide"),
            TargetEvent::Acknowledged => f.write_str("acknowledged"),
            TargetEvent::Finished => f.write_str("finished"),
            TargetEvent::SourceDied => f.write_str("the source has died"),
            TargetEvent::Flip { from, flip } => {
                write!(f, "{from} flips {} at floor {}", flip.range, flip.version_floor)
            }
            TargetEvent::Serving => f.write_str("serving"),
            TargetEvent::PullReply { from, reply, payload } => {
                write!(f, "{from} pull-reply p{} from {}", reply.partition, reply.cursor)?;
                write!(f, " to {}", text::cursor(reply.next))?;
                match payload {
                    Some(ticket) => write!(f, " {ticket}"),
                    None => f.write_str(" empty"),
                }
            }
            TargetEvent::Replayed { partition, ticket, .. } => {
                write!(f, "replayed p{partition} {ticket}")
            }
            TargetEvent::ReplayFailed { partition, ticket } => {
                write!(f, "replay failed p{partition} {ticket}")
            }
            TargetEvent::PriorityReplayed { added } => {
                write!(f, "replayed {} priority records", added.records)
            }
            TargetEvent::CutCommitted => f.write_str("cut committed"),
            TargetEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for TargetEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetEffect::Reserve { bytes } => write!(f, "reserve {bytes} bytes"),
            TargetEffect::Unreserve => f.write_str("unreserve"),
            TargetEffect::Accept(acceptance) => write!(
                f,
                "accept {} at floor {} in {} partitions",
                acceptance.flip.range,
                acceptance.flip.version_floor,
                acceptance.partitions.len()
            ),
            TargetEffect::Suspend => f.write_str("suspend"),
            TargetEffect::Resume => f.write_str("resume"),
            TargetEffect::Send { to, message } => write!(f, "send {to} {}", text::peer(message)),
            TargetEffect::Pull { to, pull } => {
                write!(f, "send {to} pull p{} from {}", pull.partition, pull.cursor)
            }
            TargetEffect::Replay { partition, ticket } => write!(f, "replay p{partition} {ticket}"),
            TargetEffect::Discard { ticket } => write!(f, "discard {ticket}"),
            TargetEffect::Advance { partition, to } => {
                write!(f, "advance p{partition} to {}", text::cursor(*to))
            }
            TargetEffect::Cut => f.write_str("cut"),
            TargetEffect::Tell(message) => write!(f, "tell {message}"),
            TargetEffect::Finish => f.write_str("finish"),
        }
    }
}
