//! Servers that die, and processes that start in their place.
//!
//! A server that dies loses its memory. If it has persisted its log, the next process at its
//! place recovers all of it. Otherwise its ranges are lost for good; for a moving range it
//! depends on the progress of the move. Lost registers are *excused*: they need not be answered
//! any more. An answer must still be right, and everything else goes on as usual.

use super::{Next, Part, SERVERS, World};
use crate::failure::{Failure, Rule};
use coordinator::{ConnectionId, Event};
use std::collections::{BTreeMap, BTreeSet};
use store::TabletState;
use types::{HashRange, Instant, MigrationId, ServerId};
use wire::control::{MigrationReport, MigrationState};

/// Losses through dead servers.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Dead servers, with their places.
    pub(super) dead: BTreeMap<ServerId, usize>,
    /// Ranges that certainly died with their owner: a server that serves them serves an old copy.
    gone: Vec<HashRange>,
    /// Registers that need not be answered.
    excused: BTreeSet<usize>,
    /// Clients with a flush that failed because its question to a dead coordinator was lost.
    /// Requests behind it on the connection waited for as long.
    stalled: BTreeSet<usize>,
    /// Places with failed disks. Masters ask such a backup again only after a pause.
    pub(super) failing: BTreeSet<usize>,
    /// Places that were paused or cut off. Masters avoid such a backup for a while as well.
    pub(super) silent: BTreeSet<usize>,
    /// Number of excused registers that were considered for the final reads.
    tried: usize,
    /// Connections of dead servers that still carry earlier messages.
    hanging: BTreeSet<ConnectionId>,
}

/// Number of excused registers that the final reads include.
const EXCUSED_READS: usize = 8;

impl Losses {
    pub(super) fn is_excused(&self, register: usize) -> bool {
        self.excused.contains(&register)
    }

    /// Returns whether a register is read at the end. Only a few lost registers are read, since
    /// each may take five seconds.
    pub(super) fn is_worth_reading(&mut self, register: usize) -> bool {
        let is_excused = self.is_excused(register);
        self.tried += usize::from(is_excused);
        !is_excused || self.tried <= EXCUSED_READS
    }

    /// Returns whether a master may have no usable backup for a while: one disk has failed, and
    /// the other backups have failed disks or were silent. Silence alone never takes away the
    /// last backup.
    fn may_lack_backups(&self) -> bool {
        let are_out = self.failing.union(&self.silent).count() + 1 >= SERVERS;
        !self.failing.is_empty() && are_out
    }

    pub(super) fn note_stalled(&mut self, client: usize) {
        self.stalled.insert(client);
    }

    pub(super) fn still_carries(&self, connection: ConnectionId) -> bool {
        self.hanging.contains(&connection)
    }

    /// Returns the migrations that wait for ever: a side has died after the flip, or both sides
    /// have died before its outcome was known. Includes migrations that are queued behind such.
    pub(super) fn stuck(&self, reports: &[MigrationReport]) -> BTreeSet<MigrationId> {
        let mut stuck: Vec<(MigrationId, HashRange)> = Vec::new();
        // The reports are sorted from newest to oldest.
        for report in reports.iter().rev() {
            let is_dead = |server: ServerId| self.dead.contains_key(&server);
            let is_stuck = match report.state {
                MigrationState::Moving | MigrationState::Releasing => {
                    is_dead(report.source) || is_dead(report.target)
                }
                MigrationState::Preparing => is_dead(report.source) && is_dead(report.target),
                MigrationState::Queued => {
                    stuck.iter().any(|(_, range)| range.overlaps(report.range))
                }
                MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => {
                    false
                }
            };
            if is_stuck {
                stuck.push((report.migration, report.range));
            }
        }
        stuck.into_iter().map(|(migration, _)| migration).collect()
    }
}

impl World {
    /// Returns the place of a live server.
    pub(super) fn place(&self, id: ServerId) -> Option<usize> {
        self.servers.iter().position(|server| server.id == id && !server.is_dead)
    }

    /// Draws a live server.
    pub(super) fn some_server(&mut self) -> Option<usize> {
        let live: Vec<usize> = (0..SERVERS).filter(|&place| !self.servers[place].is_dead).collect();
        (!live.is_empty()).then(|| live[self.rng.usize(..live.len())])
    }

    /// Kills a process, and drops its memory and everything in transit to it. With `loses_power`,
    /// its machine fails as well.
    pub(super) fn die(&mut self, place: usize, loses_power: bool) {
        if self.servers[place].is_dead {
            return;
        }
        // At least one server must remain to be asked.
        if self.replicas() == 0 && self.servers.iter().filter(|server| !server.is_dead).count() < 2
        {
            return;
        }
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("{id} dies"));
        match self.kept {
            Some(_) => {
                self.losses.dead.insert(id, place);
                self.lose_memory(place, loses_power);
            }
            None => self.note_losses(place),
        }
        self.plan.retain(|_, next| match next {
            Next::Turn(at, _) | Next::Arrive(at, _, _) | Next::Rejoin(at) => *at != place,
            Next::Disk(at, _, _) => *at != place,
            Next::Down(at, _, _) | Next::Sever(at, _) => *at != place,
            Next::Up(..)
            | Next::Answer(..)
            | Next::Broken(_)
            | Next::Think(_)
            | Next::Refused(_)
            | Next::Move
            | Next::Fault
            | Next::Hangup(_)
            | Next::Start(_)
            | Next::Coordinator(_)
            | Next::Lead
            | Next::BringBack
            | Next::Strike(_)
            | Next::Rest => true,
        });
        let server = &mut self.servers[place];
        server.is_dead = true;
        server.reactors.clear();
        if let Some(connection) = server.link.connection.take() {
            self.losses.hanging.insert(connection);
            let last = self.now.max(self.servers[place].link.up);
            self.plan_at(last, Next::Hangup(connection));
        }
        self.break_connections(place);
        if self.kept.is_some() || self.rng.u32(..4) != 0 {
            let away = self.micros(500..1_500_000);
            self.plan_in(away, Next::Start(place));
        }
    }

    /// Breaks the clients' connections to a server; on some, its last replies still arrive.
    fn break_connections(&mut self, place: usize) {
        for (connection, last) in self.clients.connections_to(place) {
            let is_silent = self.rng.bool();
            if is_silent {
                self.plan.retain(|_, next| match next {
                    Next::Answer(of, _) => *of != connection,
                    _ => true,
                });
            }
            let end = if is_silent { self.now } else { last.max(self.now) };
            self.plan_at(end, Next::Broken(connection));
        }
    }

    /// Notifies the coordinator that a connection has ended.
    pub(super) fn hang_up(&mut self, connection: ConnectionId) {
        let until = self.leaders.paused_until(connection);
        if until > self.now {
            return self.plan_at(until, Next::Hangup(connection));
        }
        self.losses.hanging.remove(&connection);
        let effects = self.coordinate(connection, Event::Closed { connection });
        self.carry_out(effects);
    }

    /// Starts another process at the address of a dead one.
    pub(super) fn start_again(&mut self, place: usize) {
        let ahead = self.servers[place].clock_ahead_millis;
        if !self.start_server(place) {
            let again = self.micros(10_000..500_000);
            return self.plan_in(again, Next::Start(place));
        }
        self.servers[place].clock_ahead_millis = ahead;
        let id = self.servers[place].id;
        self.trace.note(self.now, format_args!("{id} starts in place of a dead one"));
    }

    fn note_losses(&mut self, place: usize) {
        let id = self.servers[place].id;
        self.losses.dead.insert(id, place);
        let reports = self.leaders.reports();
        let mut excused: Vec<HashRange> = Vec::new();
        let tablets = self.servers[place].node.store().tablets();
        for tablet in tablets.iter() {
            match &tablet.state {
                TabletState::Serving | TabletState::Securing(_) => {
                    self.losses.gone.push(tablet.range)
                }
                // The source may not know yet that the flip was accepted, and may serve again.
                TabletState::Arriving(arrival) if is_in_doubt(&reports, arrival.migration()) => {
                    for register in self.registers_in(tablet.range) {
                        self.clients.lose(self.now, register);
                    }
                    // The source then serves under its earlier epoch.
                    self.epochs.retain(|slot, _| !tablet.range.contains(slot.first_hash()));
                }
                TabletState::Arriving(_) => self.losses.gone.push(tablet.range),
                TabletState::Frozen => {}
                // The rest has arrived at the target, or is excused below.
                TabletState::Leaving => continue,
                // The dead server never owned the range: another one recovers it.
                TabletState::Recovering(_) => continue,
            }
            excused.push(tablet.range);
        }
        // The coordinator has no confirmation from the owner, so these ranges were never served.
        let map = self.servers[place].node.map();
        let born = map.tablets.iter().filter(|tablet| tablet.owner == id && tablet.is_born);
        excused.extend(born.map(|tablet| tablet.range));
        for range in excused {
            let registers = self.registers_in(range);
            self.losses.excused.extend(registers);
        }
        (0..SERVERS).for_each(|target| self.excuse_what_has_not_arrived(target, id));
    }

    /// Excuses the registers of which only the dead source had the data.
    fn excuse_what_has_not_arrived(&mut self, target: usize, source: ServerId) {
        let wall = self.wall_at(target);
        let server = &mut self.servers[target];
        let tablets = server.node.store().tablets();
        for tablet in tablets.iter() {
            let TabletState::Arriving(arrival) = &tablet.state else { continue };
            if arrival.source() != source {
                continue;
            }
            for (number, register) in self.workload.registers.iter().enumerate() {
                let mut keys = register.keys.iter().map(|(hash, _)| *hash);
                let is_away = keys.any(|hash| {
                    tablet.range.contains(hash)
                        && !arrival.is_below_progress(hash)
                        && !server.inspector.has(wall, (register.table, hash), None)
                });
                if is_away {
                    self.losses.excused.insert(number);
                }
            }
        }
    }

    fn registers_in(&self, range: HashRange) -> Vec<usize> {
        let registers = self.workload.registers.iter().enumerate();
        let inside = registers.filter(|(_, register)| range.contains(register.keys[0].0));
        inside.map(|(number, _)| number).collect()
    }

    /// Checks that no server serves a range that died with its owner.
    pub(super) fn check_lost(&self, place: usize, served: &[HashRange]) -> Option<Failure> {
        let gone = &self.losses.gone;
        let old = served.iter().find_map(|a| gone.iter().find_map(|b| a.intersection(*b)))?;
        let id = self.servers[place].id;
        Some(Rule::LostStaysLost.broken(format!("{id} serves {old}, whose owner has died")))
    }

    /// Checks a refusal: while every server lives, no outage is long, and no master can lack all
    /// its backups, every operation that began meanwhile must be answered with data.
    pub(super) fn check_refused(
        &self,
        (client, since): (usize, Instant),
        register: usize,
    ) -> Option<Failure> {
        let may_be_refused = self.losses.is_excused(register)
            || self.losses.stalled.contains(&client)
            || !self.losses.dead.is_empty()
            || self.losses.may_lack_backups()
            || self.memory_bytes < super::MEMORY_BYTES
            || self.slowness > 1 && (self.part == Part::Working || since <= self.away_until);
        (!may_be_refused).then(|| Rule::Answered.broken(format!("register {register} is refused")))
    }

    /// Returns whether a client should choose another register, since this one may never be
    /// answered.
    pub(super) fn is_avoided(&mut self, register: usize) -> bool {
        self.part == Part::Working && self.losses.is_excused(register) && self.rng.u32(..10) != 0
    }
}

/// Returns whether the coordinator does not know the outcome of the flip.
fn is_in_doubt(reports: &[MigrationReport], migration: MigrationId) -> bool {
    let report = reports.iter().find(|report| report.migration == migration);
    report.is_none_or(|report| report.state == MigrationState::Preparing)
}
