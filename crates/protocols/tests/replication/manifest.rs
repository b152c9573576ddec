//! A model of the manifest log: a list of entries, and the manifest segments that contain them.

use protocols::replication::Quorum;
use std::collections::BTreeMap;
use types::SegmentId;

/// Bytes of every entry.
const ENTRY_BYTES: u32 = 8;

/// The segments of a log, with the lengths of the closed ones.
pub(crate) type SegmentManifest = BTreeMap<SegmentId, Option<u32>>;

#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Snapshot(SegmentManifest),
    Open(SegmentId),
    Close(SegmentId, u32),
    Drop(SegmentId),
}

/// Everything that was ever written to the manifest log.
#[derive(Debug, Default)]
pub(crate) struct ManifestLog {
    segments: BTreeMap<SegmentId, Vec<Entry>>,
    /// The state after everything written, acknowledged or not.
    pub(crate) manifest: SegmentManifest,
}

impl ManifestLog {
    /// Begins the next manifest segment; returns its id and length.
    pub(crate) fn begin(&mut self, quorum: Quorum) -> (SegmentId, u32) {
        let number = quorum.segment(self.segments.len() as u64 + 1);
        self.segments.insert(number, vec![Entry::Snapshot(self.manifest.clone())]);
        (number, ENTRY_BYTES)
    }

    pub(crate) fn current(&self) -> Option<SegmentId> {
        self.segments.last_key_value().map(|(number, _)| *number)
    }

    /// Writes an entry to all of these segments. Returns its bytes.
    pub(crate) fn write(&mut self, entry: Entry, living: impl Iterator<Item = SegmentId>) -> u32 {
        apply(&mut self.manifest, &entry);
        for segment in living {
            let entries = self.segments.get_mut(&segment).expect("it was begun");
            entries.push(entry.clone());
        }
        ENTRY_BYTES
    }

    fn entries(&self, segment: SegmentId, to: u32) -> &[Entry] {
        &self.segments[&segment][..(to / ENTRY_BYTES) as usize]
    }

    /// Decodes the first `length` bytes of a segment; `None` if they do not contain the snapshot.
    pub(crate) fn read(&self, segment: SegmentId, length: u32) -> Option<SegmentManifest> {
        let entries = self.entries(segment, length);
        let mut manifest = None;
        for entry in entries {
            apply(manifest.get_or_insert_default(), entry);
        }
        manifest
    }
}

fn apply(manifest: &mut SegmentManifest, entry: &Entry) {
    match entry {
        Entry::Snapshot(all) => manifest.clone_from(all),
        Entry::Open(segment) => drop(manifest.insert(*segment, None)),
        Entry::Close(segment, length) => drop(manifest.insert(*segment, Some(*length))),
        Entry::Drop(segment) => drop(manifest.remove(segment)),
    }
}
