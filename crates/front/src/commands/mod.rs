//! Commands: from arguments to one reply.
//!
//! A handler either writes exactly one reply and has applied its changes, or it returns
//! [`NotExecuted`] and has done neither. In the second case the front end replies with an error, or
//! parks the request and later restarts it from the beginning. Handlers therefore keep no state,
//! except for a [`KeyspaceScan`] of several turns, and do not know about migration.
//!
//! `not_executed`, `call` and `command` define what a handler gets and returns. The modules of
//! commands use them, and `table` lists these modules. `documentation` describes the commands.
//!
//! Replies and error texts match those of Redis, byte for byte where clients depend on them.

mod bitfield;
mod bits;
mod blocking;
mod call;
mod client_list;
mod clients;
mod cluster;
mod command;
mod configuration;
mod connection;
mod counters;
mod documentation;
mod dump;
mod element_scan;
mod expiry;
mod field_arguments;
mod field_expiry;
mod geo;
mod geo_search;
mod glob;
mod hashes;
mod help;
mod hints;
mod introspection;
mod keys;
mod lcs;
mod lists;
mod migrate;
mod moving;
mod native;
mod not_executed;
mod numbers;
mod object;
mod once;
mod packed;
mod pieces;
mod pop_of_several;
mod queued;
mod resumption;
mod sampling;
mod scan;
mod server;
mod set_options;
mod sets;
mod slot_stats;
mod slots;
mod slow_log;
mod sort;
mod sorted_additions;
mod sorted_combinations;
mod sorted_ranges;
mod sorted_sets;
mod stream_groups;
mod stream_info;
mod stream_reads;
mod streams;
mod strings;
mod table;
mod tasks;
mod transactions;
mod two_sided;
mod versioned;
mod waiting;

pub(crate) use call::Call;
pub(crate) use command::{Command, Keys, Secrets, flag};
pub(crate) use connection::REDIS_VERSION;
pub(crate) use not_executed::{
    CROSS_SLOT, Cause, Done, KeyWait, LONG_REPLY, NOT_INSIDE, NotExecuted, Refusal, refused,
};
pub(crate) use queued::{QueuedTransaction, Watched};
pub(crate) use resumption::{BlockedSince, KeyspaceScan, Past};
pub(crate) use table::commands_and_subcommands;
pub(crate) use transactions::queue_command;
pub(crate) use values::{parse_integer, parse_unsigned};

/// Most bytes of client input that an error repeats.
pub(crate) const UNKNOWN_BYTES_MAX: usize = 128;

/// Returns the first `bytes_max` bytes of client input, without line ends, for use in an error.
pub(crate) fn printable(bytes: &[u8], bytes_max: usize) -> String {
    let cut = &bytes[..bytes.len().min(bytes_max)];
    String::from_utf8_lossy(cut).replace(['\r', '\n', '\0'], " ")
}

/// Returns whether an argument equals `word`, ignoring case.
pub(crate) fn uppercase_is(argument: &[u8], word: &[u8]) -> bool {
    argument.eq_ignore_ascii_case(word)
}
