//! Commands by which clients and people find out what they talk to.

use super::glob::glob_matches;
use super::table::{COMMANDS, Command, Keys, flag};
use super::{Call, Pause};

/// `TIME`: seconds since 1970 and microseconds within the second.
pub(crate) fn time(call: &mut Call<'_>) -> Result<(), Pause> {
    let millis = call.wall.0;
    call.reply.array(2);
    for number in [millis / 1000, millis % 1000 * 1000] {
        call.reply.bulk(itoa::Buffer::new().format(number).as_bytes());
    }
    Ok(())
}

/// `INFO [section ...]`.
pub(crate) fn info(call: &mut Call<'_>) -> Result<(), Pause> {
    let wanted: Vec<String> =
        call.args[1..].iter().map(|name| String::from_utf8_lossy(name).to_lowercase()).collect();
    let everything = wanted.is_empty()
        || wanted.iter().any(|name| ["all", "default", "everything"].contains(&&name[..]));
    let mut text = String::new();
    for (name, lines) in call.engine.info(call.now, call.wall) {
        if everything || wanted.contains(&name.to_lowercase()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            text.push_str(&format!("# {name}\r\n"));
            for (field, value) in lines {
                text.push_str(&format!("{field}:{value}\r\n"));
            }
        }
    }
    call.reply.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CONFIG GET pattern [pattern ...]`.
pub(crate) fn config(call: &mut Call<'_>) -> Result<(), Pause> {
    let subcommand = call.args[1].to_ascii_uppercase();
    match (&subcommand[..], &call.args[2..]) {
        (b"GET", patterns @ [_, ..]) => get_settings(call, patterns),
        (b"SET", [name, _, ..]) => {
            let name = super::printable(name, 128);
            call.reply.error(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - settings are \
                 fixed when the server starts: see 'ballast serve --help'"
            ));
        }
        (b"GET" | b"SET", _) => {
            let name = String::from_utf8_lossy(&subcommand).to_lowercase();
            call.reply.error(format!("ERR wrong number of arguments for 'config|{name}' command"));
        }
        _ => call.unknown_subcommand(),
    }
    Ok(())
}

/// A setting that is named, not described by a pattern, is called as the client called it.
fn get_settings(call: &mut Call<'_>, patterns: &[&[u8]]) {
    let settings = call.engine.node().settings().as_redis_configuration();
    let mut found: Vec<(&[u8], &str)> = Vec::new();
    for (name, value) in &settings {
        let mut matching = patterns.iter().filter(|p| glob_matches(p, name.as_bytes(), true));
        let Some(pattern) = matching.next() else { continue };
        let is_name = !pattern.iter().any(|byte| b"*?[".contains(byte));
        found.push((if is_name { pattern } else { name.as_bytes() }, value));
    }
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name);
        call.reply.bulk(value.as_bytes());
    }
}

/// `COMMAND [COUNT | DOCS | INFO name ... | LIST | GETKEYS command ...]`.
pub(crate) fn command(call: &mut Call<'_>) -> Result<(), Pause> {
    let Some(subcommand) = call.args.get(1) else {
        call.reply.array(COMMANDS.len());
        for command in &COMMANDS {
            describe(call, command);
        }
        return Ok(());
    };
    let subcommand = subcommand.to_ascii_uppercase();
    match (&subcommand[..], &call.args[2..]) {
        (b"COUNT", []) => call.reply.integer(COMMANDS.len() as i64),
        (b"DOCS", _) => call.reply.map(0),
        (b"INFO", names) => {
            let names = if names.is_empty() { Vec::new() } else { names.to_vec() };
            let count = if names.is_empty() { COMMANDS.len() } else { names.len() };
            call.reply.array(count);
            if names.is_empty() {
                COMMANDS.iter().for_each(|command| describe(call, command));
            }
            for name in names {
                match Command::find(name) {
                    Some(command) => describe(call, command),
                    None => call.reply.null(),
                }
            }
        }
        (b"LIST", []) => {
            call.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| call.reply.bulk(command.name.as_bytes()));
        }
        (b"GETKEYS", [name, ..]) => get_keys(call, name),
        (b"COUNT" | b"LIST" | b"GETKEYS", _) => {
            let name = String::from_utf8_lossy(&subcommand).to_lowercase();
            call.reply.error(format!("ERR wrong number of arguments for 'command|{name}' command"));
        }
        _ => call.unknown_subcommand(),
    }
    Ok(())
}

fn get_keys(call: &mut Call<'_>, name: &[u8]) {
    let arguments = &call.args[2..];
    let Some(command) = Command::find(name) else {
        return call.reply.error("ERR Invalid command specified");
    };
    if !command.takes(arguments.len()) {
        return call.reply.error("ERR Invalid number of arguments specified for command");
    }
    let keys: Vec<usize> = command.key_positions(arguments.len()).collect();
    if keys.is_empty() {
        return call.reply.error("ERR The command has no key arguments");
    }
    call.reply.array(keys.len());
    keys.into_iter().for_each(|at| call.reply.bulk(arguments[at]));
}

/// The ten elements of `COMMAND`'s table.
fn describe(call: &mut Call<'_>, command: &Command) {
    let flags: Vec<&str> = (0..flag::NAMES.len())
        .filter(|bit| command.flags & (1 << bit) != 0)
        .map(|bit| flag::NAMES[bit])
        .collect();
    let mut categories = vec![command.category];
    for (bit, category) in
        [(flag::WRITE, "@write"), (flag::READONLY, "@read"), (flag::FAST, "@fast")]
    {
        if command.flags & bit != 0 && category != command.category {
            categories.push(category);
        }
    }
    if command.flags & flag::FAST == 0 {
        categories.push("@slow");
    }
    let (first, last, step) = match command.keys {
        Keys::None | Keys::Unnamed => (0, 0, 0),
        Keys::At { first, last, step } => (i64::from(first), i64::from(last), i64::from(step)),
    };
    let reply = &mut call.reply;
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    reply.set(flags.len());
    flags.iter().for_each(|name| reply.simple(name));
    [first, last, step].into_iter().for_each(|number| reply.integer(number));
    reply.set(categories.len());
    categories.iter().for_each(|name| reply.simple(name));
    reply.array(0);
    describe_keys(reply, command, [first, last, step]);
    reply.array(0);
}

/// The key specification: where clients that do not know the command find its keys.
fn describe_keys(reply: &mut resp::ReplyWriter<'_>, command: &Command, at: [i64; 3]) {
    let [first, last, step] = at;
    if first == 0 {
        return reply.array(0);
    }
    let access = if command.flags & flag::WRITE != 0 { "RW" } else { "RO" };
    reply.array(1);
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(1);
    reply.simple(access);
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(first);
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    let last = if last > 0 { last - first } else { last };
    for (name, number) in [("lastkey", last), ("keystep", step), ("limit", 0)] {
        reply.bulk(name.as_bytes());
        reply.integer(number);
    }
}
