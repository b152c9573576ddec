//! Background work that any reactor of a server may take, in order of its arrival.

use crate::messages::Payload;
use protocols::Ticket;
use protocols::migration::Added;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use store::log::{GracePeriod, Log};
use store::{Arrival, Recovery};
use types::{HashRange, KeyHash, MigrationId, OwnershipEpoch, ServerId};
use wire::peer::Pull;

/// A piece of background work. Each quantum does a bounded part of it and requeues the rest.
#[derive(Debug)]
pub(crate) enum Work {
    /// Send a pull, queued so that the pulls of a migration leave from different reactors.
    Pull(ServerId, Pull),
    /// Replay the records of a pull's reply.
    Replay(PullReplay),
    /// Delete the records of a range that its new owner has.
    Forget { migration: MigrationId, range: HashRange, cursor: KeyHash },
    /// Reclaim the tombstones of a migration that has ended, once every reactor has begun a turn.
    Sweep(Arc<Arrival>, GracePeriod),
    /// Replay entries of a dead server's log that a backup has sent.
    ReplayLog(ReplayLog),
    /// Delete the replayed records of a recovery partition that this server will not own.
    ForgetReplayed { epoch: OwnershipEpoch, range: HashRange, cursor: KeyHash },
    /// Reclaim tombstones of a recovered partition.
    SweepRecovery(Arc<Recovery>),
}

impl Work {
    /// Returns whether the work appends records that arrive, for which memory must be ready.
    fn is_replay(&self) -> bool {
        match self {
            Work::Replay(_) | Work::ReplayLog(_) => true,
            Work::Pull(..)
            | Work::Forget { .. }
            | Work::Sweep(..)
            | Work::ForgetReplayed { .. }
            | Work::SweepRecovery(_) => false,
        }
    }
}

/// A pull's reply that is being replayed into the store.
#[derive(Debug)]
pub(crate) struct PullReplay {
    pub(crate) arrival: Arc<Arrival>,
    pub(crate) partition: u16,
    pub(crate) ticket: Ticket,
    pub(crate) payload: Payload,
    /// Number of payload bytes already replayed.
    pub(crate) from: usize,
    /// Records and bytes added so far.
    pub(crate) added: Added,
}

/// A backup's reply that is being replayed into the store.
#[derive(Debug)]
pub(crate) struct ReplayLog {
    pub(crate) recovery: Arc<Recovery>,
    pub(crate) epoch: OwnershipEpoch,
    pub(crate) ticket: Ticket,
    /// Set if every known replica of the log has the entries, so that later readers find them.
    pub(crate) is_common: bool,
    pub(crate) payload: Payload,
    /// Number of payload bytes already replayed.
    pub(crate) from: usize,
}

/// Queue of background work. Every turn reads its length, without the lock.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    length: AtomicUsize,
    /// Number of replays in the queue.
    replays: AtomicUsize,
    work: Mutex<VecDeque<Work>>,
}

impl WorkQueue {
    pub(crate) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, work: Work) {
        self.change(|queue, replays| {
            *replays += usize::from(work.is_replay());
            queue.push_back(work);
        });
    }

    /// Puts an unfinished piece of work back to the front of the queue.
    pub(crate) fn put_back(&self, work: Work) {
        self.change(|queue, replays| {
            *replays += usize::from(work.is_replay());
            queue.push_front(work);
        });
    }

    /// Takes the next piece of work. Replays stay in the queue while they must wait for ready
    /// segments of the log.
    pub(crate) fn pop(&self, log: &Log) -> Option<Work> {
        if self.len() == 0 {
            return None;
        }
        let may_replay = log.ready_segments().suffice_for_replay();
        self.change(|queue, replays| {
            let next = queue.iter().position(|work| may_replay || !work.is_replay())?;
            let work = queue.remove(next)?;
            *replays -= usize::from(work.is_replay());
            Some(work)
        })
    }

    /// Returns whether [`WorkQueue::pop`] would return something.
    pub(crate) fn has_work(&self, log: &Log) -> bool {
        let length = self.len();
        length > self.replays.load(Ordering::Relaxed)
            || length > 0 && log.ready_segments().suffice_for_replay()
    }

    /// Changes the queue, and the number of replays in it.
    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Work>, &mut usize) -> T) -> T {
        let mut queue = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.length.load(Ordering::Relaxed);
        assert_eq!(known, queue.len(), "turns read the length of the queue");
        let mut replays = self.replays.load(Ordering::Relaxed);
        let result = change(&mut queue, &mut replays);
        assert!(replays <= queue.len(), "{replays} replays in a queue of {}", queue.len());
        self.length.store(queue.len(), Ordering::Relaxed);
        self.replays.store(replays, Ordering::Relaxed);
        result
    }
}

/// The purpose of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Migration to another server: serve pulls, and delete moved records.
    Export,
    /// Migration to this server: send pulls, replay records, and reclaim tombstones.
    Import,
    /// Cleaning: free the memory of overwritten and deleted records.
    Clean,
    /// Flushes of tables.
    Flush,
    /// Recovery of dead servers' data: replay records, and reclaim or delete what remains.
    Recover,
    /// Eviction: delete records because memory is scarce.
    Evict,
}

impl Background {
    /// All purposes, with their names in metrics.
    pub const ALL: [(Background, &'static str); 6] = [
        (Background::Export, "export"),
        (Background::Import, "import"),
        (Background::Clean, "clean"),
        (Background::Flush, "flush"),
        (Background::Recover, "recover"),
        (Background::Evict, "evict"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::ArrivalPlan;
    use store::log::{LogConfig, Preparation};
    use types::limits::SEGMENT_BYTES_MIN;
    use wire::peer::RecordCounts;

    fn replay() -> Work {
        let range = HashRange::ALL;
        let arrival = Arrival::new(ArrivalPlan {
            migration: MigrationId(1),
            source: ServerId(1),
            range,
            partitions: vec![range],
            expected: RecordCounts::default(),
            reservation: None,
        });
        Work::Replay(PullReplay {
            arrival: Arc::new(arrival),
            partition: 0,
            ticket: Ticket(1),
            payload: Payload { buffer: Vec::new(), start: 0 },
            from: 0,
            added: Added::default(),
        })
    }

    #[test]
    fn replays_wait_for_ready_memory_and_other_work_does_not() {
        let log = Log::new(&LogConfig {
            memory_bytes: 16 * SEGMENT_BYTES_MIN,
            reactors: 1,
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        });
        let log = log.unwrap();
        log.ready_segments().set_helpers(2, Box::new(|_| ()));
        let queue = WorkQueue::default();
        queue.push(replay());
        assert!(!queue.has_work(&log) && queue.pop(&log).is_none());
        assert!(log.ready_segments().take_awaited(), "reactors are woken when memory is ready");
        let (migration, range, cursor) = (MigrationId(2), HashRange::ALL, KeyHash(0));
        queue.push(Work::Forget { migration, range, cursor });
        assert!(queue.has_work(&log));
        assert!(matches!(queue.pop(&log), Some(Work::Forget { .. })));
        while log.ready_segments().prepare(Preparation::Needed) {}
        assert!(queue.has_work(&log));
        assert!(matches!(queue.pop(&log), Some(Work::Replay(_))));
        assert!(!queue.has_work(&log) && queue.len() == 0);
    }
}
