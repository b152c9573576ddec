//! One segment of a dead server's log, and where it can be read.

use super::timing::SILENCES_MAX;
use planted::Bug;
use std::collections::BTreeSet;
use std::fmt::Write;
use types::{SegmentId, ServerId};
use wire::control::{RecoverySegment, ReplicaPlace};
use wire::directory::Content;
use wire::replica::ReplicaEpoch;

/// A replica of a segment: who holds it, and which one.
pub(super) type At = (ServerId, ReplicaEpoch);

/// A segment that is named in a list.
#[derive(Debug)]
pub(super) struct Segment {
    /// The latest list that names it.
    pub(super) list: u64,
    pub(super) stage: Stage,
    content: Option<Content>,
    places: Vec<Place>,
    settled: u32,
}

/// How far the reading of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is to be read from this server.
    Queued(ServerId),
    /// It is being read.
    Fetched,
    /// Nobody can be asked.
    Stranded,
    /// All of it is replayed.
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    at: At,
    length: u32,
    flaw: Option<Flaw>,
    /// Reads in a row without an answer.
    silences: u32,
}

/// Why a place is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The backup cannot read it.
    Missing,
    /// It ends where it should not, or is not what was written.
    Differs,
    /// What came from it are no entries.
    Damaged,
    /// The backup does not answer.
    Silent,
}

/// What keeps a place from being chosen.
pub(super) struct Absences<'a> {
    /// For good.
    pub(super) dead: &'a BTreeSet<ServerId>,
    /// Unless there is no other.
    pub(super) silent: &'a BTreeSet<ServerId>,
}

impl Segment {
    /// One of which nothing is known.
    pub(super) fn new() -> Segment {
        Segment { list: 0, stage: Stage::Stranded, content: None, places: Vec::new(), settled: 0 }
    }

    /// What a newer list says of it. What was learned about its places stays.
    pub(super) fn update(&mut self, list: u64, named: &RecoverySegment) {
        self.list = list;
        self.content = named.content;
        self.settled = named.settled;
        let renewed = named.places.iter().map(|place| {
            let ReplicaPlace { backup, epoch, length } = *place;
            let known = self.places.iter().find(|known| known.at == (backup, epoch)).copied();
            let new = Place { at: (backup, epoch), length, flaw: None, silences: 0 };
            Place { length, ..known.unwrap_or(new) }
        });
        self.places = renewed.collect();
    }

    /// Where it is to be read: the first place of those that answer, or that has been silent least.
    pub(super) fn choose(&self, absences: &Absences<'_>) -> Option<At> {
        let usable = self.living(absences.dead).filter(|place| place.flaw.is_none());
        let chosen = usable.min_by_key(|place| match absences.silent.contains(&place.at.0) {
            true => (1, place.silences),
            false => (0, 0),
        });
        chosen.map(|place| place.at)
    }

    /// Whether all places have been tried. Those that went with their servers do not count: the
    /// coordinator knows, and names others.
    pub(super) fn is_used_up(&self, dead: &BTreeSet<ServerId>) -> bool {
        let mut living = self.living(dead).peekable();
        living.peek().is_some() && living.all(|place| place.flaw.is_some())
    }

    /// Where in this replica begins what others may not find any more; `None`: it has nothing of that,
    /// as far as is known. (A disk that failed may have more than was said, which nobody was told of.)
    pub(super) fn unsettled(&self, at: At) -> Option<u32> {
        let place = self.places.iter().find(|place| place.at == at);
        place.filter(|place| self.settled < place.length).map(|_| self.settled)
    }

    /// Its bytes, as far as is known.
    pub(super) fn length(&self) -> u32 {
        let longest = self.places.iter().map(|place| place.length).max();
        self.content.map(|content| content.length).or(longest).unwrap_or(0)
    }

    fn living(&self, dead: &BTreeSet<ServerId>) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| !dead.contains(&place.at.0))
    }

    fn place_mut(&mut self, at: At) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.at == at)
    }

    pub(super) fn note_flaw(&mut self, at: At, flaw: Flaw) {
        self.place_mut(at).into_iter().for_each(|place| place.flaw = Some(flaw));
    }

    pub(super) fn note_silence(&mut self, at: At) {
        let Some(place) = self.place_mut(at) else { return };
        place.silences += 1;
        if place.silences >= SILENCES_MAX {
            place.flaw = Some(Flaw::Silent);
        }
    }

    pub(super) fn note_answer(&mut self, at: At) {
        self.place_mut(at).into_iter().for_each(|place| place.silences = 0);
    }

    /// Whether a replica that ends like this is a whole one. One of an open segment has at least
    /// what was reported of it; where nothing is reported any more it was found damaged, and may
    /// end anywhere.
    pub(super) fn may_end(&mut self, at: At, end: Content) -> bool {
        match self.content {
            Some(content) => content == end || planted::is(Bug::StaleReplicaUsed),
            None => self.place_mut(at).is_some_and(|place| end.length >= place.length),
        }
    }

    /// Why it cannot be read, for people.
    pub(super) fn complaint(&self, (log, id): (ServerId, SegmentId)) -> String {
        let mut text = format!("{id} of log {log} cannot be read");
        for (nth, place) in self.places.iter().enumerate() {
            let what = match place.flaw {
                Some(Flaw::Missing) => "cannot read it",
                Some(Flaw::Differs) => "has something else",
                Some(Flaw::Damaged) => "has it damaged",
                Some(Flaw::Silent) => "does not answer",
                None => "is dead",
            };
            let mark = if nth == 0 { ":" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(text, "{mark} {} {what}", place.at.0);
        }
        text
    }
}
