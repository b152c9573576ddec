//! Times to live of values, and the bounds within which each of them ends.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Time to live that a client gives to a value. Each one has a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// Ends some time after the request is executed, a time that is computed from the number.
    After(u64),
    /// The second number is the time at which it ends, in milliseconds since 1970.
    Until(u64, u64),
    /// Ends at any time.
    Unknown,
}

/// Bounds within which a time to live ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Moments between which the value disappears: not before the first one, and operations that
    /// begin after the last one do not find it. An operation that gives the time to live does not
    /// end after the last one.
    pub moments: RangeInclusive<u64>,
    /// Deadline in milliseconds, by the clock of the range.
    pub deadline: RangeInclusive<u64>,
}

/// Bounds of the times to live in one history. A value whose time to live has no bounds may
/// disappear at any time, but does not come back.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    /// Bounds of each time to live that was certainly given.
    pub given: BTreeMap<Lifetime, Life>,
    /// Bounds of the deadline that an answer has shown, by the first moment of its operation.
    pub shown: BTreeMap<u64, RangeInclusive<u64>>,
}

impl Lives {
    pub(super) fn moments(&self, lifetime: Lifetime) -> Option<&RangeInclusive<u64>> {
        self.given.get(&lifetime).map(|life| &life.moments)
    }

    /// Returns the lifetime if anything is known of it. All others are equal.
    pub(super) fn known(&self, lifetime: Lifetime) -> Lifetime {
        if self.given.contains_key(&lifetime) { lifetime } else { Lifetime::Unknown }
    }

    /// Returns whether the operation that began at a moment may have shown the deadline of this
    /// lifetime.
    pub(super) fn may_show(&self, lifetime: Lifetime, begun: u64) -> bool {
        let (Some(shown), Some(life)) = (self.shown.get(&begun), self.given.get(&lifetime)) else {
            return true;
        };
        shown.start() <= life.deadline.end() && life.deadline.start() <= shown.end()
    }
}
