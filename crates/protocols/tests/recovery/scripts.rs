//! Golden scripts of recovery: one recovery master of a part of s1's ranges, and backups.
//!
//! Nothing happens by itself: `deliver` runs messages and replays until nothing is left, and
//! `advance` moves the clock. The script plays the coordinator: `list` with segments such as `"1
//! 300 s2 s3"` (300 bytes, at these servers) or `"2 open s3/200"` (200 bytes are known there),
//! `ours`, `not-ours`, `died`.
//!
//! Run with `UPDATE_GOLDENFILES=1` to record the current output, then read the difference.

use super::backups::{Backups, Entries, Replica, part};
use goldenscript::{Argument, Command, Context};
use protocols::recovery::{
    PartRefusal, PartitionName, RecoveryMaster, RecoveryMasterEffect, RecoveryMasterEvent,
    ReplayFailure,
};
use protocols::{Machine, Outbox, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::time::Duration;
use types::{Instant, SegmentId, ServerId};
use wire::control::{RecoverySegment, ReplicaPlace};
use wire::manifest::SegmentContent;
use wire::peer::{RecoveryRead, RecoveryReply};
use wire::replica::ReplicaEpoch;

#[test]
fn scripts_of_recovery() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/recovery/scripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        goldenscript::run(&mut World::new(), path).unwrap();
    }
}

/// A message in flight between the master and a backup.
#[derive(Clone, Debug)]
enum Message {
    Read(RecoveryRead),
    Reply(RecoveryReply, Option<Entries>),
}

struct World {
    now: Instant,
    master: RecoveryMaster,
    backups: Backups,
    in_transit: VecDeque<(ServerId, Message)>,
    held: Vec<(ServerId, Message)>,
    payloads: BTreeMap<Ticket, Entries>,
    tickets: u64,
    replays: VecDeque<Ticket>,
    /// Servers to which messages get lost.
    lost: BTreeSet<ServerId>,
    /// Servers with answers that are held until released.
    holding: BTreeSet<ServerId>,
    /// Set if replays wait for the command `replay`.
    is_slow: bool,
    is_full: bool,
    refusal: Option<PartRefusal>,
    lines: Vec<String>,
}

impl World {
    fn new() -> World {
        World {
            now: Instant(0),
            master: RecoveryMaster::new(PartitionName::of(&part(0, 0, Vec::new())).unwrap()),
            backups: Backups::default(),
            in_transit: VecDeque::new(),
            held: Vec::new(),
            payloads: BTreeMap::new(),
            tickets: 0,
            replays: VecDeque::new(),
            lost: BTreeSet::new(),
            holding: BTreeSet::new(),
            is_slow: false,
            is_full: false,
            refusal: None,
            lines: Vec::new(),
        }
    }

    fn tell(&mut self, event: RecoveryMasterEvent) {
        let mut out = Outbox::new();
        self.master.handle(self.now, event, &mut out);
        while let Some(effect) = out.take_first() {
            self.carry_out(effect, &mut out);
        }
    }

    fn carry_out(&mut self, effect: RecoveryMasterEffect, more: &mut Outbox<RecoveryMasterEffect>) {
        let mut line = effect.to_string();
        match effect {
            RecoveryMasterEffect::Begin => {
                let result = self.refusal.take().map_or(Ok(()), Err);
                self.master.handle(self.now, RecoveryMasterEvent::Begun(result), more);
            }
            RecoveryMasterEffect::Read { backup, .. } if self.lost.contains(&backup) => {
                line.push_str(" (lost)");
            }
            RecoveryMasterEffect::Read { backup, read } => {
                self.in_transit.push_back((backup, Message::Read(read)));
            }
            RecoveryMasterEffect::Replay { ticket, .. } => self.replays.push_back(ticket),
            RecoveryMasterEffect::Discard { ticket } => {
                self.payloads.remove(&ticket);
            }
            RecoveryMasterEffect::Secure { .. }
            | RecoveryMasterEffect::Tell(_)
            | RecoveryMasterEffect::Finish
            | RecoveryMasterEffect::Abandon => {}
        }
        self.lines.push(line);
    }

    fn deliver(&mut self) {
        loop {
            if let Some((server, message)) = self.in_transit.pop_front() {
                self.receive(server, message);
            } else if !self.is_slow && !self.replays.is_empty() {
                self.replay(None);
            } else {
                return;
            }
        }
    }

    fn receive(&mut self, server: ServerId, message: Message) {
        match message {
            Message::Read(read) => {
                let (reply, entries) = self.backups.answer(server, &read);
                let reply = (server, Message::Reply(reply, entries));
                if self.holding.contains(&server) {
                    self.held.push(reply);
                } else {
                    self.in_transit.push_back(reply);
                }
            }
            Message::Reply(reply, entries) => {
                let payload = entries.map(|entries| self.keep(entries));
                let event = RecoveryMasterEvent::Replied { from: server, reply, payload };
                self.lines.push(event.to_string());
                self.tell(event);
            }
        }
    }

    fn keep(&mut self, entries: Entries) -> Ticket {
        self.tickets += 1;
        self.payloads.insert(Ticket(self.tickets), entries);
        Ticket(self.tickets)
    }

    /// Performs this replay, or the first waiting one.
    fn replay(&mut self, which: Option<Ticket>) {
        let place = self.replays.iter().position(|it| which.is_none_or(|which| *it == which));
        let Some(ticket) = place.and_then(|place| self.replays.remove(place)) else { return };
        let is_right = self.payloads[&ticket].is_right;
        let event = if std::mem::take(&mut self.is_full) {
            RecoveryMasterEvent::ReplayFailed { ticket, why: ReplayFailure::OutOfMemory }
        } else if !is_right {
            RecoveryMasterEvent::ReplayFailed { ticket, why: ReplayFailure::Corrupt }
        } else {
            self.payloads.remove(&ticket);
            RecoveryMasterEvent::Replayed { ticket }
        };
        self.lines.push(event.to_string());
        self.tell(event);
    }

    /// Advances the clock, stopping at the deadlines of the machine.
    fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.master.next_deadline().filter(|&next| next <= end) {
            self.now = next.max(self.now);
            self.lines.push(format!("at {} ms", self.now.0 / 1_000_000));
            self.tell(RecoveryMasterEvent::Tick);
            self.deliver();
        }
        self.now = end;
    }

    fn store(&mut self, words: &[&str], options: &BTreeMap<&str, &str>) {
        let replica = Replica {
            length: number(words[2]),
            crc: options.get("crc").map_or(7, |crc| number(crc)),
            is_right: !options.contains_key("damaged"),
            has_entries: !options.contains_key("empty"),
        };
        let name = (server(words[0]), segment(words[1]), ReplicaEpoch(0));
        self.backups.replicas.insert(name, replica);
    }

    fn list(&mut self, words: &[&str], options: &BTreeMap<&str, &str>) {
        let segments: Vec<_> = words[1..].iter().map(|text| named(text)).collect();
        let total = options.get("total").map_or(segments.len(), |it| number(it) as usize);
        self.tell(RecoveryMasterEvent::Part(Box::new(part(
            number(words[0]).into(),
            total,
            segments,
        ))));
    }
}

/// Parses a segment of a list.
fn named(text: &str) -> RecoverySegment {
    let mut words = text.split(' ');
    let id = segment(words.next().expect("a segment"));
    let length = words.next().filter(|word| *word != "open").map(number);
    let places = words.map(|word| {
        let (who, known) = word.split_once('/').unwrap_or((word, "0"));
        let length = length.unwrap_or_else(|| number(known));
        ReplicaPlace { backup: server(who), epoch: ReplicaEpoch(0), length }
    });
    let content = length.map(|length| SegmentContent { length, crc: 7 });
    let places: Vec<ReplicaPlace> = places.collect();
    let shortest = places.iter().map(|place| place.length).min().unwrap_or(0);
    let common_prefix = content.map_or(shortest, |content| content.length);
    RecoverySegment { log: super::backups::DEAD, segment: id, content, places, common_prefix }
}

fn number(word: &str) -> u32 {
    word.parse().expect("a number")
}

fn segment(word: &str) -> SegmentId {
    SegmentId(number(word).into())
}

fn server(word: &str) -> ServerId {
    ServerId(number(word.strip_prefix('s').expect("a server")))
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
        match command.name.as_str() {
            "replica" => self.store(&words, &options),
            "list" => self.list(&words, &options),
            "deliver" => self.deliver(),
            "advance" => self.advance(Duration::from_millis(number(words[0]).into())),
            "lose" => drop(self.lost.insert(server(words[0]))),
            "hold" => drop(self.holding.insert(server(words[0]))),
            "pass" => {
                self.lost.remove(&server(words[0]));
                self.holding.remove(&server(words[0]));
            }
            "release" => self.in_transit.extend(std::mem::take(&mut self.held)),
            "slow" => self.is_slow = true,
            "quick" => self.is_slow = false,
            "replay" => self.replay(words.first().map(|word| Ticket(number(word).into()))),
            "full" => self.is_full = true,
            "refuse" => self.refusal = Some(PartRefusal::Other(words[0].to_owned())),
            "secured" => self.tell(RecoveryMasterEvent::Secured),
            "kept" => self.tell(RecoveryMasterEvent::Kept),
            "ours" => self.tell(RecoveryMasterEvent::Decided { is_ours: true }),
            "not-ours" => self.tell(RecoveryMasterEvent::Decided { is_ours: false }),
            "died" => self.tell(RecoveryMasterEvent::Died { backup: server(words[0]) }),
            "break" => self.tell(RecoveryMasterEvent::ConnectionLost { backup: server(words[0]) }),
            "state" => self.lines.push(self.master.to_string()),
            name => return Err(format!("{name} makes no sense").into()),
        }
        let lines = std::mem::take(&mut self.lines);
        Ok(if lines.is_empty() { String::new() } else { lines.join("\n") + "\n" })
    }
}
