//! Batches: many entries in one payload.
//!
//! A batch is a sequence of runs. A run is a 12-byte header {table u8, zero u8, slot u16, bytes of
//! its entries u32, CRC-32C of these 8 bytes} followed by whole entries of that table and slot,
//! each padded to a multiple of 8. The slot in the header saves the receiver a CRC16 per record.
//!
//! The header has its own checksum because a bit error in it would assign intact records to
//! another table or slot. The entries have checksums too; these do not cover the incarnation
//! (incarnation), which the receiver replaces.

use crate::{
    Corrupt,
    checksum::crc32c,
    entry::{ALIGNMENT, Body, Entry},
};
use types::{SLOT_COUNT, Slot, TableId};

/// Bytes of a run header.
pub const RUN_HEADER_BYTES: usize = 12;

/// Bytes of a run header that its checksum covers.
const CHECKED_BYTES: usize = 8;

/// A writer that appends runs of entries to a buffer.
#[derive(Debug)]
pub struct BatchWriter<'b> {
    out: &'b mut Vec<u8>,
    /// Offset of the open run's header, with the run's table and slot.
    run: Option<(usize, TableId, Slot)>,
}

impl<'b> BatchWriter<'b> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'b mut Vec<u8>) -> BatchWriter<'b> {
        BatchWriter { out, run: None }
    }

    /// Appends one encoded entry, padding included.
    #[inline]
    pub fn push(&mut self, table: TableId, slot: Slot, entry: &[u8]) {
        assert!(entry.len().is_multiple_of(ALIGNMENT), "an entry of {} bytes", entry.len());
        match self.run {
            Some((_, t, s)) if t == table && s == slot => {}
            _ => self.open_run(table, slot),
        }
        self.out.extend_from_slice(entry);
    }

    /// Returns the number of bytes in the buffer.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.out.len()
    }

    fn open_run(&mut self, table: TableId, slot: Slot) {
        self.close_run();
        self.run = Some((self.out.len(), table, slot));
        self.out.push(table.0);
        self.out.push(0);
        self.out.extend_from_slice(&slot.0.to_le_bytes());
        self.out.extend_from_slice(&[0; 8]);
    }

    fn close_run(&mut self) {
        if let Some((header, _, _)) = self.run.take() {
            let bytes = self.out.len() - header - RUN_HEADER_BYTES;
            assert!(bytes <= u32::MAX as usize, "a run of {bytes} bytes");
            let bytes = bytes as u32;
            let header = &mut self.out[header..header + RUN_HEADER_BYTES];
            header[4..CHECKED_BYTES].copy_from_slice(&bytes.to_le_bytes());
            let crc = crc32c(&header[..CHECKED_BYTES]);
            header[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

impl Drop for BatchWriter<'_> {
    fn drop(&mut self) {
        self.close_run();
    }
}

/// An entry of a batch with a verified checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry<'a> {
    /// Table of its run.
    pub table: TableId,
    /// Slot of its run.
    pub slot: Slot,
    /// Its fields.
    pub entry: Entry<'a>,
    /// Its bytes, padding included.
    pub encoded: &'a [u8],
}

/// A reader of the entries of a batch. It ends after an error.
#[derive(Clone, Debug)]
pub struct BatchReader<'a> {
    /// Bytes of the whole batch.
    total: usize,
    rest: &'a [u8],
    run: Option<(TableId, Slot, usize)>,
}

impl<'a> BatchReader<'a> {
    /// Creates a reader of bytes that [`BatchWriter`] wrote.
    pub fn new(bytes: &'a [u8]) -> BatchReader<'a> {
        BatchReader { total: bytes.len(), rest: bytes, run: None }
    }

    /// Creates a reader that continues at the [`BatchReader::offset`] of an earlier reader.
    pub fn resume(bytes: &'a [u8], offset: usize) -> Result<BatchReader<'a>, Corrupt> {
        let mut reader = BatchReader::new(bytes);
        while reader.offset() < offset {
            let Some((table, slot, run)) = reader.run_header()? else { break };
            let ends = reader.offset().saturating_add(run);
            reader.rest = bytes.get(ends.min(offset)..).ok_or(Corrupt::Short { what: "run" })?;
            reader.run = (offset < ends).then(|| (table, slot, ends - offset));
        }
        Ok(reader)
    }

    /// Returns the offset of the next entry, or of the header of its run.
    pub fn offset(&self) -> usize {
        self.total - self.rest.len()
    }

    /// Reads a run header: table, slot, and bytes of its entries; `None` at the end.
    fn run_header(&mut self) -> Result<Option<(TableId, Slot, usize)>, Corrupt> {
        let Some((header, rest)) = self.rest.split_first_chunk::<RUN_HEADER_BYTES>() else {
            let short = Corrupt::Short { what: "run header" };
            return if self.rest.is_empty() { Ok(None) } else { Err(short) };
        };
        let (checked, crc) = header.split_at(CHECKED_BYTES);
        if crc != crc32c(checked).to_le_bytes() {
            return Err(Corrupt::Checksum { what: "run header" });
        }
        let slot = Slot(u16::from_le_bytes([header[2], header[3]]));
        if slot.0 >= SLOT_COUNT || usize::from(header[0]) >= types::limits::TABLES_MAX {
            return Err(Corrupt::Invalid { what: "run header" });
        }
        let bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        self.rest = rest;
        Ok(Some((TableId(header[0]), slot, bytes as usize)))
    }

    fn read(&mut self) -> Result<Option<BatchEntry<'a>>, Corrupt> {
        loop {
            let Some((table, slot, left)) = self.run else {
                match self.run_header()? {
                    Some(run) => self.run = Some(run),
                    None => return Ok(None),
                }
                continue;
            };
            if left == 0 {
                self.run = None;
                continue;
            }
            let run = self.rest.get(..left).ok_or(Corrupt::Short { what: "run" })?;
            let (entry, taken) = Entry::parse_checked(run)?;
            match entry.body {
                Body::Object { .. } | Body::Tombstone { .. } => {}
                Body::CopiesOf(_) => return Err(Corrupt::Invalid { what: "entry of a batch" }),
            }
            let (encoded, rest) = self.rest.split_at(taken);
            self.rest = rest;
            self.run = Some((table, slot, left - taken));
            return Ok(Some(BatchEntry { table, slot, entry, encoded }));
        }
    }
}

impl<'a> Iterator for BatchReader<'a> {
    type Item = Result<BatchEntry<'a>, Corrupt>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.rest = &[];
            self.run = None;
        }
        read.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Body;
    use types::{Incarnation, TypedValue, Version};

    #[test]
    #[should_panic(expected = "an entry of 7 bytes")]
    fn entries_of_a_batch_are_padded() {
        let mut out = Vec::new();
        BatchWriter::new(&mut out).push(TableId(0), Slot(1), &[0; 7]);
    }

    fn batch() -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = BatchWriter::new(&mut out);
        for (table, slot, key) in [(0, 1, "a"), (0, 1, "b"), (0, 2, "c"), (3, 2, "d")] {
            let body =
                Body::Object { expiry: None, replaces: None, value: TypedValue::string(b"value") };
            let entry = Entry {
                incarnation: Incarnation(1),
                version: Version(2),
                key: key.as_bytes(),
                body,
            };
            let mut bytes = vec![0; entry.encoded_bytes()];
            entry.encode(&mut bytes);
            writer.push(TableId(table), Slot(slot), &bytes);
        }
        drop(writer);
        out
    }

    #[test]
    fn batches_come_back_with_table_and_slot() {
        let bytes = batch();
        let read: Vec<_> = BatchReader::new(&bytes)
            .map(|entry| entry.unwrap())
            .map(|e| (e.table.0, e.slot.0, e.entry.key.to_vec()))
            .collect();
        let expected: Vec<(u8, u16, Vec<u8>)> = vec![
            (0, 1, b"a".to_vec()),
            (0, 1, b"b".to_vec()),
            (0, 2, b"c".to_vec()),
            (3, 2, b"d".to_vec()),
        ];
        assert_eq!(read, expected);
        assert_eq!(BatchReader::new(&[]).next(), None);
    }

    #[test]
    fn reading_goes_on_at_every_offset_where_it_can_be_broken_off() {
        let bytes = batch();
        let mut reader = BatchReader::new(&bytes);
        loop {
            let resumed = BatchReader::resume(&bytes, reader.offset()).unwrap();
            assert!(resumed.eq(reader.clone()), "from {}", reader.offset());
            if reader.next().is_none() {
                break;
            }
        }
        assert!(BatchReader::resume(&bytes[..4], 4).is_err());
    }

    #[test]
    fn a_flipped_bit_of_a_header_is_noticed() {
        let bytes = batch();
        for bit in 0..RUN_HEADER_BYTES * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = Err(Corrupt::Checksum { what: "run header" });
            assert_eq!(BatchReader::new(&changed).next(), Some(error), "bit {bit}");
        }
    }

    #[test]
    fn every_truncation_ends_in_an_error_or_at_a_run_border() {
        let bytes = batch();
        for length in 0..bytes.len() {
            let read: Vec<_> = BatchReader::new(&bytes[..length]).collect();
            let whole = read.iter().filter(|entry| entry.is_ok()).count();
            assert!(whole < 4);
            assert!(read.len() - whole <= 1, "reading continues after an error");
        }
    }
}
