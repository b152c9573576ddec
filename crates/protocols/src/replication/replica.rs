//! One replica, as its master sees it: what it has for certain, what is under way, and what is to
//! be sent next.
//!
//! At most one piece is under way. What is not answered in time is not sent again but asked about
//! (an append without bytes): a backup that is slow would drown in repeated pieces. Only an answer
//! to something that was sent *later* than the piece shows that it was lost; then the same piece is
//! sent, so that a replica ends only where a piece ended that its master remembers.

use super::events::Promise;
use super::timing::{BROKEN_AGAIN, COPY_BYTES, SUSPECT_AFTER};
use std::time::Duration;
use types::{Instant, ServerId};
use wire::replica::ReplicaEpoch;

/// The state of one replica at its master.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) backup: ServerId,
    pub(super) epoch: ReplicaEpoch,
    /// Bytes that the backup has said it has, and of these, stable ones.
    has: u32,
    stable: u32,
    /// The backup has answered.
    is_open: bool,
    flight: Option<Flight>,
    /// When the backup is asked if it has not answered by then; `None` before the first piece.
    ask_at: Option<Instant>,
    /// It is asked although there is nothing else to ask.
    is_asked: bool,
    /// The backup has been told that nothing will follow.
    knows_last: bool,
    /// The latest time at which something was sent that the backup has acknowledged.
    confirmed: Option<Instant>,
    /// When the first thing was sent that the backup has said nothing after.
    unanswered: Option<Instant>,
    /// Since when it has come no closer to what was sent to it. `None`: it has all of that.
    lagging: Option<Instant>,
    /// What counts is what survives a loss of power.
    counts_stable: bool,
}

/// A piece from what the replica has up to `to`.
#[derive(Clone, Copy, Debug)]
struct Flight {
    to: u32,
    sent: Instant,
    is_lost: bool,
}

/// What there is of the segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) length: u32,
    pub(super) is_closed: bool,
}

/// How often a replica is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) again: Duration,
    /// Also when there is nothing to ask.
    pub(super) is_steady: bool,
}

/// Bytes `from..to` of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) stable: u32,
    pub(super) is_last: bool,
}

/// The backup says what cannot be.
#[derive(Debug)]
pub(super) struct Incredible;

impl Replica {
    pub(super) fn new(backup: ServerId, epoch: ReplicaEpoch, promise: Promise) -> Replica {
        Replica {
            backup,
            epoch,
            has: 0,
            stable: 0,
            is_open: false,
            flight: None,
            ask_at: None,
            is_asked: false,
            knows_last: false,
            confirmed: None,
            unanswered: None,
            lagging: None,
            counts_stable: promise == Promise::Stable,
        }
    }

    /// Whether it was there before anything of the segment was acknowledged.
    pub(super) fn is_original(&self) -> bool {
        self.epoch == ReplicaEpoch::default()
    }

    pub(super) fn has(&self) -> u32 {
        self.has
    }

    pub(super) fn stable(&self) -> u32 {
        self.stable
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn confirmed(&self) -> Option<Instant> {
        self.confirmed
    }

    /// Whether it has all of a closed segment, for good.
    pub(super) fn is_complete(&self, of: Extent) -> bool {
        of.is_closed && self.is_open && self.has == of.length && self.stable == of.length
    }

    /// The backup has so much. `sent` is when that was sent which it answers.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        sent: Instant,
        (length, stable): (u32, u32),
    ) -> Result<(), Incredible> {
        let end = self.flight.map_or(self.has, |flight| flight.to);
        let is_between = length > self.has && length < end;
        if length > end || is_between || stable > length || sent > now {
            return Err(Incredible);
        }
        if let Some(flight) = &mut self.flight {
            if length == flight.to {
                self.flight = None;
            } else if sent > flight.sent {
                flight.is_lost = true;
            }
        }
        let is_closer = length > self.has || stable > self.stable || !self.is_open;
        self.has = self.has.max(length);
        self.stable = self.stable.max(stable);
        self.is_open = true;
        let sent_to = self.flight.map_or(self.has, |flight| flight.to);
        if self.counted() >= sent_to {
            self.lagging = None;
        } else if is_closer {
            self.lagging = self.lagging.map(|_| now);
        }
        self.is_asked = false;
        self.confirmed = self.confirmed.max(Some(sent));
        self.unanswered = None;
        Ok(())
    }

    fn counted(&self) -> u32 {
        if self.counts_stable { self.stable } else { self.has }
    }

    /// Since when it is late: it has not come closer to what it was sent, or, if it is asked all the
    /// time, it has said nothing.
    pub(super) fn late_since(&self, pace: Pace) -> Option<Instant> {
        if pace.is_steady { self.unanswered } else { self.lagging }
    }

    /// Nobody has listened: it is not late for longer than since this time.
    pub(super) fn excuse(&mut self, since: Instant) {
        let later = |it: &mut Instant| *it = since.max(*it);
        self.unanswered.iter_mut().for_each(later);
        self.lagging.iter_mut().for_each(later);
    }

    /// To be asked, only to hear that it is there.
    pub(super) fn ask(&mut self, now: Instant) {
        self.is_asked = true;
        self.ask_at = Some(now);
    }

    /// What was on its way may be lost.
    pub(super) fn connection_lost(&mut self, now: Instant) {
        self.ask_at = self.ask_at.map(|at| at.min(now + BROKEN_AGAIN));
    }

    /// What is to be sent now.
    pub(super) fn send(&mut self, now: Instant, of: Extent, pace: Pace) -> Option<Next> {
        let to = match self.flight {
            Some(flight) if flight.is_lost => Some(flight.to),
            Some(_) => None,
            None => self.next_end(of),
        };
        let is_due = self.ask_at.is_some_and(|at| at <= now) && self.wants_answer(pace);
        let to = to.or(is_due.then_some(self.has))?;
        if to > self.has {
            self.flight = Some(Flight { to, sent: now, is_lost: false });
        }
        let is_last = of.is_closed && to == of.length;
        self.knows_last |= is_last;
        self.ask_at = Some(now + pace.again);
        self.unanswered.get_or_insert(now);
        if to > self.has || !self.is_open {
            self.lagging.get_or_insert(now);
        }
        Some(Next { from: self.has, to, stable: self.stable, is_last })
    }

    /// Where the next piece ends, if there is a reason to send one. A copy is begun without bytes:
    /// many a backup will refuse it.
    fn next_end(&self, of: Extent) -> Option<u32> {
        let is_told = self.knows_last || !of.is_closed;
        if !self.is_open {
            let end = if self.is_original() { of.length } else { 0 };
            self.ask_at.is_none().then_some(end)
        } else if self.has < of.length {
            Some(if self.is_original() { of.length } else { of.length.min(self.has + COPY_BYTES) })
        } else if !is_told && self.stable < of.length {
            Some(self.has)
        } else {
            None
        }
    }

    fn wants_answer(&self, pace: Pace) -> bool {
        let is_unfinished = !self.is_open || self.flight.is_some() || self.stable < self.has;
        pace.is_steady || self.is_asked || is_unfinished
    }

    /// Whether its backup has not answered for long.
    pub(super) fn is_suspect(&self, now: Instant) -> bool {
        self.unanswered.is_some_and(|sent| sent + SUSPECT_AFTER <= now)
    }

    /// When [`Replica::send`] has something to ask.
    pub(super) fn next_deadline(&self, pace: Pace) -> Option<Instant> {
        self.ask_at.filter(|_| self.wants_answer(pace))
    }
}
