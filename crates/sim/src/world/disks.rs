//! The disks of servers that keep their logs.

use super::World;
use crate::servers::{Folder, Keeps};
use backup::{MemoryDisk, Replicas};
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
    pub(super) fn open(&self, keeps: Keeps) -> Folder {
        let boot = BootId([self.boots; 16]);
        let disk = Arc::new(self.disk.clone());
        match keeps {
            Keeps::Own(mode) => {
                let kept = Kept::find(disk, boot).expect("what a server has kept is whole");
                Folder::Own(kept, mode)
            }
            Keeps::Others(plan) => {
                let opened = Replicas::open(disk, boot).expect("this disk can be read");
                Folder::Others(opened.replicas, plan)
            }
        }
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
