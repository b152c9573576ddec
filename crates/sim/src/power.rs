//! Losses of power of servers that sync their own logs later than they answer.
//!
//! The disk of before the loss has everything that was written. In mode `interval` a server finds what
//! it had at its last version mark: all entries must count that are not above the last mark in the
//! manifest that the loss has left, and no others.
//!
//! In mode `memory` each key has an entry that it had, and none that is older than the newest one that
//! was synced. What a server has drawn a version for longer ago than the time between two syncs is
//! synced, unless the server was disturbed since.

use crate::disks::SimulatedDisk;
use crate::failure::{Failure, Rule};
use crate::servers::SimulatedServer;
use crate::typed;
use protocols::segment_manifest::SegmentManifest;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Instant, SegmentId, TableId, Version, key_hash};
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
    /// The state of the syncs in mode `memory`.
    pub(crate) synced: Option<SyncedState>,
}

/// State of a server's syncs when the power failed.
pub(crate) struct SyncedState {
    /// The disk without any unsynced byte.
    pub(crate) disk: SimulatedDisk,
    /// A version up to which everything must be synced.
    pub(crate) due: Option<Version>,
}

/// Versions up to which a server had drawn at some moments. It was well since the first one.
#[derive(Debug, Default)]
pub(crate) struct DrawnVersions(VecDeque<(Instant, Version)>);

impl DrawnVersions {
    /// Adds the present version.
    pub(crate) fn add(&mut self, now: Instant, version: Version) {
        let last = self.0.back();
        assert!(last.is_none_or(|last| last.1 <= version), "versions go back: {last:?}");
        self.0.push_back((now, version));
    }

    /// Forgets all versions, since the server is not well.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the last version of this moment, or one before it.
    pub(crate) fn at(&self, moment: Instant) -> Option<Version> {
        let later = self.0.partition_point(|(at, _)| *at <= moment);
        later.checked_sub(1).map(|last| self.0[last].1)
    }
}

/// Checks the content of a server that has just loaded its log.
pub(crate) fn check(loss: &PowerLoss, server: &mut SimulatedServer) -> Result<(), Failure> {
    if let Some(synced) = &loss.synced {
        return check_each(loss, synced, server);
    }
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

/// Checks the content of a server in mode `memory`, key by key.
fn check_each(
    loss: &PowerLoss,
    synced: &SyncedState,
    server: &mut SimulatedServer,
) -> Result<(), Failure> {
    let (all, kept) = (entries(loss, &loss.before, server), entries(loss, &synced.disk, server));
    let found = found(server);
    let none = BTreeSet::new();
    for key in all.keys().chain(found.keys()) {
        let all = all.get(key).unwrap_or(&none);
        let kept = kept.get(key).and_then(|kept| kept.last().copied());
        let is_due = |entry: &&NewestEntry| synced.due.is_some_and(|due| entry.version <= due);
        let due = all.iter().rfind(is_due).copied();
        let found = found.get(key).copied();
        if all.iter().chain(&found).any(|entry| entry.may_expire) {
            continue;
        }
        let is_late = due.is_some_and(|due| kept.is_none_or(|kept| kept.version < due.version));
        let from = kept.map_or(Version(0), |kept| kept.version);
        let is_possible = match found {
            Some(found) => all.contains(&found) && found.version >= from,
            None => kept.is_none() || all.iter().any(|it| it.is_tombstone && it.version >= from),
        };
        let (table, name) = (key.0, String::from_utf8_lossy(&key.1));
        let has = format!("{} has {found:?} of {name} in {table:?}", server.id);
        if is_late {
            let text = format!("{has}, and {kept:?} is synced, not {due:?}");
            return Err(Rule::SyncedInTime.broken(text));
        }
        if !is_possible {
            let text = format!("{has}, of {all:?} up to {kept:?} synced");
            return Err(Rule::SyncedIsThere.broken(text));
        }
    }
    Ok(())
}

/// Returns all entries of a disk in the segments that the manifests name, by key.
fn entries(
    PowerLoss { before, left, .. }: &PowerLoss,
    disk: &SimulatedDisk,
    server: &SimulatedServer,
) -> BTreeMap<(TableId, Vec<u8>), BTreeSet<NewestEntry>> {
    let mut entries: BTreeMap<_, BTreeSet<NewestEntry>> = BTreeMap::new();
    read(disk, &named(before, left), server, |_, key, entry| {
        entries.entry(key).or_default().insert(entry);
    });
    entries
}

/// Returns the segments that a manifest names. One that is left out of the newer manifest may have
/// been dropped just before.
fn named(before: &SimulatedDisk, left: &SegmentManifest) -> BTreeSet<SegmentId> {
    let old = before.manifest();
    old.segments().chain(left.segments()).map(|(segment, _)| segment).collect()
}

/// Returns the newest entries that must count.
fn expected(loss: &PowerLoss, server: &SimulatedServer) -> Content {
    let PowerLoss { before, left, .. } = loss;
    let last = SegmentId(SegmentId::FIRST_OF_MANIFEST.0 - 1);
    let cuts = left.cuts().chain(left.last_mark().and_then(|mark| mark.cut(last)));
    let cuts: Vec<_> = cuts.collect();
    let mut content = Content::new();
    read(before, &named(before, left), server, |segment, key, new| {
        if !cuts.iter().any(|cut| cut.ignores(segment, new.version)) {
            let newest = content.entry(key).or_insert(new);
            *newest = new.max(*newest);
        }
    });
    content
}

/// Passes all entries of these segments of a disk to `f` that the server's tables can have.
fn read(
    disk: &SimulatedDisk,
    named: &BTreeSet<SegmentId>,
    server: &SimulatedServer,
    mut f: impl FnMut(SegmentId, (TableId, Vec<u8>), NewestEntry),
) {
    let store = server.node.store();
    let tablets = store.tablets();
    for (segment, bytes) in disk.data().into_iter().filter(|(it, _)| named.contains(it)) {
        let mut entries = EntryReader::from(&bytes, 0);
        while let Some(Ok(read)) = entries.next_checked() {
            let entry = read.entry;
            let (is_tombstone, value, expires) = match entry.body {
                Body::Object { expiry, value, .. } => (false, Some(value), expiry.is_some()),
                Body::Tombstone { .. } => (true, None, false),
                Body::CopiesOf(_) => continue,
            };
            let tablet = tablets.at(key_hash(store.seed(), entry.key));
            let table = tablet.and_then(|tablet| {
                tablet.incarnations.iter().position(|it| *it == entry.incarnation)
            });
            let Some(table) = table.map(|table| TableId(table as u8)) else { continue };
            let has_fields = value.is_some_and(|it| typed::has_expiring_fields(table, it));
            let may_expire = expires || has_fields;
            let new = NewestEntry { version: entry.version, is_tombstone, may_expire };
            f(segment, (table, entry.key.to_vec()), new);
        }
    }
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
