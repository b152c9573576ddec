//! Conformance tests for every metadata store: the properties on which the coordinator relies.

use coordinator::{MemoryStore, MetaEntry, MetaStore, Revision, Transaction, Verdict};
use coordinator_server::FileStore;
use std::collections::BTreeMap;

/// Runs a check on every implementation.
fn on_every_store(check: impl Fn(&mut dyn MetaStore)) {
    check(&mut MemoryStore::new());
    let folder = tempfile::tempdir().unwrap();
    check(&mut FileStore::open(&folder.path().join("meta.redb")).unwrap());
}

fn transaction(expected: &[(&str, u64)], writes: &[(&str, Option<&str>)]) -> Transaction {
    Transaction {
        expected: expected
            .iter()
            .map(|(key, revision)| ((*key).to_owned(), Revision(*revision)))
            .collect(),
        writes: writes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.map(|value| value.as_bytes().to_vec())))
            .collect(),
    }
}

fn committed(store: &mut dyn MetaStore, transaction: &Transaction) -> Revision {
    match store.transact(transaction).unwrap() {
        Verdict::Committed(revision) => revision,
        Verdict::Conflict(key) => panic!("unexpected conflict on {key}"),
    }
}

#[test]
fn what_was_written_is_read_with_its_revision() {
    on_every_store(|store| {
        assert_eq!(store.read("a").unwrap(), None);
        let first = committed(store, &transaction(&[("a", 0)], &[("a", Some("one"))]));
        let second = committed(store, &transaction(&[("a", first.0)], &[("b", Some("two"))]));
        assert!(second > first && first > Revision::ABSENT);
        let entry = MetaEntry { revision: first, value: b"one".to_vec() };
        assert_eq!(store.read("a").unwrap(), Some(entry));
        assert_eq!(store.read("b").unwrap().unwrap().revision, second);
    });
}

#[test]
fn a_transaction_with_one_stale_expectation_writes_nothing() {
    on_every_store(|store| {
        let old = committed(store, &transaction(&[], &[("a", Some("1")), ("b", Some("1"))]));
        committed(store, &transaction(&[], &[("b", Some("2"))]));
        let stale = transaction(&[("a", old.0), ("b", old.0)], &[("a", Some("3")), ("c", None)]);
        assert_eq!(store.transact(&stale).unwrap(), Verdict::Conflict("b".into()));
        assert_eq!(store.read("a").unwrap().unwrap().value, b"1");
        let absent = transaction(&[("a", 0)], &[("a", Some("4"))]);
        assert_eq!(store.transact(&absent).unwrap(), Verdict::Conflict("a".into()));
    });
}

#[test]
fn a_key_removed_and_written_again_does_not_look_unchanged() {
    on_every_store(|store| {
        let first = committed(store, &transaction(&[], &[("a", Some("1"))]));
        committed(store, &transaction(&[], &[("a", None)]));
        assert_eq!(store.read("a").unwrap(), None);
        let again = committed(store, &transaction(&[("a", 0)], &[("a", Some("1"))]));
        assert!(again > first);
        let stale = transaction(&[("a", first.0)], &[]);
        assert_eq!(store.transact(&stale).unwrap(), Verdict::Conflict("a".into()));
    });
}

#[test]
fn a_list_has_the_keys_of_the_prefix_in_order() {
    on_every_store(|store| {
        let keys = ["tablet/02", "tablet/01", "server/1", "tablet", "tablet0", "tablets/1"];
        let writes: Vec<_> = keys.iter().map(|key| (*key, Some(*key))).collect();
        committed(store, &transaction(&[], &writes));
        let listed: Vec<String> =
            store.list("tablet/").unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(listed, ["tablet/01", "tablet/02"]);
        assert_eq!(store.list("").unwrap().len(), keys.len());
        assert_eq!(store.list("zebra").unwrap(), []);
    });
}

#[test]
fn random_transactions_do_what_a_map_would_do() {
    for seed in 0..4 {
        on_every_store(|store| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut twin: BTreeMap<String, MetaEntry> = BTreeMap::new();
            for _ in 0..60 {
                let mut keys: Vec<String> = (0..8).map(|key| format!("k{key}")).collect();
                random.shuffle(&mut keys);
                let expected: Vec<(String, Revision)> = keys[..random.usize(0..3)]
                    .iter()
                    .map(|key| {
                        let found = twin.get(key).map_or(0, |entry| entry.revision.0);
                        (key.clone(), Revision(found + u64::from(random.u8(..) < 40)))
                    })
                    .collect();
                let writes: Vec<(String, Option<Vec<u8>>)> = keys[..random.usize(0..5)]
                    .iter()
                    .map(|key| (key.clone(), random.bool().then(|| vec![random.u8(..)])))
                    .collect();
                let holds = expected.iter().all(|(key, revision)| {
                    twin.get(key).map_or(Revision::ABSENT, |entry| entry.revision) == *revision
                });
                let verdict =
                    store.transact(&Transaction { expected, writes: writes.clone() }).unwrap();
                assert_eq!(matches!(verdict, Verdict::Committed(_)), holds);
                if let Verdict::Committed(revision) = verdict {
                    for (key, value) in writes {
                        match value {
                            Some(value) => twin.insert(key, MetaEntry { revision, value }),
                            None => twin.remove(&key),
                        };
                    }
                }
                let listed: BTreeMap<String, MetaEntry> =
                    store.list("").unwrap().into_iter().collect();
                assert_eq!(listed, twin);
            }
        });
    }
}

#[test]
fn a_file_opened_again_holds_everything_that_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta.redb");
    let mut store = FileStore::open(&path).unwrap();
    let revision = committed(&mut store, &transaction(&[], &[("a", Some("1"))]));
    assert!(FileStore::open(&path).is_err(), "two coordinators must not share one file");
    drop(store);
    let mut store = FileStore::open(&path).unwrap();
    assert_eq!(store.read("a").unwrap().unwrap().revision, revision);
    assert!(committed(&mut store, &transaction(&[], &[])) > revision);
}

#[test]
fn a_file_that_is_something_else_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta.redb");
    std::fs::write(&path, b"something else entirely").unwrap();
    assert!(FileStore::open(&path).is_err());
}

#[test]
fn an_interrupted_creation_of_a_file_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta.redb");
    // The beginning of a file, as it is left by a process that ends while it creates the file.
    drop(FileStore::open(&path).unwrap());
    let whole = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for length in [0, 1, 512, 4096, whole.len() / 2, whole.len()] {
        std::fs::write(folder.path().join("meta.redb.new"), &whole[..length]).unwrap();
        let mut store = FileStore::open(&path).unwrap();
        committed(&mut store, &transaction(&[], &[("a", Some("1"))]));
        drop(store);
        assert!(FileStore::open(&path).unwrap().read("a").unwrap().is_some());
        let names = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 1, "no other file is left");
        std::fs::remove_file(&path).unwrap();
    }
    // Earlier versions created the file under its name, at first empty.
    std::fs::write(&path, b"").unwrap();
    assert!(FileStore::open(&path).is_ok());
}
