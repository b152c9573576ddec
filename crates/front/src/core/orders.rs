//! The order of sorted sets: of packed ones, whose members are in order, and of those with pages, whose
//! order is in memory ([`node::SortedOrders`]).
//!
//! An order is used only for the version of the root for which it is exact. Whoever changes members of
//! a value with an order has it locked, and lets it follow. A command that needs an order and finds
//! none builds it in steps, and waits for the next turn when the steps of a turn are used up. In a
//! transaction the command interrupts the commands, which start again when the order is built. A set
//! that the transaction has changed has no exact order, so all of its pages are read.
//!
//! A reply that depends on an order depends on the root, whose version is compared. The root of a
//! later change is never acknowledged before those that it depends on. Design:
//! `docs/design/values.md`.

use super::backend::Backend;
use super::data::{Changes, Key, Need, Record, TableKey};
use super::elements::{
    Expected, FoundForm, NewExpiry, PlannedPage, Touched, UpdatePlan, ValueChange, form,
};
use super::order_notes::{KeptOrder, OrderNotes};
use super::staged::TransactionRecords;
use crate::commands::{Cause, NotExecuted, Refusal};
use node::{Node, OrderName, OrderState, SharedOrder};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use types::{TableId, TypedValue, ValueType, Version, element_hash};
use values::{
    Damaged, Elements, Form, MemberOrder, MemberSelection, Packed, PageName, Root, ScoredMember,
    SortedSet, encode_members, page_at, page_of, place_of_element, score_of,
};

/// Most attempts in one turn that fail because the value was changed.
const TRIES: usize = 8;

/// Pages that are read in one step.
const PAGES_PER_STEP: usize = 64;

/// Most orders that are built for one request whose commands work on copies. Then it reads all pages of
/// the other sets: their orders may take so much memory that one is dropped for the next.
const ORDERS_MAX: u32 = 8;

/// A sorted set as a command on its order sees it.
pub(crate) enum SortedView<'v> {
    /// The members in order.
    Packed(SortedSet<'v>),
    /// The order of a set with pages.
    Divided(&'v MemberOrder),
}

impl<'v> SortedView<'v> {
    /// Returns the number of members.
    pub(crate) fn count(&self) -> usize {
        match self {
            SortedView::Packed(set) => set.count(),
            SortedView::Divided(order) => order.count(),
        }
    }

    /// Returns the number of selected members.
    pub(crate) fn count_selected(&self, selection: &MemberSelection<'_>) -> Result<usize, Damaged> {
        match self {
            SortedView::Packed(set) => Ok(selection.span(*set)?.count),
            SortedView::Divided(order) => Ok(selection.ranks(order).len()),
        }
    }

    /// Returns the selected members in order.
    pub(crate) fn selected(
        &self,
        selection: &MemberSelection<'_>,
    ) -> Result<Vec<ScoredMember<'v>>, Damaged> {
        match self {
            SortedView::Packed(set) => set.part(&selection.span(*set)?).list(),
            SortedView::Divided(order) => Ok(order.members(selection.ranks(order))),
        }
    }
}

/// A look at the root of a sorted set with pages.
enum RootLook<T> {
    Seen(T),
    /// The value has another root.
    Other(Root),
    /// The value has no pages.
    Gone,
}

/// The members that a command removes from a sorted set with pages, and the version of its root.
struct RemovedMembers {
    /// In order, as a packed sorted set.
    packed: Vec<u8>,
    /// Set if these are all members.
    are_all: bool,
    version: Version,
}

/// A removal of members of the first of several sorted sets that is open and has some.
#[derive(Clone, Copy)]
pub(crate) struct MemberRemoval<'k> {
    pub(crate) table: TableId,
    pub(crate) keys: &'k [Key<'k>],
    /// The keys from which members may be removed.
    pub(crate) open: &'k [bool],
    pub(crate) selection: &'k MemberSelection<'k>,
}

/// The first set of a removal.
enum FirstSet {
    /// Members were removed from it.
    Done,
    /// It has pages, or must get some.
    Large(usize),
    /// There is none.
    None,
}

/// Returns the name of the order of a value with this key and root.
pub(super) fn order_name(key: TableKey<'_>, root: &Root) -> OrderName {
    OrderName { table: key.table, hash: key.key.hash, id: root.id }
}

/// Returns the memory that the order of a sorted set takes.
pub(crate) fn order_bytes(node: &Node, key: TableKey<'_>, root: &Root) -> usize {
    node.orders().find(order_name(key, root)).map_or(0, |order| order.memory_bytes())
}

/// The orders of the values that an update changes.
impl<'p> UpdatePlan<'p> {
    /// Returns the position, key and root of the value that the update changes in its pages.
    fn changed_root(&self) -> Option<(usize, TableKey<'p>, Root)> {
        let values = self.values.iter().zip(self.expected).enumerate();
        let mut changed = values.filter_map(|(at, (change, expected))| match expected {
            Expected::Split { root, .. } if change.added > 0 || change.removes => {
                Some((at, change.key, *root))
            }
            Expected::Split { .. } | Expected::Packed | Expected::Divided { .. } => None,
        });
        let first = changed.next();
        debug_assert!(changed.next().is_none(), "a command changes the pages of two sorted sets");
        first
    }

    /// Returns the order of the value that the update changes in its pages, with the position and root
    /// of the value.
    pub(super) fn order(&self, node: &Node) -> Option<(usize, Root, Arc<SharedOrder>)> {
        let (at, key, root) = self.changed_root()?;
        let shared = node.orders().find(order_name(key, &root))?;
        Some((at, root, shared))
    }

    /// Returns the notes of an attempt in a transaction, with the name of the order that they are for.
    /// The order need not exist: another reactor may build it before the transaction takes effect.
    pub(super) fn notes_of_copy(&self) -> (OrderNotes, Option<OrderName>) {
        assert_eq!(self.value_type, ValueType::SortedSet, "only sorted sets have orders");
        match self.changed_root() {
            Some((at, key, root)) => (OrderNotes::of(Some(at)), Some(order_name(key, &root))),
            None => (OrderNotes::default(), None),
        }
    }

    /// Lets orders follow the update, which has been made.
    pub(super) fn keep_order(
        &self,
        backend: &Backend,
        order: Option<KeptOrder<'_>>,
        notes: OrderNotes,
    ) {
        let node = backend.node();
        let OrderNotes { before, changes, is_removed, divided, .. } = notes;
        if let Some(KeptOrder { at, root, shared, state }) = order {
            let name = order_name(self.values[at].key, &root);
            if is_removed {
                *state = OrderState::default();
                node.orders().forget(name);
            } else if !changes.is_empty() {
                let seed = node.store().seed();
                let place = |member: &[u8]| place_of_element(element_hash(seed, member));
                state.follow(before, backend.written_version(at), &changes, place);
                node.orders().note_memory(name, shared, state);
            }
        }
        if let Some((at, order)) = divided
            && let Expected::Divided { id, .. } = self.expected[at]
            && let Some(version) = backend.written_version(at)
        {
            let TableKey { table, key } = self.values[at].key;
            node.orders().keep(OrderName { table, hash: key.hash, id }, version, order);
        }
    }
}

impl TransactionRecords {
    /// Returns the same copies, for a request for which so many orders were built.
    pub(crate) fn of_attempt(
        mut self: Box<TransactionRecords>,
        orders_built: u32,
    ) -> Box<TransactionRecords> {
        if orders_built < ORDERS_MAX {
            self.wait_for_orders();
        }
        self
    }

    /// Builds the order that has interrupted the commands, and counts it. Returns whether there was one.
    pub(crate) fn build_lacking_order(
        &self,
        backend: &mut Backend,
        orders_built: &mut u32,
    ) -> Result<bool, NotExecuted> {
        assert!(backend.staged.is_none(), "a transaction cannot wait for an order");
        let Some(key) = self.lacking_order() else { return Ok(false) };
        SortedSets::of(backend).complete_order(key)?;
        *orders_built += 1;
        Ok(true)
    }

    /// Carries out the changes, which `commit` makes, and lets the orders of sorted sets follow.
    /// Returns whether they were made.
    pub(crate) fn commit_with_orders(
        &self,
        backend: &mut Backend,
        commit: impl FnOnce(&mut Backend) -> Result<bool, NotExecuted>,
    ) -> Result<bool, NotExecuted> {
        let changed: Vec<_> = self.changed_orders().collect();
        if changed.is_empty() {
            return commit(backend);
        }
        let orders = changed.iter().map(|(name, _)| backend.node().orders().find(**name));
        let shared: Vec<_> = orders.collect();
        // By their names, so that no two transactions wait for each other.
        let mut locked: Vec<_> = shared.iter().map(|it| it.as_ref().map(|it| it.lock())).collect();
        if !commit(backend)? {
            return Ok(false);
        }
        let seed = backend.node().store().seed();
        let place = |member: &[u8]| place_of_element(element_hash(seed, member));
        for (((name, change), state), shared) in changed.iter().zip(&mut locked).zip(&shared) {
            let (Some(state), Some(shared)) = (state, shared) else { continue };
            let after = backend.written_version(change.place);
            let after = after.filter(|_| self.has_root(change.place, name.id));
            state.follow(change.before, after, &change.changes, place);
            backend.node().orders().note_memory(**name, shared, state);
        }
        Ok(true)
    }
}

/// Access to sorted sets in order.
pub(crate) struct SortedSets<'b> {
    backend: &'b mut Backend,
}

impl<'b> SortedSets<'b> {
    pub(crate) fn of(backend: &'b mut Backend) -> SortedSets<'b> {
        SortedSets { backend }
    }

    /// Reads any record, and changes its expiry or removes it, like [`Backend::update`]. The order of a
    /// sorted set with pages follows.
    pub(crate) fn update_expiry<T>(
        &mut self,
        key: TableKey<'_>,
        f: impl FnOnce(Option<Record<'_>>, &mut Changes<'_>) -> T,
    ) -> Result<T, NotExecuted> {
        let name = self.name_of_order(key)?;
        let backend = &mut *self.backend;
        let shared = name.filter(|_| backend.staged.is_none());
        let shared = shared.and_then(|name| backend.node().orders().find(name));
        // Locked before the update: whoever builds the order must not meet the new version before it.
        let mut state = shared.as_ref().map(|shared| shared.lock());
        let mut before = None;
        let result = backend.update(key.table, &[key.key], Need::Records, |records, changes| {
            let found = root_of(records[0]).ok().flatten();
            let found = found.filter(|(_, root)| Some(order_name(key, root)) == name);
            before = found.map(|(version, _)| version);
            f(records[0], changes)
        })?;
        match (&mut backend.staged, name) {
            (Some(staged), Some(name)) => {
                staged.note_order(name, staged.place(key.table, key.key)?, []);
            }
            (Some(_), None) => {}
            (None, _) => {
                let after = backend.written_version(0);
                if let (Some(state), Some(_), Some(_)) = (&mut state, before, after) {
                    state.follow(before, after, &[], |_| 0);
                }
            }
        }
        Ok(result)
    }

    /// Returns the name of the order of a record, if it is a sorted set with pages. The order may not
    /// exist.
    fn name_of_order(&mut self, key: TableKey<'_>) -> Result<Option<OrderName>, NotExecuted> {
        if self.backend.staged.is_none() && !self.backend.node().orders().is_any() {
            return Ok(None);
        }
        self.backend.peek_one(key.table, key.key, |record| {
            let root = root_of(record).ok().flatten();
            root.map(|(_, root)| order_name(key, &root))
        })
    }

    /// Passes a sorted set in order to `f`, and the score of a member in a set with pages. Counts a hit
    /// or a miss. `f` is called until it is called with a set.
    pub(crate) fn read<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        member: Option<&[u8]>,
        f: impl FnMut(SortedView<'_>, Option<f64>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let mut exists = false;
        let result = self.peek(table, key, member, &mut exists, f);
        if let Ok(_) | Err(NotExecuted::Reject(_)) = result {
            self.backend.count_read(table, key, exists);
        }
        result
    }

    /// Does the same as [`SortedSets::read`] without counting.
    fn peek<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        member: Option<&[u8]>,
        exists: &mut bool,
        mut f: impl FnMut(SortedView<'_>, Option<f64>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let divided = self.backend.peek_one(table, key, |record| {
            *exists = record.is_some();
            match form(record, ValueType::SortedSet)? {
                Form::Packed(packed) => f(SortedView::Packed(packed.into()), None).map(Ok),
                Form::Split(root) => Ok(Err((root, record.map(|record| record.version)))),
            }
        })??;
        let (root, seen) = match divided {
            Ok(result) => return Ok(result),
            Err(divided) => divided,
        };
        let key = TableKey { table, key };
        if self.backend.staged.is_some() {
            return self.read_copy(key, root, member, f);
        }
        self.with_order(key, root, |sets, root, state, _| {
            // The root had this version within the time of this command.
            if member.is_none()
                && let Some(order) = seen.and_then(|version| state.exact(version))
            {
                return Ok(RootLook::Seen(Some(f(SortedView::Divided(order), None)?)));
            }
            sets.look_at_root(key, root, member, |version, score| match state.exact(version) {
                Some(order) => f(SortedView::Divided(order), score).map(Some),
                None => Ok(None),
            })
        })
    }

    /// Builds the order of a sorted set, if it has pages and its order is not exact.
    fn complete_order(&mut self, key: TableKey<'_>) -> Result<(), NotExecuted> {
        let found = self.backend.peek_one(key.table, key.key, root_of)?;
        // A value of another type has replaced the set.
        let Ok(Some((_, root))) = found else { return Ok(()) };
        self.with_order(key, root, |sets, root, state, _| {
            sets.look_at_root(key, root, None, |version, _| Ok(state.exact(version).map(|_| ())))
        })
    }

    /// Passes a sorted set with pages to `f` like [`SortedSets::read`], in a transaction.
    fn read_copy<T>(
        &mut self,
        key: TableKey<'_>,
        root: Root,
        member: Option<&[u8]>,
        mut f: impl FnMut(SortedView<'_>, Option<f64>) -> Result<T, Refusal>,
    ) -> Result<T, NotExecuted> {
        let is_written = self.backend.staged_version(key.table, key.key)?.is_some();
        if !is_written {
            if let Some(shared) = self.backend.node().orders().find(order_name(key, &root)) {
                let state = shared.lock();
                let look = self.look_at_root(key, &root, member, |version, score| {
                    let order = state.exact(version);
                    order.map(|order| f(SortedView::Divided(order), score)).transpose()
                })?;
                if let RootLook::Seen(Some(result)) = look {
                    return Ok(result);
                }
            }
            if let Some(staged) = &mut self.backend.staged {
                staged.lack_order(staged.place(key.table, key.key)?)?;
            }
        }
        let mut packed = Vec::new();
        let (touched, found) = (Touched::All, FoundForm::Split(root));
        let expected = smallvec![self.backend.expected(touched, 0, false, found)];
        let (TableKey { table, key }, sorted_set) = (key, ValueType::SortedSet);
        self.backend.read_expected(table, &[key], sorted_set, touched, expected, |sets| {
            encode_members(&mut sets[0].sorted_members()?, &mut packed);
            Ok(())
        })?;
        Ok(f(SortedView::Packed(SortedSet::parse(&packed).map_err(Refusal::from)?), None)?)
    }

    /// Passes the locked order of a sorted set with pages to `f`, with the root and its place in
    /// memory, until `f` has seen it exact. Builds it where it is not.
    fn with_order<T>(
        &mut self,
        key: TableKey<'_>,
        mut root: Root,
        mut f: impl FnMut(
            &mut SortedSets<'_>,
            &Root,
            &mut OrderState,
            &SharedOrder,
        ) -> Result<RootLook<Option<T>>, NotExecuted>,
    ) -> Result<T, NotExecuted> {
        for _ in 0..TRIES {
            let name = order_name(key, &root);
            let shared = self.backend.node().orders().find_or_begin(name);
            let mut state = shared.lock();
            match f(self, &root, &mut state, &shared)? {
                RootLook::Seen(Some(result)) => return Ok(result),
                RootLook::Seen(None) => {
                    let built = self.build_order(key, root, &mut state);
                    self.backend.node().orders().note_memory(name, &shared, &state);
                    built?;
                }
                RootLook::Other(other) => root = other,
                RootLook::Gone => {
                    self.backend.node().orders().forget(name);
                    break;
                }
            }
        }
        Err(NotExecuted::Retry(Cause::Turn))
    }

    /// Reads the root of a sorted set with the page of a member, and passes the version of the root and
    /// the score of the member to `f`.
    fn look_at_root<T>(
        &mut self,
        key: TableKey<'_>,
        root: &Root,
        member: Option<&[u8]>,
        f: impl FnOnce(Version, Option<f64>) -> Result<T, Refusal>,
    ) -> Result<RootLook<T>, NotExecuted> {
        let seed = self.backend.node().store().seed().clone();
        let page = member.map(|member| {
            let page = page_of(element_hash(&seed, member), root.pages);
            let name = PageName { table: key.table, root: key.key.hash, id: root.id, page };
            PlannedPage::new(&seed, name)
        });
        let keys = std::iter::once(key).chain(page.iter().map(PlannedPage::table_key));
        let keys: SmallVec<[TableKey<'_>; 2]> = keys.collect();
        Ok(self.backend.read_tables(&keys, |records| {
            let (version, now) = match root_of(records[0])? {
                Some(found) => found,
                None => return Ok(RootLook::Gone),
            };
            if !now.has_pages_of(root) {
                return Ok(RootLook::Other(now));
            }
            let mut score = None;
            if let (Some(member), Some(page)) = (member, records.get(1)) {
                score = page_of_scores(*page)?.get(member)?.map(score_of).transpose()?;
            }
            f(version, score).map(RootLook::Seen)
        })??)
    }

    /// Adds members of pages to an order until it is complete, or until the steps of this turn are used
    /// up.
    fn build_order(
        &mut self,
        key: TableKey<'_>,
        mut root: Root,
        state: &mut OrderState,
    ) -> Result<(), NotExecuted> {
        let seed = self.backend.node().store().seed().clone();
        let id = root.id;
        let mut from = 0;
        loop {
            if self.backend.order_steps == 0 {
                return Err(NotExecuted::Retry(Cause::Turn));
            }
            let step = PageStep::of(from, root.pages);
            let name = |page| PageName { table: key.table, root: key.key.hash, id, page };
            let planned = |page: &u32| PlannedPage::new(&seed, name(*page));
            let pages: Vec<PlannedPage> = step.pages.iter().map(planned).collect();
            let keys = std::iter::once(key).chain(pages.iter().map(PlannedPage::table_key));
            let keys: Vec<TableKey<'_>> = keys.collect();
            let added = self.backend.read_tables(&keys, |records| {
                let Some((version, now)) = root_of(records[0])?.filter(|(_, now)| now.id == id)
                else {
                    return Ok(None);
                };
                root = now;
                match state.scan_from(version) {
                    None => return Ok(None),
                    Some(place) if place != step.from || now.pages != step.of_pages => {
                        from = place;
                        return Ok(Some((1, false)));
                    }
                    Some(_) => {}
                }
                let mut members = 0;
                for page in &records[1..] {
                    for element in page_of_scores(*page)?.elements() {
                        let one = ScoredMember::of(element?, ValueType::SortedSet)?;
                        members += 1;
                        if step.contains(place_of_element(element_hash(&seed, one.member))) {
                            state.add(one);
                        }
                    }
                }
                state.advance(step.to);
                from = step.to;
                Ok::<_, Refusal>(Some((members + records.len(), step.to == 0)))
            })??;
            let Some((steps, is_complete)) = added else { return Ok(()) };
            self.backend.order_steps = self.backend.order_steps.saturating_sub(steps);
            if is_complete {
                return Ok(());
            }
        }
    }

    /// Removes the selected members of the first of these sorted sets that is open and has some, and
    /// passes its position and the members to `write`. Returns false if there is none.
    pub(crate) fn remove(
        &mut self,
        removal: MemberRemoval<'_>,
        mut write: impl FnMut(usize, &[ScoredMember<'_>]),
    ) -> Result<bool, NotExecuted> {
        let MemberRemoval { table, keys, open, selection } = removal;
        let packed_bytes_max = self.backend.layout().packed_bytes_max as u64;
        let first = self.backend.update(table, keys, Need::Records, |records, changes| {
            for (at, record) in records.iter().enumerate() {
                let set = match form(*record, ValueType::SortedSet)? {
                    Form::Packed(packed) => SortedSet::from(packed),
                    Form::Split(_) if open[at] => return Ok(FirstSet::Large(at)),
                    Form::Split(_) => continue,
                };
                if set.count() == 0 || !open[at] {
                    continue;
                }
                if set.bytes() > packed_bytes_max && set.count() > 1 {
                    return Ok(FirstSet::Large(at));
                }
                let span = selection.span(set)?;
                write(at, &set.part(&span).list()?);
                match span.count {
                    0 => {}
                    count if count == set.count() => changes.delete(at),
                    _ => {
                        let expiry = record.and_then(|record| record.expiry);
                        let build = |out: &mut Vec<u8>| set.write_without(&span, out);
                        changes.put_built(at, ValueType::SortedSet, expiry, build);
                    }
                }
                return Ok(FirstSet::Done);
            }
            Ok::<FirstSet, Refusal>(FirstSet::None)
        })??;
        match first {
            FirstSet::Done => Ok(true),
            FirstSet::None => Ok(false),
            FirstSet::Large(at) => {
                let removed = self.remove_from_large(removal, at)?;
                let set = SortedSet::parse(&removed).map_err(Refusal::from)?;
                write(at, &set.list().map_err(Refusal::from)?);
                Ok(true)
            }
        }
    }

    /// Removes the selected members of the set at a position, which has pages or is too long for one
    /// record. Returns them as a packed sorted set.
    fn remove_from_large(
        &mut self,
        removal: MemberRemoval<'_>,
        at: usize,
    ) -> Result<Vec<u8>, NotExecuted> {
        let MemberRemoval { table, keys, selection, .. } = removal;
        let key = TableKey { table, key: keys[at] };
        let found = self.backend.peek_one(table, key.key, |record| {
            let form = form(record, ValueType::SortedSet)?;
            let version = record.map_or(Version(0), |record| record.version);
            match form {
                Form::Split(root) => Ok(Err(root)),
                Form::Packed(packed) => {
                    let view = SortedView::Packed(packed.into());
                    RemovedMembers::of(&view, selection, version).map(Ok)
                }
            }
        })??;
        let root = match found {
            Ok(members) => {
                let removed = self.remove_these(removal, at, &members, None)?;
                return removed.then_some(members.packed).ok_or(NotExecuted::Retry(Cause::Turn));
            }
            Err(root) => root,
        };
        if self.backend.staged.is_some() {
            let members = self.read_copy(key, root, None, |view, _| {
                RemovedMembers::of(&view, selection, Version(0))
            })?;
            self.remove_these(removal, at, &members, None)?;
            return Ok(members.packed);
        }
        self.with_order(key, root, |sets, root, state, shared| {
            let look = sets.look_at_root(key, root, None, |version, _| {
                let order = state.exact(version).map(SortedView::Divided);
                order.map(|view| RemovedMembers::of(&view, selection, version)).transpose()
            })?;
            let members = match look {
                RootLook::Seen(Some(members)) => members,
                RootLook::Seen(None) => return Ok(RootLook::Seen(None)),
                RootLook::Other(root) => return Ok(RootLook::Other(root)),
                RootLook::Gone => return Ok(RootLook::Gone),
            };
            let order = KeptOrder { at, root: *root, shared, state };
            match sets.remove_these(removal, at, &members, Some(order))? {
                true => Ok(RootLook::Seen(Some(members.packed))),
                // It was changed without its order, or a set before it has members now.
                false => Err(NotExecuted::Retry(Cause::Turn)),
            }
        })
    }

    /// Removes these members if the set still has the version in which they were found, and no set
    /// before it has members. Returns whether it did so.
    fn remove_these(
        &mut self,
        MemberRemoval { table, keys, open, .. }: MemberRemoval<'_>,
        at: usize,
        removed: &RemovedMembers,
        order: Option<KeptOrder<'_>>,
    ) -> Result<bool, NotExecuted> {
        let RemovedMembers { packed, are_all, version } = removed;
        let set = SortedSet::parse(packed).map_err(Refusal::from)?;
        let names: Vec<&[u8]> = match are_all {
            true => Vec::new(),
            false => {
                let members = set.list().map_err(Refusal::from)?;
                members.iter().map(|one| one.member).collect()
            }
        };
        let change = |position: usize| ValueChange {
            key: TableKey { table, key: keys[position] },
            touched: if position == at { Touched::Names(&names) } else { Touched::Names(&[]) },
            expiry: NewExpiry::Kept,
            added: 0,
            removes: position == at,
        };
        let values: Vec<ValueChange<'_>> = (0..=at).map(change).collect();
        let is_staged = self.backend.staged.is_some();
        let remove = |sets: &mut [Elements<'_>], records: &[Option<Record<'_>>]| {
            let is_empty = |before: usize| !open[before] || sets[before].count() == 0;
            let is_seen = records[at].is_some_and(|record| record.version == *version);
            if !(0..at).all(is_empty) || !is_seen && !is_staged {
                return Ok(false);
            }
            if *are_all {
                sets[at].clear();
            }
            for name in &names {
                if !sets[at].remove(name)? {
                    return Err(Damaged.into());
                }
            }
            Ok(true)
        };
        let done = match order {
            Some(order) => order.update_values(self.backend, &values, remove)?,
            None => self.backend.update_values(ValueType::SortedSet, &values, remove)?,
        };
        if *are_all && done {
            self.backend.note_orphans();
        }
        Ok(done)
    }
}

impl RemovedMembers {
    fn of(
        view: &SortedView<'_>,
        selection: &MemberSelection<'_>,
        version: Version,
    ) -> Result<RemovedMembers, Refusal> {
        let mut members = view.selected(selection)?;
        let are_all = members.len() == view.count();
        let mut packed = Vec::new();
        encode_members(&mut members, &mut packed);
        Ok(RemovedMembers { packed, are_all, version })
    }
}

/// Pages that are read together, in the order of a scan.
struct PageStep {
    from: u64,
    /// Place behind them; 0: the end.
    to: u64,
    pages: Vec<u32>,
    /// Number of pages of the value.
    of_pages: u32,
}

impl PageStep {
    fn of(from: u64, of_pages: u32) -> PageStep {
        let mut step = PageStep { from, to: from, pages: Vec::new(), of_pages };
        while step.pages.len() < PAGES_PER_STEP {
            let (page, next) = page_at(step.to, of_pages);
            step.pages.push(page);
            step.to = next;
            if next == 0 {
                break;
            }
        }
        step
    }

    /// Returns whether a place is among these pages, and not before the first one.
    fn contains(&self, place: u64) -> bool {
        place >= self.from && (self.to == 0 || place < self.to)
    }
}

/// Returns the root of a sorted set with pages and its version; `None`: it has no pages.
fn root_of(record: Option<Record<'_>>) -> Result<Option<(Version, Root)>, Refusal> {
    let Some(record) = record else { return Ok(None) };
    match form(Some(record), ValueType::SortedSet)? {
        Form::Split(root) => Ok(Some((record.version, root))),
        Form::Packed(_) => Ok(None),
    }
}

/// Returns the members of a page with their scores.
fn page_of_scores(record: Option<Record<'_>>) -> Result<Packed<'_>, Damaged> {
    let value_type = ValueType::SortedSet;
    match record {
        Some(record) => Packed::parse(TypedValue { value_type, bytes: record.value.bytes }),
        None => Ok(Packed::empty(value_type)),
    }
}
