//! Files of a data directory: numbered files in one folder, written at any offset by one process.
//!
//! A directory belongs to the process that has locked its file `lock`. The lock ends with the
//! process, however that ends. Creating and removing a file is durable when the call returns.
//!
//! Calls wait for the disk. Every error names the file, the position, and a remedy for the
//! operator.

#[cfg(feature = "faults")]
use crate::faults::{self, AfterFaults, DiskOperation};
use rustix::fs::{Advice, FallocateFlags};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice, Read, Seek, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File with the id of the system's current boot.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Source of random bits.
const RANDOM_FILE: &str = "/dev/urandom";

/// Returns the id that the operating system has drawn for its current boot.
pub fn boot_id() -> io::Result<[u8; 16]> {
    #[cfg(feature = "faults")]
    if let Some(id) = faults::boot_id() {
        return Ok(id);
    }
    let path = Path::new(BOOT_ID_FILE);
    let text = fs::read_to_string(path).map_err(|error| explain(error, path, "cannot read"))?;
    parse_boot_id(&text).ok_or_else(|| {
        io::Error::new(ErrorKind::InvalidData, format!("{BOOT_ID_FILE} has no boot id: {text:?}"))
    })
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let id = u128::from_str_radix(&digits, 16).ok()?;
    is_id.then(|| id.to_be_bytes())
}

/// Returns random bits of the operating system, for numbers that must not collide by chance.
pub fn random_bits() -> io::Result<u128> {
    let path = Path::new(RANDOM_FILE);
    let mut bits = [0; 16];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bits));
    read.map_err(|error| explain(error, path, "cannot read"))?;
    Ok(u128::from_le_bytes(bits))
}

/// A data directory. It is locked for this process until this value and all its folders are
/// dropped.
#[derive(Debug)]
pub struct DataDirectory {
    root: PathBuf,
    lock: Arc<File>,
}

impl DataDirectory {
    /// Locks a directory, and creates it if necessary.
    pub fn open(root: &Path) -> io::Result<DataDirectory> {
        make_directory(root)?;
        let path = root.join("lock");
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut lock = open.map_err(|error| explain(error, &path, "cannot open"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(root, &mut lock)),
            Err(TryLockError::Error(error)) => return Err(explain(error, &path, "cannot lock")),
        }
        // Information for people only; the lock itself is what counts.
        let noted = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        noted.map_err(|error| explain(error, &path, "cannot write"))?;
        Ok(DataDirectory { root: root.to_path_buf(), lock: Arc::new(lock) })
    }

    /// Returns a folder of numbered files in the directory, and creates it if necessary.
    pub fn folder(&self, name: &str) -> io::Result<Folder> {
        let path = self.root.join(name);
        make_directory(&path)?;
        let handle = File::open(&path).map_err(|error| explain(error, &path, "cannot open"))?;
        Ok(Folder { path, handle, _lock: Arc::clone(&self.lock) })
    }
}

fn in_use(root: &Path, lock: &mut File) -> io::Error {
    let mut owner = String::new();
    let owner = match lock.rewind().and_then(|()| lock.read_to_string(&mut owner)) {
        Ok(1..) => format!("process {}", owner.trim()),
        Ok(_) | Err(_) => "another process".to_owned(),
    };
    let root = root.display();
    let text = format!("{root} is in use by {owner}: end it, or choose another data directory");
    io::Error::new(ErrorKind::ResourceBusy, text)
}

/// Creates a directory and its parents durably: they survive a power loss.
pub fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    // The parent of a single-component path is empty, which means the working directory.
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    make_directory(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists || !path.is_dir() => {
            return Err(explain(error, path, "cannot make"));
        }
        Ok(()) | Err(_) => {}
    }
    sync_directory(parent)
}

/// Makes the file names in a directory survive a power loss.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| explain(error, path, "cannot sync"))
}

/// A folder of files whose names are numbers.
pub struct Folder {
    path: PathBuf,
    /// Synced after a file name was added or removed.
    handle: File,
    _lock: Arc<File>,
}

impl Folder {
    /// Returns the numbers of its files in ascending order. Ignores files with other names.
    pub fn list(&self) -> io::Result<Vec<u32>> {
        let failed = |error| explain(error, &self.path, "cannot list");
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            // `7` and `+7` are not valid names of file 7.
            numbers.extend(number.filter(|number| *file_name(*number) == *name));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Creates a file with space for `bytes`, at least one. After an error the file may exist.
    pub fn create(&self, number: u32, bytes: u64) -> io::Result<NumberedFile> {
        let path = self.path.join(file_name(number));
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = made.map_err(|error| explain(error, &path, "cannot make"))?;
        let file = NumberedFile { path, file };
        file.reserve(bytes)?;
        self.sync()?;
        Ok(file)
    }

    /// Opens an existing file.
    pub fn open(&self, number: u32) -> io::Result<NumberedFile> {
        let path = self.path.join(file_name(number));
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|error| explain(error, &path, "cannot open"))?;
        Ok(NumberedFile { path, file })
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, number: u32) -> io::Result<()> {
        let path = self.path.join(file_name(number));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(explain(error, &path, "cannot remove"))
            }
            Ok(()) | Err(_) => self.sync(),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all().map_err(|error| explain(error, &self.path, "cannot sync"))
    }
}

fn file_name(number: u32) -> String {
    format!("{number:06}")
}

/// An open file of a [`Folder`].
#[derive(Debug)]
pub struct NumberedFile {
    path: PathBuf,
    file: File,
}

impl NumberedFile {
    /// Reserves space on the disk, if the file system supports it. Otherwise the disk may turn
    /// out to be full later.
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        #[cfg(feature = "faults")]
        self.suffer(DiskOperation::Write)?;
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    let text = format!("cannot reserve {bytes} bytes");
                    return Err(explain(error.into(), &self.path, &text));
                }
            }
        }
    }

    /// Writes the parts consecutively. After an error any of the bytes may have been written.
    pub fn write(&self, offset: u64, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        #[cfg(feature = "faults")]
        self.suffer(DiskOperation::Write)?;
        let mut at = offset;
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match rustix::io::pwritev(&self.file, parts, at) {
                Ok(0) => return Err(self.failed(ErrorKind::WriteZero.into(), "cannot write", at)),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut parts, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.failed(error.into(), "cannot write", at)),
            }
        }
        Ok(())
    }

    /// Reads until `into` is full or the file ends. Returns the number of bytes.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "faults")]
        self.suffer(DiskOperation::Read)?;
        let mut filled = 0;
        while filled < into.len() {
            let at = offset + filled as u64;
            match self.file.read_at(&mut into[filled..], at) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error, "cannot read", at)),
            }
        }
        Ok(filled)
    }

    /// Writes all data to the disk. If it fails, data written since the last success may be lost,
    /// even if a later call succeeds.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if self.suffer(DiskOperation::Sync)? == AfterFaults::FakeSuccess {
            return Ok(());
        }
        self.file.sync_data().map_err(|error| explain(error, &self.path, "cannot sync"))
    }

    /// Tells the system that the file will be read from its beginning up to this offset, or to
    /// its end if that comes first.
    pub fn read_ahead(&self, to: u64) {
        // Only hints: reading works without them. `None` means the whole file; so does a length
        // that the system cannot represent.
        let length = NonZeroU64::new(to).filter(|length| i64::try_from(length.get()).is_ok());
        let _ = rustix::fs::fadvise(&self.file, 0, length, Advice::Sequential);
        let _ = rustix::fs::fadvise(&self.file, 0, length, Advice::WillNeed);
    }

    /// Tells the system that it may drop cached pages of the file that are on the disk.
    pub fn forget_cached(&self) {
        // A hint.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    /// Applies the disk faults that a test has configured.
    #[cfg(feature = "faults")]
    fn suffer(&self, operation: DiskOperation) -> io::Result<AfterFaults> {
        let what = || format!("cannot {operation:?}").to_lowercase();
        faults::before(&self.path, operation).map_err(|error| explain(error, &self.path, &what()))
    }

    fn failed(&self, error: io::Error, what: &str, at: u64) -> io::Error {
        explain(error, &self.path, &format!("{what} at byte {at}"))
    }
}

/// Returns an error of the same kind, with the operation, the file and a remedy.
fn explain(error: io::Error, path: &Path, what: &str) -> io::Error {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free some space on this disk",
        ErrorKind::PermissionDenied => "; the server's user must own the data directory",
        ErrorKind::ReadOnlyFilesystem => "; the disk was mounted read-only, or has failed",
        _ if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
            "; the disk has failed, see the system's log"
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "; raise the limit of open files (ulimit -n)"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("{}: {what}: {error}{advice}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_sixteen_bytes() {
        let text = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n";
        let id = parse_boot_id(text).map(|id| id[..4].to_vec());
        assert_eq!(id, Some(vec![0x0f, 0x1e, 0x2d, 0x3c]));
        for wrong in
            ["", "0f1e", "0f1e2d3c4b5a69788796a5b4c3d2e1fz", "+f1e2d3c4b5a69788796a5b4c3d2e1f0"]
        {
            assert_eq!(parse_boot_id(wrong), None, "{wrong:?}");
        }
        assert_eq!(boot_id().ok(), boot_id().ok());
    }
}
