//! Requests of operators, sent directly or through a server.

use crate::configuration::ClusterConfiguration;
use crate::outbox::{Effect, Effects, LinkId};
use crate::records::Server;
use protocols::replication::is_on_own_disk;
use std::time::Duration;
use types::ServerId;
use wire::control::{Answer, FromCoordinator};

/// The requester to which the answer goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester {
    pub(super) connection: LinkId,
    /// The server that asks; `None` for an operator's connection.
    pub(super) server: Option<ServerId>,
    pub(super) request: u64,
}

impl Requester {
    pub(super) fn answer(self, answer: Answer, out: &mut Effects) {
        let message = FromCoordinator::Answer { request: self.request, answer };
        out.push(Effect::Send { connection: self.connection, message });
    }
}

/// Refusal of a rebuild.
pub(super) const HAS_FILE: &str = "the coordinator has its file: to rebuild it from what the \
                                   servers know, start a coordinator with --rebuild and an empty \
                                   data directory";

/// Returns the living servers that are the only backup of their own logs.
pub(super) fn on_own_disk(configuration: &ClusterConfiguration) -> Vec<ServerId> {
    let is_own_backup = |server: &&Server| server.manifest_log.is_some_and(is_on_own_disk);
    configuration.living().filter(is_own_backup).map(|server| server.id).collect()
}

/// Returns a duration in milliseconds, for reports.
pub(super) fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
