//! Commands that describe the server and its commands.

use super::command::flag::{self, ANYTIME, DANGEROUS, FAST};
use super::command::{Command, Family, Keys, command as entry, container};
use super::documentation::documentation;
use super::glob::glob_matches;
use super::help::help;
use super::table::{commands, commands_and_subcommands};
use super::{Call, Done, Refusal, hints, refused};
use crate::operators::info;

pub(super) static FAMILY: Family = Family {
    group: "server",
    category: None,
    commands: &[
        Command { subcommands: COMMAND, ..entry("command", -1, ANYTIME, Keys::None, command) },
        container("config", super::configuration::CONFIG),
        entry("info", -1, ANYTIME | DANGEROUS, Keys::None, info),
        entry("time", 1, FAST | ANYTIME, Keys::None, time),
    ],
};

static COMMAND: &[Command] = &[
    entry("command|count", 2, ANYTIME, Keys::None, count),
    entry("command|docs", -2, ANYTIME, Keys::None, docs),
    entry("command|getkeys", -3, ANYTIME, Keys::None, get_keys),
    help("command|help"),
    entry("command|info", -2, ANYTIME, Keys::None, command_info),
    entry("command|list", -2, ANYTIME, Keys::None, list),
];

/// `TIME`: seconds since 1970 and microseconds within the second.
fn time(call: &mut Call<'_>) -> Done {
    let millis = call.wall.0;
    call.reply.array(2);
    for number in [millis / 1000, millis % 1000 * 1000] {
        call.reply.bulk(itoa::Buffer::new().format(number).as_bytes());
    }
    Ok(())
}

/// `INFO [section ...]`.
fn info(call: &mut Call<'_>) -> Done {
    let wanted: Vec<String> =
        call.args[1..].iter().map(|name| String::from_utf8_lossy(name).to_lowercase()).collect();
    let names = |name: &str| wanted.iter().any(|wanted| wanted == name);
    let everything = names("all") || names("everything");
    let default = wanted.is_empty() || names("default");
    let text = info::text(call.backend, call.now, call.wall, |section| {
        everything || (default && section.is_default) || names(&section.name.to_lowercase())
    });
    call.text(&text)
}

fn command(call: &mut Call<'_>) -> Done {
    let all = commands();
    call.reply.array(all.len());
    all.for_each(|(family, command)| describe(call, family, command));
    Ok(())
}

/// `COMMAND COUNT`.
fn count(call: &mut Call<'_>) -> Done {
    call.integer(commands().len() as i64)
}

/// `COMMAND INFO [name ...]`.
fn command_info(call: &mut Call<'_>) -> Done {
    let names = &call.args[2..];
    if names.is_empty() {
        return command(call);
    }
    call.reply.array(names.len());
    for name in names {
        match find(name) {
            Some((family, command)) => describe(call, family, command),
            None => call.reply.null(),
        }
    }
    Ok(())
}

/// `COMMAND DOCS [name ...]`.
fn docs(call: &mut Call<'_>) -> Done {
    let names = &call.args[2..];
    let wanted: Vec<_> = match names.is_empty() {
        true => commands().collect(),
        false => names.iter().filter_map(|name| find(name)).collect(),
    };
    call.reply.map(wanted.len());
    for (family, command) in wanted {
        document(call, family, command);
    }
    Ok(())
}

/// `COMMAND LIST [FILTERBY PATTERN pattern | ACLCAT category | MODULE name]`.
fn list(call: &mut Call<'_>) -> Done {
    let all = commands_and_subcommands;
    let names: Vec<&str> = match call.args[2..] {
        [] => all().map(|(_, command)| command.name).collect(),
        [word, by, what] if super::uppercase_is(word, b"FILTERBY") => {
            let by = by.to_ascii_uppercase();
            let is_wanted = |family: &Family, command: &Command| match &by[..] {
                b"PATTERN" => glob_matches(what, command.name.as_bytes(), true),
                b"ACLCAT" => categories(family, command)
                    .iter()
                    .any(|category| category.as_bytes()[1..].eq_ignore_ascii_case(what)),
                _ => false,
            };
            if ![&b"PATTERN"[..], b"ACLCAT", b"MODULE"].contains(&&by[..]) {
                return Err(Refusal::Syntax.into());
            }
            let wanted = all().filter(|(family, command)| is_wanted(family, command));
            wanted.map(|(_, command)| command.name).collect()
        }
        _ => return Err(Refusal::Syntax.into()),
    };
    call.reply.bulks(&names);
    Ok(())
}

/// `COMMAND GETKEYS command [argument ...]`.
fn get_keys(call: &mut Call<'_>) -> Done {
    let arguments = &call.args[2..];
    let command = Command::of(arguments[0], arguments.get(1).copied())
        .map_err(|_| refused("ERR Invalid command specified"))?;
    if !command.takes(arguments.len()) {
        return Err(refused("ERR Invalid number of arguments specified for command"));
    }
    let positions = command.key_positions(arguments.len(), |at| arguments.get(at).copied());
    let keys: Vec<&[u8]> = positions.map(|at| arguments[at]).collect();
    if keys.is_empty() && command.counts_keys() {
        return Err(refused("ERR Invalid arguments specified for command"));
    }
    if keys.is_empty() {
        return Err(refused("ERR The command has no key arguments"));
    }
    call.reply.bulks(&keys);
    Ok(())
}

/// Returns a command, or a subcommand written as `client|list`.
fn find(name: &[u8]) -> Option<(&'static Family, &'static Command)> {
    let mut parts = name.splitn(2, |&byte| byte == b'|');
    let command = Command::find(parts.next()?)?;
    let (family, _) = commands().find(|(_, other)| other.name == command.name)?;
    match parts.next() {
        Some(below) => Some((family, command.subcommand(below)?)),
        None => Some((family, command)),
    }
}

/// Returns the ACL categories: that of the family, and those implied by the flags.
pub(super) fn categories(family: &Family, command: &Command) -> Vec<&'static str> {
    let mut categories = Vec::new();
    let mut add = |is_in: bool, category| {
        if is_in && !categories.contains(&category) {
            categories.push(category);
        }
    };
    let is_container = !command.subcommands.is_empty();
    add(family.category.is_some() && !is_container, family.category.unwrap_or_default());
    let is_sorted = matches!(command.keys, Keys::Sorted { .. });
    add(is_sorted, "@sortedset");
    add(is_sorted, "@list");
    add(command.has(flag::WRITE), "@write");
    add(command.has(flag::READONLY), "@read");
    add(command.has(flag::ADMIN), "@admin");
    add(command.has(flag::DANGEROUS), "@dangerous");
    add(true, if command.has(flag::FAST) { "@fast" } else { "@slow" });
    add(command.has(flag::BLOCKING), "@blocking");
    categories
}

/// Writes the ten elements that `COMMAND` returns for a command.
fn describe(call: &mut Call<'_>, family: &Family, command: &Command) {
    let names = flag::NAMES.iter().enumerate();
    let mut flags: Vec<&str> =
        names.filter(|(bit, _)| command.flags & (1 << bit) != 0).map(|(_, name)| *name).collect();
    let has_options = matches!(
        command.keys,
        Keys::Wrapped { .. } | Keys::OneAndStored { .. } | Keys::Sorted { .. }
    );
    if command.counts_keys() || has_options {
        flags.push("movablekeys");
    }
    let (first, last, step) = match command.keys {
        Keys::None
        | Keys::Counted
        | Keys::CountedPairs
        | Keys::CountedSecond
        | Keys::Streams
        | Keys::Wrapped { .. }
        | Keys::Unnamed => (0, 0, 0),
        Keys::CountedBehindOne | Keys::OneAndStored { .. } | Keys::Sorted { .. } => (1, 1, 1),
        Keys::At { first, last, step } => (i64::from(first), i64::from(last), i64::from(step)),
    };
    let categories = categories(family, command);
    let reply = &mut call.reply;
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    reply.set(flags.len());
    flags.iter().for_each(|name| reply.simple(name));
    [first, last, step].into_iter().for_each(|number| reply.integer(number));
    reply.set(categories.len());
    categories.iter().for_each(|name| reply.simple(name));
    hints::write_tips(command, reply);
    hints::write_keys(command, reply);
    reply.array(command.subcommands.len());
    for subcommand in command.subcommands {
        describe(call, family, subcommand);
    }
}

/// Writes name and properties of one command for `COMMAND DOCS`.
fn document(call: &mut Call<'_>, family: &Family, command: &Command) {
    let text = documentation(command.name);
    let reply = &mut call.reply;
    reply.bulk(command.name.as_bytes());
    let has_subcommands = !command.subcommands.is_empty();
    reply.map(4 + usize::from(has_subcommands));
    reply.texts([
        ("summary", text.summary),
        ("since", text.since),
        ("group", family.group),
        ("complexity", text.complexity),
    ]);
    if has_subcommands {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        for subcommand in command.subcommands {
            document(call, family, subcommand);
        }
    }
}
