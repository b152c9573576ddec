//! The committed configuration in memory, and changes of it.
//!
//! A [`ClusterConfiguration`] is read-only outside of `configuration_store.rs`, which applies an
//! [`Edit`] after it was committed to the metadata store. All queries that need nothing but
//! committed records are here.
//!
//! Invariants:
//! - Tablets do not overlap, and each key is the first hash of its tablet.
//! - Numbers of servers, migrations, epochs and incarnations are below the next ones to be drawn.

use crate::records::{
    AssignedPartition, ClusterIdentity, Ending, LoadProfileRecord, MetaKey, Migration,
    RecoveryRecord, RecoveryStage, Sequences, Server, TabletRecord, Terms, encode, invalidate,
};
use planted::Bug;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use types::limits::DATABASES;
use types::{
    HashRange, KeyHash, MigrationId, OwnershipEpoch, SegmentId, ServerId, TableId, UnixMillis,
};

/// The committed records of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterConfiguration {
    identity: ClusterIdentity,
    counters: Sequences,
    doubt: Option<String>,
    servers: BTreeMap<ServerId, Server>,
    tablets: BTreeMap<KeyHash, TabletRecord>,
    migrations: BTreeMap<MigrationId, Migration>,
    recoveries: BTreeMap<ServerId, RecoveryRecord>,
    load_profiles: BTreeMap<ServerId, LoadProfileRecord>,
}

/// A recovery master's name for its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionKey {
    pub(crate) dead: ServerId,
    pub(crate) range: HashRange,
    pub(crate) epoch: OwnershipEpoch,
}

impl ClusterConfiguration {
    /// Returns a configuration without records.
    pub(crate) fn new(
        identity: ClusterIdentity,
        counters: Sequences,
        doubt: Option<String>,
    ) -> ClusterConfiguration {
        ClusterConfiguration {
            identity,
            counters,
            doubt,
            servers: BTreeMap::new(),
            tablets: BTreeMap::new(),
            migrations: BTreeMap::new(),
            recoveries: BTreeMap::new(),
            load_profiles: BTreeMap::new(),
        }
    }

    /// Begins a change.
    pub(crate) fn edit(&self) -> Edit {
        Edit {
            counters: self.counters,
            doubt: None,
            servers: BTreeMap::new(),
            tablets: BTreeMap::new(),
            migrations: BTreeMap::new(),
            recoveries: BTreeMap::new(),
            load_profiles: BTreeMap::new(),
        }
    }

    /// Applies a change that the metadata store contains.
    pub(crate) fn apply(&mut self, edit: Edit) {
        assert!(edit.counters.are_at_least(&self.counters), "numbers would be assigned twice");
        self.counters = edit.counters;
        self.doubt = edit.doubt.or(self.doubt.take());
        apply(&mut self.servers, edit.servers);
        apply(&mut self.tablets, edit.tablets);
        apply(&mut self.migrations, edit.migrations);
        apply(&mut self.recoveries, edit.recoveries);
        apply(&mut self.load_profiles, edit.load_profiles);
    }

    pub(crate) fn identity(&self) -> ClusterIdentity {
        self.identity
    }

    pub(crate) fn counters(&self) -> &Sequences {
        &self.counters
    }

    /// Returns the recorded reason for doubting that this is the intended cluster.
    pub(crate) fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    pub(crate) fn servers(&self) -> &BTreeMap<ServerId, Server> {
        &self.servers
    }

    /// Returns the tablets by their first hash.
    pub(crate) fn tablets(&self) -> &BTreeMap<KeyHash, TabletRecord> {
        &self.tablets
    }

    pub(crate) fn migrations(&self) -> &BTreeMap<MigrationId, Migration> {
        &self.migrations
    }

    /// Returns the recoveries by dead server.
    pub(crate) fn recoveries(&self) -> &BTreeMap<ServerId, RecoveryRecord> {
        &self.recoveries
    }

    /// Returns the load profiles by server, dead or alive.
    pub(crate) fn load_profiles(&self) -> &BTreeMap<ServerId, LoadProfileRecord> {
        &self.load_profiles
    }
}

/// Queries about servers.
impl ClusterConfiguration {
    /// Returns whether the server's log is replicated, so that its ranges can be recovered.
    pub(crate) fn keeps_log(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(Server::keeps_log)
    }

    /// Returns whether the server was declared dead and is recovered from its log.
    pub(crate) fn is_dead(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|record| record.declared_dead && record.keeps_log())
    }

    /// Returns the servers that were not declared dead.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| !server.declared_dead)
    }

    /// Returns the servers that can confirm the metadata store.
    pub(crate) fn confirmers(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().filter(|server| server.can_confirm())
    }

    /// Returns the newest recorded segment of a server's manifest log.
    pub(crate) fn manifest_log_of(&self, server: ServerId) -> Option<SegmentId> {
        self.servers.get(&server).and_then(|record| record.manifest_log)
    }

    /// Returns whether ranges of the dead server are being recovered.
    pub(crate) fn is_in_recovery(&self, server: ServerId) -> bool {
        let recovery = self.recoveries.get(&server);
        recovery.is_some_and(|r| matches!(r.stage, RecoveryStage::Recovering { .. }))
    }

    /// Returns the servers that own a range or take part in a live migration or a recovery.
    pub(crate) fn used_servers(&self) -> BTreeSet<ServerId> {
        let live = self.migrations.values().filter(|migration| migration.is_live());
        let owners = self.tablets.values().map(|tablet| tablet.owner);
        // Recovery masters need not be included: they are connected, or about to be declared dead.
        let dead = self.recoveries.keys().copied();
        owners.chain(live.flat_map(|m| [m.source, m.target])).chain(dead).collect()
    }
}

/// Queries about tablets.
impl ClusterConfiguration {
    pub(crate) fn owned_by(&self, server: ServerId) -> impl Iterator<Item = HashRange> {
        let tablets = self.tablets.values();
        tablets.filter(move |tablet| tablet.owner == server).map(|tablet| tablet.range)
    }

    /// Returns whether a tablet of this server and epoch overlaps the range.
    pub(crate) fn owns(&self, server: ServerId, range: HashRange, epoch: OwnershipEpoch) -> bool {
        let mut tablets = self.tablets.values();
        tablets.any(|it| it.range.overlaps(range) && (it.owner, it.epoch) == (server, epoch))
    }

    /// Returns the tablet with exactly this range, if the server owns it under this epoch.
    pub(crate) fn tablet(
        &self,
        owner: ServerId,
        range: HashRange,
        epoch: OwnershipEpoch,
    ) -> Option<&TabletRecord> {
        let tablet = self.tablets.get(&range.first());
        tablet.filter(|it| (it.owner, it.range, it.epoch) == (owner, range, epoch))
    }

    /// Returns the tablet that contains a recovery partition.
    ///
    /// # Panics
    /// If no tablet contains all of the range.
    pub(crate) fn tablet_around(&self, range: HashRange) -> &TabletRecord {
        let up_to = self.tablets.range(..=range.first());
        let tablet = up_to.last().map(|(_, tablet)| tablet).filter(|t| t.range.covers(range));
        tablet.expect("a recovery partition lies within one tablet")
    }

    /// Returns the tablets that depend on this dead server's log, although it does not own them.
    pub(crate) fn depending_on(&self, log: ServerId) -> impl Iterator<Item = &TabletRecord> {
        let tablets = self.tablets.values();
        tablets.filter(move |it| it.depends_on.as_ref().is_some_and(|on| on.dead == log))
    }

    /// Returns the source's tablet that contains the migration's range.
    pub(crate) fn tablet_to_move(&self, migration: &Migration) -> Option<&TabletRecord> {
        let up_to = self.tablets.range(..=migration.range.first());
        let (_, tablet) = up_to.last()?;
        let fits = tablet.owner == migration.source && tablet.range.covers(migration.range);
        fits.then_some(tablet)
    }
}

/// Queries about migrations.
impl ClusterConfiguration {
    /// Returns the migrations that have started and not ended.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = &Migration> {
        self.migrations.values().filter(|migration| migration.is_under_way())
    }

    /// Returns a migration with this source.
    pub(crate) fn of_source(&self, source: ServerId, id: MigrationId) -> Option<&Migration> {
        self.migrations.get(&id).filter(|migration| migration.source == source)
    }

    /// Returns a migration with this target.
    pub(crate) fn of_target(&self, target: ServerId, id: MigrationId) -> Option<&Migration> {
        self.migrations.get(&id).filter(|migration| migration.target == target)
    }

    /// Returns whether the migration existed and was dropped from the history.
    pub(crate) fn is_forgotten(&self, id: MigrationId) -> bool {
        id < self.counters.migration && !self.migrations.contains_key(&id)
    }

    /// Returns whether the source's tablet is unchanged since the intent was written, and no
    /// other migration is changing it.
    pub(crate) fn is_still_there(&self, migration: &Migration, terms: &Terms) -> bool {
        let mut others = self.under_way().filter(|other| other.id != migration.id);
        self.tablet_to_move(migration).is_some_and(|tablet| tablet.epoch == terms.source_epoch)
            && !others.any(|other| other.range.overlaps(migration.range))
    }

    /// Returns the ending of a flipped migration, given the servers that are dead now.
    pub(crate) fn ending_of(&self, migration: &Migration) -> Ending {
        assert!(migration.dependency().is_some(), "{} has not flipped", migration.id);
        let Migration { source, target, .. } = *migration;
        match (self.is_dead(source), self.is_dead(target)) {
            (_, false) => Ending::Success,
            (false, true) => {
                let message = format!("{target} died; the part it lacked returned to {source}");
                Ending::Failed(message)
            }
            (true, true) => Ending::Failed(format!("{source} and {target} died")),
        }
    }

    /// Returns whether the incarnations under which the server holds its ranges may be about to
    /// change.
    pub(crate) fn has_uncertain_incarnations(&self, server: ServerId) -> bool {
        let is_side = |m: &&Migration| m.source == server || m.target == server;
        let mut sides = self.migrations.values().filter(is_side);
        sides.any(|m| m.is_undecided() || m.is_recovering())
    }
}

/// Queries about recoveries.
impl ClusterConfiguration {
    /// Returns a recovery and one of its partitions, if this server is the partition's master.
    pub(crate) fn partition_of(
        &self,
        master: ServerId,
        key: PartitionKey,
    ) -> Option<(&RecoveryRecord, &AssignedPartition)> {
        let recovery = self.recoveries.get(&key.dead)?;
        let is_it = |part: &&AssignedPartition| {
            (part.master, part.range, part.epoch) == (master, key.range, key.epoch)
        };
        let part = recovery.parts().iter().find(is_it)?;
        Some((recovery, part))
    }

    /// Returns whether some data is available only from the dead server's log.
    pub(crate) fn is_log_needed(&self, dead: ServerId) -> bool {
        self.owned_by(dead).next().is_some()
            || (self.under_way().any(|m| m.has_side(dead))
                || self.depending_on(dead).next().is_some())
                && !planted::is(Bug::FreedWhileDependedOn)
    }

    /// Returns whether any range of the migration has been assigned to a recovery master.
    pub(crate) fn has_lineage_parts(&self, migration: MigrationId) -> bool {
        let mut parts = self.recoveries.values().flat_map(RecoveryRecord::parts);
        parts.any(|part| part.lineage == Some(migration))
    }

    /// Returns whether another dead server's recovery also assigns ranges from this log.
    pub(crate) fn is_half_of_a_lineage(&self, dead: ServerId) -> bool {
        self.readers_of(dead).into_iter().any(|reader| reader != dead && self.is_dead(reader))
    }

    /// Returns the servers whose recoveries, if they are dead, may have assigned partitions read
    /// from this log.
    pub(crate) fn readers_of(&self, log: ServerId) -> BTreeSet<ServerId> {
        let migrations = self.migrations.values().filter(|m| m.is_recovering());
        let targets = migrations.filter(|m| m.source == log).map(|m| m.target);
        targets.chain(self.depending_on(log).map(|tablet| tablet.owner)).chain([log]).collect()
    }

    /// Returns the assigned partitions of a recovery with their masters, including
    /// served-before-durable ranges.
    pub(crate) fn parts_under_way(&self, recovery: &RecoveryRecord) -> Vec<(HashRange, ServerId)> {
        let parts = recovery.parts().iter().map(|part| (part.range, part.master));
        let served = self.depending_on(recovery.dead).filter(|it| !self.is_dead(it.owner));
        parts.chain(served.map(|tablet| (tablet.range, tablet.owner))).collect()
    }
}

/// An uncommitted change of the configuration.
#[derive(Debug)]
pub(crate) struct Edit {
    pub(crate) counters: Sequences,
    doubt: Option<String>,
    servers: BTreeMap<ServerId, Option<Server>>,
    tablets: BTreeMap<KeyHash, Option<TabletRecord>>,
    migrations: BTreeMap<MigrationId, Option<Migration>>,
    recoveries: BTreeMap<ServerId, Option<RecoveryRecord>>,
    load_profiles: BTreeMap<ServerId, Option<LoadProfileRecord>>,
}

impl Edit {
    /// Records permanently the reason for doubting that this is the intended cluster.
    pub(crate) fn put_doubt(&mut self, doubt: String) {
        self.doubt = Some(doubt);
    }

    pub(crate) fn put_server(&mut self, server: Server) {
        self.servers.insert(server.id, Some(server));
    }

    pub(crate) fn remove_server(&mut self, server: ServerId) {
        self.servers.insert(server, None);
    }

    pub(crate) fn put_tablet(&mut self, tablet: TabletRecord) {
        self.tablets.insert(tablet.range.first(), Some(tablet));
    }

    pub(crate) fn put_migration(&mut self, migration: Migration) {
        self.migrations.insert(migration.id, Some(migration));
    }

    pub(crate) fn remove_migration(&mut self, migration: MigrationId) {
        self.migrations.insert(migration, None);
    }

    pub(crate) fn put_recovery(&mut self, recovery: RecoveryRecord) {
        self.recoveries.insert(recovery.dead, Some(recovery));
    }

    pub(crate) fn remove_recovery(&mut self, dead: ServerId) {
        self.recoveries.insert(dead, None);
    }

    pub(crate) fn put_load_profile(&mut self, profile: LoadProfileRecord) {
        self.load_profiles.insert(profile.server, Some(profile));
    }

    pub(crate) fn remove_load_profile(&mut self, server: ServerId) {
        self.load_profiles.insert(server, None);
    }

    /// Removes a range from the tablets that contain it. Their remaining parts keep epoch and
    /// incarnations.
    pub(crate) fn cut_out(&mut self, range: HashRange, before: &ClusterConfiguration) {
        let cut = |tablet: &&TabletRecord| tablet.range.overlaps(range);
        for tablet in before.tablets.values().filter(cut) {
            self.tablets.insert(tablet.range.first(), None);
            for part in tablet.range.without(range).into_iter().flatten() {
                assert!(!part.overlaps(range), "{range} is cut out and {part} remains");
                self.put_tablet(TabletRecord { range: part, ..tablet.clone() });
            }
        }
    }

    /// Gives a server new incarnations of its ranges: of one table, or of all. Records that are
    /// only in a dead server's log become invalid with them.
    pub(crate) fn renew_incarnations(
        &mut self,
        server: ServerId,
        table: Option<TableId>,
        before: &ClusterConfiguration,
    ) {
        for tablet in before.tablets.values().filter(|tablet| tablet.owner == server) {
            let mut tablet = tablet.clone();
            let drawn_from = self.counters.incarnation;
            if planted::is(Bug::CompletionsFlushed) {
                let completions = usize::from(TableId::COMPLETIONS.0);
                tablet.incarnations[completions] = self.counters.draw_incarnation();
            }
            match table {
                Some(table) => {
                    tablet.incarnations[usize::from(table.0)] = self.counters.draw_incarnation();
                }
                // Completion records outlive a flush.
                None => {
                    let databases = tablet.incarnations.iter_mut().take(DATABASES);
                    databases.for_each(|it| *it = self.counters.draw_incarnation());
                }
            }
            if let Some(on) = &mut tablet.depends_on {
                invalidate(&mut on.old_incarnations, table);
            }
            assert!(
                self.counters.incarnation > drawn_from,
                "{} keeps its incarnations",
                tablet.range
            );
            self.put_tablet(tablet);
        }
    }

    /// Declares servers dead. A replicated log of a newly dead server is recovered.
    pub(crate) fn declare_dead(
        &mut self,
        servers: &BTreeSet<ServerId>,
        wall: UnixMillis,
        before: &ClusterConfiguration,
    ) {
        for recovery in before.recoveries.values() {
            // Their recovery partitions are assigned to other masters.
            let is_alive = |part: &AssignedPartition| !servers.contains(&part.master);
            if let Some(rest) = recovery.with_parts(is_alive)
                && !planted::is(Bug::OrphanNotReassigned)
            {
                self.put_recovery(rest);
            }
        }
        for server in servers.iter().filter_map(|server| before.servers.get(server)) {
            self.put_server(Server { declared_dead: true, ..server.clone() });
            if server.keeps_log() && !server.declared_dead {
                let is_recovered = before.recoveries.contains_key(&server.id);
                assert!(!is_recovered, "{} dies while it is being recovered", server.id);
                self.put_recovery(RecoveryRecord::new(server.id, wall));
            }
        }
    }
}

impl Edit {
    /// Returns whether the edit changes no record, apart from drawn numbers and the doubt.
    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
            && self.tablets.is_empty()
            && self.migrations.is_empty()
            && self.recoveries.is_empty()
            && self.load_profiles.is_empty()
    }

    /// Returns the migrations that the edit changes.
    pub(crate) fn touched_migrations(&self) -> Vec<MigrationId> {
        self.migrations.keys().copied().collect()
    }

    /// Returns whether the edit changes the map for servers.
    pub(crate) fn touches_map(&self, before: &ClusterConfiguration) -> bool {
        let is_live = |migration: Option<&Migration>| migration.is_some_and(Migration::is_live);
        let is_open = |recovery: Option<&RecoveryRecord>| {
            recovery.map(|r| matches!(r.stage, RecoveryStage::Recovering { .. }))
        };
        let mut migrations = self.migrations.iter();
        let mut recoveries = self.recoveries.iter();
        let shown =
            |server: Option<&Server>| server.map(|s| Server { manifest_log: None, ..s.clone() });
        let mut servers = self.servers.iter();
        servers.any(|(id, s)| shown(s.as_ref()) != shown(before.servers.get(id)))
            || !self.tablets.is_empty()
            || recoveries.any(|(id, r)| is_open(r.as_ref()) != is_open(before.recoveries.get(id)))
            || migrations.any(|(id, m)| is_live(m.as_ref()) != is_live(before.migrations.get(id)))
    }

    /// Returns the records to write, encoded; `None` removes a record.
    pub(crate) fn writes(&self, before: &ClusterConfiguration) -> Vec<(MetaKey, Option<Vec<u8>>)> {
        let mut writes = Vec::new();
        if self.counters != before.counters {
            writes.push((MetaKey::Counters, Some(encode(&self.counters))));
        }
        writes.extend(self.doubt.iter().map(|doubt| (MetaKey::Doubt, Some(encode(doubt)))));
        writes.extend(encoded(&self.servers, MetaKey::Server));
        writes.extend(encoded(&self.tablets, MetaKey::Tablet));
        writes.extend(encoded(&self.migrations, MetaKey::Migration));
        writes.extend(encoded(&self.recoveries, MetaKey::Recovery));
        writes.extend(encoded(&self.load_profiles, MetaKey::LoadProfile));
        writes
    }
}

fn encoded<K: Copy, V: Serialize>(
    changes: &BTreeMap<K, Option<V>>,
    key: impl Fn(K) -> MetaKey,
) -> impl Iterator<Item = (MetaKey, Option<Vec<u8>>)> {
    changes.iter().map(move |(&id, value)| (key(id), value.as_ref().map(encode)))
}

fn apply<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::records::MigrationStage;
    use types::limits::TABLES_MAX;
    use types::{ClusterId, Incarnation};
    use wire::control::{MigrationPolicy, MigrationProgress};

    /// Returns the configuration of a cluster that has just been created.
    pub(crate) fn empty() -> ClusterConfiguration {
        let identity = ClusterIdentity { cluster: ClusterId(1), seed: 1 };
        ClusterConfiguration::new(identity, Sequences::FIRST, None)
    }

    /// Returns the terms of an intent.
    pub(crate) fn terms() -> Terms {
        let target_incarnations = vec![Incarnation(2); TABLES_MAX];
        let (source_epoch, target_epoch) = (OwnershipEpoch(1), OwnershipEpoch(2));
        Terms { source_epoch, target_epoch, target_incarnations, bytes: 0 }
    }

    /// Returns a migration of everything from server 1 to server 2.
    pub(crate) fn migration(stage: MigrationStage) -> Migration {
        Migration {
            id: MigrationId(1),
            task: MigrationId(1),
            range: HashRange::ALL,
            source: ServerId(1),
            target: ServerId(2),
            policy: MigrationPolicy::default(),
            created: UnixMillis(0),
            updated: UnixMillis(0),
            progress: MigrationProgress::default(),
            stage,
        }
    }

    /// Returns a configuration with server 1, which owns everything, and this migration.
    pub(crate) fn migrating(stage: MigrationStage) -> ClusterConfiguration {
        let mut configuration = empty();
        let mut edit = configuration.edit();
        edit.put_tablet(TabletRecord {
            range: HashRange::ALL,
            owner: ServerId(1),
            epoch: OwnershipEpoch(1),
            incarnations: vec![Incarnation(1); TABLES_MAX],
            is_born: false,
            depends_on: None,
        });
        edit.put_migration(migration(stage));
        configuration.apply(edit);
        configuration
    }

    #[test]
    fn a_range_is_cut_out_of_its_tablet() {
        let mut configuration = migrating(MigrationStage::Queued);
        let middle = HashRange::new(KeyHash(100), KeyHash(199));
        let mut edit = configuration.edit();
        edit.cut_out(middle, &configuration);
        configuration.apply(edit);
        let left: Vec<HashRange> = configuration.owned_by(ServerId(1)).collect();
        let (below, above) = (KeyHash(99), KeyHash(200));
        let expected =
            [HashRange::new(KeyHash(0), below), HashRange::new(above, HashRange::ALL.last())];
        assert_eq!(left, expected);
    }

    #[test]
    #[should_panic(expected = "numbers would be assigned twice")]
    fn numbers_never_fall() {
        let mut configuration = empty();
        let earlier = configuration.edit();
        let mut edit = configuration.edit();
        edit.counters.draw_server();
        configuration.apply(edit);
        configuration.apply(earlier);
    }
}
