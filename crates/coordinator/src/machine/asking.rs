//! Answers to requests of operators and of servers' clients.

use super::Coordinator;
use super::leases::LeaseOutcome;
use super::requests::{HAS_FILE, Requester, milliseconds, on_own_disk};
use crate::admission::MoveRequest;
use crate::configuration_store::Stopped;
use crate::outbox::{Effects, Moment};
use crate::records::Migration;
use types::{Instant, LeaseId, ServerId};
use wire::control::{Answer, Ask, Health, LogLoss};

impl Coordinator {
    /// Carries out a request, and answers it.
    pub(super) fn ask(
        &mut self,
        at: Moment,
        requester: Requester,
        ask: Ask,
        out: &mut Effects,
    ) -> Result<(), Stopped> {
        let answer = match ask {
            Ask::Migrate { ranges, source, target, policy } => {
                let request = MoveRequest { ranges: &ranges, source, target, policy: &policy };
                self.migrate(at, &request)?
            }
            Ask::Cancel { source, task } => self.cancel(at, |migration| {
                source.is_none_or(|source| source == migration.source)
                    && task.is_none_or(|task| task == migration.task)
            })?,
            // It is answered when its server's incarnations are certain.
            Ask::Flush { table } => match self.flushes.add(requester, table) {
                Ok(()) => return Ok(()),
                Err(reason) => Answer::Refused(reason.to_owned()),
            },
            Ask::Lease { renewed } => self.lease(at.now, renewed),
            Ask::AcceptLoss { dead, loss } => self.accept_loss(at, dead, &loss)?,
            Ask::Rebuild { .. } => Answer::Refused(HAS_FILE.to_owned()),
            Ask::Recoveries
            | Ask::List { .. }
            | Ask::Health
            | Ask::Standing
            | Ask::Clocks
            | Ask::Map => {
                self.ask_undecided(at, requester, &ask, out);
                return Ok(());
            }
        };
        requester.answer(answer, out);
        Ok(())
    }

    /// Answers requests that change nothing, and refuses the others.
    pub(super) fn ask_undecided(
        &self,
        at: Moment,
        requester: Requester,
        ask: &Ask,
        out: &mut Effects,
    ) {
        let doubt = || self.confirmation.doubt(self.store.configuration());
        let answer = match ask {
            Ask::Standing => Answer::Standing(doubt()),
            Ask::Map => Answer::Map(Box::new(self.maps.map(self.view(at), &self.failure_detector))),
            Ask::Recoveries => Answer::Recoveries(self.recoveries.reports(self.view(at))),
            Ask::Clocks => Answer::Clocks(self.clocks.reports()),
            Ask::Health => Answer::Health(self.health(at.now)),
            Ask::List { task } => {
                let is_meant = |migration: &Migration| task.is_none_or(|it| it == migration.task);
                Answer::Migrations(self.migrations.reports(is_meant, self.store.configuration()))
            }
            Ask::Migrate { .. }
            | Ask::Cancel { .. }
            | Ask::Flush { .. }
            | Ask::Lease { .. }
            | Ask::AcceptLoss { .. }
            | Ask::Rebuild { .. } => Answer::Refused(doubt().unwrap_or_default()),
        };
        requester.answer(answer, out);
    }

    fn health(&self, now: Instant) -> Health {
        let silences = self.failure_detector.silences(now);
        Health {
            term: self.store.term(),
            commits: self.store.commits(),
            silence: silences.map(|(server, since)| (server, milliseconds(since))).collect(),
            on_own_disk: on_own_disk(self.store.configuration()),
        }
    }

    /// Queues all moves of a request in one transaction, or none.
    fn migrate(&mut self, at: Moment, request: &MoveRequest<'_>) -> Result<Answer, Stopped> {
        let objection = |server| self.clocks.objection(server);
        match self.migrations.queue(request, objection, self.view(at)) {
            Ok((edit, started)) => {
                self.commit(at, edit)?;
                Ok(Answer::Started(started))
            }
            Err(reason) => Ok(Answer::Refused(reason)),
        }
    }

    fn lease(&mut self, now: Instant, renewed: Option<LeaseId>) -> Answer {
        match self.leases.grant(now, renewed) {
            LeaseOutcome::Granted(grant) => Answer::Lease(Some(grant)),
            LeaseOutcome::Ended => Answer::Lease(None),
            LeaseOutcome::TooMany => Answer::Refused("there are too many leases".to_owned()),
        }
    }

    fn cancel(
        &mut self,
        at: Moment,
        is_meant: impl Fn(&Migration) -> bool,
    ) -> Result<Answer, Stopped> {
        let (cancelled, edit) = self.migrations.cancel(is_meant, self.view(at));
        assert_eq!(cancelled > 0, !edit.is_empty(), "each cancelled migration changes");
        if cancelled > 0 {
            self.commit(at, edit)?;
        }
        Ok(Answer::Cancelled(cancelled))
    }

    fn accept_loss(
        &mut self,
        at: Moment,
        dead: ServerId,
        named: &LogLoss,
    ) -> Result<Answer, Stopped> {
        match self.recoveries.accept_loss(dead, named, self.view(at)) {
            Ok((edit, count)) => {
                self.commit(at, edit)?;
                Ok(Answer::LossAccepted(count))
            }
            Err(reason) => Ok(Answer::Refused(reason)),
        }
    }

    /// Grants every flush whose server's incarnations are certain.
    pub(super) fn grant_flushes(&mut self, at: Moment, out: &mut Effects) -> Result<(), Stopped> {
        for flush in self.flushes.take_ready(self.store.configuration()) {
            let edit = flush.granted(self.store.configuration());
            self.commit(at, edit)?;
            // The requester waits for a new map, even if it owns nothing.
            self.maps.mark_stale();
            assert!(self.maps.is_stale(), "a flush is answered before its map is published");
            let map = self.maps.next_version();
            flush.requester.answer(Answer::Flushed { map }, out);
        }
        Ok(())
    }
}
