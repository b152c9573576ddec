//! The reasons for which a command is not executed.

use crate::operators::host::HostJob;
use std::borrow::Cow;
use store::Stall;
use types::Instant;
use wire::control::Ask;

/// The reason why a command was not executed. Neither data nor reply were changed.
#[derive(Debug)]
pub(crate) enum Undone {
    /// The store did not execute it: a record is missing, contended, frozen or elsewhere, or memory
    /// is full.
    Stall(Stall),
    /// The coordinator must be asked first. Its answer is passed to the next execution.
    Ask(Ask),
    /// The turn's share is used up. The request's scan contains the position to continue at.
    Unfinished,
    /// The process must do a job first. Its answer is passed to the next execution.
    Begin(HostJob),
    /// Too few servers have earlier writes, or would get this one. The request is retried when that
    /// changes, and at this time.
    Unsafe { until: Option<Instant> },
    /// A `CLIENT PAUSE` is in force.
    Paused,
    /// The request is invalid or not supported.
    Refused(Refusal),
}

/// The result of a command.
pub(crate) type Done = Result<(), Undone>;

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
            Refusal::Because(text) => text.clone(),
        }
    }
}

/// The error for keys of several slots in a cluster, since they may belong to several servers.
pub(crate) const CROSS_SLOT: Refusal =
    Refusal::because("CROSSSLOT Keys in request don't hash to the same slot");

impl From<Stall> for Undone {
    fn from(stall: Stall) -> Undone {
        Undone::Stall(stall)
    }
}

impl From<Refusal> for Undone {
    fn from(refusal: Refusal) -> Undone {
        Undone::Refused(refusal)
    }
}

/// Returns a refusal with this text.
pub(crate) fn refused(text: impl Into<Cow<'static, str>>) -> Undone {
    Undone::Refused(Refusal::Because(text.into()))
}
