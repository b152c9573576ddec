//! `ballast migrate`: starts a migration, and shows its progress and result.

use crate::node_connection::NodeConnection;
use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use resp::Value;
use std::collections::BTreeMap;
use std::time::Duration;

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
    /// best effort.
    #[arg(long, default_value_t = 10)]
    share: u8,
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
    let mut source = NodeConnection::open(&arguments.from)?;
    let target = match arguments.to.contains(':') {
        true => node_id(&mut NodeConnection::open(&arguments.to)?)?,
        false => arguments.to.clone(),
    };
    let known = names(&mut source)?;
    let request = request(&arguments, &target)?;
    let request: Vec<&[u8]> = request.iter().map(|word| word.as_bytes()).collect();
    source.ask(&request)?;
    if arguments.detach {
        println!("started; CLUSTER GETSLOTMIGRATIONS shows the progress");
        return Ok(());
    }
    watch(&mut source, &known)
}

fn node_id(connection: &mut NodeConnection) -> anyhow::Result<String> {
    match connection.ask(&[b"CLUSTER", b"MYID"])? {
        Value::Bulk(id) => Ok(String::from_utf8_lossy(&id).into_owned()),
        other => bail!("unexpected reply to CLUSTER MYID: {other:?}"),
    }
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
    for (name, value) in [
        ("SHARE", arguments.share.to_string()),
        ("PARTITIONS", arguments.partitions.to_string()),
        ("PULL-BYTES", arguments.pull_bytes.to_string()),
        ("PRIORITY", arguments.priority.clone()),
    ] {
        words.extend([name.into(), value]);
    }
    Ok(words)
}

/// One migration as reported by the server.
struct Report {
    name: String,
    state: String,
    message: String,
    numbers: BTreeMap<String, u64>,
}

fn reports(source: &mut NodeConnection) -> anyhow::Result<Vec<Report>> {
    let Value::Array(list) = source.ask(&[b"CLUSTER", b"GETSLOTMIGRATIONS"])? else {
        bail!("unexpected reply to CLUSTER GETSLOTMIGRATIONS: not a list");
    };
    Ok(list.into_iter().map(report).collect())
}

fn report(value: Value) -> Report {
    let mut report = Report {
        name: String::new(),
        state: String::new(),
        message: String::new(),
        numbers: BTreeMap::new(),
    };
    let Value::Array(fields) = value else { return report };
    for pair in fields.chunks_exact(2) {
        let Value::Bulk(field) = &pair[0] else { continue };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match (&field[..], &pair[1]) {
            (b"name", Value::Bulk(name)) => report.name = text(name),
            (b"state", Value::Bulk(state)) => report.state = text(state),
            (b"message", Value::Bulk(message)) => report.message = text(message),
            (_, Value::Integer(number)) => {
                report.numbers.insert(text(field), u64::try_from(*number).unwrap_or(0));
            }
            _ => {}
        }
    }
    report
}

fn names(source: &mut NodeConnection) -> anyhow::Result<Vec<String>> {
    Ok(reports(source)?.into_iter().map(|report| report.name).collect())
}

const POLL: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "a person watches: ten looks a second are enough")]
fn watch(source: &mut NodeConnection, known: &[String]) -> anyhow::Result<()> {
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{spinner} {bar:40} {percent:>3} %  {human_pos} of {human_len} records  {msg}",
    )?);
    loop {
        let mine: Vec<Report> =
            reports(source)?.into_iter().filter(|report| !known.contains(&report.name)).collect();
        let sum = |field: &str| -> u64 {
            mine.iter().filter_map(|report| report.numbers.get(field)).sum()
        };
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

fn is_over(report: &Report) -> bool {
    ["success", "failed", "cancelled"].contains(&report.state.as_str())
}

fn print_result(mine: &[Report], records: u64, bytes: u64, micros: u64) -> anyhow::Result<()> {
    if let Some(bad) = mine.iter().find(|report| report.state != "success") {
        bail!("the migration {}: {}", bad.state, bad.message);
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
