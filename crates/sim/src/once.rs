//! Exactly-once requests of the clients, and what they must get for a repetition.
//!
//! In a quarter of the runs, half of the changes are sent as exactly-once requests. Each slot of a
//! client is a client of its own, with a lease that never ends. If the connection breaks, the request
//! is repeated instead of given up: the history then shows it as executed once, at an unknown moment
//! between its beginning and its reply. Requests that were answered are repeated later, some of them
//! after the client has acknowledged the reply.

use crate::failure::{Failure, Rule};
use crate::native;
use crate::settings::{Knob, RunSettings};
use fastrand::Rng;
use resp::RequestWriter;
use std::collections::{BTreeMap, VecDeque};

/// One seed in this many has exactly-once requests.
const SEEDS_PER_RUN: u64 = 4;

/// Mixed into the seed for the separate random numbers of these requests.
const ONCE: u64 = 0x6f6e_6365_6f6e_6365;

/// Lease of slot 0. No coordinator names a horizon as high as this.
const FIRST_LEASE: u64 = 1 << 62;

/// Answered requests of a slot that are remembered.
const REMEMBERED_MAX: usize = 4;

/// Longest value of a register whose replies can be recorded.
const VALUE_BYTES_MAX: usize = 8 << 10;

/// The exactly-once requests of a run.
pub(crate) struct OnceRequests {
    rng: Rng,
    /// Number of the last request, by slot.
    sequences: BTreeMap<usize, u64>,
    /// The unfinished request, by slot.
    open: BTreeMap<usize, OpenOnceRequest>,
    /// Answered requests, by slot, oldest first.
    answered: BTreeMap<usize, VecDeque<AnsweredRequest>>,
}

/// An unfinished request.
struct OpenOnceRequest {
    sequence: u64,
    /// Set once a connection has broken before the reply: the request may have been executed.
    is_ambiguous: bool,
}

/// A request with its reply.
#[derive(Clone, Debug)]
pub(crate) struct AnsweredRequest {
    pub(crate) register: usize,
    sequence: u64,
    /// The request, with the first incomplete number of its time.
    pub(crate) bytes: Vec<u8>,
    reply: String,
}

impl OnceRequests {
    /// Draws whether the run has such requests.
    pub(crate) fn draw(settings: &RunSettings) -> Option<OnceRequests> {
        // With native clients some writes are commands with versions, which are not wrapped here.
        let is_drawn = settings.seed % SEEDS_PER_RUN == 1 && !native::are_used(settings);
        let has_some = settings.has(Knob::Once) && is_drawn;
        has_some.then(|| OnceRequests {
            rng: Rng::with_seed(settings.seed ^ ONCE),
            sequences: BTreeMap::new(),
            open: BTreeMap::new(),
            answered: BTreeMap::new(),
        })
    }

    /// Begins a change of a register, with values up to this length, as an exactly-once request, or
    /// not.
    pub(crate) fn begin(&mut self, slot: usize, value_bytes: usize) {
        if self.rng.bool() && value_bytes <= VALUE_BYTES_MAX {
            let sequence = self.sequences.entry(slot).or_default();
            *sequence += 1;
            let open = OpenOnceRequest { sequence: *sequence, is_ambiguous: false };
            let before = self.open.insert(slot, open);
            assert!(before.is_none(), "a slot has one request at a time");
        }
    }

    /// Returns whether the slot's request is an exactly-once request.
    pub(crate) fn is_open(&self, slot: usize) -> bool {
        self.open.contains_key(&slot)
    }

    /// Returns whether the slot's request may have been executed.
    pub(crate) fn is_ambiguous(&self, slot: usize) -> bool {
        self.open.get(&slot).is_some_and(|open| open.is_ambiguous)
    }

    /// Records that the connection of the slot's request has broken. Returns whether it is to be
    /// repeated.
    pub(crate) fn break_off(&mut self, slot: usize) -> bool {
        let open = self.open.get_mut(&slot);
        open.map(|open| open.is_ambiguous = true).is_some()
    }

    /// Appends the slot's request, which executes this command once.
    pub(crate) fn write(&self, slot: usize, command: &[u8], out: &mut Vec<u8>) {
        match self.open.get(&slot) {
            Some(open) => wrap(slot, open.sequence, command, out),
            None => out.extend_from_slice(command),
        }
    }

    /// Ends the slot's request, if it has one. `command` is the one that was executed, with its
    /// reply; `None`: it was given up.
    pub(crate) fn end(&mut self, slot: usize, register: usize, executed: Option<(&[u8], String)>) {
        let Some(OpenOnceRequest { sequence, .. }) = self.open.remove(&slot) else { return };
        let Some((command, reply)) = executed else { return };
        let mut bytes = Vec::new();
        wrap(slot, sequence, command, &mut bytes);
        let answered = self.answered.entry(slot).or_default();
        answered.push_back(AnsweredRequest { register, sequence, bytes, reply });
        if answered.len() > REMEMBERED_MAX {
            answered.pop_front();
        }
    }

    /// Forgets the answered requests on a register: a loss of power may have taken their effects,
    /// with the records of their completion.
    pub(crate) fn forget(&mut self, register: usize) {
        self.answered.retain(|_, all| {
            all.retain(|it| it.register != register);
            !all.is_empty()
        });
    }

    /// Draws an answered request of a free slot that is sent again, or none.
    pub(crate) fn draw_repetition(&mut self, slot: usize) -> Option<AnsweredRequest> {
        let answered = self.answered.get(&slot)?;
        if self.rng.u32(..3) != 0 {
            return None;
        }
        let newest = self.rng.bool().then(|| answered.back()).flatten();
        newest.or_else(|| answered.get(self.rng.usize(..answered.len()))).cloned()
    }

    /// Checks the reply to a repetition.
    pub(crate) fn check(
        &self,
        slot: usize,
        request: &AnsweredRequest,
        reply: &str,
    ) -> Result<(), Failure> {
        let is_newest = self.sequences.get(&slot) == Some(&request.sequence);
        let is_refused = !is_newest && reply.starts_with("ACKNOWLEDGED ");
        if is_refused || reply == request.reply {
            return Ok(());
        }
        let AnsweredRequest { register, sequence, reply: first, .. } = request;
        let text = format!("request {sequence} of slot {slot} on register {register} got {first}");
        Err(Rule::ExactlyOnce.broken(format!("{text}, and again: {reply}")))
    }
}

/// Appends the request that executes an encoded command once. All earlier requests of the slot are
/// complete.
fn wrap(slot: usize, sequence: u64, command: &[u8], out: &mut Vec<u8>) {
    let end = command.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let (header, arguments) = command.split_at(end);
    let count = std::str::from_utf8(header).ok().and_then(|it| it.trim_end()[1..].parse().ok());
    let count: usize = count.expect("a request begins with the number of its arguments");
    let (lease, sequence) = ((FIRST_LEASE + slot as u64).to_string(), sequence.to_string());
    let numbers = [&lease, &sequence, &sequence];
    let mut prefix = Vec::new();
    RequestWriter::write(&[b"BALLAST.ONCE"], &mut prefix);
    numbers.iter().for_each(|number| {
        prefix.extend_from_slice(format!("${}\r\n{number}\r\n", number.len()).as_bytes());
    });
    let behind = prefix.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    out.extend_from_slice(format!("*{}\r\n", count + 4).as_bytes());
    out.extend_from_slice(&prefix[behind..]);
    out.extend_from_slice(arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_wrapped_whole() {
        let mut command = Vec::new();
        RequestWriter::write(&[b"SET", b"k", b"a\r\nb"], &mut command);
        let mut wrapped = Vec::new();
        wrap(2, 7, &command, &mut wrapped);
        let lease = (FIRST_LEASE + 2).to_string();
        let mut expected = Vec::new();
        let words = [b"BALLAST.ONCE", lease.as_bytes(), b"7", b"7", b"SET", b"k", b"a\r\nb"];
        RequestWriter::write(&words, &mut expected);
        assert_eq!(wrapped, expected);
    }

    #[test]
    fn a_repetition_must_get_the_first_reply_and_an_acknowledged_one_nothing_else() {
        let mut once = OnceRequests::draw(&RunSettings::new(1)).unwrap();
        while !once.is_open(0) {
            once.begin(0, 10);
        }
        let mut command = Vec::new();
        RequestWriter::write(&[b"INCR", b"k"], &mut command);
        once.end(0, 5, Some((&command, "1".to_owned())));
        let request = once.answered[&0][0].clone();
        assert!(once.check(0, &request, "1").is_ok());
        assert!(once.check(0, &request, "2").is_err());
        assert!(once.check(0, &request, "ACKNOWLEDGED x").is_err(), "it is the newest");
        while !once.is_open(0) {
            once.begin(0, 10);
        }
        assert!(once.check(0, &request, "ACKNOWLEDGED x").is_ok());
        assert!(once.check(0, &request, "1").is_ok() && once.check(0, &request, "2").is_err());
    }
}
