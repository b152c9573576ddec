//! Messages of peers and a coordinator, told to a server that has something to lose.

#![no_main]

#[path = "../../crates/front/tests/messages/mod.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    messages::tell_anything(data);
});
