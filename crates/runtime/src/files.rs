//! Files of a data directory: numbered ones in one folder, written at any place by one process.
//!
//! A directory belongs to the process that has locked its file `lock`; the lock goes with the
//! process, however it ends. Making and removing a file is on the disk when the call returns.
//!
//! Calls wait for the disk. Every error says which file, where, and what an operator can do.

#[cfg(feature = "faults")]
use crate::faults::{self, Operation, Then};
use rustix::fs::{Advice, FallocateFlags};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice, Read, Seek, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the operating system calls its present boot.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Where it gives out random bits.
const RANDOM_FILE: &str = "/dev/urandom";

/// The id that the operating system has drawn for its present boot.
pub fn boot_id() -> io::Result<[u8; 16]> {
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

/// Bits that the operating system has drawn, for numbers that must not meet another one by chance.
pub fn random_bits() -> io::Result<u128> {
    let path = Path::new(RANDOM_FILE);
    let mut bits = [0; 16];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bits));
    read.map_err(|error| explain(error, path, "cannot read"))?;
    Ok(u128::from_le_bytes(bits))
}

/// A data directory, locked for this process until this and all its folders are gone.
#[derive(Debug)]
pub struct DataDirectory {
    root: PathBuf,
    lock: Arc<File>,
}

impl DataDirectory {
    /// Locks a directory; makes it if it is not there.
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
        // For people only: it is the lock that counts.
        let noted = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        noted.map_err(|error| explain(error, &path, "cannot write"))?;
        Ok(DataDirectory { root: root.to_path_buf(), lock: Arc::new(lock) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A folder of numbered files in it; makes it if it is not there.
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

/// Makes a directory, and those above it, that are still there after a loss of power.
pub fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    // A path of one word has an empty parent, which is the working directory.
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

/// Makes the names of the files in a directory survive a loss of power.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| explain(error, path, "cannot sync"))
}

/// A folder of files that have numbers for names.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Synced when a name has come or gone.
    handle: File,
    _lock: Arc<File>,
}

impl Folder {
    /// The numbers of its files, in order. Files with other names are left alone.
    pub fn list(&self) -> io::Result<Vec<u32>> {
        let failed = |error| explain(error, &self.path, "cannot list");
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            // `7` and `+7` are not our names for file 7.
            numbers.extend(number.filter(|number| *file_name(*number) == *name));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Makes a file with room for `bytes`, which are at least one. After an error it may be there.
    pub fn create(&self, number: u32, bytes: u64) -> io::Result<NumberedFile> {
        let path = self.path.join(file_name(number));
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = made.map_err(|error| explain(error, &path, "cannot make"))?;
        let file = NumberedFile { path, file };
        file.reserve(bytes)?;
        self.sync()?;
        Ok(file)
    }

    /// Opens a file that exists.
    pub fn open(&self, number: u32) -> io::Result<NumberedFile> {
        let path = self.path.join(file_name(number));
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|error| explain(error, &path, "cannot open"))?;
        Ok(NumberedFile { path, file })
    }

    /// Removes a file, if it is there.
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
    /// Takes room on the disk, where the file system can promise any. Without it the disk may turn
    /// out to be full later.
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        #[cfg(feature = "faults")]
        self.suffer(Operation::Write)?;
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

    /// Writes the parts side by side. After an error any of the bytes may have been written.
    pub fn write(&self, offset: u64, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        #[cfg(feature = "faults")]
        self.suffer(Operation::Write)?;
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

    /// Reads until `into` is full or the file ends.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "faults")]
        self.suffer(Operation::Read)?;
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

    /// Puts what was written on the disk. If it fails, what was written since the last time may be
    /// lost, whatever a later call says.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if self.suffer(Operation::Sync)? == Then::Lie {
            return Ok(());
        }
        self.file.sync_data().map_err(|error| explain(error, &self.path, "cannot sync"))
    }

    /// Tells the system that the file is going to be read from its beginning up to this place, or to
    /// its end if that comes first.
    pub fn read_ahead(&self, to: u64) {
        // Hints: reading works without. None means all, and so does one that the system cannot count.
        let length = NonZeroU64::new(to).filter(|length| i64::try_from(length.get()).is_ok());
        let _ = rustix::fs::fadvise(&self.file, 0, length, Advice::Sequential);
        let _ = rustix::fs::fadvise(&self.file, 0, length, Advice::WillNeed);
    }

    /// Tells the system that what it has in memory of the file may go, as far as it is on the disk.
    pub fn forget_cached(&self) {
        // A hint.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    /// Plays what a test wants the disk to do.
    #[cfg(feature = "faults")]
    fn suffer(&self, operation: Operation) -> io::Result<Then> {
        let what = || format!("cannot {operation:?}").to_lowercase();
        faults::before(&self.path, operation).map_err(|error| explain(error, &self.path, &what()))
    }

    fn failed(&self, error: io::Error, what: &str, at: u64) -> io::Error {
        explain(error, &self.path, &format!("{what} at byte {at}"))
    }
}

/// The same kind of error, with what happened to which file and what can be done about it.
fn explain(error: io::Error, path: &Path, what: &str) -> io::Error {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free some space on this disk",
        ErrorKind::PermissionDenied => "; the server's user must own the data directory",
        ErrorKind::ReadOnlyFilesystem => "; the disk was mounted for reading only, or has failed",
        _ if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
            "; the disk has failed here, see the system's log"
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
