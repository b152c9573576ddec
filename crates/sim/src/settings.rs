//! What a run is made of: its seed, and what is left out of what the seed would give it.

use crate::planted::Planted;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// What a run is made of. `Display` gives the flags that repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Decides everything else.
    pub seed: u64,
    /// A bug to be found.
    pub planted: Option<Planted>,
    /// Whether every event is printed.
    pub is_printed: bool,
    /// At most so many clients.
    pub clients: Option<usize>,
    /// Only so many registers are used.
    pub registers: Option<usize>,
    /// Clients work for so long at most, by virtual time.
    pub until: Option<Duration>,
    /// What is left out, though the seed would have it.
    pub without: BTreeSet<Knob>,
    /// Whether servers keep each other's logs, whatever the seed would have.
    pub is_replicated: bool,
}

impl Settings {
    /// A run with everything that its seed gives it.
    pub fn new(seed: u64) -> Settings {
        Settings {
            seed,
            planted: None,
            is_printed: false,
            clients: None,
            registers: None,
            until: None,
            without: BTreeSet::new(),
            is_replicated: false,
        }
    }

    /// Whether a run may have this.
    pub(crate) fn has(&self, knob: Knob) -> bool {
        !self.without.contains(&knob)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        if let Some(planted) = self.planted {
            write!(f, " --plant {planted}")?;
        }
        if let Some(clients) = self.clients {
            write!(f, " --clients {clients}")?;
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
        if !self.without.is_empty() {
            let names: Vec<_> = self.without.iter().map(|knob| knob.name()).collect();
            write!(f, " --without {}", names.join(","))?;
        }
        Ok(())
    }
}

/// Defines what can be left out, each with its name and its sentence.
macro_rules! knobs {
    ($($knob:ident, $name:literal, $sentence:literal;)*) => {
        /// Something that a run may have, and that can be left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Knob {
            $(#[doc = $sentence] $knob,)*
        }

        impl Knob {
            /// All of them.
            pub const ALL: &[Knob] = &[$(Knob::$knob),*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Knob::$knob => $name,)* }
            }

            /// What it is.
            pub fn sentence(self) -> &'static str {
                match self { $(Knob::$knob => $sentence,)* }
            }
        }
    };
}

knobs! {
    Link, "link", "A server loses its connection to the coordinator for a while.";
    Cut, "cut", "No message gets from one server to another for a while, or none either way.";
    Pause, "pause", "A server stands still, and does not know how long.";
    Clock, "clock", "A server's wall clock jumps, forward or back.";
    Restart, "restart", "The coordinator ends, and another one goes on with its store.";
    Rollback, "rollback", "The coordinator starts on an old copy of its store until the newest is back, or a server on one of its folder.";
    Takeover, "takeover", "Another coordinator opens the store while one stands still that does not know.";
    Store, "store", "The metadata store fails now and then, with or without effect.";
    Kept, "kept", "Servers keep their logs and come back with what they had; then nothing moves.";
    Replicated, "replicated", "Servers keep each other's logs, and recover what was a dead one's.";
    Lineage, "lineage", "Ranges move between servers that keep each other's logs, and die.";
    Crash, "crash", "A server dies, and perhaps another process starts where it stood.";
    Deaths, "deaths", "Servers die right after a message of a protocol, and several at a time.";
    Island, "island", "A server hears nobody but its clients for a while.";
    Blackout, "blackout", "All servers die at once; where writes wait for the disk, by a power cut.";
    Disk, "disk", "Disks of servers that keep each other's logs are full, fail, or bring damaged blocks.";
    Machines, "machines", "One machine at a time loses its power or its disk's bits, whatever the mode.";
    Small, "small", "Segments are small, values long and memory is short: logs are cleaned.";
    Memory, "memory", "Servers have so little memory that moves and writes may be refused.";
    Long, "long", "A few runs are slow and long, with absences of up to eight seconds.";
    Weather, "weather", "Messages between servers are lost, repeated, and late.";
    Moves, "moves", "Ranges move all the time, and not only a few times.";
    Cancels, "cancels", "Moves are cancelled.";
    Pipelines, "pipelines", "Clients have several requests under way.";
    Flushes, "flushes", "Tables are emptied.";
    Expiry, "expiry", "Values expire.";
}

impl Knob {
    /// What has this name.
    pub fn named(name: &str) -> Option<Knob> {
        Knob::ALL.iter().copied().find(|knob| knob.name() == name)
    }
}
