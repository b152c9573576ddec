//! One thread of the load generator: starts operations when they are due, sends them where their
//! slot lives, follows redirects, and goes on until nothing is left to start or to wait for.
//!
//! Cost estimate: at 65,000 operations a second one starts every 15 us. Sending each by itself
//! would cost a send, two wake-ups and a receive, well over 10 us. So the thread of an open loop
//! wakes once per tick (100 us by default), takes the answers that are there, and sends all that
//! is due on one line per server: about 2 us per operation. What it waits for the tick counts as
//! latency, since that runs from the intended start to when the answer was seen. A tick of zero
//! wakes for every start and every answer.

use crate::clock;
use crate::fleet::{Fleet, Line};
use crate::judge::{Failure, Judge, Shared};
use crate::ledger::Ledger;
use crate::operation::{Encoder, Operation, Pending, Step};
use crate::pace::{Pace, Schedule};
use crate::recorder::Recording;
use crate::records::Records;
use crate::routes::{Node, Redirect, Routes, Slots, parse_redirect};
use crate::waiting::{Held, Refusal, Waiting, Why};
use crate::workload::Operations;
use anyhow::Result;
use resp::{Reply, RequestWriter};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::Instant;

/// Operations of one thread that wait for an answer; beyond, an open loop counts them as failed.
/// A server that stands still for 10 s at 100,000 operations a second stays below.
const IN_FLIGHT_MAX: usize = 1 << 20;
/// How long the last answers are waited for.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// How long at most the thread sleeps without looking whether it should stop.
const LOOK_UP_EVERY: Duration = Duration::from_millis(20);
/// A slot map is asked for at most this often; meanwhile each `MOVED` teaches its own slot.
const ROUTES_EVERY: Duration = Duration::from_millis(20);
/// A patient client gives a connection up on which nothing was answered for so long; a server
/// lets no operation wait for longer than 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(7);
/// A closed loop's client whose operation could not be sent stays away for so long.
const REST: Duration = Duration::from_millis(10);

/// What one thread does.
#[derive(Debug)]
pub struct Task {
    /// Its operations.
    pub operations: Operations,
    /// When they start.
    pub pace: Pace,
    /// Begin of the run.
    pub start: Instant,
    /// No operation starts after this.
    pub end: Instant,
    /// How often the thread of an open loop looks at clock and sockets; 0 for at once.
    pub tick: Duration,
    /// How long after its intended start an operation is tried again whose server is gone or says
    /// that it cannot for now; 0: it has failed.
    pub patience: Duration,
    /// Slots whose answers are also looked at by themselves.
    pub watched: Slots,
    /// Seed of the arrivals.
    pub seed: u64,
    /// Connections to each server.
    pub lines_per_node: u32,
}

/// Where to send an operation.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// To the owner of its slot, as far as is known.
    Owner,
    /// To this server after `ASKING`.
    Asking(Node),
}

/// What an answer leads to.
#[derive(Debug)]
enum Next {
    /// The operation is over.
    Over { client: u32 },
    /// It goes on with another command.
    Send(Operation),
    /// It goes on elsewhere.
    Redirect(Operation, Redirect),
    /// It waits until it can be tried again.
    Wait(Operation, Refusal),
}

/// One thread of the load generator.
#[derive(Debug)]
pub struct Generator {
    task: Task,
    /// Operations still to start; an open loop's have their times.
    supply: Supply,
    judge: Judge,
    encoder: Encoder,
    routes: Routes,
    routes_asked: Instant,
    /// Who was asked for them last because an owner could not be reached.
    routes_asked_of: Node,
    /// When silent lines were looked for last.
    silence_looked_for: Instant,
    waiting: Waiting,
    fleet: Fleet<Pending>,
    shared: Arc<Shared>,
    in_flight: usize,
    broken: Vec<Line>,
    /// Kept for its memory; empty between two calls of `receive`.
    next: Vec<Next>,
}

/// What decides when an operation starts.
#[derive(Debug)]
enum Supply {
    /// The clock. All operations of one send share a line, whose number is `burst`.
    Open { schedule: Schedule, burst: u32 },
    /// The clients. Those whose operation could not be sent rest until their moment.
    Closed { resting: VecDeque<(Instant, u32)> },
    /// Nothing starts any more.
    Exhausted,
}

impl Generator {
    /// A thread that will do `task` on the records of `ledger`.
    pub fn new(
        task: Task,
        (records, ledger): (Records, Ledger),
        routes: Routes,
        shared: Arc<Shared>,
    ) -> Result<Generator> {
        let supply = match task.pace {
            Pace::Open { rate, arrivals } => Supply::Open {
                schedule: Schedule::new(rate, arrivals, task.start, task.seed),
                burst: 0,
            },
            Pace::Closed { clients } => Supply::Closed {
                resting: (0..clients).map(|client| (task.start, client)).collect(),
            },
        };
        Ok(Generator {
            supply,
            judge: Judge::new(
                records,
                ledger,
                (task.start, task.watched.clone()),
                Arc::clone(&shared),
            ),
            encoder: Encoder::new(records),
            routes,
            routes_asked: Instant(0),
            routes_asked_of: Node(0),
            silence_looked_for: task.start,
            waiting: Waiting::default(),
            fleet: Fleet::new(task.lines_per_node)?,
            shared,
            in_flight: 0,
            broken: Vec::new(),
            next: Vec::new(),
            task,
        })
    }

    /// Runs to the end, and gives back what it knows and has seen.
    pub fn run(mut self) -> Result<(Ledger, Recording)> {
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
        }
        let now = clock::now();
        // Whatever is under way or waits is not tried again.
        self.task.patience = Duration::ZERO;
        self.broken = self.fleet.open_lines();
        self.give_up_broken(now);
        for held in self.waiting.take_all() {
            self.fail(held.operation, Failure::NotDone(held.why), now);
        }
        Ok(self.judge.finish(now))
    }

    fn wait(&mut self, wake: Instant, now: Instant, readable: &mut Vec<Line>) -> Result<()> {
        match self.task.pace {
            Pace::Open { .. } if !self.task.tick.is_zero() => {
                clock::sleep(wake.since(now));
                self.fleet.look(readable, &mut self.broken)
            }
            Pace::Open { .. } | Pace::Closed { .. } => {
                self.fleet.wait(wake, readable, &mut self.broken)
            }
        }
    }

    /// Whether nothing is left to start or to wait for.
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

    /// Starts what is due, and tells when to look again.
    fn next_wake(&mut self, now: Instant) -> Instant {
        let next = self.start_due(now);
        // With answers under way the next tick is due also if no operation is.
        let latest = if self.in_flight > 0 { self.task.tick } else { LOOK_UP_EVERY };
        next.clamp(now + self.task.tick, now + latest.max(self.task.tick))
    }

    /// Starts what is due, and tells when the next operation is.
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
                    None => return now + LOOK_UP_EVERY,
                },
                Supply::Exhausted => return now + LOOK_UP_EVERY,
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
        let operation = Operation { action, record, slot, step, intended, client, redirects: 0 };
        self.send(operation, Target::Owner, now);
    }

    fn send(&mut self, operation: Operation, target: Target, now: Instant) {
        let (node, asking) = match target {
            Target::Owner => (self.routes.owner(operation.slot), false),
            Target::Asking(node) => (node, true),
        };
        let line = self.fleet.line(node, operation.client);
        let Some(connection) = self.fleet.connection(line, &self.routes, now) else {
            return self.hold(operation, Why::Unreachable(node), now);
        };
        if asking {
            RequestWriter::write(&[b"ASKING"], connection.request(Pending::Asking));
        }
        self.encoder.request(operation, connection);
    }

    /// Takes all answers that have arrived on a line.
    fn receive(&mut self, line: Line, now: Instant) {
        let Some(connection) = self.fleet.open_connection(line) else { return };
        if connection.receive(now).is_err() {
            return self.broken.push(line);
        }
        let asked = connection.address();
        let is_patient = !self.task.patience.is_zero();
        loop {
            match connection.next_reply() {
                Ok(Some((Pending::Operation(operation), reply))) => {
                    let client = operation.client;
                    let turned_away = turned_away(operation, reply, (asked, is_patient));
                    self.next.push(turned_away.unwrap_or_else(|| {
                        match self.judge.answered(operation, reply, now) {
                            Some(operation) => Next::Send(operation),
                            None => Next::Over { client },
                        }
                    }));
                }
                Ok(Some((Pending::Asking, _))) => {}
                // A map that makes no sense is not worth ending the run: redirects teach as well.
                Ok(Some((Pending::Routes, reply))) => drop(self.routes.replace(reply, asked)),
                Ok(None) => break,
                Err(_) => {
                    self.broken.push(line);
                    break;
                }
            }
        }
        let mut next = std::mem::take(&mut self.next);
        for next in next.drain(..) {
            self.go_on(next, now);
        }
        self.next = next;
    }

    fn go_on(&mut self, next: Next, now: Instant) {
        match next {
            Next::Send(operation) => self.send(operation, Target::Owner, now),
            Next::Redirect(operation, to) => self.follow(operation, to, now),
            Next::Wait(operation, refusal) => self.hold(operation, Why::Refused(refusal), now),
            Next::Over { client } => {
                self.in_flight -= 1;
                if let Supply::Closed { .. } = self.supply {
                    self.start(client, now, now);
                }
            }
        }
    }

    /// Sends an operation where a server said that it belongs.
    fn follow(&mut self, mut operation: Operation, to: Redirect, now: Instant) {
        let target = match to {
            Redirect::Moved(slot, address) => {
                let node = self.routes.moved(slot, address);
                self.ask_for_routes(node, operation.client, now);
                Target::Owner
            }
            Redirect::Ask(address) => Target::Asking(self.routes.node(address)),
        };
        let for_good = matches!(to, Redirect::Moved(..));
        if self.judge.redirected(&mut operation, for_good, now) {
            self.send(operation, target, now);
        } else {
            self.hold(operation, Why::Refused(Refusal::Redirected), now);
        }
    }

    /// Asks `node` for the whole slot map, if that has not just been done.
    fn ask_for_routes(&mut self, node: Node, client: u32, now: Instant) {
        if now.since(self.routes_asked) < ROUTES_EVERY {
            return;
        }
        self.routes_asked = now;
        let line = self.fleet.line(node, client);
        if let Some(connection) = self.fleet.connection(line, &self.routes, now) {
            RequestWriter::write(&[b"CLUSTER", b"SLOTS"], connection.request(Pending::Routes));
        }
    }

    /// Sends operations again that were held up, and looks for who can carry them out.
    fn try_again(&mut self, now: Instant) {
        if self.task.patience.is_zero() {
            return;
        }
        if now.since(self.silence_looked_for) >= LOOK_UP_EVERY {
            self.silence_looked_for = now;
            self.broken.extend(self.fleet.silent_lines(now, SILENCE_MAX));
        }
        if self.waiting.is_empty() {
            return;
        }
        self.ask_anybody_for_routes(now);
        let (routes, fleet, patience) = (&self.routes, &self.fleet, self.task.patience);
        let may_go = |held: &Held| {
            let Held { operation, why, .. } = held;
            let is_reachable = |node: Node| {
                routes.owner(operation.slot) != node
                    || fleet.may_open(fleet.line(node, operation.client), now)
            };
            now >= operation.intended + patience
                || match *why {
                    Why::Refused(_) => true,
                    Why::Unreachable(node) => is_reachable(node),
                }
        };
        for Held { mut operation, why, .. } in self.waiting.due(now, may_go) {
            if now >= operation.intended + self.task.patience {
                self.fail(operation, Failure::NotDone(why), now);
            } else {
                operation.redirects = 0;
                self.send(operation, Target::Owner, now);
            }
        }
    }

    /// Asks the next server that can be reached for the slot map.
    fn ask_anybody_for_routes(&mut self, now: Instant) {
        let count = self.routes.nodes().count() as u16;
        let after = self.routes_asked_of.0 + 1;
        let mut others = (0..count).map(|step| Node((after + step) % count));
        let reachable = others.find(|node| self.fleet.is_open(self.fleet.line(*node, 0)));
        if let Some(node) = reachable
            && now.since(self.routes_asked) >= ROUTES_EVERY
        {
            self.routes_asked_of = node;
            self.ask_for_routes(node, 0, now);
        }
    }

    /// Closes lines that failed. What was not sent, or only wanted to read, is tried again; writes
    /// that were sent have no answer for good.
    fn give_up_broken(&mut self, now: Instant) {
        let is_patient = !self.task.patience.is_zero();
        for line in std::mem::take(&mut self.broken) {
            let node = self.fleet.node(line);
            for (pending, is_sent) in self.fleet.close(line, now) {
                let Pending::Operation(operation) = pending else { continue };
                let is_read = matches!(operation.step, Step::Get { .. });
                if is_sent && !(is_patient && is_read) {
                    self.fail(operation, Failure::Unanswered, now);
                } else {
                    self.hold(operation, Why::Unreachable(node), now);
                }
            }
        }
    }

    /// An operation that cannot be carried out for now waits if it has the patience.
    fn hold(&mut self, operation: Operation, why: Why, now: Instant) {
        if now >= operation.intended + self.task.patience {
            return self.fail(operation, Failure::NotDone(why), now);
        }
        self.judge.held();
        self.waiting.hold(operation, why, now);
    }

    fn fail(&mut self, operation: Operation, failure: Failure, now: Instant) {
        self.judge.failed(operation, failure, now);
        self.in_flight -= 1;
        if let Supply::Closed { resting } = &mut self.supply {
            resting.push_back((now + REST, operation.client));
        }
    }
}

/// How an operation goes on that a server does not carry out, if it is to be tried elsewhere or
/// later.
#[inline]
fn turned_away(
    operation: Operation,
    reply: Reply<'_>,
    (asked, is_patient): (SocketAddr, bool),
) -> Option<Next> {
    let Reply::Error(error) = reply else { return None };
    if let Some(to) = parse_redirect(error, asked) {
        return Some(Next::Redirect(operation, to));
    }
    let refusal = Refusal::parse(error).filter(|_| is_patient)?;
    Some(Next::Wait(operation, refusal))
}
