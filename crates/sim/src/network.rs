//! Delay, loss and duplication of messages.
//!
//! Everything may happen to messages between servers, although a bus connection is an ordered
//! stream: a connection that breaks loses messages, and retries repeat them. Links to the
//! coordinator keep order, and lose messages only when they break. Requests and replies of
//! clients are only delayed.

use fastrand::Rng;
use std::time::Duration;
use wire::peer::PeerMessage;

/// Fault rates of the network in one run. Each kind of message has its own rates, so that runs
/// differ in what they test, and rare coincidences become likely in some of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    kinds: [Accidents; KINDS],
    usual: Duration,
}

/// Fault rates of one kind of message, in ten thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Accidents {
    lost: u32,
    repeated: u32,
    /// Messages that take up to [`LATE`] instead of up to `usual`.
    late: u32,
}

/// Number of kinds: flips, their answers, priority pulls, their answers, and everything else
/// (bulk).
const KINDS: usize = 5;
const FLIPS: usize = 2;
const BULK: usize = 4;

/// Divisor of the fault rates of bulk messages, the most frequent kind: with higher rates a move
/// would only wait for retries.
const BULK_PART: u32 = 10;

/// Denominator of all probabilities.
const WHOLE: u32 = 10_000;

/// Longest delay: longer than a flip waits for a decision, and than a pull waits for its retry.
const LATE: Duration = Duration::from_millis(300);

/// Shortest delay between two servers.
const QUICKEST: Duration = Duration::from_micros(10);

impl Weather {
    /// Draws the rates: some runs have nearly no faults, so that much happens; others have many.
    pub(crate) fn draw(rng: &mut Rng) -> Weather {
        let worst = [1, 300, 1_500, 4_000][rng.usize(..4)];
        let mut kinds = [Accidents::default(); KINDS];
        for (kind, accidents) in kinds.iter_mut().enumerate() {
            // The outcome of a flip is the hardest question, so flips get high rates most often.
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

    /// Returns a network without faults: every message arrives once and soon.
    pub(crate) fn fair() -> Weather {
        Weather { kinds: [Accidents::default(); KINDS], usual: Duration::from_micros(50) }
    }

    /// Draws the delay of a message that cannot be lost.
    pub(crate) fn delay(&self, rng: &mut Rng) -> Duration {
        QUICKEST + self.usual.mul_f64(rng.f64())
    }

    /// Draws the delays of all copies of a message between servers: none, one or two.
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
