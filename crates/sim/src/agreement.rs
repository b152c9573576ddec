//! Messages that change the state on which servers and coordinator agree. Deaths shortly after them
//! are the hardest ones.

use wire::control::{FromCoordinator, LogUpdate, MigrationRequest, MigrationUpdate, ToCoordinator};
use wire::peer::PeerMessage;

/// Returns whether a message between servers changes agreed state.
pub(crate) fn is_changed_by_peer(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Append(append) => {
            append.header.is_some()
                && (append.from == 0 || append.syncs_at_once || is_manifest(append))
        }
        PeerMessage::Flip(_)
        | PeerMessage::FlipAnswer { .. }
        | PeerMessage::Release { .. }
        | PeerMessage::Released { .. }
        | PeerMessage::RecoveryReply(_) => true,
        PeerMessage::Pull(_)
        | PeerMessage::PullReply(_)
        | PeerMessage::PriorityPull(_)
        | PeerMessage::PriorityReply(_)
        | PeerMessage::Appended(_)
        | PeerMessage::Needed { .. }
        | PeerMessage::RecoveryRead(_)
        | PeerMessage::Ping
        | PeerMessage::Pong => false,
    }
}

fn is_manifest(append: &wire::peer::Append) -> bool {
    append.kind == wire::replica::ReplicaKind::Manifest
}

/// Returns whether a message from a server to the coordinator changes agreed state.
pub(crate) fn is_changed_by_server(message: &ToCoordinator) -> bool {
    match message {
        ToCoordinator::Migration(update) => match update {
            MigrationUpdate::Prepared { .. }
            | MigrationUpdate::Flipped { .. }
            | MigrationUpdate::Decided { .. }
            | MigrationUpdate::Shrink { .. }
            | MigrationUpdate::Released { .. } => true,
            MigrationUpdate::Measured { .. }
            | MigrationUpdate::FlipUnanswered { .. }
            | MigrationUpdate::Progress { .. } => false,
        },
        ToCoordinator::Log(LogUpdate::IsNeeded { .. } | LogUpdate::LoadProfile(_)) => false,
        ToCoordinator::Log(_) | ToCoordinator::Recovery(_) => true,
        ToCoordinator::Join(_)
        | ToCoordinator::Clock(_)
        | ToCoordinator::Ask { .. }
        | ToCoordinator::Described(_)
        | ToCoordinator::Liveness(_)
        | ToCoordinator::Holding { .. } => false,
    }
}

/// Returns whether a message from the coordinator to a server changes agreed state.
pub(crate) fn is_changed_by_coordinator(message: &FromCoordinator) -> bool {
    match message {
        FromCoordinator::Migration(request) => !matches!(request, MigrationRequest::Measure { .. }),
        FromCoordinator::Log(_) | FromCoordinator::Recovery(_) => true,
        FromCoordinator::Join(_)
        | FromCoordinator::Clock(_)
        | FromCoordinator::Answer { .. }
        | FromCoordinator::Mark(_)
        | FromCoordinator::Liveness(_)
        | FromCoordinator::Map(_) => false,
    }
}
