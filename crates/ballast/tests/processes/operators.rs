//! Operator functions: passwords, limits, settings in a file, metrics, and shutdown.

use crate::client::{Client, until};
use crate::servers::{MODEST, Process, Starting, binary};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

fn start(arguments: &[&str]) -> Process {
    Process::alone(&[&MODEST[..], arguments].concat())
}

#[test]
fn nobody_is_served_before_the_password_and_little_is_read() {
    let server = start(&["--requirepass", "secret"]);
    let mut client = server.client();
    assert_eq!(client.ask(&["GET", "a"]).text(), "NOAUTH Authentication required.");
    assert!(client.ask(&["AUTH", "wrong"]).is_error("WRONGPASS "));
    assert_eq!(client.ask(&["AUTH", "default", "secret"]).text(), "OK");
    assert_eq!(client.ask(&["SET", "a", &"x".repeat(100_000)]).text(), "OK");
    assert_eq!(client.ask(&["CONFIG", "SET", "requirepass", "other"]).text(), "OK");
    assert_eq!(client.ask(&["STRLEN", "a"]).number(), 100_000);

    let mut client = server.client();
    assert!(client.ask(&["AUTH", "secret"]).is_error("WRONGPASS "));
    assert!(client.ask(&["PING", &"x".repeat(20_000)]).is_error("ERR Protocol error"));
    assert!(client.is_closed());
    let mut client = server.client();
    assert!(client.ask(&["x"; 11]).is_error("ERR Protocol error"));
    assert!(client.is_closed());
    let mut client = server.client();
    client.ask(&["HELLO", "3", "AUTH", "default", "other", "SETNAME", "me"]);
    assert_eq!(client.ask(&["CLIENT", "GETNAME"]).text(), "me");
}

#[test]
fn there_are_no_more_clients_than_permitted() {
    let server = start(&["--maxclients", "2"]);
    let mut first = server.client();
    assert_eq!(first.ask(&["PING"]).text(), "PONG");
    let mut second = server.client();
    assert_eq!(second.ask(&["PING"]).text(), "PONG");
    let mut third = server.client();
    assert_eq!(third.answer().text(), "ERR max number of clients reached");
    assert!(third.is_closed());
    assert_eq!(first.ask(&["CONFIG", "SET", "maxclients", "3"]).text(), "OK");
    assert_eq!(server.client().ask(&["PING"]).text(), "PONG");
}

#[test]
fn more_clients_than_file_descriptors_are_refused_at_run_time_too() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200 && exec \"$0\" \"$@\""]).arg(binary());
    command.args(["serve", "--port", "0", "--durability", "none"]).args(MODEST);
    let server = Starting::new(command).ready();
    let mut client = server.client();
    let at_start = client.ask(&["CONFIG", "GET", "maxclients"]).items()[1].text();
    let most: u32 = at_start.parse().expect("a number");
    assert!(most < 200, "{most}");
    let set = |client: &mut Client, count: u32| {
        client.ask(&["CONFIG", "SET", "maxclients", &count.to_string()])
    };
    let refused = set(&mut client, most + 1);
    assert!(refused.is_error("ERR CONFIG SET failed"), "{refused:?}");
    assert!(refused.text().contains(&format!("cannot exceed {most}")), "{refused:?}");
    assert_eq!(set(&mut client, 1).text(), "OK");
    assert_eq!(set(&mut client, most).text(), "OK");
}

#[test]
fn who_does_not_take_replies_is_sent_away_and_others_do_not_notice() {
    let server = start(&["--client-output-buffer-limit", "normal 2mb 0 0"]);
    let mut other = server.client();
    other.ask(&["SET", "a", &"x".repeat(1 << 20)]);
    let mut slow = server.client();
    let keys = ["a"; 64];
    slow.request(&[&["MGET"][..], &keys].concat());
    until("the slow one is gone", || {
        let info = other.ask(&["INFO", "stats"]).text();
        info.contains("client_output_buffer_limit_disconnections:1\r\n")
    });
    assert!(slow.is_closed());
    assert_eq!(other.ask(&["STRLEN", "a"]).number(), 1 << 20);
}

#[test]
fn the_idle_are_sent_away() {
    let server = start(&[]);
    let mut idle = server.client();
    assert_eq!(server.client().ask(&["CONFIG", "SET", "timeout", "1"]).text(), "OK");
    assert!(idle.is_closed());
}

#[test]
fn clients_of_all_reactors_are_listed_and_sent_away() {
    let server = Process::alone(&["--shared-cores", "--reactors", "2", "--ready-memory", "16mb"]);
    let mut operator = server.client();
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask(&["CLIENT", "SETNAME", &format!("client-{number}")]);
    }
    let list = operator.ask(&["CLIENT", "LIST"]).text();
    assert_eq!(list.lines().count(), 5, "{list}");
    for number in 0..4 {
        assert!(list.contains(&format!(" name=client-{number} ")), "{list}");
    }
    assert_eq!(operator.ask(&["CLIENT", "KILL", "TYPE", "normal"]).number(), 4);
    assert!(clients.iter_mut().all(Client::is_closed));
    assert_eq!(operator.ask(&["PING"]).text(), "PONG");
}

#[test]
fn settings_come_from_a_file_and_go_back_into_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ballast.toml");
    std::fs::write(&file, "# few\nmaxclients = 7\ntimeout = 5 # seconds\n").unwrap();
    let file = file.to_str().unwrap();
    let server = start(&["--config", file, "--timeout", "6"]);
    let mut client = server.client();
    let value = |client: &mut Client, name| client.ask(&["CONFIG", "GET", name]).items()[1].text();
    assert_eq!(value(&mut client, "maxclients"), "7");
    assert_eq!(value(&mut client, "timeout"), "6", "the command line overrides the file");
    client.ask(&["CONFIG", "SET", "maxclients", "9", "slowlog-max-len", "3"]);
    assert_eq!(client.ask(&["CONFIG", "REWRITE"]).text(), "OK");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.starts_with("# few\nmaxclients = 9\ntimeout = 6 # seconds\n"), "{text}");
    assert!(text.contains("slowlog-max-len = 3\n"), "{text}");
}

/// Starts a server with these redirections of the shell. All of its log is written.
fn start_redirected(redirections: &str, port: u16) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {redirections}")]).arg(binary());
    command.args(["serve", "--durability", "none", "--loglevel", "trace"]);
    command.args(["--port", &port.to_string()]).args(MODEST);
    command
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_the_server() {
    let mut server = Starting::new(start_redirected("2>/dev/full", 0)).ready();
    let mut client = server.client();
    assert_eq!(client.ask(&["SET", "a", "1"]).text(), "OK");
    assert_eq!(client.ask(&["CONFIG", "SET", "timeout", "5"]).text(), "OK");
    server.assert_serves("lost log lines");
    server.terminate();
    assert!(server.wait().success());
}

#[test]
fn a_server_serves_although_nothing_that_it_says_can_be_written() {
    let port = free_port();
    let mut server = start_redirected(">/dev/full 2>&1", port).spawn().expect("it starts");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    until("it serves", || {
        assert!(server.try_wait().expect("it can be waited for").is_none(), "it has ended");
        TcpStream::connect(address).is_ok()
    });
    assert_eq!(Client::connect(address).ask(&["PING"]).text(), "PONG");
    server.kill().expect("it still runs");
    server.wait().expect("it can be waited for");
}

#[test]
fn a_client_ends_the_server_in_order() {
    let mut server = start(&[]);
    let mut other = server.client();
    other.ask(&["PING"]);
    let mut client = server.client();
    assert!(client.ask(&["SHUTDOWN", "SAVE"]).is_error("ERR not supported without persistence"));
    client.request(&["SHUTDOWN"]);
    assert!(client.is_closed() && other.is_closed());
    assert!(server.wait().success());
}

#[test]
fn who_watches_sees_what_others_ask() {
    let server = start(&[]);
    let mut watcher = server.client();
    assert_eq!(watcher.ask(&["MONITOR"]).text(), "OK");
    server.client().ask(&["ECHO", "hello"]);
    let line = watcher.answer().text();
    assert!(line.ends_with("] \"ECHO\" \"hello\""), "{line}");
}

#[test]
fn a_nap_is_answered_later_and_holds_nobody_up() {
    let server = start(&["--enable-debug-command", "local"]);
    let mut sleeper = server.client();
    sleeper.request(&["DEBUG", "SLEEP", "0.2"]);
    assert_eq!(server.client().ask(&["PING"]).text(), "PONG");
    assert_eq!(sleeper.answer().text(), "OK");
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let any = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    any.local_addr().expect("it listens").port()
}

/// Returns a page of the metrics endpoint: its status line and its body.
pub(crate) fn scrape(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("the endpoint listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let (header, body) = page.split_once("\r\n\r\n").expect("a header ends");
    (header.lines().next().unwrap().to_string(), body.to_string())
}

#[test]
fn prometheus_finds_all_that_the_dashboard_shows() {
    let port = free_port();
    let server = start(&["--metrics-port", &port.to_string()]);
    let mut client = server.client();
    client.ask(&["SET", "a", "1"]);
    client.ask(&["GET", "a"]);
    client.ask(&["NOSUCH"]);
    let address = std::net::SocketAddr::new(server.address.ip(), port);
    let (status, page) = scrape(address, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.contains("ballast_command_calls_total{command=\"get\"} 1\n"), "{page}");
    assert!(page.contains("ballast_errors_total{kind=\"ERR\"} 1\n"), "{page}");
    let mut names = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        names.insert(name.split('{').next().unwrap_or_default().to_string());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboards/ballast.json");
    let dashboard = std::fs::read_to_string(path).expect("the dashboard is there");
    let shown: BTreeSet<String> = dashboard
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("ballast_"))
        .map(str::to_string)
        .collect();
    assert!(shown.len() > 15);
    let missing: Vec<_> = shown.difference(&names).collect();
    assert!(missing.is_empty(), "{missing:?} are on the dashboard and nowhere else");
    assert_eq!(scrape(address, "/nothing").0, "HTTP/1.1 404 Not Found");
}

#[test]
fn a_server_that_is_told_to_end_lets_its_replies_leave() {
    let mut server = start(&[]);
    let mut other = server.client();
    let value = "x".repeat(1 << 20);
    other.ask(&["SET", "a", &value]);
    let mut slow = server.client();
    slow.request(&[&["MGET"][..], &["a"; 16]].concat());
    until("it is answered", || other.ask(&["INFO", "commandstats"]).text().contains("mget"));
    server.terminate();
    assert!(other.is_closed());
    let values = slow.answer();
    assert!(values.items().iter().all(|item| item.text() == value) && values.items().len() == 16);
    assert!(slow.is_closed());
    assert!(server.wait().success());
}
