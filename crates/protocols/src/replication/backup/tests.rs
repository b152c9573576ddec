//! What a backup knows of replicas that take nothing any more.

use super::*;

#[test]
fn what_can_take_nothing_more_is_kept_until_it_is_released() {
    let (log, at) = (ServerId(1), Instant(5));
    let replica = ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) };
    let (mut backup, mut out) = (Backup::new(), Outbox::new());
    let append = |from, to| {
        let asked = Asked { replica, from, to, is_last: false, sent: at };
        BackupEvent::Append { from: log, asked, payload: Some(Ticket(1)) }
    };
    backup.handle(at, append(0, 80), &mut out);
    backup.handle(at, BackupEvent::Taken { replica, length: 80, stable: 64 }, &mut out);
    backup.handle(at, append(80, 120), &mut out);
    out.drain().for_each(drop);
    backup.handle(at, BackupEvent::Stopped { replica, length: 80, stable: 64 }, &mut out);
    let result = AppendResult::Refused(Refusal::Failed);
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
    let found = BackupEvent::Found { replica, length: 80, stable: 80 };
    backup.handle(Instant(0), found, &mut out);
    // A master believes that it speaks to the process that stood here before.
    for from in [0, 80, 96] {
        let asked = Asked { replica, from, to: 120, is_last: false, sent: at };
        let append = BackupEvent::Append { from: log, asked, payload: Some(Ticket(1)) };
        backup.handle(at, append, &mut out);
        assert_eq!(out.drain().next(), None);
    }
    assert_eq!(backup.kept(log).collect::<Vec<_>>(), [(replica, 80, 80)]);
}
