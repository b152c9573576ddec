//! Streams, of which the checker knows every id: those of the entries, the highest one, and those that
//! a consumer group has delivered.
//!
//! An id that a server has drawn from its clock is unknown if its client gave up. The checker takes it
//! for any such id, so it is not compared with others, and never is the highest one.

use super::entry_ids::{EntryId, EntryIds, PendingSummary};
use super::outcomes::OperationOutcome;

/// Most entries that a limited addition leaves.
pub const LIMITED_ENTRIES: usize = 3;

/// Id of an entry that is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewEntry {
    /// This one.
    Of(EntryId),
    /// The next one with this first part.
    At(u16),
    /// One from the server's clock.
    Now,
}

/// How many entries an addition leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdditionLimit {
    /// All.
    None,
    /// At most [`LIMITED_ENTRIES`], by the same command.
    Within,
    /// The same, by another command of the same transaction.
    Behind,
}

/// Operation on a stream. It has one group at most, with one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// Adds an entry, and returns its id. An id that is not higher than all before is refused.
    Add(NewEntry, AdditionLimit),
    /// Removes the entry of this id, and returns how many there were.
    Remove(EntryId),
    /// Removes the oldest entries but so many, and returns how many there were.
    Trim(u8),
    /// Returns the number of entries.
    Count,
    /// Returns so many of the oldest entries.
    Oldest(u8),
    /// Returns so many of the newest entries, newest first.
    Newest(u8),
    /// Replaces the stream by one with this entry and the next one.
    Replace(EntryId),
    /// Creates the group, behind the last entry or before the first one. It is refused if there is
    /// one.
    CreateGroup {
        /// Set if all entries count as delivered.
        at_end: bool,
    },
    /// Replaces the group by a new one behind the last entry.
    ResetGroup,
    /// Delivers so many entries to the consumer, and returns them.
    Deliver(u8),
    /// Returns the pending entries that are still there.
    Redeliver,
    /// Ends the delivery of this entry, and returns how many were pending.
    Acknowledge(EntryId),
    /// Returns the number of pending entries, and the first and last one.
    Pending,
    /// Renames the stream to another key and back, and returns whether there is one.
    Rename,
}

impl StreamAction {
    /// Returns whether the action changes nothing, whatever the value is. The times and numbers of
    /// deliveries do not count.
    pub(super) fn is_read(self) -> bool {
        matches!(
            self,
            StreamAction::Count
                | StreamAction::Oldest(_)
                | StreamAction::Newest(_)
                | StreamAction::Redeliver
                | StreamAction::Pending
        )
    }

    /// Returns whether the action, with this outcome, has changed nothing.
    pub(super) fn has_changed_nothing(self, outcome: OperationOutcome) -> bool {
        match (self, outcome) {
            (StreamAction::Add(_, AdditionLimit::Behind), _) => false,
            (_, OperationOutcome::Rejected) | (StreamAction::Rename, _) => true,
            (
                StreamAction::Remove(_) | StreamAction::Trim(_) | StreamAction::Acknowledge(_),
                OperationOutcome::Number(0),
            ) => true,
            (StreamAction::Deliver(_), OperationOutcome::Entries(ids)) => ids.as_slice().is_empty(),
            _ => self.is_read(),
        }
    }

    /// Returns whether the new value has no time to live, whatever the one before had.
    pub(super) fn ends_lifetime(self) -> bool {
        matches!(self, StreamAction::Replace(_))
    }
}

/// The content of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamContent {
    /// The highest id that was used.
    last: EntryId,
    entries: EntryIds,
    group: Option<GroupContent>,
}

/// The content of a consumer group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct GroupContent {
    /// Number of newest entries that were not delivered.
    fresh: u8,
    pending: EntryIds,
}

impl StreamContent {
    /// Returns whether a client may have seen these entries.
    pub(super) fn may_be(&self, seen: &EntryIds) -> bool {
        self.entries.may_be(seen)
    }

    /// Returns the id of a new entry; `None`: it is refused. `shown` is that from a clock.
    fn new_id(&self, new: NewEntry, shown: Option<EntryId>) -> Option<EntryId> {
        let id = match new {
            NewEntry::Of(id) => id,
            NewEntry::At(first) => {
                let first_of_it = EntryId::first_of(first);
                match self.last.is_behind(first_of_it) {
                    true => self.last.next(),
                    false => first_of_it,
                }
            }
            NewEntry::Now => shown.unwrap_or(EntryId::UNKNOWN),
        };
        (id > self.last).then_some(id)
    }

    fn add(&mut self, id: EntryId) {
        self.entries.add(id);
        if id != EntryId::UNKNOWN {
            self.last = id;
        }
        if let Some(group) = &mut self.group {
            group.fresh += 1;
        }
    }

    fn remove(&mut self, at: usize) {
        let behind = self.entries.count() - at as u8;
        self.entries.remove(at);
        if let Some(group) = &mut self.group
            && group.fresh >= behind
        {
            group.fresh -= 1;
        }
    }

    /// Removes the oldest entries but so many. Returns how many there were.
    fn trim(&mut self, left: usize) -> u64 {
        let excess = usize::from(self.entries.count()).saturating_sub(left);
        (0..excess).for_each(|_| self.remove(0));
        excess as u64
    }

    fn deliver(&mut self, most: u8) -> OperationOutcome {
        let Some(group) = &mut self.group else { return OperationOutcome::Rejected };
        let first = usize::from(self.entries.count() - group.fresh);
        let fresh = self.entries.as_slice()[first..].iter().take(usize::from(most));
        let mut delivered = EntryIds::default();
        for id in fresh {
            group.fresh -= 1;
            group.pending.add(*id);
            delivered.add(*id);
        }
        OperationOutcome::Entries(delivered)
    }
}

/// Returns the content of a stream after an action, and the outcome of the action. `shown` is the id
/// from a clock that the client has seen, if any.
pub(super) fn execute(
    before: Option<StreamContent>,
    action: StreamAction,
    shown: Option<EntryId>,
) -> (Option<StreamContent>, OperationOutcome) {
    let mut stream = before.unwrap_or_default();
    let mut exists = before.is_some();
    let outcome = match action {
        StreamAction::Add(new, limit) => {
            let id = stream.new_id(new, shown);
            if let Some(id) = id {
                stream.add(id);
                exists = true;
            }
            if limit == AdditionLimit::Behind || limit == AdditionLimit::Within && id.is_some() {
                stream.trim(LIMITED_ENTRIES);
            }
            id.map_or(OperationOutcome::Rejected, OperationOutcome::Id)
        }
        StreamAction::Remove(id) => {
            let found = stream.entries.find(id);
            found.into_iter().for_each(|at| stream.remove(at));
            OperationOutcome::Number(found.iter().count() as u64)
        }
        StreamAction::Trim(left) => OperationOutcome::Number(stream.trim(left.into())),
        StreamAction::Count => OperationOutcome::Number(stream.entries.count().into()),
        StreamAction::Oldest(most) => entries(stream.entries.as_slice().iter().take(most.into())),
        StreamAction::Newest(most) => {
            entries(stream.entries.as_slice().iter().rev().take(most.into()))
        }
        StreamAction::Replace(first) => {
            (stream, exists) = (StreamContent::default(), true);
            [first, first.next()].into_iter().for_each(|id| stream.add(id));
            OperationOutcome::Done
        }
        StreamAction::Rename => OperationOutcome::Applied(exists),
        StreamAction::CreateGroup { .. }
        | StreamAction::ResetGroup
        | StreamAction::Deliver(_)
        | StreamAction::Redeliver
        | StreamAction::Acknowledge(_)
        | StreamAction::Pending => {
            let outcome = execute_on_group(&mut stream, action);
            exists |= stream.group.is_some();
            outcome
        }
    };
    (exists.then_some(stream), outcome)
}

/// Returns the outcome that shows these entries.
fn entries<'i>(ids: impl Iterator<Item = &'i EntryId>) -> OperationOutcome {
    let ids = EntryIds::of(ids.copied()).expect("some of the ids of a stream");
    OperationOutcome::Entries(ids)
}

/// Executes an action on the group of a stream. A new group creates the stream.
fn execute_on_group(stream: &mut StreamContent, action: StreamAction) -> OperationOutcome {
    match (action, &mut stream.group) {
        (StreamAction::CreateGroup { at_end }, group) if group.is_none() => {
            let fresh = if at_end { 0 } else { stream.entries.count() };
            *group = Some(GroupContent { fresh, ..GroupContent::default() });
            OperationOutcome::Done
        }
        (StreamAction::ResetGroup, group) => {
            *group = Some(GroupContent::default());
            OperationOutcome::Done
        }
        (StreamAction::Deliver(most), Some(_)) => stream.deliver(most),
        (StreamAction::Redeliver, Some(group)) => {
            let pending = group.pending.as_slice().iter();
            entries(pending.filter(|id| stream.entries.find(**id).is_some()))
        }
        (StreamAction::Acknowledge(id), group) => {
            let pending = group.as_mut().map(|group| &mut group.pending);
            let found = pending.and_then(|pending| Some((pending.find(id)?, pending)));
            let count = u64::from(found.is_some());
            found.into_iter().for_each(|(at, pending)| pending.remove(at));
            OperationOutcome::Number(count)
        }
        (StreamAction::Pending, Some(group)) => {
            OperationOutcome::Pending(PendingSummary::of(&group.pending))
        }
        // There is a group already, or none.
        (_, _) => OperationOutcome::Rejected,
    }
}

/// Returns whether an observed outcome can be the one that the checker has computed.
pub(super) fn may_be(computed: OperationOutcome, seen: OperationOutcome) -> bool {
    match (computed, seen) {
        (OperationOutcome::Id(id), OperationOutcome::Id(seen)) => id.may_be(seen),
        (OperationOutcome::Entries(ids), OperationOutcome::Entries(seen)) => ids.may_be(&seen),
        (OperationOutcome::Pending(all), OperationOutcome::Pending(seen)) => all.may_be(&seen),
        (computed, seen) => computed == seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(first: u64, second: u64) -> EntryId {
        EntryId::new(first, second).unwrap()
    }

    fn added(content: Option<StreamContent>, new: NewEntry) -> (Option<StreamContent>, EntryId) {
        match execute(content, StreamAction::Add(new, AdditionLimit::None), None) {
            (content, OperationOutcome::Id(id)) => (content, id),
            (_, outcome) => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn ids_keep_their_parts_and_their_order() {
        let clock = 1_700_000_000_000;
        let ids = [(0, 1), (0, 7), (1, 0), (65_535, 4_095), (clock - 300_000, 0), (clock, 9)];
        for ((first, second), (later, behind)) in ids.iter().zip(&ids[1..]) {
            let (one, other) = (id(*first, *second), id(*later, *behind));
            assert_eq!((one.parts(), other.parts()), ((*first, *second), (*later, *behind)));
            assert!(one < other, "{one:?} {other:?}");
        }
        assert!(id(clock, 0).is_of_clock() && !id(65_535, 0).is_of_clock());
        let impossible = [(0, 0), (65_536, 0), (1, 4_096), (clock + (1 << 20), 0), (u64::MAX, 0)];
        assert!(impossible.iter().all(|(first, second)| EntryId::new(*first, *second).is_none()));
    }

    #[test]
    fn no_id_is_used_twice_although_its_entry_is_gone() {
        let (content, first) = added(None, NewEntry::At(3));
        assert_eq!(first, id(3, 0));
        let (content, second) = added(content, NewEntry::At(3));
        assert_eq!(second, id(3, 1));
        let (content, outcome) = execute(content, StreamAction::Remove(second), None);
        assert_eq!(outcome, OperationOutcome::Number(1));
        let again = StreamAction::Add(NewEntry::Of(second), AdditionLimit::None);
        assert_eq!(execute(content, again, None).1, OperationOutcome::Rejected);
        assert_eq!(added(content, NewEntry::At(3)).1, id(3, 2));
        assert_eq!(added(None, NewEntry::At(0)).1, id(0, 1));
    }

    #[test]
    fn a_group_delivers_each_entry_once_and_keeps_it_pending_when_it_is_removed() {
        let (content, first) = added(None, NewEntry::At(1));
        let create = StreamAction::CreateGroup { at_end: false };
        let (content, _) = execute(content, create, None);
        let (content, _) = added(content, NewEntry::At(1));
        let (content, outcome) = execute(content, StreamAction::Deliver(1), None);
        assert_eq!(outcome, OperationOutcome::Entries(EntryIds::of([first]).unwrap()));
        let (content, _) = execute(content, StreamAction::Trim(1), None);
        let (content, outcome) = execute(content, StreamAction::Deliver(5), None);
        assert_eq!(outcome, OperationOutcome::Entries(EntryIds::of([first.next()]).unwrap()));
        let ends = Some([first, first.next()]);
        let pending = OperationOutcome::Pending(PendingSummary { count: 2, ends });
        assert_eq!(execute(content, StreamAction::Pending, None).1, pending);
        let (content, outcome) = execute(content, StreamAction::Acknowledge(first), None);
        assert_eq!(outcome, OperationOutcome::Number(1));
        let left = OperationOutcome::Entries(EntryIds::of([first.next()]).unwrap());
        assert_eq!(execute(content, StreamAction::Redeliver, None).1, left);
        assert_eq!(execute(None, StreamAction::Deliver(1), None).1, OperationOutcome::Rejected);
    }

    #[test]
    fn an_id_from_a_clock_is_above_those_before_and_unknown_if_nobody_has_seen_it() {
        let add = StreamAction::Add(NewEntry::Now, AdditionLimit::None);
        let now = id(1_700_000_000_000, 5);
        let (known, outcome) = execute(None, add, Some(now));
        assert_eq!(outcome, OperationOutcome::Id(now));
        assert_eq!(execute(known, add, Some(now)).1, OperationOutcome::Rejected);
        let (unknown, _) = execute(known, add, None);
        let seen = |ids: &[EntryId]| EntryIds::of(ids.iter().copied()).unwrap();
        let content = unknown.unwrap();
        assert!(content.may_be(&seen(&[now, now.next()])) && !content.may_be(&seen(&[now])));
        assert!(!content.may_be(&seen(&[now, id(1, 0)])), "that is no id from a clock");
        assert_eq!(execute(unknown, add, Some(now.next())).1, OperationOutcome::Id(now.next()));
    }
}
