//! What has been written and not been given to the replicas yet.
#![forbid(unsafe_code)]

use super::segment::OpenSegment;
use std::fmt;
use types::SegmentId;
use wire::entries::EntryReader;

/// A piece of a segment that the replicas do not have.
#[derive(Clone, Copy)]
pub struct Unsaved<'a> {
    /// The segment.
    pub segment: SegmentId,
    /// Where in the segment the bytes stand: all before has been handed out.
    pub from: u32,
    /// Whole entries; those of one batch are never divided. Empty if only the end is to be told.
    pub bytes: &'a [u8],
    /// Whether nothing will follow.
    pub is_closed: bool,
}

/// Closed segments of one writer of which something has not been handed out.
#[derive(Default)]
pub(super) struct Backlog {
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

    /// Shows what has not been handed out, the open segment's last. What `save` takes is not shown
    /// again. Returns whether a segment has been handed out to its end.
    pub(super) fn hand_out(
        &mut self,
        open: Option<&mut OpenSegment>,
        save: &mut impl FnMut(Unsaved<'_>) -> bool,
    ) -> bool {
        let before = self.closed.len();
        self.closed.retain_mut(|segment| {
            let is_taken = save(shown(segment, true));
            if is_taken {
                segment.set_closed_handed_out();
            }
            !is_taken
        });
        if let Some(open) = open
            && open.has_unsaved()
            && save(shown(open, false))
        {
            open.set_handed_out();
        }
        self.closed.len() < before
    }

    /// As [`Backlog::hand_out`], for what is not urgent: one piece at a time, of whole entries, when
    /// the replicas have the one before. The closed segments come first. A segment that is to end,
    /// since it has lost a replica, is handed out to its end.
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

/// Bytes of a piece of what is not urgent: what clients write waits behind two of them for each
/// reactor that recovers something, some milliseconds where memory is touched for the first time.
const PIECE_BYTES: usize = 256 << 10;

/// The length of the whole entries at the beginning that make up a piece, or of the first one.
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

fn shown(segment: &OpenSegment, is_closed: bool) -> Unsaved<'_> {
    let (from, bytes) = segment.unsaved();
    Unsaved { segment: segment.id(), from, bytes, is_closed }
}

impl fmt::Debug for Unsaved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsaved { segment, from, bytes, is_closed } = self;
        let end = if *is_closed { ", closed" } else { "" };
        write!(f, "{segment}: {} bytes from {from}{end}", bytes.len())
    }
}
