//! Faults beside those of messages: links break, servers are cut off from each other or paused,
//! clocks jump, the coordinator restarts.
//!
//! Each run has some of these kinds and not others, since faults that always happen hide each
//! other.

use super::{Next, Part, SERVERS, World};
use crate::settings::{Knob, Settings};
use fastrand::Rng;
use std::time::Duration;
use types::Instant;
use wire::control::SILENCE_MAX;

/// Kinds of faults, with the number of fifths of the runs that have them.
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

/// Largest lead of a server's wall clock over the world's, in milliseconds.
const SKEW_MAX_MILLIS: u64 = 5_000;

/// Usual lead in milliseconds: so small that the servers' clocks converge within seconds.
const SKEW_MILLIS: u64 = 200;

/// Longest outage in microseconds: somewhat more than the five-second timeouts.
const ABSENCE_MAX: u64 = 8_000_000;

/// For each pair of servers (sender first), the time until which messages get lost.
pub(super) type Cuts = [[Instant; SERVERS]; SERVERS];

/// Draws the kinds of faults of a run.
pub(super) fn draw(rng: &mut Rng, settings: &Settings) -> Vec<Knob> {
    let drawn = FAULTS.into_iter().filter(|&(_, often)| rng.u32(..5) < often);
    let mut drawn: Vec<Knob> = drawn.map(|(knob, _)| knob).collect();
    drawn.retain(|&knob| settings.has(knob));
    drawn
}

impl World {
    /// Starts the faults: clocks differ from the beginning, all others come later.
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

    /// Lets one of the run's faults happen, and plans the next one.
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
            // The store fails at random by itself.
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
                // There are only three servers, and lost data cannot be lost twice.
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
        self.trace.note(self.now, format_args!("{id} pauses until {until}"));
        self.losses.silent.insert(place);
        self.servers[place].paused_until = until;
        // A coordinator drops a server that is silent for so long; the server notices when it
        // resumes.
        let silent = self.now + SILENCE_MAX;
        if let Some(connection) = self.servers[place].link.connection
            && silent < until
        {
            self.plan_at(silent, Next::Hangup(connection));
            self.plan_at(until, Next::Sever(place, connection));
        }
    }

    /// Draws the duration of an outage: usually up to `usual` microseconds, in some runs longer
    /// than the five-second timeouts.
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
