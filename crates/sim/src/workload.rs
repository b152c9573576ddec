//! What clients do and operators ask for.
//!
//! Keys lie in a few slots, several to each, so that most ranges that move hold some. A few are
//! hot. Half of the registers are pairs of keys in one slot that are only read, written and deleted
//! together: if the two ever differ, a command on several keys was seen half done.

use crate::history::{Action, EXPIRING};
use crate::settings::{Knob, Settings};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use types::{HashRange, HashSeed, KeyHash, Slot, TableId, key_hash};
use wire::control::{MigrationPolicy, PriorityPulls};

/// Slots with keys, and registers in each.
const SLOTS: usize = 24;
const REGISTERS_PER_SLOT: usize = 20;

/// The table of nearly all registers, and that of those which flushes empty.
pub(crate) const TABLE: TableId = TableId(0);
pub(crate) const FLUSHED_TABLE: TableId = TableId(1);

/// What is done with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything but to count.
    Plain,
    /// It holds numbers, and is counted up.
    Counter,
    /// Never deleted, and never to expire: a walk must find it.
    Kept,
    /// Two keys, used as one.
    Pair,
    /// Its table is flushed now and then.
    Flushed,
}

/// One key, or a pair that is used as one.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    pub(crate) table: TableId,
    pub(crate) kind: Kind,
    pub(crate) keys: Vec<(KeyHash, Vec<u8>)>,
    /// How many times as long as usual its values are.
    length: usize,
}

impl Register {
    pub(crate) fn slot(&self) -> Slot {
        self.keys[0].0.slot()
    }

    /// A value as bytes: the number, and, unless it must stay a number, as much filling as its last
    /// digits say.
    pub(crate) fn encode(&self, number: u64) -> Vec<u8> {
        let mut bytes = number.to_string().into_bytes();
        if self.kind != Kind::Counter {
            bytes.push(b' ');
            let filling = (number / 1_000_000 % 300) as usize * self.length;
            bytes.resize(bytes.len() + filling, b'.');
        }
        bytes
    }
}

/// Something that a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// One operation on a register.
    Operation(usize, Action),
    /// Empties a table at this server.
    Flush(usize),
    /// Asks this server for all keys, step by step.
    Walk(usize),
    /// Asks this server how many records a table has.
    Count(usize, TableId),
}

/// What the clients of a run are like.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) registers: Vec<Register>,
    /// Slots that have keys.
    slots: Vec<Slot>,
    /// Which register a key belongs to.
    pub(crate) names: BTreeMap<Vec<u8>, usize>,
    /// Registers that clients use, the first ones.
    used: usize,
    /// Percent of the operations that go to a hot register, and how many are hot.
    hot_percent: u32,
    hot: usize,
    /// Percent of the operations that read.
    read_percent: u32,
    /// Writes to expire, beside 14 other changes of a single key.
    expiring: u32,
    /// One job in so many is a flush, and one is a walk.
    flush_one_in: u32,
    walk_one_in: u32,
    last_value: u64,
    /// A value of each register that some client wrote, to be swapped.
    known: Vec<Option<u64>>,
}

impl Workload {
    pub(crate) fn draw(rng: &mut Rng, seed: &HashSeed, settings: &Settings) -> Workload {
        let mut registers = Vec::new();
        for slot in 0..SLOTS {
            registers.extend((0..REGISTERS_PER_SLOT).map(|number| register(seed, slot, number)));
        }
        rng.shuffle(&mut registers);
        let keys = registers.iter().enumerate().flat_map(|(number, register)| {
            register.keys.iter().map(move |(_, key)| (key.clone(), number))
        });
        let names = keys.collect();
        let slots: BTreeSet<Slot> = registers.iter().map(Register::slot).collect();
        let known = vec![None; registers.len()];
        let used = settings.registers.unwrap_or(registers.len()).clamp(1, registers.len());
        let if_it_has = |knob: Knob, number: u32, none: u32| match settings.has(knob) {
            true => number,
            false => none,
        };
        Workload {
            slots: slots.into_iter().collect(),
            registers,
            names,
            used,
            hot_percent: rng.u32(0..90),
            hot: rng.usize(1..8).min(used),
            read_percent: rng.u32(10..80),
            expiring: if_it_has(Knob::Expiry, [0, 2, 14][rng.usize(..3)], 0),
            flush_one_in: if_it_has(
                Knob::Flushes,
                [200, 1_000, u32::MAX][rng.usize(..3)],
                u32::MAX,
            ),
            walk_one_in: [300, 3_000][rng.usize(..2)],
            last_value: 0,
            known,
        }
    }

    /// Values are so many times as long as usual.
    pub(crate) fn lengthen(&mut self, times: usize) {
        self.registers.iter_mut().for_each(|register| register.length = times);
    }

    /// What a client does next. `None`: the register that it would like is crowded.
    pub(crate) fn next(
        &mut self,
        rng: &mut Rng,
        servers: usize,
        is_crowded: impl Fn(usize) -> bool,
    ) -> Option<Job> {
        if rng.u32(..self.flush_one_in) == 0 {
            return Some(Job::Flush(rng.usize(..servers)));
        }
        if rng.u32(..self.walk_one_in) == 0 {
            return Some(Job::Walk(rng.usize(..servers)));
        }
        let hot = rng.u32(..100) < self.hot_percent;
        let register = rng.usize(..if hot { self.hot } else { self.used });
        if is_crowded(register) {
            return None;
        }
        let action = match rng.u32(..100) < self.read_percent {
            true if rng.u32(..10) == 0 => Action::Probe,
            true => Action::Read,
            false => self.draw_change(rng, register),
        };
        Some(Job::Operation(register, action))
    }

    fn draw_change(&mut self, rng: &mut Rng, register: usize) -> Action {
        let choices = match self.registers[register].kind {
            Kind::Kept => 8,
            Kind::Pair | Kind::Flushed => 10,
            Kind::Plain => 13 + self.expiring,
            Kind::Counter => 17 + self.expiring,
        };
        let is_pair = self.registers[register].keys.len() > 1;
        match rng.u32(..choices) {
            5 if !is_pair => {
                let before = self.known[register].unwrap_or(0);
                Action::Swap(before, self.draw_value(register))
            }
            6 if !is_pair => Action::Exchange(self.draw_value(register)),
            0..=7 => Action::Write(self.draw_value(register)),
            8 => Action::WriteIfAbsent(self.draw_value(register)),
            9..=11 => Action::Delete,
            12 => Action::Take,
            13..=16 if self.registers[register].kind == Kind::Counter => Action::Increment,
            13.. => Action::WriteExpiring(self.draw_value(register) | EXPIRING),
        }
    }

    /// Values are far apart, so that increments of one never reach another.
    fn draw_value(&mut self, register: usize) -> u64 {
        self.last_value += 1_000_000;
        self.known[register] = Some(self.last_value);
        self.last_value
    }

    /// Slots that have keys.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.slots.clone()
    }

    /// Registers that a flush empties, where their server owns them.
    pub(crate) fn flushed(&self) -> impl Iterator<Item = usize> {
        (0..self.registers.len()).filter(|&number| self.registers[number].kind == Kind::Flushed)
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

fn register(seed: &HashSeed, slot: usize, number: usize) -> Register {
    let (kind, parts): (_, &[&str]) = match number {
        0 => (Kind::Flushed, &["one"]),
        1 => (Kind::Flushed, &["left", "right"]),
        2 => (Kind::Kept, &["one"]),
        3..=5 => (Kind::Counter, &["one"]),
        6..=10 => (Kind::Plain, &["one"]),
        _ => (Kind::Pair, &["left", "right"]),
    };
    let table = if kind == Kind::Flushed { FLUSHED_TABLE } else { TABLE };
    let key = |part: &&str| format!("{{{slot}}}:{number}:{part}").into_bytes();
    let keys = parts.iter().map(key).map(|key| (key_hash(seed, &key), key)).collect();
    Register { table, kind, keys, length: 1 }
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

/// How long a value lasts that is written to expire, in milliseconds: mostly not long, so that it
/// ends while its range is on its way; sometimes as long as a server that died needs to be
/// recovered.
pub(crate) fn expiry_millis(number: u64) -> u64 {
    let part = number / 1_000_000 % EXPIRY_PARTS;
    1 + part * part * part * (EXPIRY_MAX_MILLIS - 1) / EXPIRY_PARTS.pow(3)
}

const EXPIRY_PARTS: u64 = 100;

/// No value that is to expire lasts longer.
pub(crate) const EXPIRY_MAX_MILLIS: u64 = 2_000;

/// The number of a value; `None`: this is none of ours.
pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.split(|&byte| byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok())
}
