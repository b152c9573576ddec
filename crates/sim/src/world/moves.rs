//! Requests of operators: moves of every kind, sensible or not, and cancellations.

use super::{Next, Part, SERVERS, World};
use crate::failure::Rule;
use crate::settings::Knob;
use crate::workload::draw_policy;
use std::time::Duration;
use types::ServerId;
use wire::control::{Answer, Ask};

/// One request in this many has several ranges, names a source, or is followed by another at
/// once.
const SEVERAL_ONE_IN: u32 = 8;
const NAMED_ONE_IN: u32 = 8;
const BURST_ONE_IN: u32 = 6;
/// One request in this many is a cancellation.
const CANCEL_ONE_IN: u32 = 20;

impl World {
    pub(super) fn ask_for_a_move(&mut self) {
        if self.part != Part::Working || self.kept.is_some() && !self.moves_kept {
            return;
        }
        let ask = match self.rng.u32(..CANCEL_ONE_IN) {
            0 if self.settings.has(Knob::Cancels) => {
                Ask::Cancel { source: self.some_source(), task: None }
            }
            _ => self.draw_move(),
        };
        self.trace.note(self.now, format_args!("request: {ask:?}"));
        self.ask(ask);
        let is_burst = self.rng.u32(..BURST_ONE_IN) == 0;
        let usual = if self.settings.has(Knob::Moves) { 30_000 } else { 600_000 };
        let pause = if is_burst { Duration::ZERO } else { self.micros(500..usual) };
        self.plan_in(pause * self.slowness, Next::Move);
    }

    /// Draws a move. Its ranges may overlap each other, running moves and the target's own
    /// ranges.
    fn draw_move(&mut self) -> Ask {
        let target = self.servers[self.rng.usize(..SERVERS)].id;
        let several = self.rng.u32(..SEVERAL_ONE_IN) == 0;
        let count = if several { self.rng.usize(2..4) } else { 1 };
        let ranges = (0..count).map(|_| self.workload.draw_range(&mut self.rng)).collect();
        let is_named = self.rng.u32(..NAMED_ONE_IN) == 0;
        let source = if is_named { self.some_source() } else { None };
        Ask::Migrate { ranges, source, target, policy: draw_policy(&mut self.rng) }
    }

    /// Draws a server, or none.
    fn some_source(&mut self) -> Option<ServerId> {
        self.rng.bool().then(|| self.servers[self.rng.usize(..SERVERS)].id)
    }

    /// Handles an answer to a question of the world itself.
    pub(super) fn note_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Migrations(reports) => self.migrations = reports,
            Answer::Started(ids) => {
                for id in &ids {
                    if !self.started.insert(*id) {
                        let text = format!("{id} was already the id of another move");
                        self.failure = Some(Rule::AsksAnswered.broken(text));
                    }
                }
                if ids.is_empty() {
                    self.failure = Some(Rule::AsksAnswered.broken("granted, but no move began"));
                }
            }
            Answer::Recoveries(reports) => self.recoveries = reports,
            Answer::Refused(_)
            | Answer::Cancelled(_)
            | Answer::Flushed { .. }
            | Answer::LossAccepted(_)
            | Answer::Health(_)
            | Answer::Map(_)
            | Answer::Rebuild(_)
            | Answer::Standing(_)
            | Answer::Clocks(_) => {}
        }
    }

    /// Checks that the coordinator still knows every move that it has granted.
    pub(super) fn check_remembered(&mut self) {
        let is_known = |id| self.migrations.iter().any(|report| report.migration == id);
        if let Some(id) = self.started.iter().find(|&&id| !is_known(id)) {
            let text = format!("{id} was granted, but the coordinator does not know it");
            self.failure = Some(Rule::AsksAnswered.broken(text));
        }
    }
}
