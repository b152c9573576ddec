//! Jobs of the clients: requests as bytes that are cut into pieces, and their replies.

use super::{Next, Part, SERVERS, World};
use crate::clients::{Expected, Open, State, Walk};
use crate::commands::{self, Said};
use crate::failure::Rule;
use crate::history::Action;
use crate::reactor::Inbound;
use crate::servers::Server;
use crate::settings::{Knob, Settings};
use crate::workload::{FLUSHED_TABLE, Job, Kind, TABLE, Workload};
use fastrand::Rng;
use front::core::ConnectionId;
use resp::{Reply, RequestWriter};
use store::TabletState;
use types::{Instant, KeyHash, OwnershipEpoch, TableId};

/// Start of jobs.
impl World {
    /// Lets a client start jobs in some or all of its free slots.
    pub(super) fn think(&mut self, client: usize) {
        self.clients.has_thought(client);
        let mut has_begun = false;
        for slot in self.clients.slots(client) {
            if !self.clients.is_free(slot) || has_begun && self.rng.u32(..4) == 0 {
                continue;
            }
            if let Some(job) = self.next_job() {
                self.begin(slot, job);
                has_begun = true;
            }
        }
        self.flush_outputs(client);
        let is_idle = self.clients.slots(client).all(|slot| self.clients.is_free(slot));
        if is_idle {
            self.think_soon(client);
        }
    }

    pub(super) fn think_soon(&mut self, client: usize) {
        if !self.is_closed() && self.clients.begins_to_think(client) {
            let pause = self.micros(1..300) * self.slowness.pow(2).div_ceil(4);
            self.plan_in(pause, Next::Think(client));
        }
    }

    /// Returns whether clients have nothing more to do.
    pub(super) fn is_closed(&self) -> bool {
        match self.part {
            Part::Working => false,
            Part::Resting => true,
            Part::Reading(next) => next == self.closing.len(),
        }
    }

    fn next_job(&mut self) -> Option<Job> {
        match self.part {
            Part::Working => {
                let clients = &self.clients;
                let is_crowded = |number| clients.is_crowded(number);
                let job = self.workload.next(&mut self.rng, SERVERS, is_crowded)?;
                match job {
                    Job::Operation(register, _) if self.is_avoided(register) => None,
                    Job::Flush(place) => Some(Job::Flush(self.better_flushed(place))),
                    Job::Operation(..) | Job::Walk(_) | Job::Count(..) => Some(job),
                }
            }
            Part::Resting => None,
            Part::Reading(next) => self.next_of_the_last(next),
        }
    }

    /// Prefers a server with an arriving range, where a flush has most to do.
    fn better_flushed(&mut self, place: usize) -> usize {
        let is_arriving = |server: &Server| {
            let tablets = server.node.store().tablets();
            tablets.iter().any(|tablet| matches!(tablet.state, TabletState::Arriving(_)))
        };
        let better = self.servers.iter().position(|server| !server.is_dead && is_arriving(server));
        better.filter(|_| self.rng.u32(..4) != 0).unwrap_or(place)
    }

    fn next_of_the_last(&mut self, mut next: usize) -> Option<Job> {
        while let Some(&job) = self.closing.get(next) {
            // A job that counts or changes everything waits for all earlier jobs, and the next
            // job for it.
            let is_barrier = |job: &Job| matches!(job, Job::Flush(_) | Job::Count(..));
            let before = next.checked_sub(1).map(|before| &self.closing[before]);
            let must_wait = is_barrier(&job) || before.is_some_and(is_barrier);
            if must_wait && self.clients.open().next().is_some() {
                return None;
            }
            next += 1;
            self.part = Part::Reading(next);
            let is_wanted = match job {
                Job::Operation(register, _) => {
                    // A flush may have emptied the register since its earlier read.
                    self.clients.forget_last_read(register);
                    self.losses.is_worth_reading(register)
                }
                Job::Flush(place) | Job::Walk(place) | Job::Count(place, _) => {
                    !self.servers[place].is_dead
                }
            };
            if is_wanted {
                return Some(job);
            }
        }
        None
    }

    fn begin(&mut self, slot: usize, job: Job) {
        let state = match job {
            Job::Operation(..) => State::Operation,
            Job::Flush(place) => {
                let registers = self.workload.flushed();
                let held =
                    |number: usize| self.held(place, self.workload.registers[number].keys[0].0);
                State::Flush(registers.map(|number| (number, held(number))).collect())
            }
            Job::Walk(place) => {
                let registers = self.workload.registers.iter().enumerate();
                let expected = registers
                    .filter(|(number, register)| {
                        register.kind == Kind::Kept && self.clients.is_written(*number)
                    })
                    .filter_map(|(number, register)| {
                        let hash = register.keys[0].0;
                        Some((number, hash, self.held(place, hash)?))
                    });
                State::Walk(Walk { expected: expected.collect(), ..Walk::default() })
            }
            Job::Count(place, table) => State::Count(self.count(place, table)),
        };
        self.clients.begin(self.now, slot, job, state);
        self.ask_job(slot);
    }

    /// Returns the epoch under which a server serves a hash. An arriving range counts after its
    /// target has announced that it accepted. Until then a reactor may still use its earlier
    /// tablet map, and no client can know that the range is there.
    fn held(&self, place: usize, hash: KeyHash) -> Option<OwnershipEpoch> {
        let server = Some(&self.servers[place]).filter(|server| !server.is_dead)?;
        let tablets = server.node.store().tablets();
        let tablet = tablets.at(hash)?;
        match tablet.state {
            TabletState::Serving | TabletState::Securing(_) => Some(tablet.epoch),
            TabletState::Arriving(ref arrival) => {
                self.accepted.contains(&arrival.migration()).then_some(tablet.epoch)
            }
            TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => None,
        }
    }

    /// Returns the number of records that a server counts in a table.
    fn count(&mut self, place: usize, table: TableId) -> u64 {
        let wall = self.wall_at(place);
        self.servers[place].inspector.look(wall, |worker| worker.table_records(table))
    }
}

/// Requests.
impl World {
    /// Writes a job's request into the connection to the believed owner of its register, or now
    /// and then to another server.
    fn ask_job(&mut self, slot: usize) {
        let client = self.clients.client_of(slot);
        let (place, table) = match self.clients.job(slot).job {
            Job::Operation(register, _) => {
                let slot = self.workload.registers[register].slot();
                let known = self.clients.owner(client, slot);
                let is_lost = self.part == Part::Working && self.rng.u32(..30) == 0;
                let known = known.filter(|_| !is_lost);
                (
                    known.or_else(|| self.some_server()).unwrap_or(0),
                    self.workload.registers[register].table,
                )
            }
            Job::Flush(place) => (place, FLUSHED_TABLE),
            Job::Walk(place) => (place, TABLE),
            Job::Count(place, table) => (place, table),
        };
        if self.servers[place].is_dead && self.clients.connection(client, place).is_none() {
            let delay = self.weather.delay(&mut self.rng);
            return self.plan_in(delay, Next::Refused(slot));
        }
        self.prepare(client, place, table);
        let is_transaction = self.collect(client, place, slot);
        let connection = self.clients.ask(client, place, slot);
        let (id, mut output) = (connection.id, std::mem::take(&mut connection.output));
        let (before, out) = (output.len(), &mut output);
        let open = self.clients.job(slot);
        match (open.job, &open.state) {
            (Job::Operation(..), _) if is_transaction => RequestWriter::write(&[b"EXEC"], out),
            (Job::Operation(register, action), _) => {
                commands::write(&self.workload.registers[register], action, out);
            }
            (Job::Flush(_), _) => RequestWriter::write(&[b"FLUSHDB"], out),
            (Job::Count(..), _) => RequestWriter::write(&[b"DBSIZE"], out),
            (Job::Walk(_), State::Walk(walk)) => {
                let writer = RequestWriter::new(4, out).argument(b"SCAN");
                let writer = writer.argument(walk.cursor.to_string().as_bytes());
                drop(writer.argument(b"COUNT").integer(20));
            }
            (Job::Walk(_), state) => unreachable!("a scan has another state than {state:?}"),
        }
        let job = open.job;
        let to = self.servers[place].id;
        let line = format_args!("{client}.{slot} on {id} to {to} {job:?}");
        let numbers = [slot as u64, id.number()];
        self.trace.note_bytes(self.now, &numbers, &output[before..], line);
        if let Some(connection) = self.clients.connection(client, place) {
            connection.output = output;
        }
    }

    /// Turns some operations on pairs into transactions. Returns `true` if all but `EXEC` is
    /// written.
    fn collect(&mut self, client: usize, place: usize, slot: usize) -> bool {
        let Job::Operation(register, action) = self.clients.job(slot).job else { return false };
        if self.rng.u32(..4) != 0 {
            return false;
        }
        let register = &self.workload.registers[register];
        let Some(connection) = self.clients.connection(client, place) else { return false };
        let count = commands::write_collected(register, action, &mut connection.output);
        connection.expected.extend((0..count).map(|_| Expected::Collected(slot)));
        count > 0
    }

    /// Prepares the connection for a request on a table. Now and then sends an `ECHO` first.
    fn prepare(&mut self, client: usize, place: usize, table: TableId) {
        let reactors = self.servers[place].reactors.len();
        let (rng, echoes) = (&mut self.rng, &mut self.echoes);
        let connection = self.clients.connect(client, place, || rng.usize(..reactors));
        if connection.table != table {
            connection.table = table;
            let number = table.0.to_string();
            RequestWriter::write(&[b"SELECT", number.as_bytes()], &mut connection.output);
            connection.expected.push_back(Expected::Selected);
        }
        if rng.u32(..50) == 0 {
            *echoes += 1;
            let text = echoes.to_string();
            RequestWriter::write(&[b"ECHO", text.as_bytes()], &mut connection.output);
            connection.expected.push_back(Expected::Echo(*echoes));
        }
    }

    /// Sends the written requests of a client, in one or several pieces per connection, in order.
    fn flush_outputs(&mut self, client: usize) {
        for place in 0..SERVERS {
            let Some(connection) = self.clients.connection(client, place) else { continue };
            if connection.output.is_empty() {
                continue;
            }
            let output = std::mem::take(&mut connection.output);
            if self.servers[place].is_dead {
                continue;
            }
            let (id, reactor) = (connection.id, connection.reactor);
            let is_new = !std::mem::replace(&mut connection.is_announced, true);
            let mut at = connection.up;
            if is_new {
                self.plan_at(self.now, Next::Arrive(place, reactor, Inbound::Opened(id)));
            }
            for piece in self.in_pieces(output) {
                at = at.max(self.now + self.weather.delay(&mut self.rng));
                self.plan_at(at, Next::Arrive(place, reactor, Inbound::Bytes(id, piece)));
            }
            if let Some(connection) = self.clients.connection(client, place) {
                connection.up = at;
            }
        }
    }

    /// Cuts bytes into pieces as they arrive: mostly one, sometimes cut anywhere.
    fn in_pieces(&mut self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let mut pieces = vec![bytes];
        while self.rng.u32(..8) == 0 {
            let last = pieces.last_mut().expect("there is always one piece");
            if last.len() < 2 {
                break;
            }
            let rest = last.split_off(self.rng.usize(1..last.len()));
            pieces.push(rest);
        }
        pieces
    }

    /// Refuses a job since no process listens at the address.
    pub(super) fn refused(&mut self, slot: usize) {
        let client = self.clients.client_of(slot);
        if let Job::Operation(register, _) = self.clients.job(slot).job {
            self.clients.forget_owner(client, self.workload.registers[register].slot());
        }
        self.refuse(slot);
        self.think_later(client);
    }

    /// Ends a job that was not executed; its client continues with another job.
    fn refuse(&mut self, slot: usize) {
        let (client, open) = (self.clients.client_of(slot), self.clients.job(slot));
        if let Job::Operation(register, _) = open.job
            && let Some(failure) = self.check_refused((client, open.since), register)
        {
            self.failure = Some(failure);
        }
        self.clients.refuse(self.now, slot);
    }

    /// Handles a broken connection: the outcome of the jobs that were sent on it is unknown.
    pub(super) fn broken(&mut self, id: ConnectionId) {
        let Some((client, slots)) = self.clients.disconnect(id) else { return };
        for slot in slots {
            match self.clients.job(slot).job {
                Job::Operation(..) => self.clients.give_up(self.now, slot),
                Job::Flush(_) => self.clients.give_up_flush(self.now, slot),
                Job::Walk(_) | Job::Count(..) => self.clients.refuse(self.now, slot),
            }
        }
        self.think_later(client);
    }

    fn think_later(&mut self, client: usize) {
        if !self.is_closed() && self.clients.begins_to_think(client) {
            let pause = self.micros(100..5_000);
            self.plan_in(pause, Next::Think(client));
        }
    }
}

/// Replies.
impl World {
    /// Sends bytes from a server to a client.
    pub(super) fn send_reply(&mut self, id: ConnectionId, bytes: Vec<u8>) {
        let Some((client, place)) = self.clients.holder(id) else { return };
        for piece in self.in_pieces(bytes) {
            let delay = self.weather.delay(&mut self.rng);
            let now = self.now;
            let Some(connection) = self.clients.connection(client, place) else { return };
            connection.down = connection.down.max(now + delay);
            let at: Instant = connection.down;
            self.plan_at(at, Next::Answer(id, piece));
        }
    }

    pub(super) fn answered(&mut self, id: ConnectionId, bytes: Vec<u8>) {
        let Some((client, place)) = self.clients.holder(id) else { return };
        let line = format_args!("{id} delivers {} bytes", bytes.len());
        self.trace.note_bytes(self.now, &[id.number()], &bytes, line);
        let Some(connection) = self.clients.connection(client, place) else { return };
        let mut input = std::mem::take(&mut connection.input);
        input.extend_from_slice(&bytes);
        let mut rest = &input[..];
        while self.failure.is_none() {
            let Some(connection) = self.clients.connection(client, place) else { return };
            let reply = match connection.parser.next(&mut rest) {
                Ok(Some(received)) => received.reply,
                Ok(None) => break,
                Err(error) => return self.confused(id, &format!("{error}")),
            };
            match connection.expected.pop_front() {
                Some(Expected::Job(slot)) => self.replied(slot, &reply),
                Some(Expected::Selected) if reply == Reply::Simple(b"OK") => {}
                Some(Expected::Collected(slot)) if self.is_collected(slot, &reply) => {}
                Some(Expected::Echo(number))
                    if reply == Reply::Bulk(number.to_string().as_bytes()) => {}
                expected => {
                    return self
                        .confused(id, &format!("{} to {expected:?}", commands::Shown(&reply)));
                }
            }
        }
        let consumed = input.len() - rest.len();
        input.drain(..consumed);
        if let Some(connection) = self.clients.connection(client, place) {
            connection.input = input;
        }
        self.flush_outputs(client);
        if self.clients.slots(client).any(|slot| self.clients.is_free(slot)) {
            self.think_soon(client);
        }
    }

    /// Returns whether this is a valid reply to `MULTI` or a queued command. Records a
    /// redirection.
    fn is_collected(&mut self, slot: usize, reply: &Reply<'_>) -> bool {
        let Reply::Error(text) = reply else {
            return matches!(reply, Reply::Simple(b"OK" | b"QUEUED"));
        };
        let said = commands::read_error(text);
        if let (Said::Moved(to), Job::Operation(register, _)) = (&said, self.clients.job(slot).job)
        {
            let client = self.clients.client_of(slot);
            self.clients.learn(client, self.workload.registers[register].slot(), *to);
        }
        matches!(said, Said::Moved(_) | Said::Later)
    }

    fn confused(&mut self, id: ConnectionId, what: &str) {
        self.failure = Some(Rule::InOrder.broken(format!("on {id}: {what}")));
    }

    fn replied(&mut self, slot: usize, reply: &Reply<'_>) {
        self.trace.show(self.now, format_args!("{slot}: {}", commands::Shown(reply)));
        match self.clients.job(slot).job {
            Job::Operation(register, action) => {
                let said = commands::read(&self.workload.registers[register], action, reply);
                self.operation_replied(slot, register, said, reply);
            }
            Job::Flush(place) => {
                match commands::read(&self.workload.registers[0], Action::Flush, reply) {
                    Said::Outcome(_) => self.flushed(slot, place),
                    Said::Refused => self.refuse(slot),
                    // It is unknown if the flush will still be executed.
                    Said::Later => {
                        self.losses.note_stalled(self.clients.client_of(slot));
                        self.clients.give_up_flush(self.now, slot);
                    }
                    said => self.nonsense(slot, &said, reply),
                }
            }
            Job::Walk(place) => self.walked(slot, place, reply),
            Job::Count(place, table) => self.counted(slot, (place, table), reply),
        }
    }

    fn nonsense(&mut self, slot: usize, said: &Said, reply: &Reply<'_>) {
        let job = self.clients.job(slot).job;
        let text = format!("invalid reply {} to {job:?}: {said:?}", commands::Shown(reply));
        self.failure = Some(Rule::InOrder.broken(text));
    }

    fn operation_replied(&mut self, slot: usize, register: usize, said: Said, reply: &Reply<'_>) {
        match said {
            Said::Outcome(outcome) => self.clients.end(self.now, slot, outcome),
            Said::Moved(_) | Said::Aborted => {
                if let Said::Moved(to) = said {
                    let client = self.clients.client_of(slot);
                    self.clients.learn(client, self.workload.registers[register].slot(), to);
                }
                if self.clients.hop(slot) {
                    self.ask_job(slot);
                } else if self.losses.is_excused(register) {
                    // A process at the dead owner's address redirects to the owner that it finds
                    // at the coordinator, until that owner knows its new range. A client may go
                    // in circles meanwhile.
                    self.refuse(slot);
                } else {
                    let job = self.clients.job(slot).job;
                    self.failure = Some(Rule::NoCircles.broken(format!("{job:?}")));
                }
            }
            Said::Later | Said::Refused => self.refuse(slot),
            Said::Torn => {
                let job = self.clients.job(slot).job;
                self.failure =
                    Some(Rule::WholePairs.broken(format!("{job:?}: {}", commands::Shown(reply))));
            }
            Said::Nonsense => self.nonsense(slot, &said, reply),
        }
    }

    /// Ends a flush: the registers that its server held under one epoch all the time are empty.
    fn flushed(&mut self, slot: usize, place: usize) {
        let State::Flush(held) = &self.clients.job(slot).state else {
            unreachable!("a flush has the state of its registers")
        };
        let hash = |number: usize| self.workload.registers[number].keys[0].0;
        let is_held = |&(number, before): &(usize, Option<OwnershipEpoch>)| {
            before.is_some() && before == self.held(place, hash(number))
        };
        let was_hit = held.iter().filter(|one| is_held(one)).map(|(number, _)| *number).collect();
        self.clients.end_flush(self.now, slot, &was_hit);
    }

    /// Handles a step of a scan.
    fn walked(&mut self, slot: usize, place: usize, reply: &Reply<'_>) {
        let step = match reply {
            Reply::Error(text) => match commands::read_error(text) {
                Said::Later => return self.refuse(slot),
                said => return self.nonsense(slot, &said, reply),
            },
            reply => read_step(reply),
        };
        let Some((cursor, keys)) = step else { return self.nonsense(slot, &Said::Nonsense, reply) };
        let mut found = Vec::new();
        for key in keys {
            match self.workload.names.get(key) {
                Some(&number) if self.workload.registers[number].table == TABLE => {
                    found.push(number)
                }
                _ => return self.nonsense(slot, &Said::Nonsense, reply),
            }
        }
        let State::Walk(walk) = &mut self.clients.job_mut(slot).state else {
            unreachable!("a scan has a cursor")
        };
        walk.found.extend(found);
        walk.cursor = cursor;
        match cursor {
            0 => self.end_walk(slot, place),
            _ => self.ask_job(slot),
        }
    }

    /// Ends a scan. Registers that existed and belonged to this server all the time must be
    /// found.
    fn end_walk(&mut self, slot: usize, place: usize) {
        let open = self.clients.finish(self.now, slot);
        let Open { state: State::Walk(walk), .. } = open else { unreachable!("the job is a scan") };
        let missed = walk.expected.iter().find(|(number, hash, epoch)| {
            !walk.found.contains(number) && self.held(place, *hash) == Some(*epoch)
        });
        if let Some((number, hash, _)) = missed {
            let key = String::from_utf8_lossy(&self.workload.registers[*number].keys[0].1);
            let text = format!("a scan of {} did not return {key}, {hash}", self.servers[place].id);
            self.failure = Some(Rule::WalksComplete.broken(text));
        }
    }

    /// Checks a server's count of records, at a time when only reclaiming changes it.
    fn counted(&mut self, slot: usize, (place, table): (usize, TableId), reply: &Reply<'_>) {
        let Reply::Integer(told) = *reply else {
            return self.nonsense(slot, &Said::Nonsense, reply);
        };
        let Open { state: State::Count(before), .. } = self.clients.finish(self.now, slot) else {
            unreachable!("a count has its earlier value")
        };
        let after = self.count(place, table);
        if told > before as i64 || told < after as i64 {
            let id = self.servers[place].id;
            let text = format!("{id} reports {told} for {table:?}, but had {before} to {after}");
            self.failure = Some(Rule::CountsMatch.broken(text));
        }
    }
}

/// Returns cursor and keys of a step of a scan.
fn read_step<'a>(reply: &Reply<'a>) -> Option<(u64, Vec<&'a [u8]>)> {
    let Reply::Array(mut parts) = *reply else { return None };
    let (Some(Reply::Bulk(cursor)), Some(Reply::Array(keys))) = (parts.next(), parts.next()) else {
        return None;
    };
    let cursor = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let key = |reply: Reply<'a>| match reply {
        Reply::Bulk(key) => Some(key),
        _ => None,
    };
    Some((cursor, keys.map(key).collect::<Option<Vec<_>>>()?))
}

/// Returns the final jobs, which begin when everything has come to rest.
pub(super) fn closing(rng: &mut Rng, workload: &Workload) -> Vec<Job> {
    let read = |number: usize| Job::Operation(number, Action::Read);
    let mut jobs: Vec<Job> = (0..workload.registers.len()).map(read).collect();
    let tables = [TABLE, FLUSHED_TABLE];
    jobs.extend((0..SERVERS).flat_map(|place| tables.map(|table| Job::Count(place, table))));
    if rng.bool() {
        jobs.extend((0..SERVERS).map(Job::Flush));
        jobs.extend(workload.flushed().map(read));
    }
    jobs
}

/// Draws the number of concurrent jobs of each client.
pub(super) fn draw_depths(rng: &mut Rng, settings: &Settings) -> Vec<usize> {
    let most = [1, 4, 16][rng.usize(..3)];
    let most = if settings.has(Knob::Pipelines) { most } else { 1 };
    let clients = rng.usize(2..10);
    let clients = settings.clients.map_or(clients, |clients| clients.clamp(1, 10));
    (0..clients).map(|_| rng.usize(1..=most)).collect()
}
