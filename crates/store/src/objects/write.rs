//! The steps of every change of a key: the entry is appended, the index pointed at it, and what it
//! replaces counted as dead. The key's leaf is locked throughout.

use super::store::Store;
use super::view::{Placed, View, kind_of};
use super::worker::Access;
use super::{Key, Stall};
use crate::index::{LeafGuard, LockError, NoRoom, Word};
use crate::log::{Head, OutOfMemory};
use types::{KeyHash, UnixMillis};
use wire::entry::{Body, Entry};

/// What it takes to change keys of one table.
pub(super) struct Writer<'w, 't> {
    pub(super) store: &'w Store,
    pub(super) head: &'w mut Head,
    pub(super) view: View<'t>,
}

impl<'t> Writer<'_, 't> {
    /// Gives the key a value. Nothing has changed if there is no memory.
    #[inline]
    pub(super) fn put(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        (key, access): (Key<'_>, Access<'_>),
        old: Option<Placed>,
        (value, expiry): (&[u8], Option<UnixMillis>),
    ) -> Result<(), Stall> {
        let entry = self.object(key, access, value, expiry);
        let address = self.head.append_one(&entry)?;
        let word = Word::new(key.hash, kind_of(&entry), address);
        self.link(leaf, key.hash, old, Placed::new(word, &entry))
    }

    /// Takes the key out. Where something may still arrive for it, a tombstone takes its place.
    pub(super) fn remove(
        &mut self,
        leaf: &mut LeafGuard<'_>,
        (key, access): (Key<'_>, Access<'_>),
        old: Option<Placed>,
    ) -> Result<(), Stall> {
        match access.arrival {
            Some(arrival) if arrival.may_arrive(self.view.table, key.hash) => {
                let entry = self.tombstone(key, access, old);
                let address = self.head.append_one_reserved(&entry)?;
                let word = Word::new(key.hash, kind_of(&entry), address);
                self.link(leaf, key.hash, old, Placed::new(word, &entry))?;
                arrival.note_buried(self.view.table, key.hash);
            }
            Some(_) | None => {
                if let Some(old) = old {
                    leaf.remove(key.hash, old.word, old.bytes);
                    self.kill(old);
                }
            }
        }
        Ok(())
    }

    /// The entry that gives the key a value.
    #[inline]
    pub(super) fn object<'k>(
        &self,
        key: Key<'k>,
        access: Access<'_>,
        value: &'k [u8],
        expiry: Option<UnixMillis>,
    ) -> Entry<'k> {
        Entry {
            tenure: access.tenure,
            version: self.store.draw_version(),
            key: key.bytes,
            body: Body::Object { expiry, value },
        }
    }

    /// The entry that says that the key is gone.
    pub(super) fn tombstone<'k>(
        &self,
        key: Key<'k>,
        access: Access<'_>,
        old: Option<Placed>,
    ) -> Entry<'k> {
        let dead = old.map(|old| self.view.log.segment_of(old.word.address()));
        Entry {
            tenure: access.tenure,
            version: self.store.draw_version(),
            key: key.bytes,
            body: Body::Tombstone { dead },
        }
    }

    /// Points the index at an entry that has been appended.
    #[inline]
    fn link(
        &self,
        leaf: &mut LeafGuard<'_>,
        hash: KeyHash,
        old: Option<Placed>,
        new: Placed,
    ) -> Result<(), Stall> {
        match old {
            Some(old) => {
                leaf.replace(hash, old.tuple(), new.tuple());
                self.kill(old);
            }
            None => {
                if let Err(no_room) = leaf.insert(hash, new.word, new.bytes) {
                    self.kill(new);
                    return Err(no_room.into());
                }
            }
        }
        Ok(())
    }

    /// Counts an entry as dead that the index does not point at.
    #[inline]
    pub(super) fn kill(&self, dead: Placed) {
        self.view.log.kill(dead.word.address(), dead.bytes);
    }
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
