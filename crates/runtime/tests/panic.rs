//! A panic in a service ends the process, so that no thread continues with a store in an unknown
//! state. So does a panic of another thread that the service waits for.

mod common;

use common::{frame, send, server};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use types::PollPolicy;

const DRIVER: runtime::DriverKind = runtime::DriverKind::Epoll;
const IS_CHILD: &str = "RUNTIME_TEST_IS_CHILD";
const SIGABRT: i32 = 6;

#[test]
fn a_panic_in_a_service_ends_the_process_and_says_so() {
    if std::env::var_os(IS_CHILD).is_some() {
        return panic_in_the_service();
    }
    let text = last_words_of("a_panic_in_a_service_ends_the_process_and_says_so");
    assert!(text.contains("thread reactor-0 panicked"), "{text}");
}

#[test]
fn a_panic_of_a_vital_thread_ends_the_process_and_says_so() {
    if std::env::var_os(IS_CHILD).is_some() {
        let thread = runtime::spawn_vital("disk", || panic!("the test wants it"));
        // Without the abort, the child would end in order.
        let _ = thread.expect("a thread starts").join();
        return;
    }
    let text = last_words_of("a_panic_of_a_vital_thread_ends_the_process_and_says_so");
    assert!(text.contains("thread disk panicked"), "{text}");
}

/// Runs a test in a process that must abort. Returns its standard error.
fn last_words_of(test: &str) -> String {
    let this = std::env::current_exe().expect("the test's own path");
    let output = Command::new(this)
        .args(["--exact", test, "--nocapture"])
        .env(IS_CHILD, "yes")
        .output()
        .expect("the test can be run again");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(SIGABRT), "{text}");
    text
}

fn panic_in_the_service() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    // The service does not know this operation, and panics.
    send(&mut client, &frame(b'?', &[]));
    server.reactors.join();
}
