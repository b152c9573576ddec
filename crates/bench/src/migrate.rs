//! Moves slots between two servers and watches the move, with commands that Valkey 9 and Ballast
//! share: `CLUSTER MIGRATESLOTS` on the source, then `CLUSTER GETSLOTMIGRATIONS` until the move
//! is over.

use crate::clock;
use crate::control::{Control, text};
use crate::records::{RecordNumber, RecordSet};
use anyhow::{Context, Result, bail, ensure};
use resp::Value;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Instant, Slot, slot_of};

/// Shortest and longest pause between two progress queries. In between the pause is a fiftieth of
/// the elapsed time, so that queries cost little and the end is known to 2 %.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));

/// Move of contiguous slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Lowest slot.
    pub first: Slot,
    /// Highest slot.
    pub last: Slot,
    /// Node id of the target, as returned by `CLUSTER MYID`.
    pub target: String,
    /// Further arguments of the command: Ballast's `POLICY ...`, or none.
    pub policy: Vec<String>,
}

/// Number and size of the records in some slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataVolume {
    /// Number of records in the slots.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// Report of a server on a migration: values by field.
pub type MigrationFields = BTreeMap<String, String>;

/// Result of a successful move.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Moved {
    /// Number of records in the slots.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Seconds from the command until the target served the first slot.
    pub seconds_to_ownership: f64,
    /// Seconds from the command until the last record had arrived; equal to `seconds_to_success`
    /// if the system does not report it.
    pub seconds: f64,
    /// Seconds from the command until the source reported success: the target holds the data as
    /// safely as all its other data, and no longer needs the source.
    pub seconds_to_success: f64,
    /// Last report of the source, field by field.
    pub report: MigrationFields,
}

impl Moved {
    /// Returns the rate of user data until all had arrived, in millions of bytes per second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    /// Returns the number of records per second until all had arrived.
    pub fn records_per_second(&self) -> f64 {
        self.records as f64 / self.seconds
    }
}

impl Move {
    /// Counts the records in these slots. Takes about 40 ns for each record of the data set.
    pub fn volume(&self, records: &RecordSet) -> DataVolume {
        let mut key = Vec::new();
        let is_moved = |record: &u32| {
            key.clear();
            records.write_key(RecordNumber(*record), &mut key);
            (self.first..=self.last).contains(&slot_of(&key))
        };
        let count = (0..records.count()).filter(is_moved).count() as u64;
        DataVolume { records: count, bytes: count * records.user_bytes() }
    }

    /// Runs the move. `volume` comes from [`Move::volume`]; counting here would take processor
    /// time from the servers. `watch` is called with every report of the source.
    pub fn run(
        &self,
        source: &mut Control,
        target: &mut Control,
        volume: DataVolume,
        mut watch: impl FnMut(&MigrationFields),
    ) -> Result<Moved> {
        let known = migration_names(source)?;
        let (first, last) = (self.first.0.to_string(), self.last.0.to_string());
        let start = clock::now();
        let range = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &self.target];
        let policy = self.policy.iter().map(String::as_str);
        source.call(&range.into_iter().chain(policy).collect::<Vec<&str>>())?;
        let mut ownership = Ownership { probe: key_in(self.first), since: None };
        loop {
            ownership.poll(target)?;
            if let Some(report) = reports_beside(source, &known)?.into_iter().next() {
                watch(&report);
                if is_over(&report)? {
                    let seconds_to_success = clock::now().since(start).as_secs_f64();
                    ownership.poll(target)?;
                    let owned = ownership.since.context("success, but the target owns no slot")?;
                    let seconds_to_ownership = owned.since(start).as_secs_f64();
                    let arriving = arriving(&report).map(|took| seconds_to_ownership + took);
                    return Ok(Moved {
                        records: volume.records,
                        bytes: volume.bytes,
                        seconds_to_ownership,
                        seconds: arriving
                            .map_or(seconds_to_success, |at| at.min(seconds_to_success)),
                        seconds_to_success,
                        report,
                    });
                }
            }
            clock::sleep((clock::now().since(start) / 50).clamp(PAUSE.0, PAUSE.1));
        }
    }
}

/// Time at which a server was first seen to serve a key.
struct Ownership {
    probe: String,
    since: Option<Instant>,
}

impl Ownership {
    fn poll(&mut self, target: &mut Control) -> Result<()> {
        if self.since.is_none() && !target.is_refused(&["EXISTS", &self.probe])? {
            self.since = Some(clock::now());
        }
        Ok(())
    }
}

/// Returns the seconds from the first served key until the last record arrived, if reported.
fn arriving(report: &MigrationFields) -> Option<f64> {
    let micros: f64 = report.get("elapsed_us")?.parse().ok()?;
    Some(micros / 1e6)
}

/// Returns whether the report is a success; a failed move is an error.
fn is_over(report: &MigrationFields) -> Result<bool> {
    let state = report.get("state").context("a migration without a state")?;
    match state.as_str() {
        "success" => Ok(true),
        "failed" | "cancelled" | "canceled" => {
            let message = report.get("message").map_or("", String::as_str);
            bail!("the migration ended as {state}: {message}")
        }
        _ => Ok(false),
    }
}

/// Returns the migrations that a server knows (`CLUSTER GETSLOTMIGRATIONS`).
fn reports(server: &mut Control) -> Result<Vec<MigrationFields>> {
    match server.call(&["CLUSTER", "GETSLOTMIGRATIONS"])? {
        Value::Array(migrations) => migrations.into_iter().map(fields).collect(),
        other => bail!("CLUSTER GETSLOTMIGRATIONS answered {other:?}"),
    }
}

fn fields(migration: Value) -> Result<MigrationFields> {
    let pairs: Vec<(Value, Value)> = match migration {
        Value::Map(pairs) => pairs,
        Value::Array(items) => {
            ensure!(items.len() % 2 == 0, "a migration's last field has no value");
            let mut items = items.into_iter();
            std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect()
        }
        other => bail!("expected a migration, got {other:?}"),
    };
    pairs.into_iter().map(|(name, value)| Ok((text(name)?, shown(value)?))).collect()
}

fn shown(value: Value) -> Result<String> {
    match value {
        Value::Integer(number) => Ok(number.to_string()),
        Value::Null => Ok(String::new()),
        value => text(value),
    }
}

/// Returns the names of the migrations that a server knows.
pub fn migration_names(server: &mut Control) -> Result<BTreeSet<String>> {
    Ok(reports(server)?.into_iter().filter_map(|mut report| report.remove("name")).collect())
}

/// Returns the reports of the migrations that do not have one of these names.
pub fn reports_beside(
    server: &mut Control,
    known: &BTreeSet<String>,
) -> Result<Vec<MigrationFields>> {
    let is_new =
        |report: &MigrationFields| report.get("name").is_some_and(|name| !known.contains(name));
    Ok(reports(server)?.into_iter().filter(is_new).collect())
}

/// Returns a key in this slot that belongs to no data set.
fn key_in(slot: Slot) -> String {
    let keys = (0u64..).map(|number| format!("probe-{number}"));
    match keys.into_iter().find(|key| slot_of(key.as_bytes()) == slot) {
        Some(key) => key,
        None => unreachable!("some key falls into every slot"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_slots_hold_about_half_of_the_records() {
        let records = RecordSet::new(20_000, 30, 100).unwrap();
        let up_to = |last| Move { first: Slot(0), last, target: String::new(), policy: Vec::new() };
        assert!((9_700..10_300).contains(&up_to(Slot(8_191)).volume(&records).records));
        assert_eq!(up_to(Slot(16_383)).volume(&records).records, 20_000);
    }

    #[test]
    fn a_report_is_read_from_either_protocol() {
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        let flat = Value::Array(vec![bulk("state"), bulk("success"), bulk("n"), Value::Integer(3)]);
        let map = Value::Map(vec![(bulk("state"), bulk("success")), (bulk("n"), bulk("3"))]);
        assert_eq!(fields(flat).unwrap(), fields(map).unwrap());
        assert!(fields(Value::Array(vec![bulk("state")])).is_err());
    }

    #[test]
    fn a_failed_migration_is_an_error_with_its_message() {
        let report = |state: &str| {
            BTreeMap::from(
                [("state", state), ("message", "no room")]
                    .map(|(name, value)| (name.to_string(), value.to_string())),
            )
        };
        assert!(is_over(&report("success")).unwrap());
        assert!(!is_over(&report("snapshotting")).unwrap());
        assert!(is_over(&report("failed")).unwrap_err().to_string().contains("no room"));
    }

    #[test]
    fn a_probe_lies_in_its_slot() {
        assert_eq!(slot_of(key_in(Slot(9)).as_bytes()), Slot(9));
    }
}
