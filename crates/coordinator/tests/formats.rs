//! Stores written by earlier versions can be read and are converted.
//!
//! `tests/formats/6.redb` was written by the version with format 6, until it was killed. Two
//! servers had joined, and the first half of the slots had moved.

use coordinator::{
    Caller, ClusterIdentity, Coordinator, CoordinatorEvent, CoordinatorSettings, Drawn, Effect,
    Effects, MetaStore, Moment,
};
use coordinator_server::FileStore;
use std::path::{Path, PathBuf};
use types::{ClusterId, Generation, Instant, ServerId, Slot, UnixMillis};
use wire::control::{FromCoordinator, HistoryMark, Join, JoinReply, ToCoordinator};

/// Returns a copy of the file, and the folder that contains it.
fn copy() -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.redb");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/6.redb");
    std::fs::copy(fixture, &path).unwrap();
    (path, folder)
}

fn open(path: &Path, term: u64) -> (Coordinator, FileStore) {
    let fresh = ClusterIdentity { cluster: ClusterId(1), seed: 1 };
    let drawn = Drawn { fresh, term };
    let mut store = FileStore::open(path).unwrap();
    let settings = CoordinatorSettings::default();
    (Coordinator::open(&mut store, drawn, settings, Instant(0)).unwrap(), store)
}

#[test]
fn a_store_of_the_format_before_is_converted_once_and_confirmed_at_once() {
    let (path, _folder) = copy();
    let map = open(&path, 50).0.map();
    assert_ne!(map.cluster, ClusterId(1));
    assert_eq!(map.tablets.len(), 2);
    assert!(map.tablets.iter().all(|tablet| !tablet.is_born && tablet.incarnations.len() == 18));
    let owners: Vec<_> = map.tablets.iter().map(|it| (it.range.slots().0, it.owner)).collect();
    assert_eq!(owners, [(Slot(0), ServerId(2)), (Slot(8192), ServerId(1))]);
    let again = open(&path, 51).0.map();
    assert_eq!(again.tablets, map.tablets);
}

#[test]
fn servers_of_the_format_before_have_heard_of_no_mark_and_later_ones_count() {
    let (path, _folder) = copy();
    drop(open(&path, 50));
    let (mut coordinator, mut store) = open(&path, 51);
    let term = coordinator.map().version >> 32;
    let connection = coordinator::LinkId(1);
    let mark = HistoryMark { term, term_id: 99, transaction: 1 };
    let join = Join {
        host: "host".into(),
        client_port: 1,
        bus_port: 2,
        rejoin: Some((coordinator.identity().cluster, ServerId(1))),
        replicas: 1,
        rack: String::new(),
        disk: None,
        former: None,
        mark: Some(mark),
    };
    let at = Moment { now: Instant(1), wall: UnixMillis(1) };
    let mut out = Effects::new();
    let caller = Caller::Server { number: join.rejoin, generation: Generation(1) };
    coordinator.handle(at, CoordinatorEvent::Opened { connection, caller }, &mut out).unwrap();
    let message = ToCoordinator::Join(join);
    coordinator.handle(at, CoordinatorEvent::Received { connection, message }, &mut out).unwrap();
    let Some(Effect::Commit(transaction)) = out.take_first() else { panic!("it checks its term") };
    let committed = CoordinatorEvent::Committed(store.transact(&transaction).unwrap());
    coordinator.handle(at, committed, &mut out).unwrap();
    let said: Vec<Effect> = out.drain().collect();
    let is_refused = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send { message: FromCoordinator::Join(JoinReply::Rejected { .. }), .. }
        )
    };
    assert!(said.iter().any(is_refused), "{said:?}");
}
