//! `ballast demo`: two servers on this machine, load on them, half of the data moves from one to
//! the other, and every record is read back.

use crate::bench_command::{keeper, policy_words};
use anyhow::{anyhow, ensure};
use bench::distribution::Distribution;
use bench::pace::{Arrivals, Pace};
use bench::peers::{Cluster, Setup, System};
use bench::ports::Ports;
use bench::processes::available_bytes;
use bench::progress::Bars;
use bench::records::Records;
use bench::report::{Report, grouped, seconds};
use bench::run::Wiring;
use bench::scenario::{Load, Scenario};
use bench::workload::Mix;
use clap::Args;
use server::configuration::Bytes;
use std::path::PathBuf;
use types::Slot;

/// How large the demo is, and how it moves.
#[derive(Args)]
pub(crate) struct DemoArguments {
    /// Records to load.
    #[arg(long, default_value_t = 2_000_000)]
    records: u32,
    /// Bytes of a value; keys have 30.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Requests per second: 95 % reads, 5 % writes, Zipf 0.99. 0 for none.
    #[arg(long, default_value_t = 30_000.0)]
    rate: f64,
    /// Seconds of load before the move, and again after it.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Reactors of each server.
    #[arg(long, default_value_t = 1)]
    reactors: u16,
    /// Memory of each server, as in 2gb. Default: what the records need.
    #[arg(long)]
    memory: Option<Bytes>,
    /// How to move, in the words of CLUSTER MIGRATESLOTS: "SHARE 20 PULL-BYTES 65536".
    #[arg(long, default_value = "")]
    policy: String,
    /// First of five ports to use on this machine. Default: any that are free.
    #[arg(long)]
    port: Option<u16>,
    /// Where to draw the timeline; `.svg` and `.png` are added.
    #[arg(long, default_value = "ballast-demo")]
    output: PathBuf,
}

/// What a record takes in a server beside key and value: header, place in the index, and the part
/// of segments that is not full.
const OVERHEAD_BYTES: usize = 80;
/// What a server takes without records.
const SERVER_BYTES: usize = 128 << 20;
/// What the load generator remembers of a record.
const LEDGER_BYTES: usize = 8;

pub(crate) fn run(arguments: DemoArguments) -> anyhow::Result<()> {
    let scenario = scenario(&arguments)?;
    ensure_memory(&scenario.records)?;
    let ports = arguments.port.map_or(Ports::Free, Ports::From);
    let logs = std::env::temp_dir().join(format!("ballast-demo-{}", std::process::id()));
    std::fs::create_dir_all(&logs)?;
    let setup = Setup { servers: 2, ports, logs: logs.clone(), keeper: keeper()? };
    let system = system(&arguments, &scenario.records)?;
    let report = play(&scenario, &system, &setup)
        .map_err(|error| anyhow!("{error:#} (the servers' logs are in {})", logs.display()))?;
    report.drawing().save(&arguments.output)?;
    println!("{}", report.table());
    println!("  drawn        {}", arguments.output.with_extension("svg").display());
    ensure!(
        report.is_clean(),
        "something was lost, stale or refused (the servers' logs are in {})",
        logs.display()
    );
    // What is left behind are logs that nobody needs.
    let _ = std::fs::remove_dir_all(&logs);
    Ok(())
}

fn play(scenario: &Scenario, system: &System, setup: &Setup) -> anyhow::Result<Report> {
    let mut cluster = Cluster::start(system, setup)?;
    println!("\n  {}\n  {}\n", introduction(&cluster), scenario.in_words());
    let mut bars = Bars::new();
    let outcome = scenario.play(&mut cluster, &mut |progress| bars.show(progress))?;
    Ok(Report::new(system.name(), scenario, outcome))
}

fn introduction(cluster: &Cluster) -> String {
    let ports: Vec<String> =
        cluster.addresses().iter().map(|address| address.port().to_string()).collect();
    format!("a coordinator and two servers on this machine, ports {}", ports.join(" and "))
}

fn scenario(arguments: &DemoArguments) -> anyhow::Result<Scenario> {
    let around = seconds(arguments.seconds);
    Ok(Scenario {
        records: Records::new(arguments.records, 30, arguments.value_size)?,
        threads: 1,
        wiring: Wiring::default(),
        load: (arguments.rate > 0.0).then_some(Load {
            mix: Mix::B,
            distribution: Distribution::Zipf,
            pace: Pace::Open { rate: arguments.rate, arrivals: Arrivals::Poisson },
            before: around,
            after: around,
        }),
        slots: (Slot(0), Slot(8_191)),
        policy: policy_words(&arguments.policy),
        seed: 1,
    })
}

/// Memory of a server that holds all records.
fn server_bytes(records: &Records) -> usize {
    let each = records.key_bytes() + records.value_bytes() + OVERHEAD_BYTES;
    SERVER_BYTES + records.count() as usize * each
}

/// Better no demo than one that the system kills in the middle.
fn ensure_memory(records: &Records) -> anyhow::Result<()> {
    // The source holds everything, the target half of it.
    let needed = server_bytes(records) / 2 * 3 + records.count() as usize * LEDGER_BYTES;
    let free = available_bytes()?;
    let megabytes = |bytes: u64| grouped(bytes >> 20);
    ensure!(
        needed as u64 <= free,
        "this needs about {} MB of memory, and {} MB are free: ask for fewer with --records",
        megabytes(needed as u64),
        megabytes(free)
    );
    Ok(())
}

fn system(arguments: &DemoArguments, records: &Records) -> anyhow::Result<System> {
    let memory = arguments.memory.map_or_else(|| server_bytes(records), |bytes| bytes.0);
    // What arrives needs half of it, and has it ready.
    let (memory, ready) = (memory.to_string(), (memory / 2).to_string());
    let reactors = arguments.reactors.to_string();
    let serve =
        ["--memory", &memory, "--ready-memory", &ready, "--reactors", &reactors, "--shared-cores"];
    Ok(System::Ballast {
        binary: std::env::current_exe()?,
        serve_arguments: serve.map(String::from).to_vec(),
    })
}
