//! Who is heard: servers whose log others keep are pinged, and one that says nothing is dead.
//!
//! A connection that ends tells of a process that has died; it tells nothing of one that stands
//! still, of a machine that is gone, and of a network that is cut. The one idea: silence counts
//! against a server only as far as the coordinator was listening and heard others.
//!
//! 1. *It stood still itself.* It has to send pings at certain times; if it is late, it has not
//!    listened either, and everybody gets longer by that. So after a pause what has come meanwhile
//!    is read before anybody is judged.
//! 2. *It is cut off.* While nobody is heard nobody is judged, and when somebody is heard again
//!    that time does not count for the others.
//! 3. *It is cut off from most of them*, as it is if it shares a machine with one. If fewer than half of
//!    the connected are heard, the others get `absence_max`.
//! 4. *It was away for long.* Connections have broken, and are made again one after the other; what
//!    was on its way through a network that was cut is sent again after as long a pause. So
//!    everybody gets as long again as it was away, up to `absence_max`, also who is heard and loses
//!    its connection then.
//!
//! What a master says of a backup that does not answer is evidence of its own: then a ping is sent at
//! once, and half the patience is enough.
//!
//! The thread that answers pings is none of those that serve. So it says whether these go on; one
//! of them may take some seconds for a command or a disk, but not more.

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

/// What is heard of the servers that are pinged.
#[derive(Debug)]
pub(super) struct Hearing {
    silence_max: Duration,
    absence_max: Duration,
    /// Of those that are connected.
    pulses: BTreeMap<ServerId, Pulse>,
    /// When any of them was heard last.
    last: Instant,
    ping_at: Instant,
    /// This coordinator was away: up to then it is no wonder if connections break.
    lenient_until: Instant,
}

#[derive(Debug)]
struct Pulse {
    /// When it was heard last. Later than now: it gets so much longer.
    heard: Instant,
    /// When it was asked because somebody suspects it, if it was not heard since.
    asked: Option<Instant>,
    /// Since when it says that a reactor stands still.
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

    /// When pings are due, if there is anybody to ping.
    pub(super) fn next_ping(&self) -> Option<Instant> {
        (!self.pulses.is_empty()).then_some(self.ping_at)
    }

    pub(super) fn is_ping_due(&self, now: Instant) -> bool {
        self.next_ping().is_some_and(|at| at <= now)
    }

    /// When a connected server has been silent for too long, if half of all were heard then.
    pub(super) fn silent_at(&self, server: ServerId, half_heard: Instant) -> Option<Instant> {
        let Pulse { heard, asked, .. } = self.pulses.get(&server)?;
        if half_heard < *heard + 2 * self.pause() {
            return Some(*heard + self.absence_max);
        }
        let of_itself = *heard + self.silence_max;
        Some(asked.map_or(of_itself, |asked| of_itself.min(asked + self.silence_max / 2)))
    }

    /// Returns whether the server has answered the last ping, or the one before that may still be
    /// under way.
    pub(super) fn is_heard(&self, now: Instant, server: ServerId) -> bool {
        let pulse = self.pulses.get(&server);
        pulse.is_some_and(|pulse| now.since(pulse.heard) < self.pause() * 3 / 2)
    }

    /// When half of those who are connected were heard last.
    pub(super) fn half_heard(&self) -> Instant {
        let mut heard: Vec<Instant> = self.pulses.values().map(|pulse| pulse.heard).collect();
        if heard.is_empty() {
            return Instant::default();
        }
        // As many were heard since as there are behind it: the lower half goes first.
        let at = heard.len() / 2;
        *heard.select_nth_unstable(at).1
    }

    /// How long nothing was heard of each server that is listened to.
    pub(super) fn silences(&self, now: Instant) -> impl Iterator<Item = (ServerId, Duration)> {
        self.pulses.iter().map(move |(server, pulse)| (*server, now.since(pulse.heard)))
    }

    /// Whether somebody who was to be heard was heard shortly before: else it is us.
    pub(super) fn may_judge(&self, at: Instant) -> bool {
        self.pulses.is_empty() || at <= self.deaf_at()
    }

    /// When nobody has been heard for so long that it is us.
    fn deaf_at(&self) -> Instant {
        self.last + 2 * self.pause()
    }

    /// The server is not connected any more. Returns since when it is missed.
    pub(super) fn miss(&mut self, now: Instant, server: ServerId) -> Instant {
        self.pulses.remove(&server);
        now.max(self.lenient_until)
    }
}

impl<S: MetaStore> Coordinator<S> {
    /// A server has joined.
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

    /// A server has said something.
    pub(super) fn note_heard(&mut self, now: Instant, server: ServerId) {
        if !self.hearing.pulses.contains_key(&server) {
            return;
        }
        if now > self.hearing.deaf_at() {
            tracing::warn!("nobody was heard for a while");
            self.was_away(now, now.since(self.hearing.last));
        }
        self.hearing.last = now;
        if let Some(pulse) = self.hearing.pulses.get_mut(&server) {
            (pulse.heard, pulse.asked) = (now, None);
        }
    }

    /// This coordinator may have stood still until now.
    pub(super) fn note_pause(&mut self, now: Instant) {
        let late = self.hearing.next_ping().map(|at| now.since(at)).unwrap_or_default();
        if !late.is_zero() {
            self.was_away(now, late);
            self.hearing.last = self.hearing.last + late;
        }
    }

    /// For so long nobody could be heard: that is no silence of theirs.
    ///
    /// If it was long, others may have to find their way back.
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

    /// An answer to a ping.
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
        tracing::warn!(%server, "a reactor stands still for too long");
        self.declare_dead(at, &BTreeSet::from([server]), out)
    }

    /// Somebody waits for an answer of this server. It is asked, if it was not heard just now.
    pub(super) fn verify(&mut self, now: Instant, server: ServerId, out: &mut Outbox) {
        let just_now = self.hearing.pause() / 2;
        let Some(pulse) = self.hearing.pulses.get_mut(&server) else { return };
        if pulse.asked.is_none() && now.since(pulse.heard) >= just_now {
            pulse.asked = Some(now);
            self.send(server, FromCoordinator::Ping, out);
        }
    }
}
