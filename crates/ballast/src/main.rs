//! The one binary of Ballast.

#![forbid(unsafe_code)]

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
mod folder_mark;
mod host;
mod keep;
mod metrics;
mod migrate;
mod node_connection;
mod saved;
mod serve;
mod settings_arguments;
mod signals;

use clap::{Parser, Subcommand};
use server::Configuration;
use server::configuration::{LogFormat, LogLevel};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An in-memory key-value store that moves data between servers while it is being used.
#[derive(Parser)]
#[command(name = "ballast", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a server: alone, or as a part of a cluster with --join.
    Serve(serve::ServeArguments),
    /// Start the coordinator of a cluster.
    Coordinator(coordinator_command::CoordinatorArguments),
    /// Look at a cluster, and decide what only people can.
    Cluster(cluster_command::ClusterArguments),
    /// Make the key that the processes of a cluster prove to each other.
    Key(cluster_key::KeyArguments),
    /// Move slots from one server to another, and watch.
    Migrate(migrate::MigrateArguments),
    /// Watch half of the data of a server move to another one under load.
    ///
    /// Starts a coordinator and two servers on this machine, loads records into the first, offers
    /// requests, moves half of the slots to the second, and reads every record back. Draws what
    /// the clients saw, and fails if anything was lost, stale or refused. Leaves nothing else
    /// behind. With --crash: four servers that keep each other's logs, one of which is killed.
    Demo(demo::DemoArguments),
    /// Offer load to servers of the Redis protocol and measure, or compare with a rival.
    Bench(bench_command::BenchArguments),
    /// Become a command that ends with its parent.
    #[command(name = keep::NAME, hide = true)]
    Keep(keep::KeepArguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line for people: what went wrong, then what caused it.
            eprintln!("ballast: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    // A server's log is a setting of the server.
    let configuration = match &arguments.command {
        Command::Serve(arguments) => arguments.settings.read()?,
        _ => Configuration::default(),
    };
    start_log(&configuration);
    match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments, configuration),
        Command::Coordinator(arguments) => coordinator_command::run(arguments),
        Command::Cluster(arguments) => cluster_command::run(arguments),
        Command::Key(arguments) => cluster_key::run(&arguments),
        Command::Migrate(arguments) => migrate::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Bench(arguments) => bench_command::run(arguments),
        Command::Keep(arguments) => keep::run(&arguments),
    }
}

fn start_log(configuration: &Configuration) {
    let level = match configuration.log_level {
        LogLevel::Nothing => "off",
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let filter = EnvFilter::try_from_env("BALLAST_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match configuration.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
