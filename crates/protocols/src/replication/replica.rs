//! One replica as its master sees it: the bytes that the backup has confirmed, the piece in
//! flight, and the next piece to send.
//!
//! At most one piece is in flight. If its answer is late, the master does not repeat it but sends
//! a question (an append without bytes), because repeated pieces would overload a slow backup.
//! Only an answer to a message sent *later* than the piece proves that the piece was lost. The
//! master then sends the same piece again, so that a replica always ends at a piece boundary that
//! its master remembers.

use super::events::Promise;
use super::timing::{BROKEN_AGAIN, COPY_BYTES, SUSPECT_AFTER};
use planted::Bug;
use std::time::Duration;
use types::{Instant, ServerId};
use wire::replica::ReplicaEpoch;

/// The state of one replica at its master.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) backup: ServerId,
    pub(super) epoch: ReplicaEpoch,
    /// Bytes that the backup has confirmed; `synced` of them are synced.
    has: u32,
    synced: u32,
    /// Set once the backup has answered.
    is_open: bool,
    flight: Option<PieceInFlight>,
    /// Time at which the backup is asked if it has not answered; `None` before the first piece.
    ask_at: Option<Instant>,
    /// Set if a question is sent although the replica is complete.
    is_asked: bool,
    /// Set once the backup was told that the segment ends.
    knows_last: bool,
    /// Send time of the newest message that the backup has acknowledged.
    confirmed: Option<Instant>,
    /// Send time of the oldest unanswered message.
    unanswered: Option<Instant>,
    /// Time since which the replica makes no progress. `None`: it has all bytes sent so far.
    lagging: Option<Instant>,
    /// Set if only synced bytes count as progress.
    counts_synced: bool,
}

/// A piece in flight, from the end of the replica up to `to`.
#[derive(Clone, Copy, Debug)]
struct PieceInFlight {
    to: u32,
    sent: Instant,
    is_lost: bool,
}

/// The length of the segment so far, and whether it is final.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentExtent {
    pub(super) length: u32,
    pub(super) is_closed: bool,
}

/// The schedule on which a replica is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaPollPolicy {
    pub(super) interval: Duration,
    /// Set if the replica is asked even when all its bytes are confirmed.
    pub(super) is_steady: bool,
}

/// The next message to a replica: bytes `from..to` of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextPiece {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) synced: u32,
    pub(super) is_last: bool,
}

/// An error: the answer of the backup contradicts what was sent or acknowledged.
#[derive(Debug)]
pub(super) struct ContradictoryAnswer;

impl Replica {
    pub(super) fn new(backup: ServerId, epoch: ReplicaEpoch, promise: Promise) -> Replica {
        Replica {
            backup,
            epoch,
            has: 0,
            synced: 0,
            is_open: false,
            flight: None,
            ask_at: None,
            is_asked: false,
            knows_last: false,
            confirmed: None,
            unanswered: None,
            lagging: None,
            counts_synced: promise == Promise::Synced,
        }
    }

    /// Returns a replica that has all of a closed segment, synced.
    pub(super) fn adopted(backup: ServerId, epoch: ReplicaEpoch, length: u32) -> Replica {
        Replica {
            has: length,
            synced: length,
            is_open: true,
            knows_last: true,
            ..Replica::new(backup, epoch, Promise::Synced)
        }
    }

    /// Returns whether this is an original, which existed before any acknowledgment.
    pub(super) fn is_original(&self) -> bool {
        self.epoch == ReplicaEpoch::default()
    }

    pub(super) fn has(&self) -> u32 {
        self.has
    }

    pub(super) fn synced(&self) -> u32 {
        self.synced
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn confirmed(&self) -> Option<Instant> {
        self.confirmed
    }

    /// Returns whether the replica has, synced, all bytes of a closed segment.
    pub(super) fn is_complete(&self, of: SegmentExtent) -> bool {
        of.is_closed && self.is_open && self.has == of.length && self.synced == of.length
    }

    /// Processes an answer with the replica's length and synced length. `sent` is the send time
    /// of the message that it answers.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        sent: Instant,
        length: u32,
        synced: u32,
    ) -> Result<(), ContradictoryAnswer> {
        let end = self.flight.map_or(self.has, |flight| flight.to);
        let is_between = length > self.has && length < end;
        if length > end || is_between || synced > length || sent > now {
            return Err(ContradictoryAnswer);
        }
        if let Some(flight) = &mut self.flight {
            if length == flight.to {
                self.flight = None;
            } else if sent > flight.sent {
                flight.is_lost = !planted::is(Bug::LostPieceForgotten);
            }
        }
        let is_closer = length > self.has || synced > self.synced || !self.is_open;
        self.has = self.has.max(length);
        self.synced = self.synced.max(synced);
        self.is_open = true;
        assert!(self.synced <= self.has, "{} of {} bytes are synced", self.synced, self.has);
        assert!(
            self.flight.is_none_or(|flight| flight.to > self.has),
            "the piece in flight has arrived: {self:?}"
        );
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
        if self.counts_synced { self.synced } else { self.has }
    }

    /// Returns the time since which the replica is late. A replica that is asked steadily is late
    /// while it has not answered, any other one while it makes no progress.
    pub(super) fn late_since(&self, policy: ReplicaPollPolicy) -> Option<Instant> {
        if policy.is_steady { self.unanswered } else { self.lagging }
    }

    /// Moves the start of any lateness to `since`: the master read no input before.
    pub(super) fn excuse(&mut self, since: Instant) {
        let later = |it: &mut Instant| *it = since.max(*it);
        self.unanswered.iter_mut().for_each(later);
        self.lagging.iter_mut().for_each(later);
    }

    /// Schedules a question to the backup to confirm that it is alive.
    pub(super) fn ask(&mut self, now: Instant) {
        self.is_asked = true;
        self.ask_at = Some(now);
    }

    /// Brings the next question forward, because messages in flight may be lost.
    pub(super) fn connection_lost(&mut self, now: Instant) {
        self.ask_at = self.ask_at.map(|at| at.min(now + BROKEN_AGAIN));
    }

    /// Returns the message to send now, if any.
    pub(super) fn send(
        &mut self,
        now: Instant,
        of: SegmentExtent,
        policy: ReplicaPollPolicy,
    ) -> Option<NextPiece> {
        assert!(self.has <= of.length, "{} has {} bytes of {of:?}", self.backup, self.has);
        assert!(of.is_closed || !self.knows_last, "{} knows the end of {of:?}", self.backup);
        let to = match self.flight {
            Some(flight) if flight.is_lost => Some(flight.to),
            Some(_) => None,
            None => self.next_end(of),
        };
        let is_due = self.ask_at.is_some_and(|at| at <= now) && self.wants_answer(policy);
        let to = to.or(is_due.then_some(self.has))?;
        assert!((self.has..=of.length).contains(&to), "a piece ends at {to} of {of:?}");
        if to > self.has {
            assert!(
                self.flight.is_none_or(|flight| flight.is_lost && flight.to == to),
                "two pieces are in flight to {}: {self:?}",
                self.backup
            );
            self.flight = Some(PieceInFlight { to, sent: now, is_lost: false });
        }
        let is_last = of.is_closed && to == of.length;
        self.knows_last |= is_last;
        self.ask_at = Some(now + policy.interval);
        self.unanswered.get_or_insert(now);
        if to > self.has || !self.is_open {
            self.lagging.get_or_insert(now);
        }
        Some(NextPiece { from: self.has, to, synced: self.synced, is_last })
    }

    /// Returns the end of the next piece, if there is a reason to send one. A copy begins without
    /// bytes, because many backups refuse.
    fn next_end(&self, of: SegmentExtent) -> Option<u32> {
        let is_told = self.knows_last || !of.is_closed;
        if !self.is_open {
            let end = if self.is_original() { of.length } else { 0 };
            self.ask_at.is_none().then_some(end)
        } else if self.has < of.length {
            Some(if self.is_original() { of.length } else { of.length.min(self.has + COPY_BYTES) })
        } else if !is_told && self.synced < of.length {
            Some(self.has)
        } else {
            None
        }
    }

    fn wants_answer(&self, policy: ReplicaPollPolicy) -> bool {
        let is_unfinished = !self.is_open || self.flight.is_some() || self.synced < self.has;
        policy.is_steady || self.is_asked || is_unfinished
    }

    /// Returns the time from which the backup has left a message unanswered for [`SUSPECT_AFTER`].
    pub(super) fn suspect_at(&self) -> Option<Instant> {
        self.unanswered.map(|sent| sent + SUSPECT_AFTER)
    }

    /// Returns whether the backup has left a message unanswered for [`SUSPECT_AFTER`].
    pub(super) fn is_suspect(&self, now: Instant) -> bool {
        self.suspect_at().is_some_and(|at| at <= now)
    }

    /// Returns the time at which [`Replica::send`] has a question to ask.
    pub(super) fn next_deadline(&self, policy: ReplicaPollPolicy) -> Option<Instant> {
        self.ask_at.filter(|_| self.wants_answer(policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "has 9 bytes of")]
    fn a_segment_is_not_shorter_than_its_replica() {
        let mut replica = Replica::new(ServerId(2), ReplicaEpoch(0), Promise::Taken);
        replica.has = 9;
        let of = SegmentExtent { length: 8, is_closed: false };
        replica.send(
            Instant(0),
            of,
            ReplicaPollPolicy { interval: BROKEN_AGAIN, is_steady: false },
        );
    }
}
