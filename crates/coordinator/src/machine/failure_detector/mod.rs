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
//!
//! Witnesses: `witnesses.rs`.

mod witnesses;

use super::CoordinatorSettings;
use super::membership::{Excuse, Membership, Presence};
use crate::outbox::Effects;
use crate::records::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, ServerId};
use wire::control::LivenessRequest;

/// Pings within `silence_max`: four may be lost or late.
const PINGS: u32 = 5;

/// Heartbeats of the pinged servers, and reports of witnesses.
#[derive(Debug)]
pub(super) struct FailureDetector {
    silence_max: Duration,
    absence_max: Duration,
    stall_max: Duration,
    /// Heartbeat state of each connected server with a replicated log.
    heartbeats: BTreeMap<ServerId, Heartbeat>,
    /// Time of the last heartbeat of any server.
    last: Instant,
    ping_at: Instant,
    /// Until this time broken connections may be a consequence of this coordinator's own absence.
    lenient_until: Instant,
    /// Last time another server reported an answer from a server that is silent here.
    witnessed: BTreeMap<ServerId, Instant>,
}

#[derive(Debug)]
struct Heartbeat {
    /// Time of the last heartbeat. May lie in the future: a grace period after a coordinator pause.
    heard: Instant,
    /// Time of the ping sent because of a suspicion; reset by the next heartbeat.
    asked: Option<Instant>,
    /// Time since which the server has reported a stalled reactor.
    stalled: Option<Instant>,
}

impl FailureDetector {
    pub(super) fn new(settings: &CoordinatorSettings) -> FailureDetector {
        let CoordinatorSettings { silence_max, absence_max, stall_max, .. } = *settings;
        let start = Instant::default();
        FailureDetector {
            silence_max,
            absence_max,
            stall_max,
            heartbeats: BTreeMap::new(),
            last: start,
            ping_at: start,
            lenient_until: start,
            witnessed: BTreeMap::new(),
        }
    }

    fn ping_interval(&self) -> Duration {
        self.silence_max / PINGS
    }

    /// Returns the time at which pings are due, if any server is pinged.
    pub(super) fn next_ping(&self) -> Option<Instant> {
        (!self.heartbeats.is_empty()).then_some(self.ping_at)
    }

    pub(super) fn is_ping_due(&self, now: Instant) -> bool {
        self.next_ping().is_some_and(|at| at <= now)
    }

    /// Returns when the server is declared dead, if it neither reconnects nor sends a message
    /// until then and other servers are heard. `half_heard` is the time by which half of the
    /// connected servers were last heard.
    pub(super) fn death_deadline(
        &self,
        server: &Server,
        half_heard: Instant,
        membership: &Membership,
    ) -> Option<Instant> {
        if membership.is_isolated() || !server.keeps_log() || server.declared_dead {
            return None;
        }
        let due = match membership.presence(server.id)? {
            Presence::Away { .. } | Presence::Expected { .. } => {
                membership.return_deadline(server.id)?
            }
            Presence::Connected(_) => self.silent_at(server.id, half_heard)?,
        };
        // Other servers reach it; only the coordinator does not.
        let due = self.lives_until(server.id).map_or(due, |until| due.max(until));
        self.may_judge(due).then_some(due)
    }

    /// Returns when a connected server has been silent for too long.
    fn silent_at(&self, server: ServerId, half_heard: Instant) -> Option<Instant> {
        let Heartbeat { heard, asked, .. } = self.heartbeats.get(&server)?;
        if half_heard < *heard + 2 * self.ping_interval() {
            return Some(*heard + self.absence_max);
        }
        let of_itself = *heard + self.silence_max;
        Some(asked.map_or(of_itself, |asked| of_itself.min(asked + self.silence_max / 2)))
    }

    /// Returns whether the server has answered the last ping, or the one before while the last is
    /// possibly still in flight.
    pub(super) fn is_heard(&self, now: Instant, server: ServerId) -> bool {
        let heartbeat = self.heartbeats.get(&server);
        heartbeat.is_some_and(|it| now.since(it.heard) < self.ping_interval() * 3 / 2)
    }

    /// Returns the latest time since which half of the connected servers were heard.
    pub(super) fn half_heard(&self) -> Instant {
        let mut heard: Vec<Instant> = self.heartbeats.values().map(|it| it.heard).collect();
        if heard.is_empty() {
            return Instant::default();
        }
        // From this index on the sorted times belong to at least half of the servers.
        let at = heard.len() / 2;
        *heard.select_nth_unstable(at).1
    }

    /// Returns the current silence of each pinged server.
    pub(super) fn silences(&self, now: Instant) -> impl Iterator<Item = (ServerId, Duration)> {
        self.heartbeats.iter().map(move |(server, it)| (*server, now.since(it.heard)))
    }

    /// Returns whether any heartbeat arrived recently. If none did, the coordinator itself is
    /// probably partitioned and must not declare deaths.
    fn may_judge(&self, at: Instant) -> bool {
        self.heartbeats.is_empty() || at <= self.deaf_at()
    }

    /// Returns the time after which the absence of any heartbeat points to the coordinator itself.
    fn deaf_at(&self) -> Instant {
        self.last + 2 * self.ping_interval()
    }

    /// Stops monitoring a server that lost its connection. Returns the time from which its absence
    /// counts.
    pub(super) fn unwatch(&mut self, now: Instant, server: ServerId) -> Instant {
        self.heartbeats.remove(&server);
        let since = now.max(self.lenient_until);
        assert!(since <= now + self.absence_max, "{server} could stay away longer than allowed");
        since
    }

    /// Starts monitoring a server with a replicated log that has joined.
    pub(super) fn watch(&mut self, now: Instant, server: ServerId) -> Option<Excuse> {
        if self.heartbeats.is_empty() {
            self.last = now;
            self.ping_at = now + self.ping_interval();
        }
        self.witnessed.remove(&server);
        let heartbeat = Heartbeat { heard: now, asked: None, stalled: None };
        self.heartbeats.insert(server, heartbeat);
        self.note_heard(now, server)
    }

    /// Counts the silence of a server from now on only: its welcome waits for a commit, and so do
    /// the pings that it would answer.
    pub(super) fn await_welcome(&mut self, now: Instant, server: ServerId) {
        if let Some(heartbeat) = self.heartbeats.get_mut(&server) {
            (heartbeat.heard, heartbeat.asked) = (now, None);
        }
    }

    /// Records a sign of life of a server: any message. Returns an excuse for the absent servers
    /// if it ends a time in which the coordinator heard none.
    pub(super) fn note_heard(&mut self, now: Instant, server: ServerId) -> Option<Excuse> {
        if !self.heartbeats.contains_key(&server) {
            return None;
        }
        let mut excuse = None;
        if now > self.deaf_at() {
            tracing::warn!("no server was heard for a while, extending deadlines");
            excuse = Some(self.excuse(now, now.since(self.last)));
        }
        self.last = now;
        if let Some(heartbeat) = self.heartbeats.get_mut(&server) {
            (heartbeat.heard, heartbeat.asked) = (now, None);
        }
        assert!(self.may_judge(now), "a heartbeat at {now:?} leaves the coordinator deaf");
        excuse
    }

    /// Detects by an overdue ping that this coordinator was possibly paused until now.
    pub(super) fn note_pause(&mut self, now: Instant) -> Option<Excuse> {
        let late = self.next_ping().map(|at| now.since(at)).unwrap_or_default();
        if late.is_zero() {
            return None;
        }
        let excuse = self.excuse(now, late);
        self.last = self.last + late;
        Some(excuse)
    }

    /// Excuses every server's silence for a time in which the coordinator could hear none of them.
    ///
    /// If that time was long, servers get as much again to reconnect.
    fn excuse(&mut self, now: Instant, time: Duration) -> Excuse {
        let again = if time < self.silence_max { Duration::ZERO } else { time };
        let excuse = Excuse { longer: time + again, latest: now + self.absence_max };
        assert!(excuse.longer >= time, "servers get less than the coordinator's own absence");
        let lenient_until = (now + again).min(excuse.latest);
        self.lenient_until = lenient_until.max(self.lenient_until);
        for heartbeat in self.heartbeats.values_mut() {
            excuse.extend(&mut heartbeat.heard);
            let of_suspicion = heartbeat.asked.iter_mut().chain(&mut heartbeat.stalled);
            of_suspicion.for_each(|since| excuse.extend(since));
        }
        excuse
    }

    /// Sends a ping to every monitored server, if pings are due. Returns whether they were.
    pub(super) fn send_pings(
        &mut self,
        now: Instant,
        membership: &Membership,
        out: &mut Effects,
    ) -> bool {
        let is_due = self.is_ping_due(now);
        if is_due {
            self.ping_at = now + self.ping_interval();
            for &server in self.heartbeats.keys() {
                assert!(membership.is_connected(server), "{server} is monitored and disconnected");
                membership.send(server, LivenessRequest::Ping, out);
            }
            assert!(!self.is_ping_due(now), "pings are due again at once");
        }
        is_due
    }

    /// Processes an answer to a ping. Returns whether a reactor of the server has stalled for too
    /// long.
    pub(super) fn pong(&mut self, now: Instant, server: ServerId, is_stalled: bool) -> bool {
        let Some(heartbeat) = self.heartbeats.get_mut(&server) else { return false };
        if !is_stalled {
            heartbeat.stalled = None;
            return false;
        }
        let since = *heartbeat.stalled.get_or_insert(now);
        now.since(since) >= self.stall_max
    }

    /// Pings a server that another one suspects, unless it was heard just now.
    pub(super) fn verify(
        &mut self,
        now: Instant,
        server: ServerId,
        membership: &Membership,
        out: &mut Effects,
    ) {
        let just_now = self.ping_interval() / 2;
        let Some(heartbeat) = self.heartbeats.get_mut(&server) else { return };
        if heartbeat.asked.is_none() && now.since(heartbeat.heard) >= just_now {
            heartbeat.asked = Some(now);
            membership.send(server, LivenessRequest::Ping, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::empty;
    use crate::outbox::{Caller, LinkId};

    fn millis(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    fn membership() -> Membership {
        let configuration = empty();
        Membership::new(&CoordinatorSettings::default(), &configuration, Instant(0))
    }

    #[test]
    fn a_pause_of_the_coordinator_is_no_silence_of_a_server() {
        let mut detector = FailureDetector::new(&CoordinatorSettings::default());
        assert_eq!(detector.watch(millis(0), ServerId(1)), None);
        let silent_before = detector.silent_at(ServerId(1), millis(9_000));
        let excuse = detector.note_pause(millis(400)).expect("the ping at 100 ms is late");
        assert_eq!(excuse.longer, Duration::from_millis(300));
        let silent_after = detector.silent_at(ServerId(1), millis(9_000));
        assert_eq!(silent_after, silent_before.map(|at| at + excuse.longer));
    }

    #[test]
    #[should_panic(expected = "s1 is monitored and disconnected")]
    fn only_connected_servers_are_monitored() {
        let mut membership = membership();
        membership.open(LinkId(1), Caller::Operator);
        let mut detector = FailureDetector::new(&CoordinatorSettings::default());
        detector.watch(millis(0), ServerId(1));
        detector.send_pings(millis(100), &membership, &mut Effects::new());
    }
}
