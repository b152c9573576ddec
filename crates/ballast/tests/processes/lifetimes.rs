//! Keys, and fields of hashes, with a time to live under faults: each lives as long as it should, and
//! no longer.
//!
//! A client writes keys and fields that no one else writes, and reads each of them once: shortly
//! before the end of its time to live, or after it. Clocks of servers may be wrong, ranges may move, and
//! servers may die meanwhile.

use crate::client::Client;
use bench::clock;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::Instant;

/// Shortest and longest time to live, in milliseconds. Longer than any recovery, and much shorter
/// than a round of faults.
const LIVES_MS: (u64, u64) = (2_000, 6_000);

/// Difference that moves and recoveries may make: the clocks of servers may differ by half a second
/// each, and a flip or recovery may take as long as clients retry.
const TOLERANCE: Duration = Duration::from_millis(1_200);

/// A clock runs at most a twentieth too fast or too slow.
const RATE_PARTS: u32 = 20;

const PAUSE: Duration = Duration::from_millis(20);
const CONNECT_MAX: Duration = Duration::from_millis(300);
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Number of keys and fields; each is written again when it was read.
const KEYS: usize = 40;

/// The hash of the fields.
const HASH: &str = "lives";

/// A key or a field that was written.
#[derive(Clone, Copy, Debug)]
struct Life {
    begun: Instant,
    written: Instant,
    length: Duration,
    /// Set if the key is read while it must exist; otherwise when it must be gone.
    is_read_early: bool,
}

impl Life {
    /// Returns the time until which the key must exist.
    fn certain_until(&self) -> Instant {
        let certain = (self.length - self.length / RATE_PARTS).saturating_sub(TOLERANCE);
        self.begun + certain
    }

    /// Returns the time from which the key must be gone.
    fn gone_from(&self) -> Instant {
        self.written + self.length + self.length / RATE_PARTS + TOLERANCE
    }

    /// Returns whether it is time to read the key.
    fn is_due(&self, now: Instant) -> bool {
        match self.is_read_early {
            true => now + ANSWER_MAX / 4 >= self.certain_until(),
            false => now >= self.gone_from(),
        }
    }

    /// Returns the error of an answer that was read between two times.
    fn error(&self, exists: bool, begun: Instant, ended: Instant) -> Option<&'static str> {
        match exists {
            false if ended <= self.certain_until() => Some("it expired too early"),
            true if begun >= self.gone_from() => Some("it exists after its time"),
            _ => None,
        }
    }
}

/// Results of a client.
#[derive(Debug, Default)]
pub(crate) struct LivesSeen {
    /// Keys that were seen while they had to exist, and keys that were found gone in time.
    pub(crate) alive: usize,
    pub(crate) gone: usize,
    pub(crate) errors: Vec<String>,
}

/// Writes and reads such keys until it is stopped.
pub(crate) fn watch(addresses: &[SocketAddr], seed: u64, stop: &AtomicBool) -> LivesSeen {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lives: Vec<Option<Life>> = vec![None; KEYS];
    let mut seen = LivesSeen::default();
    while !stop.load(Ordering::Relaxed) {
        let number = random.usize(..KEYS);
        let key = format!("life:{number}");
        match lives[number] {
            None => lives[number] = write(addresses, &key, number % 2 == 1, &mut random),
            Some(life) if life.is_due(clock::now()) => {
                let begun = clock::now();
                let exists = exists(addresses, &key, number % 2 == 1, &mut random);
                let Some(exists) = exists else { continue };
                let ended = clock::now();
                match life.error(exists, begun, ended) {
                    Some(error) => {
                        seen.errors.push(format!("{key}: {error}: {life:?}, {begun}, {ended}"));
                    }
                    None if exists && ended <= life.certain_until() => seen.alive += 1,
                    None if !exists && begun >= life.gone_from() => seen.gone += 1,
                    None => {}
                }
                // A key that is still there expires before it is written again.
                lives[number] = None;
            }
            Some(_) => clock::sleep(PAUSE),
        }
    }
    seen
}

/// Writes a key, or a field, and returns its life. `None` if the outcome is unknown: the write may
/// take effect later.
fn write(
    addresses: &[SocketAddr],
    key: &str,
    is_field: bool,
    random: &mut fastrand::Rng,
) -> Option<Life> {
    let length = Duration::from_millis(random.u64(LIVES_MS.0..=LIVES_MS.1));
    let millis = length.as_millis().to_string();
    let words = match is_field {
        true => vec!["HSETEX", HASH, "PX", &millis, "FIELDS", "1", key, "value"],
        false => vec!["SET", key, "value", "PX", &millis],
    };
    let begun = clock::now();
    let mut order = addresses.to_vec();
    random.shuffle(&mut order);
    for address in order {
        let Some(mut client) = Client::try_connect(address, CONNECT_MAX) else { continue };
        if !client.try_request(&words) {
            return None;
        }
        let answer = client.answer_within(ANSWER_MAX)?;
        if !answer.is_error("") {
            let is_read_early = random.bool();
            return Some(Life { begun, written: clock::now(), length, is_read_early });
        }
    }
    None
}

/// Returns whether a key, or a field, exists, if some server answers that.
fn exists(
    addresses: &[SocketAddr],
    key: &str,
    is_field: bool,
    random: &mut fastrand::Rng,
) -> Option<bool> {
    let mut order = addresses.to_vec();
    random.shuffle(&mut order);
    let words = if is_field { vec!["HEXISTS", HASH, key] } else { vec!["EXISTS", key] };
    let ask = |address| Client::ask_once(address, &words, CONNECT_MAX, ANSWER_MAX);
    order.into_iter().find_map(ask).map(|answer| answer.number() == 1)
}

#[test]
fn a_life_is_judged_by_the_times_around_its_write_and_its_read() {
    let at = |millis| Instant(0) + Duration::from_millis(millis);
    let life = Life {
        begun: at(1_000),
        written: at(1_500),
        length: Duration::from_secs(4),
        is_read_early: true,
    };
    // 4 s - 0.2 s - 1.2 s after the beginning; 4 s + 0.2 s + 1.2 s after the end.
    assert_eq!((life.certain_until(), life.gone_from()), (at(3_600), at(6_900)));
    assert_eq!(life.error(false, at(3_500), at(3_600)), Some("it expired too early"));
    assert_eq!(life.error(false, at(3_500), at(3_601)), None);
    assert_eq!(life.error(true, at(6_900), at(6_950)), Some("it exists after its time"));
    assert_eq!(life.error(true, at(6_899), at(6_950)), None);
}
