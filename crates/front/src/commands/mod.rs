//! Commands: from arguments to one reply.
//!
//! A handler either writes exactly one reply and has applied its changes, or it returns [`Undone`]
//! and has done neither. In the second case the front end replies with an error, or parks the
//! request and later restarts it from the beginning. Handlers therefore keep no state, except for a
//! [`KeyspaceScan`] of several turns, and do not know about migration.
//!
//! Replies and error texts match those of Redis, byte for byte where clients depend on them.

mod bitfield;
mod bits;
mod client_list;
mod clients;
mod cluster;
mod configuration;
mod connection;
mod counters;
mod dump;
mod expiry;
mod extended;
mod glob;
mod hints;
mod introspection;
mod keys;
mod lcs;
mod migrate;
mod moving;
mod numbers;
mod object;
mod pieces;
mod rdb;
mod scan;
mod server;
mod set_options;
mod slot_stats;
mod slow_log;
mod strings;
mod table;
mod tasks;
mod transactions;
mod waiting;

pub(crate) use connection::REDIS_VERSION;
pub(crate) use numbers::{parse_integer, parse_unsigned};
pub(crate) use scan::KeyspaceScan;
pub(crate) use table::{Command, Keys, Unknown, flag};
pub(crate) use transactions::{QueuedTransaction, Watched};
pub(crate) use waiting::{Past, Unblocked};

use crate::backend::Backend;
use crate::operators::host::HostJob;
use crate::session::Session;
use planted::Bug;
use resp::ReplyWriter;
use std::borrow::Cow;
use store::{Key, Stall};
use types::{Instant, UnixMillis};
use wire::control::{Answer, Ask};

/// One execution of one command.
pub(crate) struct Call<'a> {
    /// The command's name and its arguments.
    pub(crate) args: &'a [&'a [u8]],
    /// The answer to an earlier [`Undone::Ask`] or [`Undone::Begin`] of the same request.
    pub(crate) answer: Option<&'a Answer>,
    /// The transaction that `EXEC` executes.
    pub(crate) transaction: Option<&'a QueuedTransaction>,
    /// The request's past executions.
    pub(crate) past: Past,
    /// Position at which an earlier execution of the same request stopped, if it takes several.
    pub(crate) scan: &'a mut Option<KeyspaceScan>,
    /// This reactor's access to the data.
    pub(crate) backend: &'a mut Backend,
    /// The connection's state.
    pub(crate) session: &'a mut Session,
    /// Writer of the reply.
    pub(crate) reply: ReplyWriter<'a>,
    /// The turn's time.
    pub(crate) now: Instant,
    /// The turn's wall-clock time.
    pub(crate) wall: UnixMillis,
}

/// The reason why a command was not executed. Neither data nor reply were changed.
#[derive(Debug)]
pub(crate) enum Undone {
    /// The store did not execute it: a record is missing, contended, frozen or elsewhere, or memory
    /// is full.
    Stall(Stall),
    /// The coordinator must be asked first. Its answer is passed to the next execution.
    Ask(Ask),
    /// The turn's share is used up. [`Call::scan`] contains the position to continue at.
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
    /// Returns the text of the error reply.
    pub(crate) fn text(&self, command: &Command) -> Cow<'static, str> {
        match self {
            Refusal::Arity => {
                format!("ERR wrong number of arguments for '{}' command", command.name).into()
            }
            Refusal::Syntax => "ERR syntax error".into(),
            Refusal::NotAnInteger => "ERR value is not an integer or out of range".into(),
            Refusal::ExpireTime => {
                format!("ERR invalid expire time in '{}' command", command.name).into()
            }
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
    Refusal::Because(Cow::Borrowed("CROSSSLOT Keys in request don't hash to the same slot"));

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

impl<'a> Call<'a> {
    /// Returns the key at this position, with its hash.
    pub(crate) fn key(&self, position: usize) -> Key<'a> {
        let bytes = self.args[position];
        Key { hash: self.backend.engine.hash(bytes), bytes }
    }

    /// Returns the time from which a relative expiry of these keys counts. It is the range's clock,
    /// by which their expiry will be judged; with several ranges, the latest clock, so that no key
    /// expires early. The clock is read now, not at the start of the turn, because a time to live
    /// must not begin before the request was sent.
    pub(crate) fn clock_of(&self, keys: &[Key<'_>]) -> UnixMillis {
        if planted::is(Bug::LifeFromWallClock) {
            return self.wall;
        }
        self.backend.engine.refresh_clock(self.now);
        let worker = &self.backend.engine.worker;
        let clocks = keys.iter().map(|key| worker.clock_at(key.hash));
        clocks.max().unwrap_or_else(|| worker.store().clock())
    }

    /// Replies `OK`.
    pub(crate) fn ok(&mut self) -> Done {
        self.reply.simple("OK");
        Ok(())
    }
}

/// Returns Redis's error for a subcommand that does not exist.
fn unknown_subcommand(args: &[&[u8]]) -> String {
    let command = String::from_utf8_lossy(args[0]).to_uppercase();
    let subcommand = args.get(1).map(|name| printable(name, UNKNOWN_BYTES_MAX)).unwrap_or_default();
    format!("ERR unknown subcommand '{subcommand}'. Try {command} HELP.")
}

impl Unknown {
    /// Returns Redis's error for an unknown command or subcommand.
    pub(crate) fn text(self, args: &[&[u8]]) -> String {
        match self {
            Unknown::Command => unknown_command(args),
            Unknown::Subcommand => unknown_subcommand(args),
        }
    }
}

/// Returns Redis's error for an unknown command, with about 128 bytes of its arguments.
fn unknown_command(args: &[&[u8]]) -> String {
    let mut shown = String::new();
    for argument in &args[1..] {
        let left = UNKNOWN_BYTES_MAX.saturating_sub(shown.len());
        if left == 0 {
            break;
        }
        shown.push_str(&format!("'{}' ", printable(argument, left)));
    }
    let name = printable(args[0], UNKNOWN_BYTES_MAX);
    format!("ERR unknown command '{name}', with args beginning with: {shown}")
}

const UNKNOWN_BYTES_MAX: usize = 128;

/// Returns the first `bytes_max` bytes of client input, without line ends, for use in an error.
pub(crate) fn printable(bytes: &[u8], bytes_max: usize) -> String {
    let cut = &bytes[..bytes.len().min(bytes_max)];
    String::from_utf8_lossy(cut).replace(['\r', '\n', '\0'], " ")
}

/// Returns whether an argument equals `word`, ignoring case.
pub(crate) fn uppercase_is(argument: &[u8], word: &[u8]) -> bool {
    argument.eq_ignore_ascii_case(word)
}
