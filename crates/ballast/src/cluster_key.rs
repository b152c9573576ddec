//! The cluster key file: `ballast key` creates it. Every process of a cluster reads it, and reads
//! it again when it changes. See `docs/design/trust.md`.

use anyhow::{Context, bail};
use clap::Args;
use handshake::{ClusterKeys, Credentials};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Bytes read from a key file. The limit exceeds every valid file, so that a longer one is noticed.
const FILE_BYTES_MAX: u64 = 8 << 10;
/// Pause between two checks of the file. An operator needs minutes for a change of keys.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Permissions of a file that only its owner may read or write.
const OWNER_ONLY: u32 = 0o600;

/// Create a key for a cluster.
#[derive(Args)]
pub(crate) struct KeyArguments {
    /// File to write the key to, readable by its owner alone. It must not exist yet. Default: print
    /// the key.
    file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &KeyArguments) -> anyhow::Result<()> {
    let key = handshake::new_key().context("cannot read random bytes from the system")?;
    let Some(file) = &arguments.file else {
        println!("{key}");
        return Ok(());
    };
    let mut made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY)
        .open(file)
        .with_context(|| format!("cannot create the file {}", file.display()))?;
    let text = format!("# Cluster key of Ballast: keep it secret.\n{key}\n");
    made.write_all(text.as_bytes())
        .and_then(|()| made.sync_all())
        .with_context(|| format!("cannot write the file {}", file.display()))?;
    println!(
        "{} contains a new key: pass it to every process of the cluster with --cluster-key-file",
        file.display()
    );
    Ok(())
}

/// Returns the credentials of this process, with the keys in `file` if given.
pub(crate) fn credentials(file: Option<&Path>) -> anyhow::Result<Credentials> {
    let keys = file.map(read).transpose()?;
    file.inspect(|file| warn_of_readers(file));
    let generation =
        handshake::new_generation().context("cannot read random bytes from the system")?;
    Ok(Credentials::new(generation, keys))
}

/// Returns the credentials of a process at these addresses, and starts to update them from `file`.
pub(crate) fn watched_credentials(
    hosts: &[&str],
    file: Option<&Path>,
) -> anyhow::Result<Credentials> {
    require_key(hosts, file)?;
    let credentials = credentials(file)?;
    if let Some(file) = file {
        watch(file, &credentials)?;
    }
    Ok(credentials)
}

/// Returns the credentials of a process that is a cluster of its own, with a random key.
pub(crate) fn private_credentials() -> anyhow::Result<Credentials> {
    let random =
        || -> std::io::Result<_> { Ok((handshake::new_generation()?, ClusterKeys::draw()?)) };
    let (generation, keys) = random().context("cannot read random bytes from the system")?;
    Ok(Credentials::new(generation, Some(keys)))
}

/// Refuses addresses that other machines can reach, unless there is a key.
fn require_key(hosts: &[&str], file: Option<&Path>) -> anyhow::Result<()> {
    let exposed = hosts.iter().find(|host| !is_loopback(host));
    match (exposed, file) {
        (Some(host), None) => bail!(
            "{host} is reachable from other machines, and a cluster without a key accepts any \
             process: create a key with 'ballast key cluster.key', and pass the same file to \
             every server, the coordinator and 'ballast cluster' with --cluster-key-file"
        ),
        (Some(_) | None, Some(_)) | (None, None) => Ok(()),
    }
}

/// Returns whether only this machine can reach a host. A name that cannot be resolved counts as
/// another machine.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = |address: IpAddr| address.to_canonical().is_loopback();
    match bare.parse() {
        Ok(address) => is_local(address),
        Err(_) => (bare, 0).to_socket_addrs().is_ok_and(|mut addresses| {
            // A name without addresses does not count as loopback.
            let first = addresses.next();
            first.is_some_and(|first| is_local(first.ip())) && addresses.all(|a| is_local(a.ip()))
        }),
    }
}

/// Returns the host of `HOST:PORT`.
pub(crate) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Starts a thread that updates the credentials when the file changes, and at once on `SIGHUP`. A
/// file without valid keys changes nothing.
fn watch(file: &Path, credentials: &Credentials) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let hang_up = {
        let _within = runtime.enter();
        signal(SignalKind::hangup()).context("cannot register signal handlers")?
    };
    let (file, credentials) = (file.to_owned(), credentials.clone());
    std::thread::Builder::new()
        .name("key".into())
        .spawn(move || runtime.block_on(reload_on_change(&file, &credentials, hang_up)))?;
    Ok(())
}

async fn reload_on_change(file: &Path, credentials: &Credentials, mut hang_up: Signal) {
    let mut known = read(file).map_err(|error| format!("{error:#}"));
    if let Ok(keys) = &known {
        // The file may have changed since the process first read it.
        credentials.change_keys(keys.clone());
    }
    loop {
        // Both a timeout and a signal trigger a check.
        let _ = tokio::time::timeout(LOOK_AGAIN, hang_up.recv()).await;
        let found = read(file).map_err(|error| format!("{error:#}"));
        if found == known {
            continue;
        }
        match &found {
            Ok(keys) => {
                credentials.change_keys(keys.clone());
                tracing::info!(
                    file = %file.display(),
                    "cluster key file changed, connections use {keys:?}"
                );
            }
            Err(error) => {
                tracing::error!(error, "cannot reload the cluster key, keeping the old one")
            }
        }
        known = found;
    }
}

fn read(file: &Path) -> anyhow::Result<ClusterKeys> {
    let shown = file.display();
    let how =
        || format!("cannot read the cluster key file {shown}: 'ballast key {shown}' creates one");
    let opened = File::open(file).with_context(how)?;
    let mode = opened.metadata().with_context(how)?.permissions().mode();
    if mode & 0o002 != 0 {
        bail!("the cluster key file {shown} is writable by other users: chmod 600 {shown}");
    }
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text).with_context(how)?;
    ClusterKeys::parse(&text).with_context(|| format!("the cluster key file {shown} is invalid"))
}

fn warn_of_readers(file: &Path) {
    let mode = fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o044 != 0 {
        let shown = file.display();
        tracing::warn!(
            "the cluster key file {shown} is readable by other users: chmod 600 {shown}"
        );
    }
}

/// Writes a key for child processes that end with this one.
pub(crate) fn make_for_children(folder: &Path) -> anyhow::Result<PathBuf> {
    let file = folder.join("cluster.key");
    // A key of an earlier run is no longer needed.
    let _ = fs::remove_file(&file);
    let key = handshake::new_key().context("cannot read random bytes from the system")?;
    let mut made = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&file)?;
    made.write_all(key.as_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_go_without_a_key() {
        for host in ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
            assert!(require_key(&[host], None).is_ok(), "{host}");
        }
        for host in ["0.0.0.0", "10.1.2.3", "::", "fe80::1", "no such name", ""] {
            let error = require_key(&["127.0.0.1", host], None).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains("ballast key")), "{host}");
            assert!(require_key(&[host], Some(Path::new("key"))).is_ok());
        }
        assert_eq!(host_of("[::1]:7000"), "[::1]");
        assert_eq!(host_of("server.example:7000"), "server.example");
    }

    #[test]
    fn a_key_file_is_made_once_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cluster.key");
        let arguments = KeyArguments { file: Some(file.clone()) };
        assert!(run(&arguments).is_ok());
        let keys = read(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, OWNER_ONLY);
        assert!(run(&arguments).is_err(), "a key that is in use is never lost");
        assert_eq!(read(&file).unwrap(), keys);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&file, "secret").unwrap();
        assert!(format!("{:#}", read(&file).unwrap_err()).contains("ballast key"));
        assert!(read(folder.path()).is_err());
    }
}
