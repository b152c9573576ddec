//! The target's side of one migration: from the intent to the last committed cut. Its decision on
//! the flip binds all. It repeats its reports until the coordinator ends the migration, which
//! drives coordinator and source as well. See `docs/design/migration.md`.
//!
//! Invariants:
//! - A flip is accepted only once, and only if it matches the coordinator's intent. After *never*
//!   no flip of this migration is accepted.
//! - The source learns of the acceptance only when every reactor serves the range, so that two
//!   servers never redirect to each other.
//! - Until the source or the coordinator has proved that it knows of the acceptance, the target
//!   serves the range only while neither can have returned it to the source.
//! - The dependency shrinks only to the remainder of a committed cut.

mod events;
mod pulling;

pub use events::{Acceptance, Added, TargetEffect, TargetEvent};

use super::cuts::Cuts;
use super::timing::{PREPARED_MAX, REACH_AGAIN, REACHING_MAX, TELL_AGAIN, UNACKNOWLEDGED_MAX};
use crate::{Machine, Outbox, Ticket};
use planted::Bug;
use pulling::Pulling;
use std::fmt;
use types::{Instant, MigrationId, ServerId};
use wire::control::{Intent, MigrationProgress, MigrationUpdate};
use wire::peer::{Flip, PeerMessage, PullReply};

/// The target of one migration. The driver creates it at the first message about the migration.
#[derive(Debug)]
pub struct MigrationTarget {
    migration: MigrationId,
    cuts: Cuts,
    state: TargetState,
}

#[derive(Debug)]
enum TargetState {
    /// The coordinator has not sent the intent yet.
    Unknown,
    /// The intent is known, and memory is being reserved.
    Reserving { intent: Box<Intent> },
    /// Memory is reserved, and the source must show that it can be reached. It is asked again at
    /// `ask_at`, and the intent is refused at `until`.
    Reaching { intent: Box<Intent>, ask_at: Instant, until: Instant },
    /// Memory could not be reserved, or the source was not reached.
    Refused { intent: Box<Intent>, reason: String },
    /// A matching flip is accepted until the given time.
    Prepared { intent: Box<Intent>, until: Instant },
    /// No flip of this migration will ever be accepted. `None`: the coordinator has not sent the
    /// intent.
    Never { intent: Option<Box<Intent>> },
    /// A flip is accepted; some reactors do not serve the range yet.
    Accepting { intent: Box<Intent>, records_total: u64, known: Acknowledged },
    /// The range is served; records are missing or not committed.
    Pulling { intent: Box<Intent>, pulling: Box<Pulling>, known: Acknowledged },
    /// Nothing depends on the source; the coordinator must still end the migration.
    Committed { intent: Box<Intent>, progress: MigrationProgress, report_at: Instant },
    /// The migration is over.
    Done { intent: Box<Intent> },
}

/// Evidence that the source or the coordinator knows of the acceptance. After that, the range is
/// never given to the source again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledged {
    /// There is no evidence yet. The range is served until the given time.
    Not { until: Instant },
    /// No evidence came in time. The range is not served.
    TooLate,
    /// The source or the coordinator knows of the acceptance.
    Yes,
}

impl MigrationTarget {
    /// Creates the target of a migration of which only the id is known.
    pub fn new(migration: MigrationId, cuts: Cuts) -> MigrationTarget {
        MigrationTarget { migration, cuts, state: TargetState::Unknown }
    }

    /// Returns until when the range may be served without evidence that the source or the
    /// coordinator knows of the acceptance. `None`: there is evidence, or the range is not served.
    pub fn unacknowledged_until(&self) -> Option<Instant> {
        match self.state {
            TargetState::Accepting { known: Acknowledged::Not { until }, .. }
            | TargetState::Pulling { known: Acknowledged::Not { until }, .. } => Some(until),
            TargetState::Accepting { known: Acknowledged::TooLate | Acknowledged::Yes, .. }
            | TargetState::Pulling { known: Acknowledged::TooLate | Acknowledged::Yes, .. }
            | TargetState::Unknown
            | TargetState::Reserving { .. }
            | TargetState::Reaching { .. }
            | TargetState::Refused { .. }
            | TargetState::Prepared { .. }
            | TargetState::Never { .. }
            | TargetState::Committed { .. }
            | TargetState::Done { .. } => None,
        }
    }

    /// Returns whether the target has accepted without evidence that another process knows of it.
    pub fn is_unacknowledged(&self) -> bool {
        let too_late = matches!(
            self.state,
            TargetState::Accepting { known: Acknowledged::TooLate, .. }
                | TargetState::Pulling { known: Acknowledged::TooLate, .. }
        );
        too_late || self.unacknowledged_until().is_some()
    }

    /// Returns whether the target has not accepted yet and still may.
    pub fn may_accept(&self) -> bool {
        matches!(self.state, TargetState::Prepared { .. })
    }

    /// Returns whether the target waits for a sign of life from this server.
    pub fn awaits(&self, server: ServerId) -> bool {
        matches!(&self.state, TargetState::Reaching { intent, .. } if intent.source == server)
    }

    /// Returns whether the migration has ended here. The driver keeps the machine as a record.
    pub fn is_over(&self) -> bool {
        matches!(
            self.state,
            TargetState::Refused { .. } | TargetState::Never { .. } | TargetState::Done { .. }
        )
    }

    /// Returns the intent, once the coordinator has sent it.
    pub fn intent(&self) -> Option<&Intent> {
        match &self.state {
            TargetState::Unknown => None,
            TargetState::Never { intent } => intent.as_deref(),
            TargetState::Reserving { intent }
            | TargetState::Reaching { intent, .. }
            | TargetState::Refused { intent, .. }
            | TargetState::Prepared { intent, .. }
            | TargetState::Accepting { intent, .. }
            | TargetState::Pulling { intent, .. }
            | TargetState::Committed { intent, .. }
            | TargetState::Done { intent } => Some(intent),
        }
    }
}

impl Machine for MigrationTarget {
    type Event = TargetEvent;
    type Effect = TargetEffect;

    const TICK: TargetEvent = TargetEvent::Tick;

    fn handle(&mut self, now: Instant, event: TargetEvent, out: &mut Outbox<TargetEffect>) {
        let (had_accepted, was_over) = (self.has_accepted(), self.is_over());
        self.expire(now, out);
        match event {
            TargetEvent::Prepare(intent) => self.prepare(intent, out),
            TargetEvent::Reserved(result) => self.reserved(now, result, out),
            TargetEvent::Heard { from } => self.heard(now, from, out),
            TargetEvent::Decide => self.decide(out),
            TargetEvent::Acknowledged => self.acknowledge(out),
            TargetEvent::Finished => self.finish(out),
            TargetEvent::SourceDied => self.source_died(out),
            TargetEvent::Flip { from, flip } => self.flip(from, *flip, out),
            TargetEvent::Serving => self.begin(now, out),
            TargetEvent::PullReply { from, reply, payload } => {
                self.pull_reply(from, &reply, payload, out);
            }
            TargetEvent::Replayed { partition, ticket, added } => {
                if let TargetState::Pulling { pulling, .. } = &mut self.state {
                    pulling.replayed(now, partition, ticket, added, out);
                }
            }
            TargetEvent::ReplayFailed { partition, ticket } => {
                out.push(TargetEffect::Discard { ticket });
                if let TargetState::Pulling { pulling, .. } = &mut self.state {
                    pulling.replay_failed(now, partition, ticket);
                }
            }
            TargetEvent::PriorityReplayed { added } => {
                self.acknowledge(out);
                if let TargetState::Pulling { pulling, .. } = &mut self.state {
                    pulling.priority_replayed(now, added);
                }
            }
            TargetEvent::CutCommitted => self.cut_committed(now, out),
            TargetEvent::Tick => {}
        }
        self.reconcile(now, out);
        assert!(!had_accepted || self.has_accepted(), "an accepted flip is withdrawn: {self}");
        assert!(!was_over || self.is_over(), "an ended migration begins again: {self}");
        assert!(
            !was_over || had_accepted == self.has_accepted(),
            "a flip is accepted after never: {self}"
        );
        assert!(
            self.unacknowledged_until().is_none_or(|until| now < until),
            "the range is served without evidence for too long: {self}"
        );
    }

    fn next_deadline(&self) -> Option<Instant> {
        let overdue = self.unacknowledged_until();
        match &self.state {
            TargetState::Pulling { pulling, .. } => {
                overdue.into_iter().chain([pulling.next_deadline()]).min()
            }
            TargetState::Accepting { .. } => overdue,
            TargetState::Committed { report_at, .. } => Some(*report_at),
            TargetState::Prepared { until, .. } => Some(*until),
            TargetState::Reaching { ask_at, until, .. } => Some(*ask_at.min(until)),
            TargetState::Unknown
            | TargetState::Reserving { .. }
            | TargetState::Refused { .. }
            | TargetState::Never { .. }
            | TargetState::Done { .. } => None,
        }
    }
}

impl MigrationTarget {
    /// Returns whether the target has accepted the flip.
    fn has_accepted(&self) -> bool {
        matches!(
            self.state,
            TargetState::Accepting { .. }
                | TargetState::Pulling { .. }
                | TargetState::Committed { .. }
                | TargetState::Done { .. }
        )
    }

    fn prepare(&mut self, intent: Box<Intent>, out: &mut Outbox<TargetEffect>) {
        let refused = match &mut self.state {
            TargetState::Unknown => {
                out.push(TargetEffect::Reserve { bytes: intent.bytes });
                self.state = TargetState::Reserving { intent };
                return;
            }
            TargetState::Prepared { .. } => None,
            TargetState::Refused { reason, .. } => Some(reason.clone()),
            TargetState::Never { intent: known } => {
                known.get_or_insert(intent);
                Some("the migration was withdrawn".to_owned())
            }
            // The answer follows soon, or was sent long ago.
            TargetState::Reserving { .. }
            | TargetState::Reaching { .. }
            | TargetState::Accepting { .. }
            | TargetState::Pulling { .. }
            | TargetState::Committed { .. }
            | TargetState::Done { .. } => return,
        };
        out.push(self.prepared(refused));
    }

    fn prepared(&self, refused: Option<String>) -> TargetEffect {
        TargetEffect::Tell(MigrationUpdate::Prepared { migration: self.migration, refused })
    }

    fn reserved(
        &mut self,
        now: Instant,
        result: Result<(), String>,
        out: &mut Outbox<TargetEffect>,
    ) {
        let TargetState::Reserving { intent } = &self.state else {
            // The intent was withdrawn while memory was being reserved.
            if result.is_ok() {
                out.push(TargetEffect::Unreserve);
            }
            return;
        };
        match result {
            Ok(()) => {
                let (intent, until) = (intent.clone(), now + REACHING_MAX);
                let source = intent.source;
                self.state = TargetState::Reaching { intent, ask_at: now, until };
                if planted::is(Bug::PromisedUnreached) {
                    self.heard(now, source, out);
                }
            }
            Err(reason) => {
                let intent = intent.clone();
                self.refuse(intent, reason, out);
            }
        }
    }

    fn refuse(&mut self, intent: Box<Intent>, reason: String, out: &mut Outbox<TargetEffect>) {
        out.push(self.prepared(Some(reason.clone())));
        self.state = TargetState::Refused { intent, reason };
    }

    /// Promises to accept the flip, once the source has shown that it receives messages from here
    /// and is heard here. After the flip, records are reached only over this connection.
    fn heard(&mut self, now: Instant, from: ServerId, out: &mut Outbox<TargetEffect>) {
        if let TargetState::Reaching { intent, .. } = &self.state
            && intent.source == from
        {
            self.state =
                TargetState::Prepared { intent: intent.clone(), until: now + PREPARED_MAX };
            out.push(self.prepared(None));
        }
    }

    /// Asks the source for a sign of life when it is time, or gives up.
    fn reach(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        let TargetState::Reaching { intent, ask_at, until } = &mut self.state else { return };
        if now >= *until {
            let intent = intent.clone();
            let reason =
                format!("{} does not answer the target: check their network", intent.source);
            out.push(TargetEffect::Unreserve);
            self.refuse(intent, reason, out);
        } else if now >= *ask_at {
            *ask_at = now + REACH_AGAIN;
            out.push(TargetEffect::Send { to: intent.source, message: PeerMessage::Ping });
        }
    }

    fn decide(&mut self, out: &mut Outbox<TargetEffect>) {
        let accepted = match &self.state {
            TargetState::Unknown
            | TargetState::Reserving { .. }
            | TargetState::Reaching { .. }
            | TargetState::Refused { .. }
            | TargetState::Prepared { .. } => {
                self.withdraw(out);
                false
            }
            TargetState::Never { .. } => false,
            TargetState::Accepting { .. }
            | TargetState::Pulling { .. }
            | TargetState::Committed { .. }
            | TargetState::Done { .. } => true,
        };
        assert_eq!(accepted, self.has_accepted(), "the decision is the state's: {self}");
        let migration = self.migration;
        out.push(TargetEffect::Tell(MigrationUpdate::Decided { migration, accepted }));
    }

    fn expire(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        if matches!(&self.state, TargetState::Prepared { until, .. } if now >= *until) {
            self.withdraw(out);
            assert!(!self.may_accept(), "an expired promise is withdrawn: {self}");
        }
    }

    fn withdraw(&mut self, out: &mut Outbox<TargetEffect>) {
        assert!(!self.has_accepted(), "an accepted flip cannot be withdrawn: {self}");
        if matches!(self.state, TargetState::Reaching { .. } | TargetState::Prepared { .. }) {
            out.push(TargetEffect::Unreserve);
        }
        let intent = self.intent().cloned().map(Box::new);
        self.state = TargetState::Never { intent };
    }

    fn finish(&mut self, out: &mut Outbox<TargetEffect>) {
        match &self.state {
            TargetState::Committed { intent, .. } => {
                out.push(TargetEffect::Finish);
                self.state = TargetState::Done { intent: intent.clone() };
            }
            // The intent ended without a flip.
            TargetState::Unknown
            | TargetState::Reserving { .. }
            | TargetState::Reaching { .. }
            | TargetState::Prepared { .. } => self.withdraw(out),
            // The coordinator sends this only after the last cut; an earlier one is invalid.
            TargetState::Accepting { .. } | TargetState::Pulling { .. } => {}
            TargetState::Refused { .. } | TargetState::Never { .. } | TargetState::Done { .. } => {}
        }
    }

    /// Ends the migration: other servers recover the missing records from the source's log.
    fn source_died(&mut self, out: &mut Outbox<TargetEffect>) {
        // A dead source never gets the range back.
        self.acknowledge(out);
        if let TargetState::Accepting { intent, .. }
        | TargetState::Pulling { intent, .. }
        | TargetState::Committed { intent, .. } = &self.state
        {
            out.push(TargetEffect::Finish);
            self.state = TargetState::Done { intent: intent.clone() };
        }
    }

    fn flip(&mut self, from: ServerId, flip: Flip, out: &mut Outbox<TargetEffect>) {
        match &self.state {
            TargetState::Prepared { intent, until } => {
                if !fits(intent, from, &flip) {
                    return;
                }
                let until = *until + (UNACKNOWLEDGED_MAX - PREPARED_MAX);
                let intent = intent.clone();
                let records_total = flip.records.total();
                let partitions = super::policy::partitions(&intent.policy, intent.range);
                let acceptance =
                    Acceptance { intent: Intent::clone(&intent), flip, partitions, until };
                out.push(TargetEffect::Accept(Box::new(acceptance)));
                let known = Acknowledged::Not { until };
                self.state = TargetState::Accepting { intent, records_total, known };
                assert!(self.is_unacknowledged(), "the acceptance is not acknowledged yet: {self}");
            }
            TargetState::Never { .. } => out.push(self.answer(from, false)),
            TargetState::Pulling { intent, .. }
            | TargetState::Committed { intent, .. }
            | TargetState::Done { intent } => {
                if intent.source == from {
                    out.push(self.answer(from, true));
                }
            }
            // The decision is open, or the answer follows as soon as the range is served.
            TargetState::Unknown
            | TargetState::Reserving { .. }
            | TargetState::Reaching { .. }
            | TargetState::Refused { .. }
            | TargetState::Accepting { .. } => {}
        }
    }

    fn answer(&self, to: ServerId, accepted: bool) -> TargetEffect {
        let message = PeerMessage::FlipAnswer { migration: self.migration, accepted };
        TargetEffect::Send { to, message }
    }

    fn begin(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        let TargetState::Accepting { intent, records_total, known } = &self.state else { return };
        let (intent, known) = (intent.clone(), *known);
        let pulling = Box::new(Pulling::new(now, &intent, *records_total, self.cuts));
        out.push(self.answer(intent.source, true));
        out.push(TargetEffect::Tell(MigrationUpdate::Flipped { migration: self.migration }));
        self.state = TargetState::Pulling { intent, pulling, known };
    }

    /// Records evidence that the source or the coordinator knows of the acceptance.
    fn acknowledge(&mut self, out: &mut Outbox<TargetEffect>) {
        let (TargetState::Accepting { known, .. } | TargetState::Pulling { known, .. }) =
            &mut self.state
        else {
            return;
        };
        if std::mem::replace(known, Acknowledged::Yes) == Acknowledged::TooLate {
            out.push(TargetEffect::Resume);
        }
    }

    /// Stops serving the range when the time without evidence is over.
    fn suspend(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        let (TargetState::Accepting { known, .. } | TargetState::Pulling { known, .. }) =
            &mut self.state
        else {
            return;
        };
        let is_over = matches!(known, Acknowledged::Not { until } if now >= *until);
        if is_over {
            *known = Acknowledged::TooLate;
            out.push(TargetEffect::Suspend);
        }
    }

    fn pull_reply(
        &mut self,
        from: ServerId,
        reply: &PullReply,
        payload: Option<Ticket>,
        out: &mut Outbox<TargetEffect>,
    ) {
        // A source answers no pull before it knows of the acceptance.
        if matches!(&self.state, TargetState::Pulling { intent, .. } if intent.source == from) {
            self.acknowledge(out);
        }
        let taken = if let TargetState::Pulling { intent, pulling, .. } = &mut self.state
            && intent.source == from
        {
            pulling.receive(reply, payload, out)
        } else {
            false
        };
        if let (false, Some(ticket)) = (taken, payload) {
            out.push(TargetEffect::Discard { ticket });
        }
    }

    fn cut_committed(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        // Every partition has been answered, which proves that the source knows of the acceptance.
        self.acknowledge(out);
        let TargetState::Pulling { intent, pulling, known } = &mut self.state else {
            unreachable!("{}: a cut was committed that was not requested", self.migration);
        };
        pulling.cut_committed(now);
        assert_eq!(*known, Acknowledged::Yes, "a cut follows pulls, which the source answered");
        if pulling.is_committed() {
            let (intent, progress) = (intent.clone(), pulling.progress());
            self.state = TargetState::Committed { intent, progress, report_at: now };
        }
        self.reconcile(now, out);
    }

    /// Takes the steps that are due.
    fn reconcile(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        self.suspend(now, out);
        self.reach(now, out);
        if let TargetState::Pulling { pulling, .. } = &mut self.state {
            pulling.reconcile(now, out);
        } else if let TargetState::Committed { progress, report_at, .. } = &mut self.state
            && now >= *report_at
        {
            let (migration, progress) = (self.migration, *progress);
            out.push(TargetEffect::Tell(MigrationUpdate::Progress { migration, progress }));
            let remaining = Vec::new();
            out.push(TargetEffect::Tell(MigrationUpdate::Shrink { migration, remaining }));
            let is_last = planted::is(Bug::EndToldOnce);
            *report_at = if is_last { Instant(u64::MAX) } else { now + TELL_AGAIN };
        }
    }
}

impl fmt::Display for MigrationTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target of {}: ", self.migration)?;
        match &self.state {
            TargetState::Unknown => f.write_str("unknown"),
            TargetState::Reserving { .. } => f.write_str("reserving"),
            TargetState::Reaching { .. } => f.write_str("reaching the source"),
            TargetState::Refused { reason, .. } => write!(f, "refused, {reason}"),
            TargetState::Prepared { .. } => f.write_str("prepared"),
            TargetState::Never { .. } => f.write_str("never"),
            TargetState::Accepting { .. } => f.write_str("accepting"),
            TargetState::Pulling { pulling, .. } => pulling.fmt(f),
            TargetState::Committed { .. } => f.write_str("committed"),
            TargetState::Done { .. } => f.write_str("done"),
        }
    }
}

/// Returns whether the flip matches the intent of the coordinator.
fn fits(intent: &Intent, from: ServerId, flip: &Flip) -> bool {
    from == intent.source
        && flip.range == intent.range
        && flip.source_epoch == intent.source_epoch
        && flip.target_epoch == intent.target_epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "an accepted flip cannot be withdrawn")]
    fn an_accepted_flip_is_binding() {
        let state = TargetState::Done { intent: Box::new(crate::migration::tests::intent()) };
        let mut target =
            MigrationTarget { migration: MigrationId(1), cuts: Cuts::default(), state };
        target.withdraw(&mut Outbox::new());
    }
}
