//! Ballast processes on free ports, ended when they are dropped.

use crate::client::Client;
use rustix::process::{Pid, Resource, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// One process of the binary.
pub(crate) struct Process {
    child: Child,
    /// Address for clients, or for the servers of a coordinator.
    pub(crate) address: SocketAddr,
    log: PathBuf,
    /// Kept open, so that later output of the process does not fail.
    _output: BufReader<ChildStdout>,
}

/// Arguments for servers that share two processors with everything else.
pub(crate) const MODEST: [&str; 5] =
    ["--shared-cores", "--reactors", "1", "--ready-memory", "16mb"];

/// A started process that is not ready yet.
pub(crate) struct Starting {
    child: Child,
    output: BufReader<ChildStdout>,
    log: PathBuf,
}

impl Starting {
    /// Starts a command that begins with the binary or becomes it.
    pub(crate) fn new(mut command: Command) -> Starting {
        let (log, path) = tempfile::Builder::new()
            .prefix("ballast-")
            .suffix(".log")
            .tempfile_in(env!("CARGO_TARGET_TMPDIR"))
            .and_then(|log| log.keep().map_err(|error| error.error))
            .expect("a log can be written where tests may write");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        Starting { child, output, log: path }
    }

    /// Waits until the process is ready.
    pub(crate) fn ready(mut self) -> Process {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says something");
        let Starting { child, output, log } = self;
        let Some(address) = ready_address(&line) else {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("a process did not get ready: {line}{said}");
        };
        Process { child, address, log, _output: output }
    }

    /// Waits until the process has ended by itself before it was ready, and returns its error.
    pub(crate) fn refused(mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it ends or says something");
        if !line.is_empty() {
            self.child.kill().expect("it still runs");
        }
        let status = self.child.wait().expect("it can be waited for");
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let _ = std::fs::remove_file(&self.log);
        assert!(line.is_empty(), "a process that should have refused to start says: {line}{said}");
        assert!(!status.success(), "it ends without an error: {said}");
        said
    }
}

/// Returns the path of the binary under test.
pub(crate) fn binary() -> PathBuf {
    let other = std::env::var_os("BALLAST_TEST_BINARY").map(PathBuf::from);
    other.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_ballast")))
}

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let mut command = Command::new(binary());
        command.args(arguments);
        Starting::new(command).ready()
    }

    /// Starts a stand-alone server without persistence.
    pub(crate) fn alone(arguments: &[&str]) -> Process {
        let alone = ["serve", "--port", "0", "--durability", "none"];
        Process::start(&[&alone, arguments].concat())
    }

    /// Starts a stand-alone server with its log in this folder.
    pub(crate) fn kept(folder: &Path, arguments: &[&str]) -> Process {
        let folder = folder.to_str().expect("the names of our folders are words");
        Process::start(&[&["serve", "--port", "0", "--data-dir", folder], arguments].concat())
    }

    /// Kills the process without a chance to react, as a machine failure does.
    pub(crate) fn kill(self) {
        Process::kill_together([self]);
    }

    /// Kills all processes before it waits for one, because a killed process may take seconds to
    /// end on a busy machine.
    pub(crate) fn kill_together(processes: impl IntoIterator<Item = Process>) {
        let mut killed: Vec<Process> = processes.into_iter().collect();
        for process in &mut killed {
            process.child.kill().expect("it still runs");
        }
        for process in &mut killed {
            process.child.wait().expect("it can be waited for");
        }
    }

    /// Starts a coordinator without persistence.
    pub(crate) fn coordinator() -> Process {
        Process::start(&["coordinator", "--port", "0"])
    }

    /// Starts a coordinator with its file in this folder.
    pub(crate) fn coordinator_in(folder: &Path, port: u16, arguments: &[&str]) -> Process {
        let folder = folder.to_str().expect("the names of our folders are words");
        let port = port.to_string();
        let kept = ["coordinator", "--port", &port, "--data-dir", folder];
        Process::start(&[&kept, arguments].concat())
    }

    /// Starts a server of a cluster.
    pub(crate) fn joined(coordinator: &Process, arguments: &[&str]) -> Process {
        let address = coordinator.address.to_string();
        Process::start(&[&["serve", "--port", "0", "--join", &address], arguments].concat())
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns the address for other servers.
    pub(crate) fn bus_address(&self) -> SocketAddr {
        let reply = self.client().ask(&["CONFIG", "GET", "cluster-port"]);
        let port = reply.items()[1].text().parse().expect("the bus has a port");
        SocketAddr::new(self.address.ip(), port)
    }

    /// Asks the process to shut down, by SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(process.expect("it has a number"), signal).expect("it still runs");
    }

    /// Lets the process open this many more files and connections than it has now, or as many as
    /// the test itself may.
    pub(crate) fn limit_files(&self, more: Option<u64>) {
        let process = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        if let Some(more) = more {
            let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
            limit.current = Some(open.expect("it still runs").count() as u64 + more);
        }
        rustix::process::prlimit(process, Resource::Nofile, limit).expect("it is our own");
    }

    /// Checks that the process has not ended by itself.
    pub(crate) fn assert_runs(&mut self) {
        let ended = self.child.try_wait().expect("it can be waited for");
        assert!(ended.is_none(), "{} has ended by itself: {ended:?}", self.address);
    }

    /// Returns whether all threads are stopped, which takes a moment after SIGSTOP. The memory
    /// thread is ignored: it serves no requests, and stops only when it has run again, which may
    /// take seconds on a busy machine.
    pub(crate) fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let mut tasks = tasks.expect("it still runs").flatten();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which may contain any characters.
            stat.rsplit_once(')').is_some_and(|(name, rest)| {
                name.ends_with("(memory") || rest.trim_start().starts_with('T')
            })
        })
    }

    /// Waits for the end of the process, and returns its status.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it can be waited for")
    }

    /// Returns the resident memory of the process, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        bench::processes::resident_bytes(self.child.id()).expect("it still runs")
    }

    /// Returns the processor time that the process has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        bench::processes::cpu_time(self.child.id()).expect("it still runs")
    }

    /// Checks on a new connection that the process serves requests.
    pub(crate) fn assert_serves(&self, after: &str) {
        let mut client = self.client();
        assert_eq!(client.ask(&["PING"]).text(), "PONG", "after {after}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = File::open(&self.log).map(BufReader::new).into_iter();
            let lines: Vec<String> =
                said.flat_map(|said| said.lines().map_while(Result::ok)).collect();
            let end = lines.len().saturating_sub(400);
            eprintln!("{} said at last:\n{}", self.address, lines[end..].join("\n"));
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Parses the address in `ballast serve: ready for clients on HOST:PORT (...)`.
fn ready_address(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once(" on ")?;
    address.split_whitespace().next()?.parse().ok()
}

pub(crate) struct Cluster {
    /// The servers. The first one owns all slots at the start.
    pub(crate) servers: Vec<Process>,
    _coordinator: Process,
}

impl Cluster {
    /// Starts `count` servers.
    pub(crate) fn start(count: usize, arguments: &[&str]) -> Cluster {
        Cluster::of(&vec![arguments; count])
    }

    /// Starts a server with each of these arguments.
    pub(crate) fn of(arguments: &[&[&str]]) -> Cluster {
        let coordinator = Process::coordinator();
        let servers =
            arguments.iter().map(|arguments| Process::joined(&coordinator, arguments)).collect();
        Cluster::around(servers, coordinator)
    }

    /// Creates a cluster of running servers, and waits until they know each other.
    pub(crate) fn around(servers: Vec<Process>, coordinator: Process) -> Cluster {
        let count = servers.len();
        let cluster = Cluster { servers, _coordinator: coordinator };
        crate::client::until("every server knows every other", || {
            let knows_all = format!("cluster_known_nodes:{count}\r\n");
            let mut infos = cluster.servers.iter().map(|s| s.client().ask(&["CLUSTER", "INFO"]));
            infos.all(|info| {
                let info = info.text();
                info.contains(&knows_all) && info.contains("cluster_state:ok")
            })
        });
        cluster
    }

    /// Returns the client addresses of the servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }
}
