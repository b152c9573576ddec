//! The `ballast` binary: the server, the coordinator, and the commands of operators.

#![warn(clippy::unwrap_used)]

mod bench_command;
mod cluster_command;
mod cluster_key;
mod connecting;
mod coordinator_command;
mod coordinator_connection;
mod coordinator_metrics;
mod data_folder;
mod demo;
mod descriptors;
mod file_replacement;
mod folder_mark;
mod host;
mod keep;
mod memory;
mod metrics;
mod migrate;
mod process_replacement;
mod saved;
mod serve;
mod settings_arguments;
mod signals;

use clap::{Parser, Subcommand};
use settings::{LogFormat, LogLevel};
use settings::{OperatorSettings, ServerConfiguration};
use std::io::Write;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An in-memory key-value store that moves data between servers while it is in use.
#[derive(Parser)]
#[command(name = "ballast", version, about, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: BallastCommand,
}

#[derive(Subcommand)]
enum BallastCommand {
    /// Start a server: stand-alone, or as a member of a cluster with --join.
    Serve(serve::ServeArguments),
    /// Start the coordinator of a cluster.
    Coordinator(coordinator_command::CoordinatorArguments),
    /// Show the state of a cluster, and make decisions that need an operator.
    Cluster(cluster_command::ClusterArguments),
    /// Create the key that the processes of a cluster use to authenticate each other.
    Key(cluster_key::KeyArguments),
    /// Move slots from one server to another, and show the progress.
    Migrate(migrate::MigrateArguments),
    /// Demonstrate moving half of a server's data to another server under load.
    ///
    /// Starts a coordinator and two servers on this machine, loads records into the first, sends
    /// requests, moves half of the slots to the second, and reads every record back. Draws the
    /// latency that clients saw, and fails if anything was lost, stale or refused. Removes all
    /// other files. With --crash: four servers that replicate each other's logs, one of which is
    /// killed.
    Demo(demo::DemoArguments),
    /// Generate load for servers of the Redis protocol and measure it, or compare with a rival.
    Bench(bench_command::BenchArguments),
    /// Become a command that ends with its parent.
    #[command(name = keep::NAME, hide = true)]
    Keep(keep::KeepArguments),
}

fn main() -> ExitCode {
    match run(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line for the operator: the error, followed by its causes.
            let _ = writeln!(std::io::stderr(), "ballast: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: CommandLine) -> anyhow::Result<()> {
    // The log settings of a server are part of its configuration.
    let configuration = match &arguments.command {
        BallastCommand::Serve(arguments) => arguments.settings.read()?,
        _ => ServerConfiguration::default(),
    };
    start_log(&configuration.operators);
    match arguments.command {
        BallastCommand::Serve(arguments) => serve::run(&arguments, configuration),
        BallastCommand::Coordinator(arguments) => coordinator_command::run(arguments),
        BallastCommand::Cluster(arguments) => cluster_command::run(arguments),
        BallastCommand::Key(arguments) => cluster_key::run(&arguments),
        BallastCommand::Migrate(arguments) => migrate::run(arguments),
        BallastCommand::Demo(arguments) => demo::run(arguments),
        BallastCommand::Bench(arguments) => bench_command::run(arguments),
        BallastCommand::Keep(arguments) => keep::run(&arguments),
    }
}

fn start_log(settings: &OperatorSettings) {
    let level = match settings.log_level {
        LogLevel::Nothing => "off",
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let filter = EnvFilter::try_from_env("BALLAST_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    // A line that cannot be written (disk full, reader gone) is lost. Reporting that to the same
    // file would panic.
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
