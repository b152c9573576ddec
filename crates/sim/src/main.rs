//! Runs simulated clusters, seed by seed, until a run breaks a rule or the seeds are used up.

#![warn(clippy::unwrap_used)]

mod campaign;
mod totals;

use clap::Parser;
use sim::{
    Failure, Knob, LastingKind, Planted, Report, Rule, RunSettings, SERVERS_POSSIBLE, minimize,
    run, search,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use totals::RunTotals;

/// Simulates clusters under load while ranges move and faults happen.
#[derive(Parser)]
#[command(name = "sim", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<SimCommand>,
    /// Number of seeds to run. Default: 100, or no limit if a time is given.
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Start no new seed after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Number of runs in parallel; does not change any run. Default: one per processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Run only this seed, and print every event.
    #[arg(long, conflicts_with_all = ["seeds", "first_seed", "seconds", "jobs"])]
    seed: Option<u64>,
    /// Search for a smaller run that breaks the same rule as this seed.
    #[arg(long, requires = "seed", conflicts_with = "trace")]
    minimize: bool,
    /// Bug to build in.
    #[arg(long, value_parser = planted)]
    plant: Option<Planted>,
    /// Upper limit for the number of clients.
    #[arg(long)]
    clients: Option<usize>,
    /// Number of servers. Default: drawn by each seed.
    #[arg(long, value_parser = servers)]
    servers: Option<usize>,
    /// Number of registers in use.
    #[arg(long)]
    registers: Option<usize>,
    /// Upper limit for the time that clients work, in milliseconds of virtual time.
    #[arg(long, value_name = "MILLISECONDS")]
    until: Option<u64>,
    /// Features to leave out, separated by commas: see --list-knobs.
    #[arg(long, value_parser = knob, value_delimiter = ',')]
    without: Vec<Knob>,
    #[command(flatten)]
    forced: ForcedFeatures,
    /// Print every event.
    #[arg(long)]
    trace: bool,
    /// Print the rules, and exit.
    #[arg(long)]
    list_rules: bool,
    /// Print the features that can be left out, and exit.
    #[arg(long)]
    list_knobs: bool,
    /// Print the faults that may last, and exit.
    #[arg(long)]
    list_lasting: bool,
}

/// Features that every run has, whatever its seed draws.
#[derive(clap::Args)]
struct ForcedFeatures {
    /// Let servers replicate each other's logs in every run.
    #[arg(long)]
    replicated: bool,
    /// Let servers keep their own logs, synced at an interval or (in some runs) seldom, and their
    /// machines lose power, in every run.
    #[arg(long, conflicts_with = "replicated")]
    power_loss: bool,
    /// Let servers exchange bytes in every run, not messages.
    #[arg(long)]
    streams: bool,
    /// Let native clients work in every run.
    #[arg(long)]
    native: bool,
    /// Fault that lasts at the end of each replicated run: see --list-lasting. Default: drawn by
    /// each seed.
    #[arg(long, value_parser = lasting, requires = "replicated")]
    lasting: Option<LastingKind>,
}

#[derive(clap::Subcommand)]
enum SimCommand {
    /// Run plain and replicated seeds in turns, for hours, and write a report.
    Campaign(campaign::CampaignArguments),
}

fn planted(name: &str) -> Result<Planted, String> {
    let names = || Planted::ALL.iter().map(Planted::to_string).collect::<Vec<_>>().join(", ");
    let planted = Planted::named(name).ok_or_else(|| format!("possible values: {}", names()))?;
    let without = || "this bug needs a build with `--features plant`".to_owned();
    planted.is_possible().then_some(planted).ok_or_else(without)
}

fn servers(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| SERVERS_POSSIBLE.contains(number));
    let (least, most) = (SERVERS_POSSIBLE.start(), SERVERS_POSSIBLE.end());
    number.ok_or_else(|| format!("possible values: {least} to {most}"))
}

fn knob(name: &str) -> Result<Knob, String> {
    let names = || Knob::ALL.iter().map(Knob::to_string).collect::<Vec<_>>().join(", ");
    Knob::named(name).ok_or_else(|| format!("possible values: {}", names()))
}

fn lasting(name: &str) -> Result<LastingKind, String> {
    let names = || LastingKind::ALL.iter().map(LastingKind::to_string).collect::<Vec<_>>();
    LastingKind::named(name).ok_or_else(|| format!("possible values: {}", names().join(", ")))
}

/// Number of seeds to run if neither a number nor a time is given.
const SEEDS: u64 = 100;

/// Time between two progress lines.
const PROGRESS: Duration = Duration::from_secs(10);

/// Number of seeds that each step of the minimizer tries.
const TRIES: u64 = 60;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(SimCommand::Campaign(campaign)) = &arguments.command {
        return campaign::run(campaign);
    }
    if arguments.list_rules {
        Rule::ALL.iter().for_each(|rule| println!("{rule}: {}", rule.sentence()));
        return ExitCode::SUCCESS;
    }
    if arguments.list_knobs {
        Knob::ALL.iter().for_each(|knob| println!("{knob}: {}", knob.sentence()));
        return ExitCode::SUCCESS;
    }
    if arguments.list_lasting {
        LastingKind::ALL.iter().for_each(|kind| println!("{kind}: {}", kind.sentence()));
        return ExitCode::SUCCESS;
    }
    let settings = RunSettings {
        planted: arguments.plant,
        is_printed: arguments.trace || arguments.seed.is_some() && !arguments.minimize,
        clients: arguments.clients,
        servers: arguments.servers,
        registers: arguments.registers,
        until: arguments.until.map(Duration::from_millis),
        without: arguments.without.iter().copied().collect(),
        is_replicated: arguments.forced.replicated,
        loses_power: arguments.forced.power_loss,
        has_streams: arguments.forced.streams,
        has_native: arguments.forced.native,
        lasting: arguments.forced.lasting,
        ..RunSettings::new(arguments.seed.unwrap_or(arguments.first_seed))
    };
    let jobs = totals::jobs(arguments.jobs);
    match arguments.seed {
        Some(_) if arguments.minimize => make_smaller(&settings, jobs),
        Some(_) => {
            let report = run(&settings);
            match &report.failure {
                Some(failure) => fail(&settings, failure),
                None => {
                    println!("every rule held: {} operations", report.operations);
                    ExitCode::SUCCESS
                }
            }
        }
        None => run_many(&arguments, &settings, jobs),
    }
}

fn fail(settings: &RunSettings, failure: &Failure) -> ExitCode {
    eprintln!("seed {}: {failure}", settings.seed);
    eprintln!("the rule: {}", failure.rule.sentence());
    eprintln!("run it again: cargo run --release -p sim -- {settings}");
    ExitCode::FAILURE
}

#[expect(clippy::disallowed_methods, reason = "how long to go on is asked of the real clock")]
fn run_many(arguments: &Arguments, settings: &RunSettings, jobs: usize) -> ExitCode {
    let begin = Instant::now();
    let enough = arguments.seconds.map_or(Duration::MAX, Duration::from_secs);
    let all = if arguments.seconds.is_some() { u64::MAX } else { SEEDS };
    let end = settings.seed.saturating_add(arguments.seeds.unwrap_or(all));
    let mut totals = RunTotals::default();
    let mut said = begin;
    let found = search(
        settings,
        settings.seed..end,
        jobs,
        |_| true,
        |_, report| {
            totals.add(report);
            if said.elapsed() >= PROGRESS {
                said = Instant::now();
                eprintln!("{} seeds, {} operations so far", totals.seeds, totals.operations);
            }
            begin.elapsed() < enough
        },
    );
    if let Some((seed, Report { failure: Some(failure), .. })) = found {
        return fail(&RunSettings { seed, ..settings.clone() }, &failure);
    }
    let RunTotals { seeds, operations, refused, moved, not_moved, source_values } = totals;
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {operations} operations, {refused} refused, {moved} moves, {not_moved} \
         moves refused, cancelled or failed, {source_values} values read at a source: every rule \
         held, in {seconds:.1} s with {jobs} jobs, \
         {:.0} operations/s",
        operations as f64 / seconds
    );
    ExitCode::SUCCESS
}

fn make_smaller(settings: &RunSettings, jobs: usize) -> ExitCode {
    let smaller = minimize(settings, TRIES, jobs, |smaller| eprintln!("smaller: {smaller}"));
    match smaller {
        Some((smallest, Report { failure: Some(failure), .. })) => fail(&smallest, &failure),
        Some(_) | None => {
            println!("seed {} breaks no rule", settings.seed);
            ExitCode::SUCCESS
        }
    }
}
