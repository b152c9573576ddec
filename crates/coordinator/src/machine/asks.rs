//! Requests of operators, sent directly or through a server.

use super::{Coordinator, Flush};
use crate::admission::{MoveRequest, plan};
use crate::ledger::Stopped;
use crate::outbox::{ConnectionId, Effect, Moment, Outbox};
use crate::records::{Ending, Migration, Server, Stage};
use crate::store::MetaStore;
use protocols::replication::is_on_own_disk;
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{Instant, MigrationId, ServerId, TableId, Tenure};
use wire::control::{Answer, Ask, FromCoordinator, Health, MigrationProgress};

/// Most waiting requests for incarnations.
const FLUSHES_MAX: usize = 1024;

/// The requester to which the answer goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) connection: ConnectionId,
    /// The server that asks; `None` for an operator's connection.
    pub(super) server: Option<ServerId>,
    pub(super) request: u64,
}

impl Asker {
    pub(super) fn answer(self, answer: Answer, out: &mut Outbox) {
        let message = FromCoordinator::Answer { request: self.request, answer };
        out.push(Effect::Send { connection: self.connection, message });
    }
}

impl<S: MetaStore> Coordinator<S> {
    pub(super) fn ask(
        &mut self,
        at: Moment,
        asker: Asker,
        ask: Ask,
        out: &mut Outbox,
    ) -> Result<(), Stopped> {
        match ask {
            Ask::Migrate { ranges, source, target, policy } => {
                let request = MoveRequest { ranges: &ranges, source, target, policy: &policy };
                let answer = self.migrate(at, &request)?;
                asker.answer(answer, out);
            }
            Ask::Cancel { source, task } => {
                let is_meant = |migration: &Migration| {
                    source.is_none_or(|source| source == migration.source)
                        && task.is_none_or(|task| task == migration.task)
                };
                let cancelled = self.cancel(at, is_meant)?;
                asker.answer(Answer::Cancelled(cancelled), out);
            }
            Ask::List { task } => {
                let reports = self.reports_of(|m| task.is_none_or(|task| task == m.task));
                asker.answer(Answer::Migrations(reports), out);
            }
            Ask::Flush { table } => self.ask_flush(asker, table, out),
            Ask::Recoveries => asker.answer(Answer::Recoveries(self.recoveries()), out),
            Ask::AcceptLoss { dead, loss } => {
                let answer = self.accept_loss(at, dead, &loss)?;
                asker.answer(answer, out);
            }
            Ask::Rebuild { .. } => {
                let reason = "the coordinator has its file: to rebuild it from what the servers \
                              know, start a coordinator with --rebuild and an empty data directory";
                asker.answer(Answer::Refused(reason.to_owned()), out);
            }
            Ask::Health => asker.answer(Answer::Health(self.health(at.now)), out),
            Ask::Standing => {
                asker.answer(Answer::Standing(self.doubt()), out);
            }
            Ask::Clocks => asker.answer(Answer::Clocks(self.clocks.reports()), out),
            Ask::Map => asker.answer(Answer::Map(Box::new(self.map())), out),
        }
        Ok(())
    }

    pub(super) fn health(&self, now: Instant) -> Health {
        let milliseconds =
            |silence: Duration| u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
        let silence = self.hearing.silences(now);
        let living = self.ledger.servers().values().filter(|server| !server.fenced);
        let is_alone = |server: &&Server| server.chain.is_some_and(is_on_own_disk);
        Health {
            term: self.ledger.term(),
            commits: self.ledger.commits(),
            silence: silence.map(|(server, since)| (server, milliseconds(since))).collect(),
            on_own_disk: living.filter(is_alone).map(|server| server.id).collect(),
        }
    }

    /// Queues all moves of a request in one transaction, or none.
    fn migrate(&mut self, at: Moment, request: &MoveRequest<'_>) -> Result<Answer, Stopped> {
        let is_connected = |server| self.connection_of(server).is_some();
        let moves = match plan(&self.ledger, request, is_connected) {
            Ok(moves) => moves,
            Err(reason) => return Ok(Answer::Refused(reason)),
        };
        let sides = moves.iter().map(|(_, source)| *source).chain([request.target]);
        let mut objections = sides.filter_map(|server| self.clocks.objection(server));
        if let Some(reason) = objections.next().filter(|_| self.settings.limits_skew) {
            return Ok(Answer::Refused(reason));
        }
        let mut edit = self.ledger.edit();
        let mut started: Vec<MigrationId> = Vec::with_capacity(moves.len());
        for (range, source) in moves {
            let id = edit.counters.draw_migration();
            edit.put_migration(Migration {
                id,
                task: started.first().copied().unwrap_or(id),
                range,
                source,
                target: request.target,
                policy: *request.policy,
                created: at.wall,
                updated: at.wall,
                progress: MigrationProgress::default(),
                is_inheritance: false,
                stage: Stage::Queued,
            });
            started.push(id);
        }
        self.commit(at, edit)?;
        Ok(Answer::Started(started))
    }

    /// Cancels migrations. Those unknown to their target end at once; the others end after the
    /// target has been asked.
    fn cancel(
        &mut self,
        at: Moment,
        is_meant: impl Fn(&Migration) -> bool,
    ) -> Result<u32, Stopped> {
        let mut edit = self.ledger.edit();
        let mut cancelled = 0;
        for migration in self.ledger.migrations().values().filter(|m| is_meant(m)) {
            let stage = match &migration.stage {
                Stage::Queued | Stage::Measuring => {
                    Stage::Ended { ending: Ending::Cancelled, unheard: None }
                }
                Stage::Preparing(terms) | Stage::Withdrawing { terms, .. } => {
                    Stage::Withdrawing { terms: terms.clone(), ending: Ending::Cancelled }
                }
                Stage::Flipping(terms) | Stage::Deciding { terms, .. } => {
                    Stage::Deciding { terms: terms.clone(), otherwise: Ending::Cancelled }
                }
                Stage::Orphaned { terms, .. } => {
                    Stage::Orphaned { terms: terms.clone(), otherwise: Ending::Cancelled }
                }
                Stage::Moving(_)
                | Stage::Recovering(_)
                | Stage::Securing(_)
                | Stage::Releasing { .. }
                | Stage::Ended { .. } => continue,
            };
            cancelled += 1;
            edit.put_migration(Migration { stage, updated: at.wall, ..migration.clone() });
        }
        if cancelled > 0 {
            self.commit(at, edit)?;
        }
        Ok(cancelled)
    }

    fn ask_flush(&mut self, asker: Asker, table: Option<TableId>, out: &mut Outbox) {
        let Asker { connection, server, request } = asker;
        let Some(server) = server else {
            let reason = "Only a server can request a flush of its ranges".to_owned();
            return asker.answer(Answer::Refused(reason), out);
        };
        if table.is_some_and(|table| usize::from(table.0) >= TABLES_MAX) {
            asker.answer(Answer::Refused("DB index is out of range".to_owned()), out);
        } else if self.flushes.len() >= FLUSHES_MAX {
            let reason = "Too many flushes are waiting for moving ranges; try again";
            asker.answer(Answer::Refused(reason.to_owned()), out);
        } else {
            self.flushes.push(Flush { connection, server, request, table });
        }
    }

    /// Grants every flush whose server's incarnations are certain.
    ///
    /// While a flip is undecided, the target may already hold the range under the incarnations of
    /// the intent. The source's copy still has those in the map. New incarnations would
    /// invalidate the wrong writes. The same holds for ranges recovered from both logs.
    pub(super) fn settle_flushes(&mut self, at: Moment, out: &mut Outbox) -> Result<(), Stopped> {
        let (ready, waiting) = std::mem::take(&mut self.flushes)
            .into_iter()
            .partition(|flush| !self.has_uncertain_tenures(flush.server));
        self.flushes = waiting;
        for flush in ready {
            let Flush { connection, server, request, table } = flush;
            self.renew_tenures(at, server, table)?;
            let map = self.next_map_version();
            Asker { connection, server: Some(server), request }
                .answer(Answer::Flushed { map }, out);
        }
        Ok(())
    }

    fn has_uncertain_tenures(&self, server: ServerId) -> bool {
        let is_side = |m: &&Migration| m.source == server || m.target == server;
        let mut sides = self.ledger.migrations().values().filter(is_side);
        sides.any(|m| m.is_undecided() || m.is_recovering())
    }

    fn renew_tenures(
        &mut self,
        at: Moment,
        server: ServerId,
        table: Option<TableId>,
    ) -> Result<(), Stopped> {
        let mut edit = self.ledger.edit();
        for tablet in self.ledger.tablets().values().filter(|tablet| tablet.owner == server) {
            let mut tablet = tablet.clone();
            match table {
                Some(table) => {
                    tablet.tenures[usize::from(table.0)] = edit.counters.draw_tenure();
                }
                None => tablet.tenures = edit.counters.draw_tenures(),
            }
            edit.put_tablet(tablet);
        }
        // Invalidates the sources' records: those that have not arrived never will, nor do they
        // return.
        for migration in self.ledger.migrations().values().filter(|m| m.target == server) {
            let mut stage = migration.stage.clone();
            if let Stage::Moving(dependency) | Stage::Securing(dependency) = &mut stage {
                match table {
                    Some(table) => dependency.source_tenures[usize::from(table.0)] = Tenure(0),
                    None => dependency.source_tenures.fill(Tenure(0)),
                }
                edit.put_migration(Migration { stage, ..migration.clone() });
            }
        }
        self.commit(at, edit)?;
        // The asker waits for a new map, even if it owns nothing.
        self.map_is_stale = true;
        Ok(())
    }
}
