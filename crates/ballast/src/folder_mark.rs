//! Marks that prove that a data folder's `replicas/` is the one that its server wrote to.
//!
//! `replicas/` is often the mount point of a separate disk. If the disk is not mounted, an empty
//! folder takes its place, and looks unused. Therefore the same random number is stored in two
//! files `folder.id`: one in `replicas/`, written before anything else, and one beside it, written
//! when a log has been begun. Together they mean:
//!
//! | beside | in `replicas/` | meaning |
//! | --- | --- | --- |
//! | yes | the same | the real folder; a stand-alone server has a log there |
//! | yes | none, or another | not the real folder |
//! | no | yes | no server was served from here yet, unless there are replicas |
//! | no | no | new, or written by a version without marks |
//!
//! **Invariant:** a mark is written only if there is none. An existing mark is never replaced.

use crate::file_replacement::replace_file;
use anyhow::{Context, bail};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// File name of both marks.
const NAME: &str = "folder.id";
/// First word of a mark, and its version.
const BEGINNING: &str = "ballast-folder 1";

/// The use of a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderUse {
    /// The folder contains the log of a stand-alone server.
    Alone,
    /// The folder contains replicas of other servers' logs.
    Cluster,
}

/// The marks of one data folder.
pub(crate) struct FolderMarks {
    folder: PathBuf,
    beside: Option<FolderMark>,
    inside: Option<FolderMark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FolderMark {
    id: u128,
    used: FolderUse,
}

impl FolderMarks {
    /// Reads the marks of a folder, without changing anything.
    ///
    /// # Errors
    /// If the marks prove that `replicas/` is not the folder used last, or that the folder has
    /// another use.
    pub(crate) fn read(folder: &Path, wanted: FolderUse) -> anyhow::Result<FolderMarks> {
        let replicas = folder.join("replicas");
        let marks = FolderMarks {
            folder: folder.to_path_buf(),
            beside: read(&folder.join(NAME))?,
            inside: read(&replicas.join(NAME))?,
        };
        let Some(beside) = marks.beside else { return Ok(marks) };
        let shown = replicas.display();
        match marks.inside {
            _ if !replicas.is_dir() => bail!("the folder {shown} is missing: {BRING_BACK}"),
            None => bail!(
                "the folder {shown} is not the one that this server wrote to, since it has no \
                 mark ({NAME}): {BRING_BACK}"
            ),
            Some(inside) if inside.id != beside.id => bail!(
                "the folder {shown} belongs to another data folder than {}, since their marks \
                 ({NAME}) differ: {BRING_BACK}",
                folder.display()
            ),
            Some(_) if beside.used != wanted => bail!(
                "the folder {} belongs to {}: choose another folder with --data-dir",
                folder.display(),
                beside.used.owner()
            ),
            Some(_) => Ok(marks),
        }
    }

    /// Returns whether a log was begun in this folder.
    pub(crate) fn has_log(&self) -> bool {
        self.beside.is_some()
    }

    /// Returns whether a start has marked this `replicas/` folder.
    pub(crate) fn is_prepared(&self) -> bool {
        self.inside.is_some()
    }

    /// Marks the existing folder `replicas/`, before anything else is written to it.
    pub(crate) fn prepare(&mut self, used: FolderUse) -> anyhow::Result<()> {
        if self.inside.is_none() {
            let mark = FolderMark { id: runtime::files::random_bits()?, used };
            write(&self.folder.join("replicas"), mark)?;
            self.inside = Some(mark);
        }
        Ok(())
    }

    /// Writes the mark beside `replicas/`. From then on, `replicas/` must contain the log.
    pub(crate) fn complete(&mut self, used: FolderUse) -> anyhow::Result<()> {
        if let (None, Some(inside)) = (self.beside, self.inside) {
            let mark = FolderMark { used, ..inside };
            write(&self.folder, mark)?;
            self.beside = Some(mark);
        }
        Ok(())
    }
}

impl FolderUse {
    fn word(self) -> &'static str {
        match self {
            FolderUse::Alone => "alone",
            FolderUse::Cluster => "cluster",
        }
    }

    fn owner(self) -> &'static str {
        match self {
            FolderUse::Alone => "a stand-alone server, whose data a cluster would not serve",
            FolderUse::Cluster => "a cluster member, which stores replicas of other servers' logs",
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Option<FolderMark>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(error).with_context(|| {
                format!("{}: the server's user must own the data directory", path.display())
            });
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mark = parse(&text);
    let unknown = || format!("{} is not a mark of this version of ballast", path.display());
    mark.with_context(unknown).map(Some)
}

fn parse(text: &str) -> Option<FolderMark> {
    let (id, word) = text.trim_end().strip_prefix(BEGINNING)?.trim_start().split_once(' ')?;
    let used =
        [FolderUse::Alone, FolderUse::Cluster].into_iter().find(|used| used.word() == word)?;
    let is_id = id.len() == 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let id = u128::from_str_radix(id, 16).ok().filter(|_| is_id)?;
    Some(FolderMark { id, used })
}

fn text(mark: FolderMark) -> String {
    format!("{BEGINNING} {:032x} {}\n", mark.id, mark.used.word())
}

/// Writes a mark atomically.
fn write(folder: &Path, mark: FolderMark) -> anyhow::Result<()> {
    let (new, path) = (folder.join(format!("{NAME}.new")), folder.join(NAME));
    replace_file(&path, &new, &text(mark), None)
        .with_context(|| format!("cannot write the mark {}", path.display()))
}

const BRING_BACK: &str = "was it moved, or is its disk not mounted? Nothing was changed. Restore \
                          it and start the server again, or start over with an empty data folder";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_and_anything_else_is_refused() {
        for used in [FolderUse::Alone, FolderUse::Cluster] {
            let mark = FolderMark { id: 0x0123_4567_89ab_cdef, used };
            assert_eq!(parse(&text(mark)), Some(mark));
        }
        let id = "0123456789abcdef0123456789abcdef";
        for wrong in [
            String::new(),
            format!("ballast-folder 2 {id} alone"),
            format!("ballast-folder 1 {id} apart"),
            format!("ballast-folder 1 +{} alone", &id[1..]),
            "ballast-folder 1 12 alone".to_owned(),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn marks_are_written_once_and_tell_another_folder_from_the_real_one() {
        let folder = tempfile::tempdir().unwrap();
        let replicas = folder.path().join("replicas");
        let read = || FolderMarks::read(folder.path(), FolderUse::Alone);
        let mut marks = read().unwrap();
        assert!(!marks.has_log() && !marks.is_prepared());
        fs::create_dir(&replicas).unwrap();
        marks.prepare(FolderUse::Alone).unwrap();
        assert!(!read().unwrap().has_log() && read().unwrap().is_prepared());
        marks.complete(FolderUse::Alone).unwrap();
        let written = fs::read(folder.path().join(NAME)).unwrap();
        marks.prepare(FolderUse::Alone).unwrap();
        marks.complete(FolderUse::Alone).unwrap();
        assert_eq!(fs::read(folder.path().join(NAME)).unwrap(), written);
        assert!(read().unwrap().has_log());
        assert!(FolderMarks::read(folder.path(), FolderUse::Cluster).is_err());
        fs::remove_file(replicas.join(NAME)).unwrap();
        assert!(read().is_err());
    }
}
