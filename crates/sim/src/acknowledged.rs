//! Comparison of recovered ranges with the memory of their dead owner.
//!
//! Clients see only what they read. The simulator sees more: when a server dies that may still
//! serve, it remembers every record of the server's ranges whose bytes all backups had
//! acknowledged. Whichever server serves such a range next must have the record, a newer one, or
//! the tombstone of a later delete.

use crate::failure::{Failure, Rule};
use crate::servers::{SimulatedServer, is_served};
use crate::workload::{Register, RegisterKind};
use std::collections::BTreeMap;
use store::Key;
use types::{Instant, KeyHash, OwnershipEpoch, ServerId, TableId, Version};

/// Records that dead servers had, and that no server has served since.
#[derive(Debug, Default)]
pub(crate) struct AcknowledgedRecords(BTreeMap<(TableId, KeyHash), AcknowledgedRecord>);

#[derive(Debug)]
struct AcknowledgedRecord {
    server: ServerId,
    key: Vec<u8>,
    version: Version,
    /// Epoch under which the dead server owned the record.
    epoch: OwnershipEpoch,
}

impl AcknowledgedRecords {
    /// Remembers the acknowledged records of a server that is about to die. Expiring records and
    /// those of flushed tables are left out: they may disappear without a tombstone.
    pub(crate) fn remember(
        &mut self,
        server: &mut SimulatedServer,
        registers: &[Register],
        now: Instant,
    ) {
        if !server.may_serve(now) {
            return;
        }
        let tablets = server.node.store().tablets();
        let lasting = registers.iter().filter(|it| it.kind != RegisterKind::Flushed);
        let keys = lasting.flat_map(|it| it.keys.iter().map(|(hash, key)| (it.table, *hash, key)));
        for (table, hash, key) in keys {
            let Some(tablet) = tablets.at(hash).filter(|tablet| is_served(tablet)) else {
                continue;
            };
            let log = server.node.store().log();
            let version = server.inspector.look(|worker| {
                let key = Key { hash, bytes: key };
                let found = worker.read(table, &[key], |records| {
                    records[0].filter(|it| it.expiry.is_none()).map(|it| it.version)
                });
                let dependency = worker.take_dependency();
                let is_safe = dependency.is_none_or(|it| log.is_acknowledged(&it));
                found.ok().flatten().filter(|_| is_safe)
            });
            if let Some(version) = version {
                let (server, epoch) = (server.id, tablet.epoch);
                let record = AcknowledgedRecord { server, key: key.clone(), version, epoch };
                self.0.insert((table, hash), record);
            }
        }
    }

    /// Checks the records in the ranges that a server has begun to serve, and forgets them.
    pub(crate) fn check(&mut self, server: &mut SimulatedServer) -> Result<(), Failure> {
        if self.0.is_empty() || server.is_dead {
            return Ok(());
        }
        let tablets = server.node.store().tablets();
        let mut checked = Vec::new();
        for (&(table, hash), record) in &self.0 {
            let tablet = tablets.at(hash).filter(|tablet| is_served(tablet));
            if tablet.is_none_or(|tablet| tablet.epoch <= record.epoch) {
                continue;
            }
            let found = server.inspector.look(|worker| {
                let key = Key { hash, bytes: &record.key };
                let found = worker.read(table, &[key], |records| records[0].map(|it| it.version));
                worker.take_dependency();
                found
            });
            let Ok(version) = found else { continue };
            let is_there = match version {
                Some(version) => version >= record.version,
                None => server.inspector.knows(table, hash),
            };
            if !is_there {
                let (key, id) = (String::from_utf8_lossy(&record.key), server.id);
                let before = format!("{} had acknowledged {}", record.server, record.version);
                let text = format!("{id} serves {version:?} of {key}, but {before}");
                return Err(Rule::NothingForgotten.broken(text));
            }
            checked.push((table, hash));
        }
        checked.iter().for_each(|key| drop(self.0.remove(key)));
        Ok(())
    }
}
