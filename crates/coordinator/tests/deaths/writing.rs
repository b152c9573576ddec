//! The simulated masters' log writes, by rules 1 to 6 of `docs/design/replication.md`, but at once.

use super::*;

impl History {
    /// Returns machines that accept replicas of this log.
    pub(super) fn candidates(&mut self, machine: usize) -> Vec<usize> {
        let me = self.id_of(machine).unwrap();
        let can = |other: &usize| {
            *other != machine
                && self.machines[*other].as_ref().is_some_and(|(_, process)| {
                    process.id.is_some() && !process.fenced.contains(&me)
                })
        };
        let mut candidates: Vec<usize> = (0..MACHINES).filter(can).collect();
        self.random.shuffle(&mut candidates);
        candidates.truncate(REPLICAS);
        candidates
    }

    /// Returns whether each of these backups still has the replica, and accepts more.
    pub(super) fn all_take(
        &self,
        me: ServerId,
        segment: (bool, SegmentId),
        backups: &[usize],
    ) -> bool {
        backups.iter().all(|&backup| {
            self.disks[backup].contains_key(&(me, segment.0, segment.1))
                && self.machines[backup].as_ref().is_some_and(|(_, p)| !p.fenced.contains(&me))
        })
    }

    /// Replaces a master's lost replicas, and writes more.
    pub(super) fn write(&mut self, machine: usize) {
        let me = self.id_of(machine).unwrap();
        let backups = self.candidates(machine);
        if backups.is_empty() {
            return;
        }
        self.replace_lost(machine, &backups);
        let log = &self.process(machine).log;
        let manifest_log = log.manifest_log.clone();
        match manifest_log {
            Some((number, on)) if self.all_take(me, (true, number), &on) => {
                if self.process(machine).log.next.is_none() {
                    let is_tired = self.random.u8(..) < 20;
                    if is_tired {
                        self.begin_manifest_segment(machine, backups)
                    } else {
                        self.open(machine, backups)
                    }
                }
            }
            _ if self.process(machine).log.next.is_none() => {
                self.begin_manifest_segment(machine, backups)
            }
            _ => self.begin_manifest_segment_again(machine, backups),
        }
        if let Some((number, _)) = self.process(machine).log.next {
            self.tell(machine, LogUpdate::ManifestContinues { number });
        }
    }

    pub(super) fn new_segment(&mut self, machine: usize) -> SegmentId {
        let log = &mut self.process(machine).log;
        log.last += 1;
        SegmentId(log.last)
    }

    pub(super) fn begin_manifest_segment_again(&mut self, machine: usize, backups: Vec<usize>) {
        let me = self.id_of(machine).unwrap();
        let next = self.process(machine).log.next.clone();
        if next.is_some_and(|(number, on)| !self.all_take(me, (true, number), &on)) {
            self.begin_manifest_segment(machine, backups);
        }
    }

    /// Begins the next manifest segment, with a snapshot on all its backups. From now on nothing
    /// is acknowledged until the coordinator has recorded it.
    pub(super) fn begin_manifest_segment(&mut self, machine: usize, backups: Vec<usize>) {
        let me = self.id_of(machine).unwrap();
        let number = self.new_segment(machine);
        let body = self.manifest(machine);
        for &backup in &backups {
            self.disks[backup].insert((me, true, number), body.clone());
        }
        self.process(machine).log.next = Some((number, backups));
    }

    pub(super) fn manifest(&mut self, machine: usize) -> Vec<u8> {
        let segments = self.process(machine).log.segments.iter();
        let record = |(&segment, held): (&SegmentId, &(Option<SegmentContent>, Vec<usize>))| {
            SegmentRecord { segment, content: held.0 }
        };
        encode(&[ManifestEntry::Snapshot { segments: segments.map(record).collect() }])
    }

    /// Opens a segment, closes another one, and drops a third; all of it takes effect at once.
    pub(super) fn open(&mut self, machine: usize, backups: Vec<usize>) {
        let me = self.id_of(machine).unwrap();
        let segment = self.new_segment(machine);
        for (at, &backup) in backups.iter().enumerate() {
            // Bytes that are not on every backup have not been acknowledged.
            let length = 80 + 8 * at;
            self.disks[backup].insert((me, false, segment), vec![1; length]);
        }
        let log = &mut self.process(machine).log;
        log.segments.insert(segment, (None, backups));
        let open = log.segments.iter().find(|(s, held)| **s != segment && held.0.is_none());
        let closing = open.map(|(&segment, held)| (segment, held.1.clone()));
        if let Some((closing, on)) = closing
            && self.all_take(me, (false, closing), &on)
        {
            self.close(machine, closing);
        }
        let log = &mut self.process(machine).log;
        if log.segments.len() > 6 {
            log.segments.pop_first();
        }
        self.write_manifest(machine);
    }

    /// Closes a segment: all backups have all of it.
    pub(super) fn close(&mut self, machine: usize, segment: SegmentId) {
        let me = self.id_of(machine).unwrap();
        let held = self.process(machine).log.segments.get_mut(&segment).unwrap();
        held.0 = Some(SegmentContent { length: 96, crc: 1 });
        for backup in held.1.clone() {
            self.disks[backup].insert((me, false, segment), vec![1; 96]);
        }
    }

    /// Rule 3: closes and copies segments of a dead backup.
    pub(super) fn replace_lost(&mut self, machine: usize, candidates: &[usize]) {
        let me = self.id_of(machine).unwrap();
        let log = &self.process(machine).log;
        let held: Vec<(SegmentId, Vec<usize>)> =
            log.segments.iter().map(|(&segment, held)| (segment, held.1.clone())).collect();
        let is_lost =
            |(segment, on): &(SegmentId, Vec<usize>)| !self.all_take(me, (false, *segment), on);
        let lost: Vec<(SegmentId, Vec<usize>)> = held.into_iter().filter(is_lost).collect();
        if lost.is_empty() || candidates.len() < REPLICAS {
            return;
        }
        for (segment, _) in lost {
            let on = candidates.to_vec();
            self.process(machine).log.segments.get_mut(&segment).unwrap().1 = on;
            self.close(machine, segment);
        }
        self.write_manifest(machine);
    }

    /// Updates the manifest if possible, which makes it effective.
    pub(super) fn write_manifest(&mut self, machine: usize) {
        let me = self.id_of(machine).unwrap();
        let Some((number, on)) = self.process(machine).log.manifest_log.clone() else { return };
        if self.process(machine).log.next.is_some() || !self.all_take(me, (true, number), &on) {
            return;
        }
        let body = self.manifest(machine);
        for backup in on {
            self.disks[backup].insert((me, true, number), body.clone());
        }
        self.count(machine);
    }

    /// Records that the current manifest has been acknowledged.
    pub(super) fn count(&mut self, machine: usize) {
        let me = self.id_of(machine).unwrap();
        let log = &self.process(machine).log;
        let Some((number, on)) = log.manifest_log.clone() else { return };
        let segments: BTreeSet<SegmentId> = log.segments.keys().copied().collect();
        if !self.all_take(me, (true, number), &on) {
            return;
        }
        assert!(!self.handed_out.contains(&me), "seed {}: {me} continues", self.seed);
        let named = self.disks[on[0]][&(me, true, number)].clone();
        if named == self.manifest(machine) {
            self.counted.insert(me, segments);
        }
    }
}
