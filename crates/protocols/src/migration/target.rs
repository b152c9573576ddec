//! The target's side of one migration: from the intent to the last committed cut.
//!
//! The target decides how the flip ends, exactly once, and its word binds everybody. From then on
//! it serves the range, pulls what it misses, and tells the coordinator from time to time which
//! hashes still depend on the source. What it tells it repeats until the coordinator says that
//! the migration is over: this one repetition drives coordinator and source as well.
//!
//! Invariants:
//! - a flip is accepted only if it fits the intent that came from the coordinator, once;
//! - after *never* no flip of this migration is accepted, and who has been prepared for too long
//!   says never by itself: a coordinator that cannot reach it relies on that;
//! - the source hears that the flip was accepted only when every reactor serves the range, so
//!   that two servers never point at each other;
//! - until the source or the coordinator has shown that it knows of the acceptance, the range is
//!   served only for as long as neither can have given it to the source again;
//! - the dependency shrinks only to what a committed cut leaves.

mod display;

use super::cuts::Cuts;
use super::pulling::Pulling;
use super::timing::{PREPARED_MAX, TELL_AGAIN, UNACKNOWLEDGED_MAX};
use crate::{Outbox, Ticket};
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId};
use wire::control::{Intent, Progress, ToCoordinator};
use wire::peer::{Flip, PeerMessage, Pull, PullReply};

/// The target of one migration. Made when the migration is first heard of, whatever the message.
#[derive(Debug)]
pub struct Target {
    migration: MigrationId,
    cuts: Cuts,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The coordinator has not told the intent yet.
    Unknown,
    /// The intent is known; memory is being set aside.
    Reserving { intent: Box<Intent> },
    /// There is no room.
    Refused { reason: String },
    /// A fitting flip will be accepted, up to a time.
    Prepared { intent: Box<Intent>, until: Instant },
    /// No flip of this migration will ever be accepted.
    Never,
    /// A flip is accepted; not every reactor has taken up serving.
    Accepting { intent: Box<Intent>, records_total: u64, known: Acknowledged },
    /// The range is served; records are missing, or not committed.
    Pulling { source: ServerId, pulling: Box<Pulling>, known: Acknowledged },
    /// Nothing depends on the source any more. It still has to forget, the coordinator to hear.
    Settling { source: ServerId, progress: Progress, tell_at: Instant },
    /// The migration is over.
    Done { source: ServerId },
}

/// Knowledge of others that a flip was accepted. Whoever knows never gives the range to the source
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledged {
    /// Nobody has shown any. The range is served until then.
    Not { until: Instant },
    /// Nobody has in time. The range is not served.
    TooLate,
    /// The source or the coordinator has.
    Yes,
}

/// What happens to a target.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetEvent {
    /// The coordinator: an intent exists.
    Prepare(Box<Intent>),
    /// What came of [`TargetEffect::Reserve`]: the reason if there is no room.
    Reserved(Result<(), String>),
    /// The coordinator: have you accepted, or will you never?
    Decide,
    /// The coordinator's map says that the range is ours.
    Acknowledged,
    /// The coordinator: the migration is over.
    Finished,
    /// The source has died after the flip: nothing more comes from it.
    SourceDied,
    /// A source: I serve nothing of the range any more.
    Flip {
        /// Who says so.
        from: ServerId,
        /// What.
        flip: Box<Flip>,
    },
    /// [`TargetEffect::Accept`] has been carried out and every reactor has begun a turn since.
    Serving,
    /// A source: the records of a piece.
    PullReply {
        /// Who says so.
        from: ServerId,
        /// Which piece.
        reply: PullReply,
        /// Where the records are; `None` if there are none in this piece.
        payload: Option<Ticket>,
    },
    /// A [`TargetEffect::Replay`] has been carried out.
    Replayed {
        /// As in the effect.
        partition: u16,
        /// As in the effect.
        ticket: Ticket,
        /// What it added.
        added: Added,
    },
    /// A [`TargetEffect::Replay`] cannot be carried out: the payload is damaged, or memory full.
    ReplayFailed {
        /// As in the effect.
        partition: u16,
        /// As in the effect.
        ticket: Ticket,
    },
    /// A reactor has replayed the answer to a priority pull.
    PriorityReplayed {
        /// What it added.
        added: Added,
    },
    /// A [`TargetEffect::Cut`] has been carried out.
    CutCommitted,
    /// Time has passed: [`Target::next_deadline`].
    Tick,
}

/// What a replay put into the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Records of the payload.
    pub records: u64,
    /// Their bytes in the log.
    pub bytes: u64,
}

/// What a target wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetEffect {
    /// Set memory aside for so many bytes of records and say [`TargetEvent::Reserved`].
    Reserve {
        /// Live bytes of the range at the source.
        bytes: u64,
    },
    /// Give back what was set aside and not used.
    Unreserve,
    /// Raise version counter and expiry clock, serve the range as one that is arriving; once every
    /// reactor has begun a turn since then, say [`TargetEvent::Serving`].
    Accept(Box<Acceptance>),
    /// Hold every operation on the range: the source may serve it again.
    Suspend,
    /// Serve the range again.
    Resume,
    /// Send this to a server.
    Send {
        /// To whom.
        to: ServerId,
        /// What.
        message: PeerMessage,
    },
    /// Send this pull to the source. Independent work: pulls may leave from different reactors.
    Pull {
        /// To whom.
        to: ServerId,
        /// What.
        pull: Pull,
    },
    /// Replay this payload and say [`TargetEvent::Replayed`] or [`TargetEvent::ReplayFailed`].
    /// Independent work: any reactor, in any order.
    Replay {
        /// Partition that it belongs to.
        partition: u16,
        /// The payload.
        ticket: Ticket,
    },
    /// Nobody needs this payload.
    Discard {
        /// The payload.
        ticket: Ticket,
    },
    /// Let operations know that everything of the partition below `to` is here.
    Advance {
        /// The partition.
        partition: u16,
        /// `None`: all of it.
        to: Option<KeyHash>,
    },
    /// Commit what has been replayed: splice every reactor's side log; then say
    /// [`TargetEvent::CutCommitted`].
    Cut,
    /// Tell the coordinator.
    Tell(ToCoordinator),
    /// Serve the range as any other; forget the migration's own state.
    Finish,
}

/// All that is needed to begin to serve a range.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    /// As it came from the coordinator.
    pub intent: Intent,
    /// As it came from the source.
    pub flip: Flip,
    /// How the range is divided, in ascending order.
    pub partitions: Vec<HashRange>,
    /// Until when the range may be served without news: see [`Target::unacknowledged_until`].
    pub until: Instant,
}

impl Target {
    /// A target that has heard nothing but the migration's number.
    pub fn new(migration: MigrationId, cuts: Cuts) -> Target {
        Target { migration, cuts, state: State::Unknown }
    }

    /// The only way to change a target.
    pub fn handle(&mut self, now: Instant, event: TargetEvent, out: &mut Outbox<TargetEffect>) {
        self.expire(now, out);
        match event {
            TargetEvent::Prepare(intent) => self.prepare(intent, out),
            TargetEvent::Reserved(result) => self.reserved(now, result, out),
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
                if let State::Pulling { pulling, .. } = &mut self.state {
                    pulling.replayed(now, partition, ticket, added, out);
                }
            }
            TargetEvent::ReplayFailed { partition, ticket } => {
                out.push(TargetEffect::Discard { ticket });
                if let State::Pulling { pulling, .. } = &mut self.state {
                    pulling.replay_failed(now, partition, ticket);
                }
            }
            TargetEvent::PriorityReplayed { added } => {
                self.acknowledge(out);
                if let State::Pulling { pulling, .. } = &mut self.state {
                    pulling.priority_replayed(now, added);
                }
            }
            TargetEvent::CutCommitted => self.cut_committed(now, out),
            TargetEvent::Tick => {}
        }
        self.settle(now, out);
    }

    /// When [`TargetEvent::Tick`] is due, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let overdue = self.unacknowledged_until();
        match &self.state {
            State::Pulling { pulling, .. } => {
                overdue.into_iter().chain([pulling.next_deadline()]).min()
            }
            State::Accepting { .. } => overdue,
            State::Settling { tell_at, .. } => Some(*tell_at),
            State::Prepared { until, .. } => Some(*until),
            State::Unknown
            | State::Reserving { .. }
            | State::Refused { .. }
            | State::Never
            | State::Done { .. } => None,
        }
    }

    /// Returns until when the range may be served if nobody shows that it knows of the acceptance;
    /// `None`: somebody has, or it is not served.
    pub fn unacknowledged_until(&self) -> Option<Instant> {
        match self.state {
            State::Accepting { known: Acknowledged::Not { until }, .. }
            | State::Pulling { known: Acknowledged::Not { until }, .. } => Some(until),
            State::Accepting { known: Acknowledged::TooLate | Acknowledged::Yes, .. }
            | State::Pulling { known: Acknowledged::TooLate | Acknowledged::Yes, .. }
            | State::Unknown
            | State::Reserving { .. }
            | State::Refused { .. }
            | State::Prepared { .. }
            | State::Never
            | State::Settling { .. }
            | State::Done { .. } => None,
        }
    }

    /// Returns whether it has accepted and nobody has shown that it knows.
    pub fn is_unacknowledged(&self) -> bool {
        let too_late = matches!(
            self.state,
            State::Accepting { known: Acknowledged::TooLate, .. }
                | State::Pulling { known: Acknowledged::TooLate, .. }
        );
        too_late || self.unacknowledged_until().is_some()
    }

    /// Whether it has accepted nothing so far, and may.
    pub fn may_accept(&self) -> bool {
        matches!(self.state, State::Prepared { .. })
    }

    /// Whether nothing is left to do. The machine is kept as the memory of how it ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Refused { .. } | State::Never | State::Done { .. })
    }
}

impl Target {
    fn prepare(&mut self, intent: Box<Intent>, out: &mut Outbox<TargetEffect>) {
        let refused = match &self.state {
            State::Unknown => {
                out.push(TargetEffect::Reserve { bytes: intent.bytes });
                self.state = State::Reserving { intent };
                return;
            }
            State::Prepared { .. } => None,
            State::Refused { reason } => Some(reason.clone()),
            State::Never => Some("the migration was withdrawn".to_owned()),
            // Answered soon, or long ago.
            State::Reserving { .. }
            | State::Accepting { .. }
            | State::Pulling { .. }
            | State::Settling { .. }
            | State::Done { .. } => return,
        };
        out.push(self.prepared(refused));
    }

    fn prepared(&self, refused: Option<String>) -> TargetEffect {
        TargetEffect::Tell(ToCoordinator::Prepared { migration: self.migration, refused })
    }

    fn reserved(
        &mut self,
        now: Instant,
        result: Result<(), String>,
        out: &mut Outbox<TargetEffect>,
    ) {
        let State::Reserving { intent } = &self.state else {
            // Withdrawn while memory was being set aside.
            if result.is_ok() {
                out.push(TargetEffect::Unreserve);
            }
            return;
        };
        out.push(self.prepared(result.clone().err()));
        self.state = match result {
            Ok(()) => State::Prepared { intent: intent.clone(), until: now + PREPARED_MAX },
            Err(reason) => State::Refused { reason },
        };
    }

    fn decide(&mut self, out: &mut Outbox<TargetEffect>) {
        let accepted = match &self.state {
            State::Unknown
            | State::Reserving { .. }
            | State::Refused { .. }
            | State::Prepared { .. } => {
                self.withdraw(out);
                false
            }
            State::Never => false,
            State::Accepting { .. }
            | State::Pulling { .. }
            | State::Settling { .. }
            | State::Done { .. } => true,
        };
        let migration = self.migration;
        out.push(TargetEffect::Tell(ToCoordinator::Decided { migration, accepted }));
    }

    fn expire(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        if matches!(&self.state, State::Prepared { until, .. } if now >= *until) {
            self.withdraw(out);
        }
    }

    fn withdraw(&mut self, out: &mut Outbox<TargetEffect>) {
        if matches!(self.state, State::Prepared { .. }) {
            out.push(TargetEffect::Unreserve);
        }
        self.state = State::Never;
    }

    fn finish(&mut self, out: &mut Outbox<TargetEffect>) {
        match &self.state {
            State::Settling { source, .. } => {
                out.push(TargetEffect::Finish);
                self.state = State::Done { source: *source };
            }
            // The intent ended without a flip.
            State::Unknown | State::Reserving { .. } | State::Prepared { .. } => self.withdraw(out),
            // The coordinator says so only after our last cut; a bus that says it earlier is wrong.
            State::Accepting { .. } | State::Pulling { .. } => {}
            State::Refused { .. } | State::Never | State::Done { .. } => {}
        }
    }

    /// What has not arrived is read from the source's log, by others than us.
    fn source_died(&mut self, out: &mut Outbox<TargetEffect>) {
        // It gets nothing again.
        self.acknowledge(out);
        match &self.state {
            State::Accepting { intent, .. } => {
                let source = intent.source;
                out.push(TargetEffect::Finish);
                self.state = State::Done { source };
            }
            State::Pulling { source, .. } | State::Settling { source, .. } => {
                let source = *source;
                out.push(TargetEffect::Finish);
                self.state = State::Done { source };
            }
            State::Unknown
            | State::Reserving { .. }
            | State::Prepared { .. }
            | State::Refused { .. }
            | State::Never
            | State::Done { .. } => {}
        }
    }

    fn flip(&mut self, from: ServerId, flip: Flip, out: &mut Outbox<TargetEffect>) {
        match &self.state {
            State::Prepared { intent, until } => {
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
                self.state = State::Accepting { intent, records_total, known };
            }
            State::Never => out.push(self.answer(from, false)),
            State::Pulling { source, .. }
            | State::Settling { source, .. }
            | State::Done { source } => {
                if *source == from {
                    out.push(self.answer(from, true));
                }
            }
            // Not decided, or answered as soon as the range is served.
            State::Unknown
            | State::Reserving { .. }
            | State::Refused { .. }
            | State::Accepting { .. } => {}
        }
    }

    fn answer(&self, to: ServerId, accepted: bool) -> TargetEffect {
        let message = PeerMessage::FlipAnswer { migration: self.migration, accepted };
        TargetEffect::Send { to, message }
    }

    fn begin(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        let State::Accepting { intent, records_total, known } = &self.state else { return };
        let (source, known) = (intent.source, *known);
        let pulling = Box::new(Pulling::new(now, intent, *records_total, self.cuts));
        out.push(self.answer(source, true));
        out.push(TargetEffect::Tell(ToCoordinator::Flipped { migration: self.migration }));
        self.state = State::Pulling { source, pulling, known };
    }

    /// The source or the coordinator knows of the acceptance.
    fn acknowledge(&mut self, out: &mut Outbox<TargetEffect>) {
        let (State::Accepting { known, .. } | State::Pulling { known, .. }) = &mut self.state
        else {
            return;
        };
        if std::mem::replace(known, Acknowledged::Yes) == Acknowledged::TooLate {
            out.push(TargetEffect::Resume);
        }
    }

    /// Ends the time for which the range is served without news.
    fn suspend(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        let (State::Accepting { known, .. } | State::Pulling { known, .. }) = &mut self.state
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
        // A source answers no pull before it knows.
        if matches!(&self.state, State::Pulling { source, .. } if *source == from) {
            self.acknowledge(out);
        }
        let taken = match &mut self.state {
            State::Pulling { source, pulling, .. } if *source == from => {
                pulling.receive(reply, payload, out)
            }
            State::Pulling { .. }
            | State::Unknown
            | State::Reserving { .. }
            | State::Refused { .. }
            | State::Prepared { .. }
            | State::Never
            | State::Accepting { .. }
            | State::Settling { .. }
            | State::Done { .. } => false,
        };
        if let (false, Some(ticket)) = (taken, payload) {
            out.push(TargetEffect::Discard { ticket });
        }
    }

    fn cut_committed(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        // Every partition has been answered.
        self.acknowledge(out);
        let State::Pulling { source, pulling, .. } = &mut self.state else {
            unreachable!("{}: a cut was committed that nobody asked for", self.migration);
        };
        pulling.cut_committed(now);
        if pulling.is_committed() {
            let (source, progress) = (*source, pulling.report());
            self.state = State::Settling { source, progress, tell_at: now };
        }
        self.settle(now, out);
    }

    /// Does what is due by now.
    fn settle(&mut self, now: Instant, out: &mut Outbox<TargetEffect>) {
        self.suspend(now, out);
        match &mut self.state {
            State::Pulling { pulling, .. } => pulling.settle(now, out),
            State::Settling { progress, tell_at, .. } if now >= *tell_at => {
                let migration = self.migration;
                out.push(TargetEffect::Tell(ToCoordinator::Progress {
                    migration,
                    progress: *progress,
                }));
                let remaining = Vec::new();
                out.push(TargetEffect::Tell(ToCoordinator::Shrink { migration, remaining }));
                *tell_at = now + TELL_AGAIN;
            }
            State::Settling { .. }
            | State::Unknown
            | State::Reserving { .. }
            | State::Refused { .. }
            | State::Prepared { .. }
            | State::Never
            | State::Accepting { .. }
            | State::Done { .. } => {}
        }
    }
}

/// Whether a flip is the one that the coordinator announced.
fn fits(intent: &Intent, from: ServerId, flip: &Flip) -> bool {
    from == intent.source
        && flip.range == intent.range
        && flip.source_epoch == intent.source_epoch
        && flip.target_epoch == intent.target_epoch
}
