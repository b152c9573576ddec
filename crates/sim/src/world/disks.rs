//! The disks of servers that keep their logs.

use super::World;
use backup::MemoryDisk;
use server::engine::{Kept, Mode};
use std::sync::Arc;
use wire::replica::BootId;

/// The disk of one server, and the machine that it is in.
#[derive(Debug, Default)]
pub(super) struct Disk {
    disk: MemoryDisk,
    /// How often the machine was switched on again.
    boots: u8,
}

impl Disk {
    /// What is on it.
    pub(super) fn open(&self) -> Kept {
        let boot = BootId([self.boots; 16]);
        Kept::find(Arc::new(self.disk.clone()), boot).expect("what a server has kept is whole")
    }
}

impl World {
    /// What a server had in memory is gone with its process; or with its machine, and then with what
    /// had not been synced. Only what is synced before it is acknowledged may meet with that here.
    pub(super) fn lose_memory(&mut self, place: usize, mode: Mode) {
        let loses_power = mode == Mode::Disk && self.rng.bool();
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
