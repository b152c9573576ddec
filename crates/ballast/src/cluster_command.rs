//! `ballast cluster`: an operator's requests to a coordinator. It shows the state of the cluster,
//! above all the reason why a recovery waits, and makes decisions that must not be automatic.

use crate::cluster_key;
use crate::coordinator_connection::CoordinatorConnection;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::PathBuf;
use types::{HashRange, ServerId, Slot};
use wire::control::{
    Answer, Ask, ClockReport, ClusterMap, Health, LogLoss, RebuildReport, RecoveryReport,
    RecoveryState, ServerInfo, TabletInfo,
};

/// Show the state of a cluster, and make decisions that need an operator.
#[derive(Args)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Show servers, slot owners, migrations, and the reasons why recoveries wait.
    Status {
        #[command(flatten)]
        coordinator: CoordinatorEndpoint,
    },
    /// Recover a dead server without the missing parts of its log. Data that was written only there
    /// is lost permanently, even if a disk with it comes back later.
    AcceptLoss {
        #[command(flatten)]
        coordinator: CoordinatorEndpoint,
        /// The dead server, as in s3.
        server: String,
        /// The missing parts, as printed by `ballast cluster status`: "manifest", or "segments"
        /// with their numbers. The command is refused if anything else is missing.
        #[arg(long, value_name = "WHAT")]
        lost: String,
    },
    /// Rebuild the coordinator's file from the state of the servers. The coordinator must have been
    /// started with --rebuild on an empty folder, at the old one's address. Servers connect to it
    /// by themselves. Without --go, only shows what was found.
    Rebuild {
        #[command(flatten)]
        coordinator: CoordinatorEndpoint,
        /// Missing servers to treat as dead, as in s3,s5. Must name all of them.
        #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
        without: Vec<String>,
        /// Write the new file.
        #[arg(long)]
        go: bool,
    },
}

#[derive(Args)]
struct CoordinatorEndpoint {
    /// The cluster's coordinator.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7000")]
    coordinator: String,
    /// File of the cluster key, if the cluster has one.
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<PathBuf>,
}

impl CoordinatorEndpoint {
    fn connect(&self) -> anyhow::Result<CoordinatorConnection> {
        let credentials = cluster_key::credentials(self.cluster_key_file.as_deref())?;
        CoordinatorConnection::open(&self.coordinator, &credentials)
    }

    /// Returns the arguments that select this coordinator, for commands shown to the operator.
    fn words(&self) -> String {
        match &self.cluster_key_file {
            Some(file) => {
                format!("--coordinator {} --cluster-key-file {}", self.coordinator, file.display())
            }
            None => format!("--coordinator {}", self.coordinator),
        }
    }
}

pub(crate) fn run(arguments: ClusterArguments) -> anyhow::Result<()> {
    match arguments.command {
        ClusterCommand::Status { coordinator } => {
            let mut connection = coordinator.connect()?;
            let status = Status {
                doubt: connection.doubt()?,
                map: connection.map()?,
                recoveries: connection.recoveries()?,
                clocks: connection.clocks()?,
                health: connection.health()?,
                coordinator: coordinator.words(),
            };
            print!("{}", status.text());
            Ok(())
        }
        ClusterCommand::AcceptLoss { coordinator, server, lost } => {
            accept_loss(&coordinator, &server, &lost)
        }
        ClusterCommand::Rebuild { coordinator, without, go } => rebuild(&coordinator, &without, go),
    }
}

fn accept_loss(coordinator: &CoordinatorEndpoint, server: &str, lost: &str) -> anyhow::Result<()> {
    let dead = server_called(server)?;
    let mut connection = coordinator.connect()?;
    let recoveries = connection.recoveries()?;
    let Some(report) = recoveries.iter().find(|report| report.dead == dead) else {
        bail!("{dead} is not being recovered: see 'ballast cluster status'");
    };
    let Some(loss) = report.loss() else {
        bail!("no part of the log of {dead} is known to be missing: {}", words(report));
    };
    // Earlier versions printed the manifest as `directory`.
    let lost = if lost == "directory" { "manifest" } else { lost };
    if loss.to_string() != lost {
        bail!("--lost does not match the missing parts of the log of {dead}, which are: {loss}");
    }
    // The coordinator refuses if the loss has changed since then.
    connection.ask(Ask::AcceptLoss { dead, loss: loss.clone() })?;
    println!("{dead} will be recovered without: {loss}");
    Ok(())
}

fn server_called(name: &str) -> anyhow::Result<ServerId> {
    let number = name.strip_prefix('s').unwrap_or(name).parse();
    Ok(ServerId(
        number.with_context(|| format!("'{name}' is not a server id: use a form like s3"))?,
    ))
}

fn rebuild(coordinator: &CoordinatorEndpoint, without: &[String], go: bool) -> anyhow::Result<()> {
    let without: Vec<ServerId> =
        without.iter().map(|name| server_called(name)).collect::<anyhow::Result<_>>()?;
    let mut connection = coordinator.connect()?;
    let Answer::Rebuild(report) = connection.ask(Ask::Rebuild { without, go })? else {
        bail!("unexpected answer of the coordinator to the rebuild request");
    };
    let RebuildReport { found, absent, is_done } = report;
    println!("servers that reported: {}", RebuildReport::names(&found));
    println!("missing: {}", RebuildReport::names(&absent));
    match (is_done, &absent[..]) {
        (true, _) => println!("the coordinator's file was written, and the cluster resumes"),
        (false, []) => {
            println!("to continue: ballast cluster rebuild --go {}", coordinator.words())
        }
        (false, _) => println!(
            "They may still connect. To continue without them, and recover their data from their \
             logs:\n  ballast cluster rebuild --without {} --go {}",
            RebuildReport::names(&absent),
            coordinator.words()
        ),
    }
    Ok(())
}

struct Status {
    doubt: Option<String>,
    map: ClusterMap,
    recoveries: Vec<RecoveryReport>,
    clocks: Vec<ClockReport>,
    health: Health,
    /// Command-line arguments that select the coordinator.
    coordinator: String,
}

impl Status {
    fn text(&self) -> String {
        let mut text = format!("cluster {}\n", self.map.cluster);
        if let Some(doubt) = &self.doubt {
            let _ = writeln!(text, "warning: {doubt}");
        }
        for server in &self.map.servers {
            let owned = self.map.tablets.iter().filter(|tablet| tablet.owner == server.id);
            let owned: Vec<HashRange> = owned.map(|tablet: &TabletInfo| tablet.range).collect();
            let ServerInfo { id, host, client_port, .. } = server;
            let _ =
                writeln!(text, "{id} {host}:{client_port} {}: {}", state(server), slots(&owned));
        }
        for server in &self.health.on_own_disk {
            let _ = writeln!(
                text,
                "warning: the log of {server} is on its own disk only: its data is lost if that \
                 disk fails. Start another server"
            );
        }
        for (range, source, target) in &self.map.moving {
            let _ = writeln!(text, "{} moving from {source} to {target}", slots(&[*range]));
        }
        for report in &self.clocks {
            let _ = writeln!(text, "{}", clock(report));
        }
        for report in &self.recoveries {
            let RecoveryReport { dead, ranges, message, .. } = report;
            let _ = writeln!(text, "\nrecovery of {dead}: {}", words(report));
            if !ranges.is_empty() {
                let _ = writeln!(text, "  not served yet: {}", slots(ranges));
            }
            for (range, master) in &report.parts {
                let is_its = ranges.iter().any(|other| other.overlaps(*range));
                let what = match is_its {
                    true => format!("being recovered by {master}"),
                    false => format!("owned by {master}, still depending on this log"),
                };
                let _ = writeln!(text, "  {} {what}", slots(&[*range]));
            }
            if !message.is_empty() {
                let _ = writeln!(text, "  last returned because: {message}");
            }
            if let Some(loss) = report.loss() {
                text.push_str(&self.ways(*dead, &loss));
            }
        }
        text
    }

    /// Describes an operator's options if parts of a log are missing.
    fn ways(&self, dead: ServerId, loss: &LogLoss) -> String {
        let what = match loss {
            LogLoss::Manifest => {
                "  Without the manifest it is unknown which segments are missing: all replicas \
                 found are read,\n  writes may be lost, and deleted keys may reappear.\n"
            }
            LogLoss::Segments { .. } => {
                "  Writes that are only in these segments are lost, and keys whose deletion is \
                 only there may\n  reappear. It is unknown which ones.\n"
            }
        };
        format!(
            "  missing: {loss}\n  Recovery continues when a server with this data on its disk \
             starts. To continue without:\n{what}  ballast cluster accept-loss {dead} --lost \
             '{loss}' {}\n",
            self.coordinator
        )
    }
}

fn state(server: &ServerInfo) -> &'static str {
    match (server.is_dead, server.in_recovery, server.connected) {
        (true, true, _) => "dead, being recovered",
        (true, false, _) => "dead",
        (false, _, true) => "connected",
        (false, _, false) => "away",
    }
}

/// Describes a member with a wrong clock, and the remedy.
fn clock(report: &ClockReport) -> String {
    let ClockReport { server, wall_ahead, expiry_ahead } = report;
    let (which, ahead) = match *wall_ahead {
        0 => ("expiry clock", *expiry_ahead),
        ahead => ("clock", ahead),
    };
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    format!(
        "the {which} of {server} is {} ms {direction} the others': no slots are moved to or from \
         it. Correct the clock of its machine (chrony or ntpd)",
        ahead.unsigned_abs()
    )
}

fn words(report: &RecoveryReport) -> String {
    match report.state {
        RecoveryState::Collecting => "asking servers for replicas of its log".into(),
        RecoveryState::ReadingManifest => "reading the manifest of its log".into(),
        RecoveryState::ManifestMissing => {
            "waiting, no connected server has the manifest of its log".into()
        }
        RecoveryState::SegmentsMissing => format!(
            "waiting, no connected server has {} of the segments of its log",
            report.missing_total
        ),
        RecoveryState::WaitingForLease => "waiting until its read lease has expired".into(),
        RecoveryState::WaitingForServers => {
            "waiting for a server with a replicated log and enough memory".into()
        }
        RecoveryState::Recovering => "in progress".into(),
        RecoveryState::WaitingForMigrations => {
            let numbers: Vec<String> = report.waits_for.iter().map(|id| id.to_string()).collect();
            format!("waiting for migrations: {}", numbers.join(", "))
        }
        RecoveryState::Freeing => "all data is served, freeing replicas".into(),
    }
}

/// Formats slots compactly. A range may begin or end within a slot.
fn slots(ranges: &[HashRange]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for range in ranges {
        let (Slot(first), Slot(last)) = range.slots();
        match runs.last_mut() {
            Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
            _ => runs.push((first, last)),
        }
    }
    let run = |&(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    match &runs[..] {
        [] => "no slots".into(),
        runs => format!("slots {}", runs.iter().map(run).collect::<Vec<_>>().join(" ")),
    }
}
