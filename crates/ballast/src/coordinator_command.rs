//! `ballast coordinator`, and the coordinator that a server alone carries in itself.

use anyhow::Context;
use clap::Args;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

/// Start the coordinator of a cluster: who its servers are and who owns what. Never on the data
/// path.
#[derive(Args)]
pub(crate) struct CoordinatorArguments {
    /// Port for servers.
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Folder of the file in which the configuration is kept. Default: nowhere, so that the
    /// cluster ends with this process.
    #[arg(long)]
    data_dir: Option<PathBuf>,
}
