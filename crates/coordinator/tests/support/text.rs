//! Textual descriptions of effects, for golden scripts.

use types::{HashRange, Incarnation, ServerId};
use wire::control::{
    Answer, ClusterMap, FromCoordinator, Intent, JoinReply, LogRequest, MigrationReport,
    MigrationRequest, RecoveryLog, RecoveryPartition, RecoveryReport, RecoveryRequest,
    RecoverySegment, ServerInfo, TabletInfo,
};

pub fn message(message: &FromCoordinator) -> String {
    match message {
        FromCoordinator::Join(JoinReply::Welcome { server, cluster, seed }) => {
            format!("welcome {server} to {cluster}, seed {seed}")
        }
        FromCoordinator::Map(map) => cluster_map(map),
        FromCoordinator::Answer { request, answer } => {
            format!("answer {request}: {}", self::answer(answer))
        }
        FromCoordinator::Migration(request) => migration_request(request),
        FromCoordinator::Log(request) => log_request(request),
        FromCoordinator::Recovery(RecoveryRequest::Recover(part)) => recover(part),
        FromCoordinator::Recovery(RecoveryRequest::RecoveryConfirmed { .. })
        | FromCoordinator::Join(_)
        | FromCoordinator::Clock(_)
        | FromCoordinator::Mark(_)
        | FromCoordinator::Liveness(_) => message.to_string(),
    }
}

fn migration_request(request: &MigrationRequest) -> String {
    match request {
        MigrationRequest::Prepare(which) => format!("prepare {}", intent(which)),
        MigrationRequest::Start(which) => format!("start {}", intent(which)),
        MigrationRequest::Outcome { migration, accepted } => {
            let verdict = if *accepted { "accepted" } else { "never" };
            format!("outcome of {migration}: {verdict}")
        }
        MigrationRequest::Forget { migration, remaining } => {
            format!("keep of {migration} only {}", ranges(remaining))
        }
        MigrationRequest::Measure { .. }
        | MigrationRequest::Decide { .. }
        | MigrationRequest::Finished { .. } => request.to_string(),
    }
}

fn log_request(request: &LogRequest) -> String {
    match request {
        LogRequest::ManifestRecorded { number } => format!("manifest-log recorded {}", number.0),
        LogRequest::ReadManifest { log, replica: (segment, epoch), first } => {
            format!("read manifest {log} manifest-log {} epoch {} from {first}", segment.0, epoch.0)
        }
        LogRequest::Fence { .. } | LogRequest::FreeLog { .. } => request.to_string(),
    }
}

fn intent(intent: &Intent) -> String {
    format!(
        "{} {} {}@{} to {}@{} {}, {} bytes",
        intent.migration,
        intent.range,
        intent.source,
        intent.source_epoch,
        intent.target,
        intent.target_epoch,
        incarnations(&intent.target_incarnations),
        intent.bytes
    )
}

fn recover(part: &RecoveryPartition) -> String {
    let log = |log: &RecoveryLog| format!("{} {}", log.dead, incarnations(&log.old_incarnations));
    let floor = match part.clock_floor.0 {
        // No backup has reported a clock.
        105 => String::new(),
        floor => format!(" behind clock {floor}"),
    };
    let keeping = if part.keeps { " keeping what there is" } else { "" };
    format!(
        "recover {}{keeping}{floor} of {} as {} {} from {}",
        part.range,
        joined(&part.logs, log),
        part.epoch,
        incarnations(&part.incarnations),
        joined(&part.segments, segment)
    )
}

fn segment(segment: &RecoverySegment) -> String {
    let length = match segment.content {
        Some(content) if content.length == segment.common_prefix => content.length.to_string(),
        Some(content) => format!("{}, {} common", content.length, segment.common_prefix),
        None => format!("open, {} common", segment.common_prefix),
    };
    let places = segment.places.iter().map(|place| place.backup.to_string());
    format!(
        "{} {} ({length}, {})",
        segment.log,
        segment.segment,
        places.collect::<Vec<_>>().join(" ")
    )
}

pub fn recovery(report: &RecoveryReport) -> String {
    let part = |&(range, master): &(HashRange, ServerId)| format!("{range} {master}");
    let missing = match report.missing_total {
        0 => String::new(),
        total => format!(" missing {total}: {}", joined(&report.missing, |s| s.to_string())),
    };
    let waits = match &report.waits_for[..] {
        [] => String::new(),
        migrations => format!(" waits for {}", joined(migrations, |m| m.to_string())),
    };
    let message = match &report.message[..] {
        "" => String::new(),
        message => format!(" ({message})"),
    };
    format!(
        "\n    {} {:?} owns {} parts {}{missing}{waits}{message}",
        report.dead,
        report.state,
        ranges(&report.ranges),
        joined(&report.parts, part)
    )
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Health(health) => format!("{health:?}"),
        Answer::Started(migrations) => format!("started {}", joined(migrations, |m| m.to_string())),
        Answer::Cancelled(count) => format!("cancelled {count}"),
        Answer::Migrations(reports) => format!("migrations{}", joined(reports, report)),
        Answer::Flushed { .. } => "flushed".into(),
        Answer::Recoveries(reports) => format!("recoveries{}", joined(reports, recovery)),
        Answer::Rebuild(report) => format!("{report:?}"),
        Answer::Map(map) => cluster_map(map),
        Answer::Standing(None) => "stands".to_owned(),
        Answer::Standing(Some(doubt)) => format!("in doubt: {doubt}"),
        Answer::Lease(Some(grant)) => format!("{} for {} ms", grant.lease, grant.term),
        Answer::Lease(None) => "the lease has ended".to_owned(),
        Answer::Clocks(reports) => format!("clocks {}", joined(reports, |it| format!("{it:?}"))),
        Answer::LossAccepted(count) => format!("loss of {count} accepted"),
        Answer::Refused(reason) => format!("refused: {reason}"),
    }
}

pub fn report(report: &MigrationReport) -> String {
    let MigrationReport {
        migration,
        task,
        range,
        source,
        target,
        state,
        message,
        created,
        updated,
        progress,
    } = report;
    let together = if task == migration { String::new() } else { format!(" with {task}") };
    let message = if message.is_empty() { String::new() } else { format!(" ({message})") };
    format!(
        "\n    {migration}{together} {range} {source} to {target} {state:?}{message} created {} \
         updated {} records {}/{}",
        created.0, updated.0, progress.records, progress.records_total
    )
}

pub fn cluster_map(map: &ClusterMap) -> String {
    let (term, count) = (map.version >> 32, map.version & 0xffff_ffff);
    let moving = |&(range, source, target): &(HashRange, ServerId, ServerId)| {
        format!("{range} {source} to {target}")
    };
    format!(
        "map {term}.{count}: {}; {}; moving {}",
        joined(&map.servers, server),
        joined(&map.tablets, tablet),
        joined(&map.moving, moving)
    )
}

fn server(server: &ServerInfo) -> String {
    let ServerInfo { id, connected, is_dead, in_recovery, rack, .. } = server;
    let rack = if rack.is_empty() { String::new() } else { format!("/{rack}") };
    let state = match (connected, is_dead, in_recovery) {
        (true, false, false) => "",
        (false, false, false) => "(away)",
        (false, true, true) => "(in recovery)",
        (false, true, false) => "(dead)",
        other => panic!("{id} cannot be {other:?}"),
    };
    format!("{id}{rack}{state}")
}

fn tablet(tablet: &TabletInfo) -> String {
    let born = if tablet.is_born { " born" } else { "" };
    let incarnations = incarnations(&tablet.incarnations);
    format!("{} {}@{} {incarnations}{born}", tablet.range, tablet.owner, tablet.epoch)
}

/// Describes runs of consecutive numbers by first and last.
fn incarnations(incarnations: &[Incarnation]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for incarnation in incarnations {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == incarnation.0 => *last = incarnation.0,
            _ => runs.push((incarnation.0, incarnation.0)),
        }
    }
    let run = |&(first, last): &(u64, u64)| match first == last {
        true => format!("n{first}"),
        false => format!("n{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join("+")
}

fn ranges(ranges: &[HashRange]) -> String {
    joined(ranges, |range| range.to_string())
}

fn joined<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    match items {
        [] => "nothing".into(),
        _ => items.iter().map(text).collect::<Vec<_>>().join(", "),
    }
}
