//! One client's connection: parses, executes, parks, answers in order.

use super::queue::{Queue, Scope, Waiting};
use super::waits::{Cause, Ticket, Waits};
use crate::commands::{
    Call, Command, Keys, Refusal, Undone, Unknown, unknown_command, unknown_subcommand,
};
use crate::engine::Engine;
use crate::session::Session;
use resp::{ReplyWriter, Request, RequestLimits, RequestParser};
use runtime::{CLIENT_BACKLOG_MAX, ConnectionId};
use std::borrow::Cow;
use store::Stall;
use types::limits::VALUE_BYTES_MAX;
use types::{Instant, UnixMillis};
use wire::control::Answer;

/// What a connection may send: an argument larger than any value is refused before it is read.
const LIMITS: RequestLimits = RequestLimits {
    bulk_bytes_max: VALUE_BYTES_MAX,
    arguments_max: 1 << 20,
    line_bytes_max: 64 << 10,
    request_bytes_max: 64 << 20,
};

/// What every execution of a turn shares.
pub(crate) struct Turn<'t> {
    pub(crate) engine: &'t mut Engine,
    pub(crate) waits: &'t mut Waits,
    pub(crate) now: Instant,
    pub(crate) wall: UnixMillis,
}

/// What to do with the connection after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes of the input that are dealt with.
    pub(crate) consumed: usize,
    /// Requests in them.
    pub(crate) requests: u64,
    pub(crate) next: Next,
}

/// How a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// As before.
    Read,
    /// Too much is unfinished: no input until some of it is answered.
    Pause,
    /// Send what there is and close.
    Close,
}

/// See the module's text.
pub(crate) struct Client {
    parser: RequestParser,
    conversation: Conversation,
}

/// A client without its parser, from which the request at hand is borrowed.
struct Conversation {
    id: ConnectionId,
    session: Session,
    queue: Queue,
}

/// How an execution went.
enum Outcome {
    Replied,
    Wait(Cause),
}

impl Client {
    /// The client on this connection, called by this number.
    pub(crate) fn new(id: ConnectionId, number: u64, peer: String) -> Client {
        let session = Session::new(number, peer);
        Client {
            parser: RequestParser::new(LIMITS),
            conversation: Conversation { id, session, queue: Queue::default() },
        }
    }

    /// Deals with the complete requests at the front of `input`. Those of a client that does not
    /// take its answers stay there: they are given again once enough of `out` has left.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Received {
        let conversation = &mut self.conversation;
        let mut rest = input;
        let mut requests = 0;
        let next = loop {
            if conversation.queue.is_full() {
                break Next::Pause;
            }
            if out.len() > CLIENT_BACKLOG_MAX {
                break Next::Read;
            }
            match self.parser.next(&mut rest) {
                Ok(None) => break Next::Read,
                Ok(Some(request)) => {
                    requests += 1;
                    conversation.request(request, turn, out);
                }
                Err(error) => conversation.refuse(&error.to_string(), out),
            }
            if conversation.session.closing {
                break conversation.next();
            }
        };
        Received { consumed: input.len() - rest.len(), requests, next }
    }

    /// Tries a waiting request again, with the coordinator's answer if that is what came, and then
    /// everything that waited for its turn behind it.
    pub(crate) fn retry(
        &mut self,
        number: u64,
        answer: Option<Answer>,
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Next {
        self.conversation.retry(number, answer, turn, out)
    }

    /// The client will send nothing more: what it has sent is still answered.
    pub(crate) fn end(&mut self) -> Next {
        self.conversation.session.closing = true;
        self.conversation.next()
    }

    /// Gives up a request that has waited too long.
    pub(crate) fn give_up(&mut self, number: u64, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> Next {
        self.conversation.give_up(number, turn, out)
    }
}

impl Conversation {
    /// How the connection goes on after what has been done.
    fn next(&self) -> Next {
        match (self.session.closing, self.queue.is_empty()) {
            (true, true) => Next::Close,
            (true, false) => Next::Pause,
            (false, _) if self.queue.is_full() => Next::Pause,
            (false, _) => Next::Read,
        }
    }

    /// The stream makes no sense from here on: the error is the last reply.
    fn refuse(&mut self, text: &str, out: &mut Vec<u8>) {
        self.session.closing = true;
        let mut reply = Vec::new();
        ReplyWriter::new(self.session.protocol, &mut reply).error(format!("ERR {text}"));
        match self.queue.is_empty() {
            true => out.extend_from_slice(&reply),
            false => self.queue.push_done(reply),
        }
    }

    fn request(&mut self, request: Request<'_>, turn: &mut Turn<'_>, out: &mut Vec<u8>) {
        if self.queue.is_empty() {
            let before = out.len();
            if let Outcome::Wait(cause) = self.execute(request, None, turn, out) {
                out.truncate(before);
                self.park(request, Some(cause), turn);
            }
            return;
        }
        let scope = scope_of(request, &self.session, turn.engine);
        if !self.queue.may_overtake(&scope) {
            return self.park(request, None, turn);
        }
        let mut reply = Vec::new();
        match self.execute(request, None, turn, &mut reply) {
            Outcome::Replied => self.queue.push_done(reply),
            Outcome::Wait(cause) => self.park(request, Some(cause), turn),
        }
    }

    fn park(&mut self, request: Request<'_>, cause: Option<Cause>, turn: &mut Turn<'_>) {
        let number = self.queue.push_waiting(Waiting {
            request: request.to_owned(),
            scope: scope_of(request, &self.session, turn.engine),
            table: self.session.table,
            protocol: self.session.protocol,
            cause: cause.clone(),
            answer: None,
        });
        let ticket = Ticket { connection: self.id, number };
        turn.waits.limit(ticket, turn.now);
        if let Some(cause) = cause {
            turn.waits.add(ticket, &cause);
        }
    }

    fn retry(
        &mut self,
        number: u64,
        answer: Option<Answer>,
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Next {
        let Some(waiting) = self.queue.waiting(number) else { return self.next() };
        if answer.is_some() {
            waiting.answer = answer;
        }
        let mut due = Some(number);
        while let Some(number) = due {
            self.execute_waiting(number, turn);
            self.queue.take_replies(out);
            due = self.queue.next_due(0);
        }
        self.next()
    }

    fn execute_waiting(&mut self, number: u64, turn: &mut Turn<'_>) {
        let Some(waiting) = self.queue.waiting(number) else { return };
        let request = waiting.request.clone();
        let answer = waiting.answer.clone();
        let current = (self.session.table, self.session.protocol);
        (self.session.table, self.session.protocol) = (waiting.table, waiting.protocol);
        let mut reply = Vec::new();
        let outcome = self.execute(request.request(), answer.as_ref(), turn, &mut reply);
        (self.session.table, self.session.protocol) = current;
        match outcome {
            Outcome::Replied => self.queue.finish(number, reply),
            Outcome::Wait(cause) => {
                turn.waits.add(Ticket { connection: self.id, number }, &cause);
                if let Some(waiting) = self.queue.waiting(number) {
                    waiting.cause = Some(cause);
                }
            }
        }
    }

    fn give_up(&mut self, number: u64, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> Next {
        let Some(waiting) = self.queue.waiting(number) else { return self.next() };
        let mut reply = Vec::new();
        ReplyWriter::new(waiting.protocol, &mut reply)
            .error("TRYAGAIN The data could not be reached in time, please try again");
        self.queue.finish(number, reply);
        self.queue.take_replies(out);
        match self.queue.next_due(0) {
            Some(due) => self.retry(due, None, turn, out),
            None => self.next(),
        }
    }

    /// Executes a request once. What it wrote before it had to wait is left in `out`.
    fn execute(
        &mut self,
        request: Request<'_>,
        answer: Option<&Answer>,
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
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
        let protocol = self.session.protocol;
        let before = out.len();
        let command = match Command::of(args[0], args.get(1).copied()) {
            Ok(command) => command,
            Err(unknown) => {
                ReplyWriter::new(protocol, out).error(match unknown {
                    Unknown::Command => unknown_command(args),
                    Unknown::Subcommand => unknown_subcommand(args),
                });
                return Outcome::Replied;
            }
        };
        let mut call = Call {
            args,
            answer,
            engine: turn.engine,
            session: &mut self.session,
            reply: ReplyWriter::new(protocol, out),
            now: turn.now,
            wall: turn.wall,
        };
        let done = match command.takes(args.len()) {
            false => Err(Refusal::Arity.into()),
            true if crosses_slots(command, &call) => Err(Undone::Refused(CROSS_SLOT)),
            true => (command.handler)(&mut call),
        };
        match done {
            Ok(()) => Outcome::Replied,
            Err(undone) => {
                out.truncate(before);
                self.undone(undone, command, args, turn, out)
            }
        }
    }

    /// Turns the reason why a command was not executed into a reply or a wait.
    fn undone(
        &mut self,
        undone: Undone,
        command: &Command,
        args: &[&[u8]],
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let mut reply = ReplyWriter::new(self.session.protocol, out);
        match undone {
            Undone::Refused(refusal) => {
                reply.error(refusal.text(command).as_ref());
                Outcome::Replied
            }
            Undone::Ask(ask) => match turn.engine.ask(ask) {
                Some(request) => Outcome::Wait(Cause::Answer(request)),
                None => {
                    reply.error("ERR the coordinator cannot be reached, please try again later");
                    Outcome::Replied
                }
            },
            Undone::Stall(Stall::OutOfMemory) => {
                reply.error("OOM command not allowed when used memory > 'maxmemory'.");
                Outcome::Replied
            }
            Undone::Stall(Stall::TooLarge) => {
                reply.error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
                Outcome::Replied
            }
            Undone::Stall(Stall::Contended) => Outcome::Wait(Cause::Turn),
            Undone::Stall(Stall::Held) => Outcome::Wait(Cause::Held),
            Undone::Stall(Stall::NotArrived { migration, from }) => {
                turn.engine.want_progress(migration, from);
                Outcome::Wait(Cause::Progress)
            }
            Undone::Stall(Stall::Missing(missing)) => {
                let table = self.session.table;
                match turn.engine.pull_early(turn.now, table, &missing) {
                    true => Outcome::Wait(Cause::Missing(table, missing.hashes)),
                    false => Outcome::Wait(Cause::Progress),
                }
            }
            Undone::Stall(Stall::NotOwned) => {
                let key = command.key_positions(args.len()).next().map(|at| args[at]);
                match key.and_then(|key| turn.engine.node().redirection(key)) {
                    Some(moved) => {
                        reply.error(moved);
                        Outcome::Replied
                    }
                    None => Outcome::Wait(Cause::Held),
                }
            }
        }
    }
}

const CROSS_SLOT: Refusal =
    Refusal::Because(Cow::Borrowed("CROSSSLOT Keys in request don't hash to the same slot"));

/// Whether a command on several keys names keys of several slots, on a server that is one of many.
fn crosses_slots(command: &Command, call: &Call<'_>) -> bool {
    match command.keys {
        Keys::None | Keys::Unnamed => false,
        Keys::At { first, last, .. } if i16::from(first) == i16::from(last) => false,
        Keys::At { .. } if !call.engine.node().is_cluster() => false,
        Keys::At { .. } => {
            let mut slots =
                command.key_positions(call.args.len()).map(|at| types::slot_of(call.args[at]));
            let first = slots.next();
            slots.any(|slot| Some(slot) != first)
        }
    }
}

/// What a request touches. A request that makes no sense touches nothing.
fn scope_of(request: Request<'_>, session: &Session, engine: &Engine) -> Scope {
    let Ok(command) = Command::of(request.name(), request.get(1)) else { return Scope::Nothing };
    match command.keys {
        Keys::None => Scope::Nothing,
        Keys::Unnamed => Scope::Everything,
        Keys::At { .. } => {
            let keys = command.key_positions(request.len()).filter_map(|at| request.get(at));
            Scope::Keys(session.table, keys.map(|key| engine.hash(key)).collect())
        }
    }
}
