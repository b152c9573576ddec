//! The bytes of values: hashes and sets packed into one record or divided into pages, lists and sorted
//! sets packed into one record, the format of `DUMP`, numbers as text, and
//! positions as scores.
//!
//! Start at [`Form`], which says how a hash or set is stored, [`Elements`], which changes one,
//! [`PackedList`] and [`SortedSet`]. Design: `docs/design/values.md`.
//!
//! **Invariant:** reading is total. Any bytes give a value or an error, never a panic, and never an
//! allocation beyond a constant times the number of bytes present.
//!
//! Keys, expiry and commands are not part of it.

#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod dump;
mod elements;
mod extended;
mod list;
mod list_dump;
mod listpack;
mod numbers;
mod packed;
mod pages;
mod positions;
mod scores;
mod sorted_set;

pub use dump::{RestoredValue, Unreadable, dump, dump_elements, restore};
pub use elements::Elements;
pub use extended::Extended;
pub use list::{ListEnd, ListItems, ListPart, PackedList, SplitList, encode_list, list_bytes};
pub use list_dump::fits_listpack;
pub use numbers::{parse_integer, parse_unsigned};
pub use packed::{Damaged, Element, Packed, PackedElements, encode_new};
pub use pages::{Form, PAGE_NAME_BYTES, PageName, Resize, Root, ValueLayout, page_at, page_of};
pub use positions::{GeoArea, GeoPosition};
pub use scores::{parse_score, parse_score_bound};
pub use sorted_set::{
    MemberBound, MemberPlace, MemberRange, MemberSpan, ScoreBound, ScoredMember, ScoredMembers,
    SortedMembers, SortedSet, encode_members,
};
