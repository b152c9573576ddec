//! The disk model of a durable store, and stores recovered from it.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use store::log::LogChange;
use store::{Store, StoreConfig, TabletMap, Worker};
use types::{HashSeed, KeyHash, ReactorId, SegmentId, UnixMillis, Version};
use wire::entries::EntryReader;
use wire::manifest::{VersionCut, VersionMark};

/// Contents of a log's replicas and of its segment manifest.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) segments: BTreeMap<SegmentId, Replica>,
    /// Segments in the manifest.
    pub(crate) manifest: BTreeSet<SegmentId>,
    /// Segments that the log has reported as dead.
    pub(crate) dead: VecDeque<SegmentId>,
    /// Segments that the manifest has dropped and the log has not released.
    pub(crate) dropped: VecDeque<SegmentId>,
    /// All segments that were ever dropped.
    pub(crate) gone: BTreeSet<SegmentId>,
    /// The last mark in the manifest, if the log has marks.
    pub(crate) mark: Option<VersionMark>,
    /// Entries that do not count.
    pub(crate) cuts: Vec<VersionCut>,
}

/// Bytes of one segment, and the number of synced bytes.
#[derive(Clone, Default)]
pub(crate) struct Replica {
    pub(crate) bytes: Vec<u8>,
    /// End offsets of the pieces in which it was written.
    pub(crate) ends: Vec<usize>,
    pub(crate) synced: usize,
    pub(crate) is_closed: bool,
}

impl Disk {
    /// Saves and acknowledges the bytes that a worker has written. `takes` may refuse a piece.
    pub(crate) fn save(
        &mut self,
        store: &Store,
        worker: &mut Worker,
        mut takes: impl FnMut() -> bool,
    ) {
        // Bytes that are not urgent come piece by piece.
        while self.save_once(store, worker, &mut takes) {}
    }

    /// Saves once. Returns whether there were bytes and all were accepted.
    fn save_once(
        &mut self,
        store: &Store,
        worker: &mut Worker,
        takes: &mut impl FnMut() -> bool,
    ) -> bool {
        self.note_changes(store);
        let mut saved = Vec::new();
        let mut are_taken = true;
        worker.hand_out(|unsaved| {
            if !takes() {
                are_taken = false;
                return false;
            }
            assert!(self.manifest.contains(&unsaved.segment), "{unsaved:?} is not listed");
            let replica = self.segments.entry(unsaved.segment).or_default();
            assert_eq!(replica.bytes.len(), unsaved.from as usize, "{unsaved:?} leaves a gap");
            assert!(!replica.is_closed, "{unsaved:?} comes behind the end");
            replica.bytes.extend_from_slice(unsaved.bytes);
            replica.ends.push(replica.bytes.len());
            replica.is_closed = unsaved.is_closed;
            saved.push((unsaved.segment, replica.bytes.len() as u32));
            true
        });
        let has_saved = !saved.is_empty();
        for (segment, length) in saved {
            store.log().raise_acknowledged(segment, length);
        }
        has_saved && are_taken
    }

    /// Syncs a segment.
    pub(crate) fn sync(&mut self, store: &Store, segment: SegmentId) {
        let replica = self.segments.get_mut(&segment).expect("a replica");
        replica.synced = replica.bytes.len();
        store.log().raise_synced(segment, replica.synced as u32);
        self.note_changes(store);
    }

    /// Syncs about half of the segments.
    pub(crate) fn sync_some(&mut self, store: &Store, rng: &mut Rng) {
        let segments: Vec<SegmentId> = self.segments.keys().copied().collect();
        for segment in segments {
            if rng.bool() {
                self.sync(store, segment);
            }
        }
    }

    pub(crate) fn sync_all(&mut self, store: &Store) {
        let segments: Vec<SegmentId> = self.segments.keys().copied().collect();
        segments.into_iter().for_each(|segment| self.sync(store, segment));
        self.note_changes(store);
    }

    /// Applies the log's changes to the manifest, except drops of dead segments.
    pub(crate) fn note_changes(&mut self, store: &Store) {
        for change in store.log().take_changes() {
            match change {
                LogChange::Opened(segment) => assert!(self.manifest.insert(segment)),
                LogChange::Closed { segment, .. } => assert!(self.manifest.contains(&segment)),
                LogChange::Dead(segment) => self.dead.push_back(segment),
            }
        }
    }

    /// Drops one of the dead segments, but only rarely the oldest. Returns whether there was one.
    pub(crate) fn drop_one(&mut self, choice: usize) -> bool {
        let others = self.dead.len().saturating_sub(1);
        let choice =
            if others > 0 && !choice.is_multiple_of(64) { 1 + choice / 64 % others } else { 0 };
        self.drop_at(choice)
    }

    pub(crate) fn drop_at(&mut self, at: usize) -> bool {
        let Some(segment) = self.dead.remove(at) else { return false };
        assert!(self.manifest.remove(&segment));
        self.segments.remove(&segment);
        self.dropped.push_back(segment);
        self.gone.insert(segment);
        true
    }

    /// Lets the log release one dropped segment. Returns whether there was one.
    pub(crate) fn release_one(&mut self, store: &Store) -> bool {
        let Some(segment) = self.dropped.pop_front() else { return false };
        store.log().release(segment);
        self.note_changes(store);
        true
    }

    /// Returns the disk after a crash. Without `loses` the process was killed. With it the power
    /// failed: `loses` returns for each replica how many of the unsynced pieces survive.
    pub(crate) fn after_crash(&self, mut loses: Option<impl FnMut(usize) -> usize>) -> Disk {
        let mut left = Disk { manifest: self.manifest.clone(), ..Disk::default() };
        let written = self.manifest.last().max(self.gone.last()).copied();
        let last = written.unwrap_or_default().max(self.mark.map_or(SegmentId(0), |it| it.whole));
        left.cuts = self.cuts.clone();
        left.cuts.extend(self.mark.filter(|_| loses.is_some()).and_then(|mark| mark.cut(last)));
        left.mark = self.mark.map(|_| VersionMark { whole: last, version: Version(0) });
        for (segment, replica) in &self.segments {
            let mut bytes = replica.bytes.clone();
            if let Some(kept) = &mut loses {
                let unsafe_ends: Vec<usize> =
                    replica.ends.iter().copied().filter(|&end| end > replica.synced).collect();
                let kept = kept(unsafe_ends.len());
                let length = kept.checked_sub(1).map_or(replica.synced, |at| unsafe_ends[at]);
                bytes.truncate(length);
            }
            let synced = bytes.len();
            let replica = Replica { bytes, ends: Vec::new(), synced, is_closed: true };
            left.segments.insert(*segment, replica);
        }
        left
    }

    /// Returns the log's segments, divided into stretches of fewer than `most` entries.
    pub(crate) fn stretches(&self, rng: &mut Rng, most: usize) -> Vec<Vec<u8>> {
        let mut stretches = Vec::new();
        for segment in &self.manifest {
            let Some(replica) = self.segments.get(segment) else { continue };
            let mut reader = EntryReader::from(&replica.bytes, 0);
            while !reader.is_at_end() {
                let from = reader.offset();
                for _ in 0..rng.usize(1..most) {
                    if let Some(read) = reader.next_checked() {
                        read.unwrap();
                    }
                }
                stretches.push(replica.bytes[from..reader.offset()].to_vec());
            }
        }
        stretches
    }

    /// Creates a store that recovers the whole log in this order, with its workers.
    pub(crate) fn recover(
        &mut self,
        config: StoreConfig,
        tablets: TabletMap,
        now: UnixMillis,
        order: impl FnOnce(&mut Vec<SegmentId>),
    ) -> (Arc<Store>, Vec<Worker>) {
        let (store, mut workers) = self.begin_recovery(config);
        store.publish(tablets);
        workers.iter_mut().for_each(|worker| worker.begin_turn(now));
        self.enter(&store, &mut workers, now, order);
        (store, workers)
    }

    /// Creates a store without tablets and without recovered data, with its workers.
    pub(crate) fn begin_recovery(&self, config: StoreConfig) -> (Arc<Store>, Vec<Worker>) {
        let reactors = config.reactors;
        let store = Store::new(config).unwrap();
        let workers = (0..reactors).map(|r| store.worker(ReactorId(r))).collect();
        (store, workers)
    }

    /// Recovers the whole log in this order: adopts each segment and enters its entries before the
    /// next one, as a restarted server does.
    pub(crate) fn enter(
        &mut self,
        store: &Arc<Store>,
        workers: &mut [Worker],
        now: UnixMillis,
        order: impl FnOnce(&mut Vec<SegmentId>),
    ) {
        if let Some(mark) = self.mark {
            store.log().skip_segment_numbers(mark.whole);
            store.ignore(self.cuts.clone());
            store.require_marks();
        }
        let mut segments: Vec<SegmentId> = self.manifest.iter().copied().collect();
        order(&mut segments);
        for (number, segment) in segments.iter().enumerate() {
            let bytes = &self.segments.entry(*segment).or_default().bytes;
            let fill = |out: &mut [u8]| {
                out[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            };
            store.log().adopt(*segment, fill).unwrap();
            let worker = &mut workers[number % workers.len()];
            let mut from = Some(0);
            while let Some(offset) = from {
                from = worker.recover(*segment, offset, 50).unwrap();
            }
            workers.iter_mut().for_each(|worker| worker.begin_turn(now));
        }
        let mut cursor = Some(KeyHash(0));
        while let Some(from) = cursor {
            cursor = workers[0].finish_recovery(from, 1000).unwrap();
        }
    }
}

pub(crate) fn config(memory_bytes: usize, segment_bytes: usize, reactors: u16) -> StoreConfig {
    StoreConfig {
        memory_bytes,
        reactors,
        seed: HashSeed::new(42),
        huge_pages: false,
        durable: true,
        segment_bytes: Some(segment_bytes),
    }
}
