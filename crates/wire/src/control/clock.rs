//! Messages for comparing the clocks of a cluster's servers.

use serde::{Deserialize, Serialize};
use std::fmt;
use types::{Instant, LeaseId, ServerId, UnixMillis};

/// The coordinator's request for a server's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockQuestion {
    /// Send time by the coordinator's clock; echoed in the answer.
    pub asked: Instant,
    /// The time on which the wall clocks of most members agree; `None`: there is no such
    /// majority, or no member has answered.
    pub reference: Option<UnixMillis>,
    /// Leases with lower numbers have ended. 0: this coordinator does not know yet.
    pub lease_horizon: LeaseId,
}

impl fmt::Display for ClockQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reference {
            Some(reference) => write!(f, "clock? it is {}", reference.0),
            None => f.write_str("clock?"),
        }
    }
}

/// The answer of a server's link to a [`ClockQuestion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Send time of the request, echoed.
    pub asked: Instant,
    /// The server's wall clock.
    pub wall: UnixMillis,
    /// The server's expiry clock; `None` before its first turn.
    pub expiry: Option<UnixMillis>,
}

impl fmt::Display for ClockReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clock {}", self.wall.0)
    }
}

/// A member with clocks that differ too much for a range to move to or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// The member.
    pub server: ServerId,
    /// Its wall clock minus the reference in milliseconds; 0: within the limit.
    pub wall_ahead: i64,
    /// Its expiry clock minus that of most members in milliseconds; 0: within the limit.
    pub expiry_ahead: i64,
}
