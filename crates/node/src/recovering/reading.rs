//! Reads of dead servers' logs on this server's disk, for recovery masters.
//!
//! A read waits for the disk and examines every entry, so it is left in the engine's outbox as a
//! [`ReadJob`]. A recovery master may also read from its own server.

use crate::Route;
use crate::context::Context;
use crate::outgoing::{DiskJob, Payload, Sending, To};
use ::backup::Replicas;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use types::{HashSeed, Instant};
use wire::control::LogUpdate;
use wire::peer::{PeerMessage, RecoveryNext, RecoveryRead, RecoveryReply};
use wire::replica::ReplicaId;

/// Maximum bytes of entries in one reply: 3,000 entries of 160 bytes, which are replayed in 1 ms.
const REPLY_BYTES: usize = 512 << 10;

/// Maximum number of reads in progress per reactor: 64 MiB of buffers.
const READINGS_MAX: usize = 128;

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
struct LogRead {
    asker: ReadRequester,
    read: RecoveryRead,
    since: Instant,
}

/// Disk job that reads entries of a replica.
pub struct ReadJob {
    disk: Arc<Replicas>,
    seed: HashSeed,
    reading: LogRead,
    buffer: Vec<u8>,
}

/// Result of a [`ReadJob`].
pub struct ReadDone {
    reading: LogRead,
    next: RecoveryNext,
    entries: Vec<u8>,
    /// Set if the disk has lost the replica, or returns data that was never written.
    is_damaged: bool,
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
    busy: Vec<LogRead>,
}

impl Context<'_> {
    /// Reads a replica for a recovery master. A log that is not fenced is not readable.
    pub(crate) fn read(&mut self, asker: ReadRequester, read: RecoveryRead) {
        let replication = self.node.durability();
        if !replication.is_with_others() {
            return;
        }
        let is_same = |busy: &LogRead| (busy.asker, busy.read) == (asker, read);
        // A repeated request is already being served.
        if !replication.is_log_fenced(read.replica.log) || self.reads.busy.iter().any(is_same) {
            return;
        }
        // Each read has a buffer. The requester repeats a read that is dropped here.
        if self.reads.busy.len() >= READINGS_MAX {
            return;
        }
        let reading = LogRead { asker, read, since: self.now };
        self.reads.busy.push(reading);
        assert!(self.reads.busy.len() <= READINGS_MAX, "the number of buffers is bounded");
        let buffer = self.buffers.take(REPLY_BYTES);
        let (disk, seed) = (replication.disk().clone(), self.node.store().seed().clone());
        self.out.disk.push(DiskJob::Read(ReadJob { disk, seed, reading, buffer }));
    }

    /// Handles the result of a read. Returns the reply to a recovery master of this server.
    pub(crate) fn on_read(&mut self, done: ReadDone) -> Option<(RecoveryReply, Payload)> {
        let ReadDone { reading, next, entries, is_damaged } = done;
        let before = self.reads.busy.len();
        self.reads.busy.retain(|busy| *busy != reading);
        assert_eq!(self.reads.busy.len() + 1, before, "each read ends once");
        self.judge_replica(reading.read.replica, next, is_damaged);
        let spent: Duration = self.now.since(reading.since);
        self.node.recovery_counts.read(entries.len(), spent);
        let RecoveryRead { replica, range, from } = reading.read;
        let reply = RecoveryReply { replica, range, from, next };
        match reading.asker {
            ReadRequester::Here => return Some((reply, Payload { buffer: entries, start: 0 })),
            ReadRequester::There(route) => self.out.peers.push(Sending {
                to: To::Back(route),
                is_priority: false,
                message: PeerMessage::RecoveryReply(reply),
                payload: entries,
            }),
        }
        None
    }

    /// Reports an unreadable replica, or one shorter than reported, to the coordinator.
    fn judge_replica(&mut self, replica: ReplicaId, next: RecoveryNext, is_damaged: bool) {
        let replication = self.node.durability();
        let is_short = match next {
            RecoveryNext::End { length, .. } => replication.is_short(replica, length),
            RecoveryNext::From(_) | RecoveryNext::Missing => false,
        };
        if is_damaged || is_short {
            replication.disk_counts().note_damaged();
            let ReplicaId { log, segment, epoch } = replica;
            self.out.control.push(LogUpdate::Damaged { log, segment, epoch }.into());
        }
    }
}
