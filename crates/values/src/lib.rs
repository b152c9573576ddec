//! The bytes of values: hashes, sets, sorted sets, lists and streams in one record or divided into
//! pages, the order of a divided sorted set, the format of `DUMP`, the order of `SORT`, numbers as
//! text, and positions as scores.
//!
//! Start at [`Form`] and [`ListForm`], which say how a value is stored, [`Elements`] and
//! [`PagedList`], which change one, [`SortedSet`], and [`PagedStream`]. Design: `docs/design/values.md`.
//!
//! **Invariant:** reading is total. Any bytes give a value or an error, never a panic, and never an
//! allocation beyond a constant times the number of bytes present.
//!
//! Keys, their expiry and commands are not part of it.

#![warn(clippy::expect_used, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod dump;
mod dump_parts;
mod elements;
mod extended;
mod field_expiries;
mod item_run;
mod list;
mod list_dump;
mod list_root;
mod listpack;
mod numbers;
mod packed;
mod paged_list;
mod paged_stream;
mod pages;
mod positions;
mod scores;
mod sort;
mod sorted_set;
mod stream_block;
mod stream_dump;
mod stream_group;
mod stream_id;
mod stream_options;
mod stream_root;
mod ziplist;
mod zipmap;

pub use dump::{Restored, RestoredValue, Unreadable, dump, dump_elements, dump_members, restore};
pub use elements::Elements;
pub use extended::Extended;
pub use item_run::ItemRun;
pub use list::{ListEnd, ListItems, ListPart, PackedList, SplitList, encode_list, list_bytes};
pub use list_dump::{LISTPACK_ITEM_BYTES_MAX, dump_list, fits_listpack};
pub use list_root::{ListForm, ListRoot, PageInterval};
pub use numbers::{parse_integer, parse_unsigned};
pub use packed::{
    Damaged, Element, Packed, PackedElements, TimedElement, earliest_field_expiry, encode_new,
    encode_timed,
};
pub use paged_list::{ListGap, ListReach, NewList, PageRoom, PagedList};
pub use paged_stream::{
    PagedStream, StreamGap, StreamNeeds, StreamRange, StreamRoom, StreamTrim, TrimPrecision,
};
pub use pages::{
    Form, PAGE_NAME_BYTES, PageName, Resize, Root, ValueLayout, ValuePages, page_at, page_of,
    place_of_element,
};
pub use positions::{GeoArea, GeoPosition};
pub use scores::{parse_score, parse_score_bound};
pub use sort::{
    KeyPattern, SortElements, SortKey, SortOutput, SortQuery, is_pattern_within, sort_keys,
};
pub use sorted_set::{
    MemberBound, MemberOrder, MemberPlace, MemberRange, MemberSelection, MemberSpan, ScoreBound,
    ScoredMember, SortedMembers, SortedSet, encode_members, score_of, score_value,
};
pub use stream_block::{EntryBlock, EntryFields, StreamEntries, StreamEntry};
pub use stream_dump::{RestoredStream, dump_stream};
pub use stream_group::{ConsumerGroup, GROUP_BYTES_MAX, PendingEntry, StreamConsumer};
pub use stream_id::{NewStreamId, StreamId, StreamIdText};
pub use stream_options::{
    ArgumentError, AutoClaimOptions, ClaimOptions, ClaimTime, PendingOptions, ReadOptions,
    SetIdOptions, StreamAddition, StreamInterval, StreamTrimming, parse_interval,
};
pub use stream_root::{GroupPlace, StreamRoot};

#[cfg(test)]
mod tests;
