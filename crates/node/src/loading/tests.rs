//! Tests of the recovery of a log.

use super::*;
use ::backup::{Faults, MemoryDisk};
use store::{Key, RangeClock, StoreConfig, TableSet, Tablet, TabletMap, TabletState};
use types::limits::TABLES_MAX;
use types::{HashRange, HashSeed, Incarnation, OwnershipEpoch, ReactorId, TableId, UnixMillis};
use types::{Version, key_hash};
use wire::manifest::{VersionCut, VersionMark};

const IDENTITY: ServerIdentity = ServerIdentity { cluster: ClusterId(7), server: ServerId(3) };
const SEGMENT: SegmentId = SegmentId(5);

fn store() -> Arc<Store> {
    let config = StoreConfig {
        memory_bytes: 64 << 20,
        reactors: 1,
        seed: HashSeed::new(1),
        huge_pages: false,
        durable: true,
        segment_bytes: None,
    };
    Store::new(config).expect("memory for a small store")
}

/// Writes a replica with one piece. Returns its content.
fn write(replicas: &Replicas, segment: SegmentId, epoch: u32, body: &[u8]) -> SegmentContent {
    write_pieces(replicas, segment, epoch, &[body])
}

fn write_pieces(
    replicas: &Replicas,
    segment: SegmentId,
    epoch: u32,
    bodies: &[&[u8]],
) -> SegmentContent {
    let kind = if segment.is_manifest() { ReplicaKind::Manifest } else { ReplicaKind::Data };
    let id = ReplicaId { log: IDENTITY.server, segment, epoch: ReplicaEpoch(epoch) };
    let replica = replicas.create(ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster: IDENTITY.cluster,
        id,
        kind,
        segment_bytes: store().log().segment_bytes() as u32,
        boot: replicas.boot(),
    });
    let replica = replica.expect("a disk with room");
    let mut pieces = PieceWriter::new(replica.identity());
    for body in bodies {
        let header = pieces.next(body, 0, Stamp::default());
        replica.append(&header, body).expect("the pieces fit");
    }
    SegmentContent { length: pieces.length(), crc: pieces.crc() }
}

#[test]
fn a_header_that_no_server_writes_is_refused() {
    let last = Quorum::OWN_DISK.segment(0);
    let last = SegmentId(last.0 | (u64::MAX >> 2) & !0xffff | last.0 & 0xffff);
    let forged = [
        (SEGMENT, ReplicaKind::Manifest),
        (SegmentId::FIRST_OF_MANIFEST, ReplicaKind::Data),
        (last, ReplicaKind::Manifest),
    ];
    for (segment, kind) in forged {
        let disk = MemoryDisk::new();
        let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId::default());
        let log = open().expect("an empty disk");
        let id = ReplicaId { log: IDENTITY.server, segment, epoch: ReplicaEpoch(0) };
        let header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: IDENTITY.cluster,
            id,
            kind,
            segment_bytes: store().log().segment_bytes() as u32,
            boot: log.replicas.boot(),
        };
        log.replicas.create(header).expect("a disk with room");
        assert!(matches!(open(), Err(KeptError::Damaged { .. })), "{segment} is no {kind:?}");
    }
}

/// Loads a log with these replicas of one segment, whose manifest segment is `manifest`.
/// Returns the epoch of the replica that is used, and the epochs that are left.
fn load(
    manifest_segment: SegmentId,
    is_sealed: bool,
    replicas: &[(u32, &[u8])],
) -> (Result<u32, KeptError>, Vec<u32>) {
    let disk = MemoryDisk::new();
    let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId::default());
    let log = open().expect("an empty disk");
    let contents: Vec<SegmentContent> =
        replicas.iter().map(|(epoch, body)| write(&log.replicas, SEGMENT, *epoch, body)).collect();
    let mut manifest = SegmentManifest::new();
    manifest.open(SEGMENT);
    if is_sealed {
        manifest.close(SEGMENT, contents[0]);
    }
    write(&log.replicas, manifest_segment, 0, &manifest.snapshot());
    disk.kill_process();
    let store = store();
    let log = open().expect("a log that can be read");
    let log = log.adopt(IDENTITY, Mode::Interval, &store).expect("a whole log");
    let content = is_sealed.then_some(contents[0]);
    let read = log.loading.read_replica(&log.replicas, SEGMENT, content, &store);
    let left = log.replicas.list(IDENTITY.server).into_iter();
    let left = left.filter(|header| header.id.segment == SEGMENT);
    (read.map(|(header, _)| header.id.epoch.0), left.map(|header| header.id.epoch.0).collect())
}

/// Damages the first piece of a replica, which stays before a whole one.
fn damage(disk: &MemoryDisk, number: u32) {
    disk.damage(FileNumber(number), wire::replica::PIECES_FROM as usize + 44, 1);
}

#[test]
#[should_panic(expected = "a piece of loading ends once")]
fn a_piece_that_was_not_taken_does_not_end() {
    Loading::none().end_piece();
}

#[test]
fn a_damaged_original_is_not_replaced_by_an_incomplete_copy() {
    let disk = MemoryDisk::new();
    let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId::default());
    let log = open().expect("an empty disk");
    write_pieces(&log.replicas, SEGMENT, 0, &[b"acknowledged", b"and more"]);
    write(&log.replicas, SEGMENT, 1, b"ackn");
    let mut manifest = SegmentManifest::new();
    manifest.open(SEGMENT);
    write(&log.replicas, own(1), 0, &manifest.snapshot());
    damage(&disk, 0);
    let store = store();
    let log = open().expect("headers can be read");
    let log = log.adopt(IDENTITY, Mode::Interval, &store).expect("a whole manifest");
    let read = log.loading.read_replica(&log.replicas, SEGMENT, None, &store);
    assert!(matches!(read, Err(KeptError::Damaged { .. })), "{read:?}");
    let left = log.replicas.list(IDENTITY.server).into_iter();
    assert_eq!(left.filter(|header| header.id.segment == SEGMENT).count(), 2);
}

#[test]
fn a_damaged_manifest_is_not_replaced_by_an_older_one() {
    let disk = MemoryDisk::new();
    let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId::default());
    let log = open().expect("an empty disk");
    let snapshot = SegmentManifest::new().snapshot();
    write_pieces(&log.replicas, own(2), 0, &[&snapshot, &snapshot]);
    write(&log.replicas, own(1), 0, &snapshot);
    damage(&disk, 0);
    let adopted = open().expect("headers can be read").adopt(IDENTITY, Mode::Interval, &store());
    assert!(matches!(adopted.err(), Some(KeptError::Damaged { .. })));
}

#[test]
fn what_an_earlier_version_has_left_is_not_found_again() {
    let disk = MemoryDisk::new();
    let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId::default());
    let log = open().expect("an empty disk");
    write(&log.replicas, SEGMENT, 1, b"a segment that was dropped");
    write(&log.replicas, SEGMENT, 2, b"the segment");
    let mut manifest = SegmentManifest::new();
    manifest.open(SEGMENT);
    write(&log.replicas, SegmentId(SegmentId::FIRST_OF_MANIFEST.0 | 4), 0, &manifest.snapshot());
    let first = open().expect("a log").adopt(IDENTITY, Mode::Interval, &store());
    first.expect("a whole log");
    disk.kill_process();
    let again = open().expect("a log").headers;
    let epochs = again.iter().filter(|header| header.id.segment == SEGMENT);
    assert_eq!(epochs.map(|header| header.id.epoch.0).collect::<Vec<_>>(), [2]);
}

/// Restarts a server with a mark at version 10 in this boot of the machine, and returns the
/// cuts and the mark.
fn restart(disk: &MemoryDisk, boot: u8, mode: Mode) -> (Vec<VersionCut>, Option<VersionMark>) {
    let found = RecoveredLog::find(Arc::new(disk.clone()), BootId([boot; 16]));
    let log = found.expect("a log").adopt(IDENTITY, mode, &store()).expect("a whole log");
    (log.manifest.cuts().collect(), log.manifest.last_mark())
}

/// Returns a disk with a log that was written in the first boot of its machine.
fn marked_disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let log = RecoveredLog::find(Arc::new(disk.clone()), BootId([1; 16])).expect("no log");
    write(&log.replicas, SEGMENT, 0, b"entries");
    let mut manifest = SegmentManifest::new();
    manifest.adopt(SegmentId(2), false, true);
    manifest.open(SEGMENT);
    manifest.mark(Version(10));
    write(&log.replicas, own(1), 0, &manifest.snapshot());
    disk.kill_process();
    disk
}

const CUT: VersionCut = VersionCut { after: SegmentId(2), through: SEGMENT, above: Version(10) };

#[test]
fn entries_above_the_mark_are_ignored_if_the_machine_was_restarted() {
    let whole = Some(VersionMark { whole: SEGMENT, version: Version(0) });
    let disk = marked_disk();
    assert_eq!(restart(&disk, 1, Mode::Interval), (vec![], whole), "only the process ended");
    assert_eq!(restart(&disk, 2, Mode::Interval), (vec![], whole), "all was synced then");
    let disk = marked_disk();
    assert_eq!(restart(&disk, 2, Mode::Interval), (vec![CUT], whole));
    assert_eq!(restart(&disk, 2, Mode::Interval), (vec![CUT], whole), "it stays");
    assert_eq!(restart(&disk, 3, Mode::Interval), (vec![CUT], whole), "and nothing is added");
    for mode in [Mode::Memory, Mode::Disk] {
        let disk = marked_disk();
        assert_eq!(restart(&disk, 2, mode), (vec![CUT], None), "{mode:?} has no marks");
        assert_eq!(restart(&disk, 3, mode), (vec![CUT], None));
    }
}

/// Returns a disk with a log of one segment, as a server in the mode `memory` leaves it when its
/// process is killed: the manifest has the content, and nothing but the headers is synced.
fn unsynced_disk(is_sealed: bool) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let log = RecoveredLog::find(Arc::new(disk.clone()), BootId([1; 16])).expect("no log");
    let content = write(&log.replicas, SEGMENT, 0, b"entries");
    let mut manifest = SegmentManifest::new();
    manifest.open(SEGMENT);
    if is_sealed {
        manifest.close(SEGMENT, content);
    }
    write(&log.replicas, own(1), 0, &manifest.snapshot());
    disk.kill_process();
    disk
}

/// Loads the segment of a log, and returns its bytes.
fn load_segment(disk: &MemoryDisk, boot: u8) -> Result<Vec<u8>, KeptError> {
    let store = store();
    let log = RecoveredLog::find(Arc::new(disk.clone()), BootId([boot; 16]))?;
    let log = log.adopt(IDENTITY, Mode::Disk, &store)?;
    let content = log.manifest.segments().find_map(|(_, content)| content);
    let (header, _) = log.loading.read_replica(&log.replicas, SEGMENT, content, &store)?;
    let mut bytes = Vec::new();
    log.replicas.read(header.id, |body| bytes.extend_from_slice(body)).expect("a replica");
    Ok(bytes)
}

/// The manifest segment that the process begins calls them whole. The boot of their headers is an
/// earlier one if the folder was copied in this boot.
#[test]
fn all_segments_are_synced_before_a_server_relies_on_them() {
    for is_sealed in [true, false] {
        for boot in [1, 2] {
            let disk = unsynced_disk(is_sealed);
            let log = RecoveredLog::find(Arc::new(disk.clone()), BootId([boot; 16]));
            log.expect("a log").adopt(IDENTITY, Mode::Disk, &store()).expect("a whole log");
            disk.power_cut(&mut |_| 0);
            let loaded = load_segment(&disk, boot + 1).expect("all was synced");
            assert_eq!(loaded, b"entries", "sealed: {is_sealed}, boot {boot}");
        }
    }
}

fn own(place: u64) -> SegmentId {
    Quorum::OWN_DISK.segment(place)
}

#[test]
fn an_open_segment_is_read_from_its_longest_replica() {
    let whole = &b"acknowledged"[..];
    let (read, left) = load(own(1), false, &[(0, whole)]);
    assert_eq!((read.ok(), left), (Some(0), vec![0]));
    let (read, left) = load(own(1), false, &[(0, b"ackn"), (1, whole)]);
    assert_eq!((read.ok(), left), (Some(1), vec![0, 1]), "the disk has lost bytes");
    let (read, left) = load(own(1), false, &[(0, whole), (1, whole)]);
    assert_eq!((read.ok(), left), (Some(1), vec![0, 1]), "the disk may have lost bytes");
    let (read, left) = load(own(1), false, &[(0, whole), (1, b"ackn")]);
    assert_eq!((read.ok(), left), (Some(2), vec![0, 1, 2]), "the copy is incomplete");
}

/// Its sync has failed, since there is a copy: the disk may lack bytes that the system returns.
#[test]
fn an_original_that_is_longer_than_its_copy_is_written_again() {
    let disk = MemoryDisk::new();
    let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId([1; 16])).expect("a log");
    let log = open();
    write(&log.replicas, SEGMENT, 0, b"acknowledged");
    write(&log.replicas, SEGMENT, 1, b"ackn");
    let mut manifest = SegmentManifest::new();
    manifest.open(SEGMENT);
    write(&log.replicas, own(1), 0, &manifest.snapshot());
    let id = |epoch| ReplicaId { log: IDENTITY.server, segment: SEGMENT, epoch };
    disk.set_faults(Faults { syncs_fail: true, ..Faults::default() });
    assert!(log.replicas.sync(id(ReplicaEpoch(0))).is_err());
    disk.set_faults(Faults::default());
    disk.kill_process();
    assert_eq!(load_segment(&disk, 1).expect("the system has all bytes"), b"acknowledged");
    disk.power_cut(&mut |_| 0);
    let mut bytes = Vec::new();
    let read = open().replicas.read(id(ReplicaEpoch(2)), |body| bytes.extend_from_slice(body));
    read.expect("the new replica");
    assert_eq!(bytes, b"acknowledged");
}

#[test]
fn a_sealed_segment_is_read_from_any_replica_with_its_content() {
    for replicas in
        [[(0, &b"the content"[..]), (1, b"the content")], [(0, b"the content"), (1, b"the cont")]]
    {
        let (read, left) = load(own(1), true, &replicas);
        let expected = if replicas[1] == (1, replicas[0].1) { 1 } else { 0 };
        assert_eq!((read.ok(), left), (Some(expected), vec![expected]));
    }
}

#[test]
fn a_sealed_segment_with_other_content_is_refused() {
    let disk = MemoryDisk::new();
    let log = RecoveredLog::find(Arc::new(disk), BootId::default()).expect("an empty disk");
    write(&log.replicas, SEGMENT, 0, b"something");
    let content = SegmentContent { length: 9, crc: 0 };
    let header = log.replicas.list(IDENTITY.server)[0];
    let headers = BTreeMap::from([(SEGMENT, vec![header])]);
    let to_read = vec![(SEGMENT, Some(content))];
    let loading = Loading::new(to_read, Stamp::default(), headers);
    let read = loading.read_replica(&log.replicas, SEGMENT, Some(content), &store());
    assert!(matches!(read, Err(KeptError::Damaged { .. })), "{read:?}");
    assert_eq!(log.replicas.list(IDENTITY.server), [header], "it is left unchanged");
}

#[test]
fn earlier_versions_used_the_number_of_a_segment_again() {
    let of_earlier_version = SegmentId(SegmentId::FIRST_OF_MANIFEST.0 | 4);
    let replicas = [(1, &b"a segment that was dropped"[..]), (2, b"the segment")];
    let (read, left) = load(of_earlier_version, false, &replicas);
    assert_eq!((read.ok(), left), (Some(2), vec![2]), "the later one counts");
}

#[test]
fn replicas_that_the_manifest_does_not_name_are_freed_and_their_numbers_left_out() {
    let disk = MemoryDisk::new();
    let open = || RecoveredLog::find(Arc::new(disk.clone()), BootId::default());
    let log = open().expect("an empty disk");
    write(&log.replicas, SegmentId(9), 0, b"never acknowledged");
    write(&log.replicas, own(3), 0, &SegmentManifest::new().snapshot());
    let store = store();
    let log = open().expect("a log").adopt(IDENTITY, Mode::Interval, &store).expect("a whole log");
    let left: Vec<SegmentId> =
        log.replicas.list(IDENTITY.server).iter().map(|header| header.id.segment).collect();
    assert_eq!(left, [own(4)], "the new manifest segment");
    store.publish(TabletMap::new(vec![Tablet {
        range: HashRange::ALL,
        epoch: OwnershipEpoch(1),
        incarnations: [Incarnation(1); TABLES_MAX],
        state: TabletState::Serving,
        clock: RangeClock::OWN,
        flushing: TableSet::NONE,
    }]));
    let mut worker = store.worker(ReactorId(0));
    worker.begin_turn(UnixMillis(0));
    let key = Key { hash: key_hash(store.seed(), b"key"), bytes: b"key" };
    worker.put(TableId(0), key, b"value", None).expect("the store serves all keys");
    let segments = store.log().segments_in_log();
    assert!(segments.iter().all(|segment| segment.0 > 9) && !segments.is_empty());
}
