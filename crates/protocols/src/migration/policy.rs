//! Interpretation of a [`MigrationPolicy`]. Its values come from other processes, so each value
//! is clamped to its limits where it is used.

use types::HashRange;
use types::limits::PARTITIONS_MAX;
use wire::control::{MigrationPolicy, PriorityPullMode};
use wire::peer::{PRIORITY_HASHES_MAX, PULL_BYTES_MAX};

/// Minimum bytes of a pull, and maximum replies per partition that may wait for their replay. The
/// coordinator reports these limits to operators.
const PULL_BYTES_MIN: u32 = 1 << 10;
const PULLS_AHEAD_MAX: u16 = 64;

const _: () = assert!(PULL_BYTES_MIN <= PULL_BYTES_MAX);
const _: () = assert!(PARTITIONS_MAX <= u16::MAX as usize, "a pull names its partition");

/// Returns the partitions of a range.
pub fn partitions(policy: &MigrationPolicy, range: HashRange) -> Vec<HashRange> {
    range.divide(usize::from(policy.partitions).clamp(1, PARTITIONS_MAX))
}

pub(super) fn pull_bytes(policy: &MigrationPolicy) -> u32 {
    policy.pull_bytes.clamp(PULL_BYTES_MIN, PULL_BYTES_MAX)
}

pub(super) fn pulls_ahead(policy: &MigrationPolicy) -> usize {
    usize::from(policy.pulls_ahead.clamp(1, PULLS_AHEAD_MAX))
}

/// Returns the maximum number of priority pulls in flight and the maximum hashes of each.
pub(super) fn priority_limits(policy: &MigrationPolicy) -> (usize, usize) {
    match policy.priority {
        PriorityPullMode::Off => (0, 0),
        PriorityPullMode::Batched { hashes_max } => {
            (1, usize::from(hashes_max).clamp(1, PRIORITY_HASHES_MAX))
        }
        PriorityPullMode::Immediate => (usize::MAX, 1),
    }
}
