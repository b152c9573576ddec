//! The keys of a request, for the order on a connection and for the slot check.

use super::queue::Scope;
use crate::commands::{Call, Command, Keys, flag};
use crate::session::Session;
use node::Engine;
use resp::BorrowedRequest;

/// Returns whether a command names keys of several slots, on a server of a cluster.
pub(super) fn crosses_slots(command: &Command, call: &Call<'_>) -> bool {
    let names_one = matches!(
        command.keys,
        Keys::At { first, last, .. } if i16::from(first) == i16::from(last)
    );
    if names_one || !command.keys.are_named() || !call.backend.engine.node().is_cluster() {
        return false;
    }
    let mut slots = command
        .key_positions(call.args.len(), |at| call.args.get(at).copied())
        .map(|at| types::slot_of(call.args[at]));
    let first = slots.next();
    slots.any(|slot| Some(slot) != first)
}

/// Returns the keys that a request touches. An invalid request touches none.
pub(super) fn scope_of(request: BorrowedRequest<'_>, session: &Session, engine: &Engine) -> Scope {
    let Ok(command) = Command::of(request.name(), request.get(1)) else { return Scope::Nothing };
    if command.keys == Keys::None {
        return Scope::Nothing;
    }
    let reads_unnamed = command.reads_unnamed(request.len(), |at| request.get(at));
    if !command.keys.are_named() || reads_unnamed || command.has(flag::OTHER_TABLES) {
        return Scope::Everything;
    }
    let keys =
        command.key_positions(request.len(), |at| request.get(at)).filter_map(|at| request.get(at));
    Scope::Keys(session.status.table, keys.map(|key| engine.hash(key)).collect())
}
