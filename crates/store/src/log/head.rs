//! The writers of the log: heads, and the cleaner's survivors.
//!
//! Each reactor has its own, so that the write path crosses no core. A head reserves one free
//! segment for deletes when it is created, because a full server must be able to delete. If the
//! open segment is full and the pool has none for writers, the head opens the reserved segment.
//! It then takes deletes only, until the pool has a segment again.
#![forbid(unsafe_code)]

use super::{
    Log, OutOfMemory,
    pool::SegmentPurpose,
    segment::OpenSegment,
    state::{ContentKind, SegmentState},
    unsaved::{Backlog, Unsaved},
};
use crate::address::Address;
use std::{fmt, sync::Arc};
use types::{SegmentId, Tenure};
use wire::entry::{Body, Entry, NOTE_BYTES, set_tenure};

/// Append position of one reactor.
pub struct Head {
    log: Arc<Log>,
    open: Option<OpenSegment>,
    reserve: Reserve,
    backlog: Backlog,
}

/// State of the segment that a head reserves for deletes.
enum Reserve {
    /// Not opened yet: not written to, no page touched.
    Kept(OpenSegment),
    /// In use as the open segment.
    InUse,
    /// Not available: the pool had none.
    Missing,
}

impl Head {
    pub(super) fn new(log: Arc<Log>) -> Head {
        let mut head =
            Head { log, open: None, reserve: Reserve::Missing, backlog: Backlog::default() };
        head.refill_reserve();
        head
    }

    /// Appends one entry and returns its address.
    ///
    /// # Panics
    /// If the entry exceeds its limits or does not fit into any segment: a bug of the caller.
    #[inline]
    pub fn append_one(&mut self, entry: &Entry<'_>) -> Result<Address, OutOfMemory> {
        let bytes = entry.encoded_bytes();
        let segment = self.segment_for(bytes)?;
        Ok(segment.append(bytes, |out| entry.encode(out)))
    }

    /// Does the same as [`Head::append_one`] for an object that names the entry that it replaces.
    /// Clears the name if that entry is in the same segment, where it is not needed.
    pub fn append_replacing(&mut self, entry: &mut Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(entry.encoded_bytes())?;
        Ok(append_replacing(segment, entry))
    }

    /// Appends the entries contiguously in one segment, and adds their addresses to `addresses`.
    /// Appends all or none. Names of replaced entries are treated as by
    /// [`Head::append_replacing`].
    ///
    /// # Panics
    /// As for one entry, or if they are together longer than [`Log::batch_bytes_max`]: a bug of
    /// the caller.
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

    /// Does the same as [`Head::append_all`], but may use the reserved segment. For entries that
    /// free memory: tombstones of present records.
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

    /// Does the same as [`Head::append_one`], but may use the reserved segment; see
    /// [`Head::append_reserved`].
    #[inline]
    pub fn append_one_reserved(&mut self, entry: &Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for_deletes(entry.encoded_bytes())?;
        Ok(append_entry(segment, entry))
    }

    /// Revokes the last appended entry, which was not put into the index: marks it as dead, and
    /// voids it so that recovery ignores it.
    pub fn revoke(&mut self, last: Address, bytes: u32) {
        let open = self.open.as_mut().expect("it has just been appended to");
        open.revise(last, |entry| set_tenure(entry, Tenure(0)));
        self.log.mark_dead(last, bytes);
    }

    /// Returns whether appended bytes were not sent yet.
    pub fn has_unsaved(&self) -> bool {
        let is_open_done = self.open.as_ref().is_none_or(|open| !open.has_unsaved());
        self.log.is_durable() && !(self.backlog.is_empty() && is_open_done)
    }

    /// Offers the unsent bytes to `save`. Bytes that `save` takes count as sent; others are
    /// offered again. Does nothing in a log that is not durable.
    #[inline]
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        self.backlog.hand_out_all(&self.log, &mut self.open, save);
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        let fits = self.open.as_ref().is_some_and(|open| bytes <= open.space());
        if !fits || !matches!(self.reserve, Reserve::Kept(_)) {
            self.roll(bytes)?;
        }
        debug_assert!(has_room(self.open.as_ref(), bytes), "no room for {bytes} bytes");
        self.open.as_mut().ok_or(OutOfMemory)
    }

    #[inline]
    fn segment_for_deletes(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if self.segment_for(bytes).is_err() {
            self.roll_to_reserve(bytes)?;
        }
        debug_assert!(has_room(self.open.as_ref(), bytes), "no room for {bytes} bytes to delete");
        self.open.as_mut().ok_or(OutOfMemory)
    }

    /// Makes room for `bytes`. The reserve is refilled first: a writer gets no segment while it
    /// is missing.
    #[inline(never)]
    fn roll(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        assert!(bytes <= self.log.batch_bytes_max(), "a batch of {bytes} bytes fits nowhere");
        self.refill_reserve();
        if !matches!(self.reserve, Reserve::Kept(_)) {
            return Err(OutOfMemory);
        }
        if self.open.as_ref().is_none_or(|open| bytes > open.space()) {
            let next =
                self.log.open(SegmentPurpose::Ordinary, SegmentState::Open).ok_or(OutOfMemory)?;
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
                let next = self.log.open(SegmentPurpose::Ordinary, SegmentState::Open);
                self.replace_open(next.ok_or(OutOfMemory)?);
                Ok(())
            }
        }
    }

    fn refill_reserve(&mut self) {
        if !matches!(self.reserve, Reserve::Kept(_))
            && let Some(segment) = self.log.open(SegmentPurpose::Ordinary, SegmentState::Open)
        {
            self.reserve = Reserve::Kept(segment);
        }
    }

    fn replace_open(&mut self, next: OpenSegment) {
        let next = self.log.begin(next, ContentKind::Writes);
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

/// The survivors of cleaning: destination of one reactor's live copies. It takes segments that
/// only cleaners get when memory is short.
pub struct Survivors {
    log: Arc<Log>,
    open: Option<OpenSegment>,
    /// Source segment of the last copy-origin note in the open segment.
    noted: Option<SegmentId>,
    backlog: Backlog,
}

impl Survivors {
    pub(super) fn new(log: Arc<Log>) -> Survivors {
        Survivors { log, open: None, noted: None, backlog: Backlog::default() }
    }

    /// Appends a copy of an encoded entry, with padding. `OutOfMemory` means "retry later":
    /// segments that were already cleaned become free after their grace period.
    #[inline]
    pub fn append_encoded(&mut self, encoded: &[u8]) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(encoded.len())?;
        Ok(segment.append(encoded.len(), |out| out.copy_from_slice(encoded)))
    }

    /// Does the same as [`Survivors::append_encoded`] for a live entry of the segment `from`. A
    /// durable log also records this origin, because `from` must leave the log first.
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

    /// Offers the unsent bytes to `save`; see [`Head::hand_out`].
    #[inline]
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        self.backlog.hand_out_all(&self.log, &mut self.open, save);
    }

    /// Appends a copy-origin note: the following entries of the open segment may be copies from
    /// `from`.
    fn append_note(&mut self, from: SegmentId) -> Result<(), OutOfMemory> {
        let note = append_entry(self.segment_for(NOTE_BYTES)?, &Entry::note(from));
        let into = self.log.segment_of(note);
        assert!(into != from, "entries of {from} are copied into itself");
        self.log.durable_log().note_origin(into, from);
        self.log.mark_dead(note, NOTE_BYTES as u32);
        self.noted = Some(from);
        Ok(())
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if self.open.as_ref().is_none_or(|open| bytes > open.space()) {
            self.roll()?;
        }
        debug_assert!(has_room(self.open.as_ref(), bytes), "no room for {bytes} bytes to copy");
        self.open.as_mut().ok_or(OutOfMemory)
    }

    fn roll(&mut self) -> Result<(), OutOfMemory> {
        let next =
            self.log.open(SegmentPurpose::Cleaning, SegmentState::Open).ok_or(OutOfMemory)?;
        let next = self.log.begin(next, ContentKind::Copies);
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

/// Appends an object. Clears the name of the replaced entry if that is in the same segment.
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

/// Returns whether the open segment has room for `bytes`.
pub(super) fn has_room(open: Option<&OpenSegment>, bytes: usize) -> bool {
    open.is_some_and(|open| bytes <= open.space())
}
