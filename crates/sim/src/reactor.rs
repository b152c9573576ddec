//! One reactor: its turns, and the operations that wait on it.
//!
//! Stands where the shell and the front end stand in a server: it gives the engine messages, time
//! and quanta, executes operations on the engine's worker, parks those that cannot be executed, and
//! starts them again when the engine wakes them.

use crate::history::{Action, Outcome};
use crate::planted::{self, Planted};
use crate::workload::{Register, decode, encode, expiry_millis};
use server::engine::{Engine, Payload, Route, Sending, Wake};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use store::{Changes, Key, Need, Record, Stall, TabletState, Worker};
use types::{HashRange, Instant, KeyHash, MigrationId, ServerId, TableId, UnixMillis};
use wire::batch::BatchReader;
use wire::control::{FromCoordinator, ToCoordinator};
use wire::peer::PeerMessage;

/// All keys are in one table: which table it is makes no difference to the protocol.
pub(crate) const TABLE: TableId = TableId(0);

/// How long a request may wait, as in the front end.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

/// An operation on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) register: usize,
    pub(crate) action: Action,
}

/// What a client is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Outcome(Outcome),
    /// Ask the server with this client port.
    Moved(u16),
    /// Not executed: `-TRYAGAIN`, `-CLUSTERDOWN` or `-OOM`, or nobody listens.
    Refused,
    /// The keys of a pair differed.
    Torn,
}

/// Something that arrives at a reactor.
#[derive(Debug)]
pub(crate) enum Inbound {
    Peer { from: ServerId, route: Route, message: PeerMessage, payload: Vec<u8> },
    Control(FromCoordinator),
    Request(Request),
}

/// Something that leaves a reactor.
#[derive(Debug)]
pub(crate) enum Outbound {
    Peer(Sending),
    Control(ToCoordinator),
    Reply(Request, Reply),
    /// This hash was deleted here while its range was arriving by this migration.
    Deleted(MigrationId, KeyHash),
}

/// Why an operation waits.
#[derive(Debug)]
enum Cause {
    Missing(Vec<KeyHash>),
    Progress,
    Held,
    Turn,
}

pub(crate) struct Reactor {
    pub(crate) engine: Engine,
    pub(crate) inbox: VecDeque<Inbound>,
    /// When its next turn begins.
    pub(crate) due: Instant,
    /// Whether its turn has begun: until it goes on, other reactors may have turns of their own.
    pub(crate) is_begun: bool,
    parked: Vec<(Request, Cause)>,
    /// When requests that were parked are refused, whatever became of their causes.
    limits: BTreeMap<usize, Instant>,
}

/// What a turn is given.
pub(crate) struct Surroundings<'t> {
    pub(crate) now: Instant,
    /// Whether background work gets its quantum in this turn.
    pub(crate) has_quantum: bool,
    pub(crate) registers: &'t [Register],
    pub(crate) planted: Option<Planted>,
    /// A way into the store beside the reactors', for what planted bugs do.
    pub(crate) inspector: &'t mut Worker,
    pub(crate) out: &'t mut Vec<Outbound>,
}

impl Reactor {
    pub(crate) fn new(engine: Engine) -> Reactor {
        Reactor {
            engine,
            inbox: VecDeque::new(),
            due: Instant(0),
            is_begun: false,
            parked: Vec::new(),
            limits: BTreeMap::new(),
        }
    }

    /// Operations that wait here, for a report.
    pub(crate) fn waiting(&self) -> String {
        format!("{:?}", self.parked)
    }

    /// A turn begins: the picture of the tablets is taken by which the rest of it goes.
    pub(crate) fn begin_turn(&mut self, now: Instant, wall: UnixMillis) {
        self.engine.begin_turn(now, wall);
        self.is_begun = true;
    }

    /// The rest of the turn. `true`: there is more to do at once.
    pub(crate) fn turn(&mut self, around: &mut Surroundings<'_>) -> bool {
        let now = around.now;
        self.is_begun = false;
        self.wake(around, |cause| matches!(cause, Cause::Turn));
        self.refuse_late(around);
        while let Some(inbound) = self.inbox.pop_front() {
            self.receive(inbound, around);
        }
        if self.engine.next_deadline().is_some_and(|at| at <= now) {
            self.engine.tick(now);
        }
        // A quantum comes last, so that nothing is done after it within this turn.
        let has_work = self.settle(around);
        if self.engine.has_background() && around.has_quantum {
            self.engine.quantum(now);
        }
        self.settle(around) || has_work || self.engine.has_background() || self.has_turn()
    }

    /// Refuses what has waited for too long.
    fn refuse_late(&mut self, around: &mut Surroundings<'_>) {
        let (now, limits) = (around.now, &self.limits);
        let is_late = |request: &Request| limits.get(&request.client).is_some_and(|at| *at <= now);
        for (request, _) in self.parked.extract_if(.., |(request, _)| is_late(request)) {
            around.out.push(Outbound::Reply(request, Reply::Refused));
        }
        self.limits.retain(|_, at| *at > now);
    }

    fn has_turn(&self) -> bool {
        self.parked.iter().any(|(_, cause)| matches!(cause, Cause::Turn))
    }

    fn receive(&mut self, inbound: Inbound, around: &mut Surroundings<'_>) {
        match inbound {
            Inbound::Peer { from, route, message, payload } => {
                self.receive_planted(&message, &payload, around);
                let payload = Payload { buffer: payload, start: 0 };
                self.engine.on_peer(around.now, from, route, message, payload);
            }
            Inbound::Control(message) => self.engine.on_control(around.now, message),
            Inbound::Request(request) => self.attempt(request, around),
        }
        self.settle(around);
    }

    /// What planted bugs do with a message, before it is dealt with.
    fn receive_planted(
        &mut self,
        message: &PeerMessage,
        payload: &[u8],
        around: &mut Surroundings<'_>,
    ) {
        match (around.planted, message) {
            (Some(Planted::ProgressOnReceipt), PeerMessage::PullReply(reply)) => {
                planted::advance_on_receipt(&self.engine.worker, reply);
            }
            (Some(Planted::LateReplyInserted), PeerMessage::PriorityReply(_)) => {
                planted::insert_regardless(&mut self.engine.worker, payload);
            }
            _ => {}
        }
    }

    /// Carries what the engine wants done outside. `true`: there was something.
    fn settle(&mut self, around: &mut Surroundings<'_>) -> bool {
        let mut has_work = false;
        loop {
            let wakes = std::mem::take(&mut self.engine.out.wakes);
            around.out.extend(self.engine.out.control.drain(..).map(Outbound::Control));
            for sending in self.engine.out.peers.drain(..) {
                has_work = true;
                if let (Some(Planted::ForgottenWhenSent), PeerMessage::PullReply(reply)) =
                    (around.planted, &sending.message)
                    && let Some(next) = reply.next
                {
                    let range = HashRange::new(reply.cursor, KeyHash(next.0 - 1));
                    planted::drop_range(around.inspector, range);
                }
                around.out.push(Outbound::Peer(sending));
            }
            if wakes.is_empty() {
                return has_work;
            }
            for wake in wakes {
                match wake {
                    Wake::Record(_, hash) => self.wake(
                        around,
                        |cause| matches!(cause, Cause::Missing(hashes) if hashes.contains(&hash)),
                    ),
                    Wake::Progress => self.wake(around, |cause| matches!(cause, Cause::Progress)),
                    Wake::Tablets if around.planted == Some(Planted::HeldForgotten) => {
                        self.wake(around, |cause| !matches!(cause, Cause::Turn | Cause::Held));
                    }
                    Wake::Tablets => self.wake(around, |cause| !matches!(cause, Cause::Turn)),
                    Wake::Answer(..) => {}
                }
            }
        }
    }

    fn wake(&mut self, around: &mut Surroundings<'_>, is_due: impl Fn(&Cause) -> bool) {
        let due: Vec<_> = self.parked.extract_if(.., |(_, cause)| is_due(cause)).collect();
        for (request, _) in due {
            self.attempt(request, around);
        }
    }

    /// Executes an operation, or parks it.
    fn attempt(&mut self, request: Request, around: &mut Surroundings<'_>) {
        let register = &around.registers[request.register];
        let limit = self.limits.remove(&request.client).unwrap_or(around.now + PARK_TIMEOUT);
        let stall = match perform(&mut self.engine.worker, register, request.action, around.planted)
        {
            Ok(reply) => {
                self.note_deleted(request.action, register, around);
                return around.out.push(Outbound::Reply(request, reply));
            }
            Err(stall) => stall,
        };
        let cause = match stall {
            Stall::Missing(missing) => {
                if around.planted == Some(Planted::MissingReadAsAbsent)
                    && request.action == Action::Read
                {
                    let reply = Reply::Outcome(Outcome::Value(None));
                    return around.out.push(Outbound::Reply(request, reply));
                }
                if around.planted == Some(Planted::PartnerReadAsAbsent)
                    && let Some(reply) = self.read_separately(request, register)
                {
                    return around.out.push(Outbound::Reply(request, reply));
                }
                match self.engine.pull_early(around.now, TABLE, &missing) {
                    true => Cause::Missing(missing.hashes),
                    false => Cause::Progress,
                }
            }
            Stall::NotOwned => match self.refuse(request, register, around) {
                Some(reply) => return around.out.push(Outbound::Reply(request, reply)),
                None => Cause::Held,
            },
            Stall::Held => match self.refuse_held(request, around) {
                Some(reply) => return around.out.push(Outbound::Reply(request, reply)),
                None => Cause::Held,
            },
            Stall::Contended => Cause::Turn,
            Stall::NotArrived { .. } | Stall::OutOfMemory | Stall::TooLarge => {
                unreachable!("no walk, little data: {stall:?}")
            }
        };
        self.limits.insert(request.client, limit);
        self.parked.push((request, cause));
    }

    fn refuse(
        &self,
        request: Request,
        register: &Register,
        around: &mut Surroundings<'_>,
    ) -> Option<Reply> {
        if around.planted == Some(Planted::CopyServedAfterLeaving)
            && request.action == Action::Read
            && let Some(value) = frozen_value(around.inspector, register)
        {
            return Some(Reply::Outcome(Outcome::Value(Some(value))));
        }
        let moved = self.engine.node().redirection(&register.keys[0].1)?;
        if moved.starts_with("CLUSTERDOWN") {
            return Some(Reply::Refused);
        }
        let (_, port) = moved.rsplit_once(':').expect("a redirection ends with a port");
        Some(Reply::Moved(port.parse().expect("a port is a number")))
    }

    /// What a planted bug says while it is open who will own a range.
    fn refuse_held(&self, request: Request, around: &Surroundings<'_>) -> Option<Reply> {
        if around.planted != Some(Planted::RedirectedWhileHeld) || request.action != Action::Read {
            return None;
        }
        let (map, me) = (self.engine.node().map(), self.engine.node().me());
        let other = map.servers.iter().find(|server| server.id != me)?;
        Some(Reply::Moved(other.client_port))
    }

    /// What a planted bug makes of a pair of which one key has not arrived.
    fn read_separately(&mut self, request: Request, register: &Register) -> Option<Reply> {
        if request.action != Action::Read || register.keys.len() == 1 {
            return None;
        }
        let values = register.keys.iter().map(|(hash, bytes)| {
            let key = [Key { hash: *hash, bytes }];
            let value = |records: &[Option<Record<'_>>]| records[0].map(|r| decode(r.value));
            self.engine.worker.read(TABLE, &key, value).unwrap_or(None)
        });
        let values: Vec<_> = values.collect();
        let is_torn = values.iter().any(|value| *value != values[0]);
        Some(if is_torn { Reply::Torn } else { Reply::Outcome(Outcome::Value(values[0])) })
    }

    fn note_deleted(&self, action: Action, register: &Register, around: &mut Surroundings<'_>) {
        let is_delete = matches!(action, Action::Delete | Action::DeleteBlindly);
        // What expires is deleted later on, and nobody tells.
        if !is_delete && !matches!(action, Action::WriteExpiring(_)) {
            return;
        }
        let tablets = around.inspector.store().tablets();
        for &(hash, _) in &register.keys {
            if let Some(TabletState::Arriving(arrival)) = tablets.at(hash).map(|t| &t.state) {
                let is_above = !arrival.is_below_progress(hash);
                around.out.push(Outbound::Deleted(arrival.migration(), hash));
                if around.planted == Some(Planted::DeleteWithoutTombstone) && is_delete && is_above
                {
                    planted::drop_range(around.inspector, HashRange::new(hash, hash));
                }
            }
        }
    }
}

/// Executes an operation on the store.
fn perform(
    worker: &mut Worker,
    register: &Register,
    action: Action,
    planted: Option<Planted>,
) -> Result<Reply, Stall> {
    let keys: Vec<Key<'_>> =
        register.keys.iter().map(|(hash, bytes)| Key { hash: *hash, bytes }).collect();
    let need = match action {
        Action::Write(_) | Action::WriteExpiring(_) | Action::DeleteBlindly => Need::Nothing,
        _ if planted == Some(Planted::DecidedOnMissing) => Need::Nothing,
        Action::Read
        | Action::WriteIfAbsent(_)
        | Action::Swap(..)
        | Action::Increment
        | Action::Delete => Need::Records,
    };
    let blind = |outcome| Ok(Reply::Outcome(outcome));
    match action {
        Action::Read => worker.read(TABLE, &keys, |records| match value_of(records) {
            Some(value) => Reply::Outcome(Outcome::Value(value)),
            None => Reply::Torn,
        }),
        Action::Write(new) if keys.len() == 1 => {
            worker.put(TABLE, keys[0], &encode(new), None)?;
            blind(Outcome::Done)
        }
        Action::WriteExpiring(new) => {
            let expiry = worker.store().clock().0 + expiry_millis(new);
            worker.put(TABLE, keys[0], &encode(new), Some(UnixMillis(expiry)))?;
            blind(Outcome::Done)
        }
        Action::Write(new) => {
            worker.update(TABLE, &keys, need, |_, changes| put(changes, keys.len(), new))?;
            blind(Outcome::Done)
        }
        Action::DeleteBlindly => {
            worker.update(TABLE, &keys, need, |_, changes| delete(changes, keys.len()))?;
            blind(Outcome::Done)
        }
        Action::WriteIfAbsent(_) | Action::Swap(..) | Action::Increment | Action::Delete => worker
            .update(TABLE, &keys, need, |records, changes| match value_of(records) {
                Some(value) => Reply::Outcome(decide(action, value, changes, keys.len())),
                None => Reply::Torn,
            }),
    }
}

/// What a register holds; `None` if its keys differ.
fn value_of(records: &[Option<Record<'_>>]) -> Option<Option<u64>> {
    let mut values = records.iter().map(|record| record.map(|record| decode(record.value)));
    let first = values.next().expect("a register has a key");
    values.all(|value| value == first).then_some(first)
}

fn decide(action: Action, value: Option<u64>, changes: &mut Changes<'_>, keys: usize) -> Outcome {
    match action {
        Action::WriteIfAbsent(new) if value.is_none() => put(changes, keys, new),
        Action::Swap(old, new) if value == Some(old) => put(changes, keys, new),
        Action::Increment => {
            let number = value.unwrap_or(0) + 1;
            put(changes, keys, number);
            return Outcome::Number(number);
        }
        Action::Delete if value.is_some() => delete(changes, keys),
        Action::WriteIfAbsent(_) | Action::Swap(..) | Action::Delete => {
            return Outcome::Applied(false);
        }
        Action::Read | Action::Write(_) | Action::WriteExpiring(_) | Action::DeleteBlindly => {
            unreachable!("{action:?} decides nothing")
        }
    }
    Outcome::Applied(true)
}

fn put(changes: &mut Changes<'_>, keys: usize, number: u64) {
    (0..keys).for_each(|key| changes.put(key, &encode(number), None));
}

fn delete(changes: &mut Changes<'_>, keys: usize) {
    (0..keys).for_each(|key| changes.delete(key));
}

/// The value in a copy that nobody may read.
fn frozen_value(worker: &mut Worker, register: &Register) -> Option<u64> {
    let (hash, _) = &register.keys[0];
    let mut batch = Vec::new();
    worker.collect_hash(TABLE, *hash, &mut batch).ok()?;
    BatchReader::new(&batch).flatten().find_map(|entry| match entry.entry.body {
        wire::entry::Body::Object { value, .. } => Some(decode(value)),
        wire::entry::Body::Tombstone { .. } => None,
    })
}
