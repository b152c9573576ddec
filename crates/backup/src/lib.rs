//! Replicas of segments on a disk: of this server's own log, or of other servers' logs.
//!
//! - [`Disk`]: the interface to a disk with numbered files; [`MemoryDisk`] is an implementation
//!   without hardware that can simulate a power failure;
//! - [`Replicas`]: the replicas on a disk; creates, reads and frees them;
//! - [`ReplicaWriter`]: a replica that is being written.
//!
//! The layout of a file is `wire::replica`; `docs/design/backup.md` explains the design, its
//! invariants and its costs. This crate knows neither the segments of a log nor their contents,
//! except for the keys of entries that a recovery requests.

#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod cache;
mod disk;
mod files;
mod memory;
mod replicas;
mod writer;

pub use disk::{Disk, DiskFile, FileNumber};
pub use memory::{Faults, MemoryDisk};
pub use replicas::{Blocks, OpenedReplicas, Replicas, UnreadableFile};
pub use writer::{AppendError, ReplicaWriter};
