//! Appended bytes that were not sent to the replicas yet.

use super::Log;
use super::segment::OpenSegment;
use super::send_order::SendLimit;
use std::fmt;
use types::SegmentId;
use wire::entries::EntryReader;

/// A piece of a segment that has not been sent to the replicas.
#[derive(Clone, Copy)]
pub struct Unsaved<'a> {
    /// Number of the segment.
    pub segment: SegmentId,
    /// Offset of the bytes in the segment. All earlier bytes have been sent.
    pub from: u32,
    /// Whole entries; a batch is never divided. Empty if only the end of the segment is to be
    /// sent.
    pub bytes: &'a [u8],
    /// Set if no bytes will follow.
    pub is_closed: bool,
}

/// Closed segments with unsent bytes, of one writer or of spliced side logs.
#[derive(Default)]
pub struct Backlog {
    closed: Vec<OpenSegment>,
}

impl Backlog {
    pub(super) fn push(&mut self, closed: OpenSegment) {
        self.closed.push(closed);
    }

    pub(super) fn append(&mut self, other: &mut Backlog) {
        self.closed.append(&mut other.closed);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.closed.is_empty()
    }

    /// Offers the next piece of a spliced side log to `save`; see [`super::Head::hand_out`].
    #[inline]
    pub fn hand_out_spliced(&mut self, log: &Log, save: &mut impl FnMut(Unsaved<'_>) -> bool) {
        if !self.is_empty() && self.hand_out_piece(None, save) {
            log.durable_log().advance();
        }
    }

    /// Offers all unsent bytes up to the limit to `save`, those of the open segment last. Bytes
    /// that `save` takes count as sent. Returns whether a segment has been sent to its end.
    pub(super) fn hand_out(
        &mut self,
        open: Option<&mut OpenSegment>,
        until: Option<SendLimit>,
        save: &mut impl FnMut(Unsaved<'_>) -> bool,
    ) -> bool {
        let before = self.closed.len();
        let mut is_over = false;
        self.closed.retain_mut(|segment| {
            let is_sent = !is_over && offer(segment, true, until, save);
            is_over |= until.is_some_and(|until| until.segment == segment.id());
            !is_sent
        });
        if let Some(open) = open
            && !is_over
        {
            offer(open, false, until, save);
        }
        self.closed.len() < before
    }

    /// Does the same as [`Backlog::hand_out`] for bytes that are not urgent. Offers one piece of
    /// whole entries at a time, after the replicas have acknowledged the previous piece. Closed
    /// segments come first. A segment that must end because it has lost a replica is sent to its
    /// end.
    pub(super) fn hand_out_piece(
        &mut self,
        open: Option<&mut OpenSegment>,
        save: &mut impl FnMut(Unsaved<'_>) -> bool,
    ) -> bool {
        let has_closed = !self.closed.is_empty();
        let Some(segment) = self.closed.first_mut().or(open) else { return false };
        let is_urgent = has_closed && segment.is_ending();
        let has_some = has_closed || segment.has_unsaved();
        if !has_some || !(is_urgent || segment.is_acknowledged()) {
            return false;
        }
        let (from, all) = segment.unsaved();
        let bytes = &all[..if is_urgent { all.len() } else { piece_of(all) }];
        let (length, is_end) = (bytes.len(), has_closed && bytes.len() == all.len());
        assert!(length > 0 || is_end, "an empty piece that does not end its segment");
        if !save(Unsaved { segment: segment.id(), from, bytes, is_closed: is_end }) {
            return false;
        }
        segment.advance_handed_out(length);
        if is_end {
            segment.set_closed_handed_out();
            self.closed.remove(0);
        }
        is_end
    }
}

/// Size in bytes of a piece that is not urgent. Client writes wait behind two such pieces per
/// reactor with a recovery: some milliseconds where memory is touched for the first time.
const PIECE_BYTES: usize = 256 << 10;

/// Returns the length of a piece: the leading whole entries up to the piece size, or the first
/// entry.
fn piece_of(bytes: &[u8]) -> usize {
    let mut entries = EntryReader::from(bytes, 0);
    let mut length = 0;
    while let Some(Ok(_)) = entries.next_unchecked() {
        if length > 0 && entries.offset() > PIECE_BYTES {
            break;
        }
        length = entries.offset();
    }
    length
}

/// Offers the unsent bytes of a segment up to the limit, if that is in this segment. Returns
/// whether the segment has been sent to its end.
#[inline]
fn offer(
    segment: &mut OpenSegment,
    is_closed: bool,
    until: Option<SendLimit>,
    save: &mut impl FnMut(Unsaved<'_>) -> bool,
) -> bool {
    let (from, all) = segment.unsaved();
    let limit = until.filter(|until| until.segment == segment.id());
    debug_assert!(limit.is_none_or(|limit| from <= limit.from), "bytes were sent too early");
    let length = limit.map_or(all.len(), |limit| segment.unsaved_before(limit.from));
    let is_end = is_closed && limit.is_none();
    let unsaved = Unsaved { segment: segment.id(), from, bytes: &all[..length], is_closed: is_end };
    if (length == 0 && !is_end) || !save(unsaved) {
        return false;
    }
    segment.advance_handed_out(length);
    if is_end {
        segment.set_closed_handed_out();
    }
    is_end
}

impl fmt::Debug for Unsaved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsaved { segment, from, bytes, is_closed } = self;
        let end = if *is_closed { ", closed" } else { "" };
        write!(f, "{segment}: {} bytes from {from}{end}", bytes.len())
    }
}
