//! The story of a crash: servers hold equal parts of a data set and keep each other's logs, load is
//! offered, one of them is killed, others serve what it held, and every record is read back.
//!
//! Two observers see when the data of the dead server is served again: the clients of the load, which
//! go on asking, and a prober, which asks for one record of every slot until each was served. Load
//! alone would not tell: it asks for some slots once in a second, or for none if there is hardly any.

use crate::bulk::{Bulk, used_until_resting};
use crate::clock;
use crate::control::Control;
use crate::migrate::{Move, Payload};
use crate::peers::Cluster;
use crate::processes;
use crate::recorder::{Findings, Phase};
use crate::records::{Record, Records};
use crate::routes::{Routes, Slots};
use crate::run::{Dataset, Plan, Running, Wiring, start};
use crate::scenario::{Load, Progress, WARM_UP};
use crate::timeline::Timeline;
use crate::workload::Workload;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use types::{Instant, SLOT_COUNT, Slot, slot_of};

/// How long clients try again, and how long at most it may take until everything is served.
const PATIENCE: Duration = Duration::from_secs(10);
const SERVED_MAX: Duration = Duration::from_secs(60);
/// How often the prober asks.
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// Probes sent at once: their bytes fit into the buffers of a socket.
const PROBES_AT_ONCE: usize = 512;
/// The slot map is asked for so often while servers do not agree about it.
const AGREE_EVERY: Duration = Duration::from_millis(10);
const AGREE_MAX: Duration = Duration::from_secs(10);

/// What happens.
#[derive(Clone, Debug)]
pub struct Crash {
    /// The data set.
    pub records: Records,
    /// Threads of the load generator.
    pub threads: u32,
    /// How clients connect.
    pub wiring: Wiring,
    /// The load; its times are those before the crash and after everything is served again.
    pub load: Load,
    /// Everything that is drawn is drawn from this.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Crashed {
    /// Records written per second while loading.
    pub load_rate: f64,
    /// What the dead server held.
    pub held: Payload,
    /// When it was killed.
    pub killed: Instant,
    /// The last answer of its slots before, which is not before the kill, and the first one after, to
    /// a client or to the prober.
    pub gap: (Instant, Instant),
    /// When every slot was served that it had held.
    pub all_served: Instant,
    /// What the clients saw.
    pub timeline: Timeline,
    /// Seconds that the host took from this machine before, during and after.
    pub steal: [f64; 3],
    /// What reading every record back showed.
    pub verified: Findings,
}

/// What was seen while a server died.
struct Seen {
    killed: Instant,
    served: Served,
    timeline: Timeline,
    steal: [f64; 3],
}

impl Crash {
    /// Plays it on a cluster whose first server owns every slot. The last one dies.
    pub fn play(
        &self,
        cluster: &mut Cluster,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Crashed> {
        ensure!(cluster.servers().len() > 1, "somebody has to be left");
        progress(Progress::Moving);
        spread(cluster)?;
        let routes = agreed_routes(&cluster.addresses())?;
        let victim = cluster.servers().len() - 1;
        let address = cluster.servers()[victim].address;
        let watched = Slots::which(|slot| routes.address(routes.owner(slot)) == address);
        let (held, probes) = self.of_slots(&watched);
        ensure!(!probes.is_empty(), "the server that is to die holds nothing");
        let bulk =
            Bulk { routes: &routes, wiring: self.wiring, patience: PATIENCE, seed: self.seed };
        let dataset = Dataset::new(self.records, self.threads);
        let (dataset, loaded) = bulk.load(dataset, progress)?;
        used_until_resting(&cluster.processes())?;
        let running = start(&self.plan(watched), dataset, &routes)?;
        let (dataset, seen) = self.kill((cluster, victim), running, probes, progress)?;
        cluster.check()?;
        let routes = agreed_routes(&living(cluster, victim))?;
        let (_, verified) = Bulk { routes: &routes, ..bulk }.verify(dataset, progress)?;
        let Seen { killed, served: Served { first, all }, timeline, steal } = seen;
        let gap = gap(timeline.watched_gap(killed, all), killed, first);
        let all_served = all;
        let load_rate = loaded.phase(Phase::Before).map_or(0.0, |phase| phase.throughput);
        let verified = verified.findings;
        Ok(Crashed { load_rate, held, killed, gap, all_served, timeline, steal, verified })
    }

    fn plan(&self, watched: Slots) -> Plan {
        Plan {
            workload: Workload::Mixed(self.load.mix, self.load.distribution),
            pace: self.load.pace,
            duration: None,
            warm_up: WARM_UP,
            wiring: self.wiring,
            patience: PATIENCE,
            watched,
            seed: self.seed,
        }
    }

    /// What these slots hold of the data set, and the key of one record of each that holds any.
    fn of_slots(&self, slots: &Slots) -> (Payload, BTreeMap<Slot, String>) {
        let mut records = 0;
        let mut probes = BTreeMap::new();
        let mut key = Vec::new();
        for record in (0..self.records.count()).map(Record) {
            key.clear();
            self.records.write_key(record, &mut key);
            let slot = slot_of(&key);
            if slots.contains(slot) {
                records += 1;
                let probe = || String::from_utf8_lossy(&key).into_owned();
                probes.entry(slot).or_insert_with(probe);
            }
        }
        (Payload { records, bytes: records * self.records.user_bytes() }, probes)
    }

    /// Lets the load run, kills the server in the middle of it, and waits until everything is
    /// served again.
    fn kill(
        &self,
        (cluster, victim): (&mut Cluster, usize),
        running: Running,
        probes: BTreeMap<Slot, String>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Dataset, Seen)> {
        progress(Progress::Serving { moved: false });
        let mut prober = Prober::new(&living(cluster, victim), probes)?;
        clock::sleep(WARM_UP);
        let mut steal = vec![processes::steal_time()?];
        clock::sleep(self.load.before);
        steal.push(processes::steal_time()?);
        let killed = clock::now();
        running.marks().begin(killed);
        cluster.kill(victim)?;
        progress(Progress::Recovering);
        let served = prober.wait(SERVED_MAX)?;
        running.marks().end(served.all);
        steal.push(processes::steal_time()?);
        progress(Progress::Recovered);
        clock::sleep(self.load.after);
        running.stop();
        let (dataset, timeline) = running.finish()?;
        steal.push(processes::steal_time()?);
        let steal = std::array::from_fn(|phase| (steal[phase + 1] - steal[phase]).as_secs_f64());
        Ok((dataset, Seen { killed, served, timeline, steal }))
    }
}

/// The time without an answer. Few clients ask seldom: their last answer may be long before the kill,
/// until which the server did answer, and the prober may be answered first.
fn gap(
    of_clients: Option<(Instant, Instant)>,
    killed: Instant,
    first_probe: Instant,
) -> (Instant, Instant) {
    let (last, first) = of_clients.unwrap_or((killed, first_probe));
    let last = last.max(killed);
    (last, first.min(first_probe).max(last))
}

fn living(cluster: &Cluster, victim: usize) -> Vec<SocketAddr> {
    let mut addresses = cluster.addresses();
    addresses.remove(victim);
    addresses
}

/// Gives every server the same number of slots, all of which the first one owns.
fn spread(cluster: &Cluster) -> Result<()> {
    let [first, others @ ..] = cluster.servers() else { return Ok(()) };
    let count = cluster.servers().len() as u32;
    let border = |server: u32| (u32::from(SLOT_COUNT) * server / count) as u16;
    let mut source = Control::connect(first.address)?;
    for (server, number) in others.iter().zip(1..) {
        let moving = Move {
            first: Slot(border(number)),
            last: Slot(border(number + 1) - 1),
            target: server.name.clone(),
            policy: Vec::new(),
        };
        let nothing = Payload { records: 0, bytes: 0 };
        let mut target = Control::connect(server.address)?;
        moving
            .run((&mut source, &mut target), nothing, |_| ())
            .with_context(|| format!("giving slots to {}", server.address))?;
    }
    Ok(())
}

/// The slot map, once all these servers tell the same one.
fn agreed_routes(servers: &[SocketAddr]) -> Result<Routes> {
    let mut controls =
        servers.iter().map(|address| Control::connect(*address)).collect::<Result<Vec<_>>>()?;
    let until = clock::now() + AGREE_MAX;
    loop {
        let told = controls.iter_mut().map(owners).collect::<Result<Vec<_>>>()?;
        if told.windows(2).all(|pair| pair[0] == pair[1]) {
            let mut routes = controls[0].routes()?;
            for address in servers {
                routes.node(*address);
            }
            return Ok(routes);
        }
        ensure!(clock::now() < until, "servers do not agree about who owns which slots");
        clock::sleep(AGREE_EVERY);
    }
}

/// The owner of every slot, as a server tells it.
fn owners(control: &mut Control) -> Result<Vec<SocketAddr>> {
    let routes = control.routes()?;
    Ok((0..SLOT_COUNT).map(|slot| routes.address(routes.owner(Slot(slot)))).collect())
}

/// When the slots of a dead server were served again.
#[derive(Clone, Copy)]
struct Served {
    first: Instant,
    all: Instant,
}

/// Asks the living for what a dead server held.
struct Prober {
    living: Vec<Control>,
    /// Slots that nobody has served yet, and the key that is asked for.
    missing: BTreeMap<Slot, String>,
}

impl Prober {
    fn new(living: &[SocketAddr], missing: BTreeMap<Slot, String>) -> Result<Prober> {
        let living = living.iter().map(|address| Control::connect(*address)).collect::<Result<_>>();
        Ok(Prober { living: living?, missing })
    }

    /// Asks until every slot was served, and returns when the first and the last one was.
    fn wait(&mut self, patience: Duration) -> Result<Served> {
        let begun = clock::now();
        let slots = self.missing.len();
        let mut first = None;
        for turn in 0.. {
            self.probe(turn % self.living.len())?;
            let now = clock::now();
            if self.missing.len() < slots {
                first.get_or_insert(now);
            }
            if self.missing.is_empty() {
                break;
            }
            ensure!(
                now < begun + patience,
                "{} slots of the dead server are not served after {} s",
                self.missing.len(),
                patience.as_secs()
            );
            clock::sleep(PROBE_EVERY);
        }
        let all = clock::now();
        Ok(Served { first: first.unwrap_or(all), all })
    }

    /// Asks for every missing slot the server that owns it, according to one of them.
    fn probe(&mut self, informant: usize) -> Result<()> {
        let routes = self.living[informant].routes()?;
        for control in &mut self.living {
            let mine = |slot: Slot| routes.address(routes.owner(slot)) == control.address();
            let slots: Vec<Slot> =
                self.missing.keys().copied().filter(|slot| mine(*slot)).collect();
            for slots in slots.chunks(PROBES_AT_ONCE) {
                let commands: Vec<[&str; 2]> =
                    slots.iter().map(|slot| ["EXISTS", &*self.missing[slot]]).collect();
                let refused = control.are_refused(&commands)?;
                for (slot, _) in slots.iter().zip(refused).filter(|(_, is_refused)| !is_refused) {
                    self.missing.remove(slot);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_without_an_answer_means_something_without_load() {
        let at = |millis: u64| Instant(millis * 1_000_000);
        let killed = at(1_000);
        for (of_clients, first_probe, expected) in [
            // Clients that ask often see it best.
            (Some((at(1_001), at(1_300))), at(1_305), (at(1_001), at(1_300))),
            // One that asks once in a second saw its last answer long ago, and the next one late.
            (Some((at(100), at(2_100))), at(1_305), (at(1_000), at(1_305))),
            (None, at(1_305), (at(1_000), at(1_305))),
        ] {
            assert_eq!(gap(of_clients, killed, first_probe), expected);
        }
    }
}
