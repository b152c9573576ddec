//! A short version of the fuzzer's checks, with each run of the tests.

mod checks;

/// Inputs per test, which take about a second.
const INPUTS: usize = 100_000;

/// Returns mostly small numbers: kinds, lengths and ids that are likely to be valid.
fn random_bytes(random: &mut fastrand::Rng, length_max: usize) -> Vec<u8> {
    let length = random.usize(0..length_max);
    let byte = |random: &mut fastrand::Rng| match random.u8(..8) {
        0 => random.u8(..),
        1..=3 => 0,
        _ => random.u8(0..12),
    };
    (0..length).map(|_| byte(random)).collect()
}

/// Returns bytes that usually have the shape of an entry.
fn random_entry(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = random_bytes(random, 90);
    if bytes.len() > 16 && random.u8(..8) > 0 {
        bytes[10] = [1, 2, 0x11][random.usize(..3)];
        bytes[11..14].copy_from_slice(&[random.u8(..20) * random.u8(..2), 0, 0]);
        bytes[14..16].copy_from_slice(&[random.u8(..20), 0]);
    }
    bytes
}

#[test]
fn random_messages_are_refused_or_mean_something() {
    let mut random = fastrand::Rng::with_seed(1);
    let read: usize = (0..INPUTS).map(|_| checks::frames(&random_bytes(&mut random, 60))).sum();
    assert!(read > INPUTS / 100, "only {read} of {INPUTS} were messages: this tests nothing");
}

#[test]
fn random_entries_are_refused_or_mean_something() {
    let mut random = fastrand::Rng::with_seed(1);
    let read = (0..INPUTS).filter(|_| checks::entry(&random_entry(&mut random))).count();
    assert!(read > INPUTS / 10, "only {read} of {INPUTS} were entries: this tests nothing");
}

#[test]
fn random_batches_are_refused_or_mean_something() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut read = 0;
    for _ in 0..INPUTS / 5 {
        let mut bytes = Vec::new();
        for _ in 0..random.usize(0..6) {
            let mut entry = random_entry(&mut random);
            entry.resize(48, 1);
            bytes.extend_from_slice(&entry);
        }
        read += checks::batch(&bytes);
    }
    assert!(read > INPUTS / 10, "only {read} of {INPUTS} were entries: this tests nothing");
}

#[test]
fn random_replicas_are_refused_or_mean_something() {
    let mut random = fastrand::Rng::with_seed(1);
    let pieces: usize =
        (0..INPUTS / 5).map(|_| checks::replica(&random_bytes(&mut random, 300))).sum();
    assert!(pieces > INPUTS, "only {pieces} pieces: this tests nothing");
}

#[test]
fn an_entry_whose_value_is_too_long_for_any_segment_is_refused() {
    let mut bytes = vec![0; 24 + (5 << 20)];
    bytes[10] = 1;
    bytes[11..14].copy_from_slice(&(5u32 << 20).to_le_bytes()[..3]);
    assert!(!checks::entry(&bytes));
}
