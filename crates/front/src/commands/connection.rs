//! Commands about the connection itself: `HELLO`, `AUTH`, `SELECT`, `QUIT` and others.

use super::clients::valid_name;
use super::command::flag::{
    ALLOW_BUSY, ALONE, ANYTIME, CHANGES_TABLE, ENDS_MULTI, FAST, NO_AUTH, NOSCRIPT,
};
use super::command::{Command, Family, Keys, Secrets, command, container};
use super::slots::cluster_node;
use super::{Call, Done, NotExecuted, Refusal, parse_integer, printable, refused};
use crate::commands::Watched;
use crate::operators::clients::ClientStatus;
use crate::operators::lock;
use crate::session::Replies;
use resp::Protocol;

pub(super) static FAMILY: Family = Family {
    group: "connection",
    category: Some("@connection"),
    commands: &[
        Command { secrets: Secrets::All, ..command("auth", -2, HELLO, Keys::None, auth) },
        command("asking", 1, FAST, Keys::None, asking),
        container("client", super::clients::CLIENT),
        command("echo", 2, FAST | ANYTIME, Keys::None, |call| call.bulk(call.args[1])),
        Command {
            secrets: Secrets::After { word: b"auth", count: 2 },
            ..command("hello", -1, HELLO, Keys::None, hello)
        },
        command("ping", -1, FAST | ANYTIME, Keys::None, ping),
        command("quit", -1, HELLO | ALONE | ENDS_MULTI, Keys::Unnamed, quit),
        // No effect, since there are no replicas to read from.
        command("readonly", 1, FAST | ANYTIME, Keys::None, |call| call.ok()),
        command("readwrite", 1, FAST | ANYTIME, Keys::None, |call| call.ok()),
        command("reset", 1, HELLO | ALONE | ENDS_MULTI, Keys::Unnamed, reset),
        command("select", 2, FAST | ANYTIME | CHANGES_TABLE, Keys::None, select),
    ],
};

/// Flags of commands that open, authenticate, reset or close a connection.
const HELLO: u32 = NOSCRIPT | ANYTIME | FAST | NO_AUTH | ALLOW_BUSY;
/// The Redis version whose replies are followed. Clients read it from `HELLO` and `INFO`.
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

/// `QUIT`: answers, then closes.
fn quit(call: &mut Call<'_>) -> Done {
    call.session.closing = true;
    call.ok()
}

/// `ASKING`: no effect. A range has one owner at any time, so the server never replies `ASK`.
fn asking(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    call.ok()
}

/// `SELECT database`.
fn select(call: &mut Call<'_>) -> Done {
    call.session.status.table = super::keys::parse_database(call.args[1])?;
    call.ok()
}

/// Authenticates the only user. Without a set password, any password is right, as in Redis.
fn identify(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Result<(), NotExecuted> {
    let access = &call.backend.configuration.access;
    let is_right = !access.needs_password() || access.is_password(password);
    if user != b"default" || !is_right {
        call.backend.counts.auth_failures.add(1);
        return Err(refused("WRONGPASS invalid username-password pair or user is disabled."));
    }
    call.session.is_authenticated = true;
    Ok(())
}

/// `AUTH [user] password`.
fn auth(call: &mut Call<'_>) -> Done {
    let (user, password) = match *call.args {
        [_, _] if !call.backend.configuration.access.needs_password() => {
            return Err(refused(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        }
        [_, password] => (&b"default"[..], password),
        [_, user, password] => (user, password),
        _ => return Err(Refusal::Syntax.into()),
    };
    identify(call, user, password)?;
    call.ok()
}

fn reset(call: &mut Call<'_>) -> Done {
    let session = &mut *call.session;
    let ClientStatus { takes_redirects, command, .. } = session.status;
    session.status = ClientStatus { takes_redirects, command, ..ClientStatus::default() };
    session.replies = Replies::All;
    session.collecting = None;
    session.watched = Watched::new();
    session.is_authenticated = !call.backend.configuration.access.needs_password();
    // Library name and version are kept.
    lock(&session.facts.names).name.clear();
    call.reply.set_protocol(Protocol::Resp2);
    call.reply.simple("RESET");
    Ok(())
}

/// `HELLO [protocol [AUTH user password] [SETNAME name]]`.
fn hello(call: &mut Call<'_>) -> Done {
    let mut protocol = call.session.status.protocol;
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
    let mut rest = call.args.get(2..).unwrap_or_default();
    while let [option, values @ ..] = rest {
        rest = match (&option.to_ascii_uppercase()[..], values) {
            (b"SETNAME", [new_name, after @ ..]) => {
                name = Some(valid_name(new_name)?);
                after
            }
            (b"AUTH", [user, password, after @ ..]) => {
                identify(call, user, password)?;
                after
            }
            _ => {
                let option = printable(option, 128);
                return Err(refused(format!("ERR Syntax error in HELLO option '{option}'")));
            }
        };
    }
    if !call.session.is_authenticated && call.backend.configuration.access.needs_password() {
        return Err(refused(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        lock(&call.session.facts.names).name = name;
    }
    call.session.status.protocol = protocol;
    call.reply.set_protocol(protocol);
    greet(call);
    Ok(())
}

fn greet(call: &mut Call<'_>) {
    let id = call.session.id();
    let mode = if call.backend.node().is_cluster() { "cluster" } else { "standalone" };
    let reply = &mut call.reply;
    reply.map(7);
    reply.texts([("server", "redis"), ("version", REDIS_VERSION)]);
    let version = if call.session.status.protocol == Protocol::Resp3 { 3 } else { 2 };
    reply.integers([("proto", version), ("id", id as i64)]);
    reply.texts([("mode", mode), ("role", "master")]);
    reply.bulk(b"modules");
    reply.array(0);
}
