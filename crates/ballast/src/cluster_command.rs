//! `ballast cluster`: what an operator asks of a coordinator. It shows how the cluster is, above all
//! what a recovery waits for, and takes the decisions that no program should take.

use crate::cluster_key;
use crate::coordinator_connection::CoordinatorConnection;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::PathBuf;
use types::{HashRange, ServerId, Slot};
use wire::control::{
    Answer, Ask, ClockReport, ClusterMap, Health, Loss, RebuildReport, RecoveryReport,
    RecoveryState, ServerInfo, TabletInfo,
};

/// Look at a cluster, and decide what only people can.
#[derive(Args)]
pub(crate) struct ClusterArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show servers, who owns which slots, what moves, and what recoveries wait for.
    Status {
        #[command(flatten)]
        coordinator: Coordinator,
    },
    /// Recover a dead server without what is missing of its log. What was written there and nowhere
    /// else is lost, for good: also if a disk that has it comes back later.
    AcceptLoss {
        #[command(flatten)]
        coordinator: Coordinator,
        /// The dead server, as in s3.
        server: String,
        /// What is given up, in the words of `ballast cluster status`: "directory", or "segments"
        /// with their numbers. Nothing happens if anything else is missing.
        #[arg(long, value_name = "WHAT")]
        lost: String,
    },
    /// Make a coordinator's file anew from what the servers know. The coordinator must have been
    /// started with --rebuild on an empty folder, at the old one's address; servers come to it by
    /// themselves. Shows what there is; with --go does it.
    Rebuild {
        #[command(flatten)]
        coordinator: Coordinator,
        /// Servers that are missing and are to be taken for dead, as in s3,s5: all of them.
        #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
        without: Vec<String>,
        /// Do it.
        #[arg(long)]
        go: bool,
    },
}

#[derive(Args)]
struct Coordinator {
    /// The cluster's coordinator.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7000")]
    coordinator: String,
    /// File of the cluster key, if the cluster has one.
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<PathBuf>,
}

impl Coordinator {
    fn connect(&self) -> anyhow::Result<CoordinatorConnection> {
        let credentials = cluster_key::credentials(self.cluster_key_file.as_deref())?;
        CoordinatorConnection::open(&self.coordinator, &credentials)
    }

    /// Returns the arguments that lead to it, for a command that a person is to type.
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
        Command::Status { coordinator } => {
            let mut connection = coordinator.connect()?;
            let doubt = doubt(&mut connection)?;
            let (map, recoveries) = (map(&mut connection)?, recoveries(&mut connection)?);
            let (clocks, health) = (clocks(&mut connection)?, health(&mut connection)?);
            let coordinator = coordinator.words();
            let status = Status { doubt, map, recoveries, clocks, health, coordinator };
            print!("{}", status.text());
            Ok(())
        }
        Command::AcceptLoss { coordinator, server, lost } => {
            accept_loss(&coordinator, &server, &lost)
        }
        Command::Rebuild { coordinator, without, go } => rebuild(&coordinator, &without, go),
    }
}

fn map(connection: &mut CoordinatorConnection) -> anyhow::Result<ClusterMap> {
    match connection.ask(Ask::Map)? {
        Answer::Map(map) => Ok(*map),
        other => bail!("the coordinator answers {other:?}"),
    }
}

fn doubt(connection: &mut CoordinatorConnection) -> anyhow::Result<Option<String>> {
    match connection.ask(Ask::Standing)? {
        Answer::Standing(doubt) => Ok(doubt),
        other => bail!("the coordinator answers {other:?}"),
    }
}

fn recoveries(connection: &mut CoordinatorConnection) -> anyhow::Result<Vec<RecoveryReport>> {
    match connection.ask(Ask::Recoveries)? {
        Answer::Recoveries(recoveries) => Ok(recoveries),
        other => bail!("the coordinator answers {other:?}"),
    }
}

fn clocks(connection: &mut CoordinatorConnection) -> anyhow::Result<Vec<ClockReport>> {
    match connection.ask(Ask::Clocks)? {
        Answer::Clocks(clocks) => Ok(clocks),
        other => bail!("the coordinator answers {other:?}"),
    }
}

fn health(connection: &mut CoordinatorConnection) -> anyhow::Result<Health> {
    match connection.ask(Ask::Health)? {
        Answer::Health(health) => Ok(health),
        other => bail!("the coordinator answers {other:?}"),
    }
}

fn accept_loss(coordinator: &Coordinator, server: &str, lost: &str) -> anyhow::Result<()> {
    let dead = server_called(server)?;
    let mut connection = coordinator.connect()?;
    let recoveries = recoveries(&mut connection)?;
    let Some(report) = recoveries.iter().find(|report| report.dead == dead) else {
        bail!("{dead} is not being recovered: see 'ballast cluster status'");
    };
    let Some(loss) = report.loss() else {
        bail!("nothing is known to be missing of the log of {dead}: {}", words(report));
    };
    if loss.to_string() != lost {
        bail!("what is missing of the log of {dead} is: {loss}");
    }
    // What has changed since then the coordinator refuses.
    connection.ask(Ask::AcceptLoss { dead, loss: loss.clone() })?;
    println!("{dead} is recovered without: {loss}");
    Ok(())
}

fn server_called(name: &str) -> anyhow::Result<ServerId> {
    let number = name.strip_prefix('s').unwrap_or(name).parse();
    Ok(ServerId(number.with_context(|| format!("'{name}' is no server: give one as in s3"))?))
}

fn rebuild(coordinator: &Coordinator, without: &[String], go: bool) -> anyhow::Result<()> {
    let without: Vec<ServerId> =
        without.iter().map(|name| server_called(name)).collect::<anyhow::Result<_>>()?;
    let mut connection = coordinator.connect()?;
    let Answer::Rebuild(report) = connection.ask(Ask::Rebuild { without, go })? else {
        bail!("the coordinator does not say what there is");
    };
    let RebuildReport { found, absent, is_done } = report;
    println!("have told what they hold: {}", RebuildReport::names(&found));
    println!("missing: {}", RebuildReport::names(&absent));
    match (is_done, &absent[..]) {
        (true, _) => println!("the coordinator's file is written anew, and the cluster goes on"),
        (false, []) => {
            println!("to go on: ballast cluster rebuild --go {}", coordinator.words())
        }
        (false, _) => println!(
            "They may still come. To go on without them, so that what they own is recovered from \
             their logs:\n  ballast cluster rebuild --without {} --go {}",
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
    /// Arguments that lead to the coordinator.
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
                "warning: the log of {server} is on its own disk only: what it holds is lost with \
                 that disk. Start another server"
            );
        }
        for (range, source, target) in &self.map.moving {
            let _ = writeln!(text, "{} moves from {source} to {target}", slots(&[*range]));
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
                    true => format!("is being recovered by {master}"),
                    false => format!("is {master}'s, and depends on its log still"),
                };
                let _ = writeln!(text, "  {} {what}", slots(&[*range]));
            }
            if !message.is_empty() {
                let _ = writeln!(text, "  last handed back because: {message}");
            }
            if let Some(loss) = report.loss() {
                text.push_str(&self.ways(*dead, &loss));
            }
        }
        text
    }

    /// What an operator can do about something that is missing.
    fn ways(&self, dead: ServerId, loss: &Loss) -> String {
        let what = match loss {
            Loss::Directory => {
                "  Without the directory nobody knows what else is missing: all that anybody has \
                 is read,\n  writes may be gone, and keys that were deleted may be back.\n"
            }
            Loss::Segments { .. } => {
                "  What was written to these segments and nowhere else is gone, and keys that \
                 were deleted there\n  may be back. It is not known which.\n"
            }
        };
        format!(
            "  missing: {loss}\n  It goes on when a server starts on a disk that has it. To go on \
             without:\n{what}  ballast cluster accept-loss {dead} --lost '{loss}' {}\n",
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

/// A member whose clocks are off, and what to do about it.
fn clock(report: &ClockReport) -> String {
    let ClockReport { server, wall_ahead, expiry_ahead } = report;
    let (whose, ahead) = match *wall_ahead {
        0 => ("expiry clock", *expiry_ahead),
        ahead => ("clock", ahead),
    };
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    format!(
        "the {whose} of {server} is {} ms {direction} the others': no slots are moved to or from it. \
         Set its machine's clock right (chrony or ntpd)",
        ahead.unsigned_abs()
    )
}

fn words(report: &RecoveryReport) -> String {
    match report.state {
        RecoveryState::Collecting => "servers are being asked what they hold of its log".into(),
        RecoveryState::ReadingDirectory => "the directory of its log is being read".into(),
        RecoveryState::DirectoryMissing => {
            "waits, nobody who is connected has the directory of its log".into()
        }
        RecoveryState::SegmentsMissing => format!(
            "waits, nobody who is connected has {} of the segments of its log",
            report.missing_total
        ),
        RecoveryState::WaitingForLease => "waits until it serves nothing more for certain".into(),
        RecoveryState::WaitingForServers => {
            "waits for a server that keeps its log and has room".into()
        }
        RecoveryState::Recovering => "under way".into(),
        RecoveryState::WaitingForMigrations => {
            let numbers: Vec<String> = report.waits_for.iter().map(|id| id.to_string()).collect();
            format!("waits for migrations: {}", numbers.join(", "))
        }
        RecoveryState::Freeing => "everything is served, replicas are being freed".into(),
    }
}

/// Slots in as few words as possible. A range may begin or end within a slot.
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
