//! Version marks: what a loss of power leaves is what the store had at the last mark.

use crate::common::{NOW, TABLE, key, tablet};
use crate::disk::{Disk, config};
use crate::marked::MarkedWorld;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{CleaningOccasion, Need, Store, TabletMap, TabletState, Worker};
use types::{HashRange, SegmentId, Version};
use wire::manifest::VersionMark;

#[test]
fn a_loss_of_power_leaves_the_state_at_the_last_mark() {
    let (mut power_cuts, mut lost) = (0, 0);
    for seed in 0..30 {
        let mut world = MarkedWorld::new(seed);
        (0..20_000).for_each(|_| world.step());
        power_cuts += world.power_cuts;
        lost += world.lost;
    }
    eprintln!("{power_cuts} power cuts, {lost} changes lost");
    assert!(power_cuts > 100 && lost > 1_000, "little is lost");
}

fn server(reactors: u16) -> (std::sync::Arc<Store>, Vec<Worker>, Disk) {
    let mark = VersionMark { whole: SegmentId(0), version: Version(0) };
    let mut disk = Disk { mark: Some(mark), ..Disk::default() };
    let serving = TabletMap::new(vec![tablet(HashRange::ALL, TabletState::Serving)]);
    let config = config(80 * (64 << 10), 64 << 10, reactors);
    let (store, workers) = disk.recover(config, serving, NOW, |_| {});
    (store, workers, disk)
}

#[test]
fn a_mark_waits_for_a_reactor_that_may_have_drawn_a_version_for_an_entry_to_come() {
    let (store, mut workers, mut disk) = server(2);
    workers.iter_mut().for_each(|worker| worker.begin_turn(NOW));
    let mut mark = store.begin_mark();
    workers[0].begin_turn(NOW);
    assert!(!store.is_mark_reached(&mut mark), "the second reactor is in its turn");
    let late = key(&store, b"late");
    workers[1].put(TABLE, late, b"value", None).unwrap();
    workers[1].begin_turn(NOW);
    assert!(!store.is_mark_reached(&mut mark), "its entry is not synced");
    disk.save(&store, &mut workers[1], || true);
    assert!(!store.is_mark_reached(&mut mark), "its entry is not synced");
    disk.sync_all(&store);
    assert!(store.is_mark_reached(&mut mark));
}

#[test]
fn a_segment_leaves_the_log_behind_a_mark_that_was_begun_after_its_last_entry_had_died() {
    let (store, mut workers, mut disk) = server(1);
    let worker = &mut workers[0];
    let mut early = store.begin_mark();
    let mut number = 0u32;
    while !store.awaits_mark() {
        number += 1;
        assert!(number < 10_000, "no segment leaves");
        worker.begin_turn(NOW);
        let name = format!("key {}", number % 7);
        worker.put(TABLE, key(&store, name.as_bytes()), &[7; 1000], None).unwrap_or_default();
        worker.clean(CleaningOccasion::LowMemory);
        disk.save(&store, worker, || true);
        disk.sync_all(&store);
        if number == 10 {
            assert!(store.is_mark_reached(&mut early));
            // Not recorded before a segment waits.
        }
    }
    assert_eq!(disk.dead.len(), 0, "it leaves without a mark");
    store.note_marked(&early);
    disk.note_changes(&store);
    assert_eq!(disk.dead.len(), 0, "the mark was begun before");
    let mut mark = store.begin_mark();
    assert!(!store.awaits_mark(), "the mark is begun");
    worker.begin_turn(NOW);
    disk.save(&store, worker, || true);
    disk.sync_all(&store);
    assert!(store.is_mark_reached(&mut mark));
    store.note_marked(&mark);
    disk.note_changes(&store);
    assert_ne!(disk.dead.len(), 0, "it leaves behind the mark");
}

#[test]
fn no_mark_is_between_the_versions_of_a_batch() {
    let (store, mut workers, _) = server(2);
    let (mut marker, mut writer) = (workers.remove(0), workers.remove(0));
    let is_over = AtomicBool::new(false);
    let names = [b"one", b"two"];
    let (batches, marks) = std::thread::scope(|threads| {
        let marks = threads.spawn(|| {
            let mut marks = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                marker.begin_turn(NOW);
                marks.push(store.begin_mark().version());
            }
            marker.sleep();
            marks
        });
        let keys = names.map(|name| key(&store, name));
        let batches: Vec<[Version; 2]> = (0..20_000)
            .map(|_| {
                writer.begin_turn(NOW);
                let put = writer.update(TABLE, &keys, Need::Nothing, |_, changes| {
                    (0..2).for_each(|at| changes.put(at, b"value", None));
                });
                put.unwrap();
                let versions =
                    [0, 1].map(|at| writer.updated_keys().version_of(at).expect("it was written"));
                [versions[0].min(versions[1]), versions[0].max(versions[1])]
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        (batches, marks.join().expect("the marker does not panic"))
    });
    let divided = batches.iter().filter(|[first, last]| {
        let behind = marks.partition_point(|mark| mark < first);
        marks.get(behind).is_some_and(|mark| mark < last)
    });
    assert_eq!(divided.count(), 0, "of {} batches and {} marks", batches.len(), marks.len());
}
