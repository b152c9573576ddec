//! Keeping a server's log on other servers' disks.
//!
//! The [`Replicator`] of a master places each segment on R backups, sends what it gets in pieces,
//! and tells what is safe. The [`Backup`] decides what a server takes, answers and frees for others.
//! Rules 1 to 6 of `docs/design/replication.md`, which also says who may conclude what.
//!
//! A replica is an *original* (epoch 0) if its backup was one of the R from the segment's beginning,
//! or a *copy* (a higher epoch), made of a closed segment in place of a lost original.
//!
//! Invariants:
//! - while the directory says that a segment is open, every original that ever was has everything
//!   that was acknowledged, and a recovery may use any of them. A copy counts only when the
//!   directory says that the segment is closed, and what it contains: before, it may be too short;
//! - an original that a backup has refused or spoiled is never taken there afterwards: the backup
//!   remembers it until the master releases it, which is after the `close` is on the chain;
//! - a replica is released only when no directory that a recovery could use names it;
//! - every message may be lost, late or repeated. Whoever needs an answer asks again. (On a
//!   connection that keeps the order nothing is sent twice for being slow.)
//!
//! The segments of a log and those of its directory must have different numbers.
//!
//! Left out: the pieces' bytes and the files they stand in, which the drivers deal with; what the
//! directory says ([`crate::directory`]); everything that begins when a master is dead.

mod backup;
mod events;
mod lease;
mod losses;
mod manifest;
mod placement;
mod quorum;
mod releases;
mod replica;
mod replicator;
mod scrub;
mod segment;
mod silence;
mod suspicions;
mod text;
pub mod timing;

pub use backup::{Asked, Backup, BackupEffect, BackupEvent, Scrubbed};
pub use events::{Piece, Promise, ReplicatorEffect, ReplicatorEvent, Settings};
pub use manifest::Manifest;
pub use placement::{Candidate, Misplaced, Rack};
pub use quorum::{DIRECTORY, Quorum, fences, is_on_own_disk};
pub use replicator::{Holders, Replicator};
pub use text::appended;
