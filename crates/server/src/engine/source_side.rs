//! Carries out what the sources of migrations want done on this server.

use super::node::{FreezeWait, Freezing, Machines, SourceSide};
use super::outgoing::{Sending, To};
use super::tablets::{carve, clock_of, renewed, serves, with_state};
use super::work::Work;
use super::{Engine, Route};
use planted::Bug;
use protocols::Outbox;
use protocols::migration::{FrozenState, SourceEffect, SourceEvent};
use store::log::{Among, Dependency};
use store::{Stall, Store, TableSet, Tablet, TabletState};
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId};
use wire::peer::{
    PRIORITY_BYTES_MAX, PULL_BYTES_MAX, PeerMessage, PriorityAnswer, PriorityPull, PriorityReply,
    Pull, PullReply, RecordCounts,
};

/// A pull that has arrived and is served by one of the next quanta.
pub(super) struct PullToServe {
    route: Route,
    pull: Pull,
}

/// A priority pull that met a busy leaf: it is served in the next turn.
pub(super) struct PriorityToServe {
    route: Route,
    pull: PriorityPull,
}

impl Engine {
    /// Lets something happen to a source, and carries out what it wants.
    pub(super) fn drive_source(&mut self, now: Instant, id: MigrationId, event: SourceEvent) {
        let node = self.node.clone();
        let mut machines = node.machines();
        self.drive_source_in(&mut machines, now, id, event);
        node.note_machines(&machines);
    }

    pub(super) fn drive_source_in(
        &mut self,
        machines: &mut Machines,
        now: Instant,
        id: MigrationId,
        event: SourceEvent,
    ) {
        let side = machines.source(id);
        if let SourceEvent::Start(intent) = &event {
            side.intent = Some(intent.clone());
        }
        let mut effects = Outbox::new();
        side.machine.handle(now, event, &mut effects);
        while let Some(effect) = effects.take_first() {
            self.carry_out_source(side, now, id, effect, &mut effects);
        }
    }

    fn carry_out_source(
        &mut self,
        side: &mut SourceSide,
        now: Instant,
        id: MigrationId,
        effect: SourceEffect,
        more: &mut Outbox<SourceEffect>,
    ) {
        match effect {
            SourceEffect::CatchUp { attempt } => {
                match unacknowledged(self.node.store(), Among::Writes) {
                    Some(before) => side.freezing = Some(Freezing::CatchingUp { attempt, before }),
                    None => side.machine.handle(now, SourceEvent::CaughtUp { attempt }, more),
                }
            }
            SourceEffect::Freeze { range, epoch, attempt } => {
                side.freezing = None;
                if serves(self.node.store().tablets().iter(), range, epoch) {
                    if self.freeze(range) {
                        let grace = self.node.store().grace_period();
                        let wait = FreezeWait::Turns(grace);
                        side.freezing = Some(Freezing::Frozen { attempt, range, wait });
                    }
                } else {
                    side.machine.handle(now, SourceEvent::FreezeRefused { attempt }, more);
                }
            }
            SourceEffect::Thaw { range } => {
                side.freezing = None;
                self.set_state(range, &TabletState::Serving);
            }
            SourceEffect::Send { to, message } => self.out.send(to, message),
            SourceEffect::Leave { range, to, .. } => {
                side.leaving = Some((range, to));
                self.set_state(range, &TabletState::Leaving);
            }
            SourceEffect::Forget { range } => {
                let cursor = range.first();
                self.node.work.push(Work::Forget { migration: id, range, cursor });
            }
            SourceEffect::Release => {
                if let Some((range, _)) = side.leaving.take() {
                    self.node.change_tablets(|tablets| carve(tablets, range, unless_leaving));
                }
            }
            SourceEffect::Tell(message) => self.out.control.push(message),
        }
    }

    /// `false`: the range is being flushed, or about to be. The source will try again.
    ///
    /// What the coordinator has given other tenures is void once its owner is gone: it must not leave
    /// under the old ones.
    fn freeze(&self, range: HashRange) -> bool {
        let (map, me) = (self.node.map(), self.node.me());
        let mut is_free = false;
        self.node.change_tablets(|tablets| {
            let mut inside = tablets.iter().filter(|tablet| tablet.range.overlaps(range));
            is_free = inside.all(|tablet| {
                tablet.flushing == TableSet::NONE && renewed(tablet, &map, me).1.is_empty()
            });
            if is_free { with_state(tablets, range, &TabletState::Frozen) } else { tablets }
        });
        is_free
    }

    fn set_state(&self, range: HashRange, state: &TabletState) {
        self.node.change_tablets(|tablets| with_state(tablets, range, state));
    }

    /// Goes on with freezes that need not wait any more.
    pub(super) fn poll_freezes(&mut self, machines: &mut Machines, now: Instant) {
        let store = self.node.store().clone();
        let over: Vec<_> = machines
            .sources
            .iter_mut()
            .filter_map(|(id, side)| {
                Some((*id, side.freezing.take_if(|freezing| freezing.is_over(&store))?))
            })
            .collect();
        for (id, freezing) in over {
            let event = match freezing {
                Freezing::CatchingUp { attempt, .. } => SourceEvent::CaughtUp { attempt },
                Freezing::Frozen { attempt, range, .. } => {
                    let at = Box::new(FrozenState {
                        version_floor: store.version(),
                        expiry_clock: clock_of(store.tablets().iter(), range, store.clock()),
                        records: RecordCounts::of(&self.worker.counts(range)),
                    });
                    SourceEvent::Frozen { attempt, at }
                }
            };
            self.drive_source_in(machines, now, id, event);
        }
    }

    /// Time has passed for the sources.
    pub(super) fn tick_sources(&mut self, machines: &mut Machines, now: Instant) {
        let due: Vec<_> = machines
            .sources
            .iter()
            .filter(|(_, side)| side.machine.next_deadline().is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.drive_source_in(machines, now, id, SourceEvent::Tick);
        }
    }

    pub(super) fn pull_arrived(&mut self, route: Route, pull: Pull) {
        // A target has one pull outstanding per partition, and repeats it.
        if self.pulls_to_serve.len() < PULLS_TO_SERVE_MAX {
            self.pulls_to_serve.push_back(PullToServe { route, pull });
        }
    }

    /// Whether the copy from which pulls under this epoch are answered still stands here.
    fn keeps(&self, from: ServerId, migration: MigrationId, hash: KeyHash) -> Option<bool> {
        let machines = self.node.machines();
        let side = machines.sources.get(&migration)?;
        let intent = side.intent.as_ref()?;
        (intent.target == from).then(|| side.machine.keeps(hash))
    }

    /// Serves one pull: a quantum of the source's work. `false`: there is none.
    pub(super) fn serve_pull(&mut self) -> bool {
        let Some(PullToServe { route, pull }) = self.pulls_to_serve.pop_front() else {
            return false;
        };
        let Pull { migration, epoch, partition, cursor, last, bytes_max } = pull;
        let Some(range) = HashRange::try_from((cursor, last)).ok() else { return true };
        let bytes_max = bytes_max.min(PULL_BYTES_MAX) as usize;
        // A bucket may hold more than was asked for; a little room saves growing the buffer.
        let mut payload = self.take_buffer(bytes_max + (8 << 10));
        let next = self.worker.collect(range, cursor, bytes_max, &mut payload);
        let reply = PullReply { migration, epoch, partition, cursor, next };
        self.out.peers.push(Sending {
            to: To::Back(route),
            is_priority: false,
            message: PeerMessage::PullReply(reply),
            payload,
        });
        true
    }

    /// A target that pulls has accepted, also if its answer to the flip is lost. So whoever gets an
    /// answer to a pull may conclude that the source knows.
    pub(super) fn learn_acceptance(
        &mut self,
        now: Instant,
        from: ServerId,
        migration: MigrationId,
    ) {
        let node = self.node.clone();
        let mut machines = node.machines();
        let side = machines.sources.get(&migration);
        if side.is_some_and(|side| side.machine.expects_answer()) {
            let event = SourceEvent::FlipAnswered { from, accepted: true };
            self.drive_source_in(&mut machines, now, migration, event);
            node.note_machines(&machines);
        }
    }

    /// Takes a pull if this server is the source that it asks.
    pub(super) fn accept_pull(&mut self, from: ServerId, route: Route, pull: Pull) {
        // Nothing is said to a pull of what was forgotten: only a late repetition asks for it.
        if self.keeps(from, pull.migration, pull.cursor) == Some(true) {
            self.pull_arrived(route, pull);
        }
    }

    /// Answers a priority pull at once: all of it, or as much as makes a reply. The target asks for
    /// the rest again.
    pub(super) fn serve_priority(&mut self, from: ServerId, route: Route, pull: PriorityPull) {
        let mut payload = Vec::new();
        let mut answers = Vec::with_capacity(pull.hashes.len());
        for &(table, hash) in &pull.hashes {
            if payload.len() >= PRIORITY_BYTES_MAX {
                break;
            }
            let answer = match self.keeps(from, pull.migration, hash) {
                None => return,
                Some(false) => PriorityAnswer::Gone,
                Some(true) => match self.worker.collect_hash(table, hash, &mut payload) {
                    Ok(true) => PriorityAnswer::Records,
                    Ok(false) => PriorityAnswer::Absent,
                    Err(Stall::Contended) => {
                        if self.priority_to_serve.len() < PRIORITY_TO_SERVE_MAX {
                            self.priority_to_serve.push((from, PriorityToServe { route, pull }));
                        }
                        return;
                    }
                    Err(
                        Stall::NotOwned
                        | Stall::Held
                        | Stall::Missing(_)
                        | Stall::NotArrived { .. }
                        | Stall::OutOfMemory
                        | Stall::TooLarge,
                    ) => return,
                },
            };
            answers.push((table, hash, answer));
        }
        let PriorityPull { migration, epoch, request, .. } = pull;
        self.out.peers.push(Sending {
            to: To::Back(route),
            is_priority: true,
            message: PeerMessage::PriorityReply(PriorityReply {
                migration,
                epoch,
                request,
                answers,
            }),
            payload,
        });
    }

    /// Serves again what met a busy leaf.
    pub(super) fn serve_priority_again(&mut self) {
        for (from, PriorityToServe { route, pull }) in std::mem::take(&mut self.priority_to_serve) {
            self.serve_priority(from, route, pull);
        }
    }

    /// A step of forgetting what the target has.
    pub(super) fn forget(
        &mut self,
        now: Instant,
        migration: MigrationId,
        range: HashRange,
        cursor: KeyHash,
    ) {
        let next = match planted::is(Bug::OldCopyKept) {
            true => None,
            false => self.worker.forget(range, cursor, FORGET_BUCKETS),
        };
        match next {
            Some(cursor) => self.node.work.push(Work::Forget { migration, range, cursor }),
            None => self.drive_source(now, migration, SourceEvent::Forgotten { range }),
        }
    }

    /// How much the range holds, for the coordinator's question.
    pub(super) fn measure(&mut self, migration: MigrationId, range: HashRange) {
        let counts = self.worker.counts(range);
        let records = counts.iter().map(|(_, _, records)| u64::from(*records)).sum();
        let bytes = self.worker.range_bytes(range);
        let measured = wire::control::ToCoordinator::Measured { migration, records, bytes };
        self.out.control.push(measured);
    }
}

/// Pulls that wait for a quantum: many times what the partitions of some migrations have outstanding.
const PULLS_TO_SERVE_MAX: usize = 4096;

/// Priority pulls that met a busy leaf in one turn.
const PRIORITY_TO_SERVE_MAX: usize = 256;

/// Buckets whose records one quantum forgets: each is a cache miss or two, about 40 us together.
pub(super) const FORGET_BUCKETS: usize = 32;

impl Freezing {
    fn is_over(&mut self, store: &Store) -> bool {
        match self {
            Freezing::CatchingUp { before, .. } => store.log().is_acknowledged(before),
            Freezing::Frozen { wait, .. } => wait.is_over(store),
        }
    }
}

impl FreezeWait {
    fn is_over(&mut self, store: &Store) -> bool {
        if let FreezeWait::Turns(grace) = self {
            if !store.is_over(grace) {
                return false;
            }
            match unacknowledged(store, Among::Writes) {
                None => return true,
                Some(dependency) => *self = FreezeWait::Safety(dependency),
            }
        }
        match self {
            FreezeWait::Turns(_) => false,
            FreezeWait::Safety(dependency) => store.log().is_acknowledged(dependency),
        }
    }
}

/// What has returned from a dead target stays.
fn unless_leaving(tablet: Tablet) -> Option<Tablet> {
    match tablet.state {
        TabletState::Leaving => None,
        TabletState::Serving
        | TabletState::Frozen
        | TabletState::Arriving(_)
        | TabletState::Recovering(_)
        | TabletState::Securing(_) => Some(tablet),
    }
}

/// What is written by now and not safe, if the log is kept.
pub(super) fn unacknowledged(store: &Store, among: Among) -> Option<Dependency> {
    store.log().is_durable().then(|| store.log().unacknowledged(among)).flatten()
}
