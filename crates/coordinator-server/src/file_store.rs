//! The metadata store in one file, by `redb`: a committed transaction survives a process crash
//! and a power loss.
//!
//! Two tables: `entries` maps a key to its revision and value; `revision` contains the counter.
//! `redb` locks the file, so a second coordinator on the same file fails to open it.
//!
//! A new file is created under another name, and renamed when it is complete and on the disk. An
//! interrupted creation leaves no file that cannot be opened.

use coordinator::{MetaEntry, MetaStore, MetaStoreError, Revision, Transaction, Verdict};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::{self, File};
use std::io;
use std::path::Path;

const ENTRIES: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("entries");
const REVISION: TableDefinition<'_, (), u64> = TableDefinition::new("revision");

/// A metadata store in a file.
#[derive(Debug)]
pub struct FileStore {
    database: Database,
}

impl FileStore {
    /// Opens the file, or creates it. A new file and its name survive a power loss, because a
    /// cluster that has lost its file would be taken for a new one.
    pub fn open(path: &Path) -> Result<FileStore, MetaStoreError> {
        create_if_missing(path)?;
        let database = Database::open(path).map_err(failed)?;
        // Readers expect that the tables exist.
        let transaction = database.begin_write().map_err(failed)?;
        transaction.open_table(ENTRIES).map_err(failed)?;
        transaction.open_table(REVISION).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(FileStore { database })
    }
}

/// Creates the file, without tables.
fn create_if_missing(path: &Path) -> Result<(), MetaStoreError> {
    let is_there = || -> io::Result<bool> {
        match fs::metadata(path) {
            // A creation by an earlier version was interrupted at its beginning.
            Ok(found) => Ok(found.len() > 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    };
    if is_there().map_err(failed)? {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    // Another process may be creating the file. Where folders cannot be locked, that is not noticed.
    let _ = folder.lock();
    if is_there().map_err(failed)? {
        return Ok(());
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = Path::new(&unfinished);
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    Database::create(unfinished).map_err(failed)?.close().map_err(failed)?;
    File::open(unfinished).and_then(|file| file.sync_all()).map_err(failed)?;
    fs::rename(unfinished, path).and_then(|()| folder.sync_all()).map_err(failed)
}

impl MetaStore for FileStore {
    fn read(&self, key: &str) -> Result<Option<MetaEntry>, MetaStoreError> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let entries = transaction.open_table(ENTRIES).map_err(failed)?;
        let found = entries.get(key).map_err(failed)?;
        Ok(found.map(|guard| entry(guard.value())))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>, MetaStoreError> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let entries = transaction.open_table(ENTRIES).map_err(failed)?;
        let mut found = Vec::new();
        for item in entries.range(prefix..).map_err(failed)? {
            let (key, value) = item.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push((key.value().to_owned(), entry(value.value())));
        }
        Ok(found)
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Verdict, MetaStoreError> {
        let write = self.database.begin_write().map_err(failed)?;
        let verdict = {
            let mut entries = write.open_table(ENTRIES).map_err(failed)?;
            let mut revisions = write.open_table(REVISION).map_err(failed)?;
            for (key, expected) in &transaction.expected {
                let found = entries.get(key.as_str()).map_err(failed)?;
                let found = found.map_or(Revision::ABSENT, |guard| Revision(guard.value().0));
                if found != *expected {
                    return Ok(Verdict::Conflict(key.clone()));
                }
            }
            let last = revisions.get(()).map_err(failed)?.map_or(0, |guard| guard.value());
            let revision = last + 1;
            revisions.insert((), revision).map_err(failed)?;
            for (key, value) in &transaction.writes {
                match value {
                    Some(value) => {
                        entries
                            .insert(key.as_str(), (revision, value.as_slice()))
                            .map_err(failed)?;
                    }
                    None => {
                        entries.remove(key.as_str()).map_err(failed)?;
                    }
                }
            }
            Verdict::Committed(Revision(revision))
        };
        write.commit().map_err(failed)?;
        Ok(verdict)
    }
}

fn entry(stored: (u64, &[u8])) -> MetaEntry {
    let (revision, value) = stored;
    MetaEntry { revision: Revision(revision), value: value.to_vec() }
}

fn failed(error: impl Into<redb::Error>) -> MetaStoreError {
    MetaStoreError(Box::new(error.into()))
}
