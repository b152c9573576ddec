//! Inputs and outputs of the coordinator: plain data that can be printed.

use crate::metastore::{Transaction, Verdict};
use std::fmt;
use types::{ClusterId, Generation, Instant, ServerId, UnixMillis};
use wire::control::{FromCoordinator, ToCoordinator};

/// One connection to the coordinator. The accepting shell assigns the numbers and reuses none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// The process at the other end of a connection, as proven by its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A server, or a process that wants to join as one.
    Server {
        /// Its cluster and server number; `None` for a new server.
        number: Option<(ClusterId, ServerId)>,
        /// The run of the server's process.
        generation: Generation,
    },
    /// An operator, who may only send asks.
    Operator,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Server { number: Some((_, server)), .. } => write!(f, "{server}"),
            Caller::Server { number: None, .. } => f.write_str("a new server"),
            Caller::Operator => f.write_str("an operator"),
        }
    }
}

/// The time of an event, by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic time, for timeouts.
    pub now: Instant,
    /// Wall-clock time, for operators.
    pub wall: UnixMillis,
}

/// An input of the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum CoordinatorEvent {
    /// A process has connected and completed the handshake.
    Opened {
        /// The connection.
        connection: LinkId,
        /// The process.
        caller: Caller,
    },
    /// A message has arrived.
    Received {
        /// Connection of the sender.
        connection: LinkId,
        /// The message.
        message: ToCoordinator,
    },
    /// A connection has ended, by either side.
    Closed {
        /// The connection.
        connection: LinkId,
    },
    /// The metadata store has answered [`Effect::Commit`]. If the outcome is unknown, this event
    /// does not happen: the shell stops, and sends nothing more.
    Committed(Verdict),
    /// Time has passed; see [`crate::Coordinator::next_deadline`].
    Tick,
}

/// An output of the coordinator. The shell executes effects in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Sends a message. If the connection has ended meanwhile, the message is dropped, which the
    /// protocol tolerates.
    Send {
        /// Connection of the receiver.
        connection: LinkId,
        /// The message.
        message: FromCoordinator,
    },
    /// Applies a transaction to the metadata store. [`CoordinatorEvent::Committed`] has to follow;
    /// until then no other commit is produced, but other events may happen.
    Commit(Transaction),
    /// Closes the connection after all earlier messages. No [`CoordinatorEvent::Closed`] follows.
    /// One may precede, since the effect may have waited for a commit.
    Close {
        /// The connection.
        connection: LinkId,
    },
}

/// Effects in execution order.
pub type Effects = protocols::Outbox<Effect>;

impl fmt::Display for CoordinatorEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoordinatorEvent::Opened { connection, caller } => {
                write!(f, "{connection} opened by {caller}")
            }
            CoordinatorEvent::Received { connection, message } => {
                write!(f, "{connection} says {message}")
            }
            CoordinatorEvent::Closed { connection } => write!(f, "{connection} closed"),
            CoordinatorEvent::Committed(Verdict::Committed(revision)) => {
                write!(f, "transaction {} committed", revision.0)
            }
            CoordinatorEvent::Committed(Verdict::Conflict(key)) => {
                write!(f, "transaction refused: {key} has changed")
            }
            CoordinatorEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Send { connection, message } => {
                write!(f, "to {connection}: {message}")
            }
            Effect::Commit(transaction) => {
                write!(f, "commit {} changed records", transaction.writes.len())
            }
            Effect::Close { connection } => write!(f, "close {connection}"),
        }
    }
}
