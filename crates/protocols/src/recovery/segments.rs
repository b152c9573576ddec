//! The segments of the logs that a part is recovered from, and the progress of reading them.
//!
//! A segment waits in the queue of the backup that it is to be read from, and is then *fetched* by
//! consecutive reads. The order, and the treatment of a backup that does not answer, are in
//! `docs/design/replication.md`, "A recovery master", items 1 to 5.

use super::events::RecoveryMasterEffect;
use super::places::{Absences, Flaw, LogSegment, ReadStage, ReplicaLocation, SegmentReplicas};
use super::timing::{
    AHEAD_MAX, BROKEN_AGAIN, FETCHES_FROM_ONE_MAX, FETCHES_MAX, READ_AGAIN, REPLAYS_MAX,
};
use crate::{Outbox, Ticket};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use types::{HashRange, Instant, ServerId, Version};
use wire::control::{RecoveryPartition, RecoverySegment};
use wire::manifest::SegmentContent;
use wire::peer::{RecoveryNext, RecoveryRead, RecoveryReply};
use wire::replica::ReplicaId;

/// The segments that one part is recovered from, with their state of reading.
#[derive(Debug)]
pub(super) struct SegmentReader {
    range: HashRange,
    /// The newest list.
    list: Option<SegmentList>,
    segments: BTreeMap<LogSegment, SegmentReplicas>,
    unread: usize,
    queues: BTreeMap<ServerId, BTreeSet<LogSegment>>,
    fetches: BTreeMap<LogSegment, Fetch>,
    stranded: BTreeSet<LogSegment>,
    replays: BTreeMap<Ticket, RunningReplay>,
    silent: BTreeSet<ServerId>,
    dead: BTreeSet<ServerId>,
    version: Version,
    /// Number of fetches so far, from which each fetch gets its name.
    fetches_begun: u64,
}

/// A list of the coordinator, as far as it has been received.
#[derive(Clone, Copy, Debug)]
struct SegmentList {
    number: u64,
    total: u32,
    named: u32,
}

/// A segment that is being read. The divergent bytes are read first. The whole segment follows;
/// its divergent entries are replayed by then.
#[derive(Debug)]
struct Fetch {
    name: u64,
    at: ReplicaLocation,
    /// The offset from which divergent bytes are being read; their entries must be replicated.
    divergent: Option<u32>,
    bulk: ReadCursor,
    /// Replies that wait for their replay.
    unreplayed: usize,
}

/// The state of the consecutive reads of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadCursor {
    /// The next read begins at this offset and has not been sent.
    Next(u32),
    /// The read has been sent.
    Asked {
        from: u32,
        /// The time at which the read is repeated, here or elsewhere.
        again: Instant,
        /// Set if the connection broke, so that a missing answer is not a silence.
        is_lost: bool,
    },
    /// The replica has been read to its end.
    End,
}

/// A payload that is being replayed.
#[derive(Clone, Copy, Debug)]
struct RunningReplay {
    segment: LogSegment,
    fetch: u64,
    at: ReplicaLocation,
}

impl SegmentReader {
    pub(super) fn new(range: HashRange) -> SegmentReader {
        SegmentReader {
            range,
            list: None,
            segments: BTreeMap::new(),
            unread: 0,
            queues: BTreeMap::new(),
            fetches: BTreeMap::new(),
            stranded: BTreeSet::new(),
            replays: BTreeMap::new(),
            silent: BTreeSet::new(),
            dead: BTreeSet::new(),
            version: Version(0),
            fetches_begun: 0,
        }
    }

    /// Checks that every unread segment waits in exactly one place.
    pub(super) fn check(&self) {
        let queued: usize = self.queues.values().map(BTreeSet::len).sum();
        assert_eq!(
            queued + self.fetches.len() + self.stranded.len(),
            self.unread,
            "an unread segment is neither queued, fetched nor stranded"
        );
        debug_assert_eq!(
            self.segments.values().filter(|it| it.stage != ReadStage::Read).count(),
            self.unread,
            "the number of unread segments is wrong"
        );
        assert!(self.queues.values().all(|queue| !queue.is_empty()), "a queue is empty");
        assert!(self.dead.is_disjoint(&self.silent), "a dead backup is silent");
    }

    /// Processes some segments of a list. Until a newer list is complete, reading of the older
    /// list's segments continues.
    pub(super) fn add_list(&mut self, part: &RecoveryPartition) {
        let new = SegmentList { number: part.list, total: part.segments_total, named: 0 };
        let mut list = self.list.filter(|list| list.number >= part.list).unwrap_or(new);
        if list.number > part.list {
            return;
        }
        for named in &part.segments {
            list.named += u32::from(self.add_segment(list.number, named));
        }
        assert!(
            self.list.is_none_or(|before| before.number <= list.number),
            "list {} is older than the last one",
            list.number
        );
        self.list = Some(list);
        if list.named == list.total {
            self.remove_dropped(list.number);
        }
    }

    /// Processes one segment of a list. Returns `false` if the list has named it before.
    fn add_segment(&mut self, list: u64, named: &RecoverySegment) -> bool {
        let id = LogSegment { log: named.log, segment: named.segment };
        let is_new = !self.segments.contains_key(&id);
        let segment = self.segments.entry(id).or_insert_with(SegmentReplicas::new);
        if !is_new && segment.list == list {
            return false;
        }
        self.unread += usize::from(is_new);
        segment.update(list, named);
        match segment.stage {
            ReadStage::Queued(_) | ReadStage::Stranded => self.queue(id),
            ReadStage::Fetched | ReadStage::Read => {}
        }
        true
    }

    /// Removes the segments that a newer, complete list no longer names.
    fn remove_dropped(&mut self, list: u64) {
        let old =
            self.segments.iter().filter(|(_, it)| it.list < list && it.stage != ReadStage::Read);
        for id in old.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.dequeue(id);
            self.segments.remove(&id);
            self.unread -= 1;
        }
    }

    /// Removes a segment from the queue or set in which it waits.
    fn dequeue(&mut self, id: LogSegment) {
        match self.segments[&id].stage {
            ReadStage::Queued(backup) => {
                if let Some(queue) = self.queues.get_mut(&backup) {
                    queue.remove(&id);
                    if queue.is_empty() {
                        self.queues.remove(&backup);
                    }
                }
            }
            ReadStage::Fetched => drop(self.fetches.remove(&id)),
            ReadStage::Stranded => drop(self.stranded.remove(&id)),
            ReadStage::Read => {}
        }
    }

    /// Queues a segment at the backup that it is to be read from next.
    fn queue(&mut self, id: LogSegment) {
        self.dequeue(id);
        let absences = Absences { dead: &self.dead, silent: &self.silent };
        let Some(segment) = self.segments.get_mut(&id) else { return };
        match segment.choose(&absences) {
            Some(ReplicaLocation { backup, .. }) => {
                segment.stage = ReadStage::Queued(backup);
                self.queues.entry(backup).or_default().insert(id);
            }
            None => {
                segment.stage = ReadStage::Stranded;
                self.stranded.insert(id);
            }
        }
    }

    fn queue_all_of(&mut self, backup: ServerId) {
        let queue = self.queues.get(&backup).cloned().unwrap_or_default();
        queue.into_iter().for_each(|id| self.queue(id));
    }

    /// Marks a place as unusable for a segment, and queues the segment elsewhere if necessary.
    fn give_up(&mut self, id: LogSegment, at: ReplicaLocation, flaw: Flaw) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        segment.record_flaw(at, flaw);
        let is_fetched = self.fetches.get(&id).is_some_and(|fetch| fetch.at == at);
        let is_queued = segment.stage == ReadStage::Queued(at.backup);
        if is_fetched || is_queued {
            self.queue(id);
        }
    }

    /// Processes an answer of a backup. Returns `false` if it answers no outstanding read.
    pub(super) fn replied(
        &mut self,
        from: ServerId,
        reply: &RecoveryReply,
        payload: Option<Ticket>,
        out: &mut Outbox<RecoveryMasterEffect>,
    ) -> bool {
        self.silent.remove(&from);
        let ReplicaId { log, segment, epoch } = reply.replica;
        let id = LogSegment { log, segment };
        let at = ReplicaLocation { backup: from, epoch };
        let is_asked = |fetch: &&mut Fetch| {
            let is_next =
                matches!(fetch.bulk, ReadCursor::Asked { from, .. } if from == reply.from);
            fetch.at == at && is_next && reply.range == self.range
        };
        let Some(fetch) = self.fetches.get_mut(&id).filter(is_asked) else { return false };
        assert!(!self.dead.contains(&from), "{from} is dead and a segment is read from it");
        let Some(segment) = self.segments.get_mut(&id) else { return false };
        segment.record_answer(at);
        fetch.bulk = match reply.next {
            RecoveryNext::From(next) if next > reply.from => ReadCursor::Next(next),
            RecoveryNext::End { length, crc, version }
                if segment.may_end(at, SegmentContent { length, crc }) =>
            {
                self.version = self.version.max(version);
                ReadCursor::End
            }
            RecoveryNext::From(_) | RecoveryNext::End { .. } => {
                self.give_up(id, at, Flaw::Differs);
                return false;
            }
            RecoveryNext::Missing => {
                self.give_up(id, at, Flaw::Missing);
                return false;
            }
        };
        if let Some(ticket) = payload {
            fetch.unreplayed += 1;
            let replay = RunningReplay { segment: id, fetch: fetch.name, at };
            let before = self.replays.insert(ticket, replay);
            assert!(before.is_none(), "payload {ticket} is replayed twice");
            let is_common = fetch.divergent.is_none() || planted::is(Bug::DivergentShown);
            out.push(RecoveryMasterEffect::Replay { ticket, is_common });
        }
        self.finish(id);
        true
    }

    /// Completes a segment or its divergent part if everything read of it is replayed.
    fn finish(&mut self, id: LogSegment) {
        let is_replayed =
            |fetch: &&mut Fetch| fetch.bulk == ReadCursor::End && fetch.unreplayed == 0;
        let Some(fetch) = self.fetches.get_mut(&id).filter(is_replayed) else { return };
        if let Some(1..) = fetch.divergent.take() {
            fetch.bulk = ReadCursor::Next(0);
            return;
        }
        self.dequeue(id);
        let segment = self.segments.get_mut(&id);
        segment.into_iter().for_each(|segment| segment.stage = ReadStage::Read);
        self.unread -= 1;
    }

    pub(super) fn replayed(&mut self, ticket: Ticket) {
        let Some(RunningReplay { segment, fetch: name, .. }) = self.replays.remove(&ticket) else {
            return;
        };
        // The payload may belong to an earlier fetch of the segment.
        if let Some(fetch) = self.fetches.get_mut(&segment).filter(|fetch| fetch.name == name) {
            assert!(fetch.unreplayed > 0, "payload {ticket} is not of this fetch");
            fetch.unreplayed -= 1;
            self.finish(segment);
        }
    }

    /// Handles a payload that does not decode.
    pub(super) fn damaged(&mut self, ticket: Ticket) {
        let Some(RunningReplay { segment, at, .. }) = self.replays.remove(&ticket) else { return };
        self.give_up(segment, at, Flaw::Damaged);
    }

    pub(super) fn connection_lost(&mut self, now: Instant, backup: ServerId) {
        for fetch in self.fetches.values_mut().filter(|fetch| fetch.at.backup == backup) {
            if let ReadCursor::Asked { again, is_lost, .. } = &mut fetch.bulk {
                *again = (*again).min(now + BROKEN_AGAIN);
                *is_lost = true;
            }
        }
    }

    pub(super) fn knows_dead(&self, server: ServerId) -> bool {
        self.dead.contains(&server)
    }

    pub(super) fn died(&mut self, backup: ServerId) {
        self.dead.insert(backup);
        self.silent.remove(&backup);
        let held = self.fetches.iter().filter(|(_, fetch)| fetch.at.backup == backup);
        let held: Vec<LogSegment> = held.map(|(id, _)| *id).collect();
        held.into_iter().for_each(|id| self.queue(id));
        self.queue_all_of(backup);
    }

    /// Handles overdue reads, starts fetches and sends the reads that are due.
    pub(super) fn reconcile(&mut self, now: Instant, out: &mut Outbox<RecoveryMasterEffect>) {
        let is_due =
            |fetch: &Fetch| matches!(fetch.bulk, ReadCursor::Asked { again, .. } if again <= now);
        let due = self.fetches.iter().filter(|(_, fetch)| is_due(fetch));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.unanswered(id);
        }
        while self.fetches.len() < FETCHES_MAX
            && let Some(id) = self.next_queued()
        {
            self.fetch(id);
        }
        assert!(self.fetches.len() <= FETCHES_MAX, "{} segments are read", self.fetches.len());
        assert!(
            self.replays.len() <= REPLAYS_MAX + FETCHES_MAX,
            "{} payloads wait for their replay",
            self.replays.len()
        );
        // Payloads of abandoned fetches are still waiting for their replay and count too.
        let is_behind = self.replays.len() >= REPLAYS_MAX;
        for (id, fetch) in self.fetches.iter_mut().filter(|_| !is_behind) {
            if let ReadCursor::Next(from) = fetch.bulk
                && fetch.unreplayed < AHEAD_MAX
            {
                let is_last = planted::is(Bug::RecoveryReadNotRepeated);
                let again = if is_last { Instant(u64::MAX) } else { now + READ_AGAIN };
                fetch.bulk = ReadCursor::Asked { from, again, is_lost: false };
                let ReplicaLocation { backup, epoch } = fetch.at;
                let replica = ReplicaId { log: id.log, segment: id.segment, epoch };
                let read = RecoveryRead { replica, range: self.range, from };
                out.push(RecoveryMasterEffect::Read { backup, read });
            }
        }
    }

    /// Handles a read without an answer in time: it is repeated, elsewhere if possible.
    fn unanswered(&mut self, id: LogSegment) {
        let (Some(fetch), Some(segment)) = (self.fetches.get_mut(&id), self.segments.get_mut(&id))
        else {
            return;
        };
        let ReadCursor::Asked { from, is_lost, .. } = fetch.bulk else { return };
        let at = fetch.at;
        fetch.bulk = ReadCursor::Next(from);
        if is_lost {
            return;
        }
        segment.record_silence(at);
        if self.silent.insert(at.backup) {
            self.queue_all_of(at.backup);
        }
        let absences = Absences { dead: &self.dead, silent: &self.silent };
        if self.segments[&id].choose(&absences) != Some(at) {
            self.queue(id);
        }
    }

    /// Returns the next segment to fetch, from the queue of the backup with the fewest fetches.
    fn next_queued(&self) -> Option<LogSegment> {
        let count =
            |backup| self.fetches.values().filter(|fetch| fetch.at.backup == backup).count();
        let queues = self.queues.iter().filter_map(|(&backup, queue)| {
            let (is_silent, count) = (self.silent.contains(&backup), count(backup));
            let first = *queue.first()?;
            let most = if is_silent { 1 } else { FETCHES_FROM_ONE_MAX };
            (count < most).then_some(((is_silent, count, backup), first))
        });
        queues.min().map(|(_, id)| id)
    }

    fn fetch(&mut self, id: LogSegment) {
        let absences = Absences { dead: &self.dead, silent: &self.silent };
        let at = self.segments[&id].choose(&absences);
        assert!(at.is_some(), "{} is queued, but no place has it", id.segment);
        self.dequeue(id);
        // The set of silent backups may have changed since the segment was queued.
        let (Some(at), Some(segment)) = (at, self.segments.get_mut(&id)) else { return };
        segment.stage = ReadStage::Fetched;
        self.fetches_begun += 1;
        let (name, divergent) = (self.fetches_begun, segment.divergent(at));
        let bulk = ReadCursor::Next(divergent.unwrap_or(0));
        let fetch = Fetch { name, at, divergent, bulk, unreplayed: 0 };
        let before = self.fetches.insert(id, fetch);
        assert!(before.is_none(), "{} is read twice", id.segment);
    }

    /// Returns whether every segment of a complete list is replayed and no replay is running.
    pub(super) fn is_read(&self) -> bool {
        let is_whole = self.list.is_some_and(|list| list.named == list.total);
        is_whole && self.unread == 0 && self.replays.is_empty()
    }

    /// Returns the reason why the log cannot be read, if there is one.
    pub(super) fn complaint(&self) -> Option<String> {
        let list = self.list?.number;
        let mut stranded = self.stranded.iter().map(|id| (*id, &self.segments[id]));
        // A segment of an older list may still be named again, with other places.
        let is_hopeless =
            |segment: &SegmentReplicas| segment.list == list && segment.is_used_up(&self.dead);
        let hopeless = stranded.find(|(_, segment)| is_hopeless(segment));
        hopeless.map(|(id, segment)| segment.complaint(id))
    }

    /// Returns the payloads with unfinished replays.
    pub(super) fn replays(&self) -> BTreeSet<Ticket> {
        self.replays.keys().copied().collect()
    }

    /// Returns an upper bound of the versions in everything read.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Returns the number of segments that are read, and the number of known segments.
    pub(super) fn progress(&self) -> (usize, usize) {
        let total = self.list.map_or(0, |list| list.total as usize).max(self.segments.len());
        (self.segments.len() - self.unread, total)
    }

    /// Returns the bytes of all segments, over all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| u64::from(segment.length())).sum()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let asked = self.fetches.values().filter_map(|fetch| match fetch.bulk {
            ReadCursor::Asked { again, .. } => Some(again),
            ReadCursor::Next(_) | ReadCursor::End => None,
        });
        asked.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "an unread segment is neither queued, fetched nor stranded")]
    fn an_unread_segment_waits_somewhere() {
        let mut reader = SegmentReader::new(HashRange::ALL);
        reader.unread = 1;
        reader.check();
    }
}
