//! Replies: what servers send to our clients.

#![no_main]

#[path = "../../crates/resp/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::replies(data);
});
