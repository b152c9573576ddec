//! What the values of a [`MigrationPolicy`] mean to the machines. They come from outside, so each
//! is brought into its limits where it is used.

use types::HashRange;
use types::limits::PARTITIONS_MAX;
use wire::control::{MigrationPolicy, PriorityPulls};

/// Fewest bytes of a pull: below, the message costs more than what it carries.
const PULL_BYTES_MIN: u32 = 1 << 10;

/// Most bytes of a pull: a quantum replays 64 KiB, so this is 16 of them.
const PULL_BYTES_MAX: u32 = 1 << 20;

/// Most replies of one partition that may wait for their replay; with [`PULL_BYTES_MAX`] and
/// [`PARTITIONS_MAX`] the memory of one migration's replies stays below 1 GiB whatever is asked.
const PULLS_AHEAD_MAX: u16 = 8;

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
        PriorityPulls::Batched { hashes_max } => (1, usize::from(hashes_max).max(1)),
        PriorityPulls::Immediate => (usize::MAX, 1),
    }
}
