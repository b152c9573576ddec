//! `ballast migrate`: starts a migration, and shows its progress and result.

use crate::connecting;
use anyhow::{Context, bail};
use bench::control::{Control, text};
use bench::migrate::{MigrationFields, migration_names, reports_beside};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use resp::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use types::limits::LATENCY_TARGET_MICROS_MAX;

/// Move slots from one server to another while they are in use.
#[derive(Args)]
pub(crate) struct MigrateArguments {
    /// Server that owns the slots, as HOST:PORT.
    #[arg(long, value_name = "HOST:PORT")]
    from: String,
    /// New owner, as HOST:PORT or as a 40-digit node id.
    #[arg(long, value_name = "SERVER")]
    to: String,
    /// Slots to move: one, or first-last. May be given several times.
    #[arg(long = "slots", value_name = "FIRST-LAST", required = true)]
    slots: Vec<String>,
    /// Least share of each reactor's time for the move while clients are busy, in percent. 100 is
    /// best effort. With --latency-p99, the most. Default: 10; with --latency-p99: 100.
    #[arg(long)]
    share: Option<u8>,
    /// Latency that 99 % of the requests on both servers are not to exceed during the move, as
    /// 500us, 2ms or 1s. The move gets the time that this leaves. 0: no limit.
    #[arg(long, value_name = "TIME", value_parser = latency, default_value = "0")]
    latency_p99: u32,
    /// Partitions of the range that are pulled concurrently.
    #[arg(long, default_value_t = 8)]
    partitions: u16,
    /// Most bytes of one pull.
    #[arg(long, default_value_t = 64 << 10)]
    pull_bytes: u32,
    /// Way in which reads get records that have not arrived: `off`, `immediate`, or the most
    /// records of one priority pull.
    #[arg(long, default_value = "16")]
    priority: String,
    /// Return at once, without waiting for the end.
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(arguments: MigrateArguments) -> anyhow::Result<()> {
    let mut source = connect(&arguments.from)?;
    let target = match arguments.to.contains(':') {
        true => text(connect(&arguments.to)?.call(&["CLUSTER", "MYID"])?)?,
        false => arguments.to.clone(),
    };
    let known = migration_names(&mut source)?;
    let request = request(&arguments, &target)?;
    let request: Vec<&str> = request.iter().map(String::as_str).collect();
    if let Value::Error(text) = source.ask(&request)? {
        bail!("the server replied: {}", String::from_utf8_lossy(&text));
    }
    if arguments.detach {
        println!("started; CLUSTER GETSLOTMIGRATIONS shows the progress");
        return Ok(());
    }
    watch(&mut source, &known)
}

fn connect(address: &str) -> anyhow::Result<Control> {
    let stream = connecting::connect(address)
        .with_context(|| format!("no server answers at {address}: is it running?"))?;
    Control::over(stream)
}

fn request(arguments: &MigrateArguments, target: &str) -> anyhow::Result<Vec<String>> {
    let mut words: Vec<String> = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"].map(String::from).into();
    for slots in &arguments.slots {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        for slot in [first, last] {
            let number: u16 = slot.trim().parse().with_context(|| {
                format!("invalid slots '{slots}': use one slot, or first-last, from 0 to 16383")
            })?;
            words.push(number.to_string());
        }
    }
    words.extend(["NODE".into(), target.into(), "POLICY".into()]);
    if let Some(share) = arguments.share {
        words.extend(["SHARE".into(), share.to_string()]);
    }
    for (name, value) in [
        ("LATENCY-P99", arguments.latency_p99.to_string()),
        ("PARTITIONS", arguments.partitions.to_string()),
        ("PULL-BYTES", arguments.pull_bytes.to_string()),
        ("PRIORITY", arguments.priority.clone()),
    ] {
        words.extend([name.into(), value]);
    }
    Ok(words)
}

/// Parses a latency: a whole number with a unit. Returns microseconds.
fn latency(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let micros: u64 = match &text[digits.len()..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "" if digits == "0" => 1,
        _ => return Err("use a whole number with a unit, as 500us, 2ms or 1s".to_string()),
    };
    let number: u64 = digits.parse().map_err(|_| format!("'{digits}' is not a whole number"))?;
    let micros = number.checked_mul(micros).and_then(|micros| u32::try_from(micros).ok());
    let allowed = micros.filter(|micros| *micros <= LATENCY_TARGET_MICROS_MAX);
    allowed.ok_or_else(|| format!("at most {} s", LATENCY_TARGET_MICROS_MAX / 1_000_000))
}

const POLL: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "a person watches: ten looks a second are enough")]
fn watch(source: &mut Control, known: &BTreeSet<String>) -> anyhow::Result<()> {
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{spinner} {bar:40} {percent:>3} %  {human_pos} of {human_len} records  {msg}",
    )?);
    loop {
        let mine = reports_beside(source, known)?;
        let number = |report: &MigrationFields, field: &str| report.get(field)?.parse::<u64>().ok();
        let sum =
            |field: &str| -> u64 { mine.iter().filter_map(|report| number(report, field)).sum() };
        bar.set_length(sum("records_total"));
        bar.set_position(sum("records_moved").min(sum("records_total")));
        let micros = sum("elapsed_us").max(1);
        let (records, bytes) = (sum("records_moved"), sum("bytes_moved"));
        let left = sum("records_total").saturating_sub(records);
        bar.set_message(format!(
            "{:.0} MB/s  {:.1} s left",
            bytes as f64 / micros as f64,
            left as f64 * micros as f64 / records.max(1) as f64 / 1e6
        ));
        if !mine.is_empty() && mine.iter().all(is_over) {
            bar.finish_and_clear();
            return print_result(&mine, records, bytes, micros);
        }
        std::thread::sleep(POLL);
    }
}

fn field<'r>(report: &'r MigrationFields, name: &str) -> &'r str {
    report.get(name).map_or("", String::as_str)
}

fn is_over(report: &MigrationFields) -> bool {
    ["success", "failed", "cancelled"].contains(&field(report, "state"))
}

fn print_result(
    mine: &[MigrationFields],
    records: u64,
    bytes: u64,
    micros: u64,
) -> anyhow::Result<()> {
    if let Some(bad) = mine.iter().find(|report| field(report, "state") != "success") {
        bail!("the migration {}: {}", field(bad, "state"), field(bad, "message"));
    }
    let seconds = micros as f64 / 1e6;
    println!(
        "moved {records} records, {:.1} MB, in {seconds:.2} s: {:.0} MB/s, {:.0} k records/s",
        bytes as f64 / 1e6,
        bytes as f64 / 1e6 / seconds,
        records as f64 / 1e3 / seconds
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_has_a_unit_and_is_at_most_ten_seconds() {
        for (text, micros) in [("500us", 500), ("2ms", 2_000), ("10s", 10_000_000), ("0", 0)] {
            assert_eq!(latency(text), Ok(micros), "{text}");
        }
        for text in ["", "2", "ms", "2 ms", "1.5ms", "-1ms", "2m", "11s", "18446744073709551615s"] {
            assert!(latency(text).is_err(), "{text} was taken");
        }
    }
}
