//! The simulated servers' reactions to messages from the coordinator.

use super::serving::State;
use super::*;

impl History {
    pub(super) fn hear(&mut self, machine: usize, message: FromCoordinator) {
        let now = self.world.now();
        match message {
            FromCoordinator::Join(JoinReply::Welcome { server, .. }) => {
                let process = self.process(machine);
                assert!(process.id.is_none_or(|known| known == server));
                process.id = Some(server);
                self.formers[machine].0 = Some(server);
            }
            FromCoordinator::Join(JoinReply::Rejected { is_fenced, reason }) => {
                assert!(is_fenced, "seed {}: {reason}", self.seed);
                self.process(machine).connection = None;
                self.meet("sent away");
                self.kill(machine);
            }
            FromCoordinator::Join(JoinReply::Waiting { .. }) => self.meet("waited for others"),
            FromCoordinator::Mark(mark) => self.note_mark(machine, mark),
            FromCoordinator::Map(map) => self.hear_of_map(machine, &map),
            FromCoordinator::Log(LogRequest::ManifestRecorded { number }) => {
                let log = &mut self.process(machine).log;
                if log.next.as_ref().is_some_and(|next| next.0 == number) {
                    log.manifest_log = log.next.take();
                    self.count(machine);
                }
            }
            FromCoordinator::Log(LogRequest::Fence { log }) => {
                self.process(machine).fenced.insert(log);
                self.leases.entry((machine, log)).or_insert(now);
                let of_log = |name: &&(ServerId, bool, SegmentId)| name.0 == log;
                let disk = &self.disks[machine];
                let replicas = disk.keys().filter(of_log).map(|name| ReplicaInfo {
                    segment: name.2,
                    epoch: ReplicaEpoch(0),
                    is_manifest: name.1,
                    length: disk[name].len() as u32,
                    may_be_short: false,
                });
                let replicas = replicas.collect();
                let (first, clock) = (0, types::UnixMillis(0));
                let report = LogUpdate::Fenced { log, first, replicas, clock, more: false };
                self.tell(machine, report);
            }
            FromCoordinator::Log(LogRequest::ReadManifest { log, replica, first }) => {
                let body = self.disks[machine].get(&(log, true, replica.0)).cloned();
                let bodies = Vec::from_iter(
                    body.filter(|_| first == wire::control::ManifestPosition::default()),
                );
                let read = LogUpdate::ManifestRead { log, replica, first, bodies, next: None };
                self.tell(machine, read);
            }
            FromCoordinator::Recovery(RecoveryRequest::Recover(part)) => {
                self.recover(machine, *part)
            }
            FromCoordinator::Recovery(RecoveryRequest::RecoveryConfirmed { epoch, .. }) => {
                let process = self.process(machine);
                process.parts.remove(&epoch);
                process.kept.insert(epoch);
                let held = process.held.values_mut().filter(|held| held.epoch == epoch);
                for held in held.filter(|held| held.state == State::Securing) {
                    held.state = State::Serving;
                }
            }
            FromCoordinator::Log(LogRequest::FreeLog { log }) => {
                self.process(machine).fenced.insert(log);
                self.disks[machine].retain(|name, _| name.0 != log);
                self.tell(machine, LogUpdate::LogFreed { log });
            }
            FromCoordinator::Migration(request) => self.hear_of_migration(machine, request),
            FromCoordinator::Answer { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn hear_of_map(&mut self, machine: usize, map: &ClusterMap) {
        self.adopt(machine, map);
        let gone = |dead| !map.servers.iter().any(|server| server.id == dead);
        let process = self.process(machine);
        // A server repeats reports about its own ranges until it may keep them, whatever was
        // freed since.
        let (me, tablets) = (process.id, &map.tablets);
        let is_ours = |epoch: OwnershipEpoch| {
            tablets.iter().any(|it| it.epoch == epoch && Some(it.owner) == me)
        };
        process.parts.retain(|epoch, part| is_ours(*epoch) || !gone(dead_of(part)));
    }

    fn note_mark(&mut self, machine: usize, mark: HistoryMark) {
        let known = &mut self.formers[machine].1;
        if known.is_none_or(|known| mark.is_after(&known)) {
            *known = Some(mark);
        }
    }

    pub(super) fn recover(&mut self, machine: usize, part: RecoveryPartition) {
        let (dead, range, epoch) = (dead_of(&part), part.range, part.epoch);
        self.begin_part(machine, &part);
        let may_refuse = !self.process(machine).replayed.contains(&epoch);
        if self.random.u8(..) < 10 && may_refuse {
            self.meet("handed back");
            let reason = "no".to_owned();
            self.process(machine).parts.remove(&epoch);
            self.abandon_part(machine, &part);
            self.tell(machine, RecoveryUpdate::NotRecovered { dead, range, epoch, reason });
            return;
        }
        self.process(machine).parts.insert(epoch, part);
    }

    fn hear_of_migration(&mut self, machine: usize, request: MigrationRequest) {
        let process = self.process(machine);
        match request {
            MigrationRequest::Measure { migration, .. } => {
                self.tell(machine, MigrationUpdate::Measured { migration, records: 1, bytes: 1 });
            }
            MigrationRequest::Prepare(intent) => {
                let migration = intent.migration;
                process.intents.entry(migration).or_insert(Some(intent));
                self.tell(machine, MigrationUpdate::Prepared { migration, refused: None });
            }
            MigrationRequest::Start(intent) => self.flip(machine, &intent),
            MigrationRequest::Decide { migration } => {
                let accepted = process.accepted.contains_key(&migration);
                if !accepted {
                    process.intents.insert(migration, None);
                }
                self.tell(machine, MigrationUpdate::Decided { migration, accepted });
            }
            MigrationRequest::Forget { migration, remaining } => {
                self.forget(machine, migration, &remaining);
            }
            MigrationRequest::Outcome { migration, accepted } => {
                self.outcome(machine, migration, accepted);
            }
            MigrationRequest::Finished { migration } => self.finish(machine, migration),
        }
    }
}
