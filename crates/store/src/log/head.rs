//! The writers of the log: heads, and the cleaner's survivors. Each reactor has its own, so that
//! the write path crosses no core. `docs/design/log.md`, "Deletes", explains the reserve of a
//! head.

use super::appender::{Appender, Pace, append_entry, append_replacing};
use super::pool::SegmentPurpose;
use super::safety::Dependency;
use super::segment::OpenSegment;
use super::send_order::{SendBarriers, SendLimit};
use super::state::{ContentKind, SegmentState};
use super::unsaved::Unsaved;
use super::{Log, OutOfMemory};
use crate::address::Address;
use crate::sync::atomic::Ordering;
use planted::Bug;
use std::sync::Arc;
use types::SegmentId;
use wire::entry::{Entry, NOTE_BYTES};

/// Append position of one reactor.
pub struct Head {
    appender: Appender,
    /// Set if the pool keeps a segment for this head's deletes.
    has_reserve: bool,
    barriers: SendBarriers,
}

impl Head {
    pub(super) fn new(log: Arc<Log>) -> Head {
        let appender = Appender::new(log, ContentKind::Writes);
        let mut head = Head { appender, has_reserve: false, barriers: SendBarriers::default() };
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

    /// Appends the entries, which have `bytes` bytes together, contiguously in one segment, and
    /// passes their addresses to `appended`. Appends all or none. Names of replaced entries are
    /// treated as by [`Head::append_replacing`].
    ///
    /// # Panics
    /// As for one entry, or if they are together longer than [`Log::batch_bytes_max`]: a bug of
    /// the caller.
    pub fn append_all<'e, 'k: 'e>(
        &mut self,
        bytes: usize,
        entries: impl Iterator<Item = &'e mut Entry<'k>>,
        appended: impl FnMut(Address),
    ) -> Result<(), OutOfMemory> {
        let segment = self.segment_for(bytes)?;
        append_batch(segment, bytes, entries, appended);
        Ok(())
    }

    /// Does the same as [`Head::append_all`], but may use the reserved segment. For entries that
    /// free memory: tombstones of present records.
    pub fn append_reserved<'e, 'k: 'e>(
        &mut self,
        bytes: usize,
        entries: impl Iterator<Item = &'e mut Entry<'k>>,
        appended: impl FnMut(Address),
    ) -> Result<(), OutOfMemory> {
        let segment = self.segment_for_deletes(bytes)?;
        append_batch(segment, bytes, entries, appended);
        Ok(())
    }

    /// Does the same as [`Head::append_one`], but may use the reserved segment; see
    /// [`Head::append_reserved`].
    #[inline]
    pub fn append_one_reserved(&mut self, entry: &Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for_deletes(entry.encoded_bytes())?;
        Ok(append_entry(segment, entry))
    }

    /// Orders the entries from `first` on, which have just been appended and are in no index yet,
    /// behind the entries that they depend on (see `send_order.rs`): the bytes from `first` on are
    /// sent when `read`, entries with their lengths in bytes, are acknowledged. `is_batch` tells
    /// that several entries were appended. The log is durable.
    pub(crate) fn order(
        &mut self,
        first: Address,
        is_batch: bool,
        read: impl Iterator<Item = (Address, u32)>,
    ) {
        let segments = &self.appender.log.segments;
        let own = segments.place_of(first);
        let (mut is_ordered, mut after) = (is_batch, None);
        for (address, bytes) in read {
            if !segments.may_be_shown(address, bytes) {
                is_ordered = true;
                if segments.place_of(address) != own {
                    Dependency::add(&mut after, segments.end_of(address, bytes));
                }
            }
        }
        if is_ordered {
            segments.set_ordered(own, self.appender.open_bytes());
        }
        if let Some(after) = after
            && !planted::is(Bug::SentBeforeItsSource)
        {
            let from = segments.offset(first);
            self.barriers.add(SendLimit { segment: segments.id(own), from }, after);
        }
    }

    /// Revokes the last appended entry, which was not put into the index: marks it as dead, and
    /// voids it so that recovery ignores it.
    pub fn revoke(&mut self, last: Address, bytes: u32) {
        self.appender.revoke(last, bytes);
    }

    /// Returns whether appended bytes were not sent yet.
    pub fn has_unsaved(&self) -> bool {
        self.appender.has_unsaved()
    }

    /// Offers the unsent bytes to `save`. Bytes that `save` takes count as sent; others are
    /// offered again. Does nothing in a log that is not durable.
    #[inline]
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        let until = self.barriers.first(&self.appender.log.segments);
        self.appender.hand_out(Pace::Immediate(until), save);
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if !self.appender.has_room(bytes) || !self.has_reserve {
            self.roll(bytes)?;
        }
        self.appender.segment(bytes)
    }

    #[inline]
    fn segment_for_deletes(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if self.segment_for(bytes).is_err() {
            self.roll_to_reserve(bytes)?;
        }
        self.appender.segment(bytes)
    }

    /// Makes room for `bytes`. The reserve is refilled first: a writer gets no segment while it
    /// is missing.
    #[inline(never)]
    fn roll(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let bytes_max = self.appender.log.batch_bytes_max();
        assert!(bytes <= bytes_max, "a batch of {bytes} bytes fits nowhere");
        self.refill_reserve();
        if !self.has_reserve {
            return Err(OutOfMemory);
        }
        if !self.appender.has_room(bytes) {
            let next = self.appender.log.open(SegmentPurpose::Writes, SegmentState::Open);
            self.appender.continue_in(next.ok_or(OutOfMemory)?);
        }
        Ok(())
    }

    /// Makes room for `bytes` of deletes when there is none for writers.
    #[inline(never)]
    fn roll_to_reserve(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        if self.appender.has_room(bytes) {
            return Ok(());
        }
        let purpose =
            if self.has_reserve { SegmentPurpose::Deletes } else { SegmentPurpose::Other };
        let next = self.appender.log.open(purpose, SegmentState::Open).ok_or(OutOfMemory)?;
        self.has_reserve = false;
        self.appender.continue_in(next);
        Ok(())
    }

    fn refill_reserve(&mut self) {
        self.has_reserve = self.has_reserve || self.appender.log.segments.keep_for_deletes();
    }
}

/// Appends the entries of a batch to a segment with room for all of them.
fn append_batch<'e, 'k: 'e>(
    segment: &mut OpenSegment,
    bytes: usize,
    entries: impl Iterator<Item = &'e mut Entry<'k>>,
    mut appended: impl FnMut(Address),
) {
    let before = segment.written();
    entries.for_each(|entry| appended(append_replacing(segment, entry)));
    let written = (segment.written() - before) as usize;
    assert!(written <= bytes, "a batch has {written} bytes, and room was made for {bytes}");
}

impl Drop for Head {
    fn drop(&mut self) {
        if self.has_reserve {
            self.appender.log.segments.release_for_deletes();
        }
    }
}

/// The survivors of cleaning: destination of one reactor's live copies. It takes segments that
/// only cleaners get when memory is short.
pub struct Survivors {
    appender: Appender,
    /// Source segment of the last copy-origin note in the open segment.
    noted: Option<SegmentId>,
}

impl Survivors {
    pub(super) fn new(log: Arc<Log>) -> Survivors {
        Survivors { appender: Appender::new(log, ContentKind::Copies), noted: None }
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
        let is_durable = self.appender.log.is_durable();
        let is_noted = self.noted == Some(from) || !is_durable;
        let note = if is_noted { 0 } else { NOTE_BYTES };
        self.segment_for(note + encoded.len())?;
        if is_durable && self.noted != Some(from) {
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
        self.appender.hand_out(Pace::Immediate(None), save);
    }

    /// Appends a copy-origin note: the following entries of the open segment may be copies from
    /// `from`.
    fn append_note(&mut self, from: SegmentId) -> Result<(), OutOfMemory> {
        let note = append_entry(self.segment_for(NOTE_BYTES)?, &Entry::note(from));
        let log = &self.appender.log;
        let into = log.segment_of(note);
        assert!(into != from, "entries of {from} are copied into itself");
        log.durable_log().registry.note_origin(into, from);
        log.mark_dead(note, NOTE_BYTES as u32);
        self.noted = Some(from);
        Ok(())
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if !self.appender.has_room(bytes) {
            let log = &self.appender.log;
            let next = log.open(SegmentPurpose::Cleaning, SegmentState::Open).ok_or(OutOfMemory)?;
            let copied = u64::from(self.appender.open_bytes());
            log.copied.fetch_add(copied, Ordering::Relaxed);
            self.appender.continue_in(next);
            self.noted = None;
        }
        self.appender.segment(bytes)
    }
}
