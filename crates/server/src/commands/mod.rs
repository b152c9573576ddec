//! Commands: from arguments to one reply.
//!
//! A handler writes exactly one reply and has changed the data, or it returns [`Undone`] and has
//! done neither: the front end then says why, or parks the request and starts it again from the
//! beginning. So a handler keeps no state (but for a [`Walk`] that takes several turns), and nothing
//! in here knows of migration.
//!
//! Replies and error texts are Redis's, byte for byte where clients match on them.

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
mod server;
mod set_options;
mod slot_stats;
mod slow_log;
mod strings;
mod table;
mod tasks;
mod transactions;
mod waiting;
mod walks;

pub(crate) use connection::REDIS_VERSION;
pub(crate) use numbers::{parse_integer, parse_unsigned};
pub(crate) use table::{Command, Keys, Unknown, flag};
pub(crate) use transactions::{Transaction, Watched};
pub(crate) use waiting::{Past, Unblocked};
pub(crate) use walks::Walk;

use crate::engine::Engine;
use crate::operators::host::Job;
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
    /// What came of an earlier [`Undone::Ask`] of the same request.
    pub(crate) answer: Option<&'a Answer>,
    /// What `EXEC` carries out.
    pub(crate) transaction: Option<&'a Transaction>,
    /// The request's past executions.
    pub(crate) past: Past,
    /// Where an earlier execution of the same request has left off, if it takes several.
    pub(crate) walk: &'a mut Option<Walk>,
    /// This reactor's access to the data.
    pub(crate) engine: &'a mut Engine,
    /// The connection's state.
    pub(crate) session: &'a mut Session,
    /// Where the reply goes.
    pub(crate) reply: ReplyWriter<'a>,
    /// The turn's time.
    pub(crate) now: Instant,
    /// The turn's wall-clock time.
    pub(crate) wall: UnixMillis,
}

/// Why a command has not been executed. Nothing was changed and nothing was answered.
#[derive(Debug)]
pub(crate) enum Undone {
    /// The store could not: something is missing, held, locked, full, or elsewhere.
    Stall(Stall),
    /// The coordinator must be asked first; its answer comes with the next execution.
    Ask(Ask),
    /// It has done all that fits into one turn, and has left in [`Call::walk`] where it goes on.
    Unfinished,
    /// The process must do something first; its answer comes with the next execution.
    Begin(Job),
    /// Earlier writes are not on enough servers. The request is tried again when they are on more, and
    /// at this time.
    Unsafe { until: Option<Instant> },
    /// Somebody has said `CLIENT PAUSE`.
    Paused,
    /// What was asked for makes no sense, or is not to be had.
    Refused(Refusal),
}

/// What comes of a command.
pub(crate) type Done = Result<(), Undone>;

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The number of arguments is wrong.
    Arity,
    /// The arguments make no sense.
    Syntax,
    /// An argument should be an integer, or a smaller one.
    NotAnInteger,
    /// An expiry makes no sense.
    ExpireTime,
    /// There is no memory for it.
    OutOfMemory,
    /// A value would be larger than any may be.
    TooLarge,
    /// In these words, which begin with the kind of error.
    Because(Cow<'static, str>),
}

impl Refusal {
    /// As an error's text.
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

/// In a cluster, keys of several slots are not of one server.
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

/// A command refused in these words.
pub(crate) fn refused(text: impl Into<Cow<'static, str>>) -> Undone {
    Undone::Refused(Refusal::Because(text.into()))
}

impl<'a> Call<'a> {
    /// The key at this position, hashed.
    pub(crate) fn key(&self, position: usize) -> Key<'a> {
        let bytes = self.args[position];
        Key { hash: self.engine.hash(bytes), bytes }
    }

    /// The clock by which the expiry of these keys will be judged, from which relative times count:
    /// of several ranges the latest one, so that no key lives shorter than asked for.
    pub(crate) fn clock_of(&self, keys: &[Key<'_>]) -> UnixMillis {
        if planted::is(Bug::LifeFromWallClock) {
            return self.wall;
        }
        let worker = &self.engine.worker;
        let clocks = keys.iter().map(|key| worker.clock_at(key.hash));
        clocks.max().unwrap_or_else(|| worker.store().clock())
    }

    /// Answers `OK`.
    pub(crate) fn ok(&mut self) -> Done {
        self.reply.simple("OK");
        Ok(())
    }
}

/// Redis's answer to a subcommand that does not exist.
fn unknown_subcommand(args: &[&[u8]]) -> String {
    let command = String::from_utf8_lossy(args[0]).to_uppercase();
    let subcommand = args.get(1).map(|name| printable(name, UNKNOWN_BYTES_MAX)).unwrap_or_default();
    format!("ERR unknown subcommand '{subcommand}'. Try {command} HELP.")
}

impl Unknown {
    /// Redis's answer to a request that calls what there is not.
    pub(crate) fn text(self, args: &[&[u8]]) -> String {
        match self {
            Unknown::Command => unknown_command(args),
            Unknown::Subcommand => unknown_subcommand(args),
        }
    }
}

/// Redis's answer to a command that does not exist: of the arguments about 128 bytes are shown.
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

/// At most so many bytes of client input, fit for the one line of an error.
pub(crate) fn printable(bytes: &[u8], bytes_max: usize) -> String {
    let cut = &bytes[..bytes.len().min(bytes_max)];
    String::from_utf8_lossy(cut).replace(['\r', '\n', '\0'], " ")
}

/// Whether an argument is this word, which is given in upper case.
pub(crate) fn uppercase_is(argument: &[u8], word: &[u8]) -> bool {
    argument.eq_ignore_ascii_case(word)
}
