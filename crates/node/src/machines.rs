//! Machines of migrations and recoveries of one server, with the state of their drivers.

use crate::outgoing::Payload;
use crate::recovering::{self, RecoverySide};
use protocols::Ticket;
use protocols::migration::{Cuts, MigrationSource, MigrationTarget};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use store::Arrival;
use store::log::{Dependency, GracePeriod, Reservation};
use types::{HashRange, Instant, MigrationId, OwnershipEpoch, ReactorId, ServerId};
use wire::control::Intent;

/// The machines of a server, and the values about them that turns read without the lock.
pub(crate) struct SharedMachines {
    pub(crate) machines: Mutex<Machines>,
    /// Number of machines that wait for reactors or backups. Read in every turn.
    pub(crate) waiting: AtomicUsize,
    /// Those of them that wait for reactors (a grace period, a splice). No reactor sleeps
    /// meanwhile. The other machines wait for backups; their answers wake all reactors.
    pub(crate) restless: AtomicUsize,
    /// Earliest deadline of any machine, in nanoseconds; `u64::MAX` if there is none.
    pub(crate) deadline: AtomicU64,
    /// Time until which all ranges may be served, in nanoseconds. It is limited while the
    /// acceptance of some flip is unacknowledged; `u64::MAX` if there is no such flip.
    pub(crate) unacknowledged_until: AtomicU64,
    /// Set while recovery replays records and no client depends on their replication. Replication
    /// of the replayed segments is then deferred.
    pub(crate) keeps_recovered_back: AtomicBool,
    /// Number of reactors with operations that wait for records.
    pub(crate) reactors_missing: AtomicUsize,
    /// Minimum share of a reactor's running time for background work, in percent.
    pub(crate) background_share: AtomicU8,
}

impl SharedMachines {
    pub(crate) fn new(cuts: Cuts) -> SharedMachines {
        SharedMachines {
            machines: Mutex::new(Machines::new(cuts)),
            waiting: AtomicUsize::new(0),
            restless: AtomicUsize::new(0),
            deadline: AtomicU64::new(u64::MAX),
            unacknowledged_until: AtomicU64::new(u64::MAX),
            keeps_recovered_back: AtomicBool::new(false),
            reactors_missing: AtomicUsize::new(0),
            background_share: AtomicU8::new(BACKGROUND_SHARE),
        }
    }

    /// Recomputes the values that every turn reads, after machines have changed. Returns whether
    /// the replication of recovered segments may begin.
    pub(crate) fn note(&self, machines: &Machines) -> bool {
        let waiting = machines.sources.values().filter(|side| side.freezing.is_some()).count()
            + machines
                .targets
                .values()
                .map(|side| {
                    usize::from(side.accepting.is_some()) + usize::from(side.cutting.is_some())
                })
                .sum::<usize>()
            + machines.recoveries.values().filter(|side| side.is_waiting()).count();
        let sources = machines.sources.values().filter_map(|side| side.machine.next_deadline());
        let targets = machines.targets.values().filter_map(|side| side.machine.next_deadline());
        let parts = machines.recoveries.values().filter_map(|side| side.machine.next_deadline());
        let deadline = sources.chain(targets).chain(parts).min().map_or(u64::MAX, |at| at.0);
        let sources = machines.sources.values().filter(|side| !side.machine.is_over());
        let targets = machines.targets.values().filter(|side| !side.machine.is_over());
        let intents = sources
            .filter_map(|side| side.intent.as_ref())
            .chain(targets.filter_map(|side| side.intent.as_ref()));
        let shares = intents.map(|intent| intent.policy.background_share.clamp(1, 100));
        let mut masters = machines.recoveries.values().map(|side| &side.machine);
        let recovery = masters.any(|machine| !machine.is_over()).then_some(RECOVERY_SHARE);
        let share = shares.chain(recovery).max().unwrap_or(BACKGROUND_SHARE);
        let keeps_back = recovering::keeps_recovered_back(machines.recoveries.values());
        let kept_back = self.keeps_recovered_back.swap(keeps_back, Ordering::Relaxed);
        let patient = machines.recoveries.values().filter(|side| side.waits_for_backups()).count()
            + machines.sources.values().filter(|side| side.is_catching_up()).count();
        let unacknowledged =
            machines.targets.values().filter_map(|side| side.machine.unacknowledged_until()).min();
        let until = unacknowledged.map_or(u64::MAX, |until| until.0);
        self.unacknowledged_until.store(until, Ordering::Release);
        assert!(patient <= waiting, "a machine that waits for backups waits");
        self.waiting.store(waiting, Ordering::Release);
        self.restless.store(waiting - patient, Ordering::Release);
        self.deadline.store(deadline, Ordering::Release);
        self.background_share.store(share, Ordering::Relaxed);
        kept_back && !keeps_back
    }
}

/// The machines of all migrations and recoveries of this server, behind one lock. A migration
/// receives a few thousand messages a second at most, and operations never take the lock.
pub(crate) struct Machines {
    cuts: Cuts,
    pub(crate) sources: BTreeMap<MigrationId, SourceSide>,
    pub(crate) targets: BTreeMap<MigrationId, TargetSide>,
    pub(crate) recoveries: BTreeMap<OwnershipEpoch, RecoverySide>,
}

/// An attempt to freeze a range.
pub(crate) enum Freezing {
    /// The range is served. Entries written before the attempt must be acknowledged first.
    CatchingUp { attempt: u32, before: Dependency },
    /// The range is frozen.
    Frozen { attempt: u32, range: HashRange, wait: FreezeWait },
}

/// The event that a freeze waits for.
pub(crate) enum FreezeWait {
    /// Every reactor begins a turn. After that no operation writes to the range.
    Turns(GracePeriod),
    /// All earlier writes are acknowledged: the target will show them to clients.
    Safety(Dependency),
}

/// Stage of a cut (a commit point of a migration).
pub(crate) enum Cut {
    /// These reactors have not spliced their side logs yet.
    Splicing(BTreeSet<ReactorId>),
    /// The log's content at the time of the cut is not fully acknowledged yet.
    Securing(Dependency),
}

/// The source machine of a migration with its driver's state.
pub(crate) struct SourceSide {
    pub(crate) machine: MigrationSource,
    pub(crate) intent: Option<Box<Intent>>,
    /// Current attempt to freeze the range.
    pub(crate) freezing: Option<Freezing>,
    /// Range and its new owner, from the accepted flip until this server releases the range.
    pub(crate) leaving: Option<(HashRange, ServerId)>,
}

/// The target machine of a migration with its driver's state.
pub(crate) struct TargetSide {
    pub(crate) machine: MigrationTarget,
    pub(crate) intent: Option<Box<Intent>>,
    pub(crate) reservation: Option<Arc<Reservation>>,
    pub(crate) arrival: Option<Arc<Arrival>>,
    pub(crate) accepting: Option<GracePeriod>,
    pub(crate) payloads: BTreeMap<Ticket, Payload>,
    pub(crate) next_ticket: u64,
    /// Current cut.
    pub(crate) cutting: Option<Cut>,
    /// Time at which the flip was accepted.
    pub(crate) since: Instant,
}

impl SourceSide {
    /// Returns whether only answers of the backups let the machine continue.
    fn is_catching_up(&self) -> bool {
        matches!(self.freezing, Some(Freezing::CatchingUp { .. }))
    }
}

impl Machines {
    fn new(cuts: Cuts) -> Machines {
        Machines {
            cuts,
            sources: BTreeMap::new(),
            targets: BTreeMap::new(),
            recoveries: BTreeMap::new(),
        }
    }

    /// Returns the source machine of a migration, and makes an empty one if there is none.
    pub(crate) fn source(&mut self, id: MigrationId) -> &mut SourceSide {
        if !self.sources.contains_key(&id) {
            let is_idle = |side: &SourceSide| side.intent.is_none() || side.machine.is_over();
            make_room(&mut self.sources, is_idle);
        }
        self.sources.entry(id).or_insert_with(|| SourceSide {
            machine: MigrationSource::new(id),
            intent: None,
            freezing: None,
            leaving: None,
        })
    }

    /// Returns the target machine of a migration, and makes an empty one if there is none.
    pub(crate) fn target(&mut self, id: MigrationId) -> &mut TargetSide {
        if !self.targets.contains_key(&id) {
            let is_idle = |side: &TargetSide| side.intent.is_none() || side.machine.is_over();
            make_room(&mut self.targets, is_idle);
        }
        self.targets.entry(id).or_insert_with(|| TargetSide {
            machine: MigrationTarget::new(id, self.cuts),
            intent: None,
            reservation: None,
            arrival: None,
            accepting: None,
            payloads: BTreeMap::new(),
            next_ticket: 0,
            cutting: None,
            since: Instant(0),
        })
    }
}

/// Drops the oldest idle machine if there are too many.
fn make_room<S>(sides: &mut BTreeMap<MigrationId, S>, is_idle: impl Fn(&S) -> bool) {
    let idle = sides.iter().filter(|(_, side)| is_idle(side)).map(|(id, _)| *id);
    let idle: Vec<_> = idle.collect();
    if idle.len() >= IDLE_MACHINES_MAX {
        sides.remove(&idle[0]);
    }
}

/// Maximum number of idle machines on each side. They remember how their migrations ended and
/// answer late messages. A connection delivers in order, so no message is later than that.
const IDLE_MACHINES_MAX: usize = 64;

/// Minimum background share in percent while no migration asks for another (design: 10 %).
const BACKGROUND_SHARE: u8 = 10;

/// Minimum background share in percent during a recovery: clients of its ranges wait for it.
const RECOVERY_SHARE: u8 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use protocols::Outbox;
    use protocols::migration::{SourceEvent, TargetEvent};

    #[test]
    fn only_so_many_ended_migrations_are_remembered() {
        let mut machines = Machines::new(Cuts::default());
        for id in 1..=1000 {
            let id = MigrationId(id);
            let target = machines.target(id);
            target.machine.handle(Instant(0), TargetEvent::Decide, &mut Outbox::new());
            assert!(target.machine.is_over());
            let source = machines.source(id);
            let outcome = SourceEvent::Outcome { accepted: false };
            source.machine.handle(Instant(0), outcome, &mut Outbox::new());
        }
        assert_eq!(machines.targets.len(), IDLE_MACHINES_MAX);
        assert_eq!(machines.sources.len(), IDLE_MACHINES_MAX);
        assert!(machines.targets.contains_key(&MigrationId(1000)), "the youngest are kept");
    }
}
