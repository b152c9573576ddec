//! The guarantees of replicas, on a memory disk: one test per guarantee.

mod common;

use backup::{AppendError, Blocks, Disk, Faults, FileNumber, MemoryDisk};
use common::{BOOT, LOG, SEGMENT_BYTES, STAMP, Writing, files, header, id, open, read, try_open};
use std::io::ErrorKind;
use wire::Corrupt;
use wire::replica::{BootId, PIECES_FROM, PieceWriter, ReplicaEnd, ReplicaEpoch, Stamp};

const NONE: Faults =
    Faults { capacity: None, write_fails_after: None, syncs_fail: false, removals_fail: false };
const FULL: Faults = Faults { capacity: Some(0), ..NONE };

#[test]
fn what_was_appended_is_read_also_by_the_next_process() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    for body in [&b"first"[..], b"second piece", &[9; 5000]] {
        writing.append(body).unwrap();
    }
    assert_eq!((writing.replica.length(), writing.replica.synced()), (5017, 0));
    let expected = [&b"firstsecond piece"[..], &[9; 5000]].concat();
    assert_eq!(read(&replicas, id(1)).0, expected);
    disk.kill_process();
    let replicas = open(&disk);
    assert_eq!(replicas.list(LOG), [header(id(1))]);
    assert_eq!(replicas.logs(), [LOG]);
    let (bytes, end) = read(&replicas, id(1));
    assert_eq!((bytes, end.end, end.stamp), (expected, ReplicaEnd::Clean, STAMP));
}

#[test]
fn a_piece_longer_than_what_is_read_at_once_comes_back() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let large = wire::replica::ReplicaHeader { segment_bytes: 4 << 20, ..header(id(1)) };
    let mut writing = Writing::of(replicas.create(large).unwrap());
    let bodies = [vec![1; 300], vec![2; 3 << 20], vec![3; 300]];
    bodies.iter().for_each(|body| writing.append(body).unwrap());
    assert_eq!(read(&replicas, id(1)).0, bodies.concat());
}

#[test]
fn what_was_synced_survives_a_loss_of_power_and_a_replica_is_found_even_if_nothing_was() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut synced = Writing::new(&replicas, id(1));
    synced.append(b"synced").unwrap();
    assert_eq!(synced.replica.sync().unwrap(), 6);
    synced.append(b"and more").unwrap();
    let mut fresh = Writing::new(&replicas, id(2));
    fresh.append(b"not yet").unwrap();
    disk.power_cut(&mut |_| 0);
    let replicas = open(&disk);
    assert_eq!(replicas.list(LOG), [header(id(1)), header(id(2))]);
    assert_eq!(read(&replicas, id(1)).0, b"synced");
    assert_eq!(read(&replicas, id(2)).0, b"");
}

#[test]
fn a_replica_of_an_earlier_process_can_be_made_synced() {
    let disk = MemoryDisk::new();
    Writing::new(&open(&disk), id(1)).append(b"in memory").unwrap();
    disk.kill_process();
    open(&disk).sync(id(1)).unwrap();
    disk.power_cut(&mut |_| 0);
    assert_eq!(read(&open(&disk), id(1)).0, b"in memory");
}

#[test]
fn a_repeated_piece_changes_nothing_and_one_that_does_not_follow_is_refused() {
    let replicas = open(&MemoryDisk::new());
    let mut writing = Writing::new(&replicas, id(1));
    let mut writer = PieceWriter::new(writing.replica.identity());
    let first = writer.next(b"first", 0, Stamp::default());
    writing.append(b"first").unwrap();
    writing.replica.append(&first, b"first").unwrap();
    let _skipped = writer.next(b"second", 0, Stamp::default());
    let third = writer.next(b"third", 0, Stamp::default());
    let refused = writing.replica.append(&third, b"third");
    assert!(matches!(refused, Err(AppendError::Misplaced { expected: 5, offset: 11, .. })));
    let both =
        PieceWriter::new(writing.replica.identity()).next(b"firstsecond", 0, Stamp::default());
    let refused = writing.replica.append(&both, b"firstsecond");
    assert!(matches!(refused, Err(AppendError::Misplaced { expected: 5, offset: 0, .. })));
    writing.append(b"second").unwrap();
    writing.replica.append(&third, b"third").unwrap();
    assert_eq!(read(&replicas, id(1)).0, b"firstsecondthird");
}

#[test]
fn a_piece_that_was_changed_on_its_way_or_is_not_for_this_replica_is_refused() {
    let replicas = open(&MemoryDisk::new());
    let writing = Writing::new(&replicas, id(1));
    let other = Writing::new(&replicas, id(2));
    let piece = writing.writer.clone().next(b"first", 0, Stamp::default());
    for changed in [&b"fIrst"[..], b"firs", b"first!", b""] {
        let refused = writing.replica.append(&piece, changed);
        let what = Corrupt::Checksum { what: "piece" };
        assert!(matches!(refused, Err(AppendError::Corrupt { why, .. }) if why == what));
    }
    assert!(matches!(
        other.replica.append(&piece, b"first"),
        Err(AppendError::Corrupt { why: Corrupt::Invalid { .. }, .. })
    ));
    let mut header = piece;
    header[20] ^= 1;
    assert!(matches!(
        writing.replica.append(&header, b"first"),
        Err(AppendError::Corrupt { why: Corrupt::Checksum { .. }, .. })
    ));
    writing.replica.append(&piece, b"first").unwrap();
    assert_eq!(read(&replicas, id(1)).0, b"first");
}

#[test]
fn a_replica_takes_a_full_segment_and_no_more() {
    let replicas = open(&MemoryDisk::new());
    let mut writing = Writing::new(&replicas, id(1));
    writing.append(&[1; SEGMENT_BYTES as usize]).unwrap();
    assert!(matches!(writing.append(&[1]), Err(AppendError::Corrupt { .. })));
    assert_eq!(read(&replicas, id(1)).1.length, SEGMENT_BYTES);
}

#[test]
fn a_write_that_failed_is_done_again_in_its_place() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    writing.append(b"before").unwrap();
    for after in [0, 10, 40, 200] {
        disk.set_faults(Faults { write_fails_after: Some(after), ..Faults::default() });
        let refused = writing.append(&[7; 300]);
        assert!(matches!(refused, Err(AppendError::Disk(e)) if e.kind() == ErrorKind::StorageFull));
        assert_eq!(writing.replica.length(), 6);
        let (bytes, end) = read(&replicas, id(1));
        assert_eq!(bytes, b"before");
        assert_eq!(end.end, if after < 32 { ReplicaEnd::Clean } else { ReplicaEnd::Torn });
        assert!(!end.is_damaged(false));
    }
    disk.set_faults(Faults::default());
    // More has been written to the segment meanwhile.
    writing.append(&[7; 500]).unwrap();
    assert_eq!(read(&replicas, id(1)).0, [&b"before"[..], &[7; 500]].concat());
}

#[test]
fn on_a_full_disk_no_replica_is_made_and_nothing_is_left_of_it() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    disk.set_faults(FULL);
    assert_eq!(
        replicas.create(header(id(1))).map(drop).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert_eq!(
        replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    for faults in [
        Faults { write_fails_after: Some(20), ..Faults::default() },
        Faults { syncs_fail: true, ..Faults::default() },
    ] {
        disk.set_faults(faults);
        assert!(replicas.create(header(id(1))).is_err());
        assert!(replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).is_err());
    }
    assert_eq!(replicas.list(LOG), []);
    disk.set_faults(Faults::default());
    Writing::new(&replicas, id(1)).append(b"works").unwrap();
    replicas.free(id(9)).unwrap();
    assert_eq!(files(&disk), 1);
}

#[test]
fn after_a_sync_that_failed_a_replica_is_lost_for_good() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    writing.append(b"synced").unwrap();
    writing.replica.sync().unwrap();
    writing.append(b"not").unwrap();
    disk.set_faults(Faults { syncs_fail: true, ..Faults::default() });
    assert!(writing.replica.sync().is_err());
    disk.set_faults(Faults::default());
    assert!(writing.replica.sync().is_err(), "that it can be synced again says nothing");
    assert!(matches!(writing.append(b"more"), Err(AppendError::Lost { .. })));
    assert_eq!(writing.replica.synced(), 6);
    // Another replica replaces it, in another file.
    let next = wire::replica::ReplicaId { epoch: ReplicaEpoch(1), ..id(1) };
    Writing::new(&replicas, next).append(b"stablenot").unwrap();
    drop(writing);
    replicas.free(id(1)).unwrap();
    assert_eq!(files(&disk), 1, "its file is not used again");
    assert_eq!(read(&replicas, next).0, b"stablenot");
}

#[test]
fn a_replica_cannot_be_made_twice() {
    let replicas = open(&MemoryDisk::new());
    let mut writing = Writing::new(&replicas, id(1));
    let twice = replicas.create(header(id(1))).map(drop).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
    writing.append(b"first").unwrap();
    assert_eq!(read(&replicas, id(1)).0, b"first");
}

#[test]
fn a_freed_file_is_used_again_when_nobody_uses_its_replica_any_more() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    writing.append(&[1; 3000]).unwrap();
    replicas.free(id(1)).unwrap();
    assert!(matches!(writing.append(b"late"), Err(AppendError::Lost { .. })));
    assert_eq!(replicas.read(id(1), |_| {}).unwrap_err().kind(), ErrorKind::NotFound);
    let mut second = Writing::new(&replicas, id(2));
    assert_eq!(files(&disk), 2, "the first file is still open");
    drop(writing);
    let mut third = Writing::new(&replicas, id(3));
    assert_eq!(files(&disk), 2);
    assert_eq!(read(&replicas, id(3)).1.end, ReplicaEnd::Clean, "the former content is ignored");
    second.append(b"second").unwrap();
    third.append(b"third").unwrap();
    assert_eq!(read(&replicas, id(2)).0, b"second");
    assert_eq!(read(&replicas, id(3)).0, b"third");
}

#[test]
fn a_replica_that_is_being_read_keeps_its_file() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    Writing::new(&replicas, id(1)).append(b"being read").unwrap();
    let end = replicas.read(id(1), |body| {
        assert_eq!(body, b"being read");
        replicas.free(id(1)).unwrap();
        Writing::new(&replicas, id(2)).append(b"elsewhere").unwrap();
        assert_eq!(files(&disk), 2);
    });
    assert_eq!(end.unwrap().length, 10);
    Writing::new(&replicas, id(3));
    assert_eq!(files(&disk), 2);
}

#[test]
fn some_free_files_are_kept_and_the_rest_is_removed() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    (0..20).for_each(|segment| drop(Writing::new(&replicas, id(segment))));
    assert_eq!(files(&disk), 20);
    (0..20).for_each(|segment| replicas.free(id(segment)).unwrap());
    assert_eq!(files(&disk), 8);
    (20..28).for_each(|segment| drop(Writing::new(&replicas, id(segment))));
    assert_eq!(files(&disk), 8);
}

#[test]
fn a_file_of_another_size_is_not_used() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    drop(Writing::new(&replicas, id(1)));
    replicas.free(id(1)).unwrap();
    let larger = wire::replica::ReplicaHeader { segment_bytes: 2 * SEGMENT_BYTES, ..header(id(2)) };
    replicas.create(larger).unwrap();
    assert_eq!(files(&disk), 2);
}

#[test]
fn a_file_that_was_made_ready_is_used_by_the_next_replica() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).unwrap();
    replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).unwrap();
    assert_eq!(files(&disk), 1, "one is enough");
    Writing::new(&replicas, id(1)).append(b"ready").unwrap();
    assert_eq!(files(&disk), 1);
    replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).unwrap();
    disk.kill_process();
    let replicas = open(&disk);
    assert_eq!(files(&disk), 2, "a start removes nothing");
    replicas.free(id(9)).unwrap();
    assert_eq!(files(&disk), 1, "a file without a replica is created again");
    assert_eq!(read(&replicas, id(1)).0, b"ready");
}

#[test]
fn a_file_whose_header_cannot_be_read_is_told_and_left_alone() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    Writing::new(&replicas, id(1)).append(b"first").unwrap();
    Writing::new(&replicas, id(2)).append(b"second").unwrap();
    disk.kill_process();
    disk.damage(FileNumber(0), 40, 4);
    let before = disk.contents(FileNumber(0));
    let opened = try_open(&disk, BOOT).unwrap();
    let found: Vec<_> = opened.unreadable.iter().map(|file| (file.number, file.why)).collect();
    let why = Corrupt::Checksum { what: "header of replica" };
    assert_eq!(found, [(FileNumber(0), why)]);
    assert_eq!(opened.replicas.list(LOG), [header(id(2))]);
    opened.replicas.free(id(2)).unwrap();
    (3..30).for_each(|segment| drop(Writing::new(&opened.replicas, id(segment))));
    assert_eq!(disk.contents(FileNumber(0)), before);
}

#[test]
fn a_header_of_zeros_above_pieces_is_a_header_that_was_lost() {
    let disk = MemoryDisk::new();
    Writing::new(&open(&disk), id(1)).append(b"first").unwrap();
    for (at, byte) in disk.contents(FileNumber(0))[..64].iter().enumerate() {
        disk.damage(FileNumber(0), at, *byte);
    }
    disk.kill_process();
    assert_eq!(try_open(&disk, BOOT).unwrap().unreadable.len(), 1);
}

#[test]
fn two_files_with_one_replica_are_an_error_that_names_them() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    drop(Writing::new(&replicas, id(1)));
    drop(Writing::new(&replicas, id(2)));
    let (first, second) = (disk.contents(FileNumber(0)), disk.contents(FileNumber(1)));
    for (at, (first, second)) in first.iter().zip(&second).enumerate() {
        disk.damage(FileNumber(1), at, first ^ second);
    }
    disk.kill_process();
    let error = try_open(&disk, BOOT).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    let text = error.to_string();
    assert!(text.contains("000000") && text.contains("000001"), "{text}");
}

#[test]
fn a_replica_that_was_not_made_and_cannot_be_removed_gives_way_to_the_one_made_after_it() {
    for half_made in [
        Faults { write_fails_after: Some(100), removals_fail: true, ..NONE },
        Faults { syncs_fail: true, removals_fail: true, ..NONE },
    ] {
        let disk = MemoryDisk::new();
        let replicas = open(&disk);
        disk.set_faults(half_made);
        assert!(replicas.create(header(id(1))).is_err());
        disk.set_faults(NONE);
        Writing::new(&replicas, id(1)).append(b"acknowledged").unwrap();
        disk.kill_process();
        let replicas = open(&disk);
        assert_eq!(replicas.list(LOG), [header(id(1))]);
        assert_eq!(read(&replicas, id(1)).0, b"acknowledged");
        assert_eq!(files(&disk), 2, "a start removes nothing");
        replicas.free(id(9)).unwrap();
        assert_eq!(files(&disk), 1, "the other one is gone when something is freed");
    }
}

#[test]
fn a_replica_made_again_after_it_was_freed_is_the_one_that_is_found() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    Writing::new(&replicas, id(1)).append(b"freed").unwrap();
    drop(Writing::new(&replicas, id(2)));
    replicas.free(id(2)).unwrap();
    replicas.free(id(1)).unwrap();
    // Written to another file; the first file still has its header.
    Writing::new(&replicas, id(1)).append(b"again").unwrap();
    assert_eq!(files(&disk), 2);
    disk.kill_process();
    let replicas = open(&disk);
    assert_eq!(replicas.list(LOG), [header(id(1))]);
    assert_eq!(read(&replicas, id(1)).0, b"again");
}

#[test]
fn a_replica_that_was_given_up_is_not_found_again_though_somebody_still_has_it() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let mut writing = Writing::new(&replicas, id(1));
    writing.append(b"not to be relied on").unwrap();
    replicas.give_up(id(1)).unwrap();
    assert!(matches!(writing.append(b"more"), Err(AppendError::Lost { .. })));
    disk.kill_process();
    assert_eq!((open(&disk).list(LOG), files(&disk)), (vec![], 0));
}

#[test]
fn whoever_gives_up_a_replica_is_told_if_something_of_it_may_be_left() {
    let stuck = Faults { removals_fail: true, ..NONE };
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    drop(Writing::new(&replicas, id(1)));
    disk.set_faults(stuck);
    assert!(replicas.give_up(id(1)).is_err(), "it was there");
    assert!(replicas.give_up(id(1)).is_err(), "and it still is");
    disk.set_faults(Faults { write_fails_after: Some(100), ..stuck });
    assert!(replicas.create(header(id(2))).is_err());
    assert!(replicas.give_up(id(2)).is_err(), "its header was written");
    disk.set_faults(NONE);
    replicas.give_up(id(2)).unwrap();
    assert_eq!(files(&disk), 0, "both are gone");
}

#[test]
fn a_start_on_a_disk_that_removes_nothing_takes_what_counts() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    let half_made = Faults { write_fails_after: Some(100), removals_fail: true, ..NONE };
    disk.set_faults(half_made);
    assert!(replicas.create(header(id(1))).is_err());
    disk.set_faults(NONE);
    Writing::new(&replicas, id(1)).append(b"acknowledged").unwrap();
    disk.set_faults(Faults { removals_fail: true, ..NONE });
    for process in 2..5 {
        disk.kill_process();
        let replicas = open(&disk);
        assert_eq!(read(&replicas, id(1)).0, b"acknowledged");
        Writing::new(&replicas, id(process)).append(b"of this process").unwrap();
    }
}

#[test]
fn damage_below_what_was_synced_is_told_apart_from_a_loss_of_power() {
    let disk = MemoryDisk::new();
    let mut writing = Writing::new(&open(&disk), id(1));
    for _ in 0..3 {
        writing.append(&[1; 100]).unwrap();
        writing.replica.sync().unwrap();
    }
    disk.damage(FileNumber(0), PIECES_FROM as usize + 40, 1);
    disk.power_cut(&mut |_| 0);
    let opened = try_open(&disk, BootId([2; 16])).unwrap();
    let (bytes, end) = read(&opened.replicas, id(1));
    assert_eq!(
        (bytes.len(), end.end, end.place),
        (0, ReplicaEnd::Hole { synced: 200 }, PIECES_FROM)
    );
    assert!(end.is_damaged(true));
}

#[test]
fn several_threads_append_sync_read_and_free() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let replicas = &replicas;
            scope.spawn(move || {
                for segment in (thread * 100..).take(25) {
                    let mut writing = Writing::new(replicas, id(segment));
                    let body = [segment as u8; 700];
                    for _ in 0..5 {
                        writing.append(&body).unwrap();
                    }
                    assert_eq!(writing.replica.sync().unwrap(), 3500);
                    assert_eq!(read(replicas, id(segment)).0, body.repeat(5));
                    drop(writing);
                    replicas.free(id(segment)).unwrap();
                }
            });
        }
    });
    assert_eq!(replicas.list(LOG), []);
    assert!(disk.list().unwrap().len() <= 8);
}

#[test]
fn in_a_file_that_is_ready_a_replica_is_made_without_a_sync_and_in_no_other() {
    let disk = MemoryDisk::new();
    let replicas = open(&disk);
    assert!(replicas.create_at_once(header(id(1))).unwrap().is_none());
    assert_eq!(files(&disk), 0, "nothing is begun");
    replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).unwrap();
    assert!(replicas.create_at_once(header(id(1))).unwrap().is_some());
    assert!(replicas.create_at_once(header(id(2))).unwrap().is_none());
    disk.kill_process();
    assert_eq!(open(&disk).list(LOG), [header(id(1))]);
}
