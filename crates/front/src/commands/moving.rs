//! Slot moves in Redis's syntax: `CLUSTER SETSLOT` moves single slots, `CLUSTER MIGRATION` moves
//! ranges. (`CLUSTER MIGRATESLOTS` is Valkey's syntax.)
//!
//! `SETSLOT` only announces an intent here. Redis tools announce a move on both sides, fetch the
//! keys from the source until it has none left, and then declare the new owner on all servers. The
//! source of an announced move therefore reports no keys. The real migration begins when the target
//! is declared the owner, and the target replies when the migration is complete.

use super::migrate::slot_range;
use super::slots::{cluster_node, names_of, parse_slot, reply_done, server_named};
use super::tasks::{Task, is_over, parse_task, task_name, tasks};
use super::{Call, Cause, Done, NotExecuted, Refusal};
use super::{parse_integer, printable, refused, uppercase_is};
use crate::operators::lock;
use types::{HashRange, MigrationId, ServerId, Slot};
use wire::control::{Answer, Ask, MigrationPolicy, MigrationReport, MigrationState};

/// Returns the owner of a slot in the newest map.
fn owner(call: &Call<'_>, slot: Slot) -> Option<ServerId> {
    call.backend.node().map().tablet_at(slot.first_hash()).map(|tablet| tablet.owner)
}

/// The beginnings of the errors for a node name that no server has.
const UNKNOWN: &str = "Unknown node";
const NOT_KNOWN: &str = "I don't know about node";

/// `CLUSTER SETSLOT slot IMPORTING source | MIGRATING target | NODE owner | STABLE`.
pub(super) fn set_slot(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    let slot = slot_of(call)?;
    let me = call.backend.node().me();
    let is_mine = owner(call, slot) == Some(me);
    match (&call.args[3].to_ascii_uppercase()[..], &call.args[4..]) {
        (b"IMPORTING", [node]) => {
            let number = slot.0;
            if is_mine {
                return Err(refused(format!("ERR I'm already the owner of hash slot {number}")));
            }
            server_named(call, node, NOT_KNOWN)?;
            call.ok()
        }
        (b"MIGRATING", [node]) => {
            let number = slot.0;
            if !is_mine {
                return Err(refused(format!("ERR I'm not the owner of hash slot {number}")));
            }
            let target = server_named(call, node, NOT_KNOWN)?;
            lock(&call.backend.operators.announced).insert(slot.0, target);
            call.ok()
        }
        (b"NODE", [node, words @ ..]) => {
            // Valkey's tools may pass a timeout.
            match words {
                [] => {}
                [word, _] if uppercase_is(word, b"TIMEOUT") => {}
                _ => return Err(Refusal::Syntax.into()),
            }
            let target = server_named(call, node, UNKNOWN)?;
            match target == me {
                true => take_over(call, slot, is_mine),
                // The owner of the slot comes from the coordinator, not from this command.
                false => forget(call, slot),
            }
        }
        (b"STABLE", []) => forget(call, slot),
        _ => Err(refused(
            "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP",
        )),
    }
}

fn forget(call: &mut Call<'_>, slot: Slot) -> Done {
    lock(&call.backend.operators.announced).remove(&slot.0);
    call.ok()
}

/// Moves a slot to this server, and replies when the move is complete or has failed. Otherwise a
/// tool that moves thousands of slots one by one would start thousands of concurrent migrations,
/// each of which needs memory.
fn take_over(call: &mut Call<'_>, slot: Slot, is_mine: bool) -> Done {
    let me = call.backend.node().me();
    let map = call.backend.node().map();
    let moves_here = map
        .moving
        .iter()
        .any(|(range, _, target)| *target == me && range.contains(slot.first_hash()));
    let (answer, is_here) = (call.answer, is_mine && !moves_here);
    match answer {
        None if is_mine => forget(call, slot),
        None => Err(call.backend.ask(Ask::Migrate {
            ranges: vec![HashRange::of_slots(slot, slot)],
            source: None,
            target: me,
            policy: MigrationPolicy::default(),
        })),
        Some(Answer::Started(_) | Answer::Migrations(_)) if is_here => forget(call, slot),
        // Retry when tablets or the map change.
        Some(Answer::Started(_) | Answer::Migrations(_)) if moves_here => {
            Err(NotExecuted::Retry(Cause::Held))
        }
        // The map does not contain the move yet, or no longer, so ask the coordinator.
        Some(Answer::Started(started)) => {
            Err(call.backend.ask(Ask::List { task: started.first().copied() }))
        }
        Some(Answer::Migrations(reports)) => match reports.first() {
            Some(report) if !is_over(report.state) => {
                Err(call.backend.ask(Ask::List { task: Some(report.task) }))
            }
            Some(report) => end(call, report),
            None => Err(refused("ERR the migration of this slot is unknown")),
        },
        Some(answer) => reply_done(call, answer),
    }
}

/// Replies for a finished move after which this server does not own the slot, or no longer.
fn end(call: &mut Call<'_>, report: &MigrationReport) -> Done {
    match report.state {
        MigrationState::Failed => Err(refused(format!("ERR {}", report.message))),
        MigrationState::Cancelled => Err(refused("ERR the migration of this slot was cancelled")),
        MigrationState::Queued
        | MigrationState::Preparing
        | MigrationState::Moving
        | MigrationState::Releasing
        | MigrationState::Success => call.ok(),
    }
}

fn slot_of(call: &Call<'_>) -> Result<Slot, NotExecuted> {
    parse_slot(call.args[2]).ok_or_else(|| refused("ERR Invalid or out of range slot"))
}

/// `CLUSTER GETKEYSINSLOT slot count`.
pub(super) fn get_keys_in_slot(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    let number = |argument| parse_integer(argument).ok_or(Refusal::NotAnInteger);
    let (_, count) = (number(call.args[2])?, number(call.args[3])?);
    let (Some(slot), Ok(count)) = (parse_slot(call.args[2]), usize::try_from(count)) else {
        return Err(refused("ERR Invalid slot or number of keys"));
    };
    let mut found: Vec<Vec<u8>> = Vec::new();
    if !lock(&call.backend.operators.announced).contains_key(&slot.0) {
        let range = HashRange::of_slots(slot, slot);
        let mut next = Some(slot.first_hash());
        // This many buckets exceed a slot of millions of records, within the time of a turn.
        for _ in 0..STEPS_MAX {
            let Some(from) = next.filter(|from| range.contains(*from) && found.len() < count)
            else {
                break;
            };
            next = call.backend.scan(call.session.status.table, from, STEP_BUCKETS, |key, _| {
                if found.len() < count && types::slot_of(key) == slot {
                    found.push(key.to_vec());
                }
            })?;
        }
    }
    call.reply.bulks(&found);
    Ok(())
}

const STEP_BUCKETS: usize = 64;
const STEPS_MAX: usize = 256;

/// `CLUSTER MIGRATION IMPORT first last [first last ...] | STATUS [ID task | ALL] | CANCEL ID task
/// | ALL`.
pub(super) fn migration(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    let args = call.args;
    match &args[2].to_ascii_uppercase()[..] {
        b"IMPORT" => import(call, &args[3..]),
        b"STATUS" => status(call, &args[3..]),
        b"CANCEL" => cancel(call, &args[3..]),
        _ => Err(refused(super::command::unknown_subcommand(&[args[0], args[2]]))),
    }
}

fn import(call: &mut Call<'_>, slots: &[&[u8]]) -> Done {
    match call.answer {
        None => {}
        Some(Answer::Started(started)) => {
            let Some(first) = started.first() else {
                return Err(refused("ERR this node owns these slots already"));
            };
            call.reply.bulk(task_name(*first).as_bytes());
            return Ok(());
        }
        Some(answer) => return reply_done(call, answer),
    }
    let (pairs, odd) = slots.as_chunks::<2>();
    if pairs.is_empty() || !odd.is_empty() {
        return Err(Refusal::Arity.into());
    }
    let ranges = pairs.iter().map(|[first, last]| slot_range(first, last));
    Err(call.backend.ask(Ask::Migrate {
        ranges: ranges.collect::<Result<_, _>>().map_err(refused)?,
        source: None,
        target: call.backend.node().me(),
        policy: MigrationPolicy::default(),
    }))
}

fn status(call: &mut Call<'_>, words: &[&[u8]]) -> Done {
    let wanted = match words {
        [] => None,
        [word] if uppercase_is(word, b"ALL") => None,
        // No task has the number 0.
        [word, name] if uppercase_is(word, b"ID") => {
            Some(parse_task(name).unwrap_or(MigrationId(0)))
        }
        _ => return Err(Refusal::Syntax.into()),
    };
    let reports = match call.answer {
        None => return Err(call.backend.ask(Ask::List { task: wanted })),
        Some(Answer::Migrations(reports)) => reports,
        Some(answer) => return reply_done(call, answer),
    };
    let me = call.backend.node().me();
    let shown = tasks(reports, |report| {
        let is_mine = report.source == me || report.target == me;
        is_mine && wanted.is_none_or(|task| task == report.task)
    });
    call.reply.array(shown.len());
    shown.iter().for_each(|task| describe(call, task));
    Ok(())
}

/// Writes a task in Redis's format.
fn describe(call: &mut Call<'_>, task: &Task<'_>) {
    let MigrationReport { source, target, created, .. } = *task.first();
    let is_import = target == call.backend.node().me();
    let [source, target] = names_of(call, [source, target]);
    let texts = [
        ("id", task.name()),
        ("slots", task.slots()),
        ("source", source),
        ("dest", target),
        ("operation", if is_import { "import" } else { "migrate" }.to_string()),
        ("state", word_of(task.state()).to_string()),
        ("last_error", task.message().to_string()),
    ];
    let numbers = [
        ("retries", 0),
        ("create_time", created.0),
        ("start_time", created.0),
        ("end_time", if task.is_over() { task.updated() } else { 0 }),
        ("write_pause_ms", 0),
    ];
    call.reply.map(texts.len() + numbers.len());
    call.reply.texts(texts);
    call.reply.integers(numbers.map(|(field, number)| (field, number as i64)));
}

/// Returns Redis's name for a state. A move is complete for tools when all records have arrived,
/// although the target serves the range earlier.
fn word_of(state: MigrationState) -> &'static str {
    match state {
        MigrationState::Queued => "none",
        MigrationState::Preparing => "connecting",
        MigrationState::Moving => "accumulate-buffer",
        MigrationState::Releasing => "streaming-buffer",
        MigrationState::Success => "completed",
        MigrationState::Cancelled => "canceled",
        MigrationState::Failed => "failed",
    }
}

fn cancel(call: &mut Call<'_>, words: &[&[u8]]) -> Done {
    let task = match words {
        [word] if uppercase_is(word, b"ALL") => None,
        [word, name] if uppercase_is(word, b"ID") => {
            Some(parse_task(name).unwrap_or(MigrationId(0)))
        }
        _ => return Err(Refusal::Syntax.into()),
    };
    match call.answer {
        None => Err(call.backend.ask(Ask::Cancel { source: None, task })),
        Some(Answer::Cancelled(count)) => {
            let count = if task.is_some() { (*count).min(1) } else { *count };
            call.integer(count)
        }
        Some(answer) => reply_done(call, answer),
    }
}

/// `CLUSTER LINKS`: empty, since bus connections open and close as needed.
pub(super) fn links(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    call.reply.array(0);
    Ok(())
}

/// `CLUSTER COUNT-FAILURE-REPORTS node`: always 0, since servers do not report each other.
pub(super) fn count_failure_reports(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    server_named(call, call.args[2], UNKNOWN)?;
    call.integer(0)
}

/// Refuses a command whose effect only the coordinator can decide.
pub(super) fn coordinators(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    let word = printable(&call.args[1].to_ascii_uppercase(), 64);
    Err(refused(format!(
        "ERR CLUSTER {word} is not supported: servers join with 'ballast serve --join', the \
         coordinator assigns slots, and CLUSTER MIGRATESLOTS moves them"
    )))
}

/// `CLUSTER REPLICAS node`: always empty.
pub(super) fn replicas(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    server_named(call, call.args[2], UNKNOWN)?;
    call.reply.array(0);
    Ok(())
}
