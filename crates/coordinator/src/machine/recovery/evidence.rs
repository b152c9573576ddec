//! What is known of a dead server's log: who holds which replicas, and what its directory says.
//!
//! All of it was heard, and none is written down: a coordinator that starts again asks again, and
//! backups that are fenced stay so.
//!
//! The proof (rule 8 of `docs/design/replication.md`): the directory is that of the chain's segment
//! that was noted last, of which so many replicas were fenced as its number tells, and each segment
//! that it names is held by somebody who is there. A closed one with the length that it had; an open
//! one with any, since while the directory calls a segment open each of its replicas has everything
//! that was acknowledged.

use crate::records::AcceptedLoss;
use planted::Bug;
use protocols::directory::Directory;
use protocols::replication::{Quorum, fences};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;
use types::limits::SEGMENT_BYTES;
use types::{Instant, SegmentId, ServerId, UnixMillis};
use wire::control::{DirectoryPlace, PLACES_MAX, RecoverySegment, ReplicaInfo, ReplicaPlace};
use wire::directory::Content;
use wire::replica::ReplicaEpoch;

/// From the moment at which as many backups of the chain were fenced as it takes until their master
/// serves nothing more:
/// the read lease of 100 ms, and a twentieth for clocks that run unevenly.
pub(super) const LEASE_WAIT: Duration = Duration::from_millis(105);

/// Replicas of one log that one backup is believed to hold: 8 TiB of it, and far more than a disk has
/// files.
const REPLICAS_OF_LOG_MAX: usize = 1 << 20;

/// Longest time that the dead server's expiry clock can have gained since it was last told to any
/// backup of the chain: its lease has run out by then.
const CLOCK_WAIT: Duration = protocols::replication::timing::CLOCK_LEASE;

/// A replica's segment and epoch.
type ReplicaName = (SegmentId, ReplicaEpoch);

/// What was heard of one log.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    holders: BTreeMap<ServerId, Holder>,
    directory: Option<Directory>,
    reading: Option<Reading>,
    /// Replicas that could not be read. The same server does not get them back; a process that is
    /// started on its disk again is another one, and tells what it finds.
    unreadable: BTreeSet<(ServerId, ReplicaName)>,
    lease: Lease,
    /// The latest expiry clock that a backup has heard of.
    clock: UnixMillis,
    freed: BTreeSet<ServerId>,
    /// Why a part was last handed back.
    pub(super) refusal: String,
}

/// What one backup has said.
#[derive(Debug, Default)]
struct Holder {
    /// Lengths of replicas of the log's segments.
    replicas: BTreeMap<ReplicaName, u32>,
    /// Lengths of replicas of the chain's segments.
    chain: BTreeMap<ReplicaName, u32>,
    /// Those of both that a loss of power may have shortened.
    short: BTreeSet<(bool, ReplicaName)>,
    /// Replicas told of in the messages of the report that is coming in; `None`: one is missing.
    told: Option<u32>,
    /// Whether it has said everything.
    is_whole: bool,
}

impl Holder {
    /// Takes a message of a report. The report is whole when its last message has come behind all
    /// those before; else the backup is asked once more.
    fn take(&mut self, report: FencedReport<'_>) {
        let FencedReport { first, replicas, clock: _, more } = report;
        for replica in replicas {
            let of = if replica.is_directory { &mut self.chain } else { &mut self.replicas };
            if of.len() < REPLICAS_OF_LOG_MAX {
                let name = (replica.segment, replica.epoch);
                of.insert(name, replica.length);
                if replica.may_be_short {
                    self.short.insert((replica.is_directory, name));
                }
            }
        }
        let follows = first == 0 || self.told == Some(first);
        let told = u32::try_from(replicas.len()).ok().and_then(|count| first.checked_add(count));
        self.told = told.filter(|_| follows);
        self.is_whole |= follows && !more;
    }
}

/// One message of what a fenced backup holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FencedReport<'r> {
    /// Replicas that the messages before had.
    pub(crate) first: u32,
    pub(crate) replicas: &'r [ReplicaInfo],
    /// The latest expiry clock that the backup has heard of.
    pub(crate) clock: UnixMillis,
    /// Another message follows.
    pub(crate) more: bool,
}

/// The replica of the directory that is being read.
#[derive(Debug)]
struct Reading {
    backup: ServerId,
    replica: ReplicaName,
    length: u32,
    bodies: Vec<Vec<u8>>,
    /// The last body goes on.
    is_cut: bool,
}

impl Reading {
    /// What is here already.
    fn place(&self) -> DirectoryPlace {
        match self.bodies.last().filter(|_| self.is_cut) {
            Some(last) => {
                let pieces = self.bodies.len() as u32 - 1;
                DirectoryPlace { pieces, bytes: last.len() as u32 }
            }
            None => DirectoryPlace { pieces: self.bodies.len() as u32, bytes: 0 },
        }
    }

    fn take(&mut self, mut bodies: Vec<Vec<u8>>, next: Option<DirectoryPlace>) {
        if let Some(last) = self.bodies.last_mut().filter(|_| self.is_cut)
            && !bodies.is_empty()
        {
            last.append(&mut bodies.remove(0));
        }
        self.bodies.append(&mut bodies);
        self.is_cut = next.is_some_and(|next| next.bytes > 0);
    }
}

/// Whether the dead server, should it live, may still serve reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lease {
    /// Too few backups of the chain are known to be fenced.
    #[default]
    Held,
    Until(Instant),
    Over,
}

/// What the evidence is judged by.
pub(super) struct Judged<'l> {
    /// The chain's segment that was noted last.
    pub(super) chain: Option<SegmentId>,
    pub(super) loss: &'l AcceptedLoss,
    /// Replicas of each segment of the log, if there were servers for them.
    pub(super) replicas: usize,
    /// Who can be asked and read from.
    pub(super) connected: BTreeSet<ServerId>,
}

/// Whether the log is whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Somebody who is connected has not said what it holds.
    Collecting,
    /// The directory has not been read.
    ReadingDirectory,
    /// Nobody has the directory.
    DirectoryMissing,
    /// Nobody has these.
    SegmentsMissing(Vec<SegmentId>),
    Whole,
}

/// What is to be asked of whom to know more of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryQuestion {
    pub(crate) backup: ServerId,
    pub(crate) replica: ReplicaName,
    /// What is here already.
    pub(crate) first: DirectoryPlace,
}

impl Evidence {
    /// A backup says that it is fenced, and what it holds. `chain` is the segment noted last.
    pub(super) fn fenced(
        &mut self,
        now: Instant,
        backup: ServerId,
        report: FencedReport<'_>,
        chain: Option<SegmentId>,
    ) {
        self.clock = self.clock.max(report.clock);
        self.holders.entry(backup).or_default().take(report);
        let is_met = chain.is_some_and(|chain| self.lengths(chain, true).len() >= fences(chain));
        if self.lease == Lease::Held && is_met {
            self.lease = Lease::Until(now + LEASE_WAIT);
        }
    }

    /// A backup cannot read a replica that it has told of. Returns whether that is news.
    pub(super) fn damaged(&mut self, backup: ServerId, replica: ReplicaName) -> bool {
        // Nobody has so many, and whoever says so is believed no more.
        let is_new = self.unreadable.len() < REPLICAS_OF_LOG_MAX
            && self.unreadable.insert((backup, replica));
        if is_new {
            let segment = replica.0;
            tracing::warn!(%backup, %segment, "a replica cannot be read: it is left out");
        }
        is_new
    }

    /// The dead server has judged expiry by no later clock than this.
    pub(super) fn clock_floor(&self) -> UnixMillis {
        UnixMillis(self.clock.0.saturating_add(CLOCK_WAIT.as_millis() as u64))
    }

    /// Whether the backup has said everything that it holds.
    pub(super) fn has_answered(&self, backup: ServerId) -> bool {
        self.holders.get(&backup).is_some_and(|holder| holder.is_whole)
    }

    /// A backup is dead. Returns whether it held anything.
    pub(super) fn forget(&mut self, backup: ServerId) -> bool {
        if self.reading.as_ref().is_some_and(|reading| reading.backup == backup) {
            self.reading = None;
        }
        self.holders.remove(&backup).is_some_and(|holder| !holder.replicas.is_empty())
    }

    /// A backup holds nothing of the log any more.
    pub(super) fn freed(&mut self, backup: ServerId) {
        self.freed.insert(backup);
    }

    pub(super) fn has_freed(&self, backup: ServerId) -> bool {
        self.freed.contains(&backup)
    }

    /// Time has passed.
    pub(super) fn pass(&mut self, now: Instant) {
        if let Lease::Until(end) = self.lease
            && end <= now
        {
            self.lease = Lease::Over;
        }
    }

    /// When the lease will be over, if that is known and has not passed.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        match self.lease {
            Lease::Until(end) => Some(end),
            Lease::Held | Lease::Over => None,
        }
    }

    /// Whether the dead server serves nothing any more. Without a chain it never did; and who goes
    /// on without the directory has to know what became of the backups that had it.
    pub(super) fn is_lease_over(&self, judged: &Judged<'_>) -> bool {
        judged.chain.is_none()
            || self.lease == Lease::Over
            || (self.lease == Lease::Held && judged.loss.directory)
    }

    /// Whether everybody who is there has said everything.
    fn is_collected(&self, judged: &Judged<'_>) -> bool {
        judged.connected.iter().all(|&server| self.has_answered(server))
    }

    /// The longest replica of the directory that is there and has not shown itself as damaged, if it
    /// has everything that counted.
    fn best_directory(&self, judged: &Judged<'_>) -> Option<(u32, ServerId, ReplicaName)> {
        let holders = self.holders.iter().filter(|(server, _)| judged.connected.contains(server));
        let chain = judged.chain?;
        let replicas = holders.flat_map(|(&server, holder)| {
            let of_chain = holder.chain.range(all_of(chain));
            of_chain.map(move |(&replica, &length)| (length, server, replica))
        });
        let is_readable =
            |place: &(u32, ServerId, ReplicaName)| !self.unreadable.contains(&(place.1, place.2));
        let longest = replicas.filter(is_readable).max()?;
        (self.counted(chain, judged)? <= longest.0).then_some(longest)
    }

    /// A length of the directory in which everything stands that counted. Of as many backups as a
    /// recovery must fence, whichever these are, the longest replica has all of that. One that may
    /// have been shortened does not count among them, unless all replicas are there, or an operator
    /// does without. `None`: there are fewer of them.
    fn counted(&self, chain: SegmentId, judged: &Judged<'_>) -> Option<u32> {
        let all = self.lengths(chain, true);
        let wanted = Quorum::of_segment(chain).map_or(judged.replicas, |quorum| quorum.replicas);
        let lengths = match all.len() >= wanted || judged.loss.directory {
            true => all,
            false => self.lengths(chain, false),
        };
        lengths.get(fences(chain) - 1).copied()
    }

    /// The lengths of a chain's segment at all who have it, in ascending order; perhaps without replicas
    /// that may be short.
    fn lengths(&self, chain: SegmentId, with_short: bool) -> Vec<u32> {
        let length = |holder: &Holder| {
            let replicas = holder.chain.range(all_of(chain));
            let counts = |name: ReplicaName| with_short || !holder.short.contains(&(true, name));
            replicas.filter(|(name, _)| counts(**name)).map(|(_, length)| *length).max()
        };
        let mut lengths: Vec<u32> = self.holders.values().filter_map(length).collect();
        lengths.sort_unstable();
        lengths
    }

    /// What must be asked to read the directory, when nobody who could have a longer one is waited
    /// for.
    pub(super) fn directory_question(&self, judged: &Judged<'_>) -> Option<DirectoryQuestion> {
        if self.directory.is_some() {
            return None;
        }
        if let Some(reading) = &self.reading
            && judged.connected.contains(&reading.backup)
        {
            let Reading { backup, replica, .. } = *reading;
            return Some(DirectoryQuestion { backup, replica, first: reading.place() });
        }
        // Any replica will do; the longest names segments that the others do not know of yet.
        let may_begin = self.is_collected(judged) || self.lease == Lease::Over;
        let (_, backup, replica) = self.best_directory(judged).filter(|_| may_begin)?;
        Some(DirectoryQuestion { backup, replica, first: DirectoryPlace::default() })
    }

    /// Some pieces of the directory, as asked for by `question`.
    pub(super) fn directory_read(
        &mut self,
        question: DirectoryQuestion,
        (bodies, next): (Vec<Vec<u8>>, Option<DirectoryPlace>),
    ) {
        let DirectoryQuestion { backup, replica, first } = question;
        if first == DirectoryPlace::default() {
            let holder = self.holders.get(&backup);
            let length = holder.and_then(|holder| holder.chain.get(&replica)).copied();
            let length = length.unwrap_or_default().min(SEGMENT_BYTES as u32);
            let (bodies, is_cut) = (Vec::new(), false);
            self.reading = Some(Reading { backup, replica, length, bodies, is_cut });
        }
        let Some(reading) = &mut self.reading else { return };
        // No piece is empty: such an answer would make no progress, however often it came.
        let is_unreadable = bodies.is_empty() || bodies.iter().any(Vec::is_empty);
        reading.take(bodies, next);
        let bytes: usize = reading.bodies.iter().map(Vec::len).sum();
        let length = reading.length as usize;
        if next.is_some() && !is_unreadable && bytes < length {
            return;
        }
        let read = Directory::read(reading.bodies.iter().map(|body| &body[..]));
        self.reading = None;
        match read {
            // Less than it was said to have would be the directory of an earlier time. More was
            // written by a disk that has failed since, and may count or not.
            Ok(directory) if bytes >= length => self.directory = Some(directory),
            Ok(_) | Err(_) => {
                tracing::warn!(%backup, segment = %replica.0, "a log directory cannot be read");
                self.unreadable.insert((backup, replica));
            }
        }
    }

    /// The segments that make up the log, if that is known.
    fn named(&self, judged: &Judged<'_>) -> Option<Vec<(SegmentId, Option<Content>)>> {
        if judged.chain.is_none() {
            // Nothing counted yet.
            return Some(Vec::new());
        }
        if let Some(directory) = &self.directory {
            return Some(directory.segments().collect());
        }
        let is_given_up = judged.loss.directory
            && self.is_collected(judged)
            && self.best_directory(judged).is_none();
        is_given_up.then(|| {
            let holders = self.holders.values();
            let all: BTreeSet<SegmentId> =
                holders.flat_map(|holder| holder.replicas.keys().map(|name| name.0)).collect();
            all.into_iter().map(|segment| (segment, None)).collect()
        })
    }

    /// Whether the directory is the same for whoever reads it next, as far as is known: everybody who
    /// is there has said what it holds, and all replicas of the chain's segment have the same length.
    fn is_directory_settled(&self, judged: &Judged<'_>) -> bool {
        let Some(chain) = judged.chain else { return true };
        let replicas = self.holders.values().flat_map(|holder| holder.chain.range(all_of(chain)));
        let lengths: BTreeSet<u32> = replicas.map(|(_, length)| *length).collect();
        self.is_collected(judged) && self.directory.is_some() && lengths.len() == 1
    }

    /// What of a segment everybody finds who reads the log once more. See [`RecoverySegment::settled`].
    fn settled(&self, (segment, content): (SegmentId, Option<Content>)) -> u32 {
        if let Some(content) = content {
            return content.length;
        }
        let original = (segment, ReplicaEpoch::default());
        let lengths = self.holders.values().filter_map(|holder| holder.replicas.get(&original));
        lengths.min().copied().unwrap_or(0)
    }

    /// Where the segment can be read, in the order in which that should be tried.
    fn places(
        &self,
        (segment, content): (SegmentId, Option<Content>),
        judged: &Judged<'_>,
    ) -> Vec<ReplicaPlace> {
        let holders = self.holders.iter().filter(|(server, _)| judged.connected.contains(server));
        let replicas = holders.flat_map(|(&backup, holder)| {
            let replicas = holder.replicas.range(all_of(segment));
            let readable =
                replicas.filter(move |(name, _)| !self.unreadable.contains(&(backup, **name)));
            readable.map(move |(&(_, epoch), &length)| ReplicaPlace { backup, epoch, length })
        });
        // Of an open segment a copy may lack what was acknowledged: only originals count. Without the
        // directory nobody knows which are open.
        let is_right = |place: &ReplicaPlace| match content {
            _ if planted::is(Bug::StaleReplicaUsed) => true,
            Some(content) => place.length == content.length,
            None => place.epoch == ReplicaEpoch::default() || self.directory.is_none(),
        };
        let mut places: Vec<ReplicaPlace> = replicas.filter(is_right).collect();
        if content.is_none() {
            self.leave_out_the_short(segment, &mut places, judged);
            places.sort_by_key(|place| std::cmp::Reverse(place.length));
        } else if !places.is_empty() {
            // Neighbors are read from different backups.
            let first = (segment.0 % places.len() as u64) as usize;
            places.rotate_left(first);
        }
        places.truncate(PLACES_MAX);
        places
    }

    /// Of an open segment every original has what was acknowledged, but for those that a loss of power
    /// has shortened. These count only if all originals are there, or an operator does without.
    fn leave_out_the_short(
        &self,
        segment: SegmentId,
        places: &mut Vec<ReplicaPlace>,
        judged: &Judged<'_>,
    ) {
        let may_be_short = |place: &ReplicaPlace| {
            let name = (false, (segment, place.epoch));
            self.holders.get(&place.backup).is_some_and(|holder| holder.short.contains(&name))
        };
        let are_all_there = places.len() >= judged.replicas;
        if !are_all_there && !judged.loss.segments.contains(&segment) && !judged.loss.directory {
            places.retain(|place| !may_be_short(place));
        }
    }

    pub(super) fn proof(&self, judged: &Judged<'_>) -> Proof {
        let is_collected = self.is_collected(judged);
        let Some(named) = self.named(judged) else {
            return match self.best_directory(judged) {
                Some(_) if is_collected || self.lease == Lease::Over => Proof::ReadingDirectory,
                None if is_collected => Proof::DirectoryMissing,
                Some(_) | None => Proof::Collecting,
            };
        };
        let is_missing = |named: &(SegmentId, Option<Content>)| {
            !judged.loss.segments.contains(&named.0) && self.places(*named, judged).is_empty()
        };
        let missing: Vec<SegmentId> =
            named.into_iter().filter(is_missing).map(|(segment, _)| segment).collect();
        match (missing.is_empty(), is_collected) {
            (true, _) => Proof::Whole,
            (false, true) => Proof::SegmentsMissing(missing),
            (false, false) => Proof::Collecting,
        }
    }

    /// The segments of a log that is whole, with where to read them. What was given up is not
    /// among them, unless it has turned up.
    pub(super) fn segments(&self, log: ServerId, judged: &Judged<'_>) -> Vec<RecoverySegment> {
        let named = self.named(judged).unwrap_or_default();
        let is_settled = self.is_directory_settled(judged);
        let segment = |named: (SegmentId, Option<Content>)| {
            let places = self.places(named, judged);
            let settled = if is_settled { self.settled(named) } else { 0 };
            let (segment, content) = named;
            let segment = RecoverySegment { log, segment, content, places, settled };
            (!segment.places.is_empty()).then_some(segment)
        };
        named.into_iter().filter_map(segment).collect()
    }
}

/// The names of all replicas of a segment.
fn all_of(segment: SegmentId) -> RangeInclusive<ReplicaName> {
    (segment, ReplicaEpoch(0))..=(segment, ReplicaEpoch(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_progress_ends_the_reading_of_a_directory() {
        let (backup, replica) = (ServerId(2), (SegmentId(1), ReplicaEpoch(0)));
        let info = ReplicaInfo {
            segment: replica.0,
            epoch: replica.1,
            is_directory: true,
            length: 100,
            may_be_short: false,
        };
        let clock = UnixMillis(0);
        let report = FencedReport { first: 0, replicas: &[info], clock, more: false };
        let question = DirectoryQuestion { backup, replica, first: DirectoryPlace::default() };
        let next = Some(DirectoryPlace { pieces: 2, bytes: 0 });
        for (bodies, goes_on) in [
            (vec![vec![1], vec![2]], true),
            (vec![], false),
            (vec![vec![1], vec![]], false),
            (vec![vec![]; 1_000], false),
        ] {
            let mut evidence = Evidence::default();
            evidence.fenced(Instant(0), backup, report, Some(replica.0));
            evidence.directory_read(question, (bodies, next));
            assert_eq!(evidence.reading.is_some(), goes_on);
        }
    }
}
