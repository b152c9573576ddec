//! Side logs: the segments into which a reactor replays records of a migration or a recovery.
//!
//! The segments of a side log join the log when they are spliced. Before, their entries are found
//! through the index and can die as all others; only the cleaner leaves them alone. Spliced
//! segments become ordinary closed ones.
//!
//! For recoveries each reactor has one side log for all ranges. Ranges may be many and small. So
//! each full segment becomes a closed one immediately, and no range has a segment of its own.
//!
//! A reservation sets whole segments aside before a move, so that there is room for an accepted
//! range. A side log takes ordinary segments when its reservation is used up.
#![forbid(unsafe_code)]

use super::{
    Log, OutOfMemory,
    head::{append_replacing, has_room},
    pool::SegmentPurpose,
    segment::OpenSegment,
    state::{ContentKind, Place, SegmentState},
    unsaved::{Backlog, Unsaved},
};
use crate::{
    address::Address,
    sync::atomic::{AtomicUsize, Ordering},
};
use std::{fmt, sync::Arc};
use types::Tenure;
use wire::entry::{Entry, set_tenure};

/// Reserved free segments. Dropping it returns those that were not taken.
pub struct Reservation {
    log: Arc<Log>,
    left: AtomicUsize,
}

impl Reservation {
    pub(super) fn new(log: Arc<Log>, segments: usize) -> Reservation {
        Reservation { log, left: AtomicUsize::new(segments) }
    }

    /// Returns a side log that takes its segments from this reservation first.
    pub fn side_log(self: &Arc<Self>) -> SideLog {
        SideLog::new(Arc::clone(&self.log), Some(Arc::clone(self)), Some(Vec::new()))
    }

    /// Returns the bytes that are still reserved, in whole segments.
    pub fn bytes(&self) -> u64 {
        (self.left.load(Ordering::Relaxed) * self.log.segment_bytes()) as u64
    }

    /// Returns whether the caller may take one of the reserved segments now.
    fn draw(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.log.segments.unreserve(self.left.load(Ordering::Relaxed));
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// One reactor's side log. Dropping it also splices it, because the index may already point into
/// it.
pub struct SideLog {
    log: Arc<Log>,
    reservation: Option<Arc<Reservation>>,
    open: Option<OpenSegment>,
    /// Full segments that wait for the splice; `None` if segments join the log as soon as they
    /// are full.
    full: Option<Vec<Place>>,
    backlog: Backlog,
    content: ContentKind,
    bytes: u64,
}

/// Unsent bytes of side logs that have been spliced.
#[derive(Default)]
pub struct Spliced {
    backlog: Backlog,
}

impl SideLog {
    pub(super) fn new(
        log: Arc<Log>,
        reservation: Option<Arc<Reservation>>,
        full: Option<Vec<Place>>,
    ) -> SideLog {
        let (open, backlog, content) = (None, Backlog::default(), ContentKind::Copies);
        SideLog { log, reservation, open, full, backlog, content, bytes: 0 }
    }

    /// Creates a side log for entries that are not durable elsewhere: its segments join the log
    /// as soon as they are full, and its bytes are sent immediately.
    pub(super) fn of_writes(log: Arc<Log>) -> SideLog {
        let mut side_log = SideLog::new(log, None, None);
        side_log.content = ContentKind::Writes;
        side_log
    }

    /// Appends a copy of an encoded entry, with padding, under another incarnation.
    #[inline]
    pub fn append_encoded(
        &mut self,
        encoded: &[u8],
        tenure: Tenure,
    ) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(encoded.len())?;
        Ok(segment.append(encoded.len(), |out| {
            out.copy_from_slice(encoded);
            set_tenure(out, tenure);
        }))
    }

    /// Appends an entry; see [`super::Head::append_replacing`].
    pub fn append_replacing(&mut self, entry: &mut Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(entry.encoded_bytes())?;
        Ok(append_replacing(segment, entry))
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if self.open.as_ref().is_none_or(|open| bytes > open.space()) {
            self.roll()?;
        }
        debug_assert!(has_room(self.open.as_ref(), bytes), "no room for {bytes} bytes");
        self.bytes += bytes as u64;
        self.open.as_mut().ok_or(OutOfMemory)
    }

    /// Revokes the last appended entry, which was not put into the index; see
    /// [`super::Head::revoke`].
    pub fn revoke(&mut self, last: Address, bytes: u32) {
        let open = self.open.as_mut().expect("it has just been appended to");
        open.revise(last, |entry| set_tenure(entry, Tenure(0)));
        self.log.mark_dead(last, bytes);
    }

    /// Offers the next unsent piece to `save`; see [`super::Head::hand_out`].
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        if !self.log.is_durable() {
            return;
        }
        if self.open.as_ref().is_some_and(OpenSegment::is_ending) {
            self.seal_open();
        }
        let has_ended = match self.content {
            ContentKind::Writes => self.backlog.hand_out(self.open.as_mut(), save),
            ContentKind::Copies => self.backlog.hand_out_piece(self.open.as_mut(), save),
        };
        if has_ended {
            self.log.durable_log().advance();
        }
    }

    /// Closes the open segment, because no records are expected for now.
    pub fn end(&mut self) {
        self.seal_open();
    }

    /// Returns whether all bytes were sent and no segment is open.
    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.backlog.is_empty()
    }

    /// Returns the number of appended bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Joins the segments to the log as ordinary closed ones and moves their unsent bytes to
    /// `to`.
    pub fn splice(mut self, to: &mut Spliced) {
        self.seal_open();
        to.backlog.append(&mut self.backlog);
        assert!(self.is_idle(), "a spliced side log has bytes left");
    }

    fn seal_open(&mut self) {
        if let Some(open) = self.open.take() {
            let place = open.place();
            self.log.seal(open, &mut self.backlog);
            match &mut self.full {
                Some(full) => full.push(place),
                None => self.log.close(place, SegmentState::Side),
            }
        }
    }

    fn roll(&mut self) -> Result<(), OutOfMemory> {
        let purpose = match &self.reservation {
            Some(reservation) if reservation.draw() => SegmentPurpose::Reserved,
            Some(_) | None => SegmentPurpose::Ordinary,
        };
        let next = self.log.open(purpose, SegmentState::Side).ok_or(OutOfMemory)?;
        self.seal_open();
        self.open = Some(self.log.begin(next, self.content));
        Ok(())
    }
}

impl Spliced {
    /// Offers the next unsent piece to `save`; see [`super::Head::hand_out`].
    #[inline]
    pub fn hand_out(&mut self, log: &Log, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        if !self.backlog.is_empty() && self.backlog.hand_out_piece(None, save) {
            log.durable_log().advance();
        }
    }
}

impl Drop for SideLog {
    fn drop(&mut self) {
        self.seal_open();
        for place in self.full.take().into_iter().flatten() {
            self.log.close(place, SegmentState::Side);
        }
    }
}

impl fmt::Debug for SideLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SideLog")
            .field("bytes", &self.bytes)
            .field("full", &self.full)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}
