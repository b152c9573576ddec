//! Identifiers, classes, origins and ends of connections.

use crate::buffers::BUFFER_BYTES;
use std::net::SocketAddr;

/// Identifies a listener to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port(pub u8);

/// Identifies an outgoing connection to the service that requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectTag(pub u64);

/// The origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// A peer connected to a listener of this process.
    Accepted {
        /// The listener.
        port: Port,
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// A connection requested by [`Io::connect`](crate::Io::connect) is established.
    Connected {
        /// The tag given to `connect`.
        tag: ConnectTag,
    },
}

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The service requested it.
    ByService,
    /// The peer reset the connection, or it failed.
    ByPeer,
    /// The peer did not accept the last output in time (see `Io::close_after_flush`).
    TooSlow,
    /// The connection had more unconsumed input than the runtime buffers.
    InputTooLarge,
    /// The reactors are stopping.
    Stopping,
}

/// Most bytes read from all connections of a class in one turn: about 30 us of copying for bulk
/// data, and a thousand small requests.
pub(crate) const TURN_BYTES_MAX: usize = 128 << 10;

/// The purpose of a connection. It determines the service order, the bytes per turn, and the
/// socket options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Between servers, with operations that wait for a reply: served first in every turn.
    Priority,
    /// Between servers: bulk data.
    Bus,
    /// From a client.
    Client,
}

impl Class {
    /// All classes, in the order in which a turn serves them.
    pub(crate) const ALL: [Class; 3] = [Class::Priority, Class::Bus, Class::Client];

    /// Returns how many bytes are read from one connection in one turn; the last read may exceed
    /// it. A client gets one bite, so that a deep pipeline does not delay other clients. A server
    /// gets one or more whole pull replies.
    pub(crate) const fn connection_bytes_max(self) -> usize {
        match self {
            Class::Priority | Class::Bus => TURN_BYTES_MAX,
            Class::Client => BUFFER_BYTES,
        }
    }

    /// Returns whether the peer is a server of the cluster, whose announced sizes are trusted.
    pub(crate) const fn is_bus(self) -> bool {
        match self {
            Class::Priority | Class::Bus => true,
            Class::Client => false,
        }
    }
}
