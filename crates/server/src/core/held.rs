//! Replies that wait until what they tell of is safe.
//!
//! A reply that shows a write, or is the answer to one, must not leave before a crash can no longer
//! take that back. Requests are executed at once; what they have put into their connection's output
//! in a turn is looked at when the turn's appends have been handed out ([`Held::settle`]): mostly
//! all is safe then, and nothing happens. What is not is taken out of the output again and waits in
//! here, and what the connection's later requests say queues up behind it.
//!
//! **Invariant:** the replies of a connection leave in the order in which they were given.
//! **Invariant:** who depends on nothing, and has nothing held, does not come in here.

use super::Connections;
use crate::engine::Engine;
use runtime::{CLIENT_BACKLOG_MAX, ConnectionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::log::Dependency;

/// What a connection's requests have said in this turn, from one place in its output on.
struct Fresh {
    connection: ConnectionId,
    from: usize,
    dependency: Option<Dependency>,
}

/// Replies that leave together.
struct Batch {
    replies: Vec<u8>,
    dependency: Option<Dependency>,
}

/// The replies of one connection that wait.
#[derive(Default)]
struct Line {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The connection is not read: too much waits.
    is_paused: bool,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Held {
    fresh: Vec<Fresh>,
    lines: BTreeMap<ConnectionId, Line>,
    /// Connections that end when their replies have left.
    ending: BTreeSet<ConnectionId>,
    /// The engine's count of acknowledgments when the lines were last looked at.
    looked_at: u64,
}

impl Held {
    /// A connection's requests have been executed, and have appended to its output from `from` on.
    #[inline]
    pub(super) fn note(&mut self, connection: ConnectionId, from: usize, engine: &mut Engine) {
        let dependency = engine.take_dependency();
        if dependency.is_some() || (!self.lines.is_empty() && self.lines.contains_key(&connection))
        {
            self.fresh.push(Fresh { connection, from, dependency });
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
        self.lines.remove(&connection);
        self.ending.remove(&connection);
        self.fresh.retain(|fresh| fresh.connection != connection);
    }

    /// Whether the connection is not read since too much waits for it.
    pub(super) fn is_paused(&self, connection: ConnectionId) -> bool {
        self.lines.get(&connection).is_some_and(|line| line.is_paused)
    }

    /// All appends of this turn have been handed out: lets go what is safe, and keeps what is not.
    /// Whoever calls it sends the outputs afterwards.
    #[inline]
    pub(super) fn settle(&mut self, engine: &mut Engine, io: &mut impl Connections) {
        if self.fresh.is_empty() && self.lines.is_empty() {
            return;
        }
        self.settle_all(engine, io);
    }

    fn settle_all(&mut self, engine: &mut Engine, io: &mut impl Connections) {
        // What this turn has said is behind what is held already: it must be out of the output
        // before anything is let go into it.
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|Fresh { connection, dependency, .. }| {
            let waits = dependency.as_ref().is_some_and(|it| !engine.is_acknowledged(it));
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
        for (Fresh { connection, dependency, .. }, replies) in
            fresh.drain(..).zip(replies.drain(..).rev())
        {
            self.hold(connection, Batch { replies, dependency }, io);
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
        let acknowledgments = engine.acknowledgments();
        if self.looked_at != acknowledgments {
            self.looked_at = acknowledgments;
            self.release(engine, io);
        }
    }

    fn hold(&mut self, connection: ConnectionId, batch: Batch, io: &mut impl Connections) {
        let line = self.lines.entry(connection).or_default();
        line.bytes += batch.replies.len();
        line.batches.push_back(batch);
        if line.bytes > CLIENT_BACKLOG_MAX && !line.is_paused {
            line.is_paused = true;
            io.pause_reading(connection);
        }
    }

    fn release(&mut self, engine: &Engine, io: &mut impl Connections) {
        self.lines.retain(|connection, line| {
            let is_safe = |batch: &Batch| {
                batch.dependency.as_ref().is_none_or(|it| engine.is_acknowledged(it))
            };
            while let Some(batch) = line.batches.pop_front_if(|batch| is_safe(batch)) {
                line.bytes -= batch.replies.len();
                io.output(*connection).extend_from_slice(&batch.replies);
            }
            if line.is_paused && line.bytes <= CLIENT_BACKLOG_MAX {
                line.is_paused = false;
                io.resume_reading(*connection);
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
