//! The progress of one partition of a migrating range.
//!
//! A partition is pulled piece by piece in hash order. Several pieces may wait for their replay,
//! and any reactor replays any piece, so replays finish in any order. The progress is the end of
//! the last piece such that it **and all earlier pieces** have been replayed. Receipt of records
//! does not advance it: an operation on a hash below the progress trusts the index, so premature
//! progress would make existing records invisible.
//!
//! Invariants:
//! - Cursors only grow, except that a piece is pulled again if its replay failed. Such a piece is
//!   above the progress.
//! - At most one pull is outstanding, from the cursor. A reply that does not answer it is late,
//!   repeated or invalid, and is dropped.

use super::timing::PULL_AGAIN;
use crate::Ticket;
use planted::Bug;
use std::collections::VecDeque;
use types::{HashRange, Instant, KeyHash};

/// One partition of a migrating range at the target.
#[derive(Debug)]
pub(super) struct PulledPartition {
    range: HashRange,
    /// Hash below which everything has been replayed; `None`: the whole partition has been.
    progress: Option<KeyHash>,
    /// Replies above the progress that wait for their own replay or for an earlier one.
    pieces: VecDeque<PulledPiece>,
    pull: PullCursor,
}

/// The state of the pulls of a partition.
#[derive(Clone, Copy, Debug)]
enum PullCursor {
    /// The next pull begins at this hash.
    Next(KeyHash),
    /// A pull from this hash is outstanding and is repeated at this time.
    Asked(KeyHash, Instant),
    /// All pieces have been received.
    End,
}

/// A received reply.
#[derive(Debug)]
struct PulledPiece {
    first: KeyHash,
    next: Option<KeyHash>,
    /// The payload to replay; `None`: it has been replayed, or the reply had no payload.
    unreplayed: Option<Ticket>,
}

impl PulledPartition {
    pub(super) fn new(range: HashRange) -> PulledPartition {
        let first = range.first();
        let pieces = VecDeque::new();
        PulledPartition { range, progress: Some(first), pieces, pull: PullCursor::Next(first) }
    }

    pub(super) fn range(&self) -> HashRange {
        self.range
    }

    /// Returns the cursor of the pull to send now, if any: a new pull while fewer than `ahead`
    /// replies wait for their replay, or the repetition of an unanswered one.
    pub(super) fn next_pull(&mut self, now: Instant, ahead: usize) -> Option<KeyHash> {
        let cursor = match self.pull {
            PullCursor::Next(cursor) if self.unreplayed() < ahead => cursor,
            PullCursor::Asked(cursor, again) if now >= again => cursor,
            PullCursor::Next(_) | PullCursor::Asked(..) | PullCursor::End => return None,
        };
        assert!(self.range.contains(cursor), "a pull begins in its partition: {cursor}");
        let is_last = planted::is(Bug::PullNotRepeated);
        let again = if is_last { Instant(u64::MAX) } else { now + PULL_AGAIN };
        self.pull = PullCursor::Asked(cursor, again);
        Some(cursor)
    }

    /// Accepts a reply with everything from `cursor` up to `next`. Without a payload there is
    /// nothing to replay. Returns `false` if the reply answers no outstanding pull.
    pub(super) fn receive(
        &mut self,
        cursor: KeyHash,
        next: Option<KeyHash>,
        payload: Option<Ticket>,
    ) -> bool {
        let PullCursor::Asked(asked, _) = self.pull else { return false };
        let is_step = next.is_none_or(|next| cursor < next && next <= self.range.last());
        if cursor != asked || !is_step {
            return false;
        }
        assert_eq!(self.received(), Some(cursor), "a pull follows the pieces received");
        self.pieces.push_back(PulledPiece { first: cursor, next, unreplayed: payload });
        self.pull = next.map_or(PullCursor::End, PullCursor::Next);
        true
    }

    /// Records that a piece has been replayed. A piece given up in the meantime is ignored.
    pub(super) fn replayed(&mut self, ticket: Ticket) {
        let mut pieces = self.pieces.iter_mut();
        if let Some(piece) = pieces.find(|piece| piece.unreplayed == Some(ticket)) {
            piece.unreplayed = None;
        }
    }

    /// Advances the progress as far as possible. Returns whether it moved.
    pub(super) fn advance(&mut self) -> bool {
        let (before, mut moved) = (self.progress, false);
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.unreplayed.is_none()) {
            assert_eq!(Some(piece.first), self.progress, "pieces follow each other without a gap");
            self.progress = piece.next;
            moved = true;
        }
        assert!(is_onward(before, self.progress), "{before:?} goes back to {:?}", self.progress);
        moved
    }

    /// Schedules another pull of a piece with a failed replay and of all later pieces. The pause
    /// before it lets the cause, such as full memory, pass.
    pub(super) fn pull_again(&mut self, now: Instant, ticket: Ticket) {
        if let Some(place) = self.pieces.iter().position(|piece| piece.unreplayed == Some(ticket)) {
            self.pull = PullCursor::Asked(self.pieces[place].first, now + PULL_AGAIN);
            self.pieces.truncate(place);
            assert!(
                is_onward(self.progress, self.received()),
                "a piece below the progress is pulled again"
            );
        }
    }

    pub(super) fn progress(&self) -> Option<KeyHash> {
        self.progress
    }

    /// Returns the range that still depends on the source.
    pub(super) fn remaining(&self) -> Option<HashRange> {
        self.progress.map(|first| HashRange::new(first, self.range.last()))
    }

    /// Returns when an outstanding pull is repeated.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.pull {
            PullCursor::Asked(_, again) => Some(again),
            PullCursor::Next(_) | PullCursor::End => None,
        }
    }

    /// Returns the number of pieces that wait for their replay.
    pub(super) fn unreplayed(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.unreplayed.is_some()).count()
    }

    /// Returns the end of the pieces received; `None`: the end of the partition.
    fn received(&self) -> Option<KeyHash> {
        self.pieces.back().map_or(self.progress, |piece| piece.next)
    }
}

/// Returns whether the cursor `next` is not before `cursor`; `None` is the end of the partition.
fn is_onward(cursor: Option<KeyHash>, next: Option<KeyHash>) -> bool {
    next.is_none() || cursor.is_some_and(|cursor| next.is_some_and(|next| cursor <= next))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(0);

    /// Pulls and receives `0-9`, `10-19` ... with tickets 0, 1 ...
    fn received(pieces: u64) -> PulledPartition {
        let mut partition = PulledPartition::new(HashRange::new(KeyHash(0), KeyHash(99)));
        for piece in 0..pieces {
            let cursor = partition.next_pull(NOW, 9).unwrap();
            assert!(receive(&mut partition, cursor.0, Some(cursor.0 + 10), piece));
        }
        partition
    }

    fn receive(
        partition: &mut PulledPartition,
        cursor: u64,
        next: Option<u64>,
        ticket: u64,
    ) -> bool {
        partition.receive(KeyHash(cursor), next.map(KeyHash), Some(Ticket(ticket)))
    }

    fn replay(partition: &mut PulledPartition, ticket: u64) -> bool {
        partition.replayed(Ticket(ticket));
        partition.advance()
    }

    #[test]
    #[should_panic(expected = "pieces follow each other without a gap")]
    fn progress_does_not_pass_a_gap() {
        let mut partition = received(2);
        partition.pieces.pop_front();
        replay(&mut partition, 1);
    }

    #[test]
    fn progress_waits_for_every_piece_before() {
        let mut partition = received(3);
        assert!(!replay(&mut partition, 1));
        assert!(!replay(&mut partition, 2));
        assert_eq!(partition.progress(), Some(KeyHash(0)), "received is not replayed");
        assert!(replay(&mut partition, 0));
        assert_eq!(partition.progress(), Some(KeyHash(30)));
        assert_eq!(partition.remaining(), Some(HashRange::new(KeyHash(30), KeyHash(99))));
    }

    #[test]
    fn a_partition_is_not_pulled_further_than_it_may_run_ahead() {
        let mut partition = received(2);
        assert_eq!(partition.next_pull(NOW, 2), None);
        replay(&mut partition, 1);
        assert_eq!(partition.next_pull(NOW, 2), Some(KeyHash(20)), "a replayed piece makes room");
        assert_eq!(partition.next_pull(NOW, 2), None, "one pull is outstanding");
        assert_eq!(partition.next_pull(NOW + PULL_AGAIN, 2), Some(KeyHash(20)), "it is repeated");
    }

    #[test]
    fn replies_that_do_not_fit_are_dropped() {
        let mut partition = received(1);
        assert!(!receive(&mut partition, 10, None, 7), "an unrequested reply");
        assert_eq!(partition.next_pull(NOW, 9), Some(KeyHash(10)));
        assert!(!receive(&mut partition, 0, Some(10), 7), "a repetition");
        assert!(!receive(&mut partition, 10, Some(10), 7), "no step");
        assert!(!receive(&mut partition, 10, Some(100), 7), "too far");
        assert!(receive(&mut partition, 10, None, 7));
        assert_eq!(partition.next_pull(NOW, 9), None, "the end has been received");
        assert!(replay(&mut partition, 0));
        assert!(replay(&mut partition, 7));
        assert_eq!(partition.progress(), None);
    }

    #[test]
    fn a_piece_without_records_waits_for_those_before_but_for_no_replay() {
        let mut partition = received(1);
        partition.next_pull(NOW, 9);
        assert!(partition.receive(KeyHash(10), None, None));
        assert!(!partition.advance());
        assert!(replay(&mut partition, 0));
        assert_eq!(partition.progress(), None);
    }

    #[test]
    fn a_spoiled_piece_is_pulled_again_with_all_behind_it() {
        let mut partition = received(3);
        assert!(replay(&mut partition, 0));
        partition.pull_again(NOW, Ticket(1));
        assert!(!replay(&mut partition, 2), "it was abandoned");
        assert_eq!(partition.next_pull(NOW, 9), None, "not at once");
        assert_eq!(partition.next_pull(NOW + PULL_AGAIN, 9), Some(KeyHash(10)));
        assert!(receive(&mut partition, 10, None, 3));
        assert!(replay(&mut partition, 3));
        assert_eq!(partition.progress(), None);
    }
}
