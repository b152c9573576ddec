//! Replacement of this process by another program, while its other threads still run.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Replaces this process by a program. Returns only if that fails.
///
/// `std::process::Command::exec` is no substitute: it first sets the action of `SIGPIPE` to its
/// default for the whole process, and a thread that then writes to a closed connection ends it.
///
/// # Errors
/// If the path or an argument contains a zero byte, or the system cannot execute the program.
pub(crate) fn replace_process(
    program: PathBuf,
    arguments: impl Iterator<Item = OsString>,
) -> io::Error {
    let words = std::iter::once(program.into_os_string()).chain(arguments);
    match words.map(|word| CString::new(word.into_vec())).collect::<Result<Vec<_>, _>>() {
        Ok(words) => match nix::unistd::execv(&words[0], &words) {
            Err(error) => error.into(),
        },
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    /// Set in processes that are to be replaced.
    const IS_REPLACED: &str = "BALLAST_TEST_IS_REPLACED";

    /// Number of processes that are replaced. With `std::process::Command::exec`, the first one
    /// already ends by `SIGPIPE` most of the time.
    const PROCESSES: usize = 20;

    #[test]
    fn an_argument_with_a_zero_byte_is_an_error() {
        let error = replace_process("/bin/true".into(), std::iter::once("a\0b".into()));
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn writes_of_other_threads_to_closed_pipes_do_not_end_a_process_that_is_replaced() {
        if std::env::var_os(IS_REPLACED).is_some() {
            let (reader, mut writer) = io::pipe().expect("there are descriptors");
            drop(reader);
            let (begun, begins) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                loop {
                    writer.write_all(b"1").expect_err("nobody reads");
                    begun.send(()).expect("the receiver lives as long as the process");
                }
            });
            begins.recv().expect("the thread has begun");
            let error = replace_process("/bin/true".into(), std::iter::empty());
            panic!("{error}");
        }
        let itself = std::env::current_exe().expect("a process knows its program");
        let name = std::thread::current().name().expect("a test has a name").to_owned();
        for _ in 0..PROCESSES {
            let mut process = Command::new(&itself);
            let status = process.args(["--exact", &name]).env(IS_REPLACED, "1").status();
            let status = status.expect("a test can be started");
            assert!(status.success(), "{status}");
        }
    }
}
