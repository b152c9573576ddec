//! Messages in flight, and the rules of a script for them.

use protocols::migration::peer;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use types::{KeyHash, ServerId};
use wire::control::{MigrationRequest, MigrationUpdate};
use wire::peer::PeerMessage;

use super::store::Record;

/// Records in a message.
pub(crate) type Batch = Vec<(KeyHash, Record)>;

#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// A message between two servers.
    Peer { from: ServerId, to: ServerId, message: PeerMessage, batch: Batch },
    /// A message to the coordinator.
    Up { from: ServerId, message: MigrationUpdate },
    /// A message from the coordinator.
    Down { to: ServerId, message: MigrationRequest },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    Lose,
    /// Hold until released.
    Hold,
    /// Deliver, and hold a copy until released.
    Copy,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    in_transit: VecDeque<Message>,
    kept: Vec<Message>,
    rules: BTreeMap<String, Rule>,
}

impl Network {
    pub(crate) fn send(&mut self, message: Message) -> Option<Rule> {
        let rule = self.rules.get(kind(&message)).copied();
        match rule {
            None => self.in_transit.push_back(message),
            Some(Rule::Lose) => {}
            Some(Rule::Hold) => self.kept.push(message),
            Some(Rule::Copy) => {
                self.kept.push(message.clone());
                self.in_transit.push_back(message);
            }
        }
        rule
    }

    pub(crate) fn next(&mut self) -> Option<Message> {
        self.in_transit.pop_front()
    }

    pub(crate) fn rule(&mut self, kind: &str, rule: Option<Rule>) {
        match rule {
            Some(rule) => self.rules.insert(kind.to_owned(), rule),
            None => self.rules.remove(kind),
        };
    }

    /// Sends the held messages of this kind.
    pub(crate) fn release(&mut self, wanted: &str) -> usize {
        let (released, kept) =
            std::mem::take(&mut self.kept).into_iter().partition(|held| kind(held) == wanted);
        self.kept = kept;
        let released: Vec<Message> = released;
        let count = released.len();
        self.in_transit.extend(released);
        count
    }
}

/// Returns the name of a message's kind in scripts.
fn kind(message: &Message) -> &'static str {
    match message {
        Message::Peer { message, .. } => match message {
            PeerMessage::Flip(_) => "flip",
            PeerMessage::FlipAnswer { .. } => "flip-answer",
            PeerMessage::Ping => "ping",
            PeerMessage::Pong => "pong",
            PeerMessage::Pull(_) => "pull",
            PeerMessage::PullReply(_) => "pull-reply",
            PeerMessage::PriorityPull(_) => "priority-pull",
            PeerMessage::PriorityReply(_) => "priority-reply",
            _ => "other",
        },
        Message::Up { message, .. } => match message {
            MigrationUpdate::Measured { .. } => "measured",
            MigrationUpdate::Prepared { .. } => "prepared",
            MigrationUpdate::FlipUnanswered { .. } => "flip-unanswered",
            MigrationUpdate::Flipped { .. } => "flipped",
            MigrationUpdate::Decided { .. } => "decided",
            MigrationUpdate::Shrink { .. } => "shrink",
            MigrationUpdate::Progress { .. } => "progress",
            MigrationUpdate::Released { .. } => "released",
        },
        Message::Down { message, .. } => match message {
            MigrationRequest::Prepare(_) => "prepare",
            MigrationRequest::Start(_) => "start",
            MigrationRequest::Decide { .. } => "decide",
            MigrationRequest::Outcome { .. } => "outcome",
            MigrationRequest::Forget { .. } => "forget",
            MigrationRequest::Finished { .. } => "finished",
            MigrationRequest::Measure { .. } => "measure",
        },
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Peer { from, to, message, batch } => {
                write!(f, "{from} → {to} {}", peer(message))?;
                let hashes: Vec<String> = batch.iter().map(|(hash, _)| hash.to_string()).collect();
                if hashes.is_empty() { Ok(()) } else { write!(f, " [{}]", hashes.join(" ")) }
            }
            Message::Up { from, message } => write!(f, "{from} → c {message}"),
            Message::Down { to, message } => write!(f, "c → {to} {message}"),
        }
    }
}
