//! The thread that works with the disk for one reactor: that may take longer than any turn.

use super::Mail;
use crate::engine::DiskJob;
use runtime::Mailbox;
use std::sync::mpsc::{Sender, channel};

/// The thread that does the disk jobs of one reactor. The thread ends with its reactor.
pub(super) struct DiskThread {
    mailbox: Mailbox<Mail>,
    requests: Option<Sender<DiskJob>>,
}

impl DiskThread {
    /// None yet: it is started when it is needed.
    pub(super) fn new(mailbox: Mailbox<Mail>) -> DiskThread {
        DiskThread { mailbox, requests: None }
    }

    /// Has it done. [`Mail::Disk`] follows.
    pub(super) fn begin(&mut self, job: DiskJob) {
        if self.requests.is_none() {
            self.requests = self.start();
        }
        let unsent = match &self.requests {
            Some(requests) => requests.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        if let Some(job) = unsent {
            // Slow is better than never.
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
        match std::thread::Builder::new().name("disk".into()).spawn(run) {
            Ok(_) => Some(requests),
            Err(error) => {
                tracing::warn!(%error, "no thread can be started: a reactor syncs its files itself");
                None
            }
        }
    }
}
