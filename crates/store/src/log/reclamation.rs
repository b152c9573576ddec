//! When may memory that readers can still see be used again?
//!
//! Only reactors touch log and index, and none of them holds a reference over the top of its loop.
//! So a thing that has been unlinked may be freed when every reactor has begun a turn since, or
//! was asleep (quiescent-state based reclamation: McKenney and Slingwine 1998; Hart et al. 2007).
//! A reader pays one load at the top of its loop and nothing per access.
//!
//! The argument, once. `epoch` only rises, by read-modify-writes, and only under the queue's lock.
//! 1. Whoever retires a thing has unlinked it, takes the lock and stamps it `epoch + 1`. The rise
//!    to that stamp comes later under the same lock, so it happens after the unlinking.
//! 2. A participant that shows a value of at least the stamp has loaded `epoch` (acquire) after
//!    that rise: nothing that it reads in that turn or a later one finds the thing.
//! 3. It stored the value (release) after its last access of the turns before, and the collector
//!    loads it (acquire) before it frees: no access comes after the freeing.
//! 4. A sleeper shows [`ASLEEP`], above every stamp. It wakes by showing a value and then a fence,
//!    the collector has a fence before it looks. If the collector still sees the sleeper, the
//!    sleeper's reads come after the unlinking; otherwise the collector sees it awake and waits.
//!
//! **Invariant:** a [`Turn`] borrows its participant, and beginning a turn or falling asleep needs
//! the participant exclusively: no reference that a turn vouches for lives on.
//!
//! How much to free in one go, and when, is the caller's: [`Reclamation::collect`].
#![forbid(unsafe_code)]

use crate::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};
use crossbeam_utils::CachePadded;
use std::{collections::VecDeque, fmt, marker::PhantomData, sync::Arc};
use types::ReactorId;

/// What a sleeping participant shows: above every stamp.
const ASLEEP: u64 = u64::MAX;
/// Stands for the oldest stamp while nothing is retired.
const NOTHING: u64 = u64::MAX;

/// Things that wait until no reader can see them, and who may still be reading. Clones are one.
#[derive(Clone)]
pub struct Reclamation {
    shared: Arc<Shared>,
}

struct Shared {
    /// Begins at 1. Rises under `retired`'s lock only.
    epoch: CachePadded<AtomicU64>,
    /// Stamp of the oldest thing in the queue, or [`NOTHING`]: what `collect` looks at first.
    oldest: CachePadded<AtomicU64>,
    /// A participant that held up the last collection: looked at before all others are.
    blocker: AtomicUsize,
    participants: Box<[CachePadded<Shown>]>,
    /// What is read within turns: it lives as long as there can be one.
    memory: Arc<dyn Reclaim>,
    /// In order of stamps.
    retired: Mutex<VecDeque<(u64, Retired)>>,
}

/// What everybody can see of a participant.
struct Shown {
    /// The epoch that it loaded when its turn began, or [`ASLEEP`].
    epoch: AtomicU64,
    /// Whether a [`Participant`] exists for it.
    is_taken: AtomicBool,
}

/// Something unlinked, to be freed after a grace period.
pub enum Retired {
    /// What its owner knows by a number: a segment, a block of a slab. Costs no allocation.
    Numbered {
        /// Told to take it back.
        owner: Arc<dyn Reclaim>,
        /// Which one.
        number: u64,
    },
    /// Anything; it is dropped.
    Boxed(Box<dyn Send>),
}

/// Takes back what it retired by number.
pub trait Reclaim: Send + Sync {
    /// No reader can see it any more.
    fn reclaim(&self, number: u64);
}

/// A moment after which every reactor will have begun a new turn. See
/// [`Reclamation::grace_period`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GracePeriod {
    stamp: u64,
}

impl Reclamation {
    /// For reactors 0 to `reactors - 1`, all asleep, whose turns read `memory`.
    pub fn new(reactors: u16, memory: Arc<dyn Reclaim>) -> Reclamation {
        assert!(reactors > 0, "a store without reactors");
        let shown = || Shown { epoch: AtomicU64::new(ASLEEP), is_taken: AtomicBool::new(false) };
        Reclamation {
            shared: Arc::new(Shared {
                epoch: CachePadded::new(AtomicU64::new(1)),
                oldest: CachePadded::new(AtomicU64::new(NOTHING)),
                blocker: AtomicUsize::new(0),
                participants: (0..reactors).map(|_| CachePadded::new(shown())).collect(),
                memory,
                retired: Mutex::new(VecDeque::new()),
            }),
        }
    }

    /// The reactor's part in it; asleep until its first turn.
    ///
    /// # Panics
    /// If the reactor has one already or there is no such reactor: our bug.
    pub fn participant(&self, reactor: ReactorId) -> Participant {
        let place = usize::from(reactor.0);
        let was_taken = self.shared.participants[place].is_taken.swap(true, Ordering::AcqRel);
        assert!(!was_taken, "reactor {reactor} takes part twice");
        Participant { shared: Arc::clone(&self.shared), place, shows: ASLEEP }
    }

    /// Starts now: it is over when every reactor has begun a turn since, or was asleep.
    pub fn grace_period(&self) -> GracePeriod {
        let _in_order = self.shared.lock();
        GracePeriod { stamp: self.shared.raise_epoch() }
    }

    /// Whether the grace period is over.
    pub fn is_over(&self, period: &GracePeriod) -> bool {
        fence(Ordering::SeqCst);
        self.shared.participants.iter().all(|p| p.epoch.load(Ordering::Acquire) >= period.stamp)
    }

    /// Frees it when a grace period that starts now is over. The caller has made sure that
    /// nobody who looks from now on finds it.
    pub fn retire(&self, what: Retired) {
        let mut retired = self.shared.lock();
        let stamp = self.shared.epoch.load(Ordering::Relaxed) + 1;
        if retired.is_empty() {
            self.shared.oldest.store(stamp, Ordering::Relaxed);
        }
        retired.push_back((stamp, what));
    }

    /// Frees at most `max` things whose grace period is over and returns how many. Every reactor
    /// calls this once per turn; one relaxed load when nothing is retired.
    #[inline]
    pub fn collect(&self, max: usize) -> usize {
        let oldest = self.shared.oldest.load(Ordering::Relaxed);
        if oldest == NOTHING { 0 } else { self.collect_from(oldest, max) }
    }

    /// How many things wait to be freed.
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
        // Somebody who holds the lock does the same work.
        let Ok(mut retired) = shared.retired.try_lock() else { return 0 };
        let Some(&(newest, _)) = retired.back() else { return 0 };
        if shared.epoch.load(Ordering::Relaxed) < newest {
            shared.raise_epoch();
        }
        let passed = shared.epoch_shown_by_all();
        let due = retired.iter().take(max).take_while(|(stamp, _)| *stamp <= passed).count();
        if due == 0 {
            return 0;
        }
        // Freed without the lock: freeing may retire again.
        let freed: Vec<Retired> = retired.drain(..due).map(|(_, what)| what).collect();
        let next = retired.front().map_or(NOTHING, |(stamp, _)| *stamp);
        shared.oldest.store(next, Ordering::Relaxed);
        drop(retired);
        freed.into_iter().for_each(Retired::free);
        due
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Retired)>> {
        self.retired.lock().expect("nothing panics while it holds the queue's lock")
    }

    /// The caller holds the queue's lock. Returns the new epoch.
    fn raise_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The lowest epoch that a participant shows, and notes who shows it.
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

impl Retired {
    fn free(self) {
        match self {
            Retired::Numbered { owner, number } => owner.reclaim(number),
            Retired::Boxed(what) => drop(what),
        }
    }
}

impl fmt::Debug for Reclamation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclamation").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// One reactor's part in reclamation.
pub struct Participant {
    shared: Arc<Shared>,
    place: usize,
    /// What `participants[place]` shows.
    shows: u64,
}

/// Proof that a reactor is within a turn: what it finds in log and index while it holds this stays
/// readable.
pub struct Turn<'p> {
    /// Which memory it may read; a pointer, so that a turn is neither `Send` nor `Sync`.
    memory: *const (),
    participant: PhantomData<&'p Participant>,
}

impl Participant {
    /// Ends the turn before and begins the next; wakes the reactor if it was asleep.
    #[inline]
    pub fn begin_turn(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.shows {
            self.show(epoch);
        }
    }

    /// From here until the next turn nobody waits for this reactor.
    pub fn sleep(&mut self) {
        self.shared.participants[self.place].epoch.store(ASLEEP, Ordering::Release);
        self.shows = ASLEEP;
    }

    /// Begins a turn after a sleep.
    pub fn wake(&mut self) {
        self.begin_turn();
    }

    /// Proof that a turn has begun.
    ///
    /// # Panics
    /// If the reactor is asleep: our bug.
    #[inline]
    pub fn turn(&self) -> Turn<'_> {
        assert!(self.shows != ASLEEP, "a sleeping reactor reads");
        Turn { memory: Arc::as_ptr(&self.shared.memory).cast(), participant: PhantomData }
    }

    #[inline(never)]
    fn show(&mut self, epoch: u64) {
        self.shared.participants[self.place].epoch.store(epoch, Ordering::Release);
        if self.shows == ASLEEP {
            fence(Ordering::SeqCst);
        }
        self.shows = epoch;
    }
}

impl Turn<'_> {
    /// Whether `memory` is what this turn may read, and hence outlives it.
    #[inline]
    pub(super) fn keeps<M: Reclaim>(&self, memory: &M) -> bool {
        std::ptr::eq(self.memory, std::ptr::from_ref(memory).cast())
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.sleep();
        self.shared.participants[self.place].is_taken.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant").field("place", &self.place).finish_non_exhaustive()
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turn")
    }
}
