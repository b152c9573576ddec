//! Order among clients: who is refused, sent away or paused, and who watches.
//!
//! Whatever looks at all clients does so in bounded steps, in the order of their numbers, and only
//! if some setting asks for it.

use super::{Connections, Core};
use crate::Configuration;
use crate::engine::Node;
use runtime::ConnectionId;
use std::net::SocketAddr;
use std::time::Duration;
use types::Instant;

/// Clients that one look covers, and the pause between two looks, and between two rounds.
const LOOK_CLIENTS: usize = 256;
const LOOK_PAUSE: Duration = Duration::from_millis(1);
const ROUND_PAUSE: Duration = Duration::from_millis(500);

/// Bytes that a connection with `MONITOR` may leave unsent, whatever the limits: nobody asks it
/// whether it can take more.
const MONITOR_BACKLOG_MAX: usize = 32 << 20;

/// Connections of one reactor about which there is something to remember.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Those that are not read since all requests are paused.
    pub(super) paused: Vec<ConnectionId>,
    /// Those that said `MONITOR`.
    watchers: Vec<ConnectionId>,
    /// When clients are looked at next, and after which number.
    look: Option<(Instant, u64)>,
}

impl Order {
    /// A connection is shown all requests from now on.
    pub(super) fn watch(&mut self, connection: ConnectionId, node: &Node) {
        if !self.watchers.contains(&connection) {
            self.watchers.push(connection);
            node.operators.monitors.add(connection.reactor());
        }
    }

    /// A connection is gone, or is an ordinary one again.
    pub(super) fn forget(&mut self, connection: ConnectionId, node: &Node) {
        let before = self.watchers.len();
        self.watchers.retain(|watcher| *watcher != connection);
        if self.watchers.len() < before {
            node.operators.monitors.remove(connection.reactor());
        }
        self.paused.retain(|paused| *paused != connection);
    }
}

/// Why a client that has just connected is sent away.
pub(super) fn refusal(
    configuration: &Configuration,
    node: &Node,
    peer: &str,
) -> Option<&'static str> {
    if configuration.protected_mode && !configuration.needs_password() {
        let is_elsewhere = peer.parse().is_ok_and(|peer: SocketAddr| !is_loopback(peer));
        if is_elsewhere {
            return Some(DENIED);
        }
    }
    let is_full = node.operators.clients.count() >= u64::from(configuration.maxclients);
    is_full.then_some("-ERR max number of clients reached\r\n")
}

fn is_loopback(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

const DENIED: &str = "-DENIED Running in protected mode because protected mode is enabled and no \
     password is set for the default user. In this mode connections are only accepted from the \
     loopback interface. If you want to connect from external computers, you may adopt one of the \
     following solutions: 1) Disable protected mode by sending the command 'CONFIG SET \
     protected-mode no' from the loopback interface, by connecting from the same host the server \
     is running; make sure that the server is not reachable from the internet if you do so. Use \
     CONFIG REWRITE to make this change permanent. 2) Set 'protected-mode = false' in the file of \
     settings, or start the server with --protected-mode no, and start it again. 3) Set a password \
     for the default user, by requirepass.\r\n";

impl Core {
    /// What other reactors, or time, have brought about among the clients of this one.
    pub(super) fn keep_order(&mut self, io: &mut impl Connections) {
        for connection in self.engine.node().operators.clients.take_killed(self.reactor) {
            io.close(connection);
        }
        for (connection, how) in self.engine.node().operators.clients.take_unblocked(self.reactor) {
            self.with_client(connection, io, |client, turn, out| client.unblock(how, turn, out));
        }
        self.end_pause(io);
        if !self.order.watchers.is_empty() {
            self.show_requests(io);
        }
    }

    /// Goes on with what a pause has held, if it is over.
    fn end_pause(&mut self, io: &mut impl Connections) {
        let pause = &self.engine.node().operators.pause;
        let now = pause.at(self.now);
        if !self.order.paused.is_empty() && now != Some(crate::operators::pause::Paused::All) {
            for connection in std::mem::take(&mut self.order.paused) {
                io.resume_reading(connection);
            }
        }
        if now.is_none() && self.waits.has_paused() {
            for ticket in self.waits.take_paused() {
                self.retry(ticket, None, io);
            }
        }
    }

    fn show_requests(&mut self, io: &mut impl Connections) {
        let lines = self.engine.node().operators.monitors.take(self.reactor);
        for watcher in self.order.watchers.clone() {
            // `RESET` has made it an ordinary client again.
            if !self.clients.get(&watcher).is_some_and(|client| client.is_monitor()) {
                self.order.forget(watcher, self.engine.node());
                continue;
            }
            io.output(watcher).extend_from_slice(&lines);
            if io.backlog(watcher) > MONITOR_BACKLOG_MAX {
                self.engine.counts.overflowed.add(1);
                io.close(watcher);
            }
            self.limit_output(watcher, io);
        }
    }

    /// Sends a client away that leaves more unsent than it may.
    #[inline]
    pub(super) fn limit_output(&mut self, connection: ConnectionId, io: &mut impl Connections) {
        let limit = self.engine.configuration.output_limit;
        if limit.hard == 0 && limit.soft == 0 {
            return;
        }
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let backlog = io.backlog(connection);
        let is_soft = limit.soft > 0 && backlog > limit.soft;
        let since = is_soft.then(|| client.over_limit_since.unwrap_or(self.now));
        client.over_limit_since = since;
        let is_too_long = since.is_some_and(|since| self.now.since(since) >= limit.soft_time);
        if (limit.hard > 0 && backlog > limit.hard) || is_too_long {
            self.engine.counts.overflowed.add(1);
            tracing::warn!(client = client.id(), backlog, "a client does not take its replies");
            io.close(connection);
        }
    }

    /// When [`Core::look_at_clients`] or the end of a pause is due.
    pub(super) fn order_deadline(&self) -> Option<Instant> {
        let configuration = &self.engine.configuration;
        let is_needed = !configuration.timeout.is_zero() || configuration.output_limit.soft > 0;
        let look = match self.order.look {
            Some((at, _)) => at,
            None => self.now + ROUND_PAUSE,
        };
        let look = (is_needed && !self.clients.is_empty()).then_some(look);
        let is_paused = !self.order.paused.is_empty() || self.waits.has_paused();
        let pause = is_paused.then(|| self.engine.node().operators.pause.next_end(self.now));
        [look, pause.flatten()].into_iter().flatten().min()
    }

    /// Looks at some clients: who is idle, or slow to take replies, is sent away.
    pub(super) fn look_at_clients(&mut self, io: &mut impl Connections) {
        self.end_pause(io);
        let timeout = self.engine.configuration.timeout;
        if timeout.is_zero() && self.engine.configuration.output_limit.soft == 0 {
            self.order.look = None;
            return;
        }
        let (at, after) = self.order.look.unwrap_or((self.now, 0));
        if self.now < at {
            return;
        }
        let clients = &self.engine.node().operators.clients;
        let looked_at = clients.after(self.reactor, after, LOOK_CLIENTS);
        self.order.look = Some(match looked_at.last() {
            Some(last) if looked_at.len() == LOOK_CLIENTS => (self.now + LOOK_PAUSE, last.id),
            Some(_) | None => (self.now + ROUND_PAUSE, 0),
        });
        for facts in looked_at {
            self.limit_output(facts.connection, io);
            let is_idle = !timeout.is_zero() && self.now.since(facts.last_request()) > timeout;
            let client = self.clients.get(&facts.connection);
            if is_idle && client.is_some_and(|client| !client.is_busy()) {
                self.engine.counts.timed_out.add(1);
                io.close(facts.connection);
            }
        }
    }
}
