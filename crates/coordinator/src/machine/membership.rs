//! Servers come, go, and come back.
//!
//! A server's number stands for one run of its process: whoever rejoins under a number has kept
//! everything in memory that it had. The first server of a cluster gets all slots; later ones join
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

/// Why a server is not let in, or not any more.
pub(super) struct Rejection {
    /// For the operator.
    reason: String,
    /// The server holds what another one serves.
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
        // A repetition: the connection has its number.
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

    /// Answers the join of a new server, after its clock was compared.
    pub(super) fn let_in(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        join: Join,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        // Meanwhile somebody may have come who shows that the cluster was made by mistake.
        if let Err(rejection) = self.known_server(&join) {
            self.reject(connection, rejection, out);
            return Ok(());
        }
        self.declare_former_dead(at, &join, out)?;
        let Some(server) = self.admit(at, join)? else {
            let reason = format!("the cluster has {SERVERS_MAX} servers already");
            self.reject(connection, reason.into(), out);
            return Ok(());
        };
        self.connect(at, connection, server, out)
    }

    /// From here on this connection is the server's.
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

    /// Tells a connection why it is of no use, and ends it.
    pub(super) fn reject(
        &mut self,
        connection: ConnectionId,
        Rejection { reason, is_fenced }: Rejection,
        out: &mut Outbox,
    ) {
        tracing::warn!(%connection, reason, "rejected");
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

    /// Judges whether a number that is connected belongs to the process that joins under it again.
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

    /// The number under which the process is known, or why it cannot be let in.
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
            None => Err(format!("{server} is not known here any more; restart the server").into()),
            Some(record) if record.fenced => Err(Rejection::fenced()),
            Some(_) => Ok(Some(server)),
        }
    }

    /// The cluster that a server belongs to by its memory or its disk, if it is not this one.
    fn foreign_cluster(&self, join: &Join) -> Option<ClusterId> {
        let of_memory = join.rejoin.map(|(cluster, _)| cluster);
        let clusters = of_memory.into_iter().chain(join.disk);
        clusters.into_iter().find(|cluster| *cluster != self.ledger.identity().cluster)
    }

    /// A cluster that was just made, and to which a server with data of another one comes, has
    /// probably been made by mistake: where its coordinator's folder should have been an empty one
    /// stood. From then on nobody new is let in, so that no client is served by it.
    fn doubt_if_foreign(&mut self, at: Moment, join: &Join) -> Result<(), Stopped> {
        let ours = self.ledger.identity().cluster;
        self.has_seen_data |= join.disk == Some(ours);
        let is_new = self.ledger.term() == FIRST_TERM && !self.has_seen_data;
        match self.foreign_cluster(join) {
            Some(other) if is_new && self.ledger.doubt().is_none() => {
                let mut edit = self.ledger.edit();
                let doubt = doubt(ours, other);
                tracing::error!(doubt, "nobody new is let in");
                edit.put_doubt(doubt);
                self.commit(at, edit)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The record to be written of a server that is back, if it is not the one that stands there.
    fn changed_record(&self, server: ServerId, join: &Join) -> Option<Server> {
        let known = self.ledger.servers().get(&server);
        let chain = known.and_then(|known| known.chain);
        let record = Server { chain, ..record_of(server, join.clone()) };
        (known != Some(&record)).then_some(record)
    }

    /// A folder belongs to one process at a time: whoever served on the disk of a new one is gone.
    /// It need not be waited for, and the next coordinator must not wait for its word either.
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

    /// Gives a process its number, unless there are too many.
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

    /// The owner of a range that was born has it: from here on it is never given to anybody empty.
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
        // Moves of it have waited.
        self.queue_is_stale = true;
        self.commit(at, edit)
    }

    /// The oldest server that is gone and that nothing depends on.
    fn dispensable_server(&self) -> Option<ServerId> {
        let used = self.used_servers();
        let is_gone = |server: ServerId| self.connection_of(server).is_none();
        let mut servers = self.ledger.servers().keys().copied();
        servers.find(|&server| is_gone(server) && !used.contains(&server))
    }

    /// Servers that own something or have a part in a live migration or a recovery.
    pub(super) fn used_servers(&self) -> BTreeSet<ServerId> {
        let live = self.ledger.migrations().values().filter(|migration| migration.is_live());
        let owners = self.ledger.tablets().values().map(|tablet| tablet.owner);
        // Masters of parts are connected, or soon dead.
        let dead = self.ledger.recoveries().keys().copied();
        owners.chain(live.flat_map(|m| [m.source, m.target])).chain(dead).collect()
    }
}

const TAKEN: &str = "a process is connected under this number; end the other one first, or start \
                     this one as a new server";

/// Why a server with data of another cluster is not let in, and what to do.
fn foreign(join: &Join, other: ClusterId, ours: ClusterId) -> String {
    let what = if join.rejoin.is_some() { "the server" } else { "the disk of this server" };
    format!(
        "{what} belongs to cluster {other}, and this is the coordinator of cluster {ours}: join the \
         coordinator of {other}, or start the server with an empty --data-dir. Nothing was changed. \
         {REBUILD}"
    )
}

/// Why nobody new is let in.
fn doubt(ours: ClusterId, other: ClusterId) -> String {
    format!(
        "cluster {ours} was made because the coordinator's folder (--data-dir) was empty, and then a \
         server with data of cluster {other} came: nobody new is let in. {REBUILD} If {ours} is meant \
         to be a new cluster, start its coordinator in another empty folder, and give that server an \
         empty --data-dir"
    )
}

const REBUILD: &str = "If the coordinator's folder is missing, bring it back; if it is lost, make it \
                       anew with 'ballast coordinator --rebuild --data-dir NEW' and 'ballast cluster \
                       rebuild'.";

/// The term of the coordinator that has made the cluster.
const FIRST_TERM: u64 = 1;

const FENCED: &str = "the server was given up while it was away, and another one serves a range \
                      that it holds; restart it";

fn record_of(id: ServerId, join: Join) -> Server {
    let Join { host, client_port, bus_port, replicas, rack, .. } = join;
    Server { id, host, client_port, bus_port, rack, replicas, chain: None, fenced: false }
}
