//! `CLIENT`: subcommands to list, name, close, pause and configure connections.

use super::blocking::check_millis;
use super::command::flag::{ADMIN, ALLOW_BUSY, ALONE, ANYTIME, DANGEROUS, NO_MULTI, NOSCRIPT};
use super::command::{Command, Keys, command};
use super::help::help;
use super::{Call, Done, Refusal};
use super::{client_list, parse_integer, printable, refused, uppercase_is};
use crate::operators::clients::Unblocked;
use crate::operators::lock;
use crate::operators::pause::Paused;
use crate::session::Replies;
use types::Instant;

/// Flags of subcommands about the client's own connection.
const OWN: u32 = NOSCRIPT | ANYTIME | ALLOW_BUSY;
/// Flags of subcommands about other connections.
const OPERATOR: u32 = ADMIN | DANGEROUS | NOSCRIPT | ANYTIME | ALLOW_BUSY;

pub(super) static CLIENT: &[Command] = &[
    command("client|caching", 3, OWN, Keys::None, caching),
    command("client|capa", -3, OWN, Keys::None, capabilities),
    command("client|getname", 2, OWN, Keys::None, get_name),
    command("client|getredir", 2, OWN, Keys::None, |call| call.integer(-1)),
    help("client|help"),
    command("client|id", 2, OWN, Keys::None, |call| call.integer(call.session.id() as i64)),
    command("client|import-source", 3, OPERATOR, Keys::None, import_source),
    command("client|info", 2, OWN, Keys::None, client_list::info),
    command("client|kill", -3, OPERATOR, Keys::None, client_list::kill),
    command("client|list", -2, OPERATOR, Keys::None, client_list::list),
    command("client|no-evict", 3, OWN | ADMIN | DANGEROUS, Keys::None, no_evict),
    command("client|no-touch", 3, OWN, Keys::None, no_touch),
    command("client|pause", -3, OPERATOR, Keys::None, pause),
    command("client|reply", 3, OWN | ALONE | NO_MULTI, Keys::Unnamed, reply),
    command("client|setinfo", 4, OWN, Keys::None, set_info),
    command("client|setname", 3, OWN, Keys::None, set_name),
    command("client|tracking", -3, OWN, Keys::None, tracking),
    command("client|trackinginfo", 2, OWN, Keys::None, tracking_info),
    command("client|unblock", -3, OPERATOR, Keys::None, unblock),
    command("client|unpause", 2, OPERATOR, Keys::None, unpause),
];

/// Checks the name of a connection or library: printable ASCII without spaces.
pub(super) fn valid_name(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    match name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(name.to_vec()),
        false => Err(Refusal::because(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        )),
    }
}

/// `CLIENT GETNAME`.
fn get_name(call: &mut Call<'_>) -> Done {
    let name = lock(&call.session.facts.names).name.clone();
    match name.is_empty() {
        true => call.reply.null(),
        false => call.reply.bulk(&name),
    }
    Ok(())
}

/// `CLIENT SETNAME name`.
fn set_name(call: &mut Call<'_>) -> Done {
    lock(&call.session.facts.names).name = valid_name(call.args[2])?;
    call.ok()
}

/// `CLIENT SETINFO LIB-NAME | LIB-VER text`.
fn set_info(call: &mut Call<'_>) -> Done {
    let (attribute, value) = (call.args[2], call.args[3]);
    let shown = printable(attribute, 128);
    let is_name = uppercase_is(attribute, b"LIB-NAME");
    if !is_name && !uppercase_is(attribute, b"LIB-VER") {
        return Err(refused(format!("ERR Unrecognized option '{shown}'")));
    }
    let value = valid_name(value).map_err(|_| {
        let text = "cannot contain spaces, newlines or special characters.";
        refused(format!("ERR {shown} {text}"))
    })?;
    let mut names = lock(&call.session.facts.names);
    match is_name {
        true => names.library = value,
        false => names.version = value,
    }
    drop(names);
    call.ok()
}

/// `ON` or `OFF` as argument 2.
fn on_or_off(call: &Call<'_>) -> Result<bool, Refusal> {
    match call.args[2] {
        word if uppercase_is(word, b"ON") => Ok(true),
        word if uppercase_is(word, b"OFF") => Ok(false),
        _ => Err(Refusal::Syntax),
    }
}

/// `CLIENT NO-EVICT ON | OFF`.
fn no_evict(call: &mut Call<'_>) -> Done {
    call.session.status.no_evict = on_or_off(call)?;
    call.ok()
}

/// `CLIENT NO-TOUCH ON | OFF`.
fn no_touch(call: &mut Call<'_>) -> Done {
    call.session.status.no_touch = on_or_off(call)?;
    call.ok()
}

/// `CLIENT REPLY ON | OFF | SKIP`.
fn reply(call: &mut Call<'_>) -> Done {
    match call.args[2] {
        word if uppercase_is(word, b"ON") => {
            call.session.replies = Replies::All;
            return call.ok();
        }
        word if uppercase_is(word, b"OFF") => call.session.replies = Replies::None,
        word if uppercase_is(word, b"SKIP") => {
            if call.session.replies != Replies::None {
                call.session.replies = Replies::AllButNext;
            }
        }
        _ => return Err(Refusal::Syntax.into()),
    }
    // This reply is discarded.
    call.ok()
}

/// `CLIENT PAUSE milliseconds [WRITE | ALL]`.
fn pause(call: &mut Call<'_>) -> Done {
    let paused = match &call.args[3..] {
        [] => Paused::All,
        [word] if uppercase_is(word, b"ALL") => Paused::All,
        [word] if uppercase_is(word, b"WRITE") => Paused::Writes,
        [_] => return Err(refused("ERR CLIENT PAUSE mode must be WRITE or ALL")),
        _ => return Err(Refusal::Syntax.into()),
    };
    let millis = parse_integer(call.args[2])
        .ok_or_else(|| refused("ERR timeout is not an integer or out of range"))?;
    let millis = u64::try_from(millis).map_err(|_| refused("ERR timeout is negative"))?;
    check_millis(call, millis)?;
    let until = call.now.0.saturating_add(millis.saturating_mul(1_000_000)).min(u64::MAX / 2);
    call.backend.operators.pause.begin(paused, Instant(until));
    call.ok()
}

/// `CLIENT UNPAUSE`.
fn unpause(call: &mut Call<'_>) -> Done {
    call.backend.operators.pause.end();
    call.backend.node().wake_all();
    call.ok()
}

/// `CLIENT UNBLOCK id [TIMEOUT | ERROR]`.
fn unblock(call: &mut Call<'_>) -> Done {
    let id = parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let how = match &call.args[3..] {
        [] => Unblocked::TimeOut,
        [word] if uppercase_is(word, b"TIMEOUT") => Unblocked::TimeOut,
        [word] if uppercase_is(word, b"ERROR") => Unblocked::Error,
        _ => {
            return Err(refused("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    let clients = &call.backend.operators.clients;
    let meant = u64::try_from(id).ok().and_then(|id| clients.find(id));
    let meant = meant.filter(|facts| facts.shown().is_waiting);
    if let Some(facts) = &meant {
        clients.unblock(facts, how);
        call.backend.node().wake_all();
    }
    call.integer(meant.is_some())
}

const NO_TRACKING: &str =
    "ERR client-side caching is not supported: this server does not track keys";

/// `CLIENT TRACKING ON | OFF [...]`. Switching it off succeeds, since it is never on.
fn tracking(call: &mut Call<'_>) -> Done {
    match on_or_off(call)? {
        true => Err(refused(NO_TRACKING)),
        false => call.ok(),
    }
}

/// `CLIENT CACHING YES | NO`.
fn caching(_: &mut Call<'_>) -> Done {
    Err(refused(
        "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
         OPTOUT mode enabled",
    ))
}

/// `CLIENT TRACKINGINFO`.
fn tracking_info(call: &mut Call<'_>) -> Done {
    call.reply.map(3);
    call.reply.bulk(b"flags");
    call.reply.set(1);
    call.reply.bulk(b"off");
    call.reply.bulk(b"redirect");
    call.reply.integer(-1);
    call.reply.bulk(b"prefixes");
    call.reply.array(0);
    Ok(())
}

/// `CLIENT CAPA capability [...]`: unknown capabilities are ignored, as in Valkey.
fn capabilities(call: &mut Call<'_>) -> Done {
    let is_redirect = |word: &&[u8]| uppercase_is(word, b"REDIRECT");
    call.session.status.takes_redirects |= call.args[2..].iter().any(is_redirect);
    call.ok()
}

/// `CLIENT IMPORT-SOURCE ON | OFF`.
fn import_source(_: &mut Call<'_>) -> Done {
    Err(refused("ERR Server is not in import mode"))
}
