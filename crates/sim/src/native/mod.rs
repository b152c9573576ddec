//! Native clients: the real core of the client library (`crates/client-core`) on simulated
//! connections, beside the plain clients of `clients.rs`.
//!
//! The core decides about routes, redirections, repetitions and deadlines. This module is its
//! driver: it moves bytes between the core and the servers, tells it the time, and loses its
//! connections. Jobs and outcomes are the task of `load/native.rs`.
//!
//! A run has native clients or not by a generator of its own, so that all other runs stay as they
//! are.

mod connections;

use crate::cluster::SimulatedCluster;
use crate::failure::Rule;
use crate::history::RegisterAction;
use crate::servers::server_address;
use crate::settings::{Knob, RunSettings};
use crate::timeline::{PlannedEvent, RunPhase, RunTimeline};
use crate::workload::{FLUSHED_TABLE, TABLE};
use client_core::{
    ChannelId, ClientCore, ClientEffect, ClientEvent, ClientOptions, PreparedRequest, RequestId,
    RequestOutcome,
};
use connections::NativeConnection;
pub(crate) use connections::native_connection;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, TableId};

/// One run in this many has native clients.
const NATIVE_ONE_IN: u32 = 4;

/// Mixed into the seed for the separate random numbers of native clients.
const NATIVE: u64 = 0x6e61_7469_7665_2121;

/// Mixed into the seed for the choice of clients that read at both sides of a migration.
const TWO_SIDED: u64 = 0x7477_6f73_6964_6564;

/// One request in this many is cancelled by its caller.
const CANCELLED_ONE_IN: u32 = 150;

/// Time limits of requests, in milliseconds. The shortest one ends before the first pause of a
/// repeated request, others while a server is paused or a range moves.
const DEADLINES_MILLIS: [u64; 5] = [8, 30, 200, 2_000, 10_000];

/// Time limit of requests that must be answered, because at most one fault lasts.
const LONG_DEADLINE: Duration = Duration::from_secs(10);

/// Time limits of attempts to connect, and of silent connections, in milliseconds.
const CONNECT_MILLIS: [u64; 3] = [20, 200, 2_000];
const SILENCE_MILLIS: [u64; 3] = [50, 1_000, 10_000];

/// Times between two broken connections in microseconds, if connections break.
const BREAKS_MICROS: [std::ops::Range<u64>; 3] = [1_000..10_000, 2_000..20_000, 20_000..200_000];

/// Returns whether a run has native clients.
pub(crate) fn are_used(settings: &RunSettings) -> bool {
    let mut rng = Rng::with_seed(settings.seed ^ NATIVE);
    let is_drawn = rng.u32(..NATIVE_ONE_IN) == 0;
    settings.has(Knob::Native) && (is_drawn || settings.has_native)
}

/// Event of the native clients.
pub(crate) enum NativeEvent {
    /// A client looks for new jobs.
    Think(usize),
    /// The timer of a client.
    Tick(usize),
    /// The caller of a request gives it up.
    Cancel(u64),
    /// A client sends the refused operation of this job again.
    Retry(u64),
    /// An attempt to connect reaches the server's address.
    Knock(u64),
    /// A client learns that it is connected.
    Connected(u64),
    /// The task that writes to a connection runs.
    Flush(u64),
    /// Bytes arrive at the server.
    Up(u64, Vec<u8>),
    /// Bytes arrive at the client.
    Down(u64, Vec<u8>),
    /// The server learns that the client's end is closed.
    HungUp(u64),
    /// The client learns that the connection has ended, or that nobody listens.
    Ended(u64),
    /// Some connection breaks.
    Break,
}

/// Operation that a native client has begun.
#[derive(Clone, Debug)]
pub(crate) struct NativeJob {
    pub(crate) client: usize,
    pub(crate) register: usize,
    pub(crate) action: RegisterAction,
    /// Beginning of the first attempt.
    pub(crate) since: Instant,
    /// Beginning of this attempt, and its moment in the history.
    pub(crate) attempt: Instant,
    pub(crate) begun: u64,
    pub(crate) deadline: Instant,
    /// The request, while it is with the core.
    pub(crate) request: Option<RequestId>,
}

/// Value that a client has read, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBefore {
    pub(crate) register: usize,
    pub(crate) value: Option<u64>,
}

/// Outcome of a job.
pub(crate) struct NativeFinish {
    pub(crate) job: u64,
    pub(crate) outcome: RequestOutcome,
    /// Place of the server whose reply ended the job, if one did.
    pub(crate) place: Option<usize>,
}

/// One client: the core, and its connections.
struct NativeClient {
    core: ClientCore<u64>,
    table: TableId,
    /// Number of concurrent jobs.
    depth: usize,
    time_limit: Duration,
    /// Numbers of the connections that the core has opened and not closed.
    connections: Vec<(ChannelId, u64)>,
    /// Time of the next planned tick.
    armed: Option<Instant>,
    is_thinking: bool,
    /// Version of the newest map.
    map_version: u64,
    /// A value that the client replaces next, on condition that it is still there.
    read_before: Option<ReadBefore>,
    /// Registers to read at the end.
    closing: Vec<usize>,
}

/// All native clients of a run.
pub(crate) struct NativeClients {
    pub(crate) rng: Rng,
    clients: Vec<NativeClient>,
    connections: BTreeMap<u64, NativeConnection>,
    jobs: BTreeMap<u64, NativeJob>,
    last_connection: u64,
    last_job: u64,
    /// Number of pieces in transit to servers.
    pieces_up: usize,
    /// Microseconds between two broken connections, if connections break.
    breaks: Option<std::ops::Range<u64>>,
}

/// Setup.
impl NativeClients {
    /// Draws the native clients of a run, if it has any.
    pub(crate) fn draw(settings: &RunSettings, servers: usize) -> Option<NativeClients> {
        if !are_used(settings) {
            return None;
        }
        let mut rng = Rng::with_seed(!settings.seed ^ NATIVE);
        let count = rng.usize(1..=3).min(settings.clients.unwrap_or(3).max(1));
        let deepest = if settings.has(Knob::Pipelines) { [1, 4, 16][rng.usize(..3)] } else { 1 };
        let mut two_sided = Rng::with_seed(settings.seed ^ TWO_SIDED);
        let clients = (0..count).map(|_| {
            let is_two_sided = two_sided.u32(..4) > 0;
            draw_client(&mut rng, servers, deepest, is_two_sided)
        });
        let clients = clients.collect();
        let breaks = BREAKS_MICROS.get(rng.usize(..=BREAKS_MICROS.len())).cloned();
        Some(NativeClients {
            rng,
            clients,
            connections: BTreeMap::new(),
            jobs: BTreeMap::new(),
            last_connection: 0,
            last_job: 0,
            pieces_up: 0,
            breaks,
        })
    }

    /// Plans the first events.
    pub(crate) fn begin(&mut self, timeline: &mut RunTimeline) {
        for client in 0..self.clients.len() {
            self.clients[client].is_thinking = true;
            timeline.plan_in(Duration::from_millis(5), event(NativeEvent::Think(client)));
        }
        self.plan_break(timeline, 1);
    }

    fn plan_break(&mut self, timeline: &mut RunTimeline, slowness: u32) {
        if let Some(range) = self.breaks.clone() {
            let pause = Duration::from_micros(self.rng.u64(range)) * slowness;
            timeline.plan_in(pause, event(NativeEvent::Break));
        }
    }
}

/// Draws a client. It knows the addresses of all servers, in any order.
fn draw_client(
    rng: &mut Rng,
    servers: usize,
    deepest: usize,
    two_sided_reads: bool,
) -> NativeClient {
    let mut seeds: Vec<String> = (0..servers).map(server_address).collect();
    rng.shuffle(&mut seeds);
    // One client in four uses the table that is flushed now and then.
    let is_flushed = rng.u32(..4) == 0;
    let mut millis = |choices: &[u64]| Duration::from_millis(choices[rng.usize(..choices.len())]);
    let time_limit = millis(&DEADLINES_MILLIS);
    let options = ClientOptions {
        database: u8::from(is_flushed),
        deadline: time_limit,
        connect_timeout: millis(&CONNECT_MILLIS),
        silence_max: millis(&SILENCE_MILLIS),
        connections_per_server: rng.u8(1..=3),
        two_sided_reads,
        ..ClientOptions::default()
    };
    NativeClient {
        core: ClientCore::new(&seeds, options),
        table: if is_flushed { FLUSHED_TABLE } else { TABLE },
        depth: rng.usize(1..=deepest),
        time_limit,
        connections: Vec::new(),
        armed: None,
        is_thinking: false,
        map_version: 0,
        read_before: None,
        closing: Vec::new(),
    }
}

/// Jobs.
impl NativeClients {
    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Returns the table that a client uses.
    pub(crate) fn table(&self, client: usize) -> TableId {
        self.clients[client].table
    }

    /// Returns the unfinished jobs.
    pub(crate) fn open(&self) -> impl Iterator<Item = &NativeJob> {
        self.jobs.values()
    }

    /// Returns the number of jobs that a client may begin now.
    pub(crate) fn free_slots(&self, client: usize) -> usize {
        let open = self.jobs.values().filter(|job| job.client == client).count();
        self.clients[client].depth.saturating_sub(open)
    }

    /// Returns whether a client has no unfinished job.
    pub(crate) fn is_free(&self, client: usize) -> bool {
        self.jobs.values().all(|job| job.client != client)
    }

    /// Returns the number of reads whose value came from the source of a migration.
    pub(crate) fn source_values(&self) -> u64 {
        self.clients.iter().map(|client| client.core.source_values()).sum()
    }

    /// Returns whether no job is unfinished, and no request in transit may still take effect.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.pieces_up == 0
    }

    /// Returns whether a client has nothing left to read at the end.
    pub(crate) fn has_read(&self) -> bool {
        self.clients.iter().all(|client| client.closing.is_empty())
    }

    /// Prepares the final reads of a client.
    pub(crate) fn set_closing(&mut self, client: usize, registers: Vec<usize>) {
        self.clients[client].closing = registers;
    }

    pub(crate) fn next_closing(&mut self, client: usize) -> Option<usize> {
        self.clients[client].closing.pop()
    }

    pub(crate) fn set_read_before(&mut self, client: usize, read: ReadBefore) {
        self.clients[client].read_before = Some(read);
    }

    pub(crate) fn take_read_before(&mut self, client: usize) -> Option<ReadBefore> {
        self.clients[client].read_before.take()
    }

    pub(crate) fn has_thought(&mut self, client: usize) {
        self.clients[client].is_thinking = false;
    }

    /// Plans that a client looks for jobs, unless that is planned already.
    pub(crate) fn think_in(&mut self, client: usize, pause: Duration, timeline: &mut RunTimeline) {
        if !std::mem::replace(&mut self.clients[client].is_thinking, true) {
            timeline.plan_in(pause, event(NativeEvent::Think(client)));
        }
    }

    /// Returns the time limit of a request that a client begins in this phase.
    pub(crate) fn time_limit(&self, client: usize, phase: RunPhase) -> Duration {
        match phase {
            RunPhase::Working => self.clients[client].time_limit,
            RunPhase::Healing | RunPhase::Enduring | RunPhase::Resting | RunPhase::Reading(_) => {
                LONG_DEADLINE
            }
        }
    }

    /// Adds a job, and returns its number.
    pub(crate) fn add_job(&mut self, job: NativeJob) -> u64 {
        self.last_job += 1;
        self.jobs.insert(self.last_job, job);
        self.last_job
    }

    pub(crate) fn job_mut(&mut self, job: u64) -> Option<&mut NativeJob> {
        self.jobs.get_mut(&job)
    }

    pub(crate) fn remove_job(&mut self, job: u64) -> Option<NativeJob> {
        self.jobs.remove(&job)
    }

    /// Hands the request of a job to the core.
    pub(crate) fn submit(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
        request: PreparedRequest,
    ) -> Vec<NativeFinish> {
        let Some(job) = self.jobs.get(&number) else { return Vec::new() };
        let (client, deadline, now) = (job.client, job.deadline, cluster.timeline.now);
        let mut effects = Vec::new();
        let core = &mut self.clients[client].core;
        let id = core.submit(now, request, deadline, number, &mut effects);
        if let Some(job) = self.jobs.get_mut(&number) {
            job.request = Some(id);
        }
        // The rule about deadlines is checked whatever the core plans.
        cluster.timeline.plan_at(deadline, event(NativeEvent::Tick(client)));
        if self.rng.u32(..CANCELLED_ONE_IN) == 0 && cluster.timeline.is_working() {
            let pause = Duration::from_micros(self.rng.u64(1..20_000));
            cluster.timeline.plan_in(pause, event(NativeEvent::Cancel(number)));
        }
        self.apply(cluster, client, effects, None)
    }

    /// Lets the caller of a request give it up. Returns the job if it was with the core.
    pub(crate) fn cancel(
        &mut self,
        cluster: &mut SimulatedCluster,
        number: u64,
    ) -> Option<NativeJob> {
        let id = self.jobs.get(&number)?.request?;
        let job = self.jobs.remove(&number)?;
        let cancel = ClientEvent::Cancel(id);
        let finished = self.step(cluster, job.client, cancel, None);
        assert!(finished.is_empty(), "a request that is cancelled has no outcome");
        Some(job)
    }
}

/// Events.
impl NativeClients {
    /// Handles an event that concerns no job directly. Returns the jobs that have ended.
    pub(crate) fn handle(
        &mut self,
        cluster: &mut SimulatedCluster,
        event: NativeEvent,
    ) -> Vec<NativeFinish> {
        match event {
            NativeEvent::Tick(client) => return self.tick(cluster, client),
            NativeEvent::Down(number, bytes) => return self.receive(cluster, number, bytes),
            NativeEvent::Connected(number) => return self.connected(cluster, number),
            NativeEvent::Ended(number) => return self.ended(cluster, number),
            NativeEvent::Knock(number) => self.knock(cluster, number),
            NativeEvent::Flush(number) => self.flush(cluster, number),
            NativeEvent::Up(number, bytes) => self.reach_server(cluster, number, bytes),
            NativeEvent::HungUp(number) => self.hang_up(cluster, number),
            NativeEvent::Break => self.break_one(cluster),
            NativeEvent::Think(_) | NativeEvent::Cancel(_) | NativeEvent::Retry(_) => {
                unreachable!("these events concern jobs")
            }
        }
        Vec::new()
    }

    /// Lets the core act on its time limits. Afterwards no request is overdue.
    fn tick(&mut self, cluster: &mut SimulatedCluster, client: usize) -> Vec<NativeFinish> {
        let now = cluster.timeline.now;
        let this = &mut self.clients[client];
        this.armed = this.armed.filter(|armed| now < *armed);
        let finished = match this.core.next_deadline().is_some_and(|at| at <= now) {
            true => self.step(cluster, client, ClientEvent::Tick, None),
            false => {
                self.arm(client, &mut cluster.timeline);
                Vec::new()
            }
        };
        let has_ended = |number: u64| finished.iter().any(|finish| finish.job == number);
        let mut jobs = self.jobs.iter();
        let late = jobs.find(|(number, job)| {
            let is_with_core = job.client == client && job.request.is_some();
            is_with_core && job.deadline <= now && !has_ended(**number)
        });
        if let Some((number, job)) = late {
            let text = format!("job {number} has no outcome at its deadline: {job:?}");
            cluster.timeline.fail(Rule::OneOutcome.broken(text));
        }
        finished
    }

    fn step(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        event: ClientEvent<'_, '_>,
        place: Option<usize>,
    ) -> Vec<NativeFinish> {
        let mut effects = Vec::new();
        self.clients[client].core.handle(cluster.timeline.now, event, &mut effects);
        self.apply(cluster, client, effects, place)
    }

    /// Carries out the effects of the core. Returns the jobs that have ended.
    fn apply(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        effects: Vec<ClientEffect<u64>>,
        place: Option<usize>,
    ) -> Vec<NativeFinish> {
        let mut finished = Vec::new();
        for effect in effects {
            match effect {
                ClientEffect::Connect { channel, address } => {
                    self.connect(cluster, client, channel, &address);
                }
                ClientEffect::Close { channel } => self.close(cluster, client, channel),
                ClientEffect::Write { channel } => {
                    // The task that writes runs a little later.
                    let pause = Duration::from_micros(self.rng.u64(..30));
                    if let Some(number) = self.number_of(client, channel) {
                        cluster.timeline.plan_in(pause, event(NativeEvent::Flush(number)));
                    }
                }
                ClientEffect::Finish { token, outcome } => {
                    finished.push(NativeFinish { job: token, outcome, place });
                }
            }
        }
        self.check_map(client, &mut cluster.timeline);
        self.arm(client, &mut cluster.timeline);
        finished
    }

    /// Plans the tick that the core wants next.
    fn arm(&mut self, client: usize, timeline: &mut RunTimeline) {
        let this = &mut self.clients[client];
        let Some(next) = this.core.next_deadline() else { return };
        let next = next.max(timeline.now);
        if this.armed.is_none_or(|armed| next < armed) {
            this.armed = Some(next);
            timeline.plan_at(next, event(NativeEvent::Tick(client)));
        }
    }

    /// Checks that the client's map has not become older.
    fn check_map(&mut self, client: usize, timeline: &mut RunTimeline) {
        let this = &mut self.clients[client];
        let version = this.core.map_version().unwrap_or(0);
        let before = std::mem::replace(&mut this.map_version, version);
        if version < before {
            let text = format!("native client {client} goes from map {before} to {version}");
            timeline.fail(Rule::ClientMapsRise.broken(text));
        }
    }
}

fn event(event: NativeEvent) -> PlannedEvent {
    PlannedEvent::Native(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_runs_have_native_clients_and_none_if_they_are_left_out() {
        let has = |seed| are_used(&RunSettings::new(seed));
        assert!((1..20).any(has) && !(1..20).all(has));
        let without =
            |seed| RunSettings { without: [Knob::Native].into(), ..RunSettings::new(seed) };
        assert!((1..100).all(|seed| !are_used(&without(seed))));
        let forced = |seed| RunSettings { has_native: true, ..RunSettings::new(seed) };
        assert!((1..100).all(|seed| are_used(&forced(seed))));
    }
}
