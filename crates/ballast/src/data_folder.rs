//! The data folder of a server. A stand-alone server stores the replicas of its log and the file of
//! its embedded coordinator. A server of a cluster stores replicas of other servers' logs.
//!
//! | name | contents |
//! | --- | --- |
//! | `replicas/` | one file for each segment of the log and of its manifest log |
//! | `coordinator.redb` | tablets and their incarnations, the seed of key hashes |
//! | `cluster-0`, `cluster-1` | cluster state saved by a member of a cluster (`saved.rs`) |
//! | `folder.id`, also in `replicas/` | identifies the real `replicas/` (`folder_mark.rs`) |
//!
//! **Invariant:** a refused start has changed no file, and no start removes or renames one. See
//! `docs/design/identity.md`.

use crate::folder_mark::{FolderMarks, FolderUse};
use crate::saved::{self, Saver};
use anyhow::{Context, bail};
use backup::{OpenedReplicas, Replicas, UnreadableFile};
use node::{Mode, RecoveredLog, ServerIdentity};
use runtime::files::{DataDirectory, boot_id};
use server::shell::FileDisk;
use settings::ServerConfiguration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::ClusterId;
use wire::control::{ClusterMap, Holdings};
use wire::replica::BootId;
use wire::saved::SavedClusterState;

/// The use of a server's data folder.
pub(crate) enum ServerStorage {
    /// No persistence.
    None,
    /// The server's own log.
    Own(DataFolder),
    /// Replicas of the logs of other servers, which in turn hold those of this server's log.
    Others(BackupFolder, Mode),
}

impl ServerStorage {
    pub(crate) fn open(
        configuration: &ServerConfiguration,
        mode: Option<Mode>,
    ) -> anyhow::Result<ServerStorage> {
        let path = Path::new(&configuration.durability.data_dir);
        Ok(match mode {
            Some(mode) if configuration.network.is_standalone() => {
                ServerStorage::Own(DataFolder::open(path, mode)?)
            }
            Some(mode) => ServerStorage::Others(BackupFolder::open(path)?, mode),
            None => ServerStorage::None,
        })
    }

    /// Limits the open files of replicas, so that descriptors remain for other purposes.
    pub(crate) fn limit_open_files(self, max: usize) -> ServerStorage {
        match &self {
            ServerStorage::Others(folder, mode) => {
                folder.replicas.limit_open_files(max, *mode != Mode::Memory);
            }
            ServerStorage::Own(folder) => folder.recovered_log.limit_open_files(max),
            ServerStorage::None => {}
        }
        self
    }

    pub(crate) fn own(&self) -> Option<&DataFolder> {
        match self {
            ServerStorage::Own(folder) => Some(folder),
            ServerStorage::None | ServerStorage::Others(..) => None,
        }
    }

    /// Returns the cluster whose data is in the folder.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        match self {
            ServerStorage::None => None,
            ServerStorage::Own(folder) => folder.recovered_log.owner().map(|(cluster, _)| cluster),
            ServerStorage::Others(folder, _) => folder.replicas.clusters().first().copied(),
        }
    }

    /// Returns the cluster state that the last process with this folder has saved.
    pub(crate) fn saved(&self) -> Option<&SavedClusterState> {
        match self {
            ServerStorage::None | ServerStorage::Own(_) => None,
            ServerStorage::Others(folder, _) => folder.saved.as_ref().map(|(_, saved)| saved),
        }
    }

    /// Returns the state on disk, for a coordinator that has lost its file.
    pub(crate) fn remembered(&self) -> Option<(ClusterMap, Holdings)> {
        let ServerStorage::Others(folder, _) = self else { return None };
        let saved = self.saved()?;
        let holdings = Holdings {
            seed: saved.seed,
            manifest_log: None,
            tablets: Vec::new(),
            migrations: Vec::new(),
            logs: folder.replicas.manifest_logs(),
        };
        Some((saved.map.clone(), holdings))
    }

    /// Starts to save the cluster state that this process learns.
    pub(crate) fn start_saver(
        &self,
        identity: ServerIdentity,
        seed: u64,
    ) -> anyhow::Result<Option<Saver>> {
        let ServerStorage::Others(folder, _) = self else { return Ok(None) };
        let ServerIdentity { cluster, server } = identity;
        let (servers, tablets, moving) = (Vec::new(), Vec::new(), Vec::new());
        let none = ClusterMap { version: 0, cluster, servers, tablets, moving };
        let sequence = folder.saved.as_ref().map_or(0, |(sequence, _)| *sequence);
        // Until the first map arrives, the last process's state is the newest one known.
        let known = self.saved().filter(|saved| saved.cluster == cluster);
        let (mark, map) = known.map_or((None, none), |known| (known.mark, known.map.clone()));
        let saved = SavedClusterState { cluster, server, seed, mark, map };
        Saver::start(&folder.path, sequence, saved).map(Some)
    }

    /// Refuses a disk of another cluster before anything is changed on it.
    pub(crate) fn check_cluster(&self, ours: ClusterId) -> anyhow::Result<()> {
        match self.cluster() {
            Some(other) if other != ours => bail!(
                "the data folder of this server belongs to cluster {other}, but its coordinator \
                 to cluster {ours}: join the coordinator of {other}, or choose an empty --data-dir"
            ),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn is_of_others(&self) -> bool {
        matches!(self, ServerStorage::Others(..))
    }
}

/// The data folder of a server of a cluster, with replicas of other servers' logs.
pub(crate) struct BackupFolder {
    pub(crate) path: PathBuf,
    pub(crate) replicas: Replicas,
    /// The cluster state saved by the last process, with its sequence number.
    pub(crate) saved: Option<(u64, SavedClusterState)>,
}

impl BackupFolder {
    /// Opens a folder, and creates it if it does not exist.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<BackupFolder> {
        let replicas = backup_folder(folder)?;
        let saved = saved::read(folder)?;
        Ok(BackupFolder { path: folder.to_path_buf(), replicas, saved })
    }
}

fn backup_folder(folder: &Path) -> anyhow::Result<Replicas> {
    let shown = folder.display();
    if folder.join("coordinator.redb").exists() {
        bail!(
            "the folder {shown} contains the data of a stand-alone server, which a cluster would \
             not serve: choose another folder with --data-dir"
        );
    }
    let directory = DataDirectory::open(folder)
        .with_context(|| "choose another folder with --data-dir, or --durability none")?;
    let mut marks = FolderMarks::read(folder, FolderUse::Cluster)?;
    let disk = Arc::new(FileDisk::open(&directory)?);
    let OpenedReplicas { replicas, unreadable } = Replicas::open(disk, BootId(boot_id()?))
        .with_context(|| format!("cannot use the contents of the folder {shown}"))?;
    for UnreadableFile { number, why } in unreadable {
        if why.is_of_another_version() {
            bail!(
                "{number} in {shown} was written by another version of ballast: start that \
                 version. Nothing was changed"
            );
        }
        tracing::warn!(%number, %why, "cannot read a replica file, leaving it unchanged");
    }
    let mut clusters = replicas.clusters().into_iter();
    if let (Some(first), Some(second)) = (clusters.next(), clusters.next()) {
        bail!(
            "the folder {shown} contains replicas of two clusters, {first} and {second}: move \
             those of the wrong cluster away. Nothing was changed"
        );
    }
    marks.prepare(FolderUse::Cluster)?;
    marks.complete(FolderUse::Cluster)?;
    Ok(replicas)
}

/// The data folder of a stand-alone server, locked by this process until it ends.
pub(crate) struct DataFolder {
    /// The log recovered from the folder.
    pub(crate) recovered_log: RecoveredLog,
    /// Path of the coordinator's file.
    pub(crate) coordinator: PathBuf,
    /// The durability mode.
    pub(crate) mode: Mode,
    /// Marks that prove that `replicas/` is the folder used before.
    pub(crate) marks: FolderMarks,
}

impl DataFolder {
    /// Opens a folder, and creates it if it does not exist.
    pub(crate) fn open(folder: &Path, mode: Mode) -> anyhow::Result<DataFolder> {
        let other = || "choose another folder with --data-dir, or --durability none";
        let directory = DataDirectory::open(folder).with_context(other)?;
        let marks = FolderMarks::read(folder, FolderUse::Alone)?;
        let coordinator = folder.join("coordinator.redb");
        let found = FolderContents {
            has_replicas: folder.join("replicas").exists(),
            has_coordinator: coordinator.exists(),
            has_log: marks.has_log(),
            is_prepared: marks.is_prepared(),
        };
        found.check_folders(folder)?;
        let disk = FileDisk::open(&directory)?;
        let recovered_log =
            RecoveredLog::find(Arc::new(disk), BootId(boot_id()?)).with_context(|| {
                format!(
                    "cannot use the contents of the folder {} (nothing was changed)",
                    folder.display()
                )
            })?;
        found.check_log(folder, recovered_log.owner().is_some())?;
        let mut folder = DataFolder { recovered_log, coordinator, mode, marks };
        folder.marks.prepare(FolderUse::Alone)?;
        Ok(folder)
    }
}

/// The contents of a data folder that decide whether a start is refused.
#[derive(Clone, Copy, Debug)]
struct FolderContents {
    has_replicas: bool,
    has_coordinator: bool,
    /// True if the mark beside `replicas/` shows that a log was begun here.
    has_log: bool,
    /// True if `replicas/` has the mark of an earlier start.
    is_prepared: bool,
}

impl FolderContents {
    /// Checks the folders before a missing `replicas/` is created.
    fn check_folders(self, folder: &Path) -> anyhow::Result<()> {
        if self.has_coordinator && !self.has_replicas {
            bail!("{}", self.no_log(folder));
        }
        Ok(())
    }

    /// Refuses a log without the coordinator's file, and the file without a log. The mark can prove
    /// that there was no log: a server begins its manifest log before it serves.
    fn check_log(self, folder: &Path, is_there: bool) -> anyhow::Result<()> {
        let shown = folder.display();
        match (is_there, self.has_coordinator) {
            (true, true) => Ok(()),
            (true, false) => bail!(
                "the folder {shown} contains a log, but the file coordinator.redb is missing, \
                 without which the log cannot be read: restore its newest copy (an older one does \
                 not know of later flushes, and loses what was written after them), or start over \
                 with an empty folder. Nothing was changed"
            ),
            (false, _) if self.has_log => bail!(
                "the log is missing from {shown}/replicas, to which it was written: restore its \
                 files, from a copy or from where they were moved, or start over with an empty \
                 data folder. Nothing was changed"
            ),
            (false, true) if !self.is_prepared => bail!("{}", self.no_log(folder)),
            (false, _) => Ok(()),
        }
    }

    fn no_log(self, folder: &Path) -> String {
        let what = if self.has_replicas { "contains no log" } else { "is missing" };
        let shown = folder.display();
        format!(
            "the folder {shown} contains coordinator.redb, but {shown}/replicas {what}: was it \
             moved, or is its disk not mounted? Nothing was changed. Restore it and start the \
             server again. Only if this server has never served, remove coordinator.redb"
        )
    }
}
