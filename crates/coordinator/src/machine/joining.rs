//! Joins: which processes become members, under which numbers.
//!
//! The first server of a cluster gets all slots; later servers join empty, and operators move
//! slots to them.

use super::clocks::Comparison;
use super::rejection::{Rejection, TAKEN, known_server, other_durability};
use super::{Coordinator, Membership};
use crate::admission::SERVERS_MAX;
use crate::configuration::{ClusterConfiguration, Edit};
use crate::configuration_store::Stopped;
use crate::outbox::{Effect, Effects, LinkId, Moment};
use crate::records::{Server, TabletRecord};
use std::collections::BTreeSet;
use types::{ClusterId, HashRange, ServerId};
use wire::control::{ClockReading, Join, JoinReply};

/// The admission of a new server.
struct Admission {
    server: ServerId,
    /// A server that leaves the full configuration.
    leaver: Option<ServerId>,
    edit: Edit,
}

impl Coordinator {
    pub(super) fn join(
        &mut self,
        at: Moment,
        connection: LinkId,
        join: Join,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        // A repeated join: the connection has its number.
        if let Some(server) = self.membership.server_on(connection) {
            self.welcome(server, connection, out);
            return Ok(());
        }
        let (term, configuration) = (self.store.term(), self.store.configuration());
        let ours = configuration.identity().cluster;
        if let Some(edit) = self.confirmation.doubt_if_foreign(&join, term, configuration) {
            self.commit(at, edit)?;
        }
        let is_same = self.membership.is_same_process(connection, &join, ours);
        if is_same && !self.note_past(at, connection, &join, out)? {
            return Ok(());
        }
        let known = match is_same {
            true => known_server(&join, self.store.configuration()),
            false => Err(TAKEN.to_owned().into()),
        };
        match known {
            Err(rejection) => self.reject(connection, rejection, out),
            Ok(Some(server)) => return self.rejoin(at, connection, server, join, out),
            Ok(None) if !self.confirmation.is_confirmed() => {
                self.confirmation.hold_join(connection, join, self.store.configuration(), out);
            }
            Ok(None) if self.clocks.must_show(at.now, connection, &join, out) => {}
            Ok(None) => return self.admit_compared(at, connection, join, out),
        }
        Ok(())
    }

    /// Connects a server that is a member already.
    fn rejoin(
        &mut self,
        at: Moment,
        connection: LinkId,
        server: ServerId,
        join: Join,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let changed = changed_record(server, &join, self.store.configuration());
        if changed.is_some() && !self.confirmation.is_confirmed() {
            self.confirmation.hold_join(connection, join, self.store.configuration(), out);
            return Ok(());
        }
        if let Some(record) = changed {
            let mut edit = self.store.configuration().edit();
            edit.put_server(record);
            self.commit(at, edit)?;
        }
        self.connect(at, connection, server, out)
    }

    /// Compares the clock of a connection with a held join; admits or rejects the server.
    pub(super) fn newcomer_clock(
        &mut self,
        at: Moment,
        connection: LinkId,
        reading: ClockReading,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        match self.clocks.compare(at.now, connection, reading) {
            Some(Comparison::Within(join)) => self.admit_compared(at, connection, join, out),
            Some(Comparison::Skewed(reason)) => {
                self.reject(connection, reason.into(), out);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Admits a new server, after its clock was compared.
    fn admit_compared(
        &mut self,
        at: Moment,
        connection: LinkId,
        join: Join,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        // Meanwhile another server may have shown that the cluster was created by mistake.
        if let Err(rejection) = known_server(&join, self.store.configuration()) {
            self.reject(connection, rejection, out);
            return Ok(());
        }
        let configuration = self.store.configuration();
        if let Some(reason) = other_durability(&join, configuration, &self.membership) {
            self.reject(connection, reason.to_owned().into(), out);
            return Ok(());
        }
        if let Some(former) = former_server(&join, self.store.configuration()) {
            if self.failure_detector.is_heard(at.now, former) {
                // It reconnects, and is admitted when the former one is silent.
                let reason = still_here(former);
                tracing::warn!(%connection, reason, "a process must wait");
                self.send_away(connection, JoinReply::Waiting { reason }, out);
                return Ok(());
            }
            self.declare_dead(at, BTreeSet::from([former]), out)?;
        }
        let Some(admission) = admit(join, self.store.configuration(), &self.membership) else {
            let reason = format!("the cluster already has {SERVERS_MAX} servers, the maximum");
            self.reject(connection, reason.into(), out);
            return Ok(());
        };
        self.commit(at, admission.edit)?;
        if let Some(leaver) = admission.leaver {
            self.membership.remove(leaver);
        }
        self.connect(at, connection, admission.server, out)
    }

    /// Binds a connection to a server, and closes the server's previous one.
    fn connect(
        &mut self,
        at: Moment,
        connection: LinkId,
        server: ServerId,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let is_member = self.store.configuration().servers().contains_key(&server);
        assert!(is_member, "{server} connects and is no member");
        if let Some(old) = self.membership.bind(connection, server) {
            self.flushes.closed(old);
            self.confirmation.closed(old);
            self.clocks.forget_join(old);
            out.push(Effect::Close { connection: old });
        }
        self.membership.end_isolation(at.now, self.store.configuration());
        if self.store.configuration().keeps_log(server) {
            let excuse = self.failure_detector.watch(at.now, server);
            self.excuse_absences(excuse);
        }
        self.maps.mark_stale();
        self.migrations.mark_queue_stale();
        let is_confirmed = self.confirmation.is_confirmed();
        if is_confirmed && let Some(edit) = self.migrations.adopt_orphans(server, self.view(at)) {
            self.commit(at, edit)?;
        }
        let configuration = self.store.configuration();
        self.migrations.repeat_demands_on(server, at.now, configuration);
        self.recoveries.repeat_demands_on(server);
        self.welcome(server, connection, out);
        self.clocks.ask(at.now, server, is_confirmed, &self.membership, out);
        Ok(())
    }

    fn welcome(&self, server: ServerId, connection: LinkId, out: &mut Effects) {
        let identity = self.identity();
        let (cluster, seed) = (identity.cluster, identity.seed);
        let message = JoinReply::Welcome { server, cluster, seed }.into();
        out.push(Effect::Send { connection, message });
    }

    /// Checks the mark of a join, and counts the server towards confirmation. Returns `false` if
    /// the store is older than the cluster; the connection is then rejected.
    fn note_past(
        &mut self,
        at: Moment,
        connection: LinkId,
        join: &Join,
        out: &mut Effects,
    ) -> Result<bool, Stopped> {
        let ours = self.identity().cluster;
        let of_ours = |number: (ClusterId, ServerId)| (number.0 == ours).then_some(number.1);
        let numbers = [join.rejoin.and_then(of_ours), join.former.and_then(of_ours)];
        let servers: BTreeSet<ServerId> = numbers.into_iter().flatten().collect();
        if servers.is_empty() {
            return Ok(true);
        }
        if let Some(mark) = join.mark.filter(|mark| !self.store.knows(mark)) {
            // An empty transaction: nothing leaves if this coordinator does not lead any more, and
            // only therefore does not know the mark.
            self.commit(at, self.store.configuration().edit())?;
            self.confirmation.note_older(&self.store.mark(), &mark);
            self.reject_all(at, out);
            self.reject(connection, self.confirmation.older_rejection(), out);
            return Ok(false);
        }
        self.confirmation.note_heard(servers);
        Ok(true)
    }

    /// Rejects every connected server, because the store is older than the cluster.
    fn reject_all(&mut self, at: Moment, out: &mut Effects) {
        let joined: Vec<LinkId> = self.membership.joined().map(|(link, _)| link).collect();
        for connection in joined {
            self.closed(at, connection);
            let rejection: Rejection = self.confirmation.older_rejection();
            self.reject(connection, rejection, out);
        }
        assert!(self.membership.servers().next().is_none(), "a server stays on an older store");
    }
}

/// Returns a rejoining server's record, if it differs from the stored one.
fn changed_record(
    server: ServerId,
    join: &Join,
    configuration: &ClusterConfiguration,
) -> Option<Server> {
    let known = configuration.servers().get(&server);
    let manifest_log = known.and_then(|known| known.manifest_log);
    let record = Server { manifest_log, ..record_of(server, join.clone()) };
    (known != Some(&record)).then_some(record)
}

/// Returns the former server on a new server's disk, if it must be declared dead. A folder belongs
/// to one process at a time, so the former one has ended, even if its connection has not: a cut or
/// a loss of power may keep that news away. Neither this nor the next coordinator need wait for it.
fn former_server(join: &Join, configuration: &ClusterConfiguration) -> Option<ServerId> {
    let (cluster, former) = join.former?;
    let record = configuration.servers().get(&former)?;
    let is_open = record.keeps_log() && !record.declared_dead;
    let is_ours = cluster == configuration.identity().cluster;
    (is_ours && is_open).then_some(former)
}

/// Returns the explanation for a process that must wait for the end of the former one.
fn still_here(former: ServerId) -> String {
    format!(
        "{former}, to which this --data-dir belonged, is still heard: if its process has ended, \
         this one is admitted in a moment; if the directory was copied, stop one of the two"
    )
}

/// Assigns a number to a new server. `None`: the cluster is full.
fn admit(
    join: Join,
    configuration: &ClusterConfiguration,
    membership: &Membership,
) -> Option<Admission> {
    let mut edit = configuration.edit();
    let leaver = match configuration.servers().len() < SERVERS_MAX {
        true => None,
        false => Some(dispensable_server(configuration, membership)?),
    };
    if let Some(leaver) = leaver {
        assert!(!configuration.is_in_recovery(leaver), "{leaver} leaves while it is recovered");
        edit.remove_server(leaver);
    }
    let server = edit.counters.draw_server();
    assert!(!configuration.servers().contains_key(&server), "{server} was assigned before");
    edit.put_server(record_of(server, join));
    if configuration.tablets().is_empty() {
        let epoch = edit.counters.draw_epoch();
        let incarnations = edit.counters.draw_incarnations();
        let (range, owner, is_born, depends_on) = (HashRange::ALL, server, true, None);
        edit.put_tablet(TabletRecord { range, owner, epoch, incarnations, is_born, depends_on });
    }
    Some(Admission { server, leaver, edit })
}

/// Returns the oldest disconnected server on which nothing depends.
fn dispensable_server(
    configuration: &ClusterConfiguration,
    membership: &Membership,
) -> Option<ServerId> {
    let used = configuration.used_servers();
    let is_gone = |server: ServerId| !membership.is_connected(server);
    let mut servers = configuration.servers().keys().copied();
    servers.find(|&server| is_gone(server) && !used.contains(&server))
}

fn record_of(id: ServerId, join: Join) -> Server {
    let Join { host, client_port, bus_port, replicas, rack, .. } = join;
    Server {
        id,
        host,
        client_port,
        bus_port,
        rack,
        replicas,
        manifest_log: None,
        declared_dead: false,
    }
}
