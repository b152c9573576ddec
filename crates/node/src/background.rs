//! Runs background work. What a piece of work reports to a machine is passed on here.

use crate::Node;
use crate::context::Context;
use crate::source_side::{self, FORGET_BUCKETS};
use crate::work::{Background, Work};
use planted::Bug;
use wire::peer::PeerMessage;

/// Maximum number of tombstones that one quantum reclaims.
const SWEEP_MAX: usize = 256;

impl Work {
    /// Runs a bounded part of the work, and returns its purpose.
    pub(crate) fn run(self, node: &Node, context: &mut Context<'_>) -> Background {
        match self {
            Work::Pull(to, pull) => context.out.send(to, PeerMessage::Pull(pull)),
            Work::Replay(replay) => {
                let migration = replay.arrival.migration();
                if let Some(event) = replay.run(context) {
                    node.change_machines(|it| it.step_target(migration, event, context));
                }
            }
            Work::Forget { migration, range, cursor } => {
                if let Some(event) = source_side::forget(migration, range, cursor, context) {
                    node.change_machines(|it| it.step_source(migration, event, context));
                }
                return Background::Export;
            }
            Work::ReplayLog(replay) => {
                let epoch = replay.epoch;
                if let Some(event) = replay.run(context) {
                    node.change_machines(|it| it.step_recovery(epoch, event, context));
                }
                return Background::Recover;
            }
            Work::ForgetReplayed { epoch, range, cursor } => {
                match context.worker.forget(range, cursor, FORGET_BUCKETS) {
                    Some(cursor) => {
                        context.node.work.push(Work::ForgetReplayed { epoch, range, cursor });
                    }
                    None => drop(context.node.forgetting().remove(&epoch)),
                }
                return Background::Recover;
            }
            Work::SweepRecovery(recovery) => {
                if context.worker.sweep_recovery(&recovery, SWEEP_MAX) {
                    context.node.work.push(Work::SweepRecovery(recovery));
                }
                return Background::Recover;
            }
            Work::Sweep(arrival, grace) => {
                let is_endless = planted::is(Bug::ArrivalWithoutEnd) && !arrival.is_complete();
                if context.node.store().is_over(&grace) && !is_endless {
                    arrival.end();
                }
                if context.worker.sweep(&arrival, SWEEP_MAX) || !arrival.is_over() {
                    context.node.work.push(Work::Sweep(arrival, grace));
                }
            }
        }
        Background::Import
    }
}
