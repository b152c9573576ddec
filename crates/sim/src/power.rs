//! Losses of power of servers that sync their own logs at an interval: what a server finds
//! afterwards is what it had at its last version mark.
//!
//! The disk of before the loss has everything that was written. Of that, all entries must count that
//! are not above the last mark in the manifest that the loss has left, and no others.

use crate::disks::SimulatedDisk;
use crate::failure::{Failure, Rule};
use crate::servers::SimulatedServer;
use crate::typed;
use protocols::segment_manifest::SegmentManifest;
use std::collections::{BTreeMap, BTreeSet};
use types::{SegmentId, TableId, Version, key_hash};
use wire::batch::BatchReader;
use wire::entries::EntryReader;
use wire::entry::Body;

/// Newest entry of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NewestEntry {
    version: Version,
    is_tombstone: bool,
    may_expire: bool,
}

type Content = BTreeMap<(TableId, Vec<u8>), NewestEntry>;

/// Size of one step of a scan, in bytes.
const SCAN_BYTES: usize = 64 << 10;

/// A loss of power.
pub(crate) struct PowerLoss {
    /// The disk as it was when the power failed, with the unsynced bytes.
    pub(crate) before: SimulatedDisk,
    /// The manifest that is left.
    pub(crate) left: SegmentManifest,
}

/// Checks the content of a server that has just loaded its log.
pub(crate) fn check(loss: &PowerLoss, server: &mut SimulatedServer) -> Result<(), Failure> {
    let (expected, found) = (expected(loss, server), found(server));
    for key in expected.keys().chain(found.keys()) {
        let [expected, found] = [&expected, &found].map(|it| it.get(key).copied());
        let is_there = expected.is_some_and(|it| !it.is_tombstone);
        let may_expire = [expected, found].iter().flatten().any(|it| it.may_expire);
        if !may_expire && expected.filter(|_| is_there) != found {
            let (table, key) = (key.0, String::from_utf8_lossy(&key.1));
            let text =
                format!("{} has {found:?} of {key} in {table:?}, not {expected:?}", server.id);
            return Err(Rule::OneMoment.broken(text));
        }
    }
    Ok(())
}

/// Returns the newest entries that must count.
fn expected(PowerLoss { before, left }: &PowerLoss, server: &SimulatedServer) -> Content {
    let last = SegmentId(SegmentId::FIRST_OF_MANIFEST.0 - 1);
    let cuts = left.cuts().chain(left.last_mark().and_then(|mark| mark.cut(last)));
    let cuts: Vec<_> = cuts.collect();
    // A segment that is left out of the manifest may have been dropped just before.
    let old = before.manifest();
    let named: BTreeSet<SegmentId> =
        old.segments().chain(left.segments()).map(|(segment, _)| segment).collect();
    let store = server.node.store();
    let tablets = store.tablets();
    let mut content = Content::new();
    for (segment, bytes) in before.data().into_iter().filter(|(it, _)| named.contains(it)) {
        let mut entries = EntryReader::from(&bytes, 0);
        while let Some(Ok(read)) = entries.next_checked() {
            let entry = read.entry;
            let is_cut = cuts.iter().any(|cut| cut.ignores(segment, entry.version));
            let (is_tombstone, value, expires) = match entry.body {
                Body::Object { expiry, value, .. } => (false, Some(value), expiry.is_some()),
                Body::Tombstone { .. } => (true, None, false),
                Body::CopiesOf(_) => continue,
            };
            let tablet = tablets.at(key_hash(store.seed(), entry.key));
            let table = tablet.and_then(|tablet| {
                tablet.incarnations.iter().position(|it| *it == entry.incarnation)
            });
            if let Some(table) = table.filter(|_| !is_cut) {
                let has_fields =
                    value.is_some_and(|it| typed::has_expiring_fields(TableId(table as u8), it));
                let may_expire = expires || has_fields;
                let new = NewestEntry { version: entry.version, is_tombstone, may_expire };
                let newest = content.entry((TableId(table as u8), entry.key.to_vec()));
                let newest = newest.or_insert(new);
                *newest = new.max(*newest);
            }
        }
    }
    content
}

/// Returns the records of a server.
fn found(server: &mut SimulatedServer) -> Content {
    let tablets = server.node.store().tablets();
    let mut content = Content::new();
    for tablet in tablets.iter() {
        let mut cursor = Some(tablet.range.first());
        while let Some(at) = cursor {
            let mut batch = Vec::new();
            let inspector = &mut server.inspector;
            cursor = inspector.look(|it| it.collect(tablet.range, at, SCAN_BYTES, &mut batch));
            for record in BatchReader::new(&batch).flatten() {
                if let Body::Object { expiry, value, .. } = record.entry.body {
                    let has_fields = typed::has_expiring_fields(record.table, value);
                    let may_expire = expiry.is_some() || has_fields;
                    let version = record.entry.version;
                    let newest = NewestEntry { version, is_tombstone: false, may_expire };
                    content.insert((record.table, record.entry.key.to_vec()), newest);
                }
            }
        }
    }
    content
}
