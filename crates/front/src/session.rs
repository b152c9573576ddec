//! The state that a connection keeps between two of its requests.

use crate::commands::{QueuedTransaction, Watched};
use crate::operators::clients::{ClientStatus, Facts, TransactionCounts};
use resp::Protocol;
use std::sync::Arc;
use types::{Instant, TableId};

/// State shared by all commands of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The part of the state that other connections can read (`CLIENT LIST`).
    pub(crate) facts: Arc<Facts>,
    /// True if the client has authenticated, or if no password is set.
    pub(crate) is_authenticated: bool,
    /// The table (Redis database) that the connection's commands work on.
    pub(crate) table: TableId,
    /// The protocol version in which replies are written.
    pub(crate) protocol: Protocol,
    /// The replies that are sent: see `CLIENT REPLY`.
    pub(crate) replies: Replies,
    /// Set by `MONITOR`.
    pub(crate) is_monitor: bool,
    /// Set by `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`, only for display in `CLIENT LIST`.
    pub(crate) no_evict: bool,
    pub(crate) no_touch: bool,
    pub(crate) command: Option<u16>,
    /// Set by `CLIENT CAPA redirect`, and shown in `CLIENT LIST`.
    pub(crate) takes_redirects: bool,
    /// True while a request of the connection is parked, or the connection is paused.
    pub(crate) is_blocked: bool,
    /// True while a request waits for replicas: see `WAIT`.
    pub(crate) is_waiting: bool,
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
            table: TableId(0),
            protocol: Protocol::Resp2,
            replies: Replies::All,
            is_monitor: false,
            no_evict: false,
            no_touch: false,
            command: None,
            takes_redirects: false,
            is_blocked: false,
            is_waiting: false,
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
        let shown = ClientStatus {
            table: self.table,
            protocol: self.protocol,
            is_monitor: self.is_monitor,
            no_evict: self.no_evict,
            no_touch: self.no_touch,
            is_blocked: self.is_blocked,
            is_waiting: self.is_waiting,
            takes_redirects: self.takes_redirects,
            has_called: self.command.is_some(),
            command: self.command.unwrap_or(0),
            collected: TransactionCounts {
                commands: self.collecting.as_ref().map(|collecting| collecting.len() as u32),
                watched: self.watched.len() as u32,
            },
        };
        self.facts.publish(now, requests, shown);
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
