//! A list with those of its pages that were read, while a command reads or changes it.
//!
//! Commands see one sequence of items. If they need items of a page that was not read, they are told
//! how far to read, and start again. Changes leave unchanged items where they are. In the end,
//! [`PagedList::settle`] decides how the list is stored: packed, or as a root with pages.
//!
//! Items that are added or removed at an end mostly change the root alone. When the items at an end
//! of the root become too long, they are joined to the page there, or become a page. When they run
//! out, some items of that page move into the root.

use crate::item_run::ItemRun;
use crate::list::{ListEnd, ListPart, PackedList};
use crate::list_root::{ListForm, ListRoot, PageInterval};
use crate::packed::Damaged;
use crate::pages::ValueLayout;
use std::ops::Range;
use types::Version;

/// Most pages that a change removes one by one. Further ones become orphans.
const REMOVED_MAX: usize = 1024;

/// Most bytes of pages that are written anew because one of them has become too long, or most of
/// them nearly empty.
const REPACKED_BYTES_MAX: u64 = 1 << 20;

/// A list with those of its pages that were read.
#[derive(Debug)]
pub struct PagedList<'a> {
    /// The root as it was found; `None`: the list is packed, or new.
    root: Option<ListRoot<'a>>,
    count: u64,
    bytes: u64,
    /// The items left of the pages; all items of a packed list.
    left: ItemRun<'a>,
    /// Pages that were read, from the left one on.
    before: Vec<ListPage<'a>>,
    /// Pages that were not read.
    unread: PageInterval,
    /// Pages that were read, up to the right one.
    after: Vec<ListPage<'a>>,
    /// The items right of the pages.
    right: ItemRun<'a>,
    is_changed: bool,
    /// Pages that were read and are no longer needed.
    removed: Vec<u32>,
    /// Set if pages are no longer needed that are not removed.
    leaves_orphans: bool,
}

/// A page.
#[derive(Clone, Debug)]
struct ListPage<'a> {
    number: u32,
    items: ItemRun<'a>,
    is_changed: bool,
}

/// The reason why a command on a list cannot be completed with the pages that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListGap {
    /// The list is damaged.
    Damaged,
    /// Items that were not read are needed: so many from an end on.
    Unread {
        /// The end.
        end: ListEnd,
        /// The number of items.
        items: u64,
    },
    /// Pages must be created at an end: so many. A list without pages needs an id for them.
    Uncreated {
        /// The end.
        end: ListEnd,
        /// The number of pages.
        pages: u32,
    },
}

impl From<Damaged> for ListGap {
    fn from(Damaged: Damaged) -> ListGap {
        ListGap::Damaged
    }
}

/// The form of a list after a change.
#[derive(Clone, Debug)]
pub enum NewList<'a> {
    /// It has not changed.
    Unchanged,
    /// It has no items: the key is removed.
    Removed,
    /// It is packed.
    Packed(ItemRun<'a>),
    /// It has a root with these items at its ends.
    Split {
        /// The root. Its items have no meaning.
        root: ListRoot<'static>,
        /// The items at both ends.
        ends: [ItemRun<'a>; 2],
    },
}

/// How many pages of a list are read from each end on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListReach {
    left: u32,
    right: u32,
}

/// Growth of the number of pages from one attempt to the next one, if it was too low.
const REACH_GROWTH: u32 = 4;

impl ListReach {
    /// Reaches further, to so many items from an end on as far as the root tells, and in any case to
    /// more pages.
    pub fn extend(&mut self, root: &ListRoot<'_>, end: ListEnd, items: u64) {
        let (pages, at_end) = match end {
            ListEnd::Left => (&mut self.left, root.left.count()),
            ListEnd::Right => (&mut self.right, root.right.count()),
        };
        let likely = items.saturating_sub(at_end as u64).div_ceil(root.items_per_page());
        let likely = u32::try_from(likely + likely / 8).unwrap_or(u32::MAX);
        *pages = likely.max(pages.saturating_mul(REACH_GROWTH)).max(1).min(root.interval.pages);
    }

    /// Returns the pages to read from the left and from the right end on.
    pub fn of(self, interval: PageInterval) -> [PageInterval; 2] {
        let PageInterval { first, pages } = interval;
        if u64::from(self.left) + u64::from(self.right) >= u64::from(pages) {
            return [interval, PageInterval { first: interval.end(), pages: 0 }];
        }
        let right = interval.end().wrapping_sub(self.right);
        [PageInterval { first, pages: self.left }, PageInterval { first: right, pages: self.right }]
    }
}

/// Page numbers that a change may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageRoom {
    /// The id of a list that is divided; `None`: it stays packed, or has an id.
    pub id: Option<Version>,
    /// Most pages that are created at each end.
    pub created: [u32; 2],
}

impl<'a> PagedList<'a> {
    /// Returns a list, given the pages from both ends on that were read, in order.
    pub fn new(
        form: ListForm<'a>,
        [before, after]: [Vec<PackedList<'a>>; 2],
    ) -> Result<PagedList<'a>, Damaged> {
        let root = match form {
            ListForm::Split(root) => root,
            ListForm::Packed(list) => {
                let bytes = list.byte_count() as u64;
                let list = PagedList { count: list.count() as u64, bytes, ..PagedList::of(list) };
                return Ok(list);
            }
        };
        let interval = root.interval;
        let read = u32::try_from(before.len() + after.len()).map_err(|_| Damaged)?;
        let unread = interval.pages.checked_sub(read).ok_or(Damaged)?;
        let page = |(number, items): (u32, PackedList<'a>)| ListPage {
            number,
            items: items.into(),
            is_changed: false,
        };
        let first_after = interval.end().wrapping_sub(after.len() as u32);
        let first_unread = first_after.wrapping_sub(unread);
        let numbers = PageInterval { first: first_after, pages: after.len() as u32 };
        Ok(PagedList {
            count: root.count,
            bytes: root.bytes,
            before: interval.numbers().zip(before).map(page).collect(),
            unread: PageInterval { first: first_unread, pages: unread },
            after: numbers.numbers().zip(after).map(page).collect(),
            right: root.right.into(),
            root: Some(root),
            ..PagedList::of(root.left)
        })
    }

    fn of(left: PackedList<'a>) -> PagedList<'a> {
        PagedList {
            root: None,
            count: 0,
            bytes: 0,
            left: left.into(),
            before: Vec::new(),
            unread: PageInterval::default(),
            after: Vec::new(),
            right: ItemRun::EMPTY,
            is_changed: false,
            removed: Vec::new(),
            leaves_orphans: false,
        }
    }

    /// Returns the number of items of the whole list.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the bytes of all encoded items of the whole list.
    pub fn byte_count(&self) -> u64 {
        self.bytes
    }

    /// Returns whether pages exist that are not reached any more, and are not removed.
    pub fn leaves_orphans(&self) -> bool {
        self.leaves_orphans
    }

    /// Returns whether all items of the list were read.
    fn is_whole(&self) -> bool {
        self.unread.pages == 0
    }

    fn runs(&self) -> usize {
        self.before.len() + self.after.len() + 2
    }

    /// Returns the first run behind the pages that were not read.
    fn behind_unread(&self) -> usize {
        self.before.len() + 1
    }

    fn run(&self, at: usize) -> &ItemRun<'a> {
        let pages = self.before.len();
        match at {
            0 => &self.left,
            at if at <= pages => &self.before[at - 1].items,
            at => self.after.get(at - 1 - pages).map_or(&self.right, |page| &page.items),
        }
    }

    /// Returns a run that is changed.
    fn run_mut(&mut self, at: usize) -> &mut ItemRun<'a> {
        self.is_changed = true;
        let pages = self.before.len();
        let page = match at {
            0 => return &mut self.left,
            at if at <= pages => &mut self.before[at - 1],
            at => match self.after.get_mut(at - 1 - pages) {
                Some(page) => page,
                None => return &mut self.right,
            },
        };
        page.is_changed = true;
        &mut page.items
    }

    /// Returns the positions of the runs that were read from an end on.
    fn runs_from(&self, end: ListEnd) -> impl Iterator<Item = usize> + use<> {
        let read = match (end, self.is_whole()) {
            (_, true) => 0..self.runs(),
            (ListEnd::Left, false) => 0..self.behind_unread(),
            (ListEnd::Right, false) => self.behind_unread()..self.runs(),
        };
        let (start, last) = (read.start, read.end - 1);
        (0..read.len()).map(move |passed| match end {
            ListEnd::Left => start + passed,
            ListEnd::Right => last - passed,
        })
    }

    /// Returns the number of items that were read from an end on.
    fn read_from(&self, end: ListEnd) -> u64 {
        self.runs_from(end).map(|at| self.run(at).count()).sum()
    }

    /// Tells to read so many items from an end on. A whole list that has fewer is damaged.
    fn unread(&self, end: ListEnd, items: u64) -> ListGap {
        match self.is_whole() {
            true => ListGap::Damaged,
            false => ListGap::Unread { end, items },
        }
    }

    /// Returns the run that contains the item at this position, and the place there.
    fn place(&self, at: u64) -> Result<(usize, u64), ListGap> {
        assert!(at < self.count, "item {at} of {}", self.count);
        for (end, passed) in [(ListEnd::Left, at), (ListEnd::Right, self.count - 1 - at)] {
            let mut left = passed;
            for run in self.runs_from(end) {
                let count = self.run(run).count();
                match left.checked_sub(count) {
                    Some(rest) => left = rest,
                    None if end == ListEnd::Left => return Ok((run, left)),
                    None => return Ok((run, count - 1 - left)),
                }
            }
        }
        Err(match at < self.count / 2 {
            true => self.unread(ListEnd::Left, at + 1),
            false => self.unread(ListEnd::Right, self.count - at),
        })
    }

    /// Returns the item at a position; `None`: there are fewer.
    pub fn item(&self, at: u64) -> Result<Option<&'a [u8]>, ListGap> {
        if at >= self.count {
            return Ok(None);
        }
        let (run, place) = self.place(at)?;
        let mut rest = self.run(run).clone();
        rest.take(ListEnd::Left, place)?;
        let one = rest.take(ListEnd::Left, 1)?.items().next().ok_or(ListGap::Damaged)?;
        Ok(Some(one?))
    }

    /// Returns the items at these positions.
    pub fn slice(&self, range: Range<u64>) -> Result<ItemRun<'a>, ListGap> {
        assert!(range.end <= self.count, "items {range:?} of {}", self.count);
        if range.is_empty() {
            return Ok(ItemRun::EMPTY);
        }
        let (from_left, from_right) = (range.end, self.count - range.start);
        let end = match from_left <= self.read_from(ListEnd::Left) {
            true => ListEnd::Left,
            false if from_right <= self.read_from(ListEnd::Right) => ListEnd::Right,
            false if from_left <= from_right => {
                return Err(self.unread(ListEnd::Left, from_left));
            }
            false => return Err(self.unread(ListEnd::Right, from_right)),
        };
        let skipped = if end == ListEnd::Left { range.start } else { self.count - range.end };
        let (mut skip, mut wanted) = (skipped, range.end - range.start);
        let mut items = Vec::new();
        for at in self.runs_from(end) {
            let count = self.run(at).count();
            if skip >= count {
                skip -= count;
                continue;
            }
            let mut run = self.run(at).clone();
            run.take(end, skip)?;
            skip = 0;
            let some = run.take(end, wanted)?;
            wanted -= some.count();
            items.push(some);
            if wanted == 0 {
                return Ok(ItemRun::together(items, end));
            }
        }
        Err(ListGap::Damaged)
    }

    /// Passes the items from an end on to `f`, with the number of those passed before, until it
    /// returns true.
    pub fn search(
        &self,
        end: ListEnd,
        mut f: impl FnMut(u64, &'a [u8]) -> bool,
    ) -> Result<(), ListGap> {
        let mut passed = 0;
        for at in self.runs_from(end) {
            let parts: Vec<PackedList<'a>> = match end {
                ListEnd::Left => self.run(at).parts().collect(),
                ListEnd::Right => self.run(at).parts().rev().collect(),
            };
            for item in parts.into_iter().flat_map(|part| part.items_from(end)) {
                // The root knows the number of items, and pages may be older than it.
                if passed >= self.count {
                    return Err(ListGap::Damaged);
                }
                if f(passed, item?) {
                    return Ok(());
                }
                passed += 1;
            }
        }
        match passed == self.count {
            true => Ok(()),
            false => Err(self.unread(end, passed + 1)),
        }
    }

    /// Adds items at an end, in their order.
    pub fn push(&mut self, end: ListEnd, items: PackedList<'a>) {
        self.is_changed |= items.count() > 0;
        self.count += items.count() as u64;
        self.bytes = self.bytes.saturating_add(items.byte_count() as u64);
        match end {
            ListEnd::Left => self.left.push(end, items),
            ListEnd::Right => self.right.push(end, items),
        }
    }

    /// Removes so many items at an end, or all if there are fewer, and returns them from left to
    /// right.
    pub fn pop(&mut self, end: ListEnd, count: u64) -> Result<ItemRun<'a>, ListGap> {
        let (count, mut popped) = (count.min(self.count), Vec::new());
        let mut wanted = count;
        for at in self.runs_from(end) {
            if wanted > 0 && self.run(at).count() > 0 {
                let some = self.run_mut(at).take(end, wanted)?;
                wanted -= some.count();
                popped.push(some);
            }
        }
        if wanted > 0 {
            return Err(self.unread(end, count));
        }
        let popped = ItemRun::together(popped, end);
        self.account(count, popped.byte_count())?;
        Ok(popped)
    }

    /// Accounts for items that were removed. The totals come from the root, so they may be too low in
    /// a damaged list.
    fn account(&mut self, count: u64, bytes: u64) -> Result<(), Damaged> {
        self.count = self.count.checked_sub(count).ok_or(Damaged)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Damaged)?;
        Ok(())
    }

    /// Replaces the item at this position.
    pub fn set(&mut self, at: u64, item: PackedList<'a>) -> Result<(), ListGap> {
        assert_eq!(item.count(), 1, "one item replaces one");
        let (run, place) = self.place(at)?;
        let [mut before, mut rest] = self.run(run).split_at(place)?;
        let old = rest.take(ListEnd::Left, 1)?;
        before.push(ListEnd::Right, item);
        before.join(ListEnd::Right, rest);
        *self.run_mut(run) = before;
        self.account(0, old.byte_count())?;
        self.bytes = self.bytes.saturating_add(item.byte_count() as u64);
        Ok(())
    }

    /// Inserts an item before or behind that at this position.
    pub fn insert(
        &mut self,
        at: u64,
        is_behind: bool,
        item: PackedList<'a>,
    ) -> Result<(), ListGap> {
        assert_eq!(item.count(), 1, "one item is inserted");
        let (run, place) = self.place(at)?;
        let [mut before, rest] = self.run(run).split_at(place + u64::from(is_behind))?;
        before.push(ListEnd::Right, item);
        before.join(ListEnd::Right, rest);
        *self.run_mut(run) = before;
        self.count += 1;
        self.bytes = self.bytes.saturating_add(item.byte_count() as u64);
        Ok(())
    }

    /// Removes up to `count_max` items from an end on that are equal to this one. Returns how many.
    pub fn remove(&mut self, item: &[u8], end: ListEnd, count_max: u64) -> Result<u64, ListGap> {
        let (mut removed, mut passed) = (0, 0);
        for at in self.runs_from(end) {
            if removed == count_max {
                return Ok(removed);
            }
            let before = self.run(at);
            let (count, bytes) = (before.count(), before.byte_count());
            passed += count;
            let mut left = Vec::new();
            let parts: Vec<PackedList<'a>> = match end {
                ListEnd::Left => before.parts().collect(),
                ListEnd::Right => before.parts().rev().collect(),
            };
            let mut of_run = 0;
            for part in parts {
                let kept = part.without(item, end, count_max - removed - of_run)?;
                let kept_count: usize = kept.iter().map(|run| run.count()).sum();
                of_run += (part.count() - kept_count) as u64;
                let mut some = ItemRun::EMPTY;
                kept.into_iter().for_each(|run| some.push(ListEnd::Right, run));
                left.push(some);
            }
            assert!(of_run <= count, "more items are removed than there were");
            if of_run > 0 {
                let left = ItemRun::together(left, end);
                let freed = bytes.checked_sub(left.byte_count()).ok_or(Damaged)?;
                *self.run_mut(at) = left;
                self.account(of_run, freed)?;
                removed += of_run;
            }
        }
        match removed == count_max || self.is_whole() {
            true => Ok(removed),
            false => Err(self.unread(end, passed + 1)),
        }
    }

    /// Removes so many items at an end. The pages between those that were read are not needed for it
    /// if all items that stay were read.
    pub fn cut(&mut self, end: ListEnd, count: u64) -> Result<(), ListGap> {
        assert!(count <= self.count, "{count} of {} items are cut", self.count);
        let kept = self.count - count;
        if count <= self.read_from(end) {
            self.pop(end, count)?;
            return Ok(());
        }
        if self.is_whole() || kept > self.read_from(end.other()) {
            return Err(match count <= kept {
                true => self.unread(end, count),
                false => self.unread(end.other(), kept),
            });
        }
        let (mut left, mut bytes) = (kept, 0);
        for at in self.runs_from(end.other()) {
            if self.run(at).count() > left {
                let run = self.run_mut(at);
                *run = run.take(end.other(), left)?;
            }
            left -= self.run(at).count();
            bytes += self.run(at).byte_count();
        }
        assert_eq!(left, 0, "items that stay were not read");
        // Everything beyond the items that stay goes, also pages that were not read.
        self.leaves_orphans = true;
        self.unread = PageInterval::default();
        let (run, pages) = match end {
            ListEnd::Left => (&mut self.left, &mut self.before),
            ListEnd::Right => (&mut self.right, &mut self.after),
        };
        *run = ItemRun::EMPTY;
        let pages = std::mem::take(pages);
        self.remove_pages(pages);
        (self.count, self.bytes, self.is_changed) = (kept, bytes, true);
        Ok(())
    }

    /// Notes pages that are no longer needed. Those that this change would have created have no
    /// record.
    fn remove_pages(&mut self, pages: impl IntoIterator<Item = ListPage<'a>>) {
        let old = self.root.map_or(PageInterval { first: 0, pages: 0 }, |root| root.interval);
        for page in pages.into_iter().filter(|page| old.contains(page.number)) {
            match self.removed.len() < REMOVED_MAX {
                true => self.removed.push(page.number),
                false => self.leaves_orphans = true,
            }
        }
    }

    /// Removes all items. The pages become orphans.
    pub fn clear(&mut self) {
        self.is_changed |= self.count > 0;
        self.leaves_orphans |= self.root.is_some();
        (self.count, self.bytes) = (0, 0);
        (self.before, self.after) = (Vec::new(), Vec::new());
    }

    /// Decides how the list is stored, if it has changed.
    pub fn settle(
        &mut self,
        layout: &ValueLayout,
        may_divide: bool,
        room: PageRoom,
    ) -> Result<NewList<'a>, ListGap> {
        if !self.is_changed {
            return Ok(NewList::Unchanged);
        }
        if self.count == 0 {
            self.leaves_orphans |= !self.is_whole();
            let (before, after) =
                (std::mem::take(&mut self.before), std::mem::take(&mut self.after));
            self.remove_pages(before.into_iter().chain(after));
            return Ok(NewList::Removed);
        }
        self.refill_ends(layout)?;
        if self.before.is_empty() && self.after.is_empty() && self.is_whole() {
            let mut all = std::mem::replace(&mut self.left, ItemRun::EMPTY);
            all.join(ListEnd::Right, std::mem::replace(&mut self.right, ItemRun::EMPTY));
            let is_short = self.bytes <= layout.packed_bytes_max as u64 || self.count == 1;
            if is_short || !may_divide || self.leaves_orphans {
                return Ok(NewList::Packed(all));
            }
            self.divide(all, layout)?;
        } else if !self.leaves_orphans {
            // The pages next to those that stay cannot be used again in this change.
            self.flush(ListEnd::Left, layout)?;
            self.flush(ListEnd::Right, layout)?;
            self.repack(ListEnd::Left, layout)?;
            self.repack(ListEnd::Right, layout)?;
        }
        self.new_root(room)
    }

    /// Removes pages without items at both ends, and moves items of the page at an end into the root
    /// if it has none there.
    fn refill_ends(&mut self, layout: &ValueLayout) -> Result<(), Damaged> {
        for end in [ListEnd::Left, ListEnd::Right] {
            self.remove_empty_pages(end);
            let run = if end == ListEnd::Left { &self.left } else { &self.right };
            if run.count() > 0 {
                continue;
            }
            let Some(page) = self.end_page(end).filter(|page| page.is_changed) else { continue };
            // Not as many as the root may have: a push does not move them back at once.
            let moved = page.items.take_bytes(end, layout.list_end_bytes() * 3 / 4)?;
            *if end == ListEnd::Left { &mut self.left } else { &mut self.right } = moved;
            self.remove_empty_pages(end);
        }
        Ok(())
    }

    fn remove_empty_pages(&mut self, end: ListEnd) {
        while let Some(page) = self.end_page(end)
            && page.items.count() == 0
        {
            let page = page.clone();
            let of_before = self.before.iter().any(|other| other.number == page.number);
            let pages = if of_before { &mut self.before } else { &mut self.after };
            match end {
                ListEnd::Left => drop(pages.remove(0)),
                ListEnd::Right => drop(pages.pop()),
            }
            self.remove_pages([page]);
        }
    }

    /// Returns the page at an end, if it was read.
    fn end_page(&mut self, end: ListEnd) -> Option<&mut ListPage<'a>> {
        let is_whole = self.is_whole();
        match end {
            ListEnd::Left if self.before.is_empty() && is_whole => self.after.first_mut(),
            ListEnd::Left => self.before.first_mut(),
            ListEnd::Right if self.after.is_empty() && is_whole => self.before.last_mut(),
            ListEnd::Right => self.after.last_mut(),
        }
    }

    /// Divides a list without pages.
    fn divide(&mut self, all: ItemRun<'a>, layout: &ValueLayout) -> Result<(), Damaged> {
        let first = self.root.map_or(0, |root| root.interval.first);
        let pages = all.divide(ListEnd::Left, layout.list_page_bytes())?;
        let numbers = PageInterval { first, pages: u32::try_from(pages.len()).unwrap_or(u32::MAX) };
        self.before = numbered(numbers, pages);
        Ok(())
    }

    /// Moves the items at an end of the root into pages if they have become too long.
    fn flush(&mut self, end: ListEnd, layout: &ValueLayout) -> Result<(), ListGap> {
        let run = if end == ListEnd::Left { &mut self.left } else { &mut self.right };
        if run.byte_count() <= layout.list_end_bytes() as u64 {
            return Ok(());
        }
        let run = std::mem::replace(run, ItemRun::EMPTY);
        let page_bytes = layout.list_page_bytes();
        let Some(page) = self.end_page(end) else {
            return Err(self.unread(end, run.count() + 1));
        };
        if page.items.byte_count() + run.byte_count() <= page_bytes as u64 {
            page.items.join(end, run);
            page.is_changed = true;
            return Ok(());
        }
        let number = page.number;
        let mut pages = run.divide(end.other(), page_bytes)?;
        if end == ListEnd::Left {
            pages.reverse();
        }
        // From the page at the end outward.
        for (steps, items) in (1..).zip(pages) {
            let number = match end {
                ListEnd::Left => number.wrapping_sub(steps),
                ListEnd::Right => number.wrapping_add(steps),
            };
            let page = ListPage::new(number, items);
            match (end, self.before.is_empty(), self.after.is_empty()) {
                (ListEnd::Left, true, false) if self.is_whole() => self.after.insert(0, page),
                (ListEnd::Left, ..) => self.before.insert(0, page),
                (ListEnd::Right, false, true) if self.is_whole() => self.before.push(page),
                (ListEnd::Right, ..) => self.after.push(page),
            }
        }
        Ok(())
    }

    /// Divides the pages that were read from an end on anew, if a changed one has become too long, or
    /// if most have become empty. Those behind them keep their numbers.
    fn repack(&mut self, end: ListEnd, layout: &ValueLayout) -> Result<(), ListGap> {
        let pages = if end == ListEnd::Left { &mut self.before } else { &mut self.after };
        let page_bytes = layout.list_page_bytes();
        let bytes: u64 = pages.iter().map(|page| page.items.byte_count()).sum();
        let is_changed = pages.iter().any(|page| page.is_changed);
        let long = 4 * page_bytes as u64 + bytes / 64;
        let is_long = |page: &ListPage<'_>| {
            page.is_changed && page.items.count() > 1 && page.items.byte_count() > long
        };
        let is_sparse = pages.len() >= 4 && 4 * bytes < (pages.len() * page_bytes) as u64;
        let is_wanted = is_changed && (is_sparse || pages.iter().any(is_long));
        if !is_wanted || bytes > REPACKED_BYTES_MAX {
            return Ok(());
        }
        let old = std::mem::take(pages);
        let mut all = ItemRun::EMPTY;
        let inner = match end {
            ListEnd::Left => old.last(),
            ListEnd::Right => old.first(),
        };
        let inner = inner.map_or(0, |page| page.number);
        old.iter().for_each(|page| all.join(ListEnd::Right, page.items.clone()));
        let runs = all.divide(end.other(), page_bytes)?;
        let count = u32::try_from(runs.len()).map_err(|_| Damaged)?;
        let first = match end {
            ListEnd::Left => inner.wrapping_add(1).wrapping_sub(count),
            ListEnd::Right => inner,
        };
        let numbers = PageInterval { first, pages: count };
        *pages = numbered(numbers, runs);
        self.remove_pages(old.into_iter().filter(|page| !numbers.contains(page.number)));
        Ok(())
    }

    /// Returns the root of the list with its present pages.
    fn new_root(&mut self, room: PageRoom) -> Result<NewList<'a>, ListGap> {
        let first = match (self.before.first(), self.after.first()) {
            (Some(page), _) => page.number,
            (None, Some(page)) if self.is_whole() => page.number,
            (None, _) => self.unread.first,
        };
        let pages = self.before.len() as u64 + self.after.len() as u64;
        let pages = u32::try_from(pages).map_err(|_| Damaged)?.saturating_add(self.unread.pages);
        let interval = PageInterval { first, pages };
        let old = self.root.map_or(PageInterval { first, pages: 0 }, |root| root.interval);
        // Intervals that overlap differ by less than half of all numbers.
        let outside = |from: u32, to: u32| (to.wrapping_sub(from) as i32).max(0) as u32;
        let created = [outside(first, old.first), outside(old.end(), interval.end())];
        for (at, end) in [ListEnd::Left, ListEnd::Right].into_iter().enumerate() {
            if created[at] > room.created[at] {
                return Err(ListGap::Uncreated { end, pages: created[at] });
            }
        }
        let Some(id) = self.root.map(|root| root.id).or(room.id) else {
            return Err(ListGap::Uncreated { end: ListEnd::Right, pages });
        };
        let (left, right) = (PackedList::EMPTY, PackedList::EMPTY);
        let root = ListRoot { id, interval, count: self.count, bytes: self.bytes, left, right };
        self.removed.retain(|number| !interval.contains(*number));
        Ok(NewList::Split { root, ends: [self.left.clone(), self.right.clone()] })
    }

    /// Returns the pages whose items have changed, after [`PagedList::settle`].
    pub fn changed_pages(&self) -> impl Iterator<Item = (u32, &ItemRun<'a>)> {
        let pages = self.before.iter().chain(&self.after);
        pages.filter(|page| page.is_changed).map(|page| (page.number, &page.items))
    }

    /// Returns the pages that were read and are removed, after [`PagedList::settle`].
    pub fn removed_pages(&self) -> impl Iterator<Item = u32> {
        self.removed.iter().copied()
    }
}

impl<'a> ListPage<'a> {
    /// Returns a page that is written.
    fn new(number: u32, items: ItemRun<'a>) -> ListPage<'a> {
        ListPage { number, items, is_changed: true }
    }
}

/// Returns pages with these numbers that are written.
fn numbered(numbers: PageInterval, runs: Vec<ItemRun<'_>>) -> Vec<ListPage<'_>> {
    assert_eq!(numbers.pages as usize, runs.len(), "each page has a number");
    numbers.numbers().zip(runs).map(|(number, items)| ListPage::new(number, items)).collect()
}

impl NewList<'_> {
    /// Appends the value of the key: the packed list, or the root.
    ///
    /// # Panics
    /// If the list is unchanged or removed, which is a bug: nothing is written then.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            NewList::Unchanged | NewList::Removed => unreachable!("there is no list to write"),
            NewList::Packed(items) => items.encode(out),
            NewList::Split { root, ends: [left, right] } => {
                let [left, right] = [left, right].map(|end| end.parts().map(ListPart::Items));
                root.encode_with(left, right, out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
