//! The table of all commands, and the lookups in it: by name, and by number.
//!
//! Each module of commands has a [`Family`]. This file is on top of them.

use super::command::{Command, Family, Unknown};
use crate::operators::counts::COMMANDS_MAX;
use std::sync::LazyLock;

static FAMILIES: &[&Family] = &[
    &super::strings::FAMILY,
    &super::pieces::FAMILY,
    &super::counters::FAMILY,
    &super::lcs::FAMILY,
    &super::bits::FAMILY,
    &super::bitfield::FAMILY,
    &super::hashes::FAMILY,
    &super::field_expiry::FAMILY,
    &super::sets::FAMILY,
    &super::lists::FAMILY,
    &super::blocking::FAMILY,
    &super::blocking::SORTED_SET_FAMILY,
    &super::sorted_additions::FAMILY,
    &super::sorted_combinations::FAMILY,
    &super::sorted_ranges::FAMILY,
    &super::sorted_sets::FAMILY,
    &super::streams::FAMILY,
    &super::stream_groups::FAMILY,
    &super::stream_info::FAMILY,
    &super::stream_reads::FAMILY,
    &super::geo::FAMILY,
    &super::geo_search::FAMILY,
    &super::keys::FAMILY,
    &super::expiry::FAMILY,
    &super::dump::FAMILY,
    &super::sort::FAMILY,
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
    &super::versioned::FAMILY,
    &super::once::FAMILY,
    &super::native::FAMILY,
    &super::two_sided::FAMILY,
];

/// Returns all commands with their families, sorted by name.
pub(crate) fn commands() -> impl ExactSizeIterator<Item = (&'static Family, &'static Command)> {
    TABLE.commands.iter().map(|(family, command)| (*family, command))
}

/// Returns all commands with their families, each followed by its subcommands, sorted by number.
pub(crate) fn commands_and_subcommands() -> impl Iterator<Item = (&'static Family, &'static Command)>
{
    commands().flat_map(|(family, command)| {
        std::iter::once(command).chain(command.subcommands).map(move |one| (family, one))
    })
}

/// A hash table of commands by name, with open addressing.
struct CommandTable {
    commands: Vec<(&'static Family, Command)>,
    /// Indices into `commands`, plus one; 0 marks an empty place.
    places: [u16; PLACES],
}

/// Size of the table: several times the number of commands, so that most lookups need one probe.
const PLACES: usize = 1024;

static TABLE: LazyLock<CommandTable> = LazyLock::new(|| {
    let commands = numbered_commands();
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

/// Returns the commands of all families, sorted by name, and gives each command and subcommand its
/// number.
fn numbered_commands() -> Vec<(&'static Family, Command)> {
    let mut commands: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| family.commands.iter().map(move |command| (*family, *command)))
        .collect();
    commands.sort_unstable_by_key(|(_, command)| command.name);
    let mut count = 0;
    let mut numbered = |command: &Command| {
        count += 1;
        Command { number: count - 1, ..*command }
    };
    for (_, command) in &mut commands {
        *command = numbered(command);
        command.subcommands =
            command.subcommands.iter().map(&mut numbered).collect::<Vec<_>>().leak();
    }
    assert!(usize::from(count) <= COMMANDS_MAX, "there are more commands than COMMANDS_MAX");
    commands
}

/// Returns the FNV-1a hash of the name in lower case.
fn hash(name: &[u8]) -> usize {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(byte | 0x20)).wrapping_mul(0x0100_0193);
    let hash = name.iter().fold(0x811c_9dc5, step);
    (hash ^ hash >> 16) as usize % PLACES
}

/// Longest name of a command, in bytes.
const NAME_BYTES_MAX: usize = 32;

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
            let command = &table.commands[at].1;
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

    /// Returns the command with this [`Command::number`].
    pub(crate) fn numbered(number: usize) -> Option<&'static Command> {
        commands_and_subcommands().nth(number).map(|(_, command)| command)
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::{Keys, flag};
    use super::*;

    fn all() -> impl Iterator<Item = &'static Command> {
        commands_and_subcommands().map(|(_, command)| command)
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
    fn no_name_stands_twice_or_is_too_long() {
        let mut names: Vec<_> = all().map(|command| command.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(all().all(|command| command.name.len() <= NAME_BYTES_MAX));
    }

    #[test]
    fn each_command_is_found_by_its_number() {
        for (number, command) in all().enumerate() {
            assert_eq!(command.number(), number);
            assert_eq!(Command::numbered(number).map(|found| found.name), Some(command.name));
        }
        assert!(Command::numbered(all().count()).is_none());
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
            Command::find(name.as_bytes())
                .unwrap()
                .key_positions(arguments, |_| Some(b"2"))
                .collect()
        };
        assert_eq!(positions("get", 2), [1]);
        assert_eq!(positions("del", 4), [1, 2, 3]);
        assert_eq!(positions("mset", 5), [1, 3]);
        assert_eq!(positions("msetex", 8), [2, 4]);
        assert_eq!(positions("msetex", 4), [2]);
        assert_eq!(positions("bitop", 5), [2, 3, 4]);
        assert_eq!(positions("zunion", 5), [2, 3]);
        assert_eq!(positions("zunionstore", 6), [1, 3, 4]);
        assert_eq!(positions("zunionstore", 4), [] as [usize; 0]);
        let stored = |words: &[&'static str]| -> Vec<usize> {
            let argument = |at: usize| words.get(at).map(|word| word.as_bytes());
            let command = Command::find(b"georadius").unwrap();
            command.key_positions(words.len(), argument).collect()
        };
        let fixed = ["georadius", "a", "1", "1", "1", "m"];
        assert_eq!(stored(&fixed), [1]);
        assert_eq!(stored(&[&fixed[..], &["store"]].concat()), [1]);
        assert_eq!(stored(&[&fixed[..], &["STORE", "b"]].concat()), [1, 7]);
        assert_eq!(stored(&[&fixed[..], &["store", "b", "storedist", "c"]].concat()), [1, 9]);
        let sorted = |line: &'static str| -> (Vec<usize>, bool) {
            let words: Vec<&str> = line.split(' ').collect();
            let argument = |at: usize| words.get(at).map(|word| word.as_bytes());
            let command = Command::find(words[0].as_bytes()).unwrap();
            let positions = command.key_positions(words.len(), argument).collect();
            (positions, command.reads_unnamed(words.len(), argument))
        };
        for (line, positions, reads_unnamed) in [
            ("sort a", &[1][..], false),
            ("sort a STORE b", &[1, 3], false),
            ("sort a store b DESC Store c", &[1, 6], false),
            ("sort a LIMIT STORE b BY store GET store STORE c", &[1, 10], false),
            ("sort a STORE", &[1], false),
            ("sort a BY w_* STORE b", &[1, 5], true),
            ("sort a GET # GET h_*->f", &[1], true),
            ("sort a BY nosort GET #", &[1], false),
            ("sort a LIMIT BY * STORE b", &[1, 6], false),
            ("sort_ro a STORE b", &[1], false),
            ("sort_ro a by w_*", &[1], true),
            ("ballast.once 1 1 1 sort a BY w_* STORE b", &[5, 9], true),
            ("ballast.once 1 1 1 sort a STORE b", &[5, 7], false),
            ("ballast.once 1 1 1 nosuch a BY w_*", &[], false),
        ] {
            assert_eq!(sorted(line), (positions.to_vec(), reads_unnamed), "{line}");
        }
        let once = |words: [&'static str; 8]| -> Vec<usize> {
            let argument = |at: usize| words.get(at).map(|word: &&'static str| word.as_bytes());
            Command::find(words[0].as_bytes()).unwrap().key_positions(8, argument).collect()
        };
        let wrapped = |name, count| ["ballast.once", "1", "1", "1", name, count, "b", "c"];
        assert_eq!(once(wrapped("del", "a")), [5, 6, 7]);
        assert_eq!(once(wrapped("append", "a")), [5]);
        assert_eq!(once(wrapped("msetex", "1")), [6]);
        assert_eq!(once(wrapped("zmpop", "1")), [6]);
        assert_eq!(once(["ballast.once", "1", "1", "1", "zdiffstore", "a", "1", "b"]), [5, 7]);
        for name in ["get", "flushall", "ballast.once", "exec", "nosuch", "select"] {
            assert_eq!(once(wrapped(name, "a")), [] as [usize; 0], "{name}");
        }
        assert_eq!(positions("ping", 2), [] as [usize; 0]);
        assert_eq!(positions("scan", 2), [] as [usize; 0]);
    }
}
