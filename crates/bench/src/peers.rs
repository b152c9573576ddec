//! Clusters of servers on this machine, of either system, started and stopped as child processes.

use crate::control::{Control, text};
use crate::ports::{Ports, loopback};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use types::SLOT_COUNT;

/// Longest time until a new process answers.
const START_MAX: Duration = Duration::from_secs(20);

/// System of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum System {
    /// Ballast.
    Ballast {
        /// Path of the `ballast` program.
        binary: PathBuf,
        /// Further arguments for `ballast serve`.
        serve_arguments: Vec<String>,
    },
    /// Valkey 9, with the command of its server: `valkey-server`, or `chroot DIR valkey-server`.
    Valkey {
        /// Program and leading arguments.
        command: Vec<String>,
        /// Further arguments for the server.
        serve_arguments: Vec<String>,
    },
}

impl System {
    /// Returns the name of the system.
    pub fn name(&self) -> &'static str {
        match self {
            System::Ballast { .. } => "Ballast",
            System::Valkey { .. } => "Valkey",
        }
    }
}

/// Parameters of the start of a cluster.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of servers.
    pub servers: u16,
    /// Ports of the servers.
    pub ports: Ports,
    /// Folder for the output of the processes.
    pub logs: PathBuf,
    /// Folder for persistent data, with a subfolder for each process; `None` for no persistence.
    /// Only for Ballast.
    pub data: Option<PathBuf>,
    /// File with the cluster key of Ballast's processes; `None` for no key.
    pub key_file: Option<PathBuf>,
    /// Program and leading arguments that execute the command behind them and end with this
    /// process, however it ends: see [`crate::processes::become_child`]. Empty if the servers may
    /// survive a kill.
    pub keeper: Vec<PathBuf>,
}

/// Running servers. Dropping the cluster ends them.
pub struct Cluster {
    servers: Vec<ServerProcess>,
    /// Ballast's coordinator; Valkey has none.
    coordinator: Option<ChildProcess>,
}

/// Running server.
pub struct ServerProcess {
    /// Address for clients.
    pub address: SocketAddr,
    /// Node id for `CLUSTER MIGRATESLOTS`.
    pub name: String,
    bus_port: u16,
    process: ChildProcess,
    /// Set if the benchmark has killed the server.
    is_dead: bool,
}

impl Cluster {
    /// Starts servers on the loopback interface. The first one owns every slot.
    pub fn start(system: &System, setup: &Setup) -> Result<Cluster> {
        assert!(setup.servers > 0, "a cluster has a server");
        match system {
            System::Ballast { binary, serve_arguments } => {
                start_ballast(binary, serve_arguments, setup)
            }
            System::Valkey { command, serve_arguments } => {
                start_valkey(command, serve_arguments, setup)
            }
        }
    }

    /// Returns the servers.
    pub fn servers(&self) -> &[ServerProcess] {
        &self.servers
    }

    /// Returns the addresses of the servers, in order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    /// Returns the process ids of the servers, in order; the coordinator is not on the data path.
    pub fn processes(&self) -> Vec<u32> {
        self.servers.iter().map(|server| server.process.child.id()).collect()
    }

    /// Kills a server without a chance to react, as a failure of its machine would.
    pub fn kill(&mut self, server: usize) -> Result<()> {
        let server = &mut self.servers[server];
        server.process.child.kill().with_context(|| format!("killing {}", server.address))?;
        server.is_dead = true;
        Ok(())
    }

    /// Checks that all processes still run, except the killed servers.
    pub fn check(&mut self) -> Result<()> {
        let living = self.servers.iter_mut().filter(|server| !server.is_dead);
        let servers = living.map(|server| &mut server.process);
        for process in servers.chain(&mut self.coordinator) {
            process.check()?;
        }
        Ok(())
    }
}

fn start_ballast(binary: &Path, serve_arguments: &[String], setup: &Setup) -> Result<Cluster> {
    let ports = setup.ports.take(1 + 2 * setup.servers)?;
    let ([coordinator_port, ..], server_ports) = ports.split_at(1) else { unreachable!() };
    let coordinator_address = loopback(*coordinator_port);
    let mut command = setup.command(binary);
    command.args(["coordinator", "--port", &coordinator_port.to_string()]);
    let data = |name: &str| setup.data.as_ref().map(|folder| folder.join(name));
    let key: Vec<&OsStr> = match &setup.key_file {
        Some(file) => vec![OsStr::new("--cluster-key-file"), file.as_os_str()],
        None => Vec::new(),
    };
    command.args(&key);
    if let Some(folder) = data("coordinator") {
        command.arg("--data-dir").arg(folder);
    }
    let mut coordinator = ChildProcess::spawn(command, "coordinator", &setup.logs)?;
    coordinator.wait_until_listening(coordinator_address)?;
    let mut servers = Vec::new();
    for (number, pair) in server_ports.chunks_exact(2).enumerate() {
        let mut command = setup.command(binary);
        command.args(["serve", "--port", &pair[0].to_string(), "--bus-port", &pair[1].to_string()]);
        command.args(["--join", &coordinator_address.to_string()]).args(serve_arguments);
        command.args(&key);
        let name = format!("ballast-{}", number + 1);
        if let Some(folder) = data(&name) {
            command.arg("--data-dir").arg(folder);
        }
        let process = ChildProcess::spawn(command, &name, &setup.logs)?;
        servers.push(process.into_server(loopback(pair[0]), pair[1])?);
    }
    Ok(Cluster { servers, coordinator: Some(coordinator) })
}

fn start_valkey(words: &[String], serve_arguments: &[String], setup: &Setup) -> Result<Cluster> {
    let [program, leading @ ..] = words else { bail!("no command is given for the rival") };
    let ports = setup.ports.take(2 * setup.servers)?;
    let mut processes = Vec::new();
    for (number, pair) in ports.chunks_exact(2).enumerate() {
        let (port, bus_port) = (pair[0].to_string(), pair[1].to_string());
        let mut command = setup.command(program);
        command.args(leading).args(["--port", &port, "--cluster-port", &bus_port]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        // Without the last argument, a server that has given all its slots away becomes a
        // replica.
        command.args(["--cluster-enabled", "yes", "--cluster-allow-replica-migration", "no"]);
        // A server must not find the configuration of an earlier one.
        let (process, now) = (std::process::id(), crate::clock::now().0);
        let nodes = format!("/tmp/nodes-{process}-{now}-{port}.conf");
        command.args(["--cluster-config-file", &nodes]).args(serve_arguments);
        let process = ChildProcess::spawn(command, &format!("valkey-{}", number + 1), &setup.logs)?;
        processes.push((process, pair));
    }
    let servers = processes
        .into_iter()
        .map(|(process, pair)| process.into_server(loopback(pair[0]), pair[1]))
        .collect::<Result<Vec<_>>>()?;
    meet(&servers)?;
    Ok(Cluster { servers, coordinator: None })
}

impl Setup {
    /// Returns a command for a process that ends with this one.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match self.keeper.split_first() {
            None => Command::new(program),
            Some((keeper, leading)) => {
                let mut command = Command::new(keeper);
                command.args(leading).arg(std::process::id().to_string()).arg(program);
                command
            }
        }
    }
}

/// Forms a cluster of Valkey servers that do not know each other; the first gets every slot.
fn meet(servers: &[ServerProcess]) -> Result<()> {
    let mut first = Control::connect(servers[0].address)?;
    for (server, epoch) in servers.iter().zip(1..) {
        let mut control = Control::connect(server.address)?;
        control.call(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()])?;
    }
    first.call(&["CLUSTER", "ADDSLOTSRANGE", "0", &(SLOT_COUNT - 1).to_string()])?;
    for server in &servers[1..] {
        let (ip, port) = (server.address.ip().to_string(), server.address.port());
        let bus_port = server.bus_port.to_string();
        first.call(&["CLUSTER", "MEET", &ip, &port.to_string(), &bus_port])?;
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
        ensure!(crate::clock::now() < until, "{} sees no healthy cluster", control.address());
        crate::clock::sleep(Duration::from_millis(20));
    }
}

/// Child process that is ended when it is dropped.
struct ChildProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl ChildProcess {
    fn spawn(mut command: Command, name: &str, logs: &Path) -> Result<ChildProcess> {
        let log = logs.join(format!("{name}.log"));
        let file = std::fs::File::create(&log)
            .with_context(|| format!("writing the log {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(ChildProcess { name: name.to_string(), child, log })
    }

    /// Waits until the process answers `PING`, and asks for its node id.
    fn into_server(mut self, address: SocketAddr, bus_port: u16) -> Result<ServerProcess> {
        let mut control = match Control::wait_for(address, START_MAX) {
            Ok(control) => control,
            Err(error) => {
                self.check()?;
                return Err(error);
            }
        };
        let name = text(control.call(&["CLUSTER", "MYID"])?)?;
        Ok(ServerProcess { address, name, bus_port, process: self, is_dead: false })
    }

    /// Waits until a process listens that does not speak the Redis protocol.
    fn wait_until_listening(&mut self, address: SocketAddr) -> Result<()> {
        let until = crate::clock::now() + START_MAX;
        while std::net::TcpStream::connect(address).is_err() {
            self.check()?;
            ensure!(crate::clock::now() < until, "{} does not accept connections", self.name);
            crate::clock::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Checks that the process still runs; otherwise the error contains the end of its log.
    fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last =
            log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("its log is empty");
        bail!("{} ended ({status}): {last}", self.name)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The process needs no graceful end. An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
