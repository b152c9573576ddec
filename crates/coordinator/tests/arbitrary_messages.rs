//! Whatever servers and operators say, a coordinator goes on, and takes no more memory for it than a
//! cluster of some servers is worth.
//!
//! `BALLAST_TEST_CASES` runs more cases, `BALLAST_TEST_SEED` others.

mod messages;
mod support;

/// Cases when nobody asks for more, and bytes of decisions of each.
const CASES: u64 = 200;
const BYTES: usize = 8_000;
/// Above what the process has before.
const MEMORY_MAX: u64 = 128 << 20;

/// Kinds of messages that the coordinator is brought to say: all but those that are answered at once,
/// and what only a rebuild says.
const KINDS_SAID: u32 = 17;

#[test]
fn a_coordinator_that_is_told_anything_goes_on_and_stays_small() {
    let (cases, seed) = (setting("BALLAST_TEST_CASES", CASES), setting("BALLAST_TEST_SEED", 1));
    let before = reserved_bytes();
    let (mut heard, mut kinds) = (0, 0);
    for case in seed..seed + cases {
        // Which one fails.
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
    // It was not only refused: moves and recoveries have gone through their stages.
    let said = kinds.count_ones();
    assert!(cases < CASES || said >= KINDS_SAID, "only {said} kinds of messages were said");
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Most memory that the process has ever reserved, used or not.
fn reserved_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
    kilobytes.and_then(|number| number.parse::<u64>().ok()).expect("a number of kB") << 10
}
