//! Simulated clients: each keeps several requests in flight, pipelined on a connection to each
//! server, follows redirections, and records its observations.
//!
//! A client has one *slot* for each concurrent job. A job occupies its slot from its beginning to
//! its end, however often it is sent. Slots are numbered across all clients; the number of the
//! slot is the client number in a history.

use crate::collections::GrowthRoom;
use crate::expiry::ClockReadings;
use crate::growth::GrowthLimit;
use crate::history::{
    self, HistoryVerdict, OperationOutcome, RegisterAction, RegisterOperation, RequestPlace,
};
use crate::native::NativeJob;
use crate::once::AnsweredRequest;
use crate::range_clocks::RangeClockBounds;
use crate::workload::{ClientJob, Register, TABLE, write_number};
use front::core::ConnectionId;
use resp::{ReplyLimits, ReplyParser};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;
use types::{Instant, KeyHash, OwnershipEpoch, Slot, TableId};

/// Maximal number of redirections of one operation; more mean that servers redirect in a circle.
/// Each redirection takes a round trip, and a range moves only a few times meanwhile.
const HOPS_MAX: u32 = 30;

/// Maximal number of increments of a register with an unknown outcome. Each may take effect between
/// any two other operations, so the configurations of a history multiply with their number.
const ABANDONED_INCREMENTS_MAX: u32 = 12;

/// Maximal number of changes with an unknown outcome of a register that has such increments: each
/// value that one of them may have written can be incremented any number of times.
const ABANDONED_BESIDE_INCREMENTS_MAX: u32 = 20;

/// Maximal number of changes with an unknown outcome of a register with parts: few of them are alike,
/// so each may have taken effect or not.
const ABANDONED_OF_PARTS_MAX: u32 = 8;

/// Maximal number of changes with an unknown outcome of a register, beyond which native clients
/// leave it alone. With their short deadlines, 555 of them were open while a server was away, of
/// many kinds, and the checker did not come to an end.
const ABANDONED_FOR_NATIVE_MAX: u32 = 24;

/// Maximal number of open operations on one register: more would make too many orders possible.
const CROWD: u32 = 6;

/// Maximal number of open flushes: each is an operation on many registers. While a server was
/// paused, 19 of them were open, and the checker had too many orders to follow.
const FLUSHES_MAX: usize = 8;

/// Numbers of operations on one register that their clients gave up.
#[derive(Clone, Copy, Debug, Default)]
struct AbandonedOperations {
    increments: u32,
    /// Changes of any kind.
    changes: u32,
    /// Changes of single parts.
    of_parts: u32,
}

impl AbandonedOperations {
    fn add(&mut self, action: RegisterAction) {
        self.changes += 1;
        self.increments += u32::from(action == RegisterAction::Increment);
        self.of_parts += u32::from(matches!(action, RegisterAction::Part(_)));
    }

    /// Returns whether the checker could not follow more of them.
    fn are_too_many(&self) -> bool {
        self.increments >= ABANDONED_INCREMENTS_MAX
            || self.increments > 0 && self.changes >= ABANDONED_BESIDE_INCREMENTS_MAX
            || self.of_parts > 0 && self.changes >= ABANDONED_OF_PARTS_MAX
    }
}

/// Outcome of an operation of a native client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NativeOutcome {
    /// The server's answer.
    Known(OperationOutcome),
    /// It may have been executed, or may be executed later.
    Unknown,
    /// It has not been executed, and never will be.
    NotExecuted,
}

/// Unfinished job.
#[derive(Clone, Debug)]
pub(crate) struct OpenJob {
    pub(crate) job: ClientJob,
    pub(crate) since: Instant,
    /// Beginning of the last attempt: the operation was not executed before.
    pub(crate) attempt: Instant,
    begun: u64,
    /// Connection and request of the last attempt.
    place: RequestPlace,
    hops: u32,
    /// Set if a command of the transaction that was sent last could not be served.
    is_refused: bool,
    pub(crate) state: JobState,
}

/// State of an unfinished job.
#[derive(Clone, Debug)]
pub(crate) enum JobState {
    Operation,
    /// The request that is sent again.
    Repetition(AnsweredRequest),
    /// For each register, the epoch under which the server held its range when the job began.
    Flush(Vec<(usize, Option<OwnershipEpoch>)>),
    Scan(OpenScan),
    /// Number of records when the job began.
    Count(u64),
}

/// Scan over all keys of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenScan {
    pub(crate) cursor: u64,
    /// Registers that the scan must find if the server still holds them under this epoch at the
    /// end.
    pub(crate) expected: Vec<(usize, KeyHash, OwnershipEpoch)>,
    pub(crate) found: BTreeSet<usize>,
}

/// Meaning of the next reply on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedReply {
    /// Reply to the job of this slot.
    Job(usize),
    /// Reply to `SELECT`.
    Selected,
    /// Reply to `ECHO` of this number.
    Echo(u64),
    /// Reply to `MULTI`, or to a queued command of the transaction in this slot.
    Queued(usize),
}

/// Client's end of a connection to a server.
pub(crate) struct ClientConnection {
    pub(crate) id: ConnectionId,
    pub(crate) reactor: usize,
    /// Set once the server knows the connection.
    pub(crate) is_announced: bool,
    /// Table that is selected for the next request.
    pub(crate) table: TableId,
    /// Requests that have not been sent.
    pub(crate) output: Vec<u8>,
    /// Received bytes that have not been parsed.
    pub(crate) input: Vec<u8>,
    pub(crate) parser: ReplyParser,
    /// Expected replies, in the order of the requests.
    pub(crate) expected: VecDeque<ExpectedReply>,
    requests: u64,
    /// Arrival time of the last piece in each direction.
    pub(crate) up: Instant,
    pub(crate) down: Instant,
}

struct SimulatedClient {
    slots: Range<usize>,
    /// Believed owner of each slot.
    owners: BTreeMap<Slot, usize>,
    connections: Vec<Option<ClientConnection>>,
    /// Set if the client is planned to look for new jobs.
    is_thinking: bool,
}

/// All clients of a run, with their observations.
pub(crate) struct SimulatedClients {
    clients: Vec<SimulatedClient>,
    open: Vec<Option<OpenJob>>,
    /// Number of open operations on each register.
    crowds: Vec<u32>,
    /// Operations of each register that may take effect at any time.
    abandoned: Vec<AbandonedOperations>,
    /// Operations by which the values of each register have grown.
    growth: Vec<GrowthLimit>,
    /// Moment at which the first write of each register ended.
    written: Vec<Option<u64>>,
    /// Finished operations of each register.
    histories: Vec<Vec<RegisterOperation>>,
    /// Clock of each register's range at the moments of its history.
    clocks: Vec<ClockReadings>,
    /// Moments at which each register was lost with its server.
    losses: Vec<Vec<u64>>,
    /// Result of the last read of each register, if it was answered.
    last_reads: Vec<Option<Option<u64>>>,
    /// Numbers of the writes of each register that native clients report as not executed.
    unexecuted: Vec<BTreeSet<u64>>,
    /// Number of refused jobs: they were not executed and are in no history.
    refused: usize,
    /// Number of moments (beginnings and ends) so far.
    moments: u64,
    connections: u64,
    finished: usize,
    /// Longest duration of an operation.
    pub(crate) longest: Duration,
}

impl SimulatedClients {
    /// Creates clients; `depths` contains the number of slots of each.
    pub(crate) fn new(depths: &[usize], servers: usize, registers: usize) -> SimulatedClients {
        let mut clients = Vec::new();
        let mut first = 0;
        for depth in depths {
            let connections = (0..servers).map(|_| None).collect();
            let slots = first..first + depth;
            first = slots.end;
            let owners = BTreeMap::new();
            clients.push(SimulatedClient { slots, owners, connections, is_thinking: false });
        }
        SimulatedClients {
            clients,
            open: vec![None; first],
            crowds: vec![0; registers],
            abandoned: vec![AbandonedOperations::default(); registers],
            growth: vec![GrowthLimit::default(); registers],
            written: vec![None; registers],
            histories: vec![Vec::new(); registers],
            clocks: vec![ClockReadings::default(); registers],
            losses: vec![Vec::new(); registers],
            last_reads: vec![None; registers],
            unexecuted: vec![BTreeSet::new(); registers],
            refused: 0,
            moments: 0,
            connections: 0,
            finished: 0,
            longest: Duration::ZERO,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Returns the number of finished jobs.
    pub(crate) fn operations(&self) -> usize {
        self.finished
    }

    /// Marks the client as planned to look for jobs. Returns `false` if it was marked already.
    pub(crate) fn begins_to_think(&mut self, client: usize) -> bool {
        !std::mem::replace(&mut self.clients[client].is_thinking, true)
    }

    pub(crate) fn has_thought(&mut self, client: usize) {
        self.clients[client].is_thinking = false;
    }

    pub(crate) fn slots(&self, client: usize) -> Range<usize> {
        self.clients[client].slots.clone()
    }

    pub(crate) fn client_of(&self, slot: usize) -> usize {
        self.clients.partition_point(|client| client.slots.end <= slot)
    }

    pub(crate) fn is_free(&self, slot: usize) -> bool {
        self.open[slot].is_none()
    }

    /// Returns the unfinished jobs.
    pub(crate) fn open(&self) -> impl Iterator<Item = &OpenJob> {
        self.open.iter().flatten()
    }

    pub(crate) fn job(&self, slot: usize) -> &OpenJob {
        self.open[slot].as_ref().expect("a reply belongs to an open request")
    }

    pub(crate) fn job_mut(&mut self, slot: usize) -> &mut OpenJob {
        self.open[slot].as_mut().expect("a reply belongs to an open request")
    }

    /// Returns whether a register takes no more operations at the moment: the maximal number is
    /// open, or so many have an unknown outcome that the checker could not follow.
    pub(crate) fn is_crowded(&self, register: usize) -> bool {
        self.crowds[register] >= CROWD || self.abandoned[register].are_too_many()
    }

    /// Returns how the value of a register may grow.
    pub(crate) fn room(&self, register: usize) -> GrowthRoom {
        self.growth[register].room()
    }

    /// Returns whether a register takes no more operations of native clients.
    pub(crate) fn is_crowded_for_native(&self, register: usize) -> bool {
        let is_full = self.abandoned[register].changes >= ABANDONED_FOR_NATIVE_MAX;
        is_full || self.is_crowded(register)
    }

    /// Returns whether the maximal number of flushes is open.
    pub(crate) fn has_many_flushes(&self) -> bool {
        let flushes = self.open().filter(|open| matches!(open.job, ClientJob::Flush(_)));
        flushes.count() >= FLUSHES_MAX
    }

    /// Returns whether a write of the register has ended, and it was not lost since.
    pub(crate) fn is_written(&self, register: usize) -> bool {
        self.written[register].is_some() && !self.was_lost(register)
    }

    /// Returns whether the register was lost at some time.
    pub(crate) fn was_lost(&self, register: usize) -> bool {
        !self.losses[register].is_empty()
    }

    pub(crate) fn begin(&mut self, now: Instant, slot: usize, job: ClientJob, state: JobState) {
        let begun = self.next_moment();
        if let ClientJob::Operation(register, action) = job {
            self.crowds[register] += 1;
            self.growth[register].begin(action);
        }
        let place = RequestPlace::default();
        let open = OpenJob {
            job,
            since: now,
            attempt: now,
            begun,
            place,
            hops: 0,
            is_refused: false,
            state,
        };
        let before = self.open[slot].replace(open);
        assert!(before.is_none(), "a slot has one job at a time");
    }

    /// Ends an operation. Without an outcome, it stays unknown if and when it is executed.
    pub(crate) fn end(&mut self, now: Instant, slot: usize, outcome: Option<OperationOutcome>) {
        let ended = self.next_moment();
        let open = self.finish(now, slot);
        let OpenJob { job: ClientJob::Operation(register, action), begun, place, .. } = open else {
            unreachable!("{open:?} has no outcome");
        };
        let operation = RegisterOperation { client: slot, begun, ended, place, action, outcome };
        self.observe(register, operation);
    }

    /// Adds an operation that has ended to its register's history.
    fn observe(&mut self, register: usize, operation: RegisterOperation) {
        let RegisterOperation { action, outcome, ended, .. } = operation;
        if matches!(action, RegisterAction::Write(_)) && outcome == Some(OperationOutcome::Done) {
            self.written[register].get_or_insert(ended);
        }
        if let (RegisterAction::Read, Some(OperationOutcome::Value(value))) = (action, outcome) {
            self.last_reads[register] = Some(value);
        }
        if let (RegisterAction::Read, Some(OperationOutcome::Stream(ids))) = (action, outcome) {
            self.last_reads[register] = Some(ids.map(|ids| ids.number()));
        }
        if outcome.is_none() && !action.is_read() {
            self.abandoned[register].add(action);
        }
        self.growth[register].end(&operation);
        self.histories[register].push(operation);
    }

    /// Begins an operation of a native client, and returns the moment.
    pub(crate) fn begin_native(&mut self, register: usize) -> u64 {
        self.crowds[register] += 1;
        self.next_moment()
    }

    /// Begins another attempt of such an operation, and returns the moment.
    pub(crate) fn native_moment(&mut self) -> u64 {
        self.next_moment()
    }

    /// Ends an operation of a native client.
    pub(crate) fn end_native(&mut self, now: Instant, job: &NativeJob, outcome: NativeOutcome) {
        let &NativeJob { client, register, action, begun, .. } = job;
        let ended = self.next_moment();
        self.crowds[register] -= 1;
        self.longest = self.longest.max(now.since(job.since));
        let outcome = match outcome {
            NativeOutcome::Known(outcome) => Some(outcome),
            NativeOutcome::Unknown => None,
            NativeOutcome::NotExecuted => {
                self.refused += 1;
                self.unexecuted[register].extend(action.written().map(write_number));
                return;
            }
        };
        self.finished += 1;
        // Its requests have no order among those of others on a connection.
        let place = RequestPlace::default();
        let client = self.open.len() + client;
        self.observe(register, RegisterOperation { client, begun, ended, place, action, outcome });
    }

    /// Returns a value that some operation has seen although its write was reported as not
    /// executed.
    pub(crate) fn effect_of_unexecuted(&self) -> Option<String> {
        let registers = self.histories.iter().zip(&self.unexecuted).enumerate();
        registers
            .flat_map(|(register, (history, unexecuted))| {
                let seen = history.iter().filter_map(move |operation| {
                    let value = match operation.outcome? {
                        OperationOutcome::Value(value) => value?,
                        OperationOutcome::Number(value) => value,
                        OperationOutcome::Done
                        | OperationOutcome::Applied(_)
                        | OperationOutcome::WrongType
                        | OperationOutcome::Id(_)
                        | OperationOutcome::Entries(_)
                        | OperationOutcome::Stream(_)
                        | OperationOutcome::Pending(_)
                        | OperationOutcome::Rejected
                        | OperationOutcome::Remaining(_) => return None,
                    };
                    unexecuted.contains(&write_number(value)).then_some((register, operation))
                });
                seen.map(|(register, operation)| format!("register {register}: {operation:?}"))
            })
            .next()
    }

    /// Ends a flush. `was_hit` are the registers that its server owned all the time; without them,
    /// it stays unknown if and when the flush is executed.
    pub(crate) fn end_flush(
        &mut self,
        now: Instant,
        slot: usize,
        was_hit: Option<&BTreeSet<usize>>,
    ) {
        let ended = self.next_moment();
        let OpenJob { begun, place, state, .. } = self.finish(now, slot);
        let JobState::Flush(registers) = state else { unreachable!("a flush remembers registers") };
        for (register, _) in registers {
            let action = RegisterAction::Flush;
            let outcome =
                was_hit.map(|was_hit| OperationOutcome::Applied(was_hit.contains(&register)));
            let operation =
                RegisterOperation { client: slot, begun, ended, place, action, outcome };
            self.histories[register].push(operation);
        }
    }

    /// Ends a job that is in no history, or was not executed.
    pub(crate) fn finish(&mut self, now: Instant, slot: usize) -> OpenJob {
        let open = self.open[slot].take().expect("a job ends once");
        if let ClientJob::Operation(register, action) = open.job {
            self.crowds[register] -= 1;
            self.growth[register].finish(action);
        }
        self.longest = self.longest.max(now.since(open.since));
        self.finished += 1;
        open
    }

    /// Ends a job that was not executed and never will be.
    pub(crate) fn refuse(&mut self, now: Instant, slot: usize) {
        self.finish(now, slot);
        self.finished -= 1;
        self.refused += 1;
    }

    /// Begins another attempt of an operation that was refused. The operation has not been executed
    /// before, so its history begins now.
    pub(crate) fn retry(&mut self, now: Instant, slot: usize) {
        let begun = self.next_moment();
        let open = self.job_mut(slot);
        (open.attempt, open.begun, open.hops) = (now, begun, 0);
        open.place = RequestPlace::default();
    }

    /// Begins another attempt of an operation that may have been executed. Its history goes on.
    pub(crate) fn repeat(&mut self, now: Instant, slot: usize) {
        let open = self.job_mut(slot);
        (open.attempt, open.hops) = (now, 0);
        open.place = RequestPlace::default();
    }

    /// Records that any attempt of an operation may be the executed one, so its place among the
    /// requests of a connection is unknown.
    pub(crate) fn forget_place(&mut self, slot: usize) {
        self.job_mut(slot).place = RequestPlace::default();
    }

    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    /// Records that the register was lost with its server.
    pub(crate) fn lose(&mut self, register: usize) {
        let moment = self.next_moment();
        self.losses[register].push(moment);
        self.growth[register].lose();
    }

    /// Records the current owner of the slot.
    pub(crate) fn learn(&mut self, client: usize, slot: Slot, owner: usize) {
        self.clients[client].owners.insert(slot, owner);
    }

    /// Removes the believed owner of a slot, since no process listens there.
    pub(crate) fn forget_owner(&mut self, client: usize, slot: Slot) {
        self.clients[client].owners.remove(&slot);
    }

    /// Removes the server at this place as the believed owner of any slot.
    pub(crate) fn forget_owners_at(&mut self, place: usize) {
        let owners = self.clients.iter_mut().map(|client| &mut client.owners);
        owners.for_each(|owners| owners.retain(|_, owner| *owner != place));
    }

    /// Prepares the final reads: clients discard the owners that they know.
    pub(crate) fn begin_last_reads(&mut self) {
        self.clients.iter_mut().for_each(|client| client.owners.clear());
        self.last_reads.fill(None);
    }

    /// Records that a command of a job's transaction could not be served.
    pub(crate) fn refuse_queued(&mut self, slot: usize) {
        self.job_mut(slot).is_refused = true;
    }

    /// Returns whether a command of a job's last transaction could not be served, and forgets it.
    pub(crate) fn take_refusal(&mut self, slot: usize) -> bool {
        std::mem::take(&mut self.job_mut(slot).is_refused)
    }

    /// Counts one more attempt of a job. Returns `false` if there were too many.
    pub(crate) fn hop(&mut self, slot: usize) -> bool {
        let open = self.job_mut(slot);
        open.hops += 1;
        open.hops <= HOPS_MAX
    }

    pub(crate) fn owner(&self, client: usize, slot: Slot) -> Option<usize> {
        self.clients[client].owners.get(&slot).copied()
    }

    /// Returns the client's connection to a server, and opens it if there is none.
    pub(crate) fn connect(
        &mut self,
        client: usize,
        server: usize,
        reactor: impl FnOnce() -> usize,
    ) -> &mut ClientConnection {
        self.clients[client].connections[server].get_or_insert_with(|| {
            self.connections += 1;
            ClientConnection {
                id: ConnectionId::from_number(self.connections),
                reactor: reactor(),
                is_announced: false,
                table: TABLE,
                output: Vec::new(),
                input: Vec::new(),
                parser: ReplyParser::new(ReplyLimits::default()),
                expected: VecDeque::new(),
                requests: 0,
                up: Instant(0),
                down: Instant(0),
            }
        })
    }

    /// Registers that the next request on the client's connection to a server is the job of a
    /// slot.
    pub(crate) fn ask(
        &mut self,
        client: usize,
        server: usize,
        slot: usize,
    ) -> &mut ClientConnection {
        let connection = self.clients[client].connections[server].as_mut();
        let connection = connection.expect("a request needs an open connection");
        connection.requests += 1;
        connection.expected.push_back(ExpectedReply::Job(slot));
        let place =
            RequestPlace { connection: connection.id.number(), request: connection.requests };
        self.open[slot].as_mut().expect("a request is open before it is sent").place = place;
        connection
    }

    /// Returns the unfinished jobs whose last request was sent to this place.
    pub(crate) fn open_at(&self, place: usize) -> impl Iterator<Item = &OpenJob> {
        let slots = self.open.iter().enumerate();
        let open = slots.filter_map(|(slot, open)| Some((slot, open.as_ref()?)));
        open.filter(move |(slot, _)| self.asked_place(*slot) == Some(place)).map(|(_, open)| open)
    }

    /// Returns the place of the server to which a job's last request was sent.
    pub(crate) fn asked_place(&self, slot: usize) -> Option<usize> {
        let id = self.job(slot).place.connection;
        let connections = &self.clients[self.client_of(slot)].connections;
        connections.iter().position(|it| it.as_ref().is_some_and(|it| it.id.number() == id))
    }

    /// Returns the client's connection to a server, if there is one.
    pub(crate) fn connection(
        &mut self,
        client: usize,
        server: usize,
    ) -> Option<&mut ClientConnection> {
        self.clients[client].connections[server].as_mut()
    }

    /// Returns the client that has this connection, and the server.
    pub(crate) fn holder(&self, id: ConnectionId) -> Option<(usize, usize)> {
        self.clients.iter().enumerate().find_map(|(number, client)| {
            let is_it =
                |there: &Option<ClientConnection>| there.as_ref().is_some_and(|c| c.id == id);
            client.connections.iter().position(is_it).map(|server| (number, server))
        })
    }

    /// Returns all connections to a server, with the arrival time of their last reply.
    pub(crate) fn connections_to(&self, server: usize) -> Vec<(ConnectionId, Instant)> {
        let connections = self.clients.iter().filter_map(|one| one.connections[server].as_ref());
        connections.map(|connection| (connection.id, connection.down)).collect()
    }

    /// Removes a broken connection. Returns its client, and the slots of the jobs that were sent
    /// on it and not answered.
    pub(crate) fn disconnect(&mut self, id: ConnectionId) -> Option<(usize, Vec<usize>)> {
        let (client, server) = self.holder(id)?;
        let connection = self.clients[client].connections[server].take()?;
        let slot = |expected: &ExpectedReply| match expected {
            ExpectedReply::Job(slot) => Some(*slot),
            ExpectedReply::Selected | ExpectedReply::Echo(_) | ExpectedReply::Queued(_) => None,
        };
        Some((client, connection.expected.iter().filter_map(slot).collect()))
    }

    /// Adds a reading of the clock of a register's range, at the last moment.
    pub(crate) fn add_clock(&mut self, register: usize, bounds: RangeClockBounds) {
        self.clocks[register].add(self.moments, bounds);
    }

    /// Returns the first register with a history that is impossible or undecided.
    pub(crate) fn judge(&self, registers: &[Register]) -> Option<(usize, HistoryVerdict)> {
        let histories = self.histories.iter().zip(&self.losses);
        let histories = histories.zip(self.clocks.iter().zip(registers));
        let verdicts = histories.map(|((history, losses), (clocks, register))| {
            let lives = clocks.lives(history, |value| register.expiry_millis(value));
            history::check(history, losses, &lives)
        });
        verdicts.enumerate().find(|(_, verdict)| *verdict != HistoryVerdict::Linearizable)
    }

    /// Discards the result of the last read, since the register is read once more.
    pub(crate) fn forget_last_read(&mut self, register: usize) {
        self.last_reads[register] = None;
    }

    /// Returns the result of the last read of a register, if it was answered.
    pub(crate) fn last_read(&self, register: usize) -> Option<Option<u64>> {
        self.last_reads[register]
    }

    fn next_moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }
}
