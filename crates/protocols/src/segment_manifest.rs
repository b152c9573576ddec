//! The segment manifest of one server. It
//! lists the segments that make up the server's log, as a sequence of pieces that ends at the
//! last complete piece. See `docs/design/durability.md`, hard part 3; the rules are RAMCloud's for
//! log digests (Ongaro et al., *Fast Crash Recovery in RAMCloud*, SOSP 2011, §3.2). A separate
//! manifest log replaces the digest in each segment, so that segments can be written concurrently.
//!
//! The caller takes the [`SegmentManifest::body`] of the next piece, writes it, and reports that with
//! [`SegmentManifest::written`]. When the current manifest segment is long enough
//! ([`SegmentManifest::wants_segment`]), the caller begins the next one with [`SegmentManifest::snapshot`].
//!
//! **Invariant:** every prefix of the manifest log decodes to a state that the manifest once had.
//! **Invariant:** a segment that was dropped never appears again.
//!
//! The manifest of a log with version marks also has the last mark, and the cuts: entries that a
//! restart has ignored (`docs/design/durability.md`, hard part 4).

use std::collections::BTreeMap;
use types::{SegmentId, Version};
use wire::manifest::{
    ManifestEntry, SegmentContent, SegmentRecord, VersionCut, VersionMark, decode, encode,
};

/// Minimum length of a manifest segment in bytes before the next one begins.
const SEGMENT_BYTES_MIN: usize = 64 << 10;

/// Minimum length of a manifest segment in snapshots: snapshots are at most a third of all bytes.
const SNAPSHOTS_PER_SEGMENT: usize = 4;

/// Maximum bytes of one record in a snapshot: two varints of ten and five bytes, and two tags.
const RECORD_BYTES: usize = 24;

/// Highest number of a segment that a manifest can name. Manifest segments have higher numbers,
/// and a log that continues after it still has numbers left.
const SEGMENT_MAX: u64 = SegmentId::FIRST_OF_MANIFEST.0 / 2;

/// The segment manifest of one server.
#[derive(Debug, Default)]
pub struct SegmentManifest {
    segments: BTreeMap<SegmentId, Option<SegmentContent>>,
    /// The last mark, if the log has marks.
    mark: Option<VersionMark>,
    /// Entries that do not count, by ascending segments.
    cuts: Vec<VersionCut>,
    /// Entries that are not written yet, in order.
    pending: Vec<ManifestEntry>,
    /// Bytes written to the current manifest segment.
    bytes: usize,
}

/// The reason why a sequence of pieces is not a valid manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The sequence does not begin with a snapshot.
    #[error("the segment manifest does not begin with a snapshot")]
    NoSnapshot,
    /// A piece does not decode.
    #[error(transparent)]
    Corrupt(#[from] wire::Corrupt),
    /// An entry contradicts the entries before it.
    #[error("the segment manifest has an invalid entry: {entry}")]
    OutOfOrder {
        /// The entry, in its debug form.
        entry: String,
    },
}

impl SegmentManifest {
    /// Creates the manifest of a log without segments.
    pub fn new() -> SegmentManifest {
        SegmentManifest::default()
    }

    /// Decodes the pieces of one manifest segment, given in order.
    pub fn read<'c>(
        bodies: impl IntoIterator<Item = &'c [u8]>,
    ) -> Result<SegmentManifest, ManifestError> {
        let mut manifest: Option<SegmentManifest> = None;
        for body in bodies {
            for entry in decode(body)? {
                match (&mut manifest, entry) {
                    (None, ManifestEntry::Snapshot { segments }) => {
                        manifest = Some(SegmentManifest::of_snapshot(&segments)?);
                    }
                    (Some(manifest), entry) => manifest.apply(&entry)?,
                    (None, _) => return Err(ManifestError::NoSnapshot),
                }
            }
            if let Some(manifest) = &mut manifest {
                manifest.bytes += body.len();
            }
        }
        manifest.ok_or(ManifestError::NoSnapshot)
    }

    fn of_snapshot(records: &[SegmentRecord]) -> Result<SegmentManifest, ManifestError> {
        let mut manifest = SegmentManifest::default();
        for SegmentRecord { segment, content } in records.iter().copied() {
            manifest.apply(&ManifestEntry::Open { segment })?;
            if let Some(content) = content {
                manifest.apply(&ManifestEntry::Close { segment, content })?;
            }
        }
        Ok(manifest)
    }

    fn apply(&mut self, entry: &ManifestEntry) -> Result<(), ManifestError> {
        let is_sensible = match entry {
            ManifestEntry::Snapshot { .. } => false,
            ManifestEntry::Open { segment } => {
                segment.0 <= SEGMENT_MAX && self.segments.insert(*segment, None).is_none()
            }
            ManifestEntry::Close { segment, content } => {
                self.segments.insert(*segment, Some(*content)) == Some(None)
            }
            ManifestEntry::Drop { segment } => self.segments.remove(segment).is_some(),
            ManifestEntry::Mark(mark) => {
                let before = self.mark.replace(*mark);
                mark.whole.0 <= SEGMENT_MAX && before.is_none_or(|it| it.version <= mark.version)
            }
            ManifestEntry::Cut(cut) => {
                let before = self.cuts.last().map_or(SegmentId(0), |last| last.through);
                self.cuts.push(*cut);
                before <= cut.after && cut.after < cut.through && cut.through.0 <= SEGMENT_MAX
            }
        };
        let wrong = || ManifestError::OutOfOrder { entry: format!("{entry:?}") };
        is_sensible.then_some(()).ok_or_else(wrong)
    }

    fn note(&mut self, entry: ManifestEntry) {
        let applied = self.apply(&entry);
        assert!(applied.is_ok(), "{applied:?}");
        self.pending.push(entry);
    }

    /// Registers a segment, which may contain valid entries from the next manifest piece on.
    pub fn open(&mut self, segment: SegmentId) {
        self.note(ManifestEntry::Open { segment });
    }

    /// Records that the segment is closed and fully replicated, with its content.
    pub fn close(&mut self, segment: SegmentId, content: SegmentContent) {
        self.note(ManifestEntry::Close { segment, content });
    }

    /// Removes the segment from the log.
    pub fn drop(&mut self, segment: SegmentId) {
        self.note(ManifestEntry::Drop { segment });
    }

    /// Records a version up to which all entries are synced. The log has marks.
    pub fn mark(&mut self, version: Version) {
        let whole = self.mark.expect("the log has marks").whole;
        self.note(ManifestEntry::Mark(VersionMark { whole, version }));
    }

    /// Marks all segments as complete: everything that was written is synced, and nothing follows.
    /// The next manifest segment records it.
    pub fn mark_whole(&mut self) {
        let last = self.segments.keys().next_back().copied().unwrap_or_default();
        let before = self.mark.replace(VersionMark { whole: last, version: Version(0) });
        assert!(before.is_some(), "the log has marks");
    }

    /// Returns the last mark, if the log has marks.
    pub fn last_mark(&self) -> Option<VersionMark> {
        self.mark
    }

    /// Begins or ends the marks of a log that an earlier process has written, up to the segment
    /// `last`. Everything of it that counts is synced. Of its entries, those that are above its
    /// last mark do not count if `is_cut`. The next manifest segment records the result.
    pub fn adopt(&mut self, last: SegmentId, is_cut: bool, has_marks: bool) {
        assert!(self.pending.is_empty(), "a manifest is adopted before it changes");
        let mark = self.mark.filter(|_| is_cut);
        self.cuts.extend(mark.and_then(|mark| mark.cut(last)));
        self.mark = has_marks.then_some(VersionMark { whole: last, version: Version(0) });
    }

    /// Returns the entries that do not count, of the segments that are in the log.
    pub fn cuts(&self) -> impl Iterator<Item = VersionCut> {
        let has_segments = |cut: &VersionCut| {
            self.segments
                .range(..=cut.through)
                .next_back()
                .is_some_and(|(last, _)| cut.concerns(*last))
        };
        self.cuts.iter().copied().filter(has_segments)
    }

    /// Returns whether the segment belongs to the log.
    pub fn contains(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Returns the segments of the log in ascending order, with the content of each closed one.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, Option<SegmentContent>)> {
        self.segments.iter().map(|(segment, content)| (*segment, *content))
    }

    /// Returns the body of the next piece, if any entry is pending. It is the same until
    /// [`SegmentManifest::written`] is called.
    pub fn body(&self) -> Option<Vec<u8>> {
        (!self.pending.is_empty()).then(|| encode(&self.pending))
    }

    /// Records that the body returned by [`SegmentManifest::body`] has been written.
    pub fn written(&mut self, bytes: usize) {
        assert!(!self.pending.is_empty(), "a piece without entries was written");
        self.pending.clear();
        self.bytes += bytes;
    }

    /// Returns whether the current manifest segment is so long that another one should follow.
    pub fn wants_segment(&self) -> bool {
        let snapshot = self.segments.len() * RECORD_BYTES;
        self.bytes > SEGMENT_BYTES_MIN.max(SNAPSHOTS_PER_SEGMENT * snapshot)
    }

    /// Returns the body of a manifest segment's first piece. It covers pending entries too.
    pub fn snapshot(&self) -> Vec<u8> {
        let record = |(segment, content)| SegmentRecord { segment, content };
        let segments = self.segments().map(record).collect();
        let mut entries = vec![ManifestEntry::Snapshot { segments }];
        entries.extend(self.cuts().map(ManifestEntry::Cut));
        entries.extend(self.mark.map(ManifestEntry::Mark));
        encode(&entries)
    }

    /// Records that a manifest segment was begun with a snapshot of `bytes` bytes.
    pub fn begun(&mut self, bytes: usize) {
        assert!(bytes > 0, "a manifest segment begins with a snapshot");
        self.pending.clear();
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::{ManifestSegments, Quorum};
    use types::limits::{SEGMENT_BYTES, SEGMENT_BYTES_MIN};

    fn content(length: u32) -> SegmentContent {
        SegmentContent { length, crc: length ^ 0xffff }
    }

    type Segments = Vec<(SegmentId, Option<SegmentContent>)>;

    /// Returns the pieces of an example manifest, each with the segments listed after it.
    fn life() -> Vec<(Vec<u8>, Segments)> {
        let mut manifest = SegmentManifest::new();
        let mut pieces = vec![(manifest.snapshot(), Vec::new())];
        let steps: [fn(&mut SegmentManifest); 4] = [
            |manifest| manifest.open(SegmentId(1)),
            |manifest| {
                manifest.open(SegmentId(2));
                manifest.close(SegmentId(1), content(8));
            },
            |manifest| manifest.drop(SegmentId(1)),
            |manifest| manifest.open(SegmentId(3)),
        ];
        for step in steps {
            step(&mut manifest);
            let body = manifest.body().unwrap();
            assert_eq!(manifest.body().as_ref(), Some(&body), "until it is written");
            manifest.written(body.len());
            assert_eq!(manifest.body(), None);
            pieces.push((body, manifest.segments().collect()));
        }
        pieces
    }

    #[test]
    #[should_panic(expected = "OutOfOrder")]
    fn a_segment_is_registered_once() {
        let mut manifest = SegmentManifest::new();
        manifest.open(SegmentId(1));
        manifest.open(SegmentId(1));
    }

    #[test]
    #[should_panic(expected = "a piece without entries was written")]
    fn a_piece_has_entries() {
        SegmentManifest::new().written(8);
    }

    #[test]
    fn every_prefix_of_the_manifest_log_is_the_manifest_of_its_time() {
        let life = life();
        for count in 1..=life.len() {
            let bodies = life[..count].iter().map(|(body, _)| &body[..]);
            let read = SegmentManifest::read(bodies).unwrap();
            assert_eq!(read.segments().collect::<Vec<_>>(), life[count - 1].1);
        }
    }

    #[test]
    fn a_manifest_log_continues_from_a_snapshot() {
        let mut manifest = SegmentManifest::new();
        manifest.open(SegmentId(1));
        manifest.open(SegmentId(2));
        manifest.close(SegmentId(1), content(16));
        let snapshot = manifest.snapshot();
        manifest.begun(snapshot.len());
        assert_eq!(manifest.body(), None, "the snapshot says it");
        let read = SegmentManifest::read([&snapshot[..]]).unwrap();
        assert_eq!(
            read.segments().collect::<Vec<_>>(),
            [(SegmentId(1), Some(content(16))), (SegmentId(2), None)]
        );
        assert!(read.contains(SegmentId(2)) && !read.contains(SegmentId(3)));
    }

    #[test]
    fn a_manifest_records_the_last_mark_and_the_cuts_of_its_segments() {
        let mut manifest = SegmentManifest::new();
        manifest.adopt(SegmentId(4), false, true);
        [5, 6].into_iter().for_each(|number| manifest.open(SegmentId(number)));
        manifest.mark(Version(10));
        manifest.mark(Version(20));
        let whole = SegmentId(4);
        let mark = VersionMark { whole, version: Version(20) };
        let bodies = [SegmentManifest::new().snapshot(), manifest.body().unwrap()];
        for bodies in [&bodies[..], &[manifest.snapshot()]] {
            let read = SegmentManifest::read(bodies.iter().map(|body| &body[..])).unwrap();
            assert_eq!((read.last_mark(), read.cuts().count()), (Some(mark), 0));
        }
        let snapshot = manifest.snapshot();
        let mut adopted = SegmentManifest::read([&snapshot[..]]).unwrap();
        adopted.adopt(SegmentId(6), true, false);
        let cut = VersionCut { after: whole, through: SegmentId(6), above: Version(20) };
        assert_eq!((adopted.last_mark(), adopted.cuts().collect()), (None, vec![cut]));
        let snapshot = adopted.snapshot();
        let mut read = SegmentManifest::read([&snapshot[..]]).unwrap();
        assert_eq!(read.cuts().collect::<Vec<_>>(), [cut]);
        manifest.mark_whole();
        let snapshot = manifest.snapshot();
        let mut whole = SegmentManifest::read([&snapshot[..]]).unwrap();
        whole.adopt(SegmentId(6), true, true);
        assert_eq!(whole.cuts().count(), 0, "all was complete");
        read.drop(SegmentId(6));
        assert_eq!(read.cuts().count(), 1, "a segment is left");
        read.drop(SegmentId(5));
        assert_eq!(read.cuts().count(), 0, "none is left");
    }

    #[test]
    fn a_mark_that_goes_back_is_no_manifest() {
        let entry = |version| {
            ManifestEntry::Mark(VersionMark { whole: SegmentId(0), version: Version(version) })
        };
        let snapshot = SegmentManifest::new().snapshot();
        let read = |marks: &[u64]| {
            let entries: Vec<_> = marks.iter().map(|version| entry(*version)).collect();
            SegmentManifest::read([&snapshot[..], &encode(&entries)])
        };
        assert!(read(&[3, 3, 4]).is_ok());
        assert!(matches!(read(&[3, 2]), Err(ManifestError::OutOfOrder { .. })));
    }

    #[test]
    fn a_manifest_segment_is_followed_by_another_when_it_is_much_longer_than_a_snapshot() {
        let mut manifest = SegmentManifest::new();
        for number in 0..10_000 {
            manifest.open(SegmentId(number));
        }
        let snapshot = manifest.snapshot();
        assert!(snapshot.len() <= 10_000 * RECORD_BYTES);
        manifest.begun(snapshot.len());
        assert!(!manifest.wants_segment());
        manifest.open(SegmentId(10_000));
        manifest.written(SNAPSHOTS_PER_SEGMENT * 10_000 * RECORD_BYTES);
        assert!(manifest.wants_segment());
    }

    /// Returns the bytes of data that a master can write before no manifest segment takes another
    /// record, while the coordinator is away. Segments end half full, and each one releases an
    /// old one.
    fn written_without_a_coordinator(living: u64, segment_bytes: usize) -> u64 {
        let mut manifest = SegmentManifest::new();
        // Ids higher than any real log reaches.
        let first = 1 << 34;
        (first - living..first).for_each(|number| manifest.open(SegmentId(number)));
        (first - living..first).for_each(|number| manifest.close(SegmentId(number), content(8)));
        let (recorded, next) = (Quorum::of_log(2, 3).segment(1), Quorum::of_log(2, 3).segment(2));
        let mut segments: ManifestSegments<()> = ManifestSegments::default();
        let snapshot = manifest.snapshot().len();
        manifest.begun(snapshot);
        segments.begin(recorded, snapshot as u32);
        segments.recorded(recorded);
        for number in first.. {
            let steps: [&dyn Fn(&mut SegmentManifest); 3] = [
                &|manifest| manifest.open(SegmentId(number)),
                &|manifest| manifest.close(SegmentId(number), content(segment_bytes as u32)),
                &|manifest| manifest.drop(SegmentId(number - living)),
            ];
            for step in steps {
                step(&mut manifest);
                let body = manifest.body().unwrap().len();
                if !segments.has_room(body, segment_bytes) {
                    return (number - first) * segment_bytes as u64 / 2;
                }
                manifest.written(body);
                segments.append(body as u32);
            }
            if manifest.wants_segment() && !segments.has_successor() {
                let snapshot = manifest.snapshot().len();
                manifest.begun(snapshot);
                segments.begin(next, snapshot as u32);
                assert!(segments.announced(next));
            }
        }
        unreachable!("the loop has no end")
    }

    #[test]
    fn fifty_gigabytes_are_written_while_the_coordinator_is_away() {
        // Servers of 64 MiB and of 256 GiB, with the smallest and the usual segment size.
        for (memory, segment_bytes) in [
            (64 << 20, SEGMENT_BYTES_MIN),
            (64 << 30, SEGMENT_BYTES_MIN),
            (64 << 20, SEGMENT_BYTES),
            (256 << 30, SEGMENT_BYTES),
        ] {
            let written =
                written_without_a_coordinator(memory / segment_bytes as u64, segment_bytes);
            println!("{memory} bytes of memory, segments of {segment_bytes}: {written} bytes");
            assert!(written >= 50 << 30, "{memory} {segment_bytes}: {written}");
        }
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let life = life();
        let (first, open) = (&life[0].0[..], &life[1].0[..]);
        assert_eq!(SegmentManifest::read([]).unwrap_err(), ManifestError::NoSnapshot);
        assert_eq!(SegmentManifest::read([open]).unwrap_err(), ManifestError::NoSnapshot);
        let record = |segment| SegmentRecord { segment: SegmentId(segment), content: None };
        let snapshot = |segments| encode(&[ManifestEntry::Snapshot { segments }]);
        // A server that adopts its log relies on distinct numbers, and on others above them.
        let twice = snapshot(vec![record(7), record(7)]);
        let too_high = snapshot(vec![record(u64::MAX)]);
        let manifests = [
            &[first, open, open][..],
            &[first, first],
            &[first, &life[3].0],
            &[&twice],
            &[&too_high],
        ];
        for bodies in manifests {
            let error = SegmentManifest::read(bodies.iter().copied()).unwrap_err();
            assert!(matches!(error, ManifestError::OutOfOrder { .. }), "{error}");
        }
        assert!(matches!(
            SegmentManifest::read([first, &[9; 16]]).unwrap_err(),
            ManifestError::Corrupt(_)
        ));
    }
}
