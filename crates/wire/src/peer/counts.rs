//! The number of records of a range per slot, which a source sends with a flip.

use crate::frame::MESSAGE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::limits::TABLES_MAX;
use types::{SLOT_COUNT, Slot, TableId};

/// Number of records per table and slot. The total is exact. The count of a slot is exact up to
/// 4,095, and otherwise rounded up by less than 1/2,048. The receiver sizes leaves by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Encoded", into = "Encoded")]
pub struct RecordCounts {
    total: u64,
    /// The counts of each table, in ascending order of table.
    tables: Vec<TableCounts>,
}

/// The counts of consecutive slots in one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TableCounts {
    table: TableId,
    first: Slot,
    counts: Vec<PackedCount>,
}

/// A count in two bytes: 12 bits of mantissa, and the number of omitted lower bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PackedCount(u8, u8);

const MANTISSA_BITS: u32 = 12;
const MANTISSA_MAX: u32 = (1 << MANTISSA_BITS) - 1;
const EXPONENT_MAX: u32 = (1 << (16 - MANTISSA_BITS)) - 1;

/// The total, and per table the first slot and the counts from there on.
type Encoded = (u64, Vec<TableCounts>);

/// Maximum bytes of the total, the number of tables, and the header of each table.
const HEADERS_BYTES: usize = 10 + 1 + TABLES_MAX * (1 + 3 + 3);
/// Upper bound of the bytes of the message's other fields.
const REST: usize = 1 << 10;

const _: () = assert!(
    HEADERS_BYTES + TABLES_MAX * SLOT_COUNT as usize * size_of::<PackedCount>() + REST
        <= MESSAGE_BYTES_MAX
);

/// An error: the lists violate the order or the slot range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCounts;

impl fmt::Display for BadCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("record counts come once per table, in ascending order, for existing slots")
    }
}

impl std::error::Error for BadCounts {}

impl RecordCounts {
    /// Creates the counts of these slots, which must ascend by table and slot without duplicates.
    ///
    /// # Panics
    /// If they do not.
    pub fn of(records: &[(TableId, Slot, u32)]) -> RecordCounts {
        let mut tables: Vec<TableCounts> = Vec::new();
        let mut total = 0;
        for of_table in records.chunk_by(|one, other| one.0 == other.0) {
            let (Some((table, first, _)), Some((_, last, _))) =
                (of_table.first().copied(), of_table.last())
            else {
                continue;
            };
            assert!(tables.last().is_none_or(|before| before.table < table), "tables ascend");
            assert!(of_table.is_sorted_by(|one, other| one.1 < other.1), "slots ascend");
            let mut counts = vec![PackedCount::default(); usize::from(last.0 - first.0) + 1];
            for &(_, slot, records) in of_table {
                counts[usize::from(slot.0 - first.0)] = PackedCount::of(records);
                total += u64::from(records);
            }
            tables.push(TableCounts { table, first, counts });
        }
        RecordCounts { total, tables }
    }

    /// Returns the total number of records.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of records in a slot, rounded up.
    pub fn in_slot(&self, table: TableId, slot: Slot) -> u32 {
        let place = self.tables.binary_search_by_key(&table, |of_table| of_table.table);
        let count = place.ok().and_then(|place| {
            let TableCounts { first, counts, .. } = &self.tables[place];
            counts.get(usize::from(slot.0.checked_sub(first.0)?))
        });
        count.map_or(0, |count| count.records())
    }
}

impl PackedCount {
    fn of(records: u32) -> PackedCount {
        let bits = u32::BITS - records.leading_zeros();
        let mut exponent = bits.saturating_sub(MANTISSA_BITS);
        let mut mantissa = records.div_ceil(1 << exponent);
        if mantissa > MANTISSA_MAX {
            (mantissa, exponent) = (mantissa.div_ceil(2), exponent + 1);
        }
        if exponent > EXPONENT_MAX {
            (mantissa, exponent) = (MANTISSA_MAX, EXPONENT_MAX);
        }
        let [low, high] = ((exponent << MANTISSA_BITS | mantissa) as u16).to_le_bytes();
        PackedCount(low, high)
    }

    fn records(self) -> u32 {
        let bits = u32::from(u16::from_le_bytes([self.0, self.1]));
        (bits & MANTISSA_MAX) << (bits >> MANTISSA_BITS)
    }
}

impl TryFrom<Encoded> for RecordCounts {
    type Error = BadCounts;

    fn try_from(encoded: Encoded) -> Result<RecordCounts, BadCounts> {
        let (total, tables) = encoded;
        let are_ascending = tables.is_sorted_by(|one, other| one.table < other.table);
        let fits = |of_table: &TableCounts| {
            usize::from(of_table.first.0) + of_table.counts.len() <= usize::from(SLOT_COUNT)
        };
        let is_valid = are_ascending && tables.iter().all(fits);
        is_valid.then_some(RecordCounts { total, tables }).ok_or(BadCounts)
    }
}

impl From<RecordCounts> for Encoded {
    fn from(counts: RecordCounts) -> Encoded {
        (counts.total, counts.tables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_up_to_4095_and_hardly_above_beyond() {
        for exponent in 0..27 {
            for near in -2i64..=2 {
                let records = ((1i64 << exponent) + near).clamp(0, i64::from(u32::MAX)) as u32;
                let told = PackedCount::of(records).records();
                assert!(told >= records, "{told} of {records}");
                assert!(u64::from(told - records) * 2048 < u64::from(records.max(1)), "{records}");
                assert!(records > MANTISSA_MAX || told == records);
            }
        }
        assert_eq!(PackedCount::of(u32::MAX).records(), MANTISSA_MAX << EXPONENT_MAX, "enough");
    }

    #[test]
    fn counts_come_back_for_every_slot_that_has_any() {
        let records: Vec<_> = [(0, 3, 7), (0, 9, 5_000), (2, 0, 1), (2, 16_383, 2)]
            .map(|(table, slot, records)| (TableId(table), Slot(slot), records))
            .to_vec();
        let counts = RecordCounts::of(&records);
        let bytes = postcard::to_stdvec(&counts).unwrap();
        let counts: RecordCounts = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(counts.total(), 5_010);
        let in_slot = |table, slot| counts.in_slot(TableId(table), Slot(slot));
        assert_eq!(
            [in_slot(0, 3), in_slot(0, 9), in_slot(2, 0), in_slot(2, 16_383)],
            [7, 5_000, 1, 2]
        );
        assert_eq!([in_slot(0, 2), in_slot(0, 4), in_slot(0, 10), in_slot(1, 3)], [0; 4]);
        assert_eq!(RecordCounts::of(&[]), RecordCounts::default());
    }

    #[test]
    fn the_counts_of_all_slots_in_all_tables_fit_into_a_message() {
        let all =
            (0..TABLES_MAX as u8).flat_map(|table| (0..SLOT_COUNT).map(move |slot| (table, slot)));
        let records: Vec<_> =
            all.map(|(table, slot)| (TableId(table), Slot(slot), u32::MAX)).collect();
        let mut frame = Vec::new();
        assert_eq!(crate::frame::encode(&RecordCounts::of(&records), 0, &mut frame), Ok(()));
    }

    #[test]
    fn lists_that_no_source_makes_are_refused() {
        let of_table = |table, first, counts| {
            (TableId(table), Slot(first), vec![PackedCount::default(); counts])
        };
        for tables in [
            vec![of_table(1, 0, 1), of_table(0, 0, 1)],
            vec![of_table(1, 0, 1), of_table(1, 1, 1)],
            vec![of_table(TABLES_MAX as u8, 0, 1)],
            vec![of_table(0, 16_384, 0)],
            vec![of_table(0, 16_383, 2)],
        ] {
            let bytes = postcard::to_stdvec(&(0u64, &tables)).unwrap();
            assert!(postcard::from_bytes::<RecordCounts>(&bytes).is_err(), "{tables:?}");
        }
    }
}
