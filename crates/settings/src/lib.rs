//! The settings of a server: names, valid values, and the ways to change them.
//!
//! The [table](SETTINGS) contains everything about each setting. The command line, the
//! configuration file, `CONFIG` and the documented example are derived from it, so that they cannot
//! disagree. Names and meanings follow redis.conf where it has the same setting.
//!
//! **Invariant:** each value in a [`ServerConfiguration`] is valid, because its type has parsed it.
//! A change at runtime replaces the whole configuration, so that no reader sees half of a change.

#![warn(clippy::expect_used, clippy::unwrap_used)]

mod file;
mod table;
mod text;

pub use file::{FileError, example, read_file, rewrite};
pub use table::{
    AccessSettings, ClientSettings, DurabilitySettings, MemorySettings, NetworkSettings,
    OperatorSettings, REQUEST_BYTES_MAX, ReactorSettings, SETTINGS, ServerConfiguration, Setting,
    When,
};
pub use text::{
    Bind, Bytes, DebugCommand, Durability, IoDriver, LogFormat, LogLevel, OutputLimit,
    ReplicaMinimum, Wrong,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_can_be_set_to_what_it_shows() {
        let mut configuration = ServerConfiguration::default();
        for setting in SETTINGS {
            let shown = setting.show(&configuration);
            assert_eq!(setting.set(&mut configuration, &shown), Ok(()), "{}", setting.name);
        }
        assert_eq!(configuration, ServerConfiguration::default());
    }
}
