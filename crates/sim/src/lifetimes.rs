//! Operations on times to live: they are changed, removed, kept by a write, and read.
//!
//! Two thirds of the runs with expiring values have some. They replace other operations on registers
//! whose values may expire.

use crate::history::{Lifetime, RegisterAction};
use crate::settings::{Knob, RunSettings};
use fastrand::Rng;

/// One operation in this many is on a time to live. 0: none.
const ONE_IN: [u32; 3] = [0, 3, 8];

/// Mixed into the seed for the separate random numbers of these operations.
const LIFETIMES: u64 = 0x6c69_6665_7469_6d65;

/// Operations on times to live in a run.
pub(crate) struct LifetimeOperations {
    rng: Rng,
    one_in: u32,
}

impl LifetimeOperations {
    /// Draws from a separate generator, so that other runs stay the same.
    pub(crate) fn draw(settings: &RunSettings) -> Option<LifetimeOperations> {
        let mut rng = Rng::with_seed(settings.seed ^ LIFETIMES);
        let one_in = ONE_IN[rng.usize(..ONE_IN.len())];
        let has_some = one_in > 0 && settings.has(Knob::Lifetimes);
        has_some.then_some(LifetimeOperations { rng, one_in })
    }

    /// Draws an operation, or none. `number` is that of its value or time to live, and `until` a
    /// deadline for it in milliseconds.
    pub(crate) fn next(&mut self, number: u64, until: u64) -> Option<RegisterAction> {
        if self.rng.u32(..self.one_in) != 0 {
            return None;
        }
        let lifetime = match self.rng.u32(..3) {
            0 => Lifetime::Until(number, until),
            _ => Lifetime::After(number),
        };
        Some(match self.rng.u32(..12) {
            0..3 => RegisterAction::ReadRemaining,
            3..5 => RegisterAction::Expire(lifetime),
            5..7 => RegisterAction::ReadExpiring(lifetime),
            7 => RegisterAction::ReadPersisting,
            8 => RegisterAction::Persist,
            9..11 => RegisterAction::WriteKeeping(number),
            _ => RegisterAction::WriteExpiring(number, Lifetime::Until(number, until)),
        })
    }
}
