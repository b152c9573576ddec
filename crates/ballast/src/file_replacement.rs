//! Atomic replacement of small files.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::path::Path;

/// Writes `text` to `temporary`, in the folder of `path`, and renames that file to `path`. Readers
/// find either the old or the new file, complete, also after a power failure.
pub(crate) fn replace_file(
    path: &Path,
    temporary: &Path,
    text: &str,
    permissions: Option<Permissions>,
) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
