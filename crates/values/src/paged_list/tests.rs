//! Lists with pages, compared with a queue that has two ends.

use super::*;
use crate::tests::{items, list, packed};
use std::collections::{BTreeMap, VecDeque};
use types::{TypedValue, ValueType};

/// Longest packed list of most tests. A page has at most 40 bytes, each end of a root 16.
const PACKED_BYTES: usize = 80;

type Items = Vec<Vec<u8>>;

/// A list as the store has it.
#[derive(Clone, Default)]
struct Stored {
    /// The value of the key.
    value: Option<Vec<u8>>,
    pages: BTreeMap<u32, Vec<u8>>,
    /// Set if pages may exist that no root reaches.
    has_orphans: bool,
    /// Attempts of the last command.
    attempts: usize,
}

fn form(value: Option<&Vec<u8>>) -> ListForm<'_> {
    let of = |bytes| ListForm::of(TypedValue { value_type: ValueType::List, bytes });
    value.map_or(ListForm::Packed(PackedList::EMPTY), |bytes| of(bytes).expect("a list"))
}

impl Stored {
    /// Executes a command with as few pages as suffice.
    fn run<T>(
        &mut self,
        layout: &ValueLayout,
        mut f: impl FnMut(&mut PagedList<'_>) -> Result<T, ListGap>,
    ) -> T {
        self.run_with(layout, &packed(&[]), |paged, _| f(paged))
    }

    /// Does the same with new items.
    fn run_with<T>(
        &mut self,
        layout: &ValueLayout,
        new_items: &[u8],
        mut f: impl for<'x> FnMut(&mut PagedList<'x>, PackedList<'x>) -> Result<T, ListGap>,
    ) -> T {
        let (mut reach, mut room) = (ListReach::default(), PageRoom::default());
        self.attempts = 0;
        let before = self.clone();
        loop {
            self.attempts += 1;
            assert!(self.attempts < 40, "a command does not end");
            let form = form(before.value.as_ref());
            let pages = match form {
                ListForm::Packed(_) => [Vec::new(), Vec::new()],
                ListForm::Split(root) => reach.of(root.interval).map(|interval| {
                    interval.numbers().map(|number| list(&before.pages[&number])).collect()
                }),
            };
            let mut paged = PagedList::new(form, pages).expect("not damaged");
            let outcome = f(&mut paged, list(new_items))
                .and_then(|result| Ok((result, paged.settle(layout, true, room)?)));
            match (outcome, form) {
                (Ok((result, new)), _) => {
                    self.write(&paged, &new);
                    return result;
                }
                (Err(ListGap::Unread { end, items }), ListForm::Split(root)) => {
                    let read = reach;
                    reach.extend(&root, end, items);
                    assert_ne!(read, reach, "the same pages again");
                }
                (Err(ListGap::Uncreated { end, pages }), _) => {
                    room.id = Some(Version(7));
                    room.created[usize::from(end == ListEnd::Right)] = pages;
                }
                (Err(gap), _) => panic!("{gap:?}"),
            }
        }
    }

    fn write(&mut self, list: &PagedList<'_>, new: &NewList<'_>) {
        self.has_orphans |= list.leaves_orphans();
        match new {
            NewList::Unchanged => return,
            NewList::Removed => self.value = None,
            NewList::Packed(_) | NewList::Split { .. } => {
                let mut bytes = Vec::new();
                new.encode(&mut bytes);
                self.value = Some(bytes);
            }
        }
        for number in list.removed_pages() {
            assert!(self.pages.remove(&number).is_some(), "page {number} is not there");
        }
        if let NewList::Packed(_) | NewList::Removed = new {
            return;
        }
        for (number, items) in list.changed_pages() {
            let mut bytes = Vec::new();
            items.encode(&mut bytes);
            self.pages.insert(number, bytes);
        }
    }

    /// Checks what is stored, and returns the items.
    fn check(&self, layout: &ValueLayout) -> Items {
        match form(self.value.as_ref()) {
            ListForm::Packed(list) => {
                assert!(self.has_orphans || self.pages.is_empty(), "a packed list has pages");
                assert_eq!(self.value.is_some(), list.count() > 0);
                items(&list.into())
            }
            ListForm::Split(root) => {
                let ends = [root.left, root.right];
                assert!(
                    ends.iter()
                        .all(|end| end.byte_count() <= layout.list_end_bytes() || self.has_orphans)
                );
                let numbers: Vec<u32> = root.interval.numbers().collect();
                let others = self.pages.len() - numbers.len();
                assert!(self.has_orphans || others == 0, "{others} pages are not reached");
                let pages = numbers.iter().map(|number| list(&self.pages[number]));
                let all = std::iter::once(root.left).chain(pages).chain([root.right]);
                let bytes: usize = all.clone().map(PackedList::byte_count).sum();
                let all: Items =
                    all.flat_map(PackedList::items).map(|item| item.unwrap().to_vec()).collect();
                assert_eq!((root.count, root.bytes), (all.len() as u64, bytes as u64));
                all
            }
        }
    }

    fn pages(&self) -> usize {
        self.pages.len()
    }
}

fn item(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = if random.u8(..20) == 0 { random.usize(..60) } else { random.usize(..6) };
    vec![b'a' + random.u8(..3); length]
}

fn end(random: &mut fastrand::Rng) -> ListEnd {
    if random.bool() { ListEnd::Left } else { ListEnd::Right }
}

fn pushed(twin: &mut VecDeque<Vec<u8>>, end: ListEnd, new: &[Vec<u8>]) {
    match end {
        ListEnd::Left => new.iter().rev().for_each(|item| twin.push_front(item.clone())),
        ListEnd::Right => twin.extend(new.iter().cloned()),
    }
}

/// Removes items at an end, and returns them from left to right.
fn taken(twin: &mut VecDeque<Vec<u8>>, end: ListEnd, count: usize) -> Items {
    match end {
        ListEnd::Left => twin.drain(..count).collect(),
        ListEnd::Right => twin.drain(twin.len() - count..).collect(),
    }
}

/// Executes a random command on both.
fn step(
    stored: &mut Stored,
    twin: &mut VecDeque<Vec<u8>>,
    layout: &ValueLayout,
    random: &mut fastrand::Rng,
) {
    let (end, length) = (end(random), twin.len());
    let new: Items = (0..random.usize(1..4)).map(|_| item(random)).collect();
    let (bytes, one) = (packed(&new), packed(&new[..1]));
    let at = random.usize(..length.max(1));
    match random.u8(..12) {
        0..4 => {
            stored.run_with(layout, &bytes, |paged, new| {
                paged.push(end, new);
                Ok(())
            });
            pushed(twin, end, &new);
        }
        4..7 => {
            let count = random.usize(..5);
            let popped = stored.run(layout, |paged| Ok(items(&paged.pop(end, count as u64)?)));
            assert_eq!(popped, taken(twin, end, count.min(length)));
        }
        7 if length > 0 => {
            stored.run_with(layout, &one, |paged, new| paged.set(at as u64, new));
            twin[at].clone_from(&new[0]);
        }
        8 if length > 0 => {
            let is_behind = random.bool();
            stored.run_with(layout, &one, |paged, new| paged.insert(at as u64, is_behind, new));
            twin.insert(at + usize::from(is_behind), new[0].clone());
        }
        9 => {
            let count = random.usize(1..4);
            let removed = stored.run(layout, |paged| paged.remove(&new[0], end, count as u64));
            let places: Vec<usize> = (0..length).filter(|&place| twin[place] == new[0]).collect();
            let places: Vec<usize> = match end {
                ListEnd::Left => places.into_iter().take(count).rev().collect(),
                ListEnd::Right => places.into_iter().rev().take(count).collect(),
            };
            assert_eq!(removed, places.len() as u64);
            places.into_iter().for_each(|place| drop(twin.remove(place)));
        }
        10 => {
            let count = random.usize(..=length / 4);
            stored.run(layout, |paged| paged.cut(end, count as u64));
            taken(twin, end, count);
        }
        _ => {
            let range = at as u64..random.usize(at..=length) as u64;
            let read = stored.run(layout, |paged| Ok(items(&paged.slice(range.clone())?)));
            let expected = twin.range(range.start as usize..range.end as usize).cloned();
            assert_eq!(read, expected.collect::<Items>());
            let found = stored.run(layout, |paged| Ok(paged.item(at as u64)?.map(<[u8]>::to_vec)));
            assert_eq!(found.as_ref(), twin.get(at));
            let place = twin.iter().position(|item| *item == new[0]);
            let mut first = None;
            stored.run(layout, |paged| {
                first = None;
                paged.search(ListEnd::Left, |passed, item| {
                    first = (item == new[0]).then_some(passed as usize);
                    first.is_some()
                })
            });
            assert_eq!(first, place);
        }
    }
}

#[test]
fn lists_with_pages_behave_like_queues_with_two_ends() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let layout = ValueLayout::with_packed(PACKED_BYTES);
        let (mut stored, mut twin) = (Stored::default(), VecDeque::new());
        let mut most = 0;
        for round in 0..400 {
            // Lists grow, shrink and grow again.
            if round % 100 == 60 {
                let new: Items = (0..100).map(|_| item(&mut random)).collect();
                let (end, bytes) = (end(&mut random), packed(&new));
                stored.run_with(&layout, &bytes, |paged, new| {
                    paged.push(end, new);
                    Ok(())
                });
                pushed(&mut twin, end, &new);
            }
            if round % 100 == 99 {
                let (end, count) = (end(&mut random), twin.len().saturating_sub(6));
                stored.run(&layout, |paged| paged.cut(end, count as u64));
                taken(&mut twin, end, count);
            }
            step(&mut stored, &mut twin, &layout, &mut random);
            assert_eq!(stored.check(&layout), Vec::from(twin.clone()), "seed {seed} {round}");
            most = most.max(stored.pages());
        }
        assert!(most > 8, "{most} pages");
    }
}

fn push(stored: &mut Stored, layout: &ValueLayout, end: ListEnd, item: &[u8]) {
    let bytes = packed(&[item.to_vec()]);
    stored.run_with(layout, &bytes, |paged, new| {
        paged.push(end, new);
        Ok(())
    });
}

#[test]
fn a_queue_needs_one_page_at_most_and_mostly_none() {
    let layout = ValueLayout::with_packed(4096);
    let mut stored = Stored::default();
    let mut attempts = 0;
    for number in 0..2_000_u32 {
        push(&mut stored, &layout, ListEnd::Left, format!("item {number:06}").as_bytes());
    }
    let (pages, bytes) = (stored.pages(), 2_000 * 13);
    assert!(pages <= bytes / (layout.list_page_bytes() - layout.list_end_bytes()) + 1, "{pages}");
    for number in 2_000..4_000_u32 {
        push(&mut stored, &layout, ListEnd::Left, format!("item {number:06}").as_bytes());
        attempts += stored.attempts;
        let popped = stored.run(&layout, |paged| Ok(items(&paged.pop(ListEnd::Right, 1)?)));
        assert_eq!(popped, [format!("item {:06}", number - 2_000).into_bytes()]);
        attempts += stored.attempts;
        assert!(stored.attempts <= 3);
    }
    assert!(stored.pages() <= pages + 2, "a queue grows");
    assert!(attempts < 5_000, "{attempts} attempts of 4,000 commands");
    assert!(!stored.has_orphans);
}

#[test]
fn a_trimmed_list_leaves_its_pages_without_reading_them() {
    let layout = ValueLayout::with_packed(PACKED_BYTES);
    let mut stored = Stored::default();
    for number in 0..500 {
        push(&mut stored, &layout, ListEnd::Right, format!("{number}").as_bytes());
    }
    let pages = stored.pages();
    stored.run(&layout, |paged| paged.cut(ListEnd::Right, 480));
    assert!(stored.attempts <= 3 && stored.has_orphans);
    assert!(stored.pages() > pages / 2);
    // Numbers of pages are used again, and their former items never return.
    for number in 0..500 {
        push(&mut stored, &layout, ListEnd::Right, format!("new {number}").as_bytes());
    }
    let old = (0..20).map(|number| format!("{number}").into_bytes());
    let new = (0..500).map(|number| format!("new {number}").into_bytes());
    assert!(stored.check(&layout).into_iter().eq(old.chain(new)));
}

#[test]
fn a_list_that_items_are_removed_from_gives_up_its_pages() {
    let layout = ValueLayout::with_packed(PACKED_BYTES);
    let mut stored = Stored::default();
    push(&mut stored, &layout, ListEnd::Right, b"stays");
    let mut most = 0;
    for number in 0..3_000_u32 {
        push(&mut stored, &layout, ListEnd::Left, format!("{number}").as_bytes());
        if let Some(old) = number.checked_sub(40) {
            let old = format!("{old}");
            let end = if number % 2 == 0 { ListEnd::Left } else { ListEnd::Right };
            assert_eq!(stored.run(&layout, |paged| paged.remove(old.as_bytes(), end, 1)), 1);
        }
        most = most.max(stored.pages());
    }
    assert!(most < 40, "{most} pages");
    assert_eq!(stored.check(&layout).len(), 41);
}

#[test]
fn a_page_that_grows_is_divided() {
    let layout = ValueLayout::with_packed(PACKED_BYTES);
    let mut stored = Stored::default();
    let mut twin: Items = Vec::new();
    for number in 0..50 {
        twin.push(format!("{number}").into_bytes());
        push(&mut stored, &layout, ListEnd::Right, &twin[number]);
    }
    for number in 0..500 {
        let item = packed(&[format!("i{number}").into_bytes()]);
        stored.run_with(&layout, &item, |paged, new| paged.insert(25, false, new));
        twin.insert(25, format!("i{number}").into_bytes());
    }
    assert_eq!(stored.check(&layout), twin);
    let longest = stored.pages.values().map(Vec::len).max();
    assert!(longest < Some(8 * layout.list_page_bytes()), "{longest:?}");
}

#[test]
fn numbers_of_pages_wrap_around_in_lists() {
    let layout = ValueLayout::with_packed(PACKED_BYTES);
    let items_of = |from: u32, to: u32| (from..to).map(|n| format!("{n}").into_bytes());
    let mut stored = Stored::default();
    items_of(0, 100).for_each(|item| push(&mut stored, &layout, ListEnd::Right, &item));
    // The same list with other numbers: the last pages have the numbers 0 and 1.
    let ListForm::Split(root) = form(stored.value.as_ref()) else { panic!("it has pages") };
    let first = 2_u32.wrapping_sub(root.interval.pages);
    let interval = PageInterval { first, ..root.interval };
    let pages = root.interval.numbers().zip(interval.numbers());
    let pages = pages.map(|(old, new)| (new, stored.pages[&old].clone())).collect();
    let mut value = Vec::new();
    ListRoot { interval, ..root }.encode(&mut value);
    stored = Stored { value: Some(value), pages, ..Stored::default() };
    items_of(100, 200).for_each(|item| push(&mut stored, &layout, ListEnd::Right, &item));
    assert!(stored.check(&layout).into_iter().eq(items_of(0, 200)));
    let popped = stored.run(&layout, |paged| Ok(items(&paged.pop(ListEnd::Left, 150)?)));
    assert!(popped.into_iter().eq(items_of(0, 150)));
    assert!(stored.check(&layout).into_iter().eq(items_of(150, 200)));
}

#[test]
fn damaged_lists_are_errors_and_nothing_else() {
    let layout = ValueLayout::with_packed(PACKED_BYTES);
    let mut stored = Stored::default();
    for number in 0..60 {
        push(&mut stored, &layout, ListEnd::Right, format!("{number}").as_bytes());
    }
    let whole = stored.value.clone().expect("a root");
    let one = packed(&[b"one".to_vec()]);
    let mut random = fastrand::Rng::with_seed(42);
    let mut failed = 0;
    for _ in 0..50_000 {
        let mut value = whole.clone();
        // Anything but the id: also wrong totals, and other pages.
        let at = random.usize(13..value.len());
        value[at] = random.u8(..);
        let value = TypedValue { value_type: ValueType::List, bytes: &value };
        let Ok(ListForm::Split(root)) = ListForm::of(value) else { continue };
        let mut page = stored.pages.values().next().cloned().unwrap_or_default();
        if random.bool() {
            let at = random.usize(..page.len());
            page[at] = random.u8(..);
        }
        let Ok(ListForm::Packed(page)) =
            ListForm::of(TypedValue { value_type: ValueType::List, bytes: &page })
        else {
            continue;
        };
        let pages = [0, 1].map(|_| vec![page; random.usize(..8)]);
        let Ok(mut paged) = PagedList::new(ListForm::Split(root), pages) else { continue };
        let (end, at) = (end(&mut random), random.u64(..root.count));
        let done = match random.u8(..8) {
            0 => paged.pop(end, at).map(drop),
            1 => paged.cut(end, at),
            2 => paged.set(at, list(&one)),
            3 => paged.insert(at, true, list(&one)),
            4 => paged.remove(b"1", end, 3).map(drop),
            5 => paged.slice(at..root.count).map(drop),
            6 => paged.search(end, |_, item| item == b"7"),
            _ => {
                paged.push(end, list(&one));
                Ok(())
            }
        };
        let room = PageRoom { id: None, created: [9, 9] };
        let settled = done.and_then(|()| paged.settle(&layout, true, room));
        failed += usize::from(settled.is_err());
        if let Ok(new @ (NewList::Packed(_) | NewList::Split { .. })) = settled {
            new.encode(&mut Vec::new());
        }
    }
    assert!(failed > 1_000, "{failed}");
}

#[test]
fn a_search_does_not_pass_more_items_than_the_root_counts() {
    let layout = ValueLayout::with_packed(PACKED_BYTES);
    let mut stored = Stored::default();
    for number in 0..40 {
        let item = packed(&[format!("item {number}").into_bytes()]);
        stored.run_with(&layout, &item, |list, item| {
            list.push(ListEnd::Right, item);
            Ok(())
        });
    }
    let ListForm::Split(root) = form(stored.value.as_ref()) else { panic!("a list with pages") };
    let pages = root.interval.numbers().map(|number| list(&stored.pages[&number])).collect();
    // A page that is older than the root has items that were removed.
    let form = ListForm::Split(ListRoot { count: root.count - 1, ..root });
    let paged = PagedList::new(form, [pages, Vec::new()]).expect("its bytes are whole");
    for end in [ListEnd::Left, ListEnd::Right] {
        let mut passed = 0;
        let searched = paged.search(end, |at, _| {
            assert!(at < root.count - 1, "position {at} of {}", root.count - 1);
            passed += 1;
            false
        });
        assert_eq!((searched, passed), (Err(ListGap::Damaged), root.count - 1));
    }
}
