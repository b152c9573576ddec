//! A channel: the place of one connection to one server, through all its attempts to connect.

use super::ids::RequestId;
use super::requests::RequestPart;
use resp::{ReplyLimits, ReplyParser};
use std::collections::VecDeque;
use std::time::Duration;
use types::Instant;

/// Most requests without a reply on one connection. Replies to requests that have ended count, so
/// that their number is bounded.
pub(crate) const PIPELINE_MAX: usize = 4096;

/// Deepest reply. Those of Redis have less than ten levels.
const REPLY_DEPTH_MAX: usize = 32;

/// A reply that the connection owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipelineEntry {
    /// To a command of the login.
    Login,
    /// To `BALLAST.MAP`.
    Map,
    Request(RequestId),
    /// To a read of the copy that the source of a migration keeps.
    Copy(RequestId),
}

/// A command that the client sends for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlRequest {
    Login,
    Map,
}

/// The state of a channel.
#[derive(Debug)]
pub(crate) enum ChannelState {
    /// Without a connection. The next attempt may begin at this time.
    Idle { not_before: Instant },
    /// The transport connects.
    Connecting { until: Instant },
    /// The transport has connected.
    Open(OpenChannel),
}

/// A connection.
pub(crate) struct OpenChannel {
    pub(crate) parser: ReplyParser,
    pub(crate) pipeline: VecDeque<PipelineEntry>,
    /// Commands to send before further requests.
    pub(crate) control: Vec<ControlRequest>,
    /// True from the reply to the login on.
    pub(crate) is_ready: bool,
    /// True if the connection has owed replies for some time and has sent nothing.
    pub(crate) is_suspect: bool,
    /// Time of the last received bytes, or of the request that was sent when no reply was owed.
    pub(crate) heard: Instant,
}

impl std::fmt::Debug for OpenChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenChannel")
            .field("pipeline", &self.pipeline)
            .field("is_ready", &self.is_ready)
            .finish_non_exhaustive()
    }
}

impl OpenChannel {
    /// Creates a new connection, which first logs in.
    pub(crate) fn new(now: Instant, reply_bytes_max: usize) -> OpenChannel {
        let limits = ReplyLimits { bytes_max: reply_bytes_max, depth_max: REPLY_DEPTH_MAX };
        OpenChannel {
            parser: ReplyParser::new(limits),
            pipeline: VecDeque::new(),
            control: vec![ControlRequest::Login],
            is_ready: false,
            is_suspect: false,
            heard: now,
        }
    }

    /// Records a sent command.
    pub(crate) fn expect_reply(&mut self, entry: PipelineEntry, now: Instant) {
        if self.pipeline.is_empty() {
            self.heard = now;
        }
        self.pipeline.push_back(entry);
    }

    /// Returns whether another request may be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.is_ready && self.pipeline.len() < PIPELINE_MAX
    }

    /// Returns the time since which the connection owes a reply and has sent nothing.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        (!self.pipeline.is_empty() || !self.is_ready).then_some(self.heard)
    }
}

/// The place of one connection to one server.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Number of the present attempt.
    pub(crate) attempt: u32,
    pub(crate) state: ChannelState,
    /// Requests that were not handed to a transport, in order.
    pub(crate) waiting: VecDeque<RequestPart>,
    /// Number of connections since the last successful login that have failed.
    pub(crate) failures: u32,
}

impl Channel {
    pub(crate) fn new() -> Channel {
        let state = ChannelState::Idle { not_before: Instant(0) };
        Channel { attempt: 0, state, waiting: VecDeque::new(), failures: 0 }
    }

    /// Returns the connection, if there is one.
    pub(crate) fn open(&mut self) -> Option<&mut OpenChannel> {
        match &mut self.state {
            ChannelState::Open(open) => Some(open),
            ChannelState::Idle { .. } | ChannelState::Connecting { .. } => None,
        }
    }

    /// Returns whether requests can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(&self.state, ChannelState::Open(open) if open.is_ready)
    }

    /// Returns whether there is neither a connection nor an attempt.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, ChannelState::Idle { .. })
    }
}

/// Shortest and longest pause between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Returns the pause after this number of failed attempts.
pub(crate) fn pause(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(10);
    (PAUSE_MIN * (1 << doublings)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let millis = |attempts| pause(attempts).as_millis();
        assert_eq!([0, 1, 2, 3, 6, 7, u32::MAX].map(millis), [10, 10, 20, 40, 320, 500, 500]);
    }
}
