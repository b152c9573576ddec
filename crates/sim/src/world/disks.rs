//! The disks of servers that keep their logs, and how they fail.

use super::World;
use crate::servers::{Folder, Keeps};
use backup::{Disk as _, Faults, MemoryDisk, Replicas};
use fastrand::Rng;
use server::engine::{Kept, Mode};
use std::sync::Arc;
use wire::replica::{BootId, HEADER_BYTES};

/// The disk of one server, and the machine that it is in.
#[derive(Debug, Default)]
pub(super) struct Disk {
    disk: MemoryDisk,
    /// How often the machine was switched on again.
    boots: u8,
}

impl Disk {
    /// What is on it.
    pub(super) fn open(&self, keeps: Keeps) -> Folder {
        self.mend();
        let boot = BootId([self.boots; 16]);
        let disk = Arc::new(self.disk.clone());
        match keeps {
            Keeps::Own(mode) => {
                let kept = Kept::find(disk, boot).expect("what a server has kept is whole");
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
    /// Copies what is on it, as a backup does.
    pub(super) fn copy(&self) -> Disk {
        Disk { disk: self.disk.copy(), boots: self.boots }
    }

    /// Puts back what was on it when it was copied. The machine is the same.
    pub(super) fn bring_back(&mut self, copy: &Disk) {
        self.disk = copy.disk.copy();
    }

    /// From now on it works.
    pub(super) fn mend(&self) {
        self.disk.set_faults(Faults::default());
    }

    /// From now on it fails in some way.
    /// Syncs fail only in `disk`: elsewhere a disk that does not keep what it took is one server down.
    pub(super) fn trouble(&self, rng: &mut Rng, mode: Mode) -> Faults {
        let none = Faults::default();
        let kinds = if mode == Mode::Disk { 3 } else { 2 };
        let faults = match rng.u32(..kinds) {
            0 => Faults { capacity: Some(0), ..none },
            1 => {
                let after = rng.usize(..600);
                // No draw of its own, which would make other runs of all seeds. A header that was
                // cut short and stays is for an operator: no server starts on it.
                let removals_fail = after % 2 == 1 && after >= HEADER_BYTES;
                Faults { write_fails_after: Some(after), removals_fail, ..none }
            }
            _ => Faults { syncs_fail: true, ..none },
        };
        self.disk.set_faults(faults);
        faults
    }

    /// A bit of some file changes. Whether there was one to change.
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
    /// What a server had in memory is gone with its process; or with its machine, and then with what
    /// had not been synced.
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
