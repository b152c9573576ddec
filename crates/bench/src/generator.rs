//! One thread of the load generator: starts operations when they are due, sends them to the owner
//! of their slot, follows redirects, and continues until nothing is left to start or to wait for.
//!
//! Cost estimate: at 65,000 operations/s one starts every 15 us. A separate send for each would
//! cost a send, two wake-ups and a receive, well over 10 us. The thread of an open loop therefore
//! wakes once per tick (100 us by default), takes all answers, and sends all due operations on
//! one line per server: about 2 us per operation. The wait for the tick counts as latency, which
//! runs from the intended start until the answer is seen. A tick of zero wakes for every start
//! and every answer.

use crate::clock;
use crate::fleet::{Fleet, LineIndex};
use crate::judge::{Judge, OperationFailure, SharedRunState};
use crate::ledger::WriteLedger;
use crate::operation::{Encoder, LoadOperation, LoadRequest, OperationCommand};
use crate::pace::{LoadPace, Schedule};
use crate::recorder::Recording;
use crate::records::RecordSet;
use crate::retry_queue::{RetryCause, RetryQueue, TemporaryError, WaitingOperation};
use crate::slot_map::{NodeIndex, Redirect, SlotMap, SlotSet, parse_redirect};
use crate::workload::Operations;
use anyhow::Result;
use resp::{Reply, RequestWriter};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::Instant;

/// Maximal number of unanswered operations of one thread; beyond it, an open loop counts
/// operations as failed. A stall of 10 s at 100,000 operations/s stays below.
const IN_FLIGHT_MAX: usize = 1 << 20;
/// Longest wait for the last answers.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// Longest sleep of the thread before it checks if it should stop.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Shortest interval between two requests for the slot map; until then each `MOVED` updates one
/// slot.
const ROUTES_EVERY: Duration = Duration::from_millis(20);
/// Silence after which a patient client gives a connection up; a server lets no operation wait
/// for longer than 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(7);
/// Pause of a closed loop's client after an operation that could not be sent.
const REST: Duration = Duration::from_millis(10);

/// Task of one thread.
pub struct GeneratorTask {
    /// The operations.
    pub operations: Operations,
    /// Start times of the operations.
    pub pace: LoadPace,
    /// Begin of the run.
    pub start: Instant,
    /// Time after which no operation starts.
    pub end: Instant,
    /// Interval at which the thread of an open loop checks clock and sockets; 0 for at once.
    pub tick: Duration,
    /// Least processor time of an open loop per operation.
    pub cost: Duration,
    /// Time after its intended start during which an operation is retried if its server is gone
    /// or reports a temporary error. With 0 such an operation fails.
    pub patience: Duration,
    /// Slots that are also measured separately.
    pub watched: SlotSet,
    /// Seed of the arrivals.
    pub seed: u64,
    /// Number of connections to each server.
    pub lines_per_node: u32,
}

/// Destination of an operation.
#[derive(Clone, Copy, Debug)]
enum OperationTarget {
    /// The known owner of its slot.
    Owner,
    /// This server, after `ASKING`.
    Asking(NodeIndex),
}

/// Consequence of an answer.
enum ReplyOutcome {
    /// The operation has ended.
    Over { client: u32 },
    /// The operation continues with another command.
    Send(LoadOperation),
    /// The operation continues at another server.
    Redirect(LoadOperation, Redirect),
    /// The operation waits for a retry.
    Wait(LoadOperation, TemporaryError),
}

/// One thread of the load generator.
pub struct Generator {
    task: GeneratorTask,
    /// Operations still to start; an open loop's have their times.
    supply: Supply,
    judge: Judge,
    encoder: Encoder,
    routes: SlotMap,
    routes_asked: Instant,
    /// Last server that was asked for the slot map because an owner could not be reached.
    routes_asked_of: NodeIndex,
    /// Time of the last check for silent lines.
    silence_checked: Instant,
    waiting: RetryQueue,
    fleet: Fleet<LoadRequest>,
    shared: Arc<SharedRunState>,
    in_flight: usize,
    /// Number of operations that have ended.
    ended: u32,
    broken: Vec<LineIndex>,
    /// Kept for its allocation; empty between two calls of `receive`.
    next: Vec<ReplyOutcome>,
}

/// Source of new operations.
enum Supply {
    /// The clock. All operations of one send share a line with the number `burst`.
    Open { schedule: Schedule, burst: u32 },
    /// The clients. After a failure a client rests until its moment.
    Closed { resting: VecDeque<(Instant, u32)> },
    /// No operation starts any more.
    Exhausted,
}

impl Generator {
    /// Creates a thread that runs `task` on the records of `ledger`.
    pub fn new(
        task: GeneratorTask,
        records: RecordSet,
        ledger: WriteLedger,
        routes: SlotMap,
        shared: Arc<SharedRunState>,
    ) -> Result<Generator> {
        let supply = match task.pace {
            LoadPace::Open { rate, arrivals } => Supply::Open {
                schedule: Schedule::new(rate, arrivals, task.start, task.seed),
                burst: 0,
            },
            LoadPace::Closed { clients } => Supply::Closed {
                resting: (0..clients).map(|client| (task.start, client)).collect(),
            },
        };
        Ok(Generator {
            supply,
            judge: Judge::new(
                records,
                ledger,
                task.start,
                task.watched.clone(),
                Arc::clone(&shared),
            ),
            encoder: Encoder::new(records),
            routes,
            routes_asked: Instant(0),
            routes_asked_of: NodeIndex(0),
            silence_checked: task.start,
            waiting: RetryQueue::default(),
            fleet: Fleet::new(task.lines_per_node)?,
            shared,
            in_flight: 0,
            ended: 0,
            broken: Vec::new(),
            next: Vec::new(),
            task,
        })
    }

    /// Runs to the end, and returns the ledger and the recording.
    pub fn run(mut self) -> Result<(WriteLedger, Recording)> {
        self.fleet.open_all(&self.routes)?;
        let mut readable = Vec::new();
        let mut wake = self.task.start;
        loop {
            let now = clock::now();
            if now >= wake {
                wake = self.next_wake(now);
            }
            self.try_again(now);
            self.fleet.flush(&mut self.broken);
            self.give_up_broken(now);
            self.judge.report();
            if self.is_over(now) {
                break;
            }
            self.wait(wake, now, &mut readable)?;
            let now = clock::now();
            for line in readable.drain(..) {
                self.receive(line, now);
            }
            self.spend();
        }
        let now = clock::now();
        // Pending and waiting operations are not retried.
        self.task.patience = Duration::ZERO;
        self.broken = self.fleet.open_lines();
        self.give_up_broken(now);
        for held in self.waiting.take_all() {
            self.fail(held.operation, OperationFailure::NotExecuted(held.cause), now);
        }
        Ok(self.judge.finish(now))
    }

    /// Spins until the thread has used the least processor time of its operations.
    fn spend(&self) {
        if let LoadPace::Open { .. } = self.task.pace
            && !self.task.cost.is_zero()
        {
            while clock::thread_cpu_time() < self.task.cost * self.ended {
                std::hint::spin_loop();
            }
        }
    }

    fn wait(&mut self, wake: Instant, now: Instant, readable: &mut Vec<LineIndex>) -> Result<()> {
        match self.task.pace {
            LoadPace::Open { .. } if !self.task.tick.is_zero() => {
                clock::sleep(wake.since(now));
                self.fleet.poll(readable, &mut self.broken)
            }
            LoadPace::Open { .. } | LoadPace::Closed { .. } => {
                self.fleet.wait(wake, readable, &mut self.broken)
            }
        }
    }

    /// Returns whether nothing is left to start or to wait for.
    fn is_over(&mut self, now: Instant) -> bool {
        if now >= self.task.end || self.shared.stop.load(Relaxed) {
            // A run that is stopped early waits for its last answers as long as any other.
            self.task.end = self.task.end.min(now);
            self.supply = Supply::Exhausted;
        }
        match self.supply {
            Supply::Open { .. } => false,
            Supply::Closed { ref resting } => resting.is_empty() && self.in_flight == 0,
            Supply::Exhausted => self.in_flight == 0 || now > self.task.end + DRAIN_MAX,
        }
    }

    /// Starts due operations, and returns the time of the next check.
    fn next_wake(&mut self, now: Instant) -> Instant {
        let next = self.start_due(now);
        // With answers outstanding, the next tick is due even if no operation is.
        let latest = if self.in_flight > 0 { self.task.tick } else { CHECK_EVERY };
        next.clamp(now + self.task.tick, now + latest.max(self.task.tick))
    }

    /// Starts due operations, and returns the time of the next one.
    fn start_due(&mut self, now: Instant) -> Instant {
        loop {
            match &mut self.supply {
                Supply::Open { schedule, burst } => {
                    let intended = schedule.next();
                    if intended > now {
                        *burst = burst.wrapping_add(1);
                        return intended;
                    }
                    schedule.advance();
                    let client = *burst;
                    if self.in_flight < IN_FLIGHT_MAX {
                        self.start(client, intended, now);
                    } else {
                        self.judge.dropped(now);
                    }
                }
                Supply::Closed { resting } => match resting.front() {
                    Some(&(until, client)) if until <= now => {
                        resting.pop_front();
                        self.start(client, now, now);
                    }
                    Some(&(until, _)) => return until,
                    None => return now + CHECK_EVERY,
                },
                Supply::Exhausted => return now + CHECK_EVERY,
            }
        }
    }

    /// Starts the next operation, if there is one.
    fn start(&mut self, client: u32, intended: Instant, now: Instant) {
        let Some((action, record)) = self.task.operations.next_operation() else {
            self.supply = Supply::Exhausted;
            return;
        };
        let step = self.judge.first_step(action, record);
        self.in_flight += 1;
        let slot = self.encoder.slot(record);
        let operation =
            LoadOperation { action, record, slot, step, intended, client, redirects: 0 };
        self.send(operation, OperationTarget::Owner, now);
    }

    fn send(&mut self, operation: LoadOperation, target: OperationTarget, now: Instant) {
        let (node, asking) = match target {
            OperationTarget::Owner => (self.routes.owner(operation.slot), false),
            OperationTarget::Asking(node) => (node, true),
        };
        let line = self.fleet.line(node, operation.client);
        let Some(connection) = self.fleet.connection(line, &self.routes, now) else {
            return self.hold(operation, RetryCause::Unreachable(node), now);
        };
        if asking {
            RequestWriter::write(&[b"ASKING"], connection.request(LoadRequest::Asking));
        }
        self.encoder.request(operation, connection);
    }

    /// Receives all answers that have arrived on a line.
    fn receive(&mut self, line: LineIndex, now: Instant) {
        let Some(connection) = self.fleet.open_connection(line) else { return };
        if connection.receive(now).is_err() {
            return self.broken.push(line);
        }
        let asked = connection.address();
        let is_patient = !self.task.patience.is_zero();
        loop {
            match connection.next_reply() {
                Ok(Some((LoadRequest::Operation(operation), reply))) => {
                    let client = operation.client;
                    let rejection = rejection(operation, reply, asked, is_patient);
                    self.next.push(rejection.unwrap_or_else(|| {
                        match self.judge.answered(operation, reply, now) {
                            Some(operation) => ReplyOutcome::Send(operation),
                            None => ReplyOutcome::Over { client },
                        }
                    }));
                }
                Ok(Some((LoadRequest::Asking, _))) => {}
                // An invalid map does not end the run: redirects update the map as well.
                Ok(Some((LoadRequest::Routes, reply))) => drop(self.routes.replace(reply, asked)),
                Ok(None) => break,
                Err(_) => {
                    self.broken.push(line);
                    break;
                }
            }
        }
        let mut next = std::mem::take(&mut self.next);
        for next in next.drain(..) {
            self.apply(next, now);
        }
        self.next = next;
    }

    fn apply(&mut self, next: ReplyOutcome, now: Instant) {
        match next {
            ReplyOutcome::Send(operation) => self.send(operation, OperationTarget::Owner, now),
            ReplyOutcome::Redirect(operation, to) => self.redirect(operation, to, now),
            ReplyOutcome::Wait(operation, refusal) => {
                self.hold(operation, RetryCause::Refused(refusal), now)
            }
            ReplyOutcome::Over { client } => {
                self.in_flight -= 1;
                self.ended += 1;
                if let Supply::Closed { .. } = self.supply {
                    self.start(client, now, now);
                }
            }
        }
    }

    /// Sends an operation to the destination of a redirect.
    fn redirect(&mut self, mut operation: LoadOperation, to: Redirect, now: Instant) {
        let target = match to {
            Redirect::Moved(slot, address) => {
                let node = self.routes.moved(slot, address);
                self.ask_for_routes(node, operation.client, now);
                OperationTarget::Owner
            }
            Redirect::Ask(address) => OperationTarget::Asking(self.routes.node(address)),
        };
        let for_good = matches!(to, Redirect::Moved(..));
        if self.judge.redirected(&mut operation, for_good, now) {
            self.send(operation, target, now);
        } else {
            self.hold(operation, RetryCause::Refused(TemporaryError::Redirected), now);
        }
    }

    /// Asks `node` for the whole slot map, if that has not just been done.
    fn ask_for_routes(&mut self, node: NodeIndex, client: u32, now: Instant) {
        if now.since(self.routes_asked) < ROUTES_EVERY {
            return;
        }
        self.routes_asked = now;
        let line = self.fleet.line(node, client);
        if let Some(connection) = self.fleet.connection(line, &self.routes, now) {
            RequestWriter::write(&[b"CLUSTER", b"SLOTS"], connection.request(LoadRequest::Routes));
        }
    }

    /// Retries waiting operations, and asks for the slot map meanwhile.
    fn try_again(&mut self, now: Instant) {
        if self.task.patience.is_zero() {
            return;
        }
        if now.since(self.silence_checked) >= CHECK_EVERY {
            self.silence_checked = now;
            self.broken.extend(self.fleet.silent_lines(now, SILENCE_MAX));
        }
        if self.waiting.is_empty() {
            return;
        }
        self.ask_anybody_for_routes(now);
        let (routes, fleet, patience) = (&self.routes, &self.fleet, self.task.patience);
        let may_go = |held: &WaitingOperation| {
            let WaitingOperation { operation, cause, .. } = held;
            let is_reachable = |node: NodeIndex| {
                routes.owner(operation.slot) != node
                    || fleet.may_open(fleet.line(node, operation.client), now)
            };
            now >= operation.intended + patience
                || match *cause {
                    RetryCause::Refused(_) => true,
                    RetryCause::Unreachable(node) => is_reachable(node),
                }
        };
        for WaitingOperation { mut operation, cause, .. } in self.waiting.due(now, may_go) {
            if now >= operation.intended + self.task.patience {
                self.fail(operation, OperationFailure::NotExecuted(cause), now);
            } else {
                operation.redirects = 0;
                self.send(operation, OperationTarget::Owner, now);
            }
        }
    }

    /// Asks the next reachable server for the slot map.
    fn ask_anybody_for_routes(&mut self, now: Instant) {
        let count = self.routes.nodes().count() as u16;
        let after = self.routes_asked_of.0 + 1;
        let mut others = (0..count).map(|step| NodeIndex((after + step) % count));
        let reachable = others.find(|node| self.fleet.is_open(self.fleet.line(*node, 0)));
        if let Some(node) = reachable
            && now.since(self.routes_asked) >= ROUTES_EVERY
        {
            self.routes_asked_of = node;
            self.ask_for_routes(node, 0, now);
        }
    }

    /// Closes failed lines. Unsent operations and reads are retried; writes that were sent stay
    /// unanswered.
    fn give_up_broken(&mut self, now: Instant) {
        let is_patient = !self.task.patience.is_zero();
        for line in std::mem::take(&mut self.broken) {
            let node = self.fleet.node(line);
            for (pending, is_sent) in self.fleet.close(line, now) {
                let LoadRequest::Operation(operation) = pending else { continue };
                let is_read = matches!(operation.step, OperationCommand::Get { .. });
                if is_sent && !(is_patient && is_read) {
                    self.fail(operation, OperationFailure::Unanswered, now);
                } else {
                    self.hold(operation, RetryCause::Unreachable(node), now);
                }
            }
        }
    }

    /// Lets an operation wait for a retry if it has patience left; otherwise it fails.
    fn hold(&mut self, operation: LoadOperation, cause: RetryCause, now: Instant) {
        if now >= operation.intended + self.task.patience {
            return self.fail(operation, OperationFailure::NotExecuted(cause), now);
        }
        self.judge.retried();
        self.waiting.hold(operation, cause, now);
    }

    fn fail(&mut self, operation: LoadOperation, failure: OperationFailure, now: Instant) {
        self.judge.failed(operation, failure, now);
        self.in_flight -= 1;
        if let Supply::Closed { resting } = &mut self.supply {
            resting.push_back((now + REST, operation.client));
        }
    }
}

/// Returns the next step of an operation that a server has not executed, if it continues at
/// another server or later.
#[inline]
fn rejection(
    operation: LoadOperation,
    reply: Reply<'_>,
    asked: SocketAddr,
    is_patient: bool,
) -> Option<ReplyOutcome> {
    let Reply::Error(error) = reply else { return None };
    if let Some(to) = parse_redirect(error, asked) {
        return Some(ReplyOutcome::Redirect(operation, to));
    }
    let refusal = TemporaryError::parse(error).filter(|_| is_patient)?;
    Some(ReplyOutcome::Wait(operation, refusal))
}
