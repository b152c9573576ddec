//! Random messages of a coordinator.

use super::draw::quarter;
use super::{CLUSTER, DEAD, Draw, ME, WALL, World, server, some_intent, tenures};
use types::{HashRange, Instant, MigrationId, OwnershipEpoch, SegmentId, ServerId, UnixMillis};
use wire::control::{
    Answer, ClockQuestion, ClockReport, ClusterMap, DirectoryPlace, FromCoordinator, HistoryMark,
    MigrationProgress, MigrationReport, MigrationState, RecoveryLog, RecoveryPart, RecoverySegment,
    ReplicaPlace, TabletInfo, ToCoordinator,
};
use wire::directory::SegmentContent;
use wire::replica::ReplicaEpoch;

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
        let migration = MigrationId(draw.below(6) as u64);
        match kind {
            FromCoordinator::Welcome { .. } => FromCoordinator::Welcome {
                server: draw.server(),
                cluster: CLUSTER,
                seed: draw.number(),
            },
            FromCoordinator::Rejected { .. } => {
                FromCoordinator::Rejected { reason: String::new(), is_fenced: draw.bool() }
            }
            FromCoordinator::Map(_) => FromCoordinator::Map(self.some_map(draw)),
            FromCoordinator::Measure { .. } => {
                FromCoordinator::Measure { migration, range: draw.range() }
            }
            FromCoordinator::Prepare(_) => FromCoordinator::Prepare(some_intent(draw)),
            FromCoordinator::Start(_) => FromCoordinator::Start(some_intent(draw)),
            FromCoordinator::Decide { .. } => FromCoordinator::Decide { migration },
            FromCoordinator::Outcome { .. } => {
                FromCoordinator::Outcome { migration, accepted: draw.bool() }
            }
            FromCoordinator::Forget { .. } => {
                FromCoordinator::Forget { migration, remaining: draw.list(3, Draw::range) }
            }
            FromCoordinator::Finished { .. } => FromCoordinator::Finished { migration },
            FromCoordinator::Answer { .. } => {
                FromCoordinator::Answer { request: draw.number(), answer: self.some_answer(draw) }
            }
            FromCoordinator::Fence { .. } => FromCoordinator::Fence { log: draw.server() },
            FromCoordinator::ReadDirectory { .. } => FromCoordinator::ReadDirectory {
                log: draw.server(),
                replica: (SegmentId(draw.number()), ReplicaEpoch(draw.u32())),
                first: DirectoryPlace { pieces: draw.u32(), bytes: draw.u32() },
            },
            FromCoordinator::Recover(_) => FromCoordinator::Recover(Box::new(some_part(draw))),
            FromCoordinator::RecoveryConfirmed { .. } => FromCoordinator::RecoveryConfirmed {
                range: draw.range(),
                epoch: OwnershipEpoch(draw.near(7)),
            },
            FromCoordinator::FreeLog { .. } => FromCoordinator::FreeLog { log: draw.server() },
            FromCoordinator::ChainNoted { .. } => {
                FromCoordinator::ChainNoted { number: SegmentId(draw.number()) }
            }
            FromCoordinator::Clock(_) => FromCoordinator::Clock(ClockQuestion {
                asked: Instant(draw.near(self.now.0)),
                reference: draw.bool().then(|| UnixMillis(draw.near(WALL.0))),
            }),
            FromCoordinator::Witness { .. } => FromCoordinator::Witness { server: draw.server() },
            FromCoordinator::Mark(_) => FromCoordinator::Mark(HistoryMark {
                term: draw.number(),
                term_id: draw.number(),
                transaction: draw.number(),
            }),
            FromCoordinator::Waiting { .. } => FromCoordinator::Waiting { reason: "no".into() },
            FromCoordinator::Ping | FromCoordinator::Describe => kind,
        }
    }

    /// Returns a coordinator's answer to a message that the server has sent.
    fn answer_of_coordinator(&mut self, draw: &mut Draw<'_>) -> Option<FromCoordinator> {
        if self.told.is_empty() {
            return None;
        }
        Some(match draw.pick(&self.told) {
            ToCoordinator::Chain { number } => FromCoordinator::ChainNoted { number },
            ToCoordinator::Recovered { range, epoch, .. } => {
                FromCoordinator::RecoveryConfirmed { range, epoch }
            }
            ToCoordinator::Replayed { range, epoch, .. } => {
                self.map_version += 1;
                let mut map = self.some_map(draw);
                let (owner, tenures) = (ME, tenures(draw));
                let owned = TabletInfo { range, owner, epoch, tenures, is_born: false };
                map.tablets.retain(|tablet| !tablet.range.overlaps(range));
                map.tablets.push(owned);
                map.tablets.sort_by_key(|tablet| tablet.range);
                FromCoordinator::Map(map)
            }
            ToCoordinator::Shrink { migration, remaining } if remaining.is_empty() => {
                FromCoordinator::Finished { migration }
            }
            ToCoordinator::Shrink { migration, remaining } => {
                FromCoordinator::Forget { migration, remaining }
            }
            ToCoordinator::Ask { request, .. } => {
                FromCoordinator::Answer { request, answer: self.some_answer(draw) }
            }
            ToCoordinator::IsNeeded { log } => FromCoordinator::FreeLog { log },
            ToCoordinator::FlipUnanswered { migration } => {
                FromCoordinator::Outcome { migration, accepted: draw.bool() }
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
    let (epoch, tenures) = (OwnershipEpoch(draw.near(1)), tenures(draw));
    TabletInfo { range, owner, epoch, tenures, is_born: draw.one_in(4) }
}

/// Returns a recovery partition, mostly of the dead server's quarter.
fn some_part(draw: &mut Draw<'_>) -> RecoveryPart {
    let range: HashRange = if draw.one_in(4) { draw.range() } else { quarter(3) };
    let log = |draw: &mut Draw<'_>| RecoveryLog {
        dead: if draw.one_in(6) { draw.server() } else { DEAD },
        old_tenures: tenures(draw),
    };
    let logs = (0..if draw.one_in(4) { draw.below(4) } else { 1 }).map(|_| log(draw)).collect();
    let segments = draw.list(3, some_segment);
    let total = draw.near(segments.len() as u64) as u32;
    RecoveryPart {
        range,
        epoch: OwnershipEpoch(draw.near(7)),
        tenures: tenures(draw),
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
        settled: draw.near(500) as u32,
    }
}
