//! Reply gating: replies wait until the writes that they reveal are acknowledged.
//!
//! A reply that shows or answers a write must not leave while a crash can still undo the write.
//! Requests are executed at once and put their replies into the connection's output. When the
//! turn's appends have been committed, [`ReplyGate::reconcile`] checks these replies. Usually all
//! their writes are acknowledged already. Otherwise the pending replies are moved from the output
//! into this module, and later replies of the same connection queue behind them.
//!
//! While backups do not respond, every reply is pending. Pending replies share a budget. When it is
//! used up ([`ReplyGate::is_full`]), no more requests are executed, as if clients had sent none.
//!
//! **Invariant:** the replies of a connection leave in the order in which they were produced.
//! **Invariant:** a connection without dependency and without pending replies causes no work here.
//! **Invariant:** pending replies never exceed the budget plus the replies to one connection's
//! input.

use super::Connections;
use node::Engine;
use planted::Bug;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use store::log::Dependency;
use types::ConnectionId;
use types::Instant;
use types::limits::CLIENT_BACKLOG_MAX;

/// Replies that a connection has produced in this turn, from offset `from` of its output on.
struct TurnReplies {
    connection: ConnectionId,
    from: usize,
    needs: ReplyNeeds,
}

/// Pending replies that leave together.
struct ReplyBatch {
    replies: Vec<u8>,
    needs: ReplyNeeds,
}

/// Events that replies must wait for.
#[derive(Default)]
struct ReplyNeeds {
    dependency: Option<Dependency>,
    /// Execution time, if the replies must wait until a heartbeat sent later is acknowledged.
    executed: Option<Instant>,
}

impl ReplyNeeds {
    fn are_met(&self, engine: &Engine) -> bool {
        self.dependency.as_ref().is_none_or(|it| engine.is_acknowledged(it))
            && self.executed.is_none_or(|executed| engine.is_confirmed(executed))
    }
}

/// The pending replies of one connection.
#[derive(Default)]
struct PendingReplies {
    batches: VecDeque<ReplyBatch>,
    bytes: usize,
    /// True if the connection is not read because it has too many bytes pending.
    is_paused: bool,
}

/// Divisor of a server's memory that gives the budget, which is additional memory.
const BUDGET_PART: usize = 16;
/// Smallest budget of a server, in bytes: room for some replies of maximum size.
const BUDGET_MIN: usize = 16 << 20;

/// The pending replies of one reactor's connections (reply gating).
#[derive(Default)]
pub(super) struct ReplyGate {
    /// Bytes of pending replies, including those of this turn.
    bytes: usize,
    /// Bytes among them that were produced in this turn.
    turn_bytes: usize,
    /// This reactor's part of the budget, in bytes.
    bytes_max: usize,
    /// Connections that are not read because the budget is used up.
    stopped: BTreeSet<ConnectionId>,
    of_turn: Vec<TurnReplies>,
    pending: BTreeMap<ConnectionId, PendingReplies>,
    /// Connections that close when their pending replies have left.
    ending: BTreeSet<ConnectionId>,
    /// The engine's acknowledgment count and lease end at the last check of `pending`.
    checked_at: (u64, Option<u64>),
}

impl ReplyGate {
    /// Returns an empty set. All reactors of a server get the same part of the budget.
    pub(super) fn new(memory_bytes: usize, reactors: u16) -> ReplyGate {
        let budget = (memory_bytes / BUDGET_PART).max(BUDGET_MIN);
        ReplyGate { bytes_max: budget / usize::from(reactors.max(1)), ..ReplyGate::default() }
    }

    /// Records that a connection's requests have appended the range `replies` to its output,
    /// together with the durability dependency of these requests.
    #[inline]
    pub(super) fn record(
        &mut self,
        connection: ConnectionId,
        replies: Range<usize>,
        engine: &mut Engine,
        now: Instant,
    ) {
        let needs =
            ReplyNeeds { dependency: engine.take_dependency(), executed: engine.take_data(now) };
        if needs.dependency.is_some()
            || needs.executed.is_some()
            || (!self.pending.is_empty() && self.pending.contains_key(&connection))
        {
            self.turn_bytes += replies.len();
            self.bytes += replies.len();
            self.of_turn.push(TurnReplies { connection, from: replies.start, needs });
        }
    }

    /// Returns whether the budget is used up, so that no more requests may be executed.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.bytes > self.bytes_max
    }

    /// Stops reading a connection until the budget has room.
    #[cold]
    pub(super) fn stop(&mut self, connection: ConnectionId, io: &mut impl Connections) {
        self.stopped.insert(connection);
        io.pause_reading(connection);
    }

    /// Resumes stopped connections once half of the budget is free. With a smaller gap, each
    /// released reply would resume all connections.
    fn resume(&mut self, io: &mut impl Connections) {
        if !self.stopped.is_empty() && self.bytes <= self.bytes_max / 2 {
            for connection in std::mem::take(&mut self.stopped) {
                if !self.is_paused(connection) {
                    io.resume_reading(connection);
                }
            }
        }
    }

    /// Returns whether the connection has pending replies that must leave before it closes. If so,
    /// it closes when they have left.
    pub(super) fn delays_end(&mut self, connection: ConnectionId) -> bool {
        let is_of_turn = self.of_turn.iter().any(|of_turn| of_turn.connection == connection);
        let is_pending = is_of_turn || self.pending.contains_key(&connection);
        if is_pending {
            self.ending.insert(connection);
        }
        is_pending
    }

    /// Returns the connections with pending replies.
    #[inline]
    pub(super) fn pending_connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.pending.keys().copied()
    }

    /// Drops the state of a closed connection.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let queue = self.pending.remove(&connection);
        self.bytes -= queue.map_or(0, |queue| queue.bytes);
        self.stopped.remove(&connection);
        self.ending.remove(&connection);
        self.of_turn.retain(|of_turn| of_turn.connection != connection);
    }

    /// Returns whether the connection is not read because too many bytes are pending.
    pub(super) fn is_paused(&self, connection: ConnectionId) -> bool {
        self.pending.get(&connection).is_some_and(|queue| queue.is_paused)
            || self.stopped.contains(&connection)
    }

    /// Releases replies whose writes are acknowledged, and keeps the others. Must be called after
    /// the turn's appends were committed and before outputs are sent.
    #[inline]
    pub(super) fn reconcile(&mut self, engine: &mut Engine, io: &mut impl Connections) {
        if self.of_turn.is_empty() && self.pending.is_empty() && self.stopped.is_empty() {
            return;
        }
        // `hold` counts the bytes that are still pending again.
        self.bytes -= std::mem::take(&mut self.turn_bytes);
        self.reconcile_all(engine, io);
        self.resume(io);
    }

    fn reconcile_all(&mut self, engine: &mut Engine, io: &mut impl Connections) {
        // Replies of this turn come after replies that are already pending. They must leave the
        // output before pending replies are released into it.
        let mut of_turn = std::mem::take(&mut self.of_turn);
        of_turn.retain(|TurnReplies { connection, needs, .. }| {
            if !needs.are_met(engine) {
                self.pending.entry(*connection).or_default();
            }
            self.pending.contains_key(connection)
        });
        // Take from the back, so that each entry gets only the bytes of its own requests.
        let take = |TurnReplies { connection, from, .. }: &TurnReplies| {
            let output = io.output(*connection);
            if output.len() > *from { output.split_off(*from) } else { Vec::new() }
        };
        let mut replies: Vec<Vec<u8>> = of_turn.iter().rev().map(take).collect();
        let all = of_turn.drain(..).zip(replies.drain(..).rev());
        for (TurnReplies { connection, needs, .. }, replies) in all {
            self.hold(connection, ReplyBatch { replies, needs }, io);
        }
        self.of_turn = of_turn;
        engine.note_held(!self.pending.is_empty());
        // An acknowledging thread wakes only reactors that have announced pending replies. The
        // announcement precedes this check, so no acknowledgment is missed.
        self.release_safe(engine, io);
        self.end_connections(io);
        engine.note_held(!self.pending.is_empty());
    }

    /// Releases replies that became safe since the last check.
    fn release_safe(&mut self, engine: &Engine, io: &mut impl Connections) {
        let news = (engine.acknowledgments(), engine.lease_until());
        if self.checked_at != news {
            self.checked_at = news;
            self.release(|batch| batch.needs.are_met(engine), io);
        }
    }

    fn hold(&mut self, connection: ConnectionId, batch: ReplyBatch, io: &mut impl Connections) {
        let queue = self.pending.entry(connection).or_default();
        queue.bytes += batch.replies.len();
        self.bytes += batch.replies.len();
        queue.batches.push_back(batch);
        if queue.bytes > CLIENT_BACKLOG_MAX && !queue.is_paused {
            queue.is_paused = true;
            io.pause_reading(connection);
        }
    }

    fn release(&mut self, is_safe: impl Fn(&ReplyBatch) -> bool, io: &mut impl Connections) {
        self.pending.retain(|connection, queue| {
            let mut takes_all = false;
            while let Some(batch) = queue.batches.pop_front_if(|it| takes_all || is_safe(it)) {
                takes_all = planted::is(Bug::GateReleasesAll);
                queue.bytes -= batch.replies.len();
                self.bytes -= batch.replies.len();
                io.output(*connection).extend_from_slice(&batch.replies);
            }
            if queue.is_paused && queue.bytes <= CLIENT_BACKLOG_MAX {
                queue.is_paused = false;
                if !self.stopped.contains(connection) {
                    io.resume_reading(*connection);
                }
            }
            !queue.batches.is_empty()
        });
    }

    fn end_connections(&mut self, io: &mut impl Connections) {
        let pending = &self.pending;
        self.ending.retain(|connection| {
            let is_pending = pending.contains_key(connection);
            if !is_pending {
                io.close_after_flush(*connection);
            }
            is_pending
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output buffers that record which connections are paused.
    #[derive(Default)]
    struct Sockets {
        outputs: BTreeMap<ConnectionId, Vec<u8>>,
        paused: BTreeSet<ConnectionId>,
    }

    impl Connections for Sockets {
        fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
            self.outputs.entry(connection).or_default()
        }

        fn resume_reading(&mut self, connection: ConnectionId) {
            self.paused.remove(&connection);
        }

        fn pause_reading(&mut self, connection: ConnectionId) {
            self.paused.insert(connection);
        }

        fn close_after_flush(&mut self, _connection: ConnectionId) {}
    }

    fn connection(number: u64) -> ConnectionId {
        ConnectionId::from_number(number)
    }

    fn reply(bytes: usize) -> ReplyBatch {
        ReplyBatch { replies: vec![b'x'; bytes], needs: ReplyNeeds::default() }
    }

    #[test]
    fn replies_that_wait_share_a_budget_whatever_the_number_of_clients() {
        let (mut gate, mut io) = (ReplyGate::new(0, 4), Sockets::default());
        let (each, mut clients) = (CLIENT_BACKLOG_MAX / 2, 0);
        while !gate.is_full() {
            clients += 1;
            gate.hold(connection(clients), reply(each), &mut io);
            assert!(clients < 1_000, "nobody is stopped");
        }
        assert!(gate.bytes <= BUDGET_MIN / 4 + each, "{} bytes wait", gate.bytes);
        assert!(io.paused.is_empty(), "none of them has too much of its own");
        // A request that arrives now is not executed.
        for late in 1_000..1_010 {
            gate.stop(connection(late), &mut io);
            assert!(gate.is_paused(connection(late)));
        }
        // Closed clients free some of the budget.
        gate.forget(connection(1));
        gate.resume(&mut io);
        assert_eq!(io.paused.len(), 10, "a little room is not enough for everybody");
        gate.release(|_| true, &mut io);
        gate.resume(&mut io);
        assert_eq!((gate.bytes, gate.pending.len()), (0, 0));
        assert!(io.paused.is_empty(), "everybody is read again");
        assert_eq!(io.outputs.values().map(Vec::len).sum::<usize>(), (clients - 1) as usize * each);
    }
}
