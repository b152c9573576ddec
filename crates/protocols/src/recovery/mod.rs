//! Recovery of one part of a dead server's ranges from the replicas of its log: the
//! [`RecoveryMaster`] of `docs/design/replication.md`, rules 10 to 13 and "A recovery master". A
//! part is a recovery partition, which the coordinator hands out with a list of all segments and
//! their replicas.
//!
//! Invariants:
//! - The master reports a part as *replayed* only when every segment of a complete list has been
//!   read to its correct end and all entries read are replayed. It reports *recovered* only when
//!   the entries written for the part are acknowledged by backups, too.
//! - Replayed entries are discarded, if necessary, only while no replay is running.
//! - Every message may be lost, delayed or repeated; the side that needs an answer repeats its
//!   question.
//!
//! The backup's side keeps no state, because each read names its start; it is not part of this
//! module. Bytes pass through as tickets.

mod events;
mod master;
mod places;
mod segments;
pub mod timing;

pub use events::{
    PartRefusal, PartitionName, RecoveryMasterEffect, RecoveryMasterEvent, ReplayFailure,
};
pub use master::{RecoveryMaster, RecoveryProgress};
