//! Replication of a server's log to other servers' disks.
//!
//! The [`Replicator`] of a master places each segment on R backups, sends new bytes in pieces,
//! and reports which bytes are acknowledged. The [`Backup`] decides which replicas a server
//! writes, acknowledges and frees for other masters. Both implement rules 1 to 6 of
//! `docs/design/replication.md`.
//!
//! A replica is an *original* (epoch 0) if its backup was one of the R from the segment's
//! beginning. It is a *copy* (a higher epoch) if it was made of a closed segment to replace a
//! lost original. The log directory is the segment manifest; its own segments form the manifest
//! log.
//!
//! Invariants:
//! - While the manifest lists a segment as open, every original that ever existed has all
//!   acknowledged bytes, and a recovery may use any of them. A copy counts only once the manifest
//!   records the close with the segment's content: before that it may be too short.
//! - An original that a backup has refused or spoiled is never taken there later. The backup
//!   remembers the refusal until the master releases it, after the `close` is acknowledged in the
//!   manifest.
//! - A replica is released only when no manifest that a recovery could use lists it.
//! - Every message may be lost, delayed or repeated; the side that needs an answer repeats its
//!   question. On a connection that keeps the order, nothing is sent twice because it is slow.
//!
//! The segments of a log and those of its manifest log must have different ids.
//!
//! The drivers handle the bytes of pieces and the replica files. [`crate::directory`] holds the
//! content of the manifest. Everything that follows a master's death is elsewhere
//! ([`crate::recovery`] and the coordinator).

mod backup;
mod events;
mod lease;
mod manifest_segments;
mod placement;
mod quorum;
mod releases;
mod replica;
mod replica_counts;
mod replicator;
mod scrub;
mod segment;
mod silence;
mod suspicions;
mod text;
pub mod timing;

pub use backup::{AppendHeader, Backup, BackupEffect, BackupEvent, ScrubResult};
pub use events::{Piece, Promise, ReplicatorEffect, ReplicatorEvent, ReplicatorSettings};
pub use manifest_segments::ManifestSegments;
pub use placement::{BackupCandidate, Misplaced, Rack};
pub use quorum::{DIRECTORY, Quorum, fences, is_on_own_disk};
pub use replicator::{BackupCounts, Replicator};
pub use text::appended;
