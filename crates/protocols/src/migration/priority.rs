//! Priority pulls: records that operations wait for, fetched ahead of the bulk. See
//! `docs/design/migration.md`, "Missing records".
//!
//! Each reactor has one machine per migration, because operations park on the reactor that
//! executed them. The machine knows hashes, not operations. A hash leaves the waiting list
//! through the answer to a priority pull (after the replay of its records) or through the
//! progress of the bulk, whichever comes first. With priority pulls switched off, the list waits
//! for the bulk alone.
//!
//! Invariants:
//! - At most one request asks for a hash at a time, however many operations wait for it.
//! - A waiting hash is woken once it can be served, never before.
//! - A reply to a request that is not in flight changes nothing.
//! - After a failed replay no new request is sent for a while: its cause, mostly a lack of memory,
//!   lasts longer than a round trip.

use super::policy;
use super::text;
use super::timing::PULL_AGAIN;
use crate::{Machine, Outbox, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use types::{HashRange, Instant, KeyHash, MigrationId, OwnershipEpoch, ServerId, TableId};
use wire::control::Intent;
use wire::peer::{PRIORITY_HASHES_MAX, PriorityAnswer, PriorityPull, PriorityReply};
use wire::text::list;

/// The priority pulls of one reactor and migration.
#[derive(Debug)]
pub struct PriorityPulls {
    migration: MigrationId,
    source: ServerId,
    epoch: OwnershipEpoch,
    requests_max: usize,
    hashes_max: usize,
    /// Hashes that operations wait for, by hash first because the bulk passes ranges of hashes.
    waiting: BTreeMap<(KeyHash, TableId), HashState>,
    /// Hashes to request, in the order in which they were wanted. The queue may contain
    /// duplicates and hashes that no operation waits for; only [`HashState::Queued`] ones count.
    queue: VecDeque<(TableId, KeyHash)>,
    in_flight: BTreeMap<u64, PriorityRequest>,
    replaying: BTreeMap<Ticket, Vec<(TableId, KeyHash)>>,
    next_request: u64,
    /// Time before which no new request is sent, because a replay has failed.
    paused_until: Option<Instant>,
}

/// The state of a waiting hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashState {
    Queued,
    Asked(u64),
    Replaying(Ticket),
}

#[derive(Debug)]
struct PriorityRequest {
    hashes: Vec<(TableId, KeyHash)>,
    again: Instant,
}

/// An event at a reactor's priority pulls.
#[derive(Clone, Debug, PartialEq)]
pub enum PriorityEvent {
    /// An operation waits for these missing hashes and looks them up again after this event.
    Wanted {
        /// Their table; all keys of a command are in the same table.
        table: TableId,
        /// The hashes.
        hashes: Vec<KeyHash>,
    },
    /// The source has answered.
    Reply {
        /// The sender.
        from: ServerId,
        /// The answers.
        reply: Box<PriorityReply>,
        /// The records, if there are any.
        payload: Option<Ticket>,
    },
    /// A [`PriorityEffect::Replay`] is complete.
    Replayed {
        /// The ticket from the effect.
        ticket: Ticket,
    },
    /// A [`PriorityEffect::Replay`] failed.
    ReplayFailed {
        /// The ticket from the effect.
        ticket: Ticket,
    },
    /// The bulk has brought all records in this range.
    Passed {
        /// The range between the old progress and the new one.
        range: HashRange,
    },
    /// A deadline has passed: [`Machine::next_deadline`].
    Tick,
}

/// An action that priority pulls ask their driver to take; the driver applies actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum PriorityEffect {
    /// Sends a priority pull to the source, ahead of all other messages.
    Pull {
        /// The receiver.
        to: ServerId,
        /// The pull.
        pull: PriorityPull,
    },
    /// Replays a payload, then reports [`PriorityEvent::Replayed`] or
    /// [`PriorityEvent::ReplayFailed`].
    Replay {
        /// The payload.
        ticket: Ticket,
    },
    /// Drops a payload that is not needed.
    Discard {
        /// The payload.
        ticket: Ticket,
    },
    /// Records, until the progress passes the hash, that the source has no record with it.
    NoteAbsent {
        /// Table of the key.
        table: TableId,
        /// Hash of the key.
        hash: KeyHash,
    },
    /// Restarts every operation of this reactor that waits for the hash.
    Wake {
        /// Table of the key.
        table: TableId,
        /// Hash of the key.
        hash: KeyHash,
    },
}

impl PriorityPulls {
    /// Creates the priority pulls of a migration, without waiting hashes.
    pub fn new(intent: &Intent) -> PriorityPulls {
        let (requests_max, hashes_max) = policy::priority_limits(&intent.policy);
        PriorityPulls {
            migration: intent.migration,
            source: intent.source,
            epoch: intent.target_epoch,
            requests_max,
            hashes_max,
            waiting: BTreeMap::new(),
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            replaying: BTreeMap::new(),
            next_request: 1,
            paused_until: None,
        }
    }

    /// Returns the number of hashes that are wanted and have not arrived.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no operation waits and no pull or replay is outstanding.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty() && self.replaying.is_empty()
    }
}

impl Machine for PriorityPulls {
    type Event = PriorityEvent;
    type Effect = PriorityEffect;

    const TICK: PriorityEvent = PriorityEvent::Tick;

    fn handle(&mut self, now: Instant, event: PriorityEvent, out: &mut Outbox<PriorityEffect>) {
        match event {
            PriorityEvent::Wanted { table, hashes } => {
                hashes.into_iter().for_each(|hash| self.want(table, hash));
            }
            PriorityEvent::Reply { from, reply, payload } => {
                let fits = from == self.source && self.is_answer(&reply);
                let taken = fits && self.receive(&reply, payload, out);
                if let (false, Some(ticket)) = (taken, payload) {
                    out.push(PriorityEffect::Discard { ticket });
                }
            }
            PriorityEvent::Replayed { ticket } => self.replayed(ticket, out),
            PriorityEvent::ReplayFailed { ticket } => {
                out.push(PriorityEffect::Discard { ticket });
                self.ask_again(now, ticket);
            }
            PriorityEvent::Passed { range } => self.pass(range, out),
            PriorityEvent::Tick => {}
        }
        self.reconcile(now, out);
        self.check();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let again = self.in_flight.values().map(|request| request.again);
        again.chain(self.paused_until).min()
    }
}

impl PriorityPulls {
    /// Checks the invariants of the waiting hashes.
    fn check(&self) {
        assert!(
            self.in_flight.len() <= self.requests_max,
            "{} requests are in flight",
            self.in_flight.len()
        );
        debug_assert!(
            self.waiting.values().all(|state| match state {
                HashState::Queued => true,
                HashState::Asked(request) => self.in_flight.contains_key(request),
                HashState::Replaying(ticket) => self.replaying.contains_key(ticket),
            }),
            "a hash waits for an answer that cannot come: {:?}",
            self.waiting
        );
    }

    fn want(&mut self, table: TableId, hash: KeyHash) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.waiting.entry((hash, table))
        {
            place.insert(HashState::Queued);
            if self.requests_max > 0 {
                self.queue.push_back((table, hash));
            }
        }
    }

    /// Returns whether a reply answers all hashes of a request in flight, or a prefix of them.
    fn is_answer(&self, reply: &PriorityReply) -> bool {
        let Some(request) = self.in_flight.get(&reply.request) else { return false };
        let answered = reply.answers.iter().map(|&(table, hash, _)| (table, hash));
        let asked = request.hashes.iter().copied().take(reply.answers.len());
        reply.epoch == self.epoch && !reply.answers.is_empty() && answered.eq(asked)
    }

    /// Processes a valid reply. Returns `false` if no operation waits for the payload any more.
    fn receive(
        &mut self,
        reply: &PriorityReply,
        payload: Option<Ticket>,
        out: &mut Outbox<PriorityEffect>,
    ) -> bool {
        if let Some(request) = self.in_flight.remove(&reply.request) {
            self.ask_for_rest(reply.request, request.hashes.get(reply.answers.len()..));
        }
        let mut found = Vec::new();
        for &(table, hash, answer) in &reply.answers {
            match (answer, payload) {
                (PriorityAnswer::Records, Some(ticket)) => {
                    if let Some(state) = self.waiting.get_mut(&(hash, table)) {
                        *state = HashState::Replaying(ticket);
                        found.push((table, hash));
                    }
                }
                // The source claims records but sent no payload; the hash is requested again.
                (PriorityAnswer::Records, None) => self.queue_again(table, hash),
                (PriorityAnswer::Absent, _) => {
                    out.push(PriorityEffect::NoteAbsent { table, hash });
                    self.wake(table, hash, out);
                }
                (PriorityAnswer::Gone, _) => self.wake(table, hash, out),
            }
        }
        let Some(ticket) = payload else { return true };
        if found.is_empty() {
            return false;
        }
        let before = self.replaying.insert(ticket, found);
        assert!(before.is_none(), "payload {ticket} is replayed twice");
        out.push(PriorityEffect::Replay { ticket });
        true
    }

    /// Puts the unanswered hashes of a request at the front of the queue.
    fn ask_for_rest(&mut self, request: u64, rest: Option<&[(TableId, KeyHash)]>) {
        for &(table, hash) in rest.unwrap_or_default().iter().rev() {
            if let Some(state @ HashState::Asked(_)) = self.waiting.get_mut(&(hash, table))
                && *state == HashState::Asked(request)
            {
                *state = HashState::Queued;
                self.queue.push_front((table, hash));
            }
        }
    }

    fn replayed(&mut self, ticket: Ticket, out: &mut Outbox<PriorityEffect>) {
        for (table, hash) in self.replaying.remove(&ticket).unwrap_or_default() {
            if self.waiting.get(&(hash, table)) == Some(&HashState::Replaying(ticket)) {
                self.wake(table, hash, out);
            }
        }
    }

    /// Queues the hashes of a failed replay, and pauses.
    fn ask_again(&mut self, now: Instant, ticket: Ticket) {
        self.paused_until = Some(now + PULL_AGAIN);
        for (table, hash) in self.replaying.remove(&ticket).unwrap_or_default() {
            self.queue_again(table, hash);
        }
    }

    fn queue_again(&mut self, table: TableId, hash: KeyHash) {
        if let Some(state) = self.waiting.get_mut(&(hash, table)) {
            *state = HashState::Queued;
            self.queue.push_back((table, hash));
        }
    }

    fn wake(&mut self, table: TableId, hash: KeyHash, out: &mut Outbox<PriorityEffect>) {
        if self.waiting.remove(&(hash, table)).is_some() {
            out.push(PriorityEffect::Wake { table, hash });
        }
    }

    fn pass(&mut self, range: HashRange, out: &mut Outbox<PriorityEffect>) {
        let (first, last) = ((range.first(), TableId(0)), (range.last(), TableId(u8::MAX)));
        let passed: Vec<_> = self.waiting.range(first..=last).map(|(&key, _)| key).collect();
        for (hash, table) in passed {
            self.wake(table, hash, out);
        }
        // A request is dropped once all of its hashes have arrived.
        let waiting = &self.waiting;
        self.in_flight.retain(|&number, request| {
            let is_waited_for = |&(table, hash): &(TableId, KeyHash)| {
                waiting.get(&(hash, table)) == Some(&HashState::Asked(number))
            };
            request.hashes.iter().any(is_waited_for)
        });
    }

    /// Sends the pulls that are due.
    fn reconcile(&mut self, now: Instant, out: &mut Outbox<PriorityEffect>) {
        let (migration, epoch, to) = (self.migration, self.epoch, self.source);
        for (&number, request) in &mut self.in_flight {
            if now >= request.again {
                request.again = now + PULL_AGAIN;
                let hashes = request.hashes.clone();
                let pull = PriorityPull { migration, epoch, request: number, hashes };
                out.push(PriorityEffect::Pull { to, pull });
            }
        }
        self.paused_until = self.paused_until.filter(|until| now < *until);
        while self.in_flight.len() < self.requests_max && self.paused_until.is_none() {
            let request = self.next_request;
            let hashes = self.next_hashes(request);
            if hashes.is_empty() {
                return;
            }
            self.next_request += 1;
            let again = now + PULL_AGAIN;
            let sent = PriorityRequest { hashes: hashes.clone(), again };
            let before = self.in_flight.insert(request, sent);
            assert!(before.is_none(), "request {request} is sent twice");
            let pull = PriorityPull { migration, epoch, request, hashes };
            out.push(PriorityEffect::Pull { to, pull });
        }
    }

    /// Takes the next batch from the queue.
    fn next_hashes(&mut self, request: u64) -> Vec<(TableId, KeyHash)> {
        let mut hashes = Vec::new();
        while hashes.len() < self.hashes_max {
            let Some((table, hash)) = self.queue.pop_front() else { break };
            if let Some(state @ HashState::Queued) = self.waiting.get_mut(&(hash, table)) {
                *state = HashState::Asked(request);
                hashes.push((table, hash));
            }
        }
        assert!(hashes.len() <= PRIORITY_HASHES_MAX, "{} hashes in a request", hashes.len());
        hashes
    }
}

impl fmt::Display for PriorityPulls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, flying) = (self.waiting.len(), self.in_flight.len());
        write!(f, "priority pulls of {}: {waiting} waited for, {flying} in flight", self.migration)
    }
}

impl fmt::Display for PriorityEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PriorityEvent::Wanted { table, hashes } => {
                write!(f, "wanted in {table}: {}", list(hashes))
            }
            PriorityEvent::Reply { from, reply, .. } => {
                write!(f, "{from} answers {}: {}", reply.request, text::answers(&reply.answers))
            }
            PriorityEvent::Replayed { ticket } => write!(f, "replayed {ticket}"),
            PriorityEvent::ReplayFailed { ticket } => write!(f, "replay failed {ticket}"),
            PriorityEvent::Passed { range } => write!(f, "passed {range}"),
            PriorityEvent::Tick => f.write_str("tick"),
        }
    }
}

impl fmt::Display for PriorityEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PriorityEffect::Pull { to, pull } => {
                let (request, hashes) = (pull.request, text::wanted(&pull.hashes));
                write!(f, "send {to} priority-pull request {request}: {hashes}")
            }
            PriorityEffect::Replay { ticket } => write!(f, "replay {ticket}"),
            PriorityEffect::Discard { ticket } => write!(f, "discard {ticket}"),
            PriorityEffect::NoteAbsent { table, hash } => write!(f, "note absent {table}/{hash}"),
            PriorityEffect::Wake { table, hash } => write!(f, "wake {table}/{hash}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "2 requests are in flight")]
    fn no_more_requests_are_in_flight_than_the_policy_allows() {
        let mut pulls = PriorityPulls::new(&crate::migration::tests::intent());
        for number in [7, 8] {
            let hashes = vec![(TableId(0), KeyHash(number))];
            let again = Instant(1);
            pulls.in_flight.insert(number, PriorityRequest { hashes, again });
        }
        pulls.handle(Instant(0), PriorityEvent::Tick, &mut Outbox::new());
    }
}
