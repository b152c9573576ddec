//! The expiries of fields: what a packed hash, or a page of a hash, has before its elements if any
//! field has a time to live.
//!
//! First four bytes 255, which are no number of elements. Then the earliest expiry (8 bytes,
//! little-endian, in milliseconds since 1970), and the length of a table. The table has two numbers
//! for each field with an expiry, in the order of the elements: how many elements before it have
//! none, from the one before in the table on, and how much later than the earliest it expires. All
//! numbers but the first are in base 128.

use crate::stream_id::{read_long, write_long};
use types::UnixMillis;

/// The bytes that stand in place of a number of elements.
const MARK: [u8; 4] = [0xff; 4];

/// The expiries of the fields of a packed hash, or of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldExpiries<'a> {
    earliest: u64,
    /// Not empty, unless no field has an expiry.
    table: &'a [u8],
}

/// The rest of a table of expiries, which is read element by element.
pub(crate) struct ExpiryTable<'a> {
    earliest: u64,
    table: &'a [u8],
    /// Number of elements before the next one with an expiry; `None`: there is none.
    skipped: Option<u64>,
}

impl<'a> FieldExpiries<'a> {
    /// The expiries of elements that have none.
    pub(crate) const NONE: FieldExpiries<'static> =
        FieldExpiries { earliest: u64::MAX, table: &[] };

    /// Reads expiries. Returns them with the bytes behind them.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<(FieldExpiries<'a>, &'a [u8])> {
        let bytes = bytes.strip_prefix(&MARK)?;
        let (earliest, rest) = bytes.split_first_chunk()?;
        let (length, rest) = read_long(rest)?;
        let (table, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        let earliest = u64::from_le_bytes(*earliest);
        let is_whole = !table.is_empty() && earliest < u64::MAX;
        is_whole.then_some((FieldExpiries { earliest, table }, rest))
    }

    /// Returns whether the table is one of at most so many elements.
    pub(crate) fn fit(self, elements: usize) -> bool {
        let (mut rest, mut passed) = (self.table, 0_u64);
        while !rest.is_empty() {
            let Some((skipped, after)) = read_long(rest) else { return false };
            let Some((later, after)) = read_long(after) else { return false };
            passed = passed.saturating_add(skipped).saturating_add(1);
            // No clock reaches the highest time, so no expiry is written as that.
            if self.earliest.checked_add(later).is_none_or(|expiry| expiry == u64::MAX) {
                return false;
            }
            rest = after;
        }
        passed <= elements as u64
    }

    /// Returns whether no field has an expiry.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.table.is_empty()
    }

    /// Returns the earliest expiry; `None`: no field has one.
    pub(crate) fn earliest(self) -> Option<UnixMillis> {
        (!self.is_empty()).then_some(UnixMillis(self.earliest))
    }

    /// Returns the table, which must fit the elements.
    pub(crate) fn table(self) -> ExpiryTable<'a> {
        let mut table = ExpiryTable { earliest: self.earliest, table: self.table, skipped: None };
        table.advance();
        table
    }

    /// Appends the expiries of elements, in their order; nothing if there are none.
    pub(crate) fn write(
        expiries: impl Iterator<Item = Option<UnixMillis>> + Clone,
        out: &mut Vec<u8>,
    ) {
        let Some(earliest) = expiries.clone().flatten().min() else { return };
        assert!(earliest.0 < u64::MAX, "an expiry that no clock reaches");
        let (mut table, mut skipped) = (Vec::new(), 0);
        for expiry in expiries {
            let Some(expiry) = expiry else {
                skipped += 1;
                continue;
            };
            write_long(skipped, &mut table);
            write_long(expiry.0 - earliest.0, &mut table);
            skipped = 0;
        }
        out.extend_from_slice(&MARK);
        out.extend_from_slice(&earliest.0.to_le_bytes());
        write_long(table.len() as u64, out);
        out.extend_from_slice(&table);
    }
}

impl ExpiryTable<'_> {
    /// Returns the expiry of the next element.
    pub(crate) fn take(&mut self) -> Option<UnixMillis> {
        let skipped = self.skipped.as_mut()?;
        if *skipped > 0 {
            *skipped -= 1;
            return None;
        }
        let (later, rest) = read_long(self.table)?;
        self.table = rest;
        self.advance();
        Some(UnixMillis(self.earliest.saturating_add(later)))
    }

    /// Reads how far the next element with an expiry is.
    fn advance(&mut self) {
        let next = read_long(self.table);
        self.skipped = next.map(|(skipped, _)| skipped);
        if let Some((_, rest)) = next {
            self.table = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(expiries: &[Option<UnixMillis>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        FieldExpiries::write(expiries.iter().copied(), &mut bytes);
        bytes
    }

    #[test]
    fn expiries_come_back_and_fit_their_elements_only() {
        let mut random = fastrand::Rng::with_seed(31);
        for _ in 0..2_000 {
            let count = random.usize(1..30);
            let dense = random.u32(1..4);
            let expiry = |random: &mut fastrand::Rng| {
                let at = if random.bool() { random.u64(..1 << 41) } else { random.u64(..u64::MAX) };
                (random.u32(..4) < dense).then_some(UnixMillis(at))
            };
            let expiries: Vec<_> = (0..count).map(|_| expiry(&mut random)).collect();
            let mut bytes = written(&expiries);
            let Some(last) = expiries.iter().rposition(Option::is_some) else {
                assert_eq!(bytes, []);
                continue;
            };
            bytes.extend_from_slice(b"rest");
            let (read, rest) = FieldExpiries::parse(&bytes).expect("it was written");
            assert_eq!(rest, b"rest");
            assert_eq!(read.earliest(), expiries.iter().flatten().min().copied());
            assert!(read.fit(count) && read.fit(last + 1) && !read.fit(last));
            let mut table = read.table();
            let read: Vec<_> = (0..count).map(|_| table.take()).collect();
            assert_eq!(read, expiries);
            assert_eq!(table.take(), None);
        }
    }

    #[test]
    fn an_expiry_that_no_clock_reaches_fits_no_element() {
        let table_of = |later: u64| {
            let (mut table, mut bytes) = (Vec::new(), MARK.to_vec());
            [0, 0, 0, later].into_iter().for_each(|number| write_long(number, &mut table));
            bytes.extend_from_slice(&1_u64.to_le_bytes());
            write_long(table.len() as u64, &mut bytes);
            bytes.extend_from_slice(&table);
            bytes
        };
        let fits = |later| FieldExpiries::parse(&table_of(later)).expect("a table").0.fit(2);
        assert!(fits(u64::MAX - 2));
        assert!(!fits(u64::MAX - 1), "the highest time");
        assert!(!fits(u64::MAX), "an overflow");
    }

    #[test]
    fn the_bytes_are_those_of_the_documents() {
        let at = |millis| Some(UnixMillis(millis));
        let bytes = written(&[None, at(1_700_000_001_000), at(1_700_000_000_000), None]);
        let expected = [
            255, 255, 255, 255, 0x00, 0x68, 0xe5, 0xcf, 0x8b, 0x01, 0x00, 0x00, 5, 1, 0xe8, 0x07,
            0, 0,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn other_bytes_are_refused_or_harmless() {
        let whole = written(&[None, Some(UnixMillis(9)), Some(UnixMillis(7))]);
        for length in 0..whole.len() {
            assert!(FieldExpiries::parse(&whole[..length]).is_none(), "{length}");
        }
        let mut random = fastrand::Rng::with_seed(32);
        for _ in 0..50_000 {
            let mut bytes = whole.clone();
            bytes.extend((0..random.usize(..12)).map(|_| random.u8(..)));
            let at = random.usize(4..bytes.len());
            bytes[at] = random.u8(..);
            let Some((read, _)) = FieldExpiries::parse(&bytes) else { continue };
            if read.fit(20) {
                let mut table = read.table();
                let count = (0..20).filter_map(|_| table.take()).count();
                assert!(count > 0, "a table without expiries: {bytes:?}");
            }
        }
    }
}
