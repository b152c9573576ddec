//! The steps of every change of a key: the entry is appended, the index pointed at it, and what it
//! replaces counted as dead. The key's leaf is locked throughout.

use super::graves::{Grave, Graves};
use super::store::Store;
use super::view::{Placed, View, kind_of};
use super::worker::Access;
use super::{Key, Stall};
use crate::index::{Kind, LeafGuard, LockError, NoRoom, Word};
use crate::log::{Head, OutOfMemory};
use types::{KeyHash, UnixMillis, Version};
use wire::entry::{Body, Dead, Entry};

/// What it takes to change keys of one table.
pub(super) struct Writer<'w, 't> {
    pub(super) store: &'w Store,
    pub(super) head: &'w mut Head,
    pub(super) graves: &'w mut Graves,
    pub(super) view: View<'t>,
}

impl<'t> Writer<'_, 't> {
    /// Gives the key a value. Nothing has changed if there is no memory.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        (key, access): (Key<'_>, Access<'_>),
        old: Option<Placed>,
        value: (&[u8], Option<UnixMillis>),
    ) -> Result<(), Stall> {
        let mut entry = self.object(key, access, value, old);
        let address = match self.view.log.is_durable() {
            false => self.head.append_one(&entry)?,
            true => self.head.append_replacing(&mut entry)?,
        };
        let word = Word::new(key.hash, kind_of(&entry), address);
        self.link(leaf, key.hash, old, Placed::new(word, &entry))
    }

    /// Takes the key out. Where that has to be remembered, a tombstone takes its place.
    pub(super) fn remove(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        (key, access): (Key<'_>, Access<'_>),
        old: Option<Placed>,
    ) -> Result<(), Stall> {
        match self.removal(key, access, old) {
            Removal::Nothing => {}
            Removal::Unlink(old) => {
                leaf.remove(key.hash, old.word, old.bytes);
                self.view.retire(old);
            }
            Removal::Bury { tombstone, may_arrive } => {
                let address = self.head.append_one_reserved(&tombstone)?;
                let word = Word::new(key.hash, kind_of(&tombstone), address);
                let new = Placed::new(word, &tombstone);
                self.link(leaf, key.hash, old, new)?;
                self.mourn(access, (key.hash, tombstone.version, new), may_arrive);
            }
        }
        Ok(())
    }

    /// What it takes to remove a key. Draws the version: the leaf is locked.
    pub(super) fn removal<'k>(
        &self,
        key: Key<'k>,
        access: Access<'_>,
        old: Option<Placed>,
    ) -> Removal<'k> {
        let may_arrive = access.may_arrive(self.view.table, key.hash);
        let is_needed = match (self.view.log.is_durable(), old.map(|old| old.word.kind())) {
            (true, Some(Kind::Object | Kind::Expiring)) => true,
            // It is removed already.
            (true, Some(Kind::Tombstone)) => return Removal::Nothing,
            (true, None) | (false, _) => may_arrive,
        };
        match old {
            _ if is_needed => {
                Removal::Bury { tombstone: self.tombstone(key, access, old), may_arrive }
            }
            Some(old) => Removal::Unlink(old),
            None => Removal::Nothing,
        }
    }

    /// Sees to it that the word of a tombstone goes in time: of this hash, version and place. What
    /// arrives, or was recovered, may have to be read once more from what its source, or the dead
    /// server, has written: so in a durable store it stays until nothing depends on that.
    pub(super) fn mourn(
        &mut self,
        access: Access<'_>,
        (hash, version, tombstone): (KeyHash, Version, Placed),
        may_arrive: bool,
    ) {
        let table = self.view.table;
        match (access.arrival, access.recovery) {
            (Some(arrival), _) if may_arrive || self.view.log.is_durable() => {
                arrival.note_buried(table, hash);
            }
            (_, Some(recovery)) => recovery.note_buried(&mut vec![(table, hash)]),
            (_, None) => {
                let written = self.view.log.end_of(tombstone.word.address(), tombstone.bytes);
                self.graves.push_back(Grave { table, hash, version, written });
            }
        }
    }

    /// The entry that gives the key a value.
    #[inline]
    pub(super) fn object<'k>(
        &self,
        key: Key<'k>,
        access: Access<'_>,
        (value, expiry): (&'k [u8], Option<UnixMillis>),
        old: Option<Placed>,
    ) -> Entry<'k> {
        let log = self.view.log;
        let replaces = match old {
            Some(old) if log.is_durable() => Some(log.location_of(old.word.address())),
            Some(_) | None => None,
        };
        Entry {
            tenure: access.tenure,
            version: self.store.draw_version(),
            key: key.bytes,
            body: Body::Object { expiry, replaces, value },
        }
    }

    /// The entry that says that the key is gone.
    fn tombstone<'k>(&self, key: Key<'k>, access: Access<'_>, old: Option<Placed>) -> Entry<'k> {
        let location = old.map(|old| self.view.log.location_of(old.word.address()));
        Entry {
            tenure: access.tenure,
            version: self.store.draw_version(),
            key: key.bytes,
            body: Body::Tombstone { dead: location.map_or(Dead::Nothing, Dead::At) },
        }
    }

    /// Points the index at an entry that has been appended.
    #[inline(always)]
    fn link(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        hash: KeyHash,
        old: Option<Placed>,
        new: Placed,
    ) -> Result<(), Stall> {
        match old {
            Some(old) => {
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

/// What it takes to remove a key.
pub(super) enum Removal<'k> {
    /// Nothing: it is not there.
    Nothing,
    /// Its word goes.
    Unlink(Placed),
    /// A tombstone takes its place.
    Bury {
        tombstone: Entry<'k>,
        /// Whether it must stay in the index because something may still arrive.
        may_arrive: bool,
    },
}

impl From<OutOfMemory> for Stall {
    fn from(_: OutOfMemory) -> Stall {
        Stall::OutOfMemory
    }
}

impl From<NoRoom> for Stall {
    fn from(_: NoRoom) -> Stall {
        Stall::OutOfMemory
    }
}

impl From<LockError> for Stall {
    fn from(error: LockError) -> Stall {
        match error {
            LockError::Contended => Stall::Contended,
            LockError::OutOfMemory => Stall::OutOfMemory,
        }
    }
}
