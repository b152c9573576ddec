//! Disks of servers that persist their logs, and their failures.

use super::World;
use crate::servers::{Folder, Keeps};
use backup::{Disk as _, Faults, MemoryDisk, Replicas};
use fastrand::Rng;
use node::{Kept, Mode};
use std::sync::Arc;
use wire::replica::{BootId, HEADER_BYTES};

/// Disk of one server, and the machine that contains it.
#[derive(Debug, Default)]
pub(super) struct Disk {
    disk: MemoryDisk,
    /// Number of reboots of the machine.
    boots: u8,
}

impl Disk {
    /// Opens the contents for a new process.
    pub(super) fn open(&self, keeps: Keeps) -> Folder {
        self.mend();
        let boot = BootId([self.boots; 16]);
        let disk = Arc::new(self.disk.clone());
        match keeps {
            Keeps::Own(mode) => {
                let kept = Kept::find(disk, boot).expect("a server's persisted log is complete");
                Folder::Own(kept, mode)
            }
            Keeps::Others(plan, segment_bytes) => {
                let opened = Replicas::open(disk, boot).expect("this disk can be read");
                Folder::Others(opened.replicas, plan, segment_bytes)
            }
        }
    }
}

impl Disk {
    /// Copies the contents, as a backup tool does.
    pub(super) fn copy(&self) -> Disk {
        Disk { disk: self.disk.copy(), boots: self.boots }
    }

    /// Restores the contents of a copy. The machine stays the same.
    pub(super) fn bring_back(&mut self, copy: &Disk) {
        self.disk = copy.disk.copy();
    }

    /// Ends all failures of the disk.
    pub(super) fn mend(&self) {
        self.disk.set_faults(Faults::default());
    }

    /// Makes the disk fail in a random way from now on. Syncs fail only in `disk`: in other modes
    /// a disk that does not keep its data counts as a server that is down.
    pub(super) fn trouble(&self, rng: &mut Rng, mode: Mode) -> Faults {
        let none = Faults::default();
        let kinds = if mode == Mode::Disk { 3 } else { 2 };
        let faults = match rng.u32(..kinds) {
            0 => Faults { capacity: Some(0), ..none },
            1 => {
                let after = rng.usize(..600);
                // Not drawn: a further draw would change the runs of all seeds. A truncated
                // header that cannot be removed needs an operator: no server starts on it.
                let removals_fail = after % 2 == 1 && after >= HEADER_BYTES;
                Faults { write_fails_after: Some(after), removals_fail, ..none }
            }
            _ => Faults { syncs_fail: true, ..none },
        };
        self.disk.set_faults(faults);
        faults
    }

    /// Changes a bit of some file. Returns whether there was a bit to change.
    pub(super) fn damage(&self, rng: &mut Rng) -> bool {
        let files = self.disk.list().unwrap_or_default().into_iter();
        let mut files: Vec<_> = files.map(|file| (file, self.disk.contents(file).len())).collect();
        files.retain(|(_, length)| *length > 0);
        if files.is_empty() {
            return false;
        }
        let (file, length) = files[rng.usize(..files.len())];
        self.disk.damage(file, rng.usize(..length), 1 << rng.u32(..8));
        true
    }
}

impl World {
    /// Drops a server's memory with its process, or the unsynced bytes as well if its machine
    /// fails.
    pub(super) fn lose_memory(&mut self, place: usize, loses_power: bool) {
        let id = self.servers[place].id;
        let Disk { disk, boots } = &mut self.disks[place];
        if loses_power {
            self.trace.note(self.now, format_args!("the machine of {id} loses power"));
            *boots += 1;
            disk.power_cut(&mut |below| self.rng.usize(..below));
        } else {
            disk.kill_process();
        }
    }
}
