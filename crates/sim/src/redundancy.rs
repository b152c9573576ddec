//! Comparison of the replicas on the disks with what their masters count.
//!
//! A master counts its replicas by the answers of its backups, and so do the commands that show
//! redundancy. When nothing is under way and every master counts all of its replicas, the disks
//! must have them: each segment the full number of times, with the same bytes.

use crate::disks::ServerDisks;
use crate::failure::{Failure, Rule};
use crate::faults::FaultSchedule;
use crate::fleet::ServerFleet;
use crate::profile::RunProfile;
use crate::settings::Knob;
use crate::timeline::RunTimeline;
use fastrand::Rng;
use store::log::Among;
use types::Instant;
use wire::peer::{AppendRefusal, AppendResult, Appended, PeerMessage};
use wire::replica::ReplicaId;

/// Mixed into the seed for the separate random numbers of the damage.
const DAMAGE: u64 = 0x6269_7420_6368_616e;

/// Checks, if every server counts all of its replicas, that the disks have each segment as often,
/// with the same bytes. Damage that no backup has looked for yet, or of which no report has reached
/// the master yet, is excused.
pub(crate) fn check(
    servers: &ServerFleet,
    disks: &ServerDisks,
    faults: &FaultSchedule,
    profile: &RunProfile,
    now: Instant,
) -> Result<(), Failure> {
    let replicas = usize::from(profile.replicas());
    let is_damaged =
        faults.damage.is_some() && (profile.scrub().is_none() || faults.awaits_scrub(profile, now));
    if replicas == 0 || is_damaged || !servers.is_whole(now) {
        return Ok(());
    }
    let contents: Vec<_> = (0..servers.len()).map(|place| disks.disk(place).replicas()).collect();
    for server in servers.live() {
        let log = server.node.store().log();
        // A master counts the replicas that it is writing, and an append may have been lost.
        if log.unacknowledged(Among::Log).is_some() {
            continue;
        }
        for segment in log.segments_in_log() {
            let found = contents.iter().filter_map(|disk| disk.get(&(server.id, segment)));
            let copies: Vec<(u32, u32)> = found.copied().collect();
            let longest = copies.iter().max();
            if copies.iter().filter(|copy| Some(*copy) == longest).count() < replicas {
                let id = server.id;
                let text = format!("the disks have {copies:?} of {segment} of {id}");
                return Err(Rule::ReplicasExist.broken(text));
            }
        }
    }
    Ok(())
}

/// Returns the replica that a backup reports as lost.
pub(crate) fn reported_loss(message: &PeerMessage) -> Option<ReplicaId> {
    match message {
        PeerMessage::Appended(Appended {
            replica,
            result: AppendResult::Refused(AppendRefusal::Failed),
            ..
        }) => Some(*replica),
        _ => None,
    }
}

/// Damages a replica of a segment, once in a run, if the scrub of its backup must find that.
/// Returns whether it did.
pub(crate) fn damage_once(
    servers: &ServerFleet,
    disks: &mut ServerDisks,
    faults: &mut FaultSchedule,
    profile: &RunProfile,
    timeline: &mut RunTimeline,
) -> bool {
    let has_spare = profile.scrub().is_some() && profile.replicas() > 1;
    let is_possible = has_spare && profile.settings.has(Knob::Disk) && faults.damage.is_none();
    if !is_possible || !servers.is_whole(timeline.now) {
        return false;
    }
    // A separate generator: further draws would change the runs of all seeds.
    let mut rng = Rng::with_seed(profile.settings.seed ^ DAMAGE);
    let place = rng.usize(..servers.len());
    let is_needed = |id: &ReplicaId| {
        let master = servers.place(id.log).map(|place| &servers[place]);
        master.is_some_and(|it| it.node.store().log().segments_in_log().contains(&id.segment))
    };
    let Some(replica) = disks.disk_mut(place).damage(&mut rng, is_needed) else { return false };
    faults.record_damage(replica, servers[place].id, timeline);
    true
}
