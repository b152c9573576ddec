//! The rules, and how a run comes to its end.

use super::faults::{Cuts, SKEW_MAX_MILLIS};
use super::{Next, Part, REST_AGAIN, REST_MAX, World};
use crate::failure::{Failure, Rule};
use crate::history::Verdict;
use crate::inspect::Walk;
use crate::network::Weather;
use crate::reactor::Inbound;
use crate::servers::Server;
use crate::workload::EXPIRY_MAX_MILLIS;
use std::collections::BTreeMap;
use std::time::Duration;
use wire::control::{Ask, MigrationState};
use wire::peer::{PeerMessage, PriorityAnswer};

/// Times that a reactor may ask for what it was told not to be at the source: answers that come
/// late are not heard, and what was on its way already comes once more.
const ASKED_AGAIN_MAX: u32 = 5;

impl World {
    /// What the progress of this server has just passed must be here.
    pub(super) fn check_progress(&mut self, place: usize) {
        let walls: Vec<_> = (0..self.servers.len()).map(|place| self.wall_at(place)).collect();
        let passed = self.servers[place].inspector.newly_passed(&self.workload.registers);
        for (migration, source, hash) in passed {
            // What has expired by the target's clock may have been reclaimed there.
            let clock = self.servers[place].node.store().clock();
            let from = self.servers.iter().position(|server| server.id == source);
            let is_there = from.is_some_and(|from| {
                self.servers[from].inspector.has(walls[from], hash, Some(clock))
            });
            let inspector = &mut self.servers[place].inspector;
            if is_there && !inspector.has_or_deleted(walls[place], migration, hash) {
                let text = format!("{migration} has passed {hash}, which only {source} has");
                self.failure = Some(Rule::ProgressFollowsReplay.broken(text));
            }
        }
    }

    /// No hash is served by two servers. Looked at whenever a server's tablets have changed.
    pub(super) fn check_owners(&mut self, place: usize) {
        let version = self.servers[place].node.tablets_version();
        if std::mem::replace(&mut self.servers[place].tablets_version, version) == version {
            return;
        }
        let ranges =
            self.servers.iter().map(|server| server.inspector.served()).collect::<Vec<_>>();
        let here = &ranges[place];
        for (other, there) in ranges.iter().enumerate().filter(|(other, _)| *other != place) {
            let shared = here.iter().flat_map(|a| there.iter().find_map(|b| a.intersection(*b)));
            if let Some(range) = shared.into_iter().next() {
                let (one, two) = (self.servers[place].id, self.servers[other].id);
                self.failure =
                    Some(Rule::OneOwner.broken(format!("{one} and {two} serve {range}")));
            }
        }
    }

    /// What a reactor was told not to exist at the source it does not ask for again and again.
    pub(super) fn check_asked(&mut self, reactor: (usize, usize), message: &PeerMessage) {
        let PeerMessage::PriorityPull(pull) = message else { return };
        for &(_, hash) in &pull.hashes {
            if let Some(times) = self.told_absent.get_mut(&(reactor, pull.migration, hash)) {
                *times += 1;
                if *times > ASKED_AGAIN_MAX {
                    let text = format!("{hash} of {} by reactor {reactor:?}", pull.migration);
                    self.failure = Some(Rule::AskedOnce.broken(text));
                }
            }
        }
    }

    /// A reactor is told what its source has not.
    pub(super) fn note_told(&mut self, reactor: (usize, usize), inbound: &Inbound) {
        let Inbound::Peer { message: PeerMessage::PriorityReply(reply), .. } = inbound else {
            return;
        };
        for &(_, hash, answer) in &reply.answers {
            if answer != PriorityAnswer::Records {
                self.told_absent.entry((reactor, reply.migration, hash)).or_insert(0);
            }
        }
    }

    /// The weather clears, and everything has to come to an end.
    pub(super) fn rest(&mut self) {
        let is_clearing = self.part == Part::Working;
        if is_clearing {
            self.trace.note(self.now, format_args!("the weather clears"));
            self.part = Part::Resting;
            self.weather = Weather::fair();
            self.cuts = Cuts::default();
            self.rest_by = self.now + REST_MAX;
        }
        // A list from before the links broke says nothing.
        let is_known = self.ask(Ask::List);
        let moving: Vec<_> =
            self.migrations.iter().filter(|report| !is_over(report.state)).collect();
        // A target that has not heard that its migration has ended keeps tombstones.
        let is_told = self.servers.iter().all(Server::is_settled);
        let has_ended = is_known && moving.is_empty() && is_told;
        let is_at_rest = has_ended && self.clients.open().next().is_none();
        if is_clearing || self.part == Part::Resting && !is_at_rest {
            let longest = EXPIRY_MAX_MILLIS + SKEW_MAX_MILLIS;
            self.expired_by = self.now + Duration::from_millis(longest + 1);
        }
        match self.part {
            Part::Working => unreachable!("the working part has just ended"),
            Part::Resting if is_at_rest && self.now >= self.expired_by => {
                self.part = Part::Reading(0);
                (0..self.clients.count())
                    .for_each(|client| self.plan_in(REST_AGAIN, Next::Think(client)));
            }
            // Nothing is planned any more: the run ends.
            Part::Reading(next) if is_at_rest && next == self.workload.registers.len() => {
                return self.plan.clear();
            }
            Part::Resting | Part::Reading(_) => {}
        }
        if self.now >= self.rest_by {
            self.failure = Some(self.describe_unrest());
        }
        self.plan_in(REST_AGAIN, Next::Rest);
    }

    fn describe_unrest(&self) -> Failure {
        let mut rule = Rule::ServersSettle;
        let mut text = String::new();
        for open in self.clients.open() {
            rule = Rule::Answered;
            text.push_str(&format!("\n  open since {}: {:?}", open.since, open.request));
        }
        for report in self.migrations.iter().filter(|report| !is_over(report.state)) {
            rule = Rule::MigrationsEnd;
            text.push_str(&format!("\n  {report:?}"));
        }
        for server in &self.servers {
            if !server.is_settled() {
                text.push_str(&format!("\n  {} is cut off, or holds what is moving", server.id));
            }
            for reactor in &server.reactors {
                text.push_str(&format!("\n  at {}: {}", server.id, reactor.waiting()));
            }
        }
        rule.broken(text)
    }

    /// What clients saw, and what the servers hold at the end.
    pub(super) fn judge(&mut self) -> Option<Failure> {
        match self.clients.judge() {
            Some((register, Verdict::Violated(text))) => {
                let key = String::from_utf8_lossy(&self.workload.registers[register].keys[0].1);
                return Some(Rule::Linearizable.broken(format!("{key}: {text}")));
            }
            Some((register, _)) => {
                return Some(Rule::Decided.broken(format!("register {register}")));
            }
            None => {}
        }
        self.judge_servers()
    }

    /// A walk over the servers finds every record that the last reads saw, each at one server, and
    /// nothing else.
    fn judge_servers(&mut self) -> Option<Failure> {
        let walls: Vec<_> = (0..self.servers.len()).map(|place| self.wall_at(place)).collect();
        let mut seen: BTreeMap<&[u8], u64> = BTreeMap::new();
        for (number, register) in self.workload.registers.iter().enumerate() {
            let Some(value) = self.clients.last_read(number).flatten() else { continue };
            seen.extend(register.keys.iter().map(|(_, key)| (key.as_slice(), value)));
        }
        for (server, wall) in self.servers.iter_mut().zip(walls) {
            let left = server.inspector.left_behind(wall);
            if !left.is_empty() {
                return Some(Rule::NothingStray.broken(format!("{} holds {left:?}", server.id)));
            }
            let Walk { held, expired, bytes } = server.inspector.walk(wall);
            let words = server.inspector.words(wall);
            if held.len() as u64 + expired != words {
                let (id, held) = (server.id, held.len());
                let text = format!("{id} counts {words}, holds {held}, and {expired} expired");
                return Some(Rule::CountsMatch.broken(text));
            }
            let live = server.node.store().usage().log.live_bytes;
            if live != bytes {
                let text = format!("{} counts {live} live bytes and holds {bytes}", server.id);
                return Some(Rule::CountsMatch.broken(text));
            }
            for (key, value) in held {
                if seen.remove(key.as_slice()) != Some(value) {
                    let key = String::from_utf8_lossy(&key);
                    let text = format!("{} holds {value} for {key}: nobody reads it", server.id);
                    return Some(Rule::NothingStray.broken(text));
                }
            }
        }
        let lost = seen.first_key_value()?;
        let key = String::from_utf8_lossy(lost.0);
        Some(Rule::NothingLost.broken(format!("no server holds {key} = {}", lost.1)))
    }
}

fn is_over(state: MigrationState) -> bool {
    match state {
        MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => true,
        MigrationState::Queued
        | MigrationState::Preparing
        | MigrationState::Moving
        | MigrationState::Releasing => false,
    }
}
