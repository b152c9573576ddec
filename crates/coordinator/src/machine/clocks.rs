//! Comparison of the servers' clocks.
//!
//! Every server is asked once a second. Its reading was taken between question and receipt. The
//! difference from the coordinator's monotonic clock is therefore known up to the round trip, and
//! a slow network is not blamed on a server. The coordinator's own wall clock is not used.
//!
//! The **reference** is the median of the members' wall clocks, with the bounds of its reading, if
//! most of them are near it. A jump of one clock among three by a day changes nothing; among two,
//! it leaves no reference. The reference drives the servers' expiry clocks (`protocols::clock`).
//!
//! A server whose clock is off by more than [`SKEW_MAX`] is not admitted. A member that drifts
//! beyond the limit keeps serving, but no range moves to or from it. Such a move would freeze the
//! range's clock until the slower clock has caught up, and keys would live longer by the
//! difference.

use crate::machine::membership::Membership;
use crate::outbox::{Effect, Effects, LinkId};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, LeaseId, ServerId, UnixMillis};
use wire::control::{ClockQuestion, ClockReading, ClockReport, FromCoordinator, Join};

/// Largest allowed difference from the reference.
const SKEW_MAX: Duration = Duration::from_millis(500);

/// Interval between two questions to the same server.
const ASK_EVERY: Duration = Duration::from_secs(1);

const SKEW_MAX_MILLIS: i64 = SKEW_MAX.as_millis() as i64;

/// Readings of the clocks of all connected servers.
#[derive(Debug)]
pub(super) struct Clocks {
    /// Servers with skewed clocks are refused.
    limits_skew: bool,
    members: BTreeMap<ServerId, Member>,
    /// Joins of new servers, held until their clock reading arrives.
    joining: BTreeMap<LinkId, Join>,
    /// Time of the next question to all servers.
    ask_at: Instant,
    /// The horizon that questions carry.
    lease_horizon: LeaseId,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    wall: ClockBounds,
    expiry: Option<ClockBounds>,
    /// The last reading was off, and the log already reported that.
    is_off: bool,
}

/// Bounds of the difference between a clock and this coordinator's monotonic clock, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockBounds {
    low: i64,
    high: i64,
}

impl ClockBounds {
    /// Returns the bounds for a clock that read `shown` at some time between `asked` and `now`.
    fn new(shown: UnixMillis, asked: Instant, now: Instant) -> ClockBounds {
        let shown = i64::try_from(shown.0).unwrap_or(i64::MAX);
        let at = |moment: Instant| shown.saturating_sub((moment.0 / 1_000_000) as i64);
        let bounds = ClockBounds { low: at(now.max(asked)), high: at(asked.min(now)) };
        assert!(bounds.low <= bounds.high, "{bounds:?} contain no clock");
        bounds
    }

    fn middle(self) -> i64 {
        self.low.midpoint(self.high)
    }

    /// Returns the distance beyond the limit around a reference, in ms; 0 if the clock may be
    /// within. The reference is a clock as well, and known only up to its own bounds.
    fn beyond(self, reference: ClockBounds) -> i64 {
        let low = self.low.saturating_sub(reference.high);
        let high = self.high.saturating_sub(reference.low);
        match () {
            () if low > SKEW_MAX_MILLIS => low,
            () if high < -SKEW_MAX_MILLIS => high,
            () => 0,
        }
    }
}

/// Returns the median of the clocks; the slower of the two middle ones if their number is even.
fn median(spans: &[ClockBounds]) -> Option<ClockBounds> {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.middle());
    spans.get(spans.len().checked_sub(1)? / 2).copied()
}

/// Returns the median, if more than half of all clocks may be near it.
fn agreed(spans: &[ClockBounds]) -> Option<ClockBounds> {
    let median = median(spans)?;
    let near = spans.iter().filter(|span| span.beyond(median) == 0).count();
    (2 * near > spans.len()).then_some(median)
}

/// Result of the comparison of a new server's clock.
pub(super) enum Comparison {
    /// The clock is within the limit.
    Within(Join),
    /// The reason for rejecting the server.
    Skewed(String),
}

impl Clocks {
    pub(super) fn new(limits_skew: bool) -> Clocks {
        let (members, joining) = (BTreeMap::new(), BTreeMap::new());
        let (ask_at, lease_horizon) = (Instant::default(), LeaseId(0));
        Clocks { limits_skew, members, joining, ask_at, lease_horizon }
    }

    /// Sets the horizon of exactly-once requests, which later questions carry.
    pub(super) fn set_lease_horizon(&mut self, horizon: LeaseId) {
        assert!(horizon >= self.lease_horizon, "the lease horizon falls to {horizon}");
        self.lease_horizon = horizon;
    }

    fn reference(&self) -> Option<ClockBounds> {
        agreed(&self.walls())
    }

    fn walls(&self) -> Vec<ClockBounds> {
        self.members.values().map(|member| member.wall).collect()
    }

    /// Returns the clock question to send now. It carries no reference while the metadata store is
    /// unconfirmed: an outdated coordinator must not drive any clock.
    fn question(&self, now: Instant, is_confirmed: bool) -> ClockQuestion {
        let at =
            |reference: ClockBounds| reference.middle().saturating_add((now.0 / 1_000_000) as i64);
        let reference = self.reference().filter(|_| is_confirmed);
        let reference = reference.map(|reference| UnixMillis(at(reference).max(0) as u64));
        ClockQuestion { asked: now, reference, lease_horizon: self.lease_horizon }
    }

    /// Returns the time of the next question to all servers, if any member is connected.
    pub(super) fn next_question(&self) -> Option<Instant> {
        (!self.members.is_empty()).then_some(self.ask_at)
    }

    /// Drops the readings of a server that is no longer connected.
    pub(super) fn forget(&mut self, server: ServerId) {
        self.members.remove(&server);
    }

    /// Drops the held join of a closed connection.
    pub(super) fn forget_join(&mut self, connection: LinkId) {
        self.joining.remove(&connection);
    }

    /// Compares a member's clocks with the median, even without a majority near it: of two
    /// members that differ, one is off.
    fn report(&self, server: ServerId, member: &Member) -> Option<ClockReport> {
        let expiries: Vec<ClockBounds> = self.members.values().filter_map(|it| it.expiry).collect();
        let beyond = |span: Option<ClockBounds>, reference: Option<ClockBounds>| {
            span.zip(reference).map_or(0, |(span, reference)| span.beyond(reference))
        };
        let wall_ahead = beyond(Some(member.wall), median(&self.walls()));
        let expiry_ahead = beyond(member.expiry, median(&expiries));
        let is_off = wall_ahead != 0 || expiry_ahead != 0;
        is_off.then_some(ClockReport { server, wall_ahead, expiry_ahead })
    }

    /// Returns reports of all members with skewed clocks.
    pub(super) fn reports(&self) -> Vec<ClockReport> {
        let members = self.members.iter();
        members.filter_map(|(&server, member)| self.report(server, member)).collect()
    }

    /// Returns the reason why no range may move to or from this server, or `None` if its clocks
    /// are right, or skew is not limited.
    pub(super) fn objection(&self, server: ServerId) -> Option<String> {
        if !self.limits_skew {
            return None;
        }
        let report = self.report(server, self.members.get(&server)?)?;
        let (whose, ahead) = match report.wall_ahead {
            0 => ("expiry clock", report.expiry_ahead),
            ahead => ("clock", ahead),
        };
        Some(format!(
            "the {whose} of {server} is {}: no slots can be moved to or from it until it is within \
             {SKEW_MAX_MILLIS} ms, because keys would expire at wrong times; correct the machine's \
             clock (chrony or ntpd), and see 'ballast cluster status'",
            in_words(ahead)
        ))
    }
}

/// Describes a difference from the other members' clocks.
fn in_words(ahead: i64) -> String {
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    format!("{} ms {direction} the other members' clocks", ahead.unsigned_abs())
}

/// Questions and readings.
impl Clocks {
    /// Holds a new server's join until its clock reading arrives. Returns `false` if the join
    /// need not wait: the server rejoins, no reference exists, or skew is not limited.
    pub(super) fn must_show(
        &mut self,
        now: Instant,
        connection: LinkId,
        join: &Join,
        out: &mut Effects,
    ) -> bool {
        let is_new = join.rejoin.is_none() && self.reference().is_some();
        if !is_new || !self.limits_skew {
            return false;
        }
        // New servers are admitted only by a confirmed coordinator.
        let message = FromCoordinator::Clock(self.question(now, true));
        self.joining.insert(connection, join.clone());
        out.push(Effect::Send { connection, message });
        true
    }

    /// Compares the clock of a connection with a held join.
    pub(super) fn compare(
        &mut self,
        now: Instant,
        connection: LinkId,
        reading: ClockReading,
    ) -> Option<Comparison> {
        let join = self.joining.remove(&connection)?;
        assert!(join.rejoin.is_none(), "only the join of a new server waits for its clock");
        let span = ClockBounds::new(reading.wall, reading.asked, now);
        let ahead = self.reference().map_or(0, |reference| span.beyond(reference));
        if ahead == 0 {
            return Some(Comparison::Within(join));
        }
        Some(Comparison::Skewed(format!(
            "the clock of this machine is {}; correct it (chrony or ntpd) and start the server \
             again: more than {SKEW_MAX_MILLIS} ms are not allowed, because keys would expire at \
             wrong times",
            in_words(ahead)
        )))
    }

    /// Records a member's clock reading, and logs when its clocks become skewed or right.
    pub(super) fn note(&mut self, now: Instant, server: ServerId, reading: ClockReading) {
        let ClockReading { asked, wall, expiry } = reading;
        let span = |shown| ClockBounds::new(shown, asked, now);
        let was_off = self.members.get(&server).is_some_and(|member| member.is_off);
        let mut member = Member { wall: span(wall), expiry: expiry.map(span), is_off: was_off };
        self.members.insert(server, member);
        let report = self.report(server, &member);
        member.is_off = report.is_some();
        self.members.insert(server, member);
        match (report, was_off) {
            (Some(ClockReport { wall_ahead, expiry_ahead, .. }), false) => tracing::warn!(
                %server, wall_ahead, expiry_ahead,
                "server clock skew too large, moving no slots to or from it"
            ),
            (None, true) => tracing::warn!(%server, "server clock skew is within the limit again"),
            (Some(_), true) | (None, false) => {}
        }
    }

    /// Asks a server that has just joined, without waiting for the next round.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        server: ServerId,
        is_confirmed: bool,
        membership: &Membership,
        out: &mut Effects,
    ) {
        assert!(membership.is_connected(server), "{server} is asked for its clock and is away");
        if self.members.is_empty() {
            self.ask_at = now + ASK_EVERY;
        }
        let question = self.question(now, is_confirmed);
        membership.send(server, FromCoordinator::Clock(question), out);
    }

    /// Asks all servers, if the next round is due.
    pub(super) fn ask_all(
        &mut self,
        now: Instant,
        is_confirmed: bool,
        membership: &Membership,
        out: &mut Effects,
    ) {
        if self.next_question().is_some_and(|at| at <= now) {
            self.ask_at = now + ASK_EVERY;
            let question = self.question(now, is_confirmed);
            for server in membership.servers() {
                membership.send(server, FromCoordinator::Clock(question), out);
            }
        }
        // Readings of a disconnected server would decide on the reference.
        let mut members = self.members.keys();
        debug_assert!(members.all(|&server| membership.is_connected(server)), "a member is away");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::empty;
    use crate::machine::CoordinatorSettings;

    fn exact(ms: i64) -> ClockBounds {
        ClockBounds { low: ms, high: ms }
    }

    #[test]
    fn the_reference_is_the_median_if_most_agree() {
        for (clocks, reference) in [
            (&[][..], None),
            (&[7], Some(7)),
            (&[0, 400], Some(0)),
            (&[0, 86_400_000], None),
            (&[0, 86_400_000, 30], Some(30)),
            (&[0, 5_000, 86_400_000], None),
            (&[-300, 0, 300, 90_000], Some(0)),
        ] {
            let clocks: Vec<ClockBounds> = clocks.iter().map(|&ms| exact(ms)).collect();
            assert_eq!(agreed(&clocks), reference.map(exact), "{clocks:?}");
        }
    }

    #[test]
    fn a_slow_network_is_nobodys_fault() {
        let (asked, now) = (Instant(1_000_000_000), Instant(3_000_000_000));
        let span = ClockBounds::new(UnixMillis(10_000), asked, now);
        assert_eq!(span, ClockBounds { low: 7_000, high: 9_000 });
        assert_eq!(span.beyond(exact(8_000)), 0);
        assert_eq!(span.beyond(exact(6_500)), 0);
        assert_eq!(span.beyond(exact(6_499)), 501);
        assert_eq!(span.beyond(exact(9_501)), -501);
        // A reading that no member can have, from an invalid peer.
        assert!(
            ClockBounds::new(UnixMillis(u64::MAX), Instant(u64::MAX), Instant(0)).beyond(exact(0))
                > 0
        );
    }

    #[test]
    fn a_reference_that_answered_late_refuses_nobody() {
        let late = agreed(&[ClockBounds { low: -1_200, high: 0 }]).expect("one member agrees");
        assert_eq!(exact(2).beyond(late), 0);
        assert_eq!(exact(501).beyond(late), 501);
        assert_eq!(exact(-1_701).beyond(late), -501);
    }

    #[test]
    #[should_panic(expected = "s1 is asked for its clock and is away")]
    fn only_connected_servers_are_asked() {
        let configuration = empty();
        let settings = CoordinatorSettings::default();
        let membership = Membership::new(&settings, &configuration, Instant(0));
        let mut clocks = Clocks::new(true);
        clocks.ask(Instant(0), ServerId(1), true, &membership, &mut Effects::new());
    }
}
