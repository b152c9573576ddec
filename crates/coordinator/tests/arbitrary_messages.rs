//! Robustness test: whatever servers and operators send, the coordinator keeps running, and uses
//! no more memory for it than a small cluster needs.
//!
//! `BALLAST_TEST_CASES` sets the number of cases, `BALLAST_TEST_SEED` the first seed.

mod messages;
mod support;

/// Default number of cases, and bytes of decisions for each.
const CASES: u64 = 200;
const BYTES: usize = 8_000;
/// Limit of the memory growth during the test, in bytes.
const MEMORY_MAX: u64 = 128 << 20;

/// Expected kinds of messages from the coordinator: all but immediate answers and those of a
/// rebuild.
const KINDS_SAID: u32 = 17;

#[test]
fn a_coordinator_that_is_told_anything_goes_on_and_stays_small() {
    let (cases, seed) = (setting("BALLAST_TEST_CASES", CASES), setting("BALLAST_TEST_SEED", 1));
    let before = reserved_bytes();
    let (mut heard, mut kinds) = (0, 0);
    for case in seed..seed + cases {
        // Reproduces the case if it fails.
        println!("BALLAST_TEST_SEED={case} BALLAST_TEST_CASES=1");
        let mut random = fastrand::Rng::with_seed(case);
        let data: Vec<u8> = (0..BYTES).map(|_| random.u8(..)).collect();
        let (count, kinds_heard) = messages::tell_anything(&data);
        heard += count;
        kinds |= kinds_heard;
        let grown = reserved_bytes().saturating_sub(before);
        assert!(grown <= MEMORY_MAX, "{grown} bytes more than before");
    }
    assert!(heard as u64 > 50 * cases, "only {heard} messages were answered");
    // Migrations and recoveries must have passed through their stages, not only been refused.
    let said = kinds.count_ones();
    assert!(cases < CASES || said >= KINDS_SAID, "only {said} kinds of messages were sent");
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Returns the peak address space of the process, used or not, in bytes.
fn reserved_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
    kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("a number of kB") << 10
}
