//! Ledger of the writes of every record: decides which writes a correct store may still show.
//!
//! One thread owns a ledger and issues all reads and writes of its records, so all numbers are
//! exact. Writes of one record can overlap (a hot key has several in flight), and the store may
//! order overlapping writes as it likes. "Older" is therefore defined by time and not by number:
//! write `b` overwrites write `a` if `a` had completed before `b` was issued. Once `b` is
//! acknowledged, a read that is issued later must not show any write that `b` overwrites.
//!
//! - `issued`: number of the record's latest write.
//! - `floor`: lowest number that a read issued now may return. 0 allows "not found".
//! - `open`: completed writes of a record with writes in flight. All writes up to
//!   `complete_up_to` have completed.
//!
//! Invariant: `floor <= complete_up_to + 1 <= issued + 1`.

use crate::records::{RecordNumber, Sequence};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Ledger of one thread's records.
pub struct WriteLedger {
    share: Share,
    bounds: Vec<RecordBounds>,
    open: HashMap<u32, OpenWrites, BuildHasherDefault<Spread>>,
}

/// Latest write of a record and lowest permitted result of a read, in one place: every operation
/// needs both and misses the cache.
#[derive(Clone, Copy, Default, Debug)]
struct RecordBounds {
    issued: u32,
    floor: u32,
}

/// Records of one of several threads: every `threads`-th record, beginning at `thread`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    thread: u32,
    threads: u32,
}

impl Share {
    /// Returns share number `thread` of `threads`.
    pub fn new(thread: u32, threads: u32) -> Share {
        assert!(thread < threads, "thread {thread} of {threads}");
        Share { thread, threads }
    }

    /// Returns the number of records of the share in a data set of `count`.
    pub fn len(self, count: u32) -> u32 {
        count.saturating_sub(self.thread).div_ceil(self.threads)
    }

    /// Returns the record at `position` of the share.
    #[inline]
    pub fn record(self, position: u32) -> RecordNumber {
        RecordNumber(position * self.threads + self.thread)
    }

    #[inline]
    fn position(self, record: RecordNumber) -> usize {
        debug_assert_eq!(record.0 % self.threads, self.thread, "a record of another thread");
        (record.0 / self.threads) as usize
    }
}

/// Writes in flight of one record.
struct OpenWrites {
    /// Number up to which all writes have completed.
    complete_up_to: u32,
    /// Completion of `complete_up_to + 1`, `complete_up_to + 2`, ... up to the latest write.
    completed: VecDeque<bool>,
}

/// Issued write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IssuedWrite {
    /// Number of the write.
    pub sequence: Sequence,
    /// Latest write such that all writes up to it had completed: this write overwrites them.
    pub overwrites: Sequence,
}

/// Fault that a read has revealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The read found nothing, although a write had been acknowledged.
    Missing,
    /// The read showed a write that had been overwritten before the read was issued.
    Stale,
    /// The read showed a write that was never issued.
    Invented,
}

impl WriteLedger {
    /// Creates the ledger of a share of a data set of `count` unwritten records.
    pub fn new(share: Share, count: u32) -> WriteLedger {
        let length = share.len(count) as usize;
        WriteLedger {
            share,
            bounds: vec![RecordBounds::default(); length],
            open: HashMap::default(),
        }
    }

    /// Returns the share of records.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Issues the next write of `record` and returns its number.
    pub fn issue(&mut self, record: RecordNumber) -> IssuedWrite {
        let issued = &mut self.bounds[self.share.position(record)].issued;
        let before = *issued;
        *issued += 1;
        let open = self
            .open
            .entry(record.0)
            .or_insert_with(|| OpenWrites { complete_up_to: before, completed: VecDeque::new() });
        open.completed.push_back(false);
        IssuedWrite { sequence: Sequence(before + 1), overwrites: Sequence(open.complete_up_to) }
    }

    /// Records that the store acknowledged `write`: the writes that it overwrites are gone for
    /// good.
    pub fn acknowledged(&mut self, record: RecordNumber, write: IssuedWrite) {
        let floor = &mut self.bounds[self.share.position(record)].floor;
        *floor = (*floor).max(write.overwrites.0 + 1);
        self.complete(record, write);
    }

    /// Records that the store refused `write`: it was not executed and never will be.
    pub fn refused(&mut self, record: RecordNumber, write: IssuedWrite) {
        self.complete(record, write);
    }

    /// Marks a write as completed. A write without a known outcome is never marked: it may show
    /// up at any time, so it overwrites and settles nothing.
    fn complete(&mut self, record: RecordNumber, write: IssuedWrite) {
        let Some(open) = self.open.get_mut(&record.0) else {
            unreachable!("a write completes once: {record:?} {write:?}")
        };
        open.completed[(write.sequence.0 - open.complete_up_to - 1) as usize] = true;
        while open.completed.front() == Some(&true) {
            open.completed.pop_front();
            open.complete_up_to += 1;
        }
        if open.completed.is_empty() {
            self.open.remove(&record.0);
        }
    }

    /// Returns the lowest number that a read of `record` may show if it is issued now.
    #[inline]
    pub fn floor(&self, record: RecordNumber) -> Sequence {
        Sequence(self.bounds[self.share.position(record)].floor)
    }

    /// Judges a read that was issued at this `floor`. `seen` is 0 if nothing was found.
    #[inline]
    pub fn judge(
        &self,
        record: RecordNumber,
        floor: Sequence,
        seen: Sequence,
    ) -> Result<(), Fault> {
        if seen >= floor {
            let issued = Sequence(self.bounds[self.share.position(record)].issued);
            return if seen <= issued { Ok(()) } else { Err(Fault::Invented) };
        }
        Err(if seen == Sequence(0) { Fault::Missing } else { Fault::Stale })
    }

    /// Adopts the value that an earlier run left in the store, before any write of this run.
    pub fn adopt(&mut self, record: RecordNumber, seen: Sequence) {
        let bounds = &mut self.bounds[self.share.position(record)];
        assert!(bounds.issued == 0, "only an untouched ledger adopts records");
        *bounds = RecordBounds { issued: seen.0, floor: seen.0 };
    }
}

/// Fibonacci hash of record numbers; no attacker can choose them.
#[derive(Default, Debug)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: RecordNumber = RecordNumber(0);

    fn ledger() -> WriteLedger {
        WriteLedger::new(Share::new(0, 1), 4)
    }

    fn judge(ledger: &WriteLedger, seen: u32) -> Result<(), Fault> {
        ledger.judge(RECORD, ledger.floor(RECORD), Sequence(seen))
    }

    #[test]
    fn a_read_after_an_acknowledged_write_must_show_it() {
        let mut ledger = ledger();
        assert_eq!(judge(&ledger, 0), Ok(()));
        for number in 1..=3 {
            let write = ledger.issue(RECORD);
            assert_eq!(write.sequence, Sequence(number));
            // While the write is in flight, a read may show it or the one before.
            assert_eq!(judge(&ledger, number - 1), Ok(()));
            assert_eq!(judge(&ledger, number), Ok(()));
            ledger.acknowledged(RECORD, write);
        }
        assert_eq!(judge(&ledger, 3), Ok(()));
        assert_eq!(judge(&ledger, 2), Err(Fault::Stale));
        assert_eq!(judge(&ledger, 0), Err(Fault::Missing));
        assert_eq!(judge(&ledger, 4), Err(Fault::Invented));
    }

    #[test]
    fn a_read_is_judged_by_what_was_known_when_it_was_issued() {
        let mut ledger = ledger();
        let first = ledger.issue(RECORD);
        ledger.acknowledged(RECORD, first);
        let floor = ledger.floor(RECORD);
        let second = ledger.issue(RECORD);
        ledger.acknowledged(RECORD, second);
        assert_eq!(ledger.judge(RECORD, floor, Sequence(1)), Ok(()));
        assert_eq!(judge(&ledger, 1), Err(Fault::Stale));
    }

    #[test]
    fn overlapping_writes_may_end_in_any_order() {
        let mut ledger = ledger();
        let first = ledger.issue(RECORD);
        let second = ledger.issue(RECORD);
        ledger.acknowledged(RECORD, second);
        // The store may have executed the first write after the second.
        assert_eq!(judge(&ledger, 1), Ok(()));
        ledger.acknowledged(RECORD, first);
        assert_eq!(judge(&ledger, 1), Ok(()));
        assert_eq!(judge(&ledger, 2), Ok(()));
        let third = ledger.issue(RECORD);
        assert_eq!(third.overwrites, Sequence(2));
        ledger.acknowledged(RECORD, third);
        assert_eq!(judge(&ledger, 1), Err(Fault::Stale));
        assert_eq!(judge(&ledger, 2), Err(Fault::Stale));
        assert_eq!(judge(&ledger, 3), Ok(()));
    }

    #[test]
    fn a_refused_write_may_be_missing_and_an_unanswered_one_may_come_late() {
        let mut ledger = ledger();
        let first = ledger.issue(RECORD);
        ledger.acknowledged(RECORD, first);
        let refused = ledger.issue(RECORD);
        ledger.refused(RECORD, refused);
        assert_eq!(judge(&ledger, 1), Ok(()));
        let unanswered = ledger.issue(RECORD);
        let later = ledger.issue(RECORD);
        ledger.acknowledged(RECORD, later);
        assert_eq!(judge(&ledger, unanswered.sequence.0), Ok(()));
        // All writes that had completed before the later write was issued are overwritten.
        assert_eq!(judge(&ledger, 2), Err(Fault::Stale));
    }

    #[test]
    fn shares_divide_the_records_among_threads() {
        let shares: Vec<Share> = (0..3).map(|thread| Share::new(thread, 3)).collect();
        let mut all: Vec<u32> = shares
            .iter()
            .flat_map(|share| (0..share.len(10)).map(|position| share.record(position).0))
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<u32>>());
    }

    /// Naive ledger that keeps all writes of one record with their times. Number 0 ("not found")
    /// completes at time 0.
    #[derive(Default)]
    struct History {
        writes: Vec<Times>,
        now: u32,
    }

    #[derive(Clone, Copy)]
    struct Times {
        issued: u32,
        completed: Option<u32>,
        acknowledged: bool,
    }

    impl History {
        /// Returns whether a read issued now may show `seen`: no acknowledged write was issued
        /// after `seen` had completed.
        fn may_show(&self, seen: u32) -> bool {
            let completed = match seen {
                0 => Some(0),
                seen => self.writes[seen as usize - 1].completed,
            };
            let Some(completed) = completed else { return true };
            let overwrites = |write: &&Times| write.acknowledged && write.issued > completed;
            self.writes.iter().find(overwrites).is_none()
        }

        fn tick(&mut self) -> u32 {
            self.now += 1;
            self.now
        }
    }

    /// Compares the ledger with the naive one. The naive one may be stricter, but both agree if
    /// no writes overlap or complete out of order.
    fn compare(ledger: &WriteLedger, history: &History, must_agree: bool, seed: u64) {
        for seen in 0..=history.writes.len() as u32 {
            let is_right = judge(ledger, seen).is_ok();
            let may_show = history.may_show(seen);
            assert!(is_right || !may_show, "seed {seed}: a correct store shows {seen}");
            assert!(!must_agree || is_right == may_show, "seed {seed}: {seen} went unnoticed");
        }
    }

    #[test]
    fn random_overlapping_writes_are_never_blamed_on_a_correct_store() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut ledger, mut history) = (ledger(), History::default());
            let mut open: Vec<IssuedWrite> = Vec::new();
            // In one of three runs no two writes overlap, and the ledger must notice every fault.
            let open_max = if seed % 3 == 0 { 1 } else { 4 };
            for _ in 0..60 {
                let is_full = open.len() == open_max;
                if !open.is_empty() && (is_full || random.bool()) {
                    let write = open.swap_remove(random.usize(..open.len()));
                    let completed = history.tick();
                    let acknowledged = random.u8(..5) > 0;
                    match acknowledged {
                        true => ledger.acknowledged(RECORD, write),
                        false => ledger.refused(RECORD, write),
                    }
                    let times = &mut history.writes[write.sequence.0 as usize - 1];
                    (times.completed, times.acknowledged) = (Some(completed), acknowledged);
                } else {
                    let issued = history.tick();
                    open.push(ledger.issue(RECORD));
                    history.writes.push(Times { issued, completed: None, acknowledged: false });
                }
                compare(&ledger, &history, open_max == 1, seed);
            }
        }
    }
}
