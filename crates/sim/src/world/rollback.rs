//! Folders that come back from a backup: a coordinator's, and then its newest one; or a server's.
//!
//! That a store is old is noticed, not proved (`docs/design/identity.md`): it is believed if more
//! than half of the servers that it waits for have heard of nothing newer. So a copy is put back
//! only when too few are left that have not. What its coordinator does then must change nothing,
//! and nothing that it has said may keep servers from going on with the newest store.
//!
//! In runs in which one disk at a time may lose something, it is a server's folder instead.

use super::disks::Disk;
use super::{Next, World};
use crate::servers::Saved;

/// An earlier copy of a server's folder.
#[derive(Debug)]
pub(super) struct FolderCopy {
    place: usize,
    disk: Disk,
    saved: Option<Saved>,
}

impl World {
    /// Something is copied, or an earlier copy of it is put back.
    pub(super) fn roll_back(&mut self, place: usize) {
        match self.deaths.is_one_at_a_time {
            true => self.roll_back_folder(place),
            false => self.roll_back_store(),
        }
    }

    /// The folder of a server is copied; or the server dies, and the next process finds an earlier
    /// copy: one disk has lost what came later, which a run may do to one disk at a time.
    fn roll_back_folder(&mut self, place: usize) {
        match self.folder_copy.take() {
            Some(copy) if self.is_whole() && !self.servers[copy.place].is_dead => {
                let FolderCopy { place, disk, saved } = copy;
                let id = self.servers[place].id;
                self.trace.note(self.now, format_args!("an old copy of {id}'s folder is put back"));
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

    /// The store is copied; or a coordinator starts on an earlier copy.
    fn roll_back_store(&mut self) {
        if self.leaders.is_rolled_back {
            return;
        }
        if !self.may_roll_back() || self.rng.u32(..4) == 0 {
            return self.leaders.copy_store();
        }
        self.trace.note(self.now, format_args!("an old copy of the store is put back"));
        self.leaders.is_rolled_back = true;
        if let Some(number) = self.leaders.current() {
            self.end_leader(number);
        }
        let until = self.micros(1_000..700_000);
        self.away_until = self.away_until.max(self.now + until);
        self.plan_in(until, Next::BringBack);
    }

    /// Returns whether those that have heard of nothing newer than the copy are too few to confirm
    /// it.
    fn may_roll_back(&self) -> bool {
        let Some((awaited, newest)) = self.leaders.awaited_by_copy(self.now) else { return false };
        let is_behind =
            |mark: Option<wire::control::Mark>| mark.is_none_or(|it| it.transaction <= newest);
        let marks = self.saved.iter().map(|saved| saved.and_then(|saved| saved.mark));
        marks.filter(|mark| is_behind(*mark)).count() < awaited
    }

    /// An operator brings the newest store back.
    pub(super) fn bring_back(&mut self) {
        if !std::mem::take(&mut self.leaders.is_rolled_back) {
            return;
        }
        self.trace.note(self.now, format_args!("the newest store is brought back"));
        self.leaders.of_copy().into_iter().for_each(|number| self.end_leader(number));
        self.leaders.copy = None;
        // Nobody may have opened the copy yet.
        self.plan_in(std::time::Duration::ZERO, Next::Lead);
    }
}
