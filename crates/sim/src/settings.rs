//! Settings of a run: its seed, and the features that are left out although the seed has them.

use crate::lasting::LastingKind;
use crate::named::named;
use crate::planted::Planted;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Settings of a run. `Display` gives the flags that repeat the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSettings {
    /// Seed of all random numbers of the run.
    pub seed: u64,
    /// Bug that is built in.
    pub planted: Option<Planted>,
    /// Set if every event is printed.
    pub is_printed: bool,
    /// Upper limit for the number of clients.
    pub clients: Option<usize>,
    /// Number of servers, one of [`crate::SERVERS_POSSIBLE`]. `None`: drawn from the seed.
    pub servers: Option<usize>,
    /// Number of registers in use.
    pub registers: Option<usize>,
    /// Upper limit for the time that clients work (virtual time).
    pub until: Option<Duration>,
    /// Features that are left out although the seed has them.
    pub without: BTreeSet<Knob>,
    /// Set if servers replicate each other's logs, whatever the seed draws.
    pub is_replicated: bool,
    /// Set if servers have their own logs, synced at an interval, and their machines lose power,
    /// whatever the seed draws.
    pub loses_power: bool,
    /// Set if servers exchange bytes, whatever the seed draws.
    pub has_streams: bool,
    /// Set if there are native clients, whatever the seed draws.
    pub has_native: bool,
    /// Fault that lasts at the end of a replicated run, instead of the one that the seed draws.
    pub lasting: Option<LastingKind>,
}

impl RunSettings {
    /// Returns settings with everything that the seed draws.
    pub fn new(seed: u64) -> RunSettings {
        RunSettings { seed, ..RunSettings::default() }
    }

    pub(crate) fn has(&self, knob: Knob) -> bool {
        !self.without.contains(&knob)
    }
}

impl fmt::Display for RunSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        if let Some(planted) = self.planted {
            write!(f, " --plant {planted}")?;
        }
        if let Some(clients) = self.clients {
            write!(f, " --clients {clients}")?;
        }
        if let Some(servers) = self.servers {
            write!(f, " --servers {servers}")?;
        }
        if let Some(registers) = self.registers {
            write!(f, " --registers {registers}")?;
        }
        if let Some(until) = self.until {
            write!(f, " --until {}", until.as_millis())?;
        }
        if self.is_replicated {
            f.write_str(" --replicated")?;
        }
        if self.loses_power {
            f.write_str(" --power-loss")?;
        }
        if self.has_streams {
            f.write_str(" --streams")?;
        }
        if self.has_native {
            f.write_str(" --native")?;
        }
        if let Some(kind) = self.lasting {
            write!(f, " --lasting {kind}")?;
        }
        if !self.without.is_empty() {
            let names: Vec<_> = self.without.iter().map(Knob::to_string).collect();
            write!(f, " --without {}", names.join(","))?;
        }
        Ok(())
    }
}

named! {
    /// Feature that a run may have, and that can be left out.
    Knob:
    Link, "link", "A server loses its connection to the coordinator for a while.";
    PairPartition, "cut", "The network between two servers fails for a while, in one direction or in both.";
    Pause, "pause", "A server pauses, and does not know for how long.";
    Clock, "clock", "A server's wall clock jumps, forward or back.";
    FarClocks, "far-clocks", "Wall clocks jump by minutes in some runs, and values live for seconds.";
    Restart, "restart", "The coordinator stops, and another one continues with its store.";
    Rollback, "rollback", "The coordinator starts on an old copy of its store, or on an empty one, until the newest is back; or a server starts on an old copy of its data directory.";
    Takeover, "takeover", "Another coordinator opens the store while the current one is paused.";
    Store, "store", "The metadata store fails now and then; a failed write may have taken effect.";
    SlowStore, "slow-store", "A commit of the metadata store takes up to 50 ms.";
    LocalLog, "kept", "Servers persist their own logs and restart with their data; no range moves.";
    Replicated, "replicated", "Servers replicate each other's logs and recover dead servers' data.";
    Lineage, "lineage", "Ranges move between servers that replicate each other's logs and may die.";
    Crash, "crash", "A server dies, and perhaps another process starts at its address.";
    Lasting, "lasting", "One fault lasts while clients work, and they must be answered.";
    Deaths, "deaths", "Servers die right after a protocol message, and several at a time.";
    Partition, "island", "A server is cut off from everything but its clients for a while.";
    Blackout, "blackout", "All servers die at once: by a power cut, if writes wait for the disk.";
    Disk, "disk", "Disks of servers with replicas are full, fail, or return damaged blocks.";
    SlowDisk, "slow-disk", "Jobs of a disk take 100 to 600 ms for a while.";
    Absence, "absence", "There is no coordinator for up to 1.5 seconds.";
    Follower, "follower", "Clients read what was being written when a server died, and the new owner dies as well.";
    Machines, "machines", "One machine at a time loses power or has a damaged block, in any mode; or machines lose power whose servers sync their own logs at an interval.";
    Large, "large", "A quarter of the runs have up to seven servers, three replicas, and racks.";
    Joins, "joins", "Some servers of a large cluster join while clients work.";
    Small, "small", "Segments are small, values long, and memory is scarce: logs are cleaned.";
    Memory, "memory", "Servers have so little memory that they may refuse moves and writes.";
    Long, "long", "A few runs are slow and long, with outages of up to eight seconds.";
    MessageFaults, "weather", "Messages between servers are lost, duplicated, and delayed.";
    Streams, "streams", "In a quarter of the runs servers exchange bytes over connections that break, instead of messages.";
    Moves, "moves", "Ranges move all the time instead of a few times.";
    Cancels, "cancels", "Some moves are cancelled.";
    Retries, "retries", "Clients of replicated runs send refused operations again.";
    Pipelines, "pipelines", "Clients have several requests in flight.";
    Flushes, "flushes", "Tables are flushed.";
    Expiry, "expiry", "Some values expire.";
    Lifetimes, "lifetimes", "Times to live are changed, removed, kept, and read.";
    Types, "types", "In a quarter of the runs, some registers are hashes.";
    Collections, "collections", "In a fifth of the runs, clients read and change single parts of hashes, lists, sorted sets and streams.";
    Versions, "versions", "In a quarter of the runs, and with native clients, clients read versions and write on condition of them.";
    Native, "native", "In a quarter of the runs, native clients work beside the plain ones.";
    Once, "once", "In a quarter of the runs, clients send exactly-once requests, and repeat them.";
}
