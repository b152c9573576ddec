//! Atomic writes of several keys. The writer locks their leaves, appends their entries
//! contiguously in one segment, and then points the index at all of them.
//!
//! A reader takes no lock, so it may find one of the new words before another is stored. A reader
//! that finds a word therefore checks [`super::publications::Publications`] and, if a publication
//! is in progress, waits until the leaf is unlocked. The unlock comes after the last word. A
//! reader that finds an old word needs no check: it read before the write.

use super::changes::{Change, ChangeAction, Changes, Scratch};
use super::leaves::Leaves;
use super::read::{judge, may_arrive, records};
use super::record::{Key, PerKey, Record, TableKey};
use super::stall::{Stall, check_size};
use super::version_mark::VersionBlock;
use super::view::{Lookup, Placed, TableViews, kind_of};
use super::worker::Worker;
use super::write::{Removal, WriteTarget, WriteValue, Writer};
use crate::address::Address;
use crate::index::Word;
use types::{KeyHash, TableId, TypedValue, Version};
use wire::entry::{Body, Entry};

impl Worker {
    /// Reads and changes records of several tables like [`Worker::update`]. `is_needed` returns
    /// whether the update depends on the record of the key at a position; the caller knows that
    /// the others do not exist at another server.
    pub fn update_tables<T>(
        &mut self,
        keys: &[TableKey<'_>],
        is_needed: impl Fn(usize) -> bool,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, Stall> {
        self.update_batch(keys.iter().copied(), is_needed, f, |_, _, _, _| false)
    }

    /// Reads and changes records like [`Worker::update_tables`], and writes
    /// a completion record in the same atomic step. `f` receives the records, with the completion
    /// record last, and returns whether the changes are made. If so, `completed` writes the new
    /// value of the completion record. It receives the former one, and the versions that were
    /// drawn, by the positions of their keys. Returns what `f` has returned.
    pub fn update_recorded(
        &mut self,
        keys: &[TableKey<'_>],
        is_needed: impl Fn(usize) -> bool,
        completion: Key<'_>,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> bool,
        completed: impl FnOnce(Option<&[u8]>, &[(usize, Version)], &mut Vec<u8>),
    ) -> Result<bool, Stall> {
        let completion = TableKey { table: TableId::COMPLETIONS, key: completion };
        let last = keys.len();
        let is_needed = |at| at == last || is_needed(at);
        let keys = keys.iter().copied().chain([completion]);
        let decide = |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| {
            let is_made = f(records, changes);
            if !is_made {
                changes.clear();
            }
            is_made
        };
        self.update_batch(keys, is_needed, decide, |&done, former, versions, value| {
            if done {
                completed(former.map(|it| it.value.bytes), versions, value);
            }
            done
        })
    }

    /// Reads and changes records as one atomic step. `last` may write the new value of the last
    /// key, and then returns true; it receives the result of `f`, that key's record, and the
    /// versions that the changes have drawn.
    pub(super) fn update_batch<'k, T>(
        &mut self,
        keys: impl Iterator<Item = TableKey<'k>>,
        is_needed: impl Fn(usize) -> bool,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
        last: impl FnOnce(&T, Option<Record<'_>>, &[(usize, Version)], &mut Vec<u8>) -> bool,
    ) -> Result<T, Stall> {
        let targets = WriteTarget::of_keys(&self.tablets, keys)?;
        targets.iter().try_for_each(|target| check_size(target.key.bytes, 0))?;
        let Some(first) = targets.first() else {
            return Ok(f(&[], &mut Changes::new(&mut self.scratch, 0)));
        };
        let turn = self.participant.turn();
        let views = TableViews { store: &self.store, turn: &turn, dependency: &self.dependency };
        for target in &targets {
            target.access.make_leaf(&views.of(target.table), target.key.hash);
        }
        let mut leaves = Leaves::lock(&views, &targets)?;
        debug_assert!(leaves.order().len() == targets.len(), "a key has no leaf");
        let found = leaves.find_all(&views, &targets);
        let mut may_arrive = may_arrive(&targets);
        may_arrive.iter_mut().enumerate().for_each(|(at, may_arrive)| *may_arrive &= is_needed(at));
        judge(&targets, &may_arrive, &found)?;
        let view = views.of(first.table);
        found.iter().for_each(|found| view.note_found(found));
        let records = records(&self.store, &found, &targets);
        let mut changes = Changes::new(&mut self.scratch, targets.len());
        let result = f(&records, &mut changes);
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let writer = Writer { store: &self.store, head, tombstones, view };
        let drawn = VersionBlock::draw(&self.store, versions_of(&targets, &self.scratch));
        let batch = MultiKeyWrite { writer, targets: &targets, found: &found, drawn };
        let mut versions = std::mem::take(&mut self.scratch.versions);
        let mut value = std::mem::take(&mut self.scratch.last_value);
        value.clear();
        let mut steps = batch.plan(leaves.order(), &self.scratch);
        steps.iter().filter_map(KeyChange::written).for_each(|written| versions.push(written));
        let former = records.last().copied().flatten();
        if last(&result, former, &versions, &mut value) {
            let value = WriteValue { value: TypedValue::string(&value), expiry: None };
            batch.add_put(&mut steps, targets.len() - 1, value);
        }
        batch.carry_out(&mut leaves, &mut steps)?;
        drop(steps);
        self.scratch.versions = versions;
        self.scratch.last_value = value;
        Ok(result)
    }
}

/// Changes of several keys that are applied atomically.
struct MultiKeyWrite<'b, 'w, 't> {
    writer: Writer<'w, 't>,
    targets: &'b [WriteTarget<'b, 'b>],
    found: &'b [Lookup<'t>],
    /// Versions of the entries.
    drawn: VersionBlock,
}

/// Returns the number of versions that an update may need: one for each change, and one for a
/// completion record.
fn versions_of(targets: &[WriteTarget<'_, '_>], scratch: &Scratch) -> usize {
    let is_recorded = targets.last().is_some_and(|last| last.table == TableId::COMPLETIONS);
    scratch.list.len() + usize::from(is_recorded)
}

/// Planned change of one key.
struct KeyChange<'b> {
    /// Position of the key.
    key: usize,
    old: Option<Placed>,
    /// Entry to append; `None`: the key's word is only removed.
    entry: Option<Entry<'b>>,
    /// Position of the appended entry.
    new: Option<Placed>,
    /// Set for a tombstone where a record may still arrive.
    may_arrive: bool,
}

impl KeyChange<'_> {
    /// Returns the position of the key and the version of its new record, if there is one.
    fn written(&self) -> Option<(usize, Version)> {
        let entry = self.entry.as_ref()?;
        match entry.body {
            Body::Object { .. } => Some((self.key, entry.version)),
            Body::Tombstone { .. } | Body::CopiesOf(_) => None,
        }
    }
}

impl<'b> MultiKeyWrite<'b, '_, '_> {
    /// Applies the changes.
    fn carry_out(
        mut self,
        leaves: &mut Leaves<'_>,
        steps: &mut [KeyChange<'b>],
    ) -> Result<(), Stall> {
        let bytes = self.check(steps)?;
        let mut inserted: PerKey<usize> = PerKey::new();
        for step in steps.iter().filter(|step| step.old.is_none()) {
            inserted.push(step.key);
        }
        leaves.make_room(self.targets, &inserted)?;
        self.append(steps, bytes)?;
        let publication = self.writer.store.publications.begin();
        for step in steps.iter() {
            self.publish(leaves, step);
        }
        drop(publication);
        for step in steps.iter() {
            self.settle(step);
        }
        Ok(())
    }

    /// Returns the planned changes by ascending table and hash.
    fn plan(&self, order: &[usize], scratch: &'b Scratch) -> PerKey<KeyChange<'b>> {
        let mut steps = PerKey::new();
        for change in last_changes(self.targets, order, scratch) {
            let at = change.key;
            let (target, old) = (self.targets[at], self.found[at].old());
            let (entry, may_arrive) = match &change.what {
                ChangeAction::Put(new) => {
                    let value = WriteValue { value: scratch.value(new), expiry: new.expiry };
                    steps.push(self.planned_put(at, value));
                    continue;
                }
                ChangeAction::Delete => {
                    match self.writer.removal(target, old, || self.drawn.take()) {
                        Removal::Nothing => continue,
                        Removal::Unlink(_) => (None, false),
                        Removal::Tombstone { tombstone, may_arrive } => {
                            (Some(tombstone), may_arrive)
                        }
                    }
                }
            };
            steps.push(KeyChange { key: at, old, entry, new: None, may_arrive });
        }
        debug_assert!(
            steps.is_sorted_by_key(|step| self.rank(step.key)),
            "changes are planned out of order"
        );
        steps
    }

    /// Returns the place of a key in the order of the changes.
    fn rank(&self, at: usize) -> (TableId, KeyHash) {
        (self.targets[at].table, self.targets[at].key.hash)
    }

    /// Adds the write of the key at this position, which no other change writes, to the planned
    /// changes.
    fn add_put(&self, steps: &mut PerKey<KeyChange<'b>>, at: usize, value: WriteValue<'b>) {
        let place = steps.partition_point(|step| self.rank(step.key) < self.rank(at));
        steps.insert(place, self.planned_put(at, value));
    }

    /// Returns the planned write of the key at this position.
    fn planned_put(&self, at: usize, value: WriteValue<'b>) -> KeyChange<'b> {
        let old = self.found[at].old();
        let version = self.drawn.take();
        let entry = Some(self.writer.object(self.targets[at], value, old, version));
        KeyChange { key: at, old, entry, new: None, may_arrive: false }
    }

    /// Rejects values that are too long and batches that do not fit into one segment. Returns the
    /// bytes of all entries.
    fn check(&self, steps: &[KeyChange<'b>]) -> Result<usize, Stall> {
        let mut bytes = 0;
        for entry in steps.iter().filter_map(|step| step.entry.as_ref()) {
            match entry.body {
                Body::Object { value, .. } => check_size(entry.key, value.stored_bytes())?,
                Body::Tombstone { .. } | Body::CopiesOf(_) => {}
            }
            bytes += entry.encoded_bytes();
        }
        let fits = bytes <= self.writer.view.log.batch_bytes_max();
        if fits { Ok(bytes) } else { Err(Stall::TooLarge) }
    }

    /// Appends all entries, which have `bytes` bytes, to one segment and records their positions.
    fn append(&mut self, steps: &mut [KeyChange<'b>], bytes: usize) -> Result<(), Stall> {
        let mut addresses: PerKey<Address> = PerKey::new();
        let frees = |step: &KeyChange<'_>| {
            step.entry.is_none_or(|entry| matches!(entry.body, Body::Tombstone { .. }))
        };
        let frees_memory = steps.iter().all(frees);
        let entries = steps.iter_mut().filter_map(|step| step.entry.as_mut());
        if bytes == 0 {
            return Ok(());
        } else if frees_memory {
            self.writer.head.append_reserved(bytes, entries, |address| addresses.push(address))?;
        } else {
            self.writer.head.append_all(bytes, entries, |address| addresses.push(address))?;
        }
        if self.writer.view.log.is_durable() {
            let read = self.found.iter().filter_map(Lookup::old);
            let read = read.map(|read| (read.word.address(), read.bytes));
            self.writer.head.order(addresses[0], addresses.len() > 1, read);
        }
        let mut addresses = addresses.into_iter();
        for step in steps {
            let Some(entry) = &step.entry else { continue };
            let address = addresses.next().expect("each entry of a batch has an address");
            let word = Word::new(self.targets[step.key].key.hash, kind_of(entry), address);
            step.new = Some(Placed::new(word, entry));
        }
        Ok(())
    }

    fn publish(&self, leaves: &mut Leaves<'_>, step: &KeyChange<'_>) {
        let hash = self.targets[step.key].key.hash;
        let leaf = leaves.of(step.key);
        match (step.old, step.new) {
            (Some(old), Some(new)) => leaf.replace(hash, old.tuple(), new.tuple()),
            (Some(old), None) => leaf.remove(hash, old.word, old.bytes),
            (None, Some(new)) => {
                leaf.insert(hash, new.word, new.bytes).expect("room has been made for it");
            }
            (None, None) => {}
        }
    }

    /// Does the follow-up work of a published change: marks the old entry as dead, records the
    /// reply's dependency, schedules tombstone reclamation.
    fn settle(&mut self, step: &KeyChange<'_>) {
        if let Some(old) = step.old {
            self.writer.view.retire(old);
        }
        let Some(new) = step.new else { return };
        self.writer.view.note(new.word.address(), new.bytes);
        match step.entry.map(|entry| (entry.version, entry.body)) {
            Some((version, Body::Tombstone { .. })) => {
                let target = self.targets[step.key];
                self.writer.schedule_word_removal(target, version, new, step.may_arrive);
            }
            Some((_, Body::Object { .. } | Body::CopiesOf(_))) | None => {}
        }
    }
}

/// Returns the last change of each changed key, by ascending table and hash.
fn last_changes<'s>(
    targets: &[WriteTarget<'_, '_>],
    order: &[usize],
    scratch: &'s Scratch,
) -> PerKey<&'s Change> {
    let mut last: PerKey<Option<usize>> = PerKey::from_elem(None, targets.len());
    let mut changes = PerKey::new();
    let rank = |at: usize| (targets[at].table, targets[at].key.hash);
    for (number, change) in scratch.list.iter().enumerate() {
        last[change.key] = Some(number);
    }
    for (place, &at) in order.iter().enumerate() {
        // The later change of equal keys wins. It is passed on to the next position with the same
        // key, so that only the last position keeps one.
        let rivals = order[place + 1..].iter().take_while(|&&to| rank(to) == rank(at));
        if let Some(&next) =
            rivals.into_iter().find(|&&to| targets[to].key.bytes == targets[at].key.bytes)
        {
            last[next] = last[next].max(last[at].take());
        }
    }
    for number in order.iter().filter_map(|&at| last[at]) {
        changes.push(&scratch.list[number]);
    }
    changes
}
