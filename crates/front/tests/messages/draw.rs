//! Random decisions, derived from the bytes of a random generator or a fuzzer.

use serde::de::DeserializeOwned;
use types::{HashRange, KeyHash, SLOT_COUNT, ServerId, Slot};

/// Bytes from which decisions are drawn, until none are left.
pub(crate) struct Draw<'d> {
    bytes: &'d [u8],
}

impl<'d> Draw<'d> {
    pub(crate) fn new(bytes: &'d [u8]) -> Draw<'d> {
        Draw { bytes }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (usize::from(self.byte()) << 8 | usize::from(self.byte())) % end
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Returns a number that is mostly plausible, and may be any.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(12) {
            0..=8 => self.below(8) as u64,
            9 => u64::from(u32::MAX) - self.below(2) as u64,
            10 => u64::MAX - self.below(2) as u64,
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    /// Returns mostly this number, and sometimes another one.
    pub(crate) fn near(&mut self, number: u64) -> u64 {
        match self.below(10) {
            0 => self.number(),
            1 => number.wrapping_add(1),
            _ => number,
        }
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.number() as u32
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.one_in(2)
    }

    pub(crate) fn server(&mut self) -> ServerId {
        ServerId(if self.one_in(12) { self.u32() } else { 1 + self.below(4) as u32 })
    }

    /// Returns a hash, mostly at the border of a slot.
    pub(crate) fn hash(&mut self) -> KeyHash {
        let slot = Slot(self.pick(&[0, 1, 4_095, 4_096, 8_191, 8_192, 12_288, SLOT_COUNT - 1]));
        match self.below(8) {
            0..=2 => slot.first_hash(),
            3..=5 => slot.last_hash(),
            6 => KeyHash(slot.first_hash().0 + self.number() % (1 << 50)),
            _ => KeyHash(self.number()),
        }
    }

    /// Returns a range, mostly a quarter of all slots.
    pub(crate) fn range(&mut self) -> HashRange {
        if !self.one_in(4) {
            return quarter(self.below(4) as u16);
        }
        let (one, other) = (self.hash(), self.hash());
        HashRange::new(one.min(other), one.max(other))
    }

    pub(crate) fn list<T>(&mut self, most: usize, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| one(self)).collect()
    }
}

pub(crate) fn quarter(number: u16) -> HashRange {
    let size = SLOT_COUNT / 4;
    HashRange::of_slots(Slot(number * size), Slot((number + 1) * size - 1))
}

/// Returns one message of each kind with arbitrary content, in the order of the enum. A new kind
/// does not compile, because the caller's `match` cannot fill it in. If its first value cannot be
/// made here, the number of kinds shows that.
pub(crate) fn kinds<M: DeserializeOwned>() -> Vec<M> {
    let decoded = |number: u8| {
        let of = |fill| {
            let bytes = [&[number][..], &[fill; 4_096]].concat();
            postcard::take_from_bytes(&bytes).map(|(message, _)| message).ok()
        };
        of(0).or_else(|| of(1))
    };
    (0..u8::MAX).map_while(decoded).collect()
}
