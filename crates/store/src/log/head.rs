//! Who appends to the log: heads, and the cleaner's survivors.
//!
//! Each reactor has its own, so that the write path crosses no core. A head keeps one free segment
//! back from its first day, for deletes: a full server must be able to forget. When the open
//! segment is full and the pool has none for writers, the kept segment is opened, and then takes
//! deletes only, until the pool has a segment again.
#![forbid(unsafe_code)]

use super::{
    Log, OutOfMemory,
    pool::Purpose,
    segment::{OpenSegment, SegmentState},
};
use crate::address::Address;
use std::{fmt, sync::Arc};
use wire::entry::Entry;

/// One reactor's place to append to.
pub struct Head {
    log: Arc<Log>,
    open: Option<OpenSegment>,
    reserve: Reserve,
}

/// The segment that a head keeps back for deletes.
enum Reserve {
    /// Not opened yet: nothing written, no page touched.
    Kept(OpenSegment),
    /// It is the open segment.
    InUse,
    /// The pool had none when the head wanted one.
    Missing,
}

impl Head {
    pub(super) fn new(log: Arc<Log>) -> Head {
        let mut head = Head { log, open: None, reserve: Reserve::Missing };
        head.refill_reserve();
        head
    }

    /// Appends one entry and returns where it stands.
    ///
    /// # Panics
    /// If the entry breaks its limits or does not fit into any segment: our bug.
    #[inline]
    pub fn append_one(&mut self, entry: &Entry<'_>) -> Result<Address, OutOfMemory> {
        let bytes = entry.encoded_bytes();
        let segment = self.segment_for(bytes)?;
        Ok(segment.append(bytes, |out| entry.encode(out)))
    }

    /// Appends the entries, all in one segment and side by side, and adds their addresses to
    /// `addresses`. All or none.
    ///
    /// # Panics
    /// As for one, or if they are together longer than [`Log::batch_bytes_max`]: our bug.
    pub fn append_all(
        &mut self,
        entries: &[Entry<'_>],
        addresses: &mut Vec<Address>,
    ) -> Result<(), OutOfMemory> {
        let bytes = entries.iter().map(Entry::encoded_bytes).sum();
        let segment = self.segment_for(bytes)?;
        addresses.extend(entries.iter().map(|entry| append_entry(segment, entry)));
        Ok(())
    }

    /// As [`Head::append_all`], also from the segment kept back: for entries that make room, that
    /// is, tombstones of records that are here.
    pub fn append_reserved(
        &mut self,
        entries: &[Entry<'_>],
        addresses: &mut Vec<Address>,
    ) -> Result<(), OutOfMemory> {
        let bytes = entries.iter().map(Entry::encoded_bytes).sum();
        let segment = self.segment_for_deletes(bytes)?;
        addresses.extend(entries.iter().map(|entry| append_entry(segment, entry)));
        Ok(())
    }

    /// As [`Head::append_one`], also from the segment kept back; see [`Head::append_reserved`].
    #[inline]
    pub fn append_one_reserved(&mut self, entry: &Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for_deletes(entry.encoded_bytes())?;
        Ok(append_entry(segment, entry))
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        let fits = self.open.as_ref().is_some_and(|open| bytes <= open.space());
        if !fits || !matches!(self.reserve, Reserve::Kept(_)) {
            self.roll(bytes)?;
        }
        self.open.as_mut().ok_or(OutOfMemory)
    }

    #[inline]
    fn segment_for_deletes(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if self.segment_for(bytes).is_err() {
            self.roll_to_reserve(bytes)?;
        }
        self.open.as_mut().ok_or(OutOfMemory)
    }

    /// Makes room for `bytes`. The reserve comes first: a writer gets nothing while it is missing.
    #[inline(never)]
    fn roll(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        assert!(bytes <= self.log.batch_bytes_max(), "a batch of {bytes} bytes fits nowhere");
        self.refill_reserve();
        if !matches!(self.reserve, Reserve::Kept(_)) {
            return Err(OutOfMemory);
        }
        if self.open.as_ref().is_none_or(|open| bytes > open.space()) {
            let next = self.log.open(Purpose::Ordinary, SegmentState::Open).ok_or(OutOfMemory)?;
            self.replace_open(next);
        }
        Ok(())
    }

    /// Makes room for `bytes` of deletes when there is none for writers.
    #[inline(never)]
    fn roll_to_reserve(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if self.open.as_ref().is_some_and(|open| bytes <= open.space()) {
            return Ok(());
        }
        match std::mem::replace(&mut self.reserve, Reserve::InUse) {
            Reserve::Kept(segment) => {
                self.replace_open(segment);
                Ok(())
            }
            was @ (Reserve::InUse | Reserve::Missing) => {
                self.reserve = was;
                let next = self.log.open(Purpose::Ordinary, SegmentState::Open);
                self.replace_open(next.ok_or(OutOfMemory)?);
                Ok(())
            }
        }
    }

    fn refill_reserve(&mut self) {
        if !matches!(self.reserve, Reserve::Kept(_))
            && let Some(segment) = self.log.open(Purpose::Ordinary, SegmentState::Open)
        {
            self.reserve = Reserve::Kept(segment);
        }
    }

    fn replace_open(&mut self, next: OpenSegment) {
        if let Some(full) = self.open.replace(next) {
            self.log.close(full.place(), SegmentState::Open);
        }
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        let kept = match std::mem::replace(&mut self.reserve, Reserve::Missing) {
            Reserve::Kept(segment) => Some(segment),
            Reserve::InUse | Reserve::Missing => None,
        };
        for segment in self.open.take().into_iter().chain(kept) {
            self.log.close(segment.place(), SegmentState::Open);
        }
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("open", &self.open.as_ref().map(OpenSegment::place))
            .finish_non_exhaustive()
    }
}

/// Where one reactor's cleaner puts what lives: verbatim copies, from segments that only cleaners
/// get when memory is short.
pub struct Survivors {
    log: Arc<Log>,
    open: Option<OpenSegment>,
}

impl Survivors {
    pub(super) fn new(log: Arc<Log>) -> Survivors {
        Survivors { log, open: None }
    }

    /// Appends a copy of an encoded entry, padding included. `OutOfMemory` means "later": segments
    /// already cleaned become free after their grace period.
    #[inline]
    pub fn append_encoded(&mut self, encoded: &[u8]) -> Result<Address, OutOfMemory> {
        if self.open.as_ref().is_none_or(|open| encoded.len() > open.space()) {
            self.roll()?;
        }
        let segment = self.open.as_mut().ok_or(OutOfMemory)?;
        Ok(segment.append(encoded.len(), |out| out.copy_from_slice(encoded)))
    }

    fn roll(&mut self) -> Result<(), OutOfMemory> {
        let next = self.log.open(Purpose::Cleaning, SegmentState::Open).ok_or(OutOfMemory)?;
        if let Some(full) = self.open.replace(next) {
            self.log.close(full.place(), SegmentState::Open);
        }
        Ok(())
    }
}

impl Drop for Survivors {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.log.close(open.place(), SegmentState::Open);
        }
    }
}

impl fmt::Debug for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survivors")
            .field("open", &self.open.as_ref().map(OpenSegment::place))
            .finish_non_exhaustive()
    }
}

#[inline]
fn append_entry(segment: &mut OpenSegment, entry: &Entry<'_>) -> Address {
    segment.append(entry.encoded_bytes(), |out| entry.encode(out))
}
