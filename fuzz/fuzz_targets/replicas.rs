//! Replicas of segments, as backups find them in their files.

#![no_main]

#[path = "../../crates/wire/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::replica(data);
});
