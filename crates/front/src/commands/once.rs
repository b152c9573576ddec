//! Exactly-once requests: `BALLAST.ONCE` and `BALLAST.LEASE`.
//!
//! A wrapped command runs on copies of its records, as in a transaction. Its changes and a record of
//! its reply are then written in one atomic step. A repetition finds that record, and replies the
//! same. Design: `docs/design/exactly-once.md`.

use super::command::flag::{BLOCKING, DENYOOM, NO_MULTI, WRITE};
use super::command::{Family, Keys, command};
use super::transactions::{is_interrupted, run_on_copies};
use super::{Call, Cause, Command, Done, NOT_INSIDE, NotExecuted, Refusal, refused};
use super::{parse_unsigned, uppercase_is};
use crate::core::data::{Changes, Key, Record};
use crate::core::staged::TransactionRecords;
use node::{CompletionRecord, FiledUnder, OnceDecision, OnceRequest, REPLY_BYTES_MAX, floors_key};
use resp::ReplyWriter;
use smallvec::SmallVec;
use std::collections::HashSet;
use types::limits::COMPLETION_BYTES_MAX;
use types::{LeaseId, TableId, Version};
use wire::control::{Answer, Ask, LeaseGrant};

pub(super) static FAMILY: Family = Family {
    group: "ballast",
    category: None,
    commands: &[
        command("ballast.lease", -1, NO_MULTI, Keys::None, lease),
        command("ballast.once", -6, WRITE | DENYOOM | NO_MULTI, WRAPPED, once),
    ],
};

/// Position of the wrapped command.
const INNER: usize = 4;
const WRAPPED: Keys = Keys::Wrapped { from: INNER as u8 };

/// The value of a completion record. Most have a few replies.
type FewBytes = SmallVec<[u8; 256]>;

/// Most attempts of a command in one turn.
const TRIES: usize = 8;

const ENDED: Refusal =
    Refusal::because("LEASEENDED The lease has ended. Take a new one with BALLAST.LEASE");
const ACKNOWLEDGED: Refusal = Refusal::because(
    "ACKNOWLEDGED The sequence number is below the first incomplete one of this client",
);
const DAMAGED: Refusal = Refusal::because("ERR the completion records of this key are damaged");
const NOT_WRAPPED: Refusal =
    Refusal::because("ERR only commands that change the keys they name can be executed once");
const WAITS: Refusal = Refusal::because("ERR commands that wait cannot be executed once");
const LONG_REPLY: Refusal =
    Refusal::because("ERR the reply is too long to be recorded, so the command was not executed");
const TOO_MANY: Refusal = Refusal::because(
    "ERR too many replies for this key are not acknowledged, so the command was not executed",
);

/// `BALLAST.LEASE [RENEW lease]`: grants or renews a lease. Replies with its number and the
/// milliseconds for which it lasts at least.
fn lease(call: &mut Call<'_>) -> Done {
    let renewed = match &call.args[1..] {
        [] => None,
        [word, number] if uppercase_is(word, b"RENEW") => Some(LeaseId(parse_number(number)?)),
        _ => return Err(Refusal::Syntax.into()),
    };
    match call.answer {
        None => Err(call.backend.ask(Ask::Lease { renewed })),
        Some(Answer::Lease(Some(LeaseGrant { lease, term }))) => {
            call.reply.array(2);
            call.reply.integer(i64::try_from(lease.0).unwrap_or(i64::MAX));
            call.reply.integer(i64::from(*term));
            Ok(())
        }
        Some(Answer::Lease(None)) => Err(ENDED.into()),
        Some(Answer::Refused(reason)) => Err(refused(format!("ERR {reason}"))),
        Some(_) => Err(refused("ERR the coordinator gave another answer")),
    }
}

/// `BALLAST.ONCE lease sequence first-incomplete command [argument ...]`.
fn once(call: &mut Call<'_>) -> Done {
    let [_, lease, sequence, first, name, ..] = call.args else {
        return Err(Refusal::Arity.into());
    };
    let request = OnceRequest {
        lease: LeaseId(parse_number(lease)?),
        sequence: parse_number(sequence)?,
        first_incomplete: parse_number(first)?,
    };
    let args = &call.args[INNER..];
    let command = Command::of(name, args.get(1).copied());
    let command = command.map_err(|unknown| refused(unknown.text(args)))?;
    if !command.takes(args.len()) {
        return Err(refused(Refusal::Arity.text(command.name).into_owned()));
    }
    if command.has(BLOCKING) {
        return Err(WAITS.into());
    }
    if !command.may_be_wrapped() {
        return Err(NOT_WRAPPED.into());
    }
    let keys = distinct_keys(call, command, args);
    let Some(first_key) = keys.first() else { return Err(NOT_WRAPPED.into()) };
    let place = FiledUnder { hash: first_key.hash, lease: request.lease };
    let wrapped = WrappedCommand { request, place, command, args, keys: &keys };
    for _ in 0..TRIES {
        if wrapped.attempt(call)? {
            return Ok(());
        }
    }
    Err(NotExecuted::Retry(Cause::Turn))
}

/// Parses a positive number.
fn parse_number(word: &[u8]) -> Result<u64, Refusal> {
    let number = parse_unsigned(word).filter(|number| (1..=i64::MAX as u64).contains(number));
    number.ok_or(Refusal::NotAnInteger)
}

/// Returns the keys that a command names, each once.
fn distinct_keys<'k>(
    call: &Call<'_>,
    command: &Command,
    args: &[&'k [u8]],
) -> SmallVec<[Key<'k>; 2]> {
    let mut keys = SmallVec::new();
    let mut named = HashSet::new();
    for at in command.key_positions(args.len(), |at| args.get(at).copied()) {
        let key = args[at];
        // Most commands have one key, which needs no set.
        let is_new = match keys.first() {
            None => true,
            Some(Key { bytes, .. }) => *bytes != key && named.insert(key),
        };
        if is_new {
            keys.push(call.backend.key(key));
        }
    }
    keys
}

/// A command that is executed once.
struct WrappedCommand<'w> {
    request: OnceRequest,
    /// Place of its completion record.
    place: FiledUnder,
    command: &'static Command,
    args: &'w [&'w [u8]],
    /// The keys that it names, each once.
    keys: &'w [Key<'w>],
}

/// The state of a completion record before the execution of a request that is not in it.
struct RecordBefore {
    /// Version of the record; `None` if there is none.
    version: Option<Version>,
    /// Bytes of the record without completed requests, and without the new reply.
    bytes: usize,
}

impl WrappedCommand<'_> {
    /// Executes the command, or repeats its reply. Returns false if a record was changed
    /// concurrently, or an order was built for the next attempt. In that case the attempt has no effect.
    fn attempt(&self, call: &mut Call<'_>) -> Result<bool, NotExecuted> {
        let before = match self.look_up(call)? {
            Ok(before) => before,
            Err(reply) => {
                call.reply.written(&reply);
                return Ok(true);
            }
        };
        let (table, clock) = (call.session.status.table, call.clock_of(self.keys));
        let staged = TransactionRecords::read(call.backend, table, clock, self.keys, |_| true)?;
        call.backend.staged = staged.map(|staged| staged.of_attempt(*call.orders_built));
        let ran = self.run(call);
        let Some(staged) = call.backend.staged.take() else {
            unreachable!("a command does not end the transaction around it")
        };
        if staged.build_lacking_order(call.backend, call.orders_built)? {
            return Ok(false);
        }
        let replies = ran?;
        if replies.len() > REPLY_BYTES_MAX {
            return Err(LONG_REPLY.into());
        }
        if before.bytes + replies.len() > COMPLETION_BYTES_MAX {
            return Err(TOO_MANY.into());
        }
        let done = self.take_effect(call, &before, &staged, replies)?;
        staged.end(call.backend);
        Ok(done)
    }

    /// Looks up the completion record. Returns the reply of an execution before, if there was one.
    fn look_up(&self, call: &mut Call<'_>) -> Result<Result<RecordBefore, Vec<u8>>, NotExecuted> {
        let horizon = call.backend.node().lease_horizon();
        let (record, floors) = (self.place.key(), floors_key(self.place.hash.slot()));
        let [record, floors] = [call.backend.key(&record), call.backend.key(&floors)];
        let request = self.request;
        // The order matters: a record is dropped in one step with the floors that cover it. So if it
        // was dropped before this read, the floors read next show it; if it is dropped later, its
        // version is not the same when the changes are made.
        let completion = call.backend.peek_one(TableId::COMPLETIONS, record, |record| {
            let copy = |record: Record<'_>| (record.version, FewBytes::from(record.value.bytes));
            record.map(copy)
        })?;
        let decided = call.backend.peek_one(TableId::COMPLETIONS, floors, |floors| {
            let completed = completion.as_ref().map(|(_, value)| &value[..]);
            match request.decide(completed, floors.map(|floors| floors.value.bytes), horizon) {
                OnceDecision::Repeat(reply) => Ok(Err(reply.to_vec())),
                OnceDecision::Execute(record) => Ok(Ok(RecordBefore {
                    version: completion.as_ref().map(|(version, _)| *version),
                    bytes: record.bytes_with(request.first_incomplete, 0),
                })),
                OnceDecision::Acknowledged => Err(ACKNOWLEDGED),
                OnceDecision::LeaseEnded => Err(ENDED),
                OnceDecision::Damaged => Err(DAMAGED),
            }
        })?;
        Ok(decided?)
    }

    /// Runs the command on the staged records, and returns its reply. An error of the command is a
    /// reply as well: it is recorded, so that a later copy does not execute what this one refused.
    fn run(&self, call: &mut Call<'_>) -> Result<Vec<u8>, NotExecuted> {
        let protocol = call.session.status.protocol;
        let mut replies = Vec::new();
        match run_on_copies(call, self.command, self.args, &mut replies) {
            Ok(()) => {}
            Err(NotExecuted::Reject(refusal)) => {
                let text = refusal.text(self.command.name);
                ReplyWriter::new(protocol, &mut replies).error(text.as_bytes());
            }
            Err(next) if is_interrupted(call) => return Err(next),
            // Other work on copies never has to wait.
            Err(NotExecuted::Retry(_) | NotExecuted::Redirect) => return Err(NOT_INSIDE.into()),
        }
        Ok(replies)
    }

    /// Writes the changes and the completion record, if no record has changed meanwhile, and
    /// replies.
    fn take_effect(
        &self,
        call: &mut Call<'_>,
        before: &RecordBefore,
        staged: &TransactionRecords,
        replies: Vec<u8>,
    ) -> Result<bool, NotExecuted> {
        let record_key = self.place.key();
        let completion = call.backend.key(&record_key);
        let OnceRequest { sequence, first_incomplete, .. } = self.request;
        let is_current = |records: &[Option<Record<'_>>]| {
            let Some((record, records)) = records.split_last() else { return false };
            let is_same = record.map(|record| record.version) == before.version;
            is_same && staged.is_current(records)
        };
        let mut reply = Vec::new();
        let apply = |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| {
            let is_current = is_current(records);
            if is_current {
                staged.apply(changes);
            }
            is_current
        };
        let completed =
            |record: Option<&[u8]>, versions: &[(usize, Version)], value: &mut Vec<u8>| {
                let version_of = |place: usize| {
                    let of_key = versions.iter().find(|(written, _)| *written == place);
                    of_key.map(|(_, version)| *version)
                };
                reply = staged.with_versions(replies, version_of);
                let record = record.and_then(CompletionRecord::parse);
                let record = record.unwrap_or(CompletionRecord::EMPTY);
                record.write_with(first_incomplete, sequence, &reply, value);
            };
        let done = staged.commit_with_orders(call.backend, |backend| {
            let needs = |place| staged.needs(place);
            backend.update_recorded(&staged.keys(), needs, completion, apply, completed)
        })?;
        if done {
            call.backend.counts.found(staged.found());
            call.reply.written(&reply);
        }
        Ok(done)
    }
}
