//! Faults of the servers' wall clocks, which jump while a run goes on.
//!
//! In most runs clocks are ahead of true time by up to 200 ms, so that they converge within
//! seconds, or by up to 5 s. In some they are ahead or behind by up to five minutes, and values
//! live for up to 8 s ([`FarClocks`]).

use crate::settings::{Knob, RunSettings};
use fastrand::Rng;

/// Largest lead of a wall clock over the true one, in milliseconds.
const SKEW_MAX_MILLIS: u64 = 5_000;

/// Usual lead in milliseconds: so small that the servers' clocks converge within seconds.
const SKEW_MILLIS: u64 = 200;

/// Differences from true time in a run with far clocks, in milliseconds: none, within the limit of
/// a cluster, beyond it, and far beyond it.
const FAR_MILLIS: [i64; 4] = [0, 400, 5_000, 300_000];

/// One run in this many has far clocks.
const FAR_ONE_IN: u32 = 8;

/// Mixed into the seed for the separate random numbers of far clocks.
const FAR: u64 = 0x6661_7220_636c_6f63;

/// Faults of the servers' wall clocks.
#[derive(Debug)]
pub(crate) enum ClockFaults {
    /// Clocks are ahead by at most this number of milliseconds.
    Near(u64),
    Far(FarClocks),
}

/// Clocks that are minutes apart, and values that live for seconds. Drawn from a separate
/// generator, so that other runs stay the same.
#[derive(Debug)]
pub(crate) struct FarClocks {
    rng: Rng,
    /// Factor by which values live longer.
    pub(crate) life: u64,
}

impl FarClocks {
    /// Draws the far clocks of a run, if it has any.
    pub(crate) fn draw(settings: &RunSettings) -> Option<FarClocks> {
        let mut rng = Rng::with_seed(settings.seed ^ FAR);
        let is_far = rng.u32(..FAR_ONE_IN) == 0
            && [Knob::FarClocks, Knob::Clock, Knob::Expiry].iter().all(|&it| settings.has(it));
        let life = [1, 4][rng.usize(..2)];
        is_far.then_some(FarClocks { rng, life })
    }
}

impl Default for ClockFaults {
    fn default() -> ClockFaults {
        ClockFaults::Near(0)
    }
}

impl ClockFaults {
    /// Draws the largest difference of clocks.
    pub(crate) fn draw(rng: &mut Rng, settings: &RunSettings) -> ClockFaults {
        let near = if rng.u32(..3) == 0 { SKEW_MAX_MILLIS } else { SKEW_MILLIS };
        FarClocks::draw(settings).map_or(ClockFaults::Near(near), ClockFaults::Far)
    }

    /// Draws by how many milliseconds a clock is ahead from now on.
    pub(crate) fn draw_ahead(&mut self, rng: &mut Rng) -> i64 {
        match self {
            ClockFaults::Near(most) => rng.u64(..=*most) as i64,
            ClockFaults::Far(far) => {
                let most = FAR_MILLIS[far.rng.usize(..FAR_MILLIS.len())];
                far.rng.i64(-most..=most)
            }
        }
    }

    /// Returns the largest lead in milliseconds, or `None` if clocks are minutes apart.
    pub(crate) fn ahead_max_millis(&self) -> Option<u64> {
        match self {
            ClockFaults::Near(most) => Some(*most),
            ClockFaults::Far(_) => None,
        }
    }
}
