//! Where a server keeps data. A server alone: a folder with the replicas of its log, and the file of
//! the coordinator that it carries in itself. One of a cluster: replicas of others' logs.
//!
//! | name | what |
//! | --- | --- |
//! | `replicas/` | one file for each segment of the log and of its directory |
//! | `coordinator.redb` | which tablets there are and under which tenures, the seed of key hashes |

use anyhow::{Context, bail};
use backup::{Opened, Replicas, Unreadable};
use runtime::files::{DataDirectory, boot_id};
use server::engine::{Kept, Mode};
use server::shell::FileDisk;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::replica::BootId;

/// Opens the folder of a server of a cluster: what it keeps there are the logs of others.
pub(crate) fn backup_folder(folder: &Path) -> anyhow::Result<Replicas> {
    let shown = folder.display();
    if folder.join("coordinator.redb").exists() {
        bail!(
            "the folder {shown} holds the data of a server that was alone, which a cluster would not \
             see: choose another folder with --data-dir"
        );
    }
    let directory = DataDirectory::open(folder)
        .with_context(|| "choose another folder with --data-dir, or --durability none")?;
    let disk = Arc::new(FileDisk::open(&directory)?);
    let Opened { replicas, unreadable } = Replicas::open(disk, BootId(boot_id()?))
        .with_context(|| format!("what is in the folder {shown} cannot be used"))?;
    for Unreadable { number, why } in unreadable {
        tracing::warn!(%number, %why, "a file holds no replica that can be read");
    }
    Ok(replicas)
}

/// See the module's text. The folder is this process's alone until it ends.
pub(crate) struct DataFolder {
    /// What was kept in it.
    pub(crate) kept: Kept,
    /// The coordinator's file.
    pub(crate) coordinator: PathBuf,
    /// How it is kept.
    pub(crate) mode: Mode,
}

impl DataFolder {
    /// Opens a folder, which is made if it is not there.
    pub(crate) fn open(folder: &Path, mode: Mode) -> anyhow::Result<DataFolder> {
        let shown = folder.display();
        let other = || "choose another folder with --data-dir, or --durability none";
        let directory = DataDirectory::open(folder).with_context(other)?;
        let disk = FileDisk::open(&directory)?;
        let kept = Kept::find(Arc::new(disk), BootId(boot_id()?))
            .with_context(|| format!("what is in the folder {shown} cannot be used"))?;
        let coordinator = folder.join("coordinator.redb");
        match (kept.owner(), coordinator.exists()) {
            // A server writes its log's directory before it serves: nobody was ever served from it.
            (None, true) => std::fs::remove_file(&coordinator).with_context(|| {
                format!("the file {} is left over and cannot be removed", coordinator.display())
            })?,
            (Some(_), false) => bail!(
                "the folder {shown} holds a log, but the file {} is missing, which says what it \
                 means: bring it back from a copy, or begin anew with an empty folder",
                coordinator.display()
            ),
            (None, false) | (Some(_), true) => {}
        }
        Ok(DataFolder { kept, coordinator, mode })
    }
}
