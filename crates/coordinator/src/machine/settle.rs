//! Reconciliation after every event; the only place that acts on the passage of time.

use super::transitions::{NOT_OWNED, demand, failed, outcome};
use super::{Coordinator, Presence};
use crate::admission::HISTORY_MAX;
use crate::ledger::{Edit, Stopped};
use crate::outbox::{Effect, Moment, Outbox};
use crate::records::{Ending, Migration, Stage, Terms};
use crate::store::MetaStore;
use std::collections::BTreeSet;
use types::{HashRange, Instant, MigrationId, ServerId};
use wire::control::FromCoordinator;

impl<S: MetaStore> Coordinator<S> {
    pub(super) fn settle(&mut self, at: Moment, out: &mut Outbox) -> Result<(), Stopped> {
        self.confirm_if_heard(at, out)?;
        if !self.standing.is_confirmed() {
            self.send_pings(at.now, out);
            self.ask_clocks(at.now, out);
            return Ok(());
        }
        self.declare_absent_dead(at, out)?;
        self.send_pings(at.now, out);
        self.ask_clocks(at.now, out);
        self.give_up_on_absent(at, out)?;
        self.start_queued(at)?;
        self.settle_flushes(at, out)?;
        self.prune_history(at, out)?;
        // After the migrations: ranges inside them are not assigned.
        self.advance_recoveries(at)?;
        // Before the demands: they name servers that their receivers look up in the map.
        self.publish_map(out);
        self.send_demands(at, out);
        self.send_recovery_demands(at, out);
        self.settled = at.now;
        Ok(())
    }

    /// Returns when [`crate::Event::Tick`] is due, if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let asking = self.hearing.next_ping().into_iter().chain(self.clocks.next_question());
        if !self.standing.is_confirmed() {
            return asking.min().filter(|_| !self.standing.is_older());
        }
        let migrations = self.ledger.migrations();
        let demands = self.due.iter().filter_map(|(id, &due)| {
            let demand = demand(migrations.get(id)?)?;
            self.connection_of(demand.server).is_some().then_some(due)
        });
        let absences = migrations.values().flat_map(|migration| {
            needed(migration).into_iter().flatten().filter_map(|server| self.given_up_at(server))
        });
        let half_heard = self.hearing.half_heard();
        let servers = self.ledger.servers().values();
        let deaths = servers.filter_map(|server| self.dead_at(server, half_heard));
        demands.chain(absences).chain(deaths).chain(asking).chain(self.recovery_deadline()).min()
    }

    /// Returns when migrations stop waiting for a server. `None`: it is connected.
    pub(super) fn given_up_at(&self, server: ServerId) -> Option<Instant> {
        match self.presence.get(&server) {
            Some(Presence::Away { since } | Presence::Expected { since }) => {
                Some(*since + self.settings.absence_max)
            }
            Some(Presence::Connected(_)) | None => None,
        }
    }

    fn give_up_on_absent(&mut self, at: Moment, out: &mut Outbox) -> Result<(), Stopped> {
        loop {
            let missed = |migration: &Migration| {
                self.missed_side(at, migration).map(|server| (migration.id, server))
            };
            let stuck: Vec<(MigrationId, ServerId)> =
                self.ledger.migrations().values().filter_map(missed).collect();
            if stuck.is_empty() {
                return Ok(());
            }
            // The new stage may wait for the other side, which may be gone as well.
            for (id, server) in stuck {
                self.give_up(at, id, server, out)?;
            }
        }
    }

    /// Returns the permanently absent side that blocks the migration.
    fn missed_side(&self, at: Moment, migration: &Migration) -> Option<ServerId> {
        let is_gone = |server: &ServerId| {
            self.is_dead(*server) || self.given_up_at(*server).is_some_and(|by| by <= at.now)
        };
        let mut needed = needed(migration).into_iter().flatten();
        let mut mourned = mourned(migration).into_iter().flatten();
        needed.find(is_gone).or_else(|| mourned.find(|server| self.is_dead(*server)))
    }

    /// Moves a migration on without its absent side, as far as possible.
    fn give_up(
        &mut self,
        at: Moment,
        id: MigrationId,
        gone: ServerId,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(migration) = self.ledger.migrations().get(&id).cloned() else { return Ok(()) };
        let is_target = gone == migration.target;
        let is_dead = self.is_dead(gone);
        let reason = match is_dead {
            true => format!("{gone} died"),
            false => format!("{gone} was disconnected for too long"),
        };
        let failure = Ending::Failed(reason.clone());
        // A dead server never returns to be asked.
        let unheard = |terms: Terms| (!is_dead).then_some(terms);
        let stage = match migration.stage.clone() {
            Stage::Measuring => failed(&reason),
            Stage::Preparing(terms) if is_target => {
                Stage::Ended { ending: failure, unheard: unheard(terms) }
            }
            Stage::Preparing(terms) => Stage::Withdrawing { terms, ending: failure },
            Stage::Withdrawing { terms, ending } => {
                Stage::Ended { ending, unheard: unheard(terms) }
            }
            // The dead target may have accepted, and its log may contain acknowledged writes. It
            // therefore counts as having accepted.
            Stage::Flipping(terms)
            | Stage::Deciding { terms, .. }
            | Stage::Orphaned { terms, .. }
                if is_target && is_dead =>
            {
                return self.hand_over(at, &migration, &terms);
            }
            Stage::Flipping(terms) if is_target => Stage::Orphaned { terms, otherwise: failure },
            Stage::Flipping(terms) => Stage::Deciding { terms, otherwise: failure },
            Stage::Deciding { terms, otherwise } => Stage::Orphaned { terms, otherwise },
            // Neither side can answer. The target is absent but not dead; it is asked if it
            // returns.
            Stage::Orphaned { terms, otherwise } => {
                Stage::Ended { ending: otherwise, unheard: Some(terms) }
            }
            Stage::Moving(dependency) | Stage::Securing(dependency) => {
                Stage::Recovering(dependency)
            }
            // The copy that the source should drop has died with it.
            Stage::Releasing { ending } => Stage::Ended { ending, unheard: None },
            Stage::Queued | Stage::Recovering(_) | Stage::Ended { .. } => {
                unreachable!("{id} waits for no server")
            }
        };
        self.advance(at, self.ledger.edit(), &migration, stage.clone())?;
        if let Stage::Ended { ending, .. } = stage {
            match ending {
                Ending::Success => {
                    self.send(migration.target, FromCoordinator::Finished { migration: id }, out);
                }
                Ending::Cancelled | Ending::Failed(_) => {
                    self.send(migration.source, outcome(id, false), out);
                }
            }
        }
        Ok(())
    }

    /// Asks a returned target itself about flips that had been left to its source.
    pub(super) fn adopt_orphans(&mut self, at: Moment, target: ServerId) -> Result<(), Stopped> {
        let mut edit = self.ledger.edit();
        for migration in self.ledger.migrations().values().filter(|m| m.target == target) {
            if let Stage::Orphaned { terms, otherwise } = &migration.stage {
                let (terms, otherwise) = (terms.clone(), otherwise.clone());
                let stage = Stage::Deciding { terms, otherwise };
                edit.put_migration(Migration { stage, updated: at.wall, ..migration.clone() });
            }
        }
        if edit.is_empty() { Ok(()) } else { self.commit(at, edit) }
    }

    /// Starts every queued migration that is no longer blocked.
    fn start_queued(&mut self, at: Moment) -> Result<(), Stopped> {
        // A start or failure may unblock or block others: every commit sets the flag again.
        while std::mem::take(&mut self.queue_is_stale) {
            let edit = self.start_free(at);
            if !edit.is_empty() {
                self.commit(at, edit)?;
            }
        }
        Ok(())
    }

    /// Returns an edit that starts the unblocked migrations. A migration is blocked by another
    /// one with a shared hash that is under way or queued before it, and by a tablet that its
    /// first owner has not confirmed.
    fn start_free(&self, at: Moment) -> Edit {
        let migrations = self.ledger.migrations();
        let mut taken: Vec<HashRange> =
            migrations.values().filter(|m| m.is_under_way()).map(|m| m.range).collect();
        let mut edit = self.ledger.edit();
        for migration in migrations.values().filter(|m| m.stage == Stage::Queued) {
            let is_free = !taken.iter().any(|range| range.overlaps(migration.range))
                && !self.tablet_to_move(migration).is_some_and(|tablet| tablet.is_born);
            taken.push(migration.range);
            if is_free {
                // An earlier migration of the range may have changed the preconditions.
                let sides = [migration.source, migration.target];
                let stage = match sides.into_iter().find(|&side| self.is_dead(side)) {
                    Some(dead) => failed(&format!("{dead} died")),
                    None if self.tablet_to_move(migration).is_none() => failed(NOT_OWNED),
                    None => Stage::Measuring,
                };
                edit.put_migration(Migration { stage, updated: at.wall, ..migration.clone() });
            }
        }
        edit
    }

    /// Drops the oldest ended migrations from the history.
    fn prune_history(&mut self, at: Moment, out: &mut Outbox) -> Result<(), Stopped> {
        let ended: Vec<&Migration> =
            self.ledger.migrations().values().filter(|m| !m.is_live()).collect();
        if ended.len() <= HISTORY_MAX {
            return Ok(());
        }
        let mut edit = self.ledger.edit();
        let mut unheard_of = BTreeSet::new();
        for migration in &ended[..ended.len() - HISTORY_MAX] {
            edit.remove_migration(migration.id);
            // The question for the target is lost with the record, so the target is never
            // admitted again.
            if let Stage::Ended { unheard: Some(_), .. } = migration.stage {
                unheard_of.insert(migration.target);
            }
        }
        self.put_dead(at, &mut edit, &unheard_of);
        self.commit(at, edit)?;
        self.part_with(at, &unheard_of, out);
        Ok(())
    }

    fn publish_map(&mut self, out: &mut Outbox) {
        if !std::mem::take(&mut self.map_is_stale) {
            return;
        }
        self.maps += 1;
        let map = self.map();
        for (&connection, joined) in &self.connections {
            if joined.is_some() {
                out.push(Effect::Send { connection, message: FromCoordinator::Map(map.clone()) });
            }
        }
    }

    fn send_demands(&mut self, at: Moment, out: &mut Outbox) {
        let migrations = self.ledger.migrations();
        self.due.retain(|id, _| migrations.get(id).is_some_and(|m| demand(m).is_some()));
        let mut sent = Vec::new();
        for (&id, _) in self.due.iter().filter(|(_, due)| **due <= at.now) {
            if let Some(demand) = migrations.get(&id).and_then(demand)
                && let Some(connection) = self.connection_of(demand.server)
            {
                out.push(Effect::Send { connection, message: demand.message });
                sent.push((id, at.now + demand.again));
            }
        }
        self.due.extend(sent);
    }

    /// Makes the demands on a reconnected server due at once.
    pub(super) fn demand_again(&mut self, at: Moment, server: ServerId) {
        let migrations = self.ledger.migrations();
        for (id, due) in &mut self.due {
            if migrations.get(id).and_then(demand).is_some_and(|d| d.server == server) {
                *due = at.now;
            }
        }
    }
}

/// Returns the servers that a migration waits for no longer than [`super::Settings::absence_max`],
/// the target first. A migration that can no longer be withdrawn waits for both sides without
/// limit, unless one is dead: each has state that no other server has.
fn needed(migration: &Migration) -> [Option<ServerId>; 2] {
    let (source, target) = (Some(migration.source), Some(migration.target));
    match migration.stage {
        Stage::Measuring | Stage::Preparing(_) | Stage::Flipping(_) => [target, source],
        Stage::Withdrawing { .. } | Stage::Deciding { .. } => [target, None],
        Stage::Queued
        | Stage::Orphaned { .. }
        | Stage::Moving(_)
        | Stage::Recovering(_)
        | Stage::Securing(_)
        | Stage::Releasing { .. }
        | Stage::Ended { .. } => [None, None],
    }
}

/// Returns the servers, beyond those of `needed`, whose *permanent* death also unblocks the
/// migration.
fn mourned(migration: &Migration) -> [Option<ServerId>; 2] {
    match migration.stage {
        Stage::Orphaned { .. } | Stage::Moving(_) => {
            [Some(migration.target), Some(migration.source)]
        }
        Stage::Releasing { .. } => [Some(migration.source), None],
        // The source is dead by definition.
        Stage::Securing(_) => [Some(migration.target), None],
        Stage::Queued
        | Stage::Measuring
        | Stage::Preparing(_)
        | Stage::Flipping(_)
        | Stage::Withdrawing { .. }
        | Stage::Deciding { .. }
        | Stage::Recovering(_)
        | Stage::Ended { .. } => [None, None],
    }
}
