//! The target's work between flip and last cut: pulls, replays, cuts, and reports.

use super::events::{Added, TargetEffect};
use crate::migration::cuts::Cuts;
use crate::migration::progress::PulledPartition;
use crate::migration::timing::TELL_AGAIN;
use crate::migration::{policy, ranges};
use crate::{Outbox, Ticket};
use std::fmt;
use types::{HashRange, Instant, MigrationId, OwnershipEpoch, ServerId};
use wire::control::{Intent, MigrationProgress, MigrationUpdate};
use wire::peer::{Pull, PullReply};
use wire::text::list;

/// The state of a range that the target serves while some of its records are still at the source.
#[derive(Debug)]
pub(super) struct Pulling {
    migration: MigrationId,
    source: ServerId,
    epoch: OwnershipEpoch,
    pull_bytes: u32,
    pulls_ahead: usize,
    since: Instant,
    partitions: Vec<PulledPartition>,
    cuts: Cuts,
    cut: CutState,
    /// The ranges that depend on the source since the last committed cut; `None` before the first.
    committed: Option<Vec<HashRange>>,
    progress: MigrationProgress,
    report_at: Instant,
}

/// The state of the current cut.
#[derive(Debug)]
enum CutState {
    /// No cut is running. `bytes` were replayed since `since`; `moved`: some progress has advanced.
    Idle { since: Instant, bytes: u64, moved: bool },
    /// A cut is being committed, after which `remaining` depends on the source.
    Running { remaining: Vec<HashRange>, bytes: u64, moved: bool },
}

impl Pulling {
    pub(super) fn new(now: Instant, intent: &Intent, records_total: u64, cuts: Cuts) -> Pulling {
        let ranges = policy::partitions(&intent.policy, intent.range);
        assert_eq!(
            ranges::merged(ranges.iter().copied()),
            [intent.range],
            "the partitions are the range"
        );
        Pulling {
            migration: intent.migration,
            source: intent.source,
            epoch: intent.target_epoch,
            pull_bytes: policy::pull_bytes(&intent.policy),
            pulls_ahead: policy::pulls_ahead(&intent.policy),
            since: now,
            partitions: ranges.into_iter().map(PulledPartition::new).collect(),
            cuts,
            cut: CutState::Idle { since: now, bytes: 0, moved: false },
            committed: None,
            progress: MigrationProgress { records_total, ..MigrationProgress::default() },
            report_at: now + TELL_AGAIN,
        }
    }

    /// Processes a pull reply. Returns `false` if it answers no outstanding pull.
    pub(super) fn receive(
        &mut self,
        reply: &PullReply,
        payload: Option<Ticket>,
        out: &mut Outbox<TargetEffect>,
    ) -> bool {
        let Some(partition) = self.partitions.get_mut(usize::from(reply.partition)) else {
            return false;
        };
        if reply.epoch != self.epoch || !partition.receive(reply.cursor, reply.next, payload) {
            return false;
        }
        match payload {
            Some(ticket) => out.push(TargetEffect::Replay { partition: reply.partition, ticket }),
            None => self.advance(reply.partition, out),
        }
        true
    }

    pub(super) fn replayed(
        &mut self,
        now: Instant,
        place: u16,
        ticket: Ticket,
        added: Added,
        out: &mut Outbox<TargetEffect>,
    ) {
        assert!(usize::from(place) < self.partitions.len(), "partition {place} was not pulled");
        self.count(now, added);
        self.partitions[usize::from(place)].replayed(ticket);
        self.advance(place, out);
    }

    fn advance(&mut self, place: u16, out: &mut Outbox<TargetEffect>) {
        let partition = &mut self.partitions[usize::from(place)];
        if partition.advance() {
            out.push(TargetEffect::Advance { partition: place, to: partition.progress() });
            self.cut.record_advance();
        }
    }

    pub(super) fn replay_failed(&mut self, now: Instant, place: u16, ticket: Ticket) {
        self.partitions[usize::from(place)].pull_again(now, ticket);
    }

    pub(super) fn priority_replayed(&mut self, now: Instant, added: Added) {
        self.progress.priority_records += added.records;
        self.count(now, added);
    }

    fn count(&mut self, now: Instant, added: Added) {
        self.progress.records += added.records;
        self.progress.bytes += added.bytes;
        self.progress.elapsed_ns = now.since(self.since).as_nanos() as u64;
        self.cut.add_bytes(added.bytes);
        assert!(
            self.progress.priority_records <= self.progress.records,
            "records that arrived early are counted once: {:?}",
            self.progress
        );
    }

    pub(super) fn cut_committed(&mut self, now: Instant) {
        let remaining = self.cut.commit(now);
        if let Some(before) = &self.committed {
            assert!(
                remaining.iter().all(|range| before.iter().any(|it| it.covers(*range))),
                "the dependency on the source grows from {before:?} to {remaining:?}"
            );
        }
        self.committed = Some(remaining);
        self.report_at = now;
        assert!(!self.is_committed() || self.is_complete(), "a committed range is complete");
    }

    /// Returns whether nothing depends on the source any more.
    pub(super) fn is_committed(&self) -> bool {
        self.committed.as_ref().is_some_and(Vec::is_empty)
    }

    pub(super) fn progress(&self) -> MigrationProgress {
        self.progress
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let pulls = self.partitions.iter().filter_map(PulledPartition::next_deadline);
        pulls.chain(self.cut.next_deadline(self.cuts)).fold(self.report_at, Instant::min)
    }

    /// Sends pulls, cuts and reports that are due.
    pub(super) fn reconcile(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        for (place, partition) in self.partitions.iter_mut().enumerate() {
            if let Some(cursor) = partition.next_pull(now, self.pulls_ahead) {
                let pull = Pull {
                    migration: self.migration,
                    epoch: self.epoch,
                    partition: place as u16,
                    cursor,
                    last: partition.range().last(),
                    bytes_max: self.pull_bytes,
                };
                out.push(TargetEffect::Pull { to: self.source, pull });
            }
        }
        if self.cut.is_due(now, self.cuts, self.is_complete()) {
            self.cut = CutState::running(self.remaining());
            out.push(TargetEffect::Cut);
        }
        debug_assert!(
            self.partitions.iter().all(|it| it.unreplayed() <= self.pulls_ahead),
            "more than {} replies of a partition wait for their replay",
            self.pulls_ahead
        );
        if now >= self.report_at {
            self.report(out);
            self.report_at = now + TELL_AGAIN;
        }
    }

    fn report(&self, out: &mut Outbox<TargetEffect>) {
        let (migration, progress) = (self.migration, self.progress);
        out.push(TargetEffect::Tell(MigrationUpdate::Progress { migration, progress }));
        out.push(TargetEffect::Tell(match self.committed.clone() {
            None => MigrationUpdate::Flipped { migration },
            Some(remaining) => MigrationUpdate::Shrink { migration, remaining },
        }));
    }

    fn is_complete(&self) -> bool {
        self.partitions.iter().all(|partition| partition.remaining().is_none())
    }

    fn remaining(&self) -> Vec<HashRange> {
        ranges::merged(self.partitions.iter().filter_map(PulledPartition::remaining))
    }
}

impl CutState {
    fn running(remaining: Vec<HashRange>) -> CutState {
        CutState::Running { remaining, bytes: 0, moved: false }
    }

    fn add_bytes(&mut self, added: u64) {
        match self {
            CutState::Idle { bytes, .. } | CutState::Running { bytes, .. } => *bytes += added,
        }
    }

    fn record_advance(&mut self) {
        match self {
            CutState::Idle { moved, .. } | CutState::Running { moved, .. } => *moved = true,
        }
    }

    /// Returns whether a new cut would shrink the dependency by enough, or end it.
    fn is_due(&self, now: Instant, cuts: Cuts, is_complete: bool) -> bool {
        match self {
            CutState::Idle { since, bytes, moved } => {
                let is_worth_it = *bytes >= cuts.bytes || now >= *since + cuts.due_after(*bytes);
                is_complete || (*moved && is_worth_it)
            }
            CutState::Running { .. } => false,
        }
    }

    fn next_deadline(&self, cuts: Cuts) -> Option<Instant> {
        match self {
            CutState::Idle { since, bytes, moved: true } => Some(*since + cuts.due_after(*bytes)),
            CutState::Idle { .. } | CutState::Running { .. } => None,
        }
    }

    /// Ends the running cut and returns the ranges that still depend on the source.
    fn commit(&mut self, now: Instant) -> Vec<HashRange> {
        let CutState::Running { remaining, bytes, moved } = self else {
            unreachable!("a cut was committed that was not requested");
        };
        let (remaining, bytes, moved) = (std::mem::take(remaining), *bytes, *moved);
        *self = CutState::Idle { since: now, bytes, moved };
        remaining
    }
}

impl fmt::Display for Pulling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_complete() {
            return f.write_str("committing");
        }
        write!(f, "pulling, misses {}", list(&self.remaining()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::KeyHash;

    #[test]
    #[should_panic(expected = "the dependency on the source grows")]
    fn the_dependency_on_the_source_does_not_grow() {
        let intent = crate::migration::tests::intent();
        let mut pulling = Pulling::new(Instant(0), &intent, 0, Cuts::default());
        let low = HashRange::new(KeyHash(0), KeyHash(9));
        for remaining in [low, HashRange::ALL] {
            pulling.cut = CutState::running(vec![remaining]);
            pulling.cut_committed(Instant(0));
        }
    }

    #[test]
    #[should_panic(expected = "partition 9 was not pulled")]
    fn only_pulled_partitions_are_replayed() {
        let intent = crate::migration::tests::intent();
        let mut pulling = Pulling::new(Instant(0), &intent, 0, Cuts::default());
        pulling.replayed(Instant(0), 9, Ticket(1), Added::default(), &mut Outbox::new());
    }

    #[test]
    fn a_cut_is_due_when_it_is_worth_its_segments() {
        let cuts = Cuts::default().for_segments(16, 8 << 20);
        let (few, enough, many) = (1, 64 << 20, 1 << 30);
        let at = |seconds| Instant(7) + std::time::Duration::from_secs(seconds);
        let cases = [
            (few, true, Some(30)),
            (enough - 1, true, Some(30)),
            (enough, true, Some(2)),
            (many, true, Some(0)),
            (many, false, None),
        ];
        for (bytes, moved, due) in cases {
            let cut = CutState::Idle { since: at(0), bytes, moved };
            let first = (0..100).find(|&seconds| cut.is_due(at(seconds), cuts, false));
            assert_eq!(first, due, "{bytes} bytes, moved: {moved}");
            let deadline = cut.next_deadline(cuts);
            assert_eq!(deadline.is_some(), moved);
            assert!(deadline.is_none_or(|it| cut.is_due(it, cuts, false)), "{bytes} bytes");
            assert!(cut.is_due(at(0), cuts, true), "nothing more will arrive");
        }
    }
}
