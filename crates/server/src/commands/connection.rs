//! Commands about the connection itself: greeting, names, database, farewell.

use super::table::flag::{ADMIN, ALLOW_BUSY, ANYTIME, DANGEROUS, FAST, NO_AUTH, NOSCRIPT};
use super::table::{Command, Family, Keys, command, container, help};
use super::{Call, Done, Refusal, parse_integer, printable, refused, uppercase_is};
use resp::Protocol;
use types::{TableId, limits::TABLES_MAX};

pub(super) static FAMILY: Family = Family {
    group: "connection",
    category: Some("@connection"),
    commands: &[
        command("asking", 1, FAST, Keys::None, asking).text(
            "3.0.0",
            "O(1)",
            "Changes nothing: a range has one owner at any time.",
        ),
        container("client", CLIENT).text("2.4.0", "O(1)", "Commands about connections."),
        command("echo", 2, FAST | ANYTIME, Keys::None, echo).text(
            "1.0.0",
            "O(1)",
            "Returns its argument.",
        ),
        command("hello", -1, HELLO, Keys::None, hello).text(
            "6.0.0",
            "O(1)",
            "Chooses the protocol, and tells what the server is.",
        ),
        command("ping", -1, FAST | ANYTIME, Keys::None, ping).text(
            "1.0.0",
            "O(1)",
            "Returns PONG, or its argument.",
        ),
        command("quit", -1, HELLO, Keys::Unnamed, quit).text(
            "1.0.0",
            "O(1)",
            "Closes the connection.",
        ),
        command("readonly", 1, FAST | ANYTIME, Keys::None, readonly).text(
            "3.0.0",
            "O(1)",
            "Changes nothing: there are no replicas to read from.",
        ),
        command("readwrite", 1, FAST | ANYTIME, Keys::None, readonly).text(
            "3.0.0",
            "O(1)",
            "Changes nothing: there are no replicas to read from.",
        ),
        command("select", 2, FAST | ANYTIME, Keys::None, select).text(
            "1.0.0",
            "O(1)",
            "Chooses a database.",
        ),
    ],
};

/// What greets and takes leave.
const HELLO: u16 = NOSCRIPT | ANYTIME | FAST | NO_AUTH | ALLOW_BUSY;
/// What concerns this connection alone.
const OWN: u16 = NOSCRIPT | ANYTIME | ALLOW_BUSY;

static CLIENT: &[Command] = &[
    command("client|getname", 2, OWN, Keys::None, get_name).text(
        "2.6.9",
        "O(1)",
        "Returns the name of this connection.",
    ),
    help("client|help"),
    command("client|id", 2, OWN, Keys::None, id).text(
        "5.0.0",
        "O(1)",
        "Returns the number of this connection.",
    ),
    command("client|info", 2, NOSCRIPT | ANYTIME, Keys::None, info).text(
        "6.2.0",
        "O(1)",
        "Describes this connection.",
    ),
    command("client|no-evict", 3, OWN | ADMIN | DANGEROUS, Keys::None, on_or_off).text(
        "7.0.0",
        "O(1)",
        "Changes nothing: no connection is closed to save memory for others.",
    ),
    command("client|no-touch", 3, OWN, Keys::None, on_or_off).text(
        "7.2.0",
        "O(1)",
        "Changes nothing: reads leave no mark.",
    ),
    command("client|setinfo", 4, OWN, Keys::None, set_info).text(
        "7.2.0",
        "O(1)",
        "Tells the name or version of the client's library.",
    ),
    command("client|setname", 3, OWN, Keys::None, set_name).text(
        "2.6.9",
        "O(1)",
        "Names this connection.",
    ),
];

/// The version of Redis whose replies and error texts we follow, as clients look for it.
pub(crate) const REDIS_VERSION: &str = "7.2.4";

/// `PING [message]`.
fn ping(call: &mut Call<'_>) -> Done {
    match call.args {
        [_] => call.reply.simple("PONG"),
        [_, message] => call.reply.bulk(message),
        _ => return Err(Refusal::Arity.into()),
    }
    Ok(())
}

/// `ECHO message`.
fn echo(call: &mut Call<'_>) -> Done {
    call.reply.bulk(call.args[1]);
    Ok(())
}

/// `QUIT`: answers, then closes.
fn quit(call: &mut Call<'_>) -> Done {
    call.session.closing = true;
    call.reply.simple("OK");
    Ok(())
}

/// `READONLY` and `READWRITE`: there are no replicas to read from, so neither changes anything.
fn readonly(call: &mut Call<'_>) -> Done {
    call.reply.simple("OK");
    Ok(())
}

/// `ASKING`: a range has one owner at any time, so there is never an `ASK` to follow.
fn asking(call: &mut Call<'_>) -> Done {
    match call.engine.node().is_cluster() {
        true => call.ok(),
        false => Err(refused(super::cluster::NO_CLUSTER)),
    }
}

/// `SELECT database`.
fn select(call: &mut Call<'_>) -> Done {
    let number = parse_integer(call.args[1]).ok_or(Refusal::NotAnInteger)?;
    match u8::try_from(number) {
        Ok(table) if usize::from(table) < TABLES_MAX => {
            call.session.table = TableId(table);
            call.ok()
        }
        Ok(_) | Err(_) => Err(refused("ERR DB index is out of range")),
    }
}

/// `HELLO [protocol [AUTH user password] [SETNAME name]]`.
fn hello(call: &mut Call<'_>) -> Done {
    let mut protocol = call.session.protocol;
    if let Some(version) = call.args.get(1) {
        protocol = match parse_integer(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(refused("NOPROTO unsupported protocol version")),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return Err(refused(text));
            }
        };
    }
    let mut name = None;
    let mut rest = call.args.get(2..).unwrap_or(&[]);
    loop {
        rest = match rest {
            [] => break,
            [option, new_name, after @ ..] if uppercase_is(option, b"SETNAME") => {
                name = Some(valid_name(new_name)?);
                after
            }
            // Without a configured password the default user accepts any, as in Redis.
            [option, user, _password, after @ ..] if uppercase_is(option, b"AUTH") => {
                if *user != b"default" {
                    let text = "WRONGPASS invalid username-password pair or user is disabled.";
                    return Err(refused(text));
                }
                after
            }
            [option, ..] => {
                let option = printable(option, 128);
                return Err(refused(format!("ERR Syntax error in HELLO option '{option}'")));
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

/// A name of a connection or a library: one line without spaces.
fn valid_name(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    match name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(name.to_vec()),
        false => Err(Refusal::Because(
            "ERR Client names cannot contain spaces, newlines or special characters.".into(),
        )),
    }
}

/// `CLIENT ID`.
fn id(call: &mut Call<'_>) -> Done {
    call.reply.integer(call.session.id as i64);
    Ok(())
}

/// `CLIENT GETNAME`.
fn get_name(call: &mut Call<'_>) -> Done {
    match call.session.name.is_empty() {
        true => call.reply.null(),
        false => call.reply.bulk(&call.session.name),
    }
    Ok(())
}

/// `CLIENT SETNAME name`.
fn set_name(call: &mut Call<'_>) -> Done {
    call.session.name = valid_name(call.args[2])?;
    call.ok()
}

/// `CLIENT INFO`.
fn info(call: &mut Call<'_>) -> Done {
    let line = call.session.describe();
    call.reply.verbatim(*b"txt", line.as_bytes());
    Ok(())
}

/// `CLIENT NO-EVICT | NO-TOUCH ON | OFF`.
fn on_or_off(call: &mut Call<'_>) -> Done {
    match uppercase_is(call.args[2], b"ON") || uppercase_is(call.args[2], b"OFF") {
        true => call.ok(),
        false => Err(Refusal::Syntax.into()),
    }
}

/// `CLIENT SETINFO LIB-NAME | LIB-VER text`.
fn set_info(call: &mut Call<'_>) -> Done {
    let (attribute, value) = (call.args[2], call.args[3]);
    let shown = printable(attribute, 128);
    let field = if uppercase_is(attribute, b"LIB-NAME") {
        &mut call.session.library_name
    } else if uppercase_is(attribute, b"LIB-VER") {
        &mut call.session.library_version
    } else {
        return Err(refused(format!("ERR Unrecognized option '{shown}'")));
    };
    *field = valid_name(value).map_err(|_| {
        let text = "cannot contain spaces, newlines or special characters.";
        refused(format!("ERR {shown} {text}"))
    })?;
    call.ok()
}
