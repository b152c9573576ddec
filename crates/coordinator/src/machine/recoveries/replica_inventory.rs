//! Replica inventory of a dead server's log, and the check that the log is complete.
//!
//! The inventory is never persisted. A restarted coordinator asks again, and fenced backups stay
//! fenced.
//!
//! A check looks at every segment of the log, and its result is needed after most events. So it is
//! stored together with the facts on which it rests, and repeated when one of them has changed.
//!
//! The completeness check (rule 8 of `docs/design/replication.md`) has two conditions:
//! - The segment manifest is read from the newest recorded segment of the manifest log. As many
//!   replicas of that segment must be fenced as its number requires.
//! - A connected backup holds each segment in the manifest. A closed segment counts only with its
//!   recorded length. An open segment counts with any length: while the manifest calls it open,
//!   each of its original replicas has every acknowledged byte.

use super::replica_index::{ReplicaIndex, ReplicaName};
use crate::machine::membership::ConnectedServers;
use crate::records::AcceptedLoss;
use planted::Bug;
use protocols::replication::{Quorum, fences};
use protocols::segment_manifest::SegmentManifest;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::limits::SEGMENT_BYTES;
use types::{Instant, SegmentId, ServerId, UnixMillis};
use wire::control::{ManifestPosition, PLACES_MAX, RecoverySegment, ReplicaInfo, ReplicaPlace};
use wire::manifest::SegmentContent;
use wire::replica::ReplicaEpoch;

/// Wait after the required number of manifest backups are fenced, until their master serves
/// nothing more: the read lease, plus a twentieth for clocks that run unevenly.
const LEASE_WAIT: Duration = protocols::replication::timing::CLOCK_LEASE;

/// Most replicas of one log that a backup is believed to hold: 8 TiB, far more than a disk has
/// files.
const REPLICAS_OF_LOG_MAX: usize = 1 << 20;

/// Longest time by which the dead server's expiry clock can have advanced since any manifest
/// backup last received it; its lease has expired by then.
const CLOCK_WAIT: Duration = protocols::replication::timing::CLOCK_LEASE;

/// The replica inventory of one log.
#[derive(Debug, Default)]
pub(super) struct ReplicaInventory {
    holders: BTreeMap<ServerId, Holder>,
    /// Replicas of the log's segments.
    replicas: ReplicaIndex,
    /// Replicas of the manifest log's segments.
    manifest_replicas: ReplicaIndex,
    manifest: Option<KnownManifest>,
    reading: Option<ManifestReading>,
    /// Replicas that could not be read. They stay excluded for that server. A process restarted
    /// on its disk is another server and reports its own inventory.
    unreadable: BTreeSet<(ServerId, ReplicaName)>,
    /// Replicas of the manifest log about which their backups have left questions unanswered. They
    /// are asked for if no other one will do.
    unanswered: BTreeSet<(ServerId, ReplicaName)>,
    lease: ReadLeaseState,
    /// The latest expiry clock of the dead server that any backup has received.
    clock: UnixMillis,
    freed: BTreeSet<ServerId>,
    /// Number of changes of everything above that a check may notice.
    revision: u64,
    assessment: Option<Assessment>,
    /// The log's segments when it was last complete.
    list: Option<ListedSegments>,
    /// Reason given with the last returned recovery partition.
    pub(super) refusal: String,
}

/// The inventory reported by one backup.
#[derive(Debug, Default)]
struct Holder {
    /// Number of replicas of the log's segments.
    replicas: usize,
    /// Number of replicas of the manifest log's segments.
    manifest_replicas: usize,
    /// Replicas of both kinds that a power loss may have truncated. The flag marks the manifest
    /// log.
    short: BTreeSet<(bool, ReplicaName)>,
    /// Replicas listed so far in the messages of the current report. `None`: a message is missing.
    told: Option<u32>,
    report: ReportState,
}

/// State of a backup's inventory report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReportState {
    #[default]
    Incomplete,
    Complete,
    /// The report is complete. A later one, with replicas that the backup could not measure
    /// before, may have been lost with the backup's connection.
    Outdated,
}

impl Holder {
    fn has_replicas(&self) -> bool {
        self.replicas + self.manifest_replicas > 0
    }
}

/// One message of a fenced backup's inventory report.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct FencedReport<'r> {
    /// Number of replicas in the preceding messages of the report.
    pub(in crate::machine) first: u32,
    pub(in crate::machine) replicas: &'r [ReplicaInfo],
    /// The latest expiry clock that the backup has received.
    pub(in crate::machine) clock: UnixMillis,
    /// Another message follows.
    pub(in crate::machine) more: bool,
}

/// The segment manifest as one of its replicas contains it.
#[derive(Debug)]
struct KnownManifest {
    manifest: SegmentManifest,
    /// Length of that replica, in bytes.
    length: u32,
}

/// The manifest replica that is being read.
#[derive(Debug)]
struct ManifestReading {
    backup: ServerId,
    replica: ReplicaName,
    length: u32,
    bodies: Vec<Vec<u8>>,
    /// The last body is incomplete.
    is_cut: bool,
}

impl ManifestReading {
    /// Returns the position up to which the replica has been read.
    fn place(&self) -> ManifestPosition {
        match self.bodies.last().filter(|_| self.is_cut) {
            Some(last) => {
                let pieces = self.bodies.len() as u32 - 1;
                ManifestPosition { pieces, bytes: last.len() as u32 }
            }
            None => ManifestPosition { pieces: self.bodies.len() as u32, bytes: 0 },
        }
    }

    fn take(&mut self, mut bodies: Vec<Vec<u8>>, next: Option<ManifestPosition>) {
        if let Some(last) = self.bodies.last_mut().filter(|_| self.is_cut)
            && !bodies.is_empty()
        {
            last.append(&mut bodies.remove(0));
        }
        self.bodies.append(&mut bodies);
        self.is_cut = next.is_some_and(|next| next.bytes > 0);
    }
}

/// State of the dead server's read lease: it may still serve reads if it is in fact alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadLeaseState {
    /// Too few manifest backups are known to be fenced.
    #[default]
    Held,
    Until(Instant),
    Over,
}

/// The facts against which the inventory is checked.
pub(super) struct LogFacts<'l> {
    /// The dead server.
    pub(super) log: ServerId,
    /// Newest recorded segment of the manifest log.
    pub(super) manifest_log: Option<SegmentId>,
    pub(super) loss: &'l AcceptedLoss,
    /// Intended number of replicas of each segment of the log.
    pub(super) replicas: usize,
    /// Servers that can be asked and read from.
    pub(super) connected: &'l ConnectedServers,
}

/// The last completeness check, with everything on which its result rests.
#[derive(Debug)]
struct Assessment {
    revision: u64,
    manifest_log: Option<SegmentId>,
    loss: AcceptedLoss,
    replicas: usize,
    /// Revision of the connected servers.
    connected: u64,
    /// The connected servers with replicas of the log.
    holders: BTreeSet<ServerId>,
    /// Every connected server had reported its complete inventory.
    is_collected: bool,
    completeness: Completeness,
}

impl Assessment {
    /// Returns whether a check of these facts would have the same result. Other connected servers
    /// make a difference only if they hold replicas of the log or have to report theirs.
    fn rests_on(&self, inventory: &ReplicaInventory, facts: &LogFacts<'_>) -> bool {
        self.revision == inventory.revision
            && self.manifest_log == facts.manifest_log
            && self.replicas == facts.replicas
            && self.loss == *facts.loss
            && (self.connected == facts.connected.revision()
                || self.is_collected == inventory.is_collected(facts)
                    && self.holders == inventory.connected_holders(facts))
    }
}

/// The effect of an assessment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AssessmentChange {
    /// The list of segments is another one.
    pub(super) is_listed_anew: bool,
    /// The completeness is another one.
    pub(super) is_result_new: bool,
}

/// The segments of a complete log, for recovery masters.
#[derive(Debug)]
pub(super) struct ListedSegments {
    /// Number of the list. A different list of any log has another one; later ones are higher.
    pub(super) number: u64,
    /// The segments, with the replicas to read.
    pub(super) segments: Vec<RecoverySegment>,
}

/// Result of the completeness check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    /// A connected server has not reported its inventory.
    Collecting,
    /// The segment manifest has not been read.
    ReadingManifest,
    /// No connected server has a complete manifest.
    ManifestMissing,
    /// No connected server has these segments.
    SegmentsMissing(Vec<SegmentId>),
    Complete,
}

/// The next request for reading the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct ManifestQuestion {
    pub(in crate::machine) backup: ServerId,
    pub(in crate::machine) replica: ReplicaName,
    /// Position from which to read.
    pub(in crate::machine) first: ManifestPosition,
}

/// Consecutive pieces of a manifest, in answer to a question.
#[derive(Debug)]
pub(in crate::machine) struct ManifestAnswer {
    pub(in crate::machine) bodies: Vec<Vec<u8>>,
    /// Position of the next piece; `None` at the end.
    pub(in crate::machine) next: Option<ManifestPosition>,
}

/// A segment as the manifest names it.
#[derive(Clone, Copy)]
struct NamedSegment {
    segment: SegmentId,
    /// `None` while the segment is open, or if there is no manifest.
    content: Option<SegmentContent>,
}

impl ReplicaInventory {
    /// Records a fenced backup's inventory report. `manifest_log` is the newest recorded segment of the
    /// manifest log.
    pub(super) fn fenced(
        &mut self,
        now: Instant,
        backup: ServerId,
        report: FencedReport<'_>,
        manifest_log: Option<SegmentId>,
    ) {
        self.clock = self.clock.max(report.clock);
        self.revision += u64::from(self.take(backup, report));
        let is_met = |inventory: &ReplicaInventory| {
            manifest_log.is_some_and(|manifest_log| {
                inventory.lengths(manifest_log, true).len() >= fences(manifest_log)
            })
        };
        if self.lease == ReadLeaseState::Held && is_met(self) {
            self.lease = ReadLeaseState::Until(now + LEASE_WAIT);
        }
    }

    /// Applies one message of a report. The report is complete when its last message follows all
    /// earlier ones; otherwise the backup is asked again. Returns whether a check may notice it.
    fn take(&mut self, backup: ServerId, report: FencedReport<'_>) -> bool {
        let FencedReport { first, replicas, clock: _, more } = report;
        let holder = self.holders.entry(backup).or_default();
        let mut is_news = false;
        for replica in replicas {
            let (index, count) = match replica.is_manifest {
                true => (&mut self.manifest_replicas, &mut holder.manifest_replicas),
                false => (&mut self.replicas, &mut holder.replicas),
            };
            if *count < REPLICAS_OF_LOG_MAX {
                let name = (replica.segment, replica.epoch);
                let before = index.insert(backup, name, replica.length);
                *count += usize::from(before.is_none());
                is_news |= before != Some(replica.length);
                if replica.may_be_short {
                    is_news |= holder.short.insert((replica.is_manifest, name));
                }
            }
        }
        let follows = first == 0 || holder.told == Some(first);
        let told = u32::try_from(replicas.len()).ok().and_then(|count| first.checked_add(count));
        holder.told = told.filter(|_| follows);
        if follows && !more {
            is_news |= holder.report == ReportState::Incomplete;
            holder.report = ReportState::Complete;
        }
        is_news
    }

    /// Excludes a reported replica that its backup cannot read.
    pub(super) fn damaged(&mut self, backup: ServerId, replica: ReplicaName) {
        // More reports than this are implausible and are ignored.
        let is_new = self.unreadable.len() < REPLICAS_OF_LOG_MAX
            && self.unreadable.insert((backup, replica));
        if is_new {
            self.revision += 1;
            let segment = replica.0;
            tracing::warn!(%backup, %segment, "unreadable replica excluded from recovery");
        }
    }

    /// Returns an upper bound of the clocks by which the dead server has judged expiry.
    pub(super) fn clock_floor(&self) -> UnixMillis {
        UnixMillis(self.clock.0.saturating_add(CLOCK_WAIT.as_millis() as u64))
    }

    /// Returns whether the backup has reported its complete inventory.
    pub(super) fn has_answered(&self, backup: ServerId) -> bool {
        let report = self.holders.get(&backup).map(|holder| holder.report);
        report.is_some_and(|report| report != ReportState::Incomplete)
    }

    /// Returns whether the backup has to report its inventory, or report it again.
    pub(super) fn is_to_report(&self, backup: ServerId) -> bool {
        let report = self.holders.get(&backup).map(|holder| holder.report);
        report != Some(ReportState::Complete)
    }

    /// Records that messages of a backup may have been lost. What it has reported stays valid.
    pub(super) fn reconnected(&mut self, backup: ServerId) {
        self.unanswered.retain(|place| place.0 != backup);
        if let Some(holder) = self.holders.get_mut(&backup)
            && holder.report == ReportState::Complete
        {
            holder.report = ReportState::Outdated;
        }
    }

    /// Returns whether a power loss may have truncated a replica; the flag marks the manifest log.
    fn may_be_short(&self, backup: ServerId, name: (bool, ReplicaName)) -> bool {
        self.holders.get(&backup).is_some_and(|holder| holder.short.contains(&name))
    }

    /// Returns the backups with replicas that can be read from.
    fn connected_holders(&self, facts: &LogFacts<'_>) -> BTreeSet<ServerId> {
        let holders = self.holders.iter().filter(|(_, holder)| holder.has_replicas());
        holders.map(|(server, _)| *server).filter(|it| facts.connected.contains(*it)).collect()
    }

    fn has_holder(&self, backup: ServerId) -> bool {
        self.holders.contains_key(&backup)
    }

    /// Drops the inventory of a dead backup.
    pub(super) fn forget(&mut self, backup: ServerId) {
        if self.reading.as_ref().is_some_and(|reading| reading.backup == backup) {
            self.reading = None;
        }
        if self.holders.remove(&backup).is_some_and(|holder| holder.has_replicas()) {
            self.revision += 1;
            self.replicas.forget(backup);
            self.manifest_replicas.forget(backup);
        }
        self.unanswered.retain(|place| place.0 != backup);
        assert!(!self.has_holder(backup), "{backup} is dead and its replicas count");
    }

    /// Records that a backup holds nothing of the log any more.
    pub(super) fn freed(&mut self, backup: ServerId) {
        self.freed.insert(backup);
        assert!(self.has_freed(backup), "the answer of {backup} is lost");
    }

    pub(super) fn has_freed(&self, backup: ServerId) -> bool {
        self.freed.contains(&backup)
    }

    /// Ends the lease if its time is over. Returns whether it has ended.
    pub(super) fn pass(&mut self, now: Instant) -> bool {
        let is_over = self.lease_end().is_some_and(|end| end <= now);
        if is_over {
            self.lease = ReadLeaseState::Over;
            self.revision += 1;
        }
        assert!(self.lease_end().is_none_or(|end| end > now), "a lease is over and counts");
        is_over
    }

    /// Returns the end of the lease, if it is known and not recorded as over.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        match self.lease {
            ReadLeaseState::Until(end) => Some(end),
            ReadLeaseState::Held | ReadLeaseState::Over => None,
        }
    }

    /// Returns whether the dead server can no longer serve reads. Without a recorded manifest
    /// segment it never had a lease. An operator who accepts the loss of the manifest must know
    /// that its backups are gone.
    pub(super) fn is_lease_over(&self, facts: &LogFacts<'_>) -> bool {
        facts.manifest_log.is_none()
            || self.lease == ReadLeaseState::Over
            || (self.lease == ReadLeaseState::Held && facts.loss.manifest)
    }

    /// Returns whether every connected server has reported its complete inventory.
    fn is_collected(&self, facts: &LogFacts<'_>) -> bool {
        facts.connected.iter().all(|server| self.has_answered(server))
    }

    /// Returns the longest readable manifest replica on a connected server, if it contains every
    /// acknowledged entry. One whose backup leaves questions unanswered is the last choice.
    fn best_manifest(&self, facts: &LogFacts<'_>) -> Option<(u32, ServerId, ReplicaName)> {
        let manifest_log = facts.manifest_log?;
        let replicas = self.manifest_replicas.of(manifest_log);
        let replicas = replicas.filter(|place| facts.connected.contains(place.backup));
        let replicas =
            replicas.map(|place| (place.length, place.backup, (manifest_log, place.epoch)));
        let is_readable =
            |place: &(u32, ServerId, ReplicaName)| !self.unreadable.contains(&(place.1, place.2));
        if planted::is(Bug::ShortestManifestUsed) {
            return replicas.filter(is_readable).min();
        }
        let counted = self.counted(manifest_log, facts)?;
        let is_answered =
            |place: &(u32, ServerId, ReplicaName)| !self.unanswered.contains(&(place.1, place.2));
        let sufficient = replicas.filter(|place| is_readable(place) && counted <= place.0);
        sufficient.max_by_key(|place| (is_answered(place), *place))
    }

    /// Returns a manifest length that includes every acknowledged entry, in bytes.
    ///
    /// A recovery must fence `fences(manifest_log)` backups. Among any that many, the longest replica
    /// contains every acknowledged entry, so the length of that rank, counted from the shortest,
    /// suffices. A replica that may be truncated is not counted, unless all replicas are present
    /// or an operator has accepted the loss. `None`: too few replicas are known.
    fn counted(&self, manifest_log: SegmentId, facts: &LogFacts<'_>) -> Option<u32> {
        let all = self.lengths(manifest_log, true);
        let wanted =
            Quorum::of_segment(manifest_log).map_or(facts.replicas, |quorum| quorum.replicas);
        let lengths = match all.len() >= wanted || facts.loss.manifest {
            true => all,
            false => self.lengths(manifest_log, false),
        };
        lengths.get(fences(manifest_log) - 1).copied()
    }

    /// Returns each holder's length of a manifest segment, in ascending order; `with_short`
    /// includes replicas that may be truncated.
    fn lengths(&self, manifest_log: SegmentId, with_short: bool) -> Vec<u32> {
        let mut longest: BTreeMap<ServerId, u32> = BTreeMap::new();
        for ReplicaPlace { backup, epoch, length } in self.manifest_replicas.of(manifest_log) {
            if with_short || !self.may_be_short(backup, (true, (manifest_log, epoch))) {
                let known = longest.entry(backup).or_default();
                *known = length.max(*known);
            }
        }
        let mut lengths: Vec<u32> = longest.into_values().collect();
        lengths.sort_unstable();
        lengths
    }

    /// Returns the next read request for the manifest, once no server that might hold a longer
    /// replica is waited for.
    pub(super) fn manifest_question(&self, facts: &LogFacts<'_>) -> Option<ManifestQuestion> {
        if self.manifest.is_some() {
            return None;
        }
        if let Some(reading) = &self.reading
            && facts.connected.contains(reading.backup)
        {
            let ManifestReading { backup, replica, .. } = *reading;
            return Some(ManifestQuestion { backup, replica, first: reading.place() });
        }
        // Any sufficient replica will do; the longest also lists the newest segments.
        let may_begin = self.is_collected(facts) || self.lease == ReadLeaseState::Over;
        let (_, backup, replica) = self.best_manifest(facts).filter(|_| may_begin)?;
        assert!(
            self.has_holder(backup),
            "{backup} is asked for a replica that it has not reported"
        );
        Some(ManifestQuestion { backup, replica, first: ManifestPosition::default() })
    }

    /// Records that a question was repeated in vain: the disk of the backup may hang. Another
    /// replica is read instead, from its beginning, if one will do.
    pub(super) fn leave_unanswered(&mut self, question: ManifestQuestion, facts: &LogFacts<'_>) {
        let ManifestQuestion { backup, replica, .. } = question;
        assert!(self.has_holder(backup), "{backup} was asked for what it has not reported");
        if self.unanswered.insert((backup, replica)) {
            let segment = replica.0;
            tracing::warn!(%backup, %segment, "no answer about a segment manifest");
        }
        let best = self.best_manifest(facts).map(|(_, backup, replica)| (backup, replica));
        if best != Some((backup, replica)) {
            self.reading = None;
        }
    }

    /// Records that a backup answers about a replica of the manifest log.
    pub(super) fn note_answer(&mut self, question: ManifestQuestion) {
        self.unanswered.remove(&(question.backup, question.replica));
    }

    /// Processes an answer to `question`: consecutive pieces of the manifest.
    pub(super) fn manifest_read(&mut self, question: ManifestQuestion, answer: ManifestAnswer) {
        self.revision += 1;
        let ManifestAnswer { bodies, next } = answer;
        let ManifestQuestion { backup, replica, first } = question;
        if first == ManifestPosition::default() {
            let length = self.manifest_replicas.length(backup, replica);
            let length = length.unwrap_or_default().min(SEGMENT_BYTES as u32);
            let (bodies, is_cut) = (Vec::new(), false);
            self.reading = Some(ManifestReading { backup, replica, length, bodies, is_cut });
        }
        let Some(reading) = &mut self.reading else { return };
        // No piece is empty: an answer with one would never make progress.
        let is_unreadable = bodies.is_empty() || bodies.iter().any(Vec::is_empty);
        reading.take(bodies, next);
        let bytes: usize = reading.bodies.iter().map(Vec::len).sum();
        let length = reading.length as usize;
        if next.is_some() && !is_unreadable && bytes < length {
            return;
        }
        let read = SegmentManifest::read(reading.bodies.iter().map(|body| &body[..]));
        self.reading = None;
        match read {
            // A shorter result would be an earlier state of the manifest. A longer one contains
            // entries written by a disk that failed later; they may count or not.
            Ok(manifest) if bytes >= length => {
                self.manifest = Some(KnownManifest { manifest, length: length as u32 });
            }
            Ok(_) | Err(_) => {
                tracing::warn!(%backup, segment = %replica.0, "cannot read a segment manifest");
                self.unreadable.insert((backup, replica));
            }
        }
    }

    /// Returns the segments that make up the log, if they are known.
    fn named(&self, facts: &LogFacts<'_>) -> Option<Vec<NamedSegment>> {
        if facts.manifest_log.is_none() {
            // Nothing in the log has been acknowledged.
            return Some(Vec::new());
        }
        if let Some(manifest) = &self.manifest {
            let segments = manifest.manifest.segments();
            let named = segments.map(|(segment, content)| NamedSegment { segment, content });
            return Some(named.collect());
        }
        let is_given_up =
            facts.loss.manifest && self.is_collected(facts) && self.best_manifest(facts).is_none();
        is_given_up.then(|| {
            let all = self.replicas.segments();
            all.into_iter().map(|segment| NamedSegment { segment, content: None }).collect()
        })
    }

    /// Returns whether every later reader will find the same manifest: all connected servers have
    /// reported, and so many of them have the longest replica of the manifest segment that each
    /// later recovery reads one of these. A replica on a server that is away may be shorter, and
    /// be the only one that is left later. The manifest that was read must be that longest one:
    /// its backup may have died since, or a longer replica may have turned up.
    fn has_common_prefix(&self, facts: &LogFacts<'_>) -> bool {
        let Some(manifest_log) = facts.manifest_log else { return true };
        let needed =
            Quorum::of_segment(manifest_log).map_or(facts.replicas, |quorum| quorum.needed);
        let lengths = self.lengths(manifest_log, true);
        let longest = lengths.last().copied();
        let agreeing = lengths.iter().filter(|length| Some(**length) == longest).count();
        let read = self.manifest.as_ref().map(|manifest| manifest.length);
        self.is_collected(facts) && read.is_some() && read == longest && agreeing >= needed
    }

    /// Returns the length of a segment that every later reader of the log finds. See
    /// [`RecoverySegment::common_prefix`].
    fn common_prefix(&self, named: NamedSegment, facts: &LogFacts<'_>) -> u32 {
        let NamedSegment { segment, content } = named;
        if let Some(content) = content {
            return content.length;
        }
        let replicas = self.replicas.of(segment);
        let originals = replicas.filter(|place| place.epoch == ReplicaEpoch::default());
        let lengths: Vec<u32> = originals.map(|place| place.length).collect();
        // An original on a server that is away may be shorter.
        let are_all_known = lengths.len() >= facts.replicas;
        lengths.into_iter().min().filter(|_| are_all_known).unwrap_or(0)
    }

    /// Returns the replicas from which the segment can be read, in order of preference.
    fn places(&self, named: NamedSegment, facts: &LogFacts<'_>) -> Vec<ReplicaPlace> {
        #[cfg(test)]
        PLACES_LOOKED_UP.set(PLACES_LOOKED_UP.get() + 1);
        let NamedSegment { segment, content } = named;
        let is_readable = |place: &ReplicaPlace| {
            facts.connected.contains(place.backup)
                && !self.unreadable.contains(&(place.backup, (segment, place.epoch)))
        };
        let replicas = self.replicas.of(segment).filter(is_readable);
        // A copy of an open segment may lack acknowledged bytes, so only originals count. Without
        // the manifest no segment is known to be open.
        let is_right = |place: &ReplicaPlace| match content {
            _ if planted::is(Bug::StaleReplicaUsed) => true,
            Some(content) => place.length == content.length,
            None => place.epoch == ReplicaEpoch::default() || self.manifest.is_none(),
        };
        let mut places: Vec<ReplicaPlace> = replicas.filter(is_right).collect();
        if content.is_none() {
            self.leave_out_the_short(segment, &mut places, facts);
            places.sort_by_key(|place| std::cmp::Reverse(place.length));
        } else if !places.is_empty() {
            // Adjacent segments are read from different backups.
            let first = (segment.0 % places.len() as u64) as usize;
            places.rotate_left(first);
        }
        places.truncate(PLACES_MAX);
        let is_there = |place: &ReplicaPlace| facts.connected.contains(place.backup);
        debug_assert!(places.iter().all(is_there), "a replica of a disconnected backup is listed");
        places
    }

    /// Removes truncated originals of an open segment, which may lack acknowledged bytes. They
    /// count only if all originals are present, or an operator has accepted the loss.
    fn leave_out_the_short(
        &self,
        segment: SegmentId,
        places: &mut Vec<ReplicaPlace>,
        facts: &LogFacts<'_>,
    ) {
        let may_be_short =
            |place: &ReplicaPlace| self.may_be_short(place.backup, (false, (segment, place.epoch)));
        let are_all_there = places.len() >= facts.replicas;
        if !are_all_there && !facts.loss.segments.contains(&segment) && !facts.loss.manifest {
            places.retain(|place| !may_be_short(place));
        }
    }

    /// Returns whether the log is complete.
    pub(super) fn is_complete(&self, facts: &LogFacts<'_>) -> bool {
        match self.assessment_of(facts) {
            Some(it) => it.completeness == Completeness::Complete,
            None => self.completeness(facts) == Completeness::Complete,
        }
    }

    /// Returns the result of the completeness check.
    pub(super) fn completeness(&self, facts: &LogFacts<'_>) -> Completeness {
        match self.assessment_of(facts) {
            Some(it) => it.completeness.clone(),
            None => self.check(facts).0,
        }
    }

    /// Returns the segments of the log with the replicas to read, if the last check has found the
    /// log complete. Segments that were given up are included only if they have turned up.
    pub(super) fn listed(&self) -> Option<&ListedSegments> {
        let is_complete = |it: &Assessment| it.completeness == Completeness::Complete;
        self.list.as_ref().filter(|_| self.assessment.as_ref().is_some_and(is_complete))
    }

    /// Repeats the completeness check if any fact has changed. If the segments of the complete log,
    /// or their replicas, are different, the new list has the number `next`.
    pub(super) fn assess(&mut self, facts: &LogFacts<'_>, next: u64) -> AssessmentChange {
        if self.assessment_of(facts).is_some() {
            if let Some(assessment) = &mut self.assessment {
                assessment.connected = facts.connected.revision();
            }
            return AssessmentChange::default();
        }
        let before = self.assessment.take().map(|before| before.completeness);
        let log = facts.log;
        let (completeness, segments) = self.check(facts);
        let is_result_new = before.as_ref() != Some(&completeness);
        let is_readable = |it: &RecoverySegment| it.log == log && !it.places.is_empty();
        assert!(segments.iter().all(is_readable), "a segment of {log} cannot be read");
        let is_complete = completeness == Completeness::Complete;
        let is_new = is_complete && self.list.as_ref().is_none_or(|list| list.segments != segments);
        if is_new {
            let before = self.list.as_ref().map(|list| list.number);
            assert!(before < Some(next), "list {next} of {log} is older than {before:?}");
            self.list = Some(ListedSegments { number: next, segments });
        }
        self.assessment = Some(Assessment {
            revision: self.revision,
            manifest_log: facts.manifest_log,
            loss: facts.loss.clone(),
            replicas: facts.replicas,
            connected: facts.connected.revision(),
            holders: self.connected_holders(facts),
            is_collected: self.is_collected(facts),
            completeness,
        });
        AssessmentChange { is_listed_anew: is_new, is_result_new }
    }

    /// Returns the last check, if it rests on these facts.
    fn assessment_of(&self, facts: &LogFacts<'_>) -> Option<&Assessment> {
        self.assessment.as_ref().filter(|it| it.rests_on(self, facts))
    }

    /// Checks every segment of the log. Returns those that can be read as well.
    fn check(&self, facts: &LogFacts<'_>) -> (Completeness, Vec<RecoverySegment>) {
        let is_collected = self.is_collected(facts);
        let Some(named) = self.named(facts) else {
            let completeness = match self.best_manifest(facts) {
                Some(_) if is_collected || self.lease == ReadLeaseState::Over => {
                    Completeness::ReadingManifest
                }
                None if is_collected => Completeness::ManifestMissing,
                Some(_) | None => Completeness::Collecting,
            };
            return (completeness, Vec::new());
        };
        let is_common = self.has_common_prefix(facts);
        let (mut missing, mut segments) = (Vec::new(), Vec::new());
        for named in named {
            let places = self.places(named, facts);
            let NamedSegment { segment, content } = named;
            if !places.is_empty() {
                let common_prefix = if is_common { self.common_prefix(named, facts) } else { 0 };
                let log = facts.log;
                segments.push(RecoverySegment { log, segment, content, places, common_prefix });
            } else if !facts.loss.segments.contains(&segment) {
                missing.push(segment);
            }
        }
        let completeness = match (missing.is_empty(), is_collected) {
            (true, _) => Completeness::Complete,
            (false, true) => Completeness::SegmentsMissing(missing),
            (false, false) => Completeness::Collecting,
        };
        (completeness, segments)
    }
}

#[cfg(test)]
thread_local! {
    /// Number of segments whose places this test has looked up.
    static PLACES_LOOKED_UP: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of segments whose places the running test has looked up.
#[cfg(test)]
pub(in crate::machine) fn places_looked_up() -> u64 {
    PLACES_LOOKED_UP.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::manifest::{ManifestEntry, encode};

    #[test]
    fn an_answer_without_progress_ends_the_reading_of_a_manifest() {
        let (backup, replica) = (ServerId(2), (SegmentId(1), ReplicaEpoch(0)));
        let info = ReplicaInfo {
            segment: replica.0,
            epoch: replica.1,
            is_manifest: true,
            length: 100,
            may_be_short: false,
        };
        let clock = UnixMillis(0);
        let report = FencedReport { first: 0, replicas: &[info], clock, more: false };
        let question = ManifestQuestion { backup, replica, first: ManifestPosition::default() };
        let next = Some(ManifestPosition { pieces: 2, bytes: 0 });
        for (bodies, goes_on) in [
            (vec![vec![1], vec![2]], true),
            (vec![], false),
            (vec![vec![1], vec![]], false),
            (vec![vec![]; 1_000], false),
        ] {
            let mut inventory = ReplicaInventory::default();
            inventory.fenced(Instant(0), backup, report, Some(replica.0));
            inventory.manifest_read(question, ManifestAnswer { bodies, next });
            assert_eq!(inventory.reading.is_some(), goes_on);
        }
    }

    fn facts<'l>(
        manifest_log: SegmentId,
        loss: &'l AcceptedLoss,
        connected: &'l ConnectedServers,
    ) -> LogFacts<'l> {
        let manifest_log = Some(manifest_log);
        LogFacts { log: ServerId(9), manifest_log, loss, replicas: 2, connected }
    }

    #[test]
    fn a_manifest_whose_backup_is_gone_has_no_common_prefix_of_shorter_replicas() {
        let replicas = 2;
        let manifest_log = Quorum::of_log(replicas, 3).segment(1);
        let name = (manifest_log, ReplicaEpoch::default());
        let segment = SegmentId(4);
        let bodies = [
            encode(&[ManifestEntry::Snapshot { segments: Vec::new() }]),
            encode(&[ManifestEntry::Open { segment }]),
            encode(&[ManifestEntry::Open { segment: SegmentId(5) }]),
        ];
        let lengths: Vec<u32> =
            (0..=3).map(|count| bodies[..count].concat().len() as u32).collect();
        let replica = |(segment, epoch), is_manifest, length| ReplicaInfo {
            segment,
            epoch,
            is_manifest,
            length,
            may_be_short: false,
        };
        let original = replica((segment, ReplicaEpoch::default()), false, 8);
        let mut inventory = ReplicaInventory::default();
        let mut connected = ConnectedServers::default();
        for (backup, length) in [(1, lengths[3]), (2, lengths[2]), (3, lengths[2])] {
            let backup = ServerId(backup);
            let replicas = [original, replica(name, true, length)];
            let clock = UnixMillis(0);
            let report = FencedReport { first: 0, replicas: &replicas, clock, more: false };
            inventory.fenced(Instant(0), backup, report, Some(manifest_log));
            connected.insert(backup);
        }
        let loss = AcceptedLoss::default();
        let question = inventory
            .manifest_question(&facts(manifest_log, &loss, &connected))
            .expect("the manifest can be read");
        assert_eq!(question.backup, ServerId(1), "the longest replica is read");
        let answer = ManifestAnswer { bodies: bodies.to_vec(), next: None };
        inventory.manifest_read(question, answer);
        inventory.forget(question.backup);
        connected.remove(question.backup);
        let common_prefix = |segment: RecoverySegment| (segment.segment, segment.common_prefix);
        let segments = inventory.check(&facts(manifest_log, &loss, &connected)).1;
        let segments: Vec<_> = segments.into_iter().map(common_prefix).collect();
        assert_eq!(segments, [(segment, 0)]);
    }
}
