//! What clients do and operators ask for.
//!
//! Keys lie in a few slots, several to each, so that most ranges that move hold some. A few are
//! hot. Half of the registers are pairs of keys in one slot that are only read, written and deleted
//! together: if the two ever differ, a command on several keys was seen half done.

use crate::history::{Action, EXPIRING};
use fastrand::Rng;
use types::{HashRange, HashSeed, KeyHash, Slot, key_hash};
use wire::control::{MigrationPolicy, PriorityPulls};

/// Slots with keys, and registers in each.
const SLOTS: usize = 24;
const REGISTERS_PER_SLOT: usize = 20;

/// One key, or a pair that is used as one.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    pub(crate) keys: Vec<(KeyHash, Vec<u8>)>,
}

impl Register {
    pub(crate) fn slot(&self) -> Slot {
        self.keys[0].0.slot()
    }
}

/// What the clients of a run are like.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) registers: Vec<Register>,
    /// Percent of the operations that go to a hot register, and how many are hot.
    hot_percent: u32,
    hot: usize,
    /// Percent of the operations that read.
    read_percent: u32,
    /// Writes to expire, beside 14 other changes of a single key.
    expiring: u32,
    last_value: u64,
    /// A value of each register that some client wrote, to be swapped.
    known: Vec<Option<u64>>,
}

impl Workload {
    pub(crate) fn draw(rng: &mut Rng, seed: &HashSeed) -> Workload {
        let mut registers = Vec::new();
        for slot in 0..SLOTS {
            for register in 0..REGISTERS_PER_SLOT {
                let parts: &[&str] = if register % 2 == 0 { &["one"] } else { &["left", "right"] };
                let key = |part: &&str| format!("{{{slot}}}:{register}:{part}").into_bytes();
                let keys = parts.iter().map(key).map(|key| (key_hash(seed, &key), key));
                registers.push(Register { keys: keys.collect() });
            }
        }
        rng.shuffle(&mut registers);
        let known = vec![None; registers.len()];
        Workload {
            registers,
            hot_percent: rng.u32(0..90),
            hot: rng.usize(1..8),
            read_percent: rng.u32(10..80),
            expiring: [0, 2, 14][rng.usize(..3)],
            last_value: 0,
            known,
        }
    }

    /// What a client does next, and to which register.
    pub(crate) fn next(&mut self, rng: &mut Rng) -> (usize, Action) {
        let hot = rng.u32(..100) < self.hot_percent;
        let register = rng.usize(..if hot { self.hot } else { self.registers.len() });
        let is_pair = self.registers[register].keys.len() > 1;
        if rng.u32(..100) < self.read_percent {
            return (register, Action::Read);
        }
        let action = match rng.u32(..if is_pair { 10 } else { 14 + self.expiring }) {
            0..=4 => Action::Write(self.draw_value(register)),
            5 => Action::WriteIfAbsent(self.draw_value(register)),
            6 => Action::Swap(self.known[register].unwrap_or(0), self.draw_value(register)),
            7 | 8 => Action::Delete,
            9 => Action::DeleteBlindly,
            14.. => Action::WriteExpiring(self.draw_value(register) | EXPIRING),
            10..=13 => Action::Increment,
        };
        (register, action)
    }

    /// Values are far apart, so that increments of one never reach another.
    fn draw_value(&mut self, register: usize) -> u64 {
        self.last_value += 1_000_000;
        self.known[register] = Some(self.last_value);
        self.last_value
    }

    /// A range to move: from the slot of some key to that of another.
    pub(crate) fn draw_range(&self, rng: &mut Rng) -> HashRange {
        let mut slot = || self.registers[rng.usize(..self.registers.len())].slot();
        let (one, other) = (slot(), slot());
        let (first, last) = (one.min(other), one.max(other));
        if rng.u32(..4) == 0 {
            HashRange::of_slots(first, first)
        } else {
            HashRange::of_slots(first, last)
        }
    }
}

pub(crate) fn draw_policy(rng: &mut Rng) -> MigrationPolicy {
    MigrationPolicy {
        partitions: rng.u16(1..=8),
        pull_bytes: rng.u32(1024..4096),
        pulls_ahead: rng.u16(1..=4),
        priority: match rng.u32(..6) {
            0 => PriorityPulls::Off,
            1 => PriorityPulls::Immediate,
            _ => PriorityPulls::Batched { hashes_max: rng.u16(1..=16) },
        },
        background_share: 10,
    }
}

/// How long a value lasts that is written to expire, in milliseconds.
pub(crate) fn expiry_millis(number: u64) -> u64 {
    1 + number / 1_000_000 % EXPIRY_MAX_MILLIS
}

/// No value that is to expire lasts longer.
pub(crate) const EXPIRY_MAX_MILLIS: u64 = 100;

/// A value as bytes: the number, and as much filling as its last digits say.
pub(crate) fn encode(number: u64) -> Vec<u8> {
    let mut bytes = number.to_string().into_bytes();
    bytes.push(b' ');
    bytes.resize(bytes.len() + (number / 1_000_000 % 300) as usize, b'.');
    bytes
}

/// The number of a value.
pub(crate) fn decode(bytes: &[u8]) -> u64 {
    let digits = bytes.split(|&byte| byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).expect("values are numbers")
}
