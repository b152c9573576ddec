//! The command table: what each command is called, how many arguments it takes, where its keys
//! stand, and what carries it out. Everything that is said about commands elsewhere (arity errors,
//! `COMMAND`, order on a connection, `CROSSSLOT`, what is refused in which state) is read from here.
//!
//! Each module of commands has a [`Family`]; the table is all of them.

use super::{Call, Done, Refusal, parse_unsigned};
use crate::operators::counts::COMMANDS_MAX;
use std::sync::LazyLock;

/// What carries a command out: writes one reply, or changes nothing and says why it cannot yet.
pub(crate) type Handler = fn(&mut Call<'_>) -> Done;

/// Where a command's keys stand among its arguments (the command's name is argument 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// It names no key and looks at none.
    None,
    /// From argument `first` to `last` (negative: counted from the end) in steps of `step`.
    At { first: u8, last: i8, step: u8 },
    /// Argument 1 says how many keys follow it, each with its value.
    CountedPairs,
    /// It looks at keys that it does not name: it runs alone on its connection.
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
/// Keys and values in turn.
pub(super) const PAIRS: Keys = Keys::At { first: 1, last: -1, step: 2 };

/// Properties of a command, as `COMMAND` names them.
pub(crate) mod flag {
    /// Changes data.
    pub(crate) const WRITE: u16 = 1;
    /// Only reads data.
    pub(crate) const READONLY: u16 = 1 << 1;
    /// May need memory: refused when it is full.
    pub(crate) const DENYOOM: u16 = 1 << 2;
    /// For operators.
    pub(crate) const ADMIN: u16 = 1 << 3;
    /// Not for scripts.
    pub(crate) const NOSCRIPT: u16 = 1 << 4;
    /// Answered also while data is being loaded.
    pub(crate) const LOADING: u16 = 1 << 5;
    /// Answered also by a stale replica.
    pub(crate) const STALE: u16 = 1 << 6;
    /// Takes a short constant time.
    pub(crate) const FAST: u16 = 1 << 7;
    /// Answered before the client has said who it is.
    pub(crate) const NO_AUTH: u16 = 1 << 8;
    /// Not within a transaction.
    pub(crate) const NO_MULTI: u16 = 1 << 9;
    /// Answered also while something long is running.
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
    /// What follows on its connection is parsed only after it has been executed.
    pub(crate) const ALONE: u16 = 1 << 12;
    /// Ends the collecting of a transaction.
    pub(crate) const ENDS_MULTI: u16 = 1 << 13;
    /// Also looks at keys in other tables than the connection's.
    pub(crate) const OTHER_TABLES: u16 = 1 << 14;
    /// Can do harm to others: no flag of `COMMAND`, but a category.
    pub(crate) const DANGEROUS: u16 = 1 << 15;
    /// What commands have that are answered at any time.
    pub(crate) const ANYTIME: u16 = LOADING | STALE;
}

/// One command, or one subcommand.
pub(crate) struct Command {
    /// In lower case; a subcommand's begins with its command's: `client|list`.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub(crate) arity: i8,
    /// Bits of [`flag`].
    pub(crate) flags: u16,
    /// Where its keys stand.
    pub(crate) keys: Keys,
    /// What carries it out.
    pub(crate) handler: Handler,
    /// The version of Redis or Valkey that had it first; ours, if it is ours.
    pub(crate) since: &'static str,
    /// How long it takes.
    pub(crate) complexity: &'static str,
    /// What it does, in one line.
    pub(crate) summary: &'static str,
    /// What argument 1 chooses from, if anything.
    pub(crate) subcommands: &'static [Command],
}

/// A command without its text.
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

/// A command that only chooses among others.
pub(super) const fn container(name: &'static str, subcommands: &'static [Command]) -> Command {
    Command { subcommands, ..command(name, -2, 0, Keys::None, no_subcommand) }
}

/// Carries out what needs a subcommand and was given none.
fn no_subcommand(_: &mut Call<'_>) -> Done {
    Err(Refusal::Arity.into())
}

/// A subcommand that lists the others of its command.
pub(super) const fn help(name: &'static str) -> Command {
    command(name, 2, flag::ANYTIME, Keys::None, super::introspection::help).text(
        "5.0.0",
        "O(1)",
        "Lists the subcommands.",
    )
}

/// Commands that belong together.
pub(crate) struct Family {
    /// As `COMMAND DOCS` calls the group.
    pub(crate) group: &'static str,
    /// The ACL category of its commands, beside those that follow from the flags; or none.
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
    &super::walks::FAMILY,
    &super::walks::TABLE_FAMILY,
    &super::waiting::FAMILY,
    &super::transactions::FAMILY,
    &super::connection::FAMILY,
    &super::introspection::FAMILY,
    &super::server::FAMILY,
    &super::cluster::FAMILY,
];

/// All commands with their families, ordered by name.
pub(crate) fn commands() -> impl ExactSizeIterator<Item = (&'static Family, &'static Command)> {
    TABLE.commands.iter().copied()
}

/// Open addressing over the hash of the name.
struct Table {
    commands: Vec<(&'static Family, &'static Command)>,
    /// Places in `commands`, plus one; 0: empty.
    places: [u16; PLACES],
}

/// Several times as many as there are commands, so that nearly all are found at the first look.
const PLACES: usize = 1024;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
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
    Table { commands, places }
});

/// FNV-1a of the name in lower case.
fn hash(name: &[u8]) -> usize {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, step);
    (hash ^ hash >> 16) as usize % PLACES
}

/// All commands and subcommands in an order, found by where in memory they stand.
struct Numbers {
    commands: Vec<&'static Command>,
    /// Open addressing: a number and one; 0: empty.
    places: Box<[u16; NUMBER_PLACES]>,
}

const NUMBER_PLACES: usize = 2048;

static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| {
    let all =
        commands().flat_map(|(_, command)| std::iter::once(command).chain(command.subcommands));
    let mut numbers = Numbers { commands: all.collect(), places: Box::new([0; NUMBER_PLACES]) };
    assert!(numbers.commands.len() <= COMMANDS_MAX, "there are too many commands to count");
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
                .unwrap_or_else(|| unreachable!("{} stands in the table", command.name));
            if std::ptr::eq(self.commands[number], command) {
                return number;
            }
            place = (place + 1) % NUMBER_PLACES;
        }
    }
}

/// Longest name of a command in bytes.
const NAME_BYTES_MAX: usize = 32;

/// Why there is no such command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Nothing is called like argument 0.
    Command,
    /// The command has no subcommand that is called like argument 1.
    Subcommand,
}

impl Command {
    /// The command of this name, in any mixture of upper and lower case.
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

    /// What a request with these first arguments calls: a subcommand, if the command has any.
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

    /// Whether it names exactly one key.
    pub(crate) fn names_one_key(&self) -> bool {
        self.keys == ONE
    }

    /// Its number: the same as long as the program runs, below
    /// [`crate::operators::counts::COMMANDS_MAX`].
    #[inline]
    pub(crate) fn number(&'static self) -> usize {
        NUMBERS.of(self)
    }

    /// The command of this [`Command::number`].
    pub(crate) fn numbered(number: usize) -> Option<&'static Command> {
        NUMBERS.commands.get(number).copied()
    }

    /// The subcommand of this name.
    pub(crate) fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        let is_it = |command: &&Command| command.last_name().as_bytes().eq_ignore_ascii_case(name);
        self.subcommands.iter().find(is_it)
    }

    /// The name without that of the command that it belongs to.
    pub(crate) fn last_name(&self) -> &'static str {
        self.name.rsplit_once('|').map_or(self.name, |(_, last)| last)
    }

    /// Whether all of these bits of [`flag`] are set.
    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Whether the command may be called with so many arguments, its name included.
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { arguments == least } else { arguments >= least }
    }

    /// Positions of its keys among so many arguments, of which `first` is argument 1.
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

    /// The same with its text.
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
