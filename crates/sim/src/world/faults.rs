//! What goes wrong beside messages: links break, servers are cut off from each other or stand still,
//! clocks jump, the coordinator starts again.
//!
//! Each run has some of these kinds and not others: faults that are always there hide each other.

use super::{Next, Part, SERVERS, World};
use crate::settings::{Knob, Settings};
use fastrand::Rng;
use std::time::Duration;
use types::Instant;
use wire::control::SILENCE_MAX;

/// What goes wrong, and in how many fifths of the runs.
const FAULTS: [(Knob, u32); 8] = [
    (Knob::Link, 2),
    (Knob::Cut, 2),
    (Knob::Pause, 2),
    (Knob::Clock, 2),
    (Knob::Restart, 2),
    (Knob::Takeover, 1),
    (Knob::Store, 1),
    (Knob::Crash, 1),
];

/// How far a server's wall clock may be ahead of that of the world.
const SKEW_MAX_MILLIS: u64 = 5_000;

/// How far it is, as a rule: so little that servers' clocks meet within seconds.
const SKEW_MILLIS: u64 = 200;

/// The longest absence in microseconds: some more than the five seconds after which much happens.
const ABSENCE_MAX: u64 = 8_000_000;

/// Until when messages from one server to another get lost.
pub(super) type Cuts = [[Instant; SERVERS]; SERVERS];

/// The kinds that a run has.
pub(super) fn draw(rng: &mut Rng, settings: &Settings) -> Vec<Knob> {
    let drawn = FAULTS.into_iter().filter(|&(_, often)| rng.u32(..5) < often);
    let mut drawn: Vec<Knob> = drawn.map(|(knob, _)| knob).collect();
    drawn.retain(|&knob| settings.has(knob));
    drawn
}

impl World {
    /// Clocks differ from the beginning on; everything else takes its time.
    pub(super) fn begin_faults(&mut self) {
        if self.faults.contains(&Knob::Clock) {
            let is_far = self.rng.u32(..3) == 0;
            self.skew_max_millis = if is_far { SKEW_MAX_MILLIS } else { SKEW_MILLIS };
            (0..SERVERS).for_each(|place| self.jump(place));
        }
        if self.faults.contains(&Knob::Store) {
            self.leaders.trouble = [10, 40, 200][self.rng.usize(..3)];
            self.leaders.set_trouble(true);
        }
        if self.kept.is_some() && self.settings.has(Knob::Crash) {
            self.faults.push(Knob::Crash);
        }
        self.add_faults_of_the_replicated();
        let delay = self.micros(20_000..200_000);
        self.plan_in(delay, Next::Fault);
    }

    /// One of the run's faults happens, and another one will.
    pub(super) fn fault(&mut self) {
        if self.part != Part::Working || self.faults.is_empty() {
            return;
        }
        let Some(place) = self.some_server() else { return self.plan_fault() };
        match self.faults[self.rng.usize(..self.faults.len())] {
            Knob::Link => self.break_link(place),
            Knob::Cut => self.cut(place),
            Knob::Pause => self.pause(place),
            Knob::Clock => self.jump(place),
            Knob::Restart => self.restart_coordinator(),
            Knob::Takeover => self.take_over(),
            Knob::Rollback => self.roll_back(place),
            // It goes on by itself.
            Knob::Store => {}
            Knob::Blackout => self.black_out(),
            Knob::Island => self.isolate(place),
            Knob::Disk => self.trouble_disk(place),
            Knob::Memory
            | Knob::Deaths
            | Knob::Machines
            | Knob::Small
            | Knob::Long
            | Knob::Weather
            | Knob::Moves
            | Knob::Cancels
            | Knob::Pipelines
            | Knob::Flushes
            | Knob::Kept
            | Knob::Replicated
            | Knob::Lineage
            | Knob::Expiry => unreachable!("no fault"),
            Knob::Crash => {
                self.crash(place);
                // There are three servers only, and what one has lost no other one can lose.
                if self.kept.is_none() && self.rng.u32(..3) != 0 {
                    self.faults.retain(|&fault| fault != Knob::Crash);
                }
            }
        }
        self.plan_fault();
    }

    fn plan_fault(&mut self) {
        let again = self.micros(5_000..200_000) * self.slowness;
        self.plan_in(again, Next::Fault);
    }

    pub(super) fn break_link(&mut self, place: usize) {
        let Some(connection) = self.servers[place].link.connection.take() else { return };
        self.trace.note(self.now, format_args!("the link of {} breaks", self.servers[place].id));
        self.servers[place].node.set_linked(false);
        self.hang_up(connection);
        self.plan_rejoin(place);
    }

    pub(super) fn plan_rejoin(&mut self, place: usize) {
        let is_long = self.rng.u32(..4) == 0;
        let away = self.absence(if is_long { 2_500_000 } else { 50_000 });
        self.plan_in(away, Next::Rejoin(place));
    }

    fn cut(&mut self, from: usize) {
        let to = (from + self.rng.usize(1..SERVERS)) % SERVERS;
        let until = self.now + self.absence(600_000);
        let is_both_ways = self.rng.bool();
        let (one, other) = (self.servers[from].id, self.servers[to].id);
        let way = if is_both_ways { "and back" } else { "one way" };
        self.trace.note(self.now, format_args!("cut from {one} to {other} {way} until {until}"));
        self.cuts[from][to] = until;
        self.losses.silent.extend([from, to]);
        if is_both_ways {
            self.cuts[to][from] = until;
        }
    }

    fn pause(&mut self, place: usize) {
        let until = self.now + self.absence(700_000);
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("{id} stands still until {until}"));
        self.losses.silent.insert(place);
        self.servers[place].paused_until = until;
        // Whoever says nothing for so long is taken for gone, and finds out when it goes on.
        let silent = self.now + SILENCE_MAX;
        if let Some(connection) = self.servers[place].link.connection
            && silent < until
        {
            self.plan_at(silent, Next::Hangup(connection));
            self.plan_at(until, Next::Sever(place, connection));
        }
    }

    /// How long something is away: usually at most so many microseconds, and in some runs for as
    /// long as matters to those who wait for five seconds.
    pub(super) fn absence(&mut self, usual: u64) -> Duration {
        let is_long = self.slowness > 1 && self.rng.u32(..3) == 0 && self.part == Part::Working;
        let absence = self.micros(1_000..if is_long { ABSENCE_MAX } else { usual });
        self.away_until = self.away_until.max(self.now + absence);
        absence
    }

    fn jump(&mut self, place: usize) {
        let ahead = self.rng.u64(..=self.skew_max_millis);
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("the clock of {id} is {ahead} ms ahead"));
        self.servers[place].clock_ahead_millis = ahead;
    }
}
