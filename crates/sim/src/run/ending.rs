//! End of the faults, and the time until everything has come to rest.

use super::ClusterRun;
use crate::cluster::SimulatedCluster;
use crate::failure::{Failure, Rule};
use crate::redundancy;
use crate::timeline::{PlannedEvent, RunPhase};
use crate::workload::EXPIRY_MAX_MILLIS;
use std::time::Duration;
use store::BEHIND_MAX_MILLIS;
use types::{HashRange, Instant};
use wire::control::{Ask, MigrationReport, MigrationState};

/// Time within which everything must come to rest after the faults have ended. Retries take 250
/// ms, the coordinator repeats demands after 1 s, and requests for lost data fail after 5 s. The
/// coordinator also waits 5 s for a server that is gone.
const REST_MAX: Duration = Duration::from_secs(60);

/// Interval between two checks if everything has come to rest.
const REST_AGAIN: Duration = Duration::from_millis(20);

impl ClusterRun {
    /// Ends all faults, and then repeatedly checks if everything has come to rest.
    pub(super) fn rest(&mut self) {
        let is_clearing = self.cluster.timeline.is_working();
        if is_clearing {
            self.end_work();
        }
        // A list from before the coordinator ended proves nothing.
        let is_known = self.cluster.ask(Ask::List { task: None });
        if is_known {
            let SimulatedCluster { timeline, moves, .. } = &mut self.cluster;
            moves.check_remembered(timeline);
        }
        let has_ended = is_known && self.unrest().is_empty();
        let now = self.cluster.timeline.now;
        let awaits_scrub = self.cluster.faults.awaits_scrub(&self.cluster.profile, now);
        let is_quiet = has_ended && self.load.is_idle();
        let is_at_rest = is_quiet && !awaits_scrub;
        // A scrub writes nothing that could expire, so it does not prolong the wait.
        if is_clearing || self.cluster.timeline.phase == RunPhase::Resting && !is_quiet {
            self.await_expiry();
        }
        match self.cluster.timeline.phase {
            RunPhase::Working => unreachable!("the working phase has just ended"),
            RunPhase::Healing => {
                let kind = self.cluster.faults.lasting_kind;
                if let Some(kind) = kind.filter(|_| is_at_rest && self.cluster.is_whole()) {
                    self.begin_lasting_fault(kind);
                }
            }
            RunPhase::Enduring => self.end_lasting_fault(),
            RunPhase::Resting if is_at_rest && now >= self.expired_by => {
                let SimulatedCluster { servers, disks, faults, profile, timeline, .. } =
                    &mut self.cluster;
                if !redundancy::damage_once(servers, disks, faults, profile, timeline) {
                    self.load.begin_last_reads(&mut self.cluster);
                }
            }
            // Nothing is planned any more, so the run ends.
            RunPhase::Reading(_) if is_at_rest && self.load.is_closed(&self.cluster) => {
                return self.cluster.timeline.cancel_all();
            }
            RunPhase::Resting | RunPhase::Reading(_) => {}
        }
        if now >= self.rest_by {
            self.cluster.ask(Ask::Recoveries);
            let failure = self.describe_unrest();
            self.cluster.timeline.fail(failure);
        }
        self.cluster.timeline.plan_in(REST_AGAIN, PlannedEvent::Rest);
    }

    /// Lets the last reads wait until everything that was written so far has expired.
    fn await_expiry(&mut self) {
        // Clocks may run a twentieth slow, stand still while another one catches up, and lag
        // behind. If they are minutes apart, the last reads may see expiring values.
        let skew = self.cluster.faults.clocks.ahead_max_millis();
        let longest = skew.map_or(0, |skew| 2 * (EXPIRY_MAX_MILLIS + skew + BEHIND_MAX_MILLIS) + 1);
        self.expired_by = self.cluster.timeline.now + Duration::from_millis(longest);
    }

    /// Ends the work of the clients, and all faults.
    fn end_work(&mut self) {
        let timeline = &mut self.cluster.timeline;
        timeline.note(format_args!("the faults end"));
        timeline.phase = match self.cluster.faults.lasting_kind {
            Some(_) => RunPhase::Healing,
            None => RunPhase::Resting,
        };
        self.worked = Some(timeline.now.since(Instant(0)));
        self.rest_by = timeline.now + REST_MAX;
        self.cluster.end_faults();
    }

    /// Ends the fault that lasts, if it has lasted long enough.
    fn end_lasting_fault(&mut self) {
        let SimulatedCluster { timeline, faults, .. } = &mut self.cluster;
        self.rest_by = timeline.now + REST_MAX;
        if faults.lasting.is_none_or(|fault| fault.until <= timeline.now) {
            timeline.note(format_args!("the lasting fault ends"));
            timeline.phase = RunPhase::Resting;
            self.cluster.end_faults();
            self.await_expiry();
        }
    }

    /// Returns the migrations and servers that have not come to rest although they could.
    fn unrest(&self) -> Vec<(Rule, String)> {
        let SimulatedCluster { timeline, servers, losses, moves, .. } = &self.cluster;
        let stuck = losses.stuck(&moves.reports);
        let is_under_way = |report: &&MigrationReport| !is_over(report.state);
        let (lost, moving): (Vec<_>, Vec<_>) =
            moves.reports.iter().filter(is_under_way).partition(|r| stuck.contains(&r.migration));
        let moving = moving.iter().map(|report| (Rule::MigrationsEnd, format!("{report:?}")));
        // A target that does not know the end of its migration keeps tombstones.
        let cannot_end = |range: HashRange| lost.iter().any(|report| report.range.covers(range));
        let unsettled =
            servers.iter().filter(|server| !server.is_settled(timeline.now, cannot_end));
        let unsettled = unsettled.map(|server| {
            (Rule::ServersSettle, format!("{} is cut off, or has a moving range", server.id))
        });
        let busy = servers.live().filter(|server| server.node.queued_work() > 0);
        let busy = busy.map(|server| {
            let text = format!("{} has {} pieces of work", server.id, server.node.queued_work());
            (Rule::WorkEnds, text)
        });
        moving.chain(unsettled).chain(self.unowned()).chain(busy).collect()
    }

    /// Returns a range with a dead owner, although replicas of the owner's log exist.
    fn unowned(&self) -> Option<(Rule, String)> {
        let servers = &self.cluster.servers;
        if self.cluster.profile.replicas() == 0 {
            return None;
        }
        let map = servers.live().map(|server| server.node.map()).max_by_key(|map| map.version)?;
        let mut lost = map.tablets.iter().filter(|tablet| servers.place(tablet.owner).is_none());
        let tablet = lost.next()?;
        let text = format!("{} is owned by {}, which is gone", tablet.range, tablet.owner);
        Some((Rule::ServersSettle, text))
    }

    fn describe_unrest(&self) -> Failure {
        let open = self.load.clients.open();
        let open =
            open.map(|open| (Rule::Answered, format!("open since {}: {:?}", open.since, open.job)));
        let native = self.load.native.iter().flat_map(|native| native.open());
        let native = native.map(|job| (Rule::OneOutcome, format!("open: {job:?}")));
        let unrest: Vec<_> = open.chain(native).chain(self.unrest()).collect();
        let rule = unrest.first().map_or(Rule::ServersSettle, |(rule, _)| *rule);
        let mut text = String::new();
        unrest.iter().for_each(|(_, line)| text.push_str(&format!("\n  {line}")));
        for recovery in &self.cluster.moves.recoveries {
            text.push_str(&format!("\n  {recovery:?}"));
        }
        for server in self.cluster.servers.iter() {
            for reactor in &server.reactors {
                text.push_str(&format!("\n  at {}: {}", server.id, reactor.waiting()));
            }
        }
        rule.broken(text)
    }
}

fn is_over(state: MigrationState) -> bool {
    match state {
        MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => true,
        MigrationState::Queued
        | MigrationState::Preparing
        | MigrationState::Moving
        | MigrationState::Releasing => false,
    }
}
