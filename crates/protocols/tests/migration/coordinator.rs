//! The coordinator as the machines see it, for one migration at a time and without crashes.

use types::{HashRange, MigrationId, OwnershipEpoch, ServerId, Tenure};
use wire::control::{FromCoordinator, Intent, MigrationPolicy, ToCoordinator};

#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    intents: Vec<Intent>,
    over: Vec<MigrationId>,
    cancelled: Vec<MigrationId>,
}

impl Coordinator {
    pub(crate) fn start(
        &mut self,
        range: HashRange,
        source: ServerId,
        target: ServerId,
        source_epoch: OwnershipEpoch,
        policy: MigrationPolicy,
    ) -> (ServerId, FromCoordinator) {
        let intent = Intent {
            migration: MigrationId(self.intents.len() as u64 + 1),
            range,
            source,
            target,
            source_epoch,
            target_epoch: OwnershipEpoch(source_epoch.0 + 1),
            target_tenures: vec![Tenure(1)],
            bytes: 1024,
            policy,
        };
        self.intents.push(intent.clone());
        (target, FromCoordinator::Prepare(intent))
    }

    /// Withdraws the newest intent for an operator; the target decides whether that succeeds.
    pub(crate) fn cancel(&mut self) -> (ServerId, FromCoordinator) {
        let intent = self.intents.last().expect("a migration was started");
        self.cancelled.push(intent.migration);
        (intent.target, FromCoordinator::Decide { migration: intent.migration })
    }

    /// Tells the source of the newest intent to start once more.
    pub(crate) fn start_again(&self) -> (ServerId, FromCoordinator) {
        let intent = self.intents.last().expect("a migration was started");
        (intent.source, FromCoordinator::Start(intent.clone()))
    }

    pub(crate) fn handle(&mut self, message: &ToCoordinator) -> Vec<(ServerId, FromCoordinator)> {
        let intent = |migration: MigrationId| &self.intents[migration.0 as usize - 1];
        match *message {
            ToCoordinator::Prepared { migration, refused: None } => {
                if self.cancelled.contains(&migration) {
                    return Vec::new();
                }
                let intent = intent(migration);
                vec![(intent.source, FromCoordinator::Start(intent.clone()))]
            }
            ToCoordinator::FlipUnanswered { migration } => {
                vec![(intent(migration).target, FromCoordinator::Decide { migration })]
            }
            ToCoordinator::Decided { migration, accepted } => {
                let outcome = FromCoordinator::Outcome { migration, accepted };
                vec![(intent(migration).source, outcome)]
            }
            ToCoordinator::Shrink { migration, .. } if self.over.contains(&migration) => {
                vec![(intent(migration).target, FromCoordinator::Finished { migration })]
            }
            ToCoordinator::Shrink { migration, ref remaining } => {
                let forget = FromCoordinator::Forget { migration, remaining: remaining.clone() };
                vec![(intent(migration).source, forget)]
            }
            ToCoordinator::Released { migration } => {
                let target = intent(migration).target;
                self.over.push(migration);
                vec![(target, FromCoordinator::Finished { migration })]
            }
            _ => Vec::new(),
        }
    }
}
