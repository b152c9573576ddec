//! `ballast serve`: one server, stand-alone or as a member of a cluster.

use crate::cluster_key;
use crate::coordinator_command::{self, EmbeddedCoordinator};
use crate::data_folder::{DataFolder, ServerStorage};
use crate::descriptors;
use crate::folder_mark::FolderUse;
use crate::host::{EventSupervisor, ProcessEvent, ProcessHost};
use crate::memory;
use crate::metrics;
use crate::process_replacement::replace_process;
use crate::settings_arguments::SettingArguments;
use crate::signals;
use anyhow::{Context, bail};
use clap::Args;
use front::Operators;
use handshake::Credentials;
use node::{
    Mode, Node, NodeSettings, Plan, ReactorLiveness, Replication, ServerIdentity, reactor_for,
};
use runtime::{Class, Clock, Config, DriverKind, Listener, Port, Reactors};
use server::control::ControlLink;
use server::shell::{AddressBook, BUS_PORT, CLIENT_PORT, Mail, ServerReactor, Shared, ToControl};
use settings::{
    Durability, DurabilitySettings, IoDriver, NetworkSettings, ReactorSettings, ServerConfiguration,
};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use store::{Store, StoreConfig};
use types::{ClusterId, HashSeed, ServerId};
use wire::control::{ClusterMap, FromCoordinator, Holdings, Join, JoinReply};

/// Start a server.
#[derive(Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) settings: SettingArguments,
    /// Do not ask the operating system for huge pages.
    #[arg(long)]
    no_huge_pages: bool,
}

/// Longest time that a starting server waits for its coordinator.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which the server prints that it waits.
const JOIN_QUIET: Duration = Duration::from_secs(1);

pub(crate) fn run(
    arguments: &ServeArguments,
    mut configuration: ServerConfiguration,
) -> anyhow::Result<()> {
    let mode = mode_of(&configuration)?;
    refuse_more_memory_than_there_is(configuration.memory.limit.0)?;
    configuration.memory.huge_pages &= !arguments.no_huge_pages;
    let config = reactors(&configuration.reactors);
    let credentials = credentials(&configuration)?;
    let descriptors = descriptors::reserve(&mut configuration, config.reactors)?;
    let listeners = listen(&configuration)?;
    let [bound, of_bus] = [first_of(&listeners, CLIENT_PORT)?, first_of(&listeners, BUS_PORT)?];
    let ports = [bound.port(), of_bus.port()];
    (configuration.network.port, configuration.network.cluster_port) = (ports[0], ports[1]);
    let host = host(&configuration.network, bound.ip())?;
    let folder = ServerStorage::open(&configuration, mode)?.limit_open_files(descriptors.replicas);
    let (coordinator, known) = coordinator(&configuration, folder.own(), &credentials)?;
    let (events, received) = channel();
    let request = join_request(&configuration, &host, ports, &folder, known);
    let (link, identity, number) =
        join(&coordinator, &credentials, request, events.clone(), &received)?;
    folder.check_cluster(identity.cluster)?;
    let saver = folder.start_saver(identity, number)?;
    let settings = NodeSettings {
        host: host.clone(),
        client_port: ports[0],
        bus_port: ports[1],
        memory_bytes: configuration.memory.limit.0,
        reactors: config.reactors,
        is_cluster: !configuration.network.is_standalone(),
        cuts: node::Cuts::default(),
    };
    let seed = HashSeed::new(number);
    let (store, durability) = store(&configuration, config.reactors, folder, identity, seed)?;
    let durability = Arc::new(durability);
    let node = Node::new(settings, identity, store, durability, link.connected());
    let operators = Arc::new(Operators::new(config.reactors));
    operators.configure(&node, configuration.clone());
    memory::keep_ready(&node, configuration.memory.ready_bytes())?;
    start_metrics(&configuration, bound.ip(), &node, &operators)?;
    let addresses = AddressBook::of_system();
    let shared = Shared { node: node.clone(), operators: operators.clone(), addresses };
    let reactors = start(&config, listeners, shared, link.clone(), credentials)?;
    link.watch(ReactorLiveness::new(node.clone()));
    signals::watch(events.clone())?;
    node.set_supervisor(Box::new(EventSupervisor(events.clone())));
    operators.set_host(Box::new(ProcessHost {
        file: arguments.settings.file.clone(),
        mailboxes: reactors.mailboxes().clone(),
        counts: Box::new(reactors.watch()),
        driver: reactors.driver(),
        clients_max: descriptors.clients,
        events,
    }));
    announce_ready(&host, ports[0], identity, config.reactors);
    let mailboxes = reactors.mailboxes();
    let can_rejoin = node.durability().is_with_others();
    let result = forward(&received, can_rejoin, |message| {
        saver.iter().for_each(|saver| saver.record(&message));
        mailboxes.of(reactor_for(&message, config.reactors)).send(Mail::Control(message));
    });
    reactors.stop();
    match result? {
        ShutdownReason::Requested => {
            end_in_order(&node, identity);
            Ok(())
        }
        ShutdownReason::Fenced => Err(restart_as_new_member()),
    }
}

/// Syncs the log of a standalone server whose reactors have ended.
fn end_in_order(node: &Node, identity: ServerIdentity) {
    if let Err(error) = node.durability().end_in_order(node.store(), identity) {
        tracing::warn!(%error, "the last writes are lost if the machine is restarted now");
    }
}

/// Prints the line by which users and scripts see that the server accepts clients.
fn announce_ready(host: &str, port: u16, identity: ServerIdentity, reactors: u16) {
    let ServerIdentity { server, cluster } = identity;
    let word = if reactors == 1 { "reactor" } else { "reactors" };
    // The server serves although nobody reads this.
    let _ = writeln!(
        io::stdout(),
        "ballast serve: ready for clients on {host}:{port} ({server}, {cluster}, {reactors} {word})"
    );
}

/// Message with which a server joins its cluster.
struct JoinRequest {
    join: Join,
    /// State on the server's disk, for a coordinator that has lost its file.
    remembered: Option<(ClusterMap, Holdings)>,
}

/// Returns the server's join message. The coordinator may already know the server as `known`.
fn join_request(
    configuration: &ServerConfiguration,
    host: &str,
    ports: [u16; 2],
    folder: &ServerStorage,
    known: Option<MemberNumber>,
) -> JoinRequest {
    let join = Join {
        host: host.to_owned(),
        client_port: ports[0],
        bus_port: ports[1],
        rejoin: folder.own().and_then(|folder| folder.recovered_log.owner()).or(known),
        replicas: if folder.is_of_others() { configuration.durability.replicas } else { 0 },
        rack: configuration.durability.rack.clone(),
        disk: folder.cluster(),
        former: folder.saved().map(|saved| (saved.cluster, saved.server)),
        mark: folder.saved().and_then(|saved| saved.mark),
    };
    JoinRequest { join, remembered: folder.remembered() }
}

/// Returns the keys that this server proves and accepts. A stand-alone server draws a key of its
/// own, because its cluster has no other process.
fn credentials(configuration: &ServerConfiguration) -> anyhow::Result<Credentials> {
    let network = &configuration.network;
    let file = match &network.cluster_key_file[..] {
        "" => None,
        file => Some(Path::new(file)),
    };
    if network.is_standalone() && file.is_none() {
        return cluster_key::private_credentials();
    }
    let mut hosts: Vec<String> =
        network.bind.addresses.iter().map(|(address, _)| address.to_string()).collect();
    if !network.is_standalone() {
        hosts.push(cluster_key::host_of(&network.join).to_owned());
    }
    if !network.announce.is_empty() {
        hosts.push(network.announce.clone());
    }
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    cluster_key::watched_credentials(&hosts, file)
}

/// A server's number in its cluster.
type MemberNumber = (ClusterId, ServerId);

/// Returns the coordinator's address. A stand-alone server starts a coordinator in this process,
/// which may already know the server's number although its log does not contain it.
fn coordinator(
    configuration: &ServerConfiguration,
    folder: Option<&DataFolder>,
    credentials: &Credentials,
) -> anyhow::Result<(String, Option<MemberNumber>)> {
    match &configuration.network.join[..] {
        "" => {
            let file = folder.map(|folder| &*folder.coordinator);
            let has_data = folder.is_some_and(|folder| folder.recovered_log.owner().is_some());
            let EmbeddedCoordinator { address, server } =
                coordinator_command::start_embedded(file, has_data, credentials.clone())?;
            Ok((address.to_string(), server))
        }
        address => Ok((address.to_string(), None)),
    }
}

/// Creates the store, and the durability of its log.
fn store(
    configuration: &ServerConfiguration,
    reactors: u16,
    folder: ServerStorage,
    identity: ServerIdentity,
    seed: HashSeed,
) -> anyhow::Result<(Arc<Store>, Replication)> {
    let store = Store::new(StoreConfig {
        memory_bytes: configuration.memory.limit.0,
        reactors,
        seed,
        huge_pages: configuration.memory.huge_pages,
        durable: !matches!(folder, ServerStorage::None),
        segment_bytes: folder.own().and_then(|folder| folder.recovered_log.segment_bytes()),
    })?;
    let durability = match folder {
        ServerStorage::None => Replication::nowhere(identity.server, reactors),
        ServerStorage::Own(DataFolder { recovered_log, mode, mut marks, .. }) => {
            let durability = Replication::alone(recovered_log, identity, mode, reactors, &store)?;
            marks.complete(FolderUse::Alone)?;
            durability
        }
        ServerStorage::Others(folder, mode) => {
            let DurabilitySettings { replicas, scrub_interval, .. } = configuration.durability;
            let scrub = (!scrub_interval.is_zero()).then_some(scrub_interval);
            let plan = Plan { mode, replicas, scrub };
            Replication::new(plan, identity.server, reactors, folder.replicas)
        }
    };
    Ok((store, durability))
}

fn start_metrics(
    configuration: &ServerConfiguration,
    address: IpAddr,
    node: &Arc<Node>,
    operators: &Arc<Operators>,
) -> anyhow::Result<()> {
    let address = SocketAddr::new(address, configuration.operators.metrics_port);
    let (node, operators, clock) = (node.clone(), operators.clone(), Clock::new());
    metrics::start(address, move || front::operators::metrics::text(&node, &operators, clock.now()))
}

/// Returns the durability mode of the log; `None` without persistence.
fn mode_of(configuration: &ServerConfiguration) -> anyhow::Result<Option<Mode>> {
    if !wire::crc32c_self_check() {
        bail!(
            "the processor computes wrong checksums, which would corrupt data: use another \
             machine"
        );
    }
    Ok(match configuration.durability.mode {
        Durability::None => None,
        Durability::Auto => configuration.network.is_standalone().then_some(Mode::Interval),
        Durability::Memory => Some(Mode::Memory),
        Durability::Interval => Some(Mode::Interval),
        Durability::Disk => Some(Mode::Disk),
    })
}

/// Refuses more memory than the machine has: mapping it would succeed, using it would not.
fn refuse_more_memory_than_there_is(memory: usize) -> anyhow::Result<()> {
    let system = rustix::system::sysinfo();
    let total = system.totalram as u64 * u64::from(system.mem_unit);
    if memory as u64 > total {
        bail!(
            "--memory asks for {} MiB, but this machine has {} MiB: use less",
            memory >> 20,
            total >> 20
        );
    }
    Ok(())
}

/// Listens on all addresses. A port chosen by the operating system is used for all of them.
fn listen(configuration: &ServerConfiguration) -> anyhow::Result<Vec<Listener>> {
    let network = &configuration.network;
    let mut listeners = Vec::new();
    let bus_port = network.bus_port().map_err(anyhow::Error::msg)?;
    let numbers = [(CLIENT_PORT, Class::Client, network.port), (BUS_PORT, Class::Bus, bus_port)];
    for (port, class, mut number) in numbers {
        for (address, may_fail) in &network.bind.addresses {
            let address = SocketAddr::new(*address, number);
            let listener = match Listener::bind(address, port, class) {
                Ok(listener) => listener,
                Err(error) if *may_fail => {
                    tracing::info!(%error, "cannot listen on an optional address, skipping it");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if class == Class::Client {
                listener.set_keepalive(configuration.clients.tcp_keepalive)?;
            }
            number = listener.address().port();
            listeners.push(listener);
        }
    }
    Ok(listeners)
}

/// Returns the first address at which the server listens on this port.
fn first_of(listeners: &[Listener], port: Port) -> anyhow::Result<SocketAddr> {
    let first = listeners.iter().find(|listener| listener.port() == port);
    first.map(Listener::address).context("this machine has none of the addresses in --bind")
}

/// Returns the host name or address under which others reach this server, which listens on `bound`.
///
/// # Errors
/// If others would not know how to reach this server.
fn host(network: &NetworkSettings, bound: IpAddr) -> anyhow::Result<String> {
    match &network.announce[..] {
        "" if bound.is_unspecified() && !network.is_standalone() => bail!(
            "other servers cannot reach this server under {bound}, the first address in --bind: \
             name one under which they can with --cluster-announce-ip"
        ),
        "" => Ok(bound.to_string()),
        announced => Ok(announced.to_string()),
    }
}

fn reactors(settings: &ReactorSettings) -> Config {
    let count = (settings.count > 0).then_some(settings.count);
    let mut config = Config::for_this_machine(count);
    config.poll = settings.poll;
    config.driver = match settings.driver {
        IoDriver::Auto => None,
        IoDriver::Uring => Some(DriverKind::Uring),
        IoDriver::Epoll => Some(DriverKind::Epoll),
    };
    config.cores_shared |= settings.shared_cores;
    config.pin &= !settings.shared_cores;
    config
}

/// The link, the server's identity, and the number from which the cluster's hash seed is made.
type JoinedCluster = (Arc<ControlLink>, ServerIdentity, u64);

/// Joins the cluster: gets the server's number and the cluster's seed from the coordinator.
fn join(
    coordinator: &str,
    credentials: &Credentials,
    request: JoinRequest,
    events: Sender<ProcessEvent>,
    received: &Receiver<ProcessEvent>,
) -> anyhow::Result<JoinedCluster> {
    let JoinRequest { join, remembered } = request;
    let addresses = AddressBook::of_system();
    // After the server has stopped receiving, messages of the coordinator are dropped.
    let on_message = move |message| {
        let _ = events.send(ProcessEvent::Received(message));
    };
    let link = ControlLink::start(
        coordinator,
        addresses,
        credentials.clone(),
        join,
        remembered,
        on_message,
    )?;
    let trouble = || link.trouble().map_or(String::new(), |trouble| format!(" ({trouble})"));
    match first_answer(coordinator, received, &trouble) {
        Some(ProcessEvent::Received(FromCoordinator::Join(JoinReply::Welcome {
            server,
            cluster,
            seed,
        }))) => Ok((Arc::new(link), ServerIdentity { cluster, server }, seed)),
        Some(ProcessEvent::Received(FromCoordinator::Join(JoinReply::Rejected {
            reason, ..
        }))) => {
            bail!("the coordinator refused the join: {reason}")
        }
        Some(ProcessEvent::Received(other)) => {
            bail!("unexpected message from the coordinator at {coordinator}: {other:?}")
        }
        Some(ProcessEvent::Failed(reason) | ProcessEvent::Fenced(reason)) => bail!("{reason}"),
        Some(ProcessEvent::ShutDown) | None => {
            bail!(
                "no coordinator answers at {coordinator}: start one with 'ballast coordinator'{}",
                trouble()
            )
        }
    }
}

/// Waits for the coordinator's answer to the join, up to a time limit. While the coordinator keeps
/// reporting that other servers must join first, there is no limit.
fn first_answer(
    coordinator: &str,
    received: &Receiver<ProcessEvent>,
    trouble: &impl Fn() -> String,
) -> Option<ProcessEvent> {
    let mut last_reason: Option<String> = None;
    let mut limit = JOIN_QUIET;
    loop {
        match received.recv_timeout(limit) {
            Ok(ProcessEvent::Received(FromCoordinator::Join(JoinReply::Waiting { reason }))) => {
                if last_reason.as_ref() != Some(&reason) {
                    say_to_operator(&reason);
                }
                last_reason = Some(reason);
            }
            Ok(event) => return Some(event),
            Err(RecvTimeoutError::Timeout) if limit == JOIN_QUIET => {
                if last_reason.is_none() {
                    let trouble = trouble();
                    say_to_operator(&format!(
                        "waiting for a coordinator at {coordinator}{trouble}"
                    ));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
        limit = JOIN_TIMEOUT;
    }
}

/// Prints a line about the start. It is lost if it cannot be written.
fn say_to_operator(line: &str) {
    let _ = writeln!(io::stderr(), "ballast serve: {line}");
}

fn start(
    config: &Config,
    listeners: Vec<Listener>,
    shared: Shared,
    link: Arc<ControlLink>,
    credentials: Credentials,
) -> anyhow::Result<Reactors<Mail>> {
    let control: ToControl = Arc::new(move |message| link.send(message));
    let node = shared.node.clone();
    let reactors = Reactors::start(config, listeners, move |reactor, mailboxes| {
        let mailbox = mailboxes.of(reactor).clone();
        ServerReactor::new(&shared, reactor, control.clone(), mailbox, credentials.clone())
    })
    .with_context(|| match config.driver {
        Some(DriverKind::Uring) => "io_uring is not available: omit --driver uring",
        Some(DriverKind::Epoll) | None => "cannot start the reactors",
    })?;
    if let Some(error) = reactors.why_not_uring() {
        tracing::info!(%error, "io_uring is not available, using epoll");
    }
    let mailboxes = reactors.mailboxes().clone();
    node.set_wake(move |reactor| match reactor {
        Some(reactor) => mailboxes.of(reactor).wake(),
        None => mailboxes.iter().for_each(|mailbox| mailbox.wake()),
    });
    Ok(reactors)
}

/// The reason why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownReason {
    /// A requested shutdown.
    Requested,
    /// Fencing: others serve this server's data. A new process takes its place, without data.
    Fenced,
}

/// Replaces this process by a new one with the same arguments. Returns only if that fails.
fn restart_as_new_member() -> anyhow::Error {
    let itself = std::env::current_exe();
    let replaced = itself.map(|itself| replace_process(itself, std::env::args_os().skip(1)));
    let error = match replaced {
        Ok(error) | Err(error) => error,
    };
    anyhow::Error::new(error).context("cannot restart as a new member: start the server again")
}

/// Forwards the coordinator's messages to the reactors, until the process must end.
///
/// # Errors
/// If the server has failed, or was fenced and cannot rejoin as a new member. Another server serves
/// its data then, so it must not answer any client.
fn forward(
    received: &Receiver<ProcessEvent>,
    can_rejoin: bool,
    pass_on: impl Fn(FromCoordinator),
) -> anyhow::Result<ShutdownReason> {
    loop {
        let message = match received.recv() {
            Ok(ProcessEvent::Received(message)) => message,
            Ok(ProcessEvent::Failed(reason)) => bail!("{reason}"),
            Ok(ProcessEvent::Fenced(_)) => return Ok(ShutdownReason::Fenced),
            Ok(ProcessEvent::ShutDown) | Err(_) => return Ok(ShutdownReason::Requested),
        };
        if let FromCoordinator::Join(JoinReply::Rejected { reason, is_fenced: true }) = message {
            if can_rejoin {
                tracing::error!(reason, "server was fenced, rejoining as a new member");
                return Ok(ShutdownReason::Fenced);
            }
            bail!("the coordinator rejected this server: {reason}");
        }
        pass_on(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::Bind;
    use std::cell::RefCell;
    use std::sync::mpsc::channel;

    /// Returns the number of forwarded messages, and whether the server ended by itself.
    fn passed_on(messages: Vec<FromCoordinator>) -> (usize, bool) {
        let (events, received) = channel();
        messages
            .into_iter()
            .for_each(|message| events.send(ProcessEvent::Received(message)).unwrap());
        events.send(ProcessEvent::ShutDown).unwrap();
        let passed = RefCell::new(0);
        let result = forward(&received, false, |_| *passed.borrow_mut() += 1);
        (passed.into_inner(), result.is_err())
    }

    #[test]
    fn a_server_that_was_given_up_stops_and_one_that_is_only_refused_goes_on() {
        let refused =
            |is_fenced| JoinReply::Rejected { reason: "because".into(), is_fenced }.into();
        assert_eq!(passed_on(vec![refused(false), refused(false)]), (2, false));
        assert_eq!(passed_on(vec![refused(false), refused(true), refused(false)]), (1, true));
    }

    #[test]
    fn a_server_is_reached_under_the_first_address_that_this_machine_has() {
        let mut configuration = ServerConfiguration::default();
        let network = &mut configuration.network;
        // An address for documentation: no machine has it.
        let absent = IpAddr::from([192, 0, 2, 1]);
        let here = IpAddr::from([127, 0, 0, 1]);
        network.bind = Bind { addresses: vec![(absent, true), (here, false)] };
        network.port = 0;
        let listeners = listen(&configuration).unwrap();
        for port in [CLIENT_PORT, BUS_PORT] {
            assert_eq!(first_of(&listeners, port).unwrap().ip(), here);
        }
        configuration.network.bind = Bind { addresses: vec![(absent, true)] };
        assert!(first_of(&listen(&configuration).unwrap(), CLIENT_PORT).is_err());
    }

    #[test]
    fn a_member_of_a_cluster_does_not_announce_an_address_that_stands_for_all() {
        let any = IpAddr::from([0, 0, 0, 0]);
        let mut network = NetworkSettings::default();
        assert_eq!(host(&network, any).unwrap(), "0.0.0.0", "it has no peers");
        network.join = "10.0.0.1:7000".into();
        let advice = host(&network, any).unwrap_err().to_string();
        assert!(advice.contains("--cluster-announce-ip"), "{advice}");
        assert_eq!(host(&network, IpAddr::from([10, 0, 0, 2])).unwrap(), "10.0.0.2");
        network.announce = "server.example".into();
        assert_eq!(host(&network, any).unwrap(), "server.example");
    }
}
