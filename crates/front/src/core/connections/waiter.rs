//! The id of a request that waits.

use types::ConnectionId;

/// A request, by connection and number (waiter id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId {
    pub(crate) connection: ConnectionId,
    pub(crate) number: u64,
}
