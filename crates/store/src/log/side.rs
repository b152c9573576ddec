//! Side logs: the segments into which a reactor replays records of a migration or a recovery. See
//! `docs/design/log.md`, "Side logs and reservations".
//!
//! For recoveries each reactor has one side log for all ranges. Ranges may be many and small. So
//! each full segment becomes a closed one immediately, and no range has a segment of its own.

use super::appender::{Appender, Pace, append_replacing};
use super::pool::SegmentPurpose;
use super::segment::OpenSegment;
use super::state::{ContentKind, SegmentState};
use super::unsaved::{Backlog, Unsaved};
use super::{Log, OutOfMemory};
use crate::address::Address;
use crate::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use types::Incarnation;
use wire::entry::{Entry, set_incarnation};

/// Reserved free segments. Dropping it returns those that were not taken.
pub struct Reservation {
    log: Arc<Log>,
    left: AtomicUsize,
}

impl Reservation {
    pub(super) fn new(log: Arc<Log>, segments: usize) -> Reservation {
        Reservation { log, left: AtomicUsize::new(segments) }
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

/// One reactor's side log. Dropping it also splices it, because the index may already point into
/// it.
pub struct SideLog {
    appender: Appender,
    reservation: Option<Arc<Reservation>>,
    pace: Pace,
    bytes: u64,
}

/// Kind of records in a side log.
#[derive(Clone)]
pub enum SideLogKind {
    /// Records of a migration. Segments come from the reservation first, if there is one, and
    /// join the log when the side log is spliced.
    Arriving(Option<Arc<Reservation>>),
    /// Recovered records that are durable elsewhere. Each full segment joins the log immediately.
    Recovered,
    /// Recovered records that are not durable anywhere else. As `Recovered`, and the bytes are
    /// sent immediately.
    Divergent,
}

impl SideLog {
    pub(super) fn new(log: Arc<Log>, kind: SideLogKind) -> SideLog {
        let (content, pace) = match kind {
            SideLogKind::Arriving(_) | SideLogKind::Recovered => {
                (ContentKind::Copies, Pace::Piecewise)
            }
            SideLogKind::Divergent => (ContentKind::Writes, Pace::Immediate(None)),
        };
        let (joins_late, reservation) = match kind {
            SideLogKind::Arriving(reservation) => (true, reservation),
            SideLogKind::Recovered | SideLogKind::Divergent => (false, None),
        };
        let appender = Appender::of_side_log(log, content, joins_late);
        SideLog { appender, reservation, pace, bytes: 0 }
    }

    /// Appends a copy of an encoded entry, with padding, under another incarnation.
    #[inline]
    pub fn append_encoded(
        &mut self,
        encoded: &[u8],
        incarnation: Incarnation,
    ) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(encoded.len())?;
        Ok(segment.append(encoded.len(), |out| {
            out.copy_from_slice(encoded);
            set_incarnation(out, incarnation);
        }))
    }

    /// Appends an entry; see [`super::Head::append_replacing`].
    pub fn append_replacing(&mut self, entry: &mut Entry<'_>) -> Result<Address, OutOfMemory> {
        let segment = self.segment_for(entry.encoded_bytes())?;
        Ok(append_replacing(segment, entry))
    }

    #[inline]
    fn segment_for(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        if !self.appender.has_room(bytes) {
            self.roll()?;
        }
        self.bytes += bytes as u64;
        self.appender.segment(bytes)
    }

    #[inline(never)]
    fn roll(&mut self) -> Result<(), OutOfMemory> {
        let purpose = match &self.reservation {
            Some(reservation) if reservation.draw() => SegmentPurpose::Reserved,
            Some(_) | None => SegmentPurpose::Other,
        };
        let next = self.appender.log.open(purpose, SegmentState::Side).ok_or(OutOfMemory)?;
        self.appender.close();
        self.appender.continue_in(next);
        Ok(())
    }

    /// Gives the index one of the reserved segments, because it has found no memory elsewhere.
    /// Returns whether there was one.
    pub fn lend_to_index(&mut self) -> bool {
        let is_drawn = self.reservation.as_ref().is_some_and(|reservation| reservation.draw());
        if is_drawn {
            self.appender.log.lend_to_index();
        }
        is_drawn
    }

    /// Revokes the last appended entry, which was not put into the index; see
    /// [`super::Head::revoke`].
    pub fn revoke(&mut self, last: Address, bytes: u32) {
        self.appender.revoke(last, bytes);
    }

    /// Offers the next unsent piece to `save`; see [`super::Head::hand_out`].
    pub fn hand_out(&mut self, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        self.appender.hand_out(self.pace, save);
    }

    /// Closes the open segment, because no records are expected for now.
    pub fn end(&mut self) {
        self.appender.close();
    }

    /// Returns whether all bytes were sent and no segment is open.
    pub fn is_idle(&self) -> bool {
        self.appender.is_idle()
    }

    /// Returns the number of appended bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Joins the segments to the log as ordinary closed ones and moves their unsent bytes to
    /// `to`.
    pub fn splice(mut self, to: &mut Backlog) {
        self.appender.end_into(to);
    }
}
