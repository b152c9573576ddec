//! Requests of a web browser, which are refused by closing the connection.
//!
//! A page can make a browser send an HTTP request to any port of the browser's own machine, with a
//! body that the page chooses. Read as inline requests, the lines of the header are unknown commands
//! and the lines of the body are executed. Every such request has a line that begins with `POST` or
//! `Host:`, so a connection ends there, as in Redis since 3.2.7.

use super::client::Turn;
use crate::session::Session;

/// Returns whether a request of this name is a line of an HTTP request.
pub(super) fn is_request(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Ends the connection, and writes a warning into the log: one a minute, however many requests there
/// are.
#[cold]
pub(super) fn refuse(session: &mut Session, turn: &Turn<'_>) {
    session.closing = true;
    if turn.engine.node().operators.attacks.is_due(turn.now) {
        tracing::warn!(
            client = session.facts.peer,
            "possible security attack: a client sends POST or Host:, as a browser does that a web \
             page uses to reach this server (cross-protocol scripting). Its connection is closed"
        );
    }
}
