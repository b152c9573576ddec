//! Effects of recovery masters: tablets that begin and end, reads, replays.

use super::reading::Asker;
use super::{RecoverySide, ReplayLog, Voided, Wait};
use crate::Engine;
use crate::source_side::unacknowledged;
use crate::tablets::{carve, tenures};
use crate::work::Work;
use planted::Bug;
use protocols::recovery::{MasterEffect, MasterEvent, NO_ROOM, PartName, ReplayFailure};
use protocols::{Outbox, Ticket};
use std::sync::Arc;
use std::time::Duration;
use store::log::Among;
use store::{RangeClock, Recovery, RecoveryPlan, ReplayError, TableSet, Tablet, TabletState};
use types::{HashRange, Instant, KeyHash, OwnershipEpoch, ServerId, Version};
use wire::control::ToCoordinator;
use wire::peer::{PeerMessage, RecoveryRead};

impl Engine {
    pub(super) fn carry_out_recovery(
        &mut self,
        side: &mut RecoverySide,
        now: Instant,
        effect: MasterEffect,
        more: &mut Outbox<MasterEffect>,
    ) {
        match effect {
            MasterEffect::Begin => side.is_queued = true,
            MasterEffect::Read { backup, read } => self.read_at(now, backup, read),
            MasterEffect::Replay { ticket, is_settled } => match &mut side.waits {
                Some(Wait::Room { replays, .. }) => replays.push((ticket, is_settled)),
                _ if side.keeps || self.has_room() => self.leave_replay(side, ticket, is_settled),
                waits => {
                    let replays = vec![(ticket, is_settled)];
                    *waits = Some(Wait::Room { until: now + ROOM_WAIT, replays })
                }
            },
            MasterEffect::Discard { ticket } => {
                if let Some(payload) = side.payloads.remove(&ticket) {
                    self.give_buffer(payload.buffer);
                }
            }
            MasterEffect::Secure { version } => {
                self.secure(side, now, version);
                if side.waits.is_none() {
                    side.machine.handle(now, MasterEvent::Secured, more);
                }
            }
            MasterEffect::Tell(message) => {
                if let ToCoordinator::NotRecovered { reason, .. } = &message
                    && !std::mem::replace(&mut side.is_refused, true)
                {
                    side.lacks_room = reason == NO_ROOM;
                    tracing::warn!(part = %side.machine.name(), reason, "partition handed back");
                }
                self.out.control.push(message);
            }
            MasterEffect::Finish => self.finish_recovery(side, now),
            MasterEffect::Abandon => self.abandon(side),
        }
    }

    /// Begins a partition, unless its range has records of an earlier stay, or memory is short.
    pub(super) fn begin_recovery(
        &mut self,
        side: &mut RecoverySide,
        now: Instant,
    ) -> Result<(), String> {
        if side.keeps {
            return self.begin_with_what_is_here(side);
        }
        let range = side.machine.name().range;
        let store = self.node.store();
        if store.tablets().iter().any(|tablet| tablet.range.overlaps(range)) {
            return Err("the server already serves a part of the range".to_owned());
        }
        if !self.worker.is_empty(range) || self.node.is_being_forgotten(range) {
            return Err("the server still holds an earlier incarnation of the range".into());
        }
        if !self.has_room() {
            side.waits = Some(Wait::Room { until: now + ROOM_WAIT, replays: Vec::new() });
            return Ok(());
        }
        self.publish_part(side);
        Ok(())
    }

    /// Publishes the partition's tablet. Replay starts when every reactor has seen it.
    fn publish_part(&mut self, side: &mut RecoverySide) {
        let PartName { range, epoch, .. } = side.machine.name();
        let old_tenures = side.logs.iter().map(|log| log.old_tenures.clone()).collect();
        let plan = RecoveryPlan { number: epoch.0, range, old_tenures };
        let recovery = Arc::new(Recovery::new(plan));
        let tablet = Tablet {
            range,
            epoch,
            tenures: tenures(&side.tenures),
            state: TabletState::Recovering(recovery.clone()),
            clock: RangeClock::going_on_from(side.clock_floor, self.node.store().clock()),
            flushing: TableSet::NONE,
        };
        self.node.change_tablets(|mut tablets| {
            tablets.push(tablet);
            tablets
        });
        side.recovery = Some(recovery);
        side.waits = Some(Wait::Begin(self.node.store().grace_period(), Voided::nothing()));
    }

    /// Returns whether enough memory is left for clients' writes if a partition takes some more.
    /// If not, the cleaner is asked for it.
    fn has_room(&self) -> bool {
        let segments = usize::from(self.node.settings().reactors) + 1;
        self.node.store().log().demand_segments(segments)
    }

    /// Resumes a partition that waits for memory, if there is some or the time is over.
    pub(super) fn poll_room(
        &mut self,
        side: &mut RecoverySide,
        now: Instant,
        (until, replays): (Instant, Vec<(Ticket, bool)>),
    ) -> Vec<MasterEvent> {
        let begins = side.recovery.is_none();
        match (self.has_room(), begins) {
            (true, true) => self.publish_part(side),
            (true, false) => {
                for (ticket, is_settled) in replays {
                    self.leave_replay(side, ticket, is_settled);
                }
            }
            (false, _) if now < until => side.waits = Some(Wait::Room { until, replays }),
            (false, true) => return vec![MasterEvent::Begun(Err(NO_ROOM.to_owned()))],
            (false, false) => {
                let why = ReplayFailure::OutOfMemory;
                let failed = |(ticket, _)| MasterEvent::ReplayFailed { ticket, why };
                return replays.into_iter().map(failed).collect();
            }
        }
        Vec::new()
    }

    fn read_at(&mut self, now: Instant, backup: ServerId, read: RecoveryRead) {
        if backup == self.node.me() {
            self.read_for(now, Asker::Here, read);
        } else {
            self.out.send(backup, PeerMessage::RecoveryRead(read));
        }
    }

    fn leave_replay(&mut self, side: &mut RecoverySide, ticket: Ticket, is_settled: bool) {
        let (payload, recovery) = (side.payloads.remove(&ticket), side.recovery.clone());
        let (Some(payload), Some(recovery)) = (payload, recovery) else { return };
        let epoch = side.machine.name().epoch;
        let replay = ReplayLog { recovery, epoch, ticket, is_settled, payload, from: 0 };
        self.node.work.push(Work::ReplayLog(replay));
        if self.node.work.len() > 1 {
            self.node.wake_all();
        }
    }

    fn secure(&mut self, side: &mut RecoverySide, now: Instant, version: Version) {
        side.replayed_at = Some(now);
        if !planted::is(Bug::VersionsGoBack) {
            self.node.store().raise_version(Version(version.0.saturating_add(UNREAD_VERSIONS)));
        }
        // All replays of the partition have completed, so this covers all of its entries.
        let all = unacknowledged(self.node.store(), Among::Everything);
        side.waits = all.map(Wait::Secure);
    }

    /// Ends a recovery: the partition does not depend on the dead server's log any more.
    fn finish_recovery(&mut self, side: &mut RecoverySide, now: Instant) {
        let Some(recovery) = side.recovery.take() else { return };
        let replayed_at = side.replayed_at.unwrap_or(now);
        tracing::info!(
            part = %side.machine.name(),
            safe_ms = now.since(replayed_at).as_millis(),
            "recovery partition durable"
        );
        self.node.recovery_counts.recovered(recovery.counters());
        self.node.change_tablets(|tablets| {
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
        side.waits = Some(Wait::Sweep(self.node.store().grace_period(), recovery));
    }

    /// Removes the tablet, and begins to delete the replayed records.
    fn abandon(&mut self, side: &mut RecoverySide) {
        side.waits = None;
        side.is_queued = false;
        let Some(recovery) = side.recovery.take() else { return };
        let PartName { range, epoch, .. } = side.machine.name();
        self.node.recovery_counts.given_up(recovery.counters());
        if side.keeps {
            // The tablet stays as it is, and waits for another attempt.
            return;
        }
        self.node.forgetting().insert(epoch, range);
        self.node.change_tablets(|tablets| {
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
        self.node.work.push(Work::ForgetReplayed { epoch, range, cursor });
    }

    /// Replays a bounded number of entries from a backup's reply.
    pub(crate) fn replay_log(&mut self, now: Instant, mut replay: ReplayLog) {
        let entries = replay.payload.bytes();
        let (recovery, from) = (&replay.recovery, replay.from);
        let done = match replay.is_settled {
            true => self.worker.replay_log(recovery, entries, from, REPLAY_ENTRIES),
            false => self.worker.replay_unsettled(recovery, entries, from, REPLAY_ENTRIES),
        };
        let (epoch, ticket) = (replay.epoch, replay.ticket);
        let event = match done {
            Ok(done) => {
                if let Some(next) = done.next {
                    replay.from = next;
                    return self.node.work.put_back(Work::ReplayLog(replay));
                }
                MasterEvent::Replayed { ticket }
            }
            Err(error) => {
                tracing::warn!(recovery = ?replay.recovery, %error, "cannot replay log entries");
                let why = match error {
                    ReplayError::OutOfMemory => ReplayFailure::OutOfMemory,
                    ReplayError::Corrupt(_) => ReplayFailure::Corrupt,
                };
                MasterEvent::ReplayFailed { ticket, why }
            }
        };
        self.give_buffer(replay.payload.buffer);
        self.drive_recovery(now, epoch, event);
    }

    /// Runs one step of reclaiming the tombstones of a recovered partition.
    pub(crate) fn sweep_recovered(&mut self, recovery: Arc<Recovery>) {
        if self.worker.sweep_recovery(&recovery, crate::engine::SWEEP_MAX) {
            self.node.work.push(Work::SweepRecovery(recovery));
        }
    }

    /// Runs one step of deleting the records of an abandoned partition.
    pub(crate) fn forget_replayed(
        &mut self,
        epoch: OwnershipEpoch,
        range: HashRange,
        cursor: KeyHash,
    ) {
        match self.worker.forget(range, cursor, crate::source_side::FORGET_BUCKETS) {
            Some(cursor) => {
                self.node.work.push(Work::ForgetReplayed { epoch, range, cursor });
            }
            None => drop(self.node.forgetting().remove(&epoch)),
        }
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
