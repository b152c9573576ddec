//! `ballast demo`: two servers on this machine, load on them, half of the data moves from one to
//! the other, and every record is read back.

use anyhow::{Context, bail};
use bench::distribution::Distribution;
use bench::pace::{Arrivals, Pace};
use bench::peers::{Cluster, System};
use bench::progress::Bars;
use bench::records::Records;
use bench::report::{Report, grouped, seconds};
use bench::run::Wiring;
use bench::scenario::{Load, Scenario};
use bench::workload::Mix;
use clap::Args;
use std::path::PathBuf;
use types::Slot;

/// Watch half of the data of a server move to another one under load.
#[derive(Args)]
pub(crate) struct DemoArguments {
    /// Records to load.
    #[arg(long, default_value_t = 2_000_000)]
    records: u32,
    /// Bytes of a value; keys have 30.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Requests per second: 95 % reads, 5 % writes, Zipf 0.99.
    #[arg(long, default_value_t = 30_000.0)]
    rate: f64,
    /// Seconds of load before the move, and again after it.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Reactors of each server.
    #[arg(long, default_value_t = 1)]
    reactors: u16,
    /// Memory of each server.
    #[arg(long, default_value = "2gb")]
    memory: String,
    /// How to move, in the words of CLUSTER MIGRATESLOTS: "SHARE 20 PULL-BYTES 65536".
    #[arg(long, default_value = "")]
    policy: String,
    /// First of four ports to use on this machine.
    #[arg(long, default_value_t = 7400)]
    port: u16,
    /// Where to draw the timeline; `.svg` and `.png` are added.
    #[arg(long, default_value = "ballast-demo")]
    output: PathBuf,
}

pub(crate) fn run(arguments: DemoArguments) -> anyhow::Result<()> {
    let scenario = scenario(&arguments)?;
    let logs = std::env::temp_dir().join(format!("ballast-demo-{}", std::process::id()));
    std::fs::create_dir_all(&logs)?;
    let system = system(&arguments)?;
    println!(
        "A coordinator and two servers on ports {} to {}; {} records of 30 + {} bytes;\n\
         {}, timed from when each should have started.\n",
        arguments.port,
        arguments.port + 2,
        grouped(u64::from(arguments.records)),
        arguments.value_size,
        scenario.load_in_words(),
    );
    let mut cluster = Cluster::start(&system, 2, arguments.port, &logs)
        .with_context(|| format!("the servers' logs are in {}", logs.display()))?;
    let mut bars = Bars::new();
    let outcome = scenario
        .play(&mut cluster, &mut |progress| bars.show(progress))
        .with_context(|| format!("the servers' logs are in {}", logs.display()))?;
    bars.clear();
    drop(cluster);
    let report = Report::new(system.name(), &scenario, outcome);
    report.drawing().save(&arguments.output)?;
    println!("{}", report.table());
    println!("  drawn        {}", arguments.output.with_extension("svg").display());
    if !report.is_clean() {
        bail!("something was lost, stale or refused; the servers' logs are in {}", logs.display());
    }
    // What is left behind are logs that nobody needs.
    let _ = std::fs::remove_dir_all(&logs);
    Ok(())
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

/// The words behind `NODE id` that tell how to move.
pub(crate) fn policy_words(policy: &str) -> Vec<String> {
    let words: Vec<String> = policy.split_whitespace().map(String::from).collect();
    if words.is_empty() { words } else { [vec!["POLICY".to_string()], words].concat() }
}

fn system(arguments: &DemoArguments) -> anyhow::Result<System> {
    let reactors = arguments.reactors.to_string();
    let serve = ["--memory", &arguments.memory, "--reactors", &reactors, "--shared-cores"];
    Ok(System::Ballast {
        binary: std::env::current_exe()?,
        serve_arguments: serve.map(String::from).to_vec(),
    })
}
