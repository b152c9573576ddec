//! `CLIENT LIST`, `CLIENT INFO` and `CLIENT KILL`: clients as lines of text, and the filters that
//! select clients.

use super::command::Command;
use super::{Call, Done, Refusal, parse_integer, printable, refused, uppercase_is};
use crate::operators::clients::{Facts, Traffic};
use crate::operators::lock;
use resp::Protocol;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use types::limits::TABLES_MAX;
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
        (shown.collected.commands.is_some(), 'x'),
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
    let command = Command::numbered(usize::from(shown.command)).map(|command| command.name);
    let command = command.filter(|_| shown.has_called).unwrap_or("NULL");
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
        shown.collected.commands.map_or(-1, i64::from),
        shown.collected.watched,
        unread + unsent,
        if shown.protocol == Protocol::Resp3 { 3 } else { 2 },
        text(&names.library),
        text(&names.version),
        facts.requests(),
    )
}

/// One condition on a client.
#[derive(Debug, PartialEq, Eq)]
enum ClientFilter {
    Ids(Vec<u64>),
    Address(Vec<u8>),
    Local(Vec<u8>),
    Ip(Vec<u8>),
    Name(Vec<u8>),
    Library(Vec<u8>),
    Version(Vec<u8>),
    /// The client has all of these flags.
    Flags(Vec<u8>),
    /// The client has all of these capabilities.
    Capabilities(Vec<u8>),
    /// The client's type. All clients are of type `normal`, so the condition is constant.
    Type(bool),
    Table(TableId),
    /// The client's user. `default` is the only one, so the condition is always true.
    DefaultUser,
    AgeMin(Duration),
    IdleMin(Duration),
}

/// A filter: clients must meet all conditions.
#[derive(Debug, Default)]
struct Filter {
    conditions: Vec<(Polarity, ClientFilter)>,
    /// True to exclude the requesting client; `None` if not given.
    spares_me: Option<bool>,
}

/// Polarity of a condition: required or excluded (`NOT-`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polarity {
    Is,
    IsNot,
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
        Some(Ok(table)) if table < TABLES_MAX => Ok(TableId(table as u8)),
        Some(_) => because(format!("ERR DB number should be between 0 and {}", TABLES_MAX - 1)),
        None => because("ERR DB is not an integer or out of range"),
    }
}

/// Parses letters, all of which must be in `known`.
fn parse_letters(
    name: &str,
    polarity: Polarity,
    word: &[u8],
    known: &[u8],
) -> Result<Vec<u8>, Refusal> {
    if word.iter().all(|letter| known.contains(letter)) {
        return Ok(word.to_vec());
    }
    let place = match polarity {
        Polarity::Is => "provided".to_string(),
        Polarity::IsNot => format!("NOT-{}", name.to_uppercase()),
    };
    because(format!("ERR Unknown {name} found in the {place} filter: {}", printable(word, 128)))
}

impl ClientFilter {
    /// Parses a condition with one value; `None` if there is no condition of this name.
    fn parse(
        name: &[u8],
        value: &[u8],
        polarity: Polarity,
    ) -> Result<Option<ClientFilter>, Refusal> {
        let bytes = value.to_vec();
        Ok(Some(match name {
            b"ADDR" => ClientFilter::Address(bytes),
            b"LADDR" => ClientFilter::Local(bytes),
            b"IP" => ClientFilter::Ip(bytes),
            b"NAME" => ClientFilter::Name(bytes),
            b"LIB-NAME" => ClientFilter::Library(bytes),
            b"LIB-VER" => ClientFilter::Version(bytes),
            b"FLAGS" => ClientFilter::Flags(parse_letters("flags", polarity, value, FLAGS)?),
            b"CAPA" => {
                ClientFilter::Capabilities(parse_letters("capa", polarity, value, CAPABILITIES)?)
            }
            b"TYPE" => ClientFilter::Type(parse_type(value)?),
            b"DB" => ClientFilter::Table(parse_table(value)?),
            b"USER" if value == b"default" => ClientFilter::DefaultUser,
            b"USER" => return because(format!("ERR No such user '{}'", printable(value, 128))),
            b"MAXAGE" if polarity == Polarity::Is => {
                ClientFilter::AgeMin(parse_seconds("maxage", value)?)
            }
            b"IDLE" if polarity == Polarity::Is => {
                ClientFilter::IdleMin(parse_seconds("idle", value)?)
            }
            _ => return Ok(None),
        }))
    }

    fn holds(&self, facts: &Facts, now: Instant) -> bool {
        let named = |wanted: &Vec<u8>, name: fn(&crate::operators::clients::Names) -> &Vec<u8>| {
            name(&lock(&facts.names)) == wanted
        };
        match self {
            ClientFilter::Ids(ids) => ids.contains(&facts.id),
            ClientFilter::Address(address) => facts.peer.as_bytes() == address,
            ClientFilter::Local(address) => facts.local.as_bytes() == address,
            ClientFilter::Ip(ip) => {
                let peer = facts.peer.parse::<SocketAddr>();
                peer.is_ok_and(|peer| peer.ip().to_string().as_bytes() == ip)
            }
            ClientFilter::Name(name) => named(name, |names| &names.name),
            ClientFilter::Library(name) => named(name, |names| &names.library),
            ClientFilter::Version(version) => named(version, |names| &names.version),
            ClientFilter::Flags(wanted) => {
                let flags = flags(facts);
                wanted.iter().all(|flag| flags.as_bytes().contains(flag))
            }
            ClientFilter::Capabilities(wanted) => {
                wanted.is_empty() || facts.shown().takes_redirects
            }
            ClientFilter::Type(is_normal) => *is_normal,
            ClientFilter::Table(table) => facts.shown().table == *table,
            ClientFilter::DefaultUser => true,
            ClientFilter::AgeMin(age) => now.since(facts.since) >= *age,
            ClientFilter::IdleMin(idle) => now.since(facts.last_request()) >= *idle,
        }
    }
}

impl Filter {
    /// Parses pairs of name and value. `ID` may have several numeric values.
    fn parse(mut words: &[&[u8]]) -> Result<Filter, Refusal> {
        let mut filter = Filter::default();
        while let [name, value, rest @ ..] = words {
            let name = name.to_ascii_uppercase();
            let (polarity, name) = match name.strip_prefix(b"NOT-") {
                Some(name) => (Polarity::IsNot, name),
                None => (Polarity::Is, &name[..]),
            };
            words = rest;
            if name == b"ID" {
                let mut ids = vec![parse_id(value)?];
                while let [next, rest @ ..] = words
                    && parse_integer(next).is_some()
                {
                    ids.push(parse_id(next)?);
                    words = rest;
                }
                filter.add(polarity, ClientFilter::Ids(ids));
            } else if name == b"SKIPME" && polarity == Polarity::Is {
                filter.spares_me = Some(match value {
                    word if uppercase_is(word, b"YES") => true,
                    word if uppercase_is(word, b"NO") => false,
                    _ => return Err(Refusal::Syntax),
                });
            } else {
                let condition = ClientFilter::parse(name, value, polarity)?;
                filter.add(polarity, condition.ok_or(Refusal::Syntax)?);
            }
        }
        match words {
            [] => Ok(filter),
            _ => Err(Refusal::Syntax),
        }
    }

    /// Adds a condition. The last one of a kind counts, but client numbers accumulate.
    fn add(&mut self, polarity: Polarity, mut condition: ClientFilter) {
        let kind = std::mem::discriminant(&condition);
        let is_same = |(other, before): &(Polarity, ClientFilter)| {
            *other == polarity && std::mem::discriminant(before) == kind
        };
        if let Some(at) = self.conditions.iter().position(is_same)
            && let (_, ClientFilter::Ids(before)) = self.conditions.swap_remove(at)
            && let ClientFilter::Ids(ids) = &mut condition
        {
            ids.extend(before);
        }
        self.conditions.push((polarity, condition));
    }

    fn means(&self, facts: &Facts, now: Instant) -> bool {
        self.conditions
            .iter()
            .all(|(polarity, condition)| condition.holds(facts, now) == (*polarity == Polarity::Is))
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
            let address = (Polarity::Is, ClientFilter::Address(address.to_vec()));
            (Filter { conditions: vec![address], spares_me: Some(false) }, true)
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
            let refusal = parse(line).expect_err(line);
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
