//! One segment of a dead server's log and the places of its replicas.

use super::timing::SILENCES_MAX;
use planted::Bug;
use std::collections::BTreeSet;
use std::fmt::Write;
use types::{SegmentId, ServerId};
use wire::control::{RecoverySegment, ReplicaPlace};
use wire::manifest::SegmentContent;
use wire::replica::ReplicaEpoch;

/// A segment in the log of a dead server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogSegment {
    /// The server of the log.
    pub(super) log: ServerId,
    pub(super) segment: SegmentId,
}

/// The backup and the epoch of a segment's replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplicaLocation {
    pub(super) backup: ServerId,
    pub(super) epoch: ReplicaEpoch,
}

/// A segment from the coordinator's list.
#[derive(Debug)]
pub(super) struct SegmentReplicas {
    /// The number of the newest list that names the segment.
    pub(super) list: u64,
    pub(super) stage: ReadStage,
    content: Option<SegmentContent>,
    places: Vec<KnownPlace>,
    common_prefix: u32,
}

/// The progress of reading a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStage {
    /// The segment waits in the queue of this backup.
    Queued(ServerId),
    /// The segment is being read.
    Fetched,
    /// No backup can be asked at present.
    Stranded,
    /// All entries of the segment are replayed.
    Read,
}

#[derive(Clone, Copy, Debug)]
struct KnownPlace {
    at: ReplicaLocation,
    length: u32,
    flaw: Option<Flaw>,
    /// Unanswered reads in a row.
    silences: u32,
}

/// The reason why a place is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The backup cannot read the replica.
    Missing,
    /// The replica has the wrong end, or its content is not what was written.
    Differs,
    /// The payload from this place does not decode to entries.
    Damaged,
    /// The backup does not answer.
    Silent,
}

/// Backups that must not, or should not, be chosen.
pub(super) struct Absences<'a> {
    /// Dead backups, never chosen.
    pub(super) dead: &'a BTreeSet<ServerId>,
    /// Silent backups, chosen only if no other backup has the segment.
    pub(super) silent: &'a BTreeSet<ServerId>,
}

impl SegmentReplicas {
    /// Creates a segment without known places.
    pub(super) fn new() -> SegmentReplicas {
        SegmentReplicas {
            list: 0,
            stage: ReadStage::Stranded,
            content: None,
            places: Vec::new(),
            common_prefix: 0,
        }
    }

    /// Takes over the data of a newer list. Knowledge about known places is kept. A place counts
    /// once, however often the list names it.
    pub(super) fn update(&mut self, list: u64, named: &RecoverySegment) {
        assert!(self.list <= list, "list {list} is older than list {}", self.list);
        self.list = list;
        self.content = named.content;
        self.common_prefix = named.common_prefix;
        let known = std::mem::take(&mut self.places);
        for &ReplicaPlace { backup, epoch, length } in &named.places {
            let at = ReplicaLocation { backup, epoch };
            if self.place_mut(at).is_none() {
                let known = known.iter().find(|known| known.at == at).copied();
                let new = KnownPlace { at, length, flaw: None, silences: 0 };
                self.places.push(KnownPlace { length, ..known.unwrap_or(new) });
            }
        }
    }

    /// Chooses the place to read: the first answering one, else the one with fewest silences.
    pub(super) fn choose(&self, absences: &Absences<'_>) -> Option<ReplicaLocation> {
        let usable = self.living(absences.dead).filter(|place| place.flaw.is_none());
        let chosen = usable.min_by_key(|place| match absences.silent.contains(&place.at.backup) {
            true => (1, place.silences),
            false => (0, 0),
        });
        assert!(
            chosen.is_none_or(|place| place.silences < SILENCES_MAX),
            "a place that never answers is chosen: {chosen:?}"
        );
        chosen.map(|place| place.at)
    }

    /// Returns whether every place on a living backup is unusable. Places lost with their servers
    /// do not count, because the coordinator knows of the deaths and sends other places.
    pub(super) fn is_used_up(&self, dead: &BTreeSet<ServerId>) -> bool {
        let mut living = self.living(dead).peekable();
        living.peek().is_some() && living.all(|place| place.flaw.is_some())
    }

    /// Returns the offset in this replica from which other replicas may lack the entries; `None`
    /// if the replica is not known to have such entries. (After a disk failure a replica may have
    /// more bytes than reported; those were never acknowledged.)
    pub(super) fn divergent(&self, at: ReplicaLocation) -> Option<u32> {
        let place = self.places.iter().find(|place| place.at == at);
        place.filter(|place| self.common_prefix < place.length).map(|_| self.common_prefix)
    }

    /// Returns the length of the segment in bytes, as far as it is known.
    pub(super) fn length(&self) -> u32 {
        let longest = self.places.iter().map(|place| place.length).max();
        self.content.map(|content| content.length).or(longest).unwrap_or(0)
    }

    fn living(&self, dead: &BTreeSet<ServerId>) -> impl Iterator<Item = &KnownPlace> {
        self.places.iter().filter(move |place| !dead.contains(&place.at.backup))
    }

    fn place_mut(&mut self, at: ReplicaLocation) -> Option<&mut KnownPlace> {
        self.places.iter_mut().find(|place| place.at == at)
    }

    pub(super) fn record_flaw(&mut self, at: ReplicaLocation, flaw: Flaw) {
        self.place_mut(at).into_iter().for_each(|place| place.flaw = Some(flaw));
    }

    pub(super) fn record_silence(&mut self, at: ReplicaLocation) {
        let Some(place) = self.place_mut(at) else { return };
        place.silences += 1;
        if place.silences >= SILENCES_MAX {
            place.flaw = Some(Flaw::Silent);
        }
    }

    pub(super) fn record_answer(&mut self, at: ReplicaLocation) {
        self.place_mut(at).into_iter().for_each(|place| place.silences = 0);
    }

    /// Returns whether a replica with this end is complete. A replica of an open segment must
    /// have at least its reported length. A replica with a reported length of 0 was found damaged
    /// and may end anywhere.
    pub(super) fn may_end(&mut self, at: ReplicaLocation, end: SegmentContent) -> bool {
        match self.content {
            Some(content) => content == end || planted::is(Bug::StaleReplicaUsed),
            None => self.place_mut(at).is_some_and(|place| end.length >= place.length),
        }
    }

    /// Returns the reason why the segment cannot be read, for operators.
    pub(super) fn complaint(&self, id: LogSegment) -> String {
        let mut text = format!("{} of log {} cannot be read", id.segment, id.log);
        for (nth, place) in self.places.iter().enumerate() {
            let what = match place.flaw {
                Some(Flaw::Missing) => "cannot read it",
                Some(Flaw::Differs) => "has other content",
                Some(Flaw::Damaged) => "has a damaged copy",
                Some(Flaw::Silent) => "does not answer",
                None => "is dead",
            };
            let mark = if nth == 0 { ":" } else { "," };
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{mark} {} {what}", place.at.backup);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_a_list_names_twice_is_given_up_once() {
        let (log, segment, backup) = (ServerId(1), SegmentId(1), ServerId(2));
        let at = ReplicaLocation { backup, epoch: ReplicaEpoch(0) };
        let place = ReplicaPlace { backup, epoch: at.epoch, length: 8 };
        let places = vec![place, place];
        let named = RecoverySegment { log, segment, content: None, places, common_prefix: 0 };
        let mut listed = SegmentReplicas::new();
        listed.update(1, &named);
        let none = BTreeSet::new();
        assert_eq!(listed.choose(&Absences { dead: &none, silent: &none }), Some(at));
        listed.record_flaw(at, Flaw::Missing);
        assert_eq!(listed.choose(&Absences { dead: &none, silent: &none }), None);
        assert!(listed.is_used_up(&none));
    }

    #[test]
    #[should_panic(expected = "list 1 is older than list 2")]
    fn an_older_list_changes_nothing() {
        let named = RecoverySegment {
            log: ServerId(1),
            segment: SegmentId(1),
            content: None,
            places: Vec::new(),
            common_prefix: 0,
        };
        let mut segment = SegmentReplicas::new();
        segment.update(2, &named);
        segment.update(1, &named);
    }
}
