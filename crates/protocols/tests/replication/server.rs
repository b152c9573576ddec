//! A server that holds replicas for other servers: the real machine, with a map as its disk.

use protocols::replication::{AppendHeader, Backup, BackupEffect, BackupEvent, ScrubResult};
use protocols::{Outbox, Ticket};
use std::collections::BTreeMap;
use types::{Instant, ServerId, UnixMillis};
use wire::peer::PeerMessage;
use wire::replica::ReplicaId;

/// A message between servers, with the number of its payload bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Envelope {
    pub(crate) from: ServerId,
    pub(crate) to: ServerId,
    pub(crate) message: PeerMessage,
    pub(crate) bytes: u32,
}

/// A replica on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) length: u32,
    pub(crate) synced: u32,
    /// Set if the replica is unreadable.
    pub(crate) is_spoiled: bool,
}

/// A job that the disk performs asynchronously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Take { replica: ReplicaId, is_new: bool, range: (u32, u32) },
    Sync(ReplicaId),
    Measure(ReplicaId),
    Scrub(ReplicaId),
    Free(ReplicaId),
}

/// The output of a server.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    pub(crate) messages: Vec<Envelope>,
    pub(crate) work: Vec<Work>,
    pub(crate) reports: Vec<ServerId>,
    pub(crate) freed: Vec<ServerId>,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) backup: Backup,
    pub(crate) disk: BTreeMap<ReplicaId, Stored>,
    pub(crate) is_alive: bool,
    /// Set if no further replica can be begun.
    pub(crate) is_full: bool,
    /// Set if the next job of the disk fails.
    pub(crate) fails: bool,
    /// Set if written bytes count as synced: the mode does not promise to survive a power loss.
    pub(crate) is_synced_at_once: bool,
    payloads: BTreeMap<Ticket, (u32, u32)>,
    tickets: u64,
}

impl Server {
    /// Creates a server that finds this disk.
    pub(crate) fn new(now: Instant, id: ServerId, disk: BTreeMap<ReplicaId, Stored>) -> Server {
        let mut backup = Backup::new();
        for replica in disk.keys() {
            let event = BackupEvent::Found { replica: *replica };
            backup.handle(now, event, &mut Outbox::new());
        }
        Server {
            id,
            backup,
            disk,
            is_alive: true,
            is_full: false,
            fails: false,
            is_synced_at_once: true,
            payloads: BTreeMap::new(),
            tickets: 0,
        }
    }

    pub(crate) fn receive(&mut self, now: Instant, envelope: &Envelope) -> Outside {
        let from = envelope.from;
        if envelope.message == PeerMessage::Ping {
            let pong = Envelope { from: self.id, to: from, message: PeerMessage::Pong, bytes: 0 };
            return Outside { messages: vec![pong], ..Outside::default() };
        }
        let event = match &envelope.message {
            PeerMessage::Append(append) => {
                let to = append.from + envelope.bytes;
                self.tickets += 1;
                let payload = Some(Ticket(self.tickets)).filter(|_| envelope.bytes > 0);
                payload.map(|ticket| self.payloads.insert(ticket, (append.from, to)));
                let header = AppendHeader {
                    replica: append.replica,
                    from: append.from,
                    to,
                    syncs_at_once: append.syncs_at_once,
                    sent: append.sent,
                    clock: append.clock,
                };
                BackupEvent::Append { from, header, payload }
            }
            PeerMessage::Release { replicas } => {
                BackupEvent::Release { log: from, replicas: replicas.clone() }
            }
            other => panic!("a backup gets {other:?}"),
        };
        self.handle(now, event)
    }

    pub(crate) fn handle(&mut self, now: Instant, event: BackupEvent) -> Outside {
        let mut outbox = Outbox::new();
        self.backup.handle(now, event, &mut outbox);
        let mut out = Outside::default();
        for effect in outbox.drain() {
            let (to, message) = match effect {
                BackupEffect::Take { replica, is_new, payload } => {
                    let range = payload.map_or((0, 0), |ticket| self.payloads[&ticket]);
                    out.work.push(Work::Take { replica, is_new, range });
                    continue;
                }
                BackupEffect::Sync { replica } => {
                    out.work.push(Work::Sync(replica));
                    continue;
                }
                BackupEffect::Measure { replica } => {
                    out.work.push(Work::Measure(replica));
                    continue;
                }
                BackupEffect::Scrub { replica } => {
                    out.work.push(Work::Scrub(replica));
                    continue;
                }
                // A later process finds no usable replica on the disk.
                BackupEffect::GiveUp { replica } => {
                    self.disk.entry(replica).and_modify(|stored| stored.is_spoiled = true);
                    continue;
                }
                BackupEffect::Free { replica } => {
                    out.work.push(Work::Free(replica));
                    continue;
                }
                BackupEffect::Report { log } => {
                    out.reports.push(log);
                    continue;
                }
                BackupEffect::LogFreed { log } => {
                    out.freed.push(log);
                    continue;
                }
                BackupEffect::Answer(answer) | BackupEffect::Complain(answer) => {
                    (answer.replica.log, PeerMessage::Appended(answer))
                }
                BackupEffect::Released { log, replicas } => {
                    (log, PeerMessage::Released { replicas })
                }
                BackupEffect::Ask { log, replicas } => (log, PeerMessage::Needed { replicas }),
            };
            out.messages.push(Envelope { from: self.id, to, message, bytes: 0 });
        }
        self.payloads.clear();
        out
    }

    pub(crate) fn carry_out(&mut self, now: Instant, work: Work) -> Outside {
        let event = match work {
            Work::Take { replica, is_new: true, .. } if self.is_full => {
                BackupEvent::Full { replica }
            }
            Work::Take { replica, .. } | Work::Sync(replica) if self.fails => self.spoil(replica),
            Work::Take { replica, is_new, range: (from, to) } => {
                self.take(replica, is_new, from, to)
            }
            Work::Sync(replica) => self.sync(replica),
            Work::Measure(replica) => {
                let Stored { length, synced, .. } = self.disk[&replica];
                let clock = UnixMillis(0);
                BackupEvent::Measured { replica, length, synced, clock }
            }
            Work::Scrub(replica) => {
                let stored = self.disk.get(&replica).filter(|stored| !stored.is_spoiled);
                let found =
                    stored.map_or(ScrubResult::Damaged, |it| ScrubResult::Intact(it.length));
                BackupEvent::Scrubbed { replica, found }
            }
            Work::Free(replica) => {
                self.disk.remove(&replica);
                BackupEvent::Freed { replica }
            }
        };
        self.handle(now, event)
    }

    fn take(&mut self, replica: ReplicaId, is_new: bool, from: u32, to: u32) -> BackupEvent {
        let before = self.disk.get(&replica).copied();
        assert_eq!(before.is_none(), is_new, "{replica} is begun once");
        let length = before.map_or(0, |stored| stored.length);
        assert_eq!(length, from, "a piece goes behind the last one");
        let synced = if self.is_synced_at_once { to } else { before.map_or(0, |it| it.synced) };
        self.disk.insert(replica, Stored { length: to, synced, is_spoiled: false });
        BackupEvent::Taken { replica, length: to, synced }
    }

    fn sync(&mut self, replica: ReplicaId) -> BackupEvent {
        let Some(stored) = self.disk.get_mut(&replica).filter(|stored| !stored.is_spoiled) else {
            return BackupEvent::Synced { replica, synced: 0 };
        };
        stored.synced = stored.length;
        BackupEvent::Synced { replica, synced: stored.synced }
    }

    /// Marks the replica on the disk as unreadable.
    fn spoil(&mut self, replica: ReplicaId) -> BackupEvent {
        self.disk.entry(replica).or_insert(Stored { length: 0, synced: 0, is_spoiled: true });
        self.disk.entry(replica).and_modify(|stored| stored.is_spoiled = true);
        BackupEvent::Failed { replica }
    }
}
