//! Golden scripts of handshakes: `tests/scripts`.
//!
//! `process s1 cluster=7 server=1 keys=old serves=servers` describes a process; without `keys` it
//! has none. `connect s1 s2 purpose=bus expected=2` opens a connection from one process to
//! another, and prints every message and the result on both sides. `keys s1 new old` changes the
//! keys of a running process.

use goldenscript::{Command, Context, Runner};
use handshake::{
    Accepting, ClusterKeys, Credentials, Handshake, HandshakeStep, Opening, ProvenPeer,
    SERVED_BY_COORDINATORS, SERVED_BY_SERVERS,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use types::{ClusterId, Generation, ServerId};
use wire::handshake::{ConnectionPurpose, HandshakeMessage, Nonce, Party};

type Failure = Box<dyn Error>;

#[test]
fn scripts_come_out_as_written() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        println!("{}", path.display());
        goldenscript::run(&mut Script::default(), &path).unwrap();
    }
}

struct Process {
    credentials: Credentials,
    cluster: Option<ClusterId>,
    server: Option<ServerId>,
    serves: &'static [ConnectionPurpose],
}

#[derive(Default)]
struct Script {
    processes: BTreeMap<String, Process>,
    connections: u8,
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _context: &Context) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let name = args.next_pos().ok_or("which process?")?.to_owned();
        let mut output = String::new();
        match command.name.as_str() {
            "process" => {
                let generation = Generation(self.processes.len() as u64 + 1);
                let keys = args.take_key("keys").map(|key| keys_of(&[key]));
                let process = Process {
                    credentials: Credentials::new(generation, keys),
                    cluster: args.take_key("cluster").map(str::parse).transpose()?.map(ClusterId),
                    server: args.take_key("server").map(str::parse).transpose()?.map(ServerId),
                    serves: match args.take_key("serves") {
                        Some("servers") => SERVED_BY_SERVERS,
                        Some("coordinators") => SERVED_BY_COORDINATORS,
                        Some(other) => return Err(format!("nobody serves {other}").into()),
                        None => &[],
                    },
                };
                self.processes.insert(name, process);
            }
            "keys" => {
                let mut keys = Vec::new();
                while let Some(key) = args.next_pos() {
                    keys.push(key);
                }
                self.processes[&name].credentials.change_keys(keys_of(&keys));
            }
            "connect" => {
                let accepter = args.next_pos().ok_or("to where?")?.to_owned();
                let purpose = match args.take_key("purpose").ok_or("what for?")? {
                    "bus" => ConnectionPurpose::Bus,
                    "priority" => ConnectionPurpose::Priority,
                    "control" => ConnectionPurpose::Control,
                    "operator" => ConnectionPurpose::Operator,
                    other => return Err(format!("there is no purpose {other}").into()),
                };
                let expected = args.take_key("expected").map(str::parse).transpose()?;
                let goal = (purpose, expected.map(ServerId));
                self.connect(&name, &accepter, goal, &mut output)?;
            }
            other => return Err(format!("there is no command {other}").into()),
        }
        args.reject_next()?;
        Ok(output)
    }
}

impl Script {
    fn connect(
        &mut self,
        opener: &str,
        accepter: &str,
        (purpose, expected): (ConnectionPurpose, Option<ServerId>),
        output: &mut String,
    ) -> Result<(), Failure> {
        self.connections += 1;
        let [ours, theirs] = [0, 100].map(|more| Nonce::new([self.connections + more; 32]));
        let [from, to] = [opener, accepter].map(|name| &self.processes[name]);
        let Process { cluster, server, .. } = *from;
        let opening = Opening { purpose, cluster, server, expected };
        let (opened, first) = Handshake::open(&from.credentials, opening, ours);
        let here = Accepting { purposes: to.serves, cluster: to.cluster, server: to.server };
        let accepted = Handshake::accept(&to.credentials, here, theirs);
        let mut sides = [(opener, opened), (accepter, accepted)];
        let (mut turn, mut next) = (1, Some(first));
        while let Some(message) = next.take() {
            writeln!(output, "{} → {}: {}", sides[1 - turn].0, sides[turn].0, text(&message))?;
            let (name, side) = &mut sides[turn];
            match side.handle(message) {
                HandshakeStep::Reply(reply) => next = Some(reply),
                HandshakeStep::Proven { peer, last } => {
                    writeln!(output, "{name}: proven, {}", peer_text(&peer))?;
                    next = last;
                }
                HandshakeStep::Refused { error, refusal } => {
                    writeln!(output, "{name}: {error}")?;
                    next = refusal;
                }
            }
            turn = 1 - turn;
        }
        Ok(())
    }
}

fn keys_of(names: &[&str]) -> ClusterKeys {
    let lines = names.iter().map(|name| {
        name.bytes().cycle().take(32).map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    ClusterKeys::parse(&lines.collect::<Vec<_>>().join("\n")).expect("they are keys")
}

fn text(message: &HandshakeMessage) -> String {
    let shown = |is_there| if is_there { "a proof" } else { "no proof" };
    match message {
        HandshakeMessage::Open(open) => {
            let key = if open.is_keyed { "with a key" } else { "without a key" };
            format!("open {:?}, {}, {key}", open.purpose, party(&open.from))
        }
        HandshakeMessage::Answer { answer, proof } => {
            format!("answer, {}, {}", party(&answer.from), shown(proof.is_some()))
        }
        HandshakeMessage::Prove { proof } => shown(proof.is_some()).into(),
        HandshakeMessage::Refuse(refusal) => format!("refused: {refusal:?}"),
    }
}

fn peer_text(peer: &ProvenPeer) -> String {
    format!("{:?} with {}", peer.purpose, party(&peer.party))
}

fn party(party: &Party) -> String {
    let server = party.server.map_or("no number".into(), |server| server.to_string());
    let cluster = party.cluster.map_or("no cluster".into(), |cluster| cluster.to_string());
    format!("{server} of {cluster} {}", party.generation)
}
