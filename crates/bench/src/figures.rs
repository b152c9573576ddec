//! Published comparisons as data: their cases and contenders.
//!
//! A case is a data set, a load and slots to move. One or several contenders and a rival play it in
//! turns. A variant of Ballast is a value of its policy, never another build.

use crate::distribution::Distribution;
use crate::pace::{Arrivals, LoadPace};
use crate::peers::System;
use crate::records::RecordSet;
use crate::run::Wiring;
use crate::scenario::Scenario;
use crate::series::OfferedLoad;
use crate::workload::Mix;
use anyhow::Result;
use clap::ValueEnum;
use std::time::Duration;
use types::Slot;

/// Bytes of every key.
const KEY_BYTES: usize = 30;
/// Least memory of a server.
const MEMORY_MIN: u64 = 256 << 20;
/// Share of a reactor's time that means "as fast as possible", in percent.
const BEST_EFFORT: u8 = 100;
/// Bytes of a record in memory beside key and value: header, index and padding.
const RECORD_BYTES: u64 = 47;
/// Highest slot of the lower half.
const HALF: u16 = 8_191;

/// Table of the benchmarks. The names are those on the command line and in file names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Figure {
    /// Move half of 5 M x (30 + 100 B) without load.
    Idle,
    /// The same under 30,000 YCSB-B requests per second.
    #[value(name = "load-30k")]
    Load30,
    /// The same under 65,000.
    #[value(name = "load-65k")]
    Load65,
    /// Half of 1 M x (30 + 1024 B), idle and under both loads.
    Large,
    /// Rate against latency for shares of 5, 10, 20, 40 % and best effort.
    Shares,
    /// Rate against latency for latency targets of 1, 2, 5, 10 ms and none.
    Targets,
    /// 1/1024, 1/64, 1/8 and 1/2 of the slots.
    Ranges,
}

/// Common parameters of all tables.
#[derive(Clone, Debug)]
pub struct Basis {
    /// The Ballast system.
    pub ballast: System,
    /// The system that Ballast is compared with.
    pub rival: System,
    /// Number of records of 130 bytes.
    pub records: u32,
    /// Number of records of 1 KiB.
    pub large_records: u32,
    /// Requests per second of [`Figure::Shares`] and [`Figure::Targets`].
    pub shares_rate: f64,
    /// Memory of each Ballast server, for `--memory`; `None` for 1.5 times what the records need.
    pub memory: Option<String>,
    /// Connections of the clients.
    pub wiring: Wiring,
    /// Duration of the load before and after each move.
    pub around: Duration,
}

/// One case of a figure, and its contenders.
#[derive(Clone, Debug)]
pub struct FigureCase {
    /// Description of the case.
    pub name: String,
    /// The case, without a policy.
    pub scenario: Scenario,
    /// Contenders, the rival last: ratios are relative to it.
    pub contenders: Vec<Contender>,
}

/// System with the policy of its moves.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Name of the contender.
    pub name: String,
    /// The servers.
    pub system: System,
    /// Policy arguments for the scenario.
    pub policy: Vec<String>,
}

impl Figure {
    /// Returns the name on the command line and in file names.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Returns the title.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Idle => "Half of the data moves, no load",
            Figure::Load30 => "Half of the data moves under 30,000 requests/s",
            Figure::Load65 => "Half of the data moves under 65,000 requests/s",
            Figure::Large => "Half of the data moves, records of 1 KiB",
            Figure::Shares => {
                "Migration rate and latency, by the share of CPU time for the migration"
            }
            Figure::Targets => "Migration rate and latency, by the latency target of the migration",
            Figure::Ranges => "The cost of a migration depends on the range, not on the table",
        }
    }

    /// Returns the cases with these parameters.
    pub fn cases(self, basis: &Basis) -> Result<Vec<FigureCase>> {
        let small = RecordSet::new(basis.records, KEY_BYTES, 100)?;
        let large = RecordSet::new(basis.large_records, KEY_BYTES, 1_024)?;
        let plain = || vec![basis.plain()];
        let half = |records, rate| basis.case(records, rate, HALF, plain());
        Ok(match self {
            Figure::Idle => vec![half(small, 0.0)],
            Figure::Load30 => vec![half(small, 30_000.0)],
            Figure::Load65 => vec![half(small, 65_000.0)],
            Figure::Large => {
                [0.0, 30_000.0, 65_000.0].into_iter().map(|rate| half(large, rate)).collect()
            }
            Figure::Shares => {
                let shares = [5, 10, 20, 40, BEST_EFFORT];
                let contenders = shares.into_iter().map(|share| basis.with_share(share));
                vec![basis.case(small, basis.shares_rate, HALF, contenders.collect())]
            }
            Figure::Targets => {
                let targets = [1, 2, 5, 10].map(|millis| basis.with_target(millis));
                let contenders = targets.into_iter().chain([basis.plain()]).collect();
                vec![basis.case(small, basis.shares_rate, HALF, contenders)]
            }
            Figure::Ranges => [16, 256, 2_048, 8_192]
                .into_iter()
                .map(|slots: u16| basis.case(small, 0.0, slots - 1, plain()))
                .collect(),
        })
    }
}

impl Basis {
    /// Returns Ballast as users have it, without a policy.
    fn plain(&self) -> Contender {
        let (name, system) = (self.ballast.name().to_string(), self.ballast.clone());
        Contender { name, system, policy: Vec::new() }
    }

    fn with_share(&self, share: u8) -> Contender {
        let name = match share {
            BEST_EFFORT => "Ballast, best effort".to_string(),
            _ => format!("Ballast, share {share} %"),
        };
        let policy = ["POLICY".to_string(), "SHARE".to_string(), share.to_string()];
        Contender { name, system: self.ballast.clone(), policy: policy.to_vec() }
    }

    fn with_target(&self, millis: u32) -> Contender {
        let name = format!("Ballast, target {millis} ms");
        let micros = (1_000 * millis).to_string();
        let policy = ["POLICY".to_string(), "LATENCY-P99".to_string(), micros];
        Contender { name, system: self.ballast.clone(), policy: policy.to_vec() }
    }

    /// Returns the memory of a server that can hold all records.
    fn memory(&self, records: &RecordSet) -> String {
        let bytes = (records.key_bytes() + records.value_bytes()) as u64 + RECORD_BYTES;
        let needed = u64::from(records.count()) * bytes * 3 / 2;
        self.memory.clone().unwrap_or_else(|| needed.max(MEMORY_MIN).to_string())
    }

    fn case(
        &self,
        records: RecordSet,
        rate: f64,
        last: u16,
        mut contenders: Vec<Contender>,
    ) -> FigureCase {
        let (name, system) = (self.rival.name().to_string(), self.rival.clone());
        for Contender { system, .. } in &mut contenders {
            if let System::Ballast { serve_arguments, .. } = system {
                serve_arguments.extend(["--memory".to_string(), self.memory(&records)]);
            }
        }
        contenders.push(Contender { name, system, policy: Vec::new() });
        let pace = LoadPace::Open { rate, arrivals: Arrivals::Poisson };
        let scenario = Scenario {
            records,
            threads: 1,
            wiring: self.wiring,
            load: (rate > 0.0).then_some(OfferedLoad {
                mix: Mix::B,
                distribution: Distribution::Zipf,
                pace,
                before: self.around,
                after: self.around,
            }),
            slots: (Slot(0), Slot(last)),
            policy: Vec::new(),
            seed: 1,
        };
        FigureCase { name: scenario.in_words(), scenario, contenders }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basis() -> Basis {
        Basis {
            ballast: System::Ballast { binary: "ballast".into(), serve_arguments: Vec::new() },
            rival: System::Valkey { command: vec!["rival".into()], serve_arguments: Vec::new() },
            records: 1_000,
            large_records: 100,
            shares_rate: 30_000.0,
            memory: None,
            wiring: Wiring::default(),
            around: Duration::from_secs(1),
        }
    }

    #[test]
    fn every_case_of_every_figure_is_played_by_ballast_and_then_by_the_rival() {
        for &figure in Figure::value_variants() {
            for case in figure.cases(&basis()).unwrap() {
                let [ballast @ .., rival] = &case.contenders[..] else { panic!("{figure:?}") };
                assert!(!ballast.is_empty(), "{figure:?}");
                assert!(ballast.iter().all(|contender| contender.system.name() == "Ballast"));
                let plain = ballast.iter().filter(|it| it.policy.is_empty()).count();
                let expected = match figure {
                    Figure::Shares => 0,
                    Figure::Targets => 1,
                    _ => ballast.len(),
                };
                assert_eq!(plain, expected, "{figure:?}");
                assert_eq!((&rival.system, rival.policy.len()), (&basis().rival, 0));
            }
        }
    }

    #[test]
    fn ranges_grow_from_a_thousandth_of_the_slots_to_half_of_them() {
        let cases = Figure::Ranges.cases(&basis()).unwrap();
        let slots = cases.iter().map(|case| case.scenario.slots.1.0 + 1);
        assert_eq!(slots.collect::<Vec<u16>>(), [16, 256, 2_048, 8_192]);
    }
}
