//! The limit on open files of replicas that are being written.
//!
//! A replica opens its file when it is written, and keeps it open. If too many files are open,
//! one that was not written recently is closed; the next piece opens it again. So the number of
//! descriptors does not grow with the number of replicas, whatever their masters send or omit.
//!
//! A file with unsynced bytes stays open: the operating system reports a write-back failure only
//! to descriptors that were open at the time, and the failure must not be missed.
//!
//! **Invariant:** an open file that is being written is in the queue exactly once.

use crate::Replica;
use crate::files::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Default limit of open files: most of the files that a server with many masters writes at a
/// time. [`crate::Replicas::limit_open_files`] changes it.
const OPEN_MAX: usize = 1024;

/// Queue of replicas with open files, so that idle files can be closed.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    max: AtomicUsize,
    /// Set if replicas are synced: then a file may be closed only if all its bytes are synced.
    are_synced: AtomicBool,
    /// Replicas with open files, the most recently opened at the end.
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
    /// Sets the maximum number of open files. If `are_synced` is false, files may be closed with
    /// unsynced bytes.
    pub(crate) fn limit(&self, max: usize, are_synced: bool) {
        self.max.store(max, Ordering::Relaxed);
        self.are_synced.store(are_synced, Ordering::Relaxed);
    }

    /// Registers a replica with a newly opened file. Closes other files if too many are open.
    pub(crate) fn opened(&self, replica: &Arc<Replica>) {
        let (max, are_synced) =
            (self.max.load(Ordering::Relaxed), self.are_synced.load(Ordering::Relaxed));
        let mut queue = lock(&self.queue);
        queue.push_back(Arc::downgrade(replica));
        // The check gives each file a second chance. So two rounds find a file that can be
        // closed, if there is one.
        for _ in 0..2 * queue.len() {
            if queue.len() <= max {
                break;
            }
            let Some(oldest) = queue.pop_front() else { break };
            let is_gone = match oldest.upgrade() {
                None => true,
                // The file that was just opened is about to be written.
                Some(oldest) => !Arc::ptr_eq(&oldest, replica) && oldest.close_idle(are_synced),
            };
            if !is_gone {
                queue.push_back(oldest);
            }
        }
    }

    /// Returns the number of open files.
    pub(crate) fn count(&self) -> usize {
        let mut queue = lock(&self.queue);
        queue.retain(|replica| replica.strong_count() > 0);
        queue.len()
    }
}
