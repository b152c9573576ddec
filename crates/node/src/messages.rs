//! Messages between servers as plain data, with their connections and raw bytes.

use types::ServerId;
use wire::peer::PeerMessage;

/// Identifies the connection on which a message arrived, so that its answer can be sent back. The
/// driver of the engine assigns the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route(pub u64);

impl Route {
    /// Route of a message that a server sends to itself. Such a message never leaves the engine,
    /// and no connection has this number.
    pub(crate) const HERE: Route = Route(u64::MAX);
}

/// Raw bytes that followed a message, still in the buffer of the whole frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Buffer with the whole frame.
    pub buffer: Vec<u8>,
    /// Offset of the payload in the buffer.
    pub start: usize,
}

impl Payload {
    /// Returns the payload.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A server, over one of this reactor's own connections.
    Server(ServerId),
    /// The connection on which a message arrived.
    Back(Route),
}

impl To {
    /// Returns whether a message of server `me` with this destination goes to `me` itself.
    pub(crate) fn is_here(self, me: ServerId) -> bool {
        match self {
            To::Server(server) => server == me,
            To::Back(route) => route == Route::HERE,
        }
    }
}

/// One message between servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Destination.
    pub to: To,
    /// Set if operations wait for the message.
    pub is_priority: bool,
    /// Message.
    pub message: PeerMessage,
    /// Raw bytes that follow the message.
    pub payload: Vec<u8>,
}
