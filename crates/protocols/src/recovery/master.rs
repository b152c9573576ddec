//! The recovery master of one part, from the coordinator's request to a tablet that this server
//! owns.
//!
//! The master creates the tablet, reads and replays the segments, and reports that until the map
//! assigns the part to this server, which then serves it. Meanwhile the replayed entries are
//! replicated; the master reports that until the coordinator confirms it. A part that depends on
//! two logs is served only when it is replicated in this server's log. If the master cannot
//! continue it reports the reason and discards the part once no replay is running.
//!
//! **Invariant:** a part is reported as replayed only when every segment of it is.
//! **Invariant:** after [`MasterEffect::Secure`] nothing is read or replayed. A later list contains
//! segments that were missing when the part was handed out and that an operator gave up.

use super::events::{MasterEffect, MasterEvent, NO_ROOM, PartName, ReplayFailure};
use super::segments::Segments;
use super::timing::TELL_AGAIN;
use crate::{Outbox, Ticket};
use std::collections::BTreeSet;
use std::fmt;
use types::{Instant, ServerId};
use wire::control::{RecoveryPart, ToCoordinator};
use wire::peer::RecoveryReply;

/// The recovery master of one part.
#[derive(Debug)]
pub struct Master {
    name: PartName,
    segments: Segments,
    /// Set if the part may be served before it is replicated.
    is_simple: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The master has received nothing about the part.
    Unknown,
    /// The tablet is being created.
    Beginning,
    /// Segments are being read and replayed.
    Reading,
    /// All entries are replayed.
    Replayed(Replayed),
    /// This server owns the part, and the part depends on nothing else.
    Finished,
    /// The part is not, or no longer, for this server. It is discarded after the running `replays`.
    Ending { replays: BTreeSet<Ticket>, refusal: Option<Refusal> },
    /// Nothing of the part is left here.
    Ended { refusal: Option<Refusal> },
}

/// The progress of a part after its replay.
#[derive(Clone, Copy, Debug)]
struct Replayed {
    /// The map shows this server as the owner.
    is_ours: bool,
    /// All entries of the part are acknowledged by backups.
    is_safe: bool,
    /// The coordinator knows that.
    is_kept: bool,
    /// Time of the next report to the coordinator.
    tell_at: Instant,
}

/// The reason why a part cannot be recovered, until the coordinator has processed it.
#[derive(Clone, Debug)]
struct Refusal {
    reason: String,
    tell_at: Instant,
}

/// The progress of reading a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Segments with all entries replayed.
    pub segments_read: usize,
    /// Segments of the log.
    pub segments_total: usize,
}

impl Master {
    /// Creates the master of a part of which only the name is known.
    pub fn new(name: PartName) -> Master {
        let segments = Segments::new(name.range);
        Master { name, segments, is_simple: false, state: State::Unknown }
    }

    /// Returns the name of the part.
    pub fn name(&self) -> PartName {
        self.name
    }

    /// Returns the progress of reading.
    pub fn progress(&self) -> Progress {
        let (segments_read, segments_total) = self.segments.progress();
        Progress { segments_read, segments_total }
    }

    /// Returns the known bytes of all segments that the part is read from, over all ranges.
    pub fn log_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// Returns whether no work and no report is left.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Finished | State::Ended { refusal: None })
    }

    /// Processes one event and appends the resulting effects to `out`.
    pub fn handle(&mut self, now: Instant, event: MasterEvent, out: &mut Outbox<MasterEffect>) {
        match event {
            MasterEvent::Part(part) => self.part(&part, out),
            MasterEvent::Begun(result) => self.begun(now, result),
            MasterEvent::Replied { from, reply, payload } => {
                self.replied(from, &reply, payload, out);
            }
            MasterEvent::Replayed { ticket } => self.replayed(ticket, out),
            MasterEvent::ReplayFailed { ticket, why } => self.not_replayed(now, ticket, why, out),
            MasterEvent::Secured => {
                if let State::Replayed(replayed) = &mut self.state {
                    replayed.is_safe = true;
                    replayed.tell_at = now;
                }
            }
            MasterEvent::Kept => {
                if let State::Replayed(replayed) = &mut self.state {
                    replayed.is_kept = replayed.is_safe;
                }
            }
            MasterEvent::ConnectionLost { backup } => self.segments.connection_lost(now, backup),
            MasterEvent::Died { backup } => self.segments.died(backup),
            MasterEvent::Decided { is_ours } => self.decided(is_ours, out),
            MasterEvent::Tick => {}
        }
        self.settle(now, out);
    }

    /// Returns when [`MasterEvent::Tick`] is due, if no other event comes first.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Reading => self.segments.next_deadline(),
            State::Replayed(replayed) => self.to_tell(replayed).map(|_| replayed.tell_at),
            State::Ending { refusal, .. } | State::Ended { refusal } => {
                refusal.as_ref().map(|refusal| refusal.tell_at)
            }
            State::Unknown | State::Beginning | State::Finished => None,
        }
    }
}

impl Master {
    fn part(&mut self, part: &RecoveryPart, out: &mut Outbox<MasterEffect>) {
        if PartName::of(part) != Some(self.name) {
            return;
        }
        match self.state {
            State::Unknown => {
                self.is_simple = part.logs.len() == 1 && !part.keeps;
                self.segments.name(part);
                self.state = State::Beginning;
                out.push(MasterEffect::Begin);
            }
            State::Beginning | State::Reading => self.segments.name(part),
            State::Replayed(_) | State::Finished | State::Ending { .. } | State::Ended { .. } => {}
        }
    }

    fn begun(&mut self, now: Instant, result: Result<(), String>) {
        if !matches!(self.state, State::Beginning) {
            return;
        }
        self.state = match result {
            Ok(()) => State::Reading,
            // There is no tablet to discard.
            Err(reason) => State::Ended { refusal: Some(Refusal { reason, tell_at: now }) },
        };
    }

    fn replied(
        &mut self,
        from: ServerId,
        reply: &RecoveryReply,
        payload: Option<Ticket>,
        out: &mut Outbox<MasterEffect>,
    ) {
        let is_reading = matches!(self.state, State::Reading);
        let is_taken = is_reading && self.segments.replied(from, reply, payload, out);
        if let (false, Some(ticket)) = (is_taken, payload) {
            out.push(MasterEffect::Discard { ticket });
        }
    }

    fn replayed(&mut self, ticket: Ticket, out: &mut Outbox<MasterEffect>) {
        self.segments.replayed(ticket);
        self.replay_over(ticket, out);
    }

    fn not_replayed(
        &mut self,
        now: Instant,
        ticket: Ticket,
        why: ReplayFailure,
        out: &mut Outbox<MasterEffect>,
    ) {
        out.push(MasterEffect::Discard { ticket });
        self.segments.damaged(ticket);
        self.replay_over(ticket, out);
        match why {
            ReplayFailure::OutOfMemory => self.refuse(now, NO_ROOM.to_owned()),
            // Another place may have the segment intact.
            ReplayFailure::Corrupt => {}
        }
    }

    /// Records the end of a replay: a part is discarded only when no replay is running.
    fn replay_over(&mut self, ticket: Ticket, out: &mut Outbox<MasterEffect>) {
        if let State::Ending { replays, .. } = &mut self.state {
            replays.remove(&ticket);
            self.abandon(out);
        }
    }

    /// Ends the attempt with a reason for the coordinator.
    fn refuse(&mut self, now: Instant, reason: String) {
        if let State::Reading = self.state {
            let refusal = Some(Refusal { reason, tell_at: now });
            self.state = State::Ending { replays: self.segments.replays(), refusal };
        }
    }

    fn decided(&mut self, is_ours: bool, out: &mut Outbox<MasterEffect>) {
        match &mut self.state {
            State::Replayed(replayed) if is_ours => {
                replayed.is_ours = replayed.is_safe || self.is_simple;
            }
            // The part has moved on to another server, which the coordinator allows only after it
            // knows that the part is replicated.
            State::Replayed(replayed) if replayed.is_ours => replayed.is_kept = true,
            // The coordinator cannot assign the part before this master has reported it as
            // replayed.
            State::Unknown | State::Beginning | State::Reading if is_ours => {}
            State::Unknown => self.state = State::Ended { refusal: None },
            State::Beginning | State::Reading | State::Replayed(_) => {
                self.state = State::Ending { replays: self.segments.replays(), refusal: None };
                self.abandon(out);
            }
            State::Ending { refusal, .. } | State::Ended { refusal } => *refusal = None,
            State::Finished => {}
        }
    }

    fn abandon(&mut self, out: &mut Outbox<MasterEffect>) {
        if let State::Ending { replays, refusal } = &mut self.state
            && replays.is_empty()
        {
            out.push(MasterEffect::Abandon);
            self.state = State::Ended { refusal: refusal.take() };
        }
    }

    /// Takes the steps that are due.
    fn settle(&mut self, now: Instant, out: &mut Outbox<MasterEffect>) {
        if let State::Reading = self.state {
            self.segments.settle(now, out);
            if let Some(complaint) = self.segments.complaint() {
                self.refuse(now, complaint);
            } else if self.segments.is_read() {
                out.push(MasterEffect::Secure { version: self.segments.version() });
                let (is_ours, is_safe, is_kept) = (false, false, false);
                self.state = State::Replayed(Replayed { is_ours, is_safe, is_kept, tell_at: now });
            }
        }
        if let State::Replayed(Replayed { is_ours: true, is_kept: true, .. }) = self.state {
            out.push(MasterEffect::Finish);
            self.state = State::Finished;
        }
        self.abandon(out);
        self.tell(now, out);
    }

    /// Returns the report that the coordinator still needs about a replayed part.
    fn to_tell(&self, replayed: &Replayed) -> Option<ToCoordinator> {
        let PartName { dead, range, epoch } = self.name;
        match *replayed {
            Replayed { is_kept: true, .. } => None,
            Replayed { is_safe: true, .. } => Some(ToCoordinator::Recovered { dead, range, epoch }),
            Replayed { is_ours: false, .. } if self.is_simple => {
                Some(ToCoordinator::Replayed { dead, range, epoch })
            }
            Replayed { .. } => None,
        }
    }

    fn tell(&mut self, now: Instant, out: &mut Outbox<MasterEffect>) {
        let PartName { dead, range, epoch } = self.name;
        if let State::Replayed(replayed) = self.state
            && replayed.tell_at <= now
            && let Some(message) = self.to_tell(&replayed)
        {
            out.push(MasterEffect::Tell(message));
            self.state = State::Replayed(Replayed { tell_at: now + TELL_AGAIN, ..replayed });
        }
        match &mut self.state {
            State::Ending { refusal: Some(refusal), .. }
            | State::Ended { refusal: Some(refusal) }
                if refusal.tell_at <= now =>
            {
                refusal.tell_at = now + TELL_AGAIN;
                let reason = refusal.reason.clone();
                let message = ToCoordinator::NotRecovered { dead, range, epoch, reason };
                out.push(MasterEffect::Tell(message));
            }
            State::Unknown
            | State::Beginning
            | State::Reading
            | State::Replayed(_)
            | State::Finished
            | State::Ending { .. }
            | State::Ended { .. } => {}
        }
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match &self.state {
            State::Unknown => f.write_str("unknown"),
            State::Beginning => f.write_str("beginning"),
            State::Reading => {
                let Progress { segments_read, segments_total } = self.progress();
                write!(f, "{segments_read} of {segments_total} segments read")
            }
            State::Replayed(Replayed { is_safe: true, .. }) => f.write_str("recovered"),
            State::Replayed(Replayed { is_ours: true, .. }) => f.write_str("ours, securing"),
            State::Replayed(_) => f.write_str("replayed, securing"),
            State::Finished => f.write_str("ours"),
            State::Ending { refusal: Some(refusal), .. }
            | State::Ended { refusal: Some(refusal) } => {
                write!(f, "handed back, {}", refusal.reason)
            }
            State::Ending { refusal: None, .. } | State::Ended { refusal: None } => {
                f.write_str("not ours")
            }
        }
    }
}
