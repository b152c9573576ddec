//! Commands: from arguments to one reply.
//!
//! A handler writes exactly one reply and has changed the data, or it returns a [`Pause`] and has
//! done neither: the front end then parks the request and starts it again from the beginning. So a
//! handler keeps no state, and nothing in here knows of migration.
//!
//! Replies and error texts are Redis's, byte for byte where clients match on them.

mod cluster;
mod connection;
mod glob;
mod introspection;
mod keys;
mod migrate;
mod numbers;
mod strings;
mod table;
mod walks;

pub(crate) use connection::REDIS_VERSION;
pub(crate) use numbers::{parse_integer, parse_unsigned};
pub(crate) use table::{Command, Keys};

use crate::engine::Engine;
use crate::session::Session;
use resp::ReplyWriter;
use store::{Key, Stall};
use types::{Instant, UnixMillis};
use wire::control::{Answer, Ask};

/// One execution of one command.
pub(crate) struct Call<'a> {
    /// The command's name and its arguments.
    pub(crate) args: &'a [&'a [u8]],
    /// What came of an earlier [`Pause::Ask`] of the same request.
    pub(crate) answer: Option<&'a Answer>,
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

/// Why a command has not been executed yet. Nothing was changed and nothing was answered.
#[derive(Debug)]
pub(crate) enum Pause {
    /// The store could not: something is missing, held, locked, full, or elsewhere.
    Stall(Stall),
    /// The coordinator must be asked first; its answer comes with the next execution.
    Ask(Ask),
}

impl From<Stall> for Pause {
    fn from(stall: Stall) -> Pause {
        Pause::Stall(stall)
    }
}

impl<'a> Call<'a> {
    /// The key at this position, hashed.
    pub(crate) fn key(&self, position: usize) -> Key<'a> {
        let bytes = self.args[position];
        Key { hash: self.engine.hash(bytes), bytes }
    }

    /// Replies that the number of arguments is wrong.
    pub(crate) fn wrong_arity(&mut self) {
        let name = String::from_utf8_lossy(self.args[0]).to_lowercase();
        self.reply.error(format!("ERR wrong number of arguments for '{name}' command"));
    }

    /// Replies that argument 1 is no subcommand.
    pub(crate) fn unknown_subcommand(&mut self) {
        let command = String::from_utf8_lossy(self.args[0]).to_uppercase();
        let subcommand = printable(self.args[1], 128);
        self.reply.error(format!("ERR unknown subcommand '{subcommand}'. Try {command} HELP."));
    }

    /// Replies that the arguments make no sense.
    pub(crate) fn syntax_error(&mut self) {
        self.reply.error("ERR syntax error");
    }
}

/// Redis's answer to a command that does not exist: of the arguments about 128 bytes are shown.
pub(crate) fn unknown_command(args: &[&[u8]]) -> String {
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
