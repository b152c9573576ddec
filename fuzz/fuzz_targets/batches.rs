//! Batches of entries, as pulls bring them.

#![no_main]

#[path = "../../crates/wire/tests/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::batch(data);
});
