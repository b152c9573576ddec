//! Ids of the entries of streams.

use std::fmt;

/// Most entries of a stream, and most entries that are pending.
const IDS_MAX: usize = 10;

/// Bits of the second part of an id.
const SEQUENCE_BITS: u32 = 12;

/// First parts up to this limit are those that clients name.
const NAMED_MAX: u64 = 1 << 16;

/// First parts from clocks are stored without this, in milliseconds since 1970. The clocks of servers
/// are ahead or behind by less than 2^19 ms.
const CLOCK_BASE: u64 = 1_700_000_000_000 - (1 << 19);

/// Upper limit of stored first parts.
const STORED_MAX: u64 = 1 << (u32::BITS - SEQUENCE_BITS);

/// Id of an entry. 0 is below all of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u32);

impl EntryId {
    /// An id from a clock that nobody has seen.
    pub(super) const UNKNOWN: EntryId = EntryId(u32::MAX);

    /// Returns the id of these two parts; `None` if neither clients nor clocks make such a one.
    pub fn new(first: u64, second: u64) -> Option<EntryId> {
        let stored = match first {
            0..NAMED_MAX => first,
            _ => first.checked_sub(CLOCK_BASE).filter(|it| (NAMED_MAX..STORED_MAX).contains(it))?,
        };
        let id = (stored << SEQUENCE_BITS) + second;
        let is_possible = second < 1 << SEQUENCE_BITS && id > 0;
        is_possible.then_some(EntryId(id as u32)).filter(|id| *id != EntryId::UNKNOWN)
    }

    /// Returns both parts.
    pub fn parts(self) -> (u64, u64) {
        let stored = u64::from(self.0 >> SEQUENCE_BITS);
        let first = if stored < NAMED_MAX { stored } else { stored + CLOCK_BASE };
        (first, u64::from(self.0) & ((1 << SEQUENCE_BITS) - 1))
    }

    /// Returns whether the first part is from a clock.
    pub fn is_of_clock(self) -> bool {
        u64::from(self.0 >> SEQUENCE_BITS) >= NAMED_MAX
    }

    /// Returns a number for the id.
    pub fn number(self) -> u64 {
        self.0.into()
    }

    /// Returns the id that follows.
    pub fn next(self) -> EntryId {
        EntryId(self.0 + 1)
    }

    /// Returns the lowest id with this first part, which is 0 for 0.
    pub(super) fn first_of(first: u16) -> EntryId {
        EntryId(u32::from(first) << SEQUENCE_BITS)
    }

    /// Returns whether the id has the same first part as this lowest one.
    pub(super) fn is_behind(self, lowest: EntryId) -> bool {
        self.0 >> SEQUENCE_BITS == lowest.0 >> SEQUENCE_BITS
    }

    /// Returns whether an observation can be of this id.
    pub(super) fn may_be(self, seen: EntryId) -> bool {
        self == seen || self == EntryId::UNKNOWN && seen.is_of_clock()
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EntryId::UNKNOWN => f.write_str("?"),
            id => write!(f, "{}-{}", id.parts().0, id.parts().1),
        }
    }
}

/// Ids in the order in which their entries were added.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryIds {
    ids: [EntryId; IDS_MAX],
    count: u8,
}

impl EntryIds {
    /// Returns these ids; `None` if there are too many.
    pub fn of(ids: impl IntoIterator<Item = EntryId>) -> Option<EntryIds> {
        let mut all = EntryIds::default();
        ids.into_iter().all(|id| all.push(id)).then_some(all)
    }

    /// Returns the ids.
    pub fn as_slice(&self) -> &[EntryId] {
        &self.ids[..usize::from(self.count)]
    }

    /// Returns a number that stands for the ids.
    pub fn number(&self) -> u64 {
        let mix = |sum: u64, id: &EntryId| (sum ^ id.number()).wrapping_mul(0x0100_0000_01b3);
        self.as_slice().iter().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Returns the number of ids.
    pub(super) fn count(&self) -> u8 {
        self.count
    }

    fn push(&mut self, id: EntryId) -> bool {
        let is_possible = usize::from(self.count) < IDS_MAX;
        if is_possible {
            self.ids[usize::from(self.count)] = id;
            self.count += 1;
        }
        is_possible
    }

    /// Adds an id. Clients take care that there are few.
    pub(super) fn add(&mut self, id: EntryId) {
        let is_added = self.push(id);
        assert!(is_added, "there are more ids than the checker can follow: {self:?}");
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.ids[at..].rotate_left(1);
        self.ids[IDS_MAX - 1] = EntryId::default();
        self.count -= 1;
    }

    pub(super) fn find(&self, id: EntryId) -> Option<usize> {
        self.as_slice().iter().position(|it| *it == id)
    }

    pub(super) fn may_be(&self, seen: &EntryIds) -> bool {
        let pairs = || self.as_slice().iter().zip(seen.as_slice());
        self.count == seen.count && pairs().all(|(id, seen)| id.may_be(*seen))
    }
}

impl fmt::Debug for EntryIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Pending entries of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSummary {
    /// Their number.
    pub count: u64,
    /// The first and the last one.
    pub ends: Option<[EntryId; 2]>,
}

impl PendingSummary {
    pub(super) fn of(pending: &EntryIds) -> PendingSummary {
        let ids = pending.as_slice();
        let ends = ids.first().zip(ids.last()).map(|(first, last)| [*first, *last]);
        PendingSummary { count: ids.len() as u64, ends }
    }

    pub(super) fn may_be(&self, seen: &PendingSummary) -> bool {
        let are_alike = |[first, last]: [EntryId; 2], seen: [EntryId; 2]| {
            first.may_be(seen[0]) && last.may_be(seen[1])
        };
        let ends = self.ends.zip(seen.ends);
        self.count == seen.count && ends.is_none_or(|(ends, seen)| are_alike(ends, seen))
    }
}
