//! Random messages of other servers.

use super::{CLUSTER, DEAD, Draw, KEYS, ME, WALL, World, key, some_intent};
use types::limits::{SEGMENT_BYTES, TABLES_MAX};
use types::{
    HashSeed, Incarnation, Instant, KeyHash, MigrationId, OwnershipEpoch, SegmentId, ServerId,
    Slot, TableId, TypedValue, UnixMillis, ValueType, Version, key_hash, slot_of,
};
use wire::batch::BatchWriter;
use wire::control::Intent;
use wire::entry::{Body, Dead, Entry, Location};
use wire::peer::{
    Append, AppendRefusal, AppendResult, Appended, Flip, PeerMessage, PriorityAnswer, PriorityPull,
    PriorityReply, Pull, PullReply, RecordCounts, RecoveryNext, RecoveryRead, RecoveryReply,
};
use wire::replica::{
    BootId, PieceWriter, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind, Stamp,
};

/// Servers with log replicas on the tested server.
const LOGS: [ServerId; 3] = [ServerId(1), ServerId(3), DEAD];

/// Sender, message and payload.
pub(super) type Said = (ServerId, PeerMessage, Vec<u8>);

impl World {
    /// Returns a mostly correct answer to a request, and the reactor that sent the request.
    pub(super) fn answer_of_peer(&mut self, draw: &mut Draw<'_>) -> Option<(usize, Said)> {
        if self.unanswered.is_empty() {
            return None;
        }
        let place = draw.below(self.unanswered.len());
        let (reactor, from, question, bytes) = self.unanswered.remove(place);
        let (message, payload) = match question {
            PeerMessage::Flip(Flip { migration, .. }) => {
                (PeerMessage::FlipAnswer { migration, accepted: !draw.one_in(4) }, Vec::new())
            }
            PeerMessage::Pull(pull) => answer_to_pull(draw, pull),
            PeerMessage::PriorityPull(pull) => answer_to_priority_pull(draw, pull),
            PeerMessage::Append(Append { replica, sent, from, .. }) => {
                let length = from.wrapping_add(bytes);
                let result = AppendResult::Has { length, synced: draw.near(length.into()) as u32 };
                (PeerMessage::Appended(Appended { replica, sent, result }), Vec::new())
            }
            PeerMessage::Release { replicas } => (PeerMessage::Released { replicas }, Vec::new()),
            PeerMessage::Needed { replicas } => (PeerMessage::Release { replicas }, Vec::new()),
            PeerMessage::RecoveryRead(RecoveryRead { replica, range, from }) => {
                let payload: Vec<u8> =
                    (0..draw.below(4)).flat_map(|_| some_entry(draw).1).collect();
                let length = from.wrapping_add(payload.len() as u32);
                let next = match draw.one_in(3) {
                    true => RecoveryNext::From(length),
                    false => RecoveryNext::End { length, crc: 7, version: Version(9) },
                };
                let reply = RecoveryReply { replica, range, from, next };
                (PeerMessage::RecoveryReply(reply), payload)
            }
            PeerMessage::Ping => (PeerMessage::Pong, Vec::new()),
            PeerMessage::FlipAnswer { .. }
            | PeerMessage::PullReply(_)
            | PeerMessage::PriorityReply(_)
            | PeerMessage::Appended(_)
            | PeerMessage::Released { .. }
            | PeerMessage::RecoveryReply(_)
            | PeerMessage::Pong => return None,
        };
        Some((reactor, (from, message, payload)))
    }

    /// Returns a random message, with its sender and payload.
    pub(super) fn some_peer_message(&mut self, draw: &mut Draw<'_>) -> Said {
        let kind = draw.pick(&self.peer_kinds);
        let (message, payload) = self.some_message_of_peer(draw, kind);
        let from = match draw.one_in(8) {
            true => draw.server(),
            false => usual_sender(draw, &message),
        };
        (from, message, payload)
    }

    /// Returns a random message of this kind, with its payload.
    fn some_message_of_peer(
        &mut self,
        draw: &mut Draw<'_>,
        kind: PeerMessage,
    ) -> (PeerMessage, Vec<u8>) {
        let message = match kind {
            PeerMessage::Flip(_) => PeerMessage::Flip(self.some_flip(draw)),
            PeerMessage::FlipAnswer { .. } => {
                let migration = MigrationId(draw.below(6) as u64);
                PeerMessage::FlipAnswer { migration, accepted: draw.bool() }
            }
            PeerMessage::Pull(_) => PeerMessage::Pull(self.some_pull(draw)),
            PeerMessage::PullReply(_) => {
                let reply = PeerMessage::PullReply(self.some_pull_reply(draw));
                return (reply, some_batch(draw));
            }
            PeerMessage::PriorityPull(_) => {
                PeerMessage::PriorityPull(self.some_priority_pull(draw))
            }
            PeerMessage::PriorityReply(_) => {
                let reply = PeerMessage::PriorityReply(self.some_priority_reply(draw));
                return (reply, some_batch(draw));
            }
            PeerMessage::Append(_) => {
                let (append, body) = self.some_append(draw);
                return (PeerMessage::Append(append), body);
            }
            PeerMessage::Appended(_) => PeerMessage::Appended(self.some_appended(draw)),
            PeerMessage::Release { .. } => {
                let log = draw.pick(&LOGS);
                PeerMessage::Release { replicas: self.some_replicas(draw, log) }
            }
            PeerMessage::Released { .. } => {
                PeerMessage::Released { replicas: self.some_replicas(draw, ME) }
            }
            PeerMessage::Needed { .. } => {
                PeerMessage::Needed { replicas: self.some_replicas(draw, ME) }
            }
            PeerMessage::RecoveryRead(_) => {
                let replica = self.some_replica(draw);
                let read = RecoveryRead { replica, range: draw.range(), from: draw.u32() };
                PeerMessage::RecoveryRead(read)
            }
            PeerMessage::RecoveryReply(_) => {
                let (reply, payload) = self.some_recovery_reply(draw);
                return (PeerMessage::RecoveryReply(reply), payload);
            }
            PeerMessage::Ping | PeerMessage::Pong => kind,
        };
        (message, Vec::new())
    }

    fn some_pull_reply(&mut self, draw: &mut Draw<'_>) -> PullReply {
        let asked = match self.asked.pulls.is_empty() {
            true => self.some_pull(draw),
            false => draw.pick(&self.asked.pulls),
        };
        let next = match draw.below(4) {
            0 => Some(draw.hash()),
            1 => Some(KeyHash(asked.cursor.0.wrapping_add(draw.number()))),
            _ => None,
        };
        PullReply {
            migration: MigrationId(draw.near(asked.migration.0)),
            epoch: OwnershipEpoch(draw.near(asked.epoch.0)),
            partition: draw.near(asked.partition.into()) as u16,
            cursor: if draw.one_in(8) { draw.hash() } else { asked.cursor },
            next,
        }
    }

    fn some_priority_reply(&mut self, draw: &mut Draw<'_>) -> PriorityReply {
        let asked = match self.asked.priority_pulls.is_empty() {
            true => self.some_priority_pull(draw),
            false => draw.pick(&self.asked.priority_pulls),
        };
        let mut hashes = asked.hashes;
        if draw.one_in(4) {
            hashes.truncate(draw.below(4));
        }
        let answer = |(table, hash): (TableId, KeyHash)| {
            let answers = [PriorityAnswer::Records, PriorityAnswer::Absent, PriorityAnswer::Gone];
            (table, hash, draw.pick(&answers))
        };
        let answers = hashes.into_iter().map(answer).collect();
        PriorityReply {
            migration: MigrationId(draw.near(asked.migration.0)),
            epoch: OwnershipEpoch(draw.near(asked.epoch.0)),
            request: draw.near(asked.request),
            answers,
        }
    }

    /// Returns an append, mostly the next piece of a replica that the server holds.
    fn some_append(&mut self, draw: &mut Draw<'_>) -> (Append, Vec<u8>) {
        let (log, segment) = (draw.pick(&LOGS), some_segment(draw));
        let epoch = if draw.one_in(4) { draw.u32() } else { 0 };
        let replica = ReplicaId { log, segment, epoch: ReplicaEpoch(epoch) };
        let kind = if draw.bool() { ReplicaKind::Data } else { ReplicaKind::Manifest };
        let any = draw.u32();
        let segment_bytes = draw.pick(&[1 << 16, 1 << 20, SEGMENT_BYTES as u32, any]);
        let header = ReplicaHeader {
            format: ReplicaFormat::CURRENT,
            cluster: CLUSTER,
            id: replica,
            kind,
            segment_bytes,
            boot: BootId::default(),
        };
        let new = || PieceWriter::new(header.identity());
        let writer = self.writers.entry(replica).or_insert_with(new);
        if draw.one_in(6) {
            *writer = new();
        }
        let body = match draw.below(3) {
            0 => Vec::new(),
            1 => (0..draw.below(4)).flat_map(|_| some_entry(draw).1).collect(),
            _ => vec![draw.number() as u8; draw.below(300)],
        };
        let from = writer.length();
        let synced = if from > 0 { draw.below(from as usize) as u32 } else { 0 };
        let stamp = Stamp { version: Version(draw.number()), clock: UnixMillis(draw.near(WALL.0)) };
        // An append without bytes is a heartbeat, and has no piece header.
        let header = (!body.is_empty()).then(|| writer.next(&body, synced, stamp));
        let append = Append {
            replica,
            kind,
            segment_bytes,
            from: draw.near(from.into()) as u32,
            syncs_at_once: draw.one_in(5),
            sent: Instant(draw.near(self.now.0)),
            clock: UnixMillis(draw.near(WALL.0)),
            header: header.filter(|_| !draw.one_in(8)),
        };
        (append, body)
    }

    fn some_appended(&mut self, draw: &mut Draw<'_>) -> Appended {
        let known = (!self.asked.appends.is_empty()).then(|| draw.pick(&self.asked.appends));
        let (replica, sent, to) = match known {
            Some((append, bytes)) if !draw.one_in(8) => {
                (append.replica, append.sent, append.from.wrapping_add(bytes))
            }
            Some(_) | None => {
                let replica = ReplicaId { log: ME, ..self.some_replica(draw) };
                (replica, Instant(draw.number()), draw.u32())
            }
        };
        let result = match draw.below(8) {
            0 => AppendResult::Refused(draw.pick(&[AppendRefusal::Full, AppendRefusal::Failed])),
            1 if draw.one_in(8) => AppendResult::Refused(AppendRefusal::Fenced),
            _ => {
                let length = draw.near(to.into()) as u32;
                AppendResult::Has { length, synced: draw.near(length.into()) as u32 }
            }
        };
        Appended { replica, sent: Instant(draw.near(sent.0)), result }
    }

    fn some_recovery_reply(&mut self, draw: &mut Draw<'_>) -> (RecoveryReply, Vec<u8>) {
        let asked = match self.asked.reads.is_empty() {
            true => RecoveryRead {
                replica: self.some_replica(draw),
                range: draw.range(),
                from: draw.u32(),
            },
            false => draw.pick(&self.asked.reads),
        };
        let next = match draw.below(4) {
            0 => RecoveryNext::From(draw.near(u64::from(asked.from) + 1_000) as u32),
            1 => RecoveryNext::Missing,
            _ => {
                let (length, crc) = (draw.near(1_000) as u32, draw.near(7) as u32);
                RecoveryNext::End { length, crc, version: Version(draw.number()) }
            }
        };
        let RecoveryRead { replica, range, from } = asked;
        let reply = RecoveryReply { replica, range, from: draw.near(from.into()) as u32, next };
        let payload = (0..draw.below(5)).flat_map(|_| some_entry(draw).1).collect();
        (reply, damaged(draw, payload))
    }

    pub(super) fn some_replica(&mut self, draw: &mut Draw<'_>) -> ReplicaId {
        if !self.asked.appends.is_empty() && draw.one_in(3) {
            return draw.pick(&self.asked.appends).0.replica;
        }
        let (any, segment) = (draw.server(), some_segment(draw));
        let log = draw.pick(&[ServerId(1), ME, ServerId(3), DEAD, any]);
        ReplicaId { log, segment, epoch: ReplicaEpoch(draw.number() as u32) }
    }

    /// Returns replicas, mostly all of one log.
    fn some_replicas(&mut self, draw: &mut Draw<'_>, log: ServerId) -> Vec<ReplicaId> {
        draw.list(6, |draw| {
            let replica = self.some_replica(draw);
            if draw.one_in(24) { replica } else { ReplicaId { log, ..replica } }
        })
    }
}

impl World {
    fn some_flip(&self, draw: &mut Draw<'_>) -> Flip {
        let intent = self.known_intent(draw);
        let mut records: Vec<(TableId, Slot, u32)> = draw.list(5, |draw| {
            let table = TableId(draw.below(TABLES_MAX) as u8);
            (table, draw.hash().slot(), draw.u32())
        });
        records.sort();
        records.dedup_by_key(|&mut (table, slot, _)| (table, slot));
        Flip {
            migration: intent.migration,
            range: intent.range,
            source_epoch: intent.source_epoch,
            target_epoch: intent.target_epoch,
            version_floor: Version(draw.number()),
            expiry_clock: UnixMillis(draw.near(WALL.0)),
            records: RecordCounts::of(&records),
        }
    }
}

impl World {
    fn some_pull(&self, draw: &mut Draw<'_>) -> Pull {
        let intent = self.known_intent(draw);
        let range = draw.range();
        Pull {
            migration: intent.migration,
            epoch: intent.target_epoch,
            partition: draw.number() as u16,
            cursor: if draw.one_in(4) { draw.hash() } else { intent.range.first() },
            last: if draw.one_in(4) { range.first() } else { range.last() },
            bytes_max: draw.u32(),
        }
    }
}

impl World {
    fn some_priority_pull(&self, draw: &mut Draw<'_>) -> PriorityPull {
        let intent = self.known_intent(draw);
        let hashes = draw.list(20, |draw| {
            let key = key(draw.number());
            let hash = if draw.bool() { draw.hash() } else { key_hash(&HashSeed::new(1), &key) };
            (TableId(draw.below(17) as u8), hash)
        });
        PriorityPull {
            migration: intent.migration,
            epoch: intent.target_epoch,
            request: draw.number(),
            hashes,
        }
    }
}

impl World {
    /// Returns a migration, mostly one that the server was informed of.
    fn known_intent(&self, draw: &mut Draw<'_>) -> Intent {
        match self.intents.is_empty() || draw.one_in(4) {
            true => some_intent(draw),
            false => draw.pick(&self.intents),
        }
    }
}

/// Returns entries of keys in a range, in order of their hashes.
fn batch_of(draw: &mut Draw<'_>, is_wanted: impl Fn(KeyHash) -> bool) -> Vec<u8> {
    let seed = HashSeed::new(1);
    let mut keys: Vec<(KeyHash, Vec<u8>)> =
        (0..KEYS).map(|number| (key_hash(&seed, &key(number)), key(number))).collect();
    keys.retain(|(hash, _)| is_wanted(*hash));
    keys.sort();
    let mut batch = Vec::new();
    for (_, key) in keys {
        if draw.bool() {
            let table = TableId(draw.below(3) as u8);
            let ((_, slot), entry) = entry_of(draw, &key);
            BatchWriter::new(&mut batch).push(table, slot, &entry);
        }
    }
    damaged(draw, batch)
}

fn answer_to_pull(draw: &mut Draw<'_>, pull: Pull) -> (PeerMessage, Vec<u8>) {
    let Pull { migration, epoch, partition, cursor, last, .. } = pull;
    let next = draw.one_in(4).then(|| draw.hash()).filter(|next| cursor < *next && *next <= last);
    let is_wanted =
        |hash| cursor <= hash && hash <= last && next.is_none_or(|next: KeyHash| hash < next);
    let reply = PullReply { migration, epoch, partition, cursor, next };
    (PeerMessage::PullReply(reply), batch_of(draw, is_wanted))
}

fn answer_to_priority_pull(draw: &mut Draw<'_>, pull: PriorityPull) -> (PeerMessage, Vec<u8>) {
    let PriorityPull { migration, epoch, request, hashes } = pull;
    let batch = batch_of(draw, |hash| hashes.iter().any(|(_, wanted)| *wanted == hash));
    let found = if batch.is_empty() { PriorityAnswer::Absent } else { PriorityAnswer::Records };
    let answers = hashes.into_iter().map(|(table, hash)| (table, hash, found)).collect();
    let reply = PriorityReply { migration, epoch, request, answers };
    (PeerMessage::PriorityReply(reply), batch)
}

fn some_segment(draw: &mut Draw<'_>) -> SegmentId {
    let any = draw.number();
    SegmentId(draw.pick(&[1, 2, SegmentId::FIRST_OF_MANIFEST.0 | 1, any]))
}

/// Returns a server that is entitled to send this message about an existing object: the other
/// side of a migration, the master of a log, or a backup.
fn usual_sender(draw: &mut Draw<'_>, message: &PeerMessage) -> ServerId {
    match message {
        PeerMessage::Flip(_)
        | PeerMessage::FlipAnswer { .. }
        | PeerMessage::Pull(_)
        | PeerMessage::PullReply(_)
        | PeerMessage::PriorityPull(_)
        | PeerMessage::PriorityReply(_) => ServerId(1),
        PeerMessage::Append(append) => append.replica.log,
        PeerMessage::Release { replicas } => {
            replicas.first().map_or(ServerId(1), |replica| replica.log)
        }
        PeerMessage::Appended(_)
        | PeerMessage::Released { .. }
        | PeerMessage::Needed { .. }
        | PeerMessage::RecoveryReply(_) => draw.pick(&[ServerId(1), ServerId(3)]),
        PeerMessage::RecoveryRead(_) | PeerMessage::Ping | PeerMessage::Pong => draw.server(),
    }
}

/// Returns an encoded entry of one of the keys, with its table and slot.
fn some_entry(draw: &mut Draw<'_>) -> ((TableId, Slot), Vec<u8>) {
    let key = key(draw.number());
    entry_of(draw, &key)
}

fn entry_of(draw: &mut Draw<'_>, key: &[u8]) -> ((TableId, Slot), Vec<u8>) {
    let value = vec![b'x'; draw.below(200)];
    let segment = SegmentId(draw.number() % (1 << 40));
    let place = Location { segment, offset: draw.u32() & 0x07ff_fff8 };
    let body = match draw.below(6) {
        0 => Body::Tombstone { dead: Dead::Nothing },
        1 => Body::Tombstone { dead: Dead::At(place) },
        2 => Body::Object {
            expiry: Some(UnixMillis(draw.number())),
            replaces: Some(place),
            value: TypedValue { value_type: ValueType::Hash, bytes: &value },
        },
        _ => Body::Object { expiry: None, replaces: None, value: TypedValue::string(&value) },
    };
    let incarnation = Incarnation(draw.near(1) & Incarnation::MAX.0);
    let entry = Entry { incarnation, version: Version(draw.number()), key, body };
    let mut bytes = vec![0; entry.encoded_bytes()];
    entry.encode(&mut bytes);
    let table = TableId(draw.below(TABLES_MAX) as u8);
    let slot = if draw.one_in(8) { draw.hash().slot() } else { slot_of(key) };
    ((table, slot), bytes)
}

fn some_batch(draw: &mut Draw<'_>) -> Vec<u8> {
    let mut batch = Vec::new();
    for _ in 0..draw.below(6) {
        let ((table, slot), entry) = some_entry(draw);
        BatchWriter::new(&mut batch).push(table, slot, &entry);
    }
    damaged(draw, batch)
}

/// Sometimes changes a byte, or removes the end.
fn damaged(draw: &mut Draw<'_>, mut bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.is_empty() && draw.one_in(6) {
        let at = draw.below(bytes.len());
        match draw.bool() {
            true => bytes.truncate(at),
            false => bytes[at] ^= draw.number() as u8,
        }
    }
    bytes
}
