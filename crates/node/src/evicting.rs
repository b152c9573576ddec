//! Scheduling of eviction: how much to evict, and when. Design: `docs/design/eviction.md`.
//!
//! The live bytes of the log are measured now and then. While they exceed their limit, every
//! fourth quantum of a reactor's background work evicts at least, and the share of background work
//! rises with the excess. The limit is so far below the memory that the cleaner can win what
//! eviction makes dead. If it cannot, because no segment has enough dead bytes, eviction goes on
//! until it can.
//!
//! The pages of an evicted value count as dead from its eviction on. They are removed before anything
//! else is evicted; until then they are pending, and no measurement counts them.

use crate::context::Context;
use crate::evicted_pages::EvictedPages;
use crate::eviction_state::EvictionState;
use crate::settings::LiveSettings;
use crate::work::Background;
use std::time::Duration;
use store::log::Log;
use types::{EvictionPolicy, Instant, ReactorId};

/// Pause of a reactor that cannot evict now: one quantum of another reactor.
const PAUSE_FOR_OTHERS: Duration = Duration::from_micros(50);

/// Time in which all pages of the access sketch are aged, and number of pages in one step: 30 µs.
const AGING_ROUND: Duration = Duration::from_secs(240);
const AGED_PAGES: usize = 4;

/// Eviction at one reactor.
#[derive(Debug, Default)]
pub(crate) struct EvictionSchedule {
    /// Time of the current turn.
    now: Instant,
    /// End of the current pause.
    rests: Option<Instant>,
    /// Set if the previous chance to go ahead of other work was used.
    was_first: bool,
    /// Time of the next step of aging; `None` while accesses are not tracked.
    age_at: Option<Instant>,
    /// Pages of values that this reactor has evicted.
    pages: EvictedPages,
}

impl EvictionSchedule {
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.rests = self.rests.filter(|until| *until > now);
    }

    /// Returns whether a quantum may evict or measure.
    pub(crate) fn may_run(&self, state: &EvictionState, live: &LiveSettings, log: &Log) -> bool {
        !self.pages.is_empty()
            || live.eviction.policy != EvictionPolicy::NoEviction
                && self.rests.is_none()
                && state.has_work(self.now, log)
    }

    /// Evicts or measures, if there is reason to.
    pub(crate) fn run(&mut self, context: &mut Context<'_>) -> Option<Background> {
        let (node, now, rule) = (context.node, context.now, context.live.eviction);
        let log = node.store().log();
        if !self.may_run(&node.eviction, &context.live, log) {
            return None;
        }
        if !self.pages.is_empty() {
            self.remove_pages(context);
            return Some(Background::Evict);
        }
        let excess = node.eviction.excess_bytes();
        if excess == 0 {
            node.eviction.measure(now, log);
            return Some(Background::Evict);
        }
        let evicted = context.worker.evict(rule, excess, |table, root, value| {
            let bytes = self.pages.add(table, root, value);
            node.eviction.add_pending(bytes);
            bytes
        });
        assert!(evicted.bytes == 0 || evicted.records > 0, "bytes of no record are evicted");
        if evicted.records > 0 {
            node.eviction.evicted(evicted.bytes);
        } else if evicted.found_none {
            node.eviction.found_none(now);
        }
        if evicted.is_blocked {
            self.rests = Some(now + PAUSE_FOR_OTHERS);
        }
        Some(Background::Evict)
    }

    /// Removes pages of evicted values.
    fn remove_pages(&mut self, context: &mut Context<'_>) {
        let removed = self.pages.remove(context.worker);
        context.node.eviction.remove_pending(removed.bytes);
        if removed.leaves_orphans {
            context.node.sweeps.pages.want();
        }
    }

    /// Evicts ahead of other background work, every other time.
    pub(crate) fn run_first(&mut self, context: &mut Context<'_>) -> Option<Background> {
        self.was_first = !self.was_first;
        if self.was_first { self.run(context) } else { None }
    }

    /// Returns the next time at which something is due, with these settings.
    pub(crate) fn next_deadline(
        &self,
        state: &EvictionState,
        live: &LiveSettings,
        log: &Log,
    ) -> Option<Instant> {
        if live.eviction.policy == EvictionPolicy::NoEviction {
            return None;
        }
        let waits = !log.has_free();
        let measure_at = waits.then(|| state.measure_at());
        [self.rests, measure_at, self.age_at].into_iter().flatten().min()
    }

    /// Ages the access sketch, at the first reactor.
    pub(crate) fn tick(&mut self, context: &Context<'_>) {
        let tracks = context.reactor == ReactorId(0) && context.worker.tracks_access();
        if !tracks || self.age_at.is_some_and(|at| context.now < at) {
            self.age_at = self.age_at.filter(|_| tracks);
            return;
        }
        let store = context.node.store();
        let steps = store.sketch_pages().div_ceil(AGED_PAGES).max(1) as u32;
        store.age_accesses(AGED_PAGES);
        self.age_at = Some(context.now + AGING_ROUND / steps);
    }
}
