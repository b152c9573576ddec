//! Transactions: commands that are collected, and take effect at one moment or not at all.
//!
//! The front end collects them in a [`QueuedTransaction`]. `EXEC` runs them on copies of their
//! records (see [`crate::core::staged`]). In a cluster, all keys of a transaction are in one slot.

use super::command::flag::{
    ALLOW_BUSY, ALONE, ANYTIME, CHANGES_TABLE, DATA, ENDS_MULTI, FAST, NO_MULTI, NOSCRIPT,
    RUNS_TRANSACTION, WRITE,
};
use super::command::{ALL, Family, Keys, command};
use super::{
    CROSS_SLOT, Call, Cause, Command, Done, LONG_REPLY, NOT_INSIDE, NotExecuted, Past,
    QueuedTransaction, Refusal, Watched, refused,
};
use crate::core::backend::Backend;
use crate::core::data::{Changes, Key, Record};
use crate::core::elements::TOO_LARGE;
use crate::core::staged::TransactionRecords;
use crate::operators::executions::{Execution, is_slow_possible};
use resp::{BorrowedRequest, OUTPUT_BYTES_MAX, OwnedRequest, ReplyWriter};
use std::collections::HashSet;
use std::time::Duration;
use types::{TableId, Version};

pub(super) static FAMILY: Family = Family {
    group: "transactions",
    category: Some("@transaction"),
    commands: &[
        command("discard", 1, CONTROL | FAST | ENDS_MULTI, Keys::Unnamed, discard),
        command("exec", 1, EXEC, Keys::Unnamed, exec),
        command("multi", 1, CONTROL | FAST | NO_MULTI, Keys::None, multi),
        command("unwatch", 1, CONTROL | FAST, Keys::Unnamed, unwatch),
        command("watch", -2, CONTROL | FAST | NO_MULTI | DATA, ALL, watch),
    ],
};

const CONTROL: u32 = NOSCRIPT | ANYTIME | ALLOW_BUSY;
const EXEC: u32 = NOSCRIPT | ANYTIME | ENDS_MULTI | DATA | RUNS_TRANSACTION;

/// Most attempts of a transaction in one turn.
const TRIES: usize = 8;

/// Adds a command to a transaction, or returns why it is not allowed, which makes the transaction
/// fail.
pub(crate) fn queue_command(
    transaction: &mut QueuedTransaction,
    command: Result<&Command, String>,
    request: BorrowedRequest<'_>,
    backend: &Backend,
) -> Result<(), String> {
    let writes = command.as_ref().is_ok_and(|command| command.has(WRITE));
    let checked = command.and_then(|command| check(transaction, command, request, backend));
    match &checked {
        Ok(()) => transaction.push(request, writes),
        Err(_) => transaction.fail(),
    }
    checked
}

fn check(
    transaction: &mut QueuedTransaction,
    command: &Command,
    request: BorrowedRequest<'_>,
    backend: &Backend,
) -> Result<(), String> {
    let node = backend.node();
    if !command.takes(request.len()) {
        return Err(Refusal::Arity.text(command.name).into_owned());
    }
    // Copies contain only named keys of one database, so commands that need others are refused.
    let looks_around =
        command.keys == Keys::Unnamed && !command.has(ALONE) && !command.has(ANYTIME);
    if command.has(NO_MULTI) || looks_around || command.has(CHANGES_TABLE) {
        let name = command.name;
        return Err(format!("ERR Command '{name}' not allowed inside a transaction"));
    }
    if transaction.is_full() {
        return Err("ERR the transaction is too large".into());
    }
    if !node.is_cluster() {
        return Ok(());
    }
    for key in keys_named(command, request) {
        if !transaction.is_in_slot(types::slot_of(key)) {
            return Err(CROSS_SLOT.text(command.name).into_owned());
        }
    }
    // If its first key is not here, redirect the client with the whole transaction. A map that names
    // another owner may be older than the tablets: an accepted flip takes effect before.
    let is_elsewhere = |key: &&[u8]| {
        let owned = backend.check_owned(TableId(0), backend.key(key).hash);
        matches!(owned, Err(NotExecuted::Redirect))
    };
    let key = keys_named(command, request).next().filter(is_elsewhere);
    match key.and_then(|key| node.redirection(key)) {
        Some(moved) => Err(moved),
        None => Ok(()),
    }
}

fn first_key(transaction: &QueuedTransaction) -> Option<&[u8]> {
    let requests = transaction.requests().iter().map(OwnedRequest::request);
    requests
        .flat_map(|request| {
            let command = Command::of(request.name(), request.get(1)).ok();
            command.and_then(|command| keys_named(command, request).next())
        })
        .next()
}

fn keys_named<'r>(
    command: &Command,
    request: BorrowedRequest<'r>,
) -> impl Iterator<Item = &'r [u8]> + use<'r> {
    let positions = command.key_positions(request.len(), |at| request.get(at));
    positions.filter_map(move |at| request.get(at))
}

fn multi(call: &mut Call<'_>) -> Done {
    call.session.collecting = Some(QueuedTransaction::default());
    call.ok()
}

fn discard(call: &mut Call<'_>) -> Done {
    if call.transaction.is_none() {
        return Err(refused("ERR DISCARD without MULTI"));
    }
    call.session.watched.clear();
    call.ok()
}

fn unwatch(call: &mut Call<'_>) -> Done {
    call.session.watched.clear();
    call.ok()
}

/// `WATCH key [key ...]`.
fn watch(call: &mut Call<'_>) -> Done {
    let keys = call.keys(1..call.args.len());
    let table = call.session.status.table;
    let versions: Vec<Option<Version>> =
        call.backend.peek(table, &keys, |records| records.iter().map(version).collect())?;
    for (key, version) in keys.iter().zip(versions) {
        // The first `WATCH` of a key counts: it may have changed before the second.
        call.session.watched.entry((table, key.bytes.into())).or_insert(version);
    }
    call.ok()
}

fn version(record: &Option<Record<'_>>) -> Option<Version> {
    record.map(|record| record.version)
}

fn exec(call: &mut Call<'_>) -> Done {
    let transaction = call.transaction.ok_or_else(|| refused("ERR EXEC without MULTI"))?;
    match run(call, transaction) {
        Err(NotExecuted::Redirect) => {
            let watched = call.session.watched.keys().map(|(_, key)| &**key);
            let mut keys = watched.chain(first_key(transaction));
            match keys.find_map(|key| call.backend.node().redirection(key)) {
                Some(moved) => Err(refused(moved)),
                None => Err(NotExecuted::Retry(Cause::Held)),
            }
        }
        outcome => outcome,
    }
}

fn run(call: &mut Call<'_>, transaction: &QueuedTransaction) -> Done {
    if transaction.is_broken() {
        return Err(refused("EXECABORT Transaction discarded because of previous errors."));
    }
    let table = call.session.status.table;
    let watched = std::mem::take(&mut call.session.watched);
    let outcome = match has_changed(call, &watched, table) {
        Ok(false) => attempt_often(call, transaction, &watched),
        Ok(true) => {
            call.reply.null_array();
            Ok(())
        }
        Err(next) => Err(next),
    };
    call.session.watched = watched;
    outcome
}

/// Returns whether a watched key has changed in another table than the transaction's.
fn has_changed(
    call: &mut Call<'_>,
    watched: &Watched,
    table: TableId,
) -> Result<bool, NotExecuted> {
    for ((its, key), before) in watched.iter().filter(|((its, _), _)| *its != table) {
        let now = call.backend.peek_one(*its, call.backend.key(key), |record| version(&record))?;
        if now != *before {
            return Ok(true);
        }
    }
    Ok(false)
}

fn attempt_often(call: &mut Call<'_>, transaction: &QueuedTransaction, watched: &Watched) -> Done {
    let table = call.session.status.table;
    let here = watched.iter().filter(|((its, _), _)| *its == table);
    let (watched, versions): (Vec<&[u8]>, Vec<_>) =
        here.map(|((_, key), version)| (&**key, *version)).unzip();
    let keys = keys_of(call, transaction, watched);
    for _ in 0..TRIES {
        if attempt(call, transaction, &keys, &versions)? {
            return Ok(());
        }
    }
    Err(NotExecuted::Retry(Cause::Turn))
}

/// Returns the watched keys, followed by those that commands name, each once.
fn keys_of<'k>(
    call: &Call<'_>,
    transaction: &'k QueuedTransaction,
    watched: Vec<&'k [u8]>,
) -> Vec<Key<'k>> {
    let requests = transaction.requests().iter().map(OwnedRequest::request);
    let named = requests.flat_map(|request| {
        let command = Command::of(request.name(), request.get(1)).ok();
        command.into_iter().flat_map(move |command| keys_named(command, request))
    });
    each_once(call, watched.into_iter().chain(named))
}

/// Returns these keys, each once.
pub(super) fn each_once<'k>(
    call: &Call<'_>,
    names: impl Iterator<Item = &'k [u8]>,
) -> Vec<Key<'k>> {
    let mut seen = HashSet::new();
    names.filter(|bytes| seen.insert(*bytes)).map(|bytes| call.backend.key(bytes)).collect()
}

/// Runs all commands once. The first keys are watched and must have these versions. Returns false
/// if a record was changed concurrently, or an order was built for the next attempt. In that case the
/// attempt has no effect.
fn attempt(
    call: &mut Call<'_>,
    transaction: &QueuedTransaction,
    keys: &[Key<'_>],
    watched: &[Option<Version>],
) -> Result<bool, NotExecuted> {
    let table = call.session.status.table;
    let clock = call.clock_of(keys);
    let is_as_watched = |records: &[Option<Record<'_>>]| {
        records.iter().map(version).take(watched.len()).eq(watched.iter().copied())
    };
    let staged = TransactionRecords::read(call.backend, table, clock, keys, is_as_watched)?;
    let Some(staged) = staged else {
        call.reply.null_array();
        return Ok(true);
    };
    call.backend.staged = Some(staged.of_attempt(*call.orders_built));
    let ran = run_all(call, transaction);
    let staged = call.backend.staged.take();
    if let Some(staged) = &staged
        && staged.build_lacking_order(call.backend, call.orders_built)?
    {
        return Ok(false);
    }
    let (replies, executed) = ran?;
    let Some(staged) = staged else { unreachable!("no command ends the transaction around it") };
    let staged = match commit(call.backend, staged) {
        Ok(Some(staged)) => staged,
        Ok(None) => return Ok(false),
        Err(NotExecuted::Reject(Refusal::TooLarge)) => {
            return Err(refused("ERR the transaction is too large"));
        }
        Err(next) => return Err(next),
    };
    executed.iter().for_each(|one| one.count(call, transaction, &replies));
    let replies = staged.with_versions(replies, |at| call.backend.written_version(at));
    call.reply.written(&replies);
    staged.end(call.backend);
    Ok(true)
}

/// Makes the changes of the commands that ran on these copies, and counts what they have found.
/// Returns the copies; `None`: a record was changed concurrently, and nothing has been done.
fn commit(
    backend: &mut Backend,
    staged: Box<TransactionRecords>,
) -> Result<Option<Box<TransactionRecords>>, NotExecuted> {
    let is_made = if staged.is_changed() {
        let needs = |place| staged.needs(place);
        let apply = |records: &[Option<Record<'_>>], changes: &mut Changes<'_>| {
            let is_current = staged.is_current(records);
            if is_current {
                staged.apply(changes);
            }
            is_current
        };
        let update = staged.commit_with_orders(backend, |backend| {
            backend.update_tables(&staged.keys(), needs, apply)
        });
        update?
    } else {
        // Later copies may be newer than those of the named keys.
        staged.are_of_one_moment(backend)?
    };
    if is_made {
        backend.counts.found(staged.found());
    }
    Ok(is_made.then_some(staged))
}

/// Runs the command of `call` on copies of its records, like a transaction of one command. It may read
/// records that it does not name.
pub(super) fn run_alone(call: &mut Call<'_>) -> Done {
    assert!(call.backend.staged.is_none(), "no transaction is within another one");
    let args = call.args;
    let Ok(command) = Command::of(args[0], args.get(1).copied()) else {
        unreachable!("the command is running")
    };
    let named = command.key_positions(args.len(), |at| args.get(at).copied());
    let keys = each_once(call, named.map(|at| args[at]));
    let table = call.session.status.table;
    for _ in 0..TRIES {
        let clock = call.clock_of(&keys);
        call.backend.staged =
            TransactionRecords::read(call.backend, table, clock, &keys, |_| true)?;
        let mut replies = Vec::new();
        let ran = run_on_copies(call, command, args, &mut replies);
        let Some(staged) = call.backend.staged.take() else {
            unreachable!("no command ends the transaction around it")
        };
        match ran {
            Err(NotExecuted::Reject(_)) if !staged.are_of_one_moment(call.backend)? => continue,
            ran => ran?,
        }
        match commit(call.backend, staged) {
            Ok(None) => {}
            Ok(Some(staged)) => {
                call.reply.written(&replies);
                staged.end(call.backend);
                return Ok(());
            }
            Err(NotExecuted::Reject(Refusal::TooLarge)) => return Err(TOO_LARGE.into()),
            Err(next) => return Err(next),
        }
    }
    Err(NotExecuted::Retry(Cause::Turn))
}

/// An executed command of a transaction. It is counted only if the transaction takes effect.
struct Executed {
    command: &'static Command,
    /// Position of the command in the transaction.
    place: usize,
    spent: Duration,
    /// Offset of the command's reply.
    reply: usize,
}

impl Executed {
    fn count(&self, call: &Call<'_>, transaction: &QueuedTransaction, replies: &[u8]) {
        let counts = call.backend.counts.of_command(self.command.number());
        counts.called(self.spent);
        if replies.get(self.reply) == Some(&b'-') {
            counts.failed.add(1);
            call.backend.counts.error(&replies[self.reply + 1..]);
        }
        let node = call.backend.node();
        let monitors = &call.backend.operators.monitors;
        let is_watched = monitors.is_watched();
        let is_slow = is_slow_possible(self.spent, &call.backend.configuration.operators);
        if is_watched || is_slow {
            let args: Vec<&[u8]> = transaction.requests()[self.place].request().iter().collect();
            let Executed { command, spent, .. } = *self;
            let one = Execution { command, args: &args, session: call.session, wall: call.wall };
            if is_watched {
                one.show(node, monitors);
            }
            if is_slow {
                one.record_slow(spent, call.backend);
            }
        }
    }
}

/// Runs one command with the data and the connection of `call`, whose copies it works on. If it is
/// not executed, nothing is added to `replies`.
pub(super) fn run_on_copies(
    call: &mut Call<'_>,
    command: &Command,
    args: &[&[u8]],
    replies: &mut Vec<u8>,
) -> Done {
    let (protocol, before) = (call.session.status.protocol, replies.len());
    let mut one = Call {
        args,
        answer: None,
        transaction: None,
        past: Past::default(),
        scan: &mut None,
        stream_ids: &mut Vec::new(),
        orders_built: &mut 0,
        backend: call.backend,
        session: call.session,
        reply: ReplyWriter::new(protocol, replies),
        now: call.now,
        wall: call.wall,
    };
    let done = (command.handler)(&mut one);
    if done.is_err() {
        replies.truncate(before);
    }
    done
}

/// Runs all commands on the engine's copies, and returns their replies. Fails if the transaction must
/// wait.
fn run_all(
    call: &mut Call<'_>,
    transaction: &QueuedTransaction,
) -> Result<(Vec<u8>, Vec<Executed>), NotExecuted> {
    let mut replies = Vec::new();
    let mut executed = Vec::with_capacity(transaction.requests().len());
    let mut begun = call.backend.time_within_turn(call.now);
    ReplyWriter::new(call.session.status.protocol, &mut replies)
        .array(transaction.requests().len());
    for (place, request) in transaction.requests().iter().enumerate() {
        let request = request.request();
        let args: Vec<&[u8]> = request.iter().collect();
        // Unknown commands were refused when they were queued.
        let Ok(command) = Command::of(args[0], args.get(1).copied()) else { continue };
        let before = replies.len();
        let protocol = call.session.status.protocol;
        call.backend.set_accesses(command.is_access(call.session.status.no_touch));
        if let Err(next) = run_on_copies(call, command, &args, &mut replies) {
            let refusal = match next {
                NotExecuted::Reject(refusal) => refusal,
                next if is_interrupted(call) => return Err(next),
                // Other work on copies never has to wait.
                NotExecuted::Retry(_) | NotExecuted::Redirect => NOT_INSIDE,
            };
            ReplyWriter::new(protocol, &mut replies).error(refusal.text(command.name).as_bytes());
        }
        if replies.len() >= OUTPUT_BYTES_MAX {
            return Err(refused(LONG_REPLY));
        }
        let end = call.backend.time_within_turn(call.now);
        executed.push(Executed { command, place, spent: end.since(begun), reply: before });
        begun = end;
    }
    // The accesses were noted when the commands worked on the copies.
    call.backend.set_accesses(false);
    Ok((replies, executed))
}

/// Returns whether the command that runs on copies needs a page that could not be copied, or an order.
pub(super) fn is_interrupted(call: &Call<'_>) -> bool {
    call.backend.staged.as_ref().is_some_and(|staged| staged.is_interrupted())
}
