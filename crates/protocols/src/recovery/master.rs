//! The recovery master of one part: from the coordinator's word to its own tablet.
//!
//! It makes the tablet, reads, replays, and says so, until the map shows that the part is ours: it is
//! served. Meanwhile it has everything made safe, and says that until the coordinator has noted it.
//! What is in two logs is served only when it is safe in a third. When it cannot go on it says that
//! instead, and forgets what it has as soon as nothing is being replayed any more.
//!
//! **Invariant:** the coordinator hears that a part is replayed only when every segment of it is.
//! **Invariant:** after *secure* nothing is read or replayed. A list that comes later has segments
//! that were missing when the part was handed out, and an operator went on without them.

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
    /// Whether it may be served before it is safe.
    is_simple: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing was heard of the part.
    Unknown,
    /// The tablet is being made.
    Beginning,
    /// Segments are read and replayed.
    Reading,
    /// Everything is replayed.
    Replayed(Replayed),
    /// The part is ours, and depends on nothing else.
    Finished,
    /// It is not, or not any more. What there is of it can go when these are not being replayed.
    Ending { replays: BTreeSet<Ticket>, refusal: Option<Refusal> },
    /// Nothing is left of it here.
    Ended { refusal: Option<Refusal> },
}

/// What has come of a part that is replayed.
#[derive(Clone, Copy, Debug)]
struct Replayed {
    /// The map shows that it is ours.
    is_ours: bool,
    /// All of it is on our backups.
    is_safe: bool,
    /// The coordinator knows that.
    is_kept: bool,
    /// When the coordinator is told again what it does not know.
    tell_at: Instant,
}

/// What the coordinator has to hear when a part cannot be recovered.
#[derive(Clone, Debug)]
struct Refusal {
    reason: String,
    tell_at: Instant,
}

/// How far a part is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Segments of which everything is replayed.
    pub segments_read: usize,
    /// Segments of the log.
    pub segments_total: usize,
}

impl Master {
    /// A master that knows nothing but its part's name.
    pub fn new(name: PartName) -> Master {
        let segments = Segments::new(name.range);
        Master { name, segments, is_simple: false, state: State::Unknown }
    }

    /// Which part it is for.
    pub fn name(&self) -> PartName {
        self.name
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let (segments_read, segments_total) = self.segments.progress();
        Progress { segments_read, segments_total }
    }

    /// Bytes of the segments that are read, of every range, as far as is known.
    pub fn log_bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// Whether nothing is left to do, and nobody has to hear of it.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Finished | State::Ended { refusal: None })
    }

    /// The only way to change a master.
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

    /// When [`MasterEvent::Tick`] is due, if nothing happens before.
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
            // There is nothing to forget.
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
            // Another place may have it whole.
            ReplayFailure::Corrupt => {}
        }
    }

    /// Nothing must be left to replay before it is forgotten what was.
    fn replay_over(&mut self, ticket: Ticket, out: &mut Outbox<MasterEffect>) {
        if let State::Ending { replays, .. } = &mut self.state {
            replays.remove(&ticket);
            self.abandon(out);
        }
    }

    /// The part cannot be recovered here.
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
            // It has gone on to somebody else, which it may only when the coordinator knows that it
            // is safe.
            State::Replayed(replayed) if replayed.is_ours => replayed.is_kept = true,
            // Nobody gives us what we have not recovered.
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

    /// Does what is due by now.
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

    /// What the coordinator has to hear of a part that is replayed.
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
