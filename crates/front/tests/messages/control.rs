//! Random messages of a coordinator.

use super::draw::{kinds, quarter};
use super::{CLUSTER, DEAD, Draw, ME, WALL, World, incarnations, server, some_intent};
use serde::de::DeserializeOwned;
use types::{
    HashRange, Instant, LeaseId, MigrationId, OwnershipEpoch, SegmentId, ServerId, UnixMillis,
};
use wire::control::{
    Answer, ClockQuestion, ClockReport, ClusterMap, FromCoordinator, HistoryMark, JoinReply,
    LeaseGrant, LivenessRequest, LogRequest, LogUpdate, ManifestPosition, MigrationProgress,
    MigrationReport, MigrationRequest, MigrationState, MigrationUpdate, RecoveryLog,
    RecoveryPartition, RecoveryRequest, RecoverySegment, RecoveryUpdate, ReplicaPlace, TabletInfo,
    ToCoordinator,
};
use wire::manifest::SegmentContent;
use wire::replica::ReplicaEpoch;

/// Returns one message of each kind, of all families.
pub(super) fn control_kinds() -> Vec<FromCoordinator> {
    let of_family = |family| match family {
        FromCoordinator::Join(_) => in_family::<JoinReply>(),
        FromCoordinator::Liveness(_) => in_family::<LivenessRequest>(),
        FromCoordinator::Migration(_) => in_family::<MigrationRequest>(),
        FromCoordinator::Log(_) => in_family::<LogRequest>(),
        FromCoordinator::Recovery(_) => in_family::<RecoveryRequest>(),
        FromCoordinator::Clock(_)
        | FromCoordinator::Answer { .. }
        | FromCoordinator::Mark(_)
        | FromCoordinator::Map(_) => vec![family],
    };
    kinds().into_iter().flat_map(of_family).collect()
}

fn in_family<F: DeserializeOwned + Into<FromCoordinator>>() -> Vec<FromCoordinator> {
    kinds::<F>().into_iter().map(Into::into).collect()
}

/// Returns the number of a message's kind: that of its family, and that within the family.
pub(super) fn kind_of(message: &ToCoordinator, encoded: [u8; 2]) -> u8 {
    let within = match message {
        ToCoordinator::Described(_)
        | ToCoordinator::Liveness(_)
        | ToCoordinator::Migration(_)
        | ToCoordinator::Log(_)
        | ToCoordinator::Recovery(_) => encoded[1],
        ToCoordinator::Join(_)
        | ToCoordinator::Clock(_)
        | ToCoordinator::Ask { .. }
        | ToCoordinator::Holding { .. } => 0,
    };
    8 * encoded[0] + within
}

impl World {
    pub(super) fn some_control_message(&mut self, draw: &mut Draw<'_>) -> FromCoordinator {
        if draw.one_in(3)
            && let Some(answer) = self.answer_of_coordinator(draw)
        {
            return answer;
        }
        let kind = draw.pick(&self.control_kinds);
        self.some_message_of_coordinator(draw, kind)
    }

    /// Returns a random message of this kind.
    fn some_message_of_coordinator(
        &mut self,
        draw: &mut Draw<'_>,
        kind: FromCoordinator,
    ) -> FromCoordinator {
        match kind {
            FromCoordinator::Join(kind) => some_join_reply(draw, kind).into(),
            FromCoordinator::Clock(_) => FromCoordinator::Clock(ClockQuestion {
                asked: Instant(draw.near(self.now.0)),
                reference: draw.bool().then(|| UnixMillis(draw.near(WALL.0))),
                lease_horizon: LeaseId(draw.number()),
            }),
            FromCoordinator::Answer { .. } => {
                FromCoordinator::Answer { request: draw.number(), answer: self.some_answer(draw) }
            }
            FromCoordinator::Mark(_) => FromCoordinator::Mark(HistoryMark {
                term: draw.number(),
                term_id: draw.number(),
                transaction: draw.number(),
            }),
            FromCoordinator::Liveness(kind) => match kind {
                LivenessRequest::Ping => kind.into(),
                LivenessRequest::Witness { .. } => {
                    LivenessRequest::Witness { server: draw.server() }.into()
                }
            },
            FromCoordinator::Map(_) => FromCoordinator::Map(self.some_map(draw)),
            FromCoordinator::Migration(kind) => some_migration_request(draw, kind).into(),
            FromCoordinator::Log(kind) => some_log_request(draw, kind).into(),
            FromCoordinator::Recovery(kind) => match kind {
                RecoveryRequest::Recover(_) => {
                    RecoveryRequest::Recover(Box::new(some_part(draw))).into()
                }
                RecoveryRequest::RecoveryConfirmed { .. } => {
                    let (range, epoch) = (draw.range(), OwnershipEpoch(draw.near(7)));
                    RecoveryRequest::RecoveryConfirmed { range, epoch }.into()
                }
            },
        }
    }

    /// Returns a coordinator's answer to a message that the server has sent.
    fn answer_of_coordinator(&mut self, draw: &mut Draw<'_>) -> Option<FromCoordinator> {
        if self.told.is_empty() {
            return None;
        }
        Some(match draw.pick(&self.told) {
            ToCoordinator::Log(LogUpdate::ManifestContinues { number }) => {
                LogRequest::ManifestRecorded { number }.into()
            }
            ToCoordinator::Log(LogUpdate::IsNeeded { log }) => LogRequest::FreeLog { log }.into(),
            ToCoordinator::Recovery(RecoveryUpdate::Recovered { range, epoch, .. }) => {
                RecoveryRequest::RecoveryConfirmed { range, epoch }.into()
            }
            ToCoordinator::Recovery(RecoveryUpdate::Replayed { range, epoch, .. }) => {
                self.map_version += 1;
                let mut map = self.some_map(draw);
                let (owner, incarnations) = (ME, incarnations(draw));
                let owned = TabletInfo { range, owner, epoch, incarnations, is_born: false };
                map.tablets.retain(|tablet| !tablet.range.overlaps(range));
                map.tablets.push(owned);
                map.tablets.sort_by_key(|tablet| tablet.range);
                FromCoordinator::Map(map)
            }
            ToCoordinator::Migration(MigrationUpdate::Shrink { migration, remaining }) => {
                match remaining.is_empty() {
                    true => MigrationRequest::Finished { migration }.into(),
                    false => MigrationRequest::Forget { migration, remaining }.into(),
                }
            }
            ToCoordinator::Migration(MigrationUpdate::FlipUnanswered { migration }) => {
                MigrationRequest::Outcome { migration, accepted: draw.bool() }.into()
            }
            ToCoordinator::Ask { request, .. } => {
                FromCoordinator::Answer { request, answer: self.some_answer(draw) }
            }
            _ => return None,
        })
    }

    fn some_answer(&mut self, draw: &mut Draw<'_>) -> Answer {
        let kind = draw.pick(&self.answer_kinds);
        match kind {
            Answer::Started(_) => Answer::Started(vec![MigrationId(draw.number())]),
            Answer::Cancelled(_) => Answer::Cancelled(draw.u32()),
            Answer::Flushed { .. } => Answer::Flushed { map: draw.number() },
            Answer::LossAccepted(_) => Answer::LossAccepted(draw.u32()),
            Answer::Refused(_) => Answer::Refused("no".repeat(draw.below(3))),
            Answer::Map(_) => Answer::Map(Box::new(self.some_map(draw))),
            Answer::Standing(_) => Answer::Standing(draw.bool().then(|| "no".to_owned())),
            Answer::Migrations(_) => {
                let report = |draw: &mut Draw<'_>| MigrationReport {
                    migration: MigrationId(draw.number()),
                    task: MigrationId(draw.number()),
                    range: draw.range(),
                    source: draw.server(),
                    target: draw.server(),
                    state: draw.pick(&[MigrationState::Queued, MigrationState::Moving]),
                    message: String::new(),
                    created: UnixMillis(draw.number()),
                    updated: UnixMillis(draw.number()),
                    progress: MigrationProgress {
                        records: draw.number(),
                        ..MigrationProgress::default()
                    },
                };
                Answer::Migrations(draw.list(3, report))
            }
            Answer::Clocks(_) => Answer::Clocks(draw.list(3, |draw| ClockReport {
                server: draw.server(),
                wall_ahead: draw.number() as i64,
                expiry_ahead: draw.number() as i64,
            })),
            Answer::Lease(_) => Answer::Lease(
                draw.bool().then(|| LeaseGrant { lease: LeaseId(draw.number()), term: draw.u32() }),
            ),
            // Used unchanged: operators read these, and no server processes them.
            Answer::Health(_) | Answer::Recoveries(_) | Answer::Rebuild(_) => kind,
        }
    }

    /// Returns a map with random owners of the quarters, or with ranges that may overlap.
    fn some_map(&mut self, draw: &mut Draw<'_>) -> ClusterMap {
        self.map_version += draw.below(2) as u64;
        let mut servers: Vec<_> =
            (1..=4).map(|id| server(ServerId(id), ServerId(id) == DEAD)).collect();
        for server in &mut servers {
            server.is_dead ^= draw.one_in(16);
        }
        if draw.one_in(8) {
            servers.extend(draw.list(3, |draw| server(draw.server(), false)));
        }
        let tablets = match draw.one_in(4) {
            true => draw.list(6, |draw| some_tablet(draw, None)),
            false => (0..4).map(|number| some_tablet(draw, Some(number))).collect(),
        };
        let moving = draw.list(2, |draw| (draw.range(), draw.server(), draw.server()));
        let version = draw.near(self.map_version);
        ClusterMap { version, cluster: CLUSTER, servers, tablets, moving }
    }
}

fn some_tablet(draw: &mut Draw<'_>, number: Option<u16>) -> TabletInfo {
    let range = number.map_or_else(|| draw.range(), quarter);
    let usual = number.map(|number| [ME, ServerId(1), ServerId(3), DEAD][usize::from(number)]);
    let owner = match usual {
        Some(owner) if !draw.one_in(4) => owner,
        Some(_) | None => draw.server(),
    };
    let (epoch, incarnations) = (OwnershipEpoch(draw.near(1)), incarnations(draw));
    TabletInfo { range, owner, epoch, incarnations, is_born: draw.one_in(4) }
}

fn some_join_reply(draw: &mut Draw<'_>, kind: JoinReply) -> JoinReply {
    match kind {
        JoinReply::Welcome { .. } => {
            JoinReply::Welcome { server: draw.server(), cluster: CLUSTER, seed: draw.number() }
        }
        JoinReply::Rejected { .. } => {
            JoinReply::Rejected { reason: String::new(), is_fenced: draw.bool() }
        }
        JoinReply::Waiting { .. } => JoinReply::Waiting { reason: "no".into() },
        JoinReply::Describe => kind,
    }
}

fn some_migration_request(draw: &mut Draw<'_>, kind: MigrationRequest) -> MigrationRequest {
    let migration = MigrationId(draw.below(6) as u64);
    match kind {
        MigrationRequest::Measure { .. } => {
            MigrationRequest::Measure { migration, range: draw.range() }
        }
        MigrationRequest::Prepare(_) => MigrationRequest::Prepare(some_intent(draw)),
        MigrationRequest::Start(_) => MigrationRequest::Start(some_intent(draw)),
        MigrationRequest::Decide { .. } => MigrationRequest::Decide { migration },
        MigrationRequest::Outcome { .. } => {
            MigrationRequest::Outcome { migration, accepted: draw.bool() }
        }
        MigrationRequest::Forget { .. } => {
            MigrationRequest::Forget { migration, remaining: draw.list(3, Draw::range) }
        }
        MigrationRequest::Finished { .. } => MigrationRequest::Finished { migration },
    }
}

fn some_log_request(draw: &mut Draw<'_>, kind: LogRequest) -> LogRequest {
    match kind {
        LogRequest::ManifestRecorded { .. } => {
            LogRequest::ManifestRecorded { number: SegmentId(draw.number()) }
        }
        LogRequest::Fence { .. } => LogRequest::Fence { log: draw.server() },
        LogRequest::ReadManifest { .. } => LogRequest::ReadManifest {
            log: draw.server(),
            replica: (SegmentId(draw.number()), ReplicaEpoch(draw.u32())),
            first: ManifestPosition { pieces: draw.u32(), bytes: draw.u32() },
        },
        LogRequest::FreeLog { .. } => LogRequest::FreeLog { log: draw.server() },
    }
}

/// Returns a recovery partition, mostly of the dead server's quarter.
fn some_part(draw: &mut Draw<'_>) -> RecoveryPartition {
    let range: HashRange = if draw.one_in(4) { draw.range() } else { quarter(3) };
    let log = |draw: &mut Draw<'_>| RecoveryLog {
        dead: if draw.one_in(6) { draw.server() } else { DEAD },
        old_incarnations: incarnations(draw),
    };
    let logs = (0..if draw.one_in(4) { draw.below(4) } else { 1 }).map(|_| log(draw)).collect();
    let segments = draw.list(3, some_segment);
    let total = draw.near(segments.len() as u64) as u32;
    RecoveryPartition {
        range,
        epoch: OwnershipEpoch(draw.near(7)),
        incarnations: incarnations(draw),
        keeps: draw.one_in(4),
        clock_floor: UnixMillis(draw.near(WALL.0)),
        logs,
        list: draw.below(3) as u64,
        segments_total: total,
        segments,
    }
}

fn some_segment(draw: &mut Draw<'_>) -> RecoverySegment {
    let content = SegmentContent { length: draw.near(1_000) as u32, crc: draw.near(7) as u32 };
    let place = |draw: &mut Draw<'_>| {
        let any = draw.server();
        ReplicaPlace {
            backup: draw.pick(&[ServerId(1), ServerId(3), ME, any]),
            epoch: ReplicaEpoch(draw.below(2) as u32),
            length: draw.near(1_000) as u32,
        }
    };
    RecoverySegment {
        log: if draw.one_in(6) { draw.server() } else { DEAD },
        segment: SegmentId(1 + draw.below(3) as u64),
        content: draw.bool().then_some(content),
        places: draw.list(3, place),
        common_prefix: draw.near(500) as u32,
    }
}
