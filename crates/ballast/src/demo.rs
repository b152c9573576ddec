//! `ballast demo`: moves half of the data between two servers on this machine under load, and reads
//! every record back. With `--crash`, kills one of four servers instead.

use crate::bench_command::{keeper, policy_words};
use crate::cluster_key;
use anyhow::{anyhow, ensure};
use bench::crash::Crash;
use bench::crash_report::CrashReport;
use bench::distribution::Distribution;
use bench::pace::{Arrivals, LoadPace};
use bench::peers::{Cluster, Setup, System};
use bench::ports::Ports;
use bench::processes::available_bytes;
use bench::progress::Bars;
use bench::records::RecordSet;
use bench::report::{ScenarioReport, grouped, seconds};
use bench::run::Wiring;
use bench::scenario::Scenario;
use bench::series::OfferedLoad;
use bench::workload::Mix;
use clap::Args;
use settings::Bytes;
use std::path::{Path, PathBuf};
use types::Slot;

/// Size of the demo, and migration parameters.
#[derive(Args)]
pub(crate) struct DemoArguments {
    /// Kill a replicated server under load, and show how the others recover its data. Half of the
    /// requests are writes in this case.
    #[arg(long)]
    crash: bool,
    /// Number of servers, with --crash.
    #[arg(long, default_value_t = 4, requires = "crash",
        value_parser = clap::value_parser!(u16).range(3..=64))]
    servers: u16,
    /// Number of replicas of each server's log, with --crash.
    #[arg(long, default_value_t = 2, requires = "crash")]
    replicas: u16,
    /// Records to load. Default: 2,000,000; 1,000,000 with --crash.
    #[arg(long)]
    records: Option<u32>,
    /// Value size in bytes. Keys have 30 bytes.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Requests per second: 95 % reads, 5 % writes, Zipf 0.99. 0: none, or 1 with --crash, where
    /// the dead server's keys are probed until served. Default: 30,000; 20,000 with --crash.
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds of load before the move or the crash, and again after it.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Reactors of each server.
    #[arg(long, default_value_t = 1)]
    reactors: u16,
    /// Memory of each server, as in 2gb. Default: as much as the records need.
    #[arg(long)]
    memory: Option<Bytes>,
    /// Migration policy, in the syntax of CLUSTER MIGRATESLOTS: "SHARE 20 PULL-BYTES 65536".
    #[arg(long, default_value = "", conflicts_with = "crash")]
    policy: String,
    /// First port to use on this machine: two ports per server and one more. Default: any free
    /// ports.
    #[arg(long)]
    port: Option<u16>,
    /// Path of the timeline; `.svg` is appended.
    #[arg(long, default_value = "ballast-demo")]
    output: PathBuf,
}

/// Default number of records and of requests per second.
const USUAL: (u32, f64) = (2_000_000, 30_000.0);
const USUAL_CRASH: (u32, f64) = (1_000_000, 20_000.0);
/// Memory of a record in a server in addition to key and value, in bytes: header, index entry, and
/// unused space of segments.
const OVERHEAD_BYTES: usize = 80;
/// Memory of a server without records, in bytes.
const SERVER_BYTES: usize = 128 << 20;
/// Memory of a record in the load generator, in bytes.
const LEDGER_BYTES: usize = 8;

pub(crate) fn run(arguments: DemoArguments) -> anyhow::Result<()> {
    let records = arguments.records.unwrap_or(arguments.usual().0);
    let records = RecordSet::new(records, 30, arguments.value_size)?;
    ensure_memory(arguments.memory_bytes(&records), &records)?;
    let folder = std::env::temp_dir().join(format!("ballast-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let played = match arguments.crash {
        true => crash(&arguments, records, &folder),
        false => migrate(&arguments, records, &folder),
    };
    let is_clean = played
        .map_err(|error| anyhow!("{error:#} (the servers' logs are in {})", folder.display()))?;
    println!("  timeline     {}", arguments.output.with_extension("svg").display());
    ensure!(
        is_clean,
        "the run found lost writes, stale reads or refused requests (the servers' logs are in {})",
        folder.display()
    );
    // The remaining files are not needed, so errors are ignored.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

/// Demonstrates a move. Returns whether the results were clean.
fn migrate(arguments: &DemoArguments, records: RecordSet, folder: &Path) -> anyhow::Result<bool> {
    let scenario = scenario(arguments, records);
    let setup = arguments.setup(2, folder)?;
    let report = play(&scenario, &migrate_system(arguments, &records)?, &setup)?;
    report.drawing().save(&arguments.output)?;
    println!("{}", report.table());
    Ok(report.is_clean())
}

/// Demonstrates a crash. Returns whether the results were clean.
fn crash(arguments: &DemoArguments, records: RecordSet, folder: &Path) -> anyhow::Result<bool> {
    let DemoArguments { servers, replicas, .. } = *arguments;
    ensure!(
        (1..servers - 1).contains(&replicas),
        "with {servers} servers, one of which dies, --replicas must be between 1 and {}",
        servers - 2
    );
    let mut setup = arguments.setup(servers, folder)?;
    setup.data = Some(folder.to_path_buf());
    let crash =
        Crash { records, threads: 1, wiring: Wiring::default(), load: arguments.load(), seed: 1 };
    let mut cluster = Cluster::start(&crash_system(arguments, &records)?, &setup)?;
    println!("\n  {}\n", introduction(&cluster));
    let mut bars = Bars::new();
    let crashed = crash.play(&mut cluster, &mut |progress| bars.show(progress))?;
    bars.clear();
    let report = CrashReport::new(&crash, (servers, replicas), crashed);
    report.drawing().save(&arguments.output)?;
    println!("{}", report.table());
    Ok(report.is_clean())
}

fn play(scenario: &Scenario, system: &System, setup: &Setup) -> anyhow::Result<ScenarioReport> {
    let mut cluster = Cluster::start(system, setup)?;
    println!("\n  {}\n  {}\n", introduction(&cluster), scenario.in_words());
    let mut bars = Bars::new();
    let outcome = scenario.play(&mut cluster, &mut |progress| bars.show(progress))?;
    Ok(ScenarioReport::new(system.name(), scenario, outcome))
}

fn introduction(cluster: &Cluster) -> String {
    let ports: Vec<String> =
        cluster.addresses().iter().map(|address| address.port().to_string()).collect();
    let count = match ports.len() {
        2 => "two".to_string(),
        more => more.to_string(),
    };
    format!("a coordinator and {count} servers on this machine, ports {}", ports.join(", "))
}

impl DemoArguments {
    fn usual(&self) -> (u32, f64) {
        if self.crash { USUAL_CRASH } else { USUAL }
    }

    fn rate(&self) -> f64 {
        self.rate.unwrap_or(self.usual().1)
    }

    fn load(&self) -> OfferedLoad {
        let around = seconds(self.seconds);
        OfferedLoad {
            // A crash can only lose written data, so half of the requests are writes.
            mix: if self.crash { Mix::A } else { Mix::B },
            distribution: Distribution::Zipf,
            pace: LoadPace::Open { rate: self.rate().max(1.0), arrivals: Arrivals::Poisson },
            before: around,
            after: around,
        }
    }

    fn setup(&self, servers: u16, folder: &Path) -> anyhow::Result<Setup> {
        let ports = self.port.map_or(Ports::Free, Ports::From);
        let logs = folder.to_path_buf();
        let key_file = Some(cluster_key::make_for_children(folder)?);
        Ok(Setup { servers, ports, logs, data: None, key_file, keeper: keeper()? })
    }

    /// Returns the memory that all servers will use together, in bytes.
    fn memory_bytes(&self, records: &RecordSet) -> usize {
        match self.crash {
            true => usize::from(self.servers) * self.crash_server_bytes(records),
            // The source holds all records, the target half of them.
            false => server_bytes(records) / 2 * 3,
        }
    }

    /// Returns the memory that a server needs if another one dies: its own data, its part of the
    /// dead server's data, and the same amount again for overwritten records.
    fn crash_server_bytes(&self, records: &RecordSet) -> usize {
        let share = data_bytes(records) / usize::from(self.servers);
        SERVER_BYTES + 2 * (share + share / usize::from(self.servers - 1))
    }
}

fn scenario(arguments: &DemoArguments, records: RecordSet) -> Scenario {
    Scenario {
        records,
        threads: 1,
        wiring: Wiring::default(),
        load: (arguments.rate() > 0.0).then(|| arguments.load()),
        slots: (Slot(0), Slot(8_191)),
        policy: policy_words(&arguments.policy),
        seed: 1,
    }
}

/// Returns the memory of all records on all servers, in bytes.
fn data_bytes(records: &RecordSet) -> usize {
    let each = records.key_bytes() + records.value_bytes() + OVERHEAD_BYTES;
    records.count() as usize * each
}

/// Returns the memory of a server that holds all records, in bytes.
fn server_bytes(records: &RecordSet) -> usize {
    SERVER_BYTES + data_bytes(records)
}

/// Refuses to start if memory is too short, because the operating system would kill the demo later.
fn ensure_memory(servers: usize, records: &RecordSet) -> anyhow::Result<()> {
    let needed = servers + records.count() as usize * LEDGER_BYTES;
    let free = available_bytes()?;
    let megabytes = |bytes: u64| grouped(bytes >> 20);
    ensure!(
        needed as u64 <= free,
        "the demo needs about {} MB of memory, but only {} MB are free: use fewer --records",
        megabytes(needed as u64),
        megabytes(free)
    );
    Ok(())
}

fn migrate_system(arguments: &DemoArguments, records: &RecordSet) -> anyhow::Result<System> {
    let memory = arguments.memory.map_or_else(|| server_bytes(records), |bytes| bytes.0);
    system(arguments, memory, &[])
}

fn crash_system(arguments: &DemoArguments, records: &RecordSet) -> anyhow::Result<System> {
    let usual = || arguments.crash_server_bytes(records);
    let memory = arguments.memory.map_or_else(usual, |bytes| bytes.0);
    let replicas = arguments.replicas.to_string();
    system(arguments, memory, &["--durability", "memory", "--replicas", &replicas])
}

fn system(arguments: &DemoArguments, memory: usize, more: &[&str]) -> anyhow::Result<System> {
    // Arriving records need half of the memory, so that much is kept ready.
    let (memory, ready) = (memory.to_string(), (memory / 2).to_string());
    let reactors = arguments.reactors.to_string();
    let serve =
        ["--memory", &memory, "--ready-memory", &ready, "--reactors", &reactors, "--shared-cores"];
    Ok(System::Ballast {
        binary: std::env::current_exe()?,
        serve_arguments: serve.iter().chain(more).map(|word| word.to_string()).collect(),
    })
}
