//! What happened, as lines: printed if somebody wants to read them, and always part of one number,
//! so that two runs can be compared.
//!
//! Most events are bytes on their way. Of those the bytes count, and the line is made only if it is
//! printed: making lines that nobody reads took a third of the time.

use std::fmt::{self, Write};
use types::Instant;

/// Odd, and without a pattern in its bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The events of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    line: String,
    is_printed: bool,
}

impl Trace {
    pub(crate) fn new(is_printed: bool) -> Trace {
        Trace { hash: FACTOR, line: String::new(), is_printed }
    }

    /// Adds an event that its line tells wholly.
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

    /// Adds an event that these numbers and bytes tell wholly; the line is for who reads.
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

    /// Shows a line about what other lines have told.
    pub(crate) fn show(&self, now: Instant, what: fmt::Arguments<'_>) {
        if self.is_printed {
            println!("{now} {what}");
        }
    }

    /// The fingerprint of all events so far.
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
