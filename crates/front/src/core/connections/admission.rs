//! Admission and accounting of commands: checks before the execution, counters and timing after it.

use super::queue::RequestState;
use super::turn::{ConnectionTurn, is_short};
use crate::commands::{Cause, Command, NotExecuted, Past, Refusal, flag, refused};
use crate::core::backend::Backend;
use crate::operators::executions::{Execution, is_slow_possible};
use crate::operators::pause::Paused;
use crate::session::Session;
use node::LeaseState;
use std::time::Duration;
use types::Instant;

/// The error of a command that needs a password first.
pub(super) const NO_PASSWORD: &str = "NOAUTH Authentication required.";

/// Returns whether the client has to give a password before most commands.
#[inline]
pub(super) fn lacks_password(session: &Session, backend: &Backend) -> bool {
    !session.is_authenticated && backend.configuration.access.needs_password()
}

/// Checks whether a command with this number of arguments may be executed now. `state` is the state of
/// the request from earlier attempts.
#[inline]
pub(super) fn admit(
    command: &Command,
    arguments: usize,
    state: &RequestState,
    session: &Session,
    turn: &ConnectionTurn<'_>,
) -> Result<(), NotExecuted> {
    if !command.has(flag::NO_AUTH) && lacks_password(session, turn.backend) {
        return Err(refused(NO_PASSWORD));
    }
    if !command.takes(arguments) {
        return Err(Refusal::Arity.into());
    }
    let needs_data = !command.has(flag::LOADING) || command.has(flag::DATA);
    if turn.backend.engine.is_loading() && needs_data {
        return Err(refused("LOADING Redis is loading the dataset in memory"));
    }
    if needs_data {
        match turn.backend.engine.lease(turn.now) {
            LeaseState::Valid => {}
            LeaseState::Lapsed => return Err(NotExecuted::Retry(Cause::Held)),
            LeaseState::Lost => return Err(refused(LEASE_LOST)),
        }
        turn.backend.engine.note_data();
    }
    let transaction = state.transaction.as_ref();
    let runs_writes =
        transaction.is_some_and(|it| it.writes() && command.has(flag::RUNS_TRANSACTION));
    let writes = command.has(flag::WRITE) || runs_writes;
    if writes && turn.backend.engine.refuses_writes() {
        return Err(refused(CANNOT_KEEP));
    }
    if writes && turn.backend.engine.lacks_replicas() {
        return Err(wait_for_replicas(state.past, turn.now));
    }
    match turn.backend.operators.pause.at(turn.now) {
        None => Ok(()),
        Some(Paused::All) => Err(NotExecuted::Retry(Cause::Paused)),
        Some(Paused::Writes) if writes => Err(NotExecuted::Retry(Cause::Paused)),
        Some(Paused::Writes) => Ok(()),
    }
}

/// Makes a write wait for enough replicas for a short time, and then refuses it. The check comes
/// before the execution, because an executed write must not be refused.
#[cold]
fn wait_for_replicas(past: Past, now: Instant) -> NotExecuted {
    let until = past.began.unwrap_or(now) + REPLICAS_PATIENCE;
    match until <= now || past.unblocked.is_some() {
        true => refused(NO_REPLICAS),
        false => NotExecuted::Retry(Cause::Replicas(Some(until))),
    }
}

/// Counts a command that was refused before execution, such as a skipped request or one refused
/// within `MULTI`. `command` is `None` if there is no such command.
#[cold]
pub(super) fn count_refusal(command: Option<&'static Command>, text: &str, backend: &Backend) {
    backend.counts.error(text.as_bytes());
    if let Some(command) = command {
        backend.counts.of_command(command.number()).rejected.add(1);
    }
}

/// The error begins as in Redis, because clients match on it: they ask other servers for the owner.
const LEASE_LOST: &str = "CLUSTERDOWN The server reaches too few of its backups, so that another \
                          server may have taken over its slots: ask another server";

/// The error begins as in Redis, because clients match on it.
const CANNOT_KEEP: &str = "MISCONF Errors writing to disk: writes are refused until it works again. \
                           See the server's log, and INFO persistence.";

/// The error for a write that fewer servers than `min-replicas-to-write` would receive.
const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write: fewer backups are \
                           reachable than min-replicas-to-write requires. See INFO persistence.";

/// Longest wait of a write for enough replicas before it is refused. It covers the time to replace
/// a backup that does not respond.
const REPLICAS_PATIENCE: Duration = Duration::from_millis(100);

pub(super) struct AnsweredCommand<'a> {
    pub(super) command: &'static Command,
    pub(super) args: &'a [&'a [u8]],
    /// True if the command passed admission.
    pub(super) is_admitted: bool,
}

impl AnsweredCommand<'_> {
    /// Updates counters, `MONITOR` and `SLOWLOG` for the command.
    #[inline]
    pub(super) fn count(&self, reply: &[u8], session: &Session, turn: &mut ConnectionTurn<'_>) {
        let backend = &*turn.backend;
        let counts = backend.counts.of_command(self.command.number());
        if reply.first() == Some(&b'-') {
            counts.failed.add(u64::from(self.is_admitted));
            backend.counts.error(&reply[1..]);
        }
        if !self.is_admitted {
            return counts.rejected.add(1);
        }
        let monitors = &backend.operators.monitors;
        if monitors.is_watched() {
            self.execution(session, turn).show(backend.node(), monitors);
        }
        let meter = &mut turn.meter;
        meter.add(self.command.number());
        let is_any_slow = is_slow_possible(Duration::ZERO, &backend.configuration.operators);
        let is_open = is_short(self.command) && !turn.is_last && !meter.is_full();
        if is_open && !is_any_slow {
            return;
        }
        let is_one = meter.is_one();
        let spent = meter.end_group(backend, turn.now);
        if is_one && is_slow_possible(spent, &backend.configuration.operators) {
            self.execution(session, turn).record_slow(spent, backend);
        }
    }

    fn execution<'e>(&'e self, session: &'e Session, turn: &ConnectionTurn<'_>) -> Execution<'e> {
        let AnsweredCommand { command, args, .. } = *self;
        Execution { command, args, session, wall: turn.wall }
    }
}
