//! `CLIENT LIST`, `CLIENT INFO` and `CLIENT KILL`: clients as lines of text, and the filters that
//! select clients.

use super::command::Command;
use super::{Call, Done, Refusal, parse_integer, printable, refused};
use crate::operators::clients::{Facts, Traffic, TransactionCounts};
use crate::operators::lock;
use resp::Protocol;
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use types::limits::DATABASES;
use types::{Instant, TableId};

/// `CLIENT INFO`.
pub(super) fn info(call: &mut Call<'_>) -> Done {
    call.session.publish(call.now, 0);
    let line = describe(&call.session.facts, call.now);
    call.text(&line)
}

/// Returns the client's flag letters, in Valkey's order; `N` if no flag is set.
fn flags(facts: &Facts) -> String {
    let shown = facts.shown();
    let flags = [
        (shown.is_monitor, 'O'),
        (facts.collected().commands.is_some(), 'x'),
        (shown.is_blocked, 'b'),
        (shown.no_evict, 'e'),
        (shown.no_touch, 'T'),
    ];
    let set: String = flags.iter().filter_map(|(is_set, flag)| is_set.then_some(*flag)).collect();
    if set.is_empty() { "N".into() } else { set }
}

/// Describes one client as a line. Fields that this server does not have are 0 or empty.
fn describe(facts: &Facts, now: Instant) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let shown = facts.shown();
    let names = lock(&facts.names).clone();
    let command = shown.command.and_then(|number| Command::numbered(usize::from(number)));
    let command = command.map_or("NULL", |command| command.name);
    let TransactionCounts { commands, watched } = facts.collected();
    let Traffic { read, written, unread, unsent } = facts.traffic();
    format!(
        "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} capa={} db={} sub=0 psub=0 \
         ssub=0 multi={} watch={} qbuf={unread} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 \
         obl={unsent} oll=0 omem={unsent} tot-mem={} events=r cmd={command} user=default redir=-1 \
         resp={} lib-name={} lib-ver={} tot-net-in={read} tot-net-out={written} tot-cmds={}\n",
        facts.id,
        facts.peer,
        facts.local,
        text(&names.name),
        now.since(facts.since).as_secs(),
        now.since(facts.last_request()).as_secs(),
        flags(facts),
        if shown.takes_redirects { "r" } else { "" },
        shown.table.0,
        commands.map_or(-1, i64::from),
        watched,
        unread + unsent,
        if shown.protocol == Protocol::Resp3 { 3 } else { 2 },
        text(&names.library),
        text(&names.version),
        facts.requests(),
    )
}

type ClientCondition = Box<dyn Fn(&Facts, Instant) -> bool>;

/// A filter: clients must meet all conditions.
#[derive(Default)]
struct Filter {
    /// By their names, and true if the clients that meet the condition are excluded (`NOT-`). The
    /// last condition of a kind counts.
    conditions: BTreeMap<(Vec<u8>, bool), ClientCondition>,
    /// True to exclude the requesting client; `None` if not given.
    spares_me: Option<bool>,
}

/// Flags and capabilities known to Valkey.
const FLAGS: &[u8] = b"bcdeirtuxABEIMNOPRSTU";
const CAPABILITIES: &[u8] = b"r";

fn because<T>(text: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Refusal> {
    Err(Refusal::Because(text.into()))
}

fn parse_type(word: &[u8]) -> Result<bool, Refusal> {
    match &word.to_ascii_lowercase()[..] {
        b"normal" => Ok(true),
        b"replica" | b"slave" | b"pubsub" | b"master" | b"primary" => Ok(false),
        _ => because(format!("ERR Unknown client type '{}'", printable(word, 128))),
    }
}

/// Parses a number of seconds, at least 1.
fn parse_seconds(name: &str, word: &[u8]) -> Result<Duration, Refusal> {
    match parse_integer(word) {
        Some(seconds @ 1..) => Ok(Duration::from_secs(seconds as u64)),
        Some(_) => because(format!("ERR {name} should be greater than 0")),
        None => because(format!("ERR {name} is not an integer or out of range")),
    }
}

fn parse_table(word: &[u8]) -> Result<TableId, Refusal> {
    let number = parse_integer(word).filter(|number| i32::try_from(*number).is_ok());
    match number.map(usize::try_from) {
        Some(Ok(table)) if table < DATABASES => Ok(TableId(table as u8)),
        Some(_) => because(format!("ERR DB number should be between 0 and {}", DATABASES - 1)),
        None => because("ERR DB is not an integer or out of range"),
    }
}

/// Checks letters, all of which must be in `known`.
fn check_letters(name: &str, is_excluding: bool, word: &[u8], known: &[u8]) -> Result<(), Refusal> {
    if word.iter().all(|letter| known.contains(letter)) {
        return Ok(());
    }
    let place = match is_excluding {
        false => "provided".to_string(),
        true => format!("NOT-{}", name.to_uppercase()),
    };
    because(format!("ERR Unknown {name} found in the {place} filter: {}", printable(word, 128)))
}

/// Parses a condition with one value. All clients have the type `normal` and the user `default`.
fn parse_condition(
    name: &[u8],
    value: &[u8],
    is_excluding: bool,
) -> Result<ClientCondition, Refusal> {
    let value = value.to_vec();
    Ok(match name {
        b"ADDR" => Box::new(move |facts, _| facts.peer.as_bytes() == value),
        b"LADDR" => Box::new(move |facts, _| facts.local.as_bytes() == value),
        b"IP" => Box::new(move |facts, _| {
            let peer = facts.peer.parse::<SocketAddr>();
            peer.is_ok_and(|peer| peer.ip().to_string().as_bytes() == value)
        }),
        b"NAME" => Box::new(move |facts, _| lock(&facts.names).name == value),
        b"LIB-NAME" => Box::new(move |facts, _| lock(&facts.names).library == value),
        b"LIB-VER" => Box::new(move |facts, _| lock(&facts.names).version == value),
        b"FLAGS" => {
            check_letters("flags", is_excluding, &value, FLAGS)?;
            Box::new(move |facts, _| {
                let flags = flags(facts);
                value.iter().all(|flag| flags.as_bytes().contains(flag))
            })
        }
        b"CAPA" => {
            check_letters("capa", is_excluding, &value, CAPABILITIES)?;
            Box::new(move |facts, _| value.is_empty() || facts.shown().takes_redirects)
        }
        b"TYPE" => {
            let is_normal = parse_type(&value)?;
            Box::new(move |_, _| is_normal)
        }
        b"DB" => {
            let table = parse_table(&value)?;
            Box::new(move |facts, _| facts.shown().table == table)
        }
        b"USER" if value == b"default" => Box::new(|_, _| true),
        b"USER" => return because(format!("ERR No such user '{}'", printable(&value, 128))),
        b"MAXAGE" if !is_excluding => {
            let age = parse_seconds("maxage", &value)?;
            Box::new(move |facts, now| now.since(facts.since) >= age)
        }
        b"IDLE" if !is_excluding => {
            let idle = parse_seconds("idle", &value)?;
            Box::new(move |facts, now| now.since(facts.last_request()) >= idle)
        }
        _ => return Err(Refusal::Syntax),
    })
}

impl Filter {
    /// Parses pairs of name and value. `ID` may have several numeric values, and they accumulate.
    fn parse(mut words: &[&[u8]]) -> Result<Filter, Refusal> {
        let mut filter = Filter::default();
        let mut ids = [HashSet::new(), HashSet::new()];
        while let [name, value, rest @ ..] = words {
            let name = name.to_ascii_uppercase();
            let (name, is_excluding) = match name.strip_prefix(b"NOT-") {
                Some(name) => (name, true),
                None => (&name[..], false),
            };
            words = rest;
            let condition: ClientCondition = match (name, &value.to_ascii_uppercase()[..]) {
                (b"ID", _) => {
                    let ids = &mut ids[usize::from(is_excluding)];
                    ids.insert(parse_id(value)?);
                    while let [next, rest @ ..] = words
                        && parse_integer(next).is_some()
                    {
                        ids.insert(parse_id(next)?);
                        words = rest;
                    }
                    continue;
                }
                (b"SKIPME", word @ (b"YES" | b"NO")) if !is_excluding => {
                    filter.spares_me = Some(word == b"YES");
                    continue;
                }
                _ => parse_condition(name, value, is_excluding)?,
            };
            filter.conditions.insert((name.to_vec(), is_excluding), condition);
        }
        for (is_excluding, ids) in [false, true].into_iter().zip(ids) {
            if !ids.is_empty() {
                let condition = move |facts: &Facts, _| ids.contains(&facts.id);
                filter.conditions.insert((b"ID".to_vec(), is_excluding), Box::new(condition));
            }
        }
        match words {
            [] => Ok(filter),
            _ => Err(Refusal::Syntax),
        }
    }

    fn means(&self, facts: &Facts, now: Instant) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.all(|((_, is_excluding), holds)| holds(facts, now) != *is_excluding)
    }
}

fn parse_id(word: &[u8]) -> Result<u64, Refusal> {
    let id = parse_integer(word).ok_or(Refusal::Syntax)?;
    match u64::try_from(id) {
        Ok(id @ 1..) => Ok(id),
        Ok(0) | Err(_) => because("ERR client-id should be greater than 0"),
    }
}

/// `CLIENT LIST [filter value ...]`.
pub(super) fn list(call: &mut Call<'_>) -> Done {
    call.session.publish(call.now, 0);
    let filter = Filter::parse(&call.args[2..])?;
    let me = filter.spares_me.unwrap_or(false).then(|| call.session.id());
    let all = call.backend.operators.clients.all();
    let meant = all.iter().filter(|facts| Some(facts.id) != me && filter.means(facts, call.now));
    let text: String = meant.map(|facts| describe(facts, call.now)).collect();
    call.text(&text)
}

/// `CLIENT KILL address`, or `CLIENT KILL filter value [filter value ...]`.
pub(super) fn kill(call: &mut Call<'_>) -> Done {
    call.session.publish(call.now, 0);
    let words = &call.args[2..];
    let (filter, is_old_form) = match words {
        [address] => {
            let filter = Filter::parse(&[b"ADDR", *address])?;
            (Filter { spares_me: Some(false), ..filter }, true)
        }
        _ => (Filter::parse(words)?, false),
    };
    let clients = &call.backend.operators.clients;
    let all: Vec<Arc<Facts>> = clients.all();
    let mut killed = 0;
    for facts in all.iter().filter(|facts| filter.means(facts, call.now)) {
        if facts.id != call.session.id() {
            clients.kill(facts);
        } else if filter.spares_me.unwrap_or(true) {
            continue;
        } else {
            // Close the connection after the reply was sent.
            call.session.closing = true;
        }
        killed += 1;
    }
    if killed > 0 {
        call.backend.node().wake_all();
    }
    match (is_old_form, killed) {
        (true, 0) => Err(refused("ERR No such client")),
        (true, _) => call.ok(),
        (false, _) => call.integer(killed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::clients::Names;
    use types::ConnectionId;

    fn parse(line: &str) -> Result<Filter, Refusal> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        Filter::parse(&words)
    }

    /// Recorded from Valkey 9.1.2.
    #[test]
    fn senseless_filters_are_refused_as_valkey_does() {
        for (line, text) in [
            ("ID", "syntax error"),
            ("ID x", "syntax error"),
            ("ID 1 x", "syntax error"),
            ("ID 0", "client-id should be greater than 0"),
            ("NOT-ID 1 0", "client-id should be greater than 0"),
            ("TYPE what", "Unknown client type 'what'"),
            ("NOT-USER me", "No such user 'me'"),
            ("SKIPME perhaps", "syntax error"),
            ("MAXAGE 0", "maxage should be greater than 0"),
            ("MAXAGE -1", "maxage should be greater than 0"),
            ("MAXAGE x", "maxage is not an integer or out of range"),
            ("NOT-MAXAGE 5", "syntax error"),
            ("IDLE 0", "idle should be greater than 0"),
            ("NOT-IDLE 5", "syntax error"),
            ("DB 16", "DB number should be between 0 and 15"),
            ("DB -1", "DB number should be between 0 and 15"),
            ("NOT-DB x", "DB is not an integer or out of range"),
            ("FLAGS NQ", "Unknown flags found in the provided filter: NQ"),
            ("NOT-FLAGS Q", "Unknown flags found in the NOT-FLAGS filter: Q"),
            ("CAPA q", "Unknown capa found in the provided filter: q"),
            ("NAME", "syntax error"),
            ("FOO x", "syntax error"),
        ] {
            let refusal = parse(line).err().expect(line);
            assert_eq!(refusal.text("client"), format!("ERR {text}"), "{line}");
        }
    }

    #[test]
    fn filters_mean_the_clients_that_have_or_lack_each_property() {
        let addresses = ("[::1]:5".to_string(), "[::1]:6379".to_string());
        let facts = Facts::new(7, ConnectionId::from_number(1), addresses, Instant(0));
        *lock(&facts.names) =
            Names { name: b"me".into(), library: b"lib".into(), version: b"1".into() };
        let now = Instant(0) + Duration::from_secs(10);
        for (line, is_meant) in [
            ("ID 6 7", true),
            ("ID 6 ID 7 NAME me", true),
            ("NOT-ID 7", false),
            ("NOT-ID 5 6 DB 0", true),
            ("ADDR [::1]:5 LADDR [::1]:6379", true),
            ("NOT-ADDR [::1]:5", false),
            ("IP ::1", true),
            ("NOT-IP ::1", false),
            ("NAME other NAME me", true),
            ("NOT-NAME me", false),
            ("LIB-NAME lib LIB-VER 1", true),
            ("NOT-LIB-VER 1", false),
            ("FLAGS N", true),
            ("FLAGS x", false),
            ("NOT-FLAGS x", true),
            ("CAPA r", false),
            ("NOT-CAPA r", true),
            ("TYPE normal", true),
            ("NOT-TYPE normal", false),
            ("TYPE pubsub", false),
            ("NOT-DB 1", true),
            ("USER default", true),
            ("NOT-USER default", false),
            ("MAXAGE 10 IDLE 10", true),
            ("MAXAGE 11", false),
            ("IDLE 11", false),
        ] {
            let filter = parse(line).unwrap_or_else(|wrong| panic!("{line}: {wrong:?}"));
            assert_eq!(filter.means(&facts, now), is_meant, "{line}");
        }
        assert_eq!(parse("SKIPME no").map(|filter| filter.spares_me), Ok(Some(false)));
    }
}
