//! The pulls that one reactor answers, as the source of migrations.

use crate::Node;
use crate::context::Context;
use crate::messages::{Route, Sending, To};
use protocols::migration::SourceEvent;
use std::collections::VecDeque;
use store::Stall;
use types::{HashRange, MigrationId, ServerId};
use wire::peer::{
    PRIORITY_BYTES_MAX, PULL_BYTES_MAX, PeerMessage, PriorityAnswer, PriorityPull, PriorityReply,
    Pull, PullReply,
};

/// Pulls that this reactor answers, as the source of migrations.
#[derive(Default)]
pub(crate) struct PullServer {
    /// Pulls that wait for a quantum.
    pulls: VecDeque<(Route, Pull)>,
    /// Priority pulls that met a busy leaf, and are retried in the next turn.
    contended: Vec<(ServerId, Route, PriorityPull)>,
}

impl PullServer {
    /// Returns whether no pull waits for a quantum.
    pub(crate) fn is_idle(&self) -> bool {
        self.pulls.is_empty()
    }

    /// Returns whether a priority pull is to be retried in this turn.
    pub(crate) fn is_contended(&self) -> bool {
        !self.contended.is_empty()
    }

    /// Queues a pull if this server is the source of its migration.
    pub(crate) fn accept(&mut self, from: ServerId, route: Route, pull: Pull, node: &Node) {
        // A pull of deleted records is a late repetition, and gets no answer.
        let is_kept = node.machines().keeps(from, pull.migration, pull.cursor) == Some(true);
        if is_kept {
            self.queue(route, pull);
        }
    }

    /// Queues a pull. A repetition takes the place of the pull that it repeats: the target wants one
    /// answer, and a source with much to do would otherwise give itself more to do.
    fn queue(&mut self, route: Route, pull: Pull) {
        let partition = |pull: &Pull| (pull.migration, pull.epoch, pull.partition);
        let has_room = self.pulls.len() < PULLS_TO_SERVE_MAX;
        let queued = self.pulls.iter_mut().find(|(_, it)| partition(it) == partition(&pull));
        match queued {
            // Cursors only grow: an earlier one is of a pull that has been answered.
            Some(queued) if queued.1.cursor <= pull.cursor => *queued = (route, pull),
            Some(_) => {}
            // A target repeats its one pull per partition, so a pull may be dropped.
            None if has_room => self.pulls.push_back((route, pull)),
            None => {}
        }
        assert!(self.pulls.len() <= PULLS_TO_SERVE_MAX, "the queue of pulls is bounded");
    }

    /// Serves one pull, a quantum of the source's work. Returns `false` if there is none.
    pub(crate) fn serve(&mut self, context: &mut Context<'_>) -> bool {
        let Some((route, pull)) = self.pulls.pop_front() else { return false };
        let Pull { migration, epoch, partition, cursor, last, bytes_max } = pull;
        let Some(range) = HashRange::try_from((cursor, last)).ok() else { return true };
        let bytes_max = bytes_max.min(PULL_BYTES_MAX) as usize;
        // A bucket may exceed the requested size; some room avoids growing the buffer.
        let mut payload = context.buffers.take(bytes_max + (8 << 10));
        let next = context.worker.collect(range, cursor, bytes_max, &mut payload);
        let reply = PullReply { migration, epoch, partition, cursor, next };
        context.out.peers.push(Sending {
            to: To::Back(route),
            is_priority: false,
            message: PeerMessage::PullReply(reply),
            payload,
        });
        true
    }

    /// Answers a priority pull at once, completely or with as much as fits into a reply. The
    /// target asks again for the rest.
    pub(crate) fn serve_priority(
        &mut self,
        from: ServerId,
        route: Route,
        pull: PriorityPull,
        node: &Node,
        context: &mut Context<'_>,
    ) {
        let mut payload = Vec::new();
        let mut answers = Vec::with_capacity(pull.hashes.len());
        for &(table, hash) in &pull.hashes {
            if payload.len() >= PRIORITY_BYTES_MAX {
                break;
            }
            let kept = node.machines().keeps(from, pull.migration, hash);
            let answer = match kept {
                None => return,
                Some(false) => PriorityAnswer::Gone,
                Some(true) => match context.worker.collect_hash(table, hash, &mut payload) {
                    Ok(true) => PriorityAnswer::Records,
                    Ok(false) => PriorityAnswer::Absent,
                    Err(Stall::Contended) => {
                        if self.contended.len() < PRIORITY_TO_SERVE_MAX {
                            self.contended.push((from, route, pull));
                        }
                        return;
                    }
                    Err(
                        Stall::NotOwned
                        | Stall::Held
                        | Stall::Missing(_)
                        | Stall::NotArrived { .. }
                        | Stall::OutOfMemory
                        | Stall::TooLarge,
                    ) => return,
                },
            };
            answers.push((table, hash, answer));
        }
        let PriorityPull { migration, epoch, request, .. } = pull;
        context.out.peers.push(Sending {
            to: To::Back(route),
            is_priority: true,
            message: PeerMessage::PriorityReply(PriorityReply {
                migration,
                epoch,
                request,
                answers,
            }),
            payload,
        });
    }

    /// Retries the priority pulls that met a busy leaf.
    pub(crate) fn serve_priority_again(&mut self, node: &Node, context: &mut Context<'_>) {
        for (from, route, pull) in std::mem::take(&mut self.contended) {
            self.serve_priority(from, route, pull, node, context);
        }
    }
}

/// Concludes from a pull that its target has accepted the flip, even if the answer to the
/// flip was lost. So an answer to a pull proves to the target that the source knows.
pub(crate) fn learn_acceptance(
    from: ServerId,
    migration: MigrationId,
    node: &Node,
    context: &mut Context<'_>,
) {
    node.change_machines(|machines| {
        let side = machines.sources.get(migration);
        if side.is_some_and(|side| side.machine.expects_answer()) {
            let event = SourceEvent::FlipAnswered { from, accepted: true };
            machines.sources.step(migration, event, context);
        }
    });
}

/// Maximum number of queued pulls: many times the outstanding pulls of several migrations.
const PULLS_TO_SERVE_MAX: usize = 4096;

/// Maximum number of priority pulls that meet a busy leaf in one turn; more are dropped.
const PRIORITY_TO_SERVE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use types::{KeyHash, OwnershipEpoch};

    fn pull(partition: u16, cursor: u64) -> Pull {
        Pull {
            migration: MigrationId(1),
            epoch: OwnershipEpoch(2),
            partition,
            cursor: KeyHash(cursor),
            last: KeyHash(1_000),
            bytes_max: 1 << 10,
        }
    }

    #[test]
    fn a_repeated_pull_is_answered_once_on_its_last_route() {
        let mut server = PullServer::default();
        server.queue(Route(1), pull(0, 10));
        server.queue(Route(1), pull(1, 500));
        server.queue(Route(2), pull(0, 10));
        // A delayed repetition of an answered pull.
        server.queue(Route(3), pull(0, 5));
        assert_eq!(server.pulls, [(Route(2), pull(0, 10)), (Route(1), pull(1, 500))]);
        server.queue(Route(1), pull(0, 20));
        assert_eq!(server.pulls[0], (Route(1), pull(0, 20)));
    }
}
