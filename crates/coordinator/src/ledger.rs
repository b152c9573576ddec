//! The committed configuration: an in-memory copy of the metadata store, and the only way to
//! change it.
//!
//! A change is collected in an [`Edit`] and committed as one compare-and-swap transaction. The
//! transaction expects each affected record at the revision last read, and the *term* to be this
//! coordinator's. Memory changes only after the commit. If the store refuses or fails, the
//! coordinator stops and its runner opens the store again. Starting and recovering are thus the
//! same code.
//!
//! The store's revisions number its transactions. A term's record is written when the term
//! begins, so its revision bounds the transactions of the term before. A [`HistoryMark`] identifies
//! a position in the history of this store, or of another store copied from it.
//!
//! Invariants:
//! - Memory equals the content of the store.
//! - After another coordinator has opened the store, this one changes nothing.

use crate::rebuild::Records;
use crate::records::{
    Counters, FORMAT, FORMAT_BEFORE, HISTORY, Identity, Key, MIGRATIONS, Migration, RECOVERIES,
    Recovery, RecoveryStage, SERVERS, Server, TABLETS, Tablet, TabletBefore, Term, WILLS, Will,
};
use crate::store::{Entry, MetaStore, Revision, StoreError, Transaction, Verdict};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use types::{ClusterId, KeyHash, MigrationId, ServerId};
use wire::control::HistoryMark;

/// The reason why a coordinator cannot continue. Every message sent so far is covered by the store.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// Another coordinator has opened the same store and has taken over.
    #[error("another coordinator has taken over this cluster's metadata store")]
    Deposed,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A rebuild found an existing cluster in the store.
    #[error("the metadata store already contains a cluster: a rebuild needs an empty one")]
    NotEmpty,
    /// A record cannot be decoded.
    #[error("the metadata store has an unreadable record at key {key}")]
    Corrupt {
        /// Key of the record.
        key: String,
    },
    /// The store was written by an incompatible version of Ballast.
    #[error("the metadata store has format {found}, this version reads {FORMAT}")]
    Format {
        /// The store's format version.
        found: u16,
    },
}

/// The configuration and its store.
#[derive(Debug)]
pub(crate) struct Ledger<S> {
    store: S,
    identity: Identity,
    /// Term of this coordinator.
    term: Term,
    /// Id and first transaction of each term, by number. Earlier terms without a record belong to
    /// the history, whatever their ids were.
    history: BTreeMap<u64, (u64, Revision)>,
    /// The newest transaction.
    newest: Revision,
    /// Earlier terms may have left marks with servers.
    has_past: bool,
    counters: Counters,
    doubt: Option<String>,
    servers: BTreeMap<ServerId, Server>,
    tablets: BTreeMap<KeyHash, Tablet>,
    migrations: BTreeMap<MigrationId, Migration>,
    recoveries: BTreeMap<ServerId, Recovery>,
    wills: BTreeMap<ServerId, Will>,
    revisions: BTreeMap<Key, Revision>,
    /// Number of commits since the store was opened.
    commits: u64,
}

/// An uncommitted change of the configuration.
#[derive(Debug)]
pub(crate) struct Edit {
    pub(crate) counters: Counters,
    doubt: Option<String>,
    servers: BTreeMap<ServerId, Option<Server>>,
    tablets: BTreeMap<KeyHash, Option<Tablet>>,
    migrations: BTreeMap<MigrationId, Option<Migration>>,
    recoveries: BTreeMap<ServerId, Option<Recovery>>,
    wills: BTreeMap<ServerId, Option<Will>>,
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

    pub(crate) fn put_tablet(&mut self, tablet: Tablet) {
        self.tablets.insert(tablet.range.first(), Some(tablet));
    }

    pub(crate) fn remove_tablet(&mut self, first: KeyHash) {
        self.tablets.insert(first, None);
    }

    pub(crate) fn put_migration(&mut self, migration: Migration) {
        self.migrations.insert(migration.id, Some(migration));
    }

    pub(crate) fn remove_migration(&mut self, migration: MigrationId) {
        self.migrations.insert(migration, None);
    }

    pub(crate) fn put_recovery(&mut self, recovery: Recovery) {
        self.recoveries.insert(recovery.dead, Some(recovery));
    }

    pub(crate) fn remove_recovery(&mut self, dead: ServerId) {
        self.recoveries.insert(dead, None);
    }

    pub(crate) fn put_will(&mut self, will: Will) {
        self.wills.insert(will.server, Some(will));
    }

    pub(crate) fn remove_will(&mut self, server: ServerId) {
        self.wills.insert(server, None);
    }
}

impl Edit {
    /// Returns whether the edit changes no record, apart from drawn numbers and the doubt.
    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
            && self.tablets.is_empty()
            && self.migrations.is_empty()
            && self.recoveries.is_empty()
            && self.wills.is_empty()
    }

    /// Returns the migrations that the edit changes.
    pub(crate) fn touched_migrations(&self) -> Vec<MigrationId> {
        self.migrations.keys().copied().collect()
    }

    /// Returns whether the edit changes the map for servers.
    pub(crate) fn touches_map<S>(&self, ledger: &Ledger<S>) -> bool {
        let is_live = |migration: Option<&Migration>| migration.is_some_and(Migration::is_live);
        let is_open = |recovery: Option<&Recovery>| {
            recovery.map(|r| matches!(r.stage, RecoveryStage::Recovering { .. }))
        };
        let mut migrations = self.migrations.iter();
        let mut recoveries = self.recoveries.iter();
        let shown = |server: Option<&Server>| server.map(|s| Server { chain: None, ..s.clone() });
        let mut servers = self.servers.iter();
        servers.any(|(id, s)| shown(s.as_ref()) != shown(ledger.servers.get(id)))
            || !self.tablets.is_empty()
            || recoveries.any(|(id, r)| is_open(r.as_ref()) != is_open(ledger.recoveries.get(id)))
            || migrations.any(|(id, m)| is_live(m.as_ref()) != is_live(ledger.migrations.get(id)))
    }
}

impl<S: MetaStore> Ledger<S> {
    /// Reads the configuration, and makes this coordinator the only one that may change it. An
    /// empty store becomes a cluster with the given identity. `term` is the random id of this
    /// coordinator's term.
    pub(crate) fn open(mut store: S, fresh: Identity, term: u64) -> Result<Ledger<S>, Stopped> {
        let identity = match store.read(&Key::Identity.text())? {
            Some(entry) => {
                convert(&mut store, &entry)?;
                decode_identity(&entry)?
            }
            None => create(&mut store, fresh)?,
        };
        let past = list::<Term>(&store, HISTORY)?;
        let has_past = !past.is_empty();
        let (term, term_revision) = take_over(&mut store, term)?;
        let terms = past.into_iter().chain([(term, term_revision)]);
        let history = terms.map(|(term, first)| (term.number, (term.id, first))).collect();
        let (counters, revision) = read(&store, Key::Counters)?
            .ok_or_else(|| Stopped::Corrupt { key: Key::Counters.text() })?;
        let mut revisions = BTreeMap::from([(Key::Term, term_revision), (Key::Counters, revision)]);
        let doubt: Option<(String, Revision)> = read(&store, Key::Doubt)?;
        revisions.extend(doubt.iter().map(|(_, revision)| (Key::Doubt, *revision)));
        let mut servers = BTreeMap::new();
        for (server, revision) in list::<Server>(&store, SERVERS)? {
            revisions.insert(Key::Server(server.id), revision);
            servers.insert(server.id, server);
        }
        let mut tablets = BTreeMap::new();
        for (tablet, revision) in list::<Tablet>(&store, TABLETS)? {
            revisions.insert(Key::Tablet(tablet.range.first()), revision);
            tablets.insert(tablet.range.first(), tablet);
        }
        let mut migrations = BTreeMap::new();
        for (migration, revision) in list::<Migration>(&store, MIGRATIONS)? {
            revisions.insert(Key::Migration(migration.id), revision);
            migrations.insert(migration.id, migration);
        }
        let mut recoveries = BTreeMap::new();
        for (recovery, revision) in list::<Recovery>(&store, RECOVERIES)? {
            revisions.insert(Key::Recovery(recovery.dead), revision);
            recoveries.insert(recovery.dead, recovery);
        }
        let mut wills = BTreeMap::new();
        for (will, revision) in list::<Will>(&store, WILLS)? {
            revisions.insert(Key::Will(will.server), revision);
            wills.insert(will.server, will);
        }
        Ok(Ledger {
            store,
            identity,
            term,
            history,
            newest: term_revision,
            has_past,
            counters,
            doubt: doubt.map(|(doubt, _)| doubt),
            servers,
            tablets,
            migrations,
            recoveries,
            wills,
            revisions,
            commits: 0,
        })
    }

    /// Writes a cluster into an empty store, in one transaction.
    pub(crate) fn make(store: &mut S, identity: Identity, records: Records) -> Result<(), Stopped> {
        let Records { term, counters, servers, tablets, migrations, recoveries } = records;
        let mut writes = vec![
            (Key::Identity, encode(&(FORMAT, identity))),
            (Key::Term, encode(&term)),
            (Key::Counters, encode(&counters)),
        ];
        writes.extend(servers.iter().map(|it| (Key::Server(it.id), encode(it))));
        writes.extend(tablets.iter().map(|it| (Key::Tablet(it.range.first()), encode(it))));
        writes.extend(migrations.iter().map(|it| (Key::Migration(it.id), encode(it))));
        writes.extend(recoveries.iter().map(|it| (Key::Recovery(it.dead), encode(it))));
        let transaction = Transaction {
            expected: vec![(Key::Identity.text(), Revision::ABSENT)],
            writes: writes.into_iter().map(|(key, value)| (key.text(), Some(value))).collect(),
        };
        match store.transact(&transaction)? {
            Verdict::Committed(_) => Ok(()),
            Verdict::Conflict(_) => Err(Stopped::NotEmpty),
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns this coordinator's term: the number of times the store was opened.
    pub(crate) fn term(&self) -> u64 {
        self.term.number
    }

    /// Returns the mark of the newest transaction.
    pub(crate) fn mark(&self) -> HistoryMark {
        let Term { number: term, id: term_id } = self.term;
        HistoryMark { term, term_id, transaction: self.newest.0 }
    }

    /// Returns whether servers may know marks of earlier terms.
    pub(crate) fn has_past(&self) -> bool {
        self.has_past
    }

    /// Returns whether a mark belongs to the history of this store.
    pub(crate) fn knows(&self, mark: &HistoryMark) -> bool {
        let first = self.history.first_key_value().map(|(term, _)| *term);
        let Some((id, _)) = self.history.get(&mark.term) else {
            // The term precedes marks, or the rebuild of the file.
            return first.is_some_and(|first| mark.term < first);
        };
        let next = self.history.range(mark.term + 1..).next();
        let last = next.map_or(self.newest.0, |(_, (_, first))| first.0 - 1);
        *id == mark.term_id && mark.transaction <= last
    }

    /// Fails if another coordinator has opened the store.
    pub(crate) fn check_leads(&self) -> Result<(), Stopped> {
        let found = self.store.read(&Key::Term.text())?.map(|entry| entry.revision);
        match found == self.revisions.get(&Key::Term).copied() {
            true => Ok(()),
            false => Err(Stopped::Deposed),
        }
    }

    /// Returns the number of commits since the store was opened.
    pub(crate) fn commits(&self) -> u64 {
        self.commits
    }

    /// Returns the recorded reason for doubting that this is the intended cluster.
    pub(crate) fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn servers(&self) -> &BTreeMap<ServerId, Server> {
        &self.servers
    }

    /// Returns the tablets by their first hash.
    pub(crate) fn tablets(&self) -> &BTreeMap<KeyHash, Tablet> {
        &self.tablets
    }

    pub(crate) fn migrations(&self) -> &BTreeMap<MigrationId, Migration> {
        &self.migrations
    }

    /// Returns the recoveries by dead server.
    pub(crate) fn recoveries(&self) -> &BTreeMap<ServerId, Recovery> {
        &self.recoveries
    }

    /// Returns the load profiles by server, dead or alive.
    pub(crate) fn wills(&self) -> &BTreeMap<ServerId, Will> {
        &self.wills
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
            wills: BTreeMap::new(),
        }
    }

    /// Commits a change to the store, and then to memory.
    pub(crate) fn commit(&mut self, edit: Edit) -> Result<(), Stopped> {
        let writes = self.writes(&edit);
        let revision_of = |key: &Key| self.revisions.get(key).copied().unwrap_or(Revision::ABSENT);
        let keys = std::iter::once(&Key::Term).chain(writes.iter().map(|(key, _)| key));
        let transaction = Transaction {
            expected: keys.map(|key| (key.text(), revision_of(key))).collect(),
            writes: writes.iter().map(|(key, value)| (key.text(), value.clone())).collect(),
        };
        let revision = match self.store.transact(&transaction)? {
            Verdict::Committed(revision) => revision,
            Verdict::Conflict(_) => return Err(Stopped::Deposed),
        };
        self.newest = revision;
        for (key, value) in writes {
            match value {
                Some(_) => self.revisions.insert(key, revision),
                None => self.revisions.remove(&key),
            };
        }
        self.commits += 1;
        self.counters = edit.counters;
        self.doubt = edit.doubt.or(self.doubt.take());
        apply(&mut self.servers, edit.servers);
        apply(&mut self.tablets, edit.tablets);
        apply(&mut self.migrations, edit.migrations);
        apply(&mut self.recoveries, edit.recoveries);
        apply(&mut self.wills, edit.wills);
        Ok(())
    }

    fn writes(&self, edit: &Edit) -> Vec<(Key, Option<Vec<u8>>)> {
        let mut writes = Vec::new();
        if edit.counters != self.counters {
            writes.push((Key::Counters, Some(encode(&edit.counters))));
        }
        writes.extend(edit.doubt.iter().map(|doubt| (Key::Doubt, Some(encode(doubt)))));
        let servers = edit.servers.iter();
        writes.extend(servers.map(|(&id, value)| (Key::Server(id), value.as_ref().map(encode))));
        let tablets = edit.tablets.iter();
        writes.extend(tablets.map(|(&at, value)| (Key::Tablet(at), value.as_ref().map(encode))));
        let migrations = edit.migrations.iter();
        writes.extend(
            migrations.map(|(&id, value)| (Key::Migration(id), value.as_ref().map(encode))),
        );
        let recoveries = edit.recoveries.iter();
        writes
            .extend(recoveries.map(|(&id, value)| (Key::Recovery(id), value.as_ref().map(encode))));
        let wills = edit.wills.iter();
        writes.extend(wills.map(|(&id, value)| (Key::Will(id), value.as_ref().map(encode))));
        writes
    }
}

fn apply<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }
}

/// Returns whether the store contains a cluster.
pub fn holds_cluster(store: &impl MetaStore) -> Result<bool, Stopped> {
    Ok(store.read(&Key::Identity.text())?.is_some())
}

/// Returns the cluster and the number of its only server, if it has exactly one. A lone server
/// resumes under this number even if it has no log yet.
pub fn only_server(store: &impl MetaStore) -> Result<Option<(ClusterId, ServerId)>, Stopped> {
    let Some(entry) = store.read(&Key::Identity.text())? else { return Ok(None) };
    let cluster = decode_identity(&entry)?.cluster;
    let servers = list::<Server>(store, SERVERS)?;
    Ok(match &servers[..] {
        [(server, _)] => Some((cluster, server.id)),
        [] | [_, _, ..] => None,
    })
}

/// Creates a cluster with this identity in an empty store.
fn create(store: &mut impl MetaStore, identity: Identity) -> Result<Identity, Stopped> {
    let transaction = Transaction {
        expected: vec![(Key::Identity.text(), Revision::ABSENT)],
        writes: vec![
            (Key::Identity.text(), Some(encode(&(FORMAT, identity)))),
            (Key::Counters.text(), Some(encode(&Counters::FIRST))),
        ],
    };
    match store.transact(&transaction)? {
        Verdict::Committed(_) => Ok(identity),
        Verdict::Conflict(_) => Err(Stopped::Deposed),
    }
}

/// Converts the records of the previous format, in one transaction.
fn convert(store: &mut impl MetaStore, identity: &Entry) -> Result<(), Stopped> {
    let corrupt = || Stopped::Corrupt { key: Key::Identity.text() };
    let (format, rest): (u16, _) =
        postcard::take_from_bytes(&identity.value).map_err(|_| corrupt())?;
    if format != FORMAT_BEFORE {
        return Ok(());
    }
    let mut expected = vec![(Key::Identity.text(), identity.revision)];
    let mut writes = vec![(Key::Identity.text(), Some([&encode(&FORMAT), rest].concat()))];
    for (key, entry) in store.list(TABLETS)? {
        let (before, revision) = decode::<TabletBefore>(key.clone(), &entry)?;
        expected.push((key.clone(), revision));
        writes.push((key, Some(encode(&Tablet::from(before)))));
    }
    match store.transact(&Transaction { expected, writes })? {
        Verdict::Committed(_) => Ok(()),
        Verdict::Conflict(_) => Err(Stopped::Deposed),
    }
}

/// Begins a new term, which prevents changes by coordinators of earlier terms.
fn take_over(store: &mut impl MetaStore, id: u64) -> Result<(Term, Revision), Stopped> {
    let (last, revision): (u64, _) = read(store, Key::Term)?.unwrap_or((0, Revision::ABSENT));
    let term = Term { number: last + 1, id };
    let history = Key::History(term.number).text();
    let transaction = Transaction {
        expected: vec![(Key::Term.text(), revision), (history.clone(), Revision::ABSENT)],
        writes: vec![
            (Key::Term.text(), Some(encode(&term.number))),
            (history, Some(encode(&term))),
        ],
    };
    match store.transact(&transaction)? {
        Verdict::Committed(revision) => Ok((term, revision)),
        Verdict::Conflict(_) => Err(Stopped::Deposed),
    }
}

fn read<T: DeserializeOwned>(
    store: &impl MetaStore,
    key: Key,
) -> Result<Option<(T, Revision)>, Stopped> {
    let key = key.text();
    store.read(&key)?.map(|entry| decode(key, &entry)).transpose()
}

fn list<T: DeserializeOwned>(
    store: &impl MetaStore,
    prefix: &str,
) -> Result<Vec<(T, Revision)>, Stopped> {
    store.list(prefix)?.into_iter().map(|(key, entry)| decode(key, &entry)).collect()
}

/// Decodes the identity. The format comes first, and is checked before the rest is decoded.
fn decode_identity(entry: &Entry) -> Result<Identity, Stopped> {
    let corrupt = || Stopped::Corrupt { key: Key::Identity.text() };
    let (format, rest) = postcard::take_from_bytes(&entry.value).map_err(|_| corrupt())?;
    if ![FORMAT, FORMAT_BEFORE].contains(&format) {
        return Err(Stopped::Format { found: format });
    }
    postcard::from_bytes(rest).map_err(|_| corrupt())
}

fn decode<T: DeserializeOwned>(key: String, entry: &Entry) -> Result<(T, Revision), Stopped> {
    match postcard::take_from_bytes(&entry.value) {
        Ok((value, [])) => Ok((value, entry.revision)),
        Ok(_) | Err(_) => Err(Stopped::Corrupt { key }),
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data can be serialized")
}
