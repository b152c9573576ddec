//! Identifiers and counters, each with its own type.

use crate::limits::{DATABASES, TABLES_MAX};
use crate::random::SplitMix64;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        printed!($name, $prefix);
    };
}

macro_rules! printed {
    ($name:ident, $prefix:literal) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

/// Number of a table: a database of Redis, or a table of the server's own. Clients start in table 0. Decoding refuses numbers that no server has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct TableId(pub u8);

printed!(TableId, "t");

impl TableId {
    /// Table of the completion records of exactly-once requests. No client can select it, and no
    /// flush empties it (`docs/design/exactly-once.md`).
    pub const COMPLETIONS: TableId = TableId(DATABASES as u8);

    /// Table of the pages of split values. No client can select it, and no flush empties it
    /// (`docs/design/values.md`).
    pub const PAGES: TableId = TableId(DATABASES as u8 + 1);

    /// Returns whether clients can select the table.
    #[inline]
    pub fn is_database(self) -> bool {
        usize::from(self.0) < DATABASES
    }
}

impl TryFrom<u8> for TableId {
    type Error = OutOfBounds;

    fn try_from(number: u8) -> Result<TableId, OutOfBounds> {
        let is_one = usize::from(number) < TABLES_MAX;
        is_one.then_some(TableId(number)).ok_or(OutOfBounds { what: "table", end: TABLES_MAX })
    }
}

/// Error: a number from outside is above the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Meaning of the number.
    pub what: &'static str,
    /// Lowest number that is refused.
    pub end: usize,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the number of a {} must be below {}", self.what, self.end)
    }
}

impl std::error::Error for OutOfBounds {}

number!(
    /// Number of a server, assigned by the coordinator and never reused. A process may rejoin
    /// under a number only if it has everything that was acknowledged under it: the same run, or
    /// a restart of a lone server with its own log. Any other restart is a new server. So the
    /// number fences by itself, without a generation beside it.
    ServerId(u32),
    "s"
);
number!(
    /// Position of a reactor among its server's reactors, from 0.
    ReactorId(u16),
    "r"
);
number!(
    /// Number of a segment in one server's log, in order of opening and never reused.
    SegmentId(u64),
    "seg"
);
/// Order of the writes of one key; higher is newer. Drawn from the server's counter while the
/// key's leaf is locked. 0 is below every version that a write draws. Decoding refuses versions
/// above [`Version::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Version(pub u64);

printed!(Version, "v");
number!(
    /// Ownership epoch of a tablet. Rises at every change of its owner. A message with an older
    /// epoch has no effect.
    OwnershipEpoch(u64),
    "e"
);
/// Incarnation of a range: assigned when a server begins to hold the range without earlier
/// entries of its own, and again at a flush. Every log entry carries the incarnation under which
/// it was written; entries under another one are void. 48 bits: decoding refuses numbers above
/// [`Incarnation::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Incarnation(pub u64);

printed!(Incarnation, "n");
number!(
    /// Number of a migration, assigned by the coordinator with its intent and never reused.
    MigrationId(u64),
    "m"
);
number!(
    /// Number of a client's lease for exactly-once requests, in order of granting and never given
    /// twice: the coordinator's term, then a counter. It identifies the client.
    LeaseId(u64),
    "l"
);
number!(
    /// Identifier of a cluster, drawn at random when its coordinator starts for the first time.
    ClusterId(u64),
    "c"
);

number!(
    /// Identifier of one run of a process, drawn at random at its start. It distinguishes a
    /// process that reconnects from another one that claims the same server number.
    Generation(u64),
    "g"
);

impl SegmentId {
    /// Lowest id of a manifest segment. Its bit is set in the ids of all of them, and clear in the
    /// ids of data segments.
    pub const FIRST_OF_MANIFEST: SegmentId = SegmentId(1 << 63);

    /// Returns whether the segment belongs to the manifest log, not to the data log.
    #[inline]
    pub const fn is_manifest(self) -> bool {
        self.0 >= SegmentId::FIRST_OF_MANIFEST.0
    }
}

impl Incarnation {
    /// Highest incarnation that fits into a log entry.
    pub const MAX: Incarnation = Incarnation((1 << 48) - 1);

    /// Lowest incarnation that is derived and not drawn: see [`Incarnation::complete`].
    pub const FIRST_DERIVED: Incarnation = Incarnation(1 << 47);

    /// Adds the incarnations of the server's own tables to a list of a version that did not have
    /// them. They are derived from those of tables 0 and 1, with a bit that no drawn incarnation has.
    /// Thus every reader of the list derives the same ones, and no entry of that version has them.
    pub fn complete(incarnations: &mut Vec<Incarnation>) {
        for table in [TableId::COMPLETIONS, TableId::PAGES] {
            if incarnations.len() == usize::from(table.0) {
                let from = incarnations[incarnations.len() - DATABASES];
                incarnations.push(Incarnation(from.0 | Incarnation::FIRST_DERIVED.0));
            }
        }
    }
}

impl TryFrom<u64> for Incarnation {
    type Error = OutOfBounds;

    fn try_from(number: u64) -> Result<Incarnation, OutOfBounds> {
        let end = Incarnation::MAX.0 as usize + 1;
        (number <= Incarnation::MAX.0)
            .then_some(Incarnation(number))
            .ok_or(OutOfBounds { what: "incarnation", end })
    }
}

impl Version {
    /// Highest version accepted from outside. A server that draws a billion versions per second
    /// for a century stays below it, and a server that adopts it can draw as many again.
    pub const MAX: Version = Version(1 << 62);
}

impl TryFrom<u64> for Version {
    type Error = OutOfBounds;

    fn try_from(number: u64) -> Result<Version, OutOfBounds> {
        let end = Version::MAX.0 as usize + 1;
        (number <= Version::MAX.0)
            .then_some(Version(number))
            .ok_or(OutOfBounds { what: "version", end })
    }
}

impl ServerId {
    /// Returns the 40 hexadecimal digits that identify this server to Redis clients: cluster and
    /// number, mixed over 20 bytes so that different servers have visibly different names.
    pub fn node_name(self, cluster: ClusterId) -> String {
        let seed = cluster.0 ^ (u64::from(self.0) << 32) ^ u64::from(self.0);
        let mut random = SplitMix64::new(seed);
        let mut name = String::with_capacity(40);
        while name.len() < 40 {
            name.push_str(&format!("{:016x}", random.draw()));
        }
        name.truncate(40);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_an_earlier_version_gets_the_incarnations_of_the_other_tables() {
        let mut list: Vec<Incarnation> = (1..=DATABASES as u64).map(Incarnation).collect();
        let drawn = list.clone();
        Incarnation::complete(&mut list);
        assert_eq!(list[..DATABASES], drawn);
        assert_eq!(list[DATABASES..], [1 | 1 << 47, 2 | 1 << 47].map(Incarnation));
        let mut with_completions = drawn.clone();
        with_completions.push(Incarnation(99));
        Incarnation::complete(&mut with_completions);
        assert_eq!(with_completions[DATABASES..], [99, 2 | 1 << 47].map(Incarnation));
        let complete = list.clone();
        Incarnation::complete(&mut list);
        assert_eq!(list, complete);
        assert!(list.len() == TABLES_MAX && list[DATABASES] <= Incarnation::MAX);
    }

    #[test]
    fn node_names_have_forty_hex_digits_and_differ() {
        let a = ServerId(1).node_name(ClusterId(7));
        let b = ServerId(2).node_name(ClusterId(7));
        assert_eq!(a.len(), 40);
        assert!(a.bytes().all(|c| c.is_ascii_hexdigit()));
        assert_ne!(a[..8], b[..8]);
        assert_eq!(a, ServerId(1).node_name(ClusterId(7)));
    }
}
