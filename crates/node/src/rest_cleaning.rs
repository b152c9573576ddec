//! Cleaning of a durable log at rest, until it is little longer than its live entries.
//!
//! While clients write, a durable log is as long as memory permits. It takes room on disks, and time
//! after a crash, so it is cleaned at rest although memory is free. The copies must not delay
//! clients: they go to the same disks as writes. See `docs/design/cleaner.md`, "A log at rest".
//!
//! **Invariant:** a quantum begins only if all appended bytes are acknowledged, so a write waits for
//! the copies of one quantum of each reactor at most.

use crate::context::Context;
use crate::work::Background;
use planted::Bug;
use std::time::Duration;
use store::log::{Among, Log, LogLength, Usage};
use store::{CleaningOccasion, Store};
use types::Instant;

/// Time without more than [`WRITES_AT_REST`] writes after which a log is at rest.
const REST: Duration = Duration::from_secs(1);
const WRITES_AT_REST: u64 = 1_000;

/// Length of a log at rest, without open segments, in percent of its live bytes. The file of a
/// replica is an eighth longer than its segment: the files take less than 1.5 times the live bytes.
const LENGTH_PERCENT_MAX: u64 = 130;

/// Time for which appended bytes are unacknowledged from which on a backup counts as slow.
const SLOW_ACKNOWLEDGMENT: Duration = Duration::from_millis(100);

/// Pause of the cleaning after a slow acknowledgment. A slow disk gets the copies of one quantum in
/// this time.
const SLOW_PAUSE: Duration = Duration::from_secs(10);

/// Most segments that leave the log at a time. Each backup frees a replica for each of them, and
/// keeps eight free files.
const LEAVING_MAX: usize = 8;

/// Pause while so many segments leave.
const LEAVING_PAUSE: Duration = Duration::from_millis(10);

/// Searches without a segment worth cleaning after which there is none. Each search covers a part
/// of a large memory.
const VAIN_MAX: u8 = 32;

/// Detection and cleaning of a log that is at rest and too long, by one reactor.
#[derive(Debug, Default)]
pub(crate) struct RestCleaning {
    /// Version counter at the last measurement.
    version: u64,
    /// Time of the next measurement; `None` while nothing changes.
    measure_at: Option<Instant>,
    /// Number of unvisited segments down to which the log is cleaned; `None` if it was not at rest
    /// or short enough at the last measurement.
    goal: Option<usize>,
    /// Number of searches since the last write or success that have found nothing to clean.
    vain: u8,
    /// Time since which bytes have been unacknowledged, as far as this reactor has noticed.
    waits_since: Option<Instant>,
    paused_until: Instant,
    /// Set if this turn began within a pause, or a pause has begun within it.
    is_paused: bool,
}

impl RestCleaning {
    /// Follows the acknowledgments of a log that is too long, and measures the log once per
    /// interval with writes or cleaning.
    pub(crate) fn begin_turn(&mut self, now: Instant, store: &Store) {
        let log = store.log();
        if !log.is_durable() {
            return;
        }
        if self.goal.is_some() {
            self.follow_acknowledgments(now, log.unacknowledged(Among::Everything).is_some());
        }
        if self.measure_at.is_some_and(|at| now < at) {
            return;
        }
        let version = store.version().0;
        assert!(version >= self.version, "version {version} is drawn after {}", self.version);
        let writes = version - self.version;
        if writes > 0 {
            self.vain = 0;
        }
        if self.measure_at.is_some() {
            let is_wanted = writes <= WRITES_AT_REST && self.vain < VAIN_MAX;
            self.goal = if is_wanted { goal_of(log) } else { None };
        }
        self.measure_at = (writes > 0 || self.goal.is_some()).then(|| now + REST);
        self.version = version;
    }

    /// Begins a pause if bytes have been unacknowledged for long.
    fn follow_acknowledgments(&mut self, now: Instant, is_waiting: bool) {
        if !is_waiting {
            self.waits_since = None;
        } else if now.since(*self.waits_since.get_or_insert(now)) >= SLOW_ACKNOWLEDGMENT {
            self.paused_until = now + SLOW_PAUSE;
        }
        self.is_paused = now < self.paused_until;
    }

    fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(until);
        self.is_paused = true;
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let end = Some(self.paused_until).filter(|_| self.goal.is_some() && self.is_paused);
        self.measure_at.into_iter().chain(end).min()
    }

    /// Returns whether a quantum may run now. `is_calm` tells that the backups of this reactor's
    /// segments are in time.
    pub(crate) fn may_run(&self, log: &Log, is_calm: bool) -> bool {
        if planted::is(Bug::SlowBackupCleaned) {
            return self.goal.is_some();
        }
        let is_wanted = self.goal.is_some() && !self.is_paused && is_calm;
        is_wanted && log.unacknowledged(Among::Everything).is_none()
    }

    /// Runs a quantum. Returns `None` if nothing can be cleaned now.
    pub(crate) fn run(&mut self, context: &mut Context<'_>) -> Option<Background> {
        let length = context.node.store().log().length()?;
        if !self.may_go_on(context.now, length) {
            return None;
        }
        if !context.worker.clean(CleaningOccasion::Rest) {
            self.vain = self.vain.saturating_add(1);
            self.pause(context.now + REST);
            return None;
        }
        self.vain = 0;
        self.waits_since = Some(context.now);
        Some(Background::Clean)
    }

    /// Returns whether another quantum may clean a log of this length. Ends the cleaning if the log
    /// is short enough.
    fn may_go_on(&mut self, now: Instant, length: LogLength) -> bool {
        assert!(self.goal.is_some(), "the log is cleaned without need: {self:?}");
        self.goal = self.goal.filter(|goal| length.unvisited > *goal);
        if self.goal.is_none() {
            return false;
        }
        let is_leaving = length.leaving >= LEAVING_MAX && !planted::is(Bug::SlowBackupCleaned);
        if is_leaving {
            self.pause(now + LEAVING_PAUSE);
        }
        !is_leaving
    }
}

/// Measures a log at rest. Returns the number of unvisited segments down to which it should be
/// cleaned; `None` if it is short enough. Scans all segments.
fn goal_of(log: &Log) -> Option<usize> {
    let unvisited = log.length()?.unvisited;
    let excess = usize::try_from(excess_segments(&log.usage())).unwrap_or(usize::MAX);
    (excess > 0).then(|| unvisited.saturating_sub(excess))
}

/// Returns the number of segments by which a log at rest is too long. Visited segments leave it
/// without further cleaning.
fn excess_segments(usage: &Usage) -> u64 {
    let segments = usage.segments.closed + usage.segments.side + usage.segments.cleaning;
    let needed = (usage.live_bytes * LENGTH_PERCENT_MAX / 100).div_ceil(usage.segment_bytes);
    u64::from(segments).saturating_sub(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use store::log::{LogChange, LogConfig};
    use store::{Key, RangeClock, StoreConfig, TableSet, Tablet, TabletMap, TabletState, Worker};
    use types::limits::SEGMENT_BYTES_MIN;
    use types::{
        HashRange, HashSeed, Incarnation, OwnershipEpoch, ReactorId, TableId, TypedValue,
        UnixMillis, Version, key_hash,
    };
    use wire::entry::{Body, Entry};

    fn at(millis: u64) -> Instant {
        Instant(1) + Duration::from_millis(millis)
    }

    #[test]
    fn a_log_is_too_long_beyond_1_3_times_its_live_entries() {
        let config = LogConfig {
            memory_bytes: 64 * SEGMENT_BYTES_MIN,
            reactors: 1,
            huge_pages: false,
            durable: true,
            segment_bytes: None,
        };
        let log = Log::new(&config).expect("a small log");
        let (mut head, value) = (log.head(), vec![1; 100_000]);
        let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&value) };
        let incarnation = Incarnation(1);
        while log.usage().segments.closed < 20 {
            let entry = Entry { incarnation, version: Version(1), key: b"key", body };
            let address = head.append_one(&entry).expect("there is memory");
            if log.usage().live_bytes > 5 * SEGMENT_BYTES_MIN as u64 {
                log.mark_dead(address, entry.encoded_bytes() as u32);
            }
        }
        assert_eq!(excess_segments(&log.usage()), 20 - 7, "1.3 times five segments are needed");
        let mut rest = RestCleaning { goal: Some(0), ..RestCleaning::default() };
        assert!(!rest.may_run(&log, true), "nothing is acknowledged");
        let all = log.unacknowledged(Among::Everything).expect("bytes of all segments");
        all.positions().for_each(|(segment, end)| log.raise_acknowledged(segment, end));
        assert!(rest.may_run(&log, true));
        assert!(!rest.may_run(&log, false), "a backup is slow");
        rest.pause(at(1));
        assert!(!rest.may_run(&log, true));
    }

    /// A durable store of one reactor that has overwritten its records: 5 of 20 segments live.
    fn store_with_dead_records() -> (Arc<Store>, Worker) {
        const SEGMENT_BYTES: usize = 128 << 10;
        let store = Store::new(StoreConfig {
            memory_bytes: 64 * SEGMENT_BYTES,
            reactors: 1,
            seed: HashSeed::new(7),
            huge_pages: false,
            durable: true,
            segment_bytes: Some(SEGMENT_BYTES),
        });
        let store = store.expect("the memory suffices");
        store.publish(TabletMap::new(vec![Tablet {
            range: HashRange::ALL,
            epoch: OwnershipEpoch(1),
            incarnations: std::array::from_fn(|table| Incarnation(table as u64 + 1)),
            state: TabletState::Serving,
            clock: RangeClock::OWN,
            flushing: TableSet::NONE,
        }]));
        let mut worker = store.worker(ReactorId(0));
        let value = vec![1; SEGMENT_BYTES / 10];
        let mut number = 0;
        while store.log().usage().segments.closed < 20 {
            worker.begin_turn(UnixMillis(1));
            let name = format!("key{}", number % 45);
            let key = Key { hash: key_hash(store.seed(), name.as_bytes()), bytes: name.as_bytes() };
            worker.put(TableId(0), key, &value, None).expect("there is room");
            number += 1;
        }
        synchronize(&store, &mut worker);
        (store, worker)
    }

    /// Syncs all bytes, and releases the segments that may leave the log.
    fn synchronize(store: &Store, worker: &mut Worker) {
        let log = store.log();
        worker.begin_turn(UnixMillis(1));
        let mut sent = true;
        while std::mem::take(&mut sent) {
            worker.hand_out(|_| {
                sent = true;
                true
            });
        }
        if let Some(all) = log.unacknowledged(Among::Everything) {
            for (segment, end) in all.positions() {
                log.raise_acknowledged(segment, end);
                log.raise_synced(segment, end);
            }
        }
        let mut changes = log.take_changes();
        while !changes.is_empty() {
            for change in std::mem::take(&mut changes) {
                if let LogChange::Dead(segment) = change {
                    log.release(segment);
                }
            }
            changes = log.take_changes();
        }
    }

    #[test]
    fn cleaning_ends_between_two_measurements_when_the_log_is_short_enough() {
        let (store, mut worker) = store_with_dead_records();
        let log = store.log();
        let before = excess_segments(&log.usage());
        assert!(before > 10, "{before} segments are too many");
        let mut rest = RestCleaning { goal: goal_of(log), ..RestCleaning::default() };
        let mut quanta = 0;
        while rest.may_go_on(at(0), log.length().expect("a durable log")) {
            assert!(worker.clean(CleaningOccasion::Rest), "there are more dead segments");
            synchronize(&store, &mut worker);
            quanta += 1;
            assert!(quanta < 1_000, "the cleaning does not end");
        }
        assert_eq!((rest.goal, rest.is_paused), (None, false), "the log is short enough");
        assert_eq!(excess_segments(&log.usage()), 0);
        assert!(worker.clean(CleaningOccasion::Rest), "there would be more to clean");
    }

    #[test]
    fn few_segments_leave_the_log_at_a_time() {
        let mut rest = RestCleaning { goal: Some(10), ..RestCleaning::default() };
        assert!(rest.may_go_on(at(0), LogLength { unvisited: 11, leaving: LEAVING_MAX - 1 }));
        assert!(!rest.may_go_on(at(0), LogLength { unvisited: 11, leaving: LEAVING_MAX }));
        assert_eq!((rest.goal, rest.next_deadline()), (Some(10), Some(at(0) + LEAVING_PAUSE)));
        assert!(!rest.may_go_on(at(20), LogLength { unvisited: 10, leaving: 0 }));
        assert_eq!((rest.goal, rest.next_deadline()), (None, None));
    }

    #[test]
    fn a_slow_acknowledgment_begins_a_pause() {
        let mut rest = RestCleaning { goal: Some(0), ..RestCleaning::default() };
        rest.follow_acknowledgments(at(0), true);
        rest.follow_acknowledgments(at(99), true);
        rest.follow_acknowledgments(at(100), false);
        assert_eq!((rest.is_paused, rest.next_deadline()), (false, None), "others take as long");
        rest.follow_acknowledgments(at(200), true);
        rest.follow_acknowledgments(at(300), true);
        let until = at(300) + SLOW_PAUSE;
        assert_eq!((rest.is_paused, rest.next_deadline()), (true, Some(until)));
        rest.follow_acknowledgments(at(5_000), false);
        assert!(rest.is_paused, "the pause goes on after the acknowledgment");
        rest.follow_acknowledgments(until, false);
        assert!(!rest.is_paused);
    }
}
