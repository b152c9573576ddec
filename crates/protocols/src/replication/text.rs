//! The text form of replication messages for golden scripts, simulator traces and server logs.

use super::backup::BackupEffect;
use super::events::{Piece, ReplicatorEffect};
use super::placement::Misplaced;
use std::fmt;
use wire::peer::{AppendRefusal, AppendResult, Appended};
use wire::replica::{ReplicaEpoch, ReplicaId};

/// A replica within its log: `seg5` for an original, `seg5 copy 1` for a copy.
struct ShortReplica(ReplicaId);

impl fmt::Display for ShortReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ReplicaId { segment, epoch: ReplicaEpoch(0), .. } => write!(f, "{segment}"),
            ReplicaId { segment, epoch, .. } => write!(f, "{segment} copy {}", epoch.0),
        }
    }
}

struct ReplicaList<'l>(&'l [ReplicaId]);

impl fmt::Display for ReplicaList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, replica) in self.0.iter().enumerate() {
            write!(f, "{}{}", if place == 0 { "" } else { ", " }, ShortReplica(*replica))?;
        }
        Ok(())
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ShortReplica(self.replica))?;
        if self.from == self.to {
            write!(f, " at {}?", self.from)?;
        } else {
            write!(f, " {}-{}", self.from, self.to)?;
        }
        f.write_str(if self.is_last { ", the end" } else { "" })
    }
}

impl fmt::Display for ReplicatorEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplicatorEffect::Send { backup, piece } => write!(f, "append to {backup}: {piece}"),
            ReplicatorEffect::Register { segment } => write!(f, "register {segment}"),
            ReplicatorEffect::Acknowledged { segment, length } => {
                write!(f, "acknowledged {segment} to {length}")
            }
            ReplicatorEffect::Held { segment, length } => {
                write!(f, "held {segment} to {length}")
            }
            ReplicatorEffect::Synced { segment, length } => {
                write!(f, "synced {segment} to {length}")
            }
            ReplicatorEffect::Close { segment } => write!(f, "close {segment}"),
            ReplicatorEffect::Seal { segment } => write!(f, "seal {segment}"),
            ReplicatorEffect::UnderReplicated { segments } => {
                write!(f, "under-replicated: {segments}")
            }
            ReplicatorEffect::Misplaced(Misplaced { with_master, together }) => {
                write!(f, "misplaced: {with_master} with the master, {together} together")
            }
            ReplicatorEffect::Release { backup, replicas } => {
                write!(f, "release at {backup}: {}", ReplicaList(replicas))
            }
            ReplicatorEffect::Probe { backup } => write!(f, "probe {backup}"),
            ReplicatorEffect::Silent { backup } => write!(f, "{backup} is silent"),
            ReplicatorEffect::Suspect { backup } => write!(f, "suspect {backup}"),
            ReplicatorEffect::Lease { until: Some(until) } => write!(f, "lease until {until}"),
            ReplicatorEffect::Lease { until: None } => f.write_str("no lease"),
            ReplicatorEffect::Announce { segment } => write!(f, "announce {segment}"),
            ReplicatorEffect::Fenced => f.write_str("fenced"),
        }
    }
}

/// Formats an answer of a backup as one line.
pub fn appended(answer: &Appended) -> impl fmt::Display {
    AppendedText(*answer)
}

struct AppendedText(Appended);

impl fmt::Display for AppendedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", ShortReplica(self.0.replica))?;
        match self.0.result {
            AppendResult::Has { length, synced } if length == synced => write!(f, "has {length}"),
            AppendResult::Has { length, synced } => write!(f, "has {length}, synced {synced}"),
            AppendResult::Refused(AppendRefusal::Full) => f.write_str("refused: full"),
            AppendResult::Refused(AppendRefusal::Failed) => f.write_str("refused: failed"),
            AppendResult::Refused(AppendRefusal::Fenced) => f.write_str("refused: fenced"),
        }
    }
}

impl fmt::Display for BackupEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupEffect::Take { replica, is_new: true, .. } => write!(f, "begin {replica}"),
            BackupEffect::Take { replica, is_new: false, .. } => write!(f, "append to {replica}"),
            BackupEffect::Sync { replica } => write!(f, "sync {replica}"),
            BackupEffect::Measure { replica } => write!(f, "measure {replica}"),
            BackupEffect::Scrub { replica } => write!(f, "scrub {replica}"),
            BackupEffect::GiveUp { replica } => write!(f, "give up {replica}"),
            BackupEffect::Complain(answer) => write!(f, "complain {}", appended(answer)),
            BackupEffect::Free { replica } => write!(f, "free {replica}"),
            BackupEffect::Answer(answer) => write!(f, "answer {}", appended(answer)),
            BackupEffect::Released { log, replicas } => {
                write!(f, "released of {log}: {}", ReplicaList(replicas))
            }
            BackupEffect::Ask { log, replicas } => {
                write!(f, "ask {log}: {}?", ReplicaList(replicas))
            }
            BackupEffect::Report { log } => write!(f, "report log {log}"),
            BackupEffect::LogFreed { log } => write!(f, "log {log} is freed"),
        }
    }
}
