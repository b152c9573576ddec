//! The saved cluster state of a server, beside its replicas: two files, written alternately.
//!
//! The first write happens before the server serves. Later, a thread writes after each new mark or
//! map, at most ten times a second. Clients therefore never wait for these files.

use anyhow::Context;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use wire::control::{ClusterMap, FromCoordinator, HistoryMark};
use wire::saved::{SAVED_BYTES_MAX, SavedClusterState};

/// The two files.
const NAMES: [&str; 2] = ["cluster-0", "cluster-1"];
/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(100);

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
        let mut files = StateFiles { folder: folder.to_path_buf(), sequence };
        let written = files.write(&saved);
        written.with_context(|| format!("cannot write {}", files.path().display()))?;
        let (updates, received) = channel();
        std::thread::Builder::new()
            .name("saver".into())
            .spawn(move || save(files, saved, &received))?;
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
fn save(mut files: StateFiles, mut saved: SavedClusterState, updates: &Receiver<StateUpdate>) {
    let mut is_failing = false;
    while let Ok(first) = updates.recv() {
        let mut has_changed = false;
        for update in std::iter::once(first).chain(updates.try_iter()) {
            has_changed |= apply(&mut saved, update);
        }
        if !has_changed {
            continue;
        }
        match files.write(&saved) {
            Ok(()) => is_failing = false,
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                tracing::error!(%error, "cannot save cluster state");
            }
            Err(_) => {}
        }
        std::thread::sleep(PAUSE);
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
    /// Sequence number of the last written file.
    sequence: u64,
}

impl StateFiles {
    /// Returns the path of the file with the current sequence number.
    fn path(&self) -> PathBuf {
        self.folder.join(NAMES[(self.sequence % 2) as usize])
    }

    /// Overwrites the older of the two files.
    fn write(&mut self, saved: &SavedClusterState) -> io::Result<()> {
        self.sequence += 1;
        let path = self.path();
        let is_new = !path.exists();
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        file.write_all(&saved.encode(self.sequence))?;
        file.sync_data()?;
        match is_new {
            true => runtime::files::sync_directory(&self.folder),
            false => Ok(()),
        }
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
        let mut files = StateFiles { folder: folder.path().to_path_buf(), sequence: 0 };
        for version in 1..=5 {
            files.write(&saved(version)).unwrap();
            assert_eq!(read(folder.path()).unwrap(), Some((version, saved(version))));
        }
        let last = files.path();
        files.write(&saved(6)).unwrap();
        let newest = files.path();
        assert_ne!(last, newest);
        let bytes = fs::read(&newest).unwrap();
        fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Some((5, saved(5))));
        fs::write(&last, b"").unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
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
