//! One migration, step by step, interrupted and cancelled before every step; and the limits of
//! the history.

mod support;

use coordinator::{Effect, HISTORY_MAX, LinkId, MIGRATIONS_MAX, SERVERS_MAX, Stopped, TABLETS_MAX};
use std::time::Duration;
use support::{Storage, World, migrate, sent_to, slots};
use types::limits::TABLES_MAX;
use types::{MigrationId, ServerId};
use wire::control::{
    Answer, Ask, FromCoordinator, JoinReply, MigrationRequest, MigrationState, MigrationUpdate,
    ToCoordinator,
};
use wire::frame;

const SOURCE: ServerId = ServerId(1);
const TARGET: ServerId = ServerId(2);
const MIGRATION: MigrationId = MigrationId(1);

/// Returns the messages of a migration with their senders, and whether the migration can still be
/// withdrawn before each.
fn steps() -> Vec<(ServerId, ToCoordinator, bool)> {
    let migration = MIGRATION;
    let ask = ToCoordinator::Ask { request: 1, ask: migrate(slots(0, 9), TARGET) };
    vec![
        (SOURCE, ask, false),
        (SOURCE, MigrationUpdate::Measured { migration, records: 1, bytes: 1 }.into(), true),
        (TARGET, MigrationUpdate::Prepared { migration, refused: None }.into(), true),
        (SOURCE, MigrationUpdate::FlipUnanswered { migration }.into(), true),
        (TARGET, MigrationUpdate::Decided { migration, accepted: true }.into(), true),
        (TARGET, MigrationUpdate::Shrink { migration, remaining: vec![slots(5, 9)] }.into(), false),
        (TARGET, MigrationUpdate::Shrink { migration, remaining: vec![] }.into(), false),
        (SOURCE, MigrationUpdate::Released { migration }.into(), false),
    ]
}

struct Pair {
    world: World,
    source: LinkId,
    target: LinkId,
}

impl Pair {
    fn new(storage: Storage) -> Pair {
        let mut world = World::new(storage);
        let (source, target) = (world.join(None).0, world.join(None).0);
        Pair { world, source, target }
    }

    fn say(&mut self, server: ServerId, message: impl Into<ToCoordinator>) -> Vec<Effect> {
        let connection = if server == SOURCE { self.source } else { self.target };
        self.world.say(connection, message)
    }

    /// Replaces the coordinator. Returns its messages to the rejoining servers.
    fn restart(&mut self) -> [Vec<FromCoordinator>; 2] {
        self.world.restart();
        let (source, mut effects) = self.world.join(Some(SOURCE));
        let (target, more) = self.world.join(Some(TARGET));
        (self.source, self.target) = (source, target);
        effects.extend(more);
        [sent_to(&effects, source), sent_to(&effects, target)]
    }

    fn state(&self) -> MigrationState {
        self.world.coordinator().reports().last().unwrap().state
    }
}

/// Returns the last message to each server apart from maps and answers: its demand.
fn demands(heard: &[Vec<FromCoordinator>; 2]) -> [Option<FromCoordinator>; 2] {
    heard.clone().map(|messages| {
        messages.into_iter().rfind(|message| {
            !matches!(
                message,
                FromCoordinator::Map(_)
                    | FromCoordinator::Join(JoinReply::Welcome { .. })
                    | FromCoordinator::Answer { .. }
                    | FromCoordinator::Migration(MigrationRequest::Outcome { .. })
            )
        })
    })
}

#[test]
fn a_coordinator_that_starts_again_before_any_step_demands_the_same_and_goes_on() {
    for interrupted in 1..=steps().len() {
        for storage in [Storage::memory(), Storage::file()] {
            let mut pair = Pair::new(storage);
            for (number, (server, message, _)) in steps().into_iter().enumerate() {
                let effects = pair.say(server, message);
                if number + 1 == interrupted && interrupted < steps().len() {
                    let before = [sent_to(&effects, pair.source), sent_to(&effects, pair.target)];
                    let after = pair.restart();
                    assert_eq!(demands(&before), demands(&after), "after step {number}");
                }
            }
            if interrupted == steps().len() {
                assert_eq!(demands(&pair.restart()), [None, None]);
            }
            assert_eq!(pair.state(), MigrationState::Success);
            let map = pair.world.coordinator().map();
            assert_eq!((map.tablets[0].range, map.tablets[0].owner), (slots(0, 9), TARGET));
        }
    }
}

#[test]
fn a_cancel_before_any_step_withdraws_or_changes_nothing() {
    for cancelled in 1..steps().len() {
        let mut pair = Pair::new(Storage::memory());
        for (number, (server, message, can_be_withdrawn)) in steps().into_iter().enumerate() {
            if number < cancelled {
                pair.say(server, message);
                continue;
            }
            let cancel =
                ToCoordinator::Ask { request: 2, ask: Ask::Cancel { source: None, task: None } };
            let answers = pair.say(SOURCE, cancel);
            let count = Answer::Cancelled(u32::from(can_be_withdrawn));
            let answer = FromCoordinator::Answer { request: 2, answer: count };
            assert!(sent_to(&answers, pair.source).contains(&answer), "before step {number}");
            // When asked, the target answers that it never accepts, if it still can.
            pair.say(TARGET, MigrationUpdate::Decided { migration: MIGRATION, accepted: false });
            assert_eq!(pair.state() == MigrationState::Cancelled, can_be_withdrawn);
            assert_eq!(pair.world.coordinator().map().tablets.len() == 1, can_be_withdrawn);
            break;
        }
    }
}

#[test]
fn only_so_many_migrations_and_tablets_can_there_be_and_lists_of_them_fit_into_messages() {
    let mut pair = Pair::new(Storage::memory());
    let refused = |effects: &[Effect], connection: LinkId| {
        sent_to(effects, connection).iter().any(|message| {
            matches!(message, FromCoordinator::Answer { answer: Answer::Refused(_), .. })
        })
    };
    let mut slot = 0;
    let mut moved = 0;
    loop {
        // Every second slot, so that each move adds two borders.
        let ranges = (0..MIGRATIONS_MAX as u16 / 2).map(|n| slots(slot + 2 * n, slot + 2 * n));
        let ask = Ask::Migrate {
            ranges: ranges.collect(),
            source: None,
            target: TARGET,
            policy: Default::default(),
        };
        let effects = pair.say(SOURCE, ToCoordinator::Ask { request: 3, ask });
        if refused(&effects, pair.source) {
            break;
        }
        for _ in 0..MIGRATIONS_MAX / 2 {
            moved += 1;
            slot += 2;
            for (server, message, _) in steps_of(MigrationId(moved)) {
                pair.say(server, message);
            }
        }
    }
    let map = pair.world.coordinator().map();
    assert!(map.tablets.len() > TABLETS_MAX / 2, "only {} tablets", map.tablets.len());
    assert_eq!(pair.world.coordinator().reports().len(), HISTORY_MAX);
    assert_eq!(map.tablets[0].incarnations.len(), TABLES_MAX);
    let mut bytes = Vec::new();
    frame::encode(&FromCoordinator::Map(map), 0, &mut bytes).unwrap();
    let answer = Answer::Migrations(pair.world.coordinator().reports());
    frame::encode(&FromCoordinator::Answer { request: 4, answer }, 0, &mut bytes).unwrap();

    // Dropped migrations are answered according to the only possible outcome.
    let old = MigrationId(1);
    let told = pair.say(TARGET, MigrationUpdate::Shrink { migration: old, remaining: vec![] });
    assert_eq!(sent_to(&told, pair.target), [MigrationRequest::Finished { migration: old }.into()]);
    let told = pair.say(SOURCE, MigrationUpdate::FlipUnanswered { migration: old });
    let outcome = MigrationRequest::Outcome { migration: old, accepted: false }.into();
    assert_eq!(sent_to(&told, pair.source), [outcome]);
}

fn steps_of(migration: MigrationId) -> Vec<(ServerId, ToCoordinator, bool)> {
    vec![
        (SOURCE, MigrationUpdate::Measured { migration, records: 1, bytes: 1 }.into(), true),
        (TARGET, MigrationUpdate::Prepared { migration, refused: None }.into(), true),
        (TARGET, MigrationUpdate::Shrink { migration, remaining: vec![] }.into(), true),
        (SOURCE, MigrationUpdate::Released { migration }.into(), true),
    ]
}

#[test]
fn servers_that_are_gone_and_own_nothing_make_room_for_others() {
    let mut world = World::new(Storage::memory());
    let (first, _) = world.join(None);
    for _ in 0..SERVERS_MAX + 10 {
        let (connection, effects) = world.join(None);
        assert!(matches!(
            sent_to(&effects, connection)[0],
            FromCoordinator::Join(JoinReply::Welcome { .. })
        ));
        world.handle(coordinator::CoordinatorEvent::Closed { connection });
    }
    let map = world.coordinator().map();
    assert_eq!(map.servers.len(), 1, "servers that are gone and own nothing are not shown");
    world.handle(coordinator::CoordinatorEvent::Closed { connection: first });
    let (_, effects) = world.join(Some(SOURCE));
    assert!(matches!(
        effects[0],
        Effect::Send { message: FromCoordinator::Join(JoinReply::Welcome { .. }), .. }
    ));
}

#[test]
fn a_coordinator_whose_store_another_one_has_opened_changes_nothing_more() {
    let store = coordinator::MemoryStore::new();
    let mut old = World::new(Storage::Memory(store.clone()));
    let (connection, _) = old.join(None);
    let mut new = World::new(Storage::Memory(store));
    let connect = coordinator::CoordinatorEvent::Received {
        connection,
        message: ToCoordinator::Ask { request: 1, ask: Ask::Flush { table: None } },
    };
    assert!(matches!(old.try_handle(connect), Err(Stopped::Deposed)));
    let (_, effects) = new.join(Some(SOURCE));
    assert!(matches!(
        effects[0],
        Effect::Send { message: FromCoordinator::Join(JoinReply::Welcome { .. }), .. }
    ));
    assert_eq!(new.wait(Duration::from_secs(1)), []);
}
