//! How the clocks of a cluster's servers are compared.

use serde::{Deserialize, Serialize};
use types::{Instant, ServerId, UnixMillis};

/// A question of the coordinator for a server's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockQuestion {
    /// When this was sent, by the coordinator's clock: returned as it came.
    pub asked: Instant,
    /// The time that the wall clocks of most members agree on; `None`: they do not, or none of them
    /// was heard.
    pub reference: Option<UnixMillis>,
}

/// The answer of a server's link to a [`ClockQuestion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// As asked.
    pub asked: Instant,
    /// The server's wall clock.
    pub wall: UnixMillis,
    /// Its expiry clock; `None` before its first turn.
    pub expiry: Option<UnixMillis>,
}

/// A member whose clocks differ too much from the others' for a range to move to or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// The member.
    pub server: ServerId,
    /// Its wall clock less the reference, in ms. 0: within the limit.
    pub wall_ahead: i64,
    /// Its expiry clock less that of most members, in ms. 0: within the limit.
    pub expiry_ahead: i64,
}
