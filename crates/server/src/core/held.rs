//! Replies that wait until what they tell of is safe.
//!
//! A reply that shows a write, or is the answer to one, must not leave before a crash can no longer
//! take that back. Requests are executed at once; what they have put into their connection's output
//! in a turn is looked at when the turn's appends have been handed out ([`Held::settle`]): mostly
//! all is safe then, and nothing happens. What is not is taken out of the output again and waits in
//! here, and what the connection's later requests say queues up behind it.
//!
//! While backups say nothing, every reply waits. All that wait share a budget; when it is used up,
//! no more requests are executed ([`Held::is_full`]), as if clients had sent nothing more.
//!
//! **Invariant:** the replies of a connection leave in the order in which they were given.
//! **Invariant:** who depends on nothing, and has nothing held, does not come in here.
//! **Invariant:** what waits has at most the bytes of the budget and of one connection's input.

use super::Connections;
use crate::engine::Engine;
use runtime::{CLIENT_BACKLOG_MAX, ConnectionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use store::log::Dependency;
use types::Instant;

/// What a connection's requests have said in this turn, from one place in its output on.
struct Fresh {
    connection: ConnectionId,
    from: usize,
    dependency: Option<Dependency>,
    /// When it was executed, if a beat that was sent after that must be acknowledged.
    executed: Option<Instant>,
}

/// Replies that leave together.
struct Batch {
    replies: Vec<u8>,
    dependency: Option<Dependency>,
    executed: Option<Instant>,
}

impl Batch {
    fn is_safe(&self, engine: &Engine) -> bool {
        self.dependency.as_ref().is_none_or(|it| engine.is_acknowledged(it))
            && self.executed.is_none_or(|executed| engine.is_confirmed(executed))
    }
}

/// The replies of one connection that wait.
#[derive(Default)]
struct Line {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The connection is not read: too much waits.
    is_paused: bool,
}

/// The part of a server's memory that replies may take while they wait, beside it.
const BUDGET_PART: usize = 16;
/// The least budget of a server: some of the largest replies.
const BUDGET_MIN: usize = 16 << 20;

/// The replies of one reactor's connections that wait.
#[derive(Default)]
pub(super) struct Held {
    /// Bytes of replies that wait, those of this turn included.
    bytes: usize,
    /// Bytes of them that were said in this turn.
    fresh_bytes: usize,
    /// The budget of this reactor.
    bytes_max: usize,
    /// Connections that are not read since the budget is used up.
    stopped: BTreeSet<ConnectionId>,
    fresh: Vec<Fresh>,
    lines: BTreeMap<ConnectionId, Line>,
    /// Connections that end when their replies have left.
    ending: BTreeSet<ConnectionId>,
    /// The engine's count of acknowledgments and the end of its lease when the lines were last looked at.
    looked_at: (u64, Option<u64>),
}

impl Held {
    /// Nothing waits. Each of the server's reactors has the same part of the budget.
    pub(super) fn new(memory_bytes: usize, reactors: u16) -> Held {
        let budget = (memory_bytes / BUDGET_PART).max(BUDGET_MIN);
        Held { bytes_max: budget / usize::from(reactors.max(1)), ..Held::default() }
    }

    /// A connection's requests have been executed, and have appended to its output what stands in
    /// this place there.
    #[inline]
    pub(super) fn note(
        &mut self,
        connection: ConnectionId,
        said: Range<usize>,
        engine: &mut Engine,
        now: Instant,
    ) {
        let (dependency, executed) = (engine.take_dependency(), engine.take_data(now));
        if dependency.is_some()
            || executed.is_some()
            || (!self.lines.is_empty() && self.lines.contains_key(&connection))
        {
            self.fresh_bytes += said.len();
            self.bytes += said.len();
            self.fresh.push(Fresh { connection, from: said.start, dependency, executed });
        }
    }

    /// Returns whether so much waits that nothing more may be executed.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.bytes > self.bytes_max
    }

    /// Reads a connection no more until less waits.
    #[cold]
    pub(super) fn stop(&mut self, connection: ConnectionId, io: &mut impl Connections) {
        self.stopped.insert(connection);
        io.pause_reading(connection);
    }

    /// Reads connections again that were stopped, once half of the budget is free: else each reply
    /// that leaves would let everybody in.
    fn resume(&mut self, io: &mut impl Connections) {
        if !self.stopped.is_empty() && self.bytes <= self.bytes_max / 2 {
            for connection in std::mem::take(&mut self.stopped) {
                if !self.is_paused(connection) {
                    io.resume_reading(connection);
                }
            }
        }
    }

    /// Whether the end of a connection must wait for replies that are still held. If so it ends
    /// when they have left.
    pub(super) fn delays_end(&mut self, connection: ConnectionId) -> bool {
        let is_fresh = self.fresh.iter().any(|fresh| fresh.connection == connection);
        let is_held = is_fresh || self.lines.contains_key(&connection);
        if is_held {
            self.ending.insert(connection);
        }
        is_held
    }

    /// The connection is gone.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let line = self.lines.remove(&connection);
        self.bytes -= line.map_or(0, |line| line.bytes);
        self.stopped.remove(&connection);
        self.ending.remove(&connection);
        self.fresh.retain(|fresh| fresh.connection != connection);
    }

    /// Returns whether the connection is not read since too much waits, for it or in all.
    pub(super) fn is_paused(&self, connection: ConnectionId) -> bool {
        self.lines.get(&connection).is_some_and(|line| line.is_paused)
            || self.stopped.contains(&connection)
    }

    /// All appends of this turn have been handed out: lets go what is safe, and keeps what is not.
    /// Whoever calls it sends the outputs afterwards.
    #[inline]
    pub(super) fn settle(&mut self, engine: &mut Engine, io: &mut impl Connections) {
        if self.fresh.is_empty() && self.lines.is_empty() && self.stopped.is_empty() {
            return;
        }
        // Bytes that still wait are counted again.
        self.bytes -= std::mem::take(&mut self.fresh_bytes);
        self.settle_all(engine, io);
        self.resume(io);
    }

    fn settle_all(&mut self, engine: &mut Engine, io: &mut impl Connections) {
        // What this turn has said is behind what is held already: it must be out of the output
        // before anything is let go into it.
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|Fresh { connection, dependency, executed, .. }| {
            let waits = dependency.as_ref().is_some_and(|it| !engine.is_acknowledged(it))
                || executed.is_some_and(|executed| !engine.is_confirmed(executed));
            if waits {
                self.lines.entry(*connection).or_default();
            }
            self.lines.contains_key(connection)
        });
        // From the last one on, so that each takes what its own requests have said and no more.
        let take = |Fresh { connection, from, .. }: &Fresh| {
            let output = io.output(*connection);
            if output.len() > *from { output.split_off(*from) } else { Vec::new() }
        };
        let mut replies: Vec<Vec<u8>> = fresh.iter().rev().map(take).collect();
        for (Fresh { connection, dependency, executed, .. }, replies) in
            fresh.drain(..).zip(replies.drain(..).rev())
        {
            self.hold(connection, Batch { replies, dependency, executed }, io);
        }
        self.fresh = fresh;
        engine.note_held(!self.lines.is_empty());
        // Who acknowledges wakes those who have said so by then.
        self.look(engine, io);
        self.end_connections(io);
        engine.note_held(!self.lines.is_empty());
    }

    /// Lets go what has become safe since the last look.
    fn look(&mut self, engine: &Engine, io: &mut impl Connections) {
        let news = (engine.acknowledgments(), engine.lease_until());
        if self.looked_at != news {
            self.looked_at = news;
            self.release(|batch| batch.is_safe(engine), io);
        }
    }

    fn hold(&mut self, connection: ConnectionId, batch: Batch, io: &mut impl Connections) {
        let line = self.lines.entry(connection).or_default();
        line.bytes += batch.replies.len();
        self.bytes += batch.replies.len();
        line.batches.push_back(batch);
        if line.bytes > CLIENT_BACKLOG_MAX && !line.is_paused {
            line.is_paused = true;
            io.pause_reading(connection);
        }
    }

    fn release(&mut self, is_safe: impl Fn(&Batch) -> bool, io: &mut impl Connections) {
        self.lines.retain(|connection, line| {
            while let Some(batch) = line.batches.pop_front_if(|batch| is_safe(batch)) {
                line.bytes -= batch.replies.len();
                self.bytes -= batch.replies.len();
                io.output(*connection).extend_from_slice(&batch.replies);
            }
            if line.is_paused && line.bytes <= CLIENT_BACKLOG_MAX {
                line.is_paused = false;
                if !self.stopped.contains(connection) {
                    io.resume_reading(*connection);
                }
            }
            !line.batches.is_empty()
        });
    }

    fn end_connections(&mut self, io: &mut impl Connections) {
        let lines = &self.lines;
        self.ending.retain(|connection| {
            let is_held = lines.contains_key(connection);
            if !is_held {
                io.close_after_flush(*connection);
            }
            is_held
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets that remember which of them are read.
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

    fn reply(bytes: usize) -> Batch {
        Batch { replies: vec![b'x'; bytes], dependency: None, executed: None }
    }

    #[test]
    fn replies_that_wait_share_a_budget_whatever_the_number_of_clients() {
        let (mut held, mut io) = (Held::new(0, 4), Sockets::default());
        let (each, mut clients) = (CLIENT_BACKLOG_MAX / 2, 0);
        while !held.is_full() {
            clients += 1;
            held.hold(connection(clients), reply(each), &mut io);
            assert!(clients < 1_000, "nobody is stopped");
        }
        assert!(held.bytes <= BUDGET_MIN / 4 + each, "{} bytes wait", held.bytes);
        assert!(io.paused.is_empty(), "none of them has too much of its own");
        // A request that arrives now is not executed.
        for late in 1_000..1_010 {
            held.stop(connection(late), &mut io);
            assert!(held.is_paused(connection(late)));
        }
        // Clients that go away leave room.
        held.forget(connection(1));
        held.resume(&mut io);
        assert_eq!(io.paused.len(), 10, "a little room is not enough for everybody");
        held.release(|_| true, &mut io);
        held.resume(&mut io);
        assert_eq!((held.bytes, held.lines.len()), (0, 0));
        assert!(io.paused.is_empty(), "everybody is read again");
        assert_eq!(io.outputs.values().map(Vec::len).sum::<usize>(), (clients - 1) as usize * each);
    }
}
