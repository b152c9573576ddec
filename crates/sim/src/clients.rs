//! The clients: each has one operation at a time, follows redirections, and remembers what it saw.

use crate::history::{self, Action, Operation, Outcome, Verdict};
use crate::reactor::Request;
use std::collections::BTreeMap;
use types::{Instant, Slot};

/// Redirections of one operation before its servers are taken to point at each other. Each step
/// takes a round trip, and a range moves at most a few times meanwhile.
const HOPS_MAX: u32 = 30;

/// An operation that has not been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) request: Request,
    begun: u64,
    pub(crate) since: Instant,
    hops: u32,
    /// Where it was sent last.
    place: usize,
}

/// All clients of a run, and everything they saw.
#[derive(Debug)]
pub(crate) struct Clients {
    open: Vec<Option<Open>>,
    /// Where each client believes a slot to be.
    owners: Vec<BTreeMap<Slot, usize>>,
    /// By register.
    histories: Vec<Vec<Operation>>,
    /// When each register was lost with the server that held it.
    losses: Vec<Vec<u64>>,
    /// What the last read of each register saw, if it was answered.
    last_reads: Vec<Option<Option<u64>>>,
    /// Operations that were refused: not executed, and so part of no history.
    refused: usize,
    /// Beginnings and ends so far.
    moments: u64,
    /// The longest time that an operation took.
    pub(crate) longest: std::time::Duration,
}

impl Clients {
    pub(crate) fn new(clients: usize, registers: usize) -> Clients {
        Clients {
            open: vec![None; clients],
            owners: vec![BTreeMap::new(); clients],
            histories: vec![Vec::new(); registers],
            losses: vec![Vec::new(); registers],
            last_reads: vec![None; registers],
            refused: 0,
            moments: 0,
            longest: std::time::Duration::ZERO,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn operations(&self) -> usize {
        self.histories.iter().map(Vec::len).sum()
    }

    /// Whether the client waits for an answer.
    pub(crate) fn is_busy(&self, client: usize) -> bool {
        self.open[client].is_some()
    }

    /// Operations that have not been answered.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Open> {
        self.open.iter().flatten()
    }

    pub(crate) fn begin(&mut self, now: Instant, client: usize, register: usize, action: Action) {
        let begun = self.next_moment();
        let request = Request { client, register, action };
        let before =
            self.open[client].replace(Open { request, begun, since: now, hops: 0, place: 0 });
        assert!(before.is_none(), "a client has one operation at a time");
    }

    /// The operation was executed.
    pub(crate) fn end(&mut self, now: Instant, client: usize, outcome: Outcome) {
        self.close(now, client, Some(outcome));
    }

    /// Nobody will ever know whether the operation was executed, or when it will be.
    pub(crate) fn give_up(&mut self, now: Instant, client: usize) {
        self.close(now, client, None);
    }

    /// The operation was not executed, and never will be.
    pub(crate) fn refuse(&mut self, now: Instant, client: usize) {
        self.take(now, client);
        self.refused += 1;
    }

    fn close(&mut self, now: Instant, client: usize, outcome: Option<Outcome>) {
        let ended = self.next_moment();
        let Open { request, begun, .. } = self.take(now, client);
        let Request { register, action, .. } = request;
        if let Some(Outcome::Value(value)) = outcome {
            self.last_reads[register] = Some(value);
        }
        self.histories[register].push(Operation { client, begun, ended, action, outcome });
    }

    fn take(&mut self, now: Instant, client: usize) -> Open {
        let open = self.open[client].take().expect("an operation is answered once");
        self.longest = self.longest.max(now.since(open.since));
        open
    }

    /// The server that held this register is gone, and what it held with it.
    pub(crate) fn lose(&mut self, register: usize) {
        let moment = self.next_moment();
        self.losses[register].push(moment);
    }

    /// The operation was not executed, and is to be sent elsewhere. `false`: that has happened too
    /// often.
    pub(crate) fn redirect(&mut self, client: usize, slot: Slot, to: usize) -> bool {
        self.owners[client].insert(slot, to);
        let Some(open) = &mut self.open[client] else { return true };
        open.hops += 1;
        open.hops <= HOPS_MAX
    }

    /// The client has sent its operation there.
    pub(crate) fn note_sent(&mut self, client: usize, place: usize) {
        if let Some(open) = &mut self.open[client] {
            open.place = place;
        }
    }

    /// Nobody listens where the client believes the owner of a slot to be.
    pub(crate) fn forget_owner(&mut self, client: usize, slot: Slot) {
        self.owners[client].remove(&slot);
    }

    /// From here on everything is read for the last time, by clients that ask anew where it is.
    pub(crate) fn begin_last_reads(&mut self) {
        self.owners.iter_mut().for_each(BTreeMap::clear);
        self.last_reads.fill(None);
    }

    /// Clients that wait for an answer from there.
    pub(crate) fn waiting_at(&self, place: usize) -> Vec<usize> {
        let is_there = |open: &Option<Open>| open.is_some_and(|open| open.place == place);
        (0..self.open.len()).filter(|&client| is_there(&self.open[client])).collect()
    }

    /// Operations that were refused so far.
    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    pub(crate) fn owner(&self, client: usize, slot: Slot) -> Option<usize> {
        self.owners[client].get(&slot).copied()
    }

    /// Registers whose history cannot have happened, or could not be judged, with the reason.
    pub(crate) fn judge(&self) -> Option<(usize, Verdict)> {
        let histories = self.histories.iter().zip(&self.losses);
        let verdicts = histories.map(|(history, losses)| history::check(history, losses));
        verdicts.enumerate().find(|(_, verdict)| *verdict != Verdict::Linearizable)
    }

    /// What the last read of a register saw, if it was answered.
    pub(crate) fn last_read(&self, register: usize) -> Option<Option<u64>> {
        self.last_reads[register]
    }

    fn next_moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }
}
