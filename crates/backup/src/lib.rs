//! Replicas of segments on a disk: of this server's own log, or of other servers' logs.
//!
//! - [`Disk`]: the interface to a disk with numbered files; [`MemoryDisk`] is an implementation
//!   without hardware that can simulate a power failure;
//! - [`Replicas`]: the replicas on a disk; creates, reads and frees them;
//! - [`ReplicaWriter`]: a replica that is being written.
//!
//! The layout of a file is `wire::replica`; `docs/design/backup.md` explains the design and its
//! costs.
//!
//! Invariants:
//! - A created replica is found again in every case: its header is on the disk before its first
//!   byte is accepted.
//! - A replica accepts only its own continuation. So accepted bytes can be read back, up to the
//!   first byte that the disk itself has lost.
//! - A file is not reused or removed before its replica was freed or given up. A file that cannot
//!   be read is left alone and reported.
//! - Of two files with one replica, the one that was begun later counts.
//! - This crate knows neither the segments of a log nor their contents, except for the keys of
//!   entries that a recovery requests.

#![forbid(unsafe_code)]
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
