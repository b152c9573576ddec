//! `ballast bench`: the load generator, and the comparison with a rival.

use crate::demo::policy_words;
use anyhow::{Context, bail, ensure};
use bench::control::Control;
use bench::distribution::Distribution;
use bench::pace::{Arrivals, Pace};
use bench::peers::System;
use bench::progress::Bars;
use bench::recorder::Phase;
use bench::records::Records;
use bench::report::{grouped, seconds};
use bench::rival::{Comparison, table};
use bench::run::{Dataset, Plan, Wiring, run as run_load};
use bench::scenario::{Load, Progress, Scenario};
use bench::timeline::Timeline;
use bench::workload::{Mix, Workload};
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use types::Slot;

/// Offer load to a server or cluster that speaks the Redis protocol, or compare two systems.
#[derive(Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Load a running server or cluster and measure it.
    Load(LoadArguments),
    /// Start Ballast and Valkey in turns, move half of the data of each, and compare.
    Rival(RivalArguments),
}

#[derive(Args)]
struct LoadArguments {
    /// Any server of the cluster, as ADDRESS:PORT.
    #[arg(long, default_value = "127.0.0.1:6379")]
    server: SocketAddr,
    /// Reads and writes.
    #[arg(long, value_enum, default_value_t = WorkloadName::B)]
    workload: WorkloadName,
    /// Draw every record with the same probability, not by YCSB's Zipf 0.99.
    #[arg(long)]
    uniform: bool,
    /// Records of the data set.
    #[arg(long, default_value_t = 1_000_000)]
    records: u32,
    /// Bytes of a key.
    #[arg(long, default_value_t = 30)]
    key_size: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Open loop: operations per second, timed from when they should have started.
    #[arg(long, conflicts_with = "clients")]
    rate: Option<f64>,
    /// Closed loop: clients that each wait for their answer (default: 50).
    #[arg(long)]
    clients: Option<u32>,
    /// Arrivals of the open loop at even gaps, not at random (Poisson).
    #[arg(long)]
    even: bool,
    /// Seconds of load.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds at the beginning that do not count.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Connections of each thread to each server.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Threads of the generator; records are divided among them.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Microseconds between two looks of an open loop at clock and sockets; 0 for at once, which
    /// is exact and costs several times the processor time.
    #[arg(long, default_value_t = 100)]
    tick: u64,
    /// Do not fill the data set: take over what an earlier run left.
    #[arg(long)]
    keep: bool,
    /// Read every record back at the end.
    #[arg(long)]
    verify: bool,
    /// Everything that is drawn is drawn from this.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write timeline and figures here, as `.json`, `.csv`, `.svg` and `.png`.
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkloadName {
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

impl WorkloadName {
    fn mix(self) -> Mix {
        match self {
            WorkloadName::A => Mix::A,
            WorkloadName::B => Mix::B,
            WorkloadName::C => Mix::C,
            WorkloadName::F => Mix::F,
            WorkloadName::Writes => Mix::Writes,
        }
    }
}

#[derive(Args)]
struct RivalArguments {
    /// How the rival's server is called.
    #[arg(long, default_value = "valkey-server")]
    rival: String,
    /// Rounds; each plays every case with both systems.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Data sets, each as RECORDSxVALUEBYTES; keys have 30 bytes.
    #[arg(long, value_delimiter = ',', default_value = "5000000x100,1000000x1024")]
    data: Vec<String>,
    /// Requests per second while data moves; 0 for none.
    #[arg(long, value_delimiter = ',', default_value = "0,30000,65000")]
    rates: Vec<f64>,
    /// Seconds of load before and after each move.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Microseconds between two looks of the generator at clock and sockets.
    #[arg(long, default_value_t = 200)]
    tick: u64,
    /// Connections to each server.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Highest slot that moves; the lowest is 0.
    #[arg(long, default_value_t = 8_191)]
    last_slot: u16,
    /// Reactors of each Ballast server.
    #[arg(long, default_value_t = 1)]
    reactors: u16,
    /// Memory of each Ballast server.
    #[arg(long, default_value = "4gb")]
    memory: String,
    /// More arguments for `ballast serve`.
    #[arg(long, default_value = "--shared-cores", allow_hyphen_values = true)]
    serve: String,
    /// How Ballast moves, in the words of CLUSTER MIGRATESLOTS: "SHARE 100".
    #[arg(long, default_value = "")]
    policy: String,
    /// First of the ports to use.
    #[arg(long, default_value_t = 7500)]
    port: u16,
    /// Folder for the reports and timelines of every run, and the servers' logs.
    #[arg(long, default_value = "bench-results")]
    output: PathBuf,
}

pub(crate) fn run(arguments: BenchArguments) -> anyhow::Result<()> {
    match arguments.command {
        BenchCommand::Load(arguments) => load(&arguments),
        BenchCommand::Rival(arguments) => rival(&arguments),
    }
}

fn load(arguments: &LoadArguments) -> anyhow::Result<()> {
    let records = Records::new(arguments.records, arguments.key_size, arguments.value_size)?;
    ensure!(
        arguments.threads > 0 && arguments.connections > 0,
        "threads and connections: 1 or more"
    );
    ensure!(arguments.threads <= arguments.records, "more threads than records");
    let routes = Control::connect(arguments.server)?.routes()?;
    let mut bars = Bars::new();
    let mut pass = |workload, dataset| {
        let of = u64::from(arguments.records);
        let plan = plan(arguments, workload, Pace::Closed { clients: 512 }, None);
        run_load(&plan, dataset, &routes, |done| {
            bars.show(match workload {
                Workload::Load => Progress::Loading { done, of },
                Workload::Verify | Workload::Adopt | Workload::Mixed(..) => {
                    Progress::Verifying { done, of }
                }
            });
        })
    };
    let first = if arguments.keep { Workload::Adopt } else { Workload::Load };
    let (dataset, filled) = pass(first, Dataset::new(records, arguments.threads))?;
    tell(if arguments.keep { "took over" } else { "loaded" }, &filled);
    let distribution = if arguments.uniform { Distribution::Uniform } else { Distribution::Zipf };
    let mixed = Workload::Mixed(arguments.workload.mix(), distribution);
    let duration = Some(seconds(arguments.seconds));
    let plan = plan(arguments, mixed, pace(arguments)?, duration);
    let (dataset, timeline) = run_load(&plan, dataset, &routes, |_| ())?;
    tell(arguments.workload.mix().name(), &timeline);
    let mut is_clean = filled.findings.is_clean() && timeline.findings.is_clean();
    if arguments.verify {
        let (_, verified) = pass(Workload::Verify, dataset)?;
        tell("read back", &verified);
        is_clean &= verified.findings.is_clean();
    }
    if let Some(output) = &arguments.output {
        let title = format!("{} at {}", arguments.workload.mix().name(), arguments.server);
        bench::report::save_timeline(&timeline, &title, output)?;
    }
    ensure!(is_clean, "something was lost, stale or refused");
    Ok(())
}

fn plan(
    arguments: &LoadArguments,
    workload: Workload,
    pace: Pace,
    duration: Option<Duration>,
) -> Plan {
    let warm_up = duration.map_or(Duration::ZERO, |_| seconds(arguments.warm_up));
    let tick = Duration::from_micros(arguments.tick);
    let wiring = Wiring { connections: arguments.connections, tick };
    Plan { workload, pace, duration, warm_up, wiring, seed: arguments.seed }
}

fn pace(arguments: &LoadArguments) -> anyhow::Result<Pace> {
    match arguments.rate {
        Some(rate) => {
            ensure!(rate > 0.0, "a rate must be above 0");
            let arrivals = if arguments.even { Arrivals::Fixed } else { Arrivals::Poisson };
            Ok(Pace::Open { rate, arrivals })
        }
        None => Ok(Pace::Closed { clients: arguments.clients.unwrap_or(50) }),
    }
}

/// A run in a few lines.
fn tell(name: &str, timeline: &Timeline) {
    let Some(phase) = timeline.phase(Phase::Before) else { return };
    let findings = &timeline.findings;
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
        timeline.generator_cpu.as_secs_f64() * 1e6 / findings.completed.max(1) as f64,
    );
    for (error, count) in &findings.errors {
        println!("            {count} x {error}");
    }
}

fn rival(arguments: &RivalArguments) -> anyhow::Result<()> {
    std::fs::create_dir_all(&arguments.output)?;
    let comparison = Comparison {
        systems: systems(arguments)?,
        cases: cases(arguments)?,
        rounds: arguments.rounds,
        port: arguments.port,
        logs: arguments.output.clone(),
    };
    let mut bars = Bars::new();
    let rows =
        comparison.run(&mut |line| println!("{line}"), &mut |progress| bars.show(progress))?;
    bars.clear();
    for (case, row) in rows.iter().enumerate() {
        for (round, report) in row.reports.iter().flat_map(|reports| reports.iter().enumerate()) {
            let name = format!("{}-{case}-{round}", report.system.to_lowercase());
            report.save(&arguments.output.join(name))?;
        }
    }
    let table = table(&rows);
    std::fs::write(arguments.output.join("comparison.md"), &table)?;
    println!("\n{table}");
    let is_clean = rows.iter().flat_map(|row| row.reports.iter().flatten()).all(|r| r.is_clean());
    ensure!(is_clean, "something was lost, stale or refused");
    Ok(())
}

fn systems(arguments: &RivalArguments) -> anyhow::Result<[System; 2]> {
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let reactors = arguments.reactors.to_string();
    let mut serve =
        ["--memory", &arguments.memory, "--reactors", &reactors].map(String::from).to_vec();
    serve.extend(words(&arguments.serve));
    Ok([
        System::Ballast { binary: std::env::current_exe()?, serve_arguments: serve },
        System::Valkey { command: words(&arguments.rival), serve_arguments: Vec::new() },
    ])
}

fn cases(arguments: &RivalArguments) -> anyhow::Result<Vec<Scenario>> {
    let around = seconds(arguments.seconds);
    let mut cases = Vec::new();
    for data in &arguments.data {
        let Some((count, value)) = data.split_once('x') else {
            bail!("'{data}' is no data set: write RECORDSxVALUEBYTES")
        };
        let count = count.parse().with_context(|| format!("records of '{data}'"))?;
        let value = value.parse().with_context(|| format!("bytes of '{data}'"))?;
        for &rate in &arguments.rates {
            cases.push(Scenario {
                records: Records::new(count, 30, value)?,
                threads: 1,
                wiring: Wiring {
                    connections: arguments.connections,
                    tick: Duration::from_micros(arguments.tick),
                },
                load: (rate > 0.0).then_some(Load {
                    mix: Mix::B,
                    distribution: Distribution::Zipf,
                    pace: Pace::Open { rate, arrivals: Arrivals::Poisson },
                    before: around,
                    after: around,
                }),
                slots: (Slot(0), Slot(arguments.last_slot.min(16_383))),
                policy: policy_words(&arguments.policy),
                seed: 1,
            });
        }
    }
    Ok(cases)
}
