//! Development driver.
use anyhow::Result;
use bench::{distribution::Distribution, pace::*, peers::*, records::Records, run::*, workload::*, recorder::Phase, scenario::*};
use std::{path::Path, time::Duration};
use types::Slot;
fn main() -> Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let count: u32 = a[1].parse()?;
    let rate: f64 = a[2].parse()?;
    let secs: u64 = a[3].parse()?;
    let conns: u32 = a[4].parse()?;
    let tick: u64 = a[5].parse()?;
    let threads: u32 = a[6].parse()?;
    let system = System::Valkey { command: ["chroot","/opt/peers","valkey-server"].map(String::from).to_vec(), serve_arguments: vec![] };
    let mut cluster = Cluster::start(&system, 2, 7100, Path::new("/tmp"))?;
    let records = Records::new(count, 30, 100)?;
    let wiring = Wiring { connections: conns, tick: Duration::from_micros(tick) };
    let pace = if rate > 0.0 { Pace::Open { rate, arrivals: Arrivals::Poisson } } else { Pace::Closed { clients: (-rate) as u32 } };
    let load = (rate != 0.0).then_some(Load { mix: Mix::B, distribution: Distribution::Zipf, pace, before: Duration::from_secs(secs), after: Duration::from_secs(secs) });
    let s = Scenario { records, threads, wiring, load, slots: (Slot(0), Slot(8191)), seed: 1 };
    let o = s.play(&mut cluster, &mut |_| ())?;
    let r = bench::report::Report::new(system.name(), &s, o); r.save(Path::new("/tmp/bench-dev"))?; println!("{}", r.table()); return Ok(());
    #[allow(unreachable_code)] { let o: Outcome = unreachable!(); println!("load {:.0}/s {:?}\n{:?}\n{:?}\n{:.1} MB/s", o.load_rate, o.memory, o.moved, o.cost, o.moved.megabytes_per_second());
    if let Some(t) = &o.timeline {
        for p in [Phase::Before, Phase::During, Phase::After] { println!("{:?}", t.phase(p)); }
        println!("{:?}", t.findings);
    }
    println!("{:?} clean {}", o.verified, o.is_clean()); }
    Ok(())
}
