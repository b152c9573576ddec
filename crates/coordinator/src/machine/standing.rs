//! Check of this coordinator's store, which may be older than the cluster.
//!
//! A folder restored from a backup, or from a disk presumed dead, contains an earlier state of
//! the cluster. A coordinator on it would assign ranges again that have moved since, draw numbers
//! twice, and declare newer servers dead. The store itself does not show that, but the servers
//! can. Each server remembers its highest *mark*: the newest transaction known to it. The
//! coordinator sends the mark of its newest transaction ahead of other messages on the same
//! connection. A server's `Join` returns the highest one.
//!
//! 1. A mark that the store does not contain proves that the store is older than the cluster, or
//!    a branch of it. From then on this coordinator changes nothing, rejects every server, and
//!    informs operators.
//! 2. A starting coordinator is *unconfirmed* until more than half of the servers with data in
//!    its store have joined. A process on the same disk counts for its server. Until then it only
//!    admits servers that it knows, pings them and asks for their clocks, which are needed later
//!    for new servers.
//!
//! This is detection, not proof: see "Known weaknesses" in `docs/design/identity.md`.
//!
//! **Invariant:** a coordinator that is unconfirmed, or has an older store, draws no number and
//! declares no server dead. It assigns and frees nothing, and sends no map or mark.

use super::membership::Rejection;
use super::{Coordinator, Presence, asks::Asker};
use crate::ledger::Stopped;
use crate::outbox::{Caller, ConnectionId, Effect, Event, Moment, Outbox};
use crate::records::Server;
use crate::store::MetaStore;
use std::collections::{BTreeMap, BTreeSet};
use types::{Instant, ServerId};
use wire::control::{Answer, Ask, FromCoordinator, HistoryMark, Join, ToCoordinator};

/// Most asks held until the store is confirmed: usually those of half a second.
const QUESTIONS_MAX: usize = 1024;

/// Trust in this coordinator's store, and the marks that were sent.
#[derive(Debug)]
pub(super) struct Standing {
    state: State,
    /// Newest mark sent on each server's connection.
    told: BTreeMap<ConnectionId, HistoryMark>,
}

#[derive(Debug)]
enum State {
    /// Too few servers have joined yet.
    Unconfirmed {
        /// Servers of the store that have joined.
        heard: BTreeSet<ServerId>,
        /// New servers, admitted after the confirmation.
        waiting: BTreeMap<ConnectionId, Join>,
        /// Changes requested by clients of servers. They are held because no server repeats them.
        questions: Vec<(Asker, Ask)>,
    },
    Confirmed,
    /// The store is older than the cluster; the text explains it.
    Older(String),
}

impl Standing {
    pub(super) fn new(is_confirmed: bool) -> Standing {
        let (heard, waiting, questions) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        let state = match is_confirmed {
            true => State::Confirmed,
            false => State::Unconfirmed { heard, waiting, questions },
        };
        Standing { state, told: BTreeMap::new() }
    }

    /// Returns whether this coordinator may change the configuration.
    pub(super) fn is_confirmed(&self) -> bool {
        matches!(self.state, State::Confirmed)
    }

    pub(super) fn is_older(&self) -> bool {
        matches!(self.state, State::Older(_))
    }

    /// Returns whether a server on this connection waits for admission.
    pub(super) fn is_waiting(&self, connection: ConnectionId) -> bool {
        match &self.state {
            State::Unconfirmed { waiting, .. } => waiting.contains_key(&connection),
            State::Confirmed | State::Older(_) => false,
        }
    }

    /// Drops the state of a closed connection.
    pub(super) fn closed(&mut self, connection: ConnectionId) {
        self.told.remove(&connection);
        if let State::Unconfirmed { waiting, questions, .. } = &mut self.state {
            waiting.remove(&connection);
            questions.retain(|(asker, _)| asker.connection != connection);
        }
    }

    /// Holds an ask until the store is confirmed. Above the limit it stays unanswered, and the
    /// asker times out.
    fn keep_question(&mut self, asker: Asker, ask: Ask) {
        if let State::Unconfirmed { questions, .. } = &mut self.state
            && questions.len() < QUESTIONS_MAX
        {
            questions.push((asker, ask));
        }
    }
}

impl<S: MetaStore> Coordinator<S> {
    /// Returns the servers that can confirm the store.
    fn confirmers(&self) -> impl Iterator<Item = &Server> {
        self.ledger.servers().values().filter(|server| server.can_confirm())
    }

    /// Checks the mark of a join, and counts the server towards confirmation. Returns `false` if
    /// the store is older than the cluster; the connection is then rejected.
    pub(super) fn note_past(
        &mut self,
        at: Moment,
        connection: ConnectionId,
        join: &Join,
        out: &mut Outbox,
    ) -> Result<bool, Stopped> {
        let ours = self.ledger.identity().cluster;
        let of_ours = |number: (types::ClusterId, ServerId)| (number.0 == ours).then_some(number.1);
        let numbers = [join.rejoin.and_then(of_ours), join.former.and_then(of_ours)];
        let servers: BTreeSet<ServerId> = numbers.into_iter().flatten().collect();
        if servers.is_empty() {
            return Ok(true);
        }
        if let Some(mark) = join.mark.filter(|mark| !self.ledger.knows(mark)) {
            self.ledger.check_leads()?;
            self.note_older(at, &mark, out);
            self.reject(connection, older_rejection(&self.standing.state), out);
            return Ok(false);
        }
        if let State::Unconfirmed { heard, .. } = &mut self.standing.state {
            heard.extend(servers);
        }
        Ok(true)
    }

    fn note_older(&mut self, at: Moment, mark: &HistoryMark, out: &mut Outbox) {
        let newest = self.ledger.mark();
        let reason = format!(
            "the coordinator's file is older than the cluster: it ends with transaction {} of term \
             {}, but a server has heard of transaction {} of term {} ({:016x}), which is not in \
             it. Was it restored from a backup? The coordinator changes nothing any more, and the \
             servers continue without it. Stop it and restore the newest file; if that is lost, \
             rebuild it from what the servers know: 'ballast coordinator --rebuild --data-dir NEW' \
             at this address, then 'ballast cluster rebuild'",
            newest.transaction, newest.term, mark.transaction, mark.term, mark.term_id
        );
        tracing::error!(reason, "this coordinator must not continue");
        self.standing.state = State::Older(reason);
        let servers = self.connections.iter().filter(|(_, joined)| joined.is_some());
        let servers: Vec<ConnectionId> = servers.map(|(connection, _)| *connection).collect();
        for connection in servers {
            self.closed(at, connection);
            self.reject(connection, older_rejection(&self.standing.state), out);
        }
    }

    /// Holds the join of an unknown process until the store is confirmed.
    pub(super) fn wait_for_others(
        &mut self,
        connection: ConnectionId,
        join: Join,
        out: &mut Outbox,
    ) {
        if let State::Unconfirmed { waiting, .. } = &mut self.standing.state {
            waiting.insert(connection, join);
            let reason = self.doubt().unwrap_or_default();
            let message = FromCoordinator::Waiting { reason };
            out.push(Effect::Send { connection, message });
        }
    }

    /// Returns how many servers with data must still join before any change.
    pub fn awaited_servers(&self) -> usize {
        let State::Unconfirmed { heard, .. } = &self.standing.state else { return 0 };
        let all = self.confirmers().count();
        let came = self.confirmers().filter(|server| heard.contains(&server.id)).count();
        if all == 0 { 0 } else { (all / 2 + 1).saturating_sub(came) }
    }

    /// Confirms the store if enough servers have joined, and processes held joins and asks.
    pub(super) fn confirm_if_heard(&mut self, at: Moment, out: &mut Outbox) -> Result<(), Stopped> {
        if self.standing.is_confirmed() || self.standing.is_older() || self.awaited_servers() > 0 {
            return Ok(());
        }
        tracing::info!("the servers have confirmed the coordinator's file");
        let before = std::mem::replace(&mut self.standing.state, State::Confirmed);
        let State::Unconfirmed { waiting, questions, .. } = before else { return Ok(()) };
        // The unconfirmed phase may have delayed other servers as well: restart their absence
        // timers.
        for presence in self.presence.values_mut() {
            if let Presence::Expected { since } = presence {
                *since = at.now;
            }
        }
        let connected: Vec<ServerId> = self.connections.values().copied().flatten().collect();
        for server in connected {
            self.adopt_orphans(at, server)?;
        }
        self.map_is_stale = true;
        for (connection, join) in waiting {
            if self.connections.contains_key(&connection) {
                self.join(at, connection, join, out)?;
            }
        }
        for (asker, ask) in questions {
            if self.connections.contains_key(&asker.connection) {
                self.ask(at, asker, ask, out)?;
            }
        }
        Ok(())
    }

    /// Processes a message while the store is unconfirmed: joins of known servers, asks and
    /// clocks. Servers repeat all other messages, so nothing else need be remembered.
    pub(super) fn receive_unconfirmed(
        &mut self,
        at: Moment,
        (connection, joined): (ConnectionId, Option<ServerId>),
        message: ToCoordinator,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        match message {
            ToCoordinator::Join(join) => return self.join(at, connection, join, out),
            ToCoordinator::Ask { request, ask } => {
                let asker = Asker { connection, server: joined, request };
                match (joined, &ask) {
                    (Some(_), Ask::Migrate { .. } | Ask::Cancel { .. } | Ask::Flush { .. }) => {
                        self.standing.keep_question(asker, ask);
                    }
                    _ => self.ask_undecided(at.now, asker, ask, out),
                }
            }
            message => {
                if let (Some(server), ToCoordinator::Clock(reading)) = (joined, message) {
                    self.note_clock(at.now, server, reading);
                }
            }
        }
        if let Some(server) = joined {
            self.note_heard(at.now, server);
        }
        Ok(())
    }

    /// Answers asks that change nothing, and refuses the others.
    fn ask_undecided(&self, now: Instant, asker: Asker, ask: Ask, out: &mut Outbox) {
        let answer = match ask {
            Ask::Standing => Answer::Standing(self.doubt()),
            Ask::Map => Answer::Map(Box::new(self.map())),
            Ask::Recoveries => Answer::Recoveries(self.recoveries()),
            Ask::Clocks => Answer::Clocks(self.clocks.reports()),
            Ask::Health => Answer::Health(self.health(now)),
            Ask::List { task } => {
                Answer::Migrations(self.reports_of(|m| task.is_none_or(|task| task == m.task)))
            }
            Ask::Migrate { .. }
            | Ask::Cancel { .. }
            | Ask::Flush { .. }
            | Ask::AcceptLoss { .. }
            | Ask::Rebuild { .. } => Answer::Refused(self.doubt().unwrap_or_default()),
        };
        asker.answer(answer, out);
    }

    /// Processes an event while the store is older than the cluster.
    pub(super) fn handle_older(&mut self, now: Instant, event: Event, out: &mut Outbox) {
        match event {
            Event::Opened { connection, caller } => {
                self.connections.insert(connection, None);
                self.callers.insert(connection, caller);
            }
            Event::Closed { connection } => {
                self.connections.remove(&connection);
                self.callers.remove(&connection);
            }
            Event::Tick => {}
            Event::Received { connection, message } => {
                let Some(caller) = self.callers.get(&connection).copied() else { return };
                match (caller, message) {
                    (Caller::Operator, ToCoordinator::Ask { request, ask }) => {
                        let asker = Asker { connection, server: None, request };
                        self.ask_undecided(now, asker, ask, out);
                    }
                    _ => self.reject(connection, older_rejection(&self.standing.state), out),
                }
            }
        }
    }

    /// Returns the reason why this store may not be the cluster's current one, with advice.
    pub(super) fn doubt(&self) -> Option<String> {
        match &self.standing.state {
            State::Older(reason) => Some(reason.clone()),
            State::Confirmed => self.ledger.doubt().map(str::to_owned),
            State::Unconfirmed { heard, .. } => {
                let (came, missing): (Vec<&Server>, Vec<&Server>) =
                    self.confirmers().partition(|server| heard.contains(&server.id));
                let names: Vec<String> = missing.iter().map(|s| s.id.to_string()).collect();
                Some(format!(
                    "the coordinator has started, and changes nothing until more than half of its \
                     servers have joined and confirmed that its file is current: {} of {} have, \
                     missing are {}. If they are gone for good, and the file is the newest one, \
                     start the coordinator with --trust-file",
                    came.len(),
                    came.len() + missing.len(),
                    names.join(", ")
                ))
            }
        }
    }

    /// Inserts the newest mark before messages to servers that have not received it.
    ///
    /// No mark is sent before the store is confirmed. If the store proved outdated, a server with
    /// its mark would later take the current store for the outdated one.
    pub(super) fn mark_messages(&mut self, mut effects: Outbox, out: &mut Outbox) {
        let mark = self.ledger.mark();
        let is_confirmed = self.standing.is_confirmed();
        for effect in effects.drain() {
            if let Effect::Send { connection, message } = &effect
                && is_confirmed
                && !matches!(message, FromCoordinator::Rejected { .. })
                && matches!(self.connections.get(connection), Some(Some(_)))
                && self.standing.told.insert(*connection, mark) != Some(mark)
            {
                let (connection, message) = (*connection, FromCoordinator::Mark(mark));
                out.push(Effect::Send { connection, message });
            }
            if let Effect::Close { connection } = &effect {
                self.standing.told.remove(connection);
            }
            out.push(effect);
        }
    }
}

fn older_rejection(state: &State) -> Rejection {
    match state {
        State::Older(reason) => Rejection::from(reason.clone()),
        State::Confirmed | State::Unconfirmed { .. } => Rejection::from(String::new()),
    }
}
