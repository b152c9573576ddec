//! Rollback of persistent state: of the coordinator's store, which is later replaced by its
//! newest version, or of a server's folder.
//!
//! That a store is old is noticed, not proved (`docs/design/identity.md`): a coordinator accepts
//! it if more than half of the servers that it waits for have heard of nothing newer. The
//! simulator therefore restores a copy only if fewer such servers are left. The coordinator on
//! the copy must change nothing, and its messages must not keep servers from returning to the
//! newest store.
//!
//! In runs in which one disk at a time may lose data, a server's folder is rolled back instead.

use super::disks::Disk;
use super::{Next, World};
use crate::servers::Saved;

/// Earlier copy of a server's folder.
#[derive(Debug)]
pub(super) struct FolderCopy {
    place: usize,
    disk: Disk,
    saved: Option<Saved>,
}

impl World {
    /// Copies a store or folder, or restores an earlier copy.
    pub(super) fn roll_back(&mut self, place: usize) {
        match self.deaths.is_one_at_a_time {
            true => self.roll_back_folder(place),
            false => self.roll_back_store(),
        }
    }

    /// Copies the folder of a server; or kills the server and restores an earlier copy for the
    /// next process. The disk loses later data, which a run may do to one disk at a time.
    fn roll_back_folder(&mut self, place: usize) {
        match self.folder_copy.take() {
            Some(copy) if self.is_whole() && !self.servers[copy.place].is_dead => {
                let FolderCopy { place, disk, saved } = copy;
                let id = self.servers[place].id;
                self.trace.note(self.now, format_args!("an old copy of {id}'s folder is restored"));
                self.die(place, false);
                self.disks[place].bring_back(&disk);
                self.saved[place] = saved;
            }
            Some(copy) => self.folder_copy = Some(copy),
            None => {
                let (disk, saved) = (self.disks[place].copy(), self.saved[place]);
                self.folder_copy = Some(FolderCopy { place, disk, saved });
            }
        }
    }

    /// Copies the store, or ends the coordinator so that the next one starts on an earlier copy.
    fn roll_back_store(&mut self) {
        if self.leaders.is_rolled_back {
            return;
        }
        if !self.may_roll_back() || self.rng.u32(..4) == 0 {
            return self.leaders.copy_store();
        }
        self.trace.note(self.now, format_args!("an old copy of the store is restored"));
        self.leaders.is_rolled_back = true;
        if let Some(number) = self.leaders.current() {
            self.end_leader(number);
        }
        let until = self.micros(1_000..700_000);
        self.away_until = self.away_until.max(self.now + until);
        self.plan_in(until, Next::BringBack);
    }

    /// Returns whether too few servers are left that could confirm the copy, because they have
    /// heard of nothing newer.
    fn may_roll_back(&self) -> bool {
        let Some((awaited, newest)) = self.leaders.awaited_by_copy(self.now) else { return false };
        let is_behind = |mark: Option<wire::control::HistoryMark>| {
            mark.is_none_or(|it| it.transaction <= newest)
        };
        let marks = self.saved.iter().map(|saved| saved.and_then(|saved| saved.mark));
        marks.filter(|mark| is_behind(*mark)).count() < awaited
    }

    /// Restores the newest store, as an operator would.
    pub(super) fn bring_back(&mut self) {
        if !std::mem::take(&mut self.leaders.is_rolled_back) {
            return;
        }
        self.trace.note(self.now, format_args!("the newest store is restored"));
        self.leaders.of_copy().into_iter().for_each(|number| self.end_leader(number));
        self.leaders.copy = None;
        // Possibly no coordinator has opened the copy yet.
        self.plan_in(std::time::Duration::ZERO, Next::Lead);
    }
}
