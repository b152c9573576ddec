//! Golden scripts of replication: one master with one replicator (s1), and backups (s2, s3 ...).
//! After `own-disk`, the master's own disk takes replicas while no backup lives.
//!
//! Nothing happens by itself: `deliver` runs messages and disks until nothing is left, and
//! `advance` moves the clock. The script plays the manifest and the coordinator: `registered`,
//! `sealed`, `dropped`, `died`. Segments are given by their numbers.
//!
//! Run with `UPDATE_GOLDENFILES=1` to record the current output, then read the difference.

use super::server::{Envelope, Outside, Server, Work};
use goldenscript::{Argument, Command, Context};
use protocols::Outbox;
use protocols::replication::{
    Backup, BackupCandidate, BackupCounts, BackupEvent, Piece, Promise, Quorum, Rack, Replicator,
    ReplicatorEffect, ReplicatorEvent, ReplicatorSettings, appended,
};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::time::Duration;
use types::{Instant, SegmentId, ServerId, UnixMillis};
use wire::peer::{Append, PeerMessage};
use wire::replica::{ReplicaEpoch, ReplicaId, ReplicaKind};

const MASTER: ServerId = ServerId(1);

#[test]
fn scripts_of_replication() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/replication/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        goldenscript::run(&mut World::new(), path).unwrap();
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Lose,
    /// Hold until released.
    Hold,
    /// Deliver, and hold a copy until released.
    Copy,
}

struct World {
    now: Instant,
    master: Replicator,
    /// Rack of each backup, indexed by server number minus 2.
    racks: Vec<u32>,
    /// The master's rack; `None`: the master is its own failure domain.
    own_rack: Option<u32>,
    servers: BTreeMap<ServerId, Server>,
    in_transit: VecDeque<Envelope>,
    kept: Vec<Envelope>,
    /// Rules by the kind of message and by the server other than the master.
    rules: BTreeMap<(String, Option<ServerId>), Rule>,
    work: VecDeque<(ServerId, Work)>,
    slow: Vec<ServerId>,
    /// Set if leases and steady questions are printed.
    shows_beats: bool,
    lines: Vec<String>,
}

fn settings(replicas: usize) -> ReplicatorSettings {
    ReplicatorSettings {
        log: MASTER,
        kind: ReplicaKind::Data,
        replicas,
        promise: Promise::Taken,
        is_standalone: false,
    }
}

impl World {
    fn new() -> World {
        World {
            now: Instant(0),
            master: Replicator::new(settings(1)),
            racks: Vec::new(),
            own_rack: None,
            servers: BTreeMap::new(),
            in_transit: VecDeque::new(),
            kept: Vec::new(),
            rules: BTreeMap::new(),
            work: VecDeque::new(),
            slow: Vec::new(),
            shows_beats: false,
            lines: Vec::new(),
        }
    }

    /// Sets up the world from the numbers of replicas and servers, and options.
    fn begin(&mut self, words: &[&str], options: &BTreeMap<&str, &str>) {
        let count: u32 = words[0].parse().expect("a number of backups");
        let is_synced = options.get("promise") == Some(&"synced");
        let is_manifest = options.get("kind") == Some(&"manifest-log");
        let is_standalone = options.get("alone") == Some(&"yes");
        self.shows_beats = is_manifest;
        self.master = Replicator::new(ReplicatorSettings {
            promise: if is_synced { Promise::Synced } else { Promise::Taken },
            kind: if is_manifest { ReplicaKind::Manifest } else { ReplicaKind::Data },
            is_standalone,
            ..settings(options.get("replicas").map_or(2, |it| it.parse().expect("replicas")))
        });
        let racks = options.get("racks").copied().unwrap_or("");
        let racks = racks.split(' ').filter(|rack| !rack.is_empty());
        self.racks = racks.map(|rack| rack.parse().expect("a rack")).collect();
        self.own_rack = options.get("own").map(|rack| rack.parse().expect("a rack"));
        for number in 2..count + 2 {
            self.start(ServerId(number), !is_synced);
        }
        if is_standalone {
            self.start(MASTER, !is_synced);
            self.at(MASTER, |server, _| {
                server.backup = Backup::of_own_log();
                Outside::default()
            });
        }
        self.tell_candidates();
    }

    fn start(&mut self, id: ServerId, is_synced_at_once: bool) {
        let mut server = Server::new(self.now, id, BTreeMap::new());
        server.is_synced_at_once = is_synced_at_once;
        self.servers.insert(id, server);
    }

    fn tell_candidates(&mut self) {
        let others = |server: &&Server| server.is_alive && server.id != MASTER;
        let is_last = !self.servers.values().any(|server| others(&server));
        let living = self.servers.values().filter(|it| is_last || others(it));
        let rack = |id: ServerId| self.racks.get((id.0 as usize).checked_sub(2)?).copied();
        let candidates = living.map(|server| BackupCandidate {
            server: server.id,
            rack: Rack(rack(server.id).unwrap_or(server.id.0 | 1 << 31)),
            is_usable: true,
        });
        let own = Rack(self.own_rack.unwrap_or(MASTER.0 | 1 << 31));
        self.tell(ReplicatorEvent::Candidates { own, servers: candidates.collect() });
    }

    fn tell(&mut self, event: ReplicatorEvent) {
        let mut out = Outbox::new();
        self.master.handle(self.now, event, &mut out);
        for effect in out.drain() {
            let (to, message, bytes) = match effect {
                ReplicatorEffect::Probe { backup } => (backup, PeerMessage::Ping, 0),
                ReplicatorEffect::Send { backup, piece } => {
                    (backup, PeerMessage::Append(append(&piece)), piece.to - piece.from)
                }
                ReplicatorEffect::Release { backup, replicas } => {
                    (backup, PeerMessage::Release { replicas }, 0)
                }
                ReplicatorEffect::Lease { .. } if !self.shows_beats => continue,
                effect => {
                    self.lines.push(effect.to_string());
                    continue;
                }
            };
            self.send(Envelope { from: MASTER, to, message, bytes });
        }
    }

    fn send(&mut self, envelope: Envelope) {
        let kind = kind(&envelope.message).to_owned();
        let other = if envelope.to == MASTER { envelope.from } else { envelope.to };
        let rule = self.rules.get(&(kind.clone(), Some(other)));
        let rule = rule.or_else(|| self.rules.get(&(kind, None))).copied();
        let fate = match rule {
            None => "",
            Some(Rule::Lose) => " (lost)",
            Some(Rule::Hold) => " (held)",
            Some(Rule::Copy) => " (copied)",
        };
        self.lines.push(format!("{}{fate}", show(&envelope)));
        match rule {
            None => self.in_transit.push_back(envelope),
            Some(Rule::Lose) => {}
            Some(Rule::Hold) => self.kept.push(envelope),
            Some(Rule::Copy) => {
                self.kept.push(envelope.clone());
                self.in_transit.push_back(envelope);
            }
        }
    }

    fn deliver(&mut self) {
        loop {
            if let Some(envelope) = self.in_transit.pop_front() {
                self.receive(envelope);
            } else if let Some(place) = self.work.iter().position(|(id, _)| !self.slow.contains(id))
            {
                let (id, work) = self.work.remove(place).expect("just found");
                self.at(id, |server, now| server.carry_out(now, work));
            } else {
                return;
            }
        }
    }

    fn at(&mut self, id: ServerId, act: impl FnOnce(&mut Server, Instant) -> Outside) {
        let server = self.servers.get_mut(&id).expect("a server of the world");
        if !server.is_alive {
            return;
        }
        let out = act(server, self.now);
        self.work.extend(out.work.into_iter().map(|work| (id, work)));
        out.messages.into_iter().for_each(|envelope| self.send(envelope));
        self.lines.extend(out.freed.iter().map(|log| format!("{id} has freed log {log}")));
        for log in out.reports {
            let kept = self.servers[&id].backup.kept(log);
            let kept: Vec<String> =
                kept.map(|(replica, length, _)| format!("{}: {length}", replica.segment)).collect();
            self.lines.push(format!("{id} reports {}", kept.join(", ")));
        }
    }

    fn receive(&mut self, envelope: Envelope) {
        let is_for_disk = matches!(
            envelope.message,
            PeerMessage::Append(_) | PeerMessage::Release { .. } | PeerMessage::Ping
        );
        if envelope.to != MASTER || is_for_disk {
            return self.at(envelope.to, |server, now| server.receive(now, &envelope));
        }
        let backup = envelope.from;
        match envelope.message {
            PeerMessage::Appended(answer) => {
                self.tell(ReplicatorEvent::Answered { backup, answer });
            }
            PeerMessage::Released { replicas } => {
                self.tell(ReplicatorEvent::Released { backup, replicas });
            }
            PeerMessage::Needed { replicas } => {
                self.tell(ReplicatorEvent::Needed { backup, replicas });
            }
            PeerMessage::Pong => self.tell(ReplicatorEvent::Heard { backup }),
            other => panic!("a master gets {other:?}"),
        }
    }

    /// Advances the clock, stopping at the deadlines of the machines.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let living = self.servers.values().filter(|server| server.is_alive);
            let backups = living.filter_map(|server| server.backup.next_deadline());
            let next = backups.chain(self.master.next_deadline()).min();
            let Some(next) = next.filter(|&next| next <= end) else { break };
            self.now = next.max(self.now);
            self.lines.push(format!("at {} ms", self.now.0 / 1_000_000));
            self.tell(ReplicatorEvent::Tick);
            for id in self.servers.keys().copied().collect::<Vec<_>>() {
                self.at(id, |server, now| server.handle(now, BackupEvent::Tick));
            }
            self.deliver();
        }
        self.now = end;
    }

    fn set_rule(&mut self, words: &[&str], rule: Option<Rule>) {
        let key = (words[0].to_owned(), words.get(1).map(|word| server_id(word)));
        match rule {
            Some(rule) => self.rules.insert(key, rule),
            None => self.rules.remove(&key),
        };
    }

    fn release(&mut self, wanted: &str) {
        let kept = std::mem::take(&mut self.kept);
        let (released, kept): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|envelope| kind(&envelope.message) == wanted);
        self.kept = kept;
        self.lines.push(format!("{} released", released.len()));
        self.in_transit.extend(released);
    }

    fn show_disks(&mut self) {
        for server in self.servers.values().filter(|server| server.is_alive) {
            let stored = server.disk.iter().map(|(id, stored)| {
                let copy = Some(id.epoch.0).filter(|epoch| *epoch > 0);
                let copy = copy.map_or(String::new(), |epoch| format!(" copy {epoch}"));
                let spoiled = if stored.is_spoiled { " spoiled" } else { "" };
                format!("{}{copy}: {}{spoiled}", id.segment, stored.length)
            });
            let stored: Vec<String> = stored.collect();
            self.lines.push(format!("{} has {}", server.id, stored.join(", ")));
        }
    }

    /// Executes a script command about one server.
    fn command_of_server(&mut self, name: &str, id: ServerId) -> Result<(), Box<dyn Error>> {
        let server = self.servers.get_mut(&id);
        match (name, server) {
            ("join", None) => {
                self.start(id, true);
                self.tell_candidates();
            }
            ("inherit", Some(dead)) => {
                let disk = std::mem::take(&mut dead.disk);
                let heir = ServerId(self.servers.len() as u32 + 2);
                self.servers.insert(heir, Server::new(self.now, heir, disk));
            }
            ("full", Some(server)) => server.is_full = true,
            ("roomy", Some(server)) => server.is_full = false,
            ("spoil", Some(server)) => server.fails = true,
            ("mend", Some(server)) => server.fails = false,
            ("kill", Some(server)) => server.is_alive = false,
            ("slow", Some(_)) => self.slow.push(id),
            ("quick", Some(_)) => self.slow.retain(|slow| *slow != id),
            ("died", Some(server)) => {
                server.is_alive = false;
                self.tell(ReplicatorEvent::Died { backup: id });
                self.tell_candidates();
            }
            ("break", Some(_)) => self.tell(ReplicatorEvent::ConnectionLost { backup: id }),
            ("fence", Some(_)) => {
                self.at(id, |server, now| server.handle(now, BackupEvent::Fence { log: MASTER }));
            }
            ("recovered", Some(_)) => {
                let event = BackupEvent::Recovered { log: MASTER };
                self.at(id, |server, now| server.handle(now, event));
            }
            _ => return Err(format!("{name} {id} makes no sense").into()),
        }
        Ok(())
    }
}

impl goldenscript::Runner for World {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut words = Vec::new();
        let mut options = BTreeMap::new();
        for argument in &command.args {
            match argument {
                Argument::Positional(word) => words.push(word.as_str()),
                Argument::KeyValue(key, value) => {
                    options.insert(key.as_str(), value.as_str());
                }
                _ => return Err("unknown kind of argument".into()),
            }
        }
        let number = |place: usize| words.get(place).map_or(Ok(0), |word| word.parse::<u32>());
        let segment = words.first().map_or(SegmentId(0), |word| segment(word));
        match command.name.as_str() {
            "backups" => self.begin(&words, &options),
            "open" => {
                let random = options.get("random").map_or(Ok(0), |it| it.parse())?;
                let length = number(1)?;
                self.tell(ReplicatorEvent::Opened { segment, length, random });
            }
            "adopt" => {
                let (epoch, length) = (ReplicaEpoch(number(2)?), number(1)?);
                self.tell(ReplicatorEvent::Adopted { segment, epoch, length });
            }
            "append" => self.tell(ReplicatorEvent::Appended { segment, length: number(1)? }),
            "close" => self.tell(ReplicatorEvent::Closed { segment }),
            "registered" => {
                self.tell(ReplicatorEvent::Registered { segment });
                if options.get("synced") != Some(&"no") && !self.shows_beats {
                    self.tell(ReplicatorEvent::RegistrationSynced { segment });
                }
            }
            "sealed" => self.tell(ReplicatorEvent::Sealed { segment }),
            "leaving" => self.tell(ReplicatorEvent::Leaving { segment }),
            "dropped" => self.tell(ReplicatorEvent::Dropped { segment }),
            "candidates" => self.tell_candidates(),
            "own-disk" => {
                self.start(MASTER, options.get("promise") != Some(&"synced"));
                self.tell_candidates();
            }
            "deliver" => self.deliver(),
            "advance" => self.advance(Duration::from_millis(number(0)?.into())),
            "needed" => {
                let backups = number(0)? as usize;
                self.tell(ReplicatorEvent::WritesNeed { backups });
            }
            "replaying" => self.tell(ReplicatorEvent::Replaying { is_on: words[0] == "on" }),
            "lose" => self.set_rule(&words, Some(Rule::Lose)),
            "hold" => self.set_rule(&words, Some(Rule::Hold)),
            "copy" => self.set_rule(&words, Some(Rule::Copy)),
            "pass" => self.set_rule(&words, None),
            "release" => self.release(words[0]),
            "disks" => self.show_disks(),
            "reach" => {
                let reach = self.master.reach();
                self.lines.push(format!("a write gets {reach} backups"));
            }
            "holders" => {
                let BackupCounts { taken, synced } = self.master.backup_counts();
                self.lines.push(format!("all is on {taken} backups, synced on {synced}"));
            }
            name => self.command_of_server(name, server_id(words[0]))?,
        }
        let lines = std::mem::take(&mut self.lines);
        Ok(if lines.is_empty() { String::new() } else { lines.join("\n") + "\n" })
    }
}

/// Returns the message for a piece, without its bytes.
pub(crate) fn append(piece: &Piece) -> Append {
    Append {
        replica: piece.replica,
        kind: ReplicaKind::Data,
        segment_bytes: 8 << 20,
        from: piece.from,
        syncs_at_once: piece.is_last,
        sent: piece.sent,
        clock: UnixMillis(0),
        header: None,
    }
}

/// Returns the name of a message's kind in scripts.
fn kind(message: &PeerMessage) -> &'static str {
    match message {
        PeerMessage::Append(_) => "append",
        PeerMessage::Appended(_) => "answer",
        PeerMessage::Release { .. } => "release",
        PeerMessage::Released { .. } => "released",
        PeerMessage::Needed { .. } => "needed",
        PeerMessage::Ping => "ping",
        PeerMessage::Pong => "pong",
        other => panic!("{other:?} is no message of replication"),
    }
}

fn show(envelope: &Envelope) -> String {
    let (from, to) = (envelope.from, envelope.to);
    let text = match &envelope.message {
        PeerMessage::Append(append) => {
            let piece = Piece {
                replica: append.replica,
                from: append.from,
                to: append.from + envelope.bytes,
                synced: 0,
                is_last: append.syncs_at_once,
                sent: append.sent,
            };
            piece.to_string()
        }
        PeerMessage::Appended(answer) => appended(answer).to_string(),
        PeerMessage::Release { replicas } => format!("release {}", names(replicas)),
        PeerMessage::Released { replicas } => format!("released {}", names(replicas)),
        PeerMessage::Needed { replicas } => format!("needed? {}", names(replicas)),
        PeerMessage::Ping => "are you there?".to_owned(),
        PeerMessage::Pong => "here".to_owned(),
        other => panic!("{other:?} is no message of replication"),
    };
    format!("{from} → {to} {text}")
}

fn names(replicas: &[ReplicaId]) -> String {
    let names = replicas.iter().map(|it| match it.epoch.0 {
        0 => it.segment.to_string(),
        epoch => format!("{} copy {epoch}", it.segment),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Parses a data segment by its number, or a manifest segment by its quorum: `3.2` has three
/// replicas, of which two are needed. There is one segment per quorum; the last one begun has the
/// highest id if its quorum was not used before. `own.7` is the seventh manifest segment, on the
/// master's own disk, and `other.8` the eighth, on another server.
fn segment(word: &str) -> SegmentId {
    let number = |word: &str| word.parse().unwrap_or(0);
    match word.split_once('.') {
        Some(("own", place)) => Quorum::OWN_DISK.segment(number(place)),
        Some(("other", place)) => Quorum::of_log(1, 1).segment(number(place)),
        Some((replicas, needed)) => {
            let replicas = number(replicas);
            let (place, replicas, needed) =
                (10 - replicas, replicas as usize, number(needed) as usize);
            Quorum { replicas, needed, is_own: false }.segment(place)
        }
        None => SegmentId(number(word)),
    }
}

fn server_id(word: &str) -> ServerId {
    ServerId(word.trim_start_matches('s').parse().expect("a server is named s2, s3 ..."))
}
