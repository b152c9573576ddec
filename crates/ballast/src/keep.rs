//! A hidden command that turns this process into a server which ends with its parent.

use bench::processes::become_child;
use clap::Args;
use std::ffi::OsString;

/// Become COMMAND, and end when the process PARENT ends.
#[derive(Args)]
pub(crate) struct KeepArguments {
    /// Id of the process that started this one.
    parent: u32,
    /// Command to become.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Name of the command; [`main`](crate) uses it.
pub(crate) const NAME: &str = "keep";

pub(crate) fn run(arguments: &KeepArguments) -> anyhow::Result<()> {
    match become_child(arguments.parent, &arguments.command)? {}
}
