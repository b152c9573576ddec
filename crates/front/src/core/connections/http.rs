//! HTTP requests, which are refused by closing the connection.
//!
//! A web page can make a browser send an HTTP request to any port of its own machine, with a body
//! chosen by the page. Parsed as inline requests, the header lines are unknown commands and the
//! body lines are executed. Every such request has a line that begins with `POST` or `Host:`, so
//! the server closes the connection there, as Redis does since 3.2.7.

use super::turn::ConnectionTurn;
use crate::session::Session;

/// Returns whether a request of this name is a line of an HTTP request.
pub(super) fn is_request(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Closes the connection and logs a warning, at most once per minute.
#[cold]
pub(super) fn refuse(session: &mut Session, turn: &ConnectionTurn<'_>) {
    session.closing = true;
    if turn.backend.operators.attacks.is_due(turn.now) {
        tracing::warn!(
            client = session.facts.peer,
            "possible security attack: client sent POST or Host: (cross-protocol scripting by a \
             web page), closing connection"
        );
    }
}
