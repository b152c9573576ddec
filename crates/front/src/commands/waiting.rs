//! `WAIT` and `WAITAOF`: reply when this reactor's earlier writes are on enough servers.

use super::command::flag::ALONE;
use super::command::{Family, Keys, command};
use super::numbers::parse_integer_within;
use super::{Call, Cause, Done, NotExecuted, Refusal, parse_integer, refused};
use crate::operators::clients::Unblocked;
use node::Safety;
use std::time::Duration;

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@connection"),
    commands: &[
        command("wait", 3, ALONE, Keys::Unnamed, wait),
        command("waitaof", 4, ALONE, Keys::Unnamed, wait_for_disks),
    ],
};

/// `WAIT servers milliseconds`.
fn wait(call: &mut Call<'_>) -> Done {
    let servers = parse_integer(call.args[1]).ok_or(Refusal::NotAnInteger)?;
    let patience = parse_timeout(call.args[2])?;
    let safety = wait_until(call, patience, |safety| safety.others as i64 >= servers)?;
    call.integer(safety.others as i64)
}

/// `WAITAOF own others milliseconds`.
fn wait_for_disks(call: &mut Call<'_>) -> Done {
    let own = parse_integer_within(call.args[1], 0..=1)?;
    let others = parse_integer_within(call.args[2], 0..=i64::MAX)?;
    let patience = parse_timeout(call.args[3])?;
    if own == 1 && !call.backend.can_sync() {
        return Err(refused(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    let safety = wait_until(call, patience, |safety| {
        i64::from(safety.is_on_disk) >= own && safety.others_on_disk as i64 >= others
    })?;
    call.reply.array(2);
    call.reply.integer(i64::from(safety.is_on_disk));
    call.integer(safety.others_on_disk as i64)
}

/// Parses a time limit; `None` means no limit.
fn parse_timeout(text: &[u8]) -> Result<Option<Duration>, Refusal> {
    match parse_integer(text) {
        Some(0) => Ok(None),
        Some(millis @ 1..) => Ok(Some(Duration::from_millis(millis as u64).min(LONGEST))),
        Some(_) => Err(Refusal::because("ERR timeout is negative")),
        None => Err(Refusal::because("ERR timeout is not an integer or out of range")),
    }
}

/// The longest wait that an `Instant` can represent.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the replication state of earlier writes, once it is sufficient or the time limit has
/// passed. A transaction cannot wait, so its time limit passes at once.
fn wait_until(
    call: &mut Call<'_>,
    patience: Option<Duration>,
    is_enough: impl Fn(&Safety) -> bool,
) -> Result<Safety, NotExecuted> {
    if call.past.unblocked == Some(Unblocked::Error) {
        return Err(refused("UNBLOCKED client unblocked via CLIENT UNBLOCK"));
    }
    let safety = call.backend.safety();
    let until = patience.map(|patience| call.past.began.unwrap_or(call.now) + patience);
    let is_over = call.past.unblocked.is_some()
        || call.backend.staged.is_some()
        || until.is_some_and(|until| until <= call.now);
    match is_enough(&safety) || is_over {
        true => Ok(safety),
        false => Err(NotExecuted::Retry(Cause::Replicas(until))),
    }
}
