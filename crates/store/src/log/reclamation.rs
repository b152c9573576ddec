//! Reclamation: decides when memory that readers may still see can be reused.
//!
//! Only reactors access log and index, and none of them holds a reference across the top of its
//! event loop. So an unlinked item may be freed when every reactor has begun a turn since, or was
//! asleep (quiescent-state based reclamation: McKenney and Slingwine 1998; Hart et al. 2007). A
//! reader pays one load at the top of its loop and nothing per access.
//!
//! The correctness argument. `epoch` only rises, by read-modify-writes under the queue's lock.
//! 1. The retiring thread has unlinked the item. It takes the lock and stamps the item
//!    `epoch + 1`. The rise to that stamp comes later under the same lock, so it happens after
//!    the unlinking.
//! 2. A participant that shows at least the stamp has loaded `epoch` (acquire) after that rise.
//!    It cannot find the item in that turn or a later one.
//! 3. The participant stored the value (release) after its last access of the previous turns, and
//!    the collector loads it (acquire) before it frees. So no access follows the freeing.
//! 4. A sleeper shows [`ASLEEP`], above every stamp. It wakes by showing a value and then a
//!    fence; the collector has a fence before it reads the values. If the collector still sees
//!    the sleeper asleep, the sleeper's reads come after the unlinking. Otherwise the collector
//!    sees it awake and waits.
//!
//! **Invariant:** a [`Turn`] borrows its participant, and beginning a turn or falling asleep
//! needs the participant exclusively. So no reference outlives the turn that protects it.
//!
//! The caller decides when and how much to free: [`Reclamation::collect`].

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};
use crossbeam_utils::CachePadded;
use std::{collections::VecDeque, marker::PhantomData, sync::Arc};
use types::ReactorId;

/// Value that a sleeping participant shows: above every stamp.
const ASLEEP: u64 = u64::MAX;
/// Value of the oldest stamp while the queue is empty.
const NOTHING: u64 = u64::MAX;

/// The queue of retired items and the epochs of all participants. Clones share one state.
#[derive(Clone)]
pub struct Reclamation {
    shared: Arc<ReclamationState>,
}

struct ReclamationState {
    /// Current epoch. Begins at 1 and rises only under `retired`'s lock.
    epoch: CachePadded<AtomicU64>,
    /// Stamp of the oldest item in the queue, or [`NOTHING`]. `collect` checks it first.
    oldest: CachePadded<AtomicU64>,
    /// Participant that blocked the last collection: checked before all others.
    blocker: AtomicUsize,
    participants: Box<[CachePadded<ParticipantEpoch>]>,
    /// Memory that is read within turns; kept alive as long as turns are possible.
    memory: Arc<dyn Reclaim>,
    /// Retired items in order of stamps.
    retired: Mutex<VecDeque<(u64, Retired)>>,
}

/// Published state of a participant.
struct ParticipantEpoch {
    /// Epoch that the participant loaded when its turn began, or [`ASLEEP`].
    epoch: AtomicU64,
    /// Set while a [`Participant`] exists.
    is_taken: AtomicBool,
}

/// An unlinked item, to be freed after a grace period.
struct Retired {
    owner: Arc<dyn Reclaim>,
    number: u64,
}

/// Owner of items that it identifies by numbers: segments, slab blocks.
pub trait Reclaim: Send + Sync {
    /// Frees the item. No reader can see it any more.
    fn reclaim(&self, number: u64);
}

/// A period that ends when every reactor has begun a new turn or was asleep. See
/// [`Reclamation::grace_period`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GracePeriod {
    stamp: u64,
}

impl Reclamation {
    /// Creates the reclamation of reactors 0 to `reactors - 1`, all asleep. Their turns read
    /// `memory`.
    pub fn new(reactors: u16, memory: Arc<dyn Reclaim>) -> Reclamation {
        assert!(reactors > 0, "a store without reactors");
        let shown =
            || ParticipantEpoch { epoch: AtomicU64::new(ASLEEP), is_taken: AtomicBool::new(false) };
        Reclamation {
            shared: Arc::new(ReclamationState {
                epoch: CachePadded::new(AtomicU64::new(1)),
                oldest: CachePadded::new(AtomicU64::new(NOTHING)),
                blocker: AtomicUsize::new(0),
                participants: (0..reactors).map(|_| CachePadded::new(shown())).collect(),
                memory,
                retired: Mutex::new(VecDeque::new()),
            }),
        }
    }

    /// Returns the reactor's participant; asleep until its first turn.
    ///
    /// # Panics
    /// If the reactor already has one or does not exist: a bug of the caller.
    pub fn participant(&self, reactor: ReactorId) -> Participant {
        let place = usize::from(reactor.0);
        let was_taken = self.shared.participants[place].is_taken.swap(true, Ordering::AcqRel);
        assert!(!was_taken, "reactor {reactor} takes part twice");
        Participant { shared: Arc::clone(&self.shared), place, shows: ASLEEP }
    }

    /// Begins a grace period: it ends when every reactor has begun a turn since, or was asleep.
    pub fn grace_period(&self) -> GracePeriod {
        let _in_order = self.shared.lock();
        GracePeriod { stamp: self.shared.raise_epoch() }
    }

    /// Returns whether the grace period has ended.
    pub fn is_over(&self, period: &GracePeriod) -> bool {
        fence(Ordering::SeqCst);
        self.shared.participants.iter().all(|p| p.epoch.load(Ordering::Acquire) >= period.stamp)
    }

    /// Has the owner free an item after a grace period that begins now. The caller has unlinked
    /// it, so that no later search finds it.
    pub fn retire(&self, owner: Arc<dyn Reclaim>, number: u64) {
        let mut retired = self.shared.lock();
        let stamp = self.shared.epoch.load(Ordering::Relaxed) + 1;
        if retired.is_empty() {
            self.shared.oldest.store(stamp, Ordering::Relaxed);
        }
        let is_in_order = retired.back().is_none_or(|(last, _)| *last <= stamp);
        assert!(is_in_order, "the epoch has fallen below {stamp}");
        retired.push_back((stamp, Retired { owner, number }));
    }

    /// Frees at most `max` items with ended grace periods and returns their number. Every reactor
    /// calls this once per turn; one relaxed load when the queue is empty.
    #[inline]
    pub fn collect(&self, max: usize) -> usize {
        let oldest = self.shared.oldest.load(Ordering::Relaxed);
        if oldest == NOTHING { 0 } else { self.collect_from(oldest, max) }
    }

    /// Returns the number of items that wait to be freed.
    pub fn waiting(&self) -> usize {
        self.shared.lock().len()
    }

    #[inline(never)]
    fn collect_from(&self, oldest: u64, max: usize) -> usize {
        let shared = &*self.shared;
        let may_be_due = shared.epoch.load(Ordering::Relaxed) < oldest || {
            let blocker = shared.blocker.load(Ordering::Relaxed);
            shared.participants[blocker].epoch.load(Ordering::Relaxed) >= oldest
        };
        if !may_be_due {
            return 0;
        }
        // The thread that holds the lock does the same work.
        let Ok(mut retired) = shared.retired.try_lock() else { return 0 };
        let Some(&(newest, _)) = retired.back() else { return 0 };
        if shared.epoch.load(Ordering::Relaxed) < newest {
            shared.raise_epoch();
        }
        debug_assert!(
            retired.front().map(|(stamp, _)| *stamp) == Some(shared.oldest.load(Ordering::Relaxed)),
            "the oldest stamp is not the queue's"
        );
        let passed = shared.epoch_shown_by_all();
        let due = retired.iter().take(max).take_while(|(stamp, _)| *stamp <= passed).count();
        if due == 0 {
            return 0;
        }
        // Freed without the lock, because freeing may retire further items.
        let freed: Vec<Retired> = retired.drain(..due).map(|(_, what)| what).collect();
        let next = retired.front().map_or(NOTHING, |(stamp, _)| *stamp);
        shared.oldest.store(next, Ordering::Relaxed);
        drop(retired);
        freed.into_iter().for_each(|Retired { owner, number }| owner.reclaim(number));
        due
    }
}

impl ReclamationState {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Retired)>> {
        self.retired.lock().expect("nothing panics while it holds the queue's lock")
    }

    /// Raises the epoch and returns the new one. The caller holds the queue's lock.
    fn raise_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the lowest epoch that a participant shows, and remembers that participant.
    fn epoch_shown_by_all(&self) -> u64 {
        fence(Ordering::SeqCst);
        let (blocker, lowest) = self
            .participants
            .iter()
            .map(|participant| participant.epoch.load(Ordering::Acquire))
            .enumerate()
            .min_by_key(|(_, epoch)| *epoch)
            .expect("there is a reactor");
        self.blocker.store(blocker, Ordering::Relaxed);
        lowest
    }
}

/// One reactor's part in reclamation.
pub struct Participant {
    shared: Arc<ReclamationState>,
    place: usize,
    /// Value that `participants[place]` shows.
    shows: u64,
}

/// Proof that a reactor is within a turn. References into log and index stay valid while it
/// exists.
pub struct Turn<'p> {
    /// Memory that the turn may read; a pointer, so that a turn is neither `Send` nor `Sync`.
    memory: *const (),
    participant: PhantomData<&'p Participant>,
}

impl Participant {
    /// Ends the previous turn and begins the next; wakes a sleeping reactor.
    #[inline]
    pub fn begin_turn(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        debug_assert!(epoch >= self.shows || self.shows == ASLEEP, "epoch {epoch} has fallen");
        if epoch != self.shows {
            self.show(epoch);
        }
    }

    /// Marks the reactor as asleep: until its next turn, grace periods do not wait for it.
    pub fn sleep(&mut self) {
        self.shared.participants[self.place].epoch.store(ASLEEP, Ordering::Release);
        self.shows = ASLEEP;
    }

    /// Returns the proof that a turn has begun.
    ///
    /// # Panics
    /// If the reactor is asleep: a bug of the caller.
    #[inline]
    pub fn turn(&self) -> Turn<'_> {
        assert!(self.shows != ASLEEP, "a sleeping reactor reads");
        Turn { memory: Arc::as_ptr(&self.shared.memory).cast(), participant: PhantomData }
    }

    #[inline(never)]
    fn show(&mut self, epoch: u64) {
        assert!(epoch != ASLEEP, "the epoch has reached its end");
        self.shared.participants[self.place].epoch.store(epoch, Ordering::Release);
        if self.shows == ASLEEP {
            fence(Ordering::SeqCst);
        }
        self.shows = epoch;
    }
}

impl Turn<'_> {
    /// Returns whether this turn may read `memory`, which then outlives it.
    #[inline]
    pub(super) fn keeps<M: Reclaim>(&self, memory: &M) -> bool {
        std::ptr::eq(self.memory, std::ptr::from_ref(memory).cast())
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.sleep();
        let is_taken = &self.shared.participants[self.place].is_taken;
        let was_taken = is_taken.swap(false, Ordering::Release);
        debug_assert!(was_taken, "participant {} is returned twice", self.place);
    }
}
