//! A stream while a command reads or changes it (`docs/design/values.md`, "Streams").
//!
//! A command gets the root of a stream, and those pages and consumer groups that it has asked for. If
//! it comes to others, it returns a [`StreamGap`], and starts again with them. The bases of pages that
//! were read before are known, so that a search needs a page once.

use crate::list_root::PageInterval;
use crate::packed::Damaged;
use crate::pages::ValueLayout;
use crate::stream_block::{EntryBlock, StreamEntry};
use crate::stream_dump::RestoredStream;
use crate::stream_group::ConsumerGroup;
use crate::stream_id::StreamId;
use crate::stream_root::{GroupPlace, StreamRoot};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use types::Version;

/// A stream with some of its pages and groups.
#[derive(Clone, Debug)]
pub struct PagedStream<'a> {
    root: StreamRoot<'a>,
    /// Set if the key has a stream, or gets one.
    exists: bool,
    is_changed: bool,
    /// Set if entries were added.
    has_pushed: bool,
    pages: BTreeMap<u32, StreamPage<'a>>,
    /// Bases of pages, of the same root.
    bases: &'a BTreeMap<u32, StreamId>,
    removed: BTreeSet<u32>,
    leaves_orphans: bool,
    groups: BTreeMap<Version, OpenedGroup<'a>>,
    room: StreamRoom,
}

/// The records that a command needs of a stream, beside its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamNeeds {
    /// Pages that are read, and numbers of pages that are created.
    pub pages: BTreeSet<u32>,
    /// Groups that are read or created.
    pub groups: BTreeSet<Version>,
    /// Number of ids that were never used.
    pub ids: usize,
}

/// The reason why a command on a stream must start again, or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamGap {
    /// The bytes are damaged.
    Damaged,
    /// These records are needed.
    Needs(StreamNeeds),
}

impl From<Damaged> for StreamGap {
    fn from(_: Damaged) -> StreamGap {
        StreamGap::Damaged
    }
}

/// Records that an attempt may create.
#[derive(Clone, Debug, Default)]
pub struct StreamRoom {
    /// Ids that were never used.
    pub ids: Vec<Version>,
    /// Pages that may be written, of the stream of the root's id or else of the first of these ids.
    pub pages: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
struct StreamPage<'a> {
    block: EntryBlock<'a>,
    is_changed: bool,
}

#[derive(Clone, Debug)]
struct OpenedGroup<'a> {
    group: ConsumerGroup<'a>,
    is_changed: bool,
    is_removed: bool,
}

/// The entries that remain after a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamTrim {
    /// The newest ones, at most so many.
    Length(u64),
    /// Those from this id on.
    From(StreamId),
}

/// How exactly a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimPrecision {
    /// Every other entry is removed.
    Exact,
    /// Whole pages are removed, of at most so many entries; 0: of any number.
    WholePages(u64),
}

/// The entries that a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRange {
    /// The lowest id.
    pub start: StreamId,
    /// The highest id.
    pub end: StreamId,
    /// Most entries.
    pub count: u64,
    /// A page in which the first entry probably is.
    pub hint: Option<u32>,
}

/// Pages of a whole stream that one attempt reads at first: 1 MiB.
const PAGES_AT_FIRST: u64 = 512;

/// Returns the number of pages that the next attempt of a walk reads, which probably needs `wanted` of
/// them beyond those that this one has read. It at least doubles, so that a walk over pages with few
/// entries or none has few attempts: each reads all pages again.
fn pages_of_walk(read: u64, wanted: u64) -> u64 {
    read.saturating_add(wanted.max(read).max(1).min(read + PAGES_AT_FIRST))
}

/// Pages that are removed one by one. Others become orphans.
const PAGES_DELETED_MAX: usize = 256;

impl<'a> PagedStream<'a> {
    /// Returns a stream with these pages and groups of it; `None`: there is no stream.
    pub fn new(
        root: Option<StreamRoot<'a>>,
        pages: impl Iterator<Item = (u32, EntryBlock<'a>)>,
        groups: impl Iterator<Item = (Version, ConsumerGroup<'a>)>,
        bases: &'a BTreeMap<u32, StreamId>,
        room: StreamRoom,
    ) -> PagedStream<'a> {
        let exists = root.is_some();
        let page = |(number, block)| (number, StreamPage { block, is_changed: false });
        let group = |(id, group)| (id, OpenedGroup { group, is_changed: false, is_removed: false });
        PagedStream {
            root: root.unwrap_or(StreamRoot::EMPTY),
            exists,
            is_changed: false,
            has_pushed: false,
            pages: pages.map(page).collect(),
            bases,
            removed: BTreeSet::new(),
            leaves_orphans: false,
            groups: groups.map(group).collect(),
            room,
        }
    }

    /// Returns the root.
    pub fn root(&self) -> &StreamRoot<'a> {
        &self.root
    }

    /// Returns whether the key has a stream.
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// Returns whether the stream was changed.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Creates the stream if there is none.
    pub fn create(&mut self) {
        if !self.exists {
            (self.exists, self.is_changed) = (true, true);
        }
    }

    /// Returns the records that the command has so far, without pages.
    fn needs(&self) -> StreamNeeds {
        StreamNeeds {
            pages: BTreeSet::new(),
            groups: self.groups.keys().copied().collect(),
            ids: self.room.ids.len(),
        }
    }

    /// Returns the gap of these pages, beside those that were read.
    fn gap(&self, pages: impl IntoIterator<Item = u32>) -> StreamGap {
        let mut needs = self.needs();
        needs.pages.extend(pages.into_iter().chain(self.pages.keys().copied()));
        needs.pages.extend(&self.room.pages);
        StreamGap::Needs(needs)
    }

    /// Returns the gap of pages of which only the bases are needed.
    fn probe(&self, pages: impl IntoIterator<Item = u32>) -> StreamGap {
        StreamGap::Needs(StreamNeeds { pages: pages.into_iter().collect(), ..self.needs() })
    }

    /// Returns the block of the first page, of which a walk from the left may remove many.
    fn first_page(&self) -> Result<&EntryBlock<'a>, StreamGap> {
        self.page(self.number(0), || {
            let pages = pages_of_walk(self.room.pages.len() as u64, 1);
            let wanted = pages.min(self.root.interval.pages.into()) as u32;
            (0..wanted).map(|at| self.number(at)).collect()
        })
    }

    /// Returns the number of the page at a position.
    fn number(&self, at: u32) -> u32 {
        self.root.interval.first.wrapping_add(at)
    }

    /// Returns the block of a page; a gap of `wanted`, which contains it, if it was not read.
    fn page(
        &self,
        number: u32,
        wanted: impl FnOnce() -> Vec<u32>,
    ) -> Result<&EntryBlock<'a>, StreamGap> {
        match self.pages.get(&number) {
            Some(page) => Ok(&page.block),
            None => Err(self.gap(wanted())),
        }
    }

    /// Returns the base of a page, if it is known.
    fn base(&self, number: u32) -> Option<StreamId> {
        let read = self.pages.get(&number).map(|page| page.block.base());
        read.or_else(|| self.bases.get(&number).copied())
    }

    /// Returns the position of the last page whose base is at most this id, or 0. A hint is a page
    /// that probably is the one.
    fn search(&self, id: StreamId, hint: Option<u32>) -> Result<u32, StreamGap> {
        let interval = self.root.interval;
        assert!(interval.pages > 0, "a search for a page needs pages");
        let (mut low, mut high) = (0, interval.pages);
        if id <= self.root.first_id {
            return Ok(0);
        }
        let hint = hint.filter(|hint| interval.contains(*hint));
        if let Some(at) = hint.map(|hint| hint.wrapping_sub(interval.first)) {
            let unread = |at: &u32| *at < high && self.base(self.number(*at)).is_none();
            let unread: Vec<u32> = [at, at + 1].into_iter().filter(unread).collect();
            if !unread.is_empty() {
                return Err(self.probe(unread.into_iter().map(|at| self.number(at))));
            }
            for at in [at, at + 1] {
                match self.base(self.number(at)) {
                    Some(base) if at < high && base <= id => low = at,
                    Some(_) if at < high => high = at,
                    Some(_) | None => {}
                }
            }
        }
        // The page at `low` is at or before the one that is searched, that at `high` behind it.
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            let Some(base) = self.base(self.number(middle)) else {
                // Three probes at once.
                let quarter = (high - low) / 4;
                let probes = [middle - quarter, middle, (middle + quarter).min(high - 1)];
                return Err(self.probe(probes.map(|at| self.number(at))));
            };
            match base <= id {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the entries of a range, from the lowest id on, with the page of the last one.
    pub fn range(
        &self,
        range: StreamRange,
    ) -> Result<(Vec<StreamEntry<'_>>, Option<u32>), StreamGap> {
        let StreamRange { start, end, count, hint } = range;
        let start = start.max(self.root.first_id);
        let (mut found, mut last) = (Vec::new(), hint);
        if self.root.count == 0 || start > end || count == 0 || start > self.root.last_id {
            return Ok((found, last));
        }
        let wants = |entry: &StreamEntry<'_>| entry.id >= start && entry.id <= end;
        let is_in_tail = self.root.tail.first_id()?.is_some_and(|first| first <= start);
        if self.root.interval.pages > 0 && !is_in_tail {
            let first = self.search(start, hint)?;
            let all = self.root.interval.pages - first;
            for at in first..self.root.interval.pages {
                let number = self.number(at);
                if self.base(number).is_some_and(|base| base > end) {
                    return Ok((found, last));
                }
                let left = count - found.len() as u64;
                let read = u64::from(at - first);
                let block = self.page(number, || {
                    let more = (left / self.root.entries_per_page()).saturating_add(2);
                    let last = first + pages_of_walk(read, more).min(all.into()) as u32;
                    (first..last).map(|at| self.number(at)).collect()
                })?;
                for entry in block.entries() {
                    let entry = entry?;
                    if entry.id > end || found.len() as u64 == count {
                        return Ok((found, last));
                    }
                    if wants(&entry) {
                        found.push(entry);
                        last = Some(number);
                    }
                }
            }
        }
        for entry in self.root.tail.entries() {
            let entry = entry?;
            if wants(&entry) && (found.len() as u64) < count {
                found.push(entry);
                last = None;
            }
        }
        Ok((found, last))
    }

    /// Returns the entries of a range, from the highest id on.
    pub fn range_reversed(&self, range: StreamRange) -> Result<Vec<StreamEntry<'_>>, StreamGap> {
        let range = StreamRange { start: range.start.max(self.root.first_id), ..range };
        let mut found = Vec::new();
        if self.root.count == 0 || range.start > range.end || range.count == 0 {
            return Ok(found);
        }
        collect_reversed(&self.root.tail, range, &mut found)?;
        let pages = self.root.interval.pages;
        let is_in_tail = self.root.tail.first_id()?.is_some_and(|first| first <= range.start);
        if pages == 0 || is_in_tail || found.len() as u64 == range.count {
            return Ok(found);
        }
        let last = match range.end >= self.root.last_id {
            true => pages - 1,
            false => self.search(range.end, None)?,
        };
        for at in (0..=last).rev() {
            let (left, read) = (range.count - found.len() as u64, u64::from(last - at));
            let block = self.page(self.number(at), || {
                let more = (left / self.root.entries_per_page()).saturating_add(2);
                let first = u64::from(last + 1).saturating_sub(pages_of_walk(read, more)) as u32;
                (first..=last).map(|at| self.number(at)).collect()
            })?;
            collect_reversed(block, range, &mut found)?;
            if found.len() as u64 == range.count || block.base() <= range.start {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the pages in which entries of these ids are, if they exist; a gap if one was not read.
    fn require_places(
        &self,
        ids: impl Iterator<Item = StreamId>,
    ) -> Result<BTreeSet<u32>, StreamGap> {
        let (mut places, mut probes) = (BTreeSet::new(), BTreeSet::new());
        let tail_first = self.root.tail.first_id()?;
        let has_pages = self.root.count > 0 && self.root.interval.pages > 0;
        let in_pages = ids.filter(|id| {
            let is_in_tail = tail_first.is_some_and(|first| *id >= first);
            has_pages && (self.root.first_id..=self.root.last_id).contains(id) && !is_in_tail
        });
        for id in in_pages {
            match self.search(id, None) {
                Ok(at) => drop(places.insert(self.number(at))),
                Err(StreamGap::Needs(needs)) => probes.extend(needs.pages),
                Err(StreamGap::Damaged) => return Err(StreamGap::Damaged),
            }
        }
        if !probes.is_empty() {
            return Err(self.probe(probes));
        }
        match places.iter().all(|number| self.pages.contains_key(number)) {
            true => Ok(places),
            false => Err(self.gap(places)),
        }
    }

    /// Returns a gap if a page in which an entry of these ids may be was not read. A command that looks
    /// for many entries requires them first: all are searched at once.
    pub fn require_entries(&self, ids: impl Iterator<Item = StreamId>) -> Result<(), StreamGap> {
        self.require_places(ids).map(drop)
    }

    /// Returns the entry of this id.
    pub fn entry(&self, id: StreamId) -> Result<Option<StreamEntry<'_>>, StreamGap> {
        let range = StreamRange { start: id, end: id, count: 1, hint: None };
        Ok(self.range(range)?.0.pop())
    }

    /// Returns an error if pages or groups of the stream were not read.
    pub fn require_all(&self) -> Result<(), StreamGap> {
        let has_page = |number| self.pages.contains_key(&number);
        let has_groups = self.root.groups.iter().all(|group| self.groups.contains_key(&group.id));
        if has_groups && self.root.interval.numbers().all(has_page) {
            return Ok(());
        }
        let StreamGap::Needs(mut needs) = self.gap(self.root.interval.numbers()) else {
            unreachable!("a gap of pages has needs")
        };
        needs.groups.extend(self.root.groups.iter().map(|group| group.id));
        Err(StreamGap::Needs(needs))
    }
}

/// Adds the entries of a block that are in a range, from the highest id on, up to their number.
fn collect_reversed<'b>(
    block: &'b EntryBlock<'_>,
    range: StreamRange,
    found: &mut Vec<StreamEntry<'b>>,
) -> Result<(), Damaged> {
    let mut within = Vec::new();
    for entry in block.entries() {
        let entry = entry?;
        if (range.start..=range.end).contains(&entry.id) {
            within.push(entry);
        }
    }
    let left = usize::try_from(range.count).unwrap_or(usize::MAX) - found.len();
    found.extend(within.into_iter().rev().take(left));
    Ok(())
}

/// Changes of the entries.
impl<'a> PagedStream<'a> {
    /// Adds an entry. Its id is higher than every one before.
    pub fn push<'f>(
        &mut self,
        id: StreamId,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone,
    ) {
        assert!(id > self.root.last_id, "ids of a stream ascend");
        self.create();
        if self.root.count == 0 {
            self.root.first_id = id;
        }
        self.root.tail.push(id, fields);
        self.root.count += 1;
        self.root.added = self.root.added.saturating_add(1);
        self.root.last_id = id;
        (self.is_changed, self.has_pushed) = (true, true);
    }

    /// Sets the highest id that was used, and the counters that are given. The id is at least that of
    /// the last entry, which this attempt has read.
    pub fn set_last_id(&mut self, id: StreamId, added: Option<u64>, max_deleted: Option<StreamId>) {
        // The bases of pages ascend. Those of pages behind the last entry may be higher than the ids
        // that follow.
        self.remove_empty_last_pages();
        self.root.last_id = id;
        self.root.added = added.unwrap_or(self.root.added);
        self.root.max_deleted = max_deleted.unwrap_or(self.root.max_deleted);
        self.is_changed = true;
    }

    /// Returns the highest id of an entry.
    pub fn last_entry_id(&self) -> Result<Option<StreamId>, StreamGap> {
        let all = StreamRange { start: StreamId::MIN, end: StreamId::MAX, count: 1, hint: None };
        Ok(self.range_reversed(all)?.first().map(|entry| entry.id))
    }

    /// Removes the entries of these ids. Returns their number.
    pub fn remove(&mut self, ids: &BTreeSet<StreamId>) -> Result<u64, StreamGap> {
        if self.root.count == 0 {
            return Ok(0);
        }
        let places = self.require_places(ids.iter().copied())?;
        let (first, mut removed) = (self.root.first_id, BTreeSet::new());
        let mut keeps = |id: StreamId| {
            let is_removed = id >= first && ids.contains(&id);
            removed.extend(is_removed.then_some(id));
            id >= first && !is_removed
        };
        for number in &places {
            self.retain_in_page(*number, &mut keeps)?;
        }
        self.root.tail.retain(&mut keeps)?;
        let Some(highest) = removed.last().copied() else { return Ok(0) };
        self.is_changed = true;
        let removed = removed.len() as u64;
        self.root.count = self.root.count.checked_sub(removed).ok_or(Damaged)?;
        self.root.max_deleted = self.root.max_deleted.max(highest);
        let is_first = self.root.interval.pages == 0 || places.contains(&self.number(0));
        if is_first || self.root.count == 0 {
            self.settle_front()?;
        }
        self.remove_empty_last_pages();
        Ok(removed)
    }

    fn retain_in_page(
        &mut self,
        number: u32,
        keeps: impl FnMut(StreamId) -> bool,
    ) -> Result<(), Damaged> {
        let Some(page) = self.pages.get_mut(&number) else { unreachable!("the page was read") };
        let before = page.block.byte_count() as u64;
        if page.block.retain(keeps)? > 0 {
            page.is_changed = true;
            let after = page.block.byte_count() as u64;
            self.root.page_bytes = self.root.page_bytes.saturating_sub(before - after);
        }
        Ok(())
    }

    /// Removes pages without entries at the right end, as far as they were read.
    fn remove_empty_last_pages(&mut self) {
        while let Some(last) = self.root.interval.pages.checked_sub(1).map(|at| self.number(at))
            && self.pages.get(&last).is_some_and(|page| page.block.count() == 0)
        {
            self.root.interval.pages -= 1;
            let bytes = self.pages.remove(&last).map_or(0, |page| page.block.byte_count() as u64);
            self.root.page_bytes = self.root.page_bytes.saturating_sub(bytes);
            self.removed.insert(last);
        }
    }

    /// Removes the first pages. Few of them are read before, so that they leave no orphans.
    fn remove_first_pages(&mut self, count: u32) -> Result<(), StreamGap> {
        let interval = self.root.interval;
        assert!(count <= interval.pages, "a stream has no more pages");
        let gone = PageInterval { pages: count, ..interval };
        let is_read = |number| self.pages.contains_key(&number);
        if count as usize <= PAGES_DELETED_MAX && !gone.numbers().all(is_read) {
            return Err(self.gap(gone.numbers()));
        }
        for number in gone.numbers() {
            let pages = u64::from(self.root.interval.pages);
            let bytes = match self.pages.remove(&number) {
                Some(page) if self.removed.len() < PAGES_DELETED_MAX => {
                    self.removed.insert(number);
                    page.block.byte_count() as u64
                }
                Some(page) => {
                    self.leaves_orphans = true;
                    page.block.byte_count() as u64
                }
                None => {
                    self.leaves_orphans = true;
                    self.root.page_bytes / pages
                }
            };
            self.root.page_bytes = self.root.page_bytes.saturating_sub(bytes);
            self.root.interval.first = self.root.interval.first.wrapping_add(1);
            self.root.interval.pages -= 1;
        }
        if self.root.interval.pages == 0 {
            (self.root.page_bytes, self.root.first_live) = (0, 0);
        }
        Ok(())
    }

    /// Finds the first entry again, after the removal of entries at the left end: those below the
    /// present first id. Pages without further entries are removed.
    fn settle_front(&mut self) -> Result<(), StreamGap> {
        self.is_changed = true;
        if self.root.count == 0 {
            self.remove_first_pages(self.root.interval.pages)?;
            self.root.tail = EntryBlock::EMPTY;
            self.root.first_id = StreamId::MIN;
            return Ok(());
        }
        while self.root.interval.pages > 0 {
            let (mut first, mut live) = (None, 0);
            for entry in self.first_page()?.entries() {
                let id = entry?.id;
                if id >= self.root.first_id {
                    first = first.or(Some(id));
                    live += 1;
                }
            }
            if let Some(first) = first {
                (self.root.first_id, self.root.first_live) = (first, live);
                return Ok(());
            }
            self.remove_first_pages(1)?;
        }
        let first = self.root.tail.first_id()?.ok_or(Damaged)?;
        (self.root.first_id, self.root.first_live) = (first, 0);
        Ok(())
    }

    /// Removes the oldest entries. Returns their number.
    pub fn trim(&mut self, trim: StreamTrim, precision: TrimPrecision) -> Result<u64, StreamGap> {
        let is_needed = self.root.count > 0
            && match trim {
                StreamTrim::Length(length) => self.root.count > length,
                StreamTrim::From(id) => id > self.root.first_id,
            };
        if !is_needed {
            return Ok(0);
        }
        let removed = match (trim, precision) {
            (_, TrimPrecision::WholePages(limit)) => self.trim_pages(trim, limit)?,
            (StreamTrim::Length(length), TrimPrecision::Exact) => {
                let excess = self.root.count - length;
                self.trim_excess(excess)?;
                excess
            }
            (StreamTrim::From(id), TrimPrecision::Exact) => self.trim_below(id)?,
        };
        self.is_changed |= removed > 0;
        Ok(removed)
    }

    /// Removes whole pages of the oldest entries, of at most `limit` entries unless that is 0.
    fn trim_pages(&mut self, trim: StreamTrim, limit: u64) -> Result<u64, StreamGap> {
        let mut removed = 0;
        while self.root.count > 0 {
            let is_last = self.root.interval.pages == 0;
            let live = if is_last { self.root.count } else { self.root.first_live };
            let is_beyond = match trim {
                StreamTrim::Length(length) => self.root.count.saturating_sub(live) >= length,
                StreamTrim::From(id) => {
                    let last = match is_last {
                        true => self.root.tail.last_id()?,
                        false => self.first_page()?.last_id()?,
                    };
                    last.is_none_or(|last| last < id)
                }
            };
            if !is_beyond || limit > 0 && removed + live > limit {
                break;
            }
            self.root.count = self.root.count.checked_sub(live).ok_or(Damaged)?;
            removed += live;
            if !is_last {
                self.remove_first_pages(1)?;
            }
            self.settle_front()?;
        }
        Ok(removed)
    }

    /// Removes so many of the oldest entries.
    fn trim_excess(&mut self, excess: u64) -> Result<(), StreamGap> {
        let in_tail = self.root.tail.count();
        let in_pages = self.root.count.checked_sub(in_tail).ok_or(Damaged)?;
        let left = self.root.count - excess;
        if excess >= in_pages {
            self.remove_first_pages(self.root.interval.pages)?;
            let mut to_pass = excess - in_pages;
            self.root.tail.retain(|_| {
                let is_kept = to_pass == 0;
                to_pass -= u64::from(!is_kept);
                is_kept
            })?;
        } else {
            let (at, first) = match excess <= left {
                true => self.find_from_left(excess)?,
                false => self.find_from_right(left - in_tail)?,
            };
            self.remove_first_pages(at)?;
            self.root.first_id = first;
        }
        self.root.count = left;
        self.settle_front()
    }

    /// Returns the entry behind so many of the oldest ones, which is in a page, and the page.
    fn find_from_left(&self, mut excess: u64) -> Result<(u32, StreamId), StreamGap> {
        for at in 0..self.root.interval.pages {
            if at == 0 && excess >= self.root.first_live {
                excess -= self.root.first_live;
                continue;
            }
            let block = self.page(self.number(at), || {
                let more = (excess / self.root.entries_per_page()).saturating_add(1);
                let pages = pages_of_walk(at.into(), more);
                let end = pages.min(u64::from(self.root.interval.pages)) as u32;
                (at.min(1)..end.max(at + 1)).map(|at| self.number(at)).collect()
            })?;
            let live = match at {
                0 => self.root.first_live,
                _ => block.count(),
            };
            if excess < live {
                let dead = block.count().checked_sub(live).ok_or(Damaged)?;
                return Ok((at, nth_id(block, dead + excess)?));
            }
            excess -= live;
        }
        Err(StreamGap::Damaged)
    }

    /// Returns the first of so many of the newest entries in pages, and its page.
    fn find_from_right(&self, mut kept: u64) -> Result<(u32, StreamId), StreamGap> {
        let pages = self.root.interval.pages;
        for at in (0..pages).rev() {
            let block = self.page(self.number(at), || {
                let more = (kept / self.root.entries_per_page()).saturating_add(1);
                let wanted = pages_of_walk((pages - 1 - at).into(), more);
                let first = u64::from(pages).saturating_sub(wanted) as u32;
                (first.min(at)..pages).map(|at| self.number(at)).collect()
            })?;
            if kept <= block.count() {
                return Ok((at, nth_id(block, block.count() - kept)?));
            }
            kept -= block.count();
        }
        Err(StreamGap::Damaged)
    }

    /// Removes the entries below an id. Returns their number.
    fn trim_below(&mut self, id: StreamId) -> Result<u64, StreamGap> {
        let before = self.root.count;
        let pages = self.root.interval.pages;
        let tail_first = self.root.tail.first_id()?;
        let is_in_tail = tail_first.is_some_and(|first| first <= id) || id > self.root.last_id;
        let kept = if pages == 0 || is_in_tail {
            self.remove_first_pages(pages)?;
            self.root.tail.retain(|entry| entry >= id)?;
            self.root.tail.count()
        } else {
            let at = self.search(id, None)?;
            let is_left = at <= pages / 2;
            let counted = if is_left { 0..at + 1 } else { at..pages };
            if !counted.clone().all(|at| self.pages.contains_key(&self.number(at))) {
                return Err(self.gap(counted.map(|at| self.number(at)).collect::<Vec<u32>>()));
            }
            let (mut beyond, mut within) = (0, 0);
            for at in counted {
                let number = self.number(at);
                for entry in self.page(number, || vec![number])?.entries() {
                    let entry = entry?.id;
                    beyond += u64::from(entry >= id);
                    within += u64::from(entry >= self.root.first_id && entry < id);
                }
            }
            let kept = match is_left {
                true => before.checked_sub(within).ok_or(Damaged)?,
                false => beyond + self.root.tail.count(),
            };
            self.remove_first_pages(at)?;
            kept
        };
        self.root.first_id = id.min(self.root.last_id);
        self.root.count = kept;
        self.settle_front()?;
        before.checked_sub(kept).ok_or(StreamGap::Damaged)
    }
}

/// Returns the id of the entry at a position of a block.
fn nth_id(block: &EntryBlock<'_>, position: u64) -> Result<StreamId, Damaged> {
    let position = usize::try_from(position).map_err(|_| Damaged)?;
    Ok(block.entries().nth(position).ok_or(Damaged)??.id)
}

/// The records that are written.
impl<'a> PagedStream<'a> {
    /// Moves entries from the root into pages, if a command has added too many.
    pub fn settle(&mut self, layout: &ValueLayout) -> Result<(), StreamGap> {
        let bytes_max = match self.root.interval.pages {
            0 => layout.packed_bytes_max,
            _ => layout.stream_tail_bytes(),
        };
        let is_long = self.root.tail.byte_count() > bytes_max && self.root.count > 1;
        match self.has_pushed && is_long {
            true => self.divide_tail(layout.list_page_bytes()),
            false => Ok(()),
        }
    }

    /// Moves all entries of the root into the last page, and into new ones behind it.
    fn divide_tail(&mut self, page_bytes: usize) -> Result<(), StreamGap> {
        let interval = self.root.interval;
        let (mut number, mut block) = match interval.pages.checked_sub(1) {
            Some(last) => {
                let last = self.number(last);
                (last, self.page(last, || vec![last])?.clone())
            }
            None => (interval.first, EntryBlock::EMPTY),
        };
        let tail = std::mem::replace(&mut self.root.tail, EntryBlock::EMPTY);
        let (mut new, mut is_first) = (Vec::new(), interval.pages <= 1);
        // An empty last page is shorter with its first entry than before.
        let before = block.byte_count() as u64;
        for entry in tail.entries() {
            let entry = entry?;
            if block.count() > 0 && entry.id < block.base() {
                return Err(StreamGap::Damaged);
            }
            let bytes = EntryBlock::entry_bytes(entry.fields());
            if block.count() > 0 && block.byte_count() + bytes > page_bytes {
                new.push((number, std::mem::replace(&mut block, EntryBlock::EMPTY)));
                (number, is_first) = (number.wrapping_add(1), false);
            }
            self.root.first_live += u64::from(is_first);
            block.push(entry.id, entry.fields());
        }
        new.push((number, block));
        let created = |number: &u32| !interval.contains(*number);
        let numbers: Vec<u32> = new.iter().map(|(number, _)| *number).filter(created).collect();
        let has_id = self.root.id != Version(0) || !self.room.ids.is_empty();
        if !has_id || !numbers.iter().all(|number| self.room.pages.contains(number)) {
            let StreamGap::Needs(mut needs) = self.gap(numbers) else {
                unreachable!("a gap of pages has needs")
            };
            needs.ids = needs.ids.max(1);
            return Err(StreamGap::Needs(needs));
        }
        if self.root.id == Version(0) {
            self.root.id = self.room.ids[0];
        }
        self.root.interval.pages += numbers.len() as u32;
        let after: u64 = new.iter().map(|(_, block)| block.byte_count() as u64).sum();
        self.root.page_bytes = self.root.page_bytes.saturating_sub(before).saturating_add(after);
        for (number, block) in new {
            self.removed.remove(&number);
            self.pages.insert(number, StreamPage { block, is_changed: true });
        }
        Ok(())
    }

    /// Returns the pages that have changed.
    pub fn changed_pages(&self) -> impl Iterator<Item = (u32, &EntryBlock<'a>)> {
        let changed = self.pages.iter().filter(|(_, page)| self.is_changed && page.is_changed);
        changed.map(|(number, page)| (*number, &page.block))
    }

    /// Returns the pages that were read and are removed.
    pub fn removed_pages(&self) -> impl Iterator<Item = u32> {
        self.removed.iter().copied()
    }

    /// Returns whether records are left that no root has.
    pub fn leaves_orphans(&self) -> bool {
        self.leaves_orphans
    }

    /// Takes over the contents of another stream, all of which was read.
    pub fn copy_from(&mut self, other: &PagedStream<'a>) -> Result<(), StreamGap> {
        other.require_all()?;
        let ids = 1 + other.root.groups.len();
        let numbers = other.root.interval;
        let has_pages = numbers.numbers().all(|number| self.room.pages.contains(&number));
        if self.room.ids.len() < ids || !has_pages {
            let pages = numbers.numbers().collect();
            return Err(StreamGap::Needs(StreamNeeds { pages, groups: BTreeSet::new(), ids }));
        }
        self.root = other.root.clone();
        self.root.id = self.room.ids[0];
        let new = |page: &StreamPage<'a>| StreamPage { is_changed: true, ..page.clone() };
        self.pages = other.pages.iter().map(|(number, page)| (*number, new(page))).collect();
        self.groups.clear();
        for (place, id) in self.root.groups.iter_mut().zip(&self.room.ids[1..]) {
            let Some(group) = other.groups.get(&place.id) else {
                unreachable!("all groups were read")
            };
            self.groups.insert(*id, OpenedGroup { is_changed: true, ..group.clone() });
            place.id = *id;
        }
        (self.exists, self.is_changed) = (true, true);
        Ok(())
    }

    /// Takes over the contents of a stream that was read from a dump. Its blocks become pages, unless
    /// the root has room for all entries.
    pub fn restore(
        &mut self,
        stream: &RestoredStream,
        layout: &ValueLayout,
    ) -> Result<(), StreamGap> {
        let is_short = stream.entry_bytes <= layout.packed_bytes_max;
        let pages = if is_short { 0 } else { stream.blocks.len() as u32 };
        let interval = PageInterval { first: 0, pages };
        let has_records = pages > 0 || !stream.groups.is_empty();
        // The first id is for pages.
        let ids = if has_records { 1 + stream.groups.len() } else { 0 };
        let has_room = interval.numbers().all(|number| self.room.pages.contains(&number));
        if self.room.ids.len() < ids || !has_room {
            let pages = interval.numbers().collect();
            return Err(StreamGap::Needs(StreamNeeds { pages, groups: BTreeSet::new(), ids }));
        }
        let first_id = stream.blocks.first().map(EntryBlock::first_id).transpose()?.flatten();
        self.root = StreamRoot {
            id: self.room.ids.first().copied().filter(|_| has_records).unwrap_or_default(),
            interval,
            page_bytes: 0,
            count: stream.count,
            last_id: stream.last_id,
            max_deleted: stream.max_deleted,
            added: stream.added,
            first_id: first_id.unwrap_or(StreamId::MIN),
            first_live: 0,
            groups: Vec::new(),
            tail: EntryBlock::EMPTY,
        };
        self.pages.clear();
        self.groups.clear();
        for (number, block) in interval.numbers().zip(&stream.blocks) {
            self.root.page_bytes += block.byte_count() as u64;
            self.pages.insert(number, StreamPage { block: block.clone(), is_changed: true });
        }
        match pages {
            0 => stream.blocks.iter().try_for_each(|block| self.push_block(block))?,
            _ => self.root.first_live = stream.blocks[0].count(),
        }
        for ((name, group), id) in stream.groups.iter().zip(self.room.ids.iter().skip(1)) {
            self.root.groups.push(GroupPlace { id: *id, name: Cow::Owned(name.clone()) });
            let group = OpenedGroup { group: group.clone(), is_changed: true, is_removed: false };
            self.groups.insert(*id, group);
        }
        (self.exists, self.is_changed) = (true, true);
        Ok(())
    }

    /// Adds the entries of a block to the root.
    fn push_block(&mut self, block: &EntryBlock<'_>) -> Result<(), Damaged> {
        for entry in block.entries() {
            let entry = entry?;
            self.root.tail.push(entry.id, entry.fields());
        }
        Ok(())
    }

    /// Removes the stream with all of its records.
    pub fn clear(&mut self) {
        self.leaves_orphans |= self.root.has_pages();
        self.root = StreamRoot::EMPTY;
        self.pages.clear();
        self.groups.clear();
        (self.exists, self.is_changed) = (false, true);
    }
}

/// Consumer groups.
impl<'a> PagedStream<'a> {
    /// Returns a group; `None`: there is no such group.
    pub fn group(&self, name: &[u8]) -> Result<Option<&ConsumerGroup<'a>>, StreamGap> {
        let Ok(at) = self.root.find_group(name) else { return Ok(None) };
        let id = self.root.groups[at].id;
        match self.groups.get(&id) {
            Some(opened) => Ok(Some(&opened.group)),
            None => {
                let StreamGap::Needs(mut needs) = self.gap([]) else {
                    unreachable!("a gap has needs")
                };
                needs.groups.insert(id);
                Err(StreamGap::Needs(needs))
            }
        }
    }

    /// Replaces the contents of a group, which was read or is created.
    pub fn set_group(&mut self, name: &[u8], group: ConsumerGroup<'a>) -> Result<(), StreamGap> {
        let id = match self.root.find_group(name) {
            Ok(at) => self.root.groups[at].id,
            Err(at) => {
                // The first id is for pages.
                let used = self.root.groups.iter().map(|group| group.id);
                let used: BTreeSet<Version> = used.collect();
                let unused = self.room.ids.iter().skip(1).find(|id| !used.contains(id));
                let Some(id) = unused.copied() else {
                    let StreamGap::Needs(mut needs) = self.gap([]) else {
                        unreachable!("a gap has needs")
                    };
                    needs.ids = self.room.ids.len().max(1) + 1;
                    return Err(StreamGap::Needs(needs));
                };
                let name = Cow::Owned(name.to_vec());
                self.root.groups.insert(at, GroupPlace { id, name });
                id
            }
        };
        self.groups.insert(id, OpenedGroup { group, is_changed: true, is_removed: false });
        (self.is_changed, self.exists) = (true, true);
        Ok(())
    }

    /// Removes a group. Returns whether it existed.
    pub fn remove_group(&mut self, name: &[u8]) -> Result<bool, StreamGap> {
        if self.group(name)?.is_none() {
            return Ok(false);
        }
        let Ok(at) = self.root.find_group(name) else { unreachable!("the group was found") };
        let place = self.root.groups.remove(at);
        if let Some(group) = self.groups.get_mut(&place.id) {
            group.is_removed = true;
        }
        self.is_changed = true;
        Ok(true)
    }

    /// Returns the groups that have changed; `None`: the group was removed.
    pub fn changed_groups(&self) -> impl Iterator<Item = (Version, Option<&ConsumerGroup<'a>>)> {
        let changed = self.groups.iter().filter(|(_, group)| group.is_changed || group.is_removed);
        changed.map(|(id, opened)| (*id, (!opened.is_removed).then_some(&opened.group)))
    }
}

#[cfg(test)]
mod tests;
