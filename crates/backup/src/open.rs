//! The files that are open because replicas are written to them: at most so many at a time.
//!
//! A replica opens its file when it is written, and keeps it open. When too many are open, a file
//! that was not written lately is closed; the next piece opens it again. So the number of
//! descriptors does not grow with the number of replicas, whatever their masters do or fail to say.
//!
//! A file with bytes that a sync is still to make stable stays open: a failure to write them back
//! is told to the descriptors that were open at the time, and must not be missed.
//!
//! **Invariant:** an open file that is written stands in the queue exactly once.

use crate::Replica;
use crate::files::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Files that are open unless [`crate::Replicas::limit_open_files`] says otherwise: most of what a
/// server with many masters writes at a time.
const OPEN_MAX: usize = 1024;

/// Files of replicas that are open, so that the oldest can be closed.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    max: AtomicUsize,
    /// Replicas are synced: only a stable one may be closed.
    are_synced: AtomicBool,
    /// Open ones, those opened last at the end.
    queue: Mutex<VecDeque<Weak<Replica>>>,
}

impl Default for OpenFiles {
    fn default() -> OpenFiles {
        OpenFiles {
            max: AtomicUsize::new(OPEN_MAX),
            are_synced: AtomicBool::new(true),
            queue: Mutex::default(),
        }
    }
}

impl OpenFiles {
    /// Keeps at most `max` files open from now on. Replicas that nobody syncs need not be stable.
    pub(crate) fn limit(&self, max: usize, are_synced: bool) {
        self.max.store(max, Ordering::Relaxed);
        self.are_synced.store(are_synced, Ordering::Relaxed);
    }

    /// Notes that a replica's file was opened. Closes others if too many are open.
    pub(crate) fn opened(&self, replica: &Arc<Replica>) {
        let (max, are_synced) =
            (self.max.load(Ordering::Relaxed), self.are_synced.load(Ordering::Relaxed));
        let mut queue = lock(&self.queue);
        queue.push_back(Arc::downgrade(replica));
        // A look gives each one a second chance: two rounds find one that can be closed, if any
        // can.
        for _ in 0..2 * queue.len() {
            if queue.len() <= max {
                break;
            }
            let Some(oldest) = queue.pop_front() else { break };
            let is_gone = match oldest.upgrade() {
                None => true,
                // The one that was just opened is about to be written.
                Some(oldest) => !Arc::ptr_eq(&oldest, replica) && oldest.close_idle(are_synced),
            };
            if !is_gone {
                queue.push_back(oldest);
            }
        }
    }

    /// How many files are open.
    pub(crate) fn count(&self) -> usize {
        let mut queue = lock(&self.queue);
        queue.retain(|replica| replica.strong_count() > 0);
        queue.len()
    }
}
