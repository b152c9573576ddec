//! Replicas against a naive model, under random appends, syncs, frees, failing writes, syncs and
//! removals, killed processes and power failures.

mod common;

use backup::{AppendError, Blocks, Faults, MemoryDisk, Replicas};
use common::{LOG, SEGMENT_BYTES, Writing, header, id, read, try_open};
use std::collections::{BTreeMap, BTreeSet};
use wire::replica::{BootId, ReplicaEnd, ReplicaId};

/// Expected state of a replica.
#[derive(Debug, Default)]
struct Twin {
    /// Bytes of its segment.
    bytes: Vec<u8>,
    /// Number of accepted bytes.
    taken: usize,
    /// Number of synced bytes.
    synced: usize,
    /// Farthest end of a failed write: its bytes may be on the disk.
    tried: usize,
    /// Boot in which it was created.
    boot: u8,
    /// Set after a failed sync.
    is_lost: bool,
    /// Set if it is not needed: it may be found again until its file is reused.
    is_freed: bool,
}

struct World {
    random: fastrand::Rng,
    disk: MemoryDisk,
    replicas: Replicas,
    boot: u8,
    writing: BTreeMap<ReplicaId, Writing>,
    twins: BTreeMap<ReplicaId, Twin>,
    /// Freed replicas: their files may still be found.
    freed: BTreeSet<ReplicaId>,
    /// Replicas that were not created, or were given up, while the disk did not remove files:
    /// their files may still be found.
    stuck: BTreeSet<ReplicaId>,
    segments: u64,
    holes: usize,
    tears: usize,
    made_again: usize,
    given_up: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let disk = MemoryDisk::new();
        let replicas = try_open(&disk, BootId([0; 16])).unwrap().replicas;
        World {
            random: fastrand::Rng::with_seed(seed),
            disk,
            replicas,
            boot: 0,
            writing: BTreeMap::new(),
            twins: BTreeMap::new(),
            freed: BTreeSet::new(),
            stuck: BTreeSet::new(),
            segments: 0,
            holes: 0,
            tears: 0,
            made_again: 0,
            given_up: 0,
        }
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..8 => self.create(),
            8..60 => self.append(),
            60..75 => self.sync(),
            75..80 => self.free(),
            80 => self.any_writing().into_iter().for_each(|id| self.give_up(id)),
            81..83 => drop(self.any_writing().map(|id| self.writing.remove(&id))),
            83..90 => self.fail(),
            90..92 => {
                self.disk.kill_process();
                self.restart();
            }
            92..94 => self.lose_power(),
            94 => drop(self.replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written)),
            _ => self.check(),
        }
    }

    fn any_writing(&mut self) -> Option<ReplicaId> {
        let at = self.random.usize(..self.writing.len().max(1));
        self.writing.keys().nth(at).copied()
    }

    fn create(&mut self) {
        let id = self.id_to_make();
        if let Ok(replica) = self.replicas.create(header(id)) {
            let bytes = (0..SEGMENT_BYTES).map(|_| self.random.u8(..)).collect();
            self.twins.insert(id, Twin { bytes, boot: self.boot, ..Twin::default() });
            self.writing.insert(id, Writing::of(replica));
            self.made_again += usize::from(self.stuck.contains(&id));
        } else if self.random.bool() {
            self.give_up(id);
        } else {
            self.stuck.insert(id);
        }
    }

    /// Returns a new id, or one whose creation failed before. A freed id is never created again.
    fn id_to_make(&mut self) -> ReplicaId {
        let is_free = |id: &ReplicaId| !self.twins.contains_key(id) && !self.freed.contains(id);
        let again: Vec<_> = self.stuck.iter().copied().filter(is_free).collect();
        if !again.is_empty() && self.random.u8(..3) == 0 {
            return again[self.random.usize(..again.len())];
        }
        self.segments += 1;
        id(self.segments)
    }

    fn give_up(&mut self, id: ReplicaId) {
        if self.twins.get(&id).is_some_and(|twin| twin.is_freed) {
            return;
        }
        self.twins.remove(&id);
        self.writing.remove(&id);
        if self.replicas.give_up(id).is_err() {
            self.stuck.insert(id);
        }
        self.given_up += 1;
    }

    fn append(&mut self) {
        let Some(id) = self.any_writing() else { return };
        let length = match self.random.u8(..4) {
            0 => self.random.usize(1..40),
            1 | 2 => self.random.usize(1..700),
            _ => self.random.usize(1..9000),
        };
        let (writing, twin) =
            (self.writing.get_mut(&id).unwrap(), self.twins.get_mut(&id).unwrap());
        let end = twin.bytes.len().min(twin.taken + length);
        if end == twin.taken {
            return;
        }
        match writing.append(&twin.bytes[twin.taken..end]) {
            Ok(()) => {
                assert!(!twin.is_lost && !twin.is_freed);
                twin.taken = end;
            }
            Err(AppendError::Disk(_)) => twin.tried = twin.tried.max(end),
            Err(AppendError::Lost { .. }) => assert!(twin.is_lost || twin.is_freed),
            Err(error @ (AppendError::Corrupt { .. } | AppendError::Misplaced { .. })) => {
                panic!("pieces are sent in order: {error}")
            }
        }
        assert_eq!(writing.replica.length() as usize, twin.taken);
    }

    fn sync(&mut self) {
        let Some(id) = self.any_writing() else { return };
        let twin = self.twins.get_mut(&id).unwrap();
        match self.writing[&id].replica.sync() {
            Ok(synced) => {
                assert!(!twin.is_lost);
                assert_eq!(synced as usize, twin.taken);
                twin.synced = twin.taken;
            }
            Err(_) => twin.is_lost = true,
        }
    }

    fn free(&mut self) {
        let at = self.random.usize(..self.twins.len().max(1));
        if let Some((id, twin)) = self.twins.iter_mut().nth(at) {
            // Files that cannot be removed now are removed later.
            let _ = self.replicas.free(*id);
            twin.is_freed = true;
            self.freed.insert(*id);
        }
    }

    fn fail(&mut self) {
        let faults = match self.random.u8(..5) {
            0 => Faults { write_fails_after: Some(self.random.usize(..600)), ..Faults::default() },
            1 => Faults { syncs_fail: true, ..Faults::default() },
            2 => Faults { capacity: Some(self.random.u64(..1 << 20)), ..Faults::default() },
            _ => Faults::default(),
        };
        let removals_fail = self.random.u8(..3) == 0;
        self.disk.set_faults(Faults { removals_fail, ..faults });
    }

    fn lose_power(&mut self) {
        let random = &mut self.random;
        let kind = random.u8(..4);
        self.disk.power_cut(&mut |n| match kind {
            0 => 0,
            1 => n - 1,
            _ => random.usize(..n),
        });
        self.boot += 1;
        self.restart();
    }

    fn restart(&mut self) {
        self.disk.set_faults(Faults::default());
        self.writing.clear();
        let opened = try_open(&self.disk, BootId([self.boot; 16])).unwrap();
        let may_be_torn = !self.stuck.is_empty();
        assert!(opened.unreadable.is_empty() || may_be_torn, "{:?}", opened.unreadable);
        self.replicas = opened.replicas;
        let found = self.replicas.list(LOG);
        let is_needed = |id: &ReplicaId| self.twins.get(id).is_some_and(|twin| !twin.is_freed);
        for id in found.iter().map(|header| header.id).filter(|id| !is_needed(id)) {
            let may_be_found = self.freed.contains(&id) || self.stuck.contains(&id);
            assert!(may_be_found, "{id} was never created, or was discarded");
            self.replicas.free(id).unwrap();
            self.freed.insert(id);
        }
        for id in self.twins.keys().filter(|id| is_needed(id)) {
            assert!(found.iter().any(|header| header.id == *id), "{id} is missing");
        }
        self.check();
    }

    /// Checks the content of each replica. After a power failure, unsynced bytes may be missing.
    fn check(&mut self) {
        for (id, twin) in self.twins.iter_mut().filter(|(_, twin)| !twin.is_freed) {
            let (bytes, end) = read(&self.replicas, *id);
            let power_was_lost = twin.boot != self.boot;
            assert!(twin.bytes.starts_with(&bytes), "{id}: other bytes than were written");
            let possible = twin.synced..=twin.taken.max(twin.tried);
            assert!(possible.contains(&bytes.len()), "{id}: {end:?} of {possible:?}");
            assert!(!end.is_damaged(power_was_lost), "{id}: {end:?}");
            if !power_was_lost {
                let was_cut = twin.tried > twin.taken;
                assert!(bytes.len() >= twin.taken, "{id}: {end:?}");
                assert!(end.end == ReplicaEnd::Clean || was_cut, "{id}: {end:?}");
            }
            self.holes += usize::from(matches!(end.end, ReplicaEnd::Hole { .. }));
            self.tears += usize::from(end.end == ReplicaEnd::Torn);
        }
    }
}

#[test]
fn replicas_hold_what_was_taken_and_after_a_loss_of_power_at_least_what_was_synced() {
    let (mut holes, mut tears, mut made_again, mut given_up) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        world.lose_power();
        holes += world.holes;
        tears += world.tears;
        made_again += world.made_again;
        given_up += world.given_up;
    }
    assert!(holes > 100 && tears > 100, "{holes} holes, {tears} tears: this tests little");
    assert!(
        made_again > 100 && given_up > 100,
        "{made_again} created again, {given_up} discarded: this tests little"
    );
}
