//! The disk thread of a reactor, since disk operations may take longer than a turn.

use super::Mail;
use node::DiskJob;
use runtime::{Mailbox, spawn_vital};
use std::sync::mpsc::{Sender, channel};

/// The thread that runs the disk jobs of one reactor. The thread ends with its reactor. Its panic
/// ends the process, since nobody else would complete its jobs.
pub(super) struct DiskThread {
    mailbox: Mailbox<Mail>,
    requests: Option<Sender<DiskJob>>,
}

impl DiskThread {
    /// Returns a handle. The thread starts with the first job.
    pub(super) fn new(mailbox: Mailbox<Mail>) -> DiskThread {
        DiskThread { mailbox, requests: None }
    }

    /// Runs a job on the thread. Its completion arrives as [`Mail::Disk`].
    pub(super) fn begin(&mut self, job: DiskJob) {
        if self.requests.is_none() {
            self.requests = self.start();
        }
        let unsent = match &self.requests {
            Some(requests) => requests.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        if let Some(job) = unsent {
            // Without a thread, run the job here: the reactor stalls, but the job is done.
            self.mailbox.send(Mail::Disk(job.carry_out()));
        }
    }

    fn start(&self) -> Option<Sender<DiskJob>> {
        let (requests, received) = channel::<DiskJob>();
        let mailbox = self.mailbox.clone();
        let run = move || {
            while let Ok(job) = received.recv() {
                mailbox.send(Mail::Disk(job.carry_out()));
            }
        };
        match spawn_vital("disk", run) {
            Ok(_) => Some(requests),
            Err(error) => {
                tracing::warn!(%error, "cannot start a sync thread, the reactor syncs its files");
                None
            }
        }
    }
}
