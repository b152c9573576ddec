//! Streams in pages beside a naive twin.

use super::*;
use crate::stream_group::PendingEntry;
use types::{TypedValue, ValueType};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The records of one key.
#[derive(Default)]
struct Records {
    root: Option<Vec<u8>>,
    pages: BTreeMap<(Version, u32), Vec<u8>>,
    next_id: u64,
    /// Most records that a command has read, beside the root.
    read_max: std::cell::Cell<usize>,
    /// Records that all attempts have read, beside the root.
    read_sum: std::cell::Cell<usize>,
}

/// Small sizes, so that few entries have many pages.
fn layout() -> ValueLayout {
    ValueLayout::with_packed(256)
}

impl Records {
    fn root(&self) -> Option<StreamRoot<'_>> {
        let bytes = self.root.as_deref()?;
        Some(StreamRoot::of(TypedValue { value_type: ValueType::Stream, bytes }).expect("a root"))
    }

    /// Executes a command in attempts, as the front end does.
    fn run<T>(&mut self, mut f: impl FnMut(&mut PagedStream<'_>) -> Result<T, StreamGap>) -> T {
        let (mut needs, mut bases) = (StreamNeeds::default(), BTreeMap::new());
        for _ in 0..200 {
            let ids: Vec<Version> =
                (0..needs.ids as u64).map(|at| Version(self.next_id + 1 + at)).collect();
            self.next_id += needs.ids as u64;
            let root = self.root();
            let id = match &root {
                Some(root) if root.id != Version(0) => root.id,
                Some(_) | None => ids.first().copied().unwrap_or(Version(0)),
            };
            let interval = root.as_ref().map_or(PageInterval::default(), |root| root.interval);
            let existing = needs.pages.iter().filter(|number| interval.contains(**number));
            let pages: Vec<(u32, EntryBlock<'_>)> = existing
                .map(|number| {
                    (*number, EntryBlock::parse(&self.pages[&(id, *number)]).expect("a page"))
                })
                .collect();
            self.read_max.set(self.read_max.get().max(pages.len()));
            self.read_sum.set(self.read_sum.get() + pages.len());
            bases.extend(pages.iter().map(|(number, block)| (*number, block.base())));
            let groups = needs.groups.iter().filter_map(|id| {
                let bytes = self.pages.get(&(*id, 0))?;
                Some((*id, ConsumerGroup::parse(bytes).expect("a group")))
            });
            let room = StreamRoom { ids, pages: needs.pages.clone() };
            let mut stream = PagedStream::new(root, pages.into_iter(), groups, &bases, room);
            let result = f(&mut stream);
            let settled = result.and_then(|result| stream.settle(&layout()).map(|()| result));
            match settled {
                Ok(result) => {
                    let written = Written::of(&stream, id);
                    self.write(written);
                    return result;
                }
                Err(StreamGap::Needs(wanted)) => needs = wanted,
                Err(StreamGap::Damaged) => panic!("the stream is damaged"),
            }
        }
        panic!("a command does not end")
    }

    fn write(&mut self, written: Written) {
        let Written { root, pages, is_changed } = written;
        if !is_changed {
            assert!(pages.is_empty(), "records change with their root");
            return;
        }
        self.root = root;
        for (name, bytes) in pages {
            match bytes {
                Some(bytes) => drop(self.pages.insert(name, bytes)),
                None => assert!(self.pages.remove(&name).is_some(), "{name:?} is removed"),
            }
        }
        // Those that are left without a root are removed by the walk over pages.
        let root = self.root.clone();
        let value = |bytes| TypedValue { value_type: ValueType::Stream, bytes };
        let root = root.as_deref().map(|bytes| StreamRoot::of(value(bytes)).expect("a root"));
        self.pages.retain(|(id, number), _| {
            let pages = root.as_ref().and_then(|root| root.pages_of(*id));
            pages.is_some_and(|pages| pages.contains(*number))
        });
    }

    fn check(&self, twin: &Twin) {
        let Some(root) = self.root() else { return assert!(twin.entries.is_empty()) };
        assert_eq!(root.count, twin.entries.len() as u64);
        assert_eq!((root.last_id, root.added), (twin.last_id, twin.added));
        assert_eq!(root.max_deleted, twin.max_deleted);
        assert_eq!(root.first_id, twin.entries.first_key_value().map_or(StreamId::MIN, |it| *it.0));
        let mut bytes = 0;
        for number in root.interval.numbers() {
            let block = EntryBlock::parse(&self.pages[&(root.id, number)]).expect("a page");
            bytes += block.byte_count() as u64;
            if number == root.interval.first {
                let live = block.entries().filter(|entry| entry.unwrap().id >= root.first_id);
                assert_eq!(live.count() as u64, root.first_live);
                assert!(root.first_live > 0, "the first page has an entry");
            }
        }
        assert_eq!(root.page_bytes, bytes);
        let groups = root.groups.len();
        assert_eq!(self.pages.len(), root.interval.pages as usize + groups);
    }
}

/// A page that is written; `None`: removed.
type WrittenPage = ((Version, u32), Option<Vec<u8>>);

/// The records that a command writes.
struct Written {
    root: Option<Vec<u8>>,
    pages: Vec<WrittenPage>,
    is_changed: bool,
}

impl Written {
    fn of(stream: &PagedStream<'_>, id: Version) -> Written {
        let mut pages = Vec::new();
        for (number, block) in stream.changed_pages() {
            let mut bytes = Vec::new();
            block.encode(&mut bytes);
            pages.push(((id, number), Some(bytes)));
        }
        pages.extend(stream.removed_pages().map(|number| ((id, number), None)));
        for (group, contents) in stream.changed_groups() {
            let bytes = contents.map(|group| {
                let mut bytes = Vec::new();
                group.encode(&mut bytes);
                bytes
            });
            pages.push(((group, 0), bytes));
        }
        let root = stream.exists().then(|| {
            let mut bytes = Vec::new();
            stream.root().encode(&mut bytes);
            bytes
        });
        Written { root, pages, is_changed: stream.is_changed() }
    }
}

#[derive(Default)]
struct Twin {
    entries: BTreeMap<StreamId, Fields>,
    last_id: StreamId,
    max_deleted: StreamId,
    added: u64,
}

fn fields_of(entry: &StreamEntry<'_>) -> Fields {
    entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

fn listed(entries: &[StreamEntry<'_>]) -> Vec<(StreamId, Fields)> {
    entries.iter().map(|entry| (entry.id, fields_of(entry))).collect()
}

/// A stream and its twin, which random commands change.
struct Pair {
    records: Records,
    twin: Twin,
    random: fastrand::Rng,
}

impl Pair {
    fn some_id(&mut self) -> StreamId {
        let highest = self.twin.last_id.ms + 2;
        StreamId { ms: self.random.u64(..=highest), seq: self.random.u64(..3) }
    }

    fn add(&mut self) {
        let random = &mut self.random;
        let last = self.twin.last_id;
        let id = match random.bool() {
            true => StreamId { seq: last.seq + random.u64(1..3), ..last },
            false => StreamId { ms: last.ms + random.u64(1..4), seq: random.u64(..2) },
        };
        let long = random.u8(..) < 10;
        let value = vec![b'v'; random.usize(..if long { 300 } else { 12 })];
        let fields = vec![(vec![random.u8(b'a'..b'd')], value)];
        self.records.run(|stream| {
            stream.push(id, fields.iter().map(|(name, value)| (&name[..], &value[..])));
            Ok(())
        });
        self.twin.entries.insert(id, fields);
        (self.twin.last_id, self.twin.added) = (id, self.twin.added + 1);
    }

    fn remove(&mut self) {
        let count = self.random.usize(1..6);
        let known: Vec<StreamId> = self.twin.entries.keys().copied().collect();
        let ids: BTreeSet<StreamId> = (0..count)
            .map(|_| match known.is_empty() || self.random.u8(..) < 60 {
                true => self.some_id(),
                false => known[self.random.usize(..known.len())],
            })
            .collect();
        let removed: Vec<StreamId> =
            ids.iter().copied().filter(|id| self.twin.entries.remove(id).is_some()).collect();
        self.twin.max_deleted = removed.iter().copied().fold(self.twin.max_deleted, Ord::max);
        assert_eq!(self.records.run(|stream| stream.remove(&ids)), removed.len() as u64);
    }

    /// Sets the highest id that was used: lower, if entries behind the last one were removed.
    fn set_last_id(&mut self) {
        let lowest = self.twin.entries.last_key_value().map_or(StreamId::MIN, |(id, _)| *id);
        let id = match self.random.bool() {
            true => lowest,
            false => StreamId { ms: self.twin.last_id.ms + self.random.u64(1..3), seq: 0 },
        };
        let id = if id == StreamId::MIN { StreamId { ms: 0, seq: 1 } } else { id };
        self.twin.last_id = id;
        self.twin.max_deleted = self.twin.max_deleted.min(id);
        let max_deleted = self.twin.max_deleted;
        self.records.run(|stream| {
            assert!(stream.last_entry_id()?.is_none_or(|last| last <= id));
            stream.create();
            stream.set_last_id(id, None, Some(max_deleted));
            Ok(())
        });
    }

    fn trim(&mut self) {
        let count = self.twin.entries.len() as u64;
        let trim = match self.random.bool() {
            true => StreamTrim::Length(count.saturating_sub(self.random.u64(..count / 2 + 3))),
            false => {
                let id = self.some_id();
                StreamTrim::From(StreamId { ms: id.ms / 2, ..id })
            }
        };
        let limit = self.random.u64(..3) * 20;
        let precision = match self.random.u8(..3) {
            0 => TrimPrecision::WholePages(limit),
            _ => TrimPrecision::Exact,
        };
        let removed = self.records.run(|stream| stream.trim(trim, precision));
        let wanted = match trim {
            StreamTrim::Length(length) => count.saturating_sub(length),
            StreamTrim::From(id) => self.twin.entries.range(..id).count() as u64,
        };
        match precision {
            TrimPrecision::Exact => assert_eq!(removed, wanted, "{trim:?}"),
            TrimPrecision::WholePages(0) => assert!(removed <= wanted),
            TrimPrecision::WholePages(limit) => assert!(removed <= wanted.min(limit)),
        }
        (0..removed).for_each(|_| drop(self.twin.entries.pop_first()));
    }

    fn read(&mut self) {
        let [one, other] = [self.some_id(), self.some_id()];
        let (start, end) = (one.min(other), one.max(other));
        let count = if self.random.bool() { self.random.u64(..8) } else { u64::MAX };
        let hint = self.random.bool().then(|| self.random.u32(..20));
        let range = StreamRange { start, end, count, hint };
        let taken = usize::try_from(count).unwrap_or(usize::MAX);
        let within = self.twin.entries.range(start..=end).map(|(id, it)| (*id, it.clone()));
        let found = self.records.run(|stream| Ok(listed(&stream.range(range)?.0)));
        assert_eq!(found, within.clone().take(taken).collect::<Vec<_>>(), "{range:?}");
        let found = self.records.run(|stream| Ok(listed(&stream.range_reversed(range)?)));
        assert_eq!(found, within.rev().take(taken).collect::<Vec<_>>(), "{range:?}");
        let found = self.records.run(|stream| Ok(stream.entry(one)?.is_some()));
        assert_eq!(found, self.twin.entries.contains_key(&one));
        let last = self.records.run(|stream| stream.last_entry_id());
        assert_eq!(last, self.twin.entries.last_key_value().map(|(id, _)| *id));
    }

    fn change_group(&mut self) {
        let name = [self.random.u8(b'a'..b'c')];
        match self.random.u8(..4) {
            0 => drop(self.records.run(|stream| stream.remove_group(&name))),
            _ => self.records.run(|stream| {
                let mut group = stream.group(&name)?.cloned().unwrap_or_default();
                let (consumer, _) = group.consumer(b"one", 5);
                let id = StreamId { ms: group.pending().len() as u64, seq: 0 };
                group.set_pending(PendingEntry { id, consumer, delivered: 1, deliveries: 1 });
                stream.set_group(&name, group)
            }),
        }
        if self.records.root().is_some_and(|root| root.count == 0) {
            // Streams without entries stay.
            assert!(self.twin.entries.is_empty());
        }
    }
}

#[test]
fn a_stream_has_the_entries_that_were_added_and_not_removed() {
    for seed in 0..60 {
        let random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair { records: Records::default(), twin: Twin::default(), random };
        pair.records.next_id = 1;
        for _ in 0..300 {
            match pair.random.u8(..20) {
                0 => pair.trim(),
                1..3 => pair.remove(),
                3..6 => pair.read(),
                6 => pair.change_group(),
                7 => pair.set_last_id(),
                _ => pair.add(),
            }
            pair.records.check(&pair.twin);
        }
    }
}

#[test]
fn a_copy_has_pages_and_groups_of_its_own() {
    let random = fastrand::Rng::with_seed(7);
    let mut pair = Pair { records: Records::default(), twin: Twin::default(), random };
    (0..200).for_each(|_| pair.add());
    (0..9).for_each(|_| pair.change_group());
    let from = pair.records.root().expect("a stream");
    let bases = BTreeMap::new();
    let none = StreamRoom::default;
    let cut = PagedStream::new(Some(from.clone()), [].into_iter(), [].into_iter(), &bases, none());
    let Err(StreamGap::Needs(needs)) = cut.require_all() else { panic!("pages are missing") };
    assert_eq!(needs.pages.len(), from.interval.pages as usize);
    let page = |number: &u32| {
        let bytes = &pair.records.pages[&(from.id, *number)];
        (*number, EntryBlock::parse(bytes).expect("a page"))
    };
    let group = |id: &Version| {
        (*id, ConsumerGroup::parse(&pair.records.pages[&(*id, 0)]).expect("a group"))
    };
    let pages = needs.pages.iter().map(page);
    let groups = needs.groups.iter().map(group);
    let whole = PagedStream::new(Some(from.clone()), pages, groups, &bases, none());
    let mut to = PagedStream::new(None, [].into_iter(), [].into_iter(), &bases, none());
    let Err(StreamGap::Needs(wanted)) = to.copy_from(&whole) else { panic!("there is no room") };
    let ids: Vec<Version> = (0..wanted.ids as u64).map(|at| Version(1_000 + at)).collect();
    let room = StreamRoom { ids, pages: wanted.pages };
    let mut to = PagedStream::new(None, [].into_iter(), [].into_iter(), &bases, room);
    assert_eq!(to.copy_from(&whole), Ok(()));
    assert_eq!(to.changed_pages().count(), from.interval.pages as usize);
    assert_eq!(to.changed_groups().count(), from.groups.len());
    let all = StreamRange { start: StreamId::MIN, end: StreamId::MAX, count: u64::MAX, hint: None };
    let copied = listed(&to.range(all).expect("all pages are here").0);
    assert!(copied.iter().map(|(id, fields)| (id, fields)).eq(&pair.twin.entries));
    assert!(to.root().groups.iter().all(|group| group.id >= Version(1_000)));
}

#[test]
fn a_search_reads_few_pages() {
    let random = fastrand::Rng::with_seed(9);
    let mut pair = Pair { records: Records::default(), twin: Twin::default(), random };
    (0..5_000).for_each(|_| pair.add());
    let pages = pair.records.root().map_or(0, |root| root.interval.pages);
    assert!(pages > 300, "{pages} pages");
    pair.records.read_max.set(0);
    for (id, fields) in &pair.twin.entries {
        let found = pair.records.run(|stream| Ok(stream.entry(*id)?.map(|it| fields_of(&it))));
        assert_eq!(found.as_ref(), Some(fields));
    }
    let read_max = pair.records.read_max.get();
    assert!(read_max <= 10, "{read_max} pages");
}

/// Returns a stream of so many pages at least, with an entry in each.
fn long(pages: u32) -> Pair {
    let random = fastrand::Rng::with_seed(9);
    let mut pair = Pair { records: Records::default(), twin: Twin::default(), random };
    while pair.records.root().is_none_or(|root| root.interval.pages < pages) {
        pair.add();
    }
    pair
}

#[test]
fn ids_go_on_below_those_of_removed_entries() {
    let id = |ms| StreamId { ms, seq: 0 };
    let mut records = Records { next_id: 1, ..Records::default() };
    let value = [b'v'; 200];
    let push = |records: &mut Records, ms, bytes| {
        records.run(|stream| {
            stream.push(id(ms), [(&b"f"[..], &value[..bytes])].into_iter());
            Ok(())
        });
    };
    (1..3).for_each(|ms| push(&mut records, ms, 200));
    assert!(records.root().is_some_and(|root| root.interval.pages > 0));
    (10..13).for_each(|ms| push(&mut records, ms, 1));
    assert!(records.root().is_some_and(|root| root.tail.count() == 3));
    assert_eq!(records.run(|stream| stream.remove(&(10..13).map(id).collect())), 3);
    records.run(|stream| {
        assert_eq!(stream.last_entry_id()?, Some(id(2)));
        stream.set_last_id(id(5), None, Some(id(2)));
        Ok(())
    });
    (6..12).for_each(|ms| push(&mut records, ms, 90));
    for ms in [1, 2, 6, 7, 11] {
        let found = records.run(|stream| Ok(stream.entry(id(ms))?.is_some()));
        assert!(found, "entry {ms}");
    }
}

#[test]
fn a_walk_over_pages_without_entries_reads_few_pages_twice() {
    let mut pair = long(400);
    let kept = [pair.twin.entries.first_key_value(), pair.twin.entries.last_key_value()];
    let [first, last] = kept.map(|kept| *kept.expect("an entry").0);
    let ids: BTreeSet<StreamId> =
        pair.twin.entries.keys().copied().filter(|id| *id != first && *id != last).collect();
    pair.records.run(|stream| stream.remove(&ids));
    let pages = pair.records.root().map_or(0, |root| root.interval.pages) as usize;
    assert!(pages >= 400, "{pages} pages");
    let all = StreamRange { start: StreamId::MIN, end: StreamId::MAX, count: 2, hint: None };
    let read = |records: &Records| records.read_sum.replace(0);
    read(&pair.records);
    let found = pair.records.run(|stream| Ok(listed(&stream.range(all)?.0)));
    assert_eq!(found.len(), 2);
    assert!(read(&pair.records) <= 4 * pages);
    let found = pair.records.run(|stream| Ok(listed(&stream.range_reversed(all)?)));
    assert_eq!(found.len(), 2);
    assert!(read(&pair.records) <= 4 * pages);
    assert_eq!(pair.records.run(|stream| stream.remove(&BTreeSet::from([first]))), 1);
    assert!(read(&pair.records) <= 4 * pages);
}

#[test]
fn a_trim_of_whole_pages_reads_few_pages_twice() {
    let mut pair = long(400);
    let pages = pair.records.root().map_or(0, |root| root.interval.pages) as usize;
    pair.records.read_sum.set(0);
    let trim = StreamTrim::Length(1);
    let removed = pair.records.run(|stream| stream.trim(trim, TrimPrecision::WholePages(0)));
    assert!(removed > 400);
    let read = pair.records.read_sum.get();
    assert!(read <= 4 * pages, "{read} pages of {pages}");
}

#[test]
fn many_entries_are_searched_at_once() {
    let mut pair = long(400);
    let pages = pair.records.root().map_or(0, |root| root.interval.pages) as usize;
    let ids: BTreeSet<StreamId> = pair.twin.entries.keys().copied().step_by(3).collect();
    pair.records.read_sum.set(0);
    let found = pair.records.run(|stream| {
        stream.require_entries(ids.iter().copied())?;
        let found = ids.iter().map(|id| Ok(stream.entry(*id)?.is_some()));
        found.collect::<Result<Vec<bool>, StreamGap>>()
    });
    assert!(found.iter().all(|is_found| *is_found));
    assert_eq!(pair.records.run(|stream| stream.remove(&ids)), ids.len() as u64);
    let read = pair.records.read_sum.get();
    assert!(read <= 8 * pages, "{read} pages of {pages}");
}
