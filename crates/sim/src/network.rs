//! What happens to a message: when it arrives, whether at all, and how often.
//!
//! Between servers everything may happen, although a bus connection is an ordered stream: a
//! connection that breaks loses and, by repetition, repeats. Links to the coordinator keep order,
//! and lose only when they break. Requests and replies of clients are only late.

use fastrand::Rng;
use std::time::Duration;
use wire::peer::PeerMessage;

/// How bad the network of a run is. Probabilities are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    lost: u32,
    repeated: u32,
    /// Messages that take up to [`LATE`] instead of up to `usual`.
    late: u32,
    usual: Duration,
}

/// Of what a move sends most, the bulk, a smaller part has an accident: else nothing would get done
/// but to wait for repetitions.
const BULK_PART: u32 = 10;

/// More than a flip waits before it is decided, and than a pull before it is repeated.
const LATE: Duration = Duration::from_millis(300);

/// The quickest way between two servers.
const QUICKEST: Duration = Duration::from_micros(10);

impl Weather {
    /// Some runs have fair weather, so that much happens; some have storms.
    pub(crate) fn draw(rng: &mut Rng) -> Weather {
        let often = [1, 30, 150, 400][rng.usize(..4)];
        let (lost, repeated, late) = (rng.u32(..often), rng.u32(..often), rng.u32(..often));
        let usual = Duration::from_micros([50, 300, 2_000][rng.usize(..3)]);
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
    pub(crate) fn copies(&self, rng: &mut Rng, message: &PeerMessage) -> Vec<Duration> {
        let of = match message {
            PeerMessage::Pull(_) | PeerMessage::PullReply(_) => 1000 * BULK_PART,
            PeerMessage::Hello(_)
            | PeerMessage::Flip(_)
            | PeerMessage::FlipAnswer { .. }
            | PeerMessage::PriorityPull(_)
            | PeerMessage::PriorityReply(_) => 1000,
        };
        let mut copies = Vec::new();
        if rng.u32(..of) >= self.lost {
            copies.push(self.travel(rng, of));
        }
        if rng.u32(..of) < self.repeated {
            copies.push(self.travel(rng, of));
        }
        copies
    }

    fn travel(&self, rng: &mut Rng, of: u32) -> Duration {
        if rng.u32(..of) < self.late { LATE.mul_f64(rng.f64()) } else { self.delay(rng) }
    }
}
