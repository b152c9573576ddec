//! The elements of hashes, sets and sorted sets, wherever they are stored: in the record of the key, or
//! in pages.
//!
//! A command names the elements that it needs. An attempt reads or changes the root of the value
//! together with the pages of these elements in one atomic step. If the root turns out to have other
//! pages than expected, the attempt has no effect and the next one expects what was found.
//!
//! Every change of a split value rewrites its root, so a root of the same version has the same
//! elements. A change of a sorted set also changes its order, if that is in memory (`orders.rs`).
//! Design: `docs/design/values.md`.

use super::backend::Backend;
use super::data::{Changes, Key, Need, Record, TableKey};
use super::order_notes::{KeptOrder, OrderNotes};
use crate::commands::{Cause, NotExecuted, Refusal};
use crate::operators::counts::Found;
use planted::Bug;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use types::{HashSeed, KeyHash, TableId, TypedValue, UnixMillis, ValueType, Version, element_hash};
use values::{
    Damaged, Elements, Form, PAGE_NAME_BYTES, Packed, PageName, Resize, Root, ValueLayout, page_of,
};

/// Numbers of pages. Most commands need one or two.
type PageNumbers = SmallVec<[u32; 4]>;

/// The forms that an attempt expects of its values. Most commands have one value.
type ExpectedForms = SmallVec<[Expected; 1]>;

/// The keys of an attempt: those of its values, and those of their pages.
type KeysOfAttempt<'k> = SmallVec<[TableKey<'k>; 4]>;

/// Values that have another form than expected, by their positions.
type Surprises = SmallVec<[(usize, FoundForm); 1]>;

/// The elements of the values of an attempt.
type OpenedValues<'r> = SmallVec<[Elements<'r>; 1]>;

/// Most attempts in one turn.
const TRIES: usize = 8;

/// The elements of a value that a command needs.
#[derive(Clone, Copy)]
pub(crate) enum Touched<'k> {
    /// Those of these names.
    Names(&'k [&'k [u8]]),
    /// Those of the first names of these pairs.
    Pairs(&'k [[&'k [u8]; 2]]),
    /// All.
    All,
    /// All, of a sorted set or of a set.
    Scores,
    /// Those in the pages that the function chooses; all of a packed value.
    Pages(&'k dyn Fn(&Root) -> Vec<u32>),
    /// All, of a value that stays as it is.
    Source,
    /// None: the value is replaced, whatever it was. The command sees a value without elements.
    Replaced,
}

/// A value that a command changes.
#[derive(Clone, Copy)]
pub(crate) struct ValueChange<'k> {
    pub(crate) key: TableKey<'k>,
    pub(crate) touched: Touched<'k>,
    pub(crate) expiry: NewExpiry,
    /// Most bytes that the change adds.
    pub(crate) added: u64,
    /// Set if the change may remove elements.
    pub(crate) removes: bool,
}

/// The expiry of a value after a change.
#[derive(Clone, Copy)]
pub(crate) enum NewExpiry {
    /// That before the change.
    Kept,
    /// That of the value at this position, before the change.
    Of(usize),
    /// This one.
    Is(Option<UnixMillis>),
}

impl NewExpiry {
    /// Returns the expiry of the value at a position, given the records of all values.
    pub(super) fn of(self, at: usize, records: &[Option<Record<'_>>]) -> Option<UnixMillis> {
        let expiry = |at: usize| records[at].and_then(|record| record.expiry);
        match self {
            NewExpiry::Kept => expiry(at),
            NewExpiry::Of(other) => expiry(other),
            NewExpiry::Is(expiry) => expiry,
        }
    }
}

impl Touched<'_> {
    fn searches(&self) -> usize {
        match self {
            Touched::Names(names) => names.len(),
            Touched::Pairs(pairs) => pairs.len(),
            Touched::All
            | Touched::Scores
            | Touched::Pages(_)
            | Touched::Source
            | Touched::Replaced => 0,
        }
    }

    /// Returns the type of a value, given that which the command works on.
    fn type_of(&self, record: Option<Record<'_>>, value_type: ValueType) -> ValueType {
        let is_set = |record: Record<'_>| record.value.value_type == ValueType::Set;
        let takes_set = matches!(self, Touched::Scores);
        if takes_set && record.is_some_and(is_set) { ValueType::Set } else { value_type }
    }

    /// Returns the pages of a value that must be read, ascending.
    fn pages(&self, root: &Root, resize: Resize, hash: impl Fn(&[u8]) -> u64) -> PageNumbers {
        let page = |name: &[u8]| page_of(hash(name), root.pages);
        let mut pages: PageNumbers = match self {
            Touched::Names(names) => names.iter().map(|name| page(name)).collect(),
            Touched::Pairs(pairs) => pairs.iter().map(|[name, _]| page(name)).collect(),
            Touched::All | Touched::Scores | Touched::Source => (0..root.pages).collect(),
            Touched::Pages(choose) => choose(root).into(),
            Touched::Replaced => PageNumbers::new(),
        };
        pages.extend(resize.redistributed());
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}

/// The form of a value that an attempt expects, and that of the new value.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// The value is packed, absent or to be replaced. The new one is packed.
    Packed,
    /// The same, but the new value is divided into this many pages.
    Divided { id: Version, pages: u32 },
    /// The value is split, and these of its pages are read.
    Split { root: Root, resize: Resize, pages: PageNumbers },
}

/// An update of values, as an attempt makes it.
#[derive(Clone, Copy)]
pub(super) struct UpdatePlan<'p> {
    pub(super) value_type: ValueType,
    pub(super) values: &'p [ValueChange<'p>],
    pub(super) expected: &'p [Expected],
    /// Limits of packed values; `None`: they may have any length.
    layout: Option<&'p ValueLayout>,
}

/// The outcome of an attempt.
enum Attempt<T> {
    Done(T),
    /// No effect: these values have other forms than expected.
    Unexpected(Surprises),
}

/// The form that an attempt has found instead of the expected one.
pub(super) enum FoundForm {
    Packed,
    Split(Root),
    /// The new value is too long for one record, and must be divided into this many pages.
    TooLong {
        pages: u32,
    },
}

/// A page among the keys of an attempt.
pub(super) struct PlannedPage {
    number: u32,
    hash: KeyHash,
    name: [u8; PAGE_NAME_BYTES],
}

/// The pages of an attempt: first those that exist, then those that are created, both by values and
/// numbers.
struct PlannedPages {
    pages: SmallVec<[PlannedPage; 2]>,
    /// Per value, the positions of both kinds in `pages`.
    of_values: SmallVec<[[Range<usize>; 2]; 1]>,
    existing: usize,
}

impl PlannedPages {
    fn new<'k>(
        seed: &HashSeed,
        keys: impl Iterator<Item = TableKey<'k>> + Clone,
        expected: &[Expected],
    ) -> PlannedPages {
        let mut plan =
            PlannedPages { pages: SmallVec::new(), of_values: SmallVec::new(), existing: 0 };
        for (TableKey { table, key }, expected) in keys.clone().zip(expected) {
            let start = plan.pages.len();
            if let Expected::Split { root: Root { id, .. }, pages, .. } = expected {
                let name = |page| PageName { table, root: key.hash, id: *id, page };
                plan.pages.extend(pages.iter().map(|page| PlannedPage::new(seed, name(*page))));
            }
            plan.of_values.push([start..plan.pages.len(), 0..0]);
        }
        plan.existing = plan.pages.len();
        for (at, (TableKey { table, key }, expected)) in keys.zip(expected).enumerate() {
            let start = plan.pages.len();
            let (id, created) = match expected {
                Expected::Packed => continue,
                Expected::Divided { id, pages } => (*id, 0..*pages),
                Expected::Split { root, resize, .. } => (root.id, resize.created()),
            };
            let name = |page| PageName { table, root: key.hash, id, page };
            plan.pages.extend(created.map(|page| PlannedPage::new(seed, name(page))));
            plan.of_values[at][1] = start..plan.pages.len();
        }
        plan
    }

    /// Returns the keys of the values, followed by those of the pages.
    fn keys<'p>(
        &'p self,
        values: impl Iterator<Item = TableKey<'p>>,
    ) -> impl Iterator<Item = TableKey<'p>> {
        values.chain(self.pages.iter().map(PlannedPage::table_key))
    }

    /// Returns the existing pages of a value.
    fn existing(&self, value: usize) -> Range<usize> {
        self.of_values[value][0].clone()
    }

    /// Returns the elements of all values, given their records and those of their existing pages. If
    /// some values do not have the expected forms, returns all of those.
    fn open<'r, 'k>(
        &self,
        roots: &[Option<Record<'r>>],
        pages: &[Option<Record<'r>>],
        value_type: ValueType,
        touched: impl Fn(usize) -> Touched<'k>,
        expected: &[Expected],
    ) -> Result<Result<OpenedValues<'r>, Surprises>, Refusal> {
        let (mut opened, mut surprises) = (OpenedValues::new(), Surprises::new());
        for (at, expected) in expected.iter().enumerate() {
            let pages = &pages[self.existing(at)];
            match open(roots[at], value_type, touched(at), expected, pages)? {
                Ok(elements) => opened.push(elements),
                Err(found) => surprises.push((at, found)),
            }
        }
        Ok(if surprises.is_empty() { Ok(opened) } else { Err(surprises) })
    }

    /// Returns the position of a page of a value.
    fn position(&self, value: usize, number: u32) -> usize {
        let mut places = self.of_values[value].iter().filter_map(|range| {
            let pages = &self.pages[range.clone()];
            let place = pages.binary_search_by_key(&number, |page| page.number).ok()?;
            Some(range.start + place)
        });
        let Some(place) = places.next_back() else { unreachable!("page {number} was not planned") };
        place
    }
}

impl PlannedPage {
    /// Returns the page of this name.
    pub(super) fn new(seed: &HashSeed, name: PageName) -> PlannedPage {
        let (hash, bytes) = name.key(seed);
        PlannedPage { number: name.page, hash, name: bytes }
    }

    /// Returns the number of the page.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the key of the page.
    pub(super) fn table_key(&self) -> TableKey<'_> {
        TableKey { table: TableId::PAGES, key: Key { hash: self.hash, bytes: &self.name } }
    }
}

/// Returns the form of a record, which must have this type. A missing record has no elements.
#[inline]
pub(crate) fn form(record: Option<Record<'_>>, value_type: ValueType) -> Result<Form<'_>, Refusal> {
    let Some(record) = record else { return Ok(Form::Packed(Packed::empty(value_type))) };
    if record.value.value_type != value_type {
        return Err(Refusal::WrongType);
    }
    Ok(Form::of(record.value)?)
}

/// Returns the time by which the fields of a hash expire: that by which its record was judged.
#[inline]
fn clock_of_fields(record: Option<Record<'_>>) -> UnixMillis {
    record.filter(|_| !planted::is(Bug::FieldsNotJudged)).map_or(UnixMillis(0), |it| it.clock)
}

/// Returns the elements of the pages that were read, or the form of the value if it is not the
/// expected one.
fn open<'r>(
    record: Option<Record<'r>>,
    value_type: ValueType,
    touched: Touched<'_>,
    expected: &Expected,
    pages: &[Option<Record<'r>>],
) -> Result<Result<Elements<'r>, FoundForm>, Refusal> {
    let now = clock_of_fields(record);
    if let Touched::Replaced = touched {
        return Ok(Ok(Elements::of(Packed::empty(value_type), now, NEW_SEARCHES)?));
    }
    let value_type = touched.type_of(record, value_type);
    let empty = Packed::empty(value_type);
    match (form(record, value_type)?, expected) {
        (Form::Packed(packed), Expected::Packed | Expected::Divided { .. }) => {
            Ok(Ok(Elements::of(packed, now, touched.searches())?))
        }
        (Form::Split(found), Expected::Split { root, pages: numbers, .. })
            if found.has_pages_of(root) =>
        {
            debug_assert_eq!(numbers.len(), pages.len(), "a page was not read");
            let page = |page: &Option<Record<'r>>| match page {
                Some(page) => Packed::parse(TypedValue { value_type, bytes: page.value.bytes }),
                None => Ok(empty),
            };
            let read = pages.iter().map(page);
            let read = read.collect::<Result<SmallVec<[Packed<'r>; 2]>, Damaged>>()?;
            let numbered = numbers.iter().copied().zip(read);
            let searches = touched.searches();
            Ok(Ok(Elements::of_pages(value_type, &found, numbered, now, searches)?))
        }
        (Form::Packed(_), Expected::Split { .. }) => Ok(Err(FoundForm::Packed)),
        (Form::Split(root), _) => Ok(Err(FoundForm::Split(root))),
    }
}

/// Number of searches that a command makes in a value that it builds anew.
const NEW_SEARCHES: usize = usize::MAX;

impl Backend {
    /// Passes those elements of a value that a command needs to `f`. Counts a hit or a miss.
    #[inline]
    pub(crate) fn read_elements<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        value_type: ValueType,
        touched: Touched<'_>,
        f: impl FnOnce(&Elements<'_>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let mut f = Some(f);
        let split = self.read_one(table, key, |record| match form(record, value_type)? {
            Form::Packed(packed) => {
                let Some(f) = f.take() else { unreachable!("this is the first read") };
                let now = clock_of_fields(record);
                f(&Elements::of(packed, now, touched.searches())?).map(Ok)
            }
            Form::Split(root) => Ok(Err(root)),
        })??;
        match (split, f) {
            (Ok(result), _) => Ok(result),
            (Err(root), Some(f)) => {
                let expected = smallvec![self.expected(touched, 0, false, FoundForm::Split(root))];
                let f = |elements: &[Elements<'_>]| f(&elements[0]);
                self.read_expected(table, &[key], value_type, touched, expected, f)
            }
            (Err(_), None) => unreachable!("a split value is not passed to the first read"),
        }
    }

    /// Passes elements of several values to `f`. Counts a hit or a miss for each.
    pub(crate) fn read_values<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        value_type: ValueType,
        touched: Touched<'_>,
        f: impl FnOnce(&[Elements<'_>]) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let mut found = Found::default();
        let expected = smallvec![Expected::Packed; keys.len()];
        let result = self.read_expected(table, keys, value_type, touched, expected, |values| {
            let hits = values.iter().filter(|elements| elements.count() > 0).count();
            found = Found::hits(hits, values.len());
            f(values)
        })?;
        self.count(found);
        if self.notes_access {
            keys.iter().for_each(|key| self.engine.worker.note_read(table, key.hash));
        }
        Ok(result)
    }

    pub(super) fn read_expected<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        value_type: ValueType,
        touched: Touched<'_>,
        mut expected: ExpectedForms,
        f: impl FnOnce(&[Elements<'_>]) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let seed = self.node().store().seed().clone();
        let mut f = Some(f);
        for _ in 0..TRIES {
            let values = keys.iter().map(|&key| TableKey { table, key });
            let plan = PlannedPages::new(&seed, values.clone(), &expected);
            let all: KeysOfAttempt<'_> = plan.keys(values).collect();
            let attempt = self.read_tables(&all, |records| {
                let (roots, pages) = records.split_at(keys.len());
                let touched = |_| touched;
                let opened = match plan.open(roots, pages, value_type, touched, &expected)? {
                    Ok(opened) => opened,
                    Err(surprises) => return Ok(Attempt::Unexpected(surprises)),
                };
                let Some(f) = f.take() else {
                    unreachable!("no attempt follows one that calls it")
                };
                f(&opened).map(Attempt::Done)
            })?;
            match attempt? {
                Attempt::Done(result) => return Ok(result),
                Attempt::Unexpected(surprises) => {
                    for (at, found) in surprises {
                        expected[at] = self.expected(touched, 0, false, found);
                    }
                }
            }
        }
        Err(NotExecuted::Retry(Cause::Turn))
    }

    /// Passes those elements of a value that a command needs to `f`, with the record, and makes the
    /// changes of `f`, which may be called several times.
    #[inline]
    pub(crate) fn update_elements<T>(
        &mut self,
        value_type: ValueType,
        change: ValueChange<'_>,
        mut f: impl FnMut(&mut Elements<'_>, Option<Record<'_>>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let layout = self.layout();
        let TableKey { table, key } = change.key;
        let attempt = self.update(table, &[key], Need::Records, |records, changes| {
            let elements = open(records[0], value_type, change.touched, &Expected::Packed, &[])?;
            let mut elements = match elements {
                Ok(elements) => elements,
                Err(found) => return Ok(Err(found)),
            };
            let result = f(&mut elements, records[0])?;
            if let Some(pages) = elements.must_split(&layout) {
                return Ok(Err(FoundForm::TooLong { pages }));
            }
            write_packed(&elements, records, change, changes, 0);
            Ok::<_, Refusal>(Ok(result))
        })?;
        let found = match attempt? {
            Ok(result) => return Ok(result),
            Err(found) => found,
        };
        let expected =
            smallvec![self.expected(change.touched, change.added, change.removes, found)];
        self.update_expected(value_type, &[change], expected, None, |elements, records| {
            f(&mut elements[0], records[0])
        })
    }

    /// Passes those elements of several values that a command needs to `f`, with the records, and
    /// makes the changes of `f` in one atomic step. `f` may be called several times.
    pub(crate) fn update_values<T>(
        &mut self,
        value_type: ValueType,
        values: &[ValueChange<'_>],
        f: impl FnMut(&mut [Elements<'_>], &[Option<Record<'_>>]) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let expected = smallvec![Expected::Packed; values.len()];
        self.update_expected(value_type, values, expected, None, f)
    }

    fn update_expected<T>(
        &mut self,
        value_type: ValueType,
        values: &[ValueChange<'_>],
        mut expected: ExpectedForms,
        mut order: Option<KeptOrder<'_>>,
        mut f: impl FnMut(&mut [Elements<'_>], &[Option<Record<'_>>]) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let layout = self.layout();
        let mut layout = Some(&layout);
        // Pages of a value that is replaced or moved to another key.
        let leaves_orphans = values.iter().any(|value| matches!(value.touched, Touched::Replaced));
        for _ in 0..TRIES {
            let plan = UpdatePlan { value_type, values, expected: &expected, layout };
            let order = order.as_mut().map(KeptOrder::again);
            let attempt = plan.attempt(self, order, &mut f);
            match attempt {
                Ok(Attempt::Done(result)) => {
                    if leaves_orphans {
                        self.note_orphans();
                    }
                    return Ok(result);
                }
                Ok(Attempt::Unexpected(surprises)) => {
                    for (at, found) in surprises {
                        let ValueChange { touched, added, removes, .. } = values[at];
                        expected[at] = self.expected(touched, added, removes, found);
                    }
                }
                // All pages of a value may be too much for one change. Then it stays packed.
                Err(NotExecuted::Reject(Refusal::TooLarge)) if layout.is_some() => {
                    layout = None;
                    for expected in &mut expected {
                        if matches!(expected, Expected::Divided { .. }) {
                            *expected = Expected::Packed;
                        }
                    }
                }
                Err(NotExecuted::Reject(Refusal::TooLarge)) => return Err(TOO_LARGE.into()),
                Err(next) => return Err(next),
            }
        }
        Err(NotExecuted::Retry(Cause::Turn))
    }

    fn attempt_update<T>(
        &mut self,
        UpdatePlan { value_type, values, expected, layout }: UpdatePlan<'_>,
        notes: &mut OrderNotes,
        f: &mut impl FnMut(&mut [Elements<'_>], &[Option<Record<'_>>]) -> Result<T, Refusal>,
    ) -> Result<Attempt<T>, NotExecuted> {
        let seed = self.node().store().seed().clone();
        let roots = values.iter().map(|value| value.key);
        let plan = PlannedPages::new(&seed, roots.clone(), expected);
        let keys: KeysOfAttempt<'_> = plan.keys(roots).collect();
        let needed = values.len() + plan.existing;
        let attempt = self.update_tables(
            &keys,
            |at| at < needed,
            |records, changes| {
                let (roots, pages) = records.split_at(values.len());
                let touched = |at: usize| values[at].touched;
                let mut opened = match plan.open(roots, pages, value_type, touched, expected)? {
                    Ok(opened) => opened,
                    Err(surprises) => return Ok(Attempt::Unexpected(surprises)),
                };
                let result = f(&mut opened, roots)?;
                let is_written = |at: usize| !matches!(values[at].touched, Touched::Source);
                let mut surprises = Surprises::new();
                let packed = opened
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| matches!(expected[*at], Expected::Packed) && is_written(*at));
                for (at, elements) in packed {
                    if let Some(pages) = layout.and_then(|layout| elements.must_split(layout)) {
                        surprises.push((at, FoundForm::TooLong { pages }));
                    }
                }
                if !surprises.is_empty() {
                    return Ok(Attempt::Unexpected(surprises));
                }
                notes
                    .note(&opened, roots, |at| matches!(expected[at], Expected::Divided { .. }))?;
                let mut writer = SplitWriter { plan: &plan, seed: &seed, records, changes };
                for (at, elements) in opened.iter().enumerate().filter(|(at, _)| is_written(*at)) {
                    match &expected[at] {
                        Expected::Packed => {
                            write_packed(elements, roots, values[at], writer.changes, at);
                        }
                        expected @ (Expected::Divided { .. } | Expected::Split { .. }) => {
                            writer.write(elements, expected, values[at], at)?;
                        }
                    }
                }
                Ok::<_, Refusal>(Attempt::Done(result))
            },
        )?;
        Ok(attempt?)
    }

    /// Returns the sizes of packed values and pages.
    #[inline]
    pub(crate) fn layout(&self) -> ValueLayout {
        ValueLayout::with_packed(self.configuration.memory.packed.0)
    }

    /// Returns what the next attempt expects of a value that was found in this form.
    pub(super) fn expected(
        &self,
        touched: Touched<'_>,
        added: u64,
        removes: bool,
        found: FoundForm,
    ) -> Expected {
        match found {
            FoundForm::Packed => Expected::Packed,
            FoundForm::TooLong { pages } => {
                let id = match planted::is(Bug::IdReused) {
                    true => Version(1),
                    false => self.node().store().draw_id(),
                };
                Expected::Divided { id, pages }
            }
            FoundForm::Split(root) => {
                let resize = self.layout().resize(&root, added, removes);
                let seed = self.node().store().seed();
                let pages = touched.pages(&root, resize, |name| element_hash(seed, name));
                Expected::Split { root, resize, pages }
            }
        }
    }
}

impl UpdatePlan<'_> {
    /// Makes an attempt, and lets the order of a sorted set follow.
    fn attempt<T>(
        self,
        backend: &mut Backend,
        held: Option<KeptOrder<'_>>,
        f: &mut impl FnMut(&mut [Elements<'_>], &[Option<Record<'_>>]) -> Result<T, Refusal>,
    ) -> Result<Attempt<T>, NotExecuted> {
        if self.value_type != ValueType::SortedSet {
            return backend.attempt_update(self, &mut OrderNotes::default(), f);
        }
        if backend.staged.is_some() {
            return self.attempt_on_copies(backend, f);
        }
        let found = if held.is_none() { self.order(backend.node()) } else { None };
        let mut locked = found.as_ref().map(|(_, _, shared)| shared.lock());
        let found = found.as_ref().zip(locked.as_deref_mut());
        let found = found.map(|((at, root, shared), state)| KeptOrder {
            at: *at,
            root: *root,
            shared,
            state,
        });
        let order = held.or(found);
        let mut notes = OrderNotes::of(order.as_ref().map(|order| order.at));
        let attempt = backend.attempt_update(self, &mut notes, f)?;
        if let Attempt::Done(_) = attempt {
            self.keep_order(backend, order, notes);
        }
        Ok(attempt)
    }

    /// Makes an attempt in a transaction, which notes what changes in the orders of sorted sets.
    fn attempt_on_copies<T>(
        self,
        backend: &mut Backend,
        f: &mut impl FnMut(&mut [Elements<'_>], &[Option<Record<'_>>]) -> Result<T, Refusal>,
    ) -> Result<Attempt<T>, NotExecuted> {
        let (mut notes, name) = self.notes_of_copy();
        let attempt = backend.attempt_update(self, &mut notes, f)?;
        if let (Attempt::Done(_), Some(name), Some(at)) = (&attempt, name, notes.at)
            && let Some(staged) = &mut backend.staged
        {
            let TableKey { table, key } = self.values[at].key;
            staged.note_order(name, staged.place(table, key)?, notes.changes);
        }
        Ok(attempt)
    }
}

impl ValueChange<'_> {
    /// Does the same as [`Backend::update_elements`] for a value that had this root just now.
    pub(crate) fn update_pages<T>(
        self,
        backend: &mut Backend,
        value_type: ValueType,
        root: Root,
        mut f: impl FnMut(&mut Elements<'_>, Option<Record<'_>>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let expected = smallvec![self.expected(backend, root)];
        backend.update_expected(value_type, &[self], expected, None, |elements, records| {
            f(&mut elements[0], records[0])
        })
    }

    fn expected(&self, backend: &Backend, root: Root) -> Expected {
        backend.expected(self.touched, self.added, self.removes, FoundForm::Split(root))
    }
}

impl KeptOrder<'_> {
    /// Does the same as [`Backend::update_values`] for sorted sets, while this order is locked.
    pub(super) fn update_values<T>(
        self,
        backend: &mut Backend,
        values: &[ValueChange<'_>],
        f: impl FnMut(&mut [Elements<'_>], &[Option<Record<'_>>]) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let mut expected: ExpectedForms = smallvec![Expected::Packed; values.len()];
        expected[self.at] = values[self.at].expected(backend, self.root);
        backend.update_expected(ValueType::SortedSet, values, expected, Some(self), f)
    }
}

pub(crate) const TOO_LARGE: Refusal = Refusal::because(
    "ERR a command cannot change this many bytes of a value at once: use several commands",
);

/// Writes a value that is packed after the change, if it has changed. Removes the key if there are no
/// elements.
#[inline]
fn write_packed(
    elements: &Elements<'_>,
    records: &[Option<Record<'_>>],
    change: ValueChange<'_>,
    changes: &mut Changes<'_>,
    at: usize,
) {
    let expiry = change.expiry.of(at, records);
    match elements.count() {
        _ if !elements.is_changed() => {}
        0 => changes.delete(at),
        _ => changes.put_built(at, elements.value_type(), expiry, |out| elements.encode(out)),
    }
}

/// Writes split values into the changes of an attempt.
struct SplitWriter<'w, 'c, 'r> {
    plan: &'w PlannedPages,
    seed: &'w HashSeed,
    /// The records of all keys, as read.
    records: &'w [Option<Record<'r>>],
    changes: &'w mut Changes<'c>,
}

impl SplitWriter<'_, '_, '_> {
    /// Writes the pages and the root of a value, if it has changed.
    fn write(
        &mut self,
        elements: &Elements<'_>,
        expected: &Expected,
        change: ValueChange<'_>,
        at: usize,
    ) -> Result<(), Refusal> {
        if !elements.is_changed() {
            return Ok(());
        }
        if elements.is_cleared() {
            self.changes.delete(at);
            return Ok(());
        }
        let first = self.plan.of_values.len();
        let position = |page| first + self.plan.position(at, page);
        let (records, changes) = (self.records, &mut *self.changes);
        let hash = |name: &[u8]| element_hash(self.seed, name);
        let (id, pages) = match expected {
            Expected::Packed => unreachable!("packed values are written without pages"),
            Expected::Divided { id, pages } => {
                elements.first_pages(*pages, hash, |page, bytes| {
                    put_page(changes, position(page), bytes);
                })?;
                (*id, *pages)
            }
            Expected::Split { root, resize, .. } => {
                elements.changed_pages(*resize, hash, |page, bytes| {
                    match (position(page), bytes) {
                        (at, Some(bytes)) => put_page(changes, at, bytes),
                        (at, None) if records[at].is_some() => changes.delete(at),
                        (_, None) => {}
                    }
                })?;
                (root.id, resize.after)
            }
        };
        let expiry = change.expiry.of(at, records);
        match elements.count() {
            0 => changes.delete(at),
            _ => changes.put_built(at, elements.value_type(), expiry, |out| {
                elements.root(id, pages).encode(out);
            }),
        }
        Ok(())
    }
}

fn put_page(changes: &mut Changes<'_>, at: usize, bytes: &[u8]) {
    changes.put_built(at, ValueType::String, None, |out| out.extend_from_slice(bytes));
}
