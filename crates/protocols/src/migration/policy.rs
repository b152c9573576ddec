//! What the values of a [`MigrationPolicy`] mean to the machines. They come from outside, so each
//! is brought into its limits where it is used.

use types::HashRange;
use types::limits::PARTITIONS_MAX;
use wire::control::{MigrationPolicy, PriorityPulls};
use wire::peer::{PRIORITY_HASHES_MAX, PULL_BYTES_MAX};

/// Fewest bytes of a pull, and most replies of one partition that may wait for their replay: the
/// limits that the coordinator tells operators.
const PULL_BYTES_MIN: u32 = 1 << 10;
const PULLS_AHEAD_MAX: u16 = 64;

/// How a range is divided.
pub fn partitions(policy: &MigrationPolicy, range: HashRange) -> Vec<HashRange> {
    range.divide(usize::from(policy.partitions).clamp(1, PARTITIONS_MAX))
}

pub(super) fn pull_bytes(policy: &MigrationPolicy) -> u32 {
    policy.pull_bytes.clamp(PULL_BYTES_MIN, PULL_BYTES_MAX)
}

pub(super) fn pulls_ahead(policy: &MigrationPolicy) -> usize {
    usize::from(policy.pulls_ahead.clamp(1, PULLS_AHEAD_MAX))
}

/// Most priority pulls in flight, and most hashes of one.
pub(super) fn priority_limits(policy: &MigrationPolicy) -> (usize, usize) {
    match policy.priority {
        PriorityPulls::Off => (0, 0),
        PriorityPulls::Batched { hashes_max } => {
            (1, usize::from(hashes_max).clamp(1, PRIORITY_HASHES_MAX))
        }
        PriorityPulls::Immediate => (usize::MAX, 1),
    }
}
