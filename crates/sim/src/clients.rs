//! The clients: each keeps some requests in flight, pipelined on a connection to each server, follows
//! redirections, and remembers what it saw.
//!
//! A client has *slots*, as many as it may have jobs at once. A job occupies its slot from its
//! beginning to its end, however often it is sent. The number of the slot, among those of all
//! clients, is the client's number in a history.

use crate::history::{self, Action, Lives, Operation, Outcome, Place, Verdict};
use crate::workload::{Job, TABLE, expiry_millis};
use resp::{ReplyLimits, ReplyParser};
use server::core::ConnectionId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;
use types::{Instant, KeyHash, OwnershipEpoch, Slot, TableId};

/// Redirections of one operation before its servers are taken to point at each other. Each step
/// takes a round trip, and a range moves at most a few times meanwhile.
const HOPS_MAX: u32 = 30;

/// Operations on one register at a time: more, and there are too many orders to try.
const CROWD: u32 = 6;

/// By how much values may expire too early and too late, beside what follows from clocks that run
/// too fast or too slow.
pub(crate) type Slack = (Duration, Duration);

/// A job that has not come to its end.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) job: Job,
    pub(crate) since: Instant,
    begun: u64,
    /// Where it was sent last.
    place: Place,
    hops: u32,
    pub(crate) state: State,
}

/// What a job on a whole server remembers.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Operation,
    /// Under which epoch the server held each register's range when the job began.
    Flush(Vec<(usize, Option<OwnershipEpoch>)>),
    Walk(Walk),
    /// Records there were when the job began.
    Count(u64),
}

/// A walk over all keys of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    pub(crate) cursor: u64,
    /// What must be found, if the server still holds it under this epoch at the end.
    pub(crate) expected: Vec<(usize, KeyHash, OwnershipEpoch)>,
    pub(crate) found: BTreeSet<usize>,
}

/// What the next reply on a connection answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The job of this slot.
    Job(usize),
    /// `SELECT`.
    Selected,
    /// `ECHO` of this number.
    Echo(u64),
    /// `MULTI`, or a command of the transaction that the job of this slot is.
    Collected(usize),
}

/// A client's end of a connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) reactor: usize,
    /// Whether the server knows of it.
    pub(crate) is_announced: bool,
    /// The table that the next request will be for.
    pub(crate) table: TableId,
    /// Requests that have not been sent.
    pub(crate) output: Vec<u8>,
    /// What has been received and not understood yet.
    pub(crate) input: Vec<u8>,
    pub(crate) parser: ReplyParser,
    /// What has been asked, in order.
    pub(crate) expected: VecDeque<Expected>,
    requests: u64,
    /// When the last piece of each direction arrives.
    pub(crate) up: Instant,
    pub(crate) down: Instant,
}

#[derive(Debug)]
struct Client {
    slots: Range<usize>,
    /// Where it believes a slot to be.
    owners: BTreeMap<Slot, usize>,
    connections: Vec<Option<Connection>>,
    /// Whether it is about to look what to do.
    is_thinking: bool,
}

/// All clients of a run, and everything they saw.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<Client>,
    open: Vec<Option<Open>>,
    /// Open operations on each register.
    crowds: Vec<u32>,
    /// When the first write of each register had ended.
    written: Vec<Option<u64>>,
    /// By register.
    histories: Vec<Vec<Operation>>,
    /// When each register was lost with the server that held it.
    losses: Vec<Vec<u64>>,
    /// What the last read of each register saw, if it was answered.
    last_reads: Vec<Option<Option<u64>>>,
    /// Jobs that were refused: not executed, and so part of no history.
    refused: usize,
    /// When each beginning and end so far was.
    moments: Vec<Instant>,
    connections: u64,
    finished: usize,
    /// The longest time that an operation took.
    pub(crate) longest: Duration,
}

impl Clients {
    /// Clients with so many slots each.
    pub(crate) fn new(depths: &[usize], servers: usize, registers: usize) -> Clients {
        let mut clients = Vec::new();
        let mut first = 0;
        for depth in depths {
            let connections = (0..servers).map(|_| None).collect();
            let slots = first..first + depth;
            first = slots.end;
            let owners = BTreeMap::new();
            clients.push(Client { slots, owners, connections, is_thinking: false });
        }
        Clients {
            clients,
            open: vec![None; first],
            crowds: vec![0; registers],
            written: vec![None; registers],
            histories: vec![Vec::new(); registers],
            losses: vec![Vec::new(); registers],
            last_reads: vec![None; registers],
            refused: 0,
            moments: Vec::new(),
            connections: 0,
            finished: 0,
            longest: Duration::ZERO,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Jobs that have come to their end.
    pub(crate) fn operations(&self) -> usize {
        self.finished
    }

    /// The client is about to look what to do. `false`: it was so already.
    pub(crate) fn begins_to_think(&mut self, client: usize) -> bool {
        !std::mem::replace(&mut self.clients[client].is_thinking, true)
    }

    pub(crate) fn has_thought(&mut self, client: usize) {
        self.clients[client].is_thinking = false;
    }

    pub(crate) fn slots(&self, client: usize) -> Range<usize> {
        self.clients[client].slots.clone()
    }

    /// The client whose slot it is.
    pub(crate) fn client_of(&self, slot: usize) -> usize {
        self.clients.partition_point(|client| client.slots.end <= slot)
    }

    pub(crate) fn is_free(&self, slot: usize) -> bool {
        self.open[slot].is_none()
    }

    /// Jobs that have not come to their end.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Open> {
        self.open.iter().flatten()
    }

    pub(crate) fn job(&self, slot: usize) -> &Open {
        self.open[slot].as_ref().expect("who is answered has asked")
    }

    pub(crate) fn job_mut(&mut self, slot: usize) -> &mut Open {
        self.open[slot].as_mut().expect("who is answered has asked")
    }

    /// Whether so many operations on the register are open that there shall be no more.
    pub(crate) fn is_crowded(&self, register: usize) -> bool {
        self.crowds[register] >= CROWD
    }

    /// Whether a write of the register has ended.
    pub(crate) fn is_written(&self, register: usize) -> bool {
        self.written[register].is_some()
    }

    pub(crate) fn begin(&mut self, now: Instant, slot: usize, job: Job, state: State) {
        let begun = self.next_moment(now);
        if let Job::Operation(register, _) = job {
            self.crowds[register] += 1;
        }
        let place = Place { connection: 0, request: 0 };
        let open = Open { job, since: now, begun, place, hops: 0, state };
        let before = self.open[slot].replace(open);
        assert!(before.is_none(), "a slot has one job at a time");
    }

    /// The operation was executed.
    pub(crate) fn end(&mut self, now: Instant, slot: usize, outcome: Outcome) {
        self.close(now, slot, Some(outcome));
    }

    /// Nobody will ever know whether the operation was executed, or when it will be.
    pub(crate) fn give_up(&mut self, now: Instant, slot: usize) {
        self.close(now, slot, None);
    }

    fn close(&mut self, now: Instant, slot: usize, outcome: Option<Outcome>) {
        let ended = self.next_moment(now);
        let open = self.finish(now, slot);
        let Open { job: Job::Operation(register, action), begun, place, .. } = open else {
            unreachable!("{open:?} has no outcome");
        };
        if matches!(action, Action::Write(_)) && outcome == Some(Outcome::Done) {
            self.written[register].get_or_insert(ended);
        }
        if let (Action::Read, Some(Outcome::Value(value))) = (action, outcome) {
            self.last_reads[register] = Some(value);
        }
        let operation = Operation { client: slot, begun, ended, place, action, outcome };
        self.histories[register].push(operation);
    }

    /// Nobody will ever know whether the flush was executed, or when it will be.
    pub(crate) fn give_up_flush(&mut self, now: Instant, slot: usize) {
        self.close_flush(now, slot, |_| None);
    }

    /// The flush was executed: whether these registers were its server's all the time.
    pub(crate) fn end_flush(&mut self, now: Instant, slot: usize, was_hit: &BTreeSet<usize>) {
        let hit = |register| Some(Outcome::Applied(was_hit.contains(&register)));
        self.close_flush(now, slot, hit);
    }

    fn close_flush(
        &mut self,
        now: Instant,
        slot: usize,
        outcome: impl Fn(usize) -> Option<Outcome>,
    ) {
        let ended = self.next_moment(now);
        let Open { begun, place, state, .. } = self.finish(now, slot);
        let State::Flush(registers) = state else { unreachable!("a flush remembers registers") };
        for (register, _) in registers {
            let (action, outcome) = (Action::Flush, outcome(register));
            let operation = Operation { client: slot, begun, ended, place, action, outcome };
            self.histories[register].push(operation);
        }
    }

    /// The job has come to its end, and is part of no history, or was not executed.
    pub(crate) fn finish(&mut self, now: Instant, slot: usize) -> Open {
        let open = self.open[slot].take().expect("a job ends once");
        if let Job::Operation(register, _) = open.job {
            self.crowds[register] -= 1;
        }
        self.longest = self.longest.max(now.since(open.since));
        self.finished += 1;
        open
    }

    /// The job was not executed, and never will be.
    pub(crate) fn refuse(&mut self, now: Instant, slot: usize) {
        self.finish(now, slot);
        self.finished -= 1;
        self.refused += 1;
    }

    /// Jobs that were refused so far.
    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    /// The server that held this register is gone, and what it held with it.
    pub(crate) fn lose(&mut self, now: Instant, register: usize) {
        let moment = self.next_moment(now);
        self.losses[register].push(moment);
    }

    /// Whoever has the slot's range is this server now.
    pub(crate) fn learn(&mut self, client: usize, slot: Slot, owner: usize) {
        self.clients[client].owners.insert(slot, owner);
    }

    /// Nobody listens where the client believes the owner of a slot to be.
    pub(crate) fn forget_owner(&mut self, client: usize, slot: Slot) {
        self.clients[client].owners.remove(&slot);
    }

    /// From here on everything is read for the last time, by clients that ask anew where it is.
    pub(crate) fn begin_last_reads(&mut self) {
        self.clients.iter_mut().for_each(|client| client.owners.clear());
        self.last_reads.fill(None);
    }

    /// The job is sent once more. `false`: that has happened too often.
    pub(crate) fn hop(&mut self, slot: usize) -> bool {
        let open = self.job_mut(slot);
        open.hops += 1;
        open.hops <= HOPS_MAX
    }

    pub(crate) fn owner(&self, client: usize, slot: Slot) -> Option<usize> {
        self.clients[client].owners.get(&slot).copied()
    }

    /// The client's connection to a server, opened now if there is none.
    pub(crate) fn connect(
        &mut self,
        client: usize,
        server: usize,
        reactor: impl FnOnce() -> usize,
    ) -> &mut Connection {
        self.clients[client].connections[server].get_or_insert_with(|| {
            self.connections += 1;
            Connection {
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

    /// The job of a slot is written into the client's connection to a server next.
    pub(crate) fn ask(&mut self, client: usize, server: usize, slot: usize) -> &mut Connection {
        let connection = self.clients[client].connections[server].as_mut();
        let connection = connection.expect("a request goes to a connection that is there");
        connection.requests += 1;
        connection.expected.push_back(Expected::Job(slot));
        let place = Place { connection: connection.id.number(), request: connection.requests };
        self.open[slot].as_mut().expect("what is sent has begun").place = place;
        connection
    }

    /// The client's connection to a server, if there is one.
    pub(crate) fn connection(&mut self, client: usize, server: usize) -> Option<&mut Connection> {
        self.clients[client].connections[server].as_mut()
    }

    /// Who has this connection, and to which server it leads.
    pub(crate) fn holder(&self, id: ConnectionId) -> Option<(usize, usize)> {
        self.clients.iter().enumerate().find_map(|(number, client)| {
            let is_it = |there: &Option<Connection>| there.as_ref().is_some_and(|c| c.id == id);
            client.connections.iter().position(is_it).map(|server| (number, server))
        })
    }

    /// All connections to a server.
    pub(crate) fn connections_to(&self, server: usize) -> Vec<(ConnectionId, Instant)> {
        let connections = self.clients.iter().filter_map(|one| one.connections[server].as_ref());
        connections.map(|connection| (connection.id, connection.down)).collect()
    }

    /// A connection is broken. Returns whose it was, and the slots whose jobs had been sent there and
    /// were not answered.
    pub(crate) fn disconnect(&mut self, id: ConnectionId) -> Option<(usize, Vec<usize>)> {
        let (client, server) = self.holder(id)?;
        let connection = self.clients[client].connections[server].take()?;
        let slot = |expected: &Expected| match expected {
            Expected::Job(slot) => Some(*slot),
            Expected::Selected | Expected::Echo(_) | Expected::Collected(_) => None,
        };
        Some((client, connection.expected.iter().filter_map(slot).collect()))
    }

    /// Registers whose history cannot have happened, or could not be judged, with the reason.
    pub(crate) fn judge(&self, slack: Slack) -> Option<(usize, Verdict)> {
        let histories = self.histories.iter().zip(&self.losses);
        let verdicts = histories
            .map(|(history, losses)| history::check(history, losses, &self.lives(history, slack)));
        verdicts.enumerate().find(|(_, verdict)| *verdict != Verdict::Linearizable)
    }

    /// A register is about to be read once more.
    pub(crate) fn forget_last_read(&mut self, register: usize) {
        self.last_reads[register] = None;
    }

    /// What the last read of a register saw, if it was answered.
    pub(crate) fn last_read(&self, register: usize) -> Option<Option<u64>> {
        self.last_reads[register]
    }

    fn next_moment(&mut self, now: Instant) -> u64 {
        self.moments.push(now);
        self.moments.len() as u64
    }

    /// When the values that were written to expire go: clocks may be wrong by `early` and `late`, a
    /// server's may run a twentieth fast or slow, and a range's that is behind another twentieth
    /// faster.
    fn lives(&self, history: &[Operation], (early, late): Slack) -> Lives {
        let life = |operation: &Operation| {
            let Action::WriteExpiring(value) = operation.action else { return None };
            let time = |moment: u64| self.moments[moment as usize - 1];
            let lasts = Duration::from_millis(expiry_millis(value));
            let first = (time(operation.begun) + lasts * 400 / 441).0;
            let first = Instant(first.saturating_sub(early.as_nanos() as u64));
            let last = time(operation.ended) + lasts * 20 / 19 + late;
            // Positions count from 1.
            let first = self.moments.partition_point(|at| *at < first) as u64 + 1;
            let last = self.moments.partition_point(|at| *at <= last) as u64;
            operation.outcome.is_some().then_some((value, first..=last))
        };
        history.iter().filter_map(life).collect()
    }
}
