//! Membership: servers join, disconnect and rejoin.
//!
//! A server number identifies one run of a process. A server that rejoins under its number still
//! has everything in memory. The first server of a cluster gets all slots; later servers join
//! empty, and operators move slots to them.

use super::{Coordinator, Presence};
use crate::admission::{SERVERS_MAX, check_address};
use crate::ledger::Stopped;
use crate::outbox::{Caller, ConnectionId, Effect, Moment, Outbox};
use crate::records::{Server, Tablet};
use crate::store::MetaStore;
use std::collections::BTreeSet;
use types::{ClusterId, HashRange, OwnershipEpoch, ServerId};
use wire::control::{FromCoordinator, Join};

/// The reason for not admitting a server, or for closing its connection.
pub(super) struct Rejection {
    /// Explanation for the operator.
    reason: String,
    /// The server was given up and may hold ranges that another server owns.
    is_fenced: bool,
}

impl Rejection {
    pub(super) fn fenced() -> Rejection {
        Rejection { reason: FENCED.to_owned(), is_fenced: true }
    }
}

impl From<String> for Rejection {
    fn from(reason: String) -> Rejection {
        Rejection { reason, is_fenced: false }
    }
}

impl<S: MetaStore> Coordinator<S> {
    pub(super) fn join(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        join: Join,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        // A repeated join: the connection has its number.
        if let Some(Some(server)) = self.connections.get(&connection) {
            self.welcome(*server, connection, out);
            return Ok(());
        }
        self.doubt_if_foreign(at, &join)?;
        let admitted = self.is_same_process(connection, &join);
        if admitted.is_ok() && !self.note_past(at, connection, &join, out)? {
            return Ok(());
        }
        match admitted.and_then(|()| self.known_server(&join)) {
            Err(rejection) => self.reject(connection, rejection, out),
            Ok(Some(server)) => {
                let changed = self.changed_record(server, &join);
                if changed.is_some() && !self.standing.is_confirmed() {
                    self.wait_for_others(connection, join, out);
                    return Ok(());
                }
                if let Some(record) = changed {
                    let mut edit = self.ledger.edit();
                    edit.put_server(record);
                    self.commit(at, edit)?;
                }
                return self.connect(at, connection, server, out);
            }
            Ok(None) if !self.standing.is_confirmed() => {
                self.wait_for_others(connection, join, out);
            }
            Ok(None) if self.must_show_clock(at.now, connection, &join, out) => {}
            Ok(None) => return self.let_in(at, connection, join, out),
        }
        Ok(())
    }

    /// Admits a new server, after its clock was compared.
    pub(super) fn let_in(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        join: Join,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        // Meanwhile another server may have shown that the cluster was created by mistake.
        if let Err(rejection) = self.known_server(&join) {
            self.reject(connection, rejection, out);
            return Ok(());
        }
        self.declare_former_dead(at, &join, out)?;
        let Some(server) = self.admit(at, join)? else {
            let reason = format!("the cluster already has {SERVERS_MAX} servers, the maximum");
            self.reject(connection, reason.into(), out);
            return Ok(());
        };
        self.connect(at, connection, server, out)
    }

    /// Binds a connection to a server, and closes the server's previous one.
    fn connect(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        server: ServerId,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        if let Some(old) = self.connection_of(server) {
            self.connections.remove(&old);
            self.callers.remove(&old);
            self.flushes.retain(|flush| flush.connection != old);
            self.standing.closed(old);
            self.clocks.forget_join(old);
            out.push(Effect::Close { connection: old });
        }
        self.connections.insert(connection, Some(server));
        self.presence.insert(server, Presence::Connected(connection));
        self.end_solitude(at.now);
        self.listen_to(at.now, server);
        self.map_is_stale = true;
        if self.standing.is_confirmed() {
            self.adopt_orphans(at, server)?;
        }
        self.demand_again(at, server);
        self.demand_of_again(server);
        self.welcome(server, connection, out);
        self.ask_clock(at.now, server, out);
        Ok(())
    }

    pub(super) fn closed(&mut self, at: Moment, connection: ConnectionId) {
        self.standing.closed(connection);
        self.callers.remove(&connection);
        self.clocks.forget_join(connection);
        if let Some(Some(server)) = self.connections.remove(&connection) {
            self.clocks.forget(server);
            let since = self.hearing.miss(at.now, server);
            self.presence.insert(server, Presence::Away { since });
            self.flushes.retain(|flush| flush.connection != connection);
            self.map_is_stale = true;
            self.is_alone = !self.connections.values().any(Option::is_some);
        }
    }

    /// Sends the reason for a rejection to a connection, and closes it.
    pub(super) fn reject(
        &mut self,
        connection: ConnectionId,
        Rejection { reason, is_fenced }: Rejection,
        out: &mut Outbox,
    ) {
        tracing::warn!(%connection, reason, "rejected");
        // Its held join or asks must not be processed later: no event tells that it has ended.
        self.standing.closed(connection);
        self.clocks.forget_join(connection);
        self.connections.remove(&connection);
        self.callers.remove(&connection);
        let message = FromCoordinator::Rejected { reason, is_fenced };
        out.push(Effect::Send { connection, message });
        out.push(Effect::Close { connection });
    }

    fn welcome(&self, server: ServerId, connection: ConnectionId, out: &mut Outbox) {
        let identity = self.ledger.identity();
        let (cluster, seed) = (identity.cluster, identity.seed);
        let message = FromCoordinator::Welcome { server, cluster, seed };
        out.push(Effect::Send { connection, message });
    }

    /// Checks that a connected number and the rejoin under it belong to the same process.
    fn is_same_process(&self, connection: ConnectionId, join: &Join) -> Result<(), Rejection> {
        let Some((cluster, server)) = join.rejoin else { return Ok(()) };
        let generation = |connection| match self.callers.get(&connection) {
            Some(Caller::Server { generation, .. }) => Some(*generation),
            Some(Caller::Operator) | None => None,
        };
        let living = self.connection_of(server).and_then(generation);
        let is_ours = cluster == self.ledger.identity().cluster;
        match living.is_none() || living == generation(connection) || !is_ours {
            true => Ok(()),
            false => Err(TAKEN.to_owned().into()),
        }
    }

    /// Returns the number under which the process is known, `None` for a new one, or the reason
    /// for rejecting it.
    fn known_server(&self, join: &Join) -> Result<Option<ServerId>, Rejection> {
        check_address(join)?;
        if let Some(other) = self.foreign_cluster(join) {
            return Err(foreign(join, other, self.ledger.identity().cluster).into());
        }
        let Some((_, server)) = join.rejoin else {
            return match self.ledger.doubt() {
                None => Ok(None),
                Some(doubt) => Err(doubt.to_owned().into()),
            };
        };
        match self.ledger.servers().get(&server) {
            None => Err(format!("{server} is no longer a member here; restart the server").into()),
            Some(record) if record.fenced => Err(Rejection::fenced()),
            Some(_) => Ok(Some(server)),
        }
    }

    /// Returns the cluster to which the server's memory or disk belongs, if it is another one.
    fn foreign_cluster(&self, join: &Join) -> Option<ClusterId> {
        let of_memory = join.rejoin.map(|(cluster, _)| cluster);
        let clusters = of_memory.into_iter().chain(join.disk);
        clusters.into_iter().find(|cluster| *cluster != self.ledger.identity().cluster)
    }

    /// Detects a cluster that was created by mistake: it is new, and a server joins with data of
    /// another cluster. The coordinator probably started on an empty folder in place of its own.
    /// From then on no new server is admitted, so that this cluster serves no client.
    fn doubt_if_foreign(&mut self, at: Moment, join: &Join) -> Result<(), Stopped> {
        let ours = self.ledger.identity().cluster;
        self.has_seen_data |= join.disk == Some(ours);
        let is_new = self.ledger.term() == FIRST_TERM && !self.has_seen_data;
        match self.foreign_cluster(join) {
            Some(other) if is_new && self.ledger.doubt().is_none() => {
                let mut edit = self.ledger.edit();
                let doubt = doubt(ours, other);
                tracing::error!(doubt, "admitting no new servers");
                edit.put_doubt(doubt);
                self.commit(at, edit)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns a rejoining server's record, if it differs from the stored one.
    fn changed_record(&self, server: ServerId, join: &Join) -> Option<Server> {
        let known = self.ledger.servers().get(&server);
        let chain = known.and_then(|known| known.chain);
        let record = Server { chain, ..record_of(server, join.clone()) };
        (known != Some(&record)).then_some(record)
    }

    /// Declares the former server on a new server's disk dead. A folder belongs to one process at a
    /// time, so the former one has ended. Neither this nor the next coordinator need wait for it.
    fn declare_former_dead(
        &mut self,
        at: Moment,
        join: &Join,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        let Some((cluster, former)) = join.former else { return Ok(()) };
        let record = self.ledger.servers().get(&former);
        let is_open = record.is_some_and(|record| record.keeps_log() && !record.fenced);
        let is_ours = cluster == self.ledger.identity().cluster;
        if is_ours && is_open && self.connection_of(former).is_none() {
            return self.declare_dead(at, &BTreeSet::from([former]), out);
        }
        Ok(())
    }

    /// Assigns a number to a new server, unless the cluster is full.
    fn admit(&mut self, at: Moment, join: Join) -> Result<Option<ServerId>, Stopped> {
        let mut edit = self.ledger.edit();
        let leaver = if self.ledger.servers().len() < SERVERS_MAX {
            None
        } else {
            match self.dispensable_server() {
                Some(server) => Some(server),
                None => return Ok(None),
            }
        };
        if let Some(leaver) = leaver {
            edit.remove_server(leaver);
        }
        let server = edit.counters.draw_server();
        edit.put_server(record_of(server, join));
        if self.ledger.tablets().is_empty() {
            let epoch = edit.counters.draw_epoch();
            let tenures = edit.counters.draw_tenures();
            let (range, owner, is_born) = (HashRange::ALL, server, true);
            edit.put_tablet(Tablet { range, owner, epoch, tenures, is_born });
        }
        self.commit(at, edit)?;
        if let Some(leaver) = leaver {
            self.presence.remove(&leaver);
        }
        Ok(Some(server))
    }

    /// Records that the first owner of a new range holds it. From now on the range is never
    /// assigned as an empty one.
    pub(super) fn holding(
        &mut self,
        at: Moment,
        server: ServerId,
        (range, epoch): (HashRange, OwnershipEpoch),
    ) -> Result<(), Stopped> {
        let tablet = self.ledger.tablets().get(&range.first());
        let is_it = |tablet: &&Tablet| {
            tablet.is_born && (tablet.owner, tablet.range, tablet.epoch) == (server, range, epoch)
        };
        let Some(tablet) = tablet.filter(is_it).cloned() else { return Ok(()) };
        let mut edit = self.ledger.edit();
        edit.put_tablet(Tablet { is_born: false, ..tablet });
        // Migrations of it have waited.
        self.queue_is_stale = true;
        self.commit(at, edit)
    }

    /// Returns the oldest disconnected server on which nothing depends.
    fn dispensable_server(&self) -> Option<ServerId> {
        let used = self.used_servers();
        let is_gone = |server: ServerId| self.connection_of(server).is_none();
        let mut servers = self.ledger.servers().keys().copied();
        servers.find(|&server| is_gone(server) && !used.contains(&server))
    }

    /// Returns the servers that own a range or take part in a live migration or a recovery.
    pub(super) fn used_servers(&self) -> BTreeSet<ServerId> {
        let live = self.ledger.migrations().values().filter(|migration| migration.is_live());
        let owners = self.ledger.tablets().values().map(|tablet| tablet.owner);
        // Recovery masters need not be included: they are connected, or about to be declared dead.
        let dead = self.ledger.recoveries().keys().copied();
        owners.chain(live.flat_map(|m| [m.source, m.target])).chain(dead).collect()
    }
}

const TAKEN: &str = "another process is connected under this server's number; stop it first, or \
                     start this one as a new server";

/// Returns the explanation for rejecting a server with data of another cluster.
fn foreign(join: &Join, other: ClusterId, ours: ClusterId) -> String {
    let what = if join.rejoin.is_some() { "the server" } else { "the disk of this server" };
    format!(
        "{what} belongs to cluster {other}, but this is the coordinator of cluster {ours}: join \
         the coordinator of {other}, or start the server with an empty --data-dir. Nothing was \
         changed. {REBUILD}"
    )
}

/// Returns the explanation for admitting no new servers.
fn doubt(ours: ClusterId, other: ClusterId) -> String {
    format!(
        "cluster {ours} was created because the coordinator's data directory (--data-dir) was \
         empty, and then a server with data of cluster {other} came: no new servers are admitted. \
         {REBUILD} If {ours} is meant to be a new cluster, start its coordinator with another \
         empty data directory, and give that server an empty --data-dir"
    )
}

const REBUILD: &str = "If the coordinator's data directory is missing, restore it; if it is lost, \
                       rebuild it with 'ballast coordinator --rebuild --data-dir NEW' and 'ballast \
                       cluster rebuild'.";

/// The term of the coordinator that created the cluster.
const FIRST_TERM: u64 = 1;

const FENCED: &str = "the server was declared dead while it was away, and another server serves a \
                      range that it holds; restart it";

fn record_of(id: ServerId, join: Join) -> Server {
    let Join { host, client_port, bus_port, replicas, rack, .. } = join;
    Server { id, host, client_port, bus_port, rack, replicas, chain: None, fenced: false }
}
