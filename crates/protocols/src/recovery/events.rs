//! What happens to a [`Master`](super::Master), and what it wants done.

use crate::Ticket;
use crate::migration::to_coordinator;
use std::fmt;
use types::{HashRange, OwnershipEpoch, ServerId, Version};
use wire::control::{RecoveryPart, ToCoordinator};
use wire::peer::{RecoveryNext, RecoveryRead, RecoveryReply};

/// Which part of what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName {
    /// Whose log; the first one's, if there are several.
    pub dead: ServerId,
    /// What of it.
    pub range: HashRange,
    /// Given for this part once.
    pub epoch: OwnershipEpoch,
}

impl PartName {
    /// The name of the part that a message is about; `None`: no coordinator sends this.
    pub fn of(part: &RecoveryPart) -> Option<PartName> {
        Some(PartName { dead: part.dead()?, range: part.range, epoch: part.epoch })
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} under {}", self.range, self.dead, self.epoch)
    }
}

/// Why a part is handed back that does not fit into a server's memory, and what to do about it.
pub const NO_ROOM: &str =
    "there is no room for what it held: add a server, or give those that live more memory";

/// Why a payload could not be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFailure {
    /// There is no memory left.
    OutOfMemory,
    /// The bytes are no entries.
    Corrupt,
}

/// What happens to a recovery master.
#[derive(Clone, Debug, PartialEq)]
pub enum MasterEvent {
    /// The coordinator: this is the part, and some of the segments of a list.
    Part(Box<RecoveryPart>),
    /// What came of [`MasterEffect::Begin`]: a reason if the part cannot be recovered here.
    Begun(Result<(), String>),
    /// A backup has answered a read.
    Replied {
        /// Who.
        from: ServerId,
        /// What.
        reply: RecoveryReply,
        /// Where the entries are; `None` if there are none.
        payload: Option<Ticket>,
    },
    /// A [`MasterEffect::Replay`] has been carried out.
    Replayed {
        /// As in the effect.
        ticket: Ticket,
    },
    /// A [`MasterEffect::Replay`] cannot be carried out. A part of the payload may have been.
    ReplayFailed {
        /// As in the effect.
        ticket: Ticket,
        /// Why.
        why: ReplayFailure,
    },
    /// A [`MasterEffect::Secure`] has been carried out.
    Secured,
    /// What was sent to this server and not answered may be lost.
    ConnectionLost {
        /// To whom.
        backup: ServerId,
    },
    /// The coordinator has declared the server dead.
    Died {
        /// Which.
        backup: ServerId,
    },
    /// The coordinator: the part does not depend on the dead server's log any more.
    Kept,
    /// The coordinator's map: the dead server does not own the part any more.
    Decided {
        /// Whether we do, under the part's epoch. Else somebody else has it, or has had it.
        is_ours: bool,
    },
    /// Time has passed: [`Master::next_deadline`](super::Master::next_deadline).
    Tick,
}

/// What a recovery master wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum MasterEffect {
    /// Make the tablet *recovering* and say [`MasterEvent::Begun`]. To be refused if there is no room,
    /// or if there are entries of the range already, unless what is here counts too.
    Begin,
    /// Send this to a backup.
    Read {
        /// To whom.
        backup: ServerId,
        /// What.
        read: RecoveryRead,
    },
    /// Replay this payload and say [`MasterEvent::Replayed`] or [`MasterEvent::ReplayFailed`].
    /// Independent work: any reactor, in any order.
    Replay {
        /// The payload.
        ticket: Ticket,
        /// Whether the dead server's log has it for whoever reads it next. If not it counts as
        /// written here: nobody is shown it before it is safe here.
        is_settled: bool,
    },
    /// Nobody needs this payload.
    Discard {
        /// The payload.
        ticket: Ticket,
    },
    /// Nothing more will be replayed. Raise the version counter to this, and when all that was written
    /// is safe, say [`MasterEvent::Secured`]. The part is served as soon as the map says that it is ours,
    /// which may be before.
    Secure {
        /// Not below any version in the dead server's log.
        version: Version,
    },
    /// Tell the coordinator.
    Tell(ToCoordinator),
    /// The part is ours, and safe: what was needed to recover it can go.
    Finish,
    /// Stop to secure, and forget the tablet and all that was replayed. Nothing is being replayed.
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

impl fmt::Display for MasterEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MasterEvent::Part(part) => {
                let (here, total) = (part.segments.len(), part.segments_total);
                match PartName::of(part) {
                    Some(name) => write!(f, "{name}: ")?,
                    None => f.write_str("of no log: ")?,
                }
                write!(f, "list {}, {here} of {total} segments", part.list)
            }
            MasterEvent::Begun(Ok(())) => f.write_str("begun"),
            MasterEvent::Begun(Err(reason)) => write!(f, "cannot begin: {reason}"),
            MasterEvent::Replied { from, reply, payload } => {
                write!(f, "{from}: {} from {}", reply.replica.segment, reply.from)?;
                match reply.next {
                    RecoveryNext::From(next) => write!(f, " to {next}")?,
                    RecoveryNext::End { length, .. } => write!(f, " to the end at {length}")?,
                    RecoveryNext::Missing => f.write_str(" is missing")?,
                }
                payload.map_or(Ok(()), |ticket| write!(f, " {ticket}"))
            }
            MasterEvent::Replayed { ticket } => write!(f, "replayed {ticket}"),
            MasterEvent::ReplayFailed { ticket, why } => {
                write!(f, "{ticket} is not replayed: {why}")
            }
            MasterEvent::Secured => f.write_str("secured"),
            MasterEvent::Kept => f.write_str("the part is safe for the coordinator"),
            MasterEvent::ConnectionLost { backup } => write!(f, "connection to {backup} lost"),
            MasterEvent::Died { backup } => write!(f, "{backup} is dead"),
            MasterEvent::Decided { is_ours: true } => f.write_str("the part is ours"),
            MasterEvent::Decided { is_ours: false } => f.write_str("the part is not ours"),
            MasterEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for MasterEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MasterEffect::Begin => f.write_str("begin"),
            MasterEffect::Read { backup, read } => {
                write!(f, "read {} from {} at {backup}", read.replica.segment, read.from)
            }
            MasterEffect::Replay { ticket, is_settled: true } => write!(f, "replay {ticket}"),
            MasterEffect::Replay { ticket, is_settled: false } => {
                write!(f, "replay and keep {ticket}")
            }
            MasterEffect::Discard { ticket } => write!(f, "discard {ticket}"),
            MasterEffect::Secure { version } => write!(f, "secure, {version}"),
            MasterEffect::Tell(message) => write!(f, "tell {}", to_coordinator(message)),
            MasterEffect::Finish => f.write_str("finish"),
            MasterEffect::Abandon => f.write_str("abandon"),
        }
    }
}
