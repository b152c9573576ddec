//! Frames of the bus, with messages between servers and of the coordinator.

#![no_main]

#[path = "../../crates/wire/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::frames(data);
});
