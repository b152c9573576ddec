//! What goes wrong beside messages: links break, servers are cut off from each other or stand still,
//! clocks jump, the coordinator starts again.
//!
//! Each run has some of these kinds and not others: faults that are always there hide each other.

use super::{Next, Part, SERVERS, World};
use fastrand::Rng;
use types::Instant;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A server loses its connection to the coordinator for a while.
    Link,
    /// No message gets from one server to another for a while; perhaps none comes back either.
    Cut,
    /// A server stands still, and does not know how long.
    Pause,
    /// A server's wall clock jumps, forward or back.
    Clock,
    /// The coordinator ends and another one goes on with its store.
    Restart,
    /// Another coordinator opens the store while one stands still that does not know.
    Takeover,
    /// The metadata store fails now and then, with or without effect.
    Store,
    /// A server dies, and perhaps another process starts where it stood.
    Crash,
}

const FAULTS: [Fault; 8] = [
    Fault::Link,
    Fault::Cut,
    Fault::Pause,
    Fault::Clock,
    Fault::Restart,
    Fault::Takeover,
    Fault::Store,
    Fault::Crash,
];

/// How far a server's wall clock may be ahead of that of the world.
pub(super) const SKEW_MAX_MILLIS: u64 = 200;

/// Until when messages from one server to another get lost.
pub(super) type Cuts = [[Instant; SERVERS]; SERVERS];

impl Fault {
    /// The kinds that a run has.
    pub(super) fn draw(rng: &mut Rng) -> Vec<Fault> {
        let often = |fault| match fault {
            Fault::Crash | Fault::Takeover | Fault::Store => 1,
            Fault::Link | Fault::Cut | Fault::Pause | Fault::Clock | Fault::Restart => 2,
        };
        FAULTS.into_iter().filter(|&fault| rng.u32(..5) < often(fault)).collect()
    }
}

impl World {
    /// Clocks differ from the beginning on; everything else takes its time.
    pub(super) fn begin_faults(&mut self) {
        if self.faults.contains(&Fault::Clock) {
            (0..SERVERS).for_each(|place| self.jump(place));
        }
        if self.faults.contains(&Fault::Store) {
            self.leaders.trouble = [10, 40, 200][self.rng.usize(..3)];
            self.leaders.set_trouble(true);
        }
        let delay = self.micros(20_000..200_000);
        self.plan_in(delay, Next::Fault);
    }

    /// One of the run's faults happens, and another one will.
    pub(super) fn fault(&mut self) {
        if self.part != Part::Working || self.faults.is_empty() {
            return;
        }
        let place = self.some_server();
        match self.faults[self.rng.usize(..self.faults.len())] {
            Fault::Link => self.break_link(place),
            Fault::Cut => self.cut(place),
            Fault::Pause => self.pause(place),
            Fault::Clock => self.jump(place),
            Fault::Restart => self.restart_coordinator(),
            Fault::Takeover => self.take_over(),
            // It goes on by itself.
            Fault::Store => {}
            Fault::Crash => {
                self.crash(place);
                // There are three servers only, and what one has lost no other one can lose.
                if self.rng.u32(..3) != 0 {
                    self.faults.retain(|&fault| fault != Fault::Crash);
                }
            }
        }
        let again = self.micros(5_000..200_000);
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
        let away = if self.rng.u32(..4) == 0 { 2_500_000 } else { 50_000 };
        let away = self.micros(100..away);
        self.plan_in(away, Next::Rejoin(place));
    }

    fn cut(&mut self, from: usize) {
        let to = (from + self.rng.usize(1..SERVERS)) % SERVERS;
        let until = self.now + self.micros(1_000..600_000);
        let is_both_ways = self.rng.bool();
        let (one, other) = (self.servers[from].id, self.servers[to].id);
        let way = if is_both_ways { "and back" } else { "one way" };
        self.trace.note(self.now, format_args!("cut from {one} to {other} {way} until {until}"));
        self.cuts[from][to] = until;
        if is_both_ways {
            self.cuts[to][from] = until;
        }
    }

    fn pause(&mut self, place: usize) {
        let until = self.now + self.micros(1_000..700_000);
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("{id} stands still until {until}"));
        self.servers[place].paused_until = until;
    }

    fn jump(&mut self, place: usize) {
        let ahead = self.rng.u64(..=SKEW_MAX_MILLIS);
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("the clock of {id} is {ahead} ms ahead"));
        self.servers[place].clock_ahead_millis = ahead;
    }
}
