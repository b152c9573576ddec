//! The steps of every change of a key: append the entry, point the index at it, and mark the
//! replaced entry as dead. The caller holds the lock of the key's leaf throughout.

use super::access::Access;
use super::record::{Key, Need, PerKey, TableKey};
use super::stall::Stall;
use super::store::Store;
use super::tablets::TabletMap;
use super::tombstones::{IndexedTombstone, TombstoneQueue};
use super::view::{Placed, View, kind_of};
use crate::index::{LeafGuard, Word, WordKind};
use crate::log::Head;
use planted::Bug;
use std::iter;
use types::{TableId, TypedValue, UnixMillis, Version};
use wire::entry::{Body, Dead, Entry};

/// A key that an operation may change, with the operation's permission.
#[derive(Clone, Copy)]
pub(super) struct WriteTarget<'k, 'm> {
    pub(super) table: TableId,
    pub(super) key: Key<'k>,
    pub(super) access: Access<'m>,
    /// Dependency of the change on the record that it replaces.
    pub(super) need: Need,
}

impl<'k, 'm> WriteTarget<'k, 'm> {
    /// Returns the keys with their permissions, by the states of their tablets alone.
    pub(super) fn of_keys(
        tablets: &'m TabletMap,
        keys: impl Iterator<Item = TableKey<'k>>,
    ) -> Result<PerKey<WriteTarget<'k, 'm>>, Stall> {
        let mut targets = PerKey::with_capacity(keys.size_hint().0);
        for TableKey { table, key } in keys {
            let access = tablets.access(table, key.hash)?;
            targets.push(WriteTarget { table, key, access, need: Need::Records });
        }
        Ok(targets)
    }
}

/// A value to write, with its expiry.
#[derive(Clone, Copy)]
pub(super) struct WriteValue<'k> {
    pub(super) value: TypedValue<'k>,
    /// Expiry time; `None` if the record does not expire.
    pub(super) expiry: Option<UnixMillis>,
}

/// References needed to change keys. The view is that of the keys' table; a batch of several tables
/// has that of any of them, and uses only its log.
pub(super) struct Writer<'w, 't> {
    pub(super) store: &'w Store,
    pub(super) head: &'w mut Head,
    pub(super) tombstones: &'w mut TombstoneQueue,
    pub(super) view: View<'t>,
}

impl<'t> Writer<'_, 't> {
    /// Sets the key's value, and returns the version of the new record. Changes nothing if there is
    /// no memory.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        target: WriteTarget<'_, '_>,
        old: Option<Placed>,
        value: WriteValue<'_>,
    ) -> Result<Version, Stall> {
        let mut entry = self.object(target, value, old, self.store.draw_version());
        debug_assert!(self.is_newer(entry.version, old), "a write has an older version");
        let address = match self.view.log.is_durable() {
            false => self.head.append_one(&entry)?,
            true => self.head.append_replacing(&mut entry)?,
        };
        let hash = target.key.hash;
        let word = Word::new(hash, kind_of(&entry), address);
        self.link(leaf, target, old, Placed::new(word, &entry))?;
        Ok(entry.version)
    }

    /// Removes the key. Leaves a tombstone in its place where one is needed.
    pub(super) fn remove(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        target: WriteTarget<'_, '_>,
        old: Option<Placed>,
    ) -> Result<(), Stall> {
        let hash = target.key.hash;
        match self.removal(target, old, || self.store.draw_version()) {
            Removal::Nothing => {}
            Removal::Unlink(old) => {
                leaf.remove(hash, old.word, old.bytes);
                self.view.retire(old);
            }
            Removal::Tombstone { tombstone, may_arrive } => {
                let address = self.head.append_one_reserved(&tombstone)?;
                let word = Word::new(hash, kind_of(&tombstone), address);
                let new = Placed::new(word, &tombstone);
                self.link(leaf, target, old, new)?;
                self.schedule_word_removal(target, tombstone.version, new, may_arrive);
            }
        }
        Ok(())
    }

    /// Decides how to remove a key. `draw` draws the version of a tombstone, so the leaf must be
    /// locked.
    pub(super) fn removal<'k>(
        &self,
        target: WriteTarget<'k, '_>,
        old: Option<Placed>,
        draw: impl FnOnce() -> Version,
    ) -> Removal<'k> {
        let WriteTarget { table, key, access, .. } = target;
        let may_arrive = access.may_arrive(table, key.hash);
        let is_needed = match (self.view.log.is_durable(), old.map(|old| old.word.kind())) {
            (true, Some(WordKind::Object | WordKind::Expiring)) => true,
            // Removed already.
            (true, Some(WordKind::Tombstone)) => return Removal::Nothing,
            (true, None) | (false, _) => may_arrive,
        };
        match old {
            _ if is_needed => {
                Removal::Tombstone { tombstone: self.tombstone(target, old, draw()), may_arrive }
            }
            Some(old) => Removal::Unlink(old),
            None => Removal::Nothing,
        }
    }

    /// Schedules the removal of a tombstone's index word. A durable store keeps the word while
    /// the range depends on another log (the source's or the dead server's), because an older
    /// record may be read there again. Otherwise the word goes when the tombstone is synced.
    pub(super) fn schedule_word_removal(
        &mut self,
        target: WriteTarget<'_, '_>,
        version: Version,
        tombstone: Placed,
        may_arrive: bool,
    ) {
        let WriteTarget { table, key: Key { hash, .. }, access, .. } = target;
        match (access.arrival, access.recovery) {
            (Some(arrival), _) if may_arrive || self.view.log.is_durable() => {
                arrival.note_tombstone(table, hash);
            }
            (_, Some(recovery)) => recovery.note_tombstone(&mut vec![(table, hash)]),
            (_, None) => {
                let written = self.view.log.end_of(tombstone.word.address(), tombstone.bytes);
                self.tombstones.push(IndexedTombstone { table, hash, version, written });
            }
        }
    }

    /// Returns the entry that sets the key's value. Its version was drawn while the leaf was
    /// locked.
    #[inline]
    pub(super) fn object<'k>(
        &self,
        target: WriteTarget<'k, '_>,
        value: WriteValue<'k>,
        old: Option<Placed>,
        version: Version,
    ) -> Entry<'k> {
        let WriteValue { value, expiry } = value;
        let log = self.view.log;
        let replaces = match old {
            Some(old) if log.is_durable() => Some(log.location_of(old.word.address())),
            Some(_) | None => None,
        };
        Entry {
            incarnation: target.access.incarnation,
            version,
            key: target.key.bytes,
            body: Body::Object { expiry, replaces, value },
        }
    }

    /// Returns whether a drawn version is above that of the replaced entry.
    fn is_newer(&self, drawn: Version, old: Option<Placed>) -> bool {
        let is_newer = |old: Placed| self.view.entry(old.word).version < drawn;
        old.is_none_or(is_newer) || planted::is(Bug::VersionsGoBack)
    }

    /// Returns the tombstone entry for the key.
    fn tombstone<'k>(
        &self,
        target: WriteTarget<'k, '_>,
        old: Option<Placed>,
        version: Version,
    ) -> Entry<'k> {
        let location = old.map(|old| self.view.log.location_of(old.word.address()));
        Entry {
            incarnation: target.access.incarnation,
            version,
            key: target.key.bytes,
            body: Body::Tombstone { dead: location.map_or(Dead::Nothing, Dead::At) },
        }
    }

    /// Points the index at an appended entry and marks the replaced entry as dead.
    #[inline(always)]
    fn link(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        target: WriteTarget<'_, '_>,
        old: Option<Placed>,
        new: Placed,
    ) -> Result<(), Stall> {
        let hash = target.key.hash;
        match old {
            Some(old) => {
                let (replaced, log) = (old.word.address(), self.view.log);
                let depends = target.need == Need::Records && log.is_durable();
                if depends && log.may_be_ordered(replaced, old.bytes) {
                    let replaced = iter::once((replaced, old.bytes));
                    self.head.order(new.word.address(), false, replaced);
                }
                leaf.replace(hash, old.tuple(), new.tuple());
                self.view.retire(old);
            }
            None => {
                if let Err(no_room) = leaf.insert(hash, new.word, new.bytes) {
                    self.head.revoke(new.word.address(), new.bytes);
                    return Err(no_room.into());
                }
            }
        }
        self.view.note(new.word.address(), new.bytes);
        Ok(())
    }
}

/// Steps to remove a key.
pub(super) enum Removal<'k> {
    /// None: the key does not exist.
    Nothing,
    /// Removal of the index word, without a tombstone.
    Unlink(Placed),
    /// Replacement by a tombstone.
    Tombstone {
        tombstone: Entry<'k>,
        /// Set if the tombstone must stay in the index because a record may still arrive.
        may_arrive: bool,
    },
}
