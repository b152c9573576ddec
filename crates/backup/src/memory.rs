//! A disk without hardware, for tests and simulations: it knows which writes were synced, and can
//! lose the rest.
//!
//! A power failure affects unsynced writes per sector, as on a real disk. Each sector ends up
//! with the content after some prefix of the writes that touched it, in their order. Different
//! sectors may stop at different writes. So a write survives completely, partly or not at all,
//! independently of earlier and later writes.

use crate::disk::{Disk, DiskFile, FileNumber};
use crate::files::lock;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use types::Instant;

/// Number of bytes that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// Current faults of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Total size of files, in bytes, at which the disk is full.
    pub capacity: Option<u64>,
    /// Number of bytes after which each write fails.
    pub write_fails_after: Option<usize>,
    /// Failure of all syncs. Bytes affected by a failed sync are lost at a power failure, even if
    /// a later sync succeeds.
    pub syncs_fail: bool,
    /// Failure of all removals.
    pub removals_fail: bool,
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    files: BTreeMap<FileNumber, FileContents>,
    faults: Faults,
    is_slow: bool,
    /// Number of process deaths. A process's open files become invalid when it dies.
    process: u64,
}

#[derive(Clone, Debug, Default)]
struct FileContents {
    /// Reserved size in bytes.
    reserved: u64,
    /// Content that a process reads. Bytes that a failed sync has lost are part of it until the
    /// process drops its cached pages.
    now: Vec<u8>,
    /// Content that survives every power failure.
    synced: Vec<u8>,
    /// Later writes, in order.
    unsynced: Vec<UnsyncedWrite>,
}

#[derive(Clone, Debug)]
struct UnsyncedWrite {
    offset: usize,
    bytes: Vec<u8>,
}

impl MemoryDisk {
    /// Creates an empty disk without faults.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// Sets the faults of the disk from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// Sets whether the disk is slow from now on. Its writes still take no time.
    pub fn set_slow(&self, is_slow: bool) {
        lock(&self.state).is_slow = is_slow;
    }

    /// Copies the current files to another disk without faults, as a backup of the disk does.
    pub fn copy(&self) -> MemoryDisk {
        let disk = MemoryDisk::new();
        for (number, contents) in &lock(&self.state).files {
            let synced = contents.now.clone();
            let copy = FileContents { synced, unsynced: Vec::new(), ..contents.clone() };
            lock(&disk.state).files.insert(*number, copy);
        }
        disk
    }

    /// Copies what is left if the power fails now and takes all unsynced bytes.
    pub fn synced_copy(&self) -> MemoryDisk {
        let disk = MemoryDisk::new();
        lock(&disk.state).files = lock(&self.state).files.clone();
        disk.power_cut(&mut |_| 0);
        disk
    }

    /// Kills the process that uses the disk. All its writes are kept.
    pub fn kill_process(&self) {
        lock(&self.state).process += 1;
    }

    /// Simulates a power failure of the machine. `below(n)` draws a number below `n`.
    pub fn power_cut(&self, below: &mut dyn FnMut(usize) -> usize) {
        let mut state = lock(&self.state);
        state.process += 1;
        for contents in state.files.values_mut() {
            contents.lose_power(below);
        }
    }

    /// Returns the bytes of a file as a process reads them; empty if there is none.
    pub fn contents(&self, number: FileNumber) -> Vec<u8> {
        lock(&self.state).files.get(&number).map(|file| file.now.clone()).unwrap_or_default()
    }

    /// Damages a byte silently: inverts the bits that are set in `bits`.
    pub fn damage(&self, number: FileNumber, at: usize, bits: u8) {
        if let Some(file) = lock(&self.state).files.get_mut(&number) {
            for copy in [&mut file.now, &mut file.synced] {
                copy.get_mut(at).into_iter().for_each(|byte| *byte ^= bits);
            }
            for write in &mut file.unsynced {
                let byte = at.checked_sub(write.offset).and_then(|at| write.bytes.get_mut(at));
                byte.into_iter().for_each(|byte| *byte ^= bits);
            }
        }
    }
}

impl FileContents {
    fn bytes(&self) -> u64 {
        self.reserved.max(self.now.len() as u64)
    }

    fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        put(&mut self.now, offset, &bytes);
        self.unsynced.push(UnsyncedWrite { offset, bytes });
    }

    fn sync(&mut self) {
        for write in self.unsynced.drain(..) {
            put(&mut self.synced, write.offset, &write.bytes);
        }
    }

    /// Leaves what is on the disk or may still be written to it.
    fn forget_cached(&mut self) {
        self.now.clone_from(&self.synced);
        for write in &self.unsynced {
            put(&mut self.now, write.offset, &write.bytes);
        }
    }

    fn lose_power(&mut self, below: &mut dyn FnMut(usize) -> usize) {
        let unsynced = std::mem::take(&mut self.unsynced);
        let mut sectors: BTreeMap<usize, Vec<&UnsyncedWrite>> = BTreeMap::new();
        for write in &unsynced {
            let last = (write.offset + write.bytes.len()).div_ceil(SECTOR_BYTES);
            for sector in write.offset / SECTOR_BYTES..last {
                sectors.entry(sector).or_default().push(write);
            }
        }
        for (sector, writes) in sectors {
            let kept = below(writes.len() + 1);
            for write in &writes[..kept] {
                let part = write.part_in(sector);
                put(&mut self.synced, write.offset + part.start, &write.bytes[part]);
            }
        }
        self.now.clone_from(&self.synced);
    }
}

impl UnsyncedWrite {
    /// Returns the range of its bytes that are in a sector that it touches.
    fn part_in(&self, sector: usize) -> Range<usize> {
        let begin = sector * SECTOR_BYTES;
        let end = begin + SECTOR_BYTES - self.offset;
        begin.saturating_sub(self.offset)..end.min(self.bytes.len())
    }
}

/// Writes into a file and extends it as necessary.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

impl DiskState {
    fn file(&mut self, number: FileNumber) -> io::Result<&mut FileContents> {
        let none = || io::Error::new(ErrorKind::NotFound, format!("there is no {number}"));
        self.files.get_mut(&number).ok_or_else(none)
    }

    /// Returns the part of `bytes` more bytes that the disk has room for.
    fn room(&self, bytes: u64) -> u64 {
        let used: u64 = self.files.values().map(FileContents::bytes).sum();
        self.faults.capacity.map_or(bytes, |capacity| capacity.saturating_sub(used).min(bytes))
    }
}

fn full(number: FileNumber) -> io::Error {
    io::Error::new(ErrorKind::StorageFull, format!("{number}: the disk is full"))
}

impl Disk for MemoryDisk {
    fn list(&self) -> io::Result<Vec<FileNumber>> {
        Ok(lock(&self.state).files.keys().copied().collect())
    }

    fn create(&self, number: FileNumber, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut state = lock(&self.state);
        if state.files.contains_key(&number) {
            return Err(io::Error::new(ErrorKind::AlreadyExists, format!("{number} exists")));
        }
        if state.room(bytes) < bytes {
            return Err(full(number));
        }
        state.files.insert(number, FileContents { reserved: bytes, ..FileContents::default() });
        let process = state.process;
        drop(state);
        Ok(Box::new(MemoryFile { disk: self.clone(), number, process }))
    }

    fn open(&self, number: FileNumber) -> io::Result<Box<dyn DiskFile>> {
        let mut state = lock(&self.state);
        state.file(number)?;
        let process = state.process;
        drop(state);
        Ok(Box::new(MemoryFile { disk: self.clone(), number, process }))
    }

    fn is_slow(&self, _now: Instant) -> bool {
        lock(&self.state).is_slow
    }

    fn remove(&self, number: FileNumber) -> io::Result<()> {
        let mut state = lock(&self.state);
        if state.faults.removals_fail {
            return Err(io::Error::other(format!("{number} cannot be removed")));
        }
        state.files.remove(&number);
        Ok(())
    }
}

/// An open file of a disk in memory.
struct MemoryFile {
    disk: MemoryDisk,
    number: FileNumber,
    /// Process that opened it.
    process: u64,
}

impl MemoryFile {
    /// Runs `work` on the file, if its process is alive.
    fn with<R>(
        &self,
        work: impl FnOnce(&mut DiskState, FileNumber) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = lock(&self.disk.state);
        if state.process != self.process {
            let text = format!("{} was opened by a process that is dead", self.number);
            return Err(io::Error::other(text));
        }
        work(&mut state, self.number)
    }
}

impl DiskFile for MemoryFile {
    fn write(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.with(|state, number| {
            let has = state.file(number)?.bytes();
            let needed = ((offset + bytes.len()) as u64).saturating_sub(has);
            let missing = (needed - state.room(needed)) as usize;
            let possible = bytes.len().saturating_sub(missing);
            let written = state.faults.write_fails_after.map_or(possible, |at| at.min(possible));
            let is_whole = written == bytes.len();
            bytes.truncate(written);
            state.file(number)?.write(offset, bytes);
            if is_whole { Ok(()) } else { Err(full(number)) }
        })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.with(|state, number| {
            let file = &state.file(number)?.now;
            let rest = usize::try_from(offset).ok().and_then(|offset| file.get(offset..));
            let rest = rest.unwrap_or_default();
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, number| {
            let fails = state.faults.syncs_fail;
            let file = state.file(number)?;
            if fails {
                file.unsynced.clear();
                return Err(io::Error::other(format!("{number}: the disk does not sync")));
            }
            file.sync();
            Ok(())
        })
    }

    fn read_ahead(&self, _to: u64) {}

    fn forget_cached(&self) {
        // Nothing is cached for a process that is dead, or of a file that is gone.
        let _ = self.with(|state, number| {
            state.file(number)?.forget_cached();
            Ok(())
        });
    }
}
