//! Histories that are too rare for random worlds.

use crate::common::{NOW, TABLE, key, tablet};
use crate::disk::{Disk, Replica, config};
use store::{CleaningOccasion, Need, TabletMap, TabletState};
use types::{HashRange, SegmentId, TypedValue, Version};
use wire::entry::{Body, Entry};

const SEGMENT_BYTES: usize = 64 << 10;

/// The cleaner copies a record, which is then deleted. The segments of the copy and of the
/// tombstone could leave the log long before the original's segment, which the manifest is slow
/// to drop. Returns whether the record exists after a crash.
pub(crate) fn an_original_outlives_its_copy() -> bool {
    let config = || config(24 * SEGMENT_BYTES, SEGMENT_BYTES, 1);
    let serving = || TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]);
    let mut disk = Disk::default();
    let (store, mut workers) = disk.recover(config(), serving(), NOW, |_| {});
    let worker = &mut workers[0];
    let copied = key(&store, b"copied");
    worker.put(TABLE, copied, b"original", None).unwrap();
    let original = SegmentId(1);
    let mut is_deleted = false;
    for number in 0..20_000u32 {
        worker.begin_turn(NOW);
        // Every segment keeps live bytes for a while, more than the original's segment.
        let name = match number % 40 {
            0 => format!("slow filler {}", number / 40 % 40),
            fast => format!("filler {}", fast % 10),
        };
        let _ = worker.put(TABLE, key(&store, name.as_bytes()), &[7; 1000], None);
        worker.clean(CleaningOccasion::LowMemory);
        disk.save(&store, worker, || true);
        if number % 50 == 0 {
            disk.sync_all(&store);
        }
        if disk.dead.contains(&original) && !is_deleted {
            is_deleted = true;
            let delete =
                worker.update(TABLE, &[copied], Need::Nothing, |_, changes| changes.delete(0));
            delete.unwrap();
        }
        while let Some(at) = disk.dead.iter().position(|segment| *segment != original) {
            disk.drop_at(at);
        }
        while disk.release_one(&store) {}
    }
    assert!(is_deleted && disk.manifest.contains(&original));
    disk.sync_all(&store);
    drop(workers);
    let mut disk = disk.after_crash(None::<fn(usize) -> usize>);
    let (store, mut workers) = disk.recover(config(), serving(), NOW, |_| {});
    workers[0].read_one(TABLE, key(&store, b"copied"), |record| record.is_some()).unwrap()
}

/// A server is killed when its cleaner has copied a record of the segment `ORIGINALS` into the
/// segment `COPIES`, which has the lower number. The next process reads the copies first. The
/// record is deleted, and the segments of the copy and of the tombstone are cleaned; the one of the
/// original is not, because nearly all of it is live. Returns whether the record exists after
/// another crash.
pub(crate) fn an_original_is_read_after_its_copy() -> bool {
    const COPIES: SegmentId = SegmentId(50);
    const ORIGINALS: SegmentId = SegmentId(60);
    let config = || config(24 * SEGMENT_BYTES, SEGMENT_BYTES, 1);
    let serving = || TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]);
    let names: Vec<String> = (0..60).map(|number| format!("live {number}")).collect();
    let originals = names.iter().zip(2..).map(|(name, version)| object(name, version));
    let mut disk = Disk::default();
    disk.add(COPIES, [Entry::note(ORIGINALS), object("copied", 1)]);
    disk.add(ORIGINALS, [object("copied", 1)].into_iter().chain(originals));
    let (store, mut workers) = disk.recover(config(), serving(), NOW, |_| {});
    let worker = &mut workers[0];
    let copied = key(&store, b"copied");
    let delete = worker.update(TABLE, &[copied], Need::Records, |records, changes| {
        changes.delete(0);
        records[0].is_some()
    });
    assert_eq!(delete, Ok(true));
    disk.save(&store, worker, || true);
    let tombstone = *disk.manifest.last().expect("the tombstone's segment is open");
    assert!(tombstone > ORIGINALS);
    for number in 0..2_000 {
        worker.begin_turn(NOW);
        worker.put(TABLE, key(&store, b"filler"), &[7; 1000], None).unwrap();
        worker.clean(CleaningOccasion::Rest);
        disk.save(&store, worker, || true);
        if number % 20 == 0 {
            disk.sync_all(&store);
        }
        while disk.drop_at(0) {}
        while disk.release_one(&store) {}
    }
    assert!(disk.manifest.contains(&ORIGINALS) && !disk.manifest.contains(&tombstone));
    disk.sync_all(&store);
    drop(workers);
    let mut disk = disk.after_crash(None::<fn(usize) -> usize>);
    let (store, mut workers) = disk.recover(config(), serving(), NOW, |_| {});
    workers[0].read_one(TABLE, key(&store, b"copied"), |record| record.is_some()).unwrap()
}

/// Returns a record of the range in these tests.
pub(crate) fn object(name: &str, version: u64) -> Entry<'_> {
    let body = Body::Object { expiry: None, replaces: None, value: TypedValue::string(&[7; 1000]) };
    let incarnation = tablet(HashRange::ALL, TabletState::Serving).incarnations[0];
    Entry { incarnation, version: Version(version), key: name.as_bytes(), body }
}

impl Disk {
    /// Adds a whole segment with these entries.
    pub(crate) fn add<'e>(
        &mut self,
        segment: SegmentId,
        entries: impl IntoIterator<Item = Entry<'e>>,
    ) {
        let mut bytes = Vec::new();
        for entry in entries {
            let from = bytes.len();
            bytes.resize(from + entry.encoded_bytes(), 0);
            entry.encode(&mut bytes[from..]);
        }
        assert!(bytes.len() <= SEGMENT_BYTES, "{segment} is too long");
        let (ends, synced) = (vec![bytes.len()], bytes.len());
        self.segments.insert(segment, Replica { bytes, ends, synced, is_closed: true });
        self.manifest.insert(segment);
    }
}
