//! The parked requests of one reactor, by the cause of their wait.
//!
//! This module holds only tickets (waiter ids). The requests stay with their connections. A ticket
//! of a closed connection or finished request is harmless: its retry finds no request. Each wait
//! has a deadline, after which the request times out. The tickets of timed-out requests are dropped
//! in batches, so at most about half of all tickets are stale, however long a cause persists.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;
use types::ConnectionId;
use types::{Instant, KeyHash, TableId};

/// A request, by connection and number (a waiter id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket {
    pub(crate) connection: ConnectionId,
    pub(crate) number: u64,
}

/// The cause of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Records that have not arrived yet.
    Missing(TableId, Vec<KeyHash>),
    /// Progress of a migration.
    Progress,
    /// A change of tablets or leases: the range is frozen, not owned yet, or being flushed.
    Held,
    /// The next turn: the request met contention, or takes several turns.
    Turn,
    /// The answer of the coordinator, or of the process, to the request of this number.
    Answer(u64),
    /// Replication or sync of earlier writes, or enough replicas for a write; until this time at
    /// most.
    Replicas(Option<Instant>),
    /// The end of a pause: see `CLIENT PAUSE`.
    Paused,
    /// Memory, which the cleaner may still free.
    Memory,
}

/// Longest wait of a request before it is answered with `-TRYAGAIN`.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of timed-out requests from which on their stale tickets are dropped.
const GIVEN_UP_MIN: usize = 1024;

/// Most requests retried per turn: about half a millisecond of work.
const RETRIES_MAX: usize = 512;

/// The tickets of parked requests, by cause.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    missing: HashMap<(TableId, KeyHash), Vec<Ticket>>,
    /// Tickets in `missing`.
    missing_tickets: usize,
    /// Timed-out requests whose tickets may still be here.
    given_up: HashSet<Ticket>,
    progress: Vec<Ticket>,
    held: Vec<Ticket>,
    /// Requests to retry, a bounded number per turn. So many may become runnable together that
    /// retrying all at once would delay all other clients.
    turn: VecDeque<Ticket>,
    paused: Vec<Ticket>,
    /// First come, first served.
    memory: VecDeque<Ticket>,
    /// True if memory was freed, and not all of `memory` has been retried since.
    has_memory_left: bool,
    replicas: BTreeSet<Ticket>,
    /// The time limits of `replicas`.
    replicas_until: BTreeSet<(Instant, Ticket)>,
    /// True if requests were added to `replicas` since the last check.
    has_new_replicas: bool,
    answers: HashMap<u64, Ticket>,
    /// Deadlines in ascending order, since all have the same timeout.
    deadlines: VecDeque<(Instant, Ticket)>,
}

impl Waits {
    /// Parks a request under a cause.
    pub(crate) fn add(&mut self, ticket: Ticket, cause: &Cause) {
        match cause {
            Cause::Missing(table, hashes) => {
                for hash in hashes {
                    let waiting = self.missing.entry((*table, *hash)).or_default();
                    if !waiting.contains(&ticket) {
                        waiting.push(ticket);
                        self.missing_tickets += 1;
                    }
                }
            }
            Cause::Progress => self.progress.push(ticket),
            Cause::Held => self.held.push(ticket),
            Cause::Turn => self.turn.push_back(ticket),
            Cause::Paused => self.paused.push(ticket),
            Cause::Replicas(until) => {
                self.replicas.insert(ticket);
                self.replicas_until.extend(until.map(|until| (until, ticket)));
                self.has_new_replicas = true;
            }
            Cause::Memory => self.memory.push_back(ticket),
            Cause::Answer(request) => {
                self.answers.insert(*request, ticket);
            }
        }
    }

    /// Starts the timeout of a request, when it is parked first.
    pub(crate) fn limit(&mut self, ticket: Ticket, now: Instant) {
        self.deadlines.push_back((now + PARK_TIMEOUT, ticket));
    }

    /// Takes the requests that wait for this record, which has arrived or does not exist.
    pub(crate) fn take_missing(&mut self, table: TableId, hash: KeyHash) -> Vec<Ticket> {
        let tickets = self.missing.remove(&(table, hash)).unwrap_or_default();
        self.missing_tickets -= tickets.len();
        tickets
    }

    /// Marks a request's tickets as stale, whatever the request waited for.
    pub(crate) fn give_up(&mut self, ticket: Ticket) {
        self.given_up.insert(ticket);
        // Each scan passes over at most twice as many tickets as requests timed out since the
        // previous scan.
        if self.given_up.len() >= GIVEN_UP_MIN && 2 * self.given_up.len() >= self.standing() {
            self.drop_given_up();
        }
    }

    /// Returns the number of tickets, without deadlines.
    fn standing(&self) -> usize {
        self.missing_tickets
            + self.progress.len()
            + self.held.len()
            + self.turn.len()
            + self.paused.len()
            + self.replicas.len()
            + self.memory.len()
            + self.answers.len()
    }

    fn drop_given_up(&mut self) {
        let given_up = std::mem::take(&mut self.given_up);
        let waits = |ticket: &Ticket| !given_up.contains(ticket);
        self.missing.retain(|_, tickets| {
            tickets.retain(waits);
            !tickets.is_empty()
        });
        self.missing_tickets = self.missing.values().map(Vec::len).sum();
        self.progress.retain(waits);
        self.held.retain(waits);
        self.turn.retain(waits);
        self.paused.retain(waits);
        self.replicas.retain(waits);
        self.replicas_until.retain(|(_, ticket)| waits(ticket));
        self.memory.retain(waits);
        self.answers.retain(|_, ticket| waits(ticket));
    }

    /// Schedules retries of all requests that wait for a migration's progress.
    pub(crate) fn wake_for_progress(&mut self) {
        self.turn.extend(self.progress.drain(..));
    }

    /// Schedules retries after a tablet change. This includes requests that wait for records or
    /// progress, because their migration may be over.
    pub(crate) fn wake_for_new_tablets(&mut self) {
        self.turn.extend(self.held.drain(..));
        self.turn.extend(self.progress.drain(..));
        self.missing_tickets = 0;
        let mut missing: Vec<_> = self.missing.drain().collect();
        missing.sort_unstable_by_key(|(place, _)| *place);
        self.turn.extend(missing.into_iter().flat_map(|(_, tickets)| tickets));
    }

    /// Takes the requests to retry in this turn, at most `RETRIES_MAX`.
    pub(crate) fn take_turn(&mut self) -> Vec<Ticket> {
        let count = self.turn.len().min(RETRIES_MAX);
        self.turn.drain(..count).collect()
    }

    /// Takes the requests that waited for the end of a pause.
    pub(crate) fn take_paused(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.paused)
    }

    /// Returns whether a request waits for replicas.
    #[inline]
    pub(crate) fn has_replicas(&self) -> bool {
        !self.replicas.is_empty()
    }

    /// Takes the requests that wait for replicas, if `is_news` or if some were added since the last
    /// check.
    pub(crate) fn take_replicas(&mut self, is_news: bool) -> BTreeSet<Ticket> {
        if !std::mem::take(&mut self.has_new_replicas) && !is_news {
            return BTreeSet::new();
        }
        self.replicas_until.clear();
        std::mem::take(&mut self.replicas)
    }

    /// Records that all requests waiting for replicas were checked against the current state.
    pub(crate) fn have_seen_replicas(&mut self) {
        self.has_new_replicas = false;
    }

    /// Takes the requests whose wait for replicas has reached its time limit.
    pub(crate) fn take_impatient(&mut self, now: Instant) -> Vec<Ticket> {
        let mut impatient = Vec::new();
        while let Some((until, ticket)) = self.replicas_until.first().copied()
            && until <= now
        {
            self.replicas_until.pop_first();
            self.replicas.remove(&ticket);
            impatient.push(ticket);
        }
        impatient
    }

    /// Drops a closed connection's tickets that wait for replicas, possibly without limit.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        if self.has_replicas() {
            self.replicas.retain(|ticket| ticket.connection != connection);
            self.replicas_until.retain(|(_, ticket)| ticket.connection != connection);
        }
    }

    /// Returns whether a request waits for the end of a pause.
    pub(crate) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// Returns the number of requests that wait for memory.
    pub(crate) fn waiting_for_memory(&self) -> usize {
        self.memory.len()
    }

    /// Returns whether to retry requests that wait for memory. `has_news`: some is free, or none
    /// will be.
    pub(crate) fn is_memory_due(&self, has_news: bool) -> bool {
        !self.memory.is_empty() && (has_news || self.has_memory_left)
    }

    /// Takes the first request that waits for memory.
    pub(crate) fn take_for_memory(&mut self) -> Option<Ticket> {
        let first = self.memory.pop_front();
        self.has_memory_left = !self.memory.is_empty();
        first
    }

    /// Moves the last `count` requests that wait for memory to the front: their retry found none.
    pub(crate) fn stay_first_for_memory(&mut self, count: usize) {
        self.has_memory_left = false;
        self.memory.rotate_right(count);
    }

    /// Takes the request that waits for this answer of the coordinator or process.
    pub(crate) fn take_answer(&mut self, request: u64) -> Option<Ticket> {
        self.answers.remove(&request)
    }

    /// Takes the requests that have timed out.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<Ticket> {
        let mut expired = Vec::new();
        while let Some((deadline, ticket)) = self.deadlines.front().copied()
            && deadline <= now
        {
            self.deadlines.pop_front();
            expired.push(ticket);
        }
        expired
    }

    /// Returns the next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let impatient = self.replicas_until.first().map(|(until, _)| *until);
        self.deadlines.front().map(|(deadline, _)| *deadline).into_iter().chain(impatient).min()
    }

    /// Returns whether the next turn has requests to retry.
    pub(crate) fn has_turn(&self) -> bool {
        !self.turn.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(number: u64) -> Ticket {
        Ticket { connection: ConnectionId::from_number(1), number }
    }

    #[test]
    fn tickets_of_requests_that_were_given_up_do_not_pile_up() {
        let mut waits = Waits::default();
        let living = ticket(0);
        waits.add(living, &Cause::Missing(TableId(0), vec![KeyHash(1)]));
        waits.add(living, &Cause::Held);
        for number in 1..20_000 {
            let hashes = vec![KeyHash(1), KeyHash(number)];
            let causes =
                [Cause::Missing(TableId(0), hashes), Cause::Held, Cause::Memory, Cause::Progress];
            waits.add(ticket(number), &causes[number as usize % causes.len()]);
            waits.give_up(ticket(number));
            assert!(waits.standing() <= 2 * (GIVEN_UP_MIN + 2), "{} tickets", waits.standing());
        }
        assert!(waits.take_missing(TableId(0), KeyHash(1)).contains(&living));
        waits.wake_for_new_tablets();
        let mut woken = Vec::new();
        while waits.has_turn() {
            woken.extend(waits.take_turn());
        }
        assert!(woken.contains(&living), "who still waits is not forgotten");
        assert_eq!(waits.missing_tickets, 0);
    }
}
