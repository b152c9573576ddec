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

use super::membership::Membership;
use super::rejection::{Rejection, explain_doubt, foreign_cluster};
use super::requests::Requester;
use crate::configuration::{ClusterConfiguration, Edit};
use crate::outbox::{Effect, Effects, LinkId};
use crate::records::Server;
use std::collections::{BTreeMap, BTreeSet};
use types::ServerId;
use wire::control::{Ask, FromCoordinator, HistoryMark, Join, JoinReply};

/// Most asks held until the store is confirmed: usually those of half a second.
const QUESTIONS_MAX: usize = 1024;

/// The term of the coordinator that created the cluster.
const FIRST_TERM: u64 = 1;

/// Trust in this coordinator's store, and the marks that were sent.
#[derive(Debug)]
pub(super) struct Confirmation {
    state: Trust,
    /// Newest mark sent on each server's connection.
    told: BTreeMap<LinkId, HistoryMark>,
    /// A server joined from a disk that has data of this cluster.
    has_seen_data: bool,
}

#[derive(Debug)]
enum Trust {
    /// Too few servers have joined yet.
    Unconfirmed {
        /// Servers of the store that have joined.
        heard: BTreeSet<ServerId>,
        /// New servers, admitted after the confirmation.
        waiting: BTreeMap<LinkId, Join>,
        /// Changes requested by clients of servers. They are held because no server repeats them.
        questions: Vec<(Requester, Ask)>,
    },
    Confirmed,
    /// The store is older than the cluster; the text explains it.
    Older(String),
}

/// Joins and asks that were held until the confirmation.
#[derive(Debug)]
pub(super) struct HeldMessages {
    pub(super) joins: BTreeMap<LinkId, Join>,
    pub(super) asks: Vec<(Requester, Ask)>,
}

impl Confirmation {
    pub(super) fn new(is_confirmed: bool) -> Confirmation {
        let (heard, waiting, questions) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        let state = match is_confirmed {
            true => Trust::Confirmed,
            false => Trust::Unconfirmed { heard, waiting, questions },
        };
        Confirmation { state, told: BTreeMap::new(), has_seen_data: false }
    }

    /// Returns whether this coordinator may change the configuration.
    pub(super) fn is_confirmed(&self) -> bool {
        matches!(self.state, Trust::Confirmed)
    }

    pub(super) fn is_older(&self) -> bool {
        matches!(self.state, Trust::Older(_))
    }

    /// Returns whether a server on this connection waits for admission.
    pub(super) fn is_waiting(&self, connection: LinkId) -> bool {
        match &self.state {
            Trust::Unconfirmed { waiting, .. } => waiting.contains_key(&connection),
            Trust::Confirmed | Trust::Older(_) => false,
        }
    }

    /// Drops the state of a closed connection.
    pub(super) fn closed(&mut self, connection: LinkId) {
        self.told.remove(&connection);
        if let Trust::Unconfirmed { waiting, questions, .. } = &mut self.state {
            waiting.remove(&connection);
            questions.retain(|(requester, _)| requester.connection != connection);
        }
    }

    /// Counts servers that have joined with a known mark towards the confirmation.
    pub(super) fn note_heard(&mut self, servers: BTreeSet<ServerId>) {
        if let Trust::Unconfirmed { heard, .. } = &mut self.state {
            heard.extend(servers);
        }
    }

    /// Holds an ask until the store is confirmed. Above the limit it stays unanswered, and the
    /// requester times out.
    pub(super) fn hold_ask(&mut self, requester: Requester, ask: Ask) {
        if let Trust::Unconfirmed { questions, .. } = &mut self.state {
            if questions.len() < QUESTIONS_MAX {
                questions.push((requester, ask));
            }
            assert!(questions.len() <= QUESTIONS_MAX, "more asks are held than the limit");
        }
    }

    /// Holds the join of an unknown process until the store is confirmed.
    pub(super) fn hold_join(
        &mut self,
        connection: LinkId,
        join: Join,
        configuration: &ClusterConfiguration,
        out: &mut Effects,
    ) {
        if let Trust::Unconfirmed { waiting, .. } = &mut self.state {
            waiting.insert(connection, join);
            let reason = self.doubt(configuration).unwrap_or_default();
            let message = JoinReply::Waiting { reason }.into();
            out.push(Effect::Send { connection, message });
        }
    }

    /// Returns how many servers with data must still join before any change.
    pub(super) fn awaited_servers(&self, configuration: &ClusterConfiguration) -> usize {
        let Trust::Unconfirmed { heard, .. } = &self.state else { return 0 };
        let all = configuration.confirmers().count();
        let came = configuration.confirmers().filter(|server| heard.contains(&server.id)).count();
        assert!(came <= all, "more servers have confirmed than can");
        if all == 0 { 0 } else { (all / 2 + 1).saturating_sub(came) }
    }

    /// Confirms the store if enough servers have joined. Returns the held joins and asks, which
    /// can be processed then.
    pub(super) fn confirm(&mut self, configuration: &ClusterConfiguration) -> Option<HeldMessages> {
        if self.is_confirmed() || self.is_older() || self.awaited_servers(configuration) > 0 {
            return None;
        }
        tracing::info!("the servers have confirmed the coordinator's file");
        assert!(self.told.is_empty(), "a mark was sent before the store was confirmed");
        let before = std::mem::replace(&mut self.state, Trust::Confirmed);
        let Trust::Unconfirmed { waiting, questions, .. } = before else { return None };
        Some(HeldMessages { joins: waiting, asks: questions })
    }

    /// Records that a server knows a mark which the store does not contain.
    pub(super) fn note_older(&mut self, newest: &HistoryMark, mark: &HistoryMark) {
        assert_ne!(newest, mark, "the store contains its own newest mark");
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
        self.state = Trust::Older(reason);
    }

    /// Returns the rejection of every server while the store is older than the cluster.
    pub(super) fn older_rejection(&self) -> Rejection {
        match &self.state {
            Trust::Older(reason) => Rejection::from(reason.clone()),
            Trust::Confirmed | Trust::Unconfirmed { .. } => Rejection::from(String::new()),
        }
    }

    /// Returns the reason why this store may not be the cluster's current one, with advice.
    pub(super) fn doubt(&self, configuration: &ClusterConfiguration) -> Option<String> {
        match &self.state {
            Trust::Older(reason) => Some(reason.clone()),
            Trust::Confirmed => configuration.doubt().map(str::to_owned),
            Trust::Unconfirmed { heard, .. } => {
                let (came, missing): (Vec<&Server>, Vec<&Server>) =
                    configuration.confirmers().partition(|server| heard.contains(&server.id));
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

    /// Detects a cluster that was created by mistake: it is new, and a server joins with data of
    /// another cluster. The coordinator probably started on an empty folder in place of its own.
    /// Returns the change after which no new server is admitted, so that this cluster serves no
    /// client.
    pub(super) fn doubt_if_foreign(
        &mut self,
        join: &Join,
        term: u64,
        configuration: &ClusterConfiguration,
    ) -> Option<Edit> {
        let ours = configuration.identity().cluster;
        self.has_seen_data |= join.disk == Some(ours);
        let is_new = term == FIRST_TERM && !self.has_seen_data && configuration.doubt().is_none();
        let other = foreign_cluster(join, ours).filter(|_| is_new)?;
        let doubt = explain_doubt(ours, other);
        tracing::error!(doubt, "admitting no new servers");
        let mut edit = configuration.edit();
        edit.put_doubt(doubt);
        Some(edit)
    }

    /// Inserts the newest mark before messages to servers that have not received it.
    ///
    /// Messages that waited for a commit while the store proved outdated are dropped: from then on
    /// servers are rejected, and operators answered.
    ///
    /// No mark is sent before the store is confirmed. If the store proved outdated, a server with
    /// its mark would later take the current store for the outdated one.
    pub(super) fn mark_messages(
        &mut self,
        mark: HistoryMark,
        effects: Vec<Effect>,
        membership: &Membership,
        out: &mut Effects,
    ) {
        let is_confirmed = self.is_confirmed();
        assert!(is_confirmed || self.told.is_empty(), "a mark was sent without confirmation");
        for effect in effects {
            if self.is_older() && !is_sent_by_older(&effect) {
                continue;
            }
            if let Effect::Send { connection, message } = &effect
                && is_confirmed
                && !matches!(message, FromCoordinator::Join(JoinReply::Rejected { .. }))
                && membership.server_on(*connection).is_some()
                && self.told.insert(*connection, mark) != Some(mark)
            {
                let (connection, message) = (*connection, FromCoordinator::Mark(mark));
                out.push(Effect::Send { connection, message });
            }
            if let Effect::Close { connection } = &effect {
                self.told.remove(connection);
            }
            out.push(effect);
        }
    }
}

/// Returns whether a coordinator with an older store may have this effect.
fn is_sent_by_older(effect: &Effect) -> bool {
    match effect {
        Effect::Close { .. } => true,
        Effect::Send { message, .. } => {
            matches!(
                message,
                FromCoordinator::Join(JoinReply::Rejected { .. }) | FromCoordinator::Answer { .. }
            )
        }
        Effect::Commit(_) => unreachable!("a transaction is no effect of a component"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the store contains its own newest mark")]
    fn a_store_knows_its_own_newest_mark() {
        let mark = HistoryMark { term: 3, term_id: 7, transaction: 9 };
        Confirmation::new(false).note_older(&mark, &mark);
    }
}
