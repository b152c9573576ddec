//! A hidden command: becomes a server that ends with the process that started it.

use bench::processes::become_child;
use clap::Args;
use std::ffi::OsString;

/// Become COMMAND, and end when the process PARENT does.
#[derive(Args)]
pub(crate) struct KeepArguments {
    /// The process that started this one.
    parent: u32,
    /// What to become.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// As it is called; [`main`](crate) names it so.
pub(crate) const NAME: &str = "keep";

pub(crate) fn run(arguments: &KeepArguments) -> anyhow::Result<()> {
    match become_child(arguments.parent, &arguments.command)? {}
}
