//! `CLIENT`: who is connected, what each is called, who is sent away, and who must wait.

use super::table::flag::{ADMIN, ALLOW_BUSY, ALONE, ANYTIME, DANGEROUS, NOSCRIPT};
use super::table::{Command, Keys, command, help};
use super::{Call, Done, Refusal, parse_integer, printable, refused, uppercase_is};
use crate::operators::clients::{Facts, Traffic};
use crate::operators::lock;
use crate::operators::pause::Paused;
use crate::session::Replies;
use resp::Protocol;
use std::sync::Arc;
use std::time::Duration;
use types::Instant;

/// What concerns this connection alone.
const OWN: u16 = NOSCRIPT | ANYTIME | ALLOW_BUSY;
/// What concerns others.
const OPERATOR: u16 = ADMIN | DANGEROUS | NOSCRIPT | ANYTIME | ALLOW_BUSY;

pub(super) static CLIENT: &[Command] = &[
    command("client|caching", 3, OWN, Keys::None, caching).text(
        "6.0.0",
        "O(1)",
        "Is refused: the server does not tell clients what has changed.",
    ),
    command("client|capa", -3, OWN, Keys::None, capabilities).text(
        "8.0.0",
        "O(1)",
        "Takes note of nothing: there is no capability that would change a reply.",
    ),
    command("client|getname", 2, OWN, Keys::None, get_name).text(
        "2.6.9",
        "O(1)",
        "Returns the name of this connection.",
    ),
    command("client|getredir", 2, OWN, Keys::None, get_redirection).text(
        "6.0.0",
        "O(1)",
        "Returns -1: nothing is told to any connection.",
    ),
    help("client|help"),
    command("client|id", 2, OWN, Keys::None, id).text(
        "5.0.0",
        "O(1)",
        "Returns the number of this connection.",
    ),
    command("client|import-source", 3, OPERATOR, Keys::None, import_source).text(
        "8.1.0",
        "O(1)",
        "Is refused: there is no import mode.",
    ),
    command("client|info", 2, OWN, Keys::None, info).text(
        "6.2.0",
        "O(1)",
        "Describes this connection.",
    ),
    command("client|kill", -3, OPERATOR, Keys::None, kill).text(
        "2.4.0",
        "O(N) of the number of connections",
        "Sends clients away: one by its address, or all that filters describe.",
    ),
    command("client|list", -2, OPERATOR, Keys::None, list).text(
        "2.4.0",
        "O(N) of the number of connections",
        "Describes connections.",
    ),
    command("client|no-evict", 3, OWN | ADMIN | DANGEROUS, Keys::None, no_evict).text(
        "7.0.0",
        "O(1)",
        "Changes nothing but what is shown: no connection is closed to save memory for others.",
    ),
    command("client|no-touch", 3, OWN, Keys::None, no_touch).text(
        "7.2.0",
        "O(1)",
        "Changes nothing but what is shown: reads leave no mark.",
    ),
    command("client|pause", -3, OPERATOR, Keys::None, pause).text(
        "3.0.0",
        "O(1)",
        "Has requests wait for some time: all, or those that write.",
    ),
    command("client|reply", 3, OWN | ALONE, Keys::Unnamed, reply).text(
        "3.2.0",
        "O(1)",
        "Chooses which replies are sent.",
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
    command("client|tracking", -3, OWN, Keys::None, tracking).text(
        "6.0.0",
        "O(1)",
        "Is refused: the server does not tell clients what has changed.",
    ),
    command("client|trackinginfo", 2, OWN, Keys::None, tracking_info).text(
        "6.2.0",
        "O(1)",
        "Says that nothing is tracked.",
    ),
    command("client|unblock", -3, OPERATOR, Keys::None, unblock).text(
        "5.0.0",
        "O(1)",
        "Returns 0: no command of this server blocks.",
    ),
    command("client|unpause", 2, OPERATOR, Keys::None, unpause).text(
        "6.2.0",
        "O(N) of the number of connections that wait",
        "Ends a pause.",
    ),
];

/// A name of a connection or a library: one line without spaces.
pub(super) fn valid_name(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    match name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(name.to_vec()),
        false => Err(Refusal::Because(
            "ERR Client names cannot contain spaces, newlines or special characters.".into(),
        )),
    }
}

/// `CLIENT ID`.
fn id(call: &mut Call<'_>) -> Done {
    call.reply.integer(call.session.id() as i64);
    Ok(())
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
    call.session.no_evict = on_or_off(call)?;
    call.ok()
}

/// `CLIENT NO-TOUCH ON | OFF`.
fn no_touch(call: &mut Call<'_>) -> Done {
    call.session.no_touch = on_or_off(call)?;
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
    // It is thrown away.
    call.ok()
}

/// `CLIENT INFO`.
fn info(call: &mut Call<'_>) -> Done {
    call.session.tell(call.now, 0);
    let line = describe(&call.session.facts, call.now);
    call.reply.verbatim(*b"txt", line.as_bytes());
    Ok(())
}

/// One client as a line. What this server does not know is 0, or empty.
fn describe(facts: &Facts, now: Instant) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let shown = facts.shown();
    let names = lock(&facts.names).clone();
    let flags: String = [(shown.is_monitor, 'O'), (shown.no_evict, 'e'), (shown.no_touch, 'T')]
        .into_iter()
        .filter_map(|(is_set, flag)| is_set.then_some(flag))
        .collect();
    let command = match facts.requests() {
        0 => "NULL",
        _ => Command::numbered(usize::from(shown.command)).map_or("NULL", |command| command.name),
    };
    let Traffic { read, written, unread, unsent } = facts.traffic();
    format!(
        "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} capa= db={} sub=0 psub=0 \
         ssub=0 multi=-1 watch=0 qbuf={unread} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 \
         obl={unsent} oll=0 omem={unsent} tot-mem={} events=r cmd={command} user=default redir=-1 \
         resp={} lib-name={} lib-ver={} tot-net-in={read} tot-net-out={written} tot-cmds={}\n",
        facts.id,
        facts.peer,
        facts.local,
        text(&names.name),
        now.since(facts.since).as_secs(),
        now.since(facts.last_request()).as_secs(),
        if flags.is_empty() { "N" } else { &flags },
        shown.table.0,
        unread + unsent,
        if shown.protocol == Protocol::Resp3 { 3 } else { 2 },
        text(&names.library),
        text(&names.version),
        facts.requests(),
    )
}

/// Which clients are meant.
#[derive(Debug, Default)]
struct Filter {
    ids: Vec<u64>,
    address: Option<String>,
    local: Option<String>,
    class: Option<Class>,
    age_min: Option<Duration>,
    spares_me: bool,
}

/// Kinds of clients. There are only ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Normal,
    Other,
}

fn parse_class(word: &[u8]) -> Result<Class, Refusal> {
    match &word.to_ascii_lowercase()[..] {
        b"normal" => Ok(Class::Normal),
        b"replica" | b"slave" | b"pubsub" | b"master" | b"primary" => Ok(Class::Other),
        _ => {
            let text = format!("ERR Unknown client type '{}'", printable(word, 128));
            Err(Refusal::Because(text.into()))
        }
    }
}

impl Filter {
    /// Names and values in turn. `ID` may have several values, as far as they are numbers.
    fn parse(mut words: &[&[u8]]) -> Result<Filter, Refusal> {
        let mut filter = Filter { spares_me: true, ..Filter::default() };
        while let [name, value, rest @ ..] = words {
            words = rest;
            let text = || Some(String::from_utf8_lossy(value).into_owned());
            match &name.to_ascii_uppercase()[..] {
                b"ID" => {
                    filter.ids.push(parse_id(value)?);
                    while let [next, rest @ ..] = words
                        && let Ok(id) = parse_id(next)
                    {
                        filter.ids.push(id);
                        words = rest;
                    }
                }
                b"ADDR" => filter.address = text(),
                b"LADDR" => filter.local = text(),
                b"TYPE" => filter.class = Some(parse_class(value)?),
                b"USER" if *value == b"default" => {}
                b"USER" => {
                    let user = printable(value, 128);
                    let text = format!("ERR No such user '{user}'");
                    return Err(Refusal::Because(text.into()));
                }
                b"SKIPME" if uppercase_is(value, b"YES") => filter.spares_me = true,
                b"SKIPME" if uppercase_is(value, b"NO") => filter.spares_me = false,
                b"MAXAGE" => {
                    let seconds = parse_integer(value).and_then(|age| u32::try_from(age).ok());
                    let seconds = seconds.ok_or(Refusal::Because(
                        "ERR maxage is not an integer or out of range".into(),
                    ))?;
                    filter.age_min = Some(Duration::from_secs(u64::from(seconds)));
                }
                _ => return Err(Refusal::Syntax),
            }
        }
        match words {
            [] => Ok(filter),
            _ => Err(Refusal::Syntax),
        }
    }

    fn means(&self, facts: &Facts, now: Instant) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        (self.ids.is_empty() || self.ids.contains(&facts.id))
            && is(&self.address, &facts.peer)
            && is(&self.local, &facts.local)
            && self.class != Some(Class::Other)
            && self.age_min.is_none_or(|age| now.since(facts.since) >= age)
    }
}

fn parse_id(word: &[u8]) -> Result<u64, Refusal> {
    let id = parse_integer(word).ok_or(Refusal::Syntax)?;
    let id = u64::try_from(id).ok().filter(|id| *id > 0);
    id.ok_or(Refusal::Because("ERR client-id should be greater than 0".into()))
}

/// `CLIENT LIST [TYPE type] [ID id ...]`.
fn list(call: &mut Call<'_>) -> Done {
    call.session.tell(call.now, 0);
    let filter = match &call.args[2..] {
        [] => Filter::default(),
        [word, ids @ ..] if uppercase_is(word, b"ID") && !ids.is_empty() => {
            let ids = ids.iter().map(|id| parse_id(id)).collect::<Result<_, _>>()?;
            Filter { ids, ..Filter::default() }
        }
        [word, class] if uppercase_is(word, b"TYPE") => {
            Filter { class: Some(parse_class(class)?), ..Filter::default() }
        }
        words => Filter::parse(words)?,
    };
    let all = call.engine.node().operators.clients.all();
    let meant = all.iter().filter(|facts| filter.means(facts, call.now));
    let text: String = meant.map(|facts| describe(facts, call.now)).collect();
    call.reply.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CLIENT KILL address`, or `CLIENT KILL filter value [filter value ...]`.
fn kill(call: &mut Call<'_>) -> Done {
    let words = &call.args[2..];
    let (filter, is_old_form) = match words {
        [address] => {
            let address = Some(String::from_utf8_lossy(address).into_owned());
            (Filter { address, ..Filter::default() }, true)
        }
        _ => (Filter::parse(words)?, false),
    };
    let node = call.engine.node();
    let all: Vec<Arc<Facts>> = node.operators.clients.all();
    let mut killed = 0;
    for facts in all.iter().filter(|facts| filter.means(facts, call.now)) {
        if facts.id != call.session.id() {
            node.operators.clients.kill(facts);
        } else if filter.spares_me {
            continue;
        } else {
            // Not before it has the reply.
            call.session.closing = true;
        }
        killed += 1;
    }
    if killed > 0 {
        node.wake_all();
    }
    match (is_old_form, killed) {
        (true, 0) => Err(refused("ERR No such client")),
        (true, _) => call.ok(),
        (false, _) => {
            call.reply.integer(killed);
            Ok(())
        }
    }
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
    let until = call.now.0.saturating_add(millis.saturating_mul(1_000_000)).min(u64::MAX / 2);
    call.engine.node().operators.pause.begin(paused, Instant(until));
    call.ok()
}

/// `CLIENT UNPAUSE`.
fn unpause(call: &mut Call<'_>) -> Done {
    call.engine.node().operators.pause.end();
    call.engine.node().wake_all();
    call.ok()
}

/// `CLIENT UNBLOCK id [TIMEOUT | ERROR]`.
fn unblock(call: &mut Call<'_>) -> Done {
    parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    match &call.args[3..] {
        [] => {}
        [word] if uppercase_is(word, b"TIMEOUT") || uppercase_is(word, b"ERROR") => {}
        _ => {
            return Err(refused("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    }
    call.reply.integer(0);
    Ok(())
}

/// `CLIENT GETREDIR`.
fn get_redirection(call: &mut Call<'_>) -> Done {
    call.reply.integer(-1);
    Ok(())
}

const NO_TRACKING: &str = "ERR client-side caching is not supported: this server does not tell \
     clients what has changed";

/// `CLIENT TRACKING ON | OFF [...]`: to switch it off is no more than it is.
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

/// `CLIENT CAPA capability [...]`: unknown ones are passed over, as in Valkey.
fn capabilities(call: &mut Call<'_>) -> Done {
    call.ok()
}

/// `CLIENT IMPORT-SOURCE ON | OFF`.
fn import_source(_: &mut Call<'_>) -> Done {
    Err(refused("ERR Server is not in import mode"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Filter, Refusal> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        Filter::parse(&words)
    }

    #[test]
    fn filters_are_read_and_senseless_ones_refused() {
        let filter = parse("ID 1 2 3 skipme NO maxage 7 type normal addr 1:2").unwrap();
        assert_eq!(filter.ids, [1, 2, 3]);
        assert!(!filter.spares_me);
        assert_eq!(filter.age_min, Some(Duration::from_secs(7)));
        assert_eq!(filter.address.as_deref(), Some("1:2"));
        for wrong in ["ID", "ID 0", "ID x", "TYPE what", "USER me", "SKIPME perhaps", "MAXAGE -1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
