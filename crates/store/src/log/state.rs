//! States, positions and snapshots of segments, as plain data.

use types::SegmentId;

/// Index of a segment-sized part of the arena. It holds one segment after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

/// State of a segment. The numbers are stored in the word that counts the dead bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Unused.
    Free = 0,
    /// A head appends to it.
    Open = 1,
    /// Part of a side log: its entries are live, but it has not joined the log yet.
    Side = 2,
    /// Completely written. Its live bytes only fall.
    Closed = 3,
    /// Claimed by a cleaner, which copies the live entries.
    Cleaning = 4,
    /// Without live entries; waits until no reader can see it.
    Retired = 5,
    /// Divided into chunks for the index; holds no entries.
    Chunks = 6,
    /// Durable log only: a cleaner has processed all of it and copied everything needed.
    Visited = 7,
    /// Durable log only: visited and without live entries. It may still be read after a crash.
    Leaving = 8,
}

impl SegmentState {
    /// Number of states.
    pub(super) const COUNT: usize = 9;

    const ALL: [SegmentState; SegmentState::COUNT] = [
        SegmentState::Free,
        SegmentState::Open,
        SegmentState::Side,
        SegmentState::Closed,
        SegmentState::Cleaning,
        SegmentState::Retired,
        SegmentState::Chunks,
        SegmentState::Visited,
        SegmentState::Leaving,
    ];
}

impl SegmentState {
    /// Returns whether a segment may change from this state to another.
    pub(super) fn may_become(self, next: SegmentState) -> bool {
        match self {
            SegmentState::Free => {
                matches!(next, SegmentState::Open | SegmentState::Side | SegmentState::Chunks)
            }
            SegmentState::Open => matches!(next, SegmentState::Closed | SegmentState::Retired),
            SegmentState::Side => next == SegmentState::Closed,
            SegmentState::Closed => matches!(next, SegmentState::Cleaning | SegmentState::Retired),
            SegmentState::Cleaning => {
                matches!(next, SegmentState::Closed | SegmentState::Visited)
            }
            SegmentState::Visited => next == SegmentState::Leaving,
            SegmentState::Leaving => next == SegmentState::Retired,
            SegmentState::Retired | SegmentState::Chunks => next == SegmentState::Free,
        }
    }
}

/// State (high half) and dead bytes (low half) of a segment, updated atomically together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateWord(u64);

impl StateWord {
    #[inline]
    pub(super) fn new(state: SegmentState, dead: u32) -> StateWord {
        StateWord((state as u64) << 32 | u64::from(dead))
    }

    /// Returns the word with this value of [`StateWord::raw`].
    #[inline]
    pub(super) fn from_raw(raw: u64) -> StateWord {
        StateWord(raw)
    }

    #[inline]
    pub(super) fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn state(self) -> SegmentState {
        SegmentState::ALL[(self.0 >> 32) as usize]
    }

    #[inline]
    pub(super) fn dead(self) -> u32 {
        self.0 as u32
    }
}

/// Kind of entries that a segment receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    /// Writes of clients.
    Writes,
    /// Entries that are durable elsewhere until they are durable here: survivors, arriving
    /// records.
    Copies,
}

/// A position in a segment for which a caller awaits durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) place: Place,
    pub(super) segment: SegmentId,
    pub(super) end: u32,
}

/// A snapshot of a segment's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentSnapshot {
    pub(super) state: SegmentState,
    pub(super) written: u32,
    pub(super) dead: u32,
    /// Resident bytes, as far as known.
    pub(super) touched: u32,
}

impl SegmentSnapshot {
    pub(super) fn live(&self) -> u32 {
        // Free segments and chunk segments have no entries. The two values are loaded separately,
        // so the difference saturates at 0.
        self.written.saturating_sub(self.dead)
    }
}
