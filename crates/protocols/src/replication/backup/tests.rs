//! Tests of a backup's replicas that accept no more bytes.

use super::*;
use crate::replication::timing::MEASURE_AGAIN;
use std::cell::Cell;

thread_local! {
    /// Number of replicas of which this test has asked whether the disk works on them.
    pub(super) static REPLICAS_JUDGED: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn a_fenced_log_is_not_looked_through_after_each_measurement() {
    const COUNT: u64 = 30;
    let log = ServerId(1);
    let (mut backup, mut out) = (Backup::new(), Outbox::new());
    for segment in 1..=COUNT {
        let replica = ReplicaId { log, segment: SegmentId(segment), epoch: ReplicaEpoch(0) };
        backup.handle(Instant(0), BackupEvent::Found { replica }, &mut out);
    }
    let before = REPLICAS_JUDGED.get();
    backup.handle(Instant(1), BackupEvent::Fence { log }, &mut out);
    let (mut measured, mut reports) = (0, 0);
    loop {
        let effects: Vec<BackupEffect> = out.drain().collect();
        if effects.is_empty() {
            break;
        }
        for effect in effects {
            match effect {
                BackupEffect::Measure { replica } => {
                    measured += 1;
                    let (length, synced, clock) = (8, 8, UnixMillis(0));
                    let event = BackupEvent::Measured { replica, length, synced, clock };
                    backup.handle(Instant(2), event, &mut out);
                }
                BackupEffect::Report { .. } => reports += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((measured, reports), (COUNT, 1));
    let judged = REPLICAS_JUDGED.get() - before;
    assert!(judged <= 5 * COUNT, "{judged} looks at {COUNT} replicas");
}

#[test]
fn what_can_take_nothing_more_is_kept_until_it_is_released() {
    let (log, at) = (ServerId(1), Instant(5));
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let (mut backup, mut out) = (Backup::new(), Outbox::new());
    let append = |from, to| {
        let header = AppendHeader {
            replica,
            from,
            to,
            syncs_at_once: false,
            sent: at,
            clock: UnixMillis(0),
        };
        BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) }
    };
    backup.handle(at, append(0, 80), &mut out);
    backup.handle(at, BackupEvent::Taken { replica, length: 80, synced: 64 }, &mut out);
    backup.handle(at, append(80, 120), &mut out);
    out.drain().for_each(drop);
    backup.handle(at, BackupEvent::Stopped { replica, length: 80, synced: 64 }, &mut out);
    let result = AppendResult::Refused(AppendRefusal::Failed);
    let refusal = BackupEffect::Answer(Appended { replica, sent: at, result });
    assert_eq!(out.drain().collect::<Vec<_>>(), [refusal]);
    assert_eq!(backup.kept(log).collect::<Vec<_>>(), [(replica, 80, 64)]);
    backup.handle(at, BackupEvent::Release { log, replicas: vec![replica] }, &mut out);
    assert_eq!(out.drain().collect::<Vec<_>>(), [BackupEffect::Free { replica }]);
}

#[test]
fn what_was_found_takes_nothing_and_stays_whole() {
    let (log, at) = (ServerId(1), Instant(5));
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let (mut backup, mut out) = (Backup::new(), Outbox::new());
    backup.handle(Instant(0), BackupEvent::Found { replica }, &mut out);
    backup.handle(at, BackupEvent::Tick, &mut out);
    assert_eq!(out.drain().collect::<Vec<_>>(), [BackupEffect::Measure { replica }]);
    backup.handle(
        at,
        BackupEvent::Measured { replica, length: 80, synced: 80, clock: UnixMillis(7) },
        &mut out,
    );
    // A master that has not heard of the earlier process's death sends an append to its address.
    for from in [0, 80, 96] {
        let header = AppendHeader {
            replica,
            from,
            to: 120,
            syncs_at_once: false,
            sent: at,
            clock: UnixMillis(0),
        };
        let append = BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) };
        backup.handle(at, append, &mut out);
        let result = AppendResult::Refused(AppendRefusal::Failed);
        let refusal = BackupEffect::Answer(Appended { replica, sent: at, result });
        assert_eq!(out.drain().collect::<Vec<_>>(), [refusal]);
    }
    assert_eq!(backup.kept(log).collect::<Vec<_>>(), [(replica, 80, 80)]);
}

/// Creates a backup that has found `count` replicas in each of two logs.
fn with_found(count: u64) -> (Backup, Vec<ReplicaId>) {
    let mut backup = Backup::new();
    let id = |log, segment| ReplicaId {
        log: ServerId(log),
        segment: SegmentId(segment),
        epoch: ReplicaEpoch(0),
    };
    let ids: Vec<_> =
        [1, 2].into_iter().flat_map(|log| (0..count).map(move |at| id(log, at))).collect();
    for replica in &ids {
        let mut out = Outbox::new();
        backup.handle(Instant(0), BackupEvent::Found { replica: *replica }, &mut out);
        assert_eq!(out.drain().next(), None);
    }
    (backup, ids)
}

/// Returns the replicas that the backup wants measured after this event.
fn measured_after(backup: &mut Backup, event: BackupEvent) -> Vec<ReplicaId> {
    let mut out = Outbox::new();
    backup.handle(Instant(1), event, &mut out);
    let wanted = |effect| match effect {
        BackupEffect::Measure { replica } => Some(replica),
        _ => None,
    };
    out.drain().filter_map(wanted).collect()
}

#[test]
fn what_was_found_is_read_one_by_one_and_in_haste_when_its_log_is_fenced() {
    let (mut backup, ids) = with_found(10);
    assert_eq!(backup.next_deadline(), Some(Instant(0)), "it begins at once");
    let mut busy = measured_after(&mut backup, BackupEvent::Tick);
    assert_eq!(busy, ids[..1]);
    busy.extend(measured_after(&mut backup, BackupEvent::Fence { log: ServerId(2) }));
    assert_eq!(busy[1..], ids[10..13], "awaited replicas come first");
    let mut reports = 0;
    while let Some(replica) = busy.pop() {
        let mut out = Outbox::new();
        let event = BackupEvent::Measured {
            replica,
            length: 8,
            synced: 8,
            clock: UnixMillis(replica.segment.0),
        };
        backup.handle(Instant(1), event, &mut out);
        for effect in out.drain() {
            match effect {
                BackupEffect::Measure { replica } => busy.push(replica),
                BackupEffect::Report { log } => {
                    assert_eq!((log, backup.kept(log).count()), (ServerId(2), 10));
                    assert_eq!(backup.clock(log), UnixMillis(9), "the latest of all replicas");
                    reports += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((reports, backup.kept(ServerId(1)).count()), (1, 10));
}

#[test]
fn what_cannot_be_read_counts_as_not_there_and_what_nobody_needs_is_not_read() {
    let (mut backup, ids) = with_found(2);
    let busy = measured_after(&mut backup, BackupEvent::Tick);
    let release = BackupEvent::Release { log: ServerId(1), replicas: ids[..2].to_vec() };
    let mut out = Outbox::new();
    backup.handle(Instant(1), release, &mut out);
    let free = |replica| BackupEffect::Free { replica };
    assert_eq!(out.drain().collect::<Vec<_>>(), [free(ids[1])], "it was not being read");
    backup.handle(Instant(1), BackupEvent::Damaged { replica: busy[0] }, &mut out);
    let effects: Vec<_> = out.drain().collect();
    assert_eq!(effects, [free(ids[0]), BackupEffect::Measure { replica: ids[2] }]);
    backup.handle(Instant(1), BackupEvent::Fence { log: ServerId(2) }, &mut out);
    backup.handle(Instant(1), BackupEvent::Damaged { replica: ids[2] }, &mut out);
    let last =
        BackupEvent::Measured { replica: ids[3], length: 8, synced: 8, clock: UnixMillis(7) };
    backup.handle(Instant(1), last, &mut out);
    assert!(out.drain().any(|effect| effect == BackupEffect::Report { log: ServerId(2) }));
    assert_eq!(backup.kept(ServerId(2)).collect::<Vec<_>>(), [(ids[3], 8, 8)]);
    assert!(!backup.knows(ids[2]));
}

/// Returns the replicas among the effects that the backup wants measured, and the number of reports.
fn measurements(effects: Vec<BackupEffect>) -> (Vec<ReplicaId>, usize) {
    let (mut wanted, mut reports) = (Vec::new(), 0);
    for effect in effects {
        match effect {
            BackupEffect::Measure { replica } => wanted.push(replica),
            BackupEffect::Report { .. } => reports += 1,
            other => panic!("{other:?}"),
        }
    }
    (wanted, reports)
}

#[test]
fn a_replica_that_could_not_be_measured_is_tried_again_and_reported_later() {
    let (mut backup, ids) = with_found(2);
    let (dead, intact, failing) = (ServerId(2), ids[2], ids[3]);
    let release = BackupEvent::Release { log: ServerId(1), replicas: ids[..2].to_vec() };
    effects(&mut backup, Instant(1), release);
    for replica in &ids[..2] {
        effects(&mut backup, Instant(1), BackupEvent::Freed { replica: *replica });
    }
    let fence = BackupEvent::Fence { log: dead };
    assert_eq!(measurements(effects(&mut backup, Instant(1), fence.clone())).0, [failing]);
    let measured =
        |replica| BackupEvent::Measured { replica, length: 8, synced: 8, clock: UnixMillis(7) };
    let not_measured = BackupEvent::NotMeasured { replica: failing };
    effects(&mut backup, Instant(1), measured(intact));
    // The report of the other replica does not wait for the disk.
    let reported = effects(&mut backup, Instant(1), not_measured.clone());
    assert_eq!(reported, [BackupEffect::Report { log: dead }]);
    assert_eq!(backup.kept(dead).collect::<Vec<_>>(), [(intact, 8, 8)]);
    let mut now = Instant(1);
    for _ in 0..3 {
        let early = Instant(now.0 + MEASURE_AGAIN.as_nanos() as u64 - 1);
        assert_eq!(effects(&mut backup, early, BackupEvent::Tick), []);
        now = now + MEASURE_AGAIN;
        assert_eq!(backup.next_deadline(), Some(now));
        let again = effects(&mut backup, now, BackupEvent::Tick);
        assert_eq!(again, [BackupEffect::Measure { replica: failing }]);
        assert_eq!(effects(&mut backup, now, not_measured.clone()), [], "nothing is new");
        // The coordinator may ask for the report again.
        assert_eq!(measurements(effects(&mut backup, now, fence.clone())), (vec![], 1));
    }
    now = now + MEASURE_AGAIN;
    effects(&mut backup, now, BackupEvent::Tick);
    let reported = effects(&mut backup, now, measured(failing));
    assert_eq!(reported, [BackupEffect::Report { log: dead }]);
    assert_eq!(backup.kept(dead).collect::<Vec<_>>(), [(intact, 8, 8), (failing, 8, 8)]);
    let free_all = effects(&mut backup, now, BackupEvent::Recovered { log: dead });
    assert_eq!(free_all, [intact, failing].map(|replica| BackupEffect::Free { replica }));
}

#[test]
fn one_measurement_at_a_time_is_repeated_until_the_disk_works_again() {
    let (mut backup, ids) = with_found(2);
    let mut now = Instant(1);
    let mut wanted = measurements(effects(&mut backup, now, BackupEvent::Tick)).0;
    for replica in &ids {
        assert_eq!(wanted, [*replica]);
        let not_measured = BackupEvent::NotMeasured { replica: *replica };
        wanted = measurements(effects(&mut backup, now, not_measured)).0;
    }
    assert_eq!(wanted, [], "nothing is tried again at once");
    now = now + MEASURE_AGAIN;
    assert_eq!(measurements(effects(&mut backup, now, BackupEvent::Tick)).0, ids[..1]);
    let not_measured = BackupEvent::NotMeasured { replica: ids[0] };
    assert_eq!(effects(&mut backup, now, not_measured), []);
    let release = BackupEvent::Release { log: ids[1].log, replicas: vec![ids[1]] };
    assert_eq!(effects(&mut backup, now, release), [BackupEffect::Free { replica: ids[1] }]);
    now = now + MEASURE_AGAIN;
    wanted = measurements(effects(&mut backup, now, BackupEvent::Tick)).0;
    // The disk works again, so the others follow without a pause.
    for replica in [ids[2], ids[3], ids[0]] {
        assert_eq!(wanted, [replica]);
        let measured =
            BackupEvent::Measured { replica, length: 8, synced: 8, clock: UnixMillis(7) };
        wanted = measurements(effects(&mut backup, now, measured)).0;
    }
    assert_eq!(wanted, []);
}

#[test]
fn refusals_do_not_fill_the_memory_and_a_refused_replica_is_not_created_by_a_repetition() {
    let (log, mut backup) = (ServerId(1), Backup::new());
    let mut append = |segment, from| {
        let replica =
            ReplicaId { log, segment: SegmentId(segment), epoch: ReplicaEpoch::default() };
        let (to, sent, clock) = (from + 8, Instant(5), UnixMillis(0));
        let header = AppendHeader { replica, from, to, syncs_at_once: false, sent, clock };
        let event = BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) };
        (effects(&mut backup, Instant(0), event), backup.replicas.len())
    };
    let refusal = |effects: &[BackupEffect]| match effects {
        [BackupEffect::Answer(Appended { result: AppendResult::Refused(why), .. })] => Some(*why),
        _ => None,
    };
    let all = BACKUP_REPLICAS_MAX as u64;
    for segment in 0..2 * all {
        let (effects, known) = append(segment, 8);
        assert_eq!(refusal(&effects), Some(AppendRefusal::Failed), "{segment}");
        assert!(known <= BACKUP_REPLICAS_MAX, "{known} replicas are known");
    }
    // The master must not count on another server in place of this one: a repetition of the
    // append could create the replica after others were released.
    assert_eq!(refusal(&append(2 * all, 0).0), Some(AppendRefusal::Failed));
}

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
const LENGTH: u32 = 1 << 20;

/// Creates a backup that scrubs every hour, with two replicas of a living master.
fn scrubbing() -> (Backup, [ReplicaId; 2]) {
    let mut backup = Backup::scrubbing(Some(HOUR));
    let ids = [1, 2].map(|segment| ReplicaId {
        log: ServerId(1),
        segment: SegmentId(segment),
        epoch: ReplicaEpoch(0),
    });
    for replica in ids {
        let header = AppendHeader {
            replica,
            from: 0,
            to: LENGTH,
            syncs_at_once: true,
            sent: Instant(5),
            clock: UnixMillis(0),
        };
        let append = BackupEvent::Append { from: ServerId(1), header, payload: Some(Ticket(1)) };
        let mut out = Outbox::new();
        backup.handle(Instant(0), append, &mut out);
        let taken = BackupEvent::Taken { replica, length: LENGTH, synced: LENGTH };
        backup.handle(Instant(0), taken, &mut out);
    }
    (backup, ids)
}

/// Returns the effects of an event, except questions to masters.
fn effects(backup: &mut Backup, now: Instant, event: BackupEvent) -> Vec<BackupEffect> {
    let mut out = Outbox::new();
    backup.handle(now, event, &mut out);
    out.drain().filter(|effect| !matches!(effect, BackupEffect::Ask { .. })).collect()
}

#[test]
fn each_replica_is_read_again_once_per_interval_and_slowly() {
    let (mut backup, ids) = scrubbing();
    let scrub = |replica| vec![BackupEffect::Scrub { replica }];
    let mut now = Instant(0) + HOUR;
    assert_eq!(effects(&mut backup, Instant(now.0 - 1), BackupEvent::Tick), []);
    for round in 1..4 {
        assert_eq!(effects(&mut backup, now, BackupEvent::Tick), scrub(ids[0]), "round {round}");
        assert_eq!(effects(&mut backup, now, BackupEvent::Tick), [], "one at a time");
        let whole = |replica| BackupEvent::Scrubbed { replica, found: ScrubResult::Intact(LENGTH) };
        assert_eq!(effects(&mut backup, now, whole(ids[0])), []);
        // One MiB at 16 MiB per second.
        let second = now + std::time::Duration::from_millis(63);
        assert_eq!(effects(&mut backup, now, BackupEvent::Tick), []);
        assert_eq!(effects(&mut backup, second, BackupEvent::Tick), scrub(ids[1]));
        assert_eq!(effects(&mut backup, second, whole(ids[1])), []);
        now = second + HOUR;
    }
}

#[test]
fn a_replica_that_the_disk_has_lost_is_given_up_and_its_master_told_until_it_releases_it() {
    for found in [ScrubResult::Damaged, ScrubResult::Intact(LENGTH - 1)] {
        let (mut backup, [replica, _]) = scrubbing();
        let now = Instant(0) + HOUR;
        effects(&mut backup, now, BackupEvent::Tick);
        let result = AppendResult::Refused(AppendRefusal::Failed);
        let complaint = BackupEffect::Complain(Appended { replica, sent: Instant(5), result });
        let expected = [BackupEffect::GiveUp { replica }, complaint.clone()];
        assert_eq!(effects(&mut backup, now, BackupEvent::Scrubbed { replica, found }), expected);
        // The message may have been lost, so the backup repeats it.
        let later = now + UNHEARD_MAX;
        assert!(effects(&mut backup, later, BackupEvent::Tick).contains(&complaint));
        let release = BackupEvent::Release { log: ServerId(1), replicas: vec![replica] };
        assert_eq!(effects(&mut backup, later, release), [BackupEffect::Free { replica }]);
    }
}

#[test]
fn what_could_not_be_tried_is_tried_again_and_what_is_fenced_or_gone_is_left_alone() {
    let (mut backup, [replica, other]) = scrubbing();
    let now = Instant(0) + HOUR;
    effects(&mut backup, now, BackupEvent::Tick);
    let unknown = BackupEvent::Scrubbed { replica, found: ScrubResult::Unknown };
    assert_eq!(effects(&mut backup, now, unknown), []);
    assert_eq!(backup.kept(ServerId(1)).count(), 2);
    let release = BackupEvent::Release { log: ServerId(1), replicas: vec![other] };
    effects(&mut backup, now, release);
    effects(&mut backup, now, BackupEvent::Freed { replica: other });
    let minute = now + std::time::Duration::from_secs(60);
    let again = effects(&mut backup, minute, BackupEvent::Tick);
    assert_eq!(again, [BackupEffect::Scrub { replica }]);
    // No living master could make the replica again, so the backup keeps it.
    effects(&mut backup, minute, BackupEvent::Fence { log: ServerId(1) });
    let damaged = BackupEvent::Scrubbed { replica, found: ScrubResult::Damaged };
    assert_eq!(effects(&mut backup, minute, damaged), []);
    assert_eq!(backup.kept(ServerId(1)).count(), 1);
    assert_eq!(effects(&mut backup, minute + HOUR, BackupEvent::Tick), []);
}

#[test]
fn the_clock_of_a_master_goes_on_until_its_log_is_fenced() {
    let (log, second) = (ServerId(1), Duration::from_secs(1));
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let (mut backup, begin) = (Backup::new(), Instant(0) + second);
    let mut handle = |now: Instant, event: BackupEvent| {
        backup.handle(now, event, &mut Outbox::new());
        backup.clock(log).0
    };
    let told = |clock: u64| {
        let header = AppendHeader {
            replica,
            from: 0,
            to: 0,
            syncs_at_once: false,
            sent: begin,
            clock: UnixMillis(clock),
        };
        BackupEvent::Append { from: log, header, payload: None }
    };
    assert_eq!(handle(begin, told(5_000)), 5_000);
    assert_eq!(handle(begin + second, told(4_000)), 5_000, "a late append");
    assert_eq!(handle(begin + 3 * second, BackupEvent::Fence { log }), 8_000);
    assert_eq!(handle(begin + 9 * second, BackupEvent::Fence { log }), 8_000, "once");
}

#[test]
#[should_panic(expected = "is freed without a request")]
fn a_replica_is_freed_only_on_request() {
    let (mut backup, [replica, _]) = scrubbing();
    effects(&mut backup, Instant(0), BackupEvent::Freed { replica });
}

#[test]
#[should_panic(expected = "and 9 are synced")]
fn only_written_bytes_are_synced() {
    let log = ServerId(1);
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let clock = UnixMillis(0);
    let header =
        AppendHeader { replica, from: 0, to: 8, syncs_at_once: false, sent: Instant(0), clock };
    let mut backup = Backup::new();
    let append = BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) };
    effects(&mut backup, Instant(0), append);
    effects(&mut backup, Instant(0), BackupEvent::Taken { replica, length: 8, synced: 9 });
}

#[test]
fn a_sync_that_ends_before_its_write_is_reported_is_not_forgotten() {
    let (log, now) = (ServerId(1), Instant(0));
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let mut backup = Backup::new();
    let append = |from, to| {
        let (syncs_at_once, sent, clock) = (false, now, UnixMillis(0));
        let header = AppendHeader { replica, from, to, syncs_at_once, sent, clock };
        BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) }
    };
    effects(&mut backup, now, append(0, 100));
    effects(&mut backup, now, BackupEvent::Taken { replica, length: 100, synced: 100 });
    effects(&mut backup, now, append(100, 150));
    // Another thread has synced the bytes between the write and this report of it.
    effects(&mut backup, now, BackupEvent::Synced { replica, synced: 150 });
    effects(&mut backup, now, BackupEvent::Taken { replica, length: 150, synced: 100 });
    assert_eq!(backup.kept(log).collect::<Vec<_>>(), [(replica, 150, 150)]);
}

#[test]
fn a_fenced_log_is_reported_when_a_loss_of_power_can_take_nothing_of_it() {
    let (log, now) = (ServerId(1), Instant(0));
    let [at_rest, writing] = [1, 2].map(|segment| ReplicaId {
        log,
        segment: SegmentId(segment),
        epoch: ReplicaEpoch(0),
    });
    let mut backup = Backup::new();
    let append = |replica| {
        let (from, to, syncs_at_once, clock) = (0, 100, false, UnixMillis(0));
        let header = AppendHeader { replica, from, to, syncs_at_once, sent: now, clock };
        BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) }
    };
    let taken = |replica| BackupEvent::Taken { replica, length: 100, synced: 0 };
    let synced = |replica| BackupEvent::Synced { replica, synced: 100 };
    effects(&mut backup, now, append(at_rest));
    effects(&mut backup, now, taken(at_rest));
    effects(&mut backup, now, append(writing));
    let fenced = effects(&mut backup, now, BackupEvent::Fence { log });
    assert_eq!(fenced, [BackupEffect::Sync { replica: at_rest }]);
    assert_eq!(
        effects(&mut backup, now, taken(writing)),
        [BackupEffect::Sync { replica: writing }]
    );
    assert_eq!(effects(&mut backup, now, synced(writing)), []);
    assert_eq!(effects(&mut backup, now, synced(at_rest)), [BackupEffect::Report { log }]);
    assert_eq!(backup.kept(log).collect::<Vec<_>>(), [(at_rest, 100, 100), (writing, 100, 100)]);
}

#[test]
fn what_takes_nothing_more_is_synced_or_stopped_again_before_its_log_is_reported() {
    let (log, now) = (ServerId(1), Instant(0));
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let (from, to, syncs_at_once, clock) = (0, 100, false, UnixMillis(0));
    let header = AppendHeader { replica, from, to, syncs_at_once, sent: now, clock };
    let ends = [
        (BackupEvent::Synced { replica, synced: 100 }, Some((replica, 100, 100))),
        (BackupEvent::Stopped { replica, length: 60, synced: 60 }, Some((replica, 60, 60))),
        (BackupEvent::Failed { replica }, None),
    ];
    for (end, kept) in ends {
        let mut backup = Backup::new();
        let append = BackupEvent::Append { from: log, header, payload: Some(Ticket(1)) };
        effects(&mut backup, now, append);
        effects(&mut backup, now, BackupEvent::Taken { replica, length: 100, synced: 60 });
        effects(&mut backup, now, BackupEvent::Stopped { replica, length: 100, synced: 60 });
        let fenced = effects(&mut backup, now, BackupEvent::Fence { log });
        assert_eq!(fenced, [BackupEffect::Sync { replica }]);
        assert_eq!(effects(&mut backup, now, end), [BackupEffect::Report { log }]);
        assert_eq!(backup.kept(log).next(), kept);
    }
}
