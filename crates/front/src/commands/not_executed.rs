//! The outcome of a command that was not executed: what its caller does next.

use crate::core::data::Missing;
use crate::operators::blocked::AwaitedElements;
use std::borrow::Cow;
use std::ops::Range;
use types::{Instant, KeyHash, MigrationId};

/// The next step for a command that was not executed. Neither data nor reply were changed.
pub(crate) enum NotExecuted {
    /// Wait for this, then execute the request again from the beginning.
    Retry(Cause),
    /// Send the client to the owner of the command's first key.
    Redirect,
    /// Reply with an error: the request is invalid or not supported.
    Reject(Refusal),
}

/// The cause of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Records that have not arrived yet.
    Missing(Missing),
    /// Progress of a migration: hashes that a scan needs from this one on have not arrived.
    Progress { migration: MigrationId, from: KeyHash },
    /// A change of tablets or leases: the range is frozen, not owned yet, or being flushed.
    Held,
    /// The next turn: the request met contention, or takes several turns.
    Turn,
    /// The answer of the coordinator, or of the process, to the request of this number. It is passed
    /// to the next execution.
    Answer(u64),
    /// Replication or sync of earlier writes, or enough replicas for a write; until this time at
    /// most.
    Replicas(Option<Instant>),
    /// The end of a pause: see `CLIENT PAUSE`.
    Paused,
    /// Memory, which the cleaner may still free.
    Memory,
    /// Elements of one of its keys.
    Blocked(KeyWait),
}

/// A wait for elements: see `docs/design/blocking.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyWait {
    /// Positions of the keys among the arguments.
    pub(crate) keys: Range<usize>,
    /// The elements.
    pub(crate) elements: AwaitedElements,
    /// End of the wait; `None` means no limit.
    pub(crate) until: Option<Instant>,
}

/// The result of a command.
pub(crate) type Done = Result<(), NotExecuted>;

/// The reason why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The number of arguments is wrong.
    Arity,
    /// The arguments are not valid.
    Syntax,
    /// An argument is not an integer, or is out of range.
    NotAnInteger,
    /// An expiry time is invalid.
    ExpireTime,
    /// The server has no memory for the command.
    OutOfMemory,
    /// A value would exceed the maximum size.
    TooLarge,
    /// The key has a value of another type.
    WrongType,
    /// Another reason, as an error text that begins with the error code.
    Because(Cow<'static, str>),
}

impl Refusal {
    /// Returns a refusal with this text.
    pub(crate) const fn because(text: &'static str) -> Refusal {
        Refusal::Because(Cow::Borrowed(text))
    }

    /// Returns the text of the error reply to the command of this name.
    pub(crate) fn text(&self, command: &str) -> Cow<'static, str> {
        match self {
            Refusal::Arity => {
                format!("ERR wrong number of arguments for '{command}' command").into()
            }
            Refusal::Syntax => "ERR syntax error".into(),
            Refusal::NotAnInteger => "ERR value is not an integer or out of range".into(),
            Refusal::ExpireTime => format!("ERR invalid expire time in '{command}' command").into(),
            Refusal::OutOfMemory => {
                "OOM command not allowed when used memory > 'maxmemory'.".into()
            }
            Refusal::TooLarge => {
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)".into()
            }
            Refusal::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".into()
            }
            Refusal::Because(text) => text.clone(),
        }
    }
}

/// The error for a command that can be executed only outside of transactions.
pub(crate) const NOT_INSIDE: Refusal = Refusal::because("ERR not possible inside a transaction");

/// The error for a reply beyond [`resp::OUTPUT_BYTES_MAX`], in place of the reply.
pub(crate) const LONG_REPLY: &str = "ERR the reply is longer than 512 MB";

/// The error for keys of several slots in a cluster, since they may belong to several servers.
pub(crate) const CROSS_SLOT: Refusal =
    Refusal::because("CROSSSLOT Keys in request don't hash to the same slot");

impl From<Refusal> for NotExecuted {
    fn from(refusal: Refusal) -> NotExecuted {
        NotExecuted::Reject(refusal)
    }
}

/// Returns a refusal with this text.
pub(crate) fn refused(text: impl Into<Cow<'static, str>>) -> NotExecuted {
    NotExecuted::Reject(Refusal::Because(text.into()))
}
