//! Versions that clients have seen, and the rule that none of them belongs to two values.

use crate::failure::{Failure, Rule};
use crate::native;
use crate::settings::{Knob, RunSettings};
use std::collections::BTreeMap;

/// One seed in this many uses commands with versions.
const SEEDS_PER_RUN: u64 = 4;

/// Returns whether the clients of a run use commands with versions.
pub(crate) fn are_used(settings: &RunSettings) -> bool {
    let is_drawn = settings.seed % SEEDS_PER_RUN == 3 || native::are_used(settings);
    settings.has(Knob::Versions) && is_drawn
}

/// A version in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenVersion {
    /// The value, if the reply or the request tells it; `None`: there is no record.
    pub(crate) value: Option<u64>,
    /// The version; 0: there is no record.
    pub(crate) version: u64,
}

/// The versions of all registers that clients have seen.
#[derive(Debug, Default)]
pub(crate) struct SeenVersions {
    /// Value of each version, by register.
    values: BTreeMap<(usize, u64), u64>,
    /// Newest seen version of each value, by register.
    versions: BTreeMap<(usize, u64), u64>,
}

impl SeenVersions {
    /// Records a version, and checks that it never belonged to another value.
    pub(crate) fn record(&mut self, register: usize, seen: SeenVersion) -> Result<(), Failure> {
        let SeenVersion { value, version } = seen;
        let broken = |text: String| Err(Rule::VersionsUnique.broken(text));
        let Some(value) = value else {
            return match version {
                0 => Ok(()),
                _ => broken(format!("register {register} has no value, but version {version}")),
            };
        };
        if version == 0 {
            return broken(format!("register {register} has value {value}, but no version"));
        }
        self.versions.insert((register, value), version);
        match self.values.insert((register, version), value) {
            Some(before) if before != value => broken(format!(
                "version {version} of register {register} belongs to {before} and to {value}"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the newest version under which a value of a register was seen.
    pub(crate) fn version_of(&self, register: usize, value: u64) -> Option<u64> {
        self.versions.get(&(register, value)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_belongs_to_one_value() {
        let mut seen = SeenVersions::default();
        let mut record = |register, value, version| {
            seen.record(register, SeenVersion { value, version }).is_ok()
        };
        assert!(record(0, Some(7), 1) && record(0, Some(7), 1) && record(1, Some(8), 1));
        // A time to live has changed.
        assert!(record(0, Some(7), 2));
        assert!(!record(0, Some(8), 2));
        assert!(record(0, None, 0));
        assert!(!record(0, None, 3) && !record(0, Some(9), 0));
        assert_eq!((seen.version_of(0, 7), seen.version_of(0, 9)), (Some(2), None));
    }
}
