//! Development driver.
use anyhow::Result;
use bench::{distribution::Distribution, pace::*, peers::*, processes, records::Records, run::*, workload::*, recorder::Phase};
use std::{path::Path, time::Duration};
fn main() -> Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let count: u32 = a[1].parse()?;
    let rate: f64 = a[2].parse()?;
    let secs: u64 = a[3].parse()?;
    let conns: u32 = a[4].parse()?;
    let tick: u64 = a[5].parse()?;
    let threads: u32 = a[6].parse()?;
    let system = System::Valkey { command: ["chroot","/opt/peers","valkey-server"].map(String::from).to_vec(), serve_arguments: vec![] };
    let cluster = Cluster::start(&system, 2, 7100, Path::new("/tmp"))?;
    let routes = bench::control::Control::connect(cluster.servers()[0].address)?.routes()?;
    let records = Records::new(count, 30, 100)?;
    let ds = Dataset::new(records, threads);
    let wiring = Wiring { connections: conns, tick: Duration::from_micros(tick) };
    let plan = Plan { workload: Workload::Load, pace: Pace::Closed { clients: 512 }, duration: None, warm_up: Duration::ZERO, wiring, seed: 1 };
    let me = std::process::id();
    let u = processes::Usage::of(&[me])?;
    let (ds, t) = run(&plan, ds, &routes, |_| ())?;
    println!("load {:?} {:?} cpu {:?}", t.phase(Phase::Before), t.findings, u.since()?);
    let pace = if rate > 0.0 { Pace::Open { rate, arrivals: Arrivals::Poisson } } else { Pace::Closed { clients: (-rate) as u32 } };
    let plan = Plan { workload: Workload::Mixed(Mix::B, Distribution::Zipf), pace, duration: Some(Duration::from_secs(secs)), warm_up: Duration::from_secs(1), wiring, seed: 1 };
    let mut procs = cluster.processes(); procs.push(me);
    let u = processes::Usage::of(&procs)?;
    let (ds, t) = run(&plan, ds, &routes, |_| ())?;
    let used = u.since()?;
    println!("run {:?} {:?}", t.phase(Phase::Before), t.findings);
    for d in &used.each { print!("{:.2} us/op ", d.as_secs_f64() * 1e6 / t.findings.completed as f64); }
    print!("gen {:.2} us/op ", t.generator_cpu.as_secs_f64() * 1e6 / t.findings.completed as f64); println!("steal {:?}", used.steal);
    let plan = Plan { workload: Workload::Verify, pace: Pace::Closed { clients: 512 }, duration: None, warm_up: Duration::ZERO, wiring, seed: 1 };
    let (_ds, t) = run(&plan, ds, &routes, |_| ())?;
    println!("verify {:?} {:?}", t.phase(Phase::Before), t.findings);
    Ok(())
}
