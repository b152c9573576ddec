//! The simulated servers' data, slot by slot: in memory and in their logs. An *item* is a unique
//! number that stands for one acknowledged write.
//!
//! A server does the work of its engine for operations, migrations and recoveries at once: an
//! item is both in memory and in the log, or in neither. At every assignment the checks compare
//! the partition's logs, and the data kept by its receiver, with the acknowledged items. They
//! must contain all that were not flushed, and none that were.

use super::*;

/// A process's data of one slot.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) state: State,
    pub(super) epoch: OwnershipEpoch,
    pub(super) incarnation: Incarnation,
    pub(super) items: BTreeSet<u64>,
    /// Data held before the start of a recovery partition that keeps it.
    before: Option<Box<Held>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Serving,
    /// The source has sent a flip.
    Frozen(MigrationId),
    Leaving(MigrationId),
    /// The flag records that everything has arrived.
    Arriving(MigrationId, bool),
    Recovering,
    /// Served while the log from which it was recovered is still needed.
    Securing,
}

impl State {
    fn serves(self) -> bool {
        matches!(self, State::Serving | State::Arriving(..) | State::Securing)
    }
}

/// Returns slots as ranges.
pub(super) fn ranges_of(slots_left: &BTreeSet<u16>) -> Vec<HashRange> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for &slot in slots_left {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => runs.push((slot, slot)),
        }
    }
    runs.into_iter().map(|(first, last)| slots(first, last)).collect()
}

/// Returns the slots of a range that the test uses.
pub(super) fn slots_in(range: HashRange) -> impl Iterator<Item = u16> {
    let (Slot(first), Slot(last)) = range.slots();
    first..=last.min(SLOTS)
}

impl History {
    /// Returns whether writes of the process are acknowledged now.
    pub(super) fn can_acknowledge(&self, machine: usize) -> bool {
        let Some((_, process)) = &self.machines[machine] else { return false };
        let (Some(me), Some((number, on))) = (process.id, &process.log.manifest_log) else {
            return false;
        };
        process.log.next.is_none() && self.all_take(me, (true, *number), on)
    }

    /// Executes a client's write.
    pub(super) fn acknowledge(&mut self, machine: usize) {
        let slot = self.random.u16(..=SLOTS);
        let me = self.id_of(machine).unwrap();
        let held = self.process(machine).held.get(&slot);
        if !held.is_some_and(|held| held.state.serves()) || !self.can_acknowledge(machine) {
            return;
        }
        for other in (0..MACHINES).filter(|&other| other != machine) {
            let held = self.machines[other].as_ref().and_then(|(_, p)| p.held.get(&slot));
            let also = held.is_some_and(|held| held.state.serves()) && self.can_acknowledge(other);
            assert!(!also, "seed {}: slot {slot} is served twice", self.seed);
        }
        self.numbers += 1;
        let item = self.numbers;
        let held = self.process(machine).held.get_mut(&slot).unwrap();
        held.items.insert(item);
        let (epoch, incarnation) = (held.epoch, held.incarnation);
        self.logs.entry((me, slot)).or_default().insert(item, incarnation);
        // A write during a flush may be ordered before it.
        let map = self.world.coordinator().map();
        let hash = Slot(slot).first_hash();
        let tablet = map.tablets.iter().find(|tablet| tablet.range.contains(hash)).unwrap();
        if tablet.epoch != epoch || tablet.incarnations[0] == incarnation {
            self.required.entry(slot).or_default().insert(item);
        }
    }

    /// Records that the coordinator gave a slot a new incarnation without a new owner.
    pub(super) fn note_flush(&mut self, slot: u16) {
        let items = self.required.remove(&slot).unwrap_or_default();
        self.flushed.entry(slot).or_default().extend(items);
        self.meet("flushed");
    }

    pub(super) fn adopt(&mut self, machine: usize, map: &ClusterMap) {
        let Some(me) = self.id_of(machine) else { return };
        let mut met = 0;
        let reports = self.world.coordinator().reports();
        let is_undecided = |id: MigrationId| {
            reports.iter().any(|r| r.migration == id && r.state == MigrationState::Preparing)
        };
        let process = self.process(machine);
        let (held_now, kept) = (&mut process.held, &process.kept);
        let mut is_early = false;
        for tablet in map.tablets.iter().filter(|tablet| tablet.owner == me) {
            let (epoch, incarnation) = (tablet.epoch, tablet.incarnations[0]);
            for slot in slots_in(tablet.range) {
                let Some(held) = held_now.get_mut(&slot) else {
                    let (state, items) = (State::Serving, BTreeSet::new());
                    held_now.insert(slot, Held { state, epoch, incarnation, items, before: None });
                    continue;
                };
                if held.epoch != epoch {
                    continue;
                }
                if held.state == State::Recovering {
                    let is_kept = kept.contains(&epoch);
                    held.state = if is_kept { State::Serving } else { State::Securing };
                    is_early |= !is_kept;
                }
                if held.incarnation != incarnation {
                    let is_uncertain = match held.state {
                        State::Frozen(migration) => is_undecided(migration),
                        State::Leaving(_) | State::Recovering => true,
                        State::Serving | State::Arriving(..) | State::Securing => false,
                    };
                    assert!(!is_uncertain, "slot {slot} of {me} is flushed as {:?}", held.state);
                    held.incarnation = incarnation;
                    held.items.clear();
                    if let State::Arriving(_, has_arrived) = &mut held.state {
                        *has_arrived = true;
                        met += 1;
                    }
                }
            }
        }
        if is_early {
            self.meet("served before it is safe");
        }
        if met > 0 {
            self.meet("flushed what arrives");
        }
    }

    /// Freezes a source's slots if necessary, and flips to the target. The flip or its answer may
    /// get lost.
    pub(super) fn flip(&mut self, machine: usize, intent: &Intent) {
        let migration = intent.migration;
        let held_now = &mut self.process(machine).held;
        let all: Vec<u16> = slots_in(intent.range).collect();
        let all_are = |held_now: &BTreeMap<u16, Held>, state: State| {
            all.iter().all(|slot| held_now.get(slot).is_some_and(|held| held.state == state))
        };
        if all_are(held_now, State::Leaving(migration)) {
            return self.tell(machine, MigrationUpdate::Flipped { migration });
        }
        let is_ours = |slot: &u16| held_now[slot].epoch == intent.source_epoch;
        let may_freeze = all_are(held_now, State::Serving) && all.iter().all(is_ours);
        if !may_freeze && !all_are(held_now, State::Frozen(migration)) {
            return self.tell(machine, MigrationUpdate::FlipUnanswered { migration });
        }
        for slot in &all {
            held_now.get_mut(slot).unwrap().state = State::Frozen(migration);
        }
        let heard = self.random.u8(..) < 200;
        let target = self.process_of(intent.target).filter(|_| heard);
        if let Some(target) = target
            && self.accept(target, migration)
        {
            self.tell(target, MigrationUpdate::Flipped { migration });
            if self.random.bool() {
                self.tell(machine, MigrationUpdate::Flipped { migration });
                return self.leave(machine, migration);
            }
        }
        self.tell(machine, MigrationUpdate::FlipUnanswered { migration });
    }

    fn accept(&mut self, target: usize, migration: MigrationId) -> bool {
        let process = self.process(target);
        let Some(Some(intent)) = process.intents.get(&migration) else { return false };
        let (epoch, incarnation) = (intent.target_epoch, intent.target_incarnations[0]);
        if process.accepted.insert(migration, intent.source).is_none() {
            for slot in slots_in(intent.range) {
                let (state, items) = (State::Arriving(migration, false), BTreeSet::new());
                process.held.insert(slot, Held { state, epoch, incarnation, items, before: None });
            }
        }
        true
    }

    pub(super) fn outcome(&mut self, machine: usize, migration: MigrationId, accepted: bool) {
        if accepted {
            return self.leave(machine, migration);
        }
        for held in self.process(machine).held.values_mut() {
            if held.state == State::Frozen(migration) {
                held.state = State::Serving;
            }
        }
    }

    fn leave(&mut self, machine: usize, migration: MigrationId) {
        for held in self.process(machine).held.values_mut() {
            if held.state == State::Frozen(migration) {
                held.state = State::Leaving(migration);
            }
        }
    }

    /// Drops a source's data that its target has durably, and finally its slots.
    pub(super) fn forget(&mut self, machine: usize, id: MigrationId, remaining: &[HashRange]) {
        self.leave(machine, id);
        let held = &mut self.process(machine).held;
        for (slot, held) in held.iter_mut().filter(|(_, held)| held.state == State::Leaving(id)) {
            let hash = Slot(*slot).first_hash();
            if !remaining.iter().any(|range| range.contains(hash)) {
                held.items.clear();
            }
        }
        if remaining.is_empty() {
            held.retain(|_, held| held.state != State::Leaving(id));
            self.tell(machine, MigrationUpdate::Released { migration: id });
        }
    }

    /// Pulls some slots to the target, and reports the missing ones.
    pub(super) fn pull(&mut self, machine: usize, migration: MigrationId, source: ServerId) {
        let me = self.id_of(machine).unwrap();
        let lacks = |(slot, held): (&u16, &Held)| {
            (held.state == State::Arriving(migration, false)).then_some(*slot)
        };
        let mut missing: BTreeSet<u16> =
            self.process(machine).held.iter().filter_map(lacks).collect();
        let source = self.process_of(source).filter(|_| self.can_acknowledge(machine));
        for slot in missing.clone() {
            let Some(source) = source.filter(|_| self.random.u8(..) < 80) else { continue };
            let Some(theirs) = self.process(source).held.get(&slot).cloned() else { continue };
            if !matches!(theirs.state, State::Frozen(m) | State::Leaving(m) if m == migration) {
                continue;
            }
            let ours = self.process(machine).held.get_mut(&slot).unwrap();
            ours.state = State::Arriving(migration, true);
            ours.items.extend(theirs.items.iter().copied());
            let incarnation = ours.incarnation;
            let log = self.logs.entry((me, slot)).or_default();
            log.extend(theirs.items.iter().map(|&item| (item, incarnation)));
            missing.remove(&slot);
        }
        let has_any = |held: &Held| matches!(held.state, State::Arriving(m, _) if m == migration);
        if self.process(machine).held.values().any(has_any) {
            let remaining = ranges_of(&missing);
            self.tell(machine, MigrationUpdate::Shrink { migration, remaining });
        }
    }

    /// Ends the target's dependency.
    pub(super) fn finish(&mut self, machine: usize, migration: MigrationId) {
        let process = self.process(machine);
        process.accepted.remove(&migration);
        for held in process.held.values_mut() {
            if matches!(held.state, State::Arriving(m, _) if m == migration) {
                held.state = State::Serving;
            }
        }
    }

    /// Begins a recovery partition: its slots are not served, and kept data stays.
    pub(super) fn begin_part(&mut self, machine: usize, part: &RecoveryPartition) {
        let seed = self.seed;
        let held_now = &mut self.process(machine).held;
        for slot in slots_in(part.range) {
            match held_now.get(&slot).map(|held| (held.state, held.epoch)) {
                Some((State::Recovering, epoch)) if epoch == part.epoch => continue,
                // Assigned again after it was handed back.
                Some((State::Recovering, _)) => end_part(held_now, slot),
                Some(_) | None => {}
            }
            let held = held_now.get(&slot);
            let items = match held {
                None => {
                    assert!(!part.keeps, "seed {seed}: nothing of slot {slot} to keep");
                    BTreeSet::new()
                }
                Some(held) => {
                    assert!(part.keeps, "seed {seed}: slot {slot} is here already: {held:?}");
                    // After a flush of the table nothing is kept.
                    let counts = held.incarnation == part.incarnations[0];
                    if counts { held.items.clone() } else { BTreeSet::new() }
                }
            };
            let before = held.cloned().map(Box::new);
            let (state, epoch, incarnation) = (State::Recovering, part.epoch, part.incarnations[0]);
            held_now.insert(slot, Held { state, epoch, incarnation, items, before });
        }
        if part.keeps {
            self.meet("kept");
        }
        if let [first, second] = &part.logs[..] {
            self.meet("two logs");
            let reports = self.world.coordinator().reports();
            let is_move = |dead: (ServerId, ServerId)| {
                reports.iter().any(|report| (report.target, report.source) == dead)
            };
            if !is_move((first.dead, second.dead)) {
                self.meet("inherited from two");
            }
        }
    }

    /// Hands a partition back: kept data stays, replayed data is dropped.
    pub(super) fn abandon_part(&mut self, machine: usize, part: &RecoveryPartition) {
        let held_now = &mut self.process(machine).held;
        for slot in slots_in(part.range) {
            end_part(held_now, slot);
        }
    }

    /// Replays a partition into memory, once. Returns `false` if the process does not hold it.
    pub(super) fn replay(&mut self, machine: usize, part: &RecoveryPartition) -> bool {
        let is_read = self.process(machine).replayed.contains(&part.epoch);
        for slot in slots_in(part.range) {
            let read = self.read(part, slot);
            let held = self.process(machine).held.get_mut(&slot);
            let Some(held) = held.filter(|held| held.epoch == part.epoch) else { return false };
            if !is_read {
                held.items.extend(read);
            }
        }
        true
    }

    /// Writes a whole partition to the process's own log.
    pub(super) fn secure(&mut self, machine: usize, part: &RecoveryPartition) {
        let me = self.id_of(machine).unwrap();
        for slot in slots_in(part.range) {
            let held = &self.process(machine).held[&slot];
            let (items, incarnation) = (held.items.clone(), held.incarnation);
            self.logs
                .entry((me, slot))
                .or_default()
                .extend(items.into_iter().map(|i| (i, incarnation)));
        }
    }

    /// Returns the valid items of a slot in the logs of a partition.
    fn read(&self, part: &RecoveryPartition, slot: u16) -> BTreeSet<u64> {
        let mut items = BTreeSet::new();
        for log in &part.logs {
            let counts = |(item, incarnation): (&u64, &Incarnation)| {
                (*incarnation == log.old_incarnations[0]).then_some(*item)
            };
            let of_slot = self.logs.get(&(log.dead, slot));
            items.extend(of_slot.into_iter().flatten().filter_map(counts));
        }
        items
    }

    /// Checks that the receiver of a partition gets every acknowledged item, and no flushed one.
    pub(super) fn judge_items(&mut self, machine: usize, part: &RecoveryPartition) {
        for slot in slots_in(part.range) {
            let mut items = self.read(part, slot);
            if let Some(held) = self.process(machine).held.get(&slot).filter(|_| part.keeps)
                && held.incarnation == part.incarnations[0]
            {
                items.extend(held.items.iter().copied());
            }
            if part.logs.iter().any(|log| self.given_up.contains(&log.dead)) {
                self.required.entry(slot).or_default().retain(|item| items.contains(item));
            }
            let required = self.required.get(&slot).cloned().unwrap_or_default();
            let lost: Vec<u64> = required.difference(&items).copied().collect();
            assert!(lost.is_empty(), "seed {}: slot {slot} loses {lost:?} by {part:?}", self.seed);
            let flushed = self.flushed.get(&slot).cloned().unwrap_or_default();
            let back: Vec<u64> = items.intersection(&flushed).copied().collect();
            assert!(back.is_empty(), "seed {}: {back:?} of slot {slot} come back", self.seed);
        }
    }

    /// Checks at the end that every slot is served by its owner, with all items.
    pub(super) fn check_items(&self) {
        let map = self.world.coordinator().map();
        for slot in 0..=SLOTS {
            let hash = Slot(slot).first_hash();
            let tablet = map.tablets.iter().find(|tablet| tablet.range.contains(hash)).unwrap();
            let owner = self.process_of(tablet.owner).expect("every owner lives");
            let (_, process) = self.machines[owner].as_ref().unwrap();
            let held = &process.held[&slot];
            assert_eq!(held.state, State::Serving, "seed {}: slot {slot}", self.seed);
            let required = self.required.get(&slot).cloned().unwrap_or_default();
            assert!(held.items.is_superset(&required), "seed {}: slot {slot}", self.seed);
        }
    }
}

/// Restores the data held before a partition.
fn end_part(held_now: &mut BTreeMap<u16, Held>, slot: u16) {
    let before = held_now.remove(&slot).and_then(|held| held.before);
    held_now.extend(before.map(|before| (slot, *before)));
}
