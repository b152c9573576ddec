//! Keys, client operations, and the moves that operators ask for.
//!
//! Keys lie in a few slots, several in each, so that most moving ranges contain some. A few keys
//! are hot. Half of the registers are pairs of keys in one slot that are only read, written and
//! deleted together. If the two keys ever differ, a client has seen a half executed command.

use crate::clock_faults::FarClocks;
use crate::collections::{Collections, GrowthRoom, RegisterShape};
use crate::history::{EXPIRING_FIELD, Lifetime, NumberedParts, RegisterAction, is_string};
use crate::lifetimes::LifetimeOperations;
use crate::settings::{Knob, RunSettings};
use crate::typed;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use types::{HashRange, HashSeed, KeyHash, Slot, TableId, UnixMillis, key_hash};
use wire::control::{MigrationPolicy, PriorityPullMode};

/// Number of slots with keys, and number of registers in each.
const SLOTS: usize = 24;
const REGISTERS_PER_SLOT: usize = 20;

/// Table of nearly all registers, and table of the registers that flushes empty.
pub(crate) const TABLE: TableId = TableId(0);
pub(crate) const FLUSHED_TABLE: TableId = TableId(1);

/// Use of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterKind {
    /// All operations except increments.
    Plain,
    /// Contains numbers and is incremented.
    Counter,
    /// Never deleted and never expiring: a scan must find it.
    Permanent,
    /// Two keys that are used as one.
    Pair,
    /// Its table is flushed now and then.
    Flushed,
}

/// One key, or a pair that is used as one.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    pub(crate) table: TableId,
    pub(crate) kind: RegisterKind,
    pub(crate) keys: Vec<(KeyHash, Vec<u8>)>,
    pub(crate) shape: RegisterShape,
    /// Set if a field has a time to live of its own, and the key has none.
    pub(crate) has_timed_field: bool,
    /// Factor by which its filler is longer than usual.
    length: usize,
    /// Factor by which its values live longer than usual.
    life: u64,
}

impl Register {
    pub(crate) fn slot(&self) -> Slot {
        self.keys[0].0.slot()
    }

    /// Encodes a value: the number, and filler (except in counters), with a length computed from
    /// the number.
    pub(crate) fn encode(&self, number: u64) -> Vec<u8> {
        let mut bytes = number.to_string().into_bytes();
        if self.kind != RegisterKind::Counter {
            bytes.push(b' ');
            let filling = (number / VALUE_DISTANCE) as usize % FILLING_MAX * self.length;
            bytes.resize(bytes.len() + filling, b'.');
        }
        bytes
    }

    /// Encodes the number of a part of a value, with filler.
    pub(crate) fn encode_part(&self, number: u64) -> Vec<u8> {
        let mut bytes = number.to_string().into_bytes();
        bytes.push(b' ');
        let number = number as usize % FILLING_MAX;
        let filling = number * FILLING_STEP % FILLING_MAX * self.length;
        bytes.resize(bytes.len() + filling, b'.');
        bytes
    }

    /// Returns the most bytes of a value.
    pub(crate) fn value_bytes_max(&self) -> usize {
        24 + FILLING_MAX * self.length
    }

    /// Returns the length of a time to live in milliseconds. Most are short, so that the value
    /// expires while its range moves; some are as long as the recovery of a dead server.
    pub(crate) fn expiry_millis(&self, number: u64) -> u64 {
        let part = number / VALUE_DISTANCE % EXPIRY_PARTS;
        let millis = 1 + part * part * part * (EXPIRY_MAX_MILLIS - 1) / EXPIRY_PARTS.pow(3);
        millis * self.life
    }
}

/// Client's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientJob {
    Operation(usize, RegisterAction),
    /// Sends an answered exactly-once request on this register again.
    Repetition(usize),
    /// Empties a table at this server.
    Flush(usize),
    /// Scans all keys of this server, step by step.
    Walk(usize),
    /// Asks this server for the number of records in a table.
    Count(usize, TableId),
}

/// Properties of the clients of a run.
pub(crate) struct Workload {
    pub(crate) registers: Vec<Register>,
    /// Slots that contain keys.
    slots: Vec<Slot>,
    /// Register of each key.
    pub(crate) names: BTreeMap<Vec<u8>, usize>,
    /// Number of registers in use; these are the first ones.
    used: usize,
    /// Percentage of operations on hot registers, and number of hot registers.
    hot_percent: u32,
    hot: usize,
    /// Percentage of operations that read.
    read_percent: u32,
    /// Weight of expiring writes, beside a weight of 13 (plain) or 17 (counter) for all other
    /// changes.
    expiring: u32,
    /// Operations on times to live, which replace others.
    lifetimes: Option<LifetimeOperations>,
    /// Operations on parts of values, which replace others.
    pub(crate) collections: Option<Collections>,
    /// One job in this many is a flush, and one in this many a scan.
    flush_one_in: u32,
    scan_one_in: u32,
    last_value: u64,
    /// Newest value that was drawn for each register, as the expected value of a swap.
    known: Vec<Option<u64>>,
}

impl Workload {
    pub(crate) fn draw(rng: &mut Rng, seed: &HashSeed, settings: &RunSettings) -> Workload {
        let mut registers = Vec::new();
        for slot in 0..SLOTS {
            registers.extend((0..REGISTERS_PER_SLOT).map(|number| register(seed, slot, number)));
        }
        rng.shuffle(&mut registers);
        let far = FarClocks::draw(settings);
        if let Some(far) = &far {
            registers.iter_mut().for_each(|register| register.life = far.life);
        }
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
        let least = if far.is_some() { 14 } else { 0 };
        let mut workload = Workload {
            slots: slots.into_iter().collect(),
            registers,
            names,
            used,
            hot_percent: rng.u32(0..90),
            hot: rng.usize(1..8).min(used),
            read_percent: rng.u32(10..80),
            expiring: if_it_has(Knob::Expiry, [least, 2, 14][rng.usize(..3)], 0),
            lifetimes: LifetimeOperations::draw(settings),
            collections: Collections::draw(settings),
            flush_one_in: if_it_has(
                Knob::Flushes,
                [200, 1_000, u32::MAX][rng.usize(..3)],
                u32::MAX,
            ),
            scan_one_in: [300, 3_000][rng.usize(..2)],
            last_value: 0,
            known,
        };
        if typed::are_used(settings) {
            workload.make_hashes(typed::do_fields_expire(settings));
        }
        if let Some(collections) = &mut workload.collections {
            collections.make(&mut workload.registers);
        }
        workload
    }

    fn make_hashes(&mut self, do_fields_expire: bool) {
        for number in 0..self.registers.len() {
            let may_be_one = do_fields_expire || !self.may_expire(number);
            let register = &mut self.registers[number];
            if may_be_one && typed::is_hash(number, register) {
                register.shape = RegisterShape::Hash;
            }
        }
    }

    /// Makes the filler of all values this many times longer.
    pub(crate) fn lengthen(&mut self, times: usize) {
        self.registers.iter_mut().for_each(|register| register.length = times);
    }

    /// Draws the next job of a client, whose clock shows `wall`. Returns `None` if the drawn register
    /// has too many open operations. `room` tells of a register how it may grow.
    pub(crate) fn next(
        &mut self,
        rng: &mut Rng,
        servers: usize,
        wall: UnixMillis,
        is_crowded: impl Fn(usize) -> bool,
        room: impl Fn(usize) -> GrowthRoom,
    ) -> Option<ClientJob> {
        if rng.u32(..self.flush_one_in) == 0 {
            return Some(ClientJob::Flush(rng.usize(..servers)));
        }
        if rng.u32(..self.scan_one_in) == 0 {
            return Some(ClientJob::Walk(rng.usize(..servers)));
        }
        let register = self.draw_register(rng);
        if is_crowded(register) {
            return None;
        }
        let action = self.draw_action(rng, register, wall);
        let action = match &mut self.collections {
            Some(collections) if self.registers[register].shape.has_parts() => {
                let room = room(register);
                collections.possible(register, &self.registers[register], action, room)
            }
            _ => action,
        };
        Some(ClientJob::Operation(register, action))
    }

    /// Draws a register, often a hot one.
    pub(crate) fn draw_register(&self, rng: &mut Rng) -> usize {
        let hot = rng.u32(..100) < self.hot_percent;
        rng.usize(..if hot { self.hot } else { self.used })
    }

    /// Draws an operation on a register.
    pub(crate) fn draw_action(
        &mut self,
        rng: &mut Rng,
        register: usize,
        wall: UnixMillis,
    ) -> RegisterAction {
        let action = match rng.u32(..100) < self.read_percent {
            true if rng.u32(..10) == 0 => RegisterAction::Probe,
            true => RegisterAction::Read,
            false => self.draw_change(rng, register),
        };
        let action = self.draw_lifetime_operation(register, wall).unwrap_or(action);
        match self.registers[register].shape {
            RegisterShape::Hash => typed::possible(&self.registers[register], action),
            _ => action,
        }
    }

    /// Draws an operation on the time to live of a register, if this one gets any.
    fn draw_lifetime_operation(
        &mut self,
        register: usize,
        wall: UnixMillis,
    ) -> Option<RegisterAction> {
        if !self.may_expire(register) {
            return None;
        }
        let number = self.last_value + VALUE_DISTANCE;
        let until = wall.0 + self.registers[register].expiry_millis(number);
        let action = self.lifetimes.as_mut()?.next(number, until)?;
        self.last_value = number;
        Some(action)
    }

    fn draw_change(&mut self, rng: &mut Rng, register: usize) -> RegisterAction {
        let choices = match self.registers[register].kind {
            RegisterKind::Permanent => 8,
            RegisterKind::Pair | RegisterKind::Flushed => 10,
            RegisterKind::Plain => 13 + self.expiring,
            RegisterKind::Counter => 17 + self.expiring,
        };
        let is_pair = self.registers[register].keys.len() > 1;
        match rng.u32(..choices) {
            5 if !is_pair => {
                let before = self.known[register].unwrap_or(0);
                RegisterAction::Swap(before, self.draw_value(register))
            }
            6 if !is_pair => RegisterAction::Exchange(self.draw_value(register)),
            0..=7 => RegisterAction::Write(self.draw_value(register)),
            8 => RegisterAction::WriteIfAbsent(self.draw_value(register)),
            9..=11 => RegisterAction::Delete,
            12 => RegisterAction::Take,
            13..=16 if self.registers[register].kind == RegisterKind::Counter => {
                RegisterAction::Increment
            }
            13.. => {
                let value = self.draw_value(register) | EXPIRING;
                RegisterAction::WriteExpiring(value, Lifetime::After(value))
            }
        }
    }

    pub(crate) fn draw_value(&mut self, register: usize) -> u64 {
        self.last_value += VALUE_DISTANCE;
        self.known[register] = Some(self.last_value);
        self.last_value
    }

    /// Returns whether values of a register may have a time to live.
    pub(crate) fn may_expire(&self, register: usize) -> bool {
        self.expiring > 0
            && matches!(self.registers[register].kind, RegisterKind::Plain | RegisterKind::Counter)
    }

    /// Returns the registers with values that may expire, and their hashes.
    pub(crate) fn expiring(&self) -> impl Iterator<Item = (usize, KeyHash)> {
        let registers = self.registers.iter().enumerate();
        let registers = registers.filter(|(number, _)| self.may_expire(*number));
        registers.map(|(number, register)| (number, register.keys[0].0))
    }

    /// Returns whether a value of a register may have a time to live.
    pub(crate) fn has_lifetime(&self, register: usize, value: u64) -> bool {
        match self.lifetimes {
            Some(_) => self.may_expire(register),
            None if self.registers[register].shape.has_parts() => false,
            None => value & EXPIRING != 0,
        }
    }

    /// Returns whether a register has this value (`None`: it does not exist) when the time to live of
    /// a field of another one, as it was seen, has ended.
    pub(crate) fn may_become(&self, register: usize, seen: u64, value: Option<u64>) -> bool {
        let register = &self.registers[register];
        register.has_timed_field
            && !is_string(seen)
            && NumberedParts::of(seen).with(EXPIRING_FIELD, None).number() == value
    }

    /// Returns the slots that contain keys.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the registers with keys in a range.
    pub(crate) fn registers_in(&self, range: HashRange) -> impl Iterator<Item = usize> {
        let registers = self.registers.iter().enumerate();
        let inside = registers.filter(move |(_, register)| range.contains(register.keys[0].0));
        inside.map(|(number, _)| number)
    }

    /// Returns the registers that a flush empties if their server owns them.
    pub(crate) fn flushed(&self) -> impl Iterator<Item = usize> {
        (0..self.registers.len())
            .filter(|&number| self.registers[number].kind == RegisterKind::Flushed)
    }

    /// Draws a range to move: from the slot of some key to that of another.
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
        0 => (RegisterKind::Flushed, &["one"]),
        1 => (RegisterKind::Flushed, &["left", "right"]),
        2 => (RegisterKind::Permanent, &["one"]),
        3..=5 => (RegisterKind::Counter, &["one"]),
        6..=10 => (RegisterKind::Plain, &["one"]),
        _ => (RegisterKind::Pair, &["left", "right"]),
    };
    let table = if kind == RegisterKind::Flushed { FLUSHED_TABLE } else { TABLE };
    let key = |part: &&str| format!("{{{slot}}}:{number}:{part}").into_bytes();
    let keys = parts.iter().map(key).map(|key| (key_hash(seed, &key), key)).collect();
    let (shape, has_timed_field) = (RegisterShape::String, false);
    Register { table, kind, keys, shape, has_timed_field, length: 1, life: 1 }
}

pub(crate) fn draw_policy(rng: &mut Rng) -> MigrationPolicy {
    let partitions = rng.u16(1..=8);
    let pull_bytes = rng.u32(1024..4096);
    MigrationPolicy {
        partitions,
        pull_bytes,
        pulls_ahead: rng.u16(1..=4),
        priority: match rng.u32(..6) {
            0 => PriorityPullMode::Off,
            1 => PriorityPullMode::Immediate,
            _ => PriorityPullMode::Batched { hashes_max: rng.u16(1..=16) },
        },
        background_share: 10,
        // Derived and not drawn, so that seeds keep their meaning.
        latency_p99_micros: if pull_bytes.is_multiple_of(4) { pull_bytes } else { 0 },
    }
}

/// Returns the number of the write that a value comes from. Increments do not change it.
pub(crate) fn write_number(value: u64) -> u64 {
    value / VALUE_DISTANCE
}

/// Marker bit of values that are written with a relative time to live.
const EXPIRING: u64 = 1 << 50;

/// Distance of values, so that increments of one never reach another.
const VALUE_DISTANCE: u64 = 1_000_000;

/// Most bytes of a value's filler, in values of the usual length.
const FILLING_MAX: usize = 300;

/// Difference of the fillers of two parts with neighboring numbers, in bytes.
const FILLING_STEP: usize = 37;

const EXPIRY_PARTS: u64 = 100;

/// Longest lifetime of an expiring value.
pub(crate) const EXPIRY_MAX_MILLIS: u64 = 2_000;

/// Returns the number of a value, or `None` if no client wrote these bytes.
pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.split(|&byte| byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok())
}
