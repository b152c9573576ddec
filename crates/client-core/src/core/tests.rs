//! Tests of the core without sockets. The test plays all servers: it answers the requests that the
//! core writes, and moves the clock.

mod two_sided;

use super::*;
use crate::request::RequestRoute;
use std::collections::{BTreeMap, VecDeque};
use types::slot_of;

const START: Instant = Instant(1_000_000_000);
const DEADLINE: Duration = Duration::from_secs(10);

/// A client whose connections are in the test's hand.
struct Table {
    core: ClientCore<u32>,
    now: Instant,
    /// Connections that the core has opened and not closed, in order.
    connections: Vec<(ChannelId, String)>,
    outcomes: BTreeMap<u32, RequestOutcome>,
    ids: BTreeMap<u32, RequestId>,
}

impl Table {
    fn new(seeds: &[&str]) -> Table {
        Table::with(seeds, ClientOptions::default())
    }

    fn with(seeds: &[&str], options: ClientOptions) -> Table {
        let seeds: Vec<String> = seeds.iter().map(|seed| seed.to_string()).collect();
        let core = ClientCore::new(&seeds, options);
        let (connections, outcomes, ids) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Table { core, now: START, connections, outcomes, ids }
    }

    /// Returns a client that is connected to `a:1` and knows `map`.
    fn connected(map: &str) -> Table {
        Table::connected_with(map, ClientOptions::default())
    }

    fn connected_with(map: &str, options: ClientOptions) -> Table {
        let mut table = Table::with(&["a:1"], options);
        table.submit(0, RequestRoute::Any, RepeatRule::Harmless, &["PING"]);
        table.log_in("a:1");
        assert_eq!(table.written("a:1"), ["BALLAST.MAP", "PING"]);
        table.reply("a:1", map);
        table.reply("a:1", "+PONG\r\n");
        assert!(table.outcome(0).is_ok());
        table
    }

    fn carry_out(&mut self, effects: Vec<ClientEffect<u32>>) {
        for effect in effects {
            match effect {
                ClientEffect::Connect { channel, address } => {
                    self.connections.push((channel, address.to_string()));
                }
                ClientEffect::Close { channel } => {
                    self.connections.retain(|(open, _)| *open != channel);
                }
                ClientEffect::Write { .. } => {}
                ClientEffect::Finish { token, outcome } => {
                    let before = self.outcomes.insert(token, outcome);
                    assert!(before.is_none(), "request {token} has two outcomes");
                }
            }
        }
    }

    fn event(&mut self, event: ClientEvent<'_, '_>) {
        let mut effects = Vec::new();
        self.core.handle(self.now, event, &mut effects);
        self.carry_out(effects);
    }

    fn submit(&mut self, token: u32, route: RequestRoute, repeat: RepeatRule, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let request = PreparedRequest::new(&words, route, repeat);
        let mut effects = Vec::new();
        let deadline = self.now + DEADLINE;
        let id = self.core.submit(self.now, request, deadline, token, &mut effects);
        self.ids.insert(token, id);
        self.carry_out(effects);
    }

    fn get(&mut self, token: u32, key: &str) {
        let route = RequestRoute::Slot(slot_of(key.as_bytes()));
        self.submit(token, route, RepeatRule::Harmless, &["GET", key]);
    }

    fn increment(&mut self, token: u32, key: &str) {
        let route = RequestRoute::Slot(slot_of(key.as_bytes()));
        self.submit(token, route, RepeatRule::Never, &["INCR", key]);
    }

    fn set_if(&mut self, token: u32, key: &str) {
        let route = RequestRoute::Slot(slot_of(key.as_bytes()));
        let words = ["BALLAST.SET", key, "v", "IFVERSION", "5"];
        self.submit(token, route, RepeatRule::Conditional, &words);
    }

    /// Returns the newest connection to a server.
    fn channel(&self, address: &str) -> ChannelId {
        let found = self.connections.iter().rev().find(|(_, to)| to == address);
        found.unwrap_or_else(|| panic!("no connection to {address}: {:?}", self.connections)).0
    }

    fn is_connecting(&self, address: &str) -> bool {
        self.connections.iter().any(|(_, to)| to == address)
    }

    fn log_in(&mut self, address: &str) {
        let channel = self.channel(address);
        self.event(ClientEvent::Connected(channel));
        assert_eq!(self.written(address), ["HELLO 3"]);
        self.reply(address, "%0\r\n");
    }

    /// Takes the output for a server, as requests in words.
    fn written(&mut self, address: &str) -> Vec<String> {
        let channel = self.channel(address);
        let mut output = Vec::new();
        self.core.take_output(self.now, channel, &mut output);
        let mut parser = resp::ReplyParser::new(resp::ReplyLimits::default());
        let mut input = &output[..];
        let mut requests = Vec::new();
        // A request has the form of a reply that is an array of strings.
        while let Some(request) = parser.next(&mut input).unwrap() {
            let Value::Array(words) = Value::from(request.reply) else { panic!("no request") };
            let words = words.into_iter().map(|word| match word {
                Value::Bulk(word) => String::from_utf8(word).unwrap(),
                other => panic!("{other:?} is no argument"),
            });
            requests.push(words.collect::<Vec<_>>().join(" "));
        }
        requests
    }

    /// Sends bytes from a server, one at a time.
    fn reply(&mut self, address: &str, bytes: &str) {
        let channel = self.channel(address);
        let mut received: Vec<u8> = Vec::new();
        for byte in bytes.bytes() {
            received.push(byte);
            let mut input = &received[..];
            self.event(ClientEvent::Received(channel, &mut input));
            let taken = received.len() - input.len();
            received.drain(..taken);
        }
    }

    fn lose(&mut self, address: &str) {
        let channel = self.channel(address);
        self.event(ClientEvent::Closed(channel));
    }

    /// Moves the clock by this many milliseconds, with all ticks that are due.
    fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while let Some(next) = self.core.next_deadline().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.event(ClientEvent::Tick);
        }
        self.now = end;
    }

    fn outcome(&self, token: u32) -> RequestOutcome {
        self.outcomes.get(&token).cloned().unwrap_or_else(|| panic!("{token} has no outcome"))
    }

    fn is_open(&self, token: u32) -> bool {
        !self.outcomes.contains_key(&token)
    }
}

/// Returns options of a client that tolerates silence for longer than its deadlines.
fn patient() -> ClientOptions {
    ClientOptions { silence_max: Duration::from_secs(60), ..ClientOptions::default() }
}

/// Returns a map of this version: ranges of slots with the addresses of their owners.
fn map(version: u64, ranges: &[(u16, u16, &str)]) -> String {
    let mut servers: Vec<&str> = ranges.iter().map(|(.., owner)| *owner).collect();
    servers.sort_unstable();
    servers.dedup();
    let mut out = Vec::new();
    let mut reply = resp::ReplyWriter::new(resp::Protocol::Resp3, &mut out);
    reply.map(4);
    reply.bulk(b"cluster");
    reply.bulk(b"c1");
    reply.bulk(b"version");
    reply.integer(version as i64);
    reply.bulk(b"servers");
    reply.array(servers.len());
    for server in &servers {
        let (host, port) = server.rsplit_once(':').unwrap();
        reply.array(3);
        reply.bulk(b"name");
        reply.bulk(host.as_bytes());
        reply.integer(port.parse().unwrap());
    }
    reply.bulk(b"ranges");
    reply.array(ranges.len());
    for (first, last, owner) in ranges {
        reply.array(3);
        reply.integer(i64::from(*first));
        reply.integer(i64::from(*last));
        reply.integer(servers.iter().position(|it| it == owner).unwrap() as i64);
    }
    String::from_utf8(out).unwrap()
}

fn all_at(version: u64, owner: &str) -> String {
    map(version, &[(0, 16383, owner)])
}

fn moved(key: &str, to: &str) -> String {
    format!("-MOVED {} {to}\r\n", slot_of(key.as_bytes()).0)
}

fn bulk(text: &str) -> RequestOutcome {
    Ok(Value::Bulk(text.as_bytes().to_vec()))
}

#[test]
fn requests_are_pipelined_and_answered_in_order() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.get(1, "x");
    table.get(2, "y");
    assert_eq!(table.written("a:1"), ["GET x", "GET y"]);
    table.get(3, "z");
    table.reply("a:1", "$1\r\n1\r\n>1\r\n+push\r\n-ERR no\r\n");
    assert_eq!(table.written("a:1"), ["GET z"]);
    table.reply("a:1", "_\r\n");
    assert_eq!(table.outcome(1), bulk("1"));
    assert_eq!(table.outcome(2), Err(ClientError::Refused("ERR no".into())));
    assert_eq!(table.outcome(3), Ok(Value::Null));
    assert_eq!(table.core.open_requests(), 0);
}

#[test]
fn login_selects_user_and_database() {
    let options = ClientOptions {
        username: Some("u".into()),
        password: Some("p".into()),
        database: 3,
        ..ClientOptions::default()
    };
    let mut table = Table::with(&["a:1"], options);
    table.get(1, "x");
    let channel = table.channel("a:1");
    table.event(ClientEvent::Connected(channel));
    assert_eq!(table.written("a:1"), ["HELLO 3 AUTH u p", "SELECT 3"]);
    table.reply("a:1", "%0\r\n");
    assert_eq!(table.written("a:1"), [] as [&str; 0], "before the login is complete");
    table.reply("a:1", "+OK\r\n");
    assert_eq!(table.written("a:1"), ["BALLAST.MAP", "GET x"]);
}

#[test]
fn a_server_that_refuses_the_login_ends_the_requests_at_once() {
    let mut table = Table::new(&["a:1"]);
    table.get(1, "x");
    let channel = table.channel("a:1");
    table.event(ClientEvent::Connected(channel));
    table.written("a:1");
    table.reply("a:1", "-WRONGPASS invalid\r\n");
    assert_eq!(table.outcome(1), Err(ClientError::Refused("WRONGPASS invalid".into())));
    assert!(table.connections.is_empty());
}

#[test]
fn a_server_with_too_many_clients_is_tried_again() {
    let mut table = Table::new(&["a:1"]);
    table.get(1, "x");
    let channel = table.channel("a:1");
    table.event(ClientEvent::Connected(channel));
    table.reply("a:1", "-ERR max number of clients reached\r\n");
    assert!(table.is_open(1) && table.connections.is_empty());
    table.pass(10);
    table.log_in("a:1");
    assert_eq!(table.written("a:1"), ["BALLAST.MAP", "GET x"]);
}

#[test]
fn a_redirection_within_a_pipeline_moves_only_its_request() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.get(1, "x");
    table.increment(2, "y");
    table.get(3, "z");
    table.written("a:1");
    table.reply("a:1", &format!("$1\r\n1\r\n{}$1\r\n3\r\n", moved("y", "b:2")));
    assert_eq!((table.outcome(1), table.outcome(3)), (bulk("1"), bulk("3")));
    assert!(table.is_open(2));
    table.log_in("b:2");
    assert_eq!(table.written("b:2"), ["INCR y"]);
    table.reply("b:2", ":1\r\n");
    assert_eq!(table.outcome(2), Ok(Value::Integer(1)));
    // The slot is requested there from now on, and the new map was requested.
    table.get(4, "y");
    assert_eq!(table.written("b:2"), ["GET y"]);
    table.pass(50);
    let maps = [table.written("a:1"), table.written("b:2")].concat();
    assert_eq!(maps, ["BALLAST.MAP"]);
}

#[test]
fn servers_that_redirect_to_each_other_are_asked_ever_more_rarely() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.get(1, "x");
    let (mut attempts, mut is_met) = (0, false);
    for _ in 0..5_000 {
        for (at, to) in [("a:1", "b:2"), ("b:2", "a:1")] {
            if at == "b:2" && !is_met && table.is_connecting(at) {
                is_met = true;
                table.log_in(at);
            }
            let requests = if at == "a:1" || is_met { table.written(at) } else { Vec::new() };
            for request in requests {
                attempts += usize::from(request == "GET x");
                let reply = if request == "GET x" { moved("x", to) } else { all_at(1, "a:1") };
                table.reply(at, &reply);
            }
        }
        table.pass(1);
    }
    assert!((10..40).contains(&attempts), "{attempts} attempts within 5 s");
    table.pass(10_000);
    assert_eq!(table.outcome(1), Err(ClientError::NotExecuted(FailureCause::Deadline)));
}

#[test]
fn temporary_errors_are_waited_out() {
    for error in ["TRYAGAIN later", "CLUSTERDOWN no", "LOADING wait"] {
        let mut table = Table::connected(&all_at(1, "a:1"));
        table.increment(1, "x");
        assert_eq!(table.written("a:1"), ["INCR x"]);
        table.reply("a:1", &format!("-{error}\r\n"));
        assert!(table.is_open(1), "{error}");
        table.pass(9);
        assert!(!table.written("a:1").contains(&"INCR x".to_string()), "{error}: too early");
        table.pass(1);
        assert!(table.written("a:1").contains(&"INCR x".to_string()), "{error}");
    }
}

#[test]
fn another_server_is_asked_for_the_map_when_one_refuses_what_it_owns() {
    let old = map(1, &[(0, 8191, "b:2"), (8192, 16383, "a:1")]);
    let mut table = Table::connected(&old);
    table.increment(1, "x");
    assert_eq!(table.written("a:1"), ["INCR x"]);
    table.pass(50);
    table.reply("a:1", "-CLUSTERDOWN no lease\r\n");
    assert_eq!(table.written("a:1"), ["BALLAST.MAP"], "no other one can be asked yet");
    table.log_in("b:2");
    table.reply("a:1", &old);
    table.pass(50);
    assert_eq!(table.written("a:1"), ["INCR x"]);
    table.reply("a:1", "-CLUSTERDOWN no lease\r\n");
    assert_eq!(table.written("b:2"), ["BALLAST.MAP"]);
    table.reply("b:2", &all_at(2, "b:2"));
    table.pass(20);
    assert_eq!(table.written("b:2"), ["INCR x"]);
    table.reply("b:2", ":1\r\n");
    assert_eq!(table.outcome(1), Ok(Value::Integer(1)));
}

#[test]
fn the_map_of_each_server_is_requested_while_one_refuses_what_it_owns() {
    let servers = [(0, 99, "b:2"), (100, 199, "c:3"), (200, 16383, "a:1")];
    let mut table = Table::connected(&map(1, &servers));
    table.increment(1, "x");
    for _ in 0..20 {
        for address in ["a:1", "b:2"] {
            if !table.is_connecting(address) {
                continue;
            }
            for request in table.written(address) {
                let reply = match request.as_str() {
                    "HELLO 3" => "%0\r\n".to_string(),
                    "BALLAST.MAP" => map(1, &servers),
                    _ => "-CLUSTERDOWN no lease\r\n".to_string(),
                };
                table.reply(address, &reply);
            }
        }
        table.pass(50);
        if let Some(channel) = table.connections.iter().find(|(_, to)| to == "b:2") {
            table.event(ClientEvent::Connected(channel.0));
        }
    }
    assert!(table.is_connecting("c:3"), "the ready ones have old maps: {:?}", table.connections);
}

#[test]
fn after_a_lost_connection_only_harmless_requests_are_repeated() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.get(1, "x");
    table.increment(2, "x");
    table.set_if(3, "x");
    table.written("a:1");
    table.increment(4, "x");
    table.lose("a:1");
    let lost = Err(ClientError::MaybeExecuted(FailureCause::ConnectionLost));
    assert_eq!(table.outcome(2), lost);
    table.pass(10);
    table.log_in("a:1");
    let mut again = table.written("a:1");
    again.sort_unstable();
    assert_eq!(again, ["BALLAST.SET x v IFVERSION 5", "GET x", "INCR x"]);
    assert!([1, 3, 4].iter().all(|token| table.is_open(*token)));
}

/// Returns a client that has repeated a write with a condition.
fn with_repeated_condition() -> Table {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.set_if(1, "x");
    table.written("a:1");
    table.lose("a:1");
    table.pass(10);
    table.log_in("a:1");
    assert_eq!(table.written("a:1"), ["BALLAST.SET x v IFVERSION 5"]);
    table
}

#[test]
fn a_repeated_condition_that_fails_may_have_been_met_by_the_first_attempt() {
    let mut table = with_repeated_condition();
    table.reply("a:1", "*2\r\n:0\r\n:6\r\n");
    let unclear = Err(ClientError::MaybeExecuted(FailureCause::VersionChanged));
    assert_eq!(table.outcome(1), unclear);

    let mut table = with_repeated_condition();
    table.reply("a:1", "*2\r\n:1\r\n:6\r\n");
    assert!(table.outcome(1).is_ok(), "the first attempt was not executed");

    let mut table = with_repeated_condition();
    table.reply("a:1", "-OOM no memory\r\n");
    let unclear = Err(ClientError::MaybeExecuted(FailureCause::ConnectionLost));
    assert_eq!(table.outcome(1), unclear, "the refusal is about the second attempt only");

    let mut table = with_repeated_condition();
    table.pass(10_000);
    let unclear = Err(ClientError::MaybeExecuted(FailureCause::Deadline));
    assert_eq!(table.outcome(1), unclear);
}

#[test]
fn a_failed_condition_is_a_plain_reply_the_first_time() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.set_if(1, "x");
    table.written("a:1");
    table.reply("a:1", "*2\r\n:0\r\n:6\r\n");
    assert!(table.outcome(1).is_ok());
}

#[test]
fn deadlines_tell_apart_what_may_have_been_executed() {
    let mut table = Table::connected_with(&all_at(1, "a:1"), patient());
    table.increment(1, "x");
    table.get(2, "x");
    table.written("a:1");
    table.increment(3, "x");
    table.pass(9_999);
    assert!([1, 2, 3].iter().all(|token| table.is_open(*token)));
    table.pass(1);
    assert_eq!(table.outcome(1), Err(ClientError::MaybeExecuted(FailureCause::Deadline)));
    assert_eq!(table.outcome(2), Err(ClientError::NotExecuted(FailureCause::Deadline)));
    assert_eq!(table.outcome(3), Err(ClientError::NotExecuted(FailureCause::Deadline)));
}

#[test]
fn late_replies_do_not_answer_later_requests() {
    let mut table = Table::connected_with(&all_at(1, "a:1"), patient());
    table.get(1, "x");
    table.get(2, "x");
    table.written("a:1");
    let id = table.ids[&2];
    table.event(ClientEvent::Cancel(id));
    table.pass(10_000);
    assert!(!table.is_open(1) && table.is_open(2), "a cancelled request has no outcome");
    table.get(3, "x");
    assert_eq!(table.written("a:1"), ["GET x"]);
    table.reply("a:1", "$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    assert_eq!(table.outcome(3), bulk("3"));
}

#[test]
fn a_silent_connection_is_closed_and_its_reads_go_elsewhere() {
    let options = ClientOptions { silence_max: Duration::from_secs(3), ..Default::default() };
    let mut table = Table::with(&["a:1"], options);
    table.get(1, "x");
    table.log_in("a:1");
    table.written("a:1");
    table.reply("a:1", &map(1, &[(0, 8191, "a:1"), (8192, 16383, "b:2")]));
    // After a second, another server is asked for a map.
    assert!(!table.is_connecting("b:2"));
    table.pass(1_000);
    table.log_in("b:2");
    assert_eq!(table.written("b:2"), ["BALLAST.MAP"]);
    table.reply("b:2", &map(1, &[(0, 8191, "a:1"), (8192, 16383, "b:2")]));
    table.pass(1_999);
    assert!(table.is_open(1) && table.is_connecting("a:1"));
    table.reply("b:2", "");
    table.pass(1);
    table.written("b:2");
    // The dead server is not in the map any more.
    table.reply("b:2", &all_at(2, "b:2"));
    table.pass(500);
    assert!(table.written("b:2").contains(&"GET x".to_string()));
}

#[test]
fn a_read_on_a_silent_connection_is_repeated_before_its_deadline() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.get(1, "x");
    assert_eq!(table.written("a:1"), ["GET x"]);
    // The network has dropped the connection without a word, and the server still owns the slot.
    table.pass(9_000);
    table.log_in("a:1");
    assert!(table.written("a:1").contains(&"GET x".to_string()));
    table.reply("a:1", &format!("{}$1\r\n1\r\n", all_at(1, "a:1")));
    assert_eq!(table.outcome(1), bulk("1"));
}

#[test]
fn a_server_that_left_the_map_is_given_up_after_a_second() {
    let mut table = Table::connected(&map(1, &[(0, 8191, "a:1"), (8192, 16383, "b:2")]));
    // The slot of this key is 6257.
    table.get(1, "key:1");
    let owner = if slot_of(b"key:1").0 < 8192 { "a:1" } else { "b:2" };
    let other = if owner == "a:1" { "b:2" } else { "a:1" };
    if owner == "b:2" {
        table.log_in("b:2");
    }
    assert_eq!(table.written(owner), ["GET key:1"]);
    table.pass(1_000);
    if other == "b:2" {
        table.log_in("b:2");
    }
    assert_eq!(table.written(other), ["BALLAST.MAP"]);
    table.reply(other, &all_at(2, other));
    table.pass(1_100);
    assert!(table.written(other).contains(&"GET key:1".to_string()));
}

#[test]
fn a_new_map_moves_requests_that_wait() {
    let mut table = Table::connected(&map(1, &[(0, 8191, "a:1"), (8192, 16383, "b:2")]));
    let key = (0..).map(|n| format!("k{n}")).find(|key| slot_of(key.as_bytes()).0 > 8191).unwrap();
    table.increment(1, &key);
    // The server cannot be reached, so another one is asked for a map.
    table.lose("b:2");
    table.pass(50);
    assert_eq!(table.written("a:1"), ["BALLAST.MAP"]);
    table.reply("a:1", &all_at(2, "a:1"));
    assert_eq!(table.written("a:1"), [format!("INCR {key}")]);
    table.reply("a:1", ":1\r\n");
    assert_eq!(table.outcome(1), Ok(Value::Integer(1)));
}

#[test]
fn an_older_map_changes_nothing_and_that_of_another_cluster_counts() {
    let mut table = Table::connected(&all_at(7, "a:1"));
    let older = all_at(6, "b:2");
    for (reply, owner) in [(&older, "a:1"), (&older.replace("c1", "c2"), "b:2")] {
        table.pass(100);
        let mut effects = Vec::new();
        table.core.want_map(table.now, &mut effects);
        table.carry_out(effects);
        assert_eq!(table.written("a:1"), ["BALLAST.MAP"]);
        table.reply("a:1", reply);
        let addresses = table.core.servers();
        assert_eq!(addresses.iter().map(|(_, it)| &**it).collect::<Vec<_>>(), [owner]);
    }
}

#[test]
fn a_server_without_maps_is_followed_by_redirections() {
    let mut table = Table::connected("-ERR unknown command\r\n");
    table.get(1, "x");
    assert_eq!(table.written("a:1"), ["GET x"]);
    table.reply("a:1", &moved("x", "b:2"));
    table.log_in("b:2");
    assert_eq!(table.written("b:2"), ["GET x"]);
}

#[test]
fn a_standalone_server_is_the_one_that_was_connected_to() {
    let standalone = all_at(1, "a:1").replace("$1\r\na\r\n", "$0\r\n\r\n");
    let table = Table::connected(&standalone);
    let servers = table.core.servers();
    assert_eq!(servers.iter().map(|(_, it)| &**it).collect::<Vec<_>>(), ["a:1"]);
}

#[test]
fn a_client_that_reaches_nobody_gives_up_soon() {
    let mut table = Table::new(&["a:1", "b:2"]);
    table.get(1, "x");
    for _ in 0..20 {
        if let Some((_, address)) = table.connections.last().cloned() {
            table.lose(&address);
        }
        table.pass(20);
    }
    assert_eq!(table.outcome(1), Err(ClientError::NotExecuted(FailureCause::Unreachable)));
}

#[test]
fn attempts_to_connect_have_a_time_limit() {
    let mut table = Table::new(&["a:1", "b:2"]);
    table.get(1, "x");
    let first = table.connections[0].1.clone();
    table.pass(2_000);
    let second = table.connections.last().map(|(_, address)| address.clone());
    assert!(second.is_some_and(|second| second != first), "the other seed is tried");
    let address = table.connections[0].1.clone();
    table.log_in(&address);
    assert_eq!(table.written(&address), ["BALLAST.MAP", "GET x"]);
}

#[test]
fn events_of_an_earlier_connection_are_ignored() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    let before = table.channel("a:1");
    table.lose("a:1");
    table.get(1, "x");
    table.pass(10);
    table.log_in("a:1");
    table.event(ClientEvent::Closed(before));
    table.event(ClientEvent::Connected(before));
    table.event(ClientEvent::Received(before, &mut &b"+OK\r\n"[..]));
    assert_eq!(table.written("a:1"), ["GET x"]);
}

#[test]
fn a_pipeline_is_bounded_also_by_requests_that_have_ended() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    for token in 1..=5_000 {
        table.get(token, "x");
    }
    let mut sent = 0;
    loop {
        let count = table.written("a:1").len();
        sent += count;
        if count == 0 {
            break;
        }
    }
    assert_eq!(sent, channel::PIPELINE_MAX);
    table.reply("a:1", "_\r\n");
    assert_eq!(table.written("a:1").len(), 1);
}

#[test]
fn numbers_of_ended_requests_do_not_pile_up() {
    let mut table = Table::connected(&all_at(1, "a:1"));
    table.lose("a:1");
    for token in 1..=10_000 {
        table.get(token, "x");
        let id = table.ids[&token];
        table.event(ClientEvent::Cancel(id));
    }
    let waiting = table.core.channels.iter().map(|channel| channel.waiting.len()).sum::<usize>();
    assert!(waiting < 100, "{waiting} numbers");
}

#[test]
fn a_request_for_one_server_fails_when_the_server_has_left() {
    let mut table = Table::connected(&map(1, &[(0, 8191, "a:1"), (8192, 16383, "b:2")]));
    let servers = table.core.servers();
    let (gone, _) = *servers.iter().find(|(_, address)| &**address == "b:2").as_ref().unwrap();
    let gone = *gone;
    table.submit(1, RequestRoute::At(gone), RepeatRule::Never, &["DBSIZE"]);
    table.lose("b:2");
    table.pass(50);
    table.written("a:1");
    table.reply("a:1", &all_at(2, "a:1"));
    assert_eq!(table.outcome(1), Err(ClientError::NotExecuted(FailureCause::ServerGone)));
}

#[test]
fn malformed_replies_end_the_connection() {
    for bytes in ["?\r\n", ":x\r\n", "$-2\r\n", "+OK\r\n+OK\r\n+OK\r\n"] {
        let mut table = Table::connected(&all_at(1, "a:1"));
        table.increment(1, "x");
        table.written("a:1");
        let channel = table.channel("a:1");
        table.event(ClientEvent::Received(channel, &mut bytes.as_bytes()));
        assert!(!table.connections.iter().any(|(open, _)| *open == channel), "{bytes:?}");
        assert!(!table.is_open(1));
    }
}

/// Sends random bytes and random replies from servers that know what a client parses. Nothing may
/// panic, every request must end once, and memory must stay bounded.
#[test]
fn no_bytes_of_a_server_break_the_client() {
    const PIECES: [&str; 16] = [
        "+OK\r\n",
        ":1\r\n",
        "_\r\n",
        "%0\r\n",
        "$3\r\nabc\r\n",
        "*2\r\n:0\r\n:7\r\n",
        "-MOVED 5 b:2\r\n",
        "-MOVED 16383 :0\r\n",
        "-MOVED 99999 x\r\n",
        "-TRYAGAIN x\r\n",
        "-CLUSTERDOWN\r\n",
        "-LOADING\r\n",
        "-ERR x\r\n",
        ">1\r\n:1\r\n",
        "*3\r\n",
        "$99999999999\r\n",
    ];
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut table = Table::new(&["a:1", "b:2"]);
        let mut token = 0;
        let mut unparsed: BTreeMap<u32, VecDeque<u8>> = BTreeMap::new();
        for _ in 0..400 {
            match random.u8(..12) {
                0..4 => {
                    token += 1;
                    let key = format!("k{}", random.u8(..20));
                    match random.u8(..3) {
                        0 => table.get(token, &key),
                        1 => table.increment(token, &key),
                        _ => table.set_if(token, &key),
                    }
                }
                4 => table.pass(random.u64(..3_000)),
                5 => {
                    let id = table.ids.values().next_back().copied();
                    if let Some(id) = id.filter(|_| random.u8(..8) == 0) {
                        table.event(ClientEvent::Cancel(id));
                        token += 1;
                    }
                }
                _ if table.connections.is_empty() => {}
                action => {
                    let (channel, _) = table.connections[random.usize(..table.connections.len())];
                    let mut output = Vec::new();
                    table.core.take_output(table.now, channel, &mut output);
                    let bytes = match (action, random.u8(..20)) {
                        (_, 0) => (0..random.usize(..30)).map(|_| random.u8(..)).collect(),
                        (_, 1) => all_at(random.u64(..9), "b:2").into_bytes(),
                        (_, _) => random.choice(PIECES).unwrap_or("").as_bytes().to_vec(),
                    };
                    match random.u8(..12) {
                        0 => table.event(ClientEvent::Closed(channel)),
                        1..4 => table.event(ClientEvent::Connected(channel)),
                        _ => {
                            let left = unparsed.entry(channel.attempt << 8 | channel.channel);
                            let left = left.or_default();
                            left.extend(bytes);
                            let whole: Vec<u8> = left.iter().copied().collect();
                            let mut input = &whole[..];
                            table.event(ClientEvent::Received(channel, &mut input));
                            let rest = input.len();
                            let key = channel.attempt << 8 | channel.channel;
                            let taken = whole.len() - rest;
                            unparsed.entry(key).or_default().drain(..taken);
                        }
                    }
                }
            }
            assert!(table.core.servers.len() <= SERVERS_MAX);
        }
        table.pass(30_000);
        assert_eq!(table.core.open_requests(), 0, "seed {seed}: a request has no outcome");
    }
}
