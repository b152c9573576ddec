//! A panic in a service ends the process, so that no thread continues with a store in an unknown
//! state.

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
    let this = std::env::current_exe().expect("the test's own path");
    let output = Command::new(this)
        .args(["--exact", "a_panic_in_a_service_ends_the_process_and_says_so", "--nocapture"])
        .env(IS_CHILD, "yes")
        .output()
        .expect("the test can be run again");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(SIGABRT), "{text}");
    assert!(text.contains("reactor 0 panicked"), "{text}");
}

fn panic_in_the_service() {
    let server = server(1, PollPolicy::Sleep);
    let mut client = server.client();
    // The service does not know this operation, and panics.
    send(&mut client, &frame(b'?', &[]));
    server.reactors.join();
}
