//! Reads right behind a death: of the registers that were being written when a server died.
//!
//! The last writes of a dead server may have reached some of its backups and not others. What the
//! next owner has shown of them must last, even if that owner dies as well, before its own log has
//! them. So clients read such registers first, and now and then the server that answers dies right
//! afterwards. Messages in transit from a dead server are lost on some of its connections.

use crate::settings::{Knob, RunSettings};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use types::Instant;

/// One run with replicated logs in this many has such reads.
const FOLLOWER_ONE_IN: u32 = 4;

/// One answer in this many is the last one of its server.
const DEATH_ONE_IN: u32 = 2;

/// Time for which registers are read after a death: longer than the recovery takes.
const FOLLOWED: Duration = Duration::from_secs(1);

/// Mixed into the seed for the separate random numbers of these reads.
const FOLLOWER: u64 = 0x666f_6c6c_6f77_6572;

/// The registers to read, in a run with such reads.
pub(crate) struct Follower {
    rng: Rng,
    /// Registers that were being written at a death, with the time until which they are read.
    registers: BTreeMap<usize, Instant>,
}

/// Returns whether a run has such reads, if its logs are replicated.
pub(crate) fn is_followed(settings: &RunSettings) -> bool {
    let mut rng = Rng::with_seed(!settings.seed ^ FOLLOWER);
    rng.u32(..FOLLOWER_ONE_IN) == 0 && settings.has(Knob::Follower) && settings.has(Knob::Crash)
}

impl Follower {
    pub(crate) fn draw(settings: &RunSettings) -> Follower {
        Follower { rng: Rng::with_seed(settings.seed ^ FOLLOWER), registers: BTreeMap::new() }
    }

    /// Records the registers that a dead server's clients were writing.
    pub(crate) fn server_died(&mut self, now: Instant, registers: impl Iterator<Item = usize>) {
        self.registers.extend(registers.map(|register| (register, now + FOLLOWED)));
    }

    /// Returns a register that a client is to read now.
    pub(crate) fn next(&mut self, now: Instant) -> Option<usize> {
        self.registers.retain(|_, until| now < *until);
        if self.registers.is_empty() || self.rng.bool() {
            return None;
        }
        self.registers.keys().copied().nth(self.rng.usize(..self.registers.len()))
    }

    /// Records that a register was read. Returns after how many microseconds the server that has
    /// answered dies, if it does.
    pub(crate) fn was_read(&mut self, register: usize) -> Option<u64> {
        self.registers.remove(&register)?;
        (self.rng.u32(..DEATH_ONE_IN) == 0).then(|| self.rng.u64(..50))
    }

    /// Draws the places that lose the messages in transit from a dead server.
    pub(crate) fn losing_places(&mut self, servers: usize) -> Vec<usize> {
        (0..servers).filter(|_| self.rng.bool()).collect()
    }
}
