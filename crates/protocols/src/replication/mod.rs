//! Replication of a server's log to other servers' disks: rules 1 to 6 of
//! `docs/design/replication.md`, which also gives the reasons.
//!
//! The [`Replicator`] of a master places each segment on R backups, sends new bytes in pieces,
//! and reports which bytes are acknowledged. The [`Backup`] decides which replicas a server
//! writes, acknowledges and frees for other masters. The segment manifest is the segment manifest; its
//! own segments form the manifest log, and must have other ids than those of the log.
//!
//! Every message may be lost, delayed or repeated; the side that needs an answer repeats its
//! question. On a connection that keeps the order, nothing is sent twice because it is slow.
//!
//! The drivers handle the bytes of pieces and the replica files. [`crate::segment_manifest`] holds the
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
pub use quorum::{Quorum, fences, is_on_own_disk};
pub use replicator::{BackupCounts, Replicator};
pub use text::appended;
