//! Operations of the clients: YCSB's core mixes, and the passes over all records before and
//! after.

use crate::distribution::{Distribution, RecordSampler};
use crate::ledger::Share;
use crate::records::RecordNumber;
use clap::ValueEnum;
use fastrand::Rng;
use serde::Serialize;

/// Mix of operations, named after YCSB's core workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// Half reads, half writes.
    A,
    /// 95 % reads.
    B,
    /// Only reads.
    C,
    /// Half reads, half read-modify-writes.
    F,
    /// Only writes.
    Writes,
}

/// Commands of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordAction {
    /// GET.
    Read,
    /// SET.
    Write,
    /// GET, then SET of the same record; timed from the GET to the answer of the SET.
    ReadModifyWrite,
    /// GET of the value that an earlier run left.
    Adopt,
}

/// Operations of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunWorkload {
    /// Writes every record once, in order.
    Load,
    /// Reads every record once, in order.
    Verify,
    /// Reads every record once and adopts the values.
    Adopt,
    /// Draws records and actions until the time is over.
    Mixed(Mix, Distribution),
}

impl Mix {
    /// Returns the name of the mix.
    pub fn name(self) -> &'static str {
        match self {
            Mix::A => "YCSB-A",
            Mix::B => "YCSB-B",
            Mix::C => "YCSB-C",
            Mix::F => "YCSB-F",
            Mix::Writes => "write-only",
        }
    }

    fn reads_percent(self) -> u8 {
        match self {
            Mix::A | Mix::F => 50,
            Mix::B => 95,
            Mix::C => 100,
            Mix::Writes => 0,
        }
    }

    fn action(self, random: &mut Rng) -> RecordAction {
        if random.u8(..100) < self.reads_percent() {
            return RecordAction::Read;
        }
        match self {
            Mix::A | Mix::B | Mix::C | Mix::Writes => RecordAction::Write,
            Mix::F => RecordAction::ReadModifyWrite,
        }
    }
}

/// Operations of one thread, in order.
pub struct Operations {
    share: Share,
    order: RecordOrder,
}

enum RecordOrder {
    /// Every record of the share once; `next` and `end` are positions in the share.
    Pass {
        action: RecordAction,
        next: u32,
        end: u32,
    },
    Drawn {
        mix: Mix,
        draw: RecordSampler,
        random: Rng,
    },
}

impl Operations {
    /// Creates the operations on this share of a data set of `count` records. The same seed draws
    /// the same operations.
    pub fn new(workload: RunWorkload, share: Share, count: u32, seed: u64) -> Operations {
        let end = share.len(count);
        let pass = |action| RecordOrder::Pass { action, next: 0, end };
        let order = match workload {
            RunWorkload::Load => pass(RecordAction::Write),
            RunWorkload::Verify => pass(RecordAction::Read),
            RunWorkload::Adopt => pass(RecordAction::Adopt),
            RunWorkload::Mixed(mix, distribution) => RecordOrder::Drawn {
                mix,
                draw: RecordSampler::new(distribution, end),
                random: Rng::with_seed(seed),
            },
        };
        Operations { share, order }
    }

    /// Returns the next operation, or `None` at the end of a pass.
    #[inline]
    pub fn next_operation(&mut self) -> Option<(RecordAction, RecordNumber)> {
        match &mut self.order {
            RecordOrder::Pass { action, next, end } => {
                let position = *next;
                (position < *end).then(|| {
                    *next += 1;
                    (*action, self.share.record(position))
                })
            }
            RecordOrder::Drawn { mix, draw, random } => {
                let record = self.share.record(draw.next(random));
                Some((mix.action(random), record))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_every_record_of_the_share_once() {
        let mut operations = Operations::new(RunWorkload::Load, Share::new(1, 2), 5, 0);
        assert_eq!(operations.next_operation(), Some((RecordAction::Write, RecordNumber(1))));
        assert_eq!(operations.next_operation(), Some((RecordAction::Write, RecordNumber(3))));
        assert_eq!(operations.next_operation(), None);
    }

    #[test]
    fn mixes_have_their_share_of_reads() {
        for (mix, reads) in
            [(Mix::A, 0.5), (Mix::B, 0.95), (Mix::C, 1.0), (Mix::F, 0.5), (Mix::Writes, 0.0)]
        {
            let workload = RunWorkload::Mixed(mix, Distribution::Zipf);
            let mut operations = Operations::new(workload, Share::new(0, 1), 100, 3);
            let drawn = (0..10_000).filter_map(|_| operations.next_operation());
            let seen =
                drawn.filter(|(action, _)| *action == RecordAction::Read).count() as f64 / 1e4;
            assert!((seen - reads).abs() < 0.02, "{mix:?}: {seen}");
        }
    }
}
