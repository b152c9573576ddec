//! Streams, with their pages and consumer groups, wherever they are stored.
//!
//! An attempt reads or changes the roots of streams together with some of their pages and groups in
//! one atomic step, first without any. If the command needs further ones, or a stream has other ones
//! than expected, the attempt has no effect, and the next one knows more. The bases of pages that were
//! read are known to later attempts, as long as the root is the same.
//!
//! Every change of a stream rewrites its root, so a root of the same version has the same entries and
//! groups. Design: `docs/design/values.md`.

use super::backend::Backend;
use super::data::{Changes, Key, Need, Record, TableKey};
use super::elements::{NewExpiry, PlannedPage, TOO_LARGE};
use crate::commands::{Cause, NotExecuted, Refusal};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use types::{HashSeed, TableId, ValueType, Version};
use values::{
    ArgumentError, ConsumerGroup, Damaged, EntryBlock, PageInterval, PageName, PagedStream,
    StreamGap, StreamId, StreamNeeds, StreamRoom, StreamRoot,
};

/// Most attempts in one turn that fail because a stream was changed.
const TRIES: usize = 8;

/// Most pages of streams that one command reads: 2 GiB of entries.
const PAGES_READ_MAX: usize = 1 << 20;

const TOO_MANY_ENTRIES: Refusal =
    Refusal::because("ERR a command cannot read this many entries of a stream at once");

pub(crate) const GROUP_TOO_LARGE: Refusal = Refusal::because(
    "ERR the consumer group has too many pending entries: acknowledge some of them first",
);

/// A stream that a command reads or changes.
#[derive(Clone, Copy)]
pub(crate) struct StreamAccess<'k> {
    pub(crate) key: TableKey<'k>,
    pub(crate) expiry: NewExpiry,
    /// Set if the value is replaced, whatever it was. The command sees no stream.
    pub(crate) is_replaced: bool,
}

impl<'k> StreamAccess<'k> {
    /// Returns the access to a stream that keeps its expiry.
    pub(crate) fn of(key: TableKey<'k>) -> StreamAccess<'k> {
        StreamAccess { key, expiry: NewExpiry::Kept, is_replaced: false }
    }
}

/// The reason why a command on streams ends without effect.
pub(crate) enum StreamStop {
    /// The command is refused.
    Refused(Refusal),
    /// The stream at this position lacks records.
    Gap(usize, StreamGap),
}

impl From<Refusal> for StreamStop {
    fn from(refusal: Refusal) -> StreamStop {
        StreamStop::Refused(refusal)
    }
}

impl From<Damaged> for StreamStop {
    fn from(damaged: Damaged) -> StreamStop {
        StreamStop::Refused(damaged.into())
    }
}

/// That of the only stream of a command.
impl From<StreamGap> for StreamStop {
    fn from(gap: StreamGap) -> StreamStop {
        StreamStop::Gap(0, gap)
    }
}

impl From<ArgumentError> for Refusal {
    fn from(error: ArgumentError) -> Refusal {
        match error {
            ArgumentError::Syntax => Refusal::Syntax,
            ArgumentError::NotAnInteger => Refusal::NotAnInteger,
            ArgumentError::Arity => Refusal::Arity,
            ArgumentError::Because(text) => Refusal::Because(text),
        }
    }
}

impl From<ArgumentError> for NotExecuted {
    fn from(error: ArgumentError) -> NotExecuted {
        NotExecuted::Reject(error.into())
    }
}

/// The streams of a command, in an attempt.
pub(crate) struct OpenedStreams<'x> {
    /// A value of another type is refused when the command needs it.
    streams: Vec<Result<PagedStream<'x>, Refusal>>,
}

impl<'x> OpenedStreams<'x> {
    /// Returns the stream at a position.
    pub(crate) fn get(&self, at: usize) -> Result<&PagedStream<'x>, Refusal> {
        self.streams[at].as_ref().map_err(|refusal| refusal.clone())
    }

    /// Returns the stream at a position, to change it.
    pub(crate) fn get_mut(&mut self, at: usize) -> Result<&mut PagedStream<'x>, Refusal> {
        self.streams[at].as_mut().map_err(|refusal| refusal.clone())
    }
}

/// The records of a stream that an attempt reads and may create.
#[derive(Clone, Debug, Default)]
struct ExpectedStream {
    /// The id and the pages of the root, and its groups.
    id: Version,
    interval: PageInterval,
    groups: BTreeSet<Version>,
    needs: StreamNeeds,
    /// Ids for new pages and groups.
    ids: Vec<Version>,
    /// Version of the root to which `bases` belong.
    version: Option<Version>,
    bases: BTreeMap<u32, StreamId>,
}

impl ExpectedStream {
    /// Returns the id in the names of pages.
    fn page_id(&self) -> Option<Version> {
        let own = Some(self.id).filter(|id| *id != Version(0));
        own.or(self.ids.first().copied())
    }

    fn matches(&self, root: Option<&StreamRoot<'_>>) -> bool {
        let none = StreamRoot::EMPTY;
        let root = root.unwrap_or(&none);
        let is_known = |id: &Version| {
            self.groups.contains(id) == root.groups.iter().any(|group| group.id == *id)
        };
        let expects_nothing = self.needs.pages.is_empty() && self.needs.groups.is_empty();
        let is_same = self.id == root.id && self.interval == root.interval;
        expects_nothing || is_same && self.needs.groups.iter().all(is_known)
    }
}

/// The outcome of an attempt.
enum StreamAttempt<T> {
    Done(T),
    /// No effect: the stream at this position needs other records than expected.
    Again(usize, NextStream),
}

/// The state of a stream that an attempt has found, and the records that the next one needs.
struct NextStream {
    id: Version,
    interval: PageInterval,
    groups: BTreeSet<Version>,
    needs: StreamNeeds,
    version: Option<Version>,
    bases: BTreeMap<u32, StreamId>,
}

impl NextStream {
    fn new(root: Option<&StreamRoot<'_>>, needs: StreamNeeds, record: Option<Record<'_>>) -> Self {
        let none = StreamRoot::EMPTY;
        let root = root.unwrap_or(&none);
        let groups = root.groups.iter().map(|group| group.id).collect();
        let version = record.map(|record| record.version);
        let (id, interval) = (root.id, root.interval);
        NextStream { id, interval, groups, needs, version, bases: BTreeMap::new() }
    }
}

/// The records of an attempt, as keys behind those of the streams.
struct PlannedStreams {
    records: Vec<PlannedPage>,
    /// Positions of records that exist.
    existing: Vec<bool>,
    places: Vec<StreamPlaces>,
}

/// Positions of a stream's records in [`PlannedStreams::records`].
#[derive(Default)]
struct StreamPlaces {
    pages: BTreeMap<u32, usize>,
    groups: BTreeMap<Version, usize>,
}

impl PlannedStreams {
    fn new<'k>(
        seed: &HashSeed,
        keys: impl Iterator<Item = TableKey<'k>>,
        expected: &[ExpectedStream],
    ) -> Result<PlannedStreams, Refusal> {
        let mut plan =
            PlannedStreams { records: Vec::new(), existing: Vec::new(), places: Vec::new() };
        for (TableKey { table, key }, expected) in keys.zip(expected) {
            let mut places = StreamPlaces::default();
            if let Some(id) = expected.page_id() {
                for page in &expected.needs.pages {
                    places.pages.insert(*page, plan.records.len());
                    let name = PageName { table, root: key.hash, id, page: *page };
                    plan.records.push(PlannedPage::new(seed, name));
                    plan.existing.push(expected.interval.contains(*page));
                }
            }
            let created = expected.ids.iter().skip(1);
            for id in expected.needs.groups.iter().chain(created) {
                if !places.groups.contains_key(id) {
                    places.groups.insert(*id, plan.records.len());
                    let name = PageName { table, root: key.hash, id: *id, page: 0 };
                    plan.records.push(PlannedPage::new(seed, name));
                    plan.existing.push(expected.groups.contains(id));
                }
            }
            plan.places.push(places);
        }
        match plan.records.len() > PAGES_READ_MAX {
            true => Err(TOO_MANY_ENTRIES),
            false => Ok(plan),
        }
    }

    /// Returns the keys of the streams, followed by those of their records.
    fn keys<'p>(&'p self, streams: impl Iterator<Item = TableKey<'p>>) -> Vec<TableKey<'p>> {
        streams.chain(self.records.iter().map(PlannedPage::table_key)).collect()
    }

    /// Returns whether a key is needed: records that are created are not.
    fn is_needed(&self, at: usize) -> bool {
        at.checked_sub(self.places.len()).is_none_or(|at| self.existing[at])
    }

    /// Returns the position of a page among all keys.
    fn page(&self, stream: usize, number: u32) -> usize {
        let place = self.places[stream].pages.get(&number);
        let Some(place) = place else { unreachable!("page {number} was not planned") };
        self.places.len() + place
    }

    /// Returns the position of a group among all keys.
    fn group(&self, stream: usize, id: Version) -> usize {
        let place = self.places[stream].groups.get(&id);
        let Some(place) = place else { unreachable!("group {id:?} was not planned") };
        self.places.len() + place
    }

    /// Returns the stream of a record with the records that were read; `Err`: it has other ones than
    /// expected.
    fn open<'r>(
        &self,
        at: usize,
        expected: &'r ExpectedStream,
        records: &[Option<Record<'r>>],
    ) -> Result<Result<PagedStream<'r>, NextStream>, Refusal> {
        let root = stream_root(records[at])?;
        if !expected.matches(root.as_ref()) {
            let needs = StreamNeeds { ids: expected.needs.ids, ..StreamNeeds::default() };
            return Ok(Err(NextStream::new(root.as_ref(), needs, records[at])));
        }
        let places = &self.places[at];
        let bytes = |place: usize| {
            let record = records[self.places.len() + place].ok_or(Damaged)?;
            Ok::<&'r [u8], Damaged>(record.value.bytes)
        };
        let existing = |place: &usize| self.existing[*place];
        let pages = places.pages.iter().filter(|(_, place)| existing(place));
        let pages = pages.map(|(number, place)| Ok((*number, EntryBlock::parse(bytes(*place)?)?)));
        let pages = pages.collect::<Result<Vec<(u32, EntryBlock<'r>)>, Damaged>>()?;
        let groups = places.groups.iter().filter(|(_, place)| existing(place));
        let groups = groups.map(|(id, place)| Ok((*id, ConsumerGroup::parse(bytes(*place)?)?)));
        let groups = groups.collect::<Result<Vec<(Version, ConsumerGroup<'r>)>, Damaged>>()?;
        let room = StreamRoom { ids: expected.ids.clone(), pages: expected.needs.pages.clone() };
        let bases = match expected.version == records[at].map(|record| record.version) {
            true => &expected.bases,
            false => &NO_BASES,
        };
        let (pages, groups) = (pages.into_iter(), groups.into_iter());
        Ok(Ok(PagedStream::new(root, pages, groups, bases, room)))
    }

    /// Returns what the next attempt knows and needs after this gap.
    fn after(
        &self,
        at: usize,
        gap: StreamGap,
        records: &[Option<Record<'_>>],
    ) -> Result<NextStream, Refusal> {
        let StreamGap::Needs(needs) = gap else { return Err(Damaged.into()) };
        let root = stream_root(records[at])?;
        let mut next = NextStream::new(root.as_ref(), needs, records[at]);
        for (number, place) in &self.places[at].pages {
            if let Some(record) =
                records[self.places.len() + place].filter(|_| self.existing[*place])
            {
                next.bases.insert(*number, EntryBlock::parse(record.value.bytes)?.base());
            }
        }
        Ok(next)
    }
}

static NO_BASES: BTreeMap<u32, StreamId> = BTreeMap::new();

/// Returns the root of a record, which must be a stream. `None`: there is no record.
pub(crate) fn stream_root(record: Option<Record<'_>>) -> Result<Option<StreamRoot<'_>>, Refusal> {
    let Some(record) = record else { return Ok(None) };
    if record.value.value_type != ValueType::Stream {
        return Err(Refusal::WrongType);
    }
    Ok(Some(StreamRoot::of(record.value)?))
}

/// Access to the streams of a backend.
pub(crate) struct StreamData<'b> {
    backend: &'b mut Backend,
}

impl Backend {
    /// Returns the access to streams.
    pub(crate) fn streams(&mut self) -> StreamData<'_> {
        StreamData { backend: self }
    }
}

impl StreamData<'_> {
    /// Passes a stream to `f`, and makes the changes of `f` in one atomic step. `f` may be called
    /// several times.
    pub(crate) fn update_one<T>(
        &mut self,
        key: TableKey<'_>,
        mut f: impl for<'x> FnMut(&mut PagedStream<'x>) -> Result<T, StreamStop>,
    ) -> Result<T, NotExecuted> {
        let layout = self.backend.layout();
        // Most changes need the root alone.
        let done =
            self.backend.update(key.table, &[key.key], Need::Records, |records, changes| {
                let root = stream_root(records[0])?;
                let (none, room) = ([].into_iter(), StreamRoom::default());
                let mut stream = PagedStream::new(root, none, [].into_iter(), &NO_BASES, room);
                let result = match f(&mut stream) {
                    Ok(result) => result,
                    Err(StreamStop::Refused(refusal)) => return Err(refusal),
                    Err(StreamStop::Gap(..)) => return Ok(None),
                };
                if stream.settle(&layout).is_err() || stream.leaves_orphans() {
                    return Ok(None);
                }
                if stream.is_changed() {
                    let expiry = records[0].and_then(|record| record.expiry);
                    changes
                        .put_built(0, ValueType::Stream, expiry, |out| stream.root().encode(out));
                }
                Ok::<_, Refusal>(Some(result))
            })??;
        match done {
            Some(result) => Ok(result),
            None => self.update(&[StreamAccess::of(key)], |streams, _| f(streams.get_mut(0)?)),
        }
    }

    /// Passes streams to `f`, which may be called several times: until it has the records that it
    /// needs.
    pub(crate) fn read<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        mut f: impl FnMut(&OpenedStreams<'_>) -> Result<T, StreamStop>,
    ) -> Result<T, NotExecuted> {
        let seed = self.backend.node().store().seed().clone();
        let mut expected = vec![ExpectedStream::default(); keys.len()];
        let (mut tries, mut is_first) = (0, true);
        while tries < TRIES {
            let roots = keys.iter().map(|&key| TableKey { table, key });
            let plan = PlannedStreams::new(&seed, roots.clone(), &expected)?;
            let mut read =
                |records: &[Option<Record<'_>>]| read_once(&plan, &expected, records, &mut f);
            let attempt = match (is_first, keys) {
                // The first attempt counts hits and misses.
                (true, &[key]) => self.backend.read_one(table, key, |record| read(&[record]))??,
                (true, keys) => self.backend.read(table, keys, read)??,
                (false, _) => self.backend.read_tables(&plan.keys(roots), read)??,
            };
            is_first = false;
            match attempt {
                StreamAttempt::Done(result) => return Ok(result),
                StreamAttempt::Again(at, next) => {
                    tries += usize::from(self.expect(&mut expected[at], next));
                }
            }
        }
        Err(NotExecuted::Retry(Cause::Turn))
    }

    /// Passes streams to `f`, with the records, and makes the changes of `f` in one atomic step. `f`
    /// may be called several times.
    pub(crate) fn update<T>(
        &mut self,
        streams: &[StreamAccess<'_>],
        mut f: impl for<'x> FnMut(
            &mut OpenedStreams<'x>,
            &[Option<Record<'x>>],
        ) -> Result<T, StreamStop>,
    ) -> Result<T, NotExecuted> {
        let mut expected = vec![ExpectedStream::default(); streams.len()];
        let mut tries = 0;
        while tries < TRIES {
            match self.attempt_streams(streams, &expected, &mut f) {
                Ok(StreamAttempt::Done(result)) => return Ok(result),
                Ok(StreamAttempt::Again(at, next)) => {
                    tries += usize::from(self.expect(&mut expected[at], next));
                }
                Err(NotExecuted::Reject(Refusal::TooLarge)) => return Err(TOO_LARGE.into()),
                Err(next) => return Err(next),
            }
        }
        Err(NotExecuted::Retry(Cause::Turn))
    }

    /// Prepares the next attempt on a stream. Returns whether the stream was changed since the last
    /// one.
    fn expect(&self, expected: &mut ExpectedStream, next: NextStream) -> bool {
        let is_known = expected.version.is_some();
        let is_changed = is_known && expected.version != next.version;
        if is_changed {
            expected.bases.clear();
        }
        expected.bases.extend(next.bases);
        (expected.id, expected.interval, expected.groups) = (next.id, next.interval, next.groups);
        (expected.needs, expected.version) = (next.needs, next.version);
        while expected.ids.len() < expected.needs.ids {
            expected.ids.push(self.backend.node().store().draw_id());
        }
        is_changed || !is_known && next.version.is_none()
    }

    fn attempt_streams<T>(
        &mut self,
        streams: &[StreamAccess<'_>],
        expected: &[ExpectedStream],
        f: &mut impl for<'x> FnMut(
            &mut OpenedStreams<'x>,
            &[Option<Record<'x>>],
        ) -> Result<T, StreamStop>,
    ) -> Result<StreamAttempt<T>, NotExecuted> {
        let seed = self.backend.node().store().seed().clone();
        let layout = self.backend.layout();
        let roots = streams.iter().map(|stream| stream.key);
        let plan = PlannedStreams::new(&seed, roots.clone(), expected)?;
        let keys = plan.keys(roots);
        let mut leaves_orphans = streams.iter().any(|stream| stream.is_replaced);
        let is_needed = |at| plan.is_needed(at);
        let attempt = self.backend.update_tables(&keys, is_needed, |records, changes| {
            // A value that is replaced counts as absent.
            let seen: Vec<Option<Record<'_>>> = records
                .iter()
                .enumerate()
                .map(|(at, record)| {
                    record.filter(|_| streams.get(at).is_none_or(|it| !it.is_replaced))
                })
                .collect();
            let mut opened = OpenedStreams { streams: Vec::with_capacity(streams.len()) };
            for (at, expected) in expected.iter().enumerate() {
                match plan.open(at, expected, &seen) {
                    Ok(Ok(stream)) => opened.streams.push(Ok(stream)),
                    Ok(Err(next)) => return Ok(StreamAttempt::Again(at, next)),
                    Err(refusal) => opened.streams.push(Err(refusal)),
                }
            }
            let again = |at: usize, gap| Ok(StreamAttempt::Again(at, plan.after(at, gap, &seen)?));
            let result = match f(&mut opened, &records[..streams.len()]) {
                Ok(result) => result,
                Err(StreamStop::Refused(refusal)) => return Err(refusal),
                Err(StreamStop::Gap(at, gap)) => return again(at, gap),
            };
            for (at, stream) in opened.streams.iter_mut().enumerate() {
                let Ok(stream) = stream else { continue };
                if let Err(gap) = stream.settle(&layout) {
                    return again(at, gap);
                }
                if !stream.changed_groups().all(|(_, group)| group.is_none_or(ConsumerGroup::fits))
                {
                    return Err(GROUP_TOO_LARGE);
                }
            }
            for (at, stream) in opened.streams.iter().enumerate() {
                let Ok(stream) = stream else { continue };
                leaves_orphans |= stream.leaves_orphans();
                let expiry = streams[at].expiry.of(at, records);
                StreamWriter { plan: &plan, records, changes: &mut *changes }
                    .write(at, stream, expiry);
            }
            Ok::<_, Refusal>(StreamAttempt::Done(result))
        })??;
        if let (StreamAttempt::Done(_), true) = (&attempt, leaves_orphans) {
            self.backend.note_orphans();
        }
        Ok(attempt)
    }
}

/// Passes streams to `f`, with the records that were read.
fn read_once<T>(
    plan: &PlannedStreams,
    expected: &[ExpectedStream],
    records: &[Option<Record<'_>>],
    f: &mut impl FnMut(&OpenedStreams<'_>) -> Result<T, StreamStop>,
) -> Result<StreamAttempt<T>, Refusal> {
    let mut opened = OpenedStreams { streams: Vec::with_capacity(expected.len()) };
    for (at, expected) in expected.iter().enumerate() {
        match plan.open(at, expected, records) {
            Ok(Ok(stream)) => opened.streams.push(Ok(stream)),
            Ok(Err(next)) => return Ok(StreamAttempt::Again(at, next)),
            Err(refusal) => opened.streams.push(Err(refusal)),
        }
    }
    match f(&opened) {
        Ok(result) => Ok(StreamAttempt::Done(result)),
        Err(StreamStop::Refused(refusal)) => Err(refusal),
        Err(StreamStop::Gap(at, gap)) => {
            Ok(StreamAttempt::Again(at, plan.after(at, gap, records)?))
        }
    }
}

/// Writes streams into the changes of an attempt.
struct StreamWriter<'w, 'c, 'r> {
    plan: &'w PlannedStreams,
    /// The records of all keys, as read.
    records: &'w [Option<Record<'r>>],
    changes: &'w mut Changes<'c>,
}

impl StreamWriter<'_, '_, '_> {
    /// Writes a stream as the value of the key at a position, with its pages and groups.
    fn write(&mut self, at: usize, stream: &PagedStream<'_>, expiry: Option<types::UnixMillis>) {
        let changes = &mut *self.changes;
        if !stream.is_changed() {
            return;
        }
        let is_alone =
            planted::is(Bug::PagesRemovedAlone) && stream.removed_pages().next().is_some();
        match stream.exists() {
            _ if is_alone => {}
            true => changes.put_built(at, ValueType::Stream, expiry, |out| {
                stream.root().encode(out);
            }),
            false => changes.delete(at),
        }
        for number in stream.removed_pages() {
            let page = self.plan.page(at, number);
            assert!(self.records[page].is_some(), "a page that was read is removed");
            changes.delete(page);
        }
        for (number, block) in stream.changed_pages() {
            let page = self.plan.page(at, number);
            changes.put_built(page, ValueType::String, None, |out| block.encode(out));
        }
        for (id, group) in stream.changed_groups() {
            let place = self.plan.group(at, id);
            match group {
                Some(group) => {
                    changes.put_built(place, ValueType::String, None, |out| group.encode(out));
                }
                None => changes.delete(place),
            }
        }
    }
}
