//! `ballast bench`: the load generator, and the comparison with a rival system.

use crate::keep;
use anyhow::ensure;
use bench::compare;
use bench::control::Control;
use bench::distribution::Distribution;
use bench::figures::{Basis, Figure};
use bench::pace::{Arrivals, LoadPace};
use bench::peers::{Setup, System};
use bench::ports::Ports;
use bench::processes;
use bench::progress::Bars;
use bench::recorder::LoadPhase;
use bench::records::RecordSet;
use bench::report::{grouped, seconds};
use bench::run::{Dataset, RunPlan, Wiring, run as run_load};
use bench::series::RunSeries;
use bench::timeline::Timeline;
use bench::workload::{Mix, RunWorkload};
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Generate load for servers of the Redis protocol, or compare two systems.
#[derive(Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Generate load for a running server or cluster, and measure it.
    ///
    /// Loads a data set (or uses that of an earlier run), runs a YCSB mix in an open loop (--rate)
    /// or a closed loop (--clients), and prints one line per phase: rate, percentiles, longest time
    /// without any reply, and errors. Open-loop latency counts from the intended start of each
    /// request. Every value identifies the write that produced it, so stale reads and lost writes
    /// are counted. Follows MOVED and ASK, so it works with any Redis Cluster.
    Load(LoadArguments),
    /// Start Ballast and Valkey alternately, move data in each, and compare.
    ///
    /// Each figure is a table of medians over interleaved rounds. Each run uses fresh servers and
    /// reads every record back. Figures: idle, load-30k, load-65k, large (1 KiB records), shares and
    /// targets (rate against latency), ranges (from a thousandth of the slots to half).
    Compare(CompareArguments),
}

#[derive(Args)]
struct LoadArguments {
    /// Any server of the cluster, as ADDRESS:PORT.
    #[arg(long, default_value = "127.0.0.1:6379")]
    server: SocketAddr,
    /// Mix of reads and writes.
    #[arg(long, value_enum, default_value = "b")]
    workload: Mix,
    /// Choose records with uniform probability instead of YCSB's Zipf 0.99.
    #[arg(long)]
    uniform: bool,
    /// Number of records in the data set.
    #[arg(long, default_value_t = 1_000_000)]
    records: u32,
    /// Key size in bytes.
    #[arg(long, default_value_t = 30)]
    key_size: usize,
    /// Value size in bytes.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Open loop: operations per second, timed from their intended start.
    #[arg(long, conflicts_with = "clients")]
    rate: Option<f64>,
    /// Closed loop: number of clients, each waiting for its reply (default: 50).
    #[arg(long)]
    clients: Option<u32>,
    /// Use evenly spaced arrivals in the open loop, not random ones (Poisson).
    #[arg(long)]
    even: bool,
    /// Seconds of measured load.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds of load before the measurement.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Connections per thread and server.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Threads of the generator. Records are divided among them.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Microseconds between two checks of clock and sockets in an open loop. 0 checks continuously,
    /// which is exact but needs several times the processor time.
    #[arg(long, default_value_t = 100)]
    tick: u64,
    /// Least processor time of the generator per request in an open loop, in microseconds. It
    /// spins for the rest, to be as expensive as other clients on the same machine.
    #[arg(long, default_value_t = 0.0)]
    generator_us: f64,
    /// Seconds during which an operation is retried if its server is gone or temporarily
    /// unavailable, for example after a crash. Default: fail at once.
    #[arg(long, default_value_t = 0.0)]
    patience: f64,
    /// Do not load the data set: use that of an earlier run.
    #[arg(long)]
    keep: bool,
    /// Read every record back at the end.
    #[arg(long)]
    verify: bool,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write timeline and figures to this path, as `.json`, `.csv` and `.svg`.
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct CompareArguments {
    /// Figures to produce; all if none is given.
    #[arg(value_enum)]
    figures: Vec<Figure>,
    /// Binary of the Ballast servers, for example of an earlier commit. Default: this one.
    #[arg(long)]
    ballast: Option<PathBuf>,
    /// Command of the rival's server, with leading words if it needs any.
    #[arg(long, default_value = "valkey-server")]
    rival: String,
    /// Number of rounds. Each runs every case with every system.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Number of records of 30 + 100 bytes.
    #[arg(long, default_value_t = 5_000_000)]
    records: u32,
    /// Number of records of 30 + 1024 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    large_records: u32,
    /// Requests per second of the figures `shares` and `targets`.
    #[arg(long, default_value_t = 30_000.0)]
    shares_rate: f64,
    /// Seconds of load before and after each move.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Microseconds between two checks of clock and sockets by the generator.
    #[arg(long, default_value_t = 50)]
    tick: u64,
    /// Least processor time of the generator per request, in microseconds: it spins for the rest.
    /// Clients need processor time as well, so a cheap generator on the servers' machine flatters
    /// them.
    #[arg(long, default_value_t = 12.0)]
    generator_us: f64,
    /// Connections to each server.
    #[arg(long, default_value_t = 32)]
    connections: u32,
    /// Memory of each Ballast server. Default: 1.5 times what the records need.
    #[arg(long)]
    memory: Option<String>,
    /// Arguments for `ballast serve`. Default: none, as users start it.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    serve: String,
    /// Replicas of Ballast's data (`--durability memory`), on one server more than that. The rival
    /// has none.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=16))]
    replicas: u16,
    /// Folder for tables, the report and timeline of every run, and the servers' logs.
    #[arg(long, default_value = "bench-results")]
    output: PathBuf,
}

pub(crate) fn run(arguments: BenchArguments) -> anyhow::Result<()> {
    match arguments.command {
        BenchCommand::Load(arguments) => load(&arguments),
        BenchCommand::Compare(arguments) => compare(&arguments),
    }
}

fn load(arguments: &LoadArguments) -> anyhow::Result<()> {
    let records = RecordSet::new(arguments.records, arguments.key_size, arguments.value_size)?;
    ensure!(
        arguments.threads > 0 && arguments.connections > 0,
        "--threads and --connections must be 1 or more"
    );
    ensure!(arguments.threads <= arguments.records, "--threads must not exceed --records");
    let routes = Control::connect(arguments.server)?.routes()?;
    let mut bars = Bars::new();
    let tick = Duration::from_micros(arguments.tick);
    let cost = microseconds(arguments.generator_us)?;
    let wiring = Wiring { connections: arguments.connections, tick, cost };
    let (patience, seed) = (seconds(arguments.patience), arguments.seed);
    let series = RunSeries { routes: &routes, wiring, patience, seed };
    let mut progress = |progress| bars.show(progress);
    let first = if arguments.keep { RunWorkload::Adopt } else { RunWorkload::Load };
    let dataset = Dataset::new(records, arguments.threads);
    let (dataset, filled) = series.pass(first, dataset, &mut progress)?;
    print_run(if arguments.keep { "reused" } else { "loaded" }, &filled);
    let distribution = if arguments.uniform { Distribution::Uniform } else { Distribution::Zipf };
    let mixed = RunWorkload::Mixed(arguments.workload, distribution);
    let warm_up = seconds(arguments.warm_up);
    let duration = Some(warm_up + seconds(arguments.seconds));
    let plan = RunPlan { duration, warm_up, ..series.plan(mixed, pace(arguments)?) };
    let (dataset, timeline) = run_load(&plan, dataset, &routes, |_| ())?;
    print_run(arguments.workload.name(), &timeline);
    let mut is_clean =
        filled.recording.findings.is_clean() && timeline.recording.findings.is_clean();
    if arguments.verify {
        let (_, verified) = series.verify(dataset, &mut progress)?;
        print_run("read back", &verified);
        is_clean &= verified.recording.findings.is_clean();
    }
    if let Some(output) = &arguments.output {
        let title = format!("{} at {}", arguments.workload.name(), arguments.server);
        bench::report::save_timeline(&timeline, &title, output)?;
    }
    ensure!(is_clean, "the run found lost writes, stale reads or refused requests");
    Ok(())
}

fn pace(arguments: &LoadArguments) -> anyhow::Result<LoadPace> {
    match arguments.rate {
        Some(rate) => {
            ensure!(rate > 0.0, "--rate must be above 0");
            let arrivals = if arguments.even { Arrivals::Fixed } else { Arrivals::Poisson };
            Ok(LoadPace::Open { rate, arrivals })
        }
        None => Ok(LoadPace::Closed { clients: arguments.clients.unwrap_or(50) }),
    }
}

/// Prints a run in a few lines.
fn print_run(name: &str, timeline: &Timeline) {
    let Some(phase) = timeline.phase(LoadPhase::Before) else { return };
    let findings = &timeline.recording.findings;
    println!(
        "{name:<12}{:>10} requests/s   p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3} ms   gap {:.1} ms   \
         {} failed, {} redirected, {} stale, {} missing, {} wrong   generator {:.2} us/request",
        grouped(phase.throughput as u64),
        phase.all.p50,
        phase.all.p99,
        phase.all.p99_9,
        phase.all.max,
        phase.longest_gap,
        findings.errors_total(),
        findings.moved + findings.asked,
        findings.stale,
        findings.missing,
        findings.wrong,
        timeline.generator_us_per_operation(),
    );
    for (error, count) in &findings.errors {
        println!("            {count} x {error}");
    }
}

fn compare(arguments: &CompareArguments) -> anyhow::Result<()> {
    std::fs::create_dir_all(&arguments.output)?;
    let setup = Setup {
        servers: 2.max(arguments.replicas + 1),
        ports: Ports::Free,
        logs: arguments.output.clone(),
        data: (arguments.replicas > 0).then(|| arguments.output.clone()),
        key_file: None,
        keeper: keeper()?,
    };
    let basis = basis(arguments)?;
    let figures: Vec<Figure> = match &arguments.figures[..] {
        [] => Figure::value_variants().to_vec(),
        named => named.to_vec(),
    };
    let mut is_clean = true;
    for figure in figures {
        is_clean &= compare_one(figure, &basis, arguments, &setup)?;
    }
    ensure!(is_clean, "the run found lost writes, stale reads or refused requests");
    Ok(())
}

/// Runs a figure, prints its table and saves all results. Returns whether every run was clean.
fn compare_one(
    figure: Figure,
    basis: &Basis,
    arguments: &CompareArguments,
    setup: &Setup,
) -> anyhow::Result<bool> {
    let mut bars = Bars::new();
    let cases = figure.cases(basis)?;
    // Standard output is reserved for the tables.
    let mut report_line = |line: &str| eprintln!("{line}");
    let rows = compare::play(&cases, arguments.rounds, setup, &mut report_line, &mut |progress| {
        bars.show(progress);
    })?;
    bars.clear();
    for (case, row) in rows.iter().enumerate() {
        for (number, (_, reports)) in row.played.iter().enumerate() {
            for (round, report) in reports.iter().enumerate() {
                let name = format!("{}-case{case}-{number}-round{round}", figure.name());
                report.save(&arguments.output.join(name))?;
            }
        }
    }
    let table = format!(
        "### {}\n\n{} rounds, {}\n\n{}",
        figure.title(),
        arguments.rounds,
        processes::machine(),
        compare::table(&rows)
    );
    std::fs::write(arguments.output.join(format!("{}.md", figure.name())), &table)?;
    println!("{table}");
    Ok(rows.iter().flat_map(|row| &row.played).flat_map(|(_, r)| r).all(|report| report.is_clean()))
}

fn basis(arguments: &CompareArguments) -> anyhow::Result<Basis> {
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let mut serve = Vec::new();
    if arguments.replicas > 0 {
        let replicas = arguments.replicas.to_string();
        serve.extend(["--durability", "memory", "--replicas", &replicas].map(String::from));
    }
    serve.extend(words(&arguments.serve));
    let binary = arguments.ballast.clone().map_or_else(std::env::current_exe, Ok)?;
    Ok(Basis {
        ballast: System::Ballast { binary, serve_arguments: serve },
        rival: System::Valkey { command: words(&arguments.rival), serve_arguments: Vec::new() },
        records: arguments.records,
        large_records: arguments.large_records,
        shares_rate: arguments.shares_rate,
        memory: arguments.memory.clone(),
        wiring: Wiring {
            connections: arguments.connections,
            tick: Duration::from_micros(arguments.tick),
            cost: microseconds(arguments.generator_us)?,
        },
        around: seconds(arguments.seconds),
    })
}

/// Returns the least processor time of the generator per request.
fn microseconds(number: f64) -> anyhow::Result<Duration> {
    ensure!((0.0..=1e6).contains(&number), "--generator-us must be between 0 and 1000000");
    Ok(seconds(number / 1e6))
}

/// Returns the command that starts servers which end with this process: see [`Setup::keeper`].
pub(crate) fn keeper() -> anyhow::Result<Vec<PathBuf>> {
    Ok(vec![std::env::current_exe()?, PathBuf::from(keep::NAME)])
}

/// Returns the words after `NODE id` that set the migration policy.
pub(crate) fn policy_words(policy: &str) -> Vec<String> {
    let words: Vec<String> = policy.split_whitespace().map(String::from).collect();
    if words.is_empty() { words } else { [vec!["POLICY".to_string()], words].concat() }
}
