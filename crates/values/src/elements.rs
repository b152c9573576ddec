//! The elements of a value while a command reads or changes them: all elements of a packed value, or
//! those in some pages of a split one.

use crate::packed::{
    Damaged, Element, Packed, PackedElements, TimedElement, encode_timed, put_element, write_number,
};
use crate::pages::{Resize, Root, ValueLayout, page_of};
use crate::sorted_set::{ScoredMember, encode_members};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use types::{UnixMillis, ValueType};

/// Number of searches in one command from which a table of names is built first.
pub(crate) const NAMES_MIN: usize = 8;

/// Bytes that are enough for the lengths of a name and a value, or for a count.
const LENGTHS_BYTES_MAX: usize = 20;

/// The elements of a value, with the changes of a command. Unchanged elements stay where they are
/// and are copied together.
pub struct Elements<'a> {
    value_type: ValueType,
    /// Number of elements of the whole value, with the changes.
    count: u64,
    /// Encoded bytes of all elements of the value, with the changes.
    bytes: u64,
    /// The packed value, or the first page.
    first: Packed<'a>,
    /// The other pages.
    rest: Vec<Packed<'a>>,
    /// The numbers of all pages, ascending; empty for a packed value.
    pages: SmallVec<[u32; 4]>,
    /// Elements that are replaced or removed.
    edits: SmallVec<[ElementEdit; 1]>,
    added: SmallVec<[NewElement; 1]>,
    /// Encoded elements that replace others or are added.
    new: Vec<u8>,
    /// Expiries of elements that were read, in the order of their places.
    expiries: Vec<OldExpiry>,
    /// Set if an element has, or had, an expiry.
    is_timed: bool,
    /// Number of the first edits that remove what had expired when it was read.
    expired: usize,
    /// Set if all elements of the value were read.
    is_whole: bool,
    /// Set if all elements were removed at once.
    is_cleared: bool,
    /// Set if there are enough searches. It is only looked up, never iterated.
    names: Option<Box<ElementNames<'a>>>,
}

/// ElementPlace of an element: its page, by position, and its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ElementStart {
    source: usize,
    offset: usize,
}

/// Replacement of an element.
#[derive(Clone, Copy, Debug)]
struct ElementEdit {
    start: ElementStart,
    /// End of the old element, as an offset in its page.
    end: usize,
    /// `None`: the element is removed.
    new: Option<NewElement>,
}

/// An element in the buffer of new ones.
#[derive(Clone, Copy, Debug)]
struct NewElement {
    start: usize,
    end: usize,
    name: Part,
    value: Part,
    expiry: Option<UnixMillis>,
    is_removed: bool,
}

/// Expiry of an element that was read.
#[derive(Clone, Copy, Debug)]
struct OldExpiry {
    start: ElementStart,
    expiry: UnixMillis,
}

/// The place of a name or value in the buffer of new elements.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    end: usize,
}

/// Number of elements of a whole value, and their encoded bytes.
struct Totals {
    count: u64,
    bytes: u64,
}

/// Places of elements by their names.
struct ElementNames<'a> {
    old: HashMap<&'a [u8], OldPlace>,
    /// Positions in the list of added elements.
    added: HashMap<Box<[u8]>, usize>,
}

/// ElementPlace of an element that was read.
#[derive(Clone, Copy, Debug)]
struct OldPlace {
    start: ElementStart,
    end: usize,
    /// Position of its edit.
    edit: Option<usize>,
}

/// ElementPlace of an element.
enum ElementPlace {
    Old(OldPlace),
    /// Position in the list of added elements.
    Added(usize),
}

impl<'a> Elements<'a> {
    /// Returns the elements of a packed value at this time, for this number of searches.
    #[inline]
    pub fn of(
        packed: Packed<'a>,
        now: UnixMillis,
        searches: usize,
    ) -> Result<Elements<'a>, Damaged> {
        let totals = Totals { count: packed.count() as u64, bytes: packed.bytes().len() as u64 };
        let elements = Elements::new(packed, Vec::new(), SmallVec::new(), totals);
        elements.prepared(now, searches)
    }

    /// Returns the elements in some pages of a split value at this time. The pages are given by
    /// ascending number. Expired elements of pages that are not given count as elements.
    pub fn of_pages(
        value_type: ValueType,
        root: &Root,
        mut pages: impl Iterator<Item = (u32, Packed<'a>)>,
        now: UnixMillis,
        searches: usize,
    ) -> Result<Elements<'a>, Damaged> {
        let first = pages.next();
        let (mut numbers, mut rest) = (SmallVec::new(), Vec::new());
        numbers.extend(first.map(|(number, _)| number));
        for (number, page) in pages {
            numbers.push(number);
            rest.push(page);
        }
        debug_assert!(numbers.is_sorted_by(|low, high| low < high), "pages out of order");
        let first = first.map_or(Packed::empty(value_type), |(_, page)| page);
        let is_whole = numbers.len() as u64 == u64::from(root.pages);
        let totals = Totals { count: root.count, bytes: root.bytes };
        let elements = Elements { is_whole, ..Elements::new(first, rest, numbers, totals) };
        elements.prepared(now, searches)
    }

    #[inline]
    fn new(
        first: Packed<'a>,
        rest: Vec<Packed<'a>>,
        pages: SmallVec<[u32; 4]>,
        totals: Totals,
    ) -> Elements<'a> {
        let (edits, added, new) = (SmallVec::new(), SmallVec::new(), Vec::new());
        Elements {
            value_type: first.value_type(),
            count: totals.count,
            bytes: totals.bytes,
            first,
            rest,
            pages,
            edits,
            added,
            new,
            expiries: Vec::new(),
            is_timed: false,
            expired: 0,
            is_whole: true,
            is_cleared: false,
            names: None,
        }
    }

    /// Prepares for this number of searches at this time.
    #[inline]
    fn prepared(mut self, now: UnixMillis, searches: usize) -> Result<Elements<'a>, Damaged> {
        self.prepare(searches)?;
        if self.sources().any(Packed::has_expiries) {
            self.judge(now)?;
        }
        Ok(self)
    }

    /// Reads the expiries of the elements, and removes those that have expired at this time.
    #[cold]
    fn judge(&mut self, now: UnixMillis) -> Result<(), Damaged> {
        self.is_timed = true;
        for source in 0..=self.rest.len() {
            let packed = self.source(source);
            if !packed.has_expiries() {
                continue;
            }
            let mut expiries = packed.expiries();
            for found in placed(source, packed) {
                let (start, end, element) = found?;
                match expiries.take() {
                    None => {}
                    Some(expiry) if expiry > now => self.expiries.push(OldExpiry { start, expiry }),
                    Some(_) => {
                        let place = OldPlace { start, end, edit: None };
                        let before = self.edit(element.name, place, None);
                        self.account(before, None)?;
                    }
                }
            }
        }
        self.expired = self.edits.len();
        assert!(self.expiries.is_sorted_by_key(|old| old.start), "expiries out of order");
        Ok(())
    }

    /// Prepares for this number of searches.
    pub fn prepare(&mut self, searches: usize) -> Result<(), Damaged> {
        if searches < NAMES_MIN || self.names.is_some() {
            return Ok(());
        }
        debug_assert!(!self.is_changed(), "the changes before are not found");
        let mut old = HashMap::new();
        for found in self.old() {
            let (start, end, element) = found?;
            old.insert(element.name, OldPlace { start, end, edit: None });
        }
        self.names = Some(Box::new(ElementNames { old, added: HashMap::new() }));
        Ok(())
    }

    fn sources(&self) -> impl Iterator<Item = Packed<'a>> {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Returns the elements before the changes, with their places.
    fn old(&self) -> impl Iterator<Item = Result<(ElementStart, usize, Element<'a>), Damaged>> {
        self.sources().enumerate().flat_map(|(source, packed)| placed(source, packed))
    }

    /// Returns the type of the value.
    pub fn value_type(&self) -> ValueType {
        self.value_type
    }

    /// Returns the number of elements of the whole value.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether an element was set or removed, or has expired.
    pub fn is_changed(&self) -> bool {
        !self.edits.is_empty() || !self.added.is_empty() || self.is_cleared
    }

    /// Returns whether all elements of the value were read.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Removes all elements of the value, also those that were not read.
    pub fn clear(&mut self) {
        let is_as_read = self.edits.len() == self.expired && self.added.is_empty();
        debug_assert!(is_as_read && !self.is_cleared, "the changes before are lost");
        (self.count, self.bytes, self.is_cleared) = (0, 0, true);
    }

    /// Returns whether all elements of the value were removed at once.
    pub fn is_cleared(&self) -> bool {
        self.is_cleared
    }

    /// Returns the elements of each page that was read, without those that have expired, before the
    /// changes.
    pub fn by_page(&self) -> impl Iterator<Item = Result<Vec<Element<'a>>, Damaged>> {
        let lasts = |start: ElementStart| {
            let expired = &self.edits[..self.expired];
            expired.binary_search_by_key(&start, |edit| edit.start).is_err()
        };
        self.sources().enumerate().map(move |(source, page)| match self.expired {
            0 => page.elements().collect(),
            _ => placed(source, page)
                .filter(|found| found.as_ref().map_or(true, |(start, ..)| lasts(*start)))
                .map(|found| found.map(|(_, _, element)| element))
                .collect(),
        })
    }

    fn place(&self, name: &[u8]) -> Result<Option<ElementPlace>, Damaged> {
        if let Some(names) = &self.names {
            let old = names.old.get(name).copied().map(ElementPlace::Old);
            return Ok(old.or_else(|| names.added.get(name).copied().map(ElementPlace::Added)));
        }
        for found in self.old() {
            let (start, end, element) = found?;
            if element.name == name {
                let edit = self.edits.iter().position(|edit| edit.start == start);
                return Ok(Some(ElementPlace::Old(OldPlace { start, end, edit })));
            }
        }
        let added = self.added.iter().position(|added| &self.new[range(added.name)] == name);
        Ok(added.map(ElementPlace::Added))
    }

    /// Returns the value of the element of this name.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Result<Option<&[u8]>, Damaged> {
        if !self.is_changed() && self.names.is_none() {
            for source in self.sources() {
                if let Some(value) = source.get(name)? {
                    return Ok(Some(value));
                }
            }
            return Ok(None);
        }
        Ok(self.get_timed(name)?.map(|timed| timed.element.value))
    }

    /// Returns the value of the element of this name, with its expiry.
    pub fn get_timed(&self, name: &[u8]) -> Result<Option<TimedElement<'_>>, Damaged> {
        let (new, start) = match self.place(name)? {
            None => return Ok(None),
            Some(ElementPlace::Added(at)) => (Some(self.added[at]), None),
            Some(ElementPlace::Old(OldPlace { start, end, edit })) => match edit {
                Some(edit) => (self.edits[edit].new, None),
                None => (None, Some((start, self.old_element(start, end)?))),
            },
        };
        let new = new.filter(|new| !new.is_removed).map(|new| self.new_timed(new));
        let old =
            start.map(|(start, element)| TimedElement { element, expiry: self.old_expiry(start) });
        Ok(new.or(old))
    }

    fn old_expiry(&self, start: ElementStart) -> Option<UnixMillis> {
        let place = self.expiries.binary_search_by_key(&start, |old| old.start).ok()?;
        Some(self.expiries[place].expiry)
    }

    fn source(&self, at: usize) -> Packed<'a> {
        if at == 0 { self.first } else { self.rest[at - 1] }
    }

    fn old_element(&self, start: ElementStart, end: usize) -> Result<Element<'a>, Damaged> {
        let bytes = self.source(start.source).bytes().get(start.offset..end).ok_or(Damaged)?;
        PackedElements::of_one(self.value_type, bytes).next().ok_or(Damaged)?
    }

    /// Returns the elements: first the old ones in their order, then the added ones.
    pub fn iter(&self) -> impl Iterator<Item = Result<Element<'_>, Damaged>> {
        self.iter_timed().map(|timed| Ok(timed?.element))
    }

    /// Returns the elements like [`Elements::iter`], with their expiries.
    pub fn iter_timed(&self) -> impl Iterator<Item = Result<TimedElement<'_>, Damaged>> {
        let edits = self.sorted_edits();
        let old = self.old().filter_map(move |found| match found {
            Err(damaged) => Some(Err(damaged)),
            Ok((start, _, element)) => match edit_at(&edits, start) {
                None => Some(Ok(TimedElement { element, expiry: self.old_expiry(start) })),
                Some(edit) => edit.new.map(|new| Ok(self.new_timed(new))),
            },
        });
        let added = self.added.iter().filter(|added| !added.is_removed);
        old.chain(added.map(|added| Ok(self.new_timed(*added))))
    }

    /// Returns the members in the order of their scores. Those of a set have the score 1.
    pub fn sorted_members(&self) -> Result<Vec<ScoredMember<'_>>, Damaged> {
        let mut members = Vec::new();
        for element in self.iter() {
            members.push(ScoredMember::of(element?, self.value_type)?);
        }
        members.sort_by(ScoredMember::order);
        Ok(members)
    }

    /// Passes each element that was replaced, removed or added to `f`: as it was read, and as it is
    /// now. Removals of all elements at once are not passed.
    pub fn changes(
        &self,
        mut f: impl FnMut(Option<Element<'_>>, Option<Element<'_>>),
    ) -> Result<(), Damaged> {
        for edit in &self.edits {
            let bytes = self.source(edit.start.source).bytes();
            let bytes = bytes.get(edit.start.offset..edit.end).ok_or(Damaged)?;
            let old = PackedElements::of_one(self.value_type, bytes).next().ok_or(Damaged)??;
            f(Some(old), edit.new.map(|new| self.new_element(new)));
        }
        self.added_elements().for_each(|added| f(None, Some(added)));
        Ok(())
    }

    /// Returns the edits in the order of their places.
    fn sorted_edits(&self) -> Cow<'_, [ElementEdit]> {
        if self.edits.is_sorted_by_key(|edit| edit.start) {
            return Cow::Borrowed(&self.edits);
        }
        let mut edits = self.edits.to_vec();
        edits.sort_unstable_by_key(|edit| edit.start);
        Cow::Owned(edits)
    }

    /// Edits an element that was read. Returns its length before; `None` if it was removed.
    fn edit(&mut self, name: &[u8], place: OldPlace, new: Option<NewElement>) -> Option<usize> {
        let OldPlace { start, end, edit } = place;
        if let Some(edit) = edit {
            let before = std::mem::replace(&mut self.edits[edit].new, new);
            return before.map(NewElement::bytes);
        }
        if let Some(place) = self.names.as_mut().and_then(|names| names.old.get_mut(name)) {
            place.edit = Some(self.edits.len());
        }
        self.edits.push(ElementEdit { start, end, new });
        Some(end - start.offset)
    }

    fn added_elements(&self) -> impl Iterator<Item = Element<'_>> {
        let left = self.added.iter().filter(|added| !added.is_removed);
        left.map(|added| self.new_element(*added))
    }

    fn new_element(&self, new: NewElement) -> Element<'_> {
        Element { name: &self.new[range(new.name)], value: &self.new[range(new.value)] }
    }

    fn new_timed(&self, new: NewElement) -> TimedElement<'_> {
        TimedElement { element: self.new_element(new), expiry: new.expiry }
    }

    /// Sets the value of the element of this name, without expiry. Returns whether the element is
    /// new.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<bool, Damaged> {
        self.set_until(name, value, None)
    }

    /// Sets the value of the element of this name, and its expiry. Returns whether the element is
    /// new.
    ///
    /// # Panics
    /// If an element of a value other than a hash expires, which is a bug.
    pub fn set_until(
        &mut self,
        name: &[u8],
        value: &[u8],
        expiry: Option<UnixMillis>,
    ) -> Result<bool, Damaged> {
        if expiry.is_some() && !self.is_timed {
            assert!(self.value_type == ValueType::Hash, "only fields of hashes expire");
            // A value in which elements expire is not copied in pieces: its elements are read.
            self.old().try_for_each(|found| found.map(drop))?;
            self.is_timed = true;
        }
        let place = self.place(name)?;
        let start = self.new.len();
        self.new.reserve(name.len() + value.len() + LENGTHS_BYTES_MAX);
        let [name_at, value_at] =
            put_element(self.value_type, Element { name, value }, &mut self.new);
        let [name_at, value_at] =
            [name_at, value_at].map(|at| Part { start: at.start, end: at.end });
        let end = self.new.len();
        let new =
            NewElement { start, end, name: name_at, value: value_at, expiry, is_removed: false };
        let before = match place {
            Some(ElementPlace::Old(place)) => self.edit(name, place, Some(new)),
            Some(ElementPlace::Added(at)) => {
                let before = std::mem::replace(&mut self.added[at], new);
                (!before.is_removed).then(|| before.bytes())
            }
            None => {
                if let Some(names) = &mut self.names {
                    names.added.insert(name.into(), self.added.len());
                }
                self.added.push(new);
                None
            }
        };
        self.account(before, Some(new.bytes()))?;
        Ok(before.is_none())
    }

    /// Adds a member, if the set does not have it. Returns whether it is new.
    pub fn add(&mut self, member: &[u8]) -> Result<bool, Damaged> {
        if self.get(member)?.is_some() {
            return Ok(false);
        }
        self.set(member, &[])
    }

    /// Removes the element of this name. Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> Result<bool, Damaged> {
        let before = match self.place(name)? {
            None => None,
            Some(ElementPlace::Old(place)) => self.edit(name, place, None),
            Some(ElementPlace::Added(at)) => {
                let added = &mut self.added[at];
                let before = (!added.is_removed).then(|| added.bytes());
                added.is_removed = true;
                before
            }
        };
        self.account(before, None)?;
        Ok(before.is_some())
    }

    /// Accounts for an element that has this length after the change, and had that one `before`. The
    /// totals come from the root, so they may be too low in a damaged value.
    fn account(&mut self, before: Option<usize>, after: Option<usize>) -> Result<(), Damaged> {
        let count = self.count.saturating_add(u64::from(after.is_some()));
        self.count = count.checked_sub(u64::from(before.is_some())).ok_or(Damaged)?;
        let bytes = self.bytes.saturating_add(after.unwrap_or(0) as u64);
        self.bytes = bytes.checked_sub(before.unwrap_or(0) as u64).ok_or(Damaged)?;
        Ok(())
    }

    /// Returns the number of pages into which this packed value must be divided; `None`: it may stay
    /// packed.
    pub fn must_split(&self, layout: &ValueLayout) -> Option<u32> {
        debug_assert!(self.pages.is_empty(), "the value is split already");
        // A value that does not change is not written.
        let is_long =
            self.is_changed() && self.bytes > layout.packed_bytes_max as u64 && self.count > 1;
        is_long.then(|| layout.first_pages(self.bytes))
    }

    /// Returns the root of the value with this id and number of pages. The value must have elements.
    pub fn root(&self, id: types::Version, pages: u32) -> Root {
        assert!(self.count > 0, "a value without elements has no root");
        Root { id, pages, count: self.count, bytes: self.bytes }
    }

    /// Appends the elements as a packed value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.rest.is_empty(), "only a packed value has all elements in one record");
        if self.is_timed {
            return encode_timed(self.value_type, &self.listed(), out);
        }
        out.reserve(self.bytes as usize + 4);
        // Removals leave the others in order.
        let only_removes =
            self.added.is_empty() && self.edits.iter().all(|edit| edit.new.is_none());
        if self.value_type == ValueType::SortedSet
            && !only_removes
            && let Ok(mut members) = self.sorted_members()
        {
            return encode_members(&mut members, out);
        }
        write_number(self.count as usize, out);
        self.copy_edited(0, &self.sorted_edits(), out);
        let added = self.added.iter().filter(|added| !added.is_removed);
        added.for_each(|added| out.extend_from_slice(&self.new[added.start..added.end]));
    }

    /// Returns all elements, of which some may expire.
    fn listed(&self) -> Vec<TimedElement<'_>> {
        let listed: Result<Vec<TimedElement<'_>>, Damaged> = self.iter_timed().collect();
        let Ok(listed) = listed else { unreachable!("the elements have been read before") };
        listed
    }

    /// Appends the old elements of a page with its edits.
    fn copy_edited(&self, source: usize, edits: &[ElementEdit], out: &mut Vec<u8>) {
        let bytes = self.source(source).bytes();
        let mut from = 0;
        for edit in edits {
            out.extend_from_slice(&bytes[from..edit.start.offset]);
            if let Some(new) = edit.new {
                out.extend_from_slice(&self.new[new.start..new.end]);
            }
            from = edit.end;
        }
        out.extend_from_slice(&bytes[from..]);
    }

    /// Passes the pages that the changes have changed to `write`, with their new contents; `None`: the
    /// page has no elements any more. `hash` returns the hash of an element.
    pub fn changed_pages(
        &self,
        resize: Resize,
        hash: impl Fn(&[u8]) -> u64,
        mut write: impl FnMut(u32, Option<&[u8]>),
    ) -> Result<(), Damaged> {
        let page_of = |name: &[u8]| page_of(hash(name), resize.after);
        let mut anew = self.built_anew(resize, page_of);
        let mut added: SmallVec<[(u32, NewElement); 1]> = SmallVec::new();
        for element in self.added.iter().filter(|added| !added.is_removed) {
            let page = page_of(&self.new[range(element.name)]);
            match anew.get_mut(&page) {
                Some(elements) => elements.push(self.new_timed(*element)),
                None => added.push((page, *element)),
            }
        }
        added.sort_by_key(|(page, _)| *page);
        let edits = self.sorted_edits();
        let (mut bytes, mut placed_elements) = (Vec::new(), 0);
        for (source, &page) in self.pages.iter().enumerate() {
            if anew.contains_key(&page) {
                for found in placed(source, self.source(source)) {
                    let (start, _, element) = found?;
                    let timed = match edit_at(&edits, start) {
                        None => TimedElement { element, expiry: self.old_expiry(start) },
                        Some(ElementEdit { new: Some(new), .. }) => self.new_timed(*new),
                        Some(ElementEdit { new: None, .. }) => continue,
                    };
                    anew.get_mut(&page_of(timed.element.name)).ok_or(Damaged)?.push(timed);
                }
                continue;
            }
            let first = edits.partition_point(|edit| edit.start.source < source);
            let last = edits.partition_point(|edit| edit.start.source <= source);
            let more = added.partition_point(|(of, _)| *of < page)
                ..added.partition_point(|(of, _)| *of <= page);
            if more.is_empty() && first == last {
                continue;
            }
            let (edits, more) = (&edits[first..last], &added[more]);
            let removed = edits.iter().filter(|edit| edit.new.is_none()).count();
            let old = self.source(source);
            let count = old.count().checked_sub(removed).ok_or(Damaged)? + more.len();
            bytes.clear();
            bytes.reserve(old.bytes().len() + self.new.len() + LENGTHS_BYTES_MAX);
            write_number(count, &mut bytes);
            self.copy_edited(source, edits, &mut bytes);
            more.iter().for_each(|(_, it)| bytes.extend_from_slice(&self.new[it.start..it.end]));
            placed_elements += more.len();
            write(page, (count > 0).then_some(&bytes));
        }
        assert!(placed_elements == added.len(), "an element is added to a page that was not read");
        for (page, elements) in &anew {
            bytes.clear();
            encode_timed(self.value_type, elements, &mut bytes);
            write(*page, (!elements.is_empty()).then_some(&bytes));
        }
        Ok(())
    }

    /// Returns the pages that are not copied in pieces, without their elements: those with other
    /// elements than before, and those that change and in which elements expire.
    fn built_anew(
        &self,
        resize: Resize,
        page_of: impl Fn(&[u8]) -> u32,
    ) -> BTreeMap<u32, Vec<TimedElement<'_>>> {
        let mut anew = BTreeMap::new();
        for page in resize.redistributed().chain(resize.created()) {
            anew.insert(page, Vec::new());
        }
        if !self.is_timed {
            return anew;
        }
        for edit in &self.edits {
            let source = edit.start.source;
            let expires = edit.new.is_some_and(|new| new.expiry.is_some());
            if expires || self.source(source).has_expiries() {
                anew.insert(self.pages[source], Vec::new());
            }
        }
        for added in self.added.iter().filter(|added| !added.is_removed) {
            let page = page_of(&self.new[range(added.name)]);
            let source = self.pages.binary_search(&page);
            let is_known = source.is_ok() || resize.created().contains(&page);
            assert!(is_known, "an element is added to a page that was not read");
            if added.expiry.is_some() || source.is_ok_and(|at| self.source(at).has_expiries()) {
                anew.insert(page, Vec::new());
            }
        }
        anew
    }

    /// Passes all elements of this packed value to `write`, divided into pages.
    pub fn first_pages(
        &self,
        pages: u32,
        hash: impl Fn(&[u8]) -> u64,
        mut write: impl FnMut(u32, &[u8]),
    ) -> Result<(), Damaged> {
        debug_assert!(self.pages.is_empty(), "the value is split already");
        let mut divided: BTreeMap<u32, Vec<TimedElement<'_>>> = BTreeMap::new();
        for timed in self.iter_timed() {
            let timed = timed?;
            divided.entry(page_of(hash(timed.element.name), pages)).or_default().push(timed);
        }
        let mut bytes = Vec::new();
        for (page, elements) in divided {
            bytes.clear();
            encode_timed(self.value_type, &elements, &mut bytes);
            write(page, &bytes);
        }
        Ok(())
    }
}

impl NewElement {
    fn bytes(self) -> usize {
        self.end - self.start
    }
}

/// Returns the edit of the element at this place, out of sorted edits.
fn edit_at(edits: &[ElementEdit], start: ElementStart) -> Option<&ElementEdit> {
    let place = edits.binary_search_by_key(&start, |edit| edit.start).ok()?;
    Some(&edits[place])
}

fn range(part: Part) -> Range<usize> {
    part.start..part.end
}

/// Returns the elements of a page with their places.
fn placed<'a>(
    source: usize,
    packed: Packed<'a>,
) -> impl Iterator<Item = Result<(ElementStart, usize, Element<'a>), Damaged>> {
    let whole = packed.bytes().len();
    let mut elements = packed.elements();
    std::iter::from_fn(move || {
        let offset = whole - elements.rest().len();
        let element = elements.next()?;
        let end = whole - elements.rest().len();
        Some(element.map(|element| (ElementStart { source, offset }, end, element)))
    })
}

#[cfg(test)]
mod tests;
