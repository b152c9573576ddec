//! Commands about the connection itself: greeting, names, database, farewell.

use super::{Call, Pause, parse_integer, uppercase_is};
use resp::Protocol;
use types::{TableId, limits::TABLES_MAX};

/// The version of Redis whose replies and error texts we follow, as clients look for it.
pub(crate) const REDIS_VERSION: &str = "7.2.4";

/// `PING [message]`.
pub(crate) fn ping(call: &mut Call<'_>) -> Result<(), Pause> {
    match call.args {
        [_] => call.reply.simple("PONG"),
        [_, message] => call.reply.bulk(message),
        _ => call.wrong_arity(),
    }
    Ok(())
}

/// `ECHO message`.
pub(crate) fn echo(call: &mut Call<'_>) -> Result<(), Pause> {
    call.reply.bulk(call.args[1]);
    Ok(())
}

/// `QUIT`: answers, then closes.
pub(crate) fn quit(call: &mut Call<'_>) -> Result<(), Pause> {
    call.session.closing = true;
    call.reply.simple("OK");
    Ok(())
}

/// `READONLY` and `READWRITE`: there are no replicas to read from, so neither changes anything.
pub(crate) fn readonly(call: &mut Call<'_>) -> Result<(), Pause> {
    call.reply.simple("OK");
    Ok(())
}

/// `ASKING`: a range has one owner at any time, so there is never an `ASK` to follow.
pub(crate) fn asking(call: &mut Call<'_>) -> Result<(), Pause> {
    match call.engine.node().is_cluster() {
        true => call.reply.simple("OK"),
        false => call.reply.error(super::cluster::NO_CLUSTER),
    }
    Ok(())
}

/// `SELECT database`.
pub(crate) fn select(call: &mut Call<'_>) -> Result<(), Pause> {
    match parse_integer(call.args[1]) {
        None => call.reply.error("ERR value is not an integer or out of range"),
        Some(table) => match u8::try_from(table) {
            Ok(table) if usize::from(table) < TABLES_MAX => {
                call.session.table = TableId(table);
                call.reply.simple("OK");
            }
            Ok(_) | Err(_) => call.reply.error("ERR DB index is out of range"),
        },
    }
    Ok(())
}

/// `HELLO [protocol [AUTH user password] [SETNAME name]]`.
pub(crate) fn hello(call: &mut Call<'_>) -> Result<(), Pause> {
    let mut protocol = call.session.protocol;
    if let Some(version) = call.args.get(1) {
        protocol = match parse_integer(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => {
                call.reply.error("NOPROTO unsupported protocol version");
                return Ok(());
            }
            None => {
                call.reply.error("ERR Protocol version is not an integer or out of range");
                return Ok(());
            }
        };
    }
    let mut name = None;
    let mut rest = call.args.get(2..).unwrap_or(&[]);
    loop {
        rest = match rest {
            [] => break,
            [option, new_name, after @ ..] if uppercase_is(option, b"SETNAME") => {
                if !is_valid_name(new_name) {
                    call.reply.error(INVALID_NAME);
                    return Ok(());
                }
                name = Some(new_name.to_vec());
                after
            }
            // Without a configured password the default user accepts any, as in Redis.
            [option, user, _password, after @ ..] if uppercase_is(option, b"AUTH") => {
                if *user != b"default" {
                    call.reply
                        .error("WRONGPASS invalid username-password pair or user is disabled.");
                    return Ok(());
                }
                after
            }
            [option, ..] => {
                let option = String::from_utf8_lossy(option);
                call.reply.error(format!("ERR Syntax error in HELLO option '{option}'"));
                return Ok(());
            }
        };
    }
    if let Some(name) = name {
        call.session.name = name;
    }
    call.session.protocol = protocol;
    call.reply.set_protocol(protocol);
    greet(call);
    Ok(())
}

fn greet(call: &mut Call<'_>) {
    let id = call.session.id;
    let mode = if call.engine.node().is_cluster() { "cluster" } else { "standalone" };
    let reply = &mut call.reply;
    reply.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(if call.session.protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(id as i64);
    for (field, value) in [("mode", mode), ("role", "master")] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

const INVALID_NAME: &str =
    "ERR Client names cannot contain spaces, newlines or special characters.";

fn is_valid_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// `CLIENT subcommand`.
pub(crate) fn client(call: &mut Call<'_>) -> Result<(), Pause> {
    let subcommand = call.args[1].to_ascii_uppercase();
    match (&subcommand[..], &call.args[2..]) {
        (b"ID", []) => call.reply.integer(call.session.id as i64),
        (b"GETNAME", []) if call.session.name.is_empty() => call.reply.null(),
        (b"GETNAME", []) => call.reply.bulk(&call.session.name),
        (b"SETNAME", [name]) if is_valid_name(name) => {
            call.session.name = name.to_vec();
            call.reply.simple("OK");
        }
        (b"SETNAME", [_]) => call.reply.error(INVALID_NAME),
        (b"SETINFO", [attribute, value]) => set_info(call, attribute, value),
        (b"INFO", []) => {
            let line = call.session.describe();
            call.reply.verbatim(*b"txt", line.as_bytes());
        }
        (b"NO-EVICT" | b"NO-TOUCH", [_]) => call.reply.simple("OK"),
        (b"ID" | b"GETNAME" | b"SETNAME" | b"SETINFO" | b"INFO", _) => {
            let name = String::from_utf8_lossy(&subcommand).to_lowercase();
            call.reply.error(format!("ERR wrong number of arguments for 'client|{name}' command"));
        }
        _ => call.unknown_subcommand(),
    }
    Ok(())
}

fn set_info(call: &mut Call<'_>, attribute: &[u8], value: &[u8]) {
    let field = if uppercase_is(attribute, b"LIB-NAME") {
        &mut call.session.library_name
    } else if uppercase_is(attribute, b"LIB-VER") {
        &mut call.session.library_version
    } else {
        let attribute = String::from_utf8_lossy(attribute);
        call.reply.error(format!("ERR Unrecognized option '{attribute}'"));
        return;
    };
    if is_valid_name(value) {
        *field = value.to_vec();
        call.reply.simple("OK");
    } else {
        let attribute = String::from_utf8_lossy(attribute);
        call.reply.error(format!(
            "ERR {attribute} cannot contain spaces, newlines or special characters."
        ));
    }
}
