//! Admission checks: joins of servers, and requests to move ranges.
//!
//! Requests are checked against the *forecast*: the owners after every queued and running
//! migration has succeeded. The way back of a moving range can therefore be requested at once,
//! and requesting the same move twice is an error. A queued migration is checked again when its
//! turn comes, because an earlier one may have failed.
//!
//! A range that spans several tablets becomes one migration per tablet: each tablet has its own
//! epoch, and a flip is checked against one epoch.

use crate::configuration::ClusterConfiguration;
use crate::records::{Migration, RecoveryRecord};
use types::limits::{LATENCY_TARGET_MICROS_MAX, PARTITIONS_MAX, TABLES_MAX};
use types::{HashRange, KeyHash, SLOT_COUNT, ServerId, Slot};
use wire::control::{Join, MISSING_SHOWN_MAX, MigrationPolicy, PriorityPullMode};
use wire::frame::MESSAGE_BYTES_MAX;
use wire::peer::{PRIORITY_HASHES_MAX, PULL_BYTES_MAX};

/// Most servers in the configuration. Disconnected servers without ranges make room for new ones.
pub const SERVERS_MAX: usize = 1024;
/// Most tablets of the cluster. Each migration may add two borders.
pub const TABLETS_MAX: usize = 4096;
/// Additional tablets for ranges that were moving when a side of their migration died. Their
/// borders cannot be refused.
pub(crate) const LINEAGE_TABLETS_MAX: usize = 512;
/// Most migrations that have not ended.
pub const MIGRATIONS_MAX: usize = 1024;
/// Most ended migrations in the history; equals Valkey's `cluster-slot-migration-log-max-len`.
pub const HISTORY_MAX: usize = 1000;
/// Longest reason in a report, in bytes. Longer texts of servers are truncated.
pub(crate) const REASON_BYTES_MAX: usize = 256;
/// Longest host name in bytes, as in the domain name system.
pub(crate) const HOST_BYTES_MAX: usize = 255;
/// Longest rack name in bytes; limited by the size of the map.
pub(crate) const RACK_BYTES_MAX: usize = 48;

/// Most bytes of a number in a message: `postcard` stores seven bits per byte.
const NUMBER: usize = 10;
const RANGE: usize = 2 * NUMBER;
/// Most bytes of a server number.
const SERVER: usize = 5;
/// Both texts with their lengths, the number, two ports, three flags.
const SERVER_BYTES: usize = HOST_BYTES_MAX + 2 + RACK_BYTES_MAX + 1 + SERVER + 2 * 3 + 3;
/// An incarnation has 48 bits, seven per byte.
const TABLET_BYTES: usize = RANGE + SERVER + NUMBER + 1 + 7 * TABLES_MAX;
const MOVING_BYTES: usize = RANGE + 2 * SERVER;
const REPORT_BYTES: usize = RANGE + REASON_BYTES_MAX + 13 * NUMBER;

// The whole map and the whole list of migrations each fit into one message.
const _: () = assert!(
    SERVERS_MAX * SERVER_BYTES
        + (TABLETS_MAX + LINEAGE_TABLETS_MAX) * TABLET_BYTES
        + MIGRATIONS_MAX * MOVING_BYTES
        < MESSAGE_BYTES_MAX
);
const _: () = assert!((MIGRATIONS_MAX + HISTORY_MAX) * REPORT_BYTES < MESSAGE_BYTES_MAX);
/// Bytes of a recovery report, without its ranges, partitions and migrations.
const RECOVERY_BYTES: usize = REASON_BYTES_MAX + 8 * NUMBER + MISSING_SHOWN_MAX * NUMBER;
// The whole list of recoveries fits as well. A migration may be listed for either side.
const _: () = assert!(
    SERVERS_MAX * RECOVERY_BYTES
        + (TABLETS_MAX + LINEAGE_TABLETS_MAX) * (2 * RANGE + SERVER)
        + 2 * MIGRATIONS_MAX * NUMBER
        < MESSAGE_BYTES_MAX
);

/// Smallest size of a pull, in bytes; a smaller one would be mostly overhead.
const PULL_BYTES_MIN: u32 = 1 << 10;
/// Most replies of one partition that may wait for their replay.
const PULLS_AHEAD_MAX: u16 = 64;

/// Checks that other servers can be given this address.
///
/// # Errors
/// The text describes the fault.
pub(crate) fn check_address(join: &Join) -> Result<(), String> {
    let host = join.host.as_bytes();
    if host.is_empty() || host.len() > HOST_BYTES_MAX {
        return Err(format!("the announced host must have 1 to {HOST_BYTES_MAX} bytes"));
    }
    // No blanks, and none of the separators in replies of CLUSTER NODES.
    let is_plain = |c: &u8| c.is_ascii_alphanumeric() || b".-_:%[]".contains(c);
    if !host.iter().all(is_plain) {
        return Err("the announced host must be a host name or an address".to_owned());
    }
    if join.rack.len() > RACK_BYTES_MAX || !join.rack.as_bytes().iter().all(is_plain) {
        return Err(format!(
            "the rack name must have at most {RACK_BYTES_MAX} letters, digits, or . - _ : % [ ]"
        ));
    }
    if join.client_port == 0 || join.bus_port == 0 {
        return Err("the announced ports must not be 0".to_owned());
    }
    Ok(())
}

/// Checks that the numbers of a policy are within their limits.
///
/// # Errors
/// The text names the number that is not.
pub(crate) fn check_policy(policy: &MigrationPolicy) -> Result<(), String> {
    let between = |what: &str, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(format!("{what} must be between {least} and {most}"))
        }
    };
    between("partitions", policy.partitions.into(), 1, PARTITIONS_MAX as u64)?;
    let (least, most) = (PULL_BYTES_MIN.into(), PULL_BYTES_MAX.into());
    between("pull bytes", policy.pull_bytes.into(), least, most)?;
    between("pulls ahead", policy.pulls_ahead.into(), 1, PULLS_AHEAD_MAX.into())?;
    between("background share", policy.background_share.into(), 1, 100)?;
    let most = LATENCY_TARGET_MICROS_MAX.into();
    between("latency target in microseconds", policy.latency_p99_micros.into(), 0, most)?;
    match policy.priority {
        PriorityPullMode::Off | PriorityPullMode::Immediate => Ok(()),
        PriorityPullMode::Batched { hashes_max } => {
            let most = PRIORITY_HASHES_MAX as u64;
            between("hashes of a priority pull", hashes_max.into(), 1, most)
        }
    }
}

/// A request to move ranges to a target.
pub(crate) struct MoveRequest<'a> {
    pub(crate) ranges: &'a [HashRange],
    pub(crate) source: Option<ServerId>,
    pub(crate) target: ServerId,
    pub(crate) policy: &'a MigrationPolicy,
}

/// Returns the requested moves, each with its source. Only servers for which `is_connected` is
/// true can take part.
///
/// # Errors
/// The reason why the request cannot be granted.
pub(crate) fn plan(
    configuration: &ClusterConfiguration,
    request: &MoveRequest<'_>,
    is_connected: impl Fn(ServerId) -> bool,
) -> Result<Vec<(HashRange, ServerId)>, String> {
    check_policy(request.policy)?;
    check_ranges(request.ranges)?;
    if !configuration.servers().contains_key(&request.target) {
        return Err("Unknown node name".to_owned());
    }
    if !is_connected(request.target) {
        return Err("Target node is not connected to the coordinator".to_owned());
    }
    if request.source == Some(request.target) {
        return Err("Target node can not be the source node".to_owned());
    }
    let forecast = forecast(configuration);
    let mut moves = Vec::new();
    for &range in request.ranges {
        let pieces = pieces(&forecast, range)?;
        let owner = owner(configuration, request, &pieces)?;
        if !is_connected(owner) {
            return Err("Source node is not connected to the coordinator".to_owned());
        }
        if configuration.keeps_log(owner) && !configuration.keeps_log(request.target) {
            return Err("Target node has no replicated log; restart it with the --durability of \
                        the source node"
                .to_owned());
        }
        moves.extend(pieces);
    }
    check_room(configuration, moves.len())?;
    let is_requested = |piece: &HashRange| request.ranges.iter().any(|it| it.covers(*piece));
    assert!(moves.iter().all(|(piece, _)| is_requested(piece)), "more moves than was requested");
    Ok(moves)
}

fn check_ranges(ranges: &[HashRange]) -> Result<(), String> {
    if ranges.is_empty() {
        return Err("No slot ranges specified".to_owned());
    }
    if ranges.len() > usize::from(SLOT_COUNT) || !ranges.iter().all(|range| range.is_whole_slots())
    {
        return Err("Only ranges of whole slots can be moved".to_owned());
    }
    let mut in_order: Vec<(HashRange, usize)> =
        ranges.iter().copied().enumerate().map(|(at, range)| (range, at)).collect();
    in_order.sort_unstable();
    for pair in in_order.windows(2) {
        let (mut later, mut previous) = (pair[0], pair[1]);
        if later.0.overlaps(previous.0) {
            if later.1 < previous.1 {
                std::mem::swap(&mut later, &mut previous);
            }
            let (later, previous) = (slots(later.0), slots(previous.0));
            return Err(format!("Slot range {later} overlaps with previous range {previous}"));
        }
    }
    Ok(())
}

fn slots(range: HashRange) -> String {
    let (Slot(first), Slot(last)) = range.slots();
    format!("{first}-{last}")
}

/// Returns the future owner of every owned hash, by tablet.
fn forecast(configuration: &ClusterConfiguration) -> Vec<(HashRange, ServerId)> {
    let mut owned: Vec<(HashRange, ServerId)> =
        configuration.tablets().values().map(|tablet| (tablet.range, tablet.owner)).collect();
    for migration in configuration.migrations().values().filter(|m| m.can_be_withdrawn()) {
        let rest = |&(range, owner): &(HashRange, ServerId)| {
            let parts = range.without(migration.range).into_iter().flatten();
            parts.map(|part| (part, owner)).collect::<Vec<_>>()
        };
        owned = owned.iter().flat_map(rest).collect();
        owned.push((migration.range, migration.target));
    }
    owned.sort_unstable();
    owned
}

/// Splits `range` by tablet.
///
/// # Errors
/// Some hash of the range has no owner.
fn pieces(
    forecast: &[(HashRange, ServerId)],
    range: HashRange,
) -> Result<Vec<(HashRange, ServerId)>, String> {
    let nobody = |hash: KeyHash| format!("Slot {} has no node served", hash.slot().0);
    let mut pieces: Vec<(HashRange, ServerId)> = Vec::new();
    let mut next = Some(range.first());
    for &(owned, owner) in forecast {
        let Some(piece) = owned.intersection(range) else { continue };
        if let Some(hash) = next.filter(|&hash| hash != piece.first()) {
            return Err(nobody(hash));
        }
        pieces.push((piece, owner));
        next = (piece.last() < range.last()).then(|| KeyHash(piece.last().0 + 1));
    }
    match next {
        Some(hash) => Err(nobody(hash)),
        None => {
            assert!(pieces.windows(2).all(|it| it[0].0.last() < it[1].0.first()), "out of order");
            Ok(pieces)
        }
    }
}

/// Returns the common owner of all pieces, if it matches the request.
fn owner(
    configuration: &ClusterConfiguration,
    request: &MoveRequest<'_>,
    pieces: &[(HashRange, ServerId)],
) -> Result<ServerId, String> {
    let already = |hash: KeyHash| format!("I am already migrating slot {}", hash.slot().0);
    let mut there = pieces.iter().filter(|(_, owner)| *owner == request.target);
    let arriving = there.find_map(|(piece, _)| {
        first_moving(configuration, *piece, |migration| migration.target == request.target)
    });
    if let Some(hash) = arriving {
        return Err(already(hash));
    }
    assert!(!pieces.is_empty(), "a range that is owned has pieces");
    let owner = pieces[0].1;
    if pieces.iter().any(|piece| piece.1 != owner) {
        return Err("Requested slots span multiple shards".to_owned());
    }
    if let Some(source) = request.source.filter(|&source| source != owner) {
        let leaving = pieces.iter().find_map(|(piece, _)| {
            first_moving(configuration, *piece, |migration| migration.source == source)
        });
        let not_owned = || "Slots are not served by this node".to_owned();
        return Err(leaving.map_or_else(not_owned, already));
    }
    match owner == request.target {
        true => Err("Target node can not be the source node".to_owned()),
        false => Ok(owner),
    }
}

/// Returns the first hash of `range` that a matching migration moves.
fn first_moving(
    configuration: &ClusterConfiguration,
    range: HashRange,
    is_such: impl Fn(&Migration) -> bool,
) -> Option<KeyHash> {
    let live = configuration.migrations().values().filter(|m| m.is_live() && is_such(m));
    live.filter_map(|m| m.range.intersection(range)).map(HashRange::first).min()
}

fn check_room(configuration: &ClusterConfiguration, moves: usize) -> Result<(), String> {
    let live = configuration.migrations().values().filter(|m| m.is_live()).count();
    if live + moves > MIGRATIONS_MAX {
        return Err(format!("At most {MIGRATIONS_MAX} migrations can wait; try again later"));
    }
    if 2 * moves > room_for_borders(configuration) {
        return Err(format!("The slots would be split into more than {TABLETS_MAX} ranges"));
    }
    Ok(())
}

/// Returns how many more borders can be added, after all reserved ones.
pub(crate) fn room_for_borders(configuration: &ClusterConfiguration) -> usize {
    TABLETS_MAX.saturating_sub(configuration.tablets().len() + promised_borders(configuration))
}

/// Returns the same for ranges that were moving when a side of their migration died.
pub(crate) fn room_for_lineage(configuration: &ClusterConfiguration) -> usize {
    let tablets_max = TABLETS_MAX + LINEAGE_TABLETS_MAX;
    tablets_max.saturating_sub(configuration.tablets().len() + promised_borders(configuration))
}

/// Returns the number of reserved borders. A migration reserves two. A recovery partition reserves
/// one, because it is one of several of a range; one that a migration had left reserves two.
fn promised_borders(configuration: &ClusterConfiguration) -> usize {
    let moves = configuration.migrations().values().filter(|m| m.can_be_withdrawn()).count();
    let parts = configuration.recoveries().values().flat_map(RecoveryRecord::parts);
    let parts: usize = parts.map(|part| if part.lineage.is_some() { 2 } else { 1 }).sum();
    2 * moves + parts
}
