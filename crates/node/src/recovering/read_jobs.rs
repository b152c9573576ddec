//! Disk jobs that read replicas of dead servers' logs.

use crate::messages::Route;
use ::backup::Replicas;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use types::{HashSeed, Instant};
use wire::peer::{RecoveryNext, RecoveryRead};

/// Maximum bytes of entries in one reply: 3,000 entries of 160 bytes, which are replayed in 1 ms.
pub(super) const REPLY_BYTES: usize = 512 << 10;

/// Requester of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadRequester {
    /// A recovery master on this server.
    Here,
    /// A recovery master on the server at the other end of the connection.
    There(Route),
}

/// A read in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogRead {
    pub(super) asker: ReadRequester,
    pub(super) read: RecoveryRead,
    pub(super) since: Instant,
}

/// Disk job that reads entries of a replica.
pub struct ReadJob {
    pub(super) disk: Arc<Replicas>,
    pub(super) seed: HashSeed,
    pub(super) reading: LogRead,
    pub(super) buffer: Vec<u8>,
}

/// Result of a [`ReadJob`].
pub struct ReadDone {
    pub(super) reading: LogRead,
    pub(super) next: RecoveryNext,
    pub(super) entries: Vec<u8>,
    /// Set if the disk has lost the replica, or returns data that was never written.
    pub(super) is_damaged: bool,
}

impl fmt::Debug for ReadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryRead { replica, range, from } = self.reading.read;
        write!(f, "read {range} of {replica} from {from}")
    }
}

impl fmt::Debug for ReadDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryRead { replica, range, .. } = self.reading.read;
        write!(f, "{} bytes of {range} of {replica}", self.entries.len())
    }
}

impl ReadJob {
    /// Runs the read. This may take as long as the disk needs for a segment.
    pub fn carry_out(self) -> ReadDone {
        let ReadJob { disk, seed, reading, buffer: mut entries } = self;
        let next = disk.entries(&reading.read, &seed, REPLY_BYTES, &mut entries);
        let mut is_damaged = false;
        let next = next.unwrap_or_else(|error| {
            is_damaged = error.kind() != ErrorKind::NotFound;
            if is_damaged {
                tracing::warn!(%error, "cannot read a replica of a dead server's log");
            }
            entries.clear();
            RecoveryNext::Missing
        });
        ReadDone { reading, next, entries, is_damaged }
    }
}

/// Reads for recovery masters that are queued at, or running on, this server's disk.
#[derive(Default)]
pub(crate) struct LogReads {
    pub(super) busy: Vec<LogRead>,
}
