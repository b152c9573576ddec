//! Surroundings of a component while it handles an event.

use crate::outgoing::EngineOutput;
use crate::recovering::LogReads;
use crate::settings::LiveSettings;
use crate::state::NodeState;
use store::Worker;
use types::{Instant, ReactorId};

/// Everything that a component may use besides its own state. Built for one event.
pub(crate) struct Context<'e> {
    /// Time of the event.
    pub(crate) now: Instant,
    pub(crate) node: &'e NodeState,
    pub(crate) reactor: ReactorId,
    /// Settings in effect for this turn.
    pub(crate) live: LiveSettings,
    /// Set while replies of this reactor wait until their dependencies are acknowledged.
    pub(crate) holds_replies: bool,
    pub(crate) worker: &'e mut Worker,
    pub(crate) out: &'e mut EngineOutput,
    pub(crate) buffers: &'e mut BufferPool,
    pub(crate) reads: &'e mut LogReads,
}

/// Payload buffers for reuse.
#[derive(Default)]
pub(crate) struct BufferPool {
    buffers: Vec<Vec<u8>>,
}

/// Maximum number of pooled buffers: slightly more than one migration has in flight.
const BUFFERS_MAX: usize = 32;

impl BufferPool {
    /// Returns an empty buffer with room for this many bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.reserve(bytes);
        buffer
    }

    /// Removes a buffer from the pool, if there is one.
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        self.buffers.pop()
    }

    /// Returns a buffer to the pool, unless that is full.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
        assert!(self.buffers.len() <= BUFFERS_MAX, "the pool of buffers is bounded");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }
}
