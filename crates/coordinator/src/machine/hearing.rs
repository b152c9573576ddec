//! Failure detector: pings the servers that have a replicated log and detects silent ones.
//!
//! A closed connection reveals a crashed process. It reveals neither a hung process, nor a lost
//! machine, nor a network partition. The principle: silence counts against a server only for the
//! time in which the coordinator was listening and heard other servers.
//!
//! 1. *The coordinator was paused.* Pings have fixed send times. If a ping is late, the coordinator
//!    was not listening either, and every server's deadline moves by that delay. After a pause,
//!    messages that arrived meanwhile are therefore read before any server is judged.
//! 2. *The coordinator is cut off.* While no heartbeat arrives, no server is judged. When
//!    heartbeats return, that time does not count against the silent servers.
//! 3. *The coordinator is cut off from most servers*, for instance because it shares a machine with
//!    one. If fewer than half of the connected servers are heard, the others get `absence_max`.
//! 4. *The coordinator was away for long.* Connections have broken and return one after the other;
//!    TCP retransmits data lost in a cut after a pause about as long as the cut. Every server
//!    therefore gets as much time again, up to `absence_max`. This includes servers that are heard
//!    and then lose their connection.
//!
//! A master's report of an unresponsive backup is independent evidence. It triggers a ping at once,
//! and half of the usual timeout then suffices.
//!
//! The thread that answers pings is not a reactor, so each answer also reports whether the reactors
//! make progress. A reactor may spend some seconds on one command or a disk, but not more.

use super::{Coordinator, Presence};
use crate::ledger::Stopped;
use crate::outbox::{Moment, Outbox};
use crate::records::Server;
use crate::store::MetaStore;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Instant, ServerId};
use wire::control::FromCoordinator;

/// Pings within `silence_max`: four may be lost or late.
const PINGS: u32 = 5;

/// The failure detector's record of the pinged servers.
#[derive(Debug)]
pub(super) struct Hearing {
    silence_max: Duration,
    absence_max: Duration,
    /// Heartbeat state of each connected server with a replicated log.
    pulses: BTreeMap<ServerId, Pulse>,
    /// Time of the last heartbeat of any server.
    last: Instant,
    ping_at: Instant,
    /// Until this time broken connections may be a consequence of this coordinator's own absence.
    lenient_until: Instant,
}

#[derive(Debug)]
struct Pulse {
    /// Time of the last heartbeat. May lie in the future: a grace period after a coordinator pause.
    heard: Instant,
    /// Time of the ping sent because of a suspicion; reset by the next heartbeat.
    asked: Option<Instant>,
    /// Time since which the server has reported a stalled reactor.
    stalled: Option<Instant>,
}

impl Hearing {
    pub(super) fn new(silence_max: Duration, absence_max: Duration) -> Hearing {
        let start = Instant::default();
        let pulses = BTreeMap::new();
        Hearing {
            silence_max,
            absence_max,
            pulses,
            last: start,
            ping_at: start,
            lenient_until: start,
        }
    }

    fn pause(&self) -> Duration {
        self.silence_max / PINGS
    }

    /// Returns the time at which pings are due, if any server is pinged.
    pub(super) fn next_ping(&self) -> Option<Instant> {
        (!self.pulses.is_empty()).then_some(self.ping_at)
    }

    pub(super) fn is_ping_due(&self, now: Instant) -> bool {
        self.next_ping().is_some_and(|at| at <= now)
    }

    /// Returns when a connected server has been silent for too long. `half_heard` is the time by
    /// which half of the connected servers were last heard.
    pub(super) fn silent_at(&self, server: ServerId, half_heard: Instant) -> Option<Instant> {
        let Pulse { heard, asked, .. } = self.pulses.get(&server)?;
        if half_heard < *heard + 2 * self.pause() {
            return Some(*heard + self.absence_max);
        }
        let of_itself = *heard + self.silence_max;
        Some(asked.map_or(of_itself, |asked| of_itself.min(asked + self.silence_max / 2)))
    }

    /// Returns whether the server has answered the last ping, or the one before while the last is
    /// possibly still in flight.
    pub(super) fn is_heard(&self, now: Instant, server: ServerId) -> bool {
        let pulse = self.pulses.get(&server);
        pulse.is_some_and(|pulse| now.since(pulse.heard) < self.pause() * 3 / 2)
    }

    /// Returns the latest time since which half of the connected servers were heard.
    pub(super) fn half_heard(&self) -> Instant {
        let mut heard: Vec<Instant> = self.pulses.values().map(|pulse| pulse.heard).collect();
        if heard.is_empty() {
            return Instant::default();
        }
        // From this index on the sorted times belong to at least half of the servers.
        let at = heard.len() / 2;
        *heard.select_nth_unstable(at).1
    }

    /// Returns the current silence of each pinged server.
    pub(super) fn silences(&self, now: Instant) -> impl Iterator<Item = (ServerId, Duration)> {
        self.pulses.iter().map(move |(server, pulse)| (*server, now.since(pulse.heard)))
    }

    /// Returns whether any heartbeat arrived recently. If none did, the coordinator itself is
    /// probably partitioned and must not declare deaths.
    pub(super) fn may_judge(&self, at: Instant) -> bool {
        self.pulses.is_empty() || at <= self.deaf_at()
    }

    /// Returns the time after which the absence of any heartbeat points to the coordinator itself.
    fn deaf_at(&self) -> Instant {
        self.last + 2 * self.pause()
    }

    /// Removes a server that lost its connection. Returns the time from which its absence counts.
    pub(super) fn miss(&mut self, now: Instant, server: ServerId) -> Instant {
        self.pulses.remove(&server);
        now.max(self.lenient_until)
    }
}

impl<S: MetaStore> Coordinator<S> {
    /// Starts monitoring a server that has joined.
    pub(super) fn listen_to(&mut self, now: Instant, server: ServerId) {
        if !self.ledger.servers().get(&server).is_some_and(Server::keeps_log) {
            return;
        }
        if self.hearing.pulses.is_empty() {
            self.hearing.last = now;
            self.hearing.ping_at = now + self.hearing.pause();
        }
        self.witnessed.remove(&server);
        let pulse = Pulse { heard: now, asked: None, stalled: None };
        self.hearing.pulses.insert(server, pulse);
        self.note_heard(now, server);
    }

    /// Records a sign of life of a server: any message.
    pub(super) fn note_heard(&mut self, now: Instant, server: ServerId) {
        if !self.hearing.pulses.contains_key(&server) {
            return;
        }
        if now > self.hearing.deaf_at() {
            tracing::warn!("no server was heard for a while, extending deadlines");
            self.was_away(now, now.since(self.hearing.last));
        }
        self.hearing.last = now;
        if let Some(pulse) = self.hearing.pulses.get_mut(&server) {
            (pulse.heard, pulse.asked) = (now, None);
        }
    }

    /// Detects by an overdue ping that this coordinator was possibly paused until now.
    pub(super) fn note_pause(&mut self, now: Instant) {
        let late = self.hearing.next_ping().map(|at| now.since(at)).unwrap_or_default();
        if !late.is_zero() {
            self.was_away(now, late);
            self.hearing.last = self.hearing.last + late;
        }
    }

    /// Excuses every server's silence for a time in which the coordinator could hear none of them.
    ///
    /// If that time was long, servers get as much again to reconnect.
    fn was_away(&mut self, now: Instant, time: Duration) {
        let again = if time < self.settings.silence_max { Duration::ZERO } else { time };
        let latest = now + self.settings.absence_max;
        self.hearing.lenient_until = (now + again).min(latest).max(self.hearing.lenient_until);
        let longer = |since: &mut Instant| *since = (*since + time + again).min(latest);
        for pulse in self.hearing.pulses.values_mut() {
            longer(&mut pulse.heard);
            pulse.asked.iter_mut().chain(&mut pulse.stalled).for_each(longer);
        }
        for presence in self.presence.values_mut() {
            match presence {
                Presence::Away { since } | Presence::Expected { since } => longer(since),
                Presence::Connected(_) => {}
            }
        }
    }

    pub(super) fn send_pings(&mut self, now: Instant, out: &mut Outbox) {
        if self.hearing.is_ping_due(now) {
            self.hearing.ping_at = now + self.hearing.pause();
            for &server in self.hearing.pulses.keys() {
                self.send(server, FromCoordinator::Ping, out);
            }
            self.ask_witnesses(now, out);
        }
    }

    /// Processes an answer to a ping. Declares the server dead if a reactor stalled for too long.
    pub(super) fn pong(
        &mut self,
        at: Moment,
        server: ServerId,
        is_stalled: bool,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some(pulse) = self.hearing.pulses.get_mut(&server) else { return Ok(()) };
        if !is_stalled {
            pulse.stalled = None;
            return Ok(());
        }
        let since = *pulse.stalled.get_or_insert(at.now);
        if at.now.since(since) < self.settings.stall_max {
            return Ok(());
        }
        tracing::warn!(%server, "reactor stalled for too long, declaring its server dead");
        self.declare_dead(at, &BTreeSet::from([server]), out)
    }

    /// Pings a server that another one suspects, unless it was heard just now.
    pub(super) fn verify(&mut self, now: Instant, server: ServerId, out: &mut Outbox) {
        let just_now = self.hearing.pause() / 2;
        let Some(pulse) = self.hearing.pulses.get_mut(&server) else { return };
        if pulse.asked.is_none() && now.since(pulse.heard) >= just_now {
            pulse.asked = Some(now);
            self.send(server, FromCoordinator::Ping, out);
        }
    }
}
