//! Reconciliation after every event; the only place that acts on the passage of time.

use super::Coordinator;
use super::view::ClusterView;
use crate::configuration_store::Stopped;
use crate::outbox::{Effects, Moment};
use crate::records::Server;
use std::collections::BTreeSet;
use types::{Instant, ServerId};

impl Coordinator {
    pub(super) fn reconcile(&mut self, at: Moment, out: &mut Effects) -> Result<(), Stopped> {
        if let Some(held) = self.confirmation.confirm(self.store.configuration()) {
            self.receive_held(at, held, out)?;
        }
        if !self.confirmation.is_confirmed() {
            self.ask_servers(at, out);
            return Ok(());
        }
        self.declare_absent_dead(at, out)?;
        let is_reachable = self.membership.servers().next().is_some();
        self.leases.pass(at.now, is_reachable);
        self.clocks.set_lease_horizon(self.leases.horizon());
        self.ask_servers(at, out);
        self.give_up_on_absent(at, out)?;
        while let Some(edit) = self.start_queued(at) {
            self.commit(at, edit)?;
        }
        self.grant_flushes(at, out)?;
        if let Some(decision) = self.migrations.prune_history(self.view(at)) {
            self.apply(at, decision, out)?;
        }
        // After the migrations: ranges inside them are not assigned.
        self.advance_recoveries(at)?;
        // Before the demands: they name servers that their receivers look up in the map.
        let view = ClusterView::new(at, self.store.configuration(), &self.membership);
        self.maps.publish(view, &self.failure_detector, out);
        self.migrations.send_demands(view, out);
        self.migrations.find_deadline(view.configuration, view.membership);
        self.recoveries.send_demands(view, out);
        assert!(!self.maps.is_stale(), "servers are left with an old map");
        self.reconciled = at.now;
        Ok(())
    }

    /// Returns when [`crate::CoordinatorEvent::Tick`] is due, if no event happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let (configuration, membership) = (self.store.configuration(), &self.membership);
        let detector = &self.failure_detector;
        let asking = detector.next_ping().into_iter().chain(self.clocks.next_question());
        if !self.confirmation.is_confirmed() {
            return asking.min().filter(|_| !self.confirmation.is_older());
        }
        let migrations = self.migrations.next_deadline().into_iter();
        let half_heard = detector.half_heard();
        let servers = configuration.servers().values();
        let deaths = servers.filter_map(|it| detector.death_deadline(it, half_heard, membership));
        // Recoveries do not depend on the wall clock.
        let at = Moment { now: self.reconciled, wall: types::UnixMillis::default() };
        let recoveries = self.recoveries.next_deadline(self.reconciled, self.view(at));
        migrations.chain(deaths).chain(asking).chain(recoveries).min()
    }

    /// Sends pings and clock questions that are due.
    fn ask_servers(&mut self, at: Moment, out: &mut Effects) {
        let (configuration, membership) = (self.store.configuration(), &self.membership);
        if self.failure_detector.send_pings(at.now, membership, out) {
            self.failure_detector.ask_witnesses(at.now, configuration, membership, out);
        }
        self.clocks.ask_all(at.now, self.confirmation.is_confirmed(), membership, out);
    }

    /// Declares every server dead whose deadline has passed.
    fn declare_absent_dead(&mut self, at: Moment, out: &mut Effects) -> Result<(), Stopped> {
        // Each death shrinks the set that "half of the servers" refers to, so later ones are
        // judged anew.
        loop {
            let (detector, membership) = (&self.failure_detector, &self.membership);
            let half_heard = detector.half_heard();
            let is_due = |server: &&Server| {
                detector
                    .death_deadline(server, half_heard, membership)
                    .is_some_and(|due| due <= at.now)
            };
            let due = self.store.configuration().servers().values().filter(is_due);
            let due: BTreeSet<ServerId> = due.map(|server| server.id).collect();
            if due.is_empty() {
                return Ok(());
            }
            self.declare_dead(at, due, out)?;
        }
    }

    fn give_up_on_absent(&mut self, at: Moment, out: &mut Effects) -> Result<(), Stopped> {
        loop {
            let stuck = self.migrations.stuck(self.view(at));
            if stuck.is_empty() {
                return Ok(());
            }
            // The new stage may wait for the other side, which may be gone as well.
            for stuck in stuck {
                let decision = self.migrations.give_up(stuck, self.view(at));
                self.apply(at, decision, out)?;
            }
        }
    }

    /// Returns a change that starts the migrations that are no longer blocked.
    fn start_queued(&mut self, at: Moment) -> Option<crate::configuration::Edit> {
        let view = ClusterView::new(at, self.store.configuration(), &self.membership);
        self.migrations.next_start(view)
    }

    /// Advances every recovery as far as possible.
    fn advance_recoveries(&mut self, at: Moment) -> Result<(), Stopped> {
        let view = ClusterView::new(at, self.store.configuration(), &self.membership);
        self.recoveries.pass(view);
        for dead in self.recoveries.take_advancing(self.store.changes(), view) {
            if let Some(edit) = self.recoveries.next_step(dead, self.view(at)) {
                self.commit(at, edit)?;
            }
        }
        Ok(())
    }
}
