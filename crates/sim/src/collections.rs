//! Registers whose value has parts that clients read and change one by one: hashes, lists, sorted sets
//! and streams, and hashes that a string replaces.
//!
//! In one run of five, half of the registers that can be are of this kind. What they are and what
//! clients do to them is drawn from a separate generator, so other runs are the same with and
//! without this. The checker knows the whole content of each (`history/parts.rs`).

mod requests;
mod streams;

use crate::history::{
    EXPIRING_FIELD, ItemsEnd, LIMITED_ITEMS, NumberedItems, NumberedParts, PARTS, PartAction,
    RegisterAction, part_of_score, string,
};
use crate::native;
use crate::settings::{Knob, RunSettings};
use crate::workload::{Register, RegisterKind};
use fastrand::Rng;
pub(crate) use requests::{
    commands, is_transaction, may_be_once, number_in_fields, number_in_items, number_in_pages,
    number_in_scores, read,
};
use streams::StreamDraws;
pub(crate) use streams::{is_rejection, stored_id};

/// One run in this many has such registers.
const ONE_IN: u32 = 5;

/// Mixed into the seed for the separate random numbers of these registers.
const COLLECTIONS: u64 = 0x636f_6c6c_6563_7473;

/// Mixed into the seed for the separate random numbers of fields that expire.
const TIMED_FIELDS: u64 = 0x6669_656c_6473_5f74;

/// Highest number of an item of a list. They are used again after that.
const ITEM_MAX: u16 = 254;

/// Highest value of a field.
const FIELD_MAX: u16 = 32_000;

/// Upper limit for scores that are set; increments make them higher.
const SCORES: u16 = 16_000;

/// Upper limit for half of the scores, so that members often have the same one.
const EQUAL_SCORES: u16 = 3;

/// Form of a register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterShape {
    /// A string, or a pair of them.
    String,
    /// The same fields of a hash, always written together.
    Hash,
    /// Fields of a hash, each written alone or with others.
    Fields,
    List,
    SortedSet,
    Stream,
}

/// Ways in which a value may grow. The checker follows a bounded number of parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrowthRoom {
    /// Items or entries may be added without a limit.
    pub(crate) entries: bool,
    /// Entries of a stream may become pending.
    pub(crate) pending: bool,
}

impl RegisterShape {
    /// Returns whether clients read and change the parts of such values.
    pub(crate) fn has_parts(self) -> bool {
        match self {
            RegisterShape::String | RegisterShape::Hash => false,
            RegisterShape::Fields
            | RegisterShape::List
            | RegisterShape::SortedSet
            | RegisterShape::Stream => true,
        }
    }
}

/// Registers with parts in a run.
pub(crate) struct Collections {
    rng: Rng,
    /// Set if the longest packed values are so short that most hashes are divided into pages.
    pub(crate) are_divided: bool,
    /// Number of the last new part of each register.
    last: Vec<u16>,
    /// Streams, if the run has some.
    streams: Option<StreamDraws>,
    /// For the operations on times to live of fields, if the run has them.
    timed: Option<Rng>,
}

impl Collections {
    /// Draws from a separate generator, so that other runs stay the same. Native clients use
    /// commands with versions, which are for strings.
    pub(crate) fn draw(settings: &RunSettings) -> Option<Collections> {
        let mut rng = Rng::with_seed(settings.seed ^ COLLECTIONS);
        let is_drawn = rng.u32(..ONE_IN) == 0;
        let are_divided = rng.u32(..4) > 0;
        let has_some = is_drawn
            && settings.has(Knob::Types)
            && settings.has(Knob::Collections)
            && !native::are_used(settings);
        let streams = StreamDraws::draw(settings);
        let mut timed = Rng::with_seed(settings.seed ^ TIMED_FIELDS);
        let timed = timed.bool().then_some(timed);
        has_some.then_some(Collections { rng, are_divided, last: Vec::new(), streams, timed })
    }

    /// Draws the registers of this kind.
    pub(crate) fn make(&mut self, registers: &mut [Register]) {
        self.last = vec![0; registers.len()];
        self.streams.iter_mut().for_each(|streams| streams.make(registers.len()));
        for register in registers.iter_mut().filter(|it| can_have_parts(it)) {
            register.shape = match self.rng.u32(..8) {
                0..2 => RegisterShape::Fields,
                2 => RegisterShape::List,
                3 => RegisterShape::SortedSet,
                4 | 5 if self.streams.is_some() => RegisterShape::Stream,
                _ => register.shape,
            };
            let is_hash = register.shape == RegisterShape::Fields;
            register.has_timed_field = is_hash && self.timed.is_some();
        }
    }

    /// Draws the operation on a register that replaces `action`.
    pub(crate) fn possible(
        &mut self,
        number: usize,
        register: &Register,
        action: RegisterAction,
        room: GrowthRoom,
    ) -> RegisterAction {
        let streams = match register.shape {
            RegisterShape::Stream => self.streams.as_mut(),
            _ => None,
        };
        if let Some(timed) = self.timed.as_mut().filter(|_| register.has_timed_field)
            && let Some(part) = on_timed_field(action, timed, &mut self.last[number])
        {
            return RegisterAction::Part(part);
        }
        let drawn = match action {
            RegisterAction::Expire(_) | RegisterAction::Persist | RegisterAction::ReadRemaining => {
                action
            }
            RegisterAction::ReadExpiring(lifetime) => RegisterAction::Expire(lifetime),
            RegisterAction::ReadPersisting => RegisterAction::Persist,
            _ if action.is_read() => match streams {
                Some(streams) => streams.draw_read(number),
                None => self.draw_read(register.shape),
            },
            _ => match streams {
                Some(streams) => streams.draw_change(number, room),
                None => self.draw_change(number, register.shape, room.entries),
            },
        };
        if register.has_timed_field { without_key(drawn) } else { drawn }
    }

    fn draw_read(&mut self, shape: RegisterShape) -> RegisterAction {
        let part = self.part();
        match (shape, self.rng.u32(..20)) {
            (_, 19) => RegisterAction::Probe,
            (RegisterShape::Fields, 7..11) => RegisterAction::Part(PartAction::ReadFields),
            (RegisterShape::Fields, 11..16) => RegisterAction::Part(PartAction::ReadField(part)),
            (RegisterShape::Fields, 16..19) => RegisterAction::Part(PartAction::CountFields),
            (RegisterShape::List, 13..19) => RegisterAction::Part(PartAction::CountItems),
            (RegisterShape::SortedSet, 11..16) => RegisterAction::Part(PartAction::ReadScore(part)),
            (RegisterShape::SortedSet, 16..19) => RegisterAction::Part(PartAction::CountMembers),
            _ => RegisterAction::Read,
        }
    }

    fn draw_change(
        &mut self,
        number: usize,
        shape: RegisterShape,
        may_push: bool,
    ) -> RegisterAction {
        match shape {
            RegisterShape::Fields => self.draw_change_of_fields(number),
            RegisterShape::List => self.draw_change_of_list(number, may_push),
            RegisterShape::SortedSet => self.draw_change_of_scores(number),
            RegisterShape::String | RegisterShape::Hash | RegisterShape::Stream => {
                unreachable!("{shape:?} has no parts that change alone")
            }
        }
    }

    fn draw_change_of_fields(&mut self, number: usize) -> RegisterAction {
        let field = self.part();
        RegisterAction::Part(match self.rng.u32(..40) {
            0..15 => PartAction::SetFields(self.draw_fields(number)),
            15..18 => PartAction::SetFieldIfAbsent(field, self.next(number, FIELD_MAX)),
            18..24 => PartAction::RemoveFields(self.draw_fields(number)),
            24..31 => return RegisterAction::Delete,
            31 => return RegisterAction::Write(string(self.next(number, FIELD_MAX))),
            _ => return self.draw_whole(|collections| collections.draw_fields(number).number()),
        })
    }

    fn draw_change_of_list(&mut self, number: usize, may_push: bool) -> RegisterAction {
        RegisterAction::Part(match self.rng.u32(..40) {
            0..10 if may_push => PartAction::Push(self.draw_item(number)),
            0..20 => PartAction::PushLimited(self.draw_item(number)),
            20..28 => PartAction::Pop(ItemsEnd::First),
            28..31 => PartAction::Pop(ItemsEnd::Last),
            31..35 => PartAction::Rotate,
            35..37 => return RegisterAction::Delete,
            _ => return self.draw_whole(|collections| collections.draw_items(number).number()),
        })
    }

    fn draw_change_of_scores(&mut self, number: usize) -> RegisterAction {
        let member = self.part();
        RegisterAction::Part(match self.rng.u32(..40) {
            0..14 => PartAction::SetScore(member, self.draw_score(number)),
            14..22 => PartAction::AddScore(member),
            22..28 => PartAction::RemoveMember(member),
            28..33 => PartAction::PopLowest,
            33..36 => return RegisterAction::Delete,
            _ => return self.draw_whole(|collections| collections.draw_scores(number).number()),
        })
    }

    /// Draws a value that replaces the whole one.
    fn draw_whole(&mut self, draw: impl Fn(&mut Collections) -> Option<u64>) -> RegisterAction {
        draw(self).map_or(RegisterAction::Delete, RegisterAction::Write)
    }

    fn draw_fields(&mut self, number: usize) -> NumberedParts {
        let mut fields = NumberedParts::default();
        for _ in 0..self.rng.usize(1..=PARTS) {
            let value = self.next(number, FIELD_MAX);
            fields = fields.with(self.rng.usize(..PARTS), Some(u64::from(value)));
        }
        fields
    }

    fn draw_scores(&mut self, number: usize) -> NumberedParts {
        let mut scores = NumberedParts::default();
        for _ in 0..self.rng.usize(1..=PARTS) {
            let part = part_of_score(u64::from(self.draw_score(number)));
            scores = scores.with(self.rng.usize(..PARTS), Some(part));
        }
        scores
    }

    fn draw_items(&mut self, number: usize) -> NumberedItems {
        let mut items = NumberedItems::default();
        for _ in 0..self.rng.usize(1..=LIMITED_ITEMS) {
            let is_added = items.push(self.draw_item(number));
            assert!(is_added, "a new list is short");
        }
        items
    }

    fn draw_item(&mut self, number: usize) -> u8 {
        self.next(number, ITEM_MAX) as u8
    }

    fn draw_score(&mut self, number: usize) -> u16 {
        match self.rng.bool() {
            true => self.rng.u16(..EQUAL_SCORES),
            false => self.next(number, SCORES),
        }
    }

    fn part(&mut self) -> u8 {
        self.rng.u8(..PARTS as u8)
    }

    /// Returns the next number of a part, from 1 to `most` and then from 1 on again.
    fn next(&mut self, number: usize, most: u16) -> u16 {
        let last = &mut self.last[number];
        *last = *last % most + 1;
        *last
    }
}

/// Returns the operation on the field that may expire instead of one on the time to live of its key.
/// `last` is the number of the register's last new part.
fn on_timed_field(action: RegisterAction, rng: &mut Rng, last: &mut u16) -> Option<PartAction> {
    Some(match action {
        RegisterAction::Expire(lifetime) | RegisterAction::WriteExpiring(_, lifetime) => {
            match rng.bool() {
                true => PartAction::ExpireField(lifetime),
                false => {
                    *last = *last % FIELD_MAX + 1;
                    PartAction::SetFieldExpiring(*last, lifetime)
                }
            }
        }
        RegisterAction::ReadExpiring(lifetime) => PartAction::ReadFieldExpiring(lifetime),
        RegisterAction::Persist | RegisterAction::ReadPersisting => PartAction::PersistField,
        RegisterAction::ReadRemaining => PartAction::ReadFieldRemaining,
        _ => return None,
    })
}

/// Returns the operation on the fields of a hash instead of one on its key, which is there as long as
/// expired fields are stored. So is their number.
fn without_key(action: RegisterAction) -> RegisterAction {
    let field = EXPIRING_FIELD as u8;
    match action {
        RegisterAction::Delete => {
            let all = (0..PARTS).fold(NumberedParts::default(), |all, it| all.with(it, Some(1)));
            RegisterAction::Part(PartAction::RemoveFields(all))
        }
        RegisterAction::Probe => RegisterAction::Part(PartAction::ReadField(field)),
        RegisterAction::Part(PartAction::CountFields) => {
            RegisterAction::Part(PartAction::ReadFields)
        }
        other => other,
    }
}

/// Returns whether a register can be a collection: one key that scans need not find.
fn can_have_parts(register: &Register) -> bool {
    let may_be_absent = match register.kind {
        RegisterKind::Plain | RegisterKind::Counter | RegisterKind::Flushed => true,
        RegisterKind::Permanent | RegisterKind::Pair => false,
    };
    may_be_absent && register.keys.len() == 1 && register.shape == RegisterShape::String
}

#[cfg(test)]
mod tests;
