//! The recovery master of one part, from the coordinator's request to a tablet that this server
//! owns. The states are in `docs/design/replication.md`, "A recovery master".
//!
//! **Invariant:** a part is reported as replayed only when every segment of it is.
//! **Invariant:** after [`RecoveryMasterEffect::Secure`] nothing is read or replayed. A later list
//! contains segments that were missing when the part was handed out and that an operator gave up.

use super::events::{
    PartRefusal, PartitionName, RecoveryMasterEffect, RecoveryMasterEvent, ReplayFailure,
};
use super::segments::SegmentReader;
use super::timing::TELL_AGAIN;
use crate::{Machine, Outbox, Ticket};
use std::collections::BTreeSet;
use std::fmt;
use types::{Instant, ServerId};
use wire::control::{RecoveryPartition, RecoveryUpdate};
use wire::peer::RecoveryReply;

/// The recovery master of one part.
#[derive(Debug)]
pub struct RecoveryMaster {
    name: PartitionName,
    segments: SegmentReader,
    /// Set if the part may be served before it is replicated.
    is_simple: bool,
    state: RecoveryMasterState,
}

#[derive(Debug)]
enum RecoveryMasterState {
    /// The master has received nothing about the part.
    Unknown,
    /// The tablet is being created.
    Beginning,
    /// Segments are being read and replayed.
    Reading,
    /// All entries are replayed. The next report to the coordinator is due at the given time.
    Replayed { stage: ReplayedStage, report_at: Instant },
    /// This server owns the part, and the part depends on nothing else.
    Finished,
    /// The part is not, or no longer, for this server. It is discarded after the running `replays`.
    Ending { replays: BTreeSet<Ticket>, refusal: Option<RefusalReport> },
    /// Nothing of the part is left here.
    Ended { refusal: Option<RefusalReport> },
}

/// The progress of a part after its replay: the map makes this server the owner, backups
/// acknowledge all entries, and the coordinator confirms that. A served and confirmed part is
/// finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayedStage {
    /// The entries are not acknowledged yet.
    Replicating,
    /// The map shows this server as the owner; the entries are not acknowledged yet.
    Served,
    /// The entries are acknowledged.
    Replicated,
    /// The map shows this server as the owner, and the entries are acknowledged.
    ServedReplicated,
    /// The coordinator knows that the entries are acknowledged. Its map does not show this server
    /// as the owner yet.
    Confirmed,
}

/// The reason why a part cannot be recovered, until the coordinator has processed it.
#[derive(Clone, Debug)]
struct RefusalReport {
    reason: PartRefusal,
    report_at: Instant,
}

/// The progress of reading a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Segments with all entries replayed.
    pub segments_read: usize,
    /// Segments of the log.
    pub segments_total: usize,
}

impl RecoveryMaster {
    /// Creates the master of a part of which only the name is known.
    pub fn new(name: PartitionName) -> RecoveryMaster {
        let segments = SegmentReader::new(name.range);
        RecoveryMaster { name, segments, is_simple: false, state: RecoveryMasterState::Unknown }
    }

    /// Returns the name of the part.
    pub fn name(&self) -> PartitionName {
        self.name
    }

    /// Returns the progress of reading.
    pub fn progress(&self) -> RecoveryProgress {
        let (segments_read, segments_total) = self.segments.progress();
        RecoveryProgress { segments_read, segments_total }
    }

    /// Returns the known bytes of all segments that the part is read from, over all ranges.
    pub fn log_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// Returns whether the master knows that a server is dead.
    pub fn knows_dead(&self, server: ServerId) -> bool {
        self.segments.knows_dead(server)
    }

    /// Returns whether the map has shown this server as the owner of the replayed part.
    pub fn is_served(&self) -> bool {
        match self.state {
            RecoveryMasterState::Replayed { stage, .. } => {
                matches!(stage, ReplayedStage::Served | ReplayedStage::ServedReplicated)
            }
            RecoveryMasterState::Finished => true,
            RecoveryMasterState::Unknown
            | RecoveryMasterState::Beginning
            | RecoveryMasterState::Reading
            | RecoveryMasterState::Ending { .. }
            | RecoveryMasterState::Ended { .. } => false,
        }
    }

    /// Returns why the part is handed back, until the coordinator has processed that.
    pub fn refusal(&self) -> Option<&PartRefusal> {
        match &self.state {
            RecoveryMasterState::Ending { refusal, .. }
            | RecoveryMasterState::Ended { refusal } => refusal.as_ref().map(|it| &it.reason),
            RecoveryMasterState::Unknown
            | RecoveryMasterState::Beginning
            | RecoveryMasterState::Reading
            | RecoveryMasterState::Replayed { .. }
            | RecoveryMasterState::Finished => None,
        }
    }

    /// Returns whether no work and no report is left.
    pub fn is_over(&self) -> bool {
        matches!(
            self.state,
            RecoveryMasterState::Finished | RecoveryMasterState::Ended { refusal: None }
        )
    }
}

impl Machine for RecoveryMaster {
    type Event = RecoveryMasterEvent;
    type Effect = RecoveryMasterEffect;

    const TICK: RecoveryMasterEvent = RecoveryMasterEvent::Tick;

    fn handle(
        &mut self,
        now: Instant,
        event: RecoveryMasterEvent,
        out: &mut Outbox<RecoveryMasterEffect>,
    ) {
        let (was_over, had_replayed) = (self.is_over(), self.has_replayed());
        match event {
            RecoveryMasterEvent::Part(part) => self.part(&part, out),
            RecoveryMasterEvent::Begun(result) => self.begun(now, result),
            RecoveryMasterEvent::Replied { from, reply, payload } => {
                self.replied(from, &reply, payload, out);
            }
            RecoveryMasterEvent::Replayed { ticket } => self.replayed(ticket, out),
            RecoveryMasterEvent::ReplayFailed { ticket, why } => {
                self.not_replayed(now, ticket, why, out)
            }
            RecoveryMasterEvent::Secured => self.secured(now),
            RecoveryMasterEvent::Kept => self.confirmed(out),
            RecoveryMasterEvent::ConnectionLost { backup } => {
                self.segments.connection_lost(now, backup)
            }
            RecoveryMasterEvent::Died { backup } => self.segments.died(backup),
            RecoveryMasterEvent::Decided { is_ours } => self.decided(is_ours, out),
            RecoveryMasterEvent::Tick => {}
        }
        self.reconcile(now, out);
        assert!(!was_over || self.is_over(), "a part that is over begins again: {self}");
        assert!(
            !had_replayed || !matches!(self.state, RecoveryMasterState::Reading),
            "a part is read after its replay: {self}"
        );
        self.check();
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            RecoveryMasterState::Reading => self.segments.next_deadline(),
            RecoveryMasterState::Replayed { stage, report_at } => {
                self.pending_report(*stage).map(|_| *report_at)
            }
            RecoveryMasterState::Ending { refusal, .. }
            | RecoveryMasterState::Ended { refusal } => {
                refusal.as_ref().map(|refusal| refusal.report_at)
            }
            RecoveryMasterState::Unknown
            | RecoveryMasterState::Beginning
            | RecoveryMasterState::Finished => None,
        }
    }
}

impl RecoveryMaster {
    fn has_replayed(&self) -> bool {
        matches!(self.state, RecoveryMasterState::Replayed { .. } | RecoveryMasterState::Finished)
    }

    /// Checks the invariants of the state.
    fn check(&self) {
        self.segments.check();
        match &self.state {
            RecoveryMasterState::Replayed { stage, .. } => {
                assert!(self.segments.is_read(), "a segment of the part is not replayed: {self}");
                assert!(
                    *stage != ReplayedStage::Served || self.is_simple,
                    "a part of two logs is served before it is replicated: {self}"
                );
            }
            RecoveryMasterState::Finished => {
                assert!(self.segments.is_read(), "a segment of the part is not replayed: {self}");
            }
            RecoveryMasterState::Ending { replays, .. } => {
                assert!(!replays.is_empty(), "a part without replays is not discarded: {self}");
            }
            RecoveryMasterState::Unknown
            | RecoveryMasterState::Beginning
            | RecoveryMasterState::Reading
            | RecoveryMasterState::Ended { .. } => {}
        }
    }

    fn part(&mut self, part: &RecoveryPartition, out: &mut Outbox<RecoveryMasterEffect>) {
        if PartitionName::of(part) != Some(self.name) {
            return;
        }
        if let RecoveryMasterState::Unknown = self.state {
            self.is_simple = part.logs.len() == 1 && !part.keeps;
            self.state = RecoveryMasterState::Beginning;
            out.push(RecoveryMasterEffect::Begin);
        }
        if let RecoveryMasterState::Beginning | RecoveryMasterState::Reading = self.state {
            self.segments.add_list(part);
        }
    }

    fn begun(&mut self, now: Instant, result: Result<(), PartRefusal>) {
        if !matches!(self.state, RecoveryMasterState::Beginning) {
            return;
        }
        self.state = match result {
            Ok(()) => RecoveryMasterState::Reading,
            // There is no tablet to discard.
            Err(reason) => RecoveryMasterState::Ended {
                refusal: Some(RefusalReport { reason, report_at: now }),
            },
        };
    }

    fn replied(
        &mut self,
        from: ServerId,
        reply: &RecoveryReply,
        payload: Option<Ticket>,
        out: &mut Outbox<RecoveryMasterEffect>,
    ) {
        let is_reading = matches!(self.state, RecoveryMasterState::Reading);
        let is_taken = is_reading && self.segments.replied(from, reply, payload, out);
        if let (false, Some(ticket)) = (is_taken, payload) {
            out.push(RecoveryMasterEffect::Discard { ticket });
        }
    }

    fn replayed(&mut self, ticket: Ticket, out: &mut Outbox<RecoveryMasterEffect>) {
        self.segments.replayed(ticket);
        self.replay_over(ticket, out);
    }

    fn not_replayed(
        &mut self,
        now: Instant,
        ticket: Ticket,
        why: ReplayFailure,
        out: &mut Outbox<RecoveryMasterEffect>,
    ) {
        out.push(RecoveryMasterEffect::Discard { ticket });
        self.segments.damaged(ticket);
        self.replay_over(ticket, out);
        match why {
            ReplayFailure::OutOfMemory => self.refuse(now, PartRefusal::NoRoom),
            // Another place may have the segment intact.
            ReplayFailure::Corrupt => {}
        }
    }

    /// Records the end of a replay: a part is discarded only when no replay is running.
    fn replay_over(&mut self, ticket: Ticket, out: &mut Outbox<RecoveryMasterEffect>) {
        if let RecoveryMasterState::Ending { replays, .. } = &mut self.state {
            replays.remove(&ticket);
            self.abandon(out);
        }
    }

    /// Ends the attempt with a reason for the coordinator.
    fn refuse(&mut self, now: Instant, reason: PartRefusal) {
        if let RecoveryMasterState::Reading = self.state {
            let refusal = Some(RefusalReport { reason, report_at: now });
            self.state = RecoveryMasterState::Ending { replays: self.segments.replays(), refusal };
        }
    }

    /// Records that backups have acknowledged all entries.
    fn secured(&mut self, now: Instant) {
        if let RecoveryMasterState::Replayed { stage, report_at } = &mut self.state {
            *stage = match *stage {
                ReplayedStage::Replicating => ReplayedStage::Replicated,
                ReplayedStage::Served => ReplayedStage::ServedReplicated,
                ReplayedStage::Replicated
                | ReplayedStage::ServedReplicated
                | ReplayedStage::Confirmed => *stage,
            };
            *report_at = now;
        }
    }

    /// Records the coordinator's confirmation that the part is replicated.
    fn confirmed(&mut self, out: &mut Outbox<RecoveryMasterEffect>) {
        let RecoveryMasterState::Replayed { stage, .. } = &mut self.state else { return };
        match stage {
            ReplayedStage::Replicated => *stage = ReplayedStage::Confirmed,
            ReplayedStage::ServedReplicated => self.finish(out),
            // The coordinator cannot know yet, or repeats itself.
            ReplayedStage::Replicating | ReplayedStage::Served | ReplayedStage::Confirmed => {}
        }
    }

    fn finish(&mut self, out: &mut Outbox<RecoveryMasterEffect>) {
        assert!(self.has_replayed(), "a part is finished after its replay: {self}");
        out.push(RecoveryMasterEffect::Finish);
        self.state = RecoveryMasterState::Finished;
    }

    fn decided(&mut self, is_ours: bool, out: &mut Outbox<RecoveryMasterEffect>) {
        match &mut self.state {
            RecoveryMasterState::Replayed { stage, .. } if is_ours => match stage {
                ReplayedStage::Replicating if self.is_simple => *stage = ReplayedStage::Served,
                ReplayedStage::Replicated => *stage = ReplayedStage::ServedReplicated,
                ReplayedStage::Confirmed => self.finish(out),
                ReplayedStage::Replicating
                | ReplayedStage::Served
                | ReplayedStage::ServedReplicated => {}
            },
            // The part has moved on to another server, which the coordinator allows only after it
            // knows that the part is replicated.
            RecoveryMasterState::Replayed {
                stage: ReplayedStage::Served | ReplayedStage::ServedReplicated,
                ..
            } => self.finish(out),
            // The coordinator cannot assign the part before this master has reported it as
            // replayed.
            RecoveryMasterState::Unknown
            | RecoveryMasterState::Beginning
            | RecoveryMasterState::Reading
                if is_ours => {}
            RecoveryMasterState::Unknown => {
                self.state = RecoveryMasterState::Ended { refusal: None }
            }
            RecoveryMasterState::Beginning
            | RecoveryMasterState::Reading
            | RecoveryMasterState::Replayed { .. } => {
                self.state =
                    RecoveryMasterState::Ending { replays: self.segments.replays(), refusal: None };
                self.abandon(out);
            }
            RecoveryMasterState::Ending { refusal, .. }
            | RecoveryMasterState::Ended { refusal } => *refusal = None,
            RecoveryMasterState::Finished => {}
        }
    }

    fn abandon(&mut self, out: &mut Outbox<RecoveryMasterEffect>) {
        if let RecoveryMasterState::Ending { replays, refusal } = &mut self.state
            && replays.is_empty()
        {
            out.push(RecoveryMasterEffect::Abandon);
            self.state = RecoveryMasterState::Ended { refusal: refusal.take() };
        }
    }

    /// Takes the steps that are due.
    fn reconcile(&mut self, now: Instant, out: &mut Outbox<RecoveryMasterEffect>) {
        if let RecoveryMasterState::Reading = self.state {
            self.segments.reconcile(now, out);
            if let Some(complaint) = self.segments.complaint() {
                self.refuse(now, PartRefusal::Other(complaint));
            } else if self.segments.is_read() {
                out.push(RecoveryMasterEffect::Secure { version: self.segments.version() });
                let stage = ReplayedStage::Replicating;
                self.state = RecoveryMasterState::Replayed { stage, report_at: now };
            }
        }
        self.abandon(out);
        self.report(now, out);
    }

    /// Returns the report that the coordinator still needs about a replayed part.
    fn pending_report(&self, stage: ReplayedStage) -> Option<RecoveryUpdate> {
        let PartitionName { dead, range, epoch } = self.name;
        match stage {
            ReplayedStage::Replicated | ReplayedStage::ServedReplicated => {
                Some(RecoveryUpdate::Recovered { dead, range, epoch })
            }
            ReplayedStage::Replicating if self.is_simple => {
                Some(RecoveryUpdate::Replayed { dead, range, epoch })
            }
            ReplayedStage::Replicating | ReplayedStage::Served | ReplayedStage::Confirmed => None,
        }
    }

    fn report(&mut self, now: Instant, out: &mut Outbox<RecoveryMasterEffect>) {
        let PartitionName { dead, range, epoch } = self.name;
        if let RecoveryMasterState::Replayed { stage, report_at } = self.state
            && report_at <= now
            && let Some(message) = self.pending_report(stage)
        {
            out.push(RecoveryMasterEffect::Tell(message));
            self.state = RecoveryMasterState::Replayed { stage, report_at: now + TELL_AGAIN };
        }
        if let RecoveryMasterState::Ending { refusal: Some(refusal), .. }
        | RecoveryMasterState::Ended { refusal: Some(refusal) } = &mut self.state
            && refusal.report_at <= now
        {
            refusal.report_at = now + TELL_AGAIN;
            let reason = refusal.reason.to_string();
            let message = RecoveryUpdate::NotRecovered { dead, range, epoch, reason };
            out.push(RecoveryMasterEffect::Tell(message));
        }
    }
}

impl fmt::Display for RecoveryMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match &self.state {
            RecoveryMasterState::Unknown => f.write_str("unknown"),
            RecoveryMasterState::Beginning => f.write_str("beginning"),
            RecoveryMasterState::Reading => {
                let RecoveryProgress { segments_read, segments_total } = self.progress();
                write!(f, "{segments_read} of {segments_total} segments read")
            }
            RecoveryMasterState::Replayed { stage, .. } => f.write_str(match stage {
                ReplayedStage::Replicating => "replayed, securing",
                ReplayedStage::Served => "ours, securing",
                ReplayedStage::Replicated
                | ReplayedStage::ServedReplicated
                | ReplayedStage::Confirmed => "recovered",
            }),
            RecoveryMasterState::Finished => f.write_str("ours"),
            RecoveryMasterState::Ending { refusal: Some(refusal), .. }
            | RecoveryMasterState::Ended { refusal: Some(refusal) } => {
                write!(f, "handed back, {}", refusal.reason)
            }
            RecoveryMasterState::Ending { refusal: None, .. }
            | RecoveryMasterState::Ended { refusal: None } => f.write_str("not ours"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{HashRange, OwnershipEpoch};

    #[test]
    #[should_panic(expected = "a segment of the part is not replayed")]
    fn a_part_is_replayed_when_each_of_its_segments_is() {
        let (dead, range, epoch) = (ServerId(1), HashRange::ALL, OwnershipEpoch(1));
        let mut master = RecoveryMaster::new(PartitionName { dead, range, epoch });
        master.state = RecoveryMasterState::Finished;
        master.handle(Instant(0), RecoveryMasterEvent::Tick, &mut Outbox::new());
    }
}
