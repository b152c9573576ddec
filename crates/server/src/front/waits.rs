//! Which requests wait for what, on one reactor.
//!
//! Only tickets stand here; the requests stay with their connections. A ticket whose connection or
//! request is gone is harmless: redeeming it finds nothing. Every wait also has a deadline, after
//! which its tickets are dropped with those of many others: so at most half of all are of requests
//! that were given up, however long what they waited for stays away.

use runtime::ConnectionId;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;
use types::{Instant, KeyHash, TableId};

/// A request of a connection, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket {
    pub(crate) connection: ConnectionId,
    pub(crate) number: u64,
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Records that have not arrived.
    Missing(TableId, Vec<KeyHash>),
    /// The progress of a migration.
    Progress,
    /// Other tablets: the range is frozen, its table is being flushed, or nobody owns it yet.
    Held,
    /// The next turn: a leaf was busy.
    Turn,
    /// The coordinator's answer to this request, or the process's.
    Answer(u64),
    /// Other servers, or a disk, that are to have what was written; at most until this time.
    Replicas(Option<Instant>),
    /// The end of a pause: see `CLIENT PAUSE`.
    Paused,
    /// Memory, which the cleaner may still win.
    Memory,
}

/// How long a request may wait before it is answered with `-TRYAGAIN`.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests that may be given up before anybody looks for their tickets.
const GIVEN_UP_MIN: usize = 1024;

/// Requests that are tried again in one turn: about half a millisecond.
const RETRIES_MAX: usize = 512;

/// The tickets of waiting requests, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    missing: HashMap<(TableId, KeyHash), Vec<Ticket>>,
    /// Tickets in `missing`.
    missing_tickets: usize,
    /// Requests that were given up, and may have tickets here still.
    given_up: HashSet<Ticket>,
    progress: Vec<Ticket>,
    held: Vec<Ticket>,
    /// To be tried again, a bounded number in each turn: a leaf was busy, or what they waited for has
    /// come. So many may have waited that trying them all at once would keep everybody else waiting.
    turn: VecDeque<Ticket>,
    paused: Vec<Ticket>,
    /// First come, first served.
    memory: VecDeque<Ticket>,
    /// There was memory, and not all that wait for it have been tried again since.
    has_memory_left: bool,
    replicas: BTreeSet<Ticket>,
    /// When some of those have waited for long enough.
    replicas_until: BTreeSet<(Instant, Ticket)>,
    /// Requests have begun to wait for other servers since those were looked at.
    has_new_replicas: bool,
    answers: HashMap<u64, Ticket>,
    /// In order of time, since all waits may take equally long.
    deadlines: VecDeque<(Instant, Ticket)>,
}

impl Waits {
    /// A request begins to wait.
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

    /// A request waits for the first time.
    pub(crate) fn limit(&mut self, ticket: Ticket, now: Instant) {
        self.deadlines.push_back((now + PARK_TIMEOUT, ticket));
    }

    /// Requests that wait for this record, which has arrived or does not exist.
    pub(crate) fn take_missing(&mut self, table: TableId, hash: KeyHash) -> Vec<Ticket> {
        let tickets = self.missing.remove(&(table, hash)).unwrap_or_default();
        self.missing_tickets -= tickets.len();
        tickets
    }

    /// A request does not wait any more, whatever it waited for.
    pub(crate) fn give_up(&mut self, ticket: Ticket) {
        self.given_up.insert(ticket);
        // Each look passes over at most twice as many tickets as requests were given up since the
        // last one.
        if self.given_up.len() >= GIVEN_UP_MIN && 2 * self.given_up.len() >= self.standing() {
            self.drop_given_up();
        }
    }

    /// Tickets that wait for anything but time.
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

    /// The progress of a migration has changed: who waits for it is tried again.
    pub(crate) fn wake_for_progress(&mut self) {
        self.turn.extend(self.progress.drain(..));
    }

    /// Tablets have changed: those that were held are tried again, and those that wait for records,
    /// for the migration that would bring them may be over.
    pub(crate) fn wake_for_new_tablets(&mut self) {
        self.turn.extend(self.held.drain(..));
        self.turn.extend(self.progress.drain(..));
        self.missing_tickets = 0;
        let mut missing: Vec<_> = self.missing.drain().collect();
        missing.sort_unstable_by_key(|(place, _)| *place);
        self.turn.extend(missing.into_iter().flat_map(|(_, tickets)| tickets));
    }

    /// Requests to try again in this turn: the first ones, if there are many.
    pub(crate) fn take_turn(&mut self) -> Vec<Ticket> {
        let count = self.turn.len().min(RETRIES_MAX);
        self.turn.drain(..count).collect()
    }

    /// Requests to try again since nothing is paused any more.
    pub(crate) fn take_paused(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.paused)
    }

    /// Returns whether a request waits for other servers.
    #[inline]
    pub(crate) fn has_replicas(&self) -> bool {
        !self.replicas.is_empty()
    }

    /// Requests that wait for other servers, to be tried again if `is_news`, or if some of them are
    /// new.
    pub(crate) fn take_replicas(&mut self, is_news: bool) -> BTreeSet<Ticket> {
        if !std::mem::take(&mut self.has_new_replicas) && !is_news {
            return BTreeSet::new();
        }
        self.replicas_until.clear();
        std::mem::take(&mut self.replicas)
    }

    /// All requests that wait for other servers have been tried by what is known now.
    pub(crate) fn have_seen_replicas(&mut self) {
        self.has_new_replicas = false;
    }

    /// Requests that have waited for other servers for as long as they wanted.
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

    /// A connection is gone, whose request may have waited for other servers, perhaps for ever.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        if self.has_replicas() {
            self.replicas.retain(|ticket| ticket.connection != connection);
            self.replicas_until.retain(|(_, ticket)| ticket.connection != connection);
        }
    }

    /// Whether a request waits for the end of a pause.
    pub(crate) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// How many requests wait for memory.
    pub(crate) fn waiting_for_memory(&self) -> usize {
        self.memory.len()
    }

    /// Whether requests that wait for memory are to be tried again. `has_news`: there is some.
    pub(crate) fn is_memory_due(&self, has_news: bool) -> bool {
        !self.memory.is_empty() && (has_news || self.has_memory_left)
    }

    /// The first request that waits for memory, to be tried again.
    pub(crate) fn take_for_memory(&mut self) -> Option<Ticket> {
        let first = self.memory.pop_front();
        self.has_memory_left = !self.memory.is_empty();
        first
    }

    /// The last `count` requests that began to wait for memory have done so in the place of the
    /// first: there was none for them.
    pub(crate) fn stay_first_for_memory(&mut self, count: usize) {
        self.has_memory_left = false;
        self.memory.rotate_right(count);
    }

    /// The request that asked this of the coordinator, or of the process.
    pub(crate) fn take_answer(&mut self, request: u64) -> Option<Ticket> {
        self.answers.remove(&request)
    }

    /// Requests that have waited too long.
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

    /// When the next request will have waited too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let impatient = self.replicas_until.first().map(|(until, _)| *until);
        self.deadlines.front().map(|(deadline, _)| *deadline).into_iter().chain(impatient).min()
    }

    /// Whether the next turn has something to try again.
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
