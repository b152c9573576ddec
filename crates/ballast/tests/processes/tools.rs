//! Tests of tools for operators: `INFO`, client counts, command-line tools.

use crate::client::Answer;
use crate::servers::{Cluster, MODEST, Process};
use std::process::Command;

#[test]
fn a_server_tells_what_tools_look_for() {
    let server = Process::alone(&MODEST);
    let info = server.client().ask(&["INFO"]).text();
    let port = format!("tcp_port:{}", server.address.port());
    for line in [
        "# Server",
        "redis_version:7.2.4",
        "redis_mode:standalone",
        &port,
        "connected_clients:1",
        "loading:0",
        "durability:none",
        "maxmemory_policy:noeviction",
        "role:master",
        "master_repl_offset:0",
        "cluster_enabled:0",
    ] {
        assert!(info.lines().any(|found| found == line), "{line} is missing in {info}");
    }
    let uptime = field(&info, "uptime_in_seconds");
    assert!(uptime.parse::<u64>().expect("a number") < 60, "it was just started: {uptime}");
    let section = server.client().ask(&["INFO", "keyspace"]).text();
    assert_eq!(section, "# Keyspace\r\n", "an empty server has no line for a database");
}

#[test]
fn clients_are_counted_from_one() {
    let server = Process::alone(&MODEST);
    let mut clients = [(); 3].map(|()| server.client());
    let numbers = clients.each_mut().map(|client| client.ask(&["CLIENT", "ID"]).number());
    assert_eq!(numbers, [1, 2, 3]);
    drop(clients);
    let mut fourth = server.client();
    assert_eq!(fourth.ask(&["CLIENT", "ID"]).number(), 4, "a number is never given twice");
    assert_eq!(fourth.ask(&["HELLO"]).items()[7].number(), 4);
}

#[test]
fn the_table_of_commands_has_ten_elements_per_command() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    let table = client.ask(&["COMMAND"]).items();
    assert_eq!(client.ask(&["COMMAND", "COUNT"]).number(), table.len() as i64);
    assert!(table.iter().all(|command| command.items().len() == 10));
    let asked = client.ask(&["COMMAND", "INFO", "get", "mset"]).items();
    let shape = |command: &Answer| {
        let items = command.items();
        let numbers = [1, 3, 4, 5].map(|at| items[at].number());
        (items[0].text(), numbers)
    };
    assert_eq!(shape(&asked[0]), ("get".into(), [2, 1, 1, 1]));
    assert_eq!(shape(&asked[1]), ("mset".into(), [-3, 1, -1, 2]));
    assert_eq!(client.ask(&["COMMAND", "DOCS", "get", "nosuch"]).items().len(), 2);
}

#[test]
fn the_tools_of_redis_work_with_a_server() {
    let server = Process::alone(&MODEST);
    let port = server.address.port().to_string();
    let Some(pong) = tool("redis-cli", &["-p", &port, "PING"]) else { return };
    assert_eq!(pong.trim(), "PONG");
    let ask = |words: &[&str]| tool("redis-cli", &[&["-p", &port], words].concat());
    for number in 0..100 {
        ask(&["SET", &format!("key:{number}"), "value"]);
    }
    let found = ask(&["--scan", "--pattern", "key:*"]).unwrap_or_default();
    assert_eq!(found.lines().count(), 100);
    assert!(ask(&["INFO"]).is_some_and(|info| info.contains("db0:keys=100,")));
    let measured =
        tool("redis-benchmark", &["-p", &port, "-t", "set,get,incr,mset", "-n", "2000", "-q"]);
    let Some(measured) = measured else { return };
    assert_eq!(measured.matches("requests per second").count(), 4, "{measured}");
    assert!(!measured.contains("ERR") && !measured.contains("WARN"), "{measured}");
}

#[test]
fn the_tools_of_redis_work_with_a_cluster() {
    let cluster = Cluster::start(2, &MODEST);
    let port = cluster.servers[1].address.port().to_string();
    let Some(info) = tool("redis-cli", &["-p", &port, "CLUSTER", "INFO"]) else { return };
    assert_eq!(field(&info, "cluster_state"), "ok");
    let set = tool("redis-cli", &["-c", "-p", &port, "SET", "key", "value"]).unwrap_or_default();
    assert_eq!(set.trim(), "OK");
    let get = tool("redis-cli", &["-c", "-p", &port, "GET", "key"]).unwrap_or_default();
    assert_eq!(get.trim(), "value");
    let [from, to] = [0, 1].map(|at: usize| cluster.servers[at].address.to_string());
    let moved = ballast(&["migrate", "--from", &from, "--to", &to, "--slots", "0-8191"]);
    assert!(moved.starts_with("moved "), "{moved}");
    let get = tool("redis-cli", &["-c", "-p", &port, "GET", "key"]).unwrap_or_default();
    assert_eq!(get.trim(), "value");
    let check = tool("redis-cli", &["--cluster", "check", &to]).unwrap_or_default();
    assert!(check.contains("[OK] All nodes agree about slots configuration."), "{check}");
    assert!(check.contains("[OK] All 16384 slots covered."), "{check}");
    let measured =
        tool("redis-benchmark", &["--cluster", "-p", &port, "-t", "set,get", "-n", "2000", "-q"]);
    let Some(measured) = measured else { return };
    assert_eq!(measured.matches("requests per second").count(), 2, "{measured}");
}

/// Returns the output of a `ballast` command.
pub(crate) fn ballast(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ballast")).args(arguments).output();
    let output = output.expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}{:?}", output.stderr);
    said
}

fn field<'t>(text: &'t str, name: &str) -> &'t str {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().expect("the field is there").trim()
}

/// Returns the output of a tool. If it is not installed, prints that and returns `None`. The
/// environment may set a command prefix, as in `BALLAST_TEST_TOOLS="chroot /somewhere"`.
fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    let before = std::env::var("BALLAST_TEST_TOOLS").unwrap_or_default();
    let mut words = before.split_whitespace().chain([name]);
    let program = words.next().expect("a name is a word");
    let output = match Command::new(program).args(words).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {name} cannot be started: {error}");
            return None;
        }
    };
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{name} {arguments:?} failed: {}", said.concat());
    Some(said.concat())
}
