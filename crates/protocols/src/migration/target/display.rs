//! The text form of a target, its events and its effects for scripts and traces.

use super::super::text;
use super::{State, Target, TargetEffect, TargetEvent};
use std::fmt;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target of {}: ", self.migration)?;
        match &self.state {
            State::Unknown => f.write_str("unknown"),
            State::Reserving { .. } => f.write_str("reserving"),
            State::Refused { reason } => write!(f, "refused, {reason}"),
            State::Prepared { .. } => f.write_str("prepared"),
            State::Never => f.write_str("never"),
            State::Accepting { .. } => f.write_str("accepting"),
            State::Pulling { pulling, .. } => pulling.fmt(f),
            State::Settling { .. } => f.write_str("settling"),
            State::Done { .. } => f.write_str("done"),
        }
    }
}

impl fmt::Display for TargetEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetEvent::Prepare(intent) => write!(f, "prepare {}", text::intent(intent)),
            TargetEvent::Reserved(Ok(())) => f.write_str("reserved"),
            TargetEvent::Reserved(Err(reason)) => write!(f, "no room: {reason}"),
            TargetEvent::Decide => f.write_str("decide"),
            TargetEvent::Acknowledged => f.write_str("acknowledged"),
            TargetEvent::Finished => f.write_str("finished"),
            TargetEvent::SourceDied => f.write_str("the source has died"),
            TargetEvent::Flip { from, flip } => {
                write!(f, "{from} flips {} at floor {}", flip.range, flip.version_floor)
            }
            TargetEvent::Serving => f.write_str("serving"),
            TargetEvent::PullReply { from, reply, payload } => {
                write!(f, "{from} pull-reply p{} from {}", reply.partition, reply.cursor)?;
                write!(f, " to {}", text::cursor(reply.next))?;
                match payload {
                    Some(ticket) => write!(f, " {ticket}"),
                    None => f.write_str(" empty"),
                }
            }
            TargetEvent::Replayed { partition, ticket, .. } => {
                write!(f, "replayed p{partition} {ticket}")
            }
            TargetEvent::ReplayFailed { partition, ticket } => {
                write!(f, "replay failed p{partition} {ticket}")
            }
            TargetEvent::PriorityReplayed { added } => {
                write!(f, "replayed {} priority records", added.records)
            }
            TargetEvent::CutCommitted => f.write_str("cut committed"),
            TargetEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for TargetEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetEffect::Reserve { bytes } => write!(f, "reserve {bytes} bytes"),
            TargetEffect::Unreserve => f.write_str("unreserve"),
            TargetEffect::Accept(acceptance) => write!(
                f,
                "accept {} at floor {} in {} partitions",
                acceptance.flip.range,
                acceptance.flip.version_floor,
                acceptance.partitions.len()
            ),
            TargetEffect::Suspend => f.write_str("suspend"),
            TargetEffect::Resume => f.write_str("resume"),
            TargetEffect::Send { to, message } => write!(f, "send {to} {}", text::peer(message)),
            TargetEffect::Pull { to, pull } => {
                write!(f, "send {to} pull p{} from {}", pull.partition, pull.cursor)
            }
            TargetEffect::Replay { partition, ticket } => write!(f, "replay p{partition} {ticket}"),
            TargetEffect::Discard { ticket } => write!(f, "discard {ticket}"),
            TargetEffect::Advance { partition, to } => {
                write!(f, "advance p{partition} to {}", text::cursor(*to))
            }
            TargetEffect::Cut => f.write_str("cut"),
            TargetEffect::Tell(message) => write!(f, "tell {}", text::to_coordinator(message)),
            TargetEffect::Finish => f.write_str("finish"),
        }
    }
}
