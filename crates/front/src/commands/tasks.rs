//! Migration tasks as operators see them: a task contains all migrations of one request.
//!
//! A range that covers several tablets is moved by several migrations. A task's state is that of
//! its least advanced migration, and a task has failed if one of its migrations has.

use types::{MigrationId, Slot};
use wire::control::{MigrationProgress, MigrationReport, MigrationState};

/// The migrations of one request, at least one, in order of their ranges.
pub(super) struct Task<'r> {
    parts: Vec<&'r MigrationReport>,
}

/// Returns the tasks of the migrations selected by `is_meant`, newest first.
pub(super) fn tasks(
    reports: &[MigrationReport],
    is_meant: impl Fn(&MigrationReport) -> bool,
) -> Vec<Task<'_>> {
    let mut parts: Vec<&MigrationReport> = reports.iter().filter(|r| is_meant(r)).collect();
    parts.sort_by_key(|report| (std::cmp::Reverse(report.task), report.range));
    let same = |a: &&MigrationReport, b: &&MigrationReport| a.task == b.task;
    parts.chunk_by(same).map(|parts| Task { parts: parts.to_vec() }).collect()
}

/// Returns a task's name for operators: 40 hexadecimal digits, as in Valkey.
pub(super) fn task_name(task: MigrationId) -> String {
    format!("{:040x}", task.0)
}

/// Parses a task's name.
pub(super) fn parse_task(name: &[u8]) -> Option<MigrationId> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() == 40)?;
    let (zeros, number) = name.split_at_checked(24)?;
    let is_one = zeros.bytes().all(|digit| digit == b'0')
        && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(number, 16).ok().filter(|_| is_one)?;
    Some(MigrationId(number))
}

impl Task<'_> {
    /// Returns one of the migrations, for properties that all share.
    pub(super) fn first(&self) -> &MigrationReport {
        self.parts[0]
    }

    pub(super) fn name(&self) -> String {
        task_name(self.first().task)
    }

    /// Returns the slots that the task moves, as `0-9 20-29`.
    pub(super) fn slots(&self) -> String {
        let mut ranges: Vec<(Slot, Slot)> = Vec::new();
        for (first, last) in self.parts.iter().map(|part| part.range.slots()) {
            match ranges.last_mut() {
                Some(before) if before.1.0 + 1 >= first.0 => before.1 = last,
                Some(_) | None => ranges.push((first, last)),
            }
        }
        let texts: Vec<String> =
            ranges.iter().map(|(first, last)| format!("{}-{}", first.0, last.0)).collect();
        texts.join(" ")
    }

    /// Returns the task's state.
    pub(super) fn state(&self) -> MigrationState {
        let states = self.parts.iter().map(|part| part.state);
        states.min_by_key(|state| rank(*state)).unwrap_or(MigrationState::Success)
    }

    /// Returns whether all migrations have ended.
    pub(super) fn is_over(&self) -> bool {
        is_over(self.state())
    }

    /// Returns the reason of a failure, or an empty text.
    pub(super) fn message(&self) -> &str {
        let messages = self.parts.iter().map(|part| &part.message[..]);
        messages.rev().find(|message| !message.is_empty()).unwrap_or_default()
    }

    /// Returns the time of the last update, in milliseconds.
    pub(super) fn updated(&self) -> u64 {
        self.parts.iter().map(|part| part.updated.0).max().unwrap_or(0)
    }

    /// Returns the combined progress of all migrations.
    pub(super) fn progress(&self) -> MigrationProgress {
        let mut sum = MigrationProgress::default();
        for part in &self.parts {
            let MigrationProgress { records, bytes, records_total, priority_records, elapsed_ns } =
                part.progress;
            sum.records += records;
            sum.bytes += bytes;
            sum.records_total += records_total;
            sum.priority_records += priority_records;
            // The migrations run concurrently.
            sum.elapsed_ns = sum.elapsed_ns.max(elapsed_ns);
        }
        sum
    }
}

/// Returns whether a migration has ended.
pub(super) fn is_over(state: MigrationState) -> bool {
    rank(state) > rank(MigrationState::Releasing)
}

/// Orders states by progress. Among those that have ended, failures come first.
fn rank(state: MigrationState) -> u8 {
    match state {
        MigrationState::Queued => 0,
        MigrationState::Preparing => 1,
        MigrationState::Moving => 2,
        MigrationState::Releasing => 3,
        MigrationState::Failed => 4,
        MigrationState::Cancelled => 5,
        MigrationState::Success => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{HashRange, ServerId, UnixMillis};

    fn part(id: u64, task: u64, slots: (u16, u16), state: MigrationState) -> MigrationReport {
        MigrationReport {
            migration: MigrationId(id),
            task: MigrationId(task),
            range: HashRange::of_slots(Slot(slots.0), Slot(slots.1)),
            source: ServerId(1),
            target: ServerId(2),
            state,
            message: if state == MigrationState::Failed { "no room".into() } else { "".into() },
            created: UnixMillis(1),
            updated: UnixMillis(id),
            progress: MigrationProgress {
                records: 5,
                elapsed_ns: id,
                ..MigrationProgress::default()
            },
        }
    }

    #[test]
    fn migrations_of_one_request_are_one_task_that_is_as_far_as_the_slowest() {
        use MigrationState::{Failed, Moving, Success};
        let reports = [
            part(9, 9, (5, 5), Success),
            part(8, 6, (30, 39), Success),
            part(7, 6, (10, 19), Moving),
            part(6, 6, (0, 9), Failed),
            part(5, 4, (1, 1), Success),
            part(4, 4, (0, 0), Failed),
        ];
        let tasks = tasks(&reports, |report| report.migration.0 != 9);
        let told: Vec<_> = tasks.iter().map(|t| (t.slots(), t.state(), t.message())).collect();
        assert_eq!(
            told,
            [("0-19 30-39".to_string(), Moving, "no room"), ("0-1".to_string(), Failed, "no room")]
        );
        assert_eq!(tasks[0].name(), format!("{:040x}", 6));
        assert_eq!((tasks[0].updated(), tasks[0].is_over(), tasks[1].is_over()), (8, false, true));
        let MigrationProgress { records, elapsed_ns, .. } = tasks[0].progress();
        assert_eq!((records, elapsed_ns), (15, 8));
    }

    #[test]
    fn a_task_is_found_by_its_name() {
        let name = task_name(MigrationId(u64::MAX));
        assert_eq!(parse_task(name.as_bytes()), Some(MigrationId(u64::MAX)));
        for wrong in ["", "7", &"x".repeat(40), &"f".repeat(40), &"é".repeat(20)] {
            assert_eq!(parse_task(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
