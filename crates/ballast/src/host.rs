//! The process around a server: resource usage, configuration file, jobs, and shutdown.

use crate::file_replacement::replace_file;
use anyhow::Context;
use front::host::{HostJob, HostProcess, ProcessUsage};
use node::Supervisor;
use node::reactor_for;
use runtime::{DriverKind, Mailboxes};
use server::shell::Mail;
use settings::ServerConfiguration;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use types::ReactorCounts;
use wire::control::{Answer, FromCoordinator};

/// An event that the main thread waits for.
pub(crate) enum ProcessEvent {
    /// A message from the coordinator.
    Received(FromCoordinator),
    /// A request to shut down.
    ShutDown,
    /// An error after which the server cannot continue.
    Failed(String),
    /// The server was fenced: it cannot continue under its identity.
    Fenced(String),
}

/// The services of the process, as the server uses them.
pub(crate) struct ProcessHost {
    pub(crate) file: Option<PathBuf>,
    pub(crate) mailboxes: Mailboxes<Mail>,
    pub(crate) counts: Box<dyn Fn() -> Vec<ReactorCounts> + Send + Sync>,
    pub(crate) driver: DriverKind,
    pub(crate) clients_max: u32,
    pub(crate) events: Sender<ProcessEvent>,
}

impl HostProcess for ProcessHost {
    fn usage(&self) -> ProcessUsage {
        usage()
    }

    fn reactors(&self) -> Vec<ReactorCounts> {
        (self.counts)()
    }

    fn begin(&self, request: u64, job: HostJob) {
        let (file, mailboxes) = (self.file.clone(), self.mailboxes.clone());
        let work = move || {
            let answer = match execute(job, file.as_deref()) {
                Ok(()) => Answer::Flushed { map: 0 },
                Err(error) => Answer::Refused(format!("{error:#}")),
            };
            let message = FromCoordinator::Answer { request, answer };
            // The request number belongs to this server, so no bound on reactors is needed.
            mailboxes.of(reactor_for(&message, u16::MAX)).send(Mail::Control(message));
        };
        // Without a thread there is no answer, and the request times out.
        if let Err(error) = std::thread::Builder::new().name("job".into()).spawn(work) {
            tracing::warn!(%error, "cannot start a thread for a job");
        }
    }

    fn shut_down(&self) {
        // A closed channel means that the process is already ending.
        let _ = self.events.send(ProcessEvent::ShutDown);
    }

    fn file(&self) -> Option<String> {
        self.file.as_ref().map(|file| file.display().to_string())
    }

    fn clients_max(&self) -> u32 {
        self.clients_max
    }

    fn driver(&self) -> &'static str {
        self.driver.name()
    }
}

/// Reports the node's decision to end, or to restart as a new member, to the main thread.
pub(crate) struct EventSupervisor(pub(crate) Sender<ProcessEvent>);

impl Supervisor for EventSupervisor {
    fn fail(&self, reason: String) {
        // A closed channel means that the process is already ending.
        let _ = self.0.send(ProcessEvent::Failed(reason));
    }

    fn begin_anew(&self, reason: String) {
        // A closed channel means that the process is already ending.
        let _ = self.0.send(ProcessEvent::Fenced(reason));
    }
}

/// Held by the thread that rewrites the file.
static REWRITING: Mutex<()> = Mutex::new(());

fn execute(job: HostJob, file: Option<&Path>) -> anyhow::Result<()> {
    match job {
        HostJob::Rewrite(operators) => {
            let file = file.context("The server is running without a config file")?;
            // The threads use one temporary name, and the last one must write the newest settings.
            let _alone = REWRITING.lock().unwrap_or_else(PoisonError::into_inner);
            rewrite(file, &operators.configuration())
                .with_context(|| format!("Rewriting config file: {}", file.display()))
        }
        HostJob::Sleep(duration) => {
            sleep(duration);
            Ok(())
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a client has asked for it, on a thread of its own")]
fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Writes the settings back to their file.
fn rewrite(file: &Path, configuration: &ServerConfiguration) -> anyhow::Result<()> {
    let text = settings::rewrite(&fs::read_to_string(file)?, configuration)?;
    let name = file.file_name().context("the path has no file name")?.to_string_lossy();
    let beside = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let permissions = fs::metadata(file)?.permissions();
    let written = replace_file(file, &beside, &text, Some(permissions));
    if written.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(&beside);
    }
    Ok(written?)
}

/// Returns the resource usage reported by the operating system. Unavailable values are 0.
fn usage() -> ProcessUsage {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Skip the process name, which may contain any characters.
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| {
        let ticks: u64 = fields.get(at).and_then(|field| field.parse().ok()).unwrap_or(0);
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        number.unwrap_or(0) * 1024
    };
    let machine = rustix::system::sysinfo();
    ProcessUsage {
        user: ticks(11),
        system: ticks(12),
        resident_bytes: kilobytes("VmRSS:"),
        resident_bytes_peak: kilobytes("VmHWM:"),
        machine_bytes: machine.totalram as u64 * u64::from(machine.mem_unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use front::Operators;
    use std::sync::Arc;

    #[test]
    fn a_process_uses_memory() {
        let usage = usage();
        assert!(usage.resident_bytes > 0 && usage.resident_bytes <= usage.machine_bytes);
        assert!(usage.resident_bytes_peak >= usage.resident_bytes / 2);
    }

    #[test]
    fn a_file_of_settings_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ballast.toml");
        fs::write(&file, "# mine\nmaxclients = 1\n").unwrap();
        let mut configuration = ServerConfiguration::default();
        configuration.clients.count_max = 2;
        rewrite(&file, &configuration).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\nmaxclients = 2\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::remove_file(&file).unwrap();
        assert!(rewrite(&file, &configuration).is_err());
    }

    #[test]
    fn concurrent_rewrites_of_the_file_all_succeed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ballast.toml");
        fs::write(&file, "# mine\nmaxclients = 10000\n").unwrap();
        let operators = Arc::new(Operators::new(1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        execute(HostJob::Rewrite(Arc::clone(&operators)), Some(&file)).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\nmaxclients = 10000\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
