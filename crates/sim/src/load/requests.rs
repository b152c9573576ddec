//! Requests of the clients, as bytes that are cut into pieces.

use super::ClientLoad;
use crate::clients::{ExpectedReply, JobState};
use crate::cluster::{RefusedOperation, SimulatedCluster};
use crate::collections;
use crate::commands;
use crate::history::RegisterAction;
use crate::network::in_pieces;
use crate::reactor::Inbound;
use crate::settings::Knob;
use crate::timeline::{PlannedEvent, ReactorPlace, RunPhase};
use crate::workload::{ClientJob, FLUSHED_TABLE, TABLE};
use front::core::ConnectionId;
use resp::RequestWriter;
use std::time::Duration;
use types::TableId;

/// Time for which an operation is retried, if no fault of the run lasts long. A death is noticed
/// and recovered in less.
const RETRY_BUDGET: Duration = Duration::from_secs(1);

/// Server and table of a request.
struct RequestTarget {
    place: usize,
    table: TableId,
}

impl ClientLoad {
    /// Writes a job's request into the connection to the believed owner of its register, or now
    /// and then to another server.
    pub(super) fn send_request(&mut self, cluster: &mut SimulatedCluster, slot: usize) {
        let client = self.clients.client_of(slot);
        let RequestTarget { place, table } = self.draw_target(cluster, client, slot);
        if cluster.servers[place].is_dead && self.clients.connection(client, place).is_none() {
            let delay = cluster.network.delay(&mut cluster.timeline.rng);
            return cluster.timeline.plan_in(delay, PlannedEvent::Refused(slot));
        }
        self.prepare_connection(cluster, client, place, table);
        let is_transaction = self.write_transaction(cluster, client, place, slot);
        let connection = self.clients.ask(client, place, slot);
        let (id, mut output) = (connection.id, std::mem::take(&mut connection.output));
        let (before, out) = (output.len(), &mut output);
        let open = self.clients.job(slot);
        match open.job {
            ClientJob::Operation(..) if is_transaction => RequestWriter::write(&[b"EXEC"], out),
            ClientJob::Operation(register, action) => {
                self.write_operation(slot, register, action, out);
            }
            ClientJob::Repetition(_) => write_again(&open.state, out),
            ClientJob::Flush(_) => RequestWriter::write(&[b"FLUSHDB"], out),
            ClientJob::Count(..) => RequestWriter::write(&[b"DBSIZE"], out),
            ClientJob::Walk(_) => write_scan_step(&open.state, out),
        }
        let job = open.job;
        let to = cluster.servers[place].id;
        let line = format_args!("{client}.{slot} on {id} to {to} {job:?}");
        let numbers = [slot as u64, id.number()];
        cluster.timeline.note_bytes(&numbers, &output[before..], line);
        if let Some(connection) = self.clients.connection(client, place) {
            connection.output = output;
        }
    }

    /// Writes the request of an operation, in every second slot as a command with versions, if the
    /// run has them.
    fn write_operation(
        &self,
        slot: usize,
        number: usize,
        action: RegisterAction,
        out: &mut Vec<u8>,
    ) {
        let register = &self.workload.registers[number];
        let versions = self.versions.as_ref().filter(|_| slot % 2 == 1);
        let is_written = versions.is_some_and(|versions| {
            let version = match action {
                // A new time to live changes the version of a value, so a swap may fail although the
                // value is the expected one.
                RegisterAction::Swap(old, _) if !self.workload.may_expire(number) => {
                    versions.version_of(number, old)
                }
                _ => None,
            };
            commands::write_versioned(register, action, version, out)
        });
        match &self.once {
            _ if is_written => {}
            Some(once) => {
                let mut command = Vec::new();
                commands::write(register, action, &mut command);
                once.write(slot, &command, out);
            }
            None => commands::write(register, action, out),
        }
    }

    /// Returns the believed owner of a job's register, or now and then another server.
    fn draw_target(
        &self,
        cluster: &mut SimulatedCluster,
        client: usize,
        slot: usize,
    ) -> RequestTarget {
        match self.clients.job(slot).job {
            ClientJob::Operation(register, _) | ClientJob::Repetition(register) => {
                let register = &self.workload.registers[register];
                let known = self.clients.owner(client, register.slot());
                let is_lost = cluster.timeline.is_working() && cluster.timeline.rng.u32(..30) == 0;
                let known = known.filter(|_| !is_lost);
                let mute = cluster.faults.lasting.and_then(|fault| fault.mute_place());
                let place =
                    known.or_else(|| cluster.servers.draw_other_than(mute, &mut cluster.timeline));
                RequestTarget { place: place.unwrap_or(0), table: register.table }
            }
            ClientJob::Flush(place) => RequestTarget { place, table: FLUSHED_TABLE },
            ClientJob::Walk(place) => RequestTarget { place, table: TABLE },
            ClientJob::Count(place, table) => RequestTarget { place, table },
        }
    }

    /// Turns some operations on pairs, and those of several commands, into transactions. Returns `true` if all but `EXEC` is
    /// written.
    fn write_transaction(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        place: usize,
        slot: usize,
    ) -> bool {
        let ClientJob::Operation(register, action) = self.clients.job(slot).job else {
            return false;
        };
        let register = &self.workload.registers[register];
        let is_once = self.once.as_ref().is_some_and(|once| once.is_open(slot));
        let is_drawn = cluster.timeline.rng.u32(..4) == 0 && !is_once;
        if !is_drawn && !collections::is_transaction(register, action) {
            return false;
        }
        let Some(connection) = self.clients.connection(client, place) else { return false };
        let count = commands::write_collected(register, action, &mut connection.output);
        connection.expected.extend((0..count).map(|_| ExpectedReply::Queued(slot)));
        count > 0
    }

    /// Prepares the connection for a request on a table. Now and then sends an `ECHO` first.
    fn prepare_connection(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        place: usize,
        table: TableId,
    ) {
        let reactors = cluster.servers[place].reactors.len();
        let (rng, echoes) = (&mut cluster.timeline.rng, &mut self.echoes);
        let connection = self.clients.connect(client, place, || rng.usize(..reactors));
        if connection.table != table {
            connection.table = table;
            let number = table.0.to_string();
            RequestWriter::write(&[b"SELECT", number.as_bytes()], &mut connection.output);
            connection.expected.push_back(ExpectedReply::Selected);
        }
        if rng.u32(..50) == 0 {
            *echoes += 1;
            let text = echoes.to_string();
            RequestWriter::write(&[b"ECHO", text.as_bytes()], &mut connection.output);
            connection.expected.push_back(ExpectedReply::Echo(*echoes));
        }
    }

    /// Sends the written requests of a client, in one or several pieces per connection, in order.
    pub(super) fn flush_outputs(&mut self, cluster: &mut SimulatedCluster, client: usize) {
        for place in 0..cluster.servers.len() {
            let Some(connection) = self.clients.connection(client, place) else { continue };
            if connection.output.is_empty() {
                continue;
            }
            let output = std::mem::take(&mut connection.output);
            if cluster.servers[place].is_dead {
                continue;
            }
            let id = connection.id;
            let at_reactor = ReactorPlace { server: place, reactor: connection.reactor };
            let is_new = !std::mem::replace(&mut connection.is_announced, true);
            let mut at = connection.up;
            if is_new {
                let opened = PlannedEvent::Arrive(at_reactor, Inbound::Opened(id));
                cluster.timeline.plan_at(cluster.timeline.now, opened);
            }
            for piece in in_pieces(output, &mut cluster.timeline.rng) {
                at =
                    at.max(cluster.timeline.now + cluster.network.delay(&mut cluster.timeline.rng));
                let arrival = PlannedEvent::Arrive(at_reactor, Inbound::Bytes(id, piece));
                cluster.timeline.plan_at(at, arrival);
            }
            if let Some(connection) = self.clients.connection(client, place) {
                connection.up = at;
            }
        }
    }

    /// Refuses a job since no process listens at the address.
    pub(crate) fn connection_refused(&mut self, cluster: &mut SimulatedCluster, slot: usize) {
        let client = self.clients.client_of(slot);
        if let ClientJob::Operation(register, _) | ClientJob::Repetition(register) =
            self.clients.job(slot).job
        {
            self.clients.forget_owner(client, self.workload.registers[register].slot());
        }
        self.refuse(cluster, slot);
        self.think_later(cluster, client);
    }

    /// Handles a job that was not executed. With [`Knob::Retries`], an operation on data that a
    /// recovery brings back is sent again after a pause, as client libraries do, until its budget
    /// is used up. Otherwise the client continues with another job.
    pub(super) fn refuse(&mut self, cluster: &mut SimulatedCluster, slot: usize) {
        let (client, open) = (self.clients.client_of(slot), self.clients.job(slot));
        let open_job = open.job;
        if let ClientJob::Operation(register, _) = open.job {
            let (since, place) = (open.attempt, self.clients.asked_place(slot));
            let ends = open.since + RETRY_BUDGET * cluster.profile.slowness;
            let hash = self.workload.registers[register].keys[0].0;
            let refusal = RefusedOperation { client, since, register, hash, place };
            if let Some(failure) = cluster.check_refused(&refusal) {
                cluster.timeline.fail(failure);
            }
            let is_retried = match cluster.timeline.phase {
                RunPhase::Working => {
                    cluster.profile.settings.has(Knob::Retries) && cluster.profile.replicas() > 0
                }
                RunPhase::Enduring => true,
                RunPhase::Healing | RunPhase::Resting | RunPhase::Reading(_) => false,
            };
            if is_retried && cluster.timeline.now < ends {
                let pause = cluster.timeline.micros(1_000..20_000);
                return cluster.timeline.plan_in(pause, PlannedEvent::Retry(slot));
            }
            if self.is_ambiguous(slot) {
                // An earlier attempt may have been executed, or will be.
                if !self.repeat_later(cluster, slot, register) {
                    self.end_once(slot, register, None);
                    self.clients.end(cluster.timeline.now, slot, None);
                    self.read_clock(cluster, open_job);
                }
                return;
            }
            self.end_once(slot, register, None);
        }
        self.clients.refuse(cluster.timeline.now, slot);
    }

    /// Sends a refused operation again, half of the times to some server that then tells the
    /// owner, as client libraries do that read the slot map again.
    pub(crate) fn retry(&mut self, cluster: &mut SimulatedCluster, slot: usize) {
        if let ClientJob::Operation(register, _) = self.clients.job(slot).job
            && cluster.timeline.rng.bool()
        {
            let client = self.clients.client_of(slot);
            self.clients.forget_owner(client, self.workload.registers[register].slot());
        }
        match self.is_ambiguous(slot) {
            true => self.clients.repeat(cluster.timeline.now, slot),
            false => self.clients.retry(cluster.timeline.now, slot),
        }
        self.read_clock(cluster, self.clients.job(slot).job);
        self.send_request(cluster, slot);
        self.flush_outputs(cluster, self.clients.client_of(slot));
    }

    /// Lets all clients give up a server that does not answer.
    pub(crate) fn give_up_server(&mut self, cluster: &mut SimulatedCluster, place: usize) {
        self.clients.forget_owners_at(place);
        for (connection, _) in self.clients.connections_to(place) {
            self.connection_broken(cluster, connection);
        }
    }

    /// Handles a broken connection: the outcome of the jobs that were sent on it is unknown.
    pub(crate) fn connection_broken(&mut self, cluster: &mut SimulatedCluster, id: ConnectionId) {
        let Some((client, slots)) = self.clients.disconnect(id) else { return };
        for slot in slots {
            let job = self.clients.job(slot).job;
            match job {
                ClientJob::Operation(register, _) if self.repeat_later(cluster, slot, register) => {
                }
                job @ ClientJob::Operation(register, _) => {
                    self.end_once(slot, register, None);
                    self.clients.end(cluster.timeline.now, slot, None);
                    self.read_clock(cluster, job);
                }
                ClientJob::Flush(_) => self.clients.end_flush(cluster.timeline.now, slot, None),
                ClientJob::Repetition(_) | ClientJob::Walk(_) | ClientJob::Count(..) => {
                    self.clients.refuse(cluster.timeline.now, slot)
                }
            }
        }
        self.think_later(cluster, client);
    }
}

fn write_again(state: &JobState, out: &mut Vec<u8>) {
    let JobState::Repetition(request) = state else {
        unreachable!("a repetition has another state than {state:?}")
    };
    out.extend_from_slice(&request.bytes);
}

fn write_scan_step(state: &JobState, out: &mut Vec<u8>) {
    let JobState::Scan(scan) = state else {
        unreachable!("a scan has another state than {state:?}")
    };
    let writer = RequestWriter::new(4, out).argument(b"SCAN");
    let writer = writer.argument(scan.cursor.to_string().as_bytes());
    drop(writer.argument(b"COUNT").integer(20));
}
