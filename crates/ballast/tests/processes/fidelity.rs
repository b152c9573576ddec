//! Tests of replies that are not about data: malformed requests, and descriptions of commands. They
//! were recorded from Valkey 9.1.2, and can be compared with a running one:
//!
//! `BALLAST_TEST_AGAINST=HOST:PORT cargo test -p ballast --test processes valkey_does`

use crate::client::{Answer, Client};
use crate::servers::{MODEST, Process};
use resp::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;

fn rival() -> Option<SocketAddr> {
    let rival = std::env::var("BALLAST_TEST_AGAINST").ok()?;
    Some(rival.parse().expect("HOST:PORT"))
}

const UNBALANCED: &str = "-ERR Protocol error: unbalanced quotes in request\r\n";
const CRLF: &str = "-ERR Protocol error: invalid CRLF in request\r\n";

/// The input of a client that then sends nothing more, and all its replies.
const STREAMS: &[(&[u8], &str)] = &[
    // The connection of a browser is closed before the body of its request is executed.
    (b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET pwned yes\r\n", ""),
    (b"host: x\r\nSET pwned yes\r\n", ""),
    (b"*2\r\n$5\r\nHost:\r\n$1\r\nx\r\n*3\r\n$3\r\nSET\r\n$5\r\npwned\r\n$1\r\nx\r\n", ""),
    (b"GET pwned\r\n", "$-1\r\n"),
    // Quotes may begin and end within a word.
    (b"ECHO \"a\"b\r\n", "$2\r\nab\r\n"),
    (b"ECHO 'a\\'b'c\r\n", "$4\r\na'bc\r\n"),
    (b"ECHO a\"b c\"d\r\n", "$5\r\nab cd\r\n"),
    (b"ECHO \"\"a''\r\n", "$1\r\na\r\n"),
    (b"ECHO \"\\x41\\n\"z\r\n", "$3\r\nA\nz\r\n"),
    (b"ECHO \"a\r\n", UNBALANCED),
    (b"ECHO a'b\r\n", UNBALANCED),
    (b"ECHO \"a\" \"b\r\n", UNBALANCED),
    // The announced length and the length of the data differ.
    (b"*2\r\n$3\r\nSETxx$1\r\na\r\n", CRLF),
    (b"*1\r\n$4\r\nPING\rx", CRLF),
    (b"*1\r\n$4\r\nPING\n\n", CRLF),
    (b"*1\r\n$4\rxPING\r\n", CRLF),
    (b"*1\rx", CRLF),
];

#[test]
fn bytes_are_taken_or_refused_as_valkey_does() {
    let server = Process::alone(&MODEST);
    let address = rival().unwrap_or(server.address);
    for (bytes, replies) in STREAMS {
        let mut client = Client::connect(address);
        client.try_send(bytes);
        client.finish();
        let mut answered = Vec::new();
        while let Some(answer) = client.raw_answer() {
            answered.extend_from_slice(&answer);
        }
        let answered = String::from_utf8_lossy(&answered).into_owned();
        assert_eq!(&answered, replies, "{}", bytes.escape_ascii());
    }
}

/// Returns the words of a set or an array.
fn words(answer: &Answer) -> BTreeSet<String> {
    answer.items().iter().map(Answer::text).collect()
}

/// Formats a key specification, independent of the order of its flags.
fn specification(answer: &Answer) -> String {
    let mut parts = Vec::new();
    for [name, value] in answer.items().as_chunks().0 {
        let text = match name.text().as_str() {
            "flags" => format!("{:?}", words(value)),
            "notes" => value.text(),
            _ => format!("{:?}", value.0),
        };
        parts.push(format!("{} {text}", name.text()));
    }
    parts.join(" ")
}

/// Returns arity, flags, key positions, tips and key specifications of a command, if it exists.
fn description(client: &mut Client, name: &str) -> Option<[String; 5]> {
    let info = client.ask(&["COMMAND", "INFO", name]).items().remove(0);
    if info.0 == Value::Null {
        return None;
    }
    let info = info.items();
    let specifications: Vec<String> = info[8].items().iter().map(specification).collect();
    Some([
        info[1].number().to_string(),
        format!("{:?}", words(&info[2])),
        format!("{:?}", info[3..6].iter().map(Answer::number).collect::<Vec<_>>()),
        format!("{:?}", words(&info[7])),
        specifications.join("; "),
    ])
}

/// Commands with a different description, and the reasons.
const DESCRIBED_OTHERWISE: &[(&str, &str)] = &[];

#[test]
fn commands_are_described_as_valkey_does() {
    let Some(rival) = rival() else {
        println!("skipped: BALLAST_TEST_AGAINST names no server of Valkey");
        return;
    };
    let server = Process::alone(&MODEST);
    let (mut ours, mut theirs) = (server.client(), Client::connect(rival));
    let names = words(&ours.ask(&["COMMAND", "LIST"]));
    let mut wrong = Vec::new();
    for name in names.iter().filter(|name| !name.ends_with("|help")) {
        let (Some(ours), Some(theirs)) =
            (description(&mut ours, name), description(&mut theirs, name))
        else {
            continue;
        };
        let is_known = DESCRIBED_OTHERWISE.iter().any(|(known, _)| known == name);
        if ours != theirs && !is_known {
            wrong.push(format!("{name}\n  ours   {ours:?}\n  theirs {theirs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn traffic_is_counted_from_zero_after_a_reset() {
    let server = Process::alone(&MODEST);
    let mut client = server.client();
    client.ask(&["SET", "a", &"x".repeat(100_000)]);
    client.ask(&["GET", "a"]);
    let bytes = |client: &mut Client, field: &str| -> u64 {
        let info = client.ask(&["INFO", "stats"]).text();
        let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{field}: {info}"))
    };
    for field in ["total_net_input_bytes", "total_net_output_bytes"] {
        assert!(bytes(&mut client, field) >= 100_000, "{field}");
    }
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]).text(), "OK");
    for field in ["total_net_input_bytes", "total_net_output_bytes"] {
        assert!(bytes(&mut client, field) < 10_000, "{field} goes on");
    }
}
