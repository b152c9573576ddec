//! The parked requests of one reactor, by the cause of their wait.
//!
//! This module holds only waiter ids. The requests stay with their connections. A waiter
//! of a closed connection or finished request is harmless: its retry finds no request. Each wait
//! has a deadline, after which the request times out. The waiters of timed-out requests are dropped
//! in batches, so at most about half of all waiters are stale, however long a cause persists.

use super::blocking::BlockedWaits;
use super::waiter::WaiterId;
use crate::commands::Cause;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;
use types::ConnectionId;
use types::{Instant, KeyHash, TableId};

/// Longest wait of a request before it is answered with `-TRYAGAIN`.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of timed-out requests from which on their stale waiters are dropped.
const GIVEN_UP_MIN: usize = 1024;

/// Most requests retried per turn: about half a millisecond of work.
const RETRIES_MAX: usize = 512;

/// The waiters of parked requests, by cause.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    missing: HashMap<(TableId, KeyHash), Vec<WaiterId>>,
    missing_waiters: usize,
    /// Timed-out requests whose waiters may still be here.
    given_up: HashSet<WaiterId>,
    progress: Vec<WaiterId>,
    held: Vec<WaiterId>,
    /// Requests to retry, a bounded number per turn. So many may become runnable together that
    /// retrying all at once would delay all other clients.
    turn: VecDeque<WaiterId>,
    paused: Vec<WaiterId>,
    /// Requests of clients that have too much unsent output, by connection.
    congested: BTreeMap<ConnectionId, BTreeSet<u64>>,
    /// First come, first served.
    memory: VecDeque<WaiterId>,
    /// True if memory was freed, and not all of `memory` has been retried since.
    has_memory_left: bool,
    replicas: BTreeSet<WaiterId>,
    /// The time limits of `replicas`.
    replicas_until: BTreeSet<(Instant, WaiterId)>,
    /// True if requests were added to `replicas` since the last check.
    has_new_replicas: bool,
    answers: HashMap<u64, WaiterId>,
    /// Requests that wait for keys.
    pub(crate) blocked: BlockedWaits,
    /// Deadlines in ascending order, since all have the same timeout.
    deadlines: VecDeque<(Instant, WaiterId)>,
}

impl Waits {
    /// Parks a request under a cause.
    pub(crate) fn add(&mut self, waiter: WaiterId, cause: &Cause) {
        match cause {
            Cause::Missing(missing) => {
                for hash in &missing.hashes {
                    let waiting = self.missing.entry((missing.table, *hash)).or_default();
                    if !waiting.contains(&waiter) {
                        waiting.push(waiter);
                        self.missing_waiters += 1;
                    }
                }
            }
            Cause::Progress { .. } => self.progress.push(waiter),
            Cause::Held => self.held.push(waiter),
            Cause::Turn => self.turn.push_back(waiter),
            Cause::Paused => self.paused.push(waiter),
            Cause::Replicas(until) => {
                self.replicas.insert(waiter);
                self.replicas_until.extend(until.map(|until| (until, waiter)));
                self.has_new_replicas = true;
            }
            Cause::Memory => self.memory.push_back(waiter),
            // `ConnectionTurn::block` has added it.
            Cause::Blocked(_) => {}
            Cause::Answer(request) => {
                self.answers.insert(*request, waiter);
            }
        }
    }

    /// Starts the timeout of a request, when it is parked first.
    pub(crate) fn limit(&mut self, waiter: WaiterId, now: Instant) {
        self.deadlines.push_back((now + PARK_TIMEOUT, waiter));
    }

    /// Takes requests that wait for this record, which has arrived or does not exist, for a retry at
    /// once: at most `RETRIES_MAX`. Schedules retries of the others.
    pub(crate) fn take_missing(&mut self, table: TableId, hash: KeyHash) -> Vec<WaiterId> {
        let mut waiters = self.missing.remove(&(table, hash)).unwrap_or_default();
        self.missing_waiters -= waiters.len();
        let later = waiters.split_off(waiters.len().min(RETRIES_MAX));
        self.turn.extend(later);
        waiters
    }

    /// Lets a request wait until enough of its connection's output was sent.
    pub(crate) fn add_congested(&mut self, waiter: WaiterId) {
        self.congested.entry(waiter.connection).or_default().insert(waiter.number);
    }

    /// Returns whether a request waits for output of this connection to be sent.
    pub(crate) fn is_congested(&self, connection: ConnectionId) -> bool {
        self.congested.contains_key(&connection)
    }

    /// Returns whether any request waits for output to be sent.
    #[inline]
    pub(crate) fn has_congested(&self) -> bool {
        !self.congested.is_empty()
    }

    /// Schedules retries of the requests whose connections are not congested any more.
    pub(crate) fn wake_congested(&mut self, is_congested: impl Fn(ConnectionId) -> bool) {
        let Waits { congested, turn, .. } = self;
        congested.retain(|&connection, numbers| {
            let stays = is_congested(connection);
            if !stays {
                turn.extend(numbers.iter().map(|&number| WaiterId { connection, number }));
            }
            stays
        });
    }

    /// Marks a request's waiters as stale, whatever the request waited for.
    pub(crate) fn give_up(&mut self, waiter: WaiterId) {
        self.given_up.insert(waiter);
        // Each scan passes over at most twice as many waiters as requests timed out since the
        // previous scan.
        if self.given_up.len() >= GIVEN_UP_MIN && 2 * self.given_up.len() >= self.standing() {
            self.drop_given_up();
        }
    }

    /// Returns the number of waiters, without deadlines.
    fn standing(&self) -> usize {
        self.missing_waiters
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
        let waits = |waiter: &WaiterId| !given_up.contains(waiter);
        self.missing.retain(|_, waiters| {
            waiters.retain(waits);
            !waiters.is_empty()
        });
        self.missing_waiters = self.missing.values().map(Vec::len).sum();
        self.progress.retain(waits);
        self.held.retain(waits);
        self.turn.retain(waits);
        self.paused.retain(waits);
        self.replicas.retain(waits);
        self.replicas_until.retain(|(_, waiter)| waits(waiter));
        self.memory.retain(waits);
        self.answers.retain(|_, waiter| waits(waiter));
    }

    /// Schedules retries of all requests that wait for a migration's progress.
    pub(crate) fn wake_for_progress(&mut self) {
        self.turn.extend(self.progress.drain(..));
    }

    /// Schedules retries after a tablet change, also of the requests that wait for keys, because they
    /// may be elsewhere now.
    pub(crate) fn wake_for_new_tablets(&mut self) {
        self.wake_for_new_map();
        self.turn.extend(self.blocked.all());
    }

    /// Schedules retries after a new map that leaves the tablets. This includes requests that wait for
    /// records or progress, because their migration may be over. Requests that wait for keys stay: there
    /// may be many thousands, and each move between other servers brings several maps.
    pub(crate) fn wake_for_new_map(&mut self) {
        self.turn.extend(self.held.drain(..));
        self.turn.extend(self.progress.drain(..));
        self.missing_waiters = 0;
        let mut missing: Vec<_> = self.missing.drain().collect();
        missing.sort_unstable_by_key(|(place, _)| *place);
        self.turn.extend(missing.into_iter().flat_map(|(_, waiters)| waiters));
    }

    /// Schedules the retry of a request.
    pub(crate) fn schedule(&mut self, waiter: WaiterId) {
        self.turn.push_back(waiter);
    }

    /// Takes the requests to retry in this turn, at most `RETRIES_MAX`.
    pub(crate) fn take_turn(&mut self) -> Vec<WaiterId> {
        let count = self.turn.len().min(RETRIES_MAX);
        self.turn.drain(..count).collect()
    }

    /// Schedules retries of the requests that waited for the end of a pause.
    pub(crate) fn wake_paused(&mut self) {
        self.turn.extend(self.paused.drain(..));
    }

    /// Returns whether a request waits for replicas.
    #[inline]
    pub(crate) fn has_replicas(&self) -> bool {
        !self.replicas.is_empty()
    }

    /// Takes requests that wait for replicas, if `is_news` or if some were added since the last check,
    /// for a retry at once: at most `RETRIES_MAX`. Schedules retries of the others.
    pub(crate) fn take_replicas(&mut self, is_news: bool) -> BTreeSet<WaiterId> {
        if !std::mem::take(&mut self.has_new_replicas) && !is_news {
            return BTreeSet::new();
        }
        self.replicas_until.clear();
        let mut waiters = std::mem::take(&mut self.replicas);
        if let Some(&first_of_others) = waiters.iter().nth(RETRIES_MAX) {
            self.turn.extend(waiters.split_off(&first_of_others));
        }
        waiters
    }

    /// Records that all requests waiting for replicas were checked against the current state.
    pub(crate) fn have_seen_replicas(&mut self) {
        self.has_new_replicas = false;
    }

    /// Takes the requests whose wait for replicas has reached its time limit.
    pub(crate) fn take_impatient(&mut self, now: Instant) -> Vec<WaiterId> {
        let mut impatient = Vec::new();
        while let Some((until, waiter)) = self.replicas_until.first().copied()
            && until <= now
        {
            self.replicas_until.pop_first();
            self.replicas.remove(&waiter);
            impatient.push(waiter);
        }
        impatient
    }

    /// Drops a closed connection's waiters that may wait without limit: for replicas, or for its output.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.congested.remove(&connection);
        if self.has_replicas() {
            self.replicas.retain(|waiter| waiter.connection != connection);
            self.replicas_until.retain(|(_, waiter)| waiter.connection != connection);
        }
    }

    /// Returns whether a request waits for the end of a pause.
    #[inline]
    pub(crate) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// Returns the number of requests that wait for memory.
    #[inline]
    pub(crate) fn waiting_for_memory(&self) -> usize {
        self.memory.len()
    }

    /// Returns whether to retry requests that wait for memory. `has_news`: some is free, or none
    /// will be.
    #[inline]
    pub(crate) fn is_memory_due(&self, has_news: bool) -> bool {
        !self.memory.is_empty() && (has_news || self.has_memory_left)
    }

    /// Takes the first request that waits for memory.
    pub(crate) fn take_for_memory(&mut self) -> Option<WaiterId> {
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
    pub(crate) fn take_answer(&mut self, request: u64) -> Option<WaiterId> {
        self.answers.remove(&request)
    }

    /// Takes the requests that have timed out.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<WaiterId> {
        let mut expired = Vec::new();
        while let Some((deadline, waiter)) = self.deadlines.front().copied()
            && deadline <= now
        {
            self.deadlines.pop_front();
            expired.push(waiter);
        }
        expired
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let impatient = self.replicas_until.first().map(|(until, _)| *until);
        self.deadlines.front().map(|(deadline, _)| *deadline).into_iter().chain(impatient).min()
    }

    /// Returns whether the next turn has requests to retry.
    #[inline]
    pub(crate) fn has_turn(&self) -> bool {
        !self.turn.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Missing;
    use types::MigrationId;

    fn waiter(number: u64) -> WaiterId {
        WaiterId { connection: ConnectionId::from_number(1), number }
    }

    #[test]
    fn waiters_of_requests_that_were_given_up_do_not_pile_up() {
        let mut waits = Waits::default();
        let living = waiter(0);
        let migration = MigrationId(1);
        let missing = |hashes| Cause::Missing(Missing { table: TableId(0), migration, hashes });
        let progress = Cause::Progress { migration, from: KeyHash(0) };
        waits.add(living, &missing(vec![KeyHash(1)]));
        waits.add(living, &Cause::Held);
        for number in 1..20_000 {
            let missing = missing(vec![KeyHash(1), KeyHash(number)]);
            let causes = [missing, Cause::Held, Cause::Memory, progress.clone()];
            waits.add(waiter(number), &causes[number as usize % causes.len()]);
            waits.give_up(waiter(number));
            assert!(waits.standing() <= 2 * (GIVEN_UP_MIN + 2), "{} waiters", waits.standing());
        }
        assert!(waits.take_missing(TableId(0), KeyHash(1)).contains(&living));
        waits.wake_for_new_tablets();
        let mut woken = Vec::new();
        while waits.has_turn() {
            woken.extend(waits.take_turn());
        }
        assert!(woken.contains(&living), "who still waits is not forgotten");
        assert_eq!(waits.missing_waiters, 0);
    }
}
