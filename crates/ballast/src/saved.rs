//! The saved cluster state of a server, beside its replicas: two files, written alternately.
//!
//! The first write happens before the server serves. Later, a thread writes after each new mark or
//! map, at most ten times a second, and again after a failure. Clients therefore never wait for these
//! files. A failed write leaves the newest complete file as it is.

use anyhow::Context;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use wire::control::{ClusterMap, FromCoordinator, HistoryMark};
use wire::saved::{SAVED_BYTES_MAX, SavedClusterState};

/// The two files.
const NAMES: [&str; 2] = ["cluster-0", "cluster-1"];
/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(100);
/// Further pause before a failed write is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Reads the newest saved state in a folder. Returns `None` if there is no readable one.
///
/// # Errors
/// If a file was written by another version of Ballast, or cannot be read.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Option<(u64, SavedClusterState)>> {
    let mut newest: Option<(u64, SavedClusterState)> = None;
    for name in NAMES {
        let path = folder.join(name);
        let bytes = match read_file(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        match SavedClusterState::parse(&bytes) {
            Ok((sequence, saved)) if newest.as_ref().is_none_or(|(other, _)| *other < sequence) => {
                newest = Some((sequence, saved));
            }
            Ok(_) => {}
            Err(why) if why.is_of_another_version() => {
                return Err(why).with_context(|| {
                    format!(
                        "{} was written by another version of ballast: start that version",
                        path.display()
                    )
                });
            }
            // The process ended during a write of this file. The other file is complete.
            Err(why) => {
                tracing::info!(file = %path.display(), %why, "ignoring an incomplete state file")
            }
        }
    }
    Ok(newest)
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SAVED_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A change of the saved state.
enum StateUpdate {
    Mark(HistoryMark),
    Map(Box<ClusterMap>),
}

/// The thread that writes the files. It ends when this value is dropped.
pub(crate) struct Saver {
    updates: Sender<StateUpdate>,
}

impl Saver {
    /// Writes the first file, syncs it, and starts the thread.
    pub(crate) fn start(
        folder: &Path,
        sequence: u64,
        saved: SavedClusterState,
    ) -> anyhow::Result<Saver> {
        let mut files = StateFiles::new(folder, sequence);
        let written = files.write(&saved);
        written.with_context(|| format!("cannot write {}", files.path(sequence + 1).display()))?;
        let (updates, received) = channel();
        let state = UnsavedState { files, saved, has_changed: false, is_failing: false };
        std::thread::Builder::new().name("saver".into()).spawn(move || save(state, &received))?;
        Ok(Saver { updates })
    }

    /// Saves a message of the coordinator, if it changes the saved state.
    pub(crate) fn record(&self, message: &FromCoordinator) {
        let update = match message {
            FromCoordinator::Mark(mark) => StateUpdate::Mark(*mark),
            FromCoordinator::Map(map) => StateUpdate::Map(Box::new(map.clone())),
            _ => return,
        };
        // The thread only ends when this value is dropped.
        let _ = self.updates.send(update);
    }
}

#[expect(clippy::disallowed_methods, reason = "a helper that rests between two writes")]
fn save(mut state: UnsavedState, updates: &Receiver<StateUpdate>) {
    while let Ok(update) = state.next_update(updates) {
        for update in update.into_iter().chain(updates.try_iter()) {
            state.has_changed |= apply(&mut state.saved, update);
        }
        if state.has_changed {
            state.try_to_save();
            std::thread::sleep(PAUSE);
        }
    }
}

/// The state to be saved, and its files.
struct UnsavedState {
    files: StateFiles,
    saved: SavedClusterState,
    /// True if the files do not contain the state.
    has_changed: bool,
    is_failing: bool,
}

impl UnsavedState {
    /// Waits for an update. Returns `None` if it is time to try a failed write again.
    fn next_update(
        &self,
        updates: &Receiver<StateUpdate>,
    ) -> Result<Option<StateUpdate>, RecvTimeoutError> {
        if !self.has_changed {
            return updates.recv().map(Some).map_err(|_| RecvTimeoutError::Disconnected);
        }
        match updates.recv_timeout(AGAIN) {
            Ok(update) => Ok(Some(update)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(end) => Err(end),
        }
    }

    /// Writes the state. Logs the first of several failures.
    fn try_to_save(&mut self) {
        match self.files.write(&self.saved) {
            Ok(()) => (self.has_changed, self.is_failing) = (false, false),
            Err(error) if !std::mem::replace(&mut self.is_failing, true) => {
                tracing::error!(%error, "cannot save cluster state, trying again");
            }
            Err(_) => {}
        }
    }
}

/// Applies a change. Returns whether it was new.
fn apply(saved: &mut SavedClusterState, update: StateUpdate) -> bool {
    match update {
        StateUpdate::Mark(mark) if saved.mark.is_none_or(|known| mark.is_after(&known)) => {
            saved.mark = Some(mark);
            true
        }
        StateUpdate::Map(map) if map.version > saved.map.version => {
            saved.map = *map;
            true
        }
        StateUpdate::Mark(_) | StateUpdate::Map(_) => false,
    }
}

struct StateFiles {
    folder: PathBuf,
    /// Sequence number of the last completely written file.
    sequence: u64,
    /// For each file, true if its name is known to be on the disk.
    has_synced_name: [bool; 2],
}

impl StateFiles {
    fn new(folder: &Path, sequence: u64) -> StateFiles {
        StateFiles { folder: folder.to_path_buf(), sequence, has_synced_name: [false; 2] }
    }

    /// Returns the path of the file with this sequence number.
    fn path(&self, sequence: u64) -> PathBuf {
        self.folder.join(NAMES[(sequence % 2) as usize])
    }

    /// Overwrites the older of the two files. After an error, the same file is written again, since
    /// the other one is complete.
    fn write(&mut self, saved: &SavedClusterState) -> io::Result<()> {
        let next = self.sequence + 1;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path(next))?;
        file.write_all(&saved.encode(next))?;
        file.sync_data()?;
        let has_synced_name = &mut self.has_synced_name[(next % 2) as usize];
        if !*has_synced_name {
            runtime::files::sync_directory(&self.folder)?;
            *has_synced_name = true;
        }
        self.sequence = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClusterId, ServerId};

    fn saved(version: u64) -> SavedClusterState {
        let (servers, tablets, moving) = (Vec::new(), Vec::new(), Vec::new());
        let cluster = ClusterId(7);
        let map = ClusterMap { version, cluster, servers, tablets, moving };
        SavedClusterState { cluster, server: ServerId(3), seed: 42, mark: None, map }
    }

    #[test]
    fn the_file_that_was_written_last_is_read_and_if_it_is_cut_short_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let mut files = StateFiles::new(folder.path(), 0);
        for version in 1..=5 {
            files.write(&saved(version)).unwrap();
            assert_eq!(read(folder.path()).unwrap(), Some((version, saved(version))));
        }
        let last = files.path(files.sequence);
        files.write(&saved(6)).unwrap();
        let newest = files.path(files.sequence);
        assert_ne!(last, newest);
        let bytes = fs::read(&newest).unwrap();
        fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Some((5, saved(5))));
        fs::write(&last, b"").unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_failed_write_leaves_the_newest_file_and_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = StateFiles::new(folder.path(), 0);
        files.write(&saved(1)).unwrap();
        let (good, other) = (files.path(1), files.path(2));
        // A file cannot be opened at the place of a folder.
        fs::create_dir(&other).unwrap();
        let (has_changed, is_failing) = (true, false);
        let mut state = UnsavedState { files, saved: saved(2), has_changed, is_failing };
        for _ in 0..3 {
            state.try_to_save();
            assert!(state.has_changed && state.is_failing);
        }
        let (sequence, kept) = SavedClusterState::parse(&fs::read(&good).unwrap()).unwrap();
        assert_eq!((sequence, kept), (1, saved(1)));
        fs::remove_dir(&other).unwrap();
        state.try_to_save();
        assert!(!state.has_changed && !state.is_failing);
        assert_eq!(read(folder.path()).unwrap(), Some((2, saved(2))));
        let (_, kept) = SavedClusterState::parse(&fs::read(&good).unwrap()).unwrap();
        assert_eq!(kept, saved(1), "the older file is not touched");
    }

    #[test]
    fn what_is_older_is_not_saved() {
        let mut known = saved(3);
        let mark = |transaction| HistoryMark { term: 1, term_id: 1, transaction };
        assert!(apply(&mut known, StateUpdate::Mark(mark(5))));
        assert!(!apply(&mut known, StateUpdate::Mark(mark(4))));
        assert!(!apply(&mut known, StateUpdate::Map(Box::new(saved(3).map))));
        assert!(apply(&mut known, StateUpdate::Map(Box::new(saved(4).map))));
        assert_eq!((known.mark, known.map.version), (Some(mark(5)), 4));
    }
}
