//! `ballast coordinator`, and the coordinator embedded in a stand-alone server.

use crate::{cluster_key, coordinator_metrics, metrics};
use anyhow::{Context, bail};
use clap::Args;
use coordinator::{
    ClusterIdentity, CoordinatorSettings, Drawn, MemoryStore, holds_cluster, only_server,
};
use coordinator_server::{FileStore, serve, serve_rebuild, serve_reopening};
use handshake::Credentials;
use runtime::files::make_directory;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::{ClusterId, ServerId};

/// Start the coordinator of a cluster, which manages members and ownership. It is never on the data
/// path.
#[derive(Args)]
pub(crate) struct CoordinatorArguments {
    /// Port for servers.
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// File of the cluster key, the same for all servers: 'ballast key FILE' creates one. It is
    /// read again when it changes. Required unless --bind is a loopback address.
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<PathBuf>,
    /// Folder of the file that stores the cluster's configuration. Default: none, so that the
    /// cluster ends with this process.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Milliseconds that a replicated server may be disconnected before it is declared dead and
    /// recovered.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(10..=5000))]
    failure_timeout: u64,
    /// Milliseconds that a replicated server may stay connected but silent before it is declared
    /// dead: its process is stopped, its machine is gone, or the network is cut.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=5000))]
    silence_timeout: u64,
    /// Port for Prometheus metrics, as http://HOST:PORT/metrics. 0: none.
    #[arg(long, default_value_t = 0)]
    metrics_port: u16,
    /// Accept the file although too few servers have confirmed that it is current, because the
    /// others are gone permanently.
    #[arg(long, requires = "data_dir", conflicts_with = "rebuild")]
    trust_file: bool,
    /// Create a new file in an empty folder from the state of the servers, because the old one is
    /// lost. See `ballast cluster rebuild`.
    #[arg(long, requires = "data_dir")]
    rebuild: bool,
}

pub(crate) fn run(arguments: CoordinatorArguments) -> anyhow::Result<()> {
    let key_file = arguments.cluster_key_file.as_deref();
    let credentials = cluster_key::watched_credentials(&[&arguments.bind.to_string()], key_file)?;
    let listener = listen(SocketAddr::new(arguments.bind, arguments.port))?;
    let address = listener.local_addr()?;
    let (own, proof) = (address.to_string(), credentials.clone());
    let scraped = SocketAddr::new(arguments.bind, arguments.metrics_port);
    metrics::start(scraped, move || coordinator_metrics::page(&own, &proof))?;
    say_to_operator(&format!("ready for servers on {address}"));
    let return_max = Duration::from_millis(arguments.failure_timeout);
    let silence_max = Duration::from_millis(arguments.silence_timeout);
    let trusts_file = arguments.trust_file;
    let settings = CoordinatorSettings {
        return_max,
        silence_max,
        trusts_file,
        ..CoordinatorSettings::default()
    };
    match &arguments.data_dir {
        None => serve(listener, credentials, MemoryStore::default(), drawn()?, settings)?,
        Some(folder) => {
            make_directory(folder)?;
            let store = open(&folder.join("coordinator.redb"))?;
            if !arguments.rebuild && !holds_cluster(&store)? {
                let folder = folder.display();
                say_to_operator(&format!("created a new cluster, since {folder} was empty"));
            }
            match arguments.rebuild {
                true => serve_rebuild(listener, credentials, store, drawn()?, settings)?,
                false => serve(listener, credentials, store, drawn()?, settings)?,
            }
        }
    }
    Ok(())
}

/// Prints a line about the start. It is lost if it cannot be written.
fn say_to_operator(line: &str) {
    let _ = writeln!(io::stdout(), "ballast coordinator: {line}");
}

fn open(file: &Path) -> anyhow::Result<FileStore> {
    FileStore::open(file).with_context(|| {
        format!(
            "cannot use the file {}: if it is damaged, restore its newest copy, or, in a cluster, \
             move it away and start 'ballast coordinator --rebuild'",
            file.display()
        )
    })
}

/// A coordinator inside this process.
pub(crate) struct EmbeddedCoordinator {
    /// The address on which the coordinator listens.
    pub(crate) address: SocketAddr,
    /// The number under which the coordinator knows its server, if any.
    pub(crate) server: Option<(ClusterId, ServerId)>,
}

/// Starts a coordinator inside this process, for a stand-alone server. Its state is stored in
/// `file`, if given.
///
/// # Errors
/// If the file contains no cluster although the server has data.
pub(crate) fn start_embedded(
    file: Option<&Path>,
    has_data: bool,
    credentials: Credentials,
) -> anyhow::Result<EmbeddedCoordinator> {
    let listener = listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?;
    let address = listener.local_addr()?;
    let store = file.map(open).transpose()?;
    if let (Some(file), Some(store), true) = (file, &store, has_data)
        && !holds_cluster(store)?
    {
        bail!(
            "the file {} is empty, but there is a log beside it: restore its newest copy, or \
             start over with an empty folder",
            file.display()
        );
    }
    let server = store.as_ref().map(only_server).transpose()?.flatten();
    let file = file.map(Path::to_path_buf);
    // A server without its coordinator would refuse changes of tables and slots until its end.
    runtime::spawn_vital("coordinator", move || {
        let settings = CoordinatorSettings::default();
        match file {
            Some(file) => {
                let mut store = store;
                let open = || Ok((reopened(store.take(), &file)?, drawn()?));
                serve_reopening(&listener, &credentials, settings, open);
            }
            None => {
                let memory = MemoryStore::default();
                let open = || Ok((memory.clone(), drawn()?));
                serve_reopening(&listener, &credentials, settings, open);
            }
        }
    })?;
    Ok(EmbeddedCoordinator { address, server })
}

/// Returns the store that is already open, or opens the file again. A file that has disappeared
/// meanwhile is not replaced by an empty one.
fn reopened(open_already: Option<FileStore>, file: &Path) -> anyhow::Result<FileStore> {
    match open_already {
        Some(store) => Ok(store),
        None if !file.exists() => bail!("the file {} is missing", file.display()),
        None => open(file),
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen on {address}: is it in use? Choose another port with --port")
    })?;
    // Accepted connections inherit this option.
    runtime::limit_unacknowledged(&listener)?;
    Ok(listener)
}

/// Draws name and seed for a new cluster, and a random id for this coordinator's term.
fn drawn() -> anyhow::Result<Drawn> {
    let bits = runtime::files::random_bits()?;
    let mut random = fastrand::Rng::with_seed(bits as u64);
    let fresh = ClusterIdentity { cluster: ClusterId(random.u64(1..)), seed: random.u64(..) };
    Ok(Drawn { fresh, term: (bits >> 64) as u64 })
}
