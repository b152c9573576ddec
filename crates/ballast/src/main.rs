//! The one binary of Ballast.

#![forbid(unsafe_code)]

mod bench_command;
mod coordinator_command;
mod demo;
mod keep;
mod migrate;
mod node_connection;
mod serve;
mod sizes;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

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
    /// Move slots from one server to another, and watch.
    Migrate(migrate::MigrateArguments),
    /// Watch half of the data of a server move to another one under load.
    ///
    /// Starts a coordinator and two servers on this machine, loads records into the first, offers
    /// requests, moves half of the slots to the second, and reads every record back. Draws what
    /// the clients saw, and fails if anything was lost, stale or refused. Leaves nothing else
    /// behind.
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
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BALLAST_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(std::io::stderr)
        .init();
    match arguments.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Coordinator(arguments) => coordinator_command::run(arguments),
        Command::Migrate(arguments) => migrate::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Bench(arguments) => bench_command::run(arguments),
        Command::Keep(arguments) => keep::run(&arguments),
    }
}
