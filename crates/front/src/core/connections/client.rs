//! One client's connection: parses, executes and parks requests, and answers them in order.

mod blocking;
mod not_executed;

use super::admission::{self, AnsweredCommand};
use super::http;
use super::prefetch::prefetch;
use super::queue::{ParkedRequest, Queue, RequestState};
use super::scope::{crosses_slots, scope_of};
use super::turn::ConnectionTurn;
use super::waiter::WaiterId;
use crate::commands::{
    CROSS_SLOT, Call, Cause, Command, Done, NotExecuted, QueuedTransaction, flag, queue_command,
};
use crate::operators::clients::{Facts, Traffic, Unblocked};
use crate::operators::pause::Paused;
use crate::session::Session;
use planted::Bug;
use resp::{BorrowedRequest, ReplyWriter, RequestLimits, RequestParser};
use settings::ServerConfiguration;
use std::sync::Arc;
use types::ConnectionId;
use types::Instant;
use types::limits::CLIENT_BACKLOG_MAX;
use wire::control::Answer;

/// Longest argument that is skipped and refused (Valkey's `proto-max-bulk-len`), in bytes.
const SKIPPED_BYTES_MAX: usize = 512 << 20;

/// Bytes of the shortest argument, which is empty: `$0`, and two line ends.
const ARGUMENT_BYTES_MIN: usize = 6;

/// Unprocessed input of a connection from which on it is not read while a request waits for keys.
const BLOCKED_INPUT_MAX: usize = 64 << 10;

/// Returns the limits of a connection's requests. Arguments larger than any value are skipped
/// without buffering, and their request is refused. Unauthenticated clients have much lower limits.
fn limits(configuration: &ServerConfiguration, is_authenticated: bool) -> RequestLimits {
    let all = RequestLimits {
        bulk_bytes_max: configuration.clients.bulk_bytes_max.0,
        skipped_bytes_max: SKIPPED_BYTES_MAX,
        arguments_max: configuration.clients.query_limit.0 / ARGUMENT_BYTES_MIN,
        line_bytes_max: 64 << 10,
        request_bytes_max: configuration.clients.query_limit.0,
    };
    match is_authenticated {
        true => all,
        false => {
            let (bulk_bytes_max, skipped_bytes_max) = (16 << 10, 16 << 10);
            RequestLimits { bulk_bytes_max, skipped_bytes_max, arguments_max: 10, ..all }
        }
    }
}

/// The result of processing some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes of the input that were processed.
    pub(crate) consumed: usize,
    pub(crate) next: ConnectionAction,
}

/// The next state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    /// Continue to read.
    Read,
    /// Continue to read, and pass the input that was left over.
    ReadAgain,
    /// Too many requests are unfinished: read no input until some are answered.
    Pause,
    /// Send all output, then close.
    Close,
}

/// The connection of one client.
pub(crate) struct RedisClient {
    parser: RequestParser,
    conversation: Conversation,
    is_paused: bool,
    /// True if the parser's limits are those of an authenticated client.
    is_trusted: bool,
    /// Number of requests that the last call of [`RedisClient::receive`] has finished parsing.
    requests: u64,
    /// Start of the period during which the backlog has exceeded the soft output limit.
    pub(crate) over_limit_since: Option<Instant>,
}

/// A client without its parser, from which the current request borrows.
struct Conversation {
    id: ConnectionId,
    session: Session,
    queue: Queue,
}

/// The outcome of a request that arrives between `MULTI` and `EXEC`.
enum CollectOutcome {
    /// The request was queued or refused, with this reply.
    Answered(Vec<u8>),
    /// The request ends the collection, and is executed with the collected transaction.
    Over(Option<QueuedTransaction>),
}

enum ExecutionOutcome {
    Replied,
    Wait(Cause),
}

impl RedisClient {
    /// Creates the client of a new connection.
    pub(crate) fn new(
        id: ConnectionId,
        facts: Arc<Facts>,
        configuration: &ServerConfiguration,
    ) -> RedisClient {
        let is_authenticated = !configuration.access.needs_password();
        let session = Session::new(facts, is_authenticated);
        RedisClient {
            parser: RequestParser::new(limits(configuration, is_authenticated)),
            conversation: Conversation { id, session, queue: Queue::default() },
            is_paused: false,
            is_trusted: is_authenticated,
            requests: 0,
            over_limit_since: None,
        }
    }

    /// Returns the client's number, which is never reused.
    pub(crate) fn id(&self) -> u64 {
        self.conversation.session.id()
    }

    /// Returns whether the client is not read because all requests are paused.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns whether the client is in `MONITOR` mode.
    #[inline]
    pub(crate) fn is_monitor(&self) -> bool {
        self.conversation.session.status.is_monitor
    }

    /// Returns whether the client has an unfinished request or is in `MONITOR` mode, so not idle.
    pub(crate) fn is_busy(&self) -> bool {
        !self.conversation.queue.is_empty() || self.is_monitor()
    }

    /// Executes the complete requests at the front of `input`. Stops early while the client has too
    /// much unread output. The rest of the input is passed again after enough of `out` was sent.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> Received {
        let conversation = &mut self.conversation;
        let before = out.len();
        let mut rest = input;
        let mut prefetched = 0;
        let mut requests = 0;
        self.is_paused = false;
        let next = loop {
            if conversation.queue.is_full() {
                let is_read = conversation.queue.ends_blocked() && rest.len() < BLOCKED_INPUT_MAX;
                break if is_read { ConnectionAction::Read } else { ConnectionAction::Pause };
            }
            let is_paused = || turn.backend.operators.pause.at(turn.now) == Some(Paused::All);
            if !rest.is_empty() && is_paused() {
                self.is_paused = true;
                break ConnectionAction::Pause;
            }
            if out.len() > CLIENT_BACKLOG_MAX {
                break ConnectionAction::Read;
            }
            if conversation.session.is_authenticated != self.is_trusted {
                self.is_trusted = conversation.session.is_authenticated;
                self.parser.set_limits(limits(&turn.backend.configuration, self.is_trusted));
            }
            if prefetched == 0 {
                prefetched =
                    prefetch(rest, conversation.session.status.table, &mut turn.backend.engine);
            }
            prefetched = prefetched.saturating_sub(1);
            match self.parser.next(&mut rest) {
                Ok(None) => break ConnectionAction::Read,
                Ok(Some(request)) => {
                    requests += 1;
                    turn.is_last = rest.is_empty();
                    conversation.request(request, turn, out);
                }
                Err(error) if error.ends_connection() => {
                    conversation.refuse(&error.to_string(), out);
                }
                Err(error) => {
                    requests += 1;
                    conversation.answer_skipped(&format!("ERR {error}"), turn, out);
                }
            }
            if conversation.session.closing {
                break conversation.next();
            }
        };
        turn.meter.finish(turn.backend, turn.now);
        conversation.publish(self.is_paused, turn.now, requests);
        conversation.session.facts.add_traffic(Traffic {
            read: (input.len() - rest.len()) as u64,
            written: (out.len() - before) as u64,
            unread: rest.len() as u64,
            unsent: before as u64,
        });
        turn.backend.counts.requests.add(requests);
        self.requests = requests;
        Received { consumed: input.len() - rest.len(), next }
    }

    /// Returns the average length of the requests in the `consumed` bytes that
    /// [`RedisClient::receive`] has just consumed. 0: none ends there.
    pub(crate) fn request_bytes(&self, consumed: usize) -> usize {
        consumed.checked_div(self.requests as usize).unwrap_or(0)
    }

    /// Returns how many bytes beyond the point where [`RedisClient::receive`] stopped must arrive
    /// before another call makes progress. 0: any number may help.
    pub(crate) fn wanted(&self) -> usize {
        self.parser.wanted()
    }

    /// Retries a parked request, with the coordinator's answer if there is one. Then executes all
    /// requests that become runnable.
    pub(crate) fn retry(
        &mut self,
        number: u64,
        answer: Option<Answer>,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionAction {
        let next = self.conversation.retry(number, answer, turn, out);
        self.conversation.publish(self.is_paused, turn.now, 0);
        next
    }

    /// Returns whether a request waits for keys, or for replicas without a time limit.
    pub(crate) fn waits_for_ever(&self) -> bool {
        self.conversation.queue.waits_for_ever()
    }

    /// Ends the wait for replicas or keys, if a request waits, in the way that `CLIENT UNBLOCK` asks for.
    pub(crate) fn unblock(
        &mut self,
        how: Unblocked,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionAction {
        let queue = &mut self.conversation.queue;
        let Some(number) = queue.unblockable() else { return self.conversation.next() };
        if let Some(waiting) = queue.waiting(number) {
            waiting.state.past.unblocked = Some(how);
        }
        self.retry(number, None, turn, out)
    }

    /// Processes the end of the client's input. Requests already received are still answered.
    pub(crate) fn end(&mut self) -> ConnectionAction {
        self.conversation.session.closing = true;
        self.conversation.next()
    }

    /// Answers a request that has waited too long with an error, or extends its wait.
    pub(crate) fn give_up(
        &mut self,
        number: u64,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionAction {
        let next = self.conversation.give_up(number, turn, out);
        self.conversation.publish(self.is_paused, turn.now, 0);
        next
    }
}

impl Conversation {
    /// Returns the connection's next state.
    fn next(&self) -> ConnectionAction {
        match (self.session.closing, self.queue.is_empty()) {
            (true, true) => ConnectionAction::Close,
            (true, false) => ConnectionAction::Pause,
            (false, _) if self.queue.ends_blocked() => ConnectionAction::Read,
            (false, _) if self.queue.is_full() => ConnectionAction::Pause,
            (false, _) => ConnectionAction::Read,
        }
    }

    /// Publishes the connection's state to other connections, after `requests` more requests.
    fn publish(&mut self, is_paused: bool, now: Instant, requests: u64) {
        self.session.status.is_blocked = is_paused || !self.queue.is_empty();
        self.session.status.is_waiting = self.queue.unblockable().is_some();
        self.session.publish(now, requests);
    }

    /// Writes a protocol error as the last reply, since the stream cannot be parsed further.
    fn refuse(&mut self, text: &str, out: &mut Vec<u8>) {
        self.session.closing = true;
        let mut reply = Vec::new();
        ReplyWriter::new(self.session.status.protocol, &mut reply).error(format!("ERR {text}"));
        self.answer_in_order(reply, out);
    }

    /// Sends a reply behind those of the requests that are still queued.
    fn answer_in_order(&mut self, reply: Vec<u8>, out: &mut Vec<u8>) {
        match self.queue.is_empty() {
            true => out.extend_from_slice(&reply),
            false => self.queue.push_done(reply),
        }
    }

    /// Answers a request that was skipped because it is too long.
    fn answer_skipped(&mut self, text: &str, turn: &ConnectionTurn<'_>, out: &mut Vec<u8>) {
        if let Some(transaction) = &mut self.session.collecting {
            transaction.fail();
        }
        admission::count_refusal(None, text, turn.backend);
        let mut reply = Vec::new();
        if self.session.takes_reply() {
            ReplyWriter::new(self.session.status.protocol, &mut reply).error(text);
        }
        self.answer_in_order(reply, out);
    }

    fn request(
        &mut self,
        request: BorrowedRequest<'_>,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) {
        let mut state = RequestState::default();
        if self.session.collecting.is_some() {
            match self.collect(request, turn) {
                CollectOutcome::Answered(mut reply) => {
                    if !self.session.takes_reply() {
                        reply.clear();
                    }
                    return self.answer_in_order(reply, out);
                }
                CollectOutcome::Over(transaction) => state.transaction = transaction,
            }
        }
        if self.queue.is_empty() {
            let before = out.len();
            match self.execute(request, &mut state, turn, out) {
                ExecutionOutcome::Replied if self.session.takes_reply() => {}
                ExecutionOutcome::Replied => out.truncate(before),
                ExecutionOutcome::Wait(cause) => {
                    out.truncate(before);
                    self.park(request, Some(cause), state, turn);
                }
            }
            return;
        }
        let scope = scope_of(request, &self.session, &turn.backend.engine);
        if !self.queue.may_overtake(&scope) && !planted::is(Bug::KeyOvertaken) {
            return self.park(request, None, state, turn);
        }
        let mut reply = Vec::new();
        match self.execute(request, &mut state, turn, &mut reply) {
            ExecutionOutcome::Replied if planted::is(Bug::ReplyOvertakes) => {
                out.extend_from_slice(&reply)
            }
            ExecutionOutcome::Replied => {
                if !self.session.takes_reply() {
                    reply.clear();
                }
                self.queue.push_done(reply);
            }
            ExecutionOutcome::Wait(cause) => self.park(request, Some(cause), state, turn),
        }
    }

    /// Processes a request between `MULTI` and `EXEC`. Nothing is executed before `EXEC`, and
    /// parsing alone decides what is queued, so a client can send further requests without waiting.
    fn collect(
        &mut self,
        request: BorrowedRequest<'_>,
        turn: &ConnectionTurn<'_>,
    ) -> CollectOutcome {
        let command = Command::of(request.name(), request.get(1));
        // `EXEC` ends the transaction even if its arguments are wrong.
        let ends = command.is_ok_and(|command| {
            command.has(flag::ENDS_MULTI)
                && (command.has(flag::RUNS_TRANSACTION) || command.takes(request.len()))
        });
        let Some(transaction) = self.session.collecting.as_mut().filter(|_| !ends) else {
            return CollectOutcome::Over(self.session.collecting.take());
        };
        if command.is_err() && http::is_request(request.name()) {
            http::refuse(&mut self.session, turn);
            return CollectOutcome::Answered(Vec::new());
        }
        if let Ok(command) = command {
            self.session.status.command = Some(command.number() as u16);
        }
        let known = command.map_err(|unknown| {
            let args: Vec<&[u8]> = request.iter().collect();
            unknown.text(&args)
        });
        let added = queue_command(transaction, known, request, turn.backend);
        let mut reply = Vec::new();
        let mut writer = ReplyWriter::new(self.session.status.protocol, &mut reply);
        match added {
            Ok(()) => writer.simple("QUEUED"),
            Err(text) => {
                admission::count_refusal(command.ok(), &text, turn.backend);
                writer.error(text);
            }
        }
        CollectOutcome::Answered(reply)
    }

    fn park(
        &mut self,
        request: BorrowedRequest<'_>,
        cause: Option<Cause>,
        mut state: RequestState,
        turn: &mut ConnectionTurn<'_>,
    ) {
        state.past.record(cause.as_ref(), turn.now);
        state.blocks_parsing = Command::of(request.name(), request.get(1))
            .is_ok_and(|command| command.has(flag::ALONE));
        // `CLIENT REPLY` and similar commands decide about their own reply when they are executed.
        state.is_silent = !state.blocks_parsing && !self.session.takes_reply();
        let number = self.queue.push_waiting(ParkedRequest {
            request: Arc::new(request.to_owned()),
            scope: scope_of(request, &self.session, &turn.backend.engine),
            table: self.session.status.table,
            protocol: self.session.status.protocol,
            cause: cause.clone(),
            state,
            held_bytes: 0,
        });
        turn.backend.counts.parked.add(1);
        let waiter = WaiterId { connection: self.id, number };
        turn.waits.limit(waiter, turn.now);
        if let Some(cause) = cause {
            self.wait(waiter, &cause, turn);
        }
    }

    fn retry(
        &mut self,
        number: u64,
        answer: Option<Answer>,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionAction {
        let was_blocked = self.queue.ends_blocked();
        let Some(waiting) = self.queue.waiting(number) else { return self.next() };
        if answer.is_some() {
            waiting.state.answer = answer;
            waiting.state.past.answers += 1;
        }
        let mut runnable = Some(number);
        while let Some(number) = runnable {
            self.execute_waiting(number, turn);
            self.queue.take_replies(out);
            runnable = self.queue.next_runnable().filter(|_| !planted::is(Bug::TurnForgotten));
            if let Some(number) = runnable
                && out.len() > CLIENT_BACKLOG_MAX
            {
                turn.waits.add_congested(WaiterId { connection: self.id, number });
                break;
            }
        }
        let next = self.next();
        let has_unread_input = was_blocked && !self.queue.ends_blocked();
        if has_unread_input && next == ConnectionAction::Read {
            return ConnectionAction::ReadAgain;
        }
        next
    }

    fn execute_waiting(&mut self, number: u64, turn: &mut ConnectionTurn<'_>) {
        if self.stays_blocked(number, turn) {
            return;
        }
        let Some(waiting) = self.queue.waiting(number) else { return };
        let request = Arc::clone(&waiting.request);
        let mut state = std::mem::take(&mut waiting.state);
        let current = (self.session.status.table, self.session.status.protocol);
        (self.session.status.table, self.session.status.protocol) =
            (waiting.table, waiting.protocol);
        let mut reply = Vec::new();
        let outcome = match state.past.is_blocked_no_longer(turn.now) {
            true => self.end_wait(request.request(), state.past, turn, &mut reply),
            false => self.execute(request.request(), &mut state, turn, &mut reply),
        };
        // Nothing was parsed after an `ALONE` command, so its table and protocol apply.
        if !state.blocks_parsing {
            (self.session.status.table, self.session.status.protocol) = current;
        }
        match outcome {
            ExecutionOutcome::Replied => {
                if state.is_silent || (state.blocks_parsing && !self.session.takes_reply()) {
                    reply.clear();
                }
                self.queue.finish(number, reply);
                self.wait_no_longer(number, state.past, turn);
            }
            ExecutionOutcome::Wait(cause) => {
                state.past.record(Some(&cause), turn.now);
                if let Some(waiting) = self.queue.waiting(number) {
                    waiting.cause = Some(cause.clone());
                    waiting.state = state;
                }
                self.wait(WaiterId { connection: self.id, number }, &cause, turn);
            }
        }
    }

    fn give_up(
        &mut self,
        number: u64,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionAction {
        let waiter = WaiterId { connection: self.id, number };
        let Some(waiting) = self.queue.waiting(number) else {
            turn.waits.give_up(waiter);
            return self.next();
        };
        let waits_for_turn = waiting.cause.is_none();
        let is_patient =
            waiting.is_patient() || waits_for_turn && self.queue.has_patient_before(number);
        let is_paused = turn.backend.operators.pause.at(turn.now).is_some();
        if is_paused || is_patient || turn.waits.is_congested(self.id) {
            // The request makes progress, the duration of its wait is intended, or the client does
            // not read.
            turn.waits.limit(waiter, turn.now);
            return self.next();
        }
        let Some(waiting) = self.queue.waiting(number) else { return self.next() };
        let mut reply = Vec::new();
        let is_silent = match waiting.state.blocks_parsing {
            true => !self.session.takes_reply(),
            false => waiting.state.is_silent,
        };
        if waiting.state.transaction.is_some() {
            self.session.watched.clear();
        }
        let text = match waiting.cause == Some(Cause::Memory) {
            true => "TRYAGAIN No memory became free in time, please try again",
            false => "TRYAGAIN The data did not become available in time, please try again",
        };
        ReplyWriter::new(waiting.protocol, &mut reply).error(text);
        if is_silent {
            reply.clear();
        }
        let past = waiting.state.past;
        turn.waits.give_up(waiter);
        self.wait_no_longer(number, past, turn);
        self.queue.finish(number, reply);
        self.queue.take_replies(out);
        match self.queue.next_runnable() {
            Some(runnable) => self.retry(runnable, None, turn, out),
            None => self.next(),
        }
    }

    /// Executes a request once. If it has to wait, `out` may contain partial output.
    fn execute(
        &mut self,
        request: BorrowedRequest<'_>,
        state: &mut RequestState,
        turn: &mut ConnectionTurn<'_>,
        out: &mut Vec<u8>,
    ) -> ExecutionOutcome {
        let mut few: [&[u8]; 8] = [&[]; 8];
        let many: Vec<&[u8]>;
        let args = match few.get_mut(..request.len()) {
            Some(few) => {
                few.iter_mut().zip(request.iter()).for_each(|(place, argument)| *place = argument);
                &*few
            }
            None => {
                many = request.iter().collect();
                &many
            }
        };
        let (protocol, before) = (self.session.status.protocol, out.len());
        let command = match Command::of(args[0], args.get(1).copied()) {
            Ok(command) => command,
            Err(_) if http::is_request(args[0]) => {
                http::refuse(&mut self.session, turn);
                return ExecutionOutcome::Replied;
            }
            Err(unknown) => {
                let text = match admission::lacks_password(&self.session, turn.backend) {
                    true => admission::NO_PASSWORD.to_owned(),
                    false => unknown.text(args),
                };
                ReplyWriter::new(protocol, out).error(text);
                turn.backend.counts.error(&out[before + 1..]);
                return ExecutionOutcome::Replied;
            }
        };
        turn.begin(command);
        turn.backend.set_accesses(command.is_access(self.session.status.no_touch));
        self.session.status.command = Some(command.number() as u16);
        let admitted = admission::admit(command, args.len(), state, &self.session, turn);
        let mut call = Call {
            args,
            answer: state.answer.as_ref(),
            transaction: state.transaction.as_ref(),
            past: state.past,
            scan: &mut state.scan,
            stream_ids: &mut state.stream_ids,
            orders_built: &mut state.orders_built,
            backend: turn.backend,
            session: &mut self.session,
            reply: ReplyWriter::new(protocol, out),
            now: turn.now,
            wall: turn.wall,
        };
        let is_admitted = admitted.is_ok();
        let done = admitted.and_then(|()| run(command, &mut call));
        let outcome = match done.and_then(|()| not_executed::check_length(out)) {
            Ok(()) => ExecutionOutcome::Replied,
            Err(next) => {
                out.truncate(before);
                self.not_executed(next, command, args, turn, out)
            }
        };
        if let ExecutionOutcome::Replied = outcome {
            let attempt = AnsweredCommand { command, args, is_admitted };
            attempt.count(&out[before..], &self.session, turn);
            self.end_watch(command);
        }
        outcome
    }

    /// Ends the watch of keys after an answer to `EXEC`, whatever it is. A transaction that is
    /// restarted still needs them.
    fn end_watch(&mut self, answered: &Command) {
        if answered.has(flag::RUNS_TRANSACTION) {
            self.session.watched.clear();
        }
    }
}

/// Executes an admitted command, whose keys must be in one slot.
fn run(command: &Command, call: &mut Call<'_>) -> Done {
    match crosses_slots(command, call) {
        true => Err(NotExecuted::Reject(CROSS_SLOT)),
        false => (command.handler)(call),
    }
}
