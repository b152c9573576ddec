//! The failure detector of a master for its backups: it decides when to replace a backup that
//! does not answer. See `docs/design/replication.md`, G1 to G5.
//!
//! The machine is told which backups are late and decides which one is replaced. It knows neither
//! segments nor replicas.
//!
//! **Invariant:** if every usable backup is silent or late, none is replaced. When no backup
//! answers, the master itself is probably cut off.

use super::timing::{
    SILENT_AFTER, SILENT_AFTER_MAX, SILENT_CALM, SILENT_PAUSE, SILENT_PAUSE_MAX, SILENT_PROBE,
    SILENT_SEVERAL, SPARE_PAUSE_MAX,
};
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Instant, ServerId};

/// The backups that were replaced as silent, and the current limit.
#[derive(Clone, Debug)]
pub(super) struct SilenceDetector {
    /// Time without progress after which a backup is replaced.
    limit: Duration,
    /// Time at which the limit halves, unless it is raised again before.
    calm_at: Option<Instant>,
    /// Time since which several backups have been late at once.
    several_since: Option<Instant>,
    /// Time at which several backups will have been late for [`SILENT_SEVERAL`].
    several_at: Option<Instant>,
    /// Time before which no backup counts as late: this master was suspended, and has not read the
    /// answers that arrived meanwhile.
    excused_until: Instant,
    backups: BTreeMap<ServerId, ReplacedBackup>,
}

/// The times from which a backup is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LateTimes {
    /// The time if the other backups are enough for every replica: waiting for it gains nothing.
    pub(super) spare: Instant,
    /// The time if it is needed. Later than the other one while the limit is raised.
    pub(super) needed: Instant,
}

/// The state of a backup that was replaced.
#[derive(Clone, Copy, Debug)]
struct ReplacedBackup {
    replaced_at: Instant,
    /// Length of the current pause.
    pause: Duration,
    until: Instant,
    /// Set if the other backups were enough for every replica. Then nothing is gained by waiting
    /// longer for this one.
    is_spare: bool,
    /// Set once the backup has answered, which its return requires besides the end of the pause.
    is_heard: bool,
    /// Set while the backup is in use again, with the time of its return; the entry only remembers
    /// the last pause.
    back_since: Option<Instant>,
    /// Time of the next question to the backup.
    probe_at: Instant,
}

impl Default for SilenceDetector {
    fn default() -> SilenceDetector {
        SilenceDetector {
            limit: SILENT_AFTER,
            calm_at: None,
            several_since: None,
            several_at: None,
            excused_until: Instant(0),
            backups: BTreeMap::new(),
        }
    }
}

impl SilenceDetector {
    /// Returns the time without progress after which a backup is replaced.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns when a backup becomes late that makes no progress since this time.
    pub(super) fn late_times(&self, since: Instant) -> LateTimes {
        let spare = (since + SILENT_AFTER).max(self.excused_until);
        let times = LateTimes { spare, needed: (since + self.limit).max(spare) };
        assert!(times.spare <= times.needed, "a backup that is needed is tolerated: {times:?}");
        times
    }

    /// Lets no backup count as late before this time.
    pub(super) fn excuse(&mut self, until: Instant) {
        self.excused_until = self.excused_until.max(until);
    }

    /// Returns whether the backup was replaced and may not be used yet.
    pub(super) fn is_silent(&self, backup: ServerId) -> bool {
        self.backups.get(&backup).is_some_and(|it| it.back_since.is_none())
    }

    /// Returns whether some backup was replaced and may not be used yet.
    pub(super) fn awaits_return(&self) -> bool {
        self.backups.values().any(|it| it.back_since.is_none())
    }

    /// Returns whether no backup is silent, and none that was needed was slow lately.
    pub(super) fn is_calm(&self) -> bool {
        self.limit == SILENT_AFTER && !self.awaits_return()
    }

    /// Returns the backup that is to be replaced now, if any. `others` counts the usable backups
    /// that are neither late nor silent; a segment has `replicas` of them.
    pub(super) fn backup_to_replace(
        &mut self,
        now: Instant,
        late: &BTreeSet<ServerId>,
        replicas: usize,
        others: impl FnOnce() -> usize,
    ) -> Option<ServerId> {
        if late.len() < 2 {
            (self.several_since, self.several_at) = (None, None);
        } else {
            let until = *self.several_since.get_or_insert(now) + SILENT_SEVERAL;
            self.several_at = Some(until).filter(|until| now < *until);
            if self.several_at.is_some() {
                return None;
            }
        }
        let is_kept = planted::is(Bug::SilentBackupKept);
        let backup = late.first().copied().filter(|_| !is_kept)?;
        let others = others();
        if others == 0 {
            return None;
        }
        let is_spare = others >= replicas;
        let pause_max = if is_spare { SPARE_PAUSE_MAX } else { SILENT_PAUSE_MAX };
        let was_well =
            |it: &&ReplacedBackup| it.back_since.is_some_and(|at| at + SILENT_CALM <= now);
        let before = self.backups.get(&backup).filter(|it| !was_well(it));
        let pause = before.map_or(SILENT_PAUSE, |it| it.pause * 2).min(pause_max);
        assert!((SILENT_PAUSE..=SPARE_PAUSE_MAX).contains(&pause), "{backup} pauses {pause:?}");
        let replaced = ReplacedBackup {
            replaced_at: now,
            pause,
            until: now + pause,
            is_spare,
            is_heard: false,
            back_since: None,
            probe_at: now,
        };
        self.backups.insert(backup, replaced);
        Some(backup)
    }

    /// Checks that the limit is within its bounds, and that it falls again if it was raised.
    fn check(&self) {
        assert!((SILENT_AFTER..=SILENT_AFTER_MAX).contains(&self.limit), "{:?}", self.limit);
        assert_eq!(
            self.limit > SILENT_AFTER,
            self.calm_at.is_some(),
            "a raised limit falls, and no other does"
        );
        assert!(
            self.several_at.is_none() || self.several_since.is_some(),
            "no time without several late backups ends"
        );
    }

    /// Records that the backup has answered a message. If a higher limit would have spared its
    /// replacement, and it is needed, the limit rises.
    pub(super) fn record_answer(&mut self, now: Instant, backup: ServerId) {
        let Some(replaced) = self.backups.get_mut(&backup) else { return };
        let is_first = !std::mem::replace(&mut replaced.is_heard, true);
        let is_soon = now <= replaced.replaced_at + SILENT_AFTER_MAX;
        if is_first && is_soon && !replaced.is_spare {
            self.limit = (self.limit * 2).min(SILENT_AFTER_MAX);
            self.calm_at = Some(now + SILENT_CALM);
            self.check();
        }
    }

    pub(super) fn record_death(&mut self, backup: ServerId) {
        self.backups.remove(&backup);
    }

    /// Advances to `now` and returns the backups that may be used again. A backup that answers
    /// skips the rest of its pause unless `has_enough` others are usable and in time: without it
    /// every write would wait, and be refused. It skips most of a long pause if it `is_wanted`:
    /// another backup is late, and too few are left to do without that one.
    pub(super) fn readmit(
        &mut self,
        now: Instant,
        is_wanted: bool,
        has_enough: impl FnOnce() -> bool,
    ) -> Vec<ServerId> {
        if self.calm_at.is_some_and(|at| at <= now) {
            self.limit = (self.limit / 2).max(SILENT_AFTER);
            self.calm_at = (self.limit > SILENT_AFTER).then_some(now + SILENT_CALM);
            if self.calm_at.is_none() {
                self.backups.retain(|_, it| it.back_since.is_none());
            }
            self.check();
        }
        let may_come_back = |it: &ReplacedBackup| it.back_since.is_none() && it.is_heard;
        if !self.backups.values().any(may_come_back) {
            return Vec::new();
        }
        let has_enough = has_enough();
        let is_over = |it: &ReplacedBackup| it.until <= now || is_wanted && it.wanted_at() <= now;
        let is_back = |it: &ReplacedBackup| may_come_back(it) && (is_over(it) || !has_enough);
        let back = self.backups.iter_mut().filter(|(_, it)| is_back(it));
        let back = back.map(|(backup, replaced)| {
            replaced.back_since = Some(now);
            *backup
        });
        back.collect()
    }

    /// Returns the backups that are to be asked now for a sign of life.
    pub(super) fn probes(&mut self, now: Instant) -> Vec<ServerId> {
        let is_due =
            |it: &ReplacedBackup| it.back_since.is_none() && !it.is_heard && it.probe_at <= now;
        let due = self.backups.iter_mut().filter(|(_, it)| is_due(it));
        let probes = due.map(|(backup, replaced)| {
            replaced.probe_at = now + SILENT_PROBE;
            *backup
        });
        probes.collect()
    }

    /// Returns the next time after `now` at which a step is due.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let waiting = self.backups.values().filter(|it| it.back_since.is_none());
        let of_backups = waiting.map(|it| match it.is_heard {
            true if now < it.wanted_at() => it.wanted_at().min(it.until),
            true => it.until,
            false => it.probe_at,
        });
        of_backups.chain(self.several_at).chain(self.calm_at).min()
    }
}

impl ReplacedBackup {
    /// Returns the time from which the backup may be used again if it is wanted. Two slow backups
    /// replace each other at this rate, so it falls as the pauses grow.
    fn wanted_at(&self) -> Instant {
        self.replaced_at + SILENT_AFTER_MAX.max(self.pause / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ServerId = ServerId(2);
    const B: ServerId = ServerId(3);

    fn at(millis: u64) -> Instant {
        Instant(0) + Duration::from_millis(millis)
    }

    #[test]
    #[should_panic(expected = "a raised limit falls")]
    fn a_raised_limit_falls() {
        let limit = SILENT_AFTER * 2;
        SilenceDetector { limit, ..SilenceDetector::default() }.check();
    }

    #[test]
    fn a_raised_limit_is_for_backups_that_are_needed_and_an_excuse_for_all() {
        let mut silence = SilenceDetector::default();
        let even = at(10) + SILENT_AFTER;
        assert_eq!(silence.late_times(at(10)), LateTimes { spare: even, needed: even });
        silence.backup_to_replace(at(0), &BTreeSet::from([A]), 3, || 2);
        silence.record_answer(at(0), A);
        let needed = even + SILENT_AFTER;
        assert_eq!(silence.late_times(at(10)), LateTimes { spare: even, needed });
        silence.excuse(at(100));
        assert_eq!(silence.late_times(at(10)), LateTimes { spare: at(100), needed });
        silence.excuse(at(90));
        assert_eq!(silence.late_times(at(10)), LateTimes { spare: at(100), needed });
        silence.excuse(at(1_000));
        let both = LateTimes { spare: at(1_000), needed: at(1_000) };
        assert_eq!(silence.late_times(at(10)), both);
    }

    #[test]
    fn one_late_backup_is_replaced_at_once_and_the_limit_doubles_when_it_answers_soon() {
        let mut silence = SilenceDetector::default();
        assert_eq!(silence.limit(), SILENT_AFTER);
        assert_eq!(silence.backup_to_replace(at(0), &BTreeSet::new(), 3, || 3), None);
        assert_eq!(silence.backup_to_replace(at(0), &BTreeSet::from([A]), 3, || 2), Some(A));
        assert!(silence.is_silent(A) && !silence.is_silent(B));
        assert!(!silence.is_calm());
        assert_eq!(silence.limit(), SILENT_AFTER, "it may be gone");
        silence.record_answer(at(700), A);
        silence.record_answer(at(701), A);
        assert_eq!(silence.limit(), SILENT_AFTER * 2);
        for _ in 0..10 {
            silence.backup_to_replace(at(1_000), &BTreeSet::from([A]), 3, || 2);
            silence.record_answer(at(1_000), A);
        }
        assert_eq!(silence.limit(), SILENT_AFTER_MAX);
    }

    #[test]
    fn a_slow_backup_that_nobody_needs_is_left_out_for_longer_each_time() {
        let mut silence = SilenceDetector::default();
        let (mut now, mut pauses) = (at(0), Vec::new());
        for _ in 0..8 {
            silence.backup_to_replace(now, &BTreeSet::from([A]), 2, || 2);
            silence.record_answer(now, A);
            let pause = silence.backups[&A].until.since(now);
            pauses.push(pause.as_secs());
            now = now + pause;
            assert_eq!(silence.readmit(now, false, || true), [A]);
            assert_eq!(silence.limit(), SILENT_AFTER, "nobody waits longer for it");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
        // Needed again, it is left out for less.
        silence.backup_to_replace(now, &BTreeSet::from([A]), 2, || 1);
        assert_eq!(silence.next_deadline(now), Some(now));
        silence.record_answer(now, A);
        assert_eq!(silence.readmit(now + SILENT_PAUSE_MAX, false, || true), [A]);
        // A minute later the pauses begin anew.
        now = now + SILENT_PAUSE_MAX + SILENT_CALM;
        silence.backup_to_replace(now, &BTreeSet::from([A]), 2, || 2);
        silence.record_answer(now, A);
        assert_eq!(silence.readmit(now + SILENT_PAUSE, false, || true), [A]);
    }

    #[test]
    fn a_backup_that_was_out_of_reach_does_not_raise_the_limit() {
        let mut silence = SilenceDetector::default();
        silence.backup_to_replace(at(0), &BTreeSet::from([A]), 3, || 2);
        silence.record_answer(at(1_201), A);
        assert_eq!(silence.readmit(at(1_201), false, || true), [A]);
        assert_eq!((silence.limit(), silence.calm_at), (SILENT_AFTER, None));
    }

    #[test]
    fn a_master_that_hears_nobody_replaces_nobody() {
        let mut silence = SilenceDetector::default();
        let both = BTreeSet::from([A, B]);
        assert_eq!(silence.backup_to_replace(at(0), &both, 3, || 0), None);
        assert_eq!(silence.backup_to_replace(at(10_000), &both, 3, || 0), None, "however long");
        assert_eq!(silence.next_deadline(at(10_000)), None, "nothing is waited for");
    }

    #[test]
    fn several_late_backups_are_waited_for_and_replaced_one_by_one() {
        let mut silence = SilenceDetector::default();
        let both = BTreeSet::from([A, B]);
        assert_eq!(silence.backup_to_replace(at(0), &both, 3, || 1), None);
        assert_eq!(silence.next_deadline(at(0)), Some(at(0) + SILENT_SEVERAL));
        assert_eq!(silence.backup_to_replace(at(249), &both, 3, || 1), None);
        assert_eq!(silence.backup_to_replace(at(250), &both, 3, || 1), Some(A));
        assert_eq!(silence.backup_to_replace(at(250), &BTreeSet::from([B]), 3, || 1), Some(B));
        // Both backups answered in between: the waiting time begins again.
        assert_eq!(silence.backup_to_replace(at(400), &BTreeSet::new(), 3, || 1), None);
        assert_eq!(silence.backup_to_replace(at(500), &both, 3, || 1), None);
    }

    #[test]
    fn a_silent_backup_is_asked_and_comes_back_after_a_pause_that_doubles() {
        let mut silence = SilenceDetector::default();
        silence.backup_to_replace(at(0), &BTreeSet::from([A]), 3, || 2);
        assert_eq!(silence.probes(at(0)), [A]);
        assert_eq!(silence.probes(at(1)), []);
        assert_eq!(silence.readmit(at(5_000), false, || true), [], "no message has arrived");
        assert_eq!(silence.probes(at(5_000)), [A]);
        silence.record_answer(at(5_000), A);
        assert_eq!(silence.readmit(at(5_000), false, || true), [A]);
        assert!(!silence.is_silent(A));
        silence.backup_to_replace(at(6_000), &BTreeSet::from([A]), 3, || 2);
        silence.record_answer(at(6_000), A);
        assert_eq!(silence.readmit(at(6_000) + SILENT_PAUSE, false, || true), []);
        assert_eq!(silence.next_deadline(at(7_500)), Some(at(6_000) + SILENT_PAUSE * 2));
        assert_eq!(silence.readmit(at(6_000) + SILENT_PAUSE * 2, false, || true), [A]);
    }

    #[test]
    fn a_silent_backup_that_answers_is_used_at_once_if_there_is_no_other() {
        let mut silence = SilenceDetector::default();
        silence.backup_to_replace(at(0), &BTreeSet::from([A]), 3, || 1);
        assert_eq!(silence.readmit(at(10), false, || false), [], "no message has arrived");
        silence.record_answer(at(20), A);
        assert_eq!(silence.readmit(at(20), false, || true), [], "B can be used");
        assert_eq!(silence.readmit(at(20), false, || false), [A], "B has refused");
        assert!(!silence.is_silent(A));
    }

    #[test]
    fn a_wanted_backup_that_answers_is_used_before_the_end_of_a_long_pause() {
        let mut silence = SilenceDetector::default();
        let mut replaced_at = at(0);
        for pause in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000] {
            silence.backup_to_replace(replaced_at, &BTreeSet::from([A]), 2, || 2);
            silence.record_answer(replaced_at, A);
            let full = Duration::from_millis(pause);
            let wanted = (full / 8).max(SILENT_AFTER_MAX);
            let first = replaced_at + wanted.min(full);
            let before = Instant(first.0 - 1);
            assert_eq!(silence.next_deadline(before), Some(first), "pause {full:?}");
            assert_eq!(silence.readmit(before, true, || true), []);
            if wanted < full {
                assert_eq!(silence.readmit(first, false, || true), [], "others do without it");
            }
            assert_eq!(silence.readmit(first, true, || true), [A]);
            replaced_at = first;
        }
    }

    #[test]
    fn the_limit_halves_after_a_quiet_minute() {
        let mut silence = SilenceDetector::default();
        silence.backup_to_replace(at(0), &BTreeSet::from([A]), 3, || 2);
        silence.backup_to_replace(at(0), &BTreeSet::from([B]), 3, || 2);
        silence.record_answer(at(0), A);
        silence.record_answer(at(0), B);
        assert_eq!(silence.readmit(at(59_999), false, || true), [A, B]);
        assert_eq!(silence.limit(), SILENT_AFTER * 4);
        silence.readmit(at(60_000), false, || true);
        assert_eq!(silence.limit(), SILENT_AFTER * 2);
        assert!(!silence.is_calm());
        silence.readmit(at(120_000), false, || true);
        assert_eq!((silence.limit(), silence.next_deadline(at(120_000))), (SILENT_AFTER, None));
        assert!(silence.is_calm());
    }
}
