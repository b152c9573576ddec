//! Fault injection for tests of real processes. Only with the feature `faults`, which no shipped
//! binary has.
//!
//! The environment variable `BALLAST_FAULTS` names a file. It is read again at every use, so that
//! a test can change it while the process runs. Each line applies to files with a path prefix, or
//! to the clock:
//!
//! ```text
//! disk /data/one/replicas read-ms=200 write-ms=5 sync-ms=1000
//! disk /data/two read=eio write=full sync=lie
//! clock ahead-ms=3600000
//! machine boot=2
//! ```
//!
//! `sync=lie` makes a sync report success without doing anything. `machine boot=2` makes the process
//! believe that the machine was restarted: its boot id consists of this number.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Environment variable with the path of the fault file.
const VARIABLE: &str = "BALLAST_FAULTS";

/// A file operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOperation {
    Read,
    Write,
    Sync,
}

/// How to continue an operation after its faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFaults {
    Execute,
    /// Skip it, and report success.
    FakeSuccess,
}

/// Applies the configured faults of an operation on a file: waits, fails, or lies.
pub(crate) fn before(path: &Path, operation: DiskOperation) -> io::Result<AfterFaults> {
    let mut after = AfterFaults::Execute;
    for line in script().lines() {
        let Some(faults) = of_path(line, path) else { continue };
        for fault in faults.split_whitespace() {
            let Some((what, how)) = fault.split_once('=') else { continue };
            let Some(kind) = what.strip_prefix(operation.name()) else { continue };
            match (kind, how) {
                ("-ms", pause) => wait(pause),
                ("", "eio") => return Err(rustix::io::Errno::IO.into()),
                ("", "full") => return Err(rustix::io::Errno::NOSPC.into()),
                ("", "lie") => after = AfterFaults::FakeSuccess,
                _ => {}
            }
        }
    }
    Ok(after)
}

/// Returns by how much the wall clock is ahead, in nanoseconds; negative if it is behind.
pub(crate) fn clock_ahead_nanos() -> i64 {
    ahead_millis(&script()).saturating_mul(1_000_000)
}

/// Returns the boot id of the machine, if the file sets it.
pub(crate) fn boot_id() -> Option<[u8; 16]> {
    boot_of(&script())
}

fn boot_of(script: &str) -> Option<[u8; 16]> {
    let numbers = script.lines().filter_map(|line| line.trim().strip_prefix("machine boot="));
    numbers
        .filter_map(|number| number.trim().parse::<u128>().ok())
        .map(u128::to_be_bytes)
        .next_back()
}

fn ahead_millis(script: &str) -> i64 {
    let ahead = script.lines().filter_map(|line| line.trim().strip_prefix("clock ahead-ms="));
    ahead.filter_map(|number| number.trim().parse::<i64>().ok()).sum()
}

impl DiskOperation {
    fn name(self) -> &'static str {
        match self {
            DiskOperation::Read => "read",
            DiskOperation::Write => "write",
            DiskOperation::Sync => "sync",
        }
    }
}

/// Returns the content of the fault file; empty if it does not exist.
fn script() -> String {
    static FILE: OnceLock<Option<OsString>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os(VARIABLE));
    file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default()
}

/// Returns the faults of a line, if it applies to this file.
fn of_path<'l>(line: &'l str, path: &Path) -> Option<&'l str> {
    let (prefix, faults) = line.trim().strip_prefix("disk ")?.split_once(' ')?;
    path.to_str()?.starts_with(prefix).then_some(faults)
}

#[expect(clippy::disallowed_methods, reason = "a disk that is slow keeps its users waiting")]
fn wait(milliseconds: &str) {
    std::thread::sleep(Duration::from_millis(milliseconds.parse().unwrap_or_default()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_about_files_whose_path_begins_like_this() {
        let line = "disk /data/one read-ms=5 sync=lie";
        assert_eq!(
            of_path(line, Path::new("/data/one/replicas/000001")),
            Some("read-ms=5 sync=lie")
        );
        assert_eq!(of_path(line, Path::new("/data/two")), None);
        assert_eq!(of_path("clock ahead-ms=5", Path::new("/data/one")), None);
    }

    #[test]
    fn a_line_says_in_which_boot_of_the_machine_the_process_runs() {
        assert_eq!(
            boot_of("clock ahead-ms=5\nmachine boot=258").map(|id| id[14..] == [1, 2]),
            Some(true)
        );
        assert_eq!(boot_of("machine boot=today"), None);
    }

    #[test]
    fn a_line_says_how_far_the_clock_is_ahead() {
        assert_eq!(ahead_millis("disk /data/one read-ms=5\nclock ahead-ms=-250\n"), -250);
        assert_eq!(ahead_millis("clock ahead-ms=soon\n"), 0);
    }
}
