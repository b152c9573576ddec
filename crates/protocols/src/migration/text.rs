//! The text form of messages between servers, for golden scripts, the simulator's trace and logs.

use crate::replication::appended;
use std::fmt;
use types::{KeyHash, TableId};
use wire::peer::{PeerMessage, PriorityAnswer};
use wire::text::verdict;

/// Formats a position in a range; `None` is the end.
pub(super) fn cursor(next: Option<KeyHash>) -> impl fmt::Display {
    fmt::from_fn(move |f| match next {
        Some(hash) => write!(f, "{hash}"),
        None => f.write_str("the end"),
    })
}

pub(super) fn wanted(hashes: &[(TableId, KeyHash)]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        for (place, (table, hash)) in hashes.iter().enumerate() {
            write!(f, "{}{table}/{hash}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    })
}

pub(super) fn answers(answers: &[(TableId, KeyHash, PriorityAnswer)]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        for (place, (table, hash, answer)) in answers.iter().enumerate() {
            let word = match answer {
                PriorityAnswer::Records => "records",
                PriorityAnswer::Absent => "absent",
                PriorityAnswer::Gone => "gone",
            };
            write!(f, "{}{table}/{hash} {word}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    })
}

/// Formats a message between servers as one line.
pub fn peer(message: &PeerMessage) -> impl fmt::Display {
    fmt::from_fn(move |f| match message {
        PeerMessage::Flip(flip) => write!(
            f,
            "flip {} {} to {}, floor {}, {} records",
            flip.migration,
            flip.range,
            flip.target_epoch,
            flip.version_floor,
            flip.records.total()
        ),
        PeerMessage::FlipAnswer { migration, accepted } => {
            write!(f, "flip-answer {migration} {}", verdict(*accepted))
        }
        PeerMessage::Pull(pull) => {
            write!(f, "pull {} p{} from {}", pull.migration, pull.partition, pull.cursor)
        }
        PeerMessage::PullReply(reply) => write!(
            f,
            "pull-reply {} p{} from {} to {}",
            reply.migration,
            reply.partition,
            reply.cursor,
            cursor(reply.next)
        ),
        PeerMessage::PriorityPull(pull) => write!(
            f,
            "priority-pull {} request {}: {}",
            pull.migration,
            pull.request,
            wanted(&pull.hashes)
        ),
        PeerMessage::PriorityReply(reply) => write!(
            f,
            "priority-reply {} request {}: {}",
            reply.migration,
            reply.request,
            answers(&reply.answers)
        ),
        PeerMessage::Append(append) => {
            write!(f, "append {} from {}", append.replica, append.from)
        }
        PeerMessage::Appended(answer) => write!(f, "appended {}", appended(answer)),
        PeerMessage::Release { replicas } => write!(f, "release {} replicas", replicas.len()),
        PeerMessage::Released { replicas } => write!(f, "released {} replicas", replicas.len()),
        PeerMessage::Needed { replicas } => write!(f, "needed, {} replicas?", replicas.len()),
        PeerMessage::RecoveryRead(read) => {
            write!(f, "recovery-read {} {} from {}", read.replica, read.range, read.from)
        }
        PeerMessage::RecoveryReply(reply) => {
            write!(f, "recovery-reply {} {} from {}", reply.replica, reply.range, reply.from)
        }
        PeerMessage::Ping => write!(f, "ping"),
        PeerMessage::Pong => write!(f, "pong"),
    })
}
