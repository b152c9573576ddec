//! Histories that are possible, and histories that are not.

use super::*;

type Line = (usize, u64, u64, RegisterAction, Option<OperationOutcome>);

fn history(list: &[(usize, u64, u64, RegisterAction, OperationOutcome)]) -> HistoryVerdict {
    let answered = |&(client, begun, ended, action, outcome): &_| {
        (client, begun, ended, action, Some(outcome))
    };
    with_losses(&list.iter().map(answered).collect::<Vec<_>>(), &[])
}

fn with_losses(list: &[Line], losses: &[u64]) -> HistoryVerdict {
    check(&list.iter().map(on_own_connection).collect::<Vec<_>>(), losses, &Lives::default())
}

fn on_own_connection(&(client, begun, ended, action, outcome): &Line) -> RegisterOperation {
    let place = RequestPlace { connection: client as u64, request: begun };
    RegisterOperation { client, begun, ended, place, action, outcome }
}

fn is_violated(verdict: &HistoryVerdict) -> bool {
    matches!(verdict, HistoryVerdict::Violated(_))
}

#[test]
fn operations_one_after_the_other_are_taken_at_their_word() {
    let good = [
        (0, 1, 2, RegisterAction::Read, OperationOutcome::Value(None)),
        (1, 3, 4, RegisterAction::Write(10), OperationOutcome::Done),
        (0, 5, 6, RegisterAction::Increment, OperationOutcome::Number(11)),
        (1, 7, 8, RegisterAction::WriteIfAbsent(20), OperationOutcome::Applied(false)),
        (0, 9, 10, RegisterAction::Swap(11, 30), OperationOutcome::Applied(true)),
        (1, 11, 12, RegisterAction::Delete, OperationOutcome::Applied(true)),
        (0, 13, 14, RegisterAction::Delete, OperationOutcome::Applied(false)),
        (0, 15, 16, RegisterAction::WriteIfAbsent(40), OperationOutcome::Applied(true)),
        (0, 17, 18, RegisterAction::Take, OperationOutcome::Value(Some(40))),
        (1, 19, 20, RegisterAction::Increment, OperationOutcome::Number(1)),
        (0, 21, 22, RegisterAction::Exchange(50), OperationOutcome::Value(Some(1))),
        (1, 23, 24, RegisterAction::Probe, OperationOutcome::Applied(true)),
        (0, 25, 26, RegisterAction::Flush, OperationOutcome::Applied(true)),
        (1, 27, 28, RegisterAction::Probe, OperationOutcome::Applied(false)),
    ];
    assert_eq!(history(&good), HistoryVerdict::Linearizable);
    for broken in 0..good.len() {
        let mut bad = good;
        bad[broken].4 = match (bad[broken].3, bad[broken].4) {
            (RegisterAction::Flush, _) | (_, OperationOutcome::Done) => continue,
            (_, OperationOutcome::Value(_)) => OperationOutcome::Value(Some(99)),
            (_, OperationOutcome::Applied(done)) => OperationOutcome::Applied(!done),
            (_, OperationOutcome::Number(number)) => OperationOutcome::Number(number + 1),
            (_, OperationOutcome::Remaining(_)) => {
                OperationOutcome::Remaining(RemainingTime::Millis(9))
            }
            (_, outcome) => unreachable!("no outcome of these operations is {outcome:?}"),
        };
        assert!(is_violated(&history(&bad)), "line {broken} cannot be");
    }
}

#[test]
fn operations_at_the_same_time_may_take_effect_in_either_order() {
    for seen in [None, Some(5)] {
        let history = history(&[
            (0, 1, 4, RegisterAction::Write(5), OperationOutcome::Done),
            (1, 2, 3, RegisterAction::Read, OperationOutcome::Value(seen)),
        ]);
        assert_eq!(history, HistoryVerdict::Linearizable, "{seen:?}");
    }
}

#[test]
fn what_was_seen_once_is_not_unseen_while_the_write_goes_on() {
    let history = history(&[
        (0, 1, 10, RegisterAction::Write(5), OperationOutcome::Done),
        (1, 2, 3, RegisterAction::Read, OperationOutcome::Value(Some(5))),
        (2, 4, 5, RegisterAction::Read, OperationOutcome::Value(None)),
    ]);
    assert!(is_violated(&history));
}

#[test]
fn two_increments_never_report_the_same_number() {
    let history = history(&[
        (0, 1, 4, RegisterAction::Increment, OperationOutcome::Number(1)),
        (1, 2, 3, RegisterAction::Increment, OperationOutcome::Number(1)),
    ]);
    assert!(is_violated(&history));
}

#[test]
fn a_value_that_expires_may_go_but_does_not_come_back() {
    let lifetime = Lifetime::After(5);
    let write = (0, 1, 2, RegisterAction::WriteExpiring(5, lifetime), OperationOutcome::Done);
    let read = |at, seen| (1, at, at + 1, RegisterAction::Read, OperationOutcome::Value(seen));
    let good = [write, read(3, Some(5)), read(5, None)];
    assert_eq!(history(&good), HistoryVerdict::Linearizable);
    assert!(is_violated(&history(&[write, read(3, None), read(5, Some(5))])));
    let other = (0, 1, 2, RegisterAction::Write(5), OperationOutcome::Done);
    assert!(is_violated(&history(&[other, read(3, None)])));
}

const LIFETIME: Lifetime = Lifetime::After(5);

/// Returns the verdict if the value 5 is written before moment 3, and disappears between 10 and 20.
fn with_life(lines: &[(u64, u64, RegisterAction, OperationOutcome)]) -> HistoryVerdict {
    let write = (1, 2, RegisterAction::WriteExpiring(5, LIFETIME), OperationOutcome::Done);
    let lines = [&[write], lines].concat();
    let lines = lines.iter().enumerate().map(|(client, &(begun, ended, action, outcome))| {
        on_own_connection(&(client, begun, ended, action, Some(outcome)))
    });
    let life = Life { moments: 10..=20, deadline: 1_000..=1_010 };
    let given =
        [(LIFETIME, life), (Lifetime::After(6), Life { moments: 30..=40, deadline: 0..=1 })];
    let shown = [(4, 990..=1_000), (5, 900..=999)];
    let lives = Lives { given: given.into(), shown: shown.into() };
    check(&lines.collect::<Vec<_>>(), &[], &lives)
}

#[test]
fn a_value_whose_time_is_known_goes_within_it() {
    let read =
        |(begun, ended), seen| (begun, ended, RegisterAction::Read, OperationOutcome::Value(seen));
    for (moments, seen, is_good) in [
        ((3, 9), None, false),
        ((3, 9), Some(5), true),
        ((3, 10), None, true),
        ((12, 13), Some(5), true),
        ((12, 13), None, true),
        ((20, 25), Some(5), true),
        ((21, 25), Some(5), false),
        ((21, 25), None, true),
    ] {
        let verdict = with_life(&[read(moments, seen)]);
        assert_eq!(
            verdict == HistoryVerdict::Linearizable,
            is_good,
            "{moments:?} {seen:?}: {verdict:?}"
        );
    }
    // A read that began in time may still see the value, and may report it later.
    let late = [read((15, 30), Some(5)), read((22, 23), None)];
    assert_eq!(with_life(&late), HistoryVerdict::Linearizable);
}

#[test]
fn a_time_to_live_is_kept_changed_and_removed_as_operations_say() {
    let read = |at, seen| (at, at + 1, RegisterAction::Read, OperationOutcome::Value(seen));
    let applied = |action, done| (6, 7, action, OperationOutcome::Applied(done));
    let keeping = (6, 7, RegisterAction::WriteKeeping(7), OperationOutcome::Done);
    let other = Lifetime::After(6);
    let value = OperationOutcome::Value(Some(5));
    let reading = |action| (6, 7, action, value);
    for (change, number, gone) in [
        (keeping, 7, Some(21)),
        (applied(RegisterAction::Persist, true), 5, None),
        (reading(RegisterAction::ReadPersisting), 5, None),
        (applied(RegisterAction::Expire(other), true), 5, Some(41)),
        (reading(RegisterAction::ReadExpiring(other)), 5, Some(41)),
        ((6, 7, RegisterAction::Increment, OperationOutcome::Number(6)), 6, Some(21)),
        (applied(RegisterAction::Swap(5, 8), true), 8, None),
    ] {
        let lasts = gone.is_none_or(|gone| gone > 21);
        let later = with_life(&[change, read(21, Some(number))]);
        assert_eq!(later == HistoryVerdict::Linearizable, lasts, "{change:?}: {later:?}");
        let later = with_life(&[change, read(21, None)]);
        assert_eq!(later == HistoryVerdict::Linearizable, !lasts, "{change:?}: {later:?}");
        let last = with_life(&[change, read(45, Some(number))]);
        assert_eq!(last == HistoryVerdict::Linearizable, gone.is_none(), "{change:?}: {last:?}");
    }
    let persisted = applied(RegisterAction::Persist, true);
    let again = (8, 9, RegisterAction::Persist, OperationOutcome::Applied(true));
    assert!(is_violated(&with_life(&[persisted, again])), "there is none to remove");
    assert!(is_violated(&with_life(&[applied(RegisterAction::Persist, false)])));
    assert!(is_violated(&with_life(&[applied(RegisterAction::Expire(other), false)])));
}

#[test]
fn a_remaining_time_is_that_of_the_value() {
    let remaining = |begun, shown| {
        (begun, begun + 1, RegisterAction::ReadRemaining, OperationOutcome::Remaining(shown))
    };
    let is_good = |lines: &[_]| with_life(lines) == HistoryVerdict::Linearizable;
    assert!(is_good(&[remaining(4, RemainingTime::Millis(7))]), "deadlines in common");
    assert!(!is_good(&[remaining(5, RemainingTime::Millis(7))]), "no deadline in common");
    assert!(!is_good(&[remaining(4, RemainingTime::Endless)]));
    assert!(!is_good(&[remaining(4, RemainingTime::NoValue)]));
    assert!(is_good(&[remaining(21, RemainingTime::NoValue)]));
    let persist = (6, 7, RegisterAction::Persist, OperationOutcome::Applied(true));
    assert!(is_good(&[persist, remaining(8, RemainingTime::Endless)]));
    assert!(!is_good(&[persist, remaining(8, RemainingTime::Millis(7))]));
}

#[test]
fn what_was_given_up_may_give_or_remove_a_time_to_live_later() {
    let write = (0, 1, 2, RegisterAction::Write(5), Some(OperationOutcome::Done));
    let expire = (0, 3, 4, RegisterAction::Expire(LIFETIME), None);
    let keep = (1, 3, 4, RegisterAction::ReadPersisting, None);
    let answered = |at, action, outcome| (2, at, at + 1, action, Some(outcome));
    let endless = OperationOutcome::Remaining(RemainingTime::Endless);
    let some = OperationOutcome::Remaining(RemainingTime::Millis(3));
    let show = |at, outcome| answered(at, RegisterAction::ReadRemaining, outcome);
    let read = |at, seen| answered(at, RegisterAction::Read, OperationOutcome::Value(seen));
    let is_good = |list: &[Line]| with_losses(list, &[]) == HistoryVerdict::Linearizable;
    assert!(is_good(&[write, expire, show(5, endless), show(7, some), read(9, None)]));
    assert!(!is_good(&[write, expire, show(5, some), show(7, endless)]));
    assert!(is_good(&[write, expire, keep, show(5, some), show(7, endless)]));
    assert!(!is_good(&[write, expire, keep, show(5, some), show(7, endless), read(9, None)]));
}

#[test]
fn requests_of_one_connection_take_effect_in_their_order() {
    let lines = [
        (0, 1, 10, RegisterAction::Write(1), Some(OperationOutcome::Done)),
        (1, 2, 11, RegisterAction::Write(2), Some(OperationOutcome::Done)),
        (2, 3, 12, RegisterAction::Read, Some(OperationOutcome::Value(Some(1)))),
    ];
    assert_eq!(with_losses(&lines, &[]), HistoryVerdict::Linearizable, "on three connections");
    let on_one = |line: &Line| {
        let place = RequestPlace { connection: 7, request: line.1 };
        RegisterOperation { place, ..on_own_connection(line) }
    };
    assert!(is_violated(&check(&lines.each_ref().map(on_one), &[], &Lives::default())), "on one");
    let mut newer = lines;
    newer[2].4 = Some(OperationOutcome::Value(Some(2)));
    assert_eq!(
        check(&newer.each_ref().map(on_one), &[], &Lives::default()),
        HistoryVerdict::Linearizable
    );
}

#[test]
fn a_flush_that_may_have_missed_a_register_has_done_so_or_not_for_good() {
    let read = |at, seen| (1, at, at + 1, RegisterAction::Read, OperationOutcome::Value(seen));
    let write = (0, 1, 2, RegisterAction::Write(1), OperationOutcome::Done);
    let flush = |hit| (0, 3, 4, RegisterAction::Flush, OperationOutcome::Applied(hit));
    assert_eq!(history(&[write, flush(false), read(5, Some(1))]), HistoryVerdict::Linearizable);
    assert_eq!(history(&[write, flush(false), read(5, None)]), HistoryVerdict::Linearizable);
    let back = [write, flush(false), read(5, None), read(7, Some(1))];
    assert!(is_violated(&history(&back)));
    assert!(is_violated(&history(&[write, flush(true), read(5, Some(1))])));
}

#[test]
fn many_flushes_at_a_time_are_followed_to_the_end() {
    let mut lines: Vec<_> = (0..40)
        .map(|client| {
            (client, client as u64, 1_000, RegisterAction::Flush, OperationOutcome::Applied(false))
        })
        .collect();
    for at in (100..200).step_by(4) {
        lines.push((50, at, at + 1, RegisterAction::Write(at), OperationOutcome::Done));
        lines.push((
            50,
            at + 2,
            at + 3,
            RegisterAction::Probe,
            OperationOutcome::Applied(at % 8 == 0),
        ));
    }
    assert_eq!(history(&lines), HistoryVerdict::Linearizable);
    // Each flush empties the register at most once.
    lines.drain(..30);
    assert!(is_violated(&history(&lines)));
}

#[test]
fn a_stale_read_is_found() {
    let history = history(&[
        (0, 1, 2, RegisterAction::Write(1), OperationOutcome::Done),
        (0, 3, 4, RegisterAction::Write(2), OperationOutcome::Done),
        (1, 5, 6, RegisterAction::Read, OperationOutcome::Value(Some(1))),
    ]);
    assert!(is_violated(&history));
}

#[test]
fn what_was_given_up_may_take_effect_at_any_later_time_once() {
    let given_up = (0, 1, 2, RegisterAction::Write(5), None);
    let read =
        |at, seen| (1, at, at + 1, RegisterAction::Read, Some(OperationOutcome::Value(seen)));
    let write = |at, new| (1, at, at + 1, RegisterAction::Write(new), Some(OperationOutcome::Done));
    assert_eq!(with_losses(&[given_up, read(3, None)], &[]), HistoryVerdict::Linearizable);
    let late = [given_up, read(3, None), write(5, 7), read(7, Some(5)), read(9, Some(5))];
    assert_eq!(with_losses(&late, &[]), HistoryVerdict::Linearizable);
    let twice = [given_up, read(3, Some(5)), write(5, 7), read(7, Some(5))];
    assert!(is_violated(&with_losses(&twice, &[])));
    let early = [read(1, Some(5)), (0, 3, 4, RegisterAction::Write(5), None)];
    assert!(is_violated(&with_losses(&early, &[])));
}

#[test]
fn many_that_were_given_up_are_followed() {
    let mut list: Vec<_> = (0..30)
        .map(|n| (0, 2 * n + 1, 2 * n + 2, RegisterAction::Increment, None))
        .chain((30..50).map(|n| (0, 2 * n + 1, 2 * n + 2, RegisterAction::Write(1000 * n), None)))
        .collect();
    let read =
        |at, seen| (1, at, at + 1, RegisterAction::Read, Some(OperationOutcome::Value(Some(seen))));
    list.extend([read(201, 17), read(203, 33_004), read(205, 33_013)]);
    assert_eq!(with_losses(&list, &[]), HistoryVerdict::Linearizable);
    list.push(read(207, 33_014));
    assert!(is_violated(&with_losses(&list, &[])), "that would be one increment too many");
}

#[test]
fn writes_of_which_nobody_saw_anything_are_counted_however_many_there_are() {
    let given_up = |n: u64| (0, 2 * n + 1, 2 * n + 2, RegisterAction::Write(n), None);
    let writes: Vec<_> = (0..300).map(given_up).collect();
    let delete = |n: u64| {
        (
            1,
            2 * n + 1001,
            2 * n + 1002,
            RegisterAction::Delete,
            Some(OperationOutcome::Applied(true)),
        )
    };
    let deletes: Vec<_> = (0..300).map(delete).collect();
    assert_eq!(with_losses(&[&writes[..], &deletes].concat(), &[]), HistoryVerdict::Linearizable);
    let one_less = [&writes[1..], &deletes].concat();
    assert!(
        is_violated(&with_losses(&one_less, &[])),
        "one of them found a value that was not written"
    );
}

#[test]
fn what_was_lost_may_be_found_in_an_old_copy_and_not_in_a_new_one() {
    let read =
        |at, seen| (1, at, at + 1, RegisterAction::Read, Some(OperationOutcome::Value(seen)));
    let write = |at, new| (1, at, at + 1, RegisterAction::Write(new), Some(OperationOutcome::Done));
    let before = [write(1, 5), write(3, 7)];
    for seen in [None, Some(5), Some(7)] {
        let history = [&before[..], &[read(10, seen), read(12, seen)]].concat();
        assert_eq!(with_losses(&history, &[6]), HistoryVerdict::Linearizable, "{seen:?}");
    }
    let early = [&before[..], &[read(5, Some(5))]].concat();
    assert!(is_violated(&with_losses(&early, &[9])));
    let twice = [&before[..], &[read(10, Some(5)), read(12, Some(7))]].concat();
    assert!(is_violated(&with_losses(&twice, &[9])));
    let answered_later = (0, 8, 12, RegisterAction::Write(9), Some(OperationOutcome::Done));
    let history = [&before[..], &[answered_later, read(14, Some(5))]].concat();
    assert_eq!(with_losses(&history, &[10]), HistoryVerdict::Linearizable, "it was lost, too");
    let unheard = [&before[..], &[read(10, Some(9))]].concat();
    assert!(is_violated(&with_losses(&unheard, &[9])));
}

/// Returns the number of a list of these items.
fn list(items: &[u8]) -> Option<u64> {
    let mut list = NumberedItems::default();
    assert!(items.iter().all(|&item| list.push(item)));
    list.number()
}

/// Returns the number of these parts.
fn parts(parts: &[(usize, u64)]) -> Option<u64> {
    parts
        .iter()
        .fold(NumberedParts::default(), |all, &(part, value)| all.with(part, Some(value)))
        .number()
}

/// Checks operations of two clients in turns, one after the other, and that each other outcome of any
/// of them is impossible.
fn only_these(lines: &[(PartAction, OperationOutcome)], last: Option<u64>) {
    let mut good: Vec<_> = lines
        .iter()
        .zip(0..)
        .map(|(&(part, outcome), at)| {
            (at as usize % 2, 2 * at + 1, 2 * at + 2, RegisterAction::Part(part), outcome)
        })
        .collect();
    let read = 2 * lines.len() as u64 + 1;
    good.push((0, read, read + 1, RegisterAction::Read, OperationOutcome::Value(last)));
    assert_eq!(history(&good), HistoryVerdict::Linearizable);
    for broken in 0..good.len() {
        let mut bad = good.clone();
        bad[broken].4 = match bad[broken].4 {
            OperationOutcome::Value(Some(_)) => OperationOutcome::Value(None),
            OperationOutcome::Value(None) => OperationOutcome::Value(Some(9)),
            OperationOutcome::Applied(done) => OperationOutcome::Applied(!done),
            OperationOutcome::Number(number) => OperationOutcome::Number(number + 1),
            _ => OperationOutcome::Number(0),
        };
        assert!(is_violated(&history(&bad)), "line {broken} cannot be");
    }
}

#[test]
fn a_list_returns_its_items_in_order_and_each_once() {
    let value = |item: u64| OperationOutcome::Value(Some(item));
    only_these(
        &[
            (PartAction::Pop(ItemsEnd::First), OperationOutcome::Value(None)),
            (PartAction::Push(1), OperationOutcome::Number(1)),
            (PartAction::Push(2), OperationOutcome::Number(2)),
            (PartAction::Push(3), OperationOutcome::Number(3)),
            (PartAction::PushLimited(4), OperationOutcome::Number(4)),
            (PartAction::CountItems, OperationOutcome::Number(3)),
            (PartAction::Pop(ItemsEnd::First), value(2)),
            (PartAction::Rotate, value(3)),
            (PartAction::Pop(ItemsEnd::Last), value(3)),
            (PartAction::Push(5), OperationOutcome::Number(2)),
        ],
        list(&[4, 5]),
    );
    let push = |client, at, item| {
        let action = RegisterAction::Part(PartAction::Push(item));
        (client, at, 10, action, OperationOutcome::Number(u64::from(item)))
    };
    let read = |items: &[u8]| {
        let seen = OperationOutcome::Value(list(items));
        history(&[push(0, 1, 1), push(1, 2, 2), (2, 11, 12, RegisterAction::Read, seen)])
    };
    assert_eq!(read(&[1, 2]), HistoryVerdict::Linearizable);
    for lost_twice_or_in_disorder in [&[1][..], &[2], &[1, 2, 1], &[2, 1]] {
        assert!(is_violated(&read(lost_twice_or_in_disorder)), "{lost_twice_or_in_disorder:?}");
    }
}

#[test]
fn pushes_without_a_known_outcome_are_followed_like_writes() {
    let push = |client: usize, item| {
        let moment = 1 + client as u64;
        (client, moment, 100, RegisterAction::Part(PartAction::PushLimited(item)), None)
    };
    let mut lines: Vec<Line> = (0..20).map(|client| push(client, 1 + client as u8)).collect();
    let read = |at, items: &[u8]| {
        (30, at, at + 1, RegisterAction::Read, Some(OperationOutcome::Value(list(items))))
    };
    lines.extend([read(40, &[7]), read(50, &[7, 3]), read(60, &[7, 3, 9])]);
    assert_eq!(with_losses(&lines, &[]), HistoryVerdict::Linearizable);
    lines.push(read(70, &[7, 9]));
    assert!(is_violated(&with_losses(&lines, &[])));
}

#[test]
fn the_fields_of_a_hash_vanish_together_and_those_of_an_earlier_one_do_not_come_back() {
    let value = |value: u64| OperationOutcome::Value(Some(value));
    let both = NumberedParts::of(parts(&[(0, 5), (2, 6)]).unwrap());
    only_these(
        &[
            (PartAction::SetFields(both), OperationOutcome::Number(2)),
            (PartAction::ReadField(2), value(6)),
            (PartAction::SetFieldIfAbsent(2, 7), OperationOutcome::Applied(false)),
            (PartAction::SetFieldIfAbsent(1, 8), OperationOutcome::Applied(true)),
            (PartAction::CountFields, OperationOutcome::Number(3)),
            (PartAction::RemoveFields(both), OperationOutcome::Number(2)),
            (PartAction::ReadFields, OperationOutcome::Value(parts(&[(1, 8)]))),
        ],
        parts(&[(1, 8)]),
    );
    let set = |at, fields: &[(usize, u64)], new| {
        let fields = NumberedParts::of(parts(fields).unwrap());
        let action = RegisterAction::Part(PartAction::SetFields(fields));
        (0, at, at + 1, action, OperationOutcome::Number(new))
    };
    let delete = (0, 3, 4, RegisterAction::Delete, OperationOutcome::Applied(true));
    let read = |fields: &[(usize, u64)]| {
        let seen = OperationOutcome::Value(parts(fields));
        let read = (1, 7, 8, RegisterAction::Read, seen);
        history(&[set(1, &[(0, 5), (1, 6)], 2), delete, set(5, &[(0, 7)], 1), read])
    };
    assert_eq!(read(&[(0, 7)]), HistoryVerdict::Linearizable);
    assert!(is_violated(&read(&[(0, 7), (1, 6)])), "a field of the deleted hash is back");
    assert!(is_violated(&read(&[(0, 5)])) && is_violated(&read(&[])));
}

#[test]
fn a_hash_that_a_string_has_replaced_is_of_another_type_until_it_is_removed() {
    let part = |at, part, outcome| (1, at, at + 1, RegisterAction::Part(part), outcome);
    let fields = NumberedParts::of(parts(&[(3, 9)]).unwrap());
    let lines = |first, second| {
        history(&[
            (0, 1, 2, RegisterAction::Write(string(4)), OperationOutcome::Done),
            part(3, PartAction::ReadField(3), first),
            part(5, PartAction::SetFields(fields), first),
            (0, 7, 8, RegisterAction::Read, OperationOutcome::Value(Some(string(4)))),
            (0, 9, 10, RegisterAction::Delete, OperationOutcome::Applied(true)),
            part(11, PartAction::SetFields(fields), second),
        ])
    };
    let (other, new) = (OperationOutcome::WrongType, OperationOutcome::Number(1));
    assert_eq!(lines(other, new), HistoryVerdict::Linearizable);
    assert!(is_violated(&lines(new, new)) && is_violated(&lines(other, other)));
}

#[test]
fn the_members_of_a_sorted_set_have_the_scores_that_were_set_and_added() {
    let number = OperationOutcome::Number;
    let lowest = OperationOutcome::Value(Some(member_with_score(1, 5)));
    only_these(
        &[
            (PartAction::PopLowest, OperationOutcome::Value(None)),
            (PartAction::SetScore(2, 5), number(1)),
            (PartAction::SetScore(1, 5), number(1)),
            (PartAction::SetScore(0, 6), number(1)),
            (PartAction::AddScore(3), number(1)),
            (PartAction::SetScore(3, 0), number(0)),
            (PartAction::RemoveMember(3), number(1)),
            (PartAction::ReadScore(3), OperationOutcome::Value(None)),
            (PartAction::PopLowest, lowest),
            (PartAction::AddScore(2), number(6)),
            (PartAction::CountMembers, number(2)),
        ],
        parts(&[(0, part_of_score(6)), (2, part_of_score(6))]),
    );
}
