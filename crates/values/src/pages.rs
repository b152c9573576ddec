//! Split hashes, sets and sorted sets: a root record under the key, and pages of elements in records of their own.
//!
//! A page is found without an index: linear hashing (W. Litwin, "Linear hashing: a new tool for file
//! and table addressing", VLDB 1980) computes its number from the hash of the element and the number
//! of pages. A value grows by dividing one page after the other, and shrinks in the reverse order.
//!
//! The value of a root begins with a byte 0, which is no number of elements of a packed value. Then
//! follow the id (8 bytes), the number of pages (4), the number of elements (8) and their bytes (8),
//! all little-endian. A page is packed like a whole value (see [`crate::Packed`]).

use crate::list_root::{ListForm, PageInterval};
use crate::packed::{Damaged, Packed};
use crate::stream_root::StreamRoot;
use std::ops::Range;
use types::{HashSeed, KeyHash, TableId, TypedValue, ValueType, Version, key_hash_in_slot};

/// First byte of a root.
const ROOT: u8 = 0;

/// Bytes of a root.
const ROOT_BYTES: usize = 1 + 8 + 4 + 8 + 8;

/// Most pages of a value: far more than a server has memory for.
const PAGES_MAX: u32 = 1 << 31;

/// Most pages that one change of a value adds or removes. So a value that has become too large for
/// its pages at once catches up in many changes.
const PAGES_PER_CHANGE: u32 = 64;

/// Most pages into which a packed value is divided at once.
const FIRST_PAGES_MAX: u32 = 1024;

/// Bytes of a page's name.
pub const PAGE_NAME_BYTES: usize = 4 + 1 + 8 + 8 + 4;

/// The root of a split value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Identifies the value among all that the key has had. Part of the names of its pages.
    pub id: Version,
    /// Number of pages, at least 1. Those without elements have no records.
    pub pages: u32,
    /// Number of elements, at least 1.
    pub count: u64,
    /// Sum of the encoded elements, in bytes.
    pub bytes: u64,
}

/// A value other than a string, as its record contains it.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// All elements are in the record.
    Packed(Packed<'a>),
    /// The elements are in pages.
    Split(Root),
}

impl<'a> Form<'a> {
    /// Returns the form of a value.
    #[inline]
    pub fn of(value: TypedValue<'a>) -> Result<Form<'a>, Damaged> {
        match value.bytes.first() {
            Some(&ROOT) => Ok(Form::Split(Root::parse(value.bytes).ok_or(Damaged)?)),
            Some(_) | None => Ok(Form::Packed(Packed::parse(value)?)),
        }
    }
}

impl Root {
    fn parse(bytes: &[u8]) -> Option<Root> {
        let bytes: &[u8; ROOT_BYTES] = bytes.try_into().ok()?;
        let (id, rest) = bytes[1..].split_first_chunk()?;
        let (pages, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let root = Root {
            id: Version(u64::from_le_bytes(*id)),
            pages: u32::from_le_bytes(*pages),
            count: u64::from_le_bytes(*count),
            bytes: u64::from_le_bytes(*rest.first_chunk()?),
        };
        ((1..=PAGES_MAX).contains(&root.pages) && root.count > 0).then_some(root)
    }

    /// Appends the root as the value of its key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!((1..=PAGES_MAX).contains(&self.pages) && self.count > 0, "{self:?}");
        out.push(ROOT);
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&self.pages.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    /// Returns whether this is the same value with the same pages as another root of the key.
    pub fn has_pages_of(&self, other: &Root) -> bool {
        self.id == other.id && self.pages == other.pages
    }
}

/// The records that belong to a value beside its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePages {
    /// Their ids, with the numbers of those that have this id.
    pub runs: Vec<(Version, PageInterval)>,
    /// Bytes of the elements in pages.
    pub bytes: u64,
}

impl ValuePages {
    /// Returns the pages of a value, by its record; `None`: it has none, or cannot be decoded.
    pub fn of(value: TypedValue<'_>) -> Option<ValuePages> {
        match value.value_type {
            ValueType::Hash | ValueType::Set | ValueType::SortedSet => match Form::of(value) {
                Ok(Form::Split(Root { id, pages, bytes, .. })) => {
                    let runs = vec![(id, PageInterval { first: 0, pages })];
                    Some(ValuePages { runs, bytes })
                }
                Ok(Form::Packed(_)) | Err(Damaged) => None,
            },
            ValueType::List => match ListForm::of(value) {
                Ok(ListForm::Split(root)) => {
                    let at_ends = root.left.byte_count() + root.right.byte_count();
                    let bytes = root.bytes.saturating_sub(at_ends as u64);
                    Some(ValuePages { runs: vec![(root.id, root.interval)], bytes })
                }
                Ok(ListForm::Packed(_)) | Err(Damaged) => None,
            },
            ValueType::Stream => match StreamRoot::of(value) {
                Ok(root) if root.has_pages() => {
                    let group = |id| (id, PageInterval { first: 0, pages: 1 });
                    let groups = root.groups.iter().map(|place| group(place.id));
                    let runs = [(root.id, root.interval)].into_iter().chain(groups).collect();
                    Some(ValuePages { runs, bytes: root.page_bytes })
                }
                Ok(_) | Err(Damaged) => None,
            },
            ValueType::String => None,
        }
    }

    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(_, interval)| u64::from(interval.pages)).sum()
    }
}

/// The name of a page: the key of its record in [`TableId::PAGES`]. It is the slot's tag in braces,
/// the table (1 byte), key hash (8) and id (8) of its root, and the page number (4), big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName {
    /// Table of the root.
    pub table: TableId,
    /// Key hash of the root.
    pub root: KeyHash,
    /// Id of the value.
    pub id: Version,
    /// Page number.
    pub page: u32,
}

impl PageName {
    /// Returns the bytes of the name.
    pub fn bytes(self) -> [u8; PAGE_NAME_BYTES] {
        let mut name = [0; PAGE_NAME_BYTES];
        let [first, second] = self.root.slot().tag();
        name[..4].copy_from_slice(&[b'{', first, second, b'}']);
        name[4] = self.table.0;
        name[5..13].copy_from_slice(&self.root.0.to_be_bytes());
        name[13..21].copy_from_slice(&self.id.0.to_be_bytes());
        name[21..].copy_from_slice(&self.page.to_be_bytes());
        name
    }

    /// Returns the bytes of the name, with their key hash.
    pub fn key(self, seed: &HashSeed) -> (KeyHash, [u8; PAGE_NAME_BYTES]) {
        let bytes = self.bytes();
        (key_hash_in_slot(seed, self.root.slot(), &bytes), bytes)
    }

    /// Returns the numbers of the pages that a value has, if it is a root with the id of this page.
    pub fn pages_of_root(self, value: TypedValue<'_>) -> Option<PageInterval> {
        match value.value_type {
            ValueType::Hash | ValueType::Set | ValueType::SortedSet => match Form::of(value) {
                // Those behind the last one are removed by the change that joins them.
                Ok(Form::Split(root)) if root.id == self.id => {
                    Some(PageInterval { first: 0, pages: PAGES_MAX })
                }
                Ok(Form::Split(_) | Form::Packed(_)) | Err(Damaged) => None,
            },
            ValueType::List => match ListForm::of(value) {
                Ok(ListForm::Split(root)) if root.id == self.id => Some(root.interval),
                Ok(ListForm::Split(_) | ListForm::Packed(_)) | Err(Damaged) => None,
            },
            ValueType::Stream => StreamRoot::of(value).ok()?.pages_of(self.id),
            ValueType::String => None,
        }
    }

    /// Returns the name of these bytes; `None`: they are not one.
    pub fn parse(bytes: &[u8]) -> Option<PageName> {
        let bytes: &[u8; PAGE_NAME_BYTES] = bytes.try_into().ok()?;
        let (root, rest) = bytes[5..].split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let name = PageName {
            table: TableId::try_from(bytes[4]).ok()?,
            root: KeyHash(u64::from_be_bytes(*root)),
            id: Version(u64::from_be_bytes(*id)),
            page: u32::from_be_bytes(*rest.first_chunk()?),
        };
        (name.bytes() == *bytes).then_some(name)
    }
}

/// Returns the number of the page that contains the elements with this hash.
#[inline]
pub fn page_of(hash: u64, pages: u32) -> u32 {
    debug_assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages");
    let level = pages.ilog2();
    let page = hash & ((1 << level) - 1);
    // Pages below this number are divided already.
    let divided = u64::from(pages) - (1 << level);
    let page = if page < divided { hash & ((2 << level) - 1) } else { page };
    page as u32
}

/// Returns the page from which the elements of `page` come when there are only `pages`.
fn ancestor(mut page: u32, pages: u32) -> u32 {
    debug_assert!(pages > 0, "a value without pages");
    while page >= pages {
        page -= 1 << page.ilog2();
    }
    page
}

/// Returns the place of a page in the order of a scan: the lowest hash of its elements, with the bits
/// in reverse order. Pages that are divided or joined during a scan keep their elements between the
/// same places.
fn place_of(page: u32) -> u64 {
    u64::from(page).reverse_bits()
}

/// Returns the place of an element with this hash in the order of a scan. It does not depend on the
/// number of pages.
pub fn place_of_element(hash: u64) -> u64 {
    hash.reverse_bits()
}

/// Returns the page at this place of a scan, and the place after it; 0 after the last one.
pub fn page_at(place: u64, pages: u32) -> (u32, u64) {
    let page = page_of(place.reverse_bits(), pages);
    let level = pages.ilog2();
    let is_divided = u64::from(page) < u64::from(pages) - (1 << level) || page >= 1 << level;
    let bits = if is_divided { level + 1 } else { level };
    let width = 1_u64.checked_shl(u64::BITS - bits).unwrap_or(0);
    (page, place_of(page).wrapping_add(width))
}

/// Sizes of packed values and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueLayout {
    /// Longest packed value, in bytes, if it has more than one element.
    pub packed_bytes_max: usize,
    /// Bytes of elements per page, on average.
    pub page_bytes: usize,
}

impl ValueLayout {
    /// Returns the layout with packed values up to this length, in bytes.
    pub fn with_packed(packed_bytes_max: usize) -> ValueLayout {
        ValueLayout { packed_bytes_max, page_bytes: (packed_bytes_max / 16).max(16) }
    }

    /// Bytes of items that a page of a list has at most, if it has more than one.
    pub fn list_page_bytes(&self) -> usize {
        (self.packed_bytes_max / 2).max(32)
    }

    /// Most bytes of items at each end of the root of a list.
    pub fn list_end_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Most bytes of entries in the root of a stream with pages: a quarter of a page, so that few
    /// entries rewrite a page.
    pub fn stream_tail_bytes(&self) -> usize {
        self.list_page_bytes() / 4
    }

    /// Returns the number of pages for elements of this length together.
    fn pages_for(&self, bytes: u64) -> u32 {
        let pages = bytes.div_ceil(self.page_bytes as u64);
        pages.clamp(1, u64::from(PAGES_MAX)) as u32
    }

    /// Returns the number of pages into which a packed value of this length is divided.
    pub fn first_pages(&self, bytes: u64) -> u32 {
        self.pages_for(bytes).min(FIRST_PAGES_MAX)
    }

    /// Returns how a change that adds at most `added` bytes, or that `removes` elements, changes the
    /// number of pages. Any change joins pages that have become too many: fields may also have
    /// expired.
    pub fn resize(&self, root: &Root, added: u64, removes: bool) -> Resize {
        let before = root.pages;
        let wanted = self.pages_for(root.bytes.saturating_add(added));
        let after = if wanted > before && added > 0 {
            wanted.min(before.saturating_add(PAGES_PER_CHANGE)).min(PAGES_MAX)
        } else if (removes || added > 0)
            && u64::from(before) > 4 * u64::from(self.pages_for(root.bytes))
        {
            (before - PAGES_PER_CHANGE.min(before / 2)).max(1)
        } else {
            before
        };
        Resize { before, after }
    }
}

/// A change of the number of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Number of pages before.
    pub before: u32,
    /// Number of pages after.
    pub after: u32,
}

impl Resize {
    /// Returns the numbers of the pages that are created.
    pub fn created(self) -> Range<u32> {
        self.before..self.after.max(self.before)
    }

    /// Returns the pages that are divided, joined with others or removed: their elements find their
    /// pages anew.
    pub fn redistributed(self) -> impl Iterator<Item = u32> {
        let fewer = self.before.min(self.after);
        let changed = fewer..self.before.max(self.after);
        changed
            .flat_map(move |page| [page, ancestor(page, fewer)])
            .filter(move |page| *page < self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn any_change_joins_pages_that_are_far_too_many() {
        let layout = ValueLayout::with_packed(4096);
        let root = Root { id: Version(1), pages: 1_000, count: 1, bytes: 10 };
        assert_eq!(layout.resize(&root, 100, false).after, 1_000 - PAGES_PER_CHANGE);
        assert_eq!(layout.resize(&root, 0, true).after, 1_000 - PAGES_PER_CHANGE);
        assert_eq!(layout.resize(&root, 0, false).after, 1_000, "a read changes nothing");
    }

    #[test]
    fn every_hash_has_one_page_and_a_division_moves_elements_to_the_new_page_only() {
        let mut random = fastrand::Rng::with_seed(1);
        let hashes: Vec<u64> = (0..2_000).map(|_| random.u64(..)).collect();
        for pages in 1..200 {
            let met: BTreeSet<u32> = hashes.iter().map(|&hash| page_of(hash, pages)).collect();
            assert!(met.iter().all(|page| *page < pages));
            for &hash in &hashes {
                let (before, after) = (page_of(hash, pages), page_of(hash, pages + 1));
                assert!(after == before || after == pages);
                assert_eq!(ancestor(after, pages), before);
            }
        }
    }

    #[test]
    fn a_change_of_the_number_of_pages_reads_every_page_that_loses_elements() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..20_000 {
            let resize = Resize { before: random.u32(1..300), after: random.u32(1..300) };
            let read: BTreeSet<u32> = resize.redistributed().collect();
            let hash = random.u64(..);
            let (before, after) = (page_of(hash, resize.before), page_of(hash, resize.after));
            assert!(before == after || read.contains(&before), "{resize:?} {before} {after}");
            // A page that receives elements is read or created.
            assert!(
                before == after || read.contains(&after) || resize.created().contains(&after),
                "{resize:?} {before} {after}"
            );
        }
    }

    #[test]
    fn a_scan_meets_every_element_also_while_pages_are_divided_and_joined() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let hashes: Vec<u64> = (0..50).map(|_| random.u64(..)).collect();
            let mut met: BTreeSet<u64> = BTreeSet::new();
            let (mut place, mut steps) = (0, 0);
            loop {
                let pages = random.u32(1..40);
                let (page, next) = page_at(place, pages);
                let of_page = |hash: &&u64| page_of(**hash, pages) == page;
                met.extend(hashes.iter().filter(of_page));
                let is_before = |hash: &u64| next == 0 || place_of_element(*hash) < next;
                assert!(hashes.iter().filter(of_page).all(is_before), "behind its page's end");
                let passed = hashes.iter().filter(|hash| is_before(hash));
                assert!(passed.clone().all(|hash| met.contains(hash)), "an element is passed over");
                steps += 1;
                assert!(steps < 100, "the scan does not end");
                assert!(next == 0 || next > place, "the scan goes back");
                if next == 0 {
                    break;
                }
                place = next;
            }
            assert_eq!(met.len(), hashes.len());
        }
    }

    #[test]
    fn a_scan_of_a_constant_number_of_pages_meets_each_page_once() {
        for pages in 1..70 {
            let mut met = Vec::new();
            let mut place = 0;
            loop {
                let (page, next) = page_at(place, pages);
                met.push(page);
                if next == 0 {
                    break;
                }
                place = next;
            }
            met.sort_unstable();
            assert!(met.into_iter().eq(0..pages));
        }
    }

    #[test]
    fn roots_and_names_come_back_and_other_bytes_are_refused() {
        let root = Root { id: Version(7), pages: 5, count: 40, bytes: 1_300 };
        let mut bytes = Vec::new();
        root.encode(&mut bytes);
        let value = |bytes| TypedValue { value_type: types::ValueType::Hash, bytes };
        assert!(matches!(Form::of(value(&bytes)), Ok(Form::Split(read)) if read == root));
        for length in 0..bytes.len() {
            assert!(Form::of(value(&bytes[..length])).is_err(), "{length}");
        }
        let mut without_pages = bytes.clone();
        without_pages[9..13].fill(0);
        assert!(Form::of(value(&without_pages)).is_err());
        let hash = KeyHash(0x1234_5678_9abc_def0);
        let name = PageName { table: TableId(3), root: hash, id: Version(9), page: 77 };
        let bytes = name.bytes();
        assert_eq!(PageName::parse(&bytes), Some(name));
        assert_eq!(types::slot_of(&bytes), hash.slot());
        for at in 0..bytes.len() {
            let mut other = bytes;
            other[at] ^= 0x80;
            assert_ne!(PageName::parse(&other), Some(name), "{at}");
        }
        assert_eq!(PageName::parse(&bytes[1..]), None);
    }

    #[test]
    fn a_value_grows_and_shrinks_in_bounded_steps_between_its_limits() {
        let layout = ValueLayout::with_packed(4096);
        let mut root = Root { id: Version(1), pages: 1, count: 1, bytes: 100_000 };
        let grown = layout.resize(&root, 30, false);
        assert_eq!(grown, Resize { before: 1, after: 65 });
        root.pages = 391;
        assert_eq!(layout.resize(&root, 30, false).after, 391);
        assert_eq!(layout.resize(&root, 0, true).after, 391);
        root.bytes = 10_000;
        assert_eq!(layout.resize(&root, 0, true).after, 391 - 64);
        assert_eq!(layout.resize(&root, 30, false).after, 391 - 64, "any change joins pages");
        assert_eq!(layout.resize(&root, 0, false).after, 391);
    }
}
