//! The segments of the logs that a part is recovered from, as far as they have been read.
//!
//! A segment waits in the queue of the backup where it is to be read next. A few are *fetched* at a
//! time, each in reads that follow one another, from whoever has the fewest fetches: so all backups
//! are read from, and each in the order of its segments. Masters of other parts go the same way, so
//! that a backup reads a segment from its disk once for all of them.
//!
//! A backup that does not answer is *silent* until it does: what waits for it is read elsewhere, and
//! for what is nowhere else it is asked one segment at a time.

use super::events::MasterEffect;
use super::places::{Absences, At, Flaw, Segment, Stage};
use super::timing::{
    AHEAD_MAX, BROKEN_AGAIN, FETCHES_FROM_ONE_MAX, FETCHES_MAX, READ_AGAIN, REPLAYS_MAX,
};
use crate::{Outbox, Ticket};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use types::{HashRange, Instant, SegmentId, ServerId, Version};
use wire::control::{RecoveryPart, RecoverySegment};
use wire::directory::Content;
use wire::peer::{RecoveryNext, RecoveryRead, RecoveryReply};
use wire::replica::ReplicaId;

/// The segments that one part is recovered from, and how far each has been read.
#[derive(Debug)]
pub(super) struct Segments {
    range: HashRange,
    /// The newest one.
    list: Option<List>,
    segments: BTreeMap<Id, Segment>,
    unread: usize,
    queues: BTreeMap<ServerId, BTreeSet<Id>>,
    fetches: BTreeMap<Id, Fetch>,
    stranded: BTreeSet<Id>,
    replays: BTreeMap<Ticket, Replay>,
    silent: BTreeSet<ServerId>,
    dead: BTreeSet<ServerId>,
    version: Version,
    /// Fetches so far: their names.
    fetches_begun: u64,
}

/// Whose log, and which segment of it.
type Id = (ServerId, SegmentId);

/// One list of the coordinator's, as far as it has come.
#[derive(Clone, Copy, Debug)]
struct List {
    number: u64,
    total: u32,
    named: u32,
}

/// A segment that is being read: what is unsettled, and then everything, of which that is known by
/// then.
#[derive(Debug)]
struct Fetch {
    name: u64,
    at: At,
    /// What is read first: from here on everything has to be kept.
    unsettled: Option<u32>,
    bulk: Bulk,
    /// Replies that wait for their replay.
    unreplayed: usize,
}

/// What comes next of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bulk {
    /// What begins here is to be asked for.
    Next(u32),
    /// It has been asked for.
    Asked {
        from: u32,
        /// When it is asked for again, here or elsewhere.
        again: Instant,
        /// The connection broke: no answer does not mean that nobody is there.
        is_lost: bool,
    },
    /// Nothing: the replica has ended.
    End,
}

/// A payload that is being replayed.
#[derive(Clone, Copy, Debug)]
struct Replay {
    segment: Id,
    fetch: u64,
    at: At,
}

impl Segments {
    pub(super) fn new(range: HashRange) -> Segments {
        Segments {
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

    /// Some segments of a list. While a newer list is not whole, what the older one named is read on.
    pub(super) fn name(&mut self, part: &RecoveryPart) {
        let new = List { number: part.list, total: part.segments_total, named: 0 };
        let mut list = self.list.filter(|list| list.number >= part.list).unwrap_or(new);
        if list.number > part.list {
            return;
        }
        for named in &part.segments {
            list.named += u32::from(self.name_one(list.number, named));
        }
        self.list = Some(list);
        if list.named == list.total {
            self.forget_unnamed(list.number);
        }
    }

    /// `false`: the list has named it before.
    fn name_one(&mut self, list: u64, named: &RecoverySegment) -> bool {
        let id = (named.log, named.segment);
        let is_new = !self.segments.contains_key(&id);
        let segment = self.segments.entry(id).or_insert_with(Segment::new);
        if !is_new && segment.list == list {
            return false;
        }
        self.unread += usize::from(is_new);
        segment.update(list, named);
        match segment.stage {
            Stage::Queued(_) | Stage::Stranded => self.queue(id),
            Stage::Fetched | Stage::Read => {}
        }
        true
    }

    /// The list is whole: what only older ones have named is not needed.
    fn forget_unnamed(&mut self, list: u64) {
        let old = self.segments.iter().filter(|(_, it)| it.list < list && it.stage != Stage::Read);
        for id in old.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.take_out(id);
            self.segments.remove(&id);
            self.unread -= 1;
        }
    }

    /// Takes a segment away from wherever it waits.
    fn take_out(&mut self, id: Id) {
        match self.segments[&id].stage {
            Stage::Queued(backup) => {
                if let Some(queue) = self.queues.get_mut(&backup) {
                    queue.remove(&id);
                    if queue.is_empty() {
                        self.queues.remove(&backup);
                    }
                }
            }
            Stage::Fetched => drop(self.fetches.remove(&id)),
            Stage::Stranded => drop(self.stranded.remove(&id)),
            Stage::Read => {}
        }
    }

    /// Lets a segment wait where it is to be read next.
    fn queue(&mut self, id: Id) {
        self.take_out(id);
        let absences = Absences { dead: &self.dead, silent: &self.silent };
        let Some(segment) = self.segments.get_mut(&id) else { return };
        match segment.choose(&absences) {
            Some((backup, _)) => {
                segment.stage = Stage::Queued(backup);
                self.queues.entry(backup).or_default().insert(id);
            }
            None => {
                segment.stage = Stage::Stranded;
                self.stranded.insert(id);
            }
        }
    }

    fn queue_all_of(&mut self, backup: ServerId) {
        let queue = self.queues.get(&backup).cloned().unwrap_or_default();
        queue.into_iter().for_each(|id| self.queue(id));
    }

    /// A segment cannot be read from this place. If that is where it is being read, it will be read
    /// elsewhere.
    fn give_up(&mut self, id: Id, at: At, flaw: Flaw) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        segment.note_flaw(at, flaw);
        let is_fetched = self.fetches.get(&id).is_some_and(|fetch| fetch.at == at);
        let is_queued = segment.stage == Stage::Queued(at.0);
        if is_fetched || is_queued {
            self.queue(id);
        }
    }

    /// An answer of a backup. `false`: it is no answer to what is asked.
    pub(super) fn replied(
        &mut self,
        from: ServerId,
        reply: &RecoveryReply,
        payload: Option<Ticket>,
        out: &mut Outbox<MasterEffect>,
    ) -> bool {
        self.silent.remove(&from);
        let ReplicaId { log, segment, epoch } = reply.replica;
        let (id, at) = ((log, segment), (from, epoch));
        let is_asked = |fetch: &&mut Fetch| {
            let is_next = matches!(fetch.bulk, Bulk::Asked { from, .. } if from == reply.from);
            fetch.at == at && is_next && reply.range == self.range
        };
        let Some(fetch) = self.fetches.get_mut(&id).filter(is_asked) else { return false };
        let Some(segment) = self.segments.get_mut(&id) else { return false };
        segment.note_answer(at);
        fetch.bulk = match reply.next {
            RecoveryNext::From(next) if next > reply.from => Bulk::Next(next),
            RecoveryNext::End { length, crc, version }
                if segment.may_end(at, Content { length, crc }) =>
            {
                self.version = self.version.max(version);
                Bulk::End
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
            let replay = Replay { segment: id, fetch: fetch.name, at };
            self.replays.insert(ticket, replay);
            let is_settled = fetch.unsettled.is_none() || planted::is(Bug::UnsettledShown);
            out.push(MasterEffect::Replay { ticket, is_settled });
        }
        self.finish(id);
        true
    }

    /// If all of a segment is replayed it has been read.
    fn finish(&mut self, id: Id) {
        let is_replayed = |fetch: &&mut Fetch| fetch.bulk == Bulk::End && fetch.unreplayed == 0;
        let Some(fetch) = self.fetches.get_mut(&id).filter(is_replayed) else { return };
        if let Some(1..) = fetch.unsettled.take() {
            fetch.bulk = Bulk::Next(0);
            return;
        }
        self.take_out(id);
        let segment = self.segments.get_mut(&id);
        segment.into_iter().for_each(|segment| segment.stage = Stage::Read);
        self.unread -= 1;
    }

    pub(super) fn replayed(&mut self, ticket: Ticket) {
        let Some(Replay { segment, fetch: name, .. }) = self.replays.remove(&ticket) else {
            return;
        };
        // It may have been of an earlier attempt.
        if let Some(fetch) = self.fetches.get_mut(&segment).filter(|fetch| fetch.name == name) {
            fetch.unreplayed -= 1;
            self.finish(segment);
        }
    }

    /// A payload is damaged.
    pub(super) fn damaged(&mut self, ticket: Ticket) {
        let Some(Replay { segment, at, .. }) = self.replays.remove(&ticket) else { return };
        self.give_up(segment, at, Flaw::Damaged);
    }

    pub(super) fn connection_lost(&mut self, now: Instant, backup: ServerId) {
        for fetch in self.fetches.values_mut().filter(|fetch| fetch.at.0 == backup) {
            if let Bulk::Asked { again, is_lost, .. } = &mut fetch.bulk {
                *again = (*again).min(now + BROKEN_AGAIN);
                *is_lost = true;
            }
        }
    }

    pub(super) fn died(&mut self, backup: ServerId) {
        self.dead.insert(backup);
        self.silent.remove(&backup);
        let held = self.fetches.iter().filter(|(_, fetch)| fetch.at.0 == backup);
        let held: Vec<Id> = held.map(|(id, _)| *id).collect();
        held.into_iter().for_each(|id| self.queue(id));
        self.queue_all_of(backup);
    }

    /// Asks for what is to be asked for now.
    pub(super) fn settle(&mut self, now: Instant, out: &mut Outbox<MasterEffect>) {
        let is_due =
            |fetch: &Fetch| matches!(fetch.bulk, Bulk::Asked { again, .. } if again <= now);
        let due = self.fetches.iter().filter(|(_, fetch)| is_due(fetch));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.unanswered(id);
        }
        while self.fetches.len() < FETCHES_MAX
            && let Some(id) = self.next_queued()
        {
            self.fetch(id);
        }
        // Those of fetches that were given up wait as well.
        let is_behind = self.replays.len() >= REPLAYS_MAX;
        for ((log, segment), fetch) in self.fetches.iter_mut().filter(|_| !is_behind) {
            if let Bulk::Next(from) = fetch.bulk
                && fetch.unreplayed < AHEAD_MAX
            {
                fetch.bulk = Bulk::Asked { from, again: now + READ_AGAIN, is_lost: false };
                let (backup, epoch) = fetch.at;
                let replica = ReplicaId { log: *log, segment: *segment, epoch };
                let read = RecoveryRead { replica, range: self.range, from };
                out.push(MasterEffect::Read { backup, read });
            }
        }
    }

    /// A read was not answered in time: it is made again, elsewhere if possible.
    fn unanswered(&mut self, id: Id) {
        let (Some(fetch), Some(segment)) = (self.fetches.get_mut(&id), self.segments.get_mut(&id))
        else {
            return;
        };
        let Bulk::Asked { from, is_lost, .. } = fetch.bulk else { return };
        let at = fetch.at;
        fetch.bulk = Bulk::Next(from);
        if is_lost {
            return;
        }
        segment.note_silence(at);
        if self.silent.insert(at.0) {
            self.queue_all_of(at.0);
        }
        let absences = Absences { dead: &self.dead, silent: &self.silent };
        if self.segments[&id].choose(&absences) != Some(at) {
            self.queue(id);
        }
    }

    /// The segment to be fetched next: the first one that waits for whoever has least to do.
    fn next_queued(&self) -> Option<Id> {
        let count = |backup| self.fetches.values().filter(|fetch| fetch.at.0 == backup).count();
        let queues = self.queues.iter().filter_map(|(&backup, queue)| {
            let (is_silent, count) = (self.silent.contains(&backup), count(backup));
            let first = *queue.first()?;
            let most = if is_silent { 1 } else { FETCHES_FROM_ONE_MAX };
            (count < most).then_some(((is_silent, count, backup), first))
        });
        queues.min().map(|(_, id)| id)
    }

    fn fetch(&mut self, id: Id) {
        let absences = Absences { dead: &self.dead, silent: &self.silent };
        let at = self.segments[&id].choose(&absences);
        self.take_out(id);
        // Others may have become silent, or heard from again, since it was queued.
        let (Some(at), Some(segment)) = (at, self.segments.get_mut(&id)) else { return };
        segment.stage = Stage::Fetched;
        self.fetches_begun += 1;
        let (name, unsettled) = (self.fetches_begun, segment.unsettled(at));
        let bulk = Bulk::Next(unsettled.unwrap_or(0));
        let fetch = Fetch { name, at, unsettled, bulk, unreplayed: 0 };
        self.fetches.insert(id, fetch);
    }

    /// Whether every segment of a whole list is replayed, and nothing else is being replayed.
    pub(super) fn is_read(&self) -> bool {
        let is_whole = self.list.is_some_and(|list| list.named == list.total);
        is_whole && self.unread == 0 && self.replays.is_empty()
    }

    /// Why the log cannot be read, if it cannot.
    pub(super) fn complaint(&self) -> Option<String> {
        let list = self.list?.number;
        let mut stranded = self.stranded.iter().map(|id| (*id, &self.segments[id]));
        // One of an older list may be named again, at other places.
        let is_hopeless =
            |segment: &Segment| segment.list == list && segment.is_used_up(&self.dead);
        let hopeless = stranded.find(|(_, segment)| is_hopeless(segment));
        hopeless.map(|(id, segment)| segment.complaint(id))
    }

    /// Payloads whose replay is not over.
    pub(super) fn replays(&self) -> BTreeSet<Ticket> {
        self.replays.keys().copied().collect()
    }

    /// Not below any version in what has been read.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Segments that have been read, and how many there are as far as is known.
    pub(super) fn progress(&self) -> (usize, usize) {
        let total = self.list.map_or(0, |list| list.total as usize).max(self.segments.len());
        (self.segments.len() - self.unread, total)
    }

    /// Bytes of all segments, of every range.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| u64::from(segment.length())).sum()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let asked = self.fetches.values().filter_map(|fetch| match fetch.bulk {
            Bulk::Asked { again, .. } => Some(again),
            Bulk::Next(_) | Bulk::End => None,
        });
        asked.min()
    }
}
