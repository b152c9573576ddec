//! The coordinator as the machines see it, for one migration at a time and without crashes.

use types::{HashRange, Incarnation, MigrationId, OwnershipEpoch, ServerId};
use wire::control::{Intent, MigrationPolicy, MigrationRequest, MigrationUpdate};

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
    ) -> (ServerId, MigrationRequest) {
        let intent = Intent {
            migration: MigrationId(self.intents.len() as u64 + 1),
            range,
            source,
            target,
            source_epoch,
            target_epoch: OwnershipEpoch(source_epoch.0 + 1),
            target_incarnations: vec![Incarnation(1)],
            bytes: 1024,
            policy,
        };
        self.intents.push(intent.clone());
        (target, MigrationRequest::Prepare(intent))
    }

    /// Withdraws the newest intent for an operator; the target decides whether that succeeds.
    pub(crate) fn cancel(&mut self) -> (ServerId, MigrationRequest) {
        let intent = self.intents.last().expect("a migration was started");
        self.cancelled.push(intent.migration);
        (intent.target, MigrationRequest::Decide { migration: intent.migration })
    }

    /// Tells the source of the newest intent to start once more.
    pub(crate) fn start_again(&self) -> (ServerId, MigrationRequest) {
        let intent = self.intents.last().expect("a migration was started");
        (intent.source, MigrationRequest::Start(intent.clone()))
    }

    pub(crate) fn handle(
        &mut self,
        message: &MigrationUpdate,
    ) -> Vec<(ServerId, MigrationRequest)> {
        let intent = |migration: MigrationId| &self.intents[migration.0 as usize - 1];
        match *message {
            MigrationUpdate::Prepared { migration, refused: None } => {
                if self.cancelled.contains(&migration) {
                    return Vec::new();
                }
                let intent = intent(migration);
                vec![(intent.source, MigrationRequest::Start(intent.clone()))]
            }
            MigrationUpdate::FlipUnanswered { migration } => {
                vec![(intent(migration).target, MigrationRequest::Decide { migration })]
            }
            MigrationUpdate::Decided { migration, accepted } => {
                let outcome = MigrationRequest::Outcome { migration, accepted };
                vec![(intent(migration).source, outcome)]
            }
            MigrationUpdate::Shrink { migration, .. } if self.over.contains(&migration) => {
                vec![(intent(migration).target, MigrationRequest::Finished { migration })]
            }
            MigrationUpdate::Shrink { migration, ref remaining } => {
                let forget = MigrationRequest::Forget { migration, remaining: remaining.clone() };
                vec![(intent(migration).source, forget)]
            }
            MigrationUpdate::Released { migration } => {
                let target = intent(migration).target;
                self.over.push(migration);
                vec![(target, MigrationRequest::Finished { migration })]
            }
            _ => Vec::new(),
        }
    }
}
