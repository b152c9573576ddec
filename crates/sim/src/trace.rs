//! Trace of a run: every event is hashed into one fingerprint, so that two runs can be compared,
//! and is printed as a line on request.
//!
//! Most events are bytes in transit. Their bytes are hashed directly, and their line is formatted
//! only if it is printed: formatting unread lines took a third of the time.

use std::fmt::{self, Write};
use types::Instant;

/// Odd multiplier without a pattern in its bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fingerprint of the events of one run so far.
pub(crate) struct Trace {
    hash: u64,
    line: String,
    is_printed: bool,
}

impl Trace {
    pub(crate) fn new(is_printed: bool) -> Trace {
        Trace { hash: FACTOR, line: String::new(), is_printed }
    }

    /// Adds an event that is completely described by its line.
    pub(crate) fn note(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        write!(line, "{now} {what}").expect("a string takes everything");
        self.mix_bytes(line.as_bytes());
        if self.is_printed {
            println!("{line}");
        }
        self.line = line;
    }

    /// Adds an event that these numbers and bytes describe completely; the line is only for
    /// reading.
    pub(crate) fn note_bytes(
        &mut self,
        now: Instant,
        numbers: &[u64],
        bytes: &[u8],
        what: fmt::Arguments<'_>,
    ) {
        self.mix(now.0);
        numbers.iter().for_each(|number| self.mix(*number));
        self.mix_bytes(bytes);
        self.show(now, what);
    }

    /// Prints a line about events that are already part of the fingerprint.
    pub(crate) fn show(&self, now: Instant, what: fmt::Arguments<'_>) {
        if self.is_printed {
            println!("{now} {what}");
        }
    }

    /// Returns the fingerprint of all events so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
    }

    fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(FACTOR);
        self.hash ^= self.hash >> 32;
    }
}
