//! Side logs: where a migration's target puts what it replays, one per reactor and migration.
//!
//! A side log's segments are not the log's until they are spliced. Its entries are found through
//! the index like all others, and die like all others; only the cleaner leaves them alone. With
//! replication, splicing is one entry of the log directory; without it, the segments simply become
//! closed ones.
//!
//! A reservation sets whole segments aside before the move, so that a range that was accepted also
//! finds room. Side logs that draw from it fall back on ordinary segments when it is used up.
#![forbid(unsafe_code)]

use super::{
    Log, OutOfMemory,
    pool::Purpose,
    segment::{OpenSegment, Place, SegmentState},
};
use crate::{
    address::Address,
    sync::atomic::{AtomicUsize, Ordering},
};
use std::{fmt, sync::Arc};
use types::Tenure;
use wire::entry::set_tenure;

/// Free segments set aside. What was not taken goes back when it is dropped.
pub struct Reservation {
    log: Arc<Log>,
    left: AtomicUsize,
}

impl Reservation {
    pub(super) fn new(log: Arc<Log>, segments: usize) -> Reservation {
        Reservation { log, left: AtomicUsize::new(segments) }
    }

    /// A side log that takes its segments from here first.
    pub fn side_log(self: &Arc<Self>) -> SideLog {
        SideLog::new(Arc::clone(&self.log), Some(Arc::clone(self)))
    }

    /// Bytes that are still set aside, in whole segments.
    pub fn bytes(&self) -> u64 {
        (self.left.load(Ordering::Relaxed) * self.log.segment_bytes()) as u64
    }

    /// Whether one of the segments set aside is the caller's to take now.
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

/// One reactor's part of what a migration brings. Dropping it splices it, too: the index may
/// already point into it.
pub struct SideLog {
    log: Arc<Log>,
    reservation: Option<Arc<Reservation>>,
    open: Option<OpenSegment>,
    full: Vec<Place>,
    bytes: u64,
}

impl SideLog {
    pub(super) fn new(log: Arc<Log>, reservation: Option<Arc<Reservation>>) -> SideLog {
        SideLog { log, reservation, open: None, full: Vec::new(), bytes: 0 }
    }

    /// Appends a copy of an encoded entry, padding included, under another tenure.
    #[inline]
    pub fn append_encoded(
        &mut self,
        encoded: &[u8],
        tenure: Tenure,
    ) -> Result<Address, OutOfMemory> {
        if self.open.as_ref().is_none_or(|open| encoded.len() > open.space()) {
            self.roll()?;
        }
        let segment = self.open.as_mut().ok_or(OutOfMemory)?;
        self.bytes += encoded.len() as u64;
        Ok(segment.append(encoded.len(), |out| {
            out.copy_from_slice(encoded);
            set_tenure(out, tenure);
        }))
    }

    /// Bytes appended so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its segments become ordinary closed ones.
    pub fn splice(self) {
        drop(self);
    }

    fn roll(&mut self) -> Result<(), OutOfMemory> {
        let purpose = match &self.reservation {
            Some(reservation) if reservation.draw() => Purpose::Reserved,
            Some(_) | None => Purpose::Ordinary,
        };
        let next = self.log.open(purpose, SegmentState::Side).ok_or(OutOfMemory)?;
        self.full.extend(self.open.replace(next).map(|full| full.place()));
        Ok(())
    }
}

impl Drop for SideLog {
    fn drop(&mut self) {
        self.full.extend(self.open.take().map(|open| open.place()));
        for place in self.full.drain(..) {
            self.log.close(place, SegmentState::Side);
        }
    }
}

impl fmt::Debug for SideLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SideLog")
            .field("bytes", &self.bytes)
            .field("segments", &(self.full.len() + usize::from(self.open.is_some())))
            .finish_non_exhaustive()
    }
}
