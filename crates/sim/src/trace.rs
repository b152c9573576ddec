//! What happened, as lines: printed if somebody wants to read them, and always part of one number,
//! so that two runs can be compared.

use std::fmt::{self, Write};
use types::Instant;

/// FNV-1a's start and factor for 64 bits.
const START: u64 = 0xcbf2_9ce4_8422_2325;
const FACTOR: u64 = 0x0000_0100_0000_01b3;

/// The lines of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    line: String,
    is_printed: bool,
}

impl Trace {
    pub(crate) fn new(is_printed: bool) -> Trace {
        Trace { hash: START, line: String::new(), is_printed }
    }

    /// Adds a line.
    pub(crate) fn note(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        self.line.clear();
        write!(self.line, "{now} {what}").expect("a string takes everything");
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FACTOR);
        }
        if self.is_printed {
            println!("{}", self.line);
        }
    }

    /// The fingerprint of all lines so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}
