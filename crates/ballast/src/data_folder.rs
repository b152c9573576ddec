//! Where a server keeps data. A server alone: a folder with the replicas of its log, and the file of
//! the coordinator that it carries in itself. One of a cluster: replicas of others' logs.
//!
//! | name | what |
//! | --- | --- |
//! | `replicas/` | one file for each segment of the log and of its directory |
//! | `coordinator.redb` | which tablets there are and under which tenures, the seed of key hashes |
//! | `cluster-0`, `cluster-1` | of a server of a cluster: what it knows of that (`saved.rs`) |
//! | `folder.id`, also in `replicas/` | proves that `replicas/` is the real one (`folder_mark.rs`) |
//!
//! **Invariant:** a start that is refused has changed nothing, and no start removes or renames
//! anything. See `docs/design/identity.md`.

use crate::folder_mark::{Marks, Use};
use crate::saved;
use anyhow::{Context, bail};
use backup::{Opened, Replicas, Unreadable};
use runtime::files::{DataDirectory, boot_id};
use server::engine::{Kept, Mode};
use server::shell::FileDisk;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::replica::BootId;
use wire::saved::Saved;

/// The folder of a server of a cluster: what it keeps there are the logs of others.
pub(crate) struct BackupFolder {
    pub(crate) path: PathBuf,
    pub(crate) replicas: Replicas,
    /// The cluster as the last process has saved it, and the place of that in the sequence.
    pub(crate) saved: Option<(u64, Saved)>,
}

impl BackupFolder {
    /// Opens a folder, which is made if it is not there.
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
            "the folder {shown} holds the data of a server that was alone, which a cluster would not \
             see: choose another folder with --data-dir"
        );
    }
    let directory = DataDirectory::open(folder)
        .with_context(|| "choose another folder with --data-dir, or --durability none")?;
    let mut marks = Marks::read(folder, Use::Cluster)?;
    let disk = Arc::new(FileDisk::open(&directory)?);
    let Opened { replicas, unreadable } = Replicas::open(disk, BootId(boot_id()?))
        .with_context(|| format!("what is in the folder {shown} cannot be used"))?;
    for Unreadable { number, why } in unreadable {
        if why.is_of_another_version() {
            bail!(
                "{number} in {shown} was written by another version of ballast: start that one. \
                 Nothing was changed"
            );
        }
        tracing::warn!(%number, %why, "a file cannot be read: it is left as it is");
    }
    let mut clusters = replicas.clusters().into_iter();
    if let (Some(first), Some(second)) = (clusters.next(), clusters.next()) {
        bail!(
            "the folder {shown} holds replicas of two clusters, {first} and {second}: move what does \
             not belong here away. Nothing was changed"
        );
    }
    marks.prepare(Use::Cluster)?;
    marks.complete(Use::Cluster)?;
    Ok(replicas)
}

/// A folder with a server's data. The folder is this process's alone until it ends.
pub(crate) struct DataFolder {
    /// What was kept in it.
    pub(crate) kept: Kept,
    /// The coordinator's file.
    pub(crate) coordinator: PathBuf,
    /// How it is kept.
    pub(crate) mode: Mode,
    /// Marks that prove that `replicas/` is the folder used before.
    pub(crate) marks: Marks,
}

impl DataFolder {
    /// Opens a folder, which is made if it is not there.
    pub(crate) fn open(folder: &Path, mode: Mode) -> anyhow::Result<DataFolder> {
        let other = || "choose another folder with --data-dir, or --durability none";
        let directory = DataDirectory::open(folder).with_context(other)?;
        let marks = Marks::read(folder, Use::Alone)?;
        let coordinator = folder.join("coordinator.redb");
        let found = Found {
            has_replicas: folder.join("replicas").exists(),
            has_coordinator: coordinator.exists(),
            has_log: marks.has_log(),
            is_prepared: marks.is_prepared(),
        };
        found.check_folders(folder)?;
        let disk = FileDisk::open(&directory)?;
        let kept = Kept::find(Arc::new(disk), BootId(boot_id()?)).with_context(|| {
            format!(
                "what is in the folder {} cannot be used, and nothing was changed",
                folder.display()
            )
        })?;
        found.check_log(folder, kept.owner().is_some())?;
        let mut folder = DataFolder { kept, coordinator, mode, marks };
        folder.marks.prepare(Use::Alone)?;
        Ok(folder)
    }
}

/// Contents of a data folder that decide whether a start is refused.
#[derive(Clone, Copy, Debug)]
struct Found {
    has_replicas: bool,
    has_coordinator: bool,
    /// A log was begun here, its mark says.
    has_log: bool,
    /// `replicas/` has the mark of an earlier start.
    is_prepared: bool,
}

impl Found {
    /// Refuses what can be judged before `replicas/` is made where it is missing.
    fn check_folders(self, folder: &Path) -> anyhow::Result<()> {
        if self.has_coordinator && !self.has_replicas {
            bail!("{}", self.no_log(folder));
        }
        Ok(())
    }

    /// Refuses a log without the file that says what it means, and the reverse, unless it is proved
    /// that there was none: a server begins its log's directory before it serves.
    fn check_log(self, folder: &Path, is_there: bool) -> anyhow::Result<()> {
        let shown = folder.display();
        match (is_there, self.has_coordinator) {
            (true, true) => Ok(()),
            (true, false) => bail!(
                "the folder {shown} holds a log, but its file coordinator.redb is missing, which says \
                 what it means: bring it back from a copy, or begin anew with an empty folder. \
                 Nothing was changed"
            ),
            (false, _) if self.has_log => bail!(
                "the log is gone from {shown}/replicas, which is the folder that it was written to: \
                 bring its files back, from a copy or from where they were moved, or begin anew with \
                 an empty data folder. Nothing was changed"
            ),
            (false, true) if !self.is_prepared => bail!("{}", self.no_log(folder)),
            (false, _) => Ok(()),
        }
    }

    fn no_log(self, folder: &Path) -> String {
        let what = if self.has_replicas { "holds no log" } else { "is missing" };
        let shown = folder.display();
        format!(
            "the folder {shown} holds coordinator.redb, but {shown}/replicas {what}: was it moved, or \
             is its disk not mounted? Nothing was changed. Bring it back and start the server again. \
             Only if this server has never served, remove coordinator.redb"
        )
    }
}
