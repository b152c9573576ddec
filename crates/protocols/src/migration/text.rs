//! The text form of messages for golden scripts, the simulator's trace and server logs.

use crate::replication::appended;
use std::fmt;
use types::{KeyHash, TableId};
use wire::control::{FromCoordinator, Intent, ToCoordinator};
use wire::peer::{PeerMessage, PriorityAnswer};

/// A value printed by a closure, so that text that is not printed costs no allocation.
struct Printed<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Printed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

/// Formats items with commas between them, or `nothing`.
pub(super) fn list<T: fmt::Display>(items: &[T]) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| {
        if items.is_empty() {
            return f.write_str("nothing");
        }
        for (place, item) in items.iter().enumerate() {
            write!(f, "{}{item}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    })
}

pub(super) fn verdict(accepted: bool) -> &'static str {
    if accepted { "accepted" } else { "never" }
}

/// Formats a position in a range; `None` is the end.
pub(super) fn cursor(next: Option<KeyHash>) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| match next {
        Some(hash) => write!(f, "{hash}"),
        None => f.write_str("the end"),
    })
}

pub(super) fn wanted(hashes: &[(TableId, KeyHash)]) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| {
        for (place, (table, hash)) in hashes.iter().enumerate() {
            write!(f, "{}{table}/{hash}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    })
}

pub(super) fn answers(answers: &[(TableId, KeyHash, PriorityAnswer)]) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| {
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

pub(super) fn intent(intent: &Intent) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| {
        write!(
            f,
            "{} {} from {} {} to {} {}",
            intent.migration,
            intent.range,
            intent.source,
            intent.source_epoch,
            intent.target,
            intent.target_epoch
        )
    })
}

/// Formats a message between servers as one line.
pub fn peer(message: &PeerMessage) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| match message {
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

/// Formats a message to the coordinator as one line.
pub fn to_coordinator(message: &ToCoordinator) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| match message {
        ToCoordinator::Join(join) => write!(f, "join {}:{}", join.host, join.client_port),
        ToCoordinator::Measured { migration, records, bytes } => {
            write!(f, "measured {migration}: {records} records, {bytes} bytes")
        }
        ToCoordinator::Prepared { migration, refused: None } => write!(f, "prepared {migration}"),
        ToCoordinator::Prepared { migration, refused: Some(reason) } => {
            write!(f, "refused {migration}: {reason}")
        }
        ToCoordinator::FlipUnanswered { migration } => write!(f, "flip-unanswered {migration}"),
        ToCoordinator::Flipped { migration } => write!(f, "flipped {migration}"),
        ToCoordinator::Decided { migration, accepted } => {
            write!(f, "decided {migration} {}", verdict(*accepted))
        }
        ToCoordinator::Shrink { migration, remaining } => {
            write!(f, "shrink {migration} to {}", list(remaining))
        }
        ToCoordinator::Progress { migration, progress } => write!(
            f,
            "progress {migration}: {} of {} records",
            progress.records, progress.records_total
        ),
        ToCoordinator::Released { migration } => write!(f, "released {migration}"),
        ToCoordinator::Ask { request, ask } => write!(f, "ask {request}: {ask:?}"),
        ToCoordinator::Chain { number } => write!(f, "chain {number}"),
        ToCoordinator::Fenced { log, replicas, more, .. } => {
            let more = if *more { ", more to come" } else { "" };
            write!(f, "fenced {log}: {} replicas{more}", replicas.len())
        }
        ToCoordinator::DirectoryRead { log, replica, first, bodies, .. } => {
            let (segment, epoch) = replica;
            write!(f, "directory {log} {segment}.{}: {} pieces from {first}", epoch.0, bodies.len())
        }
        ToCoordinator::Replayed { dead, range, epoch } => {
            write!(f, "replayed {dead} {range} {epoch}")
        }
        ToCoordinator::Recovered { dead, range, epoch } => {
            write!(f, "recovered {dead} {range} {epoch}")
        }
        ToCoordinator::NotRecovered { dead, range, epoch, reason } => {
            write!(f, "not recovered {dead} {range} {epoch}: {reason}")
        }
        ToCoordinator::LogFreed { log } => write!(f, "freed {log}"),
        ToCoordinator::IsNeeded { log } => write!(f, "is {log} needed?"),
        ToCoordinator::Clock(reading) => write!(f, "clock {}", reading.wall.0),
        ToCoordinator::Pong { is_stalled: false } => f.write_str("pong"),
        ToCoordinator::Pong { is_stalled: true } => f.write_str("pong, but a reactor stands still"),
        ToCoordinator::KnownMap(map) => write!(f, "knows map {}", map.version),
        ToCoordinator::Holds(held) => write!(f, "holds {} tablets", held.tablets.len()),
        ToCoordinator::Suspect { server } => write!(f, "suspect {server}"),
        ToCoordinator::Damaged { log, segment, epoch } => {
            write!(f, "cannot read seg{}.{} of {log}", segment.0, epoch.0)
        }
        ToCoordinator::Witnessed { server } => write!(f, "{server} has answered"),
        ToCoordinator::Holding { range, epoch } => write!(f, "holding {range} {epoch}"),
        ToCoordinator::LoadProfile(profile) => {
            write!(f, "will of {} shares", profile.shares().len())
        }
    })
}

/// Formats a message from the coordinator as one line.
pub fn from_coordinator(message: &FromCoordinator) -> impl fmt::Display {
    Printed(move |f: &mut fmt::Formatter<'_>| match message {
        FromCoordinator::Welcome { server, cluster, .. } => write!(f, "welcome {server} {cluster}"),
        FromCoordinator::Rejected { reason, is_fenced } => {
            let how = if *is_fenced { "fenced" } else { "rejected" };
            write!(f, "{how}: {reason}")
        }
        FromCoordinator::Map(map) => write!(f, "map {}", map.version),
        FromCoordinator::Measure { migration, range } => write!(f, "measure {migration} {range}"),
        FromCoordinator::Prepare(announced) => write!(f, "prepare {}", intent(announced)),
        FromCoordinator::Start(announced) => write!(f, "start {}", intent(announced)),
        FromCoordinator::Decide { migration } => write!(f, "decide {migration}"),
        FromCoordinator::Outcome { migration, accepted } => {
            write!(f, "outcome {migration} {}", verdict(*accepted))
        }
        FromCoordinator::Forget { migration, remaining } => {
            write!(f, "keep only {migration} {}", list(remaining))
        }
        FromCoordinator::Finished { migration } => write!(f, "finished {migration}"),
        FromCoordinator::Answer { request, answer } => write!(f, "answer {request}: {answer:?}"),
        FromCoordinator::ChainNoted { number } => write!(f, "chain noted {number}"),
        FromCoordinator::Fence { log } => write!(f, "fence {log}"),
        FromCoordinator::ReadDirectory { log, replica: (segment, epoch), first } => {
            write!(f, "read directory {log} {segment}.{} from {first}", epoch.0)
        }
        FromCoordinator::Recover(part) => write!(
            f,
            "recover {} of {} {}: {} of {} segments",
            part.range,
            list(&part.logs.iter().map(|log| log.dead).collect::<Vec<_>>()),
            part.epoch,
            part.segments.len(),
            part.segments_total
        ),
        FromCoordinator::RecoveryConfirmed { range, epoch } => write!(f, "kept {range} {epoch}"),
        FromCoordinator::FreeLog { log } => write!(f, "free {log}"),
        FromCoordinator::Ping => f.write_str("ping"),
        FromCoordinator::Clock(question) => match question.reference {
            Some(reference) => write!(f, "clock? it is {}", reference.0),
            None => f.write_str("clock?"),
        },
        FromCoordinator::Witness { server } => write!(f, "is {server} there?"),
        FromCoordinator::Describe => f.write_str("describe what you hold"),
        FromCoordinator::Waiting { reason } => write!(f, "waiting: {reason}"),
        FromCoordinator::Mark(mark) => {
            write!(f, "transaction {} of term {}", mark.transaction, mark.term)
        }
    })
}
