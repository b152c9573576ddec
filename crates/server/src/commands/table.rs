//! The command table: what each command is called, how many arguments it takes, where its keys
//! stand, and what carries it out. Everything that is said about commands elsewhere (arity errors,
//! `COMMAND`, order on a connection, `CROSSSLOT`) is read from here.

use super::{Call, Pause, cluster, connection, introspection, keys, strings, walks};

/// What carries a command out: writes one reply, or changes nothing and says why it cannot yet.
pub(crate) type Handler = fn(&mut Call<'_>) -> Result<(), Pause>;

/// Where a command's keys stand among its arguments (the command's name is argument 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// It names no key and looks at none.
    None,
    /// From argument `first` to `last` (negative: counted from the end) in steps of `step`.
    At { first: u8, last: i8, step: u8 },
    /// It looks at keys that it does not name: it runs alone on its connection.
    Unnamed,
}

/// One key, as argument 1.
const ONE: Keys = Keys::At { first: 1, last: 1, step: 1 };
/// All arguments are keys.
const ALL: Keys = Keys::At { first: 1, last: -1, step: 1 };
/// Keys and values in turn.
const PAIRS: Keys = Keys::At { first: 1, last: -1, step: 2 };

/// Properties of a command, as `COMMAND` names them.
pub(crate) mod flag {
    /// Changes data.
    pub(crate) const WRITE: u16 = 1;
    /// Only reads data.
    pub(crate) const READONLY: u16 = 1 << 1;
    /// Takes a short constant time.
    pub(crate) const FAST: u16 = 1 << 2;
    /// May need memory: refused when it is full.
    pub(crate) const DENYOOM: u16 = 1 << 3;
    /// For operators.
    pub(crate) const ADMIN: u16 = 1 << 4;
    /// Answered also while data is being loaded.
    pub(crate) const LOADING: u16 = 1 << 5;
    /// Answered also by a stale replica.
    pub(crate) const STALE: u16 = 1 << 6;
    /// Names of the flags, in the order of their bits.
    pub(crate) const NAMES: [&str; 7] =
        ["write", "readonly", "fast", "denyoom", "admin", "loading", "stale"];
}
use flag::{ADMIN, DENYOOM, FAST, LOADING, READONLY, STALE, WRITE};

/// One command.
pub(crate) struct Command {
    /// In lower case.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub(crate) arity: i8,
    /// Bits of [`flag`].
    pub(crate) flags: u16,
    /// Where its keys stand.
    pub(crate) keys: Keys,
    /// ACL category beside those that follow from the flags, as in `COMMAND`.
    pub(crate) category: &'static str,
    /// What carries it out.
    pub(crate) handler: Handler,
}

const fn command(
    name: &'static str,
    arity: i8,
    flags: u16,
    keys: Keys,
    category: &'static str,
    handler: Handler,
) -> Command {
    Command { name, arity, flags, keys, category, handler }
}

const ANYTIME: u16 = LOADING | STALE;

/// All commands, by name.
pub(crate) static COMMANDS: [Command; COMMANDS_COUNT] = [
    command("append", 3, WRITE | DENYOOM | FAST, ONE, "@string", strings::append),
    command("asking", 1, FAST, Keys::None, "@connection", connection::asking),
    command("client", -2, ANYTIME, Keys::None, "@connection", connection::client),
    command("cluster", -2, ANYTIME, Keys::None, "@admin", cluster::cluster),
    command("command", -1, ANYTIME, Keys::None, "@connection", introspection::command),
    command("config", -2, ADMIN | ANYTIME, Keys::None, "@dangerous", introspection::config),
    command("dbsize", 1, READONLY | FAST, Keys::Unnamed, "@keyspace", walks::dbsize),
    command("decr", 2, WRITE | DENYOOM | FAST, ONE, "@string", strings::decr),
    command("decrby", 3, WRITE | DENYOOM | FAST, ONE, "@string", strings::decrby),
    command("del", -2, WRITE, ALL, "@keyspace", keys::del),
    command("echo", 2, FAST | ANYTIME, Keys::None, "@connection", connection::echo),
    command("exists", -2, READONLY | FAST, ALL, "@keyspace", keys::exists),
    command("expire", -3, WRITE | FAST, ONE, "@keyspace", keys::expire),
    command("expireat", -3, WRITE | FAST, ONE, "@keyspace", keys::expireat),
    command("flushall", -1, WRITE, Keys::Unnamed, "@keyspace", walks::flushall),
    command("flushdb", -1, WRITE, Keys::Unnamed, "@keyspace", walks::flushdb),
    command("get", 2, READONLY | FAST, ONE, "@string", strings::get),
    command("getdel", 2, WRITE | FAST, ONE, "@string", strings::getdel),
    command("getset", 3, WRITE | DENYOOM | FAST, ONE, "@string", strings::getset),
    command("hello", -1, FAST | ANYTIME, Keys::None, "@connection", connection::hello),
    command("incr", 2, WRITE | DENYOOM | FAST, ONE, "@string", strings::incr),
    command("incrby", 3, WRITE | DENYOOM | FAST, ONE, "@string", strings::incrby),
    command("info", -1, ANYTIME, Keys::None, "@dangerous", introspection::info),
    command("mget", -2, READONLY | FAST, ALL, "@string", strings::mget),
    command("mset", -3, WRITE | DENYOOM, PAIRS, "@string", strings::mset),
    command("msetnx", -3, WRITE | DENYOOM, PAIRS, "@string", strings::msetnx),
    command("persist", 2, WRITE | FAST, ONE, "@keyspace", keys::persist),
    command("pexpire", -3, WRITE | FAST, ONE, "@keyspace", keys::pexpire),
    command("pexpireat", -3, WRITE | FAST, ONE, "@keyspace", keys::pexpireat),
    command("ping", -1, FAST | ANYTIME, Keys::None, "@connection", connection::ping),
    command("psetex", 4, WRITE | DENYOOM, ONE, "@string", strings::psetex),
    command("pttl", 2, READONLY | FAST, ONE, "@keyspace", keys::pttl),
    command("quit", -1, FAST | ANYTIME, Keys::Unnamed, "@connection", connection::quit),
    command("readonly", 1, FAST | ANYTIME, Keys::None, "@connection", connection::readonly),
    command("readwrite", 1, FAST | ANYTIME, Keys::None, "@connection", connection::readonly),
    command("scan", -2, READONLY, Keys::Unnamed, "@keyspace", walks::scan),
    command("select", 2, FAST | ANYTIME, Keys::None, "@connection", connection::select),
    command("set", -3, WRITE | DENYOOM, ONE, "@string", strings::set),
    command("setex", 4, WRITE | DENYOOM, ONE, "@string", strings::setex),
    command("setnx", 3, WRITE | DENYOOM | FAST, ONE, "@string", strings::setnx),
    command("strlen", 2, READONLY | FAST, ONE, "@string", strings::strlen),
    command("time", 1, FAST | ANYTIME, Keys::None, "@fast", introspection::time),
    command("touch", -2, READONLY | FAST, ALL, "@keyspace", keys::exists),
    command("ttl", 2, READONLY | FAST, ONE, "@keyspace", keys::ttl),
    command("type", 2, READONLY | FAST, ONE, "@keyspace", keys::kind),
    command("unlink", -2, WRITE | FAST, ALL, "@keyspace", keys::del),
];

const COMMANDS_COUNT: usize = 46;

/// Longest name of a command in bytes.
const NAME_BYTES_MAX: usize = 16;

impl Command {
    /// The command of this name, in any mixture of upper and lower case.
    pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
        let mut lower = [0u8; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        // The two commands that make up nearly all traffic are not worth a search.
        match &*lower {
            b"get" => return Some(&COMMANDS[GET]),
            b"set" => return Some(&COMMANDS[SET]),
            _ => {}
        }
        let found = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower));
        found.ok().map(|at| &COMMANDS[at])
    }

    /// Whether the command may be called with so many arguments, its name included.
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { arguments == least } else { arguments >= least }
    }

    /// Positions of its keys among so many arguments.
    pub(crate) fn key_positions(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = match self.keys {
            Keys::None | Keys::Unnamed => (1, 0, 1),
            Keys::At { first, last, step } => {
                let last = if last < 0 {
                    arguments.saturating_sub(usize::from(last.unsigned_abs()))
                } else {
                    usize::from(last.unsigned_abs()).min(arguments.saturating_sub(1))
                };
                (usize::from(first), last, usize::from(step))
            }
        };
        (first..last + 1).step_by(step)
    }
}

const GET: usize = position("get");
const SET: usize = position("set");

const fn position(name: &str) -> usize {
    let mut at = 0;
    while at < COMMANDS_COUNT {
        let (a, b) = (COMMANDS[at].name.as_bytes(), name.as_bytes());
        let mut same = a.len() == b.len();
        let mut byte = 0;
        while same && byte < a.len() {
            same = a[byte] == b[byte];
            byte += 1;
        }
        if same {
            return at;
        }
        at += 1;
    }
    panic!("no such command")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(COMMANDS.iter().all(|command| command.name.len() <= NAME_BYTES_MAX));
    }

    #[test]
    fn commands_are_found_in_any_case() {
        for command in &COMMANDS {
            let upper = command.name.to_ascii_uppercase();
            assert_eq!(Command::find(upper.as_bytes()).map(|found| found.name), Some(command.name));
        }
        assert!(Command::find(b"nosuch").is_none());
        assert!(Command::find(b"").is_none());
        assert!(Command::find(&[b'a'; 1000]).is_none());
    }

    #[test]
    fn keys_stand_where_the_table_says() {
        let positions = |name: &str, arguments| -> Vec<usize> {
            Command::find(name.as_bytes()).unwrap().key_positions(arguments).collect()
        };
        assert_eq!(positions("get", 2), [1]);
        assert_eq!(positions("del", 4), [1, 2, 3]);
        assert_eq!(positions("mset", 5), [1, 3]);
        assert_eq!(positions("ping", 2), [] as [usize; 0]);
        assert_eq!(positions("scan", 2), [] as [usize; 0]);
    }
}
