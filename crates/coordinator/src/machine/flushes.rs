//! Requests of servers for new incarnations of their ranges, which a flush needs.
//!
//! While a flip is undecided, the target may already hold the range under the incarnations of the
//! intent. The source's copy still has those in the map. New incarnations would invalidate the
//! wrong writes. The same holds for ranges recovered from both logs. Such requests wait.

use super::requests::Requester;
use crate::configuration::{ClusterConfiguration, Edit};
use crate::outbox::LinkId;
use crate::records::{Migration, MigrationStage, invalidate};
use types::{ServerId, TableId};

/// Most waiting requests for incarnations.
const FLUSHES_MAX: usize = 1024;

/// Requests that wait for a flip to be decided, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct FlushRequests {
    waiting: Vec<FlushRequest>,
}

/// A server's request for new incarnations: of one table, or of all.
#[derive(Debug)]
pub(super) struct FlushRequest {
    pub(super) requester: Requester,
    pub(super) server: ServerId,
    pub(super) table: Option<TableId>,
}

impl FlushRequests {
    /// Queues a request.
    ///
    /// # Errors
    /// The reason for refusing it.
    pub(super) fn add(
        &mut self,
        requester: Requester,
        table: Option<TableId>,
    ) -> Result<(), &'static str> {
        let Some(server) = requester.server else {
            return Err("Only a server can request a flush of its ranges");
        };
        if table.is_some_and(|table| !table.is_database()) {
            return Err("DB index is out of range");
        }
        if self.waiting.len() >= FLUSHES_MAX {
            return Err("Too many flushes are waiting for moving ranges; try again");
        }
        self.waiting.push(FlushRequest { requester, server, table });
        Ok(())
    }

    /// Drops the requests of a closed connection.
    pub(super) fn closed(&mut self, connection: LinkId) {
        self.waiting.retain(|flush| flush.requester.connection != connection);
    }

    /// Returns every request whose server's incarnations are certain, and keeps the others.
    pub(super) fn take_ready(&mut self, configuration: &ClusterConfiguration) -> Vec<FlushRequest> {
        let (ready, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|flush| !configuration.has_uncertain_incarnations(flush.server));
        self.waiting = waiting;
        assert!(self.waiting.len() <= FLUSHES_MAX, "more flushes wait than the limit");
        ready
    }
}

impl FlushRequest {
    /// Returns the change that grants the request.
    pub(super) fn granted(&self, configuration: &ClusterConfiguration) -> Edit {
        let FlushRequest { server, table, .. } = *self;
        assert!(
            !configuration.has_uncertain_incarnations(server),
            "{server} flushes during a flip"
        );
        let mut edit = configuration.edit();
        edit.renew_incarnations(server, table, configuration);
        // Invalidates the sources' records: those that have not arrived never will, nor do they
        // return.
        for migration in configuration.migrations().values().filter(|m| m.target == server) {
            let mut stage = migration.stage.clone();
            if let MigrationStage::Moving(dependency) = &mut stage {
                invalidate(&mut dependency.source_incarnations, table);
                edit.put_migration(Migration { stage, ..migration.clone() });
            }
        }
        edit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::tests::{empty, migrating, terms};

    fn flush() -> FlushRequest {
        let server = ServerId(1);
        let requester = Requester { connection: LinkId(1), server: Some(server), request: 1 };
        FlushRequest { requester, server, table: None }
    }

    #[test]
    fn a_request_waits_while_a_flip_is_undecided() {
        let mut flushes = FlushRequests::default();
        flushes.add(flush().requester, None).unwrap();
        let undecided = migrating(MigrationStage::Flipping(terms()));
        assert!(flushes.take_ready(&undecided).is_empty());
        assert_eq!(flushes.take_ready(&empty()).len(), 1);
    }

    #[test]
    #[should_panic(expected = "s1 flushes during a flip")]
    fn no_incarnations_are_renewed_during_a_flip() {
        flush().granted(&migrating(MigrationStage::Flipping(terms())));
    }
}
