//! Conversion of the records that earlier versions have written.
//!
//! | format | difference to the next one |
//! | --- | --- |
//! | 6 | a tablet ends before `is_born` |
//! | 7 | a tablet ends before `depends_on`: a served-before-durable range is a migration with a flag |
//! | 8 | a range has incarnations of the databases only; decoding adds those of the server's own tables (`Incarnation::complete`) |
//! | 9 | a range has no incarnation of the pages; decoding adds it |
//! | 10 | the policy of a migration ends before the latency target |
//!
//! Up to format 7, the flag stands before a migration's stage, and the stages from `Releasing` on
//! have a number that is higher by one.

use crate::metastore::{MetaEntry, Transaction};
use crate::records::{
    FORMAT, FORMAT_EARLIEST, LineageDependency, MIGRATIONS, RECOVERIES, RecoveryDependency,
    RecoveryRecord, RecoveryStage, TABLETS, TabletRecord, decode, encode,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use types::{HashRange, MigrationId, ServerId, UnixMillis};
use wire::control::{MigrationPolicy, MigrationProgress, PriorityPullMode};

/// Former numbers of the stages `Recovering`, `Securing` and `Releasing`.
const RECOVERING: u8 = 8;
const SECURING: u8 = 9;
const RELEASING: u8 = 10;

/// The fields of a migration up to its policy, without a latency target.
#[derive(Deserialize)]
struct MigrationUntilTarget {
    _ids: [MigrationId; 2],
    _range: HashRange,
    _servers: [ServerId; 2],
    _partitions: u16,
    _pull_bytes: u32,
    _pulls_ahead: u16,
    _priority: PriorityPullMode,
    _background_share: u8,
}

/// The fields of a migration before its flag and stage.
#[derive(Deserialize)]
struct MigrationHead {
    id: MigrationId,
    _task: MigrationId,
    _range: HashRange,
    source: ServerId,
    target: ServerId,
    _policy: MigrationPolicy,
    _times: [UnixMillis; 2],
    _progress: MigrationProgress,
}

/// A served-before-durable range: a migration from the dead server to the range's owner.
struct ServedRange {
    owner: ServerId,
    remaining: Vec<HashRange>,
    dependency: RecoveryDependency,
}

/// Returns the transaction that converts the records of a store, but for its identity. It expects
/// all of them unchanged.
///
/// # Errors
/// The key of an unreadable record.
pub(crate) fn converted(
    format: u16,
    before: &[(String, MetaEntry)],
) -> Result<Transaction, String> {
    assert!((FORMAT_EARLIEST..FORMAT).contains(&format), "format {format} cannot be converted");
    let expected = before.iter().map(|(key, entry)| (key.clone(), entry.revision)).collect();
    let of = |prefix: &'static str| {
        let records = before.iter().filter(move |(key, _)| key.starts_with(prefix));
        records.map(|(key, entry)| (key, &entry.value[..]))
    };
    let mut writes = Vec::new();
    let mut served = BTreeMap::new();
    for (key, value) in of(MIGRATIONS) {
        let value = with_latency_target(value).ok_or(key)?;
        let value = match format {
            ..8 => migration(&value, &mut served).ok_or(key)?,
            _ => Some(value),
        };
        writes.push((key.clone(), value));
    }
    if format >= 8 {
        return Ok(Transaction { expected, writes });
    }
    for (key, value) in of(TABLETS) {
        writes.push((key.clone(), Some(tablet(format, value, &served).ok_or(key)?)));
    }
    for (key, value) in of(RECOVERIES) {
        let mut recovery: RecoveryRecord = decode(value).ok_or(key)?;
        if let RecoveryStage::Recovering { parts, .. } = &mut recovery.stage {
            for part in parts {
                // The tablet names the second log.
                part.lineage = part.lineage.filter(|id| !served.contains_key(id));
            }
        }
        writes.push((key.clone(), Some(encode(&recovery))));
    }
    Ok(Transaction { expected, writes })
}

/// Returns a migration whose policy has a latency target: none.
fn with_latency_target(value: &[u8]) -> Option<Vec<u8>> {
    let (_, rest) = postcard::take_from_bytes::<MigrationUntilTarget>(value).ok()?;
    let fields = &value[..value.len() - rest.len()];
    Some([fields, &[0], rest].concat())
}

/// Returns a migration without its flag, or adds it to the served-before-durable ranges.
fn migration(
    value: &[u8],
    served: &mut BTreeMap<MigrationId, ServedRange>,
) -> Option<Option<Vec<u8>>> {
    let (head, rest) = postcard::take_from_bytes::<MigrationHead>(value).ok()?;
    let fields = &value[..value.len() - rest.len()];
    match *rest {
        [0, stage, ref content @ ..] if stage != SECURING => {
            let stage = if stage >= RELEASING { stage - 1 } else { stage };
            Some(Some([fields, &[stage], content].concat()))
        }
        [1, RECOVERING | SECURING, ref content @ ..] => {
            let LineageDependency { remaining, source_incarnations: old_incarnations } =
                decode(content)?;
            let dependency = RecoveryDependency { dead: head.source, old_incarnations };
            served.insert(head.id, ServedRange { owner: head.target, remaining, dependency });
            Some(None)
        }
        _ => None,
    }
}

/// Returns a tablet with its dependency.
fn tablet(
    format: u16,
    value: &[u8],
    served: &BTreeMap<MigrationId, ServedRange>,
) -> Option<Vec<u8>> {
    // Each format has added one field, which is absent or false if its byte is 0.
    let lacking = vec![0; usize::from(8 - format)];
    let mut tablet: TabletRecord = decode(&[value, &lacking].concat())?;
    let overlaps = |it: &&ServedRange| it.remaining.iter().any(|it| it.overlaps(tablet.range));
    if let Some(range) = served.values().find(overlaps) {
        let is_inside = range.remaining.iter().any(|it| it.covers(tablet.range));
        if !is_inside || range.owner != tablet.owner {
            return None;
        }
        tablet.depends_on = Some(range.dependency.clone());
    }
    Some(encode(&tablet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metastore::Revision;
    use crate::records::{Ending, Migration, MigrationStage};
    use types::{Incarnation, OwnershipEpoch};

    #[test]
    fn an_unreadable_record_is_named() {
        let entry = MetaEntry { value: vec![7; 3], revision: Revision(1) };
        for kind in [MIGRATIONS, TABLETS, RECOVERIES] {
            let key = format!("{kind}0000000000000001");
            assert_eq!(converted(7, &[(key.clone(), entry.clone())]), Err(key));
        }
        let key = format!("{MIGRATIONS}0000000000000001");
        assert_eq!(converted(10, &[(key.clone(), entry)]), Err(key));
    }

    #[test]
    fn a_range_of_a_version_with_fewer_tables_gets_their_incarnations() {
        let incarnations: Vec<Incarnation> = (1..=16).map(Incarnation).collect();
        let record = TabletRecord {
            range: HashRange::ALL,
            owner: ServerId(1),
            epoch: OwnershipEpoch(1),
            incarnations: incarnations.clone(),
            is_born: false,
            depends_on: None,
        };
        let read: TabletRecord = decode(&encode(&record)).unwrap();
        assert_eq!(read.incarnations[..16], incarnations);
        assert_eq!(read.incarnations[16..], [1 | 1 << 47, 2 | 1 << 47].map(Incarnation));
        let again: TabletRecord = decode(&encode(&read)).unwrap();
        assert_eq!(again, read);
        let entry = MetaEntry { value: encode(&record), revision: Revision(1) };
        for format in [8, 9, 10] {
            let entries = [("tablet/0000000000000000".to_owned(), entry.clone())];
            let converted = converted(format, &entries).unwrap();
            assert!(converted.writes.is_empty() && converted.expected.len() == 1);
        }
    }

    #[test]
    fn a_migration_of_a_version_without_latency_targets_has_none() {
        let policy = MigrationPolicy { background_share: 25, ..MigrationPolicy::default() };
        let record = Migration {
            id: MigrationId(700),
            task: MigrationId(699),
            range: HashRange::ALL,
            source: ServerId(3),
            target: ServerId(400),
            policy,
            created: UnixMillis(1_700_000_000_000),
            updated: UnixMillis(1_700_000_000_001),
            progress: MigrationProgress { records: 5, ..MigrationProgress::default() },
            stage: MigrationStage::Releasing { ending: Ending::Failed("why".into()) },
        };
        let (now, target) = (encode(&record), MigrationPolicy { latency_p99_micros: 77, ..policy });
        let other = encode(&Migration { policy: target, ..record.clone() });
        let place = now.iter().zip(&other).position(|(one, other)| one != other).unwrap();
        let before = [&now[..place], &now[place + 1..]].concat();
        for format in [8, 9, 10] {
            let entry = MetaEntry { value: before.clone(), revision: Revision(1) };
            let key = format!("{MIGRATIONS}0000000000000001");
            let converted = converted(format, &[(key.clone(), entry)]).unwrap();
            let [(written, Some(value))] = &converted.writes[..] else { panic!("{converted:?}") };
            assert_eq!((written, decode(value)), (&key, Some(record.clone())));
        }
    }

    #[test]
    #[should_panic(expected = "format 11 cannot be converted")]
    fn the_format_of_this_version_is_not_converted() {
        let _ = converted(FORMAT, &[]);
    }
}
