//! Effects of recovery masters: tablets that begin and end, reads, replays.

use super::reading::ReadRequester;
use super::{RecoverySide, ReplayLog, Voided, Wait};
use crate::Node;
use crate::context::Context;
use crate::source_side::unacknowledged;
use crate::tablets::{carve, tenures};
use crate::work::Work;
use planted::Bug;
use protocols::recovery::{
    NO_ROOM, PartName, RecoveryMasterEffect, RecoveryMasterEvent, ReplayFailure,
};
use protocols::{Outbox, Ticket};
use std::sync::Arc;
use std::time::Duration;
use store::log::Among;
use store::{RangeClock, Recovery, RecoveryPlan, ReplayError, TableSet, Tablet, TabletState};
use types::{HashRange, Instant, KeyHash, OwnershipEpoch, ServerId, Version};
use wire::control::RecoveryUpdate;
use wire::peer::{PeerMessage, RecoveryRead};

impl RecoverySide {
    /// Applies an effect of the partition's machine.
    pub(super) fn apply(
        &mut self,
        effect: RecoveryMasterEffect,
        more: &mut Outbox<RecoveryMasterEffect>,
        context: &mut Context<'_>,
    ) {
        match effect {
            RecoveryMasterEffect::Begin => self.is_queued = true,
            RecoveryMasterEffect::Read { backup, read } => read_at(backup, read, context),
            RecoveryMasterEffect::Replay { ticket, is_settled } => match &mut self.waits {
                Some(Wait::Room { replays, .. }) => replays.push((ticket, is_settled)),
                _ if self.keeps || has_room(context.node) => {
                    self.leave_replay(ticket, is_settled, context.node)
                }
                waits => {
                    let replays = vec![(ticket, is_settled)];
                    *waits = Some(Wait::Room { until: context.now + ROOM_WAIT, replays })
                }
            },
            RecoveryMasterEffect::Discard { ticket } => {
                if let Some(payload) = self.payloads.remove(&ticket) {
                    context.buffers.give(payload.buffer);
                }
            }
            RecoveryMasterEffect::Secure { version } => {
                self.secure(version, context);
                if self.waits.is_none() {
                    self.machine.handle(context.now, RecoveryMasterEvent::Secured, more);
                }
            }
            RecoveryMasterEffect::Tell(message) => {
                if let RecoveryUpdate::NotRecovered { reason, .. } = &message
                    && !std::mem::replace(&mut self.is_refused, true)
                {
                    self.lacks_room = reason == NO_ROOM;
                    tracing::warn!(part = %self.machine.name(), reason, "partition handed back");
                }
                context.out.control.push(message.into());
            }
            RecoveryMasterEffect::Finish => self.finish(context),
            RecoveryMasterEffect::Abandon => self.abandon(context.node),
        }
    }

    /// Begins a partition, unless its range has records of an earlier stay, or memory is short.
    pub(super) fn begin(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        if self.keeps {
            return self.begin_with_what_is_here(context.node);
        }
        let range = self.machine.name().range;
        let store = context.node.store();
        if store.tablets().iter().any(|tablet| tablet.range.overlaps(range)) {
            return Err("the server already serves a part of the range".to_owned());
        }
        if !context.worker.is_empty(range) || context.node.is_being_forgotten(range) {
            return Err("the server still holds an earlier incarnation of the range".into());
        }
        if !has_room(context.node) {
            self.waits = Some(Wait::Room { until: context.now + ROOM_WAIT, replays: Vec::new() });
            return Ok(());
        }
        self.publish(context.node);
        Ok(())
    }

    /// Publishes the partition's tablet. Replay starts when every reactor has seen it.
    fn publish(&mut self, node: &Node) {
        assert!(self.recovery.is_none(), "a partition is published once");
        let PartName { range, epoch, .. } = self.machine.name();
        let old_tenures = self.logs.iter().map(|log| log.old_tenures.clone()).collect();
        let plan = RecoveryPlan { number: epoch.0, range, old_tenures };
        let recovery = Arc::new(Recovery::new(plan));
        let tablet = Tablet {
            range,
            epoch,
            tenures: tenures(&self.tenures),
            state: TabletState::Recovering(recovery.clone()),
            clock: RangeClock::going_on_from(self.clock_floor, node.store().clock()),
            flushing: TableSet::NONE,
        };
        node.change_tablets(|mut tablets| {
            tablets.push(tablet);
            tablets
        });
        self.recovery = Some(recovery);
        self.waits = Some(Wait::Begin(node.store().grace_period(), Voided::nothing()));
    }

    /// Resumes a partition that waits for memory, if there is some or the time is over.
    pub(super) fn poll_room(
        &mut self,
        until: Instant,
        replays: Vec<(Ticket, bool)>,
        context: &mut Context<'_>,
    ) -> Vec<RecoveryMasterEvent> {
        let begins = self.recovery.is_none();
        match (has_room(context.node), begins) {
            (true, true) => self.publish(context.node),
            (true, false) => {
                for (ticket, is_settled) in replays {
                    self.leave_replay(ticket, is_settled, context.node);
                }
            }
            (false, _) if context.now < until => self.waits = Some(Wait::Room { until, replays }),
            (false, true) => return vec![RecoveryMasterEvent::Begun(Err(NO_ROOM.to_owned()))],
            (false, false) => {
                let why = ReplayFailure::OutOfMemory;
                let failed = |(ticket, _)| RecoveryMasterEvent::ReplayFailed { ticket, why };
                return replays.into_iter().map(failed).collect();
            }
        }
        Vec::new()
    }

    fn leave_replay(&mut self, ticket: Ticket, is_settled: bool, node: &Node) {
        let (payload, recovery) = (self.payloads.remove(&ticket), self.recovery.clone());
        let (Some(payload), Some(recovery)) = (payload, recovery) else { return };
        let epoch = self.machine.name().epoch;
        let replay = ReplayLog { recovery, epoch, ticket, is_settled, payload, from: 0 };
        node.work.push(Work::ReplayLog(replay));
        if node.work.len() > 1 {
            node.wake_all();
        }
    }

    fn secure(&mut self, version: Version, context: &Context<'_>) {
        self.replayed_at = Some(context.now);
        if !planted::is(Bug::VersionsGoBack) {
            context.node.store().raise_version(Version(version.0.saturating_add(UNREAD_VERSIONS)));
        }
        // All replays of the partition have completed, so this covers all of its entries.
        let all = unacknowledged(context.node.store(), Among::Everything);
        self.waits = all.map(Wait::Secure);
    }

    /// Ends a recovery: the partition does not depend on the dead server's log any more.
    fn finish(&mut self, context: &Context<'_>) {
        let Some(recovery) = self.recovery.take() else { return };
        let replayed_at = self.replayed_at.unwrap_or(context.now);
        tracing::info!(
            part = %self.machine.name(),
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
        self.waits = Some(Wait::Sweep(context.node.store().grace_period(), recovery));
    }

    /// Removes the tablet, and begins to delete the replayed records.
    fn abandon(&mut self, node: &Node) {
        self.waits = None;
        self.is_queued = false;
        let Some(recovery) = self.recovery.take() else { return };
        let PartName { range, epoch, .. } = self.machine.name();
        node.recovery_counts.given_up(recovery.counters());
        if self.keeps {
            // The tablet stays as it is, and waits for another attempt.
            return;
        }
        node.forgetting().insert(epoch, range);
        node.change_tablets(|tablets| {
            carve(tablets, range, |tablet| match &tablet.state {
                TabletState::Recovering(it) if Arc::ptr_eq(it, &recovery) => None,
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

/// Returns whether enough memory is left for clients' writes if a partition takes some more.
/// If not, the cleaner is asked for it.
fn has_room(node: &Node) -> bool {
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
    /// Replays a bounded number of entries from a backup's reply.
    pub(crate) fn run(mut self, context: &mut Context<'_>) {
        let entries = self.payload.bytes();
        let (recovery, from) = (&self.recovery, self.from);
        let done = match self.is_settled {
            true => context.worker.replay_log(recovery, entries, from, REPLAY_ENTRIES),
            false => context.worker.replay_unsettled(recovery, entries, from, REPLAY_ENTRIES),
        };
        let (epoch, ticket) = (self.epoch, self.ticket);
        let event = match done {
            Ok(done) => {
                if let Some(next) = done.next {
                    self.from = next;
                    return context.node.work.put_back(Work::ReplayLog(self));
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
        context.node.change_machines(|it| it.drive_recovery(epoch, event, context));
    }
}

/// Runs one step of reclaiming the tombstones of a recovered partition.
pub(crate) fn sweep_recovered(recovery: Arc<Recovery>, context: &mut Context<'_>) {
    if context.worker.sweep_recovery(&recovery, crate::work::SWEEP_MAX) {
        context.node.work.push(Work::SweepRecovery(recovery));
    }
}

/// Runs one step of deleting the records of an abandoned partition.
pub(crate) fn forget_replayed(
    epoch: OwnershipEpoch,
    range: HashRange,
    cursor: KeyHash,
    context: &mut Context<'_>,
) {
    match context.worker.forget(range, cursor, crate::source_side::FORGET_BUCKETS) {
        Some(cursor) => {
            context.node.work.push(Work::ForgetReplayed { epoch, range, cursor });
        }
        None => drop(context.node.forgetting().remove(&epoch)),
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
