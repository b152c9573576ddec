//! `ballast serve`: one server, alone or as a part of a cluster.

use crate::coordinator_command;
use crate::sizes::parse_bytes;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use runtime::{Class, Config, DriverKind, Listener, Poll, Reactors};
use server::Settings;
use server::control::ControlLink;
use server::engine::{Identity, Node};
use server::shell::{BUS_PORT, CLIENT_PORT, Mail, Server, ToControl, reactor_for};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use store::{Store, StoreConfig};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};
use types::HashSeed;
use wire::control::{FromCoordinator, Join};

/// Start a server.
#[derive(Args)]
pub(crate) struct ServeArguments {
    /// Port for clients (the Redis protocol).
    #[arg(long, default_value_t = 6379)]
    port: u16,
    /// Port for other servers. Default: the client port + 10000.
    #[arg(long)]
    bus_port: Option<u16>,
    /// Address to listen on. There is no password yet: keep it on this machine or a trusted network.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Host that clients and other servers reach this server under. Default: the bind address.
    #[arg(long)]
    announce: Option<String>,
    /// Memory for records and index together, as in 4gb.
    #[arg(long, default_value = "1gb", value_parser = parse_bytes)]
    memory: usize,
    /// Free memory to take from the operating system ahead of its use, so that neither a burst of
    /// writes nor arriving data waits for it. Default: an eighth of the memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    ready_memory: Option<usize>,
    /// Reactors (threads that serve). Default: one for each processor that it may use.
    #[arg(long)]
    reactors: Option<u16>,
    /// How an idle reactor waits: `adaptive` spins while that pays, `busy` always, `sleep` never.
    #[arg(long, value_enum, default_value_t = PollArgument::Adaptive)]
    poll: PollArgument,
    /// How sockets are served: `uring` (fewer calls of the kernel), `epoll` (works everywhere), or
    /// `auto`: io_uring where the system permits it.
    #[arg(long, value_enum, default_value_t = DriverArgument::Auto)]
    driver: DriverArgument,
    /// Other processes need these processors too: do not spin, and offer them after each piece of
    /// background work.
    #[arg(long)]
    shared_cores: bool,
    /// Join the cluster of this coordinator, as HOST:PORT. Without it the server is a store of its
    /// own.
    #[arg(long, value_name = "HOST:PORT")]
    join: Option<String>,
    /// Copies of each write on other servers' disks. Only 0 so far.
    #[arg(long, default_value_t = 0)]
    replicas: u16,
    /// When a write counts as safe. Only `none` so far: data lives in memory alone.
    #[arg(long, default_value = "none")]
    durability: String,
    /// Do not ask the operating system for huge pages.
    #[arg(long)]
    no_huge_pages: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PollArgument {
    Adaptive,
    Busy,
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverArgument {
    Auto,
    Uring,
    Epoll,
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

pub(crate) fn run(arguments: ServeArguments) -> anyhow::Result<()> {
    refuse_what_is_not_there(&arguments)?;
    refuse_more_memory_than_there_is(arguments.memory)?;
    let bus_port = bus_port(&arguments)?;
    let listeners = vec![
        listen(arguments.bind, arguments.port, CLIENT_PORT, Class::Client)?,
        listen(arguments.bind, bus_port, BUS_PORT, Class::Bus)?,
    ];
    let ports = (listeners[0].address().port(), listeners[1].address().port());
    let host = arguments.announce.clone().unwrap_or_else(|| arguments.bind.to_string());
    let coordinator = match &arguments.join {
        Some(address) => address.clone(),
        None => coordinator_command::start_embedded()?.to_string(),
    };
    let (link, messages, identity, seed) = join(&coordinator, host.clone(), ports)?;
    let config = reactors(&arguments);
    let settings = Settings {
        host: host.clone(),
        client_port: ports.0,
        bus_port: ports.1,
        memory_bytes: arguments.memory,
        reactors: config.reactors,
        is_cluster: arguments.join.is_some(),
    };
    let store = Store::new(StoreConfig {
        memory_bytes: arguments.memory,
        reactors: config.reactors,
        seed,
        huge_pages: !arguments.no_huge_pages,
    })?;
    let node = Node::new(settings, identity, store.clone(), link.connected());
    let ready = arguments.ready_memory.unwrap_or(arguments.memory / READY_PART);
    keep_memory_ready(store, ready)?;
    let reactors = start(&config, listeners, &node, link.clone())?;
    let reactors_word = if config.reactors == 1 { "reactor" } else { "reactors" };
    println!(
        "ballast serve: ready for clients on {host}:{} ({}, {}, {} {reactors_word})",
        ports.0, identity.server, identity.cluster, config.reactors
    );
    forward(&messages, &reactors);
    Ok(())
}

fn refuse_what_is_not_there(arguments: &ServeArguments) -> anyhow::Result<()> {
    if !wire::crc32c_self_check() {
        bail!("this processor computes wrong checksums: data would be lost. Use another machine");
    }
    if arguments.replicas != 0 || arguments.durability != "none" {
        bail!(
            "replicas and durability are not there yet: data lives in memory alone. \
             Leave out --replicas and --durability, or give 0 and none"
        );
    }
    Ok(())
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

fn bus_port(arguments: &ServeArguments) -> anyhow::Result<u16> {
    match (arguments.bus_port, arguments.port) {
        (Some(port), _) => Ok(port),
        (None, 0) => Ok(0),
        (None, port) => port.checked_add(10_000).with_context(|| {
            format!("there is no port {port} + 10000 for the bus: choose one with --bus-port")
        }),
    }
}

fn listen(
    host: IpAddr,
    number: u16,
    port: runtime::Port,
    class: Class,
) -> anyhow::Result<Listener> {
    Ok(Listener::bind(SocketAddr::new(host, number), port, class)?)
}

fn reactors(arguments: &ServeArguments) -> Config {
    let mut config = Config::for_this_machine(arguments.reactors);
    config.poll = match arguments.poll {
        PollArgument::Adaptive => Poll::Adaptive,
        PollArgument::Busy => Poll::Busy,
        PollArgument::Sleep => Poll::Sleep,
    };
    config.driver = match arguments.driver {
        DriverArgument::Auto => None,
        DriverArgument::Uring => Some(DriverKind::Uring),
        DriverArgument::Epoll => Some(DriverKind::Epoll),
    };
    config.cores_shared |= arguments.shared_cores;
    config.pin &= !arguments.shared_cores;
    config
}

type Joined = (Arc<ControlLink>, Receiver<FromCoordinator>, Identity, HashSeed);

/// Asks the coordinator for a number and the cluster's seed.
fn join(coordinator: &str, host: String, ports: (u16, u16)) -> anyhow::Result<Joined> {
    let join = Join {
        protocol: wire::PROTOCOL_VERSION,
        host,
        client_port: ports.0,
        bus_port: ports.1,
        rejoin: None,
    };
    let (sender, receiver) = channel();
    // A server that stops does not mind what the coordinator still says.
    let link = ControlLink::start(coordinator.to_owned(), join, move |message| {
        let _ = sender.send(message);
    })?;
    let first = receiver.recv_timeout(JOIN_QUIET).or_else(|_| {
        eprintln!("ballast serve: waiting for a coordinator at {coordinator}");
        receiver.recv_timeout(JOIN_TIMEOUT)
    });
    match first {
        Ok(FromCoordinator::Welcome { server, cluster, seed }) => {
            Ok((Arc::new(link), receiver, Identity { cluster, server }, HashSeed::new(seed)))
        }
        Ok(FromCoordinator::Rejected { reason }) => bail!("the coordinator refuses: {reason}"),
        Ok(other) => bail!("the coordinator at {coordinator} speaks out of turn: {other:?}"),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            bail!("no coordinator answers at {coordinator}: start one with 'ballast coordinator'")
        }
    }
}

fn start(
    config: &Config,
    listeners: Vec<Listener>,
    node: &Arc<Node>,
    link: Arc<ControlLink>,
) -> anyhow::Result<Reactors<Mail>> {
    let control: ToControl = Arc::new(move |message| link.send(message));
    let shared = node.clone();
    let reactors = Reactors::start(config, listeners, move |reactor, _| {
        Server::new(shared.clone(), reactor, control.clone())
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
    std::thread::Builder::new().name("memory".into()).spawn(move || {
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

/// This thread runs when nobody else wants the processor, and whoever wakes up takes it away. (The
/// worst niceness is not enough: such a thread still finishes its slice of some milliseconds.)
fn yield_to_everybody() {
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let thread = thread_native_id();
    if let Err(error) = set_thread_priority_and_policy(thread, ThreadPriority::Min, idle) {
        tracing::debug!(?error, "the memory thread keeps its usual priority");
    }
}

/// Passes on what the coordinator says, until the process ends.
fn forward(messages: &Receiver<FromCoordinator>, reactors: &Reactors<Mail>) {
    while let Ok(message) = messages.recv() {
        reactors.mailboxes().of(reactor_for(&message)).send(Mail::Control(message));
    }
}
