//! Tests of reading replicas with missing or changed bytes.

mod checks;

use checks::{read_pieces, replica_header};
use types::{SegmentId, UnixMillis, Version};
use wire::replica::{
    PIECE_HEADER_BYTES, PIECES_FROM, PieceWriter, ReplicaEnd, ReplicaFormat, ReplicaHeader,
    ReplicaIdentity, Stamp, piece_bytes,
};

const BODIES: [&[u8]; 4] = [b"first", b"the second one.", &[0xab; 100], b"last"];

/// Returns the stamp of the piece with this number.
fn stamp(number: usize) -> Stamp {
    let number = number as u64;
    Stamp { version: Version(number + 1), clock: UnixMillis(number + 1_000) }
}

/// Returns a replica, and for each byte whether it is significant. Before piece `n` was written,
/// everything up to piece `n - 1` had been synced.
fn pieces(identity: ReplicaIdentity) -> (Vec<u8>, Vec<bool>) {
    let mut writer = PieceWriter::new(identity);
    let (mut bytes, mut counts) = (Vec::new(), Vec::new());
    let mut synced = 0;
    for (number, body) in BODIES.iter().enumerate() {
        let before = writer.length();
        bytes.extend_from_slice(&writer.next(body, synced, stamp(number)));
        bytes.extend_from_slice(body);
        counts.resize(bytes.len(), true);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        counts.resize(bytes.len(), false);
        synced = before;
    }
    (bytes, counts)
}

fn header() -> ReplicaHeader {
    replica_header(1 << 10)
}

/// Returns the segment's bytes in the whole pieces before an offset, the start of the next piece,
/// and whether that piece is the last.
fn whole_before(at: usize) -> (Vec<u8>, usize, bool) {
    let (mut bytes, mut place) = (Vec::new(), 0);
    for (number, body) in BODIES.iter().enumerate() {
        if place + piece_bytes(body.len()) > at {
            return (bytes, place, number + 1 == BODIES.len());
        }
        bytes.extend_from_slice(body);
        place += piece_bytes(body.len());
    }
    (bytes, place, true)
}

#[test]
fn every_truncation_leaves_the_whole_pieces_before_it() {
    let (bytes, _) = pieces(header().identity());
    for length in 0..bytes.len() {
        let (whole, place, _) = whole_before(length);
        for step in [1, 7, 64, 1000] {
            let (read, end) = read_pieces(&header(), &bytes[..length], step);
            assert_eq!(read, whole, "cut at {length}");
            assert_eq!(end.place, PIECES_FROM + place as u64);
            let is_begun = length >= place + PIECE_HEADER_BYTES;
            assert_eq!(
                end.end,
                if is_begun { ReplicaEnd::Torn } else { ReplicaEnd::Clean },
                "cut at {length}"
            );
            assert!(!end.is_damaged(false) && !end.is_damaged(true));
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed_and_in_the_middle_it_is_damage() {
    let (bytes, counts) = pieces(header().identity());
    let all = read_pieces(&header(), &bytes, 4096);
    assert_eq!((&all.0[..], all.1.end), (&BODIES.concat()[..], ReplicaEnd::Clean));
    assert_eq!(all.1.stamp, stamp(BODIES.len() - 1));
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let found = read_pieces(&header(), &changed, 4096);
        if !counts[bit / 8] {
            assert_eq!(found, all, "padding means nothing");
            continue;
        }
        let (whole, place, is_last) = whole_before(bit / 8);
        assert_eq!(found.0, whole, "bit {bit}");
        assert_eq!(found.1.place, PIECES_FROM + place as u64);
        // The manifest of a log records the length and checksum of a closed segment and so
        // reveals the loss of a last piece.
        assert_ne!((found.1.length, found.1.crc), (all.1.length, all.1.crc));
        assert_eq!(found.1.is_damaged(false), !is_last, "bit {bit}: {:?}", found.1);
        assert_eq!(matches!(found.1.end, ReplicaEnd::Hole { .. }), !is_last);
    }
}

#[test]
fn after_a_loss_of_power_a_hole_is_damage_only_in_what_had_been_synced() {
    let (bytes, _) = pieces(header().identity());
    for (number, expected) in [(0, true), (1, true), (2, false)] {
        let place: usize = BODIES[..number].iter().map(|body| piece_bytes(body.len())).sum();
        let mut lost = bytes.clone();
        lost[place..place + piece_bytes(BODIES[number].len())].fill(0);
        for step in [1, 40, 1000] {
            let (read, end) = read_pieces(&header(), &lost, step);
            assert_eq!(read, BODIES[..number].concat());
            // According to the last piece, the second piece had been synced, but not the third.
            assert_eq!(end.end, ReplicaEnd::Hole { synced: 20 });
            assert_eq!(end.is_damaged(true), expected, "without piece {number}");
            assert!(end.is_damaged(false));
        }
    }
}

#[test]
fn what_earlier_replicas_left_in_the_file_is_not_taken_for_a_part_of_this_one() {
    let own = header();
    let mut others = [own; 4];
    others[0].id.segment = SegmentId(own.id.segment.0 + 1);
    others[1].id.segment = SegmentId(own.id.segment.0 ^ 1 << 40);
    others[2].id.epoch.0 += 1;
    others[3].id.log.0 += 1;
    for other in others {
        let (left, _) = pieces(other.identity());
        let (mut bytes, _) = pieces(own.identity());
        let length = whole_before(100).1;
        bytes.truncate(length);
        bytes.extend_from_slice(&left[length..]);
        let (read, end) = read_pieces(&own, &bytes, 4096);
        assert_eq!((read, end.end), (whole_before(100).0, ReplicaEnd::Clean), "{other:?}");
        assert_eq!(read_pieces(&own, &left, 4096).0, b"");
    }
}

#[test]
fn a_piece_that_ends_behind_its_segment_is_not_taken() {
    let (bytes, _) = pieces(header().identity());
    let short = replica_header(BODIES.concat().len() as u32 - 1);
    let (read, end) = read_pieces(&short, &bytes, 4096);
    assert_eq!((read, end.end), (BODIES[..3].concat(), ReplicaEnd::Clean));
}

/// Decodes hexadecimal digits.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// The test vectors of `docs/formats.md` from the time of format 1.
const FORMAT_1_HEADER: &str = "42414c4c41535452010001000000800007000000000000002c010000010000000\
                               900000000000000000102030405060708090a0b0c0d0e0f02010000863dcdb8";
const FORMAT_1_PIECES: [(&str, &[u8]); 2] = [
    ("00000000050000000000000009000000020100000000000050a13e8a8c2bddb1", b"first\0\0\0"),
    ("050000000800000005000000090000000301000000000000bffb1351e47938f3", b"second!!"),
];

#[test]
fn a_replica_of_format_1_is_read_and_its_changed_bits_are_noticed() {
    let (header, _) = ReplicaHeader::parse(&bytes_of(FORMAT_1_HEADER)).expect("a header");
    assert_eq!(header.format, ReplicaFormat::One);
    let pieces = FORMAT_1_PIECES.map(|(header, body)| [&bytes_of(header), body].concat()).concat();
    for step in [1, 7, 33, 1000] {
        let (read, end) = read_pieces(&header, &pieces, step);
        assert_eq!((&read[..], end.end), (&b"firstsecond!!"[..], ReplicaEnd::Clean));
        assert_eq!(end.stamp, Stamp { version: Version(259), clock: UnixMillis(0) });
        assert_eq!(end.place, PIECES_FROM + pieces.len() as u64);
    }
    for bit in 0..32 * 8 {
        let mut changed = pieces.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let (read, end) = read_pieces(&header, &changed, 4096);
        assert_eq!((&read[..], end.end), (&b""[..], ReplicaEnd::Hole { synced: 5 }), "bit {bit}");
    }
    // In a file of format 2, the same bytes are not pieces.
    let newer = ReplicaHeader { format: ReplicaFormat::CURRENT, ..header };
    assert_eq!(read_pieces(&newer, &pieces, 4096).0, b"");
}
