//! Errors of commands with impossible arguments: one line with the problem and the remedy.

use std::net::TcpListener;
use std::process::Command;

/// Returns the command's line on standard error. The command must fail.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ballast")).args(arguments).output();
    let output = output.expect("the binary starts");
    assert!(!output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).expect("words");
    // Log messages may precede the error.
    let mut ours = text.lines().filter(|line| line.starts_with("ballast: "));
    let line = ours.next().expect("a line that says why").to_owned();
    assert_eq!(ours.next(), None, "one line: {text}");
    line
}

#[test]
fn a_server_refuses_to_start_with_what_it_cannot_give() {
    for (arguments, said) in [
        (&["--replicas", "0"][..], "between 1 and 16"),
        (&["--data-dir", "/proc/nowhere"], "choose another folder with --data-dir"),
        (&["--memory", "1mb", "--durability", "none"], "at least"),
        (&["--memory", "1000000gb"], "this machine has"),
    ] {
        let text = refusal(&[&["serve"], arguments].concat());
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
}

#[test]
fn a_port_that_is_taken_is_named_once() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let text = refusal(&["serve", "--port", &port, "--bus-port", "0"]);
    assert!(text.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{text}");
    assert_eq!(text.matches("Address already in use").count(), 1, "{text}");
}

#[test]
fn a_move_names_the_server_that_does_not_answer() {
    let text =
        refusal(&["migrate", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--slots", "0"]);
    assert!(text.contains("no server answers at 127.0.0.1:1"), "{text}");
}

#[test]
fn only_a_binary_for_tests_has_faults() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_ballast")).expect("the binary can be read");
    let name = b"BALLAST_FAULTS";
    let has_faults = binary.windows(name.len()).any(|bytes| bytes == name);
    assert_eq!(has_faults, cfg!(feature = "faults"));
}
