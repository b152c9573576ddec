//! A thread that keeps none of the process's file descriptors open.
//!
//! The kernel closes the sockets of a killed process when the last thread that shares its
//! descriptor table has ended. A thread of the idle scheduling class may not run for seconds on a
//! busy machine. Until then no other server sees its connection to the dead process end.

#![allow(unsafe_code, reason = "a descriptor table is left, and its copies are closed by number")]

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::os::fd::RawFd;
use std::thread::{Builder, JoinHandle};

/// Standard error.
const STREAM_LAST: RawFd = 2;

/// Spawns a thread with its own descriptor table, in which only the standard streams are open.
///
/// `run` must not use any file, socket or other descriptor of the process: such operations fail
/// with "bad file descriptor" in this thread.
///
/// # Errors
/// The thread cannot be spawned. If the system refuses the rest, `run` receives the error, and
/// the thread shares the process's table or has a copy of it.
pub fn spawn_without_descriptors(
    name: &str,
    run: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(move || run(leave_descriptors()))
}

/// Detaches the thread from the descriptor table that the threads of the process share.
fn leave_descriptors() -> io::Result<()> {
    // SAFETY: the thread has just begun and has opened nothing. If its closure captured
    // descriptors, using them here fails with EBADF at worst: no other thread uses this table.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    for number in open_descriptors()?.into_iter().filter(|number| *number > STREAM_LAST) {
        // SAFETY: as above. The table belongs to this thread alone, so no other thread's
        // descriptor is closed or reused.
        unsafe { rustix::io::close(number) };
    }
    Ok(())
}

/// Returns the descriptor numbers that are open in the calling thread's table.
fn open_descriptors() -> io::Result<Vec<RawFd>> {
    const LIST: &str = "/proc/thread-self/fd";
    let list = std::fs::read_dir(LIST)?;
    let named = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<RawFd> = named.collect();
    // The list included its own descriptor, which is closed by now.
    numbers.retain(|number| std::fs::read_link(format!("{LIST}/{number}")).is_ok());
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    #[test]
    fn the_thread_has_no_descriptor_but_the_standard_streams() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let (say, hear) = mpsc::channel();
        let thread = spawn_without_descriptors("alone", move |left| {
            say.send((left.is_ok(), open_descriptors())).expect("the test waits");
        });
        let (has_left, theirs) = hear.recv().expect("the thread reports its descriptors");
        thread.expect("a thread can be spawned").join().expect("it ends");
        assert!(has_left, "Linux lets a thread leave its table");
        let theirs = theirs.expect("Linux lists them");
        assert!(theirs.iter().all(|number| *number <= STREAM_LAST), "{theirs:?}");
        let ours = open_descriptors().expect("Linux lists them");
        assert!(ours.contains(&listener.as_raw_fd()), "our descriptors are unchanged");
        std::net::TcpStream::connect(listener.local_addr().expect("it is bound"))
            .expect("it listens");
    }
}
