//! What must hold when a part is handed out, after every step, and in the end.

use super::*;

impl History {
    /// A part is handed out: its dead owner must not be able to serve or to count anything, and
    /// all that counted must be there.
    pub(super) fn judge(&mut self, connection: ConnectionId, part: &RecoveryPart) {
        let seed = self.seed;
        let dead = dead_of(part);
        self.handed_out.insert(dead);
        let to = self.machine_at(connection);
        assert!(to.is_none_or(|machine| self.id_of(machine) != Some(dead)), "seed {seed}");
        for report in self.world.coordinator().reports() {
            let is_under_way = matches!(
                report.state,
                MigrationState::Preparing | MigrationState::Moving | MigrationState::Releasing
            );
            let overlaps = is_under_way && report.range.overlaps(part.range);
            assert!(!overlaps, "seed {seed}: {} is handed out in {report:?}", part.range);
        }
        for tenure in &part.tenures {
            let epoch = *self.tenures.entry(*tenure).or_insert(part.epoch);
            assert_eq!(epoch, part.epoch, "seed {seed}: {tenure} was given before");
        }
        if !self.given_up.contains(&dead) {
            let told: BTreeSet<SegmentId> = part.segments.iter().map(|s| s.segment).collect();
            let counted = self.counted.get(&dead).cloned().unwrap_or_default();
            assert!(told.is_superset(&counted), "seed {seed}: {counted:?} but told of {told:?}");
            assert_eq!(part.segments.len() as u32, part.segments_total);
            if let Some(zombie) = self.process_of(dead) {
                let until = self.lease_end(zombie);
                assert!(until <= self.world.now(), "seed {seed}: {dead} serves");
                self.meet("zombie");
            }
        }
        for place in part.segments.iter().flat_map(|s| s.places.iter().map(move |p| (s, p))) {
            let (segment, place) = place;
            let machine = self.process_of(place.backup).expect("places are connected servers");
            let replica = &self.disks[machine].get(&(dead, false, segment.segment));
            assert!(replica.is_some_and(|bytes| bytes.len() == place.length as usize));
        }
    }

    /// Until when a master serves, at most: rule 6. While a segment of the chain is being told
    /// of, its backups and those of the one before have to answer.
    pub(super) fn lease_end(&self, machine: usize) -> Instant {
        let (_, process) = self.machines[machine].as_ref().unwrap();
        let me = process.id.unwrap();
        let Some(chain) = &process.log.chain else { return Instant(0) };
        let backups = chain.1.iter().chain(process.log.next.iter().flat_map(|next| &next.1));
        let ends = backups.map(|&backup| match &self.machines[backup] {
            // Its successor knows nothing of this log.
            None => self.world.now(),
            Some((_, other)) if !self.disks[backup].contains_key(&(me, true, chain.0)) => {
                other.fenced.get(&me).copied().unwrap_or_default()
            }
            Some((_, other)) => match other.fenced.get(&me) {
                Some(at) => *at + LEASE,
                None => Instant(u64::MAX),
            },
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
                let known = self.epochs.entry(slot).or_insert(tablet.epoch);
                assert!(*known <= tablet.epoch, "seed {seed}: the epoch of {slot} falls");
                *known = tablet.epoch;
            }
            for tenure in &tablet.tenures {
                let epoch = *self.tenures.entry(*tenure).or_insert(tablet.epoch);
                assert_eq!(epoch, tablet.epoch, "seed {seed}: {tenure} was given twice");
            }
        }
    }

    pub(super) fn check_end(&mut self) {
        let seed = self.seed;
        let map = self.world.coordinator().map();
        let mut waiting = BTreeSet::new();
        for report in self.world.coordinator().recoveries() {
            let is_at_rest = report.state == RecoveryState::WaitingForMigrations;
            assert!(is_at_rest, "seed {seed}: {report:?}");
            waiting.extend(report.ranges.iter().copied());
        }
        for tablet in &map.tablets {
            let owner = map.servers.iter().find(|server| server.id == tablet.owner).unwrap();
            if owner.is_dead {
                let moves = map.moving.iter().any(|moving| moving.0.covers(tablet.range));
                assert!(moves && waiting.contains(&tablet.range), "seed {seed}: {tablet:?}");
                self.meet("waits for lineage");
            }
        }
        for (range, source, target) in &map.moving {
            let is_dead = |id: &ServerId| map.servers.iter().any(|s| s.id == *id && s.is_dead);
            assert!(is_dead(source) || is_dead(target), "seed {seed}: {range} has not ended");
        }
        let living: BTreeSet<ServerId> =
            (0..MACHINES).filter_map(|machine| self.id_of(machine)).collect();
        let needed: BTreeSet<ServerId> =
            self.world.coordinator().recoveries().iter().map(|report| report.dead).collect();
        for name in self.disks.iter().flat_map(|disk| disk.keys()) {
            let is_kept = living.contains(&name.0) || needed.contains(&name.0);
            assert!(is_kept, "seed {seed}: {name:?} was not freed");
        }
    }
}
