//! Clusters of two or more servers on this machine, of either system, started and stopped as
//! child processes.

use crate::control::{Control, text};
use anyhow::{Context, Result, bail, ensure};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use types::SLOT_COUNT;

/// How long a process may take until it answers.
const START_MAX: Duration = Duration::from_secs(20);
/// Distance of a Valkey server's bus port from its port, unless told otherwise.
const BUS_OFFSET: u16 = 10_000;

/// Which system a cluster consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum System {
    /// Ballast, by the path of its binary.
    Ballast {
        /// The `ballast` program.
        binary: PathBuf,
        /// More arguments for `ballast serve`.
        serve_arguments: Vec<String>,
    },
    /// Valkey 9, by how its server is called: `valkey-server`, or `chroot DIR valkey-server`.
    Valkey {
        /// Program and leading arguments.
        command: Vec<String>,
        /// More arguments for the server.
        serve_arguments: Vec<String>,
    },
}

impl System {
    /// Name for people.
    pub fn name(&self) -> &'static str {
        match self {
            System::Ballast { .. } => "Ballast",
            System::Valkey { .. } => "Valkey",
        }
    }
}

/// Running servers. Dropping it ends them.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    /// Ballast's; Valkey has none.
    coordinator: Option<Process>,
}

/// One running server.
#[derive(Debug)]
pub struct Server {
    /// Where clients reach it.
    pub address: SocketAddr,
    /// What `CLUSTER MIGRATESLOTS` calls it.
    pub name: String,
    process: Process,
}

impl Cluster {
    /// Starts `count` servers on the loopback interface from `port` on. The first one owns every
    /// slot. Their output goes to `logs`.
    pub fn start(system: &System, count: u16, port: u16, logs: &Path) -> Result<Cluster> {
        assert!(count > 0, "a cluster has a server");
        match system {
            System::Ballast { binary, serve_arguments } => {
                start_ballast(binary, serve_arguments, (count, port), logs)
            }
            System::Valkey { command, serve_arguments } => {
                start_valkey(command, serve_arguments, (count, port), logs)
            }
        }
    }

    /// Its servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Addresses of its servers, in order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    /// Process ids of its servers, in order; the coordinator is no part of the data path.
    pub fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(|server| server.process.child.id()).collect()
    }

    /// Whether everything still runs.
    pub fn check(&mut self) -> Result<()> {
        let servers = self.servers.iter_mut().map(|server| &mut server.process);
        for process in servers.chain(&mut self.coordinator) {
            process.check()?;
        }
        Ok(())
    }
}

fn start_ballast(
    binary: &Path,
    serve_arguments: &[String],
    (count, port): (u16, u16),
    logs: &Path,
) -> Result<Cluster> {
    let coordinator_address = loopback(port);
    let mut command = Command::new(binary);
    command.args(["coordinator", "--port", &port.to_string()]);
    let mut coordinator = Process::spawn(command, "coordinator", logs)?;
    coordinator.wait_until_listening(coordinator_address)?;
    let mut servers = Vec::new();
    for number in 1..=count {
        let address = loopback(port + number);
        let mut command = Command::new(binary);
        command.args(["serve", "--port", &address.port().to_string()]);
        command.args(["--bus-port", &(address.port() + 1000).to_string()]);
        command.args(["--join", &coordinator_address.to_string()]);
        command.args(serve_arguments);
        let process = Process::spawn(command, &format!("ballast-{}", address.port()), logs)?;
        servers.push(process.into_server(address)?);
    }
    Ok(Cluster { servers, coordinator: Some(coordinator) })
}

fn start_valkey(
    command_words: &[String],
    serve_arguments: &[String],
    (count, port): (u16, u16),
    logs: &Path,
) -> Result<Cluster> {
    let [program, leading @ ..] = command_words else { bail!("no command for the rival given") };
    let mut processes = Vec::new();
    for number in 0..count {
        let address = loopback(port + number);
        let mut command = Command::new(program);
        command.args(leading).args(["--port", &address.port().to_string()]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        // Without the last one a server that has given all its slots away becomes a replica.
        command.args(["--cluster-enabled", "yes", "--cluster-allow-replica-migration", "no"]);
        // A server must not find the configuration of an earlier one.
        let (process, now) = (std::process::id(), crate::clock::now().0);
        let nodes = format!("/tmp/nodes-{process}-{now}-{}.conf", address.port());
        command.args(["--cluster-config-file", &nodes]).args(serve_arguments);
        let process = Process::spawn(command, &format!("valkey-{}", address.port()), logs)?;
        processes.push((process, address));
    }
    let servers = processes
        .into_iter()
        .map(|(process, address)| process.into_server(address))
        .collect::<Result<Vec<_>>>()?;
    meet(&servers)?;
    Ok(Cluster { servers, coordinator: None })
}

/// Makes one cluster of Valkey servers that do not know each other; the first gets every slot.
fn meet(servers: &[Server]) -> Result<()> {
    let mut first = Control::connect(servers[0].address)?;
    for (server, epoch) in servers.iter().zip(1..) {
        let mut control = Control::connect(server.address)?;
        control.call(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()])?;
    }
    first.call(&["CLUSTER", "ADDSLOTSRANGE", "0", &(SLOT_COUNT - 1).to_string()])?;
    for server in &servers[1..] {
        let (ip, port) = (server.address.ip().to_string(), server.address.port());
        let bus = (port + BUS_OFFSET).to_string();
        first.call(&["CLUSTER", "MEET", &ip, &port.to_string(), &bus])?;
    }
    for server in servers {
        wait_until_healthy(&mut Control::connect(server.address)?, servers.len())?;
    }
    Ok(())
}

fn wait_until_healthy(control: &mut Control, servers: usize) -> Result<()> {
    let until = crate::clock::now() + START_MAX;
    loop {
        let info = text(control.call(&["CLUSTER", "INFO"])?)?;
        let has = |line: &str| info.lines().any(|l| l.trim_end() == line);
        if has("cluster_state:ok") && has(&format!("cluster_known_nodes:{servers}")) {
            return Ok(());
        }
        ensure!(crate::clock::now() < until, "{} found no healthy cluster", control.address());
        crate::clock::sleep(Duration::from_millis(20));
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// A child process that is ended when it is dropped.
#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    fn spawn(mut command: Command, name: &str, logs: &Path) -> Result<Process> {
        let log = logs.join(format!("{name}.log"));
        let file = std::fs::File::create(&log)
            .with_context(|| format!("writing the log {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Process { name: name.to_string(), child, log })
    }

    /// Waits until the process answers `PING`, and asks for its name in the cluster.
    fn into_server(mut self, address: SocketAddr) -> Result<Server> {
        let mut control = match Control::wait_for(address, START_MAX) {
            Ok(control) => control,
            Err(error) => {
                self.check()?;
                return Err(error);
            }
        };
        let name = text(control.call(&["CLUSTER", "MYID"])?)?;
        Ok(Server { address, name, process: self })
    }

    /// Waits until something listens there, for a process that does not speak Redis's protocol.
    fn wait_until_listening(&mut self, address: SocketAddr) -> Result<()> {
        let until = crate::clock::now() + START_MAX;
        while std::net::TcpStream::connect(address).is_err() {
            self.check()?;
            ensure!(crate::clock::now() < until, "{} does not listen", self.name);
            crate::clock::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether it still runs; if not, the end of what it said.
    fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n");
        bail!("{} ended ({status}):\n{tail}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing it holds is worth a graceful end. Failing means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
