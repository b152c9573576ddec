//! The [`Appender`]: the open segment of one writer, and its full segments.
//!
//! A head, the cleaner's survivors and a side log are writers. They differ in the free segments
//! that they may take, which they open themselves, and in the time at which a full segment joins
//! the log.

use super::segment::OpenSegment;
use super::send_order::SendLimit;
use super::state::{ContentKind, Place, SegmentState};
use super::unsaved::{Backlog, Unsaved};
use super::{Log, OutOfMemory};
use crate::address::Address;
use std::sync::Arc;
use types::Incarnation;
use wire::entry::{Body, Entry, set_incarnation};

/// The segments of one writer. Dropping it adds all of them to the log.
pub(super) struct Appender {
    pub(super) log: Arc<Log>,
    content: ContentKind,
    /// State of the segments until they join the log.
    state: SegmentState,
    open: Option<OpenSegment>,
    /// Full segments that wait for [`Appender`]'s end; `None` if a segment joins the log as soon
    /// as it is full.
    full: Option<Vec<Place>>,
    backlog: Backlog,
}

/// The order in which unsent bytes are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// All bytes up to the limit immediately.
    Immediate(Option<SendLimit>),
    /// One piece after the other; see [`Backlog::hand_out_piece`].
    Piecewise,
}

impl Appender {
    /// Creates an appender without segments, each of which joins the log as soon as it is full.
    pub(super) fn new(log: Arc<Log>, content: ContentKind) -> Appender {
        let (state, backlog) = (SegmentState::Open, Backlog::default());
        Appender { log, content, state, open: None, full: None, backlog }
    }

    /// Creates an appender of a side log. If `joins_late` is set, its segments join the log when
    /// the appender is dropped.
    pub(super) fn of_side_log(log: Arc<Log>, content: ContentKind, joins_late: bool) -> Appender {
        let mut appender = Appender::new(log, content);
        appender.state = SegmentState::Side;
        appender.full = joins_late.then(Vec::new);
        appender
    }

    /// Returns whether the open segment has room for `bytes`.
    #[inline]
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.open.as_ref().is_some_and(|open| bytes <= open.space())
    }

    /// Returns the open segment, in which the caller has made room for `bytes`.
    #[inline]
    pub(super) fn segment(&mut self, bytes: usize) -> Result<&mut OpenSegment, OutOfMemory> {
        debug_assert!(self.has_room(bytes), "no room for {bytes} bytes");
        self.open.as_mut().ok_or(OutOfMemory)
    }

    /// Returns the number of bytes in the open segment.
    pub(super) fn open_bytes(&self) -> u32 {
        self.open.as_ref().map_or(0, OpenSegment::written)
    }

    /// Continues in another segment, which then belongs to the log.
    #[inline(never)]
    pub(super) fn continue_in(&mut self, next: OpenSegment) {
        let next = self.log.begin(next, self.content);
        if let Some(full) = self.open.replace(next) {
            self.end(full);
        }
    }

    /// Closes the open segment.
    #[inline(never)]
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.end(open);
        }
    }

    fn end(&mut self, full: OpenSegment) {
        let place = full.place();
        if let Some(durable) = &self.log.durable {
            durable.registry.close(full.id(), full.written());
            self.backlog.push(full);
        }
        match &mut self.full {
            Some(full) => full.push(place),
            None => self.log.close(place, self.state),
        }
    }

    /// Revokes the last appended entry, which was not put into the index: marks it as dead, and
    /// voids it so that recovery ignores it.
    pub(super) fn revoke(&mut self, last: Address, bytes: u32) {
        let open = self.open.as_mut().expect("it has just been appended to");
        open.revise(last, |entry| set_incarnation(entry, Incarnation(0)));
        self.log.mark_dead(last, bytes);
    }

    /// Returns whether appended bytes were not sent yet.
    pub(super) fn has_unsaved(&self) -> bool {
        let is_open_done = self.open.as_ref().is_none_or(|open| !open.has_unsaved());
        self.log.is_durable() && !(self.backlog.is_empty() && is_open_done)
    }

    /// Returns whether all bytes were sent and no segment is open.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none() && self.backlog.is_empty()
    }

    /// Offers unsent bytes to `save`; see [`super::Head::hand_out`]. Closes the open segment
    /// first if that must end.
    #[inline]
    pub(super) fn hand_out(&mut self, pace: Pace, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        if !self.log.is_durable() {
            return;
        }
        if self.open.as_ref().is_some_and(OpenSegment::is_ending) {
            self.close();
        }
        let has_ended = match pace {
            Pace::Immediate(until) => self.backlog.hand_out(self.open.as_mut(), until, save),
            Pace::Piecewise => self.backlog.hand_out_piece(self.open.as_mut(), save),
        };
        if has_ended {
            self.log.durable_log().advance();
        }
    }

    /// Closes the open segment, and moves the unsent bytes to `to`.
    pub(super) fn end_into(&mut self, to: &mut Backlog) {
        self.close();
        to.append(&mut self.backlog);
        assert!(self.is_idle(), "an appender that has ended has bytes left");
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.close();
        for place in self.full.take().into_iter().flatten() {
            self.log.close(place, self.state);
        }
    }
}

#[inline]
pub(super) fn append_entry(segment: &mut OpenSegment, entry: &Entry<'_>) -> Address {
    segment.append(entry.encoded_bytes(), |out| entry.encode(out))
}

/// Appends an object. Clears the name of the replaced entry if that is in the same segment.
#[inline]
pub(super) fn append_replacing(segment: &mut OpenSegment, entry: &mut Entry<'_>) -> Address {
    if let Body::Object { replaces: replaces @ Some(_), .. } = &mut entry.body {
        *replaces = replaces.filter(|location| location.segment != segment.id());
    }
    append_entry(segment, entry)
}
