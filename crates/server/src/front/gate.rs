//! What stands before every command and behind it: may it be executed now, and what is counted.

use super::client::Turn;
use crate::commands::{Command, Undone, flag, refused};
use crate::engine::Engine;
use crate::operators::pause::Paused;
use crate::operators::{lock, monitor, slow};
use crate::session::Session;
use std::time::Duration;
use store::Stall;
use types::Instant;

/// Whether a command that exists, with a sensible number of arguments, may be executed now.
#[inline]
pub(super) fn admit(
    command: &Command,
    args: &[&[u8]],
    session: &Session,
    turn: &Turn<'_>,
) -> Result<(), Undone> {
    if !session.is_authenticated
        && !command.has(flag::NO_AUTH)
        && turn.engine.configuration.needs_password()
    {
        return Err(refused("NOAUTH Authentication required."));
    }
    // A transaction is commands on data, whatever they are called to begin and to end it.
    let needs_data = !command.has(flag::LOADING) || ["exec", "watch"].contains(&command.name);
    if turn.engine.is_loading() && needs_data {
        return Err(refused("LOADING Redis is loading the dataset in memory"));
    }
    if needs_data && turn.engine.lacks_lease(turn.now) {
        return Err(Undone::Stall(Stall::Held));
    }
    if command.has(flag::WRITE) && turn.engine.cannot_keep() {
        return Err(refused(CANNOT_KEEP));
    }
    let operators = &turn.engine.node().operators;
    match operators.pause.at(turn.now) {
        None => {}
        Some(Paused::All) => return Err(Undone::Paused),
        Some(Paused::Writes) if command.has(flag::WRITE) || command.name == "exec" => {
            return Err(Undone::Paused);
        }
        Some(Paused::Writes) => {}
    }
    if operators.monitors.is_watched() && !command.has(flag::ADMIN) {
        show(command, args, session, turn);
    }
    Ok(())
}

/// As Redis begins it, for clients that match on it.
const CANNOT_KEEP: &str = "MISCONF Errors writing to disk: writes are refused until it works again. \
                           See the server's log, and INFO persistence.";

/// Shows a request to those who watch.
#[cold]
fn show(command: &Command, args: &[&[u8]], session: &Session, turn: &Turn<'_>) {
    // What may hold a password.
    if ["auth", "hello"].contains(&command.name) {
        return;
    }
    let line = monitor::line(turn.wall, session.table.0, &session.facts.peer, args);
    let node = turn.engine.node();
    node.operators.monitors.show(&line);
    node.wake_all();
}

/// Measures how long the commands of one connection take, one after another.
///
/// A reading of the clock costs as much as a tenth of a short command. So in a deep pipeline short
/// commands are measured in groups, and each is said to have taken what they took on average.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// When what is not accounted for has begun.
    since: Option<Instant>,
    /// Numbers of the commands since then.
    group: [u16; GROUP_MAX],
    len: usize,
}

const GROUP_MAX: usize = 8;

impl Meter {
    /// A command begins. One that may take long is not measured together with others.
    #[inline]
    fn begin(&mut self, command: &Command, engine: &Engine, now: Instant) {
        if self.since.is_none() {
            self.since = Some(engine.read_stopwatch(now));
        } else if self.len > 0 && !is_short(command) {
            self.end_group(engine, now);
        }
    }

    /// Accounts for the commands that were measured together. Returns what they took.
    fn end_group(&mut self, engine: &Engine, now: Instant) -> Duration {
        let end = engine.read_stopwatch(now);
        let spent = self.since.replace(end).map_or(Duration::ZERO, |since| end.since(since));
        let each = spent / self.len.max(1) as u32;
        for number in &self.group[..self.len] {
            engine.counts.of_command(usize::from(*number)).called(each);
        }
        self.len = 0;
        spent
    }

    /// Accounts for everything: what follows is not these commands' time.
    pub(crate) fn finish(&mut self, engine: &Engine, now: Instant) {
        if self.len > 0 {
            self.end_group(engine, now);
        }
        self.since = None;
    }
}

/// Whether a command takes a short time whatever its arguments.
#[inline]
fn is_short(command: &Command) -> bool {
    command.has(flag::FAST) || (command.has(flag::DENYOOM) && command.names_one_key())
}

/// Begins to measure a command.
#[inline]
pub(super) fn begin(command: &Command, turn: &mut Turn<'_>) {
    turn.meter.begin(command, turn.engine, turn.now);
}

/// A command that has been answered.
pub(super) struct Attempt<'a> {
    pub(super) command: &'static Command,
    pub(super) args: &'a [&'a [u8]],
    /// Whether it was tried at all.
    pub(super) is_admitted: bool,
}

impl Attempt<'_> {
    /// Counts it.
    #[inline]
    pub(super) fn count(&self, reply: &[u8], session: &mut Session, turn: &mut Turn<'_>) {
        let number = self.command.number();
        session.command = number as u16;
        let engine = &*turn.engine;
        let counts = engine.counts.of_command(number);
        if reply.first() == Some(&b'-') {
            counts.failed.add(u64::from(self.is_admitted));
            engine.counts.error(&reply[1..]);
        } else if self.command.has(flag::READONLY) && self.command.names_one_key() {
            let is_miss = reply.starts_with(b"$-1") || reply.starts_with(b"_");
            let found = if is_miss { &engine.counts.misses } else { &engine.counts.hits };
            found.add(1);
        }
        if !self.is_admitted {
            return counts.rejected.add(1);
        }
        let meter = &mut turn.meter;
        meter.group[meter.len] = number as u16;
        meter.len += 1;
        let threshold = engine.configuration.slowlog_slower_than;
        let is_noted = (0..SLOW_MIN_MICROS).contains(&threshold);
        let is_open = is_short(self.command) && !turn.is_last && meter.len < GROUP_MAX;
        if is_open && !is_noted {
            return;
        }
        let is_one = meter.len == 1;
        let spent = meter.end_group(engine, turn.now);
        if is_one && (spent >= SLOW_MIN || is_noted) {
            self.note_slow(spent, session, turn);
        }
    }

    #[cold]
    fn note_slow(&self, spent: Duration, session: &Session, turn: &Turn<'_>) {
        let operators = &turn.engine.node().operators;
        let configuration = &turn.engine.configuration;
        let least = u64::try_from(configuration.slowlog_slower_than);
        let is_slow = least.is_ok_and(|least| spent.as_micros() >= u128::from(least));
        // Not what may hold a password, as in Redis.
        let is_kept = !["auth", "hello", "config|set", "exec"].contains(&self.command.name);
        if is_slow && is_kept && configuration.slowlog_max_len > 0 {
            let entry = slow::Entry {
                number: 0,
                at: turn.wall,
                spent,
                args: slow::shortened(self.args),
                peer: session.facts.peer.clone(),
                name: lock(&session.facts.names).name.clone(),
            };
            lock(&operators.slow_log).add(entry, configuration.slowlog_max_len as usize);
        }
        let threshold = configuration.latency_threshold;
        if threshold > 0 && spent.as_millis() >= u128::from(threshold) {
            let is_fast = self.command.has(flag::FAST);
            let kind = if is_fast { "fast-command" } else { "command" };
            lock(&operators.latency).entry(kind).or_default().note(turn.wall, spent);
        }
    }
}

/// Nothing below is slow, unless somebody asks for it.
const SLOW_MIN: Duration = Duration::from_micros(SLOW_MIN_MICROS as u64);
const SLOW_MIN_MICROS: i64 = 1_000;
