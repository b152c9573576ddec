//! The configuration in memory, which runs ahead of the metadata store, and the only way to change
//! both.
//!
//! A change is collected in an [`Edit`] and applied to memory at once. Changes are committed as
//! compare-and-swap transactions, of which one is in flight; changes made meanwhile share the next
//! one. A transaction expects each affected record at the revision last read, and the *term* to be
//! this coordinator's. If the store refuses or fails, the coordinator stops and its runner opens
//! the store again. Starting and recovering are thus the same code.
//!
//! The store's revisions number its transactions. A term's record is written when the term begins,
//! so its revision bounds the transactions of the term before. A [`HistoryMark`] identifies a
//! position in the history of this store, or of another store copied from it.
//!
//! Invariants:
//! - Memory equals the content of the store, changed by the transaction in flight and the next one.
//! - Everything else here, above all [`ConfigurationStore::mark`], tells of committed transactions
//!   only.
//! - After another coordinator has opened the store, this one changes nothing.

use crate::configuration::{ClusterConfiguration, Edit};
use crate::earlier_formats::converted;
use crate::metastore::{MetaEntry, MetaStore, MetaStoreError, Revision, Transaction, Verdict};
use crate::records::{
    self, ClusterIdentity, FORMAT, FORMAT_EARLIEST, HISTORY, InitialRecords, LOAD_PROFILES,
    LoadProfileRecord, MIGRATIONS, MetaKey, Migration, RECOVERIES, RecoveryRecord, SERVERS,
    Sequences, Server, TABLETS, TabletRecord, Term, encode,
};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use types::{ClusterId, ServerId};
use wire::control::HistoryMark;

/// The reason why a coordinator cannot continue. Every message sent so far is covered by the store.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// Another coordinator has opened the same store and has taken over.
    #[error("another coordinator has taken over this cluster's metadata store")]
    Deposed,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] MetaStoreError),
    /// A rebuild found an existing cluster in the store.
    #[error("the metadata store already contains a cluster: a rebuild needs an empty one")]
    NotEmpty,
    /// A record cannot be decoded.
    #[error(
        "the metadata store has an unreadable record at key {key}: restore its newest copy, or, in a \
         cluster, rebuild it with 'ballast coordinator --rebuild'"
    )]
    Corrupt {
        /// Key of the record.
        key: String,
    },
    /// The store was written by an incompatible version of Ballast.
    #[error(
        "the metadata store has format {found}, this version reads {FORMAT}: start the version of \
         Ballast that wrote it, or a later one"
    )]
    Format {
        /// The store's format version.
        found: u16,
    },
}

/// How far the store is behind the configuration in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitProgress {
    /// All changes are committed.
    Committed,
    /// The transaction in flight has all changes.
    InFlight,
    /// Changes wait for the next transaction.
    Ahead,
}

/// The configuration, and the transactions that store it.
#[derive(Debug)]
pub(crate) struct ConfigurationStore {
    configuration: ClusterConfiguration,
    /// Term of this coordinator.
    term: Term,
    /// Id and first transaction of each term, by number. Earlier terms without a record belong to
    /// the history, whatever their ids were.
    history: BTreeMap<u64, (u64, Revision)>,
    /// The newest committed transaction.
    newest: Revision,
    /// Earlier terms may have left marks with servers.
    has_past: bool,
    /// Committed revision of each record.
    revisions: BTreeMap<MetaKey, Revision>,
    /// Number of commits since the store was opened.
    commits: u64,
    /// Number of changes since the store was opened.
    changes: u64,
    /// Changes of the transaction in flight.
    in_flight: Option<Writes>,
    /// Changes of the next transaction.
    next: Option<Writes>,
}

/// The last value of each changed record; `None` removes the record.
type Writes = BTreeMap<MetaKey, Option<Vec<u8>>>;

impl ConfigurationStore {
    /// Reads the configuration, and makes this coordinator the only one that may change it. An
    /// empty store becomes a cluster with the given identity. `term` is the random id of this
    /// coordinator's term.
    pub(crate) fn open(
        store: &mut impl MetaStore,
        fresh: ClusterIdentity,
        term: u64,
    ) -> Result<ConfigurationStore, Stopped> {
        let identity = match store.read(&MetaKey::Identity.text())? {
            Some(entry) => {
                convert(store, &entry)?;
                decode_identity(&entry)?
            }
            None => create(store, fresh)?,
        };
        let past = list::<Term>(store, HISTORY)?;
        let has_past = !past.is_empty();
        let (term, term_revision) = take_over(store, term)?;
        let terms = past.into_iter().chain([(term, term_revision)]);
        let history: BTreeMap<_, _> =
            terms.map(|(term, first)| (term.number, (term.id, first))).collect();
        assert!(history.contains_key(&term.number), "the new term is part of the history");
        let (counters, revision) = read(store, MetaKey::Counters)?
            .ok_or_else(|| Stopped::Corrupt { key: MetaKey::Counters.text() })?;
        let mut revisions =
            BTreeMap::from([(MetaKey::Term, term_revision), (MetaKey::Counters, revision)]);
        let doubt: Option<(String, Revision)> = read(store, MetaKey::Doubt)?;
        revisions.extend(doubt.iter().map(|(_, revision)| (MetaKey::Doubt, *revision)));
        let doubt = doubt.map(|(doubt, _)| doubt);
        let mut configuration = ClusterConfiguration::new(identity, counters, doubt);
        let mut loaded = configuration.edit();
        for (server, revision) in list::<Server>(store, SERVERS)? {
            revisions.insert(MetaKey::Server(server.id), revision);
            loaded.put_server(server);
        }
        for (tablet, revision) in list::<TabletRecord>(store, TABLETS)? {
            revisions.insert(MetaKey::Tablet(tablet.range.first()), revision);
            loaded.put_tablet(tablet);
        }
        for (migration, revision) in list::<Migration>(store, MIGRATIONS)? {
            revisions.insert(MetaKey::Migration(migration.id), revision);
            loaded.put_migration(migration);
        }
        for (recovery, revision) in list::<RecoveryRecord>(store, RECOVERIES)? {
            revisions.insert(MetaKey::Recovery(recovery.dead), revision);
            loaded.put_recovery(recovery);
        }
        for (profile, revision) in list::<LoadProfileRecord>(store, LOAD_PROFILES)? {
            revisions.insert(MetaKey::LoadProfile(profile.server), revision);
            loaded.put_load_profile(profile);
        }
        configuration.apply(loaded);
        Ok(ConfigurationStore {
            configuration,
            term,
            history,
            newest: term_revision,
            has_past,
            revisions,
            commits: 0,
            changes: 0,
            in_flight: None,
            next: None,
        })
    }

    /// Returns the transaction that writes a cluster into an empty store.
    pub(crate) fn first_transaction(
        identity: ClusterIdentity,
        records: InitialRecords,
    ) -> Transaction {
        let InitialRecords { term, counters, servers, tablets, migrations, recoveries } = records;
        let mut writes = vec![
            (MetaKey::Identity, encode(&(FORMAT, identity))),
            (MetaKey::Term, encode(&term)),
            (MetaKey::Counters, encode(&counters)),
        ];
        writes.extend(servers.iter().map(|it| (MetaKey::Server(it.id), encode(it))));
        writes.extend(tablets.iter().map(|it| (MetaKey::Tablet(it.range.first()), encode(it))));
        writes.extend(migrations.iter().map(|it| (MetaKey::Migration(it.id), encode(it))));
        writes.extend(recoveries.iter().map(|it| (MetaKey::Recovery(it.dead), encode(it))));
        Transaction {
            expected: vec![(MetaKey::Identity.text(), Revision::ABSENT)],
            writes: writes.into_iter().map(|(key, value)| (key.text(), Some(value))).collect(),
        }
    }

    /// Returns the records, with all changes.
    pub(crate) fn configuration(&self) -> &ClusterConfiguration {
        &self.configuration
    }

    /// Returns this coordinator's term: the number of times the store was opened.
    pub(crate) fn term(&self) -> u64 {
        self.term.number
    }

    /// Returns the mark of the newest committed transaction.
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

    /// Returns the number of commits since the store was opened.
    pub(crate) fn commits(&self) -> u64 {
        self.commits
    }

    /// Returns the number of changes since the store was opened, committed or not.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns how far the store is behind memory.
    pub(crate) fn progress(&self) -> CommitProgress {
        match (&self.in_flight, &self.next) {
            (_, Some(_)) => CommitProgress::Ahead,
            (Some(_), None) => CommitProgress::InFlight,
            (None, None) => CommitProgress::Committed,
        }
    }

    /// Applies a change to memory, and adds it to the next transaction. An empty change makes a
    /// transaction that only checks the term.
    pub(crate) fn change(&mut self, edit: Edit) {
        self.next.get_or_insert_default().extend(edit.writes(&self.configuration));
        self.configuration.apply(edit);
        self.changes += 1;
    }

    /// Returns the next transaction, if it is due: it has changes, and none is in flight.
    pub(crate) fn begin_transaction(&mut self) -> Option<Transaction> {
        if self.in_flight.is_some() {
            return None;
        }
        let writes = self.in_flight.insert(self.next.take()?);
        let revision_of =
            |key: &MetaKey| self.revisions.get(key).copied().unwrap_or(Revision::ABSENT);
        let keys = std::iter::once(&MetaKey::Term).chain(writes.keys());
        Some(Transaction {
            expected: keys.map(|key| (key.text(), revision_of(key))).collect(),
            writes: writes.iter().map(|(key, value)| (key.text(), value.clone())).collect(),
        })
    }

    /// Records the store's verdict about the transaction in flight.
    pub(crate) fn committed(&mut self, verdict: &Verdict) -> Result<(), Stopped> {
        let Some(writes) = self.in_flight.take() else {
            panic!("a verdict about no transaction: {verdict:?}");
        };
        let Verdict::Committed(revision) = *verdict else { return Err(Stopped::Deposed) };
        assert!(revision > self.newest, "transaction {revision:?} follows {:?}", self.newest);
        self.newest = revision;
        for (key, value) in writes {
            match value {
                Some(_) => self.revisions.insert(key, revision),
                None => self.revisions.remove(&key),
            };
        }
        self.commits += 1;
        assert!(self.knows(&self.mark()), "the store does not know its own mark");
        Ok(())
    }
}

/// Returns whether the store contains a cluster.
pub fn holds_cluster(store: &impl MetaStore) -> Result<bool, Stopped> {
    Ok(store.read(&MetaKey::Identity.text())?.is_some())
}

/// Returns the cluster and the number of its only server, if it has exactly one. A lone server
/// resumes under this number even if it has no log yet.
pub fn only_server(store: &impl MetaStore) -> Result<Option<(ClusterId, ServerId)>, Stopped> {
    let Some(entry) = store.read(&MetaKey::Identity.text())? else { return Ok(None) };
    let cluster = decode_identity(&entry)?.cluster;
    let servers = list::<Server>(store, SERVERS)?;
    Ok(match &servers[..] {
        [(server, _)] => Some((cluster, server.id)),
        [] | [_, _, ..] => None,
    })
}

/// Creates a cluster with this identity in an empty store.
fn create(
    store: &mut impl MetaStore,
    identity: ClusterIdentity,
) -> Result<ClusterIdentity, Stopped> {
    let transaction = Transaction {
        expected: vec![(MetaKey::Identity.text(), Revision::ABSENT)],
        writes: vec![
            (MetaKey::Identity.text(), Some(encode(&(FORMAT, identity)))),
            (MetaKey::Counters.text(), Some(encode(&Sequences::FIRST))),
        ],
    };
    match store.transact(&transaction)? {
        Verdict::Committed(_) => Ok(identity),
        Verdict::Conflict(_) => Err(Stopped::Deposed),
    }
}

/// Converts the records of an earlier format, in one transaction.
fn convert(store: &mut impl MetaStore, identity: &MetaEntry) -> Result<(), Stopped> {
    let corrupt = || Stopped::Corrupt { key: MetaKey::Identity.text() };
    let (format, rest): (u16, _) =
        postcard::take_from_bytes(&identity.value).map_err(|_| corrupt())?;
    if !(FORMAT_EARLIEST..FORMAT).contains(&format) {
        return Ok(());
    }
    let before = store.list("")?;
    let mut transaction = converted(format, &before).map_err(|key| Stopped::Corrupt { key })?;
    let identity = [&encode(&FORMAT), rest].concat();
    transaction.writes.push((MetaKey::Identity.text(), Some(identity)));
    match store.transact(&transaction)? {
        Verdict::Committed(_) => Ok(()),
        Verdict::Conflict(_) => Err(Stopped::Deposed),
    }
}

/// Begins a new term, which prevents changes by coordinators of earlier terms.
fn take_over(store: &mut impl MetaStore, id: u64) -> Result<(Term, Revision), Stopped> {
    let (last, revision): (u64, _) = read(store, MetaKey::Term)?.unwrap_or((0, Revision::ABSENT));
    let term = Term { number: last + 1, id };
    let history = MetaKey::History(term.number).text();
    let transaction = Transaction {
        expected: vec![(MetaKey::Term.text(), revision), (history.clone(), Revision::ABSENT)],
        writes: vec![
            (MetaKey::Term.text(), Some(encode(&term.number))),
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
    key: MetaKey,
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
fn decode_identity(entry: &MetaEntry) -> Result<ClusterIdentity, Stopped> {
    let corrupt = || Stopped::Corrupt { key: MetaKey::Identity.text() };
    let (format, rest) = postcard::take_from_bytes(&entry.value).map_err(|_| corrupt())?;
    if !(FORMAT_EARLIEST..=FORMAT).contains(&format) {
        return Err(Stopped::Format { found: format });
    }
    postcard::from_bytes(rest).map_err(|_| corrupt())
}

fn decode<T: DeserializeOwned>(key: String, entry: &MetaEntry) -> Result<(T, Revision), Stopped> {
    let value = records::decode(&entry.value).ok_or(Stopped::Corrupt { key })?;
    Ok((value, entry.revision))
}
