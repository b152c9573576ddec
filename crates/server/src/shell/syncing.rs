//! The thread that has files synced for one reactor: that may take longer than any turn.

use super::Mail;
use crate::engine::Sync;
use runtime::Mailbox;
use std::sync::mpsc::{Sender, channel};

/// See the module's text. The thread ends with its reactor.
pub(super) struct DiskThread {
    mailbox: Mailbox<Mail>,
    requests: Option<Sender<Sync>>,
}

impl DiskThread {
    /// None yet: it is started when it is needed.
    pub(super) fn new(mailbox: Mailbox<Mail>) -> DiskThread {
        DiskThread { mailbox, requests: None }
    }

    /// Has it done. [`Mail::Synced`] follows.
    pub(super) fn begin(&mut self, sync: Sync) {
        if self.requests.is_none() {
            self.requests = self.start();
        }
        let unsent = match &self.requests {
            Some(requests) => requests.send(sync).err().map(|unsent| unsent.0),
            None => Some(sync),
        };
        if let Some(sync) = unsent {
            // Slow is better than never.
            self.mailbox.send(Mail::Synced(sync.carry_out()));
        }
    }

    fn start(&self) -> Option<Sender<Sync>> {
        let (requests, received) = channel::<Sync>();
        let mailbox = self.mailbox.clone();
        let run = move || {
            while let Ok(sync) = received.recv() {
                mailbox.send(Mail::Synced(sync.carry_out()));
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
