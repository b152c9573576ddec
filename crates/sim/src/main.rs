//! Runs simulated clusters, seed by seed, until one breaks a rule or there are no more.

#![forbid(unsafe_code)]

use clap::Parser;
use sim::{Planted, Settings, run};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates clusters under load while ranges move.
#[derive(Parser)]
#[command(name = "sim")]
struct Arguments {
    /// Seeds to run; without end if only a time is given.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// No seed is begun after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Only this seed, and print every event.
    #[arg(long, conflicts_with_all = ["seeds", "first_seed", "seconds"])]
    seed: Option<u64>,
    /// A bug to build in.
    #[arg(long, value_parser = planted)]
    plant: Option<Planted>,
    /// Print every event.
    #[arg(long)]
    trace: bool,
}

fn planted(name: &str) -> Result<Planted, String> {
    let names = || Planted::ALL.map(|planted| planted.to_string()).join(", ");
    let planted = Planted::named(name).ok_or_else(|| format!("there are: {}", names()))?;
    let without = || "built with `--features plant` it can be planted".to_owned();
    planted.is_possible().then_some(planted).ok_or_else(without)
}

/// Seeds run if neither their number nor a time is given.
const SEEDS: u64 = 100;

#[expect(clippy::disallowed_methods, reason = "how long to go on is asked of the real clock")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let begin = Instant::now();
    let enough = arguments.seconds.map(Duration::from_secs);
    let all = if enough.is_some() { u64::MAX } else { SEEDS };
    let (first, seeds) = match arguments.seed {
        Some(seed) => (seed, 1),
        None => (arguments.first_seed, arguments.seeds.unwrap_or(all)),
    };
    let is_printed = arguments.trace || arguments.seed.is_some();
    let (mut operations, mut moved, mut not_moved, mut done) = (0, 0, 0, 0);
    for seed in (first..).take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        if enough.is_some_and(|enough| begin.elapsed() >= enough) {
            break;
        }
        let planted = arguments.plant;
        let report = run(&Settings { planted, is_printed, ..Settings::new(seed) });
        if let Some(failure) = report.failure {
            let plant = planted.map(|planted| format!(" --plant {planted}")).unwrap_or_default();
            eprintln!("seed {seed}: {failure}");
            eprintln!("again: cargo run --release -p sim -- --seed {seed}{plant}");
            return ExitCode::FAILURE;
        }
        operations += report.operations;
        moved += report.moved;
        not_moved += report.not_moved;
        done += 1;
    }
    let per_second = operations as f64 / begin.elapsed().as_secs_f64();
    println!(
        "{done} seeds, {operations} operations, {moved} moves, {not_moved} moves refused, \
         cancelled or given up: every rule held, in {:.1} s, {per_second:.0} operations/s",
        begin.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
