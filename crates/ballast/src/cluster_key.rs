//! The file of the cluster key: `ballast key` makes it, every process of a cluster reads it, and
//! reads it again when it changes. See `docs/design/trust.md`.

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

/// Longest key file, with room to notice that it is longer.
const FILE_BYTES_MAX: u64 = 8 << 10;
/// Pause between two looks at the file: a change of keys takes a person minutes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Permissions of a file that only its owner may read or write.
const OWNER_ONLY: u32 = 0o600;

/// Make a key for a cluster.
#[derive(Args)]
pub(crate) struct KeyArguments {
    /// File to write the key to, readable by its owner alone. It must not exist yet. Default: the
    /// key is printed.
    file: Option<PathBuf>,
}

pub(crate) fn run(arguments: &KeyArguments) -> anyhow::Result<()> {
    let key = handshake::new_key().context("the system has no random bytes")?;
    let Some(file) = &arguments.file else {
        println!("{key}");
        return Ok(());
    };
    let mut made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY)
        .open(file)
        .with_context(|| format!("the file {} cannot be made", file.display()))?;
    let text = format!("# Cluster key of Ballast: keep it secret.\n{key}\n");
    made.write_all(text.as_bytes())
        .and_then(|()| made.sync_all())
        .with_context(|| format!("the file {} cannot be written", file.display()))?;
    println!(
        "{} holds a new key: give it to every process of the cluster with --cluster-key-file",
        file.display()
    );
    Ok(())
}

/// The credentials of this process, with the keys in `file` if there is one.
pub(crate) fn credentials(file: Option<&Path>) -> anyhow::Result<Credentials> {
    let keys = file.map(read).transpose()?;
    file.inspect(|file| warn_of_readers(file));
    let generation = handshake::new_generation().context("the system has no random bytes")?;
    Ok(Credentials::new(generation, keys))
}

/// The credentials of a process whose cluster is itself: no other process has its key.
pub(crate) fn private_credentials() -> anyhow::Result<Credentials> {
    let random =
        || -> std::io::Result<_> { Ok((handshake::new_generation()?, ClusterKeys::draw()?)) };
    let (generation, keys) = random().context("the system has no random bytes")?;
    Ok(Credentials::new(generation, Some(keys)))
}

/// Refuses an address that other machines reach where there is no key.
pub(crate) fn require_key(hosts: &[&str], file: Option<&Path>) -> anyhow::Result<()> {
    let exposed = hosts.iter().find(|host| !is_loopback(host));
    match (exposed, file) {
        (Some(host), None) => bail!(
            "processes on other machines are met at {host}, and a cluster without a key believes \
             everybody: make a key with 'ballast key cluster.key', and give the same file to every \
             server, the coordinator and 'ballast cluster' with --cluster-key-file"
        ),
        (Some(_) | None, Some(_)) | (None, None) => Ok(()),
    }
}

/// Returns whether only this machine reaches a host. A name that cannot be resolved counts as
/// another machine's.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = |address: IpAddr| address.to_canonical().is_loopback();
    match bare.parse() {
        Ok(address) => is_local(address),
        Err(_) => (bare, 0).to_socket_addrs().is_ok_and(|mut addresses| {
            // A name without addresses leads nowhere.
            let first = addresses.next();
            first.is_some_and(|first| is_local(first.ip())) && addresses.all(|a| is_local(a.ip()))
        }),
    }
}

/// Returns the host of `HOST:PORT`.
pub(crate) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// From here on the credentials follow the file: when it changes, and at once on `SIGHUP`. A file
/// that holds no keys any more changes nothing.
pub(crate) fn watch(file: &Path, credentials: &Credentials) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let hang_up = {
        let _within = runtime.enter();
        signal(SignalKind::hangup()).context("signals cannot be waited for")?
    };
    let (file, credentials) = (file.to_owned(), credentials.clone());
    std::thread::Builder::new()
        .name("key".into())
        .spawn(move || runtime.block_on(follow(&file, &credentials, hang_up)))?;
    Ok(())
}

async fn follow(file: &Path, credentials: &Credentials, mut hang_up: Signal) {
    let mut known = read(file).map_err(|error| format!("{error:#}"));
    if let Ok(keys) = &known {
        // It may have changed since the process read it first.
        credentials.change_keys(keys.clone());
    }
    loop {
        // Either is a reason to look.
        let _ = tokio::time::timeout(LOOK_AGAIN, hang_up.recv()).await;
        let found = read(file).map_err(|error| format!("{error:#}"));
        if found == known {
            continue;
        }
        match &found {
            Ok(keys) => {
                credentials.change_keys(keys.clone());
                tracing::info!(file = %file.display(), "connections are proven with {keys:?} now");
            }
            Err(error) => tracing::error!(error, "the cluster key stays as it is"),
        }
        known = found;
    }
}

fn read(file: &Path) -> anyhow::Result<ClusterKeys> {
    let shown = file.display();
    let how =
        || format!("the cluster key file {shown} cannot be read: 'ballast key {shown}' makes one");
    let opened = File::open(file).with_context(how)?;
    let mode = opened.metadata().with_context(how)?.permissions().mode();
    if mode & 0o002 != 0 {
        bail!("anybody can change the cluster key file {shown}: chmod 600 {shown}");
    }
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text).with_context(how)?;
    ClusterKeys::parse(&text).with_context(|| format!("the cluster key file {shown} is of no use"))
}

/// Warns of a key file that others can read.
fn warn_of_readers(file: &Path) {
    let mode = fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o044 != 0 {
        let shown = file.display();
        tracing::warn!("others can read the cluster key file {shown}: chmod 600 {shown}");
    }
}

/// Writes a key for processes that end with this one.
pub(crate) fn make_for_children(folder: &Path) -> anyhow::Result<PathBuf> {
    let file = folder.join("cluster.key");
    // One of an earlier run is worth nothing.
    let _ = fs::remove_file(&file);
    let key = handshake::new_key().context("the system has no random bytes")?;
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
