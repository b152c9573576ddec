//! Events and effects of a [`RecoveryMaster`](super::RecoveryMaster).

use crate::Ticket;
use std::fmt;
use types::{HashRange, OwnershipEpoch, ServerId, Version};
use wire::control::{RecoveryPartition, RecoveryUpdate};
use wire::peer::{RecoveryNext, RecoveryRead, RecoveryReply};

/// The identity of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionName {
    /// The dead server of the log, or of the first log if there are several.
    pub dead: ServerId,
    /// The key range of the part.
    pub range: HashRange,
    /// The epoch of the part, issued once.
    pub epoch: OwnershipEpoch,
}

impl PartitionName {
    /// Returns the identity of the part in a request; `None` if the request names no log.
    pub fn of(part: &RecoveryPartition) -> Option<PartitionName> {
        Some(PartitionName { dead: part.dead()?, range: part.range, epoch: part.epoch })
    }
}

impl fmt::Display for PartitionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} under {}", self.range, self.dead, self.epoch)
    }
}

/// The reason why a part cannot be recovered by this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartRefusal {
    /// The part does not fit into the server's memory. Clients are told so.
    NoRoom,
    /// Any other reason, in words for operators.
    Other(String),
}

impl fmt::Display for PartRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PartRefusal::NoRoom => {
                "there is not enough memory for its data: add a server, or give the live servers \
                 more memory"
            }
            PartRefusal::Other(reason) => reason,
        })
    }
}

/// The reason why a payload could not be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFailure {
    /// The server has no memory left.
    OutOfMemory,
    /// The payload does not decode to entries.
    Corrupt,
}

/// An event at a recovery master.
#[derive(Clone, Debug, PartialEq)]
pub enum RecoveryMasterEvent {
    /// The coordinator sent the part and some segments of a list.
    Part(Box<RecoveryPartition>),
    /// The result of [`RecoveryMasterEffect::Begin`]: a reason if the part cannot be recovered
    /// here.
    Begun(Result<(), PartRefusal>),
    /// A backup answered a read.
    Replied {
        /// The backup.
        from: ServerId,
        /// The header of the reply.
        reply: RecoveryReply,
        /// The entries; `None` if there are none.
        payload: Option<Ticket>,
    },
    /// A [`RecoveryMasterEffect::Replay`] is complete.
    Replayed {
        /// The ticket from the effect.
        ticket: Ticket,
    },
    /// A [`RecoveryMasterEffect::Replay`] failed. Some entries of the payload may have been
    /// replayed.
    ReplayFailed {
        /// The ticket from the effect.
        ticket: Ticket,
        /// The reason.
        why: ReplayFailure,
    },
    /// A [`RecoveryMasterEffect::Secure`] is complete.
    Secured,
    /// The connection to a backup broke: reads that it has not answered may be lost.
    ConnectionLost {
        /// The backup.
        backup: ServerId,
    },
    /// The coordinator has declared a server dead.
    Died {
        /// The server.
        backup: ServerId,
    },
    /// The coordinator confirmed that the part no longer depends on the dead server's log.
    Kept,
    /// The coordinator's map no longer shows the dead server as the owner of the part.
    Decided {
        /// Set if this server owns the part under its epoch; else another server does or did.
        is_ours: bool,
    },
    /// A deadline has passed: [`next_deadline`](crate::Machine::next_deadline).
    Tick,
}

/// An action that a recovery master asks its driver to take; the driver applies actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum RecoveryMasterEffect {
    /// Publishes the tablet as *recovering* and reports [`RecoveryMasterEvent::Begun`]. The driver
    /// refuses if memory is short, or if it holds entries of the range that the part does not
    /// include ([`RecoveryPartition::keeps`]).
    Begin,
    /// Sends a read to a backup.
    Read {
        /// The backup.
        backup: ServerId,
        /// The read.
        read: RecoveryRead,
    },
    /// Replays a payload, then reports [`RecoveryMasterEvent::Replayed`] or
    /// [`RecoveryMasterEvent::ReplayFailed`]. Independent work for any reactor, in any order.
    Replay {
        /// The payload.
        ticket: Ticket,
        /// Set if every replica of the dead server's log has these entries, so that a later
        /// recovery finds them. Otherwise the entries count as written by this server: no reply
        /// may show them before they are acknowledged here.
        is_common: bool,
    },
    /// Drops a payload that is not needed.
    Discard {
        /// The payload.
        ticket: Ticket,
    },
    /// Raises the version counter to `version`, and reports [`RecoveryMasterEvent::Secured`] when
    /// backups have acknowledged everything written. Nothing more will be replayed. The part is
    /// served as soon as the map shows this server as its owner, which may be earlier.
    Secure {
        /// Upper bound of the versions in the dead server's log.
        version: Version,
    },
    /// Sends a message to the coordinator.
    Tell(RecoveryUpdate),
    /// Drops the recovery state: the part is owned here and replicated.
    Finish,
    /// Stops replication and discards the tablet with all replayed entries. No replay is running.
    Abandon,
}

impl fmt::Display for ReplayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReplayFailure::OutOfMemory => "out of memory",
            ReplayFailure::Corrupt => "damaged",
        })
    }
}

impl fmt::Display for RecoveryMasterEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryMasterEvent::Part(part) => {
                let (here, total) = (part.segments.len(), part.segments_total);
                match PartitionName::of(part) {
                    Some(name) => write!(f, "{name}: ")?,
                    None => f.write_str("of no log: ")?,
                }
                write!(f, "list {}, {here} of {total} segments", part.list)
            }
            RecoveryMasterEvent::Begun(Ok(())) => f.write_str("begun"),
            RecoveryMasterEvent::Begun(Err(reason)) => write!(f, "cannot begin: {reason}"),
            RecoveryMasterEvent::Replied { from, reply, payload } => {
                write!(f, "{from}: {} from {}", reply.replica.segment, reply.from)?;
                match reply.next {
                    RecoveryNext::From(next) => write!(f, " to {next}")?,
                    RecoveryNext::End { length, .. } => write!(f, " to the end at {length}")?,
                    RecoveryNext::Missing => f.write_str(" is missing")?,
                }
                payload.map_or(Ok(()), |ticket| write!(f, " {ticket}"))
            }
            RecoveryMasterEvent::Replayed { ticket } => write!(f, "replayed {ticket}"),
            RecoveryMasterEvent::ReplayFailed { ticket, why } => {
                write!(f, "{ticket} is not replayed: {why}")
            }
            RecoveryMasterEvent::Secured => f.write_str("secured"),
            RecoveryMasterEvent::Kept => f.write_str("the part is safe for the coordinator"),
            RecoveryMasterEvent::ConnectionLost { backup } => {
                write!(f, "connection to {backup} lost")
            }
            RecoveryMasterEvent::Died { backup } => write!(f, "{backup} is dead"),
            RecoveryMasterEvent::Decided { is_ours: true } => f.write_str("the part is ours"),
            RecoveryMasterEvent::Decided { is_ours: false } => f.write_str("the part is not ours"),
            RecoveryMasterEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for RecoveryMasterEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryMasterEffect::Begin => f.write_str("begin"),
            RecoveryMasterEffect::Read { backup, read } => {
                write!(f, "read {} from {} at {backup}", read.replica.segment, read.from)
            }
            RecoveryMasterEffect::Replay { ticket, is_common: true } => {
                write!(f, "replay {ticket}")
            }
            RecoveryMasterEffect::Replay { ticket, is_common: false } => {
                write!(f, "replay and keep {ticket}")
            }
            RecoveryMasterEffect::Discard { ticket } => write!(f, "discard {ticket}"),
            RecoveryMasterEffect::Secure { version } => write!(f, "secure, {version}"),
            RecoveryMasterEffect::Tell(message) => write!(f, "tell {message}"),
            RecoveryMasterEffect::Finish => f.write_str("finish"),
            RecoveryMasterEffect::Abandon => f.write_str("abandon"),
        }
    }
}
