//! Golden scripts: commands and their replies, byte for byte.
//!
//! The scripts in `scripts/redis` were recorded from Valkey 9.1.2 and hold for both servers. To
//! check them again, or to record more:
//!
//! `[UPDATE_GOLDENFILES=1] BALLAST_TEST_AGAINST=HOST:PORT cargo test -p ballast --test processes`
//! `as_redis_does`
//!
//! The scripts in `scripts/ballast` run against a cluster of one server.

use crate::client::Client;
use crate::servers::{Cluster, MODEST, Process};
use goldenscript::{Command, Context, Runner};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const SCRIPTS: &str = "tests/processes/scripts";

#[test]
fn commands_are_answered_as_redis_does() {
    let rival = std::env::var("BALLAST_TEST_AGAINST").ok();
    let rival: Option<SocketAddr> = rival.map(|address| address.parse().expect("HOST:PORT"));
    for script in scripts("redis") {
        match rival {
            Some(address) => {
                let mut client = Client::connect(address);
                client.ask(&["FLUSHALL"]);
                // With the same limit, both servers refuse the same requests.
                let limit = types::limits::VALUE_BYTES_MAX.to_string();
                client.ask(&["CONFIG", "SET", "proto-max-bulk-len", &limit]);
                play(&script, address);
            }
            None => play(&script, Process::alone(&MODEST).address),
        }
    }
}

#[test]
fn commands_about_clusters_and_settings_are_answered_as_written() {
    for script in scripts("ballast") {
        let cluster = Cluster::start(1, &MODEST);
        play(&script, cluster.servers[0].address);
    }
}

fn scripts(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(SCRIPTS).join(folder);
    let entries = std::fs::read_dir(folder).expect("the scripts are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths
}

fn play(script: &Path, address: SocketAddr) {
    println!("{}", script.display());
    let mut session = Session { address, clients: BTreeMap::new() };
    goldenscript::run(&mut session, script).expect("a script can be read");
}

/// The connections of a script: `name: > GET key` uses the connection of this name; `resp3: > GET
/// key` uses one in RESP3.
struct Session {
    address: SocketAddr,
    clients: BTreeMap<Option<String>, Client>,
}

impl Runner for Session {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Result<String, Box<dyn Error>> {
        let mut words = words(&command.name);
        words.extend(command.args.iter().map(ToString::to_string));
        let address = self.address;
        let client = self.clients.entry(context.prefix.clone());
        let client = client.or_insert_with(|| connect(address, context.prefix.as_deref()));
        client.request(&words);
        let reply = client.raw_answer().map_or("(closed)".into(), |bytes| readable(&bytes));
        Ok(format!("{} → {reply}\n", command.name))
    }
}

/// Opens the connection of this name. `resp3` speaks RESP3.
fn connect(address: SocketAddr, name: Option<&str>) -> Client {
    let mut client = Client::connect(address);
    if name == Some("resp3") {
        client.ask(&["HELLO", "3"]);
    }
    client
}

/// Splits a line at blanks. Empty words and words with blanks are quoted.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').expect("a quote ends"),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(word.to_string());
        rest = after.trim_start();
    }
    words
}

/// Joins the lines of a reply.
fn readable(bytes: &[u8]) -> String {
    let lines = bytes.strip_suffix(b"\r\n").unwrap_or(bytes);
    lines
        .escape_ascii()
        .to_string()
        .replace("\\r\\n", " ")
        .replace("\\'", "'")
        .replace("\\\"", "\"")
}
