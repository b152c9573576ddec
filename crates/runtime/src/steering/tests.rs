use super::controller::{INTERVAL, SHARE_MIN};
use super::*;
use crate::turns::Turns;
use std::collections::VecDeque;
use types::PollPolicy;

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Most connections that a turn reads.
const SERVED_MAX: usize = 32;

/// A reactor under a virtual clock: a queue of clients with random arrivals, one server, and
/// background work without end.
struct Virtual {
    steering: Steering,
    turns: Turns,
    now: Instant,
    random: fastrand::Rng,
    /// Mean time between two requests, and time to serve one.
    pause: Duration,
    service: Duration,
    next_arrival: Instant,
    /// Arrivals that have not been served, oldest first.
    waiting: VecDeque<Instant>,
    /// Delays of all served requests.
    delays: Vec<Duration>,
    background: Duration,
}

impl Virtual {
    fn new(requests_per_second: u64) -> Virtual {
        let now = Instant(1_000_000_000);
        let mut reactor = Virtual {
            steering: Steering::default(),
            turns: Turns::new(PollPolicy::Sleep, false),
            now,
            random: fastrand::Rng::with_seed(7),
            pause: Duration::ZERO,
            service: micros(8),
            next_arrival: now,
            waiting: VecDeque::new(),
            delays: Vec::new(),
            background: Duration::ZERO,
        };
        reactor.load(requests_per_second);
        reactor
    }

    fn load(&mut self, requests_per_second: u64) {
        self.pause = Duration::from_secs(1) / requests_per_second.max(1) as u32;
        self.next_arrival = self.now + self.pause;
    }

    /// Returns the share of the requests of the last run that exceeded the target, in percent.
    fn late(&self, target: LatencyTarget) -> f64 {
        let late = self.delays.iter().filter(|delay| **delay > target.p99).count();
        100.0 * late as f64 / self.delays.len().max(1) as f64
    }

    fn background_percent(&self, time: Duration) -> f64 {
        100.0 * self.background.as_secs_f64() / time.as_secs_f64()
    }

    /// Runs for `time`, and calls `look` after each turn.
    fn run(&mut self, time: Duration, target: LatencyTarget, mut look: impl FnMut(&Virtual)) {
        (self.delays, self.background) = (Vec::new(), Duration::ZERO);
        let end = self.now + time;
        while self.now < end {
            self.turn(target);
            look(self);
        }
    }

    fn arrive(&mut self) {
        while self.next_arrival <= self.now {
            self.waiting.push_back(self.next_arrival);
            let factor = -(1.0 - self.random.f64()).ln();
            self.next_arrival = self.next_arrival + self.pause.mul_f64(factor);
        }
    }

    /// Runs a turn as `Reactor` does.
    fn turn(&mut self, target: LatencyTarget) {
        self.steering.demand = limited(target);
        self.now = self.now + micros(1);
        self.arrive();
        if let Some(until) = self.steering.rests_until(self.now).filter(|_| self.waiting.is_empty())
        {
            self.steering.begin_wait(self.now);
            self.now = until.min(self.next_arrival);
            self.arrive();
        }
        self.steering.begin_turn(self.now, Duration::ZERO);
        let (begun, share) = (self.now, self.steering.share());
        let until = self.turns.serve_until(begun, share);
        let ready = self.waiting.len().min(SERVED_MAX);
        let mut arrivals = Vec::new();
        while arrivals.len() < ready && (arrivals.is_empty() || self.now < until) {
            arrivals.extend(self.waiting.pop_front());
            self.now = self.now + self.service;
        }
        self.delays.extend(arrivals.iter().map(|arrival| self.now.since(*arrival)));
        self.turns.worked(self.now.since(begun), share);
        self.steering.answered(self.now, arrivals.len(), self.waiting.len());
        let may_run = match arrivals.is_empty() {
            true => self.steering.rests_until(self.now).is_none(),
            false => self.turns.is_background_due(share),
        };
        if may_run {
            self.quantum(share, arrivals.is_empty());
        }
    }

    fn quantum(&mut self, share: u8, is_idle: bool) {
        let spent = micros(self.random.u64(20..=50));
        self.now = self.now + spent;
        self.background += spent;
        self.steering.ran(spent);
        match is_idle {
            true => self.turns.ran_idle(spent),
            false => self.turns.ran_due(spent, share),
        }
    }
}

fn limited(target: LatencyTarget) -> BackgroundDemand {
    BackgroundDemand { share: 0, target: Some(target), is_urgent: false }
}

fn target(p99: Duration) -> LatencyTarget {
    LatencyTarget { p99, share_max: 100 }
}

#[test]
fn without_clients_a_move_gets_all_of_the_time_soon() {
    let (mut reactor, target) = (Virtual::new(1), target(millis(1)));
    reactor.run(millis(50), target, |_| ());
    assert_eq!(reactor.steering.share(), 100);
    reactor.run(millis(100), target, |_| ());
    assert!(reactor.background_percent(millis(100)) > 90.0);
}

#[test]
fn a_busy_reactor_gives_a_move_the_time_that_its_clients_leave_within_the_target() {
    for p99 in [1, 2, 5, 10].map(millis) {
        let (mut reactor, target) = (Virtual::new(75_000), target(p99));
        reactor.run(millis(200), target, |_| ());
        let time = Duration::from_secs(4);
        reactor.run(time, target, |_| ());
        let (late, background) = (reactor.late(target), reactor.background_percent(time));
        assert!(late < 1.0, "{p99:?}: {late:.2} % late, background {background:.1} %");
        assert!(background > 15.0, "{p99:?}: {late:.2} % late, background {background:.1} %");
    }
}

#[test]
fn a_load_that_arrives_takes_the_time_back_within_a_tenth_of_a_second() {
    let (mut reactor, target) = (Virtual::new(10_000), target(millis(2)));
    reactor.run(millis(200), target, |_| ());
    assert_eq!(reactor.steering.share(), 100);
    reactor.load(112_000);
    reactor.run(millis(100), target, |_| ());
    assert!(reactor.steering.share() < 20, "{} %", reactor.steering.share());
    reactor.run(millis(400), target, |_| ());
    reactor.load(10_000);
    reactor.run(millis(700), target, |_| ());
    assert_eq!(reactor.steering.share(), 100, "the load has gone");
}

#[test]
fn a_target_that_cannot_be_met_leaves_the_least_share() {
    let (mut reactor, target) = (Virtual::new(60_000), target(micros(5)));
    reactor.run(millis(100), target, |_| ());
    let mut shares = Vec::new();
    reactor.run(millis(500), target, |reactor| shares.push(reactor.steering.share()));
    assert!(shares.iter().all(|share| *share == SHARE_MIN), "{:?}", shares.iter().max());
    let background = reactor.background_percent(millis(500));
    assert!((1.0..4.0).contains(&background), "{background:.1} %");
}

#[test]
fn the_share_of_the_move_is_the_maximum_and_that_of_other_work_the_minimum() {
    let mut reactor = Virtual::new(1);
    let target = LatencyTarget { p99: millis(1), share_max: 25 };
    reactor.run(millis(100), target, |reactor| assert!(reactor.steering.share() <= 25));
    assert_eq!(reactor.steering.share(), 25);
    let time = millis(400);
    reactor.run(time, target, |_| ());
    let background = reactor.background_percent(time);
    assert!((20.0..30.0).contains(&background), "idle time is limited: {background:.1} %");
    reactor.steering.demand.share = 60;
    assert_eq!(reactor.steering.share(), 60);
}

#[test]
fn requests_count_from_the_poll_before_unless_the_reactor_has_waited() {
    let demand = limited(target(millis(1)));
    let mut steering = Steering { demand, ..Steering::default() };
    let at = |micros: u64| Instant(1_000_000_000 + 1_000 * micros);
    let seen = |steering: &mut Steering, now: u64, sent: u64| {
        steering.begin_turn(at(now), micros(100));
        steering.answered(at(sent), 1, 0);
        let steered = steering.steered.as_ref().unwrap();
        at(sent).since(steered.since)
    };
    steering.begin_turn(at(0), micros(100));
    assert_eq!(seen(&mut steering, 300, 350), micros(350), "since the poll before");
    steering.begin_wait(at(400));
    assert_eq!(seen(&mut steering, 2_400, 2_410), micros(110), "since a wake-up of 100 us");
    steering.begin_wait(at(2_500));
    assert_eq!(seen(&mut steering, 2_505, 2_600), micros(200), "the request was there already");
}

#[test]
fn one_late_interval_halves_the_share_once() {
    let demand = limited(target(millis(1)));
    let mut steering = Steering { demand, ..Steering::default() };
    let begun = Instant(1_000_000_000);
    let mut shares = Vec::new();
    for interval in 0..30 {
        let now = begun + INTERVAL * interval;
        steering.begin_turn(now, Duration::ZERO);
        shares.push(steering.share());
        let delay = if interval == 3 { millis(2) } else { micros(100) };
        steering.steered.as_mut().unwrap().since = now;
        steering.answered(now + delay, 10, 0);
    }
    assert_eq!(shares[..5], [10, 20, 40, 80, 40]);
    assert!(shares[5..10].iter().all(|share| *share == 40), "the histogram remembers: {shares:?}");
    assert!(shares[29] > 50, "and forgets: {shares:?}");
}
