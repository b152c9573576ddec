//! What goes into the coordinator and what comes out: plain data that can be printed.

use protocols::migration::{from_coordinator, to_coordinator};
use std::fmt;
use types::{ClusterId, Generation, Instant, ServerId, UnixMillis};
use wire::control::{FromCoordinator, ToCoordinator};

/// One connection to the coordinator, numbered by whoever accepts connections and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// The process at the other end of a connection, as its handshake proved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A server, or a process that wants to be one.
    Server {
        /// The number that it has, and in which cluster.
        number: Option<(ClusterId, ServerId)>,
        /// The run of its process.
        generation: Generation,
    },
    /// An operator, who may only ask.
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

/// When something happens, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the monotonic clock: for time-outs.
    pub now: Instant,
    /// By the wall clock: for people.
    pub wall: UnixMillis,
}

/// What happens to the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A process has connected, and the handshake is over.
    Opened {
        /// The connection.
        connection: ConnectionId,
        /// The process.
        caller: Caller,
    },
    /// A message has come in.
    Received {
        /// On which connection.
        connection: ConnectionId,
        /// The message.
        message: ToCoordinator,
    },
    /// A connection has ended, whoever ended it.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
    /// Time has passed: [`crate::Coordinator::next_deadline`].
    Tick,
}

/// What the coordinator wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this. If the connection has ended meanwhile, the message is lost and nobody minds.
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// What.
        message: FromCoordinator,
    },
    /// End the connection, after what was sent before. No [`Event::Closed`] is expected.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
}

/// Effects, in the order in which they are to be carried out.
pub type Outbox = protocols::Outbox<Effect>;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Opened { connection, caller } => write!(f, "{connection} opened by {caller}"),
            Event::Received { connection, message } => {
                write!(f, "{connection} says {}", to_coordinator(message))
            }
            Event::Closed { connection } => write!(f, "{connection} closed"),
            Event::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Send { connection, message } => {
                write!(f, "to {connection}: {}", from_coordinator(message))
            }
            Effect::Close { connection } => write!(f, "close {connection}"),
        }
    }
}
