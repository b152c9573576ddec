//! The surroundings of a component while it handles an event.

use super::membership::Membership;
use crate::configuration::ClusterConfiguration;
use crate::outbox::Moment;

/// Everything that a component may read while it handles an event.
#[derive(Clone, Copy)]
pub(super) struct ClusterView<'c> {
    pub(super) at: Moment,
    pub(super) configuration: &'c ClusterConfiguration,
    pub(super) membership: &'c Membership,
}

impl<'c> ClusterView<'c> {
    pub(super) fn new(
        at: Moment,
        configuration: &'c ClusterConfiguration,
        membership: &'c Membership,
    ) -> ClusterView<'c> {
        ClusterView { at, configuration, membership }
    }
}
