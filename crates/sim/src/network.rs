//! What happens to a message: when it arrives, whether at all, and how often.
//!
//! Between servers everything may happen, although a bus connection is an ordered stream: a
//! connection that breaks loses and, by repetition, repeats. Links to the coordinator keep order,
//! and lose only when they break. Requests and replies of clients are only late.

use fastrand::Rng;
use std::time::Duration;

/// How bad the network of a run is. Probabilities are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    lost: u32,
    repeated: u32,
    /// Messages that take up to [`LATE`] instead of up to `usual`.
    late: u32,
    usual: Duration,
}

/// More than a flip waits before it is decided, and than a pull before it is repeated.
const LATE: Duration = Duration::from_millis(300);

/// The quickest way between two servers.
const QUICKEST: Duration = Duration::from_micros(10);

impl Weather {
    /// Some runs have fair weather, so that much happens; some have storms.
    pub(crate) fn draw(rng: &mut Rng) -> Weather {
        let often = [0, 5, 20, 60][rng.usize(..4)];
        let mut often = || if often == 0 { 0 } else { rng.u32(..often) };
        let (lost, repeated, late) = (often(), often(), often());
        let usual = Duration::from_micros(rng.u64(20..400));
        Weather { lost, repeated, late, usual }
    }

    /// Every message arrives, once and soon.
    pub(crate) fn fair() -> Weather {
        Weather { lost: 0, repeated: 0, late: 0, usual: Duration::from_micros(50) }
    }

    /// How long a message takes that cannot be lost.
    pub(crate) fn delay(&self, rng: &mut Rng) -> Duration {
        QUICKEST + self.usual.mul_f64(rng.f64())
    }

    /// How long each copy of a message between servers takes: none, one, or several.
    pub(crate) fn copies(&self, rng: &mut Rng) -> Vec<Duration> {
        let mut copies = Vec::new();
        if rng.u32(..1000) >= self.lost {
            copies.push(self.travel(rng));
        }
        if rng.u32(..1000) < self.repeated {
            copies.push(self.travel(rng));
        }
        copies
    }

    fn travel(&self, rng: &mut Rng) -> Duration {
        if rng.u32(..1000) < self.late { LATE.mul_f64(rng.f64()) } else { self.delay(rng) }
    }
}
