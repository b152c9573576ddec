//! Machines of migrations and recoveries of one server, with the state of their drivers.

use crate::context::Context;
use crate::demands::FleetDemands;
use crate::driver::{Driven, DrivenMachines};
use crate::messages::Payload;
use crate::recovering::RecoveryDriver;
use crate::source_side::SourceDriver;
use crate::target_side::TargetDriver;
use protocols::migration::{Cuts, MigrationSource, MigrationTarget, SourceEvent, TargetEvent};
use types::{KeyHash, MigrationId, OwnershipEpoch, ServerId};
use wire::control::Intent;
use wire::peer::PullReply;

/// The recovery master of a recovery partition with its driver.
pub(crate) type RecoverySide = Driven<RecoveryDriver>;

/// The machines of all migrations and recoveries of this server, behind one lock. A migration
/// receives a few thousand messages a second at most, and operations never take the lock.
#[derive(Default)]
pub(crate) struct Machines {
    pub(crate) cuts: Cuts,
    pub(crate) sources: DrivenMachines<MigrationId, SourceDriver>,
    pub(crate) targets: DrivenMachines<MigrationId, TargetDriver>,
    pub(crate) recoveries: DrivenMachines<OwnershipEpoch, RecoveryDriver>,
}

impl Machines {
    /// Returns the demands of all machines. Clients wait for recoveries, so no latency target of a
    /// move slows them down.
    pub(crate) fn demands(&self) -> FleetDemands {
        let moves = self.sources.demands().and(self.targets.demands());
        let recoveries = self.recoveries.demands();
        let latency_target = match recoveries.background_share {
            Some(_) => None,
            None => moves.latency_target,
        };
        FleetDemands { latency_target, ..moves.and(recoveries) }
    }

    /// Passes an event to a source, and applies its effects.
    pub(crate) fn step_source(
        &mut self,
        id: MigrationId,
        event: SourceEvent,
        context: &mut Context<'_>,
    ) {
        self.sources.begin(id, || (MigrationSource::new(id), SourceDriver::Idle));
        self.sources.step(id, event, context);
    }

    /// Returns the server that serves a hash after an accepted flip, until this server releases
    /// the range.
    pub(crate) fn left_to(&self, hash: KeyHash) -> Option<ServerId> {
        let mut leaving = self.sources.values().filter_map(|side| side.driver.leaving());
        leaving.rfind(|(range, _)| range.contains(hash)).map(|(_, to)| to)
    }

    /// Returns whether this server still holds its copy of a hash for this target; `None` if
    /// `from` is not the target of a known migration.
    pub(crate) fn keeps(
        &self,
        from: ServerId,
        migration: MigrationId,
        hash: KeyHash,
    ) -> Option<bool> {
        let machine = &self.sources.get(migration)?.machine;
        (machine.intent()?.target == from).then(|| machine.keeps(hash))
    }

    /// Returns the migration whose source is this server and still keeps its copy of a hash, and
    /// the epoch under which the target owns the hash.
    pub(crate) fn copy_of(&self, hash: KeyHash) -> Option<(MigrationId, OwnershipEpoch)> {
        let mut kept = self.sources.iter().filter(|(_, side)| side.machine.keeps(hash));
        let (id, side) = kept.next()?;
        assert!(kept.next().is_none(), "the copy of {hash} belongs to two migrations");
        Some((id, side.machine.intent()?.target_epoch))
    }

    /// Passes an event to a target, and applies its effects.
    pub(crate) fn step_target(
        &mut self,
        id: MigrationId,
        event: TargetEvent,
        context: &mut Context<'_>,
    ) {
        let cuts = self.cuts;
        self.targets.begin(id, || (MigrationTarget::new(id, cuts), TargetDriver::Idle));
        self.targets.step(id, event, context);
    }

    /// Returns whether the target of this migration can still accept a flip.
    pub(crate) fn may_accept(&self, migration: MigrationId) -> bool {
        self.targets.get(migration).is_some_and(|side| side.machine.may_accept())
    }

    /// Handles a new map, which acknowledges the flips that the coordinator has recorded.
    pub(crate) fn acknowledge_flips(&mut self, context: &mut Context<'_>) {
        let (map, me) = (context.node.map(), context.node.me());
        let is_ours = |intent: &Intent| {
            let mut tablets = map.tablets.iter().filter(|tablet| tablet.owner == me);
            tablets.any(|it| it.epoch == intent.target_epoch && it.range.overlaps(intent.range))
        };
        let known = self.targets.ids(|side| {
            side.machine.is_unacknowledged() && side.machine.intent().is_some_and(is_ours)
        });
        for id in known {
            self.targets.step(id, TargetEvent::Acknowledged, context);
        }
    }

    /// Handles a sign of life, which targets wait for before their promise.
    pub(crate) fn heard(&mut self, from: ServerId, context: &mut Context<'_>) {
        for id in self.targets.ids(|side| side.machine.awaits(from)) {
            self.targets.step(id, TargetEvent::Heard { from }, context);
        }
    }

    /// Handles the answer to a pull.
    pub(crate) fn pull_replied(
        &mut self,
        from: ServerId,
        reply: PullReply,
        payload: Payload,
        context: &mut Context<'_>,
    ) {
        let keep = |side: &mut Driven<TargetDriver>| side.payloads.keep(payload, context.buffers);
        let payload = self.targets.change(reply.migration, keep).flatten();
        self.step_target(reply.migration, TargetEvent::PullReply { from, reply, payload }, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::IDLE_MACHINES_MAX;
    use protocols::{Machine, Outbox};
    use types::Instant;

    #[test]
    fn only_so_many_ended_migrations_are_remembered() {
        let mut machines = Machines::default();
        for id in (1..=1000).map(MigrationId) {
            let target = || (MigrationTarget::new(id, Cuts::default()), TargetDriver::Idle);
            machines.targets.begin(id, target);
            machines.targets.change(id, |target| {
                target.machine.handle(Instant(0), TargetEvent::Decide, &mut Outbox::new());
                assert!(target.machine.is_over());
            });
            machines.sources.begin(id, || (MigrationSource::new(id), SourceDriver::Idle));
            machines.sources.change(id, |source| {
                let outcome = SourceEvent::Outcome { accepted: false };
                source.machine.handle(Instant(0), outcome, &mut Outbox::new());
            });
        }
        assert_eq!(machines.targets.values().count(), IDLE_MACHINES_MAX);
        assert_eq!(machines.sources.values().count(), IDLE_MACHINES_MAX);
        assert!(machines.targets.contains(MigrationId(1000)), "the youngest are kept");
    }
}
