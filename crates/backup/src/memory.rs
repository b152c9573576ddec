//! A disk without hardware, for tests and simulations: it knows what was synced, and can lose the
//! rest.
//!
//! What a loss of power leaves of writes that were not synced is decided per sector, as a disk
//! does it: each sector has what stood in it after some of the writes that touched it, in their
//! order; another sector may be ahead or behind. So a write survives whole, in part or not at all,
//! whatever becomes of those before and after it.

use crate::files::lock;
use crate::{Disk, DiskFile, FileNumber};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// How the disk fails, until it is told otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The disk is full when its files have this many bytes.
    pub capacity: Option<u64>,
    /// Writes fail after this many of their bytes.
    pub write_fails_after: Option<usize>,
    /// Syncs fail. What should have been synced is lost with the power, even if a later sync
    /// succeeds.
    pub syncs_fail: bool,
    /// Files cannot be removed.
    pub removals_fail: bool,
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<FileNumber, Contents>,
    faults: Faults,
    /// Raised with each process that dies: its open files are closed.
    process: u64,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    /// Room that was promised to it.
    reserved: u64,
    /// What a process reads.
    now: Vec<u8>,
    /// What a loss of power leaves in any case.
    stable: Vec<u8>,
    /// What was written since, in order.
    unsynced: Vec<Write>,
}

#[derive(Clone, Debug)]
struct Write {
    offset: usize,
    bytes: Vec<u8>,
}

impl MemoryDisk {
    /// An empty disk without faults.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// From now on the disk fails like this.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// Copies the files as they are, as a backup does: another disk, without faults.
    pub fn copy(&self) -> MemoryDisk {
        let disk = MemoryDisk::new();
        for (number, contents) in &lock(&self.state).files {
            let stable = contents.now.clone();
            let copy = Contents { stable, unsynced: Vec::new(), ..contents.clone() };
            lock(&disk.state).files.insert(*number, copy);
        }
        disk
    }

    /// The process that used the disk is gone, and everything it wrote is still there.
    pub fn kill_process(&self) {
        lock(&self.state).process += 1;
    }

    /// The machine has lost its power. `below(n)` draws a number below `n`.
    pub fn power_cut(&self, below: &mut dyn FnMut(usize) -> usize) {
        let mut state = lock(&self.state);
        state.process += 1;
        for contents in state.files.values_mut() {
            contents.lose_power(below);
        }
    }

    /// The bytes of a file, as a process reads them; empty if there is none.
    pub fn contents(&self, number: FileNumber) -> Vec<u8> {
        lock(&self.state).files.get(&number).map(|file| file.now.clone()).unwrap_or_default()
    }

    /// Changes bits of a byte behind everybody's back: those that are set in `bits`.
    pub fn damage(&self, number: FileNumber, at: usize, bits: u8) {
        if let Some(file) = lock(&self.state).files.get_mut(&number) {
            for copy in [&mut file.now, &mut file.stable] {
                copy.get_mut(at).into_iter().for_each(|byte| *byte ^= bits);
            }
        }
    }
}

impl Contents {
    fn bytes(&self) -> u64 {
        self.reserved.max(self.now.len() as u64)
    }

    fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        put(&mut self.now, offset, &bytes);
        self.unsynced.push(Write { offset, bytes });
    }

    fn sync(&mut self) {
        for write in self.unsynced.drain(..) {
            put(&mut self.stable, write.offset, &write.bytes);
        }
    }

    fn lose_power(&mut self, below: &mut dyn FnMut(usize) -> usize) {
        let unsynced = std::mem::take(&mut self.unsynced);
        let mut sectors: BTreeMap<usize, Vec<&Write>> = BTreeMap::new();
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
                put(&mut self.stable, write.offset + part.start, &write.bytes[part]);
            }
        }
        self.now.clone_from(&self.stable);
    }
}

impl Write {
    /// Which of its bytes stand in a sector that it touches.
    fn part_in(&self, sector: usize) -> Range<usize> {
        let begin = sector * SECTOR_BYTES;
        let end = begin + SECTOR_BYTES - self.offset;
        begin.saturating_sub(self.offset)..end.min(self.bytes.len())
    }
}

/// Writes into a file that grows where it must.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

impl State {
    fn file(&mut self, number: FileNumber) -> io::Result<&mut Contents> {
        let none = || io::Error::new(ErrorKind::NotFound, format!("there is no {number}"));
        self.files.get_mut(&number).ok_or_else(none)
    }

    /// How many of these bytes more there is room for.
    fn room(&self, bytes: u64) -> u64 {
        let used: u64 = self.files.values().map(Contents::bytes).sum();
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
        state.files.insert(number, Contents { reserved: bytes, ..Contents::default() });
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
#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    number: FileNumber,
    /// Who opened it.
    process: u64,
}

impl MemoryFile {
    /// Does something with the file, if its process lives.
    fn with<R>(&self, work: impl FnOnce(&mut State, FileNumber) -> io::Result<R>) -> io::Result<R> {
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
}
