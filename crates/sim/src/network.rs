//! Delay, loss and duplication of messages.
//!
//! Everything may happen to messages between servers, although a bus connection is an ordered
//! stream: a connection that breaks loses messages, and retries repeat them. Links to the
//! coordinator keep order, and lose messages only when they break. Requests and replies of
//! clients are only delayed.

use crate::settings::{Knob, RunSettings};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use types::Instant;
use wire::peer::PeerMessage;

/// Fault rates of one kind of message, in ten thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct MessageFaultRates {
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
pub(crate) const LATE: Duration = Duration::from_millis(300);

/// Time after which the system of a server gives up a connection whose bytes are not acknowledged,
/// as in `runtime::UNACKNOWLEDGED_MAX`.
pub(crate) const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);

/// Pause before the first retransmission. Each further pause is twice as long.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// Shortest delay between two servers.
const QUICKEST: Duration = Duration::from_micros(10);

/// Network of a run: its delays, the faults of its messages, and the partitions between servers.
pub(crate) struct Network {
    /// Each kind of message has its own rates, so that runs differ in what they test, and rare
    /// coincidences become likely in some of them.
    kinds: [MessageFaultRates; KINDS],
    /// Usual delay, at most.
    usual: Duration,
    /// For each pair of servers (sender first), the time until which messages get lost.
    partitioned_until: BTreeMap<(usize, usize), Instant>,
}

impl Network {
    /// Draws the rates: some runs have nearly no faults, so that much happens; others have many.
    pub(crate) fn draw(rng: &mut Rng, settings: &RunSettings) -> Network {
        let worst = [1, 300, 1_500, 4_000][rng.usize(..4)];
        let mut network = Network::without_faults();
        for (kind, rates) in network.kinds.iter_mut().enumerate() {
            // The outcome of a flip is the hardest question, so flips get high rates most often.
            let fault_one_in = if kind < FLIPS { 4 } else { 8 };
            let is_severe = rng.u32(..fault_one_in) == 0 && worst > 1;
            let worst = if is_severe { WHOLE * 2 / 3 } else { worst };
            let worst = if kind == BULK { worst.div_ceil(BULK_PART) } else { worst };
            let mut often = || rng.u32(..worst);
            *rates = MessageFaultRates { lost: often(), repeated: often(), late: often() };
        }
        network.usual = Duration::from_micros([50, 300, 2_000][rng.usize(..3)]);
        match settings.has(Knob::MessageFaults) {
            true => network,
            false => Network::without_faults(),
        }
    }

    /// Returns a network in which every message arrives once and soon.
    fn without_faults() -> Network {
        Network {
            kinds: Default::default(),
            usual: Duration::from_micros(50),
            partitioned_until: BTreeMap::new(),
        }
    }

    /// Ends all faults.
    pub(crate) fn repair(&mut self) {
        *self = Network::without_faults();
    }

    /// Loses all messages from one server to another until this time.
    pub(crate) fn partition(&mut self, from: usize, to: usize, until: Instant) {
        self.partitioned_until.insert((from, to), until);
    }

    /// Returns whether messages from one server to another get lost.
    pub(crate) fn is_partitioned(&self, from: usize, to: usize, now: Instant) -> bool {
        self.partition_end(from, to, now).is_some()
    }

    /// Returns the time until which messages from one server to another get lost, if they do.
    pub(crate) fn partition_end(&self, from: usize, to: usize, now: Instant) -> Option<Instant> {
        self.partitioned_until.get(&(from, to)).copied().filter(|until| now < *until)
    }

    /// Draws the delay of a message that cannot be lost.
    pub(crate) fn delay(&self, rng: &mut Rng) -> Duration {
        draw_delay(self.usual, rng)
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
        let MessageFaultRates { lost, repeated, late } = self.kinds[kind];
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

/// Draws a delay between two servers that is usually at most `usual`.
pub(crate) fn draw_delay(usual: Duration, rng: &mut Rng) -> Duration {
    QUICKEST + usual.mul_f64(rng.f64())
}

/// Returns when a transmission that begins now gets through a cut that ends at `end`.
pub(crate) fn gets_through(now: Instant, end: Option<Instant>) -> Instant {
    let (mut again, mut pause) = (now, RETRANSMISSION);
    while end.is_some_and(|end| again < end) {
        again = again + pause;
        pause *= 2;
    }
    again
}

/// Cuts bytes into pieces as they arrive: mostly one, sometimes cut anywhere.
pub(crate) fn in_pieces(bytes: Vec<u8>, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut pieces = vec![bytes];
    while rng.u32(..8) == 0 {
        let last = pieces.last_mut().expect("there is always one piece");
        if last.len() < 2 {
            break;
        }
        let rest = last.split_off(rng.usize(1..last.len()));
        pieces.push(rest);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_loses_messages_in_one_direction_until_its_end() {
        let settings = RunSettings::new(1);
        let mut network = Network::draw(&mut Rng::with_seed(1), &settings);
        network.partition(0, 1, Instant(10));
        assert!(network.is_partitioned(0, 1, Instant(9)));
        assert!(!network.is_partitioned(1, 0, Instant(9)));
        assert!(!network.is_partitioned(0, 1, Instant(10)));
        network.partition(0, 1, Instant(20));
        network.repair();
        assert!(!network.is_partitioned(0, 1, Instant(19)));
    }

    #[test]
    fn a_repaired_network_delivers_every_message_once() {
        let mut rng = Rng::with_seed(1);
        let mut network = Network::draw(&mut rng, &RunSettings::new(1));
        network.repair();
        assert!((0..100).all(|_| network.copies(&mut rng, &PeerMessage::Ping).len() == 1));
    }

    #[test]
    fn pieces_are_the_whole() {
        let mut rng = Rng::with_seed(1);
        let bytes: Vec<u8> = (0..100).collect();
        let cut: Vec<_> = (0..50).map(|_| in_pieces(bytes.clone(), &mut rng)).collect();
        assert!(cut.iter().all(|pieces| pieces.concat() == bytes));
        assert!(cut.iter().any(|pieces| pieces.len() > 1));
    }
}
