//! A server survives arbitrary messages from peers and a coordinator, within its memory limit.
//!
//! `BALLAST_TEST_CASES` sets the number of cases, `BALLAST_TEST_SEED` the first one.

mod messages;

/// Default number of cases, and the bytes of random decisions of each.
const CASES: u64 = 1_000;
const BYTES: usize = 6_000;

/// Maximum growth of the reserved memory per case: the arena of the server, and its other memory.
const MEMORY_MAX: u64 = 512 << 20;

/// Minimum number of kinds of messages that the server sends to peers and to the coordinator.
const KINDS_SAID: (u32, u32) = (13, 16);

#[test]
fn a_server_that_is_told_anything_goes_on_and_stays_small() {
    let (cases, seed) = (setting("BALLAST_TEST_CASES", CASES), setting("BALLAST_TEST_SEED", 1));
    let mut all = messages::Talk::default();
    for case in seed..seed + cases {
        // Identifies the case, in case it fails.
        println!("BALLAST_TEST_SEED={case} BALLAST_TEST_CASES=1");
        let mut random = fastrand::Rng::with_seed(case);
        let data: Vec<u8> = (0..BYTES).map(|_| random.u8(..)).collect();
        let before = reserved_bytes("VmSize:");
        let talk = messages::tell_anything(&data);
        all.told += talk.told;
        all.to_peers |= talk.to_peers;
        all.to_coordinator |= talk.to_coordinator;
        let grown = reserved_bytes("VmPeak:").saturating_sub(before);
        assert!(grown <= MEMORY_MAX, "{grown} bytes more than before");
    }
    assert!(all.told as u64 > 50 * cases, "only {} messages were sent", all.told);
    // The messages must not all have been refused: migrations, recoveries and replicas took
    // place.
    let said = (all.to_peers.count_ones(), all.to_coordinator.count_ones());
    assert!(
        cases < CASES || said.0 >= KINDS_SAID.0 && said.1 >= KINDS_SAID.1,
        "only {said:?} kinds of messages were said"
    );
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Returns the memory that the process has reserved (now or at its peak), in bytes.
fn reserved_bytes(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
    kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("a number of kB") << 10
}
