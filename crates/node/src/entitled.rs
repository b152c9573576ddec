//! Authorization of messages between servers by their authenticated sender. See "Who may say
//! what" in `docs/design/trust.md`.

use crate::Node;
use crate::machines::Machines;
use types::{MigrationId, ServerId};
use wire::control::Intent;
use wire::peer::PeerMessage;
use wire::replica::ReplicaId;

/// Result of the authorization of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SenderVerdict {
    /// The sender may send it.
    Entitled,
    /// The message concerns a migration that this server does not know: it is early or late.
    Unknown,
    /// The sender may not send it, and would not if it followed the protocol.
    Denied,
}

/// Knowledge about a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Both sides are known.
    Sides {
        /// Owner of the range before the migration.
        source: ServerId,
        /// Owner of the range after the migration.
        target: ServerId,
    },
    /// Only the number: the migration ended before this server heard more.
    Number,
    /// The migration is unknown.
    Nothing,
}

/// Checks whether `from` may send `message` to `me`.
///
/// The sender must be checked here, before the message reaches a machine, which may apply a part
/// of it. Checks that are left to a later stage are named with each message.
pub(crate) fn judge(
    from: ServerId,
    me: ServerId,
    message: &PeerMessage,
    known: impl Fn(MigrationId) -> Known,
) -> SenderVerdict {
    match message {
        PeerMessage::Flip(flip) => of_source(from, known(flip.migration)),
        PeerMessage::PullReply(reply) => of_source(from, known(reply.migration)),
        PeerMessage::PriorityReply(reply) => of_source(from, known(reply.migration)),
        PeerMessage::FlipAnswer { migration, .. } => of_target(from, known(*migration)),
        PeerMessage::Pull(pull) => of_target(from, known(pull.migration)),
        PeerMessage::PriorityPull(pull) => of_target(from, known(pull.migration)),
        PeerMessage::Append(append) => about_log_of(from, &[append.replica]),
        PeerMessage::Release { replicas } => about_log_of(from, replicas),
        // The master knows which backup has which replica.
        PeerMessage::Appended(answer) => about_log_of(me, &[answer.replica]),
        PeerMessage::Released { replicas } | PeerMessage::Needed { replicas } => {
            about_log_of(me, replicas)
        }
        // Any server may read, but a backup serves only logs that it has fenced.
        PeerMessage::RecoveryRead(_) => SenderVerdict::Entitled,
        // The recovery master accepts only replies to its own reads from this backup.
        PeerMessage::RecoveryReply(_) => SenderVerdict::Entitled,
        // These only show that the sender is alive.
        PeerMessage::Ping | PeerMessage::Pong => SenderVerdict::Entitled,
    }
}

fn of_source(from: ServerId, known: Known) -> SenderVerdict {
    match known {
        Known::Sides { source, .. } if source == from => SenderVerdict::Entitled,
        Known::Sides { .. } => SenderVerdict::Denied,
        Known::Number => SenderVerdict::Entitled,
        Known::Nothing => SenderVerdict::Unknown,
    }
}

fn of_target(from: ServerId, known: Known) -> SenderVerdict {
    match known {
        Known::Sides { target, .. } if target == from => SenderVerdict::Entitled,
        Known::Sides { .. } => SenderVerdict::Denied,
        Known::Number => SenderVerdict::Entitled,
        Known::Nothing => SenderVerdict::Unknown,
    }
}

fn about_log_of(master: ServerId, replicas: &[ReplicaId]) -> SenderVerdict {
    match replicas.iter().all(|replica| replica.log == master) {
        true => SenderVerdict::Entitled,
        false => SenderVerdict::Denied,
    }
}

/// Check of the senders of messages, with the number of those that were dropped.
#[derive(Default)]
pub(crate) struct SenderCheck {
    denied: u64,
}

impl SenderCheck {
    /// Returns whether to process a message that has arrived. A denied message is counted and
    /// logged. Its cause is a fault in the sender, or an attacker with the cluster's key.
    pub(crate) fn admits(&mut self, from: ServerId, message: &PeerMessage, node: &Node) -> bool {
        let me = node.me();
        let verdict = judge(from, me, message, |migration| known(&node.machines(), migration));
        if verdict == SenderVerdict::Denied {
            self.denied += 1;
            // Only the first, second, fourth, eighth message and so on is logged, so that a
            // sender of many messages cannot fill the log.
            if self.denied.is_power_of_two() {
                let text = protocols::migration::peer(message).to_string();
                let count = self.denied;
                tracing::warn!(%from, count, text, "message rejected: sender not entitled");
            }
        }
        verdict == SenderVerdict::Entitled
    }
}

fn known(machines: &Machines, migration: MigrationId) -> Known {
    let source = machines.sources.get(migration).map(|side| side.machine.intent());
    let target = machines.targets.get(migration).map(|side| side.machine.intent());
    let intent: Option<&Intent> = source.flatten().or(target.flatten());
    match (intent, source.is_some() || target.is_some()) {
        (Some(intent), _) => Known::Sides { source: intent.source, target: intent.target },
        (None, true) => Known::Number,
        (None, false) => Known::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{HashRange, Instant, KeyHash, OwnershipEpoch, SegmentId, UnixMillis, Version};
    use wire::peer::{
        Append, AppendResult, Appended, Flip, PriorityPull, PriorityReply, Pull, PullReply,
        RecordCounts, RecoveryNext, RecoveryRead, RecoveryReply,
    };
    use wire::replica::{ReplicaEpoch, ReplicaKind};

    const ME: ServerId = ServerId(1);
    const OTHER: ServerId = ServerId(2);
    const STRANGER: ServerId = ServerId(3);
    const MIGRATION: MigrationId = MigrationId(9);
    const EPOCH: OwnershipEpoch = OwnershipEpoch(4);
    const CURSOR: KeyHash = KeyHash(0);

    fn replica(log: ServerId) -> ReplicaId {
        ReplicaId { log, segment: SegmentId(1), epoch: ReplicaEpoch(0) }
    }

    fn append(log: ServerId) -> PeerMessage {
        PeerMessage::Append(Append {
            replica: replica(log),
            kind: ReplicaKind::Data,
            segment_bytes: 1 << 20,
            from: 0,
            syncs_at_once: false,
            sent: Instant(0),
            clock: UnixMillis(0),
            header: None,
        })
    }

    fn appended(log: ServerId) -> PeerMessage {
        let result = AppendResult::Has { length: 1, synced: 1 };
        PeerMessage::Appended(Appended { replica: replica(log), sent: Instant(0), result })
    }

    fn of_source_messages() -> Vec<PeerMessage> {
        let (migration, epoch) = (MIGRATION, EPOCH);
        let reply = PullReply { migration, epoch, partition: 0, cursor: CURSOR, next: None };
        let flip = Flip {
            migration,
            range: HashRange::ALL,
            source_epoch: OwnershipEpoch(3),
            target_epoch: epoch,
            version_floor: Version(1),
            expiry_clock: UnixMillis(1),
            records: RecordCounts::default(),
        };
        let early = PriorityReply { migration, epoch, request: 1, answers: Vec::new() };
        let early = PeerMessage::PriorityReply(early);
        vec![PeerMessage::Flip(flip), PeerMessage::PullReply(reply), early]
    }

    fn of_target_messages() -> Vec<PeerMessage> {
        let (migration, epoch) = (MIGRATION, EPOCH);
        let (cursor, last) = (CURSOR, CURSOR);
        let pull = Pull { migration, epoch, partition: 0, cursor, last, bytes_max: 1 };
        let early = PriorityPull { migration, epoch, request: 1, hashes: Vec::new() };
        let answer = PeerMessage::FlipAnswer { migration, accepted: true };
        vec![answer, PeerMessage::Pull(pull), PeerMessage::PriorityPull(early)]
    }

    fn verdicts(messages: &[PeerMessage], from: ServerId, known: Known) -> Vec<SenderVerdict> {
        messages.iter().map(|message| judge(from, ME, message, |_| known)).collect()
    }

    #[test]
    fn only_the_other_side_of_a_migration_speaks_of_it() {
        let to_target = Known::Sides { source: OTHER, target: ME };
        let to_source = Known::Sides { source: ME, target: OTHER };
        for (messages, known) in
            [(of_source_messages(), to_target), (of_target_messages(), to_source)]
        {
            assert_eq!(verdicts(&messages, OTHER, known), [SenderVerdict::Entitled; 3]);
            assert_eq!(verdicts(&messages, STRANGER, known), [SenderVerdict::Denied; 3]);
            assert_eq!(verdicts(&messages, STRANGER, Known::Nothing), [SenderVerdict::Unknown; 3]);
            assert_eq!(verdicts(&messages, OTHER, Known::Number), [SenderVerdict::Entitled; 3]);
        }
        // A side may not send the messages of the other side.
        assert_eq!(verdicts(&of_source_messages(), OTHER, to_source), [SenderVerdict::Denied; 3]);
        assert_eq!(verdicts(&of_target_messages(), OTHER, to_target), [SenderVerdict::Denied; 3]);
    }

    #[test]
    fn only_its_master_writes_and_releases_replicas_of_a_log() {
        let release = |logs: &[ServerId]| {
            let replicas = logs.iter().map(|log| replica(*log)).collect();
            PeerMessage::Release { replicas }
        };
        let own = [append(OTHER), release(&[OTHER]), release(&[])];
        assert_eq!(verdicts(&own, OTHER, Known::Nothing), [SenderVerdict::Entitled; 3]);
        let of_others = [append(OTHER), release(&[OTHER]), release(&[STRANGER, OTHER])];
        assert_eq!(verdicts(&of_others, STRANGER, Known::Nothing), [SenderVerdict::Denied; 3]);
        let ours = [append(ME), release(&[ME])];
        assert_eq!(verdicts(&ours, OTHER, Known::Nothing), [SenderVerdict::Denied; 2]);
    }

    #[test]
    fn backups_speak_to_a_master_of_its_own_log() {
        let about = |log: ServerId| {
            let replicas = vec![replica(log)];
            let released = PeerMessage::Released { replicas: replicas.clone() };
            [appended(log), released, PeerMessage::Needed { replicas }]
        };
        assert_eq!(verdicts(&about(ME), OTHER, Known::Nothing), [SenderVerdict::Entitled; 3]);
        for log in [OTHER, STRANGER] {
            assert_eq!(verdicts(&about(log), OTHER, Known::Nothing), [SenderVerdict::Denied; 3]);
        }
    }

    #[test]
    fn everybody_may_ask_whether_we_are_there_and_say_so() {
        let messages = [PeerMessage::Ping, PeerMessage::Pong];
        assert_eq!(verdicts(&messages, OTHER, Known::Nothing), [SenderVerdict::Entitled; 2]);
    }

    #[test]
    fn everybody_may_recover_what_is_fenced() {
        let (replica, range) = (replica(STRANGER), HashRange::ALL);
        let read = PeerMessage::RecoveryRead(RecoveryRead { replica, range, from: 0 });
        let next = RecoveryNext::Missing;
        let reply = PeerMessage::RecoveryReply(RecoveryReply { replica, range, from: 0, next });
        assert_eq!(verdicts(&[read, reply], OTHER, Known::Nothing), [SenderVerdict::Entitled; 2]);
    }
}
