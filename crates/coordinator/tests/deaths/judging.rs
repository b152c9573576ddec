//! Checks at every assignment of a recovery partition, after every step, and at the end.

use super::*;

impl History {
    /// Checks an assigned recovery partition: its dead owner can neither serve nor acknowledge
    /// anything, and all acknowledged segments are present.
    pub(super) fn judge(&mut self, connection: LinkId, part: &RecoveryPartition) {
        let seed = self.seed;
        let to = self.machine_at(connection).expect("partitions go to live servers");
        let reports = self.world.coordinator().recoveries();
        let parts = reports.iter().filter(|report| report.dead == dead_of(part));
        let found = parts.flat_map(|report| &report.parts).find(|(range, _)| *range == part.range);
        let receiver = found.expect("the part is reported").1;
        for log in &part.logs {
            self.judge_log(log.dead, part, receiver);
        }
        self.judge_items(to, part);
        for report in self.world.coordinator().reports() {
            let is_undecided = report.state == MigrationState::Preparing;
            let overlaps = is_undecided && report.range.overlaps(part.range);
            assert!(!overlaps, "seed {seed}: {} is assigned in {report:?}", part.range);
        }
        for incarnation in &part.incarnations {
            let held = self.incarnations.entry(*incarnation).or_insert(receiver);
            let is_new = *held == receiver && (part.keeps || self.handed(*incarnation, part.epoch));
            assert!(is_new, "seed {seed}: {incarnation} was given before");
        }
        assert_eq!(part.segments.len() as u32, part.segments_total);
    }

    /// Returns whether the incarnation was not assigned with another partition.
    fn handed(&mut self, incarnation: Incarnation, epoch: OwnershipEpoch) -> bool {
        *self.part_incarnations.entry(incarnation).or_insert(epoch) == epoch
    }

    fn judge_log(&mut self, dead: ServerId, part: &RecoveryPartition, receiver: ServerId) {
        let seed = self.seed;
        self.handed_out.insert(dead);
        assert!(receiver != dead, "seed {seed}");
        let of_log = || part.segments.iter().filter(|segment| segment.log == dead);
        if !self.given_up.contains(&dead) {
            let told: BTreeSet<SegmentId> = of_log().map(|s| s.segment).collect();
            let counted = self.counted.get(&dead).cloned().unwrap_or_default();
            assert!(told.is_superset(&counted), "seed {seed}: {counted:?} but told of {told:?}");
            if let Some(zombie) = self.process_of(dead) {
                let until = self.lease_end(zombie);
                assert!(until <= self.world.now(), "seed {seed}: {dead} serves");
                self.meet("zombie");
            }
        }
        for (segment, place) in of_log().flat_map(|s| s.places.iter().map(move |p| (s, p))) {
            let machine = self.process_of(place.backup).expect("places are connected servers");
            let replica = &self.disks[machine].get(&(dead, false, segment.segment));
            assert!(replica.is_some_and(|bytes| bytes.len() == place.length as usize));
        }
    }

    /// Returns the latest end of a master's read lease (rule 6). While a next manifest segment is
    /// being announced, the backups of both must answer.
    pub(super) fn lease_end(&self, machine: usize) -> Instant {
        let (_, process) = self.machines[machine].as_ref().unwrap();
        let me = process.id.unwrap();
        let Some(manifest_log) = &process.log.manifest_log else { return Instant(0) };
        let backups = manifest_log.1.iter().chain(process.log.next.iter().flat_map(|next| &next.1));
        let ends =
            backups.map(|&backup| match (&self.machines[backup], self.leases.get(&(backup, me))) {
                // The machine's current process answers under another number.
                (_, Some(fenced)) => *fenced + LEASE,
                (None, None) => self.world.now(),
                // Its successor does not know this log.
                (Some(_), None)
                    if !self.disks[backup].contains_key(&(me, true, manifest_log.0)) =>
                {
                    Instant(0)
                }
                (Some(_), None) => Instant(u64::MAX),
            });
        ends.min().unwrap_or_default()
    }

    pub(super) fn check(&mut self) {
        let map = self.world.coordinator().map();
        if map.tablets.is_empty() {
            return;
        }
        assert_eq!(map.tablets[0].range.first(), HashRange::ALL.first());
        assert_eq!(map.tablets[map.tablets.len() - 1].range.last(), HashRange::ALL.last());
        for pair in map.tablets.windows(2) {
            assert_eq!(pair[0].range.last().0 + 1, pair[1].range.first().0, "gap or overlap");
        }
        let seed = self.seed;
        for tablet in &map.tablets {
            assert!(tablet.range.is_whole_slots());
            let (Slot(first), Slot(last)) = tablet.range.slots();
            for slot in first..=last.min(SLOTS) {
                let now = (tablet.epoch, tablet.incarnations[0]);
                let known = self.epochs.insert(slot, now).unwrap_or(now);
                assert!(known.0 <= tablet.epoch, "seed {seed}: the epoch of {slot} falls");
                let is_renewed = known.0 == tablet.epoch && known.1 != now.1;
                // Assigned and flushed in one step.
                let is_flushed = known.0 != tablet.epoch && self.holds_otherwise(slot, tablet);
                if is_renewed || is_flushed {
                    self.note_flush(slot);
                }
            }
            for incarnation in &tablet.incarnations {
                let holder = *self.incarnations.entry(*incarnation).or_insert(tablet.owner);
                assert_eq!(holder, tablet.owner, "seed {seed}: {incarnation} was given twice");
            }
        }
        self.check_parts(&map);
    }

    /// Returns whether the slot's owner already holds it under this epoch, with another
    /// incarnation.
    fn holds_otherwise(&self, slot: u16, tablet: &TabletInfo) -> bool {
        let machine = self.process_of(tablet.owner).and_then(|at| self.machines[at].as_ref());
        let held = machine.and_then(|(_, process)| process.held.get(&slot));
        held.is_some_and(|h| h.epoch == tablet.epoch && h.incarnation != tablet.incarnations[0])
    }

    /// Checks that each hash of a dead server is in at most one partition. Any other hash is in a
    /// partition only if its owner keeps it.
    fn check_parts(&self, map: &ClusterMap) {
        let mut seen: Vec<HashRange> = Vec::new();
        for report in self.world.coordinator().recoveries() {
            for (range, master) in report.parts {
                let twice = seen.iter().find(|other| other.overlaps(range));
                assert_eq!(twice, None, "seed {}: {range} is in two parts", self.seed);
                seen.push(range);
                let owner = map.tablets.iter().find(|tablet| tablet.range.covers(range));
                let owner = owner.map(|tablet| tablet.owner);
                let may_be = owner == Some(report.dead) || owner == Some(master);
                assert!(may_be, "seed {}: {range} of {owner:?} is in a part", self.seed);
            }
        }
    }

    pub(super) fn check_end(&mut self) {
        let seed = self.seed;
        let map = self.world.coordinator().map();
        let recoveries = self.world.coordinator().recoveries();
        assert_eq!(recoveries, [], "seed {seed}");
        assert_eq!(map.moving, [], "seed {seed}");
        let living: BTreeSet<ServerId> =
            (0..MACHINES).filter_map(|machine| self.id_of(machine)).collect();
        for tablet in &map.tablets {
            assert!(living.contains(&tablet.owner), "seed {seed}: {tablet:?}");
        }
        for name in self.disks.iter().flat_map(|disk| disk.keys()) {
            assert!(living.contains(&name.0), "seed {seed}: {name:?} was not freed");
        }
        self.check_items();
    }
}
