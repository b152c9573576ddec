//! Requests of operators: moves of every kind, sensible or not, and cancellations.

use crate::failure::Rule;
use crate::fleet::ServerFleet;
use crate::settings::{Knob, RunSettings};
use crate::timeline::RunTimeline;
use crate::workload::{Workload, draw_policy};
use std::collections::BTreeSet;
use types::{MigrationId, ServerId};
use wire::control::{Answer, Ask, MigrationReport, MigrationState, RecoveryReport};

/// One request in this many has several ranges, or names a source.
const SEVERAL_ONE_IN: u32 = 8;
const NAMED_ONE_IN: u32 = 8;
/// One request in this many is a cancellation.
const CANCEL_ONE_IN: u32 = 20;

/// Moves of a run, as far as operators and the simulator know them.
#[derive(Debug, Default)]
pub(crate) struct MoveLog {
    /// Reports of the coordinator on all migrations, newest first.
    pub(crate) reports: Vec<MigrationReport>,
    /// Unfinished recoveries, queried when a run does not come to rest.
    pub(crate) recoveries: Vec<RecoveryReport>,
    /// Moves that the coordinator has granted.
    granted: BTreeSet<MigrationId>,
    /// Migrations that their target has accepted.
    pub(crate) accepted: BTreeSet<MigrationId>,
}

impl MoveLog {
    /// Handles an answer to a question of the simulator itself.
    pub(crate) fn record_answer(&mut self, answer: Answer, timeline: &mut RunTimeline) {
        match answer {
            Answer::Migrations(reports) => self.reports = reports,
            Answer::Started(ids) => {
                for id in &ids {
                    if !self.granted.insert(*id) {
                        let text = format!("{id} was already the id of another move");
                        timeline.fail(Rule::AsksAnswered.broken(text));
                    }
                }
                if ids.is_empty() {
                    timeline.fail(Rule::AsksAnswered.broken("granted, but no move began"));
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
            | Answer::Clocks(_)
            | Answer::Lease(_) => {}
        }
    }

    /// Checks that the coordinator still knows every move that it has granted.
    pub(crate) fn check_remembered(&self, timeline: &mut RunTimeline) {
        let is_known = |id| self.reports.iter().any(|report| report.migration == id);
        if let Some(id) = self.granted.iter().find(|&&id| !is_known(id)) {
            let text = format!("{id} was granted, but the coordinator does not know it");
            timeline.fail(Rule::AsksAnswered.broken(text));
        }
    }

    /// Returns the number of migrations that ended with a change of owner.
    pub(crate) fn succeeded(&self) -> usize {
        self.reports.iter().filter(|report| report.state == MigrationState::Success).count()
    }
}

/// Draws a request of an operator: a move, or now and then a cancellation.
pub(crate) fn draw_request(
    settings: &RunSettings,
    workload: &Workload,
    servers: &ServerFleet,
    timeline: &mut RunTimeline,
) -> Ask {
    match timeline.rng.u32(..CANCEL_ONE_IN) {
        0 if settings.has(Knob::Cancels) => {
            Ask::Cancel { source: draw_source(servers, timeline), task: None }
        }
        _ => draw_move(workload, servers, timeline),
    }
}

/// Draws a move. Its ranges may overlap each other, running moves and the target's own ranges.
fn draw_move(workload: &Workload, servers: &ServerFleet, timeline: &mut RunTimeline) -> Ask {
    let target = servers[timeline.rng.usize(..servers.len())].id;
    let several = timeline.rng.u32(..SEVERAL_ONE_IN) == 0;
    let count = if several { timeline.rng.usize(2..4) } else { 1 };
    let ranges = (0..count).map(|_| workload.draw_range(&mut timeline.rng)).collect();
    let is_named = timeline.rng.u32(..NAMED_ONE_IN) == 0;
    let source = if is_named { draw_source(servers, timeline) } else { None };
    Ask::Migrate { ranges, source, target, policy: draw_policy(&mut timeline.rng) }
}

fn draw_source(servers: &ServerFleet, timeline: &mut RunTimeline) -> Option<ServerId> {
    timeline.rng.bool().then(|| servers[timeline.rng.usize(..servers.len())].id)
}
