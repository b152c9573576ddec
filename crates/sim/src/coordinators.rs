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
use types::{ClusterId, Instant};
use wire::control::{MigrationReport, RecoveryReport};

struct CoordinatorProcess {
    machine: Coordinator,
    store: FaultyMetaStore,
    commit: Option<PendingCommit>,
    /// Time of its next call if nothing happens before.
    due: Option<Instant>,
    /// End of the current pause.
    paused_until: Instant,
    /// The store that it has opened.
    opened: OpenedStore,
}

/// Store that coordinators open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenedStore {
    Newest,
    /// An earlier copy of the store.
    Copy,
    /// A store that was empty, with another cluster.
    Foreign,
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
    /// Store of another cluster, which was created in an empty folder.
    foreign: Option<FaultyMetaStore>,
    /// The store that new coordinators open.
    opens: OpenedStore,
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
    /// Number of connections that were opened so far.
    connections_opened: u64,
    /// The simulator's own connection to the last coordinator that it has asked.
    operator: Option<LinkId>,
}

impl Coordinators {
    pub(crate) fn new(identity: ClusterIdentity, settings: &RunSettings) -> Coordinators {
        let RunSettings { seed, planted, .. } = *settings;
        let store = FaultyMetaStore::new(seed, planted == Some(Planted::StoreWithoutCompare));
        let mut coordinators = Coordinators {
            identity,
            store,
            copy: None,
            foreign: None,
            opens: OpenedStore::Newest,
            trusts_file: planted == Some(Planted::OldStoreTrusted),
            commit_times: CommitTimes::draw(seed).filter(|_| settings.has(Knob::SlowStore)),
            commits: 0,
            alive: BTreeMap::new(),
            opened: 0,
            connections: BTreeMap::new(),
            connections_opened: 0,
            operator: None,
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
        let fresh = match self.opens {
            OpenedStore::Newest | OpenedStore::Copy => self.identity,
            OpenedStore::Foreign => foreign_identity(self.identity),
        };
        let drawn = Drawn { fresh, term };
        // Clocks differ by more than the limit allows; everything must still be correct.
        let (limits_skew, trusts_file) = (false, self.trusts_file);
        let settings =
            CoordinatorSettings { limits_skew, trusts_file, ..CoordinatorSettings::default() };
        let opened = self.opens;
        let store = match opened {
            OpenedStore::Newest => Some(&self.store),
            OpenedStore::Copy => self.copy.as_ref(),
            OpenedStore::Foreign => self.foreign.as_ref(),
        };
        let mut store = store.expect("only a store that exists is opened").clone();
        let Ok(machine) = Coordinator::open(&mut store, drawn, settings, now) else {
            return false;
        };
        self.opened += 1;
        let (due, paused_until, commit) = (None, Instant(0), None);
        let process = CoordinatorProcess { machine, store, commit, due, paused_until, opened };
        self.alive.insert(self.opened, process);
        true
    }

    /// Returns the number of the coordinator that opened the store last.
    pub(crate) fn newest(&self) -> u32 {
        self.opened
    }

    /// Draws the number of a connection to the newest coordinator, which may have ended.
    pub(crate) fn connect(&mut self) -> LinkId {
        self.connections_opened += 1;
        let connection = LinkId(self.connections_opened);
        self.connections.insert(connection, self.opened);
        connection
    }

    /// Returns the cluster of a coordinator, if it still runs.
    pub(crate) fn cluster_of(&self, number: u32) -> Option<ClusterId> {
        self.alive.get(&number).map(|process| process.machine.identity().cluster)
    }

    /// Returns the number of the coordinator at the other end of a connection; it may have ended.
    pub(crate) fn at_end_of(&self, connection: LinkId) -> Option<u32> {
        self.connections.get(&connection).copied()
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
        self.opens = OpenedStore::Copy;
    }

    /// Lets new coordinators open an empty store, as if the folder of the store were not there.
    pub(crate) fn mislay_store(&mut self) {
        self.foreign = Some(self.store.empty());
        self.opens = OpenedStore::Foreign;
    }

    /// Returns whether new coordinators open another store than the newest one.
    pub(crate) fn is_rolled_back(&self) -> bool {
        self.opens != OpenedStore::Newest
    }

    /// Returns whether new coordinators create another cluster.
    pub(crate) fn is_mislaid(&self) -> bool {
        self.opens == OpenedStore::Foreign
    }

    /// Returns whether a coordinator has created another cluster.
    pub(crate) fn is_foreign(&self, number: u32) -> bool {
        self.alive.get(&number).is_some_and(|process| process.opened == OpenedStore::Foreign)
    }

    /// Lets new coordinators open the newest store again. Returns `false` if they do already.
    pub(crate) fn end_rollback(&mut self) -> bool {
        let was_rolled_back = self.is_rolled_back();
        self.opens = OpenedStore::Newest;
        was_rolled_back
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

    /// Returns the simulator's own connection to the leading coordinator, if there is one and it
    /// has the newest store. The connection may be new.
    pub(crate) fn operator_connection(&mut self) -> Option<LinkId> {
        let leading = self.current().filter(|_| !self.is_rolled_back())?;
        let leads_there = |it: &LinkId| self.at_end_of(*it) == Some(leading);
        Some(self.operator.filter(leads_there).unwrap_or_else(|| self.connect()))
    }

    /// Records the simulator's own connection. Returns whether it is new.
    pub(crate) fn record_operator(&mut self, connection: LinkId) -> bool {
        self.operator.replace(connection) != Some(connection)
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

    /// Returns the coordinators that have opened another store than the newest one.
    pub(crate) fn of_other_stores(&self) -> Vec<u32> {
        let others = self.alive.iter().filter(|(_, process)| process.opened != OpenedStore::Newest);
        others.map(|(number, _)| *number).collect()
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

/// Returns the identity of a cluster that an empty folder makes a coordinator create.
fn foreign_identity(ours: ClusterIdentity) -> ClusterIdentity {
    ClusterIdentity { cluster: ClusterId(!ours.cluster.0), seed: !ours.seed }
}
