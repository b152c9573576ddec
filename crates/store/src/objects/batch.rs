//! Atomic writes of several keys. The writer locks their leaves, appends their entries
//! contiguously in one segment, and then points the index at all of them.
//!
//! A reader takes no lock, so it may find one of the new words before another is stored. A reader
//! that finds a word therefore checks [`super::publications::Publications`] and, if a publication
//! is in progress, waits until the leaf is unlocked. The unlock comes after the last word. A
//! reader that finds an old word needs no check: it read before the write.

use super::access::Access;
use super::changes::{Change, ChangeAction, Changes, Scratch};
use super::leaves::Leaves;
use super::read::{judge, may_arrive, records};
use super::record::{Key, Need, Record};
use super::stall::{Stall, check_size};
use super::update::look;
use super::view::{Lookup, Placed, View, kind_of};
use super::worker::Worker;
use super::write::{Removal, WriteTarget, WriteValue, Writer};
use crate::index::{LeafGuard, Word};
use types::{TableId, TypedValue, Version};
use wire::entry::{Body, Entry};

impl Worker {
    pub(super) fn update_several<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        need: Need,
        f: impl FnOnce(&[Option<Record<'_>>], &mut Changes<'_>) -> T,
    ) -> Result<T, Stall> {
        keys.iter().try_for_each(|key| check_size(key.bytes, 0))?;
        let accesses = self.tablets.accesses(table, keys)?;
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        for (key, access) in keys.iter().zip(&accesses) {
            access.make_leaf(&view, key.hash);
        }
        let mut leaves = Leaves::lock(&view, keys)?;
        let mut found = leaves.find_all(&view, keys);
        if need == Need::Records {
            found = judge(table, keys, &accesses, &may_arrive(table, keys, &accesses), found)?;
        }
        found.iter().for_each(|found| view.note_found(found));
        let records = records(&self.store, &found, &accesses);
        let mut changes = Changes::new(&mut self.scratch, keys.len());
        let result = f(&records, &mut changes);
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let writer = Writer { store: &self.store, head, tombstones, view };
        let batch = MultiKeyWrite { writer, keys, accesses: &accesses, found: &found };
        let mut versions = std::mem::take(&mut self.scratch.versions);
        let steps = batch.plan(leaves.order(), &self.scratch);
        let steps = batch.carry_out(BatchLeaves { of_keys: &mut leaves, beside: None }, steps)?;
        versions.extend(steps.iter().filter_map(KeyChange::written));
        drop(steps);
        self.scratch.versions = versions;
        Ok(result)
    }

    /// Reads and changes records like [`Worker::update`] with all records needed, and writes a
    /// completion record in the same atomic step. `f` receives the records and the completion
    /// record, and returns whether the changes are made. If so, `completed` returns the new value
    /// of the completion record. It receives the former one, and the versions that were drawn, by
    /// the positions of their keys. Returns what `f` has returned.
    ///
    /// # Panics
    /// If `table` is the table of completion records itself.
    pub fn update_recorded(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        completion: Key<'_>,
        f: impl FnOnce(&[Option<Record<'_>>], Option<Record<'_>>, &mut Changes<'_>) -> bool,
        completed: impl FnOnce(Option<&[u8]>, &[(usize, Version)]) -> Vec<u8>,
    ) -> Result<bool, Stall> {
        assert!(table.is_database(), "one leaf would be locked twice");
        keys.iter().try_for_each(|key| check_size(key.bytes, 0))?;
        let mut accesses = self.tablets.accesses(table, keys)?;
        accesses.push(self.tablets.access(TableId::COMPLETIONS, completion.hash)?);
        let (of_keys, access) = (&accesses[..keys.len()], accesses[keys.len()]);
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        let beside = View::for_client(&self.store, TableId::COMPLETIONS, &turn, &self.dependency);
        for (key, access) in keys.iter().zip(of_keys) {
            access.make_leaf(&view, key.hash);
        }
        access.make_leaf(&beside, completion.hash);
        // Locked by ascending table, so that two such updates cannot deadlock.
        let mut leaves = Leaves::lock(&view, keys)?;
        let mut leaf = beside.lock(completion.hash)?;
        let found = leaves.find_all(&view, keys);
        let mut found = judge(table, keys, of_keys, &may_arrive(table, keys, of_keys), found)?;
        let target = WriteTarget { key: completion, access };
        let former = look(&beside, &leaf, target, Need::Records)?;
        found.iter().for_each(|found| view.note_found(found));
        let former_record = former.record(access.clock(&self.store));
        let mut changes = Changes::new(&mut self.scratch, keys.len());
        if !f(&records(&self.store, &found, of_keys), former_record, &mut changes) {
            return Ok(false);
        }
        found.push(former);
        let all_keys: Vec<Key<'_>> = keys.iter().copied().chain([completion]).collect();
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let writer = Writer { store: &self.store, head, tombstones, view };
        let batch = MultiKeyWrite { writer, keys: &all_keys, accesses: &accesses, found: &found };
        let mut versions = std::mem::take(&mut self.scratch.versions);
        let mut steps = batch.plan(leaves.order(), &self.scratch);
        versions.extend(steps.iter().filter_map(KeyChange::written));
        let value = completed(former_record.map(|record| record.value.bytes), &versions);
        steps.push(batch.planned_put(
            keys.len(),
            WriteValue { value: TypedValue::string(&value), expiry: None },
        ));
        let leaves = BatchLeaves { of_keys: &mut leaves, beside: Some(&mut leaf) };
        batch.carry_out(leaves, steps)?;
        self.scratch.versions = versions;
        Ok(true)
    }
}

/// Locked leaves of a batch.
struct BatchLeaves<'b, 't> {
    of_keys: &'b mut Leaves<'t>,
    /// Leaf of the last key, if it is a completion record. That is in another table.
    beside: Option<&'b mut LeafGuard<'t>>,
}

impl<'t> BatchLeaves<'_, 't> {
    /// Makes room for the insertion of these keys, given by their positions in the order of their
    /// hashes.
    fn make_room(&mut self, keys: &[Key<'_>], inserted: &[usize]) -> Result<(), Stall> {
        let beside = keys.len() - 1;
        match (&mut self.beside, inserted) {
            (Some(leaf), [of_keys @ .., last]) if *last == beside => {
                self.of_keys.make_room(keys, of_keys)?;
                Ok(leaf.make_room(&[keys[beside].hash])?)
            }
            _ => Ok(self.of_keys.make_room(keys, inserted)?),
        }
    }

    /// Returns the leaf of the key at this position, out of `keys`.
    fn of(&mut self, at: usize, keys: usize) -> &mut LeafGuard<'t> {
        match &mut self.beside {
            Some(leaf) if at == keys - 1 => leaf,
            _ => self.of_keys.of(at),
        }
    }
}

/// Changes of several keys that are applied atomically.
struct MultiKeyWrite<'b, 'w, 't> {
    writer: Writer<'w, 't>,
    keys: &'b [Key<'b>],
    accesses: &'b [Access<'b>],
    found: &'b [Lookup<'t>],
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
    /// Applies the changes, and returns them.
    fn carry_out(
        mut self,
        mut leaves: BatchLeaves<'_, '_>,
        mut steps: Vec<KeyChange<'b>>,
    ) -> Result<Vec<KeyChange<'b>>, Stall> {
        self.check(&steps)?;
        let inserted = steps.iter().filter(|step| step.old.is_none()).map(|step| step.key);
        leaves.make_room(self.keys, &inserted.collect::<Vec<_>>())?;
        self.append(&mut steps)?;
        let publication = self.writer.store.publications.begin();
        for step in &steps {
            self.publish(&mut leaves, step);
        }
        drop(publication);
        for step in &steps {
            self.settle(step);
        }
        Ok(steps)
    }

    /// Returns the key at this position with its permission.
    fn target(&self, at: usize) -> WriteTarget<'b, 'b> {
        WriteTarget { key: self.keys[at], access: self.accesses[at] }
    }

    /// Returns the planned changes by ascending hash. Draws the versions, so the leaves must be
    /// locked.
    fn plan(&self, order: &[usize], scratch: &'b Scratch) -> Vec<KeyChange<'b>> {
        let mut steps = Vec::new();
        for change in last_changes(self.keys, order, scratch) {
            let at = change.key;
            let (target, old) = (self.target(at), self.found[at].old());
            let (entry, may_arrive) = match &change.what {
                ChangeAction::Put(new) => {
                    let value = WriteValue { value: scratch.value(new), expiry: new.expiry };
                    steps.push(self.planned_put(at, value));
                    continue;
                }
                ChangeAction::Delete => match self.writer.removal(target, old) {
                    Removal::Nothing => continue,
                    Removal::Unlink(_) => (None, false),
                    Removal::Tombstone { tombstone, may_arrive } => (Some(tombstone), may_arrive),
                },
            };
            steps.push(KeyChange { key: at, old, entry, new: None, may_arrive });
        }
        debug_assert!(
            steps.is_sorted_by_key(|step| self.keys[step.key].hash),
            "changes are planned out of order"
        );
        steps
    }

    /// Returns the planned write of the key at this position. Draws its version.
    fn planned_put(&self, at: usize, value: WriteValue<'b>) -> KeyChange<'b> {
        let old = self.found[at].old();
        let entry = Some(self.writer.object(self.target(at), value, old));
        KeyChange { key: at, old, entry, new: None, may_arrive: false }
    }

    /// Rejects values that are too long and batches that do not fit into one segment.
    fn check(&self, steps: &[KeyChange<'b>]) -> Result<(), Stall> {
        let mut bytes = 0;
        for entry in steps.iter().filter_map(|step| step.entry.as_ref()) {
            match entry.body {
                Body::Object { value, .. } => check_size(entry.key, value.stored_bytes())?,
                Body::Tombstone { .. } | Body::CopiesOf(_) => {}
            }
            bytes += entry.encoded_bytes();
        }
        if bytes > self.writer.view.log.batch_bytes_max() { Err(Stall::TooLarge) } else { Ok(()) }
    }

    /// Appends all entries to one segment and records their positions.
    fn append(&mut self, steps: &mut [KeyChange<'b>]) -> Result<(), Stall> {
        let mut entries: Vec<Entry<'_>> = steps.iter().filter_map(|step| step.entry).collect();
        let makes_room = |entry: &Entry<'_>| matches!(entry.body, Body::Tombstone { .. });
        let mut addresses = Vec::with_capacity(entries.len());
        if entries.is_empty() {
            return Ok(());
        } else if entries.iter().all(makes_room) {
            self.writer.head.append_reserved(&entries, &mut addresses)?;
        } else {
            self.writer.head.append_all(&mut entries, &mut addresses)?;
        }
        assert!(addresses.len() == entries.len(), "an entry of a batch has no address");
        let appended = steps.iter_mut().filter(|step| step.entry.is_some());
        for ((step, entry), address) in appended.zip(&entries).zip(addresses) {
            let word = Word::new(self.keys[step.key].hash, kind_of(entry), address);
            step.new = Some(Placed::new(word, entry));
        }
        Ok(())
    }

    fn publish(&self, leaves: &mut BatchLeaves<'_, '_>, step: &KeyChange<'_>) {
        let hash = self.keys[step.key].hash;
        let leaf = leaves.of(step.key, self.keys.len());
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
                let target = self.target(step.key);
                self.writer.schedule_word_removal(target, version, new, step.may_arrive);
            }
            Some((_, Body::Object { .. } | Body::CopiesOf(_))) | None => {}
        }
    }
}

/// Returns the last change of each changed key, by ascending hash.
fn last_changes<'s>(keys: &[Key<'_>], order: &[usize], scratch: &'s Scratch) -> Vec<&'s Change> {
    let mut last: Vec<Option<usize>> = vec![None; keys.len()];
    for (number, change) in scratch.list.iter().enumerate() {
        last[change.key] = Some(number);
    }
    for (place, &at) in order.iter().enumerate() {
        // The later change of equal keys wins. It is passed on to the next position with the same
        // key, so that only the last position keeps one.
        let rivals = order[place + 1..].iter().take_while(|&&to| keys[to].hash == keys[at].hash);
        if let Some(&next) = rivals.into_iter().find(|&&to| keys[to].bytes == keys[at].bytes) {
            last[next] = last[next].max(last[at].take());
        }
    }
    order.iter().filter_map(|&at| last[at].map(|number| &scratch.list[number])).collect()
}
