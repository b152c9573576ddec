//! Tests of a source after the death of its target. In every state, the source stops deleting
//! ranges that return to it, and releases the rest on request.

use protocols::migration::{FrozenState, MigrationSource, SourceEffect, SourceEvent};
use protocols::{Machine, Outbox};
use types::{
    HashRange, Incarnation, Instant, MigrationId, OwnershipEpoch, ServerId, Slot, UnixMillis,
    Version,
};
use wire::control::{Intent, MigrationPolicy, MigrationUpdate};
use wire::peer::RecordCounts;

const MIGRATION: MigrationId = MigrationId(1);

fn slots(first: u16, last: u16) -> HashRange {
    HashRange::of_slots(Slot(first), Slot(last))
}

fn start() -> SourceEvent {
    SourceEvent::Start(Box::new(Intent {
        migration: MIGRATION,
        range: slots(0, 9),
        source: ServerId(1),
        target: ServerId(2),
        source_epoch: OwnershipEpoch(1),
        target_epoch: OwnershipEpoch(2),
        target_incarnations: vec![Incarnation(2)],
        bytes: 0,
        policy: MigrationPolicy::default(),
    }))
}

fn frozen() -> SourceEvent {
    let at = Box::new(FrozenState {
        version_floor: Version(1),
        expiry_clock: UnixMillis(0),
        records: RecordCounts::default(),
    });
    SourceEvent::Frozen { attempt: 1, at }
}

fn caught_up() -> SourceEvent {
    SourceEvent::CaughtUp { attempt: 1 }
}

fn answered(accepted: bool) -> SourceEvent {
    SourceEvent::FlipAnswered { from: ServerId(2), accepted }
}

fn keep(remaining: &[HashRange]) -> SourceEvent {
    SourceEvent::Forget { remaining: remaining.to_vec() }
}

/// Returns the effects of the source at the last event.
fn effects_of(source: &mut MigrationSource, events: Vec<SourceEvent>) -> Vec<SourceEffect> {
    let mut out = Outbox::new();
    for event in events {
        out.drain().for_each(drop);
        source.handle(Instant(0), event, &mut out);
    }
    out.drain().collect()
}

fn is_released(effects: &[SourceEffect]) -> bool {
    effects.iter().any(|effect| {
        *effect == SourceEffect::Tell(MigrationUpdate::Released { migration: MIGRATION })
    })
}

#[test]
fn whatever_the_source_had_come_to_it_releases_a_range_that_has_returned() {
    let ways: [(&str, Vec<SourceEvent>); 7] = [
        ("waiting", vec![]),
        ("catching up", vec![start()]),
        ("freezing", vec![start(), caught_up()]),
        ("given up", vec![start(), caught_up(), SourceEvent::FreezeRefused { attempt: 1 }]),
        ("flipping", vec![start(), caught_up(), frozen()]),
        ("leaving", vec![start(), caught_up(), frozen(), answered(true)]),
        ("withdrawn", vec![start(), caught_up(), frozen(), answered(false)]),
    ];
    for (name, mut events) in ways {
        let mut source = MigrationSource::new(MIGRATION);
        events.push(SourceEvent::Returned { range: slots(0, 9) });
        effects_of(&mut source, events);
        let effects = effects_of(&mut source, vec![keep(&[])]);
        assert!(is_released(&effects), "{name}: {effects:?}");
        let forgets = effects.iter().any(|effect| matches!(effect, SourceEffect::Forget { .. }));
        assert!(!forgets, "{name}: {effects:?}");
        assert!(source.is_over(), "{name}");
        // The source never flips after that, and repeats its answer to each request.
        let effects = effects_of(&mut source, vec![start(), caught_up(), frozen()]);
        assert_eq!(effects, [], "{name}");
        assert!(is_released(&effects_of(&mut source, vec![keep(&[])])), "{name}");
    }
}

/// The requests to recover and to start reach different reactors, so the second may come first.
#[test]
fn a_source_that_starts_after_its_range_has_returned_releases_it() {
    let ways: [(&str, Vec<SourceEvent>); 4] = [
        ("catching up", vec![start()]),
        ("freezing", vec![start(), caught_up()]),
        ("given up", vec![start(), caught_up(), SourceEvent::FreezeRefused { attempt: 1 }]),
        ("withdrawn", vec![start(), caught_up(), frozen(), answered(false)]),
    ];
    for (name, events) in ways {
        let mut source = MigrationSource::new(MIGRATION);
        effects_of(&mut source, events);
        let effects = effects_of(&mut source, vec![keep(&[])]);
        assert!(is_released(&effects), "{name}: {effects:?}");
        let thaws = effects.iter().any(|effect| matches!(effect, SourceEffect::Thaw { .. }));
        assert_eq!(thaws, name == "freezing", "{effects:?}");
        assert!(source.is_over(), "{name}");
    }
}

#[test]
fn what_has_not_returned_is_forgotten() {
    let mut source = MigrationSource::new(MIGRATION);
    effects_of(
        &mut source,
        vec![start(), caught_up(), frozen(), answered(true), keep(&[slots(4, 9)])],
    );
    let returns = SourceEvent::Returned { range: slots(6, 9) };
    effects_of(&mut source, vec![SourceEvent::Forgotten { range: slots(0, 3) }, returns]);
    let effects = effects_of(&mut source, vec![keep(&[])]);
    assert_eq!(effects, [SourceEffect::Forget { range: slots(4, 5) }]);
    let last = SourceEvent::Forgotten { range: slots(4, 5) };
    assert!(is_released(&effects_of(&mut source, vec![last])));
}
