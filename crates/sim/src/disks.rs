//! Disks of servers that persist their logs, and their failures.

use crate::failure::{Failure, Rule};
use crate::power::{PowerLoss, SyncedState};
use crate::servers::{OpenedDisk, Persistence, SavedIdentity};
use crate::timeline::RunTimeline;
use backup::{Faults, MemoryDisk, Replicas};
use fastrand::Rng;
use node::{DiskJob, Mode, RecoveredLog};
use protocols::segment_manifest::SegmentManifest;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterId, Instant, SegmentId, ServerId, Version};
use wire::control::{HistoryMark, ReplicaInfo};
use wire::replica::{BootId, HEADER_BYTES, PIECES_FROM, ReplicaId};

/// Longest queue of a disk thread that is not waited for: two jobs of a busy disk.
const BACKLOG_MAX: Duration = Duration::from_millis(200);

/// A thread of a reactor that does one disk job after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SimulatedDiskThread {
    reactor: usize,
    is_for_housekeeping: bool,
}

/// Disk of one server, and the machine that contains it.
#[derive(Debug, Default)]
pub(crate) struct SimulatedDisk {
    disk: MemoryDisk,
    /// Number of reboots of the machine.
    boots: u8,
    /// Time at which each disk thread of each reactor has nothing to do any more.
    idle_at: BTreeMap<SimulatedDiskThread, Instant>,
    /// Set once syncs have failed or a bit has changed: the disk may have other bytes than the
    /// server believes.
    is_unreliable: bool,
}

impl SimulatedDisk {
    /// Opens the contents for a new process.
    pub(crate) fn open(&self, persistence: Persistence) -> OpenedDisk {
        self.repair();
        let disk = self.disk.clone();
        match persistence {
            Persistence::LocalLog(plan) => {
                let kept = RecoveredLog::find(Arc::new(disk), BootId([self.boots; 16]));
                let kept = kept.expect("a server's persisted log is complete");
                OpenedDisk::LocalLog(kept, plan)
            }
            Persistence::Replicated(plan, segment_bytes) => {
                OpenedDisk::Replicas(opened(disk, self.boots), plan, segment_bytes)
            }
        }
    }

    /// Returns when a job that takes this long ends. A reactor has a thread for housekeeping and one
    /// for other jobs. Each does one job after the other; reads are done beside them.
    pub(crate) fn end_of_job(
        &mut self,
        reactor: usize,
        job: &DiskJob,
        now: Instant,
        time: Duration,
    ) -> Instant {
        if job.is_reading() {
            return now + time;
        }
        let thread = SimulatedDiskThread { reactor, is_for_housekeeping: job.is_housekeeping() };
        let idle_at = self.idle_at.entry(thread).or_default();
        *idle_at = now.max(*idle_at) + time;
        *idle_at
    }

    /// Returns whether the disk threads have hardly anything left to do. The jobs of a slow disk
    /// may queue for seconds after it has become fast again.
    fn has_caught_up(&self, now: Instant) -> bool {
        self.idle_at.values().all(|at| *at <= now + BACKLOG_MAX)
    }

    /// Makes reactors leave their writes to the disk threads, or not any more.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.disk.set_slow(is_slow);
    }

    /// Copies the contents, as a backup tool does.
    pub(crate) fn copy(&self) -> SimulatedDisk {
        let (disk, idle_at) = (self.disk.copy(), BTreeMap::new());
        SimulatedDisk { disk, boots: self.boots, idle_at, is_unreliable: self.is_unreliable }
    }

    /// Copies the synced contents.
    fn synced(&self) -> SimulatedDisk {
        SimulatedDisk { disk: self.disk.synced_copy(), ..self.copy() }
    }

    /// Restores the contents of a copy. The machine stays the same.
    pub(crate) fn restore(&mut self, copy: &SimulatedDisk) {
        self.disk = copy.disk.copy();
    }

    pub(crate) fn repair(&self) {
        self.disk.set_faults(Faults::default());
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) {
        self.disk.set_faults(Faults { capacity: Some(0), ..Faults::default() });
    }

    /// Makes the disk fail in a random way from now on. Syncs fail only in `disk`: in other modes
    /// a disk that does not keep its data counts as a server that is down.
    pub(crate) fn inject_faults(&mut self, rng: &mut Rng, mode: Mode) -> Faults {
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
        self.is_unreliable |= faults.syncs_fail;
        faults
    }

    /// Returns the newest replica of each segment of all logs, with its length and checksum.
    pub(crate) fn replicas(&self) -> BTreeMap<(ServerId, SegmentId), (u32, u32)> {
        let replicas = opened(self.disk.copy(), self.boots);
        // The last one of several epochs counts.
        let measured = replicas.ids().into_iter().map(|id| {
            let (_, end) = replicas.measure(id).expect("this disk can be read");
            ((id.log, id.segment), (end.length, end.crc))
        });
        measured.collect()
    }

    /// Returns the manifest of a server's own log.
    pub(crate) fn manifest(&self) -> SegmentManifest {
        let replicas = opened(self.disk.copy(), self.boots);
        let newest = replicas.ids().into_iter().filter(|id| id.segment.is_manifest()).rev();
        let mut bodies: Vec<Vec<u8>> = Vec::new();
        for id in newest {
            let read = replicas.read(id, |body| bodies.push(body.to_vec()));
            if read.is_ok() && !bodies.is_empty() {
                break;
            }
        }
        SegmentManifest::read(bodies.iter().map(|body| &body[..])).unwrap_or_default()
    }

    /// Returns the bytes of all replicas of data.
    pub(crate) fn data(&self) -> Vec<(SegmentId, Vec<u8>)> {
        let replicas = opened(self.disk.copy(), self.boots);
        let of_data = replicas.ids().into_iter().filter(|id| !id.segment.is_manifest());
        let read = |id: ReplicaId| {
            let mut bytes = Vec::new();
            let read = replicas.read(id, |body| bytes.extend_from_slice(body));
            read.is_ok().then_some((id.segment, bytes))
        };
        of_data.filter_map(read).collect()
    }

    /// Checks that a loss of power would leave the replicas of a log as they are reported.
    pub(crate) fn check_reported(
        &self,
        log: ServerId,
        reported: &[ReplicaInfo],
    ) -> Result<(), Failure> {
        if self.is_unreliable {
            return Ok(());
        }
        let left = opened(self.disk.synced_copy(), self.boots + 1);
        for info in reported {
            let id = ReplicaId { log, segment: info.segment, epoch: info.epoch };
            let length = left.measure(id).map(|(_, end)| end.length);
            // A replica that was begun again may share its file with one that was freed.
            if length.as_ref().is_ok_and(|length| info.length <= *length) {
                continue;
            }
            let text = format!("{id} is reported with {} bytes, not {length:?}", info.length);
            return Err(Rule::ReportedIsDurable.broken(text));
        }
        Ok(())
    }

    /// Changes a bit in the pieces of one of these replicas. Returns it, if there is one.
    pub(crate) fn damage(
        &mut self,
        rng: &mut Rng,
        is_eligible: impl Fn(&ReplicaId) -> bool,
    ) -> Option<ReplicaId> {
        let replicas = opened(self.disk.copy(), self.boots);
        let ends = replicas.ids().into_iter().filter(is_eligible).filter_map(|id| {
            let (_, end) = replicas.measure(id).ok()?;
            (end.place > PIECES_FROM).then_some((id, end.place))
        });
        let ends: Vec<(ReplicaId, u64)> = ends.collect();
        if ends.is_empty() {
            return None;
        }
        let (id, end) = ends[rng.usize(..ends.len())];
        let at = PIECES_FROM + rng.u64(..end - PIECES_FROM);
        self.disk.damage(replicas.file(id)?, at as usize, 1 << rng.u32(..8));
        self.is_unreliable = true;
        Some(id)
    }
}

/// Opens the replicas on a disk, after this number of reboots of its machine.
fn opened(disk: MemoryDisk, boots: u8) -> Replicas {
    let opened = Replicas::open(Arc::new(disk), BootId([boots; 16]));
    opened.expect("this disk can be read").replicas
}

/// Earlier copy of a server's folder.
struct FolderCopy {
    place: usize,
    disk: SimulatedDisk,
    saved: Option<SavedIdentity>,
}

/// Everything that outlives the servers' processes.
pub(crate) struct ServerDisks {
    disks: Vec<SimulatedDisk>,
    /// Identity and newest mark that each place knows. They survive the process if servers
    /// persist anything.
    saved: Vec<Option<SavedIdentity>>,
    folder_copy: Option<FolderCopy>,
    /// Losses of power of servers with their own logs, until the next process has loaded its log.
    losses: BTreeMap<usize, PowerLoss>,
}

impl ServerDisks {
    /// Creates empty disks, one for each place.
    pub(crate) fn new(places: usize) -> ServerDisks {
        let disks = (0..places).map(|_| SimulatedDisk::default()).collect();
        ServerDisks { disks, saved: vec![None; places], folder_copy: None, losses: BTreeMap::new() }
    }

    pub(crate) fn disk(&self, place: usize) -> &SimulatedDisk {
        &self.disks[place]
    }

    pub(crate) fn disk_mut(&mut self, place: usize) -> &mut SimulatedDisk {
        &mut self.disks[place]
    }

    /// Returns whether no disk has a long queue.
    pub(crate) fn have_caught_up(&self, now: Instant) -> bool {
        self.disks.iter().all(|disk| disk.has_caught_up(now))
    }

    pub(crate) fn saved(&self, place: usize) -> Option<SavedIdentity> {
        self.saved[place]
    }

    /// Returns the newest mark that each place knows.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Option<HistoryMark>> {
        self.saved.iter().map(|saved| saved.and_then(|saved| saved.mark))
    }

    /// Saves the identity of a new process.
    pub(crate) fn save_identity(
        &mut self,
        place: usize,
        number: (ClusterId, ServerId),
        mark: Option<HistoryMark>,
    ) {
        self.saved[place] = Some(SavedIdentity { number, mark });
    }

    /// Saves the mark of a transaction that the coordinator reports to a server.
    pub(crate) fn save_mark(&mut self, place: usize, mark: HistoryMark) {
        if let Some(saved) = &mut self.saved[place]
            && saved.mark.is_none_or(|known| mark.is_after(&known))
        {
            saved.mark = Some(mark);
        }
    }

    /// Lets the machine of a server with its own log lose power, and remembers what its disk had.
    /// `due`: in mode `memory`, a version up to which everything must be synced, if one is known.
    pub(crate) fn lose_power(
        &mut self,
        server: (usize, ServerId),
        mode: Option<Mode>,
        due: Option<Version>,
        timeline: &mut RunTimeline,
    ) {
        let (place, id) = server;
        let before = self.disks[place].copy();
        let synced = (mode == Some(Mode::Memory))
            .then(|| SyncedState { disk: self.disks[place].synced(), due });
        self.lose_unwritten(place, id, true, timeline);
        let left = self.disks[place].manifest();
        self.losses.insert(place, PowerLoss { before, left, synced });
    }

    /// Returns the loss of power of a server that has loaded its log since.
    pub(crate) fn take_loss(&mut self, place: usize) -> Option<PowerLoss> {
        self.losses.remove(&place)
    }

    /// Returns whether a server has lost power and was not checked since.
    pub(crate) fn has_loss(&self, place: usize) -> bool {
        self.losses.contains_key(&place)
    }

    pub(crate) fn repair_all(&self) {
        self.disks.iter().for_each(SimulatedDisk::repair);
    }

    /// Drops what a process has not written, or the unsynced bytes as well if its machine loses
    /// power.
    pub(crate) fn lose_unwritten(
        &mut self,
        place: usize,
        id: ServerId,
        loses_power: bool,
        timeline: &mut RunTimeline,
    ) {
        let SimulatedDisk { disk, boots, idle_at, .. } = &mut self.disks[place];
        idle_at.clear();
        if loses_power {
            timeline.note(format_args!("the machine of {id} loses power"));
            *boots += 1;
            disk.power_cut(&mut |below| timeline.rng.usize(..below));
        } else {
            disk.kill_process();
        }
    }

    /// Returns the place of the folder that has been copied.
    pub(crate) fn copied_place(&self) -> Option<usize> {
        self.folder_copy.as_ref().map(|copy| copy.place)
    }

    /// Copies a server's folder, as a backup tool does.
    pub(crate) fn copy_folder(&mut self, place: usize) {
        let (disk, saved) = (self.disks[place].copy(), self.saved[place]);
        self.folder_copy = Some(FolderCopy { place, disk, saved });
    }

    /// Restores the copied folder, for the next process at its place.
    pub(crate) fn restore_folder(&mut self) {
        if let Some(FolderCopy { place, disk, saved }) = self.folder_copy.take() {
            self.disks[place].restore(&disk);
            self.saved[place] = saved;
        }
    }
}
