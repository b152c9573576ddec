//! Decisions of components, which the coordinator carries out and then announces.

use crate::configuration::Edit;
use std::collections::BTreeSet;
use types::ServerId;
use wire::control::FromCoordinator;

/// A change of the configuration, and the messages that depend on it.
///
/// The messages leave after the commit: a coordinator that crashes in between has promised nothing.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// The change. `None`: nothing is committed, unless servers are declared dead.
    pub(super) edit: Option<Edit>,
    /// Servers that are declared dead in the same transaction.
    pub(super) dead: BTreeSet<ServerId>,
    pub(super) messages: Vec<(ServerId, FromCoordinator)>,
}

impl Decision {
    /// Decides to change nothing.
    pub(super) fn nothing() -> Decision {
        Decision::default()
    }

    /// Decides to commit a change.
    pub(super) fn commit(edit: Edit) -> Decision {
        Decision { edit: Some(edit), ..Decision::default() }
    }

    /// Decides to declare a server dead.
    pub(super) fn declare_dead(server: ServerId) -> Decision {
        Decision { dead: BTreeSet::from([server]), ..Decision::default() }
    }

    /// Adds a message, to be sent after the commit.
    pub(super) fn then_send(
        mut self,
        to: ServerId,
        message: impl Into<FromCoordinator>,
    ) -> Decision {
        self.messages.push((to, message.into()));
        self
    }
}
