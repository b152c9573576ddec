//! Slow commands for `SLOWLOG`, and latency samples for `LATENCY`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::UnixMillis;

/// One slow command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowLogEntry {
    /// Number of the entry. Numbers are consecutive.
    pub(crate) number: u64,
    pub(crate) at: UnixMillis,
    pub(crate) spent: Duration,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) peer: String,
    pub(crate) name: Vec<u8>,
}

/// Slow commands, newest first.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    entries: VecDeque<SlowLogEntry>,
    next: u64,
}

/// Limits of an entry's arguments and of the bytes of each, as in Redis.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENT_BYTES_MAX: usize = 128;

impl SlowLog {
    /// Adds an entry, and drops the oldest ones above `entries_max`.
    pub(crate) fn add(&mut self, mut entry: SlowLogEntry, entries_max: usize) {
        entry.number = self.next;
        self.next += 1;
        self.entries.push_front(entry);
        self.entries.truncate(entries_max);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn youngest(&self, count: usize) -> impl ExactSizeIterator<Item = &SlowLogEntry> {
        self.entries.iter().take(count)
    }
}

/// Shortens the arguments of a request to the limits of the log.
pub(crate) fn shortened(args: &[&[u8]]) -> Vec<Vec<u8>> {
    let kept = if args.len() > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { args.len() };
    let shorten = |argument: &&[u8]| match argument.len().checked_sub(ARGUMENT_BYTES_MAX) {
        None | Some(0) => argument.to_vec(),
        Some(more) => {
            let mut short = argument[..ARGUMENT_BYTES_MAX].to_vec();
            short.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
            short
        }
    };
    let mut short: Vec<_> = args[..kept].iter().map(shorten).collect();
    if kept < args.len() {
        short.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    short
}

/// Samples of one event: second since 1970, and milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments {
    pub(crate) samples: VecDeque<(u64, u64)>,
    pub(crate) longest: u64,
}

/// Most samples kept per event, as in Redis.
const SAMPLES_MAX: usize = 160;

/// Events and their samples.
pub(crate) type Latency = BTreeMap<&'static str, Moments>;

impl Moments {
    /// Adds a sample. Only the longest sample of a second is kept.
    pub(crate) fn record(&mut self, at: UnixMillis, spent: Duration) {
        let (second, millis) = (at.0 / 1000, spent.as_millis() as u64);
        self.longest = self.longest.max(millis);
        match self.samples.back_mut() {
            Some(last) if last.0 == second => last.1 = last.1.max(millis),
            Some(_) | None => {
                self.samples.push_back((second, millis));
                if self.samples.len() > SAMPLES_MAX {
                    self.samples.pop_front();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_are_shortened() {
        let long = [b'x'; 130];
        assert_eq!(shortened(&[b"a", &long])[1].len(), 128 + "... (2 more bytes)".len());
        let many: Vec<&[u8]> = vec![b"a"; 40];
        let short = shortened(&many);
        assert_eq!(short.len(), 32);
        assert_eq!(short[31], b"... (9 more arguments)");
    }

    #[test]
    fn of_a_second_the_longest_moment_is_kept() {
        let mut moments = Moments::default();
        for (at, millis) in [(1_000, 5), (1_900, 9), (1_950, 2), (2_000, 1)] {
            moments.record(UnixMillis(at), Duration::from_millis(millis));
        }
        assert_eq!(moments.samples, [(1, 9), (2, 1)]);
        assert_eq!(moments.longest, 9);
    }
}
