//! The driver of recovery masters: tablets that begin and end, reads, replays.

use super::{ReadRequester, RecoveryDriver, RecoveryPhase, Voided};
use crate::context::Context;
use crate::demands::{Demands, RECOVERY_SHARE};
use crate::driver::{MachineDriver, Payloads};
use crate::source_side::unacknowledged;
use crate::state::NodeState;
use crate::tablets::{carve, incarnations};
use crate::work::{ReplayLog, Work};
use planted::Bug;
use protocols::recovery::{
    PartRefusal, PartitionName, RecoveryMaster, RecoveryMasterEffect, RecoveryMasterEvent,
    ReplayFailure,
};
use std::sync::Arc;
use std::time::Duration;
use store::log::Among;
use store::{RangeClock, Recovery, RecoveryPlan, ReplayError, TableSet, Tablet, TabletState};
use types::{ServerId, Version};
use wire::peer::{PeerMessage, RecoveryRead};

impl MachineDriver for RecoveryDriver {
    type Machine = RecoveryMaster;

    fn apply(
        &mut self,
        machine: &RecoveryMaster,
        effect: RecoveryMasterEffect,
        payloads: &mut Payloads,
        context: &mut Context<'_>,
    ) -> Option<RecoveryMasterEvent> {
        match effect {
            RecoveryMasterEffect::Begin => self.queue(),
            RecoveryMasterEffect::Read { backup, read } => read_at(backup, read, context),
            RecoveryMasterEffect::Replay { ticket, is_common } => {
                if let (Some(payload), Some(it)) = (payloads.take(ticket), self.phase.recovery()) {
                    let (recovery, epoch) = (it.clone(), machine.name().epoch);
                    let replay = ReplayLog { recovery, epoch, ticket, is_common, payload, from: 0 };
                    self.replay(replay, context);
                }
            }
            RecoveryMasterEffect::Discard { ticket } => payloads.discard(ticket, context.buffers),
            RecoveryMasterEffect::Secure { version } => return self.secure(version, context),
            RecoveryMasterEffect::Tell(message) => context.out.control.push(message.into()),
            RecoveryMasterEffect::Finish => self.finish(machine.name(), context),
            RecoveryMasterEffect::Abandon => self.abandon(machine.name(), context.node),
        }
        None
    }

    /// Does this reactor's share of the work that the partition waits for.
    fn poll(
        &mut self,
        machine: &RecoveryMaster,
        context: &mut Context<'_>,
    ) -> Vec<RecoveryMasterEvent> {
        let (store, name) = (context.node.store(), machine.name());
        match std::mem::replace(&mut self.phase, RecoveryPhase::Idle) {
            RecoveryPhase::Beginning { recovery, grace, mut voided, earlier } => {
                if store.is_over(&grace) && voided.drop_some(context.worker) {
                    earlier.iter().for_each(|it| recovery.take_over(it));
                    self.phase = RecoveryPhase::Replaying { recovery };
                    return vec![RecoveryMasterEvent::Begun(Ok(()))];
                }
                self.phase = RecoveryPhase::Beginning { recovery, grace, voided, earlier };
            }
            RecoveryPhase::Securing { recovery, replayed_at, entries } => {
                let is_hasty = planted::is(Bug::FreedBeforeCommit);
                if is_hasty || store.log().is_acknowledged(&entries) {
                    self.phase = RecoveryPhase::Durable { recovery, replayed_at };
                    return vec![RecoveryMasterEvent::Secured];
                }
                self.phase = RecoveryPhase::Securing { recovery, replayed_at, entries };
            }
            RecoveryPhase::Sweeping { recovery, grace } if store.is_over(&grace) => {
                context.node.work.push(Work::SweepRecovery(recovery));
            }
            RecoveryPhase::WaitingForRoom { until } => match has_room(context.node) {
                true => self.publish(name, context.node),
                false if context.now < until => {
                    self.phase = RecoveryPhase::WaitingForRoom { until };
                }
                false => return vec![RecoveryMasterEvent::Begun(Err(PartRefusal::NoRoom))],
            },
            RecoveryPhase::Stalled { recovery, until, replays } => match has_room(context.node) {
                false if context.now < until => {
                    self.phase = RecoveryPhase::Stalled { recovery, until, replays };
                }
                has_room => {
                    self.phase = RecoveryPhase::Replaying { recovery };
                    if !has_room {
                        let why = ReplayFailure::OutOfMemory;
                        let failed = |it: ReplayLog| it.ticket;
                        let tickets = replays.into_iter().map(failed);
                        return tickets
                            .map(|ticket| RecoveryMasterEvent::ReplayFailed { ticket, why })
                            .collect();
                    }
                    replays.into_iter().for_each(|replay| replay.push(context.node));
                }
            },
            phase @ (RecoveryPhase::Sweeping { .. }
            | RecoveryPhase::Idle
            | RecoveryPhase::Queued
            | RecoveryPhase::Replaying { .. }
            | RecoveryPhase::Durable { .. }) => self.phase = phase,
        }
        Vec::new()
    }

    fn demands(&self, machine: &RecoveryMaster) -> Demands {
        Demands {
            wait: self.phase.wait(),
            background_share: (!machine.is_over()).then_some(RECOVERY_SHARE),
            latency_target: None,
            served_until: None,
            replication: self.replication(),
        }
    }

    fn is_over(&self, machine: &RecoveryMaster) -> bool {
        machine.is_over() && self.phase.wait().is_none()
    }
}

impl RecoveryDriver {
    fn queue(&mut self) {
        assert!(matches!(self.phase, RecoveryPhase::Idle), "a partition begins once");
        self.phase = RecoveryPhase::Queued;
    }

    /// Begins a partition, unless its range has records of an earlier stay, or memory is short.
    pub(super) fn begin(
        &mut self,
        name: PartitionName,
        context: &mut Context<'_>,
    ) -> Result<(), PartRefusal> {
        assert!(matches!(self.phase, RecoveryPhase::Queued), "a queued partition begins");
        self.phase = RecoveryPhase::Idle;
        if self.keeps {
            return self.begin_with_what_is_here(name, context.node);
        }
        let (range, store) = (name.range, context.node.store());
        if store.tablets().iter().any(|tablet| tablet.range.overlaps(range)) {
            return Err(refused("the server already serves a part of the range"));
        }
        if !context.worker.is_empty(range) || context.node.is_being_forgotten(range) {
            return Err(refused("the server still holds an earlier incarnation of the range"));
        }
        if has_room(context.node) {
            self.publish(name, context.node);
        } else {
            self.phase = RecoveryPhase::WaitingForRoom { until: context.now + ROOM_WAIT };
        }
        Ok(())
    }

    /// Publishes the partition's tablet. Replay starts when every reactor has seen it.
    fn publish(&mut self, name: PartitionName, node: &NodeState) {
        let PartitionName { range, epoch, .. } = name;
        let recovery = self.new_recovery(name);
        let tablet = Tablet {
            range,
            epoch,
            incarnations: incarnations(&self.incarnations),
            state: TabletState::Recovering(recovery.clone()),
            clock: RangeClock::going_on_from(self.clock_floor, node.store().clock()),
            flushing: TableSet::NONE,
        };
        node.change_tablets(|mut tablets| {
            tablets.push(tablet);
            tablets
        });
        self.published(recovery, Voided::new(Vec::new()), Vec::new(), node);
    }

    pub(super) fn new_recovery(&self, name: PartitionName) -> Arc<Recovery> {
        let old_incarnations = self.logs.iter().map(|log| log.old_incarnations.clone()).collect();
        let (number, range) = (name.epoch.0, name.range);
        Arc::new(Recovery::new(RecoveryPlan { number, range, old_incarnations }))
    }

    /// Waits for every reactor to see the partition's tablet.
    pub(super) fn published(
        &mut self,
        recovery: Arc<Recovery>,
        voided: Voided,
        earlier: Vec<Arc<Recovery>>,
        node: &NodeState,
    ) {
        assert!(self.phase.recovery().is_none(), "a partition is published once");
        let grace = node.store().grace_period();
        self.phase = RecoveryPhase::Beginning { recovery, grace, voided, earlier };
    }

    /// Leaves a replay to any reactor, or stalls the partition if memory is short.
    fn replay(&mut self, replay: ReplayLog, context: &Context<'_>) {
        match &mut self.phase {
            RecoveryPhase::Stalled { replays, .. } => replays.push(replay),
            RecoveryPhase::Replaying { .. } if self.keeps || has_room(context.node) => {
                replay.push(context.node);
            }
            phase => {
                let (recovery, until) = (replay.recovery.clone(), context.now + ROOM_WAIT);
                let is_replaying = matches!(phase, RecoveryPhase::Replaying { .. });
                assert!(is_replaying, "a partition is replayed between its begin and its end");
                *phase = RecoveryPhase::Stalled { recovery, until, replays: vec![replay] };
            }
        }
    }

    /// Begins to wait for the acknowledgment of everything replayed. Returns the event of its
    /// end, if nothing is left to wait for.
    fn secure(&mut self, version: Version, context: &Context<'_>) -> Option<RecoveryMasterEvent> {
        let RecoveryPhase::Replaying { recovery } = &self.phase else {
            unreachable!("a partition is secured when all of it is replayed");
        };
        let (recovery, replayed_at) = (recovery.clone(), context.now);
        if !planted::is(Bug::VersionsGoBack) {
            context.node.store().raise_version(Version(version.0.saturating_add(UNREAD_VERSIONS)));
        }
        // All replays of the partition have completed, so this covers all of its entries.
        match unacknowledged(context.node.store(), Among::Everything) {
            Some(entries) => {
                self.phase = RecoveryPhase::Securing { recovery, replayed_at, entries };
                None
            }
            None => {
                self.phase = RecoveryPhase::Durable { recovery, replayed_at };
                Some(RecoveryMasterEvent::Secured)
            }
        }
    }

    /// Ends a recovery: the partition does not depend on the dead server's log any more.
    fn finish(&mut self, name: PartitionName, context: &Context<'_>) {
        let replayed_at = self.phase.replayed_at();
        let (Some(recovery), Some(replayed_at)) = (self.phase.recovery().cloned(), replayed_at)
        else {
            unreachable!("a partition is finished after its replay");
        };
        tracing::info!(
            part = %name,
            safe_ms = context.now.since(replayed_at).as_millis(),
            "recovery partition durable"
        );
        context.node.recovery_counts.recovered(recovery.counters());
        context.node.change_tablets(|tablets| {
            carve(tablets, recovery.range(), |tablet| match &tablet.state {
                TabletState::Securing(it) if Arc::ptr_eq(it, &recovery) => {
                    Some(Tablet { state: TabletState::Serving, ..tablet })
                }
                TabletState::Securing(_)
                | TabletState::Recovering(_)
                | TabletState::Serving
                | TabletState::Frozen
                | TabletState::Leaving
                | TabletState::Arriving(_) => Some(tablet),
            })
        });
        let grace = context.node.store().grace_period();
        self.phase = RecoveryPhase::Sweeping { recovery, grace };
    }

    /// Removes the tablet, and begins to delete the replayed records.
    fn abandon(&mut self, name: PartitionName, node: &NodeState) {
        let phase = std::mem::replace(&mut self.phase, RecoveryPhase::Idle);
        let Some(recovery) = phase.recovery() else { return };
        let PartitionName { range, epoch, .. } = name;
        node.recovery_counts.given_up(recovery.counters());
        if self.keeps {
            // The tablet stays as it is, and waits for another attempt.
            return;
        }
        node.forgetting().insert(epoch, range);
        node.change_tablets(|tablets| {
            carve(tablets, range, |tablet| match &tablet.state {
                TabletState::Recovering(it) if Arc::ptr_eq(it, recovery) => None,
                TabletState::Recovering(_)
                | TabletState::Securing(_)
                | TabletState::Serving
                | TabletState::Frozen
                | TabletState::Leaving
                | TabletState::Arriving(_) => Some(tablet),
            })
        });
        let cursor = range.first();
        node.work.push(Work::ForgetReplayed { epoch, range, cursor });
    }
}

/// Returns the refusal of a partition for a reason that only operators read.
pub(super) fn refused(reason: &str) -> PartRefusal {
    PartRefusal::Other(reason.to_owned())
}

/// Returns whether enough memory is left for clients' writes if a partition takes some more.
/// If not, the cleaner is asked for it.
fn has_room(node: &NodeState) -> bool {
    let segments = usize::from(node.settings().reactors) + 1;
    node.store().log().demand_segments(segments)
}

fn read_at(backup: ServerId, read: RecoveryRead, context: &mut Context<'_>) {
    if backup == context.node.me() {
        context.read(ReadRequester::Here, read);
    } else {
        context.out.send(backup, PeerMessage::RecoveryRead(read));
    }
}

impl ReplayLog {
    /// Leaves the replay to any reactor.
    fn push(self, node: &NodeState) {
        node.work.push(Work::ReplayLog(self));
        if node.work.len() > 1 {
            node.wake_all();
        }
    }

    /// Replays a bounded number of entries from a backup's reply. Returns the event of the end.
    pub(crate) fn run(mut self, context: &mut Context<'_>) -> Option<RecoveryMasterEvent> {
        let entries = self.payload.bytes();
        let (recovery, from) = (&self.recovery, self.from);
        let done = match self.is_common {
            true => context.worker.replay_log(recovery, entries, from, REPLAY_ENTRIES),
            false => context.worker.replay_divergent(recovery, entries, from, REPLAY_ENTRIES),
        };
        let ticket = self.ticket;
        let event = match done {
            Ok(done) => {
                if let Some(next) = done.next {
                    self.from = next;
                    context.node.work.put_back(Work::ReplayLog(self));
                    return None;
                }
                RecoveryMasterEvent::Replayed { ticket }
            }
            Err(error) => {
                tracing::warn!(recovery = ?self.recovery, %error, "cannot replay log entries");
                let why = match error {
                    ReplayError::OutOfMemory => ReplayFailure::OutOfMemory,
                    ReplayError::Corrupt(_) => ReplayFailure::Corrupt,
                };
                RecoveryMasterEvent::ReplayFailed { ticket, why }
            }
        };
        context.buffers.give(self.payload.buffer);
        Some(event)
    }
}

/// Maximum time that a partition waits for memory before it is handed back.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of entries that one quantum replays: about 40 us, as with a migration.
const REPLAY_ENTRIES: usize = 410;

/// Upper bound for the number of versions that the dead server may have drawn above those read. A
/// longer replica of an open segment may be read when this log is recovered once more. 64
/// reactors with four open segments of 8 MiB each, full of entries of 32 bytes, make 67 million.
const UNREAD_VERSIONS: u64 = 1 << 32;
