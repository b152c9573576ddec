//! Whatever peers and a coordinator say, a server goes on, and takes no more memory for it than it
//! was given.
//!
//! `BALLAST_TEST_CASES` runs more cases, `BALLAST_TEST_SEED` others.

mod messages;

/// Cases when nobody asks for more, and bytes of decisions of each.
const CASES: u64 = 1_000;
const BYTES: usize = 6_000;

/// Above what the process has before a case: the arena of its server, and what that needs beside.
const MEMORY_MAX: u64 = 512 << 20;

/// Kinds of messages to peers and to the coordinator that the server is brought to say.
const KINDS_SAID: (u32, u32) = (13, 16);

#[test]
fn a_server_that_is_told_anything_goes_on_and_stays_small() {
    let (cases, seed) = (setting("BALLAST_TEST_CASES", CASES), setting("BALLAST_TEST_SEED", 1));
    let mut all = messages::Talk::default();
    for case in seed..seed + cases {
        // Which one fails.
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
    assert!(all.told as u64 > 50 * cases, "only {} messages were told", all.told);
    // It was not only refused: moves, recoveries and replicas have gone through their stages.
    let said = (all.to_peers.count_ones(), all.to_coordinator.count_ones());
    assert!(
        cases < CASES || said.0 >= KINDS_SAID.0 && said.1 >= KINDS_SAID.1,
        "only {said:?} kinds of messages were said"
    );
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Memory that the process has reserved, used or not: now, or at most so far.
fn reserved_bytes(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
    kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("a number of kB") << 10
}
