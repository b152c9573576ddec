//! Checks at the end of a run: the histories of the clients, and the contents of the servers.

use super::ClusterRun;
use crate::cluster::SimulatedCluster;
use crate::failure::{Failure, Rule};
use crate::history::HistoryVerdict;
use crate::inspect::ServerContents;
use crate::redundancy;
use crate::servers::SimulatedServer;
use std::collections::{BTreeMap, BTreeSet};

impl ClusterRun {
    /// Checks the histories of the clients, and the final contents of the servers.
    pub(super) fn judge(&mut self) -> Option<Failure> {
        if let Some(text) = self.load.clients.effect_of_unexecuted() {
            return Some(Rule::NotExecuted.broken(text));
        }
        match self.load.clients.judge(&self.load.workload.registers) {
            Some((register, HistoryVerdict::Violated(text))) => {
                let key = &self.load.workload.registers[register].keys[0].1;
                let key = String::from_utf8_lossy(key);
                return Some(Rule::Linearizable.broken(format!("{key}: {text}")));
            }
            Some((register, _)) => {
                return Some(Rule::Decided.broken(format!("register {register}")));
            }
            None => {}
        }
        if let Err(failure) = self.judge_servers() {
            return Some(failure);
        }
        let SimulatedCluster { servers, disks, faults, profile, timeline, .. } = &self.cluster;
        redundancy::check(servers, disks, faults, profile, timeline.now).err()
    }

    /// Checks that a scan over all servers finds exactly the records that the last reads saw,
    /// each at one server.
    fn judge_servers(&mut self) -> Result<(), Failure> {
        let mut seen: BTreeMap<&[u8], u64> = BTreeMap::new();
        let mut unknown: BTreeSet<&[u8]> = BTreeSet::new();
        for (number, register) in self.load.workload.registers.iter().enumerate() {
            let keys = register.keys.iter().map(|(_, key)| key.as_slice());
            match self.load.clients.last_read(number) {
                Some(Some(value)) => seen.extend(keys.map(|key| (key, value))),
                Some(None) => {}
                None if self.cluster.losses.is_excused(number) => unknown.extend(keys),
                None => {
                    let key = String::from_utf8_lossy(&register.keys[0].1);
                    return Err(Rule::Answered.broken(format!("no server answers for {key}")));
                }
            }
        }
        for server in self.cluster.servers.iter_mut().filter(|server| !server.is_dead) {
            let ServerContents { mut held, .. } = judge_counts(server)?;
            held.retain(|key, _| !unknown.contains(key.as_slice()));
            for (key, value) in held {
                let of_read = seen.remove(key.as_slice());
                let workload = &self.load.workload;
                let register = workload.names[&key];
                let is_seen = |it| it == value || workload.may_become(register, it, Some(value));
                if !of_read.is_some_and(is_seen) {
                    let key = String::from_utf8_lossy(&key);
                    let text = format!("{} holds {value} for {key}: no read sees it", server.id);
                    return Err(Rule::NothingStray.broken(text));
                }
            }
        }
        // A value may have expired since it was read, or its only field.
        let workload = &self.load.workload;
        seen.retain(|key, &mut value| {
            let register = workload.names[*key];
            !workload.has_lifetime(register, value) && !workload.may_become(register, value, None)
        });
        match seen.first_key_value() {
            Some((key, value)) => {
                let key = String::from_utf8_lossy(key);
                Err(Rule::NothingLost.broken(format!("no server holds {key} = {value}")))
            }
            None => Ok(()),
        }
    }
}

/// Checks that a server's counts match a scan, and that it has no records outside its ranges.
fn judge_counts(server: &mut SimulatedServer) -> Result<ServerContents, Failure> {
    let id = server.id;
    let left = server.inspector.left_behind();
    if !left.is_empty() {
        return Err(Rule::NothingStray.broken(format!("{id} holds {left:?}")));
    }
    let contents = server.inspector.scan();
    let words = server.inspector.words();
    let found = contents.held.len() as u64 + contents.others;
    if found != words && !(contents.may_have_tombstones && found < words) {
        let (held, others) = (contents.held.len(), contents.others);
        let text = format!("{id} counts {words} records, serves {held}, and holds {others} others");
        return Err(Rule::CountsMatch.broken(text));
    }
    let (live, bytes) = (server.node.store().usage().log.live_bytes, contents.bytes);
    if live != bytes && !(contents.may_have_tombstones && bytes < live) {
        let text = format!("{id} counts {live} live bytes and holds {bytes}");
        return Err(Rule::CountsMatch.broken(text));
    }
    Ok(contents)
}
