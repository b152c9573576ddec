//! Replies to the clients, and the checks that each of them passes.

use super::ClientLoad;
use crate::clients::{ExpectedReply, JobState, OpenJob};
use crate::cluster::SimulatedCluster;
use crate::commands::{self, ReplyMeaning};
use crate::failure::Rule;
use crate::history::RegisterAction;
use crate::native::native_connection;
use crate::network::in_pieces;
use crate::planted::Planted;
use crate::timeline::{Accident, PlannedEvent};
use crate::workload::{ClientJob, TABLE};
use front::core::ConnectionId;
use resp::Reply;
use std::time::Duration;
use types::{Instant, OwnershipEpoch};

impl ClientLoad {
    /// Sends bytes from a server to a client.
    pub(crate) fn send_reply(
        &mut self,
        cluster: &mut SimulatedCluster,
        id: ConnectionId,
        bytes: Vec<u8>,
    ) {
        if let Some(number) = native_connection(id) {
            if let Some(native) = &mut self.native {
                native.send_reply(cluster, number, bytes);
            }
            return;
        }
        let Some((client, place)) = self.clients.holder(id) else { return };
        for piece in in_pieces(bytes, &mut cluster.timeline.rng) {
            let delay = cluster.network.delay(&mut cluster.timeline.rng);
            let now = cluster.timeline.now;
            let Some(connection) = self.clients.connection(client, place) else { return };
            connection.down = connection.down.max(now + delay);
            let at: Instant = connection.down;
            cluster.timeline.plan_at(at, PlannedEvent::Answer(id, piece));
        }
    }

    /// Sends the end of a connection that a server has closed, after its last replies.
    pub(crate) fn close_connection(&mut self, cluster: &mut SimulatedCluster, id: ConnectionId) {
        if let Some(number) = native_connection(id) {
            if let Some(native) = &mut self.native {
                native.closed_by_server(cluster, number);
            }
            return;
        }
        let Some((client, place)) = self.clients.holder(id) else { return };
        let delay = cluster.network.delay(&mut cluster.timeline.rng);
        let Some(connection) = self.clients.connection(client, place) else { return };
        let end = connection.down.max(cluster.timeline.now + delay);
        cluster.timeline.plan_at(end, PlannedEvent::Broken(id));
    }

    /// Processes bytes that arrive at a client.
    pub(crate) fn receive(
        &mut self,
        cluster: &mut SimulatedCluster,
        id: ConnectionId,
        bytes: Vec<u8>,
    ) {
        let Some((client, place)) = self.clients.holder(id) else { return };
        let line = format_args!("{id} delivers {} bytes", bytes.len());
        cluster.timeline.note_bytes(&[id.number()], &bytes, line);
        let Some(connection) = self.clients.connection(client, place) else { return };
        let mut input = std::mem::take(&mut connection.input);
        input.extend_from_slice(&bytes);
        let mut rest = &input[..];
        while !cluster.timeline.has_failed() {
            let Some(connection) = self.clients.connection(client, place) else { return };
            let reply = match connection.parser.next(&mut rest) {
                Ok(Some(received)) => received.reply,
                Ok(None) => break,
                Err(error) => return invalid_input(cluster, id, &format!("{error}")),
            };
            match connection.expected.pop_front() {
                Some(ExpectedReply::Job(slot)) => self.process_reply(cluster, slot, &reply),
                Some(ExpectedReply::Selected) if reply == Reply::Simple(b"OK") => {}
                Some(ExpectedReply::Queued(slot)) if self.is_queued(cluster, slot, &reply) => {}
                Some(ExpectedReply::Echo(number))
                    if reply == Reply::Bulk(number.to_string().as_bytes()) => {}
                expected => {
                    let text = format!("{} to {expected:?}", commands::PrintedReply(&reply));
                    return invalid_input(cluster, id, &text);
                }
            }
        }
        let consumed = input.len() - rest.len();
        input.drain(..consumed);
        if let Some(connection) = self.clients.connection(client, place) {
            connection.input = input;
        }
        self.flush_outputs(cluster, client);
        if self.clients.slots(client).any(|slot| self.clients.is_free(slot)) {
            self.think_soon(cluster, client);
        }
    }

    /// Returns whether this is a valid reply to `MULTI` or a queued command. Records a
    /// redirection.
    fn is_queued(&mut self, cluster: &SimulatedCluster, slot: usize, reply: &Reply<'_>) -> bool {
        let Reply::Error(text) = reply else {
            return matches!(reply, Reply::Simple(b"OK" | b"QUEUED"));
        };
        let said = commands::read_error(text);
        if let (ReplyMeaning::Moved(to), ClientJob::Operation(register, _)) =
            (&said, self.clients.job(slot).job)
        {
            self.record_redirection(cluster, slot, register, *to);
        }
        if said == ReplyMeaning::Later {
            self.clients.refuse_queued(slot);
        }
        matches!(said, ReplyMeaning::Moved(_) | ReplyMeaning::Later)
    }

    /// Records the owner that a server has named, unless the reply is older than the client's
    /// knowledge that this owner does not answer: it may have waited behind another one.
    pub(super) fn record_redirection(
        &mut self,
        cluster: &SimulatedCluster,
        slot: usize,
        register: usize,
        owner: usize,
    ) {
        let client = self.clients.client_of(slot);
        let of_register = self.workload.registers[register].slot();
        let attempt = self.clients.job(slot).attempt;
        match cluster.faults.lasting.is_some_and(|fault| fault.outdates(owner, attempt)) {
            true => self.clients.forget_owner(client, of_register),
            false => self.clients.learn(client, of_register, owner),
        }
    }

    fn process_reply(&mut self, cluster: &mut SimulatedCluster, slot: usize, reply: &Reply<'_>) {
        cluster.timeline.show(format_args!("{slot}: {}", commands::PrintedReply(reply)));
        match self.clients.job(slot).job {
            ClientJob::Operation(register, action) => {
                let said = commands::read(&self.workload.registers[register], action, reply);
                self.check_version(cluster, register, action, reply);
                let is_planted = cluster.profile.settings.planted
                    == Some(Planted::RefusedAfterRecovery)
                    && action == RegisterAction::Read
                    && !cluster.losses.dead.is_empty()
                    && cluster.timeline.is_working();
                let said = if is_planted { ReplyMeaning::Refused } else { said };
                self.end_operation(cluster, slot, register, said, reply);
            }
            ClientJob::Repetition(register) => self.end_repetition(cluster, slot, register, reply),
            ClientJob::Flush(place) => {
                match commands::read(&self.workload.registers[0], RegisterAction::Flush, reply) {
                    ReplyMeaning::Outcome(_) => self.end_flush(cluster, slot, place),
                    ReplyMeaning::Refused => self.refuse(cluster, slot),
                    // It is unknown if the flush will still be executed.
                    ReplyMeaning::Later => {
                        cluster.losses.record_stalled(self.clients.client_of(slot));
                        self.clients.end_flush(cluster.timeline.now, slot, None);
                    }
                    said => self.invalid_reply(cluster, slot, &said, reply),
                }
            }
            ClientJob::Walk(place) => self.process_scan_step(cluster, slot, place, reply),
            ClientJob::Count(..) => self.end_count(cluster, slot, reply),
        }
    }

    /// Records the version that a reply shows. Lost data may take its versions along.
    pub(super) fn check_version(
        &mut self,
        cluster: &mut SimulatedCluster,
        register: usize,
        action: RegisterAction,
        reply: &Reply<'_>,
    ) {
        let Some(versions) = &mut self.versions else { return };
        let seen = commands::version_in(&self.workload.registers[register], action, reply);
        if let Some(seen) = seen
            && let Err(failure) = versions.record(register, seen)
            && !cluster.losses.is_excused(register)
        {
            cluster.timeline.fail(failure);
        }
    }

    fn invalid_reply(
        &mut self,
        cluster: &mut SimulatedCluster,
        slot: usize,
        said: &ReplyMeaning,
        reply: &Reply<'_>,
    ) {
        let job = self.clients.job(slot).job;
        let text = format!("invalid reply {} to {job:?}: {said:?}", commands::PrintedReply(reply));
        cluster.timeline.fail(Rule::InOrder.broken(text));
    }

    fn end_operation(
        &mut self,
        cluster: &mut SimulatedCluster,
        slot: usize,
        register: usize,
        said: ReplyMeaning,
        reply: &Reply<'_>,
    ) {
        match said {
            ReplyMeaning::Outcome(outcome) => {
                self.strike_follower(cluster, slot, register);
                let job = self.clients.job(slot).job;
                self.end_once(slot, register, Some(reply));
                self.clients.end(cluster.timeline.now, slot, Some(outcome));
                self.read_clock(cluster, job);
            }
            ReplyMeaning::Aborted if self.clients.take_refusal(slot) => self.refuse(cluster, slot),
            ReplyMeaning::Moved(_) | ReplyMeaning::Aborted => {
                if let ReplyMeaning::Moved(to) = said {
                    self.record_redirection(cluster, slot, register, to);
                }
                if self.clients.hop(slot) {
                    self.send_request(cluster, slot);
                } else if cluster.losses.is_excused(register) {
                    // A process at the dead owner's address redirects to the owner that it finds
                    // at the coordinator, until that owner knows its new range. A client may go
                    // in circles meanwhile.
                    self.refuse(cluster, slot);
                } else {
                    let job = self.clients.job(slot).job;
                    cluster.timeline.fail(Rule::NoCircles.broken(format!("{job:?}")));
                }
            }
            ReplyMeaning::Later | ReplyMeaning::Refused => self.refuse(cluster, slot),
            ReplyMeaning::Torn => {
                let job = self.clients.job(slot).job;
                cluster.timeline.fail(
                    Rule::WholePairs.broken(format!("{job:?}: {}", commands::PrintedReply(reply))),
                );
            }
            ReplyMeaning::Disordered => {
                let job = self.clients.job(slot).job;
                let text = format!("{job:?}: {}", commands::PrintedReply(reply));
                cluster.timeline.fail(Rule::MembersOrdered.broken(text));
            }
            ReplyMeaning::Nonsense => self.invalid_reply(cluster, slot, &said, reply),
        }
    }

    /// Now and then lets a server die that has answered a read right behind a death.
    fn strike_follower(&mut self, cluster: &mut SimulatedCluster, slot: usize, register: usize) {
        let ClientJob::Operation(_, RegisterAction::Read) = self.clients.job(slot).job else {
            return;
        };
        if let Some(place) = self.clients.asked_place(slot)
            && let Some(micros) = self.follower.was_read(register)
        {
            let dies = PlannedEvent::Accident(Accident::ServerDies(place));
            cluster.timeline.plan_in(Duration::from_micros(micros), dies);
        }
    }

    /// Ends a flush: the registers that its server held under one epoch all the time are empty.
    fn end_flush(&mut self, cluster: &mut SimulatedCluster, slot: usize, place: usize) {
        let JobState::Flush(held) = &self.clients.job(slot).state else {
            unreachable!("a flush has the state of its registers")
        };
        let hash = |number: usize| self.workload.registers[number].keys[0].0;
        let is_held = |&(number, before): &(usize, Option<OwnershipEpoch>)| {
            before.is_some() && before == cluster.serving_epoch(place, hash(number))
        };
        let was_hit = held.iter().filter(|one| is_held(one)).map(|(number, _)| *number).collect();
        self.clients.end_flush(cluster.timeline.now, slot, Some(&was_hit));
    }

    /// Handles a step of a scan.
    fn process_scan_step(
        &mut self,
        cluster: &mut SimulatedCluster,
        slot: usize,
        place: usize,
        reply: &Reply<'_>,
    ) {
        let step = match reply {
            Reply::Error(text) => match commands::read_error(text) {
                ReplyMeaning::Later => return self.refuse(cluster, slot),
                said => return self.invalid_reply(cluster, slot, &said, reply),
            },
            reply => read_step(reply),
        };
        let Some((cursor, keys)) = step else {
            return self.invalid_reply(cluster, slot, &ReplyMeaning::Nonsense, reply);
        };
        let mut found = Vec::new();
        for key in keys {
            match self.workload.names.get(key) {
                Some(&number) if self.workload.registers[number].table == TABLE => {
                    found.push(number)
                }
                _ => return self.invalid_reply(cluster, slot, &ReplyMeaning::Nonsense, reply),
            }
        }
        let JobState::Scan(scan) = &mut self.clients.job_mut(slot).state else {
            unreachable!("a scan has a cursor")
        };
        scan.found.extend(found);
        scan.cursor = cursor;
        match cursor {
            0 => self.end_scan(cluster, slot, place),
            _ => self.send_request(cluster, slot),
        }
    }

    /// Ends a scan. Registers that existed and belonged to this server all the time must be
    /// found.
    fn end_scan(&mut self, cluster: &mut SimulatedCluster, slot: usize, place: usize) {
        let open = self.clients.finish(cluster.timeline.now, slot);
        let OpenJob { state: JobState::Scan(scan), .. } = open else {
            unreachable!("the job is a scan")
        };
        let missed = scan.expected.iter().find(|(number, hash, epoch)| {
            !scan.found.contains(number) && cluster.serving_epoch(place, *hash) == Some(*epoch)
        });
        if let Some((number, hash, _)) = missed {
            let key = String::from_utf8_lossy(&self.workload.registers[*number].keys[0].1);
            let text =
                format!("a scan of {} did not return {key}, {hash}", cluster.servers[place].id);
            cluster.timeline.fail(Rule::WalksComplete.broken(text));
        }
    }

    /// Checks a server's count of records, at a time when only reclaiming changes it.
    fn end_count(&mut self, cluster: &mut SimulatedCluster, slot: usize, reply: &Reply<'_>) {
        let Reply::Integer(told) = *reply else {
            return self.invalid_reply(cluster, slot, &ReplyMeaning::Nonsense, reply);
        };
        let OpenJob { job: ClientJob::Count(place, table), state: JobState::Count(before), .. } =
            self.clients.finish(cluster.timeline.now, slot)
        else {
            unreachable!("a count has its earlier value")
        };
        let after = cluster.servers.count_records(place, table);
        if told > before as i64 || told < after as i64 {
            let id = cluster.servers[place].id;
            let text = format!("{id} reports {told} for {table:?}, but had {before} to {after}");
            cluster.timeline.fail(Rule::CountsMatch.broken(text));
        }
    }
}

/// Reports bytes that are no valid reply to the next request of a connection.
fn invalid_input(cluster: &mut SimulatedCluster, id: ConnectionId, text: &str) {
    cluster.timeline.fail(Rule::InOrder.broken(format!("on {id}: {text}")));
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
