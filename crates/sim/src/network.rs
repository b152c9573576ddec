//! What happens to a message: when it arrives, whether at all, and how often.
//!
//! Between servers everything may happen, although a bus connection is an ordered stream: a
//! connection that breaks loses and, by repetition, repeats. Links to the coordinator keep order,
//! and lose only when they break. Requests and replies of clients are only late.

use fastrand::Rng;
use std::time::Duration;
use wire::peer::PeerMessage;

/// How bad the network of a run is: each kind of message has weather of its own, so that runs differ
/// in what they try, and rare meetings of accidents become likely in some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    kinds: [Accidents; KINDS],
    usual: Duration,
}

/// What happens to one kind of message, in ten thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Accidents {
    lost: u32,
    repeated: u32,
    /// Messages that take up to [`LATE`] instead of up to `usual`.
    late: u32,
}

/// Flips, their answers, priority pulls, their answers, and the bulk.
const KINDS: usize = 5;
const FLIPS: usize = 2;
const BULK: usize = 4;

/// Of what a move sends most, the bulk, a smaller part has an accident: else nothing would get done
/// but to wait for repetitions.
const BULK_PART: u32 = 10;

/// Probabilities are parts of this.
const WHOLE: u32 = 10_000;

/// More than a flip waits before it is decided, and than a pull before it is repeated.
const LATE: Duration = Duration::from_millis(300);

/// The quickest way between two servers.
const QUICKEST: Duration = Duration::from_micros(10);

impl Weather {
    /// Some runs have fair weather, so that much happens; some have storms.
    pub(crate) fn draw(rng: &mut Rng) -> Weather {
        let worst = [1, 300, 1_500, 4_000][rng.usize(..4)];
        let mut kinds = [Accidents::default(); KINDS];
        for (kind, accidents) in kinds.iter_mut().enumerate() {
            // How a flip ended is the hardest question, so it is asked most often.
            let storms = if kind < FLIPS { 4 } else { 8 };
            let is_stormy = rng.u32(..storms) == 0 && worst > 1;
            let worst = if is_stormy { WHOLE * 2 / 3 } else { worst };
            let worst = if kind == BULK { worst.div_ceil(BULK_PART) } else { worst };
            let mut often = || rng.u32(..worst);
            *accidents = Accidents { lost: often(), repeated: often(), late: often() };
        }
        let usual = Duration::from_micros([50, 300, 2_000][rng.usize(..3)]);
        Weather { kinds, usual }
    }

    /// Every message arrives, once and soon.
    pub(crate) fn fair() -> Weather {
        Weather { kinds: [Accidents::default(); KINDS], usual: Duration::from_micros(50) }
    }

    /// How long a message takes that cannot be lost.
    pub(crate) fn delay(&self, rng: &mut Rng) -> Duration {
        QUICKEST + self.usual.mul_f64(rng.f64())
    }

    /// How long each copy of a message between servers takes: none, one, or several.
    pub(crate) fn copies(&self, rng: &mut Rng, message: &PeerMessage) -> Vec<Duration> {
        let kind = match message {
            PeerMessage::Flip(_) => 0,
            PeerMessage::FlipAnswer { .. } => 1,
            PeerMessage::PriorityPull(_) => 2,
            PeerMessage::PriorityReply(_) => 3,
            PeerMessage::Pull(_)
            | PeerMessage::PullReply(_)
            | PeerMessage::Append(_)
            | PeerMessage::Appended(_)
            | PeerMessage::Release { .. }
            | PeerMessage::Released { .. }
            | PeerMessage::Needed { .. }
            | PeerMessage::RecoveryRead(_)
            | PeerMessage::RecoveryReply(_)
            | PeerMessage::Ping
            | PeerMessage::Pong => BULK,
        };
        let Accidents { lost, repeated, late } = self.kinds[kind];
        let mut copies = Vec::new();
        if rng.u32(..WHOLE) >= lost {
            copies.push(self.travel(rng, late));
        }
        if rng.u32(..WHOLE) < repeated {
            copies.push(self.travel(rng, late));
        }
        copies
    }

    fn travel(&self, rng: &mut Rng, late: u32) -> Duration {
        if rng.u32(..WHOLE) < late { LATE.mul_f64(rng.f64()) } else { self.delay(rng) }
    }
}
