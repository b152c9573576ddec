//! Properties of commands: name, arity, key positions, flags and handler. All other knowledge
//! about commands (arity errors, `COMMAND`, order on a connection, `CROSSSLOT`, refusal by server
//! state) is derived from them.

use super::call::Call;
use super::not_executed::{Done, Refusal};
use super::{UNKNOWN_BYTES_MAX, parse_unsigned, printable, uppercase_is};
use std::iter::{Chain, StepBy};
use std::ops::Range;
use values::{SortKey, sort_keys};

/// The handler of a command: writes one reply, or changes nothing and returns the reason.
pub(crate) type Handler = fn(&mut Call<'_>) -> Done;

/// The positions of a command's keys among its arguments (argument 0 is the command's name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The command names no key and reads none.
    None,
    /// Arguments `first` to `last` in steps of `step`. A negative `last` counts from the end.
    At { first: u8, last: i8, step: u8 },
    /// Argument 1 is the number of keys. The keys follow it.
    Counted,
    /// Argument 1 is the number of keys. The keys follow it, each with a value.
    CountedPairs,
    /// Argument 2 is the number of keys. The keys follow it.
    CountedSecond,
    /// Argument 1 is a key, argument 2 the number of further keys. They follow it.
    CountedBehindOne,
    /// Argument 1 is a key. Another one may follow `STORE` or `STOREDIST`, from this position on.
    OneAndStored { from: u8 },
    /// Argument 1 is a key. If the command may store its result, another one may follow `STORE`. With
    /// `BY` and `GET` the command reads further keys.
    Sorted { may_store: bool },
    /// The keys follow `STREAMS`, which stands behind options, and as many ids follow them.
    Streams,
    /// The arguments from this position on are another command, whose keys these are.
    Wrapped { from: u8 },
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
    pub(crate) const WRITE: u32 = 1;
    /// Only reads data.
    pub(crate) const READONLY: u32 = 1 << 1;
    /// May need memory: refused when memory is full.
    pub(crate) const DENYOOM: u32 = 1 << 2;
    /// For operators.
    pub(crate) const ADMIN: u32 = 1 << 3;
    /// Not allowed in scripts.
    pub(crate) const NOSCRIPT: u32 = 1 << 4;
    /// Allowed while data is being loaded.
    pub(crate) const LOADING: u32 = 1 << 5;
    /// Allowed on a stale replica.
    pub(crate) const STALE: u32 = 1 << 6;
    /// Takes a short, constant time.
    pub(crate) const FAST: u32 = 1 << 7;
    /// Allowed before authentication.
    pub(crate) const NO_AUTH: u32 = 1 << 8;
    /// Not allowed within a transaction.
    pub(crate) const NO_MULTI: u32 = 1 << 9;
    /// Allowed while a long command is running.
    pub(crate) const ALLOW_BUSY: u32 = 1 << 10;
    /// May wait for elements of its keys.
    pub(crate) const BLOCKING: u32 = 1 << 11;
    /// Names of the flags, in the order of their bits.
    pub(crate) const NAMES: [&str; 12] = [
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
        "blocking",
    ];
    /// Requests that follow on the connection are parsed only after this command was executed.
    pub(crate) const ALONE: u32 = 1 << 12;
    /// Ends the collection of a transaction.
    pub(crate) const ENDS_MULTI: u32 = 1 << 13;
    /// Also accesses keys in other tables than the connection's.
    pub(crate) const OTHER_TABLES: u32 = 1 << 14;
    /// May harm other clients. An ACL category, not a flag of `COMMAND`.
    pub(crate) const DANGEROUS: u32 = 1 << 15;
    /// Accesses data, although [`LOADING`] is set.
    pub(crate) const DATA: u32 = 1 << 16;
    /// Changes the connection's table. Not allowed within a transaction, which has one table.
    pub(crate) const CHANGES_TABLE: u32 = 1 << 17;
    /// Executes the commands of a transaction.
    pub(crate) const RUNS_TRANSACTION: u32 = 1 << 18;
    /// Does not count as an access to its keys, for eviction.
    pub(crate) const NO_ACCESS: u32 = 1 << 19;
    /// Flags of commands that are always allowed.
    pub(crate) const ANYTIME: u32 = LOADING | STALE;
}

/// The arguments of a command that are passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrets {
    None,
    /// All arguments after the name.
    All,
    /// The `count` arguments after each occurrence of `word`.
    After {
        word: &'static [u8],
        count: usize,
    },
}

/// A command or a subcommand.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    /// Name in lower case. A subcommand's name includes its command's: `client|list`.
    pub(crate) name: &'static str,
    /// Number of arguments including the name. A negative number is a minimum.
    pub(crate) arity: i8,
    /// Bits of [`flag`].
    pub(crate) flags: u32,
    /// Positions of the keys.
    pub(crate) keys: Keys,
    /// Arguments that operators do not see.
    pub(crate) secrets: Secrets,
    /// The function that executes the command.
    pub(crate) handler: Handler,
    /// The subcommands, selected by argument 1.
    pub(crate) subcommands: &'static [Command],
    /// Position among all commands and subcommands, set by `table`.
    pub(super) number: u16,
}

/// Returns a command without subcommands.
pub(super) const fn command(
    name: &'static str,
    arity: i8,
    flags: u32,
    keys: Keys,
    handler: Handler,
) -> Command {
    let secrets = Secrets::None;
    Command { name, arity, flags, keys, secrets, handler, subcommands: &[], number: 0 }
}

/// Returns a command that only has subcommands.
pub(super) const fn container(name: &'static str, subcommands: &'static [Command]) -> Command {
    Command { subcommands, ..command(name, -2, 0, Keys::None, no_subcommand) }
}

/// Refuses a command that was called without its subcommand.
fn no_subcommand(_: &mut Call<'_>) -> Done {
    Err(Refusal::Arity.into())
}

/// A group of related commands.
pub(crate) struct Family {
    /// Name of the group in `COMMAND DOCS`.
    pub(crate) group: &'static str,
    /// ACL category of the commands, in addition to those implied by flags, if any.
    pub(crate) category: Option<&'static str>,
    pub(crate) commands: &'static [Command],
}

/// The positions of a command's keys in a request.
pub(crate) type KeyPositions = Chain<std::option::IntoIter<usize>, StepBy<Range<usize>>>;

/// The positions of a command's keys among its own arguments.
#[derive(Clone, Copy, Debug)]
struct NamedPositions {
    /// A key in front of the others.
    lead: Option<usize>,
    /// The first of the other keys.
    first: usize,
    /// End of the arguments with the other keys; at most `first` if there are none.
    end: usize,
    /// Distance between the other keys.
    step: usize,
}

impl NamedPositions {
    const NONE: NamedPositions = NamedPositions { lead: None, first: 1, end: 1, step: 1 };
}

impl Keys {
    /// Returns whether the arguments name the keys.
    pub(crate) fn are_named(self) -> bool {
        match self {
            Keys::None | Keys::Unnamed => false,
            Keys::At { .. }
            | Keys::Counted
            | Keys::CountedPairs
            | Keys::CountedSecond
            | Keys::CountedBehindOne
            | Keys::OneAndStored { .. }
            | Keys::Sorted { .. }
            | Keys::Streams
            | Keys::Wrapped { .. } => true,
        }
    }
}

impl Command {
    /// Returns whether the command of a client counts as an access to its keys. After `CLIENT
    /// NO-TOUCH`, only `TOUCH` does.
    #[inline]
    pub(crate) fn is_access(&self, no_touch: bool) -> bool {
        !self.has(flag::NO_ACCESS) && (!no_touch || self.name == "touch")
    }

    /// Returns the command's number. It is constant while the program runs, and below
    /// [`crate::operators::counts::COMMANDS_MAX`].
    #[inline]
    pub(crate) fn number(&self) -> usize {
        usize::from(self.number)
    }

    /// Returns whether the command names exactly one key.
    #[inline]
    pub(crate) fn names_one_key(&self) -> bool {
        self.keys == ONE
    }

    /// Returns whether other arguments determine the number of keys.
    pub(super) fn counts_keys(&self) -> bool {
        matches!(
            self.keys,
            Keys::Counted
                | Keys::CountedPairs
                | Keys::CountedSecond
                | Keys::CountedBehindOne
                | Keys::Streams
        )
    }

    pub(crate) fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        let is_it = |command: &&Command| command.last_name().as_bytes().eq_ignore_ascii_case(name);
        self.subcommands.iter().find(is_it)
    }

    /// Returns the name without that of the parent command.
    pub(crate) fn last_name(&self) -> &'static str {
        self.name.rsplit_once('|').map_or(self.name, |(_, last)| last)
    }

    /// Returns whether all of these bits of [`flag`] are set.
    #[inline]
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Returns whether the command accepts this number of arguments, its name included.
    #[inline]
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { arguments == least } else { arguments >= least }
    }

    /// Returns the key positions in a request of `arguments` arguments, given by their positions.
    pub(crate) fn key_positions<'r>(
        &self,
        arguments: usize,
        argument: impl Fn(usize) -> Option<&'r [u8]>,
    ) -> KeyPositions {
        let (named, offset) = match self.keys {
            Keys::Wrapped { from } => {
                let from = usize::from(from);
                let name = argument(from);
                let wrapped = name.and_then(|name| Command::of(name, argument(from + 1)).ok());
                let wrapped = wrapped.filter(|wrapped| wrapped.may_be_wrapped());
                let rest = arguments.saturating_sub(from);
                let behind = |at| argument(from + at);
                (wrapped.map_or(NamedPositions::NONE, |it| it.named_positions(rest, behind)), from)
            }
            Keys::None
            | Keys::At { .. }
            | Keys::Counted
            | Keys::CountedPairs
            | Keys::CountedSecond
            | Keys::CountedBehindOne
            | Keys::OneAndStored { .. }
            | Keys::Sorted { .. }
            | Keys::Streams
            | Keys::Unnamed => (self.named_positions(arguments, argument), 0),
        };
        let NamedPositions { lead, first, end, step } = named;
        let lead = lead.map(|lead| offset + lead);
        lead.into_iter().chain((offset + first..offset + end).step_by(step))
    }

    /// Returns the positions of the keys in a request of `arguments` arguments.
    fn named_positions<'r>(
        &self,
        arguments: usize,
        argument: impl Fn(usize) -> Option<&'r [u8]>,
    ) -> NamedPositions {
        match self.keys {
            Keys::None | Keys::Unnamed | Keys::Wrapped { .. } => NamedPositions::NONE,
            Keys::Counted | Keys::CountedPairs | Keys::CountedSecond => {
                let step = if self.keys == Keys::CountedPairs { 2 } else { 1 };
                let number = if self.keys == Keys::CountedSecond { 2 } else { 1 };
                let keys = argument(number).and_then(parse_unsigned).unwrap_or(0);
                let first = number + 1;
                // Without keys this is the first position.
                let end = first + keys.min(arguments as u64) as usize * step + 1 - step;
                NamedPositions { lead: None, first, end: end.min(arguments), step }
            }
            Keys::CountedBehindOne => {
                // Without further keys, or with more than there are, the request is invalid.
                let keys = argument(2).and_then(parse_unsigned).unwrap_or(0);
                match usize::try_from(keys) {
                    Ok(keys) if keys > 0 && keys <= arguments.saturating_sub(3) => {
                        NamedPositions { lead: Some(1), first: 3, end: 3 + keys, step: 1 }
                    }
                    Ok(_) | Err(_) => NamedPositions::NONE,
                }
            }
            Keys::Streams => {
                let keyword = streams_position(self.streams_from(), arguments, argument);
                let words = keyword.map_or(0, |keyword| arguments - keyword - 1);
                match keyword {
                    Some(keyword) if words > 1 => {
                        let (first, end) = (keyword + 1, keyword + 1 + words / 2);
                        NamedPositions { lead: None, first, end, step: 1 }
                    }
                    Some(_) | None => NamedPositions::NONE,
                }
            }
            Keys::OneAndStored { from } => {
                one_and(stored_position(from.into(), arguments, argument))
            }
            Keys::Sorted { may_store } => {
                let stored = sort_keys(arguments, argument).filter_map(SortKey::stored);
                one_and(stored.last().filter(|_| may_store))
            }
            Keys::At { first, last, step } => {
                let last = if last < 0 {
                    arguments.saturating_sub(usize::from(last.unsigned_abs()))
                } else {
                    usize::from(last.unsigned_abs()).min(arguments.saturating_sub(1))
                };
                let (first, step) = (usize::from(first), usize::from(step));
                NamedPositions { lead: None, first, end: last + 1, step }
            }
        }
    }

    /// Returns whether a request also reads keys that it does not name.
    pub(crate) fn reads_unnamed<'r>(
        &self,
        arguments: usize,
        argument: impl Fn(usize) -> Option<&'r [u8]>,
    ) -> bool {
        let (mut keys, mut from) = (self.keys, 0);
        if let Keys::Wrapped { from: inner } = keys {
            from = usize::from(inner);
            let name = argument(from);
            let wrapped = name.and_then(|name| Command::of(name, argument(from + 1)).ok());
            keys = wrapped.map_or(Keys::None, |wrapped| wrapped.keys);
        }
        let behind = |at| argument(from + at);
        matches!(keys, Keys::Sorted { .. })
            && sort_keys(arguments.saturating_sub(from), behind).any(SortKey::is_pattern)
    }

    /// Returns the first position at which a command of [`Keys::Streams`] may have `STREAMS`.
    pub(super) fn streams_from(&self) -> usize {
        usize::from(self.arity.unsigned_abs()).saturating_sub(3)
    }

    /// Returns whether `BALLAST.ONCE` can execute the command: it changes only keys that it names.
    pub(crate) fn may_be_wrapped(&self) -> bool {
        let names_keys = self.keys.are_named() && !matches!(self.keys, Keys::Wrapped { .. });
        let is_excluded = self.has(flag::NO_MULTI) || self.has(flag::CHANGES_TABLE);
        self.has(flag::WRITE) && names_keys && !is_excluded && !self.has(flag::BLOCKING)
    }
}

/// Returns the positions of argument 1, and of the key under which a result is stored.
fn one_and(stored: Option<usize>) -> NamedPositions {
    let (first, end) = stored.map_or((1, 1), |stored| (stored, stored + 1));
    NamedPositions { lead: Some(1), first, end, step: 1 }
}

/// Returns the position of the key under which a command of [`Keys::OneAndStored`] stores its result:
/// of several, the last.
pub(super) fn stored_position<'r>(
    from: usize,
    arguments: usize,
    argument: impl Fn(usize) -> Option<&'r [u8]>,
) -> Option<usize> {
    let (mut at, mut stored) = (from, None);
    while at + 1 < arguments {
        let is_option = argument(at)
            .is_some_and(|word| uppercase_is(word, b"STORE") || uppercase_is(word, b"STOREDIST"));
        if is_option {
            at += 1;
            stored = Some(at);
        }
        at += 1;
    }
    stored
}

/// Returns the position of `STREAMS` in a request of `XREAD` or `XREADGROUP`, from a position on.
fn streams_position<'r>(
    from: usize,
    arguments: usize,
    argument: impl Fn(usize) -> Option<&'r [u8]>,
) -> Option<usize> {
    let is_keyword = |word: &[u8]| uppercase_is(word, b"STREAMS");
    (from..arguments).find(|at| argument(*at).is_some_and(is_keyword))
}

/// The part of a request that names no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No command has the name in argument 0.
    Command,
    /// The command has no subcommand of the name in argument 1.
    Subcommand,
}

/// Returns Redis's error for a subcommand that does not exist.
pub(super) fn unknown_subcommand(args: &[&[u8]]) -> String {
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
