//! Coordinators of a run: the leading one, and perhaps one that has not noticed that it no longer
//! leads.
//!
//! If its store fails, a coordinator sends its pending messages and ends, as the real process
//! does. Another one opens the store and continues. Another one may also open the store while the
//! first one is paused. When the first one resumes, the store refuses its next change.

use super::{Next, World};
use crate::metadata::Metadata;
use crate::planted::Planted;
use coordinator::{
    Caller, ConnectionId, Coordinator, Drawn, Effect, Event, Identity, Moment, Outbox, Settings,
};
use std::collections::BTreeMap;
use types::{ClusterId, Generation, Instant, ServerId};
use wire::control::MigrationReport;

/// One coordinator process.
#[derive(Debug)]
struct Leader {
    machine: Coordinator<Metadata>,
    /// Time of its next call if nothing happens before.
    due: Option<Instant>,
    /// End of the current pause.
    paused_until: Instant,
    /// Set if it has opened an old copy of the store.
    is_of_copy: bool,
}

/// All coordinators of a run.
#[derive(Debug)]
pub(super) struct Leaders {
    identity: Identity,
    store: Metadata,
    /// Latest copy of the store.
    pub(super) copy: Option<Metadata>,
    /// Set while new coordinators open the copy instead of the store.
    pub(super) is_rolled_back: bool,
    /// For a planted bug: no server need confirm the store.
    trusts_file: bool,
    /// Live coordinators by number; the last one that opened the store has the highest.
    alive: BTreeMap<u32, Leader>,
    opened: u32,
    /// Number of the coordinator at the other end of each connection.
    connections: BTreeMap<ConnectionId, u32>,
    /// One call of the store in this many fails while clients work; 0: none.
    pub(super) trouble: u32,
}

/// Time until the world tries again to start a coordinator, in microseconds.
const AGAIN: std::ops::Range<u64> = 10_000..200_000;

impl Leaders {
    pub(super) fn new(identity: Identity, seed: u64, planted: Option<Planted>) -> Leaders {
        let store = Metadata::new(seed, planted == Some(Planted::StoreWithoutCompare));
        let mut leaders = Leaders {
            identity,
            store,
            copy: None,
            is_rolled_back: false,
            trusts_file: planted == Some(Planted::OldStoreTrusted),
            alive: BTreeMap::new(),
            opened: 0,
            connections: BTreeMap::new(),
            trouble: 0,
        };
        assert!(leaders.open(Instant(0)), "an empty store can be opened");
        leaders
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Lets another coordinator open the store. Returns `false` if the store fails.
    fn open(&mut self, now: Instant) -> bool {
        // A number of its own for each coordinator, and the same numbers in each run of the seed.
        let term = u64::from(self.opened) + 1;
        let drawn = Drawn { fresh: self.identity, term };
        // Clocks differ by more than the limit allows; everything must still be correct.
        let (limits_skew, trusts_file) = (false, self.trusts_file);
        let settings = Settings { limits_skew, trusts_file, ..Settings::default() };
        let (store, is_of_copy) = match &self.copy {
            Some(copy) if self.is_rolled_back => (copy, true),
            Some(_) | None => (&self.store, false),
        };
        let opened = Coordinator::open(store.clone(), drawn, settings, now);
        if let Ok(machine) = opened {
            self.opened += 1;
            let leader = Leader { machine, due: None, paused_until: Instant(0), is_of_copy };
            self.alive.insert(self.opened, leader);
            return true;
        }
        false
    }

    /// Returns the coordinator that opened the store last, if it still runs.
    pub(super) fn current(&self) -> Option<u32> {
        self.alive.contains_key(&self.opened).then_some(self.opened)
    }

    /// Returns the newest coordinator's reports on migrations.
    pub(super) fn reports(&self) -> Vec<MigrationReport> {
        self.alive.values().next_back().map(|leader| leader.machine.reports()).unwrap_or_default()
    }

    /// Returns whether this connection leads to the leading coordinator.
    pub(super) fn is_current(&self, connection: ConnectionId) -> bool {
        !self.is_rolled_back && self.connections.get(&connection) == Some(&self.opened)
    }

    /// Copies the store.
    pub(super) fn copy_store(&mut self) {
        self.copy = Some(self.store.copy());
    }

    /// Returns the number of servers that a coordinator on the copy would wait for before any
    /// change, and the number of the copy's newest transaction.
    pub(super) fn awaited_by_copy(&self, now: Instant) -> Option<(usize, u64)> {
        let copy = self.copy.as_ref()?;
        let drawn = Drawn { fresh: self.identity, term: 0 };
        let machine = Coordinator::open(copy.copy(), drawn, Settings::default(), now).ok()?;
        Some((machine.awaited_servers(), copy.newest()))
    }

    /// Returns the coordinators that have opened the copy.
    pub(super) fn of_copy(&self) -> Vec<u32> {
        let of_copy = self.alive.iter().filter(|(_, leader)| leader.is_of_copy);
        of_copy.map(|(number, _)| *number).collect()
    }

    /// Returns the end of the pause of the coordinator at this connection.
    pub(super) fn paused_until(&self, connection: ConnectionId) -> Instant {
        let leader = self.connections.get(&connection).and_then(|number| self.alive.get(number));
        leader.map_or(Instant(0), |leader| leader.paused_until)
    }

    /// Turns failures of the store on or off.
    pub(super) fn set_trouble(&self, is_on: bool) {
        self.store.set_trouble(if is_on { self.trouble } else { 0 });
    }
}

impl World {
    /// Opens a connection of a server to the leading coordinator; `None` if there is none. A
    /// process without a generation gets one.
    pub(super) fn open_connection(
        &mut self,
        number: Option<(ClusterId, ServerId)>,
        generation: Option<Generation>,
    ) -> Option<ConnectionId> {
        let leader = self.leaders.current()?;
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.leaders.connections.insert(connection, leader);
        // The number of a process's first connection is unique.
        let generation = generation.unwrap_or(Generation(connection.0));
        let caller = Caller::Server { number, generation };
        let effects = self.coordinate(connection, Event::Opened { connection, caller });
        self.carry_out(effects);
        Some(connection)
    }

    /// Passes an event to the coordinator at the other end of a connection, if it still runs.
    pub(super) fn coordinate(&mut self, connection: ConnectionId, event: Event) -> Vec<Effect> {
        match self.leaders.connections.get(&connection) {
            Some(leader) => self.handle(*leader, event),
            None => Vec::new(),
        }
    }

    /// Handles the deadline of a coordinator.
    pub(super) fn tick_leader(&mut self, number: u32) {
        let Some(leader) = self.leaders.alive.get_mut(&number) else { return };
        if leader.due != Some(self.now) {
            return;
        }
        if leader.paused_until > self.now {
            let until = leader.paused_until;
            leader.due = Some(until);
            return self.plan_at(until, Next::Coordinator(number));
        }
        let effects = self.handle(number, Event::Tick);
        self.carry_out(effects);
    }

    fn handle(&mut self, number: u32, event: Event) -> Vec<Effect> {
        let at = Moment { now: self.now, wall: self.wall() };
        let Some(leader) = self.leaders.alive.get_mut(&number) else { return Vec::new() };
        let mut out = Outbox::new();
        if let Err(stopped) = leader.machine.handle(at, event, &mut out) {
            self.trace.note(self.now, format_args!("coordinator {number} stops: {stopped}"));
            self.end_leader(number);
            return out.drain().collect();
        }
        let due = leader.machine.next_deadline().map(|due| due.max(self.now));
        if due != leader.due {
            leader.due = due;
            if let Some(due) = due {
                self.plan_at(due, Next::Coordinator(number));
            }
        }
        out.drain().collect()
    }

    /// Ends a coordinator. Servers notice this after they have received all its messages.
    pub(super) fn end_leader(&mut self, number: u32) {
        self.leaders.alive.remove(&number);
        for place in 0..self.servers.len() {
            let link = &self.servers[place].link;
            let Some(connection) = link.connection else { continue };
            if self.leaders.connections.get(&connection) == Some(&number) {
                let at = link.down.max(self.now) + self.weather.delay(&mut self.rng);
                self.plan_at(at, Next::Sever(place, connection));
            }
        }
        if self.leaders.current().is_none() {
            let away = self.micros(100..50_000);
            self.plan_in(away, Next::Lead);
        }
    }

    /// Lets another coordinator open the store, unless one leads.
    pub(super) fn lead(&mut self) {
        if self.leaders.current().is_some() {
            return;
        }
        let is_open = self.leaders.open(self.now);
        let (number, word) = (self.leaders.opened, if is_open { "leads" } else { "cannot open" });
        self.trace.note(self.now, format_args!("coordinator {number} {word}"));
        if is_open {
            let effects = self.handle(number, Event::Tick);
            return self.carry_out(effects);
        }
        let again = self.micros(AGAIN);
        self.plan_in(again, Next::Lead);
    }

    /// Ends the coordinator; another one continues with its store.
    pub(super) fn restart_coordinator(&mut self) {
        let Some(number) = self.leaders.current() else { return };
        self.trace.note(self.now, format_args!("coordinator {number} is stopped"));
        self.end_leader(number);
    }

    /// Pauses a coordinator without its knowledge, and lets another one take over.
    pub(super) fn take_over(&mut self) {
        let Some(number) = self.leaders.current() else { return };
        let until = self.now + self.micros(1_000..400_000);
        self.trace.note(
            self.now,
            format_args!("coordinator {number} pauses until {until}, and another takes over"),
        );
        if !self.leaders.open(self.now) {
            return;
        }
        if let Some(leader) = self.leaders.alive.get_mut(&number) {
            leader.paused_until = until;
        }
        let effects = self.handle(self.leaders.opened, Event::Tick);
        self.carry_out(effects);
        for place in 0..self.servers.len() {
            // Some servers notice soon, others when the old coordinator has been silent for too
            // long.
            let later = self.micros(100..1_000_000);
            if let Some(connection) = self.servers[place].link.connection {
                self.plan_in(later, Next::Sever(place, connection));
            }
        }
    }

    /// Ends all coordinators that no longer lead, since the run comes to its end.
    pub(super) fn end_former_leaders(&mut self) {
        let leads = self.leaders.opened;
        let former: Vec<u32> =
            self.leaders.alive.range(..leads).map(|(number, _)| *number).collect();
        former.into_iter().for_each(|number| self.end_leader(number));
    }

    /// Breaks a new link if its coordinator ended while handling the first message.
    pub(super) fn note_linked(&mut self, place: usize, connection: ConnectionId) {
        let leader = self.leaders.connections.get(&connection);
        if !leader.is_some_and(|number| self.leaders.alive.contains_key(number)) {
            let soon = self.weather.delay(&mut self.rng);
            self.plan_in(soon, Next::Sever(place, connection));
        }
    }

    /// Breaks a server's link to a coordinator, if it is not broken already.
    pub(super) fn sever(&mut self, place: usize, connection: ConnectionId) {
        if self.servers[place].link.connection != Some(connection) {
            return;
        }
        self.break_link(place);
    }
}
