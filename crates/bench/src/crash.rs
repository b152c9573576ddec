//! Crash scenario: servers hold equal parts of a data set and replicate each other's logs. Under
//! load one of them is killed, the others recover its data, and every record is read back.
//!
//! Two observers measure when the dead server's data is served again: the clients of the load,
//! and a prober that requests one record of every slot until each slot has answered. Load alone
//! is not enough: it uses some slots only once per second, or not at all if it is low.

use crate::clock;
use crate::control::Control;
use crate::migrate::{DataVolume, Move};
use crate::peers::Cluster;
use crate::recorder::{Findings, LoadPhase};
use crate::records::{RecordNumber, RecordSet};
use crate::run::{Dataset, Wiring};
use crate::series::{
    LoadMeasurements, OfferedLoad, RunSeries, ScenarioProgress, used_until_resting,
};
use crate::slot_map::{SlotMap, SlotSet};
use crate::timeline::Timeline;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use types::{Instant, SLOT_COUNT, Slot, slot_of};

/// Time that clients retry, and longest time until everything must be served.
const PATIENCE: Duration = Duration::from_secs(10);
const SERVED_MAX: Duration = Duration::from_secs(60);
/// Interval between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// Number of probes sent at once: their bytes fit into the buffers of a socket.
const PROBES_AT_ONCE: usize = 512;
/// Interval and limit of the slot map queries while servers disagree about the map.
const AGREE_EVERY: Duration = Duration::from_millis(10);
const AGREE_MAX: Duration = Duration::from_secs(10);

/// Parameters of the scenario.
#[derive(Clone, Debug)]
pub struct Crash {
    /// The data set.
    pub records: RecordSet,
    /// Number of threads of the load generator.
    pub threads: u32,
    /// Connections of the clients.
    pub wiring: Wiring,
    /// The load; its durations are those before the crash and after everything is served again.
    pub load: OfferedLoad,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Result of the scenario.
pub struct CrashResult {
    /// Records written per second while loading.
    pub load_rate: f64,
    /// Data that the dead server held.
    pub held: DataVolume,
    /// Time of the kill.
    pub killed: Instant,
    /// Last answer from its slots before the outage (not before the kill), and the first answer
    /// after it, to a client or to the prober.
    pub gap: (Instant, Instant),
    /// Time at which every slot that it had held was served.
    pub all_served: Instant,
    /// Measurements of the clients.
    pub timeline: Timeline,
    /// Seconds of steal time before, during and after.
    pub steal: [f64; 3],
    /// Result of reading every record back.
    pub verified: Findings,
}

impl Crash {
    /// Plays the scenario on a cluster with all slots at the first server. Kills the last server.
    pub fn play(
        &self,
        cluster: &mut Cluster,
        progress: &mut dyn FnMut(ScenarioProgress),
    ) -> Result<CrashResult> {
        ensure!(cluster.servers().len() > 1, "a crash needs at least two servers");
        progress(ScenarioProgress::Moving);
        spread(cluster)?;
        let routes = agreed_routes(&cluster.addresses())?;
        let victim = cluster.servers().len() - 1;
        let address = cluster.servers()[victim].address;
        let watched = SlotSet::which(|slot| routes.address(routes.owner(slot)) == address);
        let (held, probes) = self.of_slots(&watched);
        ensure!(!probes.is_empty(), "the server to kill has no records");
        let (wiring, patience, seed) = (self.wiring, PATIENCE, self.seed);
        let series = RunSeries { routes: &routes, wiring, patience, seed };
        let dataset = Dataset::new(self.records, self.threads);
        let (dataset, loaded) = series.load(dataset, progress)?;
        used_until_resting(&cluster.processes())?;
        let mut prober = Prober::new(&living(cluster, victim), probes)?;
        progress(ScenarioProgress::Serving { moved: false });
        let crash = |killed| {
            cluster.kill(victim)?;
            progress(ScenarioProgress::Recovering);
            let served = prober.wait(SERVED_MAX)?;
            progress(ScenarioProgress::Recovered);
            Ok((killed, served))
        };
        let (dataset, (killed, served), LoadMeasurements { timeline, steal }) =
            series.around(crash, self.load, watched, dataset)?;
        cluster.check()?;
        let routes = agreed_routes(&living(cluster, victim))?;
        let (_, verified) = RunSeries { routes: &routes, ..series }.verify(dataset, progress)?;
        let Served { first, all: all_served } = served;
        let gap = gap(timeline.watched_gap(killed, all_served), killed, first);
        let load_rate = loaded.phase(LoadPhase::Before).map_or(0.0, |phase| phase.throughput);
        let verified = verified.recording.findings;
        Ok(CrashResult { load_rate, held, killed, gap, all_served, timeline, steal, verified })
    }

    /// Returns the size of the data in these slots, and one key for each slot with data.
    fn of_slots(&self, slots: &SlotSet) -> (DataVolume, BTreeMap<Slot, String>) {
        let mut records = 0;
        let mut probes = BTreeMap::new();
        let mut key = Vec::new();
        for record in (0..self.records.count()).map(RecordNumber) {
            key.clear();
            self.records.write_key(record, &mut key);
            let slot = slot_of(&key);
            if slots.contains(slot) {
                records += 1;
                let probe = || String::from_utf8_lossy(&key).into_owned();
                probes.entry(slot).or_insert_with(probe);
            }
        }
        (DataVolume { records, bytes: records * self.records.user_bytes() }, probes)
    }
}

/// Returns the period without an answer. With little load the clients' last answer may be long
/// before the kill, although the server still answered then, and the prober may be answered
/// first.
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

/// Spreads the slots, all of which the first server owns, evenly over the servers.
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
        let nothing = DataVolume { records: 0, bytes: 0 };
        let mut target = Control::connect(server.address)?;
        moving
            .run(&mut source, &mut target, nothing, |_| ())
            .with_context(|| format!("giving slots to {}", server.address))?;
    }
    Ok(())
}

/// Returns the slot map, once all these servers report the same one.
fn agreed_routes(servers: &[SocketAddr]) -> Result<SlotMap> {
    let mut controls =
        servers.iter().map(|address| Control::connect(*address)).collect::<Result<Vec<_>>>()?;
    let until = clock::now() + AGREE_MAX;
    loop {
        let maps = controls.iter_mut().map(owners).collect::<Result<Vec<_>>>()?;
        if maps.windows(2).all(|pair| pair[0] == pair[1]) {
            let mut routes = controls[0].routes()?;
            for address in servers {
                routes.node(*address);
            }
            return Ok(routes);
        }
        ensure!(clock::now() < until, "the servers disagree on the owners of slots");
        clock::sleep(AGREE_EVERY);
    }
}

/// Returns the owner of every slot according to a server.
fn owners(control: &mut Control) -> Result<Vec<SocketAddr>> {
    let routes = control.routes()?;
    Ok((0..SLOT_COUNT).map(|slot| routes.address(routes.owner(Slot(slot)))).collect())
}

/// Times at which the slots of a dead server were served again.
#[derive(Clone, Copy)]
struct Served {
    first: Instant,
    all: Instant,
}

/// Prober that asks the remaining servers for the data of a dead one.
struct Prober {
    living: Vec<Control>,
    /// Slots that no server has served yet, with the requested keys.
    missing: BTreeMap<Slot, String>,
}

impl Prober {
    fn new(living: &[SocketAddr], missing: BTreeMap<Slot, String>) -> Result<Prober> {
        let living = living.iter().map(|address| Control::connect(*address)).collect::<Result<_>>();
        Ok(Prober { living: living?, missing })
    }

    /// Probes until every slot was served. Returns the times of the first and the last slot.
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

    /// Probes each missing slot at its owner, according to the slot map of one of the servers.
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
            // Clients with many requests measure the gap best.
            (Some((at(1_001), at(1_300))), at(1_305), (at(1_001), at(1_300))),
            // A client with one request per second has an early last answer and a late next one.
            (Some((at(100), at(2_100))), at(1_305), (at(1_000), at(1_305))),
            (None, at(1_305), (at(1_000), at(1_305))),
        ] {
            assert_eq!(gap(of_clients, killed, first_probe), expected);
        }
    }
}
