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
    segment::{Content, OpenSegment, SegmentState},
    unsaved::{Backlog, Unsaved},
};
use crate::address::Address;
use std::{fmt, sync::Arc};
use types::{SegmentId, Tenure};
use wire::entry::{Body, Entry, NOTE_BYTES, set_tenure};

/// One reactor's place to append to.
pub struct Head {
    log: Arc<Log>,
    open: Option<OpenSegment>,
    reserve: Reserve,
    backlog: Backlog,
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
        let mut head =
            Head { log, open: None, reserve: Reserve::Missing, backlog: Backlog::default() };
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

    /// As [`Head::append_one`] for an object that names what it replaces. It need not name what
    /// stands in the segment that it comes into: then it does not.
    pub fn append_replacing(&mut self, entry: &mut Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(entry.encoded_bytes())?;
        Ok(append_replacing(segment, entry))
    }

    /// Appends the entries, all in one segment and side by side, and adds their addresses to
    /// `addresses`. All or none. What they replace is told as by [`Head::append_replacing`].
    ///
    /// # Panics
    /// As for one, or if they are together longer than [`Log::batch_bytes_max`]: our bug.
    pub fn append_all(
        &mut self,
        entries: &mut [Entry<'_>],
        addresses: &mut Vec<Address>,
    ) -> Result<(), OutOfMemory> {
        let bytes = entries.iter().map(Entry::encoded_bytes).sum();
        let segment = self.segment_for(bytes)?;
        addresses.extend(entries.iter_mut().map(|entry| append_replacing(segment, entry)));
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

    /// The last entry appended has not come into the index: it is dead, and after a crash it must not
    /// count either.
    pub fn revoke(&mut self, last: Address, bytes: u32) {
        let open = self.open.as_mut().expect("it has just been appended to");
        open.revise(last, |entry| set_tenure(entry, Tenure(0)));
        self.log.kill(last, bytes);
    }

    /// Returns whether something was appended and not given to the replicas yet.
    pub fn has_unsaved(&self) -> bool {
        let is_open_done = self.open.as_ref().is_none_or(|open| !open.has_unsaved());
        self.log.is_durable() && !(self.backlog.is_empty() && is_open_done)
    }

    /// Shows what has not been given to the replicas. What `save` takes is not shown again; what
    /// it leaves comes again. Nothing of a log that is not durable.
    #[inline]
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        if !self.log.is_durable() {
            return;
        }
        if let Some(ended) = self.open.take_if(|open| open.is_ending()) {
            self.log.end(ended, &mut self.backlog);
        }
        let is_all = self.backlog.is_empty();
        if !(is_all && self.open.as_ref().is_none_or(|open| !open.has_unsaved()))
            && self.backlog.hand_out(self.open.as_mut(), save)
        {
            self.log.advance();
        }
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
        let next = self.log.begin(next, Content::Writes);
        if let Some(full) = self.open.replace(next) {
            self.log.end(full, &mut self.backlog);
        }
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.reserve, Reserve::Missing) {
            Reserve::Kept(segment) => self.log.discard(segment),
            Reserve::InUse | Reserve::Missing => {}
        }
        if let Some(open) = self.open.take() {
            self.log.end(open, &mut self.backlog);
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
    /// The segment whose copies the open one was last said to hold.
    noted: Option<SegmentId>,
    backlog: Backlog,
}

impl Survivors {
    pub(super) fn new(log: Arc<Log>) -> Survivors {
        Survivors { log, open: None, noted: None, backlog: Backlog::default() }
    }

    /// Appends a copy of an encoded entry, padding included. `OutOfMemory` means "later": segments
    /// already cleaned become free after their grace period.
    #[inline]
    pub fn append_encoded(&mut self, encoded: &[u8]) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(encoded.len())?;
        Ok(segment.append(encoded.len(), |out| out.copy_from_slice(encoded)))
    }

    /// As [`Survivors::append_encoded`] for an entry that stands in the segment `from`, which a
    /// durable log must not forget: `from` must leave the log first.
    #[inline]
    pub fn append_copy(&mut self, encoded: &[u8], from: SegmentId) -> Result<Address, OutOfMemory> {
        let is_noted = self.noted == Some(from) || !self.log.is_durable();
        let note = if is_noted { 0 } else { NOTE_BYTES };
        self.segment_for(note + encoded.len())?;
        if self.log.is_durable() && self.noted != Some(from) {
            self.append_note(from)?;
        }
        self.append_encoded(encoded)
    }

    /// Appends an entry.
    pub fn append_one(&mut self, entry: &Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(entry.encoded_bytes())?;
        Ok(append_entry(segment, entry))
    }

    /// Shows what has not been given to the replicas; see [`Head::hand_out`].
    #[inline]
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        if !self.log.is_durable() {
            return;
        }
        if let Some(ended) = self.open.take_if(|open| open.is_ending()) {
            self.log.end(ended, &mut self.backlog);
        }
        let is_all = self.backlog.is_empty();
        if !(is_all && self.open.as_ref().is_none_or(|open| !open.has_unsaved()))
            && self.backlog.hand_out(self.open.as_mut(), save)
        {
            self.log.advance();
        }
    }

    /// Says in the open segment that what follows may be copies from this one.
    fn append_note(&mut self, from: SegmentId) -> Result<(), OutOfMemory> {
        let note = append_entry(self.segment_for(NOTE_BYTES)?, &Entry::note(from));
        self.log.note_origin(self.log.segment_of(note), from);
        self.log.kill(note, NOTE_BYTES as u32);
        self.noted = Some(from);
        Ok(())
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if self.open.as_ref().is_none_or(|open| bytes > open.space()) {
            self.roll()?;
        }
        self.open.as_mut().ok_or(OutOfMemory)
    }

    fn roll(&mut self) -> Result<(), OutOfMemory> {
        let next = self.log.open(Purpose::Cleaning, SegmentState::Open).ok_or(OutOfMemory)?;
        let next = self.log.begin(next, Content::Copies);
        self.noted = None;
        if let Some(full) = self.open.replace(next) {
            self.log.end(full, &mut self.backlog);
        }
        Ok(())
    }
}

impl Drop for Survivors {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            self.log.end(open, &mut self.backlog);
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

/// Appends an object without naming what stands in its own segment.
#[inline]
pub(super) fn append_replacing(segment: &mut OpenSegment, entry: &mut Entry<'_>) -> Address {
    if let Body::Object { replaces: replaces @ Some(_), .. } = &mut entry.body {
        *replaces = replaces.filter(|location| location.segment != segment.id());
    }
    append_entry(segment, entry)
}

#[inline]
fn append_entry(segment: &mut OpenSegment, entry: &Entry<'_>) -> Address {
    segment.append(entry.encoded_bytes(), |out| entry.encode(out))
}
