//! The command table: name, arity, key positions, flags and handler of each command. All other
//! knowledge about commands (arity errors, `COMMAND`, order on a connection, `CROSSSLOT`, refusal
//! by server state) is derived from this table.
//!
//! Each module of commands has a [`Family`]. The table contains all families.

use super::{Call, Done, Refusal, parse_unsigned};
use crate::operators::counts::COMMANDS_MAX;
use std::sync::LazyLock;

/// The handler of a command: writes one reply, or changes nothing and returns the reason.
pub(crate) type Handler = fn(&mut Call<'_>) -> Done;

/// The positions of a command's keys among its arguments (argument 0 is the command's name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The command names no key and reads none.
    None,
    /// Arguments `first` to `last` in steps of `step`. A negative `last` counts from the end.
    At { first: u8, last: i8, step: u8 },
    /// Argument 1 is the number of keys. The keys follow it, each with a value.
    CountedPairs,
    /// The command reads keys that it does not name, so it runs alone on its connection.
    Unnamed,
}

/// One key, as argument 1.
pub(super) const ONE: Keys = Keys::At { first: 1, last: 1, step: 1 };
/// One key, as argument 2.
pub(super) const SECOND: Keys = Keys::At { first: 2, last: 2, step: 1 };
/// Two keys, as arguments 1 and 2.
pub(super) const TWO: Keys = Keys::At { first: 1, last: 2, step: 1 };
/// All arguments from the second on are keys.
pub(super) const FROM_SECOND: Keys = Keys::At { first: 2, last: -1, step: 1 };
/// All arguments are keys.
pub(super) const ALL: Keys = Keys::At { first: 1, last: -1, step: 1 };
/// Keys and values alternate.
pub(super) const PAIRS: Keys = Keys::At { first: 1, last: -1, step: 2 };

/// Flags of a command, named as in `COMMAND`.
pub(crate) mod flag {
    /// Changes data.
    pub(crate) const WRITE: u16 = 1;
    /// Only reads data.
    pub(crate) const READONLY: u16 = 1 << 1;
    /// May need memory: refused when memory is full.
    pub(crate) const DENYOOM: u16 = 1 << 2;
    /// For operators.
    pub(crate) const ADMIN: u16 = 1 << 3;
    /// Not allowed in scripts.
    pub(crate) const NOSCRIPT: u16 = 1 << 4;
    /// Allowed while data is being loaded.
    pub(crate) const LOADING: u16 = 1 << 5;
    /// Allowed on a stale replica.
    pub(crate) const STALE: u16 = 1 << 6;
    /// Takes a short, constant time.
    pub(crate) const FAST: u16 = 1 << 7;
    /// Allowed before authentication.
    pub(crate) const NO_AUTH: u16 = 1 << 8;
    /// Not allowed within a transaction.
    pub(crate) const NO_MULTI: u16 = 1 << 9;
    /// Allowed while a long command is running.
    pub(crate) const ALLOW_BUSY: u16 = 1 << 10;
    /// Names of the flags, in the order of their bits.
    pub(crate) const NAMES: [&str; 11] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "noscript",
        "loading",
        "stale",
        "fast",
        "no_auth",
        "no_multi",
        "allow_busy",
    ];
    /// Requests that follow on the connection are parsed only after this command was executed.
    pub(crate) const ALONE: u16 = 1 << 12;
    /// Ends the collection of a transaction.
    pub(crate) const ENDS_MULTI: u16 = 1 << 13;
    /// Also accesses keys in other tables than the connection's.
    pub(crate) const OTHER_TABLES: u16 = 1 << 14;
    /// May harm other clients. An ACL category, not a flag of `COMMAND`.
    pub(crate) const DANGEROUS: u16 = 1 << 15;
    /// Flags of commands that are always allowed.
    pub(crate) const ANYTIME: u16 = LOADING | STALE;
}

/// A command or a subcommand.
pub(crate) struct Command {
    /// Name in lower case. A subcommand's name includes its command's: `client|list`.
    pub(crate) name: &'static str,
    /// Number of arguments including the name. A negative number is a minimum.
    pub(crate) arity: i8,
    /// Bits of [`flag`].
    pub(crate) flags: u16,
    /// Positions of the keys.
    pub(crate) keys: Keys,
    /// The function that executes the command.
    pub(crate) handler: Handler,
    /// First version of Redis or Valkey with this command, or of Ballast for its own commands.
    pub(crate) since: &'static str,
    /// Time complexity, for `COMMAND DOCS`.
    pub(crate) complexity: &'static str,
    /// Description in one line, for `COMMAND DOCS` and `HELP`.
    pub(crate) summary: &'static str,
    /// The subcommands, selected by argument 1.
    pub(crate) subcommands: &'static [Command],
}

/// Returns a command without its documentation.
pub(super) const fn command(
    name: &'static str,
    arity: i8,
    flags: u16,
    keys: Keys,
    handler: Handler,
) -> Command {
    let (since, complexity, summary) = ("1.0.0", "O(1)", "");
    Command { name, arity, flags, keys, handler, since, complexity, summary, subcommands: &[] }
}

/// Returns a command that only has subcommands.
pub(super) const fn container(name: &'static str, subcommands: &'static [Command]) -> Command {
    Command { subcommands, ..command(name, -2, 0, Keys::None, no_subcommand) }
}

/// Refuses a command that was called without its subcommand.
fn no_subcommand(_: &mut Call<'_>) -> Done {
    Err(Refusal::Arity.into())
}

/// Returns the `HELP` subcommand, which lists the other subcommands.
pub(super) const fn help(name: &'static str) -> Command {
    command(name, 2, flag::ANYTIME, Keys::None, super::introspection::help).text(
        "5.0.0",
        "O(1)",
        "Lists the subcommands.",
    )
}

/// A group of related commands.
pub(crate) struct Family {
    /// Name of the group in `COMMAND DOCS`.
    pub(crate) group: &'static str,
    /// ACL category of the commands, in addition to those implied by flags, if any.
    pub(crate) category: Option<&'static str>,
    pub(crate) commands: &'static [Command],
}

static FAMILIES: &[&Family] = &[
    &super::strings::FAMILY,
    &super::pieces::FAMILY,
    &super::counters::FAMILY,
    &super::lcs::FAMILY,
    &super::bits::FAMILY,
    &super::bitfield::FAMILY,
    &super::keys::FAMILY,
    &super::expiry::FAMILY,
    &super::dump::FAMILY,
    &super::object::OBJECT_FAMILY,
    &super::object::MEMORY_FAMILY,
    &super::scan::FAMILY,
    &super::scan::TABLE_FAMILY,
    &super::waiting::FAMILY,
    &super::transactions::FAMILY,
    &super::connection::FAMILY,
    &super::introspection::FAMILY,
    &super::server::FAMILY,
    &super::cluster::FAMILY,
];

/// Returns all commands with their families, sorted by name.
pub(crate) fn commands() -> impl ExactSizeIterator<Item = (&'static Family, &'static Command)> {
    TABLE.commands.iter().copied()
}

/// A hash table of commands by name, with open addressing.
struct CommandTable {
    commands: Vec<(&'static Family, &'static Command)>,
    /// Indices into `commands`, plus one; 0 marks an empty place.
    places: [u16; PLACES],
}

/// Size of the table: several times the number of commands, so that most lookups need one probe.
const PLACES: usize = 1024;

static TABLE: LazyLock<CommandTable> = LazyLock::new(|| {
    let mut commands: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| family.commands.iter().map(move |command| (*family, command)))
        .collect();
    commands.sort_unstable_by_key(|(_, command)| command.name);
    let mut places = [0; PLACES];
    for (at, (_, command)) in commands.iter().enumerate() {
        let mut place = hash(command.name.as_bytes());
        while places[place] != 0 {
            place = (place + 1) % PLACES;
        }
        places[place] = at as u16 + 1;
    }
    CommandTable { commands, places }
});

/// Returns the FNV-1a hash of the name in lower case.
fn hash(name: &[u8]) -> usize {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, step);
    (hash ^ hash >> 16) as usize % PLACES
}

/// A numbering of all commands and subcommands, looked up by the command's address.
struct Numbers {
    commands: Vec<&'static Command>,
    /// Open addressing: a command's number plus one; 0 marks an empty place.
    places: Box<[u16; NUMBER_PLACES]>,
}

const NUMBER_PLACES: usize = 2048;

static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| {
    let all =
        commands().flat_map(|(_, command)| std::iter::once(command).chain(command.subcommands));
    let mut numbers = Numbers { commands: all.collect(), places: Box::new([0; NUMBER_PLACES]) };
    assert!(numbers.commands.len() <= COMMANDS_MAX, "there are more commands than COMMANDS_MAX");
    for (number, command) in numbers.commands.iter().enumerate() {
        let mut place = Numbers::place(command);
        while numbers.places[place] != 0 {
            place = (place + 1) % NUMBER_PLACES;
        }
        numbers.places[place] = number as u16 + 1;
    }
    numbers
});

impl Numbers {
    fn place(command: &'static Command) -> usize {
        std::ptr::from_ref(command).addr() / size_of::<Command>() % NUMBER_PLACES
    }

    fn of(&self, command: &'static Command) -> usize {
        let mut place = Numbers::place(command);
        loop {
            let number = usize::from(self.places[place])
                .checked_sub(1)
                .unwrap_or_else(|| unreachable!("{} is in the command table", command.name));
            if std::ptr::eq(self.commands[number], command) {
                return number;
            }
            place = (place + 1) % NUMBER_PLACES;
        }
    }
}

/// Longest name of a command, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// The part of a request that names no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No command has the name in argument 0.
    Command,
    /// The command has no subcommand of the name in argument 1.
    Subcommand,
}

impl Command {
    /// Returns the command of this name, ignoring case.
    pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let table = &*TABLE;
        let mut place = hash(name);
        loop {
            let at = usize::from(table.places[place]).checked_sub(1)?;
            let command = table.commands[at].1;
            if command.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(command);
            }
            place = (place + 1) % PLACES;
        }
    }

    /// Returns the command or subcommand that a request with these first arguments calls.
    #[inline]
    pub(crate) fn of(name: &[u8], argument: Option<&[u8]>) -> Result<&'static Command, Unknown> {
        let command = Command::find(name).ok_or(Unknown::Command)?;
        match argument {
            Some(argument) if !command.subcommands.is_empty() => {
                command.subcommand(argument).ok_or(Unknown::Subcommand)
            }
            Some(_) | None => Ok(command),
        }
    }

    /// Returns whether the command names exactly one key.
    pub(crate) fn names_one_key(&self) -> bool {
        self.keys == ONE
    }

    /// Returns the command's number. It is constant while the program runs, and below
    /// [`crate::operators::counts::COMMANDS_MAX`].
    #[inline]
    pub(crate) fn number(&'static self) -> usize {
        NUMBERS.of(self)
    }

    /// Returns the command with this [`Command::number`].
    pub(crate) fn numbered(number: usize) -> Option<&'static Command> {
        NUMBERS.commands.get(number).copied()
    }

    /// Returns the subcommand of this name.
    pub(crate) fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        let is_it = |command: &&Command| command.last_name().as_bytes().eq_ignore_ascii_case(name);
        self.subcommands.iter().find(is_it)
    }

    /// Returns the name without that of the parent command.
    pub(crate) fn last_name(&self) -> &'static str {
        self.name.rsplit_once('|').map_or(self.name, |(_, last)| last)
    }

    /// Returns whether all of these bits of [`flag`] are set.
    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Returns whether the command accepts this number of arguments, its name included.
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { arguments == least } else { arguments >= least }
    }

    /// Returns the key positions in a request of `arguments` arguments; `first` is argument 1.
    pub(crate) fn key_positions(
        &self,
        arguments: usize,
        first: Option<&[u8]>,
    ) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = match self.keys {
            Keys::None | Keys::Unnamed => (1, 0, 1),
            Keys::CountedPairs => {
                let pairs = first.and_then(parse_unsigned).unwrap_or(0).min(arguments as u64);
                (2, (2 * pairs as usize).min(arguments.saturating_sub(1)), 2)
            }
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

    /// Returns the command with its documentation.
    pub(super) const fn text(
        self,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Command {
        Command { since, complexity, summary, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = &'static Command> {
        commands()
            .flat_map(|(_, command)| std::iter::once(command).chain(command.subcommands.iter()))
    }

    #[test]
    fn commands_are_found_in_any_case() {
        for (_, command) in commands() {
            let upper = command.name.to_ascii_uppercase();
            assert_eq!(Command::find(upper.as_bytes()).map(|found| found.name), Some(command.name));
            for below in command.subcommands {
                let (one, other) = below.name.split_once('|').unwrap();
                assert_eq!(one, command.name);
                let found = Command::of(upper.as_bytes(), Some(other.as_bytes()));
                assert_eq!(found.map(|found| found.name), Ok(below.name));
            }
        }
        assert!(Command::find(b"nosuch").is_none());
        assert!(Command::find(b"").is_none());
        assert!(Command::find(&[b'a'; 1000]).is_none());
        assert_eq!(Command::of(b"client", Some(b"no")).err(), Some(Unknown::Subcommand));
    }

    #[test]
    fn no_name_stands_twice_and_every_command_says_what_it_does() {
        let mut names: Vec<_> = all().map(|command| command.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        for command in all() {
            assert!(command.name.len() <= NAME_BYTES_MAX);
            assert!(command.summary.ends_with('.'), "{}: {:?}", command.name, command.summary);
        }
    }

    #[test]
    fn what_touches_data_says_where() {
        for command in all() {
            let is_data = command.has(flag::WRITE) || command.has(flag::READONLY);
            assert!(!is_data || command.keys != Keys::None, "{}", command.name);
            assert!(!command.has(flag::WRITE | flag::READONLY));
        }
    }

    #[test]
    fn keys_stand_where_the_table_says() {
        let positions = |name: &str, arguments| -> Vec<usize> {
            Command::find(name.as_bytes()).unwrap().key_positions(arguments, Some(b"2")).collect()
        };
        assert_eq!(positions("get", 2), [1]);
        assert_eq!(positions("del", 4), [1, 2, 3]);
        assert_eq!(positions("mset", 5), [1, 3]);
        assert_eq!(positions("msetex", 8), [2, 4]);
        assert_eq!(positions("msetex", 4), [2]);
        assert_eq!(positions("bitop", 5), [2, 3, 4]);
        assert_eq!(positions("ping", 2), [] as [usize; 0]);
        assert_eq!(positions("scan", 2), [] as [usize; 0]);
    }
}
