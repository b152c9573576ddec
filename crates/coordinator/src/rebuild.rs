//! Rebuild of a lost coordinator file from the knowledge of the servers.
//!
//! A rebuilding coordinator admits no server. It asks every returning server for its state, and
//! waits for an operator. The resulting file is like any other: demands follow from stages, so a
//! coordinator can resume on it.
//!
//! If all server processes have ended as well, new processes start on their disks. They report the
//! newest map saved there, and the logs with replicas there. The servers that they replace are
//! dead, and are recovered from their logs as usual.
//!
//! `docs/design/coordinator.md`, "When the file is lost", lists the sources of all facts. In short:
//! - The newest map of any server defines the owners.
//! - A server that holds a range under a higher epoch has accepted a later flip, and owns the
//!   range.
//! - The sides of migrations know their intents.
//! - Backups know the newest manifest segments of dead servers.
//! - Numbers continue far above every known one.
//!
//! **Invariant:** nothing is written without the decision of an operator, who has named each
//! missing server.

use crate::configuration_store::{ConfigurationStore, Stopped};
use crate::metastore::{Transaction, Verdict};
use crate::outbox::{Caller, CoordinatorEvent, Effect, Effects, LinkId, Moment};
use crate::records::{
    ClusterIdentity, Ending, InitialRecords, LineageDependency, Migration, MigrationStage,
    RecoveryDependency, RecoveryRecord, Sequences, Server, TabletRecord, Terms,
};
use std::collections::{BTreeMap, BTreeSet};
use types::limits::DATABASES;
use types::{
    ClusterId, HashRange, Incarnation, KeyHash, MigrationId, OwnershipEpoch, SegmentId, ServerId,
};
use wire::control::{
    Answer, Ask, ClusterMap, Description, FromCoordinator, HeldMigration, HeldState, Holdings,
    Intent, Join, JoinReply, MigrationProgress, RebuildReport, ServerInfo, ToCoordinator,
};

/// Server numbers that may have been assigned without being known to any server: only those
/// assigned after the newest known map.
const UNSEEN_SERVERS: u64 = 1 << 12;
/// Migration numbers, epochs and incarnations that may have been drawn without a trace on any
/// living server. Some thousands are drawn between two maps; there is room for 2^15 rebuilds.
const UNSEEN: u64 = 1 << 32;
/// Terms whose maps may have reached no server.
const UNSEEN_TERMS: u64 = 1 << 8;

/// The report of one server, or of a process on its disk.
#[derive(Debug)]
struct ServerReport {
    join: Join,
    map: ClusterMap,
    holdings: Holdings,
}

impl ServerReport {
    /// Returns whether the server itself reported. If not, it is gone, together with everything
    /// that was only in its memory.
    fn lives(&self) -> bool {
        self.join.rejoin.is_some()
    }
}

/// A connected process.
#[derive(Debug)]
enum Guest {
    /// A process that has not sent its join yet.
    Server {
        number: Option<(ClusterId, ServerId)>,
    },
    Operator,
    Asked(AskedServer),
}

/// A server that has been asked for its state.
#[derive(Debug)]
struct AskedServer {
    cluster: ClusterId,
    server: ServerId,
    join: Box<Join>,
    /// The newest map that the server knows, once it has sent it.
    map: Option<ClusterMap>,
}

/// State of the new file.
#[derive(Debug, Default)]
enum FileState {
    #[default]
    Absent,
    /// The transaction that writes it is in flight. The message goes to the operator afterwards.
    Writing(LinkId, FromCoordinator),
    Written,
}

/// A coordinator that collects the servers' knowledge of the cluster, to write the lost file anew.
#[derive(Debug, Default)]
pub struct Rebuilding {
    file: FileState,
    guests: BTreeMap<LinkId, Guest>,
    told: BTreeMap<ServerId, ServerReport>,
    /// Cluster of the first server that reported.
    identity: Option<ClusterIdentity>,
}

impl Rebuilding {
    /// Begins a rebuild without any knowledge.
    pub fn new() -> Rebuilding {
        Rebuilding::default()
    }

    /// Returns whether the file has been written.
    pub fn is_written(&self) -> bool {
        matches!(self.file, FileState::Written)
    }

    /// Applies one event; the only way to change the machine.
    ///
    /// # Errors
    /// The store is not empty.
    pub fn handle(
        &mut self,
        at: Moment,
        event: CoordinatorEvent,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        match event {
            CoordinatorEvent::Opened { connection, caller } => {
                let guest = match caller {
                    Caller::Operator => Guest::Operator,
                    Caller::Server { number, .. } => Guest::Server { number },
                };
                self.guests.insert(connection, guest);
            }
            CoordinatorEvent::Closed { connection } => {
                self.guests.remove(&connection);
            }
            CoordinatorEvent::Committed(verdict) => {
                let before = std::mem::replace(&mut self.file, FileState::Written);
                let FileState::Writing(connection, message) = before else {
                    panic!("a verdict about no transaction: {verdict:?}");
                };
                match verdict {
                    Verdict::Committed(_) => out.push(Effect::Send { connection, message }),
                    Verdict::Conflict(_) => return Err(Stopped::NotEmpty),
                }
            }
            CoordinatorEvent::Tick => {}
            CoordinatorEvent::Received { connection, message } => {
                match self.guests.remove(&connection) {
                    Some(Guest::Server { number }) => self.greet(connection, number, message, out),
                    Some(Guest::Operator) => self.operate(at, connection, message, out),
                    Some(Guest::Asked(asked)) => self.listen(connection, asked, message, out),
                    // The connection was closed here.
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn greet(
        &mut self,
        connection: LinkId,
        number: Option<(ClusterId, ServerId)>,
        message: ToCoordinator,
        out: &mut Effects,
    ) {
        match message {
            ToCoordinator::Join(join) if join.rejoin == number => match teller(&join) {
                Some((cluster, server)) => {
                    out.push(Effect::Send { connection, message: JoinReply::Describe.into() });
                    let join = Box::new(join);
                    let asked = AskedServer { cluster, server, join, map: None };
                    self.guests.insert(connection, Guest::Asked(asked));
                }
                None => send_away(connection, STRANGER, out),
            },
            _ => send_away(connection, UNEXPECTED, out),
        }
    }

    /// Records a server's report and rejects the server. It returns and reports changes until the
    /// file is written.
    fn listen(
        &mut self,
        connection: LinkId,
        asked: AskedServer,
        message: ToCoordinator,
        out: &mut Effects,
    ) {
        let AskedServer { cluster, server, join, map } = asked;
        match (message, map) {
            (ToCoordinator::Described(Description::KnownMap(map)), _) => {
                let asked = AskedServer { cluster, server, join, map: Some(*map) };
                self.guests.insert(connection, Guest::Asked(asked));
            }
            (ToCoordinator::Described(Description::Holds(holdings)), Some(map)) => {
                let told = ClusterIdentity { cluster, seed: holdings.seed };
                if *self.identity.get_or_insert(told) == told {
                    let news = ServerReport { join: *join, map, holdings: *holdings };
                    // A process on a living server's disk knows less than that server.
                    let known = self.told.get(&server);
                    if news.lives() || !known.is_some_and(ServerReport::lives) {
                        self.told.insert(server, news);
                    }
                    send_away(connection, WAIT, out);
                } else {
                    send_away(connection, ANOTHER_CLUSTER, out);
                }
            }
            // Other messages are meant for the server's former coordinator.
            (_, map) => {
                let asked = AskedServer { cluster, server, join, map };
                self.guests.insert(connection, Guest::Asked(asked));
            }
        }
    }

    fn operate(
        &mut self,
        at: Moment,
        connection: LinkId,
        message: ToCoordinator,
        out: &mut Effects,
    ) {
        self.guests.insert(connection, Guest::Operator);
        let ToCoordinator::Ask { request, ask } = message else { return };
        let answered = match (ask, &self.file) {
            (Ask::Rebuild { without, go }, FileState::Absent) => self.rebuild(at, &without, go),
            _ => Err(WAIT.to_owned()),
        };
        let (answer, transaction) = match answered {
            Ok((report, transaction)) => (Answer::Rebuild(report), transaction),
            Err(reason) => (Answer::Refused(reason), None),
        };
        let message = FromCoordinator::Answer { request, answer };
        match transaction {
            Some(transaction) => {
                self.file = FileState::Writing(connection, message);
                out.push(Effect::Commit(transaction));
            }
            None => out.push(Effect::Send { connection, message }),
        }
    }

    /// Returns the report for an operator and, if the operator has decided, the transaction that
    /// writes the file.
    ///
    /// # Errors
    /// The reason for refusing the request.
    fn rebuild(
        &self,
        at: Moment,
        without: &[ServerId],
        go: bool,
    ) -> Result<(RebuildReport, Option<Transaction>), String> {
        let identity = self.identity.ok_or("no server has joined yet")?;
        let absent = self.absent();
        let report = RebuildReport {
            found: self.told.keys().copied().collect(),
            absent: absent.iter().copied().collect(),
            is_done: go,
        };
        if !go {
            return Ok((report, None));
        }
        if without.iter().copied().collect::<BTreeSet<_>>() != absent {
            let missing = RebuildReport::names(&report.absent);
            return Err(format!("other servers are missing than named; missing is: {missing}"));
        }
        let records = self.records(at, &absent)?;
        Ok((report, Some(ConfigurationStore::first_transaction(identity, records))))
    }

    /// Returns the newest map of any server.
    fn newest(&self) -> Option<&ClusterMap> {
        let maps = self.told.values().map(|told| &told.map).filter(|map| map.version > 0);
        maps.max_by_key(|map| map.version)
    }

    /// Returns the servers that lived according to the newest map and have not reported.
    fn absent(&self) -> BTreeSet<ServerId> {
        let servers = self.newest().into_iter().flat_map(|map| &map.servers);
        let living = servers.filter(|server| !server.is_dead).map(|server| server.id);
        let absent: BTreeSet<_> = living.filter(|server| !self.told.contains_key(server)).collect();
        assert!(self.told.keys().all(|it| !absent.contains(it)), "an absent server has reported");
        absent
    }
}

/// The evaluation of the reports.
impl Rebuilding {
    /// Returns the records of the rebuilt file.
    ///
    /// # Errors
    /// A fact that cannot be determined.
    fn records(&self, at: Moment, absent: &BTreeSet<ServerId>) -> Result<InitialRecords, String> {
        let map = self.newest().ok_or("no server knows the cluster map")?;
        let servers = self.servers(map, absent);
        let mut tablets = self.tablets(map);
        self.note_dependencies(&mut tablets, map);
        let dead: Vec<&Server> = servers.iter().filter(|server| server.declared_dead).collect();
        let needs = |tablet: &TabletRecord, server: &Server| {
            let of_dead = tablet.depends_on.as_ref().map(|on| on.dead);
            tablet.owner == server.id || of_dead == Some(server.id)
        };
        let is_needed = |server: &Server| tablets.iter().any(|tablet| needs(tablet, server));
        let is_side = |server: &Server| {
            self.migrations()
                .any(|it| it.intent.source == server.id || it.intent.target == server.id)
        };
        let recovered = dead
            .into_iter()
            .filter(|server| server.keeps_log() && (is_needed(server) || is_side(server)));
        Ok(InitialRecords {
            term: above(map.version >> 32, UNSEEN_TERMS, u32::MAX.into(), "term")?,
            counters: self.counters(map, &tablets)?,
            recoveries: recovered.map(|server| RecoveryRecord::new(server.id, at.wall)).collect(),
            migrations: self.rebuilt_migrations(at, map)?,
            servers,
            tablets,
        })
    }

    /// Returns the tablets from the newest map, overridden by any server that holds a range under
    /// a higher epoch: it accepted a flip after that map.
    fn tablets(&self, map: &ClusterMap) -> Vec<TabletRecord> {
        let of_map = map.tablets.iter().map(|info| TabletRecord {
            range: info.range,
            owner: info.owner,
            epoch: info.epoch,
            incarnations: info.incarnations.clone(),
            is_born: info.is_born,
            depends_on: None,
        });
        let mut tablets: Vec<TabletRecord> = of_map.collect();
        for (&owner, told) in &self.told {
            let owned = told.holdings.tablets.iter().filter(|held| held.state == HeldState::Owned);
            for held in owned {
                let (epoch, incarnations) = (held.epoch, &held.incarnations);
                tablets = tablets
                    .into_iter()
                    .flat_map(|tablet| {
                        let inside = tablet.range.intersection(held.range);
                        let inside = inside.filter(|_| tablet.epoch < epoch);
                        let Some(inside) = inside else { return vec![tablet] };
                        let rest = tablet.range.without(inside).into_iter().flatten();
                        let mut parts: Vec<TabletRecord> =
                            rest.map(|range| TabletRecord { range, ..tablet.clone() }).collect();
                        parts.push(TabletRecord {
                            range: inside,
                            owner,
                            epoch,
                            incarnations: incarnations.clone(),
                            is_born: false,
                            depends_on: None,
                        });
                        parts
                    })
                    .collect();
            }
        }
        tablets.sort_by_key(|tablet| tablet.range);
        tablets
    }

    /// Records which tablets depend on a dead server's log, because their owners' own logs may lack
    /// a part of them. If the log is not being recovered according to the newest map, the lost file
    /// knew that no tablet depends on it.
    fn note_dependencies(&self, tablets: &mut [TabletRecord], map: &ClusterMap) {
        let is_there = |dead: ServerId| {
            map.servers.iter().any(|it| it.id == dead && it.is_dead && it.in_recovery)
        };
        for (&owner, told) in self.told.iter().filter(|(_, told)| told.lives()) {
            for held in &told.holdings.tablets {
                let on = held.depends_on.as_ref();
                let Some(on) = on.filter(|on| told.join.replicas > 0 && is_there(on.dead)) else {
                    continue;
                };
                let is_it = |tablet: &&mut TabletRecord| {
                    (tablet.owner, tablet.epoch) == (owner, held.epoch)
                        && tablet.range.overlaps(held.range)
                };
                for tablet in tablets.iter_mut().filter(is_it) {
                    let (dead, mut old_incarnations) = (on.dead, on.old_incarnations.clone());
                    // Tables that the owner has still to flush.
                    let known = tablet.incarnations.iter().zip(&held.incarnations);
                    let old = old_incarnations.iter_mut().zip(known);
                    let flushed = old.filter(|(_, (newest, held))| newest != held);
                    flushed.for_each(|(old, _)| *old = Incarnation(0));
                    tablet.depends_on = Some(RecoveryDependency { dead, old_incarnations });
                }
            }
        }
    }

    fn servers(&self, map: &ClusterMap, absent: &BTreeSet<ServerId>) -> Vec<Server> {
        let replicas = self.told.values().map(|told| told.join.replicas).max().unwrap_or(0);
        let living = self.told.iter().filter(|(_, told)| told.lives());
        let told = living.map(|(&id, ServerReport { join, holdings, .. })| Server {
            id,
            host: join.host.clone(),
            client_port: join.client_port,
            bus_port: join.bus_port,
            rack: join.rack.clone(),
            replicas: join.replicas,
            manifest_log: holdings.manifest_log,
            declared_dead: false,
        });
        // Missing servers without replicated logs are not declared dead: the cluster waits for
        // them.
        let lives = |server: ServerId| self.told.get(&server).is_some_and(ServerReport::lives);
        let gone = map.servers.iter().filter(|server| !lives(server.id));
        let gone = gone.map(|server| {
            let ServerInfo { id, host, client_port, bus_port, rack, is_dead, .. } = server.clone();
            let is_missing = absent.contains(&id) || self.told.contains_key(&id);
            let declared_dead = is_dead || (is_missing && replicas > 0);
            let manifest_log = (replicas > 0).then(|| self.manifest_log_of(id));
            Server { id, host, client_port, bus_port, rack, replicas, manifest_log, declared_dead }
        });
        told.chain(gone).collect()
    }

    /// Returns the newest manifest segment of a log that any backup holds. If none holds any,
    /// returns a nonexistent segment, so that the recovery waits: it is not known that there was
    /// none.
    fn manifest_log_of(&self, log: ServerId) -> SegmentId {
        let logs = self.told.values().flat_map(|told| &told.holdings.logs);
        let manifest_logs =
            logs.filter(|(of, _)| *of == log).filter_map(|(_, manifest_log)| *manifest_log);
        manifest_logs.max().unwrap_or(SegmentId(u64::MAX))
    }

    fn migrations(&self) -> impl Iterator<Item = &HeldMigration> {
        self.told.values().flat_map(|told| &told.holdings.migrations)
    }

    /// Returns counters above every number known to any server.
    fn counters(&self, map: &ClusterMap, tablets: &[TabletRecord]) -> Result<Sequences, String> {
        let held = || self.told.values().flat_map(|told| &told.holdings.tablets);
        let intents = || self.migrations().map(|it| &it.intent);
        let logs = self.told.values().flat_map(|told| &told.holdings.logs).map(|log| log.0);
        let servers = map.servers.iter().map(|server| server.id).chain(logs);
        let server = servers.chain(self.told.keys().copied()).max().unwrap_or_default();
        let epochs = tablets.iter().map(|tablet| tablet.epoch).chain(held().map(|it| it.epoch));
        let epoch = epochs.chain(intents().map(|it| it.target_epoch)).max().unwrap_or_default();
        let lists = tablets.iter().map(|tablet| &tablet.incarnations);
        let lists = lists.chain(held().map(|it| &it.incarnations));
        let lists = lists.chain(intents().map(|it| &it.target_incarnations));
        let incarnation = lists.flat_map(|list| drawn(list)).max();
        let incarnation = incarnation.map_or(0, |incarnation| incarnation.0);
        let migration = intents().map(|it| it.migration).max().unwrap_or_default();
        let server =
            above(server.0.into(), UNSEEN_SERVERS, u32::MAX.into(), "server number")? as u32;
        let mut known = self.told.keys();
        assert!(known.all(|it| it.0 < server), "a server number would be assigned twice");
        Ok(Sequences {
            server: ServerId(server),
            migration: MigrationId(above(migration.0, UNSEEN, u64::MAX, "migration number")?),
            epoch: OwnershipEpoch(above(epoch.0, UNSEEN, u64::MAX, "epoch")?),
            incarnation: Incarnation(above(
                incarnation,
                UNSEEN,
                Incarnation::MAX.0,
                "incarnation",
            )?),
        })
    }

    /// Returns the migrations that had not ended according to one of their sides. Queued
    /// migrations are lost.
    fn rebuilt_migrations(&self, at: Moment, map: &ClusterMap) -> Result<Vec<Migration>, String> {
        let mut intents: BTreeMap<MigrationId, HeldMigration> = BTreeMap::new();
        for held in self.migrations() {
            let known = intents.entry(held.intent.migration).or_insert_with(|| held.clone());
            known.is_accepted |= held.is_accepted;
        }
        intents.into_values().map(|held| self.migration(at, map, held)).collect()
    }

    fn migration(
        &self,
        at: Moment,
        map: &ClusterMap,
        held: HeldMigration,
    ) -> Result<Migration, String> {
        let HeldMigration { intent, is_accepted } = held;
        let (id, range) = (intent.migration, intent.range);
        let is_known = map
            .tablets
            .iter()
            .any(|info| info.epoch == intent.target_epoch && info.range.overlaps(range));
        let stage = if is_accepted || is_known {
            let source_incarnations = self.source_incarnations(map, &intent);
            let source_incarnations = source_incarnations.ok_or_else(|| {
                format!("the incarnations under which {} held {range} are not known", intent.source)
            })?;
            MigrationStage::Moving(LineageDependency {
                remaining: vec![range],
                source_incarnations,
            })
        } else {
            let terms = Terms {
                source_epoch: intent.source_epoch,
                target_epoch: intent.target_epoch,
                target_incarnations: intent.target_incarnations.clone(),
                bytes: intent.bytes,
            };
            MigrationStage::Deciding { terms, otherwise: Ending::Failed(LOST.to_owned()) }
        };
        Ok(Migration {
            id,
            task: id,
            range,
            source: intent.source,
            target: intent.target,
            policy: intent.policy,
            created: at.wall,
            updated: at.wall,
            progress: MigrationProgress::default(),
            stage,
        })
    }

    /// Returns the incarnations under which the source holds the moving range.
    fn source_incarnations(&self, map: &ClusterMap, intent: &Intent) -> Option<Vec<Incarnation>> {
        let (source, range) = (intent.source, intent.range);
        let has = |first: KeyHash, other: HashRange| other.contains(first);
        let told = self.told.get(&source).into_iter();
        let held = told.flat_map(|told| &told.holdings.tablets);
        let held =
            held.filter(|held| has(range.first(), held.range)).map(|held| &held.incarnations);
        let all = std::iter::once(map).chain(self.told.values().map(|told| &told.map));
        let infos = all.flat_map(|map| &map.tablets).filter(|info| info.owner == source);
        let infos =
            infos.filter(|info| has(range.first(), info.range)).map(|info| &info.incarnations);
        held.chain(infos).next().cloned()
    }
}

/// Returns the incarnations of a range that were drawn. That of the completion records may have
/// been derived.
fn drawn(incarnations: &[Incarnation]) -> impl Iterator<Item = Incarnation> {
    let of_databases = incarnations.iter().take(DATABASES);
    let others = incarnations.iter().skip(DATABASES);
    of_databases.chain(others.filter(|it| **it < Incarnation::FIRST_DERIVED)).copied()
}

/// Returns a number above every one that may have been drawn: `unseen` above the highest known
/// one.
///
/// # Errors
/// Less than half of the numbers up to `max` would be left. Only a faulty server reports so high
/// a number, and the coordinator must not run out of numbers.
fn above(known: u64, unseen: u64, max: u64, what: &str) -> Result<u64, String> {
    let above = known.saturating_add(unseen);
    let too_high = || format!("a server reports the {what} {known}, which is impossibly high");
    (above <= max / 2).then_some(above).ok_or_else(too_high)
}

/// Returns the number of the server whose state a process can report: its own, or the one whose
/// disk it has.
fn teller(join: &Join) -> Option<(ClusterId, ServerId)> {
    join.rejoin.or(join.former)
}

fn send_away(connection: LinkId, reason: &str, out: &mut Effects) {
    let message = JoinReply::Rejected { reason: reason.to_owned(), is_fenced: false }.into();
    out.push(Effect::Send { connection, message });
    out.push(Effect::Close { connection });
}

const WAIT: &str = "the coordinator's file is being rebuilt: see 'ballast cluster rebuild'";
const STRANGER: &str = "the coordinator's file is being rebuilt, and no new servers are admitted \
                        until then: see 'ballast cluster rebuild'";
const ANOTHER_CLUSTER: &str =
    "the server belongs to another cluster than the servers that joined before it";
const UNEXPECTED: &str = "the first message must be a join with the server number of the handshake";
const LOST: &str = "the coordinator's file was lost";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Coordinator, CoordinatorSettings};
    use crate::metastore::{MemoryStore, MetaStore};
    use crate::records::Drawn;
    use types::limits::TABLES_MAX;
    use types::{Generation, Instant, Slot, UnixMillis};
    use wire::control::{HeldTablet, MigrationPolicy, RecoveryLog, TabletInfo};

    const AT: Moment = Moment { now: Instant(0), wall: UnixMillis(1) };
    const CLUSTER: ClusterId = ClusterId(7);

    fn incarnations(first: u64) -> Vec<Incarnation> {
        (first..first + TABLES_MAX as u64).map(Incarnation).collect()
    }

    fn slots(first: u16, last: u16) -> HashRange {
        HashRange::of_slots(Slot(first), Slot(last))
    }

    /// Returns a map with living servers of these numbers; the first one owns everything.
    fn map(version: u64, servers: &[u32]) -> ClusterMap {
        let server = |&id: &u32| ServerInfo {
            id: ServerId(id),
            host: "host".into(),
            client_port: 1,
            bus_port: 2,
            connected: true,
            rack: String::new(),
            is_dead: false,
            in_recovery: false,
        };
        let (owner, epoch) = (ServerId(1), OwnershipEpoch(1));
        let (range, incarnations) = (HashRange::ALL, incarnations(1));
        let all = TabletInfo { range, owner, epoch, incarnations, is_born: false };
        ClusterMap {
            version: (3 << 32) + version,
            cluster: CLUSTER,
            servers: servers.iter().map(server).collect(),
            tablets: vec![all],
            moving: Vec::new(),
        }
    }

    fn holdings(manifest_log: u64) -> Holdings {
        let manifest_log = Some(SegmentId(manifest_log));
        Holdings { seed: 42, manifest_log, tablets: vec![], migrations: vec![], logs: vec![] }
    }

    /// Returns a range that has flipped from the first server to the second one.
    fn flipped(range: HashRange) -> (HeldMigration, HeldTablet) {
        let (epoch, incarnations) = (OwnershipEpoch(9), incarnations(100));
        let intent = Intent {
            migration: MigrationId(5),
            range,
            source: ServerId(1),
            target: ServerId(2),
            source_epoch: OwnershipEpoch(1),
            target_epoch: epoch,
            target_incarnations: incarnations.clone(),
            bytes: 1,
            policy: MigrationPolicy::default(),
        };
        let (state, depends_on) = (HeldState::Owned, None);
        let held = HeldTablet { range, epoch, incarnations, state, depends_on };
        (HeldMigration { intent, is_accepted: true }, held)
    }

    #[test]
    fn disks_alone_tell_enough_for_everything_to_be_recovered() {
        let mut world = World::new();
        let manifest_logs =
            |manifest_log| vec![(ServerId(1), Some(SegmentId(manifest_log))), (ServerId(2), None)];
        let of_disk = |manifest_log| Holdings {
            manifest_log: None,
            logs: manifest_logs(manifest_log),
            ..holdings(0)
        };
        world.tell_of_disk(1, map(0, &[]), of_disk(2));
        assert!(matches!(world.ask(&[], true), Answer::Refused(_)), "there is no map yet");
        world.tell_of_disk(2, map(4, &[1, 2]), of_disk(3));
        assert!(matches!(world.ask(&[], true), Answer::Rebuild(_)));
        let drawn = Drawn { fresh: ClusterIdentity { cluster: ClusterId(1), seed: 1 }, term: 1 };
        let coordinator =
            Coordinator::open(&mut world.store, drawn, CoordinatorSettings::default(), AT.now)
                .unwrap();
        let map = coordinator.map();
        let servers = map.servers.iter().map(|server| (server.id, server.is_dead));
        assert_eq!(
            servers.collect::<Vec<_>>(),
            [(ServerId(1), true)],
            "a server that owned nothing is dropped"
        );
        let recoveries = coordinator.recoveries();
        assert_eq!(recoveries.len(), 1);
        assert_eq!(
            (recoveries[0].dead, &recoveries[0].ranges[..]),
            (ServerId(1), &[HashRange::ALL][..])
        );
    }

    #[test]
    fn a_log_is_kept_while_a_served_range_depends_on_it() {
        let mut world = World::new();
        let mut map = map(1, &[2, 1]);
        (map.servers[0].is_dead, map.servers[0].in_recovery) = (true, true);
        let log = |dead: u32, flushed: usize| {
            let mut old_incarnations = incarnations(100);
            old_incarnations[flushed] = Incarnation(0);
            RecoveryLog { dead: ServerId(dead), old_incarnations }
        };
        let of = |first, last, dead| HeldTablet {
            range: slots(first, last),
            epoch: OwnershipEpoch(1),
            incarnations: incarnations(1),
            state: HeldState::Owned,
            depends_on: Some(log(dead, 5)),
        };
        map.tablets[0].range = slots(0, 99);
        let rest = TabletInfo { range: slots(100, 16_383), ..map.tablets[0].clone() };
        map.tablets.push(rest);
        // Table 3 is to be flushed according to the newest map.
        map.tablets[0].incarnations[3] = Incarnation(77);
        // The recovery of s4 is over, and s1 lives.
        let tablets = vec![of(0, 99, 2), of(100, 199, 4), of(200, 299, 1)];
        let logs = vec![(ServerId(2), Some(SegmentId(6)))];
        world.tell(1, map, Holdings { tablets, logs, ..holdings(4) });
        assert!(matches!(world.ask(&[], true), Answer::Rebuild(_)));
        let drawn = Drawn { fresh: ClusterIdentity { cluster: ClusterId(1), seed: 1 }, term: 1 };
        let settings = CoordinatorSettings::default();
        let store = ConfigurationStore::open(&mut world.store, drawn.fresh, drawn.term).unwrap();
        let tablets = store.configuration().tablets().values();
        let mut on = tablets.map(|tablet| tablet.depends_on.clone());
        let mut old_incarnations = log(2, 5).old_incarnations;
        old_incarnations[3] = Incarnation(0);
        assert_eq!(
            on.next(),
            Some(Some(RecoveryDependency { dead: ServerId(2), old_incarnations }))
        );
        assert_eq!(on.next(), Some(None));
        let coordinator = Coordinator::open(&mut world.store, drawn, settings, AT.now).unwrap();
        let recoveries = coordinator.recoveries();
        let parts = recoveries.iter().map(|it| (it.dead, &it.ranges[..], &it.parts[..]));
        let expected = (ServerId(2), &[][..], &[(slots(0, 99), ServerId(1))][..]);
        assert_eq!(parts.collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn numbers_that_leave_too_few_are_refused() {
        let highest = [
            |held: &mut HeldTablet| held.incarnations.fill(Incarnation::MAX),
            |held: &mut HeldTablet| held.epoch = OwnershipEpoch(u64::MAX - UNSEEN),
        ];
        for raise in highest {
            let (_, mut held) = flipped(HashRange::ALL);
            raise(&mut held);
            let mut world = World::new();
            world.tell(1, map(1, &[1]), Holdings { tablets: vec![held], ..holdings(4) });
            let answer = world.ask(&[], true);
            assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        }
        let mut world = World::new();
        world.tell(1, ClusterMap { version: u64::MAX, ..map(1, &[1]) }, holdings(4));
        let answer = world.ask(&[], true);
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }

    struct World {
        rebuilding: Rebuilding,
        store: MemoryStore,
        connections: u64,
    }

    impl World {
        fn new() -> World {
            World { rebuilding: Rebuilding::new(), store: MemoryStore::new(), connections: 0 }
        }

        fn say(&mut self, caller: Caller, messages: Vec<ToCoordinator>) -> Vec<Effect> {
            self.connections += 1;
            let connection = LinkId(self.connections);
            let mut out = Effects::new();
            self.rebuilding
                .handle(AT, CoordinatorEvent::Opened { connection, caller }, &mut out)
                .unwrap();
            for message in messages {
                let event = CoordinatorEvent::Received { connection, message };
                self.rebuilding.handle(AT, event, &mut out).unwrap();
            }
            let mut effects: Vec<Effect> = out.drain().collect();
            if let [Effect::Commit(transaction)] = &effects[..] {
                let verdict = self.store.transact(transaction).unwrap();
                self.rebuilding.handle(AT, CoordinatorEvent::Committed(verdict), &mut out).unwrap();
                effects = out.drain().collect();
            }
            effects
        }

        fn tell(&mut self, server: u32, map: ClusterMap, holdings: Holdings) {
            let rejoin = Some((CLUSTER, ServerId(server)));
            self.tell_as(rejoin, None, map, holdings);
        }

        /// Reports as a new process on the server's disk.
        fn tell_of_disk(&mut self, server: u32, map: ClusterMap, holdings: Holdings) {
            let former = Some((CLUSTER, ServerId(server)));
            let map = if map.servers.is_empty() { ClusterMap { version: 0, ..map } } else { map };
            self.tell_as(None, former, map, holdings);
        }

        fn tell_as(
            &mut self,
            rejoin: Option<(ClusterId, ServerId)>,
            former: Option<(ClusterId, ServerId)>,
            map: ClusterMap,
            holdings: Holdings,
        ) {
            let join = Join {
                host: "host".into(),
                client_port: 1,
                bus_port: 2,
                rejoin,
                replicas: 2,
                rack: String::new(),
                disk: None,
                former,
                mark: None,
            };
            let known = Description::KnownMap(Box::new(map)).into();
            let holds = Description::Holds(Box::new(holdings)).into();
            let number = join.rejoin;
            let caller = Caller::Server { number, generation: Generation(1) };
            let effects = self.say(caller, vec![ToCoordinator::Join(join), known, holds]);
            assert_eq!(effects.len(), 3, "asked, and sent away");
        }

        fn ask(&mut self, without: &[u32], go: bool) -> Answer {
            let without = without.iter().copied().map(ServerId).collect();
            let ask = ToCoordinator::Ask { request: 1, ask: Ask::Rebuild { without, go } };
            match self.say(Caller::Operator, vec![ask]).pop() {
                Some(Effect::Send { message: FromCoordinator::Answer { answer, .. }, .. }) => {
                    answer
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn who_holds_a_range_under_a_higher_epoch_owns_it_whatever_maps_say() {
        let mut world = World::new();
        assert!(matches!(world.ask(&[], true), Answer::Refused(_)), "nothing is known");
        let (migration, held) = flipped(slots(0, 9));
        let (tablets, migrations) = (vec![held], vec![migration]);
        world.tell(2, map(1, &[1, 2]), Holdings { tablets, migrations, ..holdings(4) });
        world.tell(1, map(2, &[1, 2, 3]), holdings(8));
        let kept = Holdings { logs: vec![(ServerId(3), Some(SegmentId(6)))], ..holdings(4) };
        world.tell(2, map(2, &[1, 2, 3]), Holdings { ..kept.clone() });
        // The server reports again, with its original tablets.
        let (migration, held) = flipped(slots(0, 9));
        let (tablets, migrations) = (vec![held], vec![migration]);
        world.tell(2, map(1, &[1, 2]), Holdings { tablets, migrations, ..kept });

        assert!(matches!(world.ask(&[], true), Answer::Refused(_)), "s3 is missing");
        assert!(matches!(world.ask(&[2, 3], true), Answer::Refused(_)), "s2 is not");
        assert!(!world.rebuilding.is_written());
        assert!(matches!(world.ask(&[3], true), Answer::Rebuild(_)));
        assert!(world.rebuilding.is_written());

        let fresh = ClusterIdentity { cluster: ClusterId(1), seed: 1 };
        let drawn = Drawn { fresh, term: 1 };
        let coordinator =
            Coordinator::open(&mut world.store, drawn, CoordinatorSettings::default(), AT.now)
                .unwrap();
        assert_eq!(coordinator.identity(), ClusterIdentity { cluster: CLUSTER, seed: 42 });
        let map = coordinator.map();
        assert!(map.version > 4 << 32, "no map of before is newer");
        let owners = map.tablets.iter().map(|tablet| (tablet.range, tablet.owner));
        let expected = [(slots(0, 9), ServerId(2)), (slots(10, 16_383), ServerId(1))];
        assert_eq!(owners.collect::<Vec<_>>(), expected);
        assert_eq!(map.moving, [(slots(0, 9), ServerId(1), ServerId(2))]);
        // A dead server that owned nothing is not in the map.
        let named = map.servers.iter().map(|server| server.id);
        assert_eq!(named.collect::<Vec<_>>(), [ServerId(1), ServerId(2)]);
    }
}
