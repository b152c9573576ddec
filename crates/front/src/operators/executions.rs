//! Executed commands as operators see them: the lines of `MONITOR`, and the slow log.

use super::monitor::{self, Monitors};
use super::{lock, slow};
use crate::commands::{Command, Secrets, flag};
use crate::core::backend::Backend;
use crate::session::Session;
use node::Node;
use settings::OperatorSettings;
use std::borrow::Cow;
use std::time::Duration;
use types::UnixMillis;

/// An executed command, on its own or as part of a transaction.
pub(crate) struct Execution<'a> {
    pub(crate) command: &'static Command,
    pub(crate) args: &'a [&'a [u8]],
    pub(crate) session: &'a Session,
    pub(crate) wall: UnixMillis,
}

/// Shortest time that may be logged as slow, unless the settings ask for shorter times.
const SLOW_MIN: Duration = Duration::from_micros(SLOW_MIN_MICROS as u64);
const SLOW_MIN_MICROS: i64 = 1_000;

/// Returns whether a command of this duration may belong in the slow log.
#[inline]
pub(crate) fn is_slow_possible(spent: Duration, settings: &OperatorSettings) -> bool {
    spent >= SLOW_MIN || (0..SLOW_MIN_MICROS).contains(&settings.slowlog_slower_than)
}

impl Execution<'_> {
    /// Sends the command to the `MONITOR` connections, unless it is an administrative command.
    #[cold]
    pub(crate) fn show(&self, node: &Node, monitors: &Monitors) {
        if self.command.has(flag::ADMIN) {
            return;
        }
        let args = self.shown_args();
        let session = self.session;
        let line = monitor::line(self.wall, session.status.table.0, &session.facts.peer, &args);
        monitors.show(&line);
        node.wake_all();
    }

    /// Adds the command to the slow log and the `LATENCY` samples, if it exceeds their thresholds.
    #[cold]
    pub(crate) fn record_slow(&self, spent: Duration, backend: &Backend) {
        let Backend { operators, configuration, .. } = backend;
        let settings = &configuration.operators;
        let least = u64::try_from(settings.slowlog_slower_than);
        let is_slow = least.is_ok_and(|least| spent.as_micros() >= u128::from(least));
        // The commands of a transaction are logged one by one, as in Redis.
        let is_logged = !self.command.has(flag::RUNS_TRANSACTION);
        if is_slow && is_logged && settings.slowlog_max_len > 0 {
            let entry = slow::SlowLogEntry {
                number: 0,
                at: self.wall,
                spent,
                args: slow::shortened(&self.shown_args()),
                peer: self.session.facts.peer.clone(),
                name: lock(&self.session.facts.names).name.clone(),
            };
            lock(&operators.slow_log).add(entry, settings.slowlog_max_len as usize);
        }
        let threshold = settings.latency_threshold;
        if threshold > 0 && spent.as_millis() >= u128::from(threshold) {
            let is_fast = self.command.has(flag::FAST);
            let kind = if is_fast { "fast-command" } else { "command" };
            lock(&operators.latency).entry(kind).or_default().record(self.wall, spent);
        }
    }

    /// Returns the arguments, with passwords redacted.
    fn shown_args(&self) -> Cow<'_, [&[u8]]> {
        let secrets: Vec<usize> = match self.command.secrets {
            Secrets::None => return Cow::Borrowed(self.args),
            Secrets::All => (1..self.args.len()).collect(),
            Secrets::After { word, count } => following(self.args, word, count),
        };
        let mut shown = self.args.to_vec();
        for secret in secrets {
            if let Some(argument) = shown.get_mut(secret) {
                *argument = b"(redacted)";
            }
        }
        Cow::Owned(shown)
    }
}

/// Returns the positions of the `count` arguments after each occurrence of `word`.
fn following(args: &[&[u8]], word: &[u8], count: usize) -> Vec<usize> {
    let places = (0..args.len()).filter(|at| args[*at].eq_ignore_ascii_case(word));
    places.flat_map(|at| at + 1..at + 1 + count).collect()
}
