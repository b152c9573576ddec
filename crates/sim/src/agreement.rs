//! Messages that change the state on which servers and coordinator agree. Deaths shortly after them
//! are the hardest ones.

use wire::control::{FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;

/// Returns whether a message between servers changes agreed state.
pub(crate) fn is_changed_by_peer(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Append(append) => {
            append.header.is_some() && (append.from == 0 || append.is_last || is_manifest(append))
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
    append.kind == wire::replica::ReplicaKind::Directory
}

/// Returns whether a message from a server to the coordinator changes agreed state.
pub(crate) fn is_changed_by_server(message: &ToCoordinator) -> bool {
    match message {
        ToCoordinator::Prepared { .. }
        | ToCoordinator::Flipped { .. }
        | ToCoordinator::Decided { .. }
        | ToCoordinator::Shrink { .. }
        | ToCoordinator::Released { .. }
        | ToCoordinator::Chain { .. }
        | ToCoordinator::Fenced { .. }
        | ToCoordinator::DirectoryRead { .. }
        | ToCoordinator::Replayed { .. }
        | ToCoordinator::Recovered { .. }
        | ToCoordinator::NotRecovered { .. }
        | ToCoordinator::Damaged { .. }
        | ToCoordinator::LogFreed { .. } => true,
        ToCoordinator::Join(_)
        | ToCoordinator::Measured { .. }
        | ToCoordinator::FlipUnanswered { .. }
        | ToCoordinator::Progress { .. }
        | ToCoordinator::Ask { .. }
        | ToCoordinator::IsNeeded { .. }
        | ToCoordinator::Pong { .. }
        | ToCoordinator::Clock(_)
        | ToCoordinator::Suspect { .. }
        | ToCoordinator::Witnessed { .. }
        | ToCoordinator::KnownMap(_)
        | ToCoordinator::Holds(_)
        | ToCoordinator::Holding { .. }
        | ToCoordinator::LoadProfile(_) => false,
    }
}

/// Returns whether a message from the coordinator to a server changes agreed state.
pub(crate) fn is_changed_by_coordinator(message: &FromCoordinator) -> bool {
    match message {
        FromCoordinator::Prepare(_)
        | FromCoordinator::Start(_)
        | FromCoordinator::Decide { .. }
        | FromCoordinator::Outcome { .. }
        | FromCoordinator::Forget { .. }
        | FromCoordinator::Finished { .. }
        | FromCoordinator::ChainNoted { .. }
        | FromCoordinator::Fence { .. }
        | FromCoordinator::ReadDirectory { .. }
        | FromCoordinator::Recover(_)
        | FromCoordinator::RecoveryConfirmed { .. }
        | FromCoordinator::FreeLog { .. } => true,
        FromCoordinator::Welcome { .. }
        | FromCoordinator::Rejected { .. }
        | FromCoordinator::Map(_)
        | FromCoordinator::Measure { .. }
        | FromCoordinator::Answer { .. }
        | FromCoordinator::Ping
        | FromCoordinator::Clock(_)
        | FromCoordinator::Witness { .. }
        | FromCoordinator::Describe
        | FromCoordinator::Mark(_)
        | FromCoordinator::Waiting { .. } => false,
    }
}
