//! The items of lists, wherever they are stored: in the record of the key, or in pages.
//!
//! An attempt reads or changes the root of a list together with some pages at its ends in one atomic
//! step, first without any page. If the command needs further pages, or the list has other ones than
//! expected, the attempt has no effect, and the next one knows more.
//!
//! Every change of a list with pages rewrites its root, so a root of the same version has the same
//! items. Design: `docs/design/values.md`.

use super::backend::Backend;
use super::data::{Changes, Key, Record, TableKey};
use super::elements::{NewExpiry, PlannedPage, TOO_LARGE};
use crate::commands::{Cause, NotExecuted, Refusal};
use types::{HashSeed, TableId, TypedValue, ValueType, Version};
use values::{
    Damaged, ListEnd, ListForm, ListGap, ListReach, ListRoot, NewList, PackedList, PageInterval,
    PageName, PageRoom, PagedList,
};

/// Most attempts in one turn that fail because the list was changed.
const TRIES: usize = 8;

/// Most pages of a list that one command reads: 2 GiB of items. A larger number in a root may be
/// wrong.
const PAGES_READ_MAX: usize = 1 << 20;

/// A list that a command changes.
#[derive(Clone, Copy)]
pub(crate) struct ListChange<'k> {
    pub(crate) key: TableKey<'k>,
    pub(crate) expiry: NewExpiry,
    /// Set if the value is replaced, whatever it was. The command sees a list without items.
    pub(crate) is_replaced: bool,
}

impl<'k> ListChange<'k> {
    /// Returns the change of a list that keeps its expiry.
    pub(crate) fn of(key: TableKey<'k>) -> ListChange<'k> {
        ListChange { key, expiry: NewExpiry::Kept, is_replaced: false }
    }
}

/// The reason why a command on lists ends without effect.
pub(crate) enum ListStop {
    /// The command is refused.
    Refused(Refusal),
    /// The list at this position lacks pages.
    Gap(usize, ListGap),
}

impl From<Refusal> for ListStop {
    fn from(refusal: Refusal) -> ListStop {
        ListStop::Refused(refusal)
    }
}

impl From<Damaged> for ListStop {
    fn from(damaged: Damaged) -> ListStop {
        ListStop::Refused(damaged.into())
    }
}

/// That of the only list of a command.
impl From<ListGap> for ListStop {
    fn from(gap: ListGap) -> ListStop {
        ListStop::Gap(0, gap)
    }
}

/// The lists of a command, in an attempt.
pub(crate) struct OpenedLists<'x> {
    /// A value of another type is refused when the command needs it.
    lists: Vec<Result<PagedList<'x>, Refusal>>,
    /// New items of the command.
    pub(crate) new: PackedList<'x>,
}

impl<'x> OpenedLists<'x> {
    /// Returns the list at a position.
    pub(crate) fn get(&mut self, at: usize) -> Result<&mut PagedList<'x>, Refusal> {
        self.lists[at].as_mut().map_err(|refusal| refusal.clone())
    }

    /// Passes the list at a position to `f`.
    pub(crate) fn on<T>(
        &mut self,
        at: usize,
        f: impl FnOnce(&mut PagedList<'x>) -> Result<T, ListGap>,
    ) -> Result<T, ListStop> {
        f(self.get(at)?).map_err(|gap| ListStop::Gap(at, gap))
    }
}

/// The pages of a list that an attempt reads and may create.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpectedList {
    /// None.
    Root,
    /// The list has no pages, and is divided into this many.
    Divided { id: Version, pages: u32 },
    /// The list has these pages.
    Pages { id: Version, interval: PageInterval, reach: ListReach, created: [u32; 2] },
}

impl ExpectedList {
    /// Returns the pages of a list with this root that a removal of items at an end reads, beside
    /// those in the root.
    pub(crate) fn of_pop(root: &ListRoot<'_>, end: ListEnd, items: u64) -> ExpectedList {
        let mut reach = ListReach::default();
        reach.extend(root, end, items);
        let ListRoot { id, interval, .. } = *root;
        ExpectedList::Pages { id, interval, reach, created: [0; 2] }
    }

    /// Returns the pages of a list with this root that an addition to a full end reads, and may
    /// create.
    pub(crate) fn of_push(root: &ListRoot<'_>, end: ListEnd) -> ExpectedList {
        let mut expected = ExpectedList::of_pop(root, end, 1);
        if let ExpectedList::Pages { created, .. } = &mut expected {
            created[usize::from(end == ListEnd::Right)] = 1;
        }
        expected
    }

    /// Returns the pages at both ends that are read.
    fn read(&self) -> [PageInterval; 2] {
        match self {
            ExpectedList::Root | ExpectedList::Divided { .. } => [PageInterval::default(); 2],
            ExpectedList::Pages { interval, reach, .. } => reach.of(*interval),
        }
    }

    fn room(&self) -> PageRoom {
        match *self {
            ExpectedList::Root => PageRoom::default(),
            ExpectedList::Divided { id, pages } => PageRoom { id: Some(id), created: [0, pages] },
            ExpectedList::Pages { id, created, .. } => PageRoom { id: Some(id), created },
        }
    }

    /// Returns the pages that an attempt may access: those that are read, and those that may be
    /// created beside them.
    fn accessed(&self) -> Option<AccessedPages> {
        let (id, created) = match *self {
            ExpectedList::Root => return None,
            ExpectedList::Divided { id, pages } => (id, [0, pages]),
            ExpectedList::Pages { id, created, .. } => (id, created),
        };
        let [left, right] = self.read();
        let first = left.first.wrapping_sub(created[0]);
        let left = PageInterval { first, pages: left.pages.saturating_add(created[0]) };
        let pages = right.pages.saturating_add(created[1]);
        Some(AccessedPages { id, runs: [left, PageInterval { pages, ..right }] })
    }

    /// Returns what the next attempt expects after this gap in a list with this root.
    fn after(&self, gap: ListGap, root: Option<&ListRoot<'_>>) -> Result<NextList, Refusal> {
        let Some(root) = root else {
            return match gap {
                ListGap::Uncreated { pages, .. } => Ok(NextList::Divide { pages }),
                ListGap::Damaged | ListGap::Unread { .. } => Err(Damaged.into()),
            };
        };
        let (mut reach, mut created) = match *self {
            ExpectedList::Pages { reach, created, .. } => (reach, created),
            ExpectedList::Root | ExpectedList::Divided { .. } => (ListReach::default(), [0; 2]),
        };
        match gap {
            ListGap::Damaged => return Err(Damaged.into()),
            ListGap::Unread { end, items } => reach.extend(root, end, items),
            ListGap::Uncreated { end: ListEnd::Left, pages } => created[0] = pages,
            ListGap::Uncreated { end: ListEnd::Right, pages } => created[1] = pages,
        }
        let ListRoot { id, interval, .. } = *root;
        Ok(NextList::Expect(ExpectedList::Pages { id, interval, reach, created }))
    }
}

/// The pages of a list that an attempt accesses.
#[derive(Clone, Copy, Debug)]
struct AccessedPages {
    id: Version,
    runs: [PageInterval; 2],
}

/// The expectation of the next attempt for a list.
enum NextList {
    Expect(ExpectedList),
    /// To divide it into this many pages.
    Divide {
        pages: u32,
    },
}

/// The outcome of an attempt.
enum ListAttempt<T> {
    Done(T),
    /// No effect: the list at this position needs other pages than expected.
    Again(usize, NextList),
    /// No effect: the list at this position has other pages than expected.
    Changed(usize, NextList),
}

/// The pages of an attempt, as keys behind those of the lists.
struct PlannedLists {
    pages: Vec<PlannedPage>,
    /// Per list, the runs of its pages with their positions in `pages`.
    runs: Vec<[PlannedRun; 2]>,
}

/// Consecutive pages among the keys of an attempt.
#[derive(Clone, Copy, Debug, Default)]
struct PlannedRun {
    start: usize,
    pages: PageInterval,
    /// Those that exist.
    existing: PageInterval,
}

impl PlannedRun {
    fn position(&self, number: u32) -> Option<usize> {
        let place = number.wrapping_sub(self.pages.first);
        self.pages.contains(number).then_some(self.start + place as usize)
    }
}

impl PlannedLists {
    fn new<'k>(
        seed: &HashSeed,
        keys: impl Iterator<Item = TableKey<'k>>,
        expected: &[ExpectedList],
    ) -> Result<PlannedLists, Refusal> {
        let mut plan = PlannedLists { pages: Vec::new(), runs: Vec::new() };
        for (TableKey { table, key }, expected) in keys.zip(expected) {
            let mut runs = [PlannedRun::default(); 2];
            if let Some(AccessedPages { id, runs: accessed }) = expected.accessed() {
                let pages = accessed.iter().map(|run| run.pages as usize).sum::<usize>();
                if plan.pages.len() + pages > PAGES_READ_MAX {
                    return Err(TOO_MANY_ITEMS);
                }
                for ((run, pages), existing) in runs.iter_mut().zip(accessed).zip(expected.read()) {
                    *run = PlannedRun { start: plan.pages.len(), pages, existing };
                    let name = |page| PageName { table, root: key.hash, id, page };
                    let planned = |page| PlannedPage::new(seed, name(page));
                    plan.pages.extend(pages.numbers().map(planned));
                }
            }
            plan.runs.push(runs);
        }
        Ok(plan)
    }

    /// Returns the keys of the lists, followed by those of the pages.
    fn keys<'p>(&'p self, lists: impl Iterator<Item = TableKey<'p>>) -> Vec<TableKey<'p>> {
        lists.chain(self.pages.iter().map(PlannedPage::table_key)).collect()
    }

    /// Returns whether a key is needed: pages that are created are not.
    fn is_needed(&self, at: usize) -> bool {
        let Some(page) = at.checked_sub(self.runs.len()) else { return true };
        let mut runs = self.runs.iter().flatten();
        let of_page = |run: &PlannedRun| run.position(self.pages[page].number()) == Some(page);
        runs.any(|run| of_page(run) && run.existing.contains(self.pages[page].number()))
    }

    /// Returns the position of a page of a list among all keys.
    fn position(&self, list: usize, number: u32) -> usize {
        let place = self.runs[list].iter().find_map(|run| run.position(number));
        let Some(place) = place else { unreachable!("page {number} was not planned") };
        self.runs.len() + place
    }

    /// Returns the list of a record with its pages that were read; `Err`: it has other pages than
    /// expected.
    fn open<'r>(
        &self,
        at: usize,
        expected: &ExpectedList,
        records: &[Option<Record<'r>>],
    ) -> Result<Result<PagedList<'r>, NextList>, Refusal> {
        let form = list_form(records[at])?;
        let none = || [Vec::new(), Vec::new()];
        let (pages, root) = match (form, expected) {
            (_, ExpectedList::Root) => (none(), None),
            (ListForm::Packed(_), ExpectedList::Divided { .. }) => (none(), None),
            (ListForm::Packed(_), ExpectedList::Pages { .. }) => {
                return Ok(Err(NextList::Expect(ExpectedList::Root)));
            }
            (ListForm::Split(_), ExpectedList::Divided { .. }) => {
                return Ok(Err(NextList::Expect(ExpectedList::Root)));
            }
            (ListForm::Split(root), &ExpectedList::Pages { id, interval, reach, created }) => {
                if (root.id, root.interval) != (id, interval) {
                    let (id, interval) = (root.id, root.interval);
                    let next = ExpectedList::Pages { id, interval, reach, created };
                    return Ok(Err(NextList::Expect(next)));
                }
                (none(), Some(root))
            }
        };
        if root.is_none() {
            return Ok(Ok(PagedList::new(form, pages)?));
        }
        let [left, right] = expected.read().map(|interval| {
            let page = |number| page_items(records[self.position(at, number)]);
            interval.numbers().map(page).collect::<Result<Vec<PackedList<'r>>, Damaged>>()
        });
        Ok(Ok(PagedList::new(form, [left?, right?])?))
    }
}

/// Returns the items of a page. Each page of a list has a record.
fn page_items(record: Option<Record<'_>>) -> Result<PackedList<'_>, Damaged> {
    let bytes = record.ok_or(Damaged)?.value.bytes;
    PackedList::parse(TypedValue { value_type: ValueType::List, bytes })
}

const TOO_MANY_ITEMS: Refusal =
    Refusal::because("ERR a command cannot read this many items of a list at once");

/// Returns the form of a record, which must be a list. A missing record has no items.
#[inline]
pub(crate) fn list_form(record: Option<Record<'_>>) -> Result<ListForm<'_>, Refusal> {
    let Some(record) = record else { return Ok(ListForm::Packed(PackedList::EMPTY)) };
    if record.value.value_type != ValueType::List {
        return Err(Refusal::WrongType);
    }
    Ok(ListForm::of(record.value)?)
}

/// Returns the root of a record, if it is a list with pages.
pub(crate) fn root_of(record: Option<Record<'_>>) -> Option<ListRoot<'_>> {
    match list_form(record) {
        Ok(ListForm::Split(root)) => Some(root),
        Ok(ListForm::Packed(_)) | Err(_) => None,
    }
}

impl Backend {
    /// Passes a list to `f`, which may be called several times: until it has the items that it needs.
    /// Counts a hit or a miss.
    pub(crate) fn read_list<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        mut f: impl FnMut(&PagedList<'_>) -> Result<T, ListStop>,
    ) -> Result<T, NotExecuted> {
        let none = PlannedLists { pages: Vec::new(), runs: Vec::new() };
        let first = ExpectedList::Root;
        let mut attempt =
            self.read_one(table, key, |record| read_once(&none, &first, &[record], &mut f))??;
        let mut tries = 0;
        loop {
            let next = match attempt {
                ListAttempt::Done(result) => return Ok(result),
                ListAttempt::Again(_, next) => next,
                ListAttempt::Changed(_, next) => {
                    tries += 1;
                    next
                }
            };
            if tries == TRIES {
                return Err(NotExecuted::Retry(Cause::Turn));
            }
            let expected = self.expected_next(next);
            let seed = self.node().store().seed().clone();
            let list = [TableKey { table, key }];
            let plan = PlannedLists::new(&seed, list.into_iter(), &[expected])?;
            let keys = plan.keys(list.into_iter());
            attempt =
                self.read_tables(&keys, |records| read_once(&plan, &expected, records, &mut f))??;
        }
    }

    /// Passes lists and new items to `f`, with the records, and makes the changes of `f` in one atomic
    /// step. `f` may be called several times.
    pub(crate) fn update_lists<T>(
        &mut self,
        lists: &[ListChange<'_>],
        new: PackedList<'_>,
        f: impl for<'x> FnMut(&mut OpenedLists<'x>, &[Option<Record<'x>>]) -> Result<T, ListStop>,
    ) -> Result<T, NotExecuted> {
        self.update_expected_lists(lists, vec![ExpectedList::Root; lists.len()], new, f)
    }

    /// The same, with pages in the first attempt that the command probably needs.
    pub(crate) fn update_expected_lists<T>(
        &mut self,
        lists: &[ListChange<'_>],
        mut expected: Vec<ExpectedList>,
        new: PackedList<'_>,
        mut f: impl for<'x> FnMut(&mut OpenedLists<'x>, &[Option<Record<'x>>]) -> Result<T, ListStop>,
    ) -> Result<T, NotExecuted> {
        assert_eq!(expected.len(), lists.len(), "an expectation per list");
        let (mut may_divide, mut tries) = (true, 0);
        while tries < TRIES {
            let attempt = self.attempt_lists(lists, new, &expected, may_divide, &mut f);
            match attempt {
                Ok(ListAttempt::Done(result)) => return Ok(result),
                Ok(ListAttempt::Again(at, next)) => expected[at] = self.expected_next(next),
                Ok(ListAttempt::Changed(at, next)) => {
                    tries += 1;
                    expected[at] = self.expected_next(next);
                }
                // All pages of a list may be too much for one change. Then it stays packed.
                Err(NotExecuted::Reject(Refusal::TooLarge)) if may_divide => {
                    may_divide = false;
                    for expected in &mut expected {
                        if let ExpectedList::Divided { .. } = expected {
                            *expected = ExpectedList::Root;
                        }
                    }
                }
                Err(NotExecuted::Reject(Refusal::TooLarge)) => return Err(TOO_LARGE.into()),
                Err(next) => return Err(next),
            }
        }
        Err(NotExecuted::Retry(Cause::Turn))
    }

    fn expected_next(&self, next: NextList) -> ExpectedList {
        match next {
            NextList::Expect(expected) => expected,
            NextList::Divide { pages } => {
                ExpectedList::Divided { id: self.node().store().draw_id(), pages }
            }
        }
    }

    fn attempt_lists<T>(
        &mut self,
        lists: &[ListChange<'_>],
        new: PackedList<'_>,
        expected: &[ExpectedList],
        may_divide: bool,
        f: &mut impl for<'x> FnMut(&mut OpenedLists<'x>, &[Option<Record<'x>>]) -> Result<T, ListStop>,
    ) -> Result<ListAttempt<T>, NotExecuted> {
        let seed = self.node().store().seed().clone();
        let layout = self.layout();
        let roots = lists.iter().map(|list| list.key);
        let plan = PlannedLists::new(&seed, roots.clone(), expected)?;
        let keys = plan.keys(roots);
        let mut leaves_orphans = lists.iter().any(|list| list.is_replaced);
        let is_needed = |at| plan.is_needed(at);
        let attempt = self.update_tables(&keys, is_needed, |records, changes| {
            let mut opened = OpenedLists { lists: Vec::with_capacity(lists.len()), new };
            for (at, list) in lists.iter().enumerate() {
                let record = records[at].filter(|_| !list.is_replaced);
                let found = match list.is_replaced {
                    true => Ok(Ok(PagedList::new(list_form(record)?, Default::default())?)),
                    false => plan.open(at, &expected[at], records),
                };
                match found {
                    Ok(Ok(list)) => opened.lists.push(Ok(list)),
                    Ok(Err(next)) => return Ok(ListAttempt::Changed(at, next)),
                    Err(refusal) => opened.lists.push(Err(refusal)),
                }
            }
            let again = |at: usize, gap| {
                let root = root_of(records[at].filter(|_| !lists[at].is_replaced));
                Ok(ListAttempt::Again(at, expected[at].after(gap, root.as_ref())?))
            };
            let result = match f(&mut opened, &records[..lists.len()]) {
                Ok(result) => result,
                Err(ListStop::Refused(refusal)) => return Err(refusal),
                Err(ListStop::Gap(at, gap)) => return again(at, gap),
            };
            // All lists are settled before the first one is written: an attempt that ends without
            // effect makes no change.
            let mut settled = Vec::with_capacity(lists.len());
            for (at, list) in opened.lists.iter_mut().enumerate() {
                let Ok(list) = list else { continue };
                match list.settle(&layout, may_divide, expected[at].room()) {
                    Ok(new) => settled.push((at, &*list, new)),
                    Err(gap) => return again(at, gap),
                }
            }
            for (at, list, new) in settled {
                leaves_orphans |= list.leaves_orphans();
                let expiry = lists[at].expiry.of(at, records);
                let mut writer = ListWriter { plan: &plan, records, changes };
                writer.write(at, list, &new, expiry);
            }
            Ok::<_, Refusal>(ListAttempt::Done(result))
        })??;
        if let (ListAttempt::Done(_), true) = (&attempt, leaves_orphans) {
            self.note_orphans();
        }
        Ok(attempt)
    }
}

/// Passes a list to `f`, with the pages that were read.
fn read_once<T>(
    plan: &PlannedLists,
    expected: &ExpectedList,
    records: &[Option<Record<'_>>],
    f: &mut impl FnMut(&PagedList<'_>) -> Result<T, ListStop>,
) -> Result<ListAttempt<T>, Refusal> {
    let list = match plan.open(0, expected, records)? {
        Ok(list) => list,
        Err(next) => return Ok(ListAttempt::Changed(0, next)),
    };
    match f(&list) {
        Ok(result) => Ok(ListAttempt::Done(result)),
        Err(ListStop::Refused(refusal)) => Err(refusal),
        Err(ListStop::Gap(at, gap)) => {
            assert_eq!(at, 0, "one list is read");
            let root = root_of(records[0]);
            Ok(ListAttempt::Again(0, expected.after(gap, root.as_ref())?))
        }
    }
}

/// Writes lists into the changes of an attempt.
struct ListWriter<'w, 'c, 'r> {
    plan: &'w PlannedLists,
    /// The records of all keys, as read.
    records: &'w [Option<Record<'r>>],
    changes: &'w mut Changes<'c>,
}

impl ListWriter<'_, '_, '_> {
    /// Writes a list as the value of the key at a position, with its pages.
    fn write(
        &mut self,
        at: usize,
        list: &PagedList<'_>,
        new: &NewList<'_>,
        expiry: Option<types::UnixMillis>,
    ) {
        let changes = &mut *self.changes;
        match new {
            NewList::Unchanged => return,
            NewList::Removed => changes.delete(at),
            NewList::Packed(_) | NewList::Split { .. } => {
                changes.put_built(at, ValueType::List, expiry, |out| new.encode(out));
            }
        }
        for number in list.removed_pages() {
            let page = self.plan.position(at, number);
            assert!(self.records[page].is_some(), "a page that was read is removed");
            changes.delete(page);
        }
        if let NewList::Split { .. } = new {
            for (number, items) in list.changed_pages() {
                let page = self.plan.position(at, number);
                changes.put_built(page, ValueType::String, None, |out| items.encode(out));
            }
        }
    }
}
