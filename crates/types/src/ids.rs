//! Identifiers and counters, each a type of its own.

use crate::limits::TABLES_MAX;
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

/// A table: what Redis calls a database. Table 0 is the one that clients start in. Decoding refuses
/// those that no server has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u8")]
pub struct TableId(pub u8);

printed!(TableId, "t");

impl TryFrom<u8> for TableId {
    type Error = OutOfBounds;

    fn try_from(number: u8) -> Result<TableId, OutOfBounds> {
        let is_one = usize::from(number) < TABLES_MAX;
        is_one.then_some(TableId(number)).ok_or(OutOfBounds { what: "table", end: TABLES_MAX })
    }
}

/// A number from outside is above the last one there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Meaning of the number.
    pub what: &'static str,
    /// The first number that is refused.
    pub end: usize,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the number of a {} must be below {}", self.what, self.end)
    }
}

impl std::error::Error for OutOfBounds {}

number!(
    /// One run of one server process, given by the coordinator and never used twice: a process
    /// that starts again is a new server. So it fences by itself, without a generation beside it.
    ServerId(u32),
    "s"
);
number!(
    /// Position of a reactor among its server's reactors, from 0.
    ReactorId(u16),
    "r"
);
number!(
    /// A segment of one server's log. Given in order of opening, never used twice by a server.
    SegmentId(u64),
    "seg"
);
/// Order of the writes of one key. Drawn from the server's one counter while the key's leaf is
/// locked; higher is newer. 0 is below every version that a write draws. Decoding refuses those
/// above [`Version::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Version(pub u64);

printed!(Version, "v");
number!(
    /// Rises at every change of a tablet's owner. A message with an older one changes nothing.
    OwnershipEpoch(u64),
    "e"
);
/// Given when a server starts to hold a range from nothing; every log entry carries the tenure
/// under which it was written. 48 bits: decoding refuses those above [`Tenure::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Tenure(pub u64);

printed!(Tenure, "n");
number!(
    /// One migration, given by the coordinator with its intent and never used twice.
    MigrationId(u64),
    "m"
);
number!(
    /// A cluster, drawn at random when its coordinator starts for the first time.
    ClusterId(u64),
    "c"
);

number!(
    /// One run of one process, drawn at random when it starts. It tells a process that connects
    /// again from another one that claims the same number.
    Generation(u64),
    "g"
);

impl Tenure {
    /// The highest tenure that fits into a log entry.
    pub const MAX: Tenure = Tenure((1 << 48) - 1);
}

impl TryFrom<u64> for Tenure {
    type Error = OutOfBounds;

    fn try_from(number: u64) -> Result<Tenure, OutOfBounds> {
        let end = Tenure::MAX.0 as usize + 1;
        (number <= Tenure::MAX.0)
            .then_some(Tenure(number))
            .ok_or(OutOfBounds { what: "tenure", end })
    }
}

impl Version {
    /// The highest version that is taken from outside. Whoever has drawn a billion a second for a
    /// century is below it, and who is told it can draw as many again.
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
    /// The 40 hexadecimal digits by which Redis clients know this server: cluster and number,
    /// spread over 20 bytes so that no two servers share a prefix that a person would confuse.
    pub fn node_name(self, cluster: ClusterId) -> String {
        let mut state = cluster.0 ^ (u64::from(self.0) << 32) ^ u64::from(self.0);
        let mut name = String::with_capacity(40);
        while name.len() < 40 {
            // SplitMix64 (Steele, Lea, Flood 2014): one step per 16 digits.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            name.push_str(&format!("{:016x}", z ^ (z >> 31)));
        }
        name.truncate(40);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
