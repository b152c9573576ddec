//! Golden scripts of the migration protocol: `src/migration/scripts`, one file per behavior.
//!
//! There are two or three servers, each with a naive store and the real machines, a minimal
//! coordinator, and a network that follows the script. Nothing happens by itself: `deliver` runs
//! messages and the servers' own work until nothing is left, `advance` moves the clock, and
//! `stand-still` moves it while no machine runs. Key `k3` is in slot 3; hashes are printed as
//! keys and slots.
//!
//! Run with `UPDATE_GOLDENFILES=1` to record the current output, then read the difference.

mod coordinator;
mod network;
mod server;
mod store;

use coordinator::Coordinator;
use goldenscript::{Command, Context};
use network::{Message, Network, Rule};
use server::{Outside, Server, Work};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::time::Duration;
use store::{Operation, Tablet, TabletState};
use types::{HashRange, Instant, KeyHash, MigrationId, OwnershipEpoch, ServerId, Slot};
use wire::control::{MigrationPolicy, MigrationUpdate, PriorityPullMode};

#[test]
fn scripts_of_the_migration_protocol() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/migration/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        goldenscript::run(&mut World::new(), path).unwrap();
    }
}

struct World {
    now: Instant,
    servers: BTreeMap<ServerId, Server>,
    coordinator: Coordinator,
    network: Network,
    work: VecDeque<(ServerId, Work)>,
    /// Kinds of work that only `finish` performs.
    slow: BTreeSet<String>,
    lines: Vec<String>,
}

impl World {
    fn new() -> World {
        World {
            now: Instant(0),
            servers: (1..=3).map(|id| (ServerId(id), Server::new(ServerId(id)))).collect(),
            coordinator: Coordinator::default(),
            network: Network::default(),
            work: VecDeque::new(),
            slow: BTreeSet::new(),
            lines: Vec::new(),
        }
    }

    fn at(&mut self, id: ServerId, act: impl FnOnce(&mut Server, Instant, &mut Outside)) {
        let mut out = Outside::default();
        act(self.servers.get_mut(&id).expect("a server of the world"), self.now, &mut out);
        self.lines.append(&mut out.lines);
        self.work.extend(out.work.into_iter().map(|work| (id, work)));
        for message in out.messages {
            self.send(message);
        }
    }

    fn send(&mut self, message: Message) {
        let is_noise = matches!(&message, Message::Up { message, .. }
            if matches!(message, MigrationUpdate::Progress { .. }));
        let line = message.to_string();
        let rule = self.network.send(message);
        if !is_noise {
            let fate = match rule {
                None => "",
                Some(Rule::Lose) => " (lost)",
                Some(Rule::Hold) => " (held)",
                Some(Rule::Copy) => " (copied)",
            };
            self.lines.push(format!("{line}{fate}"));
        }
    }

    fn deliver(&mut self) {
        loop {
            if let Some(message) = self.network.next() {
                self.receive(message);
            } else if let Some(place) =
                self.work.iter().position(|(_, work)| !self.slow.contains(name_of(work)))
            {
                let (id, work) = self.work.remove(place).expect("just found");
                self.at(id, |server, now, out| server.work(now, work, out));
            } else {
                return;
            }
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Peer { from, to, message, batch } => {
                self.at(to, |server, now, out| server.peer_says(now, from, message, batch, out));
            }
            Message::Down { to, message } => {
                self.at(to, |server, now, out| server.coordinator_says(now, message, out));
            }
            Message::Up { message, .. } => {
                for (to, message) in self.coordinator.handle(&message) {
                    self.send(Message::Down { to, message });
                }
            }
        }
    }

    /// Advances the clock, stopping at the deadlines of the machines.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let next = self.servers.values().filter_map(Server::next_deadline).min();
            let Some(next) = next.filter(|&next| next <= end) else { break };
            self.now = next.max(self.now);
            self.lines.push(format!("at {} ms", self.now.0 / 1_000_000));
            for id in self.servers.keys().copied().collect::<Vec<_>>() {
                self.at(id, |server, now, out| server.tick(now, out));
            }
            self.deliver();
        }
        self.now = end;
    }

    /// Advances the clock while no machine runs.
    fn stand_still(&mut self, duration: Duration) {
        self.now = self.now + duration;
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.at(id, |server, now, out| server.tick(now, out));
        }
        self.deliver();
    }

    fn finish(&mut self, kind: &str, is_last: bool) {
        let (id, work) = self.take_work(kind, is_last);
        self.at(id, |server, now, out| server.work(now, work, out));
    }

    fn take_work(&mut self, kind: &str, is_last: bool) -> (ServerId, Work) {
        let is_kind = |(_, work): &(ServerId, Work)| name_of(work) == kind;
        let place = if is_last {
            self.work.iter().rposition(is_kind)
        } else {
            self.work.iter().position(is_kind)
        };
        self.work.remove(place.expect("such work waits")).expect("just found")
    }

    fn migrate(&mut self, arguments: &[&str], policy: MigrationPolicy) {
        let (source, target) = (server_id(arguments[0]), server_id(arguments[1]));
        let range = slots(arguments[2]);
        let tablet = self.servers.get_mut(&source).expect("a server").store.tablet(range.first());
        let epoch = tablet.expect("the source owns the range").epoch;
        let (to, message) = self.coordinator.start(range, source, target, epoch, policy);
        self.send(Message::Down { to, message });
    }

    fn own(&mut self, id: ServerId, range: HashRange) {
        let epoch = OwnershipEpoch(1);
        let tablet = Tablet { range, epoch, state: TabletState::Serving };
        self.servers.get_mut(&id).expect("a server").store.tablets.push(tablet);
    }
}

impl goldenscript::Runner for World {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut words = Vec::new();
        let mut options = BTreeMap::new();
        for argument in &command.args {
            match argument {
                goldenscript::Argument::Positional(word) => words.push(word.as_str()),
                goldenscript::Argument::KeyValue(key, value) => {
                    options.insert(key.as_str(), value.as_str());
                }
                _ => return Err("unknown kind of argument".into()),
            }
        }
        match command.name.as_str() {
            "own" => self.own(server_id(words[0]), slots(words[1])),
            "migrate" => self.migrate(&words, policy(&options)?),
            "cancel" => {
                let (to, message) = self.coordinator.cancel();
                self.send(Message::Down { to, message });
            }
            // The coordinator does not know the state of the source.
            "start-again" => {
                let (to, message) = self.coordinator.start_again();
                self.send(Message::Down { to, message });
            }
            "deliver" => self.deliver(),
            "advance" => self.advance(Duration::from_millis(words[0].parse()?)),
            "stand-still" => self.stand_still(Duration::from_millis(words[0].parse()?)),
            // The map shows the range as this server's own.
            "acknowledge" => self.at(server_id(words[0]), |server, now, out| {
                server.acknowledge(now, MigrationId(1), out);
            }),
            "lose" => self.network.rule(words[0], Some(Rule::Lose)),
            "hold" => self.network.rule(words[0], Some(Rule::Hold)),
            "copy" => self.network.rule(words[0], Some(Rule::Copy)),
            "pass" => self.network.rule(words[0], None),
            "release" => {
                let count = self.network.release(words[0]);
                self.lines.push(format!("{count} released"));
            }
            "slow" => drop(self.slow.insert(words[0].to_owned())),
            "quick" => drop(self.slow.remove(words[0])),
            "finish" => self.finish(words[0], words.get(1) == Some(&"last")),
            "fail" => {
                let (id, work) = self.take_work(words[0], false);
                self.at(id, |server, now, out| server.fail(now, work, out));
            }
            "short-answers" => {
                let server = self.servers.get_mut(&server_id(words[0])).expect("a server");
                server.answers_max = words[1].parse()?;
            }
            "full" => self.servers.get_mut(&server_id(words[0])).expect("a server").is_full = true,
            "show" => {
                let server = &self.servers[&server_id(words[0])];
                self.lines.extend(server.show());
            }
            // A read that looked up the record some time ago, before the record arrived.
            "late-miss" => {
                let hashes = vec![hash_of(words[1])];
                let (name, read) = (format!("read {}", words[1]), Operation::Read(hashes.clone()));
                self.at(server_id(words[0]), |server, now, out| {
                    server.park(now, MigrationId(1), name, read, hashes, out);
                });
            }
            name => {
                let operation = operation(name, &words[1..])?;
                let name = format!("{name} {}", words[1..].join(" "));
                let id = server_id(words[0]);
                self.at(id, |server, now, out| server.execute(now, name, operation, out));
            }
        }
        let lines: Vec<String> = self.lines.drain(..).map(|line| readable(&line)).collect();
        Ok(if lines.is_empty() { String::new() } else { lines.join("\n") + "\n" })
    }
}

fn operation(name: &str, words: &[&str]) -> Result<Operation, Box<dyn Error>> {
    Ok(match name {
        "read" => Operation::Read(words.iter().map(|key| hash_of(key)).collect()),
        "write" => Operation::Write(hash_of(words[0]), words[1].to_owned()),
        "write-if-absent" => Operation::WriteIfAbsent(hash_of(words[0]), words[1].to_owned()),
        "increment" => Operation::Increment(hash_of(words[0])),
        "delete" => Operation::Delete(hash_of(words[0])),
        _ => return Err(format!("unknown command {name}").into()),
    })
}

fn policy(options: &BTreeMap<&str, &str>) -> Result<MigrationPolicy, Box<dyn Error>> {
    let number = |name: &str, default: u16| {
        options.get(name).map_or(Ok(default), |value| value.parse::<u16>())
    };
    let priority = match number("batch", 16)? {
        0 => PriorityPullMode::Off,
        hashes_max => PriorityPullMode::Batched { hashes_max },
    };
    Ok(MigrationPolicy {
        partitions: number("partitions", 1)?,
        pull_bytes: 1024,
        pulls_ahead: number("ahead", 1)?,
        priority,
        background_share: 10,
        latency_p99_micros: 0,
    })
}

fn name_of(work: &Work) -> &'static str {
    match work {
        Work::CatchUp(..) => "catch-up",
        Work::Freeze(..) => "freeze",
        Work::Accept(_) => "accept",
        Work::Replay(..) => "replay",
        Work::PriorityReplay(..) => "priority-replay",
        Work::Cut(_) => "cut",
        Work::Forget(..) => "forget",
    }
}

fn server_id(word: &str) -> ServerId {
    ServerId(word.trim_start_matches('s').parse().expect("a server is named s1, s2 ..."))
}

fn slots(word: &str) -> HashRange {
    let (first, last) = word.split_once('-').expect("slots are named as first-last");
    HashRange::of_slots(Slot(first.parse().unwrap()), Slot(last.parse().unwrap()))
}

/// Returns the hash of a key. `k3` is the second hash of slot 3.
fn hash_of(key: &str) -> KeyHash {
    let slot = key.trim_start_matches('k').parse().expect("a key is named k and its slot");
    KeyHash(Slot(slot).first_hash().0 + 1)
}

/// Replaces hashes by their names in scripts.
fn readable(line: &str) -> String {
    let mut text = String::new();
    let mut word = String::new();
    for letter in line.chars().chain([' ']) {
        if letter.is_ascii_hexdigit() {
            word.push(letter);
            continue;
        }
        match u64::from_str_radix(&word, 16) {
            Ok(hash) if word.len() == 16 => text.push_str(&name_of_hash(KeyHash(hash))),
            _ => text.push_str(&word),
        }
        word.clear();
        text.push(letter);
    }
    text.trim_end().replace("t0/", "")
}

fn name_of_hash(hash: KeyHash) -> String {
    let slot = hash.slot();
    match hash.0 - slot.first_hash().0 {
        0 => format!("slot {}", slot.0),
        1 => format!("k{}", slot.0),
        _ if hash == slot.last_hash() => format!("slot {} end", slot.0),
        rest => format!("slot {} + {rest}", slot.0),
    }
}
