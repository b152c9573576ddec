//! A naive store: one sorted map, one counter, and a literal implementation of the table "at the
//! target" of the design.

use std::collections::{BTreeMap, BTreeSet};
use types::{HashRange, KeyHash, MigrationId, OwnershipEpoch, ServerId, Version};

/// A record, or the tombstone of a delete.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) version: Version,
    pub(crate) value: Option<String>,
}

/// The state of one range on a server.
#[derive(Debug)]
pub(crate) struct Tablet {
    pub(crate) range: HashRange,
    pub(crate) epoch: OwnershipEpoch,
    pub(crate) state: TabletState,
}

#[derive(Debug)]
pub(crate) enum TabletState {
    Serving,
    Frozen,
    Leaving(ServerId),
    Arriving(Arrival),
}

/// The target's side of a migration as operations see it.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) migration: MigrationId,
    pub(crate) partitions: Vec<(HashRange, Option<KeyHash>)>,
    pub(crate) absent: BTreeSet<KeyHash>,
    pub(crate) is_suspended: bool,
}

impl Arrival {
    pub(crate) fn is_below_progress(&self, hash: KeyHash) -> bool {
        let mut partitions = self.partitions.iter();
        let (_, progress) = partitions.find(|(range, _)| range.contains(hash)).expect("covered");
        progress.is_none_or(|progress| hash < progress)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    Read(Vec<KeyHash>),
    Write(KeyHash, String),
    WriteIfAbsent(KeyHash, String),
    Increment(KeyHash),
    Delete(KeyHash),
}

/// The result of an operation.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Answer(String),
    Moved(Option<ServerId>),
    Held,
    Missing(MigrationId, Vec<KeyHash>),
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) records: BTreeMap<KeyHash, Record>,
    pub(crate) tablets: Vec<Tablet>,
    pub(crate) counter: u64,
}

impl Operation {
    fn hashes(&self) -> &[KeyHash] {
        match self {
            Operation::Read(hashes) => hashes,
            Operation::Write(hash, _)
            | Operation::WriteIfAbsent(hash, _)
            | Operation::Increment(hash)
            | Operation::Delete(hash) => std::slice::from_ref(hash),
        }
    }
}

impl Store {
    pub(crate) fn tablet(&mut self, hash: KeyHash) -> Option<&mut Tablet> {
        self.tablets.iter_mut().find(|tablet| tablet.range.contains(hash))
    }

    pub(crate) fn arrival(&mut self, migration: MigrationId) -> Option<&mut Arrival> {
        self.tablets.iter_mut().find_map(|tablet| match &mut tablet.state {
            TabletState::Arriving(arrival) if arrival.migration == migration => Some(arrival),
            _ => None,
        })
    }

    pub(crate) fn execute(&mut self, operation: &Operation) -> Outcome {
        if let Some(stall) = self.stall(operation) {
            return stall;
        }
        Outcome::Answer(match operation {
            Operation::Read(hashes) => {
                let values: Vec<String> = hashes.iter().map(|&hash| self.value(hash)).collect();
                values.join(", ")
            }
            Operation::Write(hash, value) => self.put(*hash, Some(value.clone())),
            Operation::WriteIfAbsent(hash, value) => match self.value(*hash).as_str() {
                "nothing" => self.put(*hash, Some(value.clone())),
                _ => "exists".to_owned(),
            },
            Operation::Increment(hash) => {
                let value = self.value(*hash).parse::<u64>().unwrap_or(0) + 1;
                self.put(*hash, Some(value.to_string()));
                value.to_string()
            }
            Operation::Delete(hash) => match self.value(*hash).as_str() {
                "nothing" => "nothing".to_owned(),
                _ => self.put(*hash, None),
            },
        })
    }

    fn stall(&mut self, operation: &Operation) -> Option<Outcome> {
        let here: BTreeSet<KeyHash> = self.records.keys().copied().collect();
        let mut missing = Vec::new();
        let mut migration = None;
        for &hash in operation.hashes() {
            match self.tablet(hash).map(|tablet| &tablet.state) {
                None => return Some(Outcome::Moved(None)),
                Some(TabletState::Frozen) => return Some(Outcome::Held),
                Some(TabletState::Leaving(to)) => return Some(Outcome::Moved(Some(*to))),
                Some(TabletState::Serving) => {}
                Some(TabletState::Arriving(arrival)) if arrival.is_suspended => {
                    return Some(Outcome::Held);
                }
                Some(TabletState::Arriving(arrival)) => {
                    let is_known = here.contains(&hash)
                        || arrival.is_below_progress(hash)
                        || arrival.absent.contains(&hash);
                    if !is_known && !matches!(operation, Operation::Write(..)) {
                        missing.push(hash);
                        migration = Some(arrival.migration);
                    }
                }
            }
        }
        migration.map(|migration| Outcome::Missing(migration, missing))
    }

    fn value(&self, hash: KeyHash) -> String {
        let value = self.records.get(&hash).and_then(|record| record.value.clone());
        value.unwrap_or_else(|| "nothing".to_owned())
    }

    /// Writes a value or deletes the key. A delete above the progress leaves a tombstone for the
    /// record that is still to arrive; no other delete leaves one.
    fn put(&mut self, hash: KeyHash, value: Option<String>) -> String {
        self.counter += 1;
        let version = Version(self.counter);
        let is_above_progress = match self.tablet(hash).map(|tablet| &tablet.state) {
            Some(TabletState::Arriving(arrival)) => !arrival.is_below_progress(hash),
            _ => false,
        };
        if value.is_none() && !is_above_progress {
            self.records.remove(&hash);
        } else {
            self.records.insert(hash, Record { version, value });
        }
        format!("done, {version}")
    }

    /// Inserts records that are newer, and returns their number.
    pub(crate) fn replay(&mut self, migration: MigrationId, batch: &[(KeyHash, Record)]) -> u64 {
        let mut inserted = 0;
        for (hash, record) in batch {
            let is_newer = self.records.get(hash).is_none_or(|here| here.version < record.version);
            let Some(arrival) = self.arrival(migration) else { continue };
            if !arrival.is_below_progress(*hash) && is_newer {
                self.records.insert(*hash, record.clone());
                inserted += 1;
            }
        }
        inserted
    }
}
