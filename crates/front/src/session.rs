//! The state that a connection keeps between two of its requests.

use crate::commands::{QueuedTransaction, Watched};
use crate::operators::clients::{ClientStatus, Facts, TransactionCounts};
use std::sync::Arc;
use types::Instant;

/// State shared by all commands of one connection.
#[derive(Clone)]
pub(crate) struct Session {
    /// The part of the state that other connections can read (`CLIENT LIST`).
    pub(crate) facts: Arc<Facts>,
    /// True if the client has authenticated, or if no password is set.
    pub(crate) is_authenticated: bool,
    /// The state that is published after each request.
    pub(crate) status: ClientStatus,
    /// The replies that are sent: see `CLIENT REPLY`.
    pub(crate) replies: Replies,
    /// The transaction being collected since `MULTI`, if any.
    pub(crate) collecting: Option<QueuedTransaction>,
    /// Watched keys: if one of them changes, the next transaction fails.
    pub(crate) watched: Watched,
    /// Number of random keys the connection has drawn.
    pub(crate) draws: u64,
    /// Set by `QUIT`: the connection closes once all output has been sent.
    pub(crate) closing: bool,
}

impl Session {
    /// Returns the state of a newly opened connection.
    pub(crate) fn new(facts: Arc<Facts>, is_authenticated: bool) -> Session {
        Session {
            facts,
            is_authenticated,
            status: ClientStatus::default(),
            replies: Replies::All,
            collecting: None,
            watched: Watched::new(),
            draws: 0,
            closing: false,
        }
    }

    /// Returns the connection's number, which is unique on this server and never reused.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.facts.id
    }

    /// Publishes the current state to other connections, after `requests` more requests.
    pub(crate) fn publish(&self, now: Instant, requests: u64) {
        let collected = TransactionCounts {
            commands: self.collecting.as_ref().map(|collecting| collecting.len() as u32),
            watched: self.watched.len() as u32,
        };
        self.facts.publish(now, requests, self.status, collected);
    }

    /// Returns whether to send the reply to the request that was just parsed or executed. Must be
    /// called exactly once per request, because `CLIENT REPLY SKIP` counts requests.
    #[inline]
    pub(crate) fn takes_reply(&mut self) -> bool {
        match self.replies {
            Replies::All => true,
            Replies::None => false,
            Replies::AllButNext => {
                self.replies = Replies::AllButThis;
                false
            }
            Replies::AllButThis => {
                self.replies = Replies::All;
                false
            }
        }
    }
}

/// The replies that a client wants: see `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    All,
    None,
    /// The current request is `CLIENT REPLY SKIP`.
    AllButNext,
    /// The previous request was `CLIENT REPLY SKIP`, so the current one gets no reply.
    AllButThis,
}
