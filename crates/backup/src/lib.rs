//! Replicas of segments on a disk: of this server's own log, or of other servers'.
//!
//! - [`Disk`]: numbered files, all that is asked of a disk; [`MemoryDisk`] is one without hardware,
//!   which loses power when it is told to;
//! - [`Replicas`]: which replicas a disk holds; makes, reads and frees them;
//! - [`Replica`]: one that is being written.
//!
//! The layout of a file is `wire::replica`; why it is so, and what it costs, is
//! `docs/design/backup.md`.
//!
//! **Invariant:** a replica that was made is found again, whatever happens then: its header is on
//! the disk before its first byte is taken.
//! **Invariant:** a replica takes only what continues it, so what was taken can be read back, up to
//! the first byte that the disk itself has lost.
//! **Invariant:** no file is used again, or removed, while its replica has not been freed or given up;
//! what cannot be read is left alone and told.
//! **Invariant:** of two files with one replica the one that was begun later counts.
//! **Invariant:** knows neither which segments a log has nor what is in them, but for the keys of
//! entries that a recovery asks for.

#![forbid(unsafe_code)]

mod disk;
mod entries;
mod files;
mod memory;
mod open;
mod replica;
mod replicas;

pub use disk::{Disk, DiskFile, FileNumber};
pub use memory::{Faults, MemoryDisk};
pub use replica::{AppendError, Replica};
pub use replicas::{Blocks, Opened, Replicas, Unreadable};
