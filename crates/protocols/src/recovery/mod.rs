//! Recovering a part of what a dead server held, from the replicas of its log.
//!
//! The coordinator proves that the log is whole, cuts what its server owned into parts, and hands
//! each to a recovery master with a list of all segments and of where they can be read
//! (`docs/design/replication.md`, rules 10 to 13). Here is the [`Master`] of one part.
//!
//! The one idea: entries are replayed by version, so neither their order matters nor how often one
//! comes. A segment that cannot be read to its end at one backup is read again from its beginning
//! at the next; nothing has to be taken back.
//!
//! Invariants:
//! - a part is called replayed only when every segment of a whole list has been read to its right
//!   end, and all that was read is replayed; recovered, only when what was written for it is safe, too;
//! - what was replayed is forgotten, if it must be, only when no replay is under way any more;
//! - every message may be lost, late or repeated. Whoever needs an answer asks again.
//!
//! Left out: the backup's side, which keeps no state (a read says where it begins), and all bytes.

mod events;
mod master;
mod places;
mod segments;
pub mod timing;

pub use events::{MasterEffect, MasterEvent, NO_ROOM, PartName, ReplayFailure};
pub use master::{Master, Progress};
