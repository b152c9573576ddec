//! Reads of dead servers' logs on this server's disk, for recovery masters.
//!
//! A read waits for the disk and examines every entry, so it is left in the engine's outbox as a
//! [`ReadJob`]. A recovery master may also read from its own server.

use super::read_jobs::{LogRead, REPLY_BYTES, ReadDone, ReadJob, ReadRequester};
use crate::context::Context;
use crate::messages::{Payload, Sending, To};
use crate::outgoing::DiskJob;
use std::time::Duration;
use wire::control::LogUpdate;
use wire::peer::{PeerMessage, RecoveryNext, RecoveryRead, RecoveryReply};
use wire::replica::ReplicaId;

/// Maximum number of reads in progress per reactor: 64 MiB of buffers.
const READINGS_MAX: usize = 128;

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
