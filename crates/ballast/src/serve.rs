//! `ballast serve`: one server, alone or as a part of a cluster.

use crate::cluster_key;
use crate::coordinator_command::{self, Embedded};
use crate::data_folder::{BackupFolder, DataFolder};
use crate::descriptors;
use crate::folder_mark::Use;
use crate::host::{Event, Process};
use crate::metrics;
use crate::saved::Saver;
use crate::settings_arguments::SettingArguments;
use crate::signals;
use anyhow::{Context, bail};
use clap::Args;
use handshake::Credentials;
use runtime::{Class, Clock, Config, DriverKind, Listener, Reactors};
use server::configuration::{Driver, Durability};
use server::control::ControlLink;
use server::engine::{Identity, Keeping, Mode, Node, Plan, Pulse, Replication};
use server::shell::{AddressBook, BUS_PORT, CLIENT_PORT, Mail, Server, ToControl, reactor_for};
use server::{Configuration, Settings};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use store::{Store, StoreConfig};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};
use types::{ClusterId, HashSeed, ServerId};
use wire::control::{ClusterMap, FromCoordinator, Holdings, Join};
use wire::saved::Saved;

/// Start a server.
#[derive(Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) settings: SettingArguments,
    /// Do not ask the operating system for huge pages.
    #[arg(long)]
    no_huge_pages: bool,
}

/// How long a server waits for its coordinator when it starts.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it waits without saying so.
const JOIN_QUIET: Duration = Duration::from_secs(1);
/// Segments that are kept ready in any case: 16 MiB are 16 ms at 1 GB/s.
const SEGMENTS_READY_MIN: usize = 2;
/// The part of the memory that is kept ready where nobody says how much.
const READY_PART: usize = 8;
/// The part of the ready memory below which more is made ready.
const READY_LOW_PART: usize = 4;
const MEMORY_PAUSE_MIN: Duration = Duration::from_millis(1);
const MEMORY_PAUSE_MAX: Duration = Duration::from_millis(64);

pub(crate) fn run(
    arguments: &ServeArguments,
    mut configuration: Configuration,
) -> anyhow::Result<()> {
    let mode = mode_of(&configuration)?;
    refuse_more_memory_than_there_is(configuration.maxmemory.0)?;
    configuration.huge_pages &= !arguments.no_huge_pages;
    let config = reactors(&configuration);
    let credentials = credentials(&configuration)?;
    let descriptors = descriptors::reserve(&mut configuration, config.reactors)?;
    let listeners = listen(&configuration)?;
    let of = |port| listeners.iter().find(|listener| listener.port() == port);
    let ports = [CLIENT_PORT, BUS_PORT].map(|port| of(port).map_or(0, |l| l.address().port()));
    (configuration.port, configuration.cluster_port) = (ports[0], ports[1]);
    let host = match &configuration.announce[..] {
        "" => configuration.bind.addresses[0].0.to_string(),
        announced => announced.to_string(),
    };
    let folder = Folder::open(&configuration, mode)?.limit_open_files(descriptors.replicas);
    let (coordinator, known) = coordinator(&configuration, folder.own(), &credentials)?;
    let (events, received) = channel();
    let who = introduction(&configuration, (&host, ports), &folder, known);
    let (link, identity, number) =
        join(&coordinator, &credentials, (who, folder.remembered()), (&events, &received))?;
    folder.check_cluster(identity.cluster)?;
    let saver = folder.start_saver(identity, number)?;
    let settings = Settings {
        host: host.clone(),
        client_port: ports[0],
        bus_port: ports[1],
        memory_bytes: configuration.maxmemory.0,
        reactors: config.reactors,
        is_cluster: !configuration.join.is_empty(),
        cuts: server::Cuts::default(),
    };
    let seed = HashSeed::new(number);
    let (store, keeping) = store(&configuration, config.reactors, folder, (identity, seed))?;
    let node = Node::keeping(settings, identity, store.clone(), keeping, link.connected());
    node.configure(configuration.clone());
    keep_memory_ready(store, ready_bytes(&configuration))?;
    start_metrics(&configuration, &node)?;
    let reactors = start(&config, listeners, &node, (link.clone(), credentials))?;
    link.watch(Pulse::new(node.clone()));
    signals::watch(events.clone())?;
    node.set_host(Box::new(Process {
        file: arguments.settings.file.clone(),
        mailboxes: reactors.mailboxes().clone(),
        counts: Box::new(reactors.watch()),
        driver: reactors.driver(),
        events,
    }));
    let reactors_word = if config.reactors == 1 { "reactor" } else { "reactors" };
    println!(
        "ballast serve: ready for clients on {host}:{} ({}, {}, {} {reactors_word})",
        ports[0], identity.server, identity.cluster, config.reactors
    );
    let mailboxes = reactors.mailboxes();
    let can_begin_anew = node.replication().is_some();
    let result = forward(&received, can_begin_anew, |message| {
        saver.iter().for_each(|saver| saver.note(&message));
        mailboxes.of(reactor_for(&message, config.reactors)).send(Mail::Control(message));
    });
    reactors.stop();
    match result? {
        Ending::InOrder => Ok(()),
        Ending::Anew => Err(begin_anew()),
    }
}

/// Returns the first message of the server to its coordinator. That one may know it already.
fn introduction(
    configuration: &Configuration,
    (host, ports): (&str, [u16; 2]),
    folder: &Folder,
    known: Option<Number>,
) -> Join {
    Join {
        host: host.to_owned(),
        client_port: ports[0],
        bus_port: ports[1],
        rejoin: folder.own().and_then(|folder| folder.kept.owner()).or(known),
        replicas: if folder.is_of_others() { configuration.replicas } else { 0 },
        rack: configuration.rack.clone(),
        disk: folder.cluster(),
        former: folder.saved().map(|saved| (saved.cluster, saved.server)),
        mark: folder.saved().and_then(|saved| saved.mark),
    }
}

/// The keys that this server proves and accepts. A server alone has one that nobody else has: there
/// is no other process in its cluster.
fn credentials(configuration: &Configuration) -> anyhow::Result<Credentials> {
    let file = match &configuration.cluster_key_file[..] {
        "" => None,
        file => Some(Path::new(file)),
    };
    if configuration.join.is_empty() && file.is_none() {
        return cluster_key::private_credentials();
    }
    let mut hosts: Vec<String> =
        configuration.bind.addresses.iter().map(|(address, _)| address.to_string()).collect();
    if !configuration.join.is_empty() {
        hosts.push(cluster_key::host_of(&configuration.join).to_owned());
    }
    if !configuration.announce.is_empty() {
        hosts.push(configuration.announce.clone());
    }
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    cluster_key::require_key(&hosts, file)?;
    let credentials = cluster_key::credentials(file)?;
    if let Some(file) = file {
        cluster_key::watch(file, &credentials)?;
    }
    Ok(credentials)
}

/// A server's number in its cluster.
type Number = (ClusterId, ServerId);

/// The address of the coordinator: another process, or one that is started in this one. That one
/// may know this server, if it is alone, before its log says so.
fn coordinator(
    configuration: &Configuration,
    folder: Option<&DataFolder>,
    credentials: &Credentials,
) -> anyhow::Result<(String, Option<Number>)> {
    match &configuration.join[..] {
        "" => {
            let file = folder.map(|folder| &*folder.coordinator);
            let has_data = folder.is_some_and(|folder| folder.kept.owner().is_some());
            let Embedded { address, server } =
                coordinator_command::start_embedded(file, has_data, credentials.clone())?;
            Ok((address.to_string(), server))
        }
        address => Ok((address.to_string(), None)),
    }
}

/// The store, and what keeps its log, if it is kept.
fn store(
    configuration: &Configuration,
    reactors: u16,
    folder: Folder,
    (identity, seed): (Identity, HashSeed),
) -> anyhow::Result<(Arc<Store>, Keeping)> {
    let store = Store::new(StoreConfig {
        memory_bytes: configuration.maxmemory.0,
        reactors,
        seed,
        huge_pages: configuration.huge_pages,
        durable: !matches!(folder, Folder::None),
        segment_bytes: folder.own().and_then(|folder| folder.kept.segment_bytes()),
    })?;
    let keeping = match folder {
        Folder::None => Keeping::Nothing,
        Folder::Own(DataFolder { kept, mode, mut marks, .. }) => {
            let whose = (identity.cluster, identity.server);
            let keeper = kept.keep(whose, store.log().segment_bytes(), mode)?;
            marks.complete(Use::Alone)?;
            Keeping::Alone(Arc::new(keeper))
        }
        Folder::Others(folder, mode) => {
            let interval = configuration.scrub_interval;
            let scrub = (!interval.is_zero()).then_some(interval);
            let plan = Plan { mode, replicas: configuration.replicas, scrub };
            let replication = Replication::new(plan, identity.server, reactors, folder.replicas);
            Keeping::Replicated(Arc::new(replication))
        }
    };
    Ok((store, keeping))
}

/// What a server's folder is for.
enum Folder {
    /// It keeps nothing.
    None,
    /// Its own log.
    Own(DataFolder),
    /// The logs of others, who keep its own.
    Others(BackupFolder, Mode),
}

impl Folder {
    fn open(configuration: &Configuration, mode: Option<Mode>) -> anyhow::Result<Folder> {
        let path = Path::new(&configuration.data_dir);
        Ok(match mode {
            Some(mode) if configuration.join.is_empty() => {
                Folder::Own(DataFolder::open(path, mode)?)
            }
            Some(mode) => Folder::Others(BackupFolder::open(path)?, mode),
            None => Folder::None,
        })
    }

    /// Keeps descriptors for others than replicas.
    fn limit_open_files(self, max: usize) -> Folder {
        match &self {
            Folder::Others(folder, mode) => {
                folder.replicas.limit_open_files(max, *mode != Mode::Memory);
            }
            // A server has one open replica of its own log per log head.
            Folder::Own(_) | Folder::None => {}
        }
        self
    }

    fn own(&self) -> Option<&DataFolder> {
        match self {
            Folder::Own(folder) => Some(folder),
            Folder::None | Folder::Others(..) => None,
        }
    }

    /// The cluster whose data is in it.
    fn cluster(&self) -> Option<ClusterId> {
        match self {
            Folder::None => None,
            Folder::Own(folder) => folder.kept.owner().map(|(cluster, _)| cluster),
            Folder::Others(folder, _) => folder.replicas.clusters().first().copied(),
        }
    }

    /// The cluster as the last process here has saved it.
    fn saved(&self) -> Option<&Saved> {
        match self {
            Folder::None | Folder::Own(_) => None,
            Folder::Others(folder, _) => folder.saved.as_ref().map(|(_, saved)| saved),
        }
    }

    /// The answer for a coordinator that has lost its file, as far as the disk tells.
    fn remembered(&self) -> Option<(ClusterMap, Holdings)> {
        let Folder::Others(folder, _) = self else { return None };
        let saved = self.saved()?;
        let holdings = Holdings {
            seed: saved.seed,
            chain: None,
            tablets: Vec::new(),
            migrations: Vec::new(),
            logs: folder.replicas.chains(),
        };
        Some((saved.map.clone(), holdings))
    }

    /// Begins to save what this process learns of the cluster.
    fn start_saver(&self, who: Identity, seed: u64) -> anyhow::Result<Option<Saver>> {
        let Folder::Others(folder, _) = self else { return Ok(None) };
        let Identity { cluster, server } = who;
        let (servers, tablets, moving) = (Vec::new(), Vec::new(), Vec::new());
        let none = ClusterMap { version: 0, cluster, servers, tablets, moving };
        let sequence = folder.saved.as_ref().map_or(0, |(sequence, _)| *sequence);
        // Until the first map comes, nothing newer is known than what the last process knew.
        let known = self.saved().filter(|saved| saved.cluster == cluster);
        let (mark, map) = known.map_or((None, none), |known| (known.mark, known.map.clone()));
        let saved = Saved { cluster, server, seed, mark, map };
        Saver::start(&folder.path, sequence, saved).map(Some)
    }

    /// Refuses a disk of another cluster, whatever the coordinator says. Nothing was changed on it.
    fn check_cluster(&self, ours: ClusterId) -> anyhow::Result<()> {
        match self.cluster() {
            Some(other) if other != ours => bail!(
                "the disk of this server belongs to cluster {other}, and its coordinator is that of \
                 cluster {ours}: join the coordinator of {other}, or choose an empty --data-dir"
            ),
            Some(_) | None => Ok(()),
        }
    }

    fn is_of_others(&self) -> bool {
        matches!(self, Folder::Others(..))
    }
}

fn ready_bytes(configuration: &Configuration) -> usize {
    match configuration.ready_memory.0 {
        0 => configuration.maxmemory.0 / READY_PART,
        bytes => bytes,
    }
}

fn start_metrics(configuration: &Configuration, node: &Arc<Node>) -> anyhow::Result<()> {
    if configuration.metrics_port != 0 {
        let address = configuration.bind.addresses[0].0;
        let address = SocketAddr::new(address, configuration.metrics_port);
        let (node, clock) = (node.clone(), Clock::new());
        let address = metrics::start(address, move || node.metrics(clock.now()))?;
        tracing::info!(%address, "metrics");
    }
    Ok(())
}

/// How the log is kept, if it is.
fn mode_of(configuration: &Configuration) -> anyhow::Result<Option<Mode>> {
    if !wire::crc32c_self_check() {
        bail!("this processor computes wrong checksums: data would be lost. Use another machine");
    }
    let is_alone = configuration.join.is_empty();
    Ok(match configuration.durability {
        Durability::None => None,
        Durability::Auto => is_alone.then_some(Mode::Interval),
        Durability::Memory => Some(Mode::Memory),
        Durability::Interval => Some(Mode::Interval),
        Durability::Disk => Some(Mode::Disk),
    })
}

/// Memory is only mapped at start: that there is not enough would be seen too late.
fn refuse_more_memory_than_there_is(memory: usize) -> anyhow::Result<()> {
    let system = rustix::system::sysinfo();
    let total = system.totalram as u64 * u64::from(system.mem_unit);
    if memory as u64 > total {
        bail!(
            "--memory asks for {} MiB, but this machine has {}: give less",
            memory >> 20,
            total >> 20
        );
    }
    Ok(())
}

/// The port for other servers: 0 for one that is free.
fn bus_port(configuration: &Configuration) -> anyhow::Result<u16> {
    match (configuration.cluster_port, configuration.port) {
        (0, 0) => Ok(0),
        (0, port) => port.checked_add(10_000).with_context(|| {
            format!("there is no port {port} + 10000 for the bus: choose one with --cluster-port")
        }),
        (port, _) => Ok(port),
    }
}

/// Listens on all addresses. Where the system chooses a port, it chooses for the first address.
fn listen(configuration: &Configuration) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    let numbers = [
        (CLIENT_PORT, Class::Client, configuration.port),
        (BUS_PORT, Class::Bus, bus_port(configuration)?),
    ];
    for (port, class, mut number) in numbers {
        for (address, may_fail) in &configuration.bind.addresses {
            let address = SocketAddr::new(*address, number);
            let listener = match Listener::bind(address, port, class) {
                Ok(listener) => listener,
                Err(error) if *may_fail => {
                    tracing::info!(%error, "an address is left out");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if class == Class::Client {
                listener.set_keepalive(configuration.tcp_keepalive)?;
            }
            number = listener.address().port();
            listeners.push(listener);
        }
    }
    match listeners.is_empty() {
        true => bail!("this machine has none of the addresses to bind to"),
        false => Ok(listeners),
    }
}

fn reactors(configuration: &Configuration) -> Config {
    let count = (configuration.reactors > 0).then_some(configuration.reactors);
    let mut config = Config::for_this_machine(count);
    config.poll = configuration.poll;
    config.driver = match configuration.driver {
        Driver::Auto => None,
        Driver::Uring => Some(DriverKind::Uring),
        Driver::Epoll => Some(DriverKind::Epoll),
    };
    config.cores_shared |= configuration.shared_cores;
    config.pin &= !configuration.shared_cores;
    config
}

/// The link, who the server is, and the number from which the cluster's seed is made.
type Joined = (Arc<ControlLink>, Identity, u64);

/// Asks the coordinator for a number and the cluster's seed.
fn join(
    coordinator: &str,
    credentials: &Credentials,
    (join, remembered): (Join, Option<(ClusterMap, Holdings)>),
    (events, received): (&Sender<Event>, &Receiver<Event>),
) -> anyhow::Result<Joined> {
    let events = events.clone();
    // A server that stops does not mind what the coordinator still says.
    let (address, proof) = (coordinator.to_owned(), credentials.clone());
    let link = ControlLink::start(address, proof, join, remembered, move |message| {
        let _ = events.send(Event::Said(message));
    })?;
    let trouble = || link.trouble().map_or(String::new(), |trouble| format!(" ({trouble})"));
    match first_answer(coordinator, received, &trouble) {
        Some(Event::Said(FromCoordinator::Welcome { server, cluster, seed })) => {
            Ok((Arc::new(link), Identity { cluster, server }, seed))
        }
        Some(Event::Said(FromCoordinator::Rejected { reason, .. })) => {
            bail!("the coordinator refuses: {reason}")
        }
        Some(Event::Said(other)) => {
            bail!("the coordinator at {coordinator} speaks out of turn: {other:?}")
        }
        Some(Event::Failed(reason) | Event::Fenced(reason)) => bail!("{reason}"),
        Some(Event::ShutDown) | None => {
            bail!(
                "no coordinator answers at {coordinator}: start one with 'ballast coordinator'{}",
                trouble()
            )
        }
    }
}

/// Waits for the first word of the coordinator, if it says anything in time. It may say that others
/// have to come before; then there is no limit, as long as it says so.
fn first_answer(
    coordinator: &str,
    received: &Receiver<Event>,
    trouble: &impl Fn() -> String,
) -> Option<Event> {
    let mut told: Option<String> = None;
    let mut limit = JOIN_QUIET;
    loop {
        match received.recv_timeout(limit) {
            Ok(Event::Said(FromCoordinator::Waiting { reason })) => {
                if told.as_ref() != Some(&reason) {
                    eprintln!("ballast serve: {reason}");
                }
                told = Some(reason);
            }
            Ok(event) => return Some(event),
            Err(RecvTimeoutError::Timeout) if limit == JOIN_QUIET => {
                if told.is_none() {
                    eprintln!(
                        "ballast serve: waiting for a coordinator at {coordinator}{}",
                        trouble()
                    );
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
        limit = JOIN_TIMEOUT;
    }
}

fn start(
    config: &Config,
    listeners: Vec<Listener>,
    node: &Arc<Node>,
    (link, credentials): (Arc<ControlLink>, Credentials),
) -> anyhow::Result<Reactors<Mail>> {
    let control: ToControl = Arc::new(move |message| link.send(message));
    let shared = (node.clone(), AddressBook::of_system());
    let reactors = Reactors::start(config, listeners, move |reactor, mailboxes| {
        let mailbox = mailboxes.of(reactor).clone();
        Server::new(shared.clone(), reactor, control.clone(), mailbox, credentials.clone())
    })
    .with_context(|| match config.driver {
        Some(DriverKind::Uring) => "io_uring cannot be used here: leave out --driver uring",
        Some(DriverKind::Epoll) | None => "the reactors cannot start",
    })?;
    if let Some(error) = reactors.why_not_uring() {
        tracing::info!(%error, "io_uring cannot be used here: epoll serves the sockets");
    }
    let mailboxes = reactors.mailboxes().clone();
    node.set_wake_all(move || mailboxes.iter().for_each(|mailbox| mailbox.wake()));
    Ok(reactors)
}

/// Touches memory before reactors need it: the first touch of a segment takes a millisecond, and
/// many where the machine is a virtual one that has to ask its host. What is needed next comes
/// first: each look begins with the segments that will be opened next. What was taken is made up for
/// when three quarters are gone: done segment by segment, that would take a third of two processors
/// from the very move that takes them.
#[expect(clippy::disallowed_methods, reason = "a helper that looks at a level now and then")]
fn keep_memory_ready(store: Arc<Store>, bytes: usize) -> anyhow::Result<()> {
    let wanted = bytes.div_ceil(store.log().segment_bytes()).max(SEGMENTS_READY_MIN);
    runtime::spawn_without_descriptors("memory", move |left| {
        if let Err(error) = left {
            // If this process is killed, others see its connections end when this thread has ended.
            tracing::debug!(%error, "the memory thread keeps the process's descriptors open");
        }
        yield_to_everybody();
        let low = (wanted / READY_LOW_PART).max(SEGMENTS_READY_MIN);
        let mut level = wanted;
        let mut pause = MEMORY_PAUSE_MIN;
        loop {
            if store.log().prepare_segments(level, 1) > 0 {
                (level, pause) = (wanted, MEMORY_PAUSE_MIN);
                continue;
            }
            level = low;
            std::thread::sleep(pause);
            pause = (pause * 2).min(MEMORY_PAUSE_MAX);
        }
    })?;
    Ok(())
}

/// Has this thread run when nobody else wants the processor; whoever wakes up takes it away. (The
/// worst niceness is not enough: such a thread still finishes its slice of some milliseconds.) It
/// must hold nothing that a reactor waits for: on a busy machine it may not run for seconds.
fn yield_to_everybody() {
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let thread = thread_native_id();
    if let Err(error) = set_thread_priority_and_policy(thread, ThreadPriority::Min, idle) {
        tracing::debug!(?error, "the memory thread keeps its usual priority");
    }
}

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Somebody wants it to.
    InOrder,
    /// Others serve what it held: another process takes its place, as a server that holds nothing.
    Anew,
}

/// Replaces this process by a new one with the same arguments. Only returns if that fails.
fn begin_anew() -> anyhow::Error {
    let itself = std::env::current_exe();
    let replaced = itself
        .map(|itself| std::process::Command::new(itself).args(std::env::args_os().skip(1)).exec());
    let error = match replaced {
        Ok(error) | Err(error) => error,
    };
    anyhow::Error::new(error).context("the server cannot begin anew: start it again")
}

/// Passes on what the coordinator says, until the process is to end.
///
/// # Errors
/// If the coordinator says that another server serves what this one holds: it must not answer
/// anybody any more.
fn forward(
    received: &Receiver<Event>,
    can_begin_anew: bool,
    pass_on: impl Fn(FromCoordinator),
) -> anyhow::Result<Ending> {
    loop {
        let message = match received.recv() {
            Ok(Event::Said(message)) => message,
            Ok(Event::Failed(reason)) => bail!("{reason}"),
            Ok(Event::Fenced(_)) => return Ok(Ending::Anew),
            Ok(Event::ShutDown) | Err(_) => return Ok(Ending::InOrder),
        };
        if let FromCoordinator::Rejected { reason, is_fenced: true } = message {
            if can_begin_anew {
                tracing::error!(reason, "the server begins anew");
                return Ok(Ending::Anew);
            }
            bail!("the coordinator refuses this server: {reason}");
        }
        pass_on(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::mpsc::channel;

    /// What is passed on of these messages, and whether the server ends of itself.
    fn passed_on(messages: Vec<FromCoordinator>) -> (usize, bool) {
        let (events, received) = channel();
        messages.into_iter().for_each(|message| events.send(Event::Said(message)).unwrap());
        events.send(Event::ShutDown).unwrap();
        let passed = RefCell::new(0);
        let result = forward(&received, false, |_| *passed.borrow_mut() += 1);
        (passed.into_inner(), result.is_err())
    }

    #[test]
    fn a_server_that_was_given_up_stops_and_one_that_is_only_refused_goes_on() {
        let refused = |is_fenced| FromCoordinator::Rejected { reason: "because".into(), is_fenced };
        assert_eq!(passed_on(vec![refused(false), refused(false)]), (2, false));
        assert_eq!(passed_on(vec![refused(false), refused(true), refused(false)]), (1, true));
    }
}
