//! Coordinators of a run: the leading one, and perhaps one that has not noticed that it no longer
//! leads.
//!
//! If its store fails, a coordinator ends, as the real process does. Messages that it has sent still
//! arrive. Another one opens the store and continues. Another one may also open the store while the
//! first one is paused. When the first one resumes, the store refuses its next change.

use crate::metadata::{CommitTimes, FaultyMetaStore};
use crate::planted::Planted;
use crate::settings::{Knob, RunSettings};
use crate::timeline::{PlannedEvent, RunTimeline};
use coordinator::{
    ClusterIdentity, Coordinator, CoordinatorEvent, CoordinatorSettings, Drawn, Effect, Effects,
    LinkId, MetaStore, MetaStoreError, Moment, Transaction, Verdict,
};
use std::collections::BTreeMap;
use std::fmt;
use types::Instant;
use wire::control::{MigrationReport, RecoveryReport};

struct CoordinatorProcess {
    machine: Coordinator,
    store: FaultyMetaStore,
    commit: Option<PendingCommit>,
    /// Time of its next call if nothing happens before.
    due: Option<Instant>,
    /// End of the current pause.
    paused_until: Instant,
    /// Set if it has opened an old copy of the store.
    is_of_copy: bool,
}

/// Transaction of a coordinator that has no verdict yet.
struct PendingCommit {
    /// Number of the commit in this run.
    number: u64,
    stage: CommitStage,
}

enum CommitStage {
    /// The transaction reaches the store at the end.
    Requested(Transaction),
    /// The store has answered; the answer is on its way.
    Answered(Result<Verdict, MetaStoreError>),
}

/// Output of a coordinator after an event.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorOutput {
    pub(crate) effects: Vec<Effect>,
    /// Set if the coordinator ends, since its store failed or it no longer leads.
    pub(crate) has_stopped: bool,
}

impl CoordinatorOutput {
    fn stop(&mut self, number: u32, reason: impl fmt::Display, timeline: &mut RunTimeline) {
        timeline.note(format_args!("coordinator {number} stops: {reason}"));
        self.has_stopped = true;
    }
}

/// All coordinators of a run, and their metadata store.
pub(crate) struct Coordinators {
    identity: ClusterIdentity,
    store: FaultyMetaStore,
    /// Latest copy of the store.
    copy: Option<FaultyMetaStore>,
    /// Set while new coordinators open the copy instead of the store.
    is_rolled_back: bool,
    /// For a planted bug: no server need confirm the store.
    trusts_file: bool,
    /// Times of commits, in a run with a slow store.
    commit_times: Option<CommitTimes>,
    /// Number of slow commits so far.
    commits: u64,
    /// Live coordinators by number; the last one that opened the store has the highest.
    alive: BTreeMap<u32, CoordinatorProcess>,
    opened: u32,
    /// Number of the coordinator at the other end of each connection.
    connections: BTreeMap<LinkId, u32>,
    /// Number of connections that servers have opened so far.
    connections_opened: u64,
}

impl Coordinators {
    pub(crate) fn new(identity: ClusterIdentity, settings: &RunSettings) -> Coordinators {
        let RunSettings { seed, planted, .. } = *settings;
        let store = FaultyMetaStore::new(seed, planted == Some(Planted::StoreWithoutCompare));
        let mut coordinators = Coordinators {
            identity,
            store,
            copy: None,
            is_rolled_back: false,
            trusts_file: planted == Some(Planted::OldStoreTrusted),
            commit_times: CommitTimes::draw(seed).filter(|_| settings.has(Knob::SlowStore)),
            commits: 0,
            alive: BTreeMap::new(),
            opened: 0,
            connections: BTreeMap::new(),
            connections_opened: 0,
        };
        assert!(coordinators.open(Instant(0)), "an empty store can be opened");
        coordinators
    }

    pub(crate) fn identity(&self) -> ClusterIdentity {
        self.identity
    }

    /// Lets another coordinator open the store. Returns `false` if the store fails.
    pub(crate) fn open(&mut self, now: Instant) -> bool {
        // A number of its own for each coordinator, and the same numbers in each run of the seed.
        let term = u64::from(self.opened) + 1;
        let drawn = Drawn { fresh: self.identity, term };
        // Clocks differ by more than the limit allows; everything must still be correct.
        let (limits_skew, trusts_file) = (false, self.trusts_file);
        let settings =
            CoordinatorSettings { limits_skew, trusts_file, ..CoordinatorSettings::default() };
        let (store, is_of_copy) = match &self.copy {
            Some(copy) if self.is_rolled_back => (copy, true),
            Some(_) | None => (&self.store, false),
        };
        let mut store = store.clone();
        let Ok(machine) = Coordinator::open(&mut store, drawn, settings, now) else {
            return false;
        };
        self.opened += 1;
        let (due, paused_until, commit) = (None, Instant(0), None);
        let process = CoordinatorProcess { machine, store, commit, due, paused_until, is_of_copy };
        self.alive.insert(self.opened, process);
        true
    }

    /// Returns the number of the coordinator that opened the store last.
    pub(crate) fn newest(&self) -> u32 {
        self.opened
    }

    pub(crate) fn connect(&mut self, number: u32) -> LinkId {
        self.connections_opened += 1;
        let connection = LinkId(self.connections_opened);
        self.connections.insert(connection, number);
        connection
    }

    /// Returns the number of the coordinator at the other end of a connection; it may have ended.
    pub(crate) fn at_end_of(&self, connection: LinkId) -> Option<u32> {
        self.connections.get(&connection).copied()
    }

    /// Returns whether the coordinator at the other end of a connection still runs.
    pub(crate) fn is_served(&self, connection: LinkId) -> bool {
        self.at_end_of(connection).is_some_and(|number| self.alive.contains_key(&number))
    }

    /// Passes an event to a coordinator, if it still runs, and plans its next deadline.
    pub(crate) fn handle(
        &mut self,
        number: u32,
        event: CoordinatorEvent,
        timeline: &mut RunTimeline,
    ) -> CoordinatorOutput {
        let at = Moment { now: timeline.now, wall: timeline.wall() };
        let Some(process) = self.alive.get_mut(&number) else {
            return CoordinatorOutput::default();
        };
        let mut output = CoordinatorOutput::default();
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let mut out = Effects::new();
            if let Err(stopped) = process.machine.handle(at, event, &mut out) {
                output.stop(number, stopped, timeline);
                return output;
            }
            for effect in out.drain() {
                let Effect::Commit(transaction) = effect else {
                    output.effects.push(effect);
                    continue;
                };
                if let Some(times) = &mut self.commit_times {
                    self.commits += 1;
                    let stage = match times.draw_is_applied_first() {
                        true => CommitStage::Answered(process.store.transact(&transaction)),
                        false => CommitStage::Requested(transaction),
                    };
                    process.commit = Some(PendingCommit { number: self.commits, stage });
                    let event = PlannedEvent::Committed(number, self.commits);
                    timeline.plan_in(times.draw_time(), event);
                    continue;
                }
                match process.store.transact(&transaction) {
                    Ok(verdict) => next = Some(CoordinatorEvent::Committed(verdict)),
                    Err(failed) => {
                        output.stop(number, failed, timeline);
                        return output;
                    }
                }
            }
        }
        let due = process.machine.next_deadline().map(|due| due.max(timeline.now));
        if due != process.due {
            process.due = due;
            if let Some(due) = due {
                timeline.plan_at(due, PlannedEvent::Coordinator(number));
            }
        }
        output
    }

    /// Passes the store's verdict about a commit to its coordinator, if it still runs. Postpones
    /// the verdict for a coordinator that is paused.
    pub(crate) fn finish_commit(
        &mut self,
        number: u32,
        commit: u64,
        timeline: &mut RunTimeline,
    ) -> CoordinatorOutput {
        let Some(process) = self.alive.get_mut(&number) else {
            return CoordinatorOutput::default();
        };
        if process.paused_until > timeline.now {
            let event = PlannedEvent::Committed(number, commit);
            timeline.plan_at(process.paused_until, event);
            return CoordinatorOutput::default();
        }
        let Some(pending) = process.commit.take_if(|pending| pending.number == commit) else {
            return CoordinatorOutput::default();
        };
        let answer = match pending.stage {
            CommitStage::Requested(transaction) => process.store.transact(&transaction),
            CommitStage::Answered(answer) => answer,
        };
        match answer {
            Ok(verdict) => self.handle(number, CoordinatorEvent::Committed(verdict), timeline),
            Err(failed) => {
                let mut output = CoordinatorOutput::default();
                output.stop(number, failed, timeline);
                output
            }
        }
    }

    /// Returns the commit in flight of a coordinator that is not paused.
    pub(crate) fn commit_in_flight(&self, number: u32, now: Instant) -> Option<u64> {
        let process = self.alive.get(&number).filter(|process| process.paused_until <= now)?;
        process.commit.as_ref().map(|pending| pending.number)
    }

    /// Returns whether a coordinator's deadline has come. Postpones the deadline of a coordinator
    /// that is paused.
    pub(crate) fn is_due(&mut self, number: u32, timeline: &mut RunTimeline) -> bool {
        let Some(process) = self.alive.get_mut(&number) else { return false };
        if process.due != Some(timeline.now) {
            return false;
        }
        if process.paused_until > timeline.now {
            let until = process.paused_until;
            process.due = Some(until);
            timeline.plan_at(until, PlannedEvent::Coordinator(number));
            return false;
        }
        true
    }

    /// Pauses a coordinator without its knowledge.
    pub(crate) fn pause(&mut self, number: u32, until: Instant) {
        if let Some(process) = self.alive.get_mut(&number) {
            process.paused_until = until;
        }
    }

    /// Ends the process of a coordinator.
    pub(crate) fn remove(&mut self, number: u32) {
        self.alive.remove(&number);
    }

    /// Returns the coordinators that no longer lead.
    pub(crate) fn former(&self) -> Vec<u32> {
        self.alive.range(..self.opened).map(|(number, _)| *number).collect()
    }

    /// Lets new coordinators open the copy of the store.
    pub(crate) fn roll_back(&mut self) {
        assert!(self.copy.is_some(), "a rollback needs a copy of the store");
        self.is_rolled_back = true;
    }

    pub(crate) fn is_rolled_back(&self) -> bool {
        self.is_rolled_back
    }

    /// Ends the rollback. Returns `false` if there was none.
    pub(crate) fn end_rollback(&mut self) -> bool {
        std::mem::take(&mut self.is_rolled_back)
    }

    pub(crate) fn drop_copy(&mut self) {
        self.copy = None;
    }

    /// Returns the coordinator that opened the store last, if it still runs.
    pub(crate) fn current(&self) -> Option<u32> {
        self.alive.contains_key(&self.opened).then_some(self.opened)
    }

    /// Returns the newest coordinator's reports on migrations.
    pub(crate) fn reports(&self) -> Vec<MigrationReport> {
        self.alive.values().next_back().map(|process| process.machine.reports()).unwrap_or_default()
    }

    /// Returns the newest coordinator's reports on recoveries.
    pub(crate) fn recoveries(&self) -> Vec<RecoveryReport> {
        let newest = self.alive.values().next_back();
        newest.map(|process| process.machine.recoveries()).unwrap_or_default()
    }

    /// Returns whether this connection leads to the leading coordinator.
    pub(crate) fn is_current(&self, connection: LinkId) -> bool {
        !self.is_rolled_back && self.connections.get(&connection) == Some(&self.opened)
    }

    pub(crate) fn copy_store(&mut self) {
        self.copy = Some(self.store.copy());
    }

    /// Returns the number of servers that a coordinator on the copy would wait for before any
    /// change, and the number of the copy's newest transaction.
    pub(crate) fn awaited_by_copy(&self, now: Instant) -> Option<(usize, u64)> {
        let copy = self.copy.as_ref()?;
        let drawn = Drawn { fresh: self.identity, term: 0 };
        let machine =
            Coordinator::open(&mut copy.copy(), drawn, CoordinatorSettings::default(), now).ok()?;
        Some((machine.awaited_servers(), copy.newest()))
    }

    /// Returns the coordinators that have opened the copy.
    pub(crate) fn of_copy(&self) -> Vec<u32> {
        let of_copy = self.alive.iter().filter(|(_, process)| process.is_of_copy);
        of_copy.map(|(number, _)| *number).collect()
    }

    /// Returns the end of the pause of the coordinator at this connection.
    pub(crate) fn paused_until(&self, connection: LinkId) -> Instant {
        let process = self.connections.get(&connection).and_then(|number| self.alive.get(number));
        process.map_or(Instant(0), |process| process.paused_until)
    }

    /// Lets one call of the store in this many fail from now on; 0: none.
    pub(crate) fn set_store_failures(&self, one_in: u32) {
        self.store.set_failures(one_in);
    }
}
