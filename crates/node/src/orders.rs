//! The orders of sorted sets whose members are in pages: indexes in memory, shared by the reactors.
//!
//! An order is a copy of what the pages contain, exact for one version of the root. Every change of
//! the value draws a new version of its root. So whoever has an order locked, and reads the root in
//! that version, knows that the order is right; every other change of the record (a transaction, a
//! removal, a move and back, a recovery) is seen because the versions differ. Such an order is
//! dropped or built anew, which is always possible.
//!
//! An order is built in steps, in the order of a scan of the pages. A change of a member that the scan
//! has passed is applied to the part that is built; the others are left to the scan.
//!
//! An order is locked before leaves of the index, several only by a transaction and in the order of
//! their names, and never while a request waits. Design: `docs/design/values.md`, "Order".

use planted::Bug;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{Record, Worker};
use types::{Instant, KeyHash, TableId, Version};
use values::{Damaged, Element, Form, MemberOrder, Root, ScoredMember};

/// Number of maps, so that reactors seldom wait for each other to find an order.
const SHARDS: usize = 16;

/// Pause between two steps of the walk that drops orders.
const STEP_PAUSE: Duration = Duration::from_millis(500);

/// Orders that a step looks at: 50 us.
const ORDERS_PER_STEP: usize = 256;

/// Time after which an unused order is dropped.
const UNUSED_MAX: Duration = Duration::from_secs(600);

/// Share of the memory for data that orders may take together before some are dropped to add another.
const MEMORY_SHARE: u64 = 4;

/// Number of orders of which the one is dropped that was not used for longest.
const SAMPLE: usize = 8;

/// Most orders that are dropped at once to make room.
const DROPPED_MAX: usize = 256;

/// The orders of a server's sorted sets.
pub struct SortedOrders {
    shards: [Mutex<BTreeMap<OrderName, Arc<SharedOrder>>>; SHARDS],
    /// Number of orders.
    count: AtomicUsize,
    /// Memory from which on no order is added before others are dropped.
    memory_bytes_max: u64,
    /// Memory of all orders, those included that were dropped and are still in use.
    memory_bytes: Arc<AtomicU64>,
    /// The last order of the last sample.
    sampled: Mutex<Option<OrderName>>,
    /// The order that the walk has looked at.
    walked: Mutex<Option<OrderName>>,
    /// Time of the walk's last step, in nanoseconds.
    stepped: AtomicU64,
    /// Clock of the uses, in nanoseconds. It runs only while there are orders to walk over, so that a
    /// new order never seems old.
    clock: AtomicU64,
}

/// The value to which an order belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderName {
    /// Table of the root.
    pub table: TableId,
    /// Key hash of the root.
    pub hash: KeyHash,
    /// Id of the value.
    pub id: Version,
}

/// The order of a sorted set.
pub struct SharedOrder {
    state: Mutex<OrderState>,
    memory_bytes: AtomicUsize,
    /// Memory of all orders.
    of_all: Arc<AtomicU64>,
    /// Time of the last use, in nanoseconds.
    used: AtomicU64,
}

/// The order of a sorted set, as far as it is known.
#[derive(Debug, Default)]
pub struct OrderState {
    /// Version of the root for which the order is exact; `None`: for none.
    version: Option<Version>,
    /// Place that the scan has reached; `None`: all members are in the order.
    place: Option<u64>,
    order: MemberOrder,
}

/// A change of a member.
#[derive(Clone, Debug)]
pub struct MemberChange {
    /// The member.
    pub member: Box<[u8]>,
    /// Its score before; `None`: it is new.
    pub old: Option<f64>,
    /// Its score after; `None`: it is removed.
    pub new: Option<f64>,
}

impl SharedOrder {
    fn new(state: OrderState, of_all: &Arc<AtomicU64>, used: u64) -> SharedOrder {
        let (memory_bytes, of_all) = (AtomicUsize::new(0), Arc::clone(of_all));
        let state_bytes = state.order.memory_bytes();
        let (state, used) = (Mutex::new(state), AtomicU64::new(used));
        let new = SharedOrder { state, memory_bytes, of_all, used };
        new.set_memory(state_bytes);
        new
    }

    /// Locks the order.
    pub fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the memory that the order takes. Returns whether it takes more than before.
    fn set_memory(&self, bytes: usize) -> bool {
        let before = self.memory_bytes.swap(bytes, Ordering::Relaxed);
        if bytes > before {
            self.of_all.fetch_add((bytes - before) as u64, Ordering::Relaxed);
        } else if bytes < before {
            let less = (before - bytes) as u64;
            let of_all = self.of_all.fetch_sub(less, Ordering::Relaxed);
            assert!(of_all >= less, "an order of {before} bytes was not counted");
        }
        bytes > before
    }

    /// Returns the bytes of memory that the order takes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for SharedOrder {
    fn drop(&mut self) {
        self.set_memory(0);
    }
}

impl OrderState {
    /// Returns the order of the members of a root of this version, if it is exact.
    pub fn exact(&self, version: Version) -> Option<&MemberOrder> {
        let is_current = self.version == Some(version)
            || planted::is(Bug::OrderVersionIgnored) && self.version.is_some();
        let is_exact = is_current && self.place.is_none();
        is_exact.then_some(&self.order)
    }

    /// Returns the place from which the scan of the pages goes on in a root of this version, which
    /// begins anew if the order is that of another version. `None`: the order is complete.
    pub fn scan_from(&mut self, version: Version) -> Option<u64> {
        if self.version != Some(version) {
            *self = OrderState {
                version: Some(version),
                place: Some(0),
                order: MemberOrder::default(),
            };
        }
        self.place
    }

    /// Adds a member that the scan has met.
    pub fn add(&mut self, one: ScoredMember<'_>) {
        debug_assert!(self.place.is_some(), "the scan is over");
        self.order.insert(one);
    }

    /// Records that the scan has reached this place; 0: the end.
    pub fn advance(&mut self, place: u64) {
        assert!(place == 0 || Some(place) > self.place, "the scan goes back to {place}");
        self.place = (place > 0).then_some(place);
    }

    /// Applies changes of a root of the version `before`, which has the version `after` now. If the
    /// order is not that of the version before, it is of no version then. `place` returns the place of
    /// a member in the order of the scan.
    pub fn follow(
        &mut self,
        before: Option<Version>,
        after: Option<Version>,
        changes: &[MemberChange],
        place: impl Fn(&[u8]) -> u64,
    ) {
        debug_assert!(after.is_none() || after > before, "a root of {before:?} becomes {after:?}");
        let is_followed = before.is_some() && self.version == before && after.is_some();
        if !is_followed || !changes.iter().all(|change| self.apply(change, &place)) {
            *self = OrderState::default();
            return;
        }
        assert!(self.version < after, "an order goes back to {after:?}");
        self.version = after;
    }

    /// Applies a change. Returns false if the order does not have what was changed.
    fn apply(&mut self, change: &MemberChange, place: impl Fn(&[u8]) -> u64) -> bool {
        let MemberChange { member, old, new } = change;
        debug_assert!(old.is_some() || new.is_some(), "a change of nothing");
        if planted::is(Bug::OrderNotFollowed) {
            return true;
        }
        if self.place.is_some_and(|reached| place(member) >= reached) {
            return true;
        }
        let removed = old.is_none_or(|score| self.order.remove(ScoredMember { score, member }));
        removed && new.is_none_or(|score| self.order.insert(ScoredMember { score, member }))
    }
}

impl MemberChange {
    /// Returns the change of an element of a sorted set.
    pub fn of(old: Option<Element<'_>>, new: Option<Element<'_>>) -> Result<MemberChange, Damaged> {
        let named = old.or(new).map_or(&[][..], |element| element.name);
        let score = |element: Option<Element<'_>>| {
            let score = element.map(|element| values::score_of(element.value));
            score.transpose()
        };
        Ok(MemberChange { member: named.into(), old: score(old)?, new: score(new)? })
    }
}

impl SortedOrders {
    /// Returns the orders of a server with so much memory for data.
    pub fn of_server(memory_bytes: u64) -> SortedOrders {
        assert!(memory_bytes >= MEMORY_SHARE, "a server without memory");
        SortedOrders {
            shards: Default::default(),
            count: AtomicUsize::new(0),
            memory_bytes_max: memory_bytes / MEMORY_SHARE,
            memory_bytes: Arc::default(),
            sampled: Mutex::default(),
            walked: Mutex::default(),
            stepped: AtomicU64::new(0),
            clock: AtomicU64::new(0),
        }
    }

    fn shard(&self, name: OrderName) -> MutexGuard<'_, BTreeMap<OrderName, Arc<SharedOrder>>> {
        lock(&self.shards[shard_of(name)])
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Returns whether there are orders.
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns the order of a value, if there is one.
    pub fn find(&self, name: OrderName) -> Option<Arc<SharedOrder>> {
        let found = self.shard(name).get(&name).cloned()?;
        found.used.store(self.now(), Ordering::Relaxed);
        Some(found)
    }

    /// Returns the order of a value, which is empty and of no version if there was none. Makes room for
    /// a new one.
    pub fn find_or_begin(&self, name: OrderName) -> Arc<SharedOrder> {
        self.find(name).unwrap_or_else(|| self.insert(name, OrderState::default()))
    }

    /// Inserts the order of a value, if there is none, and makes room for it. Returns the one that is
    /// there.
    fn insert(&self, name: OrderName, state: OrderState) -> Arc<SharedOrder> {
        self.make_room(name, self.memory_bytes_max);
        let new = || {
            self.count.fetch_add(1, Ordering::Relaxed);
            Arc::new(SharedOrder::new(state, &self.memory_bytes, self.now()))
        };
        Arc::clone(self.shard(name).entry(name).or_insert_with(new))
    }

    /// Keeps the order of a new value, whose root has this version, and makes room for it.
    pub fn keep(&self, name: OrderName, version: Version, order: MemberOrder) {
        assert!(order.count() > 0, "a value without members has no order");
        self.insert(name, OrderState { version: Some(version), place: None, order });
    }

    /// Records the memory that a locked order takes after a change, and makes room if it has grown.
    /// Orders that grow may take twice as much together as those to which others are added: otherwise
    /// two that do not fit together would be built anew by turns.
    pub fn note_memory(&self, name: OrderName, shared: &SharedOrder, state: &OrderState) {
        if shared.set_memory(state.order.memory_bytes()) {
            self.make_room(name, self.memory_bytes_max.saturating_mul(2));
        }
    }

    /// Drops the order of a value.
    pub fn forget(&self, name: OrderName) {
        // Its memory is freed without the lock.
        let dropped = self.shard(name).remove(&name);
        if dropped.is_some() {
            let before = self.count.fetch_sub(1, Ordering::Relaxed);
            assert!(before > 0, "an order was not counted");
        }
    }

    /// Drops all orders.
    pub fn forget_all(&self) {
        for shard in &self.shards {
            let names: Vec<OrderName> = lock(shard).keys().copied().collect();
            names.into_iter().for_each(|name| self.forget(name));
        }
    }

    /// Returns the number of orders, and the bytes of memory that they take.
    pub fn totals(&self) -> OrderTotals {
        let orders = self.count.load(Ordering::Relaxed) as u64;
        OrderTotals { orders, memory_bytes: self.memory_bytes.load(Ordering::Relaxed) }
    }

    /// Drops orders until all together take less memory than this. They are those that were not used
    /// for longest among some neighbors by name, which is by the hashes of their keys, and not the one
    /// of this name.
    fn make_room(&self, kept: OrderName, memory_bytes_max: u64) {
        for _ in 0..DROPPED_MAX {
            if self.memory_bytes.load(Ordering::Relaxed) < memory_bytes_max {
                return;
            }
            // Another reactor makes room.
            let Ok(mut sampled) = self.sampled.try_lock() else { return };
            let sample = self.sample(&mut sampled, kept);
            let Some((_, oldest)) = sample.into_iter().min() else { return };
            self.forget(oldest);
        }
    }

    /// Returns the next orders behind a sample, with the times of their last use.
    fn sample(&self, sampled: &mut Option<OrderName>, kept: OrderName) -> Vec<(u64, OrderName)> {
        let mut sample = Vec::with_capacity(SAMPLE);
        for _ in 0..SAMPLE {
            *sampled = self.behind(*sampled).or_else(|| self.behind(None));
            let Some(name) = sampled.filter(|name| *name != kept) else { continue };
            let used = self.shard(name).get(&name).map(|it| it.used.load(Ordering::Relaxed));
            sample.extend(used.map(|used| (used, name)));
        }
        debug_assert!(sample.iter().all(|(_, name)| *name != kept), "{kept:?} would be dropped");
        sample
    }

    /// Returns the time of the next step of the walk, if there are orders.
    pub(crate) fn next_step(&self) -> Option<Instant> {
        self.is_any().then(|| Instant(self.stepped.load(Ordering::Relaxed)) + STEP_PAUSE)
    }

    /// Looks at the next orders if a step is due. Drops those whose value has gone, or that were not
    /// used for long.
    pub(crate) fn step(&self, now: Instant, worker: &mut Worker) {
        if self.next_step().is_none_or(|next| now < next) {
            return;
        }
        let Ok(mut walked) = self.walked.try_lock() else { return };
        let last = self.stepped.swap(now.0, Ordering::Relaxed);
        let passed = now.since(Instant(last.min(now.0))).min(2 * STEP_PAUSE);
        self.clock.fetch_add(passed.as_nanos() as u64, Ordering::Relaxed);
        for _ in 0..ORDERS_PER_STEP {
            *walked = self.behind(*walked);
            let Some(name) = *walked else { return };
            self.look(name, worker);
        }
    }

    /// Drops an order if its value has gone, or if it was not used for long.
    fn look(&self, name: OrderName, worker: &mut Worker) {
        debug_assert!(name.table.is_database(), "only clients have sorted sets");
        let used = self.shard(name).get(&name).map(|order| order.used.load(Ordering::Relaxed));
        let unused = used.map(|used| Duration::from_nanos(self.now().saturating_sub(used)));
        let is_unused = unused.is_some_and(|unused| unused > UNUSED_MAX);
        let is_root = |record: Record<'_>| match Form::of(record.value) {
            Ok(Form::Split(Root { id, .. })) => id == name.id,
            Ok(Form::Packed(_)) | Err(Damaged) => false,
        };
        let is_there = worker.own_table(TableId::PAGES).other_has(name.table, name.hash, is_root);
        if is_unused || is_there == Ok(false) {
            self.forget(name);
        }
    }

    /// Returns the order behind this one: the shards one after the other, each by names.
    fn behind(&self, last: Option<OrderName>) -> Option<OrderName> {
        let first = last.map_or(0, shard_of);
        let mut from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.shards[first..].iter().find_map(|shard| {
            let from = std::mem::replace(&mut from, Bound::Unbounded);
            lock(shard).range((from, Bound::Unbounded)).next().map(|(name, _)| *name)
        })
    }
}

fn shard_of(name: OrderName) -> usize {
    name.hash.0 as usize % SHARDS
}

/// All orders together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderTotals {
    /// Number of orders.
    pub orders: u64,
    /// Bytes of memory that they take.
    pub memory_bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(hash: u64, id: u64) -> OrderName {
        OrderName { table: TableId(0), hash: KeyHash(hash), id: Version(id) }
    }

    fn of_members(members: usize) -> MemberOrder {
        let mut order = MemberOrder::default();
        for number in 0..members {
            let member = format!("member:{number}");
            order.insert(ScoredMember { score: 1.0, member: member.as_bytes() });
        }
        order
    }

    fn change(member: &[u8], old: Option<f64>, new: Option<f64>) -> MemberChange {
        MemberChange { member: member.into(), old, new }
    }

    #[test]
    fn an_order_follows_an_unbroken_chain_of_versions_only() {
        let mut state = OrderState { version: Some(Version(5)), place: None, order: of_members(0) };
        let added = [change(b"a", None, Some(1.0))];
        state.follow(Some(Version(5)), Some(Version(6)), &added, |_| 0);
        assert_eq!(state.exact(Version(6)).map(MemberOrder::count), Some(1));
        assert!(state.exact(Version(5)).is_none());
        let moved = [change(b"a", Some(1.0), Some(2.0))];
        let mut other = OrderState { order: state.order.clone(), ..OrderState::default() };
        other.follow(Some(Version(6)), Some(Version(7)), &moved, |_| 0);
        assert!(other.exact(Version(7)).is_none(), "an order of no version follows");
        state.follow(Some(Version(7)), Some(Version(8)), &moved, |_| 0);
        assert!(state.exact(Version(8)).is_none(), "a change was missed");
        assert_eq!(state.scan_from(Version(8)), Some(0), "the scan begins anew");
    }

    #[test]
    fn changes_during_a_scan_are_applied_where_it_has_passed() {
        let mut state = OrderState::default();
        let version = Version(3);
        assert_eq!(state.scan_from(version), Some(0));
        state.add(ScoredMember { score: 1.0, member: b"a" });
        state.advance(10);
        let place = |member: &[u8]| u64::from(member == b"z") * 10;
        let changes = [
            change(b"a", Some(1.0), Some(4.0)),
            change(b"b", None, Some(2.0)),
            change(b"z", Some(7.0), None),
        ];
        state.follow(Some(version), Some(Version(4)), &changes, place);
        assert_eq!(state.scan_from(Version(4)), Some(10));
        state.advance(0);
        let order = state.exact(Version(4)).expect("the scan is over");
        let members: Vec<_> = order.members(0..2).iter().map(|one| one.member).collect();
        assert_eq!(members, [b"b", b"a"]);
    }

    #[test]
    fn an_order_that_lacks_what_was_changed_is_given_up() {
        let mut state = OrderState { version: Some(Version(1)), place: None, order: of_members(3) };
        let changes = [change(b"other", Some(1.0), None)];
        state.follow(Some(Version(1)), Some(Version(2)), &changes, |_| 0);
        assert!(state.exact(Version(2)).is_none());
    }

    /// Returns orders that may take the memory of so many of 1,000 members each.
    fn with_room_for(orders: u64) -> SortedOrders {
        let bytes = of_members(1_000).memory_bytes() as u64;
        SortedOrders::of_server(MEMORY_SHARE * (orders * bytes + bytes / 2))
    }

    #[test]
    fn orders_that_were_not_used_for_longest_make_room() {
        let orders = with_room_for(3);
        for number in 0..4 {
            orders.clock.store(number, Ordering::Relaxed);
            orders.keep(name(number, number), Version(1), of_members(1_000));
        }
        orders.clock.store(9, Ordering::Relaxed);
        assert!(orders.find(name(0, 0)).is_some());
        assert_eq!(orders.totals().orders, 4);
        orders.find_or_begin(name(7, 7));
        assert!(orders.find(name(1, 1)).is_none());
        assert!([0, 2, 3, 7].iter().all(|it| orders.find(name(*it, *it)).is_some()));
        assert_eq!(orders.totals().orders, 4);
    }

    #[test]
    fn orders_of_new_values_take_no_more_memory_than_they_may() {
        let orders = with_room_for(10);
        let mut memory_bytes = 0;
        for number in 0..500 {
            orders.clock.store(number, Ordering::Relaxed);
            orders.keep(name(number * 7, number), Version(1), of_members(1_000));
            memory_bytes = memory_bytes.max(orders.totals().memory_bytes);
        }
        let one = of_members(1_000).memory_bytes() as u64;
        assert_eq!(memory_bytes, 11 * one);
        assert!(orders.find(name(499 * 7, 499)).is_some());
        orders.forget_all();
        assert_eq!(orders.totals(), OrderTotals::default());
    }

    #[test]
    fn an_order_that_grows_makes_room_and_stays_itself() {
        let orders = with_room_for(10);
        for number in 0..5 {
            orders.keep(name(number, number), Version(1), of_members(1_000));
        }
        let grown = name(2, 2);
        let shared = orders.find(grown).expect("it was kept");
        let mut state = shared.lock();
        let bytes_before = state.order.memory_bytes() as u64;
        state.order = of_members(100_000);
        orders.note_memory(grown, &shared, &state);
        let bytes = state.order.memory_bytes() as u64;
        assert_eq!(orders.totals(), OrderTotals { orders: 1, memory_bytes: bytes });
        drop(state);
        // Its bytes count until nobody uses it any more.
        orders.forget(grown);
        assert_eq!(orders.totals(), OrderTotals { orders: 0, memory_bytes: bytes });
        orders.keep(grown, Version(2), of_members(1_000));
        shared.lock().order = MemberOrder::default();
        orders.note_memory(grown, &shared, &shared.lock());
        drop(shared);
        assert_eq!(orders.totals(), OrderTotals { orders: 1, memory_bytes: bytes_before });
    }

    #[test]
    fn the_walk_comes_to_every_order() {
        let orders = with_room_for(100);
        let mut names: Vec<_> = (0..40).map(|number| name(number * 7, number)).collect();
        names.iter().for_each(|name| orders.keep(*name, Version(1), of_members(1)));
        let mut met = Vec::new();
        let mut last = None;
        while let Some(name) = orders.behind(last) {
            met.push(name);
            last = Some(name);
        }
        met.sort_unstable();
        names.sort_unstable();
        assert_eq!(met, names);
    }
}
