use super::*;

/// A reactor under a virtual clock, in which work and quanta take given times.
struct Virtual {
    turns: Turns,
    now: Instant,
    /// Start and length of each quantum.
    quanta: Vec<(Instant, Duration)>,
}

impl Virtual {
    fn new() -> Virtual {
        let turns = Turns::new(PollPolicy::Adaptive, false);
        Virtual { turns, now: Instant(1_000_000_000), quanta: Vec::new() }
    }

    /// Runs a turn as `Reactor` does: serves clients for `wanted` in steps of `piece`,
    /// then perhaps a quantum. Returns the serving time.
    fn turn(
        &mut self,
        wanted: Duration,
        piece: Duration,
        quantum: Duration,
        share: u8,
    ) -> Duration {
        let begun = self.now;
        let until = self.turns.serve_until(self.now, share);
        while self.now.since(begun) < wanted && (self.now == begun || self.now < until) {
            self.now = self.now + piece;
        }
        let served = self.now.since(begun);
        self.turns.worked(served, share);
        let has_served = served > Duration::ZERO;
        if has_served && !self.turns.is_background_due(share) {
            return served;
        }
        self.quanta.push((self.now, quantum));
        self.now = self.now + quantum;
        if has_served {
            self.turns.ran_due(quantum, share);
        } else {
            self.turns.ran_idle(quantum);
        }
        served
    }

    /// Returns the background's share of the time from `start` to `start + WINDOW`, in percent.
    fn share_of_window(&self, start: Instant) -> f64 {
        let end = start + WINDOW;
        let of_quantum = |&(begun, length): &(Instant, Duration)| {
            (begun + length).min(end).since(begun.max(start)).as_nanos() as f64
        };
        let total: f64 = self.quanta.iter().map(of_quantum).sum();
        100.0 * total / WINDOW.as_nanos() as f64
    }
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// One quantum in a window, in percent: the tolerance of a share.
const GRAIN: f64 = 0.5;

#[test]
fn a_busy_core_gives_the_background_its_share_of_every_window_and_one_quantum_more() {
    let mut random = fastrand::Rng::with_seed(3);
    for share in [5, 10, 20, 40] {
        let mut reactor = Virtual::new();
        let begun = reactor.now;
        while reactor.now.since(begun) < Duration::from_millis(200) {
            let (wanted, piece) = (micros(random.u64(2..=900)), micros(random.u64(1..=8)));
            reactor.turn(wanted, piece, micros(random.u64(20..=50)), share);
        }
        for window in 0..18 {
            let measured = reactor.share_of_window(begun + WINDOW * window);
            let expected = f64::from(share);
            assert!(
                (measured - expected).abs() <= 2.0 * GRAIN,
                "share {share} %, window {window}: {measured:.2} %"
            );
        }
    }
}

#[test]
fn without_a_share_the_background_waits_until_the_clients_are_quiet() {
    let mut reactor = Virtual::new();
    for _ in 0..1000 {
        reactor.turn(micros(100), micros(5), micros(30), 0);
    }
    assert!(reactor.quanta.is_empty());
    reactor.turn(Duration::ZERO, micros(5), micros(30), 0);
    assert_eq!(reactor.quanta.len(), 1);
}

#[test]
fn with_the_whole_share_turns_and_quanta_alternate() {
    let mut reactor = Virtual::new();
    for _ in 0..100 {
        reactor.turn(micros(5), micros(5), micros(50), 100);
    }
    assert_eq!(reactor.quanta.len(), 100);
}

#[test]
fn idle_time_that_the_background_used_is_not_held_against_it() {
    let mut reactor = Virtual::new();
    for _ in 0..1000 {
        reactor.turn(Duration::ZERO, micros(5), micros(50), 10);
    }
    let rush = reactor.now;
    while reactor.now.since(rush) < 2 * WINDOW {
        reactor.turn(micros(200), micros(5), micros(30), 10);
    }
    let share = reactor.share_of_window(rush);
    assert!((share - 10.0).abs() <= 2.0 * GRAIN, "{share:.2} %");
}

#[test]
fn a_quantum_that_ran_too_long_is_paid_back() {
    let mut reactor = Virtual::new();
    reactor.turn(micros(100), micros(5), micros(900), 10);
    assert_eq!(reactor.quanta.len(), 1);
    let paid_for = reactor.now;
    while reactor.quanta.len() == 1 {
        reactor.turn(micros(100), micros(5), micros(30), 10);
    }
    let pause = reactor.now.since(paid_for);
    assert!(pause >= Duration::from_millis(8) && pause <= Duration::from_millis(9), "{pause:?}");
}

#[test]
fn a_turn_stops_serving_when_a_quantum_is_owed_but_never_at_once() {
    let mut turns = Turns::new(PollPolicy::Adaptive, false);
    let now = Instant(0);
    assert_eq!(turns.serve_until(now, 10), now + micros(300), "30 us are a tenth of 300 us");
    assert_eq!(turns.serve_until(now, 40), now + micros(75));
    turns.worked(Duration::from_millis(5), 10);
    assert_eq!(turns.serve_until(now, 10), now + TURN_MIN);
    turns.forget_background();
    assert_eq!(turns.serve_until(now, 10), now + micros(300));
}

#[test]
fn adaptive_spins_while_pauses_are_short_and_gives_up_when_nothing_comes() {
    let mut turns = Turns::new(PollPolicy::Adaptive, false);
    let mut now = Instant(0);
    assert_eq!(turns.idle(now, false), Idle::Block, "nothing is known yet");
    for _ in 0..20 {
        turns.idle(now, false);
        now = now + micros(10);
        turns.arrived(now);
    }
    assert_eq!(turns.idle(now, false), Idle::Spin);
    assert_eq!(turns.idle(now + micros(99), false), Idle::Spin);
    assert_eq!(turns.idle(now + micros(100), false), Idle::Block);
    turns.arrived(now + micros(5_000));
    assert_eq!(turns.idle(now, false), Idle::Spin, "one long pause is no habit");
    for _ in 0..3 {
        turns.idle(now, false);
        now = now + Duration::from_millis(1);
        turns.arrived(now);
    }
    assert_eq!(turns.idle(now, false), Idle::Block);
}

#[test]
fn on_shared_cores_only_busy_spins() {
    for (poll, expected) in [
        (PollPolicy::Busy, Idle::Spin),
        (PollPolicy::Adaptive, Idle::Block),
        (PollPolicy::Sleep, Idle::Block),
    ] {
        let mut turns = Turns::new(poll, true);
        for now in 0..50 {
            turns.idle(Instant(now * 1000), false);
            turns.arrived(Instant(now * 1000 + 500));
        }
        assert_eq!(turns.idle(Instant(50_000), false), expected, "{poll:?}");
    }
}
