//! Tests of everything beside data commands that operators and clients see of a server.
//! Expectations were recorded from Valkey 9.1.2.

use super::*;
use crate::operators::{info, metrics};
use resp::RequestWriter;

/// Returns the value of a field of `INFO`.
fn info(world: &mut World, client: &mut Asking, field: &str) -> String {
    let text = world.ask(client, "INFO everything");
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{field} is not in {text}")).trim_end().to_string()
}

fn ask_all(world: &mut World, client: &mut Asking, lines: &[&str]) -> String {
    let mut last = String::new();
    for line in lines {
        last = world.ask(client, line);
    }
    last
}

#[test]
fn the_lines_of_an_http_request_end_the_connection_before_its_body_is_executed() {
    for (lines, replies) in [
        (&["POST / HTTP/1.1", "Host: x", "", "SET pwned yes"][..], ""),
        (&["PING", "host: x", "SET pwned yes"], "+PONG\r\n"),
        (&["MULTI", "hOsT: x", "SET pwned yes", "EXEC"], "+OK\r\n"),
    ] {
        let mut world = World::new(ServerConfiguration::default());
        let mut attacker = world.connect(1, 0, HERE);
        assert_eq!(world.ask(&mut attacker, &lines.join("\r\n")), replies, "{lines:?}");
        assert!(world.is_closed(&attacker), "{lines:?}");
        let mut other = world.connect(2, 1, HERE);
        assert_eq!(world.ask(&mut other, "GET pwned"), "$-1\r\n", "{lines:?}");
    }
}

#[test]
fn a_possible_attack_is_told_of_once_a_minute() {
    let told = crate::operators::Occasions::default();
    let at = |seconds| Instant(0) + Duration::from_secs(seconds);
    let due: Vec<bool> = [0, 1, 59, 60, 61, 200].map(|seconds| told.is_due(at(seconds))).into();
    assert_eq!(due, [true, false, false, true, false, true]);
}

#[test]
fn a_kill_of_clients_of_any_age_is_refused() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let other = world.connect(2, 1, HERE);
    for line in ["CLIENT KILL MAXAGE 0", "CLIENT LIST MAXAGE 0", "CLIENT KILL MAXAGE -1"] {
        let refusal = "-ERR maxage should be greater than 0\r\n";
        assert_eq!(world.ask(&mut client, line), refusal, "{line}");
    }
    world.pass(Duration::ZERO);
    assert!(!world.is_closed(&other));
}

#[test]
fn who_monitors_sees_the_commands_of_a_transaction_before_its_exec_and_no_passwords() {
    let mut world = World::new(ServerConfiguration::default());
    let mut watcher = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    world.ask(&mut watcher, "MONITOR");
    let lines = ["MULTI", "SET foo bar", "GET foo", "EXEC", "AUTH a secret", "SET foo"];
    ask_all(&mut world, &mut other, &lines);
    ask_all(&mut world, &mut other, &["HELLO 3 AUTH default secret", "CONFIG GET save", "RESET"]);
    world.pass(Duration::ZERO);
    let shown = world.answer(&watcher);
    let shown: Vec<&str> = shown.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    assert_eq!(
        shown,
        [
            "\"MULTI\"",
            "\"SET\" \"foo\" \"bar\"",
            "\"GET\" \"foo\"",
            "\"EXEC\"",
            "\"AUTH\" \"(redacted)\" \"(redacted)\"",
            "\"HELLO\" \"3\" \"AUTH\" \"(redacted)\" \"(redacted)\"",
            "\"RESET\"",
        ]
    );
}

#[test]
fn a_request_that_waited_is_shown_once() {
    let mut world = World::new(ServerConfiguration::default());
    let mut watcher = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    world.ask(&mut watcher, "MONITOR");
    world.ask(&mut watcher, "CLIENT PAUSE 1000 WRITE");
    world.ask(&mut other, "SET a 1");
    world.pass(Duration::from_millis(500));
    assert_eq!(world.answer(&watcher), "");
    world.pass(Duration::from_millis(1000));
    assert_eq!(world.answer(&watcher).matches("\"SET\"").count(), 1);
}

#[test]
fn slow_commands_of_a_transaction_are_noted_one_by_one() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    ask_all(&mut world, &mut client, &["CONFIG SET slowlog-log-slower-than 0 requirepass x"]);
    world.ask(&mut client, "AUTH x");
    ask_all(&mut world, &mut client, &["MULTI", "SET a b", "INCR a", "EXEC"]);
    let log = world.ask(&mut client, "SLOWLOG GET -1");
    let at = |word: &str| log.find(word).unwrap_or_else(|| panic!("{word} is not in {log}"));
    assert!(at("INCR") < at("$3\r\nSET\r\n$1\r\na\r\n") && at("MULTI") < at("AUTH"), "{log}");
    assert!(!log.contains("EXEC"), "{log}");
    assert!(log.contains("requirepass\r\n$10\r\n(redacted)\r\n"), "{log}");
}

#[test]
fn a_pause_of_writes_holds_transactions_that_write_and_no_others() {
    let mut world = World::new(ServerConfiguration::default());
    let mut operator = world.connect(1, 0, HERE);
    let mut reader = world.connect(2, 1, HERE);
    let mut writer = world.connect(3, 1, HERE);
    ask_all(&mut world, &mut writer, &["MULTI", "SET a 1"]);
    world.ask(&mut operator, "CLIENT PAUSE 4000 WRITE");
    let replies = ask_all(&mut world, &mut reader, &["MULTI", "PING", "GET a", "EXEC"]);
    assert_eq!(replies, "*2\r\n+PONG\r\n$-1\r\n");
    assert_eq!(world.ask(&mut writer, "EXEC"), "");
    let discarded = ask_all(&mut world, &mut reader, &["MULTI", "SET a 1", "DISCARD"]);
    assert_eq!(discarded, "+OK\r\n");
    world.pass(Duration::from_secs(5));
    assert_eq!(world.answer(&writer), "*1\r\n+OK\r\n");
}

/// Returns the hits, misses and expired keys so far.
fn found(world: &mut World) -> [i64; 3] {
    let mut asker = world.connect(77, 0, HERE);
    ["keyspace_hits", "keyspace_misses", "expired_keys"]
        .map(|field| info(world, &mut asker, field).parse().unwrap())
}

/// Returns the hits, misses and expired keys that a command adds.
fn found_by(world: &mut World, client: &mut Asking, line: &str) -> [i64; 3] {
    let before = found(world);
    world.ask(client, line);
    let after = found(world);
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn keys_that_are_read_count_as_hits_or_misses() {
    for (line, found) in [
        ("STRLEN no", [0, 1, 0]),
        ("GETRANGE no 0 1", [0, 1, 0]),
        ("SUBSTR k 0 1", [1, 0, 0]),
        ("GETBIT no 1", [0, 1, 0]),
        ("BITCOUNT no", [0, 1, 0]),
        ("BITPOS no 1", [0, 1, 0]),
        ("TTL no", [0, 1, 0]),
        ("PEXPIRETIME k", [1, 0, 0]),
        ("TYPE no", [0, 1, 0]),
        ("MGET k no k", [2, 1, 0]),
        ("EXISTS k no no", [1, 2, 0]),
        ("TOUCH k no", [1, 1, 0]),
        ("GETEX k", [1, 0, 0]),
        ("GETEX k EX 100", [1, 0, 0]),
        ("GETEX no PERSIST", [0, 1, 0]),
        ("GETDEL no", [0, 1, 0]),
        ("GETDEL k", [1, 0, 0]),
        ("LCS k no", [1, 1, 0]),
        ("COPY k k2", [1, 0, 0]),
        ("COPY no k2", [0, 1, 0]),
        ("COPY k k DB 1", [1, 0, 0]),
        ("BITOP AND to k no", [1, 1, 0]),
        ("BITFIELD no GET u8 0", [0, 1, 0]),
        ("BITFIELD k SET u8 0 1", [0, 0, 0]),
        ("BITFIELD_RO k GET u8 0", [1, 0, 0]),
        ("OBJECT ENCODING no", [0, 1, 0]),
        ("OBJECT REFCOUNT k", [1, 0, 0]),
        ("DUMP no", [0, 1, 0]),
        ("MEMORY USAGE k", [0, 0, 0]),
        ("SET k v GET", [1, 0, 0]),
        ("SET no v GET", [0, 1, 0]),
        ("SET k v NX", [0, 0, 0]),
        ("GETSET no v", [0, 1, 0]),
        ("APPEND k v", [0, 0, 0]),
        ("EXPIRE no 100", [0, 0, 0]),
        ("RENAME k k9", [0, 0, 0]),
        ("DEL k no", [0, 0, 0]),
        ("GET no", [0, 1, 0]),
        ("EXPIRE k -1", [0, 0, 1]),
        ("PEXPIREAT k 1", [0, 0, 1]),
        ("EXPIREAT no 1", [0, 0, 0]),
        ("GETEX k EXAT 1", [1, 0, 1]),
        ("SET k v PXAT 1", [0, 0, 1]),
        ("SET no v EXAT 1", [0, 0, 0]),
        ("MSETEX 2 k v no v EXAT 1", [0, 0, 1]),
    ] {
        let mut world = World::new(ServerConfiguration::default());
        let mut client = world.connect(1, 0, HERE);
        world.ask(&mut client, "SET k v");
        assert_eq!(found_by(&mut world, &mut client, line), found, "{line}");
        if line.contains(" DB ") {
            continue;
        }
        // Repeat within a transaction, which counts when it takes effect.
        let mut world = World::new(ServerConfiguration::default());
        let mut client = world.connect(1, 0, HERE);
        ask_all(&mut world, &mut client, &["SET k v", "MULTI"]);
        assert_eq!(found_by(&mut world, &mut client, line), [0, 0, 0], "{line}");
        assert_eq!(found_by(&mut world, &mut client, "EXEC"), found, "EXEC of {line}");
    }
}

#[test]
fn statistics_begin_from_zero_after_a_reset() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    ask_all(&mut world, &mut client, &["SET k v PX 1", "SET l v", "EXPIRE l -1", "GET l"]);
    assert_eq!(info(&mut world, &mut client, "expired_keys"), "1");
    // Requests that follow in the same turn are counted after the reset.
    world.ask(&mut client, "CONFIG RESETSTAT\r\nGET no");
    assert_eq!(info(&mut world, &mut client, "expired_keys"), "0");
    assert_eq!(info(&mut world, &mut client, "keyspace_misses"), "1");
}

#[test]
fn a_client_is_listed_as_it_is_now() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let mut other = world.connect(2, 1, HERE);
    world.ask(&mut client, "PING");
    let line = world.ask(&mut client, "CLIENT INFO");
    assert!(line.contains(" flags=N ") && line.contains(" multi=-1 watch=0 "), "{line}");
    assert!(line.contains(" cmd=client|info "), "{line}");
    ask_all(&mut world, &mut client, &["WATCH a b a", "MULTI", "SET x 1"]);
    let list = world.ask(&mut other, "CLIENT LIST ID 1");
    assert!(list.contains(" flags=x ") && list.contains(" multi=1 watch=2 "), "{list}");
    assert!(list.contains(" cmd=set "), "{list}");
    assert_eq!(info(&mut world, &mut other, "watching_clients"), "1");
    assert_eq!(info(&mut world, &mut other, "total_watched_keys"), "2");
    assert!(!world.ask(&mut other, "CLIENT LIST SKIPME yes").contains("id=2 "));
    assert!(world.ask(&mut other, "CLIENT LIST").contains("id=2 "));
}

#[test]
fn a_reset_keeps_what_the_client_has_said_of_its_library() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let lines = ["CLIENT SETINFO lib-name abc", "CLIENT SETINFO lib-ver 7", "CLIENT SETNAME me"];
    ask_all(&mut world, &mut client, &lines);
    let line = ask_all(&mut world, &mut client, &["RESET", "CLIENT INFO"]);
    assert!(line.contains(" name= ") && line.contains(" lib-name=abc lib-ver=7 "), "{line}");
}

#[test]
fn a_client_that_waits_for_the_end_of_a_pause_counts_as_blocked() {
    let mut world = World::new(ServerConfiguration::default());
    let mut operator = world.connect(1, 0, HERE);
    let mut writer = world.connect(2, 1, HERE);
    for (pause, actions) in [("CLIENT PAUSE 3000 WRITE", "write"), ("CLIENT PAUSE 3000", "all")] {
        assert_eq!(info(&mut world, &mut operator, "paused_actions"), "none");
        assert_eq!(info(&mut world, &mut operator, "paused_reason"), "none");
        world.ask(&mut operator, pause);
        assert_eq!(world.ask(&mut writer, "SET a 1"), "", "{pause}");
        assert_eq!(world.operators.clients.sums().blocked, 1, "{pause}");
        let text = metrics::text(&world.node, &world.operators, types::Instant(0));
        assert!(text.contains("ballast_clients_blocked 1\n"), "{text}");
        let backend = &world.cores[0].backend;
        let text = info::text(backend, world.now, WALL, |section| section.is_default);
        let fields = format!("paused_actions:{actions}\r\npaused_timeout_milliseconds:3000\r\n");
        let fields = format!("paused_reason:client_pause\r\n{fields}");
        assert!(text.contains(&fields) && text.contains("blocked_clients:1\r\n"), "{text}");
        world.operators.pause.end();
        world.pass(Duration::ZERO);
        let answer = world.answer(&writer) + &world.go_on(&mut writer);
        assert_eq!(answer, "+OK\r\n", "{pause}");
        assert_eq!(world.operators.clients.sums().blocked, 0, "{pause}");
    }
}

#[test]
fn commands_that_a_transaction_refuses_are_counted() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let lines = ["CONFIG RESETSTAT", "MULTI", "SET", "NOSUCH", "EXEC"];
    ask_all(&mut world, &mut client, &lines);
    let text = world.ask(&mut client, "INFO commandstats errorstats");
    assert!(text.contains("cmdstat_set:calls=0,usec=0,"), "{text}");
    assert!(text.contains(",rejected_calls=1,failed_calls=0"), "{text}");
    assert!(text.contains("errorstat_ERR:count=2\r\n"), "{text}");
    assert!(text.contains("errorstat_EXECABORT:count=1\r\n"), "{text}");
}

#[test]
fn settings_are_known_by_all_their_names_and_say_why_they_have_one_value() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let set = "CONFIG SET commandlog-execution-slower-than 5";
    assert_eq!(world.ask(&mut client, set), "+OK\r\n");
    let both = world.ask(&mut client, "CONFIG GET *log-*slower-than");
    for name in ["commandlog-execution-slower-than", "slowlog-log-slower-than"] {
        assert!(both.contains(&format!("\r\n{name}\r\n$1\r\n5\r\n")), "{both}");
    }
    let of_replicas = "*4\r\n$9\r\nreplicaof\r\n$0\r\n\r\n$7\r\nslaveof\r\n$0\r\n\r\n";
    assert_eq!(world.ask(&mut client, "CONFIG GET replicaof slaveof"), of_replicas);
    for (line, refusal) in [
        ("maxmemory 1gb", ""),
        ("maxmemory 1073741824 appendonly no", ""),
        ("maxmemory 2gb", "cannot exceed 67108864, the value at the server's start"),
        ("port 1", "it takes effect only when the server starts, and is '6379'"),
        ("maxmemory 0", "a memory limit is required"),
        ("maxmemory-policy noeviction", ""),
        ("maxmemory-policy lru", "argument(s) must be one of the following: volatile-lru, "),
        ("maxmemory-samples 0", "argument must be between 1 and 64 inclusive"),
        ("appendonly yes", "always 'no': the setting 'durability' determines it"),
        ("notify-keyspace-events \"\"", ""),
        ("notify-keyspace-events KEA", "always '': keyspace notifications are not supported"),
    ] {
        let reply = world.ask(&mut client, &format!("CONFIG SET {line}"));
        assert!(
            reply.contains(refusal) && reply.starts_with("+OK") == refusal.is_empty(),
            "{reply}"
        );
    }
}

#[test]
fn commands_are_described_with_hints_and_listed_with_their_subcommands() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let list = world.ask(&mut client, "COMMAND LIST FILTERBY PATTERN config|*");
    assert!(list.starts_with("*5\r\n$10\r\nconfig|get\r\n"), "{list}");
    let info = world.ask(&mut client, "COMMAND INFO dbsize");
    let tips = "*2\r\n$25\r\nrequest_policy:all_shards\r\n$23\r\nresponse_policy:agg_sum\r\n";
    assert!(info.contains(tips), "{info}");
    let [copy, reply] = ["copy", "client|reply"]
        .map(|name| world.ask(&mut client, &format!("HELLO 3\r\nCOMMAND INFO {name}")));
    let of_source = "~2\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RO\r\n+access\r\n";
    let of_copy = "%3\r\n$5\r\nflags\r\n~2\r\n+OW\r\n+update\r\n";
    assert!(copy.contains(of_source) && copy.contains(of_copy), "{copy}");
    assert!(reply.contains("+no_multi\r\n"), "{reply}");
}

#[test]
fn who_waits_for_servers_that_there_are_not_is_answered_in_time_or_unblocked() {
    let mut world = World::new(ServerConfiguration::default());
    let mut operator = world.connect(1, 0, HERE);
    let mut client = world.connect(2, 1, HERE);
    for (line, reply) in [
        ("WAIT 0 0", ":0\r\n"),
        ("WAIT -1 0", ":0\r\n"),
        ("WAITAOF 0 0 0", "*2\r\n:0\r\n:0\r\n"),
        ("WAIT x 0", "-ERR value is not an integer or out of range\r\n"),
        ("WAIT 1 -1", "-ERR timeout is negative\r\n"),
        ("MULTI\r\nWAIT 1 0\r\nWAITAOF 0 1 0\r\nEXEC", EXECUTED),
    ] {
        assert_eq!(world.ask(&mut client, line), reply, "{line}");
    }
    assert_eq!(world.ask(&mut client, "WAIT 1 7000\r\nPING"), "");
    assert_eq!(info(&mut world, &mut operator, "blocked_clients"), "1");
    assert!(world.ask(&mut operator, "CLIENT LIST ID 2").contains(" flags=b "));
    world.pass(Duration::from_millis(6_900));
    assert_eq!(world.answer(&client), "");
    world.pass(Duration::from_millis(200));
    assert_eq!(world.answer(&client) + &world.go_on(&mut client), ":0\r\n+PONG\r\n");

    for (wait, unblock, reply) in [
        ("WAIT 1 0", "CLIENT UNBLOCK 2", ":0\r\n"),
        ("WAITAOF 0 1 0", "CLIENT UNBLOCK 2 TIMEOUT", "*2\r\n:0\r\n:0\r\n"),
        ("WAIT 1 9", "CLIENT UNBLOCK 2 ERROR", UNBLOCKED),
    ] {
        assert_eq!(world.ask(&mut operator, unblock), ":0\r\n", "nobody waits");
        assert_eq!(world.ask(&mut client, wait), "", "{wait}");
        assert_eq!(world.ask(&mut operator, unblock), ":1\r\n");
        world.pass(Duration::ZERO);
        assert_eq!(world.answer(&client), reply, "{wait}");
    }
    let mut ending = world.connect(3, 1, HERE);
    assert_eq!(world.ask(&mut ending, "WAIT 1 0"), "");
    world.cores[1].input_ended(ending.connection, &mut world.sockets);
    assert_eq!(world.answer(&ending), ":0\r\n", "nobody would end it");
    assert!(world.is_closed(&ending));
    assert_eq!(world.ask(&mut client, "WAIT 1 0"), "");
    world.cores[1].closed(client.connection);
    assert!(!world.cores[1].waits.has_replicas(), "who waits for ever is forgotten when it goes");
}

const EXECUTED: &str = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:0\r\n*2\r\n:0\r\n:0\r\n";
const UNBLOCKED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

#[test]
fn what_is_not_persisted_is_told_so() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    for line in ["SAVE", "BGSAVE", "BGREWRITEAOF"] {
        let reply = world.ask(&mut client, line);
        assert!(reply.starts_with("-ERR not supported without persistence: "), "{line}: {reply}");
    }
    assert_eq!(world.ask(&mut client, "BGSAVE x"), "-ERR syntax error\r\n");
    ask_all(&mut world, &mut client, &["CONFIG RESETSTAT", "SET a 1", "INCR a", "GET a"]);
    assert_eq!(info(&mut world, &mut client, "rdb_changes_since_last_save"), "2");
}

#[test]
fn groups_of_slots_are_asked_for_one_after_another() {
    let mut world = World::of_cluster();
    let mut client = world.connect(1, 0, HERE);
    let (me, other) = (world.node.name_of(ServerId(1)), world.node.name_of(ServerId(2)));
    let second = ServerInfo { id: ServerId(2), ..world.node.map().servers[0].clone() };
    let servers = vec![world.node.map().servers[0].clone(), second];
    let map = ClusterMap { version: 2, servers, ..(*world.node.map()).clone() };
    world.cores[0].on_control(FromCoordinator::Map(map));
    world.turn();
    for (node, refusal) in [
        (&me[..], "-ERR Target node can not be this node.\r\n"),
        ("zzz", "-ERR Invalid node name: zzz\r\n"),
        (&"a".repeat(40), &format!("-ERR Unknown node name: {}\r\n", "a".repeat(40))),
    ] {
        let line =
            format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 1 NODE {other} SLOTSRANGE 0 0 NODE {node}");
        assert_eq!(world.ask(&mut client, &line), refusal);
    }
    let answer = |world: &mut World, request, answer| {
        world.cores[0].on_control(FromCoordinator::Answer { request, answer });
        world.turn();
        asked(world)
    };
    let line =
        format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 1 NODE {other} SLOTSRANGE 0 0 NODE {other}");
    for (last, reply) in [
        (Answer::Started(vec![MigrationId(2)]), "+OK\r\n"),
        (
            Answer::Refused("no room".into()),
            "-ERR no room (the migration of the 1 preceding groups of slots has started)\r\n",
        ),
    ] {
        assert_eq!(world.ask(&mut client, &line), "");
        let (request, asks) = asked(&mut world);
        assert!(matches!(&asks[..], [Ask::Migrate { ranges, .. }] if ranges[0].slots().0.0 == 1));
        let started = Answer::Started(vec![MigrationId(1)]);
        let (request, asks) = answer(&mut world, request, started);
        assert!(matches!(&asks[..], [Ask::Migrate { ranges, .. }] if ranges[0].slots().0.0 == 0));
        let (_, asks) = answer(&mut world, request, last);
        assert_eq!(asks, []);
        assert_eq!(world.answer(&client), reply);
    }
}

#[test]
fn keys_of_one_slot_are_equally_likely_for_randomkey() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    world.ask(&mut client, "MSET {a}0 v {a}1 v {a}2 v {a}3 v");
    // The table's records are counted once a second.
    world.pass(Duration::from_secs(3));
    // A request may take several turns.
    let ask = |_| {
        let reply = world.ask(&mut client, "RANDOMKEY");
        world.pass(Duration::from_millis(1));
        reply
    };
    let replies: String = (0..4_000).map(ask).collect();
    let counts = ["{a}0", "{a}1", "{a}2", "{a}3"].map(|key| replies.matches(key).count());
    let all: usize = counts.iter().sum();
    let is_fair = |count: &usize| (all / 5..all * 3 / 10).contains(count);
    assert!(all > 800 && counts.iter().all(is_fair), "{counts:?}");
}

/// Sends the words of a line as an array, which has no limit on its length.
fn ask_long(world: &mut World, client: &mut Asking, line: &str) -> String {
    let words: Vec<&[u8]> = line.split_ascii_whitespace().map(str::as_bytes).collect();
    RequestWriter::write(&words, &mut client.input);
    world.go_on(client)
}

#[test]
fn a_reply_of_any_length_is_refused_before_it_takes_all_memory() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    ask_long(&mut world, &mut client, &format!("SADD set {}", "y".repeat(60_000)));
    world.ask(&mut client, "SETRANGE long 3999999 x");
    let refused = "-ERR the reply is longer than 512 MB\r\n";
    let names = "long ".repeat(140);
    assert_eq!(world.ask(&mut client, &format!("MGET {names}")), refused);
    assert_eq!(world.ask(&mut client, "SRANDMEMBER set -1000000"), refused);
    let lines = ["MULTI", "SET a 1", "SRANDMEMBER set -1000000", "EXEC", "GET a"].join("\r\n");
    let replies = world.ask(&mut client, &lines);
    let discarded = "-EXECABORT Transaction discarded because of: the reply is longer than 512 MB";
    assert_eq!(replies, format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n{discarded}\r\n$-1\r\n"));
}

#[test]
fn sets_that_are_named_again_cost_no_more() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let members: String = (0..2_000).map(|member| format!(" {member}")).collect();
    ask_long(&mut world, &mut client, &format!("SADD set{members}"));
    world.ask(&mut client, "SADD other 1 2 x");
    // A billion members, if each name counted.
    let names = "set ".repeat(500_000);
    for (line, reply) in [
        (format!("SINTERCARD 500001 other {names}"), ":2\r\n"),
        (format!("SUNIONSTORE all other {names}"), ":2001\r\n"),
        (format!("SDIFFSTORE rest other {names}"), ":1\r\n"),
        ("SDIFF other set other".to_owned(), "*0\r\n"),
        ("ZINTERCARD 3 set set other".to_owned(), ":2\r\n"),
    ] {
        assert_eq!(ask_long(&mut world, &mut client, &line), reply);
    }
    for name in ["ZINTERCARD 500001 other", "ZUNION 500001 other", "ZUNIONSTORE all 500001 other"] {
        let refused =
            "-ERR the sets that the command names more than once have too many members\r\n";
        assert_eq!(ask_long(&mut world, &mut client, &format!("{name} {names}")), refused);
    }
}

#[test]
fn long_keys_and_long_patterns_are_refused_by_their_names() {
    let mut world = World::new(ServerConfiguration::default());
    let mut client = world.connect(1, 0, HERE);
    let long = "k".repeat(65_536);
    for name in ["DEL", "UNLINK a", "INCR"] {
        let refused = "-ERR a key of this command is longer than 65535 bytes\r\n";
        assert_eq!(ask_long(&mut world, &mut client, &format!("{name} {long}")), refused);
    }
    let large = "v".repeat(1_500_000);
    assert_eq!(
        ask_long(&mut world, &mut client, &format!("MSET a {large} b {large} c {large}")),
        "-ERR the keys and values of one command must fit into one segment of the log\r\n"
    );
    let (name, pattern) = ("a".repeat(200_000), format!("*{}b", "a".repeat(30_000)));
    ask_long(&mut world, &mut client, &format!("HSET hash {name} v"));
    assert_eq!(
        ask_long(&mut world, &mut client, &format!("HSCAN hash 0 MATCH {pattern}")),
        "-ERR the pattern takes too long to compare with these names\r\n"
    );
}
