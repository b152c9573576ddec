//! Background work that any reactor of a server may take, in the order in which it came up.

use super::outgoing::Payload;
use super::recovering::ReplayLog;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use store::{Arrival, Recovery};
use types::{HashRange, KeyHash, MigrationId, OwnershipEpoch, ServerId};
use wire::peer::Pull;

/// One piece of work. Each quantum does a bounded part of it and puts back the rest.
#[derive(Debug)]
pub(super) enum Work {
    /// Send a pull: so that a migration's pulls leave from different reactors.
    Pull(ServerId, Pull),
    /// Replay what a pull has brought.
    Replay(Replay),
    /// Drop the records of a range that its new owner has.
    Forget { migration: MigrationId, range: HashRange, cursor: KeyHash },
    /// Drop tombstones that the progress has passed.
    Sweep(Arc<Arrival>),
    /// Replay what a backup has sent of a dead server's log.
    ReplayLog(ReplayLog),
    /// Drop what was replayed of a part that will not be ours.
    ForgetReplayed { epoch: OwnershipEpoch, range: HashRange, cursor: KeyHash },
    /// Drop tombstones of a part that was recovered.
    SweepRecovery(Arc<Recovery>),
}

/// A pull's reply on its way into the store.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) arrival: Arc<Arrival>,
    pub(super) partition: u16,
    pub(super) ticket: protocols::Ticket,
    pub(super) payload: Payload,
    /// Bytes of the payload that are dealt with.
    pub(super) from: usize,
    /// Records and bytes so far.
    pub(super) added: protocols::migration::Added,
}

/// The queue. Its length can be read without taking the lock, since every turn asks for it.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    length: AtomicUsize,
    work: Mutex<VecDeque<Work>>,
}

impl WorkQueue {
    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    pub(super) fn push(&self, work: Work) {
        self.change(|queue| queue.push_back(work));
    }

    /// Puts back what a quantum did not finish: it is taken next.
    pub(super) fn put_back(&self, work: Work) {
        self.change(|queue| queue.push_front(work));
    }

    pub(super) fn pop(&self) -> Option<Work> {
        if self.len() == 0 { None } else { self.change(VecDeque::pop_front) }
    }

    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Work>) -> T) -> T {
        let mut queue = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut queue);
        self.length.store(queue.len(), Ordering::Relaxed);
        result
    }
}
