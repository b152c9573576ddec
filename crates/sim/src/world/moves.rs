//! What operators ask for: moves of every kind, sensible and not, and that they be cancelled.

use super::{Next, Part, SERVERS, World};
use crate::failure::Rule;
use crate::settings::Knob;
use crate::workload::draw_policy;
use std::time::Duration;
use types::ServerId;
use wire::control::{Answer, Ask};

/// One request in so many is for several ranges, names a source, or is followed by another at once.
const SEVERAL_ONE_IN: u32 = 8;
const NAMED_ONE_IN: u32 = 8;
const BURST_ONE_IN: u32 = 6;
/// One request in so many is to cancel.
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
        self.trace.note(self.now, format_args!("asked to {ask:?}"));
        self.ask(ask);
        let is_burst = self.rng.u32(..BURST_ONE_IN) == 0;
        let usual = if self.settings.has(Knob::Moves) { 30_000 } else { 600_000 };
        let pause = if is_burst { Duration::ZERO } else { self.micros(500..usual) };
        self.plan_in(pause * self.slowness, Next::Move);
    }

    /// Ranges that may overlap each other and those under way, to a server that may have them.
    fn draw_move(&mut self) -> Ask {
        let target = self.servers[self.rng.usize(..SERVERS)].id;
        let several = self.rng.u32(..SEVERAL_ONE_IN) == 0;
        let count = if several { self.rng.usize(2..4) } else { 1 };
        let ranges = (0..count).map(|_| self.workload.draw_range(&mut self.rng)).collect();
        let is_named = self.rng.u32(..NAMED_ONE_IN) == 0;
        let source = if is_named { self.some_source() } else { None };
        Ask::Migrate { ranges, source, target, policy: draw_policy(&mut self.rng) }
    }

    /// A server, or any.
    fn some_source(&mut self) -> Option<ServerId> {
        self.rng.bool().then(|| self.servers[self.rng.usize(..SERVERS)].id)
    }

    /// What the world was answered itself.
    pub(super) fn note_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Migrations(reports) => self.migrations = reports,
            Answer::Started(ids) => {
                for id in &ids {
                    if !self.started.insert(*id) {
                        let text = format!("{id} was the number of another move before");
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

    /// A move that was granted and of which nobody knows any more.
    pub(super) fn check_remembered(&mut self) {
        let is_known = |id| self.migrations.iter().any(|report| report.migration == id);
        if let Some(id) = self.started.iter().find(|&&id| !is_known(id)) {
            let text = format!("{id} was granted, and nobody knows of it");
            self.failure = Some(Rule::AsksAnswered.broken(text));
        }
    }
}
