//! Client limits: refusing, closing and pausing connections, and feeding `MONITOR`.
//!
//! Any pass over all clients runs in bounded steps, in the order of client numbers, and only if a
//! setting requires it.

use super::{Connections, Core};
use crate::operators::clients::ClientRegistry;
use crate::operators::monitor::Monitors;
use settings::{ClientSettings, ServerConfiguration};
use std::net::SocketAddr;
use std::time::Duration;
use types::ConnectionId;
use types::Instant;

/// Clients examined per step, the pause between two steps, and the pause between two passes.
const SCAN_CLIENTS: usize = 256;
const SCAN_PAUSE: Duration = Duration::from_millis(1);
const SCAN_ROUND_PAUSE: Duration = Duration::from_millis(500);

/// Most unsent bytes of a `MONITOR` connection, whatever the configured limits are. Its output is
/// produced without regard to its backlog, so this is its only bound.
const MONITOR_BACKLOG_MAX: usize = 32 << 20;

/// The connections of one reactor that need attention later.
#[derive(Debug, Default)]
pub(super) struct ClientLimits {
    /// Connections that are not read because all requests are paused (`CLIENT PAUSE`).
    pub(super) paused: Vec<ConnectionId>,
    /// Connections in `MONITOR` mode.
    watchers: Vec<ConnectionId>,
    /// Time of the next step over all clients, and the number of the client before it.
    scan: Option<(Instant, u64)>,
}

impl ClientLimits {
    /// Puts a connection into `MONITOR` mode, if it is not in it already.
    pub(super) fn watch(&mut self, connection: ConnectionId, monitors: &Monitors) {
        if !self.watchers.contains(&connection) {
            self.watchers.push(connection);
            monitors.add(connection.reactor());
        }
    }

    /// Drops a connection that was closed, or that has left `MONITOR` mode.
    pub(super) fn remove(&mut self, connection: ConnectionId, monitors: &Monitors) {
        let before = self.watchers.len();
        self.watchers.retain(|watcher| *watcher != connection);
        if self.watchers.len() < before {
            monitors.remove(connection.reactor());
        }
        self.paused.retain(|paused| *paused != connection);
    }
}

/// Returns the error for a newly connected client that must be refused, if any.
pub(super) fn refusal(
    configuration: &ServerConfiguration,
    clients: &ClientRegistry,
    peer: &str,
) -> Option<&'static str> {
    if configuration.access.protected_mode && !configuration.access.needs_password() {
        let is_elsewhere = peer.parse().is_ok_and(|peer: SocketAddr| !is_loopback(peer));
        if is_elsewhere {
            return Some(DENIED);
        }
    }
    let is_full = clients.count() >= u64::from(configuration.clients.count_max);
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
    /// Applies requests of other reactors to this reactor's clients.
    pub(super) fn apply_client_limits(&mut self, io: &mut impl Connections) {
        for connection in self.backend.operators.clients.take_killed(self.reactor) {
            io.close(connection);
        }
        for (connection, how) in self.backend.operators.clients.take_unblocked(self.reactor) {
            self.with_client(connection, io, |client, turn, out| client.unblock(how, turn, out));
        }
        if !self.client_limits.watchers.is_empty() {
            self.show_requests(io);
        }
    }

    /// Resumes the connections that a pause has stopped, and schedules its requests, if it is over.
    pub(super) fn end_pause(&mut self, io: &mut impl Connections) {
        let pause = &self.backend.operators.pause;
        let now = pause.at(self.now);
        if !self.client_limits.paused.is_empty()
            && now != Some(crate::operators::pause::Paused::All)
        {
            for connection in std::mem::take(&mut self.client_limits.paused) {
                io.resume_reading(connection);
            }
        }
        if now.is_none() && self.waits.has_paused() {
            self.waits.wake_paused();
        }
    }

    fn show_requests(&mut self, io: &mut impl Connections) {
        let lines = self.backend.operators.monitors.take(self.reactor);
        for watcher in self.client_limits.watchers.clone() {
            // `RESET` has ended `MONITOR` mode.
            if !self.clients.get(&watcher).is_some_and(|client| client.is_monitor()) {
                self.client_limits.remove(watcher, &self.backend.operators.monitors);
                continue;
            }
            io.output(watcher).extend_from_slice(&lines);
            if io.backlog(watcher) > MONITOR_BACKLOG_MAX {
                self.backend.counts.overflowed.add(1);
                io.close(watcher);
            }
            self.limit_output(watcher, io);
        }
    }

    /// Closes a client whose unsent output exceeds `client-output-buffer-limit`.
    #[inline]
    pub(super) fn limit_output(&mut self, connection: ConnectionId, io: &mut impl Connections) {
        let limit = self.backend.configuration.clients.output_limit;
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
            self.backend.counts.overflowed.add(1);
            tracing::warn!(
                client = client.id(),
                backlog,
                "client output buffer limit exceeded, closing connection"
            );
            io.close(connection);
        }
    }

    /// Returns when [`Core::scan_clients`] or the end of a pause is due.
    pub(super) fn client_limits_deadline(&self) -> Option<Instant> {
        let configuration = &self.backend.configuration;
        let ClientSettings { timeout, output_limit, .. } = &configuration.clients;
        let is_needed = !timeout.is_zero() || output_limit.soft > 0;
        let scan = match self.client_limits.scan {
            Some((at, _)) => at,
            None => self.now + SCAN_ROUND_PAUSE,
        };
        let scan = (is_needed && !self.clients.is_empty()).then_some(scan);
        let is_paused = !self.client_limits.paused.is_empty() || self.waits.has_paused();
        let pause = is_paused.then(|| self.backend.operators.pause.next_end(self.now));
        [scan, pause.flatten()].into_iter().flatten().min()
    }

    /// Examines a bounded number of clients, and closes those that are idle or read too slowly.
    pub(super) fn scan_clients(&mut self, io: &mut impl Connections) {
        self.end_pause(io);
        let ClientSettings { timeout, output_limit, .. } = self.backend.configuration.clients;
        if timeout.is_zero() && output_limit.soft == 0 {
            self.client_limits.scan = None;
            return;
        }
        let (at, after) = self.client_limits.scan.unwrap_or((self.now, 0));
        if self.now < at {
            return;
        }
        let clients = &self.backend.operators.clients;
        let examined = clients.after(self.reactor, after, SCAN_CLIENTS);
        self.client_limits.scan = Some(match examined.last() {
            Some(last) if examined.len() == SCAN_CLIENTS => (self.now + SCAN_PAUSE, last.id),
            Some(_) | None => (self.now + SCAN_ROUND_PAUSE, 0),
        });
        for facts in examined {
            self.limit_output(facts.connection, io);
            let is_idle = !timeout.is_zero() && self.now.since(facts.last_request()) > timeout;
            let client = self.clients.get(&facts.connection);
            if is_idle && client.is_some_and(|client| !client.is_busy()) {
                self.backend.counts.timed_out.add(1);
                io.close(facts.connection);
            }
        }
    }
}
