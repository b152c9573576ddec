//! Properties that hold for arbitrary bytes. The tests in this folder call them with random
//! bytes, and the targets of `fuzz/` with bytes from a fuzzer.
//!
//! Random bytes hardly ever have a valid checksum. Each check therefore examines the bytes as
//! they are, and again with corrected checksums, as a faulty peer would send them.

#![allow(dead_code, reason = "each fuzz target uses one of the checks")]

use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use types::{ClusterId, SegmentId, ServerId, Slot, TableId, UnixMillis, Version};
use wire::{
    batch::{BatchReader, BatchWriter},
    control::{FromCoordinator, ToCoordinator},
    crc32c,
    entry::{Entry, HEADER_BYTES, encoded_bytes_of},
    frame::{self, Header},
    peer::PeerMessage,
    replica::{
        self, BootId, PIECE_HEADER_BYTES, PIECES_FROM, PieceHeader, PieceReader, PieceWriter,
        ReadEnd, ReplicaEnd, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind,
        Stamp,
    },
};

/// Checks the bytes as a frame of each kind of message. Returns the number of kinds that decode.
pub(crate) fn frames(data: &[u8]) -> usize {
    if let Some((header, rest)) = data.split_first_chunk()
        && let Ok(header) = Header::parse(header)
    {
        assert!(header.message_bytes <= frame::MESSAGE_BYTES_MAX);
        assert!(header.payload_bytes <= frame::PAYLOAD_BYTES_MAX);
        let message = rest.get(..header.message_bytes).unwrap_or(rest);
        let _ = header.message::<PeerMessage>(message);
    }
    message::<PeerMessage>(data) + message::<ToCoordinator>(data) + message::<FromCoordinator>(data)
}

/// Checks that a message that decodes can be encoded and decoded again without a change.
fn message<M: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> usize {
    let Some(message) = read_framed::<M>(bytes) else { return 0 };
    let mut written = Vec::new();
    frame::encode(&message, 0, &mut written).expect("a message that was read can be written");
    let again = read_framed::<M>(&written[frame::HEADER_BYTES..]);
    assert_eq!(format!("{:?}", Some(message)), format!("{again:?}"));
    1
}

/// Decodes a message after prepending a matching header.
fn read_framed<M: DeserializeOwned>(message: &[u8]) -> Option<M> {
    let mut framed = b"BLST".to_vec();
    framed.extend_from_slice(&(message.len() as u32).to_le_bytes());
    framed.extend_from_slice(&[0; 4]);
    let crc = crc32c(&[&framed[..], message].concat());
    framed.extend_from_slice(&crc.to_le_bytes());
    let header = Header::parse(framed.first_chunk()?).ok()?;
    header.message(message).ok()
}

/// Checks the bytes as an entry. Returns whether they are one.
pub(crate) fn entry(data: &[u8]) -> bool {
    let _ = Entry::parse_checked(data);
    let Some(bytes) = whole_entry(data) else { return false };
    let Ok((entry, taken)) = Entry::parse_checked(&bytes) else { return false };
    assert_eq!(taken, entry.encoded_bytes());
    assert_eq!(Some(taken), bytes.first_chunk::<HEADER_BYTES>().map(encoded_bytes_of));
    assert!(taken <= bytes.len());
    assert!(!entry.is_expired(UnixMillis(0)) || bytes[HEADER_BYTES..][..8] == [0; 8]);
    let mut written = vec![0xaa; taken];
    entry.encode(&mut written);
    assert_eq!(Entry::parse_checked(&written), Ok((entry, taken)), "written, it is another entry");
    true
}

/// Copies bytes that have the shape of an entry, with padding and a valid checksum.
fn whole_entry(data: &[u8]) -> Option<Vec<u8>> {
    let entry = Entry::parse(data).ok()?;
    let mut bytes = data.to_vec();
    bytes.resize(data.len().max(entry.encoded_bytes()), 0);
    let end = entry_end(&entry);
    let crc = crc32c(&bytes[10..end]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Some(bytes)
}

/// Returns the bytes of an entry without its padding.
fn entry_end(entry: &Entry<'_>) -> usize {
    use wire::entry::Body;
    let rest = match entry.body {
        Body::Object { expiry, replaces, value } => {
            8 * (usize::from(expiry.is_some()) + usize::from(replaces.is_some()))
                + value.stored_bytes()
        }
        Body::Tombstone { .. } | Body::CopiesOf(_) => 8,
    };
    HEADER_BYTES + entry.key.len() + rest
}

/// Checks the bytes as a batch, up to the first error. Entries made of the bytes must survive a
/// round trip through a batch, and a change to the batch must be detected or harmless. Returns
/// the number of entries made.
pub(crate) fn batch(data: &[u8]) -> usize {
    read_batch(data);
    let mut bytes = Vec::new();
    let mut writer = BatchWriter::new(&mut bytes);
    let mut sent = Vec::new();
    for piece in data.chunks(48) {
        let Some(mut entry) = whole_entry(piece) else { continue };
        let (table, slot) = (TableId(piece[0] % 3), Slot(u16::from(piece[1] % 3)));
        let Ok((parsed, taken)) = Entry::parse_checked(&entry) else { continue };
        if matches!(parsed.body, wire::entry::Body::CopiesOf(_)) {
            // A batch contains no notes.
            continue;
        }
        entry.truncate(taken);
        writer.push(table, slot, &entry);
        sent.push((table, slot, entry));
    }
    drop(writer);
    let received: Vec<_> = BatchReader::new(&bytes)
        .map(|read| read.map(|read| (read.table, read.slot, read.encoded.to_vec())))
        .collect();
    assert_eq!(received, sent.iter().cloned().map(Ok).collect::<Vec<_>>());

    if let (Some(at), [.., change]) = (bytes.len().checked_sub(1), data) {
        let at = usize::from(data[0]) * at / 255;
        bytes[at] ^= change;
        read_batch(&bytes);
        read_batch(&bytes[..at]);
    }
    sent.len()
}

/// Reads to the end. Checks that no extra bytes are read, and nothing after an error.
fn read_batch(bytes: &[u8]) {
    let (mut taken, mut is_over) = (0, false);
    for read in BatchReader::new(bytes) {
        assert!(!is_over, "reading continues after an error");
        match read {
            Ok(read) => {
                taken += read.encoded.len();
                assert_eq!(read.encoded.len(), read.entry.encoded_bytes());
            }
            Err(_) => is_over = true,
        }
    }
    assert!(taken <= bytes.len(), "{taken} bytes of entries in a batch of {}", bytes.len());
}

/// Returns the header of a replica of a segment of at most `segment_bytes`.
pub(crate) fn replica_header(segment_bytes: u32) -> ReplicaHeader {
    let (log, segment, epoch) = (ServerId(3), SegmentId(0x0a_0b0c_0d0e), ReplicaEpoch(1));
    let id = ReplicaId { log, segment, epoch };
    let (cluster, kind, boot) = (ClusterId(7), ReplicaKind::Data, BootId([5; 16]));
    ReplicaHeader { format: ReplicaFormat::CURRENT, cluster, id, kind, segment_bytes, boot }
}

/// Reads pieces `step` bytes at a time. Returns their content and the end of the replica.
pub(crate) fn read_pieces(header: &ReplicaHeader, bytes: &[u8], step: usize) -> (Vec<u8>, ReadEnd) {
    let mut reader = PieceReader::new(header);
    let mut out = Vec::new();
    let mut each = |body: &[u8]| out.extend_from_slice(body);
    let (mut from, mut to) = (0, 0);
    while to < bytes.len() {
        to = bytes.len().min(to + step);
        from += reader.read(&bytes[from..to], &mut each);
    }
    let end = reader.finish(&bytes[from..], &mut each);
    (out, end)
}

/// Checks the bytes as a replica header, a piece header, and pieces. Pieces made of the bytes
/// must survive a round trip, and a change to them must be detected or harmless. Returns the
/// number of pieces made.
pub(crate) fn replica(data: &[u8]) -> usize {
    if let Ok((header, order)) = ReplicaHeader::parse(data) {
        assert_eq!(header.encode(order), data[..replica::HEADER_BYTES]);
    }
    let header = replica_header(data.len() as u32);
    if let Ok(piece) = PieceHeader::parse(data, header.identity()) {
        assert_eq!(piece.encode(header.identity()), data[..PIECE_HEADER_BYTES]);
    }
    let (garbage, _) = read_pieces(&header, data, 1 + data.len() / 3);
    assert!(garbage.len() <= data.len());

    let mut writer = PieceWriter::new(header.identity());
    let (mut bytes, mut pieces) = (Vec::new(), 0);
    for body in data.chunks(1 + data.first().copied().map_or(0, usize::from)) {
        let synced = writer.length() / 2;
        bytes.extend_from_slice(&writer.next(
            body,
            synced,
            Stamp { version: Version(pieces), clock: UnixMillis(2 * pieces) },
        ));
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        pieces += 1;
    }
    let (read, end) = read_pieces(&header, &bytes, 1 + data.len() / 2);
    assert_eq!(read, data);
    let place = PIECES_FROM + bytes.len() as u64;
    let last = pieces.saturating_sub(1);
    let stamp = Stamp { version: Version(last), clock: UnixMillis(2 * last) };
    let length = data.len() as u32;
    assert_eq!(end, ReadEnd { length, crc: crc32c(data), stamp, place, end: ReplicaEnd::Clean });

    if let (Some(last), [.., change]) = (bytes.len().checked_sub(1), data) {
        let at = usize::from(data[0]) * last / 255;
        bytes[at] ^= change;
        assert!(data.starts_with(&read_pieces(&header, &bytes, 1 + data.len()).0));
        assert!(data.starts_with(&read_pieces(&header, &bytes[..at], 1 + data.len()).0));
    }
    pieces as usize
}
