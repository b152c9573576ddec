//! Jobs of the native clients, and their outcomes.
//!
//! The core reports one outcome per request. A reply is an outcome of the operation; a request that
//! *may have been executed* stays open for ever in the history, as if its client had given it up; a
//! request that was *refused* or *not executed* has had no effect, and is in no history. A value that
//! such a request would have written must never be seen.

use super::{ClientLoad, ENDURING_SLOWNESS};
use crate::clients::NativeOutcome;
use crate::cluster::{RefusedOperation, SimulatedCluster};
use crate::commands::{self, ReplyMeaning};
use crate::failure::Rule;
use crate::history::{OperationOutcome, RegisterAction};
use crate::native::{NativeEvent, NativeFinish, NativeJob, ReadBefore};
use crate::timeline::{PlannedEvent, RunPhase, RunTimeline};
use crate::workload::{ClientJob, TABLE, write_number};
use client_core::{ClientError, PreparedRequest, RepeatRule, RequestRoute, Value};
use resp::{Protocol, Reply, ReplyLimits, ReplyParser, ReplyWriter};
use std::time::Duration;

/// Number of plain clients that a refused operation of a native client counts as: none.
const NO_PLAIN_CLIENT: usize = usize::MAX;

impl ClientLoad {
    /// Handles an event of the native clients.
    pub(crate) fn on_native(&mut self, cluster: &mut SimulatedCluster, event: NativeEvent) {
        match event {
            NativeEvent::Think(client) => self.think_native(cluster, client),
            NativeEvent::Cancel(job) => self.cancel_native(cluster, job),
            NativeEvent::Retry(job) => self.retry_native(cluster, job),
            event => {
                let Some(native) = &mut self.native else { return };
                let finished = native.handle(cluster, event);
                self.end_native_jobs(cluster, finished);
            }
        }
    }

    /// Lets a native client begin jobs.
    fn think_native(&mut self, cluster: &mut SimulatedCluster, client: usize) {
        let Some(native) = &mut self.native else { return };
        native.has_thought(client);
        for _ in 0..native.free_slots(client) {
            let Some((register, action)) = self.next_native_job(cluster, client) else { break };
            self.begin_native_job(cluster, client, register, action);
            let Some(native) = &mut self.native else { return };
            if native.rng.u32(..4) == 0 {
                break;
            }
        }
        if self.native.as_ref().is_some_and(|native| native.is_free(client)) {
            self.think_native_soon(cluster, client);
        }
    }

    /// Plans that all native clients look for jobs, when a phase without other faults begins.
    pub(crate) fn wake_native(&mut self, timeline: &mut RunTimeline) {
        if let Some(native) = &mut self.native {
            native.end_half_open(timeline);
            for client in 0..native.count() {
                native.think_in(client, Duration::ZERO, timeline);
            }
        }
    }

    fn think_native_soon(&mut self, cluster: &mut SimulatedCluster, client: usize) {
        let Some(native) = &mut self.native else { return };
        let slowness = cluster.profile.slowness.pow(2).div_ceil(4);
        let pause = Duration::from_micros(native.rng.u64(1..300)) * slowness;
        let pause = match cluster.timeline.phase {
            RunPhase::Working | RunPhase::Reading(_) => pause,
            RunPhase::Enduring => pause * ENDURING_SLOWNESS,
            RunPhase::Healing | RunPhase::Resting => return,
        };
        if !matches!(cluster.timeline.phase, RunPhase::Reading(_)) || !native.has_read() {
            native.think_in(client, pause, &mut cluster.timeline);
        }
    }

    /// Draws the final reads: of one register in each slot, so that each client has to find the
    /// owner of every range.
    pub(super) fn draw_native_closing(&mut self, cluster: &mut SimulatedCluster) {
        let Some(native) = &mut self.native else { return };
        for client in 0..native.count() {
            let table = native.table(client);
            let mut chosen = Vec::new();
            for slot in self.workload.slots() {
                let registers = self.workload.registers.iter().enumerate();
                let there = registers.filter(|(number, register)| {
                    register.slot() == *slot
                        && register.table == table
                        && !cluster.losses.is_excused(*number)
                });
                let there: Vec<usize> = there.map(|(number, _)| number).collect();
                chosen.extend(native.rng.choice(there));
            }
            native.set_closing(client, chosen);
        }
        self.wake_native(&mut cluster.timeline);
    }

    /// Returns the next operation of a native client. `None`: it tries again later.
    fn next_native_job(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
    ) -> Option<(usize, RegisterAction)> {
        let native = self.native.as_mut()?;
        match cluster.timeline.phase {
            RunPhase::Working | RunPhase::Enduring => {}
            RunPhase::Healing | RunPhase::Resting => return None,
            RunPhase::Reading(_) => {
                return native.next_closing(client).map(|it| (it, RegisterAction::Read));
            }
        }
        if let Some(ReadBefore { register, value }) = native.take_read_before(client)
            && !self.clients.is_crowded_for_native(register)
        {
            let new = self.workload.draw_value(register);
            let action = match value {
                Some(old) => RegisterAction::Swap(old, new),
                None => RegisterAction::WriteIfAbsent(new),
            };
            return Some((register, action));
        }
        let table = native.table(client);
        let rng = &mut native.rng;
        let register = match table {
            TABLE => self.workload.draw_register(rng),
            _ => rng.choice(self.workload.flushed().collect::<Vec<_>>())?,
        };
        let is_avoided = cluster.losses.is_excused(register) && rng.u32(..10) != 0;
        let is_other = self.workload.registers[register].table != table;
        if is_avoided || is_other || self.clients.is_crowded_for_native(register) {
            return None;
        }
        let wall = cluster.servers[0].wall(cluster.timeline.wall());
        Some((register, self.workload.draw_action(rng, register, wall)))
    }

    fn begin_native_job(
        &mut self,
        cluster: &mut SimulatedCluster,
        client: usize,
        register: usize,
        action: RegisterAction,
    ) {
        let Some(native) = &mut self.native else { return };
        let (now, phase) = (cluster.timeline.now, cluster.timeline.phase);
        let deadline = now + native.time_limit(client, phase);
        let begun = self.clients.begin_native(register);
        let job = NativeJob {
            client,
            register,
            action,
            since: now,
            attempt: now,
            begun,
            deadline,
            request: None,
        };
        let number = native.add_job(job);
        self.read_clock(cluster, ClientJob::Operation(register, action));
        self.submit_native(cluster, number);
    }

    fn submit_native(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        let Some(native) = &mut self.native else { return };
        let Some(job) = native.job_mut(number) else { return };
        let (client, register, action) = (job.client, job.register, job.action);
        cluster.timeline.note(format_args!("n{client} begins {number}: {register} {action:?}"));
        let request = self.native_request(register, action);
        let Some(native) = &mut self.native else { return };
        let finished = native.submit(cluster, number, request);
        self.end_native_jobs(cluster, finished);
    }

    /// Returns the request of an operation: half of the times as a command with versions, and mostly
    /// if it has a condition.
    fn native_request(&mut self, number: usize, action: RegisterAction) -> PreparedRequest {
        let register = &self.workload.registers[number];
        let rng = self.native.as_mut().map(|native| &mut native.rng);
        let has_condition =
            matches!(action, RegisterAction::Swap(..) | RegisterAction::WriteIfAbsent(_));
        let plain_one_in = if has_condition { 8 } else { 2 };
        let is_plain = rng.is_some_and(|rng| rng.u32(..plain_one_in) == 0);
        let versions = self.versions.as_ref().filter(|_| !is_plain);
        let version = match (action, versions) {
            // A new time to live changes the version of a value.
            (RegisterAction::Swap(old, _), Some(versions)) if !self.workload.may_expire(number) => {
                versions.version_of(number, old)
            }
            _ => None,
        };
        let mut bytes = Vec::new();
        let is_versioned =
            versions.is_some() && commands::write_versioned(register, action, version, &mut bytes);
        if let (RegisterAction::Read, false, [(_, key)]) =
            (action, is_versioned, &register.keys[..])
        {
            return PreparedRequest::value_of(key);
        }
        if !is_versioned {
            commands::write(register, action, &mut bytes);
        }
        let repeat = match (action, version) {
            (RegisterAction::Swap(..), Some(version)) if is_versioned => {
                RepeatRule::of_version(version)
            }
            (RegisterAction::WriteIfAbsent(_), _) if is_versioned => RepeatRule::of_version(0),
            (action, _) if action.is_read() => RepeatRule::Harmless,
            _ => RepeatRule::Never,
        };
        let words = words(&bytes);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        PreparedRequest::new(&words, RequestRoute::Slot(register.slot()), repeat)
    }

    fn cancel_native(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        let Some(native) = &mut self.native else { return };
        let Some(job) = native.cancel(cluster, number) else { return };
        cluster.timeline.note(format_args!("n{} cancels {number}", job.client));
        self.end_native(cluster, &job, NativeOutcome::Unknown);
    }

    /// Sends a refused operation again.
    fn retry_native(&mut self, cluster: &mut SimulatedCluster, number: u64) {
        let Some(native) = &mut self.native else { return };
        let (now, phase) = (cluster.timeline.now, cluster.timeline.phase);
        let Some(client) = native.job_mut(number).map(|job| job.client) else { return };
        let deadline = now + native.time_limit(client, phase);
        let Some(job) = native.job_mut(number) else { return };
        let read_again = ClientJob::Operation(job.register, job.action);
        (job.attempt, job.deadline, job.begun) = (now, deadline, self.clients.native_moment());
        self.read_clock(cluster, read_again);
        self.submit_native(cluster, number);
    }

    fn end_native_jobs(&mut self, cluster: &mut SimulatedCluster, finished: Vec<NativeFinish>) {
        for NativeFinish { job: number, outcome, place } in finished {
            let Some(native) = &mut self.native else { return };
            cluster.timeline.note(format_args!("{number} ends: {}", printed(&outcome)));
            // The request of a job that is retried is with the core no longer.
            let Some(job) = native.job_mut(number).filter(|job| job.request.is_some()) else {
                let text = format!("job {number} has another outcome: {outcome:?}");
                return cluster.timeline.fail(Rule::OneOutcome.broken(text));
            };
            job.request = None;
            let job = job.clone();
            if job.deadline < cluster.timeline.now {
                let text = format!("{job:?} ends after its deadline: {outcome:?}");
                cluster.timeline.fail(Rule::OneOutcome.broken(text));
            }
            let ended = match outcome {
                Ok(value) => self.read_native_reply(cluster, &job, &value),
                Err(ClientError::MaybeExecuted(_)) => Some(NativeOutcome::Unknown),
                Err(ClientError::NotExecuted(_)) => Some(NativeOutcome::NotExecuted),
                Err(ClientError::Refused(text)) => self.read_refusal(cluster, &job, &text, place),
                Err(error @ ClientError::UnexpectedReply(_)) => {
                    cluster.timeline.fail(Rule::InOrder.broken(format!("{job:?}: {error}")));
                    None
                }
            };
            let Some(outcome) = ended else { return };
            if outcome == NativeOutcome::NotExecuted && self.is_native_retried(cluster, &job) {
                let Some(native) = &mut self.native else { return };
                let pause = Duration::from_micros(native.rng.u64(1_000..20_000));
                let retry = PlannedEvent::Native(NativeEvent::Retry(number));
                cluster.timeline.plan_in(pause, retry);
                continue;
            }
            if let Some(native) = &mut self.native {
                native.remove_job(number);
            }
            self.end_native(cluster, &job, outcome);
        }
    }

    /// Returns whether an operation must be answered, so that its client sends it again. At the end
    /// it must be answered at once.
    fn is_native_retried(&self, cluster: &mut SimulatedCluster, job: &NativeJob) -> bool {
        match cluster.timeline.phase {
            RunPhase::Working | RunPhase::Healing | RunPhase::Resting => false,
            RunPhase::Enduring => true,
            RunPhase::Reading(_) => {
                let text = format!("no server answers {job:?}");
                cluster.timeline.fail(Rule::Answered.broken(text));
                false
            }
        }
    }

    fn end_native(
        &mut self,
        cluster: &mut SimulatedCluster,
        job: &NativeJob,
        outcome: NativeOutcome,
    ) {
        // Numbers that increments made of nothing may come back, with other versions.
        if let NativeOutcome::Known(OperationOutcome::Value(value)) = outcome
            && value.is_none_or(|value| write_number(value) > 0)
            && job.action == RegisterAction::Read
            && self.versions.is_some()
            && self.workload.registers[job.register].keys.len() == 1
            && !self.workload.may_expire(job.register)
            && let Some(native) = &mut self.native
            && native.rng.bool()
        {
            let read_before = ReadBefore { register: job.register, value };
            native.set_read_before(job.client, read_before);
        }
        self.clients.end_native(cluster.timeline.now, job, outcome);
        self.read_clock(cluster, ClientJob::Operation(job.register, job.action));
        self.think_native_soon(cluster, job.client);
    }

    /// Interprets the reply that the core returns for a job.
    fn read_native_reply(
        &mut self,
        cluster: &mut SimulatedCluster,
        job: &NativeJob,
        value: &Value,
    ) -> Option<NativeOutcome> {
        let bytes = encoded(value);
        let mut parser = ReplyParser::new(ReplyLimits::default());
        let mut input = &bytes[..];
        let reply = match parser.next(&mut input) {
            Ok(Some(received)) => received.reply,
            Ok(None) | Err(_) => Reply::Simple(b"no reply to an operation"),
        };
        let register = &self.workload.registers[job.register];
        let said = commands::read(register, job.action, &reply);
        self.check_version(cluster, job.register, job.action, &reply);
        let rule = match said {
            ReplyMeaning::Outcome(outcome) => return Some(NativeOutcome::Known(outcome)),
            ReplyMeaning::Torn => Rule::WholePairs,
            ReplyMeaning::Moved(_)
            | ReplyMeaning::Later
            | ReplyMeaning::Refused
            | ReplyMeaning::Aborted
            | ReplyMeaning::Disordered
            | ReplyMeaning::Nonsense => Rule::InOrder,
        };
        let text = format!("reply {} to {job:?}: {said:?}", commands::PrintedReply(&reply));
        cluster.timeline.fail(rule.broken(text));
        None
    }

    /// Checks the refusal of a job, as that of a plain client's.
    fn read_refusal(
        &mut self,
        cluster: &mut SimulatedCluster,
        job: &NativeJob,
        text: &str,
        place: Option<usize>,
    ) -> Option<NativeOutcome> {
        match commands::read_error(text.as_bytes()) {
            ReplyMeaning::Later | ReplyMeaning::Refused => {
                let hash = self.workload.registers[job.register].keys[0].0;
                let refusal = RefusedOperation {
                    client: NO_PLAIN_CLIENT,
                    since: job.attempt,
                    register: job.register,
                    hash,
                    place,
                };
                if let Some(failure) = cluster.check_refused(&refusal) {
                    cluster.timeline.fail(failure);
                }
                Some(NativeOutcome::NotExecuted)
            }
            said => {
                let text = format!("reply {text} to {job:?}: {said:?}");
                cluster.timeline.fail(Rule::InOrder.broken(text));
                None
            }
        }
    }
}

/// Returns the words of an encoded request, which has the form of a reply.
fn words(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut parser = ReplyParser::new(ReplyLimits::default());
    let mut input = bytes;
    let received = parser.next(&mut input).expect("a request that the simulator wrote is valid");
    let received = received.expect("a request that the simulator wrote is complete");
    let Reply::Array(items) = received.reply else { unreachable!("a request is an array") };
    let word = |item| match item {
        Reply::Bulk(bytes) => bytes.to_vec(),
        other => unreachable!("{other:?} is no word of a request"),
    };
    items.map(word).collect()
}

/// Returns a value as bytes, if it is one that servers send as an outcome; else nothing.
fn encoded(value: &Value) -> Vec<u8> {
    fn write(value: &Value, out: &mut ReplyWriter<'_>) {
        match value {
            Value::Simple(text) => out.simple(&String::from_utf8_lossy(text)),
            Value::Error(text) => out.error(text),
            Value::Integer(number) => out.integer(*number),
            Value::Bulk(bytes) => out.bulk(bytes),
            Value::Null => out.null(),
            Value::Array(items) => {
                out.array(items.len());
                items.iter().for_each(|item| write(item, out));
            }
            Value::Double(_)
            | Value::Boolean(_)
            | Value::BigNumber(_)
            | Value::Verbatim { .. }
            | Value::Map(_)
            | Value::Set(_)
            | Value::Push(_) => {}
        }
    }
    let mut bytes = Vec::new();
    write(value, &mut ReplyWriter::new(Protocol::Resp3, &mut bytes));
    bytes
}

/// Returns an outcome as text, values without their filler.
fn printed(outcome: &Result<Value, ClientError>) -> String {
    match outcome {
        Err(error) => error.to_string(),
        Ok(value) => {
            let text = String::from_utf8_lossy(&encoded(value)).into_owned();
            text.replace("\r\n", " ").replace("..", "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_encoded_as_the_reply_that_it_was() {
        let bytes: &[u8] = b"*4\r\n$3\r\nabc\r\n:7\r\n_\r\n+OK\r\n";
        let mut input = bytes;
        let mut parser = ReplyParser::new(ReplyLimits::default());
        let value = Value::from(parser.next(&mut input).unwrap().unwrap().reply);
        assert_eq!(encoded(&value), bytes);
        assert_eq!(encoded(&Value::Boolean(true)), b"");
    }

    #[test]
    fn a_request_is_divided_into_its_words() {
        let mut bytes = Vec::new();
        resp::RequestWriter::write(&[b"SET", b"k", b""], &mut bytes);
        assert_eq!(words(&bytes), [&b"SET"[..], b"k", b""]);
    }
}
