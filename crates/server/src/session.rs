//! What a connection is between two of its requests.

use crate::commands::{Transaction, Watched};
use crate::operators::clients::{Collected, Facts, Shown};
use resp::Protocol;
use std::sync::Arc;
use types::{Instant, TableId};

/// State that commands of one connection share.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// What others may know of it.
    pub(crate) facts: Arc<Facts>,
    /// Whether it has said who it is, or need not.
    pub(crate) is_authenticated: bool,
    /// The table that its commands work on.
    pub(crate) table: TableId,
    /// How replies are written.
    pub(crate) protocol: Protocol,
    /// Which replies are sent.
    pub(crate) replies: Replies,
    /// Set by `MONITOR`.
    pub(crate) is_monitor: bool,
    /// Set by `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`, and shown; neither changes anything.
    pub(crate) no_evict: bool,
    pub(crate) no_touch: bool,
    /// The number of the last command.
    pub(crate) command: Option<u16>,
    /// Set by `CLIENT CAPA redirect`, and shown.
    pub(crate) takes_redirects: bool,
    /// A request of it waits for something.
    pub(crate) is_blocked: bool,
    /// It waits for other servers: see `WAIT`.
    pub(crate) is_waiting: bool,
    /// Commands since `MULTI`, if there was one.
    pub(crate) collecting: Option<Transaction>,
    /// Keys that must not change before the next transaction.
    pub(crate) watched: Watched,
    /// How often it has drawn a random key.
    pub(crate) draws: u64,
    /// Set by `QUIT`: the connection closes once everything has been sent.
    pub(crate) closing: bool,
}

impl Session {
    /// A connection that has just been opened.
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

    /// Number of the connection on this server, never used twice.
    pub(crate) fn id(&self) -> u64 {
        self.facts.id
    }

    /// Lets others know what has changed with so many requests.
    pub(crate) fn tell(&self, now: Instant, requests: u64) {
        let shown = Shown {
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
            collected: Collected {
                commands: self.collecting.as_ref().map(|collecting| collecting.len() as u32),
                watched: self.watched.len() as u32,
            },
        };
        self.facts.tell(now, requests, shown);
    }

    /// Whether the reply to the request that was just parsed, or executed, is sent. Asked once for
    /// each.
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

/// Which replies a client wants: see `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    All,
    None,
    /// The request at hand is `CLIENT REPLY SKIP`.
    AllButNext,
    /// The one before was.
    AllButThis,
}
